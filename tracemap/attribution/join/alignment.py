"""Which command buffers of the map a recorded one may be, by its fingerprint.

The numbers that a run gives to buffers are its own business: hidden buffers take some, so they are never predicted. The
fingerprint of a buffer is the sequence of its commands, with the kernels' names and the workgroup counts that are known
at compile time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tracemap.attribution.join.creation import by_creation
from tracemap.graph.program import Command, CommandBuffer
from tracemap.measurements.header import RecordedBuffer, RecordedCommand, RunHeader
from tracemap.units import UNKNOWN


def aligned(
    static: Sequence[CommandBuffer], runnable: Sequence[CommandBuffer], header: RunHeader
) -> Iterator[tuple[RecordedBuffer, tuple[int, ...]]]:
    """Each recorded buffer that may be any of the map's, with the ordinals of those that it may be.

    Args:
        static: the map's command buffers.
        runnable: those that the function that was called can execute.
        header: the run's.
    """
    matches = [[buffer for buffer in static if _same(buffer.commands, program)] for program in header.programs]
    able = {buffer.ordinal for buffer in runnable}
    memoized = by_creation(static, matches, header.buffers)
    for buffer in header.buffers:
        if buffer.id in memoized:
            # The order of creation is surer than what is known of the function: it is never left with nothing.
            found = [ordinal for ordinal in memoized[buffer.id] if ordinal in able]
            yield buffer, tuple(found or memoized[buffer.id])
        elif fitting := [candidate for candidate in matches[buffer.program] if candidate.ordinal in able]:
            yield buffer, tuple(candidate.ordinal for candidate in _likeliest(fitting, buffer.one_shot))


def _likeliest(found: Sequence[CommandBuffer], one_shot: bool) -> list[CommandBuffer]:
    """Of static buffers with the right fingerprint those that live as the recorded one does; all if none does."""
    alike = [buffer for buffer in found if buffer.memoized != one_shot]
    running = [buffer for buffer in alike or found if not buffer.initializer]
    return running or alike or list(found)


def _same(static: Sequence[Command], recorded: Sequence[RecordedCommand]) -> bool:
    return len(static) == len(recorded) and all(map(_same_command, static, recorded))


def _same_command(static: Command, recorded: RecordedCommand) -> bool:
    if static.kind != "dispatch" or recorded.kind != "dispatch":
        return static.kind == recorded.kind
    if static.kernel != recorded.kernel:
        return False
    return all(
        known is UNKNOWN or known == count for known, count in zip(static.workgroups, recorded.workgroups, strict=False)
    )
