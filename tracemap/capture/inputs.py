"""Inputs of the measured function: given by the user, or generated from the declared types.

Generated integers are zeros, so that an index stays in bounds. Generated floats are small random numbers, with a fixed
seed per argument. IREE gets them as raw files, which can hold every element type that IREE reads.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracemap.capture.elements import (
    HALVES,
    INTEGER,
    REAL,
    SPEC,
    Shaped,
    dtype_of,
    is_read,
    number_fault,
    number_type,
    parsed,
    passed_number,
)
from tracemap.errors import InputInvalid, UsageInvalid, start_of
from tracemap.functions import Argument, Function
from tracemap.memory import free_memory
from tracemap.units import Integer, format_bytes, listed, plural

if TYPE_CHECKING:
    import numpy as np

RANDOM_LIMIT: Final = 0.1
"""Generated floats lie in [0, 0.1): not negative, so that their roots and logarithms are numbers."""


@dataclass(frozen=True, slots=True)
class Input:
    """One argument: the value of IREE's `--input`, and its description in the run's header."""

    spec: str
    said: str


_RANDOM_BYTES: Final = 8
"""Memory per number while random inputs are generated."""
_TOOL_PREFIXES: Final = frozenset("@+&*(!")
"""First characters of inputs that are no plain numbers: files, storage, empty or other types."""
_LONGEST_QUOTE: Final = 60
_LONGEST_WORD: Final = 32 * os.sysconf("SC_PAGE_SIZE") - 1
"""Longest command-line argument on Linux, in bytes: 32 pages, including the final zero (`MAX_ARG_STRLEN`)."""
_SINGLE_NUMBER = re.compile(r"[-+]?(?:0x[0-9a-fA-F]+|\d++(?:\.\d*+)?(?:[eE][-+]?\d+)?)")


def given_inputs(entry: Function, specs: Sequence[str]) -> list[Input]:
    """The user's inputs, one per argument.

    Raises:
        InputInvalid: there are too many or too few inputs, or one does not have its argument's type.
    """
    _check_input_count(entry, len(specs), "give one --input per argument")
    for argument, spec in zip(entry.arguments, specs, strict=True):
        check_spec(entry, argument, spec)
    return [Input(spec, spec) for spec in specs]


def check_spec(entry: Function, argument: Argument, spec: str) -> None:
    """Reject a text that cannot be an argument of its type. Files and `&storage` are checked only by IREE's tools.

    Raises:
        InputInvalid: it cannot, or is too long for a command line; the message says why, and how to write it.
    """
    if (length := len(os.fsencode(f"--input={spec}"))) > _LONGEST_WORD:
        raise InputInvalid(
            f"{entry.name}: argument {argument.name} ({argument.type}) is a text of {length:,} bytes; a command line "
            f"takes at most {_LONGEST_WORD:,} per argument. Save it as a numpy file and pass @file.npy"
        )
    declared, spec = parsed(argument.type), spec.strip()
    if declared is None or spec[:1] in _TOOL_PREFIXES:
        return
    if declared.sizes is not None and _SINGLE_NUMBER.fullmatch(spec):
        number = start_of(spec, _LONGEST_QUOTE)
        raise InputInvalid(
            f"{entry.name}: argument {argument.name} ({argument.type}) cannot be the single number {number}; to fill "
            f"it with this number, write --input={_spec_of(declared)}={number}"
        )
    if fault := _scalar_fault(declared, spec) if declared.sizes is None else _tensor_fault(declared, spec):
        raise InputInvalid(
            f"{entry.name}: argument {argument.name} ({argument.type}) cannot be {_quoted(spec)}: {fault}; write it as "
            f"--input={_example_of(declared, spec)}"
        )


def _quoted(spec: str) -> str:
    return repr(start_of(spec, _LONGEST_QUOTE))


def _scalar_fault(declared: Shaped, spec: str) -> str:
    """Why a text is not a valid number; "" if it is."""
    return number_fault(spec, declared.element, is_scalar=True)


def _tensor_fault(declared: Shaped, spec: str) -> str:
    """Why a text is not a valid tensor: shape, element type or values; "" if it is."""
    match = SPEC.fullmatch(spec)
    if match is None:
        return "it has no shape and element type"
    sizes, element, values = [int(size) for size in match[1].split("x")[:-1]], match[2], match[3] or ""
    if not _sizes_fit(sizes, declared.sizes or ()):
        return f"its shape is {'x'.join(map(str, sizes)) or 'empty'}, not {_shape_of(declared)}"
    if not _elements_fit(element, declared.element):
        return f"its elements are {element}, not {declared.element}"
    return "" if values[:1] in _TOOL_PREFIXES else _values_fault(values, element, math.prod(sizes))


def _sizes_fit(sizes: Sequence[int], declared: Sequence[int | None]) -> bool:
    return len(sizes) == len(declared) and all(
        expected in (None, size) for size, expected in zip(sizes, declared, strict=True)
    )


def _shape_of(declared: Shaped) -> str:
    return "x".join("?" if size is None else str(size) for size in declared.sizes or ()) or "empty"


def _elements_fit(element: str, declared: str) -> bool:
    """Whether the runtime may accept one type for the other; it decides itself on signs and narrow types."""
    if element in REAL and declared in REAL:
        return declared in {element, "f64"}  # the compiler may have turned f64 into f32
    whole, declared_whole = (INTEGER.fullmatch(text) is not None for text in (element, declared))
    if whole and declared_whole and "index" not in (element, declared):
        widths = [text.lstrip("sui") for text in (element, declared)]
        return widths[0] == widths[1] or "1" in widths
    return whole == declared_whole or not (element in REAL or declared in REAL)


def _values_fault(text: str, element: str, count: int) -> str:
    values = text.replace(",", " ").replace("[", " ").replace("]", " ").split()
    if not is_read(element):
        return ""
    if len(values) not in (0, 1, count):
        return f"it has {plural(len(values), 'value')} for {plural(count, 'element')}"
    return next(filter(None, (number_fault(value, element, is_scalar=False) for value in values)), "")


def array_inputs(entry: Function, values: Sequence[object], folder: Path) -> list[Input]:
    """Inputs given as Python values, one per argument: texts in IREE's syntax, numbers, or arrays of numpy and similar.

    Raises:
        InputInvalid: there are too many or too few inputs, or an array does not have its argument's type.
    """
    _check_input_count(entry, len(values), "give one per argument")
    return [_input_of_value(entry, index, value, folder) for index, value in enumerate(values)]


def _check_input_count(entry: Function, given: int, ask: str) -> None:
    if given != len(entry.arguments):
        types = ", ".join(argument.type for argument in entry.arguments)
        takes = f"{entry.name} takes {plural(len(entry.arguments), 'input')} ({types or 'none'})"
        raise InputInvalid(f"{takes}, {given} given; {ask}")


def _input_of_value(entry: Function, index: int, value: object, folder: Path) -> Input:
    import numpy as np

    argument = entry.arguments[index]
    shaped = parsed(argument.type)
    if isinstance(value, (str, int, float)):
        description = spec = value if isinstance(value, str) else str(_number_of(value))
        if not isinstance(value, str) and shaped is not None and shaped.sizes is None:
            spec = passed_number(_number_of(value), shaped.element)
        check_spec(entry, argument, spec)
        return Input(spec, description)

    values = np.asarray(value)
    if shaped is None or not _fits(values, shaped):
        raise InputInvalid(
            f"{entry.name}: argument {argument.name} ({argument.type}) cannot be an array of "
            f"{'x'.join(map(str, values.shape)) or 'no dimensions'}, {values.dtype}"
        )
    if shaped.sizes is None:
        number = _number_of(values.item())
        return Input(passed_number(number, shaped.element), str(number))
    text = "x".join([*map(str, values.shape), shaped.element])
    if values.size == 0:  # IREE does not read an empty file
        return Input(text, f"{text}: given as an array")
    return Input(_write_values(values, text, folder / f"input{index}"), f"{text}: given as an array")


def _number_of(value: float) -> float:
    """The number; 0 or 1 for a truth value, which IREE's tools do not know by name."""
    return int(value) if isinstance(value, bool) else value


