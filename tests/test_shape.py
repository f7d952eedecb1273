"""The shape of the code is a test: files fit one reading, functions fit a screen and take few decisions.

What is longer says why: a line of its module's docstring, or of its first comment, begins with `Long because:`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import ROOT

PACKAGE = ROOT / "tracemap"
MOST_LINES_OF_FILE = 350
MOST_LINES = 50
MOST_BRANCHES = 12
MEDIAN_LINES = 8
LINES_OF_NINE_IN_TEN = 20
REASON = re.compile(r"^[\s*/#]*Long because: \S+", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Shape:
    """A function: where it is, its lines from `def` to the last one, and its decisions, inner functions included."""

    file: str
    name: str
    lines: int
    branches: int

    @property
    def is_long(self) -> bool:
        return self.lines > MOST_LINES or self.branches > MOST_BRANCHES


def shapes_of(tree: ast.AST, file: str) -> Iterator[Shape]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield Shape(file, node.name, node.end_lineno - node.lineno + 1, sum(map(branches, ast.walk(node))))


def branches(node: ast.AST) -> int:
    """The decisions that a node alone takes: a chain of `and` or `or` takes one less than it has operands."""
    if isinstance(node, ast.If | ast.For | ast.AsyncFor | ast.While | ast.IfExp | ast.ExceptHandler | ast.match_case):
        return 1
    if isinstance(node, ast.BoolOp):
        return len(node.values) - 1
    return len(node.ifs) if isinstance(node, ast.comprehension) else 0


def package_files(*suffixes: str) -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*") if path.suffix in suffixes)


def package_shapes() -> list[Shape]:
    files = package_files(".py")
    return [
        shape
        for path in files
        for shape in shapes_of(ast.parse(path.read_text(encoding="utf-8")), str(path.relative_to(PACKAGE)))
    ]


def needs_reason(text: str, suffix: str) -> bool:
    """Whether a file is too long and does not say why where a reader looks first."""
    if len(text.splitlines()) <= MOST_LINES_OF_FILE:
        return False
    if suffix == ".py":
        return not REASON.search(ast.get_docstring(ast.parse(text)) or "")
    comment = re.match(r"\s*(?:/\*.*?\*/|(?://[^\n]*\n)+)", text, re.DOTALL)
    return not (comment and REASON.search(comment[0]))


def test_files_fit_one_reading_or_say_why_not() -> None:
    paths = package_files(".py", ".c", ".h", ".js")
    long = {
        str(path.relative_to(PACKAGE)) for path in paths if needs_reason(path.read_text(encoding="utf-8"), path.suffix)
    }
    assert sorted(long) == []


def test_functions_are_short() -> None:
    lengths = sorted(shape.lines for shape in package_shapes())
    assert lengths[len(lengths) // 2] <= MEDIAN_LINES
    assert lengths[len(lengths) * 9 // 10] <= LINES_OF_NINE_IN_TEN


def test_no_function_is_long_or_takes_many_decisions() -> None:
    """A command's function lists its options one by one, which is long but is no logic."""
    long = [shape for shape in package_shapes() if shape.is_long and not shape.file.startswith("cli/")]
    assert [f"{shape.file}: {shape.name}" for shape in long] == []


COUNTED = '''
async def outer(values):
    """Three operands, a filter of two, an else, a handler and two cases."""
    if values and values[0] or values[1]:
        pass
    elif [value for value in values if value if value > 1]:
        pass
    async for value in values:
        try:
            return 1 if value else 2
        except ValueError:
            while value:
                value -= 1
    def inner():
        match values:
            case 1: pass
            case _: pass
'''


def test_decisions_are_counted_as_said() -> None:
    """If, elif, two operands, two filters, for, conditional expression, except, while; and two cases inside."""
    outer, inner = shapes_of(ast.parse(COUNTED), "example.py")
    assert (outer.lines, outer.branches) == (16, 12)
    assert (inner.lines, inner.branches) == (4, 2)


@pytest.mark.parametrize(
    ("suffix", "beginning", "excused"),
    [
        (".py", '"""A module.\n\nLong because: its table stands in one place.\n"""', True),
        (".py", '"""A module."""\n# Long because: a comment further down is not looked at.', False),
        (".py", '"""A module.\n\nLong because:\n"""', False),
        (".c", "// A source.\n// Long because: the entries share their state.\n", True),
        (".js", "/* A script.\n * Long because: of a table. */", True),
        (".h", "int x;\n// Long because: no first comment.\n", False),
    ],
)
def test_long_files_are_excused_by_a_reason_only(suffix: str, beginning: str, excused: bool) -> None:
    assert needs_reason(beginning + "\n" * MOST_LINES_OF_FILE, suffix) is not excused
    assert not needs_reason("\n" * MOST_LINES_OF_FILE, suffix)
