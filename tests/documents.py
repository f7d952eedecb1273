"""Generated parts of the documents: `python -m tests.documents` writes them.

The sections of errors and the tables of unattributed time, columns of calls and JSON come from the package. The loops
come from `tracemap lower`, the worked example from `demo/table.txt` of `make demo`. Each part is between two comments
with its name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from tests.schema_page import schema_page
from tests.support import ROOT, check_cli
from tracemap.attribution.model import UNATTRIBUTED_TEXTS
from tracemap.core.errors import TracemapError
from tracemap.runs.hook.calls import CALL_COLUMNS, EVENT_COLUMN

README = ROOT / "README.md"
DOCS = ROOT / "docs"
DOCUMENTS = (README, *sorted(DOCS.glob("*.md")))
"""All documents for users."""
BLOCK = re.compile(r"^```(\S*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
"""Language and text of a code block; directives of Sphinx have a language in braces."""
DEMO_TABLE = ROOT / "demo" / "table.txt"


def error_sections() -> str:
    """Return a section with cause and remedy for each kind of error; its anchor is the slug in messages."""
    return "\n".join(
        f"## {kind.slug}\n\n{kind.__doc__}\n\nRemedy: {kind.remedy}.\n" for kind in TracemapError.__subclasses__()
    )


def unattributed_table() -> str:
    """Return the table of reasons for unattributed time."""
    rows = [f"| `{reason.value}` | {text} |" for reason, text in UNATTRIBUTED_TEXTS.items()]
    return "\n".join(["| reason | what it is |", "|---|---|", *rows])


def call_table() -> str:
    """Return the table of columns of recorded calls."""
    rows = [
        f"| {f'`{column.name}`' if column in CALL_COLUMNS else column.name} | {_PLAIN_TYPES[column.type]} "
        f"| {column.unit or '–'} | {column.meaning} |"
        for column in (*CALL_COLUMNS, EVENT_COLUMN)
    ]
    return "\n".join(["| column | type | unit | meaning |", "|---|---|---|---|", *rows])


_PLAIN_TYPES = {"BIGINT": "integer", "VARCHAR": "text"}

LOWERED = (
    "tests/programs/lower/matmul_bias_relu.mlir",
    *("--pipeline", "builtin.module(func.func(convert-linalg-to-affine-loops))"),
    *("--pipeline", "builtin.module(func.func(affine-loop-fusion))"),
)


def lower_example() -> str:
    """Return the output of the documents' example of `tracemap lower`."""
    lines = (line.rstrip() for line in check_cli("lower", *LOWERED, cwd=ROOT).splitlines())
    return "```text\n" + "\n".join(lines) + "\n```"


PARTS: dict[str, tuple[Path, Callable[[], str]]] = {
    "errors": (DOCS / "errors.md", error_sections),
    "unattributed": (DOCS / "attribution.md", unattributed_table),
    "calls": (DOCS / "hook.md", call_table),
    "schemas": (DOCS / "schemas.md", schema_page),
    "lower": (DOCS / "compiler.md", lower_example),
}
"""Document and generator of each part, by name."""


def is_current(name: str) -> bool:
    """Return whether a part equals the generated text."""
    document, make = PARTS[name]
    match = _part(name).search(document.read_text(encoding="utf-8"))
    return match is not None and match[1] == make()


def write_part(document: Path, name: str, content: str) -> None:
    """Replace the text between the comments of a part.

    Raises:
        AssertionError: the document has no such part.
    """
    old = document.read_text(encoding="utf-8")
    new, count = _part(name).subn(lambda _: f"<!-- {name} -->\n{content}\n<!-- /{name} -->", old)
    assert count == 1, f"{document.name} has no part {name!r}"
    document.write_text(new, encoding="utf-8")


def _part(name: str) -> re.Pattern[str]:
    return re.compile(rf"<!-- {name} -->\n(.*?)\n<!-- /{name} -->", re.DOTALL)


def main() -> None:
    """Write all parts; the worked example only if `make demo` has left its table."""
    for name, (document, make) in PARTS.items():
        write_part(document, name, make())
    if DEMO_TABLE.exists():
        table = DEMO_TABLE.read_text(encoding="utf-8").rstrip()
        write_part(README, "demo", f"```text\n{table}\n```")


if __name__ == "__main__":
    main()
