"""Attribution: the join of events to dispatches, the rules, the balance. Tests write the runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from tests.builders import graph, op, site
from tests.conftest import Built, Recorded
from tests.support import check_cli, json_cli
from tracemap.attribution.attribute import Request, attribute
from tracemap.attribution.join.targets import Join
from tracemap.attribution.model import UNKNOWN_PER_INVOCATION, Attribution, BalanceError, PerCall, UnattributedReason
from tracemap.core.errors import RunInvalid, RunMismatch, UsageInvalid
from tracemap.core.units import UNKNOWN, Integer, Text
from tracemap.map.model import Command, CommandBuffer, TraceGraph
from tracemap.options.results import Rule
from tracemap.runs.model import (
    UNKNOWN_HEADER,
    UNKNOWN_INVOCATION,
    Invocation,
    RecordedBuffer,
    RecordedCommand,
    RunHeader,
)
from tracemap.runs.runfile import read_run, write_run

SHA = "ab" * 32


def dispatch(kernel: str, place: Text, workgroups: Sequence[Integer] = (1, 1, 1)) -> Command:
    return Command("dispatch", kernel, place, tuple(workgroups))


BARRIER = Command("barrier", UNKNOWN, UNKNOWN)


def buffer(
    ordinal: int, commands: Sequence[Command], *, function: Text = "main", memoized: bool = True
) -> CommandBuffer:
    return CommandBuffer(ordinal, function, memoized, initializer=False, commands=tuple(commands))


def example(*, dynamic: bool = False) -> TraceGraph:
    """Two sites of k0 (op1 and op2 fused; op3 alone), one of k1 without members, one of k2 at load."""
    costs: tuple[Integer, Integer] = (UNKNOWN, UNKNOWN) if dynamic else (300, 100)
    fused = site(0, 1, 2, kernel="k0")
    members = tuple(
        structs.replace(member, operations=cost, bytes_read=0, bytes_written=0)
        for member, cost in zip(fused.members, costs, strict=True)
    )
    fused = structs.replace(fused, members=members)
    sites = [fused, site(1, 3, kernel="k0"), site(2, kernel="k1"), site(3, 4, kernel="k2", initializer=True)]
    made = graph([op(1, 1), op(2, 2), op(3, 3), op(4, 4)], sites)
    commands = [dispatch("k0", "site0"), BARRIER, dispatch("k0", "site1"), dispatch("k1", "site2")]
    return structs.replace(made, command_buffers=(buffer(0, commands),))


NO_WORKGROUPS = (0, 0, 0)
PROGRAM = (
    RecordedCommand("dispatch", "k0", (1, 1, 1)),
    RecordedCommand("barrier", UNKNOWN, NO_WORKGROUPS),
    RecordedCommand("dispatch", "k0", (1, 1, 1)),
    RecordedCommand("dispatch", "k1", (1, 1, 1)),
)


def header(**changes: object) -> RunHeader:
    base = structs.replace(
        UNKNOWN_HEADER, module_sha256=SHA, function="main", programs=(PROGRAM,), buffers=(RecordedBuffer(7, False, 0),)
    )
    return structs.replace(base, **changes)


def run_of(path: Path, rows: str, head: RunHeader | None = None) -> Path:
    """Write a run; `rows` is the SQL of its table."""
    with duckdb.connect() as connection:
        write_run(head or header(), connection.sql(rows), path, force=True)
    return path


def csv_of(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def attributed(*paths: Path, rule: Rule | None = Rule.MODEL, map_: TraceGraph | None = None) -> Attribution:
    return attribute(Request(map_ or example(), "cd" * 32, [read_run(path) for path in paths], rule))


def shares(result: Attribution, metric: str = "cpu_ns") -> dict[str, int]:
    return {each.op: each.metrics[metric].attributed for each in result.ops}


def unattributed(result: Attribution, metric: str = "cpu_ns") -> dict[UnattributedReason, int]:
    return {row.reason: row.metrics[metric] for row in result.unattributed}


def slugs(result: Attribution) -> set[str]:
    return {diagnostic.slug for diagnostic in result.diagnostics}


INDEXED = """
SELECT 'dispatch' AS kind, kernel, 7::BIGINT AS command_buffer_id, i::BIGINT AS command_index,
       1::BIGINT AS submission_id, c::BIGINT AS cpu_ns
