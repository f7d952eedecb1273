"""The machine: name, caches, and peak speeds."""

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

from tracemap.core.errors import UsageInvalid, start_of
from tracemap.core.units import UNKNOWN, Integer, Text, format_bytes
from tracemap.runs.model import CacheSpeed, Machine, Peaks

# ---- cache geometry
#
# Caches for the simulator, from the kernel or the user.


SYSFS: Final = Path("/sys/devices/system/cpu/cpu0/cache")
NAMES = ("I1", "D1", "LL")
"""The simulated caches: first-level instruction and data caches, and the last level."""

_SPEC = re.compile(r"(I1|D1|LL)=(\d{1,18}),(\d{1,18}),(\d{1,18})", re.ASCII)
_LEAST_LINE = 32
"""Shortest line. Valgrind's widest load is an AVX register, and an access must fit into a line."""
_LEAST_BYTES, _MOST_BYTES = 512, (1 << 31) - 1
"""Valgrind holds sizes in signed 32-bit integers."""
_LONGEST_QUOTE: Final = 60
_KIB = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True, slots=True)
class Cache:
    """A cache: name, size in bytes, ways (associativity), and line length in bytes."""

    name: str
    size: int
    ways: int
    line: int

    @property
    def sets(self) -> int:
        """Number of sets; the simulator needs a power of two."""
        return self.size // (self.ways * self.line)

    @property
    def flag(self) -> str:
        """The simulator's option for this cache."""
        return f"--{self.name}={self.size},{self.ways},{self.line}"

    @property
    def fault(self) -> str:
        """Why this cache cannot be simulated; "" if it can."""
        if self.line < _LEAST_LINE or not _power_of_two(self.line):
            return f"lines of {self.line} bytes; they must be a power of two of at least {_LEAST_LINE}"
        if not _LEAST_BYTES <= self.size <= _MOST_BYTES or self.ways < 1:
            return f"{self.size} bytes in {self.ways} ways; the size must be {_LEAST_BYTES} to {_MOST_BYTES} bytes"
        if self.size <= self.line:
            return f"{self.size} bytes hold only a single line of {self.line}"
        if self.sets * self.ways * self.line != self.size or not _power_of_two(self.sets):
            return f"{self.size} bytes in {self.ways} ways with lines of {self.line} give no power of two of sets"
        return ""

    def __str__(self) -> str:
        return f"{self.name} {format_bytes(self.size)} {self.ways}-way {self.line} B"


@dataclass(frozen=True, slots=True)
class Geometry:
    """The caches to simulate (none: valgrind asks the processor itself), and the source of this information."""

    caches: tuple[Cache, ...]
    source: str


def geometry(specs: Sequence[str], sysfs: Path = SYSFS) -> Geometry:
    """The geometry to simulate: the machine's, overridden by the user's.

    Args:
        specs: the user's caches, `D1=SIZE,WAYS,LINE`, with name I1, D1 or LL and numbers in bytes.
        sysfs: the kernel's folder about a processor's caches.

    Raises:
        UsageInvalid: a spec is malformed, or cannot be simulated.
    """
    given_caches = {cache.name: cache for cache in map(_cache_of_spec, specs)}
    if len(given_caches) < len(specs):
        raise UsageInvalid(f"a cache is given twice: {' '.join(specs)}")
    if len(given_caches) == len(NAMES):
        return Geometry(tuple(given_caches[name] for name in NAMES), "as given")
    known = _kernel_caches(sysfs)
    caches = tuple(given_caches.get(name) or known[name][0] for name in NAMES if name in given_caches or name in known)
    sources = ["this machine's, from the kernel" if known else "the processor's, read by valgrind"]
    sources += [note for name, (_, note) in known.items() if note and name not in given_caches]
    if given_caches:
        sources.append(f"{', '.join(sorted(given_caches))} as given")
    return Geometry(caches, "; ".join(sources))


def line_bytes(caches: Sequence[Cache]) -> Integer:
    """Line length of the last-level cache; UNKNOWN if it is not in the list."""
    return next((cache.line for cache in caches if cache.name == "LL"), UNKNOWN)


def data_cache_sizes(sysfs: Path = SYSFS) -> tuple[int, ...]:
    """Sizes in bytes of all data caches, from the first level on; empty if the kernel does not report them."""
    size_by_level: dict[int, int] = {}
    for folder in sorted(sysfs.glob("index*")):
        try:
            if _text(folder / "type") in ("Data", "Unified"):
                size_by_level[int(_text(folder / "level"))] = _number(folder / "size")
        except (OSError, ValueError):
            continue
    sizes = [size_by_level[level] for level in sorted(size_by_level)]
    return tuple(sizes) if sizes == sorted(set(sizes)) and all(size > 0 for size in sizes) else ()


def _cache_of_spec(spec: str) -> Cache:
    match = _SPEC.fullmatch(spec)
    if match is None:
        shown = start_of(spec, _LONGEST_QUOTE)
        raise UsageInvalid(f"{shown!r} is no cache; write NAME=BYTES,WAYS,LINE with NAME I1, D1 or LL: D1=32768,8,64")
    cache = Cache(match[1], *(int(number) for number in match.groups()[1:]))
    if cache.fault:
        raise UsageInvalid(f"{spec}: cannot be simulated: {cache.fault}")
    return cache


