"""Rules: causes of lost time in kernels and between them, with the gain without them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from tracemap.attribution.advice.program import LEAST_SHARE, Dispatch, Finding, Program
from tracemap.attribution.join.schedule_nfa import meanings_of
from tracemap.attribution.join.targets import called_schedule
from tracemap.attribution.model import (
    AdviceRule,
    Overhead,
    OverheadPlace,
    UnattributedReason,
)
from tracemap.core.diagnostics import NOISY, TRANSFERS_UNTIMED, has_slug
from tracemap.core.units import Unknown, format_bytes, format_ns, plural
from tracemap.map.model import OpId, Outcome
from tracemap.map.query import pass_of, python_frame, scope_of
from tracemap.runs.model import DeviceTime

# ---- rules on kernels
#
# The gain of a dispatch is its time minus the time that it would take, in the same part of the invocation. The bounds
# allow for what a clean kernel takes: rarely less than its roofline, often up to twice as long.


def kernel_findings(program: Program) -> Iterator[Finding]:
    """The causes of the time in kernels."""
    yield from _repeated(program)
    yield from _invariant(program)
    yield from _unfused(program)
    yield from _copies(program)
    for dispatch in program.hot:
        yield from _moved(program, dispatch)
        yield from _idle(program, dispatch)
        yield from _inside(program, dispatch)


def _repeated(program: Program) -> Iterator[Finding]:
    """Dispatches that compute again what an earlier one has computed."""
    alike: dict[tuple[str, object], list[Dispatch]] = defaultdict(list)
    for dispatch in program.hot:
        if (root := dispatch.site.root) and dispatch.kernel.computes:
            alike[program.graph.op_by_id[root.op].name, root.operations].append(dispatch)
    candidates = [dispatch for group in alike.values() if len(group) > 1 for dispatch in group]
    repeated = program.evidence.repeated() if candidates else {}
    for dispatch in candidates:
        ops = [op for op in dispatch.ops if op in repeated]
        root = dispatch.site.root
        if not ops or root is None or root.op not in repeated:
            continue
        first = repeated[root.op]
        others = [program.dispatch_of(site) for site in program.graph.sites_of_op.get(first, ())]
        if not any(other is not None and other.site.id != dispatch.site.id for other in others):
            continue
        part = _part_of(dispatch, ops)
        wall_ns = part * dispatch.wall_ns
        op = program.graph.op_by_id[root.op]
        passes = {pass_of(scope_of(program.graph, op, path)) for path in root.paths}
        is_backward = bool(passes & {"recompute", "backward"})
        rule = AdviceRule.RECOMPUTED if is_backward else AdviceRule.REPEATED_WORK
        place, earlier = program.place(root.op), program.place(first)
        detail = f"{place} runs again" if place == earlier else f"{place} computes what {earlier} has computed"
        # Its inputs need not be kept apart either, and what uses them may be fused.
        yield Finding(rule, 0.95 * wall_ns, 0.6 * wall_ns, 1.6 * wall_ns, tuple(ops), dispatch, detail)


def _invariant(program: Program) -> Iterator[Finding]:
    """Dispatches in a loop that compute the same in each iteration."""
    candidates = [
        dispatch
        for dispatch in program.hot
        if dispatch.calls > _ONCE and dispatch.site.root and dispatch.kernel.computes
    ]
    loops = program.evidence.invariant() if candidates else {}
    inner = {
        loop
        for schedule in program.graph.schedules
        for submission in schedule.submissions
        for loop in submission.control[1:]
    }
    for dispatch in candidates:
        ops = [op for op in dispatch.ops if op in loops]
        root = dispatch.site.root
        if root is None or root.op not in ops:
            continue
        loop = loops[root.op]
        # How often an inner loop begins is not known.
        left = 0.5 if loop in inner else 1 / dispatch.calls
        wall_ns = (1 - left) * _part_of(dispatch, ops) * dispatch.wall_ns
        times = f"{round(dispatch.calls)} times" if loop not in inner else "each time"
        detail = f"{program.place(root.op)} computes the same {times} in the loop at {program.place(loop)}"
        bounds = 0.6 * wall_ns, min(1.3 * wall_ns, (1 - left / 2) * dispatch.wall_ns)
        yield Finding(AdviceRule.REPEATED_WORK, 0.9 * wall_ns, *bounds, tuple(ops), dispatch, detail)


def _part_of(dispatch: Dispatch, ops: Sequence[OpId]) -> float:
    """The part of a dispatch's time that belongs to some of its ops."""
    shares = {share.op: share.attributed.get("cpu_ns", 0) for share in dispatch.result.shares}
    total = sum(shares.values())
    return sum(shares.get(op, 0) for op in ops) / total if total else 1.0


