"""Runs of native code: functions that tracemap calls, and programs that load the library."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np
import pytest

from tests.checks import check_balance, check_links, check_page
from tests.native.support import (
    BUFFERS,
    LLVM,
    LOOPS,
    NAMES,
    PROGRAMS,
    STRUCTURED,
    flags,
    needs_tools,
    program,
    run_all,
)
from tests.native.test_build import Native, refused
from tests.oracle.native import equal_loops, loop_times, shares
from tests.support import SAMPLES, check_cli, json_cli, made_once, page_data, run_cli
from tracemap.runs.runfile import read_run

NativeRun = Callable[[str, str], Path]


@pytest.mark.parametrize("name", NAMES)
def test_the_books_balance(native: Native, native_run: NativeRun, name: str) -> None:
    bundle, run = native(name, "affine"), native_run(name, "affine")
    shown = json_cli("attribute", run, "--map", bundle)
    check_balance(shown, run)
    check_links(json_cli("show", bundle))
    assert shown["rule"] == "measured"
    header = shown["run"]
    assert header["device"] == "native"
    parts = header["elapsed"]
    assert parts["kernels_ns"] + parts["unexplained_ns"] == header["elapsed_ns"]
    assert parts["kernels_ns"] > 0.7 * header["elapsed_ns"]


def test_each_call_has_the_time_that_was_measured(native_run: NativeRun) -> None:
    run = native_run("layer", "vector")
    rows = duckdb.execute(
        f"SELECT invocation, sum(duration_ns) AS ns, count(*) AS n FROM '{run}' WHERE kind = 'dispatch' GROUP BY ALL"
    ).fetchall()
    samples = duckdb.execute(f"SELECT count(*), count(kernel) FROM '{run}' WHERE kind = 'step'").fetchall()
    assert len(rows) > 20
    assert len({count for _, _, count in rows}) == 1
    ((count, inside),) = samples
    assert inside > 0.7 * count > 50


def test_results_are_those_of_the_function(tmp_path: Path) -> None:
    """The function is called with the values that were given, and its results do not leak."""
    needs_tools()
    model = tmp_path / "sum.mlir"
    model.write_text(
        "func.func @total(%x: memref<8xf32>, %n: index, %scale: f32) -> (memref<?xf32>, f32) {\n"
        "  %c0 = arith.constant 0 : index\n  %c1 = arith.constant 1 : index\n  %zero = arith.constant 0.0 : f32\n"
        "  %out = memref.alloc(%n) : memref<?xf32>\n"
        "  %sum = scf.for %i = %c0 to %n step %c1 iter_args(%part = %zero) -> f32 {\n"
        "    %rest = arith.remui %i, %n : index\n    %v = memref.load %x[%c0] : memref<8xf32>\n"
        "    %w = arith.mulf %v, %scale : f32\n    memref.store %w, %out[%i] : memref<?xf32>\n"
        "    %next = arith.addf %part, %w : f32\n    scf.yield %next : f32\n  }\n"
        "  return %out, %sum : memref<?xf32>, f32\n}\n"
    )
    np.save(tmp_path / "x.npy", np.arange(8, dtype=np.float32))
    check_cli("build", model, *flags("plain"), "-o", "b.tracemap", cwd=tmp_path)
    given = ("--input", "x=@x.npy", "--input", "n=200000", "--input", "scale=0.5")
    check_cli("record", "b.tracemap", "--iterations", "200", *given, "-o", "run.parquet", cwd=tmp_path)
    header = read_run(tmp_path / "run.parquet").header
    assert header.iterations == 200
    assert header.inputs == ("@x.npy", "200000", "0.5")


def test_the_page_shows_loops(native: Native, native_run: NativeRun, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    check_cli("report", native("layer", "vector"), native_run("layer", "vector"), "-o", page)
    check_page(page, "module")
    assert "kernel/loop1" in json.dumps(page_data(page.read_text()))


def test_an_op_in_libm_costs_the_loop_that_calls_it(native: Native, native_run: NativeRun) -> None:
    """The exponential is a call of a function outside of the library, which has no line of the program."""
    bundle, run = native("softmax", "vector"), native_run("softmax", "vector")
    times = loop_times(bundle, run)
    assert times[2] > 0.4 * sum(times.values())


def test_a_model_of_torch_mlir_costs_its_lines_of_python(tmp_path: Path) -> None:
    """The model has tensors, weights as resources, and locations of Python."""
    needs_tools()
    passes = f"builtin.module({BUFFERS},{LOOPS['plain']},{STRUCTURED},{LLVM})"
    words = ("--to", "native", "--pipeline", passes, "--source-root", SAMPLES / "sources", "-o", "b.tracemap")
    check_cli("build", SAMPLES / "models" / "fx_mlp_linalg.mlir", *words, cwd=tmp_path)
    check_cli("record", "b.tracemap", "--seconds", "0.5", "-o", "run.parquet", cwd=tmp_path)
    table = check_cli("attribute", "run.parquet", "--map", "b.tracemap", "--by", "source", cwd=tmp_path)
    first, second = (next(line for line in table.splitlines() if f"torch_models.py:{n}" in line) for n in (14, 15))
    assert "linalg.matmul" in check_cli("show", "b.tracemap", "torch_models.py:14", cwd=tmp_path)
    assert table.index(first) < table.index(second)


@pytest.mark.long
def test_parts_of_loops_are_those_of_loops_alone(tmp_path: Path) -> None:
    needs_tools()
    measured = list(shares(tmp_path, 3.0, ("softmax", "sparse")))
    assert max(share.points for share in measured) <= 10, measured


@pytest.mark.long
def test_equal_loops_take_equal_time(tmp_path: Path) -> None:
    needs_tools()
    times = equal_loops(tmp_path, 8.0)
    assert max(times) <= 1.1 * min(times), times


# ---- programs


@pytest.fixture(scope="session")
def hosts(made: Path) -> Path:
    """A folder with `lib.so` of sparse.mlir, its bundle, and programs that use it."""
    needs_tools()
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    folder = made / "native-hosts"
    with made_once(folder) as missing:
        if missing:
            make_hosts(folder, compiler)
    return folder


def make_hosts(folder: Path, compiler: str) -> None:
    """Compile the library and the programs."""
    folder.mkdir()
    check_cli("build", program("sparse"), *flags("plain"), "-o", folder / "b.tracemap")
    shutil.copy(folder / "b.tracemap" / "module.so", folder / "lib.so")
    source = PROGRAMS / "host" / "sparse.c"
    linked: list[str | Path] = ["-DLINKED", source, folder / "lib.so", f"-Wl,-rpath,{folder}"]
    run_all(
        [compiler, "-O1", "-o", folder / "opens", source, "-ldl", "-lpthread"],
        [compiler, "-O1", "-static", "-o", folder / "static", source, "-ldl", "-lpthread"],
        [compiler, "-O1", "-o", folder / "linked", *linked, "-ldl", "-lpthread"],
    )


@pytest.mark.parametrize("how", ["opened", "reopened", "thread", "c11", "forked", "forks", "left"])
def test_programs_that_open_the_library(hosts: Path, tmp_path: Path, how: str) -> None:
    run = tmp_path / "run.parquet"
    command = (hosts / "opens", how, "500", hosts / "lib.so")
    check_cli("record", hosts / "b.tracemap", "-o", run, "--", *command)
    check_parts(hosts / "b.tracemap", run)


def test_a_program_that_is_linked_with_it(hosts: Path, tmp_path: Path) -> None:
    run = tmp_path / "run.parquet"
    check_cli("record", hosts / "b.tracemap", "-o", run, "--", hosts / "linked", "linked", "500")
    check_parts(hosts / "b.tracemap", run)


def check_parts(bundle: Path, run: Path) -> None:
    """Most of the CPU time is in the first loop, and the program's own code has none of it."""
    shown = json_cli("attribute", run, "--map", bundle)
    check_balance(shown, run)
    kernel_of = {site["id"]: site["kernel"] for site in json_cli("show", bundle)["sites"]}
    times = {kernel_of[site["site"]]: site["metrics"]["cpu_ns"]["total"] for site in shown["sites"]}
    assert times["kernel/loop0"] > 0.7 * sum(times.values())
    assert sum(times.values()) > 200_000_000


