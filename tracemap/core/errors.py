"""Errors that tracemap reports: one base class, and one small class per kind.

Every kind has a stable `slug`, which is its name in lower case with dashes. The docstring states the cause, and
`remedy` what helps. docs/errors.md lists all kinds; a test keeps the list complete. Only `tracemap.commands` catches
these errors: it prints one sentence and exits with `exit_code`.
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
    """Base of all errors that a user can cause or fix. The message is one sentence: what, where, what to do.

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
    """Whether a message may contain the output of a program, with its line breaks. Other messages are a single line."""

    def __init_subclass__(cls) -> None:
        cls.slug = re.sub(r"(?<!^)(?=[A-Z])", "-", cls.__name__).lower()


class _Interface:
    is_shell = False


def speak_of_options() -> None:
    """From now on, messages name options of the command line; before, keyword arguments of the Python API."""
    _Interface.is_shell = True


def force_option() -> str:
    """The option that replaces existing files, as the user would write it."""
    return "--force" if _Interface.is_shell else "force=True"


class ToolMissing(TracemapError):
    """A program or package that the command needs is not installed."""

    remedy = "install what the message names (for the IREE tools: pip install iree-base-compiler iree-base-runtime)"


class ToolFailed(TracemapError):
    """A program that tracemap started (iree-compile, iree-profile) failed, or its output has an unexpected form."""

    shows_program = True
    remedy = "read the program's own message, which is shown, and run the printed command by hand"


class ToolTooOld(TracemapError):
    """The installed IREE release lacks a feature that the command needs."""

    remedy = "install the release that the message names, both compiler and runtime, and build the bundle again"


class ModelUnreadable(TracemapError):
    """The model's file does not exist or cannot be read."""

    remedy = "check the path; `-` reads the model from standard input"


class ModelInvalid(TracemapError):
    """iree-compile does not accept the model."""

    shows_program = True
    remedy = "correct the line that iree-compile's message names, or pass the flags that it needs after `--`"


class PipelineInvalid(TracemapError):
    """iree-opt rejects the pass pipeline, or one of its passes fails on the model."""

    shows_program = True
    remedy = "correct the pass that iree-opt's message names; `iree-opt --help` lists the passes and their options"


class ModuleInvalid(TracemapError):
    """The machine code of a compiled module is damaged, or its architecture is not supported."""

    remedy = "build the bundle again; tracemap reads machine code of x86-64 and AArch64"


class LocationInvalid(TracemapError):
    """A location in the model or the compiler's output has a form that tracemap does not know."""

    remedy = "report this as a defect of tracemap, with the location's text"


class DumpsInvalid(TracemapError):
    """A required phase dump is missing or has no locations, or the module comes from a different compilation."""

    remedy = "compile with --mlir-print-debuginfo and --dump-compilation-phases-to into an empty folder"


class AuditFailed(TracemapError):
    """Fewer ops of the model have a location of their own than --fail-under requires."""

    exit_code = 1
    remedy = "print the model with its locations (as_text(debug_info=True), --mlir-print-debuginfo)"


class FunctionUnknown(TracemapError):
    """The module has no function of this name, or it has several functions and the command names none."""

    remedy = "select one of the functions that the message lists with --function"


class InputInvalid(TracemapError):
    """Wrong number of inputs, a size or loop bound that tracemap cannot make up, or a missing parameter file."""

    remedy = "pass one --input per argument, or --dim N for `?` dimensions; name the parameter file"


class OutputInvalid(TracemapError):
    """An output of a function has a type or shape that a numpy array cannot hold."""

    remedy = "write it to a file with --output=@FILE.bin, or print it"


class OutputsDiffer(TracemapError):
    """An output of a function differs from --expected-output."""

    exit_code = 1
    remedy = "compare the values in the message; --atol and --rtol set the tolerance for floats"


class ProgramFailed(TracemapError):
    """The measured program ended with an error or was killed."""

    interrupted: bool = False
    """Whether the user ended the program."""
    keeps_run: bool = False
    """Whether the data recorded until then is kept, as the message says."""
    exit_code = 1
    shows_program = True
    remedy = "read the program's own message; it also says where the data recorded until then is kept"


class BundleInvalid(TracemapError):
    """The folder is not a tracemap bundle, or the bundle is damaged."""

    remedy = "build it again with `tracemap build`"


class BundleVersion(TracemapError):
    """The bundle was written by a tracemap release with a different format version."""

    remedy = "build it again with this release, or use the release that wrote it"


class BundleMissing(TracemapError):
    """The command names no bundle, and the folders that tracemap searches contain none or more than one."""

    remedy = "name the bundle with --map"


class RunInvalid(TracemapError):
    """The run's file lacks a column, contains an invalid number, or is not a run."""

    remedy = "correct the line and column that the message names"


class RunEmpty(TracemapError):
    """The file of another tool contains no event."""

    remedy = "check that the program ran and that profiling was on, and record again"


class RunMismatch(TracemapError):
    """The run was recorded from a different build than the bundle, or contains no kernel of the bundle."""

    remedy = "use the bundle that the run was recorded from, record again, or pass --allow-mismatch"


