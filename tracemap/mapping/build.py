"""`build`: model to trace graph to bundle, by one compilation."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from msgspec import structs

from tracemap.codec import Document
from tracemap.diagnostics import Diagnostic
from tracemap.errors import InputInvalid, ModelInvalid, SystemLimit, TracemapError
from tracemap.graph.bundle import COMPILED_NAME, REMARKS_NAME, Bundle, Files, check_target, store
from tracemap.graph.documents import Keeping, Remarks
from tracemap.graph.model import LIBRARY, Kernel, ModuleInfo, TraceGraph
from tracemap.inputs import check_is_file
from tracemap.ir.checks import TOO_DEEP
from tracemap.ir.parsing import MlirParser, string_attribute
from tracemap.ir.reading import ParsedModel, describe, parse_model
from tracemap.mapping.compiler.compiling import Compilation, Compiler, compilers_own_error
from tracemap.mapping.compiler.flags import compile_flags
from tracemap.mapping.compiler.messages import warnings_in
from tracemap.mapping.compiler.remarks import SaidRemark
from tracemap.mapping.tagging import Tags, unused_prefix, write_tagged
from tracemap.mapping.texts import no_text
from tracemap.options.compile import BuildOptions
from tracemap.owned.home import temporary_folder
from tracemap.toolchain import Progress, no_progress
from tracemap.units import UNKNOWN, plural

# ---- request
#
# What a bundle is made of: a model, where the bundle goes, and the options.


_ARCHIVES: Final = (".irpa", ".safetensors", ".gguf")
"""Endings of files of parameters, by which IREE's runtime tells them apart."""


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """What to build: a model's bytes (of a compilation made elsewhere there may be none) and its name (shown, kept)."""

    model: bytes
    file_name: str
    target: Path
    options: BuildOptions = field(default_factory=BuildOptions)
    own_folder: tuple[Path, ...] = ()
    """The folder below which Python files are looked for last; none for a model without one."""
    compiler: Compiler | None = None
    """The program and all its flags, as somebody else gives them; None: they are made of the options."""
    name_for_compiler: str = ""
    """What the compiler would call the model (it names libraries so); "": its file name."""

    opaque_kernels: frozenset[str] = frozenset()
    """Names of kernels whose machine code is not made from their IR: they have no text and no steps."""

    text_of: Callable[[str], str | None] = no_text
    """The text of a Python file that frames name, where whoever hands in the model knows it; else it is looked for."""
    keeping: Keeping = field(default_factory=Keeping)
    """What the module is called with, where that is handed in with the model."""
    diagnostics: tuple[Diagnostic, ...] = ()
    """What is to be said of how the model was made."""

    @property
    def kept(self) -> Keeping:
        """What the bundle keeps to be called with: what was handed in, and what the options name."""
        named = self.options.parameter_files
        scopes = {scope for scope, _ in named}
        others = (each for each in self.keeping.references if each[0] not in scopes)
        return replace(self.keeping, references=(*others, *named))

    def check_parameters(self) -> None:
        """Refuse files of parameters that could not be handed to the module.

        Raises:
            InputInvalid: one cannot be read, or is of a kind that IREE does not read.
        """
        for _, path in self.options.parameter_files:
            check_is_file(path, InputInvalid)
            if path.suffix not in _ARCHIVES:
                raise InputInvalid(f"--parameters: {path} is none of the kinds that IREE reads: {', '.join(_ARCHIVES)}")

    @property
    def source_roots(self) -> tuple[Path, ...]:
        """Where Python files of frames may lie, the options' folders first."""
        return (*self.options.source_roots, *self.own_folder)

    @property
    def library(self) -> tuple[str, ...]:
        """Patterns of files whose frames are not the user's own."""
        return self.options.library or LIBRARY


# ---- build
#
# Model -> trace graph -> bundle: one compilation gives everything.
#
# The compiler runs in a process of its own; while it generates code, the model and the early phases are read here.


