"""Advice by rules: what to change next, with figures, a command that proves or does it, and the expected gain.

A rule needs evidence: the run's times, the IR and machine code of kernels, or the model's data flow. Names of ops are
no evidence. A rule applies only if its gain is above the run's noise, and the lower bound above 1 % of the time. Of
several rules that explain the same time, only the most specific one counts.
"""

from __future__ import annotations

import math
import re
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePath
from typing import Final

from tracemap.attribution.model import (
    Advice,
    AdviceRule,
    Attribution,
    Overhead,
    OverheadPlace,
    SiteResult,
    UnattributedReason,
)
from tracemap.attribution.what_if import REMOVED, Change, program_ns, what_if
from tracemap.core.diagnostics import NOISY, PAUSED, TRANSFERS_UNTIMED, has_slug
from tracemap.core.errors import ModuleInvalid, UsageInvalid
from tracemap.core.units import Unknown, format_bytes, format_ns, format_share, plural
from tracemap.machine.code_figures import LoopFigures, inner_loops
from tracemap.machine.images import Image, kernel_images
from tracemap.map.model import Kernel, OpId, Outcome, Site, TraceGraph
from tracemap.map.query import pass_of, python_frame, scope_of
from tracemap.runs.model import DeviceTime, Peaks

# ---- evidence


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
    """

    graph: TraceGraph
    attribution: Attribution
    bundle: Path = Path()
    runs: Sequence[Path] = ()
    images: Callable[[], Sequence[Image]] = tuple
    kernel_text: Callable[[Kernel], str] = lambda _: ""
    data_flow: Callable[[], Sequence[tuple[OpId, OpId]]] = tuple
    repeated: Callable[[], Mapping[OpId, OpId]] = dict


@dataclass(frozen=True)
class _Dispatch:
    """A dispatch site that ran: times and calls per invocation, and its kernel.

    `wall_ns`: its part of the invocation; `cpu_ns`: the time of all workers.
    """

    site: Site
    result: SiteResult
    wall_ns: float
    cpu_ns: float
    calls: float
    kernel: _KernelFacts

    @property
    def quiet_ns(self) -> float:
        """Its CPU time in the fastest tenth of its calls, which other programs do not make slower."""
        cpu = self.result.metrics.get("cpu_ns")
        fastest = cpu.per_call.p10 * self.calls if cpu and cpu.per_call else self.cpu_ns
        return min(self.cpu_ns, fastest) or self.cpu_ns

    @property
    def ops(self) -> tuple[OpId, ...]:
        """Its ops, the root first."""
        members = sorted(self.site.members, key=lambda member: not member.root)
        return tuple(member.op for member in members)

    @cached_property
    def operations(self) -> int:
        """Arithmetic operations of a call; 0 if unknown."""
        counts = [member.operations for member in self.site.members]
        return sum(count for count in counts if isinstance(count, int))

    @cached_property
    def bytes(self) -> int:
        """Memory traffic of a call that its ops need; 0 if unknown."""
        counts = [member.bytes for member in self.site.members]
        return (
            0 if any(isinstance(count, Unknown) for count in counts) else sum(c for c in counts if isinstance(c, int))
        )


@dataclass(frozen=True)
class _Finding:
    """A cause of time: the gain without it, and its bounds, per invocation."""

    rule: AdviceRule
    gain_ns: float
    low_ns: float
    high_ns: float
    ops: tuple[OpId, ...]
    dispatch: _Dispatch | None = None
    detail: str = ""
    """The cause in words, for the text."""
    bytes: float = 0.0
    """Memory traffic per invocation that is not needed."""


@dataclass(frozen=True)
class _Program:
    """The figures of a run, per invocation."""

    evidence: Evidence

    @property
    def graph(self) -> TraceGraph:
        return self.evidence.graph

    @property
    def attribution(self) -> Attribution:
        return self.evidence.attribution

    @cached_property
    def iterations(self) -> int:
        """Measured invocations; 0 if their time is unknown, or if they are of several functions."""
        run = self.attribution.run
        known = isinstance(run.elapsed_ns, int) and isinstance(run.iterations, int)
        return run.iterations if known and len(self.attribution.functions) <= 1 else 0  # type: ignore[return-value]

    @cached_property
    def elapsed_ns(self) -> float:
        """Time of an invocation; see `invocation_ns`."""
        return invocation_ns(self.attribution)

    @cached_property
    def noise_ns(self) -> float:
        """The noise of the median invocation, by its interval."""
        run = self.attribution.run.invocation
        median, low, high = run.median_ns, run.low_ns, run.high_ns
        known = isinstance(median, int) and isinstance(low, int) and isinstance(high, int) and median
        noise = (high - low) / 2 / median if known else _UNKNOWN_NOISE  # type: ignore[operator]
        return min(_MOST_NOISE, noise) * self.elapsed_ns

    @cached_property
    def running(self) -> float:
        """The part of the time in which threads that wanted a CPU had one; calls take longer by what they wait."""
        noise = self.attribution.run.noise
        if not (isinstance(noise.running_ns, int) and isinstance(noise.waiting_ns, int) and noise.running_ns):
            return 1.0
        return noise.running_ns / (noise.running_ns + noise.waiting_ns)

    @cached_property
    def workers(self) -> int:
        """Number of workers; 1 if unknown."""
        workers = self.attribution.run.workers
        return workers if isinstance(workers, int) and workers else 1

    @cached_property
    def peaks(self) -> Peaks | None:
        """The speeds of one core; None if they were not measured."""
        peaks = self.attribution.run.peaks
        return peaks if peaks.source == "measured" else None

    @cached_property
    def kernels_ns(self) -> float:
        """Time in which a kernel ran."""
        return sum(dispatch.wall_ns for dispatch in self.dispatches)

    @cached_property
    def overhead_ns(self) -> float:
        """Time of queue and host; 0 if the device did nothing."""
        return self._measured_overhead_ns * self.overhead_scale

    @cached_property
    def _measured_overhead_ns(self) -> float:
        parts = self.attribution.run.elapsed
        if not self.iterations or not (parts.kernels_ns or parts.transfers_ns or parts.queue_ns):
            return 0.0
        known = [part for part in (parts.queue_ns, parts.host_ns) if isinstance(part, int)]
        rows = [row.total_ns for row in self.attribution.overhead if row.place not in _NO_OVERHEAD]
        return sum(rows or known) / self.iterations

    @cached_property
    def overhead_scale(self) -> float:
        """Factor for measured overhead, so that it adds up to the invocation with the kernels."""
        left_ns = max(0.0, self.elapsed_ns - self.kernels_ns)
        return min(1.0, left_ns / self._measured_overhead_ns) if self._measured_overhead_ns else 1.0

    def overhead_of(self, row: Overhead) -> float:
        """Time of a place between kernels."""
        return row.total_ns / self.iterations * self.overhead_scale

    @cached_property
    def calls(self) -> float:
        """Number of kernel calls."""
        return sum(dispatch.calls for dispatch in self.dispatches)

    @cached_property
    def dispatches(self) -> tuple[_Dispatch, ...]:
        """The dispatches that ran, the most expensive first."""
        typical = [
            (result, wall_ns, wall_ns * cpu_part)
            for result in self.attribution.sites
            for wall_ns, cpu_part in [self._typical_times(result)]
            if wall_ns
        ]
        total_ns = sum(wall_ns for _, wall_ns, _ in typical)
        measured = self.attribution.run.elapsed.kernels_ns
        kernels_ns = measured / self.iterations if self.iterations and isinstance(measured, int) else total_ns
        # Dispatches may overlap, so their times may add up to more than the time of kernels.
        scale = min(1.0, kernels_ns / total_ns, self.elapsed_ns / total_ns) if total_ns else 1.0
        facts: dict[str, _KernelFacts] = {}
        dispatches = []
        for result, wall_ns, cpu_ns in typical:
            site = self.graph.site_by_id[result.site]
            if site.kernel not in facts:
                facts[site.kernel] = _KernelFacts(self.evidence, self.graph.kernel_by_name[site.kernel])
            calls = result.calls / self.iterations if isinstance(result.calls, int) else 0.0
            dispatches.append(_Dispatch(site, result, wall_ns * scale, cpu_ns, calls, facts[site.kernel]))
        return tuple(sorted(dispatches, key=lambda dispatch: -dispatch.wall_ns))

    def _typical_times(self, result: SiteResult) -> tuple[float, float]:
        """Wall time of a dispatch in a typical invocation, 0 if unknown; the CPU time as a multiple of it."""
        wall, cpu = result.metrics.get("duration_ns"), result.metrics.get("cpu_ns")
        if not (wall and wall.total and isinstance(result.calls, int) and result.calls and self.iterations):
            return 0.0, 0.0
        mean_ns = wall.total / self.iterations
        median_ns = wall.per_call.median * result.calls / self.iterations if wall.per_call else mean_ns
        return min(mean_ns, median_ns), cpu.total / wall.total if cpu and cpu.total else 1.0

    @property
    def hot(self) -> Iterator[_Dispatch]:
        """The dispatches that take enough time for advice of their own, at most `_MOST_DISPATCHES`."""
        few = self.dispatches[:_MOST_DISPATCHES]
        return (dispatch for dispatch in few if dispatch.wall_ns > _LEAST_PART * _LEAST_SHARE * self.elapsed_ns)

    def dispatch_of(self, site: str) -> _Dispatch | None:
        """The dispatch of a site, if it ran."""
        return self._by_site.get(site)

    @cached_property
    def _by_site(self) -> Mapping[str, _Dispatch]:
        return {dispatch.site.id: dispatch for dispatch in self.dispatches}

    def memory_ns(self, traffic: float, footprint: float) -> float:
        """Time of one core for memory traffic, if the data of a call has the size `footprint`; 0 if unknown."""
        if self.peaks is None:
            return 0.0
        rate = self.peaks.bytes_per_second
        for cache in self.peaks.caches:
            if footprint > cache.bytes:
                rate = cache.bytes_per_second
        return traffic / rate * 1e9

    def compute_ns(self, operations: float) -> float:
        """Time of one core for arithmetic operations at its peak; 0 if unknown."""
        return operations / self.peaks.operations_per_second * 1e9 if self.peaks else 0.0

    def roofline_ns(self, dispatch: _Dispatch) -> float:
        """CPU time of a dispatch at the roofline, in all its calls; 0 if unknown."""
        memory = self.memory_ns(dispatch.bytes, dispatch.bytes)
        return max(self.compute_ns(dispatch.operations), memory) * dispatch.calls

    def place(self, op: OpId) -> str:
        """The source line of an op: `rnn.py:14`."""
        known = self.graph.op_by_id[op]
        if frame := python_frame(self.graph, known):
            return f"{PurePath(frame.file).name}:{frame.line}"
        file = known.file if isinstance(known.file, str) else "model"
        return (
            f"{PurePath(file).name}:{known.line}" if isinstance(known.line, int) else f"{op} of {PurePath(file).name}"
        )

    def share(self, nanoseconds: float) -> str:
        """A time as a share of the invocation."""
        return format_share(round(nanoseconds), max(1, round(self.elapsed_ns)))

    def command(self, *words: object) -> str:
        """A command of tracemap, for a shell."""
        return shlex.join(("tracemap", *map(str, words)))

    def of_runs(self, name: str, *options: object) -> str:
        """A command on the runs."""
        runs = self.evidence.runs
        names = (*runs, "--map", self.bundle) if runs else (self.bundle,)
        return self.command(name, *names, *options)

    @property
    def bundle(self) -> str:
        return str(self.evidence.bundle)


_NO_OVERHEAD: Final = (OverheadPlace.OUTLIERS, OverheadPlace.PROFILER, OverheadPlace.UNEXPLAINED)
"""Places whose time is none of the program's own overhead."""


