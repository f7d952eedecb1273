"""Reader of valgrind's callgrind counts by instruction: a subset of `callgrind format, version 1`.

Callgrind simulates caches as cachegrind does, and reports the object and address of each event, without debug
information. The file must be written with `--dump-instr=yes --dump-line=no --compress-strings=no --compress-pos=no`, so
that every line can be read by itself. Grammar: valgrind's manual, "Callgrind Format Specification".
"""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tracemap.core.errors import RunInvalid
from tracemap.core.files import open_stored_file

_MOST_EVENTS = 64
_MOST_DIGITS = 18
"""Most digits of a cost: a number with as many fits into 64 bits, and so does the sum of a few."""


@dataclass(frozen=True, slots=True)
class CallCost:
    """The inclusive cost of the calls from one instruction.

    `target` is the called address, in `target_object`; `costs` are in the order of `CallgrindCounts.events`.
    """

    object: str
    address: int
    target_object: str
    target: int
    costs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CallgrindCounts:
    """Callgrind's counts: totals of the program, and costs by object and address for the requested objects.

    Addresses are in the address space of the object's symbols. `caches` are callgrind's descriptions of the caches.
    """

    events: tuple[str, ...]
    totals: tuple[int, ...]
    caches: tuple[str, ...]
    costs: dict[tuple[str, int], tuple[int, ...]] = field(repr=False)
    calls: tuple[CallCost, ...] = field(repr=False)


def read_callgrind(path: Path, objects: Collection[str]) -> CallgrindCounts:
    """Read the totals, and the counts of some objects, given by their names in the file.

    Raises:
        RunInvalid: the file has another format, is truncated, or has an invalid line; the message has its number.
    """
    with open_stored_file(path, RunInvalid) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", errors="surrogateescape")
        return _Reader(path, frozenset(objects)).read(text)


class _Reader:
    """One pass over a file, with its state."""

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
        """The called address if the next line has the costs of a call; -1 if it has the instruction's own costs."""

    def read(self, lines: Iterable[str]) -> CallgrindCounts:
        for self._number, line in enumerate(lines, start=1):
            text = line.rstrip("\n")
            if self._number == 1 and not text.startswith("# callgrind format"):
                raise self._wrong("the file is not in callgrind format")
            if text.startswith("0x"):
                self._cost_line(text)
            elif text and not text.startswith("#"):
                self._other_line(text)
        if not self._events or not self._totals:
            raise self._wrong("the file ends before its totals; valgrind did not finish")
        return CallgrindCounts(self._events, self._totals, tuple(self._caches), self._costs, tuple(self._calls))

    def _wrong(self, fault: str) -> RunInvalid:
        return RunInvalid(f"{self._path}, line {self._number}: {fault}")

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
            raise self._wrong("costs are not by instruction only; record with --dump-instr=yes --dump-line=no")
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
            raise self._wrong(f"{text[:40]!r} is not an address")
        return address

    def _numbers(self, texts: list[str]) -> tuple[int, ...]:
        """Costs in the order of the events; missing ones at the end are 0."""
        if len(texts) > len(self._events):
            raise self._wrong("more costs than events")
        if not all(text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS for text in texts):
            raise self._wrong("a cost is not a number")
        return (*map(int, texts), *(0 for _ in range(len(self._events) - len(texts))))
