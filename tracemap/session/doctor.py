"""What works on this machine, and what to install or allow for the rest: each ability is tried, as far as is cheap."""

from __future__ import annotations

import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final, Literal

from tracemap._version import __version__
from tracemap.codec import Document, Record
from tracemap.errors import TracemapError
from tracemap.memory import free_memory
from tracemap.processors import usable_processors
from tracemap.toolchain import check_tool, find_tool, is_installed
from tracemap.units import format_bytes

_COMPILER, _RUNTIME = "iree-base-compiler", "iree-base-runtime"
_DRIVERS: Final = {
    "local-sync": ("processors, one thread", ""),
    "local-task": ("processors, several threads", ""),
    "vulkan": ("GPUs through Vulkan", "install Vulkan's loader and a driver (Debian: libvulkan1 mesa-vulkan-drivers)"),
    "cuda": ("NVIDIA's GPUs: run, benchmark, not record", "install NVIDIA's driver where there is such a GPU"),
    "hip": ("AMD's GPUs: run, benchmark, not record", "install ROCm's HIP runtime where there is such a GPU"),
}
"""Of each of the runtime's drivers what it is for, and what its devices need."""
_MODULES: Final = {
    "jax": ("jax", "build of functions of JAX", "pip install 'tracemap[jax]'"),
    "onnx": ("onnx", "build of models of ONNX", "pip install 'tracemap[onnx]'"),
    "torch": ("iree.turbine", "build of modules of torch", "pip install 'tracemap[torch]'"),
    "pandas": ("pandas", "results as data frames", "pip install 'tracemap[pandas]'"),
    "pprof": ("google.protobuf", "export --to pprof", "pip install 'tracemap[pprof]'"),
    "perfetto": ("perfetto", "export --to perfetto", "pip install 'tracemap[perfetto]'"),
}
"""Of each extra a module that it installs, what needs it, and how it is got."""
_LEAST_FREE: Final = 1 << 30
"""Bytes of a temporary folder: phases of large models and profiles lie there."""


class State(StrEnum):
    """How far something works."""

    WORKS = "works"
    PARTLY = "partly"
    MISSING = "missing"


class Ability(Record, frozen=True):
    """Something that tracemap builds on: what is there of it, what needs it, and what would help where it is not whole.

    `needed`: nothing can be built or recorded without it.
    """

    name: str
    state: State
    found: str
    used_by: str
    remedy: str = ""
    needed: bool = False


class Findings(Document, frozen=True, kw_only=True):
    """What `tracemap doctor` found; `ok`: all that is needed works."""

    schema_version: Literal[1] = 1
    kind: Literal["doctor"] = "doctor"
    tracemap: str
    python: str
    platform: str
    ok: bool
    abilities: tuple[Ability, ...]


def doctor() -> Findings:
    """Try what tracemap builds on; nothing is changed, and nothing is sent anywhere."""
    abilities = tuple(_abilities())
    return Findings(
        tracemap=__version__,
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.release()}, {platform.machine()}",
        ok=not any(each.needed and each.state is State.MISSING for each in abilities),
        abilities=abilities,
    )


def versions() -> str:
    """The versions that a report of a problem needs, in one line."""
    return f"{__version__} ({_COMPILER} {_version(_COMPILER)}, {_RUNTIME} {_version(_RUNTIME)})"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _abilities() -> Iterator[Ability]:
    yield _compiler()
    yield _runtime()
    yield _profiles()
    yield from _devices()
    yield _hook()
    yield _events()
    yield _priority()
    yield _simulation()
    yield _browser()
    yield from (_module(*each) for each in _MODULES.items())
    yield _temporary()
    yield _machine()


def _tried(
    name: str, used_by: str, try_it: Callable[[], tuple[str, str]], *, needed: bool = False, otherwise: str = ""
) -> Ability:
    """What trying it says: what it found, and what would help where that is not all.

    Where it does not work, errors of ours say why and what helps; `otherwise` does where one says nothing of it.
    """
    from tracemap.hook import HookUnavailable

    try:
        found, remedy = try_it()
        return Ability(name, State.PARTLY if remedy else State.WORKS, found, used_by, remedy, needed)
    except (TracemapError, HookUnavailable, OSError) as error:
        reason, _, remedy = str(error).partition("; ")
        return Ability(name, State.MISSING, reason, used_by, remedy or otherwise, needed)


def _compiler() -> Ability:
    def found() -> tuple[str, str]:
        program = find_tool("iree-compile")
        check_tool([program, "--version"])
        return f"{_COMPILER} {_version(_COMPILER)}, {program}", ""

    return _tried("compiler", "build, audit, lower, diff of models, swap, tune, sweep", found, needed=True)


