"""Accuracy of bundles and runs of native code: `python -m tests.oracle.native`.

Which op runs in which loop: each op of a generated program has a number of its own, and mlir-opt's text of the stage
with loops, made without tracemap, shows in which loop this number is used. How long a loop takes: the stage with all
other loops removed, compiled with the same tools and called by a loop of our own.
"""

from __future__ import annotations

import ctypes
import math
import random
import re
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from tests.documents import DOCS, write_part
from tests.native.support import LLVM, LOOPS, NAMES, STRUCTURED, flags, pipeline, program, run_all
from tests.support import Json, check_cli, json_cli
from tracemap.map.build.native.tools import MlirTools

# ---- programs


@dataclass(frozen=True)
class Generated:
    """A program, and the line of each op by its number."""

    text: str
    line_of: Mapping[float, int]


def generate(seed: int) -> Generated:
    """A function with elementwise ops, reductions and products; most read what an earlier op wrote."""
    chance = random.Random(seed)
    numbers = (0.5 + (2 * step + 1) / 4096 for step in range(chance.randrange(64), 4096))
    sizes = (24, 32, 40)
    count = chance.randint(4, 12)
    arguments: list[tuple[str, tuple[int, ...]]] = [("%a0", (32, 32))]
    body: list[str] = []
    line_of: dict[float, int] = {}
    for index in range(count):
        number = next(numbers)
        source, shape = chance.choice(arguments[-3:])
        kind = chance.choice(["map", "map", "map", "sum", "product"]) if len(shape) == 2 else "broadcast"
        rows, columns = shape if len(shape) == 2 else (shape[0], chance.choice(sizes))
        target = {"sum": (rows,), "product": (rows, chance.choice(sizes))}.get(kind, (rows, columns))
        out = f"%a{len(arguments)}"
        arguments.append((out, target))
        body.append(f"  %c{index} = arith.constant {number!r} : f32")
        line_of[number] = 2 + len(body) + 1
        if kind == "product":
            weight = f"%a{len(arguments)}"
            arguments.insert(0, (weight, (columns, target[1])))
            body += _product(source, shape, weight, (columns, target[1]), out, target, index)
        else:
            body += _plain(kind, source, shape, out, target, index)
    listed = ", ".join(
        f"{name}: {_type(shape)}" for name, shape in sorted(arguments, key=lambda item: int(item[0][2:]))
    )
    return Generated(
        "\n".join(["// a program", f"func.func @kernel({listed}) {{", *body, "  return", "}", ""]), line_of
    )


def _type(shape: Sequence[int]) -> str:
    return f"memref<{'x'.join(map(str, shape))}xf32>"


_MAPS: Final = {2: "affine_map<(i, j) -> (i, j)>", 1: "affine_map<(i, j) -> (i)>"}


def _plain(kind: str, source: str, shape: Sequence[int], out: str, target: Sequence[int], index: int) -> list[str]:
    iterators = '["parallel", "reduction"]' if kind == "sum" else '["parallel", "parallel"]'
    result = "%r" if kind != "sum" else "%s"
    maps = f"{_MAPS[len(shape)]}, {_MAPS[len(target)]}"
    return [
        f"  linalg.generic {{indexing_maps = [{maps}], iterator_types = {iterators}}}",
        f"    ins({source} : {_type(shape)}) outs({out} : {_type(target)}) {{",
        "  ^bb0(%x: f32, %o: f32):",
        f"    %r = arith.mulf %x, %c{index} : f32",
        *(["    %s = arith.addf %o, %r : f32"] if kind == "sum" else []),
        f"    linalg.yield {result} : f32",
        "  }",
    ]


