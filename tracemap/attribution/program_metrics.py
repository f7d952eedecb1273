"""Metrics of the program, which need no run: bytes that ops read, write and hold at the peak, and costs of building.

They are added to an attribution on request. As for a measured metric, parts of ops and unattributed parts add up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
from msgspec import structs

from tracemap.attribution.model import (
    UNKNOWN_PER_INVOCATION,
    Attribution,
    MemberShare,
    MetricTotal,
    OpCost,
    PerCall,
    PlaceResult,
    SiteCost,
    SiteResult,
    TransferResult,
    UnattributedReason,
    UnattributedRow,
)
from tracemap.core.diagnostics import Diagnostic
from tracemap.core.units import UNKNOWN, Integer, join_names, split_by_largest_remainder
from tracemap.map.model import Command, OpId, TraceGraph

if TYPE_CHECKING:
    from tracemap.map.build_cost import BuildCost
    from tracemap.map.memory_use import MemoryUse

BYTES_READ: Final = "bytes_read"
"""Bytes that the ops of a dispatch must read, by their shapes, in all calls."""
BYTES_WRITTEN: Final = "bytes_written"
"""Bytes that the ops of a dispatch must write, by their shapes, in all calls."""
BYTES_MOVED: Final = "bytes_moved"
"""The sum of both."""
LIVE_BYTES: Final = "live_bytes_at_peak"
"""Bytes of an op's results in memory at the planned peak of the function."""
COMPILE_TIME: Final = "compile_ns"
"""Time that the compiler took for an op's kernels."""
MODULE_BYTES: Final = "module_bytes"
"""Bytes of the module that belong to an op: machine code, read-only data, bytecode and constants."""
STATIC_METRICS: Final = (LIVE_BYTES, COMPILE_TIME, MODULE_BYTES)
"""Metrics of the program as such, whatever the number of invocations."""
PROGRAM_METRICS: Final = (BYTES_READ, BYTES_WRITTEN, BYTES_MOVED, LIVE_BYTES, COMPILE_TIME, MODULE_BYTES)


class Program(msgspec.Struct, frozen=True):
    """The compiled program: its map, and functions that read the called function's memory and the cost of building."""

    graph: TraceGraph
    memory: Callable[[], MemoryUse]
    cost: Callable[[], BuildCost]


def with_program_metrics(attribution: Attribution, program: Program, names: Sequence[str]) -> Attribution:
    """The attribution with these metrics of the program after its own."""
    graph = program.graph
    for name in names:
        if name == LIVE_BYTES:
            amounts = _live(attribution, program.memory())
        elif name in (COMPILE_TIME, MODULE_BYTES):
            amounts = _built(attribution, program.cost(), name)
        else:
            amounts = _moved(attribution, graph, name)
        attribution = _added(attribution, amounts)
    moved = [name for name in names if name in (BYTES_READ, BYTES_WRITTEN, BYTES_MOVED)]
    unknown = _unknown_places(attribution, graph) if moved else []
    if not unknown:
        return attribution
    counting = f"{join_names(moved)} {'do' if len(moved) > 1 else 'does'} not count them"
    text = f"{join_names(unknown)}: {counting}, since shapes are dynamic or calls unknown"
    return replace(attribution, diagnostics=(*attribution.diagnostics, Diagnostic("bytes-unknown", text)))


@dataclass(slots=True)
class _Amounts:
    """A metric: its parts by place and op, and the unattributed ones by reason."""

    name: str
    invocations: Integer
    unit: str = "bytes"
    parts: dict[str, dict[OpId, int]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(int)))
    unattributed: dict[UnattributedReason, int] = field(default_factory=lambda: defaultdict(int))
    per_call: dict[str, PerCall] = field(default_factory=dict)


def _places(attribution: Attribution) -> Iterator[tuple[str, PlaceResult]]:
    """The dispatch sites and transfers with a result, by id."""
    yield from ((site.site, site) for site in attribution.sites)
    yield from ((transfer.transfer, transfer) for transfer in attribution.transfers)


# ---- bytes moved