def _runtime() -> Ability:
    def found() -> tuple[str, str]:
        program = find_tool("iree-benchmark-module")
        ours, theirs = _version(_RUNTIME), _version(_COMPILER)
        if "not installed" in (ours, theirs) or _release(ours) == _release(theirs):
            return f"{_RUNTIME} {ours}, {program}", ""
        remedy = "install both in the same version: a runtime may refuse modules of another compiler"
        return f"{_RUNTIME} {ours} beside {_COMPILER} {theirs}", remedy

    return _tried("runtime", "record, run, benchmark, bench, swap, tune, sweep", found, needed=True)


def _release(of: str) -> list[str]:
    return of.split(".")[:2]


def _profiles() -> Ability:
    def found() -> tuple[str, str]:
        from tracemap.capture.benchmark import check_profiles

        check_profiles()
        return f"written by iree-benchmark-module, read by {find_tool('iree-profile')}", ""

    return _tried("HAL profiles", "record", found)


def _devices() -> Iterator[Ability]:
    """A line for each driver of the runtime; one that lists no device has none, or no driver of the system."""
    try:
        program = find_tool("iree-run-module")
        drivers = [line.split(":")[0].strip() for line in check_tool([program, "--list_drivers"]).splitlines()]
    except TracemapError:
        return  # the runtime's own line says it
    for driver, (what, remedy) in _DRIVERS.items():
        if driver not in drivers:
            yield Ability(f"device {driver}", State.MISSING, "the runtime was built without it", what)
            continue
        try:
            listed = check_tool([program, f"--list_devices={driver}"]).split()
        except TracemapError:
            listed = []
        if listed:
            yield Ability(f"device {driver}", State.WORKS, ", ".join(listed), what)
        else:
            yield Ability(f"device {driver}", State.MISSING, "no device, or no driver of the system", what, remedy)


def _hook() -> Ability:
    def found() -> tuple[str, str]:
        from tracemap.hook import library_path

        return str(library_path()), ""

    return _tried("hook", "hook, record --sample, record --counters", found)


def _events() -> Ability:
    from tracemap.capture.counters.choosing import check_event
    from tracemap.capture.counters.events import known_events

    tried = [check_event(event) for event in known_events()]
    closed = [each for each in tried if not each.opens]
    found = f"{len(tried) - len(closed)} of {len(tried)} events can be counted"
    hidden = {each.event.name: each.reason for each in closed}
    state = State.PARTLY if 0 < len(closed) < len(tried) else State.MISSING if closed else State.WORKS
    first = f"{next(iter(hidden))}: {next(iter(hidden.values()))}; tracemap events lists all" if hidden else ""
    return Ability("events", state, found, "record --counters, hook --events", first)


def _priority() -> Ability:
    def found() -> tuple[str, str]:
        from tracemap.capture.niceness import AHEAD, may_run_at

        if may_run_at(AHEAD):
            return f"programs may run ahead of others, at niceness {AHEAD}", ""
        remedy = f"run as root or with the capability CAP_SYS_NICE, or allow it (ulimit -e {20 - AHEAD} -r 1)"
        return "programs run beside others, which disturb what is measured", remedy

    return _tried("priority", "record", found)


def _simulation() -> Ability:
    def found() -> tuple[str, str]:
        from tracemap.capture.cache_simulation import find_valgrind

        valgrind = find_valgrind()
        remedy = "kernels are compiled without fused multiply-adds for it; 3.24 and newer run them as they are"
        return f"valgrind {valgrind.version}", "" if valgrind.runs_fused else remedy

    return _tried("valgrind", "record --cache-sim", found)


def _browser() -> Ability:
    import webbrowser

    name, used_by = "browser", "to look at pages; they can be copied to where one is"
    try:
        return Ability(name, State.WORKS, str(getattr(webbrowser.get(), "name", "")), used_by)
    except webbrowser.Error:
        return Ability(name, State.MISSING, "none is registered", used_by, "set BROWSER to its command")


def _module(extra: str, about: tuple[str, str, str]) -> Ability:
    module, used_by, remedy = about
    if is_installed(module):
        return Ability(extra, State.WORKS, f"{module} is installed", used_by)
    return Ability(extra, State.MISSING, f"{module} is not installed", used_by, remedy)


def _temporary() -> Ability:
    def found() -> tuple[str, str]:
        folder = Path(tempfile.gettempdir())
        with tempfile.TemporaryFile(dir=folder):
            free = shutil.disk_usage(folder).free
        remedy = "set TMPDIR to a folder with more room"
        return f"{folder}, {format_bytes(free)} free", remedy if free < _LEAST_FREE else ""

    used_by, otherwise = "build, record, and attribute where rows exceed the memory", "set TMPDIR to a folder with room"
    return _tried("temporary files", used_by, found, needed=True, otherwise=otherwise)


def _machine() -> Ability:
    usable = usable_processors()
    return Ability("machine", State.WORKS, f"{usable} processors, {format_bytes(free_memory())} free", "all commands")
