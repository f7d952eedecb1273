"""JSON output obeys its schemas; every key is there; unknown is null."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from msgspec import structs

from tests.builders import attribution, graph, op, site
from tests.reports.test_page import EXECUTES, GRAPH, TOTALS
from tests.schemas import printed, stored_schema, validator
from tracemap.attribution.model import UnattributedReason
from tracemap.core.codec import pretty_json
from tracemap.core.units import UNKNOWN
from tracemap.map.model import Evidence, Kernel, KernelLine, OpId, Outcome
from tracemap.options.results import Rule
from tracemap.reports.json_documents import shown_attribution, shown_map
from tracemap.runs.model import ElapsedParts

pytestmark = pytest.mark.quick

Json = dict[str, Any]


def objects(value: object) -> list[Json]:
    """Every object in a JSON value, outermost first."""
    if isinstance(value, dict):
        return [value, *(found for entry in value.values() for found in objects(entry))]
    return [found for entry in value for found in objects(entry)] if isinstance(value, list) else []


MAP = printed(shown_map(GRAPH))
COSTS = printed(shown_attribution(attribution(GRAPH, TOTALS, executes=EXECUTES)))


@pytest.mark.parametrize(("name", "value"), [("show", MAP), ("attribution", COSTS)])
def test_the_forms_obey_their_schemas(name: str, value: Json) -> None:
    validator(name).validate(value)


@pytest.mark.parametrize(("name", "value"), [("show", MAP), ("attribution", COSTS)])
def test_the_schemas_allow_no_key_more_or_less(name: str, value: Json) -> None:
    check = validator(name)
    for index, entry in enumerate(objects(value)):
        broken = copy.deepcopy(value)
        target = objects(broken)[index]
        target["surplus"] = {"unexpected": True}
        assert not check.is_valid(broken), entry
        fixed_keys = "cpu_ns" not in entry
        if fixed_keys:
            for key in entry:
                broken = copy.deepcopy(value)
                del objects(broken)[index][key]
                assert not check.is_valid(broken), key


def test_the_map_in_json() -> None:
    found = MAP["ops"][3]
    assert found == {
        "id": "op3",
        "name": "linalg.generic",
        "function": "main",
        "file": "model.mlir",
        "line": 4,
        "column": 5,
        "scope": ["h0", "attn"],
        "frames": [
            {"file": "net.py", "line": 1, "column": None, "function": None},
            {"file": "net.py", "line": 4, "column": None, "function": None},
            {"file": "net.py", "line": 4, "column": None, "function": None},
        ],
        "outcome": "dispatched",
        "reason": {"slug": "dispatched", "text": "does work in a site"},
        "sites": ["site0", "site1"],
    }
    assert MAP["sites"][3]["function"] is None
    assert MAP["sites"][2]["path"] == ["op1"]
    assert MAP["coverage"]["by_outcome"]["unknown"] == 0
    assert MAP["coverage"]["sites_with_members"] == 4


def test_unknown_is_null() -> None:
    value = printed(shown_map(graph((op(0, function=UNKNOWN, file=UNKNOWN),))))
    entry = value["ops"][0]
    assert [entry[key] for key in ("function", "file", "line", "column")] == [None] * 4
    validator("show").validate(value)


def test_steps_of_kernels() -> None:
    kernel = Kernel("k", ("site0",), (KernelLine(3, "arith.addf", (OpId.of(2),)),))
    map_ = structs.replace(GRAPH, kernels=(kernel,))
    value = printed(shown_map(map_))
    assert value["kernels"] == [
        {
            "name": "k",
            "sites": ["site0"],
            "text": None,
            "steps": [{"line": 3, "op_name": "arith.addf", "ops": ["op2"], "parent": None, "takes": []}],
            "loops": None,
            "instructions": None,
        }
    ]
    validator("show").validate(value)


def test_the_attribution_in_json() -> None:
    assert COSTS["metrics"][0] == {
        "name": "cpu_ns",
        "unit": "ns",
        "aggregation": "sum",
        "measured": 280,
        "attributed": 271,
        "unattributed": 9,
        "work": 280,
        "invocations": 2,
    }
    assert COSTS["run"] == {
        "functions": ["main"],
        "elapsed_ns": 10_000,
        "iterations": 2,
        "workers": 1,
        "device": "local-task",
        "elapsed": dict.fromkeys(ElapsedParts.__struct_fields__),
        "devices": [],
    }
    by_op = {entry["op"]: entry for entry in COSTS["ops"]}
    assert by_op["op3"]["calls"] == 4
    assert by_op["op3"]["metrics"]["cpu_ns"] == {
        "inclusive": 201,
        "attributed": 150,
        "low": 100,
        "high": 201,
        "likely_low": None,
        "likely_high": None,
        "uncertain": False,
        "per_invocation": {"median": 75, "median_low": None, "median_high": None, "p10": 75, "p90": 76, "max": 76},
    }
    assert COSTS["sites"][0]["metrics"]["cpu_ns"] == {
        "total": 101,
        "outliers": 0,
        "per_call": {"median": 50, "p10": 50, "p90": 51},
    }
    assert COSTS["unattributed"][0] == {"reason": "submission-and-queue", "metrics": {"duration_ns": 5, "cpu_ns": 9}}


def test_ops_that_never_ran_have_no_spread() -> None:
    map_ = graph((op(0, 1),), (site(0, 0),))
    value = printed(shown_attribution(attribution(map_, {"cpu_ns": {}})))
    assert value["ops"][0]["metrics"]["cpu_ns"]["per_invocation"]["median"] is None
    assert value["sites"][0]["metrics"]["cpu_ns"]["per_call"] is None
    validator("attribution").validate(value)


def test_the_schemas_list_the_words_of_the_code() -> None:
    show, costs = stored_schema("show")["$defs"], stored_schema("attribution")["$defs"]
    assert show["Outcome"]["enum"] == sorted(outcome.value for outcome in Outcome)
    assert list(show["Coverage"]["properties"]["by_outcome"]["properties"]) == [outcome.value for outcome in Outcome]
    assert show["Evidence"]["enum"] == sorted(entry.value for entry in Evidence)
    assert costs["Rule"]["enum"] == sorted(rule.value for rule in Rule)
    assert costs["UnattributedReason"]["enum"] == sorted(reason.value for reason in UnattributedReason)


def test_the_same_value_gives_the_same_text() -> None:
    text = pretty_json(shown_map(GRAPH))
    assert text == pretty_json(shown_map(GRAPH))
    assert text == json.dumps(MAP, ensure_ascii=False, indent=1) + "\n"
