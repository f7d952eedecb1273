"""Trends of a store, unusual hosts, two sets of runs: small stores with known truth.

How often findings are right among realistic noise is a matter of `tests.oracle.nights`.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from tests.oracle import sides
from tests.oracle.nights import Case, Tally, table, tallied
from tests.oracle.synthetic_stores import Maker
from tracemap.core.units import UNKNOWN
from tracemap.store.changepoints import Design
from tracemap.store.findings import compare_sets, outliers, shrink_variances
from tracemap.store.p_values import (
    digamma,
    holm,
    inverse_trigamma,
    normal_of_student,
    student_of_normal,
    student_quantile,
    tail,
    trigamma,
)
from tracemap.store.queries import changes
from tracemap.store.series import EVERY, Floats, Observations, cost_table, median_of

pytestmark = pytest.mark.quick

OPS, HOSTS, NIGHTS = 8, 6, 40
MODELS = np.array([0, 0, 0, 1, 1, 1])


@dataclass
class Small:
    """A quiet store: the logarithms of costs (op, host, night), which tests change, and which were measured."""

    seed: int = 7
    noise: float = 0.01
    models: np.ndarray[tuple[int], np.dtype[np.int64]] = field(default_factory=lambda: MODELS)
    nights: int = NIGHTS

    def __post_init__(self) -> None:
        random = np.random.default_rng(self.seed)
        shape = (OPS, len(self.models), self.nights)
        levels = random.normal(10, 1, (OPS, 1, 1)) + random.normal(0, 0.05, (OPS, len(self.models), 1))
        self.logs = levels + random.normal(0, self.noise, shape) + random.normal(0, 0.03, shape[1:])
        self.there = np.ones(shape, dtype=bool)

    def observed(self) -> Observations:
        op, host, night = np.nonzero(self.there)
        return Observations.of(
            op=op * 3,
            host=host + 100,
            cpu_model=self.models[host],
            night=night + 5000,
            run=host * self.nights + night,
            cost_ns=np.exp(self.logs[op, host, night]),
        )


# ---- tails and corrections


def test_tails_are_those_of_tables() -> None:
    """Student's distribution: table values of two-sided 5 % and 0.1 %."""
    assert tail(1.959964) == pytest.approx(0.05, rel=1e-5)
    for t, degrees, chance in ((2.228, 10, 0.05), (4.587, 10, 0.001), (2.042, 30, 0.05), (3.646, 30, 0.001)):
        assert tail(normal_of_student(t, degrees)) == pytest.approx(chance, rel=0.03)
        assert student_of_normal(normal_of_student(-t, degrees), degrees) == pytest.approx(-t)
    assert student_quantile(0.95, 10) == pytest.approx(2.228, abs=0.01)
    assert student_quantile(0.95, math.inf) == pytest.approx(1.96, abs=0.001)
    assert student_of_normal(40.0, 1.0) == pytest.approx(1e300)


def test_holm_corrects_as_in_the_books() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_derivatives_of_log_gamma() -> None:
    assert digamma(1) == pytest.approx(-0.5772156649, abs=1e-9)
    assert trigamma(1) == pytest.approx(math.pi**2 / 6, abs=1e-9)
    for value in (0.01, 0.5, 3.0, 200.0):
        assert trigamma(inverse_trigamma(value)) == pytest.approx(value, rel=1e-6)


def test_variances_go_where_the_others_are() -> None:
    """Drawn with a known prior: 8 degrees of freedom around 4."""
    random = np.random.default_rng(3)
    true = 4.0 * 8 / random.chisquare(8, 3000)
    seen = true * random.chisquare(3, 3000) / 3
    variances, degrees = shrink_variances(seen, np.full(3000, 3.0))
    assert degrees[0] - 3 == pytest.approx(8, rel=0.25)
    assert np.mean((np.log(variances) - np.log(true)) ** 2) < 0.4 * np.mean((np.log(seen) - np.log(true)) ** 2)
    _, of_alike = shrink_variances(random.chisquare(200, 50) / 200, np.full(50, 2.0))
    assert np.all(np.isinf(of_alike))
    alone, degree = shrink_variances(np.array([2.0]), np.array([1.0]))
    assert (alone[0], degree[0]) == (2.0, 1.0)


def test_medians_leave_out_what_was_not_measured() -> None:
    nan = math.nan
    values = np.array([[1.0, nan, 5.0], [nan, nan, nan], [3.0, 1.0, 2.0]])
    np.testing.assert_array_equal(median_of(values), [3.0, nan, 2.0])
    np.testing.assert_array_equal(median_of(values, 0), [2.0, 1.0, 3.5])


# ---- what is found in stores


