"""The cost of building: the compiler's seconds by kernel and pass, the module's bytes, and both by op.

`build --timing` writes the seconds to a bundle's `timing.json`. The bytes follow from the module at any time.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Literal

from tracemap.core.codec import Count, Document, Record
from tracemap.core.errors import BundleInvalid, ModelInvalid
from tracemap.core.units import UNKNOWN, Integer, Text, Unknown, split_by_largest_remainder
from tracemap.machine.images import NO_LINE, Image, kernel_images
from tracemap.machine.module_sizes import ModuleSizes, PartKind, read_module_sizes
from tracemap.machine.read_only_data import read_data_readers
from tracemap.map.bundle import Bundle
from tracemap.map.bundle_documents import BuildTiming, KernelTiming, PassTiming
from tracemap.map.model import Kernel, OpId, TraceGraph

if TYPE_CHECKING:
    from tracemap.ir.constant_buffers import ConstantBuffer

COST_VERSION: Final = 1
"""Version of the JSON."""


class OpBuildCost(Record, frozen=True):
    """The cost of an op: its part of the kernels that it is in, and of the program around them.

    `duration_ns`: time of the compiler for kernels, inferred from the op's machine code; `code_bytes`: bytes of its
    machine code, or of executables for other devices; `data_bytes`: read-only data that this code loads;
    `bytecode_bytes`: bytecode of the VM; `constant_bytes`: constants of the module.
    """

    op: OpId
    duration_ns: Integer
    code_bytes: Count
    data_bytes: Count
    bytecode_bytes: Count
    constant_bytes: Count

    @property
    def bytes(self) -> int:
        """All its bytes of the module."""
        return self.code_bytes + self.data_bytes + self.bytecode_bytes + self.constant_bytes


class KernelOpCost(Record, frozen=True):
    """The part of an op in a kernel's cost.

    `duration_ns`: time of the compiler, inferred from the op's machine code; `bytes`: code and read-only data.
    """

    op: OpId
    duration_ns: Integer
    bytes: Count


class KernelBuildCost(Record, frozen=True):
    """The cost of a kernel. Sites that share it are compiled once.

    `duration_ns`: time of the compiler; `code_bytes`: bytes of its machine code, or of its executable for another
    device; `translation_ns`: MLIR's passes; `optimization_ns`: LLVM's passes on IR; `generation_ns`: LLVM's passes on
    machine code, and the file of an executable without other kernels.
    `code_of_no_op`: bytes of `code_bytes` on lines without an op; `data_bytes`: read-only data that its code loads.
    `ops`: the parts of its ops, in the order of the model.
    """

    kernel: str
    sites: tuple[str, ...]
    duration_ns: Integer
    translation_ns: Integer
    optimization_ns: Integer
    generation_ns: Integer
    code_bytes: Count
    code_of_no_op: Count
    data_bytes: Count
    ops: tuple[KernelOpCost, ...]

    @property
    def bytes(self) -> int:
        """All its bytes of the module."""
        return self.code_bytes + self.data_bytes


class CostPart(Record, frozen=True):
    """A part of the compiler's time or of the module's file.

    `name`: what the part is; `amount`: nanoseconds or bytes.
    """

    name: str
    amount: Count


class UnattributedBytes(Record, frozen=True):
    """Bytes of the module that belong to no op. `part`: the part of the file; `name`: the kernel or function, or "";
    `bytes`: how many; `reason`: why no op has them.
    """

    part: str
    name: str
    bytes: Count
    reason: str


class BuildCost(Document, frozen=True, kw_only=True):
    """The cost of building a bundle. Costs are those of the kernels, then of the rest; the highest comes first.

    `elapsed_ns` and `peak_bytes`: wall time and memory of the compiler, with one thread; unknown without `--timing`.
    `times`: all parts of `elapsed_ns`; `bytes`: all parts of the file; `module_bytes`: the size of the file, and the
    sum of the bytes of `ops` and `unattributed`;
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
    unattributed: tuple[UnattributedBytes, ...]


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
    books = _Books(graph, sizes)
    books.add_data()
    books.add_bytecode()
    books.add_constants(bundle)
    timing_of = {own.kernel: own for own in timing.kernels} if timing is not None else {}
    kernels = []
    for kernel in graph.kernels:
        code_bytes, of_no_op = books.add_kernel(kernel)
        own = timing_of.get(kernel.name)
        ops = books.add_time(kernel, own.duration_ns if own is not None else UNKNOWN)
        kernels.append(_kernel_cost(kernel, own, code_bytes, of_no_op, books.data_of_kernel[kernel.name], ops))
    kernels.sort(key=lambda cost: (-_known(cost.duration_ns), -cost.code_bytes, cost.kernel))
    parts = Counter[str]()
    for part in sizes.parts:
        parts[part.kind.value] += part.bytes
    return BuildCost(
        elapsed_ns=UNKNOWN if timing is None else timing.elapsed_ns,
        peak_bytes=UNKNOWN if timing is None else timing.peak_bytes,
        executables_ns=UNKNOWN if timing is None else timing.executables_ns,
        module_bytes=sizes.total_bytes,
        kernels=tuple(kernels),
        ops=books.ops(has_times=timing is not None),
        passes=() if timing is None else timing.passes,
        times=() if timing is None else _time_parts(timing),
        bytes=tuple(CostPart(name, amount) for name, amount in parts.most_common() if amount),
        unattributed=books.unattributed(parts),
    )


