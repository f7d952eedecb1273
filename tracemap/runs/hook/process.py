"""Record files of the hook: header, executables and threads of a process."""

from __future__ import annotations

import json
import os
import struct
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tracemap.core.diagnostics import Diagnostic
from tracemap.core.errors import RunEmpty, RunInvalid, RunVersion, raising_unreadable
from tracemap.core.files import FileFormat, format_of_file, open_stored_file, read_stored_file
from tracemap.core.units import plural

if TYPE_CHECKING:
    import numpy.typing as npt


# ---- head
#
# The head of a record file: version, layout, numbers, and JSON about the thread.
#
# Files describe their own fields (see `tracemap/hook/layout.h`), so no second copy of the layout is needed. Files may
# come from anywhere: a damaged one raises an error.


HOOK_FORMAT_VERSION: Final = 3
"""The version of the record files written now.

1: first. 2: files of samples; executables have times and addresses. 3: files of calls may drop their first records.
"""
HOOK_READ_VERSIONS: Final = (2, HOOK_FORMAT_VERSION)
_Thread = TypeVar("_Thread")

_PREAMBLE = struct.Struct("<8sIIIIII")
_LAYOUT_OFFSET = 64
_LARGEST_TEXT = 1 << 20
_TYPES = {"u2": "<u2", "u4": "<u4", "u8": "<u8"}


@dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of record file: its magic bytes and the names of its fields.

    `newer_names`: header fields that older versions lack; they read as 0.
    """

    magic: bytes
    header_names: Collection[str]
    record_names: Collection[str]
    newer_names: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class FileHead:
    """The head of a record file: numbers of its header, numpy fields of its records, and JSON about the thread."""

    header: dict[str, int]
    record: tuple[tuple[str, str], ...]
    about: Any
    """JSON that is not validated yet."""
    data_offset: int


def read_head(path: Path, kind: FileKind) -> FileHead | None:
    """Read the head of a record file; None if the program was killed while it set up the file.

    Raises:
        RunInvalid: the file is damaged, of another kind, or unreadable.
        RunVersion: another format version.
    """
    import numpy as np

    with open_stored_file(path, RunInvalid) as file:
        start = file.read(_PREAMBLE.size)
        if not any(start):
            return None
        head = start + file.read(_LARGEST_TEXT)
    if len(head) < _PREAMBLE.size:
        raise RunInvalid(f"{path}: is cut off in its first bytes")
    magic, version, layout_bytes, about_bytes, header_at, about_at, data_offset = _PREAMBLE.unpack_from(head)
    if magic != kind.magic:
        raise RunInvalid(f"{path}: is no record file of the hook")
    check_version(path, version)

    def piece(offset: int, size: int) -> bytes:
        if offset + size > len(head):
            raise RunInvalid(f"{path}: is cut off: byte {offset + size} of its head is missing")
        return head[offset : offset + size]

    header_fields, record_fields = _layout(path, piece(_LAYOUT_OFFSET, layout_bytes), version, kind)
    header_type = np.dtype(header_fields)
    row = np.frombuffer(piece(header_at, header_type.itemsize), dtype=header_type)[0]
    header = {name: int(row[name]) for name, _ in header_fields}
    for name, value in header.items():
        if value >= 1 << 63:
            raise RunInvalid(f"{path}: {name} is {value}, which is out of range")
    with refused_as_damaged(path):
        about = json_of(piece(about_at, about_bytes))
    return FileHead(dict.fromkeys(kind.newer_names, 0) | header, tuple(record_fields), about, data_offset)


@contextmanager
def refused_as_damaged(path: Path, what: str = "the description of its thread") -> Iterator[None]:
    """Raise RunInvalid if JSON of the hook lacks a part, or a part has another type."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RunInvalid(f"{path}: {what} is damaged: {error!r}") from error


