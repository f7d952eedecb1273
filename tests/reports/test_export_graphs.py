"""Exported graphs: nodes and edges match the map and model, and costs add up."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import networkx as nx
import pytest

import tracemap
from tests import builders
from tests.commands.test_errors import refused
from tests.conftest import Built, Recorded
from tests.reports.test_exports import Exporter, by_op, exported, measured, owner
from tests.support import check_cli
from tracemap.attribution.model import UnattributedReason
from tracemap.core.errors import TargetExists
from tracemap.map.query import scopes_of
from tracemap.reports.exports.charges import ledger_of
from tracemap.reports.exports.graphs import graphml, graphviz_document, network_of, quoted

__all__ = ["exported"]

MODEL = "jax_gpt2_4l"


def edges_of_text(bundle: Path) -> set[tuple[int, int]]:
    """Lines of ops on which a value is made and used, by its name in the text; names are of their function."""
    (model, *_), ops = tracemap.load(bundle).graph.sources, tracemap.load(bundle).graph.ops
    op_of_part = {part.line: op.line for op in ops for part in op.parts}
    found = edges_of_lines((bundle / "source" / model.path).read_text())
    edges = {(op_of_part.get(maker, maker), op_of_part.get(user, user)) for maker, user in found}
    return {(int(str(maker)), int(str(user))) for maker, user in edges if maker != user}


def edges_of_lines(text: str) -> set[tuple[int, int]]:
    """The same with lines of parts."""
    made: dict[str, int] = {}
    edges: set[tuple[int, int]] = set()
    for number, line in enumerate(text.split("\n"), start=1):
        if "func.func" in line:
            made = {}
            continue
        result = re.match(r"\s*(%[\w]+)(?::\d+)? = ", line)
        used = re.findall(r"%\w+", line[result.end() :] if result else line)
        edges |= {(made[name], number) for name in used if name in made}
        if result:
            made[result[1]] = number
    return edges


def read(path: Path) -> nx.DiGraph[str]:
    graph = nx.read_graphml(path)
    assert isinstance(graph, nx.DiGraph)
    return graph


def edges_of(graph: nx.DiGraph[str], kind: str) -> set[tuple[str, str]]:
    return {(tail, head) for tail, head, about in graph.edges.data() if about["kind"] == kind}


def costs_of_nodes(graph: nx.Graph[str], metric: str) -> Counter[str]:
    """What nodes of ops and residuals cost, by the names of other formats."""
    costs: Counter[str] = Counter()
    for node, attributes in graph.nodes.data():
        if attributes.get("kind") in ("op", "unattributed"):
            costs[node.replace("unattributed:", "(unattributed) ")] += int(attributes.get(metric, 0))
    return +costs


def test_graphml_adds_up_and_has_the_links_of_the_map(exported: Exporter, built: Built, recorded: Recorded) -> None:
    graph, map_ = read(exported(MODEL, "graphml")), tracemap.load(built(MODEL)).graph
    members = {(member.op, site.id) for site in map_.sites for member in site.members}
    for metric, total in measured(recorded(MODEL)).items():
        costs = costs_of_nodes(graph, metric)
        assert costs.total() == total
        assert costs == by_op(built, recorded, MODEL, metric)
        unattributed = sum(cost for name, cost in costs.items() if name.startswith("(unattributed)"))
        for kind in ("membership", "call"):
            edges = [each for *_, each in graph.edges.data() if each["kind"] == kind]
            assert sum(each.get(metric, 0) for each in edges) == total - unattributed
    assert edges_of(graph, "membership") == members
    for site in map_.sites:
        (kernel,) = graph.successors(site.id)
        assert graph.nodes[kernel]["name"] == site.kernel


def test_data_flow_is_that_of_the_models_text(exported: Exporter, built: Built) -> None:
    """What is handed to a function flows on to the ops inside, and what it returns to its calls."""
    graph = read(exported(MODEL, "graphml"))
    lines = {node: int(about.get("line", 0)) for node, about in graph.nodes.data()}
    flow = {(lines[tail], lines[head]) for tail, head in edges_of(graph, "data-flow")}
    names = {node: str(about.get("name")) for node, about in graph.nodes.data()}
    calls, returns = ({lines[node] for node in names if names[node] == f"func.{word}"} for word in ("call", "return"))
    expected = edges_of_text(built(MODEL))
    inside = {edge for edge in expected if edge[1] not in calls}
    assert inside <= flow
    assert len(inside) > 400
    handed = {maker for maker, user in expected if user in calls}
    assert all(maker in handed | returns for maker, _ in flow - inside)
    assert {user for maker, user in flow if maker in returns} == calls


@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")  # of pydot, which calls pyparsing's old names
def test_dot_is_read_by_networkx(exported: Exporter, built: Built, recorded: Recorded) -> None:
    pytest.importorskip("pydot", reason="pydot, which reads DOT, is not installed")
    model = "hand_mlp"
    graph = nx.nx_pydot.read_dot(exported(model, "dot"))
    plain: nx.DiGraph[str] = nx.DiGraph()
    for node, attributes in graph.nodes.data():
        plain.add_node(node.strip('"'), **{key.strip('"'): value.strip('"') for key, value in attributes.items()})
    for metric, total in measured(recorded(model)).items():
        assert costs_of_nodes(plain, f"metric {metric}").total() == total
        assert costs_of_nodes(plain, f"metric {metric}") == by_op(built, recorded, model, metric)
    again = read(exported(model, "graphml"))
    assert {(tail.strip('"'), head.strip('"')) for tail, head in graph.edges()} == set(again.edges)


def test_hostile_names_stay_in_their_quotes() -> None:
    """Of quotes, backslashes, markup and what XML does not have, nodes keep their number, and names stay readable."""
    name = 'a"]; evil [x="\\N\\" </data>&\x00\n\ufffe'
    map_ = builders.graph([builders.op(1, 3, name=name, scope=(name,))], [builders.site(0, 1, kernel=name)], name=name)
    ledger = ledger_of(map_, builders.attribution(map_, {"label": {"site0": 10}, "shape": {"site0": 7}}), "scope", ())
    network = network_of(ledger, [("op1", "op1")])
    text = graphviz_document(network, ledger)
    assert not re.search(r"^\s*evil", re.sub(r'"(?:[^"\\]|\\.)*"', "Q", text), re.MULTILINE)
    assert re.sub(r'"(?:[^"\\]|\\.)*"', "Q", text).count("[") == 1 + len(network) + network.number_of_edges()
    read = nx.read_graphml(io.BytesIO(graphml(network)))
    assert read.nodes["op1"]["name"] == name.replace("\x00", "\\x00").replace("\n", "\\n").replace("\ufffe", "\ufffd")
    assert (read.nodes["op1"]["metric label"], read.nodes["op1"]["metric shape"]) == (10, 7)
    assert quoted('a\\"') == '"a\\\\\\""'


def test_metrics_may_be_called_like_any_attribute() -> None:
    """Whatever stands on nodes and edges of a map with all that there is, a metric of its name stands beside it."""
    op = builders.op(1, 3, scope=("s",), frames=[("layers.py", 7)])
    map_ = builders.graph([op], [builders.site(0, 1)])

    def attributes(metrics: Sequence[str]) -> dict[str, dict[str, object]]:
        costs = {name: {"site0": number} for number, name in enumerate(metrics, start=1)}
        ledger = ledger_of(map_, builders.attribution(map_, costs), "scope", ())
        network = network_of(ledger, [("op1", "op1")])
        assert graphviz_document(network, ledger)
        read = nx.read_graphml(io.BytesIO(graphml(network)))
        return {**dict(read.nodes.data()), **{f"{tail} {head}": each for tail, head, each in read.edges.data()}}

    plain = attributes(["duration_ns"])
    assert plain["op1"]["python"] == "layers.py:7"
    of_runs = {"duration_ns", "kind", "kernel", "name"}  # columns that mean something else
    names = [*dict.fromkeys(name for each in plain.values() for name in each if name not in of_runs), "metric label"]
    found = attributes(names)
    for node, each in plain.items():
        assert found[node].items() >= {name: each[name] for name in each if name != "duration_ns"}.items()
    amounts = {int(str(value)) for name, value in found["op1"].items() if name.startswith("metric ")}
    assert amounts == {*range(1, len(names) + 1)}


def test_names_of_metrics_are_of_xml_and_mean_nothing_to_graphviz() -> None:
    """Graphviz acts on names such as `width`; XML lacks some characters, for which all of them get the same sign."""
    acted_on = ["width", "penwidth", "peripheries", "minlen", "weight", "fontsize", "URL", "head_lp"]
    names = [*acted_on, "x\ufffe", "x\uffff"]
    map_ = builders.graph([builders.op(1, 3)], [builders.site(0, 1)])
    costs = {name: {"site0": number} for number, name in enumerate(names, start=1)}
    ledger = ledger_of(map_, builders.attribution(map_, costs), "scope", ())
    network = network_of(ledger, [])
    written = {*re.findall(r'[\[ ]"([^"]*)"=', graphviz_document(network, ledger))}
    assert written >= {f"metric {name}" for name in names}
    assert not written & {*names}
    read = nx.read_graphml(io.BytesIO(graphml(network)))
    found = {name: value for name, value in read.nodes["op1"].items() if isinstance(value, int)}
    expected = {name: number for number, name in enumerate([*acted_on, "x\ufffd", "metric x\ufffd"], start=1)}
    assert {name: found[name] for name in expected} == expected


@pytest.mark.long
def test_a_bundle_without_its_model_has_no_data_flow(built: Built, recorded: Recorded, tmp_path: Path) -> None:
    bundle = tracemap.build(built("hand_mlp") / "source" / "hand_mlp.mlir", tmp_path / "m.tracemap", no_sources=True)
    run = recorded("hand_mlp")
    words = ("export", run, "--map", bundle.path, "--to", "graphml", "-o", "x.graphml")
    assert "--no-data-flow" in refused("usage-invalid", *words, cwd=tmp_path)
    target = tmp_path / "y.graphml"
    tracemap.export(run, "graphml", target, bundle, no_data_flow=True)
    assert not edges_of(read(target), "data-flow")
    assert edges_of(read(target), "membership")


# ---- Model Explorer


def test_model_explorer_has_a_graph_and_data_for_each_metric(
    exported: Exporter, built: Built, recorded: Recorded, tmp_path: Path
) -> None:
    document = json.loads(exported(MODEL, "model-explorer").read_text())
    (graph,) = document["graphs"]
    map_ = tracemap.load(built(MODEL)).graph
    nodes = {node["id"]: node for node in graph["nodes"]}
    assert set(nodes) == {op.id for op in map_.ops} | {f"unattributed:{reason.value}" for reason in UnattributedReason}
    for op in map_.ops:
        scopes = scopes_of(map_, op)
        layers = [str(op.function), *(scopes[0] if len(scopes) == 1 else op.scope)]
        assert nodes[op.id]["namespace"].split("/") == [part.replace("/", "∕") for part in layers]
    edges = {(edge["sourceNodeId"], node) for node, each in nodes.items() for edge in each["incomingEdges"]}
    assert edges == edges_of(read(exported(MODEL, "graphml")), "data-flow")
    for metric, total in measured(recorded(MODEL)).items():
        data = json.loads((tmp_path / f"{MODEL}.{metric}.json").read_text())[graph["id"]]
        results = {
            owner(node.replace("unattributed:", "(unattributed) ")): row["value"]
            for node, row in data["results"].items()
        }
        assert sum(results.values()) == total
        assert results == by_op(built, recorded, MODEL, metric)
        assert set(data["results"]) <= set(nodes)


def test_data_of_metrics_are_not_replaced(built: Built, recorded: Recorded, tmp_path: Path) -> None:
    beside = tmp_path / "g.duration_ns.json"
    beside.touch()
    with pytest.raises(TargetExists):
        tracemap.export(recorded("hand_mlp"), "model-explorer", tmp_path / "g.json", built("hand_mlp"))
    assert [path.name for path in tmp_path.iterdir()] == [beside.name]


def test_model_explorer_loads_the_adapter_and_the_data(exported: Exporter, built: Built, tmp_path: Path) -> None:
    """By Model Explorer's own loader; what its adapter shows and what is exported is one graph."""
    reason = "Model Explorer (ai-edge-model-explorer, 661 MB) is not installed"
    manager = pytest.importorskip("model_explorer.extension_manager", reason=reason).ExtensionManager
    loaded = manager(["tracemap.model_explorer"])
    loaded.load_extensions()
    command = {"cmdId": "convert", "extensionId": "tracemap", "modelPath": str(built(MODEL)), "settings": {}}
    answer = loaded.run_cmd({**command, "deleteAfterConversion": False})
    (graph,) = answer["graphCollections"][0]["graphs"]
    document = json.loads(exported(MODEL, "model-explorer").read_text())
    own = document["graphs"][0]
    assert answer["graphCollections"][0]["label"] == document["label"]
    for node, shown in zip(own["nodes"], graph["nodes"], strict=True):
        assert {key: shown[key] for key in node} == node
    data = pytest.importorskip("model_explorer.node_data_builder")
    written = json.loads((tmp_path / f"{MODEL}.cpu_ns.json").read_text())[graph["id"]]
    results = {node: data.NodeDataResult(**row) for node, row in written["results"].items()}
    gradient = [data.GradientItem(**each) for each in written["gradient"]]
    again = data.GraphNodeData(results=results, name=written["name"], gradient=gradient)
    assert {**json.loads(again.to_json_string()), **written} == json.loads(again.to_json_string())


def test_amounts_with_a_fraction_are_shown_as_such(built: Built, tmp_path: Path) -> None:
    kernel = tracemap.load(built("hand_mlp")).graph.kernels[0].name
    run = tmp_path / "run.csv"
    run.write_text(f"kernel,duration_ns,joules\n{kernel},1000,1.5\n{kernel},1000,2.25\n", encoding="utf-8")
    result = tracemap.attribute(run, built("hand_mlp"))
    shown = result._repr_html_()
    given = ("export", run, "--map", built("hand_mlp"), "--to", "dot", "--metric", "joules")
    labels = re.findall(r"joules ([^\"]+)", check_cli(*given, "-o", "-"))
    assert labels
    assert not [label for label in labels if "M" in label]
    assert "M of joules" not in shown


def test_beside_a_pipe_lie_no_files(built: Built, recorded: Recorded, tmp_path: Path) -> None:
    """A pipe has no name that others could be made of."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE) as reader:
        given = ("export", recorded("hand_mlp"), "--map", built("hand_mlp"), "--to", "model-explorer")
        check_cli(*given, "-o", pipe)
        text, _ = reader.communicate(timeout=60)
    assert json.loads(text)
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]
