"""Shares per invocation as distributions, computed again in plain Python."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import duckdb
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from tests.builders import graph, op, site
from tests.conftest import Built, Recorded
from tests.recording import Row, events
from tests.support import Json, json_cli
from tracemap.attribution.attribute import Request, attribute
from tracemap.attribution.model import UNKNOWN_PER_INVOCATION, Attribution
from tracemap.attribution.scan import sums as ordered
from tracemap.attribution.scan import weighted
from tracemap.core.units import UNKNOWN
from tracemap.map.model import TraceGraph
from tracemap.options.results import Rule
from tracemap.runs.model import UNKNOWN_HEADER
from tracemap.runs.runfile import read_run, write_run
from tracemap.runs.statistics import FEWEST_VALUES, median_ranks

Call = tuple[str, int, int]
"""A site, the invocation, nanoseconds."""

MEMBERS = {"site0": (1, 2), "site1": (2,), "site2": (2, 3, 4), "site3": (1, 2, 3)}


def four_sites() -> TraceGraph:
    sites = [site(number, *members, kernel=f"k{number}") for number, members in enumerate(MEMBERS.values())]
    return graph([op(number, number) for number in range(1, 6)], [*sites, site(4, 5, kernel="k4")])


def written(folder: Path, calls: Sequence[Call], name: str = "r") -> Path:
    table = folder / f"{name}.csv"
    rows = (f"{place},k{place[4:]},{invocation},{cost},{cost % 1000}" for place, invocation, cost in calls)
    table.write_text("\n".join(["site,kernel,invocation,cpu_ns,faults", *rows]) + "\n")
    return table


def attributed(*tables: Path) -> Attribution:
    return attribute(Request(four_sites(), "cd" * 32, [read_run(table) for table in tables], Rule.EQUAL))


def expected(shares: Sequence[Fraction]) -> dict[str, Fraction | None]:
    """The distribution of an op's shares, one for each invocation."""
    ordered, count = sorted(shares), len(shares)
    rank = {"p10": -(-count // 10), "median": -(-count // 2), "p90": -(-count * 9 // 10), "max": count}
    found: dict[str, Fraction | None] = {name: ordered[number - 1] for name, number in rank.items()}
    low = bound_of_median(count)
    found["median_low"] = ordered[low - 1] if low else None
    found["median_high"] = ordered[count - low] if low else None
    return found


def bound_of_median(count: int) -> int:
    """The largest k so that the k-th value lies above the median in no more than 2.5 % of all samples; 0: none."""
    chance, low = Fraction(1, 2**count), 0
    while chance <= Fraction(1, 40):
        low += 1
        chance += Fraction(math.comb(count, low), 2**count)
    return low


def assert_like(found: object, shares: Sequence[Fraction]) -> None:
    """Rounded once as a sum and once as a share."""
    for name, value in expected(shares).items():
        told = getattr(found, name)
        assert told is UNKNOWN if value is None else abs(told - value) <= 1, (name, found, value)


def shares_of(number: int, calls: Sequence[Call], invocations: Sequence[int]) -> list[Fraction]:
    """By the rule `equal`; nothing in invocations in which none of the op's sites ran."""
    found = {invocation: Fraction() for invocation in invocations}
    for place, invocation, cost in calls:
        members = MEMBERS.get(place, (5,))
        if number in members:
            found[invocation] += Fraction(cost, len(members))
    return list(found.values())


@pytest.mark.parametrize("count", [6, 7, 20, 61, 100, 999, 1000])
def test_ranks_that_bound_the_median(count: int) -> None:
    low, high = median_ranks(count)
    assert low == bound_of_median(count)
    assert low + high == count + 1


@pytest.mark.parametrize("count", [1001, 2500, 5001])
def test_ranks_of_many_values_are_those_of_the_sum(count: int) -> None:
    assert median_ranks(count)[0] == bound_of_median(count)


def test_few_values_bound_no_median() -> None:
    assert bound_of_median(FEWEST_VALUES - 1) == 0
    with pytest.raises(ValueError, match="5 values"):
        median_ranks(FEWEST_VALUES - 1)


IDLE = """
SELECT 'site0' AS site, 'k0' AS kernel, 0::BIGINT AS invocation, 0::BIGINT AS cpu_ns, 0::BIGINT AS faults WHERE false
"""


@pytest.mark.long
@pytest.mark.parametrize("idle", [1, 8, 30])
@pytest.mark.parametrize("apart", [1, 3])
def test_runs_whose_calls_do_nothing_count(tmp_path: Path, idle: int, apart: int) -> None:
    """As of a loop that makes no trip for the inputs of one run, and some for those of the other."""
    calls = [(place, apart * call, 100 + number * call) for call in range(9) for number, place in enumerate(MEMBERS)]
    run = tmp_path / "idle.parquet"
    with duckdb.connect() as connection:
        write_run(structs.replace(UNKNOWN_HEADER, iterations=idle), connection.sql(IDLE), run, force=True)
    for order in ((written(tmp_path, calls), run), (run, written(tmp_path, calls))):
        for each in attributed(*order).ops[:4]:
            shares = shares_of(int(each.op.removeprefix("op")), calls, [apart * call for call in range(9)])
            assert_like(each.metrics["cpu_ns"].per_invocation, [*shares, *[Fraction()] * idle])


CALLS = st.lists(
    st.tuples(st.sampled_from([*MEMBERS, "site4"]), st.integers(0, 11), st.integers(0, 10**9)), min_size=1, max_size=60
)


@pytest.mark.long
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    calls=CALLS,
    of_sum=st.sampled_from([10**9, 10**8, 1]),
    rows=st.sampled_from([1, 7, 10**6]),
    kept=st.sampled_from([0, 1]),
)
def test_shares_of_invocations_are_those_of_their_rows(
    tmp_path: Path, calls: list[Call], of_sum: int, rows: int, kept: int
) -> None:
    """Without fences, whose work is another test's: what is counted has none."""
    invocations = sorted({invocation for _, invocation, _ in calls})
    table = written(tmp_path, calls)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weighted, "_BYTES_OF_SUM", of_sum)
        patch.setattr(weighted, "_ROWS_AT_A_TIME", rows)
        patch.setattr(ordered, "_MEMORY_SHARE", kept)
        result = attributed(table)
    counted = [(place, invocation, cost % 1000) for place, invocation, cost in calls]
    for number, each in enumerate(result.ops, start=1):
        assert_like(each.metrics["faults"].per_invocation, shares_of(number, counted, invocations))