def _fits(values: np.ndarray[Any, Any], shaped: Shaped) -> bool:
    """Whether an array has the declared shape and, bit for bit, the declared element type."""
    sizes = shaped.sizes or ()
    same_shape = len(values.shape) == len(sizes) and all(
        expected in (None, size) for size, expected in zip(values.shape, sizes, strict=True)
    )
    if named := number_type(shaped.element):
        return same_shape and values.dtype.name == named
    bits = shaped.element.lstrip("sui")
    same_bits = values.dtype.kind == "b" if bits == "1" else f"{8 * values.dtype.itemsize}" == bits
    return same_shape and same_bits and values.dtype.kind in "iub"


def generated_inputs(entry: Function, dim: Integer, folder: Path) -> list[Input]:
    """Generate inputs from the declared types, with files in `folder`. `dim` replaces every `?`.

    Raises:
        InputInvalid: an argument bounds a loop, has a `?` without a `dim`, or has an unknown type.
    """
    shaped = [_known_shape(entry, argument, dim) for argument in entry.arguments]
    return [_generated_input(index, sizes_and_element, folder) for index, sizes_and_element in enumerate(shaped)]


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
        names = listed([function.name for function in functions], " or ")
        raise UsageInvalid(f"--dim {dim}: no input of {names} has a dynamic dimension (`?`); drop --dim")


