"""Models of ONNX: names of nodes, parameters, old operators, data in files of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracemap
from tests.support import json_cli, run_cli
from tracemap.core.errors import InputInvalid, ModelInvalid, ModelUnreadable
from tracemap.map.bundle import Bundle

onnx = pytest.importorskip("onnx", reason="onnx is not installed: make frontends")
pytest.importorskip("onnx.reference")
helper = pytest.importorskip("onnx.helper")

Arrays = dict[str, Any]


def perceptron(opset: int = 17) -> tuple[Any, Arrays]:
    """Three layers as exporters of torch name them, and an input."""
    draws = np.random.default_rng(4)
    sizes = [(96, 128), (128, 64), (64, 10)]
    nodes, weights, value = [], [], "x"
    for number, size in enumerate(sizes):
        names = f"w{number}", f"b{number}"
        weights += [
            onnx.numpy_helper.from_array(draws.normal(0, 0.1, size).astype(np.float32), names[0]),
            onnx.numpy_helper.from_array(draws.normal(0, 0.1, size[1]).astype(np.float32), names[1]),
        ]
        nodes.append(helper.make_node("Gemm", [value, *names], [f"h{number}"], name=f"/layer{number}/linear/Gemm"))
        nodes.append(helper.make_node("Relu", [f"h{number}"], [f"r{number}"], name=f"/layer{number}/act/Relu"))
        value = f"r{number}"
    nodes.append(helper.make_node("Softmax", [value], ["y"], axis=1))
    graph = helper.make_graph(
        nodes,
        "perceptron",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [32, 96])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [32, 10])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return model, {"x": draws.normal(0, 1, (32, 96)).astype(np.float32)}


def right(model: object, inputs: Arrays) -> list[Any]:
    return list(onnx.reference.ReferenceEvaluator(model).run(None, inputs))


def slugs(bundle: Bundle) -> set[str]:
    return {item.slug for item in bundle.graph.diagnostics}


def test_a_model_in_memory(tmp_path: Path) -> None:
    model, inputs = perceptron()
    before = model.SerializeToString()
    bundle = tracemap.build(model, inputs["x"], output=tmp_path / "a.tracemap")
    assert model.SerializeToString() == before
    (output,) = tracemap.run(bundle)
    np.testing.assert_allclose(output, right(model, inputs)[0], rtol=1e-4, atol=1e-6)
    result = tracemap.attribute(tracemap.record(bundle, iterations=20), bundle)
    scopes = {op.id: "/".join(op.scope) for op in bundle.graph.ops}
    total = sum(op.metrics["cpu_ns"].attributed for op in result.ops)
    named = sum(op.metrics["cpu_ns"].attributed for op in result.ops if scopes[op.op].startswith("layer"))
    softmax = sum(op.metrics["cpu_ns"].attributed for op in result.ops if op.name == "onnx.Softmax")
    assert (named + softmax) / total >= 0.95
    assert {"layer0/linear", "layer2/linear"} <= set(scopes.values())
    again = tracemap.build(model, keywords=inputs, output=tmp_path / "b.tracemap")
    assert (again.graph.ops, again.kept_call()) == (bundle.graph.ops, bundle.kept_call())


@pytest.mark.quick
def test_a_file_with_its_data_beside_it(tmp_path: Path) -> None:
    model, inputs = perceptron()
    expected = right(model, inputs)[0]
    np.save(tmp_path / "x.npy", inputs["x"])
    onnx.save(model, tmp_path / "mlp.onnx", save_as_external_data=True, location="mlp.data", size_threshold=0)
    target = tmp_path / "mlp.tracemap"
    built = run_cli("build", tmp_path / "mlp.onnx", "-o", target)
    assert built.returncode == 0, built.stderr
    (tmp_path / "mlp.data").unlink()  # the bundle keeps the parameters
    bundle = tracemap.load(target)
    assert len(bundle.source_text(bundle.graph.sources[0])) < 20_000
    (output,) = tracemap.run(bundle, inputs=[f"@{tmp_path / 'x.npy'}"])
    np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-6)


def test_a_file_through_pass_pipelines(tmp_path: Path) -> None:
    """It is imported as `build` imports it: the same ops, on the same lines of the same text."""
    onnx.save(perceptron()[0], tmp_path / "mlp.onnx")
    built = tracemap.build(tmp_path / "mlp.onnx", tmp_path / "mlp.tracemap")
    (stage, whole) = tracemap.lower(tmp_path / "mlp.onnx", ["builtin.module(func.func(cse))"]).stages
    assert stage.text == built.source_text(built.graph.sources[0])
    lowered = json_cli("lower", tmp_path / "mlp.onnx", "--pipeline", "builtin.module(func.func(cse))")
    assert lowered["model"] == "mlp.mlir"
    names = [op.name for op in built.graph.ops if op.id in {each["id"] for each in lowered["ops"]}]
    assert [each["name"] for each in lowered["ops"]] == names
    assert sum("onnx.Gemm" in line for line in whole.text.splitlines()) == 3


def test_old_operators_are_upgraded_and_that_is_said(tmp_path: Path) -> None:
    model, inputs = perceptron(opset=9)
    bundle = tracemap.build(model, inputs["x"], output=tmp_path / "old.tracemap")
    assert "opset-upgraded" in slugs(bundle)
    np.testing.assert_allclose(tracemap.run(bundle)[0], right(model, inputs)[0], rtol=1e-4, atol=1e-6)
    assert not slugs(tracemap.build(perceptron()[0], output=tmp_path / "new.tracemap"))


@pytest.mark.filterwarnings("ignore:Stochastic Optimizer")  # how well it has learnt is of no account
def test_a_model_of_scikit_learn(tmp_path: Path) -> None:
    skl2onnx = pytest.importorskip("skl2onnx", reason="skl2onnx is not installed: make frontends")
    networks = pytest.importorskip("sklearn.neural_network")
    draws = np.random.default_rng(1)
    x, y = draws.normal(0, 1, (40, 8)).astype(np.float32), draws.normal(0, 1, 40).astype(np.float32)
    learnt = networks.MLPRegressor(hidden_layer_sizes=(16, 16), max_iter=400, random_state=0).fit(x, y)
    model = skl2onnx.to_onnx(learnt, x, target_opset=17)
    made = tracemap.build(model, x[:8], output=tmp_path / "skl.tracemap")
    np.testing.assert_allclose(tracemap.run(made)[0].ravel(), learnt.predict(x[:8]), rtol=1e-4, atol=1e-5)
    assert tracemap.attribute(tracemap.record(made, iterations=5), made).ops


def test_what_is_no_model_of_onnx(tmp_path: Path) -> None:
    file, target = tmp_path / "a.onnx", tmp_path / "a.tracemap"
    file.write_bytes(b"\x08\x00\xff\xff\x00 not a model")
    with pytest.raises(ModelInvalid, match=r"a\.onnx: is no ONNX model"):
        tracemap.build(file, target)
    with pytest.raises(ModelUnreadable):
        tracemap.build(tmp_path / "none.onnx", target)
    file.write_bytes(b"\x08\x07\x12\x07pytorch\x1a\x051.9.0:\x10" + b"\x0a\x00" * 40)
    with pytest.raises(ModelInvalid, match="shapes of the model's values cannot be inferred"):
        tracemap.build(file, target)
    model, inputs = perceptron()
    with pytest.raises(InputInvalid, match="has the inputs x"):
        tracemap.build(model, keywords={"z": inputs["x"]}, output=target)
    model.graph.node[0].op_type = "Nothing"
    with pytest.raises(ModelInvalid):
        tracemap.build(model, output=target)
    outside = perceptron()[0]
    tensor = outside.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../../../etc/passwd")
    with pytest.raises(ModelInvalid, match="cannot be read"):
        tracemap.build(outside, output=target)
    assert not target.exists()


@pytest.mark.parametrize(
    ("node", "error"),
    [
        (
            ("Frobnicate", ["x"], ""),
            "bad.onnx: cannot be compiled: node 'blk/n' (Frobnicate of x: 2x3): IREE has no operator Frobnicate, and "
            "neither has ONNX; check its name, or set its domain",
        ),
        (
            ("MyOp", ["x"], "acme"),
            "bad.onnx: cannot be compiled: node 'blk/n' (MyOp of x: 2x3): IREE has no operator MyOp of the domain acme",
        ),
        (("MatMul", ["x", "x"], ""), "bad.onnx: cannot be compiled: node 'blk/n' (MatMul of x: 2x3, x: 2x3): 'linalg."),
        (
            ("Add", ["x", "zz"], ""),
            "bad.onnx: node 'blk/n' (Add of x: 2x3, zz): no earlier node, input or initializer of the model has the "
            "name 'zz'; sort its nodes, or export it again",
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_node_that_cannot_be_compiled_is_named(node: tuple[str, list[str], str], error: str, tmp_path: Path) -> None:
    """By the model's file and in its words, not in those of the compiler's dialects."""
    operator, inputs, domain = node
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, 3]) for name in ("x", "y")]
    made = helper.make_node(operator, inputs, ["y"], name="blk/n", domain=domain)
    graph = helper.make_graph([made], "bad", values[:1], values[1:])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("acme", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "bad.onnx")
    done = run_cli("build", "bad.onnx", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert done.stderr.startswith(f"tracemap: error: {error}")
    assert not (tmp_path / "bad.tracemap").exists()


def test_text_may_have_any_name(tmp_path: Path) -> None:
    file = tmp_path / "a.onnx"
    file.write_text("func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {\n  return %x : tensor<4xf32>\n}\n")
    assert tracemap.build(file, tmp_path / "a.tracemap").graph.functions[0].name == "f"
