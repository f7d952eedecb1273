"""`tracemap tune`: a badly tiled kernel recovers, a plain iree-compile takes the spec, noise is no gain."""

from __future__ import annotations

import random
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tracemap
from tests.support import PLAIN_FLAGS, SAMPLES, Json, check_cli, interruptible, json_cli, run_cli
from tracemap.core.errors import ToolFailed
from tracemap.core.toolchain import find_tool
from tracemap.kernels import bench
from tracemap.kernels import benchmark_module as wrapping
from tracemap.kernels import runner_jobs as running
from tracemap.kernels import tune as tuning
from tracemap.kernels.configurations import (
    PIPELINES,
    Candidate,
    candidates_of,
    levels_of,
    lowering_config_text,
    other_pipelines,
)
from tracemap.kernels.model import Tune
from tracemap.kernels.runner_jobs import FailedCall, flag_parts, key_of, tool_identity
from tracemap.kernels.tune import interval_of
from tracemap.map.build import build
from tracemap.map.build.compiler.remarks import NO_THREADS

MODEL = SAMPLES / "models" / "hand_mlp.mlir"
KERNEL = "mlp_dispatch_0_matmul_32x256x784_f32"
BAD = (
    "#iree_cpu.lowering_config<cache_parallel = [1, 2, 0], distribution = [1, 2, 0], "
    "vector_common_parallel = [1, 1, 0], vector_reduction = [0, 0, 1]>"
)
SPEC = f"""
module attributes {{transform.with_named_sequence, iree_codegen.tuning_spec_with_default_entrypoint}} {{
  transform.named_sequence @apply(%op: !transform.any_op {{transform.readonly}},
      %config: !transform.any_param {{transform.readonly}}) {{
    transform.annotate %op "compilation_info" = %config : !transform.any_op, !transform.any_param
    transform.yield
  }}
  transform.named_sequence @match(%op: !transform.any_op {{transform.readonly}})
      -> (!transform.any_op, !transform.any_param) {{
    %ins, %outs = transform.iree.match.cast_compatible_dag_from_root %op {{
    ^bb0(%a: tensor<32x784xf32>, %b: tensor<784x256xf32>, %c: tensor<32x256xf32>):
      %0 = linalg.matmul ins(%a, %b : tensor<32x784xf32>, tensor<784x256xf32>)
          outs(%c : tensor<32x256xf32>) -> tensor<32x256xf32>
    }} : (!transform.any_op) -> (!transform.any_value, !transform.any_value)
    %config = transform.param.constant #iree_codegen.compilation_info<lowering_config = {BAD},
        translation_info = <pipeline = #iree_cpu.pipeline<DoubleTilingExpert>>> -> !transform.any_param
    transform.yield %op, %config : !transform.any_op, !transform.any_param
  }}
  transform.named_sequence @__kernel_config(%variant: !transform.any_op {{transform.consumed}}) -> !transform.any_op
      attributes {{iree_codegen.tuning_spec_entrypoint}} {{
    %result = transform.foreach_match in %variant @match -> @apply : (!transform.any_op) -> !transform.any_op
    transform.yield %result : !transform.any_op
  }}
}}
"""


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Json]:
    """A folder with a bundle whose dearest kernel has bad tiles, and what was found for it."""
    folder = tmp_path_factory.mktemp("tune")
    (folder / "bad.mlir").write_text(SPEC, encoding="utf-8")
    flag = f"--iree-codegen-tuning-spec-path={folder / 'bad.mlir'}"
    check_cli("build", MODEL, "-o", folder / "bad.tracemap", "--", flag)
    options = ("--kernel", KERNEL, "--candidates", "12", "--pairs", "2", "--seconds", "0.3", "--serial")
    return folder, json_cli("tune", folder / "bad.tracemap", *options, "-o", folder / "good.mlir", cwd=folder)


