"""Accuracy of `tracemap numerics`: `python -m tests.oracle.numerics`.

Faults are planted one at a time, half of them into a kernel of the compiled program, half of them into the model. Each
changes the program's outputs, by the stock runtime. The truth is the op whose line was changed. The faulty program is
compared with the correct one, on random inputs. Correct programs must raise no alarm.
"""

from __future__ import annotations

import bisect
import json
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
import numpy as np

from tests.documents import DOCS, write_part
from tests.support import ROOT, SAMPLES, Corpus
from tracemap.core.toolchain import find_tool
from tracemap.kernels.swap import SwappableExecutables
from tracemap.map.bundle import Bundle, load

MODELS: Final = (
    *("jax_mlp", "jax_cnn", "jax_mlp_train", "jax_gpt2_4l", "fx_mlp_linalg", "remat_mlp"),
    *("hand_attention", "hand_convnet"),
)
FAULTS_PER_MODEL: Final = 5
"""Of each of the two kinds."""
_REMAT: Final = ROOT / "tests" / "programs" / "remat"
_LEAST_CHANGE: Final = 1e-4
"""Least relative change of an output: smaller faults are no faults."""
_TAG: Final = re.compile(r'"tm\.[0-9a-f]+\.op\.(\d+)"')


@dataclass(frozen=True, slots=True)
class Fault:
    """A changed line: its number from 1, and the lines in its place."""

    kind: str
    line: int
    text: str


# ---- planting

_BINARY = re.compile(
    r"(?P<head>\s*)%(?P<result>[\w#]+) = (?P<op>(?:arith|stablehlo)\.\w+)(?P<form> \w+,|  \w+,)? "
    r"%(?P<a>[\w#]+), %(?P<b>[\w#]+)(?P<rest>(?:,  FLOAT)?(?: fastmath<\w+>)? : .*)"
)
_LOST = {"arith.addf": "arith.maximumf", "arith.mulf": "arith.maximumf"} | {
    f"stablehlo.{name}": "stablehlo.maximum" for name in ("add", "multiply")
}
_SWAPPED = {"arith.subf", "arith.divf", "stablehlo.subtract", "stablehlo.divide"}
_CLAMPS = {
    "arith.maximumf": "arith.minimumf",
    "arith.minimumf": "arith.maximumf",
    "stablehlo.maximum": "stablehlo.minimum",
    "stablehlo.minimum": "stablehlo.maximum",
}
_ROUNDED = {"arith.addf", "arith.mulf", "stablehlo.add", "stablehlo.multiply", "stablehlo.subtract", "arith.subf"}
_CONSTANT = re.compile(
    r"(\s*%[\w#]+ = (?:arith|stablehlo)\.constant (?:dense<)?)(-?\d+\.\d+(?:e[+-]?\d+)?)((?:>)? : .*)", re.I
)
_SELECT = re.compile(r"(\s*%[\w#]+ = (?:arith|stablehlo)\.select %[\w#]+, )(%[\w#]+)(, )(%[\w#]+)( : .*)")


def faults(text: str) -> list[Fault]:
    """All faults that can be planted into a program's text."""
    return [Fault(kind, number, new) for number, line in enumerate(text.splitlines(), 1) for kind, new in _faults(line)]


def _faults(line: str) -> Iterator[tuple[str, str]]:
    if (found := _CONSTANT.fullmatch(line)) and "f32" in line.split(" loc(", maxsplit=1)[0]:
        value = float(found[2])
        if 1e-6 < abs(value) < 1e6:
            yield "constant", f"{found[1]}{value * 1.04:e}{found[3]}"
    if found := _SELECT.fullmatch(line):
        yield "mask", f"{found[1]}{found[4]}{found[3]}{found[2]}{found[5]}"
    found = _BINARY.fullmatch(line)
    if not found or "f32" not in found["rest"].split(" loc(")[0] or found["form"]:
        return
    head, result, op, a, b, rest = (found[name] for name in ("head", "result", "op", "a", "b", "rest"))
    if op in _LOST:
        yield "lost", f"{head}%{result} = {_LOST[op]} %{a}, %{a}{rest}"
    if op in _SWAPPED:
        yield "swapped", f"{head}%{result} = {op} %{b}, %{a}{rest}"
    if op in _CLAMPS:
        yield "mask", f"{head}%{result} = {_CLAMPS[op]} %{a}, %{b}{rest}"
    if op in _ROUNDED:
        yield "nan", _nan(head, result, op, a, b, rest)
        yield "f16", _narrow(head, result, op, a, b, rest)


