"""How events find their target: by submission, command or kernel, as tables to join."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Final

from tracemap.attribution.join.targets import UNMATCHED, UNMATCHED_GROUP, Join, Targets
from tracemap.attribution.join.ways import Meanings
from tracemap.attribution.scan.connection import Row, Tables
from tracemap.measurements.columns import events_sql
from tracemap.measurements.model import Run
from tracemap.units import UNKNOWN

# ---- shapes
#
# The *shape* of a call as one number: calls of a target that have the same one do the same work.
#
# The upper half of the number is how many workgroups the call has, 0 where that is unknown, as of what is no dispatch.
# The lower half tells counts apart that come to the same product, and lengths of what moves bytes: unequal shapes with
# as many workgroups share a number once in 4 * 10^9 pairs. It is 0 where all of a target's calls have the same counts.


_MOST = (1 << 31) - 1
"""Workgroups from which on a count is out of all reason, and unknown."""

_COUNTS = ("event.workgroups_x", "event.workgroups_y", "event.workgroups_z")
_TILES = " * ".join(f"CAST({count} AS DOUBLE)" for count in _COUNTS)

TOLD_BY_TILES: Final = f"CASE WHEN {_TILES} BETWEEN 1 AND {_MOST} THEN CAST({_TILES} AS BIGINT) << 32 ELSE 0 END"
"""The shape of an `event`, in SQL, where all calls of its target have the same counts and lengths."""

SHAPE: Final = f"({TOLD_BY_TILES}) + CAST(hash({', '.join(_COUNTS)}, event.payload_bytes) >> 32 AS BIGINT)"
"""The shape of any `event`, in SQL."""


def recorded_shape(workgroups: Sequence[int]) -> int:
    """The number that `TOLD_BY_TILES` gives the calls of a command that was recorded with these counts."""
    tiles = math.prod(workgroups) if workgroups else 0
    return tiles << 32 if tiles <= _MOST else 0


def tiles_of(shape: str) -> str:
    """How many workgroups a dispatch of a shape has, in SQL; NULL where it is unknown, as of what is no dispatch."""
    return f"nullif({shape} >> 32, 0)"


# ---- lookups
#
# The ways in which a run's events find their target, each as a table to join and what the join then gives.
#
# What a run tells decides which there are. The order is that of trust: a site that the file names, the command of a
# buffer, the position in a submission (these come from `submissions`), and last the kernel.


_MOST_COMMANDS = 100_000
"""Commands of all recorded buffers up to which they are listed one by one."""


@dataclass(frozen=True, slots=True)
class Source:
    """A run that is being read: its file, what its header tells, and where tables and targets are kept."""

    run: Run
    join: Join
    tables: Tables
    targets: Targets

    @property
    def columns(self) -> frozenset[str]:
        """The names of its file's columns, as SQL compares them."""
        return frozenset(name.strip().lower() for name in self.run.columns)

    @property
    def events(self) -> str:
        """The rows of its file, as a table in SQL."""
        return f"({events_sql(self.run)})"

    def fill(self, name: str, columns: str, rows: Iterable[Row]) -> None:
        """A table of rows that end in a target; the table has its number."""
        self.tables.fill(name, columns, [(*key, self.targets.number_of(target)) for *key, target in rows])


@dataclass(frozen=True, slots=True)
class Lookup:
    """What is joined to the events (named `event`), and the target that dispatches or transfers then have, or NULL.

    The columns of a file may have any name, so all names in the clauses say which table they are of. `of_shape`: the
    shape of what it finds (`shapes`), where the recorded commands tell it. `shapes`: the same by target, where each
    target that it finds has a single one.
    """

    join: str
    of_dispatch: str = ""
    of_transfer: str = ""
    of_shape: str = ""
    shapes: Mapping[int, int] = field(default_factory=dict)


def lookups(source: Source, submitted: Sequence[Lookup]) -> tuple[Sequence[Lookup], Sequence[Lookup]]:
    """The lookups of a run, given those that tell its submissions apart, in the order in which they are asked.

    The first are for events of their own, the second for rows of steps, which always name their kernel and often
    nothing else.
    """
    join = source.join
    exact = (*_by_site(source), *submitted, *_by_command(source, grouped=bool(submitted)))
    every = (*exact, _by_kernel(source))
    # Events that no exact lookup knows may be the map's all the same; where buffers are trusted they are not.
    return exact if join.trusts_buffers and source.run.has_header and join.by_command else every, every


