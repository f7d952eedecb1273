"""Overhead: the elapsed time without a kernel, by the part of the host program that spent it.

The rows show what ran before and after each gap, the map shows how the program gets from one to the other: within a
submission, around a loop, through a conditional, or straight on. The run's header has the exact totals; the rows give
their distribution, so that the result adds up to the elapsed time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

from tracemap.attribution.join.schedule_nfa import meanings_of
from tracemap.attribution.join.targets import Target, called_schedule
from tracemap.attribution.model import Overhead, OverheadPlace
from tracemap.attribution.scan.gaps import EDGE, Gaps
from tracemap.attribution.scan.scan import Scan
from tracemap.core.diagnostics import NOISY, has_slug
from tracemap.core.units import UNKNOWN, Integer, split_by_largest_remainder
from tracemap.map.model import Command, OpId, Schedule, Submission, TraceGraph, sort_ops
from tracemap.runs.model import ElapsedParts, RunHeader

_Key = tuple[OverheadPlace, tuple[OpId, ...]]
"""A place with the ops that it belongs to."""
_TRANSFER, _ALLOCATION, _LAUNCH, _QUEUE, _HOST, _OTHER = range(6)
"""Indices of the parts of an `Overhead`."""
_CALL: Final[_Key] = (OverheadPlace.CALL, ())
_OUTLIERS: Final[_Key] = (OverheadPlace.OUTLIERS, ())
_PROFILER: Final[_Key] = (OverheadPlace.PROFILER, ())


def find_overhead(graph: TraceGraph, headers: Sequence[RunHeader], scan_result: Scan) -> tuple[Overhead, ...]:
    """The overhead of runs, largest first; without the parts of their elapsed time, the gaps between kernels only.

    Empty if the scan did not read when work ran.
    """
    if not scan_result.gaps:
        return ()
    ledger = _Ledger()
    for header, gaps in zip(headers, scan_result.gaps, strict=True):
        run_ledger = _run_ledger(graph, header, scan_result.targets, gaps)
        _balance(run_ledger, header, gaps)
        ledger.merge(run_ledger)
    rows = [
        Overhead(place, ops, ledger.counts.get((place, ops), UNKNOWN), *parts)
        for (place, ops), parts in ledger.parts.items()
        if any(parts)
    ]
    return tuple(sorted(rows, key=lambda row: (-row.total_ns, row.place, [op.number for op in row.ops])))


def overhead_by_op(overhead: Iterable[Overhead]) -> dict[OpId, int]:
    """The overhead of each op in ns; several ops of one place have equal parts."""
    by_op: dict[OpId, int] = defaultdict(int)
    for row in (row for row in overhead if row.ops):
        for op, amount in zip(row.ops, split_by_largest_remainder(row.total_ns, [1] * len(row.ops)), strict=True):
            by_op[op] += amount
    return dict(by_op)


@dataclass
class _Ledger:
    """The parts of each place's overhead, and its number of gaps."""

    parts: dict[_Key, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0] * 6))
    outliers: dict[_Key, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0] * 6))
    """The parts of the place for outliers, by the places whose gaps they are from."""
    counts: dict[_Key, int] = field(default_factory=lambda: defaultdict(int))

    def add(self, key: _Key, part: int, amount: int) -> None:
        """Add an amount to a part of a place."""
        if amount:
            self.parts[key][part] += amount

    def scale(self, parts: Sequence[int], total: int) -> int:
        """Scale these parts of all places to a total; returns what has no place, because all of them are 0."""
        cells = [(key, part) for key in self.parts for part in parts]
        weights = [self.parts[key][part] for key, part in cells]
        if not any(weights):
            return total
        for (key, part), amount in zip(cells, split_by_largest_remainder(total, weights), strict=True):
            self.parts[key][part] = amount
        return 0

    def add_outlier(self, key: _Key, part: int, amount: int) -> None:
        """Add time of a place's gaps above their outlier threshold."""
        self.add(_OUTLIERS, part, amount)
        if amount:
            self.outliers[key][part] += amount

    def total(self, part: int) -> int:
        """The sum of a part over all places."""
        return sum(parts[part] for parts in self.parts.values())

    def merge(self, other: _Ledger) -> None:
        """Add all amounts of another ledger."""
        for key, parts in other.parts.items():
            for part, amount in enumerate(parts):
                self.parts[key][part] += amount
        for key, count in other.counts.items():
            self.counts[key] += count


def _balance(ledger: _Ledger, header: RunHeader, gaps: Gaps) -> None:
    """Scale the parts to the exact totals of the run, and add what the rows do not show."""
    elapsed = header.elapsed
    if not _is_known(elapsed):
        return
    unplaced = ledger.scale([_TRANSFER], _ns(elapsed.transfers_ns))
    unplaced += ledger.scale([_ALLOCATION, _LAUNCH, _QUEUE], _ns(elapsed.queue_ns))
    host_ns, seen = _ns(elapsed.host_ns), ledger.total(_HOST)
    seen = round(seen * _sampling(header, gaps))
    unplaced += ledger.scale([_HOST], min(seen, host_ns))
    ledger.add(_CALL, _HOST, max(0, host_ns - seen))
    if not has_slug(header.diagnostics, NOISY):
        _return_typical_outliers(ledger, header)
    _move_slowdown(ledger, header)
    ledger.add(_PROFILER, _OTHER, _ns(elapsed.profiler_ns))
    ledger.add((OverheadPlace.UNEXPLAINED, ()), _OTHER, _ns(elapsed.unexplained_ns) + unplaced)


