"""The cost of building: bytes add up to the module's file, and a slow kernel is named first."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.conftest import Built
from tests.oracle.build_cost import bundle_of, program
from tests.support import SAMPLES, check_cli, json_cli, long_where, run_cli
from tracemap.core.codec import encode
from tracemap.machine.module_sizes import PartKind, read_module_sizes
from tracemap.map.build_cost import build_cost
from tracemap.map.bundle import load

MODELS = sorted(path.stem for path in (SAMPLES / "models").glob("*.mlir"))
QUICK = ("hand_attention", "hand_constexpr", "torch_mlp")


@pytest.mark.parametrize("model", long_where(MODELS, lambda _, model: model not in QUICK))
def test_bytes_add_up_to_the_file(model: str, built: Built) -> None:
    bundle = load(built(model))
    cost = build_cost(bundle)
    size = bundle.module_path.stat().st_size
    assert sum(part.amount for part in cost.bytes) == cost.module_bytes == size
    code = next(part.amount for part in cost.bytes if part.name == PartKind.CODE.value)
    assert sum(kernel.code_bytes for kernel in cost.kernels) == code
    assert sum(op.code_bytes for op in cost.ops) + sum(kernel.code_of_no_op for kernel in cost.kernels) == code
    assert 0 < code < size
    assert cost.times == () == cost.passes


def test_parts_of_a_module_are_where_the_elf_file_has_them(built: Built) -> None:
    """Against the sections as binutils' rules see them: code and data of an executable are inside its image."""
    bundle = load(built("hand_constexpr"))
    sizes = read_module_sizes(bundle.module_path, frozenset(bundle.graph.kernel_by_name))
    amount = {part.kind: 0 for part in sizes.parts}
    for part in sizes.parts:
        amount[part.kind] += part.bytes
    images = sum(len(image.data) for image in sizes.images)
    inside = (PartKind.CODE, PartKind.LIBRARY, PartKind.DATA, PartKind.DEBUG, PartKind.TABLES)
    assert sum(amount[kind] for kind in inside) == images
    assert amount[PartKind.CONSTANTS] >= 8192  # its folded constant


def test_the_slow_kernel_is_first(tmp_path: Path) -> None:
    seeded = program(1)
    bundle = bundle_of(seeded, tmp_path)
    cost = json_cli("show", bundle, "--cost")["cost"]
    assert seeded.is_slow(cost["kernels"][0]["kernel"])
    assert sum(part["amount"] for part in cost["times"]) == cost["elapsed_ns"]
    assert sum(op["duration_ns"] for op in cost["ops"]) == sum(own["duration_ns"] for own in cost["kernels"])
    assert sum(own["duration_ns"] for own in cost["kernels"]) <= cost["executables_ns"] < cost["elapsed_ns"]
    assert cost["peak_bytes"] > 50 << 20
    shown = check_cli("show", bundle, "--cost")
    assert "compile time" in shown
    assert cost["kernels"][0]["kernel"] in shown
    other = bundle_of(program(2), tmp_path)
    building = json_cli("diff", bundle, other)["building"]
    assert building["before_ns"] == cost["elapsed_ns"]
    assert building["kernels"]
    assert "cost of building" in check_cli("diff", bundle, other)
    _check_damage(bundle, tmp_path)


def _check_damage(bundle: Path, folder: Path) -> None:
    copy = folder / "damaged.tracemap"
    shutil.copytree(bundle, copy)
    text = (copy / "timing.json").read_text()
    for damaged in (
        text[:-9],
        text.replace('"kernel":"', '"kernel":"no', 1),
        text.replace('"executables_ns":', '"executables_ns":9'),
    ):
        (copy / "timing.json").write_text(damaged)
        result = run_cli("show", copy, "--cost")
        assert result.returncode == 2
        assert "damaged" in result.stderr
        assert result.stderr.count("\n") == 1


def test_dumps_have_no_times(tmp_path: Path) -> None:
    (tmp_path / "m.vmfb").touch()
    result = run_cli("build", "--timing", "--from-dumps", tmp_path, "--module", tmp_path / "m.vmfb")
    assert result.returncode == 2
    assert "--timing measures the compiler" in result.stderr


def test_the_page_has_the_cost_of_building(built: Built, tmp_path: Path) -> None:
    """Only with times; the names of kernels are escaped like all text."""
    from tracemap.map.bundle_documents import BuildTiming, KernelTiming
    from tracemap.reports.page.overview_tab import building_tables

    copy = tmp_path / "timed.tracemap"
    shutil.copytree(built("torch_mlp"), copy)
    assert "Cost of building" not in _page(copy, tmp_path / "without.html")
    kernels = tuple(KernelTiming(kernel.name, 3, 2, 1) for kernel in load(copy).graph.kernels)
    timing = BuildTiming(elapsed_ns=90, executables_ns=6 * len(kernels), others=(), kernels=kernels, passes=())
    (copy / "timing.json").write_bytes(encode(timing))
    page = _page(copy, tmp_path / "with.html")
    assert "Cost of building" in page
    tables = building_tables(build_cost(load(copy)), load(copy).graph)
    assert all(len(row) == len(table.columns) for table in tables for row in table.rows)


def _page(bundle: Path, page: Path) -> str:
    check_cli("report", bundle, "-o", page)
    return page.read_text(encoding="utf-8")
