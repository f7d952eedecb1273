"""Metrics of the program: bytes at the peak and bytes moved, next to the measured ones."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

import tracemap
from tests.conftest import Built, Recorded
from tests.support import SAMPLES, check_cli, json_cli, long_where, run_cli
from tracemap.map.bundle import load

LIVE, MOVED, READ, WRITTEN = "live_bytes_at_peak", "bytes_moved", "bytes_read", "bytes_written"
MODELS = ("hand_attention", "hand_loop", "torch_resnet18_small", "jax_gpt2_4l_scan", "hand_convnet")


@pytest.mark.parametrize("model", long_where(list(MODELS), lambda number, _: number > 0))
def test_bytes_at_the_peak_add_up_to_it(model: str, built: Built, recorded: Recorded) -> None:
    """Each op has what `memory` says, and the rest is unattributed."""
    bundle, run = built(model), recorded(model)
    found = json_cli("attribute", run, "--map", bundle, "--metric", LIVE)
    (use,) = json_cli("memory", bundle, run)["functions"]
    (total,) = (metric for metric in found["metrics"] if metric["name"] == LIVE)
    assert total["measured"] == use["peak_bytes"] == total["attributed"] + total["unattributed"]
    reasons = {row["reason"]: row["metrics"][LIVE] for row in found["unattributed"] if row["metrics"][LIVE]}
    assert reasons.get("memory-layout", 0) == use["unused_bytes"]
    alone: dict[str, int] = {}
    for value in use["held"]:
        if len(value["ops"]) == 1:
            alone[value["ops"][0]] = alone.get(value["ops"][0], 0) + value["bytes"]
    shown = {op["op"]: op["metrics"][LIVE]["attributed"] for op in found["ops"]}
    assert any(shown.values())
    assert all(shown[op] >= size for op, size in alone.items() if op in shown)


def test_bytes_moved_are_those_of_the_shapes(built: Built, recorded: Recorded) -> None:
    """A product of 64x128 and 128x128 reads both and writes its result; a transpose moves its array twice."""
    result = tracemap.attribute(recorded("hand_attention"), built("hand_attention"), metrics=(MOVED,))
    moved = {op.line: op.metrics[MOVED].attributed // op.calls for op in result.ops if isinstance(op.calls, int)}
    assert moved[8] == 4 * (64 * 128 + 128 * 128 + 64 * 128)
    assert moved[17] == 4 * 2 * 64 * 128
    (total,) = (metric for metric in result.metrics if metric.name == MOVED)
    assert total.measured == total.attributed == sum(op.metrics[MOVED].attributed for op in result.ops)


KNOWN = """\
func.func @main(%x: tensor<32x64xf32>, %w: tensor<64x16xf32>, %y: tensor<32x16xf32>) -> (tensor<32x16xf32>, tensor<16xf32>, tensor<48x16xf32>) {
  %product = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<32x64xf32>, tensor<64x16xf32>) -> tensor<32x16xf32>
  %whole = stablehlo.optimization_barrier %product : tensor<32x16xf32>
  %sum = stablehlo.add %whole, %y : tensor<32x16xf32>
  %added = stablehlo.optimization_barrier %sum : tensor<32x16xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %reduced = stablehlo.reduce(%added init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<32x16xf32>, tensor<f32>) -> tensor<16xf32>
  %part = stablehlo.slice %added [0:16, 0:16] : (tensor<32x16xf32>) -> tensor<16x16xf32>
  %joined = stablehlo.concatenate %added, %part, dim = 0 : (tensor<32x16xf32>, tensor<16x16xf32>) -> tensor<48x16xf32>
  return %added, %reduced, %joined : tensor<32x16xf32>, tensor<16xf32>, tensor<48x16xf32>
}
"""  # noqa: E501 - the text is MLIR


def test_bytes_read_and_written_are_those_computed_by_hand(tmp_path: Path) -> None:
    """A product, an elementwise op and a reduction in dispatches of their own; the compiler copies to concatenate."""
    model, bundle, run = tmp_path / "known.mlir", tmp_path / "known.tracemap", tmp_path / "run.csv"
    model.write_text(KNOWN, encoding="utf-8")
    check_cli("build", model, "-o", bundle)
    check_cli("record", bundle, "--iterations", "3", "-o", run)
    result = tracemap.attribute(run, bundle, metrics=(READ, WRITTEN, MOVED))
    calls = {op.calls for op in result.ops}
    found = {op.line: tuple(op.metrics[name].attributed for name in (READ, WRITTEN)) for op in result.ops}
    (times,) = calls
    assert isinstance(times, int)
    product, large, small = 32 * 16, 32 * 64 + 64 * 16, 16
    by_hand = {2: (large, product), 4: (2 * product, product), 7: (product, small)}
    assert found == {line: (4 * times * read, 4 * times * written) for line, (read, written) in by_hand.items()}
    copied = {row.reason.value: row.metrics for row in result.unattributed}["untimed-copies"]
    assert (copied[READ], copied[WRITTEN], copied[MOVED]) == tuple(4 * times * 48 * 16 * factor for factor in (1, 1, 2))
    read, written, moved = (total.measured for total in result.metrics if total.name in (READ, WRITTEN, MOVED))
    assert (read, read + written) == (4 * times * (large + 3 * product + 48 * 16), moved)
    shown = json_cli("show", bundle)
    members = {site["id"]: site["members"] for site in shown["sites"]}
    assert [(member["bytes_read"], member["bytes_written"]) for site in members.values() for member in site] == [
        (4 * read, 4 * written) for read, written in by_hand.values()
    ]


@pytest.mark.long
def test_bytes_from_memory_are_a_column_next_to_those_of_shapes(built: Built, tmp_path: Path) -> None:
    run = tmp_path / "run.csv"
    check_cli("record", built("hand_mlp"), "--iterations", "3", "--cache-sim", "-o", run)
    named = ("--map", built("hand_mlp"), "--metric", READ, "--columns", f"op,{READ},LL-bytes")
    (heading, first, *_) = (row for row in check_cli("attribute", run, *named).splitlines() if row.startswith("op"))
    assert heading.split() == ["op", READ, "KiB", "LL", "fetched", "KiB"]
    assert first.split()[:2] == ["op6", "882.000"]
    assert float(first.split()[2]) > 0


@pytest.mark.long
def test_dynamic_shapes_are_named_instead_of_guessed(built: Built, recorded: Recorded) -> None:
    found = json_cli(
        "attribute", recorded("hand_dynamic"), "--map", built("hand_dynamic"), "--metric", f"{MOVED},{LIVE}"
    )
    assert "bytes-unknown" in [note["slug"] for note in found["diagnostics"]]
    totals = {metric["name"]: metric["measured"] for metric in found["metrics"]}
    assert (totals[MOVED], totals[LIVE]) == (0, 24576)


@pytest.mark.long
def test_they_are_in_all_formats_only_if_named(built: Built, recorded: Recorded, tmp_path: Path) -> None:
    run, bundle, page = recorded("hand_attention"), built("hand_attention"), tmp_path / "page.html"
    plain = json_cli("attribute", run, "--map", bundle)
    assert not {LIVE, MOVED} & {metric["name"] for metric in plain["metrics"]}
    text = check_cli("attribute", run, "--map", bundle, "--metric", f"{LIVE},cpu_ns", "--html", page)
    assert f"balance of {LIVE}: 256 KiB = 224 to ops + 32 memory-layout" in text
    assert LIVE in page.read_text(encoding="utf-8")
    table = check_cli("attribute", run, "--map", bundle, "--metric", LIVE, "--format", "csv")
    rows = [row for row in csv.DictReader(io.StringIO(table)) if row["metric"] == LIVE]
    assert sum(int(row["attributed"]) for row in rows) == 262144
    refused = run_cli("attribute", run, "--map", bundle, "--metric", f"{LIVE},cpu_ns", "--format", "csv")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    unknown = run_cli("attribute", run, "--map", bundle, "--metric", "nothing")
    assert MOVED in unknown.stderr


def test_the_map_has_the_bytes_of_each_site(built: Built, recorded: Recorded) -> None:
    """The bytes of a kernel are those of its members, per call."""
    graph = load(built("hand_convnet")).graph
    result = tracemap.attribute(recorded("hand_convnet"), built("hand_convnet"), metrics=(MOVED,))
    for site in result.sites:
        cost = site.metrics[MOVED]
        size = sum(member.bytes for member in graph.site_by_id[site.site].members if isinstance(member.bytes, int))
        assert isinstance(site.calls, int)
        assert cost.total == size * site.calls
        assert cost.per_call is not None
        assert cost.per_call.median == size


@pytest.mark.parametrize("form", ["collapsed", "google-benchmark"])
def test_exports_have_them_if_named(form: str, built: Built, recorded: Recorded, tmp_path: Path) -> None:
    """The sums are those of `attribute`."""
    run, bundle, target = recorded("hand_attention"), built("hand_attention"), tmp_path / "out"
    check_cli("export", run, "--map", bundle, "--to", form, "-o", target, "--metric", LIVE)
    text = target.read_text(encoding="utf-8")
    if form == "collapsed":
        assert sum(int(line.rsplit(" ", 1)[1]) for line in text.splitlines()) == 262144
    else:
        assert sum(row[LIVE] for row in json.loads(text)["benchmarks"]) == 262144


def test_names_of_no_metric_are_refused(built: Built, recorded: Recorded, tmp_path: Path) -> None:
    run, bundle = recorded("hand_attention"), built("hand_attention")
    commands: list[list[str | Path]] = [
        ["report", bundle, run, "--metric", "nothing", "-o", tmp_path / "page.html"],
        ["export", run, "--map", bundle, "--to", "csv", "--metric", "cpu_ns", "-o", tmp_path / "x.csv"],
    ]
    for command in commands:
        refused = run_cli(*command)
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
        assert MOVED in refused.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("metric", ["module_bytes", pytest.param("compile_ns", marks=pytest.mark.long)])
def test_costs_of_building_are_those_of_the_bundle(
    metric: str, built: Built, recorded: Recorded, tmp_path: Path
) -> None:
    """Sums of ops and kernels are those that `show --cost` prints; the whole is the time or the file."""
    bundle = built("hand_attention")
    if metric == "compile_ns":
        bundle = tmp_path / "timed.tracemap"
        check_cli("build", SAMPLES / "models" / "hand_attention.mlir", "--timing", "-o", bundle)
    found = json_cli("attribute", recorded("hand_attention"), "--map", bundle, "--metric", metric)
    cost = json_cli("show", bundle, "--cost")["cost"]
    of_op = {
        own["op"]: own["duration_ns"]
        if metric == "compile_ns"
        else sum(own[part] for part in ("code_bytes", "data_bytes", "bytecode_bytes", "constant_bytes"))
        for own in cost["ops"]
    }
    ops = {op["op"]: op["metrics"][metric]["attributed"] for op in found["ops"]}
    assert sum(ops.values()) > 0
    assert ops == {op: of_op.get(op, 0) for op in ops}
    (total,) = (own for own in found["metrics"] if own["name"] == metric)
    assert total["measured"] == (cost["elapsed_ns"] if metric == "compile_ns" else cost["module_bytes"])
    by_kernel: dict[str, int] = {}
    kernel_of = {site.id: site.kernel for site in load(bundle).graph.sites}
    for site in found["sites"]:
        kernel = kernel_of[site["site"]]
        by_kernel[kernel] = by_kernel.get(kernel, 0) + site["metrics"][metric]["total"]
    for own in cost["kernels"]:
        assert by_kernel[own["kernel"]] >= sum(
            part["duration_ns" if metric == "compile_ns" else "bytes"] for part in own["ops"]
        )
    assert sum(by_kernel.values()) == total["attributed"]


def test_compile_time_needs_a_bundle_with_it(built: Built, recorded: Recorded) -> None:
    refused = run_cli("attribute", recorded("hand_mlp"), "--map", built("hand_mlp"), "--metric", "compile_ns")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "--timing" in refused.stderr