def _unfused(program: Program) -> Iterator[Finding]:
    """Elementwise dispatches that read what another dispatch has just written, or write what the next one reads."""
    candidates = [dispatch for dispatch in program.hot if dispatch.kernel.is_elementwise and dispatch.bytes]
    # The data flow is read from the model, which takes longer than all other evidence.
    most_ns = sum(dispatch.wall_ns for dispatch in candidates)
    if most_ns < max(LEAST_SHARE * program.elapsed_ns, program.noise_ns):
        return
    users: dict[OpId, list[OpId]] = defaultdict(list)
    for maker, user in program.evidence.data_flow():
        users[maker].append(user)
    makers: dict[OpId, list[OpId]] = defaultdict(list)
    for maker, ops in users.items():
        for user in ops:
            makers[user].append(maker)
    claimed: set[frozenset[str]] = set()
    for dispatch in candidates:
        sizes = dispatch.kernel.operand_bytes
        # The array between both is written and read again. It is as large as the result of the one that writes it.
        arrays = [(other, other.kernel.operand_bytes[-1:]) for other in _neighbours(program, dispatch, makers)]
        pairs = [(other, written[0]) for other, written in arrays if written and written[0] in sizes[:-1]]
        consumers = _neighbours(program, dispatch, users)
        pairs += [(other, sizes[-1]) for other in consumers if sizes and sizes[-1] in other.kernel.operand_bytes[:-1]]
        pairs = [pair for pair in pairs if frozenset({pair[0].site.id, dispatch.site.id}) not in claimed]
        if not pairs:
            continue
        other, between = max(pairs, key=lambda pair: pair[1])
        claimed.add(frozenset({other.site.id, dispatch.site.id}))
        moved = 2 * between
        part = min(1.0, moved / sum(sizes))
        # Functions such as tanh run at about a third of the peak.
        compute = min(1.0, _FUNCTION * program.compute_ns(dispatch.operations) * dispatch.calls / dispatch.cpu_ns)
        gain_ns = dispatch.wall_ns * part * (1 - compute)
        detail = f"{program.place(dispatch.ops[0])} runs apart from {program.place(other.ops[0])}"
        # Both dispatches get faster: the one that writes the array may wait for memory, too.
        low_ns, high_ns, traffic = 0.4 * gain_ns, 2.2 * part * dispatch.wall_ns, moved * dispatch.calls
        yield Finding(AdviceRule.MISSED_FUSION, gain_ns, low_ns, high_ns, dispatch.ops, dispatch, detail, traffic)


_FUNCTION: Final = 3
"""Time of functions such as tanh over that of as many operations at the peak."""