@pytest.mark.long
def test_a_badly_tiled_kernel_is_brought_back(tuned: tuple[Path, Json]) -> None:
    _, found = tuned
    (kernel,) = found["kernels"]
    assert kernel["kernel"] == KERNEL
    assert kernel["tried"] == 12
    assert kernel["best"]["ratio"]["high"] < 0.6
    assert found["diagnostics"] == []
    first = found["ops"][0]
    assert (first["name"], first["line"]) == ("linalg.matmul", 11)
    assert first["ratio"]["high"] < 0.8


@pytest.mark.long
def test_a_plain_compile_takes_the_spec(tuned: tuple[Path, Json]) -> None:
    folder, found = tuned
    target = folder / "configured.mlir"
    flags = (f"--iree-codegen-tuning-spec-path={folder / 'good.mlir'}", "--compile-to=executable-configurations")
    # With several threads the compiler may wait for itself for ever (`Compiler.flags_to_run`).
    command: list[str | Path] = [find_tool("iree-compile"), MODEL, *PLAIN_FLAGS, NO_THREADS, *flags, "-o", target]
    subprocess.run(command, check=True, capture_output=True)
    wanted = found["kernels"][0]["best"]["configuration"]
    texts = re.findall(r"linalg\.matmul \{lowering_config = (#iree_cpu\.lowering_config<[^>]*>)", target.read_text())
    assert [levels_of(text) == levels_of(wanted) for text in texts] == [True, False, False]


