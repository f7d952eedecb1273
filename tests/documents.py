"""The parts of the documents that are made from the code: `python -m tests.documents` writes them anew.

The sections of errors, the tables of residual reasons, columns of calls and JSON come from the package, the loops from
`tracemap lower`, the worked example from `demo/table.txt`, which `make demo` leaves. Each part stands between two
comments that name it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from tests.schema_page import schema_page
from tests.support import ROOT, check_cli
from tracemap.attribution.model import RESIDUAL_TEXTS
from tracemap.errors import TracemapError
from tracemap.measurements.hook.calls import CALL_COLUMNS, EVENT_COLUMN

README = ROOT / "README.md"
DOCS = ROOT / "docs"
DOCUMENTS = (README, *sorted(DOCS.glob("*.md")))
"""All that is written for users."""
BLOCK = re.compile(r"^```(\S*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
"""The language of a block of code, and its text; what Sphinx is told has a language in braces."""
DEMO_TABLE = ROOT / "demo" / "table.txt"


def error_sections() -> str:
    """A section for each kind of error, whose anchor is what stands in brackets behind a message: cause and remedy."""
    return "\n".join(
        f"## {kind.slug}\n\n{kind.__doc__}\n\nWhat helps: {kind.remedy}.\n" for kind in TracemapError.__subclasses__()
    )


def residual_table() -> str:
    """Each reason for a cost without an op."""
    rows = [f"| `{reason.value}` | {text} |" for reason, text in RESIDUAL_TEXTS.items()]
    return "\n".join(["| reason | what it is |", "|---|---|", *rows])


def call_table() -> str:
    """Each column of the table of recorded calls."""
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
    """What the command of the documents' example of `tracemap lower` prints."""
    lines = (line.rstrip() for line in check_cli("lower", *LOWERED, cwd=ROOT).splitlines())
    return "```text\n" + "\n".join(lines) + "\n```"


PARTS: dict[str, tuple[Path, Callable[[], str]]] = {
    "errors": (DOCS / "errors.md", error_sections),
    "residual": (DOCS / "attribution.md", residual_table),
    "calls": (DOCS / "hook.md", call_table),
    "schemas": (DOCS / "schemas.md", schema_page),
    "lower": (DOCS / "compiler.md", lower_example),
}
"""By the name of a part the document that it stands in, and what makes it."""


def is_current(name: str) -> bool:
    """Whether a part says what the code would write."""
    document, make = PARTS[name]
    found = _part(name).search(document.read_text(encoding="utf-8"))
    return found is not None and found[1] == make()


def write_part(document: Path, name: str, content: str) -> None:
    """Put a part between its comments.

    Raises:
        AssertionError: the document has no such part.
    """
    old = document.read_text(encoding="utf-8")
    new, found = _part(name).subn(lambda _: f"<!-- {name} -->\n{content}\n<!-- /{name} -->", old)
    assert found == 1, f"{document.name} has no part {name!r}"
    document.write_text(new, encoding="utf-8")


def _part(name: str) -> re.Pattern[str]:
    return re.compile(rf"<!-- {name} -->\n(.*?)\n<!-- /{name} -->", re.DOTALL)


def demo_excerpt(table: str, ops: int = 10) -> str:
    """Of the demo's table: what it says of the run, the most expensive ops, and the balance."""
    about, costly, *_, balance = re.split(r"\n\s*\n", table.strip())
    lines = [*about.splitlines(), "", *costly.splitlines()[: ops + 2], "…", "", *balance.splitlines()]
    return "\n".join(line.rstrip() for line in lines)


def main() -> None:
    """Write the parts anew; the worked example only where `make demo` has left its table."""
    for name, (document, make) in PARTS.items():
        write_part(document, name, make())
    if DEMO_TABLE.exists():
        excerpt = demo_excerpt(DEMO_TABLE.read_text(encoding="utf-8"))
        write_part(README, "demo", f"```text\n{excerpt}\n```")


if __name__ == "__main__":
    main()
