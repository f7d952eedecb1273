"""Stopping rule: measure until the 95 % interval of the median is narrow enough, or the budget is spent."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tracemap.core.units import UNKNOWN, Integer, Unknown, format_bytes, format_count, format_ns, plural
from tracemap.options.measure import MOST_HZ
from tracemap.runs.statistics import FEWEST_VALUES, Median, median_of

if TYPE_CHECKING:
    import numpy.typing as npt


LEAST_WARMUP: Final = 3
"""Warm-up calls at least: the first calls touch memory and fill caches, even if their times look alike."""
ENOUGH_SAMPLES: Final = 2_000
"""Samples in kernels. An op with a tenth of them has its share to within 1.3 points."""
MOST_BYTES: Final = 64 << 20
"""Size limit of the profile. Reading it takes about as many seconds as recording; it is never held in memory."""
ENOUGH_BYTES: Final = 32 << 20
ENOUGH_CALLS: Final = 400
"""Bytes of profile to read of all launches together, and measured calls to read of each, whichever is more.

Reading a call of a tiny program takes three times as long as the call. More calls of the same process would hardly make
the costs of its ops more precise: memory layout changes them by more, and only other launches show that.
"""
LEAST_HZ: Final = 251
MOST_DEFAULT_HZ: Final = 1_999
"""Bounds of the default sampling rate. At 15 to 40 us per sample in a virtual machine, sampling takes 0.5 % to 8 % of
the time."""
_PART_IN_KERNELS = 1 / 4
"""Assumed part of the time that a worker spends in kernels: less in small models, all of it in large ones."""
_LEAST_CALLS = 20
_LEAST_WINDOW = 10
_LEAST_S = 0.5
"""Least measured time of a launch; or half of its budget, if that is less."""
_LOADING, _FIRST_CALLS = 1 / 2, 1 / 4
"""Limits of the number of launches: loading the program may take half of a launch's budget, its first calls a quarter
(of the time, and of the profile's bytes). Otherwise, launches would mostly wait, or measure only a few calls."""


class StopReason(enum.StrEnum):
    """Why the recording stopped."""

    PRECISION = "precision"
    """The interval of the median is narrow enough."""
    SAMPLES = "samples"
    """There are enough samples in kernels."""
    SECONDS = "seconds"
    """The time budget is spent."""
    BYTES = "bytes"
    """The profile has reached its size limit."""


@dataclass(frozen=True, slots=True)
class Goal:
    """Goal and budget of the stopping rule.

    `precision`: half width of the median's interval, as a share of it. `sample_hz`: samples per second and thread; if
    not 0, the number of samples decides instead of the precision. `warmup`: number of warm-up calls; UNKNOWN: until
    times are steady. `launches`: launches that share `seconds` and the rest of the profile's bytes equally; there are
    fewer if the start of a launch takes too long. `recorded`: bytes of profile to read of earlier launches.
    `reads_all`: read all calls of the profile, instead of enough of them.
    """

    precision: float
    seconds: float
    sample_hz: int
    warmup: Integer
    launches: int = 1
    recorded: int = 0
    reads_all: bool = True

    def reached(self, state: StoppingState) -> StopReason | None:
        """The reason to stop now; None: continue."""
        warmup = state.warmup(self)
        if warmup is not UNKNOWN and self._is_enough(state, warmup):
            return StopReason.SAMPLES if self.sample_hz else StopReason.PRECISION
        if state.calls <= (self.warmup if isinstance(self.warmup, int) else 0):
            return None  # measure at least one call
        launch_count = self.affordable_launches(state)
        if self.bytes_to_read(state) >= (MOST_BYTES - self.recorded) / launch_count or state.bytes >= MOST_BYTES:
            return StopReason.BYTES
        return StopReason.SECONDS if state.spent_ns >= self.seconds * 1e9 / launch_count else None

    def calls_to_read(self, state: StoppingState) -> int:
        """Number of calls, warm-up included, whose events are read: the first ones, all of them or enough."""
        if self.reads_all or not state.bytes:
            return state.calls
        share = max(0, ENOUGH_BYTES - self.recorded) / self.affordable_launches(state)
        enough = max(state.warmup_at_end(self) + ENOUGH_CALLS, int(state.calls * share / state.bytes))
        return min(state.calls, enough)

    def bytes_to_read(self, state: StoppingState) -> int:
        """Size of the profile of these calls."""
        return state.bytes * self.calls_to_read(state) // max(1, state.calls) if state.calls else state.bytes

    def affordable_launches(self, state: StoppingState) -> int:
        """Number of launches that share the budget: fewer if starting the program is expensive."""
        warmup = self.warmup if isinstance(self.warmup, int) else LEAST_WARMUP
        seconds_ns, left_bytes = self.seconds * 1e9, MOST_BYTES - self.recorded
        affordable = (
            _LOADING * seconds_ns / max(1, state.loading_ns),
            _FIRST_CALLS * seconds_ns / max(1, state.first_ns(warmup)),
            _FIRST_CALLS * left_bytes * max(1, state.calls) / max(1, warmup * state.bytes),
        )
        return max(1, min(self.launches, *map(int, affordable)))

    def _is_enough(self, state: StoppingState, warmup: int) -> bool:
        if self.sample_hz:
            return state.samples >= ENOUGH_SAMPLES
        measured = state.times_ns[warmup:]
        least_ns = min(_LEAST_S, self.seconds / self.affordable_launches(state) / 2) * 1e9
        if len(measured) < _LEAST_CALLS or measured.sum() < least_ns:
            return False
        if median_of(measured).error > self.precision:
            return False
        return halves_agree(measured, self.precision)


@dataclass(frozen=True, slots=True)
class StoppingState:
    """Measurements so far: whole calls with their times, samples in kernels since the warm-up, and the spent budget."""

    calls: int
    times_ns: npt.NDArray[Any]
    """Time of each call; the last one's is unknown if no call follows."""
    samples: int
    bytes: int
    spent_ns: int
    loading_ns: int = 0
    """Time from the launch to the first call."""

    def first_ns(self, count: int) -> int:
        """Time of the first `count` calls, or the time so far if there are fewer."""
        return int(self.times_ns[:count].sum()) if len(self.times_ns) >= count else self.spent_ns

    def warmup(self, goal: Goal) -> Integer:
        """Number of warm-up calls; UNKNOWN: times are not steady yet."""
        return first_steady_call(self.times_ns, goal.precision) if goal.warmup is UNKNOWN else goal.warmup

    def warmup_at_end(self, goal: Goal) -> int:
        """Number of warm-up calls if measuring stops now: at most half of the calls."""
        warmup = self.warmup(goal)
        return warmup if isinstance(warmup, int) else min(LEAST_WARMUP, self.calls // 2)


def first_steady_call(times_ns: npt.NDArray[Any], precision: float) -> Integer:
    """Index of the first call from which on times are steady, at least 3; UNKNOWN: not steady yet."""
    first = LEAST_WARMUP
    while True:
        window = max(_LEAST_WINDOW, first)
        if len(times_ns) < first + 2 * window:
            return UNKNOWN
        earlier = median_of(times_ns[first : first + window])
        later = median_of(times_ns[first + window : first + 2 * window])
        if earlier.holds(later.value) or earlier.is_near(later, precision):
            return first
        first *= 2


def halves_agree(times_ns: npt.NDArray[Any], precision: float) -> bool:
    """Whether the medians of the first and second half differ by at most the precision, or not significantly."""
    middle = len(times_ns) // 2
    first, second = median_of(times_ns[:middle]), median_of(times_ns[middle:])
    return first.is_near(second, precision) or first.overlaps(second)


def still_changing(times_ns: npt.NDArray[Any], warmup: int, precision: float) -> bool:
    """Whether times are known to be unsteady, or the halves to differ; False if there are too few calls to tell."""
    measured = times_ns[warmup:]
    compared = len(times_ns) >= LEAST_WARMUP + 2 * _LEAST_WINDOW
    unsteady = compared and first_steady_call(times_ns, precision) is UNKNOWN
    return unsteady or (len(measured) >= 2 * FEWEST_VALUES and not halves_agree(measured, precision))


def default_sample_hz(seconds: float) -> int:
    """The sampling rate per thread that gives enough samples in kernels within `seconds`.

    A prime number: a rate with small factors may run in step with periodic activity. The number of workers does not
    matter: they share the work of kernels, so each spends less time in them.

    >>> default_sample_hz(5.0), default_sample_hz(60.0), default_sample_hz(1.0)
    (1601, 251, 1999)
    """
    samples_per_s = ENOUGH_SAMPLES / (_PART_IN_KERNELS * seconds)
    rate = math.ceil(min(max(samples_per_s, LEAST_HZ), MOST_DEFAULT_HZ))
    while any(rate % factor == 0 for factor in range(2, math.isqrt(rate) + 1)):
        rate += 1
    return rate


# ---- texts


@dataclass(frozen=True, slots=True)
class StoppingOutcome:
    """Why the recording stopped, and how precise the result is.

    `calls` and `samples` exclude the warm-up. `changing`: times were not steady at the end, or the halves differ.
    `bytes`: size of the profile. `noisy`: the machine was noisy. `launches`: number of launches.
    """

    reason: StopReason
    goal: Goal
    calls: int
    median: Median
    samples: Integer
    changing: bool
    bytes: int
    noisy: bool = False
    launches: int = 1

    @property
    def is_enough(self) -> bool:
        """Whether the goal was reached."""
        return self.reason in {StopReason.PRECISION, StopReason.SAMPLES}

    @property
    def sentence(self) -> str:
        """The reason to stop and the median call, in one sentence.

        >>> goal = Goal(precision=0.02, seconds=5.0, sample_hz=0, warmup=UNKNOWN)
        >>> median = Median(412, 1_230_000, 1_210_000, 1_252_140)
        >>> StoppingOutcome(StopReason.PRECISION, goal, 412, median, UNKNOWN, False, 0).sentence
        'precise enough: median 1.23 ms ± 1.8 % within this run, after 412 invocations'
        """
        parts = []
        if self.goal.sample_hz:
            of_goal = "" if self.is_enough else f" of {format_count(ENOUGH_SAMPLES)}"
            parts.append(f"{format_count(self.samples)}{of_goal} samples in kernels")
        launches = f" in {self.launches} launches" if self.launches > 1 else ""
        calls = f"after {plural(self.calls, 'invocation')}{launches}"
        parts += [f"{median_text(self.median)} within this run", calls]
        if self.changing and not self.is_enough:
            parts.append("still changing")
        reasons = {
            StopReason.PRECISION: "precise enough",
            StopReason.SAMPLES: "enough samples",
            StopReason.SECONDS: f"stopped after {self.goal.seconds:g} s (--seconds)",
            StopReason.BYTES: f"stopped after {format_bytes(MOST_BYTES)} of profile",
        }
        noisy = ", but the machine was noisy" if self.is_enough and self.noisy else ""
        return f"{reasons[self.reason]}{noisy}: {', '.join(parts)}{self._remedy}"

    @property
    def _remedy(self) -> str:
        """The option that helps: more time, or a higher sampling rate if the profile has no room.

        >>> goal = Goal(precision=0.02, seconds=5.0, sample_hz=251, warmup=UNKNOWN)
        >>> median = Median(9, 100, UNKNOWN, UNKNOWN)
        >>> StoppingOutcome(StopReason.SECONDS, goal, 9, median, 1_000, False, 1 << 20)._remedy
        '; try --seconds 11'
        >>> StoppingOutcome(StopReason.SECONDS, goal, 9, median, 1_000, False, 60 << 20)._remedy
        '; try --sample 553'
        """
        if self.is_enough:
            return ""
        if not self.goal.sample_hz:
            return self._more_calls
        if not isinstance(self.samples, int) or not self.samples:
            return ""
        times = 1.1 * ENOUGH_SAMPLES / self.samples
        if self.bytes * times <= MOST_BYTES:
            return f"; try --seconds {math.ceil(times * self.goal.seconds)}"
        sample_hz = math.ceil(times * self.goal.sample_hz)
        return f"; try --sample {sample_hz}" if sample_hz <= MOST_HZ else ""

    @property
    def _more_calls(self) -> str:
        """The option that allows enough calls for an interval of the median.

        >>> goal = Goal(precision=0.02, seconds=5.0, sample_hz=0, warmup=UNKNOWN)
        >>> few = Median(2, 1_500_000_000, UNKNOWN, UNKNOWN)
        >>> StoppingOutcome(StopReason.SECONDS, goal, 2, few, UNKNOWN, False, 1 << 20)._more_calls
        '; --seconds 35 allows 20'
        """
        if self.reason is StopReason.BYTES:  # a fixed number of calls has no size limit
            return "; --iterations N has no limit of the profile's size"
        if self.calls >= _LEAST_CALLS or not isinstance(self.median.value, int):
            return ""
        warmup = LEAST_WARMUP if isinstance(self.goal.warmup, Unknown) else self.goal.warmup
        return f"; --seconds {math.ceil(self.median.value * (_LEAST_CALLS + warmup) / 1e9)} allows {_LEAST_CALLS}"


def median_text(median: Median) -> str:
    """The median invocation with its error in percent.

    >>> median_text(Median(2, 1_500_000_000, UNKNOWN, UNKNOWN))
    'median 1.50 s (too few for an interval)'
    """
    if median.value is UNKNOWN:
        return "median unknown"
    error = median.error
    # Round up, so that the shown error never understates the real one.
    error_text = (
        f"± {math.ceil(1000 * error - 1e-9) / 10:.1f} %" if math.isfinite(error) else "(too few for an interval)"
    )
    return f"median {format_ns(median.value)} {error_text}"
