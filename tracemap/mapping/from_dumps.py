"""Phase dumps and module of a compilation made elsewhere -> bundle: no tags, so the map says how far identity goes."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from pathlib import Path

from tracemap.diagnostics import Diagnostic
from tracemap.errors import DumpsInvalid, ModelInvalid
from tracemap.graph import bundle
from tracemap.graph.model import Evidence, ModuleInfo, OpId, TraceGraph
from tracemap.ir.parsing import MlirParser
from tracemap.ir.source import TEXT_FILE, SourceModel, describe, is_bytecode, read_model, written_locations
from tracemap.locations import Location, Tags
from tracemap.mapping.assembly import Assembly
from tracemap.mapping.build import own_locations, sha256_of
from tracemap.mapping.compiler.dumps import Dumps, LocationIdentity, location_tags
from tracemap.mapping.fates.survival import is_informative
from tracemap.mapping.request import BuildRequest
from tracemap.mapping.texts import keep_texts
from tracemap.toolchain import Progress, no_progress
from tracemap.units import plural

_UNKNOWN_COMPILER = "unknown"


def build_from_dumps(
    request: BuildRequest, dumped: Path, compiled: Path, progress: Progress = no_progress
) -> bundle.Bundle:
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
    """
    bundle.check_target(request.target, force=request.options.force)
    dumps = Dumps(dumped, model_given=bool(request.model))
    progress("reading the dumps")
    parser = MlirParser()
    data = request.model or dumps.wait_for("input").encode()
    name = request.file_name or dumps.file("input").name
    try:
        module, text = read_model(parser, data)
    except ModelInvalid as error:
        raise ModelInvalid(f"{name}: does not parse: {str(error).replace('-:', f'{name}:', 1)}") from error
    attributes = written_locations(module)
    model = describe(parser, module, text, attributes, is_text=not is_bytecode(data))
    written = [parser.location_of(attribute) for attribute in attributes]
    tags = location_tags(model, written, name, TEXT_FILE)
    identity = LocationIdentity(parser, tags, {op.index: op.owner for op in model.operations})
    kept = keep_texts(model, name, request.source_roots, keep=not request.options.no_sources)
    assembly = Assembly(parser, model, dumps, identity, own_locations(parser, attributes))
    info = ModuleInfo(model.name, _hash(compiled), _UNKNOWN_COMPILER, ())
    try:
        graph = assembly.graph(lambda: info, kept.sources)
    except ModelInvalid as error:
        raise DumpsInvalid(f"{dumped}: {error}") from error
    _check_module(graph, compiled)
    found = (_how_far(graph, model, written, tags), *graph.diagnostics)
    graph = dataclasses.replace(graph, diagnostics=found, library=request.library)
    progress("writing the bundle")
    with tempfile.TemporaryDirectory(prefix="tracemap-") as folder:
        copy = Path(folder, "module.vmfb")
        shutil.copyfile(compiled, copy)
        return bundle.store(request.target, graph, bundle.Files(copy, kept.texts), force=request.options.force)


def _hash(module: Path) -> str:
    try:
        return sha256_of(module)
    except OSError as error:
        raise DumpsInvalid(f"{module}: the module cannot be read: {error.strerror}") from error


def _check_module(graph: TraceGraph, module: Path) -> None:
    """Refuse a file that is not the module of the dumps: it must at least name their functions."""
    data = module.read_bytes()
    missing = [function.name for function in graph.functions if function.name.encode() not in data]
    if missing:
        raise DumpsInvalid(
            f"{module}: not the module that the dumps belong to: it has no function {missing[0]}; "
            "give the output of the same compilation"
        )


def _how_far(graph: TraceGraph, model: SourceModel, written: list[Location], tags: Tags) -> Diagnostic:
    """How far ops and sites are told apart by their locations alone."""
    ids = {op.id for op in graph.ops}
    own = [op for op in model.operations if op.is_op and OpId.of(op.index) in ids]
    alone = sum(1 for op in own if is_informative(written[op.index]) and len(tags.of(written[op.index])) == 1)
    located = sum(1 for site in graph.sites if any(m.evidence is Evidence.LOCATED for m in site.members))
    without = sum(1 for site in graph.sites if not site.members)
    text = (
        f"made from dumps without tags: {alone} of {plural(len(own), 'op')} have a location that tells them apart, "
        f"{located} of {plural(len(graph.sites), 'site')} a member that is told apart, {without} no member at all; "
        "ops that share a location share what is known"
    )
    return Diagnostic("identity-by-location", text)
