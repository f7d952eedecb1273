"""Parts of the check on a GPU that need none."""

from __future__ import annotations

import pytest

from tests.gpu import FILES, launches_of
from tests.gpu.check import Report, trace_medians

pytestmark = pytest.mark.quick


def test_medians_are_those_of_nsight_systems() -> None:
    medians = trace_medians(FILES / "nsys-trace.csv")
    for name in {kernel for kernel, _, _ in launches_of("nsys-trace.csv")}:
        times = sorted(ns for kernel, ns, _ in launches_of("nsys-trace.csv") if kernel == name)
        assert times[(len(times) - 1) // 2] <= medians[name] <= times[len(times) // 2]


def test_step_fails_by_an_error_or_a_false_fact() -> None:
    report = Report(100)

    def fail() -> dict[str, object]:
        raise ValueError("wrong")

    report.step("ok", 0, lambda: {"is_right": True})
    report.step("false", 0, lambda: {"is_right": False})
    report.step("error", 0, fail)
    report.step("late", 200, fail)
    report.step("skipped", 0, lambda: {"skipped": "no tool"})
    assert [row["status"] for row in report.steps] == ["ok", "failed", "failed", "not reached", "skipped"]
