"""Programs of torch: an `nn.Module` with its arguments, or what `torch.export.export` made, by way of iree-turbine.

Locations are the Python frames that torch records; parameters and buffers that are saved with a module are external,
and the bundle keeps them. Scopes are told by the names of the parameters that an op uses.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracemap.errors import InputInvalid, ModelInvalid, ToolMissing
from tracemap.frontends.imported import Imported, as_identifier
from tracemap.frontends.python_texts import loaded_text
from tracemap.graph.kept import Keeping
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
    if not is_installed("iree.turbine"):
        raise ToolMissing(
            "programs of torch are imported by iree-turbine; install it with: pip install 'tracemap[torch]', or hand "
            "in the MLIR that iree.turbine.aot.export(module, *arguments).save_mlir(FILE) writes elsewhere"
        )
    import torch

    is_module = isinstance(program, torch.nn.Module)
    exported = torch.export.export(program, tuple(arguments), dict(keywords)) if is_module else program
    name = as_identifier(type(program).__name__ if is_module else "exported")
    parameters = _parameters(exported)
    data = _bytecode(exported, parameters, name)
    archive = folder / f"{_SCOPE}.irpa"
    _save(parameters, archive)
    given = (tuple(arguments), dict(keywords)) if arguments or keywords else exported.example_inputs
    keeping = Keeping(name, _inputs(exported, given), ((_SCOPE, archive),) if parameters else ())
    return Imported(name, data, keeping, loaded_text)


def _parameters(exported: Any) -> dict[str, Any]:  # noqa: ANN401 - torch's
    """The tensors by their names that are the program's own and saved with it."""
    import torch

    return {name: value for name, value in exported.state_dict.items() if isinstance(value, torch.Tensor)}


def _bytecode(exported: Any, parameters: Mapping[str, Any], name: str) -> bytes:  # noqa: ANN401 - torch's
    from iree.turbine import aot

    written = io.BytesIO()
    with _external(parameters):
        try:
            made = aot.export(exported, module_name=name, function_name=name)
        except (RuntimeError, NotImplementedError, ValueError, TypeError, KeyError) as error:
            raise ModelInvalid(f"iree-turbine does not take the program: {error}") from error
        made.mlir_module.write_bytecode(written)
    return written.getvalue()


@contextmanager
def _external(parameters: Mapping[str, Any]) -> Iterator[None]:
    """Mark tensors as lying in a file, for as long as they are imported: they are the user's own."""
    from iree.turbine.aot import ExternalTensorTrait

    before = {name: getattr(tensor, _TRAIT, None) for name, tensor in parameters.items()}
    try:
        for name, tensor in parameters.items():
            ExternalTensorTrait(external_scope=_SCOPE, external_name=name).set(tensor)
        yield
    finally:
        for name, tensor in parameters.items():
            if before[name] is None:
                delattr(tensor, _TRAIT)
            else:
                setattr(tensor, _TRAIT, before[name])


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
