"""Series without their outliers: what lies far from its neighbours in time is brought near, before anything is fitted.

What is near is told by the level of the op on the host and a running median over nights, which keeps steps as they
are. Clipped costs, in place of left out ones, make estimates those of Huber (Annals of Mathematical Statistics 35,
1964, p. 73), while each series of a CPU model keeps the same weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from tracemap.store.series import Floats, median_of, scale_of

_WIDTH: Final = 7
"""Nights of the running median: a night, and three on either side."""
_CLIP: Final = 2.0
"""In standard deviations."""
_MANY_HOSTS: Final = 12
"""Of more hosts the median of each night is taken first: it is no longer moved by a few outliers."""
_ROUNDS: Final = 3
_LEAST_WEIGHT, _MOST_WEIGHT = 0.2, 5.0


@dataclass(frozen=True, slots=True)
class Cleaned:
    """Cells without outliers; `levels` of ops on hosts, `scales` of ops, and how much each host's cells weigh.

    `expected`: what cells are without noise, those that were not measured, too.
    """

    cells: Floats
    expected: Floats
    levels: Floats
    scales: Floats
    weights: Floats


def cleaned(cells: Floats) -> Cleaned:
    """Cells (op, host, night) brought near to their neighbours.

    A host that is noisier than others of its CPU model weighs less, for all ops alike.
    """
    smooth = np.zeros((cells.shape[0], cells.shape[2]))
    for _ in range(_ROUNDS):
        levels = median_of(cells - smooth[:, None, :])
        smooth = _running_median(cells - levels[:, :, None])
    rests = cells - levels[:, :, None] - smooth[:, None, :]
    scales = scale_of(rests.reshape(len(cells), -1))
    noise = median_of(scale_of(rests) / scales[:, None], 0)
    weights = np.clip(np.nan_to_num(noise, nan=1.0) ** -2, _LEAST_WEIGHT, _MOST_WEIGHT)
    widths = _CLIP * scales[:, None] / np.sqrt(weights)
    clipped = np.clip(rests, -widths[:, :, None], widths[:, :, None])
    expected = levels[:, :, None] + smooth[:, None, :]
    return Cleaned(expected + clipped, expected, levels, scales, weights)


def _running_median(rests: Floats) -> Floats:
    """Of each night and its neighbours, over all hosts; at the ends of as many nights. Where nothing is, of all."""
    if rests.shape[1] > _MANY_HOSTS:
        rests = median_of(rests, 1)[:, None]
    width = min(_WIDTH, rests.shape[2])
    windows = np.lib.stride_tricks.sliding_window_view(rests, width, axis=2)
    middles = median_of(np.moveaxis(windows, 1, 2).reshape(len(rests), windows.shape[2], -1))
    starts = np.clip(np.arange(rests.shape[2]) - width // 2, 0, middles.shape[1] - 1)
    smooth = middles[:, starts]
    whole = median_of(rests.reshape(len(rests), -1))[:, None]
    return np.nan_to_num(np.where(np.isnan(smooth), whole, smooth))