FROM (VALUES ('k0', 0, 400), ('k0', 2, 50), ('k1', 3, 9), ('k0', 0, 402)) AS t(kernel, i, c)
"""


def test_events_with_an_index_reach_their_very_site(tmp_path: Path) -> None:
    result = attributed(run_of(tmp_path / "r.parquet", INDEXED))
    assert [(each.site, each.calls, each.metrics["cpu_ns"].total) for each in result.sites] == [
        ("site0", 2, 802),
        ("site1", 1, 50),
        ("site2", 1, 9),
    ]
    assert shares(result) == {"op1": 602, "op2": 200, "op3": 50}
    assert unattributed(result) == {UnattributedReason.COMPILER_MADE: 9}
    first = result.ops[0].metrics["cpu_ns"]
    assert (first.inclusive, first.low, first.high) == (802, 0, 802)
    assert result.sites[0].metrics["cpu_ns"].per_call == PerCall(median=400, p10=400, p90=402)
    assert result.ops[2].metrics["cpu_ns"].low == 50
    assert slugs(result) == {"load-time-not-measured", "invocations-unknown"}


def test_rules(tmp_path: Path) -> None:
    run = run_of(tmp_path / "r.parquet", INDEXED)
    assert shares(attributed(run, rule=Rule.ROOT)) == {"op1": 802, "op2": 0, "op3": 50}
    assert shares(attributed(run, rule=Rule.EQUAL)) == {"op1": 401, "op2": 401, "op3": 50}


def test_unknown_costs_are_split_evenly_and_flagged(tmp_path: Path) -> None:
    result = attributed(run_of(tmp_path / "r.parquet", INDEXED), map_=example(dynamic=True))
    assert shares(result) == {"op1": 401, "op2": 401, "op3": 50}
    assert "equal-members" in slugs(result)
    assert [each.site for each in result.sites if each.equal_members] == ["site0"]


def test_events_that_name_only_a_kernel_are_split_over_its_sites(tmp_path: Path) -> None:
    table = csv_of(tmp_path / "r.csv", "kernel,duration_us\nk0,1.5\nk0,0.5\nk0,0.001\nnobody,2\nk2,1\n")
    result = attributed(table)
    assert [(each.site, each.calls, each.metrics["duration_ns"].total) for each in result.sites] == [
        ("site0", 2, 1001),
        ("site1", 1, 1000),
        ("site2", 0, 0),
        ("site3", 1, 1000),
    ]
    assert unattributed(result, "duration_ns") == {UnattributedReason.UNMATCHED: 2000}
    assert {"split-evenly", "run-unverified"} <= slugs(result)
    assert [each.site for each in result.sites if each.split_evenly] == ["site0", "site1"]


def test_a_named_site_is_believed(tmp_path: Path) -> None:
    table = csv_of(tmp_path / "r.csv", "kernel,site,cpu_ns\nk0,site1,7\nk0,site0,9\nk0,site99,4\n")
    result = attributed(table)
    assert {each.site: each.metrics["cpu_ns"].total for each in result.sites} == {
        "site0": 11,
        "site1": 9,
        "site2": 0,
    }


def test_submissions_without_indices_are_read_by_their_sequence(tmp_path: Path) -> None:
    rows = """SELECT 'dispatch' AS kind, kernel, NULL::BIGINT AS command_buffer_id, NULL::BIGINT AS command_index,
                     s::BIGINT AS submission_id, t::BIGINT AS start_ns, c::BIGINT AS cpu_ns
              FROM (VALUES ('k0', 1, 10, 5), ('k0', 1, 20, 7), ('k1', 1, 30, 1), ('k0', 2, 40, 100))
              AS r(kernel, s, t, c)"""
    result = attributed(run_of(tmp_path / "r.parquet", rows, header(programs=(), buffers=())))
    by_site = {each.site: each for each in result.sites}
    # Submission 1 is the buffer's sequence; submission 2 is no known one, so it could be either site of k0.
    assert by_site["site0"].metrics["cpu_ns"].total == 5 + 50
    assert by_site["site1"].metrics["cpu_ns"].total == 7 + 50


def test_submissions_count_where_none_of_their_dispatches_ran(tmp_path: Path) -> None:
    rows = """SELECT kind, kernel, 7::BIGINT AS command_buffer_id, i::BIGINT AS command_index,
                     1::BIGINT AS submission_id, t::BIGINT AS start_ns, d::BIGINT AS duration_ns
              FROM (VALUES ('execute', NULL, NULL, 0, 100), ('dispatch', 'k0', 0, 10, 30),
                           ('dispatch', 'k0', 2, 20, 30), ('dispatch', 'k1', 3, 60, 10),
                           ('alloca', NULL, NULL, 200, 3), ('fill', NULL, NULL, 210, 4))
              AS r(kind, kernel, i, t, d)"""
    result = attributed(run_of(tmp_path / "r.parquet", rows))
    assert unattributed(result, "duration_ns") == {
        UnattributedReason.COMPILER_MADE: 10,
        UnattributedReason.TRANSFER: 4,
        UnattributedReason.MEMORY: 3,
        UnattributedReason.QUEUE: 50,
    }
    # 70 ns of dispatches, 50 of the submission beside them, 7 of what is no dispatch.
    assert result.metrics[0].measured == 127


def test_warm_up_is_left_out_and_metrics_of_any_name_are_attributed(tmp_path: Path) -> None:
    table = csv_of(tmp_path / "r.csv", 'kernel,warmup,"cache ""misses""",ratio\nk2,true,5,0.5\nk2,false,7,0.25\n')
    result = attributed(table)
    assert [(metric.name, metric.unit, metric.measured) for metric in result.metrics] == [
        ('cache "misses"', "count", 7),
        ("ratio", "millionths", 250_000),
    ]


