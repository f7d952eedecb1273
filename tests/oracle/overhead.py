"""Whether overhead is at the loop that causes it: `python -m tests.oracle.overhead`.

Programs with loops and conditionals run in turn with twins that lack them (`tests.oracle.looped`), under IREE's own
benchmark. The truth is the difference of their times, less the difference of the times of their kernels. The overhead
that tracemap books at the line of the loop must be the same within 15 %.

Then all samples are recorded on three devices, with and without a busy process next to them, and asynchronous
functions too. At least 95 % of their elapsed time must be explained.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from tests.documents import DOCS, write_part
from tests.oracle.busy import spinning
from tests.oracle.looped import Looped, programs
from tests.oracle.stock import (
    DEVICES,
    Failed,
    Program,
    Timed,
    compiled,
    difference_in_turns,
    kernels_in_turns,
    run_ahead_of_others,
    times_in_turns,
)
from tests.support import SAMPLES, Corpus, Json, command_line, json_cli

MOST_ERROR: Final = 0.15
LEAST_EXPLAINED: Final = 0.95
_LOOPS: Final = ("loop", "conditional")
_TURNS: Final = 12
_RECORDINGS: Final = 6
"""The speed of a shared machine varies from second to second."""
_ATTEMPTS: Final = 4


# ---- loops and their twins


@dataclass(frozen=True, slots=True)
class Removal:
    """Overhead at the lines of loops, in ns per invocation, and what their removal gained in truth.

    `copied_ns`: overhead of copies and fills, which is at the lines of the ops that copy. `plain_ns`, `recorded_ns`:
    the time of an invocation without a profiler, and in the recording without the profiler's part.
    """

    program: str
    device: str
    booked_ns: float
    copied_ns: float
    removed_ns: float
    low_ns: float
    high_ns: float
    plain_ns: float
    recorded_ns: float

    @property
    def error(self) -> float:
        """The difference of what is booked and what was removed, as a fraction of the latter."""
        return self.booked_ns / self.removed_ns - 1

    @property
    def is_right(self) -> bool:
        return abs(self.error) <= MOST_ERROR

    @property
    def share_error(self) -> float:
        """The difference if the overhead's share of the recording is applied to the time without a profiler."""
        return self.booked_ns / self.recorded_ns * self.plain_ns / self.removed_ns - 1 if self.recorded_ns else 0.0


