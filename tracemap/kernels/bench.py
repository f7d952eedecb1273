"""`bench`: verify and time kernels of a bundle alone."""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

from tracemap.core.process.limits import free_memory
from tracemap.core.process.temporary_files import temporary_folder
from tracemap.core.toolchain import Progress
from tracemap.core.units import UNKNOWN, Integer, Unknown, format_bytes, split_by_largest_remainder, sum_of
from tracemap.ir.attributes import DYNAMIC, Shape, shape_of
from tracemap.ir.dispatch_bodies import read_body
from tracemap.ir.executables import read_dispatches
from tracemap.ir.parsing import MlirParser, Value, producer_of
from tracemap.kernels.bench_cases import Case, find_cases, memory_after, whole_memory
from tracemap.kernels.benchmark_module import benchmark_module_text, compile_benchmark_module
from tracemap.kernels.model import ApplicationComparison, KernelBench, Spread, Status, Verification
from tracemap.kernels.reference.elements import OWN_CODE, SURPRISES, UNDEFINED, View, not_computed, stored_bits
from tracemap.kernels.reference.kernel import Access, KernelFunction
from tracemap.kernels.reference.tensors import LOAD
from tracemap.kernels.runner_jobs import Call, CallResult, FailedCall, Job, Timing, run_job, written_path
from tracemap.kernels.verification import (
    NOT_FINITE,
    AloneTimes,
    ApplicationCalls,
    ApplicationRun,
    compare,
    explain_site,
    nearly_equal,
    typical_ratio,
    unexpected_write,
    verify_untiled,
)
from tracemap.machine.code_figures import same_code
from tracemap.map.build.sites.cost import CostModel
from tracemap.runs.statistics import quartiles

if TYPE_CHECKING:
    from tracemap.ir.host_constants import Extent
    from tracemap.map.bundle import Bundle
    from tracemap.options.kernels import BenchOptions
    from tracemap.runs.model import Peaks


# ---- outcomes


@dataclass(frozen=True, slots=True)
class CaseOutcome:
    """Result of running a case. `ended`: how the call failed, or "" if it completed."""

    answer: CallResult
    verification: Verification
    ended: str


NOT_RUN: Final = CallResult(0)


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
    q1, median, q3 = (round(time_ns, 3) for time_ns in quartiles(timed.call_ns))
    return Spread(median, q1, q3, len(timed.call_ns), timed.batch, timed.copies)


# ---- amounts
#
# Operations and bytes of a kernel call, counted by the map's rules for kernels whose sizes the map does not know.
#
# The kernel's push constants decide the sizes of its tensors. A tensor that an unsupported operation produces has an
# unknown size.


_KERNEL: Final = ("kernel",)
_STRUCTURED: Final = ("linalg.", "iree_linalg_ext.")
_MAX_DEPTH: Final = 100


def amounts(function: KernelFunction, accesses: Sequence[Access], parser: MlirParser) -> tuple[Integer, Integer]:
    """Operations and bytes of a call; unknown if they depend on an unknown size."""
    moved = sum(_bytes(access.view) * (access.loaded + access.stored) for access in accesses)
    try:
        body = read_body(parser, function.operation, partial(_shape, function.numbers()))
    except SURPRISES:
        return UNKNOWN, moved
    # As in the map, operations that compute sizes and addresses do not count.
    counted = [
        replace(op, iterations=0)
        if op.parent < 0 and all(shape.element_bits is UNKNOWN for shape in op.results)
        else op
        for op in body
    ]
    return CostModel(counted, lambda _: _KERNEL).operations.get(*_KERNEL, 0), moved


