"""Measures how often `tracemap bisect` finds the planted cause: `python -m tests.oracle.bisections`.

The truth shares nothing with the search. For flags and releases, plain iree-compile builds the found set, the set
without each member, and the rest, and each op of the program alone. For edits, the lines at which work was planted are
known. Sides that differ in nothing that matters have no cause, and a search that is killed finds the same afterwards.
"""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import click

from tests.documents import DOCS, write_part
from tests.support import PLAIN_FLAGS, Json, command_line
from tracemap.core.releases import environment
from tracemap.core.toolchain import find_tool, no_progress

# ---- programs

SNIPPETS = {
    "stablehlo.dot_general": (
        "%{n}x: tensor<{a}x{b}xf32>, %{n}w: tensor<{b}x{b}xf32>",
        "%{n} = stablehlo.dot_general %{n}x, %{n}w, contracting_dims = [1] x [0] : "
        "(tensor<{a}x{b}xf32>, tensor<{b}x{b}xf32>) -> tensor<{a}x{b}xf32>",
        "tensor<{a}x{b}xf32>",
    ),
    "stablehlo.reduce": (
        "%{n}x: tensor<{a}x{b}xf32>, %{n}z: tensor<f32>",
        "%{n} = stablehlo.reduce(%{n}x init: %{n}z) applies stablehlo.add across dimensions = [1] : "
        "(tensor<{a}x{b}xf32>, tensor<f32>) -> tensor<{a}xf32>",
        "tensor<{a}xf32>",
    ),
    "stablehlo.convolution": (
        "%{n}x: tensor<1x34x34x{c}xf32>, %{n}k: tensor<3x3x{c}x{c}xf32>",
        "%{n} = stablehlo.convolution(%{n}x, %{n}k) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = "
        "{{stride = [1, 1]}} {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}} : "
        "(tensor<1x34x34x{c}xf32>, tensor<3x3x{c}x{c}xf32>) -> tensor<1x32x32x{c}xf32>",
        "tensor<1x32x32x{c}xf32>",
    ),
    "stablehlo.tanh": (
        "%{n}x: tensor<{b}x{b}xf32>",
        "%{n} = stablehlo.tanh %{n}x : tensor<{b}x{b}xf32>",
        "tensor<{b}x{b}xf32>",
    ),
}
"""Ops that share no values, by name: arguments, line, and type of the result."""

FLAGS = (
    "--iree-opt-data-tiling=true",
    "--iree-global-opt-use-im2col-for-convs",
    "--iree-opt-generalize-matmul",
    "--iree-llvmcpu-disable-distribution",
    "--iree-scheduling-optimize-bindings=false",
    "--iree-llvmcpu-number-of-threads=1",
    "--iree-llvmcpu-debug-symbols=false",
    "--iree-opt-level=O3",
    "--iree-llvmcpu-loop-vectorization=true",
    "--iree-llvmcpu-loop-unrolling=true",
    "--iree-llvmcpu-slp-vectorization=false",
    "--iree-llvmcpu-loop-interleaving=true",
    "--iree-llvmcpu-enable-ukernels=all",
)
HARMLESS = (
    "--iree-vm-target-index-bits=64",
    "--iree-opt-const-eval=true",
    "--iree-llvmcpu-link-embedded=true",
    "--iree-llvmcpu-reassociate-fp-reductions=true",
    "--iree-llvmcpu-disable-vector-peeling=false",
    "--iree-llvmcpu-fail-on-large-vector=true",
    "--iree-global-opt-propagate-transposes=true",
    "--iree-opt-strip-assertions=false",
    "--iree-flow-inline-constants-max-byte-length=256",
    "--iree-llvmcpu-stack-allocation-limit=32768",
)
"""Flags that say what holds without them, or do not matter here."""