def removal(looped: Looped, device: str, folder: Path, turns: int = _TURNS) -> Removal:
    """Record a program, and time it in turn with its twin."""
    flags = DEVICES[device]
    both = {"rolled": looped.rolled, "unrolled": looped.unrolled}
    timed = {name: Timed(compiled(program, folder), program, flags) for name, program in both.items()}
    bundles = {name: _built(timed[name], folder) for name in (both if looped.kept else ("rolled",))}
    times: dict[str, list[float]] = {name: [] for name in both}
    recordings, twins = [], []
    for number in range(_RECORDINGS):
        for name, found in times_in_turns(timed, -(-turns // _RECORDINGS)).items():
            times[name] += found
        recordings.append(_recorded(bundles["rolled"], looped.rolled, flags, folder / f"{number}.parquet"))
        if looped.kept:
            twins.append(_recorded(bundles["unrolled"], looped.unrolled, flags, folder / f"{number}.parquet"))
    kernels = kernels_in_turns(timed, 2, folder)
    kernels_ns = kernels["rolled"].wall - kernels["unrolled"].wall
    differences = sorted(a - b for a, b in zip(times["rolled"], times["unrolled"], strict=True))
    quarter = len(differences) // 4
    booked = _booked(recordings, bundles["rolled"], looped.lines)
    kept = _booked(twins, bundles["unrolled"], looped.kept) if twins else (0.0, 0.0)
    return Removal(
        looped.name,
        device,
        booked[0] - kept[0],
        booked[1] - kept[1],
        difference_in_turns(times, "rolled", "unrolled") - kernels_ns,
        differences[quarter] - kernels_ns,
        differences[-1 - quarter] - kernels_ns,
        statistics.median(times["rolled"]),
        statistics.median(_recorded_ns(found["run"]) for found in recordings),
    )


def _built(timed: Timed, folder: Path) -> Path:
    bundle = folder / f"{timed.program.name}.tracemap"
    if not bundle.exists():
        run_ahead_of_others(command_line("build", timed.module.with_suffix(".mlir"), "-o", bundle))
    return bundle


def _recorded(bundle: Path, program: Program, flags: Sequence[str], run: Path) -> Json:
    """A recording of the program; another one if the profiler lost records, which a warning says."""
    inputs = [word for value in program.inputs for word in ("--input", value)]
    words: tuple[str | Path, ...] = ("record", bundle, *inputs, "--seconds", "0.5", "--force", "-o", run, "--", *flags)
    for _ in range(_ATTEMPTS):
        run_ahead_of_others(command_line(*words))
        found = json_cli("attribute", run, "--map", bundle)
        if found["run"]["elapsed"]["kernels_ns"] is not None:
            break
    return found


def _booked(recordings: Sequence[Json], bundle: Path, lines: Sequence[int]) -> tuple[float, float]:
    """The overhead per invocation at the loops and conditionals of these lines, and of copies and fills: medians."""
    line_of = {op["id"]: op["line"] for op in json_cli("show", bundle)["ops"]}
    loops, copies = [], []
    for found in recordings:
        count, rows = found["run"]["iterations"], found["overhead"]
        own = (row for row in rows if row["place"] in _LOOPS and {line_of[op] for op in row["ops"]} <= set(lines))
        loops.append(sum(map(_total, own)) / count)
        copies.append(sum(_total(row) for row in rows if row["place"] == "copies-and-fills") / count)
    return statistics.median(loops), statistics.median(copies)


def _total(row: Json) -> int:
    return sum(value for name, value in row.items() if name.endswith("_ns") and name != "total_ns")


def _recorded_ns(run: Json) -> float:
    profiler_ns = run["elapsed"]["profiler_ns"] or 0  # unknown if the run has no parts of its elapsed time
    return float((run["elapsed_ns"] - profiler_ns) / run["iterations"])


def removal_table(removals: Sequence[Removal]) -> str:
    """What was booked and what was removed, as a table of Markdown."""
    rows = [
        "| program, without | device | booked at the loop µs | removed in truth µs | middle half | difference |"
        " by shares | recorded µs | without profiler µs |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for one in removals:
        middle = f"{one.low_ns / 1000:.1f} to {one.high_ns / 1000:.1f}"
        rows.append(
            f"| {one.program} | {one.device} | {one.booked_ns / 1000:.1f} | {one.removed_ns / 1000:.1f} | {middle}"
            f" | {one.error:+.0%} | {one.share_error:+.0%} | {one.recorded_ns / 1000:.1f} | {one.plain_ns / 1000:.1f} |"
        )
    right = sum(one.is_right for one in removals)
    shares = sum(abs(one.share_error) <= MOST_ERROR for one in removals)
    rows.append(f"| **within {MOST_ERROR:.0%}** | | | | | {right} of {len(removals)} | {shares} | | |")
    return "\n".join(rows)


# ---- elapsed time that is explained


ASYNCHRONOUS: Final[Mapping[str, tuple[str, ...]]] = {
    "hand_mlp": (),
    "hand_loop": (),
    "jax_gpt2_4l": ("--batch_size=4", "--batch_concurrency=2"),
    "torch_mlp": (),
}
"""Samples that are also compiled to functions with fences, and their further flags."""


@dataclass(frozen=True, slots=True)
class Explained:
    """The part of a recording's elapsed time that has a place, and the part at the call boundary alone."""

    model: str
    device: str
    busy: bool
    part: float
    boundary: float = 0.0


def explained(corpus: Corpus, folder: Path, only: Sequence[str] = ()) -> Iterator[Explained]:
    """Record all functions on all devices, quiet and busy."""
    works: list[tuple[str, str, tuple[str, ...], tuple[str, ...]]] = [
        (flags, corpus.model_of(flags), (), ()) for flags in corpus.flag_files()
    ]
    fences = ("--iree-execution-model=async-external",)
    works += [(name, name, fences, more) for name, more in ASYNCHRONOUS.items() if name in corpus.flag_files()]
    for flags, model, compile_flags, more in works:
        if only and flags not in only:
            continue
        shown = f"{flags}, with fences" if compile_flags else flags
        bundle = folder / f"{model}{'-fences' if compile_flags else ''}.tracemap"
        if not bundle.exists():
            source = corpus.models()[model]
            build: tuple[str | Path, ...] = (
                "build",
                source,
                "-o",
                bundle,
                *(("--", *compile_flags) if compile_flags else ()),
            )
            _checked(command_line(*build), corpus.folder)
        for device, device_flags in DEVICES.items():
            for busy in (False, True):
                run = folder / "explained.parquet"
                words: tuple[str | Path, ...] = ("--seconds", "0.5", "--force", "-o", run, "--", *device_flags, *more)
                with spinning(1) if busy else nullcontext():
                    _checked(
                        command_line("record", bundle, "--flagfile", corpus.flag_files()[flags], *words), corpus.folder
                    )
                found = json_cli("attribute", run, "--map", bundle)
                boundary = _part_at("call-boundary", found)
                yield Explained(shown, device, busy, _explained_part(found), boundary)


def _checked(command: Sequence[str], folder: Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


def _explained_part(found: Json) -> float:
    """All elapsed time but the unexplained; 0 if there is no division of it."""
    if not found["overhead"]:
        return 0.0
    return 1 - _part_at("unexplained", found)


def _part_at(place: str, found: Json) -> float:
    total_ns = sum(_total(row) for row in found["overhead"] if row["place"] == place)
    return float(total_ns / found["run"]["elapsed_ns"])


def explained_table(rows: Sequence[Explained]) -> str:
    """The least explained parts by device, as a table of Markdown."""
    text = [
        "| device | recordings | at least 95 % explained | least | of | at the call boundary, median | most |",
        "|---|--:|--:|--:|---|--:|--:|",
    ]
    for device in DEVICES:
        for busy in (False, True):
            some = [row for row in rows if (row.device, row.busy) == (device, busy)]
            if some:
                least = min(some, key=lambda row: row.part)
                right = sum(row.part >= LEAST_EXPLAINED for row in some)
                name = f"{device}, busy" if busy else device
                boundary = [row.boundary for row in some]
                text.append(
                    f"| {name} | {len(some)} | {right} | {100 * least.part:.1f} % | {least.model}"
                    f" | {statistics.median(boundary):.0%} | {max(boundary):.0%} |"
                )
    return "\n".join(text)


@click.command()
@click.option("--corpus", type=click.Path(path_type=Path, exists=True), default=SAMPLES, help="Folder of models.")
@click.option("--only", type=click.Choice(["loops", "explained"]), help="Only one of the two parts.")
@click.option("--write-docs", is_flag=True, help="Put the tables into docs/accuracy.md.")
def main(corpus: Path, only: str | None, *, write_docs: bool) -> None:
    """Print the tables; status 1 if a target is missed."""
    removals: list[Removal] = []
    rows: list[Explained] = []
    with tempfile.TemporaryDirectory(prefix="tracemap-overhead-") as name:
        if only != "explained":
            for looped in programs():
                for device in DEVICES:
                    try:
                        removals.append(removal(looped, device, Path(name)))
                    except Failed as error:  # IREE's profiler damages some profiles of a thousand trips
                        print(f"{looped.name}, {device}: not measured: {error}", file=sys.stderr, flush=True)
                    else:
                        print(removals[-1], file=sys.stderr, flush=True)
            print(removal_table(removals))
        if only != "loops":
            for row in explained(Corpus(corpus), Path(name)):
                rows.append(row)
                print(row, file=sys.stderr, flush=True)
            print(explained_table(rows))
    if write_docs and removals:
        write_part(DOCS / "accuracy.md", "overhead", removal_table(removals))
    if write_docs and rows:
        write_part(DOCS / "accuracy.md", "explained", explained_table(rows))
    good = all(one.is_right for one in removals) and all(row.part >= LEAST_EXPLAINED for row in rows)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
