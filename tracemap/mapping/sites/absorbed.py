"""Members that no location tells: ops that the compiler raised into another op.

JAX's softmax (maximum, subtract, exponential, sum, divide) becomes one op that carries the location of the divide
alone. The model's def-use graph still tells: an op that survived the input phase, is found in no site, and whose every
use ends in members of sites, was absorbed there. Never constants, and never ops that only move elements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from msgspec import structs

from tracemap.graph.ops import Evidence, OpId
from tracemap.graph.program import Membership, Site
from tracemap.ir.flow import DispatchRegion
from tracemap.ir.source import SourceOperation
from tracemap.ir.types import product, shape_of
from tracemap.mapping.model.dataflow import Node
from tracemap.mapping.model.facts import ModelFacts
from tracemap.mapping.model.kinds import asks_for_shape, computes, passes_values_on
from tracemap.mapping.model.raised import RAISED
from tracemap.mapping.sites.cost import operations_of_source
from tracemap.mapping.sites.owners import Owners
from tracemap.mapping.sites.sites import sites_by_op
from tracemap.units import UNKNOWN, Integer


def add_absorbed(
    sites: Sequence[Site],
    bodies: Sequence[DispatchRegion | None],
    owners: Owners,
    facts: ModelFacts,
    alive: Set[int],
) -> tuple[Site, ...]:
    """The sites with the members that no location tells, behind the others, in the order of the model.

    Args:
        sites: with the members that locations tell.
        bodies: of the sites, in order.
        owners: of what stands in the bodies.
        facts: of the model.
        alive: the ops that were still there after the input phase.
    """
    absorbed = AbsorbedFinder(facts, sites_by_op(sites), alive).find()
    for index, ids in _raised(sites, bodies, owners, facts).items():
        absorbed[index] = absorbed.get(index, frozenset()) | ids
    by_site: dict[str, list[SourceOperation]] = {}
    for index in sorted(absorbed):
        for site in absorbed[index]:
            by_site.setdefault(site, []).append(facts.operations[index])
    return tuple(_with_absorbed(site, by_site.get(site.id, ()), facts) for site in sites)


class AbsorbedFinder:
    """Finds, for ops without a site, the sites that absorbed them.

    `sites_of`: op index -> the sites with evidence of it; `alive`: the ops that were still there after the input phase.
    Of ops that compute the very same (twins) only the first is ever absorbed, and then by all that uses any of them,
    for the compiler keeps one.
    """

    def __init__(self, facts: ModelFacts, sites_of: Mapping[int, Sequence[Site]], alive: Set[int]) -> None:
        self._facts = facts
        self._sites_of = sites_of
        self._first = facts.twins
        self._copies: dict[int, list[int]] = {}
        for copy, first in facts.twins.items():
            self._copies.setdefault(first, []).append(copy)
        without_site = [op for op in facts.ops if op.index not in sites_of]
        self._passable = {op.index for op in without_site if op.index in facts.moves or passes_values_on(op)}
        # What uses no element of its operand says nothing about where the operand was computed.
        self._indifferent = {op.index for op in without_site if asks_for_shape(op)}
        possible = alive - self._passable - facts.dataflow.constant
        self._candidates = {op.index for op in without_site if op.index in possible and computes(op)}

    def find(self) -> dict[int, frozenset[str]]:
        """Op index -> ids of the sites that absorbed it."""
        found = {}
        for index in sorted(self._candidates):
            copies = self._copies.get(index, ())
            # A copy stands behind its first; and where a copy has evidence, it is the one that the compiler kept.
            if index in self._first or any(copy in self._sites_of for copy in copies):
                continue
            sites = self._uses_end_in(index)
            if sites:
                found[index] = sites
        return found

    def _uses_end_in(self, start: int) -> frozenset[str]:
        """The sites that all uses of a value end in; none if a use ends elsewhere. Without recursion: models are deep.

        A loop's values may flow back to where they came from; what is being looked at already adds nothing new.
        """
        sites: set[str] = set()
        seen: set[Node] = {start}
        stack = self._users(start)
        while stack:
            node = stack.pop()
            if node in seen or node in self._indifferent:
                continue
            seen.add(node)
            kept = self._kept(node)
            if kept in self._sites_of:  # what follows it is this op's business
                sites.update(site.id for site in self._sites_of[kept])
            elif isinstance(node, tuple) or node in self._passable or node in self._candidates:
                stack += self._users(node)
            else:
                return frozenset()
        return frozenset(sites)

    def _kept(self, node: Node) -> int:
        """The op that the compiler kept of those that are the same; -1 for arguments."""
        if isinstance(node, tuple):
            return -1
        return node if node in self._sites_of else self._first.get(node, node)

    def _users(self, node: Node) -> list[Node]:
        """What uses a value or, of an op with twins, any of them."""
        same: list[Node] = [node]
        if not isinstance(node, tuple):
            first = self._first.get(node, node)
            same = [first, *self._copies.get(first, ())]
        return [user for each in same for user in self._facts.dataflow.graph.successors(each)]


def _raised(
    sites: Sequence[Site], bodies: Sequence[DispatchRegion | None], owners: Owners, facts: ModelFacts
) -> dict[int, frozenset[str]]:
    """Op index -> ids of the sites in which it is part of an idiom that was raised there and ends in a member."""
    found: dict[int, set[str]] = {}
    for site, body in zip(sites, bodies, strict=True):
        paths = {member.op: member.path for member in site.members}
        raised = [op for op in (() if body is None else body.body) if op.name in RAISED]
        lasts = {owner for op in raised for owner in owners.of(op.location) if owner in paths}
        for last in lasts:
            for part in facts.softmaxes.parts(last.number, paths[last]):
                if OpId.of(part) not in paths:
                    found.setdefault(part, set()).add(site.id)
    return {op: frozenset(ids) for op, ids in found.items()}


def _with_absorbed(site: Site, operations: Sequence[SourceOperation], facts: ModelFacts) -> Site:
    """What absorbed members cost is taken from the root's estimate, in which the raised op's work was counted.

    So the sum stays.
    """
    root = site.root
    if root is None or not operations:
        return site
    left = root.operations
    added = []
    for operation in operations:
        estimate = _estimate(operation)
        cost: Integer = UNKNOWN
        if left is not UNKNOWN and estimate is not UNKNOWN:
            cost = min(estimate, left)
            left -= cost
        path = _path_to(operation, site, facts)
        added.append(Membership(OpId.of(operation.index), Evidence.ABSORBED, False, cost, 0, path))
    members = [structs.replace(member, operations=left) if member.root else member for member in site.members]
    return structs.replace(site, members=(*members, *added))


def _path_to(operation: SourceOperation, site: Site, facts: ModelFacts) -> tuple[OpId, ...]:
    """The calls that lead to an op which no location places.

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


def _estimate(operation: SourceOperation) -> Integer:
    """Operations of an op as written: per element of its result; reductions read more than they write, which the
    root keeps.
    """
    sizes = [shape_of(result).elements for result in operation.results]
    return product((sizes[0], operations_of_source(operation.name))) if sizes else 0
