"""Shapes of inputs, without making any: as given, or as declared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from tracemap.capture.calling import Program, declared_entry, given_specs
from tracemap.capture.elements import SPEC, mapped_array, refused_as
from tracemap.errors import InputInvalid
from tracemap.options.measure import FunctionOptions
from tracemap.units import UNKNOWN, Unknown

Sizes = tuple[int, ...] | Unknown
"""Of one input; none of a number, unknown where only the runtime could tell."""


def called_sizes(program: Program, options: FunctionOptions, tool: str) -> tuple[str, tuple[Sizes, ...]]:
    """The function that is called, and how large the inputs are that options and flag file give; none: none are given.

    Raises:
        FunctionUnknown: there is no such function, or inputs are given and it is not said of which of several.
        InputInvalid: a file of an input cannot be read.
        UsageInvalid: flags that do not go together.
    """
    name, specs = given_specs(program, options, tool)
    if not specs:
        return name, ()
    return declared_entry(program, name).name, tuple(sizes_of(specs))


def sizes_of(specs: Sequence[str]) -> Iterator[Sizes]:
    """The sizes of inputs as IREE's tools take them; of several arrays in a file those of the first.

    Raises:
        InputInvalid: a file of numpy's cannot be read.
    """
    for spec in map(str.strip, specs):
        if match := SPEC.fullmatch(spec):
            yield tuple(int(size) for size in match[1].split("x")[:-1])
        else:
            yield _sizes_of_file(spec) if spec[:1] in ("@", "+") else UNKNOWN


def said_sizes(said: Sequence[str]) -> tuple[Sizes, ...]:
    """The sizes of a run's inputs, by what the run says of them; its files may be others by now."""
    texts = (each.partition(": ")[0] for each in said)
    return tuple(UNKNOWN if text[:1] in ("@", "+") else next(sizes_of([text])) for text in texts)


def _sizes_of_file(spec: str) -> Sizes:
    with refused_as(InputInvalid, f"--input={spec}: the file holds no array, as numpy writes them"):
        return tuple(mapped_array(Path(spec[1:])).shape)
