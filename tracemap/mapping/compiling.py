"""Runs iree-compile on a tagged model, and hands out each phase dump as soon as it is complete."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tracemap.errors import ModelInvalid, ToolMissing, UsageInvalid
from tracemap.toolchain import find_tool, run_tool

PHASES = {
    "input": 1,
    "abi": 2,
    "preprocessing": 3,
    "global-optimization": 4,
    "dispatch-creation": 5,
    "flow": 6,
    "stream": 7,
    "hal": 11,
}
"""The phases that are read, in order, and their numbers in the names of the dumps."""

_DEVICE_FLAGS = {
    "local": ("--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu"),
    "vulkan": ("--iree-hal-target-device=vulkan",),
    "cuda": ("--iree-hal-target-device=cuda",),
    "hip": ("--iree-hal-target-device=hip",),
}
DEVICES = tuple(_DEVICE_FLAGS)

_OURS = ("-o", "--dump-compilation-phases-to", "--compile-to", "--compile-from", "--output-format")
_PRINTING = (
    "--mlir-print-debuginfo",
    "--mlir-elide-elementsattrs-if-larger=16",
    "--mlir-elide-resource-strings-if-larger=16",
)
_POLL_S = 0.005
_MAX_LINE = 400
_STACK_LINE = re.compile(r"\s*#\d+ 0x|PLEASE submit|Please report issues")


def compile_flags(device: str, user_flags: Sequence[str]) -> tuple[str, ...]:
    """The flags that decide what is compiled: the device's, unless the user's own flags name a target, and the user's.

    Raises:
        UsageInvalid: a flag of the user's would take away what `build` needs.
    """
    for flag in user_flags:
        if flag.split("=", 1)[0] in _OURS:
            raise UsageInvalid(f"{flag}: `tracemap build` sets this flag itself; leave it out")
    flags: list[str] = []
    if not _names(user_flags, "--iree-hal-target-device", "--iree-hal-target-backends"):
        flags += _DEVICE_FLAGS[device]
    host_code = device == "local" or _names(user_flags, "--iree-hal-target-device", "--iree-hal-target-backends")
    if host_code and not _names(user_flags, "--iree-llvmcpu-target-cpu", "--iree-llvmcpu-target-triple"):
        flags.append("--iree-llvmcpu-target-cpu=host")
    return (*flags, *user_flags)


def _names(flags: Sequence[str], *names: str) -> bool:
    return any(flag.split("=", 1)[0] in names for flag in flags)


@dataclass(frozen=True, slots=True)
class Compiler:
    """The program to run, and the flags that decide what is compiled."""

    program: Path
    flags: tuple[str, ...]

    @classmethod
    def installed(cls, flags: tuple[str, ...]) -> Compiler:
        """The compiler that is installed beside tracemap.

        Raises:
            ToolMissing: there is none.
        """
        return cls(find_tool("iree-compile"), flags)

    def with_printing(self) -> tuple[str, ...]:
        """The flags, and those that make dumps complete and small, unless they are given already."""
        own = [flag for flag in _PRINTING if not _names(self.flags, flag.split("=", 1)[0])]
        return (*self.flags, *own)


class Phases(Protocol):
    """The dumps of a compilation's phases."""

    def has(self, phase: str) -> bool:
        """Whether there is, or will be, a dump of a phase."""

    def wait_for(self, phase: str) -> str:
        """The text of a phase's dump, once it is complete."""

    def wait(self) -> str:
        """Wait for the end of the compilation."""


class Compilation:
    """One run of iree-compile over tagged bytecode, dumping its phases into a folder.

    A context manager: leaving it early ends the compiler.
    """

    def __init__(self, compiler: Compiler, bytecode: Path, folder: Path) -> None:
        self.module = folder / "module.vmfb"
        self._phases = folder / "phases"
        self._stderr = folder / "stderr.txt"
        dumping = f"--dump-compilation-phases-to={self._phases}"
        arguments = [compiler.program, bytecode, *compiler.with_printing(), dumping, "-o", self.module]
        try:
            with self._stderr.open("wb") as stderr:
                self._process = subprocess.Popen(
                    [str(argument) for argument in arguments], stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr
                )
        except OSError as error:
            raise ToolMissing(f"{arguments[0]}: cannot be started: {error.strerror}") from error

    def __enter__(self) -> Compilation:
        return self

    def __exit__(self, *unused: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def has(self, phase: str) -> bool:
        """Every phase is dumped."""
        return phase in PHASES

    def wait_for(self, phase: str) -> str:
        """The text of a phase's dump, once it is complete: once the next phase's has begun, or the compiler ended.

        Raises:
            ModelInvalid: the compiler failed.
        """
        number = PHASES[phase]
        while self._process.poll() is None and self._dump(number + 1) is None:
            time.sleep(_POLL_S)
        if self._process.poll() is not None:
            self.wait()
        path = self._dump(number)
        if path is None:
            raise ModelInvalid(f"iree-compile wrote no dump of the phase {phase}; its flags may have cut it short")
        return path.read_text(encoding="utf-8", errors="replace")

    def wait(self) -> str:
        """Wait for the compiler's end; returns what it had to say (warnings).

        Raises:
            ModelInvalid: it failed; the message is its own.
        """
        status = self._process.wait()
        said = self._stderr.read_text(encoding="utf-8", errors="replace").strip()
        if status != 0:
            raise ModelInvalid(failure(status, said))
        return said

    def _dump(self, number: int) -> Path | None:
        return next(iter(sorted(self._phases.glob(f"*.{number}.*.mlir"))), None)


def failure(status: int, said: str) -> str:
    """A sentence on how the compiler ended, and its own words without the stack of a crash."""
    lines = [line for line in said.splitlines() if not _STACK_LINE.match(line)]
    words = "\n".join(line if len(line) <= _MAX_LINE else line[:_MAX_LINE] + " …" for line in lines).strip()
    ended = f"was ended by signal {-status}" if status < 0 else f"failed (status {status})"
    return f"iree-compile {ended}:\n{words or 'it printed nothing'}"


def compilers_own_message(compiler: Compiler, model: Path, output: Path) -> str:
    """What iree-compile itself says of a model that it does not accept, with line and caret; "" if it accepts it."""
    done = run_tool([compiler.program, model, *compiler.flags, "-o", output])
    return "" if done.returncode == 0 else failure(done.returncode, done.stderr)
