"""Configurations of kernels: tiles, vectors, pipelines, and candidates to try."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tracemap.errors import UsageInvalid
from tracemap.inputs import names_file
from tracemap.ir.executables import Executable
from tracemap.ir.parsing import MlirParser, Operation, walk

# ---- configuring
#
# Configurations of kernels for CPUs: which tiles, vectors and pipeline code generation is to use, not its own.


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


# ---- candidates
#
# Other configurations of a kernel than the compiler's own, from its own outwards.
#
# Sizes of tiles and vectors are halved and doubled, those first that differ the least; then come sizes that are good
# for many kernels. Before all of them the other pipelines of IREE are tried with the compiler's own sizes: one that
# makes other code, and right code, is tried with other sizes too, now and then.


PIPELINES: Final = (
    *("DoubleTilingExpert", "ConvTileAndDecomposeExpert", "Mmt4dTilingExpert", "LinalgExtTileAndVectorize"),
    *("BufferOpsTileAndVectorize", "Default"),
)
"""Those of IREE 3.13 for CPUs, by the names that `#iree_cpu.pipeline` takes; another release refuses what it lacks."""
_OF_PIPELINES: Final = 4
"""One candidate of so many has another pipeline than the compiler's."""
_FARTHEST: Final = 3
"""Halvings and doublings in all."""
_LARGEST: Final = 512
_USUAL_TILES: Final = (16, 32, 64, 128)
_USUAL_VECTORS: Final = (4, 8, 16)


@dataclass(frozen=True, slots=True)
class Candidate:
    """The sizes of a kernel's root, and the pipeline that the kernel is compiled by."""

    levels: Levels
    pipeline: str


def other_pipelines(default: Candidate, most: int) -> list[Candidate]:
    """The sizes of the default with other pipelines, for so many candidates in all."""
    others = [name for name in PIPELINES if name != default.pipeline] if default.pipeline else []
    return [replace(default, pipeline=name) for name in others[: most // _OF_PIPELINES]]


def candidates_of(default: Candidate, most: int, pipelines: Sequence[str] = ()) -> Iterator[Candidate]:
    """Candidates with other sizes than the default's, those that differ the least first.

    Args:
        default: the compiler's own configuration.
        most: so many in all.
        pipelines: others than the default's; now and then a candidate has one of them.
    """
    turns = itertools.cycle(pipelines)
    with_others = sizes_of(default.levels, most) if pipelines else iter(())
    series = sizes_of(default.levels, most)
    for number in range(1, most + 1):
        other = next(with_others, None) if number % _OF_PIPELINES == 0 else None
        levels = next(series, None) if other is None else other
        if levels is None:
            return
        yield Candidate(levels, default.pipeline if other is None else next(turns))


def sizes_of(levels: Levels, most: int) -> Iterator[Levels]:
    """Sizes other than given ones, those that differ the least first."""
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
        *(_steps_away(levels, changeable, distance) for distance in range(2, _FARTHEST + 1)),
    )
    for made in series:
        if made not in seen:
            seen.append(made)
            yield made
            if len(seen) > most:
                return


def _steps_away(levels: Levels, changeable: Sequence[tuple[str, int]], distance: int) -> Iterator[dict[str, Sizes]]:
    """All that so many halvings and doublings lead to."""
    for steps in itertools.product(range(-distance, distance + 1), repeat=len(changeable)):
        if sum(map(abs, steps)) == distance:
            made = _scaled(levels, dict(zip(changeable, steps, strict=True)))
            if made is not None:
                yield made


def _usual(levels: Levels) -> Iterator[dict[str, Sizes]]:
    """Sizes that are good for many kernels, for one whose own are far from any of them."""
    for tile, vector in itertools.product(_USUAL_TILES, _USUAL_VECTORS):
        made = {name: list(sizes) for name, sizes in levels.items()}
        for name, wanted in (("distribution", tile), ("vector_common_parallel", vector), ("vector_reduction", vector)):
            made[name] = [wanted if size else 0 for size in made.get(name, [])]
        yield _checked(made)


def _checked(made: dict[str, list[int]]) -> dict[str, Sizes]:
    """Cache tiles as large as those of a workgroup; they are what the pipeline tiles by first."""
    if "cache_parallel" in made and "distribution" in made:
        made["cache_parallel"] = list(made["distribution"])
    return {name: tuple(sizes) for name, sizes in made.items() if sizes}


def _scaled(levels: Levels, steps: dict[tuple[str, int], int]) -> dict[str, Sizes] | None:
    """Sizes halved and doubled; None where one cannot be, or a vector would be larger than its tile."""
    made = {name: list(sizes) for name, sizes in levels.items()}
    for (name, loop), step in steps.items():
        size = made[name][loop] * 2**step if step >= 0 else made[name][loop] // 2**-step
        if not 1 <= size <= _LARGEST:
            return None
        made[name][loop] = size
    tiles, vectors = made.get("distribution", []), made.get("vector_common_parallel", [])
    if any(0 < tile < vector for tile, vector in zip(tiles, vectors, strict=False)):
        return None
    return _checked(made)
