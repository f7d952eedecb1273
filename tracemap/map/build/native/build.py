"""`build --to native` and `build --from-native`: bundles of code that MLIR's own tools compile.

The model's operations are tagged, and the pipelines run as far as the program still has loops. The text of that stage
is kept. From there on, each operation's location is its line in that text, which LLVM writes as debug lines. So an
instruction leads to a line, the line to an outermost loop, and its tags to ops of the model. Nothing of IREE is used.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from tracemap.core.diagnostics import Diagnostic
from tracemap.core.errors import DumpsInvalid, ModelInvalid, PipelineInvalid, UsageInvalid
from tracemap.core.files import check_is_file, read_stored_file
from tracemap.core.locations import UNKNOWN_LOCATION, FileRange, Location, Name
from tracemap.core.process.temporary_files import temporary_folder
from tracemap.core.toolchain import Progress, no_progress
from tracemap.core.units import UNKNOWN, Integer, join_names, plural
from tracemap.ir.generic_text import GenericModule, read_generic, source_model, stage_tree
from tracemap.ir.model_reader import blank_locations
from tracemap.ir.parsing import BYTECODE_MAGIC
from tracemap.ir.source_model import TEXT_FILE, SourceModel
from tracemap.machine.images import read_image
from tracemap.machine.native_lines import files_with_lines, is_shared_object, lines_of_file
from tracemap.map.build.assembly import module_info
from tracemap.map.build.build import BuildRequest
from tracemap.map.build.lowering_stages import StageReader
from tracemap.map.build.model.model_facts import ModelFacts
from tracemap.map.build.native.loops import MOST_SITES, NativeProgram
from tracemap.map.build.native.pipeline import (
    PassNode,
    flags_of,
    joined,
    last_with_loops,
    parse_pipeline,
    split_after,
)
from tracemap.map.build.native.tools import MlirTools
from tracemap.map.build.outcomes import op_record
from tracemap.map.build.tagging import LocationsOfModel, Provenance, Tags, collect_texts, unused_prefix
from tracemap.map.bundle import Bundle, BundleFiles, check_target, safe_name, store
from tracemap.map.model import NATIVE_MODULE_NAME, ModuleInfo, TraceGraph

_DEFAULT_FLAGS: Final = ("-O3",)
_SCOPES: Final = "ensure-debug-info-scope-on-llvm-func"
_C_INTERFACE: Final = "llvm.emit_c_interface"

# ---- texts with positions


@dataclass(frozen=True, slots=True)
class _Text:
    """A module as text and in generic form, with the place of each operation in the text, in pre-order."""

    text: str
    module: GenericModule
    positions: tuple[Location, ...]

    @property
    def lines(self) -> tuple[Integer, ...]:
        """The lines of all operations."""
        return tuple(
            place.line if isinstance(place, FileRange) and place.line > 0 else UNKNOWN for place in self.positions
        )


def _read(tools: MlirTools, data: bytes, name: str, folder: Path) -> _Text:
    """Read a module, text or bytecode.

    Raises:
        ModelInvalid: mlir-opt rejects it, or it is text in another encoding than UTF-8.
    """
    file = folder / "read.mlir"
    file.write_bytes(data)
    if data.startswith(BYTECODE_MAGIC):
        text = tools.pretty(file, name)
    else:
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise ModelInvalid(f"{name}: neither UTF-8 text nor MLIR bytecode") from error
    module = _generic(tools, file, name)
    blanked = blank_locations(text)
    if blanked == data.decode(errors="replace"):
        return _Text(text, module, module.locations)
    file.write_text(blanked, encoding="utf-8")
    placed = _generic(tools, file, name)
    same = [op.name for op in placed.operations] == [op.name for op in module.operations]
    return _Text(text, module, placed.locations if same else ())


def _generic(tools: MlirTools, file: Path, name: str, pipeline: PassNode | None = None) -> GenericModule:
    """A file's module in generic form; locations that mlir-opt makes up are in `TEXT_FILE`."""
    text = tools.generic(file, name, pipeline=pipeline).replace(f'"{file}"', f'"{TEXT_FILE}"')
    try:
        return read_generic(text)
    except ModelInvalid as error:
        raise ModelInvalid(f"{name}: {error}") from error


