"""Escaping of hostile text for pages, and compressed data that pages carry."""

from __future__ import annotations

import json
import re
import zlib
from base64 import b64encode
from collections.abc import Callable
from functools import cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from tracemap.core.codec import encode
from tracemap.core.process.limits import usable_processors
from tracemap.core.sanitize import REORDERING, without_controls
from tracemap.core.units import Integer, Text, Unknown
from tracemap.map.model import Op, Site, TraceGraph

if TYPE_CHECKING:
    from tracemap.map.lowering import SourceOp


# ---- parallel zlib
#
# zlib compression on all processors.


_BLOCK: Final = 1 << 20
_WINDOW: Final = 1 << 15
"""Largest distance of a match (RFC 1951, 2)."""
LEVEL: Final = 4
"""Higher levels take twice the time to save a fourteenth of the size."""
_HEADER: Final = b"\x78\x5e"
"""zlib header: window of 32 KiB, fast level."""


def start_compression(data: bytes) -> Callable[[], bytes]:
    """Start to compress bytes in the background; the returned function waits for the result.

    The result is a standard zlib stream, and deterministic.
    """
    if len(data) <= _BLOCK:
        whole = zlib.compress(data, LEVEL)
        return lambda: whole
    from concurrent.futures import ThreadPoolExecutor

    # zlib releases the GIL while it compresses.
    pool = ThreadPoolExecutor(usable_processors())
    blocks = [pool.submit(_block, memoryview(data), begin) for begin in range(0, len(data), _BLOCK)]
    pool.shutdown(wait=False)
    check = zlib.adler32(data).to_bytes(4, "big")
    return lambda: b"".join((_HEADER, *(block.result() for block in blocks), check))


def _block(data: memoryview, begin: int) -> bytes:
    """Compress the block at `begin`, up to a byte boundary; the last block ends the stream."""
    window, end = data[max(0, begin - _WINDOW) : begin], begin + _BLOCK
    compressor = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS, zdict=window)
    return compressor.compress(data[begin:end]) + compressor.flush(
        zlib.Z_FINISH if end >= len(data) else zlib.Z_SYNC_FLUSH
    )


# ---- escaping
#
# Names of models, kernels, threads and files are untrusted data, and must not take effect in pages.
#
# There is one function per destination; `tracemap/core/sanitize.py` has those for terminals and tables. Templates
# escape by default (`html.py`). They may use `| safe` only on results of this module and of `html.py`.


# Browsers end lines at a carriage return, and HTML does not allow NUL. Other control characters and invisible ones that
# reorder text, are shown by name, so that readers see the real content of a line. A form feed is a space.
_ODD = re.compile(f"[\0-\x08\x0b\r-\x1f\x7f-\x9f{REORDERING}]")
_SHOWN = {"\r": "", "\0": "\ufffd"}
# The same characters in JSON. The pattern skips other escapes as a whole: `\\\\u001b` is a backslash and letters.
_ODD_IN_JSON = re.compile(f"\\\\(?:u00[01][0-9a-f]|[br])|[\x7f-\x9f{REORDERING}]")
_ESCAPES_OF_JSON = re.compile(rf"\\u00[01][0-9a-f]|\\.|[\x7f-\x9f{REORDERING}]")
_KEPT_OF_JSON: Final = frozenset((r"\u0009", r"\u000a", r"\u000c", r"\f", r"\n", r"\t", r"\\", r"\"", r"\/", r"\u"))
# `>` needs no escape in the text of an element (HTML, 13.2.5.1: data state), and types of MLIR have many of them.
_MARKUP = {"&": "&amp;", "<": "&lt;"}


def as_shown(text: str) -> str:
    """Source text as shown on a page: odd characters by name."""
    return _ODD.sub(lambda match: _name_of(match[0]), text) if _ODD.search(text) else text


def _name_of(char: str) -> str:
    return _SHOWN.get(char, f"⟨U+{ord(char):04X}⟩")