def _moved(attribution: Attribution, graph: TraceGraph, name: str) -> _Amounts:
    amounts = _Amounts(name, attribution.run.iterations)
    for place, result in _places(attribution):
        known = _moved_in_call(place, result, graph, name)
        if known is None or not isinstance(result.calls, int):
            continue
        for share in result.shares:
            amounts.parts[place][share.op] += known.get(share.op, 0) * result.calls
        if result.calls:
            amounts.per_call[place] = PerCall(*[sum(known.values())] * 3)
    for command, executions in _copies(attribution, graph):
        if isinstance(command.bytes, int) and isinstance(executions, int):
            size = command.bytes * _factors(command.kind)[name] * executions
            amounts.unattributed[UnattributedReason.UNTIMED_COPIES] += size
    return amounts


def _unknown_places(attribution: Attribution, graph: TraceGraph) -> list[str]:
    """The dispatch sites and transfers whose bytes are unknown, and the ops of such copies and fills."""
    places = [
        place
        for place, result in _places(attribution)
        if _moved_in_call(place, result, graph, BYTES_MOVED) is None or not isinstance(result.calls, int)
    ]
    copies = (command for command, executions in _copies(attribution, graph) if UNKNOWN in (command.bytes, executions))
    return [*places, *dict.fromkeys(op for command in copies for op in command.ops or ("copies without an op",))]


def _copies(attribution: Attribution, graph: TraceGraph) -> Iterator[tuple[Command, Integer]]:
    """The untimed copies and fills in command buffers that ran, with the number of executions.

    This is the number of executions of the dispatches there. Those that the device timed have results of their own.
    """
    timed = {result.transfer for result in attribution.transfers}
    calls: dict[Integer, set[Integer]] = defaultdict(set)
    for result in attribution.sites:
        calls[graph.site_by_id[result.site].command_buffer].add(result.calls)
    for buffer in graph.command_buffers:
        kinds = {command.kind for command in buffer.commands}
        is_called = buffer.function in attribution.functions or UNKNOWN in (*attribution.functions, buffer.function)
        if buffer.initializer or not is_called or (_DISPATCH in kinds and buffer.ordinal not in calls):
            continue
        numbers = calls[buffer.ordinal]
        executions = next(iter(numbers)) if len(numbers) == 1 else UNKNOWN
        for index, command in enumerate(buffer.commands):
            own = graph.buffer_transfers.get((buffer.ordinal, index))
            if command.kind in _COPIES and (own is None or own.id not in timed):
                yield command, executions


_DISPATCH: Final = "dispatch"
_COPIES: Final = ("copy", "fill", "update")


def _factors(kind: str) -> Mapping[str, int]:
    """Times that the size of a copy, fill or update counts, by metric; the latter two read from the host."""
    is_copy = int(kind == "copy")
    return {BYTES_READ: is_copy, BYTES_WRITTEN: 1, BYTES_MOVED: 1 + is_copy}


def _moved_in_call(place: str, result: PlaceResult, graph: TraceGraph, name: str) -> Mapping[OpId, int] | None:
    """The bytes that each op reads, writes or both in a call, as the metric says; None if some are unknown."""
    transfer = graph.transfer_by_id.get(place)
    if transfer is not None:
        size = transfer.bytes * _factors(transfer.kind)[name] if isinstance(transfer.bytes, int) else UNKNOWN
        own = {share.op: part for share, part in zip(result.shares, _split(size, len(result.shares)), strict=True)}
    else:
        attribute = "bytes" if name == BYTES_MOVED else name
        own = {member.op: getattr(member, attribute) for member in graph.site_by_id[place].members}
    known = {op: part for op, part in own.items() if isinstance(part, int)}
    return known if len(known) == len(own) else None


def _split(size: Integer, count: int) -> Sequence[Integer]:
    return split_by_largest_remainder(size, [1] * count) if isinstance(size, int) else [UNKNOWN] * count


# ---- bytes at the peak


def _live(attribution: Attribution, memory: MemoryUse) -> _Amounts:
    amounts = _Amounts(LIVE_BYTES, 1)
    amounts.unattributed[UnattributedReason.LAYOUT] += memory.unused_bytes
    places_of = _places_of_ops(attribution)
    for value in memory.held:
        parts = split_by_largest_remainder(value.bytes, [1] * len(value.ops)) if value.ops else []
        if not value.ops:
            amounts.unattributed[UnattributedReason.OTHER_VALUES] += value.bytes
        for op, part in zip(value.ops, parts, strict=True):
            places = places_of.get(op, [])
            # The dispatch that writes the value, or another one of the op.
            place = next((place for place in value.written_by if place in places), next(iter(places), ""))
            if place:
                amounts.parts[place][op] += part
            else:
                amounts.unattributed[UnattributedReason.OTHER_VALUES] += part
    return amounts


