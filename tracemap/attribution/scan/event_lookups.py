"""Lookups of an event's target by site, command, submission or kernel, as tables to join."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from tracemap.attribution.join.schedule_nfa import Meanings
from tracemap.attribution.join.targets import TRANSFER, UNMATCHED, UNMATCHED_GROUP, Join, Targets
from tracemap.attribution.scan.connection import Row, Tables
from tracemap.core.units import UNKNOWN
from tracemap.map.model import TraceGraph
from tracemap.runs.columns import events_sql
from tracemap.runs.model import Run

# ---- shapes
#
# The *shape* of a call as one integer: calls of a target with the same shape do the same work.
#
# The upper half is the number of workgroups; 0 if it is unknown or the event is no dispatch. The lower half is a hash
# that distinguishes counts with the same product, and lengths of transfers. Different shapes with the same number of
# workgroups collide once in 4 * 10^9 pairs. The lower half is 0 if all calls of a target have the same counts.


_MOST = (1 << 31) - 1
"""Largest plausible number of workgroups; larger ones count as unknown."""

_COUNTS = ("event.workgroups_x", "event.workgroups_y", "event.workgroups_z")
_TILES = " * ".join(f"CAST({count} AS DOUBLE)" for count in _COUNTS)

SHAPE_OF_TILES: Final = f"CASE WHEN {_TILES} BETWEEN 1 AND {_MOST} THEN CAST({_TILES} AS BIGINT) << 32 ELSE 0 END"
"""The shape of an `event` in SQL if all calls of its target have the same counts and lengths."""

SHAPE: Final = f"({SHAPE_OF_TILES}) + CAST(hash({', '.join(_COUNTS)}, event.payload_bytes) >> 32 AS BIGINT)"
"""The shape of any `event` in SQL."""


def tiles_of(shape: str) -> str:
    """The number of workgroups of a shape in SQL; NULL if it is unknown or the event is no dispatch."""
    return f"nullif({shape} >> 32, 0)"


# ---- lookups
#
# The lookups of a run's events: a table to join, and the target that the join gives.
#
# The contents of the run decide which lookups exist. They apply in order of reliability: the site that the file names,
# the position in a submission (see "submissions" below), the command of a buffer, the kernel.


_MOST_COMMANDS = 100_000
"""Most commands of all recorded buffers that are listed individually."""


class Source(msgspec.Struct, frozen=True):
    """A run that is being read: its file, the join of its header with the map, and the tables and targets to fill."""

    run: Run
    join: Join
    tables: Tables
    targets: Targets

    @property
    def columns(self) -> frozenset[str]:
        """The column names of its file, in the form that SQL compares."""
        return frozenset(name.strip().lower() for name in self.run.columns)

    @property
    def events(self) -> str:
        """The rows of its file as a table in SQL."""
        return f"({events_sql(self.run)})"

    def fill(self, name: str, columns: str, rows: Iterable[Row]) -> None:
        """Create a table of rows whose last element is a target; the table gets the target's number."""
        self.tables.fill(name, columns, [(*key, self.targets.index_of(target)) for *key, target in rows])


def source_of(graph: TraceGraph, run: Run, tables: Tables, targets: Targets) -> Source:
    """A run of a map's module, read by these tables."""
    return Source(run, Join(graph, run.header, run.site_choices), tables, targets)


@dataclass(frozen=True, slots=True)
class Lookup:
    """A join with the events (named `event`), and SQL for the target of a dispatch or transfer (NULL: none).

    The columns of a file may have any name, so all names in the clauses are qualified by their table. `of_shape`: SQL
    for the shape of the command found, if recorded commands have it. `shapes`: the shape by target, if every target of
    the lookup has only one.
    """

    join: str
    of_dispatch: str = ""
    of_transfer: str = ""
    of_shape: str = ""
    shapes: Mapping[int, int] = field(default_factory=dict)


def clauses(source: Source, lookups: Sequence[Lookup]) -> dict[str, str]:
    """The parts of a query of a run's `event` rows: `events`, `joins`, and the target of a `dispatch` or `transfer`."""
    targets = {
        "dispatch": [*(lookup.of_dispatch for lookup in lookups), str(UNMATCHED)],
        "transfer": [*(lookup.of_transfer for lookup in lookups), str(TRANSFER)],
    }
    return {
        "events": source.events,
        "joins": " ".join(lookup.join for lookup in lookups),
        **{kind: f"coalesce({', '.join(filter(None, of_kind))})" for kind, of_kind in targets.items()},
    }


