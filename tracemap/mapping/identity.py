"""Identity of operations across phases: by tags, or by the model's own locations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import PurePosixPath
from typing import Protocol

from tracemap.ir.dumps import DumpText
from tracemap.ir.parsing import MlirParser, walk
from tracemap.ir.source import TEXT_FILE
from tracemap.locations import CallSite, FileRange, Fused, Location, Name, is_informative
from tracemap.mapping.model.facts import ModelFacts
from tracemap.mapping.model.kinds import REGION_TERMINATORS, computes
from tracemap.mapping.tagging import OpPath, Provenance, Tags

# ---- model locations
#
# Identifies operations by the model's own locations, for compilations without tags.
#
# Inlining wraps locations in the call: `A` becomes `callsite(A at F)` for a call at `F`, and an existing call site
# `callsite(A at B)` becomes `callsite(A at callsite(B at F))`. So locations are compared as chains of frames, innermost
# first: the first frames are the operation's own location, the others are the calls that led to it. A location that
# several ops share identifies none of them.


_STANDARD_INPUT = ("-", "<stdin>")
_MOST_PATHS = 16
"""The most call paths to an operation that are distinguished."""

Chain = tuple[Location, ...]
"""The frames of a location, innermost first."""


class LocationsOfModel(Provenance):
    """Provenance by the locations that the model gives its own operations.

    If several ops share a location, those that do the work stand for all: a frontend writes one location on an op and
    on its constants, initial values and reshapes. If several of them do work, the location identifies none.
    `file_name`: the compiler's name for the model; locations in that file are compared as positions in the text.
    """

    def __init__(self, facts: ModelFacts, file_name: str) -> None:
        super().__init__(facts.call_ops)
        self._facts = facts
        self._base_name = PurePosixPath(file_name).name
        self._by_chain: dict[Chain, dict[object, list[int]]] = {}
        for index in sorted(facts.with_location):
            operation = facts.operations[index]
            functions = self._by_chain.setdefault(self._chain(operation.parsed_location), {})
            functions.setdefault(operation.function, []).append(index)
        self._longest = max(map(len, self._by_chain), default=0)
        self._candidates: dict[int, tuple[Location, Sequence[Sequence[OpPath]]]] = {}

    def op_paths(self, location: Location) -> tuple[OpPath, ...]:
        """The identified operations with the calls that led to them; ambiguous locations give none."""
        return self._resolve(location)[1]

    def doubtful(self, location: Location) -> tuple[int, ...]:
        """The operations that a location may stand for, if it is shared by several ops."""
        groups = [group for group in self._groups(location) if self._is_of_several(group)]
        return tuple(dict.fromkeys(index for group in groups for index, _ in group))

    def is_ambiguous(self, location: Location) -> bool:
        """Whether a location is meaningful, but stands for several ops or for none."""
        groups = self._groups(location)
        return any(not group or self._is_of_several(group) for group in groups)

    @cached_property
    def anonymous(self) -> Set[int]:
        """The computing ops of which some part has no location."""
        facts = self._facts
        unlocated = (operation for operation in facts.operations if operation.index not in facts.with_location)
        owners = {operation.owner for operation in unlocated if not operation.name.endswith(REGION_TERMINATORS)}
        return frozenset(owner for owner in owners if computes(facts.operations[owner]))

    def named_by(self, location: Location) -> Sequence[int]:
        """Nothing, since the meaning of a location depends on the call sites around it."""
        return ()

    def _op_paths(self, location: Location) -> Sequence[OpPath]:
        unambiguous = [group for group in self._groups(location) if not self._is_of_several(group)]
        return list(dict.fromkeys(op_path for group in unambiguous for op_path in _with_one_path(group)))

    def _groups(self, location: Location) -> Sequence[Sequence[OpPath]]:
        """For each location in a fused one, its candidate operations with the calls that led to them."""
        cached = self._candidates.get(id(location))
        if cached is None:
            groups = list(self._resolved(self._chain(location))) if is_informative(location) else []
            cached = self._candidates[id(location)] = (location, groups)
        return cached[1]

    def _is_of_several(self, group: Sequence[OpPath]) -> bool:
        return len({self._facts.operations[index].owner for index, _ in group}) > 1

    def _chain(self, location: Location) -> Chain:
        frames: list[Location] = []
        pending = [location]
        while pending:
            current = pending.pop()
            if isinstance(current, CallSite):
                pending += [current.caller, current.callee]
            else:
                frames.append(self._normalized(current))
        return tuple(frames)

    def _normalized(self, location: Location) -> Location:
        """Replace the model's file name in locations by the name for its text, which the parser uses."""
        match location:
            case FileRange(file=file) if file in _STANDARD_INPUT or PurePosixPath(file).name == self._base_name:
                return replace(location, file=TEXT_FILE)
            case Name(child=child):
                return replace(location, child=self._normalized(child))
            case Fused(locations=parts):
                return replace(location, locations=tuple(map(self._normalized, parts)))
            case CallSite(callee=callee, caller=caller):
                return CallSite(self._normalized(callee), self._normalized(caller))
        return location

    def _resolved(self, chain: Chain) -> Iterator[Sequence[OpPath]]:
        """The candidate operations of a chain: one group, or a group for each fused location."""
        if op_paths := self._with_prefix_location(chain):
            yield op_paths
            return
        innermost, rest = chain[0], chain[1:]
        match innermost:
            case Name(child=within) if is_informative(within):
                yield from self._resolved((*self._chain(within), *rest))
            case Fused(locations=parts) if is_informative(innermost):
                yield from self._of_parts([part for part in parts if is_informative(part)], rest)
            case _ if replaced := self._replaced_by_call(rest):
                yield replaced
            case _ if is_informative(innermost):
                yield ()

    def _replaced_by_call(self, rest: Chain) -> Sequence[OpPath]:
        """The operations that the compiler replaced by a call of a function that is not in the model."""
        op_paths = self._with_prefix_location(rest) if rest else ()
        return [
            op_path
            for op_path in op_paths
            if op_path[0] not in self._calls and computes(self._facts.operations[op_path[0]])
        ]

    def _of_parts(self, parts: Sequence[Location], rest: Chain) -> Iterator[Sequence[OpPath]]:
        """The candidates of fused locations: of each location, and of locations that the model itself fused."""
        fusable = dict.fromkeys(location for part in parts for location in self._fused_around.get(part, ()))
        fused = [location for location in fusable if {*location.locations} <= {*parts}]
        for part in parts:
            around = [
                op_path
                for location in fused
                if part in location.locations
                for op_path in self._with_prefix_location((location, *rest))
            ]
            for group in self._resolved((*self._chain(part), *rest)):
                if group or not around:
                    yield list(dict.fromkeys((*group, *around)))
            if around:
                yield list(dict.fromkeys(around))

    @cached_property
    def _fused_around(self) -> Mapping[Location, Sequence[Fused]]:
        """The fused locations of the model, by their parts, since the compiler may fuse them with more."""
        locations_by_part: dict[Location, list[Fused]] = {}
        for location in (chain[0] for chain in self._by_chain):
            if isinstance(location, Fused) and not location.metadata:
                for part in location.locations:
                    locations_by_part.setdefault(part, []).append(location)
        return locations_by_part

    def _with_prefix_location(self, chain: Chain) -> Sequence[OpPath]:
        """The operations whose location is the start of a chain, if the rest are calls of their function."""
        op_paths: list[OpPath] = []
        for length in range(min(len(chain), self._longest), 0, -1):
            for function, indices in self._by_chain.get(chain[:length], {}).items():
                paths = list(islice(self._paths(function, chain[length:]), _MOST_PATHS))
                op_paths += [(index, path) for index in indices for path in paths]
        return _most_likely(op_paths, self._rank)

    def _paths(self, function: object, rest: Chain) -> Iterator[tuple[int, ...]]:
        """The call paths to a function, outermost first, that match the frames around an operation in it."""
        if not rest:
            yield ()
            return
        is_call = False
        for length in range(1, min(len(rest), self._longest) + 1):
            for call in self._calls_at.get(rest[:length], ()):
                is_call = True
                operation = self._facts.operations[call]
                if operation.symbol == function:
                    yield from ((*outer, call) for outer in self._paths(operation.function, rest[length:]))
        if not is_call:  # frames that the compiler added around a function of the model
            yield ()

    @cached_property
    def _calls_at(self) -> Mapping[Chain, Sequence[int]]:
        calls = self._facts.call_ops
        calls_by_chain = {
            chain: [index for indices in functions.values() for index in indices if index in calls]
            for chain, functions in self._by_chain.items()
        }
        return {chain: indices for chain, indices in calls_by_chain.items() if indices}

    def _rank(self, index: int) -> int:
        """How likely an operation's op does the work: 0 computes, 1 moves elements, 2 does neither."""
        op = self._facts.operations[index].owner
        if not computes(self._facts.operations[op]):
            return 2
        return 1 if op in self._facts.moves else 0


