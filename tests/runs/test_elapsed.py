"""The parts of elapsed time: against a walk over every nanosecond, and against the program's clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from unittest import mock

import duckdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.recording import asynchronous_module, entry_points, events, request, sample
from tracemap.capture import execution
from tracemap.capture.benchmark import (
    BENCHMARK_TOOL,
    Ending,
    call_command,
    call_count_flags,
    profiling_flags,
    run_benchmark,
)
from tracemap.capture.record import record
from tracemap.core.errors import UsageInvalid
from tracemap.core.units import UNKNOWN
from tracemap.hook import stops_environment
from tracemap.hook.compiling import FOLDER, LIBRARY_NAME
from tracemap.runs import elapsed
from tracemap.runs.elapsed import ClockStops, MeasuredSpan, elapsed_parts, host_only_parts, summed_parts
from tracemap.runs.events import EventTable
from tracemap.runs.hook.samples import read_stops
from tracemap.runs.model import BY_STOPS, UNKNOWN_PARTS, ElapsedParts
from tracemap.runs.sql import explained_out_of_memory, open_database

Event = tuple[str, int, int, int]
"""Kind, when it was submitted, when it began, and how long it took."""
Invocation = tuple[list[Event], tuple[int, int]]
"""Events, and the piece in which the program's clock went."""

COLUMNS = (
    "row, kind, kernel, submission_id, command_index, submitted_ns, start_ns, duration_ns, covered_ns, invocation, "
    "warmup"
)
TRANSFERS = ("copy", "fill")


@st.composite
def invocation(draw: st.DrawFn, begin: int = 1000) -> Invocation:
    """Executes with dispatches in them, and transfers, all submitted at one time and begun at another."""
    events: list[Event] = []
    at = begin + draw(st.integers(0, 5))
    for _ in range(draw(st.integers(1, 3))):
        submitted, length = at + draw(st.integers(0, 3)), draw(st.integers(1, 20))
        start = submitted + draw(st.integers(0, 4))
        events.append(("execute", submitted, start, length))
        for _ in range(draw(st.integers(0, 3))):
            late = draw(st.integers(0, length - 1))
            events.append(("dispatch", submitted, start + late, draw(st.integers(1, length - late))))
        at += draw(st.integers(0, 30))
    for _ in range(draw(st.integers(0, 2))):
        submitted = draw(st.integers(begin, at))
        kind = draw(st.sampled_from([*TRANSFERS, "alloca"]))
        events.append((kind, submitted, submitted + draw(st.integers(0, 9)), draw(st.integers(1, 9))))
    end = max(start + length for _, _, start, length in events)
    return events, (begin, end + draw(st.integers(0, 5)))


def owner(moment: int, invocations: Sequence[Invocation], *, by_stops: bool) -> str:
    """The part that a nanosecond belongs to, asked of everything that could have it."""
    rows = [event for events, _ in invocations for event in events]
    running = {kind for kind, _, start, length in rows if start <= moment < start + length}
    if "dispatch" in running:
        return "kernels"
    if running & set(TRANSFERS):
        return "transfers"
    if any(kind != "dispatch" and submitted <= moment < start + length for kind, submitted, start, length in rows):
        return "queue"
    pieces = [piece for _, piece in invocations]
    if by_stops and any(before <= moment < after for (_, before), (after, _) in pairwise(pieces)):
        return "profiler"
    spans = pieces if by_stops else [_of_rows(events) for events, _ in invocations]
    return "host" if any(begin <= moment < end for begin, end in spans) else "unexplained"


def _of_rows(events: Sequence[Event]) -> tuple[int, int]:
    submissions = [submitted for kind, submitted, _, _ in events if kind != "dispatch"]
    return min(submissions), max(start + length for _, _, start, length in events)


def rows(invocations: Sequence[Sequence[Event]]) -> Iterator[str]:
    number = 0
    for index, found in enumerate(invocations):
        for kind, submitted, start, length in found:
            number += 1
            told = "NULL::BIGINT" if kind == "dispatch" else str(submitted)
            yield f"({number}, '{kind}', 'k', {index}, 0, {told}, {start}, {length}, NULL::BIGINT, {index}, false)"


def parts(
    invocations: Sequence[Sequence[Event]], elapsed_ns: int, span: MeasuredSpan, stops: ClockStops | None = None
) -> ElapsedParts:
    with duckdb.connect() as connection:
        values = ", ".join(rows(invocations))
        table = EventTable(connection, "events", f"SELECT * FROM (VALUES {values}) AS e({COLUMNS})")
        return elapsed_parts(table, elapsed_ns, span, stops)


