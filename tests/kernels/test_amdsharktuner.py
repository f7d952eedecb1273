"""`tracemap tune --write-for-amdsharktuner`: IREE accepts the files and flags."""

from __future__ import annotations

import csv
import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.conftest import Built
from tests.support import Json, check_cli, json_cli, run_cli
from tracemap.core.toolchain import find_tool
from tracemap.map.bundle import load

MODEL = """
func.func @"a b..;$(touch x)"(%a: tensor<64x32xf16>, %b: tensor<32x64xf16>, %c: tensor<64x256xf16>,
    %d: tensor<64x64xf16>) -> (tensor<64x64xf32>, tensor<64x256xf32>) {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<64x64xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<64x64xf32>) -> tensor<64x64xf32>
  %0 = linalg.matmul ins(%a, %b : tensor<64x32xf16>, tensor<32x64xf16>) outs(%f : tensor<64x64xf32>)
      -> tensor<64x64xf32>
  %g = tensor.empty() : tensor<64x256xf32>
  %h = linalg.fill ins(%zero : f32) outs(%g : tensor<64x256xf32>) -> tensor<64x256xf32>
  %1 = linalg.matmul ins(%d, %c : tensor<64x64xf16>, tensor<64x256xf16>) outs(%h : tensor<64x256xf32>)
      -> tensor<64x256xf32>
  return %0, %1 : tensor<64x64xf32>, tensor<64x256xf32>
}
"""
FLAGS = ("--iree-hal-target-device=hip", "--iree-rocm-target=gfx942")
WRITTEN = ("compile_flags.txt", "dispatch.mlir", "dispatch_benchmark.mlir")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Json]:
    """A folder with a bundle for a GPU, and what was said of the folder `handed` that was written for the tuner."""
    folder = tmp_path_factory.mktemp("tuner")
    (folder / "model.mlir").write_text(MODEL, encoding="utf-8")
    check_cli("build", folder / "model.mlir", "-o", folder / "model.tracemap", "--", *FLAGS)
    options = ("--top", "9", "--write-for-amdsharktuner", folder / "handed")
    return folder, json_cli("tune", folder / "model.tracemap", *options, cwd=folder)


@pytest.mark.long
def test_folders_have_harmless_names_in_the_order_of_the_program(written: tuple[Path, Json]) -> None:
    folder, said = written
    kernels = [kernel.name for kernel in load(folder / "model.tracemap").graph.kernels]
    assert len(kernels) == 2
    ranking = said["handed_on"]
    assert (ranking["run"], [each["kernel"] for each in ranking["kernels"]]) == (None, kernels)
    names = sorted(path.name for path in (folder / "handed").iterdir() if path.is_dir())
    assert names == [each["folder"] for each in ranking["kernels"]]
    assert all(re.fullmatch(r"0[12]-[A-Za-z0-9_.-]+", name) for name in names)
    assert json.loads((folder / "handed" / "ranking.json").read_text()) == ranking
    assert sorted(path.name for path in folder.iterdir()) == ["handed", "model.mlir", "model.tracemap"]


@pytest.mark.long
def test_the_compiler_takes_what_the_tuner_gives_it(written: tuple[Path, Json], tmp_path: Path) -> None:
    """As amdsharktuner 3.9.0 does: the configuration is stripped, the flags of the file, and where to begin."""
    from iree.compiler import ir
    from iree.compiler.dialects import iree_codegen

    for place in (path for path in (written[0] / "handed").iterdir() if path.is_dir()):
        assert tuple(sorted(path.name for path in place.iterdir())) == WRITTEN
        flags = (place / "compile_flags.txt").read_text().splitlines()
        assert set(FLAGS) <= set(flags)
        with ir.Context():
            module = ir.Module.parse((place / "dispatch_benchmark.mlir").read_text())
            (root,) = iree_codegen.get_tuner_root_ops(module)
            assert root.parent.name == "func.func"
        stripped = tmp_path / "stripped.mlir"
        strip: list[str | Path] = [find_tool("iree-opt"), "--iree-codegen-strip-compilation-info"]
        subprocess.run([*strip, place / "dispatch_benchmark.mlir", "-o", stripped], check=True)
        assert "lowering_config" not in stripped.read_text()
        for file in (place / "dispatch.mlir", place / "dispatch_benchmark.mlir", stripped):
            command: list[str | Path] = [find_tool("iree-compile"), file, *flags, "--compile-from=executable-sources"]
            subprocess.run([*command, "-o", tmp_path / "m.vmfb"], check=True)


def test_the_loop_calls_the_tuner_in_each_folder(written: tuple[Path, Json], tmp_path: Path) -> None:
    """The tuner is stood in for by a script that notes where it is called, with what."""
    (tmp_path / "python").write_text('#!/bin/sh\nprintf "%s|" "$PWD" "$@" >> "$CALLS"; echo >> "$CALLS"\n')
    (tmp_path / "python").chmod(0o755)
    handed = written[0] / "handed"
    surroundings = {"PATH": f"{tmp_path}:/usr/bin:/bin", "CALLS": str(tmp_path / "calls")}
    subprocess.run(["sh", handed / "tune.sh", "hip://1", "7"], check=True, env=surroundings, cwd=tmp_path)
    calls = [line.rstrip("|").split("|") for line in (tmp_path / "calls").read_text().splitlines()]
    files = ["-m", "dispatch_tuner", "dispatch.mlir", "dispatch_benchmark.mlir"]
    rest = ["--compile-flags-file=compile_flags.txt", "--devices=hip://1", "--num-candidates=7"]
    assert calls == [[str(place), *files, *rest] for place in sorted(handed.glob("0*"))]


