"""`tracemap doctor`: what works on this machine, and what to install or allow for the rest."""

from __future__ import annotations

import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import StrEnum
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final, Literal, TextIO

import click

from tracemap._version import __version__
from tracemap.commands.framework import options_command
from tracemap.commands.streams import print_warning
from tracemap.core.codec import Document, Record
from tracemap.core.errors import TracemapError
from tracemap.core.process.limits import free_memory, usable_processors
from tracemap.core.releases import NEWEST_TRIED, is_untried
from tracemap.core.toolchain import check_tool, find_tool, is_installed
from tracemap.core.units import format_bytes
from tracemap.options.measure import DoctorOptions

_COMPILER, _RUNTIME = "iree-base-compiler", "iree-base-runtime"
_DRIVERS: Final = {
    "local-sync": ("CPU, one thread", ""),
    "local-task": ("CPU, several threads", ""),
    "vulkan": ("GPUs through Vulkan", "install Vulkan's loader and a driver (Debian: libvulkan1 mesa-vulkan-drivers)"),
    "cuda": ("NVIDIA GPUs", "on a machine with such a GPU, install NVIDIA's driver"),
    "hip": ("AMD GPUs: run, benchmark, not record", "on a machine with such a GPU, install ROCm's HIP runtime"),
}
"""Use and requirements of the runtime's drivers."""
_MODULES: Final = {
    "jax": ("jax", "build of JAX functions", "pip install 'tracemap[jax]'"),
    "onnx": ("onnx", "build of ONNX models", "pip install 'tracemap[onnx]'"),
    "torch": ("iree.turbine", "build of torch modules", "pip install 'tracemap[torch]'"),
    "pandas": ("pandas", "results as data frames", "pip install 'tracemap[pandas]'"),
    "pprof": ("google.protobuf", "export --to pprof", "pip install 'tracemap[pprof]'"),
    "perfetto": ("perfetto", "export --to perfetto", "pip install 'tracemap[perfetto]'"),
    "lsp": ("pygls", "costs in editors", "pip install 'tracemap[lsp]'"),
    "mcp": ("mcp", "mcp, for coding agents", "pip install 'tracemap[mcp]'"),
}
"""Module, use and install command of each extra of the package."""
_LEAST_FREE: Final = 1 << 30
"""Minimum free space of the temporary folder in bytes, for phase dumps of large models and for profiles."""


class State(StrEnum):
    """State of an ability."""

    WORKS = "works"
    PARTLY = "partly"
    MISSING = "missing"


class Ability(Record, frozen=True):
    """A program, package or device that tracemap uses: its version, the commands that need it, and how to fix it.

    `needed`: tracemap cannot build or record without it.
    """

    name: str
    state: State
    found: str
    used_by: str
    remedy: str = ""
    needed: bool = False


class Findings(Document, frozen=True, kw_only=True):
    """Results of `tracemap doctor`; `ok`: all needed abilities work."""

    schema_version: Literal[1] = 1
    kind: Literal["doctor"] = "doctor"
    tracemap: str
    python: str
    platform: str
    ok: bool
    abilities: tuple[Ability, ...]


def doctor() -> Findings:
    """Test everything that tracemap depends on, without changing the system or sending data."""
    abilities = tuple(_abilities())
    return Findings(
        tracemap=__version__,
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.release()}, {platform.machine()}",
        ok=not any(ability.needed and ability.state is State.MISSING for ability in abilities),
        abilities=abilities,
    )


def versions() -> str:
    """Versions of tracemap and of IREE's packages in one line, for bug reports."""
    return f"{__version__} ({_COMPILER} {_version(_COMPILER)}, {_RUNTIME} {_version(_RUNTIME)})"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _abilities() -> Iterator[Ability]:
    yield _tried("compiler", "build, audit, lower, diff of models, swap, tune, sweep", _compiler, needed=True)
    yield _tried("runtime", "record, run, benchmark, bench, swap, tune, sweep", _runtime, needed=True)
    yield _tried("HAL profiles", "record", _profiles)
    yield from _devices()
    yield _tried("hook", "hook, record --sample, record --counters", _hook)
    yield _tried("CUPTI", "record on NVIDIA GPUs, hook env --device cuda", _cupti)
    yield _events()
    yield _tried("priority", "record", _priority)
    yield _tried("valgrind", "record --cache-sim", _simulation)
    yield _tried("MLIR's tools", "build --to native, build --from-native", _mlir_tools)
    yield _browser()
    for extra, (module, used_by, remedy) in _MODULES.items():
        if is_installed(module):
            yield Ability(extra, State.WORKS, f"{module} is installed", used_by)
        else:
            yield Ability(extra, State.MISSING, f"{module} is not installed", used_by, remedy)
    yield _tried(
        "temporary files",
        "build, record, and attribute if rows exceed the memory",
        _temporary,
        needed=True,
        otherwise="set TMPDIR to a folder with room",
    )
    machine = f"{usable_processors()} CPUs, {format_bytes(free_memory())} free"
    yield Ability("machine", State.WORKS, machine, "all commands")


