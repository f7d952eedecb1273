"""Bad input to every command: one sentence with its slug, the exit code, nothing half written."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from tests.conftest import Built, Recorded
from tests.support import ROOT, SAMPLES, check_cli, run_cli
from tracemap.capture.inputs import generated_inputs
from tracemap.commands.record import record
from tracemap.core.codec import encode
from tracemap.core.errors import BundleInvalid, InputInvalid
from tracemap.core.functions import Argument, Function
from tracemap.core.toolchain import find_tool
from tracemap.map.bundle import load
from tracemap.options.measure import RecordOptions
from tracemap.runs.model import UNKNOWN_HEADER

MLP = SAMPLES / "models" / "hand_mlp.mlir"
MLP_FLAGS = SAMPLES / "flags" / "hand_mlp.flags"


def everything_in(folder: Path) -> dict[str, int]:
    """Each file and folder below a folder, hidden ones too, with its size; estimates that a bundle may keep aside."""
    found = (path for path in sorted(folder.rglob("*")) if path.name != "estimates.json")
    return {str(path.relative_to(folder)): path.lstat().st_size for path in found}


def refused(slug: str, *arguments: str | Path, cwd: Path, status: int = 2) -> str:
    """Run in `cwd` what must be refused; returns the sentence.

    Raises:
        AssertionError: it was not refused as promised, or it left something behind in `cwd`.
    """
    before = everything_in(cwd)
    done = run_cli(*arguments, cwd=cwd)
    assert done.returncode == status, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("tracemap: error: "), done.stderr
    assert done.stderr.endswith(f" [{slug}]\n"), done.stderr
    assert "Traceback" not in done.stderr
    assert everything_in(cwd) == before
    return done.stderr.removeprefix("tracemap: error: ").removesuffix(f" [{slug}]\n")


@pytest.fixture
def mlp(built: Built, tmp_path: Path) -> Path:
    """A copy of a bundle, to be damaged."""
    return Path(shutil.copytree(built("hand_mlp"), tmp_path / "hand_mlp.tracemap"))


@pytest.fixture
def csv_run(recorded: Recorded, tmp_path: Path) -> Path:
    """A copy of a CSV run with its header, to be damaged."""
    run = recorded("hand_mlp", ".csv")
    shutil.copy(run.with_name(run.name + ".json"), tmp_path / "run.csv.json")
    return Path(shutil.copy(run, tmp_path / "run.csv"))


# --- build


@pytest.mark.parametrize("kind", ["missing", "folder"])
def test_build_of_no_file(kind: str, tmp_path: Path) -> None:
    model = tmp_path / "model.mlir"
    if kind == "folder":
        model.mkdir()
    assert "model.mlir" in refused("model-unreadable", "build", model, cwd=tmp_path)


def test_build_shows_the_compilers_own_message(tmp_path: Path) -> None:
    lines = MLP.read_text(encoding="utf-8").splitlines()
    lines[4] = "  %broken = linalg.no_such_thing"
    (tmp_path / "broken.mlir").write_text("\n".join(lines), encoding="utf-8")
    said = refused("model-invalid", "build", "broken.mlir", cwd=tmp_path)
    assert "broken.mlir:5:" in said


@pytest.mark.long
@pytest.mark.parametrize(
    "text", ["module {\n}\n", "func.func private @f(%a: tensor<4xf32>) -> tensor<4xf32> { return %a : tensor<4xf32> }"]
)
def test_build_says_that_nothing_can_be_called(text: str, tmp_path: Path) -> None:
    (tmp_path / "empty.mlir").write_text(text, encoding="utf-8")
    said = refused("model-invalid", "build", "empty.mlir", cwd=tmp_path)
    assert "the model has no public function; make one public so that it can be called." in said


@pytest.mark.long
def test_build_says_in_a_sentence_that_the_compiler_has_crashed(tmp_path: Path) -> None:
    """IREE divides by zero on a product of which one extent is 0."""
    (tmp_path / "zero.mlir").write_text(
        "func.func @f(%a: tensor<2x0xf32>, %b: tensor<0x3xf32>, %c: tensor<2x3xf32>) -> tensor<2x3xf32> {\n"
        "  %0 = linalg.matmul ins(%a, %b : tensor<2x0xf32>, tensor<0x3xf32>) outs(%c : tensor<2x3xf32>)"
        " -> tensor<2x3xf32>\n  return %0 : tensor<2x3xf32>\n}\n"
    )
    done = run_cli("build", "zero.mlir", cwd=tmp_path)
    said = done.stderr.rstrip("\n")
    assert (done.returncode, done.stdout) == (2, "")
    assert "zero.mlir: cannot be compiled: iree-compile was ended by signal 8 (SIGFPE), so it crashed; " in said
    assert said.count("\n") <= 3
    assert "Stack dump" not in said
    assert "/tmp" not in said
    assert not (tmp_path / "zero.tracemap").exists()


def test_build_of_bytes_that_are_no_model(tmp_path: Path) -> None:
    (tmp_path / "model.mlir").write_bytes(bytes(range(256)))
    assert "model.mlir" in refused("model-invalid", "build", "model.mlir", cwd=tmp_path)


@pytest.mark.parametrize("name", ["../../out", "/absolute", "inner/name", "long" * 60])
def test_build_of_a_module_whose_name_is_no_files_name(name: str, tmp_path: Path) -> None:
    """The compiler would make a path of it, which leads anywhere."""
    folder = tmp_path / "one" / "two"
    folder.mkdir(parents=True)
    (folder / "m.mlir").write_text(f'module @"{name}" {{ func.func @f(%a: f32) -> f32 {{ return %a : f32 }} }}\n')
    done = run_cli("build", "m.mlir", cwd=folder)
    assert done.returncode == 2
    assert f"the module's name '{name[:9]}" in done.stderr
    assert done.stderr.endswith("give the module another name [model-invalid]\n")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["m.mlir"]


@pytest.mark.parametrize(
    ("flag", "complaint"),
    [
        ("--iree-nonsense=1", "Unknown command line argument '--iree-nonsense=1'."),
        ("--iree-opt-level=O9", "'O9' value not a valid optimization level"),
        ("--iree-llvmcpu-target-cpu=pentium99", "'pentium99' is not a recognized processor for this target"),
    ],
)
def test_build_with_a_flag_that_the_compiler_rejects(flag: str, complaint: str, tmp_path: Path) -> None:
    """Also flags that only code generation rejects: the flag is to blame, not the model."""
    words = ("build", MLP, "-o", "m.tracemap", "--", "--iree-opt-data-tiling", flag)
    said = refused("usage-invalid", *words, cwd=tmp_path)
    assert said.startswith(f"iree-compile rejects {flag}: ")
    assert said.count(complaint) == 1
    assert "\n" not in said
    assert "--help" not in said


def test_build_does_not_overwrite(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    assert "choose another name" in refused("target-exists", "build", MLP, "-o", "mine", cwd=tmp_path)


def test_build_into_no_folder(tmp_path: Path) -> None:
    assert "absent" in refused("target-unwritable", "build", MLP, "-o", "absent/m.tracemap", cwd=tmp_path)


def test_build_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused("target-unwritable", "build", MLP, "-o", "file/m.tracemap", cwd=tmp_path)


# --- bundles, by each command that reads one


READERS = [("show",), ("run",), ("benchmark",), ("record", "-o", "run.csv"), ("report", "-o", "page.html")]


def _overwrite(module: Path) -> None:
    with module.open("r+b") as file:
        file.seek(3)
        file.write(b"\xff")


@pytest.mark.long
@pytest.mark.parametrize("damage", [_overwrite, lambda module: os.truncate(module, 3000), os.unlink])
@pytest.mark.parametrize(
    "command",
    [("record", "-o", "r.csv"), ("run",), ("benchmark",)],
)
def test_bundle_of_which_the_compiled_module_is_damaged(
    command: tuple[str, ...], damage: Callable[[Path], None], mlp: Path, tmp_path: Path
) -> None:
    damage(mlp / "module.vmfb")
    name, *options = command
    said = refused("bundle-invalid", name, mlp.name, *options, cwd=tmp_path)
    assert said.startswith("hand_mlp.tracemap/module.vmfb: "), said
    assert said.endswith("build the bundle again"), said


@pytest.mark.parametrize("command", [("record", "-o", "r.csv"), ("run",), ("benchmark",)])
def test_a_module_that_runs_as_well_and_is_another_is_refused(
    command: tuple[str, ...], mlp: Path, tmp_path: Path
) -> None:
    """What it costs is nothing that the map's ops cost, though its functions and kernels are called alike."""
    with (mlp / "module.vmfb").open("ab") as module:
        module.write(b"more")
    name, *options = command
    said = refused("bundle-invalid", name, mlp.name, *options, cwd=tmp_path)
    assert said.startswith("hand_mlp.tracemap/module.vmfb: is damaged, or comes from a different build; "), said
    assert not (tmp_path / "r.csv").exists()