def _neighbours(program: Program, dispatch: Dispatch, links: Mapping[OpId, Sequence[OpId]]) -> list[Dispatch]:
    """Dispatches that data flow links to a dispatch, through ops that do no work; only those that it can fuse with."""
    own = {member.op for member in dispatch.site.members}
    waiting, seen = list(own), set(own)
    result: dict[str, Dispatch] = {}
    while waiting:
        for other in links.get(waiting.pop(), ()):
            if other in seen:
                continue
            seen.add(other)
            if sites := program.graph.sites_of_op.get(other):
                for site in sites:
                    neighbour = program.dispatch_of(site)
                    if neighbour and neighbour.site.id != dispatch.site.id and _can_fuse(neighbour):
                        result.setdefault(site, neighbour)
            elif program.graph.op_by_id[other].outcome not in (Outcome.TRANSFER, Outcome.HOST):
                waiting.append(other)
    return sorted(result.values(), key=lambda other: -other.wall_ns)


def _can_fuse(dispatch: Dispatch) -> bool:
    """Whether a kernel is one that the compiler can fuse elementwise ops into."""
    return dispatch.kernel.is_elementwise or dispatch.kernel.is_product or bool(dispatch.kernel.generics)


def _moved(program: Program, dispatch: Dispatch) -> Iterator[Finding]:
    """Dispatches that only move data."""
    if not dispatch.kernel.only_moves:
        return
    wall_ns = dispatch.wall_ns
    moved = (dispatch.bytes or sum(dispatch.kernel.operand_bytes)) * dispatch.calls
    detail = f"{program.place(dispatch.ops[0])} only moves data" if dispatch.ops else f"{dispatch.site.kernel}"
    gain_ns, low_ns, high_ns = 0.85 * wall_ns, 0.4 * wall_ns, 1.6 * wall_ns
    yield Finding(AdviceRule.LAYOUT_COPY, gain_ns, low_ns, high_ns, dispatch.ops, dispatch, detail, moved)


_IMBALANCED: Final = 135
"""Least imbalance in percent; 100: all workers always worked."""
_UNEVEN: Final = 20
"""Least imbalance above 100 percent by the number of workgroups alone that makes their number a cause."""
_AS_COUNTED: Final = 0.75
"""Least part of that imbalance in the run, as workgroups may differ in their work."""
_EVEN: Final = 4
"""Workgroups per worker from which on their number is no cause of imbalance."""
BALANCED: Final = 0.85
"""Expected part of the idle time that more workgroups save."""
_LAUNCH_NS: Final = 15_000
"""Time until another worker has begun. A shorter call does not gain from more workgroups."""


def _idle(program: Program, dispatch: Dispatch) -> Iterator[Finding]:
    """Dispatches in which workers are idle, because it has too few workgroups or uneven ones."""
    imbalance, tiles = dispatch.result.imbalance_percent, dispatch.result.tiles
    if isinstance(imbalance, Unknown) or isinstance(tiles, Unknown):
        return
    if dispatch.wall_ns / dispatch.calls < 2 * _LAUNCH_NS:
        return
    per_call = tiles / program.iterations / dispatch.calls
    if per_call > _EVEN * program.workers:
        return  # other programs made a worker wait
    # Three workgroups on two workers take two rounds, with a worker idle in the last one.
    rounds = math.ceil(round(per_call) / program.workers)
    extra = 100 * rounds * program.workers / max(1.0, per_call) - 100
    if imbalance < (min(_IMBALANCED, 100 + _AS_COUNTED * extra) if extra > _UNEVEN else _IMBALANCED):
        return
    gain_ns = dispatch.wall_ns * (1 - 100 / imbalance)
    groups = plural(round(per_call), "workgroup")
    detail = f"{program.place(dispatch.ops[0]) if dispatch.ops else dispatch.site.kernel} has {groups}"
    low_ns = 0.6 * gain_ns - _LAUNCH_NS * dispatch.calls
    high_ns = min(1.6 * gain_ns, 0.95 * dispatch.wall_ns)
    yield Finding(AdviceRule.IMBALANCE, BALANCED * gain_ns, low_ns, high_ns, dispatch.ops, dispatch, detail)


