"""Results of the API: sums of lines and scopes, notebook pictures, pages."""

from __future__ import annotations

import importlib.util
from html.parser import HTMLParser
from pathlib import Path

import duckdb
import pytest
from msgspec import structs

import tracemap
from tests.conftest import Built, Recorded
from tests.support import run_cli
from tracemap.compare import model
from tracemap.core.errors import QueryInvalid, TargetExists, ToolMissing
from tracemap.core.units import UNKNOWN
from tracemap.map.model import Frame, Op
from tracemap.map.query import frames_of, scope_of
from tracemap.results.attribution import Attribution
from tracemap.results.display import bar, table
from tracemap.results.run import Run
from tracemap.runs.model import UNKNOWN_HEADER
from tracemap.runs.runfile import write_run

EVIL = "<script>alert(1)</script>"
HARMLESS = {"div", "b", "svg", "rect", "title", "br", "small", "span", "table", "thead", "tbody", "tr", "th", "td"}


class Elements(HTMLParser):
    """The elements and texts of a document."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.texts: list[str] = []
        self.feed(document)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.fixture(scope="module")
def gpt(built: Built, recorded: Recorded) -> Attribution:
    return tracemap.attribute(recorded("jax_gpt2_4l"), built("jax_gpt2_4l"))


def shares_of(gpt: Attribution) -> list[tuple[Op, tuple[str, ...], tuple[Frame, ...], int]]:
    """Each share of each site: op, scope and frames by the calls that lead there, and CPU time."""
    assert gpt.bundle is not None
    graph, found = gpt.bundle.graph, []
    for cost in gpt.sites:
        for share, member in zip(cost.shares, graph.site_by_id[cost.site].members, strict=True):
            op = graph.op_by_id[member.op]
            where = scope_of(graph, op, member.path), frames_of(graph, op, member.path)
            found.append((op, *where, share.attributed["cpu_ns"]))
    return found


@pytest.mark.long
def test_costs_of_scopes_and_lines_add_up(gpt: Attribution) -> None:
    """The other side of each sum is the shares of sites, added up one by one."""
    assert gpt.bundle is not None
    shares = shares_of(gpt)
    (total,) = [metric for metric in gpt.metrics if metric.name == "cpu_ns"]
    assert sum(share for *_, share in shares) == total.attributed  # no transfer of this model takes CPU time
    for wanted in (("h1", "ffn"), ("h2",), ("lm_head",)):
        right = sum(share for _, scope, _, share in shares if scope[: len(wanted)] == wanted)
        assert gpt.scope("/".join(wanted))["cpu_ns"] == right > 0
    dearest = max(gpt.ops, key=lambda result: result.metrics["cpu_ns"].attributed)
    (op,) = gpt.bundle.op(dearest.op)
    value = dearest.metrics["cpu_ns"].attributed
    assert gpt.op(f"{op.file}:{op.line}")["cpu_ns"] == gpt.op(op.id)["cpu_ns"] == value
    assert gpt.op(op.id).share("cpu_ns") == value / total.work
    file, line = op.frames[0].file, op.frames[0].line
    at_line = [
        share for _, _, frames, share in shares if any((each.file, each.line) == (file, line) for each in frames)
    ]
    assert gpt.op(f"{file}:{line}")["cpu_ns"] == sum(at_line) > value
    in_function = [share for _, _, frames, share in shares if any(each.function == "ffn" for each in frames)]
    assert gpt.op("ffn")["cpu_ns"] == sum(in_function) > value
    kernel = gpt.bundle.graph.kernels[0]
    assert gpt.op(kernel.name)["cpu_ns"] == sum(gpt.op(site)["cpu_ns"] for site in kernel.sites)
    assert gpt.bundle.op(kernel.name)


def test_what_nothing_is_called(gpt: Attribution) -> None:
    with pytest.raises(QueryInvalid):
        gpt.op("nothing.py:1")
    with pytest.raises(QueryInvalid):
        gpt.scope("h0/nothing")
    assert gpt.bundle is not None
    assert gpt.bundle.scope("nothing") == ()
    assert {op.scope[0] for op in gpt.bundle.scope("h2/ffn") if op.scope} >= {"h2"}


def test_pictures_are_inert(gpt: Attribution, recorded: Recorded) -> None:
    del recorded
    assert gpt.bundle is not None
    for document in (gpt._repr_html_(), gpt.bundle._repr_html_()):
        elements = Elements(document)
        assert {"svg", "table"} <= elements.names <= HARMLESS
        assert not {name for name in elements.attributes if name.startswith("on") or name in {"href", "src"}}
    shown = Elements(gpt._repr_html_()).texts
    (total,) = [metric for metric in gpt.metrics if metric.name == "cpu_ns"]
    dearest = max(gpt.ops, key=lambda result: result.metrics["cpu_ns"].attributed)
    assert f"{100 * dearest.metrics['cpu_ns'].attributed / total.attributed:.1f} %" in shown
    hostile = Elements(bar([("<script>x</script>", 1)], 1) + table(["<img src=x onerror=y>"], [["<b>\u202e"]], 1))
    assert hostile.names <= HARMLESS
    assert "<script>x</script>: 100.0 %" in hostile.texts


@pytest.mark.long
def test_pages_are_those_of_report(gpt: Attribution, tmp_path: Path) -> None:
    assert gpt.bundle is not None
    page = gpt.show(tmp_path / "page.html", browser=False)
    other = tmp_path / "other.html"
    done = run_cli("report", gpt.bundle.path, gpt.paths[0], "--rule", gpt.rule.value, "-o", other)
    assert done.returncode == 0, done.stderr
    assert page.read_bytes() == other.read_bytes()
    gpt.show(page, browser=False)
    page.write_text("of another program")
    with pytest.raises(TargetExists, match="pass force=True"):
        gpt.show(page, browser=False)
    unnamed = gpt.bundle.show(browser=False)
    assert unnamed.stat().st_size > 10_000


def test_a_package_that_is_not_installed_is_named(gpt: Attribution) -> None:
    if importlib.util.find_spec("pandas"):
        pytest.skip("pandas is installed here; tests/frontends tries it")
    with pytest.raises(ToolMissing, match=r"tracemap\[pandas\]"):
        gpt.to_pandas()


@pytest.mark.parametrize("name", ["run.parquet", "run.csv"])
def test_the_table_of_a_run_has_the_types_of_its_columns(name: str, tmp_path: Path) -> None:
    """Rows of steps may come after many thousand events. Of a CSV their numbers were texts, those of threads not."""
    header, none = structs.replace(UNKNOWN_HEADER, iterations=1), "NULL::BIGINT"
    events = f"SELECT 'dispatch' AS kind, 'k' AS kernel, i AS cpu_ns, '7' AS thread, {none} AS step, {none} AS Ir"
    rows = f"{events}, {none} AS misses FROM range(30000) AS t(i)"
    with duckdb.connect() as connection:
        whole = connection.sql(f"{rows} UNION ALL SELECT 'step', 'k', NULL, NULL, 3, 80, NULL")
        write_run(header, whole, tmp_path / name, force=False)
    table = Run(tmp_path / name, header, 30000)._columns()
    last = {column: values[-1] for column, values in table.items()}
    assert last == {"kind": "step", "kernel": "k", "cpu_ns": None, "thread": None, "step": 3, "Ir": 80, "misses": None}
    assert (table["cpu_ns"][:2], table["thread"][0]) == ([0, 1], "7")


@pytest.mark.long
def test_a_comparison_is_a_table_a_picture_and_a_page(built: Built, recorded: Recorded, tmp_path: Path) -> None:
    runs, maps = (recorded("jax_mlp"), recorded("jax_mlp_train")), (built("jax_mlp"), built("jax_mlp_train"))
    made = tracemap.diff(*runs, map_a=maps[0], map_b=maps[1])
    table = made._columns()
    assert {len(column) for column in table.values()} == {len(made.ops)}
    for metric in made.metrics:
        for side in ("before", "after"):
            whole = sum(value for value in table[f"{metric.name}_{side}"] if isinstance(value, int))
            assert whole + getattr(metric.unattributed, side) == getattr(metric.whole, side)
    assert made.op("op3").after == "op3"
    with pytest.raises(QueryInvalid, match="neither side has such an op"):
        made.op("op99999")
    assert "jax_mlp.tracemap → jax_mlp_train.tracemap" in made._repr_html_()
    found = model.Finding("slower", EVIL, EVIL, EVIL, UNKNOWN, "cpu_ns", 10, 20, 2.0, 1.9, 2.1)
    evil = Elements(structs.replace(made, findings=(found,))._repr_html_())
    assert evil.names <= HARMLESS
    assert EVIL in evil.texts
    page = made.show(tmp_path / "diff.html", browser=False)
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
