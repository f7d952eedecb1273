"""Do shares inside of kernels follow cost? Generated kernels whose truth is known without looking inside of them.

Ops that are the same cost the same wherever they stand; changing their order changes no share; an op that does its work
k times costs k times as much; ops cost as they do alone, beyond what a kernel that only copies takes; what a strided
read makes a kernel slower by is of the op that reads; what is read is missed by the op that reads it.

`python -m tests.oracle.inside` prints the table; `make accuracy` calls it. All kernels run serially.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import click

from tests.support import Json, check_cli, json_cli

EQUAL_POINTS = SWAPPED_POINTS = 5.0
OWN_POINTS = 15.0
RATIO_ERROR = 0.20
STALL_SHARE = 0.80
_HZ = "1999"
_FEWEST = 100
"""Samples in the kernel, below which the report itself goes by its estimates."""

FUNCTIONS = ("math.tanh", "math.exp", "math.log1p", "math.sqrt", "math.rsqrt", "math.erf", "math.sin", "math.absf")
COSTLY = ("math.tanh", "math.exp", "math.log1p", "math.erf", "math.sin")


# ---- programs


@dataclass(frozen=True, slots=True)
class Program:
    """A model that becomes one kernel; `lines` are those of the ops asked about."""

    name: str
    text: str
    lines: tuple[int, ...]


@dataclass
class _Writer:
    """Writes a function of linalg ops over matrices, and notes the lines of the ops that are asked about."""

    arguments: Sequence[str]
    lines: list[str] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lines += [
            "#id = affine_map<(d0, d1) -> (d0, d1)>",
            "#turned = affine_map<(d0, d1) -> (d1, d0)>",
            "#row = affine_map<(d0, d1) -> (d0)>",
            "",  # the head, once the result is known
        ]

    def line(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def asks(self) -> None:
        """The next line is asked about."""
        self.asked.append(len(self.lines) + 1)

    def elementwise(self, result: str, source: str, size: str, body: Sequence[str], reads: str = "#id") -> None:
        """An op over all elements; the body's last value is `%v`."""
        maps = f'{{indexing_maps = [{reads}, #id], iterator_types = ["parallel", "parallel"]}}'
        self.line(f"{result}.e = tensor.empty() : tensor<{size}xf32>")
        self.asks()
        of = f"tensor<{size}xf32>"
        self.line(f"{result} = linalg.generic {maps} ins({source} : {of}) outs({result}.e : {of}) {{")
        self.line("^bb0(%in: f32, %out: f32):")
        for each in body:
            self.line(f"  {each}")
        self.line("  linalg.yield %v : f32")
        self.line(f"}} -> tensor<{size}xf32>")

    def added(self, result: str, one: str, two: str, size: str) -> None:
        """The sum of two matrices; it is not asked about."""
        maps = '{indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]}'
        self.line(f"{result}.e = tensor.empty() : tensor<{size}xf32>")
        self.line(
            f"{result} = linalg.generic {maps} ins({one}, {two} : tensor<{size}xf32>, tensor<{size}xf32>) "
            f"outs({result}.e : tensor<{size}xf32>) {{"
        )
        self.line("^bb0(%l: f32, %r: f32, %out: f32):")
        self.line("  %v = arith.addf %l, %r : f32")
        self.line("  linalg.yield %v : f32")
        self.line(f"}} -> tensor<{size}xf32>")

    def summed(self, result: str, source: str, rows: int, columns: int) -> None:
        """The sums of rows; they are not asked about."""
        self.line("%zero = arith.constant 0.0 : f32")
        self.line(f"{result}.e = tensor.empty() : tensor<{rows}xf32>")
        self.line(
            f"{result}.f = linalg.fill ins(%zero : f32) outs({result}.e : tensor<{rows}xf32>) -> tensor<{rows}xf32>"
        )
        maps = '{indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}'
        self.line(
            f"{result} = linalg.generic {maps} ins({source} : tensor<{rows}x{columns}xf32>) "
            f"outs({result}.f : tensor<{rows}xf32>) {{"
        )
        self.line("^bb0(%in: f32, %acc: f32):")
        self.line("  %v = arith.addf %in, %acc : f32")
        self.line("  linalg.yield %v : f32")
        self.line(f"}} -> tensor<{rows}xf32>")

    def program(self, name: str, result: str, size: str) -> Program:
        """The model, which returns this value."""
        given = ", ".join(f"%x{number}: tensor<{each}xf32>" for number, each in enumerate(self.arguments))
        self.lines[3] = f"func.func @main({given}) -> tensor<{size}xf32> {{"
        self.line(f"return {result} : tensor<{size}xf32>")
        return Program(name, "\n".join([*self.lines, "}"]) + "\n", tuple(self.asked))


