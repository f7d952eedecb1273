"""Dispatches of one submission that started at the same tick of the device clock."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from msgspec import structs

from tests.conftest import Built, Recorded
from tests.support import Json, json_cli
from tracemap.core.codec import encode
from tracemap.runs.runfile import read_run

_STEP_NS = 1_000_000_000
_COLUMNS = ("kind", "kernel", "submission_id", "invocation", "warmup", "start_ns", "duration_ns", "cpu_ns")


def with_coarse_clock(run: Path, target: Path) -> Path:
    """The rows of a run as of a driver that lists no commands, of a device whose clock has steps of a second."""
    with run.open(newline="") as file, target.open("w", newline="") as out:
        writer = csv.DictWriter(out, _COLUMNS, extrasaction="ignore")
        writer.writeheader()
        for row in csv.DictReader(file):
            start_ns = int(row["start_ns"]) // _STEP_NS * _STEP_NS
            writer.writerow(row | {"start_ns": str(start_ns)})
    head = structs.replace(read_run(run).header, programs=(), buffers=())
    target.with_name(f"{target.name}.json").write_bytes(encode(head))
    return target


def told(found: Json) -> dict[str, tuple[int, int]]:
    """What sites took, with what delayed them, and how often they were called."""
    costs = {each["site"]: (each["metrics"]["cpu_ns"], each["calls"]) for each in found["sites"]}
    return {site: (cost["total"] + cost["outliers"], calls) for site, (cost, calls) in costs.items() if calls}


def test_each_kernel_keeps_what_is_its_own(built: Built, recorded: Recorded, tmp_path: Path) -> None:
    """One of a submission's kernels had all of them."""
    exact, named = recorded("hand_multifunc.roundtrip", ".csv"), ("--map", built("hand_multifunc"))
    coarse = with_coarse_clock(exact, tmp_path / "coarse.csv")
    found = told(json_cli("attribute", coarse, *named))
    assert found == told(json_cli("attribute", exact, *named))
    assert len(found) == 2


@pytest.mark.long
def test_of_one_kernel_each_site_has_an_even_part(built: Built, recorded: Recorded, tmp_path: Path) -> None:
    exact, named = recorded("hand_repeat12", ".csv"), ("--map", built("hand_repeat12"))
    coarse = json_cli("attribute", with_coarse_clock(exact, tmp_path / "coarse.csv"), *named)
    before, found = told(json_cli("attribute", exact, *named)), told(coarse)
    assert [calls for _, calls in found.values()] == [calls for _, calls in before.values()] == [3] * 12
    assert sum(cost for cost, _ in found.values()) == sum(cost for cost, _ in before.values())
    assert len({cost // 2 for cost, _ in found.values()}) <= 2
    assert "split-evenly" in {each["slug"] for each in coarse["diagnostics"]}
