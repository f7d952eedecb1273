"""Whether what-if predicts what a change gains: `python -m tests.oracle.what_if`.

Programs of which one kernel is altered (`tests.oracle.altered`) run in turn with the original, under IREE's own
benchmark, on three devices. `tracemap what-if` gets a recording of the original and the factor by which the kernel's
own time changed, as IREE's profiler measures it. It must predict the program's time: the median error is at most 2
points of it, the interval holds in 90 % of the pairs, and predicted and true changes have a rank correlation of 0.95.
"""

from __future__ import annotations

import functools
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
import numpy as np

from tests.documents import DOCS, write_part
from tests.oracle.altered import Alteration, alterations, swaps
from tests.oracle.stock import DEVICES, Kernels, Timed, compiled, kernels_in_turns, run_ahead_of_others, times_in_turns
from tests.support import Json, check_cli, command_line, json_cli

MOST_MEDIAN_ERROR: Final = 2.0
LEAST_HOLDING: Final = 0.9
LEAST_CORRELATION: Final = 0.95
_TURNS: Final = 16
_SECONDS: Final = 0.05
"""Time of a program in a turn. Many short turns are surer than a few long ones: the machine's speed varies."""
_ROUNDS: Final = 3
"""Rounds of turns at most, until the true change is known well enough."""
_MOST_WIDTH: Final = 4.0
"""Points between the ends of a true change's interval; a wider one proves nothing."""


@dataclass(frozen=True, slots=True)
class Pair:
    """An alteration on a device: predicted and true changes in points of the program's time.

    `factor`: the kernel's own time after the change, divided by that before; 0 if it was removed.
    """

    name: str
    device: str
    factor: float
    predicted: float
    low: float
    high: float
    true: float
    true_low: float
    true_high: float
    reason: str = ""

    @property
    def error(self) -> float:
        return abs(self.predicted - self.true)

    @property
    def holds(self) -> bool:
        """Whether the predicted interval and that of the truth have a point in common."""
        return self.low <= self.true_high and self.true_low <= self.high

    @property
    def holds_strictly(self) -> bool:
        """Whether the predicted interval contains the true median."""
        return self.low <= self.true <= self.high

    @property
    def is_sure(self) -> bool:
        return self.true_high - self.true_low <= _MOST_WIDTH


