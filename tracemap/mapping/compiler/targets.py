"""What is compiled for: the flags of each device, and those without which IREE's compiler has no kernels for it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from tracemap.errors import UsageInvalid

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
