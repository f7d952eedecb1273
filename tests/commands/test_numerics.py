"""`tracemap numerics`: right programs have no finding; NaN and wrong kernels are named with op and line."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tracemap
from tests.conftest import Built, Recorded
from tests.gpu import OnGpu
from tests.schemas import validator
from tests.support import SAMPLES, Json, check_cli, json_cli, run_cli
from tests.terminals import on_terminal
from tracemap.core.units import UNKNOWN
from tracemap.hook.compiling import FOLDER, LIBRARY_NAME
from tracemap.kernels.model import Numerics
from tracemap.map.bundle import NUMERICS_NAME, load
from tracemap.results.attribution import Attribution

pytestmark = pytest.mark.skipif(
    not (FOLDER / LIBRARY_NAME).is_file(),
    reason="the hook's library is not built: no C compiler when tracemap was installed",
)

HEAD = """#rows = affine_map<(i, j) -> (i)>
#all = affine_map<(i, j) -> (i, j)>
func.func @f(%x: tensor<8x64xf32>, %y: tensor<8x64xf32>) -> tensor<8x64xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<8x64xf32>
"""
LOG = """  %0 = linalg.generic {indexing_maps = [#all, #all, #all], iterator_types = ["parallel", "parallel"]}
      ins(%x, %y : tensor<8x64xf32>, tensor<8x64xf32>) outs(%e : tensor<8x64xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %d = arith.subf %a, %b : f32
    %l = math.log %d : f32
    linalg.yield %l : f32
  } -> tensor<8x64xf32>
  return %0 : tensor<8x64xf32>
}
"""
SIGMOID = """  %one = arith.constant 1.0 : f32
  %0 = linalg.generic {indexing_maps = [#all, #all, #all], iterator_types = ["parallel", "parallel"]}
      ins(%x, %y : tensor<8x64xf32>, tensor<8x64xf32>) outs(%e : tensor<8x64xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %n = math.exp %a : f32
    %p = arith.addf %n, %one : f32
    %q = arith.divf %n, %p : f32
    %r = arith.mulf %q, %b : f32
    linalg.yield %r : f32
  } -> tensor<8x64xf32>
  return %0 : tensor<8x64xf32>
}
"""
CENTRED = """  %g = tensor.empty() : tensor<8xf32>
  %count = arith.constant 64.0 : f32
  %f = linalg.fill ins(%zero : f32) outs(%g : tensor<8xf32>) -> tensor<8xf32>
  %0 = linalg.generic {indexing_maps = [#all, #rows], iterator_types = ["parallel", "reduction"]}
      ins(%x : tensor<8x64xf32>) outs(%f : tensor<8xf32>) {
  ^bb0(%a: f32, %o: f32):
    %s = arith.addf %a, %o : f32
    linalg.yield %s : f32
  } -> tensor<8xf32>
  %1 = linalg.generic {indexing_maps = [#all, #rows, #all, #all], iterator_types = ["parallel", "parallel"]}
      ins(%x, %0, %y : tensor<8x64xf32>, tensor<8xf32>, tensor<8x64xf32>) outs(%e : tensor<8x64xf32>) {
  ^bb0(%a: f32, %s: f32, %b: f32, %o: f32):
    %m = arith.divf %s, %count : f32
    %c = arith.subf %a, %m : f32
    %r = arith.mulf %c, %b : f32
    linalg.yield %r : f32
  } -> tensor<8x64xf32>
  return %1 : tensor<8x64xf32>
}
"""


@pytest.fixture(scope="module")
def copied(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Copies a model's bundle, once: `numerics` stores its result there."""
    folder = tmp_path_factory.mktemp("numerics")

    def copy(model: str) -> Path:
        bundle = folder / f"{model}.tracemap"
        return bundle if bundle.exists() else Path(shutil.copytree(built(model), bundle))

    return copy


def build(text: str, folder: Path, name: str) -> Path:
    (folder / f"{name}.mlir").write_text(text, encoding="utf-8")
    check_cli("build", folder / f"{name}.mlir", "-o", folder / f"{name}.tracemap")
    return folder / f"{name}.tracemap"


@pytest.fixture(scope="module")
def centred(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of a program that subtracts the mean of each row, and multiplies."""
    return build(HEAD + CENTRED, tmp_path_factory.mktemp("numerics"), "centred")


def with_status(*arguments: str | Path) -> tuple[int, Json]:
    done = run_cli("numerics", *arguments, "--format", "json")
    assert done.returncode in {0, 1}, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize(
    "model",
    [
        "hand_mlp",
        "hand_attention",
        "hand_dynamic",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("jax_mlp_train", "onnx_tinygpt", "torch_mlp")),
    ],
)
def test_a_right_program_has_no_finding(model: str, copied: Built) -> None:
    status, found = with_status(copied(model), "--flagfile", f"flags/{model}.flags")
    assert status == 0
    assert found["sites"]
    assert {site["verdict"] for site in found["sites"]} <= {"right", "not-verified"}
    assert sum(site["verdict"] == "right" for site in found["sites"]) >= len(found["sites"]) / 2
    assert found["culprit"] is None
    assert found["first_bad"] == []


def test_json_has_every_key(copied: Built) -> None:
    found = json_cli("numerics", copied("hand_mlp"))
    validator("numerics").validate(found)
    assert set(found) == set(Numerics.__struct_fields__)
    assert found["against"] == "kernels"
    for site in found["sites"]:
        assert site["calls"] == site["checked"] == 1
        assert site["isolated"]["max_rel"] <= site["isolated"]["tolerance"]
        assert site["accumulated"] is None
        assert all(output["elements"] > 0 and output["nans"] == 0 for output in site["outputs"])


def test_a_nan_is_named_with_its_op_and_operands(tmp_path: Path) -> None:
    """The logarithm of a negative number, behind a correct difference."""
    bundle = build(HEAD + LOG, tmp_path, "log")
    status, found = with_status(bundle, "--input=8x64xf32=1", "--input=8x64xf32=3")
    assert status == 1
    (bad,) = found["first_bad"]
    assert (bad["number"]["kind"], bad["number"]["operation"]) == ("nan", "math.log")
    assert bad["number"]["operands"] == ["-2"]
    assert found["sites"][0]["outputs"][0]["nans"] == 8 * 64
    assert found["culprit"]["site"] == bad["site"]
    done = run_cli("numerics", bundle, "--input=8x64xf32=1", "--input=8x64xf32=3")
    line = HEAD.count("\n") + 1
    assert done.returncode == 1
    assert re.search(rf"first wrong: op\d+ \S+ \(log\.mlir:{line}\) in site0: math\.log makes a NaN at ", done.stdout)
    assert run_cli("numerics", bundle, "--input=8x64xf32=3", "--input=8x64xf32=1").returncode == 0


def test_an_infinity_is_named_but_no_fault(tmp_path: Path) -> None:
    bundle = build(HEAD + LOG, tmp_path, "log")
    status, found = with_status(bundle, "--input=8x64xf32=1", "--input=8x64xf32=1")
    assert status == 0
    assert [bad["number"]["kind"] for bad in found["first_bad"]] == ["infinity"]


def test_overflow_and_underflow_inside_a_kernel_are_no_faults_of_it(tmp_path: Path) -> None:
    """Double precision, which has a larger range, sees neither: exp(100) and exp(-100) are normal numbers there."""
    bundle = build(HEAD + SIGMOID, tmp_path, "sigmoid")
    status, found = with_status(bundle, "--input=8x64xf32=-100", "--input=8x64xf32=1e12")
    assert (status, found["culprit"], found["first_bad"]) == (0, None, [])
    done = run_cli("numerics", bundle, "--input=8x64xf32=100", "--input=8x64xf32=1")
    assert done.returncode == 1
    assert "1 right, 0 wrong" in done.stdout
    assert "in site0: arith.divf makes a NaN at [0] of inf, inf" in done.stdout
    assert re.search(r"first infinity: .* in site0: math\.exp makes an infinity at \[0\] of 100\n", done.stdout)


@pytest.mark.parametrize("value", ["0.1", "1234.567", "1e-3"])
def test_a_constant_row_without_its_mean_is_no_fault(centred: Path, value: str) -> None:
    """Its result is rounding only, of which no digit is right."""
    status, found = with_status(centred, f"--input=8x64xf32={value}", "--input=8x64xf32=3")
    assert status == 0, found["culprit"]
    assert all(site["verdict"] != "wrong" for site in found["sites"])


def test_another_build_names_the_changed_op(centred: Path, tmp_path: Path) -> None:
    text = (HEAD + CENTRED).replace("arith.subf %a, %m", "arith.addf %a, %m")
    edited = build(text, tmp_path, "edited")
    status, found = with_status(edited, "--against", centred)
    assert status == 1
    assert found["against"] == str(centred)
    assert any(departure["departs"] for departure in found["departures"])
    done = run_cli("numerics", edited, "--against", centred)
    line = text[: text.index("%1 = ")].count("\n") + 1
    assert re.search(rf"first wrong: op\d+ \S+ \(edited\.mlir:{line}\) in site", done.stdout), done.stdout


@pytest.mark.long
def test_a_replaced_kernel_is_wrong_against_the_original(centred: Path, tmp_path: Path) -> None:
    """Its op and dispatch site are named, with the operation that differs."""
    names = re.findall(r'"(f_dispatch_\w+)"', json.dumps(json_cli("show", centred)))
    sources = {name: check_cli("swap", centred, name, "--dump", "source") for name in dict.fromkeys(names)}
    (name,) = (name for name, text in sources.items() if "arith.subf" in text)
    wrong = tmp_path / "wrong.mlir"
    wrong.write_text(sources[name].replace("arith.subf", "arith.addf"), encoding="utf-8")
    done = run_cli("swap", centred, f"{name}={wrong}", "-o", tmp_path / "new.tracemap", "--pairs", "0")
    assert done.returncode == 1, done.stderr
    status, found = with_status(tmp_path / "new.tracemap", "--against", centred)
    assert status == 1
    assert found["culprit"]["kernel"] == name
    (site,) = (site for site in found["sites"] if site["verdict"] == "wrong")
    assert site["site"] == found["culprit"]["site"]
    assert "arith.addf" in site["explanation"]
    assert site["wrong"]["value"] != site["wrong"]["expected"]


@pytest.mark.long
def test_an_op_whose_dispatch_has_no_counterpart_is_named(copied: Built, tmp_path: Path) -> None:
    """A fault that changes how ops are fused leaves nothing to compare but the results of the function."""
    original = copied("fx_mlp_linalg")
    text = (SAMPLES / "models" / "fx_mlp_linalg.mlir").read_text(encoding="utf-8")
    changed = build(text.replace("arith.subf %in, %in_6", "arith.subf %in_6, %in"), tmp_path, "changed")
    status, found = with_status(changed, "--against", original)
    assert status == 1
    assert not any(departure["departs"] for departure in found["departures"])
    line = text[: text.index("arith.subf")].count("\n") + 1
    ops = load(changed).graph.ops
    (op,) = (op for op in ops if any(part.line == line for part in op.parts))
    assert found["culprit"]["ops"][0] == op.id


def test_errors_accumulate(copied: Built) -> None:
    """The first dispatch has exact inputs, the last one those of the program."""
    found = json_cli("numerics", copied("hand_mlp"), "--against", "f64")
    assert found["against"] == "f64"
    first, *_, last = found["sites"]
    assert first["accumulated"] == first["isolated"]
    assert last["accumulated"]["max_rel"] > last["isolated"]["max_rel"]


def test_statistics_alone_compare_nothing(copied: Built) -> None:
    found = json_cli("numerics", copied("hand_mlp"), "--statistics")
    assert {site["verdict"] for site in found["sites"]} == {"not-verified"}
    assert {site["reason"] for site in found["sites"]} == {"only statistics were requested"}
    checked = json_cli("numerics", copied("hand_mlp"))
    assert [site["outputs"] for site in found["sites"]] == [site["outputs"] for site in checked["sites"]]


def test_the_same_program_has_the_same_numerics(copied: Built) -> None:
    first, second = (check_cli("numerics", copied("hand_mlp"), "--format", "json") for _ in range(2))
    assert first == second


def test_generated_integers_are_noted(tmp_path: Path) -> None:
    """They are zeros, which verify little."""
    text = "func.func @f(%x: tensor<8xi8>) -> tensor<8xi8> {\n  %0 = arith.addi %x, %x : tensor<8xi8>\n"
    bundle = build(text + "  return %0 : tensor<8xi8>\n}\n", tmp_path, "integers")
    (note,) = json_cli("numerics", bundle)["diagnostics"]
    assert note["slug"] == "zero-inputs"
    assert not json_cli("numerics", bundle, "--input", "8xi8=3")["diagnostics"]


def test_an_empty_input_is_not_noted(copied: Built) -> None:
    assert not json_cli("numerics", copied("hand_dynamic"), "--dim", "0")["diagnostics"]


# ---- next to costs


def errors_of(result: Attribution) -> dict[str, tuple[object, object]]:
    return {site.site: (site.errors.isolated_ulps, site.errors.accumulated_ulps) for site in result.sites}


def test_errors_are_next_to_costs(copied: Built, recorded: Recorded) -> None:
    """The stored errors, rounded up, are those of each site, and the largest of an op, line and kernel."""
    bundle, run = copied("hand_attention"), recorded("hand_attention")
    found = json_cli("numerics", bundle, "--against", "f64")
    result = tracemap.attribute(run, bundle)
    expected = {
        site["site"]: tuple(math.ceil(site[error]["max_ulps"]) for error in ("isolated", "accumulated"))
        for site in found["sites"]
    }
    assert errors_of(result) == expected
    columns = result._columns()
    members = {site.id: [member.op for member in site.members] for site in load(bundle).graph.sites}
    for op, error, accumulated in zip(columns["op"], columns["error_ulps"], columns["accumulated_ulps"], strict=True):
        own = [expected[site] for site, ops in members.items() if op in ops and site in expected]
        assert (error, accumulated) == tuple(map(max, zip(*own, strict=True)))
    table = check_cli(
        "attribute", run, "--map", bundle, "--by", "kernel", "--columns", "kernel,error", "--sort", "error"
    )
    largest = max(error for error, _ in expected.values())
    assert table.splitlines()[5].split()[-1] == str(largest)


def test_errors_of_another_module_are_not_shown(copied: Built, recorded: Recorded, tmp_path: Path) -> None:
    """Nor those of another function; damaged ones are refused in a sentence."""
    bundle = Path(shutil.copytree(copied("hand_mlp"), tmp_path / "m.tracemap"))
    check_cli("numerics", bundle)
    run, file = recorded("hand_mlp"), bundle / NUMERICS_NAME
    assert any(isinstance(error, int) for error, _ in errors_of(tracemap.attribute(run, bundle)).values())
    stored = json.loads(file.read_text(encoding="utf-8"))
    for key, value in (("module_sha256", "0" * 64), ("function", "other")):
        file.write_text(json.dumps({**stored, key: value}), encoding="utf-8")
        result = tracemap.attribute(run, bundle)
        assert set(errors_of(result).values()) == {(UNKNOWN, UNKNOWN)}
        assert "error_ulps" not in result._columns()
    stored["sites"][0]["isolated"]["max_ulps"] = 1e308  # stands for infinity
    file.write_text(json.dumps(stored), encoding="utf-8")
    assert "infinite" in check_cli("attribute", run, "--map", bundle, "--sort", "error").splitlines()[5]
    assert "error ulps" in on_terminal(40, "attribute", run, "--map", bundle, "--sort", "error")
    file.write_text("{", encoding="utf-8")
    done = run_cli("attribute", run, "--map", bundle)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "numerics.json: damaged" in done.stderr
    assert "run `tracemap numerics` again" in done.stderr


def test_a_result_that_cannot_be_stored_is_noted(copied: Built, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(copied("hand_mlp"), tmp_path / "m.tracemap"))
    (bundle / NUMERICS_NAME).unlink(missing_ok=True)
    (bundle / NUMERICS_NAME).mkdir()
    (note,) = json_cli("numerics", bundle)["diagnostics"]
    assert note["slug"] == "numerics-not-stored"


def test_kernels_with_odd_names_are_in_their_sites(tmp_path: Path) -> None:
    text = 'func.func @"../a\\0A%d <b>"(%x: tensor<8xf32>) -> tensor<8xf32> {\n  %0 = math.exp %x : tensor<8xf32>\n'
    bundle = build(text + "  return %0 : tensor<8xf32>\n}\n", tmp_path, "odd")
    found = json_cli("numerics", bundle)
    assert ([site["site"] for site in found["sites"]], found["diagnostics"]) == (["site0"], [])


def test_wrong_results_are_a_note_next_to_costs(tmp_path: Path) -> None:
    bundle = build(HEAD + LOG, tmp_path, "log")
    check_cli("record", bundle, "--iterations", "2")
    assert run_cli("numerics", bundle).returncode == 1
    noted = json_cli("attribute", bundle)["diagnostics"]
    (note,) = [note for note in noted if note["slug"] == "wrong-results"]
    assert "tracemap numerics log.tracemap" in note["message"]


# ---- tables


def test_a_table_of_some_rows(copied: Built) -> None:
    shown = check_cli("numerics", copied("hand_attention"), "--top", "2")
    assert "… 8 more dispatches" in shown
    assert len(re.findall(r"^site\d", shown, re.MULTILINE)) == 2


# ---- errors


def sentence(*arguments: str | Path) -> str:
    """The only line that a command says, which ends with status 2."""
    done = run_cli("numerics", *arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    return line


def test_a_missing_bundle_to_compare_with(copied: Built) -> None:
    assert "--against nowhere" in sentence(copied("hand_mlp"), "--against", "nowhere")


def test_a_folder_that_is_no_bundle(copied: Built, tmp_path: Path) -> None:
    assert "bundle" in sentence(copied("hand_mlp"), "--against", tmp_path)


def test_dynamic_shapes_need_sizes(copied: Built) -> None:
    assert "--dim N" in sentence(copied("hand_dynamic"))
    assert json_cli("numerics", copied("hand_dynamic"), "--dim", "8")["culprit"] is None


def test_kernels_of_a_gpu_are_refused(on_gpu: OnGpu) -> None:
    assert "cuda" in sentence(on_gpu("hand_mlp")).lower()


def test_a_bundle_without_its_kernels_is_refused(copied: Built, tmp_path: Path) -> None:
    copy = tmp_path / "m.tracemap"
    shutil.copytree(copied("hand_mlp"), copy)
    for file in (copy / "kernels").glob("configured*"):
        file.unlink()
    assert "before code generation" in sentence(copy)


def test_a_missing_library_is_one_sentence(copied: Built, tmp_path: Path) -> None:
    """In a copy of the package without it."""
    shutil.copytree(SAMPLES.parent / "tracemap", tmp_path / "tracemap", ignore=shutil.ignore_patterns("*.so"))
    command = [sys.executable, "-m", "tracemap", "numerics", str(copied("hand_mlp"))]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "[tool-missing]" in done.stderr
    assert len(done.stderr.splitlines()) == 1
