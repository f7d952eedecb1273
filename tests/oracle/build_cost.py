"""Accuracy of the cost of building: `python -m tests.oracle.build_cost`.

Each generated program has several small kernels and one that is slow to compile: an elementwise expression of some
hundred operations. It must be first. The truth for its seconds is the compiler itself: the executable of the slow
kernel and that of the fastest are compiled alone, and the difference of their processor times is compared with the
difference that tracemap shows. What both executables need, such as library functions, is in neither. Bundles and single
executables are compiled in turn, several times, so that other programs on the machine disturb both.

Other programs have constants of known sizes, whose bytes must belong to their ops.
"""

from __future__ import annotations

import random
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from tests.documents import DOCS, write_part
from tests.support import Json, check_cli, json_cli
from tracemap.core.toolchain import find_tool
from tracemap.ir.executables import executable_text, read_executables
from tracemap.ir.parsing import MlirParser
from tracemap.map.bundle import load

PROGRAMS: Final = 10
_FUNCTIONS: Final = ("math.exp", "math.log1p", "math.tanh", "math.sin", "math.erf")
_REPEATS: Final = 5
_LEAST, _MOST = 0.85, 1.15
_MOST_UNATTRIBUTED: Final = 0.05


@dataclass(frozen=True, slots=True)
class Seeded:
    """A program, its name, and the shape that only the slow kernel has, in the kernel's name."""

    name: str
    text: str
    slow: str

    def is_slow(self, kernel: str) -> bool:
        """Whether this kernel is the slow one."""
        return self.slow in kernel


def program(seed: int) -> Seeded:
    """A program of small kernels around a slow one, at a random place."""
    chance = random.Random(seed)
    count, slow = chance.randrange(4, 9), chance.randrange(4)
    lines, arguments = [], []
    sizes = chance.sample(range(17, 90), count)
    for number, size in enumerate(sizes):
        kind = f"tensor<{size}x{size + 1}xf32>"
        arguments.append(f"%arg{number}: {kind}")
        body = ["%v0 = arith.mulf %in, %in : f32"]
        steps = chance.randrange(60, 110) if number == slow else chance.randrange(1, 4)
        for step in range(1, steps + 1):
            if number == slow and step % 3 == 0:
                body.append(f"%v{step} = {chance.choice(_FUNCTIONS)} %v{step - 1} : f32")
            else:
                body.append(f"%v{step} = arith.addf %v{step - 1}, %in : f32")
        lines.append(
            f"""%e{number} = tensor.empty() : {kind}
%r{number} = linalg.generic {{indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>],
    iterator_types = ["parallel", "parallel"]}} ins(%arg{number} : {kind}) outs(%e{number} : {kind}) {{
^bb0(%in: f32, %out: f32):
{chr(10).join(body)}
linalg.yield %v{steps} : f32
}} -> {kind}"""
        )
    kinds = ", ".join(f"tensor<{size}x{size + 1}xf32>" for size in sizes)
    results = ", ".join(f"%r{number}" for number in range(count))
    text = f"func.func @main({', '.join(arguments)}) -> ({kinds}) {{\n" + "\n".join(lines)
    return Seeded(f"seeded{seed}", f"{text}\nreturn {results} : {kinds}\n}}\n", f"_{sizes[slow] * (sizes[slow] + 1)}_")


@dataclass(frozen=True, slots=True)
class Constants:
    """A program with constants, and their bytes by line."""

    text: str
    bytes_of_line: dict[int, int]


_WIDTHS: Final = {"bf16": 2, "f16": 2, "f32": 4}


def constants_program(seed: int) -> Constants:
    """A program whose results each need a constant that is too large to become a part of a kernel."""
    chance = random.Random(seed)
    kinds = []
    for rows in chance.sample(range(9, 60), chance.randrange(3, 9)):
        element = chance.choice(tuple(_WIDTHS))
        kinds.append((f"tensor<{rows}x{chance.randrange(33, 70)}x{element}>", element))
    arguments = ", ".join(f"%arg{number}: {kind}" for number, (kind, _) in enumerate(kinds))
    results = ", ".join(kind for kind, _ in kinds)
    lines, sizes = [f"func.func @main({arguments}) -> ({results}) {{"], {}
    for number, (kind, element) in enumerate(kinds):
        rows, columns = (int(extent) for extent in kind[len("tensor<") :].split("x")[:2])
        data = chance.randbytes(rows * columns * _WIDTHS[element])
        lines.append(f'%c{number} = arith.constant dense<"0x{data.hex().upper()}"> : {kind}')
        sizes[len(lines)] = len(data)
        lines.append(f"%r{number} = arith.addf %arg{number}, %c{number} : {kind}")
    lines += [f"return {', '.join(f'%r{number}' for number in range(len(kinds)))} : {results}", "}"]
    return Constants("\n".join(lines), sizes)


