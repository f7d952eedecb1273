"""Verification of kernels against a reference, or the kernel compiled without tiles."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracemap.errors import ModelInvalid, ToolFailed
from tracemap.experiments.cases import Case, left_behind, whole_memory
from tracemap.experiments.configurations import with_pipeline
from tracemap.experiments.jobs import Call, Ended, Job, Place, run_job, written_path
from tracemap.experiments.model import Status, Verification
from tracemap.experiments.reference.elements import EPSILON, SURPRISES, from_memory, stored_type
from tracemap.experiments.reference.kernel import Precision
from tracemap.experiments.reference.memory import Memory, View
from tracemap.experiments.wrapping import compile_wrapped, wrapped
from tracemap.ir.parsing import MlirParser, walk

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


# ---- verifying
#
# Whether a kernel computed what its reference says: every byte that it may have changed is looked at.
#
# Floats agree within a tolerance that follows from the types, the rest agrees exactly; what the kernel should not
# write must be as it was. A float agrees where it differs by at most
#
# T (|reference| + the reference's root mean square over the tensor), T = m eps + 4 eps_sum sqrt(n)
#
# where the mean leaves out masks: a -3e38 in some places would else excuse every error in the others; with eps the
# distance of 1 to the next number of the coarsest type that is computed with, eps_sum that of the sums, and n the
# length of the longest sum: rounding errors of n terms grow as sqrt(n) (Higham, Accuracy and Stability of Numerical
# Algorithms, 2nd ed., section 2.6). m is 8, and 64 where there are functions that code generation approximates: MLIR's
# polynomials for tanh are 16 units of the last place off (seen with IREE 3.13 on AVX2).
#
# T is for the worst of many elements. Roundings have no direction and are mostly smaller: over a tensor of some size,
# the root mean square of the differences, each in parts of what T is multiplied with, is at most T / 8. This finds
# what is a little wrong everywhere, as with a constant that is off by three percent in bf16, whose T is 6 %.
#
# Long sums in narrow types have a T for which a wrong kernel agrees as well: it is 4 for a million numbers that are
# summed up in f16. Where numbers half as large as the reference would agree, the kernel is not said to be verified.


_ROUNDINGS: Final = 8
_APPROXIMATED_ROUNDINGS: Final = 64
_SUM_ROUNDINGS: Final = 4
_WHOLE: Final = 8.0
"""So many times smaller than the largest difference that is allowed is that of all elements together."""
_LEAST_ELEMENTS: Final = 64
_OUTLYING: Final = 1000.0
"""A number that stands in several places and is so many times as large as all others is a mask."""
_MOST_MASKS: Final = 4
NOT_FINITE: Final = "most of what it computes of made-up numbers are none"
TOO_ROUGH: Final = "its sums round so much in their type that numbers half as large would agree as well"
_INTEGER_OF = {1: "i8", 2: "i16", 4: "i32", 8: "i64"}


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where a kernel and its reference do not agree, in words."""

    text: str


def tolerance(precision: Precision) -> float:
    """How far floats may lie from their reference, in parts of it."""
    roundings = _APPROXIMATED_ROUNDINGS if precision.approximated else _ROUNDINGS
    return roundings * precision.epsilon + _SUM_ROUNDINGS * precision.sums


def judged(
    call: Call, expected: Memory, actual: Memory, stored: Sequence[View], reference: str, precision: Precision
) -> Verification:
    """What is to be said of a kernel that left `actual` where the reference of this name left `expected`."""
    allowed = tolerance(precision)
    difference = first_difference(call, expected, actual, stored, allowed)
    if difference is not None:
        return Verification(Status.FAILED, reference, allowed, difference.text)
    if not is_mostly_finite(expected, stored):
        return Verification(Status.NOT_VERIFIED, reference, allowed, NOT_FINITE)
    if is_too_rough(expected, stored, allowed):
        return Verification(Status.NOT_VERIFIED, reference, allowed, TOO_ROUGH)
    return Verification(Status.SUCCESS, reference, allowed, "")