def test_a_module_that_is_replaced_while_it_is_recorded_is_no_run(mlp: Path, tmp_path: Path) -> None:
    def replaced(phase: str) -> None:
        if phase == "measuring the machine":  # after the last call
            shutil.copy(mlp / "module.vmfb", mlp / "new.vmfb")
            (mlp / "new.vmfb").replace(mlp / "module.vmfb")

    options = RecordOptions(iterations=2, output=tmp_path / "r.csv", flagfile=MLP_FLAGS)
    with pytest.raises(BundleInvalid, match=r"module\.vmfb: was changed or replaced while it ran; repeat the command"):
        record(load(mlp), options, replaced)
    assert not (tmp_path / "r.csv").exists()


def test_a_compiled_module_of_holes_is_refused_at_once(mlp: Path, tmp_path: Path) -> None:
    """It says that it has a terabyte, which takes minutes to look through."""
    os.truncate(mlp / "module.vmfb", 1 << 40)
    said = refused("bundle-invalid", "run", mlp.name, cwd=tmp_path)
    assert said == "hand_mlp.tracemap/module.vmfb: is larger than the free memory; build the bundle again"


@pytest.mark.parametrize("modules", [("other",), ("other", "hand_mlp.tracemap/module")])
def test_bundle_of_which_the_compiled_module_is_missing_beside_others(
    modules: tuple[str, ...], mlp: Path, tmp_path: Path
) -> None:
    (mlp / "module.vmfb").rename(tmp_path / "other.vmfb")
    flags = [f"--module={name}.vmfb" for name in modules]
    said = refused("bundle-invalid", "record", mlp.name, "-o", "r.csv", "--", *flags, cwd=tmp_path)
    assert said == "hand_mlp.tracemap/module.vmfb: does not exist; build the bundle again", said


@pytest.mark.long
@pytest.mark.parametrize("command", READERS, ids=lambda command: str(command[0]))
def test_bundle_that_is_none(command: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "empty.tracemap").mkdir()
    name, *options = command
    assert "absent.tracemap" in refused("bundle-invalid", name, "absent.tracemap", *options, cwd=tmp_path)
    assert "empty.tracemap" in refused("bundle-invalid", name, "empty.tracemap", *options, cwd=tmp_path)


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"\xff\xfe", b'{"schema_version": 10, "kind": "map"}'])
def test_bundle_with_a_damaged_map(damage: bytes, mlp: Path, tmp_path: Path) -> None:
    (mlp / "map.json").write_bytes(damage)
    assert "hand_mlp.tracemap" in refused("bundle-invalid", "show", mlp, cwd=tmp_path)


DUMPED = ("swap", "hand_mlp.tracemap", "mlp_dispatch_0_matmul_32x256x784_f32", "--dump")


@pytest.mark.long
@pytest.mark.parametrize(
    ("folder", "command"),
    [
        ("kernels", ("bench", "hand_mlp.tracemap")),
        ("kernels", (*DUMPED, "object")),
        ("kernels", ("tune", "hand_mlp.tracemap", "--kernel", "*softmax*", "--pairs", "0")),
        ("kernels", ("benchmark", "hand_mlp.tracemap", "--dispatch-repeat", "2")),
        ("source", (*DUMPED, "source")),
        ("source", ("audit", "hand_mlp.tracemap", "--pass", "op2")),
    ],
)
def test_bundle_of_which_a_module_is_cut(folder: str, command: tuple[str, ...], mlp: Path, tmp_path: Path) -> None:
    (file,) = mlp.glob(f"{folder}/*{'configured' if folder == 'kernels' else ''}.mlir")
    os.truncate(file, 100)
    said = refused("bundle-invalid", *command, cwd=tmp_path)
    assert re.search(rf"hand_mlp\.tracemap/{folder}/\w+\.mlir: is damaged \(\S.+\); build the bundle again", said), said


