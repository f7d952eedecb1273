"""Pictures: trees that add up, rooflines by hand, families of names."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from dataclasses import replace

import pytest
from msgspec import structs

from tests.builders import MODEL, attribution, graph, op, site
from tests.released import embedded_libraries
from tests.reports.test_page import EXECUTES, GRAPH, TOTALS, page_of
from tests.support import ROOT
from tracemap.attribution.model import Attribution, Overhead, OverheadPlace, UnattributedReason, UnattributedRow
from tracemap.core.units import UNKNOWN
from tracemap.map.model import InnerOperation, OpId, TraceGraph
from tracemap.reports.html import asset
from tracemap.reports.page.model import Tree
from tracemap.reports.page.overview_tab import families_of, family_of_name
from tracemap.runs.model import UNKNOWN_PARTS, Peaks

pytestmark = pytest.mark.quick

COSTS = attribution(GRAPH, TOTALS, executes=EXECUTES)


def inclusive(tree: Tree, metric: int) -> dict[str, int]:
    """By the labels that lead to a node what is of it and of all below."""
    paths: list[str] = []
    found: dict[str, int] = defaultdict(int)
    for node in tree.nodes:
        paths.append(node.label if node.parent < 0 else f"{paths[node.parent]} > {node.label}")
        for around in range(paths[-1].count(" > ") + 1):
            found[" > ".join(paths[-1].split(" > ")[: around + 1])] += node.amounts[metric]
    return found


def test_a_tree_by_scope_has_ops_where_their_scopes_are() -> None:
    (by_scope, _) = page_of(GRAPH, COSTS).data.trees
    found = inclusive(by_scope, 0)
    assert found["all"] == 280
    assert found["all > h0"] == 51 + 150 + 35
    assert found["all > h0 > attn"] == 51 + 150
    assert found["all > h0 > attn > linalg.generic :4"] == 150  # op3, in two sites
    assert found["all > (no scope) > linalg.generic :8"] == 35
    assert found["all > no op > submission-and-queue"] == 9


def test_a_tree_by_source_is_the_stack_of_the_kept_files() -> None:
    (_, by_source) = page_of(GRAPH, COSTS).data.trees
    found = inclusive(by_source, 0)
    assert found["all > net.py:4"] == 51 + 150 + 35
    assert found["all > net.py:4 > net.py:1"] == 51 + 150
    assert found["all > model.mlir > @callee"] == 35  # op6 has no frame


@pytest.mark.parametrize("many", [1, 7000])
def test_trees_have_the_whole_work_and_few_nodes(many: int) -> None:
    """Of 7,000 equal ops none is wide enough; what is drawn has all of their cost."""
    ops = [op(number, number + 1, scope=(f"part{number % 3}",)) for number in range(many)]
    map_ = graph(ops, [site(0, *range(many))], sources=(MODEL,))
    costs = attribution(map_, {"cpu_ns": {"site0": 100 * many}})
    for tree in page_of(map_, costs).data.trees:
        assert inclusive(tree, 0)["all"] == costs.metrics[0].work == 100 * many
        assert len(tree.nodes) < 3 * min(many, 4) + 2
        if many > 1:
            words = [node.label for node in tree.nodes if node.kind == "rest"]
            assert sum(int(text.split()[0].replace(",", "")) for text in words) == many


def with_outliers(costs: Attribution, outliers: int) -> Attribution:
    """The same costs after calls of site0 took longer, in all metrics."""
    metrics = [
        structs.replace(metric, measured=metric.measured + outliers, unattributed=metric.unattributed + outliers)
        for metric in costs.metrics
    ]
    row = UnattributedRow(UnattributedReason.OUTLIERS, 1, {metric.name: outliers for metric in metrics})
    sites = [
        structs.replace(
            result,
            metrics={name: structs.replace(cost, outliers=outliers) for name, cost in result.metrics.items()},
        )
        if result.site == "site0"
        else result
        for result in costs.sites
    ]
    return replace(costs, metrics=tuple(metrics), unattributed=(*costs.unattributed, row), sites=tuple(sites))


def test_outliers_are_a_cell_and_trees_have_all_that_was_measured() -> None:
    for tree in page_of(GRAPH, with_outliers(COSTS, 70)).data.trees:
        for number, metric in enumerate(COSTS.metrics):
            found = inclusive(tree, number)
            assert found["all > no op > outliers"] == 70
            assert found["all"] == metric.measured + 70 > metric.work


def test_outliers_are_a_part_of_the_elapsed_time() -> None:
    """The calls of kernels took 28 ns and 7 ns of outliers, so a fifth of the kernels' 100 ns is outliers."""
    parts = structs.replace(UNKNOWN_PARTS, kernels_ns=100, queue_ns=30)
    late, overhead = with_outliers(COSTS, 7), (Overhead(OverheadPlace.CALL, (), 2, queue_ns=30),)
    run = structs.replace(late.run, elapsed=parts, elapsed_ns=130)
    elapsed = page_of(GRAPH, replace(late, run=run, overhead=overhead)).data.elapsed
    assert [(part.name, part.ns) for part in elapsed] == [("kernels", 80), ("outliers", 20), ("call boundary", 30)]
    steady = page_of(GRAPH, replace(COSTS, run=run, overhead=overhead)).data.elapsed
    assert [(part.name, part.ns) for part in steady] == [("kernels", 100), ("call boundary", 30)]


def test_a_map_alone_has_no_pictures() -> None:
    page = page_of(GRAPH, None)
    assert (page.data.trees, page.data.roofline, page.data.elapsed) == ((), None, ())


