"""Fixtures of tests without a GPU: NVIDIA's libraries, played by ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu.standins import StandIns, build


@pytest.fixture(scope="session")
def standins(made: Path) -> StandIns:
    """The stand-ins, compiled once."""
    return build(made)
