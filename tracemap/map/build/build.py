"""`build`: model to trace graph to bundle, by one compilation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Final

from msgspec import structs

from tracemap.core.codec import Document
from tracemap.core.diagnostics import Diagnostic
from tracemap.core.errors import InputInvalid, ModelInvalid, SystemLimit, TracemapError
from tracemap.core.files import check_is_file
from tracemap.core.process.temporary_files import temporary_folder
from tracemap.core.toolchain import Progress, no_progress
from tracemap.core.units import UNKNOWN, plural
from tracemap.ir.model_reader import ParsedModel, create_records, parse_model
from tracemap.ir.parsing import MlirParser, note_parsed, string_attribute
from tracemap.ir.text_checks import TOO_DEEP
from tracemap.map.build.cache import CacheEntry, Sources, find_entry
from tracemap.map.build.compiler.compilation import Compilation, Compiler, compile_error, compiler_version, flags_error
from tracemap.map.build.compiler.failure_messages import warnings_in
from tracemap.map.build.compiler.flags import compile_flags
from tracemap.map.build.compiler.library import TaggedModel, check_module_name
from tracemap.map.build.compiler.remarks import PrintedRemark
from tracemap.map.build.tagging import (
    TagIdentity,
    Tags,
    collect_texts,
    find_python_texts,
    no_known_text,
    unused_prefix,
    write_tagged,
)
from tracemap.map.bundle import (
    COMPILED_NAME,
    MEMORY_NAME,
    REMARKS_NAME,
    TIMING_NAME,
    Bundle,
    BundleFiles,
    check_target,
    safe_name,
    store,
)
from tracemap.map.bundle_documents import BuildTiming, CallToKeep, Remarks, check_timing
from tracemap.map.memory import MemoryPlan
from tracemap.map.model import LIBRARY, ModuleInfo, TraceGraph
from tracemap.options.compile import BuildOptions

# ---- request

_ARCHIVES: Final = (".irpa", ".safetensors", ".gguf")
"""File suffixes by which IREE's runtime recognises parameter archives."""


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """A build: a model's bytes (empty for some compilations done elsewhere) and its name in messages and the map."""

    model: bytes
    file_name: str
    target: Path
    options: BuildOptions = field(default_factory=BuildOptions)
    own_folder: tuple[Path, ...] = ()
    """The folder to search last for Python files; none for a model without a folder."""
    compiler: Compiler | None = None
    """The compiler with all its flags, if the caller sets them; None: they follow from the options."""
    name_for_compiler: str = ""
    """The compiler's name for the model, which it also gives to libraries; "": the file name."""

    opaque_kernels: frozenset[str] = frozenset()
    """Names of kernels whose machine code does not come from their IR: they have no text and no steps."""

    text_of: Callable[[str], str | None] = no_known_text
    """Returns the text of a Python file by the name in frames, if the caller knows it; else folders are searched."""
    keeping: CallToKeep = field(default_factory=CallToKeep)
    """The inputs and parameters that come with the model."""
    diagnostics: tuple[Diagnostic, ...] = ()
    """Diagnostics about how the model was made."""
    may_restore: bool = False
    """Whether the bundle of an earlier build of the same content may be copied, and this one kept for later."""

    @property
    def kept(self) -> CallToKeep:
        """The inputs and parameters to keep: those that came with the model, and those that the options name."""
        named = self.options.parameter_files
        scopes = {scope for scope, _ in named}
        references = (reference for reference in self.keeping.references if reference[0] not in scopes)
        return replace(self.keeping, references=(*references, *named))

    def check_parameters(self) -> None:
        """Reject parameter files that the module could not load.

        Raises:
            InputInvalid: a file cannot be read, or IREE does not read its format.
        """
        for _, path in self.options.parameter_files:
            check_is_file(path, InputInvalid)
            if path.suffix not in _ARCHIVES:
                raise InputInvalid(f"--parameters: IREE does not read {path}; it reads {', '.join(_ARCHIVES)} files")

    @property
    def source_roots(self) -> tuple[Path, ...]:
        """Folders to search for the Python files of frames; the options' folders come first."""
        return (*self.options.source_roots, *self.own_folder)

    @property
    def library(self) -> tuple[str, ...]:
        """File patterns of frames that are not the user's own."""
        return self.options.library or LIBRARY


# ---- build
#
# The compiler runs in a process of its own. While it generates code, this process reads the model and the early phases.


