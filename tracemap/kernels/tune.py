"""Candidates of tile sizes for a kernel, and the search among them."""

from __future__ import annotations

import math
import os
import re
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import structs

from tracemap._version import __version__
from tracemap.core.codec import Count, Record, pretty_json
from tracemap.core.errors import (
    ModelInvalid,
    TargetExists,
    TargetUnwritable,
    ToolFailed,
    UsageInvalid,
    force_option,
)
from tracemap.core.files import check_folder_writable, check_name, has_mark, link_target
from tracemap.core.process.temporary_files import moved_away, rename_into_place, temporary_sibling
from tracemap.core.toolchain import Progress, find_tool, run_tool
from tracemap.core.units import UNKNOWN, Integer, Unknown, format_ns
from tracemap.ir.executables import executables_of, read_executables
from tracemap.ir.parsing import MlirParser, Module, Operation, producer_of, string_attribute, walk
from tracemap.kernels.bench import verify_call
from tracemap.kernels.bench_cases import Case
from tracemap.kernels.benchmark_module import benchmark_module_text, compile_benchmark_module
from tracemap.kernels.configurations import (
    Candidate,
    candidates_of,
    levels_of,
    lowering_config_text,
    other_pipelines,
    pipeline_of,
    with_pipeline,
)
from tracemap.kernels.model import RankedKernel, Ranking, Ratio, Status, Verification
from tracemap.kernels.runner_jobs import (
    Call,
    FailedCall,
    Job,
    WorkFolder,
    flag_parts,
    key_of,
    run_job,
    run_once,
    was_killed,
    write_atomically,
    written_path,
)
from tracemap.map.build.compiler.compilation import OUTPUT_FLAG_PREFIXES
from tracemap.map.build.compiler.failure_messages import compiler_error
from tracemap.map.build.compiler.library import CONFIGURED
from tracemap.runs.statistics import FEWEST_VALUES, median_ranks

if TYPE_CHECKING:
    from tracemap.map.bundle import Bundle


# ---- dispatch tuner
#
# Export of AMD GPU kernels for `amdsharktuner`: one folder per dispatch, with all inputs of its command line.
#
# The tuner reads `dispatch_benchmark.mlir`, in which exactly one operation has the attribute `root_op`. It strips the
# configuration and compiles candidates from the executable's sources. Compiler flags come from a file, one per line.


BACKEND: Final = "rocm"
RANKING: Final = "ranking.json"
_README, _SCRIPT = "README.md", "tune.sh"
_SOURCE, _BENCHMARK, _FLAGS = "dispatch.mlir", "dispatch_benchmark.mlir", "compile_flags.txt"
_OWN_NAMES: Final = frozenset({RANKING, _README, _SCRIPT, _SOURCE, _BENCHMARK, _FLAGS})
"""Names of the files of the folder. The tuner writes its results next to them, under other names."""
_ROOT: Final = "root_op"
_UNSAFE_CHARACTERS: Final = re.compile(r"[^A-Za-z0-9_.-]")
_MAX_NAME_LENGTH: Final = 100
_SPEC_FLAG: Final = "--iree-codegen-tuning-spec-path"
_COMMAND: Final = (
    "python -m dispatch_tuner dispatch.mlir dispatch_benchmark.mlir --compile-flags-file=compile_flags.txt "
    '--devices="$devices" --num-candidates="$candidates"'
)
_TUNE_SCRIPT: Final = f"""#!/bin/sh
# Tune all dispatches of this folder in order: tune.sh [DEVICES [CANDIDATES]]
# Each folder gets a tuning spec, tuning-spec.mlir. To install amdsharktuner: pip install amdsharktuner
devices=${{1:-hip://0}}
candidates=${{2:-100}}
for folder in "$(dirname "$0")"/[0-9]*/; do
  (cd "$folder" && {_COMMAND}) || echo "$folder: not tuned" >&2
done
"""


@dataclass(frozen=True, slots=True)
class ExecutableDump:
    """IREE's dumps of an executable: its source, its benchmark, and the number of `root_op` operations in it."""

    source: str
    benchmark: str
    roots: int

    @property
    def obstacle(self) -> str:
        """Why the executable cannot be tuned; "" if it can. The tuner requires exactly one root operation."""
        if not self.benchmark:
            return "IREE generates no benchmark for it, because its sizes are not known"
        return "" if self.roots == 1 else f"it has {self.roots or 'no'} root operations; the tuner requires exactly one"


