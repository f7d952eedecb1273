"""Time windows of a run: whole invocations, chosen in plain Python for comparison."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import Built, Recorded
from tests.recording import Row, events
from tests.support import check_cli, json_cli, run_cli
from tracemap.core.errors import UsageInvalid
from tracemap.core.units import UNKNOWN
from tracemap.options.results import WHOLE_RUN, Window
from tracemap.runs.model import INSTRUCTIONS, SAMPLES, STEP_METRICS
from tracemap.runs.runfile import read_run
from tracemap.runs.time_window import limited_to_window

Event = tuple[int | None, int, int, bool]
"""The call, when the event was submitted and when it began, and whether it is of the warm-up."""
SECOND = 10**9


def written(folder: Path, found: Sequence[Event]) -> Path:
    lines = ["kernel,invocation,submitted_ns,start_ns,cpu_ns,warmup"]
    for number, (call, submitted, start, warmup) in enumerate(found):
        lines.append(f"k,{'' if call is None else call},{submitted},{start},{number + 1},{str(warmup).lower()}")
    table = folder / "run.csv"
    table.write_text("\n".join(lines) + "\n")
    return table


def chosen(found: Sequence[Event], window: Window) -> list[int]:
    """The costs of the rows that belong to a window."""
    began: dict[tuple[str, int], int] = {}
    rows = [(number, event) for number, event in enumerate(found) if not event[3]]
    keys = {number: ("row", number) if call is None else ("call", call) for number, (call, *_) in rows}
    for number, (call, submitted, start, _) in rows:
        first = start if call is None else min(submitted, start)
        began[keys[number]] = min(began.get(keys[number], first), first)
    zero = min(began.values())
    inside = {key for key, at in began.items() if window.begin_s * SECOND <= at - zero < window.end_s * SECOND}
    return sorted(number + 1 for number, key in keys.items() if key in inside)


EVENTS = st.lists(
    st.tuples(
        st.one_of(st.none(), st.integers(0, 5)),
        st.integers(0, 9).map(lambda number: number * SECOND // 2),
        st.integers(0, 9).map(lambda number: number * SECOND // 2),
        st.booleans(),
    ),
    min_size=1,
    max_size=15,
).filter(lambda found: not all(warmup for *_, warmup in found))


@pytest.mark.long
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(found=EVENTS, begin=st.integers(0, 8), length=st.one_of(st.just(math.inf), st.integers(1, 8)))
def test_rows_of_calls_that_began_in_the_window(tmp_path: Path, found: list[Event], begin: int, length: float) -> None:
    window = Window(begin / 2, begin / 2 + length / 2)
    expected = chosen(found, window)
    run = read_run(written(tmp_path, found))
    if window != WHOLE_RUN and not expected:
        with pytest.raises(UsageInvalid, match="no invocation began from"):
            limited_to_window(run, window, tmp_path)
        return
    got = events(limited_to_window(run, window, tmp_path).table)
    assert sorted(row["cpu_ns"] for row in got if not row["warmup"]) == expected


def calls_of(rows: Sequence[Row]) -> dict[int, int]:
    """By call when it began."""
    began: dict[int, int] = {}
    for row in rows:
        if not row["warmup"] and row["start_ns"] is not None and row["invocation"] is not None:
            first = min(row["start_ns"], row["start_ns"] if row["submitted_ns"] is None else row["submitted_ns"])
            began[row["invocation"]] = min(first, began.get(row["invocation"], first))
    return began


@pytest.mark.long
def test_two_windows_have_what_the_run_has(recorded: Recorded, built: Built) -> None:
    """A recorded run of several calls, cut between two of them: the costs of ops add up to those of all."""
    run, bundle = recorded("hand_mlp"), built("hand_mlp")
    began = sorted(calls_of(events(run)).values())
    at = (began[1] - began[0]) / SECOND
    whole = json_cli("attribute", run, "--map", bundle, "--keep-outliers", "--format", "json")
    windows = [
        json_cli("attribute", run, "--map", bundle, "--keep-outliers", "--format", "json", option, f"{at:.9f}")
        for option in ("--to", "--from")
    ]
    assert [each["run"]["iterations"] for each in windows] == [1, len(began) - 1]
    for name in ("cpu_ns", "duration_ns"):
        one = {op["op"]: op["metrics"][name]["attributed"] for op in whole["ops"]}
        several = Counter[str]()
        for each in windows:
            several.update({op["op"]: op["metrics"][name]["attributed"] for op in each["ops"]})
        # A site's cost is split over its ops in whole nanoseconds, once in each window.
        assert all(abs(several[op] - one[op]) <= len(whole["sites"]) for op in one)
        measured = [next(each["measured"] for each in found["metrics"] if each["name"] == name) for found in windows]
        assert sum(measured) == next(each["measured"] for each in whole["metrics"] if each["name"] == name)
    said = check_cli("attribute", run, "--map", bundle, "--to", f"{at:.9f}")
    window = f"note [window]: only 1 of {len(began)} invocations: those that began from 0 s to {at:g} s"
    assert next(line for line in said.splitlines() if line.startswith("note")) == window


@pytest.mark.parametrize(
    ("head", "cells"), [("start_ns,duration_ns", "100"), ("start_ns,cpu_ns", "100"), ("start_ns,joules,site", "1.5,")]
)
def test_a_window_has_the_metrics_that_the_run_has(head: str, cells: str, tmp_path: Path) -> None:
    table = tmp_path / "run.csv"
    table.write_text(f"kernel,{head}\nk,1000,{cells}\nk,{2 * SECOND},{cells}\n", encoding="utf-8")
    whole = read_run(table)
    part = limited_to_window(whole, Window(1.0, math.inf), tmp_path)
    assert [metric.name for metric in part.metrics] == [metric.name for metric in whole.metrics]
    assert set(part.columns) == set(whole.columns)
    assert len(events(part.table)) == 1


def sums(table: Path) -> Counter[str]:
    """What is counted in all measured rows of steps, by metric; `outside`: the samples that lie in no kernel."""
    found = Counter[str]()
    for row in events(table):
        if row["kind"] == "step" and not row["warmup"]:
            found.update({name: row[name] or 0 for name in STEP_METRICS if name in row})
            found["outside"] += row["samples"] or 0 if row["kernel"] is None else 0
    return found


@pytest.mark.long
def test_samples_have_times_of_their_own_and_what_was_simulated_is_of_no_window(built: Built, tmp_path: Path) -> None:
    """Samples outside of kernels belong to windows as those in them do; one call was simulated, of no window."""
    if shutil.which("valgrind") is None:
        pytest.skip("there is no valgrind")
    bundle, recording = built("jax_mlp"), tmp_path / "seen.parquet"
    more = ("--cache-sim", "--sample", "4999", "--iterations", "3000", "--warmup", "3")
    check_cli("record", bundle, *more, "-o", recording)
    run = read_run(recording)
    began = sorted(calls_of(events(recording)).values())
    at = (began[len(began) // 2] - began[0]) / SECOND
    parts = [sums(limited_to_window(run, window, tmp_path).table) for window in (Window(0, at), Window(at))]
    whole = sums(recording)
    assert whole["outside"] > 0
    for name in (SAMPLES, "outside"):
        assert parts[0][name] + parts[1][name] == whole[name], name
    assert whole[INSTRUCTIONS] > 0
    for name in STEP_METRICS:
        assert name == SAMPLES or parts[0][name] == parts[1][name] == whole[name], name
    found = json_cli("attribute", recording, "--map", bundle, "--from", f"{at:.9f}", "--format", "json")
    assert found["rule"] == "measured"
    refused = run_cli("attribute", recording, "--map", bundle, "--from", "3600")
    assert refused.returncode == 2
    assert "no invocation began from 3600 s; the last one began at " in refused.stderr


def test_samples_alone_begin_by_themselves(tmp_path: Path) -> None:
    """A run of samples alone, as another tool takes them, has windows of these."""
    table = tmp_path / "run.csv"
    table.write_text("kind,kernel,step,start_ns,samples\n" + "".join(f"step,k,1,{at * SECOND},1\n" for at in range(4)))
    assert sums(limited_to_window(read_run(table), Window(1, 3), tmp_path).table)[SAMPLES] == 2


def test_what_is_known_of_all_calls_is_not_of_some(recorded: Recorded, tmp_path: Path) -> None:
    run = read_run(recorded("hand_mlp"))
    assert limited_to_window(run, WHOLE_RUN, tmp_path) is run
    part = limited_to_window(run, Window(0, 3600), tmp_path)
    assert part.header.elapsed_ns is UNKNOWN
    assert part.header.module_sha256 == run.header.module_sha256
    assert part.header.iterations == run.header.iterations


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--from", "3", "--to", "2"),
            "the time window from 3 s to 2 s is empty; it must end after it begins",
        ),
        (("--from", "3600"), "no invocation began from 3600 s; the last one began at "),
        (("--from", "1e300"), "no invocation began from 1e+300 s; the last one began at "),
        (("--from", "1e300", "--to", "1e301"), "no invocation began from 1e+300 s to 1e+301 s; the last one began at "),
    ],
)
def test_windows_with_nothing_in_them(recorded: Recorded, built: Built, options: tuple[str, ...], message: str) -> None:
    done = run_cli("attribute", recorded("hand_mlp"), "--map", built("hand_mlp"), *options)
    assert done.returncode == 2
    assert message in done.stderr
    assert "[usage-invalid]" in done.stderr


def test_events_are_counted_where_no_calls_are_told(tmp_path: Path) -> None:
    table = tmp_path / "run.csv"
    table.write_text("kernel,start_ns,cpu_ns\n" + "".join(f"k,{at * SECOND},1\n" for at in (0, 1, 2, 2)))
    (said,) = limited_to_window(read_run(table), Window(2), tmp_path).header.diagnostics
    assert said.message == "only 2 of 4 events: those that began from 2 s"


def test_rows_without_times_have_no_windows(tmp_path: Path) -> None:
    table = tmp_path / "run.csv"
    table.write_text("kernel,cpu_ns\nk,5\n")
    with pytest.raises(UsageInvalid, match="cannot be limited to a window, because it has no start times"):
        limited_to_window(read_run(table), Window(1), tmp_path)
