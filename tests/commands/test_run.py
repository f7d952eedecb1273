"""`tracemap run`: outputs printed, written and compared; numpy and iree-run-module are the truth."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import tracemap
from tests.conftest import Built
from tests.support import ROOT, check_cli, interruptible, run_cli
from tracemap.core.errors import FunctionUnknown, InputInvalid, OutputInvalid, OutputsDiffer, UsageInvalid
from tracemap.core.toolchain import find_tool
from tracemap.kernels.model import Status

X = np.array([[0.5, 1.0, 2.0], [-3.0, 0.0, 10.0]], np.float32)
MIX = ("--function", "mix", "--input", "2x3xf32=0.5 1 2 -3 0 10", "--input", "21")
RIGHT = "2x3xf32=1.25 2 5 10 1 101"
DEADLINE_S = 60


def plain(bundle: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What IREE's own program does, without tracemap."""
    tool = [str(find_tool("iree-run-module")), "--device=local-task", f"--module={bundle / 'module.vmfb'}"]
    return subprocess.run([*tool, *arguments], capture_output=True, text=True, check=False)


def compared(bundle: Path, *expected: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run `mix`, with what is expected of its outputs."""
    return run_cli("run", bundle, *MIX, *(f"--expected-output={spec}" for spec in expected), *options)


# ---- printed


def test_outputs_are_printed_as_irees_own_program_prints_them(several: Path) -> None:
    own = plain(several, "--function=mix", "--input=2x3xf32=0.5 1 2 -3 0 10", "--input=21")
    assert "result[1]: i32=42" in own.stdout
    assert check_cli("run", several, *MIX) == own.stdout
    short = check_cli("run", several, *MIX, "--serial", "--", "--output_max_element_count=2")
    assert short == plain(several, *own.args[3:], "--output_max_element_count=2").stdout != own.stdout


def test_functions_without_inputs_are_called_at_once(several: Path) -> None:
    done = run_cli("run", several)
    assert done.returncode == 0
    assert done.stdout.startswith(plain(several, "--function=constants").stdout)
    assert done.stdout.count("EXEC @") == 2
    assert done.stderr == "not called, since they take inputs: mix, double, narrow; select a function with --function\n"


def test_names_of_functions_do_not_steer_terminals(several: Path) -> None:
    printed = check_cli("run", several)
    assert "EXEC @steers\\x1b[31m\nresult[0]: i32=7\n" in printed
    assert "\x1b" not in printed


def test_inputs_are_made_up_and_it_is_said(several: Path) -> None:
    done = run_cli("run", several, "--function", "double", "--dim", "2")
    assert done.returncode == 0
    assert "2x4xf32=" in done.stdout
    assert done.stderr == "input 0: 2x4xf32: random in [0, 0.1), seed 0 (made up)\n"


# ---- as arrays


def test_outputs_are_arrays_in_python(several: Path) -> None:
    mixed, twice = tracemap.run(several, function="mix", inputs=[X, 21])
    assert (mixed.dtype, mixed.shape) == (np.float32, (2, 3))
    np.testing.assert_array_equal(mixed, X * X + 1)
    assert (twice.dtype, twice.shape, int(twice)) == (np.int32, (), 42)
    rows = np.arange(20, dtype=np.float32).reshape(5, 4)
    (doubled,) = tracemap.run(several, function="double", inputs=[rows], serial=True)
    np.testing.assert_array_equal(doubled, 2 * rows)


def test_every_kind_of_element_is_read(several: Path) -> None:
    narrow, truth, scalar, empty, whole, half = tracemap.run(several, function="constants")
    assert narrow.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(narrow.astype(np.float32), np.full(4, 1.5, np.float32))
    assert (truth.dtype, truth.tolist()) == (np.bool_, [True, False, True])
    assert (scalar.shape, float(scalar)) == ((), 2.5)
    assert (empty.dtype, empty.shape) == (np.float32, (0, 4))
    assert (whole.dtype, whole.tolist()) == (np.int64, [9007199254740993, -1])
    np.testing.assert_array_equal(half, np.array([0.5, np.nan], np.float16))
    with pytest.raises(OutputInvalid, match=r"narrow: result\[0\] \(tensor<4xi4>\)"):
        tracemap.run(several, function="narrow")


@pytest.mark.long
def test_a_model_that_declares_no_types(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's modules do not; the number of outputs is known all the same, and numpy's file tells the rest."""
    monkeypatch.chdir(ROOT / "samples")
    (out,) = tracemap.run(built("torch_mlp"), flagfile="flags/torch_mlp.flags")
    assert (out.dtype, out.shape) == (np.float32, (32, 10))
    np.testing.assert_allclose(out.sum(axis=1), 1, rtol=1e-5)  # it ends in a softmax


def test_errors_of_the_api(several: Path) -> None:
    with pytest.raises(FunctionUnknown, match="mix, double, constants, narrow"):
        tracemap.run(several)
    with pytest.raises(InputInvalid, match="cannot be an array of 3x2"):
        tracemap.run(several, function="mix", inputs=[X.T, 1])
    with pytest.raises(OutputsDiffer, match=r"result\[1\] i32: 42, expected 41"):
        tracemap.run(several, function="mix", inputs=[X, 21], expected_outputs=["(ignored)", "41"])
    with pytest.raises(TypeError, match="'outputs'"):
        tracemap.run(several, output="x")


# ---- written


def test_outputs_are_written_by_irees_own_program(several: Path, tmp_path: Path) -> None:
    check_cli("run", several, *MIX, "--output=@x.npy", "--output=@n.bin", cwd=tmp_path)
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), X * X + 1)
    assert (tmp_path / "n.bin").read_bytes() == (42).to_bytes(4, "little")
    assert {path.name for path in tmp_path.iterdir()} == {"x.npy", "n.bin"}