# ---- bundles


class _NativeBuild:
    """The steps that both ways to a bundle share."""

    def __init__(self, request: BuildRequest, tools: MlirTools, folder: Path) -> None:
        self.request = request
        self.tools = tools
        self.folder = folder
        self.written = _read(tools, request.model, request.file_name, folder)
        self.model: SourceModel = source_model(
            self.written.module, self.written.positions, self.written.text, TEXT_FILE
        )
        self.facts = ModelFacts(self.model)
        self.tags = Tags(unused_prefix(request.model), self.facts.call_ops)

    def tag(self, index: int) -> Location:
        """The tag of an operation, as a location."""
        return Name(self.tags.name(index), UNKNOWN_LOCATION)

    def bundle(self, program: NativeProgram, library: Path, text: tuple[str, str], info: ModuleInfo) -> Bundle:
        """Write the bundle. `text`: name and content of the text that debug lines refer to."""
        request = self.request
        keep = not request.options.no_sources
        texts = collect_texts(self.model, request.file_name, request.source_roots, keep=keep, text_of=request.text_of)
        sites = program.sites()
        ops = tuple(
            op_record(self.facts, operation, program.judgement(operation), request.file_name, UNKNOWN)
            for operation in self.facts.ops
            if operation.name != "builtin.module"
        )
        graph = TraceGraph(
            module=info,
            functions=program.entry_points(),
            ops=ops,
            sites=sites,
            kernels=program.kernels(sites),
            command_buffers=(),
            sources=texts.sources,
            diagnostics=(*request.diagnostics, *_notes(self.written, sites_count=len(sites))),
            library=request.library,
        )
        files = BundleFiles(library, texts.texts, {text[0]: text[1]}, keeping=request.kept)
        return store(request.target, graph, files, force=request.options.force)


def _notes(written: _Text, sites_count: int) -> Sequence[Diagnostic]:
    notes = []
    if not written.positions:
        text = "the model's text does not parse without its locations, so the lines of ops are unknown"
        notes.append(Diagnostic("positions-unknown", text))
    if sites_count >= MOST_SITES:
        text = (
            f"functions are called in too many ways: calls of the same function are followed up to {MOST_SITES:,} "
            "dispatches, and later ones share their costs"
        )
        notes.append(Diagnostic("calls-left-out", text))
    if not sites_count:
        text = "the model has no function with a body that other programs can call, so nothing in it can be measured"
        notes.append(Diagnostic("no-functions", text))
    return notes


def build_native(request: BuildRequest, progress: Progress = no_progress) -> Bundle:
    """Run pipelines on a model, compile the result with LLVM, and write the bundle.

    Raises:
        ModelInvalid: mlir-opt rejects the model.
        PipelineInvalid: a pipeline is no text of passes, is rejected, or does not end in the llvm dialect.
        UsageInvalid: clang rejects a flag, or the code calls functions that are in no library.
        ToolMissing: MLIR's tools are not installed.
        TargetExists, TargetUnwritable: the bundle cannot be written.
    """
    options = request.options
    pipeline = joined(map(parse_pipeline, options.pipelines))
    check_target(request.target, force=options.force)
    tools = MlirTools.installed()
    with temporary_folder() as folder:
        progress("reading the model")
        build = _NativeBuild(request, tools, folder)
        progress("running the pipelines")
        stage, lowered = _lower(build, pipeline)
        progress("compiling")
        library = folder / NATIVE_MODULE_NAME
        flags = options.flags or _DEFAULT_FLAGS
        _compile(build, stage, lowered, library, flags)
        progress("writing the bundle")
        compiler, words = f"MLIR {tools.release}", (*flags_of(options.pipelines), *flags)
        info = module_info(library, build.model.name, compiler, words, NATIVE_MODULE_NAME)
        return build.bundle(stage.program, library, (stage.file, stage.text), info)


