"""Debug information of a bundle for native tools: files, lines and names that perf, gdb and valgrind show.

This module chooses them; `machine/dwarf_writer.py` and `machine/debug_file.py` write them.
"""

from __future__ import annotations

import os
import re
import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Final, Literal

from msgspec import Meta

from tracemap._version import __version__
from tracemap.attribution.kernel_lines.code_ops import InstructionOp, SiteOp, instruction_ops, root_op
from tracemap.core.codec import Count, Document, Record, pretty_json
from tracemap.core.diagnostics import Diagnostic
from tracemap.core.errors import (
    ModuleInvalid,
    TargetExists,
    TargetUnwritable,
    force_option,
)
from tracemap.core.files import check_folder_writable, check_name, has_mark, is_standard, link_target
from tracemap.core.process.temporary_files import moved_away, rename_into_place, temporary_sibling
from tracemap.core.sanitize import without_controls
from tracemap.core.units import UNKNOWN, Integer
from tracemap.machine.debug_file import DebugFiles, check_supported, own_build_id
from tracemap.machine.dwarf_writer import (
    NO_SOURCE_LINE,
    DebugFunction,
    InlinedCode,
    LineRow,
    SourceLine,
    bytes_of,
    changed_rows,
    write_dwarf,
)
from tracemap.machine.images import CodeFunction, Image, function_symbols
from tracemap.map.bundle import KERNELS_FOLDER, SOURCE_FOLDER, Bundle
from tracemap.map.model import Kernel, Op
from tracemap.map.query import frames_of, python_frame, scope_text, user_frames

Lines = Literal["mlir", "python", "kernel"]

# ---- result


DEBUG_INFO_VERSION: Final = 1
"""Version of `debug-info.json`."""
DEBUG_INFO_NAME: Final = "debug-info.json"
CODE_FOLDER: Final = "code"
BUILD_ID_FOLDER: Final = ".build-id"


class ExecutableDebugInfo(Record, frozen=True):
    """Debug information of an executable of the module; paths are below the folder."""

    architecture: Annotated[str, Meta(description="ELF name of its architecture.")]
    build_id: Annotated[str, Meta(description="Build-id in hexadecimal; its own, or made from its content.")]
    own_build_id: Annotated[bool, Meta(description="Whether the executable itself has the build-id.")]
    debug_file: Annotated[str, Meta(description="File without code, where debuggers look for the build-id.")]
    code_file: Annotated[str, Meta(description="File with the unchanged code, which may be loaded in its place.")]
    kernels: Annotated[Count, Meta(description="Kernels of the map in it.")]
    instructions: Annotated[Count, Meta(description="Instructions of these kernels.")]
    instructions_with_op: Annotated[Count, Meta(description="Instructions that do the work of an op.")]
    instructions_with_line: Annotated[Count, Meta(description="Instructions with a line of the chosen text.")]


class DebugInfo(Document, frozen=True, kw_only=True):
    """The content of a folder that `tracemap debug-info` wrote."""

    schema_version: Literal[1] = DEBUG_INFO_VERSION
    kind: Literal["debug-info"] = "debug-info"
    bundle: str
    lines: Annotated[str, Meta(description="Text that lines refer to: `mlir`, `python` or `kernel`.")]
    executables: tuple[ExecutableDebugInfo, ...]
    diagnostics: tuple[Diagnostic, ...] = ()


# ---- lines and names


_MOST_OF_NAME: Final = 300
"""Characters of an op's name that tools show; the rest is cut off."""


