"""What the pictures of a page are drawn of, as plain frozen data; amounts are sums over the run, as in `model`."""

from __future__ import annotations

from tracemap.codec import Record


class ElapsedPart(Record, frozen=True):
    """A part of the elapsed time of all measured calls."""

    name: str
    ns: int


class TreeNode(Record, frozen=True, array_like=True):
    """A node of a tree of costs: the number of its parent, -1 of the root, which comes before it.

    `kind`: `op`, `rest` (of ops too small to be drawn), `no-op`, or what is around ops; `family`: what kind of work an
    op is, empty of all else. `leads_to`: what on the page it is, or a text about it; `amounts`: of itself, without
    those below it.
    """

    parent: int
    label: str
    kind: str
    family: str
    leads_to: str
    amounts: tuple[int, ...]


class Tree(Record, frozen=True):
    """A tree of costs, all nodes in one list, each before those below it."""

    name: str
    nodes: tuple[TreeNode, ...]


class RoofPoint(Record, frozen=True, array_like=True):
    """An op or a kernel, by its id or name: its work in all calls, the time that took, and the one attainable."""

    kind: str
    id: str
    label: str
    operations: int
    bytes: int
    time_ns: int
    attainable_ns: int


class Roofline(Record, frozen=True):
    """The peaks of one core, and how far from them ops and kernels are; `metric` is the number of the one it is of.

    `unknown` counts ops that are left out because their work is not known.
    """

    metric: int
    operations_per_second: int
    bytes_per_second: int
    source: str
    points: tuple[RoofPoint, ...]
    unknown: int