def applied(function: str, times: int) -> list[str]:
    """A function applied to `%in` so often, one after the other."""
    names = ["%in", *(f"%t{number}" for number in range(1, times)), "%v"]
    return [f"{names[number + 1]} = {function} {names[number]} : f32" for number in range(times)]


SIZE = "256x256"


def chain(parts: Sequence[tuple[str, int]]) -> Program:
    """Ops one after the other, each a function so many times."""
    writer = _Writer([SIZE])
    source = "%x0"
    for number, (function, times) in enumerate(parts):
        writer.elementwise(f"%y{number}", source, SIZE, applied(function, times))
        source = f"%y{number}"
    return writer.program(", ".join(f"{times} {function[5:]}" for function, times in parts), source, SIZE)


def chain_then_sum(parts: Sequence[tuple[str, int]]) -> Program:
    """A chain whose rows are summed up."""
    writer = _Writer([SIZE])
    source = "%x0"
    for number, (function, times) in enumerate(parts):
        writer.elementwise(f"%y{number}", source, SIZE, applied(function, times))
        source = f"%y{number}"
    writer.summed("%s", source, 256, 256)
    return writer.program("sum of " + ", ".join(f"{times} {function[5:]}" for function, times in parts), "%s", "256")


def epilogue(parts: Sequence[tuple[str, int]]) -> Program:
    """A matrix product, and a chain on its result."""
    writer = _Writer(["256x64", "64x256"])
    writer.line("%zero = arith.constant 0.0 : f32")
    writer.line("%p.e = tensor.empty() : tensor<256x256xf32>")
    writer.line("%p.f = linalg.fill ins(%zero : f32) outs(%p.e : tensor<256x256xf32>) -> tensor<256x256xf32>")
    writer.line(
        "%p = linalg.matmul ins(%x0, %x1 : tensor<256x64xf32>, tensor<64x256xf32>) "
        "outs(%p.f : tensor<256x256xf32>) -> tensor<256x256xf32>"
    )
    source = "%p"
    for number, (function, times) in enumerate(parts):
        writer.elementwise(f"%y{number}", source, SIZE, applied(function, times))
        source = f"%y{number}"
    name = ", ".join(f"{times} {function[5:]}" for function, times in parts)
    return writer.program(f"product, then {name}", source, SIZE)


def two_reads(reads: str, functions: tuple[str, str], size: str) -> Program:
    """Two ops that read a matrix each, the first in this order, and the sum of both."""
    writer = _Writer([size, size])
    writer.elementwise("%a", "%x0", size, applied(functions[0], 1), reads)
    writer.elementwise("%b", "%x1", size, applied(functions[1], 1))
    writer.added("%s", "%a", "%b", size)
    turned = "turned " if reads == "#turned" else ""
    return writer.program(f"{turned}{functions[0][5:]} + {functions[1][5:]}, {size}", "%s", size)


# ---- measuring


@dataclass(frozen=True, slots=True)
class Seen:
    """What a recording tells: the kernel's time (the fastest of several medians), shares by line, and how sure."""

    kernel_ns: float
    shares: dict[int, float]
    misses: dict[int, float]
    samples: int


