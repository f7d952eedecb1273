"""The compiler's library and iree-compile's own program make the same bundle, also of odd models."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import SAMPLES, Json, check_cli, json_cli, run_cli
from tracemap.core.toolchain import find_tool
from tracemap.map.build.cache import find_entry
from tracemap.map.build.compiler.compilation import Compiler
from tracemap.map.build.compiler.flags import compile_flags
from tracemap.map.build.compiler.library import is_library_of
from tracemap.map.bundle import FOLDERS
from tracemap.map.bundle_documents import CallToKeep

IREE_COMPILE_ONLY = "--verify=true"
"""A flag that the library does not have, so that iree-compile's program runs."""

SLASHES = """
module @m {
  func.func @"../../up"(%x: tensor<64xf32>) -> tensor<64xf32> {
    %0 = stablehlo.exponential %x : tensor<64xf32>
    %1 = stablehlo.reverse %0, dims = [0] : tensor<64xf32>
    return %1 : tensor<64xf32>
  }
}
"""


ADD = """func.func @add(%x: tensor<4xf32>) -> tensor<4xf32> {
  %sum = stablehlo.add %x, %x : tensor<4xf32> loc("layers.py":1:1)
  return %sum : tensor<4xf32>
}
"""

RENAMED = ADD.replace("func.func", 'module @"x.11.y z" { func.func') + "}"
"""The compiler itself gives the module another name."""


def constants(count: int) -> str:
    """A model with a constant that dumps elide, and that is no splat."""
    values = ", ".join(f"{number % 7}.0" for number in range(count))
    return f"""
module @m {{
  func.func @main(%x: tensor<{count}xf32>) -> tensor<{count}xf32> {{
    %c = stablehlo.constant dense<[{values}]> : tensor<{count}xf32>
    %0 = stablehlo.add %x, %c : tensor<{count}xf32>
    %1 = stablehlo.reverse %0, dims = [0] : tensor<{count}xf32>
    return %1 : tensor<{count}xf32>
  }}
}}
"""


def contents(bundle: Path) -> dict[str, bytes | Json]:
    """All files of a bundle, without the flags in its map and the time of the compilation."""
    files: dict[str, bytes | Json] = {
        str(file.relative_to(bundle)): file.read_bytes() for file in bundle.rglob("*") if file.is_file()
    }
    assert files.pop("compiled.json")
    del files["map.json"]
    graph = json.loads((bundle / "map.json").read_bytes())
    assert graph["module"].pop("flags")
    return {**files, "map": graph}


@pytest.mark.parametrize("text", [SLASHES, RENAMED, constants(800), (SAMPLES / "models" / "hand_mlp.mlir").read_text()])
def test_both_ways_make_the_same_bundle(text: str, tmp_path: Path) -> None:
    assert is_library_of(find_tool("iree-compile"))
    (tmp_path / "m.mlir").write_text(text, encoding="utf-8")
    check_cli("build", "m.mlir", "-o", "library.tracemap", cwd=tmp_path)
    check_cli("build", "m.mlir", "-o", "program.tracemap", "--", IREE_COMPILE_ONLY, cwd=tmp_path)
    library, program = contents(tmp_path / "library.tracemap"), contents(tmp_path / "program.tracemap")
    assert library.keys() == program.keys()
    # Constants decide between text and bytecode, which may differ in bytes.
    assert library.pop("kernels/configured.mlir")
    assert program.pop("kernels/configured.mlir")
    assert library == program


