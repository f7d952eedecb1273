"""The Python API does what the commands do, and returns their objects."""

from __future__ import annotations

from pathlib import Path

import pytest

import tracemap
from tests.support import SAMPLES
from tracemap.errors import BundleInvalid, FunctionUnknown, ModelUnreadable


def test_the_whole_job_in_python(tmp_path: Path) -> None:
    bundle = tracemap.build(SAMPLES / "models" / "hand_mlp.mlir", tmp_path / "mlp.tracemap")
    run = tracemap.record(bundle, iterations=4, warmup=1, serial=True)
    assert run.path.parent == bundle.runs_path
    for result in (tracemap.attribute([run.path], bundle), tracemap.attribute([run.path], rule="equal")):
        (cpu, _) = result.metrics
        assert (cpu.name, cpu.residual) == ("cpu_ns", 0)
        assert sum(op.metrics["cpu_ns"].attributed for op in result.ops) == cpu.measured
        assert all(site.calls == 4 for site in result.sites)
    assert tracemap.load(bundle.path).graph == bundle.graph


def test_errors_are_the_same(tmp_path: Path) -> None:
    with pytest.raises(ModelUnreadable):
        tracemap.build(tmp_path / "none.mlir", tmp_path / "a.tracemap")
    with pytest.raises(BundleInvalid):
        tracemap.load(tmp_path)
    bundle = tracemap.build(SAMPLES / "models" / "hand_mlp.mlir", tmp_path / "mlp.tracemap")
    with pytest.raises(FunctionUnknown):
        tracemap.record(bundle, function="nobody")
