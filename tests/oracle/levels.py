"""Measures how right ops are found in another dialect: `python -m tests.oracle.levels --seeds 40`.

StableHLO programs, generated ones and the samples of JAX, are lowered to linalg by IREE's own input conversion, whose
locations name the line and column that each op comes from: that is the truth, read with MLIR's bindings alone. Matched
is in three ways: with these locations; with locations that tell scopes only (the samples, which have some); and with
none. Last the torch and the ONNX form of one network are matched, of which the exporter's node names tell the truth.

What can be found at most is a maximum matching of the ops that do work: a location may name several ops.
"""

from __future__ import annotations

import re
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
import networkx
from iree.compiler import ir

from tests.documents import DOCS, write_part
from tests.oracle.generate import generate
from tests.support import SAMPLES
from tracemap.compare.matching import match_flows
from tracemap.compare.model import MatchKind
from tracemap.map.build.model.dataflow import FlowBuilder

LEAST: Final = {"located": (0.98, 0.95), "scoped": (0.9, 0.8), "blind": (0.9, 0.8), "torch and ONNX": (0.9, 0.8)}
"""Precision and recall by way."""
WAYS: Final = {
    "located": "linalg with locations",
    "scoped": "linalg with scopes alone",
    "blind": "linalg without either",
    "torch and ONNX": "torch and ONNX, with their names",
}
JAX: Final = ("jax_mlp", "jax_gpt2_4l")
_PLACE = re.compile(r'"(?:-|[^"]*model\.mlir)":(\d+):(\d+)')
_IDLE = re.compile(r"constant|iota|func\.|util\.|builtin|\.yield|tensor\.empty|linalg\.(fill|index)|\.return|\.call")
_NAME = re.compile(r'"(?:jit\([^"()]*\)/)?([^"]*)/[^"/]*"\(')
Place = tuple[str, str]


@dataclass
class Score:
    """How many ops were found, rightly and not, and how many there were to find."""

    right: int = 0
    wrong: int = 0
    there: int = 0

    def add(self, other: Score) -> None:
        """Add that of another program."""
        self.right, self.wrong, self.there = (
            self.right + other.right,
            self.wrong + other.wrong,
            self.there + other.there,
        )

    @property
    def precision(self) -> float:
        """Of what was found, how much is right."""
        return self.right / max(1, self.right + self.wrong)

    @property
    def recall(self) -> float:
        """Of what is there to be found, how much was found."""
        return self.right / max(1, self.there)

    def __str__(self) -> str:
        found = f"precision {self.precision:.4f}, recall {self.recall:.4f}"
        return f"{found} ({self.right} right, {self.wrong} wrong, of {self.there})"


def lowered(text: str) -> str:
    """The linalg form of a program, every op with its location."""
    with tempfile.TemporaryDirectory(prefix="tracemap-levels-") as folder:
        model, made = Path(folder, "model.mlir"), Path(folder, "linalg.mlir")
        model.write_text(text, encoding="utf-8")
        tool = Path(sys.executable).with_name("iree-compile")
        words = [tool, "--compile-to=input", "--mlir-print-debuginfo", model, "-o", made]
        subprocess.run([str(word) for word in words], check=True, capture_output=True)
        return made.read_text(encoding="utf-8")


def operations(text: str) -> list[ir.Operation]:
    """All operations, those inside of ops included, in the order in which ops are numbered."""
    context = ir.Context()
    context.enable_multithreading(False)  # its threads would be missing in processes forked from this one
    context.allow_unregistered_dialects = True
    found = [ir.Module.parse(text, context).operation]
    waiting = _below(found[0])
    while waiting:
        found.append(waiting.pop())
        waiting += _below(found[-1])
    return found


def _below(operation: ir.Operation) -> list[ir.Operation]:
    below = [child.operation for region in operation.regions for block in region.blocks for child in block.operations]
    return below[::-1]


def without_locations(text: str) -> str:
    """The same program, from whose text nothing can be told of where it comes from."""
    return str(operations(text)[0].get_asm(enable_debug_info=False))


def with_scopes(text: str) -> str:
    """The same program; of each location only the scope is left."""
    found = operations(text)
    for operation in found:
        scope = _NAME.search(str(operation.location))
        name = f"{scope[1]}/x" if scope else "x"
        operation.location = ir.Location.name(name, context=operation.context)
    return str(found[0].get_asm(enable_debug_info=True))


def places(text: str) -> Mapping[int, frozenset[Place]]:
    """The places that each op that does work names, by its number, with those of what is inside of it."""
    found: dict[int, frozenset[Place]] = {}
    op = -1
    for number, operation in enumerate(operations(text)):
        named = frozenset((line, column) for line, column in _PLACE.findall(str(operation.location)))
        if operation.parent is not None and operation.parent.name.startswith(("linalg.", "stablehlo.")):
            found[op] = found.get(op, frozenset()) | named
        elif not _IDLE.search(operation.name):
            found[op := number] = named
        else:
            op = -1
    found.pop(-1, None)
    return found


