"""Terminal tables: complete when piped, exact balance, hostile names inert."""

from __future__ import annotations

import io
import os
import pty
import re

import pytest

from tests.builders import attribution, graph, op, site
from tests.reports.test_page import EXECUTES, GRAPH, TOTALS
from tests.tables import all_of_terminal, printed_table
from tracemap.core.diagnostics import Diagnostic
from tracemap.map.query import Selection, select_all
from tracemap.options.results import AttributeOptions
from tracemap.reports.cost_lookup import MapCosts
from tracemap.reports.terminal.attribution import print_attribution, print_costs
from tracemap.reports.terminal.map import print_map

pytestmark = pytest.mark.quick

LONG = "main$async_dispatch_7_" + "matmul_like_" * 30 + "f32"


def rows_of(printed: str, title: str) -> list[list[str]]:
    """Cells of the rows below a title, up to an empty line or the end."""
    lines = printed.split("\n")
    start = next(index for index, line in enumerate(lines) if line.startswith(title)) + 2
    rows = []
    for line in lines[start:]:
        if not line.strip() or line.startswith("…"):
            break
        rows.append(line.split())
    return rows


def attributed_text(options: AttributeOptions | None = None) -> str:
    out = io.StringIO()
    costs = attribution(GRAPH, TOTALS, executes=EXECUTES, diagnostics=[Diagnostic("odd-too", "and [red]this[/red]")])
    print_attribution(GRAPH, costs, out, options or AttributeOptions(by="op"))
    return out.getvalue()


def test_piped_tables_are_plain_and_cut_nothing() -> None:
    map_ = graph((op(0, 1, name="stablehlo." + "very_long_name_" * 20),), (site(0, 0, kernel=LONG),))
    out = io.StringIO()
    print_map(select_all(map_), map_, out, whole=True)
    printed = out.getvalue()
    assert "\x1b" not in printed
    assert "…" not in printed
    assert LONG in printed
    assert map_.ops[0].name in printed


def test_show_prints_ops_sites_members_and_kernels() -> None:
    out = io.StringIO()
    print_map(select_all(GRAPH), GRAPH, out, whole=True)
    printed = out.getvalue()
    assert "9 ops: 4 dispatched, 1 load-time, 1 host, 1 constant-folded, 2 structural" in printed
    assert "5 dispatches of 5 kernels, 4 traced to ops" in printed
    assert [row[0] for row in rows_of(printed, "Ops")] == [entry.id for entry in GRAPH.ops]
    assert [row[0] for row in rows_of(printed, "Dispatch sites")] == [entry.id for entry in GRAPH.sites]
    assert ["site0", "op3", "model.mlir:4", "linalg.generic", "located", "100", "48", "B", "16", "B"] in rows_of(
        printed, "Ops in dispatches"
    )
    assert ["k2", "0", "site2"] in rows_of(printed, "Kernels")
    assert "note [odd]: something is odd" in printed


def test_show_prints_what_was_selected_only() -> None:
    out = io.StringIO()
    print_map(Selection((), (GRAPH.sites[2],), ()), GRAPH, out)
    printed = out.getvalue()
    assert "site2" in printed
    assert "site0" not in printed
    assert "Kernels" not in printed


def test_attribute_prints_ops_by_cost() -> None:
    first, *others = printed_table(attributed_text(), "Ops by cpu_ns, per invocation, mean of 2")
    assert [row["op"] for row in others] == ["op2", "op5", "op6"]
    assert first == {
        "op": "op3",
        "line": "model.mlir:4",
        "python": "net.py:1",
        "name": "linalg.generic",
        "scope": "h0/attn",
        "calls": "2",
        "cpu ns": "75.0",
        "of cpu %": "53.6",
        "wall ns": "7.50",
        "median cpu ns": "75",
        "p10 cpu ns": "75",
        "p90 cpu ns": "76",
        "inclusive cpu ns": "100",
        "low cpu ns": "50",
        "high cpu ns": "100",
    }


def test_totals_are_of_the_whole_run() -> None:
    first, *_ = printed_table(
        attributed_text(AttributeOptions(by="op", totals=True)), "Ops by cpu_ns, sums of 2 invocations"
    )
    assert (first["calls"], first["cpu ns"], first["inclusive cpu ns"]) == ("4", "150", "201")


def test_attribute_balances_in_exact_numbers() -> None:
    assert "balance of cpu_ns: 140 ns = 136 to ops + 4 submission-and-queue (--balance)" in attributed_text()
    printed = attributed_text(AttributeOptions(balance=True))
    assert "cpu_ns: measured 280 = attributed 271 + unattributed 9 ns" in printed
    assert "duration_ns: measured 33 = attributed 28 + unattributed 5 ns" in printed
    rows = printed_table(printed, "Balance, per invocation, mean of 2")
    assert [(row[""], row["cpu ns"]) for row in rows] == [
        ("attributed", "135.5"),
        ("no op: submission-and-queue", "4.5"),
        ("measured", "140.0"),
    ]


