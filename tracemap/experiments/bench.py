"""`bench`: kernels of a bundle alone, verified and timed."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import structs

from tracemap.experiments.cases import Case, find_cases, left_behind, whole_memory
from tracemap.experiments.descriptions import amounts, arguments, operation_name
from tracemap.experiments.explaining import Alone, Application, Recorded, alike, explained, typical_ratio
from tracemap.experiments.jobs import Answer, Call, Ended, Job, Timed, run_job, written_path
from tracemap.experiments.model import InApplication, KernelBench, Spread, Status, Verification
from tracemap.experiments.reference.elements import OWN_CODE, SURPRISES, UNDEFINED, not_computed
from tracemap.experiments.verifying import NOT_FINITE, Plain, changed, judged
from tracemap.experiments.wrapping import compile_wrapped, wrapped
from tracemap.ir.attributes import add
from tracemap.ir.executables import read_dispatches
from tracemap.ir.parsing import MlirParser, Module
from tracemap.machine.figures import same_code
from tracemap.measurements.medians import quartiles
from tracemap.memory import free_memory
from tracemap.owned.home import temporary_folder
from tracemap.toolchain import Progress
from tracemap.units import UNKNOWN, Integer, Unknown, format_bytes, split_by_largest_remainder

if TYPE_CHECKING:
    from tracemap.graph.bundle import Bundle
    from tracemap.ir.numbers import Extent
    from tracemap.measurements.model import Peaks
    from tracemap.options.kernels import BenchOptions


# ---- outcomes
#
# What became of kernels that were run alone, in one process or in several that share the repetitions.


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


# ---- bench
#
# Kernels of a bundle, each alone: verified, timed with warm and with cold caches, compared with the application.


_DEVICE: Final = "local-sync"
_NUMPY: Final = "numpy"
_COMPARING: Final = 6
"""So many times its data is held while it is compared: what was and what is, some of it in double precision."""
_COLD_CACHES: Final = 2
"""So many times the last cache's size is used between two looks at the same data."""


@dataclass(frozen=True)
class BenchRequest:
    """What to run: kernels of a bundle by name, in the order in which they are told; none: all.

    `extent`: of the program's arguments; `look` measures what the machine can do, and returns the best so far;
    `application` says what the sites' calls took in a run, beside such peaks, nothing without one; `record_again`
    records the application on one worker, as is done where a kernel takes another time alone.
    """

    bundle: Bundle
    options: BenchOptions
    kernels: tuple[str, ...]
    extent: Extent
    look: Callable[[], Peaks]
    cache_bytes: int
    application: Callable[[Peaks], Application] = lambda _: Application()
    record_again: Callable[[], Application] = Application
    reference: bytes = b""
    """A configured module whose kernels of the same names say what is right; empty: the bundle's own."""


def bench(request: BenchRequest, progress: Progress) -> tuple[KernelBench, ...]:
    """Run kernels alone.

    Raises:
        BundleInvalid: the bundle does not have its kernels, or they are damaged.
        ToolFailed: they cannot be compiled.
        ToolMissing: the compiler or the runtime is not installed.
    """
    with temporary_folder() as folder:
        return _Benching(request, folder, progress).run()


