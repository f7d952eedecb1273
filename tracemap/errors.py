"""Every way in which tracemap refuses: one base class, one small class per kind.

Each kind has a `slug` that is stable: its name in small letters with dashes. Its docstring is the cause, `remedy` what
helps; docs/errors.md lists them all, a test keeps the list complete. Only `tracemap.cli` catches these; it prints one
sentence and exits with `exit_code`.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, Final


class TracemapError(Exception):
    """Base of all errors that a user can cause or mend; the message is one clear sentence: what, where, what to do.

    Example:
        >>> try:
        ...     tracemap.load("missing.tracemap")
        ... except tracemap.TracemapError as error:
        ...     print(error.slug, error.exit_code)
        bundle-invalid 2
    """

    slug: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 2
    remedy: ClassVar[str] = "see the kind"
    shows_program: ClassVar[bool] = False
    """Whether a message may hold what a program said, in lines as it said it; all others are a single line."""

    def __init_subclass__(cls) -> None:
        cls.slug = re.sub(r"(?<!^)(?=[A-Z])", "-", cls.__name__).lower()


class ToolMissing(TracemapError):
    """A program or package that the command needs is not installed."""

    remedy = "install what the message names (for the IREE tools: pip install iree-base-compiler iree-base-runtime)"


class ToolFailed(TracemapError):
    """A program that tracemap started (iree-compile, iree-profile) failed or printed what was not expected."""

    shows_program = True
    remedy = "read the program's own message, which is shown; run the printed command by hand"


class ToolTooOld(TracemapError):
    """The installed IREE is of a release that lacks what the command needs."""

    remedy = "install the release that the message names, compiler and runtime alike, and build the bundle again"


class ModelUnreadable(TracemapError):
    """The model's file does not exist or cannot be read."""

    remedy = "check the path; `-` reads the model from standard input"


class ModelInvalid(TracemapError):
    """iree-compile does not accept the model."""

    shows_program = True
    remedy = "mend the line that iree-compile's message names, or pass the flags it needs after `--`"


class PipelineInvalid(TracemapError):
    """iree-opt does not take the pass pipeline, or one of its passes fails on the model."""

    shows_program = True
    remedy = "mend what iree-opt's message names; `iree-opt --help` lists the passes and their options"


class ModuleInvalid(TracemapError):
    """The machine code of a compiled module is damaged, or of an architecture that is not read."""

    remedy = "build the bundle again; loops and instructions are shown for x86-64 and AArch64"


class LocationInvalid(TracemapError):
    """A location in the model or the compiler's output has a form that tracemap does not know."""

    remedy = "report it, with the location's text"


class DumpsInvalid(TracemapError):
    """A dump that is needed is missing or has no locations, or the module is not that of the dumps."""

    remedy = "compile with --mlir-print-debuginfo and --dump-compilation-phases-to into an empty folder"


class AuditFailed(TracemapError):
    """Fewer ops of the model have a location of their own than --fail-under asks for."""

    exit_code = 1
    remedy = "print the model with its locations (as_text(debug_info=True), --mlir-print-debuginfo)"


class FunctionUnknown(TracemapError):
    """The module has no function of that name, or several and none was named."""

    remedy = "name one of the functions that the message lists with --function"


class InputInvalid(TracemapError):
    """Wrong number of inputs, a size or loop bound that cannot be made up, or a file of parameters that is missing."""

    remedy = "give one --input per argument, or --dim N for `?` dimensions; name the file of parameters"


class OutputInvalid(TracemapError):
    """An output of a function is of a type or shape that no array holds."""

    remedy = "write it to a file, with --output=@FILE.bin, or print it"


class OutputsDiffer(TracemapError):
    """An output of a function is not what --expected-output says."""

    exit_code = 1
    remedy = "compare what the message shows; --atol and --rtol say how far floats may be off"


class ProgramFailed(TracemapError):
    """The measured program ended with an error or was killed."""

    interrupted: bool = False
    """Whether the user ended it."""
    keeps_run: bool = False
    """Whether what it recorded until then is kept, as the message says."""
    exit_code = 1
    shows_program = True
    remedy = "read its own message; what was recorded until then is kept where the message says"


class BundleInvalid(TracemapError):
    """The folder is not a bundle of tracemap, or is damaged."""

    remedy = "make it again with `tracemap build`"


class BundleVersion(TracemapError):
    """The bundle was written by a tracemap with another format version."""

    remedy = "make it again with this version, or use the version that made it"


class BundleMissing(TracemapError):
    """No bundle was named and none, or more than one, lies where it is looked for."""

    remedy = "name the bundle with --map"


class RunInvalid(TracemapError):
    """The run's file lacks a column, holds a bad number, or is no run at all."""

    remedy = "mend the line and column that the message names"


