"""Outputs of a function: written, and compared with expected ones."""

from __future__ import annotations

import io
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracemap.capture.benchmark import run_program
from tracemap.capture.calling import Call, check_undecided
from tracemap.capture.inputs import SPEC, dtype_of, number_type, parsed, refused_as, words_of, written_type
from tracemap.core.errors import OutputInvalid, OutputsDiffer, UsageInvalid
from tracemap.core.files import atomic_file, check_files, read_user_input
from tracemap.core.units import UNKNOWN, Unknown, format_count, plural
from tracemap.options.measure import RunOptions

# ---- outputs
#
# Call a function once with `iree-run-module`; print its outputs, write them to files, or read them as arrays.


if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

RUN_TOOL: Final = "iree-run-module"
_NUMPY_ELEMENTS: Final = frozenset(
    {
        *("i1", "index", "f16", "f32", "f64", "complex<f32>", "complex<f64>"),
        *(f"{sign}i{bits}" for sign in ("", "s", "u") for bits in (8, 16, 32, 64)),
    }
)
"""Element types that the runtime writes to numpy files."""


def is_stored_as_array(result: str) -> bool:
    """Whether the runtime can write a result of this type, such as `4x8xf32`, to a numpy file as real numbers."""
    shaped = parsed(result)
    return shaped is not None and shaped.element in _NUMPY_ELEMENTS and not shaped.element.startswith("complex")


def run_call(call: Call, targets: Sequence[str]) -> str:
    """Call the function; returns its printed outputs.

    Args:
        call: the call.
        targets: the target of each output, in the syntax of `--output`; empty: print all.

    Raises:
        ProgramFailed: the program failed.
    """
    ending = run_program(call.command(RUN_TOOL, *(f"--output={target}" for target in targets)))
    ending.check(f"{RUN_TOOL}, which called {call.entry.name},")
    return ending.stdout


def check_option_count(call: Call, given: Sequence[str], option: str) -> None:
    """Check that an option is given once per output, or not at all.

    Raises:
        UsageInvalid: it is given more or less often.
    """
    if given and len(given) != len(call.results):
        returns = f"{call.entry.name} returns {plural(len(call.results), 'output')}"
        raise UsageInvalid(
            f"{returns} ({', '.join(call.results) or 'none'}), {len(given)} given; give one {option} per output"
        )


# ---- files


@contextmanager
def temporary_targets(targets: Sequence[str], folder: Path, *, force: bool) -> Iterator[list[str]]:
    """Replace target files by temporary ones in `folder`; at the end they replace the targets atomically.

    Raises:
        UsageInvalid: IREE does not know a target, or two targets are the same file.
        TargetExists: a file exists and `force` is not set; a file to append to may exist.
        TargetUnwritable: a file cannot be written.
    """
    names: dict[str, Path] = {}
    for target in targets:
        if target not in ("", "-") and (target[0] not in "@+" or not target[1:]):
            raise UsageInvalid(f"--output={target} is no target; write - , @FILE.npy, @FILE.bin, +FILE or nothing")
    new_files = [Path(target[1:]) for target in targets if target.startswith("@")]
    check_files(*new_files, force=force)
    for target in targets:
        path = target[1:]
        if not path or path in names:
            continue
        names[path] = folder / f"output{len(names)}{Path(path).suffix}"  # IREE derives the format from the suffix
        if target.startswith("+"):
            check_files(Path(path), force=True)
            if Path(path).is_file():
                shutil.copyfile(path, names[path])
    yield [f"{target[0]}{names[target[1:]]}" if target[1:] else target for target in targets]
    with ExitStack() as places:
        for path, written in names.items():
            shutil.copyfile(written, places.enter_context(atomic_file(Path(path))))


# ---- arrays


def call_for_arrays(call: Call, folder: Path) -> list[Array]:
    """Call the function and read its outputs as arrays; scalars have no dimensions.

    Raises:
        OutputInvalid: an output has a type that no array holds.
        ProgramFailed: the program failed.
    """
    import numpy as np

    names = [f"{call.entry.name}: result[{index}] ({kind})" for index, kind in enumerate(call.results)]
    types = [parsed(kind) for kind in call.results]
    # Numpy's files contain their type; for an undeclared one, the runtime writes such a file, too.
    are_raw = [shaped is not None and shaped.element not in _NUMPY_ELEMENTS for shaped in types]
    files = [folder / f"array{index}.{'bin' if is_raw else 'npy'}" for index, is_raw in enumerate(are_raw)]
    for name, shaped, is_raw in zip(names, types, are_raw, strict=True):
        if is_raw and shaped is not None and not number_type(shaped.element):
            raise OutputInvalid(f"{name} has a type that no array holds; write it as @FILE.bin")
    run_call(call, [f"@{file}" for file in files])
    arrays: list[Array] = []
    for name, shaped, is_raw, file in zip(names, types, are_raw, files, strict=True):
        if shaped is None or not is_raw:
            arrays.append(np.load(file, allow_pickle=False))
            continue
        values = np.fromfile(file, dtype=dtype_of(number_type(shaped.element)))
        sizes = shaped.sizes or ()
        if sizes.count(None) > 1 or (None in sizes and 0 in sizes):
            raise OutputInvalid(f"{name} has several dynamic dimensions; write it with --output=@FILE.bin")
        arrays.append(values.reshape([-1 if size is None else size for size in sizes]))
    return arrays


