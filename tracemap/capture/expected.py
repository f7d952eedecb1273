"""Outputs beside what was expected of them, by the rules of `iree-run-module`, which tells less and knows no scalars.

A float is as expected where it is within `atol + rtol * |expected|`; NaN is as expected where NaN is, and all else must
be equal. `exact` compares bits.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from tracemap.capture.calling import Call
from tracemap.capture.elements import SPEC, number_type, refused_as, written_type
from tracemap.capture.flags import check_undecided
from tracemap.errors import OutputsDiffer, UsageInvalid
from tracemap.inputs import given_bytes
from tracemap.options.measure import RunOptions
from tracemap.units import UNKNOWN, Unknown, format_count

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

IGNORED: Final = "(ignored)"
_ABSOLUTE: Final = {"float16": 1e-3, "float32": 1e-4, "float64": 1e-4, "complex64": 1e-4, "complex128": 1e-4}
_ABSOLUTE_OF_NARROW: Final = 1e-2
_RELATIVE: Final = 1e-5
_THRESHOLDS: Final = {
    "--expected_f16_threshold": "float16",
    "--expected_f32_threshold": "float32",
    "--expected_f64_threshold": "float64",
    "--expected_bf16_threshold": "bfloat16",
}
_RTOL, _MODE = "--expected_rtol", "--equality_mode"
_OUTPUT, _EXPECTED = "--output", "--expected_output"


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far floats may be off: by type, and by the size of what is expected; or not at all, to the last bit."""

    absolute: Mapping[str, float] = field(default_factory=lambda: _ABSOLUTE)
    of_all: float | Unknown = UNKNOWN
    """One for all types in place of those."""
    relative: float = _RELATIVE
    exact: bool = False

    def absolute_of(self, kind: str) -> float:
        """Of numpy's type of this name."""
        if not isinstance(self.of_all, Unknown):
            return self.of_all
        return self.absolute.get(kind, _ABSOLUTE_OF_NARROW)


@dataclass(frozen=True, slots=True)
class Asked:
    """What becomes of the outputs: where they go, what they are to be, within what."""

    targets: tuple[str, ...]
    expected: tuple[str, ...]
    tolerance: Tolerance


def asked_of(call: Call, options: RunOptions) -> tuple[Call, Asked]:
    """What options and flags ask of outputs, and the call without these flags; options go before flags.

    Raises:
        UsageInvalid: a tolerance is no number; options and flags behind the `--` say the same thing.
    """
    said = {_OUTPUT: options.outputs, _EXPECTED: options.expected_outputs}
    check_undecided(
        options.runtime_flags, {name: "it is given before the `--`" for name, given in said.items() if given}
    )
    targets, expected, rest = [], [], []
    tolerance = Tolerance()
    for flag in call.flags:
        name, _, value = flag.partition("=")
        if name == _OUTPUT:
            targets.append(value)
        elif name == _EXPECTED:
            expected.append(value)
        elif name in _THRESHOLDS:
            tolerance = replace(tolerance, absolute={**tolerance.absolute, _THRESHOLDS[name]: _number(flag, value)})
        elif name == _RTOL:
            tolerance = replace(tolerance, relative=_number(flag, value))
        elif name == _MODE:
            tolerance = replace(tolerance, exact=value == "exact")
        else:
            rest.append(flag)
    asked = Asked(options.outputs or tuple(targets), options.expected_outputs or tuple(expected), tolerance)
    return replace(call, flags=tuple(rest)), replace(asked, tolerance=_with_options(tolerance, options))


def _with_options(tolerance: Tolerance, options: RunOptions) -> Tolerance:
    relative = tolerance.relative if isinstance(options.rtol, Unknown) else options.rtol
    return replace(tolerance, of_all=options.atol, relative=relative, exact=tolerance.exact or options.exact)


def _number(flag: str, value: str) -> float:
    try:
        return float(value)
    except ValueError as error:
        raise UsageInvalid(f"{flag}: {value!r} is no number") from error


# ---- what is expected


def expected_arrays(specs: Sequence[str], outputs: Sequence[Array]) -> list[Array | None]:
    """What is expected of each output; None: whatever it is.

    Raises:
        UsageInvalid: a text or a file tells no array.
    """
    files: dict[str, io.BytesIO] = {}
    return [_expected(spec.strip(), output, files) for spec, output in zip(specs, outputs, strict=True)]


def _expected(spec: str, output: Array, files: dict[str, io.BytesIO]) -> Array | None:
    import numpy as np

    if spec == IGNORED:
        return None
    if spec[:1] in {"@", "+"}:
        return _next_of(spec, output, files)
    try:
        if match := SPEC.fullmatch(spec):
            sizes = [int(size) for size in match[1].split("x")[:-1]]
            return _of_text(sizes, match[2], match[3] or "")
        return np.asarray(_numbers([spec], output.dtype)[0], dtype=output.dtype)
    except (ValueError, OverflowError, TypeError) as error:
        why = f"--expected-output={spec[:60]}: tells no value of an output"
        raise UsageInvalid(f"{why} ({error}); write it as an input is, or {IGNORED}") from error


def _next_of(spec: str, output: Array, files: dict[str, io.BytesIO]) -> Array:
    """The first array of numpy's file, or with `+` the one behind that which was read last."""
    import numpy as np

    name = spec[1:]
    if spec[0] == "@" or name not in files:
        files[name] = io.BytesIO(given_bytes(name, UsageInvalid))
    why = f"--expected-output={spec}: the file holds no array of numbers there, as numpy writes them"
    with refused_as(UsageInvalid, why):
        array: Array = np.lib.format.read_array(files[name], allow_pickle=False)
    if array.dtype.str[1:] == f"V{output.dtype.itemsize}" and output.dtype.kind == "V":
        return array.view(output.dtype)  # numpy's files have no names for bf16 and the like
    if array.dtype.kind not in "biufc":
        raise UsageInvalid(f"{why} ({array.dtype})")
    return array


