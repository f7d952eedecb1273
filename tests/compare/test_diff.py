"""Two runs or bundles compared: matching of ops, sums that balance, findings."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from msgspec import structs

import tracemap
from tests.conftest import Built, Recorded
from tests.diffs import compared
from tests.oracle.edits import LEAST_PRECISION, LEAST_RECALL, Score, edited, score
from tests.schemas import validator
from tests.support import SAMPLES, check_cli, json_cli, run_cli
from tests.terminals import RUN
from tracemap.commands.diff import matched_models, pages_of
from tracemap.compare.findings import (
    NO_CORRECTION,
    NO_DRIFT,
    MeasuredOp,
    MedianInterval,
    findings,
    machine_of,
    ratio_between,
    regressions,
    student,
)
from tracemap.compare.matching import match_flows
from tracemap.compare.model import BASIS, Amount, Comparison, KernelCode, Match, MatchKind, Unbalanced
from tracemap.compare.sides import scaled_to
from tracemap.core.errors import UsageInvalid
from tracemap.core.units import UNKNOWN
from tracemap.map.build.model.dataflow import FlowBuilder
from tracemap.map.bundle import Bundle, load
from tracemap.reports.terminal.diff import finding_text
from tracemap.runs.statistics import median_ranks

# ---- which op is which


@pytest.mark.long
def test_ops_of_edited_programs_are_found_again() -> None:
    total = Score()
    for seed in range(16):
        total.add(score(seed))
    assert total.ops > 1500
    assert len(total.edits) == 8
    assert total.precision >= LEAST_PRECISION, "\n".join(total.differences)
    assert total.recall >= LEAST_RECALL, "\n".join(total.differences)


def test_the_record_of_the_editor_tells_wrong_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above stands on `score`; a blind one would pass everything."""
    program = edited(3)
    flows = FlowBuilder()
    right = match_flows(flows.of(program.before.encode()), flows.of(program.after.encode()))
    turned = tuple(structs.replace(one, after=two.after) for one, two in zip(right, right[1:] + right[:1], strict=True))
    monkeypatch.setattr("tests.oracle.edits.matched", lambda _: turned)
    assert score(3).precision < 0.2


MODEL = """
func.func @main(%x: tensor<4x8xf32>, %w: tensor<8x8xf32>) -> tensor<4x8xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %1 = stablehlo.tanh %0 : tensor<4x8xf32>
  %2 = stablehlo.add %1, %x : tensor<4x8xf32>
  return %2 : tensor<4x8xf32>
}
"""


def names_matched(before: str, after: str) -> dict[str, tuple[str, MatchKind, bool]]:
    flows = FlowBuilder()
    one, two = flows.of(before.encode()), flows.of(after.encode())
    name_of = {node.op: node.name for node in one}
    return {name_of[m.before]: (m.after, m.how, m.edited) for m in match_flows(one, two)}


def test_the_same_program_is_found_by_its_structure() -> None:
    found = names_matched(MODEL, MODEL.replace("%0", "%product"))
    assert {name: after for name, (after, _, _) in found.items()} == {
        "builtin.module": "op0",
        "func.func": "op1",
        "stablehlo.dot_general": "op2",
        "stablehlo.tanh": "op3",
        "stablehlo.add": "op4",
        "func.return": "op5",
    }
    assert found["stablehlo.tanh"][1:] == (MatchKind.STRUCTURE, False)


def test_an_op_with_other_types_is_edited_and_one_of_another_name_is_another() -> None:
    wider = names_matched(MODEL, MODEL.replace("4x8", "16x8"))
    assert len(wider) == 6
    assert wider["stablehlo.dot_general"][2]
    other = names_matched(MODEL, MODEL.replace("stablehlo.tanh", "stablehlo.sine"))
    assert "stablehlo.tanh" not in other
    assert len(other) == 5


def test_what_one_function_hands_to_itself_is_read_once() -> None:
    text = """
    func.func private @again(%x: tensor<4xf32>) -> tensor<4xf32> {
      %0 = func.call @again(%x) : (tensor<4xf32>) -> tensor<4xf32>
      return %0 : tensor<4xf32>
    }
    func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
      %0 = func.call @again(%x) : (tensor<4xf32>) -> tensor<4xf32>
      return %0 : tensor<4xf32>
    }
    """
    flows = FlowBuilder()
    assert len(match_flows(flows.of(text.encode()), flows.of(text.encode()))) >= 6


# ---- costs


def test_sums_of_other_numbers_of_invocations_add_up() -> None:
    random = Random(7)
    for _ in range(200):
        values, count = [random.randint(-50, 10**9) for _ in range(random.randint(1, 30))], random.randint(1, 5000)
        scaled = scaled_to(values, count)
        assert abs(sum(scaled) * count - sum(values) * BASIS) * 2 <= count
        assert all(abs(part * count - value * BASIS) <= count for part, value in zip(scaled, values, strict=True))


def test_a_run_compared_with_itself_changes_nothing(built: Built, recorded: Recorded, tmp_path: Path) -> None:
    run, bundle = recorded("hand_mlp"), built("hand_mlp")
    shutil.copy(run, tmp_path / "again.parquet")
    made = tracemap.diff(run, tmp_path / "again.parquet", map_a=bundle, map_b=bundle)
    assert made.same_model
    assert made.matched_percent == 100
    assert {match.how for match in made.ops} == {MatchKind.IDENTITY}
    assert made.metrics
    assert all(metric.whole.before == metric.whole.after > 0 for metric in made.metrics)
    assert not made.findings
    assert not made.regrouped
    assert not made.kernels


