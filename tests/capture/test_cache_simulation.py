"""`record --cache-sim`: simulated cache events, in known numbers, on the kernel line and op that cause them.

A line of cache holds 16 floats; the geometry is given, so that the numbers hold on any machine. A read of a column of
a matrix misses at every row; rows read in order miss once in 16 floats; what fits into the cache misses only once.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from tests.commands.test_record import alive, children_of, waited_for
from tests.conftest import Built
from tests.recording import Row, events
from tests.support import ROOT, check_cli, command_line, interruptible, json_cli, made_once, run_cli, runs_of
from tracemap.capture import cache_simulation as simulating
from tracemap.capture.benchmark import run_benchmark
from tracemap.capture.cache_simulation import EVENTS, Valgrind, corrected_masked_accesses, simulated_steps
from tracemap.capture.machine import Cache, geometry
from tracemap.core.errors import BundleInvalid, RunInvalid, UsageInvalid
from tracemap.core.toolchain import find_tool
from tracemap.machine.code import Instruction, instructions_of
from tracemap.machine.debug_lines import OpLines
from tracemap.machine.images import CodeFunction, Image, read_images
from tracemap.machine.values import NO_VALUES
from tracemap.map.build.compiler.recompiled_kernels import build_simulated
from tracemap.map.bundle import Bundle, load
from tracemap.runs.callgrind import CallCost, CallgrindCounts, read_callgrind
from tracemap.runs.runfile import read_run

PROGRAM = ROOT / "tests" / "programs" / "caches.mlir"
CACHES = tuple(
    word for cache in ("I1=32768,8,64", "D1=32768,8,64", "LL=131072,8,64") for word in ("--cache-geometry", cache)
)
INPUTS = {
    "misses": ("32768x32xf32=1",),
    "hits": ("512xf32=1", "1024xf32=2"),
    "both": ("16384x64xf32=1", "16384x32xf32=2"),
}
OF_OTHERS = {"main": ("256x256xf32=1",)}
FLOATS_OF_A_LINE = 16


@pytest.fixture(scope="session")
def valgrind() -> Path:
    found = shutil.which("valgrind")
    if found is None:
        pytest.skip("valgrind is not installed; install it (Debian, Ubuntu: apt-get install valgrind)")
    return Path(found)


@pytest.fixture(scope="session")
def bundle(made: Path) -> Path:
    """The bundle of the program whose misses are known."""
    target = made / "caches.tracemap"
    with made_once(target) as missing:
        if missing:
            check_cli("build", PROGRAM, "-o", target)
    return target


def simulate(bundle: Path, function: str, run: Path, *more: str) -> list[Row]:
    """Record one timed call and a simulated one; returns the simulated rows of steps."""
    inputs = [word for spec in (INPUTS | OF_OTHERS)[function] for word in ("--input", spec)]
    check_cli(
        "record", bundle, "--function", function, *inputs, "--cache-sim", *CACHES,
        *("--iterations", "1", "--warmup", "0", "-o", run), *more,
    )  # fmt: skip
    return steps_of(run)


@pytest.fixture(scope="session")
def simulated(made: Path, bundle: Path, valgrind: Path) -> dict[str, Path]:  # noqa: ARG001 - skips where it is missing
    """A run of each function."""
    runs = {function: made / f"caches.{function}.csv" for function in INPUTS}
    with made_once(made / "caches.done") as missing:
        if missing:
            for function, run in runs.items():
                simulate(bundle, function, run)
            (made / "caches.done").touch()
    return runs


def steps_of(run: Path) -> list[Row]:
    return [row for row in events(run) if row["kind"] == "step" and row["Ir"] is not None]


def misses_by_step(run: Path, bundle: Bundle, event: str) -> dict[tuple[int, str], int]:
    """Events by line and name of the step, where there is more than a handful."""
    names = {(kernel.name, step.line): step.op_name for kernel in bundle.graph.kernels for step in kernel.steps}
    return {
        (row["step"], names.get((row["kernel"], row["step"]), "")): row[event]
        for row in steps_of(run)
        if row[event] > 50
    }


def op_of(bundle: Bundle, text: str) -> str:
    """The op on the only line of the program that holds a text."""
    (line,) = (number for number, line in enumerate(PROGRAM.read_text().splitlines(), start=1) if text in line)
    (op,) = (op.id for op in bundle.graph.ops if op.line == line)
    return op


def exponentials(first: int | str, second: int | str, bundle: Path) -> Path:
    """A bundle of two exponentials, of matrices with so many rows."""
    one, two = (f"tensor<{rows}x64xf32>" for rows in (first, second))
    program = bundle.with_suffix(".mlir")
    program.write_text(
        f"func.func @main(%x: {one}, %y: {two}) -> ({one}, {two}) {{\n"
        f"  %a = math.exp %x : {one}\n  %b = math.exp %y : {two}\n  return %a, %b : {one}, {two}\n}}\n"
    )
    with made_once(bundle) as missing:
        if missing:
            check_cli("build", program, "-o", bundle)
    return bundle


@pytest.mark.long
def test_sites_of_other_sizes_have_their_own_counts(made: Path, valgrind: Path, tmp_path: Path) -> None:  # noqa: ARG001
    """One kernel at two sites, 1 and 40 times as long: each has what it has where the other one's operand is empty."""
    bundle = exponentials("?", "?", made / "sizes.tracemap")

    def instructions(*rows: int) -> list[int]:
        run = tmp_path / f"{rows[0]}-{rows[1]}.csv"
        inputs = [word for count in rows for word in ("--input", f"{count}x64xf32" + "=0.5" * bool(count))]
        check_cli("record", bundle, *inputs, "--cache-sim", *CACHES, "--iterations", "1", "--warmup", "0", "-o", run)
        sites = json_cli("attribute", run, "--map", bundle)["sites"]
        return [site["metrics"]["Ir"]["total"] for site in sites]

    alone = instructions(64, 0)[0], instructions(0, 2560)[1]
    assert alone[1] > 30 * alone[0]
    assert instructions(64, 2560) == pytest.approx(alone, rel=0.02)


