"""Reserve the name of a run, so that no other recording takes it; leftovers of a killed recording are replaced.

The profile, which the program writes while it runs, reserves the name: its file exists and is locked while the
recording lives. An extended attribute marks it as ours. A profile without the mark belongs to the user and is never
replaced.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tracemap.core.errors import TargetExists, TargetUnwritable
from tracemap.core.files import is_stream
from tracemap.core.process.signals import exit_handler
from tracemap.core.process.temporary_files import temporary_folder
from tracemap.runs.runfile import check_target

PROFILE_SUFFIX: Final = ".ireeprof"
_MARK = "user.tracemap"


@dataclass(frozen=True, slots=True)
class Reservation:
    """The name of a run, and the path of its profile until then: next to the run, to be found if tracemap is killed."""

    output: Path
    profile: Path


@contextmanager
def reserve_run(output: Path, *, force: bool, keep: bool = False) -> Iterator[Reservation]:
    """Reserve the name of a run; the profile is removed at the end, or kept.

    Raises:
        TargetExists: the run exists and `force` is not set, or another recording is writing it.
        TargetUnwritable: it cannot be written.
    """
    check_target(output, force=force)
    if is_stream(output):
        with temporary_folder() as folder:
            yield Reservation(output, folder / f"run{PROFILE_SUFFIX}")
        return
    with _folder_lock(output.parent):
        claim = _try_claim(output, force=force)
    if claim is None:
        raise TargetExists(f"{output}: another recording is writing this run; wait for it, or choose another name")
    with claim.hold(keep=keep) as reservation:
        yield reservation


@contextmanager
def reserve_next_run(folder: Path, *, keep: bool = False) -> Iterator[Reservation]:
    """Reserve the next free number in a bundle's folder of runs.

    The folder is created, and removed if it stays empty.

    Raises:
        TargetUnwritable: it cannot be written.
    """
    claim = None
    try:
        while claim is None:
            folder.mkdir(exist_ok=True)
            with _folder_lock(folder):
                if folder.is_dir():  # another recording may have removed it
                    taken = [path.name for path in folder.iterdir() if path.suffix != PROFILE_SUFFIX]
                    free = (folder / f"{recording}.parquet" for recording in free_recording_names(taken))
                    claim = next(filter(None, (_try_claim(output, force=False) for output in free)))
    except OSError as error:
        raise TargetUnwritable(f"{folder}: cannot be written ({error.strerror}); name a run with -o") from error
    try:
        with exit_handler(lambda: _remove_if_empty(folder)), claim.hold(keep=keep) as reservation:
            yield reservation
    finally:
        _remove_if_empty(folder)


def _remove_if_empty(folder: Path) -> str:
    """Remove the folder if it is empty; returns no message."""
    with suppress(OSError), _folder_lock(folder):  # not empty: the usual case
        folder.rmdir()
    return ""


def recording_name(name: str) -> str:
    """The recording that a file in a bundle's folder of runs belongs to; empty if none.

    >>> recording_name("run-004.parquet"), recording_name("run-004-1.csv"), recording_name("notes.txt")
    ('run-004', 'run-004', '')
    """
    match = _RECORDING.match(name)
    return match[0] if match else ""


def free_recording_names(names: Iterable[str]) -> Iterator[str]:
    """Free names of recordings, numbered after the highest number in `names`."""
    last = max((int(recording_name(name).removeprefix("run-") or 0) for name in names), default=0)
    return (f"run-{number:03}" for number in itertools.count(last + 1))


_RECORDING = re.compile(r"run-\d+(?=[-.]|$)")
"""A repeated recording writes several runs: `run-004-1` and so on."""


@contextmanager
def _folder_lock(folder: Path) -> Iterator[None]:
    """Lock a folder while names are chosen in it; no lock on file systems without locks."""
    with ExitStack() as stack:
        with suppress(OSError):
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, lock)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


# ---- claim


@dataclass(frozen=True, slots=True)
class _Claim:
    """A reserved name: the run, its profile, and the profile's lock."""

    output: Path
    profile: Path
    lock: int

    @contextmanager
    def hold(self, *, keep: bool) -> Iterator[Reservation]:
        """Hold the name. At the end the profile is removed, unless `keep` is set or it is all that was recorded."""
        try:
            with exit_handler(self._end_early):
                yield Reservation(self.output, self.profile)
        except BaseException as error:
            if message := self._end_early():
                error.add_note(message)
            raise
        else:
            if keep and os.fstat(self.lock).st_size:
                with suppress(OSError):  # hand it to the user: without the mark no recording replaces it
                    os.removexattr(self.lock, _MARK)
            else:
                self.profile.unlink(missing_ok=True)
        finally:
            os.close(self.lock)

    def _end_early(self) -> str:
        """The message that says where the recorded events are; remove an empty profile."""
        if not (os.fstat(self.lock).st_size and self.profile.exists()):
            self.profile.unlink(missing_ok=True)
            return ""
        return (
            f"the events recorded until then are in {self.profile}, which tracemap attribute reads and the next "
            "recording of this name replaces"
        )


def _try_claim(output: Path, *, force: bool) -> _Claim | None:
    """Reserve a name if no other recording has it; None if one has. `force` also replaces a user's profile."""
    for number in itertools.count(1):
        profile = output.with_name(f"{output.name}{f'.{number}' if number > 1 else ''}{PROFILE_SUFFIX}")
        while (lock := _open_profile(profile, any_profile=force)) >= 0:
            if not _try_lock(lock):
                os.close(lock)
                return None
            if os.fstat(lock).st_nlink:  # else another recording has just removed it
                os.ftruncate(lock, 0)
                return _Claim(output, profile, lock)
            os.close(lock)
    raise AssertionError("the names of profiles are endless")


def _try_lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: the file's existence must do
        return True
    return True


def _open_profile(profile: Path, *, any_profile: bool) -> int:
    """Open a new profile, or one left by a killed recording. -1: the existing profile is not ours."""
    try:
        lock = os.open(profile, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except FileExistsError:
        return _open_leftover(profile, any_profile=any_profile)
    except OSError as error:
        raise TargetUnwritable(f"{profile}: cannot be created: {error.strerror}") from error
    with suppress(OSError):  # not every file system supports extended attributes
        os.setxattr(lock, _MARK, b"recording")
    return lock


def _open_leftover(profile: Path, *, any_profile: bool) -> int:
    try:
        lock = os.open(profile, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return -1
    try:
        if os.fstat(lock).st_size and not any_profile:  # an empty profile may not have got its mark yet
            os.getxattr(lock, _MARK)
    except OSError:
        os.close(lock)
        return -1
    return lock
