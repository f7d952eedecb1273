"""One run of iree-compile: its dumps, what it prints, and how long it takes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tracemap.errors import ToolFailed
from tracemap.owned.children import end, start
from tracemap.units import UNKNOWN, Integer


class Run:
    """A run that has been started. Several threads may wait for it."""

    def __init__(self, arguments: Sequence[str | Path], target: Path, phases: Path) -> None:
        program, source, *flags = arguments
        self.elapsed_ns: Integer = UNKNOWN
        """How long it ran; unknown until it ended."""
        self.cpu_ns: Integer = UNKNOWN
        """The time of processors that it took, in hundredths of a second; unknown until it ended."""
        self._program, self._target, self._phases = str(program), target, phases
        self._ending = threading.Lock()
        self.stderr = phases.with_name(f"stderr-{target.name}.txt")
        with self.stderr.open("wb") as stderr:
            self._began = time.perf_counter_ns()
            self._process = start([program, source, "-o", target, *flags], stdout=stderr, stderr=stderr)

    def dump(self, number: int) -> Path | None:
        """Where a phase is dumped, once that has begun."""
        return next(iter(sorted(self._phases.glob(f"*.{number}.*.mlir"))), None)

    @property
    def said(self) -> str:
        """What the compiler has printed."""
        return self.stderr.read_text(encoding="utf-8", errors="replace").strip()

    def poll(self) -> int | None:
        """Its exit status, None as long as it runs."""
        with self._ending:
            if self._process.returncode is None and self._has_ended(os.WNOHANG):
                self.elapsed_ns = time.perf_counter_ns() - self._began
                self.cpu_ns = _cpu_ns(self._process.pid)
            return self._process.poll()

    def wait(self) -> int:
        """Its exit status, once it has ended.

        Raises:
            ToolFailed: it ended well, and there is nothing of what it was to write.
        """
        self._has_ended(0)
        if self.status == 0 and not self._target.exists():
            raise ToolFailed(
                f"{self._program} ended with status 0 and wrote no output; look whether it is iree-compile, or a "
                "script that passes on all its arguments"
            )
        return self.status

    @property
    def status(self) -> int:
        """The exit status of a run that has ended."""
        return self._process.wait() if (found := self.poll()) is None else found

    def _has_ended(self, how: int) -> bool:
        """Whether it has ended; what is left of it stays for whoever reads how long it took."""
        with suppress(ChildProcessError):  # another thread has seen its end
            return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT | how) is not None
        return True

    def end(self) -> None:
        """Kill it where it still runs."""
        end(self._process)


def _cpu_ns(pid: int) -> Integer:
    """The time of processors that an ended process took, from what the kernel keeps of it (proc(5), `stat`)."""
    try:
        behind_name = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        ticks = int(behind_name[11]) + int(behind_name[12])
        return ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return UNKNOWN