@pytest.mark.parametrize("command", READERS, ids=lambda command: str(command[0]))
def test_bundle_of_a_newer_version(command: tuple[str, ...], mlp: Path, tmp_path: Path) -> None:
    stored = json.loads((mlp / "map.json").read_text(encoding="utf-8"))
    version = next(key for key in stored if key.endswith("version"))
    stored[version] += 1
    (mlp / "map.json").write_text(json.dumps(stored), encoding="utf-8")
    name, *options = command
    assert str(stored[version]) in refused("bundle-version", name, mlp, *options, cwd=tmp_path)


@pytest.mark.parametrize("what", ["op999999", "site999999", "no_such_kernel", "../../etc"])
def test_show_of_what_is_not_there(what: str, built: Built, tmp_path: Path) -> None:
    assert what in refused("query-invalid", "show", built("hand_mlp"), what, cwd=tmp_path)


# --- record


def test_record_of_an_unknown_function(built: Built, tmp_path: Path) -> None:
    said = refused("function-unknown", "record", built("hand_mlp"), "--function", "absent", "-o", "r.csv", cwd=tmp_path)
    assert "mlp" in said


def test_record_of_one_of_several_functions(built: Built, tmp_path: Path) -> None:
    said = refused("function-unknown", "record", built("hand_multifunc"), "-o", "r.csv", cwd=tmp_path)
    assert all(name in said for name in ("encode", "decode", "roundtrip", "no_compute"))


@pytest.mark.parametrize("count", [1, 8])
def test_record_with_a_wrong_number_of_inputs(count: int, built: Built, tmp_path: Path) -> None:
    inputs = ["--input", "32x784xf32=1"] * count
    said = refused("input-invalid", "record", built("hand_mlp"), *inputs, "-o", "r.csv", cwd=tmp_path)
    assert "7" in said
    assert str(count) in said


@pytest.mark.long
def test_record_with_an_unknown_dimension(built: Built, tmp_path: Path) -> None:
    said = refused("input-invalid", "record", built("hand_dynamic"), "-o", "r.csv", cwd=tmp_path)
    assert "--dim" in said


@pytest.mark.parametrize("command", [("record", "-o", "r.csv"), ("run",), ("benchmark",), ("bench",)])
def test_a_size_where_every_size_is_known(command: tuple[str, ...], built: Built, tmp_path: Path) -> None:
    name, *options = command
    said = refused("usage-invalid", name, built("hand_mlp"), "--dim", "4", *options, cwd=tmp_path)
    assert said == "--dim 4: no input of mlp has a dynamic dimension (`?`); drop --dim"


@pytest.mark.long
def test_a_size_where_inputs_are_given_too(built: Built, tmp_path: Path) -> None:
    """Inputs that are given go before sizes of made-up ones, as docs/kernels.md says."""
    inputs = [word for spec in ("3x5xf32", "5x128xf32", "128xf32") for word in ("--input", spec)]
    assert run_cli("run", built("hand_dynamic"), *inputs, "--dim", "4", cwd=tmp_path).returncode == 0


@pytest.mark.long
def test_record_with_an_unknown_loop_bound(built: Built, tmp_path: Path) -> None:
    said = refused("input-invalid", "record", built("hand_loop"), "-o", "r.csv", cwd=tmp_path)
    assert "--input" in said


def test_record_with_a_missing_flag_file(built: Built, tmp_path: Path) -> None:
    done = run_cli("record", built("hand_mlp"), "--flagfile", "absent.flags", "-o", "r.csv", cwd=tmp_path)
    assert done.returncode == 2
    assert "absent.flags" in done.stderr
    assert not everything_in(tmp_path)


def test_record_does_not_overwrite(built: Built, csv_run: Path, tmp_path: Path) -> None:
    csv_run.with_name("run.csv.json").unlink()
    command = ("record", built("hand_mlp"), "--flagfile", MLP_FLAGS, "-o", csv_run)
    assert "--force" in refused("target-exists", *command, cwd=tmp_path)


def test_runs_that_cannot_be_written_are_found_out_before_any_is_recorded(
    mlp: Path, built: Built, tmp_path: Path
) -> None:
    first = shutil.copytree(built("hand_mlp"), tmp_path / "first.tracemap")
    shutil.rmtree(mlp / "runs", ignore_errors=True)
    (mlp / "runs").touch()
    runs = everything_in(first / "runs")
    for given in (("record", mlp, "--repeat", "2"), ("record", first, "--repeat", "2", "--alternate", mlp)):
        said = refused("target-unwritable", *given, "--iterations", "1", cwd=tmp_path)
        assert f"{mlp / 'runs'}: cannot be written (File exists)" in said
    assert everything_in(first / "runs") == runs


@pytest.mark.long
def test_bundles_that_cannot_be_called_are_found_out_before_any_is_recorded(mlp: Path, tmp_path: Path) -> None:
    """In either order, with nothing measured or written; the sentence says which of them it is."""
    shutil.rmtree(mlp / "runs", ignore_errors=True)
    (tmp_path / "open.mlir").write_text(
        "func.func @main(%x: tensor<?x64xf32>) -> tensor<?x64xf32> {\n"
        "  %0 = stablehlo.tanh %x : tensor<?x64xf32>\n  return %0 : tensor<?x64xf32>\n}\n"
    )
    check_cli("build", "open.mlir", cwd=tmp_path)
    for first, second in ((mlp.name, "open.tracemap"), ("open.tracemap", mlp.name)):
        said = refused("input-invalid", "record", first, "--alternate", second, cwd=tmp_path)
        assert said.startswith("open.tracemap: main: argument "), said
        assert "set every `?` with --dim N" in said
    assert not (mlp / "runs").exists()


def test_a_module_that_is_damaged_is_found_out_before_the_other_is_recorded(
    mlp: Path, built: Built, tmp_path: Path
) -> None:
    other = shutil.copytree(built("hand_mlp"), tmp_path / "other.tracemap")
    _overwrite(other / "module.vmfb")
    said = refused("bundle-invalid", "record", mlp.name, "--alternate", other.name, cwd=tmp_path)
    assert said.startswith("other.tracemap/module.vmfb: is damaged, or comes from a different build; "), said