def test_functions_with_paths_as_names_have_memory(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    (folder / "m.mlir").write_text(SLASHES, encoding="utf-8")
    check_cli("build", "m.mlir", cwd=folder)
    assert json_cli("memory", "m.tracemap", cwd=folder)["functions"][0]["peak_bytes"] > 0
    assert {path for path in tmp_path.rglob("*") if "m.tracemap" not in path.parts} == {
        folder.parent,
        folder,
        folder / "m.mlir",
    }


def test_printed_ir_is_where_the_user_wants_it(tmp_path: Path) -> None:
    (tmp_path / "m.mlir").write_text(ADD, encoding="utf-8")
    flags = ("--mlir-print-ir-before=iree-flow-outline-dispatch-regions", "--mlir-print-ir-tree-dir=printed")
    check_cli("build", "m.mlir", "--", *flags, cwd=tmp_path)
    assert {path.name.partition("_iree")[2] for path in (tmp_path / "printed").rglob("*.mlir")} == {
        "-flow-outline-dispatch-regions.mlir"
    }
    assert json_cli("memory", "m.tracemap", cwd=tmp_path)["functions"][0]["peak_bytes"] > 0


def test_a_program_may_have_threads_of_mlir(tmp_path: Path) -> None:
    """A forked process does not have them."""
    (tmp_path / "m.mlir").write_text(ADD, encoding="utf-8")
    program = """
import tracemap
from iree.compiler import ir
context = ir.Context()
module = ir.Module.parse("".join("func.func @f%d() { return }\\n" % n for n in range(20)), context)
tracemap.build("m.mlir")
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=False, timeout=300)
    assert done.returncode == 0


IGNORING = """
import signal, sys, tracemap
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print(len(tracemap.build(sys.argv[1], sys.argv[2]).graph.sites))
"""


def test_a_program_may_ignore_how_its_children_end(tmp_path: Path) -> None:
    """The compiler runs a linker, and needs its status."""
    model = SAMPLES / "models" / "hand_mlp.mlir"
    command = [sys.executable, "-c", IGNORING, str(model), str(tmp_path / "m.tracemap")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "4\n", done.stderr


def test_files_of_the_linker_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the compiler is killed, which this flag shows better: then the compiler itself removes none."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    flag = "--iree-llvmcpu-keep-linker-artifacts"
    check_cli("build", SAMPLES / "models" / "hand_mlp.mlir", "-o", tmp_path / "m.tracemap", "--", flag)
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_limit_for_files_is_named(tmp_path: Path) -> None:
    model = str(SAMPLES / "models" / "hand_mlp.mlir")
    build = [sys.executable, "-m", "tracemap", "build", model, "-o", "m.tracemap"]
    limited = ["bash", "-c", 'ulimit -f 100; exec "$@"', "bash", *build, "--no-cache"]
    done = subprocess.run(limited, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "`ulimit -f`" in done.stderr


def test_flags_for_printing_leave_the_texts_of_kernels_alone(tmp_path: Path) -> None:
    (tmp_path / "m.mlir").write_text(ADD, encoding="utf-8")
    for name, flags in (("plain", ()), ("generic", ("--", "--mlir-print-op-generic"))):
        check_cli("build", "m.mlir", "-o", f"{name}.tracemap", *flags, cwd=tmp_path)
    (plain,) = (tmp_path / "plain.tracemap" / "kernels").glob("add_*.mlir")
    assert (tmp_path / "generic.tracemap" / "kernels" / plain.name).read_bytes() == plain.read_bytes()


def test_constants_of_the_configured_module_are_whole(tmp_path: Path) -> None:
    (tmp_path / "m.mlir").write_text(constants(800), encoding="utf-8")
    check_cli("build", "m.mlir", cwd=tmp_path)
    assert b"dense_resource<__elided__>" not in (tmp_path / "m.tracemap" / "kernels" / "configured.mlir").read_bytes()


# ---- cache


SPEC = """module attributes {transform.with_named_sequence} {
  transform.named_sequence @__transform_main(%module: !transform.any_op {transform.consumed}) -> !transform.any_op {
    transform.yield %module : !transform.any_op
  }
}
"""


class Project:
    """A folder with a model, and a cache of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "m.mlir").write_text(ADD, encoding="utf-8")
        (folder / "layers.py").write_text("x + x\n", encoding="utf-8")
        self._times: set[int] = set()

    def compiles(self, *arguments: str | Path) -> bool:
        """Build; whether the compiler ran for it, which shows in the time that the bundle says."""
        check_cli("build", "m.mlir", *arguments, cwd=self.folder)
        taken = json.loads((self.folder / "m.tracemap" / "compiled.json").read_bytes())["elapsed_ns"]
        is_new = taken not in self._times
        self._times.add(taken)
        return is_new


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("TRACEMAP_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "work").mkdir()
    return Project(tmp_path / "work")


def test_an_unchanged_model_is_compiled_once(project: Project) -> None:
    assert project.compiles()
    first = contents(project.folder / "m.tracemap")
    (project.folder / "m.tracemap" / "runs" / "kept.csv").write_text("", encoding="utf-8")
    assert not project.compiles()
    assert contents(project.folder / "m.tracemap") == {**first, "runs/kept.csv": b""}
    assert {path.name for path in (project.folder / "m.tracemap").iterdir() if path.is_dir()} == set(FOLDERS)
    assert project.compiles("--no-cache")


def test_what_a_build_depends_on_decides(project: Project) -> None:
    (project.folder / "spec.mlir").write_text(SPEC, encoding="utf-8")
    spec = "--iree-preprocessing-transform-spec-filename=spec.mlir"
    assert project.compiles()
    assert project.compiles("--", "--iree-opt-level=O1")
    assert project.compiles("--", spec)
    assert not project.compiles("--", spec)
    (project.folder / "spec.mlir").write_text(f"{SPEC}\n", encoding="utf-8")
    assert project.compiles("--", spec)
    (project.folder / "layers.py").write_text("x + x  # twice\n", encoding="utf-8")
    assert project.compiles()
    (kept,) = (project.folder / "m.tracemap" / "source" / "python").iterdir()
    assert kept.read_text(encoding="utf-8") == "x + x  # twice\n"
    (project.folder / "m.mlir").write_text(ADD.replace("stablehlo.add", "stablehlo.multiply"), encoding="utf-8")
    assert project.compiles()


@pytest.mark.parametrize("damaged", ["map.json", "module.vmfb", "source/m.mlir"])
def test_a_damaged_entry_is_not_used(damaged: str, project: Project, tmp_path: Path) -> None:
    """Another program may be removing its files at the same time."""
    assert project.compiles()
    first = contents(project.folder / "m.tracemap")
    (kept,) = (tmp_path / "cache" / "builds").iterdir()
    (kept / "bundle" / damaged).unlink()
    assert project.compiles()
    assert contents(project.folder / "m.tracemap") == first
    shutil.rmtree(project.folder / "m.tracemap")
    assert not project.compiles()


@pytest.mark.parametrize(
    "words",
    [
        ("--iree-opt-import-parameters=scope=side.bin",),
        ("--iree-opt-import-parameters", "scope=side.bin"),
        ("--iree-link-bitcode=other.bc,side.bin",),
        ("--iree-opt-export-parameters=scope=new.irpa",),
        ("--iree-codegen-dump-tuning-specs-to", "new"),
        ("--iree-scheduling-dump-statistics-file=new",),
        ("--iree-hal-preprocess-executables-with=sed s/a/b/",),
        ("--mlir-timing",),
    ],
)
def test_flags_with_files_decide(words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The content of files to read is part of what is looked for; files to write exist only after a compilation."""
    monkeypatch.setenv("TRACEMAP_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    compiler = Compiler.installed(compile_flags("local", words))
    entries = []
    for content in (b"1", b"2"):
        (tmp_path / "side.bin").write_bytes(content)
        entries.append(find_entry(compiler, b"", (), CallToKeep()))
    assert entries[0] != entries[1] if "side.bin" in words[-1] else entries == [None, None]


def test_a_cache_that_cannot_be_written_is_no_error(project: Project, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("no folder", encoding="utf-8")
    assert project.compiles()
    assert project.compiles()
    assert run_cli("build", "m.mlir", cwd=project.folder).stderr.count("\n") < 6
