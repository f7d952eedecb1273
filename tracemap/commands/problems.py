"""Problems of a model that `tracemap reduce` keeps: how to see that a part of the model still shows one."""

from __future__ import annotations

import re
import resource
import shlex
import signal
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from tracemap.commands.programs import program_of, saved_inputs_to_copy
from tracemap.core.errors import TracemapError, UsageInvalid
from tracemap.core.process.children import end, ended_within, path_argument, start
from tracemap.core.process.limits import free_memory
from tracemap.core.process.temporary_files import temporary_folder
from tracemap.core.toolchain import find_tool
from tracemap.core.units import UNKNOWN, format_ns
from tracemap.options.measure import CallOptions, RecordOptions, ReduceOptions, call_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from tracemap.compare.reduction import Problem
    from tracemap.ir.slicing import Slice, Slicer, ValueId
    from tracemap.map.bundle import Bundle
    from tracemap.map.model import Op, Site

    Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Candidate:
    """A part of the model, maybe with other names.

    Attributes:
        text: the module.
        function: the name of its function.
        slice: the slice that it is; a renamed one has the same operations.
        inputs: one per argument; empty: any will do.
    """

    text: str
    function: str
    slice: Slice
    inputs: tuple[Array, ...] = ()


@dataclass(frozen=True)
class Evidence:
    """Figures of the original and of its part, for people; `same_time`: whether their times agree."""

    lines: tuple[str, ...]
    same_time: bool = True


# ---- common to all


class ShownProblem:
    """A problem of a model.

    Attributes:
        model: the model.
        name: the model's name for messages.
        flags: all flags of the compiler.
        functions: the functions that may have the problem.
        ops: pre-order indices of the ops that every part must have.
        takes_values: whether the inputs of a part must be the values that the model computes.
    """

    kind: ClassVar[Problem]
    takes_values: ClassVar[bool] = False
    model: bytes
    name: str
    flags: tuple[str, ...]
    functions: tuple[str, ...]
    ops: frozenset[int] = frozenset()

    @property
    def key(self) -> str:
        """A text that differs between problems of the same model."""
        raise NotImplementedError

    @property
    def what(self) -> str:
        """The problem, for people."""
        raise NotImplementedError

    def needed(self, slicer: Slicer) -> frozenset[int]:
        """The unit that every part must have."""
        return frozenset(sorted(slicer.units_of(self.ops))[:1])

    def begin(self, slicer: Slicer) -> frozenset[int]:
        """The units of the first guess."""
        return self.needed(slicer)

    def results(self, slicer: Slicer) -> Sequence[ValueId]:
        """The values that a part returns; none: those that other ops use."""
        return ()

    def shows(self, candidate: Candidate) -> bool:
        """Whether a part shows the problem.

        Raises:
            ModelInvalid: the compiler rejects the part.
        """
        raise NotImplementedError

    def evidence(self, candidate: Candidate) -> Evidence:
        """Figures of the original and of its part."""
        return Evidence(())

    def commands(self, candidate: Candidate, file: str, inputs: Sequence[str]) -> tuple[str, ...]:
        """The commands that show the problem of a model in a file; `inputs`: values of `--input`."""
        raise NotImplementedError


# ---- problems of a bundle