@pytest.mark.long
def test_what_is_read_and_written_under_a_mask_is_data(made: Path, valgrind: Path, tmp_path: Path) -> None:  # noqa: ARG001
    """Where sizes are not known before, vectors are masked. The same sizes, known before, need no mask."""
    found = {}
    for name, bundle in (
        ("masked", exponentials("?", "?", made / "sizes.tracemap")),
        ("plain", exponentials(64, 2560, made / "known.tracemap")),
    ):
        run = tmp_path / f"{name}.csv"
        inputs = ("--input", "64x64xf32=0.5", "--input", "2560x64xf32=0.5")
        check_cli("record", bundle, *inputs, "--cache-sim", *CACHES, "--iterations", "1", "--warmup", "0", "-o", run)
        found[name] = {event: sum(row[event] for row in steps_of(run)) for event in EVENTS}
    masked, plain = found["masked"], found["plain"]
    lines = (64 + 2560) * 64 // FLOATS_OF_A_LINE
    assert masked["D1mr"] == pytest.approx(lines, rel=0.02)
    assert masked["D1mw"] == pytest.approx(lines, rel=0.02)
    assert masked["I1mr"] < 100
    assert masked["Dw"] == pytest.approx(plain["Dw"], rel=0.01)
    assert plain["Ir"] < masked["Ir"] < 1.25 * plain["Ir"]  # masks are made, too


# ---- cache truth


@pytest.mark.long
@pytest.mark.parametrize("event", ["D1mr", "DLmr"])
def test_a_strided_read_misses_at_every_row(event: str, simulated: dict[str, Path], bundle: Path) -> None:
    (found,) = misses_by_step(simulated["misses"], load(bundle), event).items()
    (_, name), misses = found
    assert name == "arith.mulf"  # which takes what is read
    assert misses == pytest.approx(32768, rel=0.05)


@pytest.mark.long
def test_its_writes_miss_once_per_line(simulated: dict[str, Path]) -> None:
    written = sum(row["D1mw"] for row in steps_of(simulated["misses"]))
    assert written == pytest.approx(32768 / FLOATS_OF_A_LINE, rel=0.05)


def test_what_fits_into_the_cache_misses_once(simulated: dict[str, Path]) -> None:
    rows = steps_of(simulated["hits"])
    misses = sum(row["D1mr"] for row in rows)
    assert misses == pytest.approx((512 + 1024) / FLOATS_OF_A_LINE, rel=0.05)
    # Each element of the table is read at least once for every vector of 16 results.
    assert sum(row["Dr"] for row in rows) > 512 / 16 * 1024 > 100 * misses


@pytest.mark.parametrize("event", ["D1mr", "DLmr"])
def test_misses_of_two_fused_ops_land_on_each(event: str, simulated: dict[str, Path], bundle: Path) -> None:
    opened = load(bundle)
    done = json_cli("attribute", simulated["both"], "--map", bundle, "--rule", "measured")
    given = {op["op"]: op["metrics"][event]["attributed"] for op in done["ops"]}
    summed, added = op_of(opened, "%sums ="), op_of(opened, "%total =")
    assert given[summed] == pytest.approx(16384 * 64 / FLOATS_OF_A_LINE, rel=0.05)
    assert given[added] == pytest.approx(16384, rel=0.05)
    assert sum(given.values()) == pytest.approx(given[summed] + given[added], rel=0.01)


@pytest.mark.long
def test_everything_balances(simulated: dict[str, Path], bundle: Path) -> None:
    for run in simulated.values():
        done = json_cli("attribute", run, "--map", bundle, "--rule", "measured")
        measured = {metric["name"]: metric["measured"] for metric in done["metrics"]}
        for event in EVENTS:
            assert measured[event] == sum(row[event] for row in steps_of(run))


# ---- the run


