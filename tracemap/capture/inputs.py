"""Inputs of the measured function: those that the user gave, or made up from the declared types.

Integers become zeros (an index into something else stays in bounds), floats small random values from a fixed seed per
argument. They are handed to IREE as raw files, which hold every element type that IREE reads.
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
"""Made-up floats lie in [0, 0.1): not negative, so that roots and logarithms of them are numbers."""


@dataclass(frozen=True, slots=True)
class Input:
    """What one argument is: the value of IREE's `--input`, and what to say about it in the run."""

    spec: str
    said: str


_RANDOM_BYTES: Final = 8
"""Of memory for each number while it is made."""
_OF_THE_TOOLS: Final = frozenset("@+&*(!")
"""What begins an input that is no text of numbers: files, storage, nothing, other types."""
_LONGEST_SAID: Final = 60
_LONGEST_WORD: Final = 32 * os.sysconf("SC_PAGE_SIZE") - 1
"""Bytes of a single argument of a program, on Linux: 32 pages with the zero behind it (`MAX_ARG_STRLEN`)."""
_SINGLE_NUMBER = re.compile(r"[-+]?(?:0x[0-9a-fA-F]+|\d++(?:\.\d*+)?(?:[eE][-+]?\d+)?)")


def given_inputs(entry: Function, specs: Sequence[str]) -> list[Input]:
    """The user's own inputs, one per argument.

    Raises:
        InputInvalid: there are more or fewer than the function takes, or one is not of its argument's type.
    """
    _check_number(entry, len(specs), "give one --input per argument")
    for argument, spec in zip(entry.arguments, specs, strict=True):
        check_spec(entry, argument, spec)
    return [Input(spec, spec) for spec in specs]


def check_spec(entry: Function, argument: Argument, spec: str) -> None:
    """Refuse what cannot be an argument of its type; what only the runtime's tools know (files, `&storage`) they check.

    Raises:
        InputInvalid: it cannot, or is too long to be handed to a program; the message says why, and how one is written.
    """
    if (length := len(os.fsencode(f"--input={spec}"))) > _LONGEST_WORD:
        raise InputInvalid(
            f"{entry.name}: argument {argument.name} ({argument.type}) is given as a text of {length:,} bytes, and a "
            f"program can be handed {_LONGEST_WORD:,} in one; write it to a file of numpy's and name that: @file.npy"
        )
    declared, spec = parsed(argument.type), spec.strip()
    if declared is None or spec[:1] in _OF_THE_TOOLS:
        return
    if declared.sizes is not None and _SINGLE_NUMBER.fullmatch(spec):
        number = start_of(spec, _LONGEST_SAID)
        raise InputInvalid(
            f"{entry.name}: argument {argument.name} ({argument.type}) cannot be the single number {number}; to fill "
            f"it with this, write --input={_written(declared)}={number}"
        )
    if fault := _scalar_fault(declared, spec) if declared.sizes is None else _tensor_fault(declared, spec):
        raise InputInvalid(
            f"{entry.name}: argument {argument.name} ({argument.type}) cannot be {_cut(spec)}: {fault}; write it as "
            f"--input={_example_of(declared, spec)}"
        )


def _cut(spec: str) -> str:
    return repr(start_of(spec, _LONGEST_SAID))


def _scalar_fault(declared: Shaped, spec: str) -> str:
    """Why a text cannot be one number; "": it can."""
    return number_fault(spec, declared.element, is_scalar=True)


def _tensor_fault(declared: Shaped, spec: str) -> str:
    """Why a text cannot be a tensor; "": it can, as far as its shape, its element type and its values say."""
    match = SPEC.fullmatch(spec)
    if match is None:
        return "that has no shape and element type"
    sizes, element, values = [int(size) for size in match[1].split("x")[:-1]], match[2], match[3] or ""
    if not _sizes_fit(sizes, declared.sizes or ()):
        return f"its shape is {'x'.join(map(str, sizes)) or 'empty'}, not {_shape_of(declared)}"
    if not _elements_fit(element, declared.element):
        return f"its elements are {element}, not {declared.element}"
    return "" if values[:1] in _OF_THE_TOOLS else _values_fault(values, element, math.prod(sizes))


def _sizes_fit(sizes: Sequence[int], declared: Sequence[int | None]) -> bool:
    return len(sizes) == len(declared) and all(
        wanted in (None, size) for size, wanted in zip(sizes, declared, strict=True)
    )


