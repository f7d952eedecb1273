"""What `tune` prints: what was tried of each kernel, and what the best changes in the application."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO

from tracemap.experiments.model import BestConfiguration, Ranking, Ratio, Tune
from tracemap.outputs import STANDARD_OUTPUT
from tracemap.reports.terminal.swap import print_changes
from tracemap.reports.terminal.tables import Heading, console, number, print_table, say
from tracemap.units import format_ns

if TYPE_CHECKING:
    from rich.console import Console

_KERNELS = (
    Heading("kernel", least=28),
    number("tried"),
    number("failed", leave=20),
    number("time alone"),
    Heading("interval", leave=30),
    Heading("configuration", leave=10, least=16),
)

_NO_RUN = "no run tells the costs: in the order of the program"
_HANDED_ON = (Heading("folder", least=28), Heading("kernel", leave=20), number("cost in the run", leave=10))


def print_tune(made: Tune, out: TextIO) -> None:
    """Print the kernels, then the ops of the application that changed."""
    to = console(out)
    if made.handed_on is not None:
        _print_handed_on(to, made, made.handed_on)
        return
    print_table(to, "", _KERNELS, _rows(made), gap=False)
    for each in made.kernels:
        if each.obstacle:
            say(to, f"{each.kernel}: {each.obstacle}")
    if not made.spec:
        say(to, "no better configuration is known: nothing to write")
        return
    if made.spec != STANDARD_OUTPUT:
        say(to, f"spec: {made.spec}, for iree-compile --iree-codegen-tuning-spec-path={made.spec}")
    print_changes(to, made.pairs, made.application, made.ops)


def _print_handed_on(to: Console, made: Tune, ranking: Ranking) -> None:
    """Print what was written for another tuner, and how it is started."""
    known = isinstance(ranking.run, str)
    rows = ((each.folder, each.kernel, format_ns(each.cost_ns) if known else "") for each in ranking.kernels)
    print_table(to, "", _HANDED_ON, (row for row in rows if row[0]), gap=False)
    for each in ranking.kernels:
        if each.obstacle:
            say(to, f"{each.kernel}: left out: {each.obstacle}")
    say(to, f"ranked by their cost in {ranking.run}" if known else _NO_RUN)
    say(to, f"amdsharktuner tunes them: {made.spec}/tune.sh hip://0 100")


def _rows(made: Tune) -> Iterator[tuple[object, ...]]:
    for each in made.kernels:
        if each.best is None:
            yield each.kernel, each.tried, each.failed, "", "", f"no better candidate in {each.tried} tried"
        else:
            yield each.kernel, each.tried, each.failed, *_ratio(each.best.ratio), _configuration(each.best)


def _configuration(best: BestConfiguration) -> str:
    return f"pipeline {best.pipeline}, {best.configuration}" if best.pipeline else best.configuration


def _ratio(ratio: Ratio) -> tuple[str, str]:
    return f"{ratio.median:.2f} times", f"{ratio.low:.2f} … {ratio.high:.2f}"
