"""The order of launches and their invocations, from records that are made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tracemap.runs.columns import LAUNCH
from tracemap.runs.cuda.launches import Calls, in_submission_order, profile_of
from tracemap.runs.cuda.recording import ACTIVITY_FILE, CALL, KERNEL, MIGRATION, Activity, CudaProcess
from tracemap.runs.elapsed import ClockStops
from tracemap.runs.sql import open_database

pytestmark = pytest.mark.quick


def records(*rows: dict[str, int]) -> np.ndarray:
    made = np.zeros(len(rows), [(name, "<u8") for name in ACTIVITY_FILE.record_names])
    for number, row in enumerate(rows):
        for name, value in row.items():
            made[number][name] = value
    return made


def kernel(correlation: int, start_ns: int = 0, **more: int) -> dict[str, int]:
    return {"kind": KERNEL, "correlation": correlation, "start_ns": start_ns, "end_ns": start_ns + 5, **more}


def correlations(*rows: dict[str, int]) -> list[int]:
    ordered = in_submission_order(Activity(records(*rows), records(), 0, 0, 0))
    return [int(row["correlation"]) for row in ordered]


def test_work_is_in_the_order_of_its_calls_whenever_it_ran() -> None:
    assert correlations(kernel(7, 10), kernel(3, 30), kernel(5, 20)) == [3, 5, 7]


def test_work_of_a_graph_is_in_the_order_of_its_nodes() -> None:
    rows = (kernel(3, 30, graph_node=8), kernel(3, 40, graph_node=7), kernel(2, 50))
    ordered = in_submission_order(Activity(records(*rows), records(), 0, 0, 0))
    assert [(int(row["correlation"]), int(row["graph_node"])) for row in ordered] == [(2, 0), (3, 7), (3, 8)]


def test_ids_that_begin_again_go_on() -> None:
    last = (1 << 32) - 1
    assert correlations(kernel(0, 40), kernel(last, 30), kernel(1, 50), kernel(last - 1, 20)) == [last - 1, last, 0, 1]


def test_migrations_which_have_no_id_do_not_look_like_a_new_begin() -> None:
    half = 1 << 31
    rows = (kernel(half + 1, 40), kernel(half - 1, 30), {**kernel(0, 10), "kind": MIGRATION})
    assert correlations(*rows) == [0, half - 1, half + 1]


def test_calls_of_a_batch_are_distinguished(tmp_path: Path) -> None:
    """Two batches of two calls with two launches each, of which the second begins while the first one's work runs."""
    starts = [*range(100, 140, 10), *range(200, 240, 10)]
    submitted = [*range(12, 16), *range(52, 56)]
    work = records(*(kernel(number, start) for number, start in enumerate(starts)))
    calls = records(
        *(
            {"kind": CALL, "correlation": number, "start_ns": at, "end_ns": at + 1}
            for number, at in enumerate(submitted)
        )
    )
    activity = Activity(work, calls, 0, 0, 0)
    stops = ClockStops(np.array([10, 50]), np.array([40, 90]))
    process = CudaProcess(tmp_path, "", 1, names={0: "kernel"})
    with open_database() as connection:
        profile = profile_of(process, activity, connection, "made_events", Calls(stops, warmup=2, count=4, batch=2))
        query = "SELECT invocation, warmup, submitted_ns FROM made_events ORDER BY submitted_ns"
        rows = connection.execute(query).fetchall()
    assert [invocation for invocation, _, _ in rows] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [warmup for _, warmup, _ in rows] == [True] * 4 + [False] * 4
    assert profile.invocations == 4


def call(correlation: int, thread: int) -> dict[str, int]:
    return {"kind": CALL, "correlation": correlation, "start_ns": 1, "end_ns": 2, "thread": thread}


@pytest.mark.parametrize(
    ("calls", "unfinished", "facts", "slugs"),
    [
        ([call(1, 7), call(2, 7)], 0, {}, []),
        ([call(1, 7), call(2, 8)], 0, {}, ["several-queues"]),
        ([], 3, {}, ["times-invalid"]),
        ([], 0, {"losses": [("copies", "CUPTI does not record copies: error")]}, ["not-recorded"]),
        ([], 0, {"left_out": 5}, ["records-lost"]),
        ([], 0, {"skipped_ns": 5}, ["begins-late"]),
        ([], 0, {"ended": False}, ["program-killed"]),
    ],
)
def test_what_is_missing_or_unsure_is_said(
    tmp_path: Path, calls: list[dict[str, int]], unfinished: int, facts: dict[str, Any], slugs: list[str]
) -> None:
    activity = Activity(records(kernel(1, 10), kernel(2, 20)), records(*calls), 0, unfinished, 0)
    process = CudaProcess(tmp_path / "cuda-1-1.jsonl", "1-1", 1, names={0: "kernel"}, **({"ended": True} | facts))
    with open_database() as connection:
        profile = profile_of(process, activity, connection, "made_events", Calls())
        launches = connection.table("made_events").order("row").project(LAUNCH).fetchall()
    assert [item.slug for item in profile.diagnostics] == slugs
    # The order of launches means something only where one thread launches.
    assert launches == ([(None,), (None,)] if "several-queues" in slugs else [(0,), (1,)])