def _known(value: Integer) -> int:
    return 0 if isinstance(value, Unknown) else value


def _kernel_cost(
    kernel: Kernel,
    own: KernelTiming | None,
    code_bytes: int,
    of_no_op: int,
    data_bytes: int,
    ops: tuple[KernelOpCost, ...],
) -> KernelBuildCost:
    translation, optimization, generation = (
        (own.translation_ns, own.optimization_ns, own.generation_ns) if own is not None else (UNKNOWN,) * 3
    )
    duration = own.duration_ns if own is not None else UNKNOWN
    times = (duration, translation, optimization, generation)
    return KernelBuildCost(kernel.name, kernel.sites, *times, code_bytes, of_no_op, data_bytes, ops)


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
        begin, end = (bisect_left(image.rows, (at,)) for at in (function.low, function.high))
        rows = image.rows[begin:end]
        # Code ahead of the first row has no line.
        for (low, line), (high, _) in pairwise([(function.low, NO_LINE), *rows, (function.high, NO_LINE)]):
            sizes[line] += high - low
    return sizes


_TAG = re.compile(r"(tm\d*\.[0-9a-f]+\.op\.)(0|[1-9]\d{0,17})")
"""The name that `build` gives to an op, which the compiler keeps in locations (`build/tagging.py`)."""
_CODE, _DATA, _BYTECODE, _CONSTANTS = (
    kind.value for kind in (PartKind.CODE, PartKind.DATA, PartKind.BYTECODE, PartKind.CONSTANTS)
)
_OTHER: Final = PartKind.OTHER_EXECUTABLE.value
_LEAST_BUFFER: Final = 64
"""The least bytes of a segment that may hold constants of the model, whose buffers have this alignment."""
_REASONS: Final = {
    _DATA: "no instruction of a kernel loads it from a fixed address",
    _CONSTANTS: "names and tables of the host program",
    _OTHER: "several kernels share the executable, whose code tracemap does not read",
    PartKind.LIBRARY.value: "the compiler adds them to each executable",
    PartKind.DEBUG.value: "it describes all kernels",
    PartKind.TABLES.value: "headers, symbols and padding",
    PartKind.STRUCTURE.value: "names, types, locations and padding",
}
"""Why the rest of a part has no op."""


