"""The hook: a C library that records every workgroup call inside the stock IREE runtime.

There are three ways to load it, without a special build of IREE: preload it (`library_path`, `environment`), load it
as a plugin (`--executable_plugin=`), or `attach` it to the runtime in a running Python. This package imports nothing
else of tracemap, so it can be used alone in the measured program.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tracemap.hook.compiling import FOLDER, LIBRARY_NAME, HookUnavailable, built_library

__all__ = [
    "HookSettings",
    "HookUnavailable",
    "attach",
    "debug_info_environment",
    "environment",
    "library_path",
    "moment",
    "settings_environment",
    "stops_environment",
    "watch_environment",
]


@dataclass(frozen=True, slots=True)
class HookSettings:
    """Settings of a recording; the defaults record every call.

    `filter`: glob over kernel names. `skip_ms`: skip the first milliseconds of each thread, from its first call.
    `calls`: most calls to record in all (0: no limit). `every`: record one call out of this number. `events`: counters,
    in the syntax of `tracemap.capture.counters`. `thread_bytes`: size limit of each thread's file. `keep`: `oldest`
    drops the calls that come after the limit; `newest` overwrites the oldest ones.

    `sample_hz`: samples of the program counter per second of a thread's CPU time (0: none), in threads that call
    workgroups. `sampler`: `perf`, `timer` (a signal), `cpu-timer` (the same, only while the
    thread runs, at most a few hundred times per second), or `auto`, the first of these that the system allows. With
    `record_calls` false, only samples are recorded, which costs almost nothing per call. `skip_ms`, `calls` and
    `every` do not affect samples; a timer takes no samples in kernels that `filter` excludes.
    """

    filter: str = ""
    skip_ms: int = 0
    calls: int = 0
    every: int = 1
    thread_bytes: int = 1 << 30
    keep: str = "oldest"
    events: tuple[str, ...] = ()
    record_calls: bool = True
    sample_hz: int = 0
    sampler: str = "auto"


EVERYTHING = HookSettings()


def library_path() -> Path:
    """The path of the library to preload.

    Raises:
        HookUnavailable: it was not built, or does not support this platform.
    """
    return built_library(FOLDER / LIBRARY_NAME, "the hook's library")


_LD_PRELOAD_SEPARATOR = re.compile(r"[\s:]")


def _preloadable(folder: Path) -> str:
    """A path of the library for `LD_PRELOAD`, which splits at blanks and colons: a link in `folder` if needed.

    Raises:
        HookUnavailable: there is no library, or the folder's path has such a character, too.
    """
    library = library_path()
    if not _LD_PRELOAD_SEPARATOR.search(str(library)):
        return str(library)
    link = folder.resolve() / LIBRARY_NAME
    if _LD_PRELOAD_SEPARATOR.search(str(link)):
        raise HookUnavailable(
            f"neither {library} nor {link} can be preloaded, as LD_PRELOAD splits at blanks and colons; set TMPDIR to "
            "a folder without them, or install tracemap in one"
        )
    with suppress(FileExistsError):
        link.symlink_to(library.absolute())
    return str(link)


def settings_environment(output: Path, settings: HookSettings = EVERYTHING) -> dict[str, str]:
    """Environment variables with the hook's settings; `output` is an existing folder."""
    return {
        "TRACEMAP_HOOK_OUTPUT": str(output.resolve()),
        "TRACEMAP_HOOK_FILTER": settings.filter,
        "TRACEMAP_HOOK_SKIP_MS": str(settings.skip_ms),
        "TRACEMAP_HOOK_CALLS": str(settings.calls),
        "TRACEMAP_HOOK_EVERY": str(settings.every),
        "TRACEMAP_HOOK_THREAD_BYTES": str(settings.thread_bytes),
        "TRACEMAP_HOOK_KEEP": settings.keep,
        "TRACEMAP_HOOK_EVENTS": ";".join(settings.events),
        "TRACEMAP_HOOK_RECORD_CALLS": str(int(settings.record_calls)),
        "TRACEMAP_HOOK_SAMPLE_HZ": str(settings.sample_hz),
        "TRACEMAP_HOOK_SAMPLER": settings.sampler,
    }


def environment(output: Path, settings: HookSettings = EVERYTHING) -> dict[str, str]:
    """Environment variables that make a program record, including `LD_PRELOAD`.

    Args:
        output: the folder of the record files; it must exist.
        settings: settings of the recording.

    Raises:
        HookUnavailable: there is no library, or it cannot be preloaded.
    """
    return {"LD_PRELOAD": _preload_variable(output, os.environ), **settings_environment(output, settings)}


