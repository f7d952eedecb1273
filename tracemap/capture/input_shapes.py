"""Shapes of inputs as given or declared, without generating any."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from tracemap.capture.calling import Program, declared_entry, given_specs
from tracemap.capture.elements import SPEC, mapped_array, refused_as
from tracemap.errors import InputInvalid
from tracemap.options.measure import FunctionOptions
from tracemap.units import UNKNOWN, Unknown

Sizes = tuple[int, ...] | Unknown
"""Shape of one input: empty for a number, UNKNOWN if only the runtime could tell."""


def called_sizes(program: Program, options: FunctionOptions, tool: str) -> tuple[str, tuple[Sizes, ...]]:
    """The called function, and the shapes of the inputs in options and flag file; no shapes if none are given.

    Raises:
        FunctionUnknown: there is no such function, or inputs are given, but not for which of several functions.
        InputInvalid: a file of an input cannot be read.
        UsageInvalid: flags that do not go together.
    """
    name, specs = given_specs(program, options, tool)
    if not specs:
        return name, ()
    return declared_entry(program, name).name, tuple(sizes_of(specs))


def sizes_of(specs: Sequence[str]) -> Iterator[Sizes]:
    """The shapes of inputs in IREE's syntax; for a file of several arrays, the first one.

    Raises:
        InputInvalid: a numpy file cannot be read.
    """
    for spec in map(str.strip, specs):
        if match := SPEC.fullmatch(spec):
            yield tuple(int(size) for size in match[1].split("x")[:-1])
        else:
            yield _sizes_of_file(spec) if spec[:1] in ("@", "+") else UNKNOWN


def said_sizes(said: Sequence[str]) -> tuple[Sizes, ...]:
    """The shapes of a run's inputs, by their descriptions in its header; files may have changed meanwhile."""
    texts = (description.partition(": ")[0] for description in said)
    return tuple(UNKNOWN if text[:1] in ("@", "+") else next(sizes_of([text])) for text in texts)


def _sizes_of_file(spec: str) -> Sizes:
    with refused_as(InputInvalid, f"--input={spec}: the file holds no array, as numpy writes them"):
        return tuple(mapped_array(Path(spec[1:])).shape)