def test_metrics_are_told_by_what_they_are_not_by_names_of_ours(tmp_path: Path) -> None:
    """Names of tables and columns that the join has, too."""
    table = csv_of(tmp_path / "r.csv", "kernel,target,value_0,kernels,buffer_group\nk2,3,5,7,11\nk2,30,50,70,110\n")
    result = attributed(table)
    assert {metric.name: metric.measured for metric in result.metrics} == {
        "target": 33,
        "value_0": 55,
        "kernels": 77,
        "buffer_group": 121,
    }


def test_whole_and_fractional_runs_of_a_metric_add_up_exactly(tmp_path: Path) -> None:
    whole = csv_of(tmp_path / "whole.csv", "kernel,ratio\nk2,1\nk2,2\n")
    parts = csv_of(tmp_path / "parts.csv", "kernel,ratio\nk2,0.25\nk2,0.5\n")
    for runs in ((whole, parts), (parts, whole)):
        (metric,) = attributed(*runs).metrics
        assert (metric.unit, metric.measured, metric.attributed) == ("millionths", 3_750_000, 3_750_000)


@pytest.mark.parametrize("several", [False, True])
def test_a_run_that_is_damaged_where_its_values_lie_is_refused(tmp_path: Path, several: bool) -> None:
    """Opening a run reads the end of its file only, so that the damage shows when events are joined."""
    path = run_of(tmp_path / "r.parquet", INDEXED)
    runs = [read_run(path)] + [read_run(run_of(tmp_path / "other.parquet", INDEXED))] * several
    whole = path.read_bytes()
    path.write_bytes(whole[:4] + b"\xff" * 40 + whole[44:])
    with pytest.raises(RunInvalid, match=r"r\.parquet: .*cannot be read"):
        attribute(Request(example(), "cd" * 32, runs, Rule.MODEL))


