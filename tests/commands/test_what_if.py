"""`tracemap what-if`: its selectors, its line and its list, and what it rejects."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tracemap
from tests.conftest import Built, Recorded
from tests.support import check_cli, json_cli, run_cli
from tracemap.commands.what_if import parse_factor
from tracemap.core.errors import UsageInvalid

MODEL = "jax_mlp"
LINE = re.compile(
    r"(?P<what>.+): (?P<sign>[−+]?)(?P<saved>\d+\.\d) % \((?P<low>-?\d+\.\d) to (?P<high>-?\d+\.\d)\), "
    r"\S+(?: [nµm]?s)? -> \S+ [nµm]?s per invocation(?:; (?P<reason>.+))?\n"
)


@pytest.fixture(scope="module")
def run(built: Built, recorded: Recorded) -> tuple[str, ...]:
    """The arguments for a run and its bundle."""
    return str(recorded(MODEL)), "--map", str(built(MODEL))


def line_of(run: tuple[str, ...], *options: str) -> re.Match[str]:
    text = check_cli("what-if", *run, *options)
    match = LINE.fullmatch(text)
    assert match is not None, text
    return match


def test_a_change_is_a_line_with_its_interval(run: tuple[str, ...]) -> None:
    twice = line_of(run, "--op", "op2")
    assert (twice["what"], twice["sign"], twice["reason"]) == ("op2 2x faster", "−", None)
    assert 0 < float(twice["low"]) < float(twice["saved"]) < float(twice["high"]) < 100
    tenfold, removed = (
        line_of(run, "--op", "op2", "--faster", "10x"),
        line_of(run, "--op", "op2", "--faster", "removed"),
    )
    assert float(twice["saved"]) < float(tenfold["saved"]) < float(removed["saved"])
    assert (tenfold["what"], removed["what"]) == ("op2 10x faster", "op2 removed")
    assert line_of(run, "--op", "op2", "--faster", "0.5x")["sign"] == "+"
    assert line_of(run, "--op", "op2", "--faster", "roofline")["what"] == "op2 at its roofline"


def test_changes_are_named_as_everywhere(run: tuple[str, ...]) -> None:
    """The line of Python with all products, their ops and their kernels."""
    found = {
        name: json_cli("what-if", *run, name, what, "--json")
        for name, what in (("--line", "jax_models.py:11"), ("--op", "dot_general"), ("--kernel", "main_dispatch_0"))
    }
    changes = {name: value["changes"][0] for name, value in found.items()}
    assert set(changes["--op"]["ops"]) < set(changes["--line"]["ops"])
    assert {"op2", "op5", "op21"} == set(changes["--kernel"]["ops"])
    assert changes["--line"]["after_ns"] <= changes["--op"]["after_ns"] < changes["--op"]["high_ns"]
    assert {value["before_ns"] for value in found.values()} == {found["--op"]["before_ns"]}
    assert changes["--op"] == json_cli("what-if", *run, "--op", "dot_general", "--format", "json")["changes"][0]
    assert line_of(run, "--overhead")["what"] == "overhead 2x faster"
    assert line_of(run, "--overhead", "op2", "--faster", "removed")["what"] == "overhead of op2 removed"
    assert line_of(run, "--workers", "1")["what"] == "1 worker"


def test_without_a_change_all_ops_are_ranked(run: tuple[str, ...]) -> None:
    title, headings, *rows = check_cli("what-if", *run, "--top", "3").splitlines()
    assert re.fullmatch(r"Gain of the mean time of an invocation, .+, if an op gets 2x faster", title)
    assert headings.split()[:3] == ["op", "line", "name"]
    assert [row.split()[0] for row in rows[:2]] == ["op2", "op7"]
    assert re.fullmatch(r"… \d+ more ops", rows[3])
    assert "if an op gets removed" in check_cli("what-if", *run, "--faster", "removed")


def test_ops_without_a_gain_say_why(run: tuple[str, ...]) -> None:
    constant = line_of(run, "--op", "op3")
    assert (constant["sign"], constant["reason"]) == ("", "takes no time in any measured dispatch, copy or fill")
    assert line_of(run, "--overhead", "op3")["reason"] == "no time without a kernel belongs to it"


def test_python_has_the_same_gains(run: tuple[str, ...]) -> None:
    result = tracemap.attribute(run[0], run[2])
    (change,) = json_cli("what-if", *run, "--line", "jax_models.py:11", "--faster", "4x", "--json")["changes"]
    gain = result.what_if(line="jax_models.py:11", faster="4x")
    assert [gain.after_ns, gain.low_ns, gain.high_ns] == [change[f"{name}_ns"] for name in ("after", "low", "high")]
    with pytest.raises(UsageInvalid, match="what_if needs a change"):
        result.what_if()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--op", "op2", "--line", "3"), "--op, --line name several changes; name one"),
        (("--op", "op99999"), "op99999: the map has no op of this id"),
        (("--line", "dot_general"), "--line dot_general: is no line"),
        (("--scope", "nowhere"), "nowhere: no op of the run is in a scope of this name"),
        (("--kernel", "nothing"), "nothing: no op, function, scope, line, dispatch or kernel"),
        (("--op", "op2", "--faster", "0x"), "--faster 0x: is no factor above 0"),
        (("--op", "op2", "--faster", "twice"), "--faster twice: is no factor above 0"),
        (("--overhead", "--faster", "roofline"), "the overhead has no roofline"),
        (("--overhead", "--workers", "3"), "--overhead and --workers are different changes"),
        (("--workers", "0"), "0 is not in the range"),
        (("--workers", "1" + 21 * "0"), f"1{21 * '0'} is not in the range"),
    ],
)
def test_changes_that_cannot_be_are_rejected(run: tuple[str, ...], options: tuple[str, ...], said: str) -> None:
    done = run_cli("what-if", *run, *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_runs_that_do_not_tell_are_rejected(built: Built, tmp_path: Path) -> None:
    bare = tmp_path / "bare.csv"
    bare.write_text("kernel,duration_ns\nmain_dispatch_0_matmul_32x256x784_f32,1000\n")
    done = run_cli("what-if", bare, "--map", built(MODEL), "--op", "op2")
    assert (done.returncode, done.stdout) == (2, "")
    assert "the run does not say when its work ran" in done.stderr
    listed = run_cli("what-if", bare, "--map", built(MODEL))
    assert (listed.returncode, listed.stdout) == (2, "")


@pytest.mark.long
def test_runs_without_timed_work_say_so(tmp_path: Path) -> None:
    """The runtime times no copies within a submission, and an identity has no work at all."""
    model = tmp_path / "copies.mlir"
    model.write_text(_COPIES, encoding="utf-8")
    check_cli("build", model, cwd=tmp_path)
    for function in ("copied", "same"):
        run = check_cli("record", "copies.tracemap", "--function", function, "--iterations", "2", cwd=tmp_path).strip()
        for options in ((), ("--overhead",), ("--workers", "2")):
            done = run_cli("what-if", run, "--map", "copies.tracemap", *options, cwd=tmp_path)
            assert (done.returncode, done.stdout) == (2, "")
            assert "the run has no time of a kernel, copy or fill" in done.stderr
            assert "tracemap record" not in done.stderr


_COPIES = """
func.func @copied(%a: tensor<64x64xf32>, %b: tensor<64x64xf32>) -> tensor<128x64xf32> {
  %0 = stablehlo.concatenate %a, %b, dim = 0 : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<128x64xf32>
  return %0 : tensor<128x64xf32>
}
func.func @same(%a: tensor<64x64xf32>) -> tensor<64x64xf32> {
  return %a : tensor<64x64xf32>
}
"""


def test_factors() -> None:
    assert [parse_factor(text) for text in ("2x", "1.5", "0.5x")] == [2.0, 1.5, 0.5]
