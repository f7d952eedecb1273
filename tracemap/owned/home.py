"""The folder of this process, and everything that is cleared when it ends."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import select
import shutil
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

from tracemap.errors import TargetUnwritable, TracemapError
from tracemap.owned.ending import undisturbed

# ---- ledger
#
# What a process leaves outside of its own folder, noted so that it can be cleared by itself or by another one.
#
# A note stands in the ledger before what it tells of is made, and stays there; what is gone needs no clearing. Names
# hold a random part, so that they are of nobody else later.


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


# ---- home
#
# The folder of this process: what lies in it or is noted in it is cleared, by this process or by a later one.
#
# The folder is made with the first thing that needs it and goes with the last. It is locked as long as its process
# lives; a process that makes its own first clears those of this user that nobody has locked. `ledger` in it notes what
# lies elsewhere; a folder without one is removed only if it is empty.


_PREFIX = "tracemap-home-"
_NAME = re.compile(_PREFIX + "[0-9a-f]{16}")
_LEDGER = "ledger"
_ATTEMPTS = 10
_MOST_OF_NAME = 200
"""Bytes; names of files have at most 255."""


def fresh_name() -> str:
    """A word that nothing else is called by."""
    return os.urandom(8).hex()


class Home:
    """A folder, its lock, and its ledger."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self.users = 0
        self._lock = lock
        self._ledger = os.open(path / _LEDGER, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def note(self, *note: str) -> None:
        """Write down what is about to be made elsewhere; where there is no room for a note, it is made without."""
        with suppress(OSError):
            os.write(self._ledger, line_of(note))

    def clear(self) -> None:
        """Remove what is noted."""
        with suppress(OSError):
            clear(notes_in((self.path / _LEDGER).read_bytes()))

    def remove(self) -> None:
        """Remove the folder with all that is in it; another thread may still be writing there."""
        for _ in range(_ATTEMPTS):
            shutil.rmtree(self.path, ignore_errors=True)
            if not self.path.exists():
                break
        os.close(self._ledger)
        os.close(self._lock)


class _State:
    """The folder that this process has now, and the places that it has cleared of others' leavings."""

    lock = threading.Lock()
    home: Home | None = None
    closed = False
    cleared: ClassVar[set[str]] = set()


def _forget() -> None:
    """A forked process has a folder of its own: its parent goes on with the one that there was."""
    _State.lock, _State.home = threading.Lock(), None


os.register_at_fork(after_in_child=_forget)


def enter() -> Home:
    """The folder of this process, which stays until `leave` is called as often.

    Raises:
        OSError: none can be made.
    """
    with undisturbed(), _State.lock:
        if _State.closed:
            raise OSError("this process is about to end")
        if _State.home is None:
            _State.home = _made()
        _State.home.users += 1
        return _State.home


def leave(home: Home) -> None:
    """Say that this user of the folder has nothing in it any more."""
    with undisturbed(), _State.lock:
        home.users -= 1
        if not home.users and home is _State.home:
            _State.home = None
            home.remove()


def clear_home() -> None:
    """Remove all that this process has not removed yet: it is about to end."""
    with _State.lock:
        _State.closed = True
        home, _State.home = _State.home, None
    if home is not None:
        home.clear()
        home.remove()


# ---- making one, and clearing those of others


def _made() -> Home:
    import tempfile

    place = tempfile.gettempdir()
    if place not in _State.cleared:
        _State.cleared.add(place)
        clear_abandoned(Path(place))
    for _ in range(_ATTEMPTS):
        path = Path(place, _PREFIX + fresh_name())
        path.mkdir(mode=0o700)
        lock = _locked(path)
        if lock >= 0:
            return Home(path, lock)
    raise OSError(f"a folder in {place} is removed as soon as it is made")


def clear_abandoned(place: Path) -> None:
    """Remove the folders of processes that were killed, and what is noted in them."""
    with suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if _NAME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                _clear_if_abandoned(Path(entry.path))


def _clear_if_abandoned(path: Path) -> None:
    lock = _locked(path)
    if lock < 0:
        return
    try:
        clear(notes_in(_read_ledger(lock)))
        shutil.rmtree(path, ignore_errors=True)
    except FileNotFoundError:  # killed before it noted anything, or not one of ours
        with suppress(OSError):
            path.rmdir()
    except OSError:
        return
    finally:
        os.close(lock)


def _read_ledger(folder: int) -> bytes:
    with os.fdopen(os.open(_LEDGER, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder), "rb") as file:
        return file.read()


def _locked(path: Path) -> int:
    """The lock of a folder of this user; -1 where somebody has it, or the folder is gone or not this user's."""
    try:
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return -1
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        found, there = os.fstat(lock), path.lstat()
        # Whoever cleared it between the two has taken it away: the lock is one of nothing then.
        if found.st_uid == os.geteuid() and (found.st_dev, found.st_ino) == (there.st_dev, there.st_ino):
            return lock
    except OSError:
        pass
    os.close(lock)
    return -1


# ---- temporary things


@contextmanager
def temporary_folder(place: Path | None = None) -> Iterator[Path]:
    """A folder that is removed when it is left; in this process's own, or elsewhere.

    Raises:
        TargetUnwritable: there is no room for it, or for what is written into it: whoever fails for that, a program
            that was started too, gives way to this error.
    """
    home = None
    try:
        home = enter()
        folder = (place or home.path) / f"tracemap-{fresh_name()}"
        if place is not None:
            home.note("path", str(folder))
        folder.mkdir(mode=0o700)
    except OSError as error:
        if home is not None:
            leave(home)
        raise TargetUnwritable(
            f"{error.filename or 'a temporary folder'}: cannot be made ({error.strerror or error}); name a folder that "
            "has room by TMPDIR"
        ) from error
    try:
        yield folder
    except (OSError, TracemapError) as error:
        if isinstance(error, TargetUnwritable) or not _is_for_want_of_room(error, folder):
            raise
        raise TargetUnwritable(
            f"{folder.parent.parent}: its disk is full, and temporary files go there; name a folder that has room by "
            "TMPDIR"
        ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        leave(home)


_WANTS_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_LITTLE_BYTES = 4_000_000


def _is_for_want_of_room(error: Exception, folder: Path) -> bool:
    """Whether an error, or what a program said, is of a full disk, and the disk of a folder is full."""
    if isinstance(error, OSError):
        wants = error.errno in _WANTS_ROOM
    else:
        wants = any(os.strerror(number) in str(error) for number in _WANTS_ROOM)
    return wants and shutil.disk_usage(folder).free < _LITTLE_BYTES


@contextmanager
def noted(*note: str) -> Iterator[None]:
    """Note what is made and cleared inside, where there is room for notes: results do not depend on it."""
    home = None
    with suppress(OSError):
        home = enter()
        home.note(*note)
    try:
        yield
    finally:
        if home is not None:
            leave(home)


@contextmanager
def beside(target: Path) -> Iterator[Path]:
    """A name beside a target, for what is to take its place; what is there under it in the end is removed."""
    temporary = target.with_name(f".{start_of_name(target.name)}.{fresh_name()}.tmp")
    with noted("path", str(temporary.absolute())):
        try:
            yield temporary
        finally:
            remove(temporary)


def take_place(folder: Path, target: Path) -> None:
    """Give a folder its name, unless something has it already.

    Raises:
        FileExistsError: something has.
    """
    try:
        folder.rename(target)  # takes the place of an empty folder only
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from error
        raise


def start_of_name(name: str) -> str:
    """As much of a file's name as leaves room for more: one that is as long as may be has temporary names too."""
    return os.fsencode(name)[:_MOST_OF_NAME].decode(errors="ignore")


@contextmanager
def moved_away(target: Path) -> Iterator[Path]:
    """Move what is at a target away, for another to take its place; put it back where none did, else remove it."""
    old = target.with_name(f".{start_of_name(target.name)}.{fresh_name()}.old")
    notes: Note = ("moved", str(old.absolute()), str(target.absolute()))
    with undisturbed(), noted(*notes):
        if target.exists():
            target.rename(old)
        try:
            yield old
        finally:
            clear([notes])