def dump_executables(bundle: Bundle, folder: Path) -> Mapping[str, ExecutableDump]:
    """Dump a bundle's executables; the result is keyed by kernel name.

    Raises:
        UsageInvalid: the bundle has no model to compile, or a name in it contains a slash.
        ToolFailed: the compiler fails; the message is the compiler's.
    """
    model = bundle.model()
    if not model:
        raise UsageInvalid(f"{bundle.path}: contains no model; build it again without --no-sources")
    parser = MlirParser()
    _check_names(bundle, parser.parse(model))
    file, sources, benchmarks = folder / "model.mlir", folder / "sources", folder / "benchmarks"
    file.write_bytes(model)
    dump_flags = [f"--iree-hal-dump-executable-{path.name}-to={path}" for path in (sources, benchmarks)]
    flags = [*dump_flags, "--iree-codegen-add-tuner-attributes", f"--compile-to={CONFIGURED}"]
    target = folder / "configured.mlir"
    done = run_tool([find_tool("iree-compile"), file, *flags, "-o", target, *tuner_flags(bundle)])
    if done.returncode != 0:
        raise compiler_error(ToolFailed, done.returncode, done.stderr, f"{bundle.path}: cannot be compiled: ")
    dumps = {kernel: ExecutableDump(text, "", 0) for kernel, (text, _) in _texts_by_kernel(parser, sources).items()}
    for kernel, (text, roots) in _texts_by_kernel(parser, benchmarks).items():
        if kernel in dumps:
            dumps[kernel] = ExecutableDump(dumps[kernel].source, text, roots)
    return dumps


def _check_names(bundle: Bundle, model: Module) -> None:
    """Refuse names with a slash: IREE builds the dumps' file names from module and kernel names without escaping."""
    operation = model.operation
    module_name = string_attribute(operation, "sym_name") if "sym_name" in operation.attributes else ""
    for name in (module_name, *(kernel.name for kernel in bundle.graph.kernels)):
        if "/" in name:
            raise UsageInvalid(f"{name}: rename it without a slash; IREE uses the name as a file name")


def _texts_by_kernel(parser: MlirParser, folder: Path) -> dict[str, tuple[str, int]]:
    """For each kernel, the text of the first file that contains it, and the number of root operations there."""
    texts: dict[str, tuple[str, int]] = {}
    for file in sorted(folder.glob("*.mlir")):
        data = file.read_bytes()
        module, executables = read_executables(parser, data)
        text, roots = data.decode(errors="replace"), sum(_ROOT in op.attributes for op in walk(module.operation))
        for executable in executables.values():
            for kernel in executable.exports:
                texts.setdefault(kernel, (text, roots))
    return texts


def tuner_flags(bundle: Bundle) -> list[str]:
    """The bundle's compiler flags for the tuner.

    Flags that write extra files are left out. So is a tuning spec, since it would fix the configuration to be tuned.

    Raises:
        UsageInvalid: a flag contains a line break.
    """
    flags = [flag for flag in bundle.graph.module.flags if not flag.startswith((*OUTPUT_FLAG_PREFIXES, _SPEC_FLAG))]
    if any(len(flag.splitlines()) != 1 for flag in flags):
        raise UsageInvalid(
            f"{bundle.path}: was built with a flag that contains a line break; build it without that flag"
        )
    return flags


def ranked(kernels: Sequence[tuple[str, Integer]], dumps: Mapping[str, ExecutableDump]) -> tuple[RankedKernel, ...]:
    """Kernels with their folder names: a number, then the kernel's name with unsafe characters replaced.

    Args:
        kernels: names with costs in ns; the cost is unknown without a run.
        dumps: IREE's dumps by kernel name.
    """
    digits = max(2, len(str(len(kernels))))
    rows, number = [], 0
    for kernel, cost_ns in kernels:
        obstacle = dumps[kernel].obstacle if kernel in dumps else "its executable has no source of its own"
        number += not obstacle
        safe_name = _UNSAFE_CHARACTERS.sub("_", kernel)[:_MAX_NAME_LENGTH]
        folder = "" if obstacle else f"{number:0{digits}d}-{safe_name}"
        rows.append(RankedKernel(kernel, folder, cost_ns, obstacle))
    return tuple(rows)


