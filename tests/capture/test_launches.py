"""Several launches of a program make one run: rows, numbers, notes, and how many there are."""

from __future__ import annotations

import re
import shutil
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from tests.conftest import Built
from tests.recording import begins_of, events, request, sample
from tests.support import SAMPLES, check_cli, json_cli
from tracemap.capture import execution, stopping_rule
from tracemap.capture.benchmark import Ending, run_benchmark
from tracemap.capture.launches import _overall_reason
from tracemap.capture.noise import combined_noise
from tracemap.capture.record import RecordedRun, record
from tracemap.capture.stopping_rule import (
    ENOUGH_BYTES,
    ENOUGH_CALLS,
    ENOUGH_SAMPLES,
    MOST_BYTES,
    Goal,
    StoppingState,
    StopReason,
)
from tracemap.core.errors import ProgramFailed, UsageInvalid
from tracemap.core.units import UNKNOWN
from tracemap.runs.ireeprof import records
from tracemap.runs.ireeprof.profile import Profile, join_profiles
from tracemap.runs.model import UNKNOWN_NOISE
from tracemap.runs.readers.iree_profile import load_profile
from tracemap.runs.runfile import read_run
from tracemap.runs.sql import open_database
from tracemap.runs.statistics import Median


@pytest.fixture
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Copies of the profiles of all launches, as they are read: without the call that was cut short."""
    kept: list[Path] = []

    def load(path: Path, *given: Any, **named: Any) -> Profile:  # noqa: ANN401 - as load_profile has them
        kept.append(Path(shutil.copy(path, tmp_path / f"kept-{path.name}")))
        return load_profile(path, *given, **named)

    monkeypatch.setattr(execution, "load_profile", load)
    return kept


def check_whole(recorded: RecordedRun, profiles: Sequence[Path], folder: Path) -> None:
    """Rows and header tell what the programs' own profiles do, one behind the other."""
    header = recorded.header
    rows = events(recorded.path)
    assert header.launches == len(profiles)
    assert header == read_run(recorded.path).header
    submitted: dict[int, int] = {}
    warmup: dict[int, set[bool]] = defaultdict(set)
    for row in rows:
        warmup[row["invocation"]].add(row["warmup"])
        if row["submitted_ns"] is not None:
            earlier = submitted.get(row["invocation"], row["submitted_ns"])
            submitted[row["invocation"]] = min(earlier, row["submitted_ns"])
    marked = [each.pop() for _, each in sorted(warmup.items()) if len(each) == 1]
    assert len(marked) == len(submitted) == max(submitted) + 1
    begins = [submitted[number] for number in sorted(submitted)]
    for told in sorted(begins_of(profile, folder) for profile in profiles):  # read in any order
        own, begins = begins[: len(told)], begins[len(told) :]
        first, marked = marked[: len(told)], marked[len(told) :]
        assert own == told
        assert first == sorted(first, reverse=True)
        assert 3 <= sum(first) < len(told)
    assert begins == []
    check_numbers(recorded)


def check_numbers(recorded: RecordedRun) -> None:
    header, rows = recorded.header, events(recorded.path)
    own = {row["invocation"] for row in rows if not row["warmup"]}
    assert header.iterations == len(own)
    assert header.warmup == len({row["invocation"] for row in rows}) - len(own)
    invocation_of: dict[int, set[int]] = defaultdict(set)
    calls: dict[tuple[str, int], list[int]] = defaultdict(list)
    program = {buffer.id: buffer.program for buffer in header.buffers}
    assert len(program) == len(header.buffers)
    assert sorted(program) == [buffer.id for buffer in header.buffers]
    for row in rows:
        invocation_of[row["submission_id"]].add(row["invocation"])
        if row["kind"] == "dispatch":
            command = header.programs[program[row["command_buffer_id"]]][row["command_index"]]
            assert command.kernel == row["kernel"]
            calls[row["kernel"], row["command_index"]].append(row["call"])
    assert {len(each) for each in invocation_of.values()} == {1}
    assert all(each == list(range(len(each))) for each in calls.values())
    assert isinstance(header.elapsed_ns, int)
    assert sum(part for part in header.elapsed.values() if isinstance(part, int)) == header.elapsed_ns


