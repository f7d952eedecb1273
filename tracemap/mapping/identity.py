"""How operations in the phases of a compilation are known to come from operations of the model: by tags, or without.

Where the compilation ran elsewhere there are no tags. What is left of identity are the locations that the model gives
its operations itself: an operation of a phase comes from the ops whose whole location it carries, and ops that share a
location cannot be told apart.
"""

from __future__ import annotations

from typing import Protocol

from tracemap.ir.dump_text import DumpText
from tracemap.ir.parsing import MlirParser, walk
from tracemap.mapping.model.facts import ModelFacts
from tracemap.mapping.model_locations import LocationsOfModel
from tracemap.mapping.tagging import Provenance, Tags


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
        told = self._locations
        return self._facts.owners(
            {index for location in locations for index in (*told.of(location), *told.doubtful(location))}
        )