def read_records(path: Path, head: FileHead, more: Sequence[tuple[Any, ...]] = (), skip: int = 0) -> npt.NDArray[Any]:
    """The complete records after a head, without the first `skip`.

    `more`: fields that the head does not describe.

    Raises:
        RunInvalid: the size of records does not match their fields, or they cannot be read.
    """
    import numpy as np

    kind = np.dtype([*head.record, *more])
    if head.header["record_bytes"] != kind.itemsize:
        raise RunInvalid(f"{path}: its records have {head.header['record_bytes']} bytes, their fields {kind.itemsize}")
    with raising_unreadable(path, RunInvalid):
        begin = head.data_offset + skip * kind.itemsize
        room = max(0, path.stat().st_size - begin) // kind.itemsize
        # A damaged head may place the records beyond any file.
        return np.fromfile(path, dtype=kind, count=room, offset=begin) if room else np.zeros(0, kind)


def check_version(path: Path, version: int) -> None:
    """Raise RunVersion if this format version cannot be read."""
    if version not in HOOK_READ_VERSIONS:
        raise RunVersion(
            f"{path}: the hook wrote format version {version}, this tracemap reads versions "
            f"{' and '.join(map(str, HOOK_READ_VERSIONS))}; record again"
        )


def _layout(path: Path, text: bytes, version: int, kind: FileKind) -> tuple[list[tuple[str, str]], ...]:
    """The fields of header and record, from the file's description."""
    sections: dict[str, list[tuple[str, str]]] = {"header": [], "record": []}
    section = ""
    for line in text.decode("ascii", errors="replace").splitlines():
        name, _, code = line.partition(" ")
        if not code and name in sections:
            section = name
        elif section and code in _TYPES:
            sections[section].append((name, _TYPES[code]))
        else:
            raise RunInvalid(f"{path}: describes its layout with {line[:60]!r}, which is unknown")
    newer = kind.newer_names if version == HOOK_FORMAT_VERSION else ()
    for part, expected in (("header", (*kind.header_names, *newer)), ("record", kind.record_names)):
        if sorted(name for name, _ in sections[part]) != sorted(expected):
            raise RunInvalid(f"{path}: the fields of its {part} are not those of format version {version}")
    return tuple(sections.values())


def json_of(text: bytes) -> Any:  # noqa: ANN401 - JSON may be anything
    """The JSON of a record file; raises ValueError if it is none, or no text that can be stored."""
    parsed = json.loads(text.decode("utf-8", errors="replace"))
    if b"\\u" in text:  # half a surrogate pair, which the hook never writes and nothing can store, raises ValueError
        json.dumps(parsed, ensure_ascii=False).encode()
    return parsed


# ---- process
#
# A process as the hook recorded it: the process itself, the executables that it loaded, and their kernels.
#
# A process's file is `hook-STAMP.jsonl`, with one fact per line, written before the first call that depends on it. A
# forked process inherits what its parent has loaded; its file says how much.


STILL_LOADED: Final = (1 << 63) - 1
"""Unload time of an executable that was never unloaded."""


@dataclass(frozen=True, slots=True)
class HookExecutable:
    """An executable that a process loaded: its memory range, and when, on CLOCK_MONOTONIC.

    `elf`: `embedded`, `system`, or `runtime` if the runtime's own hook reported it; then the memory range is unknown
    (`size` 0). Addresses are reused, so they belong to an executable only while it is loaded.
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
    """An export of a loaded executable, with its address in memory."""

    name: str
    executable: HookExecutable
    address: int


@dataclass(frozen=True, slots=True)
class HookLoss:
    """Something that the hook could not record, and why: a thread's `calls`, its `samples`, or a `kernel`."""

    what: str
    why: str


@dataclass
class ProcessFile:
    """The record file of one process; executables and kernels by number."""

    path: Path
    stamp: str
    pid: int
    start: tuple[int, int]
    """One moment, as ticks and as nanoseconds of CLOCK_MONOTONIC; likewise `end`, empty if the program was killed."""
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
        """The files of its threads, in the order of their first calls.

        Raises:
            RunInvalid: the stamp differs from the file's name; it must not turn into a glob pattern or another path.
        """
        if self.path.name != f"hook-{self.stamp}.jsonl" or not all(c.isalnum() or c == "-" for c in self.stamp):
            raise RunInvalid(f"{self.path}: was renamed: its content names it {self.stamp!r}; do not rename files")
        return sorted(self.path.parent.glob(f"hook-{self.stamp}-*.{suffix}"), key=_number_of)