def _product(
    source: str,
    shape: Sequence[int],
    weight: str,
    of_weight: Sequence[int],
    out: str,
    target: Sequence[int],
    index: int,
) -> list[str]:
    maps = ", ".join(f"affine_map<(i, j, k) -> ({dims})>" for dims in ("i, k", "k, j", "i, j"))
    return [
        f'  linalg.generic {{indexing_maps = [{maps}], iterator_types = ["parallel", "parallel", "reduction"]}}',
        f"    ins({source}, {weight} : {_type(shape)}, {_type(of_weight)}) outs({out} : {_type(target)}) {{",
        "  ^bb0(%x: f32, %w: f32, %o: f32):",
        "    %p = arith.mulf %x, %w : f32",
        f"    %r = arith.mulf %p, %c{index} : f32",
        "    %s = arith.addf %o, %r : f32",
        "    linalg.yield %s : f32",
        "  }",
    ]


# ---- loops of a text

_LOOP: Final = re.compile(r"    (?:%\S+(?::\d+)? = )?(?:scf|affine)\.(?:for|parallel|forall)\b")
_CONSTANT: Final = re.compile(r"(%\S+) = arith\.constant (?:dense<)?(-?[\d.]+(?:e[+-]?\d+)?)>? : (?:vector<\d+x)?f32")


def outer_loops(lines: Sequence[str]) -> list[range]:
    """The lines of the outermost loops of functions, by the printer's indentation."""
    loops, begin = [], -1
    for number, line in enumerate(lines):
        if begin < 0 and _LOOP.match(line):
            begin = number
        elif begin >= 0 and line.startswith("    }"):
            loops.append(range(begin, number + 1))
            begin = -1
    return loops


def numbers_in(text: str) -> list[set[float]]:
    """The numbers that each outermost loop uses, rounded to single precision."""
    lines = text.splitlines()
    known = {match[1]: _single(float(match[2])) for line in lines if (match := _CONSTANT.search(line))}
    return [
        {known[name] for line in loop for name in re.findall(r"%[\w$.-]+", lines[line]) if name in known}
        for loop in outer_loops(lines)
    ]


def _single(number: float) -> float:
    return float(struct.unpack("f", struct.pack("f", number))[0])


def stage_text(tools: MlirTools, model: Path, name: str) -> str:
    """The stage with loops, as mlir-opt makes it of the model as written."""
    passes = f"builtin.module({LOOPS[name]},{STRUCTURED})"
    done = subprocess.run([tools.opt, f"--pass-pipeline={passes}", model], capture_output=True, text=True, check=True)
    return done.stdout


# ---- memberships


def memberships(seeds: int, folder: Path) -> tuple[int, int, int]:
    """Right pairs of op and loop, all pairs that either side has, and loops, over the generated programs."""
    tools = MlirTools.installed()
    right = pairs = loops = 0
    for seed in range(seeds):
        made = generate(seed)
        model = folder / f"program{seed}.mlir"
        model.write_text(made.text)
        for name in LOOPS:
            bundle = folder / f"program{seed}-{name}.tracemap"
            check_cli("build", model, *flags(name), "-o", bundle)
            truth = [
                {made.line_of[number] for number in used if number in made.line_of}
                for used in numbers_in(stage_text(tools, model, name))
            ]
            shown = json_cli("show", bundle)
            found = _found(shown, len(truth))
            for place, (own, expected) in enumerate(zip(found, truth, strict=True)):
                own &= set(made.line_of.values())
                if own != expected:
                    print(
                        f"{model.name}, {name}, loop {place}: {sorted(own)} instead of {sorted(expected)}",
                        file=sys.stderr,
                    )
                right, pairs = right + len(own & expected), pairs + len(own | expected)
            loops += len(truth)
    return right, pairs, loops


def _found(shown: Json, count: int) -> list[set[int]]:
    line_of = {op["id"]: op["line"] for op in shown["ops"]}
    found: list[set[int]] = [set() for _ in range(count)]
    for site in shown["sites"]:
        if match := re.search(r"/loop(\d+)$", site["kernel"]):
            found[int(match[1])] |= {line_of[member["op"]] for member in site["members"]}
    return found


# ---- times