def invocation_ns(attribution: Attribution) -> float:
    """Mean time of an invocation without outliers, to which gains refer; 0 if it is unknown."""
    try:
        return float(program_ns(attribution))
    except UsageInvalid:
        run = attribution.run
    elapsed_ns, iterations, median_ns = run.elapsed_ns, run.iterations, run.invocation.median_ns
    known = isinstance(elapsed_ns, int) and isinstance(iterations, int) and iterations
    mean_ns = elapsed_ns / iterations if known and len(attribution.functions) <= 1 else 0.0  # type: ignore[operator]
    return min(mean_ns, float(median_ns)) if isinstance(median_ns, int) and median_ns else mean_ns


_LEAST_SHARE: Final = 0.01
"""Least share of the time that advice gains."""
_LEAST_PART: Final = 0.2
"""Least part of that share for a single dispatch, since several may have the same cause."""
_UNKNOWN_NOISE: Final = 0.05
"""Assumed noise of a run with too few invocations for an interval."""
_MOST_NOISE: Final = 0.05
"""Most noise to compare with, since the figures of one run are relative to one another."""
_MOST_DISPATCHES: Final = 64
"""Most dispatches that rules examine, the most expensive first."""


# ---- kernels
#
# Facts on kernels from their IR before code generation, one operation a line, and from the loops of their machine code.


