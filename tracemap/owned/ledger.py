"""What a process leaves outside of its own folder, noted so that it can be cleared by itself or by another one.

A note stands in the ledger before what it tells of is made, and stays there; what is gone needs no clearing. Names hold
a random part, so that they are of nobody else later.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

Note = tuple[str, ...]
"""`path NAME`: a file or folder. `moved NAME TARGET`: what was a target until another takes its place. `child PID START
BOOT KIND`: a program, the leader of a group of its own where its kind is `group`."""

_GONE_MS = 5000


def line_of(note: Note) -> bytes:
    """A note as a line of the ledger."""
    return json.dumps(note).encode() + b"\n"


def notes_in(ledger: bytes) -> Iterator[Note]:
    """The notes of a ledger; the last line may have been cut."""
    for line in ledger.splitlines():
        with suppress(ValueError):
            note: Any = json.loads(line)
            if isinstance(note, list) and all(isinstance(word, str) for word in note):
                yield tuple(note)


def clear(notes: Iterable[Note]) -> None:
    """Remove what notes tell of: programs first, since they write to the rest."""
    for note in sorted(notes, key=lambda note: note[:1] != ("child",)):
        with suppress(OSError, ValueError, OverflowError):  # a note that makes no sense clears nothing
            _clear_one(note)


def _clear_one(note: Note) -> None:
    match note:
        case ("child", pid, started, boot, kind):
            _end_child(int(pid), (started, boot), group=kind == "group")
        case ("path", name):
            remove(Path(name))
        case ("moved", name, target):
            _put_back(Path(name), Path(target))


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there; links are not followed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def _put_back(moved: Path, target: Path) -> None:
    """What was about to be replaced and was not is the target again."""
    with suppress(OSError):
        if moved.exists() and not os.path.lexists(target):
            moved.rename(target)
    remove(moved)


# ---- programs


def child_note(pid: int, *, group: bool) -> Note:
    """A note of a program that this process has just started."""
    return ("child", str(pid), *_identity(pid), "group" if group else "alone")


def _identity(pid: int) -> tuple[str, str]:
    """What tells a process from a later one of its number: when it began, and in which run of the system."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    return fields[19], Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _end_child(pid: int, identity: tuple[str, str], *, group: bool) -> None:
    """Kill a program that is still the noted one, and wait until it is gone."""
    handle = os.pidfd_open(pid)  # from here on the number is not another process's
    try:
        if _identity(pid) != identity:
            return
        if group:
            os.killpg(pid, signal.SIGKILL)
        else:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        gone = select.poll()
        gone.register(handle, select.POLLIN)
        gone.poll(_GONE_MS)
    finally:
        os.close(handle)
