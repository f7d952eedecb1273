"""Numbers beyond any machine, and endless texts, are refused where they are given."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands.test_errors import refused
from tests.conftest import Built, Recorded
from tests.support import check_cli
from tracemap.map.bundle import load

DIGITS = "1" * 5000
"""More than Python makes a number of."""


@pytest.mark.parametrize("command", ["bench", "tune"])
@pytest.mark.parametrize("seconds", ["inf", "1e308", "1e10", "nan", "0"])
def test_a_limit_of_time_is_at_most_a_day(command: str, seconds: str, built: Built, tmp_path: Path) -> None:
    """A longer one no clock of the system can wait for."""
    said = refused("usage-invalid", command, built("hand_mlp"), f"--time-limit={seconds}", cwd=tmp_path)
    assert "time-limit" in said or "time_limit" in said


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "option"),
    [("record", "iterations"), ("record", "warmup"), ("benchmark", "iterations"), ("benchmark", "repetitions")],
)
@pytest.mark.parametrize("calls", ["1000000001", "9223372036854775808", DIGITS])
def test_calls_are_as_many_as_can_be_made(command: str, option: str, calls: str, built: Built, tmp_path: Path) -> None:
    """IREE's benchmark makes a single call, or goes on for ever, where its numbers do not hold how many."""
    said = refused("usage-invalid", command, built("hand_mlp"), f"--{option}={calls}", cwd=tmp_path)
    assert f"--{option}" in said
    assert len(said) < 400


@pytest.mark.parametrize("option", ["calls", "every", "skip-ms", "thread-mb"])
@pytest.mark.parametrize("number", ["18446744073709551616", DIGITS])
def test_the_hook_is_told_what_it_can_hold(option: str, number: str, tmp_path: Path) -> None:
    said = refused("usage-invalid", "hook", "env", "-o", tmp_path, f"--{option}={number}", cwd=tmp_path)
    assert f"--{option}" in said


@pytest.mark.parametrize("megabytes", ["1000000001", "9223372036854775807", DIGITS])
def test_memory_is_what_a_machine_may_have(megabytes: str, built: Built, recorded: Recorded, tmp_path: Path) -> None:
    command = ("attribute", recorded("hand_mlp"), "--map", built("hand_mlp"), f"--memory={megabytes}")
    said = refused("usage-invalid", *command, cwd=tmp_path)
    assert "--memory" in said
    assert len(said) < 300


@pytest.mark.parametrize("what", [f"m.mlir:{DIGITS}", f"op{DIGITS}", DIGITS])
def test_a_place_of_many_digits_is_none(what: str, built: Built, tmp_path: Path) -> None:
    said = refused("query-invalid", "show", built("hand_mlp"), what, cwd=tmp_path)
    assert "…: no op, function, scope, line, dispatch or kernel of the map has this name" in said
    assert len(said) < 600


def test_of_a_bad_cell_only_the_start_is_said(built: Built, tmp_path: Path) -> None:
    (tmp_path / "run.csv").write_text(f"kernel,duration_ns\nmain_dispatch_0,{DIGITS}\n", encoding="utf-8")
    said = refused("run-invalid", "attribute", "run.csv", "--map", built("hand_mlp"), cwd=tmp_path)
    assert said.startswith(f"run.csv: line 2, column duration_ns: '{DIGITS[:60]}…' is ")


@pytest.mark.parametrize(
    ("column", "cell", "wrong"),
    [
        ("duration_ns", "\u0663", "not a number"),
        ("invocation", "\u0663", "not a number"),
        ("warmup", " true", "neither"),
    ],
)
def test_cells_that_python_reads_and_the_database_does_not(
    column: str, cell: str, wrong: str, built: Built, tmp_path: Path
) -> None:
    header = "kernel,duration_ns" if column == "duration_ns" else f"kernel,duration_ns,{column}"
    cells = f"main_dispatch_0,{cell}" if column == "duration_ns" else f"main_dispatch_0,5,{cell}"
    (tmp_path / "run.csv").write_text(f"{header}\n{cells}\n", encoding="utf-8")
    said = refused("run-invalid", "attribute", "run.csv", "--map", built("hand_mlp"), cwd=tmp_path)
    assert said.startswith(f"run.csv: line 2, column {column}: {cell!r} is {wrong}")


def wide_run(path: Path, metrics: int, kernel: str) -> None:
    names = ",".join(f"m{number}" for number in range(metrics))
    row = f"{kernel},5,{','.join(map(str, range(metrics)))}\n"
    path.write_text(f"kernel,duration_ns,{names}\n{row * 5}", encoding="utf-8")


@pytest.mark.long
def test_many_metrics_fit_where_one_thread_adds_them_up(built: Built, tmp_path: Path) -> None:
    bundle = built("hand_mlp")
    wide_run(tmp_path / "run.csv", 300, load(bundle).graph.kernels[0].name)
    said = check_cli("attribute", "run.csv", "--map", bundle, "--memory", "200", "--format", "csv", cwd=tmp_path)
    assert ",m299," in said


def test_more_metrics_than_fit_into_the_memory_are_refused_at_once(built: Built, tmp_path: Path) -> None:
    wide_run(tmp_path / "run.csv", 1500, "k")
    command = ("attribute", "run.csv", "--map", built("hand_mlp"), "--memory", "500")
    said = refused("usage-invalid", *command, cwd=tmp_path)
    assert said.startswith("run.csv: 1,501 metrics need 825 MB of memory, but the limit is 500 MB: leave columns out")