_SLOW: Final = 2.5
"""Least multiple of the roofline time for advice on a kernel's code."""
_SCALAR: Final = 6.0
"""Expected gain of vector code."""
_ELEMENT_PART: Final = 0.25
"""Least part of instructions on single elements in a loop that reads them one by one."""
_WASTED: Final = 0.4
"""Least memory traffic for elements that are not used, over the traffic that is needed."""
_STACK_PART: Final = 0.12
"""Least part of stack accesses in a loop that spills."""
_MOST_ROWS: Final = 8
"""Most uses of each weight in a call, for weights that are read and hardly used."""
_WEIGHTS_PART: Final = 0.8
_LEAST_WEIGHTS: Final = 1 << 20


def _inside(program: Program, dispatch: Dispatch) -> Iterator[Finding]:
    """Causes in the code of a kernel: the first that applies."""
    roofline_ns, kernel = program.roofline_ns(dispatch), dispatch.kernel
    if not roofline_ns or not dispatch.ops or not kernel.is_known or kernel.only_moves:
        return
    cpu_ns, wall_ns = dispatch.cpu_ns, dispatch.wall_ns
    compute_ns = program.compute_ns(dispatch.operations) * dispatch.calls
    is_compute_bound = compute_ns >= roofline_ns
    place, ratio = program.place(dispatch.ops[0]), dispatch.quiet_ns / roofline_ns
    is_worth = ratio > _SPILL_RATIO and wall_ns > LEAST_SHARE * program.elapsed_ns
    loops = kernel.loops if is_worth else ()
    vector = [loop for loop in loops if loop.vector]
    rate = dispatch.bytes * dispatch.calls * program.workers / max(1.0, cpu_ns)

    is_slow_product = ratio * program.running > _SLOW and is_compute_bound and kernel.is_product
    spilling = max((loop.stack / loop.instructions for loop in vector), default=0.0)
    if is_slow_product and program.is_for_any_cpu:
        # With the wider registers of this CPU, it would not spill, either.
        yield _below_roofline(dispatch, roofline_ns, place)
    elif ratio > _SLOW and any(loop.calls for loop in loops) and kernel.generics and not kernel.is_product:
        after = min(roofline_ns, cpu_ns / 16), max(1.5 * roofline_ns, cpu_ns / _SCALAR), cpu_ns / 2
        yield _after(dispatch, AdviceRule.NOT_VECTORIZED, after, f"{place} calls a function for each element")
    elif spilling > _STACK_PART:
        expected_ns = (max(1.2 * roofline_ns, cpu_ns * (1 - 2 * spilling)) + cpu_ns * (1 - spilling)) / 2
        after = 0.7 * roofline_ns, min(expected_ns, cpu_ns), cpu_ns * (1 - 0.3 * spilling)
        detail = f"{place}: {round(100 * spilling)} % of the instructions in its loop access the stack"
        yield _after(dispatch, AdviceRule.SPILLING, after, detail)
    elif ratio > _SLOW and any(loop.scalar for loop in loops) and not vector and not kernel.only_adds:
        after = min(roofline_ns, cpu_ns / 16), max(1.5 * roofline_ns, cpu_ns / _SCALAR), cpu_ns / 2
        yield _after(dispatch, AdviceRule.NOT_VECTORIZED, after, f"{place} computes one element at a time")
    elif ratio > _SLOW and kernel.is_strided:
        after = 0.6 * roofline_ns, 1.4 * roofline_ns, min(_SLOW * roofline_ns, 0.8 * cpu_ns)
        detail = f"{place} reads with a stride, at {rate:.1f} GB/s"
        yield _after(dispatch, AdviceRule.STRIDED_READS, after, detail, dispatch.bytes * dispatch.calls)
    elif loops and kernel.is_elementwise and kernel.element_part > _ELEMENT_PART:
        after = (
            min(0.6 * roofline_ns, cpu_ns / _SCALAR),
            min(0.9 * cpu_ns, math.sqrt(1.3 * roofline_ns * cpu_ns)),
            0.95 * cpu_ns,
        )
        yield _after(dispatch, AdviceRule.NOT_VECTORIZED, after, f"{place} reads one element at a time")
    elif is_worth and not kernel.is_product and (wasted := kernel.wasted_bytes) > _WASTED * dispatch.bytes > 0:
        part = dispatch.bytes / (dispatch.bytes + wasted)
        after = min(0.6 * roofline_ns, part / 2 * cpu_ns), (part + 0.1) * cpu_ns, 0.9 * cpu_ns
        detail = f"{place} reads parts of cache lines, and {format_bytes(wasted)} between them"
        yield _after(dispatch, AdviceRule.STRIDED_READS, after, detail, wasted * dispatch.calls)
    elif ratio > _SLOW and kernel.adds_columns:
        after = roofline_ns, 0.5 * cpu_ns, 0.9 * cpu_ns
        detail = f"{place} adds up columns, at {rate:.1f} GB/s"
        yield _after(dispatch, AdviceRule.STRIDED_READS, after, detail, dispatch.bytes * dispatch.calls)
    elif weights := _cold_weights(dispatch, is_compute_bound=is_compute_bound):
        of_weights = weights * dispatch.calls * program.workers / max(1.0, cpu_ns)
        detail = f"{place} reads {format_bytes(weights)} of weights at {of_weights:.1f} GB/s"
        yield _after(
            dispatch,
            AdviceRule.COLD_WEIGHTS,
            (0.12 * cpu_ns, 0.5 * cpu_ns, 0.8 * cpu_ns),
            detail,
            weights * dispatch.calls,
        )
    elif is_slow_product:
        yield _below_roofline(dispatch, roofline_ns, place)