def build(request: BuildRequest, progress: Progress = no_progress, hear: Progress = no_progress) -> Bundle:
    """Compile a model and write its bundle; `hear` is told what the compiler said (warnings).

    Raises:
        ModelInvalid: the compiler does not accept the model; the message is its own.
        SystemLimit: a limit of the shell has ended it.
        TargetExists, TargetUnwritable: the bundle cannot be written.
        InputInvalid: a file of parameters is missing, or of a kind that IREE does not read.
        UsageInvalid: a compiler flag that takes away what is needed.
        ToolMissing: the compiler is not installed.
    """
    options = request.options
    compiler = request.compiler or Compiler.installed(compile_flags(options.device, options.flags))
    check_target(request.target, force=options.force)
    request.check_parameters()
    with temporary_folder() as folder:
        return _Build(request, compiler, folder, progress, hear).run()


COMPILER_WARNED: Final = "compiler-warned"
"""What a map says where the compiler warned of something."""
_MOST_WARNINGS = 5


def _warned(said: str) -> Iterator[Diagnostic]:
    """What the compiler warned of: kernels to be substituted that are not there, say, or code for any processor."""
    found = warnings_in(said)
    for text in found[:_MOST_WARNINGS]:
        yield Diagnostic(COMPILER_WARNED, f"iree-compile: {text}")
    if len(found) > _MOST_WARNINGS:
        yield Diagnostic(COMPILER_WARNED, f"iree-compile: {plural(len(found) - _MOST_WARNINGS, 'warning')} more")


