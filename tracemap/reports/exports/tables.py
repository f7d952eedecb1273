"""Exports as tables: Parquet, and Google Benchmark's JSON."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any, Final

from tracemap._version import __version__
from tracemap.attribution.model import Attribution
from tracemap.core.codec import pretty_json
from tracemap.core.errors import UsageInvalid
from tracemap.core.sanitize import without_controls
from tracemap.core.units import MAX_INTEGER, Unknown
from tracemap.map.model import TraceGraph
from tracemap.reports.advice import basis, known_invocations
from tracemap.reports.csv_tables import TABLE_COLUMNS, attribution_rows
from tracemap.reports.escaping import file_line
from tracemap.reports.exports.charges import Charge, Ledger, sum_columns
from tracemap.reports.json_documents import benchmark, document
from tracemap.runs.sql import copy_to, literal, open_database, quoted

# ---- parquet
#
# The table of ops as Parquet: the rows of `attribute --format csv`, with types, and NULL for unknown values.


_MARK_KEY: Final = "tracemap.export"
"""Key of the file's metadata by which `has_mark` recognises it."""
_TYPES: Final = {str: "VARCHAR", int: "BIGINT"}


def write_parquet(graph: TraceGraph, attribution: Attribution, target: Path) -> None:
    """Write the table atomically.

    Raises:
        UsageInvalid: a number has more than 64 bits.
        TargetUnwritable: the file cannot be written.
    """
    columns: list[list[str | int | None]] = [[] for _ in TABLE_COLUMNS]
    for row in attribution_rows(graph, attribution):
        for column, cell in zip(columns, row, strict=True):
            if isinstance(cell, int) and abs(cell) > MAX_INTEGER:
                raise UsageInvalid(f"{cell} has more than 64 bits, which Parquet cannot hold; export as csv")
            column.append(None if isinstance(cell, Unknown) else cell)
    types = [_TYPES[kind] for kind in TABLE_COLUMNS.values()]
    lists = ", ".join(
        f"unnest(CAST(? AS {kind}[])) AS {quoted(name)}" for name, kind in zip(TABLE_COLUMNS, types, strict=True)
    )
    with open_database() as connection:
        # A single thread keeps the order of rows, for deterministic output.
        connection.execute("SET threads = 1")
        connection.execute(f"CREATE TEMP TABLE ops AS SELECT {lists}", columns)
        mark = f"KV_METADATA {{'{_MARK_KEY}': {literal(__version__)}}}"
        copy_to(connection.table("ops"), target, f"FORMAT parquet, {mark}")


# ---- google benchmark
#
# Ops as benchmarks, in Google Benchmark's JSON, for its `compare.py`.
#
# Times are means per invocation, as in the format. Counters with the names of metrics have the sums of the whole run,
# as integers.


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
    return pretty_json(document("tracemap export", {**about, "num_cpus": _workers(ledger)}, benchmarks))


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
    sums = dict(zip(ledger.metrics, sum_columns(charge.amounts for charge in charges), strict=True))
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
