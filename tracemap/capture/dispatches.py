"""Dispatches observed in a running program: the program stops at the begin and end of each, and its memory is read.

The hook in the program (`tracemap/hook/watching.c`) writes a message to a named pipe and waits for a byte on another
one. Meanwhile its memory is read through /proc. Machine code, allocations and results stay those of the program alone.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from tracemap.capture.benchmark import SERIAL_FLAG, Ending, run_program
from tracemap.core.errors import ProgramFailed, ToolMissing
from tracemap.core.process.temporary_files import temporary_folder
from tracemap.hook import HookUnavailable, watch_environment
from tracemap.runs.hook.process import known_kernels, read_processes

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_STOP: Final = struct.Struct("=IIIIQQQIIII")
"""`struct stop` of watching.c."""
_BEGINS: Final = 1
_ENDED: Final = bytes(_STOP.size)
_MOST_CONSTANTS: Final = 1 << 16
_POLL_S: Final = 0.002
"""Interval in which the end of the program is noticed; short, as most programs take milliseconds."""


@dataclass(frozen=True, slots=True)
class ObservedDispatch:
    """A dispatch of a running program.

    Attributes:
        number: its position in the order of execution.
        kernel: name of its export.
        workgroups: their number in x, y and z.
        constants: the push constants.
        bindings: address and length in bytes of each binding.
    """

    number: int
    kernel: str
    workgroups: tuple[int, int, int]
    constants: tuple[int, ...]
    bindings: tuple[tuple[int, int], ...]


class ProgramMemory:
    """The memory of a program."""

    def __init__(self, pid: int) -> None:
        self._file = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)

    def read(self, address: int, target: npt.NDArray[np.uint8]) -> None:
        """Fill an array with the bytes at an address.

        Raises:
            OSError: they cannot be read.
        """
        view = target.data
        while view:
            size = os.preadv(self._file, [view], address)
            if not size:
                raise OSError(f"no memory at {address:#x}")
            view, address = view[size:], address + size

    def numbers(self, address: int, code: str, count: int) -> tuple[Any, ...]:
        """Numbers at an address, by their code of the module `struct`."""
        layout = struct.Struct(f"={count}{code}")
        data = b"" if not count else os.pread(self._file, layout.size, address)
        return layout.unpack(data)

    def close(self) -> None:
        """Stop reading."""
        os.close(self._file)


class Observer(Protocol):
    """Receives each dispatch while the program waits."""

    def begins(self, dispatch: ObservedDispatch, memory: ProgramMemory) -> None:
        """The first workgroup is about to run."""

    def ends(self, dispatch: ObservedDispatch, memory: ProgramMemory) -> None:
        """The last workgroup has run."""


def observe_dispatches(command: Sequence[str], observer: Observer) -> Ending:
    """Run a program of IREE's runtime on one worker, and call the observer at each dispatch on a CPU.

    Args:
        command: the command line.
        observer: receives the dispatches. It is called in another thread.

    Raises:
        ProgramFailed: the program's memory cannot be read.
        ToolMissing: the hook's library was not built, or the program cannot be started.
    """
    with temporary_folder() as folder:
        try:
            variables = watch_environment(folder)
        except HookUnavailable as error:
            raise ToolMissing(str(error)) from error
        service = _Service(folder, observer)
        with service:
            ending = run_program([*command, SERIAL_FLAG], variables, every_s=_POLL_S)
        if service.failure is not None:
            raise service.failure
        return ending


@dataclass
class _Service:
    """The thread that answers the program."""

    folder: Path
    observer: Observer
    failure: BaseException | None = None
    count: int = 0
    _memories: dict[int, ProgramMemory] = field(default_factory=dict)
    _names: dict[tuple[int, int], str] = field(default_factory=dict)
    _current: ObservedDispatch | None = None

    def __enter__(self) -> None:
        asks, answers = self.folder / "asks", self.folder / "answers"
        os.mkfifo(asks, 0o600)
        os.mkfifo(answers, 0o600)
        # Open for reading and writing, so that opening does not wait for the program.
        self._asks = os.open(asks, os.O_RDWR | os.O_CLOEXEC)
        self._answers = os.open(answers, os.O_RDWR | os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        os.write(self._asks, _ENDED)
        self._thread.join()
        for memory in self._memories.values():
            memory.close()
        os.close(self._asks)
        os.close(self._answers)

    def _serve(self) -> None:
        while (message := os.read(self._asks, _STOP.size)) != _ENDED:
            if self.failure is None:
                try:
                    self._stopped(*_STOP.unpack(message))
                except PermissionError:
                    self.failure = ProgramFailed(
                        "the memory of the program cannot be read: the system forbids it; allow it with "
                        "`sysctl kernel.yama.ptrace_scope=1`, or run as root"
                    )
                except BaseException as error:
                    self.failure = error
            os.write(self._answers, b"\0")

    def _stopped(self, moment: int, kernel: int, pid: int, bindings: int, *rest: int) -> None:
        constants, pointers, lengths, constant_count, x, y, z = rest
        if pid not in self._memories:
            self._memories[pid] = ProgramMemory(pid)
        memory = self._memories[pid]
        if moment == _BEGINS:
            places = memory.numbers(pointers, "Q", bindings)
            sizes = memory.numbers(lengths, "Q", bindings)
            values = memory.numbers(constants, "I", min(constant_count, _MOST_CONSTANTS))
            bound = tuple(zip(places, sizes, strict=True))
            self._current = ObservedDispatch(self.count, self._name(pid, kernel), (x, y, z), values, bound)
            self.count += 1
            self.observer.begins(self._current, memory)
        elif self._current is not None:
            self.observer.ends(self._current, memory)
            self._current = None

    def _name(self, pid: int, kernel: int) -> str:
        if (pid, kernel) not in self._names:
            processes = read_processes(self.folder)
            for process in processes.values():
                for number, known in known_kernels(process, processes).items():
                    self._names[process.pid, number] = known.name
        return self._names[pid, kernel]
