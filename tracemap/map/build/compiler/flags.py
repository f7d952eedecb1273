"""Flags of iree-compile: those for targets, and the user's."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Final

from tracemap.core.errors import UsageInvalid

# ---- targets

DEVICE_FLAGS: Final = {
    "local": ("--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu"),
    "vulkan": ("--iree-hal-target-device=vulkan",),
    "cuda": ("--iree-hal-target-device=cuda",),
    "hip": ("--iree-hal-target-device=hip",),
}
"""Flags for each device of `build --device`."""

TARGETS: Final = ("--iree-hal-target-device", "--iree-hal-target-backends")
"""The flags that name a target."""

_CHIP: Final = "--iree-rocm-target"
_FORMER_CHIP: Final = "--iree-hip-target"  # its former name in IREE
_AMD_TARGETS: Final = frozenset({"hip", "amdgpu", "rocm"})
_DEVICE_NAME: Final = re.compile(r"(?:\w+=)?([\w-]+)(?:\[\d+\])?")
"""A device in IREE's flag: `hip`, `hip[1]`, `first=hip`."""


def has_flag(flags: Sequence[str], *names: str) -> bool:
    """Whether flags contain one of these names, with or without a value."""
    return any(flag.split("=", 1)[0] in names for flag in flags)


def targets_of(flags: Sequence[str]) -> list[str]:
    """The devices and backends that flags name, in order; values that are not plain names are left out."""
    values = (value for flag in flags for name, _, value in [flag.partition("=")] if name in TARGETS)
    return [match[1] for value in values if (match := _DEVICE_NAME.fullmatch(value))]


def check_chip(flags: Sequence[str]) -> None:
    """Reject AMD GPU targets without a chip, for which IREE has no default, unlike for other vendors.

    Raises:
        UsageInvalid: the chip is missing; the message names the flag.
    """
    if has_flag(flags, _CHIP, _FORMER_CHIP):
        return
    for target in targets_of(flags):
        if target in _AMD_TARGETS:
            raise UsageInvalid(
                f"{target}: no AMD GPU chip is set, and IREE has no default; add it after the options: "
                f"-- {_CHIP}=gfx942 (or gfx1100, …; `rocminfo` shows it)"
            )


# ---- user flags
#
# The user's flags for iree-compile, parsed like the compiler parses them.
#
# A flag without its value takes the next word as the value. So the user's flags come last, after all of tracemap's.

PRINT_LOCATIONS: Final = "--mlir-print-debuginfo"
_RESERVED: Final = ("-o", "--o", "--dump-compilation-phases-to", "--compile-to", "--compile-from", "--output-format")
_LOCATION_FLAGS: Final = (PRINT_LOCATIONS, "--mlir-pretty-debuginfo")
"""Flags that remove locations from printed IR, or print them in a form that cannot be parsed."""
_SINGLE_DASH: Final = re.compile(r"-[a-zA-Z][\w-]+(=.*)?", re.DOTALL)
_TAKES_VALUE: Final = re.compile(r"--iree-hal-(dump-executable-[a-z]+-to|target-(device|backends))")
_MOST_FILES: Final = 32


def compile_flags(device: str, user_flags: Sequence[str]) -> tuple[str, ...]:
    """The flags for a compilation: the device's, unless the user's flags name a target, then the user's.

    Raises:
        UsageInvalid: a flag of the user's conflicts with `build`, or a required flag is missing.
    """
    normalized = normalize_flags(user_flags)
    for flag in normalized:
        if flag.split("=", 1)[0] in _RESERVED:
            raise UsageInvalid(f"{flag}: `tracemap build` sets this flag itself; leave it out")
    flags = [] if has_flag(normalized, *TARGETS) else list(DEVICE_FLAGS[device])
    host_code = device == "local" or has_flag(normalized, *TARGETS)
    if host_code and not has_flag(normalized, "--iree-llvmcpu-target-cpu", "--iree-llvmcpu-target-triple"):
        flags.append("--iree-llvmcpu-target-cpu=host")
    check_chip((*flags, *normalized))
    return (*flags, *normalized)