def _return_typical_outliers(ledger: _Ledger, header: RunHeader) -> None:
    """Book outlier time where its gaps are, as far as the median invocation has it.

    A worker falls asleep in a few of many gaps, in each invocation. Those gaps are long, but no noise.
    """
    clocked_ns, iterations = header.clocked_ns, header.iterations
    if not (isinstance(clocked_ns, int) and isinstance(iterations, int)):
        return
    outliers = list(ledger.parts[_OUTLIERS])
    others_ns = sum(ledger.total(part) for part in range(_OTHER)) - sum(outliers)
    lacking_ns = clocked_ns * iterations - _ns(header.elapsed.kernels_ns) - others_ns
    returned = min(Fraction(1), Fraction(max(0, lacking_ns), max(1, sum(outliers))))
    for part in _PARTS_OF_GAPS:
        amount, keys = round(returned * outliers[part]), list(ledger.outliers)
        weights = [ledger.outliers[key][part] for key in keys]
        if amount and any(weights):
            ledger.add(_OUTLIERS, part, -amount)
            for key, own in zip(keys, split_by_largest_remainder(amount, weights), strict=True):
                ledger.add(key, part, own)


def _move_slowdown(ledger: _Ledger, header: RunHeader) -> None:
    """Book the time by which the profiler slows down the program, from calls without it, as the profiler's.

    The profiler adds to the time of each submission and dispatch, so it has the same part of all gaps.
    """
    clocked_ns, unprofiled_ns, iterations = header.clocked_ns, header.unprofiled_ns, header.iterations
    if not (isinstance(clocked_ns, int) and isinstance(unprofiled_ns, int) and isinstance(iterations, int)):
        return
    slowdown_ns = (clocked_ns - unprofiled_ns) * iterations
    cells = [
        (key, part, amount)
        for key, amounts in ledger.parts.items()
        for part, amount in enumerate(amounts)
        if key[0] is not OverheadPlace.OUTLIERS and part in _PARTS_OF_GAPS and amount
    ]
    slowdown_ns = min(slowdown_ns, round(_MOST_SLOWDOWN * sum(amount for *_, amount in cells)))
    if slowdown_ns <= 0:
        return
    moved = split_by_largest_remainder(slowdown_ns, [amount for *_, amount in cells])
    for (key, part, _), amount in zip(cells, moved, strict=True):
        ledger.add(key, part, -amount)
    ledger.add(_PROFILER, _HOST, slowdown_ns)


_MOST_SLOWDOWN: Final = 0.5
"""Most of the time between kernels that the profiler may have added: beyond that, the calls differ in more."""


def _sampling(header: RunHeader, gaps: Gaps) -> Fraction:
    """The number of invocations of a run for each one whose gaps were read."""
    if not isinstance(header.iterations, int) or not gaps.invocations:
        return Fraction(1)
    return max(Fraction(1), Fraction(header.iterations, gaps.invocations))


def _is_known(elapsed: ElapsedParts) -> bool:
    return isinstance(elapsed.kernels_ns, int)


def _ns(amount: Integer) -> int:
    return amount if isinstance(amount, int) else 0


def _run_ledger(graph: TraceGraph, header: RunHeader, targets: Sequence[Target], gaps: Gaps) -> _Ledger:
    program, ledger = _Program(graph, called_schedule(graph, header.function)), _Ledger()
    sampling = _sampling(header, gaps)
    for target, amount in gaps.transfers_ns.items():
        ledger.add((OverheadPlace.TRANSFER, program.ops_of(_place(targets, target))), _TRANSFER, amount)
    for gap in gaps.gaps:
        before, after = _place(targets, gap.before), _place(targets, gap.after)
        tail, head = program.moves_after(before), program.moves_before(after)
        if EDGE in (gap.before, gap.after):
            key = _CALL
        elif gap.same_submission:
            between = program.moves_between(before, after)
            key = (OverheadPlace.TRANSFER, between) if between else (OverheadPlace.DISPATCH, program.ops_of(after))
        else:
            key = program.way(before, after)
            if key[0] is not OverheadPlace.SUBMISSION and program.waits_before(after):
                tail = ()  # the host reads what decides the loop or the conditional
        tail_ns, head_ns = gap.tail_ns if tail else 0, gap.head_ns if head else 0
        ledger.add((OverheadPlace.TRANSFER, tail), _LAUNCH, tail_ns)
        ledger.add((OverheadPlace.TRANSFER, head), _LAUNCH, head_ns)
        ledger.counts[key] += round(gap.count * sampling)
        ledger.add(key, _LAUNCH, -(tail_ns + head_ns))
        for part, amount in zip(_PARTS_OF_GAPS, gap.parts_ns, strict=True):
            ledger.add(key, part, amount)
        for part, amount in zip(_PARTS_OF_GAPS, gap.outliers_ns, strict=True):
            ledger.add_outlier(key, part, amount)
    return ledger


