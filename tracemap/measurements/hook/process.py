"""Record files of the hook: header, executables and threads of a process."""

from __future__ import annotations

import json
import os
import struct
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracemap.diagnostics import Diagnostic
from tracemap.errors import RunEmpty, RunInvalid, RunVersion, readable
from tracemap.inputs import opened, stored_bytes
from tracemap.units import plural

if TYPE_CHECKING:
    import numpy.typing as npt


# ---- head
#
# The head of the hook's record files: version, layout, numbers, and JSON about the thread.
#
# Files describe their own fields (`tracemap/hook/layout.h` says how), so that no second copy of the layout is needed.
# They may come from anywhere: a bad one ends in an error.


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
    return FileHead(header, tuple(fields["record"]), _about_in_head(path, head, preamble), preamble["data_offset"])


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


def _about_in_head(path: Path, head: bytes, preamble: dict[str, int]) -> Any:  # noqa: ANN401 - JSON may be anything
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


# ---- process
#
# What the hook writes of a process: what it ran, the executables that it loaded, their kernels.
#
# A process's file is `hook-STAMP.jsonl`, a line per fact, written before the first call of what it tells of. A forked
# process inherits what its parent had loaded, and says how much that is.


STILL_LOADED: Final = (1 << 63) - 1
"""When an executable was unloaded that never was."""


@dataclass(frozen=True, slots=True)
class HookExecutable:
    """An executable that a process loaded: where it lay in memory, and when, on CLOCK_MONOTONIC.

    `elf` is `embedded`, `system`, or `runtime` where the runtime's own hook told of it: where it lay is not known
    then (`size` 0). Addresses are used again, so one belongs to an executable only while that was loaded.
    """

    number: int
    name: str
    elf: str
    base: int
    size: int
    loaded_ns: int
    unloaded_ns: int = STILL_LOADED


@dataclass(frozen=True, slots=True)
class HookKernel:
    """An export of an executable that a process loaded; its address is in memory then."""

    name: str
    executable: HookExecutable
    address: int


@dataclass(frozen=True, slots=True)
class HookLoss:
    """What the hook could not record, and why: a thread's `calls`, its `samples`, or a `kernel`."""

    what: str
    why: str


@dataclass
class ProcessFile:
    """What one process wrote; executables and kernels by number."""

    path: Path
    stamp: str
    pid: int
    start: tuple[int, int]
    """One moment as ticks and nanoseconds of CLOCK_MONOTONIC; so is `end`, which is empty if the program was killed."""
    parent: str
    inherited_kernels: int
    inherited_executables: int
    forked_ns: int
    end: tuple[int, int] | tuple[()] = ()
    executables: dict[int, HookExecutable] = field(default_factory=dict)
    kernels: dict[int, HookKernel] = field(default_factory=dict)
    unloads: dict[int, int] = field(default_factory=dict)
    losses: list[HookLoss] = field(default_factory=list)

    def thread_files(self, suffix: str) -> list[Path]:
        """The files of its threads, in the order in which the threads began to call workgroups.

        Raises:
            RunInvalid: the stamp is not the one of the file's name; it would make a pattern or a path of it.
        """
        if self.path.name != f"hook-{self.stamp}.jsonl" or not all(c.isalnum() or c == "-" for c in self.stamp):
            raise RunInvalid(f"{self.path}: its name is not the one that it tells, {self.stamp!r}; do not rename files")
        return sorted(self.path.parent.glob(f"hook-{self.stamp}-*.{suffix}"), key=_number_of)


def read_processes(folder: Path) -> dict[str, ProcessFile]:
    """The processes of a folder by their stamps.

    Raises:
        RunEmpty: there is none.
        RunInvalid: a file is damaged; the message names it.
        RunVersion: a file is of another format version.
    """
    if not os.path.isdir(folder):  # noqa: PTH112 - Path.is_dir raises OSError for names that are too long
        raise RunInvalid(f"{folder}: is no folder of the hook's record files")
    texts = {path: lines for path in sorted(folder.glob("hook-*.jsonl")) if (lines := _whole_lines(path))}
    found = {process.stamp: process for process in (_process_of(path, lines) for path, lines in texts.items())}
    if not found:
        raise RunEmpty(
            f"{folder}: holds no record of the hook: no executable of IREE was loaded under it, or "
            "no file could be made, which the program's standard error says"
        )
    return found


def read_again(folder: Path, processes: Mapping[str, ProcessFile]) -> Mapping[str, ProcessFile]:
    """The processes with what those that go on have told since: they tell of a kernel before they call it.

    So every kernel is in it whose calls were read before this.

    Raises:
        RunInvalid: as `read_processes` does.
    """
    if all(process.end for process in processes.values()):
        return processes
    return {**processes, **read_processes(folder)}


def known_kernels(process: ProcessFile, processes: Mapping[str, ProcessFile]) -> dict[int, HookKernel]:
    """A process's kernels by number: its own, and those of its parents that were there at the fork."""
    found = dict(process.kernels)
    limit = process.inherited_kernels
    for ancestor in _ancestors(process, processes):
        found |= {number: kernel for number, kernel in ancestor.kernels.items() if number < limit}
        limit = min(limit, ancestor.inherited_kernels)
    return found


