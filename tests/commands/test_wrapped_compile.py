"""`tracemap build -- iree-compile …`: the same output as iree-compile, and a bundle."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands.test_errors import everything_in, refused
from tests.support import PLAIN_FLAGS, SAMPLES, check_cli, command_line, run_cli
from tests.test_corpus import assembly
from tracemap.core.errors import ToolMissing, UsageInvalid
from tracemap.core.toolchain import find_tool
from tracemap.map.build.compiler.command import read_command
from tracemap.map.bundle import load

MLP = SAMPLES / "models" / "hand_mlp.mlir"
COMPILER = str(find_tool("iree-compile"))


def wrapped(*words: str | Path, cwd: Path, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    return run_cli("build", *options, "--", COMPILER, *words, cwd=cwd)


def plain(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMPILER, *map(str, words)], cwd=cwd, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )


@pytest.mark.long
def test_output_is_the_bundles_module(tmp_path: Path) -> None:
    done = wrapped(MLP, *PLAIN_FLAGS, "-o", "out.vmfb", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    graph = load(tmp_path / "out.tracemap").graph
    assert len(graph.sites) == 4
    assert graph.module.flags == PLAIN_FLAGS
    assert (tmp_path / "out.vmfb").read_bytes() == (tmp_path / "out.tracemap" / "module.vmfb").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.tracemap", "out.vmfb"]


@pytest.mark.long
def test_program_is_the_plain_one(tmp_path: Path) -> None:
    """Instruction for instruction that of the command alone, under the same name."""
    for folder, run in (("ours", wrapped), ("plain", plain)):
        (tmp_path / folder).mkdir()
        dumping = [f"--iree-hal-dump-executable-{kind}-to={folder}" for kind in ("intermediates", "binaries")]
        assert run(MLP, *PLAIN_FLAGS, *dumping, "-o", f"{folder}/out.vmfb", cwd=tmp_path).returncode == 0
    instructions = assembly(tmp_path / "plain")
    assert len(instructions) > 100
    assert assembly(tmp_path / "ours") == instructions
    ours, theirs = (sorted(path.name for path in (tmp_path / name).glob("*.so")) for name in ("ours", "plain"))
    assert ours == theirs


@pytest.mark.long
def test_second_run_replaces_its_own_bundle_and_nothing_else(tmp_path: Path) -> None:
    words = (MLP, *PLAIN_FLAGS, "-o", "out.vmfb")
    for _ in range(2):
        assert wrapped(*words, cwd=tmp_path).returncode == 0
    shutil.rmtree(tmp_path / "out.tracemap")
    (tmp_path / "out.tracemap").mkdir()
    (tmp_path / "out.tracemap" / "mine").touch()
    (tmp_path / "out.vmfb").unlink()
    refused("target-exists", "build", "--", COMPILER, *words, cwd=tmp_path)


@pytest.mark.long
def test_bundle_of_another_name(tmp_path: Path) -> None:
    for _ in range(2):
        done = wrapped(MLP, *PLAIN_FLAGS, "-o", "out.vmfb", cwd=tmp_path, options=("-o", "b.tracemap"))
        assert done.returncode == 0
    assert not (tmp_path / "out.tracemap").exists()
    assert (tmp_path / "out.vmfb").is_file()


@pytest.mark.long
def test_standard_input_and_output(tmp_path: Path) -> None:
    words = ["build", "-o", "b.tracemap", "--", COMPILER, "-", *PLAIN_FLAGS]
    done = subprocess.run(command_line(*words), cwd=tmp_path, input=MLP.read_bytes(), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (tmp_path / "b.tracemap" / "module.vmfb").read_bytes()
    assert load(tmp_path / "b.tracemap").graph.sources[0].name == "<stdin>"


@pytest.mark.long
def test_output_without_a_name_is_not_traced(tmp_path: Path) -> None:
    for output in ([], ["-o", "-"], ["-o", "/dev/null"]):
        words = ["build", "--", COMPILER, str(MLP), *PLAIN_FLAGS, *output]
        done = subprocess.run(command_line(*words), cwd=tmp_path, capture_output=True, check=False)
        assert done.returncode == 0
        assert b"[not-traced]" in done.stderr
        assert bool(done.stdout) == (output != ["-o", "/dev/null"])
    assert not everything_in(tmp_path)


@pytest.mark.long
@pytest.mark.parametrize(
    "flags", [["--compile-to=flow"], ["--compile-to", "flow"], ["--output-format=vm-asm"], ["--compile-to=hal"]]
)
def test_what_makes_no_module_runs_as_it_is(flags: list[str], tmp_path: Path) -> None:
    done = wrapped(MLP, *PLAIN_FLAGS, *flags, "-o", "ours", cwd=tmp_path)
    assert done.returncode == 0
    assert f"no bundle is written: the command uses {flags[0].split('=')[0]}=" in done.stderr
    assert plain(MLP, *PLAIN_FLAGS, *flags, "-o", "plain", cwd=tmp_path).returncode == 0
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "plain").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ours", "plain"]


def broken(folder: Path) -> Path:
    path = folder / "broken.mlir"
    path.write_text("func.func @f() {\n  %0 = linalg.nothing\n  return\n}\n", encoding="utf-8")
    return path


def wrong_after_parsing(folder: Path) -> Path:
    """Parses, and no target can compile it."""
    path = folder / "wrong.mlir"
    path.write_text(
        "func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {\n"
        '  %0 = "stablehlo.custom_call"(%x) {call_target_name = "nobody"} : (tensor<4xf32>) -> tensor<4xf32>\n'
        "  return %0 : tensor<4xf32>\n}\n",
        encoding="utf-8",
    )
    return path


@pytest.mark.parametrize("words", [("absent.mlir",), ("broken.mlir",), ("wrong.mlir",), (MLP, "--no-such-flag"), ()])
def test_failure_is_the_compilers_own(words: tuple[str | Path, ...], tmp_path: Path) -> None:
    broken(tmp_path)
    wrong_after_parsing(tmp_path)
    before = everything_in(tmp_path)
    words = (*words, *PLAIN_FLAGS, "-o", "out.vmfb")
    ours, theirs = wrapped(*words, cwd=tmp_path), plain(*words, cwd=tmp_path)
    assert ours.returncode == theirs.returncode != 0
    assert ours.stderr == theirs.stderr != ""
    assert everything_in(tmp_path) == before


def test_help_and_version_are_the_compilers_own(tmp_path: Path) -> None:
    ours, theirs = wrapped("--version", cwd=tmp_path), plain("--version", cwd=tmp_path)
    assert (ours.returncode, ours.stdout, ours.stderr) == (0, theirs.stdout, theirs.stderr)


@pytest.mark.long
def test_warnings_of_the_compiler_are_passed_on(tmp_path: Path) -> None:
    done = wrapped(MLP, *PLAIN_FLAGS[:2], "-o", "out.vmfb", cwd=tmp_path)
    assert f"{MLP}:0:0: warning: while creating CPU target" in done.stderr


def test_output_in_no_folder(tmp_path: Path) -> None:
    words = ("build", "--", COMPILER, MLP, *PLAIN_FLAGS, "-o", "absent/out.vmfb")
    assert "absent" in refused("target-unwritable", *words, cwd=tmp_path)


def test_a_command_of_something_else(tmp_path: Path) -> None:
    assert "gcc" in refused("usage-invalid", "build", "--", "gcc", "-c", "x.c", cwd=tmp_path)
    assert "--" in refused("usage-invalid", "build", cwd=tmp_path)
    assert "--" in refused("usage-invalid", "build", "--", cwd=tmp_path)
    refused("usage-invalid", "build", "--device", "cuda", "--", COMPILER, MLP, "-o", "x.vmfb", cwd=tmp_path)
    refused("tool-missing", "build", "--", "./iree-compile", MLP, "-o", "x.vmfb", cwd=tmp_path)


@pytest.mark.long
def test_flags_after_a_model_are_still_flags(tmp_path: Path) -> None:
    check_cli("build", MLP, "-o", "b.tracemap", "--", "--iree-opt-level=O2", cwd=tmp_path)
    assert load(tmp_path / "b.tracemap").graph.module.flags[-1] == "--iree-opt-level=O2"


# --- a build system


CMAKE_LIKE = """\
#!/bin/sh
# What a rule of CMake or Make does: one command per model, stop at the first that fails.
set -e
mkdir -p modules
for model in "$@"; do
  {compiler} "$model" {flags} -o "modules/$(basename "$model" .mlir).vmfb"