@dataclass
class BundleProblem(ShownProblem):
    """A problem of an op in a bundle.

    `site`: a dispatch site of the op; None if it has none. `work`: a folder for builds.
    """

    bundle: Bundle
    options: ReduceOptions
    op: Op
    site: Site | None
    work: Path

    def __post_init__(self) -> None:
        graph = self.bundle.graph
        self.model, self.name, self.flags = self.bundle.model(), graph.sources[0].name, graph.module.flags
        self.ops = frozenset({self.op.id.number})
        first = self.options.function if self.options.function is not UNKNOWN else self.site and self.site.function
        names = [function.name for function in graph.functions]
        self.functions = (str(first),) if first and first is not UNKNOWN else (str(self.op.function), *names)

    @property
    def key(self) -> str:
        """The kind of the problem and the op."""
        return f"{self.kind} {self.op.id}"

    def needed(self, slicer: Slicer) -> frozenset[int]:
        """The unit of the op in the call of its dispatch."""
        path = next((member.path for member in self.site.members if member.op == self.op.id), ()) if self.site else ()
        own = [slicer.units[index] for index in sorted(slicer.units_of(self.ops))]
        same = [unit for unit in own if unit.path == tuple(call.number for call in path)]
        return frozenset(unit.index for unit in (same or own)[:1])

    def begin(self, slicer: Slicer) -> frozenset[int]:
        """The ops of its dispatch."""
        if self.site is None:
            return self.needed(slicer)
        members = {
            (member.op.number, tuple(call.number for call in path))
            for member in self.site.members
            for path in member.paths
        }
        own = frozenset(unit.index for unit in slicer.units if (unit.op, unit.path) in members)
        return own | self.needed(slicer)

    def build(self, text: str, name: str = "part", *, with_inputs: bool = False) -> Bundle:
        """Compile a part with the flags of the bundle.

        Raises:
            ModelInvalid: the compiler rejects it.
        """
        from tracemap.map.build.build import BuildRequest, build
        from tracemap.map.bundle_documents import CallToKeep
        from tracemap.options.compile import BuildOptions

        target = self.work / f"{name}.tracemap"
        options = BuildOptions(output=target, flags=self.flags, force=True)
        keeping = saved_inputs_to_copy(self.bundle) if with_inputs else CallToKeep()
        return build(BuildRequest(text.encode(), "part.mlir", target, options, (), keeping=keeping))

    def values(self, slicer: Slicer, wanted: Sequence[ValueId]) -> dict[ValueId, Array]:
        """The values in an execution of the model; those inside control flow are left out.

        Raises:
            ModelInvalid, ProgramFailed, InputInvalid, UsageInvalid: the model cannot be compiled or run.
        """
        own = slicer.arguments()
        shown = [value for value in wanted if slicer.can_return(value)]
        if not shown:
            return {}
        probe = slicer.cut(slicer.ancestors(shown), results=shown, arguments=own)
        bundle = self.build(probe.text, "probe", with_inputs=True)
        options = CallOptions(**call_of(self.options))
        with temporary_folder() as folder:
            # The probe has no names of arguments, so that it gets the inputs of the original by position.
            specs = tuple(input_files(self.bundle, options, (), folder))
            return dict(zip(shown, _outputs(bundle, CallOptions(inputs=specs), (), folder), strict=True))

    def _compile(self, file: str) -> str:
        return _command("iree-compile", *self.flags, file, "-o", _with_suffix(file, ".vmfb"))

    def _run(self, tool: str, candidate: Candidate, file: str, inputs: Sequence[str]) -> str:
        module = _with_suffix(file, ".vmfb")
        words = (f"--module={module}", f"--function={candidate.function}")
        return _command(tool, "--device=local-task", *words, *(f"--input={spec}" for spec in inputs))


def _command(*words: str) -> str:
    return shlex.join(words)


def _with_suffix(file: str, suffix: str) -> str:
    """The name of a file with another suffix, as an argument of a program."""
    return path_argument(Path(Path(file).with_suffix(suffix).name))


def _outputs(bundle: Bundle, options: CallOptions, inputs: Sequence[Array], folder: Path) -> list[Array]:
    """Run the only function of a bundle."""
    from tracemap.capture.calling import make_call
    from tracemap.capture.outputs import RUN_TOOL, call_for_arrays

    return call_for_arrays(make_call(program_of(bundle, options), options, RUN_TOOL, folder, inputs), folder)


# ---- a slow kernel


