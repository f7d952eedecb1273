"""Models of torch: exported, imported, and located in the Python that made them."""

from __future__ import annotations

import io
import logging
import os
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracemap.core.errors import InputInvalid, ModelInvalid, ModelUnreadable, ToolMissing
from tracemap.core.files import FileFormat, check_is_file, format_of_file
from tracemap.core.toolchain import is_installed
from tracemap.frontends.imported import ImportedModel, as_identifier, loaded_text
from tracemap.ir.frameworks import Frame, Node, name_arguments, placeholder_of, set_locations
from tracemap.map.bundle_documents import CallToKeep

if TYPE_CHECKING:
    import numpy as np


# ---- torch nodes
#
# Origins of the nodes of an exported torch program: their modules and Python frames.

_STACK_TRACE: Final = "stack_trace"
_VALUE: Final = "val"
_MODULES: Final = "nn_module_stack"
_KINDS: Final = frozenset({"call_function", "get_attr"})
_FRAME: Final = re.compile(r'File "([^"\n]+)", line (\d+)(?:, in (\S+))?')
_BRANCH_ROOT: Final = "_export_root"
"""Torch's name of the user's module in the branches of a condition."""


@contextmanager
def as_importable(exported: Any) -> Iterator[tuple[Node, ...]]:  # noqa: ANN401 - torch's ExportedProgram
    """Prepare a program for the importer, and restore it afterwards; yields the origins of its nodes.

    Nodes get unique placeholder locations, numbered by the index of their origin. In a program read from a file, a node
    with several results has a tuple of tensors, which becomes a list, as the importer requires.
    """
    nodes = [node for graph in _graphs(exported) for node in graph.nodes if node.op in _KINDS]
    before = [{key: node.meta[key] for key in (_STACK_TRACE, _VALUE) if key in node.meta} for node in nodes]
    try:
        origins = tuple(map(_origin, nodes))
        for number, node in enumerate(nodes):
            node.meta[_STACK_TRACE] = placeholder_of(number)
            if isinstance(node.meta.get(_VALUE), tuple):
                node.meta[_VALUE] = list(node.meta[_VALUE])
        yield origins
    finally:
        for node, meta in zip(nodes, before, strict=True):
            node.meta.pop(_STACK_TRACE, None)
            node.meta.update(meta)


def _graphs(exported: Any) -> Iterator[Any]:  # noqa: ANN401 - torch's
    """The graph of a program and the graphs of its branches and loops."""
    import torch

    for module in exported.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            yield module.graph


def _origin(node: Any) -> Node:  # noqa: ANN401 - torch's
    """Modules and frames of a node, as recorded by torch."""
    modules = list((node.meta.get(_MODULES) or {}).values())
    path = str(modules[-1][0]).split(".") if modules else []
    names = [name for name in path if name not in ("", _BRANCH_ROOT)]
    calls = _FRAME.findall(node.meta.get(_STACK_TRACE) or "")
    frames = tuple(Frame(file, int(line), function) for file, line, function in reversed(calls))
    return Node("/".join([*names, str(node.name)]), frames)


# ---- torch
#
# Import of torch programs with iree-turbine: an `nn.Module` with its arguments, or an `ExportedProgram`.
#
# Locations are the modules and Python frames that torch records. Saved parameters and buffers of a module become
# external parameters, which the bundle keeps.

_SCOPE: Final = "model"
_TRAIT: Final = "_turbine_external_tensor_trait"
"""The attribute with which iree-turbine marks external tensors."""


def import_program(
    program: Any,  # noqa: ANN401 - torch's
    arguments: Sequence[object],
    keywords: Mapping[str, object],
    folder: Path,
) -> ImportedModel:
    """Import a torch program.

    Args:
        program: an `nn.Module`, or an `ExportedProgram`. Without arguments, the latter's example inputs are kept.
        arguments: positional arguments of the program.
        keywords: keyword arguments of the program.
        folder: folder for parameters; it must exist until the bundle is written.

    Raises:
        InputInvalid: the arguments do not match the exported program.
        ModelInvalid: the importer rejects the program; the message is the importer's.
        ToolMissing: iree-turbine is not installed.
        Exception: any error of torch or of the module itself during export.
    """
    _check_installed()
    import torch

    is_module = isinstance(program, torch.nn.Module)
    exported = torch.export.export(program, tuple(arguments), dict(keywords)) if is_module else program
    inputs = (tuple(arguments), dict(keywords)) if arguments or keywords else exported.example_inputs
    return _imported(exported, as_identifier(type(program).__name__ if is_module else "exported"), inputs, folder)


def import_file(path: Path, folder: Path) -> ImportedModel:
    """Import a file written by `torch.export.save`, with its example inputs.

    Pickled objects in it are refused. But torch evaluates other texts in it, so the file must be trusted like a
    program.

    Args:
        path: the file.
        folder: folder for parameters; it must exist until the bundle is written.

    Raises:
        ModelInvalid: torch cannot read the file, or the importer rejects it.
        ToolMissing: torch or iree-turbine is not installed.
    """
    check_is_file(path, ModelUnreadable)
    if fault := _structure_fault(path):
        raise ModelInvalid(f"{path.name}: {fault}")
    _check_installed()
    import torch

    try:
        with _without_pickles():
            exported = torch.export.load(path)
    except Exception as error:  # torch's readers raise any kind of error
        cause = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ModelInvalid(f"{path.name}: torch cannot read it as a file of torch.export.save: {cause}") from error
    return _imported(exported, as_identifier(path.stem), exported.example_inputs, folder)


