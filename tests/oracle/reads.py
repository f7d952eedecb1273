"""Whose is what is read? Pairs of ops, of which compilers make one loop, and often one instruction.

Every array is as large as the others and misses as often as its elements are wide, so that what an op reads tells its
part of the simulated misses: signs and comparisons that nothing is left of, conversions that are part of a load,
products that sums take in. Then arrays that are read in many orders (`read_patterns.py`), whose misses are counted.

`python -m tests.oracle.reads` prints the pairs that are wrong, and how many there are; `make accuracy` calls it.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from tests.oracle.judging import Recorder
from tests.oracle.read_patterns import all_counted
from tests.support import check_cli, json_cli

_SIZE = "256x512"
_POINTS = 3.0
"""Arrays begin somewhere in a line of memory, and the stack is read as well."""
_UNARY = ("negate", "abs", "floor", "sqrt", "multiply %x,", "add %x,")
_BINARY = ("add", "subtract", "multiply", "divide", "maximum", "minimum")
_BITWISE = ("and", "or", "xor")
_BYTES = {"f16": 2, "bf16": 2, "i8": 1, "ui8": 1, "i32": 4}
_WIDE = 4


@dataclass(frozen=True, slots=True)
class Pair:
    """An op, and one that takes its result; `parts`: the bytes of an element that each of them reads."""

    name: str
    text: str
    inputs: Sequence[str]
    parts: tuple[int, int]


def pairs() -> Iterator[Pair]:
    """All that are looked at."""
    for first, then in itertools.product(_UNARY, _BINARY):
        yield _pair(f"{first.partition(' ')[0]}, {then}", f"{first} %x", f"{then} %f, %y", "xy", (1, 1))
        yield _pair(f"{first.partition(' ')[0]}, {then} from", f"{first} %x", f"{then} %y, %f", "xy", (1, 1))
    for first, then in itertools.product(_BINARY, _BINARY):
        yield _pair(f"{first}, {then}", f"{first} %x, %y", f"{then} %z, %f", "xyz", (2, 1))
    for first, then in itertools.product(_BITWISE, _BITWISE):
        yield _pair(f"{first}, {then}", f"{first} %x, %y", f"{then} %z, %f", "xyz", (2, 1), "i32")
    yield _pair("not, and", "not %x", "and %f, %y", "xy", (1, 1), "i32")
    for kind, then in itertools.product(_BYTES, _BINARY):
        yield _converted(kind, then)
    for direction in ("GT", "LT", "GE", "EQ", "NE"):
        yield _selected(direction)


def _pair(name: str, first: str, then: str, given: str, reads: tuple[int, int], kind: str = "f32") -> Pair:
    tensor = f"tensor<{_SIZE}x{kind}>"
    lines = [f"%f = stablehlo.{first} : {tensor}", f"%g = stablehlo.{then} : {tensor}"]
    one, two = reads
    return Pair(name, _program(lines, dict.fromkeys(given, kind), kind), [kind] * len(given), (one, two))


def _converted(kind: str, then: str) -> Pair:
    wide = f"tensor<{_SIZE}xf32>"
    lines = [
        f"%f = stablehlo.convert %x : (tensor<{_SIZE}x{kind}>) -> {wide}",
        f"%g = stablehlo.{then} %y, %f : {wide}",
    ]
    text = _program(lines, {"x": kind, "y": "f32"}, "f32")
    return Pair(f"convert {kind}, {then}", text, [kind.removeprefix("u"), "f32"], (_BYTES[kind], _WIDE))


def _selected(direction: str) -> Pair:
    tensor, truth = f"tensor<{_SIZE}xf32>", f"tensor<{_SIZE}xi1>"
    lines = [
        f"%f = stablehlo.compare {direction}, %x, %y : ({tensor}, {tensor}) -> {truth}",
        f"%g = stablehlo.select %f, %z, %w : {truth}, {tensor}",
    ]
    return Pair(
        f"compare {direction}, select", _program(lines, dict.fromkeys("xyzw", "f32"), "f32"), ["f32"] * 4, (2, 2)
    )


def _program(lines: Sequence[str], given: dict[str, str], kind: str) -> str:
    """A function of two ops, which stand on its second and third line."""
    arguments = ", ".join(f"%{name}: tensor<{_SIZE}x{each}>" for name, each in given.items())
    head = f"func.func @main({arguments}) -> tensor<{_SIZE}x{kind}> {{"
    return "\n  ".join([head, *lines, f"return %g : tensor<{_SIZE}x{kind}>"]) + "\n}\n"


def judged(pair: Pair, folder: Path) -> str:
    """What is wrong with a pair; nothing where nothing is."""
    model, bundle, run = folder / "model.mlir", folder / "model.tracemap", folder / "run.csv"
    folder.mkdir()
    model.write_text(pair.text, encoding="utf-8")
    check_cli("build", model, "-o", bundle)
    given = [word for kind in pair.inputs for word in ("--input", f"{_SIZE}x{kind}=1")]
    check_cli("record", bundle, "--cache-sim", *given, "--iterations", "1", "--warmup", "0", "-o", run)
    result = json_cli("attribute", run, "--map", bundle)
    misses = {op["line"]: op["metrics"]["D1mr"]["attributed"] for op in result["ops"]}
    own = [misses.get(line, 0) for line in (2, 3)]
    found, wanted = ([100 * each / (sum(parts) or 1) for each in parts] for parts in (own, pair.parts))
    if all(abs(one - other) <= _POINTS for one, other in zip(found, wanted, strict=True)):
        return ""
    return f"{pair.name}: should be {wanted[0]:.0f} to {wanted[1]:.0f}, is {found[0]:.0f} to {found[1]:.0f}"


@click.command()
@click.option("--jobs", default=2, show_default=True, help="How many at a time.")
@click.option("--only", default="", help="Only pairs and patterns whose name has this in it.")
@click.option("--what", type=click.Choice(["pairs", "patterns", "both"]), default="both", show_default=True)
@click.option("--cache", type=click.Path(path_type=Path), help="A folder that keeps bundles and runs of patterns.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the misses of patterns there.")
def main(jobs: int, only: str, what: str, cache: Path | None, json_file: Path | None) -> None:
    """Print the pairs and patterns that are wrong; status 1 where there is one."""
    wrong = _wrong_pairs(jobs, only) if what != "patterns" else False
    if what != "pairs":
        wrong |= _wrong_patterns(jobs, only, cache, json_file)
    sys.exit(1 if wrong else 0)


def _wrong_patterns(jobs: int, only: str, cache: Path | None, json_file: Path | None) -> bool:
    with tempfile.TemporaryDirectory(prefix="tracemap-reads-") as folder:
        found = all_counted(Recorder(cache or Path(folder)), only, jobs)
    unproven = [f"{each.name}: {each.why}" for each in found if each.why]
    wrong = [f"{each.name}: {'; '.join(each.wrong)}" for each in found if each.wrong]
    print(*wrong, f"{len(found)} kernels, {len(wrong)} with misses at another op", sep="\n")
    print(f"{len(unproven)} prove nothing", *unproven, sep="\n  ")
    if json_file:
        json_file.write_text(json.dumps([asdict(each) for each in found], indent=1), encoding="utf-8")
    return bool(wrong)


def _wrong_pairs(jobs: int, only: str) -> bool:
    chosen = [pair for pair in pairs() if only in pair.name]
    with tempfile.TemporaryDirectory(prefix="tracemap-reads-") as folder, ThreadPoolExecutor(jobs) as pool:
        places = [Path(folder, str(number)) for number in range(len(chosen))]
        wrong = list(filter(None, pool.map(judged, chosen, places)))
    print("\n".join([*wrong, f"{len(chosen)} pairs of ops, of {len(wrong)} what they read is at another"]))
    return bool(wrong)


if __name__ == "__main__":
    main()
