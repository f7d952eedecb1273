"""Import of ONNX models, from files or memory, with IREE's importer.

Node names become locations, and so scopes. Initialisers become parameters, which the bundle keeps. External data is
read only when the parameters are written.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from tracemap.core.diagnostics import Diagnostic
from tracemap.core.errors import (
    InputInvalid,
    ModelInvalid,
    ModelUnreadable,
    ToolMissing,
    check_limits,
    raising_unreadable,
)
from tracemap.core.files import FileFormat, check_is_file, format_of_file
from tracemap.core.toolchain import is_installed
from tracemap.frontends.imported import ImportedModel, as_identifier
from tracemap.ir.frameworks import import_graph
from tracemap.map.bundle_documents import CallToKeep

if TYPE_CHECKING:
    import numpy as np

SUFFIX: Final = ".onnx"
_SCOPE: Final = "model"
_OPSET: Final = 17
"""The oldest version of ONNX's own operators that IREE's importer supports."""
_OWN_DOMAINS: Final = ("", "ai.onnx")
_SMALL: Final = 1 << 16
"""Maximum elements of an external tensor that is read at once, since it may decide shapes."""


def import_file(path: Path, folder: Path) -> ImportedModel:
    """Import a model file. Parameters are written to `folder`, which must exist until the bundle is written.

    Raises:
        ModelInvalid: the file is no ONNX model, or the importer rejects it.
        ModelUnreadable: the file cannot be read.
        ToolMissing: the package onnx is not installed.
    """
    check_is_file(path, ModelUnreadable)
    if fault := _structure_fault(path):
        raise ModelInvalid(f"{path.name}: {fault}")
    if not is_installed("onnx"):
        raise ToolMissing("ONNX models require the package onnx; install it with: pip install 'tracemap[onnx]'")
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load(path, load_external_data=False)
    except OSError as error:
        check_limits(error)
        raise ModelUnreadable(f"{path}: cannot be read: {error.strerror}") from error
    except (DecodeError, ValueError) as error:
        raise ModelInvalid(f"{path.name}: is no ONNX model: {error}") from error
    return _imported(model, path.stem, path.parent, folder, ())


_GRAPH: Final = 7
"""The field of the graph in a `ModelProto` (onnx/onnx.proto)."""
_VARINT_BYTES: Final = 10
_FIXED_BYTES: Final = {1: 8, 5: 4}
_LENGTH: Final = 2
"""Wire types of protobuf: of fixed sizes, and with a length before the content."""


def _structure_fault(path: Path) -> str:
    """Why a file is no whole ONNX model, by its outermost fields, and what to do; "" if it may be one."""
    kind = format_of_file(path)
    if kind not in (None, FileFormat.BINARY, FileFormat.TEXT):
        advice = "fetch the model with `git lfs pull`" if kind is FileFormat.POINTER else "export or download it again"
        return f"is {kind}, not an ONNX model; {advice}"
    size, fields = path.stat().st_size, set()
    with raising_unreadable(path, ModelUnreadable), path.open("rb") as file:
        while (begin := file.tell()) < size:
            key, length = _varint(file), 0
            number, wire = divmod(key, 8)
            if wire == _LENGTH:
                length = _varint(file)
            elif wire in _FIXED_BYTES:
                length = _FIXED_BYTES[wire]
            elif wire or not number or _varint(file) < 0:
                return f"is no ONNX model, or a damaged one (at byte {begin:,}); export or download it again"
            if length < 0 or file.tell() + length > size:
                return f"is a truncated ONNX model, or none: it ends at byte {size:,}; export or download it again"
            file.seek(length, os.SEEK_CUR)
            fields.add(number)
    return "" if _GRAPH in fields else "is no ONNX model, since it has no graph; export it again"


def _varint(file: BinaryIO) -> int:
    """Read a number of protobuf; -1 if it does not end."""
    value = 0
    for index in range(_VARINT_BYTES):
        byte = file.read(1)
        if not byte:
            return -1
        value |= (byte[0] & 127) << 7 * index
        if byte[0] < 128:
            return value
    return -1


def import_program(
    model: Any,  # noqa: ANN401 - an onnx.ModelProto
    arguments: Sequence[object],
    keywords: Mapping[str, object],
    folder: Path,
) -> ImportedModel:
    """Import an `onnx.ModelProto`; external data is searched in the working folder.

    Args:
        model: the model.
        arguments: arrays for its inputs, in order; empty: no inputs are kept.
        keywords: arrays by input name.
        folder: folder for parameters; it must exist until the bundle is written.

    Raises:
        InputInvalid: the arrays do not match the inputs.
        ModelInvalid: the importer rejects the model.
        ToolMissing: the package onnx is not installed.
    """
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return _imported(copy, as_identifier(copy.graph.name), Path(), folder, _inputs(copy, arguments, keywords))


def _imported(
    model: Any,  # noqa: ANN401 - an onnx.ModelProto, which is changed
    name: str,
    data_folder: Path,
    folder: Path,
    inputs: tuple[tuple[str, np.ndarray[Any, Any]], ...],
) -> ImportedModel:
    _load_small(model, data_folder)
    upgraded, upgrade_diagnostics = _upgrade_opset(model)
    _name_nodes(upgraded.graph)
    archive = folder / f"{_SCOPE}.irpa"
    data, importer_warnings = import_graph(_with_shapes(upgraded), _SCOPE, data_folder, archive)
    parameters = ((_SCOPE, archive),) if archive.exists() else ()
    keeping = CallToKeep(upgraded.graph.name, inputs, parameters)
    importer_diagnostics = (
        Diagnostic("importer-warned", f"IREE's ONNX importer warns: {text}") for text in importer_warnings
    )
    return ImportedModel(name, data, keeping, diagnostics=(*upgrade_diagnostics, *importer_diagnostics))


def _load_small(model: Any, data_folder: Path) -> None:  # noqa: ANN401 - an onnx.ModelProto
    """Read small external tensors: shape inference needs their values, and they stay in the module."""
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


def _upgrade_opset(model: Any) -> tuple[Any, tuple[Diagnostic, ...]]:  # noqa: ANN401 - onnx.ModelProtos
    """Upgrade the model's operators to a version that the importer supports; also returns diagnostics."""
    from onnx import version_converter

    version = next((opset.version for opset in model.opset_import if opset.domain in _OWN_DOMAINS), _OPSET)
    if version >= _OPSET:
        return model, ()
    try:
        upgraded = version_converter.convert_version(model, _OPSET)
    except (RuntimeError, ValueError, version_converter.ConvertError) as error:
        text = f"the model uses opset {version}, which cannot be upgraded to {_OPSET}: {error}"
        return model, (Diagnostic("opset-kept", text),)
    text = f"upgraded the model from opset {version} to {_OPSET}, the oldest that IREE's importer supports"
    return upgraded, (Diagnostic("opset-upgraded", text),)


