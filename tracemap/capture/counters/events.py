"""Events of the kernel's perf interface: how the hook counts one, and which one a name stands for.

Names are Linux's, AMD's, raw numbers, and what the kernel tells of the machine's counters. They are exact: a name that
is not known is an error, never the first that begins alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tracemap.errors import EventUnavailable
from tracemap.inputs import names_file

MOST_EVENTS: Final = 16
"""How many the hook counts at a time."""

HARDWARE, SOFTWARE, HW_CACHE, RAW = 0, 1, 3, 4
_CLOCKS = frozenset({(SOFTWARE, 0), (SOFTWARE, 1)})
_KERNEL_MADE = frozenset({(SOFTWARE, 3), (SOFTWARE, 4)})


@dataclass(frozen=True, slots=True)
class Event:
    """An event and how it is counted.

    `mode` is how the hook reads it: `ring` (no system call; discrete software events), `rdpmc` (no system call; where
    the kernel lets programs read the counter), `group` (one read for all). `user_only`: the kernel's part is left out,
    since this user may not count it.
    """

    name: str
    type: int
    config: int
    config1: int = 0
    mode: str = "group"
    user_only: bool = False
    description: str = ""
    """What it counts; "" where only its numbers are known."""

    @property
    def setting(self) -> str:
        """The event as the hook's variable TRACEMAP_HOOK_EVENTS takes it."""
        mode = self.mode + ("+user" if self.user_only else "")
        return f"{self.name}|{self.type}|{self.config:x}|{self.config1:x}|{mode}"

    @property
    def unit(self) -> str:
        """`ns` for the two clocks, else `count`."""
        return "ns" if self.is_clock else "count"

    @property
    def is_clock(self) -> bool:
        """Whether it measures time."""
        return (self.type, self.config) in _CLOCKS

    @property
    def is_kernel_made(self) -> bool:
        """Context switches and migrations happen in the kernel: with exclude_kernel they would read 0, always."""
        return (self.type, self.config) in _KERNEL_MADE


_HARDWARE = {
    "cpu-cycles": "cycles of the core; their length changes with its clock",
    "instructions": "instructions that retired",
    "cache-references": "accesses to the last cache, mostly, as the processor's maker chose",
    "cache-misses": "accesses that the last cache, mostly, did not hold",
    "branch-instructions": "branches that retired",
    "branch-misses": "branches that were predicted wrongly",
    "bus-cycles": "cycles of the bus, which are of one length",
    "stalled-cycles-frontend": "cycles in which no instruction was ready to be issued",
    "stalled-cycles-backend": "cycles in which no unit was free for an instruction that was ready",
    "ref-cycles": "cycles of one length, whatever the core's clock is",
}
_SOFTWARE = {
    "cpu-clock": "time on the clock of the processor, ns",
    "task-clock": "time in which the thread ran, ns",
    "page-faults": "accesses to memory that the kernel had to map first",
    "context-switches": "times at which the thread left its processor",
    "cpu-migrations": "times at which the thread went on, on another processor",
    "minor-faults": "page faults that needed no input or output",
    "major-faults": "page faults that waited for input or output",
    "alignment-faults": "accesses to unaligned places that the kernel had to do",
    "emulation-faults": "instructions that the kernel had to emulate",
}
_ALIASES = {
    **{"cycles": "cpu-cycles", "branches": "branch-instructions", "faults": "page-faults", "cs": "context-switches"},
    **{"migrations": "cpu-migrations", "idle-cycles-frontend": "stalled-cycles-frontend"},
    **{"idle-cycles-backend": "stalled-cycles-backend"},
}
_CACHES = {
    "L1-dcache": "the first data cache",
    "L1-icache": "the first instruction cache",
    "LLC": "the last cache",
    "dTLB": "the table of translated data addresses",
    "iTLB": "the table of translated instruction addresses",
    "branch": "the branch predictor",
    "node": "the processor's own memory",
}
"""Name -> what it is; their places are their numbers."""
_CACHE_OPERATIONS = {"load": 0, "store": 1, "prefetch": 2}

