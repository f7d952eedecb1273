"""Inputs of a function: given, made up, or saved with the bundle; and their elements."""

from __future__ import annotations

import math
import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from tokenize import TokenError
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tracemap.core.errors import InputInvalid, TracemapError, UsageInvalid, start_of
from tracemap.core.files import FileFormat, format_of_file, names_file
from tracemap.core.functions import Argument, Function
from tracemap.core.process.limits import free_memory
from tracemap.core.units import UNKNOWN, Integer, format_bytes, join_names, plural

if TYPE_CHECKING:
    import numpy as np


# ---- elements
#
# The types that a module declares for arguments and results, and numpy's names of their elements.


@dataclass(frozen=True, slots=True)
class Shaped:
    """A parsed type. `sizes` is None for a scalar, and has None for each `?`."""

    sizes: tuple[int | None, ...] | None
    element: str


SPEC: Final = re.compile(
    r"((?:\d{1,18}x)*)([su]?i\d+|bf16|f\d+(?:E\d+M\d+\w*)?|complex<\w+>|index)(?:=(.*))?", re.DOTALL
)
"""A shape and element type in IREE's syntax, with values."""
_TENSOR = re.compile(r"(?:tensor|vector|memref)<((?:(?:\?|\d{1,18})x)*)([^,>]+(?:<\w+>)?)(?:,.*)?>")
_TORCH = re.compile(r"!torch\.vtensor<\[((?:(?:\?|\d{1,18})(?:,|(?=\])))*)\],(\w+)>")
INTEGER = re.compile(r"[su]?i\d+|index")
REAL = {"f16": "float16", "f32": "float32", "f64": "float64", "bf16": "bfloat16"}
HALVES: Final = frozenset({"f16", "bf16"})
"""Floats without registers in IREE's virtual machine."""
_COMPLEX = {"complex<f32>": "complex64", "complex<f64>": "complex128"}
_SMALL_REAL = re.compile(r"f(?:8|6|4)E\d+M\d+\w*")


def parsed(text: str) -> Shaped | None:
    """Parse a declared type; None if it is unknown."""
    text = text.strip()
    if match := _TENSOR.fullmatch(text):
        marks, element = match[1].split("x")[:-1], match[2].strip()
    elif match := _TORCH.fullmatch(text):
        marks, element = [mark for mark in match[1].split(",") if mark], match[2]
    else:
        return Shaped(None, text) if INTEGER.fullmatch(text) or text in REAL else None
    if not (INTEGER.fullmatch(element) or number_type(element)):
        return None
    return Shaped(tuple(None if mark == "?" else int(mark) for mark in marks), element)


def number_type(element: str) -> str:
    """The numpy (or ml_dtypes) name of a float or complex type; "" for all others."""
    if element in REAL or element in _COMPLEX:
        return (REAL | _COMPLEX)[element]
    if not _SMALL_REAL.fullmatch(element):
        return ""
    import ml_dtypes

    name = "float" + element[1].lower() + "_" + element[2:].lower()
    return name if hasattr(ml_dtypes, name) else ""


def dtype_of(name: str) -> np.dtype[Any]:
    """The dtype of this name in numpy or ml_dtypes."""
    import ml_dtypes
    import numpy as np

    dtype: np.dtype[Any] = np.dtype(getattr(np, name, None) or getattr(ml_dtypes, name))
    return dtype


def passed_number(value: float, element: str) -> str:
    """A scalar argument in IREE's syntax; 16-bit floats are written as their bits."""
    if element not in HALVES:
        return str(value)
    import numpy as np

    with np.errstate(over="ignore"):  # too large numbers become infinite, as in arrays
        return f"{int(np.asarray(value).astype(dtype_of(REAL[element])).view(np.uint16)):#06x}"


def write_array(values: np.ndarray[Any, Any], path: Path) -> None:
    """Write an array's elements. Unlike numpy's `tofile`, it fails with the system's error, such as a full disk."""
    import numpy as np

    with path.open("wb") as file:
        file.write(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)


def written_type(array: np.ndarray[Any, Any]) -> str:
    """The type of an array in IREE's syntax, such as `32x64xf32`."""
    return "x".join([*map(str, array.shape), _element_of(array.dtype) or array.dtype.name])


def _element_of(dtype: np.dtype[Any]) -> str:
    """The type of elements in IREE's syntax; "" if numpy's files do not name it, as for bf16."""
    names = {name: element for element, name in (REAL | _COMPLEX).items()}
    kinds = {"b": "i1", "i": f"i{8 * dtype.itemsize}", "u": f"ui{8 * dtype.itemsize}"}
    return names.get(dtype.name) or kinds.get(dtype.kind, "")


# ---- numbers
#
# Check that IREE's runtime reads a number of an input as written, and neither refuses nor silently changes it.
#
# The runtime reads numbers as C does (`strtol`, `strtof`), from a short buffer, and often stores integers modulo the
# size of their type. Signless types accept numbers of both readings: 8 bits take -128 to 255.