_PARTS_OF_GAPS: Final = (_ALLOCATION, _LAUNCH, _QUEUE, _HOST)
"""The parts of a `Gap`, in order."""


def _place(targets: Sequence[Target], number: int) -> str:
    """The place of a target; the first of several candidates, "" for events without a target."""
    return targets[number].places[0] if number >= 0 and targets[number].places else ""


class _Program:
    """The host program: how it gets from one dispatch site or transfer to another."""

    def __init__(self, graph: TraceGraph, schedule: Schedule | None) -> None:
        self._graph = graph
        self._submissions: Sequence[Submission] = schedule.submissions if schedule is not None else ()
        self._states: dict[int | str, list[int]] = defaultdict(list)
        for state, submission in enumerate(self._submissions):
            for meaning in meanings_of(submission):
                self._states[meaning].append(state)

    def ops_of(self, place: str) -> tuple[OpId, ...]:
        """The op that a dispatch site has its kernel from, or the ops of a transfer."""
        if transfer := self._graph.transfer_by_id.get(place):
            return transfer.ops
        site = self._graph.site_by_id.get(place)
        if site is None or not site.members:
            return ()
        return ((site.root or site.members[0]).op,)

    def way(self, before: str, after: str) -> _Key:
        """The loop or conditional between two submissions, else the op that comes next."""
        first, second = self._control(before, after)
        common = 0
        while common < min(len(first), len(second)) and first[common] == second[common]:
            common += 1
        if len(second) > common:
            return self._control_key(second[-1])
        if common:
            return self._control_key(second[common - 1])
        if first:
            return self._control_key(first[0])
        return OverheadPlace.SUBMISSION, self.ops_of(after)

    def waits_before(self, place: str) -> bool:
        """Whether the host always waits for the device before the submission of a place."""
        states = self._states_of(place)
        return bool(states) and all(self._submissions[state].waits for state in states)

    def _control(self, before: str, after: str) -> tuple[tuple[OpId, ...], tuple[OpId, ...]]:
        """The loops and conditionals around two places, preferably of submissions that may follow each other."""
        candidates = [(first, second) for first in self._states_of(before) for second in self._states_of(after)]
        if not candidates:
            return (), ()
        follows = [pair for pair in candidates if pair[1] in self._submissions[pair[0]].next]
        first, second = (follows or candidates)[0]
        return self._submissions[first].control, self._submissions[second].control

    def _states_of(self, place: str) -> Sequence[int]:
        site = self._graph.site_by_id.get(place)
        meaning = place if site is None else site.command_buffer
        return self._states.get(meaning, ()) if isinstance(meaning, int | str) else ()

    def _control_key(self, op: OpId) -> _Key:
        state = next(state for state, own in enumerate(self._submissions) if op in own.control)
        is_loop = self._repeats(state, op)
        return OverheadPlace.LOOP if is_loop else OverheadPlace.CONDITIONAL, (op,)

    def _repeats(self, start: int, op: OpId) -> bool:
        """Whether a submission that an op decides about may run again within that op."""
        seen: set[int] = set()
        worklist = [start]
        while worklist:
            for state in self._submissions[worklist.pop()].next:
                if state == start:
                    return True
                if state not in seen and op in self._submissions[state].control:
                    seen.add(state)
                    worklist.append(state)
        return False

    def moves_between(self, before: str, after: str) -> tuple[OpId, ...]:
        """The ops of copies and fills between two dispatches of a command buffer."""
        first, second = self._position(before), self._position(after)
        if first is None or second is None or first[0] != second[0] or first[1] >= second[1]:
            return ()
        return _moved_ops(self._commands(first[0])[first[1] : second[1]])

    def moves_after(self, place: str) -> tuple[OpId, ...]:
        """The ops of copies and fills in a command buffer after its last dispatch, if that is at this place."""
        position = self._position(place)
        return () if position is None else _moved_ops(self._commands(position[0])[position[1] :])

    def moves_before(self, place: str) -> tuple[OpId, ...]:
        """The ops of copies and fills in a command buffer ahead of its first dispatch, if that is at this place."""
        position = self._position(place)
        return () if position is None else _moved_ops(self._commands(position[0])[: position[1]])

    def _position(self, place: str) -> tuple[int, int] | None:
        site = self._graph.site_by_id.get(place)
        if site is None or not isinstance(site.command_buffer, int) or not isinstance(site.command_index, int):
            return None
        known = site.command_buffer < len(self._graph.command_buffers)
        return (site.command_buffer, site.command_index) if known else None

    def _commands(self, buffer: int) -> Sequence[Command]:
        return self._graph.command_buffers[buffer].commands


def _moved_ops(commands: Iterable[Command]) -> tuple[OpId, ...]:
    return sort_ops(op for command in commands if command.kind not in ("dispatch", "barrier") for op in command.ops)