_EXPORT: Final = "write it with torch.export.save(torch.export.export(module, arguments), 'MODEL.pt2')"


def _structure_fault(path: Path) -> str:
    """Why a file is not of `torch.export.save`, and what to do; "" if it may be."""
    kind = format_of_file(path)
    if kind is not FileFormat.ARCHIVE:
        advice = "fetch the file with `git lfs pull`" if kind is FileFormat.POINTER else _EXPORT
        return f"is {kind or 'unreadable'}, not a program of torch.export.save; {advice}"
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        return f"is a truncated or damaged archive ({error}); copy it again, or {_EXPORT}"
    if any(name.endswith(".json") for name in names):  # the program itself
        return ""
    is_saved = any(name.endswith(".pkl") for name in names)
    content = "weights or a module of torch.save" if is_saved else "an archive without a program"
    return f"is {content}, not a program of torch.export.save; {_EXPORT}"


@contextmanager
def _without_pickles() -> Iterator[None]:
    """Make torch load only weights, and silence its log, since it also raises the errors."""
    before, log = os.environ.get(_NO_PICKLES), logging.getLogger("torch.export")
    os.environ[_NO_PICKLES], log.disabled = "1", True
    try:
        yield
    finally:
        log.disabled = False
        os.environ.pop(_NO_PICKLES)
        if before is not None:
            os.environ[_NO_PICKLES] = before


_NO_PICKLES: Final = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"


def _check_installed() -> None:
    if not is_installed("iree.turbine") or not is_installed("torch"):
        raise ToolMissing(
            "torch programs require iree-turbine; install it with: pip install 'tracemap[torch]', or pass the MLIR "
            "that iree.turbine.aot.export(module, *arguments).save_mlir(FILE) writes on another machine"
        )


def _imported(exported: Any, name: str, inputs: Any, folder: Path) -> ImportedModel:  # noqa: ANN401 - torch's
    import torch
    from iree.turbine.aot import ParameterArchiveBuilder

    saved = {parameter: value for parameter, value in exported.state_dict.items() if isinstance(value, torch.Tensor)}
    data = _bytecode(exported, saved, name)
    archive = folder / f"{_SCOPE}.irpa"
    if saved:
        builder = ParameterArchiveBuilder()
        for parameter, tensor in saved.items():
            builder.add_tensor(parameter, tensor)
        builder.save(archive)
    keeping = CallToKeep(name, _named_inputs(exported, inputs), ((_SCOPE, archive),) if saved else ())
    return ImportedModel(name, data, keeping, loaded_text)


def _bytecode(exported: Any, parameters: Mapping[str, Any], name: str) -> bytes:  # noqa: ANN401 - torch's
    from iree.turbine import aot

    bytecode = io.BytesIO()
    with _mark_external(parameters), as_importable(exported) as nodes:
        try:
            output = aot.export(exported, module_name=name, function_name=name)
        except (RuntimeError, NotImplementedError, ValueError, TypeError, KeyError) as error:
            raise ModelInvalid(f"iree-turbine rejects the program: {error}") from error
        set_locations(output.mlir_module, nodes)
        name_arguments(output.mlir_module, name, _input_names(exported))
        output.mlir_module.write_bytecode(bytecode)
    return bytecode.getvalue()


@contextmanager
def _mark_external(parameters: Mapping[str, Any]) -> Iterator[None]:
    """Mark tensors as external during the import, then restore them, since they belong to the user.

    A tensor with several names, such as a shared weight, is marked once.
    """
    from iree.turbine.aot import ExternalTensorTrait

    named = {id(tensor): (name, tensor) for name, tensor in parameters.items()}.values()
    before = [getattr(tensor, _TRAIT, None) for _, tensor in named]
    try:
        for name, tensor in named:
            ExternalTensorTrait(external_scope=_SCOPE, external_name=name).set(tensor)
        yield
    finally:
        for (_, tensor), trait in zip(named, before, strict=True):
            if trait is None:
                delattr(tensor, _TRAIT)
            else:
                setattr(tensor, _TRAIT, trait)


def _named_inputs(exported: Any, inputs: Any) -> tuple[tuple[str, np.ndarray[Any, Any]], ...]:  # noqa: ANN401 - torch's
    """Names and arrays of the inputs; empty without inputs."""
    import torch
    from torch.utils import _pytree

    if inputs is None:
        return ()
    tensors = [leaf for leaf in _pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
    names = _input_names(exported)
    if len(tensors) != len(names):
        raise InputInvalid(f"the program has {len(names)} tensor inputs ({', '.join(names)}), but got {len(tensors)}")
    return tuple((name, _array(tensor)) for name, tensor in zip(names, tensors, strict=True))


def _input_names(exported: Any) -> list[str]:  # noqa: ANN401 - torch's
    """The names of the tensor inputs; numbers among the inputs are constants of the program."""
    return [str(name) for name in exported.graph_signature.user_inputs if isinstance(name, str)]


def _array(tensor: Any) -> np.ndarray[Any, Any]:  # noqa: ANN401 - torch's
    """Convert to a numpy array; bfloat16 needs a type of ml_dtypes."""
    import ml_dtypes
    import numpy as np
    import torch

    here = tensor.detach().cpu().contiguous()
    if here.dtype == torch.bfloat16:
        return np.asarray(here.view(torch.int16).numpy()).view(ml_dtypes.bfloat16)
    return np.asarray(here.numpy())
