"""Recording with the stock runtime: iterations, warm-up, what survives a failure, and messages."""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.recording import ALTERNATING, asynchronous_module, compiled, entry_points, events, request, sample
from tests.support import ROOT, SAMPLES, has_device
from tracemap.capture import counting, execution
from tracemap.capture.benchmark import TIMED_FLUSH_FLAG, Ending, run_benchmark
from tracemap.capture.machine import PeakMeter, measure_peaks
from tracemap.capture.record import RecordedRun, record
from tracemap.core.codec import pretty_json
from tracemap.core.errors import (
    FunctionUnknown,
    InputInvalid,
    ProgramFailed,
    TargetExists,
    TargetUnwritable,
    TracemapError,
    UsageInvalid,
)
from tracemap.core.functions import Argument, Function
from tracemap.core.units import UNKNOWN
from tracemap.hook.compiling import FOLDER, LIBRARY_NAME
from tracemap.runs.model import UNKNOWN_PARTS, Clock
from tracemap.runs.runfile import read_run

LOOP = ("64x64xf32=0.01", "64x64xf32=0.01")


def slugs(recorded: RecordedRun) -> list[str]:
    """What is said of a run; what else the machine does is no matter of these tests."""
    return [item.slug for item in recorded.header.diagnostics if item.slug != "noisy"]


def refused(made: Path, tmp_path: Path, model: str, **options: object) -> str:
    """What `record` says when it refuses; nothing must be left.

    Raises:
        AssertionError: it did not refuse.
    """
    with pytest.raises(TracemapError) as caught:
        record(request(sample(made, model), tmp_path / "run.csv", **options))
    assert list(tmp_path.iterdir()) == []
    return f"{type(caught.value).__name__}: {caught.value}"


@pytest.mark.few(1)
@pytest.mark.parametrize("serial", [False, True])
def test_every_call_and_its_warmup(serial: bool, made: Path, tmp_path: Path) -> None:
    asked = request(sample(made, "hand_mlp"), tmp_path / "run.parquet", serial=serial, iterations=7, warmup=2)
    recorded = record(asked)
    rows = events(recorded.path)
    dispatches = [row for row in rows if row["kind"] == "dispatch"]
    calls = Counter((row["command_buffer_id"], row["command_index"]) for row in dispatches)
    assert len(calls) == 4
    assert set(calls.values()) == {9}
    assert {row["invocation"] for row in rows} == set(range(9))
    assert all(row["warmup"] == (row["invocation"] < 2) for row in rows)
    assert all(row["call"] == row["invocation"] for row in dispatches)
    assert [row["workgroups_x"] for row in dispatches[:4]] == [
        command.workgroups[0] for command in recorded.header.programs[0] if command.kind == "dispatch"
    ]
    assert all(row["cpu_ns"] is None for row in rows if row["kind"] != "dispatch")
    assert all(row["cpu_ns"] > 0 and row["duration_ns"] > 0 for row in dispatches)
    header = recorded.header
    assert (header.iterations, header.warmup, header.function, header.device) == (7, 2, "mlp", "local-task")
    assert header.clock is Clock.HOST
    assert header.workers == 1 if serial else isinstance(header.workers, int)
    assert read_run(recorded.path).header == header
    assert [path.name for path in tmp_path.iterdir()] == ["run.parquet"]