class _Books:
    """Sums the costs of ops over kernels and the program; the rest of each part of the file has a reason."""

    def __init__(self, graph: TraceGraph, sizes: ModuleSizes) -> None:
        self._graph, self._sizes = graph, sizes
        self._bytes: dict[str, Counter[OpId]] = defaultdict(Counter)
        self._ns = Counter[OpId]()
        self._rest: Counter[tuple[str, str, str]] = Counter()
        """Bytes by part, name and reason."""
        self._weights: dict[str, Mapping[OpId, int]] = {}
        self._of_kernel: dict[str, Counter[OpId]] = defaultdict(Counter)
        """Code and read-only data of ops, by kernel."""
        self._other = Counter[str]()
        for part in sizes.parts:
            self._other[part.name] += part.bytes if part.kind is PartKind.OTHER_EXECUTABLE else 0
        self.data_of_kernel = Counter[str]()
        names = (name for place in sizes.located for name in place.names)
        self._ops = _TaggedOps(graph, names)

    def _split(self, part: str, amount: int, ops: Sequence[OpId], kernel: str = "") -> None:
        """Split bytes evenly over ops."""
        for op, own in zip(ops, split_by_largest_remainder(amount, [1] * len(ops)), strict=True):
            self._bytes[part][op] += own
            if kernel:
                self._of_kernel[kernel][op] += own

    def add_kernel(self, kernel: Kernel) -> tuple[int, int]:
        """Add a kernel's code; returns its bytes, and those on lines without an op."""
        by_op, of_no_op = _code_by_op(kernel, self._sizes.images)
        self._bytes[_CODE].update(by_op)
        self._of_kernel[kernel.name].update(by_op)
        if of_no_op:
            self._rest[_CODE, kernel.name, "on lines without an op"] += of_no_op
        if other := self._other[kernel.name]:
            ops = tuple(dict.fromkeys(op for op in self._ops_of(kernel)))
            if ops:
                self._split(_OTHER, other, ops, kernel.name)
            else:
                self._rest[_OTHER, kernel.name, "no op is in the kernel"] += other
        self._weights[kernel.name] = by_op
        code = sum(by_op.values()) + of_no_op + other
        return code, of_no_op

    def _ops_of(self, kernel: Kernel) -> Iterator[OpId]:
        return (member.op for site in kernel.sites for member in self._graph.site_by_id[site].members)

    def add_time(self, kernel: Kernel, duration_ns: Integer) -> tuple[KernelOpCost, ...]:
        """Add a kernel's time. It is split by the bytes of code, or evenly over its ops if none has code.

        Returns:
            The parts of the ops.
        """
        weights = dict(self._weights[kernel.name]) or dict.fromkeys(self._ops_of(kernel), 1)
        times: dict[OpId, Integer] = dict.fromkeys(weights, UNKNOWN)
        if isinstance(duration_ns, int) and weights:
            parts = split_by_largest_remainder(duration_ns, list(weights.values()))
            times.update(zip(weights, parts, strict=True))
            self._ns.update(dict(zip(weights, parts, strict=True)))
        sizes, none = self._of_kernel[kernel.name], 0 if isinstance(duration_ns, int) else UNKNOWN
        ops = sorted({**times, **sizes}, key=lambda op: op.number)
        return tuple(KernelOpCost(op, times.get(op, none), sizes[op]) for op in ops)

    def add_data(self) -> None:
        """Add the data that kernels load; bytes that several lines load are split evenly over them."""
        lines_of = {kernel.name: {step.line: step.ops for step in kernel.steps} for kernel in self._graph.kernels}
        for image in self._sizes.images:
            for readers, amount in read_data_readers(image).items():
                for reader, part in zip(readers, split_by_largest_remainder(amount, [1] * len(readers)), strict=True):
                    if reader.function not in lines_of:
                        continue
                    self.data_of_kernel[reader.function] += part
                    ops = lines_of[reader.function].get(reader.line, ())
                    if ops:
                        self._split(_DATA, part, ops, reader.function)
                    elif part:
                        self._rest[_DATA, reader.function, "loaded on lines without an op"] += part

    def add_bytecode(self) -> None:
        """Add the bytecode of functions with a source map."""
        located = Counter[str]()
        for place in self._sizes.located:
            located[place.function] += place.bytes
            if ops := self._ops.of(place.names):
                self._split(_BYTECODE, place.bytes, ops)
            else:
                self._rest[_BYTECODE, place.function, "its locations name no op"] += place.bytes
        for part in self._sizes.parts:
            if part.kind is PartKind.BYTECODE and (rest := part.bytes - located[part.name]):
                self._rest[_BYTECODE, part.name, "IREE writes no source map for the function"] += rest

    def add_constants(self, bundle: Bundle) -> None:
        """Add the model's constants; each buffer of them is a segment of the same size.

        A constant belongs to the ops of the model with the same data, else to those of its location.
        """
        segments = [segment for segment in self._sizes.constants if len(segment) >= _LEAST_BUFFER]
        if not segments:
            return
        try:
            buffers = _constant_buffers(bundle)
        except (ImportError, BundleInvalid, ModelInvalid) as error:
            reason = f"the constants of the program cannot be read: {error}"
            self._rest[_CONSTANTS, "", reason] += sum(map(len, segments))
            return
        ops_of_data = _ops_by_data(bundle) if buffers else {}
        for size in sorted({buffer.bytes for buffer in buffers}):
            own = [buffer for buffer in buffers if buffer.bytes == size]
            same = [segment for segment in segments if len(segment) == size]
            if len(own) != len(same):
                reason = f"{len(same)} segments have the {size:,} bytes of {len(own)} buffers"
                self._rest[_CONSTANTS, "", reason] += size * len(same)
                continue
            for buffer, segment in zip(own, same, strict=True):
                self._add_buffer(buffer, segment, ops_of_data)

    def _add_buffer(self, buffer: ConstantBuffer, segment: bytes, ops_of_data: Mapping[str, Sequence[OpId]]) -> None:
        begin = 0
        for amount, names in buffer.parts:
            data = hashlib.sha256(segment[begin : begin + amount]).hexdigest()
            if ops := ops_of_data.get(data, ()) or self._ops.of(names):
                self._split(_CONSTANTS, amount, ops)
            else:
                reason = "padding, and constants whose locations the compiler dropped or merged"
                self._rest[_CONSTANTS, "", reason] += amount
            begin += amount

    def ops(self, *, has_times: bool) -> tuple[OpBuildCost, ...]:
        """The costs of the ops that have any, slowest first."""
        index_of = {op.id: index for index, op in enumerate(self._graph.ops)}
        code, others, data, bytecode, constants = (
            self._bytes[part] for part in (_CODE, _OTHER, _DATA, _BYTECODE, _CONSTANTS)
        )
        costs = [
            OpBuildCost(
                op,
                self._ns[op] if has_times else UNKNOWN,
                code[op] + others[op],
                data[op],
                bytecode[op],
                constants[op],
            )
            for op in dict.fromkeys([*self._ns, *code, *others, *data, *bytecode, *constants])
        ]
        return tuple(sorted(costs, key=lambda own: (-_known(own.duration_ns), -own.bytes, index_of[own.op])))

    def unattributed(self, parts: Mapping[str, int]) -> tuple[UnattributedBytes, ...]:
        """The bytes of no op, the most first; `parts`: bytes of each part of the file."""
        rest = Counter(self._rest)
        for part, amount in parts.items():
            known = self._bytes[part].total() + sum(own for (name, _, _), own in self._rest.items() if name == part)
            rest[part, "", _REASONS.get(part, "")] += amount - known
        return tuple(
            UnattributedBytes(part, name, amount, reason)
            for (part, name, reason), amount in sorted(rest.items(), key=lambda own: (-own[1], own[0]))
            if amount
        )


