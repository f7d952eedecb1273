"""Trees of costs, of which pages draw icicles: by scope, and by the lines of the source that lead to an op.

The leaves are ops, each as it is reached, and what is of no op; they add up to the work that was measured, for every
metric. What is too narrow to be seen stands together in one leaf of its parent, which says how many ops it is of.
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
"""A part of the whole that has less than the one over this, of every metric, is not drawn by itself."""
_NO_OP: Final = "no op"

Step = tuple[str, str, str]
"""Of a way from the root: the kind of a node, its label, and what it leads to."""


@dataclass(frozen=True, slots=True)
class _Ways:
    """How ops are reached, from the root on, without the op; those for which `alike` gives the same, in one way."""

    steps: Callable[[Reached], list[Step]]
    alike: Callable[[Reached], Hashable]


@dataclass(slots=True)
class _Branch:
    """A node while the tree is made: those below it by their steps, in the order in which they came.

    `own`: what is of it alone, by the number of the metric; empty of what is around others. `ops`: how many it is of.
    """

    below: dict[Step, _Branch] = field(default_factory=dict)
    own: tuple[int, ...] = ()
    whole: tuple[int, ...] = ()
    ops: int = 0

    def child(self, step: Step) -> _Branch:
        if step not in self.below:
            self.below[step] = _Branch(ops=int(step[0] == "op"))
        return self.below[step]

    def add(self, values: tuple[int, ...]) -> None:
        self.own = _added(self.own, values)

    def sum_up(self) -> None:
        """Add up what is below, from the leaves on."""
        self.whole = self.own
        for branch in self.below.values():
            branch.sum_up()
            self.whole = _added(self.whole, branch.whole)
            self.ops += branch.ops


def _added(sums: tuple[int, ...], values: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(map(add, sums, values)) if sums else values


def trees_of(costed: CostedMap, families: Mapping[OpId, Family]) -> tuple[Tree, ...]:
    """The trees of a page with a run: by scope where ops have scopes, and by source; none without a run."""
    if not costed.metrics:
        return ()
    ways = {"source": _Ways(partial(_source_way, costed), lambda each: (each.frames, each.op.file, each.op.function))}
    if any(each.scope for each in costed.reached):
        ways = {"scope": _Ways(_scope_way, lambda each: each.scope), **ways}
    leaves = [
        (each, _leaf(each), amounts(each.attributed, costed.metrics))
        for each in costed.reached
        if any(each.attributed.values())
    ]
    return tuple(_tree(costed, name, way, leaves, families) for name, way in ways.items())


def _tree(
    costed: CostedMap,
    name: str,
    ways: _Ways,
    leaves: Sequence[tuple[Reached, Step, tuple[int, ...]]],
    families: Mapping[OpId, Family],
) -> Tree:
    root = _Branch()
    ends: dict[Hashable, _Branch] = {}
    for each, leaf, values in leaves:
        way = ways.alike(each)
        if way not in ends:
            ends[way] = reduce(_Branch.child, ways.steps(each), root)
        ends[way].child(leaf).add(values)
    for step, metrics in _of_no_op(costed):
        root.child(("no-op", _NO_OP, "")).child(step).add(amounts(metrics, costed.metrics))
    root.sum_up()
    nothing = amounts(NOTHING, costed.metrics)
    drawing = _Drawing(families, root.whole or nothing, nothing)
    drawing.nodes.append(TreeNode(-1, "all", "all", "", "", nothing))
    drawing.draw(root, 0)
    return Tree(name, tuple(drawing.nodes))


def _leaf(each: Reached) -> Step:
    line = "" if isinstance(each.op.line, Unknown) else f" :{each.op.line}"
    return ("op", f"{each.op.name}{line}", str(each.op.id))


def _scope_way(each: Reached) -> list[Step]:
    return [("scope", name, "") for name in each.scope] or [("scope", "(no scope)", "")]


def _source_way(costed: CostedMap, each: Reached) -> list[Step]:
    """The stack of the op, outermost first; without one its file and function."""
    frames = [
        (
            "frame",
            file_line(frame.file, frame.line) + ("" if isinstance(frame.function, Unknown) else f" {frame.function}"),
            f"F{costed.source_index[frame.file]}L{frame.line}",
        )
        for frame in reversed(kept_frames(costed, each.frames))
    ]
    if frames:
        return frames
    file = each.op.file
    if isinstance(file, Unknown):
        return [("file", "(no file)", "")]
    index = costed.source_index.get(file)
    within = [] if isinstance(each.op.function, Unknown) else [("function", f"@{each.op.function}", "")]
    return [("file", short_name(file), "" if index is None else f"F{index}"), *within]


def _of_no_op(costed: CostedMap) -> Iterator[tuple[Step, Mapping[str, int]]]:
    """The residual without what is no work; of times without the part of submissions that kernels have."""
    for row in costed.attribution.residual if costed.attribution else ():
        if row.reason is not ResidualReason.DISTURBANCE and any(row.metrics.values()):
            yield ("no-op", row.reason.value, RESIDUAL_TEXTS[row.reason]), row.metrics


@dataclass(slots=True)
class _Drawing:
    """Writes a tree as a list; `whole`: what all of it is of, by the number of the metric."""

    families: Mapping[OpId, Family]
    whole: tuple[int, ...]
    nothing: tuple[int, ...]
    nodes: list[TreeNode] = field(default_factory=list)

    def draw(self, branch: _Branch, number: int) -> None:
        """Write what is below the branch of this number behind it; what is too narrow becomes one leaf."""
        narrow = _Branch()
        for (kind, label, leads_to), each in branch.below.items():
            if not self._is_seen(each.whole):
                narrow.add(each.whole)
                narrow.ops += each.ops
                continue
            family = self.families[OpId(leads_to)].value if kind == "op" else ""
            own = each.own or self.nothing
            self.nodes.append(TreeNode(number, as_shown(label), kind, family, leads_to, own))
            self.draw(each, len(self.nodes) - 1)
        if any(narrow.own):
            label = plural(narrow.ops, "smaller op") if narrow.ops else "less"
            self.nodes.append(TreeNode(number, label, "rest", "", "", narrow.own))

    def _is_seen(self, values: tuple[int, ...]) -> bool:
        return any(value * _NARROWEST >= whole for value, whole in zip(values, self.whole, strict=True) if value)