def _of_text(sizes: Sequence[int], element: str, text: str) -> Array:
    import numpy as np

    kind = _dtype(element)
    if text.startswith("@"):
        return np.frombuffer(given_bytes(text[1:], UsageInvalid), dtype=kind).reshape(sizes)
    words = text.replace(",", " ").replace("[", " ").replace("]", " ").split()
    values = np.asarray(_numbers(words or ["0"], kind), dtype=kind)
    count = math.prod(sizes)
    if len(values) not in (1, count):
        raise ValueError(f"{len(values)} values for {count} elements")
    return np.broadcast_to(values[0], sizes) if len(values) == 1 else values.reshape(sizes)


def _numbers(words: Sequence[str], kind: np.dtype[Any]) -> list[Any]:
    if kind.kind == "b":
        return [float(word) != 0 for word in words]
    if kind.kind in "iu":
        return [_whole(word) for word in words]
    return [float.fromhex(word) if "0x" in word.lower() else float(word) for word in words]


def _whole(word: str) -> int:
    try:
        return int(word, 0)
    except ValueError:
        return int(float(word))


def _dtype(element: str) -> np.dtype[Any]:
    """Numpy's type of an element as IREE writes it.

    Raises:
        ValueError: there is none.
    """
    import numpy as np

    if element in {"i1", "index"}:
        return np.dtype("bool" if element == "i1" else "int64")
    if name := number_type(element):
        if hasattr(np, name):
            return np.dtype(name)
        import ml_dtypes

        narrow: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return narrow
    try:
        whole: np.dtype[Any] = np.dtype(("u" if element[0] == "u" else "") + "int" + element.lstrip("sui"))
    except TypeError as error:
        raise ValueError(f"no array holds {element}") from error
    return whole


# ---- comparing


@dataclass(frozen=True, slots=True)
class Compared:
    """An output beside what was expected: what is to be said of it, and whether it is as it should be."""

    place: int
    type: str
    said: str
    matches: bool

    def __str__(self) -> str:
        return f"result[{self.place}] {self.type}: {self.said}"


def compared(outputs: Sequence[Array], expected: Sequence[Array | None], tolerance: Tolerance) -> tuple[Compared, ...]:
    """Compare the outputs of a function, one by one."""
    return tuple(
        Compared(place, written_type(got), *_compared(got, wanted, tolerance))
        for place, (got, wanted) in enumerate(zip(outputs, expected, strict=True))
    )


def check_matches(function: str, found: Sequence[Compared]) -> None:
    """Raise OutputsDiffer if an output is not as expected: the sentence has the first one."""
    wrong = [output for output in found if not output.matches]
    if wrong:
        more = f"; {len(wrong)} of {len(found)} outputs are not" if len(wrong) > 1 else ""
        raise OutputsDiffer(f"{function}: an output is not as expected: {wrong[0]}{more}")


def _compared(got: Array, wanted: Array | None, tolerance: Tolerance) -> tuple[str, bool]:
    """What is to be said, and whether they agree."""
    import numpy as np

    if wanted is None:
        return "ignored", True
    if got.shape != wanted.shape or not _comparable(got, wanted, exact=tolerance.exact):
        return f"expected {written_type(wanted)}", False
    with np.errstate(all="ignore"):
        apart, differs = _apart(got, wanted, tolerance)
    number = int(np.count_nonzero(differs))
    if not number:
        largest = float(np.nanmax(apart, initial=0))
        return "as expected" + (f", the largest difference is {largest:.3g}" if largest else ""), True
    first = np.unravel_index(int(np.argmax(differs)), got.shape)
    values = f"{got[first]}, expected {wanted[first]}"
    if not got.shape:
        return values, False
    worst = np.unravel_index(int(np.argmax(np.where(differs, np.nan_to_num(apart, nan=np.inf), -1.0))), got.shape)
    of_all = f"{format_count(number)} of {format_count(got.size)} elements differ{'s' if number == 1 else ''}"
    largest_at = f"the largest difference is {float(apart[worst]):.3g} at {_index(worst)}"
    return f"{of_all}, the first at {_index(first)}: {values}; {largest_at}", False


def _comparable(got: Array, wanted: Array, *, exact: bool) -> bool:
    """Whether they are of one kind: floats of any width are, but for comparing bits."""
    return got.dtype == wanted.dtype or (not exact and _kind(got) == _kind(wanted))


def _kind(array: Array) -> str:
    return {"b": "b", "i": "i", "u": "i", "c": "c"}.get(array.dtype.kind, "f")


def _apart(got: Array, wanted: Array, tolerance: Tolerance) -> tuple[Array, Array]:
    """How far each element is from what is expected, and whether that is too far."""
    import numpy as np

    kind = np.complex128 if got.dtype.kind == "c" else np.float64
    ours, theirs = got.astype(kind), wanted.astype(kind)
    apart = np.abs(ours - theirs)
    if tolerance.exact:
        bits = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in (got, wanted)]
        return apart, (bits[0] != bits[1]).reshape(*got.shape, got.dtype.itemsize).any(axis=-1)
    if _kind(got) in "bi":
        return apart, got != wanted
    # A part of infinity is infinity, which everything is near to: only infinity itself is as expected there.
    near = np.isfinite(theirs) & (apart <= tolerance.absolute_of(got.dtype.name) + tolerance.relative * np.abs(theirs))
    return apart, ~((ours == theirs) | near | (np.isnan(ours) & np.isnan(theirs)))


def _index(place: Sequence[Any]) -> str:
    return f"[{', '.join(str(int(index)) for index in place)}]"
