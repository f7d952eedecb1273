"""Whether `tracemap diff` names what was slowed, and nothing else: `python -m tests.oracle.changes --tries 20`.

Each try records two bundles in turn, and compares the recordings. In one kind of tries something was made slower, and
must be the first finding: an op of the model is done twice, a kernel is swapped for one that divides where it
multiplied, a kernel has other tiles. In another nothing was: the bundles are copies, or all kernels are other code that
takes as long (differences for sums). In the third, one of five equal kernels does 83 steps where
it did 80, which takes about 5 % longer.
"""

from __future__ import annotations

import re
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from tests.documents import DOCS, write_part
from tests.support import SAMPLES, check_cli, run_cli
from tracemap.commands.diff import diff
from tracemap.commands.record import record_repeatedly
from tracemap.compare.model import Comparison, Finding
from tracemap.map.bundle import load
from tracemap.options.measure import RecordOptions
from tracemap.options.reports import DiffOptions

ITERATIONS: Final = 30
PAIRS: Final = 5
STEPS, MORE_STEPS, KERNELS = 80, 83, 5
Judge = Callable[[Comparison], bool]


@dataclass(frozen=True)
class Case:
    """Two bundles, how both are called, in how many rounds of recordings, and what is right to say of them."""

    name: str
    before: Path
    after: Path
    flags: Path | None
    rounds: int
    is_right: Judge


@dataclass(frozen=True)
class Tally:
    """How many tries were right, and what ratios the first findings had."""

    right: int
    tries: int
    ratios: Sequence[float]


def first_is(expected: Callable[[Finding], bool]) -> Judge:
    """The first finding is one of what was slowed, and costs more."""
    return lambda made: (
        bool(made.findings) and made.findings[0].kind in ("slower", "new") and expected(made.findings[0])
    )


def tallied(case: Case, tries: int) -> Tally:
    """Record and compare so often; every wrong try is printed with what was said."""
    found = [_try(case) for _ in range(tries)]
    for made in found:
        if not case.is_right(made):
            said = [(each.kind, each.after, each.ratio, each.ratio_low) for each in made.findings]
            print(f"{case.name}: {said or 'no finding'}, {made.drift}", file=sys.stderr, flush=True)
    ratios = [made.findings[0].ratio for made in found if made.findings and made.findings[0].kind != "new"]
    return Tally(sum(map(case.is_right, found)), len(found), ratios)


def _try(case: Case) -> Comparison:
    options = RecordOptions(iterations=ITERATIONS, repeat=case.rounds, flagfile=case.flags)
    bundles = [load(path) for path in (case.before, case.after)]
    for _ in record_repeatedly(bundles, options):
        pass
    made = diff(case.before, case.after, DiffOptions())
    for path in (case.before, case.after):
        shutil.rmtree(path / "runs")
    return made


# ---- what is slowed


def cases(folder: Path) -> Iterator[Case]:
    """All of them; bundles are made in the folder."""
    yield _done_twice(folder)
    yield _swapped(
        folder, "torch_resnet18_small", "source", r"arith\.mulf (%in, %in_\d+)", r"arith.divf \1", "conv_128x2x2x64"
    )
    tiles = (r"vector_common_parallel = \[1, 8, 16, 0\]", "vector_common_parallel = [1, 1, 16, 0]")
    yield _swapped(folder, "onnx_tinygpt_named", "configuration", *tiles, "64x1024x256")
    yield _copied(folder)
    plain = _built(folder, "plain", chains([STEPS] * KERNELS))
    other = _built(folder, "other", chains([STEPS] * KERNELS, "subf"))
    more = _built(folder, "more", chains([MORE_STEPS, *[STEPS] * (KERNELS - 1)]))
    nothing: Judge = lambda made: not made.findings  # noqa: E731 - beside the others of its kind
    yield Case("different code, equal time", plain, other, None, 5, nothing)
    slowed = first_is(lambda found: found.line == 3)
    yield Case("5 % slower in a fifth, one recording each", plain, more, None, 1, slowed)
    yield Case("5 % slower in a fifth, five in turn", plain, more, None, 5, slowed)


def _done_twice(folder: Path) -> Case:
    """A product of the JAX model is computed again, of the negative of what it reads."""
    name = "jax_gpt2_4l"
    text = (SAMPLES / "models" / f"{name}.mlir").read_text(encoding="utf-8")
    product_of = r"(stablehlo\.dot_general) (%\d+),(.*: \((\S+), tensor<256x768xf32>\) -> (\S+))"
    place = re.search(rf"^    (%\d+) = {product_of} loc.*\n", text, re.MULTILINE)
    assert place is not None
    result, product, reads, rest, type_read, type_made = place.groups()
    lines = (
        f"    %once = {product} {reads},{rest}",
        f"    %negative = stablehlo.negate {reads} : {type_read}",
        f"    %twice = {product} %negative,{rest}",
        f"    {result} = stablehlo.maximum %once, %twice : {type_made}",
    )
    first = text.count("\n", 0, place.start()) + 1
    after = folder / "twice.mlir"
    after.write_text(text[: place.start()] + "\n".join(lines) + "\n" + text[place.end() :], encoding="utf-8")
    bundles = _sample(folder, name), _built(folder, "twice", after)
    right = first_is(lambda found: isinstance(found.line, int) and first <= found.line < first + len(lines))
    return Case("an op runs twice (JAX)", *bundles, _flags(name), PAIRS, right)