@dataclass(frozen=True, slots=True)
class _LoopStage:
    """The last stage with loops: the program, and the name and content of its text."""

    program: NativeProgram
    file: str
    text: str


def _lower(build: _NativeBuild, pipeline: PassNode) -> tuple[_LoopStage, Path]:
    """Run the pipeline to the last stage with loops, then to its end; returns the stage, and the end's file."""
    name, tools, folder = build.request.file_name, build.tools, build.folder
    old = build.written.module.location_texts()
    tagged = folder / "tagged.mlir"
    texts = [f'fused[{text or "unknown"}, "{build.tags.name(index)}"]' for index, text in enumerate(old)]
    tagged.write_text(build.written.module.with_locations(texts), encoding="utf-8")
    dumps = folder / "passes"
    whole = parse_pipeline(tools.dump_passes(tagged, name, pipeline, dumps))
    before, after = split_after(whole, last_with_loops(whole, dumps))
    module = _generic(tools, tagged, name, before)
    looped = folder / "looped.mlir"
    looped.write_text(module.text, encoding="utf-8")
    file = f"{PurePosixPath(safe_name(name)).stem}.loops.mlir"
    printed = folder / file
    printed.write_text(tools.pretty(looped, name), encoding="utf-8")
    located = _generic(tools, printed, name)
    if [operation.name for operation in located.operations] != [operation.name for operation in module.operations]:
        raise PipelineInvalid(f"{before}: mlir-opt reads the program after it differently than it wrote it")
    places = _Text(printed.read_text(encoding="utf-8"), module, located.locations)
    root = stage_tree(module, places.lines)
    reader = StageReader(build.tags, build.facts)
    stage = reader.stage(str(before), root, places.text)
    program = NativeProgram(build.facts, build.tags, module, root, stage, file)
    public = located.with_attribute_on_public_functions(_C_INTERFACE)
    printed.write_text(public.replace(f'loc("{TEXT_FILE}":', f'loc("{file}":'), encoding="utf-8")
    lowered = folder / "lowered.mlir"
    finished = PassNode(after.text, (*(after.inside or ()), PassNode(_SCOPES)))
    end = tools.generic(printed, name, pipeline=finished)
    _check_lowered(read_generic(end), name)
    lowered.write_text(end, encoding="utf-8")
    return _LoopStage(program, file, places.text), lowered


_MOST_NAMED: Final = 5
_TRANSLATED: Final = ("llvm.", "omp.", "x86vector.", "amx.", "arm_neon.", "arm_sve.", "arm_sme.")
"""Dialects that mlir-translate makes LLVM's IR of (mlir/lib/Target/LLVMIR/Dialect)."""


def _check_lowered(module: GenericModule, name: str) -> None:
    """Reject a program that LLVM cannot compile, with the names of the operations that are left.

    Raises:
        PipelineInvalid: an operation is of another dialect than llvm.
    """
    _, *inside = module.operations  # the outermost is the module; modules in it are left, too
    left = Counter(op.name for op in inside if not op.name.startswith(_TRANSLATED))
    if left:
        names = join_names([kind for kind, _ in left.most_common(_MOST_NAMED)], most=_MOST_NAMED)
        raise PipelineInvalid(
            f"{name}: the pipelines leave {plural(left.total(), 'operation')} of other dialects than llvm ({names}); "
            "add the passes that convert them"
        )