@pytest.mark.long
@pytest.mark.parametrize("model", ["hand_attention", "hand_dynamic"])
def test_launches_are_one_run(model: str, made: Path, tmp_path: Path, profiles: list[Path]) -> None:
    """With buffers that each process makes once, and with some that are made for each call."""
    more = {"dim": 16} if model == "hand_dynamic" else {}
    run = tmp_path / "run.parquet"
    recorded = record(request(sample(made, model), run, seconds=60.0, precision=50.0, launches=3, **more))
    check_whole(recorded, profiles, tmp_path)
    header = recorded.header
    assert header.invocation.ended_by == "precision"
    assert re.search(r" after [\d,]+ invocations in 3 launches$", recorded.enough)
    assert isinstance(header.iterations, int)
    assert isinstance(header.warmup, int)
    assert len(header.buffers) == (header.iterations + header.warmup if model == "hand_dynamic" else 1)
    assert len(header.programs) == 1


@pytest.mark.long
def test_costs_of_all_launches_are_attributed(built: Built, tmp_path: Path) -> None:
    """As many calls of each site as invocations, and all that was measured, whichever process it was in."""
    bundle, run = built("hand_attention"), tmp_path / "run.parquet"
    flags = SAMPLES / "flags" / "hand_attention.flags"
    enough = ("--seconds", "60", "--precision", "50", "--launches", "2")
    check_cli("record", bundle, *enough, "--flagfile", flags, "-o", run)
    result = json_cli("attribute", run, "--map", bundle, "--format", "json")
    header = read_run(run).header
    assert header.launches == 2
    assert {site["calls"] for site in result["sites"]} == {header.iterations}
    rows = [row for row in events(run) if row["kind"] == "dispatch" and not row["warmup"]]
    attributed = sum(op["metrics"]["cpu_ns"]["attributed"] for op in result["ops"])
    unattributed = sum(each["metrics"].get("cpu_ns", 0) for each in result["unattributed"])
    assert attributed + unattributed == sum(row["cpu_ns"] for row in rows)


@pytest.mark.long
def test_buffers_of_other_commands_have_numbers_of_their_own(made: Path, tmp_path: Path) -> None:
    """The first process's buffer keeps its number; another program's, made under the same number, gets the next."""
    runs = [
        record(request(sample(made, model), tmp_path / f"run-{number}.csv", iterations=3, keep_profile=True))
        for number, model in enumerate(("hand_mlp", "hand_attention", "hand_mlp"))
    ]
    with open_database() as connection:
        paths = [each.profile for each in runs if each.profile is not None]
        joined = join_profiles(
            [load_profile(path, connection, f"events_{number}") for number, path in enumerate(paths)]
        )
        kernels = connection.execute(
            f"SELECT DISTINCT command_buffer_id, kernel FROM {joined.events.name} WHERE kind = 'dispatch'"
        ).fetchall()
        assert joined.events.count == sum(each.events for each in runs)
    mlp, attention = (runs[number].header for number in (0, 1))
    assert joined.programs == (*mlp.programs, *attention.programs)
    assert joined.buffers[0] == mlp.buffers[0]
    assert [buffer.program for buffer in joined.buffers] == [0, 1]
    of_buffer = {buffer.id: joined.programs[buffer.program] for buffer in joined.buffers}
    assert all(kernel in {command.kernel for command in of_buffer[number]} for number, kernel in kernels)


# ---- when there are several


def state(*, loading_ms: float = 0, call_ms: float = 1, calls: int = 200, size: int = 0) -> StoppingState:
    times = np.full(calls, round(1e6 * call_ms))
    return StoppingState(
        calls, times, samples=0, bytes=size, spent_ns=int(times.sum()), loading_ns=round(1e6 * loading_ms)
    )