def test_several_runs_of_one_kind_add_up_and_others_do_not(tmp_path: Path) -> None:
    timed = Invocation(5, 4, 6, "precision")
    head = header(workers=2, device="local-task", iterations=3, invocation=timed)
    one = run_of(tmp_path / "1.parquet", INDEXED, head)
    two = run_of(tmp_path / "2.parquet", INDEXED, header(workers=2, device="local-task", iterations=4))
    serial = run_of(tmp_path / "3.parquet", INDEXED, header(workers=1, device="local-task"))
    both = attributed(one, two)
    assert both.metrics[0].measured == 2 * 861
    assert both.run.iterations == 7
    assert (attributed(one).run.invocation, both.run.invocation) == (timed, UNKNOWN_INVOCATION)
    assert [each.calls for each in both.sites] == [4, 2, 2]
    with pytest.raises(
        UsageInvalid, match=r"3\.parquet ran on local-task with 1 worker, .* with 2 workers: their costs do not"
    ):
        attributed(one, serial)
    bare = csv_of(tmp_path / "4.csv", "kernel,cpu_ns\nk0,1\n")
    with pytest.raises(UsageInvalid, match=r"4\.csv ran on an unknown device, .* do not add up"):
        attributed(one, bare)


def test_runs_of_other_inputs_add_up_and_the_first_that_differs_is_named(tmp_path: Path) -> None:
    """Of each function by itself; a file is known by its name, and a run that tells none of its inputs is silent."""
    inputs = [(), ("8x4xf32=1", "@a/x.npy"), ("8x4xf32=1", "@b/x.npy"), ("16x4xf32=1", "@a/x.npy")]
    tables = [
        run_of(tmp_path / f"{number}.parquet", INDEXED, header(inputs=each, function="f"))
        for number, each in enumerate(inputs)
    ]
    other = run_of(tmp_path / "other.parquet", INDEXED, header(inputs=("3xi32=0",), function="g"))
    assert "settings-differ" not in slugs(attributed(*tables[:3], other))
    both = attributed(*tables, other)
    (said,) = [each.message for each in both.diagnostics if each.slug == "settings-differ"]
    assert said.startswith("argument 0 is 8x4xf32=1 in 1.parquet, 16x4xf32=1 in 3.parquet: ")
    assert both.metrics[0].measured == 5 * attributed(tables[0]).metrics[0].measured


def test_percentiles_of_an_op_in_several_sites_are_over_all_its_calls(tmp_path: Path) -> None:
    table = csv_of(tmp_path / "r.csv", "kernel,cpu_ns\nk0,1\nk1,100\nk1,102\n")
    made = graph([op(1, 1)], [site(0, 1, kernel="k0"), site(1, 1, kernel="k1")])
    result = attributed(table, map_=made)
    assert result.ops[0].calls == 3
    assert result.ops[0].metrics["cpu_ns"].per_invocation == UNKNOWN_PER_INVOCATION


@pytest.mark.parametrize("large", [(1 << 31) - 1, 1 << 31, 1 << 40, (1 << 52) + 7])
@pytest.mark.parametrize("large_first", [False, True])
def test_values_of_any_size_add_up_with_small_ones(large: int, large_first: bool, tmp_path: Path) -> None:
    """Of one run or of several, whichever comes first: sums and percentiles are those of Python's numbers."""
    rows = [f"k1,{value}" for value in (3, 5, 4)], [f"k1,{value}" for value in (large, 7, -large)]
    tables = [csv_of(tmp_path / f"{n}.csv", "\n".join(["kernel,bytes", *lines, ""])) for n, lines in enumerate(rows)]
    together = csv_of(tmp_path / "together.csv", "\n".join(["kernel,bytes", *rows[0], *rows[1], ""]))
    made = graph([op(1, 1)], [site(0, 1, kernel="k1")])
    several = attributed(*(reversed(tables) if large_first else tables), map_=made)
    (metric,) = several.metrics
    assert (metric.name, metric.measured, metric.attributed) == ("bytes", 19, 19)
    for result in (several, attributed(together, map_=made)):
        assert result.sites[0].metrics["bytes"].per_call == PerCall(median=4, p10=-large, p90=large)


