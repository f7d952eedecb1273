"""The Python API does what the commands do, and returns their objects."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest

import tracemap
from tests.conftest import Built
from tests.support import SAMPLES, check_cli
from tracemap.capture.inputs import array_inputs
from tracemap.core.codec import pretty_json
from tracemap.core.errors import (
    BundleInvalid,
    FunctionUnknown,
    InputInvalid,
    ModelUnreadable,
    TargetExists,
    UsageInvalid,
)
from tracemap.core.toolchain import find_tool
from tracemap.hook.compiling import FOLDER, LIBRARY_NAME
from tracemap.options.measure import RecordOptions
from tracemap.reports.cost_lookup import MapCosts
from tracemap.reports.json_documents import shown_attribution
from tracemap.runs.runfile import read_run

MLP = SAMPLES / "models" / "hand_mlp.mlir"


@pytest.mark.long
def test_the_whole_job_in_python(tmp_path: Path) -> None:
    bundle = tracemap.build(MLP, tmp_path / "mlp.tracemap")
    run = tracemap.record(bundle, iterations=4, warmup=1, serial=True)
    assert run.path.parent == bundle.runs_path
    for result in (tracemap.attribute([run.path], bundle), tracemap.attribute([run.path], rule="equal")):
        (cpu, _) = result.metrics
        assert (cpu.name, cpu.unattributed) == ("cpu_ns", 0)
        assert sum(op.metrics["cpu_ns"].attributed for op in result.ops) == cpu.measured
        assert all(site.calls == 4 for site in result.sites)
    assert tracemap.load(bundle.path).graph == bundle.graph


@pytest.mark.long
def test_what_the_commands_write_is_written(tmp_path: Path) -> None:
    """Options mean the same in Python as in the shell; paths may be texts, and bundles their paths."""
    bundle = str(tracemap.build(MLP, tmp_path / "mlp.tracemap", no_sources=True).path)
    run = str(tmp_path / "run.csv")
    asked = RecordOptions(iterations=4, flagfile=SAMPLES / "flags" / "hand_mlp.flags", serial=True)
    tracemap.record(bundle, run, asked, warmup=1)
    written, page, report = tmp_path / "ops.json", tmp_path / "costs.html", tmp_path / "page.html"
    result = tracemap.attribute([run], bundle, format="json", output=str(written), html=str(page), rule="root")
    assert written.read_text() == check_cli("attribute", run, "--map", bundle, "--rule", "root", "--format", "json")
    assert result.bundle is not None
    gains = MapCosts(result.bundle.graph, result).ranked_gains
    assert written.read_text() == pretty_json(shown_attribution(result, gains))
    assert [change.gain for change in gains[:1]] == [result.what_if(op=gains[0].target)]
    columns = result._columns()
    assert columns["gain_ns"][columns["op"].index(gains[0].target)] == gains[0].gain.saved_ns
    tracemap.report(bundle, str(report), [run], rule="root")
    assert report.read_bytes() == page.read_bytes()
    report.write_text("of another program")
    with pytest.raises(TargetExists):
        tracemap.report(bundle, report)
    tracemap.report(bundle, report, force=True)
    assert report.read_bytes() != page.read_bytes()


@pytest.mark.long
def test_recording_samples_and_counts(tmp_path: Path) -> None:
    if not (FOLDER / LIBRARY_NAME).is_file():
        pytest.skip("the hook was not built")
    bundle = tracemap.build(MLP, tmp_path / "mlp.tracemap")
    counters = "page-faults,context-switches"
    run = tracemap.record(bundle, iterations=400, warmup=1, sample_hz=5000, counters=counters, counters_per_pass=1)
    said = {item.slug for item in run.header.diagnostics}
    assert "sampled" in said
    names = {metric.name for metric in read_run(run.path).metrics}
    assert {"samples", "page-faults", "context-switches"} <= names


@pytest.mark.long
def test_temporary_files_of_runs_go_with_the_call(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an `.ireeprof` is converted to is there for as long as it is read, not for as long as the program runs."""
    profile, bundle = tmp_path / "mlp.ireeprof", built("hand_mlp")
    command = [find_tool("iree-benchmark-module"), "--device=local-task", f"--module={bundle / 'module.vmfb'}"]
    flags = (SAMPLES / "flags" / "hand_mlp.flags").read_text().split()
    profiled = [
        "--benchmark_min_time=1x",
        "--device_profiling_mode=queue-events,host-execution",
        f"--device_profiling_output={profile}",
    ]
    subprocess.run([*map(str, command), *flags, *profiled], cwd=SAMPLES, check=True, capture_output=True)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    assert tracemap.attribute([profile], bundle).ops
    assert not list((tmp_path / "temporary").iterdir())


def test_options_that_do_not_exist() -> None:
    with pytest.raises(TypeError, match="'iterations'"):
        tracemap.record("any.tracemap", iteration=7)
    with pytest.raises(UsageInvalid, match="list"):
        tracemap.lower(MLP, "builtin.module(cse)")


def test_errors_are_the_same(tmp_path: Path) -> None:
    with pytest.raises(ModelUnreadable):
        tracemap.build(tmp_path / "none.mlir", tmp_path / "a.tracemap")
    with pytest.raises(BundleInvalid):
        tracemap.load(tmp_path)
    bundle = tracemap.build(MLP, tmp_path / "mlp.tracemap")
    with pytest.raises(FunctionUnknown):
        tracemap.record(bundle, function="nobody")


ADD = """func.func @add(%a: tensor<4x?xf32>, %b: tensor<4x1xf32>, %n: i32, %mask: tensor<4xi1>) -> tensor<4x1xf32> {
  %0 = stablehlo.tanh %b : tensor<4x1xf32>
  return %0 : tensor<4x1xf32>
}"""