def test_a_library_of_the_same_name_with_other_code_is_none_of_it(hosts: Path, tmp_path: Path) -> None:
    other = tmp_path / "lib.so"
    bundle = tmp_path / "b.tracemap"
    check_cli("build", program("sparse"), *flags("plain"), "-o", bundle, "--", "-O1", "-fno-vectorize")
    shutil.copy(bundle / "module.so", other)
    words = (
        "record",
        hosts / "b.tracemap",
        "-o",
        tmp_path / "run.parquet",
        "--",
        hosts / "opens",
        "opened",
        "300",
        other,
    )
    assert "lies in code of the bundle" in refused("run-empty", *words, cwd=tmp_path)


def test_waiting_programs_wait_as_long_as_without_samples(hosts: Path, tmp_path: Path) -> None:
    words = ("-o", tmp_path / "run.parquet", "--", hosts / "opens", "idle", "300", hosts / "lib.so")
    said = refused("run-empty", "record", hosts / "b.tracemap", *words, cwd=tmp_path)
    # On a busy machine, its start may take long enough for a sample.
    assert "no sample was taken" in said or "samples lies in code of the bundle" in said


def test_threads_may_be_canceled_at_once_and_have_small_stacks(hosts: Path, tmp_path: Path) -> None:
    """They end as without the hook; what cannot be sampled is said."""
    run = tmp_path / "run.parquet"
    check_cli("record", hosts / "b.tracemap", "-o", run, "--", hosts / "opens", "canceled", "500", hosts / "lib.so")
    check_parts(hosts / "b.tracemap", run)
    words = ("-o", tmp_path / "none.parquet", "--", hosts / "opens", "small", "100", hosts / "lib.so")
    said = refused("run-empty", "record", hosts / "b.tracemap", *words, cwd=tmp_path)
    assert "its stack is smaller than 64 KiB" in said