_SPILL_RATIO: Final = 1.3
"""Least multiple of the roofline time at which loops are examined."""


def _below_roofline(dispatch: Dispatch, roofline_ns: float, place: str) -> Finding:
    after = 0.7 * roofline_ns, 1.3 * roofline_ns, 0.85 * dispatch.cpu_ns
    percent = round(100 * roofline_ns / dispatch.cpu_ns)
    return _after(dispatch, AdviceRule.BELOW_ROOFLINE, after, f"{place} runs at {percent} % of its roofline")


def _after(
    dispatch: Dispatch, rule: AdviceRule, after: tuple[float, float, float], detail: str, traffic: float = 0.0
) -> Finding:
    """A finding on a dispatch; `after`: its least, expected and most CPU time after the change."""
    low_ns, gain_ns, high_ns = (dispatch.wall_ns * max(0.0, 1 - time / dispatch.cpu_ns) for time in reversed(after))
    return Finding(rule, gain_ns, low_ns, high_ns, dispatch.ops, dispatch, detail, traffic)


def _cold_weights(dispatch: Dispatch, *, is_compute_bound: bool) -> int:
    """The size of weights that a product reads and hardly uses; 0 if it has none."""
    sizes = dispatch.kernel.operand_bytes
    if is_compute_bound or not dispatch.kernel.is_product or len(sizes) < 2:
        return 0
    largest = max(sizes[:-1])
    is_large = largest >= max(_LEAST_WEIGHTS, _WEIGHTS_PART * sum(sizes))
    # Two operations for each weight and row; weights have one to eight bytes.
    return largest if is_large and dispatch.operations <= 2 * _MOST_ROWS * largest else 0


# ---- rules on the time between kernels
#
# Never report a time on another device as fact: report what `record --compare-devices` measured, or advise to measure.


_HIGH_OVERHEAD: Final = 0.5
"""Least share of queue and host in the time for advice."""
_DEVICES: Final = ("local-task", "local-sync")
_WORTH_NAMING: Final = 0.1
"""Least possible share of copies in the time of queue and host to name them."""
_MANY: Final = 8
"""Least number of dispatches that are many."""