@pytest.mark.long
@settings(max_examples=80, deadline=None)
@given(
    data=st.data(),
    count=st.integers(1, 3),
    late=st.integers(0, 9),
    by_stops=st.booleans(),
    at_a_time=st.integers(1, 20),
)
def test_every_moment_is_of_one_part(
    data: st.DataObject, count: int, late: int, by_stops: bool, at_a_time: int
) -> None:
    """One invocation behind the other; the time that is asked for begins and ends anywhere among them."""
    found: list[Invocation] = []
    for _ in range(count):
        begin = found[-1][1][1] + data.draw(st.integers(1, 9)) if found else 1000
        found.append(data.draw(invocation(begin)))
    last = found[-1][1][1]
    begin = 1000 + data.draw(st.integers(0, 9))
    end = max(begin + 1, last - data.draw(st.integers(0, 9)))
    owners = [owner(moment, found, by_stops=by_stops) for moment in range(begin, end)]
    pieces = np.array([piece for _, piece in found], dtype=np.int64)
    stops = ClockStops(pieces[:, 0], pieces[:, 1]) if by_stops else None
    with mock.patch.object(elapsed, "_BATCH_SIZE", at_a_time):
        got = parts([events for events, _ in found], end - begin + late, MeasuredSpan(begin, end), stops)
    expected = {name: owners.count(name) for name in ("kernels", "transfers", "queue", "host", "profiler")}
    assert got == ElapsedParts(
        kernels_ns=expected["kernels"],
        transfers_ns=expected["transfers"],
        queue_ns=expected["queue"],
        host_ns=expected["host"],
        profiler_ns=expected["profiler"] if by_stops else UNKNOWN,
        unexplained_ns=owners.count("unexplained") + late,
        profiler_found_by=BY_STOPS if by_stops else UNKNOWN,
    )
    assert sum(value for value in got.values() if isinstance(value, int)) == end - begin + late
    assert got.explained_ns == end - begin - owners.count("unexplained")


def test_what_is_not_known_is_not_divided() -> None:
    found: list[Event] = [("execute", 0, 0, 10)]
    nowhere = MeasuredSpan(UNKNOWN, UNKNOWN)
    assert parts([found], 9, nowhere) == UNKNOWN_PARTS
    assert parts([found], 12, nowhere) == ElapsedParts(0, 0, 10, 0, UNKNOWN, 2, UNKNOWN)
    with duckdb.connect() as connection:
        table = EventTable(connection, "events", f"SELECT * FROM (VALUES {', '.join(rows([found]))}) AS e({COLUMNS})")
        assert elapsed_parts(table, UNKNOWN, nowhere, None) == UNKNOWN_PARTS


REPEATED = """
SELECT row + copy * 3 AS row, kind, kernel, copy AS submission_id, command_index,
    submitted_ns + copy * 100 AS submitted_ns, start_ns + copy * 100 AS start_ns,
    duration_ns, covered_ns, copy AS invocation, warmup
FROM (VALUES {values}) AS e({columns}), range({calls}) AS copies(copy)
"""


@pytest.mark.long
def test_many_calls_take_little_memory() -> None:
    """Each call as the one before: so are its parts. The rows alone take more than there is."""
    one: list[Event] = [("execute", 5, 10, 60), ("dispatch", 5, 20, 30), ("dispatch", 5, 40, 20)]
    calls = 200_000
    with open_database(60_000_000) as connection:
        connection.execute("SET threads = 2")  # each has buffers of its own
        query = REPEATED.format(values=", ".join(rows([one])), columns=COLUMNS, calls=calls)
        table = EventTable(connection, "events", query)
        began = np.arange(calls) * 100
        got = elapsed_parts(table, calls * 100, MeasuredSpan(0, calls * 100), ClockStops(began, began + 90))
    # The last stop has no end.
    assert got == ElapsedParts(40 * calls, 0, 25 * calls, 25 * calls, 10 * (calls - 1), 10, BY_STOPS)


def test_rows_that_do_not_fit_are_one_sentence() -> None:
    numbers = "SELECT list(i) FROM range(100_000_000) AS numbers(i)"  # lists cannot be on disk
    with (
        pytest.raises(UsageInvalid, match="the rows need more memory than is available; free some"),
        explained_out_of_memory("the rows", "free some"),
        open_database(20_000_000) as connection,
    ):
        connection.execute(numbers)


def test_the_profiler_of_one_run_is_not_that_of_several() -> None:
    known, unknown = ElapsedParts(1, 2, 3, 4, 5, 6, BY_STOPS), ElapsedParts(1, 1, 1, 1, UNKNOWN, 1, UNKNOWN)
    assert summed_parts([known, known]) == ElapsedParts(2, 4, 6, 8, 10, 12, BY_STOPS)
    assert summed_parts([known, unknown]) == ElapsedParts(2, 3, 4, 5, UNKNOWN, 12, UNKNOWN)


