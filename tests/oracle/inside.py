"""Do shares inside of kernels follow cost? Generated kernels whose truth is known without looking inside of them.

Ops that are the same cost the same wherever they stand; changing their order changes no share; an op that does its work
k times costs k times as much; ops cost as they do alone, beyond what a kernel that only copies takes; what a strided
read makes a kernel slower by, or a gather's indices in any order where they were in sequence, is of the op that reads,
wherever that stands; what is read is missed by the op that reads it.

`python -m tests.oracle.inside` prints the table; `make accuracy` calls it. All kernels run serially. Times are the
fastest of several, as what disturbs a machine makes calls slower, never faster.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import click
import numpy as np

import tests.oracle.drawn_sums  # noqa: F401 - enters its classes
from tests.documents import DOCS, write_part
from tests.oracle import judging
from tests.oracle.drawn import CLASSES, Case, draw
from tests.oracle.judging import RULES
from tests.oracle.linalg import (
    COSTLY,
    FUNCTIONS,
    Indices,
    Program,
    beside_gather,
    chain,
    chain_then_sum,
    epilogue,
    gather,
    gathered_alone,
    product_and_sum,
    sum_of_squares,
    two_reads,
)
from tests.oracle.truths import Truths
from tests.support import Json, check_cli, json_cli

EQUAL_POINTS = SWAPPED_POINTS = 5.0
OWN_POINTS = 15.0
RATIO_ERROR = 0.20
STALL_SHARE = 0.80
_HZ = "1999"
_FEWEST = 100
"""Samples in the kernel, below which the report itself goes by its estimates."""
_TIMINGS = 5
_READ_POINTS = 3.0
"""Arrays begin somewhere in a line of memory, and share what is left of the cache."""


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
        self._seen: dict[tuple[Program, bool], Seen] = {}

    def seen(self, program: Program, *, simulated: bool = False) -> Seen:
        """What a recording of a program tells.

        Raises:
            ValueError: it did not become one kernel.
        """
        key = program, simulated
        if key not in self._seen:
            self._seen[key] = self._measured(program, simulated=simulated)
        return self._seen[key]

    def _measured(self, program: Program, *, simulated: bool) -> Seen:
        model = self._folder / f"p{len(self._seen)}.mlir"
        model.write_text(program.text, encoding="utf-8")
        bundle, inputs = model.with_suffix(".tracemap"), self._inputs(program)
        check_cli("build", model, "-o", bundle)
        once = self._attributed(bundle, 30, *inputs)
        (site,) = once["sites"]
        call_ns = max(1.0, site["metrics"]["cpu_ns"]["total"] / max(1, site["calls"]))
        # So much time in the kernel is about a thousand samples.
        iterations = int(min(60_000, max(150, 6e8 / call_ns)))
        flags = ("--cache-sim",) if simulated else ()
        result = self._attributed(bundle, iterations, *inputs, "--sample", _HZ, *flags)
        few = max(60, iterations // 10)
        fast = min(_low_ns(self._attributed(bundle, few, *inputs)) for _ in range(_TIMINGS))
        line_of = {op["op"]: op["line"] for op in result["ops"]}
        return Seen(
            kernel_ns=fast,
            shares=_by_line(result, "cpu_ns", line_of),
            misses=_by_line(result, "D1mr", line_of) if simulated else {},
            samples=sum(site["metrics"]["samples"]["total"] for site in result["sites"]),
        )

    def _inputs(self, program: Program) -> list[str]:
        """The inputs of a program as flags."""
        flags = []
        for given in program.inputs:
            flags += ["--input", self._saved(given) if isinstance(given, Indices) else given]
        return flags

    def _saved(self, indices: Indices) -> str:
        file = self._folder / "indices.npy"
        np.save(file, _whole_numbers(indices))
        return f"@{file}"

    def _attributed(self, bundle: Path, iterations: int, *flags: str) -> Json:
        run = self._folder / "run.parquet"
        counted = ("--serial", "--iterations", str(iterations), "--warmup", "10", "--force")
        check_cli("record", bundle, "-o", run, *counted, *flags)
        rule = ("--rule", "measured") if "--sample" in flags else ()
        found = json_cli("attribute", run, "--map", bundle, *rule)
        if len(found["sites"]) != 1:
            raise ValueError(f"{len(found['sites'])} kernels where one was to be: nothing is fused")
        return found


def _whole_numbers(indices: Indices) -> np.typing.NDArray[np.int32]:
    count = indices.rows * indices.columns
    found = np.arange(count, dtype=np.int64) % indices.below
    if indices.shuffled:
        found = np.random.default_rng(count).integers(0, indices.below, count)
    return found.astype(np.int32).reshape(indices.rows, indices.columns)


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
class Verdict:
    """What was to be, what is, whether that is good enough, and how many samples say so."""

    wanted: str
    found: str
    holds: bool
    samples: int


@dataclass(frozen=True, slots=True)
class Claim:
    """What has to hold of a kernel, and how it is judged."""

    family: str
    kernel: str
    judge: Callable[[Bench], Verdict]


@dataclass(frozen=True, slots=True)
class Outcome:
    """A claim that was judged."""

    claim: Claim
    verdict: Verdict


def _shares(seen: Seen, program: Program) -> list[float]:
    """The shares of the ops that are asked about, of what these have together."""
    own = [seen.shares.get(line, 0.0) for line in program.lines]
    return [100 * each / (sum(own) or 1) for each in own]


def _shown(shares: Sequence[float]) -> str:
    return " ".join(f"{each:.0f}" for each in shares)


def equal(family: str, program: Program) -> Claim:
    """All ops that are asked about do the same."""

    def judged(bench: Bench) -> Verdict:
        seen = bench.seen(program)
        shares = _shares(seen, program)
        even = 100 / len(shares)
        good = all(abs(each - even) <= EQUAL_POINTS for each in shares)
        return Verdict(_shown([even] * len(shares)), _shown(shares), good, seen.samples)

    return Claim(family, program.name, judged)


def swapped(family: str, program: Program, other: Program) -> Claim:
    """The same two ops in both orders."""

    def judged(bench: Bench) -> Verdict:
        seen = bench.seen(program), bench.seen(other)
        one, two = _shares(seen[0], program), list(reversed(_shares(seen[1], other)))
        good = all(abs(a - b) <= SWAPPED_POINTS for a, b in zip(one, two, strict=True))
        return Verdict(_shown(two), _shown(one), good, min(each.samples for each in seen))

    return Claim(family, program.name, judged)


def multiple(family: str, program: Program, times: int) -> Claim:
    """The first op asked about does its work once, the second so many times."""

    def judged(bench: Bench) -> Verdict:
        seen = bench.seen(program)
        once, often = _shares(seen, program)
        ratio = often / once if once else float("inf")
        return Verdict(f"1 : {times}", f"1 : {ratio:.2f}", abs(ratio / times - 1) <= RATIO_ERROR, seen.samples)

    return Claim(family, program.name, judged)


def own_cost(family: str, program: Program, alone: Sequence[Program], copy: Program) -> Claim:
    """Each op costs as it does in a kernel of its own, beyond one that only copies."""

    def judged(bench: Bench) -> Verdict:
        seen = bench.seen(program)
        base = bench.seen(copy).kernel_ns
        costs = [max(0.0, bench.seen(each).kernel_ns - base) for each in alone]
        wanted = [100 * cost / (sum(costs) or 1) for cost in costs]
        shares = _shares(seen, program)
        good = all(abs(a - b) <= OWN_POINTS for a, b in zip(shares, wanted, strict=True))
        return Verdict(_shown(wanted), _shown(shares), good, seen.samples)

    return Claim(family, program.name, judged)


def stalled(family: str, program: Program, fast: Program, reader: int = 0) -> Claim:
    """What a program takes longer than one that reads in sequence is of the op that reads, and not much more than that.

    `reader`: the number of this op among those that are asked about.
    """

    def judged(bench: Bench) -> Verdict:
        slow, base = bench.seen(program), bench.seen(fast)
        stall = slow.kernel_ns - base.kernel_ns
        line = program.lines[reader]
        more = slow.shares.get(line, 0.0) * slow.kernel_ns - base.shares.get(line, 0.0) * base.kernel_ns
        most = (2 - STALL_SHARE) * stall + OWN_POINTS / 100 * slow.kernel_ns
        good = stall <= 0 or STALL_SHARE * stall <= more <= most
        part = f" ({100 * more / stall:.0f} %)" if stall > 0 else ""
        found = f"{more / 1000:.1f} µs{part} of {slow.kernel_ns / 1000:.1f}"
        return Verdict(f"{stall / 1000:.1f} µs", found, good, slow.samples)

    return Claim(family, program.name, judged)


def reading(family: str, program: Program, readers: Sequence[int]) -> Claim:
    """All simulated misses of reads are at these of the ops asked about; none of them reads: none are at any."""

    def judged(bench: Bench) -> Verdict:
        seen = bench.seen(program, simulated=True)
        part = sum(seen.misses.get(program.lines[number], 0.0) for number in readers)
        wanted = 1.0 if readers else 0.0
        return Verdict(f"{wanted:.0%}", f"{100 * part:.1f} %", abs(part - wanted) <= 0.001, seen.samples)

    return Claim(family, program.name, judged)


def reading_parts(family: str, program: Program, parts: Sequence[int]) -> Claim:
    """Simulated misses of reads are at the ops asked about as the numbers of the arrays that each reads."""

    def judged(bench: Bench) -> Verdict:
        seen = bench.seen(program, simulated=True)
        wanted = [100 * part / sum(parts) for part in parts]
        found = [100 * seen.misses.get(line, 0.0) for line in program.lines]
        good = all(abs(a - b) <= _READ_POINTS for a, b in zip(found, wanted, strict=True))
        return Verdict(_shown(wanted), _shown(found), good, seen.samples)

    return Claim(family, program.name, judged)


def claims(seed: int) -> Iterator[Claim]:
    """What is judged; the seed chooses functions and orders."""
    random = Random(seed)
    yield from _of_equal_ops(random)
    yield from _of_different_ops(random)
    yield from _of_repeated_work(random)
    yield from _of_memory(random)
    yield from _of_products()


def _of_equal_ops(random: Random) -> Iterator[Claim]:
    for function in FUNCTIONS[:-1]:
        for number in random.sample(range(2, 7), 2):
            yield equal("chain of equal ops", chain([(function, random.choice([1, 2]))] * number))
    for function in random.sample(COSTLY, 3):
        yield equal("equal ops, then a sum", chain_then_sum([(function, 1)] * random.choice([2, 3])))
        yield equal("product, then equal ops", epilogue([(function, 1)] * random.choice([2, 3])))


def _of_different_ops(random: Random) -> Iterator[Claim]:
    copy = chain([("math.absf", 1)])
    for _ in range(6):
        one, two = random.sample(COSTLY, 2)
        first, second = chain([(one, 1), (two, 1)]), chain([(two, 1), (one, 1)])
        yield swapped("order of two ops", first, second)
        yield own_cost("as alone", first, [chain([(one, 1)]), chain([(two, 1)])], copy)
        yield own_cost("as alone", second, [chain([(two, 1)]), chain([(one, 1)])], copy)


def _of_repeated_work(random: Random) -> Iterator[Claim]:
    for function in COSTLY:
        times = random.choice([2, 3, 4])
        yield multiple("k times the work", chain([(function, 1), (function, times)]), times)
    for function in random.sample(COSTLY, 3):
        yield multiple("k times, then a sum", chain_then_sum([(function, 1), (function, 2)]), 2)
        yield multiple("product, then k times", epilogue([(function, 1), (function, 3)]), 3)


def _of_memory(random: Random) -> Iterator[Claim]:
    for function in ("math.absf", "math.sqrt", "math.tanh", "math.exp"):
        for size in ("1024x1024", "2048x2048"):
            names = function, random.choice(COSTLY)
            yield stalled("strided read", two_reads(names, size, "#turned"), two_reads(names, size))
    for size in ("1024x1024", "1536x1536", "2048x2048"):
        names = random.choice(COSTLY), random.choice(FUNCTIONS)
        last = two_reads(names, size, "#id", "#turned")
        yield stalled("strided read at the last op", last, two_reads(names, size), 1)
    for form in ("first", "chain", "last"):
        for table in (1_000_000, 4_000_000):
            names = random.choice(FUNCTIONS), random.choice(COSTLY)
            slow, fast = (gather(form, names, table, shuffled=shuffled) for shuffled in (True, False))
            yield stalled("gather", slow, fast, 1 if form == "last" else 0)
            # What works on what was gathered is hidden behind it, and alone behind what its kernel copies.
            if form != "chain":
                alone = gathered_alone(names[0], table), beside_gather(names[1])
                in_order = alone[::-1] if form == "last" else alone
                yield own_cost("gather as alone", slow, in_order, beside_gather())
    for function in random.sample(COSTLY, 3):
        yield reading("misses of reads", chain([(function, 1), ("math.exp", 1), ("math.tanh", 1)]), [0])
        yield reading("misses of reads", two_reads((function, "math.sqrt"), "512x512"), [0, 1])
        yield reading("misses of reads", epilogue([(function, 1)]), [])


def _of_products() -> Iterator[Claim]:
    """Of a product and a sum that compilers make one op or one instruction of."""
    yield reading("product and sum", sum_of_squares("512x512"), [0])
    yield reading_parts("product and sum", product_and_sum("512x512"), [2, 1])
    for size in ("1024x1024", "2048x2048"):
        fast = product_and_sum(size)
        yield stalled("product and sum", product_and_sum(size, factor="#turned"), fast, 0)
        yield stalled("product and sum", product_and_sum(size, addend="#turned"), fast, 1)


def table(outcomes: Sequence[Outcome]) -> str:
    """The outcomes as a table of Markdown."""
    rows = ["| family | kernel | expected | share | samples | |", "|---|---|---|---|--:|---|"]
    rows += [_row(each.claim, each.verdict) for each in outcomes]
    return "\n".join(rows)


def _row(claim: Claim, verdict: Verdict) -> str:
    cells = claim.family, claim.kernel, verdict.wanted, verdict.found, verdict.samples
    return f"| {' | '.join(map(str, cells))} | {'' if verdict.holds else 'MISSED'} |"


@click.command()
@click.option("--seed", default=11, show_default=True, help="Other seeds choose other functions and orders.")
@click.option("--family", default="", help="Only those handwritten kernels whose name has this in it.")
@click.option(
    "--handwritten/--no-handwritten", default=None, help="Judge the handwritten kernels.  [default: without --classes]"
)
@click.option("--classes", multiple=True, help="Only these classes of drawn kernels, with commas; `none` for none.")
@click.option("--rules", default=",".join(RULES), show_default=True, help="The rules to judge drawn kernels by.")
@click.option("--each", default=5, show_default=True, help="Drawn kernels of each class.")
@click.option("--limit", type=click.IntRange(1), help="The most drawn kernels.")
@click.option("--truths", type=click.Path(path_type=Path), help="A file that keeps measured truths.")
@click.option("--cache", type=click.Path(path_type=Path), help="A folder that keeps bundles and runs.")
@click.option("--jobs", default=1, show_default=True, help="How many are built and recorded at a time.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write all drawn claims there.")
@click.option("--write-docs", is_flag=True, help="Put the table of drawn kernels into docs/accuracy.md.")
def main(seed: int, family: str, handwritten: bool | None, classes: tuple[str, ...], **drawn: Any) -> None:  # noqa: ANN401
    """Print the tables; status 1 where a claim does not hold."""
    chosen = [name.strip() for each in classes for name in each.split(",")] or list(CLASSES)
    missed = False
    if handwritten if handwritten is not None else not classes:
        missed = _judge_handwritten(seed, family)
    cases = [draw(kind, seed, number) for number in range(drawn["each"]) for kind in chosen if kind != "none"]
    if cases:
        missed |= _judge_drawn(cases[: drawn["limit"]], **drawn)
    sys.exit(1 if missed else 0)


def _judge_handwritten(seed: int, family: str) -> bool:
    """Whether a claim about a handwritten kernel does not hold."""
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="tracemap-inside-") as folder:
        bench = Bench(Path(folder))
        for claim in claims(seed):
            if family not in claim.family:
                continue
            try:
                verdict = claim.judge(bench)
            except ValueError as error:
                print(f"left out: {claim.kernel}: {error}", file=sys.stderr)
                continue
            print(_row(claim, verdict), file=sys.stderr)
            outcomes.append(Outcome(claim, verdict))
    print(table(outcomes))
    missed = sum(not each.verdict.holds for each in outcomes)
    few = sum(each.verdict.samples < _FEWEST for each in outcomes)
    print(f"\n{len(outcomes)} claims, {missed} missed; {few} rest on less than {_FEWEST} samples")
    return missed > 0


def _judge_drawn(cases: Sequence[Case], **drawn: Any) -> bool:  # noqa: ANN401
    """Whether a promise about drawn kernels is not kept."""
    rules = drawn["rules"].split(",")
    outcome = judging.Outcome([], [], [])
    with tempfile.TemporaryDirectory(prefix="tracemap-inside-") as folder:
        truths = Truths(drawn["truths"] or Path(folder, "truths.json"))
        recorder = judging.Recorder(drawn["cache"] or Path(folder, "bundles"))
        known = judging.known_truths(cases, truths, outcome, lambda text: print(text, file=sys.stderr, flush=True))
        judging.judge(known, rules, recorder, outcome, drawn["jobs"])
    text = judging.table(outcome, rules)
    print(text, *judging.misses(outcome), sep="\n")
    print(
        f"\n{outcome.kernels} kernels, {len(outcome.judged) // len(rules)} claims",
        *judging.failures(outcome, rules),
        sep="\n",
    )
    print(f"{len(outcome.unfused)} are not one kernel", *outcome.unfused, sep="\n  ")
    print(f"{len(outcome.unsure)} shares without a sure truth", *outcome.unsure, sep="\n  ")
    if drawn["json_file"]:
        drawn["json_file"].write_text(json.dumps(judging.document(outcome), indent=1), encoding="utf-8")
    if drawn["write_docs"]:
        write_part(DOCS / "accuracy.md", "inside", text)
    return bool(judging.failures(outcome, rules))


if __name__ == "__main__":
    main()
