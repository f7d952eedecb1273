"""On-disk cache of intermediate results of a long search, so that an interrupted search can resume."""

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
                check_folder_of(self.path / name / "any")
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


def keep(file: Path, data: bytes) -> None:
    """Write a file atomically.

    Raises:
        TargetUnwritable: the file cannot be written.
    """
    with replaced(file) as temporary:
        temporary.write_bytes(data)


def keep_record(file: Path, record: Record) -> None:
    """Write a result atomically; raises as `keep`."""
    keep(file, encode(record))


def kept_record(file: Path, kind: type[_T]) -> _T | None:
    """Read a cached result; None if it is missing or damaged."""
    try:
        return decode(file.read_bytes(), kind)
    except (OSError, ValueError):
        return None


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


def makers() -> str:
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
