"""Translates locations in a compilation's phases to ids of the model's ops."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tracemap.core.locations import Location
from tracemap.ir.source_model import SourceOperation
from tracemap.map.build.model.model_facts import ModelFacts
from tracemap.map.build.tagging import Provenance
from tracemap.map.model import CallPath, OpId


@dataclass(frozen=True, slots=True)
class Owners:
    """The ops that locations belong to. A part counts as its op; ops that are not counted are left out.

    `op_of_index`: index of each operation -> id of its op; `call_of_index`: the ids of the call ops.
    """

    provenance: Provenance
    op_of_index: Mapping[int, OpId]
    call_of_index: Mapping[int, OpId]
    _known: dict[int, tuple[Location, tuple[OpId, ...]]] = field(default_factory=dict)
    """Cache of ops by the location's id(), like in `Provenance`: many operations share a location."""

    @classmethod
    def among(cls, facts: ModelFacts, provenance: Provenance, is_counted: Callable[[SourceOperation], bool]) -> Owners:
        """The owners among the ops of a model for which `is_counted` holds."""
        ids = {op.index: OpId.of(op.index) for op in facts.ops if is_counted(op)}
        op_of_index = {
            operation.index: ids[operation.owner] for operation in facts.operations if operation.owner in ids
        }
        return cls(provenance, op_of_index, {call: OpId.of(call) for call in facts.call_ops})

    def of(self, location: Location) -> tuple[OpId, ...]:
        """The ids of the ops that an operation with this location came from, in order, without duplicates."""
        cached = self._known.get(id(location))
        if cached is None:
            indices = self.provenance.of(location)
            ops = dict.fromkeys([self.op_of_index[index] for index in indices if index in self.op_of_index])
            cached = self._known[id(location)] = (location, tuple(ops))
        return cached[1]

    def op_paths(self, location: Location) -> Iterator[tuple[OpId, CallPath]]:
        """The same ids with the calls that led to each op; an entry for each path of calls."""
        for index, callers in self.provenance.op_paths(location):
            if index in self.op_of_index:
                yield self.op_of_index[index], self._calls(callers)

    def path(self, location: Location) -> CallPath:
        """The ids of the call ops that led to a location, outermost first; the first path if there are several."""
        return next((self._calls(callers) for _, callers in self.provenance.op_paths(location)), ())

    def _calls(self, callers: Sequence[int]) -> CallPath:
        return tuple([self.call_of_index[index] for index in callers if index in self.call_of_index])
