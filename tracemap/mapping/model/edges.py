"""Data flow of a model as edges between its ops, for reports that draw it."""

from __future__ import annotations

from tracemap.graph.ops import OpId
from tracemap.ir.parsing import MlirParser
from tracemap.ir.reading import describe, parse_model
from tracemap.mapping.model.dataflow import Dataflow, Node
from tracemap.mapping.model.facts import ModelFacts

Edge = tuple[OpId, OpId]
"""An op, and an op that uses one of its results."""


def data_flow(model: bytes) -> tuple[Edge, ...]:
    """The edges of a model (text or bytecode), each once, in the order of the model.

    What is handed to a function flows on to the ops that use its argument.

    Raises:
        ModelInvalid: it does not parse.
    """
    parser = MlirParser()
    facts = ModelFacts(describe(parser, parse_model(parser, model)))
    pairs = ((op.index, user) for op in facts.ops for user in _ops_using(facts.dataflow, op.index))
    return tuple((OpId.of(maker), OpId.of(user)) for maker, user in pairs if maker != user)


def _ops_using(flow: Dataflow, index: int) -> list[int]:
    """The ops that use an op's results, be it as an argument of a function."""
    seen: set[Node] = set()
    found: set[int] = set()
    waiting = list(flow.using(index))
    while waiting:
        node = waiting.pop()
        if isinstance(node, int):
            found.add(node)
        elif node not in seen:
            seen.add(node)
            waiting += flow.using(node)
    return sorted(found)
