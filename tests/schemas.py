"""The JSON Schemas of what is stored and printed: `python -m tests.schemas` makes `tracemap/schemas/` of the types."""

from __future__ import annotations

import json

from tests.support import ROOT
from tracemap.codec import Document, schema
from tracemap.measurements.header import RunHeader

FOLDER = ROOT / "tracemap" / "schemas"
DOCUMENTS: dict[str, tuple[type[Document], str]] = {
    "run": (RunHeader, "Header of a run: in Parquet's key-value metadata, or run.csv.json beside run.csv"),
}
"""Name of the schema -> the document and its title."""


def schema_text(name: str) -> str:
    """What the schema's file holds."""
    kind, title = DOCUMENTS[name]
    return json.dumps(schema(kind, name, title), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for each in DOCUMENTS:
        (FOLDER / f"{each}.schema.json").write_text(schema_text(each), encoding="utf-8")
