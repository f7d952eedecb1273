"""Results of a kernel verified against the reference, and differences explained."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracemap.core.errors import ModelInvalid, ToolFailed
from tracemap.core.units import UNKNOWN, Integer
from tracemap.ir.parsing import MlirParser, walk
from tracemap.kernels.bench_cases import Case, memory_after, whole_memory
from tracemap.kernels.benchmark_module import benchmark_module_text, compile_benchmark_module
from tracemap.kernels.configurations import with_pipeline
from tracemap.kernels.model import ApplicationComparison, Status, Verification
from tracemap.kernels.reference.elements import EPSILON, SURPRISES, Memory, View, from_memory, stored_type
from tracemap.kernels.reference.kernel import Precision
from tracemap.kernels.runner_jobs import BufferByte, Call, FailedCall, run_once

# ---- explaining
#
# Why a kernel takes another time alone than in the application.
#
# A kernel alone has the processor and its caches to itself, and its data is where the last call left it. If the times
# differ, the application is recorded again, on one worker, right after the kernels. If the difference is gone then,
# the machine or the other workers caused it. Otherwise these causes are tried, the most certain first:
#
# 1. The machine's peaks have changed since the run was recorded. 2. The caches are cold in the application. 3. Most
# kernels differ by the same factor, so the machine is faster or slower. 4. Calls are so short that the cost of
# starting them counts. 5. Times vary, alone or in the run. 6. Other workers compete for caches, memory and cores.
#
# A difference with none of these causes is reported as not explained.


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
class ApplicationCalls:
    """A run of the application: calls by site id, number of workers, and noise.

    Attributes:
        speed: machine speed during the run over machine speed now.
        noisy: other programs kept the run waiting for a CPU.
    """

    sites: Mapping[str, SiteCalls] = field(default_factory=dict)
    workers: Integer = UNKNOWN
    speed: float = 1.0
    noisy: bool = False


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

    application: ApplicationCalls
    typical: float = 1.0


def explain_site(site: str, run: ApplicationRun, again: ApplicationRun, alone: AloneTimes) -> ApplicationComparison:
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
        workers = run.application.workers
        contended = isinstance(workers, int) and workers > 1
        points_to = (
            f"contention: the run has {workers} workers; recorded again on one, it takes as long as alone"
            if contended
            else "the machine: recorded again right after the kernels, it takes as long as alone"
        )
    else:
        points_to = _cause(in_rerun.median_ns, again, alone)
    ratio = round(in_run.median_ns / alone.warm_ns, 3)
    rerun_ns = UNKNOWN if in_rerun is None else in_rerun.median_ns
    return ApplicationComparison(site, in_run.calls, in_run.median_ns, ratio, rerun_ns, points_to)


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
    if application.noisy:
        return "a noisy run: other programs kept the application waiting for a CPU"
    if isinstance(application.workers, int) and application.workers > 1 and median_ns > alone.warm_ns:
        return f"contention: {application.workers} workers share caches, memory and cores"
    return "not explained: not by cold caches, machine speed, call length, noise or other workers"


def _is_cold(median_ns: float, alone: AloneTimes) -> bool:
    """Whether a time lies between the times with warm and with cold caches."""
    return alone.warm_ns < median_ns <= ALIKE * alone.cold_ns


# ---- verifying
#
# Compare a kernel's memory with its reference's. All bytes that the kernel may have changed are checked.
#
# Floats must agree within a tolerance that follows from the types. Other elements must be equal. Bytes that the kernel
# should not write must be unchanged. A float agrees if it differs by at most
#
# T (|reference| + the reference's root mean square over the tensor), T = m eps + 4 eps_sum sqrt(n)
#
# The root mean square leaves out masks: otherwise a few elements of -3e38 would excuse any error in the others. eps is
# the distance of 1 to the next number of the coarsest type that the kernel computes with, eps_sum that of the sums, and
# n the length of the longest sum. Rounding errors of n terms grow as sqrt(n) (Higham, Accuracy and Stability of
# Numerical Algorithms, 2nd ed., section 2.6). m is 8, or 64 for functions that code generation approximates: MLIR's
# polynomial for tanh is off by 16 units in the last place (observed with IREE 3.13 on AVX2).
#
# T bounds the worst of many elements. Rounding errors have no direction and most are smaller. So for tensors of some
# size, the root mean square of the relative differences must be at most T / 8. This finds errors that are small but
# everywhere, such as a constant that is off by three percent in bf16, whose T is 6 %.
#
# For long sums in narrow types T is so large that a wrong kernel would agree, too: it is 4 for a sum of a million
# numbers in f16. If half the reference's values would agree, the kernel is reported as not verified.


_ROUNDINGS: Final = 8
_APPROXIMATED_ROUNDINGS: Final = 64
_SUM_ROUNDINGS: Final = 4
_MEAN_FACTOR: Final = 8.0
"""Tolerance of an element over the tolerance of the root mean square."""
_LEAST_ELEMENTS: Final = 64
_MASK_FACTOR: Final = 1000.0
"""A number that occurs several times and exceeds all others by this factor is a mask."""
_MAX_MASKS: Final = 4
NOT_FINITE: Final = "most of its results are infinite or NaN for random inputs"
TOO_ROUGH: Final = "the rounding error of its sums is so large that values half as large would agree, too"
_INTEGER_OF = {1: "i8", 2: "i16", 4: "i32", 8: "i64"}


def tolerance(precision: Precision) -> float:
    """Relative tolerance of floats."""
    roundings = _APPROXIMATED_ROUNDINGS if precision.approximated else _ROUNDINGS
    return roundings * precision.epsilon + _SUM_ROUNDINGS * precision.sums


def compare(
    call: Call, expected: Memory, actual: Memory, stored: Sequence[View], reference: str, precision: Precision
) -> Verification:
    """Verify a kernel: compare its memory with the memory of the reference.

    Args:
        call: the call of the kernel.
        expected: memory after the reference.
        actual: memory after the kernel.
        stored: views that the reference stored.
        reference: name of the reference.
        precision: accuracy of the kernel's floats.
    """
    allowed = tolerance(precision)
    difference = first_difference(call, expected, actual, stored, allowed)
    if difference:
        return Verification(Status.FAILED, reference, allowed, difference)
    if not is_mostly_finite(expected, stored):
        return Verification(Status.NOT_VERIFIED, reference, allowed, NOT_FINITE)
    if is_too_rough(expected, stored, allowed):
        return Verification(Status.NOT_VERIFIED, reference, allowed, TOO_ROUGH)
    return Verification(Status.SUCCESS, reference, allowed, "")


def first_difference(call: Call, expected: Memory, actual: Memory, stored: Sequence[View], allowed: float) -> str:
    """The first difference between the memory of a kernel and of its reference; "" if they agree.

    Args:
        call: the call of the kernel.
        expected: memory after the reference.
        actual: memory after the kernel.
        stored: views that the reference stored.
        allowed: `tolerance`.
    """
    for view in dict.fromkeys(stored):
        if difference := difference_in_view(view, expected, actual, allowed):
            return difference
    return _difference_outside(call, expected, actual, stored)


def difference_in_view(view: View, expected: Memory, actual: Memory, allowed: float) -> str:
    """The first difference between the elements of a view in two memories; "" if they agree."""
    right = from_memory(view.of(expected), view.element)
    computed = from_memory(view.of(actual), view.element)
    if view.element in EPSILON:
        errors = relative_errors(right, computed)
        wrong = ~(errors <= allowed)
    else:
        errors, wrong = np.zeros(0), right != computed
    count = int(np.count_nonzero(wrong))
    if not count:
        return _mean_difference(errors, allowed, view)
    index = tuple(int(coordinate) for coordinate in np.argwhere(wrong)[0])
    return (
        f"[{', '.join(map(str, index))}] of {view.type} in binding {view.binding} is "
        f"{_format_number(computed[index])}, not {_format_number(right[index])}; "
        f"{count:,} of {wrong.size:,} elements differ"
    )


def _format_number(value: Any) -> str:  # noqa: ANN401 - a number of numpy
    return f"{value:.9g}" if isinstance(value, float) or value.dtype.kind == "f" else str(value)


def _mean_difference(errors: npt.NDArray[np.float64], allowed: float, view: View) -> str:
    """Check the root mean square of all errors when no element alone exceeds the tolerance."""
    root_mean_square = math.sqrt(float(np.mean(np.square(errors)))) if errors.size >= _LEAST_ELEMENTS else 0.0
    if root_mean_square <= allowed / _MEAN_FACTOR:
        return ""
    return (
        f"{view.type} in binding {view.binding} differs slightly everywhere: the root mean square is "
        f"{root_mean_square:.2g}, but rounding explains at most {allowed / _MEAN_FACTOR:.2g}"
    )


def relative_errors(right: npt.NDArray[Any], computed: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Differences from the right numbers, over their size plus their scale; NaN if either is NaN."""
    scale = scale_of(np.abs(right[np.isfinite(right)]))
    with np.errstate(all="ignore"):
        errors = np.abs(computed - right) / (np.abs(right) + scale)
    same = (computed == right) | (np.isnan(computed) & np.isnan(right))
    return np.where(same, 0.0, errors)


