"""The temporary folder of this process, and a ledger of everything to clean up."""

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

from tracemap.core.errors import TargetUnwritable, TracemapError
from tracemap.core.process.signals import signals_deferred

# ---- ledger
#
# Files and programs outside of this process's own folder, noted so that this process or another one can clear them.
#
# A note is written before its file or program is created, and stays; clearing it again does no harm. Names have a
# random part, so that no one else uses them later.


Note = tuple[str, ...]
"""`path NAME`: a file or folder. `moved NAME TARGET`: the old content of a target that is being replaced. `child PID
START BOOT KIND`: a program; it leads its own process group if KIND is `group`."""

_WAIT_MS = 5000


def line_of(note: Note) -> bytes:
    """A note as a line of the ledger."""
    return json.dumps(note).encode() + b"\n"


def notes_in(ledger: bytes) -> Iterator[Note]:
    """The notes of a ledger; the last line may be incomplete."""
    for line in ledger.splitlines():
        with suppress(ValueError):
            note: Any = json.loads(line)
            if isinstance(note, list) and all(isinstance(word, str) for word in note):
                yield tuple(note)


def clear(notes: Iterable[Note]) -> None:
    """Clear everything noted: programs first, since they write to the files."""
    for note in sorted(notes, key=lambda note: note[:1] != ("child",)):
        with suppress(OSError, ValueError, OverflowError):  # ignore an invalid note
            match note:
                case ("child", pid, started, boot, kind):
                    _end_child(int(pid), (started, boot), group=kind == "group")
                case ("path", name):
                    remove(Path(name))
                case ("moved", name, target):
                    with suppress(OSError):  # restore the old content of a target that was not replaced
                        if Path(name).exists() and not os.path.lexists(target):
                            Path(name).rename(target)
                    remove(Path(name))


def remove(path: Path) -> None:
    """Remove a file or folder if it exists; links are not followed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


# ---- programs


def child_note(pid: int, *, group: bool) -> Note:
    """The note of a program that this process has just started."""
    return ("child", str(pid), *_identity(pid), "group" if group else "alone")


def _identity(pid: int) -> tuple[str, str]:
    """Start time and boot id of a process, which distinguish it from a later process with the same id."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    return fields[19], Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _end_child(pid: int, identity: tuple[str, str], *, group: bool) -> None:
    """Kill a program if it is still the noted one, and wait until it is gone."""
    handle = os.pidfd_open(pid)  # from here on, the process id cannot be reused
    try:
        if _identity(pid) != identity:
            return
        if group:
            os.killpg(pid, signal.SIGKILL)
        else:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        gone = select.poll()
        gone.register(handle, select.POLLIN)
        gone.poll(_WAIT_MS)
    finally:
        os.close(handle)


# ---- home
#
# The folder of this process. This process, or a later one, removes it with its content and everything in its ledger.
#
# The folder is created by its first user and removed after its last. It is locked while its process lives. A process
# that creates its own folder first removes unlocked folders of the same user. A folder without a `ledger` file is
# removed only if it is empty.


_PREFIX = "tracemap-home-"
_NAME = re.compile(_PREFIX + "[0-9a-f]{16}")
_LEDGER = "ledger"
_ATTEMPTS = 10
_MOST_OF_NAME = 200
"""In bytes; file names have at most 255."""


def fresh_name() -> str:
    """A unique random name."""
    return os.urandom(8).hex()


class Home:
    """A folder, its lock, and its ledger."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self.users = 0
        self._lock = lock
        self._ledger = os.open(path / _LEDGER, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def note(self, *note: str) -> None:
        """Write a note before its file or program is created; without space for it, go on without a note."""
        with suppress(OSError):
            os.write(self._ledger, line_of(note))

    def clear(self) -> None:
        """Clear everything noted."""
        with suppress(OSError):
            clear(notes_in((self.path / _LEDGER).read_bytes()))

    def remove(self) -> None:
        """Remove the folder with its content; another thread may still be writing there."""
        for _ in range(_ATTEMPTS):
            shutil.rmtree(self.path, ignore_errors=True)
            if not self.path.exists():
                break
        os.close(self._ledger)
        os.close(self._lock)


class _Current:
    """The current folder of this process, and the temporary folders already cleaned of other processes' leftovers."""

    lock = threading.Lock()
    home: Home | None = None
    closed = False
    cleared: ClassVar[set[str]] = set()


def _forget() -> None:
    """After a fork, the child creates its own folder; the parent keeps the old one."""
    _Current.lock, _Current.home = threading.Lock(), None


os.register_at_fork(after_in_child=_forget)


def enter() -> Home:
    """The folder of this process; call `leave` once per call of `enter`.

    Raises:
        OSError: it cannot be created.
    """
    with signals_deferred(), _Current.lock:
        if _Current.closed:
            raise OSError("this process is about to end")
        if _Current.home is None:
            _Current.home = _create_home()
        _Current.home.users += 1
        return _Current.home


