"""Bundles below the folders of an editor, and their costs at the lines of its documents."""

from __future__ import annotations

import os
import sys
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracemap.core.errors import BundleInvalid, TracemapError
from tracemap.core.files import read_stored_file
from tracemap.core.process import children
from tracemap.core.process.temporary_files import temporary_folder

if TYPE_CHECKING:
    from tracemap.reports.editor import FileCosts, LineCosts

_MOST_FOLDERS: Final = 20_000
"""Most folders of a workspace that are searched for bundles."""
_NOT_SEARCHED: Final = frozenset({"node_modules", "__pycache__", "site-packages", "venv"})
_LARGEST_TEXT: Final = 32 << 20
"""Most characters of a document. Larger ones have no costs, so that the editor need not wait."""
_SECONDS: Final = 300.0
"""Time limit for the costs of a bundle."""
_MOST_BUNDLES: Final = 3
"""Most bundles whose costs a document shows: those with the newest runs."""
_MOST_READ: Final = 32
"""Most bundles whose costs are read: those with the newest runs."""
_LEAST_UNCHANGED: Final = 0.5
"""Least part of a file's lines with costs that must be unchanged in a document of the same name."""

State = tuple[tuple[str, int, int], ...]
"""Names, sizes and times of the files of a bundle that its costs depend on."""


@dataclass(frozen=True, slots=True)
class MeasuredFile:
    """A source file of a bundle: its text when it was built, and the costs of its lines."""

    bundle: Path
    costs: FileCosts
    lines: tuple[str, ...]

    @property
    def is_model(self) -> bool:
        """True for the model, false for a Python file."""
        return "/" not in self.costs.path


@dataclass(frozen=True, slots=True)
class OpenDocument:
    """A text in an editor. `name`: the last part of its path."""

    name: str
    text: str

    @property
    def is_python(self) -> bool:
        """True for a Python file, false for a model."""
        return self.name.endswith(".py")

    @property
    def size(self) -> int:
        """Its bytes as a file."""
        return len(self.text.encode(errors="replace"))


