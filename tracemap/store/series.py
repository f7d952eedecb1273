"""Costs of ops over nights, as tables of numbers: what belongs to a host and to a run is told apart from the ops' own.

The logarithm of a cost is taken to be the sum of a level of the op on the host, of something that all ops of the run
have in common (the machine was busy, hot, or clocked otherwise), and of the rest, which is looked at for changes. Of
the common part the median over the ops is a first guess, which a mean of clipped rests makes more precise.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracemap.store.p_values import MAD_TO_SIGMA

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

EVERY: Final = -1
"""In place of a number: all ops, all CPU models, all hosts."""
LEAST_OPS: Final = 5
"""Of fewer ops it is not told what they have in common: it would be what one of them does."""
LEAST_SCALE: Final = 5e-4
"""Smaller relative noise is not believed: times are counted in whole ticks of a clock."""
_UPPER: Final = 0.9
_UPPER_TO_SIGMA: Final = 1 / 1.6449
_CLIP: Final = 1.5
"""In standard deviations, as far as a single op moves what a run's ops have in common."""
_ROUNDS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """What ops cost in runs: arrays of equal length, one place for each op of each run.

    `op`, `host`, `cpu_model`: keys from 0, without meaning. `night`: a number that grows with time, such as the
    ordinal of the date or of the compiler's version; nights may be missing. `run`: a run is of one host and one
    night. `cost_ns`: the median per invocation; what is not above 0 is left out.
    """

    op: Integers
    host: Integers
    cpu_model: Integers
    night: Integers
    run: Integers
    cost_ns: Floats

    @classmethod
    def of(cls, **columns: Any) -> Observations:  # noqa: ANN401 - whatever numpy makes an array of
        """From whatever numpy makes arrays of.

        Raises:
            ValueError: they are not equally long.
        """
        kinds = {name: np.float64 if name == "cost_ns" else np.int64 for name in cls.__slots__}
        made: dict[str, Any] = {name: np.asarray(columns[name], dtype=kind) for name, kind in kinds.items()}
        if len({array.shape for array in made.values()}) != 1 or made["op"].ndim != 1:
            raise ValueError(f"columns of other lengths: { {name: array.shape for name, array in made.items()} }")
        return cls(**made)

    def beside(self, others: Observations) -> Observations:
        """Both together."""
        names = self.__slots__
        return Observations.of(**{name: np.concatenate([getattr(self, name), getattr(others, name)]) for name in names})

    def where(self, chosen: npt.NDArray[np.bool_]) -> Observations:
        """Those of them for which this is true."""
        return Observations(**{name: getattr(self, name)[chosen] for name in self.__slots__})


@dataclass(frozen=True, slots=True)
class Table:
    """Observations as a table of ops by runs: logarithms of nanoseconds, and of what runs are; NaN: not measured.

    A host is a host with its CPU model: one whose processor was replaced is another. `common`: by how much the ops of a
    run were slower together than they mostly are on this host; NaN where too few ops tell.
    """

    ops: Integers
    logs: Floats
    run: Integers
    host: Integers
    night: Integers
    hosts: Integers
    models: Integers
    common: Floats

    @property
    def own(self) -> Floats:
        """The logarithms without what the ops of a run have in common."""
        return self.logs - np.nan_to_num(self.common)


@dataclass(frozen=True, slots=True)
class Panel:
    """The series of one CPU model: `cells` has a row for each of `ops`, then hosts, then nights; NaN: not measured.

    The last row (op `EVERY`) is what the ops of the runs have in common.
    """

    cpu_model: int
    ops: Integers
    hosts: Integers
    nights: Integers
    cells: Floats


