"""Results as tables of Arrow and pandas hold what the results say."""

from __future__ import annotations

from pathlib import Path

import pytest

import tracemap
from tests.support import SAMPLES

pytest.importorskip("pandas", reason="pandas is not installed: make frontends")
pytest.importorskip("pyarrow", reason="pyarrow is not installed: make frontends")


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_tables_of_all_results(suffix: str, tmp_path: Path) -> None:
    bundle = tracemap.build(SAMPLES / "models" / "hand_mlp.mlir", tmp_path / "mlp.tracemap")
    run = tracemap.record(bundle, tmp_path / f"run{suffix}", iterations=5, warmup=1)
    result = tracemap.attribute(run, bundle)
    ops, events, costs = bundle.to_pandas(), run.to_pandas(), result.to_pandas()
    assert list(ops["op"]) == [op.id for op in bundle.graph.ops]
    assert len(events) == run.events
    for metric in result.metrics:
        assert costs[metric.name].sum() == metric.attributed
    dispatches = events[(events["kind"] == "dispatch") & (~events["warmup"].astype(bool))]
    (cpu,) = [metric for metric in result.metrics if metric.name == "cpu_ns"]
    assert dispatches["cpu_ns"].sum() == cpu.measured
    for table, frame in ((bundle.to_arrow(), ops), (run.to_arrow(), events), (result.to_arrow(), costs)):
        assert table.num_rows == len(frame)
        assert table.column_names == list(frame.columns)
    assert costs.set_index("op").loc[result.ops[0].op, "calls"] == result.ops[0].calls
    assert "median invocation" in run._repr_html_()


def test_kernels_alone(tmp_path: Path) -> None:
    bundle = tracemap.build(SAMPLES / "models" / "hand_mlp.mlir", tmp_path / "mlp.tracemap")
    made = tracemap.bench(bundle, seconds=0.2)
    frame = made.to_pandas()
    assert list(frame["kernel"]) == [kernel.kernel for kernel in made.kernels]
    assert (frame["time_ns"].dropna() > 0).all()
    assert "<table>" in made._repr_html_()
