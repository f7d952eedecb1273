"""Texts that a bundle keeps: the model, and the Python files that its frames name.

Names in a model are only compared with existing files below the given folders, and never used as paths. A frame's file
and a file on disk are the same if the path of one ends with that of the other.
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
"""The most files that are examined below a root, so that a model in a large folder does not cost a walk of the disk."""
_MAX_BYTES = 4 << 20
_SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules"})


def no_text(name: str) -> str | None:
    """Default for `text_of`: no text is known."""


@dataclass(frozen=True, slots=True)
class KeptTexts:
    """Source files as the map names them, the model first, and their texts by path (empty if texts are not kept)."""

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
    """Collect the texts of a model; Python files that `text_of` does not know are searched below the roots."""
    model_source = SourceFile(file_name, safe_name(file_name), "mlir")
    if not keep:
        return KeptTexts((model_source,), {})
    file_names = {frame.place.file for op in model.operations for frame in frames(op.location)}
    known_texts = {name: text for name in sorted(file_names) if (text := text_of(name)) is not None}
    paths = {**known_texts, **_find_python(file_names - known_texts.keys(), roots)}
    python_sources = {_python_source(index, name): paths[name] for index, name in enumerate(sorted(paths))}
    return KeptTexts(
        (model_source, *python_sources),
        {model_source.path: model.text, **{source.path: text for source, text in python_sources.items()}},
    )


def safe_name(name: str) -> str:
    """A file name for the bundle: the model's own, without characters that could lead elsewhere."""
    return _safe(Path(name).name).lstrip(".") or "model.mlir"


def _safe(name: str) -> str:
    return "".join(character if character.isalnum() or character in "._-" else "_" for character in name)


def _python_source(number: int, name: str) -> SourceFile:
    return SourceFile(name, f"python/{number}-{safe_name(name)}", "python")


def _find_python(names: Iterable[str], roots: Iterable[Path]) -> dict[str, str]:
    """The texts of the named regular `.py` files below the roots."""
    by_basename: dict[str, list[str]] = defaultdict(list)
    for name in names:
        if name.endswith(".py"):
            by_basename[PurePosixPath(name).name].append(name)
    paths = _candidates(by_basename, roots) if by_basename else {}
    return {name: text for name, path in paths.items() if (text := _read(path)) is not None}


def _candidates(by_basename: Mapping[str, Sequence[str]], roots: Iterable[Path]) -> dict[str, Path]:
    """The file for each name.

    The earlier root wins, then the longer common end of the paths, then the shorter path, then alphabetical order.
    """
    best: dict[str, tuple[tuple[int, int, int, str], Path]] = {}
    for rank, root in enumerate(roots):
        # Only requested file names are compared: a model names few, and a folder may hold thousands.
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
    """The number of path components that two paths share at their end if one ends with the other; otherwise 0.

    >>> common_end("/home/a/pkg/m.py", "pkg/m.py"), common_end("x/m.py", "y/m.py")
    (2, 0)
    """
    first, second = PurePosixPath(name).parts, PurePosixPath(relative).parts
    shorter = min(len(first), len(second))
    return shorter if first[-shorter:] == second[-shorter:] else 0


def _python_files(root: Path, basenames: Container[str]) -> Iterator[Path]:
    count = 0
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _SKIPPED_FOLDERS)
        for name in sorted(files):
            count += 1
            if count > _MAX_FILES:
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
