"""Profiles of several processes that ran the same program, one after another, become the events of one run.

Each process counts its submissions and its command buffers anew. A memoized buffer is made when the module is loaded,
in the same order in each: one that has the number and the commands of an earlier process's is that one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tracemap.measurements.events import EventTable
from tracemap.measurements.ireeprof.profile import Profile
from tracemap.measurements.model import RecordedBuffer, RecordedCommand
from tracemap.measurements.sql import fill

Program = tuple[RecordedCommand, ...]

_MORE: Final = """
SELECT event.* EXCLUDE row REPLACE (
    coalesce(renamed.new_id, event.command_buffer_id) AS command_buffer_id,
    event.submission_id + before.submissions AS submission_id,
    event.invocation + before.invocations AS invocation)
FROM {events} AS event
CROSS JOIN (SELECT coalesce(max(submission_id), 0) AS submissions, coalesce(max(invocation) + 1, 0) AS invocations
            FROM {before}) AS before
LEFT JOIN renamed_buffers AS renamed ON event.command_buffer_id = renamed.id
ORDER BY event.row
"""
# As in one process, calls of a command are counted over all buffers that are made for one call with the same commands.
_COUNTED: Final = """
(SELECT event.* REPLACE (row_number() OVER (
     PARTITION BY kind, kernel, coalesce(one_shot.program, -1 - command_buffer_id), command_index
     ORDER BY start_ns, row) - 1 AS call)
 FROM {events} AS event LEFT JOIN one_shot_buffers AS one_shot ON one_shot.id = command_buffer_id)
"""


@dataclass(frozen=True)
class Joined:
    """The events of all, the distinct lists of commands, and the buffers with numbers that no two of them share."""

    events: EventTable
    programs: tuple[Program, ...]
    buffers: tuple[RecordedBuffer, ...]


def join_profiles(profiles: Sequence[Profile]) -> Joined:
    """Add the events of all profiles, which lie in one database and are of one clock, to those of the first."""
    first = profiles[0]
    if len(profiles) == 1:
        return Joined(first.events, first.programs, first.buffers)
    events, buffers = first.events, _Buffers(first)
    connection = events.connection
    for profile in profiles[1:]:
        renamed = buffers.add(profile) or _of_calls(events, profile.events)
        fill(connection, "renamed_buffers", {"id": "BIGINT", "new_id": "BIGINT"}, renamed)
        events.add_rows(_MORE.format(events=profile.events.name, before=events.name))
        connection.execute(f"DROP TABLE {profile.events.name}")
    fill(connection, "one_shot_buffers", {"id": "BIGINT", "program": "BIGINT"}, buffers.one_shot)
    events.rewrite(_COUNTED.format(events=events.name))
    connection.execute("DROP TABLE renamed_buffers; DROP TABLE one_shot_buffers")
    return Joined(events, buffers.programs, buffers.in_order)


# Of devices that do not list their buffers: what is executed in a single call is made for it.
_OF_CALLS: Final = """
SELECT command_buffer_id, command_buffer_id + (SELECT coalesce(max(command_buffer_id), 0) FROM {before})
FROM {events} WHERE command_buffer_id IS NOT NULL GROUP BY ALL HAVING count(DISTINCT invocation) = 1
"""


def _of_calls(before: EventTable, events: EventTable) -> list[tuple[int, int]]:
    """As `_Buffers.add`, where the profile lists none."""
    query = _OF_CALLS.format(before=before.name, events=events.name)
    return [(int(number), int(new)) for number, new in before.connection.execute(query).fetchall()]


class _Buffers:
    """The command buffers of one process after another, and the numbers that they have among all."""

    def __init__(self, first: Profile) -> None:
        self._number_of: dict[Program, int] = {program: number for number, program in enumerate(first.programs)}
        self._buffers = {buffer.id: buffer for buffer in first.buffers}

    @property
    def programs(self) -> tuple[Program, ...]:
        return tuple(self._number_of)

    @property
    def in_order(self) -> tuple[RecordedBuffer, ...]:
        return tuple(self._buffers[number] for number in sorted(self._buffers))

    @property
    def one_shot(self) -> list[tuple[int, int]]:
        return [(buffer.id, buffer.program) for buffer in self._buffers.values() if buffer.one_shot]

    def add(self, profile: Profile) -> list[tuple[int, int]]:
        """The number that each buffer of a further process has among all, by the number that it has in its own."""
        programs = [self._number_of.setdefault(program, len(self._number_of)) for program in profile.programs]
        last = max((*self._buffers, *(buffer.id for buffer in profile.buffers)), default=0)
        renamed = []
        for buffer in profile.buffers:
            known = RecordedBuffer(buffer.id, buffer.one_shot, programs[buffer.program])
            if buffer.one_shot or self._buffers.setdefault(buffer.id, known) != known:
                known = RecordedBuffer(last + buffer.id, buffer.one_shot, known.program)
                self._buffers[known.id] = known
            renamed.append((buffer.id, known.id))
        return renamed