def test_a_change_is_named_with_its_night_and_cpu_model() -> None:
    small = Small()
    small.logs[3, 3:, 17:] += math.log(1.05)
    made = changes(small.observed())
    (found,) = made.changes
    assert (found.kind, found.op, found.cpu_model, found.host, found.night) == ("slower", 9, 1, EVERY, 5017)
    assert found.night_low <= 5017 <= found.night_high
    assert found.ratio_low < 1.05 < found.ratio_high
    assert found.ratio == pytest.approx(1.05, abs=0.01)
    assert found.before_ns is not UNKNOWN
    before = statistics.median(math.exp(small.logs[3, host, :17].mean()) for host in (3, 4, 5))
    assert found.before_ns == pytest.approx(before, rel=0.02)
    assert found.after_ns == pytest.approx(found.before_ns * found.ratio)
    assert (found.hosts, found.hosts_agree, found.nights_before, found.nights_after) == (3, 3, 17, 23)
    assert found.chance < 1e-6
    assert (made.series, made.ops, made.cpu_models, made.hosts, made.nights) == ((OPS + 1) * 2, OPS, 2, HOSTS, NIGHTS)


@pytest.mark.long
def test_the_same_inputs_give_the_same_findings_in_any_order() -> None:
    small = Small()
    small.logs[3, 3:, 17:] -= 0.05
    given = small.observed()
    order = np.random.default_rng(1).permutation(len(given.op))
    names = Observations.__slots__
    mixed = Observations.of(**{name: getattr(given, name)[order] for name in names})
    made = changes(given)
    assert changes(mixed) == made
    assert made.changes[0].kind == "faster"


def test_two_changes_in_one_series() -> None:
    small = Small()
    small.logs[2, :3, 12:] += 0.05
    small.logs[2, :3, 27:] -= 0.08
    found = sorted(changes(small.observed()).changes, key=lambda each: each.night)
    assert [(each.kind, each.night, each.cpu_model) for each in found] == [("slower", 5012, 0), ("faster", 5027, 0)]
    assert found[0].nights_after == found[1].nights_before == 15
    assert found[1].ratio == pytest.approx(math.exp(-0.08), abs=0.015)


@pytest.mark.long
def test_what_all_cpu_models_share_is_named_once() -> None:
    small = Small()
    small.logs[5, :, 20:] += 0.06
    (found,) = changes(small.observed()).changes
    assert (found.op, found.cpu_model, found.night, found.hosts) == (15, EVERY, 5020, HOSTS)
    assert found.ratio_low < math.exp(0.06) < found.ratio_high
    small.logs[5, 3:, 20:] += 0.2  # by much more on the one: not the same change
    found_two = changes(small.observed()).changes
    assert {(each.op, each.cpu_model, each.night) for each in found_two} == {(15, 0, 5020), (15, 1, 5020)}


def test_slower_machines_are_no_change_of_an_op() -> None:
    small = Small()
    small.logs[:, :3, 22:] += 0.2
    (found,) = changes(small.observed()).changes
    assert (found.op, found.cpu_model, found.night) == (EVERY, 0, 5022)
    assert found.before_ns is UNKNOWN
    assert found.after_ns is UNKNOWN


@pytest.mark.long
def test_a_change_of_one_host_is_not_one_of_its_cpu_model() -> None:
    """Of two hosts one changed: their mean did, too, by half as much."""
    small = Small(models=np.array([0, 0, 1, 1, 1]), nights=120)
    small.logs[4, 1, 55:] += 0.1
    (found,) = changes(small.observed()).changes
    assert (found.op, found.cpu_model, found.host, found.night) == (12, 0, 101, 5055)
    assert (found.hosts, found.hosts_agree) == (2, 1)
    assert found.ratio_low < math.exp(0.1) < found.ratio_high


@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_nothing_is_found_where_nothing_changed(noise: float) -> None:
    small = Small(noise=noise)
    assert not changes(small.observed()).changes
    same = replace(small.observed(), cost_ns=np.full(OPS * HOSTS * NIGHTS, 12.0))
    assert not changes(same).changes
    assert not outliers(same)


@pytest.mark.long
def test_a_series_that_wanders_did_not_change() -> None:
    """A random walk, as far as three per cent off: tests that take nights as independent name many steps in it."""
    for seed in range(4):
        small = Small(seed=seed, nights=80)
        walk = np.cumsum(np.random.default_rng(seed).normal(0, 0.004, (OPS, 2, 80)), axis=2)
        small.logs += walk[:, MODELS]
        assert not changes(small.observed()).changes