def first_difference(
    call: Call, expected: Memory, actual: Memory, stored: Sequence[View], allowed: float
) -> Difference | None:
    """Compare what a kernel left with what its reference left; None where they agree.

    Args:
        call: what was run.
        expected: the memory that the reference left.
        actual: that which the kernel left.
        stored: what the reference stored.
        allowed: `tolerance`.
    """
    for view in dict.fromkeys(stored):
        difference = _in_view(view, expected, actual, allowed)
        if difference is not None:
            return difference
    return _outside(call, expected, actual, stored)


def _in_view(view: View, expected: Memory, actual: Memory, allowed: float) -> Difference | None:
    import numpy as np

    right = from_memory(view.of(expected), view.element)
    found = from_memory(view.of(actual), view.element)
    if view.element in EPSILON:
        parts = _differences(right, found)
        wrong = ~(parts <= allowed)
    else:
        parts, wrong = np.zeros(0), right != found
    count = int(np.count_nonzero(wrong))
    if not count:
        return _everywhere(parts, allowed, view)
    place = tuple(int(each) for each in np.argwhere(wrong)[0])
    where = f"[{', '.join(map(str, place))}]"
    return Difference(
        f"{where} of {'x'.join(map(str, (*view.extents, view.element)))} in binding {view.binding} is "
        f"{_number(found[place])}, not {_number(right[place])}; {count:,} of {wrong.size:,} elements differ"
    )


def _number(value: Any) -> str:  # noqa: ANN401 - a number of numpy
    return f"{value:.9g}" if isinstance(value, float) or value.dtype.kind == "f" else str(value)


def _everywhere(parts: npt.NDArray[np.float64], allowed: float, view: View) -> Difference | None:
    """Whether all elements together differ by more than roundings do, though none does alone."""
    import numpy as np

    whole = math.sqrt(float(np.mean(np.square(parts)))) if parts.size >= _LEAST_ELEMENTS else 0.0
    if whole <= allowed / _WHOLE:
        return None
    return Difference(
        f"{'x'.join(map(str, (*view.extents, view.element)))} in binding {view.binding} differs everywhere a little: "
        f"by {whole:.2g} in the root mean square, and roundings by at most {allowed / _WHOLE:.2g}"
    )