_OPERATION: Final = re.compile(r"\s*(?:%[\w:]+(?:, %[\w:]+)* = )?([a-z_]\w*\.[\w.$]+)")
_MAP: Final = re.compile(r"affine_map<\(([^)]*)\)(?:\[[^\]]*\])? -> \(([^>]*)\)>")
_ITERATOR: Final = re.compile(r'"(parallel|reduction)"')
_ARRAY: Final = re.compile(r"(?:tensor|memref)<((?:\d+x)*)[a-z]+(\d+)")
_EXTRACT: Final = re.compile(r"tensor\.extract %\w+\[(.*)\]")
_STRIDES: Final = re.compile(r"(?:memref\.subview|tensor\.extract_slice) %\w+ ?(?:\[[^\]]*\] ?){2}\[([^\]]*)\]")
_PRODUCTS: Final = ("matmul", "matvec", "vecmat", "dot", "conv_", "mmt4d", "contract", "attention", "vecdot")
"""Parts of the names of `linalg` operations that multiply and add."""
_MOVES: Final = frozenset(
    """
    linalg.transpose linalg.copy linalg.pack linalg.unpack linalg.broadcast tensor.pad tensor.insert_slice tensor.concat
    """.split()
)
"""Operations that only move data."""


@dataclass(frozen=True, slots=True)
class _Generic:
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
        return self._gathers_elements

    @property
    def adds_columns(self) -> bool:
        """Whether the last dimension of an input is parallel, and an earlier one is reduced."""
        reductions = {f"d{index}" for index, kind in enumerate(self.iterators) if kind == "reduction"}
        inputs = [results for results in self.maps[: self.inputs] if results]
        return any(results[-1] not in reductions and not reductions.isdisjoint(results) for results in inputs)

    @property
    def _gathers_elements(self) -> bool:
        """Whether it reads single elements at computed indices."""
        indices = {match[1] for line in self.body if (match := re.match(r"(%\w+) = linalg\.index", line))}
        extracts = (match[1].split(", ") for line in self.body if (match := _EXTRACT.search(line)))
        return any(operands[-1] not in indices for operands in extracts)


def _body(lines: Iterator[str]) -> list[str]:
    """The lines of a region, up to the end of its operation."""
    body, depth = [], 1
    for line in lines:
        depth += line.count("{") - line.count("}")
        if depth <= 0:
            break
        body.append(line)
    return body


@dataclass(frozen=True)
class _KernelFacts:
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
        return any(generic.strided_input for generic in self.generics)

    @cached_property
    def operand_bytes(self) -> tuple[int, ...]:
        """Sizes of the arrays that it loads and stores, of those with static sizes."""
        accesses = [line for line in self._lines if "load_from_buffer" in line or "store_to_buffer" in line]
        # Copies have no tensors.
        accesses = accesses or [line for line in self._lines if "interface.binding.subspan" in line]
        arrays = [found[-1] for line in accesses if (found := _ARRAY.findall(line))]
        return tuple(
            math.prod(map(int, filter(None, extents.split("x")))) * max(8, int(bits)) // 8 for extents, bits in arrays
        )

    @cached_property
    def loops(self) -> tuple[LoopFigures, ...]:
        """The innermost loops of its machine code; empty if it cannot be read."""
        try:
            images = kernel_images(self.evidence.images(), self.kernel.name)
            return inner_loops(*images[0]) if images else ()
        except ModuleInvalid:
            return ()


# ---- rules on kernels
#
# The gain of a dispatch is its time minus the time that it would take, in the same part of the invocation. The bounds
# allow for what a clean kernel takes: rarely less than its roofline, often up to twice as long.


def _findings(program: _Program) -> Iterator[_Finding]:
    """The causes of the time in kernels."""
    yield from _repeated(program)
    yield from _unfused(program)
    yield from _copies(program)
    for dispatch in program.hot:
        yield from _moved(program, dispatch)
        yield from _idle(program, dispatch)
        yield from _inside(program, dispatch)


def _repeated(program: _Program) -> Iterator[_Finding]:
    """Dispatches that compute again what an earlier one has computed."""
    alike: dict[tuple[str, object], list[_Dispatch]] = defaultdict(list)
    for dispatch in program.hot:
        if (root := dispatch.site.root) and dispatch.kernel.computes:
            alike[program.graph.op_by_id[root.op].name, root.operations].append(dispatch)
    candidates = [dispatch for group in alike.values() if len(group) > 1 for dispatch in group]
    repeated = program.evidence.repeated() if candidates else {}
    for dispatch in candidates:
        ops = [op for op in dispatch.ops if op in repeated]
        root = dispatch.site.root
        if not ops or root is None or root.op not in repeated:
            continue
        first = repeated[root.op]
        others = [program.dispatch_of(site) for site in program.graph.sites_of_op.get(first, ())]
        if not any(other is not None and other.site.id != dispatch.site.id for other in others):
            continue
        part = _part_of(dispatch, ops)
        wall_ns = part * dispatch.wall_ns
        op = program.graph.op_by_id[root.op]
        passes = {pass_of(scope_of(program.graph, op, path)) for path in root.paths}
        is_backward = bool(passes & {"recompute", "backward"})
        rule = AdviceRule.RECOMPUTED if is_backward else AdviceRule.REPEATED_WORK
        place, earlier = program.place(root.op), program.place(first)
        detail = f"{place} runs again" if place == earlier else f"{place} computes what {earlier} has computed"
        yield _Finding(rule, 0.9 * wall_ns, 0.6 * wall_ns, 1.1 * wall_ns, tuple(ops), dispatch, detail)


