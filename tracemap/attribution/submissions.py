"""Which submission of a run is which place in the host program, as SQL over its events.

Needed where that does not follow from a command buffer's number: for buffers that are made anew on each call and look
alike, for transfers, and for drivers that report no command indices. What a call submitted, in order, is a word; calls
mostly repeat few different words, and each is looked at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracemap.attribution.join import UNMATCHED_GROUP, Join, Transfers
from tracemap.attribution.ways import Meanings
from tracemap.measurements.columns import events_sql
from tracemap.measurements.model import Run
from tracemap.units import UNKNOWN

if TYPE_CHECKING:
    from tracemap.attribution.scan import Scan

_TRANSFERS = "('copy', 'fill', 'update')"
_LETTER_MARK, _KERNEL_MARK = "\x1e", "\x1f"
_LONGEST_WORD = 1_000_000
"""Submissions of one word; longer ones, of runs whose calls cannot be told apart, are not looked at."""


@dataclass(frozen=True, slots=True)
class Told:
    """What to join events with; empty where that is not needed.

    `table`: (submission_id, told_group); `places`: (submission_id, start_ns, by_place); `transfers`: a whole LEFT JOIN
    that gives `by_transfer`.
    """

    table: str = ""
    places: str = ""
    transfers: str = ""


class Submissions:
    """The submissions of one run."""

    def __init__(self, scan: Scan, index: int, run: Run, joined: Join) -> None:
        self._scan = scan
        self._index = index
        self._joined = joined
        self._names = {name.strip().lower() for name in run.columns}
        self._events = f"({events_sql(run)})"
        self._meanings: dict[str, Meanings] = {}

    def tell_apart(self) -> Told:
        """Make the tables that tell submissions apart, if any are needed and the run's columns allow it."""
        if not {"submission_id", "start_ns"} <= self._names:
            return Told()
        sequences = not self._joined.has_indices
        transfers = self._joined.may_transfer
        if not (sequences or self._joined.open_groups or transfers):
            return Told()
        if not self._letters(sequences):
            return Told()
        self._words(indexed=not sequences)
        return Told(
            table=f"told_{self._index}",
            places=self._places() if sequences else "",
            transfers=self._transfers() if transfers else "",
        )

    def _letters(self, sequences: bool) -> bool:
        """Make `letters_N`: what each submission looks like by itself; False if there is none that may be ours."""
        self._scan.table(
            f"groups_{self._index}",
            "command_buffer_id BIGINT, buffer_group INTEGER",
            list(self._joined.group_of_buffer.items()),
        )
        sequence = (
            f"'s' || coalesce(string_agg(kernel, '{_KERNEL_MARK}' ORDER BY start_ns) FILTER (kind = 'dispatch'), '')"
        )
        letter = sequence if sequences else f"'g' || coalesce(any_value(buffer_group), {UNMATCHED_GROUP})"
        transfer = f"any_value(kind || ' ' || coalesce(payload_bytes, -1)) FILTER (kind IN {_TRANSFERS})"
        self._scan.query(
            f"CREATE OR REPLACE TEMP TABLE letters_{self._index} AS "
            "SELECT submission_id, any_value(coalesce(invocation, -1)) AS invocation, "
            f"coalesce({transfer}, {letter}) AS letter "
            f"FROM {self._events} LEFT JOIN groups_{self._index} USING (command_buffer_id) "
            f"WHERE kind IN ('dispatch', 'execute', 'copy', 'fill', 'update') AND submission_id IS NOT NULL "
            "GROUP BY submission_id"
        )
        for (letter,) in self._scan.query(f"SELECT DISTINCT letter FROM letters_{self._index}"):
            self._meanings[letter] = self._meaning(letter)
        return any(self._meanings.values())

    def _meaning(self, letter: str) -> Meanings:
        if letter.startswith("s"):
            return self._joined.buffers_like(letter[1:].split(_KERNEL_MARK) if len(letter) > 1 else [])
        if letter.startswith("g"):
            return self._joined.meanings(int(letter[1:]))
        kind, _, length = letter.partition(" ")
        return self._joined.transfers_like(Transfers(kind, int(length) if int(length) >= 0 else UNKNOWN))

    def _words(self, *, indexed: bool) -> None:
        """Make `told_N`: the group of each submission, told by the word that it stands in."""
        letters, words, number = f"letters_{self._index}", f"words_{self._index}", self._index
        self._scan.query(
            f"CREATE OR REPLACE TEMP TABLE {words} AS SELECT invocation, word, dense_rank() OVER (ORDER BY word) AS id "
            f"FROM (SELECT invocation, string_agg(letter, '{_LETTER_MARK}' ORDER BY submission_id) AS word "
            f"FROM {letters} GROUP BY invocation)"
        )
        rows: list[tuple[int, int, int]] = []
        for word_id, word, one_call in self._scan.query(
            f"SELECT id, any_value(word), min(invocation) >= 0 FROM {words} GROUP BY id ORDER BY id"
        ):
            groups = self._groups_of(word.split(_LETTER_MARK), one_call=one_call, indexed=indexed)
            rows += [(word_id, place, group) for place, group in enumerate(groups)]
        self._scan.table(f"spelled_{number}", "id BIGINT, place BIGINT, told_group INTEGER", rows)
        self._scan.query(
            f"CREATE OR REPLACE TEMP TABLE told_{number} AS SELECT submission_id, told_group FROM "
            "(SELECT submission_id, invocation, "
            "row_number() OVER (PARTITION BY invocation ORDER BY submission_id) - 1 AS place "
            f"FROM {letters}) JOIN {words} USING (invocation) JOIN spelled_{number} USING (id, place)"
        )

    def _groups_of(self, letters: Sequence[str], *, one_call: bool, indexed: bool) -> list[int]:
        seen = [self._meanings[letter] for letter in letters]
        order = self._joined.tells_apart and len(letters) <= _LONGEST_WORD
        return self._joined.resolved(seen, one_call=one_call, indexed=indexed, by_order=order)

    def _places(self) -> str:
        """Make `places_N`: the target of each dispatch of a submission, by its place among them."""
        by_place = self._joined.by_place.items()
        rows = [(group, place, self._scan.target_id(target)) for (group, place), target in by_place]
        self._scan.table(f"sequences_{self._index}", "told_group INTEGER, place BIGINT, by_place INTEGER", rows)
        name = f"places_{self._index}"
        self._scan.query(
            f"CREATE OR REPLACE TEMP TABLE {name} AS SELECT submission_id, start_ns, any_value(by_place) AS by_place "
            "FROM (SELECT submission_id, start_ns, "
            "row_number() OVER (PARTITION BY submission_id ORDER BY start_ns) - 1 AS place "
            f"FROM {self._events} WHERE kind = 'dispatch' AND submission_id IS NOT NULL) "
            f"JOIN told_{self._index} USING (submission_id) JOIN sequences_{self._index} USING (told_group, place) "
            "GROUP BY submission_id, start_ns"
        )
        return name

    def _transfers(self) -> str:
        rows = [(group, self._scan.target_id(target)) for group, target in self._joined.by_transfer.items()]
        self._scan.table(f"transfers_{self._index}", "told_group INTEGER, by_transfer INTEGER", rows)
        return f"LEFT JOIN transfers_{self._index} USING (told_group)"
