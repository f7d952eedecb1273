"""Views of costs: rows, columns and units."""

from __future__ import annotations

import io
import json
import re
import shutil
from collections import Counter, defaultdict
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import attribution, graph, op, site
from tests.conftest import Built, Recorded
from tests.recording import delay_last_dispatch
from tests.support import check_cli, json_cli, long_where, run_cli
from tests.tables import amount, printed_table
from tests.terminals import GOLD, RUN, printed
from tracemap.core.errors import UsageInvalid
from tracemap.core.units import UNKNOWN, Scale, format_ns, sum_of
from tracemap.map.model import Frame
from tracemap.map.query import plain_scope
from tracemap.options.results import AttributeOptions
from tracemap.reports.terminal.attribution import print_attribution
from tracemap.reports.views.costs import Cell, LazyRow
from tracemap.reports.views.python import caller_of, shared_helpers
from tracemap.reports.views.selection import VIEWS
from tracemap.runs.runfile import read_run, write_run

THREE = graph(
    [op(1, 1, name="a.dot", scope=("h0",)), op(2, 2, name="a.add", scope=("h0", "x")), op(3, 3, name="b.add")],
    [site(0, 1, kernel="k0"), site(1, 2, kernel="k1"), site(2, 3, kernel="k1")],
)
COSTS = {"cpu_ns": {"site0": 100, "site1": 300, "site2": 600}, "page-faults": {"site0": 9, "site1": 1, "site2": 0}}


def shown(*, costs: dict[str, dict[str, int]] = COSTS, **options: Any) -> str:  # noqa: ANN401 - as many types as there are options
    out = io.StringIO()
    print_attribution(THREE, attribution(THREE, costs), out, AttributeOptions(**options))
    return out.getvalue()


# ---- rows and columns


def test_of_rows_that_are_not_shown_only_what_they_are_sorted_by_is_made() -> None:
    made = []

    def about(name: str) -> dict[str, Cell]:
        made.append(name)
        return {"op": name}

    rows = [LazyRow({"cpu_ns": cost}, partial(about, name)) for name, cost in (("a", 1), ("b", 3), ("c", 2))]
    hottest = next(row for row in rows if row["cpu_ns"] == 3)
    assert made == []
    assert (hottest.get("op"), hottest["op"], hottest.get("none")) == ("b", "b", None)
    assert dict(hottest) == {"op": "b", "cpu_ns": 3}
    assert len(hottest) == 2
    assert made == ["b"]


def test_rows_are_sorted_by_what_is_asked_for() -> None:
    def ops(**options: Any) -> list[str]:  # noqa: ANN401 - as many types as there are options
        return [row["op"] for row in printed_table(shown(**options), "Ops by")]

    assert ops() == ["op3", "op2", "op1"]
    assert ops(sort="page-faults") == ["op1", "op2", "op3"]
    assert ops(metrics="page-faults") == ["op1", "op2", "op3"]
    assert ops(sort="name") == ["op2", "op1", "op3"]
    assert ops(top=2) == ["op3", "op2"]
    assert ops(filters=["*add"]) == ["op3", "op2"]
    assert ops(filters=["scope=h0*"]) == ["op2", "op1"]
    assert ops(filters=["scope=h0*", "a.dot"]) == ["op1"]


def test_what_is_not_shown_is_counted() -> None:
    text = shown(top=1, filters=["name=*add"])
    assert "… 1 more op, 30.0 %\n… 1 op that does not match, 10.0 %\n" in text
    assert "… 3 ops that do not match, 100.0 %" in shown(filters=["nothing"])
    assert "…" not in shown(top=0)


def test_columns_are_those_that_are_asked_for() -> None:
    (first, *_) = printed_table(shown(columns="name,page-faults,op"), "Ops by cpu_ns")
    assert first == {"name": "b.add", "page-faults": "0", "op": "op3"}
    (first, *_) = printed_table(shown(columns="kernel,sites,calls", by="kernel"), "Kernels by cpu_ns")
    assert first == {"kernel": "k1", "sites": "2", "calls": "2"}


