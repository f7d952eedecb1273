"""How operations in the phases of a compilation are known to come from operations of the model: by tags, or without.

Where the compilation ran elsewhere there are no tags. What is left of identity are the locations that the model gives
its operations itself: an operation of a phase comes from the ops whose whole location it carries, and ops that share a
location cannot be told apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Protocol

from tracemap.ir.dump_text import DumpText
from tracemap.ir.parsing import MlirParser, walk
from tracemap.ir.source import TEXT_FILE
from tracemap.locations import FileRange, Location
from tracemap.mapping.model.facts import ModelFacts
from tracemap.mapping.model.kinds import computes
from tracemap.mapping.tagging import Provenance, Tags

_STANDARD_INPUT = ("-", "<stdin>")


class Identity(Protocol):
    """How operations of the phases are known to come from operations of the model."""

    @property
    def provenance(self) -> Provenance:
        """What a location says about where an operation came from."""

    def located(self, dump: str) -> frozenset[int]:
        """The indices of the ops that the dump of a phase still locates, by themselves or by a part of them."""


class TagIdentity:
    """By the tags that tracemap put in: exact."""

    def __init__(self, tags: Tags, facts: ModelFacts) -> None:
        self._tags = Tags(tags.prefix, facts.call_ops)
        self._facts = facts

    @property
    def provenance(self) -> Provenance:
        """The tags themselves."""
        return self._tags

    def located(self, dump: str) -> frozenset[int]:
        """The ops whose tags stand on operations of the dump."""
        return self._facts.owners(DumpText(dump, self._tags.prefix).tags())


class LocationIdentity:
    """By the model's own locations: as good as those are. `file_name`: of the model, as the compiler was given it."""

    def __init__(self, parser: MlirParser, facts: ModelFacts, file_name: str) -> None:
        self._parser = parser
        self._facts = facts
        self._locations = LocationsOfModel(facts, file_name)

    @property
    def provenance(self) -> Provenance:
        """The whole locations of the model's operations."""
        return self._locations

    def located(self, dump: str) -> frozenset[int]:
        """The ops whose location an operation of the dump carries."""
        locations = map(self._parser.location, walk(self._parser.parse(dump).operation))
        return self._facts.owners({index for location in locations for index in self._locations.of(location)})


class LocationsOfModel(Provenance):
    """Provenance by the locations that the model gives its own operations.

    Where several ops share a location, those that do the work stand for all: a frontend writes one location on an op
    and on the constants, initial values and reshapes that belong to it.
    """

    def __init__(self, facts: ModelFacts, file_name: str) -> None:
        super().__init__(facts.call_ops)
        self._base_name = PurePosixPath(file_name).name
        sharing: dict[Location, list[int]] = {}
        for index in sorted(facts.with_location):
            sharing.setdefault(facts.operations[index].parsed_location, []).append(index)
        self._indices = {location: _most_able(indices, facts) for location, indices in sharing.items()}

    def named_by(self, location: Location) -> Sequence[int]:
        """The operations that have this very location; places in the model's file go by the name of its text."""
        exact = self._indices.get(location, ())
        if not exact and isinstance(location, FileRange) and self._is_model(location.file):
            # The parser made the places up in both runs: of a file here, of a text without a name there.
            exact = self._indices.get(replace(location, file=TEXT_FILE), ())
        return exact

    def _is_model(self, file: str) -> bool:
        return file in _STANDARD_INPUT or PurePosixPath(file).name == self._base_name


def _most_able(indices: Sequence[int], facts: ModelFacts) -> tuple[int, ...]:
    """Of operations that share a location those of the ops that most surely do work of their own."""
    rank_of = {index: _rank(facts.operations[index].owner, facts) for index in indices}
    best = min(rank_of.values())
    return tuple(index for index in indices if rank_of[index] == best)


def _rank(op: int, facts: ModelFacts) -> int:
    """How surely an op does work of its own: 0 does, 1 moves elements, 2 does none."""
    if not computes(facts.operations[op]):
        return 2
    return 1 if op in facts.moves else 0
