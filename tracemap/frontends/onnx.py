"""Models of ONNX, as files or in memory, by way of IREE's importer.

The names of nodes become locations, and so scopes; initialisers become parameters, which the bundle keeps. Data that
lies in files of its own is read only when these are written.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracemap.diagnostics import Diagnostic
from tracemap.errors import InputInvalid, ModelInvalid, ModelUnreadable, ToolMissing, check_limits
from tracemap.frontends.imported import Imported, as_identifier
from tracemap.graph.documents import Keeping
from tracemap.inputs import check_is_file
from tracemap.ir.frameworks import import_graph
from tracemap.toolchain import is_installed

if TYPE_CHECKING:
    import numpy as np

SUFFIX: Final = ".onnx"
_SCOPE: Final = "model"
_OPSET: Final = 17
"""The oldest version of ONNX's own operators that IREE's importer is meant for."""
_OWN_DOMAINS: Final = ("", "ai.onnx")
_SMALL: Final = 1 << 16
"""Elements of a tensor with data of its own file that is read at once: such decide shapes."""


def import_file(path: Path, folder: Path) -> Imported:
    """The model of a file; its parameters are written into `folder`, which must stay until they are kept.

    Raises:
        ModelInvalid: it is no model of ONNX, or the importer does not take it.
        ModelUnreadable: it cannot be read.
        ToolMissing: the package onnx is not installed.
    """
    _check_installed()
    import onnx
    from google.protobuf.message import DecodeError

    check_is_file(path, ModelUnreadable)
    try:
        model = onnx.load(path, load_external_data=False)
    except OSError as error:
        check_limits(error)
        raise ModelUnreadable(f"{path}: cannot be read: {error.strerror}") from error
    except (DecodeError, ValueError) as error:
        raise ModelInvalid(f"{path.name}: is no model of ONNX: {error}") from error
    return _imported(model, path.stem, path.parent, folder, ())


def import_program(
    model: Any,  # noqa: ANN401 - an onnx.ModelProto
    arguments: Sequence[object],
    keywords: Mapping[str, object],
    folder: Path,
) -> Imported:
    """The model of an `onnx.ModelProto`; data in files of its own is looked for in the working folder.

    Args:
        model: it.
        arguments: arrays for its inputs, in their order; none: none are kept.
        keywords: the same, by the names of the inputs.
        folder: where its parameters are written; it must stay until they are kept.

    Raises:
        InputInvalid: there are arrays for some of its inputs only, or for others.
        ModelInvalid: the importer does not take it.
        ToolMissing: the package onnx is not installed.
    """
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return _imported(copy, as_identifier(copy.graph.name), Path(), folder, _inputs(copy, arguments, keywords))


def _check_installed() -> None:
    if not is_installed("onnx"):
        raise ToolMissing("models of ONNX are read by the package onnx; install it with: pip install 'tracemap[onnx]'")


def _imported(
    model: Any,  # noqa: ANN401 - an onnx.ModelProto, which is changed
    name: str,
    data_folder: Path,
    folder: Path,
    inputs: tuple[tuple[str, np.ndarray[Any, Any]], ...],
) -> Imported:
    _load_small(model, data_folder)
    upgraded, said = _upgraded(model)
    _name_nodes(upgraded.graph)
    archive = folder / f"{_SCOPE}.irpa"
    data, warned = import_graph(_with_shapes(upgraded), _SCOPE, data_folder, archive)
    parameters = ((_SCOPE, archive),) if archive.exists() else ()
    keeping = Keeping(upgraded.graph.name, inputs, parameters)
    of_importer = (Diagnostic("importer-warned", f"IREE's importer of ONNX says: {text}") for text in warned)
    return Imported(name, data, keeping, diagnostics=(*said, *of_importer))


def _load_small(model: Any, data_folder: Path) -> None:  # noqa: ANN401 - an onnx.ModelProto
    """Read small tensors whose data lies in files: shapes are inferred of them, and small ones stay in the module."""
    from onnx.checker import ValidationError
    from onnx.external_data_helper import load_external_data_for_tensor, uses_external_data

    for tensor in model.graph.initializer:
        if uses_external_data(tensor) and math.prod(tensor.dims) <= _SMALL:
            try:
                load_external_data_for_tensor(tensor, str(data_folder))
            except (OSError, ValueError, ValidationError) as error:
                check_limits(error)
                raise ModelInvalid(f"the data of {tensor.name!r} cannot be read: {error}") from error
            tensor.ClearField("data_location")
            tensor.ClearField("external_data")


def _upgraded(model: Any) -> tuple[Any, tuple[Diagnostic, ...]]:  # noqa: ANN401 - onnx.ModelProtos
    """The model with operators of a version that the importer takes, and what was done about it."""
    from onnx import version_converter

    version = next((each.version for each in model.opset_import if each.domain in _OWN_DOMAINS), _OPSET)
    if version >= _OPSET:
        return model, ()
    try:
        made = version_converter.convert_version(model, _OPSET)
    except (RuntimeError, ValueError, version_converter.ConvertError) as error:
        text = f"the model's operators are of opset {version}, and cannot be made those of {_OPSET}: {error}"
        return model, (Diagnostic("opset-kept", text),)
    text = f"the model's operators are of opset {version}; IREE's importer needs {_OPSET} or later, and it was upgraded"
    return made, (Diagnostic("opset-upgraded", text),)


def _name_nodes(graph: Any) -> None:  # noqa: ANN401 - an onnx.GraphProto
    """Call nodes without a name as what they make: the importer's locations are names of nodes."""
    for number, node in enumerate(_nodes(graph)):
        if not node.name:
            node.name = next((output for output in node.output if output), f"{node.op_type}_{number}")
    for number, tensor in enumerate(graph.initializer):
        if not tensor.name:
            tensor.name = f"initializer_{number}"


def _nodes(graph: Any) -> Iterator[Any]:  # noqa: ANN401 - an onnx.GraphProto
    """The nodes of a graph and of those inside of them."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            yield from _nodes(attribute.g)
            for inner in attribute.graphs:
                yield from _nodes(inner)


def _with_shapes(model: Any) -> Any:  # noqa: ANN401 - onnx.ModelProtos
    """The model with the shapes of all values, which the importer asks for."""
    from onnx import shape_inference

    try:
        return shape_inference.infer_shapes(model, data_prop=True)
    except (RuntimeError, ValueError, shape_inference.InferenceError) as error:
        raise ModelInvalid(f"the shapes of the model's values cannot be told: {error}") from error


def _inputs(
    model: Any,  # noqa: ANN401 - an onnx.ModelProto
    arguments: Sequence[object],
    keywords: Mapping[str, object],
) -> tuple[tuple[str, np.ndarray[Any, Any]], ...]:
    """Name and array of each input; none where none are given."""
    import numpy as np

    if not arguments and not keywords:
        return ()
    made = {tensor.name for tensor in model.graph.initializer}
    names = [each.name for each in model.graph.input if each.name not in made]
    given = {**dict(zip(names, arguments, strict=False)), **keywords}
    if len(arguments) > len(names) or given.keys() != set(names):
        raise InputInvalid(f"the model takes the inputs {', '.join(names) or 'none'}; give an array for each")
    return tuple((name, np.asarray(given[name])) for name in names)
