"""Other configurations of a kernel than the compiler's own, from its own outwards; the best one that is right.

Candidates halve and double tiles and vector sizes, those first that differ the least. Each is compiled, verified and
timed next to the default: both in the same process, batch by batch in turn, so that what changes on the machine
changes both. The worse half is given up after each round, until one is left; it is then measured again, by itself, so
that the choice among many does not flatter it. A gain is claimed only where the interval of the ratio says so.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from msgspec import structs

from tracemap.errors import ModelInvalid, ToolFailed
from tracemap.experiments.bench import verified
from tracemap.experiments.cases import Case
from tracemap.experiments.configuring import Levels, Sizes, levels_of, written
from tracemap.experiments.job import Call, Job
from tracemap.experiments.model import Ratio, Status, Verification
from tracemap.experiments.running import Ended, run_job
from tracemap.experiments.specs import root_of
from tracemap.experiments.wrapping import compile_wrapped, wrapped
from tracemap.ir.executables import executables_of
from tracemap.ir.parsing import MlirParser
from tracemap.toolchain import Progress
from tracemap.units import UNKNOWN

_DEVICE: Final = "local-sync"
_FARTHEST: Final = 3
"""Halvings and doublings in all."""
_LARGEST: Final = 512
_USUAL_TILES: Final = (16, 32, 64, 128)
_USUAL_VECTORS: Final = (4, 8, 16)
_FIRST_ROUND: Final = 3
_LAST_ROUND: Final = 15
_LEAST_NS: Final = 5_000_000
_LIMIT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was found for a kernel: the best configuration of its root and its ratio to the default, None for no gain.

    `failed`: candidates that could not be compiled, or were wrong. `obstacle`: why none was tried, "" otherwise.
    """

    kernel: str
    tried: int
    failed: int
    best: str
    ratio: Ratio | None
    obstacle: str = ""


def candidates_of(levels: Levels, most: int) -> Iterator[Levels]:
    """Configurations other than a given one, those that differ the least first."""
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