def _tried(
    name: str, used_by: str, try_it: Callable[[], tuple[str, str]], *, needed: bool = False, otherwise: str = ""
) -> Ability:
    """Run `try_it`, which returns what it found, and what helps if that is incomplete.

    If it fails, the error's message contains the reason and the remedy; `otherwise` is the remedy if it has none.
    """
    from tracemap.hook import HookUnavailable

    try:
        found, remedy = try_it()
        return Ability(name, State.PARTLY if remedy else State.WORKS, found, used_by, remedy, needed)
    except (TracemapError, HookUnavailable, OSError) as error:
        reason, _, remedy = str(error).partition("; ")
        return Ability(name, State.MISSING, reason, used_by, remedy or otherwise, needed)


def _compiler() -> tuple[str, str]:
    program = find_tool("iree-compile")
    check_tool([program, "--version"])
    installed = _version(_COMPILER)
    newest = ".".join(map(str, NEWEST_TRIED))
    untried = f"release-untried: tracemap was tried with IREE up to {newest}; if something is wrong, report it"
    return f"{_COMPILER} {installed}, {program}", untried if is_untried(installed) else ""


def _runtime() -> tuple[str, str]:
    program = find_tool("iree-benchmark-module")
    ours, theirs = _version(_RUNTIME), _version(_COMPILER)
    if "not installed" in (ours, theirs) or ours.split(".")[:2] == theirs.split(".")[:2]:
        return f"{_RUNTIME} {ours}, {program}", ""
    remedy = "install the same version of both: a runtime may reject modules of another compiler version"
    return f"{_RUNTIME} {ours} with {_COMPILER} {theirs}", remedy


def _profiles() -> tuple[str, str]:
    from tracemap.capture.benchmark import check_profiles

    check_profiles()
    return f"written by iree-benchmark-module, read by {find_tool('iree-profile')}", ""


def _devices() -> Iterator[Ability]:
    """One row per driver of the runtime. If a driver lists no device, the device or its system driver is missing."""
    try:
        program = find_tool("iree-run-module")
        drivers = [line.split(":")[0].strip() for line in check_tool([program, "--list_drivers"]).splitlines()]
    except TracemapError:
        return  # the row of the runtime has the reason
    for driver, (used_by, remedy) in _DRIVERS.items():
        if driver not in drivers:
            yield Ability(f"device {driver}", State.MISSING, "the runtime was built without it", used_by)
            continue
        listed: list[str] = []
        with suppress(TracemapError):
            listed = check_tool([program, f"--list_devices={driver}"]).split()
        if listed:
            yield Ability(f"device {driver}", State.WORKS, ", ".join(listed), used_by)
        else:
            yield Ability(f"device {driver}", State.MISSING, "no device, or no system driver", used_by, remedy)


def _hook() -> tuple[str, str]:
    from tracemap.hook import library_path

    return str(library_path()), ""


def _cupti() -> tuple[str, str]:
    """NVIDIA's library is only found, not asked: without a driver, some of its versions crash."""
    from tracemap.hook import HookUnavailable
    from tracemap.hook.cuda import cuda_library_path, cupti_libraries

    cuda_library_path()
    found = cupti_libraries()
    if not found:
        raise HookUnavailable("NVIDIA's CUPTI is not installed; pip install 'tracemap[cuda]'")
    return ", ".join(map(str, found)), ""


def _events() -> Ability:
    from tracemap.capture.counters import check_event, known_events

    tried = [check_event(event) for event in known_events()]
    closed = [event for event in tried if not event.opens]
    counts = f"{len(tried) - len(closed)} of {len(tried)} events can be counted"
    state = State.PARTLY if 0 < len(closed) < len(tried) else State.MISSING if closed else State.WORKS
    first = f"{closed[0].event.name}: {closed[0].reason}; tracemap events lists all" if closed else ""
    return Ability("events", state, counts, "record --counters, hook --events", first)


