"""Runs the stock `iree-benchmark-module` under HAL profiling and says how it went.

The program writes its profile as it goes, so that what was recorded survives whatever ends it.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, Final

from tracemap.capture.niceness import first_to_run, leashed
from tracemap.errors import ProgramFailed, ToolTooOld, UsageInvalid
from tracemap.owned.children import Child, end, ended_within, path_word, pausing_with_us, start
from tracemap.owned.ending import Ended, answer, interruptible, undisturbed
from tracemap.toolchain import check_tool, find_tool, run_tool
from tracemap.units import NS_OF_UNIT, UNKNOWN, Integer

BENCHMARK_TOOL: Final = "iree-benchmark-module"
SERIAL_FLAG: Final = "--task_topology_max_group_count=1"
TIMED_FLUSH_FLAG: Final = "--device_profiling_flush_interval_ms=2"
"""Empties the profiler's buffers during an invocation too; needed where one invocation overfills them."""
FLUSH_INTERVAL: Final = TIMED_FLUSH_FLAG.partition("=")[0]

HOST_DEVICES: Final = ("local-task", "local-sync")
"""Those that run the kernels on the processors of the host."""
_HOST_DATA = "queue-events,host-execution,executable-metadata"
_DEVICE_DATA = "queue-events,device-queue-events,dispatch-events,executable-metadata"
_PROFILE_FLAG = "--device_profiling_output"
_GROUPS = re.compile(r"^# topology\[\d+\]: (\d+) worker groups", re.MULTILINE)
_BANNER_END = re.compile(r"^(?:Load Average:.*|\*\*\*WARNING\*\*\*.*)\n", re.MULTILINE)
_OTHER_CALLS: Final = {
    "BENCHMARK_MIN_WARMUP_TIME": "0",
    "BENCHMARK_FILTER": "",
    **dict.fromkeys(("BENCHMARK_DRY_RUN", "BENCHMARK_LIST_TESTS"), "false"),
    **dict.fromkeys(("BENCHMARK_REPORT_AGGREGATES_ONLY", "BENCHMARK_DISPLAY_AGGREGATES_ONLY"), "false"),
}
"""Variables by which Google Benchmark makes or reports other calls than it is told to, each with what is usual."""
_HOOK = "tracemap hook: "
_WATCH_S = 1.0


@dataclass(frozen=True, slots=True)
class Ending:
    """How the program ended.

    `status`: its exit status, negative for a signal; `total_ns`: wall time of all its iterations by its own clock;
    `said`: its own words on standard error; `interrupted`: the user pressed Ctrl-C.
    """

    status: int
    total_ns: Integer
    said: str
    interrupted: bool
    means_ns: tuple[int, ...] = ()
    """Wall time of an iteration by the same clock, a mean for each repetition."""
    printed: str = ""
    """What it wrote to standard output."""

    @property
    def failed(self) -> bool:
        """Whether it did not come to its own good end."""
        return self.status != 0 or self.interrupted

    def check(self, what: str) -> None:
        """Raise ProgramFailed, which names the program `what`, if it did not."""
        if self.failed:
            error = ProgramFailed(f"{what} did not end well: {self.explanation}")
            error.interrupted = self.interrupted
            raise error

    @property
    def of_hook(self) -> str:
        """What tracemap's hook said in it: what it could not do."""
        lines = [line for line in self.said.splitlines() if line.startswith(_HOOK)]
        return "; ".join(dict.fromkeys(line.removeprefix(_HOOK) for line in lines))

    @property
    def explanation(self) -> str:
        """Why it did not end well, with the program's own words."""
        return self.cause + (f": {self.said}" if self.said else "")

    @property
    def cause(self) -> str:
        """Why it did not end well, in a few words."""
        if self.interrupted:
            return "it was interrupted"
        if self.status < 0:
            return f"it was killed by {signal.Signals(-self.status).name}"
        return f"it failed with status {self.status}"


