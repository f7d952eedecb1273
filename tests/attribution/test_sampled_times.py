"""Times that are parts of samples: their ranges hold the truth as often as they say."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import structs

from tracemap.attribution.model import UNKNOWN_PER_INVOCATION, OpCost, OpResult, PerInvocation
from tracemap.attribution.sampled_times import with_sampling_error
from tracemap.core.units import UNKNOWN
from tracemap.map.model import OpId
from tracemap.runs.model import NATIVE_DEVICE, SAMPLES, UNKNOWN_HEADER

pytestmark = pytest.mark.quick
NATIVE = structs.replace(UNKNOWN_HEADER, device=NATIVE_DEVICE)
WHOLE_NS = 1_000_000_000


def cost(attributed: int, per_invocation: PerInvocation = UNKNOWN_PER_INVOCATION) -> OpCost:
    return OpCost(
        attributed, attributed, 0, attributed, UNKNOWN, UNKNOWN, uncertain=False, per_invocation=per_invocation
    )


def ops_of(samples: int, total: int) -> list[OpResult]:
    """An op with so many samples, and one with all others."""
    parts = (samples, total - samples)
    return [
        OpResult(
            OpId.of(number), "op", UNKNOWN, UNKNOWN, 1, {"cpu_ns": cost(WHOLE_NS * own // total), SAMPLES: cost(own)}
        )
        for number, own in enumerate(parts)
    ]


@pytest.mark.parametrize("part", [0.5, 0.1, 0.02])
def test_ranges_hold_the_truth(part: float) -> None:
    generator, total, tries, held = np.random.default_rng(7), 2000, 400, 0
    for _ in range(tries):
        op, _ = with_sampling_error(ops_of(int(generator.binomial(total, part)), total), NATIVE, total)
        own = op.metrics["cpu_ns"]
        assert isinstance(own.likely_low, int)
        assert isinstance(own.likely_high, int)
        held += own.likely_low <= part * WHOLE_NS <= own.likely_high
    assert 0.92 * tries <= held <= 0.98 * tries


def test_an_op_without_a_sample_may_have_a_few() -> None:
    op, other = with_sampling_error(ops_of(0, 1000), NATIVE, 1000)
    assert (op.metrics["cpu_ns"].likely_low, op.metrics["cpu_ns"].likely_high) == (0, 3 * WHOLE_NS // 1000)
    assert op.metrics["cpu_ns"].uncertain
    assert (other.metrics["cpu_ns"].likely_low, other.metrics["cpu_ns"].likely_high) == (WHOLE_NS, WHOLE_NS)
    assert not other.metrics["cpu_ns"].uncertain


def test_medians_are_as_uncertain() -> None:
    own = PerInvocation(1000, 990, 1010, 900, 1100, 2000)
    (op,) = ops_of(100, 1000)[:1]
    op = structs.replace(op, metrics={**op.metrics, "cpu_ns": cost(WHOLE_NS // 10, own)})
    (widened,) = with_sampling_error([op], NATIVE, 1000)
    median = widened.metrics["cpu_ns"].per_invocation
    assert median.median == 1000
    assert isinstance(median.median_low, int)
    assert 800 < median.median_low < 820  # 1.96 standard errors of 9.5 %


def test_measured_times_stay_as_they_are() -> None:
    ops = ops_of(10, 100)
    assert with_sampling_error(ops, UNKNOWN_HEADER, 100) == tuple(ops)
