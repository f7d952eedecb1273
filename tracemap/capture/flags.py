"""Flags of IREE's runtime tools: flag files, command line, batches."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tracemap.errors import InputInvalid, UsageInvalid, start_of
from tracemap.inputs import given_bytes

# ---- batches
#
# Batches of invocations: what `--batch_size` and `--batch_concurrency` make iree-benchmark-module do.
#
# It calls an asynchronous function a batch at a time: it submits all calls at once, in `--batch_concurrency` chains,
# in which each call waits for the one before it. Then it waits for all, and writes the profile. It calls a synchronous
# function once, whatever the flags say: `--batch_size` is what it divides the time of a call by.


_SIZE: Final = "--batch_size"
_CONCURRENCY: Final = "--batch_concurrency"
_MOST: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Batch:
    """How a function is called.

    `calls`: invocations in a batch; `flags`: those that make the program do so; `pieces`: of a batch, in which the
    program's clock goes; `said`: the flags that change nothing, as the function is synchronous.
    """

    calls: int = 1
    flags: tuple[str, ...] = ()
    pieces: int = 1
    said: tuple[str, ...] = ()

    def rounded(self, calls: int) -> int:
        """The number of invocations of as many batches as it takes for so many.

        >>> Batch(calls=4).rounded(10)
        12
        """
        return self.count(calls) * self.calls

    def count(self, calls: int) -> int:
        """The number of batches that it takes for so many invocations."""
        return -(-calls // self.calls)


def batch_of(flags: Sequence[str], *, asynchronous: bool) -> Batch:
    """The batch that flags ask for; of several flags of one name the last counts.

    Raises:
        UsageInvalid: a number is none, or out of range.
    """
    sizes = {name: _number(name, flags) for name in (_SIZE, _CONCURRENCY)}
    said = tuple(f"{name}={number}" for name, number in sizes.items() if number != 1)
    if not asynchronous:
        return Batch(said=said)
    concurrency = sizes[_CONCURRENCY]
    # As the program does: every chain has as many calls.
    calls = -(-sizes[_SIZE] // concurrency) * concurrency
    return Batch(calls, said, 2)


def without_batches(flags: Sequence[str]) -> tuple[str, ...]:
    """Flags without those of batches."""
    return tuple(flag for flag in flags if flag.partition("=")[0] not in {_SIZE, _CONCURRENCY})


def _number(name: str, flags: Sequence[str]) -> int:
    texts = [text for flag, _, text in (each.partition("=") for each in flags) if flag == name]
    if not texts:
        return 1
    number = int(texts[-1]) if re.fullmatch("[0-9]{1,10}", texts[-1]) else 0
    if not 1 <= number <= _MOST:
        raise UsageInvalid(f"{name}={texts[-1]}: give a whole number of invocations, from 1 to {_MOST:,}")
    return number


# ---- flags
#
# Flags of IREE's runtime tools, as a flag file and the command line give them: read, sorted out, and checked.


_FLAG_FILE: Final = "--flagfile"
_MOST_FILES: Final = 64
_MOST_FLAGS: Final = 100_000
_LONGEST_SAID: Final = 60
_FILE_OF_INPUT = re.compile(r"(?:^|=)[@+](.+)$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class RuntimeFlags:
    """What a list of runtime flags says: function, device (both "" if they say nothing), inputs, and all else."""

    function: str
    device: str
    inputs: tuple[str, ...]
    modules: tuple[str, ...]
    rest: tuple[str, ...]


def read_flags(path: Path) -> list[str]:
    """The flags of a flag file: one per line, `#` begins a comment, `--flagfile` brings in another one.

    Raises:
        UsageInvalid: the file cannot be read, holds a line that is no flag, or brings itself in.
    """
    return with_flag_files([f"{_FLAG_FILE}={path}"])


def with_flag_files(flags: Iterable[str]) -> list[str]:
    """Flags with those of a flag file in the place of each `--flagfile`: IREE's tools would read it again, and again.

    Raises:
        UsageInvalid: see `read_flags`; or there are too many files or flags in all.
    """
    found: list[str] = []
    left = [*flags][::-1]
    files = 0  # in all, not within one another: files that bring each other in twice double with each level
    while left:
        flag = left.pop()
        name, _, value = flag.partition("=")
        if name != _FLAG_FILE:
            found.append(flag)
            continue
        files += 1
        if files > _MOST_FILES:
            raise UsageInvalid(f"{value}: flag files that bring each other in without end, or more than {_MOST_FILES}")
        left += _lines_of(Path(value))[::-1]
        if len(found) + len(left) > _MOST_FLAGS:
            raise UsageInvalid(f"{value}: more than {_MOST_FLAGS:,} flags, with those of the files that it brings in")
    return found


def _lines_of(path: Path) -> list[str]:
    """The flags of one file, `--flagfile` as it stands there."""
    try:
        lines = given_bytes(str(path), UsageInvalid).decode().splitlines()
    except ValueError as error:
        raise UsageInvalid(f"{path}: the flag file cannot be read: {error}") from error
    flags: list[str] = []
    for number, line in enumerate(map(str.strip, lines), start=1):
        if not line or line.startswith("#"):
            continue
        if not line.startswith("--"):
            shown = start_of(line, _LONGEST_SAID)
            raise UsageInvalid(f"{path}, line {number}: {shown!r} is no flag; flags begin with --")
        flags.append(line)
    return flags


def sorted_out(flags: Sequence[str]) -> RuntimeFlags:
    """Take apart a list of flags; of several `--function` the last counts, as in IREE.

    Of several devices, which a module for several is given, the last is `device`; those before it stay in `rest`.
    """
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
        rest=(*(f"--device={each}" for each in values["--device"][1:-1]), *rest),
    )


_PRINTS_ONLY: Final = (
    *("--help", "--version", "--agents_md", "--list_drivers", "--list_devices", "--dump_devices"),
    "--dump_task_topologies",
)
"""Flags with which a tool prints something and calls nothing."""


def check_calls(flags: Iterable[str], tool: str) -> None:
    """Refuse flags with which a tool only prints something.

    Raises:
        UsageInvalid: one is among them.
    """
    for flag in flags:
        name, _, value = flag.partition("=")
        if name in _PRINTS_ONLY and value != "false":
            raise UsageInvalid(f"{name}: with it {tool} prints something and calls nothing; start it by itself")


def check_undecided(flags: Iterable[str], decided: Mapping[str, str]) -> None:
    """Refuse flags for what tracemap decides: it would be passed over, or contradict an option.

    Args:
        flags: those behind the `--`.
        decided: names of flags, each with what is to be done instead.

    Raises:
        UsageInvalid: one is among them.
    """
    for flag in flags:
        name = flag.partition("=")[0]
        if name in decided:
            raise UsageInvalid(f"{name} is for tracemap to decide: {decided[name]}")


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
    if os.path.isfile(path):  # noqa: PTH113 - Path.is_file raises OSError for names that are too long
        return
    if os.path.exists(path):  # noqa: PTH110 - as above
        raise InputInvalid(f"{flag}: {path} is no file")
    raise InputInvalid(f"{flag}: the file {path} does not exist (looked for in {Path.cwd()})")
