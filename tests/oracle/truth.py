"""Which op runs in which kernel, by fingerprints: no location is looked at.

A node of a kernel is known to be an op by a number that only this op has, or by loops that only this op can have. From
there on along the def-use chains, in program and kernel alike: what makes the second operand of a known node is what
makes the second operand of its op. A node that stays unknown makes its look-alikes undecided in that kernel.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from tests.oracle.kernels import SOFTMAX, Compiled, KernelGraph, Node
from tests.oracle.program import Idiom, Kind, Pattern, Program, Purpose

_COMPUTING = (Purpose.WORK, Purpose.TWIN, Purpose.COMPILE_TIME)


@dataclass(frozen=True)
class Truth:
    """Of each op (of copies the first) the sites in which it runs, and those in which it cannot be told.

    `moved`: of ops that only move elements, the sites in which this is a loop of its own; `stored`: those where its
    shape is written, so that the move may be work or not.
    """

    runs_in: Mapping[int, frozenset[int]]
    undecided: Mapping[int, frozenset[int]]
    moved: Mapping[int, frozenset[int]]
    stored: Mapping[int, frozenset[int]]
    at_load: frozenset[int]
    sites: tuple[str, ...]
    conflicts: tuple[str, ...]


def find_truth(program: Program, compiled: Compiled) -> Truth:
    """Read the truth about a program off what the compiler made of it."""
    fingerprints = Fingerprints(program)
    known = {name: _Matcher(fingerprints, kernel) for name, kernel in compiled.kernels.items()}
    runs: dict[int, set[int]] = defaultdict(set)
    unclear: dict[int, set[int]] = defaultdict(set)
    moved: dict[int, set[int]] = defaultdict(set)
    stored: dict[int, set[int]] = defaultdict(set)
    for number, site in enumerate(compiled.sites):
        matcher = known[site.kernel]
        for op in matcher.ops:
            runs[op].add(number)
        for op in matcher.undecided:
            unclear[op].add(number)
        for op in fingerprints.moves_in(matcher.kernel):
            moved[op].add(number)
        for op in fingerprints.moves_stored_by(matcher.kernel):
            stored[op].add(number)
    return Truth(
        runs_in=_frozen(runs),
        undecided=_frozen(unclear),
        moved=_frozen(moved),
        stored=_frozen(stored),
        at_load=frozenset(number for number, site in enumerate(compiled.sites) if site.initializer),
        sites=tuple(site.kernel for site in compiled.sites),
        conflicts=tuple(text for matcher in known.values() for text in matcher.conflicts),
    )


def _frozen(sets: Mapping[int, set[int]]) -> dict[int, frozenset[int]]:
    return {op: frozenset(sites) for op, sites in sets.items()}


class Fingerprints:
    """By what the ops of a program are known again. Ops are numbers; copies of an op are that op."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.computing = [
            op for op in program.ops if op.pattern is not None and op.twin < 0 and op.purpose in _COMPUTING
        ]

    @cached_property
    def by_constant(self) -> Mapping[float, int]:
        """Ops by a number of their own."""
        return _unique((op.constant, op.number) for op in self.computing if op.constant is not None)

    @cached_property
    def by_loops(self) -> Mapping[Hashable, int]:
        """Reductions and products by loops of their own."""
        reducing = (op for op in self.computing if op.pattern is not None and op.pattern.reducing)
        return _unique(((op.pattern, op.loops), op.number) for op in reducing)

    @cached_property
    def by_volume(self) -> Mapping[Hashable, int]:
        """Other ops by what they compute how often, where only one does."""
        others = (op for op in self.computing if op.pattern is not None and not op.pattern.reducing and op.loops)
        return _unique(((op.pattern, op.loops.volume), op.number) for op in others if op.loops is not None)

    @cached_property
    def idioms(self) -> Mapping[Hashable, Idiom]:
        """Softmaxes by their size."""
        return _unique((idiom.loops.volume, idiom) for idiom in self.program.idioms)

    @cached_property
    def idioms_by_operand(self) -> Mapping[int, Idiom]:
        """Softmaxes by the op that makes what they read, where this op feeds only one."""
        pairs = ((maker, idiom) for idiom in self.program.idioms for maker in self.program.makers(idiom.operand))
        return _unique(pairs)

    @cached_property
    def idioms_by_last(self) -> Mapping[int, Idiom]:
        """Softmaxes by the op that makes their result."""
        return {idiom.last: idiom for idiom in self.program.idioms}

    @cached_property
    def makers(self) -> Mapping[int, tuple[frozenset[int], ...]]:
        """Of each op, the ops that make each of its operands."""
        return {op.number: tuple(map(self.program.makers, op.operands)) for op in self.computing}

    @cached_property
    def users(self) -> Mapping[tuple[int, int], tuple[int, ...]]:
        """The ops that use what an op makes as their operand of this place."""
        found: dict[tuple[int, int], list[int]] = defaultdict(list)
        for op, operands in self.makers.items():
            for place, makers in enumerate(operands):
                for maker in makers:
                    found[maker, place].append(op)
        return {key: tuple(ops) for key, ops in found.items()}

    def pattern(self, op: int) -> Pattern | None:
        """What an op becomes."""
        return self.program.ops[op].pattern

    def moves_in(self, kernel: KernelGraph) -> Iterator[int]:
        """The transposes that are a loop of their own in a kernel."""
        volumes = {loops.volume for loops in kernel.moves}
        yield from (op for volume, op in self._moves_by_volume.items() if volume in volumes)

    def moves_stored_by(self, kernel: KernelGraph) -> Iterator[int]:
        """The ops that only move elements whose shape, or whose operand's, a kernel stores."""
        sizes = {_size(extents) for extents in kernel.stores}
        yield from (op.number for op in self.program.ops if op.kind is Kind.MOVE and _size(op.extents) in sizes)

    @cached_property
    def _moves_by_volume(self) -> Mapping[Hashable, int]:
        moves = [op for op in self.program.ops if op.kind is Kind.MOVE and op.loops is not None]
        transposes = ((op.loops.volume, op.number) for op in moves if op.loops is not None)
        return {key: op for key, op in _unique(transposes).items() if "transpose" in self.program.ops[op].name}


