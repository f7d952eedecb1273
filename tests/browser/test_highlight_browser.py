"""Colours of source text in a real Chromium: each form has its own, none is lost on hostile text, all are readable."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome

from tests.browser.conftest import Open
from tests.browser.test_reports_browser import go, prefer
from tests.builders import graph, op
from tests.support import SAMPLES
from tracemap.graph.model import SourceFile
from tracemap.reports.html.document import asset, write_page
from tracemap.reports.page.build import build_page
from tracemap.reports.page.render import render_page

MODELS = sorted((SAMPLES / "models").glob("*.mlir"))
SCRIPT = asset("shared/highlight.js")

Token = tuple[str, str]
"""The name of a colour, and the text that has it."""


def tokens(browser: Chrome, line: str) -> list[Token]:
    """The coloured tokens of a line of MLIR."""
    browser.get("about:blank")
    call = "return ofMlir(arguments[0], 0, []).map(([colour, begin, end]) => [colour, arguments[0].slice(begin, end)])"
    return [(colour, text) for colour, text in browser.execute_script(SCRIPT + call, line)]


def lines_of_python(browser: Chrome, *lines: str) -> list[list[Token]]:
    browser.get("about:blank")
    call = """
    let open = "";
    return arguments[0].map((line) => {
      const [found, rest] = pythonLine(line, open);
      open = rest;
      return found.map(([colour, begin, end]) => [colour, line.slice(begin, end)]);
    });
    """
    return [[(name, text) for name, text in line] for line in browser.execute_script(SCRIPT + call, lines)]


def test_each_form_of_mlir_has_its_colour(browser: Chrome) -> None:
    expected = {
        "#map = affine_map<(d0, d1) -> (d0)> // note": {"#map": "a", "affine_map": "k", "// note": "c"},
        'func.func @"odd name"(%arg0: tensor<4x?xf32>, %x#1: !torch.vtensor<[1],f32>) -> memref<?x[4]xbf16>': {
            "func.func": "f",
            '@"odd name"': "y",
            "%arg0": "v",
            "%x#1": "v",
            "4x?x": "n",
            "!torch.vtensor": "t",
            "?x[4]x": "n",
            "bf16": "t",
        },
        "^bb1:": {"^bb1": "o"},
        r'%0 = "stablehlo.add"(%a) {value = dense<0xFF800000> : tensor<f32>, s = "a \22 b"} : i32 loc(#loc12)': {
            '"stablehlo.add"': "f",
            "value": "p",
            "dense": "k",
            "0xFF800000": "n",
            r'"a \22 b"': "s",
            "#loc12": "d",
            "loc": "d",
            "i32": "t",
        },
        "%1 = arith.constant -1.5e-3 : f8E4M3FNUZ": {"1.5e-3": "n", "f8E4M3FNUZ": "t"},
        "call @_where_0(%1) : (f32) -> index": {"call": "k", "@_where_0": "y", "index": "t"},
        '{-# dialect_resources: { blob: "0x0400" } #-}': {'"0x0400"': "s"},
        '"unterminated': {'"unterminated': "s"},
        '"ends in backslash \\': {'"ends in backslash \\': "s"},
    }
    for line, colours in expected.items():
        found = {text: colour for colour, text in tokens(browser, line)}
        assert {text: found.get(text) for text in colours} == colours, line
        assert "e" not in found.values(), line


def test_tokens_of_models_follow_one_another_and_none_is_an_error(browser: Chrome) -> None:
    browser.get("about:blank")
    call = """
    return arguments[0].filter((line) => {
      let reached = 0;
      return ofMlir(line, 0, []).some(([colour, begin, end]) => {
        const bad = colour === "e" || begin < reached || end <= begin;
        reached = end;
        return bad;
      });
    });
    """
    for model in MODELS:
        lines = model.read_bytes().decode().split("\n")
        assert browser.execute_script(SCRIPT + call, lines[:20_000]) == [], model.name


def test_strings_of_python_go_on_over_lines(browser: Chrome) -> None:
    found = lines_of_python(
        browser,
        "def f(x):  # note",
        '    """A "quoted" word',
        "    # no comment",
        "    \"\"\"; return r'''x",
        "y'''  # end",
    )
    assert found == [
        [("k", "def"), ("f", "f"), ("c", "# note")],
        [("s", '"""'), ("s", 'A "quoted" word')],
        [("s", "    # no comment")],
        [("s", '    """'), ("k", "return"), ("s", "r'''"), ("s", "x")],
        [("s", "y'''"), ("c", "# end")],
    ]


