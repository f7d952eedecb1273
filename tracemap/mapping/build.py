"""Model -> trace graph -> bundle: one compilation gives everything.

The compiler runs in a process of its own; while it generates code, the model and the early phases are read here.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tracemap.diagnostics import Diagnostic
from tracemap.errors import ModelInvalid
from tracemap.graph import bundle
from tracemap.graph.model import ModuleInfo
from tracemap.ir.parsing import Attribute, MlirParser, Module
from tracemap.ir.source import describe, is_bytecode, read_model, tag_operations, written_locations
from tracemap.locations import Tags
from tracemap.mapping.assembly import Assembly, TagIdentity
from tracemap.mapping.compiler.compiling import Compilation, Compiler, compile_flags, compilers_own_message
from tracemap.mapping.fates.survival import is_informative
from tracemap.mapping.request import BuildRequest
from tracemap.mapping.texts import keep_texts, safe_name
from tracemap.toolchain import Progress, no_progress

_TAG_PREFIX = "tm.op."


def build(request: BuildRequest, progress: Progress = no_progress, hear: Progress = no_progress) -> bundle.Bundle:
    """Compile a model and write its bundle; `hear` is told what the compiler said (warnings).

    Raises:
        ModelInvalid: the compiler does not accept the model; the message is its own.
        TargetExists, TargetUnwritable: the bundle cannot be written.
        UsageInvalid: a compiler flag that takes away what is needed.
        ToolMissing: the compiler is not installed.
    """
    options = request.options
    compiler = request.compiler or Compiler.installed(compile_flags(options.device, options.flags))
    bundle.check_target(request.target, force=options.force)
    with tempfile.TemporaryDirectory(prefix="tracemap-") as folder:
        return _Build(request, compiler, Path(folder), progress, hear).run()


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

    def run(self) -> bundle.Bundle:
        self._progress("reading the model")
        module, text = self._read()
        written = written_locations(module)
        tags = Tags(unused_prefix(self._request.model))
        name = self._request.name_for_compiler or self._request.file_name
        bytecode = write_tagged(module, tags, name, self._folder)
        constants = has_large_constants(self._request.model)
        with Compilation(self._compiler, bytecode, self._folder, constants=constants) as compilation:
            self._progress("compiling")
            model = describe(self._parser, module, text, written, is_text=not is_bytecode(self._request.model))
            kept = keep_texts(
                model,
                self._request.file_name,
                self._request.source_roots,
                keep=not self._request.options.no_sources,
            )
            identity = TagIdentity(tags, model)
            assembly = Assembly(self._parser, model, compilation, identity, own_locations(self._parser, written))
            try:
                graph = assembly.graph(lambda: self._module_info(compilation.module, model.name), kept.sources)
            except ModelInvalid as error:
                raise ModelInvalid(self._own_message(str(error))) from error
            graph = replace(graph, library=self._request.library)
            if compilation.no_kernels:
                missing = Diagnostic("kernels-unknown", f"kernels have no text and no steps: {compilation.no_kernels}")
                graph = replace(graph, diagnostics=(*graph.diagnostics, missing))
            self._hear(compilation.wait())
            self._progress("writing the bundle")
            files = _files(compilation, kept.texts)
            return bundle.store(self._request.target, graph, files, force=self._request.options.force)

    def _read(self) -> tuple[Module, str]:
        try:
            return read_model(self._parser, self._request.model)
        except ModelInvalid as error:
            raise ModelInvalid(self._own_message(str(error))) from error

    def _own_message(self, ours: str) -> str:
        """iree-compile's own words about the model as it stands in its file; ours where it has none to say."""
        copy = self._folder / safe_name(self._request.file_name)
        copy.write_bytes(self._request.model)
        said = compilers_own_message(self._compiler, copy, self._folder / "unused.vmfb")
        said = said.replace(str(copy), self._request.file_name)
        message = said or ours.replace("-:", f"{self._request.file_name}:", 1)
        return f"{self._request.file_name}: cannot be compiled: {message}"

    def _module_info(self, module: Path, name: str) -> ModuleInfo:
        from iree.compiler import version

        return ModuleInfo(name, sha256_of(module), version.VERSION, self._compiler.flags)


def _files(compilation: Compilation, sources: Mapping[str, str]) -> bundle.Files:
    kernels = {kernel.file: kernel.text for kernel in compilation.kernels()}
    configured = (compilation.configured,) if kernels else ()
    return bundle.Files(compilation.module, sources, kernels, configured)


def write_tagged(module: Module, tags: Tags, file_name: str, folder: Path) -> Path:
    """Tag all operations of a module and write it as bytecode, which keeps the locations of all of them."""
    tag_operations(module, tags, file_name)
    bytecode = folder / "model.mlirbc"
    with bytecode.open("wb") as file:
        module.operation.write_bytecode(file)
    return bytecode


def own_locations(parser: MlirParser, written: Sequence[Attribute]) -> frozenset[int]:
    """The indices of the operations that the model gives a location: in the text, or by where they stand in it."""
    return frozenset(index for index, attribute in enumerate(written) if is_informative(parser.location_of(attribute)))


def sha256_of(file: Path) -> str:
    """The SHA-256 of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


_LARGE_CONSTANT = re.compile(rb'dense_resource<|dense<"0x|dense<\[[^>]{400}|torch_tensor_')


def has_large_constants(model: bytes) -> bool:
    """Whether a model looks as if it had large constants; the compiler may still make some where it does not."""
    return _LARGE_CONSTANT.search(model) is not None


def unused_prefix(model: bytes) -> str:
    """A prefix for tags that the model does not contain itself, so that none of its names can pass for a tag."""
    prefix = _TAG_PREFIX
    number = 0
    while prefix.encode() in model:
        number += 1
        prefix = f"tm{number}.op."
    return prefix
