"""What every command can be asked that calls a function of a bundle's module."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from tracemap.options.option import BEHIND_DASHES, Options, option
from tracemap.units import UNKNOWN, Integer, Text

MOST_CALLS: Final = 1_000_000_000
"""Calls of a microsecond take a quarter of an hour; of more than an int32 holds, IREE's benchmark makes one."""


@dataclass(frozen=True, slots=True)
class FunctionOptions(Options):
    """Which function is called, and with what: the base of the records of commands that call one."""

    function: Text = option(UNKNOWN, "The entry point to call.  [default: the only one]", metavar="F")
    inputs: tuple[str, ...] = option(
        (),
        "An input as IREE writes it (4x4xf32=0.5, 7, @x.npy), one per argument.  [default: made up]",
        "--input",
        metavar="SPEC",
    )
    dim: Integer = option(UNKNOWN, "The size of every `?` in made-up inputs.", metavar="N", at_least=0)
    flagfile: Path | None = option(None, "A flag file of IREE: function, inputs, parameters.", metavar="F")
    runtime_flags: tuple[str, ...] = option(
        (), "Flags for the program of IREE that is started.", BEHIND_DASHES, metavar="[-- RUNTIME FLAGS]"
    )


@dataclass(frozen=True, slots=True)
class CallOptions(FunctionOptions):
    """Which function is called, with what, and on how many workers."""

    serial: bool = option(False, "One worker instead of all cores.")


def call_of(options: FunctionOptions) -> dict[str, Any]:
    """By their names, what options say of the call: for the options of another command that makes the same one."""
    known = {field.name for field in fields(CallOptions)}
    return {field.name: getattr(options, field.name) for field in fields(options) if field.name in known}
