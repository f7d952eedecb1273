"""Outliers: time of calls above the outlier threshold. Plain Python computes the truth."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from tests.builders import graph, op, site
from tests.conftest import Built, Recorded
from tests.support import check_cli
from tracemap.attribution.attribute import Request, attribute
from tracemap.attribution.model import Attribution, UnattributedReason
from tracemap.attribution.scan import connection as tables
from tracemap.attribution.scan import sums as ordered
from tracemap.core.diagnostics import NOISY, Diagnostic
from tracemap.core.errors import UsageInvalid
from tracemap.core.units import UNKNOWN
from tracemap.map.model import Command, CommandBuffer, TraceGraph
from tracemap.options.results import Rule
from tracemap.runs.model import UNKNOWN_HEADER, RecordedBuffer, RecordedCommand
from tracemap.runs.runfile import read_run, write_run

Call = tuple[str, int, int, int]
"""A site, its count of workgroups, the invocation, nanoseconds."""


def two_sites() -> TraceGraph:
    """Two ops in `site0`, one in `site1`, which share a kernel."""
    return graph([op(1, 1), op(2, 2), op(3, 3)], [site(0, 1, 2), site(1, 3)])


def attributed(
    folder: Path, calls: Iterable[Call], *, keep: bool = False, invocations: bool = True, much: bool = False
) -> Attribution:
    rows = (
        f"{place},main$async_dispatch_0,{groups},{invocation if invocations else ''},{cost},{2 * cost},{cost}"
        for place, groups, invocation, cost in calls
    )
    table = folder / "r.csv"
    table.write_text("\n".join(["site,kernel,workgroups_x,invocation,cpu_ns,duration_ns,faults", *rows]) + "\n")
    run = read_run(table)
    if much:
        header = structs.replace(run.header, diagnostics=(Diagnostic(NOISY, "its threads waited"),))
        run = replace(run, header=header)
    return attribute(Request(two_sites(), "cd" * 32, [run], Rule.EQUAL, keep_outliers=keep))


def outliers(result: Attribution, metric: str = "cpu_ns") -> dict[str, int]:
    """By site; the unattributed row must be their sum."""
    found = {each.site: each.metrics[metric].outliers for each in result.sites}
    rows = [row.metrics[metric] for row in result.unattributed if row.reason is UnattributedReason.OUTLIERS]
    assert sum(rows) == sum(found.values())
    return found


def fence(costs: Sequence[int]) -> float:
    """The upper quartile and one and a half interquartile ranges; a quartile is the least value that reaches it."""
    ordered = sorted(costs)
    q1, q3 = (ordered[-(-len(ordered) * quarters // 4) - 1] for quarters in (1, 3))
    return q3 + (q3 - q1) * 3 // 2


def beyond_fences(calls: Iterable[Call]) -> Mapping[str, int]:
    """What calls take beyond the fences of their sites and counts of workgroups, where nothing recurs."""
    of_group: dict[tuple[str, int], list[int]] = defaultdict(list)
    for place, groups, _, cost in calls:
        of_group[place, groups].append(cost)
    found = dict.fromkeys(("site0", "site1", ""), 0)
    for (place, _), costs in of_group.items():
        if len(costs) >= 8:
            found[place] += int(sum(max(0, cost - fence(costs)) for cost in costs))
    return found


def steady(place: str, costs: Iterable[int], groups: int = 1) -> list[Call]:
    """A call in each invocation."""
    return [(place, groups, invocation, cost) for invocation, cost in enumerate(costs)]


def noisy(cost: int, count: int, seed: int = 1, spread: float = 0.05) -> list[int]:
    """Costs of a kernel that takes so long, within `spread` of it."""
    chance = random.Random(seed)
    return [round(cost * chance.uniform(1 - spread, 1 + spread)) for _ in range(count)]


def test_a_call_that_waited_is_cut_at_its_fence_and_the_rest_is_split(tmp_path: Path) -> None:
    costs = [100, 101, 102, 103, 104, 105, 106, 5000]
    result = attributed(tmp_path, steady("site0", costs))
    # Quartiles 101 and 105: the fence is 105 + 1.5 * 4.
    assert fence(costs) == 111
    assert outliers(result) == {"site0": 5000 - 111, "site1": 0}
    assert outliers(result, "duration_ns") == {"site0": 10000 - 222, "site1": 0}
    (row,) = result.unattributed
    assert row.events == 1
    first, second, _ = result.ops
    worked = sum(costs) - 5000 + 111
    assert result.sites[0].metrics["cpu_ns"].total == worked
    assert first.metrics["cpu_ns"].attributed + second.metrics["cpu_ns"].attributed == worked
    assert first.metrics["cpu_ns"].inclusive == first.metrics["cpu_ns"].high == worked
    assert result.metrics[0].measured == sum(costs)
    per_call = result.sites[0].metrics["cpu_ns"].per_call
    assert per_call is not None
    assert per_call.p90 == 5000  # of calls as they were measured


def test_what_is_counted_is_never_disturbance(tmp_path: Path) -> None:
    result = attributed(tmp_path, steady("site0", [1] * 20 + [50]))
    assert outliers(result, "faults") == {"site0": 0, "site1": 0}
    assert result.ops[0].metrics["faults"].inclusive == 70


def test_disturbed_calls_are_kept_if_asked(tmp_path: Path) -> None:
    costs = [100] * 20 + [5000]
    result = attributed(tmp_path, steady("site0", costs), keep=True)
    assert not result.unattributed
    assert result.sites[0].metrics["cpu_ns"].total == sum(costs)


def test_too_few_calls_have_no_fence(tmp_path: Path) -> None:
    assert not attributed(tmp_path, steady("site0", [100] * 6 + [5000])).unattributed
    assert attributed(tmp_path, steady("site0", [100] * 7 + [5000])).unattributed


@pytest.mark.parametrize("slow", [30, 50, 70])
def test_two_frequent_modes_of_a_kernel_are_work(tmp_path: Path, slow: int) -> None:
    """A kernel whose time depends on its data: its upper quartile is of the slow mode."""
    costs = noisy(100_000, 300 - 3 * slow) + noisy(900_000, 3 * slow, seed=2)
    random.Random(3).shuffle(costs)
    assert not attributed(tmp_path, steady("site0", costs)).unattributed


def test_a_site_with_two_counts_of_workgroups_has_two_fences(tmp_path: Path) -> None:
    """One call in twenty has ten times the workgroups: as one group it would be cut."""
    small, large = noisy(100_000, 190), noisy(1_000_000, 10)
    calls = [*steady("site0", small), *steady("site0", large, groups=10)]
    assert not attributed(tmp_path, calls).unattributed
    assert attributed(tmp_path, steady("site0", small + large)).unattributed
    slow = [*calls, ("site0", 10, 0, 60_000_000)]
    assert outliers(attributed(tmp_path, slow))["site0"] == beyond_fences(slow)["site0"]


def buffers_run(
    folder: Path, counts: Sequence[int], costs: Sequence[Sequence[int]], *slugs: str, invocations: Sequence[int] = ()
) -> Attribution:
    """A recorded run: one buffer and list of commands for each count of workgroups, with the costs of its calls.

    `slugs`: what its header says of it; `invocations`: those of all calls in their order, else each has its own.
    """
    command = Command("dispatch", "main$async_dispatch_0", "site0", (UNKNOWN, 1, 1))
    buffer = CommandBuffer(0, "main", memoized=False, initializer=False, commands=(command,))
    made = structs.replace(two_sites(), command_buffers=(buffer,))
    head = structs.replace(
        UNKNOWN_HEADER,
        module_sha256=made.module.sha256,
        programs=tuple((RecordedCommand("dispatch", command.kernel, (count, 1, 1)),) for count in counts),
        buffers=tuple(RecordedBuffer(number, True, number) for number in range(len(counts))),
        diagnostics=tuple(Diagnostic(slug, "as the test has it") for slug in slugs),
    )
    calls = [(number, counts[number], cost) for number, each in enumerate(costs) for cost in each]
    numbers = invocations or range(len(calls))
    rows = ", ".join(f"{(*call, number)}" for call, number in zip(calls, numbers, strict=True))
    with duckdb.connect() as connection:
        events = connection.sql(
            f"""SELECT 'dispatch' AS kind, '{command.kernel}' AS kernel, buffer::BIGINT AS command_buffer_id,
                       0::BIGINT AS command_index, invocation::BIGINT AS invocation,
                       count::BIGINT AS workgroups_x, cost::BIGINT AS cpu_ns
                FROM (VALUES {rows}) AS events(buffer, count, cost, invocation)"""
        )
        write_run(head, events, folder / "recorded.parquet", force=True)
    return attribute(Request(made, "cd" * 32, [read_run(folder / "recorded.parquet")], Rule.EQUAL))


def test_recorded_commands_tell_whether_a_site_has_several_counts(tmp_path: Path) -> None:
    """Where all have one, rows are not asked for theirs."""
    small, large = noisy(100_000, 190), noisy(1_000_000, 10)
    assert not buffers_run(tmp_path, (1, 10), (small, large)).unattributed
    (row,) = buffers_run(tmp_path, (1,), (small + large,)).unattributed
    whole = small + large
    assert row.metrics["cpu_ns"] == sum(max(0, cost - int(fence(whole))) for cost in whole)


@pytest.mark.parametrize("spread", [0.05, 0.15])
@pytest.mark.parametrize("waited", [10, 30, 45])
def test_in_a_disturbed_run_nearly_half_of_the_calls_may_have_waited(
    tmp_path: Path, waited: int, spread: float
) -> None:
    """Waiting adds to what a call works; what is left of the site's cost is its work, within what calls vary by."""
    costs = noisy(1_000_000, 300, spread=spread)
    chance = random.Random(waited)
    held = [chance.randint(3_000_000, 20_000_000) if chance.random() < waited / 100 else 0 for _ in costs]
    result = buffers_run(tmp_path, (1,), ([cost + more for cost, more in zip(costs, held, strict=True)],), NOISY)
    (row,) = result.unattributed
    assert row.metrics["cpu_ns"] == pytest.approx(sum(held), rel=0.04)
    assert result.sites[0].metrics["cpu_ns"].total == pytest.approx(sum(costs), rel=spread)