class _Benching:
    """The steps, in order."""

    def __init__(self, request: BenchRequest, folder: Path, progress: Progress) -> None:
        self._request, self._folder, self._progress = request, folder, progress
        self._options, self._flags = request.options, request.bundle.graph.module.flags
        self._parser = MlirParser()
        self._run_of_application = self._again = Recorded(Application())
        self._peaks = request.look()
        self._application = request.application(self._peaks)

    def run(self) -> tuple[KernelBench, ...]:
        self._progress("reading the kernels")
        cases = self._cases()
        runnable = [case for case in cases if not case.obstacle]
        outcomes: dict[int, Outcome] = {}
        same: dict[str, bool] = {}
        if runnable:
            self._progress(f"compiling {len(runnable)} kernels")
            text = wrapped(self._configured(), [case.dispatch for case in runnable])
            module = compile_wrapped(text, self._flags, self._folder)
            same = same_code(self._request.bundle.module_path, module)
            # Peaks are measured between what is run, and far apart: none of it is disturbed, and a busy moment passes.
            self._request.look()
            outcomes = self._outcomes(runnable, module)
            self._request.look()
            outcomes = self._with_cold(runnable, module, outcomes)
            self._peaks = self._request.look()
            self._look_at_application(runnable, outcomes)
        numbers = {id(case): number for number, case in enumerate(runnable)}
        results = []
        for case in cases:
            outcome = outcomes.get(numbers.get(id(case), -1))
            results.append(self._result(case, outcome, same.get(case.kernel) if outcome else None))
        return tuple(results)

    def _configured(self) -> Module:
        return self._parser.parse(self._request.bundle.configured())

    def _cases(self) -> list[Case]:
        right = self._request.reference
        self._module = module = (
            self._parser.parse(right) if right else self._configured()
        )  # operations of the cases live no longer than their module
        dispatches = read_dispatches(module, self._request.extent)
        found = find_cases(self._request.bundle.graph, module, dispatches)
        wanted = self._request.kernels
        if not wanted:
            return found
        order = {name: number for number, name in enumerate(wanted)}
        return sorted((case for case in found if case.kernel in order), key=lambda case: order[case.kernel])

    def _outcomes(self, cases: Sequence[Case], module: Path) -> dict[int, Outcome]:
        """Run and verify all; those whose made-up numbers lead to none once more, with others."""
        cold = self._options.cold
        outcomes = self._timed(cases, module, range(len(cases)), cold=cold)
        again = [number for number, each in outcomes.items() if each.verification.reason == NOT_FINITE]
        if again:
            verified = self._run(cases, module, again, 0, cold=False, positive=True)
            for number, other in verified.items():
                outcomes[number] = replace(outcomes[number], verification=other.verification)
        without = [number for number, each in outcomes.items() if _has_no_reference(each)]
        if without:
            configured = self._request.reference or self._request.bundle.configured()
            limit_s = self._options.time_limit
            plain = Plain(configured, self._flags, module, cases, self._folder, limit_s)
            for number, verification in plain.verified(without).items():
                outcomes[number] = replace(outcomes[number], verification=verification)
        return outcomes

    def _with_cold(self, cases: Sequence[Case], module: Path, outcomes: dict[int, Outcome]) -> dict[int, Outcome]:
        """Measure with cold caches too what takes another time in the application."""
        if self._options.cold:
            return outcomes
        again = [number for number, outcome in outcomes.items() if self._differs(cases[number], outcome)]
        if again:
            measured = self._timed(cases, module, again, cold=True, verify=False)
            for number, other in measured.items():
                outcomes[number] = replace(outcomes[number], answer=other.answer)
        return outcomes

    def _look_at_application(self, cases: Sequence[Case], outcomes: Mapping[int, Outcome]) -> None:
        """What the run tells, and a recording made now where it differs."""
        application, again = self._request.application(self._peaks), Application()
        if any(self._differs(cases[number], outcome) for number, outcome in outcomes.items()):
            self._progress("recording the application on one worker")
            again = self._request.record_again()
        self._run_of_application = Recorded(application, typical_ratio(_beside(application, cases, outcomes)))
        self._again = Recorded(again, typical_ratio(_beside(again, cases, outcomes)))

    def _differs(self, case: Case, outcome: Outcome) -> bool:
        if not outcome.answer.warm.call_ns:
            return False
        warm_ns, known = statistics.median(outcome.answer.warm.call_ns), self._application.sites
        seen = [known[site.id].median_ns for site in case.sites if site.id in known]
        return any(not alike(median_ns, warm_ns) for median_ns in seen)

    def _timed(
        self, cases: Sequence[Case], module: Path, numbers: Sequence[int], *, cold: bool, verify: bool = True
    ) -> dict[int, Outcome]:
        """Run some of the cases in one process after the other, which share the repetitions; the first one verifies.

        Where a process puts its data and code is by chance, and stays as it is: repeated in one process alone, times
        agree with each other and not with those of the next (T. Kalibera, R. Jones: Rigorous benchmarking in reasonable
        time, ISMM 2013: repetition belongs where times vary, up to the highest level).
        """
        first, *others = shared_out(self._options)
        outcomes = self._run(cases, module, numbers, first, cold=cold, positive=False, verify=verify)
        for repetitions in others:
            sound = [number for number in numbers if number in outcomes and not outcomes[number].ended]
            again = self._run(cases, module, sound, repetitions, cold=cold, positive=False, verify=False)
            outcomes |= {number: together(outcomes[number], other) for number, other in again.items()}
        return outcomes

    def _run(
        self,
        cases: Sequence[Case],
        module: Path,
        numbers: Sequence[int],
        repetitions: int,
        *,
        cold: bool,
        positive: bool,
        verify: bool = True,
    ) -> dict[int, Outcome]:
        """Run some of the cases."""
        options, verify = self._options, verify and not self._options.no_verify
        calls = tuple(cases[number].call(number, positive) for number in numbers)
        outputs = written_path(self._folder) if verify else ""
        cold_bytes = _COLD_CACHES * self._request.cache_bytes if cold else 0
        least_ns = max(1, round(options.min_time * 1e6))
        job = Job((written_path(module),), _DEVICE, calls, outputs, repetitions, least_ns, cold_bytes)
        outcomes: dict[int, Outcome] = {}

        def tell(place: int) -> None:
            self._progress(f"running {cases[numbers[place]].kernel} ({place + 1} of {len(calls)})")

        for answer in run_job(job, self._folder, options.time_limit, tell):
            number = numbers[answer.call]
            if isinstance(answer, Ended):
                found = _not_verified(answer.text) if answer.for_memory else _failed(answer.text)
                outcomes[number] = Outcome(NOT_RUN, found, answer.text)
                continue
            verification = verified(cases[number], calls[answer.call], self._folder, answer) if verify else _UNASKED
            outcomes[number] = Outcome(answer, verification, "")
        return outcomes

    def _result(self, case: Case, outcome: Outcome | None, same_code: bool | None) -> KernelBench:
        """All that is known of a case."""
        answer = NOT_RUN if outcome is None else outcome.answer
        warm, cold = spread_of(answer.warm), spread_of(answer.cold)
        verification = _not_verified(case.obstacle) if outcome is None else outcome.verification
        operations, moved = self._work(case)
        seconds = warm.median / 1e9 if warm else 0.0
        attainable_s = _attainable_s(operations, moved, self._peaks)
        return KernelBench(
            kernel=case.kernel,
            sites=tuple(site.id for site in case.sites),
            arguments=arguments(case.accesses),
            operation_kind=self._operation_kind(case),
            operation=operation_name(case.kernel),
            configuration=case.configuration,
            verification=verification,
            time_ns=warm,
            cold_ns=cold,
            operations=operations,
            bytes=moved,
            operations_per_s=_per_second(operations, seconds),
            bytes_per_s=_per_second(moved, seconds),
            attainable_share=round(attainable_s / seconds, 4) if seconds and attainable_s else None,
            same_code=same_code,
            stood_in=case.dispatch.stood_in,
            in_application=self._in_application(case, warm, cold),
            not_measured=case.obstacle or (outcome.ended if outcome else ""),
        )

    def _work(self, case: Case) -> tuple[Integer, Integer]:
        """Operations and bytes of a call, by the map; where it does not know sizes, counted with those of the case."""
        operations, moved = _by_the_map(case)
        if case.function is None or (operations is not UNKNOWN and moved is not UNKNOWN):
            return operations, moved
        counted = amounts(case.function, case.accesses, self._parser)
        return counted[0] if operations is UNKNOWN else operations, counted[1] if moved is UNKNOWN else moved

    def _operation_kind(self, case: Case) -> str:
        root = next((site.root for site in case.sites if site.root), None)
        return self._request.bundle.graph.op_by_id[root.op].name if root else ""

    def _in_application(self, case: Case, warm: Spread | None, cold: Spread | None) -> tuple[InApplication, ...]:
        if warm is None:
            return ()
        seen = [site.id for site in case.sites if site.id in self._application.sites]
        alone = Alone(warm.median, cold.median if cold else 0.0, (warm.q3 - warm.q1) / warm.median)
        return tuple(explained(site, self._run_of_application, self._again, alone) for site in seen)