def call_command(
    tool: str, modules: Sequence[Path], function: str, inputs: Sequence[str], device: str, flags: Sequence[str]
) -> list[str]:
    """The command line of a tool that calls a function. What tracemap decides comes last, where it counts.

    `modules` are loaded in order; the function is one of the last, or "": all of its functions that take no inputs.
    """
    return [
        str(find_tool(tool)),
        *flags,
        *(f"--module={path_word(module)}" for module in modules),
        f"--function={function}",
        f"--device={device}",
        *(f"--input={spec}" for spec in inputs),
    ]


def counted(calls: int, repetitions: int = 1) -> list[str]:
    """The flags for so many calls, again and again, and a report that can be read."""
    return [
        f"--benchmark_min_time={calls}x",
        f"--benchmark_repetitions={repetitions}",
        "--benchmark_format=json",
    ]


def check_flags(flags: Sequence[str], tool: str) -> None:
    """Refuse flags that a program of IREE does not have: it passes over them without a word.

    Raises:
        UsageInvalid: there is no such flag; the sentence names one that is alike.
    """
    if not flags:
        return
    known = _known_flags(tool)
    for flag in flags:
        name = flag.partition("=")[0]
        # Its help has only flags of IREE; those of the benchmark library are checked by this itself.
        if name not in known and not (tool == BENCHMARK_TOOL and name.startswith("--benchmark_")):
            near = difflib.get_close_matches(name, known, n=1)
            text = f"{tool} has no flag {name}" + (f"; it has {near[0]}" if near else "")
            raise UsageInvalid(f"{text}; {tool} --help lists them")


def check_profiles() -> None:
    """Find out before the run whether the program can write a profile.

    Raises:
        ToolTooOld: it has no flag for it; the sentence says what has, and what else records.
        ToolMissing: it is not installed.
    """
    if _PROFILE_FLAG not in _known_flags(BENCHMARK_TOOL):
        raise ToolTooOld(
            f"{find_tool(BENCHMARK_TOOL)} writes no HAL profiles: it has no {_PROFILE_FLAG}, which came with "
            "IREE 3.12; install iree-base-compiler and iree-base-runtime 3.12 or newer and build the bundle again, or "
            "record the calls of this one by `env $(tracemap hook env -o FOLDER) iree-run-module …`"
        )


def _known_flags(tool: str) -> frozenset[str]:
    """The flags of IREE that the installed program has."""
    return frozenset(re.findall(r"--\w+", check_tool([find_tool(tool), "--help"])))


def profiling_flags(device: str, output: Path) -> list[str]:
    """The flags that make the runtime write a profile."""
    data = _HOST_DATA if device.partition(":")[0] in HOST_DEVICES else _DEVICE_DATA
    return [f"--device_profiling_mode={data}", f"{_PROFILE_FLAG}={path_word(output)}"]


Watch = Callable[[int], bool]
"""Told the process's id again and again while it runs; False ends it."""


def run_benchmark(
    command: Sequence[str],
    variables: Mapping[str, str] | None = None,
    watch: Watch = lambda _: True,
    every_s: float = _WATCH_S,
    niceness: Integer = UNKNOWN,
) -> Ending:
    """As `run_program`, of a benchmark whose report, which tells its times, goes to standard output.

    What the environment says of benchmarks at large is not for it: its flags say which calls it makes.

    Raises:
        ToolMissing: it cannot be started.
    """
    # Nothing is added where nothing is said: memory lies where it would lie without us.
    usual = {name: value for name, value in _OTHER_CALLS.items() if name in os.environ}
    ending = run_program(command, {**usual, **(variables or {})}, watch, every_s, niceness)
    total_ns, means_ns = _times_ns(ending.printed)
    said = ending.said or _instead_of_report(ending.printed)
    return replace(ending, total_ns=total_ns, means_ns=means_ns, said=said)


