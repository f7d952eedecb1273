"""The event table of a recording: order, additions, and dispatches of submissions."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pytest

from tracemap.runs.events import EventTable

pytestmark = pytest.mark.quick

COLUMNS = "row, kind, kernel, submission_id, command_index, start_ns, duration_ns, covered_ns"
# Two submissions as workers report them: not in the order of the work, and one dispatch without times.
EVENTS = (
    "(1, 'dispatch', 'k', 1, 2, 150, 100, NULL)",
    "(2, 'dispatch', 'k', 1, 0, 110, 60, NULL)",
    "(3, 'execute', NULL, 1, NULL, 100, 120, NULL)",
    "(4, 'dispatch', 'k', 2, 0, NULL, NULL, NULL)",
    "(5, 'execute', NULL, 2, NULL, 300, 50, NULL)",
    "(6, 'dispatch', 'l', 2, 2, 310, 10, NULL)",
    "(7, 'execute', NULL, 3, NULL, 400, 7, NULL)",
    "(8, 'execute', NULL, 4, NULL, NULL, 7, NULL)",
    "(9, 'alloca', NULL, 4, NULL, 110, 1, NULL)",
)


@pytest.fixture
def events() -> Iterator[EventTable]:
    with duckdb.connect() as connection:
        query = f"SELECT * REPLACE (covered_ns::BIGINT AS covered_ns) FROM (VALUES {', '.join(EVENTS)}) AS e({COLUMNS})"
        yield EventTable(connection, "events", query)


def found(events: EventTable, columns: str) -> list[tuple[object, ...]]:
    return events.in_order().project(columns).fetchall()


def test_rows_are_in_the_order_of_the_work_and_unknown_times_last(events: EventTable) -> None:
    assert found(events, "kind, start_ns") == [
        ("execute", 100), ("dispatch", 110), ("alloca", 110), ("dispatch", 150), ("execute", 300), ("dispatch", 310),
        ("execute", 400), ("dispatch", None), ("execute", None),
    ]  # fmt: skip
    assert events.count == len(EVENTS)
    assert "row" not in events.in_order().columns


def test_what_dispatches_cover_is_counted_once_and_only_where_times_are_known(events: EventTable) -> None:
    of_executes = events.in_order().filter("kind = 'execute'").project("submission_id, covered_ns").fetchall()
    # Dispatches of the first overlap, and one ends after it; the second has one without times.
    assert dict(of_executes) == {1: 110, 2: 10, 3: 0, 4: None}


def test_counts_belong_to_the_dispatch_that_was_submitted_as_the_same(events: EventTable) -> None:
    counts = "SELECT * FROM (VALUES ('k', 1, 11), ('k', 2, 12), ('l', 1, 21), ('m', 1, 31)) AS counts(a, b, c)"
    assert events.add_counts(counts, ["page-faults"]) == 1
    assert found(events, 'kernel, start_ns, "page-faults"') == [
        (None, 100, None), ("k", 110, 11), (None, 110, None), ("k", 150, 12), (None, 300, None), ("l", 310, 21),
        (None, 400, None), ("k", None, None), (None, None, None),
    ]  # fmt: skip
    assert events.add_counts("SELECT 'k', 3, 13", ["cycles"]) == 3
    assert events.in_order().columns[-2:] == ["page-faults", "cycles"]


def test_dispatches_without_work_are_numbered_too(events: EventTable) -> None:
    """What is left out of a count must not shift the others: numbers are of all dispatches of a kernel."""
    with_times = f"SELECT kernel, submitted, 5 FROM {events.dispatches} AS dispatch WHERE start_ns = 150"
    events.add_counts(with_times, ["count"])
    assert [start for start, count in found(events, "start_ns, count") if count] == [150]


def test_added_rows_come_last_until_they_are_sorted_in(events: EventTable) -> None:
    events.add_rows("SELECT 'step' AS kind, 7 AS step, start_ns FROM (VALUES (110), (NULL)) AS s(start_ns)")
    assert found(events, "kind, start_ns, step")[-2:] == [("step", 110, 7), ("step", None, 7)]
    assert events.in_order().columns[-1] == "step"
    events.sort("start_ns, kind")
    assert found(events, "kind, start_ns")[1:4] == [("alloca", 110), ("dispatch", 110), ("step", 110)]
    assert events.count == len(EVENTS) + 2


def test_rows_of_many_groups_are_handed_out_in_their_order_before_and_after_counts() -> None:
    """A database reads the groups of a table on several threads."""
    count = 500_000
    scattered = "hash(i) % 1000000"
    rows = f"(SELECT i AS row, {scattered} AS start_ns FROM range({count}) AS number(i))"
    with duckdb.connect() as connection:
        connection.execute("SET threads = 4")
        table = EventTable(
            connection,
            "events",
            "SELECT row, 'dispatch' AS kind, 'k' AS kernel, row AS submission_id, 0 AS command_index, start_ns, "
            f"1 AS duration_ns, CAST(NULL AS BIGINT) AS covered_ns FROM {rows} ORDER BY hash(row)",
        )
        expected = connection.execute(f"SELECT start_ns, row FROM {rows} ORDER BY start_ns, row").fetchall()
        assert found(table, "start_ns, submission_id") == expected
        table.add_counts("SELECT kernel, submitted, 5 FROM " + table.dispatches, ["count"])
        assert found(table, "start_ns, submission_id") == expected
