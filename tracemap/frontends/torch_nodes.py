"""What the nodes of an exported program of torch know: the modules that they are in, and their Python frames."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from tracemap.ir.frameworks import Frame, Node, place_of

_STACK_TRACE: Final = "stack_trace"
_VALUE: Final = "val"
_MODULES: Final = "nn_module_stack"
_KINDS: Final = frozenset({"call_function", "get_attr"})
_FRAME: Final = re.compile(r'File "([^"\n]+)", line (\d+)(?:, in (\S+))?')
_BRANCH_ROOT: Final = "_export_root"
"""What torch calls the user's own module in the branches of a condition."""


@contextmanager
def as_importable(exported: Any) -> Iterator[tuple[Node, ...]]:  # noqa: ANN401 - torch's ExportedProgram
    """Have the importer tell the nodes of a program apart; yields what they know, by the numbers of their places.

    What makes several tensors has a tuple of them in a program that was read from a file; the importer takes lists.
    The program is the user's: its nodes are as before when this ends.
    """
    nodes = [node for graph in _graphs(exported) for node in graph.nodes if node.op in _KINDS]
    before = [{key: node.meta[key] for key in (_STACK_TRACE, _VALUE) if key in node.meta} for node in nodes]
    try:
        told = tuple(map(_told, nodes))
        for number, node in enumerate(nodes):
            node.meta[_STACK_TRACE] = place_of(number)
            if isinstance(node.meta.get(_VALUE), tuple):
                node.meta[_VALUE] = list(node.meta[_VALUE])
        yield told
    finally:
        for node, kept in zip(nodes, before, strict=True):
            node.meta.pop(_STACK_TRACE, None)
            node.meta.update(kept)


def _graphs(exported: Any) -> Iterator[Any]:  # noqa: ANN401 - torch's
    """The graph of a program and those of its branches and loops."""
    import torch

    for module in exported.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            yield module.graph


def _told(node: Any) -> Node:  # noqa: ANN401 - torch's
    """A node that torch knows no modules of stands in none."""
    modules = list((node.meta.get(_MODULES) or {}).values())
    path = str(modules[-1][0]).split(".") if modules else []
    names = [name for name in path if name not in ("", _BRANCH_ROOT)]
    calls = _FRAME.findall(node.meta.get(_STACK_TRACE) or "")
    frames = tuple(Frame(file, int(line), function) for file, line, function in reversed(calls))
    return Node("/".join([*names, str(node.name)]), frames)