@pytest.mark.long
def test_a_run_decides_the_order(written: tuple[Path, Json], tmp_path: Path) -> None:
    """The run of a CPU, with the GPU's module and other times, of which none is a processor's."""
    folder = written[0]
    bundle = load(folder / "model.tracemap")
    check_cli("build", folder / "model.mlir", "-o", tmp_path / "cpu.tracemap")
    check_cli("record", tmp_path / "cpu.tracemap", "--iterations", "2", "-o", tmp_path / "run.csv", "--serial")
    names = {f"dispatch_{n}": kernel.name for n, kernel in enumerate(bundle.graph.kernels)}
    header = json.loads((tmp_path / "run.csv.json").read_text())
    header["module_sha256"] = bundle.graph.module.sha256
    rows = list(csv.DictReader((tmp_path / "run.csv").read_text().splitlines()))
    for row in rows:
        row["cpu_ns"] = ""
        if row["kind"] == "dispatch":
            number = re.findall(r"dispatch_\d", row["kernel"])[0]
            row["kernel"], row["duration_ns"] = names[number], "5" if number.endswith("0") else "70"
    runs = bundle.runs_path
    runs.mkdir(exist_ok=True)
    with (runs / "run-001.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    (runs / "run-001.csv.json").write_text(json.dumps(header))
    try:
        options = ("--top", "2", "--write-for-amdsharktuner", tmp_path / "handed")
        ranking = json_cli("tune", folder / "model.tracemap", *options)["handed_on"]
    finally:
        for path in runs.iterdir():
            path.unlink()
    assert ranking["run"] == "run-001.csv"
    assert [each["kernel"] for each in ranking["kernels"]] == [names["dispatch_1"], names["dispatch_0"]]
    assert "01-" in ranking["kernels"][0]["folder"]
    assert ranking["kernels"][0]["cost_ns"] == 14 * ranking["kernels"][1]["cost_ns"] > 0


@pytest.mark.long
def test_what_cannot_be_handed_on_is_said(written: tuple[Path, Json], built: Built, tmp_path: Path) -> None:
    bundle = written[0] / "model.tracemap"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("mine")
    for words, said in (
        ((bundle, "--top", "1"), "--write-for-amdsharktuner DIR"),
        ((built("hand_mlp"), "--top", "1", "--write-for-amdsharktuner", "new"), "these are for llvm-cpu"),
        ((bundle, "--top", "1", "--write-for-amdsharktuner", "mine"), "was not written for amdsharktuner"),
        ((bundle, "--top", "1", "--write-for-amdsharktuner", "mine", "--force"), "was not written for amdsharktuner"),
        ((bundle, "--top", "1", "--write-for-amdsharktuner", "absent/new"), "does not exist"),
    ):
        done = run_cli("tune", *words, cwd=tmp_path)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
        assert said in done.stderr
    assert [path.name for path in tmp_path.rglob("*")] == ["mine", "file"]


@pytest.mark.long
def test_names_do_not_lead_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "model.mlir").write_text(MODEL.replace("a b..", "../out"))
    check_cli("build", tmp_path / "model.mlir", "-o", tmp_path / "model.tracemap", "--", *FLAGS)
    done = run_cli("tune", "model.tracemap", "--top", "1", "--write-for-amdsharktuner", "new", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "rename it without a slash" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.mlir", "model.tracemap"]


@pytest.mark.long
def test_results_of_the_tuner_are_replaced_only_with_force(written: tuple[Path, Json], tmp_path: Path) -> None:
    words = ("tune", written[0] / "model.tracemap", "--top", "1", "--write-for-amdsharktuner", tmp_path / "new")
    check_cli(*words)
    before = {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()}
    for force in ((), ("--force",)):
        assert "in program order" in check_cli(*words, *force)
        assert {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()} == before
    (results := next(tmp_path.glob("new/01*")) / "tuning_1").mkdir()
    (results / "best.mlir").touch()
    done = run_cli(*words)
    assert done.returncode == 2
    assert "has files that tracemap did not write" in done.stderr
    assert "best.mlir; name another folder, or pass --force" in done.stderr
    check_cli(*words, "--force")
    assert not results.exists()


@pytest.mark.long
@pytest.mark.parametrize("backend", ["vmvx", "rocm"])
def test_code_that_is_not_for_cpus_is_not_run_alone(backend: str, written: tuple[Path, Json], tmp_path: Path) -> None:
    bundle = written[0] / "model.tracemap"
    if backend == "vmvx":
        bundle = tmp_path / "vmvx.tracemap"
        flags = ("--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=vmvx")
        (tmp_path / "model.mlir").write_text(MODEL.replace("f16", "f32"), encoding="utf-8")
        check_cli("build", tmp_path / "model.mlir", "-o", bundle, "--", *flags)
    (kernel, *_) = json_cli("bench", bundle)["kernels"]
    assert kernel["not_measured"].startswith(f"its code is for {backend}")
    assert kernel["verification"]["status"] == "NOT_VERIFIED"
    done = run_cli("tune", bundle, "--top", "1", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
