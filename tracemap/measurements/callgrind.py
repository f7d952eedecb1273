"""Counts of valgrind's callgrind, by instruction: the format `callgrind format, version 1`, as far as it is needed.

Callgrind simulates the caches as cachegrind does, and can say at which address of which object each event was, which
needs no debug information. The file is to be written with `--dump-instr=yes --dump-line=no --compress-strings=no
--compress-pos=no`: then each line stands for itself. Grammar: valgrind's manual, "Callgrind Format Specification".
"""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tracemap.errors import RunInvalid
from tracemap.inputs import opened

_MOST_EVENTS = 64
_MOST_DIGITS = 18
"""Of a cost: what has as many fits into 64 bits, as does the sum of a few."""


@dataclass(frozen=True, slots=True)
class CallCost:
    """What calls of one instruction cost, all that the called function did included.

    `target` is the address that was called, `target_object` the object that it lies in; `costs` go by
    `CallgrindCounts.events`.
    """

    object: str
    address: int
    target_object: str
    target: int
    costs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CallgrindCounts:
    """What callgrind counted: totals of the program, and costs by object and address of objects that were asked for.

    Addresses are those that the object's symbols count in. `caches` are callgrind's own words on the caches.
    """

    events: tuple[str, ...]
    totals: tuple[int, ...]
    caches: tuple[str, ...]
    costs: dict[tuple[str, int], tuple[int, ...]] = field(repr=False)
    calls: tuple[CallCost, ...] = field(repr=False)


def read_callgrind(path: Path, objects: Collection[str]) -> CallgrindCounts:
    """Read the counts of some objects (by the names that the file calls them) and the totals.

    Raises:
        RunInvalid: it is no such file, was cut off, or has a line that is not understood; the message has its number.
    """
    with opened(path, RunInvalid) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", errors="surrogateescape")
        return _Reader(path, frozenset(objects)).read(text)


class _Reader:
    """Goes through a file once; what it knows so far."""

    def __init__(self, path: Path, objects: frozenset[str]) -> None:
        self._path = path
        self._objects = objects
        self._number = 0
        self._events: tuple[str, ...] = ()
        self._totals: tuple[int, ...] = ()
        self._caches: list[str] = []
        self._costs: dict[tuple[str, int], tuple[int, ...]] = {}
        self._calls: list[CallCost] = []
        self._object = ""
        self._called_object = ""
        self._target = -1
        """What the next line of costs was called for; -1: it is the costs of the instruction itself."""

    def read(self, lines: Iterable[str]) -> CallgrindCounts:
        for self._number, line in enumerate(lines, start=1):
            text = line.rstrip("\n")
            if self._number == 1 and not text.startswith("# callgrind format"):
                raise self._wrong("the file is not of the callgrind format")
            if text.startswith("0x"):
                self._cost_line(text)
            elif text and not text.startswith("#"):
                self._other_line(text)
        if not self._events or not self._totals:
            raise self._wrong("the file ends before its totals; valgrind did not finish")
        return CallgrindCounts(self._events, self._totals, tuple(self._caches), self._costs, tuple(self._calls))

    def _wrong(self, what: str) -> RunInvalid:
        return RunInvalid(f"{self._path}, line {self._number}: {what}")

    def _other_line(self, text: str) -> None:
        key, separator, value = text.partition("=")
        if separator and key in {"ob", "cob"}:
            if key == "ob":
                self._object = value
            self._called_object = value
        elif separator and key == "fn":
            self._called_object = self._object
        elif separator and key == "calls":
            self._target = self._address(value.partition(" ")[2])
        else:
            self._header_line(text)

    def _header_line(self, text: str) -> None:
        key, _, value = text.partition(": ")
        if key == "events":
            self._events = tuple(value.split())
            if not 0 < len(self._events) <= _MOST_EVENTS or len(set(self._events)) < len(self._events):
                raise self._wrong(f"bad list of events {value[:80]!r}")
        elif key == "positions" and value.strip() != "instr":
            raise self._wrong("costs are not by instruction alone; record with --dump-instr=yes --dump-line=no")
        elif key == "desc" and " cache: " in value:
            self._caches.append(value)
        elif key == "totals":
            self._totals = self._numbers(value.split())

    def _cost_line(self, text: str) -> None:
        address, *costs = text.split()
        target, self._target = self._target, -1
        called_object, self._called_object = self._called_object, self._object
        if target >= 0:
            if self._object in self._objects:
                numbers = self._numbers(costs)
                self._calls.append(CallCost(self._object, self._address(address), called_object, target, numbers))
        elif self._object in self._objects:
            key = self._object, self._address(address)
            known = self._costs.get(key, (0,) * len(self._events))
            self._costs[key] = tuple(map(sum, zip(known, self._numbers(costs), strict=True)))

    def _address(self, text: str) -> int:
        try:
            address = int(text.strip(), 16)
        except ValueError:
            address = -1
        if not 0 <= address < 1 << 63:
            raise self._wrong(f"{text[:40]!r} is no address")
        return address

    def _numbers(self, texts: list[str]) -> tuple[int, ...]:
        """Costs in the order of the events; what is left out at the end is 0."""
        if len(texts) > len(self._events):
            raise self._wrong("more costs than events")
        if not all(text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS for text in texts):
            raise self._wrong("a cost that is no number")
        return (*map(int, texts), *(0 for _ in range(len(self._events) - len(texts))))
