"""Single calls of dispatches: the slowest, tiles, balance over workers. Python computes the truth."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from tests.builders import graph, op, site
from tests.conftest import Built, Recorded
from tests.recording import Row, events
from tests.reports.test_page import page_of
from tests.support import Json, check_cli, json_cli
from tests.tables import printed_table
from tracemap.attribution.attribute import Request, attribute
from tracemap.attribution.model import Attribution, SiteResult, SlowCall
from tracemap.core.units import UNKNOWN, Integer
from tracemap.map.model import TraceGraph
from tracemap.options.results import Rule
from tracemap.runs.model import UNKNOWN_HEADER
from tracemap.runs.runfile import read_run, write_run

COLUMNS = ("site", "invocation", "start_ns", "duration_ns", "cpu_ns", "workgroups_x", "workgroups_y", "workgroups_z")
Call = tuple[str, int | None, int | None, int, int, int, int, int]
"""Cells of these columns."""

MOST = 5


def two_sites() -> TraceGraph:
    return graph([op(1, 1), op(2, 2)], [site(0, 1, kernel="k0"), site(1, 2, kernel="k1")])


def written(table: Path, calls: Sequence[Call]) -> Path:
    rows = (",".join("" if cell is None else str(cell) for cell in (*call, f"k{call[0][4:]}")) for call in calls)
    table.write_text("\n".join([",".join((*COLUMNS, "kernel")), *rows]) + "\n")
    return table


def attributed(*tables: Path) -> Attribution:
    return attribute(Request(two_sites(), "cd" * 32, [read_run(table) for table in tables], Rule.EQUAL))


def slowest_of(runs: Sequence[Sequence[Call]], place: str) -> list[SlowCall]:
    """The first few of all calls, sorted as a whole."""
    calls = [(number, call) for number, run in enumerate(runs, start=1) for call in run if call[0] == place]
    calls.sort(key=lambda each: (-each[1][3], each[0], -1 if each[1][1] is None else each[1][1], _first(each[1][2])))
    return [
        SlowCall(number, _told(call[1]), _told(call[2]), duration_ns=call[3], cpu_ns=call[4])
        for number, call in calls[:MOST]
    ]


def _first(value: int | None) -> int:
    return -1 if value is None else value


def _told(value: int | None) -> Integer:
    return UNKNOWN if value is None else value


NUMBERS = st.integers(0, 2**40)
CALLS = st.lists(
    st.tuples(
        st.sampled_from(["site0", "site1"]),
        st.none() | st.integers(0, 30),
        st.none() | NUMBERS,
        st.integers(0, 9) | NUMBERS,
        NUMBERS,
        *[st.integers(1, 40)] * 3,
    ),
    min_size=1,
    max_size=30,
)


@pytest.mark.long
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(CALLS, min_size=1, max_size=3))
def test_the_slowest_calls_and_the_tiles_are_those_of_the_rows(tmp_path: Path, runs: list[list[Call]]) -> None:
    """Several runs, calls that are as slow as others, and calls of which nothing is told but their times."""
    found = attributed(*(written(tmp_path / f"{number}.csv", run) for number, run in enumerate(runs)))
    for result in found.sites:
        expected = slowest_of(runs, result.site)
        # Of calls that are alike in all by which they are sorted, any may be named.
        assert [(call.run, call.invocation, call.start_ns, call.duration_ns) for call in result.slowest] == [
            (call.run, call.invocation, call.start_ns, call.duration_ns) for call in expected
        ]
        calls = [call for run in runs for call in run if call[0] == result.site]
        assert {(call.start_ns, call.duration_ns, call.cpu_ns) for call in result.slowest} <= {
            (_told(start), wall, cpu) for _, _, start, wall, cpu, *_ in calls
        }
        assert result.tiles == (sum(x * y * z for *_, x, y, z in calls) if calls else UNKNOWN)
        assert result.imbalance_percent is UNKNOWN


@pytest.mark.parametrize("unknown", ["", "0", "99999999999999", "-3"])
def test_tiles_of_one_call_that_are_unknown_leave_all_unknown(tmp_path: Path, unknown: str) -> None:
    table = tmp_path / "r.csv"
    rows = ("site0,0,1,2,3,4,1,1,k0", f"site0,1,1,2,3,{unknown},1,1,k0", "site1,1,1,2,3,5,2,1,k1")
    table.write_text("\n".join([f"{','.join(COLUMNS)},kernel", *rows]) + "\n")
    assert [result.tiles for result in attributed(table).sites] == [UNKNOWN, 10]


def test_a_table_of_kernels_and_times_tells_of_no_tiles_workers_or_starts(tmp_path: Path) -> None:
    table = tmp_path / "r.csv"
    table.write_text("kernel,cpu_ns\nk0,5\nk0,7\nk1,6\n")
    first, second = attributed(table).sites
    assert (first.tiles, first.imbalance_percent) == (UNKNOWN, UNKNOWN)
    assert first.slowest == tuple(SlowCall(1, UNKNOWN, UNKNOWN, UNKNOWN, cpu) for cpu in (7, 5))
    assert second.slowest == (SlowCall(1, UNKNOWN, UNKNOWN, UNKNOWN, 6),)


def test_a_run_without_times_has_no_slowest_call(tmp_path: Path) -> None:
    table = tmp_path / "r.csv"
    table.write_text("kernel,page-faults\nk0,5\nk0,7\n")
    assert [result.slowest for result in attributed(table).sites] == [(), ()]


def test_calls_of_which_nobody_knows_the_site_are_named_at_each(tmp_path: Path) -> None:
    shared = graph([op(1, 1), op(2, 2)], [site(0, 1, kernel="k"), site(1, 2, kernel="k")])
    table = tmp_path / "r.csv"
    table.write_text("kernel,cpu_ns,workgroups_x,workgroups_y,workgroups_z\nk,5,4,1,1\nk,7,3,1,1\n")
    result = attribute(Request(shared, "cd" * 32, [read_run(table)], Rule.EQUAL))
    assert [(each.split_evenly, each.tiles) for each in result.sites] == [(True, 4), (True, 3)]
    assert [[call.cpu_ns for call in each.slowest] for each in result.sites] == [[7, 5], [7, 5]]


# ---- how evenly workers shared the work


def on_workers(folder: Path, workers: Integer, calls: Sequence[tuple[int, int | None]]) -> SiteResult:
    """A site with calls of these times on the wall and over workers."""
    path = folder / f"{workers}.parquet"
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE run (kernel VARCHAR, invocation BIGINT, duration_ns BIGINT, cpu_ns BIGINT)")
        rows = [("k0", number, *times) for number, times in enumerate(calls)]
        connection.executemany("INSERT INTO run VALUES (?, ?, ?, ?)", rows)
        write_run(structs.replace(UNKNOWN_HEADER, workers=workers), connection.table("run"), path, force=False)
    return attributed(path).sites[0]


@pytest.mark.parametrize(
    ("workers", "calls", "percent"),
    [
        (2, [(100, 200)], 100),  # both from the first tile to the last
        (2, [(100, 100)], 200),  # one of them did it all
        (4, [(100, 100)], 400),
        (4, [(100, 250), (100, 150)], 200),
        (2, [(100, 150)] * 7 + [(100, 151)], 133),
        (1, [(100, 100)], UNKNOWN),
        (UNKNOWN, [(100, 100)], UNKNOWN),
        (2, [(100, 200), (100, None)], UNKNOWN),
        (2, [(0, 0)], UNKNOWN),
    ],
)
def test_imbalance_is_the_time_that_workers_had_over_that_for_which_they_worked(
    tmp_path: Path, workers: Integer, calls: list[tuple[int, int | None]], percent: Integer
) -> None:
    assert on_workers(tmp_path, workers, calls).imbalance_percent == percent


def test_a_worker_that_waited_for_a_processor_is_no_imbalance(tmp_path: Path) -> None:
    """What disturbs a call makes both of its times longer."""
    calls = [(100 + number % 3, 200 + number % 3) for number in range(40)]
    assert on_workers(tmp_path, 2, [*calls, (10**6, 10**6)]).imbalance_percent == pytest.approx(100, abs=2)


# ---- a recorded run


@pytest.fixture(scope="module")
def rows(recorded: Recorded) -> Mapping[str, list[Row]]:
    """The measured calls of each kernel of a model in which each kernel has one site."""
    found = defaultdict(list)
    for row in events(recorded("hand_mlp")):
        if row["kind"] == "dispatch" and not row["warmup"]:
            found[row["kernel"]].append(row)
    return found


@pytest.fixture(scope="module")
def result(built: Built, recorded: Recorded) -> Json:
    return json_cli("attribute", recorded("hand_mlp"), "--map", built("hand_mlp"))


def kernels(bundle: Path) -> dict[str, str]:
    return {each["id"]: each["kernel"] for each in json_cli("show", bundle)["sites"]}


def test_json_has_the_calls_of_recorded_sites(built: Built, rows: Mapping[str, list[Row]], result: Json) -> None:
    """Three invocations are too few for a fence, so no time is taken for outliers."""
    kernel_of, workers = kernels(built("hand_mlp")), result["run"]["workers"]
    assert len(result["sites"]) == len(rows) == 4
    for found in result["sites"]:
        calls = sorted(rows[kernel_of[found["site"]]], key=lambda row: (-row["duration_ns"], row["invocation"]))
        names = ("invocation", "start_ns", "duration_ns", "cpu_ns")
        assert found["slowest"] == [{"run": 1, **{name: call[name] for name in names}} for call in calls]
        assert found["tiles"] == sum(r["workgroups_x"] * r["workgroups_y"] * r["workgroups_z"] for r in calls)
        cpu, wall = (sum(row[name] for row in calls) for name in ("cpu_ns", "duration_ns"))
        assert found["imbalance_percent"] == (round(Fraction(100 * workers * wall, cpu)) if workers > 1 else None)


def test_the_table_of_sites_shows_them(built: Built, recorded: Recorded, result: Json) -> None:
    text = check_cli("attribute", recorded("hand_mlp"), "--map", built("hand_mlp"), "--by", "site")
    table = {row["site"]: row for row in printed_table(text, "Dispatch sites by cpu_ns")}
    for found in result["sites"]:
        row = table[found["site"]]
        assert Fraction(row["tiles/call"].replace(",", "")) == Fraction(found["tiles"], found["calls"])
        if found["imbalance_percent"] is not None:
            assert float(row["imbalance"]) == pytest.approx(found["imbalance_percent"] / 100, abs=0.005)
    slowest = printed_table(text, "Slowest single calls of these dispatch sites")
    every = [
        (call["duration_ns"], call["start_ns"], each["site"]) for each in result["sites"] for call in each["slowest"]
    ]
    assert [(row["site"], int(row["start ns"])) for row in slowest] == [
        (place, start) for _, start, place in sorted(every, key=lambda call: (-call[0], call[1]))[:MOST]
    ]


def test_the_page_shows_them(tmp_path: Path) -> None:
    calls: list[Call] = [("site0", 3, 7, 2000, 4000, 4, 2, 1), ("site0", 4, None, 1000, 2000, 3, 1, 1)]
    page = page_of(two_sites(), attributed(written(tmp_path / "r.csv", calls)))
    first, second = page.data.sites
    assert (first.tiles, first.calls, first.imbalance_percent, first.slowest_ns) == (11, 2, UNKNOWN, 2000)
    assert [tuple(structs.astuple(call)) for call in first.slowest_calls] == [
        (1, 3, 7, 2000, 4000),
        (1, 4, UNKNOWN, 1000, 2000),
    ]
    assert (second.tiles, second.slowest_ns, second.slowest_calls) == (UNKNOWN, UNKNOWN, ())
