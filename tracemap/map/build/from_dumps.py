"""`build --from-dumps`: a bundle from the phase dumps and the module of another compilation."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from msgspec import structs

from tracemap.core.diagnostics import Diagnostic
from tracemap.core.errors import DumpsInvalid, ModelInvalid, raising_unreadable
from tracemap.core.files import check_is_file, read_stored_file
from tracemap.core.process.temporary_files import temporary_folder
from tracemap.core.toolchain import Progress, no_progress
from tracemap.core.units import plural
from tracemap.ir.executables import KernelText
from tracemap.ir.model_reader import ParsedModel, create_records, parse_model
from tracemap.ir.parsing import MlirParser
from tracemap.map.build.assembly import Assembly, module_info
from tracemap.map.build.build import BuildRequest
from tracemap.map.build.model.model_facts import ModelFacts
from tracemap.map.build.tagging import LocationIdentity, Provenance, collect_texts
from tracemap.map.bundle import Bundle, BundleFiles, check_target, store
from tracemap.map.model import PHASES, TraceGraph

# ---- dumps

NEEDED = ("dispatch-creation", "flow", "hal")
"""Required phases: without them there are no fused ops, no dispatch sites, or no commands."""

LAST = "vm"
"""The phase after which the module is written; ops are not followed this far."""
# Of the data in the last phase, only executables state their format.
_EXECUTABLE = re.compile(rb'^\s*vm\.rodata [^"\n]*mime_type = "[^"\n]*"> dense<"0x([0-9A-Fa-f]+)">', re.MULTILINE)


class Dumps:
    """The phase dumps of one finished compilation in a folder.

    Raises:
        DumpsInvalid: a required phase is missing, or a phase has several dumps.
    """

    is_own = False

    def __init__(self, folder: Path, *, model_given: bool) -> None:
        self._files: dict[str, Path] = {}
        for phase in (*PHASES, LAST):
            files = sorted(folder.glob(f"*.{phase}.mlir"))
            if len(files) > 1:
                raise DumpsInvalid(
                    f"{folder}: several dumps of the phase {phase} ({files[0].name}, {files[1].name}); "
                    "use a folder with the dumps of one compilation only"
                )
            if files:
                self._files[phase] = files[0]
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
        """The file with the dump of a phase."""
        return self._files[phase]

    def wait_for(self, phase: str) -> str:
        """The text of a phase's dump.

        Raises:
            DumpsInvalid: it cannot be read, or it has no locations.
        """
        text = read_stored_file(self._files[phase], DumpsInvalid).decode(errors="replace")
        if "loc(" not in text:
            raise DumpsInvalid(f"{self._files[phase]}: has no locations; compile with --mlir-print-debuginfo")
        return text

    def executables(self) -> Iterator[bytes]:
        """The executables in the dump of the last phase, byte for byte as in the module; none without such a dump."""
        if self.has(LAST):
            text = read_stored_file(self._files[LAST], DumpsInvalid)
            for match in _EXECUTABLE.finditer(text):
                # A missing digit gives other bytes, which are in no module.
                yield bytes.fromhex(match[1][: len(match[1]) // 2 * 2].decode("ascii"))

    def kernels(self) -> tuple[KernelText, ...]:
        """None: the machine code's debug lines are not lines of tracemap's kernel texts."""
        return ()

    def allocations(self) -> str:
        """Nothing: no dump of a phase shows the lifetimes of slices."""
        return ""


# ---- from dumps
#
# Phase dumps and module of another compilation -> bundle. There are no tags, so the map says which ops are unknown.

_UNKNOWN_COMPILER = "unknown"


def build_from_dumps(
    request: BuildRequest, dumps_folder: Path, module: Path, progress: Progress = no_progress
) -> Bundle:
    """Make a bundle from a compilation that ran elsewhere.

    Args:
        request: the build request; without a model, the input phase's dump is the model.
        dumps_folder: the folder of the compilation's phase dumps.
        module: the compiled module.
        progress: called with a text for each step.

    Raises:
        DumpsInvalid: a required dump is missing or has no locations, or the module does not belong to the dumps.
        ModelInvalid: the model, or a dump, does not parse.
        TargetExists, TargetUnwritable: the bundle cannot be written.
        InputInvalid: a parameter file is missing, or IREE does not read its format.
    """
    check_target(request.target, force=request.options.force)
    request.check_parameters()
    dumps = Dumps(dumps_folder, model_given=bool(request.model))
    progress("reading the dumps")
    parser = MlirParser()
    data = request.model or dumps.wait_for("input").encode()
    name = request.file_name or dumps.file("input").name
    facts = ModelFacts(create_records(parser, _parsed(parser, data, name)))
    identity = LocationIdentity(parser, facts, name)
    texts = collect_texts(facts.model, name, request.source_roots, keep=not request.options.no_sources)
    check_is_file(module, DumpsInvalid)
    with raising_unreadable(module, DumpsInvalid):
        info = module_info(module, facts.model.name, _UNKNOWN_COMPILER, ())
    try:
        graph = Assembly(parser, facts, dumps, identity).graph(lambda: info, texts.sources)
    except ModelInvalid as error:
        raise DumpsInvalid(f"{dumps_folder}: {error}") from error
    _check_module(graph, dumps, module)
    diagnostics = (_identity_note(graph, facts, identity.provenance), *graph.diagnostics)
    graph = structs.replace(graph, diagnostics=diagnostics, library=request.library)
    progress("writing the bundle")
    with temporary_folder() as folder:
        copy = folder / "module.vmfb"
        shutil.copyfile(module, copy)
        return store(
            request.target, graph, BundleFiles(copy, texts.texts, keeping=request.kept), force=request.options.force
        )


def _parsed(parser: MlirParser, data: bytes, name: str) -> ParsedModel:
    try:
        return parse_model(parser, data)
    except ModelInvalid as error:
        raise ModelInvalid(f"{name}: does not parse: {str(error).replace('-:', f'{name}:', 1)}") from error


def _check_module(graph: TraceGraph, dumps: Dumps, module: Path) -> None:
    """Reject a module that does not belong to the dumps."""
    difference = next(_differences(graph, dumps, read_stored_file(module, DumpsInvalid)), "")
    if difference:
        raise DumpsInvalid(
            f"{module}: does not belong to the dumps: {difference}; pass the module of the same compilation"
        )


def _differences(graph: TraceGraph, dumps: Dumps, module: bytes) -> Iterator[str]:
    """The functions, kernels and executables of the dumps that are not in a module.

    A module contains the names of its functions and of the kernels that commands dispatch. Kernels of the same name may
    do other work, so with a dump of the last phase the bytes of its executables are compared, too.
    """
    for function in graph.functions:
        if function.name.encode() not in module:
            yield f"it has no function {function.name}"
    for kernel in dict.fromkeys(site.kernel for site in graph.sites if isinstance(site.command_index, int)):
        if kernel.encode() not in module:
            yield f"it has no kernel {kernel}"
    for index, executable in enumerate(dumps.executables()):
        if executable not in module:
            yield f"it does not contain the code of executable {index} in {dumps.file(LAST).name}"


def _identity_note(graph: TraceGraph, facts: ModelFacts, provenance: Provenance) -> Diagnostic:
    """A diagnostic: how many ops have a location that is theirs alone, and how many dispatches have known ops."""
    locations = [facts.operations[op.id.number].parsed_location for op in graph.ops if op.own_location]
    unique = sum(1 for location in locations if len(provenance.of(location)) == 1)
    sites_with_ops = sum(1 for site in graph.sites if site.members)
    text = (
        f"made from dumps without tags: {unique} of {plural(len(graph.ops), 'op')} have a location of their own, and "
        f"the ops of {sites_with_ops} of {plural(len(graph.sites), 'dispatch site')} are known. In the others, ops "
        "share a location or have none and cannot be distinguished. Build without --from-dumps to know them all"
    )
    return Diagnostic("identity-by-location", text)