def _part_of(dispatch: _Dispatch, ops: Sequence[OpId]) -> float:
    """The part of a dispatch's time that belongs to some of its ops."""
    shares = {share.op: share.attributed.get("cpu_ns", 0) for share in dispatch.result.shares}
    total = sum(shares.values())
    return sum(shares.get(op, 0) for op in ops) / total if total else 1.0


def _unfused(program: _Program) -> Iterator[_Finding]:
    """Elementwise dispatches that read what another dispatch has just written, or write what the next one reads."""
    candidates = [dispatch for dispatch in program.hot if dispatch.kernel.is_elementwise and dispatch.bytes]
    # The data flow is read from the model, which takes longer than all other evidence.
    most_ns = sum(dispatch.wall_ns for dispatch in candidates)
    if most_ns < max(_LEAST_SHARE * program.elapsed_ns, program.noise_ns):
        return
    users: dict[OpId, list[OpId]] = defaultdict(list)
    for maker, user in program.evidence.data_flow():
        users[maker].append(user)
    makers: dict[OpId, list[OpId]] = defaultdict(list)
    for maker, ops in users.items():
        for user in ops:
            makers[user].append(maker)
    claimed: set[frozenset[str]] = set()
    for dispatch in candidates:
        sizes = dispatch.kernel.operand_bytes
        # The array between both is written and read again. It is as large as the result of the one that writes it.
        arrays = [(other, other.kernel.operand_bytes[-1:]) for other in _neighbours(program, dispatch, makers)]
        pairs = [(other, written[0]) for other, written in arrays if written and written[0] in sizes[:-1]]
        consumers = _neighbours(program, dispatch, users)
        pairs += [(other, sizes[-1]) for other in consumers if sizes and sizes[-1] in other.kernel.operand_bytes[:-1]]
        pairs = [pair for pair in pairs if frozenset({pair[0].site.id, dispatch.site.id}) not in claimed]
        if not pairs:
            continue
        other, between = max(pairs, key=lambda pair: pair[1])
        claimed.add(frozenset({other.site.id, dispatch.site.id}))
        moved = 2 * between
        part = min(1.0, moved / sum(sizes))
        # Functions such as tanh run at about a third of the peak.
        compute = min(1.0, _FUNCTION * program.compute_ns(dispatch.operations) * dispatch.calls / dispatch.cpu_ns)
        gain_ns = dispatch.wall_ns * part * (1 - compute)
        detail = f"{program.place(dispatch.ops[0])} runs apart from {program.place(other.ops[0])}"
        # Both dispatches get faster: the one that writes the array may wait for memory, too.
        low_ns, high_ns, traffic = 0.4 * gain_ns, 2.2 * part * dispatch.wall_ns, moved * dispatch.calls
        yield _Finding(AdviceRule.MISSED_FUSION, gain_ns, low_ns, high_ns, dispatch.ops, dispatch, detail, traffic)


_FUNCTION: Final = 3
"""Time of functions such as tanh over that of as many operations at the peak."""


def _neighbours(program: _Program, dispatch: _Dispatch, links: Mapping[OpId, Sequence[OpId]]) -> list[_Dispatch]:
    """Dispatches that data flow links to a dispatch, through ops that do no work; only those that it can fuse with."""
    own = {member.op for member in dispatch.site.members}
    waiting, seen = list(own), set(own)
    result: dict[str, _Dispatch] = {}
    while waiting:
        for other in links.get(waiting.pop(), ()):
            if other in seen:
                continue
            seen.add(other)
            if sites := program.graph.sites_of_op.get(other):
                for site in sites:
                    neighbour = program.dispatch_of(site)
                    if neighbour and neighbour.site.id != dispatch.site.id and _can_fuse(neighbour):
                        result.setdefault(site, neighbour)
            elif program.graph.op_by_id[other].outcome not in (Outcome.TRANSFER, Outcome.HOST):
                waiting.append(other)
    return sorted(result.values(), key=lambda other: -other.wall_ns)


def _can_fuse(dispatch: _Dispatch) -> bool:
    """Whether a kernel is one that the compiler can fuse elementwise ops into."""
    return dispatch.kernel.is_elementwise or dispatch.kernel.is_product or bool(dispatch.kernel.generics)


def _moved(program: _Program, dispatch: _Dispatch) -> Iterator[_Finding]:
    """Dispatches that only move data."""
    if not dispatch.kernel.only_moves:
        return
    wall_ns = dispatch.wall_ns
    moved = (dispatch.bytes or sum(dispatch.kernel.operand_bytes)) * dispatch.calls
    detail = f"{program.place(dispatch.ops[0])} only moves data" if dispatch.ops else f"{dispatch.site.kernel}"
    gain_ns, low_ns, high_ns = 0.85 * wall_ns, 0.4 * wall_ns, 1.6 * wall_ns
    yield _Finding(AdviceRule.LAYOUT_COPY, gain_ns, low_ns, high_ns, dispatch.ops, dispatch, detail, moved)


_IMBALANCED: Final = 135
"""Least imbalance in percent; 100: all workers always worked."""
_EVEN: Final = 4
"""Workgroups per worker from which on their number is no cause of imbalance."""
_BALANCED: Final = 0.85
"""Expected part of the idle time that more workgroups save."""
_LAUNCH_NS: Final = 15_000
"""Time until another worker has begun. A shorter call does not gain from more workgroups."""


def _idle(program: _Program, dispatch: _Dispatch) -> Iterator[_Finding]:
    """Dispatches in which workers are idle, because it has too few workgroups or uneven ones."""
    imbalance, tiles = dispatch.result.imbalance_percent, dispatch.result.tiles
    if isinstance(imbalance, Unknown) or isinstance(tiles, Unknown) or imbalance < _IMBALANCED:
        return
    if dispatch.wall_ns / dispatch.calls < 2 * _LAUNCH_NS:
        return
    per_call = tiles / program.iterations / dispatch.calls
    if per_call > _EVEN * program.workers:
        return  # other programs made a worker wait
    gain_ns = dispatch.wall_ns * (1 - 100 / imbalance)
    groups = plural(round(per_call), "workgroup")
    detail = f"{program.place(dispatch.ops[0]) if dispatch.ops else dispatch.site.kernel} has {groups}"
    low_ns = 0.6 * gain_ns - _LAUNCH_NS * dispatch.calls
    high_ns = min(1.6 * gain_ns, 0.95 * dispatch.wall_ns)
    yield _Finding(AdviceRule.IMBALANCE, _BALANCED * gain_ns, low_ns, high_ns, dispatch.ops, dispatch, detail)