class Library:
    """A function of a library of our own making, with arguments of memory."""

    def __init__(self, path: Path, text: str) -> None:
        self._function = ctypes.CDLL(str(path))["_mlir_ciface_kernel"]
        head = next(line for line in text.splitlines() if "func.func @kernel(" in line)
        self._kept: list[object] = []
        self._arguments = [
            self._argument([int(extent) for extent in shape.split("x")[:-1]], element)
            for shape, element in re.findall(r"%arg\d+: memref<((?:\d+x)*)(\w+)>", head)
        ]

    def _argument(self, extents: Sequence[int], element: str) -> object:
        count = math.prod(extents)
        if element == "index":
            memory: ctypes.Array[Any] = (ctypes.c_int64 * count)()
        else:
            memory = (ctypes.c_float * count)(*(0.001 * (place % 89) for place in range(count)))
        strides = [math.prod(extents[place + 1 :]) for place in range(len(extents))]
        words = [ctypes.addressof(memory), ctypes.addressof(memory), 0, *extents, *strides]
        descriptor = (ctypes.c_int64 * len(words))(*words)
        self._kept += [memory, descriptor]
        return ctypes.byref(descriptor)

    def seconds(self) -> float:
        """The median time of a call, of at least 0.4 s of calls."""
        times: list[float] = []
        until = time.perf_counter() + 0.4
        while len(times) < 5 or time.perf_counter() < until:
            begin = time.perf_counter()
            self._function(*self._arguments)
            times.append(time.perf_counter() - begin)
        return statistics.median(times)


def compiled(tools: MlirTools, text: str, folder: Path, name: str) -> Library:
    """Compile a stage with the rest of the pipeline, without tracemap."""
    source, lowered, ir, library = (folder / f"{name}.{end}" for end in ("mlir", "llvm.mlir", "ll", "so"))
    source.write_text(re.sub(r"(func\.func @kernel\(.*\)) \{", r"\1 attributes {llvm.emit_c_interface} {", text))
    run_all(
        [tools.opt, f"--pass-pipeline=builtin.module({LLVM})", source, "-o", lowered],
        [tools.translate, "--mlir-to-llvmir", lowered, "-o", ir],
        [tools.clang, "-O3", "-fPIC", "-shared", "-Wno-override-module", "-x", "ir", ir, "-o", library, "-lm"],
    )
    return Library(library, text)


def only(text: str, kept: int) -> str:
    """A stage's text without its other outermost loops; their results are zero."""
    lines = text.splitlines(keepends=True)
    for number, loop in enumerate(outer_loops(lines)):
        if number == kept:
            continue
        result = re.match(r"    (%\S+) = ", lines[loop.start])
        lines[loop.start] = f"    {result[1]} = arith.constant 0.0 : f32\n" if result else ""
        lines[loop.start + 1 : loop.stop] = [""] * (len(loop) - 1)
    return "".join(lines)


@dataclass(frozen=True)
class LoopShare:
    """A loop's part of the time of all loops: by samples, and timed alone."""

    program: str
    pipeline: str
    loop: int
    found: float
    truth: float

    @property
    def points(self) -> float:
        """The difference in percentage points."""
        return 100 * abs(self.found - self.truth)


def shares(folder: Path, seconds: float, names: Sequence[str] = NAMES) -> Iterator[LoopShare]:
    """The parts of all loops of the programs, by two pipelines each."""
    tools = MlirTools.installed()
    for name in names:
        for lowering in ("affine", "vector"):
            bundle, run = folder / f"{name}-{lowering}.tracemap", folder / f"{name}-{lowering}.parquet"
            check_cli("build", program(name), *flags(lowering), "-o", bundle)
            check_cli("record", bundle, "--seconds", str(seconds), "-o", run)
            found = loop_times(bundle, run)
            text = stage_text(tools, program(name), lowering)
            count = len(outer_loops(text.splitlines()))
            base = compiled(tools, only(text, -1), folder, "none").seconds()
            alone = [
                max(0.0, compiled(tools, only(text, loop), folder, f"{name}-{lowering}-{loop}").seconds() - base)
                for loop in range(count)
            ]
            sums = sum(found.values()), sum(alone)
            for loop in range(count):
                yield LoopShare(name, lowering, loop, found.get(loop, 0) / sums[0], alone[loop] / sums[1])