_SMALL_REAL_ELEMENTS: Final = frozenset({"f8E5M2", "f8E4M3FN", "f8E5M2FNUZ", "f8E4M3FNUZ", "f8E8M0FNU"})
_BYTE_WIDTHS: Final = (1, 2, 4)
"""Widths of elements that are written as the two hexadecimal digits of their byte."""
_TWO_DIGITS = re.compile(r"[0-9a-fA-F]{2}")
_WHOLE = re.compile(r"([-+]?)(?:0[xX]([0-9a-fA-F]+)|(0[0-7]*)|([1-9][0-9]*))(?:\.0*)?")
"""An integer in C syntax with base 16, 8 or 10. C would cut a fraction off."""
_WIDTHS: Final = (8, 16, 32, 64)
"""Widths of integers that are written as numbers."""
_WIDTH_DIGITS: Final = 4
"""No IREE type has more digits in its width."""
_WORD_BITS: Final = 32
_WORD_BUFFER: Final = 15
_BUFFER: Final = 31
"""Length of the runtime's buffer: for integers of up to 32 bits, and for all other numbers."""
_INFINITE_FROM: Final = {"f16": 65520.0, "bf16": 2.0**128 - 2.0**119, "f32": 2.0**128 - 2.0**103}
"""The least number that is rounded to infinity. For f64, Python's own infinity is used."""
_READ_AS_ZERO: Final = 2.0**-150
"""C reads smaller numbers as 0 when it reads an f32; all floats but f64 are read that way."""
_TOO_LONG: Final = "{quote} has more than the {buffer} characters that the runtime reads of {element}"
_LONGEST_QUOTE: Final = 60


def _quoted(text: str) -> str:
    return repr(start_of(text, _LONGEST_QUOTE))


def number_fault(text: str, element: str, *, is_scalar: bool) -> str:
    """Why a text is not a valid number of a type; "" if it is, or if only the runtime knows the type.

    Args:
        text: the number, without anything around it.
        element: its type, in IREE's syntax.
        is_scalar: True for a scalar argument, False for an element of an array.
    """
    quote = _quoted(text)
    if INTEGER.fullmatch(element):
        return _integer_fault(text, quote, element, is_scalar=is_scalar)
    if is_scalar and element in HALVES:
        fault = f"a scalar {element} is passed as its bits, 0 to 0xffff, and {quote} is not"
        return "" if "." not in text and _integer(text) in range(1 << 16) else fault
    if element in REAL or element in _SMALL_REAL_ELEMENTS:
        return _real_fault(text, quote, element)
    return ""


def _integer_fault(text: str, quote: str, element: str, *, is_scalar: bool) -> str:
    sign, _, digits = element.rpartition("i")
    sign, bits = ("", 64) if element == "index" else (sign, int(digits[:_WIDTH_DIGITS]))
    if bits not in _WIDTHS and not is_scalar:
        is_wrong = bits in _BYTE_WIDTHS and not _TWO_DIGITS.fullmatch(text)
        return f"{element} is written as two hexadecimal digits, and {quote} is not" if is_wrong else ""
    if not _is_number(text):
        return f"{quote} is not a number"
    if (buffer := _WORD_BUFFER if bits <= _WORD_BITS else _BUFFER) < len(text):
        return _TOO_LONG.format(quote=quote, buffer=buffer, element=element)
    value = _integer(text)
    if value is None:
        return f"{quote} is not a whole number"
    # The runtime reads scalars as 32-bit words, whatever their width; i1 is true if any bit is set.
    width = bits if bits in _WIDTHS else _WORD_BITS
    is_read_as_signed = sign == "s" or (width > _WORD_BITS and (is_scalar or not sign))  # as are signless 64 bits
    low = 0 if sign == "u" else -(1 << width - 1)
    high = (1 << width - 1 if is_read_as_signed else 1 << width) - 1
    return "" if low <= value <= high else f"{quote} does not fit {element}, which takes {low} to {high}"


def _integer(text: str) -> int | None:
    """The number that C reads; None if C would read only the beginning, or nothing."""
    match = _WHOLE.fullmatch(text)
    if match is None:
        return None
    sign, *digits = match.groups()
    read = zip(digits, (16, 8, 10), strict=True)
    value = next(int(text, base) for text, base in read if text is not None)
    return -value if sign == "-" else value


def _real_fault(text: str, quote: str, element: str) -> str:
    if not _is_number(text):
        return f"{quote} is not a number"
    if len(text) > _BUFFER:
        return _TOO_LONG.format(quote=quote, buffer=_BUFFER, element=element)
    size, lower = abs(_real(text)), text.lower()
    digits = lower.partition("x")[2].partition("p")[0] if "x" in lower else lower.partition("e")[0]
    if size <= (0.0 if element == "f64" else _READ_AS_ZERO) and digits.strip("0.+-"):  # not written as 0
        return f"{quote} is too small for {element}; write 0"
    if size >= _INFINITE_FROM.get(element, math.inf) and "inf" not in lower:
        return f"{quote} is too large for {element}; write inf"
    return ""


