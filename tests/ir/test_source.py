"""Models as read: positions, explicit locations, ops, loop bounds, bytecode, hostile text."""

from __future__ import annotations

import io

import pytest

from tests.support import SAMPLES
from tracemap.core.errors import ModelInvalid
from tracemap.core.locations import UnknownLocation
from tracemap.core.units import UNKNOWN
from tracemap.ir.frameworks import name_arguments
from tracemap.ir.model_reader import blank_locations, create_records, location_attributes, parse_model
from tracemap.ir.parsing import MlirParser
from tracemap.ir.source_model import SourceModel, SourceOperation
from tracemap.map.build.tagging import Tags, tag_operations

pytestmark = pytest.mark.quick

MODELS = sorted((SAMPLES / "models").glob("*.mlir"))


def described(data: bytes | str) -> SourceModel:
    parser = MlirParser()
    encoded = data.encode() if isinstance(data, str) else data
    return create_records(parser, parse_model(parser, encoded))


def stands_at_its_place(lines: list[bytes], operation: SourceOperation) -> bool:
    if operation.line is UNKNOWN or operation.column is UNKNOWN:
        return False
    here = lines[operation.line - 1][operation.column - 1 :]
    short = operation.name.split(".")[-1].encode()  # `return` for `func.return`
    return here.startswith((operation.name.encode(), b'"' + operation.name.encode(), short, b"torch.operator"))


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_every_op_stands_at_its_line_and_column(path: object) -> None:
    data = path.read_bytes()  # type: ignore[attr-defined]  # pytest's ids take the parameter's type away
    model = described(data)
    lines = data.split(b"\n")
    ops = [op for op in model.operations if op.is_op and op.index > 0]
    assert model.positions_known
    assert [op for op in ops if not stands_at_its_place(lines, op) and not op.name.startswith("onnx.")] == []


def test_bytecode_gives_the_same_operations_in_canonical_text() -> None:
    parser = MlirParser()
    data = (SAMPLES / "models" / "hand_loczoo.mlir").read_bytes()
    module = parse_model(parser, data).module
    out = io.BytesIO()
    module.operation.write_bytecode(out)
    text_model, bytecode_model = described(data), described(out.getvalue())
    assert [op.name for op in bytecode_model.operations] == [op.name for op in text_model.operations]
    assert [op.location for op in bytecode_model.operations if op.is_op] == [
        op.location for op in text_model.operations if op.is_op
    ] or bytecode_model.positions_known
    lines = bytecode_model.text.encode().split(b"\n")
    assert all(stands_at_its_place(lines, op) for op in bytecode_model.operations if op.is_op and op.index > 0)


def test_locations_are_blanked_in_place() -> None:
    text = (
        '#loc = loc("a.py":1:1)\n'
        'func.func @f(%x: f32 loc("x, ) \\" y")) -> f32 { // not a loc("comment")\n'
        '  %0 = arith.addf %x, %x {loc = "loc(1)", a = loc("kept")} : f32 loc(callsite(#loc at "b"("c":1:2)))\n'
        "  return %0 : f32 loc(#loc)\n"
        "}\n"
    )
    blanked = blank_locations(text)
    assert len(blanked) == len(text)
    assert [len(line) for line in blanked.split("\n")] == [len(line) for line in text.split("\n")]
    assert blanked.count("loc(") == 4  # the alias, the comment, the string and the attribute
    model = described(text)
    assert [(op.name, op.line, op.column) for op in model.operations if op.is_op][1:] == [
        ("func.func", 2, 1),
        ("arith.addf", 3, 8),
        ("func.return", 4, 3),
    ]


def test_a_location_over_several_lines_keeps_the_lines() -> None:
    text = 'func.func @f() {\n  return loc(callsite("a"\n   at "b"))\n}\nfunc.func @g() {\n  return\n}\n'
    model = described(text)
    assert [(op.name, op.line) for op in model.operations if op.name == "func.return"] == [
        ("func.return", 2),
        ("func.return", 6),
    ]


def test_locations_that_the_parser_made_up_are_unknown() -> None:
    model = described('func.func @f() {\n  return loc("mine.py":4:2)\n}\n')
    function, ret = (op for op in model.operations if op.index > 0)
    assert isinstance(function.location, UnknownLocation)
    assert not isinstance(ret.location, UnknownLocation)


def test_parts_belong_to_their_op_and_control_flow_holds_ops() -> None:
    model = described((SAMPLES / "models" / "hand_loop.mlir").read_bytes())
    by_name = {op.name: op for op in model.operations}
    assert by_name["scf.if"].is_op
    assert by_name["linalg.elementwise"].is_op
    matmul = by_name["linalg.matmul"]
    parts = [op.name for op in model.operations if op.owner == matmul.index and not op.is_op]
    assert parts == ["arith.mulf", "arith.addf", "linalg.yield"]


