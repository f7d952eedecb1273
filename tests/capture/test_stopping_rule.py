"""The stopping rule: on times with known truth, and on the real runtime.

Times are drawn with fixed seeds from distributions whose medians are known; of real runs, what is said is computed anew
from IREE's own profile, by other code.
"""

from __future__ import annotations

import math
import re
import struct
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from msgspec import structs

from tests.capture.test_record import slugs
from tests.conftest import Built
from tests.recording import ALTERNATING, begins_of, events, request, sample
from tests.support import SAMPLES, check_cli, run_cli
from tracemap.capture import execution
from tracemap.capture import stopping_rule as enough
from tracemap.capture.record import RecordedRun, record
from tracemap.capture.stopping_rule import (
    Goal,
    StoppingOutcome,
    StoppingState,
    StopReason,
    default_sample_hz,
    first_steady_call,
    halves_agree,
    median_text,
    still_changing,
)
from tracemap.core.errors import UsageInvalid
from tracemap.core.toolchain import find_tool
from tracemap.core.units import UNKNOWN, Integer, format_ns
from tracemap.hook.compiling import FOLDER, LIBRARY_NAME
from tracemap.runs.ireeprof.profile import GrowingProfile
from tracemap.runs.model import UNKNOWN_INVOCATION, Invocation
from tracemap.runs.statistics import Median, median_of

Times = npt.NDArray[Any]
NEEDS_HOOK = pytest.mark.skipif(not (FOLDER / LIBRARY_NAME).is_file(), reason="the hook's library is not built")

_REASON = "(?:precise enough|enough samples)(?:, but the machine was noisy)?"
_ENOUGH = _REASON + r": median (.*) ± (.*) % within this run, after ([\d,]+) invocations(?: in 10 launches)?"

# ---- the interval


def exact_rank(count: int) -> int:
    """The rank of the lower end, in whole numbers and term by term: 1 - 2 P(B < rank) >= 19/20."""
    below = 0
    for rank in range(count + 1):
        below += math.comb(count, rank)
        if 40 * below > 2**count:
            return rank
    return 0


def test_the_ends_of_the_interval_are_exact() -> None:
    for count in [*range(6, 300), 2_001]:
        rank = exact_rank(count)
        found = median_of(np.arange(1, count + 1))
        assert (found.low, found.high) == (rank, count + 1 - rank)


@pytest.mark.parametrize("count", [6, 20, 101, 1000])
def test_the_interval_holds_the_median_as_often_as_it_says(count: int) -> None:
    """Of a skewed distribution whose median is 1 ms; what is left to chance is four standard errors."""
    dice = np.random.default_rng(count)
    rounds = 2_000
    drawn = np.rint(1e6 * dice.standard_exponential((rounds, count)) / math.log(2)).astype(np.int64)
    held = sum(median_of(times).holds(1_000_000) for times in drawn)
    covered = float(1 - 2 * sum(Fraction(math.comb(count, i), 2**count) for i in range(exact_rank(count))))
    assert covered >= 0.95
    assert abs(held / rounds - covered) <= 4 * math.sqrt(covered * (1 - covered) / rounds)


def test_medians_of_a_few() -> None:
    assert median_of(np.array([], dtype=np.int64)) == Median(0, UNKNOWN, UNKNOWN, UNKNOWN)
    assert median_of(np.array([5, 2])) == Median(2, 3, UNKNOWN, UNKNOWN)
    assert median_of(np.array([9, 1, 5, 7, 3, 11])) == Median(6, 6, 1, 11)
    assert median_of(np.array([5, 2])).error == math.inf
    assert median_of(np.array([0] * 6)).error == 0
    assert Median(6, 100, 99, 103).error == 0.03
    assert not Median(1, 5, UNKNOWN, UNKNOWN).overlaps(Median(6, 5, 1, 9))


# ---- the rule