def check_output_folder(target: Path, *, force: bool) -> bool:
    """Refuse an unusable output folder before any work is done; returns whether it replaces an earlier one.

    A folder that this module wrote is replaced; with results of the tuner in it, only with `force`.

    Raises:
        TargetExists: the path exists, and must not be replaced.
        TargetUnwritable: the folder cannot be created.
    """
    check_name(target)
    exists = os.path.lexists(target)
    if exists and not (has_mark(target / _README) or (force and (target / RANKING).is_file())):
        raise TargetExists(f"{target}: exists and was not written for amdsharktuner; name another folder")
    others = (path for path in target.rglob("*") if path.name not in _OWN_NAMES and not path.is_dir())
    if exists and not force and (names := sorted(str(path.relative_to(target)) for path in others)):
        raise TargetExists(
            f"{target}: has files that tracemap did not write, such as {names[0]}; name another folder, or pass "
            f"{force_option()}"
        )
    check_folder_writable(link_target(target))
    return exists


def write_folder(
    target: Path, ranking: Ranking, dumps: Mapping[str, ExecutableDump], flags: Sequence[str], *, replaces: bool
) -> None:
    """Write the folder atomically; `replaces`: it replaces an earlier one.

    Raises:
        TargetExists: another program has created the folder meanwhile.
        TargetUnwritable: the folder cannot be written.
    """
    final_path = link_target(target)
    try:
        with temporary_sibling(final_path) as folder:
            folder.mkdir()
            for name, text in _texts(ranking, dumps, flags):
                (folder / name).parent.mkdir(exist_ok=True)
                (folder / name).write_text(text, encoding="utf-8")
            (folder / _SCRIPT).chmod(0o755)
            if not replaces:
                rename_into_place(folder, final_path)
                return
            with moved_away(final_path):
                folder.rename(final_path)
    except FileExistsError as error:
        raise TargetExists(f"{target}: another program has just written it; name another folder") from error
    except OSError as error:
        raise TargetUnwritable(f"{target}: cannot be written: {error.strerror}") from error


