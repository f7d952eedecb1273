"""MLIR's generic form: read without bindings, and compared with what IREE's bindings read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import ROOT, SAMPLES
from tracemap.core.errors import ModelInvalid
from tracemap.core.locations import UNKNOWN_LOCATION, FileRange, Location
from tracemap.ir.generic_text import read_generic, source_model
from tracemap.ir.model_reader import create_records, parse_model
from tracemap.ir.parsing import MlirParser

MODELS = [*sorted((SAMPLES / "models").glob("*.mlir")), *sorted((ROOT / "tests/programs/native").glob("*.mlir"))]
UNORDERED = frozenset({"signature", "parsed_location", "made_up", "block"})


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.stem)
def test_it_reads_what_the_bindings_read(model: Path) -> None:
    parser = MlirParser()
    parsed = parse_model(parser, model.read_bytes())
    expected = create_records(parser, parsed)
    text = parsed.module.operation.get_asm(print_generic_op_form=True, enable_debug_info=True, use_local_scope=True)
    module = read_generic(text)
    positions: list[Location] = [
        FileRange("-", op.line, op.column, op.line, op.column)
        if isinstance(op.line, int) and isinstance(op.column, int)
        else UNKNOWN_LOCATION
        for op in expected.operations
    ]
    found = source_model(module, positions, parsed.text, "-")
    names = [name for name in expected.operations[0].__slots__ if name not in UNORDERED]
    for ours, theirs in zip(found.operations, expected.operations, strict=True):
        for name in names:
            assert getattr(ours, name) == getattr(theirs, name), (theirs.name, name)
    classes: dict[int, int] = {}
    for ours, theirs in zip(found.operations, expected.operations, strict=True):
        assert classes.setdefault(ours.signature, theirs.signature) == theirs.signature, "equal only here"
    assert found.arguments.keys() == expected.arguments.keys()
    for function, arguments in expected.arguments.items():
        assert [(own.type, own.name) for own in found.arguments[function]] == [(a.type, a.name) for a in arguments]
    assert found.private == expected.private


@pytest.mark.quick
def test_hostile_text_is_data() -> None:
    text = (
        '"builtin.module"() ({\n'
        '  "a.b"() {"x{\\22 loc(" = "}) ({ loc(\\22z\\22)", y = #m<"->", [1, 2]>} : () -> () loc("q)(":1:2)\n'
        '  %0:2 = "c.d"() <{p = affine_set<(d0) : (d0 >= 0)>}> : () -> (i1, memref<2xf32, strided<[1]>>) loc(unknown)\n'
        '  "e.f"(%0#1, %0#0)[^bb1] : (memref<2xf32, strided<[1]>>, i1) -> () loc(unknown)\n'
        "}) : () -> () loc(unknown)\n"
    )
    module = read_generic(text)
    first, second, third = module.root.children
    assert first.attributes == {'x{" loc(': '"}) ({ loc(\\22z\\22)"', "y": '#m<"->", [1, 2]>'}
    assert module.location_texts()[1] == '"q)(":1:2'
    assert second.types == ["i1", "memref<2xf32, strided<[1]>>"]
    assert third.operands == ["%0#1", "%0#0"]
    assert third.successors == ["^bb1"]
    assert module.with_locations(module.location_texts()) == text


@pytest.mark.quick
@pytest.mark.parametrize(
    "text",
    [
        "",
        "module {\n}\n",
        '"a.b"() ({\n',
        "}) : () -> ()\n",
        '"a.b"(%0\n',
        '"a.b"() : () -> ()\n"a.b"() : () -> ()\n',
        "^bb0:\n",
    ],
)
def test_other_text_is_rejected(text: str) -> None:
    with pytest.raises(ModelInvalid):
        read_generic(text)


@pytest.mark.quick
def test_a_value_without_definition_is_rejected() -> None:
    module = read_generic('"builtin.module"() ({\n  "a.b"(%9) : (i1) -> () loc(unknown)\n}) : () -> () loc(unknown)\n')
    with pytest.raises(ModelInvalid, match="%9"):
        source_model(module, (), "", "-")
