"""`tune`: the best verified configuration of a kernel, and tuning specs."""

from __future__ import annotations

import math
import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from msgspec import structs

from tracemap.codec import Count, Record
from tracemap.errors import ModelInvalid, ToolFailed
from tracemap.experiments.bench import verified
from tracemap.experiments.cases import Case
from tracemap.experiments.configurations import (
    Candidate,
    candidates_of,
    levels_of,
    other_pipelines,
    pipeline_of,
    with_pipeline,
    written,
)
from tracemap.experiments.jobs import Call, Ended, Job, run_job, written_path
from tracemap.experiments.model import Ratio, Status, Verification
from tracemap.experiments.work_cache import WorkFolder, flag_parts, keep, keep_record, kept_record, key_of, was_killed
from tracemap.experiments.wrapping import compile_wrapped, wrapped
from tracemap.ir.executables import executables_of
from tracemap.ir.parsing import MlirParser, Module, Operation, walk
from tracemap.measurements.medians import FEWEST, median_ranks
from tracemap.toolchain import Progress
from tracemap.units import UNKNOWN

# ---- specs
#
# Tuning specs: they make a plain `iree-compile` use the best configuration of a search.
#
# A spec is a library in the transform dialect. It matches an operation by the exact types of its operands, and sets its
# configuration before the compiler chooses one (`--iree-codegen-tuning-spec-path`; IREE: docs, reference, tuning).


@dataclass(frozen=True, slots=True)
class Tuned:
    """A configured operation of a kernel, and its new configuration as MLIR text."""

    operation: Operation
    lowering_config: str
    translation_info: str


def root_of(function: Operation) -> Operation | None:
    """The operation of a configured kernel that decides the tiling of the others; None if there is none."""
    roots = [op for op in walk(function) if "distribution" in str(op.attributes.get("lowering_config", ""))]
    return roots[-1] if roots else None


def spec_text(tuned: Sequence[Tuned]) -> str:
    """The text of a spec that configures these operations wherever they occur."""
    matchers = [_matcher(number, config) for number, config in enumerate(tuned)]
    pairs = ", ".join(f"@match_{number} -> @apply" for number in range(len(tuned)))
    return "\n".join(
        [
            "module attributes {transform.with_named_sequence, iree_codegen.tuning_spec_with_default_entrypoint} {",
            "  transform.named_sequence @apply(%op: !transform.any_op {transform.readonly}, "
            "%config: !transform.any_param {transform.readonly}) {",
            '    transform.annotate %op "compilation_info" = %config : !transform.any_op, !transform.any_param',
            "    transform.yield",
            "  }",
            *matchers,
            "  transform.named_sequence @__kernel_config(%variant: !transform.any_op {transform.consumed}) "
            "-> !transform.any_op attributes {iree_codegen.tuning_spec_entrypoint} {",
            f"    %result = transform.foreach_match in %variant {pairs} : (!transform.any_op) -> !transform.any_op",
            "    transform.yield %result : !transform.any_op",
            "  }",
            "}",
            "",
        ]
    )


def _matcher(number: int, tuned: Tuned) -> str:
    operation = tuned.operation
    operands = [f"%a{at}" for at in range(len(operation.operands))]
    arguments = ", ".join(f"{name}: {value.type}" for name, value in zip(operands, operation.operands, strict=True))
    return "\n".join(
        [
            f"  transform.named_sequence @match_{number}(%op: !transform.any_op {{transform.readonly}}) "
            "-> (!transform.any_op, !transform.any_param) {",
            "    %ins, %outs = transform.iree.match.cast_compatible_dag_from_root %op {",
            f"    ^bb0({arguments}):",
            _body(operation, operands),
            "    } : (!transform.any_op) -> (!transform.any_value, !transform.any_value)",
            "    %config = transform.param.constant #iree_codegen.compilation_info<"
            f"lowering_config = {tuned.lowering_config}, "
            f"translation_info = {tuned.translation_info}> -> !transform.any_param",
            "    transform.yield %op, %config : !transform.any_op, !transform.any_param",
            "  }",
        ]
    )


_OPERANDS = re.compile(r'("[\w.]+")\(([^)]*)\)')


def _body(operation: Operation, operands: Sequence[str]) -> str:
    """The operation without its configuration, in generic form, with renamed operands."""
    configuration = operation.attributes["lowering_config"]
    del operation.attributes["lowering_config"]
    text: str = operation.get_asm(print_generic_op_form=True, use_local_scope=True)
    operation.attributes["lowering_config"] = configuration
    return _OPERANDS.sub(lambda match: f"{match[1]}({', '.join(operands)})", text, count=1)


def stands_alone(operation: Operation) -> bool:
    """Whether the body of an operation uses no outer values except its operands, as a spec's matcher requires."""
    inside = set(walk(operation))
    used = [value for inner in inside if inner != operation.operation for value in inner.operands]
    owners = [getattr(value.owner, "operation", value.owner) for value in used]
    return all(not hasattr(owner, "name") or owner in inside for owner in owners)


