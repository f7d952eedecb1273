"""Printed numbers add up, compared with a plain SQL sum over the run's rows."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest

from tests.checks import measured_of_run, sum_of_run
from tests.conftest import Built, Recorded
from tests.pages import build_page
from tests.support import Corpus, check_cli
from tests.tables import amount, printed_table
from tracemap import attribute, load

TITLES = {"python": "Python line", "site": "Dispatch site"}
RUNS = ("jax_gpt2_4l", "hand_multifunc.roundtrip", "onnx_tinygpt", "hand_repeat6_calls")


@pytest.mark.long
@pytest.mark.parametrize("flags", RUNS)
def test_printed_tables_add_up_to_the_rows_of_the_run(
    flags: str, built: Built, recorded: Recorded, samples: Corpus
) -> None:
    run = recorded(flags)
    dispatched = sum_of_run(run, "cpu_ns", "kind = 'dispatch'")
    assert dispatched > 0
    for by in ("op", "line", "name", "python", "caller", "site"):
        options = ("--by", by, "--top", "0", "--totals", "--metric", "cpu_ns,duration_ns", "--balance")
        printed = check_cli("attribute", run, "--map", built(samples.model_of(flags)), *options)
        rows = printed_table(printed, f"{TITLES.get(by, by.capitalize())}s by cpu_ns, sums of")
        (heading,) = (heading for heading in rows[0] if re.fullmatch("cpu [nµm]?s", heading))
        shown = [amount(heading, row[heading]) for row in rows]
        total, slack = (sum(parts, Fraction()) for parts in zip(*shown, strict=True))
        assert abs(total - dispatched) <= slack, by
    for metric in ("cpu_ns", "duration_ns"):
        (numbers,) = re.findall(
            rf"^{metric}: measured (\d+) = attributed (\d+) \+ unattributed (\d+) ns$", printed, re.M
        )
        measured, attributed, unattributed = map(int, numbers)
        assert (measured, attributed + unattributed) == (measured_of_run(run, metric),) * 2


@pytest.mark.few(2)
@pytest.mark.parametrize("flags", RUNS)
def test_lines_ops_and_scopes_of_the_page_add_up_to_the_rows_of_the_run(
    flags: str, built: Built, recorded: Recorded, samples: Corpus
) -> None:
    run, bundle = recorded(flags), load(built(samples.model_of(flags)))
    page = build_page(bundle.graph, attribute([run], bundle), bundle.source_text)
    (cpu,) = [number for number, metric in enumerate(page.data.metrics) if metric.name == "cpu_ns"]
    lines = [line.costs[cpu].attributed for line in page.rows.source_rows[0].lines.values() if line.costs]
    ops = [row.costs[cpu].attributed for row in page.rows.ops if row.costs]
    scopes = [row.attributed[cpu] for row in page.data.scopes]
    dispatched = sum_of_run(run, "cpu_ns", "kind = 'dispatch'")
    assert sum(lines) == sum(ops) == dispatched > 0
    assert sum(scopes) == (dispatched if any(op.scope for op in bundle.graph.ops) else 0)
    rest = sum(row.amounts[cpu] for row in page.data.unattributed)
    assert sum(ops) + rest == page.data.metrics[cpu].measured == sum_of_run(run, "cpu_ns")