def _is_number(text: str) -> bool:
    """Whether C reads a number from the text."""
    try:
        _real(text)
    except (ValueError, OverflowError):
        return False
    return "_" not in text and text.isascii()


def _real(text: str) -> float:
    return float.fromhex(text) if "0x" in text.lower() else float(text)


# ---- arrays
#
# Errors of numpy for files that may be damaged.


_REFUSED: Final = (
    *(OSError, ValueError, EOFError, SyntaxError, TypeError, MemoryError, OverflowError, RecursionError, TokenError),
)
"""Errors that numpy raises for a damaged file: it parses the header as Python literals."""


@contextmanager
def refused_as(kind: type[TracemapError], why: str, remedy: str = "") -> Iterator[None]:
    """Turn an error of numpy about a file into `kind`: `why`, numpy's message, and the remedy.

    Warnings of numpy and of the parser, such as about headers of Python 2, are suppressed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except _REFUSED as error:
        raise kind(f"{why} ({error}){remedy}") from error


def mapped_array(file: Path) -> np.ndarray[Any, Any]:
    """The array of a file, memory-mapped: a damaged header cannot ask for more memory than the file has bytes.

    Raises:
        errors that `refused_as` converts: the file holds no array, or one of Python objects.
    """
    import numpy as np

    values: np.ndarray[Any, Any] = np.lib.format.open_memmap(file, mode="r")
    return values


# ---- inputs
#
# Inputs of the measured function: given by the user, or generated from the declared types.
#
# Generated integers are zeros, so that an index stays in bounds. Generated floats are small random numbers, with a
# fixed seed per argument. IREE gets them as raw files, which can hold every element type that IREE reads.


RANDOM_LIMIT: Final = 0.1
"""Generated floats lie in [0, 0.1): not negative, so that their roots and logarithms are numbers."""


_ZEROS: Final = "zeros (made up)"


@dataclass(frozen=True, slots=True)
class Input:
    """One argument: the value of IREE's `--input`, and its description in the run's header."""

    spec: str
    said: str

    @property
    def is_generated_zeros(self) -> bool:
        """Whether it has only zeros, because no value was given."""
        return self.said.endswith(_ZEROS)


_RANDOM_BYTES: Final = 8
"""Memory per number while random inputs are generated."""
_TOOL_PREFIXES: Final = frozenset("@+&*(!")
"""First characters of inputs that are no plain numbers: files, storage, empty or other types."""
_LONGEST_WORD: Final = 32 * os.sysconf("SC_PAGE_SIZE") - 1
"""Longest command-line argument on Linux, in bytes: 32 pages, including the final zero (`MAX_ARG_STRLEN`)."""
_SINGLE_NUMBER = re.compile(r"[-+]?(?:0x[0-9a-fA-F]+|\d++(?:\.\d*+)?(?:[eE][-+]?\d+)?)")


_NAMED = re.compile(r"([A-Za-z_][^=<@]*)=")
"""A text that begins like a name of an argument."""
_LISTED_ARGUMENTS: Final = 8


@dataclass(frozen=True, slots=True)
class NamedValue:
    """An input given as a Python value, with the name of its argument."""

    name: str
    value: object


def given_inputs(entry: Function, specs: Sequence[str]) -> list[Input | None]:
    """The user's inputs, one per argument; None for an argument that is not given while others are given by name.

    Raises:
        InputInvalid: there are too many or too few inputs, or one does not have its argument's type.
    """
    files = InputFiles()
    inputs: list[Input | None] = []
    for argument, spec in zip(entry.arguments, specs_by_argument(entry, specs), strict=True):
        if spec is not None:
            check_spec(entry, argument, spec, files)
        inputs.append(None if spec is None else Input(spec, spec))
    return inputs


def specs_by_argument(entry: Function, specs: Sequence[str]) -> list[str | None]:
    """The user's inputs by argument: those without a name in order, then those that begin with a name, as `x=@x.npy`.

    Raises:
        InputInvalid: there are too many or too few inputs, or a name is unknown.
    """
    return _by_argument(entry, [_split_name(entry, spec) for spec in specs], "give one --input per argument")


def dimensions_of(entry: Function, inputs: Sequence[str], dim: Integer) -> Callable[[int, int], Integer]:
    """The dimensions of a function's arguments, by numbers of argument and dimension: of its inputs, else as declared.

    Dimension -1 is the value of the argument itself. `dim`: the size of dynamic dimensions without an input.

    Raises:
        InputInvalid: there are too many or too few inputs.
    """
    specs = specs_by_argument(entry, inputs) if inputs else [None] * len(entry.arguments)
    shapes: list[Sequence[int | None]] = []
    values: list[str] = []
    for argument, spec in zip(entry.arguments, specs, strict=True):
        found = SPEC.fullmatch(spec or "")
        sizes = tuple(int(size) for size in found[1].split("x")[:-1]) if found else ()
        declared = Shaped(sizes or None, found[2]) if found else parsed(argument.type)
        shapes.append(declared.sizes if declared is not None and declared.sizes is not None else ())
        values.append((found[3] or "") if found else spec or "")

    def dimension(argument: int, index: int) -> Integer:
        if argument >= len(shapes):
            return UNKNOWN
        if index < 0:
            return int(values[argument]) if values[argument].isdigit() else UNKNOWN
        if index >= len(shapes[argument]):
            return UNKNOWN
        size = shapes[argument][index]
        return dim if size is None else size

    return dimension


def _split_name(entry: Function, spec: str) -> tuple[str, str]:
    """The name of the argument in an input, "" if it has none, and the rest of the input."""
    matching = [argument.name for argument in entry.arguments if spec.startswith(f"{argument.name}=")]
    name = max(matching, key=len, default="")
    if SPEC.fullmatch(spec.strip()):  # an argument may have the name of a type, such as `f32`
        return "", spec
    if name or not (match := _NAMED.match(spec)):
        return name, spec[len(name) + 1 :] if name else spec
    raise _unknown_argument(entry, match[1])


_Given = TypeVar("_Given")


def _by_argument(entry: Function, given: Sequence[tuple[str, _Given]], ask: str) -> list[_Given | None]:
    """Inputs with and without names by argument. If all have names, some may be missing."""
    indices = {argument.name: index for index, argument in enumerate(entry.arguments)}
    unnamed = [value for name, value in given if not name]
    if len(unnamed) == len(given):
        _check_input_count(entry, len(given), ask)
        return [*unnamed]
    _, after = next((name, given[index + 1 :]) for index, (name, _) in enumerate(given) if name)
    if len(unnamed) > len(entry.arguments) or not all(name for name, _ in after):
        raise InputInvalid(f"{entry.name}: give inputs without a name first, in order, then those with a name")
    values: dict[int, _Given] = dict(enumerate(unnamed))
    for name, value in given[len(unnamed) :]:
        if name not in indices:
            raise _unknown_argument(entry, name)
        if indices[name] in values:
            raise InputInvalid(f"{entry.name}: argument {_short(name)} is given twice; give it once")
        values[indices[name]] = value
    missing = [argument.name for index, argument in enumerate(entry.arguments) if index not in values]
    if unnamed and missing:
        raise InputInvalid(
            f"{entry.name}: {join_names([_short(name) for name in missing])} {'is' if len(missing) == 1 else 'are'} "
            "missing; give all arguments, or only some by name, so that the others are generated"
        )
    return [values.get(index) for index in range(len(entry.arguments))]


def _unknown_argument(entry: Function, name: str) -> InputInvalid:
    names = [argument.name for argument in entry.arguments]
    similar = get_close_matches(name, names, 1)
    question = f"; did you mean {_short(similar[0])}?" if similar else ""
    listed = join_names([_short(known) for known in names], most=_LISTED_ARGUMENTS) or "none"
    return InputInvalid(
        f"{entry.name}: no argument has the name {_quoted(name)}; its arguments are: {listed}{question}"
    )


def _short(name: str) -> str:
    return start_of(name, _LONGEST_QUOTE)


def _where(entry: Function, argument: Argument) -> str:
    """A function's argument in messages: name in the program, and type."""
    return f"{entry.name}: argument {_short(argument.name)} ({argument.type})"


