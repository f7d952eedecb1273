"""Measures how right ops of edited programs are found again: `python -m tests.oracle.edits --seeds 200`.

A program is generated, edited (`tests.oracle.editor`) at one to eight places, and matched with what it was; the record
of the editor says which op became which.
"""

from __future__ import annotations

import re
import secrets
import sys
from collections import Counter
from dataclasses import dataclass, field
from random import Random

import click

from tests.oracle.editor import Editor
from tests.oracle.generate import generate
from tracemap.compare.matching import match_flows
from tracemap.compare.model import Match
from tracemap.ir.model_reader import create_records, parse_model
from tracemap.ir.parsing import MlirParser
from tracemap.map.build.model.dataflow import FlowBuilder

KINDS = ("rename", "reorder", "insert", "delete", "constant", "shape", "wrap", "inline")
LEAST_PRECISION, LEAST_RECALL = 0.99, 0.97


@dataclass
class Score:
    """How many ops were found, rightly and not, and which were missed."""

    right: int = 0
    wrong: int = 0
    missed: int = 0
    ops: int = 0
    differences: list[str] = field(default_factory=list)
    edits: Counter[str] = field(default_factory=Counter)

    def add(self, other: Score) -> None:
        """Add that of another program."""
        self.right, self.wrong, self.missed = (
            self.right + other.right,
            self.wrong + other.wrong,
            self.missed + other.missed,
        )
        self.ops += other.ops
        self.differences += other.differences
        self.edits += other.edits

    @property
    def precision(self) -> float:
        """Of what was found, how much is right."""
        return self.right / max(1, self.right + self.wrong)

    @property
    def recall(self) -> float:
        """Of what is there to be found, how much was found."""
        return self.right / max(1, self.right + self.missed)


@dataclass(frozen=True)
class Edited:
    """A program before and after, and which line became which."""

    before: str
    after: str
    record: dict[int, int]
    edits: tuple[str, ...]


def edited(seed: int) -> Edited:
    """The edited program of a seed."""
    random = Random(seed)
    editor = Editor(_program(random), random)
    for _ in range(random.randint(0, 2)):  # functions that are called once, to be inlined
        editor.edit("wrap")
    before = editor.restart()
    for _ in range(random.randint(1, 8)):
        editor.edit(random.choice(KINDS))
    return Edited(before, "\n".join(line.text for line in editor.lines) + "\n", editor.record(), tuple(editor.done))


def _program(random: Random) -> str:
    """A program of 20 to 400 ops: up to four generated ones of a dialect side by side."""
    first = generate(random.randrange(1_000_000))
    dialect = "linalg" if "linalg" in first.features else "stablehlo"
    texts = [first.text]
    for _ in range(random.choice((0, 0, 1, 3))):
        other = generate(random.randrange(1_000_000))
        if dialect in other.features:
            texts.append(other.text)
    return _side_by_side(texts)


def _side_by_side(texts: list[str]) -> str:
    """One program of several: the functions of all, and a main function that does the work of all."""
    functions, heads, bodies, ends = [], [], [], []
    for number, text in enumerate(texts):
        renamed = re.sub(r"%(?=[vcwie]\d)", f"%p{number}", re.sub(r"@f(?=\d)", f"@p{number}f", text))
        lines = renamed.splitlines()[1:-1]
        main = next(place for place, line in enumerate(lines) if "@main(" in line)
        functions += lines[:main]
        heads.append(re.fullmatch(r"func\.func @main\((.*)\) -> \((.*)\) \{", lines[main]))
        bodies += lines[main + 1 : -2]
        ends.append(re.fullmatch(r"return (.*?) : (.*)", lines[-2]))
    arguments, results = (", ".join(head[part] for head in heads if head) for part in (1, 2))
    names, types = (", ".join(end[part] for end in ends if end) for part in (1, 2))
    main_function = [f"func.func @main({arguments}) -> ({results}) {{", *bodies, f"return {names} : {types}", "}"]
    return "\n".join(["module @oracle {", *functions, *main_function, "}"]) + "\n"


def _lines_of(text: str) -> dict[int, int]:
    """The line of each op by its number."""
    parser = MlirParser()
    model = create_records(parser, parse_model(parser, text.encode()))
    return {each.index: int(str(each.line)) for each in model.operations if each.is_op}


def matched(program: Edited) -> tuple[Match, ...]:
    """What the package finds."""
    flows = FlowBuilder()
    return match_flows(flows.of(program.before.encode()), flows.of(program.after.encode()))


def score(seed: int) -> Score:
    """Compare what is found with the record."""
    program = edited(seed)
    before, after = _lines_of(program.before), _lines_of(program.after)
    there = set(after.values())
    truth = {line: program.record[line] for line in before.values() if program.record.get(line) in there}
    found = {before[match.before.number]: after[match.after.number] for match in matched(program)}
    made = Score(ops=len(before), edits=Counter(program.edits))
    texts = program.before.splitlines(), program.after.splitlines()
    for line, other in found.items():
        if truth.get(line) == other:
            made.right += 1
        else:
            made.wrong += 1
            said = f"{texts[0][line - 1]!r} is said to be {texts[1][other - 1]!r}"
            made.differences.append(f"seed {seed}: line {line} {said}, it is {truth.get(line)}")
    for line in sorted(truth.keys() - found.keys()):
        made.differences.append(f"seed {seed}: line {line} {texts[0][line - 1]!r} is not found")
    made.missed = len(truth.keys() - {line for line, other in found.items() if truth.get(line) == other})
    return made


@click.command()
@click.option("--seeds", type=click.IntRange(1), default=200, show_default=True, help="How many programs.")
@click.option("--seed-base", type=int, help="The first seed; drawn fresh and printed where not given.")
@click.option("--verbose", is_flag=True, help="Print every difference.")
def main(seeds: int, seed_base: int | None, verbose: bool) -> None:
    """Match edited programs with what they were; status 1 where a target is missed."""
    base = secrets.randbelow(1_000_000_000) if seed_base is None else seed_base
    total = Score()
    for seed in range(base, base + seeds):
        total.add(score(seed))
    if verbose:
        print("\n".join(total.differences), file=sys.stderr)
    print(f"ops of edited programs found again, seeds {base} to {base + seeds - 1}: {total.ops} ops,")
    print(f"precision {total.precision:.4f} (at least {LEAST_PRECISION}), recall {total.recall:.4f} ({LEAST_RECALL})")
    print("edits: " + ", ".join(f"{kind} {total.edits[kind]}" for kind in KINDS))
    sys.exit(0 if total.precision >= LEAST_PRECISION and total.recall >= LEAST_RECALL else 1)


if __name__ == "__main__":
    main()
