"""A kernel alone beside the same kernel in its application, and what a difference points to.

Alone it has its processor and its caches for itself, and its data is where the last call left it. Where times differ,
the application is recorded again, on one worker, right behind the kernels: a difference that is gone then was the
machine's or the other workers'. What explains the rest is tried in the order of how surely it is known: a machine whose
peaks are others now than when the run was recorded; caches that are cold; a difference that most kernels have, which
the machine makes and not the kernel; calls so short that starting them counts; times that vary, here or in the run;
other workers. What none of them explains is called so.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tracemap.experiments.model import InApplication
from tracemap.units import UNKNOWN, Integer

ALIKE: Final = 1.2
"""Times within this factor of each other are the same: what two recordings of a site differ by (a fifth)."""
_SHORT_NS: Final = 5_000
_MOST_OF: Final = 5
"""Of fewer kernels nothing is said to be so of most."""


@dataclass(frozen=True, slots=True)
class SiteCalls:
    """The calls of a site in a run, and the median of their CPU time."""

    calls: int
    median_ns: int


@dataclass(frozen=True, slots=True)
class Application:
    """What a run tells of the sites, by id; of how many workers, and how many times as fast as now the machine was.

    `disturbed`: the run says that other programs kept it from the processor.
    """

    sites: Mapping[str, SiteCalls] = field(default_factory=dict)
    workers: Integer = UNKNOWN
    speed: float = 1.0
    disturbed: bool = False


def alike(one: float, other: float) -> bool:
    """Whether two times are the same, but for what measurements differ by."""
    return max(one, other) <= ALIKE * min(one, other)


@dataclass(frozen=True, slots=True)
class Alone:
    """What a kernel takes alone, with warm and with cold caches (0: not measured), in ns.

    `spread` is the distance of the quartiles of the warm times, in parts of their median.
    """

    warm_ns: float
    cold_ns: float
    spread: float = 0.0


def typical_ratio(times: Iterable[tuple[float, float]]) -> float:
    """How many times as long as alone most kernels take in the application; 1 where too few are told.

    Args:
        times: of each kernel the time in the application, and alone.
    """
    ratios = [application / alone for application, alone in times if alone]
    return statistics.median(ratios) if len(ratios) >= _MOST_OF else 1.0


@dataclass(frozen=True, slots=True)
class Recorded:
    """A run of the application, and the `typical_ratio` of its kernels."""

    application: Application
    typical: float = 1.0


def explained(site: str, run: Recorded, again: Recorded, alone: Alone) -> InApplication:
    """A site beside its kernel alone.

    Args:
        site: its id; the run has calls of it.
        run: what the run tells.
        again: what a recording on one worker tells that was made right behind the kernels; of no sites: there is none.
        alone: the kernel's times.
    """
    seen, now = run.application.sites[site], again.application.sites.get(site)
    if alike(seen.median_ns, alone.warm_ns):
        points_to = ""
    elif now is None:
        points_to = _points_to(seen.median_ns, run, alone)
    elif alike(now.median_ns, alone.warm_ns):
        points_to = _gone(run.application)
    else:
        points_to = _points_to(now.median_ns, again, alone)
    ratio = round(seen.median_ns / alone.warm_ns, 3)
    return InApplication(site, seen.calls, seen.median_ns, ratio, UNKNOWN if now is None else now.median_ns, points_to)


def _gone(run: Application) -> str:
    """What a difference came from that a recording on one worker does not have any more."""
    if isinstance(run.workers, int) and run.workers > 1:
        return f"contention: the run has {run.workers} workers; recorded again on one, it takes as long as alone"
    return "the machine: recorded again behind the kernels, it takes as long as alone"


def _points_to(median_ns: float, run: Recorded, alone: Alone) -> str:
    application, typical = run.application, run.typical
    speed = application.speed
    if not alike(speed, 1.0) and alike(median_ns * speed, alone.warm_ns):
        return f"clock: by its peaks the machine was {speed:.2f} times as fast when the run was recorded"
    if _is_cold(median_ns * speed, alone):
        return "cold data: alone with cold caches it takes as long"
    if not alike(typical, 1.0) and alike(median_ns / typical, alone.warm_ns):
        return f"the machine: most kernels take {typical:.2f} times as long as alone; it is faster or slower now"
    if _is_cold(median_ns / typical, alone):
        return "cold data: alone with cold caches it takes as long, beside other kernels"
    if min(median_ns, alone.warm_ns) < _SHORT_NS:
        return "a short call: what starts it counts as much as what it does"
    if alone.spread > ALIKE - 1:
        return "unsteady: alone, its calls vary by as much, so something else ran on this machine"
    if application.disturbed:
        return "a disturbed run: other programs kept the application from the processor"
    if isinstance(application.workers, int) and application.workers > 1 and median_ns > alone.warm_ns:
        return f"contention: {application.workers} workers share caches, memory and cores"
    return "not explained: neither by cold caches nor by the machine's speed"


def _is_cold(median_ns: float, alone: Alone) -> bool:
    """Whether a time lies between those with warm and with cold caches."""
    return alone.warm_ns < median_ns <= ALIKE * alone.cold_ns