def test_times_stay_and_counts_are_rows_of_their_own(simulated: dict[str, Path], bundle: Path) -> None:
    rows = events(simulated["both"])
    timed = [row for row in rows if row["kind"] != "step"]
    assert [row["kind"] for row in timed].count("dispatch") == 1
    assert all(row["cpu_ns"] is not None for row in timed if row["kind"] == "dispatch")
    assert all(row[event] is None for row in timed for event in EVENTS)
    steps = rows[len(timed) :]
    assert steps
    assert all(row["kind"] == "step" and row["cpu_ns"] is None and row["start_ns"] is None for row in steps)
    places = [(row["kernel"], row["step"]) for row in steps]
    assert places == sorted(set(places))
    known = {(kernel.name, step.line) for kernel in load(bundle).graph.kernels for step in kernel.steps}
    assert {place for place in places if place[1]} <= known
    for row in steps:
        assert row["Ir"] >= row["I1mr"] >= row["ILmr"] >= 0
        assert row["Dr"] >= row["D1mr"] >= row["DLmr"] >= 0
        assert row["Dw"] >= row["D1mw"] >= row["DLmw"] >= 0


def test_the_header_says_what_was_simulated(simulated: dict[str, Path], valgrind: Path) -> None:
    version = subprocess.run([valgrind, "--version"], capture_output=True, text=True, check=True).stdout.split("-")[1]
    header = read_run(simulated["both"]).header
    (told,) = (d.message for d in header.diagnostics if d.slug == "cache-simulated")
    assert re.search(rf"LL \S+ \S+ \d+-way {header.simulated_line_bytes} B", told)
    for words in ("not measured", "one call on one worker", version.strip(), "x86-64 with AVX2", "(as given)"):
        assert words in told
    assert "I1 32.0 KiB 8-way 64 B, D1 32.0 KiB 8-way 64 B, LL 128 KiB 8-way 64 B" in told


@pytest.mark.long
def test_counts_are_the_same_each_time(bundle: Path, simulated: dict[str, Path], tmp_path: Path) -> None:
    """Whatever the environment, and with other options that run the program again."""
    os.environ["TRACEMAP_TEST_OF_LENGTH"] = "x" * 777
    try:
        again = simulate(bundle, "both", tmp_path / "again.parquet", "--counters", "task-clock")
    finally:
        del os.environ["TRACEMAP_TEST_OF_LENGTH"]
    wanted = ("kernel", "step", *EVENTS)
    assert [[row[name] for name in wanted] for row in again] == [
        [row[name] for name in wanted] for row in steps_of(simulated["both"])
    ]


@pytest.mark.long
@pytest.mark.usefixtures("valgrind")
def test_counters_samples_and_caches_go_together(bundle: Path, tmp_path: Path) -> None:
    options = ("--counters", "task-clock", "--sample", "4999", "--iterations", "200", "--cache-sim", *CACHES)
    inputs = [word for spec in INPUTS["both"] for word in ("--input", spec)]
    done = run_cli("record", bundle, "--function", "both", *inputs, *options, "-o", tmp_path / "run.parquet")
    if "[event-unavailable]" in done.stderr or "[tool-missing]" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    rows = events(tmp_path / "run.parquet")
    assert all(row["task-clock"] is not None for row in rows if row["kind"] == "dispatch")
    sampled = [row for row in rows if row["kind"] == "step" and row["samples"] is not None]
    assert sampled
    assert all(row["Ir"] is None for row in sampled)
    assert len(steps_of(tmp_path / "run.parquet")) == len([r for r in rows if r["kind"] == "step"]) - len(sampled) > 0


@pytest.mark.long
@pytest.mark.usefixtures("valgrind")
def test_what_runs_at_load_time_is_not_counted(tmp_path: Path) -> None:
    target = tmp_path / "load_time.tracemap"
    check_cli("build", PROGRAM.with_name("load_time.mlir"), "-o", target)
    graph = load(target).graph
    initial = {site.kernel for site in graph.sites if site.initializer}
    called = {site.kernel for site in graph.sites if not site.initializer}
    assert len(called) == 1
    assert len(initial) == 2
    assert called < initial
    steps = simulate(target, "main", tmp_path / "run.csv")
    assert {row["kernel"] for row in steps} == called
    # The kernel's one call reads a matrix once, in order.
    assert sum(row["D1mr"] for row in steps) == pytest.approx(256 * 256 / FLOATS_OF_A_LINE, rel=0.05)
    (told,) = (d.message for d in read_run(tmp_path / "run.csv").header.diagnostics if d.slug == "cache-simulated")
    assert "Work at module load time is subtracted" in told


# ---- the build for the simulator


def wide_bundle(folder: Path) -> Bundle:
    """A bundle for a processor with AVX-512; nothing of it is run."""
    target = folder / "wide.tracemap"
    check_cli("build", PROGRAM, "-o", target, "--", "--iree-llvmcpu-target-cpu=skylake-avx512")
    return load(target)


