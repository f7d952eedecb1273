"""`tracemap check`: problems of a new build, in the formats of continuous integration."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import duckdb
import pytest
from msgspec import structs

from tests.conftest import Built
from tests.support import Json, check_cli, made_once, run_cli
from tracemap.commands.check import check
from tracemap.compare.model import Amount, MemoryDifference, OpMemory
from tracemap.kernels.model import Culprit
from tracemap.map.bundle import load
from tracemap.map.model import OpId
from tracemap.options.reports import CheckOptions
from tracemap.reports.ci import Problem, compiler_lines, github_annotations, junit, markdown, problems_of, sarif

HOSTILE = Problem("op-slower", "error", "a%b\n::error::x |<script>\x1b[0m `c`", "dir a/b:c,d.py", 3, 7)


@pytest.fixture(scope="module")
def compared(built: Built, made: Path) -> tuple[Path, Path]:
    """A run with intervals of medians, and its bundle."""
    run, bundle = made / "jax_mlp-check.parquet", built("jax_mlp")
    with made_once(run) as missing:
        if missing:
            check_cli("record", bundle, "--iterations", "20", "--serial", "-o", run)
    return run, bundle


def test_the_same_run_has_no_problem(compared: tuple[Path, Path], tmp_path: Path) -> None:
    run, bundle = compared
    files = [tmp_path / name for name in ("p.sarif", "p.xml", "p.md")]
    flags = ("--map-a", bundle, "--map-b", bundle, "--sarif", files[0], "--junit", files[1], "--markdown", files[2])
    done = run_cli("check", run, run, *flags)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert json.loads(files[0].read_text())["runs"][0]["results"] == []
    assert ElementTree.parse(files[1]).getroot().get("failures") == "0"
    assert files[2].read_text().startswith("### tracemap: no problem in this check")


def test_a_slower_run_fails_at_its_line_of_python(compared: tuple[Path, Path], tmp_path: Path) -> None:
    run, bundle = compared
    slower = tmp_path / "slower.parquet"
    slow_down(run, slower, 3)
    summary = tmp_path / "summary.md"
    words: list[str | Path] = ["check", run, slower, "--map-a", bundle, "--map-b", bundle, "--raw"]
    done = subprocess.run(
        [sys.executable, "-m", "tracemap", *map(str, words)],
        env={**os.environ, "GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    assert lines
    assert all(re.match(r"::error file=[^,]*jax_models\.py,line=\d+,", line) for line in lines), lines
    assert "| error | `" in summary.read_text()
    plain = run_cli(*words)
    assert plain.returncode == 1
    assert re.match(r".*jax_models\.py:\d+.*: error: op\d+ .* slower, .*\[op-slower\]", plain.stdout)


def slow_down(run: Path, target: Path, factor: int) -> None:
    """Write a run in which matrix products take longer."""
    metadata = duckdb.execute("SELECT key, value FROM parquet_kv_metadata(?)", [str(run)]).fetchall()
    texts = {bytes(name).decode(): bytes(text).decode() for name, text in metadata}
    key = next(name for name in texts if "tracemap" in name)
    slower = f"CASE WHEN kind = 'dispatch' AND kernel LIKE '%matmul%' THEN {factor} ELSE 1 END"
    quoted = texts[key].replace("'", "''")
    duckdb.execute(
        f"COPY (SELECT * REPLACE (duration_ns * {slower} AS duration_ns, cpu_ns * {slower} AS cpu_ns) "
        f"FROM read_parquet('{run}')) TO '{target}' (FORMAT parquet, KV_METADATA {{\"{key}\": '{quoted}'}})"
    )


def test_memory_lost_ops_and_wrong_numbers_are_problems(compared: tuple[Path, Path]) -> None:
    run, bundle = compared
    options = CheckOptions(map_a=bundle, map_b=bundle)
    comparison, graph = check(run, run, options).comparison, load(bundle).graph
    op = next(op for op in graph.ops if op.name.endswith("dot_general"))
    held = OpMemory(op.id, op.id, op.name, Amount(0, 100, 100))
    memory = MemoryDifference("main", Amount(1000, 1100, 100), (held,), Amount(0, 0, 0))
    lost = structs.replace(comparison.ops[0], outcome_before="dispatched", outcome_after="unknown")
    worse = structs.replace(comparison, memory=(memory,), ops=(lost, *comparison.ops[1:]))
    culprit = Culprit("site0", "kernel", (op.id,), "NaN in its result")
    found = problems_of(worse, graph, culprit, 5.0)
    assert [problem.rule for problem in found] == ["memory-peak", "op-lost", "wrong-numbers"]
    assert all(problem.level == "error" for problem in found)
    assert found[0].line > 0
    assert "10.0 %" in found[0].message
    assert problems_of(worse, graph, None, 20.0)[0].rule != "memory-peak"


@pytest.mark.quick
def test_hostile_text_stays_text() -> None:
    line = github_annotations([HOSTILE])
    assert line.count("\n") == 1
    assert "a%25b%0A::error::x" in line
    assert "file=dir a/b%3Ac%2Cd.py,line=3,col=7" in line
    assert "\x1b" not in line
    assert compiler_lines([HOSTILE]).count("\n") == 1
    assert "\x1b" not in compiler_lines([HOSTILE])


def test_formats_are_valid(compared: tuple[Path, Path]) -> None:
    run, bundle = compared
    comparison = check(run, run, CheckOptions(map_a=bundle, map_b=bundle)).comparison
    check_sarif(json.loads(sarif([HOSTILE])))
    suite = ElementTree.fromstring(junit(comparison, [HOSTILE]))
    assert suite.get("failures") == "1"
    (failure,) = suite.iter("failure")
    assert "<script>" in str(failure.get("message"))
    table = markdown(comparison, [HOSTILE])
    row = next(line for line in table.splitlines() if line.startswith("| error"))
    assert row.count(" | ") == 2
    assert "<script>" not in table
    assert html.unescape(row.replace("\\", "")).count("<script>") == 1


def check_sarif(log: Json) -> None:
    """What SARIF 2.1.0 requires of these properties (sections 3.13, 3.14, 3.19, 3.27 to 3.30)."""
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    rules = run["tool"]["driver"]["rules"]
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in {"none", "note", "warning", "error"}
        assert result["message"]["text"]
        place = result["locations"][0]["physicalLocation"]
        assert re.fullmatch(r"[A-Za-z0-9._~!$&'()*+,;=:@%/-]+", place["artifactLocation"]["uri"])
        assert ":" not in place["artifactLocation"]["uri"].split("/")[0]
        assert place["region"]["startLine"] >= 1


def test_missing_runs_are_named(built: Built, compared: tuple[Path, Path], tmp_path: Path) -> None:
    """A check of a bundle without runs compares no times, and says so."""
    shutil.copytree(built("jax_mlp"), tmp_path / "old.tracemap", ignore=shutil.ignore_patterns("runs"))
    (tmp_path / "old.tracemap" / "runs").mkdir()
    shutil.copytree(tmp_path / "old.tracemap", tmp_path / "new.tracemap")
    shutil.copy(compared[0], tmp_path / "new.tracemap" / "runs" / "run-001.parquet")
    done = run_cli("check", "old.tracemap", "new.tracemap", cwd=tmp_path)
    assert done.returncode == 0
    assert "runs are not used, since old.tracemap has none" in done.stderr
    shutil.copytree(tmp_path / "old.tracemap", tmp_path / "other.tracemap")
    neither = run_cli("check", "old.tracemap", "other.tracemap", cwd=tmp_path)
    assert neither.returncode == 0
    assert "no times were compared" in neither.stderr
    missing = run_cli("check", "old.tracemap", "none.parquet", cwd=tmp_path)
    assert "none.parquet: cannot be read: no such file" in missing.stderr
    assert missing.returncode == 2


def test_outputs_are_not_overwritten(compared: tuple[Path, Path], tmp_path: Path) -> None:
    run, bundle = compared
    taken = tmp_path / "p.sarif"
    taken.write_text("mine")
    done = run_cli("check", run, run, "--map-a", bundle, "--map-b", bundle, "--sarif", taken)
    assert done.returncode == 2
    assert taken.read_text() == "mine"
    assert check_cli("check", "--help")
    assert OpId.of(1) == "op1"