def check_spec(entry: Function, argument: Argument, spec: str, files: InputFiles) -> None:
    """Reject a text that cannot be an argument of its type, or a file that does not hold it.

    Only IREE's tools check `&storage`.

    Raises:
        InputInvalid: it cannot, or is too long for a command line; the message says why, and how to write it.
    """
    where = _where(entry, argument)
    if (length := len(os.fsencode(f"--input={spec}"))) > _LONGEST_WORD:
        raise InputInvalid(
            f"{where} is a text of {length:,} bytes; a command line "
            f"takes at most {_LONGEST_WORD:,} per argument. Save it as a numpy file and pass @file.npy"
        )
    declared, spec = parsed(argument.type), spec.strip()
    if spec[:1] in _FILE_PREFIXES:
        if fault := _array_file_fault(declared, spec, files):
            raise InputInvalid(f"{where} cannot be read from {spec[1:]}: {fault}")
        return
    if declared is None or spec[:1] in _TOOL_PREFIXES:
        return
    if declared.sizes is not None and _SINGLE_NUMBER.fullmatch(spec):
        number = start_of(spec, _LONGEST_QUOTE)
        raise InputInvalid(
            f"{where} cannot be the single number {number}; to fill "
            f"it with this number, write --input={_spec_of(declared)}={number}"
        )
    is_scalar = declared.sizes is None
    fault = number_fault(spec, declared.element, is_scalar=True) if is_scalar else _tensor_fault(declared, spec)
    if fault:
        is_path = names_file(spec) and not is_scalar
        remedy = f"@{spec}" if is_path else _example_of(declared, spec)
        raise InputInvalid(f"{where} cannot be {_quoted(spec)}: {fault}; write it as --input={remedy}")
    if (match := SPEC.fullmatch(spec)) and (values := match[3] or "")[:1] in _FILE_PREFIXES:
        sizes = [int(size) for size in match[1].split("x")[:-1]]
        if fault := files.raw_fault(values, sizes, match[2]):
            raise InputInvalid(f"{where} cannot be read from {values[1:]}: {fault}")


