"""The calls that lead to ops which no location places."""

from __future__ import annotations

from tracemap.graph.ops import OpId
from tracemap.graph.program import Site
from tracemap.ir.source import SourceOperation
from tracemap.mapping.model.facts import ModelFacts


def path_to(operation: SourceOperation, site: Site, facts: ModelFacts) -> tuple[OpId, ...]:
    """The calls that lead to an op in a site, outermost first.

    They are those of a member of the same function in the site, else the only chain of calls that there is.
    """
    for member in site.members:
        if facts.operations[member.op.number].function == operation.function:
            return member.path
    chain: list[OpId] = []
    while isinstance(operation.function, str) and len(facts.calls.of(operation.function)) == 1:
        operation = facts.calls.of(operation.function)[0]
        if OpId.of(operation.index) in chain:
            break
        chain.append(OpId.of(operation.index))
    return tuple(reversed(chain))
