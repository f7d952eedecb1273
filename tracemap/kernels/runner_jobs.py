"""Jobs of many kernels: compiled and run in turn, and kept for the next time."""

from __future__ import annotations

import hashlib
import os
import platform
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from msgspec import structs

from tracemap._version import __version__
from tracemap.core.codec import Count, Positive, Record, decode, encode
from tracemap.core.errors import TargetUnwritable
from tracemap.core.files import atomic_file, check_folder_writable
from tracemap.core.process.children import Child, end, ended_within, start
from tracemap.core.toolchain import check_runtime, check_tool, find_tool, signal_text

# ---- work cache
#
# On-disk cache of intermediate results of a long search, so that an interrupted search can resume.


_T = TypeVar("_T", bound=Record)
_CPU_LINES: Final = ("model name", "flags", "CPU implementer", "CPU variant", "CPU part", "Features")
_KILLED: Final = f"was ended by signal {int(signal.SIGKILL)}"


@dataclass(frozen=True, slots=True)
class WorkFolder:
    """The cache folder, with the subfolders `modules` and `results`."""

    path: Path

    def prepare(self, *names: str) -> None:
        """Create the standard subfolders and those with the given names.

        Raises:
            TargetUnwritable: they cannot be created or written.
        """
        try:
            for name in ("modules", "results", *names):
                (self.path / name).mkdir(parents=True, exist_ok=True)
                check_folder_writable(self.path / name / "any")
        except OSError as error:
            raise TargetUnwritable(
                f"{self.path}: the work folder cannot be created: {error.strerror}; choose another with --work"
            ) from error

    def module(self, key: str) -> Path:
        """File of the compiled kernels of a key."""
        return self.path / "modules" / f"{key}.vmfb"

    def result(self, key: str, how: str = "") -> Path:
        """File of a result of a key; `how` distinguishes several results of the same key."""
        return self.path / "results" / f"{key}{how and '-'}{how}.json"

    def read(self, key: str, kind: type[_T], how: str = "") -> _T | None:
        """Read a result; None if it is missing or damaged."""
        try:
            return decode(self.result(key, how).read_bytes(), kind)
        except (OSError, ValueError):
            return None

    def write(self, key: str, record: Record, how: str = "") -> None:
        """Write a result atomically; raises as `write_atomically`."""
        write_atomically(self.result(key, how), encode(record))


def write_atomically(file: Path, data: bytes) -> None:
    """Write a file atomically.

    Raises:
        TargetUnwritable: the file cannot be written.
    """
    with atomic_file(file) as temporary:
        temporary.write_bytes(data)


def key_of(*parts: str | bytes) -> str:
    """Cache key: a hash of all parts in order."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()[:24]


def flag_parts(flags: Sequence[str]) -> Iterator[str]:
    """Key parts of flags: for each flag its text, then the hash of the file it names (a tuning spec), or ""."""
    for flag in flags:
        yield flag
        try:
            with Path(flag.partition("=")[2]).open("rb") as file:
                yield hashlib.file_digest(file, "sha256").hexdigest()
        except (OSError, ValueError):
            yield ""


def tool_identity() -> str:
    """Identity of compiler, processor and tracemap, on which all results depend.

    Raises:
        ToolMissing: the compiler is not installed.
        ToolFailed: the compiler does not report its version.
    """
    compiler = check_tool([find_tool("iree-compile"), "--version"])
    return "\n".join((compiler.strip(), *_processor(), __version__))


def _processor() -> Iterator[str]:
    """Model and features of the processor; code for the host depends on them."""
    yield platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n\n")[0].splitlines()
    except OSError:
        return
    yield from (line for line in lines if line.partition(":")[0].strip() in _CPU_LINES)


def was_killed(error: Exception) -> bool:
    """Whether a program was killed, at our exit or for lack of memory; a retry may succeed."""
    return _KILLED in str(error)


# ---- job
#
# Input and output of the process that runs kernels alone. It answers with one line of JSON per call.
#
# Kernels run in a separate process, since a wrong kernel may crash it.


def written_path(path: Path) -> str:
    """A path encoded for JSON, whose texts are UTF-8: one character per byte of the name."""
    return os.fsencode(path).decode("latin-1")


def read_path(written: str) -> Path:
    """The inverse of `written_path`."""
    return Path(os.fsdecode(written.encode("latin-1")))


class Fill(Record, frozen=True):
    """Random contents of a part of a buffer before the first call: integers or floats in [`low`, `high`).

    The part is described as in `reference.memory.View`: `offset` in bytes, `strides` in elements.
    """

    offset: Count
    extents: tuple[Count, ...]
    strides: tuple[int, ...]
    element: str
    low: float
    high: float


class Buffer(Record, frozen=True):
    """The memory of a binding: its length, its used bytes from `begin` to `end`, its contents before the first call.

    `written`: the kernel may change it, so it is saved for verification.
    """

    length: Count
    begin: Count
    end: Count
    written: bool
    fills: tuple[Fill, ...]

    @property
    def moved(self) -> int:
        """Distance of successive copies in bytes: whole cache lines, so that their used bytes do not overlap."""
        return -(-max(self.end - self.begin, 1) // LINE_BYTES) * LINE_BYTES


class Call(Record, frozen=True):
    """A function of a module that records calls of a kernel; `seed` seeds the random contents.

    `module` is the index of the module in the job.
    """

    function: str
    seed: Count
    buffers: tuple[Buffer, ...]
    module: Count = 0


class Job(Record, frozen=True):
    """Functions of modules to run on a device, in order.

    Attributes:
        modules: paths, encoded by `written_path`.
        device: `local-sync` does all work on one thread.
        outputs: folder for the written buffers of the calls, encoded by `written_path`; empty: do not save them.
        least_ns: minimum time of a batch.
        cold_bytes: bytes used between two uses of the same data when measuring with cold caches; 0: do not measure.
    """

    modules: tuple[str, ...]
    device: str = "local-sync"
    calls: tuple[Call, ...] = ()
    outputs: str = ""
    repetitions: Count = 0
    least_ns: Positive = 1
    cold_bytes: Count = 0


class Timing(Record, frozen=True):
    """Measurements: calls per batch, copies of the buffers that calls cycle through, mean time of a call per batch."""

    batch: Count = 0
    copies: Count = 0
    call_ns: tuple[float, ...] = ()


class BufferByte(Record, frozen=True):
    """A byte of a binding."""

    binding: Count
    byte: Count


class CallResult(Record, frozen=True):
    """Result of a call; `overhead_ns` is the time of an empty batch. `cold` is empty if it was not requested.

    `spoiled`: a byte that the first call changed outside the used bytes, or in a buffer that the kernel only reads.
    """

    call: Count
    overhead_ns: float = 0.0
    warm: Timing = Timing()
    cold: Timing = Timing()
    spoiled: BufferByte | None = None


LINE_BYTES = 64
"""Cache line size. Copies of buffers are aligned to it, as IREE aligns bindings."""
GUARD_BYTES = 1 << 20
"""Checked bytes before and after the used part of a buffer; out-of-bounds writes rarely land farther away."""
CANARY = 0xFF
"""Value of all bytes without random contents. As floats these are NaN, so reading them shows in the results."""
EXECUTE = "execute"
"""Name of the module's function that executes a command buffer a given number of times."""