def test_what_stands_above_a_column_names_it_too() -> None:
    """Each heading of the usual table, without its unit, chooses the column that it stands above."""
    by_name = {"cpu": "cpu_ns", "of cpu": "share", "median cpu": "median", "inclusive cpu": "inclusive"}
    for heading, name in by_name.items():
        assert shown(columns=["op", heading], sort=heading) == shown(columns=["op", name], sort=name)
    assert shown(columns=["site", "p50 cpu"], by="site") == shown(columns=["site", "median"], by="site")


def test_a_column_of_a_filter_is_one_that_there_is() -> None:
    """With a wildcard before the `=` it is a text that matches, as names may have one."""
    with pytest.raises(UsageInvalid, match="the table of ops has no column 'foo'; it has: op, line"):
        shown(filters=["foo=x"])
    assert "… 3 ops that do not match" in shown(filters=["*foo=x*"])


def test_only_tables_whose_columns_are_chosen_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    text = printed(
        lambda out: print_attribution(THREE, attribution(THREE, COSTS), out, AttributeOptions(balance=True)),
        36,
        monkeypatch,
    )
    ops, _, balance = text.partition("Balance")
    assert "; select with --columns)" in " ".join(ops.split())
    assert "(no room for: meaning)" in balance


@pytest.mark.parametrize("format_", ["json", "csv"])
@pytest.mark.parametrize(
    "option",
    [("--by", "line"), ("--columns", "op"), ("--sort", "op"), ("--top", "3"), ("--filter", "x")],
)
def test_what_the_format_does_not_choose_is_refused(
    format_: str, option: tuple[str, str], built: Built, recorded: Recorded
) -> None:
    run, bundle = recorded("jax_mlp"), built("jax_mlp")
    done = run_cli("attribute", run, "--map", bundle, "--format", format_, *option)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{option[0]} applies to the text table only; --format {format_} always has all ops" in done.stderr
    assert "[usage-invalid]" in done.stderr


@pytest.mark.parametrize("metric", ["cpu_ns", "cpu_ns,bytes_read", "foo"])
def test_the_format_says_which_metrics_it_adds(metric: str, built: Built, recorded: Recorded) -> None:
    run, bundle = recorded("jax_mlp"), built("jax_mlp")
    done = run_cli("attribute", run, "--map", bundle, "--format", "json", "--metric", metric)
    assert (done.returncode, done.stdout) == (2, "")
    assert "json always has all metrics of the run; --metric can add bytes_read, " in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metrics": "Ir"}, "the run has no metric 'Ir'; it has: cpu_ns, page-faults"),
        ({"columns": "op,flops"}, "the table of ops has no column 'flops'; it has: op, line"),
        (
            {"columns": "op,flops"},
            "cpu_ns (cpu), share (of cpu), page-faults, uncertain, likely_low (from cpu)",
        ),
        ({"by": "scope", "sort": "kernel"}, "the table of scopes has no column 'kernel'"),
        (
            {"filters": ["cpu_ns=3*"]},
            "cannot filter by cpu_ns, a column of numbers; filter by a column of texts: op, line",
        ),
    ],
)
def test_what_there_is_not_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageInvalid) as caught:
        shown(**options)
    assert message in str(caught.value)


