"""Recorded calls as a table: columns, formats, filters, refusals, attribution."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from tests.conftest import Built
from tests.documents import is_current
from tests.hook import support
from tests.support import run_cli
from tracemap.core.errors import QueryInvalid, RunInvalid, TargetExists, UsageInvalid
from tracemap.options.measure import StatsOptions
from tracemap.runs.hook.calls import CALL_COLUMNS, EVENT_COLUMN, load_calls, write_calls
from tracemap.runs.hook.recording import HookRecording, read_recording
from tracemap.runs.hook.stats import read_calls
from tracemap.runs.runfile import read_run

KERNEL = "mlp_dispatch_1_matmul_32x128x256_f32"
EVENTS = ("page-faults", "minor-faults")


@pytest.fixture(scope="module")
def folder(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Calls of many iterations, which take far more than a millisecond, and their page faults, on the stock runtime."""
    from tracemap.capture.counters import events_to_count

    support.need_compiler()
    folder = tmp_path_factory.mktemp("calls")
    settings = tuple(event.setting for event in events_to_count(EVENTS))
    vmfb = support.module(made, "embedded")
    command = support.tool_command("iree-benchmark-module", vmfb, "local-task", "--benchmark_min_time=200x")
    support.run(command, support.hooked(support.built_library(made), folder, events=settings))
    return folder


@pytest.fixture(scope="module")
def recording(folder: Path) -> HookRecording:
    return read_recording(folder)


def sql(query: str) -> duckdb.DuckDBPyConnection:
    return duckdb.connect().execute(query)


def rows(path: Path) -> list[tuple[Any, ...]]:
    return sql(f"SELECT * FROM '{path}'").fetchall()


def test_readme_describes_each_column() -> None:
    assert is_current("calls"), "run python -m tests.documents"


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_the_file_has_the_columns_that_are_described(suffix: str, recording: HookRecording, tmp_path: Path) -> None:
    target = tmp_path / f"calls.{suffix}"
    assert write_calls(recording, target, StatsOptions()) == recording.call_count
    described = [(name, kind) for name, kind, *_ in sql(f"DESCRIBE SELECT * FROM '{target}'").fetchall()]
    assert described == [(column.name, column.type) for column in CALL_COLUMNS] + [
        (name, EVENT_COLUMN.type) for name in EVENTS
    ]


def test_rows_are_the_recorded_calls(recording: HookRecording, tmp_path: Path) -> None:
    """Against the record files themselves, thread by thread, in ticks."""
    target = tmp_path / "calls.parquet"
    write_calls(recording, target, StatsOptions())
    assert len(rows(target)) == recording.call_count
    for process in recording.processes:
        for thread in process.threads:
            found = sql(
                'SELECT kernel, cpu, workgroup_x, workgroups_x, duration_ns, start_ns, "page-faults", "minor-faults" '
                f"FROM '{target}' WHERE process = '{process.stamp}' AND tid = {thread.tid} ORDER BY start_ns"
            ).fetchnumpy()
            names = [process.kernels[int(number)].name for number in thread.calls["kernel"]]
            assert found["kernel"].tolist() == names
            for column in ("cpu", "workgroup_x", "workgroups_x"):
                assert found[column].tolist() == thread.calls[column].tolist()
            in_ns = thread.calls["duration_ticks"].astype(float) * process.ns_per_tick
            assert np.abs(found["duration_ns"] - in_ns).max() <= 1
            assert (np.diff(found["start_ns"]) >= 0).all()
            assert [found[name].tolist() for name in EVENTS] == thread.events.T.tolist()


def test_each_execution_has_each_workgroup_once(recording: HookRecording, tmp_path: Path) -> None:
    target = tmp_path / "calls.csv"
    write_calls(recording, target, StatsOptions())
    grids = sql(
        "SELECT count(*), count(DISTINCT (workgroup_x, workgroup_y, workgroup_z)), "
        f"any_value(workgroups_x * workgroups_y * workgroups_z) FROM '{target}' GROUP BY kernel, call, workgroups_x"
    ).fetchall()
    assert grids
    assert all(count == distinct == whole for count, distinct, whole in grids)


def test_both_formats_hold_the_same(recording: HookRecording, tmp_path: Path) -> None:
    for suffix in ("csv", "parquet"):
        write_calls(recording, tmp_path / f"calls.{suffix}", StatsOptions())
        write_calls(recording, tmp_path / f"again.{suffix}", StatsOptions())
        first, second = (tmp_path / f"{name}.{suffix}" for name in ("calls", "again"))
        assert first.read_bytes() == second.read_bytes()
    assert rows(tmp_path / "calls.csv") == rows(tmp_path / "calls.parquet")