LEAST = """\
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.negate %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""


def program(sizes: dict[str, int], ops: Sequence[str]) -> str:
    """A program of these ops; the first one stands in the second line."""
    parts = [[text.format(n=f"v{number}", **sizes) for text in SNIPPETS[op]] for number, op in enumerate(ops)]
    arguments, lines, types = (list(each) for each in zip(*parts, strict=True))
    values = ", ".join(f"%v{number}" for number in range(len(ops)))
    body = [*(f"  {line}" for line in lines), f"  return {values} : {', '.join(types)}"]
    return "\n".join([f"func.func @main({', '.join(arguments)}) -> ({', '.join(types)}) {{", *body, "}"]) + "\n"


WIDTH = "tensor<64x256xf32>"
WEIGHT = "tensor<256x256xf32>"
LAYERS = 8


@dataclass
class Chain:
    """A chain of layers, each with weights of its own; `work`: what an edit puts behind a layer."""

    work: dict[int, list[str]] = field(default_factory=dict)
    planted: set[int] = field(default_factory=set)
    """Layers whose edit is the cause."""

    def text(self) -> tuple[str, frozenset[int]]:
        """The program, and the lines of planted ops."""
        arguments = ", ".join([f"%x: {WIDTH}", *(f"%w{layer}: {WEIGHT}" for layer in range(LAYERS))])
        lines, value, planted = [f"func.func @main({arguments}) -> {WIDTH} {{"], "%x", set()
        # Sums of 256 products would saturate, and outputs would not depend on the layers.
        lines.append(f"  %c = stablehlo.constant dense<0.0078125> : {WIDTH}")
        for layer in range(LAYERS):
            lines.append(_product(f"%d{layer}", value, f"%w{layer}"))
            lines.append(f"  %s{layer} = stablehlo.multiply %d{layer}, %c : {WIDTH}")
            lines.append(f"  %t{layer} = stablehlo.tanh %s{layer} : {WIDTH}")
            value = f"%t{layer}"
            for number, text in enumerate(self.work.get(layer, [])):
                result = f"%e{layer}_{number}"
                lines.append("  " + text.format(result=result, value=value, layer=layer, name=f"%e{layer}_"))
                value = result
                if layer in self.planted:
                    planted.add(len(lines))
        return "\n".join([*lines, f"  return {value} : {WIDTH}", "}"]) + "\n", frozenset(planted)


def _product(result: str, value: str, weight: str) -> str:
    return (
        f"  {result} = stablehlo.dot_general {value}, {weight}, contracting_dims = [1] x [0] : "
        f"({WIDTH}, {WEIGHT}) -> {WIDTH}"
    )


_UNARY = "{{result}} = stablehlo.{op} {{value}} : " + WIDTH
BENIGN = (
    [_UNARY.format(op="negate"), _UNARY.format(op="negate")],
    ["{result} = stablehlo.maximum {value}, {value} : " + WIDTH],
    [
        _UNARY.format(op="negate"),
        "{result} = stablehlo.minimum {value}, {value} : " + WIDTH,
        _UNARY.format(op="negate"),
    ],
)
"""Edits that change no output and cost little."""
HEAVY = [_product("{result}", "{value}", "%w{layer}").strip()] * 6
WRONG = [_UNARY.format(op="cosine")]
LARGE = [
    "{result} = stablehlo.broadcast_in_dim {value}, dims = [1, 2] : (" + WIDTH + ") -> tensor<64x64x256xf32>",
    "{result} = stablehlo.transpose {value}, dims = [1, 0, 2] : (tensor<64x64x256xf32>) -> tensor<64x64x256xf32>",
    "{result} = stablehlo.slice {value} [0:64, 0:1, 0:256] : (tensor<64x64x256xf32>) -> tensor<64x1x256xf32>",
    "{result} = stablehlo.reshape {value} : (tensor<64x1x256xf32>) -> " + WIDTH,
]
CRASH = [
    "{result} = stablehlo.slice {value} [0:64, 0:0] : (" + WIDTH + ") -> tensor<64x0xf32>",
    "{result} = stablehlo.transpose {value}, dims = [1, 0] : (tensor<64x0xf32>) -> tensor<0x64xf32>",
    "{result} = stablehlo.dot_general {name}0, {value}, contracting_dims = [1] x [0] : "
    "(tensor<64x0xf32>, tensor<0x64xf32>) -> tensor<64x64xf32>",
    "{result} = stablehlo.dot_general {value}, %d{layer}, contracting_dims = [1] x [0] : "
    "(tensor<64x64xf32>, " + WIDTH + ") -> " + WIDTH,
]
"""A product with an extent of 0 crashes the compiler."""


# ---- verdicts


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a search ended. `ops`: whether the ops are right; "unknown" if the truth does not tell."""

    kind: str
    is_right: bool
    ops: str
    builds: int
    differences: int
    said: str

    @property
    def is_within_bound(self) -> bool:
        return self.builds <= 4 * math.log2(max(2, self.differences)) + 4


