"""What the benchmarks share: timing whole commands, alternating pairs, and tables of medians and quartiles."""

from __future__ import annotations

import compileall
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from tests.support import ROOT, SAMPLES
from tracemap.map.build.cache import FOLDER_VARIABLE

_KIB_PER_MAXRSS = 1 if sys.platform == "linux" else 1 / 1024


@dataclass(frozen=True, slots=True)
class Usage:
    """What one command took: wall time, and the peak of its resident memory (of its children's, where larger).

    `cpu_seconds` are those of user and system together, which other programs on the machine change less.
    """

    seconds: float
    peak_mib: float
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class OwnUsage:
    """What a command took: elapsed seconds, tracemap's own CPU seconds and peak of memory, and the peak of programs.

    `programs_mib`: that of the largest program that it started, 0 where it started none; `output`: what it printed.
    """

    seconds: float
    cpu_seconds: float
    peak_mib: float
    programs_mib: float
    output: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured value with its target, which it should not exceed; `values`: those whose median it is."""

    name: str
    value: float
    unit: str
    target: float
    values: tuple[float, ...] = ()

    @property
    def verdict(self) -> str:
        """`ok` or `over`."""
        return "ok" if self.value <= self.target else "over"


def prepare() -> None:
    """Make a start like that of an installed package: with byte code, and without bundles of earlier builds."""
    compileall.compile_dir(ROOT / "tracemap", quiet=1)
    os.environ[FOLDER_VARIABLE] = ""


def tracemap(*arguments: str | Path) -> list[str]:
    """The installed program with arguments, as a user starts it."""
    return [str(Path(sys.executable).with_name("tracemap")), *map(str, arguments)]


def run(command: Sequence[str | Path], *, cwd: Path = SAMPLES) -> Usage:
    """Run a command to its end and measure it.

    Raises:
        SystemExit: it failed; with what it printed.
    """
    words = [str(word) for word in command]
    began = time.perf_counter()
    with subprocess.Popen(words, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        said = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - began
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(words)}: status {process.returncode}\n{said.decode(errors='replace')}")
    return Usage(seconds, usage.ru_maxrss * _KIB_PER_MAXRSS / 1024, usage.ru_utime + usage.ru_stime)


_MEMORY_EVERY_S = 0.02


def peak_with_forks_mib(command: Sequence[str | Path], *, cwd: Path = SAMPLES) -> float:
    """The most memory that a command has at once with the processes that it forks; what they share counts once.

    It is looked at fifty times a second, which takes time: a run of its own, not one that is timed.

    Raises:
        SystemExit: it failed.
    """
    peak = 0
    with subprocess.Popen(
        [*map(str, command)], cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as program:
        while program.poll() is None:
            children = ""
            with suppress(OSError):  # it has ended
                children = Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text(encoding="utf-8")
            peak = max(peak, sum(map(_proportional_kib, (str(program.pid), *children.split()))))
            time.sleep(_MEMORY_EVERY_S)
    if program.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}: status {program.returncode}")
    return peak / 1024


def _proportional_kib(pid: str) -> int:
    """The resident memory of a process, of pages that it shares its part (proc(5): `Pss`); 0 of one that has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def own_usage(*words: str | Path) -> OwnUsage:
    """Run a command of tracemap and measure it apart from the programs that it starts.

    Raises:
        SystemExit: it failed; with what it said.
    """
    command = [sys.executable, "-m", "benchmarks.own_usage", *map(str, words)]
    began = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: status {done.returncode}\n{done.stderr}")
    seconds = time.perf_counter() - began
    cpu_seconds, peak_mib, programs_mib = map(float, done.stderr.split()[-3:])
    return OwnUsage(seconds, cpu_seconds, peak_mib, programs_mib, done.stdout)


def output_of(command: Sequence[str | Path], *, cwd: Path = SAMPLES) -> str:
    """Run a command and return what it printed.

    Raises:
        SystemExit: it failed; with what it printed.
    """
    done = subprocess.run([str(word) for word in command], cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}: status {done.returncode}\n{done.stderr}")
    return done.stdout


_T = TypeVar("_T")


def in_turn(ours: Callable[[], _T], theirs: Callable[[], _T], pairs: int) -> list[tuple[_T, _T]]:
    """Measure both in turn, the first of each pair changing places.

    One pair before is not counted: it fills caches.
    """
    ours(), theirs()
    measured: list[tuple[_T, _T]] = []
    for pair in range(pairs):
        if pair % 2:
            second = theirs()
            measured.append((ours(), second))
        else:
            first = ours()
            measured.append((first, theirs()))
    return measured


def alternating(
    ours: Callable[[], float], theirs: Callable[[], float], pairs: int
) -> tuple[list[float], list[float], list[float]]:
    """Both as measured in turn, and the ratio of each pair."""
    measured = in_turn(ours, theirs, pairs)
    return [pair[0] for pair in measured], [pair[1] for pair in measured], [a / b for a, b in measured]


def print_title(title: str) -> None:
    """The heading of a table of `print_row`."""
    print(f"\n{title}\n{'':30}{'median':>10}{'q1':>10}{'q3':>10}{'n':>5}")


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """The quartiles of values, the median in the middle; of a single value, that three times."""
    if len(values) == 1:
        return (values[0],) * 3
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, median, high


def print_row(name: str, values: Sequence[float], unit: str, target: float | None = None) -> Figure | None:
    """A row of a table: median, quartiles, number of values; a `Figure` of the median where there is a target."""
    low, median, high = quartiles(values)
    row = f"  {name:28}" + "".join(f"{value:10.3f}" for value in (median, low, high)) + f"{len(values):5}"
    figure = None if target is None else Figure(name, median, unit, target, tuple(values))
    print(row + f"  {unit}" + (f"  target <= {target:g}  {figure.verdict}" if figure else ""), flush=True)
    return figure


def targeted(name: str, values: Sequence[float], unit: str, target: float) -> Figure:
    """`print_row` with a target."""
    figure = print_row(name, values, unit, target)
    assert figure is not None
    return figure


def print_figures(figures: Sequence[Figure]) -> None:
    """The closing table: every target and whether it was met."""
    print(f"\n{'all targets':42}{'measured':>10}{'target':>10}")
    for figure in figures:
        print(f"  {figure.name:40}{figure.value:10.3f}{figure.target:10g}  {figure.unit:4}{figure.verdict}")
