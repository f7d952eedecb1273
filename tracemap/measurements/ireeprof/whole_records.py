"""An `.ireeprof` as a file: how far its records are whole, which those of a killed writer are not to the end."""

from __future__ import annotations

import shutil
import struct
from dataclasses import dataclass
from pathlib import Path

from tracemap.diagnostics import Diagnostic
from tracemap.errors import RunEmpty, RunInvalid
from tracemap.units import plural

_MAGIC = b"IRPF"
_FILE_HEADER_BYTES = 24
_FILE_LENGTH_OFFSET = 16


@dataclass(frozen=True, slots=True)
class WholeRecords:
    """How many bytes of an `.ireeprof` are whole records, its size, and whether its writer finished it."""

    end: int
    size: int
    finished: bool


def is_profile(path: Path) -> bool:
    """Whether a file begins as an `.ireeprof` does.

    Raises:
        RunInvalid: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError as error:
        raise RunInvalid(f"{path}: cannot be read: {error.strerror}") from error


def whole_records(profile: Path) -> WholeRecords:
    """Walk an `.ireeprof` from record to record.

    Raises:
        RunEmpty: not one record is whole, or there is no file: who has nothing to write makes none.
        RunInvalid: it is no `.ireeprof`, or cannot be read.
    """
    try:
        return _walked(profile)
    except FileNotFoundError as error:
        raise RunEmpty(f"{profile}: there is no such file: nothing was recorded") from error
    except OSError as error:
        raise RunInvalid(f"{profile}: cannot be read: {error.strerror}") from error


def _walked(profile: Path) -> WholeRecords:
    size = profile.stat().st_size
    if size == 0:
        raise RunEmpty(f"{profile}: the profile is empty: nothing was recorded before the program ended")
    with profile.open("rb") as file:
        head = file.read(_FILE_HEADER_BYTES)
        if not head.startswith(_MAGIC):
            raise RunInvalid(f"{profile}: not a profile of IREE (it does not begin with {_MAGIC.decode()})")
        end = _FILE_HEADER_BYTES
        # Every record begins with its length as a little-endian u64, itself included.
        while len(length_bytes := file.read(8)) == 8:
            (length,) = struct.unpack("<Q", length_bytes)
            if length < 8 or end + length > size:
                break
            end += length
            file.seek(end)
    if end == _FILE_HEADER_BYTES:
        raise RunEmpty(f"{profile}: the profile holds no record: nothing was recorded, or the device cannot profile")
    (declared,) = struct.unpack_from("<Q", head, _FILE_LENGTH_OFFSET)
    return WholeRecords(end, size, finished=declared == end == size)


def copy_whole_records(profile: Path, target: Path) -> Diagnostic | None:
    """Copy the whole records of a profile that its writer did not finish; None, and no copy, if it did.

    Raises:
        RunEmpty: not one record is whole.
        RunInvalid: it is no `.ireeprof`.
    """
    whole = whole_records(profile)
    if whole.finished:
        return None
    shutil.copyfile(profile, target)
    with target.open("r+b") as file:
        file.truncate(whole.end)
        file.seek(_FILE_LENGTH_OFFSET)
        file.write(struct.pack("<Q", whole.end))
    return Diagnostic(
        "run-truncated",
        "the program that wrote the profile did not finish it: events after its last whole record are missing, "
        f"{plural(whole.size - whole.end, 'byte')} of half a record were cut off",
    )
