"""The machine that a run is recorded on, as the header tells it: what runs of many machines are told apart by."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Final

from tracemap.measurements.circumstances import Machine
from tracemap.units import UNKNOWN, Text

_CPUINFO: Final = Path("/proc/cpuinfo")
_ARM: Final = ("CPU implementer", "CPU part", "CPU variant")
"""Processors of ARM have no names in Linux, but numbers (Documentation/arch/arm64/cpu-feature-registers.rst)."""


def this_machine() -> Machine:
    """Its name, its processor, and what its clock says now."""
    return Machine(
        host=socket.gethostname() or UNKNOWN,
        cpu_model=cpu_model(_CPUINFO),
        processors=os.cpu_count() or UNKNOWN,
        recorded_ns=time.time_ns(),
    )


def cpu_model(cpuinfo: Path) -> Text:
    """What the first processor calls itself, or its numbers where it has no name."""
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return UNKNOWN
    first = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    said = {name.strip(): value.strip() for name, _, value in first}
    if name := said.get("model name"):
        return " ".join(name.split())
    numbers = [f"{name} {said[name]}" for name in _ARM if said.get(name)]
    return ", ".join(numbers) if numbers else UNKNOWN