def _differences(right: npt.NDArray[Any], found: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """How far numbers lie from those that are right, in parts of these and their scale; NaN where one is none."""
    import numpy as np

    scale = _scale(np.abs(right[np.isfinite(right)]))
    with np.errstate(all="ignore"):
        parts = np.abs(found - right) / (np.abs(right) + scale)
    same = (found == right) | (np.isnan(found) & np.isnan(right))
    return np.where(same, 0.0, parts)


def _scale(sizes: npt.NDArray[Any]) -> float:
    """The root mean square of numbers without their signs, but for masks: they say nothing of the others' errors."""
    import numpy as np

    for _ in range(_MOST_MASKS):
        largest = np.max(sizes, initial=0.0)
        others = sizes[sizes < largest]
        next_largest = float(np.max(others, initial=0.0))
        if sizes.size - others.size < 2 or not 0 < _OUTLYING * next_largest < largest:
            break
        sizes = others
    return math.sqrt(float(np.mean(np.square(sizes)))) if sizes.size else 0.0


def _outside(call: Call, expected: Memory, actual: Memory, stored: Sequence[View]) -> Difference | None:
    """Whether the kernel wrote where it should not have, among what is used of its buffers."""
    import numpy as np

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
            return changed(Place(binding, buffer.begin + int(np.argmax(altered))))
    return None


def changed(place: Place) -> Difference:
    """A byte that the kernel changed where it writes nothing."""
    return Difference(f"byte {place.byte:,} of binding {place.binding} was changed, which the kernel has not to write")


def is_mostly_finite(memory: Memory, stored: Sequence[View]) -> bool:
    """Whether a reference's floats are numbers for the most part: others agree whatever led to them."""
    import numpy as np

    for view in stored:
        if view.element in EPSILON:
            values = from_memory(view.of(memory), view.element)
            if np.count_nonzero(np.isfinite(values)) * 2 < values.size:
                return False
    return True


def is_too_rough(memory: Memory, stored: Sequence[View], allowed: float) -> bool:
    """Whether floats half as large as the reference's would agree with it somewhere, so that agreeing says nothing."""
    import numpy as np

    for view in dict.fromkeys(stored):
        if view.element not in EPSILON:
            continue
        right = from_memory(view.of(memory), view.element)
        parts = _differences(right, right / 2)
        if np.any(parts) and np.all(parts <= allowed) and _everywhere(parts, allowed, view) is None:
            return True
    return False


# ---- plain
#
# A second reference, for kernels that numpy has none for: the same kernel compiled without tiles and vectors.
#
# It shares the compiler's lowering of single operations with what it judges, and none of what chooses, tiles, fuses
# and vectorises loops.


NAME: Final = "iree-compile without tiles and vectors"
_PIPELINE: Final = "Default"
_TILES: Final = ("lowering_config", "compilation_info")
_DEVICE: Final = "local-sync"


@dataclass(frozen=True)
class Plain:
    """Kernels to compare with themselves, compiled plainly.

    `configured`: the bundle's kernels before code generation; `module`: what is judged, `numbers` the cases that have
    no other reference, by their number there.
    """

    configured: bytes
    flags: tuple[str, ...]
    module: Path
    cases: Sequence[Case]
    folder: Path
    limit_s: float

    def verified(self, numbers: Sequence[int]) -> Mapping[int, Verification]:
        """What comes out, of those that can be compiled plainly and come to their end."""
        found: dict[int, Verification] = {}
        for number in numbers:
            # One by one: a kernel that cannot be compiled so takes no other's reference away.
            module = self._compiled(number)
            verification = None if module is None else self._compared(number, module)
            if verification is not None:
                found[number] = verification
        return found

    def _compiled(self, number: int) -> Path | None:
        parser = MlirParser()
        module = parser.parse(self.configured)
        try:
            for operation in walk(module.operation):
                for name in _TILES:
                    if name in operation.attributes:
                        del operation.attributes[name]
            with_pipeline(module.operation, _PIPELINE, parser)
            text = wrapped(module, [self.cases[number].dispatch])
            return compile_wrapped(text, self.flags, self.folder, f"plain-{number}")
        except (ModelInvalid, ToolFailed):
            return None

    def _compared(self, number: int, module: Path) -> Verification | None:
        """Both on the same data; None where one of them does not come to its end."""
        case = self.cases[number]
        memories = []
        for path, call in ((module, case.call(0)), (self.module, case.call(number))):
            job = Job((written_path(path),), _DEVICE, (call,), written_path(self.folder), 0, 1, 0)
            (answer,) = run_job(job, self.folder, self.limit_s, lambda _: None)
            if isinstance(answer, Ended):
                return None
            memories.append(left_behind(call, whole_memory(call), self.folder, answer.call))
        stored = [access.view.whole_bytes for access in case.accesses if access.stored]
        try:
            expected, actual = memories
            found = judged(case.call(0), expected, actual, stored, NAME, self._precision(case))
        except SURPRISES:
            return None
        return None if found.reason == NOT_FINITE else found

    def _precision(self, case: Case) -> Precision:
        """How exact floats can be where it is not known how many go into a sum: as many as a binding has, at most."""
        epsilons = [EPSILON[access.view.element] for access in case.accesses if access.view.element in EPSILON]
        longest = max((math.prod(access.view.extents) for access in case.accesses), default=1)
        coarsest = max(epsilons, default=0.0)
        return Precision(coarsest, coarsest * math.sqrt(longest), approximated=True)
