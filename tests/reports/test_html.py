"""HTML files: deterministic, self-contained, escaped, written whole or not at all."""

from __future__ import annotations

import base64
import json
import random
import re
import zlib
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from tests.builders import attribution, graph, op, site
from tests.pages import build_page, render_page
from tests.reports.test_page import EXECUTES, GRAPH, TEXTS, TOTALS, page_of
from tests.support import ROOT, page_data
from tracemap.core.errors import TargetExists, TargetUnwritable
from tracemap.map.model import SourceFile
from tracemap.reports.escaping import LEVEL, as_shown, for_script, start_compression
from tracemap.reports.html import LINES_PER_BLOCK, markup_of_lines, write_page
from tracemap.reports.page.render import bar_width

pytestmark = pytest.mark.quick

EVIL = "</script><img src=x onerror=alert(1)>\u2028&amp;\"'"


def test_the_same_page_gives_the_same_bytes() -> None:
    pages = [render_page(page_of(GRAPH, attribution(GRAPH, TOTALS, executes=EXECUTES))) for _ in range(2)]
    assert pages[0] == pages[1]


def test_every_line_has_an_anchor_and_its_numbers_are_in_the_data() -> None:
    text = render_page(page_of(GRAPH, attribution(GRAPH, TOTALS)))
    assert re.findall(r'<div class="l" id="(F\d+L\d+)">', text) == [
        *(f"F1L{number}" for number in range(1, 5)),  # the user's Python comes first
        *(f"F0L{number}" for number in range(1, 13)),
    ]
    assert '<div class="l" id="F0L4"><code>line 4</code></div>' in text
    data = page_data(text)
    line = dict(zip(data["fields"]["SourceLine"], data["source_rows"][0]["lines"]["4"], strict=True))
    assert (line["ops"], line["calls"], line["costs"][0]) == (["op3"], 4, [150, 201, 10])
    assert ">cpu_ns, per invocation, mean of 2<" in text


def test_a_long_command_is_folded() -> None:
    made = attribution(GRAPH, TOTALS)
    for inputs, folded in ((1, False), (40, True)):
        run = structs.replace(made.run, command=("iree-benchmark-module", *["--input=32x784xf32=0.5"] * inputs))
        text = render_page(page_of(GRAPH, replace(made, run=run)))
        assert ("<details><summary>iree-benchmark-module --input" in text) == folded
        assert " ".join(run.command) in text


def test_the_hottest_ops_stand_in_the_markup_as_they_are_asked_for() -> None:
    for totals, of_op, basis in (
        (False, "75 ns", "per invocation, mean of 2"),
        (True, "150 ns", "sums of 2 invocations"),
    ):
        costs = attribution(GRAPH, TOTALS)
        text = render_page(build_page(GRAPH, costs, lambda source: TEXTS[source.name], totals=totals))
        first, *_ = re.findall(r"<tr><td>(op\d+)</td>.*?>([\d.]+ ns)</span>", text)
        assert first == ("op3", of_op)
        assert f">cpu_ns, {basis}<" in text
        assert ('<option value="1" selected>' in text) == totals


def test_nothing_is_loaded_from_elsewhere() -> None:
    # Of what is drawn, names of vocabularies look like addresses.
    text = re.sub(
        r"http://www\.w3\.org/(?:1999/xhtml|1999/xlink|2000/svg|2000/xmlns/|XML/1998/namespace)",
        "",
        render_page(page_of(GRAPH, None)),
    )
    assert not re.search(r"(?:src|srcset|action|poster)\s*=|@import|url\(|https?:", text)
    assert all(target.startswith("#") for target in re.findall(r'href="([^"]*)"', text))
    assert "default-src &#39;none&#39;" in text


@pytest.mark.parametrize("costs", [True, False])
def test_hostile_text_is_escaped_everywhere(costs: bool) -> None:
    ops = (op(0, 1, name=EVIL, scope=(EVIL,), frames=[(EVIL, 1)], function=EVIL, reason=EVIL),)
    source = SourceFile("model.mlir", "model.mlir", "mlir")
    map_ = graph(ops, (site(0, 0, kernel=EVIL),), sources=(source, SourceFile(EVIL, "x", "python")), name=EVIL)
    page = build_page(map_, attribution(map_, {EVIL: {"site0": 3}}) if costs else None, lambda _: EVIL)
    text = render_page(page)
    assert "<img" not in text
    assert text.count("</script>") == 5  # the page's own: early, data and rows, charts, main
    data = page_data(text)
    assert data["ops"][0][data["fields"]["OpRow"].index("name")] == as_shown(EVIL)


