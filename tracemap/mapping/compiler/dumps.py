"""Phase dumps of a compilation made elsewhere: finding them, and matching operations without tags.

What is left of identity are the locations that the model gives its operations itself. An operation of a phase comes
from the ops whose whole location it carries; ops that share a location cannot be told apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tracemap.errors import DumpsInvalid
from tracemap.graph.model import PHASES
from tracemap.ir.configured import KernelText
from tracemap.ir.parsing import MlirParser, walk
from tracemap.ir.source import CONTROL_FLOW, SourceModel, SourceOperation
from tracemap.locations import CallSite, FileRange, Fused, Location, Name, Tags
from tracemap.mapping.fates import fates
from tracemap.mapping.fates.survival import is_informative
from tracemap.mapping.model.dataflow import is_call

NEEDED = ("dispatch-creation", "flow", "hal")
"""Phases without which there are no members, no sites, or no commands."""

_STANDARD_INPUT = ("-", "<stdin>")


class Dumps:
    """The dumps in a folder: the phases of one compilation that has ended.

    Raises:
        DumpsInvalid: a phase that is needed is missing, or there are several dumps of one.
    """

    def __init__(self, folder: Path, *, model_given: bool) -> None:
        self._files: dict[str, Path] = {}
        for phase in PHASES:
            found = sorted(folder.glob(f"*.{phase}.mlir"))
            if len(found) > 1:
                raise DumpsInvalid(
                    f"{folder}: several dumps of the phase {phase} ({found[0].name}, {found[1].name}); "
                    "keep those of one compilation in a folder of their own"
                )
            if found:
                self._files[phase] = found[0]
        for phase in NEEDED if model_given else ("input", *NEEDED):
            if phase not in self._files:
                raise DumpsInvalid(
                    f"{folder}: no dump of the phase {phase} (*.{phase}.mlir); "
                    "compile with --dump-compilation-phases-to and --mlir-print-debuginfo"
                )

    def has(self, phase: str) -> bool:
        """Whether the folder has a dump of a phase."""
        return phase in self._files

    def file(self, phase: str) -> Path:
        """Where the dump of a phase lies."""
        return self._files[phase]

    def wait_for(self, phase: str) -> str:
        """The text of a phase's dump.

        Raises:
            DumpsInvalid: it cannot be read, or it was printed without locations.
        """
        try:
            text = self._files[phase].read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise DumpsInvalid(f"{self._files[phase]}: cannot be read: {error.strerror}") from error
        if "loc(" not in text:
            raise DumpsInvalid(f"{self._files[phase]}: no locations in it; compile with --mlir-print-debuginfo")
        return text

    def kernels(self) -> tuple[KernelText, ...]:
        """The machine code's debug lines are not ours."""
        return ()

    def wait(self) -> str:
        """The compilation has ended long ago, and what it said is not known."""
        return ""


class LocationTags(Tags):
    """Answers what tags answer, from the whole locations of the model's own operations.

    `file_name`: of the model; places in its text, which the parser made up, go by the text's name in both runs.
    """

    def __init__(self, indices: Mapping[Location, tuple[int, ...]], file_name: str, text_name: str) -> None:
        super().__init__("")
        self._indices = indices
        self._base_name = PurePosixPath(file_name).name
        self._text_name = text_name

    def _walk(self, location: Location) -> Iterator[int]:
        found = self._find(location)
        if found:
            yield from found
            return
        match location:
            case Name(child=child):
                yield from self._walk(child)
            case CallSite(callee=callee):
                yield from self._walk(callee)
            case Fused(locations=locations):
                for part in locations:
                    yield from self._walk(part)

    def _walk_callers(self, location: Location, found: list[int]) -> None:
        if not self._find(location):  # a location of the model's own: its call stack lies above the model
            super()._walk_callers(location, found)

    def _find(self, location: Location) -> tuple[int, ...]:
        exact = self._indices.get(location)
        if exact is None and isinstance(location, FileRange) and self._is_model(location.file):
            place = FileRange(self._text_name, location.line, location.column, location.end_line, location.end_column)
            exact = self._indices.get(place)
        return exact or ()

    def _is_model(self, file: str) -> bool:
        return file in _STANDARD_INPUT or PurePosixPath(file).name == self._base_name


@dataclass(frozen=True)
class LocationIdentity:
    """Identity by the model's own locations: as good as those are."""

    parser: MlirParser
    tags: Tags
    owner_of: Mapping[int, int]

    def located(self, text: str) -> frozenset[int]:
        """The ops whose location an operation of the dump carries."""
        found: set[int] = set()
        for operation in walk(self.parser.parse(text).operation):
            found.update(self.tags.of(self.parser.location(operation)))
        return frozenset(self.owner_of[index] for index in found)

    def mentioned(self, text: str) -> frozenset[int]:
        """The same: names of block arguments are not read."""
        return self.located(text)


def location_tags(model: SourceModel, written: Sequence[Location], file_name: str, text_name: str) -> LocationTags:
    """Make the lookup from locations to operations.

    Where several ops share a location, those that do the work stand for all: a frontend writes one location on an op
    and on the constants, initial values and reshapes that belong to it.
    """
    sharing: dict[Location, list[int]] = {}
    for operation, location in zip(model.operations, written, strict=True):
        if is_informative(location):
            sharing.setdefault(location, []).append(operation.index)
    part_names: dict[int, list[str]] = {}
    for operation in model.operations:
        if not operation.is_op:
            part_names.setdefault(operation.owner, []).append(operation.name)
    ranks = {op.index: _rank(op, part_names.get(op.index, ())) for op in model.operations if op.is_op}
    indices = {location: _best(found, ranks, model) for location, found in sharing.items()}
    return LocationTags(indices, file_name, text_name)


def _best(indices: Sequence[int], ranks: Mapping[int, int], model: SourceModel) -> tuple[int, ...]:
    rank_of = {index: ranks[model.operations[index].owner] for index in indices}
    best = min(rank_of.values())
    return tuple(index for index in indices if rank_of[index] == best)


def _rank(operation: SourceOperation, part_names: Sequence[str]) -> int:
    """How surely an op does work of its own: 0 does, 1 moves elements, 2 does none."""
    if is_call(operation) or operation.name in CONTROL_FLOW or not fates.can_be_absorbed(operation):
        return 2
    return 1 if fates.only_moves(operation, part_names) else 0
