"""The good files that are damaged: a bundle, runs, profiles and records of real programs, made by the real tools."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.hook import support
from tests.support import SAMPLES, check_cli
from tracemap.hook.compiling import HookUnavailable, find_compiler
from tracemap.toolchain import find_tool

BUNDLE = "model.tracemap"
MODULE = "module.vmfb"
RUN = "run.parquet"
CSV = "run.csv"
PROFILE = "run.ireeprof"
EXPORT = "run.jsonl"
CALLS = "calls"
HOOK_CSV = "iree_hook_worker.csv"
STATS_FOLDER = "stats"
CALLGRIND = "callgrind.out"
FLAGS = "model.flags"

_MODEL = SAMPLES / "models" / "hand_mlp.mlir"
_FLAGFILE = SAMPLES / "flags" / "hand_mlp.flags"


def make_inputs(folder: Path) -> None:
    """Make all of them in a folder that does not exist yet; what this machine cannot make is left out.

    Raises:
        AssertionError: a command failed.
    """
    folder.mkdir(parents=True)
    bundle = folder / BUNDLE
    check_cli("build", _MODEL, "-o", bundle)
    shutil.copy(bundle / MODULE, folder / MODULE)
    inside = ("--sample", "4000") if _can_compile() else ()
    recorded = ("record", bundle, "--flagfile", _FLAGFILE, "--iterations", "40", "--warmup", "1")
    check_cli(*recorded, *inside, "-o", folder / RUN)
    check_cli(*recorded, "-o", folder / CSV)
    _make_flags(folder)
    _make_profile(folder)
    if _can_compile():
        _make_calls(folder)
    if shutil.which("valgrind"):
        _make_counts(folder)


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


def _make_profile(folder: Path) -> None:
    profile, export = folder / PROFILE, folder / EXPORT
    command = support.tool_command("iree-run-module", folder / MODULE, "local-task", support.PROFILING)
    support.run([*command, f"--device_profiling_output={profile}"])
    support.run([find_tool("iree-profile"), "export", "--format=ireeperf-jsonl", f"--output={export}", profile])


def _make_calls(folder: Path) -> None:
    """Records of calls and samples, and the calls again in the form of IREE's own hook."""
    calls = folder / CALLS
    calls.mkdir()
    library = support.built_library(folder, "library")
    command = support.tool_command("iree-benchmark-module", folder / MODULE, "local-task")
    support.run(command, support.hooked(library, calls, sample_hz=4000))
    (folder / STATS_FOLDER).mkdir()
    rows = [f"iree-worker-0,{n % 3},0,{n * 1.5},{n * 40},{n % 4}" for n in range(1, 60)]
    head = "thread,cpu,node,duration_us,cache-misses,page-faults"
    (folder / HOOK_CSV).write_text("\n".join([head, *rows]) + "\n", encoding="utf-8")


def _make_counts(folder: Path) -> None:
    shape = ("--dump-instr=yes", "--dump-line=no", "--compress-strings=no", "--compress-pos=no", "--cache-sim=yes")
    target = f"--callgrind-out-file={folder / CALLGRIND}"
    subprocess.run(["valgrind", "--tool=callgrind", *shape, target, "true"], check=True, capture_output=True)
