"""The parts of README.md that are made from the code: `python -m tests.readme` writes them anew.

The tables of errors, residual reasons and columns of calls come from the package, the loops from `tracemap lower`, the
worked example from `demo/table.txt`, which `make demo` leaves. Each part stands between two comments that name it.
"""

from __future__ import annotations

import re

from tests.support import ROOT, check_cli
from tracemap.attribution.model import RESIDUAL_TEXTS
from tracemap.errors import error_kinds
from tracemap.measurements.hook.table import CALL_COLUMNS, EVENT_COLUMN

README = ROOT / "README.md"
DEMO_TABLE = ROOT / "demo" / "table.txt"


def error_table() -> str:
    """Each kind of error with cause and remedy."""
    rows = [f"| `{kind.slug}` | {kind.cause} | {kind.remedy} |" for kind in error_kinds()]
    return "\n".join(["| error | cause | remedy |", "|---|---|---|", *rows])


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
    """What the command of the README's example of `tracemap lower` prints."""
    lines = (line.rstrip() for line in check_cli("lower", *LOWERED, cwd=ROOT).splitlines())
    return "```text\n" + "\n".join(lines) + "\n```"


def part(name: str, text: str) -> str:
    """What stands between the comments of a part.

    Raises:
        AssertionError: there is no such part.
    """
    found = re.search(rf"<!-- {name} -->\n(.*?)\n?<!-- /{name} -->", text, re.DOTALL)
    assert found, f"README.md has no part {name!r}"
    return found[1]


def _replaced(text: str, name: str, content: str) -> str:
    part(name, text)
    before, _, rest = text.partition(f"<!-- {name} -->\n")
    _, _, after = rest.partition(f"<!-- /{name} -->\n")
    return f"{before}<!-- {name} -->\n{content}\n<!-- /{name} -->\n{after}"


def demo_excerpt(table: str, ops: int = 10) -> str:
    """Of the demo's table: what it says of the run, the most expensive ops, and the balance."""
    about, costly, *_, balance = re.split(r"\n\s*\n", table.strip())
    lines = [*about.splitlines(), "", *costly.splitlines()[: ops + 2], "…", "", *balance.splitlines()]
    return "\n".join(line.rstrip() for line in lines)


def main() -> None:
    """Write the parts anew; the worked example only where `make demo` has left its table."""
    text = README.read_text(encoding="utf-8")
    parts = {"errors": error_table(), "residual": residual_table(), "calls": call_table(), "lower": lower_example()}
    if DEMO_TABLE.exists():
        parts["demo"] = f"```text\n{demo_excerpt(DEMO_TABLE.read_text(encoding='utf-8'))}\n```"
    for name, content in parts.items():
        text = _replaced(text, name, content)
    README.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
