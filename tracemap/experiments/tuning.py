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
# Tuning specs: what tells a plain `iree-compile` to configure an operation as was found to be best.
#
# A spec is a library in the transform dialect. It matches an operation with the very types of its operands, and sets
# its configuration before the compiler chooses one (`--iree-codegen-tuning-spec-path`; IREE: docs, reference, tuning).


@dataclass(frozen=True, slots=True)
class Tuned:
    """A configured operation of a kernel, and the configuration that it is to have, as MLIR prints it."""

    operation: Operation
    lowering_config: str
    translation_info: str


def root_of(function: Operation) -> Operation | None:
    """The operation of a configured kernel that decides how the others are tiled; None where none does."""
    found = [each for each in walk(function) if "distribution" in str(each.attributes.get("lowering_config", ""))]
    return found[-1] if found else None


def spec_text(tuned: Sequence[Tuned]) -> str:
    """The text of a spec that configures these operations, wherever they stand."""
    matchers = [_matcher(number, each) for number, each in enumerate(tuned)]
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
    """The operation as it stands before it is configured, in generic form, with other names for its operands."""
    configuration = operation.attributes["lowering_config"]
    del operation.attributes["lowering_config"]
    text: str = operation.get_asm(print_generic_op_form=True, use_local_scope=True)
    operation.attributes["lowering_config"] = configuration
    return _OPERANDS.sub(lambda found: f"{found[1]}({', '.join(operands)})", text, count=1)


def stands_alone(operation: Operation) -> bool:
    """Whether the body of an operation takes nothing from outside but its operands: only then a spec can match it."""
    inside = set(walk(operation))
    taken = [value for inner in inside if inner != operation.operation for value in inner.operands]
    owners = [getattr(value.owner, "operation", value.owner) for value in taken]
    return all(not hasattr(owner, "name") or owner in inside for owner in owners)


# ---- tuning
#
# The best configuration of a kernel that is right, of many that are tried.
#
# Each candidate is compiled, verified and timed next to the default: both in the same process, batch by batch in turn,
# so that what changes on the machine changes both. The worse half is given up after each round, until one is left; it
# is then measured again, by itself, so that the choice among many does not flatter it. A gain is claimed only where
# the interval of the ratio says so. What was compiled, verified and found is kept: a search that was ended goes on
# where it was.


_DEVICE: Final = "local-sync"
_FIRST_ROUND: Final = 3
_LAST_ROUND: Final = 15
_LEAST_NS: Final = 5_000_000
_LIMIT_S: Final = 60.0


class Outcome(Record, frozen=True):
    """What was found for a kernel: the best configuration of its root and its ratio to the default, None for no gain.

    `failed`: candidates that could not be compiled, or were wrong. `pipeline`: that of the best, "" where it is the
    compiler's own. `obstacle`: why none was tried, "" otherwise.
    """

    kernel: str
    tried: Count
    failed: Count
    best: str
    pipeline: str
    ratio: Ratio | None
    obstacle: str = ""


class _Refused(Record, frozen=True):
    """Why a candidate was not compiled."""

    obstacle: str


@dataclass(frozen=True, slots=True)
class Effort:
    """How far a search goes: so many candidates, for so long; and how many percent are a gain."""

    candidates: int
    limit_s: float
    threshold: float


@dataclass(frozen=True, slots=True)
class Made:
    """A candidate and the module that was compiled with it."""

    candidate: Candidate
    module: Path


class _Tried:
    """What a search has tried so far: candidates that are right, the default first; `positive`: made-up floats are."""

    def __init__(self, positive: bool, made: list[Made]) -> None:
        self.positive, self.made = positive, made
        self.count = self.failed = 0
        self._seen = {made[0].module.read_bytes()}

    def is_new(self, module: Path) -> bool:
        """Whether no candidate before had the same code."""
        code = module.read_bytes()
        known = code in self._seen
        self._seen.add(code)
        return not known


