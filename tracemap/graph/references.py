"""Referential integrity of a map, checked once when a bundle is opened, so that later code may rely on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from typing import Final

from tracemap.graph.model import PHASES, SOURCE, Command, Kernel, Op, Schedule, Site, TraceGraph
from tracemap.units import UNKNOWN


def check_references(graph: TraceGraph) -> None:
    """Check that ids are unique, that all names resolve, and that ordinals are indices.

    Raises:
        ValueError: the map is inconsistent; the message names the place.
    """
    fault = next(_faults(graph), None)
    if fault is not None:
        raise ValueError(fault)


def _faults(graph: TraceGraph) -> Iterator[str]:
    """A sentence for each inconsistency."""
    for kind, ids in (
        ("op", [op.id for op in graph.ops]),
        ("site", [site.id for site in graph.sites]),
        ("kernel", [kernel.name for kernel in graph.kernels]),
        ("transfer", [transfer.id for transfer in graph.transfers]),
        ("schedule", [schedule.function for schedule in graph.schedules]),
        ("the source text", [source.path for source in graph.sources]),
        ("the kernel text", [kernel.text for kernel in graph.kernels if isinstance(kernel.text, str)]),
    ):
        yield from _repeated(kind, ids)
    yield from _faults_of_ops(graph.ops)
    for site in graph.sites:
        yield from _faults_of_site(site, graph)
    yield from _faults_of_kernels(graph)
    for index, buffer in enumerate(graph.command_buffers):
        yield from _different(f"the ordinal of command buffer {index}", buffer.ordinal, index)
        for command in buffer.commands:
            yield from _faults_of_command(command, graph)
    for transfer in graph.transfers:
        yield from _missing(transfer.id, "op", transfer.ops, graph.op_by_id)
    for schedule in graph.schedules:
        yield from _faults_of_schedule(schedule, graph)


def _repeated(kind: str, ids: Sequence[Hashable]) -> Iterator[str]:
    if len(set(ids)) < len(ids):
        name, _ = Counter(ids).most_common(1)[0]
        yield f"{kind} {name} occurs twice"


def _missing(where: str, kind: str, names: Iterable[Hashable], known: Collection[Hashable]) -> Iterator[str]:
    for name in names:
        if name not in known:
            yield f"{where} names {kind} {name}, which is not in the map"


def _different(description: str, value: object, expected: object) -> Iterator[str]:
    if value != expected:
        yield f"{description} is {value}, not {expected}"


_PHASES: Final = frozenset({SOURCE, *PHASES})


def _faults_of_ops(ops: Iterable[Op]) -> Iterator[str]:
    for op in ops:
        if op.last_phase is not UNKNOWN and op.last_phase not in _PHASES:
            yield f"{op.id} names the phase {op.last_phase}, which the compiler does not have"
        if op.line == 0 or op.column == 0 or (op.parts and any(0 in (part.line, part.column) for part in op.parts)):
            yield f"{op.id} is at {op.line}:{op.column}; lines and columns begin at 1"


def _faults_of_site(site: Site, graph: TraceGraph) -> Iterator[str]:
    yield from _repeated(f"{site.id}: op", [member.op for member in site.members])
    yield from _missing(site.id, "kernel", [site.kernel], graph.kernel_by_name)
    yield from _missing(site.id, "op", site.path, graph.op_by_id)
    yield from _missing(site.id, "op", [member.op for member in site.members], graph.op_by_id)
    for member in site.members:
        if member.path or member.other_paths:  # rare
            yield from _missing(site.id, "op", [call for path in member.paths for call in path], graph.op_by_id)
            yield from _repeated(f"{site.id}: path to {member.op}", member.paths)


def _faults_of_kernels(graph: TraceGraph) -> Iterator[str]:
    sites_of: dict[str, list[str]] = {}
    for site in graph.sites:
        sites_of.setdefault(site.kernel, []).append(site.id)
    for kernel in graph.kernels:
        yield from _different(f"the sites of {kernel.name}", list(kernel.sites), sites_of.get(kernel.name, []))
        yield from _faults_of_steps(kernel, graph)


def _faults_of_steps(kernel: Kernel, graph: TraceGraph) -> Iterator[str]:
    lines = [step.line for step in kernel.steps]
    yield from _repeated(f"{kernel.name}: step at line", lines)
    known = {*lines, UNKNOWN}
    for step in kernel.steps:
        yield from _missing(kernel.name, "op", step.ops, graph.op_by_id)
        yield from _missing(f"{kernel.name}: step {step.line}", "line", [step.parent, *step.takes], known)


def _faults_of_command(command: Command, graph: TraceGraph) -> Iterator[str]:
    where = f"a command ({command.kind})"
    yield from _missing(where, "op", command.ops, graph.op_by_id)
    yield from _missing(where, "site", command.merged, graph.site_by_id)
    if isinstance(command.site, str):
        yield from _missing(where, "site", [command.site], graph.site_by_id)


def _faults_of_schedule(schedule: Schedule, graph: TraceGraph) -> Iterator[str]:
    where, indices = f"the schedule of {schedule.function}", range(len(schedule.submissions))
    yield from _missing(where, "submission", schedule.first, indices)
    for submission in schedule.submissions:
        yield from _missing(where, "submission", submission.next, indices)
        yield from _missing(where, "command buffer", submission.buffers, range(len(graph.command_buffers)))
        if isinstance(submission.transfer, str):
            yield from _missing(where, "transfer", [submission.transfer], graph.transfer_by_id)
