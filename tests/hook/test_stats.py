"""`tracemap stats`: IREE's statistics byte for byte, from its CSV files and our recordings."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.hook import support
from tests.schemas import validator
from tests.support import ROOT, check_cli, command_line, run_cli
from tracemap.core.errors import QueryInvalid, RunInvalid, UsageInvalid
from tracemap.options.measure import StatsOptions
from tracemap.runs.hook.stats import ThreadCalls, read_calls, thread_stats

GOLD = ROOT / "tests" / "gold" / "stats"


def calls_file(path: Path, count: int, seed: int = 1) -> Path:
    """Calls in the form of IREE's hook: durations over four decades, one event like them, few values, a constant."""
    dice = random.Random(seed)
    lines = ["thread,cpu,node,duration_us,cache-misses,page-faults,constant"]
    for _ in range(count):
        duration = 10 ** dice.uniform(-1, 3)
        lines.append(
            f"iree-worker-0,{dice.randrange(3)},0,{duration:g},{int(duration * dice.randrange(50, 100))},"
            f"{dice.randrange(4)},7"
        )
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(("count", "buckets", "gamma"), [(3000, 16, 0.5), (500, 4, 1.0), (3, 5, 0.3), (1, 16, 0.5)])
def test_text_is_that_of_irees_hook(
    count: int, buckets: int, gamma: float, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The golden files were compared with what IREE's own computation and layout give for the same calls."""
    csv = calls_file(tmp_path / "iree_hook_iree-worker-0.csv", count)
    done = run_cli("stats", csv, "--buckets", str(buckets), "--gamma", str(gamma))
    gold = GOLD / f"{count}-{buckets}.txt"
    if request.config.getoption("--update-gold"):
        gold.parent.mkdir(exist_ok=True)
        gold.write_text(done.stdout, encoding="utf-8")
    assert done.stdout == gold.read_text(encoding="utf-8")


@pytest.mark.long
def test_variables_of_irees_hook_are_honoured(tmp_path: Path) -> None:
    csv = calls_file(tmp_path / "calls.csv", 500)
    options = ("--buckets", "4", "--gamma", "1", "--counters", "page-faults,cache-misses")
    variables = {
        "IREE_HOOK_BUCKET_COUNT": "4",
        "IREE_HOOK_GAMMA": "1",
        "IREE_HOOK_PERF_EVENT_TYPES": "page-faults,cache-misses",
    }
    told = subprocess.run(command_line("stats", csv), env=variables, capture_output=True, text=True, check=True)
    assert told.stdout == run_cli("stats", csv, *options).stdout
    assert "page-faults vs. cache-misses" in told.stdout
    variables["IREE_HOOK_NO_PROBABILITY_TABLE"] = ""
    short = subprocess.run(command_line("stats", csv), env=variables, capture_output=True, text=True, check=True)
    assert short.stdout == run_cli("stats", csv, *options, "--no-table").stdout
    assert "conditional" not in short.stdout


def sample(*series: list[float]) -> ThreadCalls:
    count = len(series[0])
    zeros = np.zeros(count, dtype=np.int64)
    values = tuple(np.array(column, dtype=np.float32) for column in series)
    return ThreadCalls("t", zeros, zeros, tuple(f"s{place}" for place in range(len(series))), values)


def test_ties_fall_low_and_columns_add_up() -> None:
    stats = thread_stats(sample([1, 1, 1, 1, 2, 3, 3, 9], [0, 1, 2, 3, 4, 5, 6, 7]), 4)
    assert stats.series[0].bucket_means == (1, 1, 2.5, 6)
    assert stats.series[1].bucket_means == (0.5, 2.5, 4.5, 6.5)
    (pair,) = stats.pairs
    assert np.allclose(pair.table.sum(axis=0), 1)
    # Edges of the first series are 1, 2, 3: the ones lie at or below the first edge.
    assert pair.table[0].tolist() == [1, 0.5, 0, 0]  # by quantile of the second series, whose edges are 2, 4, 6
    assert 0.7 < pair.correlation < 0.9


def test_correlation_of_a_constant_is_no_number() -> None:
    stats = thread_stats(sample([1, 2, 3], [7, 7, 7]), 2)
    assert np.isnan(stats.pairs[0].correlation)


def test_json_has_null_for_what_is_no_number(tmp_path: Path) -> None:
    csv = calls_file(tmp_path / "calls.csv", 3)
    data = json.loads(run_cli("stats", csv, "--buckets", "5", "--format", "json").stdout)
    validator("stats").validate(data)
    (thread,) = data["threads"]
    assert thread["calls"] == 3
    assert [series["name"] for series in thread["series"]] == ["duration_us", "cache-misses", "page-faults", "constant"]
    assert thread["series"][0]["bucket_means"].count(None) == 2
    assert [pair["correlation"] for pair in thread["pairs"] if pair["given"] == "constant"] == [None] * 3


def test_recordings_and_their_csv_give_the_same(made: Path, tmp_path: Path) -> None:
    """What is written with --csv, in IREE's form, reads as the recording does, but for the digits of %g."""
    support.need_compiler()
    folder, exported = tmp_path / "calls", tmp_path / "csv"
    folder.mkdir()
    exported.mkdir()
    vmfb = support.module(made, "embedded")
    command = support.tool_command("iree-benchmark-module", vmfb, "local-task")
    support.run(command, support.hooked(support.built_library(made), folder))
    recorded = json.loads(run_cli("stats", folder, "--format", "json", "--csv", exported).stdout)["threads"]
    read = json.loads(run_cli("stats", exported, "--format", "json").stdout)["threads"]
    by_name = {thread["thread"]: thread for thread in read}
    for thread in recorded:
        again = by_name[thread["thread"]]
        assert again["calls"] == thread["calls"]
        assert again["cpus"] == thread["cpus"]
        assert again["series"][0]["mean"] == pytest.approx(thread["series"][0]["mean"], rel=1e-4)
    kernel = "mlp_dispatch_1_matmul_32x128x256_f32"
    chosen = read_calls(folder, StatsOptions(kernel=kernel))
    assert sum(len(calls.cpus) for calls in chosen.threads) == support.recorded_calls(folder)[kernel]
    assert len(read_calls(folder, StatsOptions(kernel="mlp_dispatch_1")).threads) == len(chosen.threads)
    with pytest.raises(QueryInvalid, match=rf"did you mean .*{kernel}"):
        read_calls(folder, StatsOptions(kernel=kernel[1:]))
    with pytest.raises(UsageInvalid):
        read_calls(exported, StatsOptions(kernel=kernel))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "thread,cpu\nw,1\n",
        "thread,cpu,node,duration_us\nw,x,0,1\n",
        "thread,cpu,node,duration_us\nw,0,0,nan\n",
        "thread,cpu,node,duration_us\nw,0,0,\n",
        "thread,cpu,node,duration_us,a\nw,0,0,1\n",
        "thread,cpu,node,duration_us\n",
        "\0\0\0\0",
    ],
)
def test_damaged_files_are_refused(text: str, tmp_path: Path) -> None:
    csv = tmp_path / "calls.csv"
    csv.write_text(text, encoding="utf-8")
    done = run_cli("stats", csv)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.endswith(("[run-invalid]\n", "[run-empty]\n")), done.stderr


