"""The machine's speed limits, measured in under a tenth of a second: a matrix product, and a copy larger than L2.

Both are those of one core: the products are too small for numpy to share them out over threads, whose waiting for each
other would be measured. The rule `model` needs the ratio of the two.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from tracemap.measurements.model import Peaks

_MATRIX_SIZE: Final = 64
_PRODUCTS: Final = 100
_COPY_BYTES: Final = 8 << 20
_BUDGET_S: Final = 0.03


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

    multiply_s = _fastest_s(multiply) / _PRODUCTS
    copy_s = _fastest_s(lambda: np.copyto(target, source))
    return Peaks(round(2 * _MATRIX_SIZE**3 / multiply_s), round(2 * _COPY_BYTES / copy_s), "measured")


def _fastest_s(work: Callable[[], object]) -> float:
    work()  # the first one pays for fresh pages
    fastest = float("inf")
    end = time.perf_counter() + _BUDGET_S
    while fastest == float("inf") or time.perf_counter() < end:
        begin = time.perf_counter()
        work()
        fastest = min(fastest, time.perf_counter() - begin)
    return fastest
