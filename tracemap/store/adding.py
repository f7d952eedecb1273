"""Add a run to a store: its events with their targets, and its attributed costs.

Everything that needs the map is computed here, once, while the run and its bundle are at hand: the places of each
event, outliers, and the split of costs. Queries over many runs then only sum integers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tracemap.attribution.attribute import OpenAttribution
from tracemap.attribution.join.targets import EXECUTE, MEMORY, OUTSIDE_KERNELS, TRANSFER, UNMATCHED
from tracemap.attribution.model import MetricTotal, PlaceResult, UnattributedReason
from tracemap.attribution.scan.connection import IN_MILLIONTHS, value_column
from tracemap.core.codec import encode
from tracemap.core.errors import RunInvalid
from tracemap.core.units import MAX_INTEGER, UNKNOWN, Integer, Text
from tracemap.map.model import TraceGraph
from tracemap.runs.model import Machine, RunHeader
from tracemap.runs.sql import quoted
from tracemap.store.layout import (
    ASIDE,
    CALLS,
    COLUMNS,
    COSTS,
    NO_METRICS,
    OF_RUNS,
    RUNS,
    SPREADS,
    TARGETS,
    Row,
    Store,
    null_if_unknown,
    run_name,
    run_number,
    write_query,
    write_rows,
)

REASON_OF: Final = {
    UNMATCHED: UnattributedReason.UNMATCHED,
    TRANSFER: UnattributedReason.TRANSFER,
    MEMORY: UnattributedReason.MEMORY,
    EXECUTE: UnattributedReason.QUEUE,
    OUTSIDE_KERNELS: UnattributedReason.OUTSIDE_KERNELS,
}
"""The reason for events without a place, by the number that stands for their target."""
COVERED: Final = "counted-in-dispatches"
"""Reason for submissions: their dispatches have rows of their own, so the time would count twice."""
_NANOSECONDS: Final = 1_000_000_000
_PART: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDescription:
    """The caller's description of a run: the model's name, tags, and the machine, which completes the header.

    `number`: the run's identity (`number_of`).
    """

    number: int
    model: str
    tags: Mapping[str, str] = field(default_factory=dict)
    machine: Machine
    added_ns: int


def add_run(store: Store, graph: TraceGraph, joined: OpenAttribution, description: RunDescription) -> bool:
    """Write the files of a run, unless the store has it (False). The header comes last; the run exists only then.

    Raises:
        RunInvalid: a metric has the name of a column of the store, or of another metric.
        TargetUnwritable: a file cannot be written.
    """
    names = stored_names(joined.result.metrics)
    number = description.number
    name = run_name(number)
    if is_complete(store, description):
        return False
    partition = _partition(description)
    header = store.run_file(RUNS, name, partition)
    files = {table: store.run_file(table, name, partition) for table in OF_RUNS}
    connection = joined.tables.connection  # reused: opening another takes longer than all writing
    write_query(connection, _events(number, names, joined), files[CALLS])
    write_rows(connection, TARGETS, [(number, *row) for row in _targets(graph, joined)], files[TARGETS])
    of_metrics = {ASIDE: _aside(joined), COSTS: _costs(graph, joined), SPREADS: _spreads(joined)}
    for table, rows in of_metrics.items():
        place = list(COLUMNS[table]).index("metric") - 1
        stored = [(number, *row[:place], names[row[place]], *row[place + 1 :]) for row in rows]
        write_rows(connection, table, stored, files[table])
    row = _header_row(graph, joined, description)
    write_rows(connection, RUNS, [tuple(null_if_unknown(row[column]) for column in COLUMNS[RUNS])], header)
    return True


def is_complete(store: Store, description: RunDescription) -> bool:
    """Whether the run is in the store, and all files of this partition are there."""
    name = run_name(description.number)
    return store.has_run(name) and not store.has_lost(name, _partition(description))


def has_header(store: Store, description: RunDescription) -> bool:
    """Whether the run is in the store under this model, host and date."""
    return store.run_file(RUNS, run_name(description.number), _partition(description)).exists()


def _partition(description: RunDescription) -> Mapping[str, Text]:
    return {
        "model": description.model,
        "host": description.machine.host,
        "date": date_of(description.machine.recorded_ns),
    }


def stored_names(metrics: Sequence[MetricTotal]) -> Mapping[str, str]:
    """The store's names of metrics: those in millionths get a suffix, since they cannot be added to whole ones.

    One metric may have fractions in one run and none in another.

    Raises:
        RunInvalid: a metric has the name of a column of the store, or of another metric.
    """
    names = {total.name: total.name + (f"_{IN_MILLIONTHS}" if total.unit == IN_MILLIONTHS else "") for total in metrics}
    taken = Counter(name.lower() for name in names.values())
    for metric, name in names.items():
        if name.lower() in NO_METRICS or taken[name.lower()] > 1:
            other = "a column of the store" if name.lower() in NO_METRICS else "another metric"
            raise RunInvalid(
                f"metric {metric!r} of the run has the same name as {other} ({name}); rename it in the run"
            )
    return names


def run_number_of(map_sha256: str, header: RunHeader, content: Path, dispatch: str = "") -> int:
    """The id of a run: a hash of its map, its header and its file. Events are not needed.

    A CSV's header is a separate file.

    Args:
        map_sha256: SHA-256 of the bundle's map.
        header: header of the run.
        content: the run's file.
        dispatch: the kernel given for a file that names none. Another kernel makes it another run.
    """

    def parts() -> Iterator[bytes]:
        yield map_sha256.encode()
        yield encode(header)
        yield dispatch.encode(errors="surrogateescape")
        with content.open("rb") as file:
            while part := file.read(_PART):
                yield part

    return run_number(parts())


def date_of(recorded_ns: Integer) -> Text:
    """The day (UTC) of a timestamp."""
    if recorded_ns is UNKNOWN:
        return UNKNOWN
    try:
        return datetime.fromtimestamp(recorded_ns // _NANOSECONDS, UTC).date().isoformat()
    except (OverflowError, ValueError, OSError):
        return UNKNOWN


def _events(number: int, names: Mapping[str, str], joined: OpenAttribution) -> str:
    """SQL for the rows of table `calls`, in a fixed order, so that equal runs give equal files."""
    metrics = joined.places.scan.metrics
    columns = joined.tables.query("SELECT column_name FROM (DESCRIBE resolved)")
    start = "start_ns" if ("start_ns",) in columns else "CAST(NULL AS BIGINT)"
    values = [
        f"CAST({value_column(place)} AS BIGINT) AS {quoted(names[metric.name])}" for place, metric in enumerate(metrics)
    ]
    order = ", ".join(value_column(place) for place in range(len(metrics)))
    return (
        f"SELECT CAST({number} AS BIGINT) AS run, target, invocation, {start} AS start_ns, {', '.join(values)} "
        f"FROM resolved ORDER BY invocation, {start}, target, {order}"
    )


def _targets(graph: TraceGraph, joined: OpenAttribution) -> Iterator[Row]:
    kernel_of = {site.id: null_if_unknown(site.kernel) for site in graph.sites}
    for target, of_target in enumerate(joined.places.scan.targets):
        places = of_target.places
        for position, place in enumerate(places):
            yield target, place, kernel_of.get(place), position, len(places)
    for target, reason in REASON_OF.items():
        yield target, reason.value, None, 0, 1


def _aside(joined: OpenAttribution) -> Iterator[Row]:
    """Outliers of each target, and the time of submissions that their dispatches have, too."""
    scan = joined.places.scan
    for target, sums in scan.by_target.items():
        for metric, amount in sums.outliers.items():
            if amount:
                yield target, metric, UnattributedReason.OUTLIERS.value, amount
    for metric, amount in scan.execute_covered.items():
        if amount:
            yield EXECUTE, metric, COVERED, amount


def _costs(graph: TraceGraph, joined: OpenAttribution) -> Iterator[Row]:
    """Costs of ops at places, then unattributed costs: at a place, or by reason alone.

    A metric with no cost at all gets a row of 0, which shows that the run measured it.
    """
    at_places: Counter[tuple[str, str]] = Counter()
    without_cost = {metric.name for metric in joined.result.metrics}
    for metric, place, position, op, reason, amount in _at_places(graph, joined):
        yield metric, place, position, op, reason, amount
        without_cost.discard(metric)
        if reason is not None:
            at_places[reason, metric] += amount
    for unattributed in joined.result.unattributed:
        reason = unattributed.reason.value
        for metric, total in unattributed.metrics.items():
            if amount := total - at_places[reason, metric]:
                yield metric, reason, 0, None, reason, amount
                without_cost.discard(metric)
    no_cost = UnattributedReason.UNMATCHED.value
    yield from ((metric, no_cost, 0, None, no_cost, 0) for metric in sorted(without_cost))


def _at_places(graph: TraceGraph, joined: OpenAttribution) -> Iterator[Row]:
    metrics = [metric.name for metric in joined.result.metrics]
    for site in joined.result.sites:
        yield from _of_place(site.site, site, site.nobody, metrics)
    for transfer in joined.result.transfers:
        yield from _of_place(transfer.transfer, transfer, {}, metrics)
    for copy in graph.all_transfers:
        if copy.id in joined.places.places and not copy.ops:
            for metric, total in joined.places.at(copy.id).sums.items():
                if total:
                    yield metric, copy.id, 0, None, UnattributedReason.TRANSFER.value, total


def _of_place(place: str, result: PlaceResult, nobody: Mapping[str, int], metrics: Sequence[str]) -> Iterator[Row]:
    for metric in metrics:
        total = result.metrics[metric].total
        if total and not result.shares:
            yield metric, place, 0, None, UnattributedReason.COMPILER_MADE.value, total
        elif total:
            for position, share in enumerate(result.shares):
                yield metric, place, position, str(share.op), None, share.attributed[metric]
            if nobody.get(metric):
                yield metric, place, len(result.shares), None, UnattributedReason.KERNEL_OVERHEAD.value, nobody[metric]


def _spreads(joined: OpenAttribution) -> Iterator[Row]:
    """Costs of ops per invocation. Columns that are not costs, such as times of day, may exceed 64 bits: left out."""
    for op in joined.result.ops:
        for metric, cost in op.metrics.items():
            spread = cost.per_invocation
            bounds = spread.median_low, spread.median_high
            values = [*map(null_if_unknown, (spread.median, *bounds, spread.p10, spread.p90, spread.max))]
            if spread.median is not UNKNOWN and all(abs(value or 0) <= MAX_INTEGER for value in values):
                yield metric, str(op.op), *values


def _outliers_ns(joined: OpenAttribution) -> int:
    """Outliers of CPU time, or of wall time if there is no CPU time."""
    rows = [row for row in joined.result.unattributed if row.reason is UnattributedReason.OUTLIERS]
    return max((max(row.metrics.get("cpu_ns", 0), 0) or row.metrics.get("duration_ns", 0) for row in rows), default=0)


def _header_row(graph: TraceGraph, joined: OpenAttribution, description: RunDescription) -> dict[str, object]:
    header, machine, module = joined.result.run, description.machine, graph.module
    return {
        "run": run_name(description.number),
        "number": description.number,
        "model": description.model,
        "map": joined.result.map_sha256,
        "module": header.module_sha256,
        "bundle": UNKNOWN if header.bundle is UNKNOWN else Path(header.bundle).name,
        "compiler": module.iree_compiler,
        "flags": " ".join(module.flags),
        "function": header.function,
        "host": machine.host,
        "cpu_model": machine.cpu_model,
        "processors": machine.processors,
        "device": header.device,
        "workers": header.workers,
        "clock": header.clock.value,
        "date": date_of(machine.recorded_ns),
        "recorded_ns": machine.recorded_ns,
        "added_ns": description.added_ns,
        "tools": "; ".join(header.tools),
        "rule": joined.result.rule.value,
        "iterations": header.iterations,
        "warmup": header.warmup,
        "elapsed_ns": header.elapsed_ns,
        "median_ns": header.invocation.median_ns,
        "low_ns": header.invocation.low_ns,
        "high_ns": header.invocation.high_ns,
        "tool_ns": header.elapsed.profiler_ns,
        "waiting_ns": header.noise.waiting_ns,
        "stolen_ns": header.noise.stolen_ns,
        "outliers_ns": _outliers_ns(joined),
        "calls": sum(sums.events for sums in joined.places.scan.by_target.values()),
        "tags": dict(description.tags),
        "header": encode(header).decode(),
    }
