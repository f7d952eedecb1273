"""Configurations of kernels for CPUs: which tiles, vectors and pipeline code generation is to use, not its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tracemap.errors import UsageInvalid
from tracemap.inputs import names_file
from tracemap.ir.executables import Executable
from tracemap.ir.parsing import MlirParser, Operation, walk

DEFAULT: Final = "default"
_PART = re.compile(r"(tiles|vectors)=(\d{1,6}(?:x\d{1,6})*)|(pipeline)=(\w+)|(spec)=(.+)")
_TILES = re.compile(r"(\w+) = \[([\d, \[\]]*)\]")
_PIPELINE = re.compile(r"(#iree_cpu\.pipeline<)(\w+)")


@dataclass(frozen=True, slots=True)
class Configuration:
    """What is asked for, as it was typed; nothing of it: the compiler's own choice.

    `tiles` are for the parallel loops of a workgroup, `vectors` for all loops of a vector; `spec` is a tuning spec.
    """

    text: str = DEFAULT
    tiles: tuple[int, ...] = ()
    vectors: tuple[int, ...] = ()
    pipeline: str = ""
    spec: Path | None = None

    @property
    def flags(self) -> tuple[str, ...]:
        """What the compiler is told besides."""
        return () if self.spec is None else (f"--iree-codegen-tuning-spec-path={self.spec}",)


def read_configuration(text: str) -> Configuration:
    """A configuration as it is typed: `default`, or parts with semicolons between them.

    >>> read_configuration("tiles=32x64;vectors=8x8x16").tiles
    (32, 64)

    Raises:
        UsageInvalid: it is none.
    """
    if text == DEFAULT:
        return Configuration()
    found: dict[str, str] = {}
    for part in text.split(";"):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise UsageInvalid(
                f"{part!r}: a configuration is `default`, or of tiles=32x64, vectors=8x8x16, pipeline=NAME, spec=FILE, "
                "with semicolons between them"
            )
        name, value = [group for group in match.groups() if group is not None]
        found[name] = value
    spec = Path(found["spec"]).resolve() if "spec" in found else None
    if spec is not None and not names_file(spec):
        raise UsageInvalid(f"{spec}: there is no such tuning spec")
    tiles, vectors = (_sizes(found.get(name, "")) for name in ("tiles", "vectors"))
    return Configuration(text, tiles, vectors, found.get("pipeline", ""), spec)


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(size) for size in text.split("x") if size)


def apply(configuration: Configuration, executable: Executable, parser: MlirParser) -> bool:
    """Change the configuration of an executable's root; whether there was one to change."""
    if not (configuration.tiles or configuration.vectors or configuration.pipeline):
        return True
    changed = False
    for operation in walk(executable.operation):
        if "lowering_config" in operation.attributes:
            changed |= _change_tiles(configuration, operation, parser)
    if configuration.pipeline:
        with_pipeline(executable.operation, configuration.pipeline, parser)
    return changed


def pipeline_of(operation: Operation) -> str:
    """The pipeline of the first kernel in an operation; "" where the compiler names none for CPUs."""
    infos = (each.attributes["translation_info"] for each in walk(operation) if "translation_info" in each.attributes)
    found = _PIPELINE.search(str(next(infos, "")))
    return found[2] if found else ""


def with_pipeline(operation: Operation, pipeline: str, parser: MlirParser) -> None:
    """Give the kernels in an operation another pipeline.

    Raises:
        ModelInvalid: IREE has no such pipeline.
    """
    for each in walk(operation):
        if "translation_info" in each.attributes:
            text = information(str(each.attributes["translation_info"]), pipeline)
            each.attributes["translation_info"] = parser.attribute(text)


def information(text: str, pipeline: str) -> str:
    """A translation's information, as text, with another pipeline; "" leaves it as it is."""
    return _PIPELINE.sub(lambda found: found[1] + pipeline, text) if pipeline else text


Sizes = tuple[int, ...]
Levels = Mapping[str, Sizes]
"""Sizes by what they are for (`distribution`, `vector_reduction`, …), one for each loop; 0: not tiled there."""


def levels_of(text: str) -> Levels:
    """The sizes of a lowering configuration for CPUs, from its text."""
    found = [(name, sizes) for name, sizes in _TILES.findall(text) if "[" not in sizes]
    return {name: tuple(int(size) for size in sizes.split(",")) for name, sizes in found}


def written(levels: Levels) -> str:
    """The text of a lowering configuration."""
    parts = [f"{name} = [{', '.join(map(str, sizes))}]" for name, sizes in sorted(levels.items())]
    return f"#iree_cpu.lowering_config<{', '.join(parts)}>"


def _change_tiles(configuration: Configuration, operation: Operation, parser: MlirParser) -> bool:
    """Set what a lowering configuration says of tiles and vectors, for as many loops as the operation has."""
    text = str(operation.attributes["lowering_config"])
    levels = {name: list(sizes) for name, sizes in levels_of(text).items()}
    if not levels:
        return False
    reduced = [bool(size) for size in levels.get("vector_reduction", [])]
    loops = max(len(sizes) for sizes in levels.values())
    reduced += [False] * (loops - len(reduced))
    new = dict(levels)
    for name in ("distribution", "cache_parallel"):
        if name in levels and configuration.tiles:
            new[name] = _over(configuration.tiles, reduced, loops, of_reduction=False, old=levels[name])
    for name, of_reduction in (("vector_common_parallel", False), ("vector_reduction", True)):
        if name in levels and configuration.vectors:
            new[name] = _over(configuration.vectors, reduced, loops, of_reduction=of_reduction, old=levels[name])

    def rewritten(found: re.Match[str]) -> str:
        sizes = new.get(found[1])
        return found[0] if sizes is None else f"{found[1]} = [{', '.join(map(str, sizes))}]"

    operation.attributes["lowering_config"] = parser.attribute(_TILES.sub(rewritten, text))
    return "distribution" in levels


def _over(sizes: tuple[int, ...], reduced: list[bool], loops: int, *, of_reduction: bool, old: list[int]) -> list[int]:
    """Sizes for the loops of one sort, 0 for the others; loops that no size is given for keep theirs."""
    found = []
    for loop in range(min(loops, len(old))):
        if reduced[loop] != of_reduction:
            found.append(0)
        else:
            found.append(sizes[loop] if loop < len(sizes) else old[loop])
    return found
