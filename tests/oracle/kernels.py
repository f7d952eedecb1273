"""What the compiler made of a program: its kernels as graphs of scalar operations, and where each is called.

Read off a plain compile's dumps, without a location or tag anywhere: kernels off the executable sources, call sites off
the flow phase. Nothing here is shared with the reading that is measured.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from iree.compiler import ir
from iree.compiler.dialects import linalg

from tests.oracle.program import Extents, Loops
from tests.support import PLAIN_FLAGS
from tracemap.core.toolchain import find_tool

Operation = Any
"""An `iree.compiler.ir.Operation`; the bindings' stubs do not pass strict checking."""
Value = Any
"""An `iree.compiler.ir.Value`."""

SOFTMAX = "linalg.softmax"
_PASSES_ON = ("tensor.expand_shape", "tensor.collapse_shape", "tensor.cast", "tensor.extract_slice")
_STORE = "iree_tensor_ext.dispatch.tensor.store"


class CompilerRejects(Exception):
    """The compiler itself does not get through with a program: nothing to compare."""


@dataclass(frozen=True, slots=True)
class Node:
    """A scalar operation in a kernel: its place among the kernel's nodes, and whose results it uses (None: another
    kernel's, or nobody's).
    """

    number: int
    scalar: str
    reducing: bool
    operands: tuple[int | None, ...]
    constants: tuple[float, ...]
    loops: Loops


@dataclass(frozen=True)
class KernelGraph:
    """A kernel: its scalar operations, the loops in which elements are only moved, and the shapes that it stores."""

    name: str
    nodes: tuple[Node, ...]
    moves: tuple[Loops, ...]
    stores: frozenset[Extents]


class CalledKernel(NamedTuple):
    """A call site: the kernel, and whether it runs at load only."""

    kernel: str
    initializer: bool


@dataclass(frozen=True)
class Compiled:
    """Kernels by name, and call sites in the order of the text."""

    kernels: Mapping[str, KernelGraph]
    sites: tuple[CalledKernel, ...]