def stopped(goal: Goal, times: Times) -> tuple[StopReason | None, Times]:
    """Watch times come in, a tenth more at each look; why it was stopped, and the measured times until then."""
    calls = 1
    while True:
        seen = times[:calls]
        state = StoppingState(len(seen), seen, samples=0, bytes=0, spent_ns=int(seen.sum()))
        reason = goal.reached(state)
        if reason is not None or calls >= len(times):
            return reason, seen[state.warmup_at_end(goal) :]
        calls = min(len(times), calls + max(1, calls // 10))


def drawn(seed: int, count: int, spread: float) -> Times:
    """Times around a median of 1 ms, the slow ones further off than the fast ones."""
    return np.rint(1e6 * np.exp(spread * np.random.default_rng(seed).standard_normal(count))).astype(np.int64)


@pytest.mark.few(1)
@pytest.mark.parametrize(("spread", "precision"), [(0.05, 0.02), (0.2, 0.02), (0.2, 0.1)])
def test_where_it_stops_the_median_is_known(spread: float, precision: float) -> None:
    """It stops at about the number of calls that theory asks for, and is as right there as it says."""
    goal = Goal(precision, seconds=1e9, sample_hz=0, warmup=0)
    ends = [stopped(goal, 100 * drawn(seed, 20_000, spread)) for seed in range(300)]
    assert {reason for reason, _ in ends} == {StopReason.PRECISION}
    assert all(median_of(times).error <= precision for _, times in ends)
    # Of a median the standard error is 1 / (2 f sqrt(n)), f the density there: here 1 / (spread sqrt(2 pi)).
    expected = max(20.0, (1.96 * spread * math.sqrt(math.pi / 2) / precision) ** 2)
    assert 0.4 * expected <= np.median([len(times) for _, times in ends]) <= 1.6 * expected + 10
    held = sum(median_of(times).holds(100_000_000) for _, times in ends)
    assert held >= 0.88 * len(ends)  # looking again and again costs a few points of the 95 %
    off = [abs(int(np.median(times)) / 1e8 - 1) for _, times in ends]
    assert sum(each <= precision for each in off) >= 0.92 * len(ends)


@pytest.mark.parametrize(("seconds", "least_s"), [(5.0, 0.5), (0.6, 0.3)])
def test_half_a_second_of_calls_is_the_least(seconds: float, least_s: float) -> None:
    """However alike calls are: a machine that does something else for a tenth of a second is seen as well."""
    reason, measured = stopped(Goal(0.02, seconds, sample_hz=0, warmup=0), np.full(2_000, 1_000_000))
    assert reason is StopReason.PRECISION
    assert least_s <= measured.sum() / 1e9 <= 1.2 * least_s


def test_what_goes_on_changing_is_not_known() -> None:
    """Times that rise all the time, or half of the time: their median's interval is narrow, and means nothing."""
    goal = Goal(0.02, seconds=1.0, sample_hz=0, warmup=UNKNOWN)
    rising = np.rint(drawn(1, 1_000, 0.01) * np.linspace(1, 8, 1_000)).astype(np.int64)
    reason, measured = stopped(goal, rising)
    assert reason is StopReason.SECONDS
    assert not halves_agree(measured, 0.02)
    steps = np.concatenate([drawn(2, 400, 0.1), 2 * drawn(3, 400, 0.1)])
    assert not halves_agree(steps, 0.02)
    assert halves_agree(drawn(4, 800, 0.1), 0.02)
    assert not halves_agree(drawn(4, 1, 0.1), 0.02)


def test_warmup_ends_where_calls_are_steady() -> None:
    """A start-up that fades: what is measured is within a hundredth of what the calls take in the end."""
    for seed in range(50):
        fading = 1 + 4 * np.exp(-np.arange(2_000) / 30)
        times = np.rint(drawn(seed, 2_000, 0.01) * fading).astype(np.int64)
        begin = first_steady_call(times, 0.02)
        assert isinstance(begin, int)
        assert times[begin : begin + 10].mean() < 1.35e6
        assert abs(float(np.median(times[begin:])) / 1e6 - 1) < 0.01
    constant = np.full(100, 5)
    assert first_steady_call(constant, 0.0) == 3
    assert first_steady_call(constant[:22], 0.0) is UNKNOWN


@pytest.mark.parametrize("seconds", [0.5, 2.0, 4.1, 5.0, 20.0, 60.0])
def test_the_usual_rate_gets_enough_samples_where_a_quarter_of_the_time_is_in_kernels(seconds: float) -> None:
    hz = default_sample_hz(seconds)
    assert [factor for factor in range(1, hz + 1) if hz % factor == 0] == [1, hz]
    assert 251 <= hz <= 1_999
    assert hz * seconds / 4 >= 2_000 or hz == 1_999
    assert hz * seconds / 4 < 2_000 * 1.05 or hz == 251


def test_budgets() -> None:
    goal = Goal(0.02, seconds=5.0, sample_hz=251, warmup=2)
    times = np.full(50, 1_000_000)
    state = StoppingState(50, times, samples=1_999, bytes=0, spent_ns=4_999_999_999)
    assert goal.reached(state) is None
    assert goal.reached(_with(state, samples=2_000)) is StopReason.SAMPLES
    assert goal.reached(_with(state, spent_ns=5_000_000_000)) is StopReason.SECONDS
    assert goal.reached(_with(state, bytes=enough.MOST_BYTES)) is StopReason.BYTES
    runs_left_out = Goal(0.02, seconds=5.0, sample_hz=0, warmup=UNKNOWN)
    # One call is measured at least, whatever that takes.
    assert goal.reached(_with(state, calls=2, times_ns=times[:2], spent_ns=10**12)) is None
    assert goal.reached(_with(state, calls=3, times_ns=times[:2], spent_ns=10**12)) is StopReason.SECONDS
    assert _with(state, calls=2, times_ns=times[:1]).warmup_at_end(runs_left_out) == 1
    assert _with(state, calls=1, times_ns=times[:0]).warmup_at_end(runs_left_out) == 0
    assert _with(state, calls=4, times_ns=times[:4]).warmup_at_end(runs_left_out) == 2
    assert _with(state, calls=20, times_ns=times[:20]).warmup_at_end(runs_left_out) == 3


def _with(state: StoppingState, **changes: Any) -> StoppingState:  # noqa: ANN401 - as many types as fields
    names = ("calls", "times_ns", "samples", "bytes", "spent_ns")
    return StoppingState(**{name: changes.get(name, getattr(state, name)) for name in names})


def test_an_error_is_never_said_to_be_less_than_it_is() -> None:
    assert median_text(Median(9, 1_000_000, 980_100, 1_000_000)) == "median 1.00 ms ± 2.0 %"
    assert median_text(Median(9, 1_000_000, 979_999, 1_000_000)) == "median 1.00 ms ± 2.1 %"
    assert median_text(Median(0, UNKNOWN, UNKNOWN, UNKNOWN)) == "median unknown"


# ---- the real runtime


def check_told(recorded: RecordedRun, folder: Path) -> None:
    """What the header says of the calls is what the profile shows, which ends with the last whole call."""
    header = recorded.header
    assert recorded.profile is not None
    begins = begins_of(recorded.profile, folder)
    assert isinstance(header.iterations, int)
    assert isinstance(header.warmup, int)
    assert isinstance(header.elapsed_ns, int)
    assert len(begins) == header.iterations + header.warmup
    rows = events(recorded.path)
    timed = [row for row in rows if row["kind"] != "step"]
    assert {row["invocation"] for row in timed} == set(range(len(begins)))
    assert all(row["warmup"] == (row["invocation"] < header.warmup) for row in timed)
    end, last = begins[header.warmup] + header.elapsed_ns, max(row["start_ns"] + row["duration_ns"] for row in timed)
    assert last <= end
    # The last call ended when the next one began, which was cut off; a program that stood still then had begun none.
    times = np.diff([*begins[header.warmup :], *([end] if last < end else [])]).tolist()
    assert header.invocation == structs.replace(interval(times), ended_by=header.invocation.ended_by)


def interval(times: Sequence[int]) -> Invocation:
    """The median of times with its interval, by other code than the one that is judged."""
    if not times:
        return UNKNOWN_INVOCATION
    ordered, rank = sorted(times), exact_rank(len(times))
    middle = (ordered[(len(times) - 1) // 2] + ordered[len(times) // 2]) // 2
    low, high = (ordered[rank - 1], ordered[-rank]) if rank else (UNKNOWN, UNKNOWN)
    return Invocation(middle, low, high, UNKNOWN)


@pytest.mark.long
@pytest.mark.parametrize("device", ["local-task", "local-sync"])
def test_until_the_median_is_known(device: str, made: Path, tmp_path: Path) -> None:
    """However busy the machine is: within 60 seconds the median is known to within a quarter."""
    asked = request(
        sample(made, "hand_attention"), tmp_path / "run.parquet", device=device, precision=25.0, seconds=60.0,
        keep_profile=True,
    )  # fmt: skip
    recorded = record(asked)
    check_told(recorded, tmp_path)
    header = recorded.header
    invocation = header.invocation
    assert invocation.ended_by == "precision"
    assert isinstance(invocation.median_ns, int)
    assert isinstance(invocation.low_ns, int)
    assert isinstance(invocation.high_ns, int)
    reach = max(invocation.high_ns - invocation.median_ns, invocation.median_ns - invocation.low_ns)
    assert reach <= 0.25 * invocation.median_ns
    told = re.fullmatch(_ENOUGH, recorded.enough)
    assert told is not None
    assert told[1] == format_ns(invocation.median_ns)
    assert 0 <= float(told[2]) - 100 * reach / invocation.median_ns < 0.1001
    assert isinstance(header.iterations, int)
    assert int(told[3].replace(",", "")) == header.iterations >= 20
    assert "budget-spent" not in slugs(recorded)


def stood_still(recorded: RecordedRun) -> bool:
    """Whether no call had returned when the time was spent, which a run says: of short ones, for the system's sake."""
    return recorded.header.invocation.ended_by == "iterations" and "calls-uncountable" in slugs(recorded)


@pytest.mark.long
def test_until_the_time_is_spent(made: Path, tmp_path: Path) -> None:
    """Calls are made until then, unless the system lets the program stand still, which it does not every time."""
    spans_ns = []
    for attempt in range(4):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        module, run = sample(made, "hand_mlp"), folder / "run.parquet"
        recorded = record(request(module, run, precision=1e-6, seconds=0.5, keep_profile=True, warmup=5))
        if stood_still(recorded):
            continue
        check_told(recorded, folder)
        header = recorded.header
        assert (header.invocation.ended_by, header.warmup, recorded.enough) == ("seconds", 5, "")
        (told,) = (item.message for item in header.diagnostics if item.slug == "budget-spent")
        assert told.startswith(f"stopped after 0.5 s (--seconds): median {format_ns(header.invocation.median_ns)} ")
        begins = begins_of(folder / "run.parquet.ireeprof", folder)
        assert isinstance(header.elapsed_ns, int)
        spans_ns.append(begins[5] + header.elapsed_ns - begins[0])
    assert spans_ns, "it stood still each time"
    assert max(spans_ns) >= 450_000_000
    assert min(spans_ns) < 10_000_000_000


def test_what_a_long_warm_up_takes_is_part_of_the_advice() -> None:
    def said(warmup: Integer) -> str:
        goal = Goal(precision=0.02, seconds=1.0, sample_hz=0, warmup=warmup)
        few = Median(5, 2_000_000, UNKNOWN, UNKNOWN)
        return StoppingOutcome(StopReason.SECONDS, goal, 5, few, UNKNOWN, changing=False, bytes=1 << 20).sentence

    assert said(1000).endswith("; --seconds 3 allows 20")
    assert said(UNKNOWN).endswith("; --seconds 1 allows 20")


@pytest.mark.long
def test_a_profile_is_no_larger_than_it_may_be(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enough, "MOST_BYTES", 100_000)
    asked = request(sample(made, "hand_mlp"), tmp_path / "run.parquet", precision=1e-6, seconds=60.0, keep_profile=True)
    recorded = record(asked)
    check_told(recorded, tmp_path)
    assert recorded.header.invocation.ended_by == "bytes"
    (told,) = (item.message for item in recorded.header.diagnostics if item.slug == "budget-spent")
    assert told.startswith("stopped after 97.7 KiB of profile: median ")
    assert told.endswith("; --iterations N has no limit of the profile's size")


@pytest.mark.long
@NEEDS_HOOK
@pytest.mark.parametrize(("hz", "seconds"), [(999, 0.3), (9973, 60.0)])
def test_until_there_are_enough_samples(hz: int, seconds: float, made: Path, tmp_path: Path) -> None:
    """In 0.3 s two workers have no time for so many samples; in 60 s even those of a very busy machine have."""
    for attempt in range(3):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        asked = request(
            sample(made, "hand_attention"), folder / "run.parquet", sample_hz=hz, seconds=seconds, keep_profile=True,
            runtime_flags=("--task_topology_max_group_count=2",),
        )  # fmt: skip
        recorded = record(asked)
        if not stood_still(recorded):
            break
    check_told(recorded, folder)
    rows = [row for row in events(recorded.path) if row["kind"] == "step"]
    inside = sum(row["kernel"] is not None and not row["warmup"] for row in rows)
    spent = [item.message for item in recorded.header.diagnostics if item.slug == "budget-spent"]
    if seconds > 1:
        assert recorded.header.invocation.ended_by == "samples"
        assert inside >= 2_000
        assert re.match(rf"{_REASON}: {inside:,} samples in kernels, median ", recorded.enough)
        assert spent == []
    else:
        assert recorded.header.invocation.ended_by == "seconds"
        assert spent[0].startswith(
            f"stopped after {seconds:g} s (--seconds): {inside:,} of 2,000 samples in kernels, median "
        )


@pytest.mark.long
@NEEDS_HOOK
def test_what_is_counted_is_as_many_calls_as_were_timed(made: Path, tmp_path: Path) -> None:
    asked = request(
        sample(made, "hand_mlp"), tmp_path / "run.parquet", seconds=0.3, serial=True, counters=("page-faults",)
    )
    recorded = record(asked)
    dispatches = [row for row in events(recorded.path) if row["kind"] == "dispatch"]
    assert isinstance(recorded.header.iterations, int)
    assert isinstance(recorded.header.warmup, int)
    assert len(dispatches) == 4 * (recorded.header.iterations + recorded.header.warmup)
    assert "counters-unmatched" not in slugs(recorded)
    assert all(row["page-faults"] is not None for row in dispatches)


@pytest.mark.long
def test_buffers_of_the_call_that_was_cut_off_are_not_told_of(made: Path, tmp_path: Path) -> None:
    """Where buffers are made for each call, there are as many as calls."""
    recorded = record(request(sample(made, "hand_dynamic"), tmp_path / "run.csv", dim=16, seconds=0.5, precision=1e-6))
    header = recorded.header
    assert isinstance(header.iterations, int)
    assert isinstance(header.warmup, int)
    assert len(header.buffers) == header.iterations + header.warmup
    used = {row["command_buffer_id"] for row in events(recorded.path) if row["kind"] == "dispatch"}
    assert used == {buffer.id for buffer in header.buffers}


def test_a_disturbed_run_is_not_called_enough() -> None:
    goal = Goal(0.02, seconds=5.0, sample_hz=0, warmup=UNKNOWN)
    calm = StoppingOutcome(
        StopReason.PRECISION, goal, 412, Median(412, 311_000, 309_000, 313_000), UNKNOWN, changing=False, bytes=9
    )
    said = "median 311 µs ± 0.7 % within this run, after 412 invocations"
    assert calm.sentence == f"precise enough: {said}"
    assert replace(calm, noisy=True).sentence == f"precise enough, but the machine was noisy: {said}"


def test_what_cannot_be_compared_is_not_said_to_change() -> None:
    """One call, or a few, tell nothing; calls that grow do."""
    for count in (0, 1, 5, 11):
        assert not still_changing(np.arange(count) * 1_000_000, 0, 0.02)
    assert still_changing(np.arange(12) * 1_000_000, 0, 0.02)
    assert still_changing(np.arange(23) * 1_000_000, 20, 0.02)
    assert not still_changing(np.full(40, 1_000_000), 3, 0.02)


LOOP = ("64x64xf32=0.01", "64x64xf32=0.01", "1500")


@pytest.mark.long
def test_calls_that_overfill_the_profiler_are_made_again(made: Path, tmp_path: Path) -> None:
    """Flushed on a timer the profile does not show calls as they return: as many are made as the first time."""
    recorded = record(
        request(sample(made, "hand_loop"), tmp_path / "run.csv", inputs=LOOP, seconds=0.3, keep_profile=True)
    )
    assert "--device_profiling_flush_interval_ms=2" in recorded.header.command
    header = recorded.header
    assert isinstance(header.iterations, int)
    assert isinstance(header.warmup, int)
    assert f"--benchmark_min_time={header.iterations + header.warmup}x" in header.command
    assert header.invocation.ended_by == "iterations"
    assert recorded.profile is not None
    done = subprocess.run(
        [str(find_tool("iree-profile")), "summary", recorded.profile], check=True, capture_output=True
    )
    assert b"host_execution_events" in done.stdout


def test_flushes_on_a_timer_leave_nothing_to_stop_by(made: Path, tmp_path: Path) -> None:
    flags = ("--device_profiling_flush_interval_ms=2",)
    recorded = record(request(sample(made, "hand_mlp"), tmp_path / "run.csv", runtime_flags=flags))
    assert recorded.header.iterations == 20
    assert "calls-uncountable" in slugs(recorded)


@pytest.mark.long
def test_calls_that_differ_are_not_said_not_to_return(tmp_path: Path) -> None:
    """Every second one has a product: the profile shows each call, but not which submissions are of one."""
    (tmp_path / "model.mlir").write_text(ALTERNATING)
    check_cli("build", tmp_path / "model.mlir", "-o", tmp_path / "model.tracemap")
    record_it = ("record", tmp_path / "model.tracemap", "--seconds", "0.5", "--force", "-o", tmp_path / "run.csv")
    done = run_cli(*record_it)
    for _ in range(3):  # of a program that stood still for so long, nothing is to be seen
        if "does not show when a call returns" not in done.stderr:
            break
        done = run_cli(*record_it)
    assert done.returncode == 0
    assert "warning: calls submit different work, so the calls of a stopped program cannot be " in done.stderr
    assert "; so exactly 20 calls were measured, however noisy. Use --iterations N for more [calls-uncou" in done.stderr


@pytest.mark.long
def test_a_call_that_takes_longer_than_there_is_time(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing had returned when the time was spent: one call is made, to its end."""
    monkeypatch.setattr(execution, "WATCH_S", 0.01)
    inputs = (*LOOP[:2], "40000")
    recorded = record(
        request(sample(made, "hand_loop"), tmp_path / "run.csv", inputs=inputs, seconds=0.05, serial=True)
    )
    header = recorded.header
    assert (header.iterations, header.warmup) == (1, 0)
    assert "calls-uncountable" in slugs(recorded)
    assert "--benchmark_min_time=1x" in header.command
    assert header.invocation == structs.replace(UNKNOWN_INVOCATION, ended_by="iterations")


def test_a_call_is_whole_when_what_executed_is_written_too(made: Path, tmp_path: Path) -> None:
    """The program writes through a buffer: the file may end anywhere, for as long as a call takes."""
    bundle = sample(made, "hand_mlp")
    recorded = record(request(bundle, tmp_path / "run.csv", iterations=4, warmup=1, keep_profile=True))
    assert recorded.profile is not None
    whole, growing = recorded.profile.read_bytes(), tmp_path / "growing.ireeprof"
    profile, seen = GrowingProfile(growing), set()
    for end in range(0, len(whole) + 64, 64):
        growing.write_bytes(whole[:end])
        profile.read_on()
        executed = whole[: profile.bytes].count(b"host-execution-events")
        assert profile.whole_calls == executed
        seen.add((len(profile.begins_ns), executed))
    assert seen == {(0, 0), *((calls, calls - 1) for calls in range(1, 6)), *((calls, calls) for calls in range(1, 6))}


def _record(kind: str, payload: bytes = b"") -> bytes:
    """A record of a profile, of which only the type of its content and that content matter."""
    content = f"application/vnd.iree.hal.profile.{kind}".encode()
    header = struct.pack("<Q48x3I", 0, 68, len(content), 0)
    return struct.pack("<Q", len(header) + len(content) + len(payload)) + header[8:] + content + payload


@pytest.mark.parametrize("clocks", [(), ("clock-correlations",)])
def test_a_device_writes_dispatches_of_a_call_before_its_submissions(clocks: tuple[str, ...], tmp_path: Path) -> None:
    """Those of a call behind the last are not of the last: the program may be ended between two records."""
    growing = tmp_path / "growing.ireeprof"
    flush = [*clocks, "dispatch-events", "queue-events", "queue-device-events"]
    written, ends = struct.pack("<4sH18x", b"IRPF", 1) + _record("session"), []
    profile = GrowingProfile(growing)
    for call in range(3):
        ends.append(len(written))
        for kind in ("command-buffers", *flush):
            written += _record(kind, struct.pack("<24xq", 100 + call) if kind == "queue-events" else b"")
            growing.write_bytes(written)
            profile.read_on()
            assert profile.whole_calls == call + (kind == "queue-device-events")
    assert profile.begins_ns == [100, 101, 102]
    assert profile.places[1:] == ends[1:]
    growing.write_bytes(written + _record("clock-correlations") + _record("dispatch-events"))
    profile.read_on()
    assert profile.end_of_calls == len(written) < profile.end_of_events


def test_a_number_of_calls_leaves_nothing_to_decide(made: Path, tmp_path: Path) -> None:
    for more in ({"seconds": 1.0}, {"precision": 5.0}):
        with pytest.raises(UsageInvalid, match="drop --precision and --seconds"):
            record(request(sample(made, "hand_mlp"), tmp_path / "run.csv", iterations=3, **more))
    with pytest.raises(UsageInvalid, match="--cache-sim times a fixed number of calls"):
        record(request(sample(made, "hand_mlp"), tmp_path / "run.csv", cache_sim=True, seconds=1.0))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_on_the_command_line(built: Built, tmp_path: Path) -> None:
    flags = SAMPLES / "flags" / "hand_mlp.flags"
    command = ("record", built("hand_mlp"), "--flagfile", flags, "--precision", "30", "--seconds", "60", "-o", "r.csv")
    done = run_cli(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(rf"^{_ENOUGH}$", done.stderr, re.MULTILINE)
    for wrong in (("--precision", "0"), ("--precision", "101"), ("--seconds", "0")):
        refused = run_cli(*command, "--force", *wrong, cwd=tmp_path)
        assert refused.returncode == 2
        assert wrong[0] in refused.stderr