def _shape_of(declared: Shaped) -> str:
    return "x".join("?" if size is None else str(size) for size in declared.sizes or ()) or "empty"


def _elements_fit(element: str, declared: str) -> bool:
    """Whether the runtime may take one for the other: it knows more about signs and narrow types than we do."""
    if element in REAL and declared in REAL:
        return declared in {element, "f64"}  # f64 may have become f32 when it was compiled
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
    """Inputs given in Python, one per argument: texts as IREE writes them, numbers, and arrays of numpy or its like.

    Raises:
        InputInvalid: there are more or fewer than the function takes, or an array is not of its argument's type.
    """
    _check_number(entry, len(values), "give one per argument")
    return [_of_value(entry, index, value, folder) for index, value in enumerate(values)]


def _check_number(entry: Function, given: int, ask: str) -> None:
    if given != len(entry.arguments):
        types = ", ".join(argument.type for argument in entry.arguments)
        takes = f"{entry.name} takes {plural(len(entry.arguments), 'input')} ({types or 'none'})"
        raise InputInvalid(f"{takes}, {given} given; {ask}")


def _of_value(entry: Function, index: int, value: object, folder: Path) -> Input:
    import numpy as np

    argument = entry.arguments[index]
    shaped = parsed(argument.type)
    if isinstance(value, (str, int, float)):
        said = spec = value if isinstance(value, str) else str(_counted(value))
        if not isinstance(value, str) and shaped is not None and shaped.sizes is None:
            spec = passed_number(_counted(value), shaped.element)
        check_spec(entry, argument, spec)
        return Input(spec, said)

    values = np.asarray(value)
    if shaped is None or not _fits(values, shaped):
        raise InputInvalid(
            f"{entry.name}: argument {argument.name} ({argument.type}) cannot be an array of "
            f"{'x'.join(map(str, values.shape)) or 'no dimensions'}, {values.dtype}"
        )
    if shaped.sizes is None:
        number = _counted(values.item())
        return Input(passed_number(number, shaped.element), str(number))
    text = "x".join([*map(str, values.shape), shaped.element])
    if values.size == 0:  # an empty file IREE would not read
        return Input(text, f"{text}: given as an array")
    return Input(_stored(values, text, folder / f"input{index}"), f"{text}: given as an array")


def _counted(value: float) -> float:
    """A number; of a truth value 0 or 1, as IREE's tools do not know it by its name."""
    return int(value) if isinstance(value, bool) else value


def _fits(values: np.ndarray[Any, Any], shaped: Shaped) -> bool:
    """Whether an array has the shape and, bit for bit, the element type that is declared."""
    sizes = shaped.sizes or ()
    same_shape = len(values.shape) == len(sizes) and all(
        wanted in (None, size) for size, wanted in zip(values.shape, sizes, strict=True)
    )
    if named := number_type(shaped.element):
        return same_shape and values.dtype.name == named
    bits = shaped.element.lstrip("sui")
    same_bits = values.dtype.kind == "b" if bits == "1" else f"{8 * values.dtype.itemsize}" == bits
    return same_shape and same_bits and values.dtype.kind in "iub"


def made_inputs(entry: Function, dim: Integer, folder: Path) -> list[Input]:
    """Inputs made up from the declared types; their files go to `folder`. `dim` stands for every `?`.

    Raises:
        InputInvalid: an argument bounds a loop, has a `?` and no `dim` is known, or is of an unknown type.
    """
    shaped = [_understood(entry, argument, dim) for argument in entry.arguments]
    return [_made(index, sizes_and_element, folder) for index, sizes_and_element in enumerate(shaped)]


def takes_size(function: Function) -> bool:
    """Whether an argument has a size that the types leave open; of a type that is not understood it may have one."""
    shapes = [parsed(argument.type) for argument in function.arguments]
    return any(shaped is None or None in (shaped.sizes or ()) for shaped in shapes)


def check_size(functions: Sequence[Function], dim: Integer) -> None:
    """Refuse a size for every `?` where none of the functions takes an input that has one.

    Raises:
        UsageInvalid: there is none.
    """
    if functions and isinstance(dim, int) and not any(map(takes_size, functions)):
        names = listed([function.name for function in functions], " or ")
        raise UsageInvalid(f"--dim {dim}: no input of {names} has a size that is not known (`?`); leave --dim out")


