"""How far outputs may be off: the words of options that several commands have."""

from __future__ import annotations

from typing import Final

ABSOLUTE: Final = "How far floats may be from what is expected.  [default: 1e-4; f16 1e-3, bf16 and narrower 1e-2]"
RELATIVE: Final = "How far beyond that, by the size of what is expected.  [default: 1e-5]"
