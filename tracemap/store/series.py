"""Series of costs over time, grouped by columns of run headers."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracemap.core.units import UNKNOWN, Text, natural_sort_key
from tracemap.store.layout import unknown_if_null
from tracemap.store.lineage import Names
from tracemap.store.model import QueryScope, SkippedFile, StoreRun, StoreRuns
from tracemap.store.p_values import MAD_TO_SIGMA
from tracemap.store.query_engines import Engine
from tracemap.store.run_headers import INPUTS, Header, Headers, cell_of

# ---- grouping
#
# Group the selected runs, and register the groups with the engine.


_AHEAD_NS: Final = 60_000_000_000
"""Tolerance for the difference between two machines' clocks."""


def query_scope(headers: Headers) -> QueryScope:
    """Summary of the runs and files that a query read."""
    ahead = sum(
        row["recorded_ns"] is not None and row["recorded_ns"] > row["added_ns"] + _AHEAD_NS for row in headers.rows
    )
    skipped = tuple(SkippedFile(file.path, file.why) for file in headers.listing.bad)
    return QueryScope(len(headers.rows), skipped, headers.listing.unfinished, ahead)


def grouped(rows: Sequence[Header], columns: Sequence[str]) -> list[list[Header]]:
    """Group runs of one model with equal values in columns. Groups are in order of these values, unknown last."""
    groups: dict[tuple[object, ...], list[Header]] = defaultdict(list)
    for row in rows:
        groups[(row["model"], *(cell_of(row, column) for column in columns))].append(row)
    return [groups[key] for key in sorted(groups, key=lambda key: [*map(_in_order, key)])]


def _in_order(cell: object) -> tuple[bool, str, object]:
    """Sort key of cells: unknown comes last, and numbers within texts sort by value."""
    if cell is None:
        return True, "", 0
    return False, str(type(cell)), natural_sort_key(cell) if isinstance(cell, str) else cell


def grouped_by_call(rows: Sequence[Header]) -> list[list[Header]]:
    """Group runs of one model whose calls have comparable costs: same function, same sizes of inputs.

    Runs with unknown sizes join the others if all known sizes are equal.
    """
    groups = []
    for group in grouped(rows, ("function",)):
        differ = len({row[INPUTS] for row in group} - {None}) > 1
        groups += grouped(group, (INPUTS,)) if differ else [group]
    return groups


def group_of(runs: Sequence[Header], columns: Sequence[str]) -> dict[str, Text]:
    """The values that the runs of a group share."""
    cells = {column: cell_of(runs[0], column) for column in columns}
    return {column: UNKNOWN if cell is None else str(cell) for column, cell in cells.items()}


def register(engine: Engine, headers: Headers, names: Names, groups: Sequence[Sequence[Header]]) -> None:
    """Create the small tables of an engine: the group of each run, and the key of each op of a map."""
    maps = {pair: number for number, pair in enumerate(headers.maps_of_models)}
    rows = [
        (row["number"], number, maps[row["model"], row["map"]]) for number, group in enumerate(groups) for row in group
    ]
    engine.fill("chosen", {"number": "BIGINT", "grouping": "INTEGER", "map": "INTEGER"}, rows)
    keyed = [(maps[model, sha], op, key) for (model, sha, op), key in names.keys.items() if (model, sha) in maps]
    engine.fill("keyed", {"map": "INTEGER", "op": "VARCHAR", "op_key": "INTEGER"}, keyed)


# ---- listing
#
# List the runs of a store.


def list_runs(headers: Headers) -> StoreRuns:
    """The runs of a store, from their headers."""
    return StoreRuns(runs=tuple(map(_run, headers.rows)), looked=query_scope(headers))


def _run(row: Header) -> StoreRun:
    cells: dict[str, Any] = {name: unknown_if_null(row[name]) for name in StoreRun.__struct_fields__}
    cells |= {"outliers_ns": int(row["outliers_ns"] or 0), "tags": row["tags"] or {}}
    return StoreRun(**cells)


