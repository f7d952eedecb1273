"""The machine's speed limits: a matrix product, and copies of several sizes, each the best of many short attempts.

Both are those of one core: the products are too small for numpy to share them out over threads, whose waiting for each
other would be measured. Times are the thread's own, so that what other programs take does not count. They still slow
down what shares a core, its clock or memory with them; attempts are short, and can be spread over other work, so that
one falls between. The rule `model` needs the ratio of the two.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from tracemap.capture.geometry import data_cache_sizes
from tracemap.measurements.model import CacheSpeed, Peaks

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