class RunVersion(TracemapError):
    """The run or profile has a format version that this tracemap release does not read."""

    remedy = "record again with the installed tools"


class StoreInvalid(TracemapError):
    """The folder or bucket is not a store or cannot be read, or it contains damaged or foreign files."""

    remedy = "remove the files that the message names, or skip them with `--skip-bad`"


class TargetExists(TracemapError):
    """The output exists and tracemap did not write it, or another recording is writing it."""

    remedy = "choose a different name with -o, or pass --force"


class TargetUnwritable(TracemapError):
    """The output's folder does not exist or is not writable, or the disk is full."""

    remedy = "choose a different path with -o"


class QueryInvalid(TracemapError):
    """Nothing in the map has the requested name."""

    remedy = "name a line (FILE:LINE), an op (op12), a dispatch site (site3), a kernel or a scope"


class EventUnavailable(TracemapError):
    """No event has the requested name, or this machine or user cannot count it."""

    remedy = "choose an event that `tracemap events` lists; it also says how to enable the others"


class DeviceUnprofiled(TracemapError):
    """Kernels cannot be timed on the device that the program runs on: by IREE's runtime, or on CUDA by CUPTI."""

    remedy = (
        "do what the message says; or build for Vulkan if the device supports it, or use the vendor's profiler: "
        "`tracemap attribute` reads the tables of `nsys stats --report cuda_gpu_trace --format csv` and `ncu --csv`"
    )


class ExtensionBroken(TracemapError):
    """A reader, export or advice rule of another package cannot be imported, or fails."""

    remedy = "update or uninstall the package that the message names (docs/extending.md)"


class UsageInvalid(TracemapError):
    """The options cannot be combined, an option does not accept its value, or iree-compile rejects a flag."""

    remedy = "see the command's --help; `iree-compile --help` lists the flags of the compiler"


class SystemLimit(TracemapError):
    """The system or a limit of the shell allows no more memory, threads, open files, disk space or arguments."""

    remedy = "free the resource that the message names, or raise its limit; `ulimit -a` shows the limits of the shell"


_MEMORY: Final = "there is not enough memory"
_LIMITS: Final = {
    errno.ENOMEM: _MEMORY,
    errno.EAGAIN: "no more programs or threads can be started",
    errno.EMFILE: "no more files can be opened",
    errno.ENFILE: "no more files can be opened on this machine",
    errno.EFBIG: "a file exceeds the file size limit",
    errno.ENOSPC: "a disk is full",
    errno.EDQUOT: "the disk quota of this user is used up",
}
"""Messages for the error numbers of exhausted resources."""
_NOT_MAPPED: Final = "failed to map segment"
_NO_THREAD: Final = "can't start new thread"
_MAX_QUOTED: Final = 200
_ULIMIT: Final = "free some, or raise the limit; `ulimit -a` shows the limits of the shell"


def limit_reached(error: Exception) -> str:
    """Message that names the exhausted resource and the remedy; "" if the error has another cause."""
    text, number = str(error), _limit(error)
    line = next((line for line in text.splitlines() if _NOT_MAPPED in line), text)  # numpy adds advice of its own
    quoted = f" ({start_of(' '.join(line.split()), _MAX_QUOTED)})" if line else ""
    return f"{_LIMITS[number]}{quoted}; {_ULIMIT}" if number else ""


def check_limits(error: Exception) -> None:
    """Raise `SystemLimit` if an exhausted resource caused the error, so that no file is blamed for it.

    Raises:
        SystemLimit: memory, threads, open files or disk space are used up.
    """
    if limit := limit_reached(error):
        raise SystemLimit(limit) from error


def _limit(error: Exception) -> int:
    """Key of `_LIMITS` for an error; 0: none."""
    text = str(error)
    if isinstance(error, OSError):
        return error.errno if error.errno in _LIMITS else 0
    if type(error).__module__.endswith("duckdb"):  # duckdb has classes of its own; importing it here takes too long
        if type(error).__name__ == "OutOfMemoryException":
            return errno.ENOMEM
        return next((number for number in _LIMITS if os.strerror(number) in text), 0)
    if isinstance(error, RuntimeError):
        return errno.EAGAIN if _NO_THREAD in text else 0
    # The interpreter's error for an extension that ran out of memory without raising an error.
    unreported = isinstance(error, SystemError) and "without exception set" in text
    return errno.ENOMEM if isinstance(error, MemoryError) or unreported or _NOT_MAPPED in text else 0


def start_of(text: str, most: int) -> str:
    """The text, cut after `most` characters."""
    return text if len(text) <= most else text[:most] + "…"


@contextmanager
def raising_unreadable(path: Path | str, kind: type[TracemapError]) -> Iterator[None]:
    """Raise an error of this kind if the system does not allow reading the file."""
    try:
        yield
    except OSError as error:
        check_limits(error)  # while copying, the disk may be full
        raise kind(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # a name with a NUL
        raise kind(f"{path}: cannot be read: {error}") from error
