"""Measures how many questions a scripted client answers with `tracemap mcp`: `python -m tests.oracle.questions`.

A seed makes a training step of several layers with planted properties: the most expensive op of each direction, the
one that holds memory at the peak, dead and constant ops, an op that reads a large matrix once. Its edit makes one op
slower. The truth is where they were planted. The client is that of the SDK and talks to a server process. It chooses
its calls by fixed rules from the kind of a question: at most three, each answer of at most 8 KB.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from random import Random
from typing import Any, Final

import click
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from tests.support import ROOT, check_cli

MOST_CALLS, MOST_BYTES = 3, 8192
LEAST_RIGHT_OF_30: Final = 27

# ---- programs with planted truths


_ROWS, _WIDTH = 32, 64
"""Shape of the layers' values; products of them take about ten microseconds."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where an op was written: its lines in the MLIR and in Python, its scope, and the sizes in its kernel's name."""

    line: int
    python: str
    scope: str
    shape: str = ""


@dataclass
class Writer:
    """A program as text. Every op has a line of its own in the MLIR and in `net.py`."""

    lines: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    values: int = 0

    def argument(self, *shape: int) -> str:
        """A new argument."""
        self.arguments.append("x".join(map(str, shape)) + "xf32")
        return f"%arg{len(self.arguments) - 1}"

    def op(self, text: str, scope: str, name: str, shape: str = "") -> tuple[str, Place]:
        """Write an op; return its value and its place."""
        value = f"%v{self.values}"
        self.values += 1
        row = 10 + self.values
        self.lines.append(f'  {value} = {text} loc("jit(step)/{scope}/{name}"("net.py":{row}:5))')
        return value, Place(len(self.lines) + 1, f"net.py:{row}", scope, shape)

    def product(self, left: str, right: str, sizes: tuple[int, int, int], scope: str) -> tuple[str, Place]:
        """A matrix product of M x K and K x N."""
        m, n, k = sizes
        types = f"(tensor<{m}x{k}xf32>, tensor<{k}x{n}xf32>) -> tensor<{m}x{n}xf32>"
        text = f"stablehlo.dot_general {left}, {right}, contracting_dims = [1] x [0] : {types}"
        return self.op(text, scope, "dot_general", f"{m}x{n}x{k}")

    def same(
        self, name: str, scope: str, *operands: str, shape: tuple[int, int] = (_ROWS, _WIDTH)
    ) -> tuple[str, Place]:
        """An elementwise op."""
        text = f"stablehlo.{name} {', '.join(operands)} : tensor<{shape[0]}x{shape[1]}xf32>"
        return self.op(text, scope, name)

    def text(self, results: Sequence[tuple[str, str]]) -> str:
        """The program with these results and their types."""
        arguments = ", ".join(f"%arg{index}: tensor<{kind}>" for index, kind in enumerate(self.arguments))
        types = ", ".join(f"tensor<{kind}>" for _, kind in results)
        head = f"func.func @main({arguments}) -> ({types}) {{"
        tail = f"  return {', '.join(value for value, _ in results)} : {types}\n}}\n"
        return "\n".join([head, *self.lines, tail])


@dataclass(frozen=True, slots=True)
class Program:
    """A program, and its planted places by their property."""

    text: str
    inputs: tuple[str, ...]
    places: Mapping[str, Place]


@dataclass(frozen=True, slots=True)
class Plan:
    """The planted ops of a seed, by layer; `slower`: factor of the work of the edited op."""

    layers: int
    hot: int
    hot_backward: int
    holder: int
    edited: int
    edited_scope: str
    sizes: int
    slower: int = 1

    @classmethod
    def of(cls, seed: int) -> Plan:
        """The plan of a seed."""
        random = Random(seed)
        layers = random.randrange(4, 7)
        hot, hot_backward, holder, edited = (random.randrange(layers) for _ in range(4))
        return cls(layers, hot, hot_backward, holder, edited, random.choice(("attn", "ffn")), 16 * random.randrange(4))


def program(plan: Plan) -> Program:
    """Write the program of a plan: layers forward and backward, with the planted ops among them."""
    out, places = Writer(), dict[str, Place]()
    results: list[tuple[str, str]] = []
    value = out.argument(_ROWS, _WIDTH)
    for layer in range(plan.layers):
        for part in ("attn", "ffn"):
            scope = f"jvp(h{layer})/{part}"
            weight = out.argument(_WIDTH, _WIDTH)
            value, places[f"h{layer}/{part}"] = out.product(value, weight, (_ROWS, _WIDTH, _WIDTH), scope)
            value, places[f"tanh h{layer}/{part}"] = out.same("tanh", scope, value)
            if layer == plan.edited and part == plan.edited_scope:
                m, n, k = 96 + plan.sizes, 128, 128 * plan.slower
                made, places["edited"] = out.product(out.argument(m, k), out.argument(k, n), (m, n, k), scope)
                results.append((made, f"{m}x{n}xf32"))
        if layer == plan.hot:
            m, n, k = 256 + plan.sizes, 512, 512
            made, places["hot"] = out.product(out.argument(m, k), out.argument(k, n), (m, n, k), f"jvp(h{layer})/ffn")
            results.append((made, f"{m}x{n}xf32"))
        if layer == plan.holder:
            # The result is used by the last op of the program, so that it is held all the time.
            m, n, k = 512, 1024, 8
            held, places["holder"] = out.product(
                out.argument(m, k), out.argument(k, n), (m, n, k), f"jvp(h{layer})/attn"
            )
    scope = "jvp(head)"
    _, places["dead"] = out.same("multiply", scope, value, value)
    folded, places["constant"] = out.op(
        f"stablehlo.constant dense<0.5> : tensor<{_ROWS}x{_WIDTH}xf32>", scope, "constant"
    )
    value, _ = out.same("subtract", scope, value, folded)
    for layer in reversed(range(plan.layers)):
        scope = f"transpose(jvp(h{layer}))/ffn"
        weight = out.argument(_WIDTH, _WIDTH)
        value, places[f"back h{layer}"] = out.product(value, weight, (_ROWS, _WIDTH, _WIDTH), scope)
        value, _ = out.same("abs", scope, value)
        if layer == plan.hot_backward:
            m, n, k = 160 + plan.sizes, 384, 384
            made, places["hot backward"] = out.product(out.argument(m, k), out.argument(k, n), (m, n, k), scope)
            results.append((made, f"{m}x{n}xf32"))
    last, _ = out.product(held, out.argument(1024, 8), (512, 8, 1024), "jvp(loss)")
    results = [(value, f"{_ROWS}x{_WIDTH}xf32"), (last, "512x8xf32"), *results]
    inputs = tuple(f"{kind}=0.01" for kind in out.arguments)
    return Program(out.text(results), inputs, places)


def cache_program(plan: Plan) -> Program:
    """Write a program whose ops fit into the first-level cache, but for one that reads 4 MB once."""
    out, places = Writer(), dict[str, Place]()
    value = out.argument(16, 32)
    results: list[tuple[str, str]] = []
    for layer in range(plan.layers):
        scope = f"h{layer}/ffn"
        value, places[f"h{layer}/ffn"] = out.product(value, out.argument(32, 32), (16, 32, 32), scope)
        value, _ = out.same("tanh", scope, value, shape=(16, 32))
        if layer == plan.hot:
            sizes = (1, 1024, 1024)
            made, places["reader"] = out.product(out.argument(1, 1024), out.argument(1024, 1024), sizes, scope)
            results.append((made, "1x1024xf32"))
    results.append((value, "16x32xf32"))
    return Program(out.text(results), tuple(f"{kind}=0.01" for kind in out.arguments), places)


def build(written: Program, folder: Path, name: str) -> Path:
    """Build a program's bundle."""
    model, bundle = folder / f"{name}.mlir", folder / f"{name}.tracemap"
    model.write_text(written.text)
    check_cli("build", model, "-o", bundle, "-q")
    return bundle