def _judged(*right: bool) -> str:
    return "right" if all(right) else "wrong"


@dataclass
class Workshop:
    """Builds, searches and judges in a folder."""

    folder: Path
    seed: int
    sizes: dict[tuple[str, ...], int] = field(default_factory=dict)

    @cached_property
    def random(self) -> random.Random:
        return random.Random(self.seed)

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return path

    def build(self, model: Path, name: str, flags: Sequence[str] = ()) -> Path:
        bundle = self.folder / f"{name}.tracemap"
        subprocess.run(
            command_line("build", model, "-q", "-o", bundle, "--force", "--", *flags),
            check=True,
            stdout=subprocess.DEVNULL,
        )
        return bundle

    def words(self, good: Path, bad: Path, *options: str | Path) -> list[str]:
        folder = self.folder / f"{good.stem}-{bad.stem}.bisect"
        return command_line("bisect", good, bad, "-o", folder, "--format", "json", *options)

    def bisect(self, good: Path, bad: Path, *options: str | Path) -> Json:
        done = subprocess.run(self.words(good, bad, *options), check=False, capture_output=True, text=True)
        if done.returncode:
            raise AssertionError(done.stderr)
        result: Json = json.loads(done.stdout)
        return result

    def module(self, model: Path, flags: Sequence[str], release: str = "") -> Path:
        """The module that plain iree-compile makes."""
        compiler: Path | str = find_tool("iree-compile")
        if release:
            compiler = environment(release, no_progress).parent / "iree-compile"
        module = self.folder / "plain.vmfb"
        subprocess.run([compiler, model, "-o", module, *PLAIN_FLAGS, *flags], check=True, stderr=subprocess.DEVNULL)
        return module

    def size(self, model: Path, flags: Sequence[str], release: str = "") -> int:
        key = (str(model), release, *flags)
        if key not in self.sizes:
            self.sizes[key] = self.module(model, flags, release).stat().st_size
        return self.sizes[key]


def _chosen_flags(chance: random.Random, must: Sequence[str], harmful: int, harmless: int) -> list[str]:
    others = [flag for flag in FLAGS if flag not in must]
    flags = [*must, *chance.sample(others, harmful), *chance.sample(HARMLESS, harmless)]
    chance.shuffle(flags)
    return flags


def size_by_flags(shop: Workshop) -> Verdict:
    """Flags by the size of the module."""
    chance = shop.random
    ops = chance.sample(sorted(SNIPPETS), chance.randint(2, 4))
    sizes = {"a": 64 * chance.randint(1, 4), "b": 64 * chance.randint(2, 6), "c": 8 * chance.randint(1, 4)}
    model = shop.write("model.mlir", program(sizes, ops))
    pair = ("--iree-llvmcpu-loop-vectorization=true", "--iree-llvmcpu-loop-unrolling=true")
    must = pair if chance.random() < 0.3 else ()
    flags = _chosen_flags(chance, must, chance.randint(3, 8), chance.randint(5, 8))
    sides: list[list[str]] = [[], flags]
    if shop.size(model, flags) < shop.size(model, []):
        sides.reverse()
    good, bad = (shop.build(model, name, own) for name, own in zip(("good", "bad"), sides, strict=True))
    result = shop.bisect(good, bad, "--metric", "module_bytes")
    texts = [each["text"] for each in result["differences"]]

    def flags_of(changed: Sequence[str]) -> list[str]:
        return [flag for flag in flags if _is_set(flag, changed, is_in_good=sides[0] is flags)]

    low, high = (shop.size(model, own) for own in sides)
    limit = low + 2 / 3 * (high - low)
    right, ops_right = [], []
    found = [[_plain(each["text"]) for each in cause["differences"]] for cause in result["causes"]]
    for cause, changed in zip(result["causes"], found, strict=True):
        right.append(shop.size(model, flags_of(changed)) >= limit)
        right += [shop.size(model, flags_of([each for each in changed if each != one])) < limit for one in changed]
        ops_right.append(_op_verdict(shop, sizes, cause, [(op, sides[0], flags_of(changed)) for op in ops]))
    rest = [text for text in texts if all(text not in changed for changed in found)]
    right.append(shop.size(model, flags_of(rest)) < limit)
    said = " | ".join(" + ".join(changed) for changed in found)
    return Verdict("flags, size", all(right) and bool(found), _worst(ops_right), result["builds"], len(texts), said)


