"""How large the inputs of a call are, told without making any: by what was given, or by the declared types."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from tracemap.capture.calling import Program, declared_entry, given_specs
from tracemap.capture.elements import SPEC
from tracemap.options.call import FunctionOptions
from tracemap.units import UNKNOWN, Unknown

Sizes = tuple[int, ...] | Unknown
"""Of one input; none of a number, unknown where only the runtime could tell."""


def called_sizes(program: Program, options: FunctionOptions, tool: str) -> tuple[str, tuple[Sizes, ...]]:
    """The function that is called, and how large the inputs are that options and flag file give; none: none are given.

    Raises:
        FunctionUnknown: there is no such function, or inputs are given and it is not said of which of several.
        UsageInvalid: flags that do not go together.
    """
    name, specs = given_specs(program, options, tool)
    if not specs:
        return name, ()
    return declared_entry(program, name).name, tuple(sizes_of(specs))


def sizes_of(specs: Sequence[str]) -> Iterator[Sizes]:
    """The sizes of inputs as IREE's tools take them; of several arrays in a file those of the first."""
    for spec in map(str.strip, specs):
        if match := SPEC.fullmatch(spec):
            yield tuple(int(size) for size in match[1].split("x")[:-1])
        else:
            yield _sizes_of_file(Path(spec[1:])) if spec[:1] in ("@", "+") else UNKNOWN


def said_sizes(said: Sequence[str]) -> tuple[Sizes, ...]:
    """The sizes of a run's inputs, by what the run says of them; its files may be others by now."""
    texts = (each.partition(": ")[0] for each in said)
    return tuple(UNKNOWN if text[:1] in ("@", "+") else next(sizes_of([text])) for text in texts)


def _sizes_of_file(file: Path) -> Sizes:
    import numpy as np

    with suppress(OSError, ValueError):
        shape: tuple[int, ...] = np.load(file, mmap_mode="r", allow_pickle=False).shape
        return shape
    return UNKNOWN
