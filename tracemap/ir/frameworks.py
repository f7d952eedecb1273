"""Import of ONNX models, and locations of imported torch programs."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from tracemap.core.errors import ModelInvalid
from tracemap.ir.parsing import BoundLocation, Module, Operation, entry_arguments, ir, string_attribute, walk

# ---- onnx


def import_graph(model: Any, scope: str, data_folder: Path, archive: Path) -> tuple[bytes, list[str]]:  # noqa: ANN401 - an onnx.ModelProto, whose package need not be there
    """Import a model with all shapes; large initialisers become parameters.

    Args:
        model: an `onnx.ModelProto`.
        scope: parameter scope.
        data_folder: folder of its external data.
        archive: file for its parameters; not written if there are none.

    Returns:
        The module's bytecode, and the importer's warnings.

    Raises:
        ModelInvalid: the importer rejects the graph; the message is the importer's.
    """
    from iree.compiler.extras import onnx_importer
    from iree.compiler.ir import Context, MLIRError
    from iree.compiler.tools.import_onnx.importer_externalization_overrides import IREENodeImporter, ParamData

    about = ParamData(
        param_bit_threshold=None,
        num_elements_threshold=_LEAST_ELEMENTS,
        params_scope=scope,
        data_dir=str(data_folder),
        param_path=str(archive),
        input_index_threshold=None,
    )
    with warnings.catch_warnings(record=True) as recorded_warnings:
        warnings.simplefilter("always")
        try:
            info = onnx_importer.ModelInfo(model)
            module = info.create_module(context=Context()).operation
            importer = IREENodeImporter.define_function(info.main_graph, module, about)
            importer.import_all()
            module.verify()
            if importer.globals:
                importer.save_params()
        except (
            onnx_importer.OnnxImportError,
            MLIRError,
            ValueError,
            LookupError,
            TypeError,
            NotImplementedError,
        ) as error:
            cause = str(error).strip() or type(error).__name__
            raise ModelInvalid(f"IREE's ONNX importer rejects the model: {cause}") from error
    bytecode = io.BytesIO()
    module.write_bytecode(bytecode)
    return bytecode.getvalue(), sorted({str(warning.message) for warning in recorded_warnings})


_LEAST_ELEMENTS = 100
"""Least elements of a parameter. Smaller tensors stay in the module, where the compiler can fold them."""


# ---- torch
#
# Locations in a module that iree-turbine imported from a torch program.
#
# The importer keeps only files and lines of a node, and gives loads of parameters the location of an arbitrary node. So
# nodes are imported with unique placeholder locations (`placeholder_of`), which are replaced here by full locations.

_PLACEHOLDER: Final = "tracemap: a node of torch"
_NUMBERED: Final = re.compile(rf'"{_PLACEHOLDER}":(\d+):')
_LOAD: Final = "util.global.load"
_FROM_BUILTIN: Final = "torch_c.from_builtin_tensor"
_WITHOUT_NODE: Final = frozenset({"func.func", "func.return"})
"""Operations that belong to no node; the importer gives them the location of the first node."""
_PREFIX: Final = "__auto."
"""Prefix that iree-turbine adds to the names of parameters."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame of a Python call stack; `function` is empty if not known."""

    file: str
    line: int
    function: str


@dataclass(frozen=True, slots=True)
class Node:
    """A node's origin: the path of its modules plus its own name, and its frames, innermost first."""

    path: str
    frames: tuple[Frame, ...]


def placeholder_of(number: int) -> str:
    """Placeholder stack trace of a node, by its index from 0."""
    return f'File "{_PLACEHOLDER}", line {number + 1}, in node'


def set_locations(module: Module, nodes: Sequence[Node]) -> None:
    """Replace placeholder locations by those of the nodes; loads of parameters get the parameter's name, no line."""
    with module.context:

        @cache
        def of_node(number: int) -> BoundLocation:
            return _location(nodes[number])

        for operation in walk(module.operation):
            number = _NUMBERED.search(str(operation.location))
            if parameter := _parameter(operation):
                operation.location = _location(Node(parameter, ()))
            elif number and operation.name in _WITHOUT_NODE:
                operation.location = ir.Location.unknown()
            elif number:
                operation.location = of_node(int(number[1]) - 1)


def name_arguments(module: Module, function: str, names: Sequence[str]) -> None:
    """Set the locations of a function's arguments to their names in the program, if there is one for each."""
    for operation in walk(module.operation):
        if operation.name == "func.func" and string_attribute(operation, "sym_name") == function:
            arguments = entry_arguments(operation)
            with module.context:
                for argument, name in zip(arguments, names, strict=False) if len(arguments) == len(names) else ():
                    if hasattr(argument, "set_location"):  # IREE 3.11 lacks it
                        argument.set_location(ir.Location.name(name))


def _parameter(operation: Operation) -> str:
    """The path of the parameter that an operation loads or converts; "" for other operations."""
    if operation.name == _FROM_BUILTIN:
        owner = operation.operands[0].owner
        return _parameter(owner) if getattr(owner, "name", "") == _LOAD else ""
    if operation.name != _LOAD:
        return ""
    symbol: str = ir.FlatSymbolRefAttr(operation.attributes["global"]).value
    return symbol.removeprefix(_PREFIX).replace(".", "/")


def _location(node: Node) -> BoundLocation:
    """A location in the form of JAX: `"path"(callsite("f"("a.py":3:0) at …))`."""
    calls = [_frame(frame) for frame in node.frames]
    stack = calls[0] if len(calls) == 1 else ir.Location.callsite(calls[0], calls[1:]) if calls else None
    return ir.Location.name(node.path, childLoc=stack)


def _frame(frame: Frame) -> BoundLocation:
    position = ir.Location.file(frame.file, frame.line, 0)
    return ir.Location.name(frame.function, childLoc=position) if frame.function else position
