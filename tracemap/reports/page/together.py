"""How what was measured of the calls of sites goes together: correlations and heat maps, in the cards of sites."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from tracemap.attribution.timeline import Excerpt
from tracemap.attribution.together import SiteTogether
from tracemap.reports.costed import CostedMap
from tracemap.reports.page.pictures import CallsTogether, Pair

_PARTS: Final = 10_000
"""Of a probability: percent are shown, and a hundredth of one is something."""


def together_of(costed: CostedMap, excerpts: Sequence[Excerpt]) -> Mapping[str, CallsTogether]:
    """By site, of the first run that tells it; left out are sites of few calls, and metrics that not all runs have."""
    numbers = {metric.name: number for number, metric in enumerate(costed.metrics)}
    found: dict[str, CallsTogether] = {}
    for run, excerpt in enumerate(excerpts, start=1):
        for site, measured in excerpt.together.sites.items():
            if site not in found and sum(each.name in numbers for each in measured.series) > 1:
                found[site] = _site(run, excerpt.together.one_of, measured, numbers)
    return found


def _site(run: int, one_of: int, measured: SiteTogether, numbers: Mapping[str, int]) -> CallsTogether:
    shown = [each for each in measured.series if each.name in numbers]
    places = {each.name: place for place, each in enumerate(shown)}
    series = tuple((numbers[each.name], tuple(map(_whole, each.bucket_means))) for each in shown)
    pairs = tuple(
        Pair(
            places[pair.of],
            places[pair.given],
            _whole(100 * pair.correlation),
            tuple(round(_PARTS * probability) for probability in pair.table.ravel().tolist()),
        )
        for pair in measured.pairs
        if pair.of in places and pair.given in places
    )
    return CallsTogether(run, measured.calls, one_of, series, pairs)


def _whole(value: float) -> int | None:
    return round(value) if math.isfinite(value) else None
