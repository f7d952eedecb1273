"""Events of the kernel's perf interface by their Linux names: what they are, what this machine opens, how to count.

An event is counted per thread, in the measured program, by the hook. Names are exact: a name that is not known is an
error, never the first that begins alike. Whether an event can be counted is found out by opening it.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import re
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tracemap.errors import EventUnavailable

MOST_EVENTS: Final = 16
"""How many the hook counts at a time."""

HARDWARE, SOFTWARE, HW_CACHE, RAW = 0, 1, 3, 4

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
_CLOCKS = frozenset({(SOFTWARE, 0), (SOFTWARE, 1)})
_KERNEL_MADE = frozenset({(SOFTWARE, 3), (SOFTWARE, 4)})
"""Context switches and migrations happen in the kernel: with exclude_kernel they would read 0, always."""

_PMUS = Path("/sys/bus/event_source/devices")
_AMD_EVENTS = Path(__file__).with_name("amd_events.tsv")
_PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")

_SYSCALLS = {"x86_64": 298, "aarch64": 241}
_ATTR_SIZE = 112
_EXCLUDE_KERNEL, _EXCLUDE_HV, _DISABLED = 1 << 5, 1 << 6, 1
_CLOEXEC = 8
_USER_RDPMC = 1 << 2
_CAPABILITIES_OFFSET = 40
_TIMES = 1 | 2
"""PERF_FORMAT_TOTAL_TIME_ENABLED and PERF_FORMAT_TOTAL_TIME_RUNNING."""
_TRIAL_NS = 5_000_000


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

    @property
    def setting(self) -> str:
        """The event as the hook's variable TRACEMAP_HOOK_EVENTS takes it."""
        mode = self.mode + ("+user" if self.user_only else "")
        return f"{self.name}|{self.type}|{self.config:x}|{self.config1:x}|{mode}"

    @property
    def unit(self) -> str:
        """`ns` for the two clocks, else `count`."""
        return "ns" if (self.type, self.config) in _CLOCKS else "count"


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether an event can be counted here; where not, `reason` says why and what would help."""

    event: Event
    opens: bool
    reason: str


# ---- names


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
        return _pmu_event(name, found[1], found[2])
    plain = _ALIASES.get(name, name)
    listed = {event.name: event for event in [*(amd_events() if is_amd() else []), *known_events()]}
    if plain in listed:
        return replace(listed[plain], name=name)
    if any(event.name == name for event in amd_events()):
        raise EventUnavailable(f"{name} is an event of AMD's processors, and this machine's is of another maker")
    near = sorted(known for known in listed if known.startswith(name[:4]))[:5]
    hint = f" (did you mean {' or '.join(near)}?)" if near else ""
    raise EventUnavailable(f"{name} is not the name of an event{hint}; `tracemap events` lists those of this machine")


# ---- the kernel's description of its counters: /sys/bus/event_source/devices/PMU


def _pmu_event(name: str, pmu: str, terms: str) -> Event:
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


# ---- opening


def check_event(event: Event) -> Availability:
    """Open the event for this process, and say how it can be counted, or why not."""
    number = _try_open(event)
    if number == errno.EACCES and (event.type, event.config) in _KERNEL_MADE:
        return Availability(event, opens=False, reason=f"{_not_allowed()}; without the kernel's part it would read 0")
    if number == errno.EACCES:
        event = replace(event, user_only=True)
        number = _try_open(event)
    if number:
        return Availability(event, opens=False, reason=_reason(number))
    return Availability(replace(event, mode=_mode(event)), opens=True, reason="user code only" * event.user_only)


def _mode(event: Event) -> str:
    if event.type == SOFTWARE:
        return "group" if (event.type, event.config) in _CLOCKS else "ring"
    return "rdpmc" if _user_readable(event) else "group"


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
    return f"not allowed: perf_event_paranoid is {level}; `sysctl kernel.perf_event_paranoid=1` or CAP_PERFMON helps"


def _attributes(event: Event, read_format: int, disabled: int) -> bytes:
    flags = disabled | _EXCLUDE_HV | (_EXCLUDE_KERNEL if event.user_only else 0)
    head = struct.pack(
        "=IIQQQQQIIQQ", event.type, _ATTR_SIZE, event.config, 0, 0, read_format, flags, 0, 0, event.config1, 0
    )
    return head.ljust(_ATTR_SIZE, b"\0")


def _open(event: Event, leader: int = -1, read_format: int = 0, disabled: int = _DISABLED) -> int:
    """A file descriptor; OSError if the kernel refuses. `leader`: of the group that it joins, -1 for none."""
    number = _SYSCALLS.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, "no perf_event_open")
    libc = ctypes.CDLL(None, use_errno=True)
    attributes = _attributes(event, read_format, disabled)
    file: int = libc.syscall(ctypes.c_long(number), attributes, 0, -1, leader, ctypes.c_ulong(_CLOEXEC))
    if file < 0:
        raise OSError(ctypes.get_errno(), "perf_event_open")
    return file


def _try_open(event: Event) -> int:
    """0 if it opens, else the kernel's error number."""
    try:
        os.close(_open(event))
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def _user_readable(event: Event) -> bool:
    """Whether a program may read this counter itself."""
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


def events_to_count(names: Sequence[str]) -> list[Event]:
    """The events, ready for the hook.

    Raises:
        EventUnavailable: one is not known or cannot be opened here, or one is named twice.
    """
    if twice := sorted({name for name in names if list(names).count(name) > 1}):
        raise EventUnavailable(f"{twice[0]} is named twice")
    events = []
    for name in names:
        found = check_event(find_event(name))
        if not found.opens:
            raise EventUnavailable(f"{name} cannot be counted: {found.reason}")
        if any(mark.isspace() or mark in "|;" for mark in name) or len(name) > 63:
            raise EventUnavailable(f"{name}: the name is too long, or holds a blank, | or ;")
        events.append(found.event)
    return events


# ---- more events than counters


def in_passes(events: Sequence[Event], per_pass: int = 0) -> list[tuple[Event, ...]]:
    """Events in groups that are counted in one execution each, in their order.

    A processor has few counters. Whether events find room together is found out by counting with them for a moment:
    what the kernel has to take turns with would be an estimate.

    Args:
        events: as `events_to_count` returns them.
        per_pass: how many to count at a time at most; 0: as many as can be counted exactly.
    """
    most = min(per_pass or MOST_EVENTS, MOST_EVENTS)
    passes: list[tuple[Event, ...]] = []
    for event in events:
        together = next((place for place, known in enumerate(passes) if _has_room(known, event, most)), len(passes))
        passes[together : together + 1] = [(*(passes[together] if together < len(passes) else ()), event)]
    return passes


def _has_room(known: Sequence[Event], event: Event, most: int) -> bool:
    if len(known) >= most:
        return False
    # Software events have no counters of their own to run short of.
    limited = [each for each in (*known, event) if each.type != SOFTWARE]
    return event.type == SOFTWARE or len(limited) == 1 or run_together(limited)


def run_together(events: Sequence[Event]) -> bool:
    """Whether the kernel counts events as one group, all of the time."""
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