class _TaggedOps:
    """The ops that names in locations stand for."""

    def __init__(self, graph: TraceGraph, names: Iterable[str]) -> None:
        self._graph = graph
        prefixes = Counter(found[1] for name in names if (found := _TAG.fullmatch(name)))
        # A model may have names with the tags of another build; those of this one are in each location of an op.
        self._prefix = min(prefixes, key=lambda prefix: (-prefixes[prefix], prefix), default="")

    def of(self, names: Sequence[str]) -> tuple[OpId, ...]:
        """The ops, without repetition."""
        found = (_TAG.fullmatch(name) for name in names)
        ids = (OpId.of(int(tag[2])) for tag in found if tag and tag[1] == (self._prefix or tag[1]))
        return tuple(dict.fromkeys(op for op in ids if op in self._graph.op_by_id))


_STORED = re.compile(r'(?:([\w.$-]+|"[^"\n]*"): "0x[^"\n]*)?\bliterals/([0-9a-f]{64})\.bin')
_RESOURCE = re.compile(r'dense_resource<([\w.$-]+|"[^"\n]*")>')


def _ops_by_data(bundle: Bundle) -> Mapping[str, tuple[OpId, ...]]:
    """The ops of the model with each long literal, by its SHA-256: on its line, or on lines that name the resource."""
    graph = bundle.graph
    if not graph.sources:
        return {}
    source = graph.sources[0]
    ops_of_line = defaultdict[int, list[OpId]](list)
    for op in graph.ops:
        if op.file == source.name and not isinstance(op.line, Unknown):
            ops_of_line[op.line].append(op.id)
    data_of_resource, lines_of_resource, lines_of_data = {}, defaultdict[str, list[int]](list), defaultdict(list)
    for number, line in enumerate(bundle.source_text(source).split("\n"), start=1):
        for resource, data in _STORED.findall(line):
            if resource:
                data_of_resource[resource] = data
            else:
                lines_of_data[data].append(number)
        for resource in _RESOURCE.findall(line):
            lines_of_resource[resource].append(number)
    for resource, data in data_of_resource.items():
        lines_of_data[data] += lines_of_resource[resource]
    return {
        data: tuple(dict.fromkeys(op for line in lines for op in ops_of_line[line]))
        for data, lines in lines_of_data.items()
    }


