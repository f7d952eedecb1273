"""Intermediate results of a long search, kept beside its output."""

from __future__ import annotations

import hashlib
import platform
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from tracemap._version import __version__
from tracemap.codec import Record, decode, encode
from tracemap.errors import TargetUnwritable
from tracemap.outputs import check_folder_of, replaced
from tracemap.toolchain import check_tool, find_tool

_T = TypeVar("_T", bound=Record)
_CPU_LINES: Final = ("model name", "flags", "CPU implementer", "CPU variant", "CPU part", "Features")
_KILLED: Final = f"was ended by signal {int(signal.SIGKILL)}"


@dataclass(frozen=True, slots=True)
class WorkFolder:
    """The folder, in which `modules` and `results` lie, and whatever else is asked for."""

    path: Path

    def prepare(self, *names: str) -> None:
        """Make the folders.

        Raises:
            TargetUnwritable: they cannot be made, or may not be written.
        """
        try:
            for name in ("modules", "results", *names):
                (self.path / name).mkdir(parents=True, exist_ok=True)
                check_folder_of(self.path / name / "any")
        except OSError as error:
            raise TargetUnwritable(
                f"{self.path}: the folder for what is kept cannot be made: {error.strerror}; choose another with --work"
            ) from error

    def module(self, key: str) -> Path:
        """Where the compiled kernels of a key lie, or will."""
        return self.path / "modules" / f"{key}.vmfb"

    def result(self, key: str, how: str = "") -> Path:
        """Where a result of a key lies, or will; `how` tells several of one key apart."""
        return self.path / "results" / f"{key}{how and '-'}{how}.json"


def keep(file: Path, data: bytes) -> None:
    """Write a file, there whole or not at all.

    Raises:
        TargetUnwritable: it cannot be written.
    """
    with replaced(file) as temporary:
        temporary.write_bytes(data)


def keep_record(file: Path, record: Record) -> None:
    """Write a result; as `keep`."""
    keep(file, encode(record))


def kept_record(file: Path, kind: type[_T]) -> _T | None:
    """A result that is kept; None where there is none, or a damaged one."""
    try:
        return decode(file.read_bytes(), kind)
    except (OSError, ValueError):
        return None


def key_of(*parts: str | bytes) -> str:
    """A name that stands for texts, in their order."""
    whole = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        whole.update(len(data).to_bytes(8, "little") + data)
    return whole.hexdigest()[:24]


def flag_parts(flags: Sequence[str]) -> Iterator[str]:
    """Flags, each with what stands for the file that it names, such as a tuning spec; "" where it names none."""
    for flag in flags:
        yield flag
        try:
            with Path(flag.partition("=")[2]).open("rb") as file:
                yield hashlib.file_digest(file, "sha256").hexdigest()
        except (OSError, ValueError):
            yield ""


def makers() -> str:
    """What results depend on besides what they are made of: compiler, processor and this program, in one text.

    Raises:
        ToolMissing: there is no compiler.
        ToolFailed: it does not say its version.
    """
    compiler = check_tool([find_tool("iree-compile"), "--version"])
    return "\n".join((compiler.strip(), *_processor(), __version__))


def _processor() -> Iterator[str]:
    """The name of the processor, and what it can do: code for the host is made for these."""
    yield platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n\n")[0].splitlines()
    except OSError:
        return
    yield from (line for line in lines if line.partition(":")[0].strip() in _CPU_LINES)


def was_killed(error: Exception) -> bool:
    """Whether a program was killed: by us, as we end, or for want of memory; another time it may end well."""
    return _KILLED in str(error)