def _by_site(source: Source) -> Iterator[Lookup]:
    if "site" in source.columns and _names_sites(source):
        source.fill("sites", "site VARCHAR, target INTEGER", source.join.by_site.items())
        yield Lookup("LEFT JOIN sites ON sites.site = event.site", "sites.target")


def _names_sites(source: Source) -> bool:
    """Whether a run's column `site` is needed: a recorded run with all its buffers tells more by its commands.

    A CSV would have to be read whole to see whether there is any value.
    """
    if source.run.format == "csv":
        return not (source.join.trusts_buffers and source.join.by_command)
    return bool(source.tables.query(f"SELECT site FROM {source.events} WHERE site IS NOT NULL LIMIT 1"))


def _by_kernel(source: Source) -> Lookup:
    source.fill("kernels", "kernel VARCHAR, target INTEGER", source.join.by_kernel.items())
    return Lookup("LEFT JOIN kernels ON kernels.kernel = event.kernel", "kernels.target")


def _by_command(source: Source, *, grouped: bool) -> Iterator[Lookup]:
    """By command buffer and index; `grouped`: the submissions tell of which group of buffers each event is.

    One whole number for buffer and index is joined several times faster than two.
    """
    join = source.join
    if not ({"command_buffer_id", "command_index"} <= source.columns and join.by_command):
        return
    stride = 1 + max(index for _, index, _ in join.by_command)
    if not grouped and join.trusts_buffers and len(join.header.buffers) * stride <= _MOST_COMMANDS:
        yield _by_command_of_buffer(source, stride)
    else:
        yield _buffer_groups(source)
        yield _by_command_of_group(source, stride, grouped=grouped)


def _by_command_of_buffer(source: Source, stride: int) -> Lookup:
    """With few buffers, their commands are listed under the buffers' own numbers, which saves a join.

    The kernel is the command's: it was compared when the buffers were aligned. That a buffer is known and has no such
    command is all that is computed for most rows.
    """
    of_group = defaultdict(list)
    for (group, index, _), target in source.join.by_command.items():
        of_group[group].append((index, target))
    shapes = [[recorded_shape(command.workgroups) for command in program] for program in source.join.header.programs]
    rows = [
        (buffer.id * stride + index, shapes[buffer.program][index], target)
        for buffer in source.join.header.buffers
        for index, target in of_group[source.join.group_of_buffer.get(buffer.id, UNMATCHED_GROUP)]
    ]
    source.fill("commands", "command BIGINT, shape BIGINT, target INTEGER", rows)
    known = f"CASE WHEN event.command_buffer_id IS NOT NULL THEN {UNMATCHED} END"
    of_command = _joined_commands("event.command_buffer_id", stride)
    single = {source.targets.number_of(target): shape for _, shape, target in rows}
    by_target = single if len({(target, shape) for _, shape, target in rows}) == len(single) else {}
    return Lookup(of_command, f"commands.target, {known}", of_shape="commands.shape", shapes=by_target)


def _buffer_groups(source: Source) -> Lookup:
    groups = source.join.group_of_buffer
    rows = [(buffer.id, groups.get(buffer.id, UNMATCHED_GROUP)) for buffer in source.join.header.buffers]
    source.tables.fill("buffers", "command_buffer_id BIGINT, buffer_group INTEGER", rows)
    return Lookup("LEFT JOIN buffers ON buffers.command_buffer_id = event.command_buffer_id")


def _by_command_of_group(source: Source, stride: int, *, grouped: bool) -> Lookup:
    by_command = source.join.by_command.items()
    rows = [(group * stride + index, kernel, target) for (group, index, kernel), target in by_command]
    source.fill("commands", "command BIGINT, kernel VARCHAR, target INTEGER", rows)
    group = "coalesce(submissions.buffer_group, buffers.buffer_group)" if grouped else "buffers.buffer_group"
    target = "CASE WHEN commands.kernel = event.kernel THEN commands.target END"
    if source.join.trusts_buffers:
        # A buffer that is known and has no such command is another module's, whatever its kernels are called.
        target = f"CASE WHEN buffers.buffer_group IS NOT NULL THEN coalesce({target}, {UNMATCHED}) END"
    return Lookup(_joined_commands(group, stride), target)