def operands(module: Path) -> set[str]:
    """All operands of the machine code of a module."""
    return {
        instruction.operands
        for image in read_images(module)
        for function in image.functions
        for instruction in instructions_of(image, function)
    }


AVX512 = re.compile(r"\bzmm\d|[xy]mm(?:1[6-9]|2\d|3[01])\b|\{?\bk[0-7]\b")


@pytest.mark.long
@pytest.mark.parametrize("fused", [False, True])
def test_the_build_has_no_avx512(fused: bool, tmp_path: Path) -> None:
    bundle = wide_bundle(tmp_path)
    assert any(AVX512.search(text) for text in operands(bundle.module_path))
    module = build_simulated(bundle.configured(), bundle.graph.module.flags, tmp_path, fused=fused)
    assert not {text for text in operands(module.path) if AVX512.search(text)}
    words = "x86-64 with AVX2 and FMA, without microkernels", "x86-64 with AVX2, without FMA and microkernels"
    assert module.build == words[not fused]


@pytest.mark.long
@pytest.mark.parametrize("microkernels", ["default", "all", "none"])
def test_tiles_for_microkernels_stay_vectors(microkernels: str, tmp_path: Path) -> None:
    """There is no microkernel for tiles of AVX-512 in AVX2: the one for any tile reads single floats."""
    model, target = tmp_path / "large.mlir", tmp_path / "tiled.tracemap"
    model.write_text(_LARGE)
    check_cli(
        "build", model, "-o", target, "--", "--iree-llvmcpu-target-cpu=skylake-avx512", "--iree-opt-data-tiling",
        f"--iree-llvmcpu-enable-ukernels={microkernels}",
    )  # fmt: skip
    bundle = load(target)
    assert "linalg.mmt4d" in {step.op_name for kernel in bundle.graph.kernels for step in kernel.steps}
    module = build_simulated(bundle.configured(), bundle.graph.module.flags, tmp_path, fused=False)
    multiplied = {
        instruction.mnemonic
        for image in read_images(module.path)
        for function in image.functions
        for instruction in instructions_of(image, function)
        if instruction.mnemonic.startswith("vmul")
    }
    assert multiplied == {"vmulps"}


@pytest.mark.long
def test_functions_stay_vectors_without_fused_multiply_adds(tmp_path: Path) -> None:
    """Approximations are made of multiply-adds; what makes up for one is a call per element."""
    target = tmp_path / "load_time.tracemap"
    check_cli("build", PROGRAM.with_name("load_time.mlir"), "-o", target)
    bundle = load(target)
    module = build_simulated(bundle.configured(), bundle.graph.module.flags, tmp_path, fused=False)
    names = {
        instruction.mnemonic
        for image in read_images(module.path)
        for function in image.functions
        for instruction in instructions_of(image, function)
    }
    assert {"vmulps", "vaddps"} <= names
    assert "call" not in names
    assert not any(name.startswith("vfm") for name in names)


@pytest.mark.long
def test_the_build_fuses_only_where_asked(built: Built, tmp_path: Path) -> None:
    bundle = load(built("hand_mlp"))
    for fused in (False, True):
        folder = tmp_path / str(fused)
        folder.mkdir()
        module = build_simulated(bundle.configured(), bundle.graph.module.flags, folder, fused=fused)
        names = {
            instruction.mnemonic
            for image in read_images(module.path)
            for function in image.functions
            for instruction in instructions_of(image, function)
        }
        assert any(name.startswith("vfmadd") for name in names) == fused


@pytest.mark.long
@pytest.mark.parametrize("name", ["hand_constexpr", "hand_dynamic", "jax_gpt2_4l"])
def test_the_build_has_the_same_kernels_and_steps(name: str, built: Built, tmp_path: Path) -> None:
    bundle = load(built(name))
    module = build_simulated(bundle.configured(), bundle.graph.module.flags, tmp_path, fused=False)
    ours, theirs = ({f.name for image in read_images(path) for f in image.functions} for path in
                    (bundle.module_path, module.path))  # fmt: skip
    assert ours == theirs == {kernel.name for kernel in bundle.graph.kernels}
    steps = {kernel.name: {step.line for step in kernel.steps} for kernel in bundle.graph.kernels}
    for image in read_images(module.path):
        for function in image.functions:
            lines = {line for _, _, line in runs_of(image, function)} - {0}
            assert lines
            assert lines <= steps[function.name]


def test_the_build_computes_the_same(built: Built, tmp_path: Path) -> None:
    """The constants of the model are in it too."""
    bundle = load(built("hand_constexpr"))
    module = build_simulated(bundle.configured(), bundle.graph.module.flags, tmp_path, fused=False)
    results = []
    for number, path in enumerate((bundle.module_path, module.path)):
        output = tmp_path / f"{number}.npy"
        command = [
            str(find_tool("iree-run-module")),
            f"--module={path}",
            "--function=constexpr",
            "--input=8x64xf32=0.5",
        ]
        subprocess.run([*command, f"--output=@{output}"], check=True, capture_output=True)
        results.append(np.load(output))
    assert np.any(results[0])
    np.testing.assert_allclose(results[0], results[1], rtol=1e-5)


