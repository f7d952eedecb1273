"""The good files that are damaged: a bundle, runs, profiles and records of real programs, made by the real tools."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np

from tests.gpu.standins import build
from tests.hook import support
from tests.support import PLAIN_FLAGS, ROOT, SAMPLES, check_cli
from tracemap.core.toolchain import find_tool
from tracemap.hook.compiling import HookUnavailable, find_compiler
from tracemap.map.bundle_documents import CallToKeep

BUNDLE = "model.tracemap"
MODULE = "module.vmfb"
"""In the bundle."""
SMALL_MODULE = "small.vmfb"
"""Of one kernel of a loop: all of what a larger one has, read in a tenth of the time."""
RUN = "run.parquet"
CSV = "run.csv"
PROFILE = "run.ireeprof"
EXPORT = "run.jsonl"
CALLS = "calls"
NEWEST = "newest"
"""Calls of which the newest are kept."""
CUDA = "cuda"
"""Of a process that ran kernels on two devices."""
HOOK_CSV = "iree_hook_worker.csv"
STATS_FOLDER = "stats"
CALLGRIND = "callgrind.out"
FLAGS = "model.flags"
EXPECTED = "expected.npy"
KEPT = "kept/kept.tracemap"
SOURCE = "model.mlir"
SOURCES = {
    "model-stablehlo.mlir": SAMPLES / "models" / "jax_mlp.mlir",
    "model-torch.mlir": SAMPLES / "models" / "torch_mlp.mlir",
    "model-onnx.mlir": SAMPLES / "models" / "onnx_mlp_named.mlir",
    "model-loops.mlir": ROOT / "tests" / "programs" / "loops.mlir",
    "model-arms.mlir": ROOT / "tests" / "programs" / "arms.mlir",
    "model-calls.mlir": ROOT / "tests" / "programs" / "calls.mlir",
    "model-iree.mlir": ROOT / "tests" / "programs" / "own" / "model.mlir",
}
"""Models of other dialects, of IREE's own as well."""
DUMPS = "dumps"
LOCATIONS = "locations.txt"
SPECS = "inputs.txt"
BENCHMARK = "benchmark.json"
DISPATCH_STATISTICS = "statistics.json"
REPORT = "dispatches.jsonl"
REPORTED_EVENTS = "events.jsonl"
SAMPLES_OF_PERF = ("perf-script.txt", "perf-script-callers.txt")
ZONES = ("tracy-zones.csv", "tracy-each-zone.csv")
LAUNCHES = ("ncu-output.csv", "ncu-raw-mlp.csv", "nsys-mlp.csv")
STOPS = "stops"
STORE = "store"
STORED = ("night20.parquet", "night21.parquet")
# In a folder of their own: runs that name no bundle are of the only one beside them.
OTHER, OTHER_RUN = "other/model.tracemap", "other/run.parquet"

_MODEL = SAMPLES / "models" / "hand_mlp.mlir"
_FLAGFILE = SAMPLES / "flags" / "hand_mlp.flags"

_SMALL = """func.func @small(%x: tensor<4096xf32>, %y: tensor<4096xf32>) -> tensor<4096xf32> {
  %sum = stablehlo.add %x, %y : tensor<4096xf32>
  return %sum : tensor<4096xf32>
}
"""
# Work that calls itself what it needs, and what lies in another object.
_COUNTED = """#include <unistd.h>
__attribute__((noinline)) static int half(int of) { return of / 2 + (int)getpid(); }
__attribute__((noinline)) int work(int times) { int sum = 0; while (times--) sum += half(times); return sum; }
int main(int count, char **words) { return words[0] == 0 ? work(count) : work(count + 4) & 0; }
"""
_LOCATIONS = r"""loc("/a/model.py":12:7 to :19)
loc(callsite("f"("a.py":1:2) at callsite("g"("b.py":3:4 to 5:6) at unknown)))
loc(fused<"meta">["x.mlir":1:1, "layer.0/attention"("m.py":2:3), fused["y":4:5, #dialect.place<a, <b>>]])
loc("\C3\A8\22"("z":0:0))
"""
_SPECS = """tensor<1x3xf32>\t1x3xf32=1 2 3
tensor<?x?xi64>\t2x3xi64=[1,2,3][4,5,6]
!torch.vtensor<[1,?],si32>\t1x4xsi32=0x10
f32\t-1.5e3
tensor<2xcomplex<f32>>\t@file.npy
tensor<3xf8E4M3FNUZ>\t3xf8E4M3FNUZ
index\t7
"""


