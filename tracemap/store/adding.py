"""A run is put into a store: its events with their targets, and what these came to, so that nothing is joined again.

What needs the map is done here, once, where the run and its bundle are: which place each event is of, what disturbed
it, how the cost of a place is split. What is left for all runs together are sums over numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tracemap.attribution.attribute import Joined
from tracemap.attribution.join.targets import EXECUTE, MEMORY, OUTSIDE_KERNELS, TRANSFER, UNMATCHED
from tracemap.attribution.model import MetricTotal, PlaceResult, ResidualReason
from tracemap.attribution.scan.connection import IN_MILLIONTHS, value_column
from tracemap.codec import encode
from tracemap.errors import RunInvalid
from tracemap.graph.model import TraceGraph
from tracemap.measurements.model import Machine, RunHeader
from tracemap.measurements.sql import quoted
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
    known,
    run_name,
    run_number,
    write_query,
    write_rows,
)
from tracemap.units import INTEGER_LIMIT, UNKNOWN, Integer, Text

REASON_OF: Final = {
    UNMATCHED: ResidualReason.UNMATCHED,
    TRANSFER: ResidualReason.TRANSFER,
    MEMORY: ResidualReason.MEMORY,
    EXECUTE: ResidualReason.QUEUE,
    OUTSIDE_KERNELS: ResidualReason.OUTSIDE_KERNELS,
}
"""What is said of events without a place, by the number that stands for their target."""
COVERED: Final = "counted-in-dispatches"
"""What is set aside of submissions: their dispatches have rows of their own."""
_NANOSECONDS: Final = 1_000_000_000
_PART: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What is said of a run by who adds it: the name of its model, tags, and what its header does not tell.

    `number`: by which it is told from others (`number_of`).
    """

    number: int
    model: str
    tags: Mapping[str, str] = field(default_factory=dict)
    machine: Machine
    added_ns: int


@dataclass(frozen=True, slots=True)
class Added:
    """A run that is in the store: its name, and whether it was there before."""

    name: str
    was_there: bool


def add_run(store: Store, graph: TraceGraph, joined: Joined, said: Said) -> Added:
    """Write the files of a run; its header comes last, and only then it is there.

    Raises:
        RunInvalid: a metric is called as a column of the store's, or as another one is there.
        TargetUnwritable: a file cannot be written.
    """
    result = joined.result
    names = stored_names(result.metrics)
    number = said.number
    name = run_name(number)
    if is_there(store, said):
        return Added(name, was_there=True)
    partition = _partition(said)
    header = store.run_file(RUNS, name, partition)
    files = {table: store.run_file(table, name, partition) for table in OF_RUNS}
    connection = joined.tables.connection  # opening one takes longer than all that is written
    write_query(connection, _events(number, names, joined), files[CALLS])
    write_rows(connection, TARGETS, [*_targets(number, graph, joined)], files[TARGETS])
    of_metrics = {
        ASIDE: _aside(number, joined),
        COSTS: _costs(number, graph, joined),
        SPREADS: _spreads(number, joined),
    }
    for table, rows in of_metrics.items():
        write_rows(connection, table, [*_renamed(table, rows, names)], files[table])
    calls = sum(each.events for each in joined.places.scan.by_target.values())
    row = _header_row(number, graph, result.run, said) | {
        "map": result.map_sha256,
        "rule": result.rule.value,
        "calls": calls,
        "disturbance_ns": _disturbance_ns(joined),
    }
    write_rows(connection, RUNS, [tuple(row[column] for column in COLUMNS[RUNS])], header)
    return Added(name, was_there=False)


def is_there(store: Store, said: Said) -> bool:
    """Whether a run is in a store, and nothing of it is lost that was added with the same words."""
    name = run_name(said.number)
    return store.has_run(name) and not store.has_lost(name, _partition(said))


def has_header(store: Store, said: Said) -> bool:
    """Whether a run is there under these words: its model, host and date."""
    return store.run_file(RUNS, run_name(said.number), _partition(said)).exists()


def _partition(said: Said) -> Mapping[str, Text]:
    return {"model": said.model, "host": said.machine.host, "date": date_of(said.machine.recorded_ns)}