def _compile(build: _NativeBuild, stage: _LoopStage, lowered: Path, library: Path, flags: Sequence[str]) -> None:
    ir = build.folder / "lowered.ll"
    build.tools.llvm_ir(lowered, ir, build.request.file_name)
    build.tools.link(ir, library, flags)
    if not is_shared_object(library):
        raise UsageInvalid(f"clang makes no shared library with {' '.join(flags)}; flags for it follow --")
    if stage.program.entry_points() and not files_with_lines(library, {stage.file})[0]:
        raise UsageInvalid(f"clang writes no debug lines with {' '.join(flags)}, and loops are known by them")


# ---- code that was compiled elsewhere


def build_from_native(request: BuildRequest, library: Path, progress: Progress = no_progress) -> Bundle:
    """Make a bundle of a library or program whose debug lines are those of the model, or of a later stage of it.

    Args:
        request: the build; its options name the later stages' texts, with locations.
        library: the ELF file.
        progress: called with a text for each step.

    Raises:
        ModelInvalid: mlir-opt rejects the model or a stage.
        DumpsInvalid: the library has no debug lines of these texts.
        ModuleInvalid: the library is damaged.
        ToolMissing: MLIR's tools are not installed.
        TargetExists, TargetUnwritable: the bundle cannot be written.
    """
    options = request.options
    check_target(request.target, force=options.force)
    check_is_file(library, DumpsInvalid)
    tools = MlirTools.installed()
    with temporary_folder() as folder:
        progress("reading the model")
        build = _NativeBuild(request, tools, folder)
        names = {request.file_name: request.model}
        for file in options.ir:
            if file.name in names:
                raise DumpsInvalid(
                    f"{file}: another file is named {file.name}, too, and debug lines give only that name; rename one"
                )
            names[file.name] = read_stored_file(file, DumpsInvalid)
        known, others = files_with_lines(library, {PurePosixPath(name).name for name in names})
        if not known:
            raise DumpsInvalid(_no_lines(library, list(names), others))
        name = max(names, key=lambda name: (known[PurePosixPath(name).name], name))
        if name == request.file_name:
            places: _Text = build.written
            provenance: Provenance = build.tags
            root = stage_tree(places.module, places.lines, build.tag)
        else:
            places = _read(tools, names[name], name, folder)
            provenance = LocationsOfModel(build.facts, request.file_name)
            root = stage_tree(places.module, places.lines)
        _check_lines(library, name, places.text)
        stage = StageReader(provenance, build.facts).stage("", root, places.text)
        program = NativeProgram(build.facts, provenance, places.module, root, stage, safe_name(name))
        copy = folder / NATIVE_MODULE_NAME
        shutil.copyfile(library, copy)
        progress("writing the bundle")
        info = module_info(copy, build.model.name, UNKNOWN_COMPILER, (), NATIVE_MODULE_NAME)
        return build.bundle(program, copy, (safe_name(name), places.text), info)


UNKNOWN_COMPILER: Final = "unknown"


def _check_lines(library: Path, name: str, text: str) -> None:
    """Reject a text that is too short for the debug lines: another version of the file, or one that is named like it.

    Raises:
        DumpsInvalid: a debug line is beyond the text's end.
    """
    table = lines_of_file(read_image(library, debug=False), PurePosixPath(name).name, str(library))
    last, count = int(table.lines.max(initial=0)), text.count("\n") + 1
    if last > count:
        raise DumpsInvalid(
            f"{library}: its code has a line {last} of {name}, which has {plural(count, 'line')}: pass the text that "
            "it was compiled from"
        )


def _no_lines(library: Path, names: Sequence[str], lines: Counter[str]) -> str:
    """Why a library does not belong to a model, and what to do."""
    if not lines:
        return (
            f"{library}: has no debug lines; compile it with them (mlir-opt: {_SCOPES} before mlir-translate; and no "
            "strip)"
        )
    named = join_names([name for name, _ in lines.most_common(3)], most=3)
    return (
        f"{library}: its debug lines are of {named}, and of none of {join_names(names, most=3)}; pass the IR that they "
        "refer to with --ir"
    )