def overhead_findings(program: Program) -> Iterator[tuple[Finding, str, str]]:
    """The causes of the time between kernels, with their sentences and commands."""
    rows = (row for row in program.attribution.overhead if row.place is OverheadPlace.LOOP and row.ops)
    hot = [row for row in rows if program.overhead_of(row) > _LEAST_LOOP * program.elapsed_ns]
    loops = [_loop(program, row) for row in hot]
    other = _outside_of_loops(program, sum(map(program.overhead_of, hot)))
    if other is not None and other[0].rule is AdviceRule.OVERHEAD_BOUND and loops:
        # Another device saves the overhead of loops, too: only the better advice counts.
        is_better = other[0].gain_ns > max(finding.gain_ns for finding, *_ in loops)
        loops, other = ([], other) if is_better else (loops, None)
    yield from loops
    if other is not None:
        yield other


def _outside_of_loops(program: Program, loop_ns: float) -> tuple[Finding, str, str] | None:
    """Advice on the overhead of the whole program, unless most of it is that of loops."""
    overhead_ns = program.overhead_ns
    if overhead_ns < _HIGH_OVERHEAD * program.elapsed_ns or program.attribution.run.device not in _DEVICES:
        return None
    if loop_ns > MOST_OF * overhead_ns or not program.calls:
        return None
    if has_slug(program.attribution.diagnostics, NOISY) and overhead_ns > _MOST_LAUNCH_NS * program.calls:
        return None  # mostly waiting for a CPU
    share, tiny = program.share(overhead_ns), _tiny(program)
    text, command, bounds = _on_other_device(program)
    if tiny:
        count = sum(dispatch.calls for dispatch in tiny)
        mean_ns = sum(dispatch.wall_ns for dispatch in tiny) / count
        fused_ns = _launches_ns(program) * (1 - 1 / count)
        rest_ns = program.kernels_ns - count * mean_ns + _call_boundary_ns(program)
        batched = 0.4 * fused_ns, 0.9 * fused_ns, program.elapsed_ns - rest_ns
        if not bounds or batched[1] > bounds[1]:
            text, command, bounds = "Batch them", program.command("show", program.bundle, tiny[0].site.id), batched
        ops = tuple(dict.fromkeys(dispatch.ops[0] for dispatch in tiny if dispatch.ops))
        reason = f"{round(count)} dispatches take {format_ns(round(mean_ns))} each"
        each = format_ns(round(overhead_ns / program.calls))
        sentence = f"{share} of the time is runtime overhead: {reason}, and {each} to launch. {text}"
        finding = Finding(AdviceRule.TINY_DISPATCHES, bounds[1], bounds[0], bounds[2], ops)
        return finding, sentence, command
    if bounds:
        sentence = f"{share} of the time is runtime overhead (queue and host){_details(program)}. {text}"
        return Finding(AdviceRule.OVERHEAD_BOUND, bounds[1], bounds[0], bounds[2], ()), sentence, command
    return None


_MOST_LAUNCH_NS: Final = 500_000
"""Most overhead of a kernel call that is the program's own in a noisy run."""
_LEAST_LOOP: Final = 0.05
"""Least share of a loop's overhead in the time for advice."""
MOST_OF: Final = 0.5
"""Least part of the time, or of the overhead, that counts as most of it."""
SHRINKS: Final = 1.5
"""Most that the time between kernels shrinks by, as a multiple of what kernels shrink by."""
_UNROLL: Final = 8
"""Suggested number of iterations per trip of an unrolled loop."""