@dataclass(frozen=True, slots=True)
class Tuning:
    """A kernel to tune: its case, the bundle's configured module and flags, and a folder for what is made."""

    case: Case
    configured: bytes
    flags: tuple[str, ...]
    folder: Path

    def run(self, candidates: int, limit_s: float, threshold: float, progress: Progress) -> Outcome:
        """Try candidates; the folder keeps nothing that is needed later."""
        until = time.monotonic() + limit_s
        default = self._levels()
        kernel = self.case.kernel
        if not default:
            return Outcome(kernel, 0, 0, "", None)
        own = self._compiled(default, 0)
        positive, obstacle = self._data(own)
        if own is None or obstacle:
            return Outcome(kernel, 0, 0, "", None, obstacle)
        modules: list[tuple[Levels, Path]] = []
        tried = failed = 0
        for levels in candidates_of(default, candidates):
            if time.monotonic() > until:
                break
            tried += 1
            progress(f"compiling candidate {tried} of {kernel}")
            module = self._compiled(levels, tried)
            if module is None or not self._is_right(module, positive):
                failed += 1
            else:
                modules.append((levels, module))
        best = self._best(own, modules, until, progress)
        if best is None:
            return Outcome(kernel, tried, failed, "", None)
        levels, module = best
        ratio = interval_of(self._ratios(own, [module], _LAST_ROUND)[0])
        gained = ratio is not None and ratio.high < 1 / (1 + threshold / 100)
        return Outcome(kernel, tried, failed, written(levels) if gained else "", ratio if gained else None)

    def _levels(self) -> Levels:
        """The tiles and vectors of the kernel's root, as the compiler chose them; none where it has none."""
        parser = MlirParser()
        module = parser.parse(self.configured)
        executable = executables_of(module)[self.case.dispatch.target[0]]
        root = root_of(executable.operation)
        return {} if root is None else levels_of(str(root.attributes["lowering_config"]))

    def _compiled(self, levels: Levels, number: int) -> Path | None:
        """A module that calls the kernel with a configuration; None where the compiler does not take it."""
        parser = MlirParser()
        module = parser.parse(self.configured)
        executable = executables_of(module)[self.case.dispatch.target[0]]
        root = root_of(executable.operation)
        assert root is not None
        try:
            root.attributes["lowering_config"] = parser.attribute(written(levels))
            text = wrapped(module, [self.case.dispatch])
            return compile_wrapped(text, self.flags, self.folder, f"candidate-{number}")
        except (ModelInvalid, ToolFailed):
            return None

    def _data(self, own: Path | None) -> tuple[bool, str]:
        """Whether made-up floats are to be positive, and why the kernel is not tuned: what it computes is not known."""
        if own is None:
            return False, "it cannot be compiled alone"
        found = self._verified(own, positive=False)
        if found.status is Status.SUCCESS:
            return False, ""
        if self._verified(own, positive=True).status is Status.SUCCESS:
            return True, ""
        return False, f"what it computes cannot be verified: {found.reason}"

    def _is_right(self, module: Path, positive: bool) -> bool:
        return self._verified(module, positive).status is Status.SUCCESS

    def _verified(self, module: Path, positive: bool) -> Verification:
        call = self.case.call(0, positive)
        job = Job((str(module),), _DEVICE, (call,), str(self.folder), 0, 1, 0)
        (answer,) = run_job(job, self.folder, _LIMIT_S, lambda _: None)
        if isinstance(answer, Ended):
            return Verification(Status.FAILED, UNKNOWN, 0.0, answer.text)
        return verified(self.case, call, self.folder, answer)

    def _best(
        self, own: Path, modules: Sequence[tuple[Levels, Path]], until: float, progress: Progress
    ) -> tuple[Levels, Path] | None:
        """The fastest of many, the worse half given up after each round; None of none."""
        left = list(modules)
        turns = _FIRST_ROUND
        while len(left) > 1:
            progress(f"timing {len(left)} candidates of {self.case.kernel}")
            ratios = self._ratios(own, [module for _, module in left], turns)
            order = sorted(range(len(left)), key=lambda each: statistics.median(ratios[each]))
            left = [left[each] for each in order[: -(-len(left) // 2)]]
            if time.monotonic() > until:
                return left[0]
            if len(left) == 1:
                break
            turns += _FIRST_ROUND
        return left[0] if left else None

    def _ratios(self, own: Path, modules: Sequence[Path], turns: int) -> list[list[float]]:
        """Of each module the ratios of its time to the default's next to it, one per turn."""
        call = self.case.call(0)
        ratios: list[list[float]] = [[] for _ in modules]
        paths = (str(own), *map(str, modules))
        series: list[Call] = []
        for turn in range(turns):
            for number in range(len(modules)):
                pair = (call, structs.replace(call, module=number + 1))
                series += pair if turn % 2 == 0 else pair[::-1]
        job = Job(paths, _DEVICE, tuple(series), "", 3, _LEAST_NS, 0)
        times: list[float] = []
        for answer in run_job(job, self.folder, _LIMIT_S, lambda _: None):
            times.append(math.inf if isinstance(answer, Ended) else min(answer.warm.call_ns))
        for place in range(0, len(series), 2):
            one, two = times[place : place + 2]
            first_is_own = series[place].module == 0
            number = max(series[place].module, series[place + 1].module) - 1
            own_ns, other_ns = (one, two) if first_is_own else (two, one)
            # What does not come to its end is no gain, whichever of the two it was.
            ratios[number].append(other_ns / own_ns if math.isfinite(own_ns) else math.inf)
        return ratios


def interval_of(ratios: Sequence[float]) -> Ratio | None:
    """The median of ratios with its interval of 95 % by order statistics (Conover, section 3.2); None of too few."""
    ordered = sorted(ratios)
    count = len(ordered)
    below = 0
    # The largest number of values to leave out at each end so that the median lies between with 95 %.
    total, term = 0.0, 0.5**count
    for number in range(count // 2):
        total += term
        if total > 0.025:
            break
        below = number + 1
        term = term * (count - number) / (number + 1)
    if below == 0:
        return None
    return Ratio(round(statistics.median(ordered), 4), round(ordered[below - 1], 4), round(ordered[-below], 4))