def _most_likely(op_paths: Sequence[OpPath], rank: Callable[[int], int]) -> Sequence[OpPath]:
    """Of operations that share a location, those whose ops most likely do the work."""
    best = min((rank(index) for index, _ in op_paths), default=0)
    return list(dict.fromkeys(op_path for op_path in op_paths if rank(op_path[0]) == best))


def _with_one_path(group: Sequence[OpPath]) -> Iterable[OpPath]:
    """The operations of a group; an operation with several possible call paths has none."""
    paths: dict[int, set[tuple[int, ...]]] = {}
    for index, path in group:
        paths.setdefault(index, set()).add(path)
    return [(index, next(iter(call_paths)) if len(call_paths) == 1 else ()) for index, call_paths in paths.items()]


# ---- identity
#
# The two ways to identify operations in the phases of a compilation: by tags, or by the model's own locations.
#
# A compilation that ran elsewhere has no tags, only the model's own locations. An operation of a phase comes from the
# ops whose whole location it carries, and ops that share a location cannot be distinguished.


class Identity(Protocol):
    """The mapping from operations of phases to operations of the model."""

    @property
    def provenance(self) -> Provenance:
        """The provenance of locations."""

    def located(self, dump: str) -> frozenset[int]:
        """The indices of the ops that a phase's dump still locates, directly or by a part of them."""


class TagIdentity:
    """Exact identity by tracemap's tags."""

    def __init__(self, tags: Tags, facts: ModelFacts) -> None:
        self._tags = Tags(tags.prefix, facts.call_ops)
        self._facts = facts

    @property
    def provenance(self) -> Provenance:
        """The tags themselves."""
        return self._tags

    def located(self, dump: str) -> frozenset[int]:
        """The ops whose tags are on operations of the dump."""
        return self._facts.owners(DumpText(dump, self._tags.prefix).tags())


class LocationIdentity:
    """Identity by the model's own locations. `file_name`: the compiler's name for the model."""

    def __init__(self, parser: MlirParser, facts: ModelFacts, file_name: str) -> None:
        self._parser = parser
        self._facts = facts
        self._locations = LocationsOfModel(facts, file_name)

    @property
    def provenance(self) -> Provenance:
        """The locations of the model's operations."""
        return self._locations

    def located(self, dump: str) -> frozenset[int]:
        """The ops whose location is on an operation of the dump."""
        locations = map(self._parser.location, walk(self._parser.parse(dump).operation))
        provenance = self._locations
        return self._facts.owners(
            {index for location in locations for index in (*provenance.of(location), *provenance.doubtful(location))}
        )
