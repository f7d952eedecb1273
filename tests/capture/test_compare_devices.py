"""`record --compare-devices`: times on other devices, and the advice drawn from them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from tests.builders import attribution
from tests.conftest import Built
from tests.recording import request, sample
from tests.reports.test_page import GRAPH, TOTALS
from tests.support import check_cli, json_cli, run_cli
from tracemap.attribution.model import Attribution
from tracemap.capture.record import record
from tracemap.core.units import UNKNOWN, format_ns
from tracemap.reports.advice import device_comparison_text, elapsed_text
from tracemap.reports.cost_lookup import ASSUMED_SIZES
from tracemap.runs.model import BY_STOPS, DeviceTime, ElapsedParts, Invocation

SYNC, TASK = DeviceTime("local-sync", 100_000, 99_000, 101_000, 20, 1), DeviceTime("local-task", 900_000, 1, 2, 20, 1)


def divided(queue_ns: int, host_ns: int, *devices: DeviceTime) -> Attribution:
    """A run of a microsecond, of which kernels have what queue and host leave."""
    made = attribution(GRAPH, TOTALS, elapsed_ns=1000)
    parts = ElapsedParts(1000 - queue_ns - host_ns, 0, queue_ns, host_ns, 0, 0, BY_STOPS)
    return replace(made, run=structs.replace(made.run, elapsed=parts, devices=devices))


@pytest.mark.long
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
        assert each.groups > 100
        assert each.calls == 1


def test_without_the_option_nothing_more_runs(made: Path, tmp_path: Path) -> None:
    assert record(request(sample(made, "hand_loczoo"), tmp_path / "run.csv", iterations=2)).header.devices == ()


def test_overhead_is_also_timed_without_the_profiler(made: Path, tmp_path: Path) -> None:
    """Its calls are a microsecond of work, so that nearly all is overhead, which the profiler makes longer."""
    header = record(request(sample(made, "hand_loczoo"), tmp_path / "run.csv", seconds=0.4)).header
    assert isinstance(header.unprofiled_ns, int)
    assert isinstance(header.clocked_ns, int)
    assert isinstance(header.invocation.median_ns, int)
    assert 0 < header.unprofiled_ns < 2 * header.clocked_ns
    assert header.clocked_ns < header.invocation.median_ns  # in which the profiler writes, too
    exact = record(request(sample(made, "hand_loczoo"), tmp_path / "exact.csv", iterations=2)).header
    assert exact.unprofiled_ns is UNKNOWN


@pytest.mark.long
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
    assert f"{name}: choose from local-sync and local-task, which run the same kernels" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not output.exists()


@pytest.mark.long
def test_what_was_measured_stands_in_header_and_report(built: Built, tmp_path: Path) -> None:
    bundle, run = built("hand_loczoo"), tmp_path / "run.csv"
    options = ("--seconds", "1", "--compare-devices", "local-task,local-sync")
    done = run_cli("record", bundle, *options, "-o", run)
    assert done.returncode == 0
    shown = json_cli("attribute", run, "--map", bundle)["run"]
    assert [each["device"] for each in shown["devices"]] == ["local-task", "local-sync"]
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("median call: local-task "))
    for each in shown["devices"]:
        said = re.search(rf"{each['device']} (\S+ \S+) \(95 %: (\S+(?: \S+)?) to (\S+ \S+)\)", line)
        assert said is not None
        assert said[1] == format_ns(each["median_ns"])
        assert format_ns(each["low_ns"]).startswith(said[2])
        assert said[3] == format_ns(each["high_ns"])
    page = tmp_path / "page.html"
    assert f"note: {line}" in check_cli("attribute", run, "--map", bundle, "--html", page).splitlines()
    assert line in page.read_text(encoding="utf-8")


@pytest.mark.long
def test_the_runs_own_device_is_compared_with(built: Built, tmp_path: Path) -> None:
    run = tmp_path / "run.csv"
    done = run_cli("record", built("hand_loczoo"), "--seconds", "1", "--compare-devices", "local-sync", "-o", run)
    assert re.search(r"^median call: local-sync .*, local-task .*; ", done.stderr, re.MULTILINE)


def test_a_device_is_not_compared_with_itself(built: Built, tmp_path: Path) -> None:
    run = tmp_path / "run.csv"
    done = run_cli("record", built("hand_loczoo"), "--compare-devices", "local-task", "-o", run)
    assert done.returncode == 2
    assert "the run already uses local-task; name another device: local-sync" in done.stderr
    assert not run.exists()


def test_what_was_measured_is_said_whether_devices_differ_or_not() -> None:
    slow = structs.replace(TASK, low_ns=800_000, high_ns=1_000_000)
    between = structs.replace(TASK, low_ns=100_500, high_ns=1_000_000)
    assert device_comparison_text((SYNC, slow)).endswith("; local-sync is faster")
    assert device_comparison_text((SYNC, between)).endswith("; no significant difference (intervals overlap)")
    assert device_comparison_text((SYNC, slow)).startswith("median call: local-sync 100 µs ")
    grouped = tuple(structs.replace(each, calls=9) for each in (SYNC, slow))
    assert device_comparison_text(grouped).startswith("median of means of several calls: local-sync 100 µs ")
    assert device_comparison_text(()) == ""


def test_the_mean_of_an_invocation_is_called_so_and_the_median_stands_beside_it() -> None:
    found = divided(600, 310)

    def said(**changes: object) -> str:
        return elapsed_text(replace(found, run=structs.replace(found.run, **{"iterations": 2, **changes})))

    assert said() == "500 ns per invocation (mean)"
    timed = Invocation(311_000, 305_000, 320_000, "precision")
    assert said(invocation=timed) == "500 ns per invocation (mean), median 311 µs (95 %: 305 to 320 µs)"
    few = Invocation(999_000, UNKNOWN, UNKNOWN, "seconds")
    assert said(invocation=few) == "500 ns per invocation (mean), median 999 µs (too few for an interval)"
    assert said(iterations=UNKNOWN) == "1.00 µs"
    assert elapsed_text(replace(found, functions=("encode", "decode"))) == "1.00 µs in all"


UNEVEN = """
func.func @same(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.tanh %x : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}
func.func @dynamic(%x: tensor<?x8xf32>, %w: tensor<8x8xf32>) -> tensor<?x8xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<?x8xf32>, tensor<8x8xf32>) -> tensor<?x8xf32>
  %1 = stablehlo.exponential %0 : tensor<?x8xf32>
  return %1 : tensor<?x8xf32>
}
"""


@pytest.mark.long
def test_what_is_said_of_a_site_is_said_where_it_was_called(tmp_path: Path) -> None:
    (tmp_path / "model.mlir").write_text(UNEVEN, encoding="utf-8")
    check_cli("build", "model.mlir", cwd=tmp_path)
    said = {}
    for function, more in (("same", ()), ("dynamic", ("--dim", "4"))):
        check_cli(
            "record", "model.tracemap", "--function", function, *more, "--iterations", "5", "-o", f"{function}.csv",
            cwd=tmp_path,
        )  # fmt: skip
        said[function] = check_cli("attribute", f"{function}.csv", "--rule", "model", cwd=tmp_path)
    assert ASSUMED_SIZES not in " ".join(said["same"].split())
    assert ASSUMED_SIZES in " ".join(said["dynamic"].split())
