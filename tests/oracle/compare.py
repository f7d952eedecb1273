"""A map against the truth: memberships op by op and site by site, and outcomes; every difference with where to look."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.oracle.generate import generate
from tests.oracle.kernels import compile_plainly
from tests.oracle.program import Kind, Op, Program, Purpose
from tests.oracle.truth import Truth, find_truth
from tracemap.map.build.build import BuildRequest, build
from tracemap.map.model import Evidence, Outcome, TraceGraph
from tracemap.map.model import Op as MappedOp


class TwinDiffers(Exception):
    """The twin of a program with equal layers was cut into other kernels: it cannot tell the truth."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that the map says otherwise than the truth."""

    seed: int
    what: str
    line: int
    op: str
    detail: str

    def __str__(self) -> str:
        return f"--seed {self.seed}: line {self.line} {self.op}: {self.what}: {self.detail}"


@dataclass
class Score:
    """Counts of right ones, of wrong ones (told but not true) and of missing ones (true but not told)."""

    right: int = 0
    wrong: int = 0
    missing: int = 0

    @property
    def precision(self) -> float:
        """Of what is told, the part that is true."""
        return 1.0 if not self.right + self.wrong else self.right / (self.right + self.wrong)

    @property
    def recall(self) -> float:
        """Of what is true, the part that is told."""
        return 1.0 if not self.right + self.missing else self.right / (self.right + self.missing)

    def add(self, other: Score) -> None:
        """Count another's too."""
        self.right += other.right
        self.wrong += other.wrong
        self.missing += other.missing


@dataclass
class Result:
    """The scores of one program or of many. Keys of `members`: `all`, `hard`, `kind …`, `evidence …`."""

    members: dict[str, Score] = field(default_factory=dict)
    outcomes: dict[str, Score] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    differences: list[Difference] = field(default_factory=list)

    def add(self, other: Result) -> None:
        """Count another's too."""
        for ours, theirs in ((self.members, other.members), (self.outcomes, other.outcomes)):
            for key, score in theirs.items():
                ours.setdefault(key, Score()).add(score)
        self.counts.update(other.counts)
        self.differences += other.differences


def measure(seed: int) -> Result:
    """Generate the program of a seed, build its map, and compare.

    Raises:
        CompilerRejects: iree-compile does not get through with the program.
        TwinDiffers: the program's twin became other kernels.
    """
    program = generate(seed)
    truth = truth_of(seed, program)
    return compare(seed, program, truth, map_of(program))


def map_of(program: Program) -> TraceGraph:
    """What `tracemap build` makes of a program."""
    with tempfile.TemporaryDirectory(prefix="oracle-") as folder:
        request = BuildRequest(program.text.encode(), "model.mlir", Path(folder, "model.tracemap"))
        return build(request).graph


def truth_of(seed: int, program: Program) -> Truth:
    """The truth about the program of a seed; of one with equal layers from its twin.

    Raises:
        CompilerRejects, TwinDiffers: see `measure`.
    """
    compiled = compile_plainly(program.text)
    if "equal_layers" not in program.features:
        return find_truth(program, compiled)
    twin = generate(seed, equal=False)
    of_twin = compile_plainly(twin.text)
    kernels = [[_form(site.kernel) for site in each.sites] for each in (compiled, of_twin)]
    if kernels[0] != kernels[1]:
        raise TwinDiffers(f"seed {seed}: its twin was cut into other kernels")
    return find_truth(twin, of_twin)


def _form(kernel: str) -> str:
    """A kernel's name without numbers and shapes."""
    return re.sub(r"\d+(x\d+)*(xf\d+)*|_(Dx)+\d*", "", kernel)


def compare(seed: int, program: Program, truth: Truth, graph: TraceGraph) -> Result:
    """Score a map of a program."""
    return _Comparison(seed, program, truth, graph).result()


