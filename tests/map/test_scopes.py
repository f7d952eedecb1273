"""Scopes and frames: joined across calls, users' own before libraries, from parameters."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from tests.builders import built_graph, facts_of, graph, op, site
from tests.conftest import Built, Recorded
from tests.support import SAMPLES, check_cli, json_cli
from tracemap.core.units import UNKNOWN, Integer
from tracemap.ir.model_reader import create_records, parse_model
from tracemap.ir.parsing import MlirParser
from tracemap.map.build.model.scopes import scopes_of
from tracemap.map.build.sites.members import drop_idle_members
from tracemap.map.bundle import load
from tracemap.map.model import Evidence, OpId, TraceGraph
from tracemap.map.query import frames_of, python_frame, scope_of, scope_text, select, user_frames_first


def called_twice() -> TraceGraph:
    """op3, of a function that op1 and op2 call, works in a site of each call."""
    ops = [
        op(1, 1, name="func.call", scope=("h0", "attn"), frames=[("m.py", 10), ("main.py", 1)]),
        op(2, 2, name="func.call", scope=("h1", "attn"), frames=[("m.py", 20), ("main.py", 1)]),
        op(3, 9, function="var", scope=("var",), frames=[("site-packages/jax/numpy.py", 5)]),
    ]
    sites = [site(0, 3, path=[1]), site(1, 3, path=[2])]
    with_paths = [structs.replace(each, members=(structs.replace(each.members[0], path=each.path),)) for each in sites]
    return graph(ops, with_paths)


def test_a_scope_is_that_of_the_calls_and_the_ops_own() -> None:
    made = called_twice()
    assert scope_of(made, made.op_by_id["op3"], ["op1"]) == ("h0", "attn", "var")
    assert scope_of(made, made.op_by_id["op3"], []) == ("var",)
    repeating = structs.replace(made.op_by_id["op3"], scope=("h0", "attn", "var"))
    assert scope_of(made, repeating, ["op1"]) == ("h0", "attn", "var")


def test_frames_go_on_with_those_of_the_calls_and_libraries_come_last() -> None:
    made = called_twice()
    frames = frames_of(made, made.op_by_id["op3"], ["op2"])
    assert [(frame.file, frame.line) for frame in frames] == [
        ("site-packages/jax/numpy.py", 5),
        ("m.py", 20),
        ("main.py", 1),
    ]
    assert [frame.file for frame in user_frames_first(made, frames)] == [
        "m.py",
        "main.py",
        "site-packages/jax/numpy.py",
    ]
    mine = structs.replace(made, library=("m.py",))
    assert [frame.file for frame in user_frames_first(mine, frames)] == [
        "site-packages/jax/numpy.py",
        "main.py",
        "m.py",
    ]


def test_a_scope_finds_the_ops_that_a_call_leads_there() -> None:
    assert [each.id for each in select(called_twice(), "h1/attn").ops] == ["op2", "op3"]


def test_an_op_without_a_dispatch_has_the_scope_of_its_functions_calls() -> None:
    made = called_twice()
    aside = structs.replace(made.op_by_id["op3"], id=OpId("op4"), scope=(), frames=())
    function = structs.replace(aside, id=OpId("op5"), name="func.func")
    made = structs.replace(made, ops=(*made.ops, aside, function))
    assert [scope_text(made, op) for op in made.ops] == ["h0/attn", "h1/attn", "h0/attn/var +1", "h0/attn +1", ""]
    assert [getattr(python_frame(made, op), "line", None) for op in made.ops] == [10, 20, 10, 10, None]


def test_nested_jits_cost_on_the_lines_that_call_them(built: Built, recorded: Recorded) -> None:
    """`jnp.var` and `jnp.where` become functions whose ops have bare names; the page's scopes have them all."""
    bundle = load(built("jax_gpt2_4l"))
    for site_ in bundle.graph.sites:
        for member in site_.members:
            found = bundle.graph.op_by_id[member.op]
            assert scope_of(bundle.graph, found, member.path), (site_.id, found)
    text = check_cli("attribute", recorded("jax_gpt2_4l"), "--map", built("jax_gpt2_4l"), "--top", "0")
    assert "jax_models.py:93" in text  # v = jnp.var(x, -1, keepdims=True)


