"""Configurations of kernels: tiles, vectors, pipelines, and candidates to try."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tracemap.core.errors import UsageInvalid
from tracemap.core.files import names_file
from tracemap.ir.executables import Executable, kernel_functions
from tracemap.ir.parsing import MlirParser, Module, Operation, string_attribute, walk

# ---- configuring
#
# Configurations of CPU kernels that override the tiles, vectors and pipeline of code generation.


DEFAULT: Final = "default"
_PART = re.compile(r"(tiles|vectors)=(\d{1,6}(?:x\d{1,6})*)|(pipeline)=(\w+)|(spec)=(.+)")
_TILES = re.compile(r"(\w+) = \[([\d, \[\]]*)\]")
_PIPELINE = re.compile(r"(#iree_cpu\.pipeline<)(\w+)")


@dataclass(frozen=True, slots=True)
class Configuration:
    """A configuration, with the text that the user typed. Parts that are empty are left to the compiler.

    `tiles` are for the parallel loops of a workgroup, `vectors` for all loops of a vector; `spec` is a tuning spec.
    """

    text: str = DEFAULT
    tiles: tuple[int, ...] = ()
    vectors: tuple[int, ...] = ()
    pipeline: str = ""
    spec: Path | None = None

    @property
    def flags(self) -> tuple[str, ...]:
        """Extra compiler flags."""
        return () if self.spec is None else (f"--iree-codegen-tuning-spec-path={self.spec}",)


def read_configuration(text: str) -> Configuration:
    """Parse a configuration: `default`, or parts separated by semicolons.

    >>> read_configuration("tiles=32x64;vectors=8x8x16").tiles
    (32, 64)

    Raises:
        UsageInvalid: the text is no configuration.
    """
    if text == DEFAULT:
        return Configuration()
    parts: dict[str, str] = {}
    for part in text.split(";"):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise UsageInvalid(
                f"{part!r}: not a configuration; pass `default`, or tiles=32x64, vectors=8x8x16, pipeline=NAME, "
                "spec=FILE separated by semicolons"
            )
        name, value = [group for group in match.groups() if group is not None]
        parts[name] = value
    spec = Path(parts["spec"]).resolve() if "spec" in parts else None
    if spec is not None and not names_file(spec):
        raise UsageInvalid(f"{spec}: no such tuning spec")
    tiles, vectors = (
        tuple(int(size) for size in parts.get(name, "").split("x") if size) for name in ("tiles", "vectors")
    )
    return Configuration(text, tiles, vectors, parts.get("pipeline", ""), spec)


def apply_configuration(configuration: Configuration, executable: Executable, parser: MlirParser) -> bool:
    """Change the configuration of an executable's root; returns False if the executable has none."""
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
    """The CPU pipeline of the first kernel in an operation; "" if the compiler names none."""
    infos = (op.attributes["translation_info"] for op in walk(operation) if "translation_info" in op.attributes)
    match = _PIPELINE.search(str(next(infos, "")))
    return match[2] if match else ""


def with_pipeline(operation: Operation, pipeline: str, parser: MlirParser) -> None:
    """Set the pipeline of all kernels in an operation.

    Raises:
        ModelInvalid: IREE has no such pipeline.
    """
    for op in walk(operation):
        if "translation_info" in op.attributes:
            text = set_pipeline_in_text(str(op.attributes["translation_info"]), pipeline)
            op.attributes["translation_info"] = parser.attribute(text)


def set_pipeline_in_text(text: str, pipeline: str) -> str:
    """The text of a `translation_info` attribute with another pipeline; unchanged for ""."""
    return _PIPELINE.sub(lambda match: match[1] + pipeline, text) if pipeline else text


_PIPELINE_NAME = re.compile(r"pipeline = (?:#[\w.]+pipeline<)?(\w+)")


def configuration(function: Operation) -> str:
    """A kernel's pipeline, and the tiles of its most tiled operation: `CPUDefault distribution=[64, 64, 0]`."""
    settings = dict(lowering_settings(function))
    pipeline = settings.pop("pipeline", "")
    return " ".join([*([pipeline] if pipeline else []), *(f"{name}={sizes}" for name, sizes in settings.items())])