# ---- files of inputs
#
# The runtime reads `@FILE` from the beginning, and `+FILE` after the array that it read last from this file.


_FILE_PREFIXES: Final = frozenset("@+")
_HEADERS: Final = {(1, 0): "read_array_header_1_0", (2, 0): "read_array_header_2_0"}
"""numpy's functions by version of the format; version 3 is only for arrays with named fields."""
_SAVE: Final = "save it with numpy.save('x.npy', {})"


@dataclass(frozen=True, slots=True)
class _ArrayHeader:
    """The header of an array in a numpy file, and the number of bytes that the file lacks."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_fortran: bool
    missing_bytes: int


class InputFiles:
    """The files of a call's inputs, and where the next array of each begins."""

    def __init__(self) -> None:
        self._ends: dict[str, int] = {}

    def header(self, spec: str) -> _ArrayHeader:
        """The header of the array that `@FILE` or `+FILE` reads.

        Raises:
            OSError, ValueError and others in `_REFUSED`: the header is damaged.
        """
        import numpy as np

        path = spec[1:]
        with Path(path).open("rb") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            file.seek(self._begin(spec))
            version = np.lib.format.read_magic(file)
            if version not in _HEADERS:
                raise ValueError(f"version {version[0]}.{version[1]} of the format is not supported")
            shape, is_fortran, dtype = getattr(np.lib.format, _HEADERS[version])(file)
            end = file.tell() + math.prod(shape) * dtype.itemsize
            self._ends[path] = end
            return _ArrayHeader(shape, dtype, is_fortran, max(0, end - os.fstat(file.fileno()).st_size))

    def raw_fault(self, spec: str, sizes: Sequence[int], element: str) -> str:
        """Why a file has too few bytes for an array without a header; "" if it has enough."""
        begin, needed = self._begin(spec), math.prod(sizes) * _element_bytes(element)
        self._ends[spec[1:]] = begin + needed
        try:
            left = max(0, Path(spec[1:]).stat().st_size - begin)
        except OSError as error:
            return f"{error.strerror}; check the path"
        written = "x".join([*map(str, sizes), element])
        return "" if left >= needed else f"it has {left:,} bytes, and {written} needs {needed:,}; pass a whole file"

    def _begin(self, spec: str) -> int:
        return self._ends.get(spec[1:], 0) if spec[0] == "+" else 0


def _element_bytes(element: str) -> int:
    """Bytes of an element in a file; 0 if several share a byte, or if only the runtime knows."""
    if element == "i1":
        return 1
    bits = re.search(r"\d+", element)
    return 0 if bits is None else int(bits[0]) // 8 * (2 if element in _COMPLEX else 1)


def _array_file_fault(declared: Shaped | None, spec: str, files: InputFiles) -> str:
    """Why a numpy file does not hold an argument, and what to do; "" if it may."""
    kind = format_of_file(Path(spec[1:]))
    if kind is not FileFormat.ARRAY:
        advice = _SAVE.format("numpy.load('x.npz')['NAME']") if kind is FileFormat.ARRAYS else "pass a .npy file"
        return f"it is {kind}, not a numpy array (.npy); {advice}" if kind else "there is no such file; check the path"
    if declared is not None and declared.sizes is None:
        return f"the argument is a single number, and files hold arrays; write --input={_example_of(declared)}"
    try:
        header = files.header(spec)
    except _REFUSED as error:
        return f"its header is damaged ({start_of(str(error), _LONGEST_QUOTE)}); {_SAVE.format('x')}"
    if header.dtype.hasobject:
        return "it holds Python objects; pass an array of numbers"
    if header.missing_bytes:
        return f"it is truncated: {header.missing_bytes:,} bytes of its array are missing; save or copy it again"
    if header.is_fortran and len(header.shape) > 1:
        remedy = _SAVE.format("numpy.ascontiguousarray(x)")
        return f"its elements are in Fortran order, which IREE does not read; {remedy}"
    if header.dtype.byteorder == ">":
        return (
            f"its numbers are big-endian, which IREE does not read; {_SAVE.format('x.astype(x.dtype.newbyteorder())')}"
        )
    return "" if declared is None else _array_type_fault(declared, header)