def stored_names(metrics: Sequence[MetricTotal]) -> Mapping[str, str]:
    """What metrics are called in a store, where those of many runs are added up: one in millionths says so.

    A metric has fractions in one run and none in another by chance, as the numbers of a table are.

    Raises:
        RunInvalid: one is called as a column of the store's, or as another one.
    """
    names = {each.name: each.name + (f"_{IN_MILLIONTHS}" if each.unit == IN_MILLIONTHS else "") for each in metrics}
    taken = Counter(name.lower() for name in names.values())
    for metric, name in names.items():
        if name.lower() in NO_METRICS or taken[name.lower()] > 1:
            other = "a column of every store" if name.lower() in NO_METRICS else "another one"
            raise RunInvalid(f"the run has a metric {metric!r}, as {other} is called ({name}); rename it in the run")
    return names


def _renamed(table: str, rows: Iterator[Row], names: Mapping[str, str]) -> Iterator[Row]:
    """Rows of a table with its own names for metrics."""
    place = list(COLUMNS[table]).index("metric")
    for row in rows:
        yield (*row[:place], names[row[place]], *row[place + 1 :])


def number_of(map_sha256: str, header: RunHeader, content: Path, dispatch: str = "") -> int:
    """The number of a run: of its map, its header (which lies beside a CSV) and its file. No event is joined for it.

    Args:
        map_sha256: of the bundle's map.
        header: of the run.
        content: the file that the run was given as.
        dispatch: the kernel that was named of a file that names none: of another kernel it is another run.
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
    """The day (UTC) of a time."""
    if recorded_ns is UNKNOWN:
        return UNKNOWN
    try:
        return datetime.fromtimestamp(recorded_ns // _NANOSECONDS, UTC).date().isoformat()
    except (OverflowError, ValueError, OSError):
        return UNKNOWN


def _events(number: int, names: Mapping[str, str], joined: Joined) -> str:
    """The rows of the table `calls`, in SQL: in the order of the calls, so that the same run is the same file."""
    metrics = joined.places.scan.metrics
    start = "start_ns" if _has_starts(joined) else "CAST(NULL AS BIGINT)"
    values = [
        f"CAST({value_column(place)} AS BIGINT) AS {quoted(names[metric.name])}" for place, metric in enumerate(metrics)
    ]
    order = ", ".join(value_column(place) for place in range(len(metrics)))
    return (
        f"SELECT CAST({number} AS BIGINT) AS run, target, invocation, {start} AS start_ns, {', '.join(values)} "
        f"FROM resolved ORDER BY invocation, {start}, target, {order}"
    )


def _has_starts(joined: Joined) -> bool:
    described = joined.tables.query("SELECT column_name FROM (DESCRIBE resolved)")
    return ("start_ns",) in described


def _targets(number: int, graph: TraceGraph, joined: Joined) -> Iterator[Row]:
    kernel_of = {site.id: known(site.kernel) for site in graph.sites}
    for target, of_target in enumerate(joined.places.scan.targets):
        places = of_target.places
        for position, place in enumerate(places):
            yield number, target, place, kernel_of.get(place), position, len(places)
    for target, reason in REASON_OF.items():
        yield number, target, reason.value, None, 0, 1


def _aside(number: int, joined: Joined) -> Iterator[Row]:
    """What disturbed calls, and what submissions and their dispatches have both."""
    scan = joined.places.scan
    for target, sums in scan.by_target.items():
        for metric, amount in sums.disturbed.items():
            if amount:
                yield number, target, metric, ResidualReason.DISTURBANCE.value, amount
    for metric, amount in scan.execute_covered.items():
        if amount:
            yield number, EXECUTE, metric, COVERED, amount


def _costs(number: int, graph: TraceGraph, joined: Joined) -> Iterator[Row]:
    """What ops have of places, then what is of none: at a place, or by its reason alone.

    A metric that came to nothing has a row that says so: who adds up many runs must know which of them measured it.
    """
    at_places: Counter[tuple[str, str]] = Counter()
    silent = {metric.name for metric in joined.result.metrics}
    for metric, place, position, op, reason, amount in _at_places(graph, joined):
        yield number, metric, place, position, op, reason, amount
        silent.discard(metric)
        if reason is not None:
            at_places[reason, metric] += amount
    for residual in joined.result.residual:
        reason = residual.reason.value
        for metric, whole in residual.metrics.items():
            if amount := whole - at_places[reason, metric]:
                yield number, metric, reason, 0, None, reason, amount
                silent.discard(metric)
    nothing = ResidualReason.UNMATCHED.value
    yield from ((number, metric, nothing, 0, None, nothing, 0) for metric in sorted(silent))


def _at_places(graph: TraceGraph, joined: Joined) -> Iterator[Row]:
    metrics = [metric.name for metric in joined.result.metrics]
    for site in joined.result.sites:
        yield from _of_place(site.site, site, site.nobody, metrics)
    for transfer in joined.result.transfers:
        yield from _of_place(transfer.transfer, transfer, {}, metrics)
    for ownerless in graph.transfers:
        if ownerless.id in joined.places.places and not ownerless.ops:
            for metric, total in joined.places.at(ownerless.id).sums.items():
                if total:
                    yield metric, ownerless.id, 0, None, ResidualReason.TRANSFER.value, total


def _of_place(place: str, result: PlaceResult, nobody: Mapping[str, int], metrics: Sequence[str]) -> Iterator[Row]:
    for metric in metrics:
        total = result.metrics[metric].total
        if total and not result.shares:
            yield metric, place, 0, None, ResidualReason.COMPILER_MADE.value, total
        elif total:
            for position, share in enumerate(result.shares):
                yield metric, place, position, str(share.op), None, share.attributed[metric]
            if nobody.get(metric):
                yield metric, place, len(result.shares), None, ResidualReason.KERNEL_OVERHEAD.value, nobody[metric]


def _spreads(number: int, joined: Joined) -> Iterator[Row]:
    """What ops cost in an invocation; of columns that are no costs, as times of day, it may exceed 64 bits."""
    for op in joined.result.ops:
        for metric, cost in op.metrics.items():
            spread = cost.per_invocation
            bounds = spread.median_low, spread.median_high
            values = [*map(known, (spread.median, *bounds, spread.p10, spread.p90, spread.max))]
            if spread.median is not UNKNOWN and all(abs(value or 0) <= INTEGER_LIMIT for value in values):
                yield number, metric, str(op.op), *values


def _disturbance_ns(joined: Joined) -> int:
    """Of CPU time, or of the wall's where that is all there is."""
    rows = [row for row in joined.result.residual if row.reason is ResidualReason.DISTURBANCE]
    return max((max(row.metrics.get("cpu_ns", 0), 0) or row.metrics.get("duration_ns", 0) for row in rows), default=0)