def _places_of_ops(attribution: Attribution) -> Mapping[OpId, list[str]]:
    """The dispatch sites and transfers of each op that the run measured."""
    places_of: dict[OpId, list[str]] = defaultdict(list)
    for place, result in _places(attribution):
        for share in result.shares:
            places_of[share.op].append(place)
    return places_of


# ---- cost of building


def _built(attribution: Attribution, cost: BuildCost, name: str) -> _Amounts:
    """Costs of building; an op's part in a kernel is split evenly over the kernel's dispatch sites with the op."""
    is_time = name == COMPILE_TIME
    amounts = _Amounts(name, 1, "ns" if is_time else "bytes")
    whole = cost.elapsed_ns if is_time else cost.module_bytes
    places_of = _places_of_ops(attribution)
    in_kernels: dict[OpId, int] = defaultdict(int)

    def add(op: OpId, amount: Integer, sites: Collection[str] | None) -> int:
        places = [place for place in places_of.get(op, ()) if sites is None or place in sites]
        if not isinstance(amount, int) or not places:
            return 0
        for place, part in zip(places, split_by_largest_remainder(amount, [1] * len(places)), strict=True):
            amounts.parts[place][op] += part
        return amount

    known = 0
    for kernel in cost.kernels:
        for own in kernel.ops:
            known += add(own.op, own.duration_ns if is_time else own.bytes, kernel.sites)
            in_kernels[own.op] += own.bytes
    for op in () if is_time else cost.ops:
        known += add(op.op, op.bytes - in_kernels[op.op], None)
    amounts.unattributed[UnattributedReason.BUILD] += (whole if isinstance(whole, int) else 0) - known
    return amounts


# ---- adding


def _added(attribution: Attribution, amounts: _Amounts) -> Attribution:
    """The attribution with another metric."""
    name = amounts.name
    attributed_to: dict[OpId, int] = defaultdict(int)
    inclusive: dict[OpId, int] = defaultdict(int)
    for own in amounts.parts.values():
        for op, part in own.items():
            attributed_to[op] += part
            inclusive[op] += sum(own.values())
    attributed, unattributed = sum(attributed_to.values()), sum(amounts.unattributed.values())
    measured = attributed + unattributed
    total = MetricTotal(name, amounts.unit, "sum", measured, attributed, unattributed, measured, amounts.invocations)

    def place(key: str, result: PlaceResult) -> Mapping[str, object]:
        own = amounts.parts.get(key, {})
        cost = SiteCost(sum(own.values()), 0, amounts.per_call.get(key))
        shares = tuple(_share(share, name, own) for share in result.shares)
        return {"metrics": {**result.metrics, name: cost}, "shares": shares}

    return replace(
        attribution,
        metrics=(*attribution.metrics, total),
        ops=tuple(
            structs.replace(op, metrics={**op.metrics, name: _cost(attributed_to[op.op], inclusive[op.op])})
            for op in attribution.ops
        ),
        sites=tuple(_replaced(site, place(site.site, site)) for site in attribution.sites),
        transfers=tuple(_replaced(copy, place(copy.transfer, copy)) for copy in attribution.transfers),
        unattributed=tuple(_rows(attribution, amounts)),
    )


_Place = TypeVar("_Place", SiteResult, TransferResult)


def _replaced(result: _Place, fields: Mapping[str, object]) -> _Place:
    return structs.replace(result, **fields)


def _share(share: MemberShare, name: str, own: Mapping[OpId, int]) -> MemberShare:
    return structs.replace(share, attributed={**share.attributed, name: own.get(share.op, 0)})


def _cost(attributed: int, inclusive: int) -> OpCost:
    return OpCost(inclusive, attributed, attributed, attributed, UNKNOWN, UNKNOWN, False, UNKNOWN_PER_INVOCATION)


def _rows(attribution: Attribution, amounts: _Amounts) -> Iterator[UnattributedRow]:
    reasons = [row.reason for row in attribution.unattributed]
    for row in attribution.unattributed:
        yield structs.replace(row, metrics={**row.metrics, amounts.name: amounts.unattributed.get(row.reason, 0)})
    zeros = {metric.name: 0 for metric in attribution.metrics}
    for reason, amount in amounts.unattributed.items():
        if amount and reason not in reasons:
            yield UnattributedRow(reason, UNKNOWN, {**zeros, amounts.name: amount})