def test_attribute_says_what_was_not_measured_and_what_is_odd() -> None:
    printed = attributed_text(AttributeOptions(notes=True))
    assert "5 dispatches: 4 traced to ops, 3 executed, 1 run at load time (not measured)" in printed
    assert "note [load-time-not-measured]: site3: 1 dispatch run at load: not measured, because" in printed
    assert "note [odd-too]: and [red]this[/red]" in printed


def test_three_notes_are_printed_and_the_rest_on_request() -> None:
    """The most important first, each once."""
    slugs = ("odd", "odd", "noisy", "other", "records-lost", "last")
    diagnostics = [Diagnostic(slug, f"{slug} (1)") for slug in slugs]
    texts = []
    for options in (AttributeOptions(), AttributeOptions(notes=True)):
        out = io.StringIO()
        print_attribution(GRAPH, attribution(GRAPH, TOTALS, diagnostics=diagnostics), out, options)
        texts.append(out.getvalue().partition("\nbalance of")[2].splitlines()[1:])
    few, every = texts
    slugs_of = [re.findall(r"note \[(.*?)\]", line) for line in every]
    assert slugs_of[:2] == [["records-lost"], ["noisy"]]
    assert every[1] == "note [noisy]: noisy (1). Stop other programs, and record again"
    assert few == [*every[:3], f"{len(every) - 3} more: --notes"]
    assert len(every) == len(set(every)) > 5


def test_the_table_alone() -> None:
    out = io.StringIO()
    costs = attribution(GRAPH, TOTALS, executes=EXECUTES)
    print_costs(MapCosts(GRAPH, costs), costs, out, AttributeOptions(by="op"), table_only=True)
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("op ")
    assert len(lines) == 1 + len(rows_of(attributed_text(), "Ops by cpu_ns"))


def test_of_many_sites_some_are_named_and_the_rest_counted() -> None:
    map_ = graph([op(0, 1)], [site(0, 0), *(site(number, 0, initializer=True) for number in range(1, 41))])
    out = io.StringIO()
    print_attribution(map_, attribution(map_, {"cpu_ns": {"site0": 10}}), out)
    said = (
        "note [load-time-not-measured]: site1, site2, site3, site4, site5 and 35 others: 40 dispatches run at load: "
        "not measured, because profiles of IREE's tools exclude loading. tracemap.recording in Python measures "
        "loading, too"
    )
    assert said in out.getvalue().splitlines()


def test_hidden_ops_are_summed() -> None:
    count = AttributeOptions().top + 3
    map_ = graph([op(i, i + 1) for i in range(count)], [site(i, i) for i in range(count)])
    costs = attribution(map_, {"cpu_ns": {f"site{i}": 10 for i in range(count)}})
    out, select_all = io.StringIO(), io.StringIO()
    print_attribution(map_, costs, out)
    print_attribution(map_, costs, select_all, AttributeOptions(top=0))
    assert f"… 3 more ops, {100 * 3 / count:.1f} %" in out.getvalue()
    assert len(rows_of(select_all.getvalue(), "Ops by cpu_ns")) == count


def test_control_characters_do_not_reach_the_terminal() -> None:
    map_ = graph((op(0, 1, name="a\x1b[31m\nb\u202e", reason="[bold]not markup[/bold] \x07"),))
    out = io.StringIO()
    print_map(select_all(map_), map_, out)
    printed = out.getvalue()
    assert "a\\x1b[31m\\nb\\u202e" in printed
    assert "[bold]not markup[/bold] \\x07" in printed


def test_names_of_metrics_do_not_steer_the_terminal() -> None:
    """They are headings of columns in other people's CSV files."""
    out = io.StringIO()
    print_attribution(GRAPH, attribution(GRAPH, {"a\x1b[2J\nb": {"site0": 3}}), out)
    assert "\x1b" not in out.getvalue()
    assert out.getvalue().count("Source lines by a\\x1b[2J\\nb") == 1


def test_a_narrow_terminal_shortens_names_in_their_middle() -> None:
    map_ = graph((op(0, 1),), (site(0, 0, kernel=LONG),))
    leader, follower = pty.openpty()
    with os.fdopen(follower, "w") as follower_end:
        terminal_columns = os.environ.get("COLUMNS")
        os.environ["COLUMNS"] = "80"
        try:
            print_map(Selection((), (), map_.kernels), map_, follower_end)
        finally:
            os.environ.pop("COLUMNS")
            if terminal_columns is not None:
                os.environ["COLUMNS"] = terminal_columns
    printed = all_of_terminal(leader).decode()
    lines = printed.replace("\r", "").split("\n")
    bare = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in lines]
    assert max(map(len, bare)) <= 80
    (name,) = (line.split(" ")[0] for line in bare if line.startswith("main$"))
    head, tail = name.split("…")
    assert LONG.startswith(head)
    assert LONG.endswith(tail)
    assert "\x1b[" in printed
