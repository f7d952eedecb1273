"""Names of JAX transformations become the user's names; others stay."""

from __future__ import annotations

import pytest

from tracemap.ir.model_reader import create_records, parse_model
from tracemap.ir.parsing import MlirParser
from tracemap.map.build.model.scopes import scopes_of

pytestmark = pytest.mark.quick

MODEL = """module {{
  func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {{
    %0 = stablehlo.tanh %x : tensor<4xf32> loc("{path}/tanh")
    %1 = stablehlo.abs %0 : tensor<4xf32> loc("{beside}")
    return %1 : tensor<4xf32>
  }}
}}
"""
SCAN = "jit(f)/h/scan"


@pytest.mark.parametrize(
    ("path", "beside", "written"),
    [
        ("jit(f)/h/while/body/closed_call/attn", SCAN, "h/scan/attn"),
        ("jit(f)/h/while/body/attn", SCAN, "h/scan/attn"),
        ("jit(f)/h/while/cond", SCAN, "h/scan/cond"),
        ("jit(f)/k/while/body", SCAN, "k/while/body"),
        ("jit(f)/h/while/body", "jit(f)/h/while", "h/while/body"),
        ("jit(f)/g/transpose(jvp(a))/g/jvp(a)/checkpoint/rematted_computation/b", SCAN, "g/transpose(jvp(a))/remat/b"),
        ("jit(f)/g/jvp(a)/checkpoint/b", SCAN, "g/jvp(a)/checkpoint/b"),
        ("jit(f)/vm/vmap()", SCAN, "vm/vmap"),
        ("jit(f)/vmap(layer)/transpose(weights)", SCAN, "vmap(layer)/transpose(weights)"),
    ],
)
def test_names_as_users_write_them(path: str, beside: str, written: str) -> None:
    parser = MlirParser()
    model = create_records(parser, parse_model(parser, MODEL.format(path=path, beside=beside).encode()))
    (index,) = [each.index for each in model.operations if each.name == "stablehlo.tanh"]
    assert "/".join(scopes_of(model)[index]) == written