def lookups(source: Source) -> tuple[Sequence[Lookup], Sequence[Lookup]]:
    """The lookups of a run in order, first those for events, then those for `step` rows.

    Step rows always name their kernel and often nothing else.
    """
    join, submitted = source.join, _submission_lookups(source)
    exact = []
    if "site" in source.columns and _names_sites(source):
        source.fill("sites", "site VARCHAR, target INTEGER", join.by_site.items())
        exact.append(Lookup("LEFT JOIN sites ON sites.site = event.site", "sites.target", "sites.target"))
    exact += [*submitted, *_command_lookups(source, grouped=bool(submitted))]
    source.fill("kernels", "kernel VARCHAR, target INTEGER", join.by_kernel.items())
    all_lookups = [*exact, Lookup("LEFT JOIN kernels ON kernels.kernel = event.kernel", "kernels.target")]
    # An event that no exact lookup finds may still belong to the map, unless buffers are trusted.
    trusts_exact = join.trusts_buffers and source.run.has_header and join.by_command
    return exact if trusts_exact else all_lookups, all_lookups


def _names_sites(source: Source) -> bool:
    """Whether to use a run's column `site`.

    For a CSV only the header decides, because finding a value would require a full read. The commands of a recorded run
    with all its buffers are more exact.
    """
    if source.run.format == "csv":
        return not (source.join.trusts_buffers and source.join.by_command)
    return bool(source.tables.query(f"SELECT site FROM {source.events} WHERE site IS NOT NULL LIMIT 1"))


def _command_lookups(source: Source, *, grouped: bool) -> Iterator[Lookup]:
    """Lookups by command buffer and index; `grouped`: submissions give the buffer group of each event.

    Joining one integer for buffer and index is several times faster than joining two.
    """
    join = source.join
    if not ({"command_buffer_id", "command_index"} <= source.columns and join.by_command):
        return
    stride = 1 + max(index for _, index, _ in join.by_command)
    if not grouped and join.trusts_buffers and len(join.header.buffers) * stride <= _MOST_COMMANDS:
        yield _buffer_command_lookup(source, stride)
    else:
        groups = join.group_of_buffer
        rows = [(buffer.id, groups.get(buffer.id, UNMATCHED_GROUP)) for buffer in join.header.buffers]
        source.tables.fill("buffers", "command_buffer_id BIGINT, buffer_group INTEGER", rows)
        yield Lookup("LEFT JOIN buffers ON buffers.command_buffer_id = event.command_buffer_id")
        yield _group_command_lookup(source, stride, grouped=grouped)


def _buffer_command_lookup(source: Source, stride: int) -> Lookup:
    """A lookup by buffer id for runs with few buffers, which saves a join with the buffer groups.

    The alignment of buffers compared kernels already. An event of a known buffer without such a command is unmatched.
    """
    commands_of_group = defaultdict(list)
    for (group, index, _), target in source.join.by_command.items():
        commands_of_group[group].append((index, target))
    programs = source.join.header.programs
    # The workgroups of a command's calls, as in `SHAPE_OF_TILES`.
    tiles = [[math.prod(command.workgroups) if command.workgroups else 0 for command in own] for own in programs]
    shapes = [[number << 32 if number <= _MOST else 0 for number in own] for own in tiles]
    rows = [
        (buffer.id * stride + index, shapes[buffer.program][index], target)
        for buffer in source.join.header.buffers
        for index, target in commands_of_group[source.join.group_of_buffer.get(buffer.id, UNMATCHED_GROUP)]
    ]
    source.fill("commands", "command BIGINT, shape BIGINT, target INTEGER", rows)
    known = f"CASE WHEN event.command_buffer_id IS NOT NULL THEN {UNMATCHED} END"
    join_clause = _join_commands("event.command_buffer_id", stride)
    shape_of_target = {source.targets.index_of(target): shape for _, shape, target in rows}
    is_unique = len({(target, shape) for _, shape, target in rows}) == len(shape_of_target)
    shapes_by_target = shape_of_target if is_unique else {}
    return Lookup(join_clause, f"commands.target, {known}", of_shape="commands.shape", shapes=shapes_by_target)