@pytest.mark.long
def test_runs_of_two_models_balance_and_say_what_the_json_says(built: Built, recorded: Recorded) -> None:
    runs = ("--map-a", built("jax_mlp"), "--map-b", built("jax_mlp_train"))
    paths = recorded("jax_mlp"), recorded("jax_mlp_train")
    shown = json.loads(check_cli("diff", *paths, *runs, "--format", "json"))
    validator("diff").validate(shown)
    rows = list(csv.DictReader(io.StringIO(check_cli("diff", *paths, *runs, "--format", "csv"))))
    for metric in shown["metrics"]:
        of_metric = [row for row in rows if row["metric"] == metric["name"]]
        for column, key in (("cost_before", "before"), ("cost_after", "after"), ("change", "change")):
            assert sum(int(row[column]) for row in of_metric) == metric["whole"][key]
        for groups in ("scopes", "lines", "sources", "python"):
            of_groups = sum(group["amounts"][metric["name"]]["change"] for group in shown[groups])
            assert of_groups + metric["unattributed"]["change"] == metric["whole"]["change"]
    assert 0 < shown["matched_percent"] < 100
    text = check_cli("diff", *paths, *runs, "--by", "scope")
    assert "(total)" in text
    assert "New ops" in text


def test_a_line_of_an_op_that_is_gone_is_that_before() -> None:
    """Another op may stand there after, whose line would have had the cost of both."""
    made, one, _ = compared()
    text = one.graph.sources[0].name
    assert {group.name: group.ops for group in made.sources} == {
        "net.py:1": 1,
        "net.py:2": 2,
        f"{text}:3": 1,
        f"{text}:5 (before)": 1,
    }


def test_what_does_not_add_up_is_refused(built: Built, recorded: Recorded) -> None:
    run, bundle = recorded("hand_mlp"), built("hand_mlp")
    made = tracemap.diff(run, run, map_a=bundle, map_b=bundle)
    metric = made.metrics[0]
    wrong = structs.replace(metric, whole=Amount(metric.whole.before, metric.whole.after + 1, 1))
    fields = {name: getattr(made, name) for name in Comparison.__struct_fields__}
    with pytest.raises(Unbalanced, match=metric.name):
        Comparison(**{**fields, "metrics": (wrong,)})


@pytest.mark.long
def test_kernels_of_other_code_and_the_time_of_the_compiler_are_told(fixed: Built, built: Built) -> None:
    one, two = fixed("hand_attention"), built("hand_convnet")
    made = tracemap.diff(one, two)
    taken = json.loads((one / "compiled.json").read_text())
    assert made.before.compile_ns == taken["elapsed_ns"] > 0
    assert made.before.compile_cpu_ns == taken["cpu_ns"] > 0
    by_name = {kernel.before: kernel for kernel in made.kernels}
    product = next(kernel for name, kernel in by_name.items() if isinstance(name, str) and "matmul" in name)
    assert product.code_before.vector_bits == 256
    assert isinstance(product.code_before.instructions, int)
    assert product.code_before.instructions > 100
    gone = next(kernel for kernel in made.kernels if kernel.after is UNKNOWN)
    assert gone.code_after == KernelCode()
    text = check_cli("diff", one, two)
    assert "compile time: " in text
    assert f"{product.code_before.instructions} → " in text


def test_a_bundle_may_not_tell_how_long_the_compiler_took(built: Built, tmp_path: Path) -> None:
    shutil.copytree(built("hand_mlp"), tmp_path / "a.tracemap")
    (tmp_path / "a.tracemap" / "compiled.json").unlink()
    made = tracemap.diff(tmp_path / "a.tracemap", tmp_path / "a.tracemap")
    assert made.before.compile_ns is UNKNOWN
    assert "compile time" not in check_cli("diff", tmp_path / "a.tracemap", tmp_path / "a.tracemap")


def test_bundles_without_runs_are_compared_by_their_maps(built: Built, tmp_path: Path) -> None:
    shutil.copytree(built("hand_mlp"), tmp_path / "a.tracemap")
    shutil.rmtree(tmp_path / "a.tracemap" / "runs", ignore_errors=True)
    text = check_cli("diff", tmp_path / "a.tracemap", built("hand_attention"))
    assert "only the maps are compared" in text


