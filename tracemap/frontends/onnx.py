"""Import of ONNX models, from files or memory, with IREE's importer.

Node names become locations, and so scopes. Initialisers become parameters, which the bundle keeps. External data is
read only when the parameters are written.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
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
    start_of,
)
from tracemap.core.files import FileFormat, check_is_file, format_of_file
from tracemap.core.sanitize import for_terminal
from tracemap.core.toolchain import is_installed
from tracemap.core.units import plural
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
    try:
        imported = _imported(model, path.stem, path.parent, folder, ())
    except ModelInvalid as error:
        raise ModelInvalid(f"{path.name}: {error}") from error
    return replace(imported, explain=lambda message: imported.explain(message.replace(imported.file_name, path.name)))


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
    inferred = _with_shapes(upgraded)
    try:
        data, importer_warnings = import_graph(inferred, _SCOPE, data_folder, archive)
    except ModelInvalid as error:
        raise ModelInvalid(_importer_error(inferred, str(error))) from error
    parameters = ((_SCOPE, archive),) if archive.exists() else ()
    keeping = CallToKeep(upgraded.graph.name, inputs, parameters)
    importer_diagnostics = (
        Diagnostic("importer-warned", f"IREE's ONNX importer warns: {text}") for text in importer_warnings
    )
    diagnostics = (*upgrade_diagnostics, *importer_diagnostics)
    return ImportedModel(name, data, keeping, diagnostics=diagnostics, explain=partial(_compiler_error, inferred))


# ---- errors
#
# Errors of IREE's importer and compiler, in terms of the model: nodes, operators, and shapes of their inputs.


_FAILED_NODE: Final = re.compile(r'error: loc\("(?P<node>(?:[^"\\]|\\.)*)"\): (?P<why>[^\n]*)')
_NOT_LEGAL: Final = "failed to legalize operation"
_UNPRODUCED: Final = re.compile(r"Non topologically produced ONNX node input '(?P<value>[^\n]*?)'")
_MOST_TEXT: Final = 300


def _compiler_error(model: Any, message: str) -> str:  # noqa: ANN401 - an onnx.ModelProto
    """The error for the first node that iree-compile names; the message itself if it names none."""
    failed = list(_FAILED_NODE.finditer(message))
    nodes = {node.name: node for node in _nodes(model.graph)}
    names = list(dict.fromkeys(re.sub(r"\\(.)", r"\1", match["node"]) for match in failed))
    if not failed or names[0] not in nodes:
        return message
    node, why = nodes[names[0]], start_of(failed[0]["why"], _MOST_TEXT)
    if why.startswith(_NOT_LEGAL) and f'onnx.{node.op_type}"' in why:
        why = _missing_operator(node)
    more = f"; {plural(len(names) - 1, 'more node')} cannot be compiled either" if len(names) > 1 else ""
    file_name = message.partition(": cannot be compiled: ")[0]
    return for_terminal(f"{file_name}: cannot be compiled: {_node_text(model, node)}: {why}{more}")


def _missing_operator(node: Any) -> str:  # noqa: ANN401 - an onnx.NodeProto
    """Why IREE cannot convert a node: its operator is of another domain, unknown, or not supported in this form."""
    from onnx import defs

    if node.domain not in _OWN_DOMAINS:
        return f"IREE has no operator {node.op_type} of the domain {node.domain}; export the model without it"
    if not defs.has(node.op_type):
        return f"IREE has no operator {node.op_type}, and neither has ONNX; check its name, or set its domain"
    return f"IREE does not support the operator {node.op_type} with these types and attributes; export it differently"


def _node_text(model: Any, node: Any) -> str:  # noqa: ANN401 - an onnx.ModelProto and a NodeProto
    """A node's name and operator, with the shapes of its inputs as far as they are known."""
    graph = model.graph
    known = {tensor.name: "x".join(map(str, tensor.dims)) for tensor in graph.initializer}
    for value in (*graph.input, *graph.value_info):
        sizes = [str(size.dim_value or size.dim_param or "?") for size in value.type.tensor_type.shape.dim]
        known.setdefault(value.name, "x".join(sizes))
    inputs = ", ".join(f"{name}: {known[name]}" if known.get(name) else name for name in node.input if name)
    return f"node {node.name!r} ({start_of(f'{node.op_type} of {inputs}' if inputs else node.op_type, _MOST_TEXT)})"


def _importer_error(model: Any, message: str) -> str:  # noqa: ANN401 - an onnx.ModelProto
    """The importer's error in one line; for an input that nothing produces, its node and what to do."""
    found = _UNPRODUCED.search(message)
    node = None if found is None else next((node for node in _nodes(model.graph) if found["value"] in node.input), None)
    if found is None or node is None:
        return for_terminal(start_of(" ".join(message.split()), _MOST_TEXT))
    return for_terminal(
        f"{_node_text(model, node)}: no earlier node, input or initializer of the model has the name "
        f"{found['value']!r}; sort its nodes, or export it again"
    )


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
