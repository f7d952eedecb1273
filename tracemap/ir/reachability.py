"""Everything that a start leads to, in a graph that a function gives."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

_Node = TypeVar("_Node", bound=Hashable)


def reachable(start: Iterable[_Node], neighbours: Callable[[_Node], Iterable[_Node]]) -> set[_Node]:
    """The start and all nodes that it leads to; iterative, since chains may be as long as a program."""
    reached: set[_Node] = set()
    worklist = list(start)
    while worklist:
        node = worklist.pop()
        if node not in reached:
            reached.add(node)
            worklist += neighbours(node)
    return reached
