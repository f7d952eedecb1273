"""What became of kernels that were run alone, in one process or in several that share the repetitions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from msgspec import structs

from tracemap.experiments.job import Answer, Timed
from tracemap.experiments.model import Spread, Verification
from tracemap.measurements.order import quartiles
from tracemap.units import split_by_largest_remainder

if TYPE_CHECKING:
    from tracemap.options.bench import BenchOptions


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a case that was run; `ended`: how it ended before its time, "" where it did not."""

    answer: Answer
    verification: Verification
    ended: str


NOT_RUN: Final = Answer(0, 0.0, Timed(0, 0, ()), Timed(0, 0, ()))


def shared_out(options: BenchOptions) -> list[int]:
    """How often each process times a batch."""
    processes = min(options.processes, options.repetitions)
    return split_by_largest_remainder(options.repetitions, [1] * processes)


def together(one: Outcome, other: Outcome) -> Outcome:
    """What two processes found of a case; one that ended before its time says what became of it."""
    if other.ended:
        return replace(one, verification=other.verification, ended=other.ended)
    warm, cold = (
        structs.replace(first, call_ns=(*first.call_ns, *second.call_ns))
        for first, second in ((one.answer.warm, other.answer.warm), (one.answer.cold, other.answer.cold))
    )
    return replace(one, answer=structs.replace(one.answer, warm=warm, cold=cold))


def spread_of(timed: Timed) -> Spread | None:
    """The times of a call over all batches; None where there are none."""
    if not timed.call_ns:
        return None
    times = timed.call_ns
    q1, median, q3 = quartiles(times)
    return Spread(round(median, 3), round(q1, 3), round(q3, 3), len(times), timed.batch, timed.copies)
