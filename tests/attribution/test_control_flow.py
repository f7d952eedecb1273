"""Every event on its dispatch, whatever the control flow: real programs through the command line.

The truth needs no map: each program's ops depend on one another, so that events follow the order of the program; which
op runs k-th in a call follows from the arguments. A label in a comment names the op of a line. What the events of a
label took together must be what its op is given, to the nanosecond.
"""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pytest

from tests.support import Json, check_cli, json_cli, long_where, made_once, run_cli
from tracemap.core.toolchain import find_tool

PROGRAMS = Path(__file__).parent.with_name("programs")
ITERATIONS = 4
SQUARE = ("16x16xf32=0.5", "16x16xf32=0.25", "16x16xf32=0")
ROWS = ("5x16xf32=0.5", "16x16xf32=0.25", "5x16xf32=0")
PLAIN, FRESH = "", "--iree-hal-memoization=false"
DRIVERS = {
    "serial": ("--serial",),
    "two-workers": ("--", "--device=local-task", "--task_topology_group_count=2"),
    "sync": ("--", "--device=local-sync"),
}

Bundles = Callable[[str, str], Path]


@dataclass(frozen=True, slots=True)
class Case:
    """A call, and the labels of what it runs, in order."""

    program: str
    function: str
    inputs: tuple[str, ...]
    labels: str


CASES = [
    Case("straight", "main", (*SQUARE, "16x24xf32=1", "16x24xf32=0"), "A B C D"),
    Case("loops", "counted", (*SQUARE, "3", "2"), "A" + " B C C" * 3),
    Case("loops", "counted", (*SQUARE, "0", "2"), "A"),
    Case("loops", "counted", (*SQUARE, "2", "0"), "A B B"),
    Case("loops", "until", (*SQUARE, "4"), "D E " * 4),
    Case("loops", "until", (*SQUARE, "0"), ""),
    Case("branches", "either", (*SQUARE, "0"), "A C"),
    Case("branches", "either", (*SQUARE, "1"), "B C"),
    Case("branches", "alternating", (*SQUARE, "7"), "D E E D E E D"),
    Case("calls", "twice", SQUARE, "A B A B C"),
    Case("calls", "often", (*SQUARE, "3"), "A B " * 3),
    Case("dynamic", "chain", ROWS, "A B"),
    Case("dynamic", "looped", (*ROWS, "3"), "E F F F G"),
    Case("dynamic", "looped", (*ROWS, "0"), "E G"),
    Case("dynamic", "alike", ("5x16xf32=0.5", "5x16xf32=0.25", "3"), "H N N N P"),
    Case("arms", "blocks", (*ROWS, "0"), "F G J"),
    Case("arms", "blocks", (*ROWS, "1"), "F H I J"),
    Case("transfers", "alone", (), "C"),
    Case("transfers", "copied", ("64x64xf32=1", "1x64xf32=2", "3"), "D"),
    Case("transfers", "cut", ("64x64xf32=1", "3"), "E"),
    Case("transfers", "filled", ("1024xf32=1",), "B"),
    Case("state", "step", SQUARE[:2], "A B"),
    Case("load_time_call", "main", ("256x256xf32=0.5",), "A"),
]


def named(value: Case | str) -> str:
    """The name of a case in the names of tests."""
    return value if isinstance(value, str) else f"{value.function}-{value.labels.replace(' ', '')[:9]}"


@pytest.fixture(scope="session")
def bundles(made: Path) -> Bundles:
    """Makes, once, the bundle of a program, compiled plainly or with a flag."""

    def build(program: str, flag: str = PLAIN) -> Path:
        bundle = made / f"program-{program}{flag and '-fresh'}.tracemap"
        with made_once(bundle) as missing:
            if missing:
                check_cli("build", PROGRAMS / f"{program}.mlir", "-o", bundle, *(("--", flag) if flag else ()))
        return bundle

    return build


def recorded(case: Case, bundle: Path, run: Path, driver: Sequence[str]) -> Path:
    """Record a case; the first call is warm-up."""
    inputs = [word for spec in case.inputs for word in ("--input", spec)]
    options = ("--function", case.function, "--iterations", str(ITERATIONS), "--warmup", "1")
    check_cli("record", bundle, *options, *inputs, "-o", run, *driver)
    return run


