"""Whether `build --timing` names the kernel that is slow to compile: `python -m tests.oracle.build_cost`.

Each generated program has several small kernels and one that is slow to compile: an elementwise expression of some
hundred operations. Seconds of all kernels and library functions are compared with the compiler's own time for
executables, which its pass timing has in the same run. A compilation without the output that tells kernels apart shows
how much that output costs; other programs on the machine disturb this figure, so it has no target.
"""

from __future__ import annotations

import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from tests.support import Json, check_cli, json_cli
from tracemap.core.toolchain import find_tool
from tracemap.map.bundle import load

PROGRAMS: Final = 10
_FUNCTIONS: Final = ("math.exp", "math.log1p", "math.tanh", "math.sin", "math.erf")
_LEAST, _MOST = 0.85, 1.15


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


def bundle_of(seeded: Seeded, folder: Path) -> Path:
    """Build it with times."""
    model, bundle = folder / f"{seeded.name}.mlir", folder / f"{seeded.name}.tracemap"
    model.write_text(seeded.text, encoding="utf-8")
    check_cli("build", model, "--timing", "-o", bundle)
    return bundle


_PHASE = re.compile(r" (\d+\.\d+) \( *[\d.]+%\) +(?:Translate|Serialize|Link)AllExecutablesPass$", re.MULTILINE)


def executables_ns(bundle: Path, folder: Path) -> int:
    """The compiler's own time for executables, in a compilation with nothing but MLIR's pass timing."""
    opened = load(bundle)
    source = folder / "configured.mlir"
    source.write_bytes(opened.configured())
    flags = ["--compile-from=executable-configurations", "--mlir-disable-threading", "--mlir-timing"]
    command: list[str | Path] = [
        find_tool("iree-compile"),
        source,
        *flags,
        "--mlir-timing-display=tree",
        *opened.graph.module.flags,
    ]
    done = subprocess.run([*command, "-o", folder / "timed.vmfb"], check=True, capture_output=True, text=True)
    return sum(round(float(seconds) * 1e9) for seconds in _PHASE.findall(done.stderr))


@dataclass(frozen=True, slots=True)
class Judged:
    """The cost of a bundle, and the time for its executables in a compilation with nothing but pass timing."""

    name: str
    cost: Json
    plain_ns: int

    @property
    def kernels_share(self) -> float:
        """The kernels' part of the compiler's own time."""
        return float(sum(own["duration_ns"] for own in self.cost["kernels"]) / self.cost["executables_ns"])

    @property
    def explained_share(self) -> float:
        """The same, with the library's functions, which every executable has."""
        library = sum(part["amount"] for part in self.cost["times"] if part["name"] == "library functions")
        return self.kernels_share + float(library / self.cost["executables_ns"])


def judge(name: str, bundle: Path, folder: Path, repeats: int = 3) -> Judged:
    """Compare a bundle with the compiler's own times; the fastest of some plain compilations."""
    cost = json_cli("show", bundle, "--cost")["cost"]
    return Judged(name, cost, min(executables_ns(bundle, folder) for _ in range(repeats)))


@click.command()
@click.option("--seed-base", type=int, default=1, show_default=True, help="The first program.")
@click.option("--corpus", type=click.Path(path_type=Path), help="Also compare the models of this folder.")
def main(seed_base: int, corpus: Path | None) -> None:
    """Print where the slow kernel ranks, and how much of the compiler's time for executables kernels explain."""
    missed: list[str] = []
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        for seed in range(seed_base, seed_base + PROGRAMS):
            seeded = program(seed)
            judged = judge(seeded.name, bundle_of(seeded, folder), folder)
            rank = next(at for at, own in enumerate(judged.cost["kernels"], 1) if seeded.is_slow(own["kernel"]))
            missed += [f"{seeded.name}: the slow kernel has rank {rank}"] if rank != 1 else []
            missed += _print(judged, f"slow kernel has rank {rank} of {len(judged.cost['kernels'])}")
        for model in _models(corpus):
            bundle = folder / f"{model.stem}.tracemap"
            check_cli("build", model, "--timing", "-o", bundle)
            missed += _print(judge(model.stem, bundle, folder), "sample")
    print("\n".join(missed), file=sys.stderr)
    sys.exit(1 if missed else 0)


def _models(corpus: Path | None) -> Sequence[Path]:
    """The models of a folder."""
    if corpus is None:
        return ()
    return sorted((corpus / "models").glob("*.mlir"))


def _print(judged: Judged, text: str) -> list[str]:
    kernels, explained = judged.kernels_share, judged.explained_share
    slowdown = judged.cost["executables_ns"] / judged.plain_ns
    shares = f"kernels {kernels:.0%}, with library functions {explained:.0%} of executables"
    print(f"{judged.name:24} {text}; {shares}, {slowdown:.2f}x a plain compilation", flush=True)
    return [] if _LEAST <= explained <= _MOST else [f"{judged.name}: kernels explain {explained:.0%} of the time"]


if __name__ == "__main__":
    main()