def _array_type_fault(declared: Shaped, header: _ArrayHeader) -> str:
    element = _element_of(header.dtype)
    held = "x".join([*map(str, header.shape), element or header.dtype.name])
    wanted = "x".join([*("?" if size is None else str(size) for size in declared.sizes or ()), declared.element])
    if not _sizes_fit(header.shape, declared.sizes or ()):
        return f"it holds {held}, not {wanted}; pass an array of this shape"
    if element and not _elements_fit(element, declared.element):
        name = number_type(declared.element) or declared.element.lstrip("s").replace("i", "int", 1)
        name = "bool" if name == "int1" else name
        return f"it holds {held}, not {wanted}; {_SAVE.format(f'x.astype({name!r})')}"
    return ""


def _tensor_fault(declared: Shaped, spec: str) -> str:
    """Why a text is not a valid tensor: shape, element type or values; "" if it is."""
    match = SPEC.fullmatch(spec)
    if match is None:
        return "it has no shape and element type"
    sizes, element, values = [int(size) for size in match[1].split("x")[:-1]], match[2], match[3] or ""
    if not _sizes_fit(sizes, declared.sizes or ()):
        shape = "x".join("?" if size is None else str(size) for size in declared.sizes or ()) or "empty"
        return f"its shape is {'x'.join(map(str, sizes)) or 'empty'}, not {shape}"
    if not _elements_fit(element, declared.element):
        return f"its elements are {element}, not {declared.element}"
    is_known = element in REAL or element in _SMALL_REAL_ELEMENTS or INTEGER.fullmatch(element)  # how it is read
    if values[:1] in _TOOL_PREFIXES or not is_known:
        return ""
    words, count = words_of(values), math.prod(sizes)
    if len(words) not in (0, 1, count):
        return f"it has {plural(len(words), 'value')} for {plural(count, 'element')}"
    return next(filter(None, (number_fault(word, element, is_scalar=False) for word in words)), "")


def words_of(values: str) -> list[str]:
    """The numbers in the values of an array in IREE's syntax."""
    return values.replace(",", " ").replace("[", " ").replace("]", " ").split()


def _sizes_fit(sizes: Sequence[int], declared: Sequence[int | None]) -> bool:
    return len(sizes) == len(declared) and all(
        expected in (None, size) for size, expected in zip(sizes, declared, strict=True)
    )


def _elements_fit(element: str, declared: str) -> bool:
    """Whether the runtime may accept one type for the other; it decides itself on signs and narrow types."""
    if element in _COMPLEX or declared in _COMPLEX:
        return element == declared
    if element in REAL and declared in REAL:
        return declared in {element, "f64"}  # the compiler may have turned f64 into f32
    whole, declared_whole = (INTEGER.fullmatch(text) is not None for text in (element, declared))
    if whole and declared_whole and "index" not in (element, declared):
        widths = [text.lstrip("sui") for text in (element, declared)]
        return widths[0] == widths[1] or "1" in widths
    return whole == declared_whole or not (element in REAL or declared in REAL)


def array_inputs(entry: Function, values: Sequence[object], folder: Path) -> list[Input | None]:
    """Inputs given as Python values, one per argument: texts in IREE's syntax, numbers, or arrays of numpy and similar.

    Texts may begin with a name, and `NamedValue` has one. None: the argument is not given, while others have names.

    Raises:
        InputInvalid: there are too many or too few inputs, or an array does not have its argument's type.
    """
    given = [_name_and_value(entry, value) for value in values]
    files, by_argument = InputFiles(), _by_argument(entry, given, "give one per argument")
    return [
        None if named is None else _input_of_value(entry, index, named.value, folder, files)
        for index, named in enumerate(by_argument)
    ]


def _name_and_value(entry: Function, value: object) -> tuple[str, NamedValue]:
    if isinstance(value, str):
        name, spec = _split_name(entry, value)
        return name, NamedValue(name, spec)
    named = value if isinstance(value, NamedValue) else NamedValue("", value)
    return named.name, named


def _check_input_count(entry: Function, given: int, ask: str) -> None:
    if given != len(entry.arguments):
        types = ", ".join(f"{_short(argument.name)}: {argument.type}" for argument in entry.arguments)
        takes = f"{entry.name} takes {plural(len(entry.arguments), 'input')} ({types or 'none'})"
        raise InputInvalid(f"{takes}, {given} given; {ask}")


def _input_of_value(entry: Function, index: int, value: object, folder: Path, files: InputFiles) -> Input:
    import numpy as np

    argument = entry.arguments[index]
    shaped = parsed(argument.type)
    if isinstance(value, bool):
        value = int(value)  # IREE's tools do not know truth values by name
    if isinstance(value, (str, int, float)):
        description = spec = str(value)
        if not isinstance(value, str) and shaped is not None and shaped.sizes is None:
            spec = passed_number(value, shaped.element)
        check_spec(entry, argument, spec, files)
        return Input(spec, description)

    values = np.asarray(value)
    if shaped is None or not _fits(values, shaped):
        raise InputInvalid(
            f"{_where(entry, argument)} cannot be an array of "
            f"{'x'.join(map(str, values.shape)) or 'no dimensions'}, {values.dtype}"
        )
    if shaped.sizes is None:
        number = int(values.item()) if values.dtype.kind == "b" else values.item()
        return Input(passed_number(number, shaped.element), str(number))
    text = "x".join([*map(str, values.shape), shaped.element])
    if values.size == 0:  # IREE does not read an empty file
        return Input(text, f"{text}: given as an array")
    return Input(_write_values(values, text, folder / f"input{index}"), f"{text}: given as an array")