def test_embedded_data_is_inert_and_means_the_same() -> None:
    text = for_script({"a": EVIL})()
    assert re.fullmatch(r"[A-Za-z0-9+/]+=*", text)
    assert json.loads(zlib.decompress(base64.b64decode(text))) == {"a": as_shown(EVIL)}


def test_what_is_compressed_by_several_processors_is_one_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(1)
    data = b"".join(b'["op%d",%d],' % (number % 5000, dice.randrange(1 << 20)) for number in range(200_000))
    assert len(data) > 2 << 20
    made = start_compression(data)()
    assert zlib.decompress(made) == data
    assert len(made) < 1.001 * len(zlib.compress(data, LEVEL))
    monkeypatch.setattr("tracemap.reports.escaping.usable_processors", lambda: 1)
    assert start_compression(data)() == made
    assert start_compression(data[: 1 << 20])() == zlib.compress(data[: 1 << 20], LEVEL)
    for size in ((1 << 20) + 1, 2 << 20):
        assert zlib.decompress(start_compression(data[:size])()) == data[:size]


def test_lines_are_escaped_and_characters_that_reorder_show() -> None:
    text = markup_of_lines(["</code><script>\u202e&'\r", "", "\0"], "F0")
    assert '<div class="l" id="F0L1"><code>&lt;/code>&lt;script>⟨U+202E⟩&amp;\'</code></div>\n' in text
    assert '<div class="l" id="F0L3"><code>\ufffd</code></div>\n' in text


def test_long_sources_are_cut_into_blocks() -> None:
    lines = 2 * LINES_PER_BLOCK + 7
    page = build_page(graph((op(0, 3),)), None, lambda _: "x\n" * lines)
    text = render_page(page)
    assert re.findall(r'class="chunk n(\d+)"', text) == ["100", "100", "7"]
    assert ".n7 { --lines: 7 }" in text


def test_every_asset_is_part_of_a_page() -> None:
    assets = ROOT / "tracemap" / "reports" / "assets"
    files = {str(path.relative_to(assets)) for path in assets.rglob("*") if path.is_file()}
    texts = [path.read_text(encoding="utf-8") for path in (*assets.rglob("*.j2"), *assets.parent.rglob("*.py"))]
    named = {name for text in texts for name in re.findall(r'"(\w+/\w+\.[\w.]+)"', text)}
    assert files == named


def test_bars_show_whatever_is_not_nothing() -> None:
    assert [bar_width(exact, 1000) for exact in (0, 1, 500, 1000, 2000)] == [0, 1, 10, 20, 20]
    assert bar_width(5, 0) == 0


def test_pages_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    page = render_page(page_of(GRAPH, None))
    target = tmp_path / "page.html"
    write_page(page, target, force=False)
    first = target.read_bytes()
    write_page(page, target, force=False)
    target.write_text("of another program")
    with pytest.raises(TargetExists, match="force=True"):
        write_page(page, target, force=False)
    write_page(page, target, force=True)
    assert target.read_bytes() == first
    with pytest.raises(TargetUnwritable, match="does not exist"):
        write_page(page, tmp_path / "absent" / "page.html", force=False)
    with pytest.raises(TargetUnwritable, match="is a folder"):
        write_page(page, tmp_path, force=True)
    assert [entry.name for entry in tmp_path.iterdir()] == ["page.html"]


def test_sources_without_text_say_so() -> None:
    assert TEXTS["model.mlir"]
    text = render_page(build_page(GRAPH, None, lambda _: ""))
    assert text.count("The bundle does not contain this file.") == 2


def test_parts_of_a_script_declare_a_name_once() -> None:
    """They stand in one function: a name that is declared again stops the whole page."""
    declared = re.findall(r"^(?:const|let|function|class|async function) (\w+)", script_of_page(), re.MULTILINE)
    assert len(declared) > 100
    assert [name for name, count in Counter(declared).items() if count > 1] == []


def script_of_page() -> str:
    return render_page(page_of(GRAPH, None)).rpartition("<script>")[2]
