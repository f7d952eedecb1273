"""Runs of other tools, read as they are: samples that the tools made, beside a truth made otherwise."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.conftest import Built
from tests.hook import support
from tests.support import Json, check_cli, json_cli, run_cli
from tracemap.toolchain import find_tool

MLP = ("--flagfile=flags/hand_mlp.flags",)
"""What the perceptron is called with; the tools run in the folder of the samples."""


@pytest.fixture(scope="module")
def profile(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three calls of the perceptron's bundle, profiled without tracemap."""
    target = tmp_path_factory.mktemp("profile") / "mlp.ireeprof"
    tool = support.tool_command("iree-benchmark-module", module_of(built), "local-task", support.PROFILING)
    support.run([*tool, f"--device_profiling_output={target}"])
    return target


def module_of(built: Built) -> Path:
    return built("hand_mlp") / "module.vmfb"


def printed(profile: Path, target: Path, *options: str) -> Path:
    """What iree-profile prints of a profile."""
    target.write_text(support.run([find_tool("iree-profile"), *options, profile]), encoding="utf-8")
    return target


def attributed(run: Path, bundle: Path, *options: str) -> Json:
    return json_cli("attribute", run, "--map", bundle, *options)


def refusal(run: Path, bundle: Path, *options: str | Path) -> str:
    """The one sentence with which a file is refused."""
    done = run_cli("attribute", run, "--map", bundle, *options)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    return done.stderr


def without_diagnostics(result: Json) -> Json:
    return {key: value for key, value in result.items() if key != "diagnostics"}


# ---- iree-profile


def test_an_export_tells_what_its_profile_tells(profile: Path, built: Built, tmp_path: Path) -> None:
    """Whatever the file is called, and through a pipe."""
    bundle = built("hand_mlp")
    export = printed(profile, tmp_path / "profile.txt", "export", "--format=ireeperf-jsonl", "--output=-")
    told = attributed(export, bundle)
    assert without_diagnostics(told) == without_diagnostics(attributed(profile, bundle))
    assert told["metrics"][0]["measured"] > 0
    piped = run_cli("attribute", "-", "--map", bundle, "--format", "json", stdin=export.read_bytes())
    assert without_diagnostics(json.loads(piped.stdout)) == without_diagnostics(told)
    check_cli("report", bundle, export, "-o", tmp_path / "page.html")
    check_cli("diff", export, profile, "--map-a", bundle, "--map-b", bundle)
    check_cli("export", export, "--map", bundle, "--to", "speedscope", "-o", tmp_path / "run.speedscope.json")


def test_an_export_that_is_none_is_refused(profile: Path, built: Built, tmp_path: Path) -> None:
    bundle = built("hand_mlp")
    export = printed(profile, tmp_path / "run.jsonl", "export", "--format=ireeperf-jsonl", "--output=-")
    text = export.read_text(encoding="utf-8")
    export.write_text(text[: len(text) // 2], encoding="utf-8")
    assert "run.jsonl: not an export of iree-profile: " in refusal(export, bundle)
    export.write_text(text.partition("\n")[0] + "\n", encoding="utf-8")
    assert refusal(export, bundle).endswith("[run-empty]\n")
    export.write_text(text.replace('"schema_version":15', '"schema_version":14'), encoding="utf-8")
    assert refusal(export, bundle).endswith("[run-version]\n")
    (tmp_path / "other.json").write_text('{"traceEvents": []}', encoding="utf-8")
    assert "is JSON, but none that is read as a run" in refusal(tmp_path / "other.json", bundle)


def test_a_profile_may_be_called_anything(profile: Path, built: Built, tmp_path: Path) -> None:
    shutil.copy(profile, tmp_path / "run.csv")
    bundle = built("hand_mlp")
    assert without_diagnostics(attributed(tmp_path / "run.csv", bundle)) == without_diagnostics(
        attributed(profile, bundle)
    )