def _bytes(view: View) -> int:
    return -(-math.prod(view.extents) * stored_bits(view.element) // 8)


def _shape(number_of: Callable[[Value], Any], value: Value, depth: int = 0) -> Shape:
    """The shape of a value; `number_of` evaluates its dynamic sizes, to a number or a view of memory."""
    static_shape = shape_of(str(value.type))
    owner = producer_of(value)
    if UNKNOWN not in static_shape.extents or owner is None or depth > _MAX_DEPTH:
        return static_shape
    if owner.name == LOAD:
        return Shape(tuple(number_of(owner.operands[0]).extents), static_shape.element_bits)
    if owner.name == "tensor.empty":
        dynamic = iter(owner.operands)
        sizes = (number_of(next(dynamic)) if size == DYNAMIC else size for size in value.type.shape)
        return Shape(tuple(map(int, sizes)), static_shape.element_bits)
    if owner.name.startswith(_STRUCTURED):  # outputs are the last operands
        output = owner.operands[len(owner.operands) - len(owner.results) + value.result_number]
        return _shape(number_of, output, depth + 1)
    return static_shape


# ---- bench


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
    """State and steps of a `bench` call. Outcomes are keyed by the index of a runnable case."""

    def __init__(self, request: BenchRequest, folder: Path, progress: Progress) -> None:
        self._request, self._folder, self._progress = request, folder, progress
        self._options, self._flags = request.options, request.bundle.graph.module.flags
        self._parser = MlirParser()
        self._first_run = self._again = ApplicationRun(ApplicationCalls())
        self._peaks = request.look()
        self._application = request.application(self._peaks)
        self._runnable: Sequence[Case] = ()
        self._compiled = folder

    def run(self) -> tuple[KernelBench, ...]:
        self._progress("reading the kernels")
        cases = self._cases()
        self._runnable = runnable = [case for case in cases if not case.obstacle]
        outcomes: dict[int, CaseOutcome] = {}
        same: dict[str, bool] = {}
        if runnable:
            self._progress(f"compiling {len(runnable)} kernels")
            module = self._parser.parse(self._request.bundle.configured())
            text = benchmark_module_text(module, [case.dispatch for case in runnable])
            self._compiled = compile_benchmark_module(text, self._flags, self._folder)
            same = same_code(self._request.bundle.module_path, self._compiled)
            # Peaks are measured between the runs of kernels, never at the same time. Several attempts, far apart, ride
            # out a busy moment.
            self._request.look()
            outcomes = self._outcomes()
            self._request.look()
            outcomes |= self._with_cold(outcomes)
            self._peaks = self._request.look()
            self._compare_with_application(outcomes)
        numbers = itertools.count()
        return tuple(
            self._result(case, CaseOutcome(NOT_RUN, _not_verified(case.obstacle), case.obstacle), None)
            if case.obstacle
            else self._result(case, outcomes[next(numbers)], same.get(case.kernel))
            for case in cases
        )

    def _cases(self) -> list[Case]:
        configured = self._request.reference or self._request.bundle.configured()
        self._module = module = self._parser.parse(configured)  # keeps the operations of the cases alive
        dispatches = read_dispatches(module, self._request.extent)
        cases = find_cases(self._request.bundle.graph, module, dispatches)
        names = self._request.kernels
        if not names:
            return cases
        order = {name: number for number, name in enumerate(names)}
        return sorted((case for case in cases if case.kernel in order), key=lambda case: order[case.kernel])

    def _outcomes(self) -> dict[int, CaseOutcome]:
        """Run and verify all cases. If inputs lead to infinities or NaN, verify again with positive inputs."""
        outcomes = self._timed(range(len(self._runnable)), cold=self._options.cold)
        not_finite = [number for number, outcome in outcomes.items() if outcome.verification.reason == NOT_FINITE]
        if not_finite:
            for number, outcome in self._run(not_finite, 0, positive=True).items():
                outcomes[number] = replace(outcomes[number], verification=outcome.verification)
        without_reference = [number for number, outcome in outcomes.items() if _has_no_reference(outcome)]
        configured = self._request.reference or (self._request.bundle.configured() if without_reference else b"")
        for number in without_reference:
            case, limit_s = self._runnable[number], self._options.time_limit
            verification = verify_untiled(case, number, self._compiled, configured, self._flags, self._folder, limit_s)
            if verification is not None:
                outcomes[number] = replace(outcomes[number], verification=verification)
        return outcomes

    def _with_cold(self, outcomes: Mapping[int, CaseOutcome]) -> dict[int, CaseOutcome]:
        """Measure with cold caches, too, the kernels that take another time in the application."""
        differing = [] if self._options.cold else self._differing(outcomes)
        cold_outcomes = self._timed(differing, cold=True, verify=False) if differing else {}
        return {number: replace(outcomes[number], answer=cold.answer) for number, cold in cold_outcomes.items()}

    def _compare_with_application(self, outcomes: Mapping[int, CaseOutcome]) -> None:
        """Read the run of the application, and record it again if a kernel's time differs."""
        application, again = self._request.application(self._peaks), ApplicationCalls()
        if self._differing(outcomes):
            self._progress("recording the application on one worker")
            again = self._request.record_again()
        self._first_run, self._again = (
            ApplicationRun(
                calls, typical_ratio((sites_ns[0], alone_ns) for _, sites_ns, alone_ns in self._times(calls, outcomes))
            )
            for calls in (application, again)
        )

    def _differing(self, outcomes: Mapping[int, CaseOutcome]) -> list[int]:
        """The cases that take another time at one of their sites in the application."""
        return [
            number
            for number, sites_ns, alone_ns in self._times(self._application, outcomes)
            if not all(nearly_equal(site_ns, alone_ns) for site_ns in sites_ns)
        ]

    def _times(
        self, application: ApplicationCalls, outcomes: Mapping[int, CaseOutcome]
    ) -> Iterator[tuple[int, list[int], float]]:
        """For each case with calls in a run: its median times at the sites there, and its median time alone."""
        sites = application.sites
        for number, outcome in outcomes.items():
            medians_ns = [sites[site.id].median_ns for site in self._runnable[number].sites if site.id in sites]
            if medians_ns and outcome.answer.warm.call_ns:
                yield number, medians_ns, statistics.median(outcome.answer.warm.call_ns)

    def _timed(self, numbers: Sequence[int], *, cold: bool, verify: bool = True) -> dict[int, CaseOutcome]:
        """Run some of the cases in successive processes that share the repetitions; the first process verifies.

        The memory layout of data and code is random per process, but fixed within it. So times within one process agree
        with each other, but not with those of the next process. Repetition belongs at the level where times vary
        (T. Kalibera, R. Jones: Rigorous benchmarking in reasonable time, ISMM 2013).
        """
        first, *others = repetitions_per_process(self._options)
        outcomes = self._run(numbers, first, cold=cold, verify=verify)
        for repetitions in others:
            completed = [number for number in numbers if number in outcomes and not outcomes[number].ended]
            more = self._run(completed, repetitions, cold=cold, verify=False)
            outcomes |= {number: merge_outcomes(outcomes[number], outcome) for number, outcome in more.items()}
        return outcomes

    def _run(
        self,
        numbers: Sequence[int],
        repetitions: int,
        *,
        cold: bool = False,
        positive: bool = False,
        verify: bool = True,
    ) -> dict[int, CaseOutcome]:
        options, verify = self._options, verify and not self._options.no_verify
        cases = [self._runnable[number] for number in numbers]
        calls = tuple(case.call(number, positive) for number, case in zip(numbers, cases, strict=True))
        job = Job(
            (written_path(self._compiled),),
            calls=calls,
            outputs=written_path(self._folder) if verify else "",
            repetitions=repetitions,
            least_ns=max(1, round(options.min_time * 1e6)),
            cold_bytes=_COLD_CACHES * self._request.cache_bytes if cold else 0,
        )
        outcomes: dict[int, CaseOutcome] = {}

        def tell(index: int) -> None:
            self._progress(f"running {cases[index].kernel} ({index + 1} of {len(calls)})")

        for answer in run_job(job, self._folder, options.time_limit, tell):
            case, number = cases[answer.call], numbers[answer.call]
            if isinstance(answer, FailedCall):
                verification = _not_verified(answer.text) if answer.for_memory else _failed(answer.text)
                outcomes[number] = CaseOutcome(NOT_RUN, verification, answer.text)
                continue
            verification = verify_call(case, calls[answer.call], self._folder, answer) if verify else _SKIPPED
            outcomes[number] = CaseOutcome(answer, verification, "")
        return outcomes

    def _result(self, case: Case, outcome: CaseOutcome, same_code: bool | None) -> KernelBench:
        warm, cold = spread_of(outcome.answer.warm), spread_of(outcome.answer.cold)
        operations, moved = self._work(case)
        seconds = warm.median / 1e9 if warm else 0.0
        roofline_s = _roofline_s(operations, moved, self._peaks)
        root = next((site.root for site in case.sites if site.root), None)
        name = _OPERATION_IN_NAME.fullmatch(case.kernel)
        return KernelBench(
            kernel=case.kernel,
            sites=tuple(site.id for site in case.sites),
            arguments=_arguments(case.accesses),
            operation_kind=self._request.bundle.graph.op_by_id[root.op].name if root else "",
            operation=name[1] if name else case.kernel,
            configuration=case.configuration,
            verification=outcome.verification,
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
            not_measured=outcome.ended,
        )

    def _work(self, case: Case) -> tuple[Integer, Integer]:
        """Operations and bytes of a call: the map's at the first site, or counted if sizes are unknown there."""
        operations: Integer = 0 if case.sites else UNKNOWN
        moved = operations
        for member in case.sites[0].members if case.sites else ():
            operations, moved = sum_of((operations, member.operations)), sum_of((moved, member.bytes))
        if case.function is None or (operations is not UNKNOWN and moved is not UNKNOWN):
            return operations, moved
        counted = amounts(case.function, case.accesses, self._parser)
        return counted[0] if operations is UNKNOWN else operations, counted[1] if moved is UNKNOWN else moved

    def _in_application(
        self, case: Case, warm: Spread | None, cold: Spread | None
    ) -> tuple[ApplicationComparison, ...]:
        if warm is None:
            return ()
        sites = [site.id for site in case.sites if site.id in self._application.sites]
        alone = AloneTimes(warm.median, cold.median if cold else 0.0, (warm.q3 - warm.q1) / warm.median)
        return tuple(explain_site(site, self._first_run, self._again, alone) for site in sites)


_OPERATION_IN_NAME = re.compile(r".*?_dispatch_\d+_(.+)", re.DOTALL)
"""The operation in a kernel's name: `matmul_64x64x64_f32` of `main_dispatch_4_matmul_64x64x64_f32`."""


def _arguments(accesses: Sequence[Access]) -> str:
    """The shapes that a kernel reads and writes: `64x64xf32, 64xf32 -> 64x64xf32`."""
    read = ", ".join(access.view.type for access in accesses if access.loaded)
    return f"{read} -> {', '.join(access.view.type for access in accesses if access.stored)}"


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
        return _failed(unexpected_write(answer.spoiled))
    try:
        computed = case.function.run(expected)
    except SURPRISES as error:
        return _not_verified(not_computed(error))
    return compare(call, expected, actual, computed.stored, _NUMPY, computed.precision)


def _per_second(amount: Integer, seconds: float) -> float | None:
    return round(amount / seconds, 1) if seconds and isinstance(amount, int) else None


def _roofline_s(operations: Integer, moved: Integer, peaks: Peaks) -> float:
    """Roofline time of a call: the least time at the machine's peaks, in s; 0 if unknown."""
    if isinstance(operations, Unknown) or isinstance(moved, Unknown):
        return 0.0
    return max(operations / peaks.operations_per_second, moved / peaks.bytes_per_second)
