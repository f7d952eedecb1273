"""`record --compare-devices`: what other devices take is measured on the real runtime, and advice says no more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from tests.builders import attribution
from tests.conftest import Built
from tests.recording import request, sample
from tests.support import json_cli, run_cli
from tests.test_reports_page import GRAPH, TOTALS
from tracemap.attribution.model import Attribution
from tracemap.capture.record import record
from tracemap.measurements.model import BY_STOPS, DeviceTime, ElapsedParts
from tracemap.reports.advice import advice
from tracemap.units import UNKNOWN

SYNC, TASK = DeviceTime("local-sync", 100_000, 99_000, 101_000, 20, 9), DeviceTime("local-task", 900_000, 1, 2, 20, 9)


def divided(queue_ns: int, host_ns: int, *devices: DeviceTime) -> Attribution:
    """A run of a microsecond, of which kernels have what queue and host leave."""
    made = attribution(GRAPH, TOTALS, elapsed_ns=1000)
    parts = ElapsedParts(1000 - queue_ns - host_ns, 0, queue_ns, host_ns, 0, 0, BY_STOPS)
    return replace(made, run=structs.replace(made.run, elapsed=parts, devices=devices))


def test_each_device_is_timed_without_the_profiler(made: Path, tmp_path: Path) -> None:
    devices = ("local-sync", "local-task")
    asked = request(sample(made, "hand_loczoo"), tmp_path / "run.csv", seconds=1.0, compare_devices=devices)
    header = record(asked).header
    assert tuple(each.device for each in header.devices) == devices
    for each in header.devices:
        assert isinstance(each.median_ns, int)
        assert isinstance(each.low_ns, int)
        assert isinstance(each.high_ns, int)
        assert 0 < each.low_ns <= each.median_ns <= each.high_ns
        assert each.groups >= 6
        assert each.calls * each.median_ns > 1_000_000


def test_without_the_option_nothing_more_runs(made: Path, tmp_path: Path) -> None:
    assert record(request(sample(made, "hand_loczoo"), tmp_path / "run.csv", iterations=2)).header.devices == ()


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (("--compare-devices", "local-sync,nosuch"), "'nosuch'"),
        (("--compare-devices", "cuda"), "'cuda'"),
        (("--compare-devices", "local-sync", "--", "--device=vulkan"), "'vulkan'"),
    ],
)
def test_devices_that_run_other_kernels_are_refused(
    built: Built, tmp_path: Path, flags: tuple[str, ...], name: str
) -> None:
    output = tmp_path / "run.csv"
    done = run_cli("record", built("hand_loczoo"), "-o", output, *flags)
    assert done.returncode == 2
    assert f"local-sync and local-task, which run the same kernels: {name} is none of them" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not output.exists()


def test_what_was_measured_stands_in_header_and_report(built: Built, tmp_path: Path) -> None:
    bundle, run = built("hand_loczoo"), tmp_path / "run.csv"
    options = ("--seconds", "1", "--compare-devices", "local-task,local-sync")
    assert run_cli("record", bundle, *options, "-o", run).returncode == 0
    shown = json_cli("attribute", run, "--map", bundle)["run"]
    assert [each["device"] for each in shown["devices"]] == ["local-task", "local-sync"]


def test_advice_says_what_was_measured() -> None:
    slow = structs.replace(TASK, low_ns=800_000, high_ns=1_000_000)
    said = advice(divided(600, 310, SYNC, slow))
    assert said.startswith("91.0 % of the elapsed time is queue and host, around kernels of ")
    assert said.endswith(": local-sync took 100 µs where local-task took 900 µs")


def test_advice_to_measure_where_nobody_has() -> None:
    said = advice(divided(600, 310))
    assert said.endswith("record --compare-devices local-sync,local-task tells whether another device waits less")


def test_no_advice_where_nothing_calls_for_it() -> None:
    slow = structs.replace(TASK, low_ns=800_000, high_ns=1_000_000)
    assert advice(divided(200, 200, SYNC, slow)) == ""  # kernels take more than half
    assert advice(divided(600, 310, SYNC, structs.replace(TASK, low_ns=100_500, high_ns=1_000_000))) == ""  # by chance
    assert advice(divided(600, 310, SYNC, structs.replace(TASK, low_ns=UNKNOWN, high_ns=UNKNOWN))) == ""
    assert advice(divided(600, 310, SYNC)) == ""  # its own was not measured
    assert advice(attribution(GRAPH, TOTALS, elapsed_ns=UNKNOWN)) == ""
