"""Stopping rule: measure until the median is known well enough."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tracemap.measurements.medians import FEWEST, Median, median_of
from tracemap.options.measure import MOST_HZ
from tracemap.units import UNKNOWN, Integer, Unknown, format_bytes, format_count, format_ns, plural

if TYPE_CHECKING:
    import numpy.typing as npt


LEAST_WARMUP: Final = 3
"""First calls touch memory and fill caches, however alike they look."""
ENOUGH_SAMPLES: Final = 2_000
"""Samples in kernels: an op with a tenth of them has its share to within 1.3 points."""
MOST_BYTES: Final = 64 << 20
"""How much profile is recorded at most: it is read in about as many seconds as it took, and never held in memory."""
LEAST_HZ: Final = 251
MOST_DEFAULT_HZ: Final = 1_999
"""Between these lies the rate that is taken where none is given: with 15 to 40 us a sample in a virtual machine, they
take half a percent to 8 % of the time."""
_PART_IN_KERNELS = 1 / 4
"""What part of the time a worker is taken to be in kernels; small models have less in them, large ones all of it."""
_LEAST_CALLS = 20
_LEAST_STRETCH = 10
_LEAST_S = 0.5
"""How long calls of a launch are measured at least, or for half of what it may spend."""
_LOADING, _FIRST_CALLS = 1 / 2, 1 / 4
"""Of what a launch may spend, the most that loading the program and its first calls may take where there are several,
of time, and the calls of the profile, too: more would be waited for than is measured, or a handful of calls be all that
is left."""


class Why(enum.StrEnum):
    """Why no more calls were made."""

    PRECISION = "precision"
    """The interval of their median is narrow enough."""
    SAMPLES = "samples"
    """There are enough samples in kernels."""
    SECONDS = "seconds"
    """The time is spent."""
    BYTES = "bytes"
    """The profile is as large as it may be."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What is enough, and what may be spent on it.

    `precision` is a share of the median; `sample_hz` how often a second a thread is sampled (0: it is not, and the
    precision decides, not the samples); `warmup` how many of the first calls are warm-up (unknown: until they are
    steady). `launches`: how many share `seconds`, and what is left of the profile's bytes, of which `recorded` were:
    each has an equal part; where starting takes too long for so many, there are fewer.
    """

    precision: float
    seconds: float
    sample_hz: int
    warmup: Integer
    launches: int = 1
    recorded: int = 0

    def reached(self, state: State) -> Why | None:
        """Why to stop by now; None: go on."""
        warmup = state.warmup(self)
        if warmup is not UNKNOWN and self._is_enough(state, warmup):
            return Why.SAMPLES if self.sample_hz else Why.PRECISION
        if state.calls <= (self.warmup if isinstance(self.warmup, int) else 0):
            return None  # at least one is to be measured
        sharing = self.sharing(state)
        if state.bytes >= (MOST_BYTES - self.recorded) / sharing:
            return Why.BYTES
        return Why.SECONDS if state.spent_ns >= self.seconds * 1e9 / sharing else None

    def sharing(self, state: State) -> int:
        """How many launches share what may be spent, as far as one tells by now: fewer where starting one is dear."""
        warmup = self.warmup if isinstance(self.warmup, int) else LEAST_WARMUP
        seconds_ns, left_bytes = self.seconds * 1e9, MOST_BYTES - self.recorded
        affordable = (
            _LOADING * seconds_ns / max(1, state.loading_ns),
            _FIRST_CALLS * seconds_ns / max(1, state.first_ns(warmup)),
            _FIRST_CALLS * left_bytes * max(1, state.calls) / max(1, warmup * state.bytes),
        )
        return max(1, min(self.launches, *map(int, affordable)))

    def _is_enough(self, state: State, warmup: int) -> bool:
        if self.sample_hz:
            return state.samples >= ENOUGH_SAMPLES
        measured = state.times_ns[warmup:]
        least_ns = min(_LEAST_S, self.seconds / self.sharing(state) / 2) * 1e9
        if len(measured) < _LEAST_CALLS or measured.sum() < least_ns:
            return False
        if median_of(measured).error > self.precision:
            return False
        return halves_agree(measured, self.precision)


@dataclass(frozen=True, slots=True)
class State:
    """What was measured by now: whole calls with their times, samples in kernels since the warm-up, what was spent."""

    calls: int
    times_ns: npt.NDArray[Any]
    """Of each call; the last one's is not known where nothing came after it."""
    samples: int
    bytes: int
    spent_ns: int
    loading_ns: int = 0
    """From the launch to the first call."""

    def first_ns(self, count: int) -> int:
        """How long the first calls took; so far, where they are not over."""
        return int(self.times_ns[:count].sum()) if len(self.times_ns) >= count else self.spent_ns

    def warmup(self, goal: Goal) -> Integer:
        """How many of the first calls are warm-up; unknown: they are not steady yet."""
        return steady_from(self.times_ns, goal.precision) if goal.warmup is UNKNOWN else goal.warmup

    def warmup_at_end(self, goal: Goal) -> int:
        """The same when nothing more is measured: a few, of which half at least are left."""
        found = self.warmup(goal)
        return found if isinstance(found, int) else min(LEAST_WARMUP, self.calls // 2)


def steady_from(times_ns: npt.NDArray[Any], precision: float) -> Integer:
    """The first call from which on the times of calls are steady, at least the fourth; unknown: none is known yet."""
    first = LEAST_WARMUP
    while True:
        stretch = max(_LEAST_STRETCH, first)
        if len(times_ns) < first + 2 * stretch:
            return UNKNOWN
        earlier = median_of(times_ns[first : first + stretch])
        later = median_of(times_ns[first + stretch : first + 2 * stretch])
        if earlier.holds(later.value) or earlier.is_near(later, precision):
            return first
        first *= 2


def halves_agree(times_ns: npt.NDArray[Any], precision: float) -> bool:
    """Whether the medians of the first and of the second half differ by no more than is wanted, or by chance."""
    middle = len(times_ns) // 2
    first, second = median_of(times_ns[:middle]), median_of(times_ns[middle:])
    return first.is_near(second, precision) or first.overlaps(second)


def still_changing(times_ns: npt.NDArray[Any], warmup: int, precision: float) -> bool:
    """Whether calls are known not to be steady, or their halves to differ; too few of them to compare tell neither."""
    measured = times_ns[warmup:]
    compared = len(times_ns) >= LEAST_WARMUP + 2 * _LEAST_STRETCH
    unsteady = compared and steady_from(times_ns, precision) is UNKNOWN
    return unsteady or (len(measured) >= 2 * FEWEST and not halves_agree(measured, precision))


def enough_hz(seconds: float) -> int:
    """How often a second each thread is to be sampled, so that there are enough samples in kernels in some seconds.

    A prime number, as one with small factors falls into step with programs that do things so often a second. However
    many workers there are: they share the work of kernels, and each is in them for less of the time.

    >>> enough_hz(5.0), enough_hz(60.0), enough_hz(1.0)
    (1601, 251, 1999)
    """
    wanted = ENOUGH_SAMPLES / (_PART_IN_KERNELS * seconds)
    rate = math.ceil(min(max(wanted, LEAST_HZ), MOST_DEFAULT_HZ))
    while any(rate % factor == 0 for factor in range(2, math.isqrt(rate) + 1)):
        rate += 1
    return rate


# ---- in words


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a program came to be measured enough, or why it was not.

    `calls` and `samples` are those after the warm-up; `changing`: the calls were not steady when they were counted, or
    their halves differ; `bytes`: the profile's; `disturbed`: the run was much so; `launches`: that made the calls.
    """

    why: Why
    goal: Goal
    calls: int
    median: Median
    samples: Integer
    changing: bool
    bytes: int
    disturbed: bool = False
    launches: int = 1

    @property
    def is_enough(self) -> bool:
        """Whether the goal was reached."""
        return self.why in {Why.PRECISION, Why.SAMPLES}

    @property
    def sentence(self) -> str:
        """Why no more calls were made, and what is known of the median call.

        >>> goal = Goal(precision=0.02, seconds=5.0, sample_hz=0, warmup=UNKNOWN)
        >>> Outcome(Why.PRECISION, goal, 412, Median(412, 1_230_000, 1_210_000, 1_252_140), UNKNOWN, False, 0).sentence
        'enough: median 1.23 ms ± 1.8 % within this run, after 412 invocations'
        """
        parts = [self._samples] if self.goal.sample_hz else []
        launches = f" in {self.launches} launches" if self.launches > 1 else ""
        calls = f"after {plural(self.calls, 'invocation')}{launches}"
        parts += [f"{median_words(self.median)} within this run", calls]
        if self.changing and not self.is_enough:
            parts.append("which still changes")
        return f"{self._reason}: {', '.join(parts)}{self._remedy}"

    @property
    def _remedy(self) -> str:
        """What would get as much as is wanted: more time, or where the profile has no room for it, samples more often.

        >>> goal = Goal(precision=0.02, seconds=5.0, sample_hz=251, warmup=UNKNOWN)
        >>> Outcome(Why.SECONDS, goal, 9, Median(9, 100, UNKNOWN, UNKNOWN), 1_000, False, 1 << 20)._remedy
        '; --seconds 11 would do'
        >>> Outcome(Why.SECONDS, goal, 9, Median(9, 100, UNKNOWN, UNKNOWN), 1_000, False, 60 << 20)._remedy
        '; --sample 553 would do'
        """
        if self.is_enough:
            return ""
        if not self.goal.sample_hz:
            return self._more_calls
        if not isinstance(self.samples, int) or not self.samples:
            return ""
        times = 1.1 * ENOUGH_SAMPLES / self.samples
        if self.bytes * times <= MOST_BYTES:
            return f"; --seconds {math.ceil(times * self.goal.seconds)} would do"
        often = math.ceil(times * self.goal.sample_hz)
        return f"; --sample {often} would do" if often <= MOST_HZ else ""

    @property
    def _more_calls(self) -> str:
        """What makes as many calls as it takes to know their median at all.

        >>> goal = Goal(precision=0.02, seconds=5.0, sample_hz=0, warmup=UNKNOWN)
        >>> few = Median(2, 1_500_000_000, UNKNOWN, UNKNOWN)
        >>> Outcome(Why.SECONDS, goal, 2, few, UNKNOWN, False, 1 << 20)._more_calls
        '; --seconds 35 makes 20'
        """
        if self.why is Why.BYTES:  # a number of calls that is given has no limit of bytes
            return "; --iterations N makes more, however large their profile"
        if self.calls >= _LEAST_CALLS or not isinstance(self.median.value, int):
            return ""
        warmup = LEAST_WARMUP if isinstance(self.goal.warmup, Unknown) else self.goal.warmup
        return f"; --seconds {math.ceil(self.median.value * (_LEAST_CALLS + warmup) / 1e9)} makes {_LEAST_CALLS}"

    @property
    def _reason(self) -> str:
        if self.why is Why.SECONDS:
            return f"budget of {self.goal.seconds:g} s spent"
        if self.why is Why.BYTES:
            return f"budget of {format_bytes(MOST_BYTES)} of profile spent"
        return "as asked for, but of a disturbed run" if self.disturbed else "enough"

    @property
    def _samples(self) -> str:
        of_wanted = "" if self.is_enough else f" of {format_count(ENOUGH_SAMPLES)}"
        return f"{format_count(self.samples)}{of_wanted} samples in kernels"


def median_words(median: Median) -> str:
    """The median of invocations with its error, in percent.

    >>> median_words(Median(2, 1_500_000_000, UNKNOWN, UNKNOWN))
    'median 1.50 s (too few for an interval)'
    """
    if median.value is UNKNOWN:
        return "median unknown"
    error = median.error
    # Rounded up, so that what is said to be within the limit is.
    known = f"± {math.ceil(1000 * error - 1e-9) / 10:.1f} %" if math.isfinite(error) else "(too few for an interval)"
    return f"median {format_ns(median.value)} {known}"
