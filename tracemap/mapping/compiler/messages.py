"""What iree-compile printed where it failed, or went on without something, as one would tell it."""

from __future__ import annotations

import re

_MAX_LINE = 400
_NOT_LOADED = re.compile(r"error: Failed to load transform library module: (.*)")
_STACK_LINE = re.compile(r"\s*#\d+ 0x|PLEASE submit|Please report issues")


def failure(status: int, said: str) -> str:
    """A sentence on how the compiler ended, and its own words without the stack of a crash."""
    lines = [line for line in said.splitlines() if not _STACK_LINE.match(line)]
    words = "\n".join(line if len(line) <= _MAX_LINE else line[:_MAX_LINE] + " …" for line in lines).strip()
    ended = f"was ended by signal {-status}" if status < 0 else f"failed (status {status})"
    return f"iree-compile {ended}:\n{words or 'it printed nothing'}"


def not_loaded(said: str) -> str:
    """A sentence on the library of transforms that iree-compile went on without, as it ends well then; "": on none."""
    found = _NOT_LOADED.search(said)
    if not found:
        return ""
    why = next((line for line in said.splitlines() if "error: " in line), "")
    return f"iree-compile cannot load the transform library {found[1]}, and would go on without it: {why}"