def test_record_into_no_folder(built: Built, tmp_path: Path) -> None:
    command = ("record", built("hand_mlp"), "--flagfile", MLP_FLAGS, "-o", "absent/run.csv")
    assert "absent" in refused("target-unwritable", *command, cwd=tmp_path)


def test_record_of_a_program_that_fails(built: Built, tmp_path: Path) -> None:
    """Storage in place of a tensor is only found out by the program itself: its words are shown."""
    inputs = ["--input", "&32x784xf32=1"]
    others = ("784x256", "256", "256x128", "128", "128x10", "10")
    inputs += [word for sizes in others for word in ("--input", f"{sizes}xf32=1")]
    said = refused("program-failed", "record", built("hand_mlp"), *inputs, "-o", "run.csv", cwd=tmp_path, status=1)
    assert "ref type mismatch" in said


# --- attribute


def test_attribute_of_no_run(built: Built, tmp_path: Path) -> None:
    said = refused("run-invalid", "attribute", "absent.csv", "--map", built("hand_mlp"), cwd=tmp_path)
    assert "absent.csv" in said


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".ireeprof", ".txt"])
def test_attribute_of_what_is_no_run(suffix: str, built: Built, tmp_path: Path) -> None:
    (tmp_path / f"run{suffix}").write_bytes(bytes(range(256)) * 4)
    said = refused("run-invalid", "attribute", f"run{suffix}", "--map", built("hand_mlp"), cwd=tmp_path)
    assert f"run{suffix}" in said


def test_csv_without_a_time(built: Built, tmp_path: Path) -> None:
    (tmp_path / "run.csv").write_text("kernel,thread\nmlp,1\n", encoding="utf-8")
    said = refused("run-invalid", "attribute", "run.csv", "--map", built("hand_mlp"), cwd=tmp_path)
    assert "run.csv" in said
    assert "duration_ns" in said


def test_csv_without_a_kernel(built: Built, tmp_path: Path) -> None:
    (tmp_path / "run.csv").write_text("duration_ns,cpu_ns\n1,1\n", encoding="utf-8")
    said = refused("run-invalid", "attribute", "run.csv", "--map", built("hand_mlp"), cwd=tmp_path)
    assert "run.csv" in said
    assert "kernel" in said


