"""Cost of recording: profiled calls against unprofiled ones, and the time that `record` takes beside its calls."""

from __future__ import annotations

import json
import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import Figure, alternating, output_of, print_row, print_title, run, targeted, tracemap
from tests.support import SAMPLES, Corpus
from tracemap.runs.runfile import read_run

MODELS = ("hand_loczoo", "hand_mlp", "torch_resnet18_small", "jax_gpt2_4l")
"""Invocations of 0.03, 0.1, 1 and 5 ms."""
PAIRS = 3
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


@dataclass(frozen=True, slots=True)
class _Recording:
    """A recording with the default options: elapsed time of the whole command, and time of its measured calls."""

    seconds: float
    calls: int
    calls_s: float

    @property
    def beside(self) -> float:
        """Time beside the calls, as a part of the calls' time."""
        return (self.seconds - self.calls_s) / self.calls_s


def measure_time(folder: Path) -> list[Figure]:
    """Recordings with the default options, each followed by as many plain calls by `iree-benchmark-module`.

    The calls of a recording take the mean time of the calls in the run. Warm-up and calls without the profiler do not
    count, although `record` makes them too.
    """
    print_title("record with its default options")
    corpus, figures = Corpus(SAMPLES), []
    for model in MODELS:
        bundle = folder / f"{model}.tracemap"
        corpus.build(model, bundle)
        pairs = []
        for _ in range(PAIRS):
            recording = _recorded(bundle, model, folder)
            plain = run([*_plain_command(folder / "run.parquet"), f"--benchmark_min_time={recording.calls}x"])
            pairs.append((recording, plain.seconds))
        print_row(f"{model}: record", [own.seconds for own, _ in pairs], "s")
        print_row("  its calls", [own.calls_s for own, _ in pairs], "s")
        print_row("  as many plain calls", [plain for _, plain in pairs], "s")
        name = f"{model}: other time / time of calls"
        figures.append(targeted(name, [own.beside for own, _ in pairs], "x", 1.5))
    return figures


def _recorded(bundle: Path, model: str, folder: Path) -> _Recording:
    made = folder / "run.parquet"
    command = tracemap("record", bundle, "--flagfile", SAMPLES / "flags" / f"{model}.flags", "--force", "-o", made)
    began = time.perf_counter()
    said = subprocess.run(command, cwd=SAMPLES, capture_output=True, text=True, check=True).stderr
    seconds = time.perf_counter() - began
    header = read_run(made).header
    measured = re.search(r"after ([\d,]+) invocations", said)
    assert measured is not None, said
    assert isinstance(header.elapsed_ns, int)
    assert isinstance(header.iterations, int)
    calls = int(measured[1].replace(",", ""))
    return _Recording(seconds, calls, calls * header.elapsed_ns / header.iterations / 1e9)


def _plain_command(recorded: Path) -> list[str]:
    """The command line of a recording without profiler, number of calls and report."""
    return [
        word for word in read_run(recorded).header.command if not re.match(r"--(device_profiling|benchmark)_", word)
    ]