def _loop(program: Program, row: Overhead) -> tuple[Finding, str, str]:
    """Advice on the overhead of a loop. Its copies and fills may go as well."""
    total_ns = program.overhead_of(row)
    gaps = row.count / program.iterations if isinstance(row.count, int) else 0.0
    calls = (dispatch.calls for dispatch in program.dispatches)
    trips = next((count for count in calls if abs(count - gaps - 1) <= 1), gaps + 1)
    per_trip = f" ({round(trips)} trips × {format_ns(round(total_ns / trips))})" if trips >= 1 else ""
    op = program.graph.op_by_id[row.ops[-1]]
    unroll = min(_UNROLL, max(2, round(trips / _entries(program, op.id, trips))))
    how = f"jax.lax.scan(..., unroll={unroll})" if python_frame(program.graph, op) else f"{unroll} iterations a trip"
    text = f"{program.share(total_ns)} of the time is loop overhead at {program.place(op.id)}{per_trip}"
    part = 1 - 1 / unroll
    # Longer trips take longer to submit.
    carried_ns = sum(program.overhead_of(other) for other in _carrying(program))
    gain_ns, most_ns = part * (0.75 * total_ns + 0.5 * carried_ns), 1.5 * part * (total_ns + carried_ns)
    finding = Finding(AdviceRule.OVERHEAD_BOUND, gain_ns, 0.5 * part * total_ns, most_ns, row.ops)
    command = program.of_runs("what-if", "--overhead", op.id, "--faster", f"{unroll}x")
    return finding, f"{text}. Unroll the loop: {how}", command


def _entries(program: Program, loop: OpId, trips: float) -> float:
    """Times that a loop is entered in an invocation: once, or in each trip of the loop around it.

    Other dispatches there tell how often. Without one, it may be that each entry has two trips.
    """
    schedule = called_schedule(program.graph, program.attribution.run.function)
    submissions = schedule.submissions if schedule else ()
    around = {own.control[: own.control.index(loop)] for own in submissions if loop in own.control}
    rows = program.attribution.overhead
    loops = {op for row in rows if row.place is OverheadPlace.LOOP for op in row.ops}
    if not any(loops & set(control) for control in around):
        return 1.0
    neighbours = {meaning for own in submissions if own.control in around for meaning in meanings_of(own)}
    calls = [own.calls for own in program.dispatches if {own.site.command_buffer, own.site.id} & neighbours]
    return max((count for count in calls if 1 <= count <= trips), default=trips / 2)


def _carrying(program: Program) -> Iterator[Overhead]:
    """Copies of ops that have a dispatch, too: they carry the values of a loop."""
    copies = (row for row in program.attribution.overhead if row.place is OverheadPlace.TRANSFER)
    return (row for row in copies if row.ops and all(op in program.graph.sites_of_op for op in row.ops))


def _copies(program: Program) -> Iterator[Finding]:
    """Copies and fills of ops that the runtime does outside of kernels."""
    carrying = list(_carrying(program))
    for row in program.attribution.overhead:
        if row.place is OverheadPlace.TRANSFER and row.ops and row not in carrying:
            # Its array is allocated in each invocation; the page faults are elsewhere.
            total_ns = program.overhead_of(row)
            low_ns, gain_ns, high_ns = 0.4 * total_ns, COPIED * total_ns, 2.2 * total_ns
            detail = f"{program.place(row.ops[0])} is a copy"
            yield Finding(AdviceRule.LAYOUT_COPY, gain_ns, low_ns, high_ns, row.ops, None, detail)


COPIED: Final = 0.9
"""Expected part of the time of copies that is gained without them."""


def _launches_ns(program: Program) -> float:
    """The time between dispatches outside of loops."""
    places = OverheadPlace.DISPATCH, OverheadPlace.SUBMISSION
    return sum(program.overhead_of(row) for row in program.attribution.overhead if row.place in places)


def _call_boundary_ns(program: Program) -> float:
    """The time before the first and after the last kernel of an invocation."""
    rows = (row for row in program.attribution.overhead if row.place is OverheadPlace.CALL)
    return sum(program.overhead_of(row) for row in rows)