def normalize_flags(words: Sequence[str]) -> tuple[str, ...]:
    """Normalise words like the compiler: expand `@FILE` to the words in the file, and `-flag` to `--flag`.

    A flag that always takes a value is joined with it by `=`.
    >>> normalize_flags(["-iree-opt-level=O2", "--iree-vm-target-index-bits", "-64", "-o", "-"])
    ('--iree-opt-level=O2', '--iree-vm-target-index-bits', '-64', '-o', '-')
    >>> normalize_flags(["--iree-hal-target-device", "local", "model.mlir"])
    ('--iree-hal-target-device=local', 'model.mlir')
    """
    flags: list[str] = []
    for word in _expanded(words, [_MOST_FILES]):
        previous = flags[-1] if flags else ""
        if _TAKES_VALUE.fullmatch(previous):
            flags[-1] = f"{previous}={word}"
        else:
            flags.append(f"-{word}" if _SINGLE_DASH.fullmatch(word) and not may_take_value(previous) else word)
    return tuple(flags)


def _expanded(words: Sequence[str], files_left: list[int]) -> Iterator[str]:
    for word in words:
        if word.startswith("@") and files_left[0] > 0 and Path(word[1:]).is_file():
            files_left[0] -= 1
            yield from _expanded(_words_of(Path(word[1:])) or [word], files_left)
        else:
            yield word


def _words_of(file: Path) -> list[str]:
    """The words of a file of flags; none if it cannot be read, so that the compiler reports it."""
    with suppress(OSError, ValueError):
        return shlex.split(file.read_text(encoding="utf-8"))
    return []


def drop_location_flags(flags: Sequence[str]) -> tuple[str, ...]:
    """Remove flags that control how locations are printed, since they do not change the compiled module.

    A flag stays if it may be the value of the flag in front of it.
    """
    previous_flags = ("", *flags)
    return tuple(
        flag
        for previous, flag in zip(previous_flags, flags, strict=False)
        if flag.split("=", 1)[0] not in _LOCATION_FLAGS or may_take_value(previous)
    )


def missing_locations_error(flags: Sequence[str]) -> UsageInvalid:
    """The error for a compilation without locations; names the flag that may have taken another as its value."""
    suspect = next(
        (flag for flag, following in pairwise(flags) if may_take_value(flag) and following.startswith("-")), ""
    )
    if not suspect:
        return UsageInvalid("iree-compile printed no locations; leave out flags that change what it prints")
    return UsageInvalid(f"iree-compile printed no locations: {suspect} may lack its value; write {suspect}=VALUE")


def may_take_value(word: str) -> bool:
    """Whether the next word may be the value of a flag: it is a flag, without a value of its own."""
    return word.startswith("-") and word not in ("-", "--") and "=" not in word


# ---- levels of optimization

OPT_LEVEL: Final = "iree-opt-level"
_FLAG_IN_HELP: Final = re.compile(r"^ +--([\w-]+)")
_DEFAULT_AT_LEVEL: Final = re.compile(r"^ +At optimization level O(\d) the default is (\w+)")


def level_defaults(help_text: str) -> dict[str, dict[int, str]]:
    """The flags whose default depends on `--iree-opt-level`: the default from each level on, by name.

    Args:
        help_text: what `iree-compile --help-hidden` prints.

    >>> level_defaults("  --a   - Text.\\n      At optimization level O2 the default is true\\n")
    {'a': {2: 'true'}}
    """
    defaults: dict[str, dict[int, str]] = {}
    name = ""
    for line in help_text.splitlines():
        if flag := _FLAG_IN_HELP.match(line):
            name = flag[1]
        elif at_level := _DEFAULT_AT_LEVEL.match(line):
            defaults.setdefault(name, {})[int(at_level[1])] = at_level[2]
    return defaults


def level_differences(defaults: dict[str, dict[int, str]], before: int, after: int) -> list[tuple[str, str]]:
    """The flags that a level sets otherwise than another, with their value at the level before."""
    differences = []
    for name, values in defaults.items():
        old, new = (values[max((at for at in values if at <= level), default=min(values))] for level in (before, after))
        if old != new:
            differences.append((f"--{name}", f"--{name}={old}"))
    return differences
