"""Models that `tracemap reduce` writes: `python -m tests.oracle.reduce`.

Each case is a model of at least 40 ops with a problem. The reduced model is judged by its file alone: IREE's tools or
`tracemap` run the printed commands in an empty folder, and must show the problem. At most a tenth of the ops may be
left, and no name or text of the original.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import click
import numpy as np

from tests.support import SAMPLES, check_cli, command_line
from tracemap.core.toolchain import find_tool
from tracemap.ir.kernel_equality import kernel_digest
from tracemap.ir.parsing import MlirParser
from tracemap.map.bundle import Bundle, load
from tracemap.map.query import phase_of_loss

_SHARE: Final = 0.1
_FEWEST: Final = 40
_PRINTED: Final = re.compile(r"(arg|c|cst|none|str|int|true|false)_?\d*")
"""Names that MLIR's printer gives to values."""
GPT2, SCAN, ONNX, TORCH = "jax_gpt2_4l", "jax_gpt2_4l_scan", "onnx_tinygpt_named", "torch_tinygpt"


@dataclass(frozen=True)
class Case:
    """A problem: a model's name in samples/ or its text, the op, and more words of the command."""

    name: str
    model: str
    shows: str
    op: str = ""
    words: tuple[str, ...] = ()
    """Further words of the command; `bias.npy` has large numbers, `nan.npy` a NaN."""
    flags: tuple[str, ...] = ()
    """Flags of the compiler."""


@dataclass(frozen=True)
class Judged:
    """A reduced model: its figures, and its faults."""

    case: Case
    before: int
    left: int
    parts: int
    seconds: float
    faults: tuple[str, ...]


# ---- models


def linalg_model(last: str, arguments: str = "%w: tensor<64x64xf32>, %other: tensor<32x64xf32>") -> str:
    """A chain of twelve layers of products, and a last operation `%last` of the chain's end `%h`."""
    lines = [f"func.func @secret_forward(%x: tensor<32x64xf32>, {arguments}) -> tensor<32x64xf32> {{"]
    lines.append("  %c = arith.constant 0.0 : f32")
    state = "%x"
    for layer in range(12):
        lines += [
            f"  %e{layer} = tensor.empty() : tensor<32x64xf32>",
            f"  %f{layer} = linalg.fill ins(%c : f32) outs(%e{layer} : tensor<32x64xf32>) -> tensor<32x64xf32>",
            f"  %m{layer} = linalg.matmul ins({state}, %w : tensor<32x64xf32>, tensor<64x64xf32>) "
            f"outs(%f{layer} : tensor<32x64xf32>) -> tensor<32x64xf32>",
            f"  %t{layer} = math.tanh %m{layer} : tensor<32x64xf32>",
        ]
        state = f"%t{layer}"
    return "\n".join([*lines, last.replace("%h", state), "  return %last : tensor<32x64xf32>", "}", ""])


SOFTMAX = linalg_model(
    "  %last = linalg.softmax dimension(1) ins(%h : tensor<32x64xf32>) outs(%other : tensor<32x64xf32>) "
    "-> tensor<32x64xf32>"
)
"""IREE 3.13 rejects a softmax whose destination is an argument."""
LOGARITHM = linalg_model(
    "  %minus = arith.negf %h : tensor<32x64xf32>\n  %below = arith.subf %minus, %ten : tensor<32x64xf32>\n"
    "  %log = math.log %below : tensor<32x64xf32>\n  %last = arith.addf %log, %other : tensor<32x64xf32>",
    "%w: tensor<64x64xf32>, %other: tensor<32x64xf32>, %ten: tensor<32x64xf32>",
)
"""The logarithm of negative numbers."""


def stablehlo_model() -> str:
    """Forty ops and a product with an extent of 0, for which IREE divides by zero."""
    kind = "tensor<4x8xf32>"
    lines = ['module @secret_module attributes {acme.owner = "alice"} {']
    lines.append(
        f"func.func public @secret_step(%x: {kind}, %a: tensor<4x0xf32>, %b: tensor<0x8xf32>) -> {kind} "
        '{\n  %weights = stablehlo.constant dense<"0x'
        + np.arange(32, dtype=np.float32).tobytes().hex().upper()
        + f'"> : {kind}'
    )
    state = "%x"
    for layer in range(20):
        lines.append(f'  %a{layer} = stablehlo.add {state}, %weights {{acme.note = "layer{layer}"}} : {kind}')
        lines.append(f"  %t{layer} = stablehlo.tanh %a{layer} : {kind}")
        state = f"%t{layer}"
    zero = "(tensor<4x0xf32>, tensor<0x8xf32>)"
    lines.append(f"  %dot = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : {zero} -> {kind}")
    lines.append(f"  %sum = stablehlo.add %dot, {state} : {kind}\n  return %sum : {kind}\n}}\n}}")
    return "\n".join([*lines, ""])