def _fits(values: np.ndarray[Any, Any], shaped: Shaped) -> bool:
    """Whether an array has the declared shape and, bit for bit, the declared element type."""
    sizes = shaped.sizes or ()
    same_shape = _sizes_fit(values.shape, sizes)
    if named := number_type(shaped.element):
        return same_shape and values.dtype.name == named
    bits = shaped.element.lstrip("sui")
    same_bits = values.dtype.kind == "b" if bits == "1" else f"{8 * values.dtype.itemsize}" == bits
    return same_shape and same_bits and values.dtype.kind in "iub"


def generated_inputs(
    entry: Function, dim: Integer, folder: Path, given: Sequence[Input | None] | None = None
) -> list[Input]:
    """Generate inputs from the declared types, with files in `folder`. `dim` replaces every `?`.

    `given`: inputs that are known already, by argument; None for those to generate.

    Raises:
        InputInvalid: an argument bounds a loop, has a `?` without a `dim`, or has an unknown type.
    """
    given = [None] * len(entry.arguments) if given is None else given
    pairs = enumerate(zip(entry.arguments, given, strict=True))
    shapes = {index: _known_shape(entry, argument, dim) for index, (argument, known) in pairs if not known}
    return [known or _generated_input(index, shapes[index], folder) for index, known in enumerate(given)]


def takes_size(function: Function) -> bool:
    """Whether an argument has a dynamic dimension; an argument of an unknown type may have one."""
    shapes = [parsed(argument.type) for argument in function.arguments]
    return any(shaped is None or None in (shaped.sizes or ()) for shaped in shapes)


def check_size(functions: Sequence[Function], dim: Integer) -> None:
    """Reject --dim if no function takes an input with a dynamic dimension.

    Raises:
        UsageInvalid: none does.
    """
    if functions and isinstance(dim, int) and not any(map(takes_size, functions)):
        names = join_names([function.name for function in functions], " or ")
        raise UsageInvalid(f"--dim {dim}: no input of {names} has a dynamic dimension (`?`); drop --dim")


def _known_shape(entry: Function, argument: Argument, dim: Integer) -> Shaped:
    where = _where(entry, argument)
    if argument.loop_bound:
        shapes = (parsed(other.type) for other in entry.arguments)
        examples = ("VALUE" if shape is None or shape.sizes is None else _example_of(shape) for shape in shapes)
        given = " ".join(f"--input={example}" for example in examples)
        raise InputInvalid(f"{where} is the bound of a loop and cannot be generated; give every argument: {given}")
    shaped = parsed(argument.type)
    if shaped is None:
        raise InputInvalid(f"{where} has a type that no input can be generated for; give every argument with --input")
    if shaped.sizes is None or None not in shaped.sizes:
        return shaped
    if not isinstance(dim, int):
        raise InputInvalid(
            f"{where} has a dynamic dimension; set every `?` with --dim N, or give every argument with --input"
        )
    return Shaped(tuple(dim if size is None else size for size in shaped.sizes), shaped.element)


def _example_of(shaped: Shaped, meant: str = "") -> str:
    """An example value in IREE's syntax; the number of `meant` if that only has the wrong syntax."""
    value = 1 if INTEGER.fullmatch(shaped.element) else 0.5
    if shaped.sizes is not None:
        kind, _, given = meant.partition("=")
        fits = kind.endswith("i1") and shaped.element == "i1" and given in ("0", "1")
        is_byte = shaped.element != "i1" and len(_zero(shaped.element)) > 1
        return f"{_spec_of(shaped)}={given if fits else '11' if is_byte else value}"
    with suppress(ValueError):
        value = float(meant) if shaped.element in HALVES else value
    return passed_number(value, shaped.element)


def _spec_of(shaped: Shaped) -> str:
    """A shape and element type in IREE's syntax, `N` for dynamic dimensions."""
    element = "i8" if shaped.element == "i1" else shaped.element  # truth values are stored as bytes
    return "".join(f"{'N' if size is None else size}x" for size in shaped.sizes or ()) + element


