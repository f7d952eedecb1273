"""Profiles of the stock runtime: calls of events, losses, and files of killed writers."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from pathlib import Path

import duckdb
import pytest

from tests.recording import events, sample
from tracemap.capture.benchmark import (
    BENCHMARK_TOOL,
    TIMED_FLUSH_FLAG,
    call_command,
    call_count_flags,
    profiling_flags,
    run_benchmark,
)
from tracemap.core.diagnostics import above_result
from tracemap.core.errors import RunEmpty, RunInvalid, RunVersion
from tracemap.core.toolchain import check_tool, find_tool
from tracemap.core.units import UNKNOWN, Integer
from tracemap.runs.ireeprof import records
from tracemap.runs.ireeprof.calls import KnownCalls
from tracemap.runs.ireeprof.profile import Profile, read_export
from tracemap.runs.ireeprof.records import whole_records
from tracemap.runs.model import UNKNOWN_HEADER, Clock
from tracemap.runs.readers.iree_profile import load_profile
from tracemap.runs.readers.open_run import open_run
from tracemap.runs.runfile import write_run
from tracemap.runs.sql import available_memory, open_database

pytestmark = pytest.mark.quick

LOOP = ("64x64xf32=0.01", "64x64xf32=0.01")
MLP = ("32x784xf32=0.1", "784x256xf32=0.1", "256xf32=0.1", "256x128xf32=0.1", "128xf32=0.1", "128x10xf32=0.1",
       "10xf32=0.1")  # fmt: skip


def profiled(module: Path, function: str, inputs: tuple[str, ...], calls: int, target: Path, *flags: str) -> Path:
    """Run a function under the profiler; the profile goes to `target`."""
    command = [*call_command(BENCHMARK_TOOL, [module], function, inputs, "local-task", flags), *call_count_flags(calls)]
    ending = run_benchmark([*command, *profiling_flags("local-task", target)])
    assert ending.status == 0, ending.stderr
    return target


@pytest.fixture(scope="module")
def mlp_profile(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five calls of the perceptron."""
    target = tmp_path_factory.mktemp("profile") / "mlp.ireeprof"
    return profiled(sample(made, "hand_mlp"), "mlp", MLP, 5, target)


def read(profile: Path, invocations: Integer = UNKNOWN, *, warmup: int = 0, timed: bool = False) -> Profile:
    connection = duckdb.connect()
    return load_profile(profile, connection, "events", KnownCalls(invocations, warmup, timed))


def invocations_of(profile: Profile) -> Counter[object]:
    return Counter(row[0] for row in profile.events.in_order().project("invocation").fetchall())


def export(folder: Path, *lines: str) -> Path:
    path = folder / "export.jsonl"
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def test_calls_are_told_apart_whether_or_not_their_number_is_known(mlp_profile: Path) -> None:
    for known in (5, UNKNOWN):
        profile = read(mlp_profile, known)
        assert profile.invocations == 5
        assert invocations_of(profile) == dict.fromkeys(range(5), 8)
        assert profile.diagnostics == ()
    assert profile.clock is Clock.HOST
    assert [command.kind for command in profile.programs[0]] == ["dispatch", "barrier"] * 4
    assert not profile.buffers[0].one_shot


def test_a_wrong_number_of_calls_is_not_believed(mlp_profile: Path) -> None:
    profile = read(mlp_profile, 3, warmup=1)
    assert profile.invocations is UNKNOWN
    assert invocations_of(profile) == {None: 40}
    (told,) = profile.diagnostics
    assert told.slug == "invocation-unknown"
    assert "1 warm-up invocation cannot be marked" in told.message


def test_repetition_tells_calls_apart_where_flushes_do_not(mlp_profile: Path) -> None:
    assert invocations_of(read(mlp_profile, 5, timed=True)) == dict.fromkeys(range(5), 8)


def exported(profile: Path, folder: Path) -> Path:
    """The profile as `iree-profile` exports it."""
    target = folder / "exported.jsonl"
    check_tool([find_tool("iree-profile"), "export", "--format=ireeperf-jsonl", f"--output={target}", profile])
    return target


