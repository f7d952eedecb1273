"""The matrix of `make compat`, tried on the installed release."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.compat.__main__ import tried

pytestmark = pytest.mark.quick


@pytest.mark.long
def test_the_installed_release_can_do_what_the_matrix_tries() -> None:
    outcomes = tried(Path(sys.executable), "hand_mlp,hand_dynamic,jax_mlp", "")
    assert len(outcomes) >= 20
    # Only what the machine lacks may be missing.
    missing = {outcome.capability: outcome.note for outcome in outcomes if outcome.cell != "yes"}
    assert set(missing) <= {"record --counters", "record --sample"}, missing
    assert all(outcome.cell in ("yes", "event-unavailable") for outcome in outcomes)