def _op_verdict(
    shop: Workshop,
    sizes: dict[str, int],
    cause: Json,
    sides: Sequence[tuple[str, Sequence[str], Sequence[str]]],
    releases: tuple[str, str] = ("", ""),
) -> str:
    """Whether the first op is one that, in a module of its own, grows at least half as much as the worst.

    `sides`: ops with their flags before and after.
    """
    growth = {}
    for op, before, after in sides:
        alone = shop.write(f"{op}.mlir", program(sizes, [op]))
        growth[op] = shop.size(alone, after, releases[1]) - shop.size(alone, before, releases[0])
    # Every module grows by what does not depend on its ops, such as the code around kernels.
    shop.write("least.mlir", LEAST)
    _, before, after = sides[0]
    least = shop.folder / "least.mlir"
    common = shop.size(least, after, releases[1]) - shop.size(least, before, releases[0])
    growth = {op: size - common for op, size in growth.items()}
    most = max(growth.values())
    if most <= 64:  # modules are padded
        return "wrong" if any(op["change"] for op in cause["ops"]) else "unknown"
    if not cause["ops"]:
        return "wrong"
    return _judged(growth.get(cause["ops"][0]["name"], 0) >= most / 2)


def _worst(verdicts: Sequence[str]) -> str:
    return next((each for each in ("wrong", "right") if each in verdicts), "unknown")


def _plain(shown: str) -> str:
    """A flag without the parts of a level."""
    return shown.partition(", by ")[0]


def _is_set(flag: str, changed: Sequence[str], *, is_in_good: bool) -> bool:
    """Whether a build has a flag if it differs from the good one in these."""
    return f"without {flag}" not in changed if is_in_good else flag in changed


def time_by_flags(shop: Workshop) -> Verdict:
    """Flags by time: convolutions as products of matrices, or code without vector instructions, are slower."""
    chance = shop.random
    slow, op = chance.choice(
        [
            ("--iree-global-opt-use-im2col-for-convs", "stablehlo.convolution"),
            ("--iree-llvmcpu-target-cpu=generic", "stablehlo.tanh"),
        ]
    )
    ops = [op, *chance.sample([each for each in sorted(SNIPPETS) if each not in (op, "stablehlo.tanh")], 1)]
    chance.shuffle(ops)
    model = shop.write("model.mlir", program({"a": 128, "b": 512, "c": 32}, ops))
    flags = [slow, *chance.sample(HARMLESS, chance.randint(7, 9))]
    chance.shuffle(flags)
    good, bad = shop.build(model, "good"), shop.build(model, "bad", flags)
    result = shop.bisect(good, bad, "--seconds", "0.3")
    causes = result["causes"]
    said = " | ".join(" + ".join(each["text"] for each in cause["differences"]) for cause in causes)
    is_right = len(causes) == 1 and said.startswith(slow)
    hit = bool(causes) and bool(causes[0]["ops"]) and causes[0]["ops"][0]["name"] == op
    return Verdict("flags, time", is_right, _judged(hit), result["builds"], len(flags), said)


def releases(shop: Workshop) -> Verdict:
    """Three releases, between harmless flags, by the size of the module."""
    chance, chain = shop.random, ["3.11.0", "3.12.0", "3.13.0"]
    ops = chance.sample(sorted(SNIPPETS), chance.randint(1, 3))
    sizes = {"a": 64 * chance.randint(1, 4), "b": 64 * chance.randint(2, 6), "c": 8 * chance.randint(1, 4)}
    model = shop.write("model.mlir", program(sizes, ops))
    by_release = [shop.size(model, [], release) for release in chain]
    if by_release[0] > by_release[-1]:
        chain.reverse()
        by_release.reverse()
    flags = chance.sample(HARMLESS[:3], 2)
    bundles = []
    for release, own in ((chain[0], []), (chain[-1], flags)):
        bundle = shop.folder / f"by-{release}.tracemap"
        python = environment(release, no_progress)
        words: list[str | Path] = [python, "-m", "tracemap", "build", model, "-o", bundle, "--force", "--", *own]
        subprocess.run(words, check=True, capture_output=True)
        bundles.append(bundle)
    result = shop.bisect(*bundles, "--metric", "module_bytes", "--releases", ",".join(chain))
    low, high = by_release[0], by_release[-1]
    wanted = next(place for place in range(3) if by_release[place] >= low + 2 / 3 * (high - low)) if high > low else -1
    said = " | ".join(" + ".join(each["text"] for each in cause["differences"]) for cause in result["causes"])
    expected = f"IREE {chain[wanted]} (before: {chain[wanted - 1]})" if wanted >= 0 else ""
    sides: list[tuple[str, list[str], list[str]]] = [(op, [], []) for op in ops]
    changed = (chain[wanted - 1], chain[wanted])
    judged = [_op_verdict(shop, sizes, cause, sides, changed) for cause in result["causes"]]
    return Verdict(
        "releases", said == expected, _worst(judged), result["builds"], len(flags) + 2, f"{said or 'none'} {by_release}"
    )


