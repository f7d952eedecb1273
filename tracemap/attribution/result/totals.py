"""Calls and metric sums per place: a target of several places is split over them evenly."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tracemap.attribution.model import MOST_SLOWEST, SlowCall, slowness
from tracemap.attribution.scan.scan import Scan
from tracemap.attribution.steps.counts import StepCounts
from tracemap.graph.model import TraceGraph
from tracemap.machine.images import Image
from tracemap.measurements.model import SAMPLES, TIME_METRICS
from tracemap.units import UNKNOWN, Integer, split_by_largest_remainder, sum_of


@dataclass(slots=True)
class PlaceTotal:
    """What happened at a site or transfer, and the numbers of the targets that it is of.

    `sums` are without what disturbed its calls, which is `disturbed`, by metric name.
    `absent`: by metric name how many events of its targets have no value. `tiles`: the workgroups of its calls.
    `split_evenly`: some of the events could have been another place's.
    """

    calls: int = 0
    tiles: Integer = 0
    absent: Counter[str] = field(default_factory=Counter)
    sums: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    disturbed: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    targets: set[int] = field(default_factory=set)
    split_evenly: bool = False


@dataclass(frozen=True, slots=True)
class Totals:
    """By place; those that nothing happened at have none."""

    scan: Scan
    places: Mapping[str, PlaceTotal]

    @property
    def tells_calls(self) -> bool:
        """Whether the runs have events: samples alone say where time passes, not how often anything was called."""
        return bool(self.scan.by_target) or not self.scan.step_rows

    def calls(self, place: str) -> Integer:
        """How often a place was called."""
        return self.at(place).calls if self.tells_calls else UNKNOWN

    def at(self, place: str) -> PlaceTotal:
        """The total of a place, be it nothing."""
        return self.places.get(place) or PlaceTotal()

    def parts_of(self, target: int, metric: str) -> tuple[Sequence[str], Sequence[int]]:
        """The sites of a target, and how much of a metric of steps is each one's.

        Samples fall where time passes; counts of a simulator are about the same in every workgroup of the same code, of
        which a call has as many as the sizes of its operands ask for.
        """
        sites = self.scan.targets[target].places
        _, amounts = self._spread(sites, metric)
        return sites, amounts

    def spread_by(self, metric: str) -> str:
        """What of a metric of steps names only kernels of several sites is spread over these by, in words."""
        number = [each.name for each in self.scan.step_metrics].index(metric)
        targets = {row.target for row in self.scan.step_rows if row.target >= 0 and row.values[number]}
        places = [self.scan.targets[target].places for target in targets]
        return " and ".join(sorted({self._spread(sites, metric)[0] for sites in places if len(sites) > 1}))

    def _spread(self, sites: Sequence[str], metric: str) -> tuple[str, Sequence[int]]:
        for time in TIME_METRICS if metric == SAMPLES else ():
            costs = [self.at(site).sums.get(time, 0) for site in sites]
            if any(costs):
                return "by the time that they took", costs
        tiles = [count for site in sites if isinstance(count := self.at(site).tiles, int)]
        if len(tiles) == len(sites) and any(tiles):
            return "by how many workgroups they ran", tiles
        calls = [self.at(site).calls for site in sites]
        if any(calls):
            return "by how often they ran", calls
        return "in equal parts, as nothing tells how often they ran", [1] * len(sites)

    def slowest(self, place: str) -> tuple[SlowCall, ...]:
        """The slowest calls of all targets of a place."""
        targets = sorted(self.at(place).targets)
        calls = [call for target in targets for call in self.scan.slowest.get(target, ())]
        if len(targets) == 1 and calls and calls[-1].time_ns is not UNKNOWN:
            return self.scan.slowest[targets[0]]  # which are sorted already
        return tuple(sorted(calls, key=slowness)[:MOST_SLOWEST])

    @property
    def pools(self) -> list[frozenset[int]]:
        """The sets of targets whose events places have."""
        return [frozenset(total.targets) for total in self.places.values()]

    def steps(self, graph: TraceGraph, images: Callable[[], Sequence[Image]]) -> StepCounts:
        """What was seen inside of kernels; of a target that is several sites, each has a part."""
        names = [metric.name for metric in self.scan.step_metrics]
        rows = [row for row in self.scan.step_rows if row.target >= 0]
        return StepCounts(graph, names, rows, self.parts_of, images)


def totals(scan: Scan) -> Totals:
    """Split what each target has over its places."""
    places: dict[str, PlaceTotal] = defaultdict(PlaceTotal)
    for number, target in enumerate(scan.targets):
        if number not in scan.by_target:
            continue
        events, parts = scan.by_target[number], [places[place] for place in target.places]
        # Calls and metrics are split alike: the first places of a target get what cannot be divided.
        tiles = events.tiles
        of_tiles: Sequence[Integer] = [tiles] * len(parts) if tiles is UNKNOWN else _evenly(tiles, parts)
        for part, calls, tiles in zip(parts, _evenly(events.events, parts), of_tiles, strict=True):
            part.calls += calls
            part.tiles = sum_of((part.tiles, tiles))
            part.targets.add(number)
            part.split_evenly |= not target.exact
            part.absent.update(events.absent)
        for metric, total in events.worked.items():
            for part, share in zip(parts, _evenly(total, parts), strict=True):
                part.sums[metric] += share
        for metric, total in events.disturbed.items():
            for part, share in zip(parts, _evenly(total, parts), strict=True):
                part.disturbed[metric] += share
    return Totals(scan, dict(places))


def _evenly(total: int, places: Sequence[PlaceTotal]) -> Sequence[int]:
    """The parts of a total, one for each place."""
    return [total] if len(places) == 1 else split_by_largest_remainder(total, [1] * len(places))
