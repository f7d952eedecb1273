"""Programs in different dialects compared: StableHLO and linalg, torch and ONNX."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec import structs

from tests.conftest import Built
from tests.oracle.levels import LEAST, Score, lowered, score, torch_and_onnx, tries
from tests.schemas import validator
from tests.support import SAMPLES, check_cli
from tracemap.compare.matching import match_flows
from tracemap.compare.model import MatchKind
from tracemap.map.build.model.dataflow import FlowBuilder

MODEL = """func.func @main(%x: tensor<4x8xf32>, %w: tensor<8x8xf32>) -> tensor<4x8xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %1 = stablehlo.tanh %0 : tensor<4x8xf32>
  %2 = stablehlo.add %1, %x : tensor<4x8xf32>
  return %2 : tensor<4x8xf32>
}
"""


def test_ops_are_found_in_the_linalg_form() -> None:
    totals = {way: Score() for way in ("located", "scoped", "blind")}
    for way, _, made in tries(range(1, 4), ["jax_mlp"]):
        totals[way].add(made)
    for way, total in totals.items():
        assert total.there > 15, way
        assert (total.precision, total.recall) >= LEAST[way], (way, str(total))


def test_ops_of_torch_are_found_in_onnx() -> None:
    made = torch_and_onnx()
    assert made.there > 50
    assert made.precision >= LEAST["torch and ONNX"][0]
    assert made.recall >= LEAST["torch and ONNX"][1]


def test_the_places_tell_wrong_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above stand on `score`; a blind one would pass everything."""
    flows, made = FlowBuilder(), lowered(MODEL)
    right = match_flows(flows.of(MODEL.encode()), flows.of(made.encode()), ("model.mlir", "linalg.mlir"))
    found = [match for match in right if match.how is MatchKind.APPROXIMATE]
    assert len(found) == 3
    turned = [structs.replace(one, after=two.after) for one, two in zip(found, found[1:] + found[:1], strict=True)]
    monkeypatch.setattr("tests.oracle.levels.match_flows", lambda *_: turned)
    assert score(MODEL, made, (MODEL, made)).right == 0


def test_programs_of_one_dialect_are_never_matched_approximately() -> None:
    flows = FlowBuilder()
    other = MODEL.replace("stablehlo.tanh", "stablehlo.sine")
    found = match_flows(flows.of(MODEL.encode()), flows.of(other.encode()))
    assert MatchKind.APPROXIMATE not in {match.how for match in found}


def test_places_in_two_texts_are_not_compared() -> None:
    """Equal lines of two texts say nothing, whatever these are called; a line that one names of the other does."""
    head, end = "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {", "  return %0 : tensor<4xf32>\n}"
    text = f"{head}\n  %0 = OP %x : tensor<4xf32> LOC\n{end}"
    one, two = (text.replace("OP", name) for name in ("stablehlo.tanh", "math.exp"))

    def found(location: str) -> list[str]:
        flows = FlowBuilder()
        both = flows.of(one.replace("LOC", "").encode()), flows.of(two.replace("LOC", location).encode())
        return [
            match.before for match in match_flows(*both, ("a.mlir", "a.mlir")) if match.how is MatchKind.APPROXIMATE
        ]

    assert found("") == []
    assert found('loc("elsewhere/a.mlir":2:8)') == ["op2"]
    assert found('loc("a.mlir":3:8)') == []


@pytest.mark.long
def test_diff_says_what_is_approximate(built: Built, tmp_path: Path) -> None:
    bundle, model = built("jax_mlp"), tmp_path / "linalg.mlir"
    model.write_text(lowered((SAMPLES / "models" / "jax_mlp.mlir").read_text()))
    check_cli("build", model, "-o", tmp_path / "linalg.tracemap")
    text = check_cli("diff", bundle, tmp_path / "linalg.tracemap", "--top", "0")
    assert " approximately" in text
    shown = json.loads(check_cli("diff", bundle, tmp_path / "linalg.tracemap", "--format", "json"))
    validator("diff").validate(shown)
    products = [op for op in shown["ops"] if op["name_before"] == "stablehlo.dot_general"]
    assert [(op["name"], op["how"], op["edited"]) for op in products] == [("linalg.matmul", "approximate", False)] * 3