def _priority() -> tuple[str, str]:
    from tracemap.capture.noise import AHEAD, may_run_at

    if may_run_at(AHEAD):
        return f"measured programs run ahead of others, at niceness {AHEAD}", ""
    remedy = f"run as root or with the capability CAP_SYS_NICE, or allow it (ulimit -e {20 - AHEAD} -r 1)"
    return "measured programs have no priority, so other programs add noise", remedy


def _simulation() -> tuple[str, str]:
    from tracemap.capture.cache_simulation import find_valgrind

    valgrind = find_valgrind()
    remedy = "kernels are compiled without fused multiply-adds for it; valgrind 3.24 and newer need no such change"
    return f"valgrind {valgrind.version}", "" if valgrind.runs_fused else remedy


def _mlir_tools() -> tuple[str, str]:
    from tracemap.map.build.native.tools import MlirTools

    tools = MlirTools.installed()
    return f"release {tools.release}, {tools.opt}", ""


def _browser() -> Ability:
    import webbrowser

    name, used_by = "browser", "viewing pages; you can also copy them to another machine"
    try:
        return Ability(name, State.WORKS, str(getattr(webbrowser.get(), "name", "")), used_by)
    except webbrowser.Error:
        return Ability(name, State.MISSING, "no browser is registered", used_by, "set BROWSER to the browser's command")


def _temporary() -> tuple[str, str]:
    folder = Path(tempfile.gettempdir())
    with tempfile.TemporaryFile(dir=folder):
        free = shutil.disk_usage(folder).free
    return f"{folder}, {format_bytes(free)} free", "set TMPDIR to a folder with more room" if free < _LEAST_FREE else ""


# ---- command line


@options_command("doctor", DoctorOptions)
def command(options: DoctorOptions) -> None:
    """Check which features work on this machine, and say how to enable the others.

    `doctor` tests everything that tracemap depends on: compiler, runtime, devices, profiles, the hook, hardware
    counters, valgrind, a browser, optional packages for some formats, and the folder of temporary files. The exit
    status is 1 if a part is missing that `build` or `record` requires.

    \b
    Example:
      tracemap doctor
      tracemap doctor --format json
      tracemap doctor --report > report.md
    """
    from tracemap.commands.streams import show_in_format

    findings = doctor()
    if options.report:
        print(bug_report(findings), end="")
        return
    show_in_format(options.format, sys.stdout, partial(print_findings, findings), lambda: findings)
    if not findings.ok:
        print_warning("something needed is missing: tracemap cannot build or record until you install it (see above)")
        click.get_current_context().exit(1)


def print_findings(findings: Findings, out: TextIO) -> None:
    """Print one row per ability, then the remedies."""
    from tracemap.reports.terminal.tables import Heading, console, print_table, say

    to = console(out)
    say(to, f"tracemap {findings.tracemap}, Python {findings.python}, {findings.platform}")
    state, status = Heading("state"), Heading("found", words=True, least=24)
    rows = [(item.name, item.state.value, item.found, item.used_by) for item in findings.abilities]
    print_table(to, "", (Heading(""), state, status, Heading("used by", words=True, leave=10, least=16)), rows)
    if remedies := [(item.name, item.remedy) for item in findings.abilities if item.remedy]:
        print_table(to, "How to fix", (Heading(""), Heading("", words=True, least=30)), remedies)


BUG_REPORT: Final = """\
### What happened, and what you expected

…

### Command and output

With the smallest model that shows it: `tracemap reduce` writes one, and replaces its names with `--anonymous`.

```text
…
```

### Environment

"""
"""The beginning of a bug report; `.github/ISSUE_TEMPLATE/bug_report.md` has the same."""


def bug_report(findings: Findings) -> str:
    """A bug report in Markdown with the environment. The user's home folder is written as `~`."""
    from tracemap.reports.escaping import for_markdown

    home = str(Path.home())
    lines = [f"tracemap {findings.tracemap}, Python {findings.python}, {findings.platform}", ""]
    lines += ["| | state | found |", "|---|---|---|"]
    lines += [
        f"| {item.name} | {item.state.value} | {for_markdown(item.found.replace(home, '~'))} |"
        for item in findings.abilities
    ]
    return BUG_REPORT + "\n".join(lines) + "\n"
