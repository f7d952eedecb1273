"""`build --from-dumps`: phase dumps and module of another compilation to a bundle."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from msgspec import structs

from tracemap.diagnostics import Diagnostic
from tracemap.errors import DumpsInvalid, ModelInvalid, readable
from tracemap.graph.bundle import Bundle, Files, check_target, store
from tracemap.graph.model import PHASES, ModuleInfo, TraceGraph
from tracemap.inputs import check_is_file, stored_bytes
from tracemap.ir.executables import KernelText
from tracemap.ir.parsing import MlirParser
from tracemap.ir.reading import ParsedModel, describe, parse_model
from tracemap.mapping.assembly import Assembly, module_info
from tracemap.mapping.build import BuildRequest
from tracemap.mapping.identity import LocationIdentity
from tracemap.mapping.model.facts import ModelFacts
from tracemap.mapping.tagging import Provenance
from tracemap.mapping.texts import keep_texts
from tracemap.owned.home import temporary_folder
from tracemap.toolchain import Progress, no_progress
from tracemap.units import plural

# ---- dumps
#
# Phase dumps of a compilation made elsewhere: which files of a folder they are.


NEEDED = ("dispatch-creation", "flow", "hal")
"""Phases without which there are no members, no sites, or no commands."""

LAST = "vm"
"""The phase behind which the module is written; no op is followed so far."""
# Of the data that the last phase holds only executables say of what kind they are.
_EXECUTABLE = re.compile(rb'^\s*vm\.rodata [^"\n]*mime_type = "[^"\n]*"> dense<"0x([0-9A-Fa-f]+)">', re.MULTILINE)


class Dumps:
    """The dumps in a folder: the phases of one compilation that has ended.

    Raises:
        DumpsInvalid: a phase that is needed is missing, or there are several dumps of one.
    """

    is_own = False

    def __init__(self, folder: Path, *, model_given: bool) -> None:
        self._files: dict[str, Path] = {}
        for phase in (*PHASES, LAST):
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
        text = stored_bytes(self._files[phase], DumpsInvalid).decode(errors="replace")
        if "loc(" not in text:
            raise DumpsInvalid(f"{self._files[phase]}: no locations in it; compile with --mlir-print-debuginfo")
        return text

    def executables(self) -> Iterator[bytes]:
        """The executables in the dump of the last phase, as the module has them; none where there is no such dump."""
        if self.has(LAST):
            text = stored_bytes(self._files[LAST], DumpsInvalid)
            for found in _EXECUTABLE.finditer(text):
                # A digit that is missing makes other bytes, which are in no module.
                yield bytes.fromhex(found[1][: len(found[1]) // 2 * 2].decode("ascii"))

    def kernels(self) -> tuple[KernelText, ...]:
        """The machine code's debug lines are not ours."""
        return ()


# ---- from dumps
#
# Phase dumps and module of a compilation made elsewhere -> bundle: no tags, so the map says how far identity goes.


_UNKNOWN_COMPILER = "unknown"


def build_from_dumps(request: BuildRequest, dumped: Path, compiled: Path, progress: Progress = no_progress) -> Bundle:
    """Make a bundle of a compilation that ran elsewhere.

    Args:
        request: what to build; without a model the input phase's dump is the model.
        dumped: the folder of the compilation's phase dumps.
        compiled: the module that it made.
        progress: is told what is being done.

    Raises:
        DumpsInvalid: a dump that is needed is missing or has no locations; the module is not that of the dumps.
        ModelInvalid: the model, or a dump, does not parse.
        TargetExists, TargetUnwritable: the bundle cannot be written.
        InputInvalid: a file of parameters is missing, or of a kind that IREE does not read.
    """
    check_target(request.target, force=request.options.force)
    request.check_parameters()
    dumps = Dumps(dumped, model_given=bool(request.model))
    progress("reading the dumps")
    parser = MlirParser()
    data = request.model or dumps.wait_for("input").encode()
    name = request.file_name or dumps.file("input").name
    facts = ModelFacts(describe(parser, _parsed(parser, data, name)))
    identity = LocationIdentity(parser, facts, name)
    kept = keep_texts(facts.model, name, request.source_roots, keep=not request.options.no_sources)
    info = _module_info(compiled, facts.model.name)
    try:
        graph = Assembly(parser, facts, dumps, identity).graph(lambda: info, kept.sources)
    except ModelInvalid as error:
        raise DumpsInvalid(f"{dumped}: {error}") from error
    _check_module(graph, dumps, compiled)
    diagnostics = (_how_far(graph, facts, identity.provenance), *graph.diagnostics)
    graph = structs.replace(graph, diagnostics=diagnostics, library=request.library)
    progress("writing the bundle")
    with temporary_folder() as folder:
        copy = folder / "module.vmfb"
        shutil.copyfile(compiled, copy)
        return store(request.target, graph, Files(copy, kept.texts, keeping=request.kept), force=request.options.force)


def _parsed(parser: MlirParser, data: bytes, name: str) -> ParsedModel:
    try:
        return parse_model(parser, data)
    except ModelInvalid as error:
        raise ModelInvalid(f"{name}: does not parse: {str(error).replace('-:', f'{name}:', 1)}") from error


def _module_info(module: Path, name: str) -> ModuleInfo:
    check_is_file(module, DumpsInvalid)
    with readable(module, DumpsInvalid):
        return module_info(module, name, _UNKNOWN_COMPILER, ())


def _check_module(graph: TraceGraph, dumps: Dumps, module: Path) -> None:
    """Refuse a file that is not the module of the dumps."""
    why = next(_differences(graph, dumps, stored_bytes(module, DumpsInvalid)), "")
    if why:
        raise DumpsInvalid(
            f"{module}: not the module that the dumps belong to: {why}; give the output of the same compilation"
        )


def _differences(graph: TraceGraph, dumps: Dumps, module: bytes) -> Iterator[str]:
    """What the dumps tell of their module that this one has not.

    It names the functions, and the kernels that commands dispatch. Kernels of one name may do other work, so where
    there is a dump of the last phase its executables lie in the module as they are.
    """
    for function in graph.functions:
        if function.name.encode() not in module:
            yield f"it has no function {function.name}"
    for kernel in dict.fromkeys(site.kernel for site in graph.sites if isinstance(site.command_index, int)):
        if kernel.encode() not in module:
            yield f"it has no kernel {kernel}"
    for number, executable in enumerate(dumps.executables()):
        if executable not in module:
            yield f"it does not have the code of executable {number} of {dumps.file(LAST).name}"


def _how_far(graph: TraceGraph, facts: ModelFacts, provenance: Provenance) -> Diagnostic:
    """How far locations alone distinguish ops, and how many sites that leaves without known ops."""
    locations = [facts.operations[op.id.number].parsed_location for op in graph.ops if op.own_location]
    alone = sum(1 for location in locations if len(provenance.of(location)) == 1)
    known = sum(1 for site in graph.sites if site.members)
    text = (
        f"made from dumps without tags: {alone} of {plural(len(graph.ops), 'op')} have a location of their own; the "
        f"ops of {known} of {plural(len(graph.sites), 'dispatch site')} are known. The others have no members, "
        "because ops that share a location, or have none, cannot be distinguished: build without --from-dumps for that"
    )
    return Diagnostic("identity-by-location", text)