@pytest.mark.parametrize(
    ("body", "bound"),
    [
        ("%r = scf.for %i = %c to %n step %c iter_args(%a = %x) -> f32 { scf.yield %a : f32 }", True),
        ("%m = arith.addi %n, %c : index\n scf.for %i = %c to %m step %c { }", True),
        ("%m = arith.addi %n, %c : index", False),
        ("scf.while : () -> () { %t = arith.cmpi slt, %n, %c : index\n scf.condition(%t) } do { scf.yield }", True),
    ],
)
def test_arguments_that_bound_loops_are_found(body: str, bound: bool) -> None:
    text = f"func.func @f(%n: index, %x: f32) {{\n %c = arith.constant 1 : index\n {body}\n return\n}}"
    assert [argument.loop_bound for argument in described(text).arguments["f"]] == [bound, False]


def test_stablehlo_while_conditions_bound_loops() -> None:
    text = """
    func.func @f(%n: tensor<i32>, %x: tensor<4xf32>) -> tensor<4xf32> {
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %r:3 = stablehlo.while(%i = %zero, %m = %n, %a = %x) : tensor<i32>, tensor<i32>, tensor<4xf32>
      cond {
        %c = stablehlo.compare LT, %i, %m : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %c : tensor<i1>
      } do {
        %one = stablehlo.constant dense<1> : tensor<i32>
        %j = stablehlo.add %i, %one : tensor<i32>
        %b = stablehlo.add %a, %a : tensor<4xf32>
        stablehlo.return %j, %m, %b : tensor<i32>, tensor<i32>, tensor<4xf32>
      }
      return %r#2 : tensor<4xf32>
    }"""
    assert [argument.loop_bound for argument in described(text).arguments["f"]] == [True, False]


def test_arguments_have_the_names_of_the_program() -> None:
    """Those of locations, as JAX and ONNX write them, else those of the text that no printer gave."""
    model = described("""#x = loc("x")
    func.func @f(%a: tensor<2xf32> loc(#x), %b: tensor<2xf32> loc("p['w']"("a.py":1:2)), %c : i32, %arg3: i32,
        %4: i32, %d: i32 loc(unknown), %e: f32 loc(fused["a.py":1:2, "y"])) {
      return
    }
    """)
    names = [argument.name for argument in model.arguments["f"]]
    assert names == ["x", "p['w']", "c", "", "", "", "y"]
    module = MlirParser().parse("func.func @f(%arg0: i32, %arg1: i32) {\n return\n}")
    name_arguments(module, "f", ["tokens"])
    assert "tokens" not in module.operation.get_asm(enable_debug_info=True)
    name_arguments(module, "f", ["tokens", "mask"])
    found = described(module.operation.get_asm(enable_debug_info=True)).arguments["f"]
    assert [argument.name for argument in found] == ["tokens", "mask"]


def test_tags_count_in_pre_order() -> None:
    parser = MlirParser()
    data = (SAMPLES / "models" / "hand_mlp.mlir").read_bytes()
    parsed = parse_model(parser, data)
    tags = Tags("tm.op.")
    tag_operations(parsed.module.operation, tags)
    model = create_records(parser, parsed)
    found = [tags.of(parser.location_of(attribute)) for attribute in location_attributes(parsed.module)]
    assert found == [(), *((operation.index,) for operation in model.operations[1:])]


def test_the_module_keeps_its_name_for_the_compiler() -> None:
    """IREE names libraries after the module's location, which the parser makes up for text without a name."""
    for text, expected in [
        ("func.func @f() { return }", '"m.mlir":0:0'),
        ("module {}", '"m.mlir":1:1'),
        ('module {} loc("mine.py":3:1)', '"mine.py":3:1'),
    ]:
        module = parse_model(MlirParser(), text.encode()).module
        tag_operations(module.operation, Tags("tm.op."), "m.mlir")
        assert str(module.operation.location) == f"loc({expected})"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"func.func @f( {", "1:14: expected"),
        (b'module {\n  "unclosed', "2:12: expected"),
        (b"\xff\xfe\x00", "line 1: neither UTF-8 text"),
        (b"ML\xefRgarbage", "bytecode"),
    ],
)
def test_what_does_not_parse_is_refused_with_its_place(data: bytes, message: str) -> None:
    with pytest.raises(ModelInvalid, match=message):
        parse_model(MlirParser(), data)


def test_constants_that_the_bindings_have_no_class_for_are_no_whole_numbers() -> None:
    text = "func.func @f() {\n %c = arith.constant dense<(1.0, 2.0)> : tensor<2xcomplex<f32>>\n return\n}"
    (constant,) = [op for op in described(text).operations if op.name == "arith.constant"]
    assert constant.constant is UNKNOWN


def test_the_bindings_own_modules_of_dialects_are_there_for_others() -> None:
    """Reading does without them; who imports one gets it, with its classes, also after that."""
    before = "%0 = arith.constant 1 : i32"
    MlirParser().parse(before)
    from iree.compiler.dialects import arith, hal

    assert {"AddFOp", "ConstantOp"} <= set(dir(arith))
    assert hal.__file__
    operation = MlirParser().parse(before).body.operations[0]
    assert isinstance(operation, arith.ConstantOp)
