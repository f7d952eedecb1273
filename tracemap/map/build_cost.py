"""The cost of building: the compiler's seconds by kernel and pass, the module's bytes, and both by op.

`build --timing` writes the seconds to a bundle's `timing.json`. The bytes follow from the module at any time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, Literal

from tracemap.core.codec import Count, Document, Record
from tracemap.core.units import UNKNOWN, Integer, Text, Unknown, split_by_largest_remainder
from tracemap.machine.images import NO_LINE, Image, kernel_images
from tracemap.machine.module_sizes import PartKind, read_module_sizes
from tracemap.map.bundle import Bundle
from tracemap.map.bundle_documents import BuildTiming, KernelTiming, PassTiming
from tracemap.map.model import Kernel, OpId, TraceGraph

COST_VERSION: Final = 1
"""Version of the JSON."""


class OpBuildCost(Record, frozen=True):
    """The cost of an op: its part of the kernels that it is in.

    `duration_ns`: time of the compiler, inferred from the op's machine code; `code_bytes`: bytes of its machine code.
    """

    op: OpId
    duration_ns: Integer
    code_bytes: Count


class KernelBuildCost(Record, frozen=True):
    """The cost of a kernel. Sites that share it are compiled once.

    `duration_ns`: time of the compiler; `code_bytes`: bytes of its machine code; `translation_ns`: MLIR's passes;
    `optimization_ns`: LLVM's passes on IR; `generation_ns`: LLVM's passes on machine code, and the file of an
    executable without other kernels.
    `code_of_no_op`: bytes of `code_bytes` on lines without an op.
    """

    kernel: str
    sites: tuple[str, ...]
    duration_ns: Integer
    translation_ns: Integer
    optimization_ns: Integer
    generation_ns: Integer
    code_bytes: Count
    code_of_no_op: Count


class CostPart(Record, frozen=True):
    """A part of the compiler's time or of the module's file.

    `name`: what the part is; `amount`: nanoseconds or bytes.
    """

    name: str
    amount: Count


class BuildCost(Document, frozen=True, kw_only=True):
    """The cost of building a bundle. Costs are those of the kernels, then of the rest; the highest comes first.

    `elapsed_ns` and `peak_bytes`: wall time and memory of the compiler, with one thread; unknown without `--timing`.
    `times`: all parts of `elapsed_ns`; `bytes`: all parts of the file; `module_bytes`: the size of the file;
    `executables_ns`: the compiler's own time for executables, which includes that of kernels.
    """

    schema_version: Literal[1] = COST_VERSION
    kind: Literal["build-cost"] = "build-cost"
    elapsed_ns: Integer
    peak_bytes: Integer
    executables_ns: Integer
    module_bytes: Count
    kernels: tuple[KernelBuildCost, ...]
    ops: tuple[OpBuildCost, ...]
    passes: tuple[PassTiming, ...]
    times: tuple[CostPart, ...]
    bytes: tuple[CostPart, ...]


def build_cost(bundle: Bundle) -> BuildCost:
    """The cost of building a bundle.

    Raises:
        BundleInvalid: its times are damaged.
        BundleVersion: they have another format version.
        ModuleInvalid: its module is damaged.
    """
    graph = bundle.graph
    timing = bundle.timing()
    sizes = read_module_sizes(bundle.module_path, frozenset(graph.kernel_by_name))
    code_bytes, parts = Counter[str](), Counter[str]()
    for part in sizes.parts:
        parts[part.kind.value] += part.bytes
        if part.kind is PartKind.CODE:
            code_bytes[part.name] += part.bytes
    timing_of = {own.kernel: own for own in timing.kernels} if timing is not None else {}
    kernels, ops = [], _OpCosts(graph, has_times=timing is not None)
    for kernel in graph.kernels:
        by_op, of_no_op = _code_by_op(kernel, sizes.images)
        own = timing_of.get(kernel.name)
        kernels.append(_kernel_cost(kernel, own, code_bytes[kernel.name], of_no_op))
        ops.add(kernel, by_op, kernels[-1].duration_ns)
    kernels.sort(key=lambda cost: (-_known(cost.duration_ns), -cost.code_bytes, cost.kernel))
    return BuildCost(
        elapsed_ns=UNKNOWN if timing is None else timing.elapsed_ns,
        peak_bytes=UNKNOWN if timing is None else timing.peak_bytes,
        executables_ns=UNKNOWN if timing is None else timing.executables_ns,
        module_bytes=sizes.total_bytes,
        kernels=tuple(kernels),
        ops=ops.sorted(),
        passes=() if timing is None else timing.passes,
        times=() if timing is None else _time_parts(timing),
        bytes=tuple(CostPart(name, amount) for name, amount in parts.most_common() if amount),
    )


def _known(value: Integer) -> int:
    return 0 if isinstance(value, Unknown) else value


def _kernel_cost(kernel: Kernel, own: KernelTiming | None, code_bytes: int, of_no_op: int) -> KernelBuildCost:
    translation, optimization, generation = (
        (own.translation_ns, own.optimization_ns, own.generation_ns) if own is not None else (UNKNOWN,) * 3
    )
    duration = own.duration_ns if own is not None else UNKNOWN
    return KernelBuildCost(
        kernel.name, kernel.sites, duration, translation, optimization, generation, code_bytes, of_no_op
    )


def _time_parts(timing: BuildTiming) -> tuple[CostPart, ...]:
    """All parts of the compiler's time; their sum is `elapsed_ns`."""
    rest = {
        "kernels": sum(kernel.duration_ns for kernel in timing.kernels),
        **{other.name: other.duration_ns for other in timing.others},
        "rest of the program": timing.elapsed_ns - timing.executables_ns,
    }
    return tuple(
        CostPart(name, amount) for name, amount in sorted(rest.items(), key=lambda part: (-part[1], part[0])) if amount
    )