def lowering_settings(function: Operation) -> Mapping[str, str]:
    """A kernel's pipeline, and the tile sizes of its most tiled operation by tiling level, as texts."""
    match = _PIPELINE_NAME.search(str(function.attributes.get("translation_info", "")))
    configs = (str(op.attributes.get("lowering_config", "")) for op in walk(function))
    tiles = max(map(_TILES.findall, configs), key=len, default=[])
    return ({"pipeline": match[1]} if match else {}) | {name: f"[{sizes}]" for name, sizes in tiles}


def settings_of_kernels(module: Module) -> Mapping[str, Mapping[str, str]]:
    """The lowering settings of all kernels of a configured module, by name."""
    functions = (function for _, function in kernel_functions(module))
    return {string_attribute(function, "sym_name"): lowering_settings(function) for function in functions}


Sizes = tuple[int, ...]
Levels = Mapping[str, Sizes]
"""Tile sizes by tiling level (`distribution`, `vector_reduction`, …), one per loop; 0: not tiled at this level."""


def levels_of(text: str) -> Levels:
    """The tile sizes of a CPU lowering configuration, parsed from its text."""
    levels = [(name, sizes) for name, sizes in _TILES.findall(text) if "[" not in sizes]
    return {name: tuple(int(size) for size in sizes.split(",")) for name, sizes in levels}


def lowering_config_text(levels: Levels) -> str:
    """The text of a lowering configuration."""
    parts = [f"{name} = [{', '.join(map(str, sizes))}]" for name, sizes in sorted(levels.items())]
    return f"#iree_cpu.lowering_config<{', '.join(parts)}>"


def _change_tiles(configuration: Configuration, operation: Operation, parser: MlirParser) -> bool:
    """Set the tiles and vectors of a lowering configuration, for all loops of the operation."""
    text = str(operation.attributes["lowering_config"])
    levels = levels_of(text)
    if not levels:
        return False
    reduced = {loop for loop, size in enumerate(levels.get("vector_reduction", ())) if size}
    new = dict(levels)
    for name, sizes, of_reduction in (
        ("distribution", configuration.tiles, False),
        ("cache_parallel", configuration.tiles, False),
        ("vector_common_parallel", configuration.vectors, False),
        ("vector_reduction", configuration.vectors, True),
    ):
        if name in levels and sizes:  # 0 for loops of the other kind; loops without a new size keep the old one
            new[name] = tuple(
                0 if (loop in reduced) != of_reduction else sizes[loop] if loop < len(sizes) else old
                for loop, old in enumerate(levels[name])
            )

    def replacement(match: re.Match[str]) -> str:
        sizes = new.get(match[1])
        return match[0] if sizes is None else f"{match[1]} = [{', '.join(map(str, sizes))}]"

    operation.attributes["lowering_config"] = parser.attribute(_TILES.sub(replacement, text))
    return "distribution" in levels


# ---- candidates
#
# First IREE's other pipelines are tried with the compiler's own sizes. Then tile and vector sizes are halved and
# doubled, smallest changes first, with sizes that suit many kernels in between. Some of these candidates use a pipeline
# that generated different, correct code in the first step.


PIPELINES: Final = (
    *("DoubleTilingExpert", "ConvTileAndDecomposeExpert", "Mmt4dTilingExpert", "LinalgExtTileAndVectorize"),
    *("BufferOpsTileAndVectorize", "Default"),
)
"""CPU pipelines of IREE 3.13, as in `#iree_cpu.pipeline`; other releases reject those that they lack."""
_PIPELINE_PERIOD: Final = 4
"""One candidate in this many has another pipeline than the compiler's choice."""
_MAX_STEPS: Final = 3
"""Maximum of halvings and doublings of a candidate."""
_MAX_SIZE: Final = 512
_USUAL_TILES: Final = (16, 32, 64, 128)
_USUAL_VECTORS: Final = (4, 8, 16)