done
"""


def build_script(folder: Path, compiler: str) -> Path:
    script = folder / "compile.sh"
    script.write_text(CMAKE_LIKE.format(compiler=compiler, flags=shlex.join(PLAIN_FLAGS)), encoding="utf-8")
    return script


def run_script(script: Path, *models: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    environment = {**os.environ, "PATH": path}
    words = ["sh", str(script), *map(str, models)]
    return subprocess.run(words, cwd=script.parent, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.long
def test_script_of_a_build_system(tmp_path: Path) -> None:
    """`iree-compile` is replaced by `tracemap build -- iree-compile`, and nothing else is changed."""
    models = [SAMPLES / "models" / f"{name}.mlir" for name in ("hand_mlp", "hand_repeat12", "jax_mlp")]
    tracing = shlex.join(command_line("build", "--", "iree-compile"))
    done = run_script(build_script(tmp_path, tracing), *models)
    assert done.returncode == 0, done.stderr
    for model in models:
        bundle = load(tmp_path / "modules" / f"{model.stem}.tracemap")
        assert bundle.module_path.read_bytes() == (tmp_path / "modules" / f"{model.stem}.vmfb").read_bytes()
        assert all(site.members for site in bundle.graph.sites)
    flags = SAMPLES / "flags" / "hand_mlp.flags"
    check_cli(
        "record", "modules/hand_mlp.tracemap", "--flagfile", flags, "--iterations", "2", "-o", "r.csv", cwd=tmp_path
    )


@pytest.mark.long
def test_script_stops_where_it_did(tmp_path: Path) -> None:
    script = build_script(tmp_path, shlex.join(command_line("build", "--", "iree-compile")))
    done = run_script(script, MLP, broken(tmp_path), SAMPLES / "models" / "jax_mlp.mlir")
    assert done.returncode == 1
    assert "broken.mlir:2:" in done.stderr
    names = sorted(path.name for path in (tmp_path / "modules").iterdir())
    assert names == ["hand_mlp.tracemap", "hand_mlp.vmfb"]


@pytest.mark.long
@pytest.mark.parametrize("flag", ["@flags.txt", "--mlir-print-debuginfo=false"])
def test_flags_of_what_is_printed_do_not_matter(flag: str, tmp_path: Path) -> None:
    """A file of flags is what stands in it: it is no model, and its flags come in after ours."""
    words = [*PLAIN_FLAGS, "--mlir-print-debuginfo=false", "-mlir-pretty-debuginfo"]
    (tmp_path / "flags.txt").write_text(shlex.join(words), encoding="utf-8")
    done = wrapped(flag, MLP, *(() if flag.startswith("@") else PLAIN_FLAGS), "-o", "out.vmfb", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert all(site.members for site in load(tmp_path / "out.tracemap").graph.sites)


def test_a_flag_without_its_value_fails_as_in_the_command(tmp_path: Path) -> None:
    words = (MLP, *PLAIN_FLAGS, "-o", "out.vmfb", "--iree-llvmcpu-target-cpu-features")
    ours, theirs = wrapped(*words, cwd=tmp_path), plain(*words, cwd=tmp_path)
    assert ours.returncode == theirs.returncode != 0
    assert theirs.stderr.strip() in ours.stderr
    assert list(tmp_path.iterdir()) == []


# --- reading commands


@pytest.mark.parametrize(
    ("words", "model", "output", "flags"),
    [
        (["m.mlir", "-o", "x"], "m.mlir", "x", []),
        (["-o=x", "m.mlir"], "m.mlir", "x", []),
        (["--o", "x", "m.mlir"], "m.mlir", "x", []),
        (["--o=x", "--", "m.mlir"], "m.mlir", "x", []),
        (["--verify", "m.mlir"], "m.mlir", "-", ["--verify"]),
        (["--a", "local", "m.mlir", "-b=1"], "m.mlir", "-", ["--a", "local", "-b=1"]),
        (["--a", "local", "-", "-o", "x"], "-", "x", ["--a", "local"]),
        (["m.mlir", "--a", "local"], "m.mlir", "-", ["--a", "local"]),
    ],
)
def test_parts_of_commands(words: list[str], model: str, output: str, flags: list[str]) -> None:
    command = read_command([COMPILER, *words])
    assert (command.model, command.output, list(command.flags), command.obstacle) == (model, output, flags, "")
    assert list(command.arguments) == words


def test_flag_values_are_told_from_the_model_by_what_exists(tmp_path: Path) -> None:
    model = tmp_path / "m.mlir"
    model.touch()
    for value in ("local", ",".join(["+avx512f"] * 100)):  # a processor's features are more than a file's name may be
        command = read_command([COMPILER, "--a", value, "--verify", str(model)])
        assert (command.model, command.flags) == (str(model), ("--a", value, "--verify"))


def test_several_models_are_left_to_the_compiler() -> None:
    assert read_command([COMPILER, "a.mlir", "b.mlir"]).obstacle == "the command names several files"


def test_programs_are_found_as_a_shell_finds_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "iree-compile"
    other.write_text("#!/bin/sh\n", encoding="utf-8")
    other.chmod(0o755)
    assert read_command([str(other), "m.mlir"]).program == other
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_command(["iree-compile", "m.mlir"]).program == other
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert read_command(["iree-compile", "m.mlir"]).program == Path(COMPILER)
    with pytest.raises(ToolMissing):
        read_command([str(tmp_path / "absent" / "iree-compile"), "m.mlir"])
    with pytest.raises(UsageInvalid):
        read_command([])
