"""The time between kernels: against a clock that asks at each nanosecond what ran, and in real loops and branches."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import duckdb
import pytest
from msgspec import structs

from tests.builders import built_graph, graph, op, site
from tests.support import Json, check_cli, json_cli
from tracemap.attribution.attribute import Request, attribute
from tracemap.attribution.model import Attribution, OverheadPlace
from tracemap.attribution.overhead import overhead_by_op
from tracemap.core.units import UNKNOWN
from tracemap.map.model import Command, CommandBuffer, OpId, Schedule, Submission, TraceGraph
from tracemap.options.results import Rule
from tracemap.runs.model import BY_STOPS, UNKNOWN_HEADER, ElapsedParts
from tracemap.runs.runfile import read_run, write_run

Row = dict[str, int | str | bool]

LOOP, BRANCH = OpId.of(7), OpId.of(8)
KERNELS = {"site0": "a", "site1": "b", "site2": "c", "site3": "d"}


def program() -> TraceGraph:
    """Buffer 0: a, then a copy of op5, then b. Buffer 1 in a loop: c. Buffer 2 in a branch: d."""
    sites = [
        structs.replace(site(0, 1, kernel="a"), command_buffer=0, command_index=0),
        structs.replace(site(1, 2, kernel="b"), command_buffer=0, command_index=2),
        structs.replace(site(2, 3, kernel="c"), command_buffer=1, command_index=0),
        structs.replace(site(3, 4, kernel="d"), command_buffer=2, command_index=0),
    ]
    ops = [op(number, number) for number in range(1, 9)]
    commands = (
        (_dispatch("a", "site0"), Command("copy", UNKNOWN, UNKNOWN, ops=(OpId.of(5),)), _dispatch("b", "site1")),
        (_dispatch("c", "site2"),),
        (_dispatch("d", "site3"),),
    )
    buffers = tuple(CommandBuffer(at, "main", True, False, own) for at, own in enumerate(commands))
    submissions = (
        Submission((0,), UNKNOWN, (1, 2), last=True),
        Submission((1,), UNKNOWN, (1, 2), last=True, control=(LOOP,)),
        Submission((2,), UNKNOWN, (), last=True, control=(BRANCH,)),
    )
    return structs.replace(graph(ops, sites), command_buffers=buffers, schedules=(Schedule("main", (0,), submissions),))


def _dispatch(kernel: str, place: str) -> Command:
    return Command("dispatch", kernel, place, (1, 1, 1))


def invocation_rows(number: int, start: int, chance: random.Random) -> tuple[list[Row], int]:
    """The rows of a call: a and b in a submission, three trips of c, then d; and the end of the call."""
    rows: list[Row] = []
    at = start
    for order, places in enumerate((("site0", "site1"), ("site2",), ("site2",), ("site2",), ("site3",))):
        submission = 10 * number + order
        rows.append(_row("alloca", number, 900 + submission, at + 1, at + 2, chance.randint(1, 4)))
        submitted, begin = at + chance.randint(1, 8), at + chance.randint(8, 20)
        inner = begin
        for place in places:
            inner += chance.randint(0, 5)
            length = chance.randint(1, 30)
            rows.append(
                {**_row("dispatch", number, submission, None, inner, length), "site": place, "kernel": KERNELS[place]}
            )
            inner += length
        end = inner + chance.randint(0, 6)
        rows.append(_row("execute", number, submission, submitted, begin, end - begin))
        at = end + chance.randint(0, 9)
    return rows, at


def _row(kind: str, invocation: int, submission: int, submitted: int | None, start: int, length: int) -> Row:
    row: Row = {"kind": kind, "invocation": invocation, "submission_id": submission, "warmup": False}
    row |= {"start_ns": start, "duration_ns": length}
    return row if submitted is None else {**row, "submitted_ns": submitted}


def clocked(rows: Sequence[Row]) -> Counter[tuple[str, str, bool, str]]:
    """The time of each kind between two places, asked at each nanosecond of each invocation."""
    found: Counter[tuple[str, str, bool, str]] = Counter()
    for number in dict.fromkeys(row["invocation"] for row in rows):
        own = [row for row in rows if row["invocation"] == number]
        dispatches = sorted((row for row in own if row["kind"] == "dispatch"), key=lambda row: int(row["start_ns"]))
        first = min(int(row.get("submitted_ns", row["start_ns"])) for row in own)
        for now in range(first, max(map(_end, own))):
            if any(int(row["start_ns"]) <= now < _end(row) for row in dispatches):
                continue
            before = [row for row in dispatches if _end(row) <= now]
            after = [row for row in dispatches if int(row["start_ns"]) > now]
            last = max(before, key=_end) if before else None
            names = (str(last["site"]) if last else "", str(after[0]["site"]) if after else "")
            same = bool(last and after and last["submission_id"] == after[0]["submission_id"])
            found[*names, same, _kind_at(now, own)] += 1
    return found


def _end(row: Row) -> int:
    return int(row["start_ns"]) + int(row["duration_ns"])


def _kind_at(now: int, rows: Sequence[Row]) -> str:
    active = {str(row["kind"]) for row in rows if int(row["start_ns"]) <= now < _end(row)}
    if "alloca" in active:
        return "allocation_ns"
    if "execute" in active:
        return "launch_ns"
    waiting = any(int(row.get("submitted_ns", row["start_ns"])) <= now < _end(row) for row in rows)
    return "queue_ns" if waiting else "host_ns"


def attributed(
    folder: Path,
    rows: Sequence[Row],
    elapsed_ns: int,
    elapsed: ElapsedParts,
    slowdown_ns: int = 0,
    map_: TraceGraph | None = None,
    median_ns: int = 0,
) -> Attribution:
    """`slowdown_ns`: by how much the median invocation was faster without the profiler; `median_ns`: 0 for the mean."""
    invocations = len({row["invocation"] for row in rows})
    median_ns = median_ns or elapsed_ns // invocations
    header = structs.replace(
        UNKNOWN_HEADER,
        function="main", workers=1, iterations=invocations, elapsed_ns=elapsed_ns, elapsed=elapsed,
        unprofiled_ns=median_ns - slowdown_ns if slowdown_ns else UNKNOWN,
        clocked_ns=median_ns,
    )  # fmt: skip
    names = list(dict.fromkeys(name for row in rows for name in row))
    types = {"kind": "VARCHAR", "site": "VARCHAR", "kernel": "VARCHAR", "warmup": "BOOLEAN"}
    with duckdb.connect() as connection:
        columns = ", ".join(f"{name} {types.get(name, 'BIGINT')}" for name in names)
        connection.execute(f"CREATE TABLE events ({columns})")
        cells = [[row.get(name) for name in names] for row in rows]
        connection.executemany(f"INSERT INTO events VALUES ({', '.join('?' * len(names))})", cells)
        write_run(header, connection.table("events"), folder / "run.parquet", force=False)
    return attribute(Request(map_ or program(), "cd" * 32, [read_run(folder / "run.parquet")], Rule.EQUAL, timed=True))


@pytest.mark.parametrize("seed", range(6))
def test_gaps_are_as_a_clock_sees_them(seed: int, tmp_path: Path) -> None:
    chance, rows, at = random.Random(seed), list[Row](), 1000
    paused_ns = 0
    for number in range(7):
        own, end = invocation_rows(number, at, chance)
        rows += own
        pause = chance.randint(10, 50)
        paused_ns, at = paused_ns + pause, end + pause
    seen = clocked(rows)
    kernels_ns = sum(int(row["duration_ns"]) for row in rows if row["kind"] == "dispatch")
    totals = Counter[str]()
    for (*_, kind), ns in seen.items():
        totals[kind] += ns
    queue_ns = totals["allocation_ns"] + totals["launch_ns"] + totals["queue_ns"]
    elapsed = ElapsedParts(kernels_ns, 0, queue_ns, totals["host_ns"] + paused_ns, 5, 2, BY_STOPS)
    elapsed_ns = kernels_ns + queue_ns + totals["host_ns"] + paused_ns + 7
    result = attributed(tmp_path, rows, elapsed_ns, elapsed)
    assert sum(row.total_ns for row in result.overhead) == elapsed_ns - kernels_ns

    expected: Counter[tuple[OverheadPlace, tuple[OpId, ...]]] = Counter()
    for (before, after, same, _), ns in seen.items():
        expected[_place(before, after, same=same)] += ns
    expected[OverheadPlace.CALL, ()] += paused_ns
    expected[OverheadPlace.PROFILER, ()] += 5
    expected[OverheadPlace.UNEXPLAINED, ()] += 2
    assert {(row.place, row.ops): row.total_ns for row in result.overhead} == +expected
    loop = next(row for row in result.overhead if row.place is OverheadPlace.LOOP)
    for part in ("allocation_ns", "launch_ns", "queue_ns", "host_ns"):
        of_part = (ns for (_, after, _, kind), ns in seen.items() if kind == part and after == "site2")
        assert getattr(loop, part) == sum(of_part), part
    assert overhead_by_op(result.overhead)[LOOP] == loop.total_ns


def _place(before: str, after: str, *, same: bool) -> tuple[OverheadPlace, tuple[OpId, ...]]:
    if not before or not after:
        return OverheadPlace.CALL, ()
    if same:
        return OverheadPlace.TRANSFER, (OpId.of(5),)  # the buffer has a copy in between
    return (OverheadPlace.LOOP, (LOOP,)) if after == "site2" else (OverheadPlace.CONDITIONAL, (BRANCH,))


@pytest.mark.parametrize("late", [(11,), range(0, 20, 3)], ids=["once", "in a third"])
def test_a_preempted_gap_is_no_loop_overhead(late: Sequence[int], tmp_path: Path) -> None:
    """In some of 20 invocations the second trip of the loop starts 50 µs late: noise, wherever it strikes."""
    loops, median_ns = {}, 0
    for late_ns in (0, 50_000):
        rows, at = late_trips(late if late_ns else (), late_ns)
        median_ns = median_ns or at // 20
        result = attributed(tmp_path, rows, at, parts_of(rows, at), median_ns=median_ns)
        by_place = {row.place: row.total_ns for row in result.overhead}
        assert (OverheadPlace.OUTLIERS in by_place) is bool(late_ns)
        loops[late_ns] = by_place[OverheadPlace.LOOP]
    assert abs(loops[50_000] - loops[0]) < 200, loops


def test_a_late_trip_of_the_median_invocation_is_loop_overhead(tmp_path: Path) -> None:
    """Time that the median invocation has cannot be noise, whatever the gaps are like: a worker fell asleep."""
    at = late_trips((), 0)[1]
    loops = []
    for more_ns in (0, 500):
        late, end = late_trips(range(0, 20, 3), 50_000)
        result = attributed(tmp_path, late, end, parts_of(late, end), median_ns=at // 20 + more_ns)
        assert sum(row.total_ns for row in result.overhead) == end - kernels_ns_of(late)
        loops += [row.total_ns for row in result.overhead if row.place is OverheadPlace.LOOP]
    assert abs(loops[1] - loops[0] - 20 * 500) < 200, loops


def kernels_ns_of(rows: Sequence[Row]) -> int:
    """The time in kernels, which never overlap."""
    return sum(int(row["duration_ns"]) for row in rows if row["kind"] == "dispatch")


def late_trips(late: Sequence[int], late_ns: int) -> tuple[list[Row], int]:
    """The rows of 20 invocations, the second trip of which starts late in some, and their end."""
    chance, rows, at = random.Random(3), list[Row](), 0
    for number in range(20):
        own, end = invocation_rows(number, at, chance)
        if number in late:
            own = [row | {"start_ns": int(row["start_ns"]) + late_ns * _is_late(row)} for row in own]
            end += late_ns
        rows, at = rows + own, end + 10
    return rows, at


def parts_of(rows: Sequence[Row], elapsed_ns: int) -> ElapsedParts:
    """The parts of the elapsed time, as the clock sees them."""
    kernels_ns = kernels_ns_of(rows)
    queue_ns = sum(ns for (*_, kind), ns in clocked(rows).items() if kind != "host_ns")
    return ElapsedParts(kernels_ns, 0, queue_ns, elapsed_ns - kernels_ns - queue_ns, 0, 0, BY_STOPS)


def _is_late(row: Row) -> bool:
    """Whether a row comes after the first trip of the loop."""
    return int(row["submission_id"]) % 10 >= 2


def test_the_slowdown_by_the_profiler_is_its_own(tmp_path: Path) -> None:
    """Each gap loses the same part, and the books still balance."""
    rows, _ = invocation_rows(0, 0, random.Random(4))
    seen = clocked(rows)
    kernels_ns = sum(int(row["duration_ns"]) for row in rows if row["kind"] == "dispatch")
    queue_ns = sum(ns for (*_, kind), ns in seen.items() if kind != "host_ns")
    parts = ElapsedParts(kernels_ns, 0, queue_ns, sum(seen.values()) - queue_ns, 6, 0, BY_STOPS)
    elapsed_ns = kernels_ns + sum(seen.values()) + 6
    plain, corrected = (
        {(row.place, row.ops): row.total_ns for row in attributed(tmp_path, rows, elapsed_ns, parts, slow).overhead}
        for slow in (0, 30)
    )
    profiler = OverheadPlace.PROFILER, ()
    assert (plain[profiler], corrected[profiler]) == (6, 36)
    assert sum(plain.values()) == sum(corrected.values()) == elapsed_ns - kernels_ns
    left = 1 - 30 / sum(seen.values())
    for place in plain.keys() - {profiler}:
        assert abs(corrected[place] - left * plain[place]) < 4, place


def test_without_parts_of_the_elapsed_time_the_gaps_are_known(tmp_path: Path) -> None:
    rows, _ = invocation_rows(0, 0, random.Random(1))
    unknown = ElapsedParts(*[UNKNOWN] * 7)
    result = attributed(tmp_path, rows, 10_000, unknown)
    assert sum(row.total_ns for row in result.overhead) == sum(clocked(rows).values())


MODEL = """
func.func @main(%x: tensor<16x16xf32>, %n: tensor<i32>, %p: tensor<i1>) -> tensor<16x16xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %a:2 = stablehlo.while(%i = %zero, %v = %x) : tensor<i32>, tensor<16x16xf32>
    cond {
      %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    } do {
      %m = stablehlo.dot_general %v, %v, contracting_dims = [1] x [0]
        : (tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<16x16xf32>
      %b:2 = stablehlo.while(%j = %zero, %w = %m) : tensor<i32>, tensor<16x16xf32>
        cond {
          %c = stablehlo.compare LT, %j, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %c : tensor<i1>
        } do {
          %d = stablehlo.dot_general %w, %x, contracting_dims = [1] x [0]
            : (tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<16x16xf32>
          %j1 = stablehlo.add %j, %one : tensor<i32>
          stablehlo.return %j1, %d : tensor<i32>, tensor<16x16xf32>
        }
      %i1 = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %i1, %b#1 : tensor<i32>, tensor<16x16xf32>
    }
  %r = "stablehlo.if"(%p) ({
      %s = stablehlo.dot_general %a#1, %x, contracting_dims = [1] x [0]
        : (tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<16x16xf32>
      stablehlo.return %s : tensor<16x16xf32>
    }, {
      %s = stablehlo.dot_general %a#1, %a#1, contracting_dims = [1] x [0]
        : (tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<16x16xf32>
      stablehlo.return %s : tensor<16x16xf32>
    }) : (tensor<i1>) -> tensor<16x16xf32>
  return %r : tensor<16x16xf32>
}
"""


def test_control_flow_is_of_the_loops_and_branches_around(tmp_path: Path) -> None:
    """The compiler flattens loops to branches between blocks; each submission still has its loops, outermost first."""
    map_ = built_graph(MODEL, tmp_path)
    names = {each.id: f"{each.name}:{each.line}" for each in map_.ops}
    (schedule,) = map_.schedules
    seen = {tuple(names[op] for op in submission.control) for submission in schedule.submissions}
    outer, inner = "stablehlo.while:6", "stablehlo.while:13"
    assert seen == {(), (outer,), (outer, inner), ("stablehlo.if:26",)}


@pytest.mark.parametrize("driver", ["local-sync", "local-task"])
def test_a_real_loop_has_the_time_between_its_trips(driver: str, tmp_path: Path) -> None:
    (tmp_path / "m.mlir").write_text(MODEL, encoding="utf-8")
    bundle, run = tmp_path / "m.tracemap", tmp_path / "run.parquet"
    check_cli("build", tmp_path / "m.mlir", "-o", bundle)
    inputs = ("--input=16x16xf32=0.1", "--input=i32=4", "--input=i8=1")
    check_cli("record", bundle, "--iterations", "30", "-o", run, "--", f"--device={driver}", *inputs)
    result: Json = json_cli("attribute", run, "--map", bundle)
    assert sum(_total(row) for row in result["overhead"]) == (
        result["run"]["elapsed_ns"] - result["run"]["elapsed"]["kernels_ns"]
    )
    gaps = {row["ops"][0]: row["count"] for row in result["overhead"] if row["place"] == "loop"}
    # Between 4 trips of the outer loop, and ahead of each of the 12 trips of the inner one.
    assert sorted(gaps.values()) == [3 * 30, 12 * 30]
    explained = [row for row in result["overhead"] if row["place"] == "unexplained"]
    assert sum(map(_total, explained)) <= 0.05 * result["run"]["elapsed_ns"]
    shown = check_cli("attribute", run, "--map", bundle, "--by", "overhead")
    assert re.search(r"^loop +m\.mlir:13 ", shown, re.MULTILINE)


def _total(row: Json) -> int:
    return sum(value for name, value in row.items() if name.endswith("_ns"))


def test_what_decides_a_loop_is_read_for_the_loop(tmp_path: Path) -> None:
    """A copy after the loop's kernel is its op's, unless the host waits for it before it goes on."""
    map_ = program()
    buffers = list(map_.command_buffers)
    copy = Command("copy", UNKNOWN, UNKNOWN, ops=(OpId.of(6),))
    buffers[1] = structs.replace(buffers[1], commands=(*buffers[1].commands, copy))
    (schedule,) = map_.schedules
    first, loop, branch = schedule.submissions
    rows, _ = invocation_rows(0, 0, random.Random(2))
    places = {}
    for waits in (False, True):
        submissions = (first, structs.replace(loop, waits=waits), branch)
        own = structs.replace(
            map_,
            command_buffers=tuple(buffers),
            schedules=(structs.replace(schedule, submissions=submissions),),
        )
        result = attributed(tmp_path, rows, 10_000, ElapsedParts(*[UNKNOWN] * 7), map_=own)
        places[waits] = {(row.place, row.ops): row.total_ns for row in result.overhead}
    copied = OverheadPlace.TRANSFER, (OpId.of(6),)
    of_loop = OverheadPlace.LOOP, (LOOP,)
    moved = places[False][copied] - places[True][copied]  # what remains is the way out of the loop
    assert moved > 0
    assert places[True][of_loop] - places[False][of_loop] == moved