def pair(alteration: Alteration, device: str, folder: Path, turns: int = _TURNS) -> Pair:
    """Predict the effect of an alteration, and measure it."""
    timed = _timed(alteration, device, folder)
    kernel, factor = _factor(alteration, folder)
    ratios: list[float] = []
    for _ in range(_ROUNDS):
        times = times_in_turns(timed, turns, _SECONDS)
        ratios += [100 * (a / b - 1) for a, b in zip(times["after"], times["before"], strict=True)]
        true_low, true_high = interval(ratios)
        if true_high - true_low <= _MOST_WIDTH / 2:
            break
    change = _predicted(alteration, kernel, factor, device, folder)
    after = [100 * (change[name] / change["before_ns"] - 1) for name in ("after_ns", "low_ns", "high_ns")]
    return Pair(
        alteration.name,
        device,
        factor,
        after[0],
        min(after[1:]),
        max(after[1:]),
        statistics.median(ratios),
        true_low,
        true_high,
        str(change.get("reason", "")),
    )


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of a median (McGill, Tukey and Larsen 1978)."""
    middle, (low, high) = statistics.median(values), np.quantile(values, (0.25, 0.75))
    half = 1.57 * float(high - low) / float(np.sqrt(len(values)))
    return middle - half, middle + half


def _timed(alteration: Alteration, device: str, folder: Path) -> dict[str, Timed]:
    before, after = compiled(alteration.before, folder), compiled(alteration.after, folder)
    if alteration.tiles:
        bundle = _bundle(alteration, folder)
        before, after = bundle / "module.vmfb", _swapped(bundle, alteration, folder) / "module.vmfb"
    flags = DEVICES[device]
    return {"before": Timed(before, alteration.before, flags), "after": Timed(after, alteration.after, flags)}


def _bundle(alteration: Alteration, folder: Path) -> Path:
    bundle = folder / f"{alteration.before.name}.tracemap"
    if not bundle.exists():
        model = compiled(alteration.before, folder).with_suffix(".mlir")
        run_ahead_of_others(command_line("build", model, "-o", bundle))
    return bundle


def _swapped(bundle: Path, alteration: Alteration, folder: Path) -> Path:
    assert alteration.tiles
    kernel, (old, new) = _kernel(bundle, alteration.line), alteration.tiles
    after, edited = folder / f"{kernel}.tracemap", folder / f"{kernel}.mlir"
    if not after.exists():
        text = check_cli("swap", bundle, kernel, "--dump", "configuration")
        assert old in text, f"{kernel}: no {old}"
        edited.write_text(text.replace(old, new), encoding="utf-8")
        inputs = [word for value in alteration.before.inputs for word in ("--input", value)]
        words = ("-o", after, "--pairs", "0", "--no-verify")
        check_cli("swap", bundle, f"{kernel}={edited}", *inputs, *words)
    return after


def _kernel(bundle: Path, line: int) -> str:
    shown = json_cli("show", bundle)
    sites = [site for op in shown["ops"] if op["line"] == line for site in op["sites"]]
    (kernel,) = {site["kernel"] for site in shown["sites"] if site["id"] in sites}
    return str(kernel)


@functools.cache
def _factor(alteration: Alteration, folder: Path) -> tuple[str, float]:
    """The name of the altered kernel, and the factor of its own time on one worker."""
    found = kernels_in_turns(_timed(alteration, "1 worker", folder), 3, folder)
    if alteration.tiles:
        kernel = _kernel(_bundle(alteration, folder), alteration.line)
        return kernel, found["after"].call(kernel) / found["before"].call(kernel)
    before = _differing(found["before"], found["after"])
    if alteration.removed:
        return before, 0.0
    after = _differing(found["after"], found["before"])
    return before, found["after"].call(after) / found["before"].call(before)


def _differing(kernels: Kernels, others: Kernels) -> str:
    """The kernel that the other program lacks; names end in what a kernel computes, and its sizes."""

    def described(name: str) -> str:
        return name.partition("_dispatch_")[2].partition("_")[2]

    known = {described(name) for name in others.calls}
    (only,) = (name for name in kernels.calls if described(name) not in known)
    return only


def _predicted(alteration: Alteration, kernel: str, factor: float, device: str, folder: Path) -> Json:
    bundle = _bundle(alteration, folder)
    run = folder / f"{alteration.before.name}-{device.replace(' ', '')}.parquet"
    if not run.exists():
        inputs = [word for value in alteration.before.inputs for word in ("--input", value)]
        run_ahead_of_others(
            command_line("record", bundle, *inputs, "--seconds", "2", "-o", run, "--", *DEVICES[device])
        )
    target = ["--kernel", kernel] if alteration.whole else ["--op", _op(bundle, alteration.line)]
    faster = "removed" if alteration.removed else f"{1 / factor:.4f}x"
    words = command_line("what-if", run, "--map", bundle, *target, "--faster", faster, "--json")
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    (change,) = found["changes"]
    return {**change, "before_ns": found["before_ns"]}


def _op(bundle: Path, line: int) -> str:
    """The op of a line that has a kernel."""
    found = [op["id"] for op in json_cli("show", bundle)["ops"] if op["line"] == line and op["sites"]]
    assert len(found) == 1, f"line {line}: {found}"
    return str(found[0])


@dataclass(frozen=True, slots=True)
class Summary:
    """What is promised, of all pairs whose truth is sure."""

    pairs: int
    unsure: int
    median_error: float
    holding: float
    holding_strictly: float
    correlation: float

    @property
    def is_right(self) -> bool:
        return (
            self.median_error <= MOST_MEDIAN_ERROR
            and self.holding >= LEAST_HOLDING
            and self.correlation >= LEAST_CORRELATION
        )


def summary(pairs: Sequence[Pair]) -> Summary:
    """Judge pairs; those without a sure truth are left out."""
    sure = [one for one in pairs if one.is_sure]
    ranks = [
        np.argsort(np.argsort(values)) for values in zip(*((one.predicted, one.true) for one in sure), strict=True)
    ]
    return Summary(
        len(sure),
        len(pairs) - len(sure),
        statistics.median(one.error for one in sure),
        statistics.fmean(one.holds for one in sure),
        statistics.fmean(one.holds_strictly for one in sure),
        float(np.corrcoef(ranks[0], ranks[1])[0, 1]) if len(sure) > 1 else 1.0,
    )


def table(pairs: Sequence[Pair]) -> str:
    """All pairs and the summary as a table of Markdown."""
    rows = [
        "| program: change | device | kernel's factor | predicted change | interval | true change | interval | holds |",
        "|---|---|--:|--:|--:|--:|--:|---|",
    ]
    for one in pairs:
        factor = f"{one.factor:.2f}" if one.factor else "removed"
        holds = ("yes" if one.holds else "no") if one.is_sure else "unsure"
        rows.append(
            f"| {one.name} | {one.device} | {factor} | {one.predicted:+.1f} | {one.low:+.1f} to {one.high:+.1f}"
            f" | {one.true:+.1f} | {one.true_low:+.1f} to {one.true_high:+.1f} | {holds} |"
        )
    all_of = summary(pairs)
    rows += [
        "",
        f"Of {len(pairs)} pairs, {all_of.pairs} have a sure truth. "
        f"Their median error is {all_of.median_error:.1f} points of the program's time "
        f"(limit {MOST_MEDIAN_ERROR:.0f}). The interval holds in {all_of.holding:.0%} "
        f"(limit {LEAST_HOLDING:.0%}), and contains the true median in {all_of.holding_strictly:.0%}. "
        f"The rank correlation is {all_of.correlation:.3f} (limit {LEAST_CORRELATION}). "
        f"Of all pairs, the median error is {statistics.median(one.error for one in pairs):.1f} points, "
        f"and the interval holds in {statistics.fmean(one.holds for one in pairs):.0%}.",
    ]
    return "\n".join(rows)


@click.command()
@click.option("--turns", type=click.IntRange(3), default=_TURNS, show_default=True, help="Turns of each pair.")
@click.option("--only", default="", help="Only alterations whose name contains this.")
@click.option("--write-docs", is_flag=True, help="Put the table into docs/accuracy.md.")
def main(turns: int, only: str, *, write_docs: bool) -> None:
    """Print the table; status 1 if a target is missed."""
    pairs: list[Pair] = []
    with tempfile.TemporaryDirectory(prefix="tracemap-what-if-") as folder:
        for alteration in (*alterations(), *swaps()):
            for device in DEVICES if only in alteration.name else ():
                pairs.append(pair(alteration, device, Path(folder), turns))
                print(pairs[-1], file=sys.stderr, flush=True)
    text = table(pairs)
    print(text)
    if write_docs:
        write_part(DOCS / "accuracy.md", "what-if", text)
    sys.exit(0 if summary(pairs).is_right else 1)


if __name__ == "__main__":
    main()
