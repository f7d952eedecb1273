"""The machine's speed limits, measured in a tenth of a second of its time: a matrix product, and a copy larger than L2.

Both are those of one core: the products are too small for numpy to share them out over threads, whose waiting for each
other would be measured. Times are the thread's own, so that what other programs take does not count. The rule `model`
needs the ratio of the two.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from tracemap.measurements.model import Peaks

_MATRIX_SIZE: Final = 64
_PRODUCTS: Final = 100
_COPY_BYTES: Final = 8 << 20
_BUDGET_NS: Final = 30_000_000


def measure_peaks() -> Peaks:
    """The best of many attempts, in float32."""
    import numpy as np

    matrix = np.ones((_MATRIX_SIZE, _MATRIX_SIZE), np.float32)
    product = np.empty_like(matrix)
    source = np.ones(_COPY_BYTES // 4, np.float32)
    target = np.zeros_like(source)

    def multiply() -> None:
        for _ in range(_PRODUCTS):
            np.matmul(matrix, matrix, out=product)

    multiply_s = _fastest_ns(multiply) / 1e9 / _PRODUCTS
    copy_s = _fastest_ns(lambda: np.copyto(target, source)) / 1e9
    return Peaks(round(2 * _MATRIX_SIZE**3 / multiply_s), round(2 * _COPY_BYTES / copy_s), "measured")


def _fastest_ns(work: Callable[[], object]) -> int:
    work()  # the first one pays for fresh pages
    times: list[int] = []
    while sum(times) < _BUDGET_NS:
        begin = time.thread_time_ns()
        work()
        times.append(max(1, time.thread_time_ns() - begin))
    return min(times)