def _generated_input(index: int, shaped: Shaped, folder: Path) -> Input:
    if shaped.sizes is None:
        value = 0 if INTEGER.fullmatch(shaped.element) else RANDOM_LIMIT / 2
        return Input(passed_number(value, shaped.element), f"{shaped.element}: {value} (made up)")
    sizes = [size for size in shaped.sizes if size is not None]
    text = "x".join([*map(str, sizes), shaped.element])
    kind = number_type(shaped.element)
    # Without a value IREE fills any element type with zeros; it does not read an empty file.
    if math.prod(sizes) == 0:
        return Input(text, text)
    if not kind:
        return Input(text if sizes else f"{text}={_zero(shaped.element)}", f"{text}: {_ZEROS}")
    if (needed_bytes := _RANDOM_BYTES * math.prod(sizes)) > (free_bytes := free_memory()):
        raise InputInvalid(
            f"an input of {text} cannot be generated: it takes {format_bytes(needed_bytes)}, but only "
            f"{format_bytes(free_bytes)} of memory are free; give it with --input, or use a smaller --dim"
        )
    import numpy as np

    description = f"{text}: random in [0, {RANDOM_LIMIT}), seed {index} (made up)"
    values = np.random.default_rng(index).random(sizes, dtype=np.float32) * np.float32(RANDOM_LIMIT)
    values = values.astype(dtype_of(kind), copy=False)
    return Input(_write_values(values, text, folder / f"input{index}"), description)


def _zero(element: str) -> str:
    """The zero of an integer type in IREE's syntax, needed for a type without sizes.

    Elements of less than a byte are written as the two hexadecimal digits of their byte.
    """
    return "00" if element.lstrip("sui") in {"1", "2", "4"} else "0"


def _write_values(values: np.ndarray[Any, Any], text: str, path: Path) -> str:
    """Write the values; returns the spec. IREE parses no name of a complex type, but reads numpy files of it."""
    import numpy as np

    if values.dtype.kind == "c":
        np.save(path.with_suffix(".npy"), values)
        return f"@{path.with_suffix('.npy')}"
    write_array(values, path.with_suffix(".bin"))
    return f"{text}=@{path.with_suffix('.bin')}"


# ---- saved inputs
#
# Inputs and parameters saved in a bundle.


_PARAMETERS: Final = "--parameters="


@dataclass(frozen=True, slots=True)
class SavedInputs:
    """Saved arguments of a function: an array file per argument, and parameter files by scope.

    `names`: the names of the arguments in the program.
    """

    function: str = ""
    names: tuple[str, ...] = ()
    inputs: tuple[Path, ...] = ()
    parameters: tuple[tuple[str, Path], ...] = ()

    def is_for(self, entry: Function) -> bool:
        """Whether inputs of a function are saved."""
        return bool(self.inputs) and self.function == entry.name

    def flags(self, given: Sequence[str]) -> list[str]:
        """Runtime flags for the parameters; none if the given flags set parameters themselves.

        Raises:
            InputInvalid: a parameter file that the bundle refers to is missing.
        """
        if any(flag.startswith(_PARAMETERS) for flag in given):
            return []
        for scope, path in self.parameters:
            if not names_file(path):
                raise InputInvalid(
                    f"{path}: this file with the bundle's parameters is missing; pass its new path after `--`: "
                    f"{_PARAMETERS}{f'{scope}=' if scope else ''}FILE, or build the bundle again"
                )
        return [f"{_PARAMETERS}{scope}={path}" if scope else f"{_PARAMETERS}{path}" for scope, path in self.parameters]


NO_SAVED_INPUTS: Final = SavedInputs()


def saved_inputs(entry: Function, kept: SavedInputs, folder: Path) -> list[Input]:
    """The saved arrays as inputs, one per argument, with files in `folder` for IREE.

    Raises:
        InputInvalid: there are too many or too few, or one has the wrong type or is no array.
    """
    loaded = [load_array(file) for file in kept.inputs]
    types = [argument.type for argument in entry.arguments]
    values = [_as_declared(array, kind) for array, kind in zip(loaded, types, strict=False)]
    inputs = [known for known in array_inputs(entry, [*values, *loaded[len(values) :]], folder) if known]
    shapes = [saved_input.said.partition(":")[0] for saved_input in inputs]
    return [
        replace(saved_input, said=f"{shape}: {name}, kept in the bundle")
        for saved_input, shape, name in zip(inputs, shapes, kept.names, strict=True)
    ]


def load_array(file: Path) -> np.ndarray[Any, Any]:
    """A saved array.

    Raises:
        InputInvalid: the file holds no array.
    """
    with refused_as(InputInvalid, f"{file}: the array cannot be read", "; build the bundle again"):
        return mapped_array(file)


def _as_declared(values: np.ndarray[Any, Any], declared: str) -> np.ndarray[Any, Any]:
    """Convert values to the declared type.

    Numpy's files do not name small floats, and the compiler may demote 64-bit arguments to 32 bits.
    """
    shaped = parsed(declared)
    name = number_type(shaped.element) if shaped is not None else ""
    if not name:
        return values
    kind = dtype_of(name)
    if values.dtype.kind == "V" and values.dtype.itemsize == kind.itemsize:
        return values.view(kind)
    return values.astype(kind) if values.dtype.kind == kind.kind and values.dtype != kind else values