def constant_bytes(constants: Constants, folder: Path) -> dict[int, int]:
    """The bytes of constants that `show --cost` has for each line of a program."""
    model, bundle = folder / "constants.mlir", folder / "constants.tracemap"
    model.write_text(constants.text, encoding="utf-8")
    check_cli("build", model, "-o", bundle, "--force")
    shown = json_cli("show", bundle, "--cost")
    line_of = {op["id"]: op["line"] for op in shown["ops"]}
    return {line_of[own["op"]]: own["constant_bytes"] for own in shown["cost"]["ops"] if own["constant_bytes"]}


def bundle_of(seeded: Seeded, folder: Path) -> Path:
    """Build it with times."""
    model, bundle = folder / f"{seeded.name}.mlir", folder / f"{seeded.name}.tracemap"
    model.write_text(seeded.text, encoding="utf-8")
    check_cli("build", model, "--timing", "-o", bundle, "--force")
    return bundle


def executable_files(bundle: Path, folder: Path) -> dict[str, Path]:
    """The executables of a bundle, each in a file of its own, by the beginning of its kernel's name."""
    _, executables = read_executables(MlirParser(), load(bundle).configured())
    files = {name: folder / f"{name}.mlir" for name in executables}
    for name, executable in executables.items():
        files[name].write_text(executable_text(executable), encoding="utf-8")
    return files