def test_kernels_that_are_not_kept_are_missed(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleInvalid, match="does not keep its kernels"):
        replace(load(bundle), path=tmp_path).configured()
    with pytest.raises(BundleInvalid, match="are damaged"):
        build_simulated(load(bundle).configured()[:200], (), tmp_path, fused=False)


def test_other_targets_are_refused(tmp_path: Path) -> None:
    target = tmp_path / "vmvx.tracemap"
    flags = ("--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=vmvx")
    check_cli("build", PROGRAM, "-o", target, "--", *flags)
    bundle = load(target)
    with pytest.raises(UsageInvalid, match="vmvx"):
        build_simulated(bundle.configured(), bundle.graph.module.flags, tmp_path, fused=False)


# ---- refusals, Ctrl-C


@pytest.mark.long
@pytest.mark.usefixtures("valgrind")
@pytest.mark.parametrize(
    ("options", "slug", "words"),
    [
        (("--cache-geometry", "D1=32768,8,64"), "usage-invalid", "pass --cache-sim too"),
        (("--cache-sim", "--cache-geometry", "D2=32768,8,64"), "usage-invalid", "I1, D1 or LL"),
        (("--cache-sim", "--cache-geometry", "D1=32768,3,64"), "usage-invalid", "no power of two of sets"),
        (("--cache-sim", "--cache-geometry", "LL=2147483648,1,64"), "usage-invalid", "must be 512 to 2147483647 bytes"),
        (("--cache-sim", "--cache-geometry", "LL=512,1,512"), "usage-invalid", "hold only a single line of 512"),
        (("--cache-sim", "--cache-geometry", "LL=1024,1,16"), "usage-invalid", "a power of two of at least 32"),
        (("--cache-sim", "--cache-geometry", "LL=" + "1" * 5000), "usage-invalid", "'LL=1111"),
        (("--cache-sim", "--", "--device=cuda"), "usage-invalid", "the device is cuda"),
    ],
)  # fmt: skip
def test_what_cannot_be_simulated_is_said(
    options: tuple[str, ...], slug: str, words: str, bundle: Path, tmp_path: Path
) -> None:
    inputs = [word for spec in INPUTS["hits"] for word in ("--input", spec)]
    done = run_cli("record", bundle, "--function", "hits", *inputs, "-o", tmp_path / "run.csv", *options)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.endswith(f"[{slug}]\n")
    assert done.stderr.count("\n") == 1
    assert len(done.stderr) < 500
    assert list(tmp_path.iterdir()) == []