def compile_plainly(text: str) -> Compiled:
    """Compile a program up to its executable sources, without debug information.

    Raises:
        CompilerRejects: iree-compile fails.
    """
    with tempfile.TemporaryDirectory(prefix="oracle-") as folder:
        model = Path(folder, "model.mlir")
        model.write_text(text, encoding="utf-8")
        phases = Path(folder, "phases")
        options = ("--compile-to=executable-sources", f"--dump-compilation-phases-to={phases}", "-o", "/dev/null")
        arguments = [str(find_tool("iree-compile")), str(model), *PLAIN_FLAGS, *options]
        done = subprocess.run(arguments, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CompilerRejects(done.stderr.splitlines()[0] if done.stderr else f"status {done.returncode}")
        (flow,) = phases.glob("*.6.flow.mlir")
        (sources,) = phases.glob("*.8.executable-sources.mlir")
        sites = tuple(_sites(flow.read_text(encoding="utf-8")))
        return Compiled(_kernels(sources.read_text(encoding="utf-8")), sites)


_TOP = re.compile(r"^  (util\.func|util\.initializer)\b")
_DISPATCH = re.compile(r"\bflow\.dispatch @[^:\s]+::@([\w$.]+)")


def _sites(flow: str) -> Iterator[CalledKernel]:
    at_load = False
    for line in flow.splitlines():
        if top := _TOP.match(line):
            at_load = top[1] == "util.initializer"
        for kernel in _DISPATCH.findall(line):
            yield CalledKernel(kernel, at_load)


def _kernels(sources: str) -> dict[str, KernelGraph]:
    context = ir.Context()
    context.enable_multithreading(False)  # its threads would be missing in processes forked from this one
    context.allow_unregistered_dialects = True
    module = ir.Module.parse(sources, context)
    functions = [op for op in _walk(module.operation) if op.name == "func.func"]
    return {str(each.attributes["sym_name"].value): _Reader(each).graph() for each in functions}


def _walk(operation: Operation) -> Iterator[Operation]:
    yield operation
    for region in operation.regions:
        for block in region.blocks:
            for child in block.operations:
                yield from _walk(child.operation)


@dataclass
class _Reader:
    """Follows values through a kernel: of each, the node that computes it, or the number that it is."""

    function: Operation
    nodes: list[Node] = field(default_factory=list)
    moves: list[Loops] = field(default_factory=list)
    stores: set[Extents] = field(default_factory=set)
    made_by: dict[Value, int] = field(default_factory=dict)
    numbers: dict[Value, float] = field(default_factory=dict)

    def graph(self) -> KernelGraph:
        for block in self.function.regions[0].blocks:
            for operation in block.operations:
                self._read(operation.operation)
        name = str(self.function.attributes["sym_name"].value)
        return KernelGraph(name, tuple(self.nodes), tuple(self.moves), frozenset(self.stores))

    def _read(self, operation: Operation) -> None:
        name = operation.name
        if name == "arith.constant":
            self._number(operation)
        elif name == _STORE:
            self.stores.add(_extents(operation.operands[0]))
        elif name in _PASSES_ON:
            self._same(operation.results[0], operation.operands[0])
        elif name == SOFTMAX:
            loops = _known(_extents(operation.results[0]))
            self.made_by[operation.results[0]] = self._node(SOFTMAX, [operation.operands[0]], loops, reducing=False)
        elif name.startswith("linalg.") and name != "linalg.fill" and linalg.get_indexing_maps(operation) is not None:
            self._structured(operation)

    def _number(self, operation: Operation) -> None:
        value = operation.attributes["value"]
        if isinstance(value, ir.FloatAttr):
            self.numbers[operation.results[0]] = value.value
        elif isinstance(value, ir.DenseElementsAttr) and value.is_splat and str(value.type).endswith("f32>"):
            self.numbers[operation.results[0]] = ir.FloatAttr(value.get_splat_value()).value

    def _same(self, result: Value, operand: Value) -> None:
        if operand in self.made_by:
            self.made_by[result] = self.made_by[operand]
        if operand in self.numbers:
            self.numbers[result] = self.numbers[operand]

    def _structured(self, operation: Operation) -> None:
        block = operation.regions[0].blocks[0]
        for argument, operand in zip(block.arguments, operation.operands, strict=True):
            self._same(argument, operand)
        accumulators = set(list(block.arguments)[-len(operation.results) :])
        loops = _loops(operation)
        before = len(self.nodes)
        for inside in block.operations:
            body = inside.operation
            if body.name == "linalg.yield":
                for result, value in zip(operation.results, body.operands, strict=True):
                    self._same(result, value)
            elif body.name == "arith.constant":
                self._number(body)
            elif len(body.results) == 1 and body.name != "linalg.index":
                reducing = any(operand in accumulators for operand in body.operands)
                self.made_by[body.results[0]] = self._node(body.name, list(body.operands), loops, reducing=reducing)
        if len(self.nodes) == before:
            self.moves.append(loops)

    def _node(self, scalar: str, operands: Sequence[Value], loops: Loops, *, reducing: bool) -> int:
        constants = tuple(self.numbers[operand] for operand in operands if operand in self.numbers)
        makers = tuple(self.made_by.get(operand) for operand in operands)
        self.nodes.append(Node(len(self.nodes), scalar, reducing, makers, constants, loops))
        return len(self.nodes) - 1


def _extents(value: Value) -> Extents:
    shaped = ir.ShapedType(value.type)
    sizes = range(shaped.rank)
    return tuple(None if shaped.is_dynamic_dim(size) else int(shaped.get_dim_size(size)) for size in sizes)


def _known(extents: Extents) -> Loops:
    return Loops(prod(extent for extent in extents if extent is not None), 1, sum(extent is None for extent in extents))


def _loops(operation: Operation) -> Loops:
    """Of a structured op: dimensions that its first result does not have are the reducing ones."""
    maps = [attribute.value for attribute in linalg.get_indexing_maps(operation)]
    extents: dict[int, int | None] = {}
    for each, operand in zip(maps, operation.operands, strict=True):
        for expression, extent in zip(each.results, _extents(operand) if _is_shaped(operand) else (), strict=False):
            if isinstance(expression, ir.AffineDimExpr) and extents.get(int(expression.position)) is None:
                extents[int(expression.position)] = extent
    kept = {int(e.position) for e in maps[-len(operation.results)].results if isinstance(e, ir.AffineDimExpr)}
    parallel = prod(extent for place, extent in extents.items() if place in kept and extent is not None)
    reducing = prod(extent for place, extent in extents.items() if place not in kept and extent is not None)
    return Loops(parallel, reducing, sum(extent is None for extent in extents.values()))


def _is_shaped(value: Value) -> bool:
    return isinstance(value.type, ir.ShapedType)