_SLOW: Final = 2.5
"""Least multiple of the roofline time for advice on a kernel's code."""
_SCALAR: Final = 6.0
"""Expected gain of vector code."""
_STACK_PART: Final = 0.12
"""Least part of stack accesses in a loop that spills."""
_MOST_ROWS: Final = 8
"""Most uses of each weight in a call, for weights that are read and hardly used."""
_WEIGHTS_PART: Final = 0.8
_LEAST_WEIGHTS: Final = 1 << 20


def _inside(program: _Program, dispatch: _Dispatch) -> Iterator[_Finding]:
    """Causes in the code of a kernel: the first that applies."""
    roofline_ns, kernel = program.roofline_ns(dispatch), dispatch.kernel
    if not roofline_ns or not dispatch.ops or not kernel.is_known or kernel.only_moves:
        return
    cpu_ns, wall_ns = dispatch.cpu_ns, dispatch.wall_ns
    compute_ns = program.compute_ns(dispatch.operations) * dispatch.calls
    is_compute_bound = compute_ns >= roofline_ns
    place, ratio = program.place(dispatch.ops[0]), dispatch.quiet_ns / roofline_ns
    is_worth = ratio > _SPILL_RATIO and wall_ns > _LEAST_SHARE * program.elapsed_ns
    loops = kernel.loops if is_worth else ()
    vector = [loop for loop in loops if loop.vector]

    def finding(rule: AdviceRule, after: tuple[float, float, float], detail: str, traffic: float = 0.0) -> _Finding:
        """`after`: least, expected and most CPU time after the change."""
        low_ns, gain_ns, high_ns = (wall_ns * max(0.0, 1 - time / cpu_ns) for time in reversed(after))
        return _Finding(rule, gain_ns, low_ns, high_ns, dispatch.ops, dispatch, detail, traffic)

    spilling = max((loop.stack / loop.instructions for loop in vector), default=0.0)
    if spilling > _STACK_PART:
        expected_ns = (max(1.2 * roofline_ns, cpu_ns * (1 - 2 * spilling)) + cpu_ns * (1 - spilling)) / 2
        after = 0.7 * roofline_ns, min(expected_ns, cpu_ns), cpu_ns * (1 - 0.3 * spilling)
        detail = f"{place}: {round(100 * spilling)} % of the instructions in its loop access the stack"
        yield finding(AdviceRule.SPILLING, after, detail)
    elif ratio > _SLOW and any(loop.scalar for loop in loops) and not vector and not kernel.only_adds:
        after = min(roofline_ns, cpu_ns / 16), max(1.5 * roofline_ns, cpu_ns / _SCALAR), cpu_ns / 2
        yield finding(AdviceRule.NOT_VECTORIZED, after, f"{place} computes one element at a time")
    elif ratio > _SLOW and kernel.is_strided:
        after = 0.6 * roofline_ns, 1.4 * roofline_ns, min(_SLOW * roofline_ns, 0.8 * cpu_ns)
        rate = dispatch.bytes * dispatch.calls * program.workers / max(1.0, cpu_ns)
        detail = f"{place} reads with a stride, at {rate:.1f} GB/s"
        yield finding(AdviceRule.STRIDED_READS, after, detail, dispatch.bytes * dispatch.calls)
    elif ratio > _SLOW and kernel.adds_columns:
        after = roofline_ns, 0.5 * cpu_ns, 0.9 * cpu_ns
        rate = dispatch.bytes * dispatch.calls * program.workers / max(1.0, cpu_ns)
        detail = f"{place} adds up columns, at {rate:.1f} GB/s"
        yield finding(AdviceRule.STRIDED_READS, after, detail, dispatch.bytes * dispatch.calls)
    elif weights := _cold_weights(dispatch, is_compute_bound=is_compute_bound):
        rate = weights * dispatch.calls * program.workers / max(1.0, cpu_ns)
        detail = f"{place} reads {format_bytes(weights)} of weights at {rate:.1f} GB/s"
        yield finding(
            AdviceRule.COLD_WEIGHTS, (0.12 * cpu_ns, 0.5 * cpu_ns, 0.8 * cpu_ns), detail, weights * dispatch.calls
        )
    elif ratio * program.running > _SLOW and is_compute_bound and kernel.is_product:
        after = 0.7 * roofline_ns, 1.3 * roofline_ns, 0.85 * cpu_ns
        percent = round(100 * roofline_ns / cpu_ns)
        yield finding(AdviceRule.BELOW_ROOFLINE, after, f"{place} runs at {percent} % of its roofline")


_SPILL_RATIO: Final = 1.3
"""Least multiple of the roofline time at which loops are examined."""


def _cold_weights(dispatch: _Dispatch, *, is_compute_bound: bool) -> int:
    """The size of weights that a product reads and hardly uses; 0 if it has none."""
    sizes = dispatch.kernel.operand_bytes
    if is_compute_bound or not dispatch.kernel.is_product or len(sizes) < 2:
        return 0
    largest = max(sizes[:-1])
    is_large = largest >= max(_LEAST_WEIGHTS, _WEIGHTS_PART * sum(sizes))
    # Two operations for each weight and row; weights have one to eight bytes.
    return largest if is_large and dispatch.operations <= 2 * _MOST_ROWS * largest else 0


# ---- rules on the time between kernels
#
# Never report a time on another device as fact: report what `record --compare-devices` measured, or advise to measure.


_HIGH_OVERHEAD: Final = 0.5
"""Least share of queue and host in the time for advice."""
_DEVICES: Final = ("local-task", "local-sync")
_WORTH_NAMING: Final = 0.1
"""Least possible share of copies in the time of queue and host to name them."""
_MANY: Final = 8
"""Least number of dispatches that are many."""