def median_of(values: Floats, axis: int = -1) -> Floats:
    """The median of what is no NaN; NaN where there is nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of slices that have nothing, which is an answer here
        ordered = np.sort(np.moveaxis(values, axis, -1), axis=-1)
        count = np.sum(~np.isnan(ordered), axis=-1, keepdims=True)
        low, high = np.maximum(count - 1, 0) // 2, count // 2 if values.size else count
        high = np.minimum(high, max(ordered.shape[-1] - 1, 0))
        middle = (np.take_along_axis(ordered, low, -1) + np.take_along_axis(ordered, high, -1)) / 2
        return np.where(count > 0, middle, np.nan)[..., 0]


def scale_of(rests: Floats) -> Floats:
    """The standard deviation of each row: what the middle and the upper tenth tell, whichever is more.

    Costs in few whole ticks are the same for the most part: their middle alone would tell of no noise at all.
    """
    sizes = np.abs(rests)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        upper = np.nanquantile(sizes, _UPPER, axis=-1) * _UPPER_TO_SIGMA
    return np.fmax(np.fmax(MAD_TO_SIGMA * median_of(sizes), upper), LEAST_SCALE)


def tabled(given: Observations, apart: Collection[int] = ()) -> Table:
    """Observations as a table, with what the ops of each run have in common; those that stand apart are not asked."""
    kept = given.where((given.cost_ns > 0) & np.isfinite(given.cost_ns))
    ops, op = np.unique(kept.op, return_inverse=True)
    runs, first, run = np.unique(kept.run, return_index=True, return_inverse=True)
    logs = np.full((len(ops), len(first)), np.nan)
    logs[op, run] = np.log(kept.cost_ns)
    pairs = np.stack([kept.host[first], kept.cpu_model[first]], axis=1)
    units, unit = np.unique(pairs.reshape(-1, 2), axis=0, return_inverse=True)
    unit = unit.reshape(-1)
    common = _common(logs[~np.isin(ops, list(apart))], unit, len(units))
    return Table(ops, logs, runs, unit, kept.night[first], units[:, 0], units[:, 1], common)


def _common(logs: Floats, host: Integers, hosts: int) -> Floats:
    """What the ops of each run have in common."""
    common = np.zeros(logs.shape[1])
    if not logs.size:
        return common
    for turn in range(_ROUNDS):
        rests = np.empty_like(logs)
        for number in range(hosts):
            own = logs[:, host == number] - common[host == number]
            rests[:, host == number] = own - median_of(own)[:, None]
        common = common + np.nan_to_num(median_of(rests, 0) if turn == 0 else _clipped_mean(rests))
        for number in range(hosts):
            common[host == number] -= np.median(common[host == number])
    return np.where(np.sum(~np.isnan(logs), axis=0) >= LEAST_OPS, common, np.nan)


def _clipped_mean(rests: Floats) -> Floats:
    """Of each run, over its ops: the quieter an op, the more it says, but none more than an ordinary one."""
    scale = scale_of(rests)
    scale = np.maximum(scale, np.median(scale))[:, None]
    weights = np.where(np.isnan(rests), 0.0, scale**-2)
    clipped = np.clip(np.nan_to_num(rests), -_CLIP * scale, _CLIP * scale)
    return np.asarray(np.sum(weights * clipped, axis=0) / np.maximum(np.sum(weights, axis=0), 1e-300))


def panels(table: Table) -> Iterator[Panel]:
    """The series of each CPU model; several runs of a host in one night are one cell."""
    rows = np.concatenate([table.own, table.common[None, :]])
    ops = np.append(table.ops, EVERY)
    for model in np.unique(table.models):
        of_model = np.flatnonzero(table.models[table.host] == model)
        hosts, host = np.unique(table.host[of_model], return_inverse=True)
        nights, night = np.unique(table.night[of_model], return_inverse=True)
        values = rows[:, of_model]
        there = ~np.isnan(values)
        sums, counts = np.zeros((2, len(ops), len(hosts) * len(nights)))
        place = host * len(nights) + night
        for row in range(len(ops)):
            sums[row] = np.bincount(place, np.nan_to_num(values[row]), len(sums[row]))
            counts[row] = np.bincount(place, there[row], len(sums[row]))
        cells = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan).reshape(len(ops), len(hosts), len(nights))
        yield Panel(int(model), ops, table.hosts[hosts], nights, cells)
