"""The calls that lead to ops which no location places."""

from __future__ import annotations

from tracemap.graph.ops import Evidence, OpId
from tracemap.graph.program import CallPath, Membership, Site
from tracemap.ir.source import SourceOperation
from tracemap.mapping.model.facts import ModelFacts
from tracemap.mapping.sites.amounts import assumed, is_assumed
from tracemap.units import Integer


def untold_member(
    operation: SourceOperation, site: Site, facts: ModelFacts, *, operations: Integer, traffic: Integer, root: bool
) -> Membership:
    """A member of a site that no location in its body names, with what it is estimated to cost there: absorbed."""
    path, *others = paths_to(operation, site, facts)
    member = Membership(OpId.of(operation.index), Evidence.ABSORBED, root, operations, traffic, path, tuple(others))
    return assumed(member) if is_assumed(site) else member


def paths_to(operation: SourceOperation, site: Site, facts: ModelFacts) -> tuple[CallPath, ...]:
    """The calls that lead to an op in a site, one way or several.

    They are those of a member of the same function in the site, else the only chain of calls that there is.
    """
    for member in site.members:
        if facts.operations[member.op.number].function == operation.function:
            return member.paths
    chain: list[OpId] = []
    while isinstance(operation.function, str) and len(facts.calls.of(operation.function)) == 1:
        operation = facts.calls.of(operation.function)[0]
        if OpId.of(operation.index) in chain:
            break
        chain.append(OpId.of(operation.index))
    return (tuple(reversed(chain)),)
