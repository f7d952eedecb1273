"""Drift correction: a slower machine is corrected by unchanged code of the same invocations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from random import Random

import numpy as np
import pytest

from tests.builders import attribution, graph, op, site
from tests.conftest import Built, Recorded
from tracemap.attribution.model import Attribution, Series
from tracemap.commands.runs import Details, join_runs
from tracemap.compare.compare import MOST_UNCHANGED, Unchanged, correct_drift, corrected_spreads
from tracemap.core.toolchain import no_progress
from tracemap.core.units import UNKNOWN
from tracemap.map.bundle import load
from tracemap.map.model import OpId
from tracemap.options.results import AttributeOptions

CHANGED = OpId.of(9)


def run_of(costs: Mapping[OpId, list[float]]) -> Attribution:
    """A run of which nothing but the costs of single invocations is looked at."""
    empty = attribution(graph((op(0, 1),), (site(0, 0),)), {"cpu_ns": {"site0": 0}})
    values = {op.number: np.array(each) for op, each in costs.items()}
    weights = {op: {op.number: Fraction(1)} for op in costs}
    return replace(empty, series=Series({"cpu_ns": values}, {"cpu_ns": weights}))


def recorded_with(random: Random, factor: float, unchanged: Unchanged) -> Attribution:
    """Forty invocations of a machine that is up to twice as slow in one as in another; noise of 1 %."""
    slow = [random.uniform(1, 2) for _ in range(40)]

    def noisy(cost: float) -> list[float]:
        return [cost * each * random.lognormvariate(0, 0.01) for each in slow]

    return run_of({**{op: noisy(cost) for op, cost in unchanged}, CHANGED: noisy(1000 * factor)})


@pytest.mark.long
def test_a_machine_that_is_slower_now_and_then_does_not_hide_a_change() -> None:
    random, unchanged = Random(5), [(OpId.of(number), 100.0 * number) for number in (1, 2, 3, 4)]
    held = []
    for _ in range(100):
        run = correct_drift(recorded_with(random, 1.05, unchanged), "cpu_ns", unchanged)
        assert run is not None
        spread = run.spread_of(CHANGED)
        assert spread is not None
        assert spread.high / spread.low < 1.03
        held.append(spread.low <= 1050 <= spread.high)
    assert sum(held) >= 90


def test_a_few_unchanged_ops_are_judged_by_the_others() -> None:
    """One of them that costs twice as much as before says so itself."""
    unchanged = [(OpId.of(number), 100.0) for number in (1, 2, 3, 4)]
    run = correct_drift(
        run_of({op: [cost * (1 + (op.number == 1))] * 8 for op, cost in unchanged}), "cpu_ns", unchanged
    )
    assert run is not None
    medians = [spread.median for op, _ in unchanged if (spread := run.spread_of(op)) is not None]
    assert medians == [200.0, 100.0, 100.0, 100.0]


def test_the_dearest_tell() -> None:
    """Of many ops the cheap ones are not looked at; those are not judged beside one another."""
    many = [(OpId.of(number), 1000.0) for number in range(10, 10 + MOST_UNCHANGED)]
    few = [(OpId.of(number), 1.0) for number in range(1, 4)]
    costs = {op: [cost * (1 + (cost == 1))] * 8 for op, cost in [*many, *few]}
    run = correct_drift(run_of(costs), "cpu_ns", [*few, *many])
    assert run is not None
    spread = run.spread_of(few[0][0])
    assert spread is not None
    assert spread.median == 2.0


def test_what_tells_too_little_of_the_machine_is_not_corrected() -> None:
    three = [(OpId.of(number), 100.0) for number in (1, 2, 3)]

    def told(costs: Mapping[OpId, list[float]]) -> bool:
        return correct_drift(run_of(costs), "cpu_ns", three) is not None

    costs = {op: [cost] * 8 for op, cost in three}
    assert told(costs)
    assert not told({op: each[:5] for op, each in costs.items()})
    assert not told({**costs, three[0][0]: [0.0, *[100.0] * 7]})
    runs = [run_of(costs), run_of({op: costs[op] for op, _ in three[:2]})]
    assert corrected_spreads(runs[:1] * 2, "cpu_ns", three, [three[0][0], CHANGED]).keys() == {three[0][0]}
    assert corrected_spreads(runs, "cpu_ns", three, [three[0][0]]) == {}


def test_series_are_what_distributions_are_of(built: Built, recorded: Recorded) -> None:
    bundle = load(built("jax_mlp"))
    made = join_runs([recorded("jax_mlp")], bundle, AttributeOptions(), no_progress, Details(series=True)).attribution
    seen = 0
    for each in made.ops:
        for metric in ("cpu_ns", "duration_ns"):
            values, cost = made.series.of(each.op, metric), each.metrics[metric]
            if values is None or cost.per_invocation.median is UNKNOWN:
                continue
            seen += 1
            median = np.sort(values)[(len(values) + 1) // 2 - 1]
            assert abs(median - cost.per_invocation.median) <= 1
            assert abs(values.sum() - cost.attributed) <= len(values)
    assert seen > 10
    assert join_runs([recorded("jax_mlp")], bundle, AttributeOptions(), no_progress).attribution.series.values == {}