def test_programs_that_are_linked_statically_cannot_be_sampled(hosts: Path, tmp_path: Path) -> None:
    words = ("-o", tmp_path / "run.parquet", "--", hosts / "static", "waits", "100")
    said = refused("run-empty", "record", hosts / "b.tracemap", *words, cwd=tmp_path)
    assert "run a program that is linked dynamically" in said


def test_programs_that_fail_say_so(hosts: Path, tmp_path: Path) -> None:
    words = ("--", hosts / "opens", "opened", "100", tmp_path / "missing.so")
    said = refused(
        "program-failed", "record", hosts / "b.tracemap", "-o", "run.parquet", *words, cwd=tmp_path, status=1
    )
    assert "cannot open shared object file" in said


@pytest.mark.parametrize(
    "flag",
    ["--counters=page-faults", "--compare-devices=local-sync", "--keep-profile", "--launches=3", "--precision=5"],
)
def test_what_only_iree_has_is_refused(native: Native, tmp_path: Path, flag: str) -> None:
    bundle = native("layer", "vector")
    said = refused("usage-invalid", "record", bundle, flag, "-o", "run.parquet", cwd=tmp_path)
    assert flag.partition("=")[0] in said


@pytest.mark.parametrize(
    "words",
    [["run"], ["bench"], ["remarks"], ["memory"], ["numerics"], ["tune", "--top=1"], ["show", "--cost"]],
    ids=lambda words: words[0],
)
def test_commands_that_need_iree_say_so(native: Native, tmp_path: Path, words: list[str]) -> None:
    said = refused("usage-invalid", words[0], native("layer", "vector"), *words[1:], cwd=tmp_path)
    assert "has native code, and this works for modules of IREE only" in said


def test_a_crash_of_the_function_is_a_sentence(tmp_path: Path) -> None:
    needs_tools()
    (tmp_path / "x.mlir").write_text(
        "func.func @f(%x: memref<4xi32>, %zero: i32) {\n  %c0 = arith.constant 0 : index\n"
        "  %v = memref.load %x[%c0] : memref<4xi32>\n  %q = arith.divsi %v, %zero : i32\n"
        "  memref.store %q, %x[%c0] : memref<4xi32>\n  return\n}\n"
    )
    check_cli("build", "x.mlir", *flags("plain"), "-o", "b.tracemap", cwd=tmp_path)
    done = run_cli("record", "b.tracemap", "-o", "run.parquet", cwd=tmp_path)
    assert done.returncode == 1
    assert "f cannot be called: killed by SIGFPE" in done.stderr
    assert not (tmp_path / "run.parquet").exists()


RESULTS = """
memref.global "private" constant @table : memref<4xf32> = dense<1.0>
func.func @results(%x: memref<4xf32>, %h: f16, %b: bf16) -> (memref<4xf32>, memref<4xf32>, memref<4xf32>, f16,
    memref<4xf32>) {
  %t = memref.get_global @table : memref<4xf32>
  %m = memref.alloc() : memref<4xf32>
  affine.for %i = 0 to 10000 {
    %v = memref.load %x[%c] : memref<4xf32>
    %w = arith.divf %v, %v : f32
    memref.store %w, %x[%c] : memref<4xf32>
  }
  return %t, %m, %m, %h, %x : memref<4xf32>, memref<4xf32>, memref<4xf32>, f16, memref<4xf32>
}
func.func @i4(%x: i4) { return }
func.func @i4s(%x: memref<4xi4>) { return }
func.func @layout(%x: memref<4xf32, strided<[2]>>) { return }
func.func @many(%m) { return }
func.func @reals(%r) { return }
"""
MANY = {
    "  %t =": "  %c = arith.constant 0 : index\n  %t =",
    "%m)": ", ".join(f"%m{index}: index" for index in range(33)) + ")",
    "%r)": ", ".join(f"%r{index}: f32" for index in range(9)) + ")",
}


