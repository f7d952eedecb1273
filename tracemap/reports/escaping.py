"""What reports do to hostile text: names of models, kernels, threads and files are data and must take no effect.

One function for each place that text goes to; `tracemap/inert.py` has those of terminals and tables. What templates
insert is escaped by `html/document.py`, which alone else decides; `| safe` in a template may only follow
what was made here or by `highlight`.
"""

from __future__ import annotations

from tracemap.codec import encode

# A carriage return would be a line end for browsers, and NUL is not allowed in HTML.
_MARKUP = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;", "\r": None, "\0": "\ufffd"}
# Invisible characters that reorder text are shown by name: what stands on a line must be what one sees there.
_REORDERING = {chr(code): f"⟨U+{code:04X}⟩" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}
_MARKUP_TABLE = str.maketrans(_MARKUP | _REORDERING)

_UNSAFE_IN_SCRIPTS = "<>&\u2028\u2029"


def for_markup(text: str) -> str:
    """Source text as the content of an element."""
    return text.translate(_MARKUP_TABLE)


def for_script(value: object) -> str:
    """The JSON of a value as it may stand inside a `script` element, whatever texts it holds."""
    text = encode(value).decode()
    for char in _UNSAFE_IN_SCRIPTS:  # of megabytes, few characters are: replacing is far faster than a table
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def for_hook_text(name: str) -> str:
    """A name in the text of IREE's hook, `?` for each control character: threads name themselves."""
    return "".join(char if char.isprintable() else "?" for char in name)
