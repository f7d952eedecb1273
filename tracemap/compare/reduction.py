"""The smallest part of a model that still shows a problem: the search for it, and the result."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Problem = Literal["slow", "nan", "wrong", "lost", "crash"]


def minimize(
    candidates: Iterable[int], shows: Callable[[frozenset[int]], bool], needed: frozenset[int] = frozenset()
) -> frozenset[int]:
    """A set of candidates that still shows the problem, and does not without any one of them.

    Delta debugging by complements (Zeller and Hildebrandt, TSE 2002): leaves out a half, then quarters, down to single
    candidates, until no single one can be left out.

    Args:
        candidates: indices; all of them show the problem.
        shows: whether these candidates, with the needed ones, show the problem.
        needed: those that are never left out.
    """
    kept = sorted(frozenset(candidates) - needed)
    size = max(1, len(kept) // 2)
    while kept:
        start, is_smaller = 0, False
        while start < len(kept):
            rest = kept[:start] + kept[start + size :]
            if shows(needed.union(rest)):
                kept, is_smaller = rest, True
            else:
                start += size
        if size == 1 and not is_smaller:
            break
        size = max(1, min(size, len(kept)) // 2)
    return needed.union(kept)


@dataclass(frozen=True)
class Reduction:
    """The result.

    Attributes:
        problem: what the model shows.
        model: the file of the reduced model.
        inputs: files of its inputs; empty: its inputs may be any.
        what: the op, dispatch or kernel with the problem, and the problem, for people.
        ops_before: the number of ops of the original model.
        ops: the number that is left.
        builds: the number of models that were compiled or taken from an earlier search.
        commands: the commands that show the problem, to run in the folder of the model.
        evidence: the figures of both models, for people.
        same_time: whether the times of a slow kernel agree; true for other problems.
        names: names of the original that are left with `--anonymous`, since the problem does not show without them.
        data: constants and inputs of the original that are left with `--anonymous` for the same reason.
    """

    problem: Problem
    model: Path
    inputs: tuple[Path, ...]
    what: str
    ops_before: int
    ops: int
    builds: int
    commands: tuple[str, ...]
    evidence: tuple[str, ...] = ()
    same_time: bool = True
    names: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