@pytest.mark.long
def test_another_processor_matches_models_the_same(
    built: Built, recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of runs, whose bundles are known only by them; and what is wrong is said as here."""
    run = recorded("hand_mlp")
    bare = Path(shutil.copytree(built("hand_attention"), tmp_path / "bare.tracemap"))
    shutil.rmtree(bare / "source")
    pairs: list[tuple[Path, Path]] = [(built("hand_mlp"), built("hand_attention")), (run, recorded("hand_attention"))]
    here = [tracemap.diff(*pair) for pair in pairs]
    this = os.getpid()

    def only_there(one: Bundle, two: Bundle) -> Sequence[Match] | None:
        assert os.getpid() != this
        return matched_models(one, two)

    monkeypatch.setattr("tracemap.commands.diff._MIN_OPS_FOR_PROCESS", 0)
    monkeypatch.setattr("tracemap.core.process.forked.usable_processors", lambda: 2)
    with monkeypatch.context() as told_there:
        told_there.setattr("tracemap.commands.diff.matched_models", only_there)
        assert [tracemap.diff(*pair) for pair in pairs] == here
    with pytest.raises(UsageInvalid, match=r"bare\.tracemap: does not contain its model"):
        tracemap.diff(built("hand_mlp"), bare)


# ---- what is named


def measured(one: tuple[int, int, int] | None, two: tuple[int, int, int] | None, *, same: bool = False) -> MeasuredOp:
    first, second = (() if each is None else (MedianInterval(*each),) for each in (one, two))
    ends = (UNKNOWN if one is None else "op1", UNKNOWN if two is None else "op2")
    return MeasuredOp(*ends, "linalg.matmul", 3, first, second, same_code=same)


def test_only_what_clears_the_threshold_is_named() -> None:
    def kinds(op: MeasuredOp, threshold: float = 3.0) -> list[str]:
        others = [measured((80_000, 79_000, 81_000), (80_000, 79_000, 81_000), same=True)]
        return [each.kind for each in findings([op, *others], "cpu_ns", threshold)]

    assert kinds(measured((20_000, 19_950, 20_050), (21_000, 20_950, 21_050))) == ["slower"]
    assert kinds(measured((21_000, 20_950, 21_050), (20_000, 19_950, 20_050))) == ["faster"]
    assert kinds(measured((20_000, 19_000, 21_000), (21_000, 20_000, 22_000))) == []
    assert kinds(measured((20_000, 19_950, 20_050), (21_000, 20_950, 21_050)), 6.0) == []
    assert kinds(measured((20_000, 19_950, 20_050), (21_000, 20_950, 21_050), same=True)) == []
    assert kinds(measured((200, 199, 201), (400, 399, 401))) == []  # too little of an invocation
    assert kinds(measured(None, (9_000, 8_000, 9_500))) == ["new"]
    assert kinds(measured((9_000, 8_000, 9_500), None)) == ["gone"]
    assert kinds(measured(None, (900, 800, 950))) == []


def test_an_op_that_runs_on_one_side_only_is_named_though_both_models_have_it() -> None:
    """As behind a branch that depends on the inputs; there is no ratio to nothing."""
    nothing, something = (0, 0, 0), (9_000, 8_000, 9_500)
    others = [measured((80_000, 79_000, 81_000), (80_000, 79_000, 81_000), same=True)]

    def found(op: MeasuredOp) -> list[str]:
        return list(map(finding_text, findings([op, *others], "cpu_ns", 3.0)))

    assert found(measured(nothing, something)) == ["op1 → op2 linalg.matmul line 3: runs now, 9.00 µs per invocation"]
    gone = "op1 → op2 linalg.matmul line 3: no longer runs, 9.00 µs per invocation"
    assert found(measured(something, nothing)) == [gone]
    assert found(measured(nothing, (900, 800, 950))) == []  # too little of an invocation
    assert found(measured(nothing, nothing)) == []
    assert found(measured((0, 0, 5), something)) == []  # a run tells that it may cost something
    # What not all runs of a side tell of is there, for all that is known.
    assert found(replace(measured(None, something), before="op1")) == []


BRANCH = """func.func @main(%x: tensor<256x256xf32>, %which: tensor<i32>) -> tensor<256x256xf32> {
  %r = "stablehlo.case"(%which) ({
    %t = stablehlo.tanh %x : tensor<256x256xf32>
    stablehlo.return %t : tensor<256x256xf32>
  }, {
    %d = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0]
      : (tensor<256x256xf32>, tensor<256x256xf32>) -> tensor<256x256xf32>
    stablehlo.return %d : tensor<256x256xf32>
  }) : (tensor<i32>) -> tensor<256x256xf32>
  return %r : tensor<256x256xf32>
}
"""


@pytest.mark.long
def test_a_branch_that_is_taken_now_fails(tmp_path: Path) -> None:
    (tmp_path / "branch.mlir").write_text(BRANCH, encoding="utf-8")
    check_cli("build", "branch.mlir", cwd=tmp_path)
    for which in ("0", "1"):
        inputs = ("--input", "256x256xf32=0.1", "--input", f"i32={which}", "--iterations", "20")
        check_cli("record", "branch.tracemap", *inputs, "-o", f"{which}.csv", cwd=tmp_path)
    # Whatever --threshold says, what fails is named.
    done = run_cli("diff", "0.csv", "1.csv", "--fail-over", "5", "--threshold", "1000000", cwd=tmp_path)
    assert done.returncode == 1
    assert re.search(r"^over 5 %: op\d+ stablehlo.dot_general line 6: runs now, .* per invocation$", done.stderr, re.M)
    assert re.search(r"^op\d+ stablehlo.tanh line 3: no longer runs, .* per invocation$", done.stdout, re.M)


@pytest.mark.long
def test_a_side_without_runs_is_named(built: Built, tmp_path: Path) -> None:
    for name in ("a", "b"):
        shutil.copytree(built("hand_mlp"), tmp_path / f"{name}.tracemap")
        shutil.rmtree(tmp_path / f"{name}.tracemap" / "runs", ignore_errors=True)
    flags = ("--flagfile", SAMPLES / "flags" / "hand_mlp.flags", "--iterations", "3")
    check_cli("record", tmp_path / "b.tracemap", *flags)
    for side, sides in (("after", ("a.tracemap", "b.tracemap")), ("before", ("b.tracemap", "a.tracemap"))):
        text = check_cli("diff", *sides, cwd=tmp_path)
        assert f"{side}: b.tracemap, runs not used, 16 ops" in text
        assert "a.tracemap, no run, 16 ops" in text
        assert "no metric in common" not in text
        told = f"note [runs-missing]: {side}: runs are not used, since a.tracemap has none; record one: tracemap record"
        assert f"{told} a.tracemap\n" in text


SUM = """func.func @sum(%x: tensor<64xf32>) -> tensor<64xf32> {
  %0 = arith.addf %x, %x : tensor<64xf32>
  return %0 : tensor<64xf32>
}
"""


@pytest.mark.long
def test_equal_kernels_of_different_modules_and_different_models_are_said(built: Built, tmp_path: Path) -> None:
    (tmp_path / "a.mlir").write_text(SUM)
    (tmp_path / "b.mlir").write_text(SUM.replace("@sum", "@total"))
    for name in ("a", "b"):
        check_cli("build", f"{name}.mlir", cwd=tmp_path)
    equal = check_cli("diff", "a.tracemap", "b.tracemap", cwd=tmp_path)
    assert "the compiled modules differ, but all kernels have the same code" in equal
    assert "different models" not in equal
    page = tmp_path / "page.html"
    other = check_cli("diff", "a.tracemap", built("hand_mlp"), "--html", page, cwd=tmp_path)
    warning = r"only [\d.]+ % of the ops match, so these look like different models; compare builds of the same model"
    assert re.match(f"warning: {warning}\n", other)
    assert other.count("different models") == 1
    assert "same code" not in other
    assert re.search(f"<strong>{warning}</strong>", page.read_text())


def test_what_the_machine_was_slower_by_is_no_change() -> None:
    same = [
        measured((10_000 * n, 9_990 * n, 10_010 * n), (11_000 * n, 10_990 * n, 11_010 * n), same=True)
        for n in (1, 2, 3)
    ]
    machine = machine_of(same)
    assert (machine.drift.ratio, machine.drift.ops) == (1.1, 3)
    changed = measured((50_000, 49_990, 50_010), (55_000, 54_990, 55_010))
    assert findings([changed, *same], "cpu_ns", 3.0, NO_CORRECTION)
    assert not findings([changed, *same], "cpu_ns", 3.0, machine)
    assert machine_of(same[:2]).drift == NO_DRIFT
    # What costs nothing in some invocations, as an op of a few nanoseconds may, tells nothing.
    assert machine_of([*same, measured((1, 0, 1), (1, 1, 1), same=True)]) == machine


def test_students_t_is_that_of_tables() -> None:
    """Abramowitz and Stegun, 1964, table 26.10."""
    known = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 9: 2.262, 30: 2.042, 120: 1.980}
    assert {freedom: round(student(freedom), 3) for freedom in known} == known


@pytest.mark.parametrize(("ones", "twos"), [(5, 5), (4, 6), (1, 1)])
def test_intervals_hold_the_truth_as_often_as_they_say(ones: int, twos: int) -> None:
    """Runs of 30 invocations each, which differ by 3 % from run to run and by 5 % within; something takes 1.1 times."""
    random = Random(11)
    apart = 0.03 if ones > 1 else 0.0  # one run tells nothing of others

    def side(count: int, factor: float) -> list[MedianInterval]:
        found = []
        for _ in range(count):
            run = random.lognormvariate(0, apart)
            values = sorted(1000 * factor * run * random.lognormvariate(0, 0.05) for _ in range(30))
            low, high = median_ranks(30)
            found.append(MedianInterval(statistics.median(values), values[low - 1], values[high - 1]))
        return found

    tries = [ratio_between(side(ones, 1.0), side(twos, 1.1)) for _ in range(800)]
    held = sum(each.low <= 1.1 <= each.high for each in tries) / len(tries)
    assert 0.93 <= held <= 0.99


def test_what_differs_from_run_to_run_is_not_named() -> None:
    """Each run is sure of itself, and no two of them agree."""
    one = MeasuredOp(
        "op1", "op1", "x", 1, _runs(100, 108, 104, 111, 101), _runs(109, 103, 112, 100, 107), same_code=False
    )
    assert not findings([one], "cpu_ns", 3.0)
    first_alone = _first(one, 1)
    assert [each.kind for each in findings([first_alone], "cpu_ns", 3.0)] == ["slower"]
    two = MeasuredOp(
        "op1", "op1", "x", 1, _runs(100, 101, 99, 100, 102), _runs(110, 111, 110, 109, 112), same_code=False
    )
    (found,) = findings([two], "cpu_ns", 3.0)
    assert (found.kind, found.median_before, found.median_after) == ("slower", 10000, 11000)


def _runs(*medians: int) -> tuple[MedianInterval, ...]:
    return tuple(MedianInterval(100 * each, 100 * each - 10, 100 * each + 10) for each in medians)


def _first(op: MeasuredOp, runs: int) -> MeasuredOp:
    return replace(op, old_costs=op.old_costs[:runs], new_costs=op.new_costs[:runs])


def test_over_a_limit_are_the_slower_ones_by_the_near_end_of_their_interval() -> None:
    op = measured((20_000, 19_950, 20_050), (21_200, 21_100, 21_300))
    found = findings([op], "cpu_ns", 3.0, NO_CORRECTION)
    assert regressions(found, 5) == list(found)
    assert regressions(found, 5.5) == []


# ---- several runs


@pytest.mark.long
def test_recordings_in_turn_are_found_by_their_bundles(built: Built, tmp_path: Path) -> None:
    one, two = tmp_path / "one.tracemap", tmp_path / "two.tracemap"
    for each in (one, two):
        shutil.copytree(built("hand_mlp"), each)
        shutil.rmtree(each / "runs", ignore_errors=True)
        (each / "runs").mkdir()
        (each / "runs" / "run-001-9.parquet").touch()
    check_cli("record", one, "--repeat", "2", "--alternate", two, "--iterations", "8")
    sets = ["run-002-1.parquet", "run-002-2.parquet"]
    names = [sorted(path.name for path in (each / "runs").glob("*.parquet")) for each in (one, two)]
    assert names == [["run-001-9.parquet", *sets]] * 2
    made = tracemap.diff(one, two)
    assert made.before.runs == made.after.runs == tuple(sets)
    assert made.before.iterations == 16
    assert not made.findings
    runs = [one / "runs" / name for name in sets], [two / "runs" / name for name in sets[:1]]
    shown = json.loads(check_cli("diff", *runs[0], "vs", *runs[1], "--format", "json"))
    validator("diff").validate(shown)
    assert (len(shown["before"]["runs"]), len(shown["after"]["runs"])) == (2, 1)
    several = json.loads(check_cli("diff", "--baseline", one, two, one / "runs" / sets[0], "--format", "json"))
    validator("diffs").validate(several)
    assert [each["after"]["runs"] for each in several["comparisons"]] == [sets, sets[:1]]
    assert check_cli("diff", "--baseline", one, two, two).count("same model") == 2


@pytest.mark.long
def test_in_python_a_side_may_be_several_runs(built: Built, tmp_path: Path) -> None:
    """What they cost is what each costs, added up."""
    bundle = tracemap.load(built("hand_mlp"))
    runs = [tracemap.record(bundle, iterations=8 + n, output=tmp_path / f"{n}.parquet") for n in range(3)]
    made = tracemap.diff(runs[:2], runs[2].path)
    assert made.before.runs == ("0.parquet", "1.parquet")
    assert made.before.iterations == 17
    for metric in made.metrics:
        each = [tracemap.attribute(run).metrics for run in runs[:2]]
        measured = sum(of.measured for metrics in each for of in metrics if of.name == metric.name)
        assert abs(metric.whole.before * 17 - measured * BASIS) * 2 <= 17
    assert made.show(tmp_path / "page.html", browser=False).is_file()
    with pytest.raises(UsageInvalid, match="is named twice"):
        tracemap.diff([runs[0], runs[0]], runs[1])
    with pytest.raises(UsageInvalid, match="leave --baseline out"):
        tracemap.diff(runs[0], runs[1], baseline=bundle.path)


def test_each_of_several_has_a_page_of_its_own(built: Built, tmp_path: Path) -> None:
    bundle = built("hand_mlp")
    others = [tmp_path / "a" / "O3.tracemap", tmp_path / "O3.tracemap", tmp_path / "tiled.tracemap"]
    for other in others:
        shutil.copytree(bundle, other)
    page = tmp_path / "diff.html"
    done = run_cli("diff", "--baseline", bundle, *others, "--html", page)
    assert done.returncode == 0, done.stderr
    names = ["diff-O3.html", "diff-O3-2.html", "diff-tiled.html"]
    assert [line.rpartition("/")[2] for line in done.stderr.splitlines() if line.startswith("page: ")] == names
    assert all("<h1" in (tmp_path / name).read_text() for name in names)
    assert not page.exists()
    assert pages_of(Path("-"), others) == [Path("-")] * 3
    (tmp_path / "diff-O3.html").write_text("of another program")
    again = run_cli("diff", "--baseline", bundle, *others, "--html", page)
    assert again.returncode == 2
    assert "diff-O3.html: exists, and has no mark of tracemap" in again.stderr


@pytest.mark.long
def test_whole_numbers_and_fractions_of_a_metric_are_laid_beside_each_other(built: Built, tmp_path: Path) -> None:
    """A column that happens to be whole in one run is the same metric, and people read both in its own unit."""
    bundle = built("hand_mlp")
    kernel = load(bundle).graph.sites[0].kernel
    for name, joules in (("whole", "2"), ("fraction", "2.5")):
        for kind, calls in (("one", "0"), ("runs_left_out", "")):
            text = f"kernel,invocation,duration_ns,joules\n{kernel},{calls},100,{joules}\n"
            (tmp_path / f"{name}-{kind}.csv").write_text(text, encoding="utf-8")
    maps = ("--map-a", bundle, "--map-b", bundle)
    for kind in ("one", "runs_left_out"):
        words = ("diff", tmp_path / f"whole-{kind}.csv", tmp_path / f"fraction-{kind}.csv", *maps)
        (joules,) = (metric for metric in json_cli(*words)["metrics"] if metric["name"] == "joules")
        assert joules["unit"] == "millionths"
        assert joules["whole"]["after"] * 4 == joules["whole"]["before"] * 5
        (whole,) = (row for row in check_cli(*words, "--metric", "joules").splitlines() if "(total)" in row)
        assert re.findall(r"[+\d.]+(?: [MGT])?", whole) == ["2", "2.50", "+0.500", "25.0"]


# ---- refusals


@pytest.mark.long
def test_what_cannot_be_compared_is_refused(built: Built, recorded: Recorded, tmp_path: Path) -> None:
    run, bundle = recorded("hand_mlp"), built("hand_mlp")
    shutil.copytree(bundle, tmp_path / "a.tracemap", ignore=shutil.ignore_patterns("runs"))
    for arguments, said in (
        ((tmp_path / "nothing.parquet", run), "nothing.parquet"),
        ((bundle, bundle, "--map-a", bundle), "is a bundle itself"),
        ((run, run, "--map-a", bundle, "--map-b", bundle, "--metric", "teeth"), "a side lacks this metric"),
        ((run,), "name two sides"),
        ((run, run, run), "name two sides"),
        (("vs", run), "name two sides"),
        ((tmp_path / "a.tracemap", run), "a run cannot be compared with a bundle that has no run"),
        ((run, tmp_path / "a.tracemap"), "a run cannot be compared with a bundle that has no run"),
        ((run, "vs", bundle, run), "is a bundle among other arguments"),
        ((run, "vs", run, "--baseline", bundle), "leave vs out"),
        ((run, "--baseline", bundle, "--format", "csv"), "holds only one comparison"),
    ):
        done = run_cli("diff", *arguments)
        assert done.returncode == 2, arguments
        assert said in done.stderr
        assert done.stderr.count("\n") == 1


@pytest.mark.long
def test_where_one_side_has_no_counts_both_are_split_by_the_same_rule(fixed: Built, tmp_path: Path) -> None:
    """The same run with and without what was simulated: its ops cost the same, whatever kernels are split by."""
    plain = tmp_path / "plain.csv"
    rows = RUN.read_text(encoding="utf-8").splitlines()
    kind = rows[0].split(",").index("kind")
    plain.write_text("".join(f"{row}\n" for row in rows if row.split(",")[kind] != "step"), encoding="utf-8")
    shutil.copy(f"{RUN}.json", f"{plain}.json")
    bundle = fixed("jax_mlp_train")
    words = ("diff", RUN, plain, "--map-a", bundle, "--map-b", bundle)
    made = json_cli(*words)
    assert made["findings"] == []
    assert {op["amounts"]["cpu_ns"]["change"] for op in made["ops"] if "cpu_ns" in op["amounts"]} == {0}
    (told,) = [each["message"] for each in made["diagnostics"] if each["slug"] == "split-by-code"]
    assert "the costs of both sides are split by the rule code" in told
    asked = json_cli(*words, "--rule", "root")
    assert "split-by-code" not in {each["slug"] for each in asked["diagnostics"]}


@pytest.mark.long
def test_samples_and_simulated_counts_are_not_laid_beside_each_other(fixed: Built, tmp_path: Path) -> None:
    """The same run twice, of which one calls its counts samples: only what is told by both alike is compared."""
    sampled = tmp_path / "sampled.csv"
    head, _, rows = RUN.read_text(encoding="utf-8").partition("\n")
    sampled.write_text("\n".join((head.replace(",Ir,", ",samples,"), rows)), encoding="utf-8")
    shutil.copy(f"{RUN}.json", f"{sampled}.json")
    bundle = fixed("jax_mlp_train")
    words = ("diff", RUN, sampled, "--map-a", bundle, "--map-b", bundle)
    made = json_cli(*words)
    assert "split-by-code" in {each["slug"] for each in made["diagnostics"]}
    assert {op["amounts"]["cpu_ns"]["change"] for op in made["ops"] if "cpu_ns" in op["amounts"]} == {0}
    asked = json_cli(*words, "--rule", "measured")
    (told,) = [each["message"] for each in asked["diagnostics"] if each["slug"] == "rules-differ"]
    assert "(measured by simulated instructions before, measured by samples after)" in told


def slowed(run: Path, copy: Path, factor: int) -> Path:
    """A run as a machine of less speed would have recorded it."""
    with run.open(encoding="utf-8") as file, copy.open("w", encoding="utf-8") as slow:
        reader = csv.DictReader(file)
        writer = csv.DictWriter(slow, reader.fieldnames or (), lineterminator="\n")
        writer.writeheader()
        for row in reader:
            writer.writerow(row | {name: str(factor * int(row[name])) for name in _TIMES if row[name]})
    shutil.copy(f"{run}.json", f"{copy}.json")
    return copy


_TIMES = ("cpu_ns", "duration_ns")


@pytest.mark.long
def test_times_have_one_basis(built: Built, tmp_path: Path) -> None:
    """Verdict, findings, tables and sums are all corrected for a slower machine, or all as recorded."""
    bundle, run = built("hand_mlp"), tmp_path / "run.csv"
    flags = ("--flagfile", SAMPLES / "flags" / "hand_mlp.flags", "--iterations", "30", "--serial")
    check_cli("record", bundle, *flags, "-o", run)
    words = ("diff", run, slowed(run, tmp_path / "slow.csv", 2), "--map-a", bundle, "--map-b", bundle)
    made = json_cli(*words)
    validator("diff").validate(made)
    assert (made["basis"], made["drift"]["ratio"], made["findings"]) == ("corrected", 2.0, [])
    assert {metric["whole"]["change"] for metric in made["metrics"] if metric["name"] == "cpu_ns"} == {0}
    # Costs are split in whole nanoseconds of a run, and amounts are for 1000 invocations.
    assert max(abs(amount["change"]) for op in made["ops"] for amount in op["amounts"].values()) <= 500
    assert all(op["ratio"]["ratio"] == pytest.approx(1, abs=0.05) for op in made["ops"] if op["ratio"])
    text = check_cli(*words)
    unchanged = made["drift"]["ops"]
    assert (
        f"times are corrected for the machine's speed: {unchanged} ops with unchanged code ran 2.00x slower after, so "
        "all times after are divided by 2 (--raw: as recorded)"
    ) in text
    raw = json_cli(*words, "--raw")
    assert (raw["basis"], raw["drift"]["ratio"], raw["drift"]["ops"]) == ("raw", 1.0, 0)
    for amount in (amount for op in raw["ops"] for amount in op["amounts"].values()):
        assert amount["after"] == pytest.approx(2 * amount["before"], rel=1e-3, abs=500)
    assert {finding["kind"] for finding in raw["findings"]} == {"slower"}
    assert {round(finding["median_after"] / finding["median_before"], 1) for finding in raw["findings"]} == {2.0}
    assert "times are as recorded, not corrected for the machine's speed" in check_cli(*words, "--raw")


def test_corrected_times_add_up() -> None:
    random = Random(3)
    for _ in range(100):
        values = [random.randint(0, 10**9) for _ in range(random.randint(1, 30))]
        divisor = random.randint(8000, 12500)
        assert abs(sum(scaled_to(values, divisor, 10_000)) * divisor - sum(values) * 10_000) * 2 <= divisor


def test_settings_that_differ_come_first(built: Built, tmp_path: Path) -> None:
    bundle, tiled = built("hand_mlp"), tmp_path / "tiled.tracemap"
    check_cli("build", SAMPLES / "models" / "hand_mlp.mlir", "-o", tiled, "--", "--iree-opt-data-tiling=true")
    made = json_cli("diff", bundle, tiled)
    validator("diff").validate(made)
    flag, *configurations = made["settings"]
    assert flag == {"kernel": None, "name": "--iree-opt-data-tiling", "before": None, "after": "true"}
    first = "mlp_dispatch_0_matmul_32x256x784_f32"
    of_first = {one["name"]: (one["before"], one["after"]) for one in configurations if one["kernel"] == first}
    assert of_first["pipeline"] == ("DoubleTilingExpert", "Mmt4dTilingExpert")
    assert of_first["distribution"][0].startswith("[8, 64, ")
    assert all(one["before"] != one["after"] for one in configurations)
    text = check_cli("diff", bundle, tiled)
    order = ["same model", "--iree-opt-data-tiling", first, "distribution", "Fusion changes", "Kernels whose code"]
    assert [text.index(part) for part in order] == sorted(text.index(part) for part in order)


def test_a_build_compared_with_itself_has_no_change(built: Built, recorded: Recorded) -> None:
    bundle = built("hand_mlp")
    assert "no change: both sides are the same build\n" in check_cli("diff", bundle, bundle)
    run, maps = recorded("hand_mlp"), ("--map-a", bundle, "--map-b", bundle)
    text = check_cli("diff", run, run, *maps)
    assert "no change: both sides are the same build with the same costs\n" in text
    assert re.search(r"^\(\d+ ops without change\) ", text, re.MULTILINE)
    assert "op6 " not in text
    assert "op6 " in check_cli("diff", run, run, *maps, "--top", "0")


@pytest.mark.long
def test_small_rows_are_folded_in_the_text_only(fixed: Built, tmp_path: Path) -> None:
    maps = ("--map-a", fixed("jax_mlp_train"), "--map-b", fixed("jax_mlp_train"))
    words = ("diff", RUN, slowed(RUN, tmp_path / "slow.csv", 2), "--raw", *maps)
    made = json_cli(*words)
    (whole,) = (metric["whole"] for metric in made["metrics"] if metric["name"] == "cpu_ns")
    costs = [op["amounts"]["cpu_ns"] for op in made["ops"] if "cpu_ns" in op["amounts"]]
    small = [cost for cost in costs if cost["change"] and cost["after"] < whole["after"] / 1000]
    assert small
    assert f"({len(small)} ops under 0.1 %)" in check_cli(*words, "--by", "op")


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("by", "row"), [("python", "jax_models.py:11 "), ("source", "jax_models.py:11 "), ("line", ".mlir:")]
)
def test_rows_by_kinds_of_lines(by: str, row: str, fixed: Built, tmp_path: Path) -> None:
    maps = ("--map-a", fixed("jax_mlp_train"), "--map-b", fixed("jax_mlp_train"))
    slow = slowed(RUN, tmp_path / "slow.csv", 2)
    lines = check_cli("diff", RUN, slow, "--raw", *maps, "--by", by).splitlines()
    table = lines[lines.index(next(line for line in lines if line.startswith(f"{by} "))) + 1 :]
    assert row in table[0] or row in table[1]
    assert any(line.startswith("(total)") for line in table)


LAYERS = """
func.func @main(%x: tensor<?x64xf32>, %w: tensor<64x64xf32>) -> tensor<?x64xf32> {
  %0 = call @layer(%x, %w) : (tensor<?x64xf32>, tensor<64x64xf32>) -> tensor<?x64xf32>
  %1 = call @layer(%0, %w) : (tensor<?x64xf32>, tensor<64x64xf32>) -> tensor<?x64xf32>
  return %1 : tensor<?x64xf32>
}
func.func private @layer(%x: tensor<?x64xf32>, %w: tensor<64x64xf32>) -> tensor<?x64xf32> {
  %first = arith.constant 0 : index
  %rows = tensor.dim %x, %first : tensor<?x64xf32>
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty(%rows) : tensor<?x64xf32>
  %zeros = linalg.fill ins(%zero : f32) outs(%empty : tensor<?x64xf32>) -> tensor<?x64xf32>
  %product = linalg.matmul ins(%x, %w : tensor<?x64xf32>, tensor<64x64xf32>)
      outs(%zeros : tensor<?x64xf32>) -> tensor<?x64xf32>
  %tanh = math.tanh %product : tensor<?x64xf32>
  %exp = math.exp %tanh : tensor<?x64xf32>
  return %exp : tensor<?x64xf32>
}
"""


@pytest.mark.long
def test_what_other_inputs_cost_is_not_the_machines_part(tmp_path: Path) -> None:
    """Four times the rows are four times the work of unchanged code, not a machine that is a quarter as fast."""
    model, bundle = tmp_path / "layers.mlir", tmp_path / "layers.tracemap"
    model.write_text(LAYERS)
    check_cli("build", model, "-o", bundle)
    runs = {name: tmp_path / f"{name}.parquet" for name in ("few", "many", "again")}
    for name, run in runs.items():
        rows = "16" if name == "few" else "64"
        check_cli("record", bundle, "--dim", rows, "--serial", "--iterations", "20", "-o", run)

    def compared(one: str, two: str) -> tuple[int, list[str]]:
        made = json_cli("diff", runs[one], runs[two], "--map-a", bundle, "--map-b", bundle)
        said = [each["message"] for each in made["diagnostics"] if each["slug"] == "settings-differ"]
        return made["drift"]["ops"], said

    unchanged, (said,) = compared("few", "many")
    assert unchanged == 0
    assert said.startswith("the runs have different inputs: argument 0 is 16x64xf32: ")
    assert " before, 64x64xf32: " in said
    assert compared("many", "again")[1] == []


TRIPS = """
func.func @repeated(%x: tensor<64x64xf32>, %w: tensor<64x64xf32>) -> (tensor<64x64xf32>, tensor<64x64xf32>) {
  %first = arith.constant 0 : index
  %step = arith.constant 1 : index
  %end = arith.constant 20 : index
  %once = stablehlo.tanh %w : tensor<64x64xf32>
  %last = scf.for %i = %first to %end step %step iter_args(%carried = %x) -> tensor<64x64xf32> {
    %product = stablehlo.dot_general %carried, %w, contracting_dims = [1] x [0]
        : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
    scf.yield %product : tensor<64x64xf32>
  }
  return %last, %once : tensor<64x64xf32>, tensor<64x64xf32>
}
"""


@pytest.mark.long
def test_a_loop_of_more_trips_is_not_the_machines_part(tmp_path: Path) -> None:
    """Its code is the same, and runs twice as often; what stands outside of it does as much as before."""
    for trips in ("20", "40"):
        (tmp_path / f"trips{trips}.mlir").write_text(TRIPS.replace("20", trips), encoding="utf-8")
        check_cli("build", f"trips{trips}.mlir", cwd=tmp_path)
    # In turn, as the machine may be twice as fast a second later.
    several = ("--serial", "--iterations", "100", "--repeat", "7")
    check_cli("record", "trips20.tracemap", "--alternate", "trips40.tracemap", *several, cwd=tmp_path)
    found = run_cli(
        "diff", "trips20.tracemap", "trips40.tracemap", "--fail-over", "20", "--format", "json", cwd=tmp_path
    )
    assert found.returncode == 1, found.stderr
    made = json.loads(found.stdout)
    product = next(op for op in made["ops"] if op["name"] == "stablehlo.dot_general")
    slower = [each for each in made["findings"] if each["before"] == product["before"]]
    assert [each["kind"] for each in slower] == ["slower"]
    assert made["drift"]["ops"] <= 1


def test_what_a_side_does_not_tell_is_not_said_to_be_another(built: Built, recorded: Recorded, tmp_path: Path) -> None:
    """A table of kernels and times tells neither device nor function: nothing is known of either, said once."""
    bare = tmp_path / "bare.csv"
    kernel = json.loads(run_cli("show", built("hand_mlp"), "--format", "json").stdout)["kernels"][0]["name"]
    bare.write_text(f"kernel,cpu_ns\n{kernel},1000\n")
    maps = ("--map-a", built("hand_mlp"), "--map-b", built("hand_mlp"))
    made = json_cli("diff", bare, recorded("hand_mlp"), *maps)
    (said,) = [each["message"] for each in made["diagnostics"] if each["slug"] == "settings-differ"]
    assert said.startswith(
        "conditions of the runs before are unknown and may differ: device, number of workers, function"
    )


# ---- memory

CHAIN = """
func.func @main(%x: tensor<64x256xf32>) -> tensor<64xf32> {
  %0 = stablehlo.tanh %x : tensor<64x256xf32>
BARRIER  %1 = stablehlo.exponential %0 : tensor<64x256xf32>
  %c = stablehlo.constant dense<0.0> : tensor<f32>
  %2 = stablehlo.reduce(%1 init: %c) applies stablehlo.add across dimensions = [1]
      : (tensor<64x256xf32>, tensor<f32>) -> tensor<64xf32>
  return %2 : tensor<64xf32>
}
"""
APART = "  %b = stablehlo.optimization_barrier %0 : tensor<64x256xf32>\n"


@pytest.fixture(scope="module")
def chains(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Bundles of a chain in one kernel, and in two, between which an array of 64 KiB is in memory."""
    folder = tmp_path_factory.mktemp("chains")
    texts = {
        "fused": CHAIN.replace("BARRIER", ""),
        "apart": CHAIN.replace("BARRIER", APART).replace("ial %0", "ial %b"),
    }
    for name, text in texts.items():
        (folder / f"{name}.mlir").write_text(text, encoding="utf-8")
        check_cli("build", folder / f"{name}.mlir", "-o", folder / f"{name}.tracemap")
    return folder / "fused.tracemap", folder / "apart.tracemap"


