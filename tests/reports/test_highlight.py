"""The MLIR lexer: exact, without error tokens on real models, linear on hostile text."""

from __future__ import annotations

import importlib
import random
import re
import time
import tomllib
from collections.abc import Iterable
from io import StringIO
from pathlib import Path

import pytest
from pygments import highlight
from pygments.formatters import NullFormatter
from pygments.lexer import Lexer
from pygments.lexers.python import PythonLexer
from pygments.token import Comment, Error, Keyword, Name, Number, String

from tests.support import ROOT, SAMPLES
from tracemap.reports.escaping import as_shown, lines_of
from tracemap.reports.highlight import MlirLexer, colour_of, colours_of_mlir, colours_of_python, rules_of_mlir
from tracemap.reports.html import asset

MODELS = sorted((SAMPLES / "models").glob("*.mlir"))


def tokens(text: str) -> list[tuple[object, str]]:
    return [(kind, value) for _, kind, value in MlirLexer().get_tokens_unprocessed(text)]


@pytest.mark.long
@pytest.mark.parametrize("model", MODELS, ids=lambda path: path.stem)
def test_no_error_tokens_on_models_and_the_text_comes_back(model: Path) -> None:
    text = model.read_bytes().decode()
    found = tokens(text)
    assert "".join(value for _, value in found) == text
    assert [value for kind, value in found if kind is Error] == []


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
        '"ends in backslash \\\nnext',
        'loc("mod\\C3\\A8le/层.py":7:1) é ✓ \u2028 \x0b \x00',
        "no end",
        "\ufeffmodule {}",
        "a\rb",
    ],
)
def test_any_text_comes_back_and_only_blanks_go_on_over_lines(text: str) -> None:
    found = tokens(text)
    assert "".join(value for _, value in found) == text
    assert [value for _, value in found if "\n" in value and value.strip()] == []


def test_each_form_has_its_kind() -> None:
    text = """// note
        #map = affine_map<(d0, d1) -> (d0)>
        func.func @"odd name"(%arg0: tensor<4x?xf32>, %x#1: !torch.vtensor<[1],f32>) -> memref<?x[4]xbf16> {
        ^bb1:
          %0 = "stablehlo.add"(%arg0) {value = dense<0xFF800000> : tensor<f32>, s = "a \\22 b"} : i32 loc(#loc12)
          %1 = arith.constant -1.5e-3 : f8E4M3FNUZ
          call @_where_0(%1) : (f32) -> index
        }
        {-# dialect_resources: { builtin: { blob: "0x0400" } } #-}
        """
    found = {value: kind for kind, value in tokens(text) if not value.isspace()}
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
        "i32": Keyword.Type,
        "#loc12": Name.Decorator,
        "loc": Name.Decorator,
        "1.5e-3": Number.Float,
        "f8E4M3FNUZ": Keyword.Type,
        "call": Keyword,
        "@_where_0": Name.Function.Magic,
        "index": Keyword.Type,
        '"0x0400"': String.Double,
    }
    assert {text: found.get(text) for text in expected} == expected
    assert Error not in found.values()


HOSTILE = '" [ "\\ 0x 0x0 < # @" 1 [1 a. "a. ?x \\ é loc(" {-# // f1E1M1'.split()
LENGTH, MOST_SECONDS = 100_000, 15
"""Linear work takes a second or two; quadratic work on as many characters, some thousand million steps, far longer."""


def seconds_for(lexer: Lexer, text: str) -> float:
    start = time.process_time()
    assert sum(len(value) for _, _, value in lexer.get_tokens_unprocessed(text)) == len(text)
    return time.process_time() - start


