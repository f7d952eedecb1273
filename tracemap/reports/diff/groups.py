"""Sites that have other ops than before, with those that they share ops with: what was fused, split or absorbed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tracemap.comparison.sides import Compared
from tracemap.graph.program import Site
from tracemap.reports.diff.model import DiffBox, DiffGroup
from tracemap.reports.diff.rows import Rows

_Node = tuple[int, str]
"""A site: 0 before, 1 after; and its id."""


def groups_of(rows: Rows) -> tuple[DiffGroup, ...]:
    """The groups, those first whose cost changed most of the first metric; each knows those of its shape.

    An op that works in several sites of a side, such as a constant, holds no sites together.
    """
    changed = {rows.row_after[str(each.after)] for each in rows.made.regrouped}
    found = []
    for before, after in _together(rows):
        ops = {op for box in (*before, *after) for op in box.ops}
        if not changed.isdisjoint(ops):
            found.append((before, after, rows.amounts(sorted(ops))))
    found.sort(key=lambda each: -abs(each[2][0][1] - each[2][0][0]) if each[2] else 0)
    shapes: dict[object, list[int]] = defaultdict(list)
    for number, (before, after, _) in enumerate(found):
        shapes[_shape(rows, before, after)].append(number)
    alike = {number: tuple(numbers) for numbers in shapes.values() for number in numbers}
    return tuple(DiffGroup(*each, alike[number]) for number, each in enumerate(found))


def _together(rows: Rows) -> Iterator[tuple[tuple[DiffBox, ...], tuple[DiffBox, ...]]]:
    """Sites that hang together by ops, in the order of the program."""
    sides = [_sites_of(side, known) for side, known in ((rows.before, rows.row_before), (rows.after, rows.row_after))]
    sites_of_row: dict[int, list[_Node]] = defaultdict(list)
    for number, sites in enumerate(sides):
        works: dict[int, list[str]] = defaultdict(list)
        for site, (_, ops) in sites.items():
            for op in ops:
                works[op].append(site)
        for op, ids in works.items():
            if len(ids) == 1:
                sites_of_row[op].append((number, ids[0]))
    for nodes in _joined([(number, site) for number in (1, 0) for site in sides[number]], sites_of_row.values()):
        boxes: tuple[list[DiffBox], list[DiffBox]] = ([], [])
        for number, site in sorted(nodes, key=lambda node: sides[node[0]][node[1]][0].ordinal):
            of, ops = sides[number][site]
            boxes[number].append(DiffBox(site, of.kernel, ops))
        yield tuple(boxes[0]), tuple(boxes[1])


def _sites_of(side: Compared, known: Mapping[str, int]) -> dict[str, tuple[Site, tuple[int, ...]]]:
    """Sites with the rows of their ops."""
    return {
        site.id: (site, tuple(known[op] for op in dict.fromkeys(member.op for member in site.members) if op in known))
        for site in side.graph.sites
    }


def _joined(nodes: Sequence[_Node], links: Iterable[Sequence[_Node]]) -> Iterator[list[_Node]]:
    """Nodes that links hold together, in the order of the first of each."""
    root = {node: node for node in nodes}

    def find(node: _Node) -> _Node:
        while root[node] != node:
            root[node] = root[root[node]]
            node = root[node]
        return node

    for several in links:
        for node in several[1:]:
            root[find(node)] = find(several[0])
    found: dict[_Node, list[_Node]] = defaultdict(list)
    for node in nodes:
        found[find(node)].append(node)
    yield from found.values()


def _shape(rows: Rows, *sides: Sequence[DiffBox]) -> object:
    """What two groups have in common that differ in their ids alone: the names of ops, and which op goes where."""
    numbers: dict[int, int] = {}
    return tuple(
        tuple(tuple((rows.made.ops[op].name, numbers.setdefault(op, len(numbers))) for op in box.ops) for box in boxes)
        for boxes in sides
    )
