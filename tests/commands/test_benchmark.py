"""`tracemap benchmark`: Google Benchmark's table, its JSON, results in Python, repeated dispatches."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import tracemap
from tests.conftest import Built
from tests.recording import events, request
from tests.support import check_cli, json_cli, run_cli
from tracemap.capture.record import record
from tracemap.map.build.compiler.recompiled_kernels import build_repeated
from tracemap.map.bundle import load

DECODE = ("--flagfile", "flags/hand_multifunc.decode.flags")
COMPARE = Path("/usr/share/benchmark/compare.py")
"""Google Benchmark's own, of Debian's package libbenchmark-tools."""


def test_the_table_is_google_benchmarks_and_the_clocks_are_named(built: Built) -> None:
    options = ("--iterations", "7", "--repetitions", "3", "--time-unit", "us")
    lines = check_cli("benchmark", built("hand_multifunc"), *DECODE, *options).splitlines()
    assert lines[0] == (
        "Time: wall clock (real_time); CPU: CPU time of all threads of the program (process_time); both are means "
        "per call."
    )
    assert lines[1] == "Time decides the number of calls."
    assert lines[3].split()[:5] == ["Benchmark", "Time", "CPU", "Iterations", "UserCounters..."]
    rows = [line.split() for line in lines[5:]]
    assert [row[0].removeprefix("BM_decode/process_time/real_time") for row in rows] == [
        *("", "", ""), *("_mean", "_median", "_stddev", "_cv")
    ]  # fmt: skip
    assert [row[5] for row in rows[:3]] == ["7"] * 3
    assert {row[2] for row in rows[:6]} == {"us"}


@pytest.mark.long
def test_functions_without_inputs_are_timed_at_once(several: Path) -> None:
    done = run_cli("benchmark", several, "--iterations", "2")
    assert done.returncode == 0
    assert "BM_constants/" in done.stdout
    assert "BM_steers\\x1b[31m/" in done.stdout
    assert "\x1b" not in done.stdout
    assert done.stderr == "not timed, since they take inputs: mix, double, narrow; select a function with --function\n"


def test_json_is_google_benchmarks(built: Built) -> None:
    """Its numbers are those that the API returns of such a report, and its keys those of the library's schema 1."""
    times = ("--iterations", "5", "--repetitions", "2", "--time-unit", "ns")
    report = json_cli("benchmark", built("hand_multifunc"), *DECODE, *times)
    assert {row["time_unit"] for row in report["benchmarks"]} == {"ns"}
    assert report["context"]["json_schema_version"] == 1
    rows = report["benchmarks"]
    assert [row["run_type"] for row in rows] == ["iteration"] * 2 + ["aggregate"] * 4
    assert [row["iterations"] for row in rows[:2]] == [5, 5]
    assert rows[0]["run_name"] == "BM_decode/process_time/real_time"
    mean = next(row for row in rows if row.get("aggregate_name") == "mean")
    assert mean["real_time"] == pytest.approx(sum(row["real_time"] for row in rows[:2]) / 2)


