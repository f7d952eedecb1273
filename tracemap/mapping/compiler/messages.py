"""What iree-compile printed where it failed, or went on without something, as one would tell it."""

from __future__ import annotations

import re
import resource
import signal
from collections.abc import Iterable, Iterator
from typing import Final

from tracemap.errors import SystemLimit, TracemapError
from tracemap.toolchain import ended_by
from tracemap.units import plural

_MAX_LINE = 400
_MOST_LINES = 40
"""Of a failure."""
_NOT_LOADED = re.compile(r"error: Failed to load transform library module: (.*)")
_STACK_LINE = re.compile(r"\s*#\d+ 0x|PLEASE submit|Please report issues")
_OPERATION = re.compile(r"\S.*: note: see current operation:")
_NEXT = re.compile(r"\S.*?: (?:error|warning|note|remark): ")
_DIAGNOSTIC = re.compile(r"\S.*?: (?:error|warning): |LLVM ERROR: |.*: Assertion `")
_NOTHING_TO_CALL: Final = "outer module does not contain a vm.module op"
"""What is said of a model of which nothing is left, since nothing in it can be called from outside."""
_BY_OTHERS: Final = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
_BY_LIMITS: Final = frozenset({signal.SIGXFSZ, signal.SIGXCPU})
_MOST_DIAGNOSTICS = 3
"""Of a crash: what was said before it need not have anything to do with it."""


def failed(kind: type[TracemapError], status: int, said: str, before: str = "") -> TracemapError:
    """The error to raise where the compiler failed, `before` its sentence: of this kind, unless a limit ended it."""
    if -status in _BY_LIMITS:
        return SystemLimit(f"{before}{failure(status, '')}")  # what it said before has nothing to do with it
    return kind(f"{before}{failure(status, said)}")


def failure(status: int, said: str) -> str:
    """A sentence on how the compiler ended, and its own words: of a crash the last diagnostics, without its stack."""
    if status < 0:
        return _crash(-status, said)
    lines = [_cut(line) for line in said.strip().splitlines() if not _STACK_LINE.match(line)]
    shown = list(_without_operations(lines))[:_MOST_LINES]
    if len(shown) < len(lines):
        shown.append(f"… {plural(len(lines) - len(shown), 'line')} more")
    words = "\n".join(shown).strip()
    why = " no function of the model can be called from outside; make one public." if _NOTHING_TO_CALL in said else ""
    return f"iree-compile failed (status {status}):{why}\n{words or 'it printed nothing'}"


def _without_operations(lines: Iterable[str]) -> Iterator[str]:
    """What is said without the operations that it is said of, the whole module among them, as passes have made them."""
    left_out = False
    for line in lines:
        if _NEXT.match(line):
            left_out = _OPERATION.match(line) is not None
        if not left_out:
            yield line


def _crash(number: int, said: str) -> str:
    """That the compiler has crashed, or was killed, what can be done, and its last diagnostics."""
    if number == signal.SIGXCPU:
        why = "by the limit of processor time: raise it (`ulimit -t` shows it in seconds)"
    elif number in _BY_LIMITS:
        why = "by a limit of the shell: raise it (`ulimit -f` shows that of files)"
    elif number == signal.SIGKILL and resource.getrlimit(resource.RLIMIT_CPU)[1] != resource.RLIM_INFINITY:
        why = (
            "from outside, as it is where memory is short or the processor time of `ulimit -t` is used up: raise that "
            "limit, or run it again with more memory or a smaller model"
        )
    elif number in _BY_OTHERS:
        why = "from outside, as it is where memory is short: run it again, with more memory or a smaller model"
    else:
        why = "a crash of its own: change what it compiles, or report it to IREE's developers with the model"
    found = [_cut(line) for line in dict.fromkeys(said.splitlines()) if _DIAGNOSTIC.match(line)]
    words = "\n".join(found[-_MOST_DIAGNOSTICS:])
    return f"iree-compile {ended_by(number)}, {why}" + (f"; before, it said:\n{words}" if words else "")


def _cut(line: str) -> str:
    return line if len(line) <= _MAX_LINE else line[: _MAX_LINE - 1] + "…"


def warnings_in(said: str) -> tuple[str, ...]:
    """What iree-compile warned of though it ended well, a line each; the explanations behind them are left out."""
    lines = said.splitlines()
    found = []
    for number, line in enumerate(lines):
        if (warning := _WARNING.match(line)) is not None:
            text = warning["text"].rstrip()
            more = lines[number + 1].strip() if text.endswith(":") and number + 1 < len(lines) else ""
            found.append(_cut(f"{text} {more}".strip()))
    return tuple(dict.fromkeys(found))


_WARNING = re.compile(r"(?:\S.*?:\d+:\d+: )?(?:warning|WARNING): (?P<text>.*)")


def not_loaded(said: str) -> str:
    """A sentence on the library of transforms that iree-compile went on without, as it ends well then; "": on none."""
    found = _NOT_LOADED.search(said)
    if not found:
        return ""
    why = next((line for line in said.splitlines() if "error: " in line), "")
    return f"iree-compile cannot load the transform library {found[1]}, and would go on without it: {why}"