def _swapped(folder: Path, name: str, stage: str, pattern: str, new: str, of_kernel: str) -> Case:
    before = _sample(folder, name)
    graph = load(before).graph
    kernel = next(each.name for each in graph.kernels if of_kernel in each.name)
    text, count = re.subn(pattern, new, check_cli("swap", before, kernel, "--dump", stage))
    assert count, f"{kernel}: nothing to change in its {stage}"
    edited, after = folder / f"{name}.{stage}.mlir", folder / f"{name}-{stage}.tracemap"
    edited.write_text(text, encoding="utf-8")
    done = run_cli("swap", before, f"{kernel}={edited}", "-o", after, "--pairs", "0", "--no-verify")
    assert after.is_dir(), done.stderr
    members = {member.op for site in graph.sites if site.kernel == kernel for member in site.members}
    what = {"source": "a swapped kernel", "configuration": "other tiles"}[stage]
    source = {"torch_resnet18_small": "torch", "onnx_tinygpt_named": "ONNX"}[name]
    right = first_is(lambda found: found.before in members)
    return Case(f"{what} ({source})", before, after, _flags(name), PAIRS, right)


def _copied(folder: Path) -> Case:
    before, after = _sample(folder, "jax_gpt2_4l"), folder / "copy.tracemap"
    shutil.copytree(before, after)
    return Case("a copy", before, after, _flags("jax_gpt2_4l"), PAIRS, lambda made: not made.findings)


def chains(steps: Sequence[int], adding: str = "addf") -> str:
    """A model of as many kernels, each of which does so many steps for every number; the op of each has a line."""
    size = "tensor<65536xf32>"
    head = ", ".join(f"%x{number}: {size}" for number in range(len(steps)))
    lines = [f"func.func @main({head}) -> ({', '.join([size] * len(steps))}) {{", f"  %e = tensor.empty() : {size}"]
    for number, count in enumerate(steps):
        body = [f"^bb0(%v0: f32, %o: f32): %c = arith.constant 0.99{number} : f32"]
        for step in range(count):
            body.append(f"%m{step} = arith.mulf %v{step}, %c : f32 %v{step + 1} = arith.{adding} %m{step}, %c : f32")
        maps = 'indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]'
        whole = " ".join([*body, f"linalg.yield %v{count} : f32"])
        lines.append(
            f"  %r{number} = linalg.generic {{{maps}}} ins(%x{number} : {size}) outs(%e : {size}) {{{whole}}} -> {size}"
        )
    ends = ", ".join(f"%r{number}" for number in range(len(steps)))
    return "\n".join([*lines, f"  return {ends} : {', '.join([size] * len(steps))}", "}"]) + "\n"


def _sample(folder: Path, name: str) -> Path:
    bundle = folder / f"{name}.tracemap"
    if not bundle.is_dir():
        check_cli("build", SAMPLES / "models" / f"{name}.mlir", "-o", bundle, cwd=SAMPLES)
    return bundle


def _built(folder: Path, name: str, model: str | Path) -> Path:
    path = model if isinstance(model, Path) else folder / f"{name}.mlir"
    if isinstance(model, str):
        path.write_text(model, encoding="utf-8")
    check_cli("build", path, "-o", folder / f"{name}.tracemap")
    return folder / f"{name}.tracemap"


def _flags(name: str) -> Path:
    return SAMPLES / "flags" / f"{name}.flags"


# ---- the table


def table(tallies: Mapping[str, Tally]) -> str:
    """The tallies as a table of Markdown."""
    rows = ["| change | right | ratio of the first finding, median |", "|---|--:|--:|"]
    for name, each in tallies.items():
        ratio = f"{statistics.median(each.ratios):.3f}" if each.ratios else "none"
        rows.append(f"| {name} | {each.right} of {each.tries} | {ratio} |")
    return "\n".join(rows)


@click.command()
@click.option("--tries", type=click.IntRange(1), default=20, show_default=True, help="Of each kind.")
@click.option("--only", help="Only kinds whose name has this.")
@click.option("--write-docs", is_flag=True, help="Put the table into docs/accuracy.md.")
def main(tries: int, only: str | None, write_docs: bool) -> None:
    """Print the table; status 1 where a try was wrong."""
    tallies: dict[str, Tally] = {}
    with tempfile.TemporaryDirectory(prefix="tracemap-changes-") as name, chdir(SAMPLES):  # flags name files there
        for case in cases(Path(name)):
            if only is None or only in case.name:
                tallies[case.name] = tallied(case, tries)
                print(f"{case.name}: {tallies[case.name].right} of {tries}", file=sys.stderr, flush=True)
    text = table(tallies)
    print(text)
    if write_docs:
        write_part(DOCS / "accuracy.md", "changes", text)
    sys.exit(0 if all(each.right == each.tries for each in tallies.values()) else 1)


if __name__ == "__main__":
    main()
