"""Printed output at terminal widths and into pipes, as golden files.

`pytest tests/reports/test_terminal.py --update-gold` writes them anew. The run is a stored recording, and the
bundles are compiled for one processor, so that everything is the same on every machine.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from rich.cells import cell_len

from tests.conftest import Built
from tests.hook.test_stats import calls_file
from tests.support import Json, check_cli, command_line, json_cli
from tests.tables import amount, printed_table
from tests.terminals import RUN, Terminal, check_gold, check_lines, on_terminal, printed, said_on_terminal
from tracemap.commands.attribute import show_attribution
from tracemap.commands.runs import TIMED, BundleAttribution, join_runs
from tracemap.core.toolchain import no_progress
from tracemap.map.bundle import load
from tracemap.map.query import audit, select_all
from tracemap.options.results import AttributeOptions, Rule
from tracemap.reports.kernels import view_kernel
from tracemap.reports.terminal.map import print_audit, print_kernel, print_map
from tracemap.reports.terminal.tables import Heading, console, print_table
from tracemap.reports.views.selection import VIEWS


@pytest.fixture(scope="module")
def attributed(fixed: Built) -> BundleAttribution:
    return join_runs([RUN], load(fixed("jax_mlp_train")), AttributeOptions(rule=Rule.MODEL), no_progress, TIMED)


# ---- golden files


@pytest.mark.parametrize("by", VIEWS)
def test_costs_look_as_they_did(
    by: str, attributed: BundleAttribution, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    options = AttributeOptions(by=by)  # type: ignore[arg-type] # it is one of them
    check_gold(f"attribute-{by}", lambda out: show_attribution(attributed, options, out), monkeypatch, request)


def test_maps_look_as_they_did(fixed: Built, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    graph = load(fixed("hand_mlp")).graph
    graph = structs.replace(graph, module=structs.replace(graph.module, iree_compiler="VERSION"))
    check_gold("show", lambda out: print_map(select_all(graph), graph, out, whole=True), monkeypatch, request)


def test_the_inside_of_a_kernel_looks_as_it_did(
    fixed: Built, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    bundle = load(fixed("hand_mlp"))
    view = view_kernel(bundle.graph.kernels[0], bundle.kernel_text(bundle.graph.kernels[0]), ())
    check_gold("show-kernel", lambda out: print_kernel(view, bundle.graph, out), monkeypatch, request)


def test_audits_look_as_they_did(fixed: Built, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    graph = load(fixed("jax_mlp_train")).graph
    check_gold("audit", lambda out: print_audit(graph, audit(graph), out, list_all=False), monkeypatch, request)


# ---- all widths, and real terminals


@pytest.mark.parametrize("columns", range(30, 260, 11))
def test_tables_fit_any_width(columns: int, attributed: BundleAttribution, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = attributed.bundle.graph
    for by in VIEWS:
        options = AttributeOptions(by=by, top=7)  # type: ignore[arg-type] # it is one of them
        check_lines(printed(lambda out: show_attribution(attributed, options, out), columns, monkeypatch), columns)  # noqa: B023
    check_lines(
        printed(lambda out: print_map(select_all(graph), graph, out, whole=True), columns, monkeypatch), columns
    )
    check_lines(
        printed(lambda out: print_audit(graph, audit(graph), out, list_all=True), columns, monkeypatch), columns
    )


@pytest.mark.long
def test_columns_go_in_the_stated_order(attributed: BundleAttribution, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of docs/attribution.md; no sample was taken, so there is no interval."""
    order = [
        "high",
        "low",
        "inclusive",
        "calls",
        "p90",
        "p10",
        "DLmr/1000",
        "D1mr/1000",
        "LL",
        "median",
        "line",
        "pass",
        "scope",
        "gain",
        "DLmr",
        "D1mr",
        "Ir",
        "python",
    ]
    left_out = set()
    for columns in range(290, 24, -1):
        text = printed(partial(show_attribution, attributed, AttributeOptions(by="op")), columns, monkeypatch)
        table = text.partition("\nbalance of")[0].replace("\n", " ")
        said = re.search(r"\(no room for: (.*?); select with --columns\)", table)
        names = [name.split()[0] for name in said[1].split(", ")] if said else []
        assert sorted(names) == sorted(order[: len(names)])
        left_out.add(len(names))
    assert left_out == set(range(len(order) + 1))