@pytest.mark.skipif(
    not COMPARE.is_file() or not importlib.util.find_spec("scipy"),
    reason="compare.py (Debian: libbenchmark-tools) or scipy is not installed",
)
def test_compare_of_google_benchmark_reads_it(built: Built, tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        report = json_cli("benchmark", built("hand_multifunc"), *DECODE, "--iterations", "5")
        (tmp_path / name).write_text(json.dumps(report))
    command = [sys.executable, str(COMPARE), "benchmarks", "a.json", "b.json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "BM_decode/process_time/real_time" in done.stdout


def test_numbers_in_python(several: Path) -> None:
    """All calls together took no longer than the command that made them."""
    rows = np.ones((300, 4), np.float32)
    begin = time.monotonic_ns()
    (times,) = tracemap.benchmark(several, function="double", inputs=[rows], iterations=40, repetitions=3, serial=True)
    passed = time.monotonic_ns() - begin
    assert (times.function, times.calls) == ("double", (40, 40, 40))
    assert len(times.wall_ns) == len(times.cpu_ns) == 3
    assert 0 < sum(wall * calls for wall, calls in zip(times.wall_ns, times.calls, strict=True)) < passed
    every = tracemap.benchmark(several, iterations=2)
    assert [each.function for each in every] == ["constants", "steers\x1b[31m"]


def test_enough_calls_are_made_for_the_time(several: Path) -> None:
    (times,) = tracemap.benchmark(several, function="double", dim=2, min_time=0.2, serial=True)
    assert times.calls[0] * times.wall_ns[0] >= 0.15 * 1e9


def test_options_go_before_a_flag_file(several: Path, tmp_path: Path) -> None:
    flags = tmp_path / "x.flags"
    flags.write_text("--function=constants\n--benchmark_min_time=2x\n")
    (by_file,) = tracemap.benchmark(several, flagfile=flags)
    (by_option,) = tracemap.benchmark(several, flagfile=flags, iterations=3)
    assert (by_file.calls, by_option.calls) == ((2,), (3,))


@pytest.mark.long
def test_each_dispatch_is_repeated(built: Built, tmp_path: Path) -> None:
    """What the runtime's profiler counts in a call: five times the dispatches of the bundle's own module."""
    bundle = load(built("hand_multifunc"))
    module = build_repeated(bundle.configured(), bundle.graph.module.flags, tmp_path, 5)
    counts = []
    for path in (bundle.module_path, module):
        run = tmp_path / f"{path.stem}.csv"
        specs = ("32x64xf32=0.5", "64x64xf32=0.01")
        record(request(path, run, function="decode", inputs=specs, iterations=1, warmup=0))
        counts.append(sum(row["kind"] == "dispatch" for row in events(run)))
    assert counts[1] == 5 * counts[0] > 0


@pytest.mark.long
def test_times_with_repeated_dispatches_are_of_one_each(built: Built) -> None:
    report = json_cli("benchmark", built("hand_multifunc"), *DECODE, "--iterations", "4", "--dispatch-repeat", "5")
    assert report["benchmarks"][0]["iterations"] == 4 * 5
    said = check_cli("benchmark", built("hand_multifunc"), *DECODE, "--iterations", "4", "--dispatch-repeat", "5")
    assert "Each dispatch runs 5 times in a call; numbers are divided by 5." in said


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "slug", "words"),
    [
        (("--function", "absent"), "function-unknown", "mix, double, constants, narrow"),
        (("--function", "double"), "input-invalid", "--dim N"),
        (("--dispatch-repeat", "0"), "usage-invalid", "dispatch-repeat"),
        (("--min-time", "0"), "usage-invalid", "min-time"),
        (("--", "--benchmark_out=x.json"), "usage-invalid", "--benchmark_out is set by tracemap"),
        (("--iterations", "3", "--", "--benchmark_min_time=2x"), "usage-invalid", "--iterations sets the exact"),
        (("--min-time", "0.1", "--", "--benchmark_min_time=2x"), "usage-invalid", "--min-time sets it"),
        (("--repetitions", "2", "--", "--benchmark_repetitions=3"), "usage-invalid", "--repetitions sets it"),
        (("--", "--help"), "usage-invalid", "--help makes iree-benchmark-module print something"),
        (("--", "--list_drivers"), "usage-invalid", "--list_drivers makes"),
        (("--", "--batch_size=3"), "usage-invalid", "--dispatch-repeat"),
        (("--", "--no_such_flag"), "usage-invalid", "iree-benchmark-module has no flag --no_such_flag"),
    ],
)
def test_what_is_refused(arguments: tuple[str, ...], slug: str, words: str, several: Path, tmp_path: Path) -> None:
    done = run_cli("benchmark", several, *arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.endswith(f" [{slug}]\n"), done.stderr
    assert words in done.stderr
    assert not list(tmp_path.iterdir())


def test_kernels_that_are_not_kept_cannot_be_repeated(several: Path, tmp_path: Path) -> None:
    bundle = shutil.copytree(several, tmp_path / "several.tracemap")
    (bundle / "kernels" / "configured.mlir").unlink()
    done = run_cli("benchmark", bundle, "--dispatch-repeat", "2")
    assert done.returncode == 2
    assert done.stderr.endswith(" [bundle-invalid]\n")


def test_a_program_that_times_nothing_or_fails_says_so(several: Path) -> None:
    for flags in (("--benchmark_filter=nothing",), ("--device=no-such-device",)):
        done = run_cli("benchmark", several, "--iterations", "1", "--", *flags)
        assert done.returncode == 1
        assert done.stdout == ""
        assert done.stderr.endswith(" [program-failed]\n"), done.stderr