def test_calls_that_do_nothing_on_a_device_are_the_hosts() -> None:
    stops = ClockStops(np.array([0, 100, 200]), np.array([60, 130, 201]))
    assert host_only_parts(stops, 0, 2) == ElapsedParts(0, 0, 0, 90, 40, 0, BY_STOPS)
    assert host_only_parts(stops, 1, 2) == ElapsedParts(0, 0, 0, 30, 0, 0, BY_STOPS)


@pytest.mark.parametrize(
    ("moments", "begins", "calls"),
    [
        ([10, 20, 30, 40], [25, 35], 2),  # the first call begins while the clock stands
        ([10, 40, 50, 90], [15, 20], 2),  # two in one piece
        ([10, 40, 30, 90], [15, 35], 2),  # time that runs backwards
        ([10, 40, 50, 51], [], 2),  # fewer pieces than calls
        ([], [15], 1),
    ],
)
def test_stops_that_do_not_fit_the_calls_are_none(
    tmp_path: Path, moments: list[int], begins: list[int], calls: int
) -> None:
    path = tmp_path / "stops"
    assert read_stops(path, np.array(begins), calls) is None
    np.array([*moments, 0, 0], dtype=np.int64).tofile(path)
    assert read_stops(path, np.array(begins, dtype=np.int64), calls) is None


def test_stops_end_where_the_program_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "stops"
    np.array([10, 20, 30, 40, 50, 0, 0], dtype=np.int64).tofile(path)
    found = read_stops(path, np.array([11, 33, 52]), 3)
    assert found is not None
    assert (found.going_ns.tolist(), found.stopped_ns.tolist()) == ([10, 30], [20, 40])


def test_the_clock_of_a_batch_goes_twice(tmp_path: Path) -> None:
    """For a moment between two batches, and while the calls of one are made."""
    path = tmp_path / "stops"
    np.array([10, 11, 20, 30, 40, 41, 50, 60, 70, 71, 0, 0], dtype=np.int64).tofile(path)
    for begins in ([22, 55], []):
        found = read_stops(path, np.array(begins, dtype=np.int64), 2, 2)
        assert found is not None
        assert (found.going_ns.tolist(), found.stopped_ns.tolist()) == ([20, 50], [30, 60])
    assert read_stops(path, np.array([22, 45]), 2, 2) is None
    assert read_stops(path, np.array([22, 55]), 2, 1) is None


# ---- real programs


needs_hook = pytest.mark.skipif(
    not (FOLDER / LIBRARY_NAME).is_file(), reason="the hook's library is not built: no C compiler"
)


@pytest.mark.long
@needs_hook
@pytest.mark.parametrize(
    "options",
    [
        {"iterations": 200, "warmup": 20},
        {"seconds": 1.0},
        pytest.param({"serial": True, "seconds": 1.0}, marks=pytest.mark.long),
    ],
)
def test_nine_tenths_of_a_short_program_are_explained(made: Path, tmp_path: Path, options: dict[str, object]) -> None:
    """Its calls take some ten microseconds, of which kernels have few: what surrounds them must be known."""
    recorded = record(request(sample(made, "hand_loczoo"), tmp_path / "run.csv", **options))
    header = recorded.header
    found = header.elapsed.values()
    assert sum(part for part in found if isinstance(part, int)) == header.elapsed_ns
    assert header.elapsed.profiler_found_by == BY_STOPS
    assert isinstance(header.elapsed.profiler_ns, int)
    assert isinstance(header.elapsed_ns, int)
    assert isinstance(header.elapsed.explained_ns, int)
    assert header.elapsed.explained_ns >= 0.9 * header.elapsed_ns
    assert 0 < header.elapsed.profiler_ns < header.elapsed_ns
    timed = [row for row in events(recorded.path) if not row["warmup"]]
    assert all((row["submitted_ns"] is None) == (row["kind"] == "dispatch") for row in timed)
    assert all(row["submitted_ns"] <= row["start_ns"] for row in timed if row["kind"] == "execute")


@pytest.mark.long
@needs_hook
@pytest.mark.parametrize("batch", [(), ("--batch_size=5", "--batch_concurrency=2")])
def test_nine_tenths_of_an_asynchronous_function_are_explained(
    made: Path, tmp_path: Path, batch: tuple[str, ...]
) -> None:
    """The program stops its clock before each batch of calls too, while it makes their fences."""
    module = asynchronous_module(made)
    recorded = record(request(module, tmp_path / "run.csv", seconds=0.5, launches=1, runtime_flags=batch))
    header = recorded.header
    assert header.elapsed.profiler_found_by == BY_STOPS
    assert isinstance(header.elapsed_ns, int)
    assert isinstance(header.elapsed.explained_ns, int)
    assert header.elapsed.explained_ns >= 0.9 * header.elapsed_ns


