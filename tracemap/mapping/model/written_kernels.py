"""Dispatches that a model writes itself: which of its ops stand in their kernels, and not on the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tracemap.ir.source import SourceOperation

_DISPATCHES: Final = ("flow.dispatch.region", "flow.dispatch.workgroups")
_END: Final = "flow.return"
"""Ends the kernel; the region behind it counts workgroups, on the host."""


def find_in_kernels(operations: Sequence[SourceOperation]) -> dict[int, int]:
    """By the indices of operations that stand in a dispatch's kernel the index of the dispatch."""
    found: dict[int, int] = {}
    ended: set[int] = set()
    for operation in operations:
        parent = operation.parent
        if parent in found:
            found[operation.index] = found[parent]
        elif parent >= 0 and operations[parent].name in _DISPATCHES and parent not in ended:
            found[operation.index] = parent
            if operation.name == _END:
                ended.add(parent)
    return found