class _SlowKernel(BundleProblem):
    """A part has the same kernel: equal but for the places of its operands in memory."""

    kind = "slow"

    @property
    def what(self) -> str:
        return f"{self.op.id} ({self.op.name}) in {self._site.kernel}"

    @property
    def key(self) -> str:
        return f"slow {self.op.id} {self._digest}"

    @property
    def _site(self) -> Site:
        assert self.site is not None  # checked on creation
        return self.site

    @cached_property
    def _digest(self) -> str:
        return self._digest_of(self.bundle, self._site.kernel)

    def _digest_of(self, bundle: Bundle, kernel: str) -> str:
        from tracemap.ir.kernel_equality import kernel_digest
        from tracemap.ir.parsing import MlirParser

        return kernel_digest(MlirParser(), bundle.kernel_text(bundle.graph.kernel_by_name[kernel]))

    def begin(self, slicer: Slicer) -> frozenset[int]:
        # A model that cannot run, for example without its parameters, is an error ahead of the search.
        self._median(self.bundle, self._site.kernel, (), own=True)
        return super().begin(slicer)

    def shows(self, candidate: Candidate) -> bool:
        return bool(self._kernel_in(self.build(candidate.text), candidate))

    def _kernel_in(self, part: Bundle, candidate: Candidate) -> str:
        """The kernel of the part that is the same and has the op; "" if there is none."""
        positions = set(candidate.slice.positions_of(self.op.id.number))
        for site in part.graph.sites:
            has_op = any(member.op.number in positions for member in site.members)
            if has_op and not site.initializer and self._digest_of(part, site.kernel) == self._digest:
                return site.kernel
        return ""

    def evidence(self, candidate: Candidate) -> Evidence:
        part = self.build(candidate.text, "reduced")
        kernel = self._kernel_in(part, candidate)
        times: dict[Path, list[float]] = {self.bundle.path: [], part.path: []}
        for bundle, name, inputs, own in self._recordings(part, kernel, candidate):
            times[bundle.path].append(self._median(bundle, name, inputs, own=own))
        before, after = (_Times(statistics.median(own), min(own), max(own)) for own in times.values())
        lines = [f"time of a call: {before} in the original, {after} in the reduced model"]
        agree = before.overlaps(after)
        if not agree and (cold := _cold_time(part, kernel)) is not None:
            # In the original other kernels run between its calls and evict its operands from the caches.
            lines.append(f"with cold caches: {cold} in the reduced model")
            agree = before.overlaps(_Times(after.median, after.low, max(after.high, cold.high)))
        same = self._machine_code(self.bundle, self._site.kernel) == self._machine_code(part, kernel)
        lines.append("machine code: equal" if same else "machine code: differs by where the operands are in memory")
        return Evidence(tuple(lines), agree)

    def _recordings(
        self, part: Bundle, kernel: str, candidate: Candidate
    ) -> Iterator[tuple[Bundle, str, tuple[Array, ...], bool]]:
        from tracemap.commands.record import turns

        for _, side in turns(self.options.repeat, 2):
            yield (part, kernel, candidate.inputs, False) if side else (self.bundle, self._site.kernel, (), True)

    def _median(self, bundle: Bundle, kernel: str, inputs: tuple[Array, ...], *, own: bool) -> float:
        from tracemap.commands.record import record
        from tracemap.map.model import entry_name
        from tracemap.runs.sql import query_database, reader_call

        call: dict[str, Any] = call_of(self.options) if own else {}
        run = self.work / "times.parquet"
        call |= {"serial": True, "seconds": self.options.seconds}  # with several workers times are noisy
        options = RecordOptions(**call, launches=1, output=run, force=True)
        record(bundle, options, values=inputs)
        query = f"SELECT median(duration_ns) FROM {reader_call('read_parquet', run)} WHERE kernel IN (?, ?)"
        with query_database() as connection:
            ((median,),) = connection.execute(query, [kernel, entry_name(kernel)]).fetchall()
        if median is None:
            raise UsageInvalid(
                f"{kernel} did not run, so that it has no time; select its function with --function, or pass inputs "
                "with --input that lead to it"
            )
        return float(median)

    def _machine_code(self, bundle: Bundle, kernel: str) -> tuple[str, ...] | None:
        from tracemap.machine.code_figures import kernel_codes
        from tracemap.map.model import entry_name

        return kernel_codes(bundle.module_path).get(entry_name(kernel))

    def commands(self, candidate: Candidate, file: str, inputs: Sequence[str]) -> tuple[str, ...]:
        return self._compile(file), self._run("iree-benchmark-module", candidate, file, inputs)


_LAYOUT: Final = 0.05
"""Part of a kernel's time that another place of its operands in memory may cost."""


@dataclass(frozen=True)
class _Times:
    """The median time of a call with its range over recordings, in nanoseconds."""

    median: float
    low: float
    high: float

    def overlaps(self, other: _Times) -> bool:
        """Whether the ranges have a common time, apart from the effect of another layout of memory."""
        return self.low <= (1 + _LAYOUT) * other.high and other.low <= (1 + _LAYOUT) * self.high

    def __str__(self) -> str:
        middle, low, high = (format_ns(round(value)) for value in (self.median, self.low, self.high))
        return f"{middle} ({low} to {high})"


