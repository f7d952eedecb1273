"""Events that Linux and the processor count: their names and codes, and which can be counted together."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import re
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tracemap.core.errors import EventUnavailable
from tracemap.core.files import names_file

# ---- events
#
# Events of Linux perf: their names, and how the hook counts them.
#
# Names are those of Linux, of AMD, raw numbers, and the kernel's own names for the machine's counters. Names must
# match exactly; an unknown name is an error.


MOST_EVENTS: Final = 16
"""Most events that the hook counts at a time."""

HARDWARE, SOFTWARE, HW_CACHE, RAW = 0, 1, 3, 4
_CLOCKS = frozenset({(SOFTWARE, 0), (SOFTWARE, 1)})
_KERNEL_MADE = frozenset({(SOFTWARE, 3), (SOFTWARE, 4)})


@dataclass(frozen=True, slots=True)
class Event:
    """An event and how it is counted.

    `mode`: how the hook reads it. `ring`: without a system call, for discrete software events. `rdpmc`: without a
    system call, if the kernel lets programs read the counter. `group`: one read for all. `user_only`: kernel mode is
    not counted, since this user may not.
    """

    name: str
    type: int
    config: int
    config1: int = 0
    mode: str = "group"
    user_only: bool = False
    description: str = ""
    """The counted events in words; "" if only the event's code is known."""

    @property
    def setting(self) -> str:
        """The event in the syntax of TRACEMAP_HOOK_EVENTS."""
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
        """Whether it happens only in the kernel (context switches, migrations): with exclude_kernel it reads 0."""
        return (self.type, self.config) in _KERNEL_MADE


_HARDWARE = {
    "cpu-cycles": "core cycles; their length depends on the clock frequency",
    "instructions": "retired instructions",
    "cache-references": "cache accesses, mostly of the last level, as the vendor chose",
    "cache-misses": "cache misses, mostly of the last level",
    "branch-instructions": "retired branches",
    "branch-misses": "mispredicted branches",
    "bus-cycles": "bus cycles, at a constant frequency",
    "stalled-cycles-frontend": "cycles without an instruction ready to issue",
    "stalled-cycles-backend": "cycles with a ready instruction, but no free unit",
    "ref-cycles": "cycles at a constant frequency, whatever the core's clock",
}
_SOFTWARE = {
    "cpu-clock": "time on the CPU's clock, ns",
    "task-clock": "time in which the thread ran, ns",
    "page-faults": "memory accesses that needed a page to be mapped",
    "context-switches": "switches away from the thread",
    "cpu-migrations": "moves of the thread to another CPU",
    "minor-faults": "page faults without I/O",
    "major-faults": "page faults that waited for I/O",
    "alignment-faults": "unaligned accesses that the kernel handled",
    "emulation-faults": "instructions that the kernel emulated",
}
_ALIASES = {
    **{"cycles": "cpu-cycles", "branches": "branch-instructions", "faults": "page-faults", "cs": "context-switches"},
    **{"migrations": "cpu-migrations", "idle-cycles-frontend": "stalled-cycles-frontend"},
    **{"idle-cycles-backend": "stalled-cycles-backend"},
}
_CACHES = {
    "L1-dcache": "the L1 data cache",
    "L1-icache": "the L1 instruction cache",
    "LLC": "the last-level cache",
    "dTLB": "the data TLB",
    "iTLB": "the instruction TLB",
    "branch": "the branch predictor",
    "node": "the local NUMA node",
}
"""Description by name; a cache's position is its number in perf."""
_CACHE_OPERATIONS = {"load": 0, "store": 1, "prefetch": 2}

_ZEN4_EVENTS = Path(__file__).with_name("zen4_events.tsv")
_ZEN3_MODELS = frozenset({0, 2, 4, 5})
"""First hexadecimal digit of a model in AMD's family 25 (Linux, tools/perf/pmu-events/arch/x86/mapfile.csv)."""


def known_events() -> list[Event]:
    """The events with Linux names, in their usual order, without aliases."""
    events = [
        Event(name, kind, number, description=text)
        for kind, names in ((HARDWARE, _HARDWARE), (SOFTWARE, _SOFTWARE))
        for number, (name, text) in enumerate(names.items())
    ]
    for cache_id, (cache, what) in enumerate(_CACHES.items()):
        for operation, operation_id in _CACHE_OPERATIONS.items():
            config = cache_id | operation_id << 8
            plural = operation + ("es" if operation == "prefetch" else "s")
            events += [
                Event(f"{cache}-{plural}", HW_CACHE, config, description=f"{plural} that access {what}"),
                Event(
                    f"{cache}-{operation}-misses", HW_CACHE, config | 1 << 16, description=f"{plural} that miss {what}"
                ),
            ]
    return events


