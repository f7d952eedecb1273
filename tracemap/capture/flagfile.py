"""Flags of IREE's runtime tools: read from a flag file, and taken apart into what tracemap decides and the rest."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tracemap.errors import InputInvalid, UsageInvalid

_MAX_NESTING = 16
_FILE_OF_INPUT = re.compile(r"(?:^|=)[@+](.+)$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class RuntimeFlags:
    """What a list of runtime flags says: function, device (both "" if they say nothing), inputs, and all else."""

    function: str
    device: str
    inputs: tuple[str, ...]
    modules: tuple[str, ...]
    rest: tuple[str, ...]


def read_flags(path: Path, _nesting: int = 0) -> list[str]:
    """The flags of a flag file: one per line, `#` begins a comment, `--flagfile` brings in another one.

    Raises:
        UsageInvalid: the file cannot be read, holds a line that is no flag, or brings itself in.
    """
    if _nesting > _MAX_NESTING:
        raise UsageInvalid(f"{path}: flag files that bring each other in without end")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:  # a name with a NUL, or content that is no UTF-8
        raise UsageInvalid(f"{path}: the flag file cannot be read: {error}") from error
    flags: list[str] = []
    for number, line in enumerate(map(str.strip, lines), start=1):
        if not line or line.startswith("#"):
            continue
        if not line.startswith("--"):
            raise UsageInvalid(f"{path}, line {number}: {line!r} is no flag; flags begin with --")
        name, _, value = line.partition("=")
        flags += read_flags(Path(value), _nesting + 1) if name == "--flagfile" else [line]
    return flags


def sorted_out(flags: Sequence[str]) -> RuntimeFlags:
    """Take apart a list of flags; of several `--function` or `--device` the last counts, as in IREE."""
    values: dict[str, list[str]] = {"--function": [""], "--device": [""], "--input": [], "--module": []}
    rest = []
    for flag in flags:
        name, _, value = flag.partition("=")
        if name in values:
            values[name].append(value)
        else:
            rest.append(flag)
    return RuntimeFlags(
        function=values["--function"][-1],
        device=values["--device"][-1],
        inputs=tuple(values["--input"]),
        modules=tuple(values["--module"]),
        rest=tuple(rest),
    )


def check_files(flags: RuntimeFlags) -> None:
    """Find files that are not there before the run does; relative paths start at the working folder, as in IREE.

    Raises:
        InputInvalid: a file of `--input` or `--parameters` does not exist.
    """
    for spec in flags.inputs:
        if match := _FILE_OF_INPUT.search(spec):
            _check_file("--input", match[1])
    for flag in flags.rest:
        name, _, value = flag.partition("=")
        if name == "--parameters":
            _check_file(name, value.rpartition("=")[2])


def _check_file(flag: str, path: str) -> None:
    if not os.path.isfile(path):  # noqa: PTH113 - Path.is_file raises OSError for names that are too long
        raise InputInvalid(f"{flag}: the file {path} does not exist (looked for in {Path.cwd()})")