def test_a_run_of_another_module_is_refused(tmp_path: Path) -> None:
    run = read_run(run_of(tmp_path / "r.parquet", INDEXED, header(module_sha256="00" * 32)))
    request = Request(example(), "cd" * 32, [run])
    with pytest.raises(RunMismatch, match="a different build"):
        attribute(request)
    allowed = attribute(dataclasses.replace(request, allow_mismatch=True))
    assert "run-mismatch" in slugs(allowed)


def test_a_bad_number_is_named_with_its_place(tmp_path: Path) -> None:
    table = csv_of(tmp_path / "r.csv", "kernel,duration_ns\nk0,1\nk0,fast\n")
    with pytest.raises(RunInvalid, match=r"r\.csv: line 3, column duration_ns: 'fast'"):
        attributed(table)


def test_a_run_without_events_says_so(tmp_path: Path) -> None:
    result = attributed(run_of(tmp_path / "r.parquet", f"SELECT * FROM ({INDEXED}) WHERE false"))
    assert [(metric.measured, metric.attributed) for metric in result.metrics] == [(0, 0)]
    assert "no-events" in slugs(result)
    assert result.sites[0].metrics["cpu_ns"].per_call is None


def test_an_unbalanced_result_cannot_be_made(tmp_path: Path) -> None:
    result = attributed(run_of(tmp_path / "r.parquet", INDEXED))
    spoilt = structs.replace(result.metrics[0], measured=result.metrics[0].measured + 1)
    with pytest.raises(BalanceError):
        dataclasses.replace(result, metrics=(spoilt,))


ROWS = st.lists(
    st.tuples(
        st.sampled_from(["dispatch", "copy", "alloca", "execute", "strange"]),
        st.sampled_from(["k0", "k1", "k2", "k9"]),
        st.integers(min_value=0, max_value=2**40),
        st.booleans(),
    ),
    max_size=60,
)


@pytest.mark.long
@given(st.lists(st.tuples(st.sampled_from(["k0", "k1", "k2"]), st.integers(-9, 9)), min_size=1, max_size=9))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_what_an_op_has_lies_between_its_bounds_where_counts_are_negative_too(
    tmp_path: Path, rows: list[tuple[str, int]]
) -> None:
    lines = [f"{kernel},{count}" for kernel, count in rows]
    result = attributed(csv_of(tmp_path / "r.csv", "\n".join(["kernel,given_back", *lines]) + "\n"))
    for each in result.ops:
        cost = each.metrics["given_back"]
        assert cost.low <= cost.attributed <= cost.high


@pytest.mark.long
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(rows=ROWS, rule=st.sampled_from([Rule.MODEL, Rule.ROOT, Rule.EQUAL]))
def test_whatever_the_events_it_balances(tmp_path: Path, rows: list[tuple[str, str, int, bool]], rule: Rule) -> None:
    lines = [f"{kind},{kernel},{cost},{str(warmup).lower()}" for kind, kernel, cost, warmup in rows]
    table = csv_of(tmp_path / "r.csv", "\n".join(["kind,kernel,cpu_ns,warmup", "dispatch,k0,1,false", *lines]) + "\n")
    result = attributed(table, rule=rule)
    assert result.metrics[0].measured == 1 + sum(cost for _, _, cost, warmup in rows if not warmup)


