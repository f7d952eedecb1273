"""What the program gains: on timelines whose truth is known, and on programs that were compiled and run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tests.builders import graph, op, site
from tests.conftest import Built
from tests.support import check_cli, json_cli
from tracemap.attribution.attribute import Request, attribute
from tracemap.attribution.model import Attribution, TimedWork
from tracemap.attribution.scan import timed_work
from tracemap.attribution.what_if import (
    REMOVED,
    ROOFLINE,
    UNCHANGED,
    Change,
    Gain,
    _passed_on,
    ranked_gains,
    what_if,
)
from tracemap.core.errors import UsageInvalid
from tracemap.core.units import UNKNOWN, Integer
from tracemap.map.model import OpId, Schedule, Submission, TraceGraph
from tracemap.options.results import Rule
from tracemap.runs.model import UNKNOWN_HEADER, Peaks, RunHeader
from tracemap.runs.runfile import read_run, write_run

PERIOD = 1_000_000
"""Time from one invocation to the next in ns."""
CALLS = 12


@dataclass(frozen=True, slots=True)
class Event:
    """A row of an invocation: an `execute` has a submission, a dispatch a site and workgroups."""

    kind: str
    start: int
    duration: int
    submission: int = 0
    submitted: int | None = None
    site: int | None = None
    cpu: int | None = None
    tiles: int = 1


def dispatch(
    site: int, start: int, duration: int, *, cpu: int | None = None, tiles: int = 1, submission: int = 0
) -> Event:
    return Event("dispatch", start, duration, submission, site=site, cpu=cpu or duration, tiles=tiles)


def submission(number: int, submitted: int, start: int, *dispatches: Event) -> list[Event]:
    """A submission that ends with its last dispatch."""
    end = max(event.start + event.duration for event in dispatches)
    execute = Event("execute", start, end - start, number, submitted)
    return [execute, *(replace(event, submission=number) for event in dispatches)]


def text_of(value: object) -> str:
    return "NULL" if value is None else repr(value)


def run_of(folder: Path, events: Sequence[Event], header: RunHeader, name: str = "run.parquet") -> Path:
    """A run of equal invocations."""
    rows = [
        (
            event.kind,
            None if event.site is None else f"site{event.site}",
            None if event.site is None else f"k{event.site}",
            event.submission + 1000 * call,
            call,
            None if event.submitted is None else event.submitted + PERIOD * call,
            event.start + PERIOD * call,
            event.duration,
            event.cpu,
            event.tiles if event.site is not None else None,
        )
        for call in range(CALLS)
        for event in events
    ]
    columns = "kind, site, kernel, submission_id, invocation, submitted_ns, start_ns, duration_ns, cpu_ns, workgroups_x"
    values = ", ".join(f"({', '.join(map(text_of, row))})" for row in rows)
    query = f"SELECT *, 1 AS workgroups_y, 1 AS workgroups_z FROM (VALUES {values}) AS rows({columns})"
    with duckdb.connect() as connection:
        write_run(header, connection.sql(query), folder / name, force=True)
    return folder / name


def header(workers: Integer = 2, device: str = "local-task", **changes: Any) -> RunHeader:  # noqa: ANN401 - fields of all types
    return structs.replace(
        UNKNOWN_HEADER,
        device=device,
        workers=workers,
        function="main",
        iterations=CALLS,
        elapsed_ns=PERIOD * CALLS,
        **changes,
    )


def program(*members: Sequence[int], waits: Sequence[bool] = ()) -> TraceGraph:
    """A program of sites with these ops; with `waits`, each site is a submission of its own."""
    sites = [
        structs.replace(site(number, *ops, kernel=f"k{number}"), command_buffer=number if waits else 0)
        for number, ops in enumerate(members)
    ]
    ops = [op(number) for number in sorted({number for own in members for number in own})]
    submissions = [
        Submission(
            (number,), UNKNOWN, (number + 1,) if number + 1 < len(waits) else (), number + 1 == len(waits), (), wait
        )
        for number, wait in enumerate(waits)
    ]
    schedules = (Schedule("main", (0,), tuple(submissions)),) if waits else ()
    return structs.replace(graph(ops, sites), schedules=schedules)


def costs(graph: TraceGraph, *tables: Path) -> Attribution:
    return attribute(Request(graph, "cd" * 32, [read_run(table) for table in tables], Rule.EQUAL, timed=True))


def faster(
    attribution: Attribution,
    graph: TraceGraph,
    sites: Sequence[int],
    factor: float,
    *ops: int,
    workers: Integer = UNKNOWN,
) -> Gain:
    """The gain if ops of some sites get faster; without ops, all of them."""
    chosen = frozenset(map(OpId.of, ops))
    parts = {
        f"site{number}": chosen or frozenset(member.op for member in graph.sites[number].members) for number in sites
    }
    return what_if(graph, attribution, Change(parts, factor, workers))


def test_work_one_after_another_is_gained_as_it_is(tmp_path: Path) -> None:
    map_ = program((1,), (2,))
    events = submission(1, 0, 1000, dispatch(0, 2000, 100_000), dispatch(1, 103_000, 300_000))
    found = costs(map_, run_of(tmp_path, events, header(workers=1)))
    gain = faster(found, map_, [1], 2.0)
    assert (gain.before_ns, gain.after_ns, gain.reason) == (PERIOD, PERIOD - 150_000, "")
    assert gain.low_ns < gain.after_ns < gain.high_ns
    assert faster(found, map_, [0, 1], 4.0).saved_ns == 300_000
    assert faster(found, map_, [1], 0.5).saved_ns == -300_000
    assert faster(found, map_, [1], 0.9995).reason == "takes too little time"
    # What is removed takes its barrier with it.
    assert faster(found, map_, [1], REMOVED).saved_ns == 301_000
    assert faster(found, map_, [0], REMOVED).saved_ns == 100_000
    assert [change.target for change in ranked_gains(map_, found)] == ["op2", "op1"]


def test_a_shorter_kernel_next_to_a_longer_one_gains_nothing(tmp_path: Path) -> None:
    map_ = program((1,), (2,))
    events = submission(1, 0, 1000, dispatch(0, 2000, 400_000), dispatch(1, 2100, 100_000))
    found = costs(map_, run_of(tmp_path, events, header()))
    hidden = faster(found, map_, [1], REMOVED)
    assert (hidden.saved_ns, hidden.reason) == (0, "hidden: k0 runs at the same time, and takes longer")
    # Beyond the time of the shorter kernel nothing is gained.
    assert faster(found, map_, [0], 2.0).saved_ns == pytest.approx(200_000, rel=0.01)
    assert faster(found, map_, [0], 100.0).saved_ns == pytest.approx(300_000, rel=0.01)
    assert faster(found, map_, [0, 1], 2.0).saved_ns == pytest.approx(200_000, rel=0.01)


def test_kernels_of_many_tiles_share_the_workers(tmp_path: Path) -> None:
    map_ = program((1,), (2,))
    many = (dispatch(0, 2000, 300_000, cpu=400_000, tiles=64), dispatch(1, 100_000, 302_000, cpu=400_000, tiles=64))
    found = costs(map_, run_of(tmp_path, submission(1, 0, 1000, *many), header()))
    assert faster(found, map_, [0], 2.0).saved_ns == pytest.approx(100_000, rel=0.02)
    assert faster(found, map_, [0], REMOVED).saved_ns == pytest.approx(200_000, rel=0.02)


def test_a_device_that_waits_for_the_host_gains_nothing(tmp_path: Path) -> None:
    map_ = program((1,), (2,), waits=(True, False))
    late = [
        *submission(1, 0, 1000, dispatch(0, 2000, 100_000)),
        *submission(2, 300_000, 301_000, dispatch(1, 302_000, 100_000)),
    ]
    found = costs(map_, run_of(tmp_path, late, header()))
    bound = faster(found, map_, [0], 2.0)
    assert (bound.saved_ns, bound.reason) == (
        0,
        "host-bound: the device waits there for the host to submit the next work",
    )
    assert faster(found, map_, [1], 2.0).saved_ns == 50_000
    # A host that waits for the device submits earlier.
    waiting = structs.replace(map_, schedules=program((1,), (2,), waits=(True, True)).schedules)
    assert faster(costs(waiting, run_of(tmp_path, late, header())), waiting, [0], 2.0).saved_ns == 50_000
    synchronous = header(workers=1, device="local-sync")
    assert faster(costs(map_, run_of(tmp_path, late, synchronous)), map_, [0], 2.0).saved_ns == 50_000


def test_a_gain_ends_where_the_host_is_late(tmp_path: Path) -> None:
    """The second submission came 30 µs before the first ended, so that no more than that is gained."""
    map_ = program((1,), (2,), waits=(True, False))
    events = [
        *submission(1, 0, 1000, dispatch(0, 2000, 100_000)),
        *submission(2, 72_000, 103_000, dispatch(1, 104_000, 100_000)),
    ]
    found = costs(map_, run_of(tmp_path, events, header()))
    assert faster(found, map_, [0], 2.0).saved_ns == 30_000
    assert faster(found, map_, [0, 1], 2.0).saved_ns == 80_000


def loop_saved(savings: Sequence[int], slack: Sequence[int], invocation: Sequence[int], waits: Sequence[bool]) -> int:
    """Savings by the definition: starts and ends of stages, and times of submissions, before and after."""
    total = 0
    for number in dict.fromkeys(invocation):
        device_saved = host_saved = 0
        first = True
        for place, own in enumerate(invocation):
            if own != number:
                continue
            if first or waits[place]:
                host_saved = device_saved
                begun = device_saved
            else:
                # The end of the stage before is at 0, the submission at -slack.
                begun = max(0, -slack[place]) - max(-device_saved, -slack[place] - host_saved)
            first = False
            device_saved = begun + savings[place]
        total += device_saved
    return total


STAGES = st.lists(
    st.tuples(st.integers(0, 2), st.integers(-50, 100), st.integers(-100, 100), st.booleans()), min_size=1, max_size=30
)


@given(STAGES)
def test_savings_pass_from_stage_to_stage_as_in_a_simulation(stages: list[tuple[int, int, int, bool]]) -> None:
    stages = sorted(stages, key=lambda stage: stage[0])
    invocation, savings, slack, waits = (list(column) for column in zip(*stages, strict=True))
    # The first stage of an invocation follows none.
    first = [place == 0 or invocation[place] != invocation[place - 1] for place in range(len(stages))]
    slack = [0 if begins else own for begins, own in zip(first, slack, strict=True)]
    none: Any = np.array([], dtype=np.int64)
    timed = TimedWork(
        (),
        *(none, none, none, none, none, none, none),
        idle_ns=np.zeros(len(stages), dtype=np.int64),
        slack_ns=np.array(slack),
        is_slack_known=True,
        invocation=np.array(invocation),
        tail_ns=np.zeros(len(set(invocation)), dtype=np.int64),
        scale=1.0,
        period_ns=0.0,
    )
    assert _passed_on(timed, np.array(savings), np.array(waits)) == loop_saved(savings, slack, invocation, waits)


def test_an_op_of_a_fused_kernel_has_a_wider_interval(tmp_path: Path) -> None:
    map_ = program((1, 2))
    events = submission(1, 0, 1000, dispatch(0, 2000, 400_000))
    found = costs(map_, run_of(tmp_path, events, header(workers=1)))
    one, both = faster(found, map_, [0], 2.0, 1), faster(found, map_, [0], 2.0)
    assert (one.saved_ns, both.saved_ns) == (100_000, 200_000)
    # The map has no text of the kernel, so the other op may take as long meanwhile.
    assert one.high_ns >= PERIOD
    assert both.high_ns < PERIOD - 150_000


def test_the_roofline_limits_what_can_be_gained(tmp_path: Path) -> None:
    """An op has 100 operations and 64 bytes."""
    map_ = program((1,))
    events = submission(1, 0, 1000, dispatch(0, 2000, 400_000))
    peaks = Peaks(operations_per_second=1_000_000, bytes_per_second=10**12, source="measured")
    found = costs(map_, run_of(tmp_path, events, header(workers=1, peaks=peaks)))
    assert faster(found, map_, [0], ROOFLINE).saved_ns == 300_000
    slow = costs(
        map_, run_of(tmp_path, events, header(workers=1, peaks=structs.replace(peaks, operations_per_second=100)))
    )
    at_roofline = faster(slow, map_, [0], ROOFLINE)
    assert at_roofline.saved_ns == 0
    assert "as fast as the roofline allows" in at_roofline.reason


def test_more_workers_help_kernels_with_enough_tiles(tmp_path: Path) -> None:
    map_ = program((1,), (2,))
    events = submission(1, 0, 1000, dispatch(0, 2000, 300_000, tiles=64), dispatch(1, 303_000, 300_000, tiles=1))
    found = costs(map_, run_of(tmp_path, events, header(workers=1)))
    two = faster(found, map_, [], UNCHANGED, workers=2)
    assert 75_000 < two.saved_ns <= 150_000
    assert two.high_ns - two.low_ns > 50_000
    sync = costs(map_, run_of(tmp_path, events, header(workers=1, device="local-sync")))
    with pytest.raises(UsageInvalid, match="local-sync has no workers to change"):
        faster(sync, map_, [], UNCHANGED, workers=2)


def test_outliers_and_the_profiler_are_not_gained(tmp_path: Path) -> None:
    """One invocation of twelve takes ten times as long, because its kernel was preempted."""
    map_ = program((1,))
    run = run_of(tmp_path, submission(1, 0, 1000, dispatch(0, 2000, 400_000)), header(workers=1))
    slow = tmp_path / "slow.parquet"
    with duckdb.connect() as connection:
        more = "CASE WHEN invocation = 5 THEN 9000000 ELSE 0 END"
        late = "CASE WHEN invocation > 5 THEN 9000000 ELSE 0 END"
        changed = connection.sql(
            f"""SELECT * REPLACE (duration_ns + {more} AS duration_ns, cpu_ns + {more} AS cpu_ns,
            start_ns + {late} AS start_ns, submitted_ns + {late} AS submitted_ns) FROM '{run}'"""
        )
        slower = header(workers=1)
        write_run(structs.replace(slower, elapsed_ns=PERIOD * CALLS + 9_000_000), changed, slow, force=True)
    gain = faster(costs(map_, slow), map_, [0], 2.0)
    assert gain.before_ns == pytest.approx(PERIOD, rel=0.01)
    assert gain.saved_ns == pytest.approx(200_000, rel=0.01)


def test_long_runs_are_sampled_by_whole_invocations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    map_ = program((1,), (2,))
    events = submission(1, 0, 1000, dispatch(0, 2000, 100_000), dispatch(1, 103_000, 300_000))
    table = run_of(tmp_path, events, header(workers=1))
    whole = costs(map_, table)
    monkeypatch.setattr(timed_work, "MOST_EVENTS", CALLS * 3 // 2)
    monkeypatch.setattr(timed_work, "_WINDOWS", 3)
    sampled = costs(map_, table, table_of_other_invocations(tmp_path, table))
    assert whole.timed is not None
    assert sampled.timed is not None
    assert (whole.timed.scale, len(whole.timed.tail_ns)) == (1.0, CALLS)
    assert (sampled.timed.scale, len(sampled.timed.tail_ns)) == (2.0, CALLS)
    gains = [faster(found, map_, [1], 2.0) for found in (sampled, whole)]
    assert [(gain.before_ns, gain.saved_ns) for gain in gains] == [(PERIOD, 150_000)] * 2


def table_of_other_invocations(folder: Path, table: Path) -> Path:
    """The same run, with invocations that begin at another number."""
    later = folder / "later.parquet"
    with duckdb.connect() as connection:
        rows = connection.sql(f"SELECT * REPLACE (invocation + 7 AS invocation) FROM '{table}'")
        write_run(header(workers=1), rows, later, force=True)
    return later


def test_several_runs_count_together(tmp_path: Path) -> None:
    map_ = program((1,))
    runs = [
        run_of(tmp_path, submission(1, 0, 1000, dispatch(0, 2000, time)), header(workers=1), f"{time}.parquet")
        for time in (200_000, 400_000)
    ]
    assert faster(costs(map_, *runs), map_, [0], 2.0).saved_ns == 150_000


def test_devices_of_unknown_workers_overlap_as_they_did(tmp_path: Path) -> None:
    """As on a GPU: two dispatches at the same time, without CPU times and times of submission."""
    map_ = program((1,), (2,))
    events = [Event("dispatch", 2000, 300_000, site=0), Event("dispatch", 2000, 300_000, site=1)]
    found = costs(map_, run_of(tmp_path, events, header(workers=UNKNOWN, device="vulkan")))
    assert faster(found, map_, [0, 1], 2.0).saved_ns == 150_000
    assert faster(found, map_, [0], 2.0).saved_ns == 0
    with pytest.raises(UsageInvalid, match="vulkan has no workers to change"):
        faster(found, map_, [], UNCHANGED, workers=2)


def test_runs_without_elapsed_time_have_that_of_their_rows(tmp_path: Path) -> None:
    map_ = program((1,))
    bare = structs.replace(header(workers=1), elapsed_ns=UNKNOWN, iterations=UNKNOWN)
    found = costs(map_, run_of(tmp_path, submission(1, 0, 1000, dispatch(0, 2000, 400_000)), bare))
    gain = faster(found, map_, [0], 2.0)
    assert (gain.before_ns, gain.saved_ns) == (PERIOD, 200_000)


def test_invocations_of_a_batch_have_the_mean_time(tmp_path: Path) -> None:
    """Each invocation takes twice the time from one to the next."""
    map_ = program((1,))
    events = submission(1, 0, 1000, dispatch(0, 2000, 400_000), dispatch(0, 1_600_000, 200_000))
    shorter = structs.replace(header(workers=1), elapsed_ns=PERIOD * CALLS * 9 // 10)
    found = costs(map_, run_of(tmp_path, events, shorter))
    assert faster(found, map_, [0], 2.0).before_ns == PERIOD * 9 // 10


@pytest.mark.parametrize(
    ("column", "said"),
    [("start_ns", "does not say when its work ran"), ("invocation", "does not say when its work ran")],
)
def test_runs_that_do_not_tell_are_rejected(tmp_path: Path, column: str, said: str) -> None:
    map_ = program((1,))
    run = run_of(tmp_path, submission(1, 0, 1000, dispatch(0, 2000, 400_000)), header(workers=1))
    bare = tmp_path / "bare.parquet"
    with duckdb.connect() as connection:
        write_run(header(workers=1), connection.sql(f"SELECT * EXCLUDE ({column}) FROM '{run}'"), bare, force=True)
    found = costs(map_, bare)
    assert ranked_gains(map_, found) == ()
    with pytest.raises(UsageInvalid, match=said):
        faster(found, map_, [0], 2.0)


def test_runs_of_several_functions_have_no_common_invocation(tmp_path: Path) -> None:
    map_ = program((1,))
    events = submission(1, 0, 1000, dispatch(0, 2000, 400_000))
    other = structs.replace(header(workers=1), function="other")
    found = costs(map_, run_of(tmp_path, events, header(workers=1)), run_of(tmp_path, events, other, "b.parquet"))
    with pytest.raises(UsageInvalid, match="different functions"):
        faster(found, map_, [0], 2.0)


# ---- programs that run


def products(first: int, second: int) -> str:
    """Two independent products with this number of terms, in kernels of their own."""
    body, results = [], []
    for name, terms in (("x", first), ("y", second)):
        body += [
            f"%e{name} = tensor.empty() : tensor<32x64xf32>",
            f"%f{name} = linalg.fill ins(%z : f32) outs(%e{name} : tensor<32x64xf32>) -> tensor<32x64xf32>",
            f"%{name} = linalg.matmul ins(%a{name}, %b{name} : tensor<32x{terms}xf32>, tensor<{terms}x64xf32>)"
            f" outs(%f{name} : tensor<32x64xf32>) -> tensor<32x64xf32>",
        ]
        results.append(f"%a{name}: tensor<32x{terms}xf32>, %b{name}: tensor<{terms}x64xf32>")
    lines = "\n  ".join(["%z = arith.constant 0.0 : f32", *body])
    kinds = "tensor<32x64xf32>, tensor<32x64xf32>"
    return f"func.func @main({', '.join(results)}) -> ({kinds}) {{\n  {lines}\n  return %x, %y : {kinds}\n}}\n"


@pytest.mark.long
@pytest.mark.parametrize(
    "options", [("--serial",), ("--", "--device=local-sync"), ()], ids=["serial", "sync", "parallel"]
)
def test_a_product_of_half_the_terms_gains_what_was_predicted(tmp_path: Path, options: tuple[str, ...]) -> None:
    flags = ("-o", "{}.parquet", "--seconds", "0.4")
    times = {}
    for name, terms in (("long", 4096), ("short", 2048)):
        (tmp_path / f"{name}.mlir").write_text(products(terms, 512))
        check_cli("build", f"{name}.mlir", cwd=tmp_path)
        own = [flag.format(name) for flag in flags]
        at = options.index("--") if "--" in options else len(options)
        check_cli("record", f"{name}.tracemap", *options[:at], *own, *options[at:], cwd=tmp_path)
        found = json_cli("what-if", f"{name}.parquet", "--kernel", "main_dispatch_0", "--json", cwd=tmp_path)
        times[name] = found
    (change,) = times["long"]["changes"]
    predicted = 1 - change["after_ns"] / times["long"]["before_ns"]
    truth = 1 - times["short"]["before_ns"] / times["long"]["before_ns"]
    assert 0.1 < predicted < 0.5
    # The machine that runs the tests is busy.
    assert abs(predicted - truth) < 0.15


@pytest.mark.long
def test_sums_of_gains_are_at_most_the_time_of_kernels(recorded: Any, built: Built, tmp_path: Path) -> None:  # noqa: ANN401 - a fixture
    run = recorded("jax_mlp")
    found = json_cli("what-if", run, "--map", built("jax_mlp"), "--format", "json", "--faster", "removed", cwd=tmp_path)
    saved = [found["before_ns"] - change["after_ns"] for change in found["changes"]]
    assert saved == sorted(saved, reverse=True)
    costs_of_run = json_cli("attribute", run, "--map", built("jax_mlp"), "--format", "json", cwd=tmp_path)
    ranked = [change["target"] for change in costs_of_run["what_if"]]
    assert {change["target"] for change in found["changes"]} == set(ranked)
    kernels = costs_of_run["run"]["elapsed"]["kernels_ns"] / costs_of_run["run"]["iterations"]
    assert 0 < sum(saved) < 1.1 * kernels