@dataclass(frozen=True, slots=True)
class Candidate:
    """The tile sizes of a kernel's root, and the kernel's pipeline."""

    levels: Levels
    pipeline: str


def other_pipelines(default: Candidate, most: int) -> list[Candidate]:
    """The sizes of the default with other pipelines, given the total number of candidates (`most`)."""
    others = [name for name in PIPELINES if name != default.pipeline] if default.pipeline else []
    return [replace(default, pipeline=name) for name in others[: most // _PIPELINE_PERIOD]]


def candidates_of(default: Candidate, most: int, pipelines: Sequence[str] = ()) -> Iterator[Candidate]:
    """Candidates with other sizes than the default, smallest changes first.

    Args:
        default: the compiler's own configuration.
        most: maximum number of candidates.
        pipelines: other pipelines; one candidate in `_PIPELINE_PERIOD` has one of them.
    """
    turns = itertools.cycle(pipelines)
    with_others = sizes_of(default.levels, most) if pipelines else iter(())
    series = sizes_of(default.levels, most)
    for number in range(1, most + 1):
        other = next(with_others, None) if number % _PIPELINE_PERIOD == 0 else None
        levels = next(series, None) if other is None else other
        if levels is None:
            return
        yield Candidate(levels, default.pipeline if other is None else next(turns))


def sizes_of(levels: Levels, most: int) -> Iterator[Levels]:
    """Sizes that differ from the given ones, smallest changes first."""
    changeable = [
        (name, loop)
        for name in ("distribution", "vector_common_parallel", "vector_reduction")
        for loop, size in enumerate(levels.get(name, ()))
        if size > 0
    ]
    seen = [dict(levels)]
    series = itertools.chain(
        _steps_away(levels, changeable, 1),
        _usual(levels),
        *(_steps_away(levels, changeable, distance) for distance in range(2, _MAX_STEPS + 1)),
    )
    for candidate in series:
        if candidate not in seen:
            seen.append(candidate)
            yield candidate
            if len(seen) > most:
                return


def _steps_away(levels: Levels, changeable: Sequence[tuple[str, int]], distance: int) -> Iterator[dict[str, Sizes]]:
    """All sizes that this number of halvings and doublings leads to."""
    for steps in itertools.product(range(-distance, distance + 1), repeat=len(changeable)):
        if sum(map(abs, steps)) == distance:
            scaled = _scaled(levels, dict(zip(changeable, steps, strict=True)))
            if scaled is not None:
                yield scaled


def _usual(levels: Levels) -> Iterator[dict[str, Sizes]]:
    """Sizes that suit many kernels, in case the default is far from all of them."""
    for tile, vector in itertools.product(_USUAL_TILES, _USUAL_VECTORS):
        new = {name: list(sizes) for name, sizes in levels.items()}
        for name, usual in (("distribution", tile), ("vector_common_parallel", vector), ("vector_reduction", vector)):
            new[name] = [usual if size else 0 for size in new.get(name, [])]
        yield _with_cache_tiles(new)


def _with_cache_tiles(levels: dict[str, list[int]]) -> dict[str, Sizes]:
    """Set cache tiles, by which the pipeline tiles first, to the workgroup's tiles; drop empty levels."""
    if "cache_parallel" in levels and "distribution" in levels:
        levels["cache_parallel"] = list(levels["distribution"])
    return {name: tuple(sizes) for name, sizes in levels.items() if sizes}


def _scaled(levels: Levels, steps: dict[tuple[str, int], int]) -> dict[str, Sizes] | None:
    """Halved and doubled sizes; None if a size is out of range or a vector would exceed its tile."""
    new = {name: list(sizes) for name, sizes in levels.items()}
    for (name, loop), step in steps.items():
        size = new[name][loop] * 2**step if step >= 0 else new[name][loop] // 2**-step
        if not 1 <= size <= _MAX_SIZE:
            return None
        new[name][loop] = size
    tiles, vectors = new.get("distribution", []), new.get("vector_common_parallel", [])
    if any(0 < tile < vector for tile, vector in zip(tiles, vectors, strict=False)):
        return None
    return _with_cache_tiles(new)