@pytest.mark.long
def test_styles_are_for_terminals_that_want_them(fixed: Built) -> None:
    command = ("attribute", RUN, "--map", fixed("jax_mlp_train"))
    styled, plain = on_terminal(100, *command), on_terminal(100, *command, NO_COLOR="1")
    assert "\x1b[1m" in styled
    assert re.sub(r"\x1b\[[\d;]*m", "", styled) == plain
    check_lines(plain, 100)


@pytest.mark.long
def test_the_ir_of_a_kernel_has_colours_on_terminals_that_want_them(fixed: Built) -> None:
    bundle = fixed("hand_mlp")
    command = ("show", bundle, load(bundle).graph.kernels[0].name)
    styled, plain = on_terminal(100, *command), on_terminal(100, *command, NO_COLOR="1")
    assert "linalg.generic" in re.findall(r"\x1b\[1m(.*?)\x1b\[0m", styled)
    assert re.sub(r"\x1b\[[\d;]*m", "", styled) == plain
    assert "\x1b" not in plain + said_on_terminal(None, *command)[0] + on_terminal(100, *command, TERM="dumb")


@pytest.mark.long
@pytest.mark.parametrize("variables", [{}, {"FORCE_COLOR": "1"}, {"COLUMNS": "40"}])
def test_pipes_get_whole_lines_without_styles(variables: dict[str, str], fixed: Built) -> None:
    command = command_line("attribute", RUN, "--map", fixed("jax_mlp_train"))
    done = subprocess.run(command, capture_output=True, env={**os.environ, **variables}, check=True)
    check_lines(done.stdout.decode(), None)
    assert "…" not in done.stdout.decode().split("\nbalance of")[0].replace("… 33 more ops", "")


@pytest.mark.long
def test_statistics_are_laid_out_as_irees_whatever_the_terminal(tmp_path: Path) -> None:
    calls = calls_file(tmp_path / "calls.csv", 500)
    piped = check_cli("stats", calls)
    assert {on_terminal(columns, "stats", calls) for columns in (80, 120, 200)} == {piped}


# ---- what the numbers are


@pytest.mark.long
def test_every_column_of_ops_is_what_the_json_says(fixed: Built) -> None:
    """Sums of the JSON, divided here by the invocations of each metric: 3 were timed, 1 was simulated."""
    bundle = fixed("jax_mlp_train")
    found = json_cli("attribute", RUN, "--map", bundle)
    calls = {metric["name"]: metric["invocations"] for metric in found["metrics"]}
    assert (calls["cpu_ns"], calls["duration_ns"], calls["Ir"], calls["DLmw"]) == (3, 3, 1, 1)
    every = ",".join(calls)
    before_ns = json_cli("what-if", RUN, "--map", bundle)["before_ns"]
    ops = {op["op"]: op for op in found["ops"]}
    for options, divisors in (((), calls), (("--totals",), dict.fromkeys(calls, 1))):
        text = check_cli("attribute", RUN, "--map", bundle, "--by", "op", "--top", "0", "--metric", every, *options)
        rows = printed_table(text, "Ops by cpu_ns")
        assert sorted(row["op"] for row in rows) == sorted(ops)
        for row in rows:
            expected = dict(_expected(ops[row["op"]], found, divisors, before_ns))
            assert len(row) == len(expected) + len(("op", "line", "python", "name", "scope", "pass"))
            for name, value in expected.items():
                pattern = re.escape(name) + "( [nµm]?s(/invocation)?| %| M| (K|M)?i?B)?( of [13])?"
                (heading,) = (heading for heading in row if re.fullmatch(pattern, heading))
                _check(row["op"], heading, row[heading], value)