# ---- series
#
# Costs of ops per night as arrays, with host levels and effects common to a run removed.
#
# Model: log cost = level of the op on the host + effect common to all ops of the run + residual. The common effect
# comes from a busy, hot or differently clocked machine. Residuals are searched for level shifts. The common effect is
# first the median over ops, then refined by a mean of clipped residuals.


Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

EVERY: Final = -1
"""Stands for all ops, all CPU models or all hosts in place of a number."""
LEAST_OPS: Final = 5
"""With fewer ops the common effect is unknown, since it could be the change of a single op."""
LEAST_SCALE: Final = 5e-4
"""Smallest relative noise, since clocks have finite ticks."""
_UPPER: Final = 0.9
_UPPER_TO_SIGMA: Final = 1 / 1.6449
_CLIP: Final = 1.5
"""Limit, in standard deviations, on a single op's influence on the common effect."""
_ROUNDS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """Costs of ops in runs: arrays of equal length, with an element for each op of each run.

    `op`, `host`, `cpu_model`: arbitrary keys from 0. `night`: a number that grows with time, such as the ordinal of the
    date or of the compiler's version; gaps are allowed. `run`: a run has one host and one night. `cost_ns`: the median
    per invocation; values of 0 or less are ignored.
    """

    op: Integers
    host: Integers
    cpu_model: Integers
    night: Integers
    run: Integers
    cost_ns: Floats

    @classmethod
    def of(cls, **columns: Any) -> Observations:  # noqa: ANN401 - anything that numpy converts to an array
        """Convert columns to arrays.

        Raises:
            ValueError: the columns differ in length.
        """
        dtypes = {name: np.float64 if name == "cost_ns" else np.int64 for name in cls.__slots__}
        arrays: dict[str, Any] = {name: np.asarray(columns[name], dtype=dtype) for name, dtype in dtypes.items()}
        if len({array.shape for array in arrays.values()}) != 1 or arrays["op"].ndim != 1:
            raise ValueError(f"columns differ in length: { {name: array.shape for name, array in arrays.items()} }")
        return cls(**arrays)

    def concat(self, others: Observations) -> Observations:
        """Concatenate two sets of observations."""
        names = self.__slots__
        return Observations.of(**{name: np.concatenate([getattr(self, name), getattr(others, name)]) for name in names})

    def where(self, chosen: npt.NDArray[np.bool_]) -> Observations:
        """Select observations by a mask."""
        return Observations(**{name: getattr(self, name)[chosen] for name in self.__slots__})


@dataclass(frozen=True, slots=True)
class Table:
    """Table of ops by runs: logarithms of nanoseconds, with the host and night of each run. NaN: not measured.

    A host with another CPU model counts as another host. `common`: the effect common to all ops of a run, relative to
    the host's median; NaN if there are too few ops.
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
        """The logarithms without the common effect of their run."""
        return self.logs - np.nan_to_num(self.common)


@dataclass(frozen=True, slots=True)
class Panel:
    """The series of one CPU model: `cells` has axes `ops`, hosts, nights. NaN: not measured.

    The last row (op `EVERY`) is the effect common to all ops.
    """

    cpu_model: int
    ops: Integers
    hosts: Integers
    nights: Integers
    cells: Floats


def median_of(values: Floats, axis: int = -1) -> Floats:
    """Median without NaN; NaN for empty slices."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # empty slices are valid here
        ordered = np.sort(np.moveaxis(values, axis, -1), axis=-1)
        count = np.sum(~np.isnan(ordered), axis=-1, keepdims=True)
        low, high = np.maximum(count - 1, 0) // 2, count // 2 if values.size else count
        high = np.minimum(high, max(ordered.shape[-1] - 1, 0))
        middle = (np.take_along_axis(ordered, low, -1) + np.take_along_axis(ordered, high, -1)) / 2
        return np.where(count > 0, middle, np.nan)[..., 0]


