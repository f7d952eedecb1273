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
# Batches of invocations, by `--batch_size` and `--batch_concurrency` of iree-benchmark-module.
#
# The tool submits all calls of a batch of an asynchronous function at once, in `--batch_concurrency` chains; within a
# chain, each call waits for the previous one. Then it waits for all calls and writes the profile. It calls a
# synchronous function once, whatever the flags say, and only divides the call's time by `--batch_size`.


_SIZE: Final = "--batch_size"
_CONCURRENCY: Final = "--batch_concurrency"
_LARGEST_BATCH: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Batch:
    """How a function is called.

    `calls`: invocations per batch. `flags`: the batch flags. `pieces`: pieces of a batch that the program's clock
    times. `ignored`: flags without effect, since the function is synchronous.
    """

    calls: int = 1
    flags: tuple[str, ...] = ()
    pieces: int = 1
    ignored: tuple[str, ...] = ()

    def rounded(self, calls: int) -> int:
        """The number of invocations, rounded up to whole batches.

        >>> Batch(calls=4).rounded(10)
        12
        """
        return self.count(calls) * self.calls

    def count(self, calls: int) -> int:
        """The number of batches for a number of invocations."""
        return -(-calls // self.calls)


def batch_of(flags: Sequence[str], *, asynchronous: bool) -> Batch:
    """The batch that flags ask for. Of several flags of one name, the last counts.

    Raises:
        UsageInvalid: a value is no number, or out of range.
    """
    sizes = {name: _number(name, flags) for name in (_SIZE, _CONCURRENCY)}
    batch_flags = tuple(f"{name}={number}" for name, number in sizes.items() if number != 1)
    if not asynchronous:
        return Batch(ignored=batch_flags)
    concurrency = sizes[_CONCURRENCY]
    # The program rounds up, so that every chain has the same number of calls.
    calls = -(-sizes[_SIZE] // concurrency) * concurrency
    return Batch(calls, batch_flags, 2)


def without_batches(flags: Sequence[str]) -> tuple[str, ...]:
    """Flags without the batch flags."""
    return tuple(flag for flag in flags if flag.partition("=")[0] not in {_SIZE, _CONCURRENCY})


def _number(name: str, flags: Sequence[str]) -> int:
    values = [text for flag, _, text in (flag.partition("=") for flag in flags) if flag == name]
    if not values:
        return 1
    number = int(values[-1]) if re.fullmatch("[0-9]{1,10}", values[-1]) else 0
    if not 1 <= number <= _LARGEST_BATCH:
        raise UsageInvalid(f"{name}={values[-1]}: give a whole number of invocations, from 1 to {_LARGEST_BATCH:,}")
    return number


# ---- flags
#
# Flags of IREE's runtime tools, from a flag file and from the command line: reading, sorting and checking.


_FLAG_FILE: Final = "--flagfile"
_MOST_FILES: Final = 64
_MOST_FLAGS: Final = 100_000
_LONGEST_SAID: Final = 60
_FILE_OF_INPUT = re.compile(r"(?:^|=)[@+](.+)$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class RuntimeFlags:
    """A list of runtime flags, sorted: function and device ("" if not given), inputs, modules, and the rest."""

    function: str
    device: str
    inputs: tuple[str, ...]
    modules: tuple[str, ...]
    rest: tuple[str, ...]


def read_flags(path: Path) -> list[str]:
    """The flags of a flag file: one per line; `#` begins a comment; `--flagfile` includes another file.

    Raises:
        UsageInvalid: the file cannot be read, has a line that is no flag, or includes itself.
    """
    return with_flag_files([f"{_FLAG_FILE}={path}"])


def with_flag_files(flags: Iterable[str]) -> list[str]:
    """Replace each `--flagfile` by the flags of the file, since IREE's tools would read it repeatedly.

    Raises:
        UsageInvalid: see `read_flags`; or there are too many files or flags in all.
    """
    expanded: list[str] = []
    pending = [*flags][::-1]
    files = 0  # in all, not nested: two files that include each other twice double with each level
    while pending:
        flag = pending.pop()
        name, _, value = flag.partition("=")
        if name != _FLAG_FILE:
            expanded.append(flag)
            continue
        files += 1
        if files > _MOST_FILES:
            raise UsageInvalid(f"{value}: flag files include each other in a circle, or more than {_MOST_FILES} files")
        pending += _lines_of(Path(value))[::-1]
        if len(expanded) + len(pending) > _MOST_FLAGS:
            raise UsageInvalid(f"{value}: more than {_MOST_FLAGS:,} flags, including those of nested flag files")
    return expanded


def _lines_of(path: Path) -> list[str]:
    """The flags of one file; `--flagfile` is not expanded."""
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
    """Sort a list of flags. Of several `--function`, the last counts, as in IREE.

    Of several `--device` (for a module for several devices), the last is `device`, and the others stay in `rest`.
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
        rest=(*(f"--device={device}" for device in values["--device"][1:-1]), *rest),
    )


_PRINTS_ONLY: Final = (
    *("--help", "--version", "--agents_md", "--list_drivers", "--list_devices", "--dump_devices"),
    "--dump_task_topologies",
)
"""Flags that make a tool print something and exit, without a call."""


def check_calls(flags: Iterable[str], tool: str) -> None:
    """Reject flags that make a tool print something and exit.

    Raises:
        UsageInvalid: there is such a flag.
    """
    for flag in flags:
        name, _, value = flag.partition("=")
        if name in _PRINTS_ONLY and value != "false":
            raise UsageInvalid(f"{name} makes {tool} print something and exit; run {tool} {name} directly")


def check_undecided(flags: Iterable[str], reserved_flags: Mapping[str, str]) -> None:
    """Reject flags that tracemap sets itself: they would have no effect, or contradict an option.

    Args:
        flags: the flags after `--`.
        reserved_flags: names of such flags, with what to do instead.

    Raises:
        UsageInvalid: there is such a flag.
    """
    for flag in flags:
        name = flag.partition("=")[0]
        if name in reserved_flags:
            raise UsageInvalid(f"{name} is set by tracemap: {reserved_flags[name]}")


def check_files(flags: RuntimeFlags) -> None:
    """Check that files exist before the run; relative paths start at the working folder, as in IREE.

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
        raise InputInvalid(f"{flag}: {path} is no regular file")
    raise InputInvalid(f"{flag}: the file {path} does not exist (looked for in {Path.cwd()})")
