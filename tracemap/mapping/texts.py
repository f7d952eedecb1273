"""The texts that a bundle keeps: the model, and the Python files that its frames name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tracemap.graph.model import SourceFile
from tracemap.ir.source import SourceModel
from tracemap.locations import frames
from tracemap.mapping.sources import FoundSource, find_sources


@dataclass(frozen=True, slots=True)
class KeptTexts:
    """Source files as the map names them, the model first, and their texts by path (none where texts are not kept)."""

    sources: tuple[SourceFile, ...]
    texts: Mapping[str, str]


def keep_texts(model: SourceModel, file_name: str, roots: Sequence[Path], *, keep: bool) -> KeptTexts:
    """Find what is kept of a model; Python files are looked for below the roots."""
    own = SourceFile(file_name, safe_name(file_name), "mlir")
    if not keep:
        return KeptTexts((own,), {})
    names = {frame.place.file for op in model.operations for frame in frames(op.location)}
    found: tuple[FoundSource, ...] = find_sources(names, tuple(roots))
    texts = {own.path: model.text, **{each.source.path: each.text for each in found}}
    return KeptTexts((own, *(each.source for each in found)), texts)


def safe_name(name: str) -> str:
    """A file name for the bundle: the model's own, without anything that could lead elsewhere."""
    safe = "".join(character if character.isalnum() or character in "._-" else "_" for character in Path(name).name)
    return safe.lstrip(".") or "model.mlir"