class TestJoin:
    """Alignment of recorded command buffers with static ones."""

    def join(
        self,
        buffers: Sequence[CommandBuffer],
        programs: Sequence[Sequence[RecordedCommand]],
        recorded: Sequence[RecordedBuffer],
    ) -> dict[int, set[tuple[str, ...]]]:
        """Recorded buffer -> the sites that its dispatches can be."""
        made = structs.replace(example(), command_buffers=tuple(buffers))
        joined = Join(made, header(programs=tuple(tuple(p) for p in programs), buffers=tuple(recorded)))
        return {
            number: {target.places for key, target in joined.by_command.items() if key[0] == group}
            for number, group in joined.group_of_buffer.items()
        }

    K0 = (RecordedCommand("dispatch", "k0", (1, 1, 1)),)
    COPY = (RecordedCommand("copy", UNKNOWN, (0, 0, 0)),)

    def test_equal_buffers_pair_in_order_beside_hidden_ones(self) -> None:
        static = [buffer(0, [dispatch("k0", "site0")]), buffer(1, [dispatch("k0", "site1")])]
        recorded = [RecordedBuffer(3, False, 0), RecordedBuffer(5, False, 1), RecordedBuffer(9, False, 0)]
        assert self.join(static, [self.K0, self.COPY], recorded) == {3: {("site0",)}, 9: {("site1",)}}

    def test_workgroups_that_are_known_tell_buffers_apart(self) -> None:
        static = [
            buffer(0, [dispatch("k0", "site0", (2, 1, 1))]),
            buffer(1, [dispatch("k0", "site1", (UNKNOWN, 1, 1))]),
        ]
        assert self.join(static, [self.K0], [RecordedBuffer(1, False, 0)]) == {1: {("site1",)}}

    def test_one_shot_buffers_that_look_alike_are_ambiguous(self) -> None:
        static = [
            buffer(0, [dispatch("k0", "site0")], memoized=False),
            buffer(1, [dispatch("k0", "site1")], memoized=False),
        ]
        recorded = [RecordedBuffer(number, True, 0) for number in (1, 2, 3)]
        assert self.join(static, [self.K0], recorded) == {number: {("site0", "site1")} for number in (1, 2, 3)}

    def test_buffers_of_the_function_that_ran_come_first(self) -> None:
        static = [
            buffer(0, [dispatch("k0", "site0")], memoized=False, function="other"),
            buffer(1, [dispatch("k0", "site1")], memoized=False),
        ]
        assert self.join(static, [self.K0], [RecordedBuffer(1, True, 0)]) == {1: {("site1",)}}

    def test_a_buffer_like_no_other_is_left_alone(self) -> None:
        static = [buffer(0, [dispatch("k1", "site2")])]
        assert self.join(static, [self.K0], [RecordedBuffer(1, False, 0)]) == {}


@pytest.mark.long
def test_local_sync_reaches_every_site_by_order(built: Built, tmp_path: Path) -> None:
    """The driver reports no command index; the order within a submission tells the twelve sites of a kernel apart."""
    run = tmp_path / "sync.csv"
    arguments = ("--flagfile", "flags/hand_repeat12.flags", "--iterations", "5", "-o", run, "--", "--device=local-sync")
    check_cli("record", built("hand_repeat12"), *arguments)
    result = json_cli("attribute", run, "--map", built("hand_repeat12"))
    assert [each["calls"] for each in result["sites"]] == [5] * 12
    assert "split-evenly" not in {diagnostic["slug"] for diagnostic in result["diagnostics"]}


@pytest.mark.long
def test_loops_and_branches_reach_their_sites(built: Built, recorded: Recorded) -> None:
    """Five trips: the product in each, the even arm in three, the odd one in two; three iterations of it all."""
    run = recorded("hand_loop")
    result = json_cli("attribute", run, "--map", built("hand_loop"))
    assert sorted(each["calls"] for each in result["sites"]) == [6, 9, 15]
