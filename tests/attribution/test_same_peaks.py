"""Runs added up or compared are split by the same machine limits."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec import structs

from tests.conftest import Built, Recorded
from tests.support import json_cli
from tracemap.attribution.weights import best_peaks
from tracemap.core.codec import encode
from tracemap.core.units import Integer
from tracemap.runs.model import Peaks
from tracemap.runs.runfile import read_run

FLAGS = "hand_multifunc.roundtrip"
BUSY = Peaks(85_912_234_130, 22_547_021_297, "measured")
QUIET = Peaks(118_568_908_589, 23_626_687_096, "measured")
"""Two looks at one machine, of which other programs held the processors at the first."""


@pytest.fixture
def looks(recorded: Recorded, tmp_path: Path) -> list[Path]:
    """The very same rows twice, as if the machine had been busy when the limits were measured for the first."""
    runs = []
    for number, peaks in enumerate((BUSY, QUIET)):
        run = tmp_path / f"run-{number}.csv"
        shutil.copy(recorded(FLAGS, ".csv"), run)
        head = structs.replace(read_run(recorded(FLAGS, ".csv")).header, peaks=peaks)
        run.with_name(f"{run.name}.json").write_bytes(encode(head))
        runs.append(run)
    return runs


def costs(built: Built, runs: Sequence[Path]) -> dict[str, Integer]:
    made = json_cli("attribute", *runs, "--map", built("hand_multifunc"), "--rule", "model")
    return {each["op"]: each["metrics"]["cpu_ns"]["attributed"] for each in made["ops"]}


@pytest.mark.long
def test_the_order_of_runs_does_not_matter(built: Built, looks: list[Path]) -> None:
    assert costs(built, looks) == costs(built, looks[::-1])
    assert costs(built, looks[:1]) != costs(built, looks[1:])  # else nothing was tried


@pytest.mark.long
def test_rows_that_are_the_same_do_not_differ(built: Built, looks: list[Path]) -> None:
    maps = [word for name in ("--map-a", "--map-b") for word in (name, built("hand_multifunc"))]
    made = json_cli("diff", *looks, *maps)
    amounts = [each["amounts"]["cpu_ns"] for each in made["ops"] if each["amounts"]]
    assert len(amounts) > 2
    assert all(each["before"] == each["after"] for each in amounts)


def test_the_best_limits_that_were_measured_count() -> None:
    assumed = Peaks(10**12, 10**12, "assumed")
    other = Peaks(BUSY.operations_per_second, 2 * BUSY.bytes_per_second, "measured")
    best = Peaks(QUIET.operations_per_second, other.bytes_per_second, "measured")
    assert best_peaks([assumed, BUSY, QUIET, other]) == best_peaks([other, QUIET, BUSY]) == best
    assert best_peaks([assumed]) == assumed
