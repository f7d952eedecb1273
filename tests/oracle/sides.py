"""Whether what differs between two sets of runs is named, and the host that is unlike others.

`python -m tests.oracle.sides`.

Stores are made up as for `tests.oracle.nights`. Two nights, or five and the five behind them, are compared, with a
change in an op on a CPU model between them or without one; and all nights of a store are asked for hosts that are
unlike others, with one that was made slower or without. A seed is right when what was planted is named, and nothing
else is.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import click
import numpy as np

from tests.documents import DOCS, write_part
from tests.oracle.nights import FIRST_SEED
from tests.oracle.synthetic_stores import FIRST_NIGHT, HOSTS, Maker
from tracemap.store.findings import LEAST_HOSTS, OutlierHost, SetDifference, compare_sets, outliers
from tracemap.store.series import EVERY, Observations

NIGHTS: Final = 60
_MIDDLE: Final = FIRST_NIGHT + NIGHTS // 2

Named = tuple[int, int, int]
"""An op, a CPU model and 0; or an op, a CPU model and a host."""


@dataclass(frozen=True)
class Sides:
    """So many nights are compared with as many behind them, with a change of a ratio in an op on a CPU model; or 1."""

    name: str
    nights: int
    ratio: float
    least: int = 0

    def planted_and_said(self, seed: int) -> tuple[set[Named], list[Named]]:
        """What is in the store of a seed, and what is named of it."""
        store = Maker(seed, nights=NIGHTS).store((self.ratio,) if self.ratio != 1 else ())
        first = store.planted[0].night if store.planted else _MIDDLE
        night = store.observations.night
        before = store.observations.where((night >= first - self.nights) & (night < first))
        after = store.observations.where((night >= first) & (night < first + self.nights))
        said = compare_sets(before, after).changes
        return {(each.op, each.cpu_model, 0) for each in store.planted}, [self._of(each) for each in said]

    def _of(self, said: SetDifference) -> Named:
        kind = "slower" if self.ratio > 1 else "faster"
        return (said.op if said.kind == kind else EVERY - 1, said.cpu_model, 0)


@dataclass(frozen=True)
class Hosts:
    """A host is made slower than others of its CPU model by a ratio, in all ops or in one; or none is (1)."""

    name: str
    ratio: float
    single: bool = False
    least: int = 0

    def planted_and_said(self, seed: int) -> tuple[set[Named], list[Named]]:
        """What is in the store of a seed, and what is named of it."""
        given = Maker(seed, nights=NIGHTS).store().observations
        # The host in whose place another one came is drawn wider than the rest: it is unlike them.
        given = given.where(given.host < HOSTS)
        planted, made = self._changed(given, np.random.default_rng([seed, 1]))
        return planted, [(each.op, each.cpu_model, each.host) for each in self._slower(outliers(made))]

    def _slower(self, said: Sequence[OutlierHost]) -> list[OutlierHost]:
        return [each for each in said if self.ratio == 1 or each.ratio > 1]

    def _changed(self, given: Observations, random: np.random.Generator) -> tuple[set[Named], Observations]:
        if self.ratio == 1:
            return set(), given
        pairs = np.unique(np.stack([given.cpu_model, given.host]), axis=1)
        models, counts = np.unique(pairs[0], return_counts=True)
        model, host = random.choice(pairs.T[np.isin(pairs[0], models[counts >= LEAST_HOSTS])])
        op = int(random.choice(np.unique(given.op))) if self.single else EVERY
        chosen = (given.host == host) & ((given.op == op) | (op == EVERY))
        cost_ns = np.where(chosen, np.round(given.cost_ns * self.ratio), given.cost_ns)
        return {(op, int(model), int(host))}, replace(given, cost_ns=cost_ns)


Case = Sides | Hosts

CASES: Final[Sequence[Case]] = (
    Sides("a night and the next, nothing", 1, 1.0, least=19),
    Sides("a night and the next, 4 % slower", 1, 1.04),
    Sides("a night and the next, 10 % slower", 1, 1.1),
    Sides("five nights and five, nothing", 5, 1.0, least=19),
    Sides("five nights and five, 4 % slower", 5, 1.04),
    Sides("five nights and five, 10 % slower", 5, 1.1, least=19),
    Hosts("hosts, nothing", 1.0, least=19),
    Hosts("a host slower by half", 1.5),
    Hosts("a host slower by half in an op", 1.5, single=True),
)


@dataclass
class Tally:
    """Of the seeds of a case: what was planted is named; nothing else; both."""

    seeds: int = 0
    named: int = 0
    quiet: int = 0
    right: int = 0
    wrong: list[int] = field(default_factory=list)

    def add(self, seed: int, planted: set[Named], said: Sequence[Named]) -> None:
        """Judge what was said of a store."""
        named, quiet = planted <= set(said), set(said) <= planted
        self.seeds += 1
        self.named += named
        self.quiet += quiet
        self.right += named and quiet
        if not (named and quiet):
            self.wrong.append(seed)


def tallied(case: Case, seeds: Sequence[int]) -> Tally:
    """Make stores of these seeds, and ask."""
    tally = Tally()
    for seed in seeds:
        tally.add(seed, *case.planted_and_said(seed))
    return tally


def table(tallies: Sequence[tuple[Case, Tally]]) -> str:
    """The tallies as a table of Markdown."""
    rows = ["| planted change | found | nothing else | both |", "|---|--:|--:|--:|"]
    for case, each in tallies:
        named = f"{each.named} of {each.seeds}" if case.ratio != 1 else "–"
        rows.append(f"| {case.name} | {named} | {each.quiet} of {each.seeds} | {each.right} of {each.seeds} |")
    return "\n".join(rows)


@click.command()
@click.option("--seeds", type=click.IntRange(1), default=20, show_default=True, help="Stores of each kind.")
@click.option("--first", type=click.IntRange(0), default=FIRST_SEED, show_default=True, help="The first seed.")
@click.option("--write-docs", is_flag=True, help="Put the table into docs/accuracy.md.")
def main(seeds: int, first: int, write_docs: bool) -> None:
    """Print the table; status 1 where less is right than is promised."""
    tallies = []
    for case in CASES:
        tallies.append((case, tallied(case, range(first, first + seeds))))
        print(f"{case.name}: not right {tallies[-1][1].wrong}", file=sys.stderr, flush=True)
    text = table(tallies)
    print(text)
    if write_docs:
        write_part(DOCS / "accuracy.md", "sides", text)
    sys.exit(0 if all(each.right * 20 >= case.least * each.seeds for case, each in tallies) else 1)


if __name__ == "__main__":
    main()