def durations_by_place(run: Path) -> list[list[int]]:
    """For each measured call: how long each dispatch or transfer took, in order of time."""
    with duckdb.connect() as connection:
        rows = connection.execute(
            "SELECT list(duration_ns ORDER BY start_ns) FROM read_parquet(?) "
            "WHERE NOT warmup AND kind IN ('dispatch', 'copy', 'fill') GROUP BY invocation ORDER BY invocation",
            [str(run)],
        ).fetchall()
    return [row[0] for row in rows]


def truth(case: Case, run: Path) -> dict[str, tuple[int, int]]:
    """For each label how often it ran in the measured calls, and how long altogether."""
    labels = case.labels.split()
    calls = durations_by_place(run)
    assert [len(call) for call in calls] == ([len(labels)] * ITERATIONS if labels else [])
    found: dict[str, tuple[int, int]] = {}
    for call in calls:
        for label, duration in zip(labels, call, strict=True):
            times, total = found.get(label, (0, 0))
            found[label] = (times + 1, total + duration)
    return found


@functools.cache
def labelled(program: str, bundle: Path) -> dict[str, str]:
    """By op the label that stands at its line."""
    lines = (PROGRAMS / f"{program}.mlir").read_text().splitlines()
    labels = {number: line.partition("// ")[2] for number, line in enumerate(lines, start=1) if line[:1] == " "}
    return {op["id"]: labels.get(op["line"], "") for op in json_cli("show", bundle)["ops"]}


def attributed(program: str, bundle: Path, run: Path) -> tuple[dict[str, tuple[int, int]], Json]:
    """For each label whose op ran how often and how long, by `tracemap attribute`; and all that it says."""
    ops = labelled(program, bundle)
    result = json_cli("attribute", run, "--map", bundle, "--keep-outliers")
    found = {
        ops[each["op"]]: (each["calls"], each["metrics"]["duration_ns"]["attributed"])
        for each in result["ops"]
        if each["calls"]
    }
    return found, result


def slugs(result: Json) -> set[str]:
    """The kinds of what the result warns of."""
    return {diagnostic["slug"] for diagnostic in result["diagnostics"]}


ARMS = [case for case in CASES if case.program == "branches"]
"""Their buffers are alike but for their numbers, which mean nothing where the driver lists no buffers."""


@pytest.mark.long
@pytest.mark.parametrize(
    ("case", "driver"),
    long_where(
        [(case, driver) for case in CASES for driver in DRIVERS if not (driver == "sync" and case in ARMS)],
        lambda number, _: number % 4 in (1, 2),
    ),
    ids=named,
)
def test_every_event_reaches_its_op(case: Case, driver: str, bundles: Bundles, tmp_path: Path) -> None:
    run = recorded(case, bundles(case.program, PLAIN), tmp_path / "run.parquet", DRIVERS[driver])
    found, result = attributed(case.program, bundles(case.program, PLAIN), run)
    assert found == truth(case, run)
    assert "split-evenly" not in slugs(result)
    reasons = {each["reason"] for each in result["unattributed"]}
    assert reasons <= {"memory-management", "submission-and-queue"}


FRESH_CASES = [case for case in CASES if case.program in ("straight", "loops", "calls", "state")]


@pytest.mark.long
@pytest.mark.parametrize(
    ("case", "driver"),
    long_where(
        [(case, driver) for case in FRESH_CASES for driver in ("serial", "sync")], lambda number, _: number % 3 == 1
    ),
    ids=named,
)
def test_buffers_made_anew_on_each_call(case: Case, driver: str, bundles: Bundles, tmp_path: Path) -> None:
    """Without memoization every buffer has a fresh number; the order of submissions tells them apart."""
    bundle = bundles(case.program, FRESH)
    run = recorded(case, bundle, tmp_path / "run.parquet", DRIVERS[driver])
    found, result = attributed(case.program, bundle, run)
    assert found == truth(case, run)
    assert "split-evenly" not in slugs(result)