def _known_shape(entry: Function, argument: Argument, dim: Integer) -> Shaped:
    where = f"{entry.name}: argument {argument.name} ({argument.type})"
    if argument.loop_bound:
        raise InputInvalid(
            f"{where} is the bound of a loop and cannot be generated; give every argument: {_example(entry)}"
        )
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


def _example(entry: Function) -> str:
    specs = []
    for argument in entry.arguments:
        shaped = parsed(argument.type)
        specs.append("--input=" + ("VALUE" if shaped is None or shaped.sizes is None else _example_of(shaped)))
    return " ".join(specs)


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
    if not kind or math.prod(sizes) == 0:
        return Input(text if sizes else f"{text}={_zero(shaped.element)}", f"{text}: zeros (made up)")
    if (needed_bytes := _RANDOM_BYTES * math.prod(sizes)) > (free_bytes := free_memory()):
        raise InputInvalid(
            f"an input of {text} cannot be generated: it takes {format_bytes(needed_bytes)}, but only "
            f"{format_bytes(free_bytes)} of memory are free; give it with --input, or use a smaller --dim"
        )
    description = f"{text}: random in [0, {RANDOM_LIMIT}), seed {index} (made up)"
    values = _random(sizes, kind, index)
    return Input(_write_values(values, text, folder / f"input{index}"), description)


def _zero(element: str) -> str:
    """The zero of an integer type in IREE's syntax, needed for a type without sizes.

    Elements of less than a byte are written as the two hexadecimal digits of their byte.
    """
    return "00" if element.lstrip("sui") in {"1", "2", "4"} else "0"


def _random(sizes: list[int], kind: str, seed: int) -> np.ndarray[Any, Any]:
    import numpy as np

    values = np.random.default_rng(seed).random(sizes, dtype=np.float32) * np.float32(RANDOM_LIMIT)
    return values.astype(dtype_of(kind), copy=False)


def _write_values(values: np.ndarray[Any, Any], text: str, path: Path) -> str:
    """Write the values; returns the spec. IREE parses no name of a complex type, but reads numpy files of it."""
    import numpy as np

    if values.dtype.kind == "c":
        np.save(path.with_suffix(".npy"), values)
        return f"@{path.with_suffix('.npy')}"
    values.tofile(path.with_suffix(".bin"))
    return f"{text}=@{path.with_suffix('.bin')}"
