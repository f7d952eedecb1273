"""What people read adds up: the numbers of printed tables and of the page, against a bare SQL sum of the run's rows."""

from __future__ import annotations

import re

import pytest

from tests.checks import sum_of_run
from tests.conftest import Built, Recorded
from tests.support import Corpus, check_cli
from tracemap import attribute, load
from tracemap.reports.page.build import build_page

RUNS = ("jax_gpt2_4l", "hand_multifunc.roundtrip", "onnx_tinygpt", "hand_repeat6_calls")
NS = {"ns": 1, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}


def amounts(printed: str, title: str, column: int) -> list[tuple[float, float]]:
    """Nanoseconds in a column of times of a printed table, and half a unit of the last digit that is shown."""
    lines = printed.split("\n")
    start = next(number for number, line in enumerate(lines) if line.startswith(title)) + 2
    found = []
    for line in lines[start:]:
        if not line.strip():
            break
        number, unit = re.findall(r"(?<![\w.:])([\d.]+) (ns|µs|ms|s)\b", line)[column]
        digits = len(number.partition(".")[2])
        found.append((float(number) * NS[unit], 0.0 if unit == "ns" else NS[unit] / 10**digits / 2))
    return found


@pytest.mark.parametrize("flags", RUNS)
def test_printed_tables_add_up_to_the_rows_of_the_run(
    flags: str, built: Built, recorded: Recorded, samples: Corpus
) -> None:
    run = recorded(flags)
    printed = check_cli("attribute", run, "--map", built(samples.model_of(flags)), "--all")
    dispatched = sum_of_run(run, "cpu_ns", "kind = 'dispatch'")
    assert dispatched > 0
    whole = ("Ops by cpu_ns", *(() if "more sites" in printed else ("Sites by cpu_ns",)))
    for title in whole:
        shown = amounts(printed, title, 0)
        assert abs(sum(value for value, _ in shown) - dispatched) <= sum(slack for _, slack in shown), title
    for metric in ("cpu_ns", "duration_ns"):
        (numbers,) = re.findall(rf"^{metric}: measured (\d+) = attributed (\d+) \+ residual (\d+) ns$", printed, re.M)
        measured, attributed, residual = map(int, numbers)
        assert (measured, attributed + residual) == (sum_of_run(run, metric),) * 2


@pytest.mark.parametrize("flags", RUNS)
def test_lines_ops_and_scopes_of_the_page_add_up_to_the_rows_of_the_run(
    flags: str, built: Built, recorded: Recorded, samples: Corpus
) -> None:
    run, bundle = recorded(flags), load(built(samples.model_of(flags)))
    page = build_page(bundle.graph, attribute([run], bundle), bundle.source_text)
    (cpu,) = [number for number, metric in enumerate(page.metrics) if metric.name == "cpu_ns"]
    lines = [line.costs[cpu].attributed.exact for line in page.sources[0].lines if line.costs]
    ops = [row.costs[cpu].attributed.exact for row in page.ops if row.costs]
    scopes = [row.attributed[cpu].exact for row in page.scopes]
    dispatched = sum_of_run(run, "cpu_ns", "kind = 'dispatch'")
    assert sum(lines) == sum(ops) == dispatched > 0
    assert sum(scopes) == (dispatched if any(op.scope for op in bundle.graph.ops) else 0)
    rest = sum(row.amounts[cpu].exact for row in page.residual)
    assert sum(ops) + rest == page.metrics[cpu].measured.exact == sum_of_run(run, "cpu_ns")