def leave(home: Home) -> None:
    """End one use of the folder; the last one removes it."""
    with signals_deferred(), _Current.lock:
        home.users -= 1
        if not home.users and home is _Current.home:
            _Current.home = None
            home.remove()


def clear_home() -> None:
    """Remove everything that this process has not removed yet, since it ends."""
    with _Current.lock:
        _Current.closed = True
        home, _Current.home = _Current.home, None
    if home is not None:
        home.clear()
        home.remove()


# ---- creating a folder, and clearing those of others


def _create_home() -> Home:
    import tempfile

    place = tempfile.gettempdir()
    if place not in _Current.cleared:
        _Current.cleared.add(place)
        clear_abandoned(Path(place))
    for _ in range(_ATTEMPTS):
        path = Path(place, _PREFIX + fresh_name())
        path.mkdir(mode=0o700)
        lock = _try_lock(path)
        if lock >= 0:
            return Home(path, lock)
    raise OSError(f"folders in {place} are removed as soon as they are created")


def clear_abandoned(place: Path) -> None:
    """Remove the folders of killed processes, and everything noted in them."""
    with suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if _NAME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                _clear_if_abandoned(Path(entry.path))


def _clear_if_abandoned(path: Path) -> None:
    lock = _try_lock(path)
    if lock < 0:
        return
    try:
        ledger = os.open(_LEDGER, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=lock)
        with os.fdopen(ledger, "rb") as file:
            clear(notes_in(file.read()))
        shutil.rmtree(path, ignore_errors=True)
    except FileNotFoundError:  # killed before the ledger was created, or not our folder
        with suppress(OSError):
            path.rmdir()
    except OSError:
        return
    finally:
        os.close(lock)


def _try_lock(path: Path) -> int:
    """Lock a folder of this user; -1 if someone else holds the lock, or the folder is gone or not this user's."""
    try:
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return -1
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        locked, present = os.fstat(lock), path.lstat()
        # Another process may have removed the folder before it was locked; then the lock is useless.
        if locked.st_uid == os.geteuid() and os.path.samestat(locked, present):
            return lock
    except OSError:
        pass
    os.close(lock)
    return -1


# ---- temporary files


@contextmanager
def temporary_folder(place: Path | None = None) -> Iterator[Path]:
    """A temporary folder, removed at the end of the block; in this process's own folder, or in `place`.

    Raises:
        TargetUnwritable: the disk is full, now or when files are written into the folder. This replaces the error
            that the full disk caused, even one of a started program.
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
            f"{error.filename or 'a temporary folder'}: cannot be created ({error.strerror or error}); set TMPDIR to a "
            "folder with free space"
        ) from error
    try:
        yield folder
    except (OSError, TracemapError) as error:
        if isinstance(error, TargetUnwritable) or not _is_disk_full(error, folder):
            raise
        raise TargetUnwritable(
            f"{folder.parent.parent}: the disk is full, and temporary files go there; set TMPDIR to a folder with free "
            "space"
        ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        leave(home)


_FULL_DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT})
_FULL_DISK_BYTES = 4_000_000


def _is_disk_full(error: Exception, folder: Path) -> bool:
    """Whether an error, or a program's message, reports a full disk, and the folder's disk really is full."""
    if isinstance(error, OSError):
        reports_full = error.errno in _FULL_DISK_ERRORS
    else:
        reports_full = any(os.strerror(number) in str(error) for number in _FULL_DISK_ERRORS)
    return reports_full and shutil.disk_usage(folder).free < _FULL_DISK_BYTES


@contextmanager
def noted_in_ledger(*note: str) -> Iterator[None]:
    """Note a file or program of this block, if there is space for a note; results do not depend on it."""
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
def temporary_sibling(target: Path) -> Iterator[Path]:
    """A temporary name next to a target, for its replacement; whatever has this name at the end is removed."""
    temporary = target.with_name(f".{name_prefix(target.name)}.{fresh_name()}.tmp")
    with noted_in_ledger("path", str(temporary.absolute())):
        try:
            yield temporary
        finally:
            remove(temporary)


def rename_into_place(folder: Path, target: Path) -> None:
    """Rename a folder to its final name, unless that exists.

    Raises:
        FileExistsError: it exists.
    """
    try:
        folder.rename(target)  # replaces only an empty folder
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from error
        raise


def name_prefix(name: str) -> str:
    """The beginning of a file name, short enough for a prefix and suffix of temporary names."""
    return os.fsencode(name)[:_MOST_OF_NAME].decode(errors="ignore")


@contextmanager
def moved_away(target: Path) -> Iterator[Path]:
    """Move a target away while it is replaced; at the end restore it if it was not replaced, else remove it."""
    old = target.with_name(f".{name_prefix(target.name)}.{fresh_name()}.old")
    notes: Note = ("moved", str(old.absolute()), str(target.absolute()))
    with signals_deferred(), noted_in_ledger(*notes):
        if target.exists():
            target.rename(old)
        try:
            yield old
        finally:
            clear([notes])
