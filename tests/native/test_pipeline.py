"""Pass pipelines as text: parsed, joined and split."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracemap.core.errors import PipelineInvalid
from tracemap.map.build.native.pipeline import PassNode, joined, last_with_loops, parse_pipeline, split_after

pytestmark = pytest.mark.quick

TEXT = "builtin.module(func.func(a,b{x=1 y={2,3}},c),d,any(e))"


def test_what_is_parsed_prints_as_it_was() -> None:
    assert str(parse_pipeline(TEXT)) == TEXT
    assert str(parse_pipeline(" builtin.module( func.func( a , b ) , c ) ")) == "builtin.module(func.func(a,b),c)"


@pytest.mark.parametrize(
    ("path", "before", "after"),
    [
        ((), "builtin.module()", TEXT),
        ((0, 1), "builtin.module(func.func(a,b{x=1 y={2,3}}))", "builtin.module(func.func(c),d,any(e))"),
        ((0, 2), "builtin.module(func.func(a,b{x=1 y={2,3}},c))", "builtin.module(d,any(e))"),
        ((1,), "builtin.module(func.func(a,b{x=1 y={2,3}},c),d)", "builtin.module(any(e))"),
    ],
)
def test_it_is_split_after_any_pass(path: tuple[int, ...], before: str, after: str) -> None:
    first, second = split_after(parse_pipeline(TEXT), path)
    assert (str(first), str(second)) == (before, after)


def test_several_run_one_after_the_other() -> None:
    pipelines = map(parse_pipeline, ("builtin.module(a)", "builtin.module(b,func.func(c))"))
    assert str(joined(pipelines)) == "builtin.module(a,b,func.func(c))"
    with pytest.raises(PipelineInvalid, match=r"runs on func\.func"):
        joined(map(parse_pipeline, ("builtin.module(a)", "func.func(b)")))


@pytest.mark.parametrize("text", ["", "cse", "builtin.module(a", "builtin.module(a))", "builtin.module(a b)", "(a)"])
def test_other_texts_are_rejected(text: str) -> None:
    with pytest.raises(PipelineInvalid, match="is no pass pipeline"):
        parse_pipeline(text)


def test_the_last_stage_with_loops_is_found_for_all_functions(tmp_path: Path) -> None:
    pipeline = parse_pipeline("builtin.module(func.func(make,unroll),tidy,func.func(lower),end)")
    texts = {
        "func_func_f/0_0_make.mlir": "affine.for %i = 0 to 4 {",
        "func_func_f/0_1_unroll.mlir": "affine.for %i = 0 to 2 {",
        "func_func_g/0_0_make.mlir": "affine.for %i = 0 to 4 {",
        "func_func_g/0_1_unroll.mlir": "arith.addf %a, %b : f32",
        "1_tidy.mlir": "  %0 = scf.for %i = %a to %b {",
        "func_func_f/1_2_lower.mlir": "cf.br ^bb1",
        "func_func_g/1_2_lower.mlir": "// scf.for is gone",
        "2_end.mlir": "llvm.br",
    }
    for name, text in texts.items():
        file = tmp_path / "builtin_module" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert last_with_loops(pipeline, tmp_path) == (1,)
    assert last_with_loops(PassNode("builtin.module", ()), tmp_path / "none") == ()
