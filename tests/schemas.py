"""The JSON Schemas of what is stored and printed: `python -m tests.schemas` makes `tracemap/schemas/` of the types."""

from __future__ import annotations

import inspect
import json
import textwrap
from typing import Any

import msgspec
from jsonschema import Draft202012Validator

from tests.support import ROOT
from tracemap.commands.doctor import Findings
from tracemap.compare.bisection import Bisection
from tracemap.compare.model import Comparison, Comparisons
from tracemap.core.codec import Document, pretty_json
from tracemap.kernels.model import Bench, Numerics, Swapped, Tune
from tracemap.map.bundle_documents import BuildTiming, CompileTimes, Remarks, StoredCall, StoredEstimates
from tracemap.map.map_json import StoredMap
from tracemap.map.memory import MemoryPlan
from tracemap.reports.brief import Brief
from tracemap.reports.debug_info import DebugInfo
from tracemap.reports.editor import BundleCosts
from tracemap.reports.json_documents import (
    ShownAttribution,
    ShownAudit,
    ShownGains,
    ShownLowering,
    ShownMap,
    ShownMemory,
    ShownStats,
)
from tracemap.runs.model import RunHeader
from tracemap.store.model import StoreAdded, StoreCalls, StoreComparison, StoreCosts, StoreRuns, StoreTrends

FOLDER = ROOT / "tracemap" / "schemas"
DOCUMENTS: dict[str, tuple[type[Document], str]] = {
    "map": (StoredMap, "map.json of a bundle"),
    "call": (StoredCall, "call.json of a bundle: the inputs and parameters that it keeps"),
    "run": (RunHeader, "Header of a run: in Parquet's key-value metadata, or run.csv.json next to run.csv"),
    "show": (ShownMap, "tracemap show"),
    "audit": (ShownAudit, "tracemap audit"),
    "lowering": (ShownLowering, "tracemap lower"),
    "attribution": (ShownAttribution, "tracemap attribute"),
    "debug-info": (DebugInfo, "tracemap debug-info, and debug-info.json of its folder"),
    "what-if": (ShownGains, "tracemap what-if"),
    "lsp": (BundleCosts, "tracemap lsp --print"),
    "memory": (ShownMemory, "tracemap memory"),
    "memory-plan": (MemoryPlan, "memory.json of a bundle"),
    "remarks": (Remarks, "tracemap remarks, and remarks.json of a bundle"),
    "timing": (BuildTiming, "timing.json of a bundle"),
    "compiled": (CompileTimes, "compiled.json of a bundle"),
    "estimates": (StoredEstimates, "estimates.json of a bundle"),
    "diff": (Comparison, "tracemap diff"),
    "bisect": (Bisection, "tracemap bisect"),
    "diffs": (Comparisons, "tracemap diff --baseline"),
    "stats": (ShownStats, "tracemap stats"),
    "brief": (Brief, "--brief of every command with JSON"),
    "doctor": (Findings, "tracemap doctor"),
    "bench": (Bench, "tracemap bench"),
    "swap": (Swapped, "tracemap swap"),
    "tune": (Tune, "tracemap tune"),
    "numerics": (Numerics, "tracemap numerics"),
    "store-added": (StoreAdded, "tracemap store add"),
    "store-runs": (StoreRuns, "tracemap store list"),
    "store-costs": (StoreCosts, "tracemap store query"),
    "store-calls": (StoreCalls, "tracemap store sites"),
    "store-trends": (StoreTrends, "tracemap store trend"),
    "store-comparison": (StoreComparison, "tracemap store compare"),
}
"""Name of the schema -> the document and its title."""


def schema_text(name: str) -> str:
    """What the schema's file holds."""
    kind, title = DOCUMENTS[name]
    return _folded(schema(kind, name, title)) + "\n"


def schema(kind: type[Document], name: str, title: str) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a document: `name` is for its `$id`, descriptions are the docstrings."""
    (root,), components = msgspec.json.schema_components([kind], schema_hook=_own_schema, ref_template="#/$defs/{name}")
    for each in components.values():
        _tidy(each)
    made = components.pop(root["$ref"].removeprefix("#/$defs/"))
    version = made["properties"]["schema_version"]["enum"][0]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:tracemap:{name}:{version}",
        **made,
        "title": title,
        "$defs": components,
    }


def _tidy(made: dict[str, Any]) -> None:
    """Every key is always written: none is optional, and defaults mean nothing to readers."""
    if "description" in made:
        made["description"] = inspect.cleandoc(made["description"])
    if "properties" in made:
        made["required"] = list(made["properties"])
        for value in made["properties"].values():
            value.pop("default", None)
            value.pop("propertyNames", None)  # msgspec writes it from 0.23 on; schemas do not depend on its version


def _own_schema(kind: Any) -> dict[str, Any]:  # noqa: ANN401 - any type of a record's field
    return dict(kind.json_schema())


def _folded(value: object, indent: str = "", before: int = 0) -> str:
    """JSON with each object and list on one line where it fits there, so that a key reads as one line."""
    line = json.dumps(value, ensure_ascii=False)
    if len(indent) + before + len(line) < _WIDTH or not isinstance(value, dict | list):
        return line
    inner = indent + " "
    if isinstance(value, list):
        words = ",\n".join(inner + _folded(each, inner) for each in value)
        if not any(isinstance(each, dict | list) for each in value):
            # Items have no spaces; one that is broken at its hyphen is no JSON.
            fill = textwrap.TextWrapper(_WIDTH, inner, inner, break_on_hyphens=False, break_long_words=False).fill
            words = fill(line[1:-1])
        return f"[\n{words}\n{indent}]"
    keys = {key: f"{json.dumps(key)}: " for key in value}
    lines = (inner + name + _folded(value[key], inner, len(name)) for key, name in keys.items())
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}"


_WIDTH = 120


def stored_schema(name: str) -> dict[str, Any]:
    """The schema that the package brings."""
    return dict(json.loads((FOLDER / f"{name}.schema.json").read_text(encoding="utf-8")))


def validator(name: str) -> Draft202012Validator:
    """Checks JSON against the schema that the package brings."""
    Draft202012Validator.check_schema(stored_schema(name))
    return Draft202012Validator(stored_schema(name))


def printed(document: Document) -> dict[str, Any]:
    """The JSON of a document, as it is read back from standard output."""
    return dict(json.loads(pretty_json(document)))


if __name__ == "__main__":
    for each in DOCUMENTS:
        (FOLDER / f"{each}.schema.json").write_text(schema_text(each), encoding="utf-8")
