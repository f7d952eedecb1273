"""The sources of a model; a tag in the location of each op; and ops known by the model's own locations."""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Final, Protocol

from msgspec import structs

from tracemap.core.locations import CallSite, FileRange, Fused, Location, Name, frames, is_informative, parse_location
from tracemap.ir.dumps import DumpText
from tracemap.ir.parsing import MlirParser, Module, Operation, ir, walk
from tracemap.ir.source_model import TEXT_FILE, SourceModel
from tracemap.map.build.model.kinds import REGION_TERMINATORS, computes
from tracemap.map.build.model.model_facts import ModelFacts
from tracemap.map.bundle import PYTHON_FOLDER, safe_name
from tracemap.map.model import SourceFile

# ---- texts
#
# Texts that a bundle keeps: the model, and the Python files that its frames name.
#
# Names in a model are only compared with existing files below the given folders, and never used as paths. A frame's
# file and a file on disk are the same if the path of one ends with that of the other.

_MAX_FILES = 20_000
"""The most files that are examined below a root, so that a model in a large folder does not cost a walk of the disk."""
_MAX_BYTES = 4 << 20
_SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules"})


def no_known_text(name: str) -> str | None:
    """Default for `text_of`: no text is known."""


@dataclass(frozen=True, slots=True)
class ModelTexts:
    """Source files as the map names them, the model first, and their texts by path (empty if texts are not kept).

    `searched`: the names of all files in the model's frames, found or not.
    """

    sources: tuple[SourceFile, ...]
    texts: Mapping[str, str]
    searched: frozenset[str] = frozenset()


def collect_texts(
    model: SourceModel,
    file_name: str,
    roots: Sequence[Path],
    *,
    keep: bool,
    text_of: Callable[[str], str | None] = no_known_text,
) -> ModelTexts:
    """Collect the texts of a model; Python files that `text_of` does not know are searched below the roots."""
    model_source = SourceFile(file_name, safe_name(file_name), "mlir")
    if not keep:
        return ModelTexts((model_source,), {})
    names = {frame.place.file for op in model.operations for frame in frames(op.location)}
    paths = find_python_texts(names, roots, text_of)
    python_sources = {
        SourceFile(name, f"{PYTHON_FOLDER}/{index}-{safe_name(name)}", "python"): paths[name]
        for index, name in enumerate(sorted(paths))
    }
    return ModelTexts(
        (model_source, *python_sources),
        {model_source.path: model.text, **{source.path: text for source, text in python_sources.items()}},
        frozenset(names),
    )


def find_python_texts(
    names: Collection[str], roots: Sequence[Path], text_of: Callable[[str], str | None] = no_known_text
) -> dict[str, str]:
    """The texts of the files in frames; Python files that `text_of` does not know are searched below the roots."""
    known_texts = {name: text for name in sorted(names) if (text := text_of(name)) is not None}
    return {**known_texts, **_find_python(set(names) - known_texts.keys(), roots)}


def _find_python(names: Iterable[str], roots: Iterable[Path]) -> dict[str, str]:
    """The texts of the named regular `.py` files below the roots."""
    by_basename: dict[str, list[str]] = defaultdict(list)
    for name in names:
        if name.endswith(".py"):
            by_basename[PurePosixPath(name).name].append(name)
    paths = _candidates(by_basename, roots) if by_basename else {}
    return {name: text for name, path in paths.items() if (text := _read(path)) is not None}


def _candidates(by_basename: Mapping[str, Sequence[str]], roots: Iterable[Path]) -> dict[str, Path]:
    """The file for each name.

    The earlier root wins, then the longer common end of the paths, then the shorter path, then alphabetical order.
    """
    best: dict[str, tuple[tuple[int, int, int, str], Path]] = {}
    for rank, root in enumerate(roots):
        # Only requested file names are compared: a model names few, and a folder may hold thousands.
        for path in _python_files(root, by_basename):
            relative = path.relative_to(root).as_posix()
            for name in by_basename[path.name]:
                common = common_end(name, relative)
                if common:
                    key = (rank, -common, len(relative), relative)
                    if name not in best or key < best[name][0]:
                        best[name] = (key, path)
    return {name: path for name, (_, path) in best.items()}