def _nan(head: str, result: str, op: str, a: str, b: str, rest: str) -> str:
    log = "math.log" if op.startswith("arith") else "stablehlo.log"
    return f"{head}%t{result} = {op} %{a}, %{b}{rest}\n{head}%{result} = {log} %t{result}{rest}"


def _narrow(head: str, result: str, op: str, a: str, b: str, rest: str) -> str:
    found = re.fullmatch(r"(?: fastmath<\w+>)? : (\S+)( loc\(.*\))?", rest, re.DOTALL)
    assert found
    kind, loc = found.groups()
    loc, narrow = loc or "", kind.replace("f32", "f16")
    first = f"{head}%t{result} = {op} %{a}, %{b}{rest}\n"
    if op.startswith("arith"):
        return (
            f"{first}{head}%u{result} = arith.truncf %t{result} : {kind} to {narrow}{loc}\n"
            f"{head}%{result} = arith.extf %u{result} : {narrow} to {kind}{loc}"
        )
    return (
        f"{first}{head}%u{result} = stablehlo.convert %t{result} : ({kind}) -> {narrow}{loc}\n"
        f"{head}%{result} = stablehlo.convert %u{result} : ({narrow}) -> {kind}{loc}"
    )


def planted(text: str, fault: Fault) -> str:
    """The text with a fault."""
    lines = text.splitlines()
    lines[fault.line - 1] = fault.text
    return "\n".join([*lines, ""])


# ---- programs


@dataclass
class Judge:
    """A correct program with random inputs, and a folder for its faulty versions."""

    model: str
    folder: Path

    def __post_init__(self) -> None:
        self.path = next(path for path in (SAMPLES / "models", _REMAT) if (path / f"{self.model}.mlir").exists())
        self.path /= f"{self.model}.mlir"
        self.text = self.path.read_text(encoding="utf-8")
        self.clean = self._build(self.path, "clean", ())
        assert self.clean is not None
        self.bundle = load(self.clean)
        self.inputs = self._inputs(self.bundle)
        self.outputs = self._outputs(self.clean)

    def _build(self, model: Path, name: str, flags: Sequence[str]) -> Path | None:
        target = self.folder / f"{name}.tracemap"
        command = [*_TRACEMAP, "build", str(model), "-o", str(target), "--force", "-q"]
        done = subprocess.run([*command, *(["--", *flags] if flags else [])], capture_output=True, check=False)
        return target if done.returncode == 0 else None

    def _inputs(self, bundle: Bundle) -> list[str]:
        random_numbers = np.random.default_rng(7)
        specs = []
        for number, argument in enumerate(bundle.graph.functions[0].arguments):
            *sizes, element = re.sub(r"tensor<|>|!torch.vtensor<", "", argument.type).replace("[", "").split("x")
            shape = [int(size) for size in sizes]
            values = random_numbers.normal(0, 1, shape) if element == "f32" else random_numbers.integers(0, 8, shape)
            if len(shape) == 1:  # variances are positive
                values = np.abs(values)
            path = self.folder / f"{self.model}-{number}.npy"
            np.save(path, values.astype(np.float32 if element == "f32" else np.int32))
            specs.append(f"--input=@{path}")
        return specs

    def _outputs(self, bundle: Path) -> list[np.ndarray[Any, Any]]:
        function = self.bundle.graph.functions[0].name
        count = 8
        for _ in range(count):
            targets = [self.folder / f"output-{number}.npy" for number in range(count)]
            command = [find_tool("iree-run-module"), f"--module={bundle / 'module.vmfb'}", f"--function={function}"]
            command += [*self.inputs, *(f"--output=@{target}" for target in targets)]
            if subprocess.run([*map(str, command)], capture_output=True, check=False).returncode == 0:
                return [np.load(target) for target in targets]
            count -= 1
        return []

    def changes_outputs(self, bundle: Path) -> bool:
        """Whether the program's outputs differ from the correct ones."""
        for one, other in zip(self._outputs(bundle), self.outputs, strict=True):
            with np.errstate(all="ignore"):
                if not np.allclose(
                    one, other, rtol=0, atol=_LEAST_CHANGE * float(np.nanmax(np.abs(other), initial=0)), equal_nan=True
                ):
                    return True
        return False

    def in_model(self, fault: Fault) -> tuple[Path, frozenset[str]] | None:
        """A program whose model has a fault, and the ops of the changed lines."""
        path = self.folder / f"{self.model}.mlir"
        path.write_text(planted(self.text, fault), encoding="utf-8")
        bundle = self._build(path, "faulty", ())
        if bundle is None:
            return None
        lines = set(range(fault.line, fault.line + fault.text.count("\n") + 1))
        if fault.kind == "constant":
            lines |= set(_using(self.text, fault.text.split("=")[0].strip()))
        ops = load(bundle).graph.ops
        return bundle, frozenset(
            op.id for op in ops if op.line in lines or any(part.line in lines for part in op.parts)
        )

    def in_kernel(self, kernel: str, text: str, fault: Fault) -> tuple[Path, frozenset[str]] | None:
        """A program with a fault in a kernel, and the op whose tag its line has."""
        members = {member.op for site in self.bundle.graph.sites if site.kernel == kernel for member in site.members}
        tags = {tag for tag in _TAG.findall(fault.text) if self._op_of(int(tag)) in members}
        if fault.kind != "constant" and len(tags) != 1:
            return None
        path = self.folder / "kernel.mlir"
        path.write_text(planted(text, fault), encoding="utf-8")
        name = SwappableExecutables(self.bundle).named(kernel).name
        bundle = self._build(self.path, "faulty", [f"--iree-hal-substitute-executable-source={name}={path}"])
        if bundle is None:
            return None
        numbers = _users(text, fault) if fault.kind == "constant" else map(int, tags)
        return bundle, frozenset(map(self._op_of, numbers))

    def _op_of(self, number: int) -> str:
        """The op with this number, or that it is a part of."""
        known = sorted(int(op.id.removeprefix("op")) for op in self.bundle.graph.ops)
        return f"op{known[bisect.bisect_right(known, number) - 1]}"