def build(request: BuildRequest, progress: Progress = no_progress, report: Progress = no_progress) -> Bundle:
    """Compile a model and write its bundle; `report` gets the compiler's output (warnings).

    Raises:
        ModelInvalid: the compiler rejects the model; the message is the compiler's.
        SystemLimit: a limit of the shell ended the compiler.
        TargetExists, TargetUnwritable: the bundle cannot be written.
        InputInvalid: a parameter file is missing, or IREE does not read its format.
        UsageInvalid: a compiler flag would remove something that tracemap needs.
        ToolMissing: the compiler is not installed.
    """
    options = request.options
    compiler = request.compiler or Compiler.installed(compile_flags(options.device, options.flags))
    check_target(request.target, force=options.force)
    request.check_parameters()
    entry = _cache_entry(request, compiler)
    if entry is not None:
        find = partial(find_python_texts, roots=request.source_roots, text_of=request.text_of)
        if restored := entry.restore(request.target, find):
            progress("copying the bundle of an earlier build")
            return restored
    with temporary_folder() as folder:
        build = _Build(request, compiler, folder, progress, report)
        bundle = build.run()
    if entry is not None:
        entry.keep(bundle, build.sources)
    return bundle


def _cache_entry(request: BuildRequest, compiler: Compiler) -> CacheEntry | None:
    """The place of the bundle in the cache; None if it may not be there."""
    options = request.options
    if not request.may_restore or options.timing or request.compiler is not None or request.opaque_kernels:
        return None
    settings = (
        request.file_name,
        request.name_for_compiler,
        request.library,
        options.no_sources,
        options.remarks,
        request.diagnostics,
    )
    return find_entry(compiler, request.model, settings, request.kept)


COMPILER_WARNED: Final = "compiler-warned"
"""The slug for warnings of the compiler."""
_MOST_WARNINGS = 5


def _warnings(output: str) -> Iterator[Diagnostic]:
    """The compiler's warnings, such as missing kernels to substitute, or code for a generic processor."""
    warnings = warnings_in(output)
    for text in warnings[:_MOST_WARNINGS]:
        yield Diagnostic(COMPILER_WARNED, f"iree-compile: {text}")
    if len(warnings) > _MOST_WARNINGS:
        yield Diagnostic(COMPILER_WARNED, f"iree-compile: {plural(len(warnings) - _MOST_WARNINGS, 'more warning')}")


