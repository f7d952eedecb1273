"""Which submission of a run is which of the host program's, as SQL over its events.

Needed where that does not follow from a command buffer's number: for buffers that are made anew on each call and look
alike, for transfers, and for drivers that report no command indices. What a call submitted, in order, is a word; calls
mostly repeat few different words, and each is looked at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

from tracemap.attribution.join.run import UNMATCHED_GROUP, Join
from tracemap.attribution.join.ways import Meanings
from tracemap.attribution.scan.lookups import Lookup, Source
from tracemap.units import UNKNOWN

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
