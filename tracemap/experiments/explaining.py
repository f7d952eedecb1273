"""Why a kernel takes another time alone than in the application.

A kernel alone has the processor and its caches to itself, and its data is where the last call left it. If the times
differ, the application is recorded again, on one worker, right after the kernels. If the difference is gone then, the
machine or the other workers caused it. Otherwise these causes are tried, the most certain first:

1. The machine's peaks have changed since the run was recorded.
2. The caches are cold in the application.
3. Most kernels differ by the same factor, so the machine is faster or slower.
4. Calls are so short that the cost of starting them counts.
5. Times vary, alone or in the run.
6. Other workers compete for caches, memory and cores.

A difference with none of these causes is reported as not explained.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tracemap.experiments.model import InApplication
from tracemap.units import UNKNOWN, Integer

ALIKE: Final = 1.2
"""Times within this factor of each other count as the same: two recordings of a dispatch differ by up to a fifth."""
_SHORT_CALL_NS: Final = 5_000
_MIN_KERNELS: Final = 5
"""Fewest kernels for a typical ratio."""


@dataclass(frozen=True, slots=True)
class SiteCalls:
    """The calls of a dispatch site in a run: their number and the median CPU time."""

    calls: int
    median_ns: int


@dataclass(frozen=True, slots=True)
class Application:
    """A run of the application: calls by site id, number of workers, and noise.

    Attributes:
        speed: machine speed during the run over machine speed now.
        disturbed: other programs kept the run waiting for a CPU.
    """

    sites: Mapping[str, SiteCalls] = field(default_factory=dict)
    workers: Integer = UNKNOWN
    speed: float = 1.0
    disturbed: bool = False


def nearly_equal(left: float, right: float) -> bool:
    """Whether two times are the same within the measurement error (`ALIKE`)."""
    return max(left, right) <= ALIKE * min(left, right)


@dataclass(frozen=True, slots=True)
class AloneTimes:
    """Times of a kernel alone in ns, with warm and with cold caches (0: not measured).

    `spread`: interquartile range of the warm times over their median.
    """

    warm_ns: float
    cold_ns: float
    spread: float = 0.0


def typical_ratio(times: Iterable[tuple[float, float]]) -> float:
    """The median ratio of a kernel's time in the application to its time alone; 1 for fewer than `_MIN_KERNELS`.

    Args:
        times: per kernel, the time in the application and the time alone.
    """
    ratios = [application / alone for application, alone in times if alone]
    return statistics.median(ratios) if len(ratios) >= _MIN_KERNELS else 1.0


@dataclass(frozen=True, slots=True)
class ApplicationRun:
    """A run of the application, and the `typical_ratio` of its kernels."""

    application: Application
    typical: float = 1.0


def explain_site(site: str, run: ApplicationRun, again: ApplicationRun, alone: AloneTimes) -> InApplication:
    """Compare a dispatch site's calls in the application with its kernel alone.

    Args:
        site: id of a site that has calls in the run.
        run: the run of the application.
        again: a recording on one worker, made right after the kernels ran alone; without sites if there is none.
        alone: the kernel's times alone.
    """
    in_run, in_rerun = run.application.sites[site], again.application.sites.get(site)
    if nearly_equal(in_run.median_ns, alone.warm_ns):
        points_to = ""
    elif in_rerun is None:
        points_to = _cause(in_run.median_ns, run, alone)
    elif nearly_equal(in_rerun.median_ns, alone.warm_ns):
        points_to = _cause_absent_in_rerun(run.application)
    else:
        points_to = _cause(in_rerun.median_ns, again, alone)
    ratio = round(in_run.median_ns / alone.warm_ns, 3)
    rerun_ns = UNKNOWN if in_rerun is None else in_rerun.median_ns
    return InApplication(site, in_run.calls, in_run.median_ns, ratio, rerun_ns, points_to)


def _cause_absent_in_rerun(run: Application) -> str:
    """The cause of a difference that disappears when the application is recorded again on one worker."""
    if isinstance(run.workers, int) and run.workers > 1:
        return f"contention: the run has {run.workers} workers; recorded again on one, it takes as long as alone"
    return "the machine: recorded again right after the kernels, it takes as long as alone"


def _cause(median_ns: float, run: ApplicationRun, alone: AloneTimes) -> str:
    application, typical = run.application, run.typical
    speed = application.speed
    if not nearly_equal(speed, 1.0) and nearly_equal(median_ns * speed, alone.warm_ns):
        return f"clock: the machine's peaks were {speed:.2f} times as high when the run was recorded"
    if _is_cold(median_ns * speed, alone):
        return "cold data: with cold caches it takes as long alone"
    if not nearly_equal(typical, 1.0) and nearly_equal(median_ns / typical, alone.warm_ns):
        return f"the machine: most kernels take {typical:.2f} times as long as alone, so its speed has changed"
    if _is_cold(median_ns / typical, alone):
        return "cold data: with cold caches it takes as long alone, given the typical ratio of the other kernels"
    if min(median_ns, alone.warm_ns) < _SHORT_CALL_NS:
        return "a short call: starting it costs as much as its work"
    if alone.spread > ALIKE - 1:
        return "unsteady: alone, its calls vary as much, so other programs ran on this machine"
    if application.disturbed:
        return "a noisy run: other programs kept the application waiting for a CPU"
    if isinstance(application.workers, int) and application.workers > 1 and median_ns > alone.warm_ns:
        return f"contention: {application.workers} workers share caches, memory and cores"
    return "not explained: not by cold caches, machine speed, call length, noise or other workers"


def _is_cold(median_ns: float, alone: AloneTimes) -> bool:
    """Whether a time lies between the times with warm and with cold caches."""
    return alone.warm_ns < median_ns <= ALIKE * alone.cold_ns