def test_what_is_spent_is_shared_where_starting_is_cheap() -> None:
    goal = Goal(0.02, seconds=5.0, sample_hz=0, warmup=UNKNOWN, launches=5)
    assert goal.affordable_launches(state()) == 5
    assert goal.affordable_launches(state(loading_ms=500)) == 5
    assert goal.affordable_launches(state(loading_ms=501)) == 4
    assert goal.affordable_launches(state(loading_ms=1250)) == 2
    assert goal.affordable_launches(state(loading_ms=1251)) == 1
    assert goal.affordable_launches(state(call_ms=83, calls=4)) == 5  # three are warm-up, in a quarter of a second
    assert goal.affordable_launches(state(call_ms=84, calls=4)) == 4
    assert goal.affordable_launches(state(call_ms=209, calls=4)) == 1
    assert goal.affordable_launches(state(call_ms=626, calls=2)) == 1  # so far
    assert replace(goal, warmup=10).affordable_launches(state(call_ms=26)) == 4
    assert replace(goal, launches=1).affordable_launches(state()) == 1
    # Three calls of warm-up take a quarter of a launch's bytes, or more.
    assert goal.affordable_launches(state(calls=12, size=MOST_BYTES // 5)) == 5
    assert goal.affordable_launches(state(calls=11, size=MOST_BYTES // 5)) == 4


def test_half_of_its_share_is_the_least_that_a_launch_measures() -> None:
    goal = Goal(0.02, seconds=1.0, sample_hz=0, warmup=0, launches=5)
    assert goal.reached(state(calls=99)) is None
    assert goal.reached(state(calls=100)) is StopReason.PRECISION
    assert goal.reached(state(calls=499, loading_ms=251)) is None  # alone, it has all of the second
    assert goal.reached(state(calls=500, loading_ms=251)) is StopReason.PRECISION


def test_enough_calls_of_a_launch_are_read() -> None:
    """Its share of the bytes, or 400 measured calls; all calls of a single launch, or of one with few calls."""
    goal = Goal(0.02, seconds=5.0, sample_hz=0, warmup=3, launches=4, reads_all=False)
    share = ENOUGH_BYTES // 4
    assert goal.calls_to_read(state(calls=5_000, size=share)) == 5_000
    assert goal.calls_to_read(state(calls=5_000, size=2 * share)) == 2_500
    assert goal.calls_to_read(state(calls=5_000, size=50 * share)) == 3 + ENOUGH_CALLS
    assert goal.calls_to_read(state(calls=200, size=50 * share)) == 200
    assert goal.calls_to_read(state(calls=5_000)) == 5_000
    assert replace(goal, recorded=ENOUGH_BYTES).calls_to_read(state(calls=5_000, size=1)) == 3 + ENOUGH_CALLS
    assert replace(goal, reads_all=True).calls_to_read(state(calls=5_000, size=50 * share)) == 5_000
    assert goal.bytes_to_read(state(calls=5_000, size=2 * share)) == share
    assert goal.bytes_to_read(state(calls=0, size=7)) == 7


def test_only_what_is_read_of_a_profile_uses_up_its_bytes() -> None:
    rising = replace(state(calls=5_000), times_ns=np.linspace(1e6, 9e6, 5_000).astype(np.int64), spent_ns=0)
    goal = Goal(0.02, seconds=5.0, sample_hz=0, warmup=UNKNOWN, launches=4, reads_all=False)
    assert replace(goal, reads_all=True).reached(replace(rising, bytes=MOST_BYTES // 4)) is StopReason.BYTES
    assert goal.reached(replace(rising, bytes=MOST_BYTES - 1)) is None
    assert goal.reached(replace(rising, bytes=MOST_BYTES)) is StopReason.BYTES  # of one launch, on the disk
    few = replace(rising, calls=403, times_ns=rising.times_ns[:403])
    assert goal.reached(replace(few, bytes=MOST_BYTES // 4 - 1)) is None
    assert goal.reached(replace(few, bytes=MOST_BYTES // 4)) is StopReason.BYTES


def test_what_disturbed_launches_is_told_of_those_that_were_looked_at() -> None:
    seen = structs.replace(UNKNOWN_NOISE, observed_ns=5, running_ns=2, waiting_ns=3, load_percent=7)
    assert combined_noise([UNKNOWN_NOISE, UNKNOWN_NOISE]) == UNKNOWN_NOISE
    assert combined_noise([UNKNOWN_NOISE, seen]) == seen
    assert combined_noise([seen, UNKNOWN_NOISE, seen]) == structs.replace(
        seen, observed_ns=10, running_ns=4, waiting_ns=6
    )


def test_each_launch_has_its_share_of_time_and_of_the_profile() -> None:
    rising = replace(state(), times_ns=np.linspace(1e6, 9e6, 200).astype(np.int64))
    goal = Goal(0.02, seconds=5.0, sample_hz=0, warmup=UNKNOWN, launches=5)
    assert goal.reached(replace(rising, spent_ns=999_999_999)) is None
    assert goal.reached(replace(rising, spent_ns=1_000_000_000)) is StopReason.SECONDS
    assert goal.reached(replace(rising, spent_ns=1_000_000_000, loading_ns=10**9)) is None
    assert goal.reached(replace(rising, spent_ns=0, bytes=MOST_BYTES // 5)) is None
    assert goal.reached(replace(rising, spent_ns=0, bytes=MOST_BYTES // 5 + 1)) is StopReason.BYTES
    last = replace(goal, launches=1, recorded=MOST_BYTES - 1000)
    assert last.reached(replace(rising, spent_ns=0, bytes=999)) is None
    assert last.reached(replace(rising, spent_ns=0, bytes=1000)) is StopReason.BYTES


@pytest.mark.long
@pytest.mark.parametrize(
    "more", [{"launches": 1}, {"iterations": 20}, {"keep_profile": True}, {"counters": ("page-faults",)}]
)
def test_one_launch_where_more_than_times_is_asked_for(more: dict[str, object], made: Path, tmp_path: Path) -> None:
    seconds = {} if "iterations" in more else {"seconds": 60.0, "precision": 50.0}
    recorded = record(request(sample(made, "hand_mlp"), tmp_path / "run.csv", **seconds, **more))
    assert recorded.header.launches == 1
    assert "launch" not in recorded.enough


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("--iterations", {"iterations": 20}),
        ("--sample", {"sample_hz": 999}),
        ("--counters", {"counters": ("page-faults",)}),
        ("--cache-sim", {"cache_sim": True}),
        ("--keep-profile", {"keep_profile": True}),
    ],
)
def test_launches_are_refused_beside_what_is_of_one(
    name: str, more: dict[str, object], made: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageInvalid, match=f"^{name} works with one launch only: drop --launches"):
        record(request(sample(made, "hand_mlp"), tmp_path / "run.csv", launches=3, **more))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_buffers_that_no_profile_lists_are_told_apart(made: Path, tmp_path: Path) -> None:
    """As on local-sync: those of single calls, as no call of another launch has them."""
    asked = request(
        sample(made, "hand_dynamic"), tmp_path / "run.parquet", dim=16, device="local-sync", seconds=60.0,
        precision=50.0, launches=3,
    )  # fmt: skip
    recorded = record(asked)
    assert (recorded.header.launches, recorded.header.buffers) == (3, ())
    invocations: dict[int, set[int]] = defaultdict(set)
    for row in events(recorded.path):
        if row["command_buffer_id"] is not None:
            invocations[row["command_buffer_id"]].add(row["invocation"])
    assert {len(each) for each in invocations.values()} == {1}


@pytest.mark.long
def test_a_launch_that_lost_records_is_made_again_for_all_of_the_time(made: Path, tmp_path: Path) -> None:
    """Flushed on a timer it shows no calls as they return: no other is launched, and it makes as many as all would."""
    loop = ("64x64xf32=0.01", "64x64xf32=0.01", "700")
    calls = []
    for launches in (5, 1):
        run = tmp_path / f"run-{launches}.csv"
        recorded = record(request(sample(made, "hand_loop"), run, inputs=loop, seconds=3.0, launches=launches))
        assert "--device_profiling_flush_interval_ms=2" in recorded.header.command
        assert recorded.header.launches == 1
        assert isinstance(recorded.header.iterations, int)
        (told,) = (each.message for each in recorded.header.diagnostics if each.slug == "calls-uncountable")
        assert told.startswith("records were lost when the profile was written after each call; so ")
        calls.append(recorded.header.iterations)
    assert calls[0] > 0.4 * calls[1]


def test_the_median_is_of_more_calls_than_are_read(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run has the first calls of each launch, whole, and the median of all."""
    monkeypatch.setattr(stopping_rule, "ENOUGH_BYTES", 0)
    monkeypatch.setattr(stopping_rule, "ENOUGH_CALLS", 25)
    asked = request(
        sample(made, "hand_mlp"), tmp_path / "run.parquet", seconds=8.0, precision=50.0, launches=2, warmup=5
    )
    recorded = record(asked)
    header = recorded.header
    check_numbers(recorded)
    assert (header.launches, header.iterations, header.warmup) == (2, 50, 10)
    (told,) = re.findall(r" after ([\d,]+) invocations in 2 launches", recorded.enough)
    calls = int(told.replace(",", ""))
    assert calls > 500
    assert isinstance(header.elapsed_ns, int)
    assert isinstance(header.invocation.median_ns, int)
    assert calls * header.invocation.median_ns > 4 * header.elapsed_ns


@pytest.mark.long
@pytest.mark.parametrize("spoiled", ["unreadable", "lost"])
def test_a_later_launch_whose_profile_is_no_good_is_left_out(
    spoiled: str, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launches after it are kept."""

    def load(path: Path, *given: Any, **named: Any) -> Profile:  # noqa: ANN401 - as load_profile has them
        if path.name == "launch-2.ireeprof" and spoiled == "unreadable":
            path.write_bytes(b"IRPF" + bytes(60))
        profile = load_profile(path, *given, **named)
        return replace(profile, lost_records=1) if path.name == "launch-2.ireeprof" else profile

    monkeypatch.setattr(execution, "load_profile", load)
    asked = request(sample(made, "hand_mlp"), tmp_path / "run.parquet", seconds=60.0, precision=50.0, launches=3)
    recorded = record(asked)
    assert recorded.header.launches == 2
    check_numbers(recorded)
    (told,) = (each.message for each in recorded.header.diagnostics if each.slug == "launch-failed")
    reason = "the runtime lost records of it, but none of the first launch" if spoiled == "lost" else ""
    assert told.startswith(f"launch 2 is left out: {reason}")


@pytest.mark.long
def test_launches_join_whose_profiles_differ_in_size(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of large ones are kept elsewhere than those that were there before."""
    loaded = 0

    def load(*given: Any, **named: Any) -> Profile:  # noqa: ANN401 - as load_profile has them
        nonlocal loaded
        loaded += 1
        if loaded == 2:
            monkeypatch.setattr(records, "_MAX_IN_MEMORY", 0)
        return load_profile(*given, **named)

    monkeypatch.setattr(execution, "load_profile", load)
    asked = request(sample(made, "hand_mlp"), tmp_path / "run.parquet", seconds=60.0, precision=50.0, launches=3)
    recorded = record(asked)
    assert recorded.header.launches == loaded == 3
    check_numbers(recorded)


def test_samples_are_enough_that_turn_out_to_be() -> None:
    """The program was ended as the time was spent; in the end there were more than it looked like."""
    goal, median = Goal(0.02, seconds=2.0, sample_hz=999, warmup=UNKNOWN), Median(9, 100, 90, 120)
    assert _overall_reason([StopReason.SECONDS], goal, median, ENOUGH_SAMPLES) is StopReason.SAMPLES
    assert _overall_reason([StopReason.SECONDS], goal, median, ENOUGH_SAMPLES - 1) is StopReason.SECONDS
    assert _overall_reason([StopReason.SECONDS], goal, median, UNKNOWN) is StopReason.SECONDS


# ---- what fails


@pytest.mark.long
def test_a_later_launch_that_fails_is_left_out(made: Path, tmp_path: Path) -> None:
    """As of a module that is built anew while it is recorded."""
    module = Path(shutil.copy(sample(made, "hand_mlp"), tmp_path))

    def progress(text: str) -> None:
        if text.endswith(", launch 3"):
            module.unlink()

    recorded = record(request(module, tmp_path / "run.parquet", seconds=60.0, precision=50.0), progress)
    assert recorded.header.launches == 2
    check_numbers(recorded)
    (told,) = (each.message for each in recorded.header.diagnostics if each.slug == "launch-failed")
    assert told.startswith("launch 3 is left out, and no launch followed it: iree-benchmark-module did not finish mlp")


@pytest.mark.long
def test_a_budget_that_was_not_spent_is_not_said_to_be(made: Path, tmp_path: Path) -> None:
    module = tmp_path / sample(made, "hand_mlp").name

    def progress(text: str) -> None:
        if text.endswith(", launch 2"):
            module.unlink()

    for attempt in range(3):  # of a program that stood still while it loaded one launch takes all of the time
        shutil.copy(sample(made, "hand_mlp"), module)
        output = tmp_path / f"{attempt}.parquet"
        recorded = record(request(module, output, seconds=8.0, precision=1e-6), progress)
        if not module.exists():
            break
    assert (recorded.header.launches, recorded.header.invocation.ended_by) == (1, "launch-failed")
    assert "budget-spent" not in {each.slug for each in recorded.header.diagnostics}
    assert recorded.enough == ""


@pytest.mark.long
@pytest.mark.parametrize("recorded_before", [True, False])
def test_an_interrupted_launch_ends_the_recording(
    recorded_before: bool, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was launched before is written, as what was recorded of one launch is; even while it was still loading."""
    launches = 0

    def run(*given: Any) -> Ending:  # noqa: ANN401 - as run_benchmark has them
        nonlocal launches
        launches += 1
        if launches == 2 and not recorded_before:
            return Ending(0, UNKNOWN, "", interrupted=True)
        ending = run_benchmark(*given)
        return replace(ending, interrupted=True) if launches == 2 else ending

    monkeypatch.setattr(execution, "run_benchmark", run)
    output = tmp_path / "run.parquet"
    with pytest.raises(ProgramFailed, match=r"was interrupted.*; the events recorded until then are in "):
        record(request(sample(made, "hand_mlp"), output, seconds=60.0, precision=50.0))
    header = read_run(output).header
    assert launches == 2
    assert header.launches == 1
    assert "program-killed" in {each.slug for each in header.diagnostics}
