"""`bench`: verify and time kernels of a bundle alone."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import structs

from tracemap.core.process.limits import free_memory
from tracemap.core.process.temporary_files import temporary_folder
from tracemap.core.toolchain import Progress
from tracemap.core.units import UNKNOWN, Integer, Unknown, format_bytes, split_by_largest_remainder, sum_of
from tracemap.ir.executables import read_dispatches
from tracemap.ir.parsing import MlirParser, Module
from tracemap.kernels.bench_cases import Case, find_cases, memory_after, whole_memory
from tracemap.kernels.benchmark_module import benchmark_module_text, compile_benchmark_module
from tracemap.kernels.model import ApplicationComparison, KernelBench, Spread, Status, Verification
from tracemap.kernels.operations import amounts, arguments, operation_name
from tracemap.kernels.reference.elements import OWN_CODE, SURPRISES, UNDEFINED, not_computed
from tracemap.kernels.runner_jobs import Call, CallResult, FailedCall, Job, Timing, run_job, written_path
from tracemap.kernels.verification import (
    NOT_FINITE,
    AloneTimes,
    ApplicationCalls,
    ApplicationRun,
    UntiledReference,
    compare,
    explain_site,
    nearly_equal,
    typical_ratio,
    unexpected_write,
)
from tracemap.machine.code_figures import same_code
from tracemap.runs.statistics import quartiles

if TYPE_CHECKING:
    from tracemap.ir.host_constants import Extent
    from tracemap.map.bundle import Bundle
    from tracemap.options.kernels import BenchOptions
    from tracemap.runs.model import Peaks


# ---- outcomes
#
# Results of kernels that were run alone, in one process or in several that share the repetitions.


@dataclass(frozen=True, slots=True)
class CaseOutcome:
    """Result of running a case. `ended`: how the call failed, or "" if it completed."""

    answer: CallResult
    verification: Verification
    ended: str


NOT_RUN: Final = CallResult(0, 0.0, Timing(0, 0, ()), Timing(0, 0, ()))


def repetitions_per_process(options: BenchOptions) -> list[int]:
    """Repetitions per process."""
    processes = min(options.processes, options.repetitions)
    return split_by_largest_remainder(options.repetitions, [1] * processes)


def merge_outcomes(first: CaseOutcome, second: CaseOutcome) -> CaseOutcome:
    """Merge the outcomes of a case from two processes; a failure of the second one decides."""
    if second.ended:
        return replace(first, verification=second.verification, ended=second.ended)
    warm, cold = (
        structs.replace(left, call_ns=(*left.call_ns, *right.call_ns))
        for left, right in ((first.answer.warm, second.answer.warm), (first.answer.cold, second.answer.cold))
    )
    return replace(first, answer=structs.replace(first.answer, warm=warm, cold=cold))


def spread_of(timed: Timing) -> Spread | None:
    """Median and quartiles of a call's time over all batches; None without times."""
    if not timed.call_ns:
        return None
    times = timed.call_ns
    q1, median, q3 = quartiles(times)
    return Spread(round(median, 3), round(q1, 3), round(q3, 3), len(times), timed.batch, timed.copies)


# ---- bench
#
# Run kernels alone: verify them, time them with warm and cold caches, compare them with the application.


_DEVICE: Final = "local-sync"
_NUMPY: Final = "numpy"
_COMPARISON_COPIES: Final = 6
"""Memory for verification over the size of the data: expected and actual values, partly in double precision."""
_COLD_CACHES: Final = 2
"""Bytes used between two accesses to the same data, over the size of the last-level cache."""


@dataclass(frozen=True)
class BenchRequest:
    """Kernels of a bundle to run, and how.

    Attributes:
        kernels: names in the order of the results; empty: all kernels.
        extent: sizes of the program's arguments.
        look: measures the machine's peaks, and returns the best so far.
        application: calls of the dispatch sites in a run, given the current peaks; empty without a run.
        record_again: records the application on one worker. Called if a kernel takes another time alone.
    """

    bundle: Bundle
    options: BenchOptions
    kernels: tuple[str, ...]
    extent: Extent
    look: Callable[[], Peaks]
    cache_bytes: int
    application: Callable[[Peaks], ApplicationCalls] = lambda _: ApplicationCalls()
    record_again: Callable[[], ApplicationCalls] = ApplicationCalls
    reference: bytes = b""
    """Configured module with reference kernels of the same names; empty: the bundle's own kernels."""


