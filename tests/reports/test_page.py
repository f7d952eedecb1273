"""Page data of lines, ops, dispatches and scopes, from graphs that can be added up by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from tests.builders import MODEL, attribution, graph, op, site
from tests.pages import build_page, render_page
from tracemap.attribution.model import Attribution
from tracemap.core.diagnostics import Diagnostic
from tracemap.core.units import UNKNOWN
from tracemap.map.model import Outcome, SourceFile, TraceGraph
from tracemap.options.results import Rule
from tracemap.reports.cost_lookup import AT_LOAD, NO_MEMBERS, elapsed_breakdown_text
from tracemap.reports.page.model import Page, Percentiles, SourceLine, amount_text

pytestmark = pytest.mark.quick

PYTHON = SourceFile("net.py", "python/0-net.py", "python")
TEXTS = {"model.mlir": "\n".join(f"line {number}" for number in range(1, 13)), "net.py": "a\nb\nc\nd\n"}

# model.mlir: 1 func main, 2 call, 3..5 work of main, 6 func callee, 7 and 8 its work, 9 load-time, 10 constant.
# net.py: 1 and 2 are innermost lines, 4 the line that leads to both; lib.py is not kept.
OPS = (
    op(0, 1, name="func.func", outcome=Outcome.STRUCTURAL),
    op(1, 2, name="func.call", outcome=Outcome.HOST),
    op(2, 3, scope=("h0", "attn"), frames=[("lib.py", 9), ("net.py", 1), ("net.py", 4)]),
    op(3, 4, scope=("h0", "attn"), frames=[("net.py", 1), ("net.py", 4), ("net.py", 4)], part_lines=[5]),
    op(4, 6, name="func.func", function="callee", outcome=Outcome.STRUCTURAL),
    op(5, 7, function="callee", scope=("h0",), frames=[("net.py", 2), ("net.py", 4)]),
    op(6, 8, function="callee"),
    op(7, 9, outcome=Outcome.LOAD_TIME),
    op(8, 10, outcome=Outcome.CONSTANT),
)
SITES = (
    site(0, 2, 3),
    site(1, 3, kernel="k1"),
    site(2, 5, 6, path=[1], kernel="k2"),
    site(3, 7, initializer=True, kernel="k3"),
    site(4, kernel="k4"),
)
GRAPH = graph(OPS, SITES, sources=(MODEL, PYTHON), diagnostics=[Diagnostic("odd", "something is odd")])
TOTALS = {"duration_ns": {"site0": 11, "site1": 10, "site2": 7}, "cpu_ns": {"site0": 101, "site1": 100, "site2": 70}}
CPU, DURATION = 0, 1  # numbers of the metrics of a page
EXECUTES = [{"duration_ns": 8, "covered_ns": 3, "cpu_ns": 9}]


def page_of(map_: TraceGraph, costs: Attribution | None) -> Page:
    return build_page(map_, costs, lambda source: TEXTS[source.name])


@pytest.fixture(scope="module")
def page() -> Page:
    return page_of(GRAPH, attribution(GRAPH, TOTALS, executes=EXECUTES, elapsed_ns=100))


def line(page: Page, source: int, number: int) -> SourceLine:
    return page.rows.source_rows[source].lines[number]


def costs(entry: SourceLine, metric: int = CPU) -> tuple[int, int]:
    return entry.costs[metric].attributed, entry.costs[metric].inclusive


def test_cpu_time_is_shown_first_and_every_metric_is_there(page: Page) -> None:
    assert page.data.metric == CPU
    assert [metric.name for metric in page.data.metrics] == ["cpu_ns", "duration_ns"]
    assert [metric.measured for metric in page.data.metrics] == [280, 33]
    assert line(page, 0, 3).costs[DURATION].attributed == 6


def test_model_lines_carry_the_attributed_cost_of_their_ops(page: Page) -> None:
    assert costs(line(page, 0, 3)) == (51, 101)  # op2: the first of two members gets the odd unit
    assert costs(line(page, 0, 4)) == (50 + 100, 101 + 100)  # op3: sites 0 and 1, the wholes of both
    assert line(page, 0, 4).calls == 4
    assert line(page, 0, 4).sites == ("site0", "site1")


def test_attributed_costs_of_lines_add_up(page: Page) -> None:
    for number, metric in enumerate(page.data.metrics):
        lines = [entry for entry in page.rows.source_rows[0].lines.values() if entry.costs]
        assert sum(entry.costs[number].attributed for entry in lines) == metric.attributed


def test_calls_and_functions_carry_what_is_reached_through_them_apart(page: Page) -> None:
    assert costs(line(page, 0, 2)) == (0, 70)
    assert line(page, 0, 2).sites == ("site2",)
    assert costs(line(page, 0, 1)) == (0, 101 + 100 + 70)
    assert costs(line(page, 0, 6)) == (0, 70)


def test_python_lines_carry_self_and_inclusive(page: Page) -> None:
    assert costs(line(page, 1, 1)) == (51 + 150, 51 + 150)  # op2's innermost frame is of a file that is not kept
    assert costs(line(page, 1, 2)) == (35, 35)
    assert costs(line(page, 1, 4)) == (0, 51 + 150 + 35)  # op3 has the line twice in its stack and counts once
    assert 3 not in page.rows.source_rows[1].lines


def test_load_time_is_not_measured_rather_than_nothing(page: Page) -> None:
    at_load = line(page, 0, 9)
    assert (at_load.remark, at_load.costs, at_load.calls) == ("not measured", (), UNKNOWN)
    row = page.data.sites[3]
    assert (row.load_time, row.costs, row.remarks, row.calls) == (True, (), (AT_LOAD,), UNKNOWN)
    assert page.rows.ops[7].costs == ()
    assert page.data.coverage.load_time_sites == 1


def test_lines_without_cost_say_why(page: Page) -> None:
    assert line(page, 0, 10).remark == "constant-folded"
    assert line(page, 0, 5).remark == "part of op3"
    assert 12 not in page.rows.source_rows[0].lines


def test_heat_is_relative_to_the_hottest_line_of_the_file(page: Page) -> None:
    heats = {number: entry.costs[CPU].heat for number, entry in page.rows.source_rows[0].lines.items() if entry.costs}
    assert heats[4] == 10
    assert heats[3] == round(10 * (51 / 150) ** 0.5)
    assert heats[1] == 0
    assert page.rows.source_rows[0].hottest[CPU] == (4, 3, 7, 8)


def test_coverage_counts(page: Page) -> None:
    coverage = page.data.coverage
    assert (coverage.ops, coverage.sites, coverage.sites_with_members, coverage.kernels) == (9, 5, 4, 5)
    assert {row.outcome: row.ops for row in coverage.by_outcome} == {
        "dispatched": 4,
        "load-time": 1,
        "host": 1,
        "constant-folded": 1,
        "structural": 2,
    }
    assert coverage.uncalled_sites == 1  # site4 has no result


def test_residual_rows_say_why(page: Page) -> None:
    assert [(row.reason, row.amounts[CPU]) for row in page.data.unattributed] == [
        ("submission-and-queue", 9),
    ]
    assert page.data.unattributed[0].text == "queue: a submission had started, but none of its dispatches was running"
    assert page.data.diagnostics[0] == Diagnostic("odd", "something is odd")
    assert [diagnostic.slug for diagnostic in page.data.diagnostics[1:]] == ["load-time-not-measured"]


def test_elapsed_explained_counts_nothing_twice() -> None:
    assert (
        elapsed_breakdown_text(attribution(GRAPH, TOTALS, executes=EXECUTES, elapsed_ns=100)) == "events cover 33.0 %"
    )
    assert elapsed_breakdown_text(attribution(GRAPH, TOTALS, elapsed_ns=UNKNOWN)) == ""
    assert elapsed_breakdown_text(attribution(GRAPH, {"D1mr": {"site0": 4}})) == ""


def test_scopes_are_a_tree_whose_parents_include_their_children(page: Page) -> None:
    rows = {row.path: (row.attributed[CPU], row.inclusive[CPU]) for row in page.data.scopes}
    assert rows == {("h0",): (35, 236), ("h0", "attn"): (201, 201), (): (35, 35)}
    assert [row.path for row in page.data.scopes].index(("h0",)) + 1 == [row.path for row in page.data.scopes].index(
        ("h0", "attn")
    )
    assert sum(own for own, _ in rows.values()) == page.data.metrics[0].attributed


def test_op_rows_point_at_lines_of_the_page(page: Page) -> None:
    row = page.rows.ops[2]
    assert (row.line.text, row.line.anchor, row.python.text, row.python.anchor) == (
        "model.mlir:3",
        "F0L3",
        "net.py:1",
        "F1L1",
    )
    assert (row.costs[CPU].low, row.costs[CPU].high) == (0, 101)
    assert page.rows.ops[3].sites == ("site0", "site1")
    assert page.rows.ops[3].costs[CPU].low == 100


def test_places_outside_of_the_kept_text_have_no_link() -> None:
    ops = (op(0, 99), op(1, file="elsewhere.mlir"), op(2, 1, file="elsewhere.mlir"), op(3, 0))
    rows = page_of(graph(ops), None).rows.ops
    assert [row.line.anchor for row in rows] == ["", "", "", ""]
    assert [row.line.text for row in rows] == ["model.mlir:99", "elsewhere.mlir", "elsewhere.mlir:1", "model.mlir:0"]


def test_site_rows_split_their_cost_over_members(page: Page) -> None:
    row = page.data.sites[0]
    assert [(member.op, member.attributed[CPU]) for member in row.members] == [("op2", 51), ("op3", 50)]
    assert row.costs[CPU].total == 101
    assert page.data.sites[4].remarks == (NO_MEMBERS,)
    assert page.data.sites[2].path == ("op1",)


def test_a_page_of_the_map_alone_has_no_costs() -> None:
    bare = page_of(GRAPH, None)
    assert (bare.data.metric, bare.data.rule, bare.data.metrics, bare.data.unattributed) == (-1, None, (), ())
    assert line(bare, 0, 3).sites == ("site0",)
    assert (line(bare, 0, 3).remark, line(bare, 0, 9).remark) == ("dispatched", "load-time")
    assert bare.data.coverage.uncalled_sites == 0


def test_sites_that_did_not_run_cost_nothing_and_are_counted() -> None:
    quiet = page_of(GRAPH, attribution(GRAPH, {"cpu_ns": {"site0": 4}}))
    assert quiet.data.coverage.uncalled_sites == 3
    none = quiet.rows.ops[5].costs[CPU].attributed
    assert (quiet.rows.ops[5].calls, quiet.rows.ops[5].costs[CPU].attributed) == (0, 0)
    assert quiet.rows.ops[5].costs[CPU].per_invocation == Percentiles(none, none, none)


def test_an_attribution_without_events_makes_a_page() -> None:
    empty = page_of(GRAPH, attribution(GRAPH, {"cpu_ns": {}}))
    assert (empty.data.metrics[0].measured, empty.data.metrics[0].work) == (0, 0)
    assert '<td class="num">–</td>' in render_page(empty)


def test_metrics_that_are_not_whole_numbers_are_shown_in_their_own_unit() -> None:
    """The engine has them in millionths, so that they balance exactly."""
    whole = attribution(GRAPH, {"joules": {"site1": 3_000_000}})
    (metric,) = whole.metrics
    page = page_of(GRAPH, replace(whole, metrics=(structs.replace(metric, unit="millionths"),)))
    assert [amount_text(3_000_000, page.data.metrics[0], totals=totals) for totals in (False, True)] == ["1.50", "3"]


def test_the_users_hottest_file_comes_first_and_names_the_page() -> None:
    """b.py has the highest cost of its own; lib.py belongs to a library, whatever it costs."""
    sources = (MODEL, *(SourceFile(name, f"python/{name}", "python") for name in ("lib.py", "a.py", "b.py")))
    ops = (
        op(1, 1, frames=[("lib.py", 1), ("a.py", 2)]),
        op(2, 2, frames=[("lib.py", 1), ("b.py", 1), ("a.py", 3)]),
    )
    map_ = structs.replace(graph(ops, (site(0, 1), site(1, 2)), sources=sources), library=("lib.py",))
    page = build_page(map_, attribution(map_, {"cpu_ns": {"site0": 2, "site1": 5}}), lambda _: "x\ny\nz\n")
    assert page.data.order == (3, 0, 1, 2)
    assert page.data.title == "b.py: model"
    assert build_page(map_, None, lambda _: "x\n").data.order == (2, 0, 1, 3)


def test_models_without_python_and_of_onnx_name_themselves() -> None:
    assert page_of(graph((op(0, 1),)), None).data.title == "model.mlir"
    nodes = page_of(graph((op(0, 1, name="onnx.Gemm"), op(1, 2, name="util.global"))), None)
    assert (nodes.data.title, nodes.data.nodes) == ("model (ONNX)", 1)
    assert 'aria-controls="nodes"' in render_page(nodes)


def test_doubts_are_at_the_top_of_the_page() -> None:
    costs = attribution(GRAPH, TOTALS)
    assert page_of(GRAPH, costs).data.notices == ()
    ops = [
        structs.replace(
            result,
            metrics={
                name: structs.replace(cost, uncertain=result.op == "op3") for name, cost in result.metrics.items()
            },
        )
        for result in costs.ops
    ]
    found = (Diagnostic("noisy", "noisy machine: <b>"), Diagnostic("budget-spent", "stopped"), Diagnostic("odd", "odd"))
    page = page_of(GRAPH, replace(costs, ops=tuple(ops), diagnostics=found))
    noisy, stopped, uncertain = page.data.notices
    assert (noisy, stopped) == ("noisy machine: <b>", "stopped")
    assert uncertain.startswith("uncertain: 55.4 % of cpu_ns is in ops whose cost may be off by half")  # 150 of 271
    assert uncertain.endswith("record again on an idle machine")
    by_code = page_of(GRAPH, replace(costs, ops=tuple(ops), diagnostics=found, rule=Rule.CODE))
    assert by_code.data.notices[2].endswith("record with --sample to measure")
    text = render_page(page)
    assert text.index("noisy machine: &lt;b&gt;") < text.index("<main")
