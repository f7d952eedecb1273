"""How operations of phases are known to come from operations of the model: tags, or its own locations."""

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
from tracemap.mapping.model.kinds import HANDS_BACK, computes
from tracemap.mapping.tagging import Provenance, Tags, Way

# ---- model locations
#
# Operations of a model by the locations that the model gives them itself, where a compilation had no tags.
#
# Inlining puts the call in front of what is called: `A` becomes `callsite(A at F)` for a call at `F`, and a location
# that is a call site already, `callsite(A at B)`, becomes `callsite(A at callsite(B at F))`. So locations are compared
# as chains of frames, the innermost first: the first frames are the operation's own location, the others are the calls
# that led to it. An operation whose location is that of several ops is of none of them.


_STANDARD_INPUT = ("-", "<stdin>")
_MOST_PATHS = 16
"""How many ways of calls to an operation are told apart."""

Chain = tuple[Location, ...]
"""The frames of a location, the innermost first."""


class LocationsOfModel(Provenance):
    """Provenance by the locations that the model gives its own operations.

    Where several ops share a location, those that do the work stand for all: a frontend writes one location on an op
    and on the constants, initial values and reshapes that belong to it. Where several do the work, none is told.
    `file_name`: of the model, as the compiler was given it; places in that file go by the name of its text.
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
        self._candidates: dict[int, tuple[Location, Sequence[Sequence[Way]]]] = {}

    def ways(self, location: Location) -> tuple[Way, ...]:
        """The operations that are told, with the calls that led to them; none of a call that is not told."""
        return self._told(location)[1]

    def doubtful(self, location: Location) -> tuple[int, ...]:
        """The operations of several ops, one of which has this location, where nothing tells which."""
        groups = [group for group in self._groups(location) if self._is_of_several(group)]
        return tuple(dict.fromkeys(index for group in groups for index, _ in group))

    def is_untold(self, location: Location) -> bool:
        """Whether a location says something, and not which op it is of: it is of several ops, or of none."""
        groups = self._groups(location)
        return any(not group or self._is_of_several(group) for group in groups)

    @cached_property
    def anonymous(self) -> Set[int]:
        """The ops that compute, and of whose work something has no location."""
        facts = self._facts
        unlocated = (operation for operation in facts.operations if operation.index not in facts.with_location)
        owners = {operation.owner for operation in unlocated if not operation.name.endswith(HANDS_BACK)}
        return frozenset(owner for owner in owners if computes(facts.operations[owner]))

    def named_by(self, location: Location) -> Sequence[int]:
        """Nothing: what a location names depends on what stands around it."""
        return ()

    def _ways(self, location: Location) -> Sequence[Way]:
        told = [group for group in self._groups(location) if not self._is_of_several(group)]
        return list(dict.fromkeys(way for group in told for way in _with_one_path(group)))

    def _groups(self, location: Location) -> Sequence[Sequence[Way]]:
        """What each of the locations that were fused into one may be of, each with the calls that led to it."""
        known = self._candidates.get(id(location))
        if known is None:
            groups = list(self._resolved(self._chain(location))) if is_informative(location) else []
            known = self._candidates[id(location)] = (location, groups)
        return known[1]

    def _is_of_several(self, group: Sequence[Way]) -> bool:
        return len({self._facts.operations[index].owner for index, _ in group}) > 1

    def _chain(self, location: Location) -> Chain:
        frames: list[Location] = []
        left = [location]
        while left:
            current = left.pop()
            if isinstance(current, CallSite):
                left += [current.caller, current.callee]
            else:
                frames.append(self._of_text(current))
        return tuple(frames)

    def _of_text(self, location: Location) -> Location:
        """A location in which places of the model's file go by the name of its text: the parser made them up."""
        match location:
            case FileRange(file=file) if file in _STANDARD_INPUT or PurePosixPath(file).name == self._base_name:
                return replace(location, file=TEXT_FILE)
            case Name(child=child):
                return replace(location, child=self._of_text(child))
            case Fused(locations=parts):
                return replace(location, locations=tuple(map(self._of_text, parts)))
            case CallSite(callee=callee, caller=caller):
                return CallSite(self._of_text(callee), self._of_text(caller))
        return location

    def _resolved(self, chain: Chain) -> Iterator[Sequence[Way]]:
        """The groups of operations of which a chain is: one group, or one for each of what was fused."""
        if found := self._whole(chain):
            yield found
            return
        first, rest = chain[0], chain[1:]
        match first:
            case Name(child=within) if is_informative(within):
                yield from self._resolved((*self._chain(within), *rest))
            case Fused(locations=parts) if is_informative(first):
                yield from self._of_parts([part for part in parts if is_informative(part)], rest)
            case _ if replaced := self._replaced(rest):
                yield replaced
            case _ if is_informative(first):
                yield ()

    def _replaced(self, rest: Chain) -> Sequence[Way]:
        """The operations that a call has replaced, whose function is none of the model's."""
        found = self._whole(rest) if rest else ()
        return [way for way in found if way[0] not in self._calls and computes(self._facts.operations[way[0]])]

    def _of_parts(self, parts: Sequence[Location], rest: Chain) -> Iterator[Sequence[Way]]:
        """Of locations that were fused what each is of: itself, or what was fused in the model and all is here."""
        fusable = dict.fromkeys(each for part in parts for each in self._fused_around.get(part, ()))
        fused = [each for each in fusable if {*each.locations} <= {*parts}]
        for part in parts:
            around = [way for each in fused if part in each.locations for way in self._whole((each, *rest))]
            for group in self._resolved((*self._chain(part), *rest)):
                if group or not around:
                    yield list(dict.fromkeys((*group, *around)))
            if around:
                yield list(dict.fromkeys(around))

    @cached_property
    def _fused_around(self) -> Mapping[Location, Sequence[Fused]]:
        """By its parts what is fused in the model, which may be fused with more."""
        found: dict[Location, list[Fused]] = {}
        for first in (chain[0] for chain in self._by_chain):
            if isinstance(first, Fused) and not first.metadata:
                for part in first.locations:
                    found.setdefault(part, []).append(first)
        return found

    def _whole(self, chain: Chain) -> Sequence[Way]:
        """The operations whose location is the beginning of a chain, the rest of which are calls of their function."""
        found: list[Way] = []
        for length in range(min(len(chain), self._longest), 0, -1):
            for function, indices in self._by_chain.get(chain[:length], {}).items():
                paths = list(islice(self._paths(function, chain[length:]), _MOST_PATHS))
                found += [(index, path) for index in indices for path in paths]
        return _most_able(found, self._rank)

    def _paths(self, function: object, rest: Chain) -> Iterator[tuple[int, ...]]:
        """The calls that lead to a function, outermost first, as the frames around what stands in it tell."""
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
        if not is_call:  # what the compiler put around a function of the model
            yield ()

    @cached_property
    def _calls_at(self) -> Mapping[Chain, Sequence[int]]:
        calls = self._facts.call_ops
        found = {
            chain: [index for indices in functions.values() for index in indices if index in calls]
            for chain, functions in self._by_chain.items()
        }
        return {chain: indices for chain, indices in found.items() if indices}

    def _rank(self, index: int) -> int:
        """How surely an operation's op does work of its own: 0 does, 1 moves elements, 2 does none."""
        op = self._facts.operations[index].owner
        if not computes(self._facts.operations[op]):
            return 2
        return 1 if op in self._facts.moves else 0


def _most_able(ways: Sequence[Way], rank: Callable[[int], int]) -> Sequence[Way]:
    """Of operations that share a location those of the ops that most surely do work of their own."""
    best = min((rank(index) for index, _ in ways), default=0)
    return list(dict.fromkeys(way for way in ways if rank(way[0]) == best))


def _with_one_path(group: Sequence[Way]) -> Iterable[Way]:
    """The operations of a group, without calls where several ways lead to one and nothing tells which it was."""
    paths: dict[int, set[tuple[int, ...]]] = {}
    for index, path in group:
        paths.setdefault(index, set()).add(path)
    return [(index, next(iter(found)) if len(found) == 1 else ()) for index, found in paths.items()]


# ---- identity
#
# How operations in the phases of a compilation are known to come from operations of the model: by tags, or without.
#
# Where the compilation ran elsewhere there are no tags. What is left of identity are the locations that the model
# gives its operations itself: an operation of a phase comes from the ops whose whole location it carries, and ops that
# share a location cannot be told apart.


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