def bench(request: BenchRequest, progress: Progress) -> tuple[KernelBench, ...]:
    """Run kernels alone.

    Raises:
        BundleInvalid: the bundle's kernels are missing or damaged.
        ToolFailed: the kernels cannot be compiled.
        ToolMissing: the compiler or the runtime is not installed.
    """
    with temporary_folder() as folder:
        return _BenchRun(request, folder, progress).run()


class _BenchRun:
    """State and steps of a `bench` call."""

    def __init__(self, request: BenchRequest, folder: Path, progress: Progress) -> None:
        self._request, self._folder, self._progress = request, folder, progress
        self._options, self._flags = request.options, request.bundle.graph.module.flags
        self._parser = MlirParser()
        self._first_run = self._again = ApplicationRun(ApplicationCalls())
        self._peaks = request.look()
        self._application = request.application(self._peaks)

    def run(self) -> tuple[KernelBench, ...]:
        self._progress("reading the kernels")
        cases = self._cases()
        runnable = [case for case in cases if not case.obstacle]
        outcomes: dict[int, CaseOutcome] = {}
        same: dict[str, bool] = {}
        if runnable:
            self._progress(f"compiling {len(runnable)} kernels")
            text = benchmark_module_text(self._configured(), [case.dispatch for case in runnable])
            module = compile_benchmark_module(text, self._flags, self._folder)
            same = same_code(self._request.bundle.module_path, module)
            # Peaks are measured between the runs of kernels, never at the same time. Several attempts, far apart, ride
            # out a busy moment.
            self._request.look()
            outcomes = self._outcomes(runnable, module)
            self._request.look()
            outcomes = self._with_cold(runnable, module, outcomes)
            self._peaks = self._request.look()
            self._compare_with_application(runnable, outcomes)
        numbers = {id(case): number for number, case in enumerate(runnable)}
        results = []
        for case in cases:
            outcome = outcomes.get(numbers.get(id(case), -1))
            results.append(self._result(case, outcome, same.get(case.kernel) if outcome else None))
        return tuple(results)

    def _configured(self) -> Module:
        return self._parser.parse(self._request.bundle.configured())

    def _cases(self) -> list[Case]:
        reference = self._request.reference
        self._module = module = (
            self._parser.parse(reference) if reference else self._configured()
        )  # keeps the operations of the cases alive
        dispatches = read_dispatches(module, self._request.extent)
        cases = find_cases(self._request.bundle.graph, module, dispatches)
        names = self._request.kernels
        if not names:
            return cases
        order = {name: number for number, name in enumerate(names)}
        return sorted((case for case in cases if case.kernel in order), key=lambda case: order[case.kernel])

    def _outcomes(self, cases: Sequence[Case], module: Path) -> dict[int, CaseOutcome]:
        """Run and verify all cases. If inputs lead to infinities or NaN, verify again with positive inputs."""
        cold = self._options.cold
        outcomes = self._timed(cases, module, range(len(cases)), cold=cold)
        not_finite = [number for number, outcome in outcomes.items() if outcome.verification.reason == NOT_FINITE]
        if not_finite:
            positive_outcomes = self._run(cases, module, not_finite, 0, cold=False, positive=True)
            for number, outcome in positive_outcomes.items():
                outcomes[number] = replace(outcomes[number], verification=outcome.verification)
        without_reference = [number for number, outcome in outcomes.items() if _has_no_reference(outcome)]
        if without_reference:
            configured = self._request.reference or self._request.bundle.configured()
            limit_s = self._options.time_limit
            untiled = UntiledReference(configured, self._flags, module, cases, self._folder, limit_s)
            for number, verification in untiled.verify(without_reference).items():
                outcomes[number] = replace(outcomes[number], verification=verification)
        return outcomes

    def _with_cold(
        self, cases: Sequence[Case], module: Path, outcomes: dict[int, CaseOutcome]
    ) -> dict[int, CaseOutcome]:
        """Measure with cold caches, too, if a kernel takes another time in the application."""
        if self._options.cold:
            return outcomes
        differing = [number for number, outcome in outcomes.items() if self._differs(cases[number], outcome)]
        if differing:
            cold_outcomes = self._timed(cases, module, differing, cold=True, verify=False)
            for number, outcome in cold_outcomes.items():
                outcomes[number] = replace(outcomes[number], answer=outcome.answer)
        return outcomes

    def _compare_with_application(self, cases: Sequence[Case], outcomes: Mapping[int, CaseOutcome]) -> None:
        """Read the run of the application, and record it again if a kernel's time differs."""
        application, again = self._request.application(self._peaks), ApplicationCalls()
        if any(self._differs(cases[number], outcome) for number, outcome in outcomes.items()):
            self._progress("recording the application on one worker")
            again = self._request.record_again()
        self._first_run = ApplicationRun(application, typical_ratio(_time_pairs(application, cases, outcomes)))
        self._again = ApplicationRun(again, typical_ratio(_time_pairs(again, cases, outcomes)))

    def _differs(self, case: Case, outcome: CaseOutcome) -> bool:
        if not outcome.answer.warm.call_ns:
            return False
        warm_ns, sites = statistics.median(outcome.answer.warm.call_ns), self._application.sites
        medians_ns = [sites[site.id].median_ns for site in case.sites if site.id in sites]
        return any(not nearly_equal(median_ns, warm_ns) for median_ns in medians_ns)

    def _timed(
        self, cases: Sequence[Case], module: Path, numbers: Sequence[int], *, cold: bool, verify: bool = True
    ) -> dict[int, CaseOutcome]:
        """Run some of the cases in successive processes that share the repetitions; the first process verifies.

        The memory layout of data and code is random per process, but fixed within it. So times within one process agree
        with each other, but not with those of the next process. Repetition belongs at the level where times vary
        (T. Kalibera, R. Jones: Rigorous benchmarking in reasonable time, ISMM 2013).
        """
        first, *others = repetitions_per_process(self._options)
        outcomes = self._run(cases, module, numbers, first, cold=cold, positive=False, verify=verify)
        for repetitions in others:
            completed = [number for number in numbers if number in outcomes and not outcomes[number].ended]
            more = self._run(cases, module, completed, repetitions, cold=cold, positive=False, verify=False)
            outcomes |= {number: merge_outcomes(outcomes[number], outcome) for number, outcome in more.items()}
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
    ) -> dict[int, CaseOutcome]:
        """Run some of the cases in one process."""
        options, verify = self._options, verify and not self._options.no_verify
        calls = tuple(cases[number].call(number, positive) for number in numbers)
        outputs = written_path(self._folder) if verify else ""
        cold_bytes = _COLD_CACHES * self._request.cache_bytes if cold else 0
        least_ns = max(1, round(options.min_time * 1e6))
        job = Job((written_path(module),), _DEVICE, calls, outputs, repetitions, least_ns, cold_bytes)
        outcomes: dict[int, CaseOutcome] = {}

        def tell(index: int) -> None:
            self._progress(f"running {cases[numbers[index]].kernel} ({index + 1} of {len(calls)})")

        for answer in run_job(job, self._folder, options.time_limit, tell):
            number = numbers[answer.call]
            if isinstance(answer, FailedCall):
                verification = _not_verified(answer.text) if answer.for_memory else _failed(answer.text)
                outcomes[number] = CaseOutcome(NOT_RUN, verification, answer.text)
                continue
            verification = verify_call(cases[number], calls[answer.call], self._folder, answer) if verify else _SKIPPED
            outcomes[number] = CaseOutcome(answer, verification, "")
        return outcomes

    def _result(self, case: Case, outcome: CaseOutcome | None, same_code: bool | None) -> KernelBench:
        """The report of a case."""
        answer = NOT_RUN if outcome is None else outcome.answer
        warm, cold = spread_of(answer.warm), spread_of(answer.cold)
        verification = _not_verified(case.obstacle) if outcome is None else outcome.verification
        operations, moved = self._work(case)
        seconds = warm.median / 1e9 if warm else 0.0
        roofline_s = _roofline_s(operations, moved, self._peaks)
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
            roofline_share=round(roofline_s / seconds, 4) if seconds and roofline_s else None,
            same_code=same_code,
            stood_in=case.dispatch.stood_in,
            in_application=self._in_application(case, warm, cold),
            not_measured=case.obstacle or (outcome.ended if outcome else ""),
        )

    def _work(self, case: Case) -> tuple[Integer, Integer]:
        """Operations and bytes of a call, from the map; if sizes are unknown there, counted with those of the case."""
        operations, moved = _work_by_map(case)
        if case.function is None or (operations is not UNKNOWN and moved is not UNKNOWN):
            return operations, moved
        counted = amounts(case.function, case.accesses, self._parser)
        return counted[0] if operations is UNKNOWN else operations, counted[1] if moved is UNKNOWN else moved

    def _operation_kind(self, case: Case) -> str:
        root = next((site.root for site in case.sites if site.root), None)
        return self._request.bundle.graph.op_by_id[root.op].name if root else ""

    def _in_application(
        self, case: Case, warm: Spread | None, cold: Spread | None
    ) -> tuple[ApplicationComparison, ...]:
        if warm is None:
            return ()
        sites = [site.id for site in case.sites if site.id in self._application.sites]
        alone = AloneTimes(warm.median, cold.median if cold else 0.0, (warm.q3 - warm.q1) / warm.median)
        return tuple(explain_site(site, self._first_run, self._again, alone) for site in sites)