def _kernel_caches(sysfs: Path) -> dict[str, tuple[Cache, str]]:
    """The kernel's caches by name, with a note if adjusted for the simulator; empty if not all are plausible."""
    cache_by_name: dict[str, tuple[int, Cache]] = {}
    for folder in sorted(sysfs.glob("index*")):
        try:
            level, kind = int(_text(folder / "level")), _text(folder / "type")
            size, ways, line = (_number(folder / name) for name in _FILES)
        except (OSError, ValueError):
            continue
        # The simulated caches that this one is; the last level may also be the first.
        names = [*(_FIRST_LEVEL.get(kind, ()) if level == 1 else ()), *(["LL"] if kind == "Unified" else [])]
        for name in names:
            if name != "LL" or level >= cache_by_name.get("LL", (0, None))[0]:
                cache_by_name[name] = level, Cache(name, size, ways, line)
    simulated = {name: _as_simulated(cache) for name, (_, cache) in cache_by_name.items()}
    whole = set(simulated) == set(NAMES) and not any(cache.fault for cache, _ in simulated.values())
    return simulated if whole and simulated["LL"][0].size >= simulated["D1"][0].size else {}


_FIRST_LEVEL = {"Instruction": ["I1"], "Data": ["D1"], "Unified": ["I1", "D1"]}
_FILES = ("size", "ways_of_associativity", "coherency_line_size")


def _text(path: Path) -> str:
    return path.read_text(encoding="ascii").strip()


def _number(path: Path) -> int:
    text = _text(path)
    unit = text[-1:] if text[-1:] in _KIB else ""
    return int(text.removesuffix(unit)) * _KIB[unit]


def _as_simulated(cache: Cache) -> tuple[Cache, str]:
    """The cache, or a similar one with a power of two of sets, adjusted as valgrind does; and a note."""
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
# Identity of the machine for a run's header; it distinguishes runs of different machines.


_CPUINFO: Final = Path("/proc/cpuinfo")
_ARM: Final = ("CPU implementer", "CPU part", "CPU variant")
"""Linux has no names of ARM processors, but numbers (Documentation/arch/arm64/cpu-feature-registers.rst)."""


def machine_identity() -> Machine:
    """The machine's name and processor, and the current time."""
    return Machine(
        host=socket.gethostname() or UNKNOWN,
        cpu_model=cpu_model(_CPUINFO),
        processors=os.cpu_count() or UNKNOWN,
        recorded_ns=time.time_ns(),
    )


def cpu_model(cpuinfo: Path) -> Text:
    """The name of the first processor, or its numbers if it has no name."""
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return UNKNOWN
    first = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    fields = {name.strip(): value.strip() for name, _, value in first}
    if name := fields.get("model name"):
        return " ".join(name.split())
    numbers = [f"{name} {fields[name]}" for name in _ARM if fields.get(name)]
    return ", ".join(numbers) if numbers else UNKNOWN


# ---- peaks
#
# Peak speeds of one core: a matrix product, and copies of several sizes. Each is the best of many short attempts.
#
# The products are too small for numpy to use several threads, whose synchronization would be measured. Times are the
# thread's CPU time, so time used by other programs does not count. Other programs still slow down the core, its clock
# and memory. Attempts are short and can be spread over other work, so that some of them run on an idle core. The rule
# `model` needs the ratio of both peaks.


_MATRIX_SIZE: Final = 64
_PRODUCTS: Final = 10
_COPY_BYTES: Final = 8 << 20
_BUDGET_NS: Final = 30_000_000
_CACHE_BUDGET_NS: Final = 5_000_000
_MOST_COPIED: Final = 128 << 20
"""Most bytes that a copy reads and writes; a larger cache counts as fast as the next level."""
_STEADY: Final = 1.2
"""If the median of the attempts is slower than the best by this factor, the machine was busy."""


class PeakMeter:
    """Measures peaks in float32, a little in each attempt; the best of all attempts counts."""

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
        """Why the peaks may be too low; "" if the attempts agree."""
        for what, times in (("a matrix product", self._products), ("a copy", self._copies)):
            if times and statistics.median(times) > _STEADY * min(times):
                ratio = f"{max(times) / min(times):.1f}"
                return (
                    f"the machine was busy: {what} took up to {ratio} times as long as the fastest, so its peaks "
                    "may be too low, and % of roofline too high"
                )
        return ""


def measure_peaks() -> Peaks:
    """The peaks by a single attempt."""
    return PeakMeter().look()


def _cache_speeds(sizes: Sequence[int]) -> Iterator[CacheSpeed]:
    """Speed of reading, negating and writing data that fits into the next cache level, but not into this one."""
    import numpy as np

    for size, following in zip(sizes, (*sizes[1:], _MOST_COPIED), strict=True):
        moved = min(max(2 * size, min(16 * size, following // 2)), _MOST_COPIED)
        source = np.ones(moved // 8, np.float32)
        target = np.zeros_like(source)
        passed_ns = _fastest_ns(partial(np.negative, source, out=target), _CACHE_BUDGET_NS)
        yield CacheSpeed(size, max(1, round(2 * source.nbytes * 1e9 / passed_ns)))


def _fastest_ns(work: Callable[[], object], budget_ns: int = _BUDGET_NS) -> int:
    work()  # the first call pays for fresh pages
    times: list[int] = []
    while sum(times) < budget_ns:
        begin = time.thread_time_ns()
        work()
        times.append(max(1, time.thread_time_ns() - begin))
    return min(times)