# ---- running


_PROGRAM: Final = "tracemap.kernels.runner"
_MAX_ERROR_LENGTH = 400
_NO_MEMORY: Final = ("MemoryError", "RESOURCE_EXHAUSTED")
"""Marks of a failed allocation in the last line of stderr, by numpy or the runtime."""
_GRACE_S = 2.0
"""Time for the process to exit by itself."""


@dataclass(frozen=True, slots=True)
class FailedCall:
    """A call that did not complete, with the reason. `for_memory`: memory ran out, so the kernel is not at fault."""

    call: int
    text: str
    for_memory: bool = False


def run_job(
    job: Job, folder: Path, limit_s: float, tell: Callable[[int], None] = lambda _: None
) -> Iterator[CallResult | FailedCall]:
    """Run a job; yields the results of its calls in order.

    Args:
        job: the calls to run.
        folder: for temporary files.
        limit_s: a call that takes longer is killed.
        tell: receives the index of a call before it begins.

    Raises:
        ToolMissing: the runtime is not installed.
    """
    check_runtime()
    number = 0
    while number < len(job.calls):
        file = folder / "job.json"
        file.write_bytes(encode(structs.replace(job, calls=job.calls[number:])))
        process = _Process(file, folder / "stderr.txt", limit_s)
        try:
            while number < len(job.calls):
                tell(number)
                if not (line := process.line()):
                    break
                yield structs.replace(decode(line, CallResult), call=number)
                number += 1
        finally:
            process.end()
        if number < len(job.calls):
            yield process.ending(number)
            number += 1


def run_once(module: Path, call: Call, folder: Path, limit_s: float) -> CallResult | FailedCall:
    """Run a call of a module once, without timing it; writes its buffers to the folder."""
    job = Job((written_path(module),), calls=(call,), outputs=written_path(folder))
    (answer,) = run_job(job, folder, limit_s)
    return answer


class _Process:
    def __init__(self, file: Path, stderr_file: Path, limit_s: float) -> None:
        self._stderr_file, self._limit_s, self._late = stderr_file, limit_s, False
        with stderr_file.open("wb") as stderr:
            arguments = [sys.executable, "-m", _PROGRAM, str(file)]
            self._child: Child = start(arguments, stdout=subprocess.PIPE, stderr=stderr)
        self._rest = b""

    def line(self) -> bytes:
        """The next line of output; empty if the process has exited or exceeds the time limit."""
        deadline = time.monotonic() + self._limit_s
        stdout = self._child.stdout
        assert stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    self._late = True
                    return b""
                data = os.read(stdout.fileno(), 1 << 16)
                if not data:
                    return b""
                self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def end(self) -> None:
        """End the process if it still runs."""
        if not self._late:
            ended_within(self._child, _GRACE_S)
        end(self._child)
        if self._child.stdout is not None:
            self._child.stdout.close()

    def ending(self, call: int) -> FailedCall:
        """The failure of the call that was running."""
        if self._late:
            return FailedCall(call, f"it did not end within {self._limit_s:g} s")
        status = self._child.returncode
        if status == -signal.SIGKILL:
            return FailedCall(call, f"it {signal_text(-status)}, probably because memory ran out", for_memory=True)
        if status < 0:
            return FailedCall(call, f"it {signal_text(-status)}")
        lines = self._stderr_file.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        if lines and any(word in lines[-1] for word in _NO_MEMORY):
            return FailedCall(call, "there is not enough memory for its data", for_memory=True)
        return FailedCall(call, f"it failed: {lines[-1][:_MAX_ERROR_LENGTH] if lines else f'status {status}'}")
