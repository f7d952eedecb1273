"""What recording costs at run time: the command that `record` runs, against the same without profiling."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.measure import Figure, alternating, output_of, print_row, print_title, run, targeted, tracemap
from tests.support import SAMPLES

MODEL = "jax_gpt2_4l"
ITERATIONS = 20
_NS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}


def measure(folder: Path) -> list[Figure]:
    """Fifteen alternating pairs on GPT-2 with four layers, one worker; the benchmark's own time of an iteration."""
    recorded = recorded_command(folder)
    plain = [word for word in recorded if not word.startswith("--device_profiling_")]
    assert len(plain) < len(recorded), f"the recorded command does not profile: {recorded}"
    profiled, unprofiled, ratios = alternating(lambda: iteration_ms(recorded), lambda: iteration_ms(plain), 15)
    print_title(f"iteration recorded against unprofiled, {MODEL}, one worker, {ITERATIONS} iterations")
    print_row("recorded", profiled, "ms")
    print_row("unprofiled", unprofiled, "ms")
    return [targeted("recorded / unprofiled", ratios, "x", 1.05)]


def recorded_command(folder: Path) -> list[str]:
    """The command line of a real recording, from the run's header, its profile's path replaced by one of ours."""
    bundle, made = folder / f"{MODEL}.tracemap", folder / "run.csv"
    run(tracemap("build", SAMPLES / "models" / f"{MODEL}.mlir", "-o", bundle))
    flags = SAMPLES / "flags" / f"{MODEL}.flags"
    run(tracemap("record", bundle, "--flagfile", flags, "--serial", "--iterations", str(ITERATIONS), "-o", made))
    header = json.loads(made.with_name("run.csv.json").read_text(encoding="utf-8"))
    output = "--device_profiling_output="
    words = [f"{output}{folder / 'bench.ireeprof'}" if word.startswith(output) else word for word in header["command"]]
    assert "--task_topology_max_group_count=1" in words
    return [word for word in words if not word.startswith("--benchmark_")] + [
        f"--benchmark_min_time={ITERATIONS}x",
        "--benchmark_format=json",
    ]


def iteration_ms(command: list[str]) -> float:
    """The wall time of one iteration, as the benchmark itself reports it."""
    reported = json.loads(output_of(command))["benchmarks"][0]
    assert reported["iterations"] == ITERATIONS
    return float(reported["real_time"]) * _NS[reported["time_unit"]] / 1e6