@dataclass
class _Sources:
    """The lines of ops in the chosen text, and the paths of all texts."""

    bundle: Bundle
    lines: Lines
    files: dict[str, int] = field(default_factory=dict)

    @cached_property
    def _root(self) -> Path:
        return self.bundle.path.resolve()

    @cached_property
    def _path_of(self) -> Mapping[str, str]:
        """Absolute paths of the texts in the bundle, by the names that locations state."""
        paths = {}
        for source in self.bundle.graph.sources:
            path = self._root / SOURCE_FOLDER / source.path
            if path.is_file():
                paths[source.name] = str(path)
        return paths

    def _file(self, path: str) -> int:
        return self.files.setdefault(path, len(self.files))

    def line_of_op(self, op: Op, calls: Sequence[str] = ()) -> SourceLine:
        """The line of an op: the user's innermost frame, or the line of the model's text."""
        graph = self.bundle.graph
        if self.lines == "python":
            frames = user_frames(graph, frames_of(graph, op, calls))
            frame = next(iter(frames), None) or python_frame(graph, op)
            if frame is not None:
                return self._line(frame.file, frame.line, frame.column)
        if op.file is UNKNOWN:
            return NO_SOURCE_LINE
        return self._line(str(op.file), op.line, op.column)

    def _line(self, file: str, line: Integer, column: Integer) -> SourceLine:
        if not isinstance(line, int) or not line:
            return NO_SOURCE_LINE
        path = self._path_of.get(file, without_controls(file))
        return SourceLine(self._file(path), line, column if isinstance(column, int) else 0)

    def line_of_kernel(self, kernel: Kernel, line: int) -> SourceLine:
        """A line of kernel IR."""
        if kernel.text is UNKNOWN or not line:
            return NO_SOURCE_LINE
        return SourceLine(self._file(str(self._root / KERNELS_FOLDER / str(kernel.text))), line)

    def name_of(self, op: SiteOp) -> str:
        """Such as `op12 stablehlo.add [site3 +1, h0/attn]`: op, site, number of further sites, and scope.

        Other tools print files in round brackets after names.
        """
        graph = self.bundle.graph
        known = graph.op_by_id[op.member.op]
        site = op.site.id + (f" +{op.others}" if op.others else "")
        scope = scope_text(graph, known) or known.node
        name = f"{known.id} {known.name} [{', '.join(filter(None, (site, scope)))}]"
        return without_controls(name)[:_MOST_OF_NAME]


@dataclass
class _Counts:
    kernels: set[str] = field(default_factory=set)
    instructions: int = 0
    with_op: int = 0
    with_line: int = 0


_PIECE: Final = re.compile(r" \(\d+\)$")


@dataclass
class _Executable:
    """The functions of an executable."""

    image: Image
    sources: _Sources
    diagnostics: list[Diagnostic] = field(default_factory=list)
    counts: _Counts = field(default_factory=_Counts)

    def functions(self) -> list[DebugFunction]:
        """Kernels with lines and ops, and all other functions by name, by address."""
        graph = self.sources.bundle.graph
        functions = []
        for function in self._code_functions():
            # Native code has further pieces of a loop as `kernel/loop0 (2)`.
            name = function.name if function.name in graph.kernel_by_name else _PIECE.sub("", function.name)
            kernel = graph.kernel_by_name.get(name)
            functions.append(self._plain(function) if kernel is None else self._kernel(function, kernel))
        return functions

    def _code_functions(self) -> list[CodeFunction]:
        """Functions with debug information or parts of them, and the other symbols, without overlaps, by address."""
        functions: list[CodeFunction] = []
        symbols = (symbol for symbol in function_symbols(self.image) if not self._has_parts(symbol))
        for function in sorted((*self.image.functions, *symbols), key=lambda own: (own.low, own.high)):
            if function.high > function.low and (not functions or function.low >= functions[-1].high):
                functions.append(function)
        return functions

    def _has_parts(self, symbol: CodeFunction) -> bool:
        return any(part.low < symbol.high and symbol.low < part.high for part in self.image.functions)

    def _plain(self, function: CodeFunction) -> DebugFunction:
        name = without_controls(function.name)
        return DebugFunction(name, name, function.low, function.high)

    def _kernel(self, function: CodeFunction, kernel: Kernel) -> DebugFunction:
        graph, sources = self.sources.bundle.graph, self.sources
        symbol, root = without_controls(function.name), root_op(graph, kernel)
        name = f"{sources.name_of(root)} {symbol}" if root else symbol
        source = self._line(kernel, 1, root)
        try:
            code = instruction_ops(graph, kernel, self.image, function)
        except ModuleInvalid as error:
            self.diagnostics.append(Diagnostic("no-lines", f"{symbol}: has no lines, since {error}"))
            return DebugFunction(name, symbol, function.low, function.high)
        rows = tuple(
            LineRow(instruction.address, self._line(kernel, instruction.line, instruction.op)) for instruction in code
        )
        self.counts.kernels.add(kernel.name)
        self.counts.instructions += len(code)
        self.counts.with_op += sum(instruction.op is not None for instruction in code)
        self.counts.with_line += sum(row.source.line != 0 for row in rows)
        inlined = tuple(self._inlined(kernel, code))
        return DebugFunction(name, symbol, function.low, function.high, source, rows, inlined)

    def _line(self, kernel: Kernel, line: int, op: SiteOp | None) -> SourceLine:
        if self.sources.lines == "kernel":
            return self.sources.line_of_kernel(kernel, line)
        if op is None:
            return NO_SOURCE_LINE
        return self.sources.line_of_op(self.sources.bundle.graph.op_by_id[op.member.op], op.member.path)

    def _inlined(self, kernel: Kernel, code: Sequence[InstructionOp]) -> Iterator[InlinedCode]:
        """The code of each op, by its first address."""
        ranges: dict[str, list[tuple[int, int]]] = defaultdict(list)
        first: dict[str, InstructionOp] = {}
        before = ""
        for instruction in code:
            op = instruction.op
            name = self.sources.name_of(op) if op else ""
            low, high = instruction.address, instruction.address + instruction.size
            if op and name == before and ranges[name][-1][1] == low:
                ranges[name][-1] = (ranges[name][-1][0], high)
            elif op:
                ranges[name].append((low, high))
                first.setdefault(name, instruction)
            before = name
        for name, instruction in first.items():
            yield InlinedCode(name, self._line(kernel, instruction.line, instruction.op), tuple(ranges[name]))