@pytest.mark.parametrize("place", ["queue_ordinal", "physical_device_ordinal"])
def test_submissions_of_several_queues_are_told_apart(place: str, mlp_profile: Path, tmp_path: Path) -> None:
    """The same work on a second queue, a little later: numbers of submissions count in each queue on their own."""
    lines = [json.loads(line) for line in exported(mlp_profile, tmp_path).read_text(encoding="utf-8").splitlines()]
    work = [record for record in lines if record["record_type"] in {"queue_event", "host_execution_event"}]
    later = {"host_time_ns": 100, "start_host_time_ns": 100, "end_host_time_ns": 100}
    again = [
        record | {name: record[name] + ns for name, ns in later.items() if name in record} | {place: 1}
        for record in work
    ]
    with duckdb.connect() as one, duckdb.connect() as two:
        alone = read_export(export(tmp_path, *map(json.dumps, lines)), one).events.in_order()
        both = read_export(export(tmp_path, *map(json.dumps, [*lines, *again])), two).events.in_order()
        what = "kind, kernel, invocation, duration_ns, covered_ns"
        once = alone.project(what).fetchall()
        assert Counter(both.project(what).fetchall()) == Counter(once) + Counter(once)
        rows = both.project("submission_id, invocation, start_ns").fetchall()
    submissions = {submission for submission, _, _ in rows}
    assert len(submissions) == 2 * len({record["submission_id"] for record in work})