@needs_hook
def test_the_clock_goes_as_long_as_the_program_says(made: Path, tmp_path: Path) -> None:
    """The stops are seen from outside; the program adds up the same pieces by itself, and prints their mean.

    Between its own look at the clock and the one that is seen the system may give the processor to others, which is in
    one sum only: of several executions, one goes undisturbed.
    """
    module, calls = sample(made, "hand_loczoo"), 2_000
    function = entry_points(module)[0]
    specs = [f"{argument.type}=1".replace("tensor<", "").replace(">", "") for argument in function.arguments]
    plain = [*call_command(BENCHMARK_TOOL, [module], function.name, specs, "local-task", []), *call_count_flags(calls)]
    apart = []
    for execution_number in range(5):
        stops = tmp_path / f"stops-{execution_number}"
        command = [*plain, *profiling_flags("local-task", tmp_path / f"{execution_number}.ireeprof")]
        ending = run_benchmark(command, stops_environment(stops))
        ending.check("the benchmark")
        found = read_stops(stops, np.array([], dtype=np.int64), calls)
        assert found is not None
        assert isinstance(ending.total_ns, int)
        assert int((found.going_ns[1:] - found.stopped_ns[:-1]).min()) > 0
        apart.append(abs(int((found.stopped_ns - found.going_ns).sum()) / ending.total_ns - 1))
        if apart[-1] < 0.02:
            break
    assert apart[-1] < 0.02, apart


@needs_hook
def test_what_passes_before_the_first_submission_of_the_warm_up_is_not_measured(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that got no processor for a second in its first call: its own sum of all calls has that second."""

    def run(command: Sequence[str], *more: object) -> Ending:
        ending = run_benchmark(command, *more)  # type: ignore[arg-type]  # as they were given
        assert isinstance(ending.total_ns, int)
        return replace(ending, total_ns=ending.total_ns + 1_000_000_000)

    monkeypatch.setattr(execution, "run_benchmark", run)
    header = record(request(sample(made, "hand_loczoo"), tmp_path / "run.csv", iterations=20, warmup=5)).header
    assert isinstance(header.elapsed_ns, int)
    assert header.elapsed_ns < 900_000_000
    assert header.elapsed.unexplained_ns == 0


@needs_hook
def test_without_stops_the_profilers_work_is_unknown(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the hook is not built: what lies between calls is not explained then."""
    monkeypatch.setattr("tracemap.hook.LIBRARY_NAME", "none.so")
    header = record(request(sample(made, "hand_loczoo"), tmp_path / "run.csv", iterations=20)).header
    assert (header.elapsed.profiler_ns, header.elapsed.profiler_found_by) == (UNKNOWN, UNKNOWN)
    assert sum(part for part in header.elapsed.values() if isinstance(part, int)) == header.elapsed_ns


@pytest.mark.long
@needs_hook
def test_a_function_without_dispatches_is_the_hosts(made: Path, tmp_path: Path) -> None:
    took_ns = []
    for number in range(3):  # a program may stand still for as long as all of its calls take
        run = tmp_path / f"{number}.csv"
        found = record(request(sample(made, "hand_multifunc"), run, function="no_compute", iterations=50)).header
        assert isinstance(found.elapsed_ns, int)
        parts = found.elapsed.values()
        assert parts[:3] == (0, 0, 0)
        assert sum(part for part in parts if isinstance(part, int)) == found.elapsed_ns
        took_ns.append(found.elapsed_ns)
    assert min(took_ns) < 50_000 * 50  # without the first call, which alone takes half a millisecond


@needs_hook
def test_the_hook_says_nothing_where_only_stops_are_wanted(made: Path, tmp_path: Path) -> None:
    modules, inputs = [sample(made, "hand_multifunc")], ["32x64xf32=1"]
    plain = [*call_command(BENCHMARK_TOOL, modules, "no_compute", inputs, "local-sync", []), *call_count_flags(10)]
    ending = run_benchmark(plain, stops_environment(tmp_path / "stops"))
    ending.check("the benchmark")
    assert ending.hook_messages == ""


@needs_hook
def test_settings_of_another_tool_do_not_make_a_timed_program_record(made: Path, tmp_path: Path) -> None:
    """Those of IREE's own hook make the library print figures of all calls, which takes time of each."""
    folder = tmp_path / "calls"
    folder.mkdir()
    modules, inputs = [sample(made, "hand_multifunc")], ["32x64xf32=1", "64x64xf32=1"]
    plain = [*call_command(BENCHMARK_TOOL, modules, "encode", inputs, "local-sync", []), *call_count_flags(10)]
    variables = {"IREE_HOOK_OUTPUT_CSV": str(folder), **stops_environment(tmp_path / "stops")}
    ending = run_benchmark(plain, variables)
    ending.check("the benchmark")
    assert (ending.hook_messages, [*folder.iterdir()]) == ("", [])
    assert (tmp_path / "stops").exists()