def _json_as_shown(text: str) -> str:
    """JSON text with `as_shown` applied to its strings."""
    return _ESCAPES_OF_JSON.sub(_shown_escape, text) if _ODD_IN_JSON.search(text) else text


def _shown_escape(match: re.Match[str]) -> str:
    escape = match[0]
    if escape in _KEPT_OF_JSON:
        return escape
    return _name_of(json.loads(f'"{escape}"') if escape.startswith("\\") else escape)


def for_markup(text: str) -> str:
    """Escape source text for the content of an element; not for attributes, as quotes stay."""
    text = as_shown(text)
    for char, entity in _MARKUP.items():  # far faster than str.translate, as these characters are rare
        text = text.replace(char, entity)
    return text


def for_script(value: object) -> Callable[[], str]:
    """Start to encode a value for a `script` element: as JSON with `as_shown` texts, compressed, in base64.

    The returned function waits for the result.
    """
    compressed = start_compression(_json_as_shown(encode(value).decode()).encode())
    return lambda: b64encode(compressed()).decode()


_NOT_IN_XML: Final = re.compile("[\ud800-\udfff\ufffe\uffff]")


def for_xml(text: str) -> str:
    """A text, without the characters that XML 1.0 cannot have (section 2.2), but with its line ends."""
    return _NOT_IN_XML.sub("\ufffd", "\n".join(without_controls(line) for line in text.split("\n")))


_MARKDOWN: Final = re.compile(r"[\\`*\[\]<>#|~&!{}@$]|(?<!\w)_|_(?!\w)|:(?=//)|(?<=www)\.", re.IGNORECASE)


def for_markdown(text: str) -> str:
    """Escape a text for one line or cell of Markdown: it has no effect there, and is no link."""
    return _MARKDOWN.sub(lambda match: f"\\{match[0]}", without_controls(text))


def for_hook_text(name: str) -> str:
    """A name for the text format of IREE's hook, with `?` for control characters, as threads choose their names."""
    return "".join(char if char.isprintable() else "?" for char in name)


# ---- labels of files, lines, ops and unknown values


@cache
def short_name(name: str) -> str:
    """The last part of a path-like name, as locations may have full paths."""
    return PurePosixPath(name).name or name


def file_line(file: Text, line: Integer) -> str:
    """`model.mlir:12`; `–` if the file is unknown."""
    if isinstance(file, Unknown):
        return "–"
    return short_name(file) if isinstance(line, Unknown) else f"{short_name(file)}:{line}"


def file_line_if_known(file: Text, line: Integer) -> str:
    """`model.mlir:12`; empty if file or line is unknown."""
    return "" if isinstance(file, Unknown) or isinstance(line, Unknown) else file_line(file, line)


def or_dash(value: Text | Integer) -> str:
    """The value, or `–` if unknown."""
    return "–" if isinstance(value, Unknown) else str(value)


def or_question_mark(value: Text | Integer) -> str:
    """The value, or `?` if unknown."""
    return "?" if isinstance(value, Unknown) else str(value)


def line_and_column(op: Op | SourceOp) -> str:
    """Line and column of an op; `?` if unknown."""
    return "?" if isinstance(op.line, Unknown) else f"{op.line}:{or_question_mark(op.column)}"


def lines_of(text: str) -> list[str]:
    r"""The lines of a text as compilers count them: only `\n` or `\r\n` ends a line."""
    # str.splitlines also splits at form feeds and U+2028, which would shift the numbers of later lines.
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    return lines


def op_line(op: Op) -> str:
    """The line of an op in the model, as `model.mlir:12`."""
    return file_line(op.file, op.line)


def root_and_line(graph: TraceGraph, site: Site) -> tuple[str, str]:
    """The root op of a dispatch site, and its line."""
    root = graph.op_by_id.get(site.root.op) if site.root else None
    return (f"{root.id} {root.name}", op_line(root)) if root else ("–", "–")