class Bench:
    """Builds and records programs, each once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: dict[tuple[str, bool], Seen] = {}

    def seen(self, program: Program, *, simulated: bool = False) -> Seen:
        """What a recording of a program tells.

        Raises:
            ValueError: it did not become one kernel.
        """
        key = program.text, simulated
        if key not in self._seen:
            self._seen[key] = self._measured(program, simulated=simulated)
        return self._seen[key]

    def _measured(self, program: Program, *, simulated: bool) -> Seen:
        model = self._folder / f"p{len(self._seen)}.mlir"
        model.write_text(program.text, encoding="utf-8")
        bundle = model.with_suffix(".tracemap")
        check_cli("build", model, "-o", bundle)
        once = self._attributed(bundle, 200)
        (site,) = once["sites"]
        call_ns = max(1.0, site["metrics"]["cpu_ns"]["total"] / max(1, site["calls"]))
        # Half a second in the kernel is about a thousand samples.
        iterations = int(min(60_000, max(300, 5e8 / call_ns)))
        flags = ("--cache-sim",) if simulated else ()
        result = self._attributed(bundle, iterations, "--sample", _HZ, *flags)
        fast = min(_low_ns(self._attributed(bundle, max(300, iterations // 8))) for _ in range(3))
        line_of = {op["op"]: op["line"] for op in result["ops"]}
        return Seen(
            kernel_ns=fast,
            shares=_by_line(result, "cpu_ns", line_of),
            misses=_by_line(result, "D1mr", line_of) if simulated else {},
            samples=sum(site["metrics"]["samples"]["total"] for site in result["sites"]),
        )

    def _attributed(self, bundle: Path, iterations: int, *flags: str) -> Json:
        run = self._folder / "run.parquet"
        counted = ("--serial", "--iterations", str(iterations), "--warmup", "20", "--force")
        check_cli("record", bundle, "-o", run, *counted, *flags)
        rule = ("--rule", "measured") if flags else ()
        found = json_cli("attribute", run, "--map", bundle, *rule)
        if len(found["sites"]) != 1:
            raise ValueError(f"{len(found['sites'])} kernels where one was to be: nothing is fused")
        return found


def _low_ns(result: Json) -> float:
    """What all but the fastest tenth of calls take: what disturbs a machine makes calls slower, never faster."""
    return float(result["sites"][0]["metrics"]["cpu_ns"]["per_call"]["p10"])


def _by_line(result: Json, metric: str, line_of: dict[str, int]) -> dict[int, float]:
    """The shares of a metric, by line, of what the ops of the kernel have together."""
    found: dict[int, float] = {}
    for op in result["ops"]:
        found[line_of[op["op"]]] = found.get(line_of[op["op"]], 0) + op["metrics"][metric]["attributed"]
    total = sum(found.values()) or 1
    return {line: value / total for line, value in found.items()}


# ---- what has to hold


@dataclass(frozen=True, slots=True)
class Outcome:
    """A claim: of which kernel, what was to be, what is, and whether that is good enough."""

    family: str
    kernel: str
    wanted: str
    found: str
    holds: bool
    samples: int


Claim = Callable[[Bench], Iterator[Outcome]]


def _shares(seen: Seen, program: Program) -> list[float]:
    """The shares of the ops that are asked about, of what these have together."""
    own = [seen.shares.get(line, 0.0) for line in program.lines]
    return [100 * each / (sum(own) or 1) for each in own]


def _shown(shares: Sequence[float]) -> str:
    return " ".join(f"{each:.0f}" for each in shares)


def equal(family: str, program: Program) -> Claim:
    """All ops that are asked about do the same."""

    def judged(bench: Bench) -> Iterator[Outcome]:
        seen = bench.seen(program)
        shares = _shares(seen, program)
        even = 100 / len(shares)
        good = all(abs(each - even) <= EQUAL_POINTS for each in shares)
        yield Outcome(family, program.name, _shown([even] * len(shares)), _shown(shares), good, seen.samples)

    return judged


def swapped(family: str, program: Program, other: Program) -> Claim:
    """The same two ops in both orders."""

    def judged(bench: Bench) -> Iterator[Outcome]:
        seen = bench.seen(program), bench.seen(other)
        one, two = _shares(seen[0], program), list(reversed(_shares(seen[1], other)))
        good = all(abs(a - b) <= SWAPPED_POINTS for a, b in zip(one, two, strict=True))
        yield Outcome(family, program.name, _shown(two), _shown(one), good, min(each.samples for each in seen))

    return judged


def multiple(family: str, program: Program, times: int) -> Claim:
    """The first op asked about does its work once, the second so many times."""

    def judged(bench: Bench) -> Iterator[Outcome]:
        seen = bench.seen(program)
        once, often = _shares(seen, program)
        ratio = often / once if once else float("inf")
        good = abs(ratio / times - 1) <= RATIO_ERROR
        yield Outcome(family, program.name, f"1 : {times}", f"1 : {ratio:.2f}", good, seen.samples)

    return judged


def own_cost(family: str, program: Program, alone: Sequence[Program], copy: Program) -> Claim:
    """Each op costs as it does in a kernel of its own, beyond one that only copies."""

    def judged(bench: Bench) -> Iterator[Outcome]:
        seen = bench.seen(program)
        base = bench.seen(copy).kernel_ns
        costs = [max(0.0, bench.seen(each).kernel_ns - base) for each in alone]
        wanted = [100 * cost / (sum(costs) or 1) for cost in costs]
        shares = _shares(seen, program)
        good = all(abs(a - b) <= OWN_POINTS for a, b in zip(shares, wanted, strict=True))
        yield Outcome(family, program.name, _shown(wanted), _shown(shares), good, seen.samples)

    return judged


def stalled(family: str, program: Program, contiguous: Program) -> Claim:
    """What a strided read takes longer is of the op that reads so, the first one asked about."""

    def judged(bench: Bench) -> Iterator[Outcome]:
        slow, fast = bench.seen(program), bench.seen(contiguous)
        stall = slow.kernel_ns - fast.kernel_ns
        line = program.lines[0]
        more = slow.shares.get(line, 0.0) * slow.kernel_ns - fast.shares.get(line, 0.0) * fast.kernel_ns
        good = stall <= 0 or more >= STALL_SHARE * stall
        found = f"{more / 1000:.1f} µs of {slow.kernel_ns / 1000:.1f}"
        yield Outcome(family, program.name, f"{stall / 1000:.1f} µs", found, good, slow.samples)

    return judged


def reading(family: str, program: Program, readers: Sequence[int]) -> Claim:
    """All simulated misses of reads are at these of the ops asked about; none of them reads: none are at any."""

    def judged(bench: Bench) -> Iterator[Outcome]:
        seen = bench.seen(program, simulated=True)
        part = sum(seen.misses.get(program.lines[number], 0.0) for number in readers)
        wanted = 1.0 if readers else 0.0
        yield Outcome(
            family, program.name, f"{wanted:.0%}", f"{100 * part:.1f} %", abs(part - wanted) <= 0.001, seen.samples
        )

    return judged


def claims(seed: int) -> Iterator[Claim]:
    """What is judged; the seed chooses functions and orders."""
    random = Random(seed)
    copy = chain([("math.absf", 1)])
    for function in FUNCTIONS[:-1]:
        for number in random.sample(range(2, 7), 2):
            yield equal("chain of equal ops", chain([(function, random.choice([1, 2]))] * number))
    for function in random.sample(COSTLY, 3):
        yield equal("equal ops, then a sum", chain_then_sum([(function, 1)] * random.choice([2, 3])))
        yield equal("product, then equal ops", epilogue([(function, 1)] * random.choice([2, 3])))
    for _ in range(6):
        one, two = random.sample(COSTLY, 2)
        first, second = chain([(one, 1), (two, 1)]), chain([(two, 1), (one, 1)])
        yield swapped("order of two ops", first, second)
        yield own_cost("as alone", first, [chain([(one, 1)]), chain([(two, 1)])], copy)
        yield own_cost("as alone", second, [chain([(two, 1)]), chain([(one, 1)])], copy)
    for function in COSTLY:
        times = random.choice([2, 3, 4])
        yield multiple("k times the work", chain([(function, 1), (function, times)]), times)
    for function in random.sample(COSTLY, 3):
        yield multiple("k times, then a sum", chain_then_sum([(function, 1), (function, 2)]), 2)
        yield multiple("product, then k times", epilogue([(function, 1), (function, 3)]), 3)
    for function in ("math.absf", "math.sqrt", "math.tanh", "math.exp"):
        for size in ("1024x1024", "2048x2048"):
            names = function, random.choice(COSTLY)
            yield stalled("strided read", two_reads("#turned", names, size), two_reads("#id", names, size))
    for function in random.sample(COSTLY, 3):
        yield reading("misses of reads", chain([(function, 1), ("math.exp", 1), ("math.tanh", 1)]), [0])
        yield reading("misses of reads", two_reads("#id", (function, "math.sqrt"), "512x512"), [0, 1])
        yield reading("misses of reads", epilogue([(function, 1)]), [])


def table(outcomes: Sequence[Outcome]) -> str:
    """The outcomes as a table of Markdown."""
    rows = ["| family | kernel | should be | is | samples | |", "|---|---|---|---|--:|---|"]
    rows += [
        f"| {each.family} | {each.kernel} | {each.wanted} | {each.found} | {each.samples} "
        f"| {'' if each.holds else 'MISSED'} |"
        for each in outcomes
    ]
    return "\n".join(rows)


@click.command()
@click.option("--seed", default=11, show_default=True, help="Other seeds choose other functions and orders.")
@click.option("--family", help="Only this one.")
def main(seed: int, family: str | None) -> None:
    """Print the table; status 1 where a claim does not hold."""
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="tracemap-inside-") as folder:
        bench = Bench(Path(folder))
        for claim in claims(seed):
            if family is not None and family not in str(_family_of(claim)):
                continue
            try:
                outcomes += claim(bench)
            except ValueError as error:
                print(f"left out: {error}", file=sys.stderr)
                continue
            print(table(outcomes[-1:]).splitlines()[-1], file=sys.stderr)
    print(table(outcomes))
    missed = sum(not each.holds for each in outcomes)
    few = sum(each.samples < _FEWEST for each in outcomes)
    print(f"\n{len(outcomes)} claims, {missed} missed; {few} rest on less than {_FEWEST} samples")
    sys.exit(1 if missed else 0)


def _family_of(claim: Claim) -> str:
    """The family that a claim was made for."""
    return next(str(cell.cell_contents) for cell in claim.__closure__ or () if isinstance(cell.cell_contents, str))


if __name__ == "__main__":
    main()