def test_forms_of_python_have_their_colours(browser: Chrome) -> None:
    (found,) = lines_of_python(browser, '@jax.jit(static="a\\"b", n=len(x) + 0x1F, y=rf\'{x}\')')
    assert found == [("d", "@jax.jit"), ("s", '"a\\"b"'), ("y", "len"), ("n", "0x1F"), ("s", "rf'{x}'")]


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
    "//",
    "f1E1M1",
]


@pytest.mark.parametrize("piece", [*HOSTILE, "'", '"""', '"""\\'])
def test_a_megabyte_of_hostile_text_takes_linear_time(browser: Chrome, piece: str) -> None:
    # Quadratic work on a megabyte would take hours; the bound leaves room for a slow machine.
    browser.get("about:blank")
    begin = time.perf_counter()
    call = "const line = arguments[0].repeat(arguments[1]); ofMlir(line, 0, []); return pythonLine(line, '').length"
    assert browser.execute_script(SCRIPT + call, piece, 1_000_000 // len(piece)) == 2
    assert time.perf_counter() - begin < 20


COLOURS = """
const paint = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const rgb = (colour) => {
  paint.fillStyle = colour; paint.fillRect(0, 0, 1, 1);
  return [...paint.getImageData(0, 0, 1, 1).data].slice(0, 3);
};
const linear = (value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
const luminance = (colour) => {
  const [r, g, b] = rgb(colour).map((value) => linear(value / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const back = luminance(getComputedStyle(document.documentElement).backgroundColor);
const code = document.querySelector(".chunk code");
return Object.fromEntries([...CSS.highlights.keys()].map((name) => {
  const colour = getComputedStyle(code, `::highlight(${name})`).color;
  const light = luminance(colour);
  return [name, [colour, (Math.max(light, back) + 0.05) / (Math.min(light, back) + 0.05)]];
}));
"""


def test_colours_are_told_apart_and_readable_in_both_themes(open_page: Open, tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    text = '%0 = "stablehlo.add"(%a) : tensor<4xf32> // note\n'
    sources = (SourceFile("model.mlir", "model.mlir", "mlir"),)
    write_page(render_page(build_page(graph((op(0, 1),), sources=sources), None, lambda _: text)), target, force=False)
    browser = open_page(target, "#F0")
    seen = []
    for scheme in ("light", "dark"):
        prefer(browser, scheme)
        found: dict[str, Any] = browser.execute_script(COLOURS)
        assert set(found) == set("ckvfsydatonpe")
        assert {name: ratio for name, (_, ratio) in found.items() if ratio < 4.5} == {}
        assert len({colour for colour, _ in found.values()}) >= 12
        seen.append(found)
    prefer(browser, "light")
    assert seen[0] != seen[1]


def test_only_lines_near_the_view_are_coloured(open_page: Open, tmp_path: Path) -> None:
    target, count = tmp_path / "page.html", 20_000
    text = "%0 = arith.constant 1 : i32\n" * count
    write_page(render_page(build_page(graph((op(0, 1),)), None, lambda _: text)), target, force=False)
    browser = open_page(target, "#F0")
    # Each line has the token %0.
    coloured = "return CSS.highlights.get('v').size"
    gutters = "return document.querySelectorAll('.chunk .g').length"
    for anchor in ("#F0L1", f"#F0L{count}", "#F0L9000"):
        go(browser, anchor)
        go(browser, "#F0")
        assert 100 <= browser.execute_script(coloured) <= 1000
        assert browser.execute_script(coloured) == browser.execute_script(gutters)
        assert browser.find_element("css selector", f"{anchor} .g").is_displayed()


def test_the_browsers_search_finds_any_line_and_what_it_found_stays_marked(open_page: Open, tmp_path: Path) -> None:
    target, count = tmp_path / "page.html", 20_000
    text = "".join(f"%{number} = arith.constant 1 : i32\n" for number in range(1, count + 1))
    write_page(render_page(build_page(graph((op(0, 1),)), None, lambda _: text)), target, force=False)
    browser = open_page(target, "#F0")
    for number in (15_000, 300, 19_999):
        browser.execute_script("getSelection().removeAllRanges()")
        assert browser.execute_script("return window.find(arguments[0])", f"%{number} = arith")
        found = "return [String(getSelection()), getSelection().anchorNode.parentElement.closest('.l').id]"
        # A reader's browser scrolls to what it found; `find` of scripts does not always.
        browser.execute_script("getSelection().anchorNode.parentElement.scrollIntoView({ block: 'center' })")
        go(browser, "#F0")
        assert browser.execute_script(found) == [f"%{number} = arith", f"F0L{number}"]
        row = browser.find_element("css selector", f"#F0L{number}")
        assert 0 < browser.execute_script("return arguments[0].getBoundingClientRect().top", row) < 900
        assert row.text.startswith(f"{number}\n")
