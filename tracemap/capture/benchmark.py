"""Run the stock `iree-benchmark-module` under HAL profiling and report how it ended.

The program writes its profile while it runs, so a crash or a kill does not lose recorded events.
"""

from __future__ import annotations

import difflib
import functools
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

from tracemap.capture.noise import exec_with_parent, real_time_priority
from tracemap.core.errors import ProgramFailed, ToolTooOld, UsageInvalid
from tracemap.core.process.children import Child, end, ended_within, path_argument, pausing_with_us, start
from tracemap.core.process.signals import EndedBySignal, confirm_signal, interruptible, signals_deferred
from tracemap.core.toolchain import check_tool, find_tool, run_tool
from tracemap.core.units import NS_OF_UNIT, UNKNOWN, Integer

BENCHMARK_TOOL: Final = "iree-benchmark-module"
SERIAL_FLAG: Final = "--task_topology_max_group_count=1"
TIMED_FLUSH_FLAG: Final = "--device_profiling_flush_interval_ms=2"
"""Flush the profiler's buffers during an invocation, too. Needed where one invocation overfills them."""
FLUSH_INTERVAL: Final = TIMED_FLUSH_FLAG.partition("=")[0]

HOST_DEVICES: Final = ("local-task", "local-sync")
"""Devices that run the kernels on the host's CPUs."""
_HOST_DATA = "queue-events,host-execution,executable-metadata"
_DEVICE_DATA = "queue-events,device-queue-events,dispatch-events,executable-metadata"
_PROFILE_FLAG = "--device_profiling_output"
_GROUPS = re.compile(r"^# topology\[\d+\]: (\d+) worker groups", re.MULTILINE)
_BANNER_END = re.compile(r"^(?:Load Average:.*|\*\*\*WARNING\*\*\*.*)\n", re.MULTILINE)
_BENCHMARK_DEFAULTS: Final = {
    "BENCHMARK_MIN_WARMUP_TIME": "0",
    "BENCHMARK_FILTER": "",
    **dict.fromkeys(("BENCHMARK_DRY_RUN", "BENCHMARK_LIST_TESTS"), "false"),
    **dict.fromkeys(("BENCHMARK_REPORT_AGGREGATES_ONLY", "BENCHMARK_DISPLAY_AGGREGATES_ONLY"), "false"),
}
"""Environment variables that change which benchmarks Google Benchmark runs or reports, with their defaults."""
_HOOK = "tracemap hook: "
_WATCH_INTERVAL_S = 1.0
_MISSING_PARAMETERS = re.compile(r"no provider registered that handles scopes like '([^'\n]*)'")
"""Message of IREE's runtime/src/iree/modules/io/parameters/module.c."""


@dataclass(frozen=True, slots=True)
class Ending:
    """Outcome of a program.

    `status`: exit status, negative for a signal. `total_ns`: wall time of all iterations by the program's own clock.
    `stderr`: its standard error without the banner. `interrupted`: the user pressed Ctrl-C.
    """

    status: int
    total_ns: Integer
    stderr: str
    interrupted: bool
    means_ns: tuple[int, ...] = ()
    """Mean wall time of an iteration by the same clock, one value per repetition."""
    stdout: str = ""
    """Its standard output."""

    @property
    def failed(self) -> bool:
        """Whether it failed or was interrupted."""
        return self.status != 0 or self.interrupted

    def check(self, name: str) -> None:
        """Raise ProgramFailed if the program failed; `name` is its name in the message."""
        if self.failed:
            error = ProgramFailed(f"{name} failed: {self.explanation}")
            error.interrupted = self.interrupted
            raise error

    @property
    def hook_messages(self) -> str:
        """Error messages of tracemap's hook."""
        lines = [line for line in self.stderr.splitlines() if line.startswith(_HOOK)]
        return "; ".join(dict.fromkeys(line.removeprefix(_HOOK) for line in lines))

    @property
    def explanation(self) -> str:
        """Why it failed, with its standard error."""
        if missing := _MISSING_PARAMETERS.search(self.stderr):
            scope = missing[1]
            return (
                f"the parameters of the scope {scope!r} are missing: pass --flagfile F, where F has the line "
                f"--parameters={scope}=FILE"
            )
        cause = f"killed by {signal.Signals(-self.status).name}" if self.status < 0 else f"exit status {self.status}"
        return ("interrupted" if self.interrupted else cause) + (f": {self.stderr}" if self.stderr else "")


