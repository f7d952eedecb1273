"""Kernels on the page: data, omissions, hostile texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attribution.test_kernel_lines import addresses_run
from tests.conftest import Built
from tests.pages import build_page, render_page
from tests.support import check_cli, page_data
from tracemap.attribution.attribute import Request, attribute
from tracemap.machine.code import instructions_of
from tracemap.machine.images import read_images
from tracemap.map.bundle import Bundle, load
from tracemap.options.results import Rule
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


def test_code_is_there_where_something_was_seen(built: Built, tmp_path: Path) -> None:
    bundle = load(built("hand_mlp"))
    result = attribute(seen_everywhere(bundle, "matmul", tmp_path))
    first, *others = kernel_pages(bundle.graph, result, kernels_of(bundle))
    assert "matmul" in first.name
    assert len(first.code) == sum(first.seen["samples"].values()) == len(first.seen_at["samples"])
    assert first.loops
    assert not first.no_code
    assert len(others) == len(bundle.graph.kernels) - 1
    assert all(not page.code and page.no_code and page.lines and page.ops for page in others)
    assert set(first.seen_at["samples"]) == set(range(len(first.code)))
    for number, loop in enumerate(first.loops):
        assert loop.parent < number
        assert 0 <= loop.at < len(first.code)


def test_a_page_of_the_map_alone_has_texts_and_links(built: Built) -> None:
    bundle = load(built("hand_mlp"))
    pages = kernel_pages(bundle.graph, None, kernels_of(bundle))
    assert [page.name for page in pages] == [kernel.name for kernel in bundle.graph.kernels]
    for page, kernel in zip(pages, bundle.graph.kernels, strict=True):
        assert "\n".join(page.lines) + "\n" == bundle.kernel_text(kernel)
        assert page.ops == {step.line: step.ops for step in kernel.steps if step.ops}
        assert not page.seen


def test_machine_code_has_a_limit(built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = load(built("hand_mlp"))
    result = attribute(seen_everywhere(bundle, "matmul", tmp_path))
    monkeypatch.setattr(kernels_tab, "MOST_INSTRUCTIONS", 0)
    pages = kernel_pages(bundle.graph, result, kernels_of(bundle))
    assert all(not page.code for page in pages)
    assert "hotter kernels fill the page" in pages[0].no_code


def test_texts_of_kernels_are_data(built: Built) -> None:
    bundle = load(built("hand_mlp"))
    page = build_page(bundle.graph, None, bundle.source_text, KernelSources(lambda _: EVIL, tuple))
    text = render_page(page)
    assert EVIL not in text
    assert page_data(text)["kernels"][0]["lines"] == EVIL.split("\n")


def test_the_page_is_the_same_twice(built: Built, tmp_path: Path) -> None:
    for name in ("a.html", "b.html"):
        check_cli("report", built("hand_mlp"), "-o", tmp_path / name)
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