def _expected(op: Json, found: Json, divisors: dict[str, int], before_ns: int) -> Iterator[tuple[str, Fraction | None]]:
    """The columns of an op by their name without unit, computed from the JSON."""
    words = {"cpu_ns": "cpu", "duration_ns": "wall"}
    costs = {name: cost["attributed"] for name, cost in op["metrics"].items()}
    yield "calls", Fraction(op["calls"], divisors["cpu_ns"])
    for name, cost in costs.items():
        yield words.get(name, name), Fraction(cost, divisors[name])
    (measured,) = (metric["measured"] for metric in found["metrics"] if metric["name"] == "cpu_ns")
    outliers = sum(row["metrics"]["cpu_ns"] for row in found["unattributed"] if row["reason"] == "outliers")
    yield "of cpu", Fraction(100 * costs["cpu_ns"], measured - outliers)
    yield "LL fetched", Fraction(64 * sum(costs[name] for name in ("ILmr", "DLmr", "DLmw")), divisors["ILmr"])
    for key in ("inclusive", "low", "high"):
        yield f"{key} cpu", Fraction(op["metrics"]["cpu_ns"][key], divisors["cpu_ns"])
    for key in ("median", "p10", "p90"):
        yield f"{key} cpu", Fraction(op["metrics"]["cpu_ns"]["per_invocation"][key])
    gain = next((own for own in found["what_if"] if own["target"] == op["op"]), None)
    yield "gain if 2x", gain and Fraction(100 * (before_ns - gain["after_ns"]), before_ns)
    for name in ("I1mr", "ILmr", "D1mr", "DLmr", "D1mw", "DLmw"):
        yield f"{name}/1000 Ir", Fraction(1000 * costs[name], costs["Ir"]) if costs["Ir"] else None


def _check(row: str, heading: str, cell: str, value: Fraction | None) -> None:
    if value is None or cell == "–":
        assert (value is None) == (cell == "–"), (row, heading)
        return
    shown, slack = amount(heading, cell)
    assert abs(shown - value) <= slack, (row, heading, cell, float(value))


@pytest.mark.long
@pytest.mark.parametrize("by", ["line", "name", "kernel", "site"])
def test_rows_of_other_views_are_sums_of_the_json(by: str, fixed: Built) -> None:
    bundle = fixed("jax_mlp_train")
    found, shown = json_cli("attribute", RUN, "--map", bundle), json_cli("show", bundle)
    kernels = {site["id"]: site["kernel"] for site in shown["sites"]}
    keys: dict[str, Callable[[Json], str]] = {
        "line": lambda op: f"{op['file']}:{op['line']}",
        "name": lambda op: str(op["name"]).removeprefix("stablehlo."),
        "kernel": lambda site: kernels[site["site"]],
        "site": lambda site: str(site["site"]),
    }
    part, field = ("sites", "total") if by in {"kernel", "site"} else ("ops", "attributed")
    expected: dict[str, int] = defaultdict(int)
    for each in found[part]:
        expected[keys[by](each)] += each["metrics"]["D1mr"][field]
    text = check_cli("attribute", RUN, "--map", bundle, "--top", "0", "--by", by, "--metric", "D1mr,Ir")
    title = "Dispatch sites" if by == "site" else f"{by.capitalize()}s"
    rows = printed_table(text, f"{title} by D1mr, per invocation")
    assert {row[by]: int(row["D1mr"].replace(",", "")) for row in rows} == expected


# ---- what fits


@given(
    st.lists(st.lists(st.text(max_size=60), min_size=4, max_size=4), max_size=6),
    st.integers(20, 120),
    st.lists(st.sampled_from(["number", "name", "code", "words"]), min_size=4, max_size=4),
)
def test_whatever_cells_hold_a_table_fits(rows: list[list[str]], columns: int, kinds: list[str]) -> None:
    """Names of models may be in any script, and as long as they like; wide letters take two columns."""
    headings = [
        Heading(f"{kind}{at}", kind == "number", leave=at * 30, least=8, words=kind == "words", at_end=kind == "code")
        for at, kind in enumerate(kinds)
    ]
    out = Terminal()
    to = console(out)
    to.width = columns
    print_table(to, "A table", headings, rows)
    lines = re.sub(r"\x1b\[[\d;]*m", "", out.getvalue()).split("\n")
    for line in lines:
        assert cell_len(line) <= columns
        assert line == line.rstrip()
        assert line.isprintable()
    assert len(lines) > len(rows) + 2
    assert lines[2].strip()


def test_rows_without_styles_are_written_without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a map of 20,000 ops rich alone took six seconds."""
    rows = [("op1", "é…", "a sentence of some words", number) for number in range(500)]
    headings = (Heading("op"), Heading("name"), Heading("reason", words=True), Heading("cost", right=True))
    out, printed_by_rich = io.StringIO(), []
    to = console(out)
    monkeypatch.setattr(to, "print", lambda *words, **_: printed_by_rich.append(words))
    print_table(to, "", headings, rows)
    assert not printed_by_rich
    assert out.getvalue().splitlines()[100] == "op1  é…    a sentence of some words    99"