def make_inputs(folder: Path) -> None:
    """Make all of them in a folder that does not exist yet; what this machine cannot make is left out.

    Raises:
        AssertionError: a command failed.
    """
    folder.mkdir(parents=True)
    bundle = folder / BUNDLE
    check_cli("build", _MODEL, "--remarks", "--timing", "-o", bundle)
    _make_small_module(folder)
    inside = ("--sample", "4000") if _can_compile() else ()
    recorded = ("record", bundle, "--flagfile", _FLAGFILE, "--iterations", "40", "--warmup", "1")
    check_cli(*recorded, *inside, "-o", folder / RUN)
    check_cli(*recorded, "-o", folder / CSV)
    _make_store(folder)
    _make_flags(folder)
    np.save(folder / EXPECTED, np.arange(6, dtype=np.float32).reshape(2, 3))
    _make_kept(folder)
    _make_dumps(folder)
    _make_texts(folder)
    _make_profile(folder)
    if _can_compile():
        check_cli("numerics", bundle, "--flagfile", _FLAGFILE, "--against", "f64")
        _make_calls(folder)
        _make_cuda(folder)
    if _can_compile() and shutil.which("valgrind"):
        _make_counts(folder)


def _make_small_module(folder: Path) -> None:
    model, bundle = folder / "small.mlir", (folder / OTHER).with_name("small.tracemap")
    bundle.parent.mkdir()
    model.write_text(_SMALL, encoding="utf-8")
    check_cli("build", model, "-o", bundle)
    shutil.copy(bundle / MODULE, folder / SMALL_MODULE)


def _make_store(folder: Path) -> None:
    """Runs of two nights; and one that is not there yet, of another compilation."""
    check_cli("build", _MODEL, "-o", folder / OTHER, "--", "--iree-opt-level=O1")
    recorded = ("record", folder / OTHER, "--flagfile", _FLAGFILE, "--iterations", "20")
    check_cli(*recorded, "-o", folder / OTHER_RUN)
    for night, (run, number) in enumerate(zip(STORED, ("20", "21"), strict=True)):
        check_cli("record", folder / BUNDLE, "--flagfile", _FLAGFILE, "--iterations", number, "-o", folder / run)
        words = ("--map", folder / BUNDLE, "--store", folder / STORE, "--tag", f"night={night}")
        check_cli("store", "add", folder / run, *words)


def _make_kept(folder: Path) -> None:
    """What a bundle keeps to be called with: inputs of the functions of `_SPECS`' kinds, and parameters."""
    kept = folder / KEPT
    shutil.copytree(folder / BUNDLE, kept)
    parameters = folder / "weights.irpa"
    parameters.write_bytes(b"IRPA of no use")
    values = (np.ones((2, 3), np.float32), np.arange(4), np.bool_(True))
    inputs = tuple((f"x[{number}]", np.asarray(value)) for number, value in enumerate(values))
    CallToKeep("mlp", inputs, (("model", parameters), ("", parameters))).store(kept)


def _can_compile() -> bool:
    try:
        find_compiler()
    except HookUnavailable:
        return False
    return True


def _make_flags(folder: Path) -> None:
    text = _FLAGFILE.read_text(encoding="utf-8")
    (folder / "more.flags").write_text("--task_topology_group_count=1\n", encoding="utf-8")
    (folder / FLAGS).write_text(f"# of a model\n{text}\n--flagfile={folder / 'more.flags'}\n", encoding="utf-8")


def _make_dumps(folder: Path) -> None:
    """The phases of a plain compilation, as others hand them on."""
    shutil.copy(_MODEL, folder / SOURCE)
    for name, source in SOURCES.items():
        shutil.copy(source, folder / name)
    dumped = ("--mlir-print-debuginfo", f"--dump-compilation-phases-to={folder / DUMPS}")
    command = [str(find_tool("iree-compile")), str(_MODEL), *PLAIN_FLAGS, *dumped, "-o", str(folder / "dumped.vmfb")]
    support.run(command)