def run_program(
    command: Sequence[str],
    variables: Mapping[str, str] | None = None,
    watch: Watch = lambda _: True,
    every_s: float = _WATCH_S,
    niceness: Integer = UNKNOWN,
) -> Ending:
    """Run a program to its end, with more environment variables; Ctrl-C ends it, and is told rather than raised.

    After a Ctrl-C that was put off it is not started at all. Its niceness is our own where it is unknown; see
    `tracemap.capture.niceness`.

    Raises:
        ToolMissing: it cannot be started.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        words = leashed(command, niceness)
        begin = partial(start, words, apart=False, variables=variables, stdout=out, stderr=err)
        child, interrupted = _ran(begin, watch, every_s, niceness)
        status = -signal.SIGINT if child is None else child.returncode
        return Ending(status, UNKNOWN, _own_words(_text(err)), interrupted, printed=_text(out))


def _ran(begin: Callable[[], Child], watch: Watch, every_s: float, niceness: Integer) -> tuple[Child | None, bool]:
    """Start a program and wait for its end: the program, if it was started, and whether Ctrl-C cut it short."""
    child = None
    try:
        with interruptible():
            with undisturbed(), first_to_run(niceness):  # so that a signal finds it to be ended
                child = begin()
            _wait(child, watch, every_s, niceness)
    except (KeyboardInterrupt, Ended) as error:
        if child is not None:
            end(child)  # nobody waited for it yet, where the signal came as it was started
        is_ours = error.number == signal.SIGINT if isinstance(error, Ended) else child is not None
        if not is_ours:
            raise
        answer()
        return child, True
    return child, False


def _wait(child: Child, watch: Watch, every_s: float, niceness: Integer) -> None:
    """Wait until the program is gone."""
    with pausing_with_us(child.pid):
        try:
            with first_to_run(niceness):
                _watch(child, watch, every_s)
        finally:
            # Not as one of real time: the kernel, which clears what was read of /proc, waits for another by turning
            # in a loop, and that other would not get the processor.
            end(child)


def _watch(child: Child, watch: Watch, every_s: float) -> None:
    """Wait until the program has ended, or is to be ended."""
    while not ended_within(child, every_s):
        if not watch(child.pid):
            child.kill()  # here, where we come before it, see `first_to_run`; `end` is called where we may not
            return


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", errors="replace")


def _times_ns(report: str) -> tuple[Integer, tuple[int, ...]]:
    """Wall time of all iterations of the first repetition, and of one iteration, a mean for each repetition.

    Unknown, and none, where the report is missing or tells of an error.
    """
    try:
        rows = [row for row in json.loads(report)["benchmarks"] if row["run_type"] == "iteration"]
        if any(row.get("error_occurred") for row in rows):
            return UNKNOWN, ()
        means = [float(row["real_time"]) * NS_OF_UNIT[row["time_unit"]] for row in rows]
        return round(means[0] * int(rows[0]["iterations"])), tuple(map(round, means))
    except (ValueError, KeyError, IndexError, TypeError, OverflowError, RecursionError):
        return UNKNOWN, ()


def _own_words(text: str) -> str:
    """What the program said, without the banner that describes the machine; the hook may have spoken before it."""
    end = max((match.end() for match in _BANNER_END.finditer(text)), default=0)
    before = [line for line in text[:end].splitlines() if line.startswith(_HOOK)]
    return "\n".join([*before, text[end:]]).strip()


def _instead_of_report(text: str) -> str:
    """What the program said in place of its report, which is JSON: IREE 3.12 writes there why it failed."""
    return "" if text.lstrip().startswith("{") else text.strip()


def count_workers(device: str, flags: Sequence[str]) -> Integer:
    """How many threads share the work of a dispatch: asked of the runtime, which knows the machine's topology."""
    kind = device.partition(":")[0]
    if kind != "local-task":
        return 1 if kind == "local-sync" else UNKNOWN
    topology = [flag for flag in flags if flag.startswith("--task_")]
    # The flag prints the topology of the flags before it.
    done = run_tool([find_tool(BENCHMARK_TOOL), *topology, "--dump_task_topologies"])
    groups = [int(count) for count in _GROUPS.findall(done.stdout)]
    return sum(groups) if groups else UNKNOWN
