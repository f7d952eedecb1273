"""`record --counters`: events of a second execution on the dispatches of the first, and on ops."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

import tracemap
from tests.conftest import Built
from tests.hook import support
from tests.hook.test_host import HERE, compile_c
from tests.recording import events
from tests.support import Corpus, check_cli, command_line, json_cli, run_cli
from tracemap.capture.counters import events_to_count
from tracemap.core.errors import EventUnavailable
from tracemap.hook import environment
from tracemap.hook.compiling import FOLDER, LIBRARY_NAME, HookUnavailable
from tracemap.runs.runfile import read_run

# The first op writes 16 MiB that nobody has touched yet; the second only reads them.
FIRST_TOUCH = """
module @first_touch {
  func.func @main(%x: tensor<2048x2048xf32>) -> tensor<2048xf32> {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %wide = stablehlo.exponential %x : tensor<2048x2048xf32>
    %fixed = util.optimization_barrier %wide : tensor<2048x2048xf32>
    %sum = stablehlo.reduce(%fixed init: %zero) applies stablehlo.add across dimensions = [1]
      : (tensor<2048x2048xf32>, tensor<f32>) -> tensor<2048xf32>
    return %sum : tensor<2048xf32>
  }
}
"""


@pytest.fixture(autouse=True)
def hook() -> None:
    """Skips where the library is not built, or page faults cannot be counted."""
    if not (FOLDER / LIBRARY_NAME).is_file():
        pytest.skip("the hook's library is not built: no C compiler when tracemap was installed")
    try:
        events_to_count(["page-faults"])
    except EventUnavailable as error:
        pytest.skip(str(error))


def diagnostics(run: Path) -> dict[str, str]:
    header = json.loads(run.with_name(run.name + ".json").read_text(encoding="utf-8"))
    return {item["slug"]: item["message"] for item in header["diagnostics"]}


@pytest.mark.long
def test_page_faults_of_a_first_touch_land_on_the_op_that_writes(tmp_path: Path) -> None:
    model, run = tmp_path / "first_touch.mlir", tmp_path / "run.csv"
    model.write_text(FIRST_TOUCH, encoding="utf-8")
    check_cli("build", model, cwd=tmp_path)
    options = ("--iterations", "1", "--warmup", "0", "--counters", "page-faults,task-clock")
    check_cli("record", "first_touch.tracemap", *options, "-o", run, cwd=tmp_path)
    attribution = json_cli("attribute", run, cwd=tmp_path)
    names = {op["id"]: op["name"] for op in json_cli("show", "first_touch.tracemap", cwd=tmp_path)["ops"]}
    faults = {
        names[op["op"]]: op["metrics"]["page-faults"]["attributed"]
        for op in attribution["ops"]
        if "page-faults" in op["metrics"]
    }
    (metric,) = (metric for metric in attribution["metrics"] if metric["name"] == "page-faults")
    assert (
        metric["attributed"] + metric["unattributed"]
        == metric["measured"]
        == sum(row["page-faults"] or 0 for row in events(run))
    )
    assert faults["stablehlo.exponential"] > 100
    assert faults["stablehlo.exponential"] > 0.9 * metric["measured"]
    assert "counted-apart" in diagnostics(run)
    assert "counters-unmatched" not in diagnostics(run)


@pytest.mark.long
@pytest.mark.parametrize("flags", ["jax_gpt2_4l", "hand_constexpr", "hand_loop"])
@pytest.mark.parametrize("serial", [True, False])
def test_every_dispatch_is_counted(flags: str, serial: bool, samples: Corpus, built: Built, tmp_path: Path) -> None:
    run = tmp_path / "run.csv"
    options = ["--iterations", "2", "--counters", "task-clock", *(["--serial"] if serial else [])]
    samples.record(flags, built(samples.model_of(flags)), run, options)
    assert "counters-unmatched" not in diagnostics(run)
    dispatches = [row for row in events(run) if row["kind"] == "dispatch"]
    assert dispatches
    assert all(row["task-clock"] > 0 for row in dispatches)
    assert all(row["task-clock"] is None for row in events(run) if row["kind"] != "dispatch")


@pytest.mark.parametrize("names", ["page-fault", "page-faults,nothing/event=1/", "page-faults,page-faults"])
def test_an_event_that_cannot_be_counted_stops_before_the_run(names: str, built: Built, tmp_path: Path) -> None:
    done = run_cli("record", built("hand_mlp"), "--counters", names, "-o", tmp_path / "run.csv")
    assert done.returncode == 2
    assert done.stderr.endswith("[event-unavailable]\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_a_module_without_work_has_no_counts(tmp_path: Path) -> None:
    support.need_compiler()
    model = tmp_path / "host.mlir"
    model.write_text("func.func @main(%a: i32) -> i32 {\n  return %a : i32\n}\n", encoding="utf-8")
    check_cli("build", model, cwd=tmp_path)
    check_cli("record", "host.tracemap", "--counters", "page-faults", "-o", tmp_path / "run.csv", cwd=tmp_path)
    assert "no-events" in diagnostics(tmp_path / "run.csv")


@pytest.mark.long
def test_events_of_several_passes_are_counted_on_the_same_dispatches(built: Built, tmp_path: Path) -> None:
    """Page faults and minor faults, each in an execution of its own, are the same: no page comes from a disk."""
    names = ("page-faults", "minor-faults", "task-clock")
    run = tmp_path / "run.csv"
    options = ("--warmup", "0", "--iterations", "2", "--serial", "--counters", ",".join(names))
    check_cli("record", built("hand_convnet"), *options, "--counters-per-pass", "1", "-o", run)
    rows = [row for row in events(run) if row["kind"] == "dispatch"]
    assert len(rows) == 2 * 9
    made = json_cli("attribute", run, "--map", built("hand_convnet"))
    units = {metric["name"]: metric["unit"] for metric in made["metrics"] if metric["name"] in names}
    assert units == {"page-faults": "count", "minor-faults": "count", "task-clock": "ns"}
    assert all(row[name] is not None for row in rows for name in names)
    assert all(row["task-clock"] > 0 for row in rows)
    totals = [sum(row[name] for row in rows) for name in names[:2]]
    assert totals[0] > 20
    assert abs(totals[0] - totals[1]) <= 2
    told = diagnostics(run)["counted-apart"]
    assert "page-faults; minor-faults; task-clock: counted in 3 additional executions" in told
    together = tmp_path / "together.csv"
    check_cli("record", built("hand_convnet"), *options, "-o", together)
    assert "in a second execution" in diagnostics(together)["counted-apart"]


def test_a_pass_holds_at_least_one_event(built: Built, tmp_path: Path) -> None:
    options = ("--counters", "page-faults", "--counters-per-pass", "0")
    done = run_cli("record", built("hand_convnet"), *options, "-o", tmp_path / "run.csv")
    assert done.returncode == 2
    assert "--counters-per-pass" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
@pytest.mark.parametrize("words", [("--counters", "page-faults"), ("--sample", "997")], ids=lambda words: words[0])
def test_what_is_preloaded_is_preloaded_where_events_are_counted(
    words: tuple[str, str], built: Built, made: Path, tmp_path: Path
) -> None:
    """Counts and samples are joined to times: of another allocator they would be those of another program."""
    another = compile_c(made / "another.so", "-shared", "-fPIC", HERE / "another.c")
    log = tmp_path / "log"
    command = command_line("record", built("hand_mlp"), "--iterations", "3", *words, "-o", tmp_path / "run.csv")
    variables = {**os.environ, "LD_PRELOAD": str(another), "ANOTHER_LOG": str(log)}
    subprocess.run(command, env=variables, capture_output=True, check=True)
    assert "recorded" in log.read_text(encoding="utf-8").split()


def test_an_installation_in_a_folder_with_a_blank_is_preloaded(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LD_PRELOAD is cut at blanks and colons."""
    folder = tmp_path / "a folder: with both"
    folder.mkdir()
    shutil.copy(FOLDER / LIBRARY_NAME, folder)
    monkeypatch.setattr("tracemap.hook.FOLDER", folder)
    tracemap.record(built("hand_mlp"), tmp_path / "run.csv", iterations=3, counters=("page-faults",))
    found = read_run(tmp_path / "run.csv")
    assert "page-faults" in {metric.name for metric in found.metrics}
    assert "no-counters" not in {each.slug for each in found.header.diagnostics}
    with pytest.raises(HookUnavailable, match="splits at blanks and colons"):
        environment(folder)
