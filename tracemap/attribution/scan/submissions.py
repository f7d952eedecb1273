"""Which submission of a run is which of the host program's, as SQL over its events.

Needed where that does not follow from a command buffer's number: for buffers that are made anew on each call and look
alike, for transfers, and for drivers that report no command indices. What a call submitted, in order, is a word; calls
mostly repeat few different words, and each is looked at once.
"""

from __future__ import annotations

from collections.abc import Mapping

from tracemap.attribution.join.run import UNMATCHED_GROUP, Join
from tracemap.attribution.join.ways import Meanings
from tracemap.attribution.scan.lookups import Lookup, Source
from tracemap.units import UNKNOWN

# Control characters, which the names of kernels, being symbols, do not have.
_LETTER_MARK, _KERNEL_MARK = "\x1e", "\x1f"
_LONGEST_WORD = 1_000_000
"""Submissions of one word; longer ones, of runs whose calls cannot be told apart, are not looked at."""

# What each submission looks like by itself: a transfer, else (`work`) what was executed.
_LETTERS = """
SELECT event.submission_id, any_value(coalesce(event.invocation, -1)) AS invocation,
       coalesce(any_value(event.kind || ' ' || coalesce(event.payload_bytes, -1))
                FILTER (event.kind IN ('copy', 'fill', 'update')), {work}) AS letter
FROM {events} AS event LEFT JOIN own_buffers ON own_buffers.command_buffer_id = event.command_buffer_id
WHERE event.kind IN ('dispatch', 'execute', 'copy', 'fill', 'update') AND event.submission_id IS NOT NULL
GROUP BY event.submission_id
"""
_WORK_BY_KERNELS = (
    f"'s' || coalesce(string_agg(event.kernel, '{_KERNEL_MARK}' ORDER BY event.start_ns)"
    " FILTER (event.kind = 'dispatch'), '')"
)
_WORK_BY_BUFFER = f"'g' || coalesce(any_value(own_buffers.buffer_group), {UNMATCHED_GROUP})"

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

# The target of each dispatch, by its position among those of its submission.
_POSITIONS = """
SELECT submission_id, start_ns, any_value(target) AS target
FROM (SELECT event.submission_id, event.start_ns,
             row_number() OVER (PARTITION BY event.submission_id ORDER BY event.start_ns) - 1 AS position
      FROM {events} AS event WHERE event.kind = 'dispatch' AND event.submission_id IS NOT NULL)
JOIN submissions USING (submission_id) JOIN sequences USING (buffer_group, position)
GROUP BY submission_id, start_ns
"""


def submission_lookups(source: Source) -> list[Lookup]:
    """The lookups by submission, first that of its group; none where they are not needed or cannot be made."""
    join = source.join
    by_order = not join.has_indices
    needed = by_order or join.open_groups or join.may_transfer
    if not (needed and _says_when(source)):
        return []
    meanings = _letters(source, _WORK_BY_KERNELS if by_order else _WORK_BY_BUFFER)
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


def _letters(source: Source, work: str) -> Mapping[str, Meanings]:
    """Make the table of letters; returns what each letter may be."""
    groups = list(source.join.group_of_buffer.items())
    source.tables.fill("own_buffers", "command_buffer_id BIGINT, buffer_group INTEGER", groups)
    source.tables.make("letters", _LETTERS.format(events=source.events, work=work))
    letters = source.tables.query("SELECT DISTINCT letter FROM letters")
    return {letter: _meaning(source.join, letter) for (letter,) in letters}


def _meaning(join: Join, letter: str) -> Meanings:
    if letter.startswith("s"):
        return join.buffers_like(letter[1:].split(_KERNEL_MARK) if len(letter) > 1 else [])
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
    rows = [(group, position, target) for (group, position), target in targets]
    source.fill("sequences", "buffer_group INTEGER, position BIGINT, target INTEGER", rows)
    source.tables.make("positions", _POSITIONS.format(events=source.events))
    same = "positions.submission_id = event.submission_id AND positions.start_ns = event.start_ns"
    return Lookup(f"LEFT JOIN positions ON {same}", of_dispatch="positions.target")


def _by_transfer(source: Source) -> Lookup:
    source.fill("transfers", "buffer_group INTEGER, target INTEGER", source.join.by_transfer.items())
    same = "transfers.buffer_group = submissions.buffer_group"
    return Lookup(f"LEFT JOIN transfers ON {same}", of_transfer="transfers.target")
