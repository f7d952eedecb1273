"""A profile that its program is still writing: the begin of each call, and where its records begin.

iree-benchmark-module flushes the profile once after each call, so each chunk of submissions is a call. Its output
goes through a buffer of about 32 KiB: the submissions of a call may appear long before its execution records. CPU
devices write the submissions of a flush first; a device with its own clock writes clock correlations and dispatches
first. This module knows only the necessary part of the format (`IRPF` 1.x); `iree-profile` reads complete files.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tracemap.measurements.ireeprof.records import FILE_HEADER_BYTES

_EVENTS = b"-events"
"""Suffix of the content types of events. In each call, events come after records about new buffers."""
_SUBMISSIONS = b"application/vnd.iree.hal.profile.queue-events"
_CLOCKS = b"application/vnd.iree.hal.profile.clock-correlations"
_MAJOR_VERSION = 1
_VERSION = struct.Struct("<4xH")
_LENGTH = struct.Struct("<Q")
# In a record's header: the lengths of the header, of the content type, and of the name, which follow each other.
_LENGTHS = struct.Struct("<56x3I")
_SUBMITTED_NS = struct.Struct("<24xq")
"""In the first submission of a chunk: its time, on the host's monotonic clock."""
_READ_BYTES: Final = 16 << 20


class GrowingProfile:
    """The calls in a growing profile.

    Attributes:
        begins_ns: begin of each call, in order: its first submission, on the host's monotonic clock.
        places: file offset where each call's records begin, after the events of the previous call.
        bytes: size of the complete records read so far.
        end_of_events: file offset after the last event record, of returned calls or not.
    """

    def __init__(self, path: Path) -> None:
        """Nothing is read yet; the file may not exist."""
        self.begins_ns: list[int] = []
        self.places: list[int] = []
        self.bytes = 0
        self._path = path
        self.end_of_events = 0
        self._following: list[int] = []  # number of event records after the submissions, per call
        self._leading = b""  # content type of the first event record
        self._begun: int | None = None  # begin of a flush whose submissions are still missing

    @property
    def whole_calls(self) -> int:
        """Number of complete calls; the last one is complete if it has as many records as the one before."""
        calls = len(self.begins_ns)
        expected = self._following[-2] if calls > 1 else 1
        return calls - 1 if calls and self._following[-1] < expected else calls

    @property
    def end_of_calls(self) -> int:
        """File offset after the last call with known submissions, without a flush whose submissions are missing."""
        return self.end_of_events if self._begun is None else self._begun

    def read_on(self) -> None:
        """Read new records; a missing file, or one of another version, has no calls."""
        try:
            with self._path.open("rb") as file:
                if not self.bytes and not _is_known(file.read(FILE_HEADER_BYTES)):
                    return
                self.bytes = self.bytes or FILE_HEADER_BYTES
                file.seek(self.bytes)
                while self._process(file.read(_READ_BYTES)):
                    file.seek(self.bytes)
        except FileNotFoundError:
            return

    def _process(self, data: bytes) -> bool:
        """Process the complete records in a piece of the file; returns whether there were any."""
        base, done = self.bytes, 0
        for place, done in _whole_records(data):
            kind, payload = _content(data, place)
            is_event = kind.endswith(_EVENTS)
            if is_event and not self._leading:
                self._leading = kind
            if self._begun is None and kind in {_CLOCKS, _SUBMISSIONS, self._leading}:
                self._begun = self.end_of_events
            if kind == _SUBMISSIONS and payload + _SUBMITTED_NS.size <= done:
                self.begins_ns.append(_SUBMITTED_NS.unpack_from(data, payload)[0])
                self.places.append(self._begun or 0)
                self._following.append(0)
                self._begun = None
            elif is_event and self._following and self._begun is None:
                self._following[-1] += 1
            if is_event:
                self.end_of_events = base + done
        self.bytes = base + done
        return done > 0


def _is_known(head: bytes) -> bool:
    return len(head) == FILE_HEADER_BYTES and _VERSION.unpack_from(head)[0] == _MAJOR_VERSION


def _whole_records(data: bytes) -> Iterator[tuple[int, int]]:
    """Begin and end of each complete record."""
    place = 0
    while place + _LENGTHS.size <= len(data):
        (length,) = _LENGTH.unpack_from(data, place)
        if length < _LENGTHS.size or place + length > len(data):
            return
        yield place, place + length
        place += length


def _content(data: bytes, place: int) -> tuple[bytes, int]:
    """The type of a record's content, and the offset where the content begins."""
    header, kind, name = _LENGTHS.unpack_from(data, place)
    begin = place + header
    return data[begin : begin + kind], begin + kind + name
