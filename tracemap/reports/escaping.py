"""What reports do to hostile text: names of models, kernels, threads and files are data and must take no effect.

One function for each place that text goes to; `tracemap/inert.py` has those of terminals and tables. What templates
insert is escaped by `html/document.py`, which alone else decides; `| safe` in a template may only follow
what was made here or by `html/blocks.py`.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping

from tracemap.codec import encode
from tracemap.inert import REORDERING
from tracemap.reports.deflating import deflating

# A carriage return would be a line end for browsers, and NUL is not allowed in HTML. Invisible characters that reorder
# text are shown by name: what stands on a line must be what one sees there.
_SHOWN = {"\r": "", "\0": "\ufffd"} | {char: f"⟨U+{ord(char):04X}⟩" for char in REORDERING}
# A `>` in an element's text means nothing (HTML, 13.2.5.1: data state), and types of MLIR are full of them.
_MARKUP = {"&": "&amp;", "<": "&lt;"}


def as_shown(text: str) -> str:
    """Source text as one reads it in a page."""
    return _replaced(text, _SHOWN)


def for_markup(text: str) -> str:
    """Source text as the content of an element (not as an attribute: quotes stay, of which a source has many)."""
    return _replaced(as_shown(text), _MARKUP)


def _replaced(text: str, by_char: Mapping[str, str]) -> str:
    for char, instead in by_char.items():  # few occur: that is far faster than a table, which asks for each character
        text = text.replace(char, instead)
    return text


def for_script(value: object) -> Callable[[], str]:
    """The JSON of a value as it stands in a `script` element: compressed, as letters and digits that mean nothing.

    It is begun; what is returned waits for it.
    """
    compressed = deflating(encode(value))
    return lambda: b64encode(compressed()).decode()


def for_hook_text(name: str) -> str:
    """A name in the text of IREE's hook, `?` for each control character: threads name themselves."""
    return "".join(char if char.isprintable() else "?" for char in name)
