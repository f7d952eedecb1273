"""The evidence of a run, and what the IR of its kernels shows."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

import msgspec

from tracemap.attribution.model import (
    Attribution,
)
from tracemap.core.errors import ModuleInvalid
from tracemap.machine.code_figures import LoopFigures, inner_loops
from tracemap.machine.images import Image, kernel_images
from tracemap.map.model import Kernel, OpId, TraceGraph


@dataclass(frozen=True, slots=True)
class Evidence:
    """An attribution with its bundle, and functions that read what only some rules need.

    Attributes:
        graph: the map.
        attribution: the costs.
        bundle: the bundle's folder, for commands.
        runs: the paths of the runs, for commands; empty if a command cannot read them again.
        images: reads the machine code.
        kernel_text: reads the IR of a kernel; "" if it is not kept.
        data_flow: reads the pairs of an op and a user of its results.
        repeated: finds the ops that compute what an earlier op computes, with that op.
        invariant: finds the ops in loops that compute the same each time, with the outermost such loop.
    """

    graph: TraceGraph
    attribution: Attribution
    bundle: Path = Path()
    runs: Sequence[Path] = ()
    images: Callable[[], Sequence[Image]] = tuple
    kernel_text: Callable[[Kernel], str] = lambda _: ""
    data_flow: Callable[[], Sequence[tuple[OpId, OpId]]] = tuple
    repeated: Callable[[], Mapping[OpId, OpId]] = dict
    invariant: Callable[[], Mapping[OpId, OpId]] = dict


# ---- kernels
#
# Facts on kernels from their IR before code generation, one operation a line, and from the loops of their machine code.


_OPERATION: Final = re.compile(r"\s*(?:%[\w:]+(?:, %[\w:]+)* = )?([a-z_]\w*\.[\w.$]+)")
_MAP: Final = re.compile(r"affine_map<\(([^)]*)\)(?:\[[^\]]*\])? -> \(([^>]*)\)>")
_ITERATOR: Final = re.compile(r'"(parallel|reduction)"')
_ARRAY: Final = re.compile(r"(?:tensor|memref)<((?:\d+x)*)[a-z]+(\d+)")
_EXTRACT: Final = re.compile(r"tensor\.extract %\w+\[(.*)\]")
_INDEX_OPERATION: Final = re.compile(
    r"(%\w+) = (linalg\.index|arith\.(?:addi|subi|muli|index_cast\w*|ext[su]i|trunci)) ([\w%, ]+?)(?: overflow<.*>)? :"
)
_INTEGER: Final = re.compile(r"(%\w+) = arith\.constant (-?\d+) : ")
_CACHED: Final = 32 << 10
"""Most bytes of an array whose elements are read in any order at the speed of neighbours."""
_STRIDES: Final = re.compile(r"(?:memref\.subview|tensor\.extract_slice) %\w+ ?(?:\[[^\]]*\] ?){2}\[([^\]]*)\]")
_PART: Final = re.compile(
    r"(%\w+) = (?:memref\.subview|tensor\.extract_slice) (%\w+) ?\[[^\]]*\] ?\[([\d, ]+)\] ?\[([\d, ]+)\]"
    r" : (?:tensor|memref)<((?:\d+x)+)[a-z]+(\d+)"
)
_LINE: Final = 64
"""Bytes that memory transfers at once."""
_PRODUCTS: Final = ("matmul", "matvec", "vecmat", "dot", "conv_", "mmt4d", "contract", "attention", "vecdot")
"""Parts of the names of `linalg` operations that multiply and add."""
_MOVES: Final = frozenset(
    """
    linalg.transpose linalg.copy linalg.pack linalg.unpack linalg.broadcast tensor.pad tensor.insert_slice tensor.concat
    """.split()
)
"""Operations that only move data."""


class _Generic(msgspec.Struct, frozen=True):
    """A `linalg.generic`: results of the maps of its operands, kinds of its loops, lines of its body, inputs."""

    maps: tuple[tuple[str, ...], ...]
    iterators: tuple[str, ...]
    body: tuple[str, ...]
    inputs: int

    @property
    def is_parallel(self) -> bool:
        return "reduction" not in self.iterators

    @property
    def arithmetic(self) -> tuple[str, ...]:
        """The lines of the body that compute elements; indices and constants do not count."""
        return tuple(
            line for line in self.body if re.search(r"= (?:arith|math)\.", line) and not line.endswith("index")
        )

    @property
    def is_product(self) -> bool:
        """Whether it multiplies elements of several inputs and adds the products."""
        text = " ".join(self.body)
        return not self.is_parallel and self.inputs > 1 and "arith.mul" in text and "arith.add" in text

    @property
    def strided_input(self) -> bool:
        """Whether neighbours in the innermost loop are not neighbours in some input."""
        output = self.maps[-1] if self.maps else ()
        reductions = {f"d{index}" for index, kind in enumerate(self.iterators) if kind == "reduction"}
        if not output:
            return False
        rank = len(self.iterators)
        for results in self.maps[: self.inputs]:
            if not results:
                continue
            last = results[-1]
            is_multiple = re.search(r"\* ([2-9]|\d\d)", last) is not None
            is_transposed = last != output[-1] and output[-1] in results and last not in reductions
            if rank and (is_multiple or is_transposed):
                return True
        return False

    def extracts(self, constants: Mapping[str, int]) -> Iterator[tuple[tuple[int | None, ...], int]]:
        """The single elements that it reads: what a step of the innermost loop adds to each index, size of the array.

        An index that is read from an array may be anything: None.
        """
        innermost = len(self.iterators) - 1
        steps: dict[str, int | None] = dict.fromkeys(constants, 0)
        for line in self.body:
            if match := _EXTRACT.search(line):
                yield tuple(steps.get(operand) for operand in match[1].split(", ")), _size_of(line)
            elif match := _INDEX_OPERATION.match(line):
                steps[match[1]] = _step(match[2], match[3].split(", "), steps, constants, innermost)

    @property
    def adds_columns(self) -> bool:
        """Whether the last dimension of an input is parallel, and an earlier one is reduced."""
        reductions = {f"d{index}" for index, kind in enumerate(self.iterators) if kind == "reduction"}
        inputs = [results for results in self.maps[: self.inputs] if results]
        return any(results[-1] not in reductions and not reductions.isdisjoint(results) for results in inputs)


def _step(
    name: str, operands: Sequence[str], steps: Mapping[str, int | None], constants: Mapping[str, int], innermost: int
) -> int | None:
    """The number that a step of the innermost loop adds to an index; None if it is no constant."""
    if name == "linalg.index":
        return int(operands[0] == str(innermost))
    values = [steps.get(operand) for operand in operands]
    first, second = values[0], values[-1]
    if first is None or second is None:
        return None
    if name == "arith.muli":
        factors = [constants[operand] for operand in operands if operand in constants]
        return (first + second) * factors[0] if factors else None
    if len(operands) == 1:
        return first
    return {"arith.addi": first + second, "arith.subi": first - second}.get(name)


def _size_of(line: str) -> int:
    """The size in bytes of the last array that a line names; 0 if it is not static."""
    arrays = _ARRAY.findall(line)
    extents, bits = arrays[-1] if arrays else ("0x", "8")
    return math.prod(map(int, filter(None, extents.split("x")))) * max(8, int(bits)) // 8


def _body(lines: Iterator[str]) -> list[str]:
    """The lines of a region, up to the end of its operation."""
    body, depth = [], 1
    for line in lines:
        depth += line.count("{") - line.count("}")
        if depth <= 0:
            break
        body.append(line)
    return body


def _run(sizes: Sequence[int], strides: Sequence[int], extents: Sequence[int]) -> tuple[int, int]:
    """The number of neighbours in a part of an array, and the distance from one such run to the next, in elements."""
    run, step = 1, 1
    for size, stride, extent in zip(reversed(sizes), reversed(strides), reversed(extents), strict=True):
        if size > 1 and step * stride != run:
            return run, step * stride
        run, step = run * size, step * extent
    return run, run


class KernelFacts(msgspec.Struct, frozen=True, dict=True):
    """A kernel, and what its IR and machine code show."""

    evidence: Evidence
    kernel: Kernel

    @cached_property
    def _lines(self) -> tuple[str, ...]:
        return tuple(line.strip() for line in self.evidence.kernel_text(self.kernel).splitlines())

    @cached_property
    def _names(self) -> tuple[str, ...]:
        """Names of its operations, without those in bodies of `linalg.generic`."""
        names: list[str] = []
        lines = iter(self._lines)
        for line in lines:
            if match := _OPERATION.match(line):
                names.append(match[1])
                if match[1].startswith(("linalg.", "iree_linalg_ext.")) and line.endswith("{"):
                    _body(lines)
        return tuple(names)

    @cached_property
    def generics(self) -> tuple[_Generic, ...]:
        """Its generic operations."""
        generics: list[_Generic] = []
        lines = iter(self._lines)
        for line in lines:
            match = _OPERATION.match(line)
            if match is None or match[1] != "linalg.generic":
                continue
            head, _, rest = line.partition("iterator_types")
            maps = tuple(tuple(results.split(", ")) if results else () for _, results in _MAP.findall(head))
            inputs = re.search(r"ins\(([^:)]*)", rest)
            body = _body(lines)
            count = len(inputs[1].split(",")) if inputs else 0
            iterators = tuple(_ITERATOR.findall(rest.partition("]")[0]))
            generics.append(_Generic(maps, iterators, tuple(body[1:]), count))
        return tuple(generics)

    @cached_property
    def is_known(self) -> bool:
        """Whether its IR is kept."""
        return bool(self._names)

    @cached_property
    def is_product(self) -> bool:
        """Whether it multiplies and adds, like a matmul or a convolution."""
        named = any(part in name for name in self._names if name.startswith(("linalg.", "iree_")) for part in _PRODUCTS)
        return named or any(generic.is_product for generic in self.generics)

    @cached_property
    def computes(self) -> bool:
        """Whether it computes elements, or does something that is not known."""
        others = [
            name
            for name in self._names
            if name.startswith(("linalg.", "iree_linalg_ext.", "math.", "scf."))
            and name not in _MOVES
            and name not in ("linalg.generic", "linalg.fill", "iree_linalg_ext.map_store")
        ]
        return bool(others) or any(generic.arithmetic for generic in self.generics)

    @cached_property
    def only_adds(self) -> bool:
        """Whether it reduces rows, which the compiler adds up one by one after vector loads."""
        rows = [generic for generic in self.generics if not generic.is_parallel]
        return bool(rows) and not any("scf." in line for generic in self.generics for line in generic.body)

    @cached_property
    def adds_columns(self) -> bool:
        """Whether the innermost dimension of an input is not what a reduction adds up."""
        rows = [generic for generic in self.generics if not generic.is_parallel and not generic.is_product]
        return any(generic.adds_columns for generic in rows)

    @cached_property
    def gathers(self) -> bool:
        """Whether it reads elements at computed indices."""
        return any(_EXTRACT.search(line) for generic in self.generics for line in generic.body)

    @cached_property
    def only_moves(self) -> bool:
        """Whether it only moves data in a fixed order, such as a transpose."""
        return self.is_known and not self.computes and not self.gathers and bool(self.operand_bytes[1:])

    @cached_property
    def is_elementwise(self) -> bool:
        """Whether each element of its result needs few elements of its inputs, which it reads only once."""
        if not self.generics or not all(generic.is_parallel for generic in self.generics):
            return False
        return not any(name.startswith("linalg.") and name != "linalg.generic" for name in self._names)

    @cached_property
    def is_strided(self) -> bool:
        """Whether neighbours in its innermost loop are not neighbours in memory."""
        if self.is_product:
            return False
        for line in self._lines:
            if (match := _STRIDES.search(line)) and match[1].split(", ")[-1] not in ("", "1"):
                return True
        return any(generic.strided_input for generic in self.generics) or any(
            (any(outer) if last == 0 else last is not None and abs(last) > 1) or (last is None and size > _CACHED)
            for (*outer, last), size in self._extracts
        )

    @cached_property
    def looks_up_rows(self) -> bool:
        """Whether it reads rows at indices from an array, such as an embedding."""
        return any(last == 1 and None in outer for (*outer, last), _ in self._extracts)

    @cached_property
    def _extracts(self) -> tuple[tuple[tuple[int | None, ...], int], ...]:
        constants = {match[1]: int(match[2]) for line in self._lines if (match := _INTEGER.search(line))}
        return tuple(extract for generic in self.generics for extract in generic.extracts(constants))

    @cached_property
    def operand_bytes(self) -> tuple[int, ...]:
        """Sizes of the arrays that it loads and stores, of those with static sizes."""
        accesses = [line for line in self._lines if "load_from_buffer" in line or "store_to_buffer" in line]
        # Copies have no tensors.
        accesses = accesses or [line for line in self._lines if "interface.binding.subspan" in line]
        return tuple(_size_of(line) for line in accesses if _ARRAY.search(line))

    @cached_property
    def wasted_bytes(self) -> int:
        """Memory traffic of a call for elements between those that it reads, in parts of arrays."""
        read, used = dict[str, int](), dict[str, int]()
        text = "\n".join(self._lines)
        for line in self._lines:
            match = _PART.match(line)
            if match is None or ("subview" in line and f"load_from_buffer {match[1]} " not in text):
                continue
            sizes, strides = (list(map(int, match[group].split(", "))) for group in (3, 4))
            run, apart = _run(sizes, strides, list(map(int, match[5].split("x")[:-1])))
            element = max(8, int(match[6])) // 8
            count, source = math.prod(sizes), match[2]
            fetched = count // run * max(min(_LINE, apart * element), run * element)
            read[source] = max(read.get(source, 0), fetched)
            used[source] = used.get(source, 0) + count * element
        return sum(max(0, read[source] - used[source]) for source in read)

    @cached_property
    def loops(self) -> tuple[LoopFigures, ...]:
        """The innermost loops of its machine code; empty if it cannot be read."""
        try:
            images = kernel_images(self.evidence.images(), self.kernel.name)
            return inner_loops(*images[0]) if images else ()
        except ModuleInvalid:
            return ()

    @cached_property
    def element_part(self) -> float:
        """The part of instructions in its loops that move single elements into and out of vectors.

        0 if it reads neighbours of a row, or if it strides.
        """
        if self.is_strided or self.looks_up_rows:
            return 0.0
        total = sum(loop.instructions for loop in self.loops)
        return sum(loop.elements for loop in self.loops) / total if total else 0.0