def _texts(ranking: Ranking, dumps: Mapping[str, ExecutableDump], flags: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The names and texts of the files of the folder."""
    for kernel in ranking.kernels:
        if kernel.folder:
            yield f"{kernel.folder}/{_SOURCE}", dumps[kernel.kernel].source
            yield f"{kernel.folder}/{_BENCHMARK}", dumps[kernel.kernel].benchmark
            yield f"{kernel.folder}/{_FLAGS}", "".join(f"{flag}\n" for flag in flags)
    yield RANKING, pretty_json(ranking)
    yield _README, _readme(ranking)
    yield _SCRIPT, _TUNE_SCRIPT


def _readme(ranking: Ranking) -> str:
    """Text of README.md. Folder names are its only text from the model, and they contain no unsafe characters."""
    order = "sorted by cost in a run of the application" if isinstance(ranking.run, str) else "in program order"
    left_out = sum(not kernel.folder for kernel in ranking.kernels)
    note = f"{left_out} left out; see `{RANKING}` for the reasons.\n" if left_out else ""
    costs = {
        kernel.folder: "not known" if isinstance(kernel.cost_ns, Unknown) else format_ns(kernel.cost_ns)
        for kernel in ranking.kernels
        if kernel.folder
    }
    rows = "".join(f"| {folder} | {cost} |\n" for folder, cost in costs.items())
    return f"""\
<!-- creator: tracemap {__version__} -->
# Dispatches for amdsharktuner

Dispatches are {order}. To tune one, run in its folder:

```
python -m dispatch_tuner dispatch.mlir dispatch_benchmark.mlir --compile-flags-file=compile_flags.txt \\
    --devices=hip://0 --num-candidates=100
```

`./tune.sh [DEVICES [CANDIDATES]]` tunes all of them in order.
{note}
| folder | cost in the run |
|---|---|
{rows}"""


# ---- specs
#
# Tuning specs: they make a plain `iree-compile` use the best configuration of a search.
#
# A spec is a library in the transform dialect. It matches an operation by the exact types of its operands, and sets its
# configuration before the compiler chooses one (`--iree-codegen-tuning-spec-path`; IREE: docs, reference, tuning).


@dataclass(frozen=True, slots=True)
class TunedOperation:
    """A configured operation of a kernel, and its new configuration as MLIR text."""

    operation: Operation
    lowering_config: str
    translation_info: str


def root_of(function: Operation) -> Operation | None:
    """The operation of a configured kernel that decides the tiling of the others; None if there is none."""
    roots = [op for op in walk(function) if "distribution" in str(op.attributes.get("lowering_config", ""))]
    return roots[-1] if roots else None


def spec_text(tuned: Sequence[TunedOperation]) -> str:
    """The text of a spec that configures these operations wherever they occur."""
    matchers = "\n".join(_matcher(number, config) for number, config in enumerate(tuned))
    pairs = ", ".join(f"@match_{number} -> @apply" for number in range(len(tuned)))
    return f"""\
module attributes {{transform.with_named_sequence, iree_codegen.tuning_spec_with_default_entrypoint}} {{
  transform.named_sequence @apply(%op: !transform.any_op {{transform.readonly}}, \
%config: !transform.any_param {{transform.readonly}}) {{
    transform.annotate %op "compilation_info" = %config : !transform.any_op, !transform.any_param
    transform.yield
  }}
{matchers}
  transform.named_sequence @__kernel_config(%variant: !transform.any_op {{transform.consumed}}) \
-> !transform.any_op attributes {{iree_codegen.tuning_spec_entrypoint}} {{
    %result = transform.foreach_match in %variant {pairs} : (!transform.any_op) -> !transform.any_op
    transform.yield %result : !transform.any_op
  }}
}}
"""


def _matcher(number: int, tuned: TunedOperation) -> str:
    operation = tuned.operation
    operands = [f"%a{at}" for at in range(len(operation.operands))]
    arguments = ", ".join(f"{name}: {value.type}" for name, value in zip(operands, operation.operands, strict=True))
    return f"""\
  transform.named_sequence @match_{number}(%op: !transform.any_op {{transform.readonly}}) \
-> (!transform.any_op, !transform.any_param) {{
    %ins, %outs = transform.iree.match.cast_compatible_dag_from_root %op {{
    ^bb0({arguments}):
{_body(operation, operands)}
    }} : (!transform.any_op) -> (!transform.any_value, !transform.any_value)
    %config = transform.param.constant #iree_codegen.compilation_info<\
lowering_config = {tuned.lowering_config}, translation_info = {tuned.translation_info}> -> !transform.any_param
    transform.yield %op, %config : !transform.any_op, !transform.any_param
  }}"""


_OPERANDS = re.compile(r'("[\w.]+")\(([^)]*)\)')


def _body(operation: Operation, operands: Sequence[str]) -> str:
    """The operation without its configuration, in generic form, with renamed operands."""
    configuration = operation.attributes["lowering_config"]
    del operation.attributes["lowering_config"]
    text: str = operation.get_asm(print_generic_op_form=True, use_local_scope=True)
    operation.attributes["lowering_config"] = configuration
    return _OPERANDS.sub(lambda match: f"{match[1]}({', '.join(operands)})", text, count=1)


def is_self_contained(operation: Operation) -> bool:
    """Whether the body of an operation uses no outer values except its operands, as a spec's matcher requires."""
    inside = set(walk(operation))
    used = [value for inner in inside if inner != operation.operation for value in inner.operands]
    return all(owner is None or owner in inside for owner in map(producer_of, used))


# ---- tuning
#
# Search for the fastest configuration of a kernel whose results are right.
#
# Each candidate is compiled, verified, and timed against the default. Both run in the same process, with alternating
# batches, so that noise affects both. Each round drops the slower half, until one candidate is left. It is then
# measured again alone, since the choice among many favours lucky measurements. A gain is claimed only if the interval
# of the ratio excludes no gain. Compiled modules, verifications and results are cached, so an interrupted search
# resumes.


_FIRST_ROUND: Final = 3
_LAST_ROUND: Final = 15
_LEAST_NS: Final = 5_000_000
_LIMIT_S: Final = 60.0


class SearchOutcome(Record, frozen=True):
    """Result of a search: the best configuration of a kernel's root, and its time over the default's (None: no gain).

    `failed`: number of candidates that could not be compiled or computed wrong results. `pipeline`: that of the best
    candidate; "" if it is the compiler's own choice. `obstacle`: why no candidate was tried, or "".
    """

    kernel: str
    tried: Count
    failed: Count
    best: str
    pipeline: str
    ratio: Ratio | None
    obstacle: str = ""


class _CompileFailure(Record, frozen=True):
    obstacle: str


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """Limits of a search: number of candidates, seconds, and the least gain in percent."""

    candidates: int
    limit_s: float
    threshold: float


@dataclass(frozen=True, slots=True)
class CompiledCandidate:
    """A candidate and its compiled module."""

    candidate: Candidate
    module: Path


@dataclass(slots=True)
class _SearchState:
    """Progress of a search: the correct candidates, the default first, and counts of tried and failed candidates.

    `positive`: generated input floats are positive. `seen`: the code of the correct candidates.
    """

    positive: bool
    deadline: float
    candidates: list[CompiledCandidate]
    seen: set[bytes]
    count: int = 0
    failed: int = 0


class KernelSearch:
    """The search for a kernel's best configuration.

    Args:
        case: the kernel with its sizes.
        configured: the bundle's configured module.
        flags: the bundle's compiler flags.
        work: cache folder.
        makers: identity of compiler, processor and tracemap, as in `Trial`.
        folder: for temporary files.
    """

    def __init__(
        self, case: Case, configured: bytes, flags: Sequence[str], work: WorkFolder, makers: str, folder: Path
    ) -> None:
        self._case, self._flags, self._work, self._folder = case, tuple(flags), work, folder
        self._text = benchmark_module_text(MlirParser().parse(configured), [case.dispatch])
        self._key_parts = (makers, *flag_parts(self._flags))

    def run(self, effort: SearchLimits, progress: Progress) -> SearchOutcome:
        """Search, or return the cached result.

        Raises:
            TargetUnwritable: the cache cannot be written.
            ToolFailed: the default cannot be timed; then no result is cached.
            ToolMissing: the compiler or the runtime is not installed.
        """
        limits = (str(effort.candidates), str(effort.limit_s), str(effort.threshold))
        key = key_of(self._text, *self._key_parts, *limits)
        outcome = self._work.read(key, SearchOutcome, "tuned")
        if outcome is None:
            outcome = self._search(effort, progress)
            self._work.write(key, outcome, "tuned")
        return outcome

    def _search(self, effort: SearchLimits, progress: Progress) -> SearchOutcome:
        default = self._default()
        empty = SearchOutcome(self._case.kernel, 0, 0, "", "", None)
        if default is None:
            return empty
        module = self._compile(default)
        positive, obstacle = self._check_default(module)
        if module is None or obstacle:
            return structs.replace(empty, obstacle=obstacle)
        deadline = time.monotonic() + effort.limit_s
        state = _SearchState(positive, deadline, [CompiledCandidate(default, module)], {module.read_bytes()})
        for candidate in other_pipelines(default, effort.candidates):
            self._try(candidate, state, progress)
        pipelines = [other.candidate.pipeline for other in state.candidates[1:]]
        for candidate in candidates_of(default, effort.candidates - state.count, pipelines):
            self._try(candidate, state, progress)
        outcome = structs.replace(empty, tried=state.count, failed=state.failed)
        best = self._best(module, state, progress)
        if best is None:
            return outcome
        ratio = interval_of(self._ratios(module, [best.module], _LAST_ROUND)[0])
        if ratio is None or ratio.high >= 1 / (1 + effort.threshold / 100):
            return outcome
        pipeline = best.candidate.pipeline if best.candidate.pipeline != default.pipeline else ""
        return structs.replace(
            outcome, best=lowering_config_text(best.candidate.levels), pipeline=pipeline, ratio=ratio
        )

    def _try(self, candidate: Candidate, state: _SearchState, progress: Progress) -> None:
        """Compile and verify a candidate before the deadline; duplicates of earlier code are not timed."""
        if time.monotonic() > state.deadline:
            return
        state.count += 1
        progress(f"compiling candidate {state.count} of {self._case.kernel}")
        module = self._compile(candidate)
        if module is None or self._verify(module, state.positive).status is not Status.SUCCESS:
            state.failed += 1
        elif (code := module.read_bytes()) not in state.seen:
            state.seen.add(code)
            state.candidates.append(CompiledCandidate(candidate, module))

    def _default(self) -> Candidate | None:
        """The compiler's own configuration; None if no operation of the kernel has tiles."""
        module = MlirParser().parse(self._text, printed=True)
        function = self._executable(module)
        root = root_of(function)
        levels = levels_of(str(root.attributes["lowering_config"])) if root is not None else {}
        return Candidate(levels, pipeline_of(function)) if levels else None

    def _executable(self, module: Module) -> Operation:
        return executables_of(module)[self._case.dispatch.target[0]].operation

    def _compile(self, candidate: Candidate) -> Path | None:
        """A module that calls the kernel with a configuration; None if it cannot be compiled."""
        parser = MlirParser()
        module = parser.parse(self._text, printed=True)
        function = self._executable(module)
        root = root_of(function)
        assert root is not None
        try:
            root.attributes["lowering_config"] = parser.attribute(lowering_config_text(candidate.levels))
            with_pipeline(function, candidate.pipeline, parser)
        except ModelInvalid:
            return None
        text = module.operation.get_asm(enable_debug_info=False)
        key = key_of(text, *self._key_parts)
        target = self._work.module(key)
        if not target.is_file() and self._work.read(key, _CompileFailure) is None:
            try:
                write_atomically(target, compile_benchmark_module(text, self._flags, self._folder).read_bytes())
            except ToolFailed as error:
                if not was_killed(error):
                    self._work.write(key, _CompileFailure(str(error)))
        return target if target.is_file() else None

    def _check_default(self, default: Path | None) -> tuple[bool, str]:
        """Whether the kernel needs positive input floats, and why it cannot be tuned ("": it can)."""
        if default is None:
            return False, "it cannot be compiled alone"
        verification = self._verify(default, positive=False)
        if verification.status is Status.SUCCESS:
            return False, ""
        if self._verify(default, positive=True).status is Status.SUCCESS:
            return True, ""
        return False, f"its results cannot be verified: {verification.reason}"

    def _verify(self, module: Path, positive: bool) -> Verification:
        """Compare a module's results with the reference; cached."""
        how = "positive" if positive else "verified"
        if (cached := self._work.read(module.stem, Verification, how)) is not None:
            return cached
        call = self._case.call(0, positive)
        answer = run_once(module, call, self._folder, _LIMIT_S)
        if isinstance(answer, FailedCall):
            return Verification(Status.FAILED, UNKNOWN, 0.0, answer.text)
        verification = verify_call(self._case, call, self._folder, answer)
        self._work.write(module.stem, verification, how)
        return verification

    def _best(self, default: Path, state: _SearchState, progress: Progress) -> CompiledCandidate | None:
        """The fastest candidate: each round drops the slower half. None without candidates."""
        remaining, turns = state.candidates[1:], 0
        while len(remaining) > 1:
            turns += _FIRST_ROUND
            progress(f"timing {len(remaining)} candidates of {self._case.kernel}")
            ratios = self._ratios(default, [candidate.module for candidate in remaining], turns)
            order = sorted(range(len(remaining)), key=lambda index: statistics.median(ratios[index]))
            remaining = [remaining[index] for index in order[: -(-len(remaining) // 2)]]
            if time.monotonic() > state.deadline:
                break
        return remaining[0] if remaining else None

    def _ratios(self, default: Path, modules: Sequence[Path], turns: int) -> list[list[float]]:
        """For each module and turn, its time over the default's time measured next to it."""
        call = self._case.call(0)
        pairs = [(turn, number) for turn in range(turns) for number in range(len(modules))]
        series: list[Call] = []
        for turn, number in pairs:
            pair = (call, structs.replace(call, module=number + 1))
            series += pair if turn % 2 == 0 else pair[::-1]
        times = self._times((default, *modules), series)
        ratios: list[list[float]] = [[] for _ in modules]
        for (turn, number), *pair_ns in zip(pairs, times[::2], times[1::2], strict=True):
            default_ns, other_ns = pair_ns if turn % 2 == 0 else pair_ns[::-1]
            # A failed call is no gain, whichever of the two failed.
            ratios[number].append(other_ns / default_ns if math.isfinite(default_ns) else math.inf)
        return ratios

    def _times(self, modules: Sequence[Path], series: Sequence[Call]) -> list[float]:
        """The time of each call, infinite if it failed. Raises `ToolFailed` if all of the default, module 0, failed."""
        job = Job(tuple(map(written_path, modules)), calls=tuple(series), repetitions=3, least_ns=_LEAST_NS)
        answers = list(run_job(job, self._folder, _LIMIT_S))
        default = [answer for call, answer in zip(series, answers, strict=True) if call.module == 0]
        failures = [answer.text for answer in default if isinstance(answer, FailedCall)]
        if len(failures) == len(default):
            raise ToolFailed(f"{self._case.kernel}: the compiler's own configuration cannot be timed: {failures[0]}")
        return [math.inf if isinstance(answer, FailedCall) else min(answer.warm.call_ns) for answer in answers]


def interval_of(ratios: Sequence[float]) -> Ratio | None:
    """The median of ratios with its 95 % interval by order statistics (Conover, section 3.2); None if too few."""
    if len(ratios) < FEWEST_VALUES:
        return None
    ordered = sorted(ratios)
    low, high = median_ranks(len(ordered))
    return Ratio(round(statistics.median(ordered), 4), round(ordered[low - 1], 4), round(ordered[high - 1], 4))