# ---- ops


def _code_by_op(kernel: Kernel, images: Sequence[Image]) -> tuple[Mapping[OpId, int], int]:
    """Bytes of a kernel's machine code by op, and of no op. A line's bytes are split evenly over its ops."""
    ops_of_line = {step.line: step.ops for step in kernel.steps}
    by_op: dict[OpId, int] = defaultdict(int)
    of_no_op = 0
    for line, size in sorted(_bytes_by_line(kernel.name, images).items()):
        ops = ops_of_line.get(line, ())
        if not ops:
            of_no_op += size
        for op, part in zip(ops, split_by_largest_remainder(size, [1] * len(ops)) if ops else (), strict=True):
            by_op[op] += part
    return by_op, of_no_op


def _bytes_by_line(kernel: str, images: Sequence[Image]) -> Counter[int]:
    sizes = Counter[int]()
    for image, function in kernel_images(images, kernel):
        rows = [(at, line) for at, line in image.rows if function.low <= at < function.high]
        # Code ahead of the first row has no line.
        for (low, line), (high, _) in pairwise([(function.low, NO_LINE), *rows, (function.high, NO_LINE)]):
            sizes[line] += high - low
    return sizes


class _OpCosts:
    """Sums the costs of ops over kernels."""

    def __init__(self, graph: TraceGraph, *, has_times: bool) -> None:
        self._graph, self._has_times = graph, has_times
        self._bytes, self._ns = Counter[OpId](), Counter[OpId]()

    def add(self, kernel: Kernel, by_op: Mapping[OpId, int], duration_ns: Integer) -> None:
        """Add a kernel. Its time is split by the bytes of code, or evenly over its ops if none has code."""
        self._bytes.update(by_op)
        sites = (self._graph.site_by_id[site] for site in kernel.sites)
        weights = dict(by_op) or dict.fromkeys((member.op for site in sites for member in site.members), 1)
        if isinstance(duration_ns, Unknown) or not weights:
            return
        parts = split_by_largest_remainder(duration_ns, list(weights.values()))
        for op, part in zip(weights, parts, strict=True):
            self._ns[op] += part

    def sorted(self) -> tuple[OpBuildCost, ...]:
        """The costs of the ops that have any, slowest first."""
        index_of = {op.id: index for index, op in enumerate(self._graph.ops)}
        costs = [
            OpBuildCost(op, self._ns[op] if self._has_times else UNKNOWN, self._bytes[op])
            for op in {**self._ns, **self._bytes}
        ]
        return tuple(sorted(costs, key=lambda own: (-_known(own.duration_ns), -own.code_bytes, index_of[own.op])))


# ---- comparison


class CostChange(Record, frozen=True):
    """The cost of a kernel or an op of two bundles; unknown where it is missing.

    `name`: the kernel or the op before, or after if it is new; `before_ns`: the compiler's time before; `after_ns`: the
    same after; `before_bytes`: the bytes of machine code before; `after_bytes`: the same after.
    """

    name: str
    before_ns: Integer
    after_ns: Integer
    before_bytes: Integer
    after_bytes: Integer


class BuildCostChanges(Record, frozen=True):
    """The costs of building two bundles, and their kernels and ops with other code, the largest change first.

    `before_ns`: the compiler's time before; `after_ns`: the same after; `before_bytes`: the size of the module before;
    `after_bytes`: the same after.
    """

    before_ns: Integer
    after_ns: Integer
    before_bytes: Count
    after_bytes: Count
    kernels: tuple[CostChange, ...]
    ops: tuple[CostChange, ...]


def cost_changes(
    before: BuildCost, after: BuildCost, ops: Sequence[tuple[Text, Text]], kernels: Sequence[tuple[Text, Text]]
) -> BuildCostChanges:
    """The costs of building two bundles; `ops` and `kernels`: matched names before and after, unknown where missing."""
    old_ops, new_ops = ({str(own.op): own for own in cost.ops} for cost in (before, after))
    old_kernels, new_kernels = ({own.kernel: own for own in cost.kernels} for cost in (before, after))
    return BuildCostChanges(
        before_ns=before.elapsed_ns,
        after_ns=after.elapsed_ns,
        before_bytes=before.module_bytes,
        after_bytes=after.module_bytes,
        kernels=_changes(kernels, old_kernels, new_kernels),
        ops=_changes(ops, old_ops, new_ops),
    )


def _changes(
    pairs: Sequence[tuple[Text, Text]],
    olds: Mapping[str, OpBuildCost | KernelBuildCost],
    news: Mapping[str, OpBuildCost | KernelBuildCost],
) -> tuple[CostChange, ...]:
    return _largest_first(
        _change(str(new if isinstance(old, Unknown) else old), olds.get(str(old)), news.get(str(new)))
        for old, new in pairs
    )


def _change(
    name: str, old: OpBuildCost | KernelBuildCost | None, new: OpBuildCost | KernelBuildCost | None
) -> CostChange:
    return CostChange(
        name,
        UNKNOWN if old is None else old.duration_ns,
        UNKNOWN if new is None else new.duration_ns,
        UNKNOWN if old is None else old.code_bytes,
        UNKNOWN if new is None else new.code_bytes,
    )


def _largest_first(changes: Iterator[CostChange]) -> tuple[CostChange, ...]:
    def size(change: CostChange) -> int:
        return abs(_known(change.after_bytes) - _known(change.before_bytes))

    return tuple(sorted((change for change in changes if size(change)), key=lambda own: (-size(own), own.name)))
