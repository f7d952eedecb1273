"""Ops as benchmarks, in Google Benchmark's JSON, for its `compare.py`.

Times are means per invocation, as in the format. Counters with the names of metrics have the sums of the whole run, as
integers.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from tracemap.codec import pretty
from tracemap.reports.advice import basis, known_invocations
from tracemap.reports.escaping import file_line
from tracemap.reports.exports.charges import Charge, Ledger, added
from tracemap.reports.json_documents import benchmark, document
from tracemap.sanitize import without_controls
from tracemap.units import Unknown

_REAL, _CPU = "duration_ns", "cpu_ns"
_OWN_KEYS = frozenset({*benchmark("", 0, 0, 0), "label", "family_index"})


def google_benchmark(ledger: Ledger) -> str:
    """The document: a benchmark per op, and per reason of unattributed costs."""
    rows: dict[str, list[Charge]] = defaultdict(list)
    for charge in ledger.charges:
        rows[_name(charge)].append(charge)
    run = ledger.attribution.run
    about = {
        "module_sha256": without_controls(ledger.graph.module.sha256),
        "device": "" if isinstance(run.device, Unknown) else without_controls(run.device),
        "rule": ledger.attribution.rule.value,
        "counters": without_controls(basis(ledger.metrics, totals=True)),
    }
    benchmarks = [_benchmark(ledger, name, charges) for name, charges in rows.items()]
    return pretty(document("tracemap export", {**about, "num_cpus": _workers(ledger)}, benchmarks))


def _workers(ledger: Ledger) -> int:
    """The workers of the run, as it may come from another machine."""
    workers = ledger.attribution.run.workers
    return 1 if isinstance(workers, Unknown) else workers


def _name(charge: Charge) -> str:
    """Id, name and line of an op, which are stable over builds of the same model."""
    if charge.op is None:
        return charge.frame.name
    return f"{charge.frame.name}/{without_controls(file_line(charge.op.file, charge.op.line))}"


def _benchmark(ledger: Ledger, name: str, charges: list[Charge]) -> dict[str, Any]:
    sums = dict(zip(ledger.metrics, added(charge.amounts for charge in charges), strict=True))
    by_name = {metric.name: total for metric, total in sums.items()}
    iterations = max([known_invocations(metric) for metric in sums if metric.name in (_REAL, _CPU)], default=0) or 1
    # compare.py needs both clocks; use one for both if the run has only one.
    real, cpu = by_name.get(_REAL, by_name.get(_CPU, 0)), by_name.get(_CPU, by_name.get(_REAL, 0))
    return {
        **benchmark(name, iterations, real / iterations, cpu / iterations),
        **{_counter(metric): total for metric, total in by_name.items()},
    }


def _counter(metric: str) -> str:
    """The name of a metric's counter, different from the keys of the format."""
    name = without_controls(metric)
    return f"metric {name}" if name in _OWN_KEYS else name
