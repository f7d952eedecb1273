"""How far each op's location gets: the last phase of the compiler whose dump still locates it."""

from __future__ import annotations

from collections.abc import Iterable

from tracemap.graph.ops import PHASES, SOURCE


class Survival:
    """Collects, phase by phase, which ops are still located."""

    def __init__(self) -> None:
        self._last: dict[int, int] = {}

    def add(self, phase: str, located: Iterable[int]) -> None:
        """The ops that are located after a phase; phases may come in any order, and some not at all."""
        place = PHASES.index(phase)
        for index in located:
            self._last[index] = max(place, self._last.get(index, place))

    def last_phase(self, index: int) -> str:
        """The last phase that locates an op; `SOURCE` where none does."""
        return PHASES[self._last[index]] if index in self._last else SOURCE
