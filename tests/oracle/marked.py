"""Programs of other kinds than `generate` writes, whose truth is read off the texts of a plain compile's kernels.

Each op that is asked about carries a mark: what stands in the text of every kernel in which it works, and of no other
(a number or a shape that only this op has, the name of what only it can become), or that no kernel may hold it at all.
No location, no data flow and nothing of the package is looked at; `compare_marks` then scores what the map says.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import isqrt
from pathlib import Path
from random import Random

from tests.oracle.compare import Difference, Result, Score
from tests.oracle.kernels import CompilerRejects
from tests.support import PLAIN_FLAGS
from tracemap.core.errors import ModelInvalid
from tracemap.core.toolchain import find_tool
from tracemap.core.units import UNKNOWN
from tracemap.map.build.build import BuildRequest, build
from tracemap.map.model import Evidence, Op, Outcome, TraceGraph
from tracemap.options.compile import BuildOptions

MERGED = "merged"
"""The group of ops that the compiler makes one op of: evidence of them is fused."""
WORKS = frozenset({Outcome.DISPATCHED})
GONE = frozenset({Outcome.FOLDED, Outcome.REMOVED})
DEAD = frozenset({Outcome.REMOVED})


@dataclass(frozen=True, slots=True)
class Mark:
    """What the truth about the op of a line is.

    `signs`: patterns that all stand in the text of a kernel in which it works; none: it works in no kernel; `at_least`:
    it may work in others too; `outcomes`: those that are right, none where nothing is asked.
    """

    line: int
    group: str
    signs: tuple[str, ...]
    at_least: bool
    outcomes: frozenset[Outcome]


@dataclass(frozen=True, slots=True)
class MarkedProgram:
    """A program with its marks, and the flags that it is compiled with."""

    family: str
    text: str
    marks: tuple[Mark, ...]
    flags: tuple[str, ...] = ()


def number_sign(number: int) -> str:
    """The pattern of a number that a kernel computes with, whole or floating-point; sizes and places are no such."""
    shown = re.escape(f"{number:.6e}")
    return rf"arith\.constant (?:dense<)?(?:{shown}|{number})>? : (?!index)"


def _is_prime(number: int) -> bool:
    return all(number % divisor for divisor in range(2, isqrt(number) + 1))


@dataclass
class Writer:
    """Writes a program line by line; each family has its own dialect and blocks."""

    random: Random
    lines: list[str] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._names = count()
        self._numbers = (each for each in count(1001 + self.random.randrange(50)) if _is_prime(each))
        extents = list(range(65, 128))
        self.random.shuffle(extents)
        self._extents = iter(extents)

    def number(self) -> int:
        """A number that no other op has: a prime, so that no size is the same, which is a product of extents."""
        return next(self._numbers)

    def extent(self) -> int:
        """An extent that no other value has; those of the values that pass from block to block are smaller."""
        return next(self._extents)

    def op(self, text: str, results: int = 1) -> str:
        """Write an op; returns the name of its result, with `results` of the first of so many."""
        name = f"%v{next(self._names)}"
        shown = name if results == 1 else f"{name}:{results}"
        self.lines.append(f"  {shown} = {text}")
        return name if results == 1 else f"{name}#0"

    def line(self, text: str) -> None:
        """Write a line as it is."""
        self.lines.append(text)

    def mark(
        self, group: str, *signs: str, at_least: bool = False, outcomes: frozenset[Outcome] = WORKS, back: int = 0
    ) -> None:
        """Say what is true of the op on the line just written, or so many lines before."""
        self.marks.append(Mark(len(self.lines) - back, group, signs, at_least, outcomes))

    def gone(self, group: str, outcomes: frozenset[Outcome] = GONE) -> None:
        """Say that nothing of the op on the line just written is in any kernel."""
        self.mark(group, outcomes=outcomes)

    def program(self, family: str, header: Sequence[str], footer: Sequence[str], flags: Sequence[str]) -> MarkedProgram:
        """The program, with these lines before and behind."""
        before = len(header)
        marks = tuple(
            Mark(mark.line + before, mark.group, mark.signs, mark.at_least, mark.outcomes) for mark in self.marks
        )
        return MarkedProgram(family, "\n".join([*header, *self.lines, *footer]) + "\n", marks, tuple(flags))


def kernel_texts(program: MarkedProgram) -> Mapping[str, str]:
    """The text of each kernel by its name, from a plain compile.

    Raises:
        CompilerRejects: iree-compile fails.
    """
    with tempfile.TemporaryDirectory(prefix="oracle-") as folder:
        model = Path(folder, "model.mlir")
        model.write_text(program.text, encoding="utf-8")
        options = ("--compile-to=executable-sources", f"--dump-compilation-phases-to={folder}", "-o", "/dev/null")
        arguments = [str(find_tool("iree-compile")), str(model), *PLAIN_FLAGS, *program.flags, *options]
        done = subprocess.run(arguments, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CompilerRejects(done.stderr.splitlines()[0] if done.stderr else f"status {done.returncode}")
        (sources,) = Path(folder).glob("*.8.executable-sources.mlir")
        return _split(sources.read_text(encoding="utf-8"))


_KERNEL = re.compile(r"^(\s*)func\.func @\"?([\w$.-]+)\"?\(")


def _split(sources: str) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    name, indent = "", ""
    for line in sources.splitlines():
        if head := _KERNEL.match(line):
            indent, name = head.groups()
        if name:
            found.setdefault(name, []).append(line)
        if line == indent + "}":
            name = ""
    return {kernel: "\n".join(lines) for kernel, lines in found.items()}


def measure_marked(seed: int, program: MarkedProgram) -> Result:
    """Build the map of a marked program and compare it with the truth.

    Raises:
        CompilerRejects: iree-compile does not get through with the program.
    """
    return compare_marks(seed, program, kernel_texts(program), map_of(program))


def map_of(program: MarkedProgram) -> TraceGraph:
    """What `tracemap build` makes of a marked program.

    Raises:
        CompilerRejects: the compiler fails behind the phase up to which `kernel_texts` goes.
    """
    with tempfile.TemporaryDirectory(prefix="oracle-") as folder:
        target = Path(folder, "model.tracemap")
        options = BuildOptions(flags=program.flags)
        try:
            return build(BuildRequest(program.text.encode(), "model.mlir", target, options)).graph
        except ModelInvalid as error:
            raise CompilerRejects(str(error).splitlines()[0]) from error


def compare_marks(seed: int, program: MarkedProgram, texts: Mapping[str, str], graph: TraceGraph) -> Result:
    """Score a map of a marked program."""
    return _Marks(seed, program, texts, graph).result()


class _Marks:
    def __init__(self, seed: int, program: MarkedProgram, texts: Mapping[str, str], graph: TraceGraph) -> None:
        self._seed = seed
        self._program = program
        self._texts = texts
        self._graph = graph
        self._result = Result()
        self._ops = {op.line: op for op in graph.ops}
        self._evidence: dict[str, dict[str, Evidence]] = {}
        for site in graph.sites:
            for member in site.members:
                self._evidence.setdefault(member.op, {}).setdefault(site.kernel, member.evidence)

    def result(self) -> Result:
        """The scores."""
        counts = self._result.counts
        counts["programs"] += 1
        counts["sites"] += len(self._graph.sites)
        counts["without owner"] += self._without_owner()
        for mark in self._program.marks:
            self._score(mark, self._ops[mark.line])
        return self._result

    def _without_owner(self) -> int:
        """Dispatches whose time would be nobody's, and outcomes that are not known."""
        commands = (command for buffer in self._graph.command_buffers for command in buffer.commands)
        unmatched = sum(command.kind == "dispatch" and command.site is UNKNOWN for command in commands)
        unknown = sum(op.outcome is Outcome.UNKNOWN for op in self._graph.ops)
        without = unmatched + unknown + sum(not site.members for site in self._graph.sites)
        if without:
            self._result.differences.append(Difference(self._seed, "without an owner", 0, "", str(without)))
        return without

    def _score(self, mark: Mark, op: Op) -> None:
        told = self._evidence.get(op.id, {})
        true = self._true(mark)
        if mark.signs and not true:
            self._result.counts["undecided"] += 1  # the op became something else than was thought
            return
        self._result.counts["ops"] += 1
        self._result.counts["hard ops"] += 1
        self._result.counts[f"class {mark.group}"] += 1
        for kernel in sorted(true | (set() if mark.at_least else told.keys())):
            self._score_member(mark, op, kernel, true=kernel in true, told=told.get(kernel))
        if mark.outcomes:
            self._score_outcome(mark, op)

    def _true(self, mark: Mark) -> set[str]:
        if not mark.signs:
            return set()
        patterns = [re.compile(sign) for sign in mark.signs]
        return {name for name, text in self._texts.items() if all(pattern.search(text) for pattern in patterns)}

    def _score_member(self, mark: Mark, op: Op, kernel: str, *, true: bool, told: Evidence | None) -> None:
        score = Score(right=true and told is not None, wrong=not true, missing=true and told is None)
        expected = Evidence.FUSED if mark.group == MERGED else Evidence.LOCATED
        for key in self._keys(mark, told or expected):
            self._result.members.setdefault(key, Score()).add(score)
        if not score.right:
            what = "member that the map lacks" if told is None else "no member in truth"
            self._differs(mark, op, what, kernel if told is None else f"{kernel} by evidence {told}")

    def _keys(self, mark: Mark, evidence: Evidence) -> Iterator[str]:
        yield from ("all", "hard", f"class {mark.group}", f"family {self._program.family}", f"evidence {evidence}")

    def _score_outcome(self, mark: Mark, op: Op) -> None:
        right = op.outcome in mark.outcomes
        for key in ("all", op.outcome.value, f"class {mark.group}"):
            self._result.outcomes.setdefault(key, Score()).add(Score(right=right, wrong=not right))
        if not right:
            wanted = " or ".join(sorted(mark.outcomes))
            self._differs(mark, op, "outcome", f"{op.outcome} ({op.reason.text}) should be {wanted}")

    def _differs(self, mark: Mark, op: Op, what: str, detail: str) -> None:
        name = f"{op.id} {op.name} ({self._program.family}, {mark.group})"
        self._result.differences.append(Difference(self._seed, what, mark.line, name, detail))
