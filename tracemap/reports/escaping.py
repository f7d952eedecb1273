"""What reports do to hostile text: names of models, kernels, threads and files are data and must take no effect.

One function for each place that text goes to; `tracemap/inert.py` has those of terminals and tables. What templates
insert is escaped by `html/document.py`, which alone else decides; `| safe` in a template may only follow
what was made here or by `html/blocks.py`.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Callable
from typing import Final

from tracemap.codec import encode
from tracemap.inert import REORDERING
from tracemap.reports.deflating import deflating

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
