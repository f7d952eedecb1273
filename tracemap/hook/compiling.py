"""Build the hook's C libraries, each with one call of the system's C compiler, for the package's build and for tests.

This module imports nothing of tracemap, so `setup.py` can use it before the package is installed.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).parent
LIBRARY_NAME = "libtracemap_hook.so"
CUDA_LIBRARY_NAME = "libtracemap_cuda.so"
_SHARED = ("system.c", "files.c", "lock.c")
"""Sources of the hook that the library for CUDA uses, too."""
FLAGS = (
    *("-std=c11", "-D_GNU_SOURCE", "-O2", "-g", "-fPIC", "-shared", "-fvisibility=hidden"),
    *("-Wall", "-Wextra", "-Werror", "-Wl,-z,relro,-z,nodelete"),
)
LIBRARIES = ("-lpthread", "-ldl", "-lrt", "-lm")
MACHINES = ("x86_64", "aarch64")


class HookUnavailable(RuntimeError):
    """The hook's library is missing or unsupported; the message says why and what to do."""


def check_platform() -> None:
    """Raise HookUnavailable if the hook does not support this platform."""
    machine = platform.machine()
    if sys.platform != "linux" or machine not in MACHINES:
        raise HookUnavailable(
            f"the hook is not supported on {sys.platform}/{machine}; it needs Linux on {' or '.join(MACHINES)}"
        )


def sources(name: str = LIBRARY_NAME) -> list[Path]:
    """The C files of a library: the hook's, or `CUDA_LIBRARY_NAME`."""
    if name == CUDA_LIBRARY_NAME:
        return sorted((*(FOLDER / "cuda").glob("*.c"), *(FOLDER / shared for shared in _SHARED)))
    return sorted(FOLDER.glob("*.c"))


def find_compiler() -> list[str]:
    """The C compiler's command: `CC` if set, else cc, gcc or clang.

    Raises:
        HookUnavailable: there is none.
    """
    if named := os.environ.get("CC"):
        return shlex.split(named)
    compiler = next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)
    if compiler is None:
        raise HookUnavailable(
            "the hook's library was not built, since there is no C compiler; install one (Debian: apt-get install gcc "
            "libc6-dev), then reinstall tracemap"
        )
    return [compiler]


def built_library(path: Path, title: str) -> Path:
    """The path of a library that the installation built; `title` is its name for people.

    Raises:
        HookUnavailable: it was not built, or does not support this platform.
    """
    check_platform()
    if not path.is_file():
        find_compiler()  # raises an error with the package to install, if a compiler is missing
        raise HookUnavailable(f"{title} was not built when tracemap was installed; reinstall tracemap")
    return path


def compile_library(target: Path, flags: Sequence[str] = (), name: str = LIBRARY_NAME) -> Path:
    """Build a library atomically; `flags` come after the usual ones, `name` is one that `sources` knows.

    Raises:
        HookUnavailable: wrong platform, no compiler, or the compiler fails; with its output.
    """
    check_platform()
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    # Reproducible build: debug information names files relative to the root of the sources.
    plain = (f"-ffile-prefix-map={Path.cwd()}=.", f"-ffile-prefix-map={FOLDER.parents[1]}=.")
    command = [*find_compiler(), *FLAGS, *plain, *flags, "-o", str(temporary), *map(str, sources(name)), *LIBRARIES]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise HookUnavailable(f"the hook's library cannot be built; {command[0]}: {done.stderr.strip()}")
        temporary.replace(target)
    except OSError as error:
        raise HookUnavailable(f"the hook's library cannot be built: {error}") from error
    finally:
        temporary.unlink(missing_ok=True)
    return target