class _Build:
    """The steps of one build, in order."""

    def __init__(
        self, request: BuildRequest, compiler: Compiler, folder: Path, progress: Progress, hear: Progress
    ) -> None:
        self._request = request
        self._compiler = compiler
        self._folder = folder
        self._progress = progress
        self._report = hear
        self.sources = Sources()
        """The Python files of the model's frames, once the build has run."""

    def run(self) -> Bundle:
        request = self._request
        remarks, timing = request.options.remarks, request.options.timing
        name = request.name_for_compiler or request.file_name
        model = TaggedModel(request.model, name, unused_prefix(request.model))
        self._progress("reading the model")
        # From here on the compiler runs in its own process, so work in this one costs the user no time.
        with Compilation(self._compiler, model, self._folder, remarks=remarks, timing=timing) as compilation:
            if compilation.has_parsed():
                note_parsed(request.model)
            parsed = self._parsed()
            check_module_name(string_attribute(parsed.module.operation, "sym_name"), request.file_name)
            tags = Tags(model.prefix)
            compilation.go_on(partial(write_tagged, parsed.module, tags, name, self._folder))
            self._progress("compiling")
            graph, texts, memory = self._graph(parsed, tags, compilation)
            output = compilation.wait()
            self._report(output)
            graph = structs.replace(graph, diagnostics=(*graph.diagnostics, *_warnings(output)))
            timed = self._timing(compilation, graph) if timing else None
            if isinstance(timed, Diagnostic):
                graph = structs.replace(graph, diagnostics=(*graph.diagnostics, timed))
            self._progress("writing the bundle")
            documents: dict[str, Document] = {COMPILED_NAME: compilation.took()}
            if memory is not None:
                documents[MEMORY_NAME] = memory
            if isinstance(timed, BuildTiming):
                documents[TIMING_NAME] = timed
            if remarks:
                documents[REMARKS_NAME] = self._remarks(compilation, graph)
            files = _files(compilation, texts, self._request, documents)
            return store(self._request.target, graph, files, force=self._request.options.force)

    @cached_property
    def _parser(self) -> MlirParser:
        """Created only when the compiler runs, so that a forked process has no second context."""
        return MlirParser()

    def _parsed(self) -> ParsedModel:
        try:
            return parse_model(self._parser, self._request.model)
        except ModelInvalid as error:
            raise self._rejection(error) from error

    def _graph(
        self, parsed: ParsedModel, tags: Tags, compilation: Compilation
    ) -> tuple[TraceGraph, Mapping[str, str], MemoryPlan | None]:
        """The trace graph, the kept texts by path, and the memory of the program if it is known."""
        # Imported only now, so that the compiler starts earlier.
        from tracemap.map.build.assembly import Assembly
        from tracemap.map.build.model.model_facts import ModelFacts

        request = self._request
        facts = ModelFacts(create_records(self._parser, parsed))
        keep = not request.options.no_sources
        model_texts = collect_texts(
            facts.model, request.file_name, request.source_roots, keep=keep, text_of=request.text_of
        )
        found = {source.name: model_texts.texts[source.path] for source in model_texts.sources[1:]}
        self.sources = Sources.of(model_texts.searched, found)
        assembly = Assembly(self._parser, facts, compilation, TagIdentity(tags, facts))
        try:
            graph = assembly.graph(lambda: self._module_info(compilation.module, facts.model.name), model_texts.sources)
        except (ModelInvalid, SystemLimit) as error:
            raise self._rejection(error) from error
        diagnostics = [*request.diagnostics, *graph.diagnostics]
        if compilation.no_kernels:
            text = f"kernels have no text and no lines of IR: {compilation.no_kernels}"
            diagnostics.append(Diagnostic("kernels-unknown", text))
        kernels = tuple(
            structs.replace(kernel, steps=(), text=UNKNOWN) if kernel.name in request.opaque_kernels else kernel
            for kernel in graph.kernels
        )
        finished = structs.replace(graph, library=request.library, diagnostics=tuple(diagnostics), kernels=kernels)
        return finished, model_texts.texts, assembly.memory

    def _remarks(self, compilation: Compilation, graph: TraceGraph) -> Remarks:
        """The remarks of LLVM and MLIR; the bundle is complete without them."""
        from tracemap.map.build.remarks import is_for_cpus, mlir_remarks, place_remarks

        remarks: list[PrintedRemark] = []
        diagnostics: list[Diagnostic] = []
        try:
            remarks += compilation.remarks()
        except ModelInvalid as error:
            diagnostics.append(Diagnostic("remarks-missing", f"LLVM's remarks are missing: {error}"))
        if not is_for_cpus(self._compiler.flags):
            try:
                remarks += mlir_remarks(self._compiler, compilation.bytecode, self._folder)
            except ModelInvalid as error:
                diagnostics.append(Diagnostic("remarks-missing", f"MLIR's remarks are missing: {error}"))
        return structs.replace(place_remarks(remarks, graph), diagnostics=tuple(diagnostics))

    def _timing(self, compilation: Compilation, graph: TraceGraph) -> BuildTiming | Diagnostic:
        """The compiler's time by kernel and pass, or why it is unknown; the bundle is complete without it."""
        try:
            timing = compilation.timing()
            check_timing(timing, graph)
        except (ModelInvalid, ValueError) as error:
            return Diagnostic("timing-missing", f"the compiler's times are missing: {error}")
        return timing

    def _rejection(self, error: TracemapError) -> TracemapError:
        """iree-compile's own error for the flags or for the model's file; `error` if it has none."""
        # For too deep models the compiler would crash, and a limit is not the model's fault.
        if isinstance(error, SystemLimit) or TOO_DEEP in str(error):
            return type(error)(f"{self._request.file_name}: cannot be compiled: {error}")
        if self._request.compiler is None and (
            rejected := flags_error(self._compiler, self._request.options.flags, self._folder)
        ):
            return rejected
        copy = self._folder / safe_name(self._request.file_name)
        copy.write_bytes(self._request.model)
        reported = compile_error(self._compiler, copy, self._folder / "unused.vmfb")
        if reported is None:
            message = str(error).replace("-:", f"{self._request.file_name}:", 1)
        else:
            message = str(reported).replace(str(copy), self._request.file_name)
        return type(reported or error)(f"{self._request.file_name}: cannot be compiled: {message}")

    def _module_info(self, module: Path, name: str) -> ModuleInfo:
        from tracemap.map.build.assembly import module_info

        return module_info(module, name, compiler_version(), self._compiler.flags)


def _files(
    compilation: Compilation, sources: Mapping[str, str], request: BuildRequest, documents: Mapping[str, Document]
) -> BundleFiles:
    texts = compilation.kernels()
    kernels = {kernel.file: kernel.text for kernel in texts if kernel.kernel not in request.opaque_kernels}
    configured = (compilation.configured,) if texts else ()
    return BundleFiles(compilation.module, sources, kernels, configured, documents, request.kept)