_ZEN4_EVENTS = Path(__file__).with_name("zen4_events.tsv")
_ZEN3_MODELS = frozenset({0, 2, 4, 5})
"""The first hexadecimal digit of those of family 25 (Linux, tools/perf/pmu-events/arch/x86/mapfile.csv)."""


def known_events() -> list[Event]:
    """The events that have Linux names, in their usual order; aliases are not repeated."""
    hardware = [
        Event(name, HARDWARE, number, description=text) for number, (name, text) in enumerate(_HARDWARE.items())
    ]
    software = [
        Event(name, SOFTWARE, number, description=text) for number, (name, text) in enumerate(_SOFTWARE.items())
    ]
    return [*hardware, *software, *_cache_events()]


def _cache_events() -> Iterator[Event]:
    for cache_id, (cache, what) in enumerate(_CACHES.items()):
        for operation, operation_id in _CACHE_OPERATIONS.items():
            config = cache_id | operation_id << 8
            plural = operation + ("es" if operation == "prefetch" else "s")
            yield Event(f"{cache}-{plural}", HW_CACHE, config, description=f"{plural} that ask {what}")
            misses = f"{plural} that {what} does not hold"
            yield Event(f"{cache}-{operation}-misses", HW_CACHE, config | 1 << 16, description=misses)


def zen4_events() -> list[Event]:
    """The core's events of AMD's Zen 4, by AMD's names; on other processors they mean something else or nothing.

    Source: Linux, tools/perf/pmu-events/arch/x86/amdzen4. An event's number is the bits 0-7 and 32-35, its mask the
    bits 8-15. Events of the L3 cache are not among them: it counts for all of its cores, not for a thread.
    """
    rows = (line.split("\t") for line in _ZEN4_EVENTS.read_text(encoding="utf-8").splitlines())
    return [Event(name, RAW, number := int(config, 16), description=_zen4_numbers(number)) for name, config in rows]


def _zen4_numbers(config: int) -> str:
    return f"event {config & 0xFF | config >> 32 << 8:#05x}, unit mask {config >> 8 & 0xFF:#04x} of AMD's manuals"


def is_zen4(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether this machine's processor is a Zen 4: of AMD's family 25, but none of the models that are a Zen 3."""
    try:
        text = cpuinfo.read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    family, model = (re.search(rf"^{word}\s*: (\d+)$", text, re.MULTILINE) for word in ("cpu family", "model"))
    if "AuthenticAMD" not in text or family is None or model is None:
        return False
    return int(family[1]) == 25 and int(model[1]) >> 4 not in _ZEN3_MODELS


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
    listed = {event.name: event for event in [*(zen4_events() if is_zen4() else []), *known_events()]}
    if plain in listed:
        return replace(listed[plain], name=name)
    if any(event.name == name for event in zen4_events()):
        raise EventUnavailable(f"{name} is an event of AMD's Zen 4, and this processor is another: give cpu/event=…/")
    near = sorted(known for known in listed if known.startswith(name[:4]))[:5]
    hint = f" (did you mean {' or '.join(near)}?)" if near else ""
    raise EventUnavailable(f"{name} is not the name of an event{hint}; `tracemap events` lists those of this machine")


# ---- by the kernel's description of a unit that counts


_PMUS = Path("/sys/bus/event_source/devices")


def pmu_event(name: str, pmu: str, terms: str) -> Event:
    """The event `pmu/terms/`, which goes by `name`.

    Raises:
        EventUnavailable: the kernel knows no such unit, or the unit no such term.
    """
    folder = _PMUS / pmu
    if not names_file(folder / "type"):
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
    if re.fullmatch(r"[\w.-]+", terms) and names_file(alias):
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
    elif re.fullmatch(r"\w+", key) and names_file(path):
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
