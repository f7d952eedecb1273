"""Functions timed by `iree-benchmark-module`, as it stands: its table, its report, and the numbers in it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from tracemap.capture.benchmark import BENCHMARK_TOOL, run_program
from tracemap.capture.calling import Call
from tracemap.capture.flags import check_undecided
from tracemap.errors import ProgramFailed
from tracemap.functions import Function
from tracemap.options.measure import BenchmarkOptions
from tracemap.units import NS_OF_UNIT, Unknown, listed

_PRINTED: Final = "see --format, and send standard output to a file"
_DECIDED: Final = {
    **dict.fromkeys(("--benchmark_format", "--benchmark_out", "--benchmark_out_format"), _PRINTED),
    "--benchmark_list_tests": "`tracemap show` lists the functions",
    "--batch_size": "see --dispatch-repeat",
}
_PREFIX: Final = "BM_"
_WALL, _PROCESS = "/real_time", "/process_time"


@dataclass(frozen=True, slots=True)
class FunctionTimes:
    """How long a call of a function takes: a mean for each repetition, and how many calls that is of.

    `wall_ns` is by the wall clock, `cpu_ns` the processor time of all threads of the program.
    """

    function: str
    wall_ns: tuple[int, ...]
    cpu_ns: tuple[int, ...]
    calls: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Timed:
    """What was timed: the table and the report of Google Benchmark, the numbers of each function, and what they are."""

    table: str
    report: dict[str, Any]
    functions: tuple[FunctionTimes, ...]
    clocks: str


def timed(calls: Sequence[Call], options: BenchmarkOptions, folder: Path) -> Timed:
    """Time a function, or in one program all those that take no inputs.

    Args:
        calls: the one; or all, of one module.
        options: how often, and how long.
        folder: for what is needed only until the end.

    Raises:
        ProgramFailed: the program failed, or timed nothing.
        UsageInvalid: a flag that is decided here.
    """
    call = calls[0] if len(calls) == 1 else replace(calls[0], entry=Function("", ()))
    check_undecided(call.flags, _DECIDED)
    said = _said(options)
    check_undecided(options.runtime_flags, said)
    out = folder / "times.json"
    # The user's own flags go before defaults, and options before those of a flag file.
    own = (flag for flag in call.flags if flag.partition("=")[0] not in said)
    call = replace(call, flags=(*_how_often(options), *own))
    ours = [f"--batch_size={options.dispatch_repeat}", f"--benchmark_out={out}", "--benchmark_out_format=json"]
    ending = run_program(call.command(BENCHMARK_TOOL, *ours, "--benchmark_format=console"))
    names = listed([each.entry.name for each in calls])
    ending.check(f"{BENCHMARK_TOOL}, which called {names},")
    report = _report(out)
    rows = _rows(report)
    if not rows:
        raise ProgramFailed(f"{BENCHMARK_TOOL} timed nothing of {names}: {ending.said or ending.printed.strip()}")
    return Timed(ending.printed, report, tuple(_functions(rows)), _clocks(rows, options.dispatch_repeat))


def _said(options: BenchmarkOptions) -> dict[str, str]:
    """The flags for what options say, each with why it cannot be given too."""
    default, said = BenchmarkOptions(), {}
    if not isinstance(options.iterations, Unknown):
        said["--benchmark_min_time"] = "--iterations says exactly how many calls are made"
    elif options.min_time != default.min_time:
        said["--benchmark_min_time"] = "--min-time says it"
    if options.repetitions != default.repetitions:
        said["--benchmark_repetitions"] = "--repetitions says it"
    return said


def _how_often(options: BenchmarkOptions) -> list[str]:
    iterations = options.iterations
    # As many calls as asked for are so many batches.
    length = f"{options.min_time:g}s" if isinstance(iterations, Unknown) else f"{iterations * options.dispatch_repeat}x"
    return [
        f"--benchmark_min_time={length}",
        f"--benchmark_repetitions={options.repetitions}",
        f"--time_unit={options.time_unit}",
    ]


def _report(out: Path) -> dict[str, Any]:
    """What the program left; nothing where it has left no report. It does not escape control characters of names."""
    try:
        report = json.loads(out.read_text(encoding="utf-8", errors="replace"), strict=False)
    except (OSError, ValueError):
        return {}
    return report if isinstance(report, dict) else {}


def _rows(report: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of the repetitions, not of what Google Benchmark made of them.

    Raises:
        ProgramFailed: one of them did not come to its end.
    """
    rows = [row for row in report.get("benchmarks", []) if row["run_type"] == "iteration"]
    if wrong := next((row for row in rows if row.get("error_occurred")), None):
        raise ProgramFailed(f"{BENCHMARK_TOOL}: {wrong['name']}: {wrong.get('error_message', 'it failed')}")
    return rows


def _functions(rows: Sequence[dict[str, Any]]) -> Iterator[FunctionTimes]:
    for name in dict.fromkeys(row["run_name"] for row in rows):
        own = [row for row in rows if row["run_name"] == name]
        function = name.removeprefix(_PREFIX).removesuffix(_WALL).removesuffix(_PROCESS)
        yield FunctionTimes(
            function,
            tuple(round(row["real_time"] * NS_OF_UNIT[row["time_unit"]]) for row in own),
            tuple(round(row["cpu_time"] * NS_OF_UNIT[row["time_unit"]]) for row in own),
            tuple(int(row["iterations"]) for row in own),
        )


def _clocks(rows: Sequence[dict[str, Any]], repeat: int) -> str:
    """What the numbers are, by what the names of the rows say of their clocks."""
    name = rows[0]["run_name"]
    whose = "all threads of the program (process_time)" if _PROCESS in name else "the thread that calls (cpu_time)"
    decides = "Time" if _WALL in name else "CPU"
    said = (
        f"Time: wall clock (real_time); CPU: processor time of {whose}; both are means of a call.\n"
        f"{decides} decides how many calls are made."
    )
    if repeat == 1:
        return said
    return f"{said} Each dispatch runs {repeat} times in a call, and numbers are those of a call divided by {repeat}."