class _Comparison:
    def __init__(self, seed: int, program: Program, truth: Truth, graph: TraceGraph) -> None:
        self._seed = seed
        self._program = program
        self._truth = truth
        self._graph = graph
        self._result = Result()
        by_line = {op.line: op for op in graph.ops}
        self._mapped = {op.number: by_line[program.lines[op.number]] for op in program.ops}
        self._twins: dict[int, list[int]] = {}
        for op in program.ops:
            self._twins.setdefault(program.first_twin(op.number), []).append(op.number)
        self._told: dict[str, dict[int, Evidence]] = {}
        for place, site in enumerate(graph.sites):
            for member in site.members:
                self._told.setdefault(member.op, {})[place] = member.evidence

    def result(self) -> Result:
        """The scores."""
        if len(self._graph.sites) != len(self._truth.sites):
            raise AssertionError(f"seed {self._seed}: the traced program has other sites than the plain one")
        counts = self._result.counts
        counts["programs"] += 1
        counts["sites"] += len(self._truth.sites)
        counts["conflicts"] += len(self._truth.conflicts)
        for op in self._program.ops:
            if op.pattern is not None and op.twin < 0 and op.purpose is not Purpose.NEUTRAL:
                counts["ops"] += 1
                counts["hard ops"] += op.hard
                self._score_members(op)
            elif op.kind is Kind.MOVE:
                self._score_move(op)
            self._score_outcome(op)
        return self._result

    # Memberships.

    def _score_members(self, op: Op) -> None:
        true = self._truth.runs_in.get(op.number, frozenset())
        told: dict[int, Evidence] = {}
        for twin in self._twins[op.number]:
            told |= self._told.get(self._mapped[twin].id, {})
        unclear = self._truth.undecided.get(op.number, frozenset())
        self._result.counts["undecided"] += len(told.keys() & unclear - true)
        for site in sorted((true | told.keys()) - unclear):
            self._score_member(op, site, true=site in true, told=told.get(site))

    def _score_move(self, op: Op) -> None:
        """Only loops of their own are asked for; where one's result is stored, nothing is."""
        told = self._told.get(self._mapped[op.number].id, {})
        stored = self._truth.stored.get(op.number, frozenset())
        true = self._truth.moved.get(op.number, frozenset())
        for site in sorted((true | told.keys()) - (stored - true)):
            self._score_member(op, site, true=site in true, told=told.get(site))

    def _score_member(self, op: Op, site: int, *, true: bool, told: Evidence | None) -> None:
        score = Score(right=true and told is not None, wrong=not true, missing=true and told is None)
        keys = ["all", f"kind {op.kind}", "hard" if op.hard else "easy"]
        keys.append(f"evidence {told or _expected_evidence(op)}")
        if true and told is not Evidence.LOCATED and (told is not Evidence.FUSED or _goes_into_another(op)):
            keys.append("beyond locations")
        for key in keys:
            self._result.members.setdefault(key, Score()).add(score)
        if true and told is Evidence.ABSORBED and _goes_into_another(op):
            self._result.counts["by shape"] += 1
            self._differs(op, "told by the model alone, and by no phase", f"site{site} {self._truth.sites[site]}")
        if not score.right:
            what = "no member in truth" if told is not None else "member that the map lacks"
            evidence = f" by evidence {told}" if told is not None else ""
            self._differs(op, what, f"site{site} {self._truth.sites[site]}{evidence}")

    # Outcomes.

    def _score_outcome(self, op: Op) -> None:
        expected = self._expected(op)
        if expected is None:
            return
        mapped = self._mapped[op.number]
        right = mapped.outcome in expected and self._names_twin(op, mapped)
        score = Score(right=right, wrong=not right)
        for key in ("all", mapped.outcome.value):
            self._result.outcomes.setdefault(key, Score()).add(score)
        if not right:
            wanted = " or ".join(sorted(expected))
            self._differs(op, "outcome", f"{mapped.outcome} ({mapped.reason.text}) should be {wanted}")

    def _expected(self, op: Op) -> frozenset[Outcome] | None:
        """The outcomes that the truth allows; None where it is not known."""
        if op.kind is Kind.STRUCTURE:
            return frozenset({Outcome.STRUCTURAL})
        if op.kind in (Kind.HOST, Kind.CONSTANT):
            outcome = Outcome.HOST if op.kind is Kind.HOST else Outcome.CONSTANT
            return frozenset({outcome, Outcome.REMOVED} if op.purpose is Purpose.DEAD else {outcome})
        if op.purpose is Purpose.DEAD:
            return frozenset({Outcome.REMOVED})
        if op.kind is Kind.DESTINATION or op.purpose is Purpose.NEUTRAL:
            return None
        return self._expected_move(op) if op.kind is Kind.MOVE else self._expected_work(op)

    def _expected_move(self, op: Op) -> frozenset[Outcome] | None:
        if op.purpose is not Purpose.WORK:
            return None
        moved = self._truth.moved.get(op.number, frozenset())
        if moved:
            return frozenset({Outcome.DISPATCHED if moved - self._truth.at_load else Outcome.LOAD_TIME})
        if op.number in self._truth.stored:
            return frozenset({Outcome.FOLDED, Outcome.DISPATCHED, Outcome.TRANSFER})
        return frozenset({Outcome.FOLDED})

    def _expected_work(self, op: Op) -> frozenset[Outcome] | None:
        first = self._program.first_twin(op.number)
        runs = self._truth.runs_in.get(first, frozenset())
        if runs - self._truth.at_load:
            twin = {Outcome.REMOVED} if len(self._twins[first]) > 1 and self._one_is_dispatched(first) else set()
            return frozenset({Outcome.DISPATCHED, *twin})
        if self._truth.undecided.get(first):
            return None
        if runs:
            return frozenset({Outcome.LOAD_TIME})
        return frozenset({Outcome.CONSTANT if op.purpose is Purpose.COMPILE_TIME else Outcome.FOLDED})

    def _one_is_dispatched(self, first: int) -> bool:
        return any(self._mapped[twin].outcome is Outcome.DISPATCHED for twin in self._twins[first])

    def _names_twin(self, op: Op, mapped: MappedOp) -> bool:
        """Whether a removed copy names an op of which it is a copy."""
        first = self._program.first_twin(op.number)
        if mapped.outcome is not Outcome.REMOVED or len(self._twins[first]) < 2:
            return True
        lines = (self._program.lines[twin] for twin in self._twins[first] if twin != op.number)
        return any(f"same as {line}:" in mapped.reason.text for line in lines)

    def _differs(self, op: Op, what: str, detail: str) -> None:
        line = self._program.lines[op.number]
        name = f"{self._mapped[op.number].id} {op.name} ({op.kind})"
        self._result.differences.append(Difference(self._seed, what, line, name, detail))


def _expected_evidence(op: Op) -> Evidence:
    """By what a membership that the map lacks should have been known."""
    return Evidence.FUSED if _goes_into_another(op) else Evidence.LOCATED


def _goes_into_another(op: Op) -> bool:
    """Whether no location of a body may name an op, as the compiler makes it a part of another."""
    return op.idiom >= 0 or op.kind is Kind.CONVERT


def all_differences(result: Result) -> Iterator[str]:
    """One line for each."""
    yield from map(str, result.differences)
