"""A profile that its program is still writing: when each call of the entry point began, and where its records do.

iree-benchmark-module flushes the profile once after each call, so each chunk of submissions is a call. What it writes
goes through a buffer of some 32 KiB: of a call the submissions may be there long before what executed. Processors write
the submissions of a flush first; a device with a clock of its own a correlation of clocks, and dispatches.
Of the format (`IRPF` 1.x) only what is needed for that is known here; what is written is read by `iree-profile`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tracemap.measurements.ireeprof.records import FILE_HEADER_BYTES

_EVENTS = b"-events"
"""How the types of content end that tell of what happened. Of each call they follow what tells of new buffers."""
_SUBMISSIONS = b"application/vnd.iree.hal.profile.queue-events"
_CLOCKS = b"application/vnd.iree.hal.profile.clock-correlations"
_MAJOR_VERSION = 1
_VERSION = struct.Struct("<4xH")
_LENGTH = struct.Struct("<Q")
# Of a record's header: the lengths of itself, of the type of its content, and of its name, which follow each other.
_LENGTHS = struct.Struct("<56x3I")
_SUBMITTED_NS = struct.Struct("<24xq")
"""Of the first submission of a chunk: when it was made, on the host's monotonic clock."""
_MOST_AT_ONCE: Final = 16 << 20


class GrowingProfile:
    """The calls that a profile has by now.

    Attributes:
        begins_ns: of each call, in order: its first submission, on the host's monotonic clock.
        places: where in the file the events of the call before end, and what tells of this one begins.
        bytes: how much of the file is known: whole records.
        end_of_events: how much of it is of calls, returned or not.
    """

    def __init__(self, path: Path) -> None:
        """Nothing is read yet; the file need not be there."""
        self.begins_ns: list[int] = []
        self.places: list[int] = []
        self.bytes = 0
        self._path = path
        self.end_of_events = 0
        self._following: list[int] = []  # of each call, how many records of events came after its submissions
        self._leading = b""  # the type of the first record of events
        self._begun: int | None = None  # where the flush begins whose submissions are still to come

    @property
    def whole_calls(self) -> int:
        """How many calls have all of their records: those before the last, and that where it has as many as they."""
        calls = len(self.begins_ns)
        expected = self._following[-2] if calls > 1 else 1
        return calls - 1 if calls and self._following[-1] < expected else calls

    @property
    def end_of_calls(self) -> int:
        """How much of the file is of calls whose submissions are known, without what a flush has before these."""
        return self.end_of_events if self._begun is None else self._begun

    def read_on(self) -> None:
        """Look at what was written since the last time; a file that is none, or of another version, has no calls."""
        try:
            with self._path.open("rb") as file:
                if not self.bytes and not _is_known(file.read(FILE_HEADER_BYTES)):
                    return
                self.bytes = self.bytes or FILE_HEADER_BYTES
                file.seek(self.bytes)
                while self._take(file.read(_MOST_AT_ONCE)):
                    file.seek(self.bytes)
        except FileNotFoundError:
            return

    def _take(self, written: bytes) -> bool:
        """Go through the whole records of a piece of the file; whether there were any."""
        before, done = self.bytes, 0
        for place, done in _whole_records(written):
            kind, payload = _content(written, place)
            is_event = kind.endswith(_EVENTS)
            if is_event and not self._leading:
                self._leading = kind
            if self._begun is None and kind in {_CLOCKS, _SUBMISSIONS, self._leading}:
                self._begun = self.end_of_events
            if kind == _SUBMISSIONS and payload + _SUBMITTED_NS.size <= done:
                self.begins_ns.append(_SUBMITTED_NS.unpack_from(written, payload)[0])
                self.places.append(self._begun or 0)
                self._following.append(0)
                self._begun = None
            elif is_event and self._following and self._begun is None:
                self._following[-1] += 1
            if is_event:
                self.end_of_events = before + done
        self.bytes = before + done
        return done > 0


def _is_known(head: bytes) -> bool:
    return len(head) == FILE_HEADER_BYTES and _VERSION.unpack_from(head)[0] == _MAJOR_VERSION


def _whole_records(written: bytes) -> Iterator[tuple[int, int]]:
    """Begin and end of each record that is there whole."""
    place = 0
    while place + _LENGTHS.size <= len(written):
        (length,) = _LENGTH.unpack_from(written, place)
        if length < _LENGTHS.size or place + length > len(written):
            return
        yield place, place + length
        place += length


def _content(written: bytes, place: int) -> tuple[bytes, int]:
    """The type of a record's content, and where that begins."""
    header, kind, name = _LENGTHS.unpack_from(written, place)
    begin = place + header
    return written[begin : begin + kind], begin + kind + name
