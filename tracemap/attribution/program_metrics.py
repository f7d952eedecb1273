"""Metrics of the program itself, which need no measurement: bytes that ops move, and bytes that they hold at the peak.

They are added to an attribution on request. As for a measured metric, parts of ops and unattributed parts add up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

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
from tracemap.map.memory_use import MemoryUse
from tracemap.map.model import OpId, TraceGraph

BYTES_MOVED: Final = "bytes_moved"
"""Bytes that the ops of a dispatch must read and write, by their shapes, in all calls; a copy counts both."""
LIVE_BYTES: Final = "live_bytes_at_peak"
"""Bytes of an op's results in memory at the planned peak of the function."""
PROGRAM_METRICS: Final = (BYTES_MOVED, LIVE_BYTES)


def with_program_metrics(
    attribution: Attribution, graph: TraceGraph, names: Sequence[str], memory: Callable[[], MemoryUse]
) -> Attribution:
    """The attribution with these metrics of the program after its own; `memory`: the memory of its function."""
    for name in names:
        if name == BYTES_MOVED:
            attribution = _added(attribution, _moved(attribution, graph))
        elif name == LIVE_BYTES:
            attribution = _added(attribution, _live(attribution, memory()))
    return attribution


@dataclass(slots=True)
class _Amounts:
    """A metric: its parts by place and op, and the unattributed ones by reason."""

    name: str
    invocations: Integer
    parts: dict[str, dict[OpId, int]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(int)))
    unattributed: dict[UnattributedReason, int] = field(default_factory=lambda: defaultdict(int))
    per_call: dict[str, PerCall] = field(default_factory=dict)
    diagnostics: list[Diagnostic] = field(default_factory=list)


def _places(attribution: Attribution) -> Iterator[tuple[str, PlaceResult]]:
    """The dispatch sites and transfers with a result, by id."""
    yield from ((site.site, site) for site in attribution.sites)
    yield from ((transfer.transfer, transfer) for transfer in attribution.transfers)


# ---- bytes moved


def _moved(attribution: Attribution, graph: TraceGraph) -> _Amounts:
    amounts = _Amounts(BYTES_MOVED, attribution.run.iterations)
    transfers = {transfer.id: transfer for transfer in graph.transfers}
    unknown = []
    for place, result in _places(attribution):
        if place in transfers:
            transfer = transfers[place]
            size = _times(transfer.bytes, 2 if transfer.kind == "copy" else 1)
            own = {share.op: part for share, part in zip(result.shares, _split(size, len(result.shares)), strict=True)}
        else:
            own = {member.op: member.bytes for member in graph.site_by_id[place].members}
        known = {op: part for op, part in own.items() if isinstance(part, int)}
        if len(known) < len(own) or not isinstance(result.calls, int):
            unknown.append(place)
            continue
        for share in result.shares:
            amounts.parts[place][share.op] += known.get(share.op, 0) * result.calls
        if result.calls:
            amounts.per_call[place] = PerCall(*[sum(known.values())] * 3)
    if unknown:
        text = f"{join_names(unknown)}: {BYTES_MOVED} does not count them, since shapes are dynamic or calls unknown"
        amounts.diagnostics.append(Diagnostic("bytes-unknown", text))
    return amounts


def _times(size: Integer, factor: int) -> Integer:
    return size * factor if isinstance(size, int) else UNKNOWN


def _split(size: Integer, count: int) -> Sequence[Integer]:
    return split_by_largest_remainder(size, [1] * count) if isinstance(size, int) else [UNKNOWN] * count


# ---- bytes at the peak


def _live(attribution: Attribution, memory: MemoryUse) -> _Amounts:
    amounts = _Amounts(LIVE_BYTES, 1)
    amounts.unattributed[UnattributedReason.LAYOUT] += memory.unused_bytes
    places_of: dict[OpId, list[str]] = defaultdict(list)
    for place, result in _places(attribution):
        for share in result.shares:
            places_of[share.op].append(place)
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
    total = MetricTotal(name, "bytes", "sum", measured, attributed, unattributed, measured, amounts.invocations)

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
        diagnostics=(*attribution.diagnostics, *amounts.diagnostics),
    )


_Place = TypeVar("_Place", SiteResult, TransferResult)


def _replaced(result: _Place, fields: Mapping[str, object]) -> _Place:
    return replace(result, **fields)  # type: ignore[arg-type]  # mypy does not know the types of these fields


def _share(share: MemberShare, name: str, own: Mapping[OpId, int]) -> MemberShare:
    return structs.replace(share, attributed={**share.attributed, name: own.get(share.op, 0)})


def _cost(attributed: int, inclusive: int) -> OpCost:
    return OpCost(inclusive, attributed, attributed, attributed, UNKNOWN, UNKNOWN, False, UNKNOWN_PER_INVOCATION)


def _rows(attribution: Attribution, amounts: _Amounts) -> Iterator[UnattributedRow]:
    reasons = [row.reason for row in attribution.unattributed]
    for row in attribution.unattributed:
        yield replace(row, metrics={**row.metrics, amounts.name: amounts.unattributed.get(row.reason, 0)})
    zeros = {metric.name: 0 for metric in attribution.metrics}
    for reason, amount in amounts.unattributed.items():
        if amount and reason not in reasons:
            yield UnattributedRow(reason, UNKNOWN, {**zeros, amounts.name: amount})