def test_a_lost_fusion_explains_the_higher_peak(chains: tuple[Path, Path]) -> None:
    fused, apart = chains
    text = check_cli("diff", fused, apart)
    cause = "op2 stablehlo.tanh is no longer fused with op4 stablehlo.exponential"
    assert f"memory peak of main: +64.0 KiB (256 B before, 64.2 KiB after): {cause}" in text
    back = check_cli("diff", apart, fused)
    assert "memory peak of main: −64.0 KiB (64.2 KiB before, 256 B after): op2 stablehlo.tanh is now fused with" in back
    assert "memory peak" not in check_cli("diff", fused, fused)


def test_the_page_explains_the_peak_as_the_terminal_does(chains: tuple[Path, Path], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    text = check_cli("diff", *chains, "--html", page)
    (sentence,) = (line for line in text.splitlines() if line.startswith("memory peak of main"))
    markup = page.read_text(encoding="utf-8")
    assert f'<p class="lead">M{sentence[1:]}.</p>' in markup
    rows = re.findall(
        r"<tr><td>(.*?)</td>", markup.partition('<table class="plain memory">')[2].partition("</table>")[0]
    )
    assert rows == ['<a href="#op2">op2</a>', "", ""]
    check_cli("diff", chains[0], chains[0], "--html", page, "--force")
    assert 'class="plain memory"' not in page.read_text(encoding="utf-8")


@pytest.mark.few(1)
@pytest.mark.parametrize("turned", [False, True])
def test_changes_of_the_peak_add_up(chains: tuple[Path, Path], turned: bool) -> None:
    sides = chains[::-1] if turned else chains
    peaks = [json_cli("memory", side)["functions"][0]["peak_bytes"] for side in sides]
    (memory,) = json_cli("diff", *sides)["memory"]
    assert [memory["peak"]["before"], memory["peak"]["after"]] == peaks
    for key in ("before", "after", "change"):
        assert sum(op["held"][key] for op in memory["ops"]) + memory["others"][key] == memory["peak"][key]
    assert [op["held"]["change"] for op in memory["ops"]] == [-65536 if turned else 65536]
