"""The hook: a C library that records every call of a workgroup on the runtime that people already have.

Three ways in, none of which needs a special build of IREE: preload the library (`library_path`, `environment`), load
it as a plugin (`--executable_plugin=`), or `attach` it to the runtime inside a running Python. This package imports
nothing of tracemap: it can be used alone in the program that is measured.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tracemap.hook.compiling import FOLDER, LIBRARY_NAME, HookUnavailable, check_platform, find_compiler

__all__ = [
    "HookSettings",
    "HookUnavailable",
    "attach",
    "environment",
    "library_path",
    "moment",
    "settings_environment",
    "stops_environment",
]


@dataclass(frozen=True, slots=True)
class HookSettings:
    """What to record; the defaults record every call.

    `filter` is a glob over kernel names; `skip_ms` passes over the first milliseconds of each thread, counted from its
    first call; `calls` limits what is recorded in all (0: no limit); `every` records one call in so many; `events` are
    counters as `tracemap.capture.counters` writes them. `thread_bytes` limits what each thread's file takes: calls that
    come when it is full are not recorded; where `keep` is `newest` instead of `oldest`, they take the place of others.

    `sample_hz` takes so many samples of the program counter per second of a thread's CPU time (0: none), of threads
    that call workgroups; `sampler` says by which means: `perf`, `timer` (a signal), or `auto`, the first of them that
    the system allows. With `record_calls` false, calls are not recorded: samples alone cost next to nothing per call.
    What chooses calls (`skip_ms`, `calls`, `every`) does not choose samples; a timer takes none in kernels that
    `filter` leaves out.
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
    """The library to preload.

    Raises:
        HookUnavailable: it was not built, or this platform has none.
    """
    check_platform()
    path = FOLDER / LIBRARY_NAME
    if not path.is_file():
        find_compiler()  # says what to install where that is the cause
        raise HookUnavailable("the hook's library was not built when tracemap was installed; install tracemap again")
    return path


_CUT = re.compile(r"[\s:]")


def _preloadable(folder: Path) -> str:
    """The library as `LD_PRELOAD` can name it, which is cut at blanks and colons: by a link in a folder where it must.

    Raises:
        HookUnavailable: there is no library, or the folder's name has such a character, too.
    """
    library = library_path()
    if not _CUT.search(str(library)):
        return str(library)
    link = folder.resolve() / LIBRARY_NAME
    if _CUT.search(str(link)):
        raise HookUnavailable(
            f"neither {library} nor {link} can be preloaded, as LD_PRELOAD is cut at blanks and colons; name a folder "
            "without them (TMPDIR), or install tracemap in one"
        )
    with suppress(FileExistsError):
        link.symlink_to(library.absolute())
    return str(link)


def settings_environment(output: Path, settings: HookSettings = EVERYTHING) -> dict[str, str]:
    """The variables that steer the hook; `output` is a folder that exists."""
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
    """The variables with which a program is started to be recorded, `LD_PRELOAD` among them.

    Args:
        output: the folder of the record files; it must exist.
        settings: what to record.

    Raises:
        HookUnavailable: there is no library, or none that can be preloaded.
    """
    return {"LD_PRELOAD": _preloading(output, os.environ), **settings_environment(output, settings)}


def stops_environment(stops: Path, variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables with which a program is started so that it is noted when it stops its own clock, and nothing else.

    Args:
        stops: the file to make.
        variables: those with which it is started besides.

    Raises:
        HookUnavailable: there is no library, or none that can be preloaded.
    """
    held = {**os.environ, **(variables or {})}
    return {"LD_PRELOAD": _preloading(stops.parent, held), "TRACEMAP_HOOK_STOPS": str(stops.resolve())}


def _preloading(folder: Path, held: Mapping[str, str]) -> str:
    """What `LD_PRELOAD` holds already, such as another allocator, behind the library; sanitizers must come first."""
    library = _preloadable(folder)
    others = [name for name in held.get("LD_PRELOAD", "").split() if name != library]
    return " ".join(sorted([library, *others], key=lambda name: _SANITIZER.search(name) is None))


_SANITIZER: Final = re.compile(r"lib(clang_rt\.)?\w*san[^/]*$")


def attach(output: Path | str, settings: HookSettings = EVERYTHING, *, library: Path | None = None) -> None:
    """Record the calls of what `iree.runtime` loads in this process from now on.

    Call it once, before modules are loaded; what was loaded earlier is not recorded.

    Args:
        output: the folder of the record files; it must exist.
        settings: what to record.
        library: another build of the hook's library; None: the one that came with the package.

    Raises:
        HookUnavailable: there is no library, or `iree.runtime` is not installed or cannot be hooked.
        NotADirectoryError: `output` is no folder.
    """
    folder = Path(output)
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder}: is not a folder; make it first")
    os.environ.update(settings_environment(folder, settings))
    hook = ctypes.CDLL(str(library or library_path()))
    if not hook.tracemap_hook_attach(os.fsencode(_runtime_path())):
        raise HookUnavailable("this iree.runtime cannot be hooked: it imports none of the functions that load code")


def moment(*, library: Path | None = None) -> tuple[int, int]:
    """Now, in the ticks of this process's calls and in nanoseconds of CLOCK_MONOTONIC.

    Its records alone tell the rate of ticks from what lay close together: calls are off by microseconds within seconds.

    Args:
        library: as of `attach`, which came before.

    Raises:
        HookUnavailable: there is no library.
    """
    both = (ctypes.c_uint64 * 2)()
    ctypes.CDLL(str(library or library_path())).tracemap_hook_moment(both)
    return both[0], both[1]


def _runtime_path() -> str:
    """The shared object of `iree.runtime`, which must have been imported before its imports can be changed."""
    if "iree.runtime" not in sys.modules:
        raise HookUnavailable("import iree.runtime before tracemap.hook.attach is called")
    objects = {path for module in list(sys.modules.values()) if (path := _shared_object(module))}
    if len(objects) != 1:
        raise HookUnavailable(f"cannot tell which shared object is IREE's runtime: {sorted(objects) or 'none'}")
    return objects.pop()


def _shared_object(module: object) -> str:
    path = str(getattr(module, "__file__", None) or "")
    return path if Path(path).name.startswith("_runtime") and path.endswith(".so") else ""
