"""The names that a recording takes, so that no other takes them too; what a recording that was killed left is replaced.

The profile, which the program writes as it runs, reserves the run's name: its file is there and locked as long as the
recording lives. It is marked as ours, so that it is told from a profile that somebody made, which nothing replaces.
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

from tracemap.errors import TargetExists, TargetUnwritable
from tracemap.measurements.runfile import check_target
from tracemap.outputs import is_stream
from tracemap.owned.ending import last_words
from tracemap.owned.home import temporary_folder

PROFILE_SUFFIX: Final = ".ireeprof"
_MARK = "user.tracemap"


@dataclass(frozen=True, slots=True)
class Reservation:
    """A run's name, and where its profile lies until it is written: beside it, to be found when tracemap is killed."""

    output: Path
    profile: Path


@contextmanager
def reserved(output: Path, *, force: bool, keep: bool = False) -> Iterator[Reservation]:
    """Take the name of a run; its profile goes in the end, or is kept.

    Raises:
        TargetExists: the run exists and `force` is not set, or another recording is making it.
        TargetUnwritable: it cannot be written.
    """
    check_target(output, force=force)
    if is_stream(output):
        with temporary_folder() as folder:
            yield Reservation(output, folder / f"run{PROFILE_SUFFIX}")
        return
    with _alone_in(output.parent):
        claim = _claimed(output, force=force)
    if claim is None:
        raise TargetExists(f"{output}: another recording is making it; wait for its end, or choose another name")
    with claim.held(keep=keep) as reservation:
        yield reservation


@contextmanager
def reserved_number(folder: Path, *, keep: bool = False) -> Iterator[Reservation]:
    """Take the next free number in a bundle's folder of runs, which is made, and goes where it stays empty.

    Raises:
        TargetUnwritable: it cannot be written.
    """
    claim = None
    try:
        while claim is None:
            folder.mkdir(exist_ok=True)
            with _alone_in(folder):
                if folder.is_dir():  # the last one to leave may have removed it
                    claim = _next_claim(folder)
    except OSError as error:
        raise TargetUnwritable(f"{folder}: cannot be written ({error.strerror}); name a run with -o") from error
    try:
        with last_words(lambda: _remove_if_empty(folder)), claim.held(keep=keep) as reservation:
            yield reservation
    finally:
        _remove_if_empty(folder)


def _remove_if_empty(folder: Path) -> str:
    """It is nothing to speak of."""
    with suppress(OSError), _alone_in(folder):  # not empty: the usual case
        folder.rmdir()
    return ""


def _next_claim(folder: Path) -> _Claim:
    names = [path.name for path in folder.iterdir() if path.suffix != PROFILE_SUFFIX]
    claims = (_claimed(folder / f"{recording}.parquet", force=False) for recording in free_recordings(names))
    return next(claim for claim in claims if claim is not None)


def recording_of(name: str) -> str:
    """The recording that a file in a bundle's folder of runs is of; empty where it is of none.

    >>> recording_of("run-004.parquet"), recording_of("run-004-1.csv"), recording_of("notes.txt")
    ('run-004', 'run-004', '')
    """
    found = _RECORDING.match(name)
    return found[0] if found else ""


def free_recordings(names: Iterable[str]) -> Iterator[str]:
    """What recordings may be called behind all that files of these names are of: the last number is the newest."""
    last = max((_number_of(name) for name in names), default=0)
    return (f"run-{number:03}" for number in itertools.count(last + 1))


def _number_of(name: str) -> int:
    """The number of the recording that a file in a bundle's folder of runs is of; 0 where it is of none."""
    return int(recording_of(name).removeprefix("run-") or 0)


_RECORDING = re.compile(r"run-\d+(?=[-.]|$)")
"""Several runs are of one recording where it is repeated: `run-004-1` and so on."""


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Names are taken in a folder by one process after another; where folders cannot be locked, at once."""
    with ExitStack() as stack:
        with suppress(OSError):
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, lock)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


# ---- one name


@dataclass(frozen=True, slots=True)
class _Claim:
    """A name that was taken: the run, its profile and the lock of that."""

    output: Path
    profile: Path
    lock: int

    @contextmanager
    def held(self, *, keep: bool) -> Iterator[Reservation]:
        """Keep the name; in the end the profile goes, unless it is to stay or all that is left of what was measured."""
        try:
            with last_words(self._end_early):
                yield Reservation(self.output, self.profile)
        except BaseException as error:
            if said := self._end_early():
                error.add_note(said)
            raise
        else:
            self._end_well(keep=keep)
        finally:
            os.close(self.lock)

    def _end_well(self, *, keep: bool) -> None:
        """A profile that is kept is the user's from now on, whom no recording takes it from; an empty one is none."""
        if keep and os.fstat(self.lock).st_size:
            with suppress(OSError):
                os.removexattr(self.lock, _MARK)
        else:
            self.profile.unlink(missing_ok=True)

    def _end_early(self) -> str:
        """Where something was recorded, say so; where nothing was, there is no profile."""
        if not (os.fstat(self.lock).st_size and self.profile.exists()):
            self.profile.unlink(missing_ok=True)
            return ""
        return (
            f"what was recorded until then is in {self.profile}, which tracemap attribute reads and the next recording "
            "of this name replaces"
        )


def _claimed(output: Path, *, force: bool) -> _Claim | None:
    """Take the name of a run, where no other recording has it; by force also with a profile that is not ours."""
    for profile in _profiles(output):
        while (lock := _opened(profile, any_profile=force)) >= 0:
            if not _is_locked(lock):
                os.close(lock)
                return None
            if os.fstat(lock).st_nlink:  # else another recording ended meanwhile, and took it away
                os.ftruncate(lock, 0)
                return _Claim(output, profile, lock)
            os.close(lock)
    raise AssertionError("there is no last name")


def _profiles(output: Path) -> Iterator[Path]:
    yield output.with_name(output.name + PROFILE_SUFFIX)
    yield from (output.with_name(f"{output.name}.{number}{PROFILE_SUFFIX}") for number in itertools.count(2))


def _is_locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # no locks here: that the file is there has to do
        return True
    return True


def _opened(profile: Path, *, any_profile: bool) -> int:
    """A profile to write: a new one, or one that a recording was killed over. -1: somebody else's is there."""
    try:
        lock = os.open(profile, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except FileExistsError:
        return _left_behind(profile, any_profile=any_profile)
    except OSError as error:
        raise TargetUnwritable(f"{profile}: cannot be made: {error.strerror}") from error
    with suppress(OSError):  # not every file system takes marks
        os.setxattr(lock, _MARK, b"recording")
    return lock


def _left_behind(profile: Path, *, any_profile: bool) -> int:
    try:
        lock = os.open(profile, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return -1
    try:
        if os.fstat(lock).st_size and not any_profile:  # an empty one may have had no time for its mark
            os.getxattr(lock, _MARK)
    except OSError:
        os.close(lock)
        return -1
    return lock