def _understood(entry: Function, argument: Argument, dim: Integer) -> Shaped:
    where = f"{entry.name}: argument {argument.name} ({argument.type})"
    if argument.loop_bound:
        raise InputInvalid(
            f"{where} decides how often a loop runs and cannot be made up; give every argument: {_example(entry)}"
        )
    shaped = parsed(argument.type)
    if shaped is None:
        raise InputInvalid(f"{where} is of a type that no input can be made of; give every argument with --input")
    if shaped.sizes is None or None not in shaped.sizes:
        return shaped
    if not isinstance(dim, int):
        raise InputInvalid(
            f"{where} has a size that is not known; set every `?` with --dim N, or give every argument with --input"
        )
    return Shaped(tuple(dim if size is None else size for size in shaped.sizes), shaped.element)


def _example(entry: Function) -> str:
    specs = []
    for argument in entry.arguments:
        shaped = parsed(argument.type)
        specs.append("--input=" + ("VALUE" if shaped is None or shaped.sizes is None else _example_of(shaped)))
    return " ".join(specs)


def _example_of(shaped: Shaped, meant: str = "") -> str:
    """A value of a type as IREE's tools take it: the number that is meant, where it is only to be written otherwise."""
    value = 1 if INTEGER.fullmatch(shaped.element) else 0.5
    if shaped.sizes is not None:
        kind, _, given = meant.partition("=")
        fits = kind.endswith("i1") and shaped.element == "i1" and given in ("0", "1")
        of_a_byte = shaped.element != "i1" and len(_zero(shaped.element)) > 1
        return f"{_written(shaped)}={given if fits else '11' if of_a_byte else value}"
    with suppress(ValueError):
        value = float(meant) if shaped.element in HALVES else value
    return passed_number(value, shaped.element)


def _written(shaped: Shaped) -> str:
    """A shape and element type as IREE writes them, `N` for each size that is not known."""
    element = "i8" if shaped.element == "i1" else shaped.element  # truth values are bytes
    return "".join(f"{'N' if size is None else size}x" for size in shaped.sizes or ()) + element


def _made(index: int, shaped: Shaped, folder: Path) -> Input:
    if shaped.sizes is None:
        value = 0 if INTEGER.fullmatch(shaped.element) else RANDOM_LIMIT / 2
        return Input(passed_number(value, shaped.element), f"{shaped.element}: {value} (made up)")
    sizes = [size for size in shaped.sizes if size is not None]
    text = "x".join([*map(str, sizes), shaped.element])
    kind = number_type(shaped.element)
    # Without a value IREE fills with zeros, whatever the element type is; an empty file it would not read.
    if not kind or math.prod(sizes) == 0:
        return Input(text if sizes else f"{text}={_zero(shaped.element)}", f"{text}: zeros (made up)")
    if (wanted := _RANDOM_BYTES * math.prod(sizes)) > (free := free_memory()):
        raise InputInvalid(
            f"an input of {text} cannot be made up: it takes {format_bytes(wanted)}, and {format_bytes(free)} of "
            "memory are free; give it with --input, or a smaller --dim"
        )
    said = f"{text}: random in [0, {RANDOM_LIMIT}), seed {index} (made up)"
    values = _random(sizes, kind, index)
    return Input(_stored(values, text, folder / f"input{index}"), said)


def _zero(element: str) -> str:
    """The zero of a whole number as IREE reads it: a type without sizes has to have a value.

    Elements of less than a byte are read as the two hexadecimal digits of their byte.
    """
    return "00" if element.lstrip("sui") in {"1", "2", "4"} else "0"


def _random(sizes: list[int], kind: str, seed: int) -> np.ndarray[Any, Any]:
    import numpy as np

    values = np.random.default_rng(seed).random(sizes, dtype=np.float32) * np.float32(RANDOM_LIMIT)
    return values.astype(dtype_of(kind), copy=False)


def _stored(values: np.ndarray[Any, Any], text: str, path: Path) -> str:
    """Write the values; returns the spec. IREE cannot parse the name of a complex type, but numpy's files it can."""
    import numpy as np

    if values.dtype.kind == "c":
        np.save(path.with_suffix(".npy"), values)
        return f"@{path.with_suffix('.npy')}"
    values.tofile(path.with_suffix(".bin"))
    return f"{text}=@{path.with_suffix('.bin')}"
