"""Events by the kernel's description of a unit that counts: /sys/bus/event_source/devices/PMU."""

from __future__ import annotations

import re
from pathlib import Path

from tracemap.capture.counters.event import Event
from tracemap.errors import EventUnavailable

_PMUS = Path("/sys/bus/event_source/devices")


def pmu_event(name: str, pmu: str, terms: str) -> Event:
    """The event `pmu/terms/`, which goes by `name`.

    Raises:
        EventUnavailable: the kernel knows no such unit, or the unit no such term.
    """
    folder = _PMUS / pmu
    if not (folder / "type").is_file():
        there = ", ".join(sorted(path.name for path in _PMUS.glob("*"))) or "none"
        raise EventUnavailable(f"{name}: the kernel knows no {pmu}; it has: {there}")
    configs = {"config": 0, "config1": 0}
    for term in filter(None, _expanded(folder, terms)):
        key, _, text = term.partition("=")
        _set_term(name, folder, key, _number(name, text or "1"), configs)
    return Event(name, int((folder / "type").read_text(encoding="ascii")), configs["config"], configs["config1"])


def _expanded(folder: Path, terms: str) -> list[str]:
    """The terms; one that names an event of the kernel's list stands for that event's terms."""
    alias = folder / "events" / terms
    if re.fullmatch(r"[\w.-]+", terms) and alias.is_file():
        return alias.read_text(encoding="ascii").strip().split(",")
    return terms.split(",")


def _number(name: str, text: str) -> int:
    try:
        number = int(text, 0)
    except ValueError:
        number = -1
    if not 0 <= number < 1 << 64:
        raise EventUnavailable(f"{name}: {text!r} is no number; write 12 or 0x0c")
    return number


def _set_term(name: str, folder: Path, key: str, value: int, configs: dict[str, int]) -> None:
    """Spread a term's bits over the fields that the kernel says, such as `config:0-7,32-35`."""
    path = folder / "format" / key
    if key in configs:
        layout = f"{key}:0-63"
    elif re.fullmatch(r"\w+", key) and path.is_file():
        layout = path.read_text(encoding="ascii").strip()
    else:
        there = ", ".join(sorted(item.name for item in (folder / "format").glob("*"))) or "config"
        raise EventUnavailable(f"{name}: {folder.name} has no term {key!r}; it has: {there}")
    field, _, ranges = layout.partition(":")
    if field not in configs:
        raise EventUnavailable(f"{name}: the term {key} belongs to {field}, which tracemap does not set")
    rest = value
    for part in ranges.split(","):
        low, _, high = part.partition("-")
        width = int(high or low) - int(low) + 1
        configs[field] |= (rest & (1 << width) - 1) << int(low)
        rest >>= width
    if rest:
        raise EventUnavailable(f"{name}: {value} is too large for the term {key}")