def test_outputs_are_appended(several: Path, tmp_path: Path) -> None:
    check_cli("run", several, *MIX, "--output=@both.npy", "--output=+both.npy", cwd=tmp_path)
    check_cli("run", several, *MIX, "--output=", "--output=+both.npy", cwd=tmp_path)
    with (tmp_path / "both.npy").open("rb") as file:
        found = [np.load(file) for _ in range(3)]
    np.testing.assert_array_equal(found[0], X * X + 1)
    assert [int(found[1]), int(found[2])] == [42, 42]


def test_files_that_exist_are_kept(several: Path, tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_text("mine")
    targets = ("--output=@x.npy", "--output=-")
    done = run_cli("run", several, *MIX, *targets, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.endswith("[target-exists]\n")
    assert (tmp_path / "x.npy").read_text() == "mine"
    assert "i32=42" in check_cli("run", several, *MIX, *targets, "--force", cwd=tmp_path)
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), X * X + 1)


# ---- compared


def test_outputs_that_are_as_expected(several: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X * X + 1)
    (tmp_path / "x.bin").write_bytes((X * X + 1).tobytes())
    right = "result[0] 2x3xf32: as expected\nresult[1] i32: as expected\n"
    for spec in (RIGHT, f"@{tmp_path / 'x.npy'}", f"2x3xf32=@{tmp_path / 'x.bin'}", "2x3xf32=[1.25 2 5][10 1 101]"):
        done = compared(several, spec, "42")
        assert (done.returncode, done.stdout) == (0, right), spec
    done = compared(several, "(ignored)", "0x2a")
    assert done.stdout == "result[0] 2x3xf32: ignored\nresult[1] i32: as expected\n"


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (
            "2x3xf32=1.25 2 5 10 1.5 99",
            "2 of 6 elements differ, the first at [1, 1]: 1.0, expected 1.5; the largest difference is 2 at [1, 2]",
        ),
        (
            "2x3xf32=1.25 2 nan 10 1 101",
            "1 of 6 elements differs, the first at [0, 2]: 5.0, expected nan; the largest difference is nan at [0, 2]",
        ),
        ("3x2xf32=1", "expected 3x2xf32"),
        ("2x3xi32=1", "expected 2x3xi32"),
    ],
)  # fmt: skip
def test_outputs_that_differ(spec: str, said: str, several: Path) -> None:
    done = compared(several, spec, "42")
    line = f"result[0] 2x3xf32: {said}"
    assert done.returncode == 1
    assert done.stdout == f"{line}\nresult[1] i32: as expected\n"
    assert done.stderr == f"tracemap: error: mix: an output is not as expected: {line} [outputs-differ]\n"