def _group_command_lookup(source: Source, stride: int, *, grouped: bool) -> Lookup:
    by_command = source.join.by_command.items()
    rows = [(group * stride + index, kernel, target) for (group, index, kernel), target in by_command]
    source.fill("commands", "command BIGINT, kernel VARCHAR, target INTEGER", rows)
    group = "coalesce(submissions.buffer_group, buffers.buffer_group)" if grouped else "buffers.buffer_group"
    target = "CASE WHEN commands.kernel = event.kernel THEN commands.target END"
    if source.join.trusts_buffers:
        # A known buffer without such a command belongs to another module, whatever the names of its kernels.
        target = f"CASE WHEN buffers.buffer_group IS NOT NULL THEN coalesce({target}, {UNMATCHED}) END"
    return Lookup(_join_commands(group, stride), target)


def _join_commands(number: str, stride: int) -> str:
    index = "event.command_index"
    command = f"CASE WHEN {index} < {stride} AND {number} >= 0 THEN {number} * {stride} + {index} END"
    return f"LEFT JOIN commands ON commands.command = {command}"


# ---- submissions
#
# The submission of the host program for each submission of a run, by SQL over the run's events.
#
# It is needed if the command buffer's number does not identify the submission: for buffers that are created on each
# call and have the same commands, for transfers, and for drivers that report no command indices. The sequence of a
# call's submissions is a *word*, and a submission is a *letter*. Calls repeat few distinct words, and each word is
# analyzed once.


# Control characters, which cannot occur in kernel names.
_LETTER_MARK, _KERNEL_MARK, _TIE_MARK = "\x1e", "\x1f", "\x1d"
_LONGEST_WORD = 1_000_000
"""Most submissions of an analyzed word. Longer ones occur in runs whose invocations are not distinguishable."""

# The letter of each submission: a transfer, else (`work`) the executed commands.
_LETTERS = """
{with_kernels}SELECT event.submission_id, any_value(coalesce(event.invocation, -1)) AS invocation,
       coalesce(any_value(event.kind || ' ' || coalesce(event.payload_bytes, -1))
                FILTER (event.kind IN ('copy', 'fill', 'update')), {work}) AS letter
FROM {events} AS event {with_work}
WHERE event.kind IN ('dispatch', 'execute', 'copy', 'fill', 'update') AND event.submission_id IS NOT NULL
GROUP BY event.submission_id
"""
# Kernels in the order of their starts. The ticks of device clocks are coarse: kernels with the same start have no known
# order, and are sorted by name.
_KERNELS = f"""
WITH together AS (
    SELECT submission_id, start_ns, string_agg(kernel, '{_TIE_MARK}' ORDER BY kernel) AS kernels
    FROM {{events}} WHERE kind = 'dispatch' AND submission_id IS NOT NULL GROUP BY submission_id, start_ns),
     ordered AS (SELECT submission_id, string_agg(kernels, '{_KERNEL_MARK}' ORDER BY start_ns) AS kernels
                 FROM together GROUP BY submission_id)
"""


_BY_KERNELS: Final = {
    "with_kernels": _KERNELS,
    "with_work": "LEFT JOIN ordered ON ordered.submission_id = event.submission_id",
    "work": "'s' || coalesce(any_value(ordered.kernels), '')",
}
_BY_BUFFER: Final = {
    "with_kernels": "",
    "with_work": "LEFT JOIN own_buffers ON own_buffers.command_buffer_id = event.command_buffer_id",
    "work": f"'g' || coalesce(any_value(own_buffers.buffer_group), {UNMATCHED_GROUP})",
}
"""Parts of `_LETTERS`: common table expressions, a join, and the text of a submission's work."""

# The word of each call; equal words have the same id.
_WORDS = f"""
SELECT invocation, word, dense_rank() OVER (ORDER BY word) AS id
FROM (SELECT invocation, string_agg(letter, '{_LETTER_MARK}' ORDER BY submission_id) AS word
      FROM letters GROUP BY invocation)
"""
_DIFFERENT_WORDS = "SELECT id, any_value(word), min(invocation) >= 0 FROM words GROUP BY id ORDER BY id"

# The group of each submission: the group of its letter in the word of its call.
_SUBMISSIONS = """
SELECT submission_id, buffer_group
FROM (SELECT submission_id, invocation,
             row_number() OVER (PARTITION BY invocation ORDER BY submission_id) - 1 AS position FROM letters)
JOIN words USING (invocation) JOIN spelled USING (id, position)
"""