def read_processes(folder: Path) -> dict[str, ProcessFile]:
    """The processes of a folder, by their stamps.

    Raises:
        RunEmpty: there is none.
        RunInvalid: a file is damaged; the message names it.
        RunVersion: another format version.
    """
    if not os.path.isdir(folder):  # noqa: PTH112 - Path.is_dir raises OSError for names that are too long
        raise RunInvalid(f"{folder}: is no folder of the hook's record files")
    texts = {path: lines for path in sorted(folder.glob("hook-*.jsonl")) if (lines := _whole_lines(path))}
    processes = {process.stamp: process for process in (_process_of(path, lines) for path, lines in texts.items())}
    if not processes and format_of_file(folder) is FileFormat.BUNDLE:
        raise RunInvalid(
            f"{folder}: is a bundle, not a recording of the hook; name the folder that the hook recorded into, or show "
            f"the map: tracemap show {folder}"
        )
    if not processes and any(folder.glob("cuda-*.jsonl")):
        raise RunInvalid(f"{folder}: has a recording of a GPU, which is a run: tracemap attribute {folder}")
    if not processes:
        raise RunEmpty(
            f"{folder}: has no recording of the hook: no executable of IREE was loaded under it, or it could not "
            "create a file (see the program's standard error)"
        )
    return processes


def read_threads(
    folder: Path, what: str, read_thread: Callable[[Path], _Thread | None]
) -> tuple[dict[str, ProcessFile], dict[str, list[_Thread]], Mapping[str, ProcessFile]]:
    """The processes of a folder, their threads, and the processes read again, by their stamps.

    The files of running processes are read again, because they name a kernel before they call it: so every kernel is
    known whose calls were read before.

    Args:
        folder: the folder.
        what: the suffix of the threads' files, `calls` or `samples`.
        read_thread: reads such a file; None: the thread is left out.

    Raises:
        RunInvalid: as for `read_processes`, or raised by `read_thread`.
    """
    files = read_processes(folder)
    threads = {
        stamp: [thread for path in file.thread_files(what) if (thread := read_thread(path)) is not None]
        for stamp, file in files.items()
    }
    ended = all(file.end for file in files.values())
    return files, threads, files if ended else {**files, **read_processes(folder)}


def known_kernels(process: ProcessFile, processes: Mapping[str, ProcessFile]) -> dict[int, HookKernel]:
    """A process's kernels by number: its own, and those that it inherited at the fork."""
    kernels = dict(process.kernels)
    limit = process.inherited_kernels
    for ancestor in _ancestors(process, processes):
        kernels |= {number: kernel for number, kernel in ancestor.kernels.items() if number < limit}
        limit = min(limit, ancestor.inherited_kernels)
    return kernels


def known_executables(process: ProcessFile, processes: Mapping[str, ProcessFile]) -> dict[int, HookExecutable]:
    """A process's executables by number: its own, and those that it inherited at the fork."""
    executables = _with_unloads(process.executables, process.unloads)
    limit, forked_ns, unloads = process.inherited_executables, process.forked_ns, process.unloads
    for ancestor in _ancestors(process, processes):
        # An executable that the parent unloads after the fork stays loaded in the child.
        earlier_unloads = {number: ns for number, ns in ancestor.unloads.items() if ns <= forked_ns}
        inherited = {number: executable for number, executable in ancestor.executables.items() if number < limit}
        unloads = {**unloads, **earlier_unloads}
        executables |= _with_unloads(inherited, unloads)
        limit, forked_ns = min(limit, ancestor.inherited_executables), min(forked_ns, ancestor.forked_ns)
    return executables


def _with_unloads(executables: Mapping[int, HookExecutable], unloads: Mapping[int, int]) -> dict[int, HookExecutable]:
    return {
        number: replace(executable, unloaded_ns=unloads.get(number, STILL_LOADED))
        for number, executable in executables.items()
    }