def loop_times(bundle: Path, run: Path) -> dict[int, int]:
    """The time of each outermost loop by `tracemap attribute`."""
    shown = json_cli("attribute", run, "--map", bundle)
    kernel_of = {site["id"]: site["kernel"] for site in json_cli("show", bundle)["sites"]}
    times: dict[int, int] = {}
    for site in shown["sites"]:
        if match := re.search(r"/loop(\d+)$", kernel_of[site["site"]]):
            own = int(match[1])
            times[own] = times.get(own, 0) + int(site["metrics"]["duration_ns"]["total"])
    return times


# ---- equal loops

_EQUAL: Final = 4


def equal_loops(folder: Path, seconds: float) -> list[int]:
    """The times of equal loops that work on memory of their own."""
    names = [f"%{letter}{index}" for index in range(_EQUAL) for letter in "xwo"]
    arguments = ", ".join(f"{name}: memref<64x64xf32>" for name in names)
    kind = "memref<64x64xf32>"
    body = [
        f"  linalg.matmul ins(%x{index}, %w{index} : {kind}, {kind}) outs(%o{index} : {kind})"
        for index in range(_EQUAL)
    ]
    model, bundle, run = folder / "equal.mlir", folder / "equal.tracemap", folder / "equal.parquet"
    model.write_text("\n".join([f"func.func @kernel({arguments}) {{", *body, "  return", "}", ""]))
    check_cli("build", model, "--to", "native", "--pipeline", pipeline("plain"), "-o", bundle)
    check_cli("record", bundle, "--seconds", str(seconds), "-o", run)
    return list(loop_times(bundle, run).values())


@click.command()
@click.option("--seeds", type=click.IntRange(1), default=20, show_default=True, help="How many generated programs.")
@click.option("--seconds", default=4.0, show_default=True, help="Time of each recording.")
@click.option("--write-docs", is_flag=True, help="Put the table into docs/accuracy.md.")
def main(seeds: int, seconds: float, write_docs: bool) -> None:
    """Measure the accuracy of native code; status 1 where a target is missed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        right, pairs, loops = memberships(seeds, folder)
        measured = list(shares(folder, seconds))
        equal = equal_loops(folder, 2.5 * seconds)
    worst = max(measured, key=lambda share: share.points)
    spread = 100 * (max(equal) / min(equal) - 1)
    for share in measured:
        print(
            f"{share.program} {share.pipeline} loop{share.loop}: {share.found:.1%} by samples, {share.truth:.1%} alone"
        )
    within = sum(share.points <= _MOST_POINTS for share in measured)
    table = "\n".join(
        [
            "| what | right |",
            "|---|---|",
            f"| ops in {loops} loops: {seeds} generated programs by {len(LOOPS)} pipelines | {right} of {pairs} |",
            f"| a loop's part of the time within {_MOST_POINTS} points of the loop alone, {len(NAMES)} programs by 2 "
            f"pipelines | {within} of {len(measured)}; the worst {worst.points:.1f} points |",
            f"| {_EQUAL} equal loops: the slowest over the fastest | {spread:.1f} % more |",
        ]
    )
    print(table)
    if write_docs:
        write_part(DOCS / "accuracy.md", "native", table)
    sys.exit(int(right < _LEAST_RIGHT * pairs or within < len(measured) or spread > _MOST_SPREAD))


_MOST_POINTS: Final = 10
_LEAST_RIGHT: Final = 0.98
_MOST_SPREAD: Final = 10.0

if __name__ == "__main__":
    main()