def call_command(
    tool: str, modules: Sequence[Path], function: str, inputs: Sequence[str], device: str, flags: Sequence[str]
) -> list[str]:
    """The command line of a tool that calls a function. Flags that tracemap sets come last, so they win.

    `modules` are loaded in order. The function belongs to the last module; "" means all functions without inputs.
    """
    return [
        str(find_tool(tool)),
        *flags,
        *(f"--module={path_argument(module)}" for module in modules),
        f"--function={function}",
        f"--device={device}",
        *(f"--input={spec}" for spec in inputs),
    ]


def call_count_flags(calls: int, repetitions: int = 1) -> list[str]:
    """Flags for a number of calls and repetitions, and a JSON report."""
    return [
        f"--benchmark_min_time={calls}x",
        f"--benchmark_repetitions={repetitions}",
        "--benchmark_format=json",
    ]


def check_flags(flags: Sequence[str], tool: str) -> None:
    """Reject flags that an IREE tool does not have; the tool itself ignores them silently.

    Raises:
        UsageInvalid: there is no such flag; the message names a similar one.
    """
    if not flags:
        return
    known = _known_flags(tool)
    for flag in flags:
        name = flag.partition("=")[0]
        # The tool's help lists only flags of IREE; Google Benchmark rejects its own unknown flags.
        if name not in known and not (tool == BENCHMARK_TOOL and name.startswith("--benchmark_")):
            near = difflib.get_close_matches(name, known, n=1)
            text = f"{tool} has no flag {name}" + (f"; did you mean {near[0]}?" if near else "")
            raise UsageInvalid(f"{text}; see {tool} --help")


def check_profiles() -> None:
    """Check that the program can write a profile, before anything runs.

    Raises:
        ToolTooOld: the program has no flag for profiles; the message names the release that has it, and the hook.
        ToolMissing: the program is not installed.
    """
    if _PROFILE_FLAG not in _known_flags(BENCHMARK_TOOL):
        raise ToolTooOld(
            f"{find_tool(BENCHMARK_TOOL)} writes no HAL profiles: {_PROFILE_FLAG} came with IREE 3.12. Install "
            "iree-base-compiler and iree-base-runtime 3.12 or newer and rebuild the bundle, or record kernel calls "
            "with `env $(tracemap hook env -o FOLDER) iree-run-module …`"
        )


def _known_flags(tool: str) -> frozenset[str]:
    """The IREE flags of the installed tool, from its help."""
    return _flags_in_help(find_tool(tool))


@functools.cache
def _flags_in_help(program: Path) -> frozenset[str]:
    return frozenset(re.findall(r"--\w+", check_tool([program, "--help"])))


def profiling_flags(device: str, output: Path) -> list[str]:
    """Flags that make the runtime write a profile."""
    data = _HOST_DATA if device.partition(":")[0] in HOST_DEVICES else _DEVICE_DATA
    return [f"--device_profiling_mode={data}", f"{_PROFILE_FLAG}={path_argument(output)}"]


Watch = Callable[[int], bool]
"""Called with the process id at regular intervals while the program runs; False ends the program."""


def run_benchmark(
    command: Sequence[str],
    variables: Mapping[str, str] | None = None,
    watch: Watch = lambda _: True,
    every_s: float = _WATCH_INTERVAL_S,
    niceness: Integer = UNKNOWN,
) -> Ending:
    """Run a benchmark like `run_program`, and parse the times from the report on its standard output.

    Google Benchmark's environment variables are reset to their defaults, since the command's flags choose the calls.

    Raises:
        ToolMissing: the program cannot be started.
    """
    # Reset only variables that are set: a larger environment shifts the program's memory addresses.
    defaults = {name: value for name, value in _BENCHMARK_DEFAULTS.items() if name in os.environ}
    ending = run_program(command, {**defaults, **(variables or {})}, watch, every_s, niceness)
    total_ns, means_ns = _times_ns(ending.stdout)
    # IREE 3.12 writes its error message to standard output, in place of the report.
    message = "" if ending.stdout.lstrip().startswith("{") else ending.stdout.strip()
    return replace(ending, total_ns=total_ns, means_ns=means_ns, stderr=ending.stderr or message)