@pytest.mark.long
def test_variables_of_the_benchmark_library_make_no_other_calls(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, (name, value) in enumerate(
        [("MIN_WARMUP_TIME", "0.001"), ("DRY_RUN", "true"), ("FILTER", "nothing"), ("REPORT_AGGREGATES_ONLY", "true")]
    ):
        with monkeypatch.context() as patch:
            patch.setenv(f"BENCHMARK_{name}", value)
            asked = request(sample(made, "hand_mlp"), tmp_path / f"{number}.csv", iterations=3, warmup=1)
            recorded = record(asked)
        dispatches = [row for row in events(recorded.path) if row["kind"] == "dispatch"]
        assert Counter(row["invocation"] for row in dispatches) == dict.fromkeys(range(4), 4)
        assert slugs(recorded) in ([], ["noise-unknown"])


@pytest.mark.long
def test_elapsed_covers_the_measured_calls_only(made: Path, tmp_path: Path) -> None:
    """One call after thousands: the warm-up takes far longer, and on the clock of the rows the end is before now."""
    recorded = record(request(sample(made, "hand_mlp"), tmp_path / "run.csv", iterations=1, warmup=3000))
    now = time.monotonic_ns()
    rows = events(recorded.path)
    begin = min(row["start_ns"] for row in rows if not row["warmup"])
    end = max(row["start_ns"] + row["duration_ns"] for row in rows)
    last_warmup_call = min(row["start_ns"] for row in rows if row["invocation"] == 2999)
    elapsed = recorded.header.elapsed_ns
    assert isinstance(elapsed, int)
    assert end - begin <= elapsed < now - last_warmup_call
    assert elapsed < begin - min(row["start_ns"] for row in rows)


def test_the_header_is_as_its_schema_says(made: Path, tmp_path: Path) -> None:
    recorded = record(request(sample(made, "hand_mlp"), tmp_path / "run.csv", iterations=1, warmup=0))
    schema = json.loads((ROOT / "tracemap" / "schemas" / "run.schema.json").read_text(encoding="utf-8"))
    beside = json.loads((tmp_path / "run.csv.json").read_text(encoding="utf-8"))
    jsonschema.validate(beside, schema)
    assert beside == json.loads(pretty_json(recorded.header))
    assert any(tool.startswith("iree-base-runtime 3.") for tool in recorded.header.tools)


@pytest.mark.long
def test_a_loop_has_several_submissions_in_an_invocation(made: Path, tmp_path: Path) -> None:
    asked = request(sample(made, "hand_loop"), tmp_path / "run.csv", inputs=(*LOOP, "6"), iterations=4, warmup=1)
    recorded = record(asked)
    dispatches = [row for row in events(recorded.path) if row["kind"] == "dispatch"]
    per_invocation = Counter(row["invocation"] for row in dispatches)
    assert set(per_invocation) == set(range(5))
    assert len(set(per_invocation.values())) == 1
    first = [row for row in dispatches if row["command_buffer_id"] == dispatches[0]["command_buffer_id"]]
    assert [row["call"] for row in first if row["command_index"] == first[0]["command_index"]] == list(
        range(len(first))
    )
    # It lasts for less than two looks, unless the system lets it stand still.
    was_seen = recorded.header.noise.observed_ns is not UNKNOWN
    assert {*slugs(recorded)} - {"noisy"} == (set() if was_seen else {"noise-unknown"})


@pytest.mark.long
def test_buffers_made_per_call_share_a_program(made: Path, tmp_path: Path) -> None:
    recorded = record(request(sample(made, "hand_dynamic"), tmp_path / "run.csv", dim=16, iterations=3, warmup=1))
    assert len(recorded.header.programs) == 1
    assert [(buffer.one_shot, buffer.program) for buffer in recorded.header.buffers] == [(True, 0)] * 4
    dispatches = [row for row in events(recorded.path) if row["kind"] == "dispatch"]
    assert [row["call"] for row in dispatches if row["command_index"] == 0] == [0, 1, 2, 3]
    assert recorded.header.inputs[0] == "16x16xf32: random in [0, 0.1), seed 0 (made up)"


@pytest.mark.long
def test_a_function_without_dispatches(made: Path, tmp_path: Path) -> None:
    """The program's clock shows that its calls return, so they are counted and made again at once."""
    asked = request(sample(made, "hand_multifunc"), tmp_path / "run.csv", function="no_compute")
    recorded = record(asked)
    assert events(recorded.path) == []
    assert slugs(recorded) == ["no-events"]
    assert recorded.header.iterations == 20
    assert isinstance(recorded.header.elapsed_ns, int)
    assert read_run(recorded.path).has_header


@pytest.mark.long
def test_a_module_that_opens_no_device(tmp_path: Path) -> None:
    model = tmp_path / "identity.mlir"
    model.write_text("func.func @identity(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }")
    recorded = record(request(compiled(tmp_path, model), tmp_path / "run.csv"))
    assert recorded.events == 0
    assert slugs(recorded) == ["no-events"]


def test_local_sync_knows_no_command_index(made: Path, tmp_path: Path) -> None:
    asked = request(sample(made, "hand_mlp"), tmp_path / "run.csv", device="local-sync", iterations=3, warmup=1)
    recorded = record(asked)
    dispatches = [row for row in events(recorded.path) if row["kind"] == "dispatch"]
    assert len(dispatches) == 4 * 4
    assert all(row["command_index"] is None and row["cpu_ns"] > 0 for row in dispatches)
    assert [row["call"] for row in dispatches[::4]] == [0, 1, 2, 3]
    assert recorded.header.workers == 1
    assert recorded.header.buffers == ()


@pytest.mark.long
@pytest.mark.parametrize(
    ("flags", "batch"),
    [
        (("--batch_size=1", "--batch_size=4"), 4),
        (("--batch_size=3", "--batch_concurrency=2"), 4),
        (("--batch_concurrency=3",), 3),
    ],
)
def test_batches_of_calls_of_an_asynchronous_function(
    flags: tuple[str, ...], batch: int, made: Path, tmp_path: Path
) -> None:
    """All that is asked for is made in whole batches, in which calls run side by side: each has its own events."""
    module, run = asynchronous_module(made), tmp_path / "run.parquet"
    recorded = record(request(module, run, iterations=10, warmup=1, runtime_flags=flags))
    header = recorded.header
    assert (header.iterations, header.warmup) == (-(-10 // batch) * batch, batch)
    check_whole_calls(recorded, 12 + batch)
    rows = events(run)
    assert all(row["warmup"] == (row["invocation"] < batch) for row in rows)
    for call in range(12 + batch):
        own = [row for row in rows if row["invocation"] == call]
        assert sorted(row["command_index"] for row in own if row["kind"] == "dispatch") == [0, 2, 4, 6]
        assert len({row["submission_id"] for row in own if row["kind"] == "execute"}) == 1
    ended = record(request(module, tmp_path / "ended.parquet", seconds=0.3, launches=1, runtime_flags=flags))
    assert isinstance(ended.header.iterations, int)
    assert isinstance(ended.header.warmup, int)
    assert ended.header.iterations % batch == 0 == ended.header.warmup % batch
    assert "--batch_" in " ".join(ended.header.command)
    check_whole_calls(ended, ended.header.iterations + ended.header.warmup)


@pytest.mark.long
def test_a_synchronous_function_has_no_batches(made: Path, tmp_path: Path) -> None:
    """The program divides the time of a call by the batch; a call is an invocation all the same."""
    asked = request(
        sample(made, "hand_mlp"), tmp_path / "run.parquet", iterations=6, warmup=2, runtime_flags=("--batch_size=4",)
    )
    recorded = record(asked)
    assert (recorded.header.iterations, recorded.header.warmup) == (6, 2)
    check_whole_calls(recorded, 8)
    assert "batches-ignored" in slugs(recorded)
    (tmp_path / "nothing").mkdir()
    for flag in ("--batch_size=0", "--batch_concurrency=x", "--batch_size"):
        said = refused(made, tmp_path / "nothing", "hand_mlp", runtime_flags=(flag,))
        assert "give a whole number of invocations, from 1 to 2,147,483,647" in said


@pytest.mark.long
def test_calls_that_nothing_tells_apart_all_count(tmp_path: Path) -> None:
    """Every second one has a product, and the profile is flushed on a timer: no event is said to be of the warm-up."""
    (tmp_path / "model.mlir").write_text(ALTERNATING)
    module = compiled(tmp_path, tmp_path / "model.mlir")
    flags = ("--device_profiling_flush_interval_ms=2",)
    recorded = record(request(module, tmp_path / "run.csv", iterations=12, warmup=4, runtime_flags=flags))
    header = recorded.header
    assert "invocation-unknown" in slugs(recorded)
    assert (header.iterations, header.warmup) == (16, 0)
    assert sum(row["kind"] == "dispatch" and "matmul" in row["kernel"] for row in events(recorded.path)) == 8
    assert isinstance(header.elapsed.explained_ns, int)
    assert isinstance(header.elapsed_ns, int)
    assert header.elapsed.explained_ns >= 0.9 * header.elapsed_ns


@pytest.mark.long
@pytest.mark.skipif(not has_device("vulkan"), reason="no Vulkan device: Debian's mesa-vulkan-drivers has one")
def test_a_device_has_a_clock_of_its_own(tmp_path: Path) -> None:
    flags = ("--iree-hal-target-device=vulkan", "--iree-vulkan-target=vp_android_baseline_2022")
    module = compiled(tmp_path, SAMPLES / "models" / "hand_mlp.mlir", *flags)
    recorded = record(request(module, tmp_path / "run.csv", device="vulkan", iterations=2, warmup=1))
    assert recorded.header.clock is Clock.DEVICE
    assert recorded.header.workers is UNKNOWN
    assert [metric.name for metric in read_run(recorded.path).metrics] == ["duration_ns"]
    dispatches = [row for row in events(recorded.path) if row["kind"] == "dispatch"]
    assert [row["command_index"] for row in dispatches] == [0, 2, 4, 6] * 3
    assert [row["invocation"] for row in dispatches[::4]] == [0, 1, 2]
    assert all(row["duration_ns"] > 0 for row in dispatches)


@pytest.mark.long
def test_records_that_were_lost(made: Path, tmp_path: Path) -> None:
    """Far more events in a call than the profiler's buffers hold: it is run again, flushing on a timer."""
    asked = request(sample(made, "hand_loop"), tmp_path / "run.csv", inputs=(*LOOP, "1500"), iterations=2, warmup=1)
    recorded = record(asked)
    assert "--device_profiling_flush_interval_ms=2" in recorded.header.command
    lost = [item.message for item in recorded.header.diagnostics if item.slug == "records-lost"]
    if not lost:  # on a machine with other work the timer may be late
        rows = events(recorded.path)
        assert Counter(row["invocation"] for row in rows) == dict.fromkeys(range(3), len(rows) // 3)
    assert all("lost" in message for message in lost)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["run.csv", "run.csv.json"]


def check_whole_calls(recorded: RecordedRun, calls: int) -> None:
    """All timed events are of one execution: every call has as many, and each dispatch is there once."""
    timed = [row for row in events(recorded.path) if row["kind"] != "step"]
    if "records-lost" not in slugs(recorded):  # on a machine with other work the timer may be late
        assert Counter(row["invocation"] for row in timed) == dict.fromkeys(range(calls), len(timed) // calls)
    places = {(row["kind"], row["submission_id"], row["command_index"], row["start_ns"]) for row in timed}
    assert len(places) == len(timed) == recorded.events


@pytest.mark.long
@pytest.mark.skipif(not (FOLDER / LIBRARY_NAME).is_file(), reason="the hook's library is not built")
def test_what_is_counted_and_sampled_is_of_the_execution_that_is_told_of(made: Path, tmp_path: Path) -> None:
    """After the second attempt nothing of the first is left: not its events, not its samples, not its flags."""
    recorded = record(
        request(
            sample(made, "hand_loop"), tmp_path / "run.parquet", inputs=(*LOOP, "1500"), iterations=2, warmup=1,
            counters=("page-faults",), sample_hz=4999,
        )
    )  # fmt: skip
    assert TIMED_FLUSH_FLAG in recorded.header.command
    check_whole_calls(recorded, 3)
    rows = events(recorded.path)
    dispatches = [row for row in rows if row["kind"] == "dispatch"]
    starts = {row["start_ns"] for row in dispatches}
    steps = [row for row in rows if row["kind"] == "step"]
    assert "sampled" in slugs(recorded)
    assert len(steps) > 100
    # Those that lie in no dispatch have their own time.
    of_dispatches = [row["start_ns"] for row in steps if row["command_index"] is not None]
    assert of_dispatches
    assert set(of_dispatches) <= starts
    if not {"counters-unmatched", "records-lost"} & set(slugs(recorded)):
        assert all(row["page-faults"] is not None for row in dispatches)
    counted = sum(row["page-faults"] is not None for row in dispatches)
    assert counted > len(dispatches) // 2, recorded.header.diagnostics


@pytest.mark.long
@pytest.mark.skipif(not (FOLDER / LIBRARY_NAME).is_file(), reason="the hook's library is not built")
def test_counts_are_there_where_the_counted_execution_lost_records(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine so busy that the timer comes too late: here no timer flushes the counted execution at all."""

    def unflushed(command: Sequence[str], *more: Any, **named: Any) -> Ending:  # noqa: ANN401 - as they were given
        return run_benchmark([flag for flag in command if flag != TIMED_FLUSH_FLAG], *more, **named)

    def counts(name: str) -> tuple[list[int], RecordedRun]:
        asked = request(
            sample(made, "hand_loop"), tmp_path / name, inputs=(*LOOP, "1500"), iterations=2, warmup=1, serial=True,
            counters=("page-faults",),
        )  # fmt: skip
        for _ in range(10):  # a busy machine loses records of the timed execution, too, which is not what is asked here
            recorded = record(replace(asked, options=replace(asked.options, force=True)))
            rows = [row for row in events(recorded.path) if row["kind"] == "dispatch"]
            if len(rows) == 9000:
                break
        return [row["page-faults"] for row in sorted(rows, key=lambda row: row["start_ns"])], recorded

    whole, _ = counts("whole.parquet")
    monkeypatch.setattr(counting, "run_benchmark", unflushed)
    lost, recorded = counts("lost.parquet")
    assert "counters-by-order" in slugs(recorded)
    assert not {"counters-unmatched", "no-counters"} & set(slugs(recorded))
    assert None not in lost
    assert len(lost) == len(whole) == 9000
    # Memory is touched first, and code read first, in the first calls of the program.
    assert sum(lost[:10]) > 0.5 * sum(lost) > 0
    assert sum(lost[:10]) == pytest.approx(sum(whole[:10]), abs=20)


def profile_of(command: Sequence[str]) -> Path:
    """Where a program under the profiler writes."""
    (output,) = (flag for flag in command if flag.startswith("--device_profiling_output="))
    return Path(output.partition("=")[2])


@pytest.mark.long
@pytest.mark.parametrize("damage", ["failed", "garbage", "nothing written"])
def test_a_second_attempt_that_fails_does_not_lose_the_first(
    damage: str, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: Sequence[str], *more: Any) -> Ending:  # noqa: ANN401 - as they were given
        if TIMED_FLUSH_FLAG not in command:
            return run_benchmark(command, *more)
        if damage == "garbage":
            profile_of(command).write_bytes(b"no profile")
        return Ending(int(damage == "failed"), UNKNOWN, "", interrupted=False)

    monkeypatch.setattr(execution, "run_benchmark", run)
    asked = request(sample(made, "hand_loop"), tmp_path / "run.parquet", inputs=(*LOOP, "1500"), iterations=2, warmup=1)
    recorded = record(asked)
    assert TIMED_FLUSH_FLAG not in recorded.header.command
    assert slugs(recorded)[0] == "records-lost"
    assert len(events(recorded.path)) == recorded.events > 1000
    assert [path.name for path in tmp_path.iterdir()] == ["run.parquet"]
    # Most kernels are in no row: what the elapsed time went for is unknown.
    assert recorded.header.elapsed == UNKNOWN_PARTS


def overwrite(profile: Path) -> None:
    with profile.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 4096)


def cut_off(profile: Path) -> None:
    os.truncate(profile, profile.stat().st_size // 2)


def damaging(number: int, damage: Callable[[Path], None]) -> Callable[..., Ending]:
    """Runs programs, and damages the profile of the one of this number among those that flush on a timer, from 1."""
    flushing = 0

    def run(command: Sequence[str], *more: Any, **named: Any) -> Ending:  # noqa: ANN401 - as they were given
        nonlocal flushing
        ending = run_benchmark(command, *more, **named)
        if TIMED_FLUSH_FLAG in command:
            flushing += 1
            if flushing == number:
                damage(profile_of(command))
        return ending

    return run


@pytest.mark.long
@pytest.mark.skipif(not (FOLDER / LIBRARY_NAME).is_file(), reason="the hook's library is not built")
@pytest.mark.parametrize("damage", [overwrite, cut_off])
@pytest.mark.parametrize("number", [1, 2])
def test_a_profile_that_is_damaged_as_it_is_written_is_recorded_again(
    number: int, damage: Callable[[Path], None], made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first that flushes on a timer tells the times, the second has the counts."""
    asked = request(
        sample(made, "hand_loop"), tmp_path / "run.parquet", inputs=(*LOOP, "1500"), iterations=2, warmup=1,
        counters=("page-faults",), sample_hz=4999, force=True,
    )  # fmt: skip
    # On a busy machine the one that flushes on a timer may lose records as well, and the first one stands.
    for _ in range(3):
        run = damaging(number, damage)
        monkeypatch.setattr(execution, "run_benchmark", run)
        monkeypatch.setattr(counting, "run_benchmark", run)
        recorded = record(asked)
        if TIMED_FLUSH_FLAG in recorded.header.command:
            break
    assert TIMED_FLUSH_FLAG in recorded.header.command
    check_whole_calls(recorded, 3)
    dispatches = [row for row in events(recorded.path) if row["kind"] == "dispatch"]
    counted = sum(row["page-faults"] is not None for row in dispatches)
    assert counted > len(dispatches) // 2, recorded.header.diagnostics
    assert "sampled" in slugs(recorded)
    assert [path.name for path in tmp_path.iterdir()] == ["run.parquet"]


def test_flag_files_say_function_inputs_and_device(made: Path, tmp_path: Path) -> None:
    (tmp_path / "inner.flags").write_text("--input=32x64xf32=0.5\n\n# weights\n--input=64x64xf32=0.01\n")
    flags = tmp_path / "x.flags"
    flags.write_text(
        f"--function=encode\n--module=other.vmfb\n--flagfile={tmp_path / 'inner.flags'}\n"
        "--device=local-sync\n--task_worker_spin_us=1\n"
    )
    asked = request(sample(made, "hand_multifunc"), tmp_path / "run.csv", flagfile=flags, iterations=1)
    header = record(asked).header
    assert (header.function, header.device) == ("encode", "local-sync")
    assert header.inputs == ("32x64xf32=0.5", "64x64xf32=0.01")
    assert "--task_worker_spin_us=1" in header.command
    assert "--module=other.vmfb" not in header.command


def test_the_command_line_goes_before_the_flag_file(made: Path, tmp_path: Path) -> None:
    flags = tmp_path / "x.flags"
    flags.write_text("--function=encode\n--input=32x64xf32=0.5\n--input=64x64xf32=0.01\n")
    asked = request(
        sample(made, "hand_multifunc"),
        tmp_path / "run.csv",
        flagfile=flags,
        function="no_compute",
        inputs=("32x64xf32=1",),
        iterations=1,
    )
    assert record(asked).header.inputs == ("32x64xf32=1",)


def test_every_type_of_input_that_iree_takes(tmp_path: Path) -> None:
    types = (
        "tensor<2x3xbf16>", "tensor<2xf16>", "tensor<2xf64>", "tensor<2xi1>", "tensor<2xi8>", "tensor<f32>", "f32",
        "index", "i64", "tensor<2xf8E4M3FN>", "tensor<2xcomplex<f32>>", "tensor<4xi4>", "f64", "i1", "tensor<2xui32>",
        "tensor<0x4xf32>", "tensor<i32>", "tensor<i1>", "tensor<ui8>", "tensor<i4>",
    )  # fmt: skip
    arguments = ", ".join(f"%a{place}: {kind}" for place, kind in enumerate(types))
    names = ", ".join(f"%a{place}" for place in range(len(types)))
    model = tmp_path / "types.mlir"
    model.write_text(f"func.func @f({arguments}) -> ({', '.join(types)}) {{ return {names} : {', '.join(types)} }}")
    recorded = record(request(compiled(tmp_path, model), tmp_path / "run.csv", iterations=1))
    assert recorded.header.inputs[:4] == (
        "2x3xbf16: random in [0, 0.1), seed 0 (made up)",
        "2xf16: random in [0, 0.1), seed 1 (made up)",
        "2xf32: random in [0, 0.1), seed 2 (made up)",  # the compiler turns f64 into f32
        "2xi1: zeros (made up)",
    )
    assert recorded.header.inputs[-4:] == tuple(f"{element}: zeros (made up)" for element in ("i32", "i1", "ui8", "i4"))


def test_inputs_that_do_not_fit(made: Path, tmp_path: Path) -> None:
    said = refused(made, tmp_path, "hand_mlp", inputs=("32x784xf32",))
    assert said.startswith("InputInvalid: mlp takes 7 inputs (%0: tensor<32x784xf32>, ")
    assert "1 given" in said
    said = refused(made, tmp_path, "hand_dynamic")
    assert said.startswith("InputInvalid")
    assert "%0 (tensor<?x?xf32>)" in said
    assert "--dim" in said
    functions = entry_points(sample(made, "hand_loop"), loop_bounds=("i32",))
    said = refused(made, tmp_path, "hand_loop", functions=functions)
    assert said.startswith("InputInvalid")
    assert "%2 (i32)" in said
    assert "--input=64x64xf32=0.5 --input=64x64xf32=0.5 --input=VALUE" in said


def test_functions_that_are_not_there(made: Path, tmp_path: Path) -> None:
    for options in ({}, {"function": "absent"}):
        said = refused(made, tmp_path, "hand_multifunc", **options)
        assert said.startswith("FunctionUnknown")
        assert "encode, decode, roundtrip, no_compute" in said


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"inputs": ("32x784xf32=@absent.bin",) * 7}, InputInvalid, "absent.bin"),
        ({"runtime_flags": ("--parameters=model=absent.irpa",)}, InputInvalid, "absent.irpa"),
        ({"flagfile": Path("absent.flags")}, UsageInvalid, "absent.flags"),
        ({"runtime_flags": ("--module=a", "--module=b")}, UsageInvalid, "several modules"),
        ({"iterations": 0}, UsageInvalid, "at least 1"),
        ({"inputs": ("2x2xf32=1",) * 7}, InputInvalid, "its shape is 2x2"),
        ({"device": "no-such-device"}, ProgramFailed, "no-such-device"),
    ],
)
def test_what_is_refused_or_fails(
    options: dict[str, object], kind: type[TracemapError], words: str, made: Path, tmp_path: Path
) -> None:
    said = refused(made, tmp_path, "hand_mlp", **options)
    assert said.startswith(kind.__name__)
    assert words in said


@pytest.mark.parametrize("line", ["function=x", "--flagfile=SELF", "--flagfile=a\0b", "--flagfile=" + "a" * 5000])
def test_flag_files_that_make_no_sense(line: str, made: Path, tmp_path: Path) -> None:
    flags = tmp_path / "x.flags"
    flags.write_text(line.replace("SELF", str(flags)))
    with pytest.raises(UsageInvalid, match=r"x\.flags|a\x00b|aaaa"):
        record(request(sample(made, "hand_mlp"), tmp_path / "run.csv", flagfile=flags))


@pytest.mark.parametrize("line", ["--input=@" + "a" * 5000, "--parameters=scope=a\0b"])
def test_flag_files_that_name_files_which_cannot_be(line: str, made: Path, tmp_path: Path) -> None:
    flags = tmp_path / "x.flags"
    flags.write_text(line)
    with pytest.raises(InputInvalid, match="does not exist"):
        record(request(sample(made, "hand_mlp"), tmp_path / "run.csv", flagfile=flags))


def test_targets_are_looked_at_before_the_run(made: Path, tmp_path: Path) -> None:
    module = sample(made, "hand_mlp")
    with pytest.raises(TargetUnwritable, match="absent"):
        record(request(module, tmp_path / "absent" / "run.csv"))
    (tmp_path / "run.csv").write_text("of another program")
    with pytest.raises(TargetExists, match="force=True"):
        record(request(module, tmp_path / "run.csv"))


@pytest.mark.long
def test_parameters_of_a_sample(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's modules declare no types; those of the request are used, and paths start at the working folder."""
    monkeypatch.chdir(SAMPLES)
    module = sample(made, "torch_mlp")
    functions = (Function("main", (Argument("%arg0", "!torch.vtensor<[32,784],f32>", False),)),)
    flags = SAMPLES / "flags" / "torch_mlp.flags"
    parameters = [line for line in flags.read_text().splitlines() if line.startswith("--parameters")]
    said = record(request(module, tmp_path / "a.csv", functions=functions, iterations=2, flagfile=flags))
    made_up = request(module, tmp_path / "b.csv", functions=functions, iterations=2, runtime_flags=tuple(parameters))
    assert record(made_up).events == said.events > 0


def test_unknown_function_is_an_error_of_its_own(made: Path, tmp_path: Path) -> None:
    with pytest.raises(FunctionUnknown):
        record(request(sample(made, "hand_mlp"), tmp_path / "run.csv", function="mlp2"))


def test_peaks_are_those_of_a_machine() -> None:
    peaks = measure_peaks()
    assert peaks.source == "measured"
    assert 10**8 < peaks.bytes_per_second < 10**13
    assert 10**8 < peaks.operations_per_second < 10**14


def test_the_best_of_all_looks_at_the_peaks_counts_and_a_busy_machine_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program that slows each look down, by another factor, on a clock of the test's own."""
    ticks, slower = itertools.count(), [1]
    monkeypatch.setattr(time, "thread_time_ns", lambda: 1_000_000 * next(ticks) * slower[0])
    meter, seen = PeakMeter(), []
    for slower[0] in (3, 3, 1, 3):
        seen.append(meter.look())
    assert seen[2].operations_per_second > 2 * seen[1].operations_per_second
    assert seen[2].bytes_per_second > 2 * seen[1].bytes_per_second
    assert seen[3] == seen[2]
    assert "the machine was busy: a matrix product took up to " in meter.doubt
    quiet, slower[0] = PeakMeter(), 1
    for _ in range(3):
        quiet.look()
    assert quiet.doubt == ""


@pytest.mark.parametrize(
    ("printed", "told", "said"),
    [("why", "", "why"), ("why", "because", "because"), ("{}", "", ""), ("", "", "")],
)
def test_why_a_program_failed_is_read_where_it_says_it(printed: str, told: str, said: str) -> None:
    """IREE 3.12 says it in place of the report."""
    code = f"import sys; print({printed!r}); print({told!r}, file=sys.stderr); sys.exit(13)"
    ending = run_benchmark([sys.executable, "-c", code])
    assert (ending.status, ending.stderr) == (13, said)
