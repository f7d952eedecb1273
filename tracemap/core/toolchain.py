"""Find and run external tools: iree-compile, iree-benchmark-module, iree-profile, valgrind.

Tools always start with argument lists, never through a shell. The console scripts of IREE's wheels are Python wrappers;
a killed wrapper leaves the real program running. So the real programs inside the wheels are used.
"""

from __future__ import annotations

import importlib.util
import shutil
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from tracemap.core.errors import ToolFailed, ToolMissing
from tracemap.core.process.children import end, start

Progress = Callable[[str], None]
"""Receives a line of text as each phase of long work begins. The command line shows it, libraries ignore it."""

_COMPILER = ("iree.compiler", "_mlir_libs", "install it with: pip install iree-base-compiler")
_RUNTIME = ("iree._runtime_libs", ".", "install it with: pip install iree-base-runtime")
_TOOLS = {
    **dict.fromkeys(("iree-compile", "iree-opt"), _COMPILER),
    **dict.fromkeys(("iree-benchmark-module", "iree-run-module", "iree-dump-module"), _RUNTIME),
    "iree-profile": (*_RUNTIME[:2], "install it with: pip install 'iree-base-runtime>=3.12', the first that has it"),
    "ptxas": ("nvidia", "cu13/bin", "install it with: pip install nvidia-cuda-nvcc"),
    "nvdisasm": ("nvidia", "cu13/bin", "install it with: pip install nvidia-cuda-nvdisasm"),
    "valgrind": ("", "", "install it (Debian, Ubuntu: apt-get install valgrind)"),
}
"""Package, folder in it (both may be empty), and how to install, for each tool."""


def no_progress(phase: str) -> None:
    """A `Progress` that does nothing."""


def find_tool(name: str) -> Path:
    """The path of a tool: inside installed wheels of IREE and NVIDIA, else on PATH.

    Raises:
        ToolMissing: it is in neither; the message says how to install it.
    """
    package, folder, how = _TOOLS[name]
    for location in _package_folders(package) if package else ():
        path = location / folder / name
        if path.is_file():
            return path
    on_path = shutil.which(name)
    if on_path is None:
        raise ToolMissing(f"{name} is not installed; {how}")
    return Path(on_path)


def check_runtime() -> None:
    """Check that IREE's runtime is installed as a Python package.

    Raises:
        ToolMissing: it is not.
    """
    if not is_installed("iree.runtime"):
        raise ToolMissing(f"IREE's runtime is not installed; {_RUNTIME[2]}")


def is_installed(package: str) -> bool:
    """Whether a Python package is installed, without importing it."""
    return bool(_package_folders(package))


def _package_folders(module: str) -> list[Path]:
    """The folders of a package, without importing it (importing the compiler takes a tenth of a second)."""
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        return []
    return [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []


def signal_text(number: int) -> str:
    """Text for a program that was ended by a signal.

    >>> signal_text(8)
    'was ended by signal 8 (SIGFPE)'
    """
    names = {member.value: f" ({member.name})" for member in signal.Signals}
    return f"was ended by signal {number}{names.get(number, '')}"


def run_tool(arguments: Sequence[str | Path]) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, whatever its exit status, and return its output.

    Raises:
        ToolMissing: the program cannot be started.
    """
    child = start(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        out, err = (output.decode("utf-8", errors="replace") for output in child.communicate())
    finally:
        end(child)
    return subprocess.CompletedProcess(child.args, child.returncode, out, err)


def check_tool(arguments: Sequence[str | Path]) -> str:
    """Run a program and return its standard output.

    Raises:
        ToolMissing: the program cannot be started.
        ToolFailed: the exit status is not 0; the message contains its standard error.
    """
    done = run_tool(arguments)
    if done.returncode != 0:
        output = done.stderr.strip() or done.stdout.strip() or "it printed nothing"
        raise ToolFailed(f"{Path(arguments[0]).name} failed (status {done.returncode}): {output}")
    return done.stdout