# ---- tuning
#
# Search for the fastest configuration of a kernel whose results are right.
#
# Each candidate is compiled, verified, and timed against the default. Both run in the same process, with alternating
# batches, so that noise affects both. Each round drops the slower half, until one candidate is left. It is then
# measured again alone, since the choice among many favours lucky measurements. A gain is claimed only if the interval
# of the ratio excludes no gain. Compiled modules, verifications and results are cached, so an interrupted search
# resumes.


_DEVICE: Final = "local-sync"
_FIRST_ROUND: Final = 3
_LAST_ROUND: Final = 15
_LEAST_NS: Final = 5_000_000
_LIMIT_S: Final = 60.0


class Outcome(Record, frozen=True):
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
    """Why a candidate was not compiled."""

    obstacle: str


@dataclass(frozen=True, slots=True)
class Effort:
    """Limits of a search: number of candidates, seconds, and the least gain in percent."""

    candidates: int
    limit_s: float
    threshold: float


@dataclass(frozen=True, slots=True)
class CompiledCandidate:
    """A candidate and its compiled module."""

    candidate: Candidate
    module: Path


class _SearchState:
    """Progress of a search: the correct candidates, the default first, and counts of tried and failed candidates.

    `positive`: generated input floats are positive.
    """

    def __init__(self, positive: bool, candidates: list[CompiledCandidate]) -> None:
        self.positive, self.candidates = positive, candidates
        self.count = self.failed = 0
        self._seen = {candidates[0].module.read_bytes()}

    def is_new(self, module: Path) -> bool:
        """Whether no earlier candidate had the same code."""
        code = module.read_bytes()
        seen = code in self._seen
        self._seen.add(code)
        return not seen