# ---- expected
#
# Compare outputs with expected values, by the rules of `iree-run-module`, but with more detail and for scalars, too.
#
# A float matches within `atol + rtol * |expected|`. NaN matches NaN. All other values must be equal. `exact` compares
# bits.


IGNORED: Final = "(ignored)"
_ABSOLUTE: Final = {"float16": 1e-3, "float32": 1e-4, "float64": 1e-4, "complex64": 1e-4, "complex128": 1e-4}
_ABSOLUTE_NARROW: Final = 1e-2
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
    """Tolerance of floats: absolute by type, plus relative to the expected value; or exact to the last bit."""

    absolute: Mapping[str, float] = field(default_factory=lambda: _ABSOLUTE)
    absolute_for_all: float | Unknown = UNKNOWN
    """One absolute tolerance for all types, instead of `absolute`."""
    relative: float = _RELATIVE
    exact: bool = False

    def absolute_of(self, kind: str) -> float:
        """Absolute tolerance for a numpy type, by its name."""
        if not isinstance(self.absolute_for_all, Unknown):
            return self.absolute_for_all
        return self.absolute.get(kind, _ABSOLUTE_NARROW)


@dataclass(frozen=True, slots=True)
class OutputRequest:
    """Handling of outputs: their targets, the expected values, and the tolerance."""

    targets: tuple[str, ...]
    expected: tuple[str, ...]
    tolerance: Tolerance