def _using(text: str, name: str) -> Iterator[int]:
    """The lines that use a value, also where it is broadcast."""
    pattern = re.compile(re.escape(name) + r"\b")
    for number, line in enumerate(text.splitlines(), 1):
        if pattern.search(line):
            yield number
            result = line.split("=")[0].strip()
            if "broadcast" in line and result != name:
                yield from _using(text, result)


def _users(text: str, fault: Fault) -> Iterator[int]:
    """The numbers of the ops of the lines that use a constant, and its own."""
    name = fault.text.split("=")[0].strip()
    for line in text.splitlines():
        if re.search(re.escape(name) + r"\b", line.split(" loc(")[0]):
            yield from map(int, _TAG.findall(line))


_TRACEMAP: Final = (sys.executable, "-m", "tracemap")


# ---- judging


@dataclass(frozen=True, slots=True)
class Judgement:
    """What `numerics` says of a fault."""

    name: str
    kind: str
    place: str
    site_right: bool
    op_right: bool
    said: str


def judge(judge_of: Judge, kind: str, place: str, bundle: Path, truth: frozenset[str]) -> Judgement:
    """Compare a faulty program with the correct one."""
    command = [*_TRACEMAP, "numerics", str(bundle), *judge_of.inputs, "--against", str(judge_of.clean), "--format=json"]
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    assert done.stdout, done.stderr
    culprit = json.loads(done.stdout)["culprit"]
    if culprit is None:
        return Judgement(judge_of.model, kind, place, False, False, "nothing")
    site_right = bool(truth & set(culprit["ops"]))
    op_right = bool(culprit["ops"]) and culprit["ops"][0] in truth
    said = f"{culprit['site']} {culprit['ops'][:1]} {culprit['reason']}; true: {sorted(truth)}"
    return Judgement(judge_of.model, kind, place, site_right, op_right, said)


def judged(model: str, folder: Path, count: int) -> Iterator[Judgement]:
    """Faults of a model, `count` in kernels and as many in the model's text."""
    own = Judge(model, folder)
    chance = random.Random(model)
    in_model = faults(own.text)
    yield from _some(own, "model", [partial_model(own, fault) for fault in in_model], in_model, count, chance)
    planters, planted_faults = [], []
    executables = SwappableExecutables(own.bundle)
    for kernel in own.bundle.graph.kernels:
        text = executables.dumped(kernel.name, "source", folder)
        for fault in faults(text):
            planters.append(partial_kernel(own, kernel.name, text, fault))
            planted_faults.append(fault)
    yield from _some(own, "kernel", planters, planted_faults, count, chance)


Planter = Callable[[], "tuple[Path, frozenset[str]] | None"]


def partial_model(own: Judge, fault: Fault) -> Planter:
    """Plants a fault into the model."""
    return lambda: own.in_model(fault)


