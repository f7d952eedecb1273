"""Escaping of hostile text, and labels of lines, ops and unknown values."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Callable
from functools import cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from tracemap.codec import encode
from tracemap.graph.model import Op, Site, TraceGraph
from tracemap.reports.parallel_zlib import deflating
from tracemap.sanitize import REORDERING
from tracemap.units import Integer, Text, Unknown

if TYPE_CHECKING:
    from tracemap.graph.lowering import SourceOp


# ---- escaping
#
# What reports do to hostile text: names of models, kernels, threads and files are data and must take no effect.
#
# One function for each place that text goes to; `tracemap/sanitize.py` has those of terminals and tables. What
# templates
# insert is escaped by `html/document.py`, which alone else decides; `| safe` in a template may only follow what was
# made here or by `html/document.py`.


# A carriage return would be a line end for browsers, and NUL is not allowed in HTML. Other controls, and invisible
# characters that reorder text, are shown by name: what stands on a line must be what one sees there. A form feed is a
# space.
_ODD = re.compile(f"[\0-\x08\x0b\r-\x1f\x7f-\x9f{REORDERING}]")
_SHOWN = {"\r": "", "\0": "\ufffd"}
# The same in JSON, and its other escapes, which are passed over whole: `\\\\u001b` is a backslash and letters.
_ODD_IN_JSON = re.compile(f"\\\\(?:u00[01][0-9a-f]|[br])|[\x7f-\x9f{REORDERING}]")
_ESCAPES_OF_JSON = re.compile(rf"\\u00[01][0-9a-f]|\\.|[\x7f-\x9f{REORDERING}]")
_KEPT_OF_JSON: Final = frozenset((r"\u0009", r"\u000a", r"\u000c", r"\f", r"\n", r"\t", r"\\", r"\"", r"\/", r"\u"))
# A `>` in an element's text means nothing (HTML, 13.2.5.1: data state), and types of MLIR are full of them.
_MARKUP = {"&": "&amp;", "<": "&lt;"}


def as_shown(text: str) -> str:
    """Source text as one reads it in a page."""
    return _ODD.sub(lambda match: _name_of(match[0]), text) if _ODD.search(text) else text


def _name_of(char: str) -> str:
    return _SHOWN.get(char, f"⟨U+{ord(char):04X}⟩")


def _json_as_shown(text: str) -> str:
    """A JSON text whose strings are as `as_shown` makes them."""
    return _ESCAPES_OF_JSON.sub(_shown_escape, text) if _ODD_IN_JSON.search(text) else text


def _shown_escape(match: re.Match[str]) -> str:
    found = match[0]
    if found in _KEPT_OF_JSON:
        return found
    return _name_of(json.loads(f'"{found}"') if found.startswith("\\") else found)


def for_markup(text: str) -> str:
    """Source text as the content of an element (not as an attribute: quotes stay, of which a source has many)."""
    text = as_shown(text)
    for char, instead in _MARKUP.items():  # few occur: that is far faster than a table, which asks for each character
        text = text.replace(char, instead)
    return text


def for_script(value: object) -> Callable[[], str]:
    """The JSON of a value as it stands in a `script` element: compressed, as letters and digits that mean nothing.

    Its texts are as one reads them in a page. It is begun; what is returned waits for it.
    """
    compressed = deflating(_json_as_shown(encode(value).decode()).encode())
    return lambda: b64encode(compressed()).decode()


def for_hook_text(name: str) -> str:
    """A name in the text of IREE's hook, `?` for each control character: threads name themselves."""
    return "".join(char if char.isprintable() else "?" for char in name)


# ---- labels
#
# How reports name things for people, and count lines: files, lines, ops, values that are unknown.


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