def test_choosing_rows_and_columns(folder: Path, recording: HookRecording, tmp_path: Path) -> None:
    whole, chosen = tmp_path / "whole.parquet", tmp_path / "chosen.parquet"
    write_calls(recording, whole, StatsOptions())
    options = ("--kernel", KERNEL, "--skip-ms", "1", "--counters", "minor-faults")
    done = run_cli("stats", folder, *options, "--calls", chosen)
    assert done.returncode == 0, done.stderr
    names = ", ".join(f'"{name}"' for name in (*(column.name for column in CALL_COLUMNS), "minor-faults"))
    expected = sql(
        f"SELECT {names} FROM (SELECT *, start_ns - min(start_ns) OVER (PARTITION BY tid) AS since FROM '{whole}') "
        f"WHERE since >= 1000000 AND kernel = '{KERNEL}' ORDER BY start_ns"
    ).fetchall()
    assert rows(chosen) == expected  # what is left keeps its number `call`
    left = read_calls(folder, StatsOptions(kernel=KERNEL, skip_ms=1))
    assert len(expected) == sum(len(calls.cpus) for calls in left.threads) > 0


def test_what_cannot_be_written_is_refused(folder: Path, recording: HookRecording, tmp_path: Path) -> None:
    target = tmp_path / "calls.csv"
    with pytest.raises(QueryInvalid):
        write_calls(recording, target, StatsOptions(kernel=KERNEL[1:]))
    with pytest.raises(QueryInvalid):
        write_calls(recording, target, StatsOptions(counters=("cycles",)))
    assert not target.exists()
    target.write_text("mine", encoding="utf-8")
    with pytest.raises(TargetExists):
        write_calls(recording, target, StatsOptions())
    done = run_cli("stats", folder, "--calls", target)
    assert (done.returncode, done.stdout) == (2, "")
    assert target.read_text(encoding="utf-8") == "mine"
    other = tmp_path / "other.csv"
    assert run_cli("stats", folder, "--calls", other, "--csv", tmp_path / "absent").returncode == 2
    assert not other.exists()  # nothing is written before all of it can be
    assert run_cli("stats", folder, "--calls", target, "--force").returncode == 0
    assert len(rows(target)) == recording.call_count


def test_irees_csv_has_nothing_to_make_the_table_of(tmp_path: Path) -> None:
    csv = tmp_path / "iree_hook_w.csv"
    csv.write_text("thread,cpu,node,duration_us\nw,0,0,1.5\n", encoding="utf-8")
    done = run_cli("stats", csv, "--calls", tmp_path / "calls.csv")
    assert done.returncode == 2
    assert done.stderr.endswith(f"[{UsageInvalid.slug}]\n")
    absent = run_cli("stats", tmp_path / "absent", "--calls", tmp_path / "calls.csv")
    assert absent.returncode == 2
    assert "absent: does not exist" in absent.stderr


@pytest.mark.parametrize("name", ["kernel", "Start_NS"])
def test_an_event_never_takes_another_columns_name(name: str, recording: HookRecording) -> None:
    from dataclasses import replace

    hostile = replace(recording, event_names=(name, "minor-faults"))
    with duckdb.connect() as connection, pytest.raises(RunInvalid, match="another column"):
        load_calls(hostile, connection)


def test_the_table_is_a_run_whose_parts_add_up(built: Built, recording: HookRecording, tmp_path: Path) -> None:
    target = tmp_path / "calls.parquet"
    write_calls(recording, target, StatsOptions())
    run = read_run(target)
    assert [metric.name for metric in run.metrics] == ["cpu_ns", *EVENTS]  # of the worker, not of the wall
    assert [told.slug for told in run.header.diagnostics] == ["calls-of-workgroups"]
    # On a busy machine some call may take longer than its like, which is nobody's otherwise.
    done = run_cli("attribute", target, "--map", built("hand_mlp"), "--keep-outliers", "--balance")
    assert done.returncode == 0, done.stderr
    ((faults, time),) = sql(f"SELECT sum(\"page-faults\"), sum(duration_ns) FROM '{target}'").fetchall()
    assert f"cpu_ns: measured {time} = attributed {time} + unattributed 0 ns" in done.stdout
    assert f"page-faults: measured {faults} = attributed {faults} + unattributed 0 count" in done.stdout