class Tuning:
    """A kernel to tune, and what its candidates are made of.

    Args:
        case: the kernel with its sizes.
        configured: the bundle's configured module.
        flags: those of the bundle.
        work: where is kept what is made.
        makers: what is made depends on, besides (`keeping.makers`).
        folder: for what nobody needs later.
    """

    def __init__(
        self, case: Case, configured: bytes, flags: Sequence[str], work: WorkFolder, makers: str, folder: Path
    ) -> None:
        self._case, self._flags, self._work, self._folder = case, tuple(flags), work, folder
        self._text = wrapped(MlirParser().parse(configured), [case.dispatch])
        self._made_by = (makers, *flag_parts(self._flags))

    def run(self, effort: Effort, progress: Progress) -> Outcome:
        """Try candidates, unless that was done already.

        Raises:
            TargetUnwritable: nothing can be kept.
            ToolFailed: the default cannot be timed; nothing is kept of what that would have told.
            ToolMissing: the compiler or the runtime is not installed.
        """
        how = (str(effort.candidates), str(effort.limit_s), str(effort.threshold))
        file = self._work.result(key_of(self._text, *self._made_by, *how), "tuned")
        outcome = kept_record(file, Outcome)
        if outcome is None:
            outcome = self._found(effort, progress)
            keep_record(file, outcome)
        return outcome

    def _found(self, effort: Effort, progress: Progress) -> Outcome:
        default = self._default()
        nothing = Outcome(self._case.kernel, 0, 0, "", "", None)
        if default is None:
            return nothing
        module = self._compiled(default)
        positive, obstacle = self._data(module)
        if module is None or obstacle:
            return structs.replace(nothing, obstacle=obstacle)
        until = time.monotonic() + effort.limit_s
        own = Made(default, module)
        tried = _Tried(positive, [own])
        for candidate in other_pipelines(default, effort.candidates):
            self._try(candidate, tried, until, progress)
        pipelines = [made.candidate.pipeline for made in tried.made[1:]]
        for candidate in candidates_of(default, effort.candidates - tried.count, pipelines):
            self._try(candidate, tried, until, progress)
        return self._chosen(tried, until, effort.threshold, progress)

    def _chosen(self, tried: _Tried, until: float, threshold: float, progress: Progress) -> Outcome:
        """The best of those that are right, if it is a gain."""
        own, *others = tried.made
        outcome = Outcome(self._case.kernel, tried.count, tried.failed, "", "", None)
        best = self._best(own.module, others, until, progress)
        if best is None:
            return outcome
        ratio = interval_of(self._ratios(own.module, [best.module], _LAST_ROUND)[0])
        if ratio is None or ratio.high >= 1 / (1 + threshold / 100):
            return outcome
        pipeline = best.candidate.pipeline if best.candidate.pipeline != own.candidate.pipeline else ""
        return structs.replace(outcome, best=written(best.candidate.levels), pipeline=pipeline, ratio=ratio)

    def _try(self, candidate: Candidate, tried: _Tried, until: float, progress: Progress) -> None:
        """Compile and verify a candidate, where there is time; code that was there before is not timed again."""
        if time.monotonic() > until:
            return
        tried.count += 1
        progress(f"compiling candidate {tried.count} of {self._case.kernel}")
        module = self._compiled(candidate)
        if module is None or self._verified(module, tried.positive).status is not Status.SUCCESS:
            tried.failed += 1
        elif tried.is_new(module):
            tried.made.append(Made(candidate, module))

    def _default(self) -> Candidate | None:
        """The configuration that the compiler chose; None where nothing in the kernel has tiles."""
        module = MlirParser().parse(self._text, printed=True)
        function, root = self._root(module)
        if root is None:
            return None
        levels = levels_of(str(root.attributes["lowering_config"]))
        return Candidate(levels, pipeline_of(function)) if levels else None

    def _root(self, module: Module) -> tuple[Operation, Operation | None]:
        executable = executables_of(module)[self._case.dispatch.target[0]]
        return executable.operation, root_of(executable.operation)

    def _compiled(self, candidate: Candidate) -> Path | None:
        """A module that calls the kernel with a configuration; None where the compiler does not take it."""
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
        key = key_of(text, *self._made_by)
        made, refused = self._work.module(key), self._work.result(key)
        if not made.is_file() and kept_record(refused, _Refused) is None:
            try:
                keep(made, compile_wrapped(text, self._flags, self._folder).read_bytes())
            except ToolFailed as error:
                if not was_killed(error):
                    keep_record(refused, _Refused(str(error)))
        return made if made.is_file() else None

    def _data(self, own: Path | None) -> tuple[bool, str]:
        """Whether made-up floats are to be positive, and why the kernel is not tuned: what it computes is not known."""
        if own is None:
            return False, "it cannot be compiled alone"
        found = self._verified(own, positive=False)
        if found.status is Status.SUCCESS:
            return False, ""
        if self._verified(own, positive=True).status is Status.SUCCESS:
            return True, ""
        return False, f"what it computes cannot be verified: {found.reason}"

    def _verified(self, module: Path, positive: bool) -> Verification:
        """What a module computes beside the reference; looked at once."""
        file = self._work.result(module.stem, "positive" if positive else "verified")
        known = kept_record(file, Verification)
        if known is not None:
            return known
        call = self._case.call(0, positive)
        job = Job((written_path(module),), _DEVICE, (call,), written_path(self._folder), 0, 1, 0)
        (answer,) = run_job(job, self._folder, _LIMIT_S, lambda _: None)
        if isinstance(answer, Ended):
            return Verification(Status.FAILED, UNKNOWN, 0.0, answer.text)
        found = verified(self._case, call, self._folder, answer)
        keep_record(file, found)
        return found

    def _best(self, own: Path, made: Sequence[Made], until: float, progress: Progress) -> Made | None:
        """The fastest of many, the worse half given up after each round; None of none."""
        left = list(made)
        turns = _FIRST_ROUND
        while len(left) > 1:
            progress(f"timing {len(left)} candidates of {self._case.kernel}")
            ratios = self._ratios(own, [each.module for each in left], turns)
            order = sorted(range(len(left)), key=lambda each: statistics.median(ratios[each]))
            left = [left[each] for each in order[: -(-len(left) // 2)]]
            if time.monotonic() > until:
                return left[0]
            if len(left) == 1:
                break
            turns += _FIRST_ROUND
        return left[0] if left else None

    def _ratios(self, own: Path, modules: Sequence[Path], turns: int) -> list[list[float]]:
        """Of each module the ratios of its time to the default's next to it, one per turn."""
        call = self._case.call(0)
        ratios: list[list[float]] = [[] for _ in modules]
        series: list[Call] = []
        for turn in range(turns):
            for number in range(len(modules)):
                pair = (call, structs.replace(call, module=number + 1))
                series += pair if turn % 2 == 0 else pair[::-1]
        times = self._times((own, *modules), series)
        for place in range(0, len(series), 2):
            one, two = times[place : place + 2]
            first_is_own = series[place].module == 0
            number = max(series[place].module, series[place + 1].module) - 1
            own_ns, other_ns = (one, two) if first_is_own else (two, one)
            # What does not come to its end is no gain, whichever of the two it was.
            ratios[number].append(other_ns / own_ns if math.isfinite(own_ns) else math.inf)
        return ratios

    def _times(self, modules: Sequence[Path], series: Sequence[Call]) -> list[float]:
        """The time of each call, infinite for one that did not come to its end; the first module is the default's.

        Raises:
            ToolFailed: none of the default's came to its end, so that nothing can be said of the others.
        """
        job = Job(tuple(map(written_path, modules)), _DEVICE, tuple(series), "", 3, _LEAST_NS, 0)
        answers = list(run_job(job, self._folder, _LIMIT_S, lambda _: None))
        own = [answer for call, answer in zip(series, answers, strict=True) if call.module == 0]
        ended = [answer.text for answer in own if isinstance(answer, Ended)]
        if len(ended) == len(own):
            raise ToolFailed(f"{self._case.kernel}: the compiler's own configuration cannot be timed: {ended[0]}")
        return [math.inf if isinstance(answer, Ended) else min(answer.warm.call_ns) for answer in answers]


def interval_of(ratios: Sequence[float]) -> Ratio | None:
    """The median of ratios with its interval of 95 % by order statistics (Conover, section 3.2); None of too few."""
    if len(ratios) < FEWEST:
        return None
    ordered = sorted(ratios)
    low, high = median_ranks(len(ordered))
    return Ratio(round(statistics.median(ordered), 4), round(ordered[low - 1], 4), round(ordered[high - 1], 4))