def record(written: Program, bundle: Path, *options: str) -> None:
    """Record a run of a program into its bundle."""
    inputs = [f"--input={text}" for text in written.inputs]
    check_cli("record", bundle, "--serial", "-q", *inputs, *options)


# ---- the client


Row = Mapping[str, Any]


@dataclass
class Asker:
    """A client of the server; counts its calls, and keeps the size of the largest answer."""

    client: Client
    calls: int = 0
    largest: int = 0

    async def call(self, tool: str, **arguments: str | int) -> Mapping[str, Any]:
        """The answer of a tool.

        Raises:
            ValueError: the tool reports an error.
        """
        result = await self.client.call_tool(tool, arguments)
        text = "".join(getattr(part, "text", "") for part in result.content)
        self.calls += 1
        self.largest = max(self.largest, len(text.encode()))
        if result.is_error:
            raise ValueError(text)
        answer: Mapping[str, Any] = json.loads(text)
        return answer

    async def rows(self, tool: str, rows: str, **arguments: str | int) -> list[Row]:
        """A list of an answer."""
        return list((await self.call(tool, **arguments))["rows"].get(rows, ()))


def served(*folders: Path) -> AbstractAsyncContextManager[Client]:
    """A client with a server process of its own for some folders."""
    environment = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
    arguments = ["-m", "tracemap", "mcp", *map(str, folders)]
    return Client(stdio_client(StdioServerParameters(command=sys.executable, args=arguments, env=environment)))