def _between(program: _Program) -> Iterator[tuple[_Finding, str, str]]:
    """The causes of the time between kernels, with their sentences and commands."""
    loop_ns = 0.0
    for row in program.attribution.overhead:
        total_ns = program.overhead_of(row)
        if row.place is OverheadPlace.LOOP and row.ops and total_ns > _LEAST_LOOP * program.elapsed_ns:
            loop_ns += total_ns
            yield _loop(program, row)
    overhead_ns = program.overhead_ns
    if overhead_ns < _HIGH_OVERHEAD * program.elapsed_ns or program.attribution.run.device not in _DEVICES:
        return
    if loop_ns > _MOST_OF * overhead_ns or not program.calls:
        return
    if has_slug(program.attribution.diagnostics, NOISY) and overhead_ns > _MOST_LAUNCH_NS * program.calls:
        return  # mostly waiting for a CPU
    share, tiny = program.share(overhead_ns), _tiny(program)
    text, command, bounds = _on_other_device(program)
    if tiny:
        count = sum(dispatch.calls for dispatch in tiny)
        mean_ns = sum(dispatch.wall_ns for dispatch in tiny) / count
        fused_ns = _launches_ns(program) * (1 - 1 / count)
        rest_ns = program.kernels_ns - count * mean_ns + _call_boundary_ns(program)
        batched = 0.4 * fused_ns, 0.9 * fused_ns, program.elapsed_ns - rest_ns
        if not bounds or batched[1] > bounds[1]:
            text, command, bounds = "Batch them", program.command("show", program.bundle, tiny[0].site.id), batched
        ops = tuple(dict.fromkeys(dispatch.ops[0] for dispatch in tiny if dispatch.ops))
        reason = f"{round(count)} dispatches take {format_ns(round(mean_ns))} each"
        each = format_ns(round(overhead_ns / program.calls))
        sentence = f"{share} of the time is runtime overhead: {reason}, and {each} to launch. {text}"
        yield _Finding(AdviceRule.TINY_DISPATCHES, bounds[1], bounds[0], bounds[2], ops), sentence, command
    elif bounds:
        sentence = f"{share} of the time is runtime overhead (queue and host){_details(program)}. {text}"
        yield _Finding(AdviceRule.OVERHEAD_BOUND, bounds[1], bounds[0], bounds[2], ()), sentence, command


_MOST_LAUNCH_NS: Final = 500_000
"""Most overhead of a kernel call that is the program's own in a noisy run."""
_LEAST_LOOP: Final = 0.05
"""Least share of a loop's overhead in the time for advice."""
_MOST_OF: Final = 0.5
"""Least part of the time, or of the overhead, that counts as most of it."""
_SHRINKS: Final = 1.5
"""Most that the time between kernels shrinks by, as a multiple of what kernels shrink by."""
_UNROLL: Final = 8
"""Suggested number of iterations per trip of an unrolled loop."""


def _loop(program: _Program, row: Overhead) -> tuple[_Finding, str, str]:
    """Advice on the overhead of a loop. Its copies and fills may go as well."""
    total_ns = program.overhead_of(row)
    gaps = row.count / program.iterations if isinstance(row.count, int) else 0.0
    calls = (dispatch.calls for dispatch in program.dispatches)
    trips = next((count for count in calls if abs(count - gaps - 1) <= 1), gaps + 1)
    per_trip = f" ({round(trips)} trips × {format_ns(round(total_ns / trips))})" if trips >= 1 else ""
    op = program.graph.op_by_id[row.ops[-1]]
    unroll = min(_UNROLL, max(2, round(trips)))
    how = f"jax.lax.scan(..., unroll={unroll})" if python_frame(program.graph, op) else f"{unroll} iterations a trip"
    text = f"{program.share(total_ns)} of the time is loop overhead at {program.place(op.id)}{per_trip}"
    part = 1 - 1 / unroll
    carried_ns = sum(program.overhead_of(other) for other in _carrying(program))
    gain_ns, most_ns = part * (0.9 * total_ns + 0.5 * carried_ns), 1.5 * part * (total_ns + carried_ns)
    finding = _Finding(AdviceRule.OVERHEAD_BOUND, gain_ns, 0.6 * part * total_ns, most_ns, row.ops)
    command = program.of_runs("what-if", "--overhead", op.id, "--faster", f"{unroll}x")
    return finding, f"{text}. Unroll the loop: {how}", command


def _carrying(program: _Program) -> Iterator[Overhead]:
    """Copies of ops that have a dispatch, too: they carry the values of a loop."""
    copies = (row for row in program.attribution.overhead if row.place is OverheadPlace.TRANSFER)
    return (row for row in copies if row.ops and all(op in program.graph.sites_of_op for op in row.ops))


def _copies(program: _Program) -> Iterator[_Finding]:
    """Copies and fills of ops that the runtime does outside of kernels."""
    carrying = list(_carrying(program))
    for row in program.attribution.overhead:
        if row.place is OverheadPlace.TRANSFER and row.ops and row not in carrying:
            # Its array is allocated in each invocation; the page faults are elsewhere.
            total_ns = program.overhead_of(row)
            low_ns, gain_ns, high_ns = 0.4 * total_ns, _COPIED * total_ns, 2.2 * total_ns
            detail = f"{program.place(row.ops[0])} is a copy"
            yield _Finding(AdviceRule.LAYOUT_COPY, gain_ns, low_ns, high_ns, row.ops, None, detail)


_COPIED: Final = 0.9
"""Expected part of the time of copies that is gained without them."""


def _launches_ns(program: _Program) -> float:
    """The time between dispatches outside of loops."""
    places = OverheadPlace.DISPATCH, OverheadPlace.SUBMISSION
    return sum(program.overhead_of(row) for row in program.attribution.overhead if row.place in places)


def _call_boundary_ns(program: _Program) -> float:
    """The time before the first and after the last kernel of an invocation."""
    rows = (row for row in program.attribution.overhead if row.place is OverheadPlace.CALL)
    return sum(program.overhead_of(row) for row in rows)


def _tiny(program: _Program) -> list[_Dispatch]:
    """Many dispatches outside of loops, each of which takes less time than its overhead; empty if they are few."""
    each_ns = program.overhead_ns / program.calls if program.calls else 0.0
    once = (dispatch for dispatch in program.dispatches if dispatch.calls <= _ONCE)
    tiny = [dispatch for dispatch in once if dispatch.wall_ns / dispatch.calls < each_ns]
    return tiny if sum(dispatch.calls for dispatch in tiny) >= _MANY else []


_ONCE: Final = 1.5
"""Most times that a dispatch outside of loops runs in an invocation."""