def score(before: str, after: str, truth: tuple[str, str]) -> Score:
    """Match two programs, and judge by the places of `truth`, which has the same ops with all their locations."""
    flows = FlowBuilder()
    matches = match_flows(flows.of(before.encode()), flows.of(after.encode()), ("model.mlir", "linalg.mlir"))
    ones, twos = map(places, truth)
    edges = [(("A", one), ("B", two)) for one in ones for two in twos if ones[one] & twos[two]]
    graph = networkx.Graph(edges)
    at_most = networkx.bipartite.hopcroft_karp_matching(graph, {one for one, _ in edges})
    made = Score(there=len(at_most) // 2)
    for match in matches:
        one, two = match.before.number, match.after.number
        if match.how is MatchKind.APPROXIMATE and one in ones and two in twos:
            made.right += bool(ones[one] & twos[two])
            made.wrong += not ones[one] & twos[two]
    return made


def tries(seeds: Sequence[int], models: Sequence[str]) -> Iterator[tuple[str, str, Score]]:
    """Each program in each way: the way, the program, how right it is."""
    for seed in seeds:
        program = generate(seed)
        if "linalg" not in program.features:
            made = lowered(program.text)
            truth = program.text, made
            yield "located", str(seed), score(program.text, made, truth)
            yield "blind", str(seed), score(program.text, without_locations(made), truth)
    for name in models:
        text = (SAMPLES / "models" / f"{name}.mlir").read_text(encoding="utf-8")
        plain = without_locations(text)
        truth = plain, lowered(plain)
        yield "located", name, score(text, lowered(text), truth)
        yield "scoped", name, score(text, with_scopes(lowered(text)), truth)
        yield "blind", name, score(plain, without_locations(truth[1]), truth)


# ---- torch and ONNX

_OF_NODES: Final = ("embedding", "add", "layer_norm", "linear", "view", "permute", "transpose", "gelu")
"""Ops of torch that the exporter names nodes of ONNX after, with the number of the op: `node_linear_3`."""
_NODE: Final = re.compile(rf'"node_({"|".join(_OF_NODES)})(?:_(\d+))?"')


def torch_and_onnx() -> Score:
    """Match the torch and the ONNX form of one network; nodes before a named one are parts of that."""
    before, after = (
        (SAMPLES / "models" / f"{name}.mlir").read_bytes() for name in ("torch_tinygpt", "onnx_tinygpt_named")
    )
    flows = FlowBuilder()
    matches = match_flows(flows.of(before), flows.of(after))
    ones: dict[int, tuple[str, int]] = {}
    for number, operation in enumerate(operations(before.decode())):
        stem = operation.name.removeprefix("torch.aten.").partition(".")[0]
        if operation.name.startswith("torch.aten.") and stem in _OF_NODES:
            ones[number] = (stem, sum(of == stem for of, _ in ones.values()))
    twos: dict[int, tuple[str, int]] = {}
    parts: list[int] = []
    for number, operation in enumerate(operations(after.decode())):
        location = str(operation.location)
        if operation.name == "torch.operator" and "node_" in location:
            parts.append(number)
            if named := _NODE.search(location):
                twos |= dict.fromkeys(parts, (named[1], int(named[2] or 0)))
            if named or not re.search(r'"node_[A-Z]', location):
                parts = []
    made = Score(there=len(set(ones.values()) & set(twos.values())))
    for match in matches:
        one, two = match.before.number, match.after.number
        if match.how is MatchKind.APPROXIMATE and (one in ones or two in twos):
            made.right += ones.get(one) == twos.get(two)
            made.wrong += ones.get(one) != twos.get(two)
    return made


def table(totals: Mapping[str, Score]) -> str:
    """The scores as a table of Markdown."""
    rows = ["| information | right | wrong | expected | precision | recall |", "|---|--:|--:|--:|--:|--:|"]
    for way, made in totals.items():
        figures = f"{made.right} | {made.wrong} | {made.there} | {made.precision:.4f} | {made.recall:.4f}"
        rows.append(f"| {WAYS[way]} | {figures} |")
    return "\n".join(rows)


@click.command()
@click.option("--seeds", type=click.IntRange(1), default=40, show_default=True, help="How many programs.")
@click.option("--seed-base", type=int, help="The first seed; drawn fresh and printed where not given.")
@click.option("--verbose", is_flag=True, help="Print each program.")
@click.option("--write-docs", is_flag=True, help="Put the table into docs/accuracy.md.")
def main(seeds: int, seed_base: int | None, verbose: bool, write_docs: bool) -> None:
    """Match programs with their linalg form; status 1 where a target is missed."""
    base = secrets.randbelow(1_000_000_000) if seed_base is None else seed_base
    totals = {way: Score() for way in ("located", "scoped", "blind")}
    for way, name, made in tries(range(base, base + seeds), JAX):
        totals[way].add(made)
        if verbose:
            print(f"{way} {name}: {made}", file=sys.stderr, flush=True)
    programs = f"seeds {base} to {base + seeds - 1} and {', '.join(JAX)}"
    print(f"ops of StableHLO programs found in their linalg form, {programs}")
    totals["torch and ONNX"] = torch_and_onnx()
    text = table(totals)
    print(text)
    if write_docs:
        write_part(DOCS / "accuracy.md", "levels", text)
    missed = any(total.precision < LEAST[way][0] or total.recall < LEAST[way][1] for way, total in totals.items())
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