def _constant_buffers(bundle: Bundle) -> Sequence[ConstantBuffer]:
    """The buffers of constants.

    Raises:
        BundleInvalid: the bundle lacks its kernels ahead of code generation.
        ImportError: the compiler is not installed.
        ModelInvalid: they do not parse.
    """
    from tracemap.ir.constant_buffers import read_constant_buffers
    from tracemap.ir.parsing import MlirParser

    return read_constant_buffers(MlirParser(), bundle.configured())


# ---- comparison


class CostChange(Record, frozen=True):
    """The cost of a kernel or an op of two bundles; unknown where it is missing.

    `name`: the kernel or the op before, or after if it is new; `before_ns`: the compiler's time before; `after_ns`: the
    same after; `before_bytes`: its bytes of the module before; `after_bytes`: the same after.
    """

    name: str
    before_ns: Integer
    after_ns: Integer
    before_bytes: Integer
    after_bytes: Integer


class BuildCostChanges(Record, frozen=True):
    """The costs of building two bundles, and their kernels and ops with other bytes, the largest change first.

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
        UNKNOWN if old is None else old.bytes,
        UNKNOWN if new is None else new.bytes,
    )


def _largest_first(changes: Iterator[CostChange]) -> tuple[CostChange, ...]:
    def size(change: CostChange) -> int:
        return abs(_known(change.after_bytes) - _known(change.before_bytes))

    return tuple(sorted((change for change in changes if size(change)), key=lambda own: (-size(own), own.name)))
