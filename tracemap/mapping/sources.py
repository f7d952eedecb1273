"""Finds the Python files that a model's frames name, to keep them in the bundle.

Names in a model are only ever compared with files that really lie below the folders that were given; no path is made
of them. A frame's file and a found file are the same when one's path is the end of the other's.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tracemap.graph.model import SourceFile

_MAX_FILES = 20_000
"""Files looked at below a root; a model that lies in a large folder must not cost a walk of the whole disk."""
_MAX_BYTES = 4 << 20
_SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules"})


@dataclass(frozen=True, slots=True)
class FoundSource:
    """A Python file that frames name: its record in the map, and its text."""

    source: SourceFile
    text: str


def find_sources(names: Iterable[str], roots: Iterable[Path]) -> tuple[FoundSource, ...]:
    """The regular `.py` files below the roots that are named, in the order of the names, each file once.

    The earlier root wins, then the longer common end of the paths, then the shorter path, then the alphabet.
    """
    wanted = sorted({name for name in names if name.endswith(".py")})
    if not wanted:
        return ()
    by_basename: dict[str, list[str]] = defaultdict(list)
    for name in wanted:
        by_basename[PurePosixPath(name).name].append(name)
    candidates = _candidates(by_basename, roots)
    found: list[FoundSource] = []
    for name in wanted:
        if name in candidates:
            path = candidates[name]
            text = _read(path)
            if text is not None:
                inside = f"python/{len(found)}-{_safe(path.name)}"
                found.append(FoundSource(SourceFile(name, inside, "python"), text))
    return tuple(found)


def _candidates(by_basename: Mapping[str, list[str]], roots: Iterable[Path]) -> dict[str, Path]:
    best: dict[str, tuple[tuple[int, int, int, str], Path]] = {}
    for rank, root in enumerate(roots):
        for path in _python_files(root, by_basename):
            relative = path.relative_to(root).as_posix()
            for name in by_basename[path.name]:
                common = common_end(name, relative)
                if common:
                    key = (rank, -common, len(relative), relative)
                    if name not in best or key < best[name][0]:
                        best[name] = (key, path)
    return {name: path for name, (_, path) in best.items()}


def common_end(name: str, relative: str) -> int:
    """How many path components two paths share at their end, if one of them is the end of the other; else 0.

    >>> common_end("/home/a/pkg/m.py", "pkg/m.py"), common_end("x/m.py", "y/m.py")
    (2, 0)
    """
    one, other = PurePosixPath(name).parts, PurePosixPath(relative).parts
    shorter = min(len(one), len(other))
    return shorter if one[-shorter:] == other[-shorter:] else 0


def _python_files(root: Path, basenames: Mapping[str, list[str]]) -> Iterator[Path]:
    seen = 0
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _SKIPPED_FOLDERS)
        for name in sorted(files):
            seen += 1
            if seen > _MAX_FILES:
                return
            path = Path(folder, name)
            if name in basenames and path.is_file() and not path.is_symlink():
                yield path


def _read(path: Path) -> str | None:
    try:
        if path.stat().st_size > _MAX_BYTES:
            return None
        return path.read_bytes().decode(errors="replace")
    except OSError:
        return None


def _safe(name: str) -> str:
    return "".join(character if character.isalnum() or character in "._-" else "_" for character in name)