def tosa_model(last: str) -> str:
    """Forty ops of TOSA and a last one of their result, with an addition after it."""
    kind = "tensor<4x8xf32>"
    lines = [f"func.func @secret_tosa(%x: {kind}, %y: {kind}, %other: {kind}) -> {kind} {{"]
    state = "%x"
    for layer in range(20):
        lines.append(f"  %a{layer} = tosa.add {state}, %y : ({kind}, {kind}) -> {kind}")
        lines.append(f"  %t{layer} = tosa.tanh %a{layer} : ({kind}) -> {kind}")
        state = f"%t{layer}"
    lines += [
        f"  %n = tosa.negate {state}, %z1, %z2 : ({kind}, tensor<1xf32>, tensor<1xf32>) -> {kind}",
        "  %r = " + last.format(state=state, kind=kind),
        f"  %s = tosa.add %r, %y : ({kind}, {kind}) -> {kind}",
        f"  return %s : {kind}\n}}",
    ]
    constants = [
        f'  %{name} = "tosa.const"() {{values = dense<0.0> : tensor<1xf32>}} : () -> tensor<1xf32>'
        for name in ("z1", "z2")
    ]
    return "\n".join([lines[0], *constants, *lines[1:], ""])


MAXIMUM = tosa_model("tosa.maximum {state}, %other : ({kind}, {kind}) -> {kind}")
FAST = ("--iree-llvmcpu-use-fast-min-max-ops",)
"""With this flag, the maximum of a number and a NaN is the number."""
_BIAS: Final = "params['blocks'][0]['attn']['proj']['b']=@bias.npy"
CASES: Final = (
    Case("slow product of JAX", GPT2, "slow", "main_dispatch_60_matmul_64x512x256_f32"),
    Case("slow fused kernel of JAX", GPT2, "slow", "main_dispatch_14_matmul_64x1024x256_f32"),
    Case("slow softmax of JAX", GPT2, "slow", "main_dispatch_9_softmax_8x64x64xf32_dispatch_tensor_store"),
    Case("slow product in a loop of JAX", SCAN, "slow", "main_dispatch_10_batch_matmul_8x64x32x64_f32"),
    Case("slow product of ONNX", ONNX, "slow", "*batch_matmul_1x64x1024x256_f32"),
    Case("slow product of torch", TORCH, "slow", "*batch_matmul_1x64x512x256_f32"),
    Case("NaN of an infinity in JAX", GPT2, "nan", "op102", ("--input", _BIAS)),
    Case("NaN of a logarithm in linalg", LOGARITHM, "nan", "math.log"),
    Case("NaN of a root in TOSA", tosa_model("tosa.rsqrt %n : ({kind}) -> {kind}"), "nan", "tosa.rsqrt"),
    Case("wrong maximum of TOSA", MAXIMUM, "wrong", "tosa.maximum", ("--input", "other=@nan.npy"), FAST),
    Case("location lost after the stream phase", GPT2, "lost", "op83"),
    Case("location lost on input", GPT2, "lost", "op52"),
    Case("location lost in linalg", LOGARITHM, "lost", "arith.negf"),
    Case("compiler rejects a softmax", SOFTMAX, "crash"),
    Case("compiler divides by zero", stablehlo_model(), "crash"),
)
QUICK: Final = (replace(CASES[0], words=("--seconds", "0.1")), CASES[7], CASES[12], CASES[14])
"""One of each problem, for the tests of every change."""


# ---- judging


def judge(case: Case, folder: Path) -> Judged:
    """Reduce a model and judge the result; the folder is empty."""
    model = folder / "original.mlir"
    source = SAMPLES / "models" / f"{case.model}.mlir"
    model.write_bytes(source.read_bytes() if "\n" not in case.model else case.model.encode())
    bias = np.zeros(256, np.float32)
    bias[7:9] = 3e38
    np.save(folder / "bias.npy", bias)
    missing = np.ones((4, 8), np.float32)
    missing[1, 2] = np.nan
    np.save(folder / "nan.npy", missing)
    target, options = model, ["--shows", case.shows, *case.words]
    if case.shows != "crash":
        target = folder / "original.tracemap"
        parameters = SAMPLES / "params" / f"{case.model.removesuffix('_named')[:60]}.irpa"
        more = ["--parameters", f"model={parameters}"] if "\n" not in case.model and parameters.is_file() else []
        check_cli("build", model, "-o", target, *more, "--", *case.flags, cwd=folder)
        options += ["--op", case.op]
    begin = time.monotonic()
    printed = check_cli("reduce", target, *options, "--anonymous", "-o", folder / "reduced.mlir", cwd=folder)
    seconds = time.monotonic() - begin
    ((left, before, parts),) = re.findall(r"^(\d+) ops? of (\d+) left, (\d+) parts? tried$", printed, re.MULTILINE)
    alone = folder / "alone"
    alone.mkdir()
    for file in folder.glob("reduced*.*"):
        if file.is_file():
            shutil.copy(file, alone)
    faults = [
        *size_faults(int(left), int(before)),
        *name_faults(model.read_text(), (alone / "reduced.mlir").read_text()),
        *shown_faults(case, printed, target, alone),
    ]
    return Judged(case, int(before), int(left), int(parts), seconds, tuple(faults))