def _cold_time(bundle: Bundle, kernel: str) -> _Times | None:
    """The time of a kernel alone whose operands are in no cache; None if it cannot run alone."""
    from tracemap.commands.bench import bench
    from tracemap.options.kernels import BenchOptions

    try:
        found = bench(bundle, BenchOptions(kernel=(kernel,), cold=True, no_verify=True, seconds=0)).kernels
    except TracemapError:  # such as a kernel for a GPU
        return None
    cold = next((each.cold_ns for each in found if each.cold_ns is not None), None)
    return None if cold is None else _Times(cold.median, cold.q1, cold.q3)


# ---- wrong numbers


class _MakesNan(BundleProblem):
    """A result of the op has a NaN, and no input of the part has one."""

    kind = "nan"
    takes_values = True

    @property
    def what(self) -> str:
        return f"{self.op.id} ({self.op.name}) makes a NaN"

    def begin(self, slicer: Slicer) -> frozenset[int]:
        own = self.results(slicer)
        values = self.values(slicer, own)
        if len(values) == len(own) and not any(map(_has_nan, values.values())):
            raise UsageInvalid(f"{self.op.id} ({self.op.name}): its result has no NaN; name the inputs with --input")
        return self.needed(slicer)

    def results(self, slicer: Slicer) -> Sequence[ValueId]:
        return [value for unit in self.needed(slicer) for value in slicer.results_of(unit)]

    def shows(self, candidate: Candidate) -> bool:
        if any(map(_has_nan, candidate.inputs)):
            return False
        part = self.build(candidate.text)
        with temporary_folder() as folder:
            return any(map(_has_nan, _outputs(part, CallOptions(), candidate.inputs, folder)))

    def commands(self, candidate: Candidate, file: str, inputs: Sequence[str]) -> tuple[str, ...]:
        return self._compile(file), self._run("iree-run-module", candidate, file, inputs)


def _has_nan(array: Array) -> bool:
    import numpy as np

    try:
        return bool(np.isnan(array).any())
    except TypeError:  # not a number
        return False


class _WrongResult(BundleProblem):
    """`numerics` finds that the dispatch of the op has a wrong result."""

    kind = "wrong"
    takes_values = True

    @property
    def what(self) -> str:
        return f"{self.op.id} ({self.op.name}) has a wrong result"

    def shows(self, candidate: Candidate) -> bool:
        from tracemap.commands.numerics import numerics
        from tracemap.kernels.model import Verdict
        from tracemap.options.kernels import NumericsOptions

        part = self.build(candidate.text)
        positions = {f"op{position}" for position in candidate.slice.positions_of(self.op.id.number)}
        with temporary_folder() as folder:
            specs = input_files(part, CallOptions(), candidate.inputs, folder)
            found = numerics(part, NumericsOptions(inputs=tuple(specs)))
        return any(site.verdict is Verdict.WRONG and positions.intersection(site.ops) for site in found.sites)

    def commands(self, candidate: Candidate, file: str, inputs: Sequence[str]) -> tuple[str, ...]:
        bundle = _with_suffix(file, ".tracemap")
        flags = (f"--input={spec}" for spec in inputs)
        return _command("tracemap", "build", file, "--", *self.flags), _command("tracemap", "numerics", bundle, *flags)


def input_files(bundle: Bundle, options: CallOptions, inputs: Sequence[Array], folder: Path) -> list[str]:
    """The specifications of a call's inputs; arrays are written as files.

    Raises:
        FunctionUnknown, InputInvalid, UsageInvalid: see `capture.calling.make_call`.
    """
    from tracemap.capture.calling import make_call
    from tracemap.capture.outputs import RUN_TOOL

    call = make_call(program_of(bundle, options), options, RUN_TOOL, folder, inputs)
    return [given.spec for given in call.inputs]


# ---- a lost location


class _LostLocation(BundleProblem):
    """The same compiler phase loses the location of the op."""

    kind = "lost"

    @cached_property
    def phase(self) -> str:
        """The phase that loses it."""
        from tracemap.map.query import phase_of_loss

        return phase_of_loss(self.op)

    @property
    def what(self) -> str:
        return f"{self.op.id} ({self.op.name}) loses its location in the phase {self.phase}"

    def begin(self, slicer: Slicer) -> frozenset[int]:
        return self.needed(slicer)

    def shows(self, candidate: Candidate) -> bool:
        from tracemap.map.query import phase_of_loss

        ops = self.build(candidate.text).graph.op_by_id
        own = [f"op{position}" for position in candidate.slice.positions_of(self.op.id.number)]
        return any(name in ops and phase_of_loss(ops[name]) == self.phase for name in own)

    def commands(self, candidate: Candidate, file: str, inputs: Sequence[str]) -> tuple[str, ...]:
        bundle = _with_suffix(file, ".tracemap")
        position = min(candidate.slice.positions_of(self.op.id.number))
        audit = _command("tracemap", "audit", bundle, "--pass", f"op{position}")
        return _command("tracemap", "build", file, "--", *self.flags), audit