def scale_of(residuals: Floats) -> Floats:
    """Standard deviation of each row: the larger of the estimates from the median and from the 90 % quantile.

    Costs of a few clock ticks are mostly equal, so the median alone would show no noise.
    """
    magnitudes = np.abs(residuals)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        upper = np.nanquantile(magnitudes, _UPPER, axis=-1) * _UPPER_TO_SIGMA
    return np.fmax(np.fmax(MAD_TO_SIGMA * median_of(magnitudes), upper), LEAST_SCALE)


def cost_table(observations: Observations, excluded: Collection[int] = ()) -> Table:
    """Build a table, with the common effect of each run. The ops in `excluded` do not count for that effect."""
    valid = observations.where((observations.cost_ns > 0) & np.isfinite(observations.cost_ns))
    ops, op = np.unique(valid.op, return_inverse=True)
    runs, first, run = np.unique(valid.run, return_index=True, return_inverse=True)
    logs = np.full((len(ops), len(first)), np.nan)
    logs[op, run] = np.log(valid.cost_ns)
    pairs = np.stack([valid.host[first], valid.cpu_model[first]], axis=1)
    units, unit = np.unique(pairs.reshape(-1, 2), axis=0, return_inverse=True)
    unit = unit.reshape(-1)
    common = _common(logs[~np.isin(ops, list(excluded))], unit, len(units))
    return Table(ops, logs, runs, unit, valid.night[first], units[:, 0], units[:, 1], common)


def _common(logs: Floats, host: Integers, hosts: int) -> Floats:
    """The common effect of each run."""
    common = np.zeros(logs.shape[1])
    if not logs.size:
        return common
    for iteration in range(_ROUNDS):
        residuals = np.empty_like(logs)
        for index in range(hosts):
            own = logs[:, host == index] - common[host == index]
            residuals[:, host == index] = own - median_of(own)[:, None]
        common = common + np.nan_to_num(median_of(residuals, 0) if iteration == 0 else _clipped_mean(residuals))
        for index in range(hosts):
            common[host == index] -= np.median(common[host == index])
    return np.where(np.sum(~np.isnan(logs), axis=0) >= LEAST_OPS, common, np.nan)


def _clipped_mean(residuals: Floats) -> Floats:
    """Weighted mean over the ops of each run. Quiet ops weigh more, but none more than the median op."""
    scale = scale_of(residuals)
    scale = np.maximum(scale, np.median(scale))[:, None]
    weights = np.where(np.isnan(residuals), 0.0, scale**-2)
    clipped = np.clip(np.nan_to_num(residuals), -_CLIP * scale, _CLIP * scale)
    return np.asarray(np.sum(weights * clipped, axis=0) / np.maximum(np.sum(weights, axis=0), 1e-300))


def panels(table: Table) -> Iterator[Panel]:
    """The series of each CPU model. Several runs of a host in one night are averaged."""
    rows = np.concatenate([table.own, table.common[None, :]])
    ops = np.append(table.ops, EVERY)
    for model in np.unique(table.models):
        runs = np.flatnonzero(table.models[table.host] == model)
        hosts, host = np.unique(table.host[runs], return_inverse=True)
        nights, night = np.unique(table.night[runs], return_inverse=True)
        values = rows[:, runs]
        measured = ~np.isnan(values)
        sums, counts = np.zeros((2, len(ops), len(hosts) * len(nights)))
        cell = host * len(nights) + night
        for row in range(len(ops)):
            sums[row] = np.bincount(cell, np.nan_to_num(values[row]), len(sums[row]))
            counts[row] = np.bincount(cell, measured[row], len(sums[row]))
        cells = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan).reshape(len(ops), len(hosts), len(nights))
        yield Panel(int(model), ops, table.hosts[hosts], nights, cells)
