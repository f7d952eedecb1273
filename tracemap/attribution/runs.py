"""The runs that are attributed together: what must not be joined or added up, and what a report says of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tracemap.attribution.model import RunSummary
from tracemap.diagnostics import Diagnostic
from tracemap.errors import RunMismatch, UsageInvalid
from tracemap.graph.model import TraceGraph
from tracemap.measurements.model import Run
from tracemap.units import UNKNOWN, Integer


def check_runs(graph: TraceGraph, runs: Sequence[Run], *, allow_mismatch: bool) -> list[Diagnostic]:
    """Refuse what must not be joined or added up; returns what a reader must know all the same.

    Raises:
        RunMismatch: a run is of another module, and `allow_mismatch` is not set.
        UsageInvalid: the runs are of other devices or worker counts.
    """
    found = list(_modules(graph, runs, allow_mismatch=allow_mismatch))
    first = runs[0].header
    for run in runs[1:]:
        if (run.header.device, run.header.workers) != (first.device, first.workers):
            raise UsageInvalid(
                f"{run.table} ran on {run.header.device} with {run.header.workers} workers, {runs[0].table} on "
                f"{first.device} with {first.workers}: they do not add up; attribute them one at a time"
            )
    return [*found, *(each for run in runs for each in run.header.diagnostics)]


def _modules(graph: TraceGraph, runs: Sequence[Run], *, allow_mismatch: bool) -> Iterator[Diagnostic]:
    """Which runs are, or may be, of another module than the map's."""
    for run in runs:
        digest = run.header.module_sha256
        if not run.has_header or digest is UNKNOWN:
            text = f"{run.table.name} does not say which module it was recorded from"
            yield Diagnostic("run-unverified", text)
        elif digest != graph.module.sha256:
            text = f"{run.table} was recorded from another module ({digest[:12]}…) than the map's"
            if not allow_mismatch:
                raise RunMismatch(f"{text} ({graph.module.sha256[:12]}…); record again, or --allow-mismatch")
            yield Diagnostic("run-mismatch", text)


def summary(runs: Sequence[Run]) -> RunSummary:
    """Header values for the report; sums over several runs, unknown as soon as one is."""
    headers = [run.header for run in runs]
    return RunSummary(
        elapsed_ns=_sum([header.elapsed_ns for header in headers]),
        iterations=_sum([header.iterations for header in headers]),
        workers=headers[0].workers,
        device=headers[0].device,
        function=headers[0].function,
        command=headers[0].command,
    )


def _sum(values: Sequence[Integer]) -> Integer:
    known = [value for value in values if value is not UNKNOWN]
    return sum(known) if len(known) == len(values) else UNKNOWN
