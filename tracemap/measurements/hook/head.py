"""The head of the hook's record files: version, layout, numbers, and JSON about the thread.

Files describe their own fields (`tracemap/hook/layout.h` says how), so that no second copy of the layout is needed.
They may come from anywhere: a bad one ends in an error.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracemap.errors import RunInvalid, RunVersion, readable
from tracemap.inputs import opened

if TYPE_CHECKING:
    import numpy.typing as npt

HOOK_FORMAT_VERSION: Final = 3
"""The version of the record files that is written now.

1: first; 2: files of samples, executables tell when and where; 3: files of calls may have given up their first records.
"""
HOOK_READ_VERSIONS: Final = (2, HOOK_FORMAT_VERSION)

_PREAMBLE = struct.Struct("<8sIIIIII")
_DESCRIPTION_OFFSET = 64
_LARGEST_TEXT = 1 << 20
_TYPES = {"u2": "<u2", "u4": "<u4", "u8": "<u8"}


@dataclass(frozen=True, slots=True)
class FileKind:
    """What tells one kind of record file from another: its first bytes, the names of its fields.

    `newer_names`: those of its header that files of an older version lack; they are 0 there.
    """

    magic: bytes
    header_names: Collection[str]
    record_names: Collection[str]
    newer_names: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class FileHead:
    """A record file's head: its header's numbers, its record's fields as numpy names them, what it says of itself."""

    header: dict[str, int]
    record: tuple[tuple[str, str], ...]
    about: Any
    """JSON that nothing is known of yet."""
    data_offset: int


def read_head(path: Path, kind: FileKind) -> FileHead | None:
    """Read the head of a record file; None where the program was killed while the file was being set up.

    Raises:
        RunInvalid: it is damaged or of another kind, or cannot be read.
        RunVersion: it is of another version.
    """
    with opened(path, RunInvalid) as file:
        start = file.read(_PREAMBLE.size)
        if not any(start):
            return None
        head = start + file.read(_LARGEST_TEXT)
    preamble = _preamble(path, head, kind.magic)
    fields = _layout(path, head, preamble, kind)
    header = dict.fromkeys(kind.newer_names, 0) | _header(path, head, preamble, fields["header"])
    return FileHead(header, tuple(fields["record"]), _about(path, head, preamble), preamble["data_offset"])


def read_records(path: Path, head: FileHead, more: Sequence[tuple[Any, ...]] = (), skip: int = 0) -> npt.NDArray[Any]:
    """The records behind a head, as many as are there to their end, without the first so many (`skip`).

    `more`: fields that the head does not describe.

    Raises:
        RunInvalid: records are of another size than their fields, or cannot be read.
    """
    import numpy as np

    kind = np.dtype([*head.record, *more])
    if head.header["record_bytes"] != kind.itemsize:
        raise RunInvalid(f"{path}: its records have {head.header['record_bytes']} bytes, their fields {kind.itemsize}")
    with readable(path, RunInvalid):
        begin = head.data_offset + skip * kind.itemsize
        room = max(0, path.stat().st_size - begin) // kind.itemsize
        # A head may say that its records begin where no file can have them.
        return np.fromfile(path, dtype=kind, count=room, offset=begin) if room else np.zeros(0, kind)


def check_version(path: Path, version: int) -> None:
    """Raise RunVersion unless it is one of the versions that are read here."""
    if version not in HOOK_READ_VERSIONS:
        raise RunVersion(
            f"{path}: the hook wrote format version {version}, this tracemap reads versions "
            f"{' and '.join(map(str, HOOK_READ_VERSIONS))}; record again"
        )


def _preamble(path: Path, head: bytes, magic: bytes) -> dict[str, int]:
    if len(head) < _PREAMBLE.size:
        raise RunInvalid(f"{path}: is cut off in its first bytes")
    found, version, *numbers = _PREAMBLE.unpack_from(head)
    if found != magic:
        raise RunInvalid(f"{path}: is no record file of the hook")
    check_version(path, version)
    names = ("description_bytes", "about_bytes", "header_offset", "about_offset", "data_offset")
    return {"version": version, **dict(zip(names, numbers, strict=True))}


def _slice(path: Path, head: bytes, offset: int, size: int) -> bytes:
    if offset + size > len(head):
        raise RunInvalid(f"{path}: is cut off: byte {offset + size} of its head is missing")
    return head[offset : offset + size]


def _layout(path: Path, head: bytes, preamble: dict[str, int], kind: FileKind) -> dict[str, list[tuple[str, str]]]:
    """The fields of header and record, as the file describes them."""
    text = _slice(path, head, _DESCRIPTION_OFFSET, preamble["description_bytes"]).decode("ascii", errors="replace")
    found: dict[str, list[tuple[str, str]]] = {"header": [], "record": []}
    section = ""
    for line in text.splitlines():
        name, _, code = line.partition(" ")
        if not code and name in found:
            section = name
        elif section and code in _TYPES:
            found[section].append((name, _TYPES[code]))
        else:
            raise RunInvalid(f"{path}: describes its layout with {line[:60]!r}, which is not understood")
    newer = kind.newer_names if preamble["version"] == HOOK_FORMAT_VERSION else ()
    for part, wanted in (("header", (*kind.header_names, *newer)), ("record", kind.record_names)):
        if sorted(name for name, _ in found[part]) != sorted(wanted):
            raise RunInvalid(f"{path}: the fields of its {part} are not those of format version {preamble['version']}")
    return found


def _header(path: Path, head: bytes, preamble: dict[str, int], fields: list[tuple[str, str]]) -> dict[str, int]:
    import numpy as np

    kind = np.dtype(fields)
    row = np.frombuffer(_slice(path, head, preamble["header_offset"], kind.itemsize), dtype=kind)[0]
    values = {name: int(row[name]) for name, _ in fields}
    for name, value in values.items():
        if value >= 1 << 63:
            raise RunInvalid(f"{path}: {name} is {value}, which cannot be")
    return values


def _about(path: Path, head: bytes, preamble: dict[str, int]) -> Any:  # noqa: ANN401 - JSON may be anything
    text = _slice(path, head, preamble["about_offset"], preamble["about_bytes"])
    try:
        return json_of(text)
    except (ValueError, RecursionError) as error:
        raise RunInvalid(f"{path}: what it says of its thread is damaged: {error!r}") from error


def json_of(text: bytes) -> Any:  # noqa: ANN401 - JSON may be anything
    """What a JSON text of the hook's says.

    Raises:
        RecursionError: it is nested without end.
        ValueError: it is no JSON, or has half a surrogate pair, which the hook does not write and nothing can store.
    """
    parsed = json.loads(text.decode("utf-8", errors="replace"))
    if b"\\u" in text:
        json.dumps(parsed, ensure_ascii=False).encode()
    return parsed
