"""Messages for failures and warnings of iree-compile, from its output."""

from __future__ import annotations

import re
import resource
import signal
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from tracemap.core.errors import SystemLimit, TracemapError, start_of
from tracemap.core.toolchain import signal_text
from tracemap.core.units import plural

_MAX_LINE = 400
_MOST_LINES = 40
"""The most lines of a failure's output that are shown."""
_NOT_LOADED = re.compile(r"error: Failed to load transform library module: (.*)")
_STACK_LINE = re.compile(r"\s*#\d+ 0x|PLEASE submit|Please report issues")
_OPERATION = re.compile(r"\S.*: note: see current operation:")
_MESSAGE_START = re.compile(r"\S.*?: (?:error|warning|note|remark): ")
_DIAGNOSTIC = re.compile(r"\S.*?: (?:error|warning): |LLVM ERROR: |.*: Assertion `")
_NO_ENTRY_POINT: Final = "outer module does not contain a vm.module op"
"""The compiler's error for a model that is empty because it has no public function."""
_KILL_SIGNALS: Final = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
_LIMIT_SIGNALS: Final = frozenset({signal.SIGXFSZ, signal.SIGXCPU})
_MOST_DIAGNOSTICS = 3
"""The most diagnostics shown for a crash, since earlier output may have nothing to do with it."""


def compiler_error(kind: type[TracemapError], status: int, output: str, prefix: str = "") -> TracemapError:
    """The error for a compiler that failed: of this kind, or `SystemLimit` if a limit ended it."""
    if -status in _LIMIT_SIGNALS:
        return SystemLimit(f"{prefix}{failure_message(status, '')}")  # its output has nothing to do with the limit
    return kind(f"{prefix}{failure_message(status, output)}")


def failure_message(status: int, output: str) -> str:
    """A sentence on how the compiler ended, with its output; for a crash the last diagnostics, without the stack."""
    if status < 0:
        return _crash(-status, output)
    lines = [_cut(line) for line in output.strip().splitlines() if not _STACK_LINE.match(line)]
    shown = list(_without_operations(lines))[:_MOST_LINES]
    if len(shown) < len(lines):
        shown.append(f"… {plural(len(lines) - len(shown), 'line')} more")
    text = "\n".join(shown).strip()
    hint = (
        " the model has no public function; make one public so that it can be called."
        if _NO_ENTRY_POINT in output
        else ""
    )
    return f"iree-compile failed (status {status}):{hint}\n{text or 'it printed nothing'}"


def is_ended_from_outside(status: int) -> bool:
    """Whether a limit, the system or the user ended the compiler, so that neither model nor flags are to blame."""
    return -status in _LIMIT_SIGNALS | _KILL_SIGNALS


def flags_complaint(flags: Sequence[str], output: str) -> str:
    """The flags that the compiler complains about, and its complaint in one line, which says nothing twice.

    >>> flags_complaint(["-O1", "--cpu=p9"], "'p9' is no processor\\n'p9' is no processor\\nLLVM ERROR: unknown")
    "--cpu=p9: 'p9' is no processor; LLVM ERROR: unknown"
    """
    lines = list(_without_carets(_TRY.sub("", output.partition("Stack dump:")[0]).splitlines()))
    names = {flag: [part for part in flag.split("=", 1) if len(part) > 1] for flag in flags}
    said: dict[str, None] = {}
    skipping = False
    for line in _without_operations(line for line in lines if line.strip() and not _STACK_LINE.match(line)):
        if start := _MESSAGE_START.match(line):
            skipping = start[0].endswith((": warning: ", ": note: "))
        names_flag = any(part in line for parts in names.values() for part in parts)
        if not skipping or names_flag or _COMPLAINT.match(line):
            said[start_of(_PROGRAM.sub("", line).strip(), _MAX_COMPLAINT)] = None
    text = start_of(_JOINED.sub("; ", "\n".join(said)).replace("\n", " "), _MAX_LINE)
    blamed = [flag for flag, parts in names.items() if any(part in text for part in parts)]
    return f"{' '.join(blamed or flags)}: {text or 'it does not say why'}"


_TRY: Final = re.compile(r"\s*(?:Try|See): .*(?:--help'?)")
_COMPLAINT: Final = re.compile(r"LLVM ERROR|ERROR: ")
_PROGRAM: Final = re.compile(r"^(?:iree-compile: |(?:\S*\.mlir:\d+:\d+|<unknown>:0): error: )")
_JOINED: Final = re.compile(r"(?<![.?!:;])\n")
"""The end of a line that is not the end of a sentence."""
_MAX_COMPLAINT: Final = 200


def _without_carets(lines: Sequence[str]) -> Iterator[str]:
    """Drop the lines of the source that messages quote, and the carets below them."""
    carets = {index for index, line in enumerate(lines) if line.strip() and not line.strip(" ^~")}
    return (line for index, line in enumerate(lines) if index not in carets and index + 1 not in carets)


def _without_operations(lines: Iterable[str]) -> Iterator[str]:
    """Drop the printed operations, which may be whole modules as the passes changed them."""
    skipping = False
    for line in lines:
        if _MESSAGE_START.match(line):
            skipping = _OPERATION.match(line) is not None
        if not skipping:
            yield line


def _crash(number: int, output: str) -> str:
    """The signal that ended the compiler, advice, and its last diagnostics."""
    if number == signal.SIGXCPU:
        advice = "at the limit of processor time; raise it (`ulimit -t` shows it in seconds)"
    elif number in _LIMIT_SIGNALS:
        advice = "at a limit of the shell; raise it (`ulimit -f` shows the limit for files)"
    elif number == signal.SIGKILL and resource.getrlimit(resource.RLIMIT_CPU)[1] != resource.RLIM_INFINITY:
        advice = (
            "from outside, probably because memory ran out or the processor time of `ulimit -t` was used up; raise "
            "that limit, or rerun with more memory or a smaller model"
        )
    elif number in _KILL_SIGNALS:
        advice = "from outside, probably because memory ran out; rerun with more memory or a smaller model"
    else:
        advice = "so it crashed; change the model or the flags, or report the crash to IREE with the model"
    diagnostics = [_cut(line) for line in dict.fromkeys(output.splitlines()) if _DIAGNOSTIC.match(line)]
    text = "\n".join(diagnostics[-_MOST_DIAGNOSTICS:])
    return f"iree-compile {signal_text(number)}, {advice}" + (f"; its last messages:\n{text}" if text else "")


def _cut(line: str) -> str:
    return line if len(line) <= _MAX_LINE else line[: _MAX_LINE - 1] + "…"


def warnings_in(output: str) -> tuple[str, ...]:
    """The warnings of a successful run, a line for each, without the explanations that follow them."""
    lines = output.splitlines()
    warnings = []
    for index, line in enumerate(lines):
        if (warning := _WARNING.match(line)) is not None:
            text = warning["text"].rstrip()
            more = lines[index + 1].strip() if text.endswith(":") and index + 1 < len(lines) else ""
            warnings.append(_cut(f"{text} {more}".strip()))
    return tuple(dict.fromkeys(warnings))


_WARNING = re.compile(r"(?:\S.*?:\d+:\d+: )?(?:warning|WARNING): (?P<text>.*)")


def missing_library_message(output: str) -> str:
    """A sentence if iree-compile ignored a transform library that it cannot load, since it still succeeds; else ""."""
    match = _NOT_LOADED.search(output)
    if not match:
        return ""
    error_line = next((line for line in output.splitlines() if "error: " in line), "")
    return f"iree-compile cannot load the transform library {match[1]} and would ignore it: {error_line}"