def _beside(
    application: Application, cases: Sequence[Case], outcomes: Mapping[int, Outcome]
) -> Iterator[tuple[float, float]]:
    """Of each kernel that a run has the time of its first site there, and its time alone."""
    known = application.sites
    for number, outcome in outcomes.items():
        seen = [known[site.id].median_ns for site in cases[number].sites if site.id in known]
        if seen and outcome.answer.warm.call_ns:
            yield seen[0], statistics.median(outcome.answer.warm.call_ns)


_UNASKED: Final = Verification(Status.NOT_VERIFIED, UNKNOWN, 0.0, "--no-verify was given")


def _has_no_reference(outcome: Outcome) -> bool:
    """Whether numpy could not compute a kernel that came to its end, and that has one result."""
    found = outcome.verification
    unknown = found.status is Status.NOT_VERIFIED and found.reference is UNKNOWN and found is not _UNASKED
    return unknown and not outcome.ended and not found.reason.startswith((OWN_CODE, UNDEFINED))


def _not_verified(reason: str) -> Verification:
    return Verification(Status.NOT_VERIFIED, UNKNOWN, 0.0, reason)


def _failed(reason: str) -> Verification:
    return Verification(Status.FAILED, UNKNOWN, 0.0, reason)


def verified(case: Case, call: Call, folder: Path, answer: Answer) -> Verification:
    """Compare what a call left in its buffers with what the reference leaves."""
    assert case.function is not None
    if (wanted := _COMPARING * case.used_bytes) > (free := free_memory()):
        return _not_verified(f"comparing it takes {format_bytes(wanted)}, and {format_bytes(free)} of memory are free")
    expected = whole_memory(call)
    actual = left_behind(call, expected, folder, answer.call)
    if answer.spoiled is not None:
        return _failed(changed(answer.spoiled).text)
    try:
        computed = case.function.run(expected)
    except SURPRISES as error:
        return _not_verified(not_computed(error))
    return judged(call, expected, actual, computed.stored, _NUMPY, computed.precision)


def _by_the_map(case: Case) -> tuple[Integer, Integer]:
    """Operations and bytes of a call, by the map; the members' of the first site."""
    if not case.sites:
        return UNKNOWN, UNKNOWN
    operations: Integer = 0
    moved: Integer = 0
    for member in case.sites[0].members:
        operations, moved = add(operations, member.operations), add(moved, member.bytes)
    return operations, moved


def _per_second(amount: Integer, seconds: float) -> float | None:
    return round(amount / seconds, 1) if seconds and isinstance(amount, int) else None


def _attainable_s(operations: Integer, moved: Integer, peaks: Peaks) -> float:
    """How long a call takes at least at the machine's peaks (the roofline); 0 where that is not known."""
    if isinstance(operations, Unknown) or isinstance(moved, Unknown):
        return 0.0
    return max(operations / peaks.operations_per_second, moved / peaks.bytes_per_second)
