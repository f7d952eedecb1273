"""Members that no location tells: ops that the compiler raised into another op.

JAX's softmax (maximum, subtract, exponential, sum, divide) becomes one op that carries the location of the divide
alone. The model's def-use graph still tells: an op that survived the input phase, is found in no site, and whose every
use ends in members of sites, was absorbed there. Never constants, and never ops that only move elements.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence, Set

from tracemap.graph.model import Evidence, Membership, OpId, Site
from tracemap.ir.phases import DispatchRegion
from tracemap.ir.source import SourceModel, SourceOperation
from tracemap.ir.types import product, shape_of
from tracemap.mapping.model.dataflow import Dataflow, Node, is_call
from tracemap.mapping.model.raised import RAISED, SoftmaxFinder
from tracemap.mapping.sites.cost import operations_of_source
from tracemap.mapping.sites.members import TagOwners
from tracemap.units import UNKNOWN, Integer


class AbsorbedFinder:
    """Finds, for ops without a site, the sites that absorbed them.

    `sites_of`: op index -> ids of sites with evidence; `candidates`: indices of ops that can be absorbed;
    `passable`: indices of ops that values flow through on their way (moves of elements, calls, control flow);
    `indifferent`: indices of ops that use no element of what they are handed (queries of shapes);
    `twins`: op index -> an earlier op that computes the very same. Only the first of such ops is ever absorbed, and
    then by all that uses any of them, for the compiler keeps one.
    """

    def __init__(
        self,
        dataflow: Dataflow,
        sites_of: Mapping[int, Set[str]],
        candidates: Set[int],
        passable: Set[int],
        indifferent: Set[int],
        twins: Mapping[int, int],
    ) -> None:
        self._flow = dataflow
        self._sites_of = sites_of
        self._candidates = candidates
        self._passable = passable
        self._indifferent = indifferent
        self._first = twins
        self._copies: dict[int, list[int]] = {}
        for copy, first in twins.items():
            self._copies.setdefault(first, []).append(copy)
        self._ends: dict[Node, frozenset[str] | None] = {}

    def find(self) -> dict[int, frozenset[str]]:
        """Op index -> ids of the sites that absorbed it."""
        found = {}
        for index in sorted(self._candidates):
            copies = self._copies.get(index, ())
            if index in self._first or any(copy in self._sites_of for copy in copies):
                continue
            sites = self._uses_end_in(index)
            if sites:
                found[index] = sites
        return found

    def _uses_end_in(self, start: Node) -> frozenset[str] | None:
        """The sites that all uses of a value end in; None if a use ends elsewhere. Without recursion: models are deep.

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
            if kept in self._sites_of:
                sites |= self._sites_of[kept]
            elif isinstance(node, tuple) or node in self._passable or node in self._candidates:
                stack += self._users(node)
            else:
                return None
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
        return [user for each in same for user in self._flow.graph.successors(each)]


def raised_in(
    sites: Sequence[Site],
    bodies: Sequence[DispatchRegion | None],
    owners: TagOwners,
    softmaxes: SoftmaxFinder,
) -> dict[int, frozenset[str]]:
    """Op index -> ids of the sites in which it is part of an idiom that was raised there and ends in a member."""
    found: dict[int, set[str]] = {}
    for site, body in zip(sites, bodies, strict=True):
        paths = {member.op: member.path for member in site.members}
        raised = [op for op in (() if body is None else body.body) if op.name in RAISED]
        lasts = {owner for op in raised for owner in owners.of(op.location) if owner in paths}
        for last in lasts:
            for part in softmaxes.parts(last.number, paths[last]):
                if OpId.of(part) not in paths:
                    found.setdefault(part, set()).add(site.id)
    return {op: frozenset(ids) for op, ids in found.items()}


def add_absorbed(sites: Sequence[Site], model: SourceModel, absorbed: Mapping[int, frozenset[str]]) -> tuple[Site, ...]:
    """The sites with their absorbed members behind the others, in the order of the model.

    What they cost is taken from the root's estimate, in which the raised op's work was counted: the sum stays.
    """
    calls = _Calls(model)
    by_site: dict[str, list[SourceOperation]] = {}
    for index in sorted(absorbed):
        for site in absorbed[index]:
            by_site.setdefault(site, []).append(model.operations[index])
    return tuple(_with_absorbed(site, by_site.get(site.id, ()), calls) for site in sites)


class _Calls:
    """The calls that lead to ops which no location places."""

    def __init__(self, model: SourceModel) -> None:
        self._operations = model.operations
        self._calls_of: dict[str, list[SourceOperation]] = {}
        for operation in model.operations:
            if is_call(operation):
                self._calls_of.setdefault(operation.symbol, []).append(operation)

    def path(self, operation: SourceOperation, site: Site) -> tuple[OpId, ...]:
        """As for a member of the same function in the site, else the only chain of calls that there is."""
        for member in site.members:
            if self._operations[member.op.number].function == operation.function:
                return member.path
        chain: list[OpId] = []
        while isinstance(operation.function, str) and len(self._calls_of.get(operation.function, ())) == 1:
            operation = self._calls_of[operation.function][0]
            if OpId.of(operation.index) in chain:
                break
            chain.append(OpId.of(operation.index))
        return tuple(reversed(chain))


def _with_absorbed(site: Site, operations: Sequence[SourceOperation], calls: _Calls) -> Site:
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
        added.append(
            Membership(OpId.of(operation.index), Evidence.ABSORBED, False, cost, 0, calls.path(operation, site))
        )
    members = [dataclasses.replace(member, operations=left) if member.root else member for member in site.members]
    return dataclasses.replace(site, members=(*members, *added))


def _estimate(operation: SourceOperation) -> Integer:
    """Operations of an op as written: per element of its result; reductions read more than they write, which the
    root keeps.
    """
    sizes = [shape_of(result).elements for result in operation.results]
    return product((sizes[0], operations_of_source(operation.name))) if sizes else 0
