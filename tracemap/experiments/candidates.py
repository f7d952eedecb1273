"""Other configurations of a kernel than the compiler's own, from its own outwards.

Sizes of tiles and vectors are halved and doubled, those first that differ the least; then come sizes that are good for
many kernels. Before all of them the other pipelines of IREE are tried with the compiler's own sizes: one that makes
other code, and right code, is tried with other sizes too, now and then.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tracemap.experiments.configuring import Levels, Sizes

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
