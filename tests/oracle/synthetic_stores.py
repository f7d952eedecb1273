"""Made-up stores: what ops cost on hosts, night by night, as far as is known of machines, and what was changed in them.

Nothing of it is taken from how changes are looked for. Each op has a cost of its own, over three decades; hosts have
CPU models, which run some ops faster than others, and are by themselves up to about a tenth faster or slower, also for
single ops. A run is as a whole slower than another by some per cent; in a busy night by a third. Hosts get warmer and
cooler over weeks, all their ops with them. Ops have noise of their own, some with heavy tails; now and then one takes
half as long again. Some ops wander: with the host, for how its memory lies, or on all hosts of a CPU model; others
differ from build to build, for how their code lies. Hosts stay away in some nights, one is replaced for good, one comes
late.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from tracemap.store.series import Observations

Floats = npt.NDArray[np.float64]
NIGHTS, HOSTS = 200, 20
FIRST_NIGHT: Final = 738_000
"""The ordinal of a date."""
EDGE: Final = 10
"""Nights at either end in which nothing is planted."""


@dataclass(frozen=True)
class Planted:
    """A change: from a night on an op costs so many times as much, on a CPU model; -1: on all."""

    op: int
    cpu_model: int
    night: int
    ratio: float


@dataclass(frozen=True)
class SyntheticStore:
    """Costs, and what was planted in them."""

    observations: Observations
    planted: tuple[Planted, ...]
    models: int


@dataclass
class Maker:
    """Makes a store: the same one of the same seed."""

    seed: int
    nights: int = NIGHTS
    hosts: int = HOSTS
    random: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        self.ops = int(self.random.integers(30, 61))
        self.model_of = self._models()
        self.models = int(self.model_of.max()) + 1

    def _models(self) -> npt.NDArray[np.int64]:
        """Three to five CPU models, unequally many hosts of each, at least two."""
        count = int(self.random.integers(3, 6))
        shares = self.random.dirichlet(np.full(count, 2.0))
        extra = self.random.multinomial(self.hosts - 2 * count, shares)
        return np.repeat(np.arange(count), 2 + extra)

    def store(self, ratios: Sequence[float] = (), everywhere: bool = False) -> SyntheticStore:
        """A store with changes of these ratios, one behind the other, in one op on one CPU model, or on all."""
        planted = self._planted(ratios, everywhere)
        logs = self._levels()[:, :, None] + self._runs()[None] + self._noise() + self._wandering() + self._builds()
        for each in planted:
            of_model = (self.model_of == each.cpu_model) | (each.cpu_model < 0)
            logs[each.op, of_model, each.night - FIRST_NIGHT :] += np.log(each.ratio)
        return SyntheticStore(self._observed(logs), planted, self.models)

    def _planted(self, ratios: Sequence[float], everywhere: bool) -> tuple[Planted, ...]:
        op, model = int(self.random.integers(self.ops)), int(self.random.integers(self.models))
        span = (self.nights - 2 * EDGE) // max(len(ratios), 1)
        inside = EDGE if len(ratios) > 1 else 0  # each level lasts some weeks
        drawn = [int(self.random.integers(inside, span - inside)) for _ in ratios]
        nights = [EDGE + number * span + night for number, night in enumerate(drawn)]
        return tuple(
            Planted(op, -1 if everywhere else model, FIRST_NIGHT + night, ratio)
            for night, ratio in zip(nights, ratios, strict=True)
        )

    def _levels(self) -> Floats:
        costs = self.random.uniform(np.log(1e3), np.log(1e6), self.ops)
        models = self.random.normal(0, 0.25, (self.ops, self.models))
        hosts = self.random.normal(0, 0.06, len(self.model_of))
        single = self.random.normal(0, 0.05, (self.ops, len(self.model_of)))
        return np.asarray(costs[:, None] + models[:, self.model_of] + hosts + single)

    def _runs(self) -> Floats:
        """What all ops of a run have in common (host, night)."""
        shape = (len(self.model_of), self.nights)
        spread = self.random.uniform(0.02, 0.05, (shape[0], 1))
        busy = np.where(self.random.random(shape) < 0.02, np.log(1.3) * self.random.uniform(0.5, 1.5, shape), 0)
        night = np.arange(self.nights)
        weeks = self.random.uniform(20, 90, (shape[0], 1))
        warm = self.random.uniform(0.005, 0.01, (shape[0], 1)) * np.sin(
            2 * np.pi * (night / weeks + self.random.random((shape[0], 1)))
        )
        return np.asarray(self.random.normal(0, 1, shape) * spread + busy + warm)

    def _noise(self) -> Floats:
        """Of each op in each run: of one to three per cent, with tails as Student's with 3 to 8 degrees of freedom."""
        shape = (self.ops, len(self.model_of), self.nights)
        hosts = self.random.lognormal(0, 0.15, (1, shape[1], 1))
        size = np.clip(self.random.uniform(0.01, 0.03, (self.ops, 1, 1)) * hosts, 0.01, 0.03)
        tails = self.random.uniform(3, 8, self.ops)
        drawn = np.stack([self.random.standard_t(degrees, shape[1:]) for degrees in tails])
        drawn /= np.sqrt(tails / (tails - 2))[:, None, None]  # the size is the standard deviation
        outliers = np.where(self.random.random(shape) < 0.005, np.log(1.5) * self.random.uniform(0.6, 1.4, shape), 0)
        return np.asarray(size * drawn + outliers)

    def _wandering(self) -> Floats:
        """Some ops wander by the host, others by the CPU model, some of them back to where they came from."""
        shape = (self.ops, len(self.model_of), self.nights)
        kind = self.random.random(self.ops)
        pull = np.where(self.random.random(self.ops) < 0.5, 1.0, self.random.uniform(0.8, 0.98, self.ops))
        size = self.random.uniform(0.0005, 0.002, self.ops)
        by_host = self._walk(shape, pull) * np.where(kind < 0.15, size, 0)[:, None, None]
        by_model = self._walk((self.ops, self.models, self.nights), pull)[:, self.model_of]
        return np.asarray(by_host + by_model * np.where(kind > 0.85, size, 0)[:, None, None])

    def _walk(self, shape: tuple[int, int, int], pull: Floats) -> Floats:
        steps = self.random.standard_normal(shape)
        walk = np.zeros(shape)
        for night in range(1, shape[2]):
            walk[:, :, night] = pull[:, None] * walk[:, :, night - 1] + steps[:, :, night]
        return walk

    def _builds(self) -> Floats:
        """A tenth of the ops differ from build to build, on all hosts of a CPU model alike."""
        size = np.where(self.random.random(self.ops) < 0.1, self.random.uniform(0.003, 0.01, self.ops), 0)
        drawn = self.random.normal(0, 1, (self.ops, self.models, self.nights))
        return np.asarray((size[:, None, None] * drawn)[:, self.model_of])

    def _observed(self, logs: Floats) -> Observations:
        """The runs that took place: a host is replaced by another one midway, one comes late, nights are missing."""
        hosts = len(self.model_of)
        there = self.random.random((hosts, self.nights)) >= 0.05
        there[int(self.random.integers(hosts)), : int(self.random.integers(self.nights // 10, self.nights // 3))] = (
            False
        )
        key = np.tile(np.arange(hosts)[:, None], (1, self.nights))
        replaced, when = (
            int(self.random.integers(hosts)),
            int(self.random.integers(self.nights // 4, 3 * self.nights // 4)),
        )
        key[replaced, when:] = hosts
        logs[:, replaced, when:] += self.random.normal(0, 0.08, (self.ops, 1))
        op, host, night = np.nonzero(np.broadcast_to(there, logs.shape))
        return Observations.of(
            op=op,
            host=key[host, night],
            cpu_model=self.model_of[host],
            night=FIRST_NIGHT + night,
            run=host * self.nights + night,
            cost_ns=np.round(np.exp(logs[op, host, night])),
        )