def _name_nodes(graph: Any) -> None:  # noqa: ANN401 - an onnx.GraphProto
    """Name unnamed nodes after their outputs, since the importer's locations are names of nodes."""
    for number, node in enumerate(_nodes(graph)):
        if not node.name:
            node.name = next((output for output in node.output if output), f"{node.op_type}_{number}")
    for number, tensor in enumerate(graph.initializer):
        if not tensor.name:
            tensor.name = f"initializer_{number}"


def _nodes(graph: Any) -> Iterator[Any]:  # noqa: ANN401 - an onnx.GraphProto
    """The nodes of a graph and of its nested graphs."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            yield from _nodes(attribute.g)
            for inner in attribute.graphs:
                yield from _nodes(inner)


def _with_shapes(model: Any) -> Any:  # noqa: ANN401 - onnx.ModelProtos
    """Infer the shapes of all values, which the importer requires."""
    from onnx import shape_inference

    try:
        return shape_inference.infer_shapes(model, data_prop=True)
    except (RuntimeError, ValueError, shape_inference.InferenceError) as error:
        raise ModelInvalid(f"the shapes of the model's values cannot be inferred: {error}") from error


def _inputs(
    model: Any,  # noqa: ANN401 - an onnx.ModelProto
    arguments: Sequence[object],
    keywords: Mapping[str, object],
) -> tuple[tuple[str, np.ndarray[Any, Any]], ...]:
    """Names and arrays of the inputs; empty without arguments."""
    import numpy as np

    if not arguments and not keywords:
        return ()
    initializers = {tensor.name for tensor in model.graph.initializer}
    names = [value.name for value in model.graph.input if value.name not in initializers]
    arrays = {**dict(zip(names, arguments, strict=False)), **keywords}
    if len(arguments) > len(names) or arrays.keys() != set(names):
        raise InputInvalid(f"the model has the inputs {', '.join(names) or 'none'}; pass an array for every input")
    return tuple((name, np.asarray(arrays[name])) for name in names)
