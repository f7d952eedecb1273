"""Models of ONNX and torch: imported, and their nodes' locations."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from tracemap.errors import ModelInvalid
from tracemap.ir.parsing import BoundLocation, Module, Operation, ir, walk

# ---- onnx
#
# A graph of ONNX to a module, by the compiler's own importer; its locations are the names of nodes and values.


def import_graph(model: Any, scope: str, data_folder: Path, archive: Path) -> tuple[bytes, list[str]]:  # noqa: ANN401 - an onnx.ModelProto, whose package need not be there
    """The bytecode of a model with all shapes, and what the importer warns of; large initialisers are parameters.

    Args:
        model: an `onnx.ModelProto`.
        scope: of its parameters.
        data_folder: where its external data lies.
        archive: the file for its parameters, which is not written where there are none.

    Raises:
        ModelInvalid: the importer does not take the graph; the message is its own.
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
    with warnings.catch_warnings(record=True) as warned:
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
            said = str(error).strip() or type(error).__name__
            raise ModelInvalid(f"IREE's importer of ONNX does not take the model: {said}") from error
    written = io.BytesIO()
    module.write_bytecode(written)
    return written.getvalue(), sorted({str(each.message) for each in warned})


_LEAST_ELEMENTS = 100
"""Of a parameter: what is smaller stays in the module, where the compiler can reckon with it."""


# ---- torch
#
# Locations in a module that iree-turbine made of a program of torch: what each node of the program knows of itself.
#
# The importer takes of a node its files and lines alone, and gives the loads of parameters the place of whichever node
# comes first. So nodes are imported with places of their own (`place_of`), which give way here to what they know.


_PLACE: Final = "tracemap: a node of torch"
_NUMBERED: Final = re.compile(rf'"{_PLACE}":(\d+):')
_LOAD: Final = "util.global.load"
_HANDS_ON: Final = "torch_c.from_builtin_tensor"
_WHOLE: Final = frozenset({"func.func", "func.return"})
"""What is of no node: the importer gives them the place of the first."""
_PREFIX: Final = "__auto."
"""What iree-turbine puts before the name of a parameter."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A call in Python; `function` is empty where it is not told."""

    file: str
    line: int
    function: str


@dataclass(frozen=True, slots=True)
class Node:
    """What a node knows: the path of its modules with its own name behind it, and its frames, innermost first."""

    path: str
    frames: tuple[Frame, ...]


def place_of(number: int) -> str:
    """What stands for a node, counted from 0, where torch has its stack of calls."""
    return f'File "{_PLACE}", line {number + 1}, in node'


def set_locations(module: Module, nodes: Sequence[Node]) -> None:
    """Put what nodes know in the place of their numbers; loads of parameters are called as these, without a line."""
    with module.context:

        @cache
        def of_node(number: int) -> BoundLocation:
            return _location(nodes[number])

        for operation in walk(module.operation):
            number = _NUMBERED.search(str(operation.location))
            if parameter := _parameter(operation):
                operation.location = _location(Node(parameter, ()))
            elif number and operation.name in _WHOLE:
                operation.location = ir.Location.unknown()
            elif number:
                operation.location = of_node(int(number[1]) - 1)


def _parameter(operation: Operation) -> str:
    """The path of the parameter that an operation loads or hands on, "" for any other operation."""
    if operation.name == _HANDS_ON:
        owner = operation.operands[0].owner
        return _parameter(owner) if getattr(owner, "name", "") == _LOAD else ""
    if operation.name != _LOAD:
        return ""
    symbol: str = ir.FlatSymbolRefAttr(operation.attributes["global"]).value
    return symbol.removeprefix(_PREFIX).replace(".", "/")


def _location(node: Node) -> BoundLocation:
    """`"path"(callsite("f"("a.py":3:0) at …))`, as JAX writes it."""
    calls = [_frame(frame) for frame in node.frames]
    stack = calls[0] if len(calls) == 1 else ir.Location.callsite(calls[0], calls[1:]) if calls else None
    return ir.Location.name(node.path, childLoc=stack)


def _frame(frame: Frame) -> BoundLocation:
    place = ir.Location.file(frame.file, frame.line, 0)
    return ir.Location.name(frame.function, childLoc=place) if frame.function else place