def test_scan_bodies_are_in_the_scope_of_the_scan(built: Built) -> None:
    graph_ = load(built("jax_gpt2_4l_scan")).graph
    scopes = {scope_of(graph_, graph_.op_by_id[m.op], m.path) for s in graph_.sites for m in s.members}
    assert any(scope[0] == "scan_blocks" and scope[-1] == "ffn" for scope in scopes)
    assert all(scopes)


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "scope"),
    [
        ("torch_bert_tiny", ["m", "encoder", "layer", "1", "attention", "self", "query"]),
        ("torch_resnet18_small", ["layer2", "0", "downsample", "0"]),
        ("onnx_tinygpt", ["h", "3", "down"]),
    ],
)
def test_module_paths_come_from_parameter_names(model: str, scope: list[str], built: Built) -> None:
    assert scope in [each["scope"] for each in json_cli("show", built(model))["ops"]]


def test_parameters_of_different_modules_share_what_they_have_in_common() -> None:
    text = """
    module {
      util.global private @a.x.weight : tensor<4xf32>
      util.global private @a.y.weight : tensor<4xf32>
      func.func @f() -> tensor<4xf32> {
        %0 = util.global.load @a.x.weight : tensor<4xf32>
        %1 = util.global.load @a.y.weight : tensor<4xf32>
        %2 = stablehlo.add %0, %1 : tensor<4xf32>
        %3 = stablehlo.add %2, %1 : tensor<4xf32>
        return %3 : tensor<4xf32>
      }
    }"""
    parser = MlirParser()
    model = create_records(parser, parse_model(parser, text.encode()))
    scopes = scopes_of(model)
    assert [scopes[each.index] for each in model.operations if each.name == "stablehlo.add"] == [("a",), ("a", "y")]


def test_the_user_chooses_the_library_patterns(tmp_path: Path) -> None:
    model = SAMPLES / "models" / "hand_loczoo.mlir"
    check_cli("build", model, "-o", tmp_path / "a.tracemap", "--library", "*/vendor/*", "--library", "h.py")
    assert load(tmp_path / "a.tracemap").graph.library == ("*/vendor/*", "h.py")


PRODUCT_AND_TANH = """
func.func @f(%x: tensor<8x16xf32>, %w: tensor<16x4xf32>) -> tensor<8x4xf32> {
  %m = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
  %b = util.optimization_barrier %m : tensor<8x4xf32>
  %t = stablehlo.tanh %b : tensor<8x4xf32>
  %r = stablehlo.transpose %t, dims = [1, 0] : (tensor<8x4xf32>) -> tensor<4x8xf32>
  %s = stablehlo.exponential %r : tensor<4x8xf32>
  return %t : tensor<8x4xf32>
}
"""  # noqa: E501 - the text is MLIR


@pytest.mark.parametrize(
    ("evidence", "operations", "is_left_out"),
    [
        (Evidence.FUSED, 0, True),
        (Evidence.LOCATED, 0, False),
        (Evidence.FUSED, 1, False),
        (Evidence.FUSED, UNKNOWN, False),
    ],
)
def test_an_idle_op_in_a_fused_location_is_no_member(
    evidence: Evidence, operations: Integer, is_left_out: bool, tmp_path: Path
) -> None:
    """A product named in the kernel behind it, be it as the root: what does the most there is the root then."""
    graph = built_graph(PRODUCT_AND_TANH, tmp_path)
    product, tanh = graph.sites
    (works,), (after,) = product.members, tanh.members
    named = structs.replace(works, evidence=evidence, operations=operations, bytes_read=0, bytes_written=0, root=True)
    sites = [product, structs.replace(tanh, members=(named, structs.replace(after, root=False)))]
    facts = facts_of(PRODUCT_AND_TANH.encode())
    found = drop_idle_members(sites, facts)
    assert found[0] == product
    assert found[1] == (tanh if is_left_out else sites[1])
    alone = structs.replace(tanh, members=(named,))
    assert drop_idle_members([product, alone], facts) == [product, alone]
    assert drop_idle_members([sites[1]], facts) == [sites[1]]
