"""File names that mean more to a shell or database: patterns, `~`, partition columns."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.conftest import Built
from tests.hook import support
from tests.support import Json, check_cli, json_cli
from tracemap.core.toolchain import find_tool

NAMES = ("r[1]", "q*", "a?c", "~", "~r", "[!x]", "d[x]/r", "**/r", "duration_ns=5/r", "warmup=true/r", "kind=alloca/r")
OTHERS = ("r1", "qq", "abc", "x", "dx/r")
"""What these would match as patterns."""


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "form", [pytest.param("csv", marks=pytest.mark.long), "parquet", "ireeprof", "jsonl", "report"]
)
def test_a_run_is_read_of_the_file_that_is_named(form: str, built: Built, tmp_path: Path) -> None:
    bundle, work = built("hand_mlp"), tmp_path / "work"
    one, other = (made(form, bundle, tmp_path / count, count) for count in ("3", "5"))
    for names, run in ((OTHERS, other), (NAMES, one)):
        for name in names:
            target = work / f"{name}{run.suffix}"
            target.parent.mkdir(parents=True, exist_ok=True)
            for file in run.parent.glob(f"{run.name}*"):  # a table has its header beside it
                shutil.copy(file, target.with_name(target.name + file.name.removeprefix(run.name)))

    def told(path: Path | str) -> Json:
        found = json_cli("attribute", path, "--map", bundle, cwd=work)
        return {"metrics": found["metrics"], "calls": [(site["site"], site["calls"]) for site in found["sites"]]}

    truth = told(one)
    assert truth != told(other)
    for name in NAMES:
        assert told(f"{name}{one.suffix}") == truth, name


def made(form: str, bundle: Path, folder: Path, count: str) -> Path:
    """A run of so many invocations."""
    folder.mkdir()
    if form in ("csv", "parquet"):
        run = folder / f"run.{form}"
        check_cli("record", bundle, "--iterations", count, "--warmup", "0", "-o", run)
        return run
    profile, printed = folder / "run.ireeprof", folder / "run.jsonl"
    command = support.tool_command("iree-benchmark-module", bundle / "module.vmfb", "local-sync", support.PROFILING)
    command = [word.replace("=3x", f"={count}x") for word in command]
    support.run([*command, f"--device_profiling_output={profile}"])
    if form == "jsonl":
        support.run([find_tool("iree-profile"), "export", "--format=ireeperf-jsonl", f"--output={printed}", profile])
    elif form == "report":
        said = support.run([find_tool("iree-profile"), "dispatch", "--format=jsonl", "--dispatch_events", profile])
        printed.write_text(said, encoding="utf-8")
    return profile if form == "ireeprof" else printed


def test_outputs_have_the_name_that_is_given(built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "~").mkdir()
    check_cli("record", built("hand_mlp"), "--iterations", "3", "-o", "~/run[1].parquet", cwd=tmp_path)
    assert (tmp_path / "~" / "run[1].parquet").is_file()
    assert not list((tmp_path / "home").iterdir())


@pytest.mark.long
def test_a_store_may_lie_anywhere(built: Built, tmp_path: Path) -> None:
    for place in ("s[1]", "~", "host=here"):
        check_cli("record", built("hand_mlp"), "--iterations", "3", "-o", "run.parquet", "--force", cwd=tmp_path)
        words = ("--map", built("hand_mlp"), "--store", place)
        check_cli("store", "add", "run.parquet", *words, cwd=tmp_path)
        found = json_cli("store", "list", "--store", place, cwd=tmp_path)
        assert len(found["runs"]) == 1
        assert json_cli("store", "query", "--store", place, cwd=tmp_path)["groups"]