def _on_other_device(program: _Program) -> tuple[str, str, tuple[float, float, float] | tuple[()]]:
    """Advice on the device with its command, and the least, expected and most gain; no gain if no other is faster."""
    run, bundle = program.attribution.run, program.bundle
    measure = program.command("record", bundle, "--compare-devices", ",".join(sorted(_DEVICES)))
    if not run.devices:
        if run.device == "local-sync":
            return "", measure, ()
        # The kernels run on one worker there, and a part of the overhead stays.
        cpu_ns = sum(dispatch.cpu_ns for dispatch in program.dispatches)
        longer_ns = max(0.0, cpu_ns - program.kernels_ns)
        low_ns, gain_ns, high_ns = (part * program.overhead_ns - longer_ns for part in (0.35, 0.65, 0.95))
        return "Compare devices", measure, (low_ns, gain_ns, high_ns)
    own = next((device for device in run.devices if device.device == run.device), None)
    fastest = fastest_device(run.devices)
    if own is None or not is_faster_device(fastest, own):
        return "", "", ()
    times = f"{format_ns(fastest.median_ns)} instead of {format_ns(own.median_ns)} on {own.device}"
    command = program.command("record", bundle, "--", f"--device={fastest.device}")
    bounds = (
        _ns(own.low_ns) - _ns(fastest.high_ns),
        _median(own) - _median(fastest),
        _ns(own.high_ns) - _ns(fastest.low_ns),
    )
    return f"{fastest.device} is faster: {times}", command, bounds


def _details(program: _Program) -> str:
    """The mean time of a kernel call, and other possible parts of the overhead."""
    mean_ns = program.kernels_ns / program.calls if program.calls else 0.0
    text = f"; a kernel call takes {format_ns(round(mean_ns))} on average" if program.calls else ""
    parts = ["untimed copies and fills"] if _may_be_copies(program) else []
    if has_slug(program.attribution.diagnostics, NOISY):
        parts.append("waiting for a CPU (noisy run)")
    return f"{text}; the overhead may include {' and '.join(parts)}" if parts else text


def _may_be_copies(program: _Program) -> bool:
    """Whether copies without rows may be a notable part of the overhead."""
    untimed = has_slug(program.attribution.diagnostics, TRANSFERS_UNTIMED)
    rows = program.attribution.unattributed
    queue = (row.metrics.get("duration_ns", 0) for row in rows if row.reason is UnattributedReason.QUEUE)
    return untimed and sum(queue) >= _WORTH_NAMING * program.overhead_ns * program.iterations


def fastest_device(devices: Sequence[DeviceTime]) -> DeviceTime:
    """The device with the smallest median."""
    return min(devices, key=_median)


def _median(device: DeviceTime) -> float:
    return float(device.median_ns) if isinstance(device.median_ns, int) else float("inf")


def _ns(value: object) -> float:
    return float(value) if isinstance(value, int) else 0.0


def is_faster_device(device: DeviceTime, other: DeviceTime) -> bool:
    """Whether the interval of a median is entirely below that of another; False if one is unknown."""
    return isinstance(device.high_ns, int) and isinstance(other.low_ns, int) and device.high_ns < other.low_ns


# ---- advice


def advise(evidence: Evidence) -> tuple[Advice, ...]:
    """The advice on a run, the largest gain first; none for a clean program."""
    program = _Program(evidence)
    if not program.elapsed_ns or not program.iterations or has_slug(evidence.attribution.diagnostics, PAUSED):
        return ()  # a pause looks like overhead
    found = [
        _advice(program, list(findings), *_TEXTS[rule](program, list(findings)))
        for rule, findings in _by_rule(program, _findings(program)).items()
    ]
    between = list(_between(program))
    for rule in dict.fromkeys(finding.rule for finding, *_ in between):
        of_rule = sorted((item for item in between if item[0].rule is rule), key=lambda item: -item[0].gain_ns)
        found.append(_advice(program, [finding for finding, *_ in of_rule], *of_rule[0][1:]))
    least_ns = _LEAST_SHARE * program.elapsed_ns
    worth = (advice for advice in found if advice.low_ns > least_ns and advice.gain_ns > program.noise_ns)
    return tuple(sorted(worth, key=lambda advice: (-advice.gain_ns, _ORDER[advice.rule])))


_ORDER: Final = {rule: index for index, rule in enumerate(AdviceRule)}


def _by_rule(program: _Program, findings: Iterator[_Finding]) -> dict[AdviceRule, list[_Finding]]:
    """Findings by rule, the largest first. A dispatch has one cause, and perhaps imbalance, whose gain is separate."""
    by_place: dict[tuple[str, bool], _Finding] = {}
    for finding in findings:
        place = finding.dispatch.site.id if finding.dispatch else " ".join(finding.ops)
        key = place, finding.rule is AdviceRule.IMBALANCE
        other = by_place.get(key)
        if other is None or _ORDER[finding.rule] < _ORDER[other.rule]:
            by_place[key] = finding
    result: dict[AdviceRule, list[_Finding]] = defaultdict(list)
    by_place = {place: finding for place, finding in by_place.items() if finding.gain_ns > 0}
    scaled = (_as_passed_on(program, finding) for finding in by_place.values())
    for finding in sorted(scaled, key=lambda finding: -finding.gain_ns):
        result[finding.rule].append(finding)
    return result


def _as_passed_on(program: _Program, finding: _Finding) -> _Finding:
    """A finding with the part of its gain that the program has: other work may run at the same time."""
    dispatch = finding.dispatch
    if dispatch is None or program.attribution.timed is None:
        return finding
    parts = {dispatch.site.id: frozenset(member.op for member in dispatch.site.members)}
    saved_ns = what_if(program.graph, program.attribution, Change(parts, REMOVED)).saved_ns
    part = min(1.0, saved_ns / dispatch.wall_ns)
    gains = {name: part * getattr(finding, name) for name in ("gain_ns", "low_ns", "high_ns")}
    return replace(finding, **gains)