@pytest.mark.long
@pytest.mark.parametrize("off", [0.00005, 0.00099, 0.00105, 0.0013, 0.01, -0.00105, -0.0013])
def test_tolerances_are_those_of_irees_own_program(off: float, several: Path) -> None:
    """The last element is 101: 1e-4 + 101e-5 is how far it may be off. IREE's program compares tensors alone."""
    spec = f"2x3xf32=1.25 2 5 10 1 {101 + off}"
    given = ("--function=mix", "--input=2x3xf32=0.5 1 2 -3 0 10", "--input=21")
    own = plain(several, *given, f"--expected_output={spec}", "--expected_output=42")
    agrees = "element at index" not in own.stdout
    assert (compared(several, spec, "42").returncode == 0) == agrees
    for name, value in (("--rtol", "0.0001"), ("--atol", "0.02")):
        assert compared(several, spec, "42", options=(name, value)).returncode == 0
    assert compared(several, spec, "42", options=("--exact",)).returncode == 1


def test_expected_outputs_of_a_flag_file(several: Path, tmp_path: Path) -> None:
    """As IREE's program takes them; what the command line says goes before them."""
    (tmp_path / "mix.flags").write_text(
        "--function=mix\n--input=2x3xf32=0.5 1 2 -3 0 10\n--input=21\n--expected_output=2x3xf32=1.25 2 5 10 1 101.5\n"
        "--expected_output=42\n--expected_f32_threshold=0.6\n"
    )
    given = ("run", several, "--flagfile", "mix.flags")
    assert "the largest difference is 0.5" in check_cli(*given, cwd=tmp_path)
    assert run_cli(*given, "--atol", "0.1", cwd=tmp_path).returncode == 1
    assert run_cli(*given, "--", "--equality_mode=exact", cwd=tmp_path).returncode == 1
    right = (f"--expected-output={RIGHT}", "--expected-output=42")
    assert run_cli(*given, *right, "--exact", cwd=tmp_path).returncode == 0


def test_arrays_that_numpy_saves_without_a_name_of_their_type(several: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "narrow.npy", np.full(4, 1.5, ml_dtypes.bfloat16))
    np.save(tmp_path / "texts.npy", np.array(["a"] * 4))
    others = ["--expected-output=(ignored)"] * 5
    given = ("run", several, "--function", "constants")
    printed = check_cli(*given, "--expected-output=@narrow.npy", *others, "--exact", cwd=tmp_path)
    assert printed.startswith("result[0] 4xbf16: as expected\n")
    done = run_cli(*given, "--expected-output=@texts.npy", *others, cwd=tmp_path)
    assert done.returncode == 2
    assert "the file holds no array of numbers there" in done.stderr


def test_compared_outputs_are_kept_too(several: Path, tmp_path: Path) -> None:
    keep = ("--output=@kept.npy", "--output=")
    done = run_cli("run", several, *MIX, *keep, "--expected-output=2x3xf32=0", "--expected-output=42", cwd=tmp_path)
    assert done.returncode == 1
    np.testing.assert_array_equal(np.load(tmp_path / "kept.npy"), X * X + 1)