# The target of each dispatch, by its position among the dispatches of its kernel in its submission. Two dispatches of
# one kernel with the same start are not distinguishable by position; the lookup by kernel applies to them.
_POSITIONS = """
SELECT submission_id, start_ns, kernel, CASE WHEN count(DISTINCT target) = 1 THEN any_value(target) END AS target
FROM (SELECT event.submission_id, event.start_ns, event.kernel,
             row_number() OVER (PARTITION BY event.submission_id, event.kernel ORDER BY event.start_ns) - 1 AS position
      FROM {events} AS event WHERE event.kind = 'dispatch' AND event.submission_id IS NOT NULL)
JOIN submissions USING (submission_id) JOIN sequences USING (buffer_group, kernel, position)
GROUP BY submission_id, start_ns, kernel
"""


def _submission_lookups(source: Source) -> list[Lookup]:
    """The lookups by submission, the one for buffer groups first; empty if not needed or not possible."""
    join = source.join
    by_order = not join.has_indices
    needed = by_order or join.open_groups or join.may_transfer
    # Whether the file groups events by submission, and orders the submissions.
    has_order = source.run.has_header or bool(source.run.header.programs)
    if not (needed and has_order and {"submission_id", "start_ns"} <= source.columns):
        return []
    meanings = _letters(source, _BY_KERNELS if by_order else _BY_BUFFER)
    if not any(meanings.values()):
        return []
    _spell(source, meanings, indexed=not by_order)
    by_submission = [Lookup("LEFT JOIN submissions ON submissions.submission_id = event.submission_id")]
    if by_order:
        by_submission.append(_position_lookup(source))
    if join.may_transfer:
        source.fill("transfers", "buffer_group INTEGER, target INTEGER", join.by_transfer.items())
        same = "transfers.buffer_group = submissions.buffer_group"
        by_submission.append(Lookup(f"LEFT JOIN transfers ON {same}", of_transfer="transfers.target"))
    return by_submission


def _letters(source: Source, work: Mapping[str, str]) -> Mapping[str, Meanings]:
    """Create the table of letters; return the possible meanings of each letter."""
    groups = list(source.join.group_of_buffer.items())
    source.tables.fill("own_buffers", "command_buffer_id BIGINT, buffer_group INTEGER", groups)
    query = _LETTERS.format(events="{events}", **work).format(events=source.events)
    source.tables.make("letters", query)
    letters = source.tables.query("SELECT DISTINCT letter FROM letters")
    return {letter: _meaning(source.join, letter) for (letter,) in letters}


def _meaning(join: Join, letter: str) -> Meanings:
    if letter.startswith("s"):
        kernels = letter[1:].split(_KERNEL_MARK) if len(letter) > 1 else []
        return join.buffers_like([ties.split(_TIE_MARK) for ties in kernels])
    if letter.startswith("g"):
        return join.meanings(int(letter[1:]))
    kind, _, length = letter.partition(" ")
    return join.transfers_like(kind, int(length) if int(length) >= 0 else UNKNOWN)


def _spell(source: Source, meanings: Mapping[str, Meanings], *, indexed: bool) -> None:
    """Create the table of submissions with their buffer groups, derived from the words."""
    source.tables.make("words", _WORDS)
    rows: list[tuple[int, int, int]] = []
    for word_id, word, one_call in source.tables.query(_DIFFERENT_WORDS):
        candidates = [meanings[letter] for letter in word.split(_LETTER_MARK)]
        by_order = source.join.knows_ways and len(candidates) <= _LONGEST_WORD
        groups = source.join.groups_of_call(candidates, one_call=one_call, indexed=indexed, by_order=by_order)
        rows += [(word_id, position, group) for position, group in enumerate(groups)]
    source.tables.fill("spelled", "id BIGINT, position BIGINT, buffer_group INTEGER", rows)
    source.tables.make("submissions", _SUBMISSIONS)


def _position_lookup(source: Source) -> Lookup:
    rows = [(*key, target) for key, target in source.join.by_position.items()]
    source.fill("sequences", "buffer_group INTEGER, kernel VARCHAR, position BIGINT, target INTEGER", rows)
    source.tables.make("positions", _POSITIONS.format(events=source.events))
    same = " AND ".join(f"positions.{name} = event.{name}" for name in ("submission_id", "start_ns", "kernel"))
    return Lookup(f"LEFT JOIN positions ON {same}", of_dispatch="positions.target")