def alone_ns(executable: Path, flags: Sequence[str]) -> int:
    """The processor time of the compiler and its linker for an executable that it compiles alone."""
    mode = ("--compile-mode=hal-executable", "--mlir-disable-threading")
    command: list[str | Path] = [find_tool("iree-compile"), executable, *mode, *flags]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([*command, "-o", executable.with_suffix(".bin")], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return round((after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e9)


@dataclass(frozen=True, slots=True)
class Judged:
    """The cost of a program, the rank of its slow kernel, and that kernel's time over its time alone."""

    name: str
    cost: Json
    rank: int
    ratio: float

    def share(self, name: str) -> float:
        """A part of the time for executables without waiting for other programs."""
        parts = (part["amount"] for part in self.cost["times"] if part["name"].startswith(name))
        return float(sum(parts) / self.busy_ns)

    @property
    def busy_ns(self) -> int:
        """The time for executables without waiting for other programs."""
        waiting = sum(part["amount"] for part in self.cost["times"] if part["name"].startswith("waiting"))
        return int(self.cost["executables_ns"] - waiting)


def judge(seeded: Seeded, folder: Path) -> Judged:
    """Compare a program with the compiler's times for its slow and its fastest kernel alone, the least of several."""
    bundle = bundle_of(seeded, folder)
    files, flags = executable_files(bundle, folder), load(bundle).graph.module.flags
    costs = [json_cli("show", bundle, "--cost")["cost"]]
    kernels = [own["kernel"] for own in costs[0]["kernels"]]
    slow = next(kernel for kernel in kernels if seeded.is_slow(kernel))
    fast = next(kernel for kernel in reversed(kernels) if kernel != slow)
    slow_file, fast_file = (
        next(file for name, file in files.items() if kernel.startswith(f"{name}_")) for kernel in (slow, fast)
    )
    slow_ns, fast_ns, slow_alone_ns, fast_alone_ns = [], [], [], []
    for _ in range(_REPEATS):
        costs.append(json_cli("show", bundle_of(seeded, folder), "--cost")["cost"])
        times = {own["kernel"]: own["duration_ns"] for own in costs[-1]["kernels"]}
        slow_ns.append(times[slow])
        fast_ns.append(times[fast])
        slow_alone_ns.append(alone_ns(slow_file, flags))
        fast_alone_ns.append(alone_ns(fast_file, flags))
    ranks = ([own["kernel"] for own in cost["kernels"]].index(slow) + 1 for cost in costs)
    # Other programs only make a compiler slower.
    ratio = (min(slow_ns) - min(fast_ns)) / (min(slow_alone_ns) - min(fast_alone_ns))
    return Judged(seeded.name, costs[0], max(ranks), ratio)


@click.command()
@click.option("--seed-base", type=int, default=1, show_default=True, help="The first program.")
@click.option("--corpus", type=click.Path(path_type=Path), help="Also time the models of this folder.")
@click.option("--write-docs", is_flag=True, help="Put the table into docs/accuracy.md.")
def main(seed_base: int, corpus: Path | None, *, write_docs: bool) -> None:
    """Print how right the cost of building is; status 1 if a target is missed."""
    seeds = range(seed_base, seed_base + PROGRAMS)
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        judged = []
        for seed in seeds:
            judged.append(judge(program(seed), folder))
            print(_row(judged[-1]), file=sys.stderr, flush=True)
        right = [constant_bytes(own, folder) == own.bytes_of_line for own in map(constants_program, seeds)]
        for model in _models(corpus):
            bundle = folder / f"{model.stem}.tracemap"
            check_cli("build", model, "--timing", "-o", bundle)
            judged.append(Judged(model.stem, json_cli("show", bundle, "--cost")["cost"], 0, 0))
            print(_row(judged[-1]), file=sys.stderr, flush=True)
    text = table(judged, sum(right))
    print(text)
    if write_docs:
        write_part(DOCS / "accuracy.md", "build cost", text)
    missed = list(misses(judged))
    missed += [] if all(right) else [f"constants of {right.count(False)} programs are wrong"]
    print("\n".join(missed), file=sys.stderr)
    sys.exit(1 if missed else 0)


def misses(judged: Sequence[Judged]) -> Iterator[str]:
    """The targets that are not met."""
    seeded = [own for own in judged if own.rank]
    yield from (f"{own.name}: the slow kernel has rank {own.rank}" for own in seeded if own.rank != 1)
    if not _LEAST <= (ratio := _median_ratio(seeded)) <= _MOST:
        yield f"the slow kernel took {ratio:.2f} of its time alone"
    for own in judged:
        if (share := own.share(_UNATTRIBUTED)) > _MOST_UNATTRIBUTED:
            yield f"{own.name}: {share:.1%} of the time for executables is unattributed"


def _median_ratio(seeded: Sequence[Judged]) -> float:
    return statistics.median(own.ratio for own in seeded)


_UNATTRIBUTED: Final = "unattributed"


def table(judged: Sequence[Judged], right: int) -> str:
    """The results as a table of Markdown."""
    head = "| program | kernels | slow kernel | its time / alone | in kernels | library | other work | unattributed |"
    seeded = [own for own in judged if own.rank]
    first = sum(own.rank == 1 for own in seeded)
    close = sum(_LEAST <= own.ratio <= _MOST for own in seeded)
    return "\n".join(
        (
            head,
            "|---|--:|---|--:|--:|--:|--:|--:|",
            *(_row(own) for own in judged),
            "",
            f"The slow kernel is first in {first} of {len(seeded)} programs. Its time over that alone is",
            f"{_median_ratio(seeded):.2f} in the median, and within 15 % in {close} programs.",
            f"The bytes of all constants belong to the right ops in {right} of {PROGRAMS} programs.",
        )
    )


def _row(own: Judged) -> str:
    kernels, library, unattributed = (own.share(name) for name in ("kernels", "library functions", _UNATTRIBUTED))
    rest = 1 - kernels - library - unattributed
    seeded = (f"rank {own.rank}", f"{own.ratio:.2f}") if own.rank else ("", "")
    shares = (f"{share:.0%}" for share in (kernels, library, rest, unattributed))
    return f"| {' | '.join((own.name, str(len(own.cost['kernels'])), *seeded, *shares))} |"


def _models(corpus: Path | None) -> Sequence[Path]:
    """The models of a folder."""
    if corpus is None:
        return ()
    return sorted((corpus / "models").glob("*.mlir"))


if __name__ == "__main__":
    main()
