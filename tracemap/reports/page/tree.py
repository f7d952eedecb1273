"""Trees of costs for icicle plots: by scope, and by the call stack of ops.

Leaves are ops per call path, and unattributed costs. They add up to the measured work in every metric. Nodes that are
too narrow to draw are merged into one leaf of their parent, with the number of ops.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import add
from typing import Final

from tracemap.attribution.model import RESIDUAL_TEXTS, ResidualReason
from tracemap.graph.model import OpId
from tracemap.reports.cost_lookup import NOTHING, CostedMap, Reached
from tracemap.reports.escaping import as_shown, file_line, short_name
from tracemap.reports.page.model import Tree, TreeNode, amounts
from tracemap.reports.page.overview_tab import Family
from tracemap.reports.page.source_tabs import kept_frames
from tracemap.units import Unknown, plural

_NARROWEST: Final = 2000
"""Nodes with less than 1/2000 of the total in every metric are merged."""
_NO_OP: Final = "no op"

Step = tuple[str, str, str]
"""A step of a path from the root: kind, label, and anchor or text of a node."""


@dataclass(frozen=True, slots=True)
class _Grouping:
    """A grouping of ops: `steps` is the path from the root to an op, without it; ops with equal `key` share it."""

    steps: Callable[[Reached], list[Step]]
    key: Callable[[Reached], Hashable]


@dataclass(slots=True)
class _Branch:
    """A node during construction.

    Attributes:
        children: child nodes by step, in insertion order.
        own: own costs per metric; empty for inner nodes.
        total: costs with descendants.
        ops: number of ops.
    """

    children: dict[Step, _Branch] = field(default_factory=dict)
    own: tuple[int, ...] = ()
    total: tuple[int, ...] = ()
    ops: int = 0

    def child(self, step: Step) -> _Branch:
        if step not in self.children:
            self.children[step] = _Branch(ops=int(step[0] == "op"))
        return self.children[step]

    def add(self, values: tuple[int, ...]) -> None:
        self.own = _sums(self.own, values)

    def sum_up(self) -> None:
        """Compute totals and numbers of ops, bottom-up."""
        self.total = self.own
        for branch in self.children.values():
            branch.sum_up()
            self.total = _sums(self.total, branch.total)
            self.ops += branch.ops


def _sums(sums: tuple[int, ...], values: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(map(add, sums, values)) if sums else values


def trees_of(costed: CostedMap, families: Mapping[OpId, Family]) -> tuple[Tree, ...]:
    """The trees of a page: by scope if ops have scopes, and by source; empty without a run."""
    if not costed.metrics:
        return ()
    groupings = {
        "source": _Grouping(
            partial(_source_steps, costed), lambda reached: (reached.frames, reached.op.file, reached.op.function)
        )
    }
    if any(reached.scope for reached in costed.reached):
        groupings = {"scope": _Grouping(_scope_steps, lambda reached: reached.scope), **groupings}
    leaves = [
        (reached, _leaf(reached), amounts(reached.attributed, costed.metrics))
        for reached in costed.reached
        if any(reached.attributed.values())
    ]
    return tuple(_tree(costed, name, grouping, leaves, families) for name, grouping in groupings.items())


def _tree(
    costed: CostedMap,
    name: str,
    grouping: _Grouping,
    leaves: Sequence[tuple[Reached, Step, tuple[int, ...]]],
    families: Mapping[OpId, Family],
) -> Tree:
    root = _Branch()
    parents: dict[Hashable, _Branch] = {}
    for reached, leaf, values in leaves:
        key = grouping.key(reached)
        if key not in parents:
            parents[key] = reduce(_Branch.child, grouping.steps(reached), root)
        parents[key].child(leaf).add(values)
    for step, metrics in _unattributed(costed):
        root.child(("no-op", _NO_OP, "")).child(step).add(amounts(metrics, costed.metrics))
    root.sum_up()
    nothing = amounts(NOTHING, costed.metrics)
    drawing = _Drawing(families, root.total or nothing, nothing)
    drawing.nodes.append(TreeNode(-1, "all", "all", "", "", nothing))
    drawing.draw(root, 0)
    return Tree(name, tuple(drawing.nodes))


def _leaf(reached: Reached) -> Step:
    line = "" if isinstance(reached.op.line, Unknown) else f" :{reached.op.line}"
    return ("op", f"{reached.op.name}{line}", str(reached.op.id))


def _scope_steps(reached: Reached) -> list[Step]:
    return [("scope", name, "") for name in reached.scope] or [("scope", "(no scope)", "")]


def _source_steps(costed: CostedMap, reached: Reached) -> list[Step]:
    """The call stack of the op, outermost first; without a stack, its file and function."""
    frames = [
        (
            "frame",
            file_line(frame.file, frame.line) + ("" if isinstance(frame.function, Unknown) else f" {frame.function}"),
            f"F{costed.source_index[frame.file]}L{frame.line}",
        )
        for frame in reversed(kept_frames(costed, reached.frames))
    ]
    if frames:
        return frames
    file, function = reached.op.file, reached.op.function
    if isinstance(file, Unknown):
        return [("file", "(no file)", "")]
    index = costed.source_index.get(file)
    function_step = [] if isinstance(function, Unknown) else [("function", f"@{function}", "")]
    return [("file", short_name(file), "" if index is None else f"F{index}"), *function_step]


def _unattributed(costed: CostedMap) -> Iterator[tuple[Step, Mapping[str, int]]]:
    """Unattributed costs by reason, without outliers."""
    for row in costed.attribution.residual if costed.attribution else ():
        if row.reason is not ResidualReason.DISTURBANCE and any(row.metrics.values()):
            yield ("no-op", row.reason.value, RESIDUAL_TEXTS[row.reason]), row.metrics


@dataclass(slots=True)
class _Drawing:
    """Writes a tree as a list of nodes; `total`: costs of the whole tree per metric."""

    families: Mapping[OpId, Family]
    total: tuple[int, ...]
    nothing: tuple[int, ...]
    nodes: list[TreeNode] = field(default_factory=list)

    def draw(self, branch: _Branch, number: int) -> None:
        """Append the descendants of the branch, whose index is `number`; merge narrow ones into one leaf."""
        narrow = _Branch()
        for (kind, label, leads_to), child in branch.children.items():
            if not self._is_visible(child.total):
                narrow.add(child.total)
                narrow.ops += child.ops
                continue
            family = self.families[OpId(leads_to)].value if kind == "op" else ""
            own = child.own or self.nothing
            self.nodes.append(TreeNode(number, as_shown(label), kind, family, leads_to, own))
            self.draw(child, len(self.nodes) - 1)
        if any(narrow.own):
            label = plural(narrow.ops, "smaller op") if narrow.ops else "other"
            self.nodes.append(TreeNode(number, label, "rest", "", "", narrow.own))

    def _is_visible(self, values: tuple[int, ...]) -> bool:
        return any(value * _NARROWEST >= total for value, total in zip(values, self.total, strict=True) if value)