class Tuning:
    """The search for a kernel's best configuration.

    Args:
        case: the kernel with its sizes.
        configured: the bundle's configured module.
        flags: the bundle's compiler flags.
        work: cache folder.
        makers: identity of compiler, processor and tracemap (`work_cache.makers`).
        folder: for temporary files.
    """

    def __init__(
        self, case: Case, configured: bytes, flags: Sequence[str], work: WorkFolder, makers: str, folder: Path
    ) -> None:
        self._case, self._flags, self._work, self._folder = case, tuple(flags), work, folder
        self._text = wrapped(MlirParser().parse(configured), [case.dispatch])
        self._key_parts = (makers, *flag_parts(self._flags))

    def run(self, effort: Effort, progress: Progress) -> Outcome:
        """Search, or return the cached result.

        Raises:
            TargetUnwritable: the cache cannot be written.
            ToolFailed: the default cannot be timed; then no result is cached.
            ToolMissing: the compiler or the runtime is not installed.
        """
        limits = (str(effort.candidates), str(effort.limit_s), str(effort.threshold))
        file = self._work.result(key_of(self._text, *self._key_parts, *limits), "tuned")
        outcome = kept_record(file, Outcome)
        if outcome is None:
            outcome = self._search(effort, progress)
            keep_record(file, outcome)
        return outcome

    def _search(self, effort: Effort, progress: Progress) -> Outcome:
        default = self._default()
        empty = Outcome(self._case.kernel, 0, 0, "", "", None)
        if default is None:
            return empty
        module = self._compile(default)
        positive, obstacle = self._check_default(module)
        if module is None or obstacle:
            return structs.replace(empty, obstacle=obstacle)
        deadline = time.monotonic() + effort.limit_s
        state = _SearchState(positive, [CompiledCandidate(default, module)])
        for candidate in other_pipelines(default, effort.candidates):
            self._try(candidate, state, deadline, progress)
        pipelines = [other.candidate.pipeline for other in state.candidates[1:]]
        for candidate in candidates_of(default, effort.candidates - state.count, pipelines):
            self._try(candidate, state, deadline, progress)
        return self._choose(state, deadline, effort.threshold, progress)

    def _choose(self, state: _SearchState, deadline: float, threshold: float, progress: Progress) -> Outcome:
        """The best correct candidate, if it is a gain."""
        default, *others = state.candidates
        outcome = Outcome(self._case.kernel, state.count, state.failed, "", "", None)
        best = self._best(default.module, others, deadline, progress)
        if best is None:
            return outcome
        ratio = interval_of(self._ratios(default.module, [best.module], _LAST_ROUND)[0])
        if ratio is None or ratio.high >= 1 / (1 + threshold / 100):
            return outcome
        pipeline = best.candidate.pipeline if best.candidate.pipeline != default.candidate.pipeline else ""
        return structs.replace(outcome, best=written(best.candidate.levels), pipeline=pipeline, ratio=ratio)

    def _try(self, candidate: Candidate, state: _SearchState, deadline: float, progress: Progress) -> None:
        """Compile and verify a candidate before the deadline; duplicates of earlier code are not timed."""
        if time.monotonic() > deadline:
            return
        state.count += 1
        progress(f"compiling candidate {state.count} of {self._case.kernel}")
        module = self._compile(candidate)
        if module is None or self._verify(module, state.positive).status is not Status.SUCCESS:
            state.failed += 1
        elif state.is_new(module):
            state.candidates.append(CompiledCandidate(candidate, module))

    def _default(self) -> Candidate | None:
        """The compiler's own configuration; None if no operation of the kernel has tiles."""
        module = MlirParser().parse(self._text, printed=True)
        function, root = self._root(module)
        if root is None:
            return None
        levels = levels_of(str(root.attributes["lowering_config"]))
        return Candidate(levels, pipeline_of(function)) if levels else None

    def _root(self, module: Module) -> tuple[Operation, Operation | None]:
        executable = executables_of(module)[self._case.dispatch.target[0]]
        return executable.operation, root_of(executable.operation)

    def _compile(self, candidate: Candidate) -> Path | None:
        """A module that calls the kernel with a configuration; None if it cannot be compiled."""
        parser = MlirParser()
        module = parser.parse(self._text, printed=True)
        function, root = self._root(module)
        assert root is not None
        try:
            root.attributes["lowering_config"] = parser.attribute(written(candidate.levels))
            with_pipeline(function, candidate.pipeline, parser)
        except ModelInvalid:
            return None
        text = module.operation.get_asm(enable_debug_info=False)
        key = key_of(text, *self._key_parts)
        target, failure = self._work.module(key), self._work.result(key)
        if not target.is_file() and kept_record(failure, _CompileFailure) is None:
            try:
                keep(target, compile_wrapped(text, self._flags, self._folder).read_bytes())
            except ToolFailed as error:
                if not was_killed(error):
                    keep_record(failure, _CompileFailure(str(error)))
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
        file = self._work.result(module.stem, "positive" if positive else "verified")
        cached = kept_record(file, Verification)
        if cached is not None:
            return cached
        call = self._case.call(0, positive)
        job = Job((written_path(module),), _DEVICE, (call,), written_path(self._folder), 0, 1, 0)
        (answer,) = run_job(job, self._folder, _LIMIT_S, lambda _: None)
        if isinstance(answer, Ended):
            return Verification(Status.FAILED, UNKNOWN, 0.0, answer.text)
        verification = verified(self._case, call, self._folder, answer)
        keep_record(file, verification)
        return verification

    def _best(
        self, default: Path, candidates: Sequence[CompiledCandidate], deadline: float, progress: Progress
    ) -> CompiledCandidate | None:
        """The fastest candidate: each round drops the slower half. None without candidates."""
        remaining = list(candidates)
        turns = _FIRST_ROUND
        while len(remaining) > 1:
            progress(f"timing {len(remaining)} candidates of {self._case.kernel}")
            ratios = self._ratios(default, [candidate.module for candidate in remaining], turns)
            order = sorted(range(len(remaining)), key=lambda index: statistics.median(ratios[index]))
            remaining = [remaining[index] for index in order[: -(-len(remaining) // 2)]]
            if time.monotonic() > deadline:
                return remaining[0]
            if len(remaining) == 1:
                break
            turns += _FIRST_ROUND
        return remaining[0] if remaining else None

    def _ratios(self, default: Path, modules: Sequence[Path], turns: int) -> list[list[float]]:
        """For each module and turn, its time over the default's time measured next to it."""
        call = self._case.call(0)
        ratios: list[list[float]] = [[] for _ in modules]
        series: list[Call] = []
        for turn in range(turns):
            for number in range(len(modules)):
                pair = (call, structs.replace(call, module=number + 1))
                series += pair if turn % 2 == 0 else pair[::-1]
        times = self._times((default, *modules), series)
        for index in range(0, len(series), 2):
            first_ns, second_ns = times[index : index + 2]
            default_is_first = series[index].module == 0
            number = max(series[index].module, series[index + 1].module) - 1
            default_ns, other_ns = (first_ns, second_ns) if default_is_first else (second_ns, first_ns)
            # A failed call is no gain, whichever of the two failed.
            ratios[number].append(other_ns / default_ns if math.isfinite(default_ns) else math.inf)
        return ratios

    def _times(self, modules: Sequence[Path], series: Sequence[Call]) -> list[float]:
        """The time of each call, infinite if the call failed; the first module is the default.

        Raises:
            ToolFailed: all calls of the default failed, so there is nothing to compare with.
        """
        job = Job(tuple(map(written_path, modules)), _DEVICE, tuple(series), "", 3, _LEAST_NS, 0)
        answers = list(run_job(job, self._folder, _LIMIT_S, lambda _: None))
        default = [answer for call, answer in zip(series, answers, strict=True) if call.module == 0]
        failures = [answer.text for answer in default if isinstance(answer, Ended)]
        if len(failures) == len(default):
            raise ToolFailed(f"{self._case.kernel}: the compiler's own configuration cannot be timed: {failures[0]}")
        return [math.inf if isinstance(answer, Ended) else min(answer.warm.call_ns) for answer in answers]


def interval_of(ratios: Sequence[float]) -> Ratio | None:
    """The median of ratios with its 95 % interval by order statistics (Conover, section 3.2); None if too few."""
    if len(ratios) < FEWEST:
        return None
    ordered = sorted(ratios)
    low, high = median_ranks(len(ordered))
    return Ratio(round(statistics.median(ordered), 4), round(ordered[low - 1], 4), round(ordered[high - 1], 4))
