"""Origins of the nodes of an exported torch program: their modules and Python frames."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from tracemap.ir.frameworks import Frame, Node, placeholder_of

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
