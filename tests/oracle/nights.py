"""Whether a change in a store is named with its night and CPU model, and no other: `python -m tests.oracle.nights`.

`tests.oracle.synthetic_stores` makes stores of 200 nights and 20 hosts, each from a seed, some with a change in an op
on a CPU model. A seed is right when the changes that were planted, and no others, are named: op, direction, CPU model
and the first night of each. Where nothing was planted, nothing may be named.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import click

from tests.documents import DOCS, write_part
from tests.oracle.synthetic_stores import Maker, Planted, SyntheticStore
from tracemap.store.findings import Change
from tracemap.store.queries import changes

FIRST_SEED: Final = 1000


@dataclass(frozen=True)
class Case:
    """What is planted; `least`: in how many of twenty seeds it must be right, where that is promised."""

    name: str
    ratios: Sequence[float] = ()
    everywhere: bool = False
    least: int = 0


CASES: Final = (
    Case("nothing", least=20),
    Case("4 % slower", (1.04,), least=19),
    Case("4 % faster", (1 / 1.04,)),
    Case("8 % slower", (1.08,), least=19),
    Case("2 % slower", (1.02,)),
    Case("1 % slower", (1.01,)),
    Case("4 % slower, later another 4 %", (1.04, 1.04)),
    Case("4 % slower, later as before", (1.04, 1 / 1.04)),
    Case("4 % slower on all CPU models", (1.04,), everywhere=True),
)


@dataclass
class Tally:
    """Of the seeds of a case: all planted changes named with op and CPU model; with their nights too; nothing else.

    `right`: all of it. `held`: the interval of nights holds the night, `told`: that of ratios the ratio, of those
    named.
    """

    seeds: int = 0
    named: int = 0
    nights: int = 0
    quiet: int = 0
    right: int = 0
    found: int = 0
    held: int = 0
    told: int = 0
    seconds: list[float] = field(default_factory=list)

    def add(self, store: SyntheticStore, made: Sequence[Change]) -> None:
        """Judge what was said of a store."""
        nearest = [_nearest(each, made) for each in store.planted]
        hits = [(each, change) for each, change in zip(store.planted, nearest, strict=True) if change is not None]
        named = len({id(change) for _, change in hits}) == len(store.planted)
        nights = named and all(change.night == each.night for each, change in hits)
        quiet = len(made) == len({id(change) for _, change in hits})
        self.seeds += 1
        self.named += named
        self.nights += nights
        self.quiet += quiet
        self.right += nights and quiet
        self.found += len(hits)
        self.held += sum(change.night_low <= each.night <= change.night_high for each, change in hits)
        self.told += sum(change.ratio_low <= each.ratio <= change.ratio_high for each, change in hits)


def _nearest(planted: Planted, made: Sequence[Change]) -> Change | None:
    """The finding of this op and CPU model and direction that is nearest in time."""
    kind = "slower" if planted.ratio > 1 else "faster"
    fitting = [each for each in made if (each.kind, each.op, each.cpu_model) == (kind, planted.op, planted.cpu_model)]
    return min(fitting, key=lambda each: abs(each.night - planted.night), default=None)


def tallied(case: Case, seeds: Sequence[int]) -> Tally:
    """Make stores of these seeds and look for changes; each that is not right is printed."""
    tally = Tally()
    for seed in seeds:
        store = Maker(seed).store(case.ratios, case.everywhere)
        start = time.perf_counter()
        made = changes(store.observations).changes
        tally.seconds.append(time.perf_counter() - start)
        before = tally.right
        tally.add(store, made)
        if tally.right == before:
            print(f"{case.name}, seed {seed}: {store.planted}: {[*map(_said, made)] or 'none'}", file=sys.stderr)
    return tally


def _said(change: Change) -> str:
    return (
        f"op {change.op}, model {change.cpu_model}, host {change.host}, night {change.night} "
        f"({change.night_low} to {change.night_high}), {change.ratio:.3f}, p {change.chance:.1g}"
    )


def table(tallies: Sequence[tuple[Case, Tally]]) -> str:
    """The tallies as a table of Markdown."""
    rows = [
        "| planted change | found | first night right | nothing else | all right | interval contains night | ratio |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for case, each in tallies:
        of = f"of {each.seeds}"
        cells = [f"{value} {of}" for value in (each.named, each.nights, each.quiet, each.right)]
        if not case.ratios:
            cells[:2] = ["–", "–"]
        held = [f"{value} of {each.found}" if each.found else "–" for value in (each.held, each.told)]
        rows.append(f"| {case.name} | {' | '.join([*cells, *held])} |")
    return "\n".join(rows)


@click.command()
@click.option("--seeds", type=click.IntRange(1), default=20, show_default=True, help="Stores of each kind.")
@click.option("--first", type=click.IntRange(0), default=FIRST_SEED, show_default=True, help="The first seed.")
@click.option("--only", help="Only kinds whose name has this.")
@click.option("--write-docs", is_flag=True, help="Put the table into docs/accuracy.md.")
def main(seeds: int, first: int, only: str | None, write_docs: bool) -> None:
    """Print the table; status 1 where less is right than is promised."""
    tallies = []
    for case in CASES:
        if only is None or only in case.name:
            tallies.append((case, tallied(case, range(first, first + seeds))))
            print(f"{case.name}: {tallies[-1][1].right} of {seeds}", file=sys.stderr, flush=True)
    text = table(tallies)
    print(text)
    seconds = [second for _, tally in tallies for second in tally.seconds]
    print(f"{statistics.median(seconds):.1f} s for a store (median)", file=sys.stderr)
    if write_docs:
        write_part(DOCS / "accuracy.md", "nights", text)
    sys.exit(0 if all(each.right * 20 >= case.least * each.seeds for case, each in tallies) else 1)


if __name__ == "__main__":
    main()
