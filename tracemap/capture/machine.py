"""The machine: its name, caches, and peak speeds."""

from __future__ import annotations

import os
import re
import socket
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from tracemap.errors import UsageInvalid, start_of
from tracemap.measurements.model import CacheSpeed, Machine, Peaks
from tracemap.units import UNKNOWN, Integer, Text, format_bytes

# ---- geometry
#
# The caches of a machine, as a simulator takes them: what the kernel says of them, or the user.


SYSFS: Final = Path("/sys/devices/system/cpu/cpu0/cache")
NAMES = ("I1", "D1", "LL")
"""The caches that are simulated: first-level instructions and data, and the last level."""

_SPEC = re.compile(r"(I1|D1|LL)=(\d{1,18}),(\d{1,18}),(\d{1,18})", re.ASCII)
_LEAST_LINE = 32
"""As long as what one instruction loads: Valgrind knows no wider registers than those of AVX."""
_LEAST_BYTES, _MOST_BYTES = 512, (1 << 31) - 1
"""Valgrind holds a size in 32 bits with their sign."""
_LONGEST_SAID: Final = 60
_KIB = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True, slots=True)
class Cache:
    """A cache: which, its size in bytes, its ways (associativity) and the bytes of a line."""

    name: str
    size: int
    ways: int
    line: int

    @property
    def sets(self) -> int:
        """How many sets it has; the simulator wants a power of two."""
        return self.size // (self.ways * self.line)

    @property
    def flag(self) -> str:
        """The simulator's option for it."""
        return f"--{self.name}={self.size},{self.ways},{self.line}"

    @property
    def fault(self) -> str:
        """What keeps it from being simulated, "" if nothing does."""
        if self.line < _LEAST_LINE or not _power_of_two(self.line):
            return f"lines of {self.line} bytes; they must be a power of two of at least {_LEAST_LINE}"
        if not _LEAST_BYTES <= self.size <= _MOST_BYTES or self.ways < 1:
            return f"{self.size} bytes in {self.ways} ways are none of {_LEAST_BYTES} to {_MOST_BYTES} bytes"
        if self.size <= self.line:
            return f"{self.size} bytes hold a single line of {self.line}"
        if self.sets * self.ways * self.line != self.size or not _power_of_two(self.sets):
            return f"{self.size} bytes in {self.ways} ways with lines of {self.line} are no power of two of sets"
        return ""

    def __str__(self) -> str:
        return f"{self.name} {format_bytes(self.size)} {self.ways}-way {self.line} B"


@dataclass(frozen=True, slots=True)
class Geometry:
    """The caches to simulate, none where valgrind is to ask the processor itself, and where that was learnt."""

    caches: tuple[Cache, ...]
    source: str


def geometry(specs: Sequence[str], sysfs: Path = SYSFS) -> Geometry:
    """The geometry to simulate: the machine's, with what the user gives instead.

    Args:
        specs: the user's, each `D1=SIZE,WAYS,LINE` with name I1, D1 or LL and bytes.
        sysfs: the kernel's folder on a processor's caches.

    Raises:
        UsageInvalid: a spec is none, or cannot be simulated.
    """
    given = {cache.name: cache for cache in map(_given, specs)}
    if len(given) < len(specs):
        raise UsageInvalid(f"a cache is given twice: {' '.join(specs)}")
    if len(given) == len(NAMES):
        return Geometry(tuple(given[name] for name in NAMES), "as given")
    known = _of_kernel(sysfs)
    notes = {name: note for name, (_, note) in known.items() if note and name not in given}
    caches = tuple(given.get(name) or known[name][0] for name in NAMES if name in given or name in known)
    if not known:
        source = "of the processor, as valgrind reads it"
    else:
        source = "; ".join(["of this machine, as the kernel tells", *notes.values()])
    return Geometry(caches, source + "; " + ", ".join(sorted(given)) + " as given" if given else source)


def line_bytes(caches: Sequence[Cache]) -> Integer:
    """How long a line of the last-level cache is; unknown where it is not among them."""
    return next((cache.line for cache in caches if cache.name == "LL"), UNKNOWN)