# ---- a compiler that fails

_MESSAGE: Final = re.compile(r"(?:error|LLVM ERROR): (.*)|Assertion `(.*)")
_FRAME: Final = re.compile(r"\s*#\d+ 0x[0-9a-f]+ (.*)")
_HANDLERS: Final = re.compile(r"llvm::sys|Signal|__restore_rt|\(/\S*libc\.so|raise|abort|__pthread|gsignal|_start")
_PLACE: Final = re.compile(r" \S+:\d+:\d+$| \(.*\)$")
_VARIABLE: Final = re.compile(r"%[\w#.$-]+|@[\w.$-]+|\d+")
_ENDLESS: Final = "the compiler does not end"
_LEAST_S, _TIMES_LONGER = 20.0, 5.0


@dataclass
class _CompilerFails(ShownProblem):
    """The compiler fails with the same first error; if it crashes, in the same function.

    `limit_s`: time after which a compilation counts as endless.
    """

    kind = "crash"
    model: bytes
    name: str
    flags: tuple[str, ...]
    functions: tuple[str, ...]
    work: Path
    limit_s: float = 600.0
    signature: str = field(init=False)

    def __post_init__(self) -> None:
        begin = time.monotonic()
        self.signature = self._signature(self.model)
        if not self.signature:
            raise UsageInvalid(f"{self.name}: the compiler does not fail on it; name the flags after `--`")
        self.limit_s = min(self.limit_s, max(_LEAST_S, _TIMES_LONGER * (time.monotonic() - begin)))

    @property
    def key(self) -> str:
        return f"crash {self.signature}"

    @property
    def what(self) -> str:
        return f"iree-compile fails: {self.signature}"

    def shows(self, candidate: Candidate) -> bool:
        return self._signature(candidate.text.encode()) == self.signature

    def _signature(self, model: bytes) -> str:
        """How the compiler fails, without names and numbers of the model; "" if it does not."""
        source, target, said = (self.work / name for name in ("model.mlir", "model.vmfb", "said.txt"))
        source.write_bytes(model)
        with said.open("wb") as stderr:
            child = start([find_tool("iree-compile"), source, "-o", target, *self.flags], stderr=stderr)
            try:
                _bound_memory(child.pid)
                if not ended_within(child, self.limit_s):
                    return _ENDLESS
                status = child.wait()
            finally:
                end(child)
        return failure_signature(status, said.read_text(encoding="utf-8", errors="replace"))

    def commands(self, candidate: Candidate, file: str, inputs: Sequence[str]) -> tuple[str, ...]:
        return (_command("iree-compile", *self.flags, file, "-o", _with_suffix(file, ".vmfb")),)


def _bound_memory(pid: int) -> None:
    """Limit the data of a process to the memory that is free."""
    limit = max(1 << 30, free_memory())
    with suppress(OSError, ValueError):  # it has ended, or has a lower limit
        resource.prlimit(pid, resource.RLIMIT_DATA, (limit, limit))


def failure_signature(status: int, output: str) -> str:
    """The first error of a failed compiler, or the signal and the top function; without names and numbers.

    >>> failure_signature(1, "a.mlir:3:10: error: 'tensor.cast' op has 2 results\\n")
    "'tensor.cast' op has # results"
    >>> failure_signature(0, "a.mlir:3:10: warning: slow\\n")
    ''
    """
    if status == 0:
        return ""
    message = next((match[1] or match[2] for match in map(_MESSAGE.search, output.splitlines()) if match), "")
    text = _VARIABLE.sub("#", message)
    if status > 0:
        return text or f"status {status}"
    frames = (match[1] for match in map(_FRAME.match, output.splitlines()) if match)
    top = next((_PLACE.sub("", frame) for frame in frames if not _HANDLERS.search(frame)), "")
    return " ".join(filter(None, (signal.Signals(-status).name, f"in {top}" if top else "", text)))


# ---- choice