def known_executables(process: ProcessFile, processes: Mapping[str, ProcessFile]) -> dict[int, HookExecutable]:
    """A process's executables by number: its own, and those of its parents that were there at the fork."""
    found = _with_unloads(process.executables, process.unloads)
    limit, forked_ns, unloads = process.inherited_executables, process.forked_ns, process.unloads
    for ancestor in _ancestors(process, processes):
        # What a parent unloads after the fork stays with the child, until it unloads it itself.
        before = {number: ns for number, ns in ancestor.unloads.items() if ns <= forked_ns}
        inherited = {number: executable for number, executable in ancestor.executables.items() if number < limit}
        unloads = {**unloads, **before}
        found |= _with_unloads(inherited, unloads)
        limit, forked_ns = min(limit, ancestor.inherited_executables), min(forked_ns, ancestor.forked_ns)
    return found


def _with_unloads(executables: Mapping[int, HookExecutable], unloads: Mapping[int, int]) -> dict[int, HookExecutable]:
    return {
        number: replace(executable, unloaded_ns=unloads.get(number, STILL_LOADED))
        for number, executable in executables.items()
    }


def _ancestors(process: ProcessFile, processes: Mapping[str, ProcessFile]) -> list[ProcessFile]:
    """Parents that were recorded, the nearest first; a hostile file may make a circle of them."""
    chain = [process]
    while (parent := processes.get(chain[-1].parent)) is not None and all(parent is not known for known in chain):
        chain.append(parent)
    return chain[1:]


def _number_of(path: Path) -> tuple[int, str]:
    number = path.stem.rpartition("-")[2]
    return (int(number) if number.isascii() and number.isdigit() and len(number) < 10 else -1, path.name)


def _whole_lines(path: Path) -> list[bytes]:
    """A line that is cut off is left out; none: the process was killed, or is read, before it recorded anything."""
    lines = _lines(path)
    if not lines and any(other.name.startswith(f"{path.stem}-") for other in path.parent.iterdir()):
        lines = _lines(path)  # of a program that goes on: it has written the line before it made the others
        if not lines:
            raise RunInvalid(f"{path}: its first line is cut off, which tells of the process whose files lie beside it")
    return lines


def _lines(path: Path) -> list[bytes]:
    return stored_bytes(path, RunInvalid).split(b"\n")[:-1]


def _process_of(path: Path, lines: list[bytes]) -> ProcessFile:
    for number, line in enumerate(lines, start=1):
        try:
            told = _line_of(line, first=number == 1)
            if number == 1:
                process = _process(path, told)
            else:
                _add_line(process, told)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise RunInvalid(f"{path}: line {number} is damaged: {error!r}") from error
    return process


def _line_of(line: bytes, *, first: bool) -> dict[str, Any]:
    parsed = json_of(line)
    if not isinstance(parsed, dict):
        raise TypeError("a line is no object")
    if first != (parsed["kind"] == "process"):
        raise ValueError("the first line, and only it, tells of the process")
    return parsed


def _process(path: Path, line: Mapping[str, Any]) -> ProcessFile:
    check_version(path, count(line["version"]))
    names = ("pid", "inherited_kernels", "inherited_executables", "forked_ns")
    counts: dict[str, Any] = {name: count(line[name]) for name in names}
    return ProcessFile(path, stamp=str(line["stamp"]), start=_moment(line), parent=str(line["parent"]), **counts)


def _moment(line: Mapping[str, Any]) -> tuple[int, int]:
    return count(line["ticks"]), count(line["ns"])


def _add_line(process: ProcessFile, line: Mapping[str, Any]) -> None:
    kind = line["kind"]
    if kind == "executable":
        number, size = count(line["id"]), count(line["size"])
        base = _address(line["base"])
        about = (str(line["name"]), str(line["elf"]), base, count(base + size) - base, count(line["ns"]))
        process.executables[number] = HookExecutable(number, *about)
    elif kind == "unload":
        process.unloads[count(line["executable"])] = count(line["ns"])
    elif kind == "kernel":
        executable = process.executables[count(line["executable"])]
        process.kernels[count(line["id"])] = HookKernel(str(line["name"]), executable, _address(line["address"]))
    elif kind == "lost":
        process.losses.append(HookLoss(str(line["what"]), str(line["why"])))
    elif kind == "end":
        process.end = _moment(line)


def what_is_lost(files: Iterable[ProcessFile], what: str) -> Iterator[Diagnostic]:
    """What is missing of the `calls` or `samples`: those of whole threads, and those of kernels."""
    for file in files:
        lost = Counter(loss.why for loss in file.losses if loss.what == what)
        if lost:
            text = f"process {file.pid}: the {what} of {plural(lost.total(), 'thread')} are missing: {'; '.join(lost)}"
            yield Diagnostic("threads-lost", text)
        kernels = [loss.why for loss in file.losses if loss.what == "kernel"]
        if kernels:
            text = f"process {file.pid}: {plural(len(kernels), 'kernel')} left out, the first is {kernels[0]}"
            yield Diagnostic("kernels-lost", text)


def nothing_recorded(text: str, files: Iterable[ProcessFile], what: str) -> RunEmpty:
    """The error where there are no `calls` or `samples`, with what was lost."""
    return RunEmpty("; ".join([text, *(each.message for each in what_is_lost(files, what))]))


def count(value: object) -> int:
    """A number that a file holds, if it is one that can be.

    Raises:
        ValueError: it is not.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise ValueError(f"{value!r} is no count")
    return value


def _address(text: object) -> int:
    return 0 if text == "(nil)" else count(int(str(text), 16))