@pytest.mark.long
def test_a_model_is_also_its_text_or_its_bytes(tmp_path: Path) -> None:
    bundles = [tracemap.build(model, tmp_path / f"{type(model).__name__}.tracemap") for model in (ADD, ADD.encode())]
    assert bundles[0].graph == bundles[1].graph
    assert {op.file for op in bundles[0].graph.ops} == {"<string>"}
    with pytest.raises(UsageInvalid, match="pass output"):
        tracemap.build(ADD)
    with pytest.raises(ModelUnreadable, match=r"^missing\.mlir: "):
        tracemap.build("missing.mlir", tmp_path / "missing.tracemap")
    (stage, _) = tracemap.lower(ADD, ["builtin.module(cse)"]).stages
    assert "stablehlo.tanh" in stage.text


def test_inputs_are_also_arrays_and_numbers(tmp_path: Path) -> None:
    """What the module computes of an array is what numpy computes of it."""
    bundle = tracemap.build(ADD, tmp_path / "add.tracemap")
    column = np.linspace(0, 1, 4, dtype=np.float32).reshape(4, 1)
    values: list[object] = [np.ones((4, 3), np.float32), column, 3, np.array([True, False, True, True])]
    run = tracemap.record(bundle, inputs=values, iterations=2)
    assert run.header.inputs == (
        "4x3xf32: given as an array",
        "4x1xf32: given as an array",
        "3",
        "4xi1: given as an array",
    )
    flag = [f"--output=@{tmp_path / 'out.npy'}"]
    specs = tmp_path / "inputs"
    specs.mkdir()
    made = array_inputs(bundle.graph.functions[0], values, specs)
    command = [find_tool("iree-run-module"), "--device=local-sync", f"--module={bundle.module_path}", "--function=add"]
    subprocess.run([*map(str, command), *flag, *(f"--input={one.spec}" for one in made if one)], check=True)
    assert np.allclose(np.load(tmp_path / "out.npy"), np.tanh(column), atol=1e-6)


@pytest.mark.long
def test_truth_values_of_python_and_of_numpy_are_numbers(tmp_path: Path) -> None:
    model = """func.func @pick(%p: i1, %a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
      %0 = arith.select %p, %a, %b : tensor<4xf32>
      return %0 : tensor<4xf32>
    }"""
    bundle = tracemap.build(model, tmp_path / "pick.tracemap")
    one, two = np.ones(4, np.float32), np.full(4, 2, np.float32)
    for truth in (True, False, np.True_, np.False_):
        (found,) = tracemap.run(bundle, inputs=[truth, one, two])
        assert np.array_equal(found, one if truth else two)
        first, *_ = array_inputs(bundle.graph.functions[0], [truth, one, two], tmp_path)
        assert first
        assert (first.spec, first.said) == (("1", "1") if truth else ("0", "0"))


def test_inputs_may_have_the_names_of_their_arguments(tmp_path: Path) -> None:
    bundle = tracemap.build(ADD, tmp_path / "add.tracemap")
    a, b = np.full((4, 3), 2, np.float32), np.full((4, 1), 3, np.float32)
    arguments = bundle.graph.functions[0].arguments
    values = dict(zip([argument.name for argument in arguments], (a, b, 3, np.zeros(4, bool)), strict=True))
    expected = [*tracemap.run(bundle, inputs=list(values.values()))]
    for given in (values, dict(reversed(values.items()))):
        for left, right in zip(tracemap.run(bundle, inputs=given), expected, strict=True):
            assert np.array_equal(left, right)
    run = tracemap.record(bundle, inputs={arguments[1].name: b, arguments[2].name: "3"}, dim=3, iterations=2)
    assert [said.partition(" (")[0] for said in run.header.inputs][1:3] == ["4x1xf32: given as an array", "3"]
    assert run.header.inputs[0].endswith("(made up)")
    with pytest.raises(InputInvalid, match=r"no argument has the name 'z'; its arguments are: a, "):
        tracemap.record(bundle, inputs={"z": b})


@pytest.mark.parametrize(
    ("number", "value", "said"),
    [
        (0, np.ones((3, 3), np.float32), r"argument a \(tensor<4x\?xf32>\) cannot be an array of 3x3, float32"),
        (1, np.ones((4, 1), np.float64), r"cannot be an array of 4x1, float64"),
        (3, np.ones(4, np.int8), r"cannot be an array of 4, int8"),
    ],
)
def test_arrays_of_another_type_are_refused(number: int, value: object, said: str, tmp_path: Path) -> None:
    bundle = tracemap.build(ADD, tmp_path / "add.tracemap")
    values = [np.ones((4, 3), np.float32), np.ones((4, 1), np.float32), 3, np.zeros(4, bool)]
    with pytest.raises(InputInvalid, match=said):
        tracemap.record(bundle, inputs=[*values[:number], value, *values[number + 1 :]])
    with pytest.raises(InputInvalid, match="takes 4 inputs"):
        tracemap.record(bundle, inputs=[value])


@pytest.mark.long
def test_results_tell_what_their_ops_are(tmp_path: Path) -> None:
    bundle = tracemap.build(MLP, tmp_path / "mlp.tracemap")
    result = tracemap.attribute([tracemap.record(bundle, iterations=2).path], bundle)
    ops = bundle.graph.op_by_id
    assert [(op.name, op.file, op.line) for op in result.ops] == [
        (ops[op.op].name, ops[op.op].file, ops[op.op].line) for op in result.ops
    ]
    assert all(len(repr(value)) < 300 for value in (bundle, bundle.graph, result))
    assert "cpu_ns" in repr(result)
    assert f"{len(bundle.graph.ops)} ops" in repr(bundle)