def _joined_commands(number: str, stride: int) -> str:
    index = "event.command_index"
    command = f"CASE WHEN {index} < {stride} AND {number} >= 0 THEN {number} * {stride} + {index} END"
    return f"LEFT JOIN commands ON commands.command = {command}"


# ---- submissions
#
# Which submission of a run is which of the host program's, as SQL over its events.
#
# Needed where that does not follow from a command buffer's number: for buffers that are made anew on each call and
# look alike, for transfers, and for drivers that report no command indices. What a call submitted, in order, is a
# word; calls mostly repeat few different words, and each is looked at once.


# Control characters, which the names of kernels, being symbols, do not have.
_LETTER_MARK, _KERNEL_MARK, _TIE_MARK = "\x1e", "\x1f", "\x1d"
_LONGEST_WORD = 1_000_000
"""Submissions of one word; longer ones, of runs whose calls cannot be told apart, are not looked at."""

# What each submission looks like by itself: a transfer, else (`work`) what was executed.
_LETTERS = """
{with_kernels}SELECT event.submission_id, any_value(coalesce(event.invocation, -1)) AS invocation,
       coalesce(any_value(event.kind || ' ' || coalesce(event.payload_bytes, -1))
                FILTER (event.kind IN ('copy', 'fill', 'update')), {work}) AS letter
FROM {events} AS event {with_work}
WHERE event.kind IN ('dispatch', 'execute', 'copy', 'fill', 'update') AND event.submission_id IS NOT NULL
GROUP BY event.submission_id
"""
# Kernels in the order in which they began. Clocks of devices have steps: of those that began in one nothing tells which
# was before, and they stand there by their names.
_KERNELS = f"""
WITH together AS (
    SELECT submission_id, start_ns, string_agg(kernel, '{_TIE_MARK}' ORDER BY kernel) AS kernels
    FROM {{events}} WHERE kind = 'dispatch' AND submission_id IS NOT NULL GROUP BY submission_id, start_ns),
     ordered AS (SELECT submission_id, string_agg(kernels, '{_KERNEL_MARK}' ORDER BY start_ns) AS kernels
                 FROM together GROUP BY submission_id)
"""


@dataclass(frozen=True, slots=True)
class _Work:
    """How what a submission executed is told, in SQL: tables that are made before, one that is joined, and the text."""

    with_kernels: str
    with_work: str
    work: str


_BY_KERNELS: Final = _Work(
    _KERNELS,
    "LEFT JOIN ordered ON ordered.submission_id = event.submission_id",
    "'s' || coalesce(any_value(ordered.kernels), '')",
)
_BY_BUFFER: Final = _Work(
    "",
    "LEFT JOIN own_buffers ON own_buffers.command_buffer_id = event.command_buffer_id",
    f"'g' || coalesce(any_value(own_buffers.buffer_group), {UNMATCHED_GROUP})",
)

# What each call submitted, in order; equal words have the same id.
_WORDS = f"""
SELECT invocation, word, dense_rank() OVER (ORDER BY word) AS id
FROM (SELECT invocation, string_agg(letter, '{_LETTER_MARK}' ORDER BY submission_id) AS word
      FROM letters GROUP BY invocation)
"""
_DIFFERENT_WORDS = "SELECT id, any_value(word), min(invocation) >= 0 FROM words GROUP BY id ORDER BY id"

# The group of each submission: that of its letter in the word of its call.
_SUBMISSIONS = """
SELECT submission_id, buffer_group
FROM (SELECT submission_id, invocation,
             row_number() OVER (PARTITION BY invocation ORDER BY submission_id) - 1 AS position FROM letters)
JOIN words USING (invocation) JOIN spelled USING (id, position)
"""