def test_a_roofline_is_of_the_work_of_all_calls() -> None:
    """Each membership has 100 operations and 64 bytes; of 2 Gop/s and 1 GB/s it is bound by bytes: 64 ns a call."""
    peaks = Peaks(operations_per_second=2_000_000_000, bytes_per_second=1_000_000_000, source="measured")
    costs = replace(COSTS, run=structs.replace(COSTS.run, peaks=peaks))
    roofline = page_of(GRAPH, costs).data.roofline
    assert roofline is not None
    points = {(point.kind, point.id): point for point in roofline.points}
    op3 = points["op", "op3"]
    calls = {result.site: result.calls for result in costs.sites if isinstance(result.calls, int)}
    of_op3 = calls["site0"] + calls["site1"]
    assert (op3.operations, op3.bytes) == (100 * of_op3, 64 * of_op3)
    assert (op3.time_ns, op3.roofline_ns) == (150, 64 * of_op3)
    kernel = points["kernel", "main$async_dispatch_0"]  # site0, with two members
    assert (kernel.operations, kernel.time_ns) == (200 * calls["site0"], 101)
    assert next(point.id for point in roofline.points if point.kind == "op") == "op3"


def test_ops_of_unknown_work_are_counted_and_left_out() -> None:
    sites = [
        structs.replace(
            each,
            members=tuple(
                structs.replace(member, bytes_read=UNKNOWN, bytes_written=UNKNOWN) for member in each.members
            ),
        )
        if each.id == "site2"
        else each
        for each in GRAPH.sites
    ]
    map_: TraceGraph = structs.replace(GRAPH, sites=tuple(sites))
    roofline = page_of(map_, attribution(map_, TOTALS)).data.roofline
    assert roofline is not None
    assert roofline.unknown == 2
    assert not {"op5", "op6"} & {point.id for point in roofline.points}


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("stablehlo.dot_general", "contraction"),
        ("stablehlo.convolution", "contraction"),
        ("linalg.conv_2d_nhwc_hwcf", "contraction"),
        ("linalg.batch_matmul_transpose_b", "contraction"),
        ("torch.aten.addmm", "contraction"),
        ("torch.aten.scaled_dot_product_attention", "contraction"),
        ("onnx.Gemm", "contraction"),
        ("onnx.MatMul", "contraction"),
        ("tosa.depthwise_conv2d", "contraction"),
        ("tosa.fully_connected", "contraction"),
        ("stablehlo.reduce", "reduction"),
        ("stablehlo.reduce_window", "reduction"),
        ("torch.aten.max_pool2d", "reduction"),
        ("torch.aten.native_layer_norm", "reduction"),
        ("torch.aten._softmax", "reduction"),
        ("onnx.GlobalAveragePool", "reduction"),
        ("onnx.Softmax", "reduction"),
        ("tosa.reduce_sum", "reduction"),
        ("linalg.pooling_nhwc_max", "reduction"),
        ("stablehlo.transpose", "movement"),
        ("stablehlo.gather", "movement"),
        ("stablehlo.dynamic_slice", "movement"),
        ("stablehlo.broadcast_in_dim", "movement"),
        ("torch.aten.embedding", "movement"),
        ("onnx.Concat", "movement"),
        ("stablehlo.add", "elementwise"),
        ("torch.aten.add.Tensor", "elementwise"),
        ("onnx.Relu", "elementwise"),
        ("stablehlo.exponential", "elementwise"),
        ("stablehlo.maximum", "elementwise"),
        ("util.call", "other"),
        ("</script>", "other"),
    ],
)
def test_families_are_told_by_names(name: str, family: str) -> None:
    assert family_of_name(name).value == family


def test_a_generic_op_is_of_the_family_of_its_kernel() -> None:
    kernels = ("main$async_dispatch_0_matmul_like_8x8x8_f32", "main$async_dispatch_1_reduction_8_f32", "odd")
    map_ = graph(
        [op(number) for number in range(4)], [site(number, number, kernel=name) for number, name in enumerate(kernels)]
    )
    found = families_of(map_)
    families = [found[OpId.of(number)].value for number in range(4)]
    assert families == ["contraction", "reduction", "other", "other"]


def test_a_generic_op_without_a_kernel_of_its_own_has_the_family_of_its_body() -> None:
    """The body of a reduction ends in what combines two elements, so it is not known from its body."""
    bodies = (("arith.addf", "math.tanh"), ("math.exp", "arith.addf"), ("arith.addf",), ())
    ops = [
        structs.replace(op(at), parts=tuple(InnerOperation(name, at, 7) for name in (*body, "linalg.yield")))
        for at, body in enumerate(bodies, start=1)
    ]
    found = families_of(graph([op(0), *ops], [site(0, 0, 1, 2, 3, 4, kernel="main_dispatch_0_matmul_8")]))
    assert [family.value for family in found.values()] == ["contraction", "elementwise", "other", "other", "other"]


def test_the_script_of_libraries_names_them_as_they_are_locked() -> None:
    """Every one that it is made of, with version and licence in front; no registry is named anywhere."""
    folder = ROOT / "tools" / "charts"
    lock = json.loads((folder / "package-lock.json").read_text())
    locked = {
        path.removeprefix("node_modules/"): each["version"]
        for path, each in lock["packages"].items()
        if path.startswith("node_modules/") and not each.get("dev")
    }
    front = asset("vendor/charts.js").split("*/")[0]
    named = dict(re.findall(r"([\w-]+) (\d+\.\d+\.\d+)(?=,|\n)", front))
    assert named
    assert named.items() <= locked.items()
    assert {each["name"]: each["version"] for each in embedded_libraries()} == named
    assert {each["licenses"][0]["license"]["id"] for each in embedded_libraries()} == {"ISC", "BSD-3-Clause"}
    assert set(json.loads((folder / "package.json").read_text())["dependencies"]) <= named.keys()
    assert "resolved" not in (folder / "package-lock.json").read_text()
