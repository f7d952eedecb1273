"""To whom what stands in phases belongs: locations to ops of the model, functions to those that users call."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass

from tracemap.graph.ops import OpId
from tracemap.ir.flow import FlowProgram
from tracemap.ir.source import SourceOperation
from tracemap.locations import Location
from tracemap.mapping.identity import Provenance
from tracemap.mapping.model.facts import ModelFacts


@dataclass(frozen=True, slots=True)
class Owners:
    """The ops that locations tell of: parts stand for their op, and ops that do not count are left out.

    `op_of_index`: of each operation that counts its op's id; `call_of_index`: the ids of the ops that are calls.
    """

    provenance: Provenance
    op_of_index: Mapping[int, OpId]
    call_of_index: Mapping[int, OpId]

    @classmethod
    def among(cls, facts: ModelFacts, provenance: Provenance, counts: Callable[[SourceOperation], bool]) -> Owners:
        """Of the ops of a model those that count."""
        ids = {op.index: OpId.of(op.index) for op in facts.ops if counts(op)}
        op_of_index = {each.index: ids[each.owner] for each in facts.operations if each.owner in ids}
        return cls(provenance, op_of_index, {call: OpId.of(call) for call in facts.call_ops})

    def of(self, location: Location) -> tuple[OpId, ...]:
        """The ids of the ops that an operation with this location came from, in order, each once."""
        indices = self.provenance.of(location)
        return tuple(dict.fromkeys(self.op_of_index[index] for index in indices if index in self.op_of_index))

    def path(self, location: Location) -> tuple[OpId, ...]:
        """The ids of the call ops that led to what stands at a location, outermost first."""
        indices = self.provenance.callers(location)
        return tuple(self.call_of_index[index] for index in indices if index in self.call_of_index)


ASYNC_SUFFIX = "$async"
"""The compiler makes a function `f$async` of each public function `f`, and `f` waits for it."""


def public_callers(flow: FlowProgram) -> dict[str, str]:
    """For each function the public function that users call to reach it.

    The asynchronous form `f$async` is reached through its wrapper `f`; a private function that several public ones
    reach stands for itself.
    """
    callers: dict[str, set[str]] = defaultdict(set)
    for function in flow.functions:
        for callee in function.calls:
            callers[callee].add(function.name)
    public = {function.name for function in flow.functions if function.public}
    found: dict[str, str] = {}
    for name in (function.name for function in flow.functions):
        if name in public:
            found[name] = _wrapper(name, public)
        else:
            # f and f$async both reach what f$async calls: they are one public function.
            reaching = {_wrapper(caller, public) for caller in _reaching(name, callers) if caller in public}
            found[name] = reaching.pop() if len(reaching) == 1 else name
    return found


def _wrapper(name: str, public: Set[str]) -> str:
    plain = name.removesuffix(ASYNC_SUFFIX)
    return plain if plain in public else name


def _reaching(name: str, callers: Mapping[str, Set[str]]) -> set[str]:
    """The functions that call a function, directly or not."""
    seen: set[str] = set()
    stack = [name]
    while stack:
        for caller in callers.get(stack.pop(), ()):
            if caller not in seen:
                seen.add(caller)
                stack.append(caller)
    return seen