def data_cache_sizes(sysfs: Path = SYSFS) -> tuple[int, ...]:
    """How many bytes each cache holds that data goes through, from the first level on; none where that is not told."""
    found: dict[int, int] = {}
    for folder in sorted(sysfs.glob("index*")):
        try:
            if _text(folder / "type") in ("Data", "Unified"):
                found[int(_text(folder / "level"))] = _number(folder / "size")
        except (OSError, ValueError):
            continue
    sizes = [found[level] for level in sorted(found)]
    return tuple(sizes) if sizes == sorted(set(sizes)) and all(size > 0 for size in sizes) else ()


def _given(spec: str) -> Cache:
    match = _SPEC.fullmatch(spec)
    if match is None:
        shown = start_of(spec, _LONGEST_SAID)
        raise UsageInvalid(f"{shown!r} is no cache; write NAME=BYTES,WAYS,LINE with NAME I1, D1 or LL: D1=32768,8,64")
    cache = Cache(match[1], *(int(number) for number in match.groups()[1:]))
    if cache.fault:
        raise UsageInvalid(f"{spec}: cannot be simulated: {cache.fault}")
    return cache


def _of_kernel(sysfs: Path) -> dict[str, tuple[Cache, str]]:
    """The kernel's caches by name, each with a note where it had to be changed; none if not all make sense."""
    found: dict[str, tuple[int, Cache]] = {}
    for folder in sorted(sysfs.glob("index*")):
        try:
            level, kind = int(_text(folder / "level")), _text(folder / "type")
            size, ways, line = (_number(folder / name) for name in _FILES)
        except (OSError, ValueError):
            continue
        for name in _names(level, kind):
            if name != "LL" or level >= found.get("LL", (0, None))[0]:
                found[name] = level, Cache(name, size, ways, line)
    simulated = {name: _simulated(cache) for name, (_, cache) in found.items()}
    whole = set(simulated) == set(NAMES) and not any(cache.fault for cache, _ in simulated.values())
    return simulated if whole and simulated["LL"][0].size >= simulated["D1"][0].size else {}


_FIRST_LEVEL = {"Instruction": ["I1"], "Data": ["D1"], "Unified": ["I1", "D1"]}
_FILES = ("size", "ways_of_associativity", "coherency_line_size")


def _names(level: int, kind: str) -> list[str]:
    """Which of the simulated caches one is; the last level may be the first one too."""
    first = _FIRST_LEVEL.get(kind, []) if level == 1 else []
    return [*first, *(["LL"] if kind == "Unified" else [])]


def _text(path: Path) -> str:
    return path.read_text(encoding="ascii").strip()


def _number(path: Path) -> int:
    text = _text(path)
    unit = text[-1:] if text[-1:] in _KIB else ""
    return int(text.removesuffix(unit)) * _KIB[unit]


def _simulated(cache: Cache) -> tuple[Cache, str]:
    """The cache, or one of about its size that has a power of two of sets, as valgrind itself does it; and a note."""
    if not cache.fault or cache.ways < 1 or cache.line < 1 or not cache.sets:
        return cache, ""
    sets = 1 << (cache.sets.bit_length() - 1)
    ways = max(1, round(cache.size / (sets * cache.line)))
    changed = replace(cache, size=sets * ways * cache.line, ways=ways)
    return changed, f"{cache.name} is {format_bytes(cache.size)} {cache.ways}-way, which cannot be simulated exactly"


def _power_of_two(number: int) -> bool:
    return number > 0 and not number & (number - 1)


# ---- machine
#
# The machine that a run is recorded on, as the header tells it: what runs of many machines are told apart by.


_CPUINFO: Final = Path("/proc/cpuinfo")
_ARM: Final = ("CPU implementer", "CPU part", "CPU variant")
"""Processors of ARM have no names in Linux, but numbers (Documentation/arch/arm64/cpu-feature-registers.rst)."""


def this_machine() -> Machine:
    """Its name, its processor, and what its clock says now."""
    return Machine(
        host=socket.gethostname() or UNKNOWN,
        cpu_model=cpu_model(_CPUINFO),
        processors=os.cpu_count() or UNKNOWN,
        recorded_ns=time.time_ns(),
    )