def stops_environment(stops: Path, variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment variables that log only when a program stops its own clock.

    Args:
        stops: the file to create.
        variables: other variables for the program.

    Raises:
        HookUnavailable: there is no library, or it cannot be preloaded.
    """
    current = {**os.environ, **(variables or {})}
    return {"LD_PRELOAD": _preload_variable(stops.parent, current), "TRACEMAP_HOOK_STOPS": str(stops.resolve())}


def watch_environment(folder: Path) -> dict[str, str]:
    """Environment variables that stop a program at the begin and end of each dispatch.

    Args:
        folder: has the named pipes `asks` and `answers` (see watching.h), and gets the names of kernels.

    Raises:
        HookUnavailable: there is no library, or it cannot be preloaded.
    """
    path = str(folder.resolve())
    return {
        "LD_PRELOAD": _preload_variable(folder, os.environ),
        "TRACEMAP_HOOK_OUTPUT": path,
        "TRACEMAP_HOOK_WATCH": path,
    }


def debug_info_environment(folders: Sequence[Path], jitdump: Path | None = None) -> dict[str, str]:
    """Environment variables that hand debug information to perf, gdb and valgrind.

    Args:
        folders: folders that `tracemap debug-info` wrote.
        jitdump: an existing folder for a jitdump, or None.

    Raises:
        HookUnavailable: there is no library, or it cannot be preloaded.
    """
    variables = {
        "LD_PRELOAD": _preload_variable(jitdump or folders[0].resolve().parent, os.environ),
        "TRACEMAP_HOOK_DEBUG_INFO": ":".join(str(folder.resolve()) for folder in folders),
    }
    return variables if jitdump is None else {**variables, "TRACEMAP_HOOK_JITDUMP": str(jitdump.resolve())}


def _preload_variable(folder: Path, current: Mapping[str, str]) -> str:
    """`LD_PRELOAD` with the library before its present content, such as an allocator; sanitizers must come first."""
    library = _preloadable(folder)
    others = [name for name in current.get("LD_PRELOAD", "").split() if name != library]
    return " ".join(sorted([library, *others], key=lambda name: _SANITIZER.search(name) is None))


_SANITIZER: Final = re.compile(r"lib(clang_rt\.)?\w*san[^/]*$")


def attach(output: Path | str, settings: HookSettings = EVERYTHING, *, library: Path | None = None) -> None:
    """Record the calls of everything that `iree.runtime` loads in this process from now on.

    Call it once, before modules are loaded; modules loaded earlier are not recorded.

    Args:
        output: the folder of the record files; it must exist.
        settings: settings of the recording.
        library: another build of the hook's library; None: the one in this package.

    Raises:
        HookUnavailable: there is no library, or `iree.runtime` is not installed or cannot be hooked.
        NotADirectoryError: `output` is no folder.
    """
    folder = Path(output)
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is not a folder; create it first")
    os.environ.update(settings_environment(folder, settings))
    hook = ctypes.CDLL(str(library or library_path()))
    if not hook.tracemap_hook_attach(os.fsencode(_runtime_path())):
        raise HookUnavailable("this iree.runtime cannot be hooked: it imports no function that loads code")


def current_ticks_and_ns(*, library: Path | None = None) -> tuple[int, int]:
    """The current time, in ticks of this process's calls and in nanoseconds of CLOCK_MONOTONIC.

    The record files alone give the tick rate from close points in time, so calls drift by microseconds in seconds.

    Args:
        library: the library given to `attach`.

    Raises:
        HookUnavailable: there is no library.
    """
    ticks_and_ns = (ctypes.c_uint64 * 2)()
    ctypes.CDLL(str(library or library_path())).tracemap_hook_moment(ticks_and_ns)
    return ticks_and_ns[0], ticks_and_ns[1]


def _runtime_path() -> str:
    """The shared object of `iree.runtime`, which must be imported before its symbols can be replaced."""
    if "iree.runtime" not in sys.modules:
        raise HookUnavailable("import iree.runtime before you call tracemap.hook.attach")
    objects = {path for module in list(sys.modules.values()) if (path := _shared_object(module))}
    if len(objects) != 1:
        raise HookUnavailable(f"cannot tell which shared object is IREE's runtime: {sorted(objects) or 'none'}")
    return objects.pop()


def _shared_object(module: object) -> str:
    path = str(getattr(module, "__file__", None) or "")
    return path if Path(path).name.startswith("_runtime") and path.endswith(".so") else ""