@pytest.mark.long
@pytest.mark.parametrize("case", ARMS, ids=named)
def test_arms_on_a_driver_that_lists_no_buffers(case: Case, bundles: Bundles, tmp_path: Path) -> None:
    """Equal arms cannot be told apart there: their events are split and flagged, all others exact."""
    run = recorded(case, bundles(case.program, PLAIN), tmp_path / "run.parquet", DRIVERS["sync"])
    found, result = attributed(case.program, bundles(case.program, PLAIN), run)
    true = truth(case, run)
    assert found.get("C") == true.get("C")
    assert sum(total for _, total in found.values()) == sum(total for _, total in true.values())
    assert "split-evenly" in slugs(result)


def test_the_calls_of_a_site_are_its_trips(bundles: Bundles, tmp_path: Path) -> None:
    """`call` counts the executions of a command, warm-up included: three trips of five calls, each with two inside."""
    case = Case("loops", "counted", (*SQUARE, "3", "2"), "")
    run = recorded(case, bundles("loops", PLAIN), tmp_path / "run.parquet", DRIVERS["serial"])
    with duckdb.connect() as connection:
        rows = connection.execute(
            "SELECT kernel, command_buffer_id, list(call ORDER BY start_ns) FROM read_parquet(?) "
            "WHERE kind = 'dispatch' GROUP BY 1, 2 ORDER BY len(list(call))",
            [str(run)],
        ).fetchall()
    assert [calls for _, _, calls in rows] == [list(range(times * (ITERATIONS + 1))) for times in (1, 3, 6)]


@pytest.mark.long
def test_work_at_load_is_told_as_not_measured(bundles: Bundles, tmp_path: Path) -> None:
    case = Case("state", "step", SQUARE[:2], "A B")
    run = recorded(case, bundles("state", PLAIN), tmp_path / "run.parquet", DRIVERS["serial"])
    found, result = attributed("state", bundles("state", PLAIN), run)
    assert "I" not in found
    assert "load-time-not-measured" in slugs(result)


@pytest.mark.long
@pytest.mark.parametrize(("driver", "calls"), [("serial", {}), ("sync", {"A": ITERATIONS, "B": ITERATIONS})])
def test_dispatches_without_workgroups(driver: str, calls: dict[str, int], bundles: Bundles, tmp_path: Path) -> None:
    """On local-task a dispatch of no workgroups is no event, on local-sync one of its own: neither is a mistake."""
    empty = ("0x16xf32", "16x16xf32=1", "0x16xf32")
    run = recorded(
        Case("dynamic", "chain", empty, ""), bundles("dynamic", PLAIN), tmp_path / "r.parquet", DRIVERS[driver]
    )
    found, result = attributed("dynamic", bundles("dynamic", PLAIN), run)
    assert {label: times for label, (times, _) in found.items()} == calls
    assert "split-evenly" not in slugs(result)


@pytest.mark.few(1)
@pytest.mark.parametrize("driver", DRIVERS)
def test_what_the_order_cannot_tell_is_ambiguous(driver: str, bundles: Bundles, tmp_path: Path) -> None:
    """Two trips of one loop and three of the next, of one kernel in buffers that look alike: any may be of either."""
    case = Case("dynamic", "unclear", ("5x16xf32=0.5", "5x16xf32=0.25", "2", "3"), "Q Q R R R")
    run = recorded(case, bundles("dynamic", PLAIN), tmp_path / "run.parquet", DRIVERS[driver])
    found, result = attributed("dynamic", bundles("dynamic", PLAIN), run)
    whole = sum(total for _, total in truth(case, run).values())
    assert found["Q"][0] == found["R"][0] == ITERATIONS * 5 // 2
    assert found["Q"][1] + found["R"][1] == whole
    assert abs(found["Q"][1] - found["R"][1]) <= 1
    (said,) = (each["message"] for each in result["diagnostics"] if each["slug"] == "split-evenly")
    sites = [each["site"] for each in result["sites"] if each["calls"]]
    assert " or ".join(sites) in said
    costs = [each["metrics"]["duration_ns"] for each in result["ops"] if each["calls"]]
    assert [(cost["low"], cost["high"]) for cost in costs] == [(0, whole)] * 2