class RunEmpty(TracemapError):
    """The file of another tool holds no event."""

    remedy = "record again; check that the program ran and that profiling was on"


class RunMismatch(TracemapError):
    """The run was recorded from another module than the bundle's, or names no kernel of it."""

    remedy = "use the bundle that the run was recorded from, record again, or pass --allow-mismatch"


class RunVersion(TracemapError):
    """The run or profile was written in a format version that this tracemap does not read."""

    remedy = "record again with the installed tools"


class StoreInvalid(TracemapError):
    """A folder or bucket is no store of runs or cannot be read, or files in it are damaged or none of its tables."""

    remedy = "take away the files that the message names, or leave them out with `--skip-bad`"


class TargetExists(TracemapError):
    """The output exists already, or another recording is making it."""

    remedy = "pass --force, or another name with -o"


class TargetUnwritable(TracemapError):
    """The output's folder does not exist or may not be written, or the disk is full."""

    remedy = "choose another place with -o"


class QueryInvalid(TracemapError):
    """Nothing in the map answers to what was asked for."""

    remedy = "ask for FILE:LINE, an op (op12), a site (site3), a kernel's name or a scope"


class EventUnavailable(TracemapError):
    """An event that was asked for has another name, or cannot be counted on this machine or by this user."""

    remedy = "choose among those that `tracemap events` lists; it says what would help with the others"


class DeviceUnprofiled(TracemapError):
    """IREE's runtime cannot tell what kernels take on the device that the program runs on."""

    remedy = (
        "build for Vulkan, where the device has it, or measure with the tools of the device's maker, whose tables "
        "`tracemap attribute` reads: `nsys stats --report cuda_gpu_trace --format csv`, `ncu --csv`"
    )


class UsageInvalid(TracemapError):
    """Options that do not go together, or a value that an option does not take."""

    remedy = "see the command's --help"


class SystemLimit(TracemapError):
    """The system, or a limit of the shell, gives no more memory, threads, open files or room for files or arguments."""

    remedy = "free what the message names, or raise the limit: `ulimit -a` shows those of the shell"


_MEMORY: Final = "there is not enough memory"
_LIMITS: Final = {
    errno.ENOMEM: _MEMORY,
    errno.EAGAIN: "no more programs or threads can be started",
    errno.EMFILE: "no more files can be opened",
    errno.ENFILE: "no more files can be opened on this machine",
    errno.EFBIG: "a file may not become as large as it has to",
    errno.ENOSPC: "a disk is full",
    errno.EDQUOT: "a disk holds no more of this user's",
}
"""Of errors that mean that there is no more of something, what it is."""
_NOT_MAPPED: Final = "failed to map segment"
_NO_THREAD: Final = "can't start new thread"
_SAID: Final = 200
_ULIMIT: Final = "free some, or raise the limit: `ulimit -a` shows those of the shell"


def limit_reached(error: Exception) -> str:
    """What there is no more of, and what to do, where an error has come of that; "": it has come of something else."""
    said, number = str(error), _limit(error)
    line = next((line for line in said.splitlines() if _NOT_MAPPED in line), said)  # numpy says how to mend it
    told = f" ({start_of(' '.join(line.split()), _SAID)})" if line else ""
    return f"{_LIMITS[number]}{told}; {_ULIMIT}" if number else ""


def check_limits(error: Exception) -> None:
    """Raise another error where what could not be read or done is not to blame for it.

    Raises:
        SystemLimit: there is no more memory, or no more files can be opened.
    """
    if limit := limit_reached(error):
        raise SystemLimit(limit) from error


def _limit(error: Exception) -> int:
    """The number of `_LIMITS` that an error means; 0: none."""
    said = str(error)
    if isinstance(error, OSError):
        return error.errno if error.errno in _LIMITS else 0
    if type(error).__module__.endswith("duckdb"):  # it has classes of its own, and is not imported for this
        if type(error).__name__ == "OutOfMemoryException":
            return errno.ENOMEM
        return next((number for number in _LIMITS if os.strerror(number) in said), 0)
    if isinstance(error, RuntimeError):
        return errno.EAGAIN if _NO_THREAD in said else 0
    # What the interpreter says of an extension that found no memory and did not say so.
    unsaid = isinstance(error, SystemError) and "without exception set" in said
    return errno.ENOMEM if isinstance(error, MemoryError) or unsaid or _NOT_MAPPED in said else 0


def start_of(text: str, most: int) -> str:
    """As much of a text as a sentence has room for."""
    return text if len(text) <= most else text[:most] + "…"


@contextmanager
def readable(path: Path, kind: type[TracemapError]) -> Iterator[None]:
    """Raise an error of this kind where the system does not let the file be read."""
    try:
        yield
    except OSError as error:
        check_limits(error)
        raise kind(f"{path}: cannot be read: {error.strerror}") from error
