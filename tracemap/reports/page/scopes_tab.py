"""The tree of scopes, each with the cost of its own ops and of all below it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from tracemap.graph.ops import OpId
from tracemap.reports.costed import CostedMap
from tracemap.reports.page.amounts import amounts
from tracemap.reports.page.model import ScopeRow

Path = tuple[str, ...]
"""A scope: its name and those around it, outermost first."""


@dataclass(slots=True)
class _Scope:
    """What stands directly in a scope, or in it and below: ops, and their cost by metric name."""

    ops: set[OpId] = field(default_factory=set)
    attributed: Counter[str] = field(default_factory=Counter)

    def add(self, other: _Scope) -> None:
        self.ops |= other.ops
        self.attributed.update(other.attributed)


def scope_rows(costed: CostedMap) -> tuple[ScopeRow, ...]:
    """The tree of scopes in program order; empty when no op has a scope.

    An op that is reached through several calls stands in each scope that they lead to. Ops without a scope that work in
    a site stand in a row of their own (the empty path), so that the rows add up.
    """
    own = _scopes(costed)
    if not any(own):
        return ()
    below: dict[Path, _Scope] = defaultdict(_Scope)
    for path, scope in own.items():
        for around in _with_those_around(path):
            below[around].add(scope)
    return tuple(
        ScopeRow(
            path=path,
            ops=len(below[path].ops),
            attributed=amounts(own[path].attributed, costed.metrics),
            inclusive=amounts(below[path].attributed, costed.metrics),
        )
        for path in _tree_order(own)
    )


def _scopes(costed: CostedMap) -> dict[Path, _Scope]:
    """Every scope and those around it, in the order of the model's ops."""
    own: dict[Path, _Scope] = {}
    for op in costed.graph.ops:
        reached = costed.reached_by_op.get(op.id, ())
        for each in reached:
            _enter(own, each.scope).add(_Scope({op.id}, Counter(each.attributed)))
        if op.scope and not reached:
            _enter(own, op.scope).ops.add(op.id)
    return own


def _enter(own: dict[Path, _Scope], path: Path) -> _Scope:
    """The scope of a path, which comes after those around it."""
    for around in _with_those_around(path):
        own.setdefault(around, _Scope())
    return own[path]


def _with_those_around(path: Path) -> list[Path]:
    """A scope after those around it; the row of ops without a scope is around none."""
    return [path[:depth] for depth in range(1, len(path) + 1)] or [path]


def _tree_order(paths: Iterable[Path]) -> list[Path]:
    """Parents before children, siblings as they first occur."""
    rank = {path: index for index, path in enumerate(paths)}
    return sorted(rank, key=lambda path: [rank[path[:depth]] for depth in range(1, len(path) + 1)])