@pytest.mark.long
def test_hosts_come_and_go_and_nights_are_missing() -> None:
    """A host replaced midway by one that is 15 % slower is no change; the true one behind it is found at its night."""
    small = Small()
    small.there &= np.random.default_rng(4).random((HOSTS, NIGHTS)) > 0.1
    small.there[:, 3, 14:] = False
    small.there[:, 4, :12] = False
    small.logs[:, 4] += 0.15
    small.there[:, 5, 28] = True
    small.logs[1, 3:, 28:] += 0.06
    (found,) = changes(small.observed()).changes
    assert (found.op, found.cpu_model, found.night) == (3, 1, 5028)


def test_ops_appear_and_vanish() -> None:
    """Another compilation: an op ends, others begin, one with too few nights, one in a single run."""
    small = Small()
    small.there[0, :, 20:] = False
    small.there[1, :, :20] = False
    small.there[2, :, 3:] = False
    small.there[3] = False
    small.there[3, 2, 7] = True
    small.logs[1, :3, 30:] += 0.08
    (found,) = changes(small.observed()).changes
    assert (found.op, found.cpu_model, found.night, found.nights_before) == (3, 0, 5030, 10)


def test_of_few_ops_nothing_common_is_told() -> None:
    small = Small()
    small.there[2:] = False
    small.logs[0, :3, 15:] += 0.2
    (found,) = changes(small.observed()).changes
    assert (found.op, found.cpu_model) == (0, 0)
    assert np.all(np.isnan(cost_table(small.observed()).common))


def test_nothing_and_nonsense() -> None:
    empty = Observations.of(op=[], host=[], cpu_model=[], night=[], run=[], cost_ns=[])
    assert changes(empty).changes == ()
    assert outliers(empty) == []
    assert compare_sets(empty, empty).changes == ()
    odd = Observations.of(
        op=[0, 1, 2], host=[0, 0, 0], cpu_model=[0, 0, 0], night=[1, 1, 1], run=[0, 0, 0], cost_ns=[0, -4, math.nan]
    )
    assert changes(odd).series == 0
    with pytest.raises(ValueError, match="columns differ in length"):
        Observations.of(op=[0], host=[], cpu_model=[], night=[], run=[], cost_ns=[])


def test_steps_are_least_squares_where_nothing_wanders() -> None:
    """Without walk and shocks a step with its information is that of a regression on hosts and the step."""
    random = np.random.default_rng(2)
    weights = np.where(random.random((3, 12)) < 0.8, 1.0, 0.0)
    costs = random.normal(size=(3, 12))
    setting = next(Design(weights, np.arange(12)).settings(costs[None]))
    assert (setting.walk, setting.basis.shock) == (0, 0)
    host, night = np.nonzero(weights)
    for place in (3, 7):
        columns = np.stack([host == 0, host == 1, host == 2, night >= place], axis=1).astype(float)
        wanted, squares, *_ = np.linalg.lstsq(columns, costs[host, night], rcond=None)
        told = setting.gains[0, place - 1] / setting.information[place - 1]
        left = setting.squares[0] - setting.gains[0, place - 1] ** 2 / setting.information[place - 1]
        assert told == pytest.approx(wanted[3])
        assert left == pytest.approx(squares[0], rel=1e-3)


def test_walks_are_generalized_least_squares() -> None:
    """The same with a walk and shocks: against the covariance of all cells, written out."""
    random = np.random.default_rng(5)
    nights = np.array([0, 1, 2, 5, 6, 7, 9, 10])
    weights = np.where(random.random((2, 8)) < 0.9, random.uniform(0.5, 2, (2, 1)), 0.0)
    costs = random.normal(size=(2, 8))
    host, night = np.nonzero(weights)
    columns: Floats = np.stack([host == 0, host == 1, night >= 4], axis=1).astype(float)
    settings = Design(weights, nights).settings(costs[None])
    setting = next(each for each in settings if (each.walk, each.basis.shock) == (0.3, 1.0))
    shared = 0.3 * np.minimum.outer(nights[night], nights[night]) + 1.0 * (night[:, None] == night)
    inverse = np.linalg.inv(np.diag(1 / weights[host, night]) + shared)
    information = np.linalg.inv(columns.T @ inverse @ columns)
    wanted = information @ columns.T @ inverse @ costs[host, night]
    assert setting.gains[0, 3] / setting.information[3] == pytest.approx(wanted[2])
    assert 1 / setting.information[3] == pytest.approx(information[2, 2])


# ---- hosts, and two sets of runs


def test_hosts_unlike_others() -> None:
    small = Small(models=np.repeat([0, 1, 2], 7))
    small.logs[:, 9] += 0.6
    small.logs[4, 16] += 0.9
    found = outliers(small.observed())
    assert [(each.host, each.cpu_model, each.op) for each in found] in (
        [(109, 1, EVERY), (116, 2, 12)],
        [(116, 2, 12), (109, 1, EVERY)],
    )
    by_op = {each.op: each for each in found}
    assert by_op[EVERY].ratio == pytest.approx(math.exp(0.6), rel=0.1)
    assert by_op[12].ratio == pytest.approx(math.exp(0.9), rel=0.15)
    assert all(each.chance < 0.05 and each.z > 3.5 and each.hosts == 7 for each in found)
    assert not outliers(Small(models=np.repeat([0, 1, 2], 7)).observed())