# ---- table for the running program
#
# `code/IDENTITY.lines` has, for the hook (debug_tables.h): functions, rows, the offsets of addresses in the movable
# debug file, texts, and that file.


_TABLE_MAGIC: Final = b"tmlines1"
_TABLE: Final = struct.Struct("<8sQIIIIII")
_FUNCTION: Final = struct.Struct("<QQIII4x")
_ROW: Final = struct.Struct("<QII")


def line_table(files: DebugFiles, functions: Sequence[DebugFunction], paths: Sequence[str], code_file: str) -> bytes:
    """The table of an executable.

    Args:
        files: its files.
        functions: its functions, by address.
        paths: the texts that its lines name.
        code_file: name of its code file.
    """
    texts = bytearray(bytes_of(code_file) + b"\0")
    place_of: dict[str, int] = {}

    def place(text: str) -> int:
        if text not in place_of:
            place_of[text] = len(texts)
            texts.extend(bytes_of(text) + b"\0")
        return place_of[text]

    functions_data, rows_data, rows = bytearray(), bytearray(), 0
    for function in functions:
        own = changed_rows(function)
        functions_data += _FUNCTION.pack(
            function.low, function.high - function.low, place(function.name), rows, len(own)
        )
        for row in own:
            rows_data += _ROW.pack(row.address, row.source.line, place(paths[row.source.file]) if paths else 0)
        rows += len(own)
    movable = files.movable_file()
    texts.extend(bytes(-len(texts) % 8))
    addresses = b"".join(offset.to_bytes(4, "little") for offset in movable.addresses)
    header = _TABLE.pack(
        *(_TABLE_MAGIC, files.identity(), len(functions), rows, len(movable.addresses)),
        *(len(texts), len(movable.data), 0),
    )
    return b"".join((header, functions_data, rows_data, addresses, texts, movable.data))


# ---- folder


def check_debug_target(target: Path, *, force: bool) -> None:
    """Refuse an unusable output folder before any work is done.

    A folder that `debug-info` wrote is replaced; one with other files in it, only with `force`.

    Raises:
        TargetExists: the path exists, and must not be replaced.
        TargetUnwritable: the folder cannot be created.
    """
    if is_standard(target):
        raise TargetUnwritable(f"{target}: debug information is a folder; pass its name with -o")
    check_name(target)
    if os.path.lexists(target):
        if not has_mark(target / DEBUG_INFO_NAME):
            raise TargetExists(f"{target}: exists and has no debug information of tracemap; name another folder")
        own = re.compile(rf"{re.escape(DEBUG_INFO_NAME)}|{CODE_FOLDER}/[^/]+\.(so|lines)|\.build-id/../[^/]+\.debug")
        names = (str(path.relative_to(target)) for path in target.rglob("*") if not path.is_dir() or path.is_symlink())
        others = sorted(name for name in names if not own.fullmatch(name))
        if others and not force:
            raise TargetExists(
                f"{target}: has files that tracemap did not write, such as {others[0]}; name another folder, or pass "
                f"{force_option()}"
            )
    check_folder_writable(link_target(target))


