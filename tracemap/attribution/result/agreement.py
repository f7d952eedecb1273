"""Whether the ways of dividing a kernel over its ops say the same: samples, simulated instructions, machine code.

Each can be wrong where the others are right. So they are compared pairwise, and a difference beyond the errors of both
is named: two that err alike cannot hide it from the third.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from tracemap.attribution.model import Basis, Disagreement
from tracemap.attribution.weights import Weights
from tracemap.graph.program import Site

ERROR_OF: Mapping[Basis, float] = {Basis.SAMPLES: 0.15, Basis.SIMULATED: 0.15, Basis.CODE: 0.20}
"""By how much of a kernel a share may be off: what `make accuracy` holds each way to, for the code and some more."""


def disagreements(found: Sequence[tuple[Site, Mapping[Basis, Weights]]]) -> Iterator[Disagreement]:
    """The kernels that are divided differently, each once, by the site where the difference is largest.

    Args:
        found: the sites, with the weights of their members by each way that tells any.
    """
    worst: dict[str, tuple[float, Disagreement]] = {}
    for site, ways in found:
        for one, other in combinations(ways, 2):
            beyond, member = max(
                (_beyond(ways[one], ways[other], place, ERROR_OF[one] + ERROR_OF[other]), -place)
                for place in range(len(site.members))
            )
            if beyond > 0 and beyond > worst.get(site.kernel, (0.0,))[0]:
                shares = {way: _share(weights, -member) for way, weights in ways.items()}
                percent = {way: round(100 * share) for way, share in shares.items()}
                told = Disagreement(site.kernel, site.id, site.members[-member].op, percent)
                worst[site.kernel] = beyond, told
    for kernel in sorted(worst):
        yield worst[kernel][1]


def _share(weights: Weights, member: int) -> float:
    """A member's part of what is of ops."""
    whole = sum(weights.values[:-1])
    return weights.values[member] / whole if whole else 0.0


def _beyond(one: Weights, other: Weights, member: int, error: float) -> float:
    """By how much two shares differ more than chance and the errors allow."""
    low, high = sorted((_share(one, member), _share(other, member)))
    chance = sum(_chance(weights, member) for weights in (one, other))
    return round(high - low - error - chance, 9)  # so that shares which are alike, but for the last bit, are alike


def _chance(weights: Weights, member: int) -> float:
    """Half of the 95 % interval of a share that samples tell."""
    if not weights.sampled or not sum(weights.values):
        return 0.0
    low, high = weights.intervals(1_000_000)[member]
    return (high - low) / 2_000_000