def test_of_two_hosts_none_is_the_odd_one() -> None:
    small = Small(models=np.repeat([0, 1, 2], 2))
    small.logs[:, 0] += 2
    assert outliers(small.observed()) == []


def _parts(small: Small, before: tuple[int, int], after: tuple[int, int]) -> tuple[Observations, Observations]:
    given = small.observed()
    night = given.night - 5000
    one, two = (given.where((night >= low) & (night < high)) for low, high in (before, after))
    return one, two


def test_two_nights_are_compared_by_host() -> None:
    small = Small(models=np.repeat([0, 1], 8))
    small.logs[3, 8:, 20:] += 0.1
    made = compare_sets(*_parts(small, (19, 20), (20, 21)))
    assert [(each.kind, each.op, each.cpu_model) for each in made.changes] == [("slower", 9, 1)]
    found = made.changes[0]
    assert found.ratio_low < math.exp(0.1) < found.ratio_high
    assert (found.hosts, found.runs) == (8, 16)
    assert made.compared == (OPS + 1) * 2
    assert made.unpaired == 0
    assert compare_sets(*_parts(small, (18, 19), (19, 20))).changes == ()


def test_many_runs_tell_small_changes_and_machines_apart() -> None:
    small = Small()
    small.logs[3, 3:, 20:] += 0.03
    small.logs[:, :3, 20:] += 0.3
    made = compare_sets(*_parts(small, (0, 20), (20, 40)))
    assert {(each.op, each.cpu_model) for each in made.changes} == {(9, 1), (EVERY, 0)}


def test_hosts_of_one_night_only_tell_nothing() -> None:
    small = Small()
    small.there[:, :3, 20:] = False
    small.there[:, 4:, 20:] = False
    made = compare_sets(*_parts(small, (10, 20), (20, 30)))
    assert made.compared == made.unpaired == OPS + 1
    small.there[:, 3:, 20:] = False
    small.there[:, 0, 20:] = True
    small.there[:, 0, :20] = False
    assert compare_sets(*_parts(small, (10, 20), (20, 30))).compared == 0


# ---- the oracle itself


@pytest.mark.long
def test_the_oracle_judges() -> None:
    tally = tallied(Case("8 %", (1.08,)), [3])
    assert (tally.seeds, tally.right, tally.named, tally.quiet) == (1, 1, 1, 1)
    store = Maker(3).store((1.08,))
    (found,) = changes(store.observations).changes
    for wrong in (
        [],
        [replace(found, night=found.night + 1)],
        [replace(found, cpu_model=EVERY)],
        [found, replace(found, op=found.op + 1)],
        [replace(found, kind="faster")],
    ):
        judged = Tally()
        judged.add(store, wrong)
        assert judged.right == 0
    assert "| 8 % | 1 of 1 | 1 of 1 |" in table([(Case("8 %", (1.08,)), tally)])


def test_made_up_stores_are_the_same_of_the_same_seed() -> None:
    one, two, other = (Maker(seed, nights=30).store((1.04,)) for seed in (5, 5, 6))
    np.testing.assert_array_equal(one.observations.cost_ns, two.observations.cost_ns)
    assert one.planted == two.planted != other.planted
    (planted,) = one.planted
    assert planted.ratio == 1.04
    clean = Maker(5, nights=30).store()
    assert clean.planted == ()


def test_the_oracle_of_sides_judges() -> None:
    """What is missing, what is named in vain, and another host are all not right."""
    for said, named, quiet in (
        ([(3, 1, 0)], 1, 1),
        ([], 0, 1),
        ([(3, 1, 0), (4, 1, 0)], 1, 0),
        ([(3, 2, 0)], 0, 0),
    ):
        judged = sides.Tally()
        judged.add(7, {(3, 1, 0)}, said)
        assert (judged.named, judged.quiet, judged.right) == (named, quiet, named and quiet)
    found = sides.tallied(sides.Sides("20 %", 5, 1.2), [3])
    assert "| 20 % | 1 of 1 | 1 of 1 | 1 of 1 |" in sides.table([(sides.Sides("20 %", 5, 1.2), found)])
    assert sides.tallied(sides.Hosts("a host", 1.6, single=True), [3]).right == 1


def test_many_hosts_are_compared_with_some_others_each() -> None:
    small = Small(models=np.zeros(90, dtype=int))
    small.logs[:, 40] += 0.6
    assert [(each.host, each.op) for each in outliers(small.observed())] == [(140, EVERY)]
