"""Parts of `bench` that need no compiler: comparing results, explaining differences, buffer contents."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest

from tracemap.core.units import UNKNOWN
from tracemap.kernels.bench_cases import used_bytes, whole_memory
from tracemap.kernels.model import ApplicationComparison, Bench, KernelBench, Status, Verification
from tracemap.kernels.reference.elements import View, from_memory, to_memory
from tracemap.kernels.reference.kernel import Precision
from tracemap.kernels.runner_jobs import CANARY, Buffer, Call, Fill
from tracemap.kernels.verification import (
    AloneTimes,
    ApplicationCalls,
    ApplicationRun,
    SiteCalls,
    compare,
    explain_site,
    first_difference,
    tolerance,
    typical_ratio,
)
from tracemap.reports.csv_tables import bench_csv

LENGTH = 4 * 6 + 8
WRITTEN = View.whole(0, 4, (2, 3), "f32")
CALL = Call("call_0", 7, (Buffer(LENGTH, 0, LENGTH, True, ()),))
EXACT = tolerance(Precision(2.0**-23, 0.0))


def memories() -> tuple[list[np.ndarray], list[np.ndarray]]:
    """What a reference and a kernel left that agree."""
    right = np.full(LENGTH, CANARY, np.uint8)
    WRITTEN.of([right])[...] = np.arange(6, dtype=np.float32).reshape(2, 3)
    return [right], [right.copy()]


def test_equal_memories_agree() -> None:
    right, found = memories()
    assert first_difference(CALL, right, found, [WRITTEN], EXACT) == ""


def test_the_first_element_that_differs_is_named_with_both_values() -> None:
    right, found = memories()
    WRITTEN.of(found)[1, 0] = 3.5
    WRITTEN.of(found)[1, 2] = 9
    difference = first_difference(CALL, right, found, [WRITTEN], EXACT)
    assert difference == "[1, 0] of 2x3xf32 in binding 0 is 3.5, not 3; 2 of 6 elements differ"


def test_roundings_agree_and_more_does_not() -> None:
    right, found = memories()
    scale = float(np.sqrt(np.mean(np.square(np.arange(6)))))
    WRITTEN.of(found)[0, 0] = 0.9 * EXACT * scale
    assert first_difference(CALL, right, found, [WRITTEN], EXACT) == ""
    WRITTEN.of(found)[0, 0] = 1.1 * EXACT * scale
    assert first_difference(CALL, right, found, [WRITTEN], EXACT)


def test_what_is_a_little_wrong_everywhere_is_found() -> None:
    """A thirty-second too large is within the roundings of a single bf16, and not within those of many."""
    view = View.whole(0, 0, (16, 16), "bf16")
    call = Call("call_0", 7, (Buffer(512, 0, 512, True, ()),))
    allowed = tolerance(Precision(2.0**-7, 0.0))
    numbers = np.random.default_rng(3).uniform(-1, 1, 256)
    said = {}
    for factor in (1.0, 1.03125):
        right, found = ([to_memory(each, "bf16").view(np.uint8).copy()] for each in (numbers, factor * numbers))
        said[factor] = first_difference(call, right, found, [view], allowed)
    assert said[1.0] == ""
    assert "differs slightly everywhere" in said[1.03125]


@pytest.mark.parametrize(
    ("element", "sums", "extents", "reference", "status"),
    [
        ("f16", 2.0**-10 * 1024, (1,), 1.0, Status.NOT_VERIFIED),  # a million numbers summed up in f16
        ("f16", 2.0**-10 * 1024, (256,), 1.0, Status.NOT_VERIFIED),
        ("f16", 2.0**-10 * 128, (256,), 1.0, Status.SUCCESS),  # the mean of many is sharper than each
        ("f16", 2.0**-10 * 1024, (1,), 0.0, Status.SUCCESS),  # anything else than 0 differs
        ("f32", 2.0**-23 * 1024, (1,), 1.0, Status.SUCCESS),
    ],
)
def test_what_half_the_reference_would_pass_as_well_is_not_verified(
    element: str, sums: float, extents: tuple[int, ...], reference: float, status: Status
) -> None:
    view = View.whole(0, 0, extents, element)
    length = 4 * extents[0]
    call = Call("call_0", 7, (Buffer(length, 0, length, True, ()),))
    memory = np.zeros(length, np.uint8)
    view.of([memory])[...] = to_memory(np.full(extents, reference), element)
    found = compare(call, [memory], [memory.copy()], [view], "numpy", Precision(2.0**-10, sums))
    assert found.status is status


def test_what_was_not_written_is_no_number_and_differs() -> None:
    right, found = memories()
    found[0][4:8] = CANARY
    difference = first_difference(CALL, right, found, [WRITTEN], EXACT)
    assert "[0, 0] of 2x3xf32 in binding 0 is nan, not 0" in difference


@pytest.mark.parametrize("masked", [2, 3, 5])
@pytest.mark.parametrize("mask", [-1e9, float(np.finfo(np.float32).min)])
def test_a_mask_does_not_excuse_what_stands_beside_it(masked: int, mask: float) -> None:
    right, _ = memories()
    WRITTEN.of(right)[...] = 1.0
    WRITTEN.of(right).flat[:masked] = mask
    found = [right[0].copy()]
    assert first_difference(CALL, right, found, [WRITTEN], EXACT) == ""
    WRITTEN.of(found)[1, 2] = 1.25
    difference = first_difference(CALL, right, found, [WRITTEN], EXACT)
    assert difference == "[1, 2] of 2x3xf32 in binding 0 is 1.25, not 1; 1 of 6 elements differ"


@pytest.mark.parametrize("byte", [0, 3, 28, 31])
def test_a_byte_beside_the_result_may_not_change(byte: int) -> None:
    right, found = memories()
    found[0][byte] ^= 1
    difference = first_difference(CALL, right, found, [WRITTEN], EXACT)
    assert difference.startswith(f"byte {byte} of binding 0 was changed")


def test_made_up_data_is_the_same_each_time_and_within_its_range() -> None:
    fill = Fill(64, (100,), (1,), "f32", -1.0, 1.0)
    call = Call("call_0", 5, (Buffer(1024, 64, 464, False, (fill,)),))
    first, again = used_bytes(call, 0), used_bytes(call, 0)
    assert first.tobytes() == again.tobytes()
    values = first.view(np.float32)
    assert values.min() < -0.5 < 0.5 < values.max()
    assert np.abs(values).max() <= 1
    assert whole_memory(call)[0][64:464].tobytes() == first.tobytes()


@pytest.mark.parametrize("bits", [0x3F80, 0xC2F7, 0x7F80, 0x0001, 0x8000])
def test_bfloat16_keeps_its_bits(bits: int) -> None:
    stored = np.array([bits], np.uint16)
    assert to_memory(from_memory(stored, "bf16"), "bf16").tolist() == [bits]


def test_bfloat16_is_rounded_to_the_nearest_even() -> None:
    # 1 + 2^-8 lies between 1 and 1 + 2^-7, whose last bits are 0 and 1.
    assert to_memory(np.array([1 + 2.0**-8, 1 + 3 * 2.0**-8]), "bf16").tolist() == [0x3F80, 0x3F82]


def points_to(
    median_ns: int,
    alone: AloneTimes,
    *,
    speed: float = 1.0,
    workers: int = 1,
    typical: float = 1.0,
    noisy: bool = False,
    again_ns: int = 0,
) -> str:
    application = ApplicationCalls({"site0": SiteCalls(10, median_ns)}, workers, speed, noisy)
    again = ApplicationCalls({"site0": SiteCalls(10, again_ns)} if again_ns else {}, 1)
    return explain_site(
        "site0", ApplicationRun(application, typical), ApplicationRun(again), alone
    ).points_to.partition(":")[0]


WARM = AloneTimes(100_000, 0)


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (points_to(110_000, WARM), ""),
        (points_to(90_000, WARM), ""),
        (points_to(50_000, WARM, speed=2.0), "clock"),
        (points_to(150_000, AloneTimes(100_000, 160_000)), "cold data"),
        (points_to(50_000, WARM, typical=0.5), "the machine"),
        (points_to(70_000, AloneTimes(100_000, 150_000), typical=0.5), "cold data"),
        (points_to(4_000, AloneTimes(2_000, 0)), "a short call"),
        (points_to(200_000, AloneTimes(100_000, 0, 0.3)), "unsteady"),
        (points_to(200_000, WARM, workers=2, noisy=True), "a noisy run"),
        (points_to(200_000, WARM, workers=2), "contention"),
        (points_to(200_000, WARM, again_ns=110_000), "the machine"),
        (points_to(200_000, WARM, workers=2, again_ns=110_000), "contention"),
        (points_to(50_000, AloneTimes(100_000, 160_000), again_ns=150_000), "cold data"),
        (points_to(200_000, WARM, speed=2.0, typical=2.0, noisy=True, again_ns=200_000), "not explained"),
        (points_to(200_000, WARM), "not explained"),
        (points_to(200_000, AloneTimes(100_000, 110_000)), "not explained"),
    ],
)
def test_a_difference_points_to_what_explains_it(found: str, wanted: str) -> None:
    assert found == wanted


def test_of_few_kernels_nothing_is_said_to_be_so_of_most() -> None:
    assert typical_ratio([(2.0, 1.0)] * 4) == 1.0
    assert typical_ratio([(2.0, 1.0)] * 4 + [(9.0, 1.0)]) == 2.0


def test_texts_in_csv_are_inert_once() -> None:
    """A kernel's name is anybody's: it steers no terminal, and a formula of it is read back as it was."""
    right = Verification(Status.SUCCESS, UNKNOWN, 0.0, "")
    kernel = KernelBench(
        kernel="=1+1\x1b[2J",
        sites=("site0",),
        arguments="-> 4xf32",
        operation_kind="@kind",
        operation="\u202eop",
        configuration="=A1",
        verification=right,
        time_ns=None,
        cold_ns=None,
        operations=UNKNOWN,
        bytes=UNKNOWN,
        operations_per_s=None,
        bytes_per_s=None,
        roofline_share=None,
        same_code=None,
        stood_in=0,
        in_application=(ApplicationComparison("site0", 1, 5, 1.0, UNKNOWN, "=points"),),
        not_measured="",
    )
    text = bench_csv(Bench(module_sha256="", device="local-sync", processes=1, kernels=(kernel,)))
    (row,) = csv.DictReader(io.StringIO(text))
    assert [row["Dispatch"], row["Operation"]] == ["'=1+1\\x1b[2J", "\\u202eop"]
    assert [row["OpKind"], row["Configuration"], row["Arguments"]] == ["'@kind", "'=A1", "'-> 4xf32"]
    assert row["points_to"] == "'=points"