@pytest.mark.parametrize("bad", ["abc", "1e999", "nan", "12three"])
def test_csv_with_a_bad_number(bad: str, built: Built, tmp_path: Path) -> None:
    rows = ["kernel,duration_ns", *["mlp_dispatch_0,5"] * 3, f"mlp_dispatch_0,{bad}", "mlp_dispatch_0,5"]
    (tmp_path / "run.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    said = refused("run-invalid", "attribute", "run.csv", "--map", built("hand_mlp"), cwd=tmp_path)
    assert "run.csv: line 5, column duration_ns" in said
    assert bad in said


def test_csv_run_with_a_damaged_header(built: Built, csv_run: Path, tmp_path: Path) -> None:
    csv_run.with_name("run.csv.json").write_text("{", encoding="utf-8")
    said = refused("run-invalid", "attribute", "run.csv", "--map", built("hand_mlp"), cwd=tmp_path)
    assert "run.csv.json" in said


def test_run_of_a_newer_version(built: Built, csv_run: Path, tmp_path: Path) -> None:
    header = csv_run.with_name("run.csv.json")
    stored = json.loads(header.read_text(encoding="utf-8"))
    version = next(key for key in stored if key.endswith("version"))
    stored[version] += 1
    header.write_text(json.dumps(stored), encoding="utf-8")
    refused("run-version", "attribute", "run.csv", "--map", built("hand_mlp"), cwd=tmp_path)


def test_csv_without_a_row(built: Built, tmp_path: Path) -> None:
    (tmp_path / "run.csv").write_text("kernel,duration_ns\n", encoding="utf-8")
    assert "run.csv" in refused("run-empty", "attribute", "run.csv", "--map", built("hand_mlp"), cwd=tmp_path)


def profile_of_nothing(bundle: Path, target: Path) -> None:
    """Profile a function that starts no kernel, by the stock tool, as somebody else would."""
    arguments = [
        *(find_tool("iree-benchmark-module"), "--device=local-task", f"--module={bundle / 'module.vmfb'}"),
        *("--function=no_compute", "--input=32x64xf32=1", "--benchmark_min_time=1x"),
        *("--device_profiling_mode=queue-events,host-execution", f"--device_profiling_output={target}"),
    ]
    subprocess.run([str(argument) for argument in arguments], check=True, capture_output=True)


@pytest.mark.parametrize("size", [-1, 24], ids=["whole", "only its start"])
def test_foreign_profile_without_an_event(size: int, built: Built, tmp_path: Path) -> None:
    profile = tmp_path / "run.ireeprof"
    profile_of_nothing(built("hand_multifunc"), profile)
    if size >= 0:
        profile.write_bytes(profile.read_bytes()[:size])
    said = refused("run-empty", "attribute", "run.ireeprof", "--map", built("hand_multifunc"), cwd=tmp_path)
    assert "run.ireeprof" in said


def test_run_of_another_module(built: Built, csv_run: Path, tmp_path: Path) -> None:
    said = refused("run-mismatch", "attribute", csv_run, "--map", built("hand_repeat12"), cwd=tmp_path)
    assert "--allow-mismatch" in said


def test_table_of_which_nothing_matches(built: Built, tmp_path: Path) -> None:
    rows = ["kernel,duration_ns", *["conv,5"] * 3, "=1+1,6", "relu,7", ",8"]
    (tmp_path / "run.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    said = refused("run-mismatch", "attribute", "run.csv", "--map", built("hand_mlp"), cwd=tmp_path)
    assert "run.csv: none of 6 rows names a kernel of the map" in said
    assert "'conv'" in said
    assert "'mlp_dispatch_0_matmul_32x256x784_f32'" in said
    assert run_cli("attribute", "run.csv", "--map", built("hand_mlp"), "--allow-mismatch", cwd=tmp_path).returncode == 0


def test_table_of_which_one_row_matches(built: Built, tmp_path: Path) -> None:
    rows = ["kernel,duration_ns", "conv,5", "mlp_dispatch_0_matmul_32x256x784_f32,6"]
    (tmp_path / "run.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    assert run_cli("attribute", "run.csv", "--map", built("hand_mlp"), cwd=tmp_path).returncode == 0


def test_bare_csv_with_no_bundle_in_sight(csv_run: Path, tmp_path: Path) -> None:
    csv_run.with_name("run.csv.json").unlink()
    assert "--map" in refused("bundle-missing", "attribute", "run.csv", cwd=tmp_path)


def test_bare_csv_with_two_bundles_in_sight(mlp: Path, csv_run: Path, tmp_path: Path) -> None:
    csv_run.with_name("run.csv.json").unlink()
    shutil.copytree(mlp, tmp_path / "other.tracemap")
    said = refused("bundle-missing", "attribute", "run.csv", cwd=tmp_path)
    assert "hand_mlp.tracemap" in said
    assert "other.tracemap" in said


def test_a_bundle_of_a_name_that_no_file_system_takes_is_missing(tmp_path: Path) -> None:
    (tmp_path / "run.csv").write_text("kernel,duration_ns\nmain_dispatch_0,5\n", encoding="utf-8")
    header = structs.replace(UNKNOWN_HEADER, bundle="b" * 5000)
    (tmp_path / "run.csv.json").write_bytes(encode(header))
    assert "--map" in refused("bundle-missing", "attribute", "run.csv", cwd=tmp_path)


@pytest.mark.parametrize("option", ["--html", "-o"])
def test_attribute_does_not_overwrite(option: str, built: Built, csv_run: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine", encoding="utf-8")
    command = ("attribute", csv_run, "--map", built("hand_mlp"), option, "out")
    assert "--force" in refused("target-exists", *command, cwd=tmp_path)
    assert (tmp_path / "out").read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("option", ["--html", "-o"])
def test_attribute_into_no_folder(option: str, built: Built, csv_run: Path, tmp_path: Path) -> None:
    command = ("attribute", csv_run, "--map", built("hand_mlp"), option, "absent/out")
    assert "absent" in refused("target-unwritable", *command, cwd=tmp_path)


def test_report_does_not_overwrite(built: Built, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("mine", encoding="utf-8")
    refused("target-exists", "report", built("hand_mlp"), "-o", "page.html", cwd=tmp_path)


# --- tools


def without_iree(folder: Path) -> list[str]:
    """The command line in an environment that has all installed packages but IREE's."""
    folder.mkdir()
    for package in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if (
            not package.name.startswith(("iree", "__editable__", "_virtualenv", "distutils"))
            and package.suffix != ".pth"
        ):
            (folder / package.name).symlink_to(package)
    start = (
        f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(folder)!r}]; from tracemap.commands.main import main; main()"
    )
    return [sys.executable, "-S", "-c", start]


@pytest.mark.parametrize("command", ["build", "lower", "record", "run", "benchmark"])
def test_missing_tools_are_named(command: str, built: Built, tmp_path_factory: pytest.TempPathFactory) -> None:
    program = without_iree(tmp_path_factory.mktemp("bare") / "packages")
    work = tmp_path_factory.mktemp("work")
    arguments = ["build", str(MLP), "-o", "m.tracemap"]
    if command == "lower":
        arguments = ["lower", str(MLP), "--pipeline", "builtin.module(cse)", "-o", "loops.txt"]
    if command == "record":
        arguments = ["record", str(built("hand_mlp")), "--flagfile", str(MLP_FLAGS), "-o", "run.csv"]
    if command in {"run", "benchmark"}:
        arguments = [command, str(built("hand_mlp")), "--flagfile", str(MLP_FLAGS)]
    environment = {**os.environ, "PATH": ""}
    done = subprocess.run(
        [*program, *arguments], cwd=work, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.endswith("[tool-missing]\n")
    package = "compiler" if command in {"build", "lower"} else "runtime"
    assert f"pip install iree-base-{package}" in done.stderr
    assert not everything_in(work)


def test_a_runtime_without_profiles_is_named(built: Built, tmp_path_factory: pytest.TempPathFactory) -> None:
    program, tools = without_iree(tmp_path_factory.mktemp("bare") / "packages"), tmp_path_factory.mktemp("tools")
    work = tmp_path_factory.mktemp("work")
    # A program of the runtime that has none of the flags for profiles, as IREE 3.11's iree-benchmark-module.
    (tools / "iree-benchmark-module").symlink_to(find_tool("iree-dump-module"))
    arguments = ["record", str(built("hand_mlp")), "--flagfile", str(MLP_FLAGS), "-o", "run.csv"]
    environment = {**os.environ, "PATH": str(tools)}
    done = subprocess.run(
        [*program, *arguments], cwd=work, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stderr.endswith("[tool-too-old]\n")
    assert "writes no HAL profiles" in done.stderr
    assert "tracemap hook env" in done.stderr
    assert not everything_in(work)


def test_attribution_and_reports_need_no_compiler(
    built: Built, recorded: Recorded, tmp_path_factory: pytest.TempPathFactory
) -> None:
    program = without_iree(tmp_path_factory.mktemp("bare") / "packages")
    work = tmp_path_factory.mktemp("work")
    bundle, run = str(built("hand_mlp")), str(recorded("hand_mlp"))
    for arguments in (["show", bundle], ["attribute", run, "--map", bundle, "--html", "page.html"]):
        done = subprocess.run([*program, *arguments], cwd=work, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert (work / "page.html").stat().st_size > 0


# ---- outputs


NARROW = """func.func @f(%x: tensor<4xi4>, %y: i32) -> (tensor<4xi4>, i32) {
  %z = arith.addi %y, %y : i32
  return %x, %z : tensor<4xi4>, i32
}"""


def test_an_output_that_no_array_holds_is_not_compared(tmp_path: Path) -> None:
    (tmp_path / "narrow.mlir").write_text(NARROW)
    assert run_cli("build", "narrow.mlir", cwd=tmp_path).returncode == 0
    given = ("run", "narrow.tracemap", "--expected-output", "(ignored)", "--expected-output", "0")
    assert "result[0] (tensor<4xi4>)" in refused("output-invalid", *given, cwd=tmp_path)


def test_an_output_that_differs_is_status_1(built: Built, tmp_path: Path) -> None:
    given = ("--flagfile", MLP_FLAGS, "--expected-output", "32x10xf32=7")
    done = run_cli("run", built("hand_mlp"), *given, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout.startswith("result[0] 32x10xf32: 320 of 320 elements differ, the first at [0, 0]: ")
    assert done.stderr.endswith(" [outputs-differ]\n")


# ---- what the runtime would pass over, or say in its own words


@pytest.mark.long
@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--no_such_flag", "has no flag --no_such_flag;"),
        ("--benchmark_min_time=2x", "--benchmark_min_time is set by tracemap: see --iterations"),
        ("--benchmark_min_warmup_time=0.001", "--benchmark_min_warmup_time is set by tracemap: see --warmup"),
        ("--benchmark_dry_run", "--benchmark_dry_run is set by tracemap: see --iterations"),
        ("--benchmark_filter=nothing", "--benchmark_filter is set by tracemap: see --function"),
        ("--benchmark_list_tests=true", "--benchmark_list_tests is set by tracemap: `show`"),
        ("--benchmark_enable_random_interleaving", "each function is recorded by itself"),
        ("--benchmark_report_aggregates_only", "--benchmark_report_aggregates_only is set by tracemap"),
        ("--batch_concurrency=0", "--batch_concurrency=0: give a whole number of invocations, from 1 to"),
        ("--device_profiling_output=x", "--device_profiling_output is set by tracemap"),
        ("--list_devices", "--list_devices makes iree-benchmark-module print something and exit"),
        ("--module=other.vmfb", "--module=other.vmfb: the bundle's own module is called"),
        ("--task_topology_max_group_cuont=1", "did you mean --task_topology_max_group_count?"),
    ],
)
def test_flags_that_the_runtimes_tool_does_not_have_are_refused(flag: str, said: str, mlp: Path) -> None:
    assert said in refused("usage-invalid", "record", mlp, "-o", "run.csv", "--", flag, cwd=mlp.parent)


@pytest.mark.parametrize(
    "flag",
    ["--benchmark_min_warmup_time=0.001", "--benchmark_dry_run=true", "--benchmark_filter=nothing"],
)
def test_flags_of_a_file_by_which_other_calls_are_made_are_refused(flag: str, mlp: Path) -> None:
    """The run would tell of calls that were not made: of as many as are asked for."""
    (mlp.parent / "calls.flags").write_text(f"{flag}\n--benchmark_min_time=2x\n")
    for given in (("--flagfile", "calls.flags"), ("--", "--flagfile=calls.flags")):
        said = refused("usage-invalid", "record", mlp, "-o", "run.csv", *given, cwd=mlp.parent)
        assert f"{flag.partition('=')[0]} is set by tracemap" in said


def test_flags_with_a_zero_byte_are_refused(mlp: Path) -> None:
    (mlp.parent / "zero.flags").write_bytes(b"--device=a\0b\n")
    command = ("record", mlp, "--flagfile", "zero.flags", "-o", "run.csv")
    assert r"--device=a\x00b" in refused("usage-invalid", *command, cwd=mlp.parent)


def test_a_number_where_a_tensor_is_taken_is_refused(mlp: Path) -> None:
    said = refused("input-invalid", "record", mlp, "-o", "run.csv", *["--input", "7"] * 7, cwd=mlp.parent)
    assert "cannot be the single number 7" in said
    assert re.search(r"write --input=[0-9x]+xf32=7$", said)


def test_the_example_for_a_loops_bound_has_whole_numbers_for_integers() -> None:
    """What an argument is given as must be what it can hold."""
    arguments = (Argument("%n", "tensor<i32>", loop_bound=True), Argument("%x", "tensor<?x4xf32>", loop_bound=False))
    with pytest.raises(InputInvalid) as caught:
        generated_inputs(Function("main", arguments), 3, Path())
    assert str(caught.value).endswith("give every argument: --input=i32=1 --input=Nx4xf32=0.5")


# --- wrong inputs and files, in all commands


DYNAMIC = """func.func @dyn(%x: tensor<?x?xf32>, %w: tensor<?x128xf32>, %n: tensor<i32>) -> tensor<?x128xf32> {
  %zero = arith.constant 0.0 : f32
  %c0 = arith.constant 0 : index
  %m = tensor.dim %x, %c0 : tensor<?x?xf32>
  %empty = tensor.empty(%m) : tensor<?x128xf32>
  %filled = linalg.fill ins(%zero : f32) outs(%empty : tensor<?x128xf32>) -> tensor<?x128xf32>
  %product = linalg.matmul ins(%x, %w : tensor<?x?xf32>, tensor<?x128xf32>) outs(%filled : tensor<?x128xf32>)
    -> tensor<?x128xf32>
  return %product : tensor<?x128xf32>
}
"""


@pytest.fixture(scope="module")
def wrong(recorded: Recorded, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, its bundle, a run, and files that are none of these."""
    folder = tmp_path_factory.mktemp("wrong")
    (folder / "m.mlir").write_text(DYNAMIC)
    check_cli("build", "m.mlir", "-o", "b.tracemap", cwd=folder)
    shutil.copy(recorded("hand_mlp"), folder / "run.parquet")
    shutil.copy(folder / "b.tracemap" / "module.vmfb", folder / "m.vmfb")
    page = "<!DOCTYPE html>\n<html><head><title>404</title></head></html>\n"
    texts = {
        **dict.fromkeys(("page.html", "html.mlir", "html.onnx", "html.csv"), page),
        **dict.fromkeys(("empty.csv", "empty.mlir", "empty.onnx", "empty.npy"), ""),
        **dict.fromkeys(("text.mlirbc", "text.pt2", "text.npy", "notes.txt"), "some notes\nabout it\n"),
        **dict.fromkeys(("lfs.onnx", "lfs.parquet"), "version https://git-lfs.github.com/spec/v1\nsize 12345\n"),
        "other.json": '{"traceEvents": [{"name": "a", "ph": "X"}]}\n',
        "script.py": "import jax\nprint(jax.devices())\n",
        "bad.flags": "function=dyn\n",
        "named.flags": "--input=x=@x.npy\n--input=y=@w.npy\n",
        "folder/a.txt": "a",
    }
    for name, text in texts.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    onnx = b"\x08\x07\x12\x07pytorch:\x10" + b"\x0a\x00" * 8
    (folder / "broken.onnx").write_bytes(onnx + b"\xff" * 40)
    (folder / "text.onnx").write_bytes(onnx.replace(b"\x00", b"\x01"))
    (folder / "cut.onnx").write_bytes(onnx[:-4])
    (folder / "headless.onnx").write_bytes(onnx[:11])
    with zipfile.ZipFile(folder / "weights.pt2", "w") as archive:
        archive.writestr("archive/data.pkl", b"weights")
    (folder / "cut.pt2").write_bytes((folder / "weights.pt2").read_bytes()[:-30])
    x = np.ones((2, 3), np.float32)
    w = np.ones((3, 128), np.float32)
    arrays = {"x": x, "f64": x.astype(np.float64), "rank": x[0], "fortran": np.asfortranarray(x), "w": w}
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    np.save(folder / "big.npy", x.astype(">f4"))
    np.savez(folder / "x.npz", x=x)
    (folder / "cut.npy").write_bytes((folder / "x.npy").read_bytes()[:-4])
    (folder / "odd.npy").write_bytes((folder / "x.npy").read_bytes().replace(b"descr", b"desc!"))
    x[0].tofile(folder / "short.bin")
    return folder


RECORD = "record b.tracemap"
WRONG = {
    # commands and options
    "build m.mlir --iree-opt-level=O3 -o x": "No such option '--iree-opt-level'; IREE's flags go after `--`: "
    "tracemap build m.mlir -o x -- --iree-opt-level=O3",
    "profile --iree-opt-level O3 m.mlir -- -v": "`--`: tracemap profile m.mlir -- --iree-opt-level O3 -v",
    f"{RECORD} --task_topology_group_count=1": "`--`: tracemap record b.tracemap -- --task_topology_group_count=1",
    "profil m.mlir": "No such command 'profil'; did you mean profile? See tracemap --help",
    # models
    "build broken.onnx": "is no ONNX model, or a damaged one (at byte 29); export or download it again",
    "build cut.onnx": "is a truncated ONNX model, or none: it ends at byte 25; export or download it again",
    "build headless.onnx": "is no ONNX model, since it has no graph; export it again",
    "build empty.onnx": "is an empty file, not an ONNX model; export or download it again",
    "profile html.onnx": "is an HTML page, not an ONNX model; export or download it again",
    "build lfs.onnx": "is a pointer of Git LFS, not an ONNX model; fetch the model with `git lfs pull`",
    "build html.mlir": "is an HTML page, not MLIR; get the model again",
    "profile text.mlirbc": "is a text file, not MLIR; pass a model (.mlir, .mlirbc, .onnx, .pt2)",
    "build b.tracemap": "is a bundle, not a model, so it is built already; record it: tracemap record b.tracemap",
    "build run.parquet": "is a table, not MLIR; pass a model; for runs, use `tracemap attribute`",
    "profile run.parquet": "is a run, and `profile` makes a new one; name a model or a bundle, or use `attribute`",
    "lower m.vmfb --pipeline builtin.module(cse)": "is a compiled module, not MLIR; pass the model",
    "build text.pt2": "is a text file, not a program of torch.export.save; write it with torch.export.save(",
    "build weights.pt2": "is weights or a module of torch.save, not a program of torch.export.save; write it with",
    "build cut.pt2": "is a truncated or damaged archive (File is not a zip file); copy it again",
    "build other.json": "is a JSON file, not MLIR; pass a model",
    "build script.py": "is a Python script, not MLIR; `tracemap profile SCRIPT.py` profiles its functions",
    "profile x.npy": "is a numpy array, not MLIR; pass a model; arrays are inputs: --input @FILE.npy",
    "profile folder": "is a folder, not a model; pass a file (.mlir, .mlirbc, .onnx, .pt2)",
    "profile html.mlr": "html.mlr: there is no such file; did you mean html.mlir?",
    "profile m.mlir --input @gone.npy": "--input: the file gone.npy does not exist",
    # bundles
    "record m.mlir": "m.mlir: is a model, not a bundle; build it first: tracemap build m.mlir",
    "record text.onnx": "text.onnx: is a model, not a bundle; build it first: tracemap build text.onnx, then pass its "
    "bundle, text.tracemap",
    "show broken.onnx": "is a model, not a bundle; build it first: tracemap build broken.onnx",
    "report weights.pt2 -o x": "is a model, not a bundle; build it first: tracemap build weights.pt2",
    "bench run.parquet": "is a run or another table, not a bundle; pass the bundle that it was recorded from",
    "show m.vmfb": "is a compiled module (.vmfb), not a bundle; build the model that it was compiled from",
    "audit page.html": "is an HTML page, not a bundle; pass a folder that `tracemap build` wrote",
    "remarks script.py": "is a Python script, not a bundle; profile it, which builds its bundle: tracemap profile",
    "tune folder --top 1": "is a folder, but not a bundle, since it has no map.json; pass a folder that",
    "record bb.tracemap": "bb.tracemap: there is no such bundle; did you mean b.tracemap?",
    "swap b.tracemap/map.json -o x": "b.tracemap/map.json: is a file in a bundle; pass the bundle: b.tracemap",
    "run .": ".: is a folder, but not a bundle, since it has no map.json; pass the bundle in it: b.tracemap",
    "attribute run.parquet --map m.mlir": "m.mlir: is a model, not a bundle; build it first: tracemap build m.mlir",
    "report run.parquet b.tracemap -o x": "run.parquet: is a run or another table, not a bundle; pass the bundle",
    # runs
    "attribute b.tracemap": "b.tracemap: this bundle has no run; record one with `tracemap record b.tracemap`",
    "export m.mlir --to csv": "is a model, not a run; build it first: tracemap build m.mlir, then record its bundle",
    "attribute html.csv": "is an HTML page, not a run; pass a run: `tracemap record BUNDLE` writes one",
    "attribute lfs.parquet": "is a pointer of Git LFS, not a run; fetch the file with `git lfs pull`",
    "attribute notes.txt": "is a text file, not a run; pass a run: `tracemap record BUNDLE` writes one",
    "attribute m.vmfb": "is a compiled module (.vmfb), not a run; pass a run",
    "store add --store s x.npy": "is a numpy array, not a run; pass a run",
    "diff m.mlir b.tracemap": "m.mlir: is a model, not a run; build it first: tracemap build m.mlir",
    "stats m.mlir": "is a model, not calls of the hook; statistics need single calls: name the folder",
    "stats b.tracemap": "is a bundle, not a recording of the hook; name the folder that the hook recorded into",
    "store list --store b.tracemap": "is a bundle, not a store; name the folder of the store",
    "store list --store run.parquet": "is a run or another table, not a store, which is a folder; tracemap store add",
    # flag files
    f"{RECORD} --flagfile m.mlir": "m.mlir: is a model, not a flag file; a flag file has one flag per line",
    f"{RECORD} --flagfile m.vmfb": "m.vmfb: is a compiled module (.vmfb), not a flag file",
    f"{RECORD} --flagfile bad.flags": "'function=dyn' is no flag; flags begin with --; write --function=dyn",
    f"{RECORD} --flagfile named.flags": "no argument has the name 'y'; its arguments are: x, w, n",
    # inputs
    f"{RECORD} --input x=@f64.npy": "dyn: argument x (tensor<?x?xf32>) cannot be read from f64.npy: it holds "
    "2x3xf64, not ?x?xf32; save it with numpy.save('x.npy', x.astype('float32'))",
    f"{RECORD} --input w=@x.npy": "w (tensor<?x128xf32>) cannot be read from x.npy: it holds 2x3xf32, not ?x128xf32",
    f"{RECORD} --input x=@rank.npy": "it holds 3xf32, not ?x?xf32; pass an array of this shape",
    f"{RECORD} --input x=@fortran.npy": "its elements are in Fortran order, which IREE does not read; save it with",
    f"{RECORD} --input x=@big.npy": "its numbers are big-endian, which IREE does not read; save it with numpy.save",
    f"{RECORD} --input x=@cut.npy": "it is truncated: 4 bytes of its array are missing; save or copy it again",
    f"{RECORD} --input x=@odd.npy": "its header is damaged (",
    f"{RECORD} --input x=@text.npy": "it is a text file, not a numpy array (.npy); pass a .npy file",
    f"{RECORD} --input x=@empty.npy": "it is an empty file, not a numpy array (.npy); pass a .npy file",
    f"{RECORD} --input x=@x.npz": "(.npz), not a numpy array (.npy); save it with numpy.save('x.npy', numpy.load(",
    f"{RECORD} --input x=x.npy": "it has no shape and element type; write it as --input=@x.npy",
    f"{RECORD} --input x=2x3xf32=@short.bin": "it has 12 bytes, and 2x3xf32 needs 24; pass a whole file",
    f"{RECORD} --input x=@x.npy --input w=+x.npy": "w (tensor<?x128xf32>) cannot be read from x.npy: its header is",
    f"{RECORD} --input xs=@x.npy": "dyn: no argument has the name 'xs'; its arguments are: x, w, n; did you mean x?",
    f"{RECORD} --input x=@x.npy --input @w.npy": "give inputs without a name first, in order, then those with a name",
    f"{RECORD} --input @x.npy --input w=@w.npy": "n is missing; give all arguments, or only some by name",
    f"{RECORD} --input @x.npy --input x=@x.npy": "argument x is given twice; give it once",
    "tune b.tracemap --kernel * --input @x.npy": "dyn takes 3 inputs (x: tensor<?x?xf32>, w: tensor<?x128xf32>, n: ",
    "bench b.tracemap --input x=7": "argument x (tensor<?x?xf32>) cannot be the single number 7",
    "benchmark b.tracemap --input x=@f64.npy": "it holds 2x3xf64, not ?x?xf32",
    "run b.tracemap --input x=@f64.npy": "it holds 2x3xf64, not ?x?xf32",
}
"""Wrong calls, and the thing and the remedy that the error names."""


@pytest.mark.parametrize("words", WRONG)
def test_wrong_files_and_inputs_are_named_with_a_remedy(words: str, wrong: Path) -> None:
    done = run_cli(*words.split(), cwd=wrong)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert WRONG[words] in done.stderr


def test_inputs_by_name_arrive_at_their_arguments(wrong: Path) -> None:
    """In any order; the others are generated. Names of files in flag files work the same."""
    by_place = check_cli("run", "b.tracemap", "--input=@x.npy", "--input=@w.npy", "--input=i32=0", cwd=wrong)
    by_name = ("--input=n=i32=0", "--input=w=@w.npy", "--input=x=@x.npy")
    assert check_cli("run", "b.tracemap", *by_name, cwd=wrong) == by_place
    assert check_cli("run", "b.tracemap", "--input=@x.npy", *by_name[:2], cwd=wrong) == by_place
    assert check_cli("run", "b.tracemap", *by_name[1:], cwd=wrong) == by_place
    assert check_cli("run", "b.tracemap", "--", *by_name, cwd=wrong) == by_place


def test_several_arrays_of_one_file_are_checked_in_order(wrong: Path, tmp_path: Path) -> None:
    """`@` begins at the start of a file, `+` continues after the array before; raw data may follow each other, too."""
    with (tmp_path / "all.npy").open("wb") as file:
        for array in (np.ones((2, 3), np.float32), np.ones((3, 128), np.float32), np.int32(3)):
            np.save(file, array)
    specs = ("@all.npy", "+all.npy", "+all.npy")
    inputs = [f"--input={spec}" for spec in specs]
    assert "2x128xf32" in check_cli("run", wrong / "b.tracemap", *inputs, cwd=tmp_path)
    inputs[1] = "--input=@all.npy"
    assert "argument w" in refused("input-invalid", "run", wrong / "b.tracemap", *inputs, cwd=tmp_path)
    np.ones(6 + 384, np.float32).tofile(tmp_path / "raw.bin")
    raw = ["--input=2x3xf32=@raw.bin", "--input=3x128xf32=+raw.bin", "--input=i32=0"]
    assert "2x128xf32" in check_cli("run", wrong / "b.tracemap", *raw, cwd=tmp_path)
    raw[1] = "--input=4x128xf32=+raw.bin"
    said = refused("input-invalid", "run", wrong / "b.tracemap", *raw, cwd=tmp_path)
    assert "argument w (tensor<?x128xf32>) cannot be read from raw.bin: it has 1,536 bytes" in said
