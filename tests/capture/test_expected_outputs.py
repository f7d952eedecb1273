"""Comparison of outputs with expected ones, and numpy files that are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tracemap.capture.calling import shapes_of
from tracemap.capture.outputs import Tolerance, compare_outputs
from tracemap.core.errors import InputInvalid

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("expected", [np.inf, -np.inf])
def test_only_infinity_is_as_expected_where_it_is_expected(expected: float) -> None:
    wanted = np.full((2, 3), expected, np.float32)
    (same,) = compare_outputs([wanted.copy()], [wanted], Tolerance())
    assert str(same).endswith("as expected")
    for other in (1.0, -expected, np.nan):
        (found,) = compare_outputs([np.full((2, 3), other, np.float32)], [wanted], Tolerance())
        assert "6 of 6 elements differ" in str(found)


def test_a_head_that_is_nested_without_end_is_refused(tmp_path: Path) -> None:
    head = b"{'descr': '<f4', 'fortran_order': False, 'shape': (" + b"-" * 4000 + b"1,), }"
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\x02\x00" + len(head).to_bytes(4, "little") + head)
    with pytest.raises(InputInvalid, match="holds no array"):
        list(shapes_of([f"@{tmp_path / 'x.npy'}"]))