def cpu_model(cpuinfo: Path) -> Text:
    """What the first processor calls itself, or its numbers where it has no name."""
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return UNKNOWN
    first = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    said = {name.strip(): value.strip() for name, _, value in first}
    if name := said.get("model name"):
        return " ".join(name.split())
    numbers = [f"{name} {said[name]}" for name in _ARM if said.get(name)]
    return ", ".join(numbers) if numbers else UNKNOWN


# ---- peaks
#
# The machine's speed limits: a matrix product, and copies of several sizes, each the best of many short attempts.
#
# Both are those of one core: the products are too small for numpy to share them out over threads, whose waiting for
# each other would be measured. Times are the thread's own, so that what other programs take does not count. They still
# slow down what shares a core, its clock or memory with them; attempts are short, and can be spread over other work,
# so that one falls between. The rule `model` needs the ratio of the two.


_MATRIX_SIZE: Final = 64
_PRODUCTS: Final = 10
_COPY_BYTES: Final = 8 << 20
_BUDGET_NS: Final = 30_000_000
_CACHE_BUDGET_NS: Final = 5_000_000
_MOST_COPIED: Final = 128 << 20
"""Bytes that a copy reads and writes at most; a cache that holds more is taken to be as fast as what lies behind it."""
_STEADY: Final = 1.2
"""Looks whose median is this many times as slow as the best say that the machine was busy, and the best is doubtful."""


class PeakMeter:
    """Measures the limits in float32, a little at each look; the best of all looks counts."""

    def __init__(self) -> None:
        self._products: list[int] = []
        self._copies: list[int] = []
        self._caches: tuple[CacheSpeed, ...] = ()

    def look(self) -> Peaks:
        """Measure for a twentieth of a second; returns the best so far."""
        import numpy as np

        matrix = np.ones((_MATRIX_SIZE, _MATRIX_SIZE), np.float32)
        product = np.empty_like(matrix)
        source = np.ones(_COPY_BYTES // 4, np.float32)
        target = np.zeros_like(source)

        def multiply() -> None:
            for _ in range(_PRODUCTS):
                np.matmul(matrix, matrix, out=product)

        self._products.append(_fastest_ns(multiply))
        self._copies.append(_fastest_ns(lambda: np.copyto(target, source)))
        self._caches = self._caches or tuple(_cache_speeds(data_cache_sizes()))
        multiply_s, copy_s = min(self._products) / 1e9 / _PRODUCTS, min(self._copies) / 1e9
        operations, moved = round(2 * _MATRIX_SIZE**3 / multiply_s), round(2 * _COPY_BYTES / copy_s)
        return Peaks(operations, moved, "measured", self._caches)

    @property
    def doubt(self) -> str:
        """Why the best may not be what the machine can do, "" where looks agree."""
        for what, times in (("a matrix product", self._products), ("a copy", self._copies)):
            if times and statistics.median(times) > _STEADY * min(times):
                ratio = f"{max(times) / min(times):.1f}"
                return (
                    f"the machine was busy: {what} took up to {ratio} times as long as the fastest, so that its peaks "
                    "may be too low, and shares of attainable too high"
                )
        return ""


def measure_peaks() -> Peaks:
    """The limits by a single look."""
    return PeakMeter().look()


def _cache_speeds(sizes: Sequence[int]) -> Iterator[CacheSpeed]:
    """How fast data that does not fit into one cache, but into the next, is read, negated and written."""
    import numpy as np

    for size, following in zip(sizes, (*sizes[1:], _MOST_COPIED), strict=True):
        moved = min(max(2 * size, min(16 * size, following // 2)), _MOST_COPIED)
        source = np.ones(moved // 8, np.float32)
        target = np.zeros_like(source)
        passed_ns = _fastest_ns(partial(np.negative, source, out=target), _CACHE_BUDGET_NS)
        yield CacheSpeed(size, max(1, round(2 * source.nbytes * 1e9 / passed_ns)))


def _fastest_ns(work: Callable[[], object], budget_ns: int = _BUDGET_NS) -> int:
    work()  # the first one pays for fresh pages
    times: list[int] = []
    while sum(times) < budget_ns:
        begin = time.thread_time_ns()
        work()
        times.append(max(1, time.thread_time_ns() - begin))
    return min(times)