def write_debug_info(bundle: Bundle, target: Path, lines: Lines, *, force: bool) -> DebugInfo:
    """Write the debug information of all executables of a bundle to a folder, whole or not at all.

    Raises:
        TargetExists: the folder exists, and must not be replaced.
        TargetUnwritable: the folder cannot be written.
        ModuleInvalid: the module has no machine code of kernels with debug lines.
    """
    check_debug_target(target, force=force)
    info, files = debug_info(bundle, lines)
    place = link_target(target)
    if place.name in ("", ".."):
        place = place.resolve()
    try:
        with temporary_sibling(place) as folder:
            folder.mkdir()
            for name, content in files.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(content)
            if os.path.lexists(place):
                with moved_away(place):
                    folder.rename(place)
            else:
                rename_into_place(folder, place)
    except FileExistsError as error:
        raise TargetExists(f"{target}: another program has just written it; choose another name") from error
    except OSError as error:
        raise TargetUnwritable(f"{target}: cannot be written: {error.strerror}") from error
    return info


def debug_info(bundle: Bundle, lines: Lines) -> tuple[DebugInfo, dict[str, bytes]]:
    """The description of the debug information of a bundle, and the files below the folder, by name.

    Raises:
        ModuleInvalid: the module has no machine code of kernels with debug lines.
    """
    executables: list[ExecutableDebugInfo] = []
    diagnostics: list[Diagnostic] = []
    files: dict[str, bytes] = {}
    for image in bundle.images():
        try:
            check_supported(image)
        except ModuleInvalid as error:
            text = f"the executable at byte {image.offset:,} of the module is left out: {error}"
            diagnostics.append(Diagnostic("executable-left-out", text))
            continue
        executables += _add_executable(bundle, lines, image, files, diagnostics)
    if not sum(executable.instructions for executable in executables):
        raise ModuleInvalid(
            f"{bundle.module_path}: has no machine code of kernels with debug lines; build the bundle for CPUs of "
            "x86-64 or AArch64, without --iree-llvmcpu-debug-symbols=false"
        )
    if not sum(executable.instructions_with_line for executable in executables):
        raise ModuleInvalid(
            f"{bundle.module_path}: no instruction has a line of the model; build the bundle from the model, not from "
            "dumps of another compilation, whose kernels have no debug lines"
        )
    info = DebugInfo(bundle=bundle.name, lines=lines, executables=tuple(executables), diagnostics=tuple(diagnostics))
    return info, {**files, DEBUG_INFO_NAME: pretty_json(info).encode()}


def _add_executable(
    bundle: Bundle, lines: Lines, image: Image, files: dict[str, bytes], diagnostics: list[Diagnostic]
) -> Iterator[ExecutableDebugInfo]:
    sources = _Sources(bundle, lines)
    executable = _Executable(image, sources, diagnostics)
    functions = executable.functions()
    if not functions:
        return
    module = re.sub(r"[^A-Za-z0-9_.-]", "_", bundle.graph.module.name)[:100] or "module"
    paths = list(sources.files)
    debug = write_dwarf(functions, paths, without_controls(bundle.graph.module.name), f"tracemap {__version__}")
    written = DebugFiles(image, functions, debug)
    identity = f"{written.identity():016x}"
    code_name = f"{module}-{identity}.so"
    debug_name = f"{BUILD_ID_FOLDER}/{written.build_id[:2]}/{written.build_id[2:]}.debug"
    if f"{CODE_FOLDER}/{identity}.lines" in files:
        text = f"the executable at byte {image.offset:,} of the module has the code of another one, whose lines it gets"
        diagnostics.append(Diagnostic("same-code", text))
        return
    files[debug_name] = written.debug_file()
    files[f"{CODE_FOLDER}/{code_name}"] = written.code_file()
    files[f"{CODE_FOLDER}/{identity}.lines"] = line_table(written, functions, paths, code_name)
    counts = executable.counts
    yield ExecutableDebugInfo(
        architecture=image.machine,
        build_id=written.build_id,
        own_build_id=bool(own_build_id(image)),
        debug_file=debug_name,
        code_file=f"{CODE_FOLDER}/{code_name}",
        kernels=len(counts.kernels),
        instructions=counts.instructions,
        instructions_with_op=counts.with_op,
        instructions_with_line=counts.with_line,
    )