@pytest.mark.long
def test_a_spec_may_be_printed_and_is_all_that_is(tuned: tuple[Path, Json], tmp_path: Path) -> None:
    folder, _ = tuned
    kept = ("--candidates", "12", "--pairs", "0", "--seconds", "0.3", "--serial", "--work", folder / "good.mlir.work")
    done = run_cli("tune", folder / "bad.tracemap", "--kernel", KERNEL, *kept, "-o", "-", cwd=tmp_path)
    assert done.stdout == (folder / "good.mlir").read_text(encoding="utf-8")
    assert KERNEL in done.stderr
    assert "spec" not in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_a_program_without_kernels_has_none_to_tune(tmp_path: Path) -> None:
    (tmp_path / "m.mlir").write_text("func.func @main(%a: i32) -> i32 { return %a : i32 }\n", encoding="utf-8")
    check_cli("build", "m.mlir", cwd=tmp_path)
    done = run_cli("tune", "m.tracemap", "--top", "1", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "m.tracemap: the program has no kernels" in done.stderr


@pytest.mark.long
def test_the_spec_is_not_replaced_without_being_asked(tuned: tuple[Path, Json]) -> None:
    folder, _ = tuned
    before = (folder / "good.mlir").read_bytes()
    done = run_cli("tune", folder / "bad.tracemap", "--kernel", KERNEL, "-o", folder / "good.mlir")
    assert (done.returncode, done.stdout) == (2, "")
    assert (folder / "good.mlir").read_bytes() == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "select kernels to tune"),
        (["--kernel", "nothing"], "kernel of the map has this name"),
        (["--op", "op999"], "the map has no op of this id"),
        (["--top", "0"], "top"),
        (["--kernel", "*", "-o", "-", "--format", "json"], "only one result can go to standard output"),
        (["--top", "1"], "has no run, so the most expensive kernels are unknown"),
        (["--kernel", "*", "--function", "nothing"], "the module has no function 'nothing'"),
        (["--kernel", "*", "--input", "3xf32"], "give one --input per argument"),
    ],
)
@pytest.mark.long
def test_what_cannot_be_tuned_is_said(options: list[str], words: str, tuned: tuple[Path, Json]) -> None:
    folder, _ = tuned
    done = run_cli("tune", folder / "bad.tracemap", *options, cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr


# ---- what was done is not done again

SEARCH = ("--kernel", KERNEL, "--candidates", "3", "--pairs", "0")


class _Interrupted(BaseException):
    """Stands for any end of the process."""


def kept(work: Path) -> dict[str, tuple[int, int]]:
    """What is kept, each file with its inode and the time of its last change; what begins with a dot is not whole."""
    files = [path for path in work.rglob("*") if path.is_file() and not path.name.startswith(".")]
    return {str(path.relative_to(work)): (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}


def spied(function: Callable[..., object], calls: list[object]) -> Callable[..., object]:
    """The function, which notes in a list that it was called."""

    def noted(*arguments: object) -> object:
        calls.append(arguments)
        return function(*arguments)

    return noted


@pytest.mark.long
def test_nothing_is_compiled_or_verified_twice(
    tuned: tuple[Path, Json], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real compilations are counted, by their texts; one of them does not come to its end."""
    compiled: list[str] = []
    verified: list[object] = []
    built: list[object] = []
    plain: Callable[..., Path] = wrapping.compile_benchmark_module
    plain_build = build.build

    def counted(text: str, *rest: object) -> Path:
        compiled.append(text)
        if len(compiled) == 3:
            raise _Interrupted
        return plain(text, *rest)

    def search() -> Tune:
        return tracemap.tune(
            tuned[0] / "bad.tracemap",
            output=tmp_path / "spec.mlir",
            kernel=(KERNEL,),
            candidates=4,
            pairs=0,
            force=True,
        )

    monkeypatch.setattr(tuning, "compile_benchmark_module", counted)
    monkeypatch.setattr(tuning, "verify_call", spied(bench.verify_call, verified))
    monkeypatch.setattr(build, "build", spied(plain_build, built))
    with pytest.raises(_Interrupted):
        search()
    assert not (tmp_path / "spec.mlir").exists()
    first = search()
    texts = [*compiled[:2], *compiled[3:]]  # the third was asked for, and not made
    assert len(texts) == len(set(texts)) == 5  # the default and four others
    assert (first.kernels[0].tried, len(built)) == (4, 1)
    assert len(verified) == 5 - first.kernels[0].failed
    assert first.kernels[0].best is not None
    spec = (tmp_path / "spec.mlir").read_bytes()
    again = search()
    assert (again, (tmp_path / "spec.mlir").read_bytes()) == (first, spec)
    assert (len(compiled), len(built)) == (6, 1)


@pytest.mark.long
def test_after_a_kill_it_goes_on(tuned: tuple[Path, Json], tmp_path: Path) -> None:
    spec, work = tmp_path / "spec.mlir", tmp_path / "spec.mlir.work"
    words = ["tune", str(tuned[0] / "bad.tracemap"), *SEARCH, "-o", str(spec)]
    before: dict[str, tuple[int, int]] = {}
    for ending, modules in ((signal.SIGKILL, 1), (signal.SIGINT, 3)):
        with subprocess.Popen(interruptible(*words), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as child:
            wait_for_modules(work, modules)
            child.send_signal(ending)
            said = child.communicate(timeout=60)[1].decode()
        assert child.returncode == -ending  # a shell shows 130 for SIGINT
        if ending == signal.SIGINT:
            assert said == "tracemap: interrupted\n"
        assert not spec.exists()
        assert before.items() <= kept(work).items()
        before = kept(work)
    check_cli(*words)
    after = kept(work)
    assert before.items() <= after.items()
    assert "transform.named_sequence" in spec.read_text()
    check_cli(*words, "--force")
    assert kept(work) == after


def wait_for_modules(work: Path, number: int) -> None:
    until = time.monotonic() + 60
    while len(list(work.glob("modules/*.vmfb"))) < number:
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.long
def test_a_damaged_result_is_made_again(tuned: tuple[Path, Json], tmp_path: Path) -> None:
    options = ("--kernel", KERNEL, "--candidates", "1", "--pairs", "0", "-o", tmp_path / "spec.mlir", "--force")
    check_cli("tune", tuned[0] / "bad.tracemap", *options)
    results = sorted((tmp_path / "spec.mlir.work" / "results").glob("*.json"))
    for number, file in enumerate(results):
        file.write_bytes([b"", b"{", b"[1]", b"\xff"][number % 4])
    check_cli("tune", tuned[0] / "bad.tracemap", *options)
    assert all(file.read_bytes().startswith(b"{") and len(file.read_bytes()) > 2 for file in results)


@pytest.mark.long
def test_a_folder_that_cannot_be_made_is_said(tuned: tuple[Path, Json], tmp_path: Path) -> None:
    (tmp_path / "spec.mlir.work").write_text("a file of mine")
    done = run_cli("tune", tuned[0] / "bad.tracemap", *SEARCH, "-o", tmp_path / "spec.mlir")
    assert (done.returncode, done.stdout) == (2, "")
    assert "choose another with --work" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["spec.mlir.work"]


@pytest.mark.long
def test_what_cannot_be_timed_is_said_and_not_kept(
    tuned: tuple[Path, Json], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real processes time modules in a folder whose name is not ASCII; then none of them is given the time to."""
    work = tmp_path / "ü.work"
    answers: list[object] = []

    def search(threshold: float) -> Tune:
        return tracemap.tune(
            tuned[0] / "bad.tracemap",
            output=tmp_path / "spec.mlir",
            work=work,
            kernel=(KERNEL,),
            candidates=4,
            pairs=0,
            threshold=threshold,
            force=True,
        )

    plain: Callable[..., Iterator[object]] = running.run_job

    def noted(*arguments: object) -> Iterator[object]:
        for answer in plain(*arguments):
            answers.append(answer)
            yield answer

    monkeypatch.setattr(tuning, "run_job", noted)
    assert search(1.0).kernels[0].best is not None
    assert len(answers) > 30
    assert not [answer for answer in answers if isinstance(answer, FailedCall)]
    before = kept(work)
    monkeypatch.setattr(tuning, "_LIMIT_S", 0.0)
    with pytest.raises(ToolFailed, match=f"{KERNEL}: the compiler's own configuration cannot be timed: it did not end"):
        search(2.0)
    assert kept(work) == before


def test_keys_stand_for_all_that_they_are_made_of(tmp_path: Path) -> None:
    assert key_of("ab", "c") != key_of("a", "bc")
    spec = tmp_path / "spec.mlir"
    flags = (f"--iree-codegen-tuning-spec-path={spec}",)
    seen = [key_of(*flag_parts(flags))]
    for text in ("one", "another"):
        spec.write_text(text)
        seen.append(key_of(*flag_parts(flags)))
    assert len(set(seen)) == 3
    assert "IREE compiler version" in tool_identity()


# ---- candidates


@pytest.mark.long
def test_a_kernel_without_tiles_says_so(tuned: tuple[Path, Json]) -> None:
    folder, _ = tuned
    found = json_cli(
        "tune", folder / "bad.tracemap", "--kernel", "*softmax*", "--candidates", "2", "--pairs", "0", cwd=folder
    )
    (kernel,) = found["kernels"]
    assert kernel["tried"] == 0 or kernel["best"] is None or kernel["best"]["ratio"]["high"] < 1


@pytest.mark.long
def test_a_kernel_that_cannot_be_verified_is_not_tuned(tmp_path: Path) -> None:
    kind = "tensor<4096xi32>"
    text = f"func.func @f(%a: {kind}) -> {kind} {{\n  %0 = math.ctpop %a : {kind}\n  return %0 : {kind}\n}}\n"
    (tmp_path / "model.mlir").write_text(text, encoding="utf-8")
    check_cli("build", tmp_path / "model.mlir", "-o", tmp_path / "model.tracemap")
    (kernel,) = json_cli("tune", tmp_path / "model.tracemap", "--kernel", "*", cwd=tmp_path)["kernels"]
    assert (kernel["tried"], kernel["best"]) == (0, None)
    assert "cannot be verified: math.ctpop has no reference" in kernel["obstacle"]


LEVELS = levels_of(
    "#iree_cpu.lowering_config<cache_parallel = [8, 64, 0], distribution = [8, 64, 0], "
    "vector_common_parallel = [8, 8, 0], vector_reduction = [0, 0, 8]>"
)


OWN = Candidate(LEVELS, "DoubleTilingExpert")


def test_candidates_differ_from_the_default_and_from_each_other() -> None:
    found = [lowering_config_text(each.levels) for each in candidates_of(OWN, 100)]
    assert len(found) == len(set(found)) == 100
    assert lowering_config_text(LEVELS) not in found
    assert all(lowering_config_text(levels_of(each)) == each for each in found)


def test_the_nearest_candidates_come_first() -> None:
    first = next(candidates_of(OWN, 1)).levels
    changed = [name for name in LEVELS if first[name] != LEVELS[name] and name != "cache_parallel"]
    assert len(changed) == 1
    assert all(0 not in sizes for sizes in ([size for size in first["distribution"] if size],))


def test_loops_that_are_not_tiled_stay_so() -> None:
    for each in (candidate.levels for candidate in candidates_of(OWN, 300)):
        assert each["distribution"][2] == each["vector_common_parallel"][2] == 0
        assert each["vector_reduction"][:2] == (0, 0)
        assert each["cache_parallel"] == each["distribution"]


def test_most_candidates_have_the_compilers_own_pipeline() -> None:
    others = other_pipelines(OWN, 24)
    assert {each.pipeline for each in others} == set(PIPELINES) - {OWN.pipeline}
    assert all(each.levels == LEVELS for each in others)
    assert len(other_pipelines(OWN, 8)) == 2
    assert other_pipelines(Candidate(LEVELS, ""), 24) == []
    found = list(candidates_of(OWN, 100, ["Default", "Mmt4dTilingExpert"]))
    assert len({(lowering_config_text(each.levels), each.pipeline) for each in found}) == 100
    assert [each.pipeline for each in found].count(OWN.pipeline) == 75


@pytest.mark.long
def test_another_pipeline_is_found_and_written(tmp_path: Path) -> None:
    """The pipeline `Default` makes no vectors, whatever their sizes: one that does is better."""
    spec = SPEC.replace("DoubleTilingExpert", "Default").replace(BAD, lowering_config_text(LEVELS))
    (tmp_path / "bad.mlir").write_text(spec, encoding="utf-8")
    flag = f"--iree-codegen-tuning-spec-path={tmp_path / 'bad.mlir'}"
    check_cli("build", MODEL, "-o", tmp_path / "bad.tracemap", "--", flag)
    options = ("--kernel", KERNEL, "--candidates", "4", "--pairs", "0", "-o", tmp_path / "good.mlir")
    found = json_cli("tune", tmp_path / "bad.tracemap", *options)
    best = found["kernels"][0]["best"]
    assert best["pipeline"] == "DoubleTilingExpert"
    assert found["diagnostics"] == []
    text = (tmp_path / "good.mlir").read_text()
    assert "translation_info<pipeline = #iree_cpu.pipeline<DoubleTilingExpert>>" in text


def test_the_interval_of_a_median_holds_it_in_nineteen_of_twenty() -> None:
    """Of 15 values the 4th from either end bound the median with 96 % (a table of order statistics)."""
    ordered = [float(number) for number in range(15)]
    found = interval_of(ordered)
    assert found is not None
    assert (found.median, found.low, found.high) == (7.0, 3.0, 11.0)
    assert interval_of(ordered[:5]) is None
    chance = random.Random(3)
    held = 0
    for _ in range(2000):
        found = interval_of([chance.lognormvariate(0, 0.2) for _ in range(15)])
        assert found is not None
        held += found.low <= 1.0 <= found.high
    assert held / 2000 >= 0.95
