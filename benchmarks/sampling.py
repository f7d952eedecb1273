"""What samples of the program counter cost at run time, at the rate that `record --sample` takes by default.

The command is a plain benchmark of a module, with one worker, with and without the hook; the hook records no calls.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measure import Figure, alternating, print_row, print_title, targeted
from tests.recording import sample
from tests.support import SAMPLES
from tracemap.capture.stopping_rule import default_sample_hz
from tracemap.core.toolchain import find_tool
from tracemap.hook import HookSettings, settings_environment
from tracemap.hook.compiling import compile_library
from tracemap.runs.hook.samples import read_samples

MODEL = "jax_gpt2_4l"
HZ = default_sample_hz(5.0)
"""The rate at the default budget."""
ITERATIONS = 2
REPETITIONS = 30
PAIRS = 25


def measure(folder: Path) -> list[Figure]:
    """Alternating pairs for each sampler; the benchmark's own time of an iteration, the best of many repetitions.

    A repetition lasts for some ten samples, so that the best has its share of them, and little of what else disturbs.
    """
    library = compile_library(folder / "libtracemap_hook.so")
    command = [
        *(str(find_tool("iree-benchmark-module")), f"--module={sample(folder, MODEL)}"),
        *(f"--flagfile={SAMPLES / 'flags' / f'{MODEL}.flags'}", "--task_topology_max_group_count=1"),
        *(f"--benchmark_min_time={ITERATIONS}x", f"--benchmark_repetitions={REPETITIONS}"),
        *("--benchmark_format=json", "--benchmark_report_aggregates_only=false"),
    ]
    return [figure for sampler in ("auto", "timer") for figure in compare(command, library, sampler)]


def compare(command: Sequence[str], library: Path, sampler: str) -> list[Figure]:
    """One sampler against none, and what it says itself of its cost."""
    told: list[float] = []

    def sampled() -> float:
        with tempfile.TemporaryDirectory() as output:
            settings = HookSettings(record_calls=False, sample_hz=HZ, sampler=sampler)
            variables = {**settings_environment(Path(output), settings), "LD_PRELOAD": str(library)}
            taken = iteration_ms(command, variables)
            told.append(read_samples(Path(output)).overhead)
        return taken

    with_samples, without, ratios = alternating(sampled, lambda: iteration_ms(command, {}), PAIRS)
    print_title(f"iteration sampled ({sampler}, {HZ} Hz) against plain, {MODEL}, one worker")
    print_row("sampled", with_samples, "ms")
    print_row("plain", without, "ms")
    print_row("overhead as the hook tells it", [100 * part for part in told], "%")
    return [targeted(f"sampled ({sampler}) / plain", ratios, "x", 1.05)]


def iteration_ms(command: Sequence[str], variables: dict[str, str]) -> float:
    """The wall time of one iteration in the best repetition, as the benchmark itself reports it."""
    environment = {**os.environ, **variables}
    done = subprocess.run(command, env=environment, cwd=SAMPLES, capture_output=True, text=True, check=True)
    rows = [row for row in json.loads(done.stdout)["benchmarks"] if row["run_type"] == "iteration"]
    assert len(rows) == REPETITIONS
    nanoseconds = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
    return min(float(row["real_time"]) * nanoseconds[row["time_unit"]] for row in rows) / 1e6
