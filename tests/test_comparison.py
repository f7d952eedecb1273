"""Two runs or bundles compared: which op is which, sums that balance, and what is named."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path
from random import Random

import pytest
from msgspec import structs

import tracemap
from tests.conftest import Built, Recorded
from tests.oracle.edits import LEAST_PRECISION, LEAST_RECALL, Score, edited, score
from tests.schemas import validator
from tests.support import check_cli, run_cli
from tracemap.comparison.costs import scaled_to
from tracemap.comparison.findings import NO_DRIFT, Measured, Spread, beyond, drift_of, findings
from tracemap.comparison.matching import match_flows
from tracemap.comparison.model import BASIS, Amount, Comparison, How, KernelCode, Unbalanced
from tracemap.mapping.model.flow import Flows
from tracemap.units import UNKNOWN

# ---- which op is which


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
    flows = Flows()
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


def names_matched(before: str, after: str) -> dict[str, tuple[str, How, bool]]:
    flows = Flows()
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
    assert found["stablehlo.tanh"][1:] == (How.STRUCTURE, False)


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
    assert len(match_flows(*map(Flows().of, [text.encode()] * 2))) >= 6


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
    assert {match.how for match in made.ops} == {How.IDENTITY}
    assert made.metrics
    assert all(metric.whole.before == metric.whole.after > 0 for metric in made.metrics)
    assert not made.findings
    assert not made.regrouped
    assert not made.kernels


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
        for groups in ("scopes", "lines"):
            of_groups = sum(group["amounts"][metric["name"]]["change"] for group in shown[groups])
            assert of_groups + metric["residual"]["change"] == metric["whole"]["change"]
    assert 0 < shown["matched_percent"] < 100
    text = check_cli("diff", *paths, *runs, "--by", "scope")
    assert "(whole)" in text
    assert "New ops" in text


def test_what_does_not_add_up_is_refused(built: Built, recorded: Recorded) -> None:
    run, bundle = recorded("hand_mlp"), built("hand_mlp")
    made = tracemap.diff(run, run, map_a=bundle, map_b=bundle)
    metric = made.metrics[0]
    wrong = structs.replace(metric, whole=Amount(metric.whole.before, metric.whole.after + 1, 1))
    fields = {name: getattr(made, name) for name in Comparison.__struct_fields__}
    with pytest.raises(Unbalanced, match=metric.name):
        Comparison(**{**fields, "metrics": (wrong,)})


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
    assert "maps alone are compared" in text


# ---- what is named


def measured(one: tuple[int, int, int] | None, two: tuple[int, int, int] | None, *, same: bool = False) -> Measured:
    first, second = (None if each is None else Spread(*each) for each in (one, two))
    ends = (UNKNOWN if one is None else "op1", UNKNOWN if two is None else "op2")
    return Measured(*ends, "linalg.matmul", 3, first, second, same_code=same)


def test_only_what_clears_the_threshold_is_named() -> None:
    def kinds(op: Measured, threshold: float = 3.0) -> list[str]:
        others = [measured((80_000, 79_000, 81_000), (80_000, 79_000, 81_000), same=True)]
        return [each.kind for each in findings([op, *others], "cpu_ns", threshold, NO_DRIFT)]

    assert kinds(measured((20_000, 19_950, 20_050), (21_000, 20_950, 21_050))) == ["slower"]
    assert kinds(measured((21_000, 20_950, 21_050), (20_000, 19_950, 20_050))) == ["faster"]
    assert kinds(measured((20_000, 19_000, 21_000), (21_000, 20_000, 22_000))) == []
    assert kinds(measured((20_000, 19_950, 20_050), (21_000, 20_950, 21_050)), 6.0) == []
    assert kinds(measured((20_000, 19_950, 20_050), (21_000, 20_950, 21_050), same=True)) == []
    assert kinds(measured((200, 199, 201), (400, 399, 401))) == []  # too little of an invocation
    assert kinds(measured(None, (9_000, 8_000, 9_500))) == ["new"]
    assert kinds(measured((9_000, 8_000, 9_500), None)) == ["gone"]
    assert kinds(measured(None, (900, 800, 950))) == []


def test_what_the_machine_was_slower_by_is_no_change() -> None:
    same = [
        measured((10_000 * n, 9_990 * n, 10_010 * n), (11_000 * n, 10_990 * n, 11_010 * n), same=True)
        for n in (1, 2, 3)
    ]
    drift = drift_of(same)
    assert (drift.ratio, drift.ops) == (1.1, 3)
    changed = measured((50_000, 49_990, 50_010), (55_000, 54_990, 55_010))
    assert findings([changed, *same], "cpu_ns", 3.0, NO_DRIFT)
    assert not findings([changed, *same], "cpu_ns", 3.0, drift)
    assert drift_of(same[:2]) == NO_DRIFT


def test_over_a_limit_are_the_slower_ones_by_the_near_end_of_their_interval() -> None:
    op = measured((20_000, 19_950, 20_050), (21_200, 21_100, 21_300))
    found = findings([op], "cpu_ns", 3.0, NO_DRIFT)
    assert beyond(found, 5) == list(found)
    assert beyond(found, 5.5) == []


# ---- refusals


def test_what_cannot_be_compared_is_refused(built: Built, recorded: Recorded, tmp_path: Path) -> None:
    run, bundle = recorded("hand_mlp"), built("hand_mlp")
    shutil.copytree(bundle, tmp_path / "a.tracemap")
    for arguments, said in (
        ((tmp_path / "nothing.parquet", run), "nothing.parquet"),
        ((bundle, bundle, "--map-a", bundle), "is a bundle itself"),
        ((run, run, "--map-a", bundle, "--map-b", bundle, "--metric", "teeth"), "not both have it"),
    ):
        done = run_cli("diff", *arguments)
        assert done.returncode == 2, arguments
        assert said in done.stderr
        assert done.stderr.count("\n") == 1