def test_results_may_be_globals_arguments_or_the_same_memory(tmp_path: Path) -> None:
    """Only memory that the function allocated is freed, and once."""
    needs_tools()
    text = RESULTS
    for old, new in MANY.items():
        text = text.replace(old, new)
    (tmp_path / "x.mlir").write_text(text)
    check_cli("build", "x.mlir", *flags("plain"), "-o", "b.tracemap", cwd=tmp_path)
    words = ("record", "b.tracemap", "-o", "run.parquet", "--seconds", "0.2", "--function")
    check_cli(*words, "results", cwd=tmp_path)
    (tmp_path / "run.parquet").unlink()
    for name in ("i4", "i4s", "layout", "many", "reals"):
        assert f"{name} cannot be called from here" in refused("input-invalid", *words, name, cwd=tmp_path)


CALLS = """
func.func private @leaf(%x: memref<65536xf32>) {
  affine.for %i = 0 to 65536 {
    %v = affine.load %x[%i] : memref<65536xf32>
    %w = arith.divf %v, %v : f32
    affine.store %w, %x[%i] : memref<65536xf32>
  }
  return
}
func.func @first(%x: memref<65536xf32>) {
  func.call @leaf(%x) : (memref<65536xf32>) -> ()
  return
}
func.func @second(%x: memref<65536xf32>) {
  func.call @leaf(%x) : (memref<65536xf32>) -> ()
  return
}
"""


def test_a_loop_costs_only_the_function_that_was_called(tmp_path: Path) -> None:
    needs_tools()
    (tmp_path / "x.mlir").write_text(CALLS)
    check_cli("build", "x.mlir", *flags("plain"), "-o", "b.tracemap", cwd=tmp_path)
    words = ("--function", "second", "--seconds", "0.3", "-o", "run.parquet")
    check_cli("record", "b.tracemap", *words, cwd=tmp_path)
    function_of = {site["id"]: site["function"] for site in json_cli("show", "b.tracemap", cwd=tmp_path)["sites"]}
    shown = json_cli("attribute", "run.parquet", "--map", "b.tracemap", cwd=tmp_path)
    costs = {site["site"]: site["metrics"]["cpu_ns"]["total"] for site in shown["sites"] if site["metrics"]}
    assert {function_of[site] for site, cost in costs.items() if cost} == {"second"}


@pytest.mark.long
def test_simulated_counts_of_equal_loops_are_equal(tmp_path: Path) -> None:
    """The loops are equal, and their data is larger than the first cache: so are their instructions and misses."""
    needs_tools()
    kind = "memref<96x96xf32>"
    names = [f"%{letter}{index}" for index in range(3) for letter in "xwo"]
    body = [
        f"  linalg.matmul ins(%x{index}, %w{index} : {kind}, {kind}) outs(%o{index} : {kind})" for index in range(3)
    ]
    arguments = ", ".join(f"{name}: {kind}" for name in names)
    (tmp_path / "x.mlir").write_text("\n".join([f"func.func @f({arguments}) {{", *body, "  return", "}", ""]))
    check_cli("build", "x.mlir", *flags("plain"), "-o", "b.tracemap", cwd=tmp_path)
    words = ("--seconds", "0.3", "--cache-sim", "--cache-geometry", "D1=32768,8,64", "-o", "run.parquet")
    check_cli("record", "b.tracemap", *words, cwd=tmp_path)
    shown = json_cli("attribute", "run.parquet", "--map", "b.tracemap", cwd=tmp_path)
    check_balance(shown, tmp_path / "run.parquet")  # the few instructions outside of loops belong to no op
    kernel_of = {site["id"]: site["kernel"] for site in json_cli("show", "b.tracemap", cwd=tmp_path)["sites"]}
    products = [site["metrics"] for site in shown["sites"] if "/loop" in kernel_of[site["site"]]]
    instructions = [metrics["Ir"]["total"] for metrics in products]
    misses = [metrics["D1mr"]["total"] for metrics in products]
    assert len(products) == 3
    assert max(instructions) < 1.02 * min(instructions)  # code without a line counts for the loop before it
    assert max(misses) < 1.1 * min(misses)
    assert min(misses) > 96 * 96 * 4 // 64
    assert min(instructions) > 4 * 96**3


def test_caches_of_programs_are_not_simulated(hosts: Path, tmp_path: Path) -> None:
    words = ("--cache-sim", "-o", "run.parquet", "--", hosts / "opens", "opened", "100", hosts / "lib.so")
    said = refused("usage-invalid", "record", hosts / "b.tracemap", *words, cwd=tmp_path)
    assert "leave out the program" in said