def problem_of(target: Path, options: ReduceOptions, work: Path) -> ShownProblem:
    """The problem that the options name.

    Raises:
        UsageInvalid: the options do not go together, or the op does not have the problem.
        QueryInvalid: nothing has the name of the op.
        BundleInvalid, ModelInvalid: the bundle or the model cannot be read.
    """
    from tracemap.map.bundle import is_bundle, load

    is_missing_bundle = options.shows not in (None, "crash") and not target.exists()
    if not is_bundle(target) and not is_missing_bundle:
        if options.shows not in (None, "crash"):
            raise UsageInvalid(f"{target}: is no bundle, so that --shows {options.shows} has no op; build it first")
        return _failure_of(target, options, work)
    if options.shows == "crash":
        raise UsageInvalid(f"{target}: was compiled, so that --shows crash needs the model and the flags that fail")
    if options.flags:
        raise UsageInvalid(f"{target}: a bundle has its own compiler flags; leave out those after `--`")
    return _problem_of_bundle(load(target), options, work)


def _failure_of(target: Path, options: ReduceOptions, work: Path) -> _CompilerFails:
    from tracemap.commands.build import read_model
    from tracemap.ir.slicing import public_functions
    from tracemap.map.build.compiler.compilation import check_flags
    from tracemap.map.build.compiler.flags import compile_flags

    check_flags(options.flags)
    model, name = read_model(str(target))
    functions = public_functions(model) if options.function is UNKNOWN else (str(options.function),)
    return _CompilerFails(model, name, compile_flags("local", options.flags), functions, work)


_KINDS: Final[Mapping[str, type[BundleProblem]]] = {
    problem.kind: problem for problem in (_SlowKernel, _MakesNan, _WrongResult, _LostLocation)
}


def _problem_of_bundle(bundle: Bundle, options: ReduceOptions, work: Path) -> ShownProblem:
    from tracemap.map.bundle import check_iree
    from tracemap.map.query import ops_of, phase_of_loss, resolve

    check_iree(bundle)
    if not bundle.model():
        raise UsageInvalid(f"{bundle.path}: does not contain its model; build it without --no-sources")
    if not options.op:
        raise UsageInvalid("name the op with the problem: --op op12, --op FILE:LINE or --op KERNEL")
    graph, kind = bundle.graph, options.shows or "slow"
    names = resolve(graph, options.op, bundle.source_text).names
    ops = tuple(op for op in ops_of(graph, names) if not _is_structure(op.name))
    if not ops:
        raise UsageInvalid(f"{options.op}: names no op that computes a value; choose one with `tracemap show`")
    if kind == "lost":
        ops = tuple(op for op in ops if phase_of_loss(op))
        if not ops:
            raise UsageInvalid(f"{options.op}: is still located after the last phase, see `tracemap audit`")
    site = _site_of(bundle, names, [op.id for op in ops])
    if site is None:
        if kind in ("slow", "wrong"):
            raise UsageInvalid(f"{options.op}: runs in no dispatch; choose another op, or --shows lost")
        return _KINDS[kind](bundle, options, ops[0], None, work)
    work_of = {member.op: _work(member.operations, member.assumed_operations) for member in site.members}
    op = max(ops, key=lambda op: work_of.get(op.id, -1)) if kind in ("slow", "wrong") else ops[0]
    return _KINDS[kind](bundle, options, op, site, work)


def _is_structure(name: str) -> bool:
    """Recognize functions, globals, and the ends of functions and regions, which compute nothing."""
    from tracemap.ir.slicing import is_terminator
    from tracemap.ir.source_model import FUNCTIONS

    return name in FUNCTIONS or is_terminator(name) or name in ("builtin.module", "util.global", "ml_program.global")


def _work(*amounts: object) -> int:
    return next((amount for amount in amounts if isinstance(amount, int)), 0)


def _site_of(bundle: Bundle, names: Sequence[str], ops: Sequence[str]) -> Site | None:
    """The named dispatch site, else that of the ops with the most work."""
    sites = [site for site in bundle.graph.sites if not site.initializer]
    named = [site for site in sites if {site.id, site.kernel}.intersection(names)]
    own = named or [site for site in sites if any(member.op in ops for member in site.members)]

    def amount(site: Site) -> int:
        members = [member for member in site.members if member.op in ops or named]
        return sum(_work(member.operations, member.assumed_operations) for member in members)

    return max(own, key=amount, default=None)
