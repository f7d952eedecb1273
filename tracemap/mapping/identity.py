"""How operations in the phases of a compilation are known to come from operations of the model: by tags, or without.

Tags are names that tracemap puts into the locations of a model's operations. Passes that rewrite an operation copy its
location or merge it with others, so its tag goes along. The tag of an operation is `<prefix><index>`, fused with the
location that the model gave it.

Where the compilation ran elsewhere there are no tags. What is left of identity are the locations that the model gives
its operations itself: an operation of a phase comes from the ops whose whole location it carries, and ops that share a
location cannot be told apart.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Protocol

from iree.compiler import ir

from tracemap.ir.parsing import MlirParser, Module, walk
from tracemap.ir.source import TEXT_FILE
from tracemap.ir.text import DumpText
from tracemap.locations import CallSite, FileRange, Fused, Location, Name, parse_location
from tracemap.mapping.model.facts import ModelFacts
from tracemap.mapping.model.kinds import computes

_PREFIX = "tm.op."


class Provenance(ABC):
    """Which operations of the model a location tells of, as indices in pre-order.

    Of a call site only the callee side says what an operation is; the caller side tells the call ops that led to it.
    """

    def __init__(self) -> None:
        # By identity: parsers hand out one object per distinct location, and hashing a deep one takes longer than
        # walking it. The location is kept beside the answer so that its identity stays its own.
        self._known: dict[int, tuple[Location, tuple[int, ...]]] = {}

    @abstractmethod
    def named_by(self, location: Location) -> Sequence[int]:
        """The operations that a location is the name of; what stands within it is not looked at where there are any."""

    def of(self, location: Location) -> tuple[int, ...]:
        """The operations that an operation itself came from (callee sides only), in order, each once."""
        known = self._known.get(id(location))
        if known is None:
            found: list[int] = []
            self._walk(location, found)
            known = self._known[id(location)] = (location, tuple(dict.fromkeys(found)))
        return known[1]

    def callers(self, location: Location) -> tuple[int, ...]:
        """The operations on the caller sides, outermost call first, each once."""
        found: list[int] = []
        self._walk_callers(location, found)
        return tuple(dict.fromkeys(reversed(found)))

    def _walk(self, location: Location, found: list[int]) -> None:
        named = self.named_by(location)
        if named:
            found.extend(named)
            return
        match location:
            case Name(child=within) | CallSite(callee=within):
                self._walk(within, found)
            case Fused(locations=parts):
                for part in parts:
                    self._walk(part, found)

    def _walk_callers(self, location: Location, found: list[int]) -> None:
        """Innermost call first. The call stack of a location that names operations lies above the model."""
        if self.named_by(location):
            return
        match location:
            case Name(child=within):
                self._walk_callers(within, found)
            case CallSite(callee=callee, caller=caller):
                self._walk_callers(callee, found)
                self._walk(caller, found)
                self._walk_callers(caller, found)
            case Fused(locations=parts):
                for part in parts:
                    self._walk_callers(part, found)


class Tags(Provenance):
    """Provenance by the tags of one prefix: exact."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self.prefix = prefix

    def name(self, index: int) -> str:
        """The tag of the operation with this index."""
        return f"{self.prefix}{index}"

    def named_by(self, location: Location) -> Sequence[int]:
        """The operation whose tag a location is."""
        if isinstance(location, Name) and location.name.startswith(self.prefix):
            number = location.name[len(self.prefix) :]
            return (int(number),) if number.isdecimal() else ()
        return ()


def unused_prefix(model: bytes) -> str:
    """A prefix for tags that the model does not contain itself, so that none of its names can pass for a tag."""
    prefix = _PREFIX
    number = 0
    while prefix.encode() in model:
        number += 1
        prefix = f"tm{number}.op."
    return prefix


def tag_operations(module: Module, tags: Tags, file_name: str = TEXT_FILE) -> None:
    """Set every operation's location to `fused[old, tag]`; tags count operations in pre-order from 0.

    The module's own keeps its location (IREE names libraries after it); one that the parser made up gets the file's
    name, as iree-compile would have given it.
    """
    root, *operations = walk(module.operation)
    with module.context:
        made_up = parse_location(str(root.location))
        if isinstance(made_up, FileRange) and made_up.file == TEXT_FILE:
            root.location = ir.Location.file(file_name, made_up.line, made_up.column)
        for index, operation in enumerate(operations, start=1):
            operation.location = ir.Location.fused([operation.location, ir.Location.name(tags.name(index))])