def test_what_is_no_recording_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunInvalid):
        read_calls(tmp_path / "missing.csv", StatsOptions())


@pytest.mark.long
def test_csv_comes_by_standard_input_and_pipes(tmp_path: Path) -> None:
    table = tmp_path / "iree_hook_worker.csv"
    table.write_text("thread,cpu,node,duration_us\nworker,0,0,1.5\nworker,1,0,2.5\n")
    shown = check_cli("stats", table)
    assert "2 matching calls" in shown
    done = run_cli("stats", "-", stdin=table.read_bytes())
    assert (done.returncode, done.stdout) == (0, shown)
    words = ["sh", "-c", 'cat "$0" | "$@"', str(table), *command_line("stats", "/dev/stdin")]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == shown
    refused = run_cli("stats", "-", stdin=table.read_text().encode("utf-16"))
    assert refused.stderr == (
        "tracemap: error: standard input: is a text in UTF-16 or UTF-32; save it as UTF-8 [run-invalid]\n"
    )


def test_counts_are_written_as_they_are(tmp_path: Path) -> None:
    """Of more than 2²⁴, from where on float32 has no odd numbers."""
    calls = tmp_path / "calls.csv"
    lines = ["thread,cpu,node,duration_us,cycles", "w,1,0,12345.7,123456789", "w,1,0,1.23457e+06,16777217"]
    calls.write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "out").mkdir()
    check_cli("stats", calls, "--no-table", "--csv", tmp_path / "out")
    (written,) = (tmp_path / "out").glob("*.csv")
    assert written.read_text(encoding="utf-8").splitlines() == lines