# ---- refused


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "slug", "words"),
    [
        (("--function", "absent"), "function-unknown", "mix, double, constants, narrow"),
        (("--function", "double"), "input-invalid", "--dim N"),
        (("--function", "mix", "--input", "7", "--input", "7"), "input-invalid", "--input=2x3xf32=7"),
        (("--function", "mix", "--input", "@absent.npy", "--input", "7"), "input-invalid", "absent.npy"),
        (("--output=-",), "function-unknown", "several functions have outputs"),
        ((*MIX, "--output=-"), "usage-invalid", "mix returns 2 outputs (tensor<2x3xf32>, i32), 1 given"),
        ((*MIX, "--output=x.npy", "--output=-"), "usage-invalid", "--output=x.npy is no target"),
        ((*MIX, "--output=@a.npy", "--output=@a.npy"), "usage-invalid", "a.npy"),
        ((*MIX, "--output=@absent/a.npy", "--output=-"), "target-unwritable", "absent"),
        ((*MIX, "--expected-output=7"), "usage-invalid", "1 given; give one --expected-output per output"),
        ((*MIX, "--expected-output=2x3xf32=1 2", "--expected-output=7"), "usage-invalid", "2 values for 6 elements"),
        ((*MIX, "--expected-output=(ignored)", "--expected-output=many"), "usage-invalid", "--expected-output=many"),
        ((*MIX, "--expected-output=@absent.npy", "--expected-output=7"), "usage-invalid", "absent.npy"),
        ((*MIX, "--expected-output=@bad.npy", "--expected-output=7"), "usage-invalid", "no array of numbers"),
        ((*MIX, "--expected-output=2x3xi4=1", "--expected-output=7"), "usage-invalid", "no array holds i4"),
        ((*MIX, "--atol", "-1"), "usage-invalid", "atol"),
        ((*MIX, "--", "--no_such_flag"), "usage-invalid", "iree-run-module has no flag --no_such_flag"),
        ((*MIX, "--", "--module=/etc/passwd"), "usage-invalid", "--module=/etc/passwd: the bundle's own module"),
        ((*MIX, "--", "--function=double"), "usage-invalid", "--function mix contradicts --function=double after `--`"),
        ((*MIX, "--", "--input=7"), "usage-invalid", "give all inputs in one place"),
        ((*MIX, "--output=-", "--output=-", "--", "--output=-"), "usage-invalid", "--output is set by tracemap"),
        ((*MIX, "--exact"), "usage-invalid", "pass --expected-output too"),
        ((*MIX, "--", "--help"), "usage-invalid", "--help makes iree-run-module print something and exit"),
        ((*MIX, "--", "--expected_rtol=much"), "usage-invalid", "'much' is no number"),
    ],
)  # fmt: skip
def test_what_is_refused(arguments: tuple[str, ...], slug: str, words: str, several: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.npy").write_bytes(b"no array")
    done = run_cli("run", several, *arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.endswith(f" [{slug}]\n"), done.stderr
    assert words in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["bad.npy"]


def test_one_of_several_functions_that_take_inputs_is_named(built: Built, tmp_path: Path) -> None:
    for command in ("run", "benchmark"):
        done = run_cli(command, built("hand_multifunc"), cwd=tmp_path)
        assert done.returncode == 2
        assert "select one with --function: encode, decode, roundtrip, no_compute [function-unknown]\n" in done.stderr


def test_a_program_that_fails_says_why(several: Path, tmp_path: Path) -> None:
    done = run_cli("run", several, *MIX, "--", "--device=no-such-device", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "no-such-device" in done.stderr
    assert done.stderr.endswith(" [program-failed]\n")


@pytest.mark.parametrize("command", ["run", "benchmark"])
def test_ctrl_c_ends_the_program_and_leaves_nothing(
    command: str, built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    specs = ("--input", "64x64xf32=0.01", "--input", "64x64xf32=0.01", "--input", "2000000000")
    arguments = interruptible(command, built("hand_loop"), *specs)
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        waited_for_module(children)
        os.kill(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == -signal.SIGINT, said
    assert "interrupted" in said
    assert list(temporary.iterdir()) == []


def waited_for_module(children: Path) -> None:
    """Wait until IREE's program, a child of a process, runs.

    Raises:
        AssertionError: it does not start.
    """
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        for child in children.read_text().split():
            try:
                words = Path(f"/proc/{child}/cmdline").read_bytes()
            except OSError:  # it has ended
                continue
            if b"module.vmfb" in words and b"2000000000" in words:
                time.sleep(0.2)
                return
        time.sleep(0.05)
    raise AssertionError("the program did not start")


# ---- flags of the compiler


SPEC = """
module attributes {transform.with_named_sequence} {
  transform.named_sequence @set(%op: !transform.any_op {transform.readonly}) {
    %config = transform.param.constant #iree_codegen.compilation_info<
      lowering_config = #iree_cpu.lowering_config<
        distribution = [16, 32, 0], vector_common_parallel = [4, 8, 0], vector_reduction = [0, 0, 4]>,
      translation_info = #iree_codegen.translation_info<pipeline = #iree_cpu.pipeline<DoubleTilingExpert>>>
      -> !transform.any_param
    transform.annotate %op "compilation_info" = %config : !transform.any_op, !transform.any_param
    transform.yield
  }
  transform.named_sequence @is_matmul(%op: !transform.any_op {transform.readonly}) -> !transform.any_op {
    transform.match.operation_name %op ["linalg.matmul"] : !transform.any_op
    transform.yield %op : !transform.any_op
  }
  transform.named_sequence @__kernel_config(%variant: !transform.any_op {transform.consumed}) {
    %updated = transform.foreach_match in %variant @is_matmul -> @set : (!transform.any_op) -> !transform.any_op
    transform.yield
  }
}
"""
MATMUL = """
func.func @matmul(%a: tensor<48x24xf32>, %b: tensor<24x40xf32>) -> tensor<48x40xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<48x40xf32>
  %filled = linalg.fill ins(%zero : f32) outs(%empty : tensor<48x40xf32>) -> tensor<48x40xf32>
  %product = linalg.matmul ins(%a, %b : tensor<48x24xf32>, tensor<24x40xf32>) outs(%filled : tensor<48x40xf32>)
    -> tensor<48x40xf32>
  return %product : tensor<48x40xf32>
}
"""


@pytest.mark.long
def test_specs_of_the_transform_dialect_go_through_build_and_run(tmp_path: Path) -> None:
    """The spec's tiles are those of the kernel, the map has its op, and the product is numpy's."""
    spec = tmp_path / "spec.mlir"
    spec.write_text(SPEC)
    flag = f"--iree-codegen-transform-dialect-library={spec}"
    bundle = tracemap.build(MATMUL, tmp_path / "matmul.tracemap", flags=[flag])
    assert b"distribution = [16, 32, 0]" in bundle.configured()
    assert flag in bundle.graph.module.flags
    assert [site.members for site in bundle.graph.sites] != [()]
    (alone,) = tracemap.bench(bundle).kernels
    assert alone.verification.status is Status.SUCCESS
    kept = tmp_path / "configuration.mlir"
    check_cli("swap", bundle.path, alone.kernel, "--dump", "configuration", "-o", kept)
    assert "distribution = [16, 32, 0]" in kept.read_text()
    spec.rename(tmp_path / "moved.mlir")
    done = run_cli("swap", bundle.path, alone.kernel, "--dump", "configuration", "-o", tmp_path / "other.mlir")
    assert done.returncode == 2
    assert f"cannot load the transform library {spec}" in done.stderr
    numbers = np.random.default_rng(5)
    left, right = (numbers.random(shape, dtype=np.float32) for shape in ((48, 24), (24, 40)))
    (product,) = tracemap.run(bundle, inputs=[left, right])
    np.testing.assert_allclose(product, left @ right, rtol=1e-5)
    (times,) = tracemap.benchmark(bundle, inputs=[left, right], iterations=4, dispatch_repeat=2)
    assert times.calls == (8,)


@pytest.mark.long
def test_specs_that_the_compiler_would_go_on_without_are_refused(tmp_path: Path) -> None:
    """It says that it cannot load them, compiles without, and ends with status 0."""
    (tmp_path / "matmul.mlir").write_text(MATMUL)
    (tmp_path / "bad.mlir").write_text("module { nonsense")
    for name, why in (("absent.mlir", "No such file"), ("bad.mlir", "custom op 'nonsense' is unknown")):
        done = run_cli("build", "matmul.mlir", "--", f"--iree-codegen-transform-dialect-library={name}", cwd=tmp_path)
        assert done.returncode == 2
        assert f"cannot load the transform library {name} and would ignore it: " in done.stderr
        assert why in done.stderr
        assert done.stderr.endswith(" [model-invalid]\n")
        assert not (tmp_path / "matmul.tracemap").exists()


def test_usage_is_refused_as_elsewhere(several: Path) -> None:
    with pytest.raises(UsageInvalid, match="exact"):
        tracemap.run(several, function="narrow", exact="yes")
