"""The MLIR lexer: exact, without error tokens on real models, linear on hostile text."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pygments.token import Comment, Error, Keyword, Name, Number, String

from tests.support import SAMPLES
from tracemap.reports.highlight.lexer import mlir_tokens
from tracemap.reports.highlight.lines import highlighted_lines
from tracemap.reports.labels import lines_of

MODELS = sorted((SAMPLES / "models").glob("*.mlir"))


def tokens(text: str) -> list[tuple[object, str]]:
    return [(kind, value) for _, kind, value in mlir_tokens(text)]


def kinds(text: str) -> dict[str, object]:
    return {value: kind for kind, value in tokens(text) if not value.isspace()}


@pytest.mark.parametrize("model", MODELS, ids=lambda path: path.stem)
def test_no_error_tokens_on_models_and_the_text_comes_back(model: Path) -> None:
    text = model.read_bytes().decode()
    found = tokens(text)
    assert "".join(value for _, value in found) == text
    assert [value for kind, value in found if kind is Error] == []
    assert len(highlighted_lines(text, "mlir")) == len(lines_of(text)) == len(text.splitlines())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "\n\n  module {}",
        "module {}\r\n\r\nfunc.func @a()\r\n",
        "\tx = 1 \t\n\t",
        '"unterminated\nnext',
        '"ends in backslash \\',
        'loc("mod\\C3\\A8le/层.py":7:1) é ✓ \u2028 \x0b \x00',
        "no end",
        "\ufeffmodule {}",
        "a\rb",
    ],
)
def test_any_text_comes_back(text: str) -> None:
    assert "".join(value for _, value in tokens(text)) == text


def test_each_form_has_its_kind() -> None:
    found = kinds(
        """// note
        #map = affine_map<(d0, d1) -> (d0)>
        func.func @"odd name"(%arg0: tensor<4x?xf32>, %x#1: !torch.vtensor<[1],f32>) -> memref<?x[4]xbf16> {
        ^bb1:
          %0 = "stablehlo.add"(%arg0) {value = dense<0xFF800000> : tensor<f32>, s = "a \\22 b"} : i32 loc(#loc12)
          %1 = arith.constant -1.5e-3 : f64
          call @_where_0(%1) : (f32) -> index
        }
        {-# dialect_resources: { builtin: { blob: "0x0400" } } #-}
        """
    )
    expected: dict[str, object] = {
        "// note": Comment.Single,
        "#map": Name.Constant,
        "affine_map": Keyword.Constant,
        "func.func": Name.Function,
        '@"odd name"': Name.Function.Magic,
        "%arg0": Name.Variable,
        "%x#1": Name.Variable,
        "4x?x": Number.Integer,
        "!torch.vtensor": Keyword.Type,
        "?x[4]x": Number.Integer,
        "bf16": Keyword.Type,
        "^bb1": Name.Label,
        '"stablehlo.add"': Name.Function,
        "value": Name.Attribute,
        "dense": Keyword.Constant,
        "0xFF800000": Number.Hex,
        '"a \\22 b"': String.Double,
        "#loc12": Name.Decorator,
        "loc": Name.Decorator,
        "1.5e-3": Number.Float,
        "@_where_0": Name.Function.Magic,
        "index": Keyword.Type,
        '"0x0400"': String.Double,
    }
    assert {text: found.get(text) for text in expected} == expected
    assert Error not in found.values()


HOSTILE = [
    '"',
    "[",
    '"\\',
    "0x",
    "0x0",
    "a ",
    "<",
    "#",
    '@"',
    "1",
    "[1",
    "a.",
    '"a.',
    "?x",
    "\\",
    "é",
    'loc("',
    "{-#",
    "//",
]


def seconds_for(text: str) -> float:
    start = time.process_time()
    assert sum(len(value) for _, _, value in mlir_tokens(text)) == len(text)
    return time.process_time() - start


@pytest.mark.parametrize("piece", HOSTILE)
def test_a_megabyte_of_hostile_text_takes_linear_time(piece: str) -> None:
    # Quadratic work on a megabyte would take hours; the bound leaves room for a slow machine.
    assert seconds_for(piece * (1_000_000 // len(piece))) < 20


def test_python_lines_come_out_one_for_one() -> None:
    text = '\n\n"""doc\nmore\n"""\r\ndef f(x):\n\treturn x  # é\n'
    assert len(highlighted_lines(text, "python")) == len(lines_of(text)) == 7


def test_highlighted_text_is_escaped_and_reordering_characters_show() -> None:
    (line,) = highlighted_lines('loc("</code><script>\u202e&\'")', "mlir")
    assert "<script" not in line
    assert "&lt;/code&gt;&lt;script&gt;⟨U+202E⟩&amp;&#39;" in line
