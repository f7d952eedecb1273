"""Ops in called functions: scope and Python line are those of the calls, in every output."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path

import networkx
import pytest

from tests.builders import built_graph
from tests.conftest import Built, Recorded
from tests.support import check_cli, json_cli
from tests.tables import printed_table
from tracemap.map.bundle import load
from tracemap.map.model import TraceGraph
from tracemap.map.query import select
from tracemap.reports.cost_lookup import MapCosts

MODEL = "jax_gpt2_4l"
"""`jnp.var` and `jnp.where` are functions of its own, whose ops have bare names."""


@pytest.fixture(scope="module")
def bundle(built: Built) -> Path:
    return built(MODEL)


@pytest.fixture(scope="module")
def run(recorded: Recorded) -> Path:
    return recorded(MODEL)


@pytest.fixture(scope="module")
def scopes(bundle: Path) -> dict[str, str]:
    """The scope of each op that works somewhere, by the map's memberships alone."""
    graph, found = load(bundle).graph, dict[str, list[str]]()
    for op, scope in _reached(graph):
        found.setdefault(op, []).append(scope)
    several = {op: list(dict.fromkeys(each)) for op, each in found.items()}
    assert any(not graph.op_by_id[op].scope and each != [""] for op, each in several.items())
    assert any(len(each) > 1 for each in several.values())
    return {op: each[0] + (f" +{len(each) - 1}" if each[1:] else "") for op, each in several.items()}


def _reached(graph: TraceGraph) -> Iterator[tuple[str, str]]:
    for site in graph.sites:
        for member in site.members:
            for path in member.paths:
                joined: tuple[str, ...] = ()
                for op in (*path, member.op):
                    own = graph.op_by_id[op].scope
                    joined = own if own[: len(joined)] == joined else joined + own
                yield member.op, "/".join(joined)


@pytest.fixture(scope="module")
def lines(run: Path, bundle: Path) -> dict[str, str]:
    """The Python line of each op, as the table of ops has it."""
    table = printed_table(check_cli("attribute", run, "--map", bundle, "--by", "op", "--top", "0"), "Ops by ")
    found = {row["op"]: row["python"] for row in table}
    assert "" not in found.values()
    return found


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.long
def test_scopes_and_lines_of_tables(run: Path, bundle: Path, scopes: dict[str, str], lines: dict[str, str]) -> None:
    text = check_cli("attribute", run, "--map", bundle, "--by", "op", "--top", "0")
    assert {row["op"]: row["scope"] for row in printed_table(text, "Ops by ")} == {op: scopes[op] for op in lines}
    found = [row for row in rows_of(check_cli("attribute", run, "--map", bundle, "--format", "csv")) if row["op"]]
    assert {row["op"]: row["scope"] for row in found} == {op: scopes[op] for op in lines}
    assert {row["op"]: row["python"].rpartition("/")[2] for row in found} == lines


def test_scopes_and_lines_of_the_map(bundle: Path, scopes: dict[str, str], lines: dict[str, str]) -> None:
    rows = {row["op"]: row for row in printed_table(check_cli("show", bundle), "Ops")}
    assert {op: rows[op]["scope"] for op in scopes} == scopes
    assert {op: rows[op]["python"] for op in lines} == lines


def test_scopes_of_a_store(run: Path, bundle: Path, scopes: dict[str, str], tmp_path: Path) -> None:
    check_cli("store", "add", run, "--map", bundle, "--store", tmp_path / "store")
    (group,) = json_cli("store", "query", "--store", tmp_path / "store", "--top", "0")["groups"]
    assert {op["op"]: op["scope"] for op in group["ops"]} == {op["op"]: scopes[op["op"]] for op in group["ops"]}


@pytest.mark.long
def test_scopes_of_a_comparison(run: Path, bundle: Path, scopes: dict[str, str]) -> None:
    words = ("diff", run, run, "--map-a", bundle, "--map-b", bundle)
    rows = rows_of(check_cli(*words, "--format", "csv"))
    assert {row["after"]: row["scope"] for row in rows if row["after"] in scopes} == scopes
    groups = json_cli(*words)["scopes"]
    assert {group["name"] for group in groups} <= set(scopes.values()) | {"(no scope)"}


@pytest.mark.long
@pytest.mark.parametrize("format_", ["graphml", "model-explorer"])
def test_scopes_of_graphs(run: Path, bundle: Path, scopes: dict[str, str], tmp_path: Path, format_: str) -> None:
    path = tmp_path / "graph"
    check_cli("export", run, "--map", bundle, "--to", format_, "--no-data-flow", "-o", path)
    if format_ == "graphml":
        nodes = dict(networkx.read_graphml(path).nodes(data=True))
        assert {op: nodes[op].get("scope", "") for op in scopes} == scopes
        return
    (graph,) = json.loads(path.read_text())["graphs"]
    told = {node["id"]: {each["key"]: each["value"] for each in node["attrs"]} for node in graph["nodes"]}
    assert {op: told[op].get("scope", "") for op in scopes} == scopes


FUSED = """\
func.func private @relu(%x: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %z = stablehlo.constant dense<0.0> : tensor<64x64xf32>
  %t = stablehlo.maximum %x, %z : tensor<64x64xf32>
  return %t : tensor<64x64xf32>
}
func.func @main(%x: tensor<64x64xf32>, %w: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %m = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %b = call @relu(%m) : (tensor<64x64xf32>) -> tensor<64x64xf32>
  return %b : tensor<64x64xf32>
}
"""  # noqa: E501 - the text is MLIR


def test_a_call_leads_to_its_ops_in_kernels_of_others(tmp_path: Path) -> None:
    """The root of the kernel is the product, to which no call leads."""
    graph = built_graph(FUSED, tmp_path)
    function, product, maximum, call = (next(op for op in graph.ops if op.line == line) for line in (1, 7, 3, 8))
    (site,) = graph.sites
    assert (site.path, site.calls) == ((), (call.id,))
    selected = select(graph, call.id)
    assert ({*selected.ops}, selected.sites) == ({call, product, maximum}, (site,))
    assert [kernel.name for kernel in selected.kernels] == [site.kernel]
    costed = MapCosts(graph, None)
    assert costed.works_of(call) == costed.works_of(maximum) == costed.works_of(function) == (site.id,)