def _make_texts(folder: Path) -> None:
    """What stands in larger files, or is printed by programs, alone: these are read in far less than a millisecond."""
    (folder / LOCATIONS).write_text(_LOCATIONS, encoding="utf-8")
    (folder / SPECS).write_text(_SPECS, encoding="utf-8")
    np.save(folder / "file.npy", np.ones(2, np.complex64))
    row = {"name": "f", "run_type": "iteration", "iterations": 7, "real_time": 1.5, "time_unit": "us"}
    report = {"context": {"date": "now"}, "benchmarks": [row, {"run_type": "aggregate", "real_time": 2}]}
    (folder / BENCHMARK).write_text(json.dumps(report), encoding="utf-8")
    for name in (*ZONES, *LAUNCHES, *SAMPLES_OF_PERF):
        shutil.copy(ROOT / "tests" / "programs" / "foreign" / name, folder / name)
    (folder / STOPS).write_bytes(struct.pack("<16q", *range(100, 1300, 100), 0, 0, 0, 0))


def _make_profile(folder: Path) -> None:
    profile, export = folder / PROFILE, folder / EXPORT
    module = folder / BUNDLE / MODULE
    command = support.tool_command("iree-run-module", module, "local-task", support.PROFILING)
    support.run([*command, f"--device_profiling_output={profile}"])
    support.run([find_tool("iree-profile"), "export", "--format=ireeperf-jsonl", f"--output={export}", profile])
    for name, *options in ((REPORT,), (REPORTED_EVENTS, "--dispatch_events")):
        printed = support.run([find_tool("iree-profile"), "dispatch", "--format=jsonl", *options, profile])
        (folder / name).write_text(printed, encoding="utf-8")
    statistics = ("--dispatch_statistics=true", "--benchmark_format=json")
    command = support.tool_command("iree-benchmark-module", module, "local-task", *statistics)
    (folder / DISPATCH_STATISTICS).write_text(support.run(command), encoding="utf-8")


def _make_calls(folder: Path) -> None:
    """Records of calls and samples, and the calls again in the form of IREE's own hook."""
    calls = folder / CALLS
    calls.mkdir()
    library = support.built_library(folder, "library")
    command = support.tool_command("iree-benchmark-module", folder / BUNDLE / MODULE, "local-task")
    support.run(command, support.hooked(library, calls, sample_hz=4000))
    newest = folder / NEWEST
    newest.mkdir()
    command = [word.replace("=3x", "=3000x") for word in command]
    support.run(command, support.hooked(library, newest, thread_bytes=2 << 20, keep="newest"))
    (folder / STATS_FOLDER).mkdir()
    rows = [f"iree-worker-0,{n % 3},0,{n * 1.5},{n * 40},{n % 4}" for n in range(1, 60)]
    head = "thread,cpu,node,duration_us,cache-misses,page-faults"
    (folder / HOOK_CSV).write_text("\n".join([head, *rows]) + "\n", encoding="utf-8")


def _make_cuda(folder: Path) -> None:
    (folder / CUDA).mkdir()
    standins = build(folder)
    standins.host(["first", "second", "first"], standins.injected(folder / CUDA, devices=2), rounds=20)


def _make_counts(folder: Path) -> None:
    """Of one function alone: what starts a program is ten times as much, and the same again and again."""
    source, program = folder / "counted.c", folder / "counted"
    source.write_text(_COUNTED, encoding="utf-8")
    subprocess.run([*find_compiler(), "-O1", "-o", str(program), str(source)], check=True, capture_output=True)
    shape = ("--dump-instr=yes", "--dump-line=no", "--compress-strings=no", "--compress-pos=no", "--cache-sim=yes")
    target = f"--callgrind-out-file={folder / CALLGRIND}"
    counted = ("--toggle-collect=work", str(program))
    subprocess.run(["valgrind", "--tool=callgrind", *shape, target, *counted], check=True, capture_output=True)
