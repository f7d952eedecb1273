"""Programs of torch: an `nn.Module` with its arguments, or what `torch.export.export` made, by way of iree-turbine.

Locations are the modules and Python frames that torch records; parameters and buffers that are saved with a module are
external, and the bundle keeps them.
"""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracemap.errors import InputInvalid, ModelInvalid, ModelUnreadable, ToolMissing
from tracemap.frontends.imported import Imported, as_identifier
from tracemap.frontends.python_texts import loaded_text
from tracemap.frontends.torch_nodes import as_importable
from tracemap.graph.documents import Keeping
from tracemap.inputs import check_is_file
from tracemap.ir.frameworks import set_locations
from tracemap.toolchain import is_installed

if TYPE_CHECKING:
    import numpy as np

_SCOPE: Final = "model"
_TRAIT: Final = "_turbine_external_tensor_trait"
"""The attribute by which iree-turbine knows of a tensor that it lies elsewhere."""


def import_program(
    program: Any,  # noqa: ANN401 - torch's
    arguments: Sequence[object],
    keywords: Mapping[str, object],
    folder: Path,
) -> Imported:
    """The model of a program of torch.

    Args:
        program: an `nn.Module`, or an `ExportedProgram`, whose own example inputs are kept where none are given.
        arguments: what it is called with.
        keywords: the same, by name.
        folder: where its parameters are written; it must stay until they are kept.

    Raises:
        InputInvalid: the arguments are not those that it was exported for.
        ModelInvalid: the importer does not take it; the message is its own.
        ToolMissing: iree-turbine is not installed.
        Exception: whatever torch or the module itself raises while it is exported.
    """
    _check_installed()
    import torch

    is_module = isinstance(program, torch.nn.Module)
    exported = torch.export.export(program, tuple(arguments), dict(keywords)) if is_module else program
    given = (tuple(arguments), dict(keywords)) if arguments or keywords else exported.example_inputs
    return _imported(exported, as_identifier(type(program).__name__ if is_module else "exported"), given, folder)


def import_file(path: Path, folder: Path) -> Imported:
    """The model of a file that `torch.export.save` wrote, with the example inputs in it.

    Objects in it that only a pickle could bring are refused; but torch evaluates other texts in it: it is a program.

    Args:
        path: it.
        folder: where its parameters are written; it must stay until they are kept.

    Raises:
        ModelInvalid: torch cannot read it, or the importer does not take it.
        ToolMissing: torch or iree-turbine is not installed.
    """
    _check_installed()
    import torch

    check_is_file(path, ModelUnreadable)
    try:
        with _without_pickles():
            exported = torch.export.load(path)
    except Exception as error:  # torch's readers raise errors of every kind
        said = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ModelInvalid(f"{path.name}: torch cannot read it as what torch.export.save writes: {said}") from error
    return _imported(exported, as_identifier(path.stem), exported.example_inputs, folder)


@contextmanager
def _without_pickles() -> Iterator[None]:
    """Have torch read numbers only, and keep from the log what it raises as well."""
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
            "programs of torch are imported by iree-turbine; install it with: pip install 'tracemap[torch]', or hand "
            "in the MLIR that iree.turbine.aot.export(module, *arguments).save_mlir(FILE) writes elsewhere"
        )


def _imported(exported: Any, name: str, given: Any, folder: Path) -> Imported:  # noqa: ANN401 - torch's
    parameters = _parameters(exported)
    data = _bytecode(exported, parameters, name)
    archive = folder / f"{_SCOPE}.irpa"
    _save(parameters, archive)
    keeping = Keeping(name, _inputs(exported, given), ((_SCOPE, archive),) if parameters else ())
    return Imported(name, data, keeping, loaded_text)


def _parameters(exported: Any) -> dict[str, Any]:  # noqa: ANN401 - torch's
    """The tensors by their names that are the program's own and saved with it."""
    import torch

    return {name: value for name, value in exported.state_dict.items() if isinstance(value, torch.Tensor)}


def _bytecode(exported: Any, parameters: Mapping[str, Any], name: str) -> bytes:  # noqa: ANN401 - torch's
    from iree.turbine import aot

    written = io.BytesIO()
    with _external(parameters), as_importable(exported) as nodes:
        try:
            made = aot.export(exported, module_name=name, function_name=name)
        except (RuntimeError, NotImplementedError, ValueError, TypeError, KeyError) as error:
            raise ModelInvalid(f"iree-turbine does not take the program: {error}") from error
        set_locations(made.mlir_module, nodes)
        made.mlir_module.write_bytecode(written)
    return written.getvalue()


@contextmanager
def _external(parameters: Mapping[str, Any]) -> Iterator[None]:
    """Mark tensors as lying in a file, for as long as they are imported: they are the user's own.

    A tensor that has several names, as of layers that share it, is marked once.
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


def _save(parameters: Mapping[str, Any], archive: Path) -> None:
    from iree.turbine.aot import ParameterArchiveBuilder

    if parameters:
        builder = ParameterArchiveBuilder()
        for name, tensor in parameters.items():
            builder.add_tensor(name, tensor)
        builder.save(archive)


def _inputs(exported: Any, given: Any) -> tuple[tuple[str, np.ndarray[Any, Any]], ...]:  # noqa: ANN401 - torch's
    """Name and array of each input; none where the program knows of no examples."""
    import torch
    from torch.utils import _pytree

    if given is None:
        return ()
    tensors = [leaf for leaf in _pytree.tree_leaves(given) if isinstance(leaf, torch.Tensor)]
    names = [str(name) for name in exported.graph_signature.user_inputs if isinstance(name, str)]
    if len(tensors) != len(names):
        raise InputInvalid(f"the program takes {len(names)} tensors ({', '.join(names)}), {len(tensors)} are given")
    return tuple((name, _array(tensor)) for name, tensor in zip(names, tensors, strict=True))


def _array(tensor: Any) -> np.ndarray[Any, Any]:  # noqa: ANN401 - torch's
    """A tensor as numpy has it, which knows bfloat16 by ml_dtypes only."""
    import ml_dtypes
    import numpy as np
    import torch

    here = tensor.detach().cpu().contiguous()
    if here.dtype == torch.bfloat16:
        return np.asarray(here.view(torch.int16).numpy()).view(ml_dtypes.bfloat16)
    return np.asarray(here.numpy())