def _time_pairs(
    application: ApplicationCalls, cases: Sequence[Case], outcomes: Mapping[int, CaseOutcome]
) -> Iterator[tuple[float, float]]:
    """For each kernel with calls in a run, the time at its first site there, and its time alone."""
    sites = application.sites
    for number, outcome in outcomes.items():
        medians_ns = [sites[site.id].median_ns for site in cases[number].sites if site.id in sites]
        if medians_ns and outcome.answer.warm.call_ns:
            yield medians_ns[0], statistics.median(outcome.answer.warm.call_ns)


_SKIPPED: Final = Verification(Status.NOT_VERIFIED, UNKNOWN, 0.0, "--no-verify was given")


def _has_no_reference(outcome: CaseOutcome) -> bool:
    """Whether the call completed, but numpy has no reference; kernels without a unique result are excluded."""
    result = outcome.verification
    unknown = result.status is Status.NOT_VERIFIED and result.reference is UNKNOWN and result is not _SKIPPED
    return unknown and not outcome.ended and not result.reason.startswith((OWN_CODE, UNDEFINED))


def _not_verified(reason: str) -> Verification:
    return Verification(Status.NOT_VERIFIED, UNKNOWN, 0.0, reason)


def _failed(reason: str) -> Verification:
    return Verification(Status.FAILED, UNKNOWN, 0.0, reason)