class _Build:
    """The steps of one build, in order."""

    def __init__(
        self, request: BuildRequest, compiler: Compiler, folder: Path, progress: Progress, hear: Progress
    ) -> None:
        self._request = request
        self._compiler = compiler
        self._folder = folder
        self._progress = progress
        self._hear = hear
        self._parser = MlirParser()

    def run(self) -> Bundle:
        self._progress("reading the model")
        parsed = self._parsed()
        self._check_module_name(string_attribute(parsed.module.operation, "sym_name"))
        tags = Tags(unused_prefix(self._request.model))
        name = self._request.name_for_compiler or self._request.file_name
        bytecode = write_tagged(parsed.module, tags, name, self._folder)
        constants = has_large_constants(self._request.model)
        # From here on the compiler runs in its own process: what is done until its end costs the user no time.
        remarks = self._request.options.remarks
        with Compilation(self._compiler, bytecode, self._folder, constants=constants, remarks=remarks) as compilation:
            self._progress("compiling")
            graph, texts = self._graph(parsed, tags, compilation)
            said = compilation.wait()
            self._hear(said)
            graph = structs.replace(graph, diagnostics=(*graph.diagnostics, *_warned(said)))
            self._progress("writing the bundle")
            documents: dict[str, Document] = {COMPILED_NAME: compilation.took()}
            if remarks:
                documents[REMARKS_NAME] = self._remarks(compilation, bytecode, graph)
            files = _files(compilation, texts, self._request, documents)
            return store(self._request.target, graph, files, force=self._request.options.force)

    def _parsed(self) -> ParsedModel:
        try:
            return parse_model(self._parser, self._request.model)
        except ModelInvalid as error:
            raise self._refused(error) from error

    def _check_module_name(self, name: str) -> None:
        """Refuse a name that the compiler's dumps, which are called after the module, cannot have or hide behind.

        The compiler makes a path of it as it is, so that `../..` leads out of the folder.
        """
        if "/" in name or "\0" in name or len(name.encode()) > _LONGEST_NAME:
            shown = name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"
            raise ModelInvalid(
                f"{self._request.file_name}: its module is called {shown!r}, which cannot be a file's name, as "
                "iree-compile needs it for its dumps; give the module another name"
            )

    def _graph(self, parsed: ParsedModel, tags: Tags, compilation: Compilation) -> tuple[TraceGraph, Mapping[str, str]]:
        """The trace graph, and the texts that are kept by their path."""
        # Imported now that the compiler is at work: what is needed to start it comes first.
        from tracemap.mapping.assembly import Assembly
        from tracemap.mapping.identity import TagIdentity
        from tracemap.mapping.model.facts import ModelFacts
        from tracemap.mapping.texts import keep_texts

        request = self._request
        facts = ModelFacts(describe(self._parser, parsed))
        keep = not request.options.no_sources
        kept = keep_texts(facts.model, request.file_name, request.source_roots, keep=keep, text_of=request.text_of)
        assembly = Assembly(self._parser, facts, compilation, TagIdentity(tags, facts))
        try:
            graph = assembly.graph(lambda: self._module_info(compilation.module, facts.model.name), kept.sources)
        except (ModelInvalid, SystemLimit) as error:
            raise self._refused(error) from error
        diagnostics = (*request.diagnostics, *graph.diagnostics, *_missing_kernels(compilation))
        kernels = tuple(_without_text(each) if each.name in request.opaque_kernels else each for each in graph.kernels)
        changed = structs.replace(graph, library=request.library, diagnostics=diagnostics, kernels=kernels)
        return changed, kept.texts

    def _remarks(self, compilation: Compilation, tagged: Path, graph: TraceGraph) -> Remarks:
        """What LLVM and MLIR said; the bundle is whole without it."""
        from tracemap.mapping.compiler.remarking import is_for_cpus, mlir_remarks
        from tracemap.mapping.remarks import placed

        said: list[SaidRemark] = []
        missing: list[Diagnostic] = []
        try:
            said += compilation.remarks()
        except ModelInvalid as error:
            missing.append(Diagnostic("remarks-missing", f"LLVM's remarks are not known: {error}"))
        if not is_for_cpus(self._compiler.flags):
            try:
                said += mlir_remarks(self._compiler, tagged, self._folder)
            except ModelInvalid as error:
                missing.append(Diagnostic("remarks-missing", f"MLIR's remarks are not known: {error}"))
        return structs.replace(placed(said, graph), diagnostics=tuple(missing))

    def _refused(self, ours: TracemapError) -> TracemapError:
        """iree-compile's own words about the model as it stands in its file; ours where it has none to say."""
        from tracemap.mapping.texts import safe_name

        # Of what is too deep the compiler's own words would be those of its crash; a limit is no fault of the model's.
        if isinstance(ours, SystemLimit) or TOO_DEEP in str(ours):
            return type(ours)(f"{self._request.file_name}: cannot be compiled: {ours}")
        copy = self._folder / safe_name(self._request.file_name)
        copy.write_bytes(self._request.model)
        own = compilers_own_error(self._compiler, copy, self._folder / "unused.vmfb")
        if own is None:
            message = str(ours).replace("-:", f"{self._request.file_name}:", 1)
        else:
            message = str(own).replace(str(copy), self._request.file_name)
        return type(own or ours)(f"{self._request.file_name}: cannot be compiled: {message}")

    def _module_info(self, module: Path, name: str) -> ModuleInfo:
        from iree.compiler import version

        from tracemap.mapping.assembly import module_info

        return module_info(module, name, version.VERSION, self._compiler.flags)


def _missing_kernels(compilation: Compilation) -> Iterator[Diagnostic]:
    if compilation.no_kernels:
        text = f"kernels have no text and no steps: {compilation.no_kernels}"
        yield Diagnostic("kernels-unknown", text)


def _without_text(kernel: Kernel) -> Kernel:
    return structs.replace(kernel, steps=(), text=UNKNOWN)


def _files(
    compilation: Compilation, sources: Mapping[str, str], request: BuildRequest, documents: Mapping[str, Document]
) -> Files:
    texts = compilation.kernels()
    kernels = {kernel.file: kernel.text for kernel in texts if kernel.kernel not in request.opaque_kernels}
    configured = (compilation.configured,) if texts else ()
    return Files(compilation.module, sources, kernels, configured, documents, request.kept)


_LONGEST_NAME: Final = 200
"""Bytes of a module's name: with what the compiler adds, a file's name has 255 at most."""
_LARGE_CONSTANT = re.compile(rb'dense_resource<|dense<"0x|dense<\[[^>]{400}|torch_tensor_')


def has_large_constants(model: bytes) -> bool:
    """Whether a model looks as if it had large constants; the compiler may still make some where it does not."""
    return _LARGE_CONSTANT.search(model) is not None