def test_a_column_that_there_is_not_ends_the_command(built: Built, recorded: Recorded, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = run_cli("attribute", recorded("jax_mlp"), "--map", built("jax_mlp"), "--sort", "flops", "--html", page)
    assert done.returncode == 2
    assert not page.exists()
    assert done.stdout == ""
    assert "has no column 'flops'" in done.stderr


# ---- units


def test_times_stand_in_one_unit_with_as_many_digits_as_the_smallest_needs() -> None:
    costs = {"cpu_ns": {"site0": 2_000_000, "site1": 2_468_000, "site2": 6_000}}
    rows = printed_table(shown(costs=costs), "Ops by cpu_ns")
    assert [row["cpu ms"] for row in rows] == ["1.234", "1.000", "0.003"]


@given(st.lists(st.integers(-(10**15), 10**15), max_size=9), st.sampled_from(["ns", "bytes", "count", "%", "page"]))
def test_columns_lose_less_than_half_of_their_last_digit(values: list[int], unit: str) -> None:
    scale = Scale.of(values, unit)
    for value in values:
        text = scale.text(value)
        assert (text == "0") == (value == 0)
        if text.startswith("<"):
            assert 0 < value < Fraction(1, 10**scale.digits) * scale.size
        elif not text.startswith(">"):
            found, slack = amount(scale.unit, text)
            assert abs(found - value) <= slack + abs(value) * Fraction(1, 10**12)


# ---- invocations


@pytest.mark.long
def test_runs_that_are_added_up_have_the_invocations_of_both(tmp_path: Path, fixed: Built) -> None:
    """Each run has 3 timed calls and a simulated one: the cost of a call stays as it was."""
    copy = tmp_path / "copy.csv"
    for suffix in ("", ".json"):
        shutil.copy(f"{RUN}{suffix}", f"{copy}{suffix}")
    one, both = (json_cli("attribute", *runs, "--map", fixed("jax_mlp_train")) for runs in ([RUN], [RUN, copy]))
    for first, second in zip(one["metrics"], both["metrics"], strict=True):
        assert second["invocations"] == 2 * first["invocations"] == (6 if first["unit"] == "ns" else 2)
        assert second["measured"] == 2 * first["measured"]
    text = check_cli("attribute", RUN, copy, "--map", fixed("jax_mlp_train"))
    assert "per invocation: cpu_ns mean of 6; Ir, D1mr, DLmr mean of 2" in text


@pytest.mark.long
def test_runs_of_different_functions_have_no_common_invocation(tmp_path: Path, fixed: Built) -> None:
    copy = tmp_path / "copy.csv"
    shutil.copy(RUN, copy)
    header = json.loads(Path(f"{RUN}.json").read_text())
    Path(f"{copy}.json").write_text(json.dumps({**header, "function": "another"}))
    found = json_cli("attribute", RUN, copy, "--map", fixed("jax_mlp_train"))
    assert {metric["invocations"] for metric in found["metrics"]} == {None}


@pytest.mark.long
def test_a_run_that_tells_no_invocations_is_shown_as_sums(tmp_path: Path, fixed: Built) -> None:
    """Without its header nothing says how often the function was called."""
    bare = tmp_path / "bare.csv"
    shutil.copy(RUN, bare)
    text = check_cli(
        "attribute", bare, "--map", fixed("jax_mlp_train"), "--by", "op", "--top", "0", "--metric", "Ir,cpu_ns"
    )
    rows = printed_table(text, "Ops by Ir, sums of the whole run")
    found = json_cli("attribute", bare, "--map", fixed("jax_mlp_train"))
    assert {metric["invocations"] for metric in found["metrics"]} == {None}
    assert {row["op"]: int(row["Ir in all"].replace(",", "")) for row in rows} == {
        each["op"]: each["metrics"]["Ir"]["attributed"] for each in found["ops"]
    }


@pytest.mark.long
def test_counts_of_another_simulator_are_of_unknown_invocations(tmp_path: Path, fixed: Built) -> None:
    """Their header has no word of how often it called the function, so sums stand beside costs of one call, named."""
    run = tmp_path / "run.csv"
    shutil.copy(RUN, run)
    header = json.loads(Path(f"{RUN}.json").read_text())
    Path(f"{run}.json").write_text(json.dumps({**header, "diagnostics": []}))
    text = check_cli("attribute", run, "--map", fixed("jax_mlp_train"), "--by", "op")
    (first, *_) = printed_table(text, "Ops by cpu_ns, per invocation: cpu_ns mean of 3; Ir, D1mr, DLmr in all")
    assert "Ir in all" in first


@pytest.mark.long
def test_what_is_of_one_invocation_or_call_is_not_called_a_sum(built: Built, recorded: Recorded) -> None:
    """Of two functions costs are sums, as nothing tells by which calls to divide; their calls have no common median."""
    runs = [recorded(f"hand_multifunc.{function}") for function in ("encode", "decode")]
    words: tuple[str | Path, ...] = (*runs, "--map", built("hand_multifunc"))
    text = check_cli("attribute", *words)
    head, *_ = printed_table(text, "Ops by cpu_ns, sums of the whole run, not per invocation")
    assert [name for name in head if name.startswith("cpu in all ")]
    assert not [name for name in head if name.startswith(("median ", "p10 ", "p90 "))]
    (elapsed,) = (line for line in text.splitlines() if line.startswith("elapsed "))
    whole = sum_of([read_run(run).header.elapsed_ns for run in runs])
    assert elapsed.startswith(f"elapsed {format_ns(whole)} in all")
    assert "~" not in text
    alone = check_cli("attribute", runs[0], "--map", built("hand_multifunc"))
    assert "median cpu" in alone
    assert " per invocation (mean; median " in alone
    head, *_ = printed_table(check_cli("attribute", *words, "--by", "site"), "Dispatch sites by ")
    of_one = [name for name in head if name.startswith(("p50 ", "p10 ", "p90 "))]
    assert of_one
    assert all(name.endswith("/call") and " in all" not in name for name in of_one)


@pytest.mark.long
def test_sums_of_other_invocations_than_those_beside_them_say_so(fixed: Built) -> None:
    words = (RUN, "--map", fixed("jax_mlp_train"))
    text = check_cli("attribute", *words, "--by", "op", "--totals", "--balance")
    for title in ("Ops by cpu_ns", "Balance"):
        (first, *_) = printed_table(text, f"{title}, sums: cpu_ns of 3 invocations; Ir, D1mr, DLmr of 1")
        assert {"Ir of 1", "D1mr of 1"} <= {*first}
        assert {"cpu µs of 3", "cpu ms of 3"} & {*first}
    alike = check_cli("attribute", *words, "--by", "op", "--totals", "--metric", "Ir,D1mr")
    assert {"Ir", "D1mr"} <= {*printed_table(alike, "Ops by Ir, sums of 1 invocation")[0]}
    said = "sums: cpu_ns, duration_ns of 3 invocations; Ir, I1mr, ILmr, Dr, D1mr, DLmr, Dw, D1mw, DLmw of 1"
    exported = check_cli("export", *words, "--to", "callgrind", "-o", "-").splitlines()
    assert f"desc: Note: {said}" in exported
    assert "event: Ir : Ir (count, of 1 invocation)" in exported
    benchmarks = json.loads(check_cli("export", *words, "--to", "google-benchmark", "-o", "-"))
    assert benchmarks["context"]["counters"] == said
    profiles = json.loads(check_cli("export", *words, "--to", "speedscope", "-o", "-"))["profiles"]
    assert [each["name"] for each in profiles][:3] == [
        "cpu_ns (of 3 invocations)", "duration_ns (of 3 invocations)", "Ir (of 1 invocation)"
    ]  # fmt: skip
    rows = check_cli("attribute", *words, "--format", "csv").splitlines()
    names = rows[0].split(",")
    of = {row.split(",")[names.index("metric")]: row.split(",")[names.index("invocations")] for row in rows[1:]}
    assert (of["cpu_ns"], of["Ir"]) == ("3", "1")


# ---- Python lines and scopes


def frame(line: int, function: str | None, file: str = "model.py") -> Frame:
    return Frame(file, line, UNKNOWN, UNKNOWN if function is None else function)


def test_a_shared_helper_is_called_from_several_places() -> None:
    """`linear` is called by two lines of `attention`; `gelu` by one, through `linear` or not."""
    stacks = [
        [frame(1, "linear"), frame(10, "attention"), frame(20, "block")],
        [frame(1, "linear"), frame(11, "attention"), frame(20, "block")],
        [frame(5, "gelu"), frame(12, "attention"), frame(20, "block")],
        [frame(12, "attention"), frame(20, "block")],
    ]
    helpers = shared_helpers(stacks)
    callers = [caller_of(stack, helpers) for stack in stacks]
    assert callers == [frame(10, "attention"), frame(11, "attention"), frame(5, "gelu"), frame(12, "attention")]


def test_recursion_makes_no_helper_and_ops_in_helpers_alone_have_the_outermost_line() -> None:
    recursive = [[frame(2, "walk"), frame(2, "walk"), frame(3, "walk"), frame(9, "main")]]
    assert shared_helpers(recursive) == frozenset()
    stacks = [[frame(1, "linear"), frame(7, "main")], [frame(1, "linear"), frame(8, "main")], [frame(1, "linear")]]
    helpers = shared_helpers(stacks)
    assert caller_of(stacks[2], helpers) == frame(1, "linear")
    assert caller_of([], helpers) is None


def test_where_no_function_is_told_lines_have_to_do() -> None:
    """As torch's exporter writes stacks."""
    stacks = [[frame(line, None), frame(around, None)] for line, around in ((67, 84), (67, 85), (68, 84))]
    helpers = shared_helpers(stacks)
    assert [caller_of(stack, helpers) for stack in stacks] == [frame(84, None), frame(85, None), frame(68, None)]


@pytest.mark.long
def test_callers_of_a_real_model_are_the_lines_that_call_its_helpers(built: Built, recorded: Recorded) -> None:
    """`linear` and `layer_norm` of `jax_models.py` are called from all over; each op's own frames say from where."""
    run, bundle = recorded("jax_gpt2_4l"), built("jax_gpt2_4l")
    costs = {each["op"]: each["metrics"]["cpu_ns"]["attributed"] for each in json_cli("attribute", run)["ops"]}
    expected: dict[str, int] = defaultdict(int)
    nested = set()
    for each in json_cli("show", bundle)["ops"]:
        own = [one for one in each["frames"] if one["function"] not in {"linear", "layer_norm"}]
        line = f"{Path(own[0]['file']).name}:{own[0]['line']}" if own else ""
        expected[line] += costs.get(each["id"], 0)
        if each["function"] != "main" or each["name"] == "func.call":  # its calls lead elsewhere too
            nested.add(line)
    options = ("--by", "caller", "--top", "0", "--totals", "--metric", "cpu_ns")
    rows = {row["caller"]: row for row in printed_table(check_cli("attribute", run, *options), "Callers by cpu_ns")}
    (heading,) = (heading for heading in rows["jax_models.py:111"] if heading.startswith("cpu"))
    exact = {"jax_models.py:100", "jax_models.py:102", "jax_models.py:106", "jax_models.py:107", "jax_models.py:130"}
    assert exact <= rows.keys() - nested
    for line in rows.keys() - nested - {"(no frame)"}:
        value, slack = amount(heading, rows[line][heading])
        assert abs(value - expected[line]) <= slack, line
    assert {row["function"] for row in rows.values()}.isdisjoint({"linear", "layer_norm"})


@pytest.mark.parametrize(
    ("scope", "plain"),
    [
        ("grad/jvp(layer0)", "grad/layer0"),
        ("grad/transpose(jvp(layer0))", "grad/layer0"),
        ("grad/transpose(grad)/jvp(layer0)", "grad/layer0"),
        ("grad/jvp()", "grad"),
        ("h0/attn/hqd,hkd->hqk", "h0/attn/hqd,hkd->hqk"),
        ("h0/h0", "h0/h0"),
        ("vmap(h0)", "vmap(h0)"),
    ],
)
def test_scopes_of_derivatives_belong_to_the_plain_one(scope: str, plain: str) -> None:
    assert "/".join(plain_scope(tuple(scope.split("/")))) == plain


@pytest.mark.long
def test_forward_and_backward_are_summed_under_the_plain_scope(fixed: Built) -> None:
    """Each op once in each row that its scope leads to: the sums are made here from the JSON alone."""
    bundle = fixed("jax_mlp_train")
    found = json_cli("attribute", RUN, "--map", bundle)
    scopes = {each["id"]: "/".join(each["scope"]) for each in json_cli("show", bundle)["ops"]}
    words = ("--top", "0", "--metric", "Ir", "--totals", "--sort", "Ir")
    text = check_cli("attribute", RUN, "--map", bundle, "--by", "scope", *words)
    rows = {row["scope"]: row for row in printed_table(text, "Scopes by Ir")}
    spent = {each["op"]: each["metrics"]["Ir"]["attributed"] for each in found["ops"]}

    def number(row: dict[str, str], heading: str) -> int:
        return int(row[heading].replace(",", ""))

    for layer in ("layer0", "layer1"):
        own = {op: cost for op, cost in spent.items() if layer in scopes[op]}
        backward = sum(cost for op, cost in own.items() if "transpose(" in scopes[op])
        row = rows[f"grad/{layer}"]
        assert number(row, "backward Ir") == backward
        # Ops of called functions have the scope of the call.
        assert number(row, "forward Ir") == number(row, "Ir") - backward >= sum(own.values()) - backward > 0
    tree = check_cli("attribute", RUN, "--map", bundle, "--by", "scope", "--top", "0")
    assert re.search(r"^grad +.*(\n  \S+ .*)*\n  layer0 ", tree, re.MULTILINE)


@pytest.mark.parametrize("by", long_where(["source", "line", "op", "scope"], lambda number, _: number > 0))
def test_passes_add_up(by: str, fixed: Built) -> None:
    """Forward, backward and the rest: each row of a filtered table, and their sums."""
    bundle = fixed("jax_mlp_train")
    (total,) = [metric for metric in json_cli("attribute", RUN, "--map", bundle)["metrics"] if metric["name"] == "Ir"]
    words = ("--by", by, "--top", "0", "--metric", "Ir", "--totals", "--sort", "Ir")
    sums: Counter[str] = Counter()
    for step in ("forward", "backward", "optimizer", ""):
        text = check_cli("attribute", RUN, "--map", bundle, *words, "--filter", f"pass={step}")
        for row in printed_table(text, f"{by.title() if by != 'source' else 'Source line'}s by Ir"):
            sums[step] += int(row["own Ir" if by == "scope" else "Ir"].replace(",", ""))
    assert sums.total() == total["attributed"]
    assert min(sums.values()) > 0
    passes = printed_table(check_cli("attribute", RUN, "--map", bundle, *words[2:], "--by", "pass"), "Passes by Ir")
    assert {row["pass"].replace("(no pass)", ""): int(row["Ir"].replace(",", "")) for row in passes} == sums


def test_golden_files_are_of_all_views() -> None:
    """Commands have golden files of their own beside them."""
    assert len(VIEWS) == 12
    assert {f"attribute-{view}" for view in VIEWS} <= {path.stem for path in GOLD.glob("*.txt")}


# ---- columns against the rows of runs


def test_every_column_of_sites_is_what_the_rows_of_the_run_say(built: Built, recorded: Recorded) -> None:
    """Each kernel of this model has one site; three invocations are too few for a fence."""
    run = recorded("hand_mlp")
    with duckdb.connect() as connection:
        found = connection.execute(
            "SELECT kernel, count(*), sum(cpu_ns), sum(duration_ns), quantile_disc(cpu_ns, [0.5, 0.1, 0.9]), "
            f"100 * sum(cpu_ns) / (SELECT sum(cpu_ns) FROM '{run}' WHERE NOT warmup), max(duration_ns), "
            "avg(workgroups_x * workgroups_y * workgroups_z) "
            f"FROM '{run}' WHERE kind = 'dispatch' AND NOT warmup GROUP BY kernel"
        ).fetchall()
    text = check_cli("attribute", run, "--map", built("hand_mlp"), "--by", "site", "--top", "0")
    rows = {row["kernel"]: row for row in printed_table(text, "Dispatch sites by cpu_ns, per invocation, mean of 3")}
    assert len(rows) == len(found) == 4
    workers = read_run(run).header.workers
    assert isinstance(workers, int)
    for kernel, calls, cpu, wall, percentiles, share, slowest, tiles in found:
        figures = dict(zip(("p50 cpu", "p10 cpu", "p90 cpu"), percentiles, strict=True))
        figures |= {"calls": Fraction(calls, 3), "cpu": Fraction(cpu, 3), "wall": Fraction(wall, 3), "of cpu": share}
        figures |= {"slowest wall": slowest, "tiles/call": tiles}
        figures |= {"imbalance": Fraction(workers * wall, cpu)} if workers > 1 else {}
        assert len(rows[kernel]) == len(figures) + len(("site", "kernel", "root", "line"))
        for name, value in figures.items():
            (heading,) = (each for each in rows[kernel] if re.fullmatch(f"{name}( [nµm]?s(/call)?| %)?", each))
            shown_value, slack = amount(heading, rows[kernel][heading])
            assert abs(shown_value - Fraction(value)) <= slack + Fraction(1, 10**9), (kernel, heading)


def test_columns_on_request_and_the_interval_of_samples_are_what_the_json_says(
    built: Built, recorded: Recorded, tmp_path: Path
) -> None:
    """A run with samples at one line of a kernel: its ops have an interval, as those of estimated kernels have."""
    bundle, run = built("hand_mlp"), tmp_path / "sampled.parquet"
    kernel = next(each for each in json_cli("show", bundle)["kernels"] if "matmul" in each["name"])
    line = next(step["line"] for step in kernel["steps"] if step["op_name"].startswith("linalg.matmul"))
    with duckdb.connect() as connection:
        connection.execute(f"CREATE TABLE run AS FROM '{recorded('hand_mlp')}'")
        connection.execute("ALTER TABLE run ADD COLUMN step BIGINT")
        connection.execute("ALTER TABLE run ADD COLUMN samples BIGINT")
        connection.execute(
            "INSERT INTO run (kind, kernel, warmup, step, samples) SELECT 'step', ?, false, ?, 1 FROM range(150)",
            [kernel["name"], line],
        )
        write_run(read_run(recorded("hand_mlp")).header, connection.table("run"), run, force=False)
    found = {op["op"]: op["metrics"]["cpu_ns"] for op in json_cli("attribute", run, "--map", bundle)["ops"]}
    keys = ("likely_low", "likely_high", "max", "median_low", "median_high", "samples")
    text = check_cli("attribute", run, "--map", bundle, "--columns", ",".join(("op", *keys)))
    rows = {row["op"]: row for row in printed_table(text, "Ops by cpu_ns, per invocation")}
    assert sum(cost["likely_low"] is not None for cost in found.values()) == 6
    for op_id, row in rows.items():
        _, *heads = row
        cost = found[op_id]
        bounds = [None if cost[key] is None else Fraction(cost[key], 3) for key in ("likely_low", "likely_high")]
        for heading, value in zip(heads, [*bounds, Fraction(cost["per_invocation"]["max"]), None, None], strict=False):
            # Of three invocations the interval of a median is not known; ops without samples have none either.
            assert (row[heading] == "–") == (value is None), heading
            if value is not None:
                shown_value, slack = amount(heading, row[heading])
                assert abs(shown_value - value) <= slack


@pytest.mark.long
def test_a_slow_call_leaves_the_other_columns_their_unit(built: Built, tmp_path: Path) -> None:
    run = tmp_path / "run.csv"
    check_cli("record", built("hand_mlp"), "--iterations", "40", "-o", run)
    delay_last_dispatch(run, "duration_ns", 3_000_000_000)
    text = check_cli("attribute", run, "--map", built("hand_mlp"), "--by", "site")
    head = next(line for line in text.splitlines() if line.startswith("site "))
    assert " slowest wall s/call " in head
    assert re.search(r" cpu µs +of cpu % +wall µs ", head)
    for row in printed_table(text, "Dispatch sites by "):
        assert float(row["cpu µs"].replace(",", "")) >= 0.1


@pytest.mark.long
def test_source_lines_of_onnx_are_nodes(built: Built, recorded: Recorded) -> None:
    """`show` takes the same names."""
    bundle = built("onnx_mlp_named")
    text = check_cli("attribute", recorded("onnx_mlp_named"), "--map", bundle, "--by", "source", "--format", "text")
    assert re.search(r"^node_linear +Gemm ", text, re.MULTILINE)
    assert re.search(r"^node_softmax +Softmax ", text, re.MULTILINE)
    assert check_cli("show", bundle, "node_softmax").startswith("node_softmax: ONNX node node_softmax: op")
