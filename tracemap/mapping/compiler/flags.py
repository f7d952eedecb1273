"""Flags of iree-compile: those of targets, and those of the user."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Final

from tracemap.errors import UsageInvalid

# ---- targets
#
# What is compiled for: the flags of each device, and those without which IREE's compiler has no kernels for it.


DEVICE_FLAGS: Final = {
    "local": ("--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu"),
    "vulkan": ("--iree-hal-target-device=vulkan",),
    "cuda": ("--iree-hal-target-device=cuda",),
    "hip": ("--iree-hal-target-device=hip",),
}
"""Of each device that `build --device` names."""

TARGETS: Final = ("--iree-hal-target-device", "--iree-hal-target-backends")
"""The flags that name a target themselves."""

_CHIP: Final = "--iree-rocm-target"
_OLD_CHIP: Final = "--iree-hip-target"  # what IREE called it once
_OF_AMD: Final = frozenset({"hip", "amdgpu", "rocm"})
_NAME: Final = re.compile(r"(?:\w+=)?([\w-]+)(?:\[\d+\])?")
"""A device as IREE's flag names it: `hip`, `hip[1]`, `first=hip`."""


def named(flags: Sequence[str], *names: str) -> bool:
    """Whether one of these flags is given, by itself or with a value."""
    return any(flag.split("=", 1)[0] in names for flag in flags)


def targets_of(flags: Sequence[str]) -> list[str]:
    """The devices and backends that flags name, in their order; what is no plain name is left out."""
    values = (value for flag in flags for name, _, value in [flag.partition("=")] if name in TARGETS)
    return [found[1] for value in values if (found := _NAME.fullmatch(value))]


def check_chip(flags: Sequence[str]) -> None:
    """Refuse to compile for AMD's GPUs without a chip: IREE has no default for it, as it has for the others.

    Raises:
        UsageInvalid: the message names the flag.
    """
    if named(flags, _CHIP, _OLD_CHIP):
        return
    for target in targets_of(flags):
        if target in _OF_AMD:
            raise UsageInvalid(
                f"{target}: nothing says which of AMD's GPUs to compile for; name its chip behind the options: "
                f"-- {_CHIP}=gfx942 (or gfx1100, …; `rocminfo` tells it)"
            )


# ---- user flags
#
# Flags of the user's for iree-compile: read as the compiler reads them, and so handed on that ours arrive too.
#
# A flag that lacks its value takes the next word for it. So the user's flags come last, where no flag of ours follows.


LOCATED: Final = "--mlir-print-debuginfo"
_OURS: Final = ("-o", "--o", "--dump-compilation-phases-to", "--compile-to", "--compile-from", "--output-format")
_PRINTING: Final = (LOCATED, "--mlir-pretty-debuginfo")
"""Flags that take locations out of what is printed, or print them so that nothing can read them."""
_SHORT: Final = re.compile(r"-[a-zA-Z][\w-]+(=.*)?", re.DOTALL)
_VALUED: Final = re.compile(r"--iree-hal-(dump-executable-[a-z]+-to|target-(device|backends))")
_MOST_FILES: Final = 32


def compile_flags(device: str, user_flags: Sequence[str]) -> tuple[str, ...]:
    """The flags that decide what is compiled: the device's, unless the user's own flags name a target, and the user's.

    Raises:
        UsageInvalid: a flag of the user's would take away what `build` needs, or one is missing.
    """
    given = as_read(user_flags)
    for flag in given:
        if flag.split("=", 1)[0] in _OURS:
            raise UsageInvalid(f"{flag}: `tracemap build` sets this flag itself; leave it out")
    flags = [] if named(given, *TARGETS) else list(DEVICE_FLAGS[device])
    host_code = device == "local" or named(given, *TARGETS)
    if host_code and not named(given, "--iree-llvmcpu-target-cpu", "--iree-llvmcpu-target-triple"):
        flags.append("--iree-llvmcpu-target-cpu=host")
    check_chip((*flags, *given))
    return (*flags, *given)


def as_read(words: Sequence[str]) -> tuple[str, ...]:
    """Words as the compiler reads them: `@FILE` is what stands in the file, and `-flag` is `--flag`.

    A flag that surely takes a value has it behind a `=`.

    >>> as_read(["-iree-opt-level=O2", "--iree-vm-target-index-bits", "-64", "-o", "-"])
    ('--iree-opt-level=O2', '--iree-vm-target-index-bits', '-64', '-o', '-')
    >>> as_read(["--iree-hal-target-device", "local", "model.mlir"])
    ('--iree-hal-target-device=local', 'model.mlir')
    """
    found: list[str] = []
    for word in _expanded(words, [_MOST_FILES]):
        last = found[-1] if found else ""
        if _VALUED.fullmatch(last):
            found[-1] = f"{last}={word}"
        else:
            found.append(f"-{word}" if _SHORT.fullmatch(word) and not _may_take_value(last) else word)
    return tuple(found)


def _expanded(words: Sequence[str], files_left: list[int]) -> Iterator[str]:
    for word in words:
        if word.startswith("@") and files_left[0] > 0 and Path(word[1:]).is_file():
            files_left[0] -= 1
            yield from _expanded(_words_of(Path(word[1:])) or [word], files_left)
        else:
            yield word


def _words_of(file: Path) -> list[str]:
    """The words of a file of flags; none where it cannot be read, which the compiler says best."""
    with suppress(OSError, ValueError):
        return shlex.split(file.read_text(encoding="utf-8"))
    return []


def without_printing(flags: Sequence[str]) -> tuple[str, ...]:
    """Flags without those that say how locations are printed, which changes nothing of what is compiled.

    One that may be the value of the flag before it stays.
    """
    before = ("", *flags)
    return tuple(
        flag
        for last, flag in zip(before, flags, strict=False)
        if flag.split("=", 1)[0] not in _PRINTING or _may_take_value(last)
    )


def no_locations(flags: Sequence[str]) -> UsageInvalid:
    """Why a compilation printed no locations: which of the user's flags may have taken another for its value."""
    lacking = next((one for one, other in pairwise(flags) if _may_take_value(one) and other.startswith("-")), "")
    if not lacking:
        return UsageInvalid("iree-compile printed no locations: leave out the flags that say what it prints")
    return UsageInvalid(f"iree-compile printed no locations: {lacking} may lack its value; write {lacking}=VALUE")


def _may_take_value(word: str) -> bool:
    return word.startswith("-") and word not in ("-", "--") and "=" not in word