def _advice(program: _Program, findings: Sequence[_Finding], text: str, command: str) -> Advice:
    ops = dict.fromkeys(op for finding in findings for op in finding.ops)
    gain_ns, low_ns, high_ns = (
        sum(getattr(finding, name) for finding in findings) for name in ("gain_ns", "low_ns", "high_ns")
    )
    # Time between kernels shrinks with them: it has the page faults of their data, and waiting for a CPU after them.
    parts_ns = [finding.gain_ns for finding in findings if finding.dispatch]
    if parts_ns and program.kernels_ns > _MOST_OF * program.elapsed_ns:
        more = program.elapsed_ns / program.kernels_ns - 1
        high_ns, gain_ns = high_ns + more * sum(parts_ns) * _SHRINKS, gain_ns + more * sum(parts_ns) / 2
    high_ns = min(high_ns, 0.99 * program.elapsed_ns)
    gain_ns = min(gain_ns, high_ns)
    low_ns = min(max(0.0, low_ns), gain_ns)
    rule = findings[0].rule
    return Advice(rule, text, command, tuple(ops), round(gain_ns), round(low_ns), round(high_ns))


def _more(findings: Sequence[_Finding]) -> str:
    """The number of other dispatches with the same cause."""
    others = len(findings) - 1
    return f" (and {plural(others, 'other')})" if others else ""


_Words = tuple[str, str]
"""A sentence and a command."""


def _time(program: _Program, findings: Sequence[_Finding]) -> str:
    """The share of the dispatches of findings in the time."""
    return program.share(sum(finding.dispatch.wall_ns for finding in findings if finding.dispatch))


def _show(program: _Program, finding: _Finding, *options: str) -> str:
    """A command that shows the dispatch of a finding."""
    what = finding.dispatch.site.id if finding.dispatch else finding.ops[0]
    return program.command("show", program.bundle, what, *options)


def _kernel_command(program: _Program, findings: Sequence[_Finding], name: str, *options: str) -> str:
    kernels = dict.fromkeys(finding.dispatch.site.kernel for finding in findings[:3] if finding.dispatch)
    words = [word for kernel in kernels for word in ("--kernel", kernel)]
    return program.command(name, program.bundle, *words, *options)


def _repeated_words(program: _Program, findings: Sequence[_Finding]) -> _Words:
    first = findings[0]
    advice = "Compute it once"
    return f"{_time(program, findings)} of the time repeats work: {first.detail}{_more(findings)}. {advice}", _show(
        program, first
    )


def _recomputed_words(program: _Program, findings: Sequence[_Finding]) -> _Words:
    first = findings[0]
    text = f"{_time(program, findings)} of the time computes forward values again: {first.detail}{_more(findings)}"
    return f"{text}. Save them (jax.checkpoint with a policy), if memory allows", _show(program, first)


def _layout_words(program: _Program, findings: Sequence[_Finding]) -> _Words:
    first, moved = findings[0], round(sum(finding.bytes for finding in findings))
    times = [finding.dispatch.wall_ns if finding.dispatch else finding.gain_ns / _COPIED for finding in findings]
    size = f" {format_bytes(moved)}" if moved else " data"
    text = f"{program.share(sum(times))} of the time copies{size}: {first.detail}{_more(findings)}"
    return f"{text}. Store the data in the layout that its users read", _show(program, first)


def _fusion_words(program: _Program, findings: Sequence[_Finding]) -> _Words:
    first, moved = findings[0], round(sum(finding.bytes for finding in findings))
    text = f"{format_bytes(moved)} are written and read again: {first.detail}{_more(findings)}"
    advice = "Remove what keeps them apart (a barrier, a second use, a flag), so that the compiler fuses them"
    return f"{text}, {_time(program, findings)} of the time. {advice}", _show(program, first)


def _weights_words(program: _Program, findings: Sequence[_Finding]) -> _Words:
    text = f"{_time(program, findings)} of the time reads weights once: {findings[0].detail}{_more(findings)}"
    return f"{text}. Quantize them, or use a larger batch", _kernel_command(program, findings, "bench", "--cold")


def _spilling_words(program: _Program, findings: Sequence[_Finding]) -> _Words:
    text = f"{_time(program, findings)} of the time is in kernels that spill registers: {findings[0].detail}"
    return f"{text}{_more(findings)}. Use smaller vector tiles", _kernel_command(program, findings, "tune")


def _scalar_words(program: _Program, findings: Sequence[_Finding]) -> _Words:
    text = f"{_time(program, findings)} of the time is scalar code: {findings[0].detail}{_more(findings)}"
    return f"{text}. Write its body without control flow", _show(program, findings[0], "--assembly")


def _strided_words(program: _Program, findings: Sequence[_Finding]) -> _Words:
    text = f"{_time(program, findings)} of the time is in strided access: {findings[0].detail}{_more(findings)}"
    return f"{text}. Store the array so that the innermost loop reads neighbours", _kernel_command(
        program, findings, "bench"
    )


def _idle_words(program: _Program, findings: Sequence[_Finding]) -> _Words:
    idle = sum(finding.gain_ns / _BALANCED for finding in findings)
    text = f"{program.share(idle)} of the time workers are idle: {findings[0].detail} for {program.workers} workers"
    return f"{text}{_more(findings)}. Split its work into more parallel parts", program.of_runs(
        "attribute", "--by", "site"
    )


def _roofline_words(program: _Program, findings: Sequence[_Finding]) -> _Words:
    text = f"{_time(program, findings)} of the time is in slow products: {findings[0].detail}{_more(findings)}"
    flags = program.graph.module.flags
    if any(flag.endswith("-target-cpu=generic") for flag in flags):
        text += ". They are compiled for any CPU: build with --iree-llvmcpu-target-cpu=host"
    else:
        tiled = any(flag.startswith("--iree-opt-data-tiling") for flag in flags)
        text += ". Tune its tiles" + ("" if tiled else ", or build with --iree-opt-data-tiling")
    return text, _kernel_command(program, findings, "tune")


_TEXTS: Final[Mapping[AdviceRule, Callable[[_Program, Sequence[_Finding]], _Words]]] = {
    AdviceRule.REPEATED_WORK: _repeated_words,
    AdviceRule.RECOMPUTED: _recomputed_words,
    AdviceRule.LAYOUT_COPY: _layout_words,
    AdviceRule.MISSED_FUSION: _fusion_words,
    AdviceRule.COLD_WEIGHTS: _weights_words,
    AdviceRule.SPILLING: _spilling_words,
    AdviceRule.NOT_VECTORIZED: _scalar_words,
    AdviceRule.STRIDED_READS: _strided_words,
    AdviceRule.IMBALANCE: _idle_words,
    AdviceRule.BELOW_ROOFLINE: _roofline_words,
}