def _size(extents: tuple[int | None, ...]) -> tuple[int | None, ...]:
    """Extents without order: a product would do, but this tells transposed shapes from merged ones."""
    size = 1
    for extent in extents:
        size *= extent or 1
    return (size,)


_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


def _unique(pairs: Iterable[tuple[_Key, _Value]]) -> dict[_Key, _Value]:
    every = list(pairs)
    counts = Counter(key for key, _ in every)
    return {key: value for key, value in every if counts[key] == 1}


_MULTIPLY = "arith.mulf"
_PRODUCTS = (Kind.CONTRACTION, Kind.CONVOLUTION)


class _Matcher:
    """Finds the ops of one kernel. `known`: of a node, the op that it is; `raised`: the idiom."""

    def __init__(self, fingerprints: Fingerprints, kernel: KernelGraph) -> None:
        self.kernel = kernel
        self.conflicts: list[str] = []
        self._prints = fingerprints
        self._known: dict[int, int] = {}
        self._raised: dict[int, Idiom] = {}
        self._users: dict[int, list[tuple[Node, int]]] = defaultdict(list)
        for node in kernel.nodes:
            for place, operand in enumerate(node.operands):
                if operand is not None:
                    self._users[operand].append((node, place))
        for anchor in (self._by_constant, self._by_loops, self._by_volume):
            for node in kernel.nodes:
                if not self._is_known(node):
                    anchor(node)

    @property
    def ops(self) -> frozenset[int]:
        """The ops that run in the kernel."""
        raised = (op for idiom in self._raised.values() for op in idiom.ops)
        return frozenset(self._known.values()) | frozenset(raised)

    @cached_property
    def undecided(self) -> frozenset[int]:
        """The ops that unknown nodes may be."""
        unknown = {(node.scalar, node.reducing) for node in self.kernel.nodes if not self._is_known(node)}
        alike = {
            op.number
            for op in self._prints.computing
            if op.constant is None and op.pattern and (op.pattern.scalar, op.pattern.reducing) in unknown
        }
        if (SOFTMAX, False) in unknown:
            alike |= {op for idiom in self._prints.program.idioms for op in idiom.ops}
        return frozenset(alike) - self.ops

    def _is_known(self, node: Node) -> bool:
        return node.number in self._known or node.number in self._raised

    def _by_constant(self, node: Node) -> None:
        ops = {self._prints.by_constant[number] for number in node.constants if number in self._prints.by_constant}
        if len(ops) == 1:
            self._note(node, ops.pop())

    def _by_loops(self, node: Node) -> None:
        if node.reducing:
            self._note(node, self._prints.by_loops.get((Pattern(node.scalar, True), node.loops)))

    def _by_volume(self, node: Node) -> None:
        if node.scalar == SOFTMAX:
            self._note_idiom(node, self._prints.idioms.get(node.loops.volume))
        elif not node.reducing and node.loops.reducing == 1:  # in a product, its own operations repeat as often
            self._note(node, self._prints.by_volume.get((Pattern(node.scalar), node.loops.volume)))

    def _note(self, node: Node, op: int | None) -> None:
        """A node is this op; go on from there."""
        if op is None or self._known.get(node.number) == op:
            return
        if self._is_known(node):
            self.conflicts.append(
                f"{self.kernel.name}: node {node.number} is op {self._known.get(node.number)} and {op}"
            )
            return
        self._known[node.number] = op
        self._go_up(node, op)
        self._go_down(node, op)

    def _note_idiom(self, node: Node, idiom: Idiom | None) -> None:
        if idiom is None or self._is_known(node):
            return
        self._raised[node.number] = idiom
        self._up_from(node.operands[0], self._prints.program.makers(idiom.operand))
        self._go_down(node, idiom.last)

    def _go_up(self, node: Node, op: int) -> None:
        operands = self._prints.makers[op]
        if not node.reducing:
            for producer, makers in zip(node.operands, operands, strict=False):
                self._up_from(producer, makers)
            return
        everything = frozenset().union(*operands)
        for producer in node.operands:
            inner = None if producer is None else self.kernel.nodes[producer]
            if inner is not None and self._is_inner(inner, node, op):
                self._known[inner.number] = op
                for behind in inner.operands:
                    self._up_from(behind, everything)
            else:
                self._up_from(producer, everything)

    def _is_inner(self, inner: Node, node: Node, op: int) -> bool:
        """Whether a node is the multiplication of a product."""
        is_product = self._prints.program.ops[op].kind in _PRODUCTS
        return is_product and inner.scalar == _MULTIPLY and inner.loops == node.loops and not self._is_known(inner)

    def _up_from(self, producer: int | None, makers: Iterable[int]) -> None:
        if producer is None:
            return
        node = self.kernel.nodes[producer]
        if node.scalar == SOFTMAX:
            idioms = [self._prints.idioms_by_last[op] for op in makers if op in self._prints.idioms_by_last]
            self._note_idiom(node, idioms[0] if len(idioms) == 1 else None)
        else:
            self._note_only(node, makers)

    def _go_down(self, node: Node, op: int) -> None:
        for user, place in self._users[node.number]:
            if user.scalar == SOFTMAX:
                self._note_idiom(user, self._prints.idioms_by_operand.get(op))
            elif user.reducing:
                self._note_only(user, self._prints.users.get((op, 0), ()))
            else:
                self._note_only(user, self._prints.users.get((op, place), ()))

    def _note_only(self, node: Node, candidates: Iterable[int]) -> None:
        """The node is the one candidate that looks like it, if there is just one."""
        if self._is_known(node):
            return
        pattern = Pattern(node.scalar, node.reducing)
        alike = {op for op in candidates if self._prints.pattern(op) == pattern and not self._differs(op, node)}
        if len(alike) == 1:
            self._note(node, alike.pop())

    def _differs(self, op: int, node: Node) -> bool:
        """Whether the numbers beside a node tell it from an op."""
        constant = self._prints.program.ops[op].constant
        return constant is not None and constant not in node.constants
