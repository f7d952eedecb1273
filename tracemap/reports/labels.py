"""How reports name things for people, and count lines: files, lines, ops, values that are unknown."""

from __future__ import annotations

from functools import cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from tracemap.graph.model import TraceGraph
from tracemap.graph.ops import Op
from tracemap.graph.program import Site
from tracemap.units import Integer, Text, Unknown

if TYPE_CHECKING:
    from tracemap.graph.lowering import SourceOp


@cache
def short_name(name: str) -> str:
    """The last part of a path-like name: locations may carry whole paths."""
    return PurePosixPath(name).name or name


def file_line(file: Text, line: Integer) -> str:
    """`model.mlir:12`; `–` where the file is unknown."""
    if isinstance(file, Unknown):
        return "–"
    return short_name(file) if isinstance(line, Unknown) else f"{short_name(file)}:{line}"


def file_line_if_known(file: Text, line: Integer) -> str:
    """The same, nothing where one of both is unknown."""
    return "" if isinstance(file, Unknown) or isinstance(line, Unknown) else file_line(file, line)


def or_dash(value: Text | Integer) -> str:
    """The value as it is, `–` where unknown."""
    return "–" if isinstance(value, Unknown) else str(value)


def or_question_mark(value: Text | Integer) -> str:
    """The value as it is, `?` where it is not known."""
    return "?" if isinstance(value, Unknown) else str(value)


def line_and_column(op: Op | SourceOp) -> str:
    """Line and column of an op, `?` where they are not known."""
    return "?" if isinstance(op.line, Unknown) else f"{op.line}:{or_question_mark(op.column)}"


def lines_of(text: str) -> list[str]:
    r"""The lines of a text as compilers count them: only `\n` (or `\r\n`) ends a line."""
    # str.splitlines also splits at form feeds and U+2028, and the numbers of all lines below would be wrong.
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    return lines


def op_line(op: Op) -> str:
    """Where an op stands in the model."""
    return file_line(op.file, op.line)


def root_and_line(graph: TraceGraph, site: Site) -> tuple[str, str]:
    """The root of a site, and where it stands."""
    root = graph.op_by_id.get(site.root.op) if site.root else None
    return (f"{root.id} {root.name}", op_line(root)) if root else ("–", "–")