def partial_kernel(own: Judge, kernel: str, text: str, fault: Fault) -> Planter:
    """Plants a fault into a kernel."""
    return lambda: own.in_kernel(kernel, text, fault)


def _some(
    own: Judge, place: str, planters: Sequence[Planter], all_faults: Sequence[Fault], count: int, chance: random.Random
) -> Iterator[Judgement]:
    """Judge `count` effective faults, of as many kinds as there are."""
    order = list(range(len(planters)))
    chance.shuffle(order)
    done: Counter[str] = Counter()
    while order and done.total() < count:
        order.sort(key=lambda number: done[all_faults[number].kind])
        number = order.pop(0)
        made = planters[number]()
        if made is None or not own.changes_outputs(made[0]):
            continue
        done[all_faults[number].kind] += 1
        yield judge(own, all_faults[number].kind, place, *made)


# ---- correct programs


def alarms(models: Corpus, flags: str, folder: Path) -> tuple[int, int, int]:
    """Of a correct program: 1 for an alarm, its checked dispatch sites, and all of them."""
    bundle = folder / f"{models.model_of(flags)}.tracemap"
    if not bundle.exists():
        models.build(models.model_of(flags), bundle)
    command = [*_TRACEMAP, "numerics", str(bundle), "--flagfile", str(models.flag_files()[flags]), "--format=json"]
    done = subprocess.run(command, capture_output=True, check=False, text=True, cwd=models.folder)
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    checked = sum(site["verdict"] != "not-verified" for site in found["sites"])
    return int(found["culprit"] is not None), checked, len(found["sites"])


# ---- command line


@click.command()
@click.option("--corpus", type=click.Path(path_type=Path, exists=True), default=SAMPLES, help="Folder of models.")
@click.option("--models", default=",".join(MODELS), show_default=True, help="Samples to plant faults into.")
@click.option("--count", default=FAULTS_PER_MODEL, show_default=True, help="Faults per model, of each kind.")
@click.option("--write-docs", is_flag=True, help="Put the table into docs/accuracy.md.")
def main(corpus: Path, models: str, count: int, *, write_docs: bool) -> None:
    """Print what `numerics` says of each fault; status 1 if a target is missed."""
    results, clean = [], []
    with tempfile.TemporaryDirectory(prefix="tracemap-numerics-") as folder:
        programs = Corpus(corpus)
        for flags in programs.flag_files():
            clean.append(alarms(programs, flags, Path(folder)))
            print(flags, clean[-1], file=sys.stderr, flush=True)
    for model in models.split(","):
        with tempfile.TemporaryDirectory(prefix="tracemap-numerics-") as folder:
            for result in judged(model, Path(folder), count):
                results.append(result)
                mark = "right" if result.op_right else "site" if result.site_right else "WRONG"
                print(
                    f"{mark:5} {result.name} {result.place} {result.kind}: {result.said}", file=sys.stderr, flush=True
                )
    text = table(results)
    wrong, checked, sites = (sum(column) for column in zip(*clean, strict=True))
    text += (
        f"\n{len(clean)} correct programs raise {wrong} alarms; {checked} of their {sites} dispatch sites are checked."
    )
    print(text)
    if write_docs:
        write_part(DOCS / "accuracy.md", "numerics", text)
    is_good = sum(result.site_right for result in results) >= LEAST_SITES * len(results)
    is_named = sum(result.op_right for result in results) >= LEAST_OPS * len(results)
    sys.exit(0 if is_good and is_named and not wrong else 1)


LEAST_SITES, LEAST_OPS = 57 / 60, 50 / 60


def table(results: Sequence[Judgement]) -> str:
    """Faults by kind as a table of Markdown."""
    rows = ["| fault | planted in | faults | site right | op right |", "|---|---|--:|--:|--:|"]
    for kind, place in sorted({(result.kind, result.place) for result in results}):
        own = [result for result in results if (result.kind, result.place) == (kind, place)]
        sites, ops = sum(result.site_right for result in own), sum(result.op_right for result in own)
        rows.append(f"| {_NAMES[kind]} | {place} | {len(own)} | {sites} | {ops} |")
    sites, ops = sum(result.site_right for result in results), sum(result.op_right for result in results)
    return "\n".join([*rows, "", f"Of {len(results)} faults, the site is right for {sites}, and the op for {ops}."])


_NAMES: Final = {
    "constant": "another constant",
    "f16": "a result in f16",
    "lost": "a lost operand",
    "mask": "a swapped choice or clamp",
    "nan": "the logarithm of a negative number",
    "swapped": "swapped operands",
}


if __name__ == "__main__":
    main()
