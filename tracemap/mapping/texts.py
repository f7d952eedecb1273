"""The texts that a bundle keeps: the model, and the Python files that its frames name.

Names in a model are only ever compared with files that really lie below the folders that were given; no path is made
of them. A frame's file and a found file are the same when one's path is the end of the other's.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tracemap.graph.model import SourceFile
from tracemap.ir.source import SourceModel
from tracemap.locations import frames

_MAX_FILES = 20_000
"""Files looked at below a root; a model that lies in a large folder must not cost a walk of the whole disk."""
_MAX_BYTES = 4 << 20
_SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules"})


def no_text(name: str) -> str | None:
    """Knows the text of no file."""


@dataclass(frozen=True, slots=True)
class KeptTexts:
    """Source files as the map names them, the model first, and their texts by path (none where texts are not kept)."""

    sources: tuple[SourceFile, ...]
    texts: Mapping[str, str]


def keep_texts(
    model: SourceModel,
    file_name: str,
    roots: Sequence[Path],
    *,
    keep: bool,
    text_of: Callable[[str], str | None] = no_text,
) -> KeptTexts:
    """Find what is kept of a model; Python files whose text nobody knows (`text_of`) are looked for below the roots."""
    own = SourceFile(file_name, safe_name(file_name), "mlir")
    if not keep:
        return KeptTexts((own,), {})
    named = {frame.place.file for op in model.operations for frame in frames(op.location)}
    known = {name: text for name in sorted(named) if (text := text_of(name)) is not None}
    paths = {**known, **_find_python(named - known.keys(), roots)}
    found = {_python_source(number, name): paths[name] for number, name in enumerate(sorted(paths))}
    return KeptTexts((own, *found), {own.path: model.text, **{each.path: text for each, text in found.items()}})


def safe_name(name: str) -> str:
    """A file name for the bundle: the model's own, without anything that could lead elsewhere."""
    return _safe(Path(name).name).lstrip(".") or "model.mlir"


def _safe(name: str) -> str:
    return "".join(character if character.isalnum() or character in "._-" else "_" for character in name)


def _python_source(number: int, name: str) -> SourceFile:
    return SourceFile(name, f"python/{number}-{safe_name(name)}", "python")


def _find_python(names: Iterable[str], roots: Iterable[Path]) -> dict[str, str]:
    """The texts of the regular `.py` files below the roots that are named."""
    by_basename: dict[str, list[str]] = defaultdict(list)
    for name in names:
        if name.endswith(".py"):
            by_basename[PurePosixPath(name).name].append(name)
    found = _candidates(by_basename, roots) if by_basename else {}
    return {name: text for name, path in found.items() if (text := _read(path)) is not None}


def _candidates(by_basename: Mapping[str, Sequence[str]], roots: Iterable[Path]) -> dict[str, Path]:
    """The file that each name stands for.

    The earlier root wins, then the longer common end of the paths, then the shorter path, then the alphabet.
    """
    best: dict[str, tuple[tuple[int, int, int, str], Path]] = {}
    for rank, root in enumerate(roots):
        # Only names of files that are asked for are compared: a model names few, a folder may hold thousands.
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


def _python_files(root: Path, basenames: Container[str]) -> Iterator[Path]:
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