@pytest.mark.long
@pytest.mark.parametrize("piece", [*HOSTILE, "a ", " \n"])
def test_hostile_text_takes_linear_time(piece: str) -> None:
    assert seconds_for(MlirLexer(), piece * (LENGTH // len(piece))) < MOST_SECONDS


HOSTILE_PYTHON = [" \n", "  x\n", '"', "'''", '"""\\', "\\\n", "f'{", "(", "class ", "match ", "from ."]


@pytest.mark.few(5)
@pytest.mark.parametrize("piece", HOSTILE_PYTHON)
def test_hostile_python_takes_linear_time(piece: str) -> None:
    lines = (piece * (LENGTH // len(piece))).split("\n")
    start = time.process_time()
    assert len(colours_of_python(lines)) == len(lines)
    assert time.process_time() - start < MOST_SECONDS


# ---- for others


def test_pygments_finds_the_lexer_of_an_installation() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    entries = project["entry-points"]["pygments.lexers"]
    module, name = entries["mlir"].split(":")
    found = getattr(importlib.import_module(module), name)
    assert found is MlirLexer
    assert issubclass(found, Lexer)
    assert (found.name, found.aliases, found.filenames) == ("MLIR", ["mlir"], ["*.mlir"])
    assert any(re.match(r"pygments\b", each) for each in project["dependencies"])


def test_pygments_formats_by_the_lexer() -> None:
    out = StringIO()
    highlight("module {\n}\n", MlirLexer(), NullFormatter(), out)
    assert out.getvalue() == "module {\n}\n"


# ---- for pages


def test_patterns_are_such_as_scripts_know_too() -> None:
    for pattern, _ in rules_of_mlir():
        assert re.compile(pattern, re.ASCII).groups == 0
        assert not re.search(r"[+*?}]\+|\(\?P|\(\?>|\\[sSAZ]", pattern), pattern


def test_every_colour_is_one_that_style_sheets_know() -> None:
    letters = set(re.findall(r"::highlight\((\w)\)", asset("shared/source.css")))
    assert {colour for _, colour in rules_of_mlir()} <= letters | {""}
    python = {colour for line in colours_of_python([PYTHON, *lines_of(SOURCE)]) for colour, _, _ in line}
    assert len(python) >= 6
    assert python <= letters


PYTHON = '@jax.jit(static="a\\"b", n=len(x) + 0x1F, y=rf\'{x}\')'
SOURCE = (SAMPLES / "sources" / "jax_models.py").read_text(encoding="utf-8")


def test_forms_of_python_have_their_colours() -> None:
    (found,) = colours_of_python([PYTHON])
    assert [(colour, PYTHON[begin:end]) for colour, begin, end in found] == [
        ("d", "@jax"),
        ("s", '"a\\"b"'),
        ("y", "len"),
        ("n", "0x1F"),
        ("s", "rf'{"),
        ("s", "}'"),
    ]


def chance_lines() -> Iterable[str]:
    chance = random.Random(11)
    pieces = ['"""', "'", "#", "\\", " ", "\r", "\U0001d11e", "\u202e", "def f", "1", "\x0c", "é", "@a", "\0", ""]
    return ("".join(chance.choices(pieces, k=12)) for _ in range(500))


def test_lines_of_python_come_out_one_for_one_in_units_of_scripts() -> None:
    lines = list(chance_lines())
    text = "\n".join(lines)
    shown = as_shown(text).split("\n")
    # Made another way: a letter per character of the whole text, doubled beyond the basic plane.
    letters = "".join(
        "\n" if char == "\n" else (colour_of(kind) or ".") * (len(char.encode("utf-16-le")) // 2)
        for _, kind, value in PythonLexer().get_tokens_unprocessed("\n".join(line.rstrip() for line in shown))
        for char in value
    )
    found = colours_of_python(lines)
    assert len(found) == len(lines)
    for ranges, expected in zip(found, letters.split("\n"), strict=True):
        drawn = ["."] * len(expected)
        for colour, begin, end in ranges:
            drawn[begin:end] = colour * (end - begin)
        assert "".join(drawn) == expected


def test_tokens_of_a_line_of_mlir_have_their_places() -> None:
    assert colours_of_mlir("%0 = a.b  // é") == [("v", 0, 2), ("f", 5, 8), ("c", 10, 14)]
    assert colours_of_mlir("") == []