def _edited(shop: Workshop, kind: str, work: Sequence[str], metric: str, culprits: int, *options: str) -> Verdict:
    """Edits of a chain: some that do not matter, and work behind one or two layers."""
    chance = shop.random
    # Later layers hide a difference in the values of early ones.
    places = chance.sample(range(LAYERS - 4 if metric == "outputs" else 0, LAYERS - 1), culprits)
    benign = chance.sample([layer for layer in range(LAYERS - 1) if layer not in places], chance.randint(2, 4))
    chain = Chain(
        {**{layer: list(work) for layer in places}, **{layer: list(chance.choice(BENIGN)) for layer in benign}},
        set(places),
    )
    text, planted = chain.text()
    before = shop.write("before.mlir", Chain().text()[0])
    after = shop.write("after.mlir", text)
    good = shop.build(before, "good")
    bad = after if metric == "crash" else shop.build(after, "bad")
    result = shop.bisect(good, bad, "--metric", metric, *options)
    causes = result["causes"]
    # Costs of two culprits add up to the change, so that neither is the cause alone; other failures are causes alone.
    is_shared = metric in ("time", "module_bytes")
    lines = [{op["line"] for op in cause["ops"]} & planted for cause in causes]
    found = set[int]().union(*lines)
    layers = sum(any(_layer(text, line) == layer for line in found) for layer in places)
    enough = len(causes) == (1 if is_shared else culprits)
    exact = sum(len(cause["differences"]) for cause in causes) == culprits
    hit = all(cause["ops"] and cause["ops"][0]["line"] in planted for cause in causes)
    said = " | ".join(" + ".join(each["text"] for each in cause["differences"]) for cause in causes)
    return Verdict(
        kind, enough and exact and layers == culprits, _judged(hit), result["builds"], len(result["differences"]), said
    )


def _layer(text: str, line: int) -> int:
    """The layer of an edit's line."""
    return int(text.splitlines()[line - 1].split("%e", 1)[1].split("_", 1)[0])


def edits_time(shop: Workshop) -> Verdict:
    """Edits by time."""
    return _edited(shop, "edits, time", HEAVY, "time", shop.random.randint(1, 2), "--seconds", "0.2")


def edits_size(shop: Workshop) -> Verdict:
    """Edits by the size of the module."""
    return _edited(shop, "edits, size", HEAVY, "module_bytes", 1)


def edits_memory(shop: Workshop) -> Verdict:
    """Edits by the planned peak of memory."""
    return _edited(shop, "edits, memory", HEAVY, "live_bytes_at_peak", 1)


def edits_outputs(shop: Workshop) -> Verdict:
    """Edits by outputs."""
    return _edited(shop, "edits, outputs", WRONG, "outputs", shop.random.randint(1, 2))


def edits_crash(shop: Workshop) -> Verdict:
    """Edits by a crash of the compiler."""
    return _edited(shop, "edits, crash", CRASH, "crash", shop.random.randint(1, 2))


CASES = (
    *([size_by_flags] * 8),
    *([time_by_flags] * 3),
    *([releases] * 3),
    *([edits_time] * 3),
    *([edits_size] * 2),
    *([edits_outputs] * 3),
    *([edits_crash] * 2),
)


