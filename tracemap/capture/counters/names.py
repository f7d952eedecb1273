"""Events by their names: Linux's, AMD's, raw numbers, and what the kernel tells of the machine's counters.

Names are exact: a name that is not known is an error, never the first that begins alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tracemap.capture.counters.event import HARDWARE, HW_CACHE, RAW, SOFTWARE, Event
from tracemap.capture.counters.pmu import pmu_event
from tracemap.errors import EventUnavailable

_HARDWARE = (
    *("cpu-cycles", "instructions", "cache-references", "cache-misses", "branch-instructions", "branch-misses"),
    *("bus-cycles", "stalled-cycles-frontend", "stalled-cycles-backend", "ref-cycles"),
)
_SOFTWARE = (
    *("cpu-clock", "task-clock", "page-faults", "context-switches", "cpu-migrations", "minor-faults", "major-faults"),
    *("alignment-faults", "emulation-faults"),
)
_ALIASES = {
    **{"cycles": "cpu-cycles", "branches": "branch-instructions", "faults": "page-faults", "cs": "context-switches"},
    **{"migrations": "cpu-migrations", "idle-cycles-frontend": "stalled-cycles-frontend"},
    **{"idle-cycles-backend": "stalled-cycles-backend"},
}
_CACHES = {"L1-dcache": 0, "L1-icache": 1, "LLC": 2, "dTLB": 3, "iTLB": 4, "branch": 5, "node": 6}
_CACHE_OPERATIONS = {"load": 0, "store": 1, "prefetch": 2}

_AMD_EVENTS = Path(__file__).with_name("amd_events.tsv")


def known_events() -> list[Event]:
    """The events that have Linux names, in their usual order; aliases are not repeated."""
    hardware = [Event(name, HARDWARE, config) for config, name in enumerate(_HARDWARE)]
    software = [Event(name, SOFTWARE, config) for config, name in enumerate(_SOFTWARE)]
    return [*hardware, *software, *_cache_events()]


def _cache_events() -> Iterator[Event]:
    for cache, cache_id in _CACHES.items():
        for operation, operation_id in _CACHE_OPERATIONS.items():
            config = cache_id | operation_id << 8
            plural = operation + ("es" if operation == "prefetch" else "s")
            yield Event(f"{cache}-{plural}", HW_CACHE, config)
            yield Event(f"{cache}-{operation}-misses", HW_CACHE, config | 1 << 16)


def amd_events() -> list[Event]:
    """The raw events of AMD's processors, by AMD's names; on other processors they mean something else or nothing."""
    rows = (line.split("\t") for line in _AMD_EVENTS.read_text(encoding="utf-8").splitlines())
    return [Event(name, RAW, int(config, 16)) for name, config in rows]


def is_amd() -> bool:
    """Whether this machine's processor is AMD's."""
    try:
        return "AuthenticAMD" in Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False


def find_event(name: str) -> Event:
    """The event of that exact name: a Linux name, `rHEX`, or `PMU/terms/`.

    Raises:
        EventUnavailable: there is no such event.
    """
    if re.fullmatch(r"r[0-9a-fA-F]{1,16}", name):
        return Event(name, RAW, int(name[1:], 16))
    if found := re.fullmatch(r"([\w.-]+)/([^/]*)/", name):
        return pmu_event(name, found[1], found[2])
    plain = _ALIASES.get(name, name)
    listed = {event.name: event for event in [*(amd_events() if is_amd() else []), *known_events()]}
    if plain in listed:
        return replace(listed[plain], name=name)
    if any(event.name == name for event in amd_events()):
        raise EventUnavailable(f"{name} is an event of AMD's processors, and this machine's is of another maker")
    near = sorted(known for known in listed if known.startswith(name[:4]))[:5]
    hint = f" (did you mean {' or '.join(near)}?)" if near else ""
    raise EventUnavailable(f"{name} is not the name of an event{hint}; `tracemap events` lists those of this machine")
