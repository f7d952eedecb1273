"""Kernels on the page: data, omissions, hostile texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.attribution.test_kernel_lines import addresses_run
from tests.builders import attribution, graph, op, site
from tests.conftest import Built, Recorded
from tests.pages import build_page, render_page
from tests.support import check_cli, page_data
from tracemap.attribution.attribute import Request, attribute
from tracemap.core.errors import ModuleInvalid
from tracemap.machine.code import instructions_of
from tracemap.machine.images import Image, read_images
from tracemap.map.bundle import Bundle, load
from tracemap.options.results import Rule
from tracemap.reports.cost_lookup import MapCosts
from tracemap.reports.page import source_tabs as kernels_tab
from tracemap.reports.page.source_tabs import KernelSources, kernel_pages, kernels_of
from tracemap.runs.runfile import read_run

EVIL = "</script><script>alert(1)</script><!--"


def seen_everywhere(bundle: Bundle, part: str, folder: Path) -> Request:
    """A run with one sample at each instruction of a kernel, to be attributed."""
    kernel = next(kernel for kernel in bundle.graph.kernels if part in kernel.name)
    (image,) = read_images(bundle.module_path)
    code = instructions_of(image, image.function_by_name[kernel.name])
    run = addresses_run(bundle, kernel.name, [i.address for i in code], [i.line for i in code], folder / "r.parquet")
    return Request(bundle.graph, bundle.map_sha256, [read_run(run)], Rule.MEASURED, images=lambda: (image,))


def test_samples_are_at_their_instructions_and_in_their_loops(built: Built, tmp_path: Path) -> None:
    bundle = load(built("hand_mlp"))
    result = attribute(seen_everywhere(bundle, "matmul", tmp_path))
    first, *others = kernel_pages(MapCosts(bundle.graph, result), kernels_of(bundle))
    assert "matmul" in first.name
    assert len(first.code) == sum(first.seen["samples"].values()) == len(first.seen_at["samples"])
    assert first.loops
    assert all(page.code and page.lines and page.ops and not page.no_code for page in (first, *others))
    assert set(first.seen_at["samples"]) == set(range(len(first.code)))
    for number, loop in enumerate(first.loops):
        assert loop.parent < number
        assert loop.ranges[0][0] == loop.at
        assert sum(last - at for at, last in loop.ranges) == loop.instructions


def test_a_run_without_samples_has_code_and_estimates_the_most_expensive_kernels_first(
    built: Built, recorded: Recorded, tmp_path: Path
) -> None:
    check_cli("report", built("jax_mlp"), recorded("jax_mlp"), "-o", tmp_path / "page.html")
    data = page_data((tmp_path / "page.html").read_text(encoding="utf-8"))
    names = data["fields"]["SiteRow"]
    total = {site[0]: site[names.index("costs")][data["metric"]][0] for site in data["sites"]}
    costs = [sum(total[site] for site in kernel["sites"]) for kernel in data["kernels"]]
    assert costs == sorted(costs, reverse=True)
    assert len(costs) > 1
    assert data["rule"] == "code"  # the cards of ops say that ranges are estimates, not intervals of samples
    for kernel in data["kernels"]:
        assert kernel["code"]
        assert kernel["noCode"] == ""
    estimated = data["kernels"][0]["seen"]["estimated cycles"]
    assert set(map(int, estimated)) <= set(range(len(data["kernels"][0]["lines"]) + 1))  # 0: code without a line
    assert "samples" not in data["kernels"][0]["seen"]


def test_kernels_at_load_time_come_last() -> None:
    names = ("weights", "idle", "small", "large")
    sites = [site(at, kernel=name, initializer=name == "weights") for at, name in enumerate(names)]
    map_ = graph((op(1, 1),), sites)
    costs = attribution(map_, {"cpu_ns": {"site0": 90, "site2": 1, "site3": 5}})
    pages = kernel_pages(MapCosts(map_, costs), KernelSources(lambda _: "text", tuple))
    assert [page.name for page in pages] == ["large", "small", "idle", "weights"]


def test_a_damaged_module_leaves_a_reason_in_place_of_code(built: Built) -> None:
    def damaged() -> Sequence[Image]:
        raise ModuleInvalid("module.vmfb: is damaged")

    bundle = load(built("hand_mlp"))
    pages = kernel_pages(MapCosts(bundle.graph, None), KernelSources(bundle.kernel_text, damaged))
    assert {(page.code, page.no_code) for page in pages} == {((), "module.vmfb: is damaged")}


def test_a_page_of_the_map_alone_has_texts_and_links(built: Built) -> None:
    bundle = load(built("hand_mlp"))
    pages = kernel_pages(MapCosts(bundle.graph, None), kernels_of(bundle))
    assert [page.name for page in pages] == [kernel.name for kernel in bundle.graph.kernels]
    for page, kernel in zip(pages, bundle.graph.kernels, strict=True):
        assert "\n".join(page.lines) + "\n" == bundle.kernel_text(kernel)
        assert page.ops == {step.line: step.ops for step in kernel.steps if step.ops}
        assert not page.seen


def test_machine_code_has_a_limit(built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = load(built("hand_mlp"))
    costed = MapCosts(bundle.graph, attribute(seen_everywhere(bundle, "matmul", tmp_path)))
    first, *others = kernel_pages(costed, kernels_of(bundle))
    (image,) = read_images(bundle.module_path)
    function = image.function_by_name[first.name]
    monkeypatch.setattr(kernels_tab, "MOST_CODE_BYTES", function.high - function.low)
    limited, *rest = kernel_pages(costed, kernels_of(bundle))
    assert limited == first
    assert others
    assert all(not page.code and "more expensive kernels fill the page" in page.no_code for page in rest)


def test_texts_of_kernels_are_data(built: Built) -> None:
    bundle = load(built("hand_mlp"))
    page = build_page(bundle.graph, None, bundle.source_text, KernelSources(lambda _: EVIL, tuple))
    text = render_page(page)
    assert EVIL not in text
    assert page_data(text)["kernels"][0]["lines"] == EVIL.split("\n")


@pytest.mark.long
def test_the_page_is_the_same_twice(built: Built, tmp_path: Path) -> None:
    for name in ("a.html", "b.html"):
        check_cli("report", built("hand_mlp"), "-o", tmp_path / name)
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