def scale_of(sizes: npt.NDArray[Any]) -> float:
    """The root mean square of absolute values without masks, which say nothing about the errors of the others."""
    for _ in range(_MAX_MASKS):
        largest = np.max(sizes, initial=0.0)
        others = sizes[sizes < largest]
        next_largest = float(np.max(others, initial=0.0))
        if sizes.size - others.size < 2 or not 0 < _MASK_FACTOR * next_largest < largest:
            break
        sizes = others
    with np.errstate(over="ignore"):
        return math.sqrt(float(np.mean(np.square(sizes)))) if sizes.size else 0.0


def _difference_outside(call: Call, expected: Memory, actual: Memory, stored: Sequence[View]) -> str:
    """Find a write to used bytes that the reference does not store."""
    for binding, buffer in enumerate(call.buffers):
        if not buffer.written:
            continue
        altered = expected[binding][buffer.begin : buffer.end] != actual[binding][buffer.begin : buffer.end]
        for view in stored:
            if view.binding == binding:
                width = stored_type(view.element).itemsize
                flags = View(0, view.offset - buffer.begin, view.extents, view.strides, _INTEGER_OF[width])
                flags.of([altered.view(np.uint8)])[...] = 0
        if np.any(altered):
            return unexpected_write(BufferByte(binding, buffer.begin + int(np.argmax(altered))))
    return ""