# ---- questions


Answer = Callable[[Asker, re.Match[str]], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Question:
    """A question in words, and its right answer."""

    text: str
    truth: str


async def _bundle(asker: Asker, name: str) -> str:
    """The bundle with this name, as a client finds it."""
    found = await asker.rows("find", "bundles", name=f"*{name}.tracemap")
    return str(found[0]["path"])


async def _slowest_line(asker: Asker, asked: re.Match[str]) -> str:
    direction, scope = asked["direction"] or "", asked["scope"] or ""
    options: dict[str, str] = {"only": scope} if scope else {}
    rows = await asker.rows(
        "costs", "costs", run=await _bundle(asker, "today"), by="source", direction=direction, **options
    )
    return str(rows[0]["line"])


async def _costliest_op(asker: Asker, asked: re.Match[str]) -> str:
    rows = await asker.rows("costs", "costs", run=await _bundle(asker, "today"), by="op", name=asked["name"] or "")
    return str(rows[0]["line"])


async def _kernel(asker: Asker, asked: re.Match[str]) -> str:
    answer = await asker.call("describe", path=await _bundle(asker, "today"), what=asked["line"])
    return str(answer["rows"]["ops"][0]["kernel"])


async def _outcome(asker: Asker, asked: re.Match[str]) -> str:
    answer = await asker.call("describe", path=await _bundle(asker, "today"), what=asked["line"])
    return str(answer["rows"]["ops"][0]["outcome"])


async def _holder(asker: Asker, _: re.Match[str]) -> str:
    rows = await asker.rows("memory", "held", path=await _bundle(asker, "today"))
    return str(rows[0]["line"])


async def _most_misses(asker: Asker, _: re.Match[str]) -> str:
    rows = await asker.rows("costs", "costs", run=await _bundle(asker, "cache"), metric="D1mr")
    return str(rows[0]["line"])


async def _why_slower(asker: Asker, asked: re.Match[str]) -> str:
    before, after = await _bundle(asker, "yesterday"), await _bundle(asker, "today")
    rows = await asker.rows("compare", "changes", before=before, after=after, only=asked["scope"])
    return _change(rows, "slower")


async def _what_changed(asker: Asker, asked: re.Match[str]) -> str:
    names = ("yesterday", "today") if asked["change"] == "slower" else ("today", "yesterday")
    before, after = [await _bundle(asker, name) for name in names]
    return _change(await asker.rows("compare", "changes", before=before, after=after), asked["change"])


def _change(rows: Sequence[Row], kind: str) -> str:
    """The line of the first op that changed this way, or that is new in its place."""
    return next((f"model line {row['model_line']}" for row in rows if row["change"] in (kind, "new")), "none")


async def _costliest_scope(asker: Asker, _: re.Match[str]) -> str:
    rows = await asker.rows("costs", "costs", run=await _bundle(asker, "today"), by="op", top=1)
    return str(rows[0]["scope"])


RULES: Final[tuple[tuple[str, Answer], ...]] = (
    (r"which line is slowest(?: in (?P<direction>forward|backward))?(?: of (?P<scope>\S+))?", _slowest_line),
    (r"which (?P<name>\w+ )?op costs most", _costliest_op),
    (r"which kernel does line (?P<line>\d+) run in", _kernel),
    (r"what happens to the op on line (?P<line>\d+)", _outcome),
    (r"what holds memory at the peak", _holder),
    (r"which op has most cache misses", _most_misses),
    (r"why is (?P<scope>\S+) slower than yesterday", _why_slower),
    (r"which op got (?P<change>slower|faster)", _what_changed),
    (r"in which scope is the most expensive op", _costliest_scope),
)
"""The form of a question, and the client's rule for it."""


def questions(plan: Plan, today: Program, cache: Program, random: Random) -> list[Question]:
    """All questions on the programs of a plan, with their truths; lines are those of the seed's programs."""
    places = today.places
    edited, hot, back = places["edited"], places["hot"], places["hot backward"]
    scope = f"h{plan.edited}/{plan.edited_scope}"
    plain = next(name for name in random.sample(sorted(places), len(places)) if name.startswith("h") and "/" in name)
    return [
        Question("which line is slowest", hot.python),
        Question("which line is slowest in backward", back.python),
        Question("which line is slowest in forward", hot.python),
        Question(f"which line is slowest of h{plan.holder}/attn", _costliest(places, f"h{plan.holder}/attn").python),
        Question("which op costs most", hot.python),
        Question("in which scope is the most expensive op", hot.scope),
        Question(f"which kernel does line {hot.line} run in", hot.shape),
        Question(f"which kernel does line {back.line} run in", back.shape),
        Question(f"which kernel does line {places[plain].line} run in", places[plain].shape),
        Question(f"what happens to the op on line {places['dead'].line}", "removed"),
        Question(f"what happens to the op on line {places['constant'].line}", "constant-folded"),
        Question("what holds memory at the peak", places["holder"].python),
        Question("which op has most cache misses", cache.places["reader"].python),
        Question(f"why is {scope} slower than yesterday", f"model line {edited.line}"),
        Question("which op got slower", f"model line {edited.line}"),
        Question("which op got faster", f"model line {edited.line}"),
    ]


def _costliest(places: Mapping[str, Place], scope: str) -> Place:
    """The place in a scope of the forward pass with the largest product."""
    inside = [
        place for place in places.values() if place.scope == f"jvp({scope.partition('/')[0]})/{scope.partition('/')[2]}"
    ]
    return max(inside, key=lambda place: prod(map(int, place.shape.split("x"))) if place.shape else 0)


@dataclass
class Score:
    """Right answers, and the largest figures of the calls."""

    asked: int = 0
    right: int = 0
    most_calls: int = 0
    largest: int = 0
    wrong: list[str] = field(default_factory=list)

    def add(self, question: Question, answer: str, asker: Asker) -> None:
        """Add a question's answer."""
        within = asker.calls <= MOST_CALLS and asker.largest <= MOST_BYTES
        is_right = within and question.truth in answer
        self.asked += 1
        self.right += is_right
        self.most_calls, self.largest = max(self.most_calls, asker.calls), max(self.largest, asker.largest)
        if not is_right:
            self.wrong.append(f"{question.text}: {answer}, not {question.truth}; {asker.calls} calls")


def prepare(seed: int, folder: Path, *, with_cache: bool = True) -> list[Question]:
    """Build and record the programs of a seed; the questions on them."""
    plan = Plan.of(seed)
    yesterday, today, cache = program(plan), program(replace(plan, slower=4)), cache_program(plan)
    for name, written in (("yesterday", yesterday), ("today", today)):
        record(written, build(written, folder, name), "--iterations", "100")
    if with_cache:
        record(cache, build(cache, folder, "cache"), "--iterations", "2", "--cache-sim")
    return questions(plan, today, cache, Random(seed))


async def ask(folder: Path, asked: Sequence[Question], score: Score) -> None:
    """Ask a server the questions."""
    async with served(folder) as client:
        for question in asked:
            asker = Asker(client)
            matching = ((answer, re.fullmatch(pattern, question.text)) for pattern, answer in RULES)
            answer, match = next((answer, match) for answer, match in matching if match)
            try:
                said = await answer(asker, match)
            except (ValueError, KeyError, IndexError) as error:
                said = f"no answer ({error!r})"
            score.add(question, said, asker)


@click.command()
@click.option("--seeds", default=6, help="Number of programs.")
@click.option("--per-seed", default=5, help="Questions on each.")
def main(seeds: int, per_seed: int) -> None:
    """Ask questions on programs of several seeds; fail if too few answers are right."""
    score, turn = Score(), 0
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as name:
            every = prepare(seed, Path(name))
            # Each seed asks other questions, so that all kinds have their turn.
            chosen = [every[(turn + index) % len(every)] for index in range(per_seed)]
            turn += per_seed
            asyncio.run(ask(Path(name), chosen, score))
        print(f"seed {seed}: {score.right} of {score.asked} right", flush=True)
    for text in score.wrong:
        print(text)
    print(f"{score.right} of {score.asked} right, at most {score.most_calls} calls, {score.largest} bytes an answer")
    sys.exit(score.right * 30 < LEAST_RIGHT_OF_30 * score.asked)


if __name__ == "__main__":
    main()