# The target of each dispatch, by its position among those of its kernel in its submission. Of two of one kernel that
# began at once nothing tells which is which: their kernel alone is known.
_POSITIONS = """
SELECT submission_id, start_ns, kernel, CASE WHEN count(DISTINCT target) = 1 THEN any_value(target) END AS target
FROM (SELECT event.submission_id, event.start_ns, event.kernel,
             row_number() OVER (PARTITION BY event.submission_id, event.kernel ORDER BY event.start_ns) - 1 AS position
      FROM {events} AS event WHERE event.kind = 'dispatch' AND event.submission_id IS NOT NULL)
JOIN submissions USING (submission_id) JOIN sequences USING (buffer_group, kernel, position)
GROUP BY submission_id, start_ns, kernel
"""


def submission_lookups(source: Source) -> list[Lookup]:
    """The lookups by submission, first that of its group; none where they are not needed or cannot be made."""
    join = source.join
    by_order = not join.has_indices
    needed = by_order or join.open_groups or join.may_transfer
    if not (needed and _says_when(source)):
        return []
    meanings = _letters(source, _BY_KERNELS if by_order else _BY_BUFFER)
    if not any(meanings.values()):
        return []
    _spell(source, meanings, indexed=not by_order)
    found = [Lookup("LEFT JOIN submissions ON submissions.submission_id = event.submission_id")]
    if by_order:
        found.append(_by_position(source))
    if join.may_transfer:
        found.append(_by_transfer(source))
    return found


def _says_when(source: Source) -> bool:
    """Whether the file says which events were submitted together, and in which order."""
    told = bool(source.run.header.programs) or source.run.has_header
    return told and {"submission_id", "start_ns"} <= source.columns


def _letters(source: Source, work: _Work) -> Mapping[str, Meanings]:
    """Make the table of letters; returns what each letter may be."""
    groups = list(source.join.group_of_buffer.items())
    source.tables.fill("own_buffers", "command_buffer_id BIGINT, buffer_group INTEGER", groups)
    words = {each.name: getattr(work, each.name).format(events=source.events) for each in fields(work)}
    source.tables.make("letters", _LETTERS.format(events=source.events, **words))
    letters = source.tables.query("SELECT DISTINCT letter FROM letters")
    return {letter: _meaning(source.join, letter) for (letter,) in letters}


def _meaning(join: Join, letter: str) -> Meanings:
    if letter.startswith("s"):
        kernels = letter[1:].split(_KERNEL_MARK) if len(letter) > 1 else []
        return join.buffers_like([each.split(_TIE_MARK) for each in kernels])
    if letter.startswith("g"):
        return join.meanings(int(letter[1:]))
    kind, _, length = letter.partition(" ")
    return join.transfers_like(kind, int(length) if int(length) >= 0 else UNKNOWN)


def _spell(source: Source, meanings: Mapping[str, Meanings], *, indexed: bool) -> None:
    """Make the table of submissions with their groups, each found by the word that it stands in."""
    source.tables.make("words", _WORDS)
    rows: list[tuple[int, int, int]] = []
    for word_id, word, one_call in source.tables.query(_DIFFERENT_WORDS):
        seen = [meanings[letter] for letter in word.split(_LETTER_MARK)]
        by_order = source.join.knows_ways and len(seen) <= _LONGEST_WORD
        groups = source.join.groups_of_call(seen, one_call=one_call, indexed=indexed, by_order=by_order)
        rows += [(word_id, position, group) for position, group in enumerate(groups)]
    source.tables.fill("spelled", "id BIGINT, position BIGINT, buffer_group INTEGER", rows)
    source.tables.make("submissions", _SUBMISSIONS)


def _by_position(source: Source) -> Lookup:
    targets = source.join.by_position.items()
    rows = [(*key, target) for key, target in targets]
    source.fill("sequences", "buffer_group INTEGER, kernel VARCHAR, position BIGINT, target INTEGER", rows)
    source.tables.make("positions", _POSITIONS.format(events=source.events))
    same = " AND ".join(f"positions.{name} = event.{name}" for name in ("submission_id", "start_ns", "kernel"))
    return Lookup(f"LEFT JOIN positions ON {same}", of_dispatch="positions.target")


def _by_transfer(source: Source) -> Lookup:
    source.fill("transfers", "buffer_group INTEGER, target INTEGER", source.join.by_transfer.items())
    same = "transfers.buffer_group = submissions.buffer_group"
    return Lookup(f"LEFT JOIN transfers ON {same}", of_transfer="transfers.target")