@pytest.mark.parametrize("waited", [55, 65, 70])
def test_in_a_disturbed_run_most_calls_may_have_waited(tmp_path: Path, waited: int) -> None:
    """Turns of other programs, each of a scheduler's length: what is left is what the others take, and their fence."""
    costs = noisy(800_000, 300, spread=0.15)
    chance = random.Random(waited)
    held = [chance.randint(1, 6) * 1_500_000 if chance.random() < waited / 100 else 0 for _ in costs]
    result = buffers_run(tmp_path, (1,), ([cost + more for cost, more in zip(costs, held, strict=True)],), NOISY)
    (row,) = result.unattributed
    assert row.metrics["cpu_ns"] == pytest.approx(sum(held), rel=0.06)
    assert result.sites[0].metrics["cpu_ns"].total == pytest.approx(sum(costs), rel=0.3)


def test_in_a_disturbed_run_a_slow_half_is_work_if_it_is_slower_by_less_than_a_wait(tmp_path: Path) -> None:
    """A core that another thread uses as well makes kernels slower, for less than another program's turn."""
    costs = noisy(100_000, 148) + noisy(600_000, 152, seed=2)
    random.Random(3).shuffle(costs)
    assert not buffers_run(tmp_path, (1,), (costs,), NOISY).unattributed