def _ancestors(process: ProcessFile, processes: Mapping[str, ProcessFile]) -> list[ProcessFile]:
    """Recorded parents, nearest first; a hostile file may form a circle."""
    chain = [process]
    while (parent := processes.get(chain[-1].parent)) is not None and all(parent is not ancestor for ancestor in chain):
        chain.append(parent)
    return chain[1:]


def _number_of(path: Path) -> tuple[int, str]:
    number = path.stem.rpartition("-")[2]
    return (int(number) if number.isascii() and number.isdigit() and len(number) < 10 else -1, path.name)


def _whole_lines(path: Path) -> list[bytes]:
    """The complete lines; empty if the process was killed, or is read, before it recorded anything."""
    lines = read_stored_file(path, RunInvalid).split(b"\n")[:-1]
    if not lines and any(other.name.startswith(f"{path.stem}-") for other in path.parent.iterdir()):
        # A running program has now written the line, since it comes before the other files.
        lines = read_stored_file(path, RunInvalid).split(b"\n")[:-1]
        if not lines:
            raise RunInvalid(f"{path}: its first line, which describes the process, is cut off")
    return lines


def read_lines(path: Path, lines: Sequence[bytes], add: Callable[[dict[str, Any]], None]) -> None:
    """Read the lines of a process's file, the first of which describes the process; `add` is called with each.

    Raises:
        RunInvalid: a line is damaged, or `add` rejects it by an error of a value.
        RunVersion: another format version.
    """
    for number, text in enumerate(lines, start=1):
        with refused_as_damaged(path, f"line {number}"):
            line = json_of(text)
            if not isinstance(line, dict):
                raise TypeError("a line is no object")
            if (number == 1) != (line["kind"] == "process"):
                raise ValueError("the first line, and only it, must describe the process")
            if number == 1:
                check_version(path, count(line["version"]))
            add(line)


def _process_of(path: Path, lines: list[bytes]) -> ProcessFile:
    processes: list[ProcessFile] = []

    def add(line: dict[str, Any]) -> None:
        if processes:
            _add_line(processes[0], line)
        else:
            processes.append(_described(path, line))

    read_lines(path, lines, add)
    return processes[0]


def _described(path: Path, line: Mapping[str, Any]) -> ProcessFile:
    names = ("pid", "inherited_kernels", "inherited_executables", "forked_ns")
    counts: dict[str, Any] = {name: count(line[name]) for name in names}
    return ProcessFile(path, stamp=str(line["stamp"]), start=_moment(line), parent=str(line["parent"]), **counts)


def _moment(line: Mapping[str, Any]) -> tuple[int, int]:
    return count(line["ticks"]), count(line["ns"])


def _add_line(process: ProcessFile, line: Mapping[str, Any]) -> None:
    kind = line["kind"]
    if kind == "executable":
        number, size, base = count(line["id"]), count(line["size"]), _address(line["base"])
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
    """Diagnostics about missing `calls` or `samples` of whole threads, and about missing kernels."""
    for file in files:
        lost = Counter(loss.why for loss in file.losses if loss.what == what)
        if lost:
            text = f"process {file.pid}: the {what} of {plural(lost.total(), 'thread')} are missing: {'; '.join(lost)}"
            yield Diagnostic("threads-lost", text)
        kernels = [loss.why for loss in file.losses if loss.what == "kernel"]
        if kernels:
            text = f"process {file.pid}: {plural(len(kernels), 'kernel')} left out; the first is {kernels[0]}"
            yield Diagnostic("kernels-lost", text)


def nothing_recorded(text: str, files: Iterable[ProcessFile], what: str) -> RunEmpty:
    """The error if there are no `calls` or `samples`, with the reasons."""
    return RunEmpty("; ".join([text, *(diagnostic.message for diagnostic in what_is_lost(files, what))]))


def count(value: object) -> int:
    """Check a number from a file.

    Raises:
        ValueError: it is no integer from 0 to 2^63 - 1.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise ValueError(f"{value!r} is no count")
    return value


def _address(text: object) -> int:
    return 0 if text == "(nil)" else count(int(str(text), 16))