def output_request(call: Call, options: RunOptions) -> tuple[Call, OutputRequest]:
    """The output options of a call, and the call without its output flags. Options win over flags.

    Raises:
        UsageInvalid: a tolerance is no number, or an option and a flag after `--` set the same.
    """
    by_option = {_OUTPUT: options.outputs, _EXPECTED: options.expected_outputs}
    check_undecided(
        options.runtime_flags, {name: "it is also given before the `--`" for name, given in by_option.items() if given}
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
    relative = tolerance.relative if isinstance(options.rtol, Unknown) else options.rtol
    exact = tolerance.exact or options.exact
    tolerance = replace(tolerance, absolute_for_all=options.atol, relative=relative, exact=exact)
    asked = OutputRequest(options.outputs or tuple(targets), options.expected_outputs or tuple(expected), tolerance)
    return replace(call, flags=tuple(rest)), asked


def _number(flag: str, value: str) -> float:
    try:
        return float(value)
    except ValueError as error:
        raise UsageInvalid(f"{flag}: {value!r} is no number") from error


# ---- expected values


def expected_arrays(specs: Sequence[str], outputs: Sequence[Array]) -> list[Array | None]:
    """The expected array of each output; None: the output is ignored.

    Raises:
        UsageInvalid: a text or a file holds no array.
    """
    files: dict[str, io.BytesIO] = {}
    return [_expected(spec.strip(), output, files) for spec, output in zip(specs, outputs, strict=True)]


def _expected(spec: str, output: Array, files: dict[str, io.BytesIO]) -> Array | None:
    import numpy as np

    if spec == IGNORED:
        return None
    if spec[:1] in {"@", "+"}:
        return _next_array(spec, output, files)
    try:
        if match := SPEC.fullmatch(spec):
            sizes = [int(size) for size in match[1].split("x")[:-1]]
            return _array_of_text(sizes, match[2], match[3] or "")
        return np.asarray(_numbers([spec], output.dtype)[0], dtype=output.dtype)
    except (ValueError, OverflowError, TypeError) as error:
        why = f"--expected-output={spec[:60]} is no value of an output"
        raise UsageInvalid(f"{why} ({error}); write it like an --input, or {IGNORED}") from error


def _next_array(spec: str, output: Array, files: dict[str, io.BytesIO]) -> Array:
    """The first array of a numpy file; with `+`, the next array of the same file."""
    import numpy as np

    name = spec[1:]
    if spec[0] == "@" or name not in files:
        files[name] = io.BytesIO(read_user_input(name, UsageInvalid))
    why = f"--expected-output={spec}: the file holds no array of numbers there, as numpy writes them"
    with refused_as(UsageInvalid, why):
        array: Array = np.lib.format.read_array(files[name], allow_pickle=False)
    if array.dtype.str[1:] == f"V{output.dtype.itemsize}" and output.dtype.kind == "V":
        return array.view(output.dtype)  # numpy's files do not name bf16 and similar types
    if array.dtype.kind not in "biufc":
        raise UsageInvalid(f"{why} ({array.dtype})")
    return array


def _array_of_text(sizes: Sequence[int], element: str, text: str) -> Array:
    import numpy as np

    kind = _dtype(element)
    if text.startswith("@"):
        return np.frombuffer(read_user_input(text[1:], UsageInvalid), dtype=kind).reshape(sizes)
    values = np.asarray(_numbers(words_of(text) or ["0"], kind), dtype=kind)
    count = math.prod(sizes)
    if len(values) not in (1, count):
        raise ValueError(f"{len(values)} values for {count} elements")
    return np.broadcast_to(values[0], sizes) if len(values) == 1 else values.reshape(sizes)


def _numbers(words: Sequence[str], kind: np.dtype[Any]) -> list[Any]:
    if kind.kind == "b":
        return [float(word) != 0 for word in words]
    if kind.kind in "iu":
        return [_integer(word) for word in words]
    return [float.fromhex(word) if "0x" in word.lower() else float(word) for word in words]


def _integer(word: str) -> int:
    try:
        return int(word, 0)
    except ValueError:
        return int(float(word))


def _dtype(element: str) -> np.dtype[Any]:
    """The numpy type of an element in IREE's syntax.

    Raises:
        ValueError: there is none.
    """
    import numpy as np

    if element in {"i1", "index"}:
        return np.dtype("bool" if element == "i1" else "int64")
    if name := number_type(element):
        return dtype_of(name)
    try:
        whole: np.dtype[Any] = np.dtype(("u" if element[0] == "u" else "") + "int" + element.lstrip("sui"))
    except TypeError as error:
        raise ValueError(f"no array holds {element}") from error
    return whole


# ---- comparing


@dataclass(frozen=True, slots=True)
class OutputComparison:
    """An output compared with its expected value: description and result."""

    place: int
    type: str
    said: str
    matches: bool

    def __str__(self) -> str:
        return f"result[{self.place}] {self.type}: {self.said}"


def compare_outputs(
    outputs: Sequence[Array], expected: Sequence[Array | None], tolerance: Tolerance
) -> tuple[OutputComparison, ...]:
    """Compare the outputs of a function with the expected values."""
    return tuple(
        OutputComparison(place, written_type(got), *_compared(got, wanted, tolerance))
        for place, (got, wanted) in enumerate(zip(outputs, expected, strict=True))
    )


def check_matches(function: str, found: Sequence[OutputComparison]) -> None:
    """Raise OutputsDiffer if an output is not as expected; the message describes the first one."""
    wrong = [output for output in found if not output.matches]
    if wrong:
        more = f"; {len(wrong)} of {len(found)} outputs are not" if len(wrong) > 1 else ""
        raise OutputsDiffer(f"{function}: an output is not as expected: {wrong[0]}{more}")


def _compared(got: Array, wanted: Array | None, tolerance: Tolerance) -> tuple[str, bool]:
    """The description of the comparison, and whether the arrays match."""
    import numpy as np

    if wanted is None:
        return "ignored", True
    # All float types are of one kind, unless bits are compared.
    comparable = got.dtype == wanted.dtype or (not tolerance.exact and _kind(got) == _kind(wanted))
    if got.shape != wanted.shape or not comparable:
        return f"expected {written_type(wanted)}", False
    with np.errstate(all="ignore"):
        differences, differs = _differences(got, wanted, tolerance)
    number = int(np.count_nonzero(differs))
    if not number:
        largest = float(np.nanmax(differences, initial=0))
        return "as expected" + (f", the largest difference is {largest:.3g}" if largest else ""), True
    first = np.unravel_index(int(np.argmax(differs)), got.shape)
    values = f"{got[first]}, expected {wanted[first]}"
    if not got.shape:
        return values, False
    worst = np.unravel_index(int(np.argmax(np.where(differs, np.nan_to_num(differences, nan=np.inf), -1.0))), got.shape)
    difference_count = f"{format_count(number)} of {format_count(got.size)} elements differ{'s' if number == 1 else ''}"
    largest_at = f"the largest difference is {float(differences[worst]):.3g} at {_index(worst)}"
    return f"{difference_count}, the first at {_index(first)}: {values}; {largest_at}", False


def _kind(array: Array) -> str:
    return {"b": "b", "i": "i", "u": "i", "c": "c"}.get(array.dtype.kind, "f")


def _differences(got: Array, wanted: Array, tolerance: Tolerance) -> tuple[Array, Array]:
    """The difference of each element from the expected one, and whether it exceeds the tolerance."""
    import numpy as np

    kind = np.complex128 if got.dtype.kind == "c" else np.float64
    ours, theirs = got.astype(kind), wanted.astype(kind)
    differences = np.abs(ours - theirs)
    if tolerance.exact:
        bits = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in (got, wanted)]
        return differences, (bits[0] != bits[1]).reshape(*got.shape, got.dtype.itemsize).any(axis=-1)
    if _kind(got) in "bi":
        return differences, got != wanted
    # A relative tolerance of infinity is infinite, so infinity only matches itself.
    near = np.isfinite(theirs) & (
        differences <= tolerance.absolute_of(got.dtype.name) + tolerance.relative * np.abs(theirs)
    )
    return differences, ~((ours == theirs) | near | (np.isnan(ours) & np.isnan(theirs)))


def _index(place: Sequence[Any]) -> str:
    return f"[{', '.join(str(int(index)) for index in place)}]"
