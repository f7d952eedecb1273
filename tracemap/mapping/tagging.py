"""Tags: names that tracemap puts into the locations of a model's operations and finds again in compiled programs.

Passes that rewrite an operation copy its location or merge it with others, so its tag survives. The tag of an operation
is `<prefix><index>`, fused with the model's own location of the operation.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence, Set
from pathlib import Path
from typing import Final

from tracemap.ir.parsing import MlirParser, Module, ir, walk
from tracemap.ir.source import TEXT_FILE
from tracemap.locations import CallSite, FileRange, Fused, Location, Name, parse_location

_LETTERS = 8
"""Hexadecimal digits of the model's SHA-256."""


OpPath = tuple[int, tuple[int, ...]]
"""An operation, and the calls that led to it, outermost first; all as indices in pre-order."""

_MAX_PATHS: Final = 1024
"""The most paths of a nested call site, since the numbers of paths of its two sides multiply at each level."""


class Provenance(ABC):
    """The operations of the model that a location stands for, as indices in pre-order.

    In a call site, only the callee side says what the operation is; the caller side has the calls that led to it. If
    the callee is not in the model, but the caller side names an op that is not a call, the compiler replaced that op
    by a call. `calls`: the operations that are calls.
    """

    def __init__(self, calls: Set[int]) -> None:
        self._calls = calls
        # By id(): parsers return one object per distinct location, and hashing a deep one takes longer than walking
        # it. The entry keeps the location alive, so that its id() stays unique.
        self._known: dict[int, tuple[Location, tuple[OpPath, ...], tuple[int, ...]]] = {}

    @abstractmethod
    def named_by(self, location: Location) -> Sequence[int]:
        """The operations that a location names directly; if there are any, locations inside are ignored."""

    @property
    def anonymous(self) -> Set[int]:
        """The computing ops of which some part has no location of its own."""
        return frozenset()

    def doubtful(self, location: Location) -> tuple[int, ...]:
        """The operations that a location may stand for, if it is shared by several ops."""
        return ()

    def is_ambiguous(self, location: Location) -> bool:
        """Whether a location is meaningful, but does not identify one op."""
        return False

    def of(self, location: Location) -> tuple[int, ...]:
        """The operations that an operation came from (callee sides only), in order, without duplicates."""
        return self._resolve(location)[2]

    def op_paths(self, location: Location) -> tuple[OpPath, ...]:
        """The same operations with the calls that led to them, in order; an entry for each path of calls.

        If the compiler merged the work of several calls into one operation, their locations are fused.
        """
        return self._resolve(location)[1]

    def _resolve(self, location: Location) -> tuple[Location, tuple[OpPath, ...], tuple[int, ...]]:
        cached = self._known.get(id(location))
        if cached is None:
            op_paths = tuple(self._op_paths(location))
            cached = self._known[id(location)] = (
                location,
                op_paths,
                tuple(dict.fromkeys([index for index, _ in op_paths])),
            )
        return cached

    def _op_paths(self, location: Location) -> Sequence[OpPath]:
        if named := self.named_by(location):
            return [(index, ()) for index in named]
        match location:
            case Name(child=within):
                return self._op_paths(within)
            case CallSite(callee=callee, caller=caller):
                return self._called(self._op_paths(callee), self._op_paths(caller))
            case Fused(locations=parts):
                return _unique(op_path for part in parts for op_path in self._op_paths(part))
        return []

    def _called(self, callee: Sequence[OpPath], caller: Sequence[OpPath]) -> Sequence[OpPath]:
        if not callee:
            return [op_path for op_path in caller if op_path[0] not in self._calls]
        outer_paths = (
            [(*path, call) for call, path in caller if call in self._calls] or [path for _, path in caller] or [()]
        )
        max_paths = max(1, _MAX_PATHS // len(callee))
        return _unique((index, (*outer, *path)) for index, path in callee for outer in outer_paths[:max_paths])


def _unique(op_paths: Iterable[OpPath]) -> Sequence[OpPath]:
    return list(dict.fromkeys(op_paths))


class Tags(Provenance):
    """Exact provenance by the tags of one prefix."""

    def __init__(self, prefix: str, calls: Set[int] = frozenset()) -> None:
        super().__init__(calls)
        self.prefix = prefix

    def name(self, index: int) -> str:
        """The tag of the operation with this index."""
        return f"{self.prefix}{index}"

    def named_by(self, location: Location) -> Sequence[int]:
        """The operation whose tag a location is."""
        if isinstance(location, Name) and location.name.startswith(self.prefix):
            suffix = location.name[len(self.prefix) :]
            return (int(suffix),) if suffix.isdecimal() else ()
        return ()


def unused_prefix(model: bytes) -> str:
    """A tag prefix that is unique to the model and does not occur in it, so that none of its own names can be a tag.

    Dumps that the compiler writes for the user contain tags and may be passed in again
    (`--iree-hal-substitute-executable-source`). Tags of another model, or of an earlier version of this one, must not
    be taken for this model's.
    """
    content = hashlib.sha256(model).hexdigest()
    suffix = 0
    while (prefix := f"tm{suffix or ''}.{content[:_LETTERS]}.op.").encode() in model:
        suffix += 1
    return prefix


def tag_operations(module: Module, tags: Tags, file_name: str = TEXT_FILE) -> None:
    """Set every operation's location to `fused[old, tag]`; tags count operations in pre-order from 0.

    The module itself keeps its location, since IREE names libraries after it. A location that the parser made up gets
    the file's name, as iree-compile would set it.
    """
    root, *operations = walk(module.operation)
    with module.context:
        parsed_root = parse_location(str(root.location))
        if isinstance(parsed_root, FileRange) and parsed_root.file == TEXT_FILE:
            root.location = ir.Location.file(file_name, parsed_root.line, parsed_root.column)
        for index, operation in enumerate(operations, start=1):
            operation.location = ir.Location.fused([operation.location, ir.Location.name(tags.name(index))])


def write_bytecode(module: Module, folder: Path) -> Path:
    """Write a tagged module for the compiler, as bytecode, which keeps the locations of all operations."""
    bytecode = folder / "model.mlirbc"
    with bytecode.open("wb") as file:
        module.operation.write_bytecode(file)
    return bytecode


def write_numbered(parser: MlirParser, tagged: Path, file_name: str, folder: Path) -> Path:
    """Write a tagged module with file locations instead of tags: the line of each operation is its index.

    Remarks name only file locations.
    """
    module = parser.parse(tagged.read_bytes(), printed=True)
    for index, operation in enumerate(walk(module.operation)):
        if index:
            operation.location = ir.Location.file(file_name, index, 1, context=parser.context)
    numbered = folder / "numbered.mlirbc"
    with numbered.open("wb") as file:
        module.operation.write_bytecode(file)
    return numbered


def write_tagged(module: Module, tags: Tags, file_name: str, folder: Path) -> Path:
    """Tag all operations of a module and write it for the compiler."""
    tag_operations(module, tags, file_name)
    return write_bytecode(module, folder)