def common_end(name: str, relative: str) -> int:
    """The number of path components that two paths share at their end if one ends with the other; otherwise 0.

    >>> common_end("/home/a/pkg/m.py", "pkg/m.py"), common_end("x/m.py", "y/m.py")
    (2, 0)
    """
    first, second = PurePosixPath(name).parts, PurePosixPath(relative).parts
    shorter = min(len(first), len(second))
    return shorter if first[-shorter:] == second[-shorter:] else 0


def _python_files(root: Path, basenames: Container[str]) -> Iterator[Path]:
    count = 0
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _SKIPPED_FOLDERS)
        for name in sorted(files):
            count += 1
            if count > _MAX_FILES:
                return
            path = Path(folder, name)
            if name in basenames and path.is_file() and not path.is_symlink():
                yield path


def _read(path: Path) -> str | None:
    try:
        if path.stat().st_size > _MAX_BYTES:
            return None
        return path.read_bytes().decode(errors="replace")
    except OSError:
        return None


# ---- tagging
#
# Tags: names that tracemap puts into the locations of a model's operations and finds again in compiled programs.
#
# Passes that rewrite an operation copy its location or merge it with others, so its tag survives. The tag of an
# operation is `<prefix><index>`, fused with the model's own location of the operation.

_LETTERS = 8
"""Hexadecimal digits of the model's SHA-256."""

OpPath = tuple[int, tuple[int, ...]]
"""An operation, and the calls that led to it, outermost first; all as indices in pre-order."""

_MAX_PATHS: Final = 1024
"""The most paths of a nested call site, since the numbers of paths of its two sides multiply at each level."""


class Provenance:
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

    def named_by(self, location: Location) -> Sequence[int]:
        """The operations that a location names directly; if there are any, locations inside are ignored."""
        return ()

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
                op_paths = (op_path for part in parts for op_path in self._op_paths(part))
                return list(dict.fromkeys(op_paths))
        return []

    def _called(self, callee: Sequence[OpPath], caller: Sequence[OpPath]) -> Sequence[OpPath]:
        if not callee:
            return [op_path for op_path in caller if op_path[0] not in self._calls]
        outer_paths = (
            [(*path, call) for call, path in caller if call in self._calls] or [path for _, path in caller] or [()]
        )
        max_paths = max(1, _MAX_PATHS // len(callee))
        nested = ((index, (*outer, *path)) for index, path in callee for outer in outer_paths[:max_paths])
        return list(dict.fromkeys(nested))


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


def tag_operations(module: Operation, tags: Tags, file_name: str = TEXT_FILE) -> None:
    """Set every operation's location to `fused[old, tag]`; tags count operations in pre-order from 0.

    The module itself keeps its location, since IREE names libraries after it. A location that the parser made up gets
    the file's name, as iree-compile would set it.
    """
    root, *operations = walk(module)
    with root.context:
        parsed_root = parse_location(str(root.location))
        if isinstance(parsed_root, FileRange) and parsed_root.file == TEXT_FILE:
            root.location = ir.Location.file(file_name, parsed_root.line, parsed_root.column)
        for index, operation in enumerate(operations, start=1):
            operation.location = ir.Location.fused([operation.location, ir.Location.name(tags.name(index))])


def write_bytecode(module: Module, folder: Path, name: str = "model.mlirbc") -> Path:
    """Write a tagged module for the compiler, as bytecode, which keeps the locations of all operations."""
    bytecode = folder / name
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
    return write_bytecode(module, folder, "numbered.mlirbc")


def write_tagged(module: Module, tags: Tags, file_name: str, folder: Path) -> Path:
    """Tag all operations of a module and write it for the compiler."""
    tag_operations(module.operation, tags, file_name)
    return write_bytecode(module, folder)


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
                return structs.replace(location, file=TEXT_FILE)
            case Name(child=child):
                return structs.replace(location, child=self._normalized(child))
            case Fused(locations=parts):
                return structs.replace(location, locations=tuple(map(self._normalized, parts)))
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
        # Of operations that share a location, those whose ops most likely do the work.
        best = min((self._rank(index) for index, _ in op_paths), default=0)
        return list(dict.fromkeys(op_path for op_path in op_paths if self._rank(op_path[0]) == best))

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
