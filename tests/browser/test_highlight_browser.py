"""Colours of source text in a real Chromium: they are those of Pygments, quick on hostile text, and readable."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome

from tests.browser.conftest import Open, settle
from tests.browser.test_reports_browser import go, prefer
from tests.builders import graph, op
from tests.pages import build_page, render_page
from tests.support import SAMPLES
from tracemap.map.build.lowering_stages import lower
from tracemap.map.model import SourceFile
from tracemap.reports.escaping import lines_of
from tracemap.reports.highlight import Coloured, MlirLexer, coloured_lines, rules_of_mlir
from tracemap.reports.html import asset, write_page
from tracemap.reports.lowering_page import render_lowering_page

MODELS = sorted((SAMPLES / "models").glob("*.mlir"))
SCRIPT = f"const data = {{ lexer: {json.dumps(rules_of_mlir())} }};" + asset("shared/highlight.js")

# What would be quadratic if a pattern were careless, repeated.
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


def tokens(browser: Chrome, *lines: str) -> list[list[Coloured]]:
    """What the page's script colours of lines of MLIR."""
    browser.get("about:blank")
    found = browser.execute_script(SCRIPT + "return arguments[0].map(ofMlir)", lines)
    return [[(colour, begin, end) for colour, begin, end in line] for line in found]


PIECES = [
    *HOSTILE,
    "\n",
    " = ",
    "x",
    "%a:2",
    "loc",
    "->",
    "E3",
    "0xF",
    "-}",
    "{-#",
    "\U0001d11e",
    "\u2028",
    "\xa0",
    "\ufeff",
]


def texts() -> Iterator[str]:
    """The sample models, and texts put together by chance."""
    for model in MODELS:
        yield model.read_bytes().decode()
    chance = random.Random(11)
    for _ in range(200):
        yield "".join(chance.choices([*PIECES, "\t", "\x0b", "\0"], k=200))


@pytest.mark.long
def test_the_script_colours_mlir_as_pygments_does(browser: Chrome) -> None:
    lines = [line for text in texts() for line in lines_of(text)]
    # The whole text at once in Python, and by the line in the page.
    expected = coloured_lines(MlirLexer(), lines)
    for line, found, pygments in zip(lines, tokens(browser, *lines), expected, strict=True):
        assert found == in_utf16(line, pygments), line


def in_utf16(line: str, ranges: list[Coloured]) -> list[Coloured]:
    def units(end: int) -> int:
        return len(line[:end].encode("utf-16-le")) // 2

    return [(colour, units(begin), units(end)) for colour, begin, end in ranges]


@pytest.mark.long
@pytest.mark.parametrize("piece", HOSTILE)
def test_a_megabyte_of_hostile_text_takes_linear_time(browser: Chrome, piece: str) -> None:
    # Quadratic work on a megabyte would take hours; the bound leaves room for a slow machine.
    browser.get("about:blank")
    begin = time.perf_counter()
    call = "return ofMlir(arguments[0].repeat(arguments[1])).length"
    assert browser.execute_script(SCRIPT + call, piece, 1_000_000 // len(piece)) >= 0
    assert time.perf_counter() - begin < 20


PYTHON = """\
def f(x):  # é\r
    '''A "quoted" word
    # no \u202e comment \U0001d11e; len(x)'''  \f
    return "\U0001d11e" + rf"{x:>{len(x)}}"
"""


def coloured_by_line(browser: Chrome, panel: str) -> list[list[tuple[str, str]]]:
    """The colours of each line of a panel and the texts that have them, as the browser holds them."""
    script = """
    const lines = [...document.querySelectorAll(arguments[0] + " .chunk code")];
    const found = lines.map(() => []);
    for (const [name, ranges] of CSS.highlights) {
      for (const { startContainer: text, startOffset: begin, endOffset: end } of ranges) {
        const at = lines.indexOf(text.parentElement);
        if (at >= 0) found[at].push([begin, name, text.data.slice(begin, end)]);
      }
    }
    return found.map((line) => line.sort((a, b) => a[0] - b[0]).map((each) => each.slice(1)));
    """
    settle(browser)
    found: list[list[list[str]]] = browser.execute_script(script, panel)
    return [[(name, text) for name, text in line] for line in found]


def test_lines_of_python_have_the_colours_of_pygments(open_page: Open, tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    sources = (SourceFile("net.py", "net.py", "python"),)
    page = build_page(graph((op(0, 1),), sources=sources), None, lambda _: PYTHON)
    write_page(render_page(page), target, force=False)
    assert coloured_by_line(open_page(target, "#F0"), "#F0") == [
        [("k", "def"), ("f", "f"), ("c", "# é")],
        [("s", "'''A \"quoted\" word")],
        [("s", "    # no ⟨U+202E⟩ comment \U0001d11e; len(x)'''")],
        [("k", "return"), ("s", '"\U0001d11e"'), ("s", 'rf"{'), ("s", ":>{"), ("y", "len"), ("s", '}}"')],
    ]


def test_stages_of_a_lowering_have_the_colours_of_pygments(open_page: Open, tmp_path: Path) -> None:
    target, model = tmp_path / "page.html", SAMPLES / "models" / "hand_mlp.mlir"
    lowering = lower(model.read_bytes(), model.name, ("builtin.module(cse)",))
    write_page(render_lowering_page(lowering), target, force=False)
    browser = open_page(target)
    for number, stage in enumerate(lowering.stages):
        lines = lines_of(stage.text)
        expected = coloured_lines(MlirLexer(), lines)
        found = coloured_by_line(browser, f"#S{number}")
        assert found == [
            [(colour, line[begin:end]) for colour, begin, end in ranges]
            for line, ranges in zip(lines, expected, strict=True)
        ]


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


@pytest.mark.long
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


@pytest.mark.long
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
