"""The kernels of a bench as CSV: first the columns that the dispatch profiler of IREE had, then ours.

Its users have scripts for those columns (IREE, experimental/dispatch_profiler, until 2024).
"""

from __future__ import annotations

from tracemap.experiments.model import Bench, KernelBench, Spread, Status
from tracemap.inert import csv_line, without_controls

COLUMNS = (
    *("Dispatch", "Provider", "OpKind", "Operation", "Configuration", "Arguments", "Verification", "Runtime(ms)"),
    *("GFLOPs", "sites", "time_ns", "time_q1_ns", "time_q3_ns", "cold_ns", "bytes_per_s", "attainable_share"),
    *("in_application_ns", "ratio", "points_to"),
)
_PROVIDER = "IREE Codegen"


def bench_csv(made: Bench) -> str:
    """A row per kernel and kind of work, with a header line; what is not known is an empty cell."""
    rows = (csv_line([without_controls(cell) for cell in _cells(kernel)]) for kernel in made.kernels)
    return "".join([csv_line(COLUMNS), *rows])


def _cells(kernel: KernelBench) -> list[str]:
    time, first = kernel.time_ns, kernel.in_application[0] if kernel.in_application else None
    words = {Status.NOT_VERIFIED: "Not verified"}
    return [
        *(kernel.kernel, _PROVIDER, kernel.operation_kind, kernel.operation),
        *(kernel.configuration, kernel.arguments),
        words.get(kernel.verification.status, kernel.verification.status.value),
        _number(None if time is None else time.median / 1e6),
        _number(None if kernel.operations_per_s is None else kernel.operations_per_s / 1e9),
        " ".join(kernel.sites),
        *(("", "", "") if time is None else map(_number, (time.median, time.q1, time.q3))),
        _median(kernel.cold_ns),
        _number(kernel.bytes_per_s),
        _number(kernel.attainable_share),
        *(("", "", "") if first is None else (_number(first.median_ns), _number(first.ratio), first.points_to)),
    ]


def _median(spread: Spread | None) -> str:
    return "" if spread is None else _number(spread.median)


def _number(value: object) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
