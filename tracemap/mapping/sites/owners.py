"""Locations in a compilation's phases, translated to ids of ops of the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tracemap.graph.model import CallPath, OpId
from tracemap.ir.source import SourceOperation
from tracemap.locations import Location
from tracemap.mapping.model.facts import ModelFacts
from tracemap.mapping.tagging import Provenance


@dataclass(frozen=True, slots=True)
class Owners:
    """The ops that locations tell of: parts stand for their op, and ops that do not count are left out.

    `op_of_index`: of each operation that counts its op's id; `call_of_index`: the ids of the ops that are calls.
    """

    provenance: Provenance
    op_of_index: Mapping[int, OpId]
    call_of_index: Mapping[int, OpId]
    _known: dict[int, tuple[Location, tuple[OpId, ...]]] = field(default_factory=dict)
    """By identity, as provenance is: many operations have one location, and are asked for their ops many times."""

    @classmethod
    def among(cls, facts: ModelFacts, provenance: Provenance, counts: Callable[[SourceOperation], bool]) -> Owners:
        """Of the ops of a model those that count."""
        ids = {op.index: OpId.of(op.index) for op in facts.ops if counts(op)}
        op_of_index = {each.index: ids[each.owner] for each in facts.operations if each.owner in ids}
        return cls(provenance, op_of_index, {call: OpId.of(call) for call in facts.call_ops})

    def of(self, location: Location) -> tuple[OpId, ...]:
        """The ids of the ops that an operation with this location came from, in order, each once."""
        known = self._known.get(id(location))
        if known is None:
            indices = self.provenance.of(location)
            found = dict.fromkeys([self.op_of_index[index] for index in indices if index in self.op_of_index])
            known = self._known[id(location)] = (location, tuple(found))
        return known[1]

    def ways(self, location: Location) -> Iterator[tuple[OpId, CallPath]]:
        """The same ids with the calls that led to each op: one that several calls led to once for each."""
        for index, callers in self.provenance.ways(location):
            if index in self.op_of_index:
                yield self.op_of_index[index], self._calls(callers)

    def path(self, location: Location) -> CallPath:
        """The ids of the call ops that led to what stands at a location, to the first of several, outermost first."""
        return next((self._calls(callers) for _, callers in self.provenance.ways(location)), ())

    def _calls(self, callers: Sequence[int]) -> CallPath:
        return tuple([self.call_of_index[index] for index in callers if index in self.call_of_index])