def zen4_events() -> list[Event]:
    """The core events of AMD's Zen 4, by AMD's names; other processors give these numbers another meaning or none.

    Source: Linux, tools/perf/pmu-events/arch/x86/amdzen4. Bits 0-7 and 32-35 are the event number, bits 8-15 the unit
    mask. L3 events are left out: the L3 cache counts for all of its cores, not per thread.
    """
    events = []
    for name, text in (line.split("\t") for line in _ZEN4_EVENTS.read_text(encoding="utf-8").splitlines()):
        config = int(text, 16)
        number, mask = config & 0xFF | config >> 32 << 8, config >> 8 & 0xFF
        description = f"event {number:#05x}, unit mask {mask:#04x} of AMD's manuals"
        events.append(Event(name, RAW, config, description=description))
    return events


def is_zen4(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether this machine has a Zen 4: AMD's family 25, except for the models of Zen 3."""
    try:
        text = cpuinfo.read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    family, model = (re.search(rf"^{word}\s*: (\d+)$", text, re.MULTILINE) for word in ("cpu family", "model"))
    if "AuthenticAMD" not in text or family is None or model is None:
        return False
    return int(family[1]) == 25 and int(model[1]) >> 4 not in _ZEN3_MODELS


def find_event(name: str) -> Event:
    """The event with exactly this name: a Linux name, `rHEX`, or `PMU/terms/`.

    Raises:
        EventUnavailable: there is no such event.
    """
    if re.fullmatch(r"r[0-9a-fA-F]{1,16}", name):
        return Event(name, RAW, int(name[1:], 16))
    if match := re.fullmatch(r"([\w.-]+)/([^/]*)/", name):
        return pmu_event(name, match[1], match[2])
    plain = _ALIASES.get(name, name)
    listed = {event.name: event for event in [*(zen4_events() if is_zen4() else []), *known_events()]}
    if plain in listed:
        return replace(listed[plain], name=name)
    if any(event.name == name for event in zen4_events()):
        raise EventUnavailable(f"{name} is an event of AMD's Zen 4, which this processor is not; use cpu/event=…/")
    near = sorted(known for known in listed if known.startswith(name[:4]))[:5]
    hint = f" (did you mean {' or '.join(near)}?)" if near else ""
    raise EventUnavailable(f"{name} is not the name of an event{hint}; see `tracemap events` for this machine's events")


# ---- events of a PMU, by the kernel's description


_PMUS = Path("/sys/bus/event_source/devices")


def pmu_event(name: str, pmu: str, terms: str) -> Event:
    """The event `pmu/terms/`, under `name`.

    Raises:
        EventUnavailable: the kernel has no such PMU, or the PMU no such term.
    """
    folder = _PMUS / pmu
    if not names_file(folder / "type"):
        there = ", ".join(sorted(path.name for path in _PMUS.glob("*"))) or "none"
        raise EventUnavailable(f"{name}: the kernel has no PMU {pmu}; it has: {there}")
    configs = {"config": 0, "config1": 0}
    listed = folder / "events" / terms
    if re.fullmatch(r"[\w.-]+", terms) and names_file(listed):  # an event of the kernel's list stands for its terms
        terms = listed.read_text(encoding="ascii").strip()
    for term in filter(None, terms.split(",")):
        key, _, text = term.partition("=")
        _set_term(name, folder, key, _number(name, text or "1"), configs)
    return Event(name, int((folder / "type").read_text(encoding="ascii")), configs["config"], configs["config1"])


def _number(name: str, text: str) -> int:
    try:
        number = int(text, 0)
    except ValueError:
        number = -1
    if not 0 <= number < 1 << 64:
        raise EventUnavailable(f"{name}: {text!r} is no number; write 12 or 0x0c")
    return number


def _set_term(name: str, folder: Path, key: str, value: int, configs: dict[str, int]) -> None:
    """Spread a term's bits over the kernel's fields for it, such as `config:0-7,32-35`."""
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


# ---- choosing
#
# Which events can be counted here, and which fit together.
#
# Both are determined by trial: events are opened by perf_event_open for this process.


_PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether an event can be counted here; if not, `reason` says why and what helps."""

    event: Event
    opens: bool
    reason: str


def check_event(event: Event) -> Availability:
    """Open the event for this process: how it can be counted, or why not."""
    number = try_open(event)
    if number == errno.EACCES and event.is_kernel_made:
        return Availability(event, opens=False, reason=f"{_not_allowed()}; in user mode alone it would always read 0")
    if number == errno.EACCES:
        event = replace(event, user_only=True)
        number = try_open(event)
    if number:
        return Availability(event, opens=False, reason=_reason(number))
    if event.type == SOFTWARE:
        mode = "group" if event.is_clock else "ring"
    else:
        mode = "rdpmc" if is_user_readable(event) else "group"
    return Availability(replace(event, mode=mode), opens=True, reason="user code only" * event.user_only)


def _reason(number: int) -> str:
    if number in (errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP):
        return "this machine has no such counter (virtual machines often hide them)"
    if number in (errno.EACCES, errno.EPERM):
        return _not_allowed()
    if number == errno.EINVAL:
        return "the counter cannot be used for one thread, or its number is wrong"
    if number == errno.ENOSYS:
        return "the kernel has no perf_event_open, or a sandbox forbids it"
    return os.strerror(number)


def _not_allowed() -> str:
    try:
        level = _PARANOID.read_text(encoding="ascii").strip()
    except OSError:
        level = "unknown"
    return f"not allowed: perf_event_paranoid is {level}; try `sysctl kernel.perf_event_paranoid=1` or CAP_PERFMON"


def events_to_count(names: Sequence[str]) -> list[Event]:
    """The events, ready for the hook.

    Raises:
        EventUnavailable: an event is unknown, cannot be opened here, or is named twice.
    """
    if duplicates := sorted({name for name in names if list(names).count(name) > 1}):
        raise EventUnavailable(f"{duplicates[0]} is named twice")
    events = []
    for name in names:
        availability = check_event(find_event(name))
        if not availability.opens:
            raise EventUnavailable(f"{name} cannot be counted: {availability.reason}")
        if any(mark.isspace() or mark in "|;" for mark in name) or len(name) > 63:
            raise EventUnavailable(f"{name}: the name is too long, or contains a blank, | or ;")
        events.append(availability.event)
    return events


# ---- passes


def split_into_passes(events: Sequence[Event], per_pass: int = 0) -> list[tuple[Event, ...]]:
    """Split events into groups, in their order; each group is counted in one execution.

    A processor has few counters. A short trial finds out whether events fit together: if the kernel multiplexes them,
    counts would only be estimates.

    Args:
        events: from `events_to_count`.
        per_pass: most events per group; 0: as many as can be counted exactly.
    """
    limit = min(per_pass or MOST_EVENTS, MOST_EVENTS)
    passes: list[tuple[Event, ...]] = []
    for event in events:
        for index, members in enumerate(passes):
            # Software events do not occupy hardware counters.
            limited = [member for member in (*members, event) if member.type != SOFTWARE]
            fits = event.type == SOFTWARE or len(limited) == 1
            if len(members) < limit and (fits or run_together(limited)):
                passes[index] = (*members, event)
                break
        else:
            passes.append((event,))
    return passes


# ---- trials


_SYSCALLS = {"x86_64": 298, "aarch64": 241}
_ATTR_SIZE = 112
_EXCLUDE_KERNEL, _EXCLUDE_HV, _DISABLED = 1 << 5, 1 << 6, 1
_CLOEXEC = 8
_USER_RDPMC = 1 << 2
_CAPABILITIES_OFFSET = 40
_TIMES = 1 | 2
"""PERF_FORMAT_TOTAL_TIME_ENABLED and PERF_FORMAT_TOTAL_TIME_RUNNING."""
_TRIAL_NS = 5_000_000


def _open(event: Event, leader: int = -1, read_format: int = 0, disabled: int = _DISABLED) -> int:
    """The file descriptor; OSError if the kernel refuses. `leader`: leader of the group to join, -1 for none."""
    number = _SYSCALLS.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, "no perf_event_open")
    libc = ctypes.CDLL(None, use_errno=True)
    flags = disabled | _EXCLUDE_HV | (_EXCLUDE_KERNEL if event.user_only else 0)
    numbers = (event.type, _ATTR_SIZE, event.config, 0, 0, read_format, flags, 0, 0, event.config1, 0)
    attributes = struct.pack("=IIQQQQQIIQQ", *numbers).ljust(_ATTR_SIZE, b"\0")
    file: int = libc.syscall(ctypes.c_long(number), attributes, 0, -1, leader, ctypes.c_ulong(_CLOEXEC))
    if file < 0:
        raise OSError(ctypes.get_errno(), "perf_event_open")
    return file


def try_open(event: Event) -> int:
    """0 if the event opens, else the kernel's error number."""
    try:
        os.close(_open(event))
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def is_user_readable(event: Event) -> bool:
    """Whether a program may read this counter itself, by rdpmc."""
    try:
        file = _open(event)
    except OSError:
        return False
    try:
        with mmap.mmap(file, mmap.PAGESIZE, mmap.MAP_SHARED, mmap.PROT_READ) as page:
            (capabilities,) = struct.unpack_from("=Q", page, _CAPABILITIES_OFFSET)
            return bool(capabilities & _USER_RDPMC)
    except OSError:
        return False
    finally:
        os.close(file)


def run_together(events: Sequence[Event]) -> bool:
    """Whether the kernel counts the events as one group without multiplexing."""
    files: list[int] = []
    try:
        for event in events:
            leader = files[0] if files else -1
            files.append(_open(event, leader, _TIMES, disabled=0))
        end = time.monotonic_ns() + _TRIAL_NS
        while time.monotonic_ns() < end:
            pass
        # value, time_enabled, time_running (struct read_format in linux/perf_event.h)
        enabled, running = struct.unpack("=8xQQ", os.read(files[0], 24))
        return bool(0 < enabled == running)
    except OSError:
        return False
    finally:
        for file in reversed(files):
            os.close(file)