def equal_sides(shop: Workshop) -> Verdict:
    """Flags that do not matter: there is no cause."""
    chance = shop.random
    ops = chance.sample(sorted(SNIPPETS), 2)
    model = shop.write("model.mlir", program({"a": 128, "b": 256, "c": 16}, ops))
    flags = chance.sample(HARMLESS[:5], 4)
    good, bad = shop.build(model, "good"), shop.build(model, "bad", flags)
    metric = chance.choice(["time", "time", "module_bytes", "outputs"])
    result = shop.bisect(good, bad, "--metric", metric, "--seconds", "0.2")
    return Verdict("equal sides", not result["causes"], "unknown", result["builds"], len(flags), metric)


def killed(shop: Workshop) -> Verdict:
    """A search that is killed at any time, and then started again, finds the same as one that was not."""
    chance = shop.random
    model = shop.write("model.mlir", program({"a": 64, "b": 128, "c": 16}, sorted(SNIPPETS)))
    flags = _chosen_flags(chance, FLAGS[:2], 3, 4)
    good, bad = shop.build(model, "good"), shop.build(model, "bad", flags)
    begun = time.monotonic()
    whole = shop.bisect(good, bad, "--metric", "module_bytes")
    elapsed_s = time.monotonic() - begun
    folder = next(shop.folder.glob("*.bisect"))
    folder.rename(shop.folder / "whole")
    process = subprocess.Popen(
        shop.words(good, bad, "--metric", "module_bytes"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    time.sleep(elapsed_s * chance.uniform(0.1, 0.9))
    process.kill()
    process.wait()
    kept = {path.name for path in folder.glob("*.tracemap")} if folder.exists() else set[str]()
    stamps = {name: (folder / name / "module.vmfb").stat().st_mtime_ns for name in kept}
    again = shop.bisect(good, bad, "--metric", "module_bytes")
    unchanged = all((folder / name / "module.vmfb").stat().st_mtime_ns == stamp for name, stamp in stamps.items())
    is_right = again["causes"] == whole["causes"] and unchanged
    return Verdict("killed", is_right, "unknown", again["builds"], len(flags), f"{len(kept)} builds kept")


def _verdicts(seed: int, only: str) -> Iterator[Verdict]:
    cases = [*CASES, *([equal_sides] * 10), *([killed] * 10)]
    for number, case in enumerate(cases):
        if only and only not in case.__name__:
            continue
        with tempfile.TemporaryDirectory(prefix="tracemap-bisect-") as name:
            verdict = case(Workshop(Path(name), seed + number))
        mark = "right" if verdict.is_right else "WRONG"
        bound = "" if verdict.is_within_bound else ", OVER THE BOUND"
        print(
            f"{seed + number} {case.__name__}: {mark}, ops {verdict.ops}, {verdict.builds} builds for "
            f"{verdict.differences} differences{bound}: {verdict.said}",
            file=sys.stderr,
            flush=True,
        )
        yield verdict


def table(verdicts: Sequence[Verdict]) -> str:
    """The verdicts by kind, as a table of Markdown."""
    rows = ["| sides | right causes | right ops | builds, most | within the bound |", "|---|--:|--:|--:|--:|"]
    for kind in dict.fromkeys(verdict.kind for verdict in verdicts):
        own = [verdict for verdict in verdicts if verdict.kind == kind]
        judged = [verdict for verdict in own if verdict.ops != "unknown"]
        ops = f"{sum(verdict.ops == 'right' for verdict in judged)} of {len(judged)}" if judged else "not judged"
        right, within = (
            sum(map(test, own)) for test in (lambda each: each.is_right, lambda each: each.is_within_bound)
        )
        most = max(verdict.builds for verdict in own)
        rows.append(f"| {kind} | {right} of {len(own)} | {ops} | {most} | {within} of {len(own)} |")
    return "\n".join(rows)


@click.command()
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--only", default="", help="Only cases whose name has this.")
@click.option("--write-docs", is_flag=True, help="Put the table into docs/accuracy.md.")
def main(seed: int, only: str, write_docs: bool) -> None:
    """Print the table; status 1 where a search was wrong."""
    verdicts = list(_verdicts(seed, only))
    text = table(verdicts)
    print(text)
    if write_docs:
        write_part(DOCS / "accuracy.md", "bisections", text)
    sys.exit(0 if all(verdict.is_right and verdict.is_within_bound for verdict in verdicts) else 1)


if __name__ == "__main__":
    main()