def test_in_a_disturbed_run_a_slow_half_of_a_long_kernel_is_work(tmp_path: Path) -> None:
    """Slower by more than a wait, but by a third only: calls of a long kernel lie as far apart by themselves."""
    costs = noisy(30_000_000, 148) + noisy(40_000_000, 152, seed=2)
    random.Random(3).shuffle(costs)
    assert not buffers_run(tmp_path, (1,), (costs,), NOISY).unattributed


def test_in_a_disturbed_run_trips_that_recur_are_work(tmp_path: Path) -> None:
    """Four of ten trips are slow in each invocation: beyond the fence that the faster ones alone give."""
    of_trips = [[each[-1] for each in trips(30, [100_000] * 6 + [900_000] * 4)]]
    invocations = [number // 10 for number in range(300)]
    assert not buffers_run(tmp_path, (1,), of_trips, NOISY, invocations=invocations).unattributed
    assert buffers_run(tmp_path, (1,), of_trips, NOISY).unattributed


def trips(invocations: int, of_trip: Sequence[int]) -> list[Call]:
    """A loop whose trips take so long, within five percent, in each invocation."""
    return [
        ("site0", 1, invocation, noisy(cost, 1, seed=invocation * 1000 + trip)[0])
        for invocation in range(invocations)
        for trip, cost in enumerate(of_trip)
    ]


def test_a_rare_mode_that_recurs_in_each_invocation_is_work(tmp_path: Path) -> None:
    """The last of twenty trips has ten times the work: 5 % of the calls, far beyond the fence of the others."""
    calls = trips(30, [100_000] * 19 + [1_000_000])
    assert sum(beyond_fences(calls).values()) > 20_000_000
    assert not attributed(tmp_path, calls).unattributed
    # The slow trips have a fence of their own, and so has a third kind of trip beyond that.
    waited = [*calls, ("site0", 1, 3, 40_000_000)]
    assert 38_000_000 < outliers(attributed(tmp_path, waited))["site0"] < 39_000_000
    steps = trips(30, [100_000] * 40 + [1_000_000] * 9 + [9_000_000] * 1)
    assert not attributed(tmp_path, steps).unattributed


def test_what_does_not_recur_is_disturbance_however_alike_it_is(tmp_path: Path) -> None:
    """Calls that wait for a scheduler's time slice all take the same time more."""
    costs = noisy(100_000, 280) + noisy(4_100_000, 20, seed=2)
    random.Random(3).shuffle(costs)
    calls = steady("site0", costs)
    found = outliers(attributed(tmp_path, calls))
    assert found["site0"] == beyond_fences(calls)["site0"] > 75_000_000


def test_calls_that_may_be_of_several_sites_are_not_judged_without_invocations(tmp_path: Path) -> None:
    """One of eight calls is slow: of a site that always is, for all that is known."""
    calls = [("", 1, number // 8, 1000 if number % 8 == 0 else 10) for number in range(80)]
    assert not attributed(tmp_path, calls, invocations=False).unattributed
    assert not attributed(tmp_path, calls).unattributed
    known = [("site0", 1, 0, cost) for _, _, _, cost in calls]
    assert attributed(tmp_path, known, invocations=False).unattributed


CALLS = st.lists(
    st.tuples(
        st.sampled_from(["site0", "site1", ""]),
        st.integers(1, 2),
        st.just(0),
        st.one_of(st.integers(0, 40), st.integers(0, 2**40)),
    ),
    min_size=1,
    max_size=120,
)


@pytest.mark.long
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(calls=CALLS, kept=st.sampled_from([0, 1]))
def test_whatever_the_calls_disturbance_is_what_lies_beyond_and_all_balances(
    tmp_path: Path, calls: list[Call], kept: int
) -> None:
    """Calls that name no site are of both, in even parts; whether values are counted or kept to be put in order."""
    numbered = [(place, groups, number, cost) for number, (place, groups, _, cost) in enumerate(calls)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ordered, "_MEMORY_SHARE", kept)
        result = attributed(tmp_path, numbered)
    beyond, found = beyond_fences(numbered), outliers(result)
    assert sum(found.values()) == sum(beyond.values())
    for place in result.sites:
        whole = sum(cost for name, _, _, cost in numbered if name == place.site)
        shared = sum(cost for name, _, _, cost in numbered if not name)
        assert abs(2 * (found[place.site] - beyond[place.site]) - beyond[""]) <= 1
        work = 2 * (whole - beyond[place.site]) + shared - beyond[""]
        assert abs(2 * place.metrics["cpu_ns"].total - work) <= 1
    assert result.metrics[0].measured == sum(cost for *_, cost in numbered)


def test_runs_that_exceed_the_memory_say_how_to_allow_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "r.csv"
    table.write_text("kernel,invocation,cpu_ns\n" + "".join(f"k{row % 97},{row},{row}\n" for row in range(200_000)))
    monkeypatch.setattr(tables, "available_memory", lambda: 2_000_000)
    with pytest.raises(UsageInvalid, match="raise it with --memory"):
        attribute(Request(two_sites(), "cd" * 32, [read_run(table)], Rule.EQUAL, allow_mismatch=True))


@pytest.mark.long
def test_pages_of_both_commands_can_keep_outliers(built: Built, recorded: Recorded, tmp_path: Path) -> None:
    bundle, run = built("jax_mlp"), recorded("jax_mlp")
    pages = [tmp_path / "report.html", tmp_path / "attribute.html"]
    check_cli("report", bundle, run, "--keep-outliers", "-o", pages[0])
    check_cli("attribute", run, "--map", bundle, "--keep-outliers", "--html", pages[1])
    assert pages[0].read_bytes() == pages[1].read_bytes()


@pytest.mark.parametrize("much", [True, False])
def test_costs_of_which_waits_leave_half_open_are_marked(tmp_path: Path, much: bool) -> None:
    """Most calls of a long kernel waited, each for another time; those of a short one hardly did."""
    chance = random.Random(5)
    long = [round(3_000_000 * chance.uniform(1, 9)) for _ in range(40)]
    calls = [*steady("site0", long), *steady("site1", noisy(3_000, 40))]
    of_long, of_both, of_short = attributed(tmp_path, calls, much=much).ops
    assert of_long.metrics["cpu_ns"].uncertain == much
    assert of_both.metrics["cpu_ns"].uncertain == much
    assert not of_short.metrics["cpu_ns"].uncertain
    assert not of_long.metrics["faults"].uncertain
