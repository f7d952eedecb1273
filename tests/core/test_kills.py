"""Killed commands leave nothing behind: one kill each; `python -m tests.kills` tries many moments."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Built
from tests.kills import SIGNALS, VICTIMS, Place, Victim, findings_of_kill
from tests.support import check_cli, long_where

QUICK = [victim for victim in VICTIMS if "--cache-sim" not in victim.words]


@pytest.fixture
def place(built: Built, tmp_path: Path) -> Place:
    """A place with a bundle and a run."""
    bundle, run = built("jax_mlp"), tmp_path / "recorded.csv"
    check_cli("record", bundle, "--iterations", "300", "-o", run)
    return Place(tmp_path, bundle, run)


@pytest.mark.few(1)
@pytest.mark.parametrize("victim", QUICK, ids=[victim.name for victim in QUICK])
@pytest.mark.parametrize("word", long_where(list(SIGNALS), lambda _, word: word == "TERM"))
def test_a_killed_command_leaves_nothing(word: str, victim: Victim, place: Place) -> None:
    assert findings_of_kill(place, victim, SIGNALS[word], 0.7) == []
