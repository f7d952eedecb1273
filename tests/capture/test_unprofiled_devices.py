"""Devices that the runtime cannot profile: a message that says what helps."""

from __future__ import annotations

import pytest

from tracemap.capture.execution import check_profiled
from tracemap.core.errors import DeviceUnprofiled

pytestmark = pytest.mark.quick

ON_AN_H100 = (
    "c/runtime/src/iree/hal/drivers/cuda/cuda_device.c:1214: UNIMPLEMENTED; "
    "CUDA HAL-native profiling is not implemented"
)
"""What `record` got there (IREE 3.13)."""


def test_a_device_without_profiles_is_named_with_what_helps() -> None:
    with pytest.raises(DeviceUnprofiled, match=r"CUDA HAL-native profiling is not implemented.*ncu or nsys"):
        check_profiled("mlp", f"Running\n{ON_AN_H100}\n")
    assert DeviceUnprofiled.exit_code == 2


@pytest.mark.parametrize("said", ["", "UNIMPLEMENTED; something else", "out of memory"])
def test_other_failures_are_not_taken_for_it(said: str) -> None:
    check_profiled("mlp", said)