def _tiny(program: Program) -> list[Dispatch]:
    """Many dispatches outside of loops, each of which takes less time than its overhead; empty if they are few."""
    each_ns = program.overhead_ns / program.calls if program.calls else 0.0
    once = (dispatch for dispatch in program.dispatches if dispatch.calls <= _ONCE)
    tiny = [dispatch for dispatch in once if dispatch.wall_ns / dispatch.calls < each_ns]
    return tiny if sum(dispatch.calls for dispatch in tiny) >= _MANY else []


_ONCE: Final = 1.5
"""Most times that a dispatch outside of loops runs in an invocation."""


def _on_other_device(program: Program) -> tuple[str, str, tuple[float, float, float] | tuple[()]]:
    """Advice on the device with its command, and the least, expected and most gain; no gain if no other is faster."""
    run = program.attribution.run
    measure = program.recording("--compare-devices", ",".join(sorted(_DEVICES)))
    if not run.devices:
        if run.device == "local-sync":
            return "", measure, ()
        # The kernels run on one worker there, and a part of the overhead stays.
        cpu_ns = sum(dispatch.cpu_ns for dispatch in program.dispatches)
        longer_ns = max(0.0, cpu_ns - program.kernels_ns)
        # Copies and fills of large arrays take as long on any device.
        rows = (row for row in program.attribution.overhead if row.place is OverheadPlace.TRANSFER)
        others_ns = max(0.0, program.overhead_ns - sum(map(program.overhead_of, rows)))
        low_ns, gain_ns = (part * others_ns - longer_ns for part in (0.35, 0.65))
        return "Compare devices", measure, (low_ns, gain_ns, 0.95 * program.overhead_ns - longer_ns)
    own = next((device for device in run.devices if device.device == run.device), None)
    fastest = fastest_device(run.devices)
    if own is None or not is_faster_device(fastest, own):
        return "", "", ()
    times = f"{format_ns(fastest.median_ns)} instead of {format_ns(own.median_ns)} on {own.device}"
    command = program.recording("--", f"--device={fastest.device}")
    bounds = (
        _ns(own.low_ns) - _ns(fastest.high_ns),
        _median(own) - _median(fastest),
        _ns(own.high_ns) - _ns(fastest.low_ns),
    )
    return f"{fastest.device} is faster: {times}", command, bounds


def _details(program: Program) -> str:
    """The mean time of a kernel call, and other possible parts of the overhead."""
    mean_ns = program.kernels_ns / program.calls if program.calls else 0.0
    text = f"; a kernel call takes {format_ns(round(mean_ns))} on average" if program.calls else ""
    parts = ["untimed copies and fills"] if _may_be_copies(program) else []
    if has_slug(program.attribution.diagnostics, NOISY):
        parts.append("waiting for a CPU (noisy run)")
    return f"{text}; the overhead may include {' and '.join(parts)}" if parts else text


def _may_be_copies(program: Program) -> bool:
    """Whether copies without rows may be a notable part of the overhead."""
    untimed = has_slug(program.attribution.diagnostics, TRANSFERS_UNTIMED)
    rows = program.attribution.unattributed
    queue = (row.metrics.get("duration_ns", 0) for row in rows if row.reason is UnattributedReason.QUEUE)
    return untimed and sum(queue) >= _WORTH_NAMING * program.overhead_ns * program.iterations


def fastest_device(devices: Sequence[DeviceTime]) -> DeviceTime:
    """The device with the smallest median."""
    return min(devices, key=_median)


def _median(device: DeviceTime) -> float:
    return float(device.median_ns) if isinstance(device.median_ns, int) else float("inf")


def _ns(value: object) -> float:
    return float(value) if isinstance(value, int) else 0.0


def is_faster_device(device: DeviceTime, other: DeviceTime) -> bool:
    """Whether the interval of a median is entirely below that of another; False if one is unknown."""
    return isinstance(device.high_ns, int) and isinstance(other.low_ns, int) and device.high_ns < other.low_ns
