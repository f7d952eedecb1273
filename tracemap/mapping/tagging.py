"""Tags: names that tracemap puts into the locations of a model's operations, and reads back from what became of them.

Passes that rewrite an operation copy its location or merge it with others, so its tag goes along. The tag of an
operation is `<prefix><index>`, fused with the location that the model gave it.
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
"""Of the model's SHA-256."""


Way = tuple[int, tuple[int, ...]]
"""An operation, and the calls that led to it, outermost first; all as indices in pre-order."""

_MOST_WAYS: Final = 1024
"""To how many a call site may come whose two sides have several each, as each such site around it has more."""


class Provenance(ABC):
    """Which operations of the model a location tells of, as indices in pre-order.

    Of a call site only the callee side says what an operation is; the caller side tells the call ops that led to it.
    Where the callee is nothing of the model, and the caller side names an op that is no call, the compiler has put a
    call in its place. `calls`: the operations that are calls.
    """

    def __init__(self, calls: Set[int]) -> None:
        self._calls = calls
        # By identity: parsers hand out one object per distinct location, and hashing a deep one takes longer than
        # walking it. The location is kept beside the answer so that its identity stays its own.
        self._known: dict[int, tuple[Location, tuple[Way, ...], tuple[int, ...]]] = {}

    @abstractmethod
    def named_by(self, location: Location) -> Sequence[int]:
        """The operations that a location is the name of; what stands within it is not looked at where there are any."""

    @property
    def anonymous(self) -> Set[int]:
        """The ops that compute, and of whose work something has no name by which to tell it."""
        return frozenset()

    def doubtful(self, location: Location) -> tuple[int, ...]:
        """The operations of several ops, one of which a location is of, where nothing tells which."""
        return ()

    def is_untold(self, location: Location) -> bool:
        """Whether a location says something, and not which op it is of."""
        return False

    def of(self, location: Location) -> tuple[int, ...]:
        """The operations that an operation itself came from (callee sides only), in order, each once."""
        return self._told(location)[2]

    def ways(self, location: Location) -> tuple[Way, ...]:
        """The same operations with the calls that led to them, in order; one that several calls led to once for each.

        What the compiler has made one of the work of several calls has their locations side by side.
        """
        return self._told(location)[1]

    def _told(self, location: Location) -> tuple[Location, tuple[Way, ...], tuple[int, ...]]:
        known = self._known.get(id(location))
        if known is None:
            ways = tuple(self._ways(location))
            known = self._known[id(location)] = (location, ways, tuple(dict.fromkeys([index for index, _ in ways])))
        return known

    def _ways(self, location: Location) -> Sequence[Way]:
        if named := self.named_by(location):
            return [(index, ()) for index in named]
        match location:
            case Name(child=within):
                return self._ways(within)
            case CallSite(callee=callee, caller=caller):
                return self._called(self._ways(callee), self._ways(caller))
            case Fused(locations=parts):
                return _each_once(way for part in parts for way in self._ways(part))
        return []

    def _called(self, callee: Sequence[Way], caller: Sequence[Way]) -> Sequence[Way]:
        if not callee:
            return [way for way in caller if way[0] not in self._calls]
        around = [(*path, call) for call, path in caller if call in self._calls] or [path for _, path in caller] or [()]
        most = max(1, _MOST_WAYS // len(callee))
        return _each_once((index, (*outer, *path)) for index, path in callee for outer in around[:most])


def _each_once(ways: Iterable[Way]) -> Sequence[Way]:
    return list(dict.fromkeys(ways))


class Tags(Provenance):
    """Provenance by the tags of one prefix: exact."""

    def __init__(self, prefix: str, calls: Set[int] = frozenset()) -> None:
        super().__init__(calls)
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
    """A prefix for tags that is the model's own, and that it does not contain, so that none of its names can be a tag.

    Tags stand in what the compiler dumps for the user, too, and may come back with it
    (`--iree-hal-substitute-executable-source`): those of another model, or of this one before it was changed, must not
    be taken for this one's.
    """
    content = hashlib.sha256(model).hexdigest()
    number = 0
    while (prefix := f"tm{number or ''}.{content[:_LETTERS]}.op.").encode() in model:
        number += 1
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


def write_numbered(parser: MlirParser, tagged: Path, file_name: str, folder: Path) -> Path:
    """Write a tagged module again with places in place of tags: of each operation a file's line, which is its index.

    Remarks name places only.
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