def size_faults(left: int, before: int) -> Iterator[str]:
    """Too many ops left, or too few at first."""
    if before < _FEWEST:
        yield f"the model has only {before} ops"
    if left > _SHARE * before:
        yield f"{left} of {before} ops are left"


def name_faults(original: str, reduced: str) -> Iterator[str]:
    """The names and texts of a model that are in its reduced form, found by patterns, not by MLIR's parser."""
    names = set(re.findall(r"@([\w.$-]+)", original)) | set(re.findall(r'"([^"\n]{2,200})"', original))
    variables = re.findall(r"%([A-Za-z_][\w.]*)", original)
    names |= {name for name in variables if not _PRINTED.fullmatch(name)}
    text = "\n".join(line for line in reduced.splitlines() if not line.startswith("//"))
    words = set(re.findall(r"@([\w.$-]+)", text)) | set(re.findall(r'"([^"\n]*)"', text))
    words |= {name for name in re.findall(r"%([A-Za-z_][\w.]*)", text) if not _PRINTED.fullmatch(name)}
    operators = set(re.findall(r'torch\.operator "([\w.]+)"', original))
    yield from (f"the name {name!r} is left" for name in sorted(words & names - operators))


def shown_faults(case: Case, printed: str, original: Path, folder: Path) -> Iterator[str]:
    """The printed commands must show the problem in a folder with nothing but the reduced model."""
    commands = [shlex.split(line) for line in printed.splitlines() if line.startswith("  ")]
    done = [run(command, folder) for command in commands]
    if case.shows == "crash":
        wanted = run([str(find_tool("iree-compile")), str(original), *commands[0][1:-3], "-o", "x.vmfb"], folder)
        if done[0].returncode != wanted.returncode or first_error(done[0].stderr) != first_error(wanted.stderr):
            yield f"the compiler fails otherwise: {done[0].returncode}, {first_error(done[0].stderr)}"
        return
    yield from (
        f"{command[0]} failed: {own.stderr[-300:]}"
        for command, own in zip(commands, done, strict=True)
        if own.returncode and not (case.shows == "wrong" and command[1] == "numerics")
    )
    if case.shows == "wrong" and "1 wrong" not in done[-1].stdout:
        yield "no result is wrong"
    if case.shows == "nan" and "NAN" not in done[-1].stdout.upper():
        yield "no NaN is printed"
    if case.shows == "lost":
        (phase,) = re.findall(r"loses its location in the phase ([\w-]+)", printed)
        op = load(folder / "reduced.tracemap").graph.op_by_id[commands[-1][-1]]
        if phase_of_loss(op) != phase:
            yield f"the location is lost in {phase_of_loss(op) or 'no phase'}, not in {phase}"
    if case.shows == "slow":
        check_cli("build", "reduced.mlir", cwd=folder)
        before, after = load(original), load(folder / "reduced.tracemap")
        (kernel,) = (name for name in digests(before) if re.fullmatch(case.op.replace("*", ".*"), name))
        if digests(before)[kernel] not in digests(after).values():
            yield "the kernel is another one"
        if "its time differs" in printed:
            yield "the time differs"


def digests(bundle: Bundle) -> dict[str, str]:
    """The kernels of a bundle, by content."""
    return {kernel.name: kernel_digest(MlirParser(), bundle.kernel_text(kernel)) for kernel in bundle.graph.kernels}


def first_error(said: str) -> str:
    """The first error of a compiler, without what differs between models."""
    match = re.search(r"error: (.*)", said)
    return match[1] if match else ""


def run(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a printed command."""
    words = command_line(*command[1:]) if command[0] == "tracemap" else [*command]
    if command[0].startswith("iree-"):
        words[0] = str(find_tool(command[0]))
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=600, check=False)


# ---- table


@click.command()
@click.option("--case", "chosen", multiple=True, help="Only cases whose name has this text.")
def main(chosen: tuple[str, ...]) -> None:
    """Reduce all models, and print a table; status 1 if a model is too large, does not show it, or has a name."""
    cases = [case for case in CASES if not chosen or any(text in case.name for text in chosen)]
    print("| case | ops | left | share | parts tried | seconds | faults |\n|---|--:|--:|--:|--:|--:|---|")
    missed = 0
    for case in cases:
        with tempfile.TemporaryDirectory() as folder:
            own = judge(case, Path(folder))
        figures = (f"{own.before}", f"{own.left}", f"{own.left / own.before:.1%}", f"{own.parts}", f"{own.seconds:.0f}")
        print(f"| {' | '.join((case.name, *figures, '; '.join(own.faults) or 'none'))} |", flush=True)
        missed += bool(own.faults)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