def unexpected_write(place: BufferByte) -> str:
    """A byte that the kernel changed but should not write."""
    return f"byte {place.byte:,} of binding {place.binding} was changed, but the kernel should not write it"


def is_mostly_finite(memory: Memory, stored: Sequence[View]) -> bool:
    """Whether at least half of a reference's floats are finite. Infinities and NaN agree whatever their cause."""
    for view in stored:
        if view.element in EPSILON:
            values = from_memory(view.of(memory), view.element)
            if np.count_nonzero(np.isfinite(values)) * 2 < values.size:
                return False
    return True


def is_too_rough(memory: Memory, stored: Sequence[View], allowed: float) -> bool:
    """Whether half the reference's values would agree with it in some view, so that agreement proves nothing."""
    for view in dict.fromkeys(stored):
        if view.element not in EPSILON:
            continue
        right = from_memory(view.of(memory), view.element)
        errors = relative_errors(right, right / 2)
        if np.any(errors) and np.all(errors <= allowed) and not _mean_difference(errors, allowed, view):
            return True
    return False


# ---- untiled reference
#
# A second reference, for kernels without a numpy reference: the same kernel compiled without tiles and vectors.
#
# It shares the compiler's lowering of single operations with the verified kernel, but not the choice of configuration,
# tiling, fusion and vectorization.


NAME: Final = "iree-compile without tiles and vectors"
_PIPELINE: Final = "Default"
_TILES: Final = ("lowering_config", "compilation_info")


def verify_untiled(
    case: Case, number: int, module: Path, configured: bytes, flags: Sequence[str], folder: Path, limit_s: float
) -> Verification | None:
    """Compare a kernel with itself, compiled without tiles and vectors.

    Args:
        case: the kernel.
        number: index of its function in `module`.
        module: the compiled module under test.
        configured: the bundle's kernels before code generation.
        flags: the bundle's compiler flags.
        folder: for temporary files.
        limit_s: time limit of a call.

    Returns:
        None if the kernel cannot be compiled untiled, or a call does not complete.
    """
    parser = MlirParser()
    untiled = parser.parse(configured)
    try:
        for operation in walk(untiled.operation):
            for name in _TILES:
                if name in operation.attributes:
                    del operation.attributes[name]
        with_pipeline(untiled.operation, _PIPELINE, parser)
        text = benchmark_module_text(untiled, [case.dispatch])
        # Compiled separately, so that a failure affects no other kernel.
        reference = compile_benchmark_module(text, flags, folder, f"plain-{number}")
    except (ModelInvalid, ToolFailed):
        return None
    memories = []
    for path, call in ((reference, case.call(0)), (module, case.call(number))):
        answer = run_once(path, call, folder, limit_s)
        if isinstance(answer, FailedCall):
            return None
        memories.append(memory_after(call, whole_memory(call), folder, answer.call))
    expected, actual = memories
    stored = [access.view.whole_bytes for access in case.accesses if access.stored]
    views = [access.view for access in case.accesses]
    # Sum lengths are unknown: a sum has at most as many terms as the largest binding.
    coarsest = max((EPSILON.get(view.element, 0.0) for view in views), default=0.0)
    longest = max((math.prod(view.extents) for view in views), default=1)
    precision = Precision(coarsest, coarsest * math.sqrt(longest), approximated=True)
    try:
        verification = compare(case.call(0), expected, actual, stored, NAME, precision)
    except SURPRISES:
        return None
    return None if verification.reason == NOT_FINITE else verification
