"""Whether advice names the cause of lost time: `python -m tests.oracle.advice`.

Programs with one planted cause each (`tests.oracle.planted`) are built and recorded on two workers. The first advice
must name the cause. Its remedy is done, too: the gain, under IREE's own benchmark in turn with the original, must be
within the promised interval. Programs without a cause must get no advice.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from tests.documents import DOCS, write_part
from tests.oracle.planted import Planted, clean, planted
from tests.oracle.stock import DEVICES, Program, Timed, compiled, run_ahead_of_others, times_in_turns
from tests.oracle.what_if import interval
from tests.support import Json, command_line, json_cli

LEAST_RIGHT: Final = 0.9
LEAST_REALIZED: Final = 0.8
_DEVICE: Final = "2 workers"
_TURNS: Final = 8
_LEAST_GAIN: Final = 0.03
"""The part of a program's time that a remedy must gain; less is no planted cause."""


@dataclass(frozen=True, slots=True)
class Judged:
    """The advice for a planted program, and the gain of its remedy in ns per invocation."""

    planted: Planted
    advice: tuple[Json, ...]
    before_ns: float
    gain_ns: float
    low_ns: float
    high_ns: float

    @property
    def is_planted(self) -> bool:
        """Whether the remedy gains anything."""
        return self.low_ns > 0 and self.gain_ns >= _LEAST_GAIN * self.before_ns

    @property
    def is_named(self) -> bool:
        """Whether the first advice is of the planted rule, or of another one for the same cause."""
        return bool(self.advice) and self.advice[0]["rule"] in (self.planted.rule, *self.planted.others)

    @property
    def is_realized(self) -> bool:
        """Whether the promised interval and that of the gain have a point in common."""
        first = self.advice[0]
        return bool(first["low_ns"] <= self.high_ns and self.low_ns <= first["high_ns"])


def judge(case: Planted, folder: Path, turns: int = _TURNS) -> Judged:
    """Ask for advice, and do the remedy."""
    both = {"before": case.program, "after": case.remedy}
    timed = {name: Timed(compiled(program, folder), program, DEVICES[_DEVICE]) for name, program in both.items()}
    times = times_in_turns(timed, turns)
    gains = [before - after for before, after in zip(times["before"], times["after"], strict=True)]
    low, high = interval(gains)
    advice = advice_for(case.program, folder)
    return Judged(case, tuple(advice), statistics.median(times["before"]), statistics.median(gains), low, high)


def advice_for(program: Program, folder: Path) -> Sequence[Json]:
    """The advice for a program, best first."""
    model, bundle, run = (folder / f"{program.name}.{end}" for end in ("mlir", "tracemap", "parquet"))
    model.write_text(program.text, encoding="utf-8")
    flags = ("--", *program.compile_flags) if program.compile_flags else ()
    run_ahead_of_others(command_line("build", model, "--force", "-o", bundle, *flags))
    inputs = [word for value in program.inputs for word in ("--input", value)]
    words: tuple[str | Path, ...] = (
        "record",
        bundle,
        *inputs,
        "--seconds",
        "2",
        "--force",
        "-o",
        run,
        "--",
        *DEVICES[_DEVICE],
    )
    run_ahead_of_others(command_line(*words))
    found = json_cli("attribute", run, "--map", bundle)["advice"]
    assert isinstance(found, list)
    return found


def table(judged: Sequence[Judged], clean_advice: Sequence[tuple[str, Sequence[Json]]]) -> str:
    """All programs as a table of Markdown."""
    rows = [
        "| planted cause | program | first advice | promised gain µs | interval | true gain µs | of the time |",
        "|---|---|---|--:|--:|--:|--:|",
    ]
    for one in judged:
        first, promised, bounds = "none", "–", "–"
        if one.advice:
            first = one.advice[0]["rule"] + ("" if one.is_named else " (wrong)")
            promised, low, high = (f"{one.advice[0][key] / 1000:.0f}" for key in ("gain_ns", "low_ns", "high_ns"))
            bounds = f"{low} to {high}"
        true = f"{one.gain_ns / 1000:.0f} | {one.gain_ns / one.before_ns:.0%}"
        rows.append(f"| {one.planted.rule} | {one.planted.name} | {first} | {promised} | {bounds} | {true} |")
    for name, advice in clean_advice:
        first = advice[0]["rule"] + " (wrong)" if advice else "none"
        promised = f"{advice[0]['gain_ns'] / 1000:.0f}" if advice else "–"
        rows.append(f"| none | {name} | {first} | {promised} | – | – | – |")
    sure = [one for one in judged if one.is_planted]
    named = [one for one in sure if one.is_named]
    realized = sum(one.is_realized for one in named)
    rows += [
        "",
        f"Of {len(sure)} programs whose remedy gains at least {_LEAST_GAIN:.0%}, {len(named)} have the cause first; "
        f"the gain is within the promised interval in {realized} of them. "
        f"{sum(not advice for _, advice in clean_advice)} of {len(clean_advice)} clean programs have no advice.",
    ]
    return "\n".join(rows)


def is_right(judged: Sequence[Judged], clean_advice: Sequence[tuple[str, Sequence[Json]]]) -> bool:
    """Whether all targets are met."""
    sure = [one for one in judged if one.is_planted]
    named = [one for one in sure if one.is_named]
    enough = len(named) >= LEAST_RIGHT * len(sure)
    realized = sum(one.is_realized for one in named) >= LEAST_REALIZED * len(named)
    return enough and realized and not any(advice for _, advice in clean_advice)


@click.command()
@click.option("--only", default="", help="Only planted causes, or clean programs, whose rule or name contains this.")
@click.option("--write-docs", is_flag=True, help="Put the table into docs/accuracy.md.")
def main(only: str, *, write_docs: bool) -> None:
    """Print the table; status 1 if a target is missed."""
    judged: list[Judged] = []
    clean_advice: list[tuple[str, Sequence[Json]]] = []
    with tempfile.TemporaryDirectory(prefix="tracemap-advice-") as name:
        for case in planted():
            if only in f"{case.rule} {case.name}":
                judged.append(judge(case, Path(name)))
                _print(case.rule, case.name, judged[-1].advice)
        for program in clean():
            if only in program.name:
                clean_advice.append((program.name, advice_for(program, Path(name))))
                _print("clean", program.name, clean_advice[-1][1])
    text = table(judged, clean_advice)
    print(text)
    if write_docs:
        write_part(DOCS / "accuracy.md", "advice", text)
    sys.exit(0 if is_right(judged, clean_advice) else 1)


def _print(rule: str, name: str, advice: Sequence[Json]) -> None:
    print(f"{rule}, {name}:", file=sys.stderr)
    for one in advice:
        print(f"  {one['rule']}: {one['text']}; {one['command']}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
