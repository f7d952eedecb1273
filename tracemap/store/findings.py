"""What is said of a fleet: frozen records of numbers. Keys are those of the observations; `EVERY`: all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tracemap.units import Unknown

Kind = Literal["slower", "faster"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """An op became slower or faster, on a CPU model, at a night.

    `op` is `EVERY` where all ops of the runs did together: the machines changed, not the program. `cpu_model` is
    `EVERY` where all CPU models did by the same; `host` is `EVERY`, or the one whose change it is: others of its CPU
    model do not share it.

    `night` is the first one with the new level that was measured, `night_low` and `night_high` hold it with 95 %.
    `ratio` is the new cost by the old one, with an interval that is meant to hold it in 95 of 100 cases and holds it in
    about 85 (docs/accuracy.md); of an ordinary host `before_ns` became
    `after_ns` (unknown where `op` is `EVERY`). It rests on so many hosts, of which `hosts_agree` show it each by
    itself, and on so many nights before and after, up to other changes. `chance` is the p-value, corrected for the
    number of series.
    """

    kind: Kind
    op: int
    cpu_model: int
    host: int
    night: int
    night_low: int
    night_high: int
    ratio: float
    ratio_low: float
    ratio_high: float
    before_ns: float | Unknown
    after_ns: float | Unknown
    hosts: int
    hosts_agree: int
    nights_before: int
    nights_after: int
    chance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trends:
    """The changes, the least likely by chance first; in how many series they were looked for."""

    changes: tuple[Change, ...]
    series: int
    ops: int
    cpu_models: int
    hosts: int
    nights: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlierHost:
    """A host that is unlike others of its CPU model: overall (`op` is `EVERY`), or in an op beyond that.

    `ratio`: its cost by the median of the others; `z` by how many robust standard deviations that is beyond what
    is usual; `chance` is the p-value, corrected for the number of hosts and ops. `hosts`: how many there are.
    """

    host: int
    cpu_model: int
    op: int
    ratio: float
    z: float
    chance: float
    hosts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NightChange:
    """An op costs more or less in one set of runs than in another, on a CPU model; `op` is `EVERY`: all together.

    `ratio` with its interval of 95 %; `hosts` that are in both sets; `runs` of theirs. `chance` is the p-value,
    corrected for the number of ops and CPU models.
    """

    kind: Kind
    op: int
    cpu_model: int
    ratio: float
    ratio_low: float
    ratio_high: float
    before_ns: float | Unknown
    after_ns: float | Unknown
    hosts: int
    runs: int
    chance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Nights:
    """What differs between two sets of runs, the least likely by chance first.

    `compared`: pairs of op and CPU model for which hosts are in both sets; `lonely`: those that none is for.
    """

    changes: tuple[NightChange, ...]
    compared: int
    lonely: int