@given(
    st.lists(
        st.tuples(st.integers(0, 62).flatmap(lambda bits: st.integers(0, 1 << bits)), st.integers(0, weighted.UNIT)),
        min_size=1,
        max_size=9,
    )
)
def test_sums_of_products_are_exact_however_large(rows: list[tuple[int, int]]) -> None:
    parts = weighted._parts_within(sum(value for value, _ in rows))
    added = np.zeros((parts.count, 1), dtype=np.int64 if parts.fit else object)
    for value, weight in rows:
        for number, factor in parts.nonzero_parts(weight):
            added[number] += np.array([value]).astype(added.dtype) * factor
    total = sum(value * weight for value, weight in rows)
    assert int(parts.rounded(added)[0]) == (total + weighted.UNIT // 2) // weighted.UNIT


def test_what_disturbed_calls_is_in_no_invocation(tmp_path: Path) -> None:
    """Of a site alone, whose percentiles are known, and of one that shares its op."""
    chance = random.Random(1)
    calls = [(place, number, chance.randint(90, 110)) for place in ("site3", "site4") for number in range(40)]
    worst = [("site3", 40, 10**9), ("site4", 40, 10**9)]
    first, *_, last = (each.metrics["cpu_ns"] for each in attributed(written(tmp_path, calls + worst)).ops)
    assert last.per_invocation.max == last.attributed - sum(cost for _, _, cost in calls[40:])
    assert isinstance(first.per_invocation.max, int)
    assert 30 < first.per_invocation.max < 60


@pytest.mark.parametrize("each", [2, 3, 41])
def test_an_op_of_one_entry_point_costs_nothing_in_the_invocations_of_others(tmp_path: Path, each: int) -> None:
    """What delayed one of its calls is in no invocation either."""
    chance = random.Random(each)
    own = [chance.randint(90, 110) for _ in range(41)]
    calls = [("site4", each * number, cost) for number, cost in enumerate(own)]
    others = [("site0", number, 5) for number in range(each * 41 + 1) if number % each]
    result = attributed(written(tmp_path, [*calls, ("site4", each * 41, 10**9), *others]))
    cost = result.ops[4].metrics["cpu_ns"]
    fence = int(cost.attributed) - sum(own)
    assert max(own) <= fence < 1000
    values = [*own, fence, *(0 for _ in others)]
    assert_like(cost.per_invocation, [Fraction(value) for value in values])


def test_invocations_of_several_runs_are_different_ones(tmp_path: Path) -> None:
    one = [("site1", number, 100 + number) for number in range(3, 9)]
    two = [("site1", number, 200 + number) for number in range(3, 7)]
    result = attributed(written(tmp_path, one, "one"), written(tmp_path, two, "two"))
    values = [Fraction(cost) for _, _, cost in one + two]
    assert_like(result.ops[1].metrics["cpu_ns"].per_invocation, values)


@pytest.mark.parametrize("far", [1, 10**6, 2**31 - 1])
def test_numbers_of_invocations_need_not_follow_each_other(tmp_path: Path, far: int) -> None:
    calls = [("site4", 0, 7), ("site4", far, 9), ("site0", far, 1)]
    result = attributed(written(tmp_path, calls))
    assert_like(result.ops[4].metrics["cpu_ns"].per_invocation, [Fraction(7), Fraction(9)])
    assert_like(result.ops[0].metrics["cpu_ns"].per_invocation, [Fraction(0), Fraction(1, 2)])


def test_a_run_of_known_invocations_need_not_have_a_metric_of_its_events(tmp_path: Path) -> None:
    """All that it measured lies at steps: nothing is there to be told of single invocations."""
    table = tmp_path / "r.csv"
    table.write_text("kind,site,kernel,invocation,step,samples\ndispatch,site4,k4,0,,\nstep,site4,k4,,1,5\n")
    result = attributed(table)
    assert result.ops[4].metrics["samples"].attributed + result.metrics[0].unattributed == 5
    assert result.ops[4].metrics["samples"].per_invocation == UNKNOWN_PER_INVOCATION


def test_what_disturbed_is_told_by_calls_of_the_same_shape(tmp_path: Path) -> None:
    """Of a site that is called with many workgroups and with few, by turns, and shares its ops with another."""
    lines = ["site,kernel,invocation,workgroups_x,workgroups_y,workgroups_z,cpu_ns"]
    for invocation in range(40):
        few = invocation % 2
        lines.append(f"site0,k0,{invocation},{4 if few else 20},1,1,{1_000 if few else 5_000}")
        lines.append(f"site3,k3,{invocation},1,1,1,600")
    for invocation in range(1, 21, 2):  # longer than with few workgroups, but not than with many
        lines[1 + 2 * invocation] = f"site0,k0,{invocation},4,1,1,{3_000 if invocation < 11 else 1_000}"
    table = tmp_path / "r.csv"
    table.write_text("\n".join(lines) + "\n")
    calls = [("site0", number, 1_000 if number % 2 else 5_000) for number in range(40)]
    calls += [("site3", number, 600) for number in range(40)]
    result = attributed(table)
    assert_like(result.ops[0].metrics["cpu_ns"].per_invocation, shares_of(1, calls, range(40)))
    assert result.ops[0].metrics["cpu_ns"].attributed == sum(shares_of(1, calls, range(40)))


def test_an_event_without_a_time_adds_nothing_to_its_invocation(tmp_path: Path) -> None:
    """Also where its site has a fence, which is what other events have at most."""
    calls = [("site0", invocation, 1_000) for invocation in range(20)]
    calls += [("site3", invocation, 600) for invocation in range(20)]
    table = written(tmp_path, calls)
    absent = range(3, 8)
    for number in absent:
        table.write_text(
            table.read_text().replace(f",{number},1000,", f",{number},,").replace(f",{number},600,", f",{number},,")
        )
    result = attributed(table)
    shares = shares_of(1, [call for call in calls if call[1] not in absent], range(20))
    assert_like(result.ops[0].metrics["cpu_ns"].per_invocation, shares)


@pytest.mark.parametrize("number", ["", "99999999999999", "-99999999999999"])
def test_an_event_of_no_invocation_leaves_all_unknown_and_it_is_said(tmp_path: Path, number: str) -> None:
    table = tmp_path / "r.csv"
    table.write_text(f"site,kernel,invocation,cpu_ns\nsite4,k4,0,7\nsite4,k4,{number},9\n")
    result = attributed(table)
    assert result.ops[4].metrics["cpu_ns"].per_invocation == UNKNOWN_PER_INVOCATION
    assert "invocations-unknown" in {diagnostic.slug for diagnostic in result.diagnostics}


def test_shares_of_recorded_invocations_are_those_of_the_rows(built: Built, recorded: Recorded) -> None:
    """The weights are those of the totals; sites are told by their kernels, of which each has one."""
    run = recorded("hand_mlp")
    bundle = built("hand_mlp")
    result = json_cli("attribute", run, "--map", bundle, "--keep-outliers")
    shown = json_cli("show", bundle)
    rows = [row for row in events(run) if row["kind"] == "dispatch" and not row["warmup"]]
    kernel_of = {each["id"]: each["kernel"] for each in shown["sites"]}
    assert len(set(kernel_of.values())) == len(kernel_of)
    for entry in result["ops"]:
        for metric in ("cpu_ns", "duration_ns"):
            shares = recorded_shares(entry, metric, shown, rows)
            assert_json_like(entry["metrics"][metric]["per_invocation"], shares)


def recorded_shares(entry: Json, metric: str, shown: Json, rows: Sequence[Row]) -> list[Fraction]:
    """What an op of one site has in each invocation."""
    found: dict[int, Fraction] = defaultdict(Fraction)
    cost = entry["metrics"][metric]
    (place,) = next(each["sites"] for each in shown["ops"] if each["id"] == entry["op"])
    kernel = next(each["kernel"] for each in shown["sites"] if each["id"] == place)
    for row in rows:
        found[row["invocation"]] += (
            Fraction(row[metric]) * Fraction(cost["attributed"], cost["inclusive"]) if row["kernel"] == kernel else 0
        )
    return list(found.values())


def assert_json_like(found: Json, shares: Sequence[Fraction]) -> None:
    for name, value in expected(shares).items():
        assert found[name] is None if value is None else abs(found[name] - value) <= 2, name