@pytest.mark.long
@pytest.mark.parametrize("which", ["0", "1"])
def test_arms_that_the_compiler_made_one_are_ambiguous(which: str, bundles: Bundles, tmp_path: Path) -> None:
    bundle = bundles("dynamic", PLAIN)
    assert "sites-merged" in check_stderr("show", bundle)
    case = Case("dynamic", "pair", (*ROWS, which), "C" if which == "0" else "D")
    found, result = attributed("dynamic", bundle, recorded(case, bundle, tmp_path / "run.parquet", DRIVERS["serial"]))
    assert set(found) == {"C", "D"}
    assert "split-evenly" in slugs(result)


@pytest.mark.long
@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("which", ["0", "1"])
def test_what_is_around_arms_that_became_one_is_exact(
    which: str, driver: str, bundles: Bundles, tmp_path: Path
) -> None:
    """Only the arms may be meant by their one command, though what stands behind them is of the same kernel."""
    case = Case("arms", "between", (*ROWS, which), "A C E" if which == "0" else "A D E")
    bundle = bundles("arms", PLAIN)
    run = recorded(case, bundle, tmp_path / "run.parquet", DRIVERS[driver])
    found, result = attributed("arms", bundle, run)
    true = truth(case, run)
    assert {label: found[label] for label in "AE"} == {label: true[label] for label in "AE"}
    assert found["C"][1] + found["D"][1] == sum(true[label][1] for label in "CD" if label in true)
    costs = {op["op"]: op["metrics"]["duration_ns"] for op in result["ops"]}
    (last,) = (costs[op] for op, label in labelled("arms", bundle).items() if label == "E" and op in costs)
    assert last["low"] == last["attributed"] == last["high"]


def check_stderr(*arguments: str | Path) -> str:
    """All that a command says, on both streams."""
    done = run_cli(*arguments)
    assert done.returncode == 0
    return done.stdout + done.stderr


@pytest.mark.long
def test_events_of_another_module_are_nobodys(bundles: Bundles, tmp_path: Path) -> None:
    """The library's dispatch runs between the two of the program; command buffers are numbered over both."""
    library = bundles("library", PLAIN) / "module.vmfb"
    bundle = bundles("modules", PLAIN)
    driver = ("--serial", "--", f"--module={library}", f"--module={bundle / 'module.vmfb'}")
    run = recorded(Case("modules", "both", SQUARE, ""), bundle, tmp_path / "run.parquet", driver)
    calls = durations_by_place(run)
    assert [len(call) for call in calls] == [3] * ITERATIONS
    found, result = attributed("modules", bundle, run)
    assert found["A"] == (ITERATIONS, sum(call[0] for call in calls))
    in_second = sum(call[2] for call in calls)
    second = next(each for each in result["sites"] if each["site"] == "site1")
    assert (second["calls"], second["metrics"]["duration_ns"]["total"]) == (ITERATIONS, in_second)
    unmatched = {each["reason"]: each["metrics"] for each in result["unattributed"]}["unmatched-event"]
    assert unmatched["duration_ns"] == sum(call[1] for call in calls)


def test_a_profile_without_a_header_names_the_ways_of_all_functions(bundles: Bundles, tmp_path: Path) -> None:
    """An .ireeprof made elsewhere does not say which function ran; what it submitted does."""
    bundle, profile = bundles("dynamic", PLAIN), tmp_path / "x.ireeprof"
    inputs = [f"--input={spec}" for spec in (*ROWS, "3")]
    data = "queue-events,host-execution,executable-metadata"
    module = f"--module={bundle / 'module.vmfb'}"
    profiling = [f"--device_profiling_mode={data}", f"--device_profiling_output={profile}"]
    command = [find_tool("iree-benchmark-module"), module, "--function=looped", "--device=local-task", *inputs]
    subprocess.run([*map(str, command), *profiling, "--benchmark_min_time=4x"], check=True, capture_output=True)
    found, _ = attributed("dynamic", bundle, profile)
    assert {label: times for label, (times, _) in found.items()} == {"E": 4, "F": 12, "G": 4}


def test_what_only_initializers_call_runs_at_load(bundles: Bundles) -> None:
    """The function is not copied into the initializer, so that its kernel has a function, and runs in no call."""
    shown = json_cli("show", bundles("load_time_call", PLAIN))
    assert [(site["initializer"], site["function"]) for site in shown["sites"]] == [(True, None), (False, "main")]