def test_without_valgrind_it_says_how_to_install_it(bundle: Path, tmp_path: Path) -> None:
    command = command_line("record", bundle, "--function", "hits", "--cache-sim", "-o", tmp_path / "run.csv")
    surroundings = {**os.environ, "PATH": str(tmp_path)}
    done = subprocess.run(command, env=surroundings, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "apt-get install valgrind" in done.stderr
    assert done.stderr.endswith("[tool-missing]\n")
    assert list(tmp_path.iterdir()) == []


def descendants(process: int) -> list[int]:
    found = children_of(process)
    return [*found, *(each for child in found for each in descendants(child))]


def runs_callgrind(process: int) -> bool:
    try:
        return b"--tool=callgrind" in Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return False


@pytest.mark.long
@pytest.mark.usefixtures("valgrind")
def test_ctrl_c_leaves_what_was_timed(tmp_path: Path) -> None:
    """And neither a program, nor anything temporary, nor a word of valgrind's."""
    model, bundle, folder = tmp_path / "large.mlir", tmp_path / "large.tracemap", tmp_path / "temporary"
    model.write_text(_LARGE)
    check_cli("build", model, "-o", bundle)
    folder.mkdir()
    run = tmp_path / "run.parquet"
    before = sorted(bundle.rglob("*"))
    command = interruptible("record", bundle, "--cache-sim", "--iterations", "1", "--warmup", "0", "-o", run)
    with subprocess.Popen(
        command, env={**os.environ, "TMPDIR": str(folder)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        waited_for(lambda: any(map(runs_callgrind, descendants(process.pid))))
        started = descendants(process.pid)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert process.returncode == -signal.SIGINT
    assert out == ""
    assert f" was interrupted; the timings are in {run}, without simulated counts" in err
    assert "valgrind" not in err
    assert "interrupted" in {each.slug for each in read_run(run).header.diagnostics}
    assert {row["kind"] for row in events(run)} >= {"dispatch"}
    assert "step" not in {row["kind"] for row in events(run)}
    assert not run.with_name("run.parquet.ireeprof").exists()
    assert not any(map(alive, started))
    assert sorted(bundle.rglob("*")) == before
    assert list(folder.iterdir()) == []


_LARGE = """
func.func @main(%a: tensor<2048x2048xf32>, %b: tensor<2048x2048xf32>) -> tensor<2048x2048xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<2048x2048xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<2048x2048xf32>) -> tensor<2048x2048xf32>
  %m = linalg.matmul ins(%a, %b : tensor<2048x2048xf32>, tensor<2048x2048xf32>)
      outs(%f : tensor<2048x2048xf32>) -> tensor<2048x2048xf32>
  return %m : tensor<2048x2048xf32>
}
"""


@pytest.mark.long
def test_a_program_that_is_given_up_is_ended() -> None:
    told: list[int] = []

    def watch(process: int) -> bool:
        told.append(process)
        return len(told) < 2

    ending = run_benchmark([shutil.which("sleep") or "sleep", "60"], watch=watch)
    assert ending.status == -signal.SIGKILL
    assert not ending.interrupted
    assert len(told) == 2
    assert not alive(told[0])


@pytest.mark.long
def test_a_program_that_does_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that computes is not, however long it takes; and its time is told beside the estimate."""
    told: list[str] = []
    monkeypatch.setattr(simulating, "_STUCK_S", 2.5)
    idle = simulating.SimulationClock(told.append, 1.0)
    asleep = run_benchmark([shutil.which("sleep") or "sleep", "60"], watch=idle.watch)
    assert idle.stuck
    assert asleep.status == -signal.SIGKILL
    assert told[0] == "simulating caches, 0 s of about 1 s"
    assert re.fullmatch(r"simulating caches, \d s, more than the 1 s estimated", told[-1])
    busy = simulating.SimulationClock(told.append, 60.0)
    loop = "import time\nend = time.monotonic() + 5\nwhile time.monotonic() < end: pass"
    assert run_benchmark([sys.executable, "-c", loop], watch=busy.watch).status == 0
    assert not busy.stuck
    assert re.fullmatch(r"simulating caches, \d s of about 60 s", told[-1])


# ---- counts by instruction, to steps


def test_code_that_a_kernel_calls_counts_where_it_is_called() -> None:
    """Kernel `k` at 100 to 200, lines 3 and 4; at 300 a function without debug information, which calls one at 400."""
    image = Image(0, b"", "EM_X86_64", (CodeFunction("k", 100, 200), CodeFunction("other", 500, 600)),
                  ((100, 3), (150, 4), (180, 0), (200, 0), (500, 9)))  # fmt: skip
    zeros = (0,) * (len(EVENTS) - 1)
    costs = {("so", 100): 5, ("so", 150): 7, ("so", 180): 2, ("so", 300): 11, ("so", 400): 13, ("so", 500): 17}
    calls = (
        CallCost("so", 150, "so", 300, (24, *zeros)),  # with what is called from there
        CallCost("so", 300, "so", 400, (13, *zeros)),
        CallCost("so", 300, "so", 100, (1000, *zeros)),  # a kernel's own code counts by itself
        CallCost("so", 100, "libm", 100, (19, *zeros)),  # another object's address 100 is no kernel's
    )
    counts = CallgrindCounts(EVENTS, (99, *zeros), (), {key: (value, *zeros) for key, value in costs.items()}, calls)
    steps = simulated_steps(counts, {"so": image}, {"k": OpLines(frozenset({3, 4}))})
    assert {key: values[0] for key, values in steps.lines.items()} == {("k", 0): 2, ("k", 3): 24, ("k", 4): 31}
    assert {key: values[-2] for key, values in steps.lines.items()} == {("k", 0): 0, ("k", 3): 19, ("k", 4): 24}
    # Nothing is known of this code: an instruction takes half a cycle, and those that stand in take none.
    assert {key: values[-1] for key, values in steps.lines.items()} == {("k", 0): 1, ("k", 3): 3, ("k", 4): 4}
    assert steps.stand_ins == 24 + 19
    assert steps.program == 99


def test_what_a_gather_reads_is_taken_from_the_instruction_behind() -> None:
    """Ten gathers of eight elements; ten masked stores, of which 24 elements wrote; and one with a jump behind it."""
    names = ("vgatherdps", "vmaskmovps", "nop", "vmaskmovps", "nop", "jne")
    code = [
        Instruction(4 * place, 4, name, "", 1, (16,) * (name == "jne"), True, 0,
                    structs.replace(NO_VALUES, stores=name == "vmaskmovps", loads=name == "vgatherdps"))
        for place, name in enumerate(names)
    ]  # fmt: skip

    def counted(**values: int) -> tuple[int, ...]:
        return tuple(values.get(event, 0) for event in EVENTS)

    costs = {
        0: counted(Ir=10),
        4: counted(Ir=90, I1mr=33, ILmr=5),
        8: counted(Ir=34, I1mr=6),
        12: counted(Ir=10),
        16: counted(Ir=50, I1mr=2),  # the jump leads here: it may have run more often than what stands before it
    }
    assert corrected_masked_accesses(code, costs, EVENTS) == {
        0: counted(Ir=10, Dr=80, D1mr=33, DLmr=5),
        4: counted(Ir=10, Dw=10, D1mw=6),
        8: counted(Ir=10),
    }


def test_an_event_that_is_missing_is_named() -> None:
    counts = CallgrindCounts(("Ir",), (1,), (), {}, ())
    with pytest.raises(RunInvalid, match="did not count I1mr"):
        simulated_steps(counts, {}, {})


CALLGRIND = """# callgrind format
version: 1
creator: callgrind-3.19.0
cmd:  iree-benchmark-module --function=a=b
desc: I1 cache: 32768 B, 64 B, 8-way associative
positions: instr
events: Ir Dr
summary: 39 3

ob=/lib/libc.so.6
fl=???
fn=main
0x10 4 1
cob=/tmp/a.so
cfi=???
cfn=k
calls=2 0x20{blank}
0x14 30 2
0x18 5

ob=/tmp/a.so
fn=k
0x20 20 1
0x24 1
calls=1 0x20{blank}
0x24 9
0x20 0 1

totals: 30 3
""".format(blank=" ")


def callgrind_file(folder: Path, text: str) -> Path:
    path = folder / "callgrind.out"
    path.write_text(text)
    return path


def test_counts_are_read_by_instruction(tmp_path: Path) -> None:
    counts = read_callgrind(callgrind_file(tmp_path, CALLGRIND), {"/tmp/a.so"})
    assert counts.events == ("Ir", "Dr")
    assert counts.totals == (30, 3)
    assert counts.caches == ("I1 cache: 32768 B, 64 B, 8-way associative",)
    assert counts.costs == {("/tmp/a.so", 0x20): (20, 2), ("/tmp/a.so", 0x24): (1, 0)}
    assert counts.calls == (CallCost("/tmp/a.so", 0x24, "/tmp/a.so", 0x20, (9, 0)),)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("# callgrind format", "# something", "line 1: the file is not in callgrind format"),
        ("totals: 30 3\n", "", "the file ends before its totals"),
        ("positions: instr", "positions: line", "line 6: costs are not by instruction"),
        ("events: Ir Dr", "events: Ir Ir", "line 7: bad list of events"),
        ("0x20 20 1", "0x20 20 1 5", "line 23: more costs than events"),
        ("0x20 20 1", "0x20 20 -1", "line 23: a cost is not a number"),
        ("0x20 20 1", "0x20 20 " + "9" * 5000, "line 23: a cost is not a number"),
        ("0x20 20 1", "0x2z 20 1", "line 23: '0x2z' is not an address"),
        ("0x20 20 1", "0x8000000000000000 20 1", "line 23: '0x8000000000000000' is not an address"),
        ("calls=1 0x20", "calls=1", "line 25: '' is not an address"),
    ],
)
def test_damaged_counts_are_refused_by_line(old: str, new: str, message: str, tmp_path: Path) -> None:
    path = callgrind_file(tmp_path, CALLGRIND.replace(old, new, 1))
    with pytest.raises(RunInvalid, match=re.escape(message)):
        read_callgrind(path, {"/tmp/a.so"})


def test_versions_that_run_fused_multiply_adds() -> None:
    for version, fused in (("3.19.0", False), ("3.24.0", True), ("3.9.1", False), ("4.0", True), ("3.25.0.GIT", True)):
        assert Valgrind(Path("valgrind"), version).runs_fused == fused


# ---- geometry


def kernels_caches(folder: Path, *caches: tuple[int, str, str, int, int]) -> Path:
    """A folder as the kernel has it: level, type, size, ways, bytes of a line."""
    for number, (level, kind, size, ways, line) in enumerate(caches):
        place = folder / f"index{number}"
        place.mkdir(parents=True)
        names = ("level", "type", "size", "ways_of_associativity", "coherency_line_size")
        for name, value in zip(names, (level, kind, size, ways, line), strict=True):
            (place / name).write_text(f"{value}\n")
    return folder


def test_the_machines_geometry(tmp_path: Path) -> None:
    caches = ((1, "Data", "48K", 12, 64), (1, "Instruction", "32K", 8, 64), (2, "Unified", "2048K", 16, 64))
    found = geometry((), kernels_caches(tmp_path / "two", *caches))
    assert [cache.flag for cache in found.caches] == ["--I1=32768,8,64", "--D1=49152,12,64", "--LL=2097152,16,64"]
    assert found.source == "this machine's, from the kernel"
    # 260 MiB in 20 ways are 212,992 sets; the next power of two below them takes 32.5 ways.
    found = geometry((), kernels_caches(tmp_path / "three", *caches, (3, "Unified", "266240K", 20, 64)))
    assert found.caches[2] == Cache("LL", 256 << 20, 32, 64)
    assert "LL is 260 MiB 20-way, which cannot be simulated exactly" in found.source
    found = geometry(("LL=8388608,16,64",), tmp_path / "three")
    assert found.caches[2] == Cache("LL", 8 << 20, 16, 64)
    assert found.source == "this machine's, from the kernel; LL as given"


@pytest.mark.parametrize(
    "caches",
    [
        (),
        ((1, "Data", "32K", 8, 64), (1, "Instruction", "32K", 8, 64)),
        ((1, "Data", "0K", 8, 64), (1, "Instruction", "32K", 8, 64), (2, "Unified", "1024K", 8, 64)),
        ((1, "Data", "32K", 0, 64), (1, "Instruction", "32K", 8, 64), (2, "Unified", "1024K", 8, 64)),
        ((1, "Data", "32K", 8, 60), (1, "Instruction", "32K", 8, 64), (2, "Unified", "1024K", 8, 64)),
        ((1, "Data", "32K", 8, 64), (1, "Instruction", "32K", 8, 64), (2, "Unified", "16K", 8, 64)),
    ],
)
def test_geometry_that_makes_no_sense_is_left_to_valgrind(
    caches: tuple[tuple[int, str, str, int, int], ...], tmp_path: Path
) -> None:
    found = geometry((), kernels_caches(tmp_path, *caches))
    assert found.caches == ()
    assert found.source == "the processor's, read by valgrind"


def test_a_cache_given_twice_is_refused() -> None:
    with pytest.raises(UsageInvalid, match="given twice"):
        geometry(("D1=32768,8,64", "D1=65536,8,64"))


@pytest.mark.long
def test_python_records_the_same(bundle: Path, simulated: dict[str, Path], tmp_path: Path) -> None:
    import tracemap

    run = tracemap.record(
        tracemap.load(bundle), tmp_path / "run.csv", function="both", inputs=INPUTS["both"], iterations=1, warmup=0,
        cache_sim=True, cache_geometry=CACHES[1::2],
    )  # fmt: skip
    told = [item.slug for item in run.header.diagnostics]
    assert "cache-simulated" in told
    assert [row["D1mr"] for row in steps_of(run.path)] == [row["D1mr"] for row in steps_of(simulated["both"])]
    assert json.loads((tmp_path / "run.csv.json").read_text())["diagnostics"]


@pytest.mark.long
def test_time_is_split_by_what_simulated_instructions_take(valgrind: Path, tmp_path: Path) -> None:
    """A vector's division is one instruction, as its multiplication is, and takes 5 to 10 times as long."""
    assert valgrind
    model, bundle, run = tmp_path / "m.mlir", tmp_path / "m.tracemap", tmp_path / "run.csv"
    model.write_text(
        "func.func @main(%a: tensor<65536xf32>, %b: tensor<65536xf32>) -> tensor<65536xf32> {\n"
        "  %0 = stablehlo.multiply %a, %b : tensor<65536xf32>\n"
        "  %1 = stablehlo.divide %0, %b : tensor<65536xf32>\n"
        "  return %1 : tensor<65536xf32>\n}\n"
    )
    check_cli("build", model, "-o", bundle)
    check_cli("record", bundle, "--cache-sim", "--iterations", "3", "-o", run)
    multiply, divide = json_cli("attribute", run)["ops"]
    if multiply["name"] != "stablehlo.multiply":
        multiply, divide = divide, multiply
    # Loads of what is read, and the store of what is made, are of these ops too.
    instructions = [each["metrics"]["Ir"]["attributed"] for each in (multiply, divide)]
    assert instructions[1] <= instructions[0] * 1.5
    assert divide["metrics"]["cpu_ns"]["attributed"] > 1.5 * multiply["metrics"]["cpu_ns"]["attributed"]


@pytest.mark.long
def test_elements_that_a_loop_brings_one_by_one_are_of_who_takes_them(valgrind: Path, tmp_path: Path) -> None:
    """A loop around one masked load fills a vector for the divide; its own code has no line of an op."""
    assert valgrind
    model, bundle, run = tmp_path / "m.mlir", tmp_path / "m.tracemap", tmp_path / "run.csv"
    model.write_text(
        "func.func @main(%x: tensor<128x256xf32>, %y: tensor<128x512xf32>) -> tensor<128x256xf32> {\n"
        "  %a = stablehlo.log %x : tensor<128x256xf32>\n"
        "  %b = stablehlo.slice %y [0:128:1, 0:511:2] : (tensor<128x512xf32>) -> tensor<128x256xf32>\n"
        "  %c = stablehlo.divide %a, %b : tensor<128x256xf32>\n"
        "  return %c : tensor<128x256xf32>\n}\n"
    )
    check_cli("build", model, "-o", bundle)
    check_cli("record", bundle, "--cache-sim", "--iterations", "3", "-o", run)
    for rule in ("code", "measured"):
        result = json_cli("attribute", run, "--rule", rule)
        costs = {op["line"]: op["metrics"]["cpu_ns"]["attributed"] for op in result["ops"]}
        # Timed with and without each op: what reads every other column takes half to two thirds.
        assert costs[2] < 0.5 * sum(costs.values()), rule