def write_bytecode(module: Module, folder: Path) -> Path:
    """Write a tagged module for the compiler, as bytecode: that keeps the locations of all operations."""
    bytecode = folder / "model.mlirbc"
    with bytecode.open("wb") as file:
        module.operation.write_bytecode(file)
    return bytecode


def write_tagged(module: Module, tags: Tags, file_name: str, folder: Path) -> Path:
    """Tag all operations of a module and write it for the compiler."""
    tag_operations(module, tags, file_name)
    return write_bytecode(module, folder)


_STANDARD_INPUT = ("-", "<stdin>")


class Identity(Protocol):
    """How operations of the phases are known to come from operations of the model."""

    @property
    def provenance(self) -> Provenance:
        """What a location says about where an operation came from."""

    def located(self, dump: str) -> frozenset[int]:
        """The indices of the ops that the dump of a phase still locates, by themselves or by a part of them."""

    def mentioned(self, dump: str) -> frozenset[int]:
        """The indices of the ops that a dump names at all, be it as the place of a block argument or of a call."""


class TagIdentity:
    """By the tags that tracemap put in: exact."""

    def __init__(self, tags: Tags, facts: ModelFacts) -> None:
        self._tags = tags
        self._facts = facts

    @property
    def provenance(self) -> Provenance:
        """The tags themselves."""
        return self._tags

    def located(self, dump: str) -> frozenset[int]:
        """The ops whose tags stand on operations of the dump."""
        return self._facts.owners(DumpText(dump, self._tags.prefix).tags())

    def mentioned(self, dump: str) -> frozenset[int]:
        """The ops whose tags stand anywhere in the dump."""
        # As text, for an op that was inlined or merged may be named only as a caller or as an argument's place.
        found = re.findall(rf'"{re.escape(self._tags.prefix)}(\d+)"', dump)
        return self._facts.owners(map(int, found))


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
        return self._facts.owners({index for location in locations for index in self._locations.of(location)})

    def mentioned(self, dump: str) -> frozenset[int]:
        """The same: names of block arguments are not read."""
        return self.located(dump)


class LocationsOfModel(Provenance):
    """Provenance by the locations that the model gives its own operations.

    Where several ops share a location, those that do the work stand for all: a frontend writes one location on an op
    and on the constants, initial values and reshapes that belong to it.
    """

    def __init__(self, facts: ModelFacts, file_name: str) -> None:
        super().__init__()
        self._base_name = PurePosixPath(file_name).name
        sharing: dict[Location, list[int]] = {}
        for index in sorted(facts.with_location):
            sharing.setdefault(facts.operations[index].parsed_location, []).append(index)
        self._indices = {location: _most_able(indices, facts) for location, indices in sharing.items()}

    def named_by(self, location: Location) -> Sequence[int]:
        """The operations that have this very location; places in the model's file go by the name of its text."""
        exact = self._indices.get(location, ())
        if not exact and isinstance(location, FileRange) and self._is_model(location.file):
            # The parser made the places up in both runs: of a file here, of a text without a name there.
            exact = self._indices.get(replace(location, file=TEXT_FILE), ())
        return exact

    def _is_model(self, file: str) -> bool:
        return file in _STANDARD_INPUT or PurePosixPath(file).name == self._base_name


def _most_able(indices: Sequence[int], facts: ModelFacts) -> tuple[int, ...]:
    """Of operations that share a location those of the ops that most surely do work of their own."""
    rank_of = {index: _rank(facts.operations[index].owner, facts) for index in indices}
    best = min(rank_of.values())
    return tuple(index for index in indices if rank_of[index] == best)


def _rank(op: int, facts: ModelFacts) -> int:
    """How surely an op does work of its own: 0 does, 1 moves elements, 2 does none."""
    if not computes(facts.operations[op]):
        return 2
    return 1 if op in facts.moves else 0