def _header_row(number: int, graph: TraceGraph, header: RunHeader, said: Said) -> dict[str, object]:
    """The columns of the header that need no look at the events."""
    machine, module = said.machine, graph.module
    return {
        "run": run_name(number),
        "number": number,
        "model": said.model,
        "module": known(header.module_sha256),
        "bundle": Path(header.bundle).name if header.bundle is not UNKNOWN else None,
        "compiler": known(module.iree_compiler),
        "flags": " ".join(module.flags),
        "function": known(header.function),
        "host": known(machine.host),
        "cpu_model": known(machine.cpu_model),
        "processors": known(machine.processors),
        "device": known(header.device),
        "workers": known(header.workers),
        "clock": known(header.clock.value),
        "date": known(date_of(machine.recorded_ns)),
        "recorded_ns": known(machine.recorded_ns),
        "added_ns": said.added_ns,
        "tools": "; ".join(header.tools),
        "iterations": known(header.iterations),
        "warmup": known(header.warmup),
        "elapsed_ns": known(header.elapsed_ns),
        "median_ns": known(header.invocation.median_ns),
        "low_ns": known(header.invocation.low_ns),
        "high_ns": known(header.invocation.high_ns),
        "tool_ns": known(header.elapsed.profiler_ns),
        "waiting_ns": known(header.disturbance.waiting_ns),
        "stolen_ns": known(header.disturbance.stolen_ns),
        "tags": dict(said.tags),
        "header": encode(header).decode(),
    }