def test_the_records_of_a_large_export_are_kept_compressed_and_give_the_same_run(
    mlp_profile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the size only the limit is changed; the file goes away with the connection."""
    jsonl, written = exported(mlp_profile, tmp_path), []
    for limit in (jsonl.stat().st_size, jsonl.stat().st_size - 1):
        monkeypatch.setattr(records, "_MAX_IN_MEMORY", limit)
        with open_database() as connection:
            profile = read_export(jsonl, connection, known=KnownCalls(5))
            files = {name: path for _, name, path in connection.execute("PRAGMA database_list").fetchall()}
            target = tmp_path / f"{limit}.parquet"
            write_run(UNKNOWN_HEADER, profile.events.in_order(), target, force=False)
            written.append(target.read_bytes())
            assert ("compressed_memory" in files) == (limit < jsonl.stat().st_size)
    assert written[0] == written[1]
    assert not Path(files["compressed_memory"]).parent.exists()


def test_timed_flushes_cut_calls_but_lose_nothing(made: Path, tmp_path: Path) -> None:
    inputs = (*LOOP, "400")
    path = profiled(sample(made, "hand_loop"), "loop", inputs, 3, tmp_path / "loop.ireeprof", TIMED_FLUSH_FLAG)
    profile = read(path, 3, timed=True)
    assert profile.lost_records == 0
    assert invocations_of(profile) == dict.fromkeys(range(3), profile.event_count // 3)


def test_more_calls_than_are_known_of_are_not_divided_into_them(mlp_profile: Path, made: Path, tmp_path: Path) -> None:
    """Ten calls would be five of twice the work."""
    path = profiled(sample(made, "hand_mlp"), "mlp", MLP, 10, tmp_path / "ten.ireeprof")
    for profile, calls in ((read(path, 5, warmup=1), UNKNOWN), (read(mlp_profile, 5, warmup=1), 5)):
        assert profile.invocations == calls
        said = [item.slug for item in profile.diagnostics]
        assert said == (["invocation-unknown"] if calls is UNKNOWN else [])


def test_lost_records_are_counted(made: Path, tmp_path: Path) -> None:
    inputs = (*LOOP, "1500")
    profile = read(profiled(sample(made, "hand_loop"), "loop", inputs, 2, tmp_path / "loop.ireeprof"), 2)
    assert profile.lost_records > 1000
    lost = [item for item in profile.diagnostics if item.slug == "records-lost"]
    assert [item.message.partition(":")[0] for item in lost] == [
        "truncated_chunk (host-execution-events)",
        "truncated_chunk (queue-events)",
    ]
    assert above_result(profile.diagnostics) == lost  # nothing is said of costs before it
    of_host, of_queue = (re.search(r": ([\d,]+) of ([\d,]+) records lost", item.message) for item in lost)
    assert of_host is not None
    assert of_queue is not None
    dropped, of_all = (int(number.replace(",", "")) for number in of_host.groups())
    assert of_all - dropped == profile.event_count
    # As many as 1,500 trips have by what 200 and 400 have, of which nothing is lost.
    fewer, more = (
        read(profiled(sample(made, "hand_loop"), "loop", (*LOOP, trips), 2, tmp_path / f"{trips}.ireeprof"), 2)
        for trips in ("200", "400")
    )
    assert not fewer.lost_records + more.lost_records
    assert of_all == more.event_count + (more.event_count - fewer.event_count) * 1100 // 200


def test_a_profile_made_elsewhere_is_a_run(mlp_profile: Path, tmp_path: Path) -> None:
    run = open_run(mlp_profile, tmp_path)
    assert not run.has_header
    assert run.header.iterations == 5
    assert len(run.header.buffers) == 1
    assert [metric.name for metric in run.metrics] == ["duration_ns", "cpu_ns"]
    dispatches = [row for row in events(run.table) if row["kind"] == "dispatch"]
    assert [row["command_index"] for row in dispatches] == [0, 2, 4, 6] * 5


def test_a_profile_cut_anywhere_is_read_up_to_its_last_whole_record(mlp_profile: Path, tmp_path: Path) -> None:
    content = mlp_profile.read_bytes()
    before = 40
    for size in range(len(content) - 1, 4000, -797):
        cut = tmp_path / "cut.ireeprof"
        cut.write_bytes(content[:size])
        whole = whole_records(cut)
        assert whole.size == size
        assert 0 <= size - whole.end < 4096
        assert not whole.finished
        profile = read(cut)
        assert profile.diagnostics[0].slug == "run-truncated"
        assert f" {size - whole.end:,} byte" in profile.diagnostics[0].message
        assert profile.event_count <= before
        before = profile.event_count
    assert 0 < before < 40
    assert cut.read_bytes() == content[:size]


@pytest.mark.parametrize("size", [0, 24, 30])
def test_a_profile_without_a_whole_record(size: int, mlp_profile: Path, tmp_path: Path) -> None:
    path = tmp_path / "short.ireeprof"
    path.write_bytes(mlp_profile.read_bytes()[:size])
    with pytest.raises(RunEmpty, match="short"):
        open_run(path, tmp_path)


def test_a_profile_without_events(mlp_profile: Path, tmp_path: Path) -> None:
    path = tmp_path / "short.ireeprof"
    path.write_bytes(mlp_profile.read_bytes()[:541])
    with pytest.raises(RunEmpty, match="no event"):
        open_run(path, tmp_path)


def test_what_is_no_profile(mlp_profile: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.ireeprof"
    path.write_bytes(b"kernel,cpu_ns\nk,1\n")
    with pytest.raises(RunInvalid, match=r"x\.ireeprof"):
        open_run(path, tmp_path)
    content = bytearray(mlp_profile.read_bytes())
    content[60:100] = bytes(40)
    path.write_bytes(content)
    shutil.copy(path, tmp_path / "damaged.ireeprof")
    with pytest.raises((RunInvalid, RunEmpty), match=r"damaged\.ireeprof"):
        open_run(tmp_path / "damaged.ireeprof", tmp_path)


def test_newer_versions_are_read_if_they_have_the_needed_fields(mlp_profile: Path, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in exported(mlp_profile, tmp_path).read_text(encoding="utf-8").splitlines()]
    newer = [record | {"schema_version": 16, "another_field": [1]} for record in lines]
    for record in newer:
        assert record.pop("end_host_time_ns", 1)
    with duckdb.connect() as one, duckdb.connect() as two:
        now = read_export(export(tmp_path, *map(json.dumps, lines)), one).events.in_order().fetchall()
        whole = [record | {"schema_version": 16, "another_field": [1]} for record in lines]
        assert read_export(export(tmp_path, *map(json.dumps, whole)), two).events.in_order().fetchall() == now
        with pytest.raises(RunVersion, match="no host_execution_event has the field end_host_time_ns"):
            read_export(export(tmp_path, *map(json.dumps, newer)), two)
        with pytest.raises(RunVersion, match="version 14, which is older"):
            read_export(export(tmp_path, *(json.dumps(record | {"schema_version": 14}) for record in lines)), two)


def test_exports_of_another_version_or_kind(tmp_path: Path) -> None:
    with duckdb.connect() as connection:
        with pytest.raises(RunVersion, match=r"version 16.*version 15"):
            read_export(
                export(tmp_path, '{"schema_version":16,"record_type":"schema"}'), connection, "events", KnownCalls()
            )
        with pytest.raises(RunInvalid, match="schema_version"):
            read_export(export(tmp_path, '{"a":1}'), connection)
        with pytest.raises(RunInvalid, match=r"export\.jsonl"):
            read_export(export(tmp_path, "kernel,cpu_ns"), connection)
        with pytest.raises(RunEmpty, match=r"export\.jsonl"):
            read_export(export(tmp_path), connection)


@pytest.mark.parametrize("workgroups", ["null", "[1,null,1]", "[9223372036854775807,2,2]"])
def test_a_record_that_no_runtime_writes(workgroups: str, tmp_path: Path) -> None:
    about = '{"schema_version":15,"command_buffer_id":1,"record_type":'
    lines = (
        about + '"command_buffer","mode":0}',
        about + f'"command_operation","command_index":0,"op":"dispatch","key":"k","workgroup_count":{workgroups}}}',
    )
    with duckdb.connect() as connection:
        if workgroups == "[1,null,1]":
            with pytest.raises(RunInvalid, match=r"export\.jsonl: a record .* damaged"):
                read_export(export(tmp_path, *lines), connection)
        else:
            profile = read_export(export(tmp_path, *lines), connection)
            assert profile.programs[0][0].workgroups in {(), (2**63 - 1, 2, 2)}


def test_equal_lists_of_commands_are_one_program(tmp_path: Path) -> None:
    """Whatever the order of their records; lists differ by a name, a count of workgroups, their order, or one more."""
    kernels = {
        1: [("k", "[1,1,1]"), ("l", "[2,1,1]")],
        2: [("l", "[2,1,1]"), ("k", "[1,1,1]")],
        3: [("k", "[1,1,1]"), ("l", "[2,1,1]")],
        4: [("k", "[1,1,1]"), ("l", "[2,1,2]")],
        5: [("k", "[1,1,1]")],
        6: [],
        7: [("l", "[2,1,1]"), ("k", "[1,1,1]")],
        8: [],
    }
    lines = []
    for buffer, commands in kernels.items():
        about = f'{{"schema_version":15,"command_buffer_id":{buffer},"record_type":'
        own = [
            f'{about}"command_operation","command_index":{index},"op":"dispatch","key":"{key}","workgroup_count":{count}}}'
            for index, (key, count) in enumerate(commands)
        ]
        lines += [f'{about}"command_buffer","mode":1}}', *(reversed(own) if buffer % 2 else own)]
    with duckdb.connect() as connection:
        profile = read_export(export(tmp_path, *lines), connection)
    assert [buffer.program for buffer in profile.buffers] == [0, 1, 0, 2, 3, 4, 1, 4]
    for buffer, commands in kernels.items():
        found = profile.programs[profile.buffers[buffer - 1].program]
        assert [(each.kernel, str(list(each.workgroups)).replace(" ", "")) for each in found] == commands


# A buffer for each call, all with the same commands.
_CALLS = """
COPY (
    SELECT 15 AS schema_version, i AS source_record_index, i AS event_id, kind AS record_type, i AS submission_id,
        i AS command_buffer_id, 1 AS mode, 0 AS physical_device_ordinal, 0 AS queue_ordinal,
        CASE kind WHEN 'queue_event' THEN 'execute' ELSE 'dispatch' END AS op, 1 AS operation_count, true AS valid,
        CASE WHEN kind IN ('command_operation', 'host_execution_event') THEN c END AS command_index,
        CASE WHEN kind IN ('command_operation', 'host_execution_event') THEN 'kernel' || c END AS key,
        [c, 1, 1] AS workgroup_count, i * 1000000 AS host_time_ns,
        i * 1000000 + c AS start_host_time_ns, i * 1000000 + c + 1 AS end_host_time_ns, 1 AS duration_ns
    FROM range(1, {calls} + 1) AS calls(i),
        (SELECT 'command_buffer' AS kind, 0 AS c UNION ALL SELECT 'queue_event', 0 UNION ALL
         SELECT unnest(['command_operation', 'host_execution_event']), c FROM range({commands}) AS commands(c))
    ORDER BY i
) TO '{path}' (FORMAT json)
"""


@pytest.mark.long
def test_a_long_profile_fits_into_little_memory(tmp_path: Path) -> None:
    """What does not fit is spilled: 400,000 records of calls that each make their command buffer, in 128 MB."""
    calls, commands = 400, 500
    path = tmp_path / "export.jsonl"
    duckdb.execute(_CALLS.format(calls=calls, commands=commands, path=path))
    with open_database(available_memory(1)) as connection:
        ((limit,),) = connection.execute("SELECT current_setting('memory_limit')").fetchall()
        assert limit == "122.0 MiB"
        profile = read_export(path, connection, known=KnownCalls(calls))
        assert profile.event_count == calls * commands
        assert [len(program) for program in profile.programs] == [commands]
        assert {buffer.program for buffer in profile.buffers} == {0}
        write_run(UNKNOWN_HEADER, profile.events.in_order(), tmp_path / "run.parquet", force=False)
    query = f"SELECT count(*), count(DISTINCT invocation), max(call) FROM '{tmp_path}/run.parquet'"
    assert duckdb.execute(query).fetchall() == [(calls * commands, calls, calls - 1)]


DEVICE = (
    '{"schema_version":15,"record_type":"queue_event","source_record_index":1,"event_id":1,"op":"execute",'
    '"submission_id":1,"physical_device_ordinal":0,"queue_ordinal":0,"host_time_ns":1000,"operation_count":1}',
    '{"schema_version":15,"record_type":"dispatch_event","source_record_index":2,"physical_device_ordinal":0,'
    '"queue_ordinal":0,"event_id":1,"submission_id":1,"command_buffer_id":1,"command_index":0,"key":"k",'
    '"workgroup_count":[2,3,4],"valid":true,"start_driver_host_cpu_time_ns":4010,"duration_ns":70}',
    '{"schema_version":15,"record_type":"dispatch_event","source_record_index":2,"physical_device_ordinal":0,'
    '"queue_ordinal":0,"event_id":2,"submission_id":1,"command_buffer_id":1,"command_index":2,"key":"l",'
    '"workgroup_count":[1,1,1],"valid":false,"duration_ns":0}',
    '{"schema_version":15,"record_type":"queue_device_event","source_record_index":3,"physical_device_ordinal":0,'
    '"queue_ordinal":0,"event_id":1,"submission_id":1,"command_buffer_id":1,"op":"execute","valid":true,'
    '"start_driver_host_cpu_time_ns":4000,"duration_ns":90}',
)
"""Rows as the Vulkan driver gives them, shortened to the fields that matter; the second has no valid times."""


def test_events_of_a_device_are_on_its_own_clock(tmp_path: Path) -> None:
    with duckdb.connect() as connection:
        profile = read_export(export(tmp_path, *DEVICE), connection, known=KnownCalls(1))
        assert profile.clock is Clock.DEVICE
        assert "cpu_ns" not in profile.events.in_order().columns
        columns = "kind, kernel, command_index, duration_ns, start_ns, invocation, "
        columns += "workgroups_x, workgroups_y, workgroups_z, covered_ns"
        found = profile.events.in_order().project(columns).fetchall()
    assert found == [
        ("execute", None, None, 90, 4000, 0, None, None, None, 70),
        ("dispatch", "k", 0, 70, 4010, 0, 2, 3, 4, None),
        ("dispatch", "l", 2, None, None, 0, 1, 1, 1, None),
    ]
    assert [item.slug for item in profile.diagnostics] == ["times-invalid"]


def clocks(*samples: tuple[int, int, int]) -> list[str]:
    """Records that hold the driver's clock, between two readings of the host's."""
    return [
        json.dumps(
            {
                "schema_version": 15, "record_type": "clock_correlation", "physical_device_ordinal": 0,
                "host_cpu_timestamp_ns": driver, "host_time_begin_ns": begin, "host_time_end_ns": end,
            }
        )
        for driver, begin, end in samples
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("samples", "starts", "said"),
    [
        ([(3000, 2990, 3005), (5000, 4999, 5010)], (4000, 4010), []),  # the very same clock
        ([(3000, 990, 1010), (5000, 2995, 3020)], (2002, 2012), []),  # 2,000 to 1,995 ns before it: by the narrower
        ([(3000, 1000, 1000), (5000, 3100, 3100)], (2050, 2061), []),  # one that goes more slowly
    ],
)
def test_records_of_both_clocks_bring_events_to_the_clock_of_the_host(
    samples: list[tuple[int, int, int]], starts: tuple[int, int], said: list[str], tmp_path: Path
) -> None:
    with duckdb.connect() as connection:
        profile = read_export(export(tmp_path, *clocks(*samples), *DEVICE), connection, known=KnownCalls(1))
        assert profile.on_host
        assert profile.clock is Clock.DEVICE
        found = profile.events.in_order().project("kind, kernel, submitted_ns, start_ns, duration_ns").fetchall()
    assert found == [
        ("execute", None, 1000, starts[0], 90),
        ("dispatch", "k", None, starts[1], 70),
        ("dispatch", "l", None, None, None),
    ]
    assert [item.slug for item in profile.diagnostics] == [*said, "times-invalid"]


def test_an_error_of_the_clocks_that_matters_is_told(tmp_path: Path) -> None:
    second = [line.replace('"submission_id":1', '"submission_id":2').replace(":1000", ":3000") for line in DEVICE]
    again = [line.replace('index":1', 'index":4') for line in second]
    lines = [*clocks((4000, 3000, 5000)), *DEVICE, *again]
    with duckdb.connect() as connection:
        profile = read_export(export(tmp_path, *lines), connection, known=KnownCalls(2))
    (told,) = [item.message for item in profile.diagnostics if item.slug == "clocks-loosely-connected"]
    assert "uncertain by 1.00 µs (from 1 correlation record)" in told


def test_events_behind_the_last_submission_are_left_out(tmp_path: Path) -> None:
    """A device writes the dispatches of a call first; where its program was ended, no submission follows them."""
    behind = DEVICE[1].replace('"submission_id":1', '"submission_id":2').replace('index":2', 'index":5')
    with duckdb.connect() as connection:
        profile = read_export(export(tmp_path, *DEVICE, behind), connection)
        assert profile.event_count == 3
        assert profile.events.in_order().aggregate("count(*), count(invocation)").fetchall() == [(3, 3)]
    (told,) = [item.message for item in profile.diagnostics if item.slug == "call-incomplete"]
    assert told.startswith("left out 1 event of an incomplete last call: its submissions are not in the profile")


def test_ticks_that_nothing_brings_to_nanoseconds_are_no_times(tmp_path: Path) -> None:
    """As the exporter writes events of a device whose clock the profile has fewer than two records of."""
    unconnected = DEVICE[1].replace(
        '"start_driver_host_cpu_time_ns":4010,"duration_ns":70',
        '"start_tick":11,"end_tick":15,"duration_ticks":4,"derived_time_available":false',
    )
    with duckdb.connect() as connection:
        profile = read_export(export(tmp_path, DEVICE[0], unconnected), connection, known=KnownCalls(1))
        found = profile.events.in_order().project("kind, duration_ns, start_ns").fetchall()
    assert found == [("dispatch", None, None)]
    (said,) = profile.diagnostics
    assert (said.slug, said.message) == (
        "clock-unconnected",
        "1 event without a duration: the profile cannot convert ticks of the device's clock to nanoseconds",
    )


def test_clocks_are_not_mixed(tmp_path: Path) -> None:
    host = (
        '{"schema_version":15,"record_type":"host_execution_event","source_record_index":4,"event_id":1,"op":"alloca",'
        '"valid":true,"duration_ns":5,"start_host_time_ns":1,"end_host_time_ns":6}'
    )
    with duckdb.connect() as connection:
        profile = read_export(export(tmp_path, *DEVICE, host), connection, known=KnownCalls(1))
        assert profile.event_count == 3
    assert "clock-mixed" in [item.slug for item in profile.diagnostics]
