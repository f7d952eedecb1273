"""Constants that a module keeps beside its operations, as blobs (`dense_resource`); the bindings hide them."""

from __future__ import annotations

import re
from functools import cached_property

from tracemap.ir.parsing import Module

_NAME = re.compile(r"dense_resource<([^>]+)>")
_ALIGNMENT_BYTES = 4
"""In front of the data of a blob stands its alignment (mlir/lib/AsmParser/Parser.cpp, `parseAsBlob`)."""


class Blobs:
    """The blobs of a module, which is printed when the first one is asked for."""

    def __init__(self, module: Module) -> None:
        self._module = module

    @cached_property
    def _text(self) -> str:
        text: str = self._module.operation.get_asm()
        return text[text.rfind("{-#") :]

    def of(self, attribute: object) -> bytes:
        """The data of a constant's attribute; empty where there is none."""
        named = _NAME.match(str(attribute)[:400])
        if named is None:
            return b""
        found = re.search(rf'(?m)^\s*"?{re.escape(named[1])}"?: "0x([0-9A-Fa-f]*)"', self._text)
        return b"" if found is None else bytes.fromhex(found[1])[_ALIGNMENT_BYTES:]