def verify_call(case: Case, call: Call, folder: Path, answer: CallResult) -> Verification:
    """Compare the buffers after a call with those of the reference."""
    assert case.function is not None
    if (needed := _COMPARISON_COPIES * case.used_bytes) > (free := free_memory()):
        return _not_verified(
            f"comparing takes {format_bytes(needed)}, but only {format_bytes(free)} of memory are free"
        )
    expected = whole_memory(call)
    actual = memory_after(call, expected, folder, answer.call)
    if answer.spoiled is not None:
        return _failed(unexpected_write(answer.spoiled).text)
    try:
        computed = case.function.run(expected)
    except SURPRISES as error:
        return _not_verified(not_computed(error))
    return compare(call, expected, actual, computed.stored, _NUMPY, computed.precision)


def _work_by_map(case: Case) -> tuple[Integer, Integer]:
    """Operations and bytes of a call from the map: the sum over the fused ops of the first site."""
    if not case.sites:
        return UNKNOWN, UNKNOWN
    operations: Integer = 0
    moved: Integer = 0
    for member in case.sites[0].members:
        operations, moved = sum_of((operations, member.operations)), sum_of((moved, member.bytes))
    return operations, moved


def _per_second(amount: Integer, seconds: float) -> float | None:
    return round(amount / seconds, 1) if seconds and isinstance(amount, int) else None


def _roofline_s(operations: Integer, moved: Integer, peaks: Peaks) -> float:
    """Roofline time of a call: the least time at the machine's peaks, in s; 0 if unknown."""
    if isinstance(operations, Unknown) or isinstance(moved, Unknown):
        return 0.0
    return max(operations / peaks.operations_per_second, moved / peaks.bytes_per_second)