def run_program(
    command: Sequence[str],
    variables: Mapping[str, str] | None = None,
    watch: Watch = lambda _: True,
    every_s: float = _WATCH_INTERVAL_S,
    niceness: Integer = UNKNOWN,
) -> Ending:
    """Run a program to its end with additional environment variables. Ctrl-C ends it and sets `interrupted`.

    If Ctrl-C was deferred earlier, the program does not start. An unknown `niceness` means our own; see
    `tracemap.capture.noise`.

    Raises:
        ToolMissing: the program cannot be started.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        words = exec_with_parent(command, niceness)
        start_child = partial(start, words, apart=False, variables=variables, stdout=out, stderr=err)
        child, interrupted = _run_child(start_child, watch, every_s, niceness)
        status, text = -signal.SIGINT if child is None else child.returncode, _text(err)
        # Leave out the banner that describes the machine, but keep messages of the hook before it.
        banner_end = max((match.end() for match in _BANNER_END.finditer(text)), default=0)
        hook_lines = [line for line in text[:banner_end].splitlines() if line.startswith(_HOOK)]
        stderr = "\n".join([*hook_lines, text[banner_end:]]).strip()
        return Ending(status, UNKNOWN, stderr, interrupted, stdout=_text(out))


def _run_child(
    start_child: Callable[[], Child], watch: Watch, every_s: float, niceness: Integer
) -> tuple[Child | None, bool]:
    """Start a program and wait for it: the child (None: not started), and whether Ctrl-C ended it."""
    child = None
    try:
        with interruptible():
            with signals_deferred(), real_time_priority(niceness):  # a signal must find `child` set, to end it
                child = start_child()
            with pausing_with_us(child.pid):
                try:
                    with real_time_priority(niceness):
                        _watch(child, watch, every_s)
                finally:
                    # At normal priority: the kernel clears its cached /proc entries and spins until another process
                    # drops them; at real-time priority, that process would not get the CPU.
                    end(child)
    except (KeyboardInterrupt, EndedBySignal) as error:
        if child is not None:
            end(child)  # the signal came during the start: nobody has waited for the child yet
        is_ours = error.number == signal.SIGINT if isinstance(error, EndedBySignal) else child is not None
        if not is_ours:
            raise
        confirm_signal()
        return child, True
    return child, False


def _watch(child: Child, watch: Watch, every_s: float) -> None:
    """Wait until the program ends, or until `watch` asks to end it."""
    while not ended_within(child, every_s):
        if not watch(child.pid):
            child.kill()  # still at real-time priority, see `real_time_priority`; `end` runs at normal priority
            return


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", errors="replace")


def _times_ns(report: str) -> tuple[Integer, tuple[int, ...]]:
    """Wall time of all iterations of the first repetition, and the mean of one iteration per repetition.

    UNKNOWN and empty if the report is missing or reports an error.
    """
    try:
        rows = [row for row in json.loads(report)["benchmarks"] if row["run_type"] == "iteration"]
        if any(row.get("error_occurred") for row in rows):
            return UNKNOWN, ()
        means = [float(row["real_time"]) * NS_OF_UNIT[row["time_unit"]] for row in rows]
        return round(means[0] * int(rows[0]["iterations"])), tuple(map(round, means))
    except (ValueError, KeyError, IndexError, TypeError, OverflowError, RecursionError):
        return UNKNOWN, ()


def count_workers(device: str, flags: Sequence[str]) -> Integer:
    """Number of threads that share the work of a dispatch. The runtime is asked, since it knows the CPU topology."""
    kind = device.partition(":")[0]
    if kind != "local-task":
        return 1 if kind == "local-sync" else UNKNOWN
    topology = [flag for flag in flags if flag.startswith("--task_")]
    # The flag prints the topology that the preceding flags select.
    done = run_tool([find_tool(BENCHMARK_TOOL), *topology, "--dump_task_topologies"])
    groups = [int(count) for count in _GROUPS.findall(done.stdout)]
    return sum(groups) if groups else UNKNOWN