def split_lines(text: str) -> tuple[str, ...]:
    r"""The lines of a text as editors count them: `\n`, `\r\n` and `\r` end a line."""
    return tuple(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"))


@dataclass(frozen=True, slots=True)
class DocumentCosts:
    """Costs of a bundle at the lines of a document, by line from 1. `is_older`: it was edited since the build."""

    bundle: Path
    lines: Mapping[int, LineCosts]
    is_older: bool


@dataclass
class BundleFolder:
    """A bundle with its measured files. `problem`: the reason why it has none; empty if it has some."""

    path: Path
    state: State
    files: tuple[MeasuredFile, ...] = ()
    problem: str = ""


def _time_of(state: State) -> int:
    """Time of a bundle's newest run, in ns; 0 if it has none."""
    return max((time_ns for name, _, time_ns in state if name.startswith("run-")), default=0)


@dataclass
class BundleSearch:
    """The bundles below the folders of a workspace that belong to its open documents."""

    bundles: dict[Path, BundleFolder] = field(default_factory=dict)
    _places: list[Path] = field(default_factory=list)
    _stopped: threading.Event = field(default_factory=threading.Event)

    def stop(self) -> None:
        """End the work soon, from another thread."""
        self._stopped.set()

    def search(self, folders: Sequence[Path]) -> None:
        """Find the bundles below folders."""
        self._places = list(find_bundles(folders))

    def next_change(self, documents: Collection[OpenDocument]) -> BundleFolder | None:
        """Read the costs of one new or changed bundle of these documents; None if there is none."""
        states = {place: state_of(place) for place in self._places}
        for gone in [place for place in self.bundles if not states.get(place)]:
            return self.bundles.pop(gone)
        newest = sorted((place for place, state in states.items() if state), key=lambda place: -_time_of(states[place]))
        wanted = [place for place in newest if place in self.bundles or _may_have(place, documents)]
        for place in wanted[:_MOST_READ]:
            known = self.bundles.get(place)
            if (known is None or known.state != states[place]) and not self._stopped.is_set():
                self.bundles[place] = self._read(place, states[place])
                return self.bundles[place]
        return None

    def _read(self, place: Path, state: State) -> BundleFolder:
        if not any(name.startswith("run-") for name, _, _ in state):
            return BundleFolder(place, state, problem="it has no run")
        try:
            files = tuple(self._measured_files(place))
        except (TracemapError, OSError, ValueError) as error:
            return BundleFolder(place, state, problem=str(error))
        return BundleFolder(place, state, files)

    def _measured_files(self, place: Path) -> Iterator[MeasuredFile]:
        """Read the costs in a process of its own: a damaged bundle cannot end the server, or keep it from answering."""
        from tracemap.core.codec import decode_document
        from tracemap.map.bundle import SOURCE_FOLDER, path_in_bundle
        from tracemap.reports.editor import BundleCosts

        with temporary_folder() as folder:
            output, problems = folder / "costs.json", folder / "problems.txt"
            with output.open("wb") as stdout, problems.open("wb") as stderr:
                command: list[str | Path] = [sys.executable, "-m", "tracemap", "lsp", "--print", place.absolute()]
                child = children.start(command, stdout=stdout.fileno(), stderr=stderr.fileno())
                try:
                    self._wait_for(child, place)
                finally:
                    children.end(child)
            if child.returncode:
                message = problems.read_text(errors="replace").strip().splitlines()
                raise BundleInvalid(message[-1] if message else f"{place}: reading it ended with {child.returncode}")
            costs = decode_document(output.read_bytes(), BundleCosts)
        for file in costs.files:
            path = path_in_bundle(place, f"{SOURCE_FOLDER}/{file.path}")
            if file.lines and path.is_file() and path.stat().st_size <= _LARGEST_TEXT:
                text = read_stored_file(path, BundleInvalid).decode(errors="replace")
                yield MeasuredFile(place, file, split_lines(text))

    def _wait_for(self, child: children.Child, place: Path) -> None:
        for _ in range(int(_SECONDS / _SLICE_S)):
            if children.ended_within(child, _SLICE_S):
                return
            if self._stopped.is_set():
                break
        raise BundleInvalid(f"{place}: its costs take longer than {_SECONDS:.0f} s")

    def costs_at(self, document: OpenDocument) -> list[DocumentCosts]:
        """The costs at a document's lines, of the bundles that it belongs to, those with the newest runs first.

        A document belongs to the bundles that were built from the same text. Without one, it belongs to those with a
        file of its name, of which at least half of the lines with costs are unchanged.
        """
        if len(document.text) > _LARGEST_TEXT:
            return []
        lines = split_lines(document.text)
        known = list(self.bundles.values())  # another thread may add one
        newest = sorted(known, key=lambda bundle: (-_time_of(bundle.state), bundle.path))
        files = [file for bundle in newest for file in bundle.files if file.is_model != document.is_python]
        same = [file for file in files if _as_stored(lines, file) == file.lines]
        if same:
            found = [DocumentCosts(file.bundle, {line.line: line for line in file.costs.lines}, False) for file in same]
            return found[:_MOST_BUNDLES]
        moved = (_moved(lines, file) for file in files if Path(file.costs.name).name == document.name)
        return [costs for costs in moved if costs is not None][:_MOST_BUNDLES]


_SLICE_S: Final = 0.1


def find_bundles(folders: Sequence[Path]) -> Iterator[Path]:
    """The bundles below folders; hidden folders and installed packages are not searched."""
    from tracemap.map.bundle import SUFFIX

    searched, seen = 0, set[Path]()
    for folder in folders:
        for place, names, _ in os.walk(folder):
            searched += 1
            if searched > _MOST_FOLDERS:
                return
            bundles = sorted(name for name in names if name.endswith(SUFFIX))
            for name in bundles:
                path = Path(place, name)
                if path not in seen:
                    seen.add(path)
                    yield path
            skipped = {*bundles, *_NOT_SEARCHED}
            names[:] = sorted(name for name in names if name not in skipped and not name.startswith("."))


def state_of(bundle: Path) -> State:
    """The state of a bundle's map and runs; empty if it is no bundle, or only a part of one."""
    from tracemap.map.bundle import RUNS_FOLDER

    files = [bundle / "map.json"]
    try:
        with os.scandir(bundle / RUNS_FOLDER) as entries:
            files += [Path(entry.path) for entry in entries if entry.name.startswith("run-")]
    except OSError:
        pass
    state = []
    for file in files:
        try:
            status = file.stat()
        except OSError:
            continue
        state.append((file.name, status.st_size, status.st_mtime_ns))
    return tuple(sorted(state)) if any(name == "map.json" for name, _, _ in state) else ()


def _may_have(bundle: Path, documents: Collection[OpenDocument]) -> bool:
    """True if a bundle has a source file with the name or the size of a document."""
    from tracemap.map.bundle import PYTHON_FOLDER, SOURCE_FOLDER, safe_name

    names = {(safe_name(document.name), document.is_python) for document in documents}
    sizes = {(document.size, document.is_python) for document in documents}
    for folder, is_python in ((bundle / SOURCE_FOLDER, False), (bundle / SOURCE_FOLDER / PYTHON_FOLDER, True)):
        try:
            files = {entry.name: entry.stat().st_size for entry in os.scandir(folder) if entry.is_file()}
        except OSError:
            continue
        for name, size in files.items():
            own = name.partition("-")[2] if is_python else name  # Python files have an index
            if (own, is_python) in names or (size, is_python) in sizes:
                return True
    return False


def _as_stored(lines: tuple[str, ...], file: MeasuredFile) -> tuple[str, ...]:
    """The lines of a document as a bundle keeps them: with names for long literals, such as weights."""
    from tracemap.map.map_json import extract_literals

    if lines == file.lines or not file.is_model:
        return lines
    return tuple(extract_literals("\n".join(lines), {})[0].split("\n"))


def _moved(lines: tuple[str, ...], file: MeasuredFile) -> DocumentCosts | None:
    """Costs at the unchanged lines of an edited document; None if too few of them are unchanged."""
    moved = moved_lines(file.lines, _as_stored(lines, file))
    costs = {moved[line.line]: line for line in file.costs.lines if line.line in moved}
    return DocumentCosts(file.bundle, costs, True) if len(costs) >= _LEAST_UNCHANGED * len(file.costs.lines) else None


def moved_lines(old: Sequence[str], new: Sequence[str]) -> dict[int, int]:
    """The number of each unchanged line of an old text in a new one; both from 1.

    Lines that occur once in either text, in the same order, are unchanged ("patience diff"); so are equal lines next to
    unchanged ones. In contrast to `difflib`, the time does not grow with the square of the number of edits.
    """
    pairs = [(-1, -1), *_common_unique(old, new), (len(old), len(new))]
    moved: dict[int, int] = {}
    for (old_begin, new_begin), (old_end, new_end) in pairwise(pairs):
        room = min(old_end - old_begin, new_end - new_begin)
        down = range(1, room)
        below = next((step for step in down if old[old_begin + step] != new[new_begin + step]), room)
        above = next((step for step in down if old[old_end - step] != new[new_end - step]), room)
        moved |= {old_begin + step + 1: new_begin + step + 1 for step in range(below)}
        moved |= {old_end - step + 1: new_end - step + 1 for step in range(1, min(above, room - below + 1))}
    moved.pop(0, None)
    return moved


def _common_unique(old: Sequence[str], new: Sequence[str]) -> list[tuple[int, int]]:
    """The longest increasing sequence of positions of lines that occur once in either text."""
    counts, new_counts = Counter(old), Counter(new)
    position = {line: index for index, line in enumerate(new) if new_counts[line] == 1}
    last: list[int] = []  # for each length, the smallest new position that a sequence of it ends with
    ends: list[int] = []  # the pairs that end there
    pairs: list[tuple[int, int, int]] = []  # old and new position, and the pair before it in its sequence
    for index, line in enumerate(old):
        if counts[line] != 1 or line not in position:
            continue
        length = bisect_left(last, position[line])
        pairs.append((index, position[line], ends[length - 1] if length else -1))
        last[length : length + 1], ends[length : length + 1] = [position[line]], [len(pairs) - 1]
    sequence, pair = [], ends[-1] if ends else -1
    while pair >= 0:
        index, new_index, pair = pairs[pair]
        sequence.append((index, new_index))
    return sequence[::-1]
