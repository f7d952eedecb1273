"""Copies and fills: their cost in rows and lines, compared with the run's rows."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Sequence
from pathlib import Path

import duckdb
import pytest

from tests.pages import build_page
from tests.support import ROOT, check_cli
from tests.tables import amount, printed_table
from tracemap.attribution.attribute import Request, attribute
from tracemap.attribution.model import Attribution
from tracemap.map.bundle import Bundle, load
from tracemap.options.results import AttributeOptions
from tracemap.reports.terminal.attribution import print_attribution
from tracemap.runs.runfile import read_run

PROGRAM = ROOT / "tests" / "programs" / "transfers.mlir"
CALLS = {"alone": ((), "C"), "copied": (("64x64xf32=1", "1x64xf32=2", "3"), "D"), "cut": (("64x64xf32=1", "3"), "E")}
"""Function -> its inputs, and the mark in the program of the op whose transfer is all of its work."""
ITERATIONS = 4


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    target = tmp_path_factory.mktemp("transfers") / "transfers.tracemap"
    check_cli("build", PROGRAM, "-o", target)
    return load(target)


def recorded(bundle: Bundle, function: str, run: Path) -> Path:
    inputs = [word for spec in CALLS[function][0] for word in ("--input", spec)]
    check_cli("record", bundle.path, "--function", function, "--iterations", str(ITERATIONS), *inputs, "-o", run)
    return run


def sum_of_rows(run: Path, *kinds: str) -> int:
    """How long the measured events of these kinds took, by SQL on the run alone."""
    return _of_rows("sum", run, kinds)


def median_of_rows(run: Path, *kinds: str) -> int:
    """The same of one of them, whatever held up some."""
    return _of_rows("median", run, kinds)


def _of_rows(aggregate: str, run: Path, kinds: Sequence[str]) -> int:
    rows = "read_parquet(?) WHERE NOT warmup AND list_contains(?, kind)"
    with duckdb.connect() as connection:
        query = f"SELECT coalesce({aggregate}(duration_ns), 0) FROM {rows}"
        found = connection.execute(query, [str(run), list(kinds)]).fetchone()
    assert found is not None
    return int(found[0])


def by_duration(bundle: Bundle, run: Path) -> Attribution:
    """With one metric, which then is the one that tables show."""
    found = attribute(Request(bundle.graph, bundle.map_sha256, [read_run(run)]))
    (duration,) = (metric for metric in found.metrics if metric.name == "duration_ns")
    return dataclasses.replace(found, metrics=(duration,))


@pytest.mark.long
@pytest.mark.parametrize("function", CALLS)
def test_text_and_page_have_the_cost_of_transfers(bundle: Bundle, function: str, tmp_path: Path) -> None:
    run = recorded(bundle, function, tmp_path / "run.parquet")
    measured = sum_of_rows(run, "copy", "fill", "update")
    assert measured > 0
    assert sum_of_rows(run, "dispatch") == 0
    lines = PROGRAM.read_text(encoding="utf-8").splitlines()
    number = next(n for n, line in enumerate(lines, start=1) if line.endswith(f"// {CALLS[function][1]}"))
    costs = by_duration(bundle, run)

    out = io.StringIO()
    print_attribution(bundle.graph, costs, out, AttributeOptions(totals=True))
    rows = [row for row in printed_table(out.getvalue(), "Ops by duration_ns, sums") if row["line"] != "–"]
    (cost,) = (heading for heading in rows[0] if heading.startswith("wall"))
    (row,) = (row for row in rows if row[cost] != "0")
    assert (row["line"], row["calls"]) == (f"transfers.mlir:{number}", str(ITERATIONS))
    shown, slack = amount(cost, row[cost])
    assert abs(shown - measured) <= slack

    titles = {"site": "Dispatch sites", "kernel": "Kernels"}
    for by in ("site", "kernel"):
        out = io.StringIO()
        print_attribution(bundle.graph, costs, out, AttributeOptions(totals=True, by=by))
        rows = printed_table(out.getvalue(), f"{titles[by]} by duration_ns, sums")
        (row,) = (row for row in rows if row[cost] != "0")
        assert row["kernel"] in {"copy", "fill", "update"}
        assert abs(amount(cost, row[cost])[0] - measured) <= slack

    page = build_page(bundle.graph, costs, bundle.source_text)
    with_cost = {
        number: (line.calls, line.costs[0].attributed, line.costs[0].inclusive)
        for number, line in page.rows.source_rows[0].lines.items()
        if line.costs and line.costs[0].attributed
    }
    assert with_cost == {number: (ITERATIONS, measured, measured)}
    assert sum(op.costs[0].attributed for op in page.rows.ops if op.costs) == measured
    head = next(n for n, line in enumerate(lines, start=1) if line.startswith(f"func.func @{function}("))
    assert page.rows.source_rows[0].lines[head].costs[0].inclusive == measured


JOINED = """
func.func @main(%x: tensor<8x32xf32>, %a: tensor<2048x512xf32>, %b: tensor<2048x512xf32>)
    -> (tensor<8x32xf32>, tensor<4096x512xf32>) {
  %small = math.exp %x : tensor<8x32xf32>
  %e = tensor.empty() : tensor<4096x512xf32>
  %p = tensor.insert_slice %a into %e[0, 0] [2048, 512] [1, 1] : tensor<2048x512xf32> into tensor<4096x512xf32>
  %q = tensor.insert_slice %b into %p[2048, 0] [2048, 512] [1, 1] : tensor<2048x512xf32> into tensor<4096x512xf32>
  return %small, %q : tensor<8x32xf32>, tensor<4096x512xf32>
}
"""


@pytest.mark.long
def test_copies_that_are_not_timed_are_named(tmp_path: Path) -> None:
    """Two copies of 4 MiB beside a kernel of a microsecond: one row is of all, another of the kernel."""
    (tmp_path / "joined.mlir").write_text(JOINED)
    bundle, run = tmp_path / "joined.tracemap", tmp_path / "run.parquet"
    check_cli("build", tmp_path / "joined.mlir", "-o", bundle)
    check_cli("record", bundle, "--iterations", "10", "-o", run)
    assert sum_of_rows(run, "copy", "fill", "update") == 0
    assert median_of_rows(run, "execute") > 10 * median_of_rows(run, "dispatch")
    said = check_cli("attribute", run, "--map", bundle)
    (note,) = (line for line in said.splitlines() if "[transfers-untimed]" in line)
    assert "does not time 2 copies and fills within command buffers (op4 tensor.insert_slice, op5 tensor.i" in note
    assert note.endswith("their time is part of submission-and-queue, in wall time only")
    (advice,) = (line for line in said.splitlines() if "--compare-devices" in line)
    assert "the overhead may include untimed copies and fills" in advice
    sync = tmp_path / "sync.parquet"  # this driver does not list what is recorded
    check_cli("record", bundle, "--iterations", "4", "-o", sync, "--", "--device=local-sync")
    assert "does not time 2 copies and fills" in check_cli("attribute", sync, "--map", bundle)


def test_what_has_no_untimed_copies_is_not_said_to(bundle: Bundle, tmp_path: Path) -> None:
    run = recorded(bundle, "copied", tmp_path / "run.parquet")
    assert "transfers-untimed" not in check_cli("attribute", run, "--map", bundle.path)
