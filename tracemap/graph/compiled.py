"""How long the compiler took: what a bundle's `compiled.json` holds.

It lies beside the map, which is the same byte for byte whenever the same model is built.
"""

from __future__ import annotations

from typing import Final, Literal

from tracemap.codec import Document
from tracemap.units import UNKNOWN, Integer


class CompileTimes(Document, frozen=True, kw_only=True):
    """The time of iree-compile as `build` runs it: in two runs, in which it writes dumps of its phases.

    `elapsed_ns`: on the wall; `cpu_ns`: of all processors, in hundredths of a second.
    """

    schema_version: Literal[1] = 1
    kind: Literal["compiled"] = "compiled"
    elapsed_ns: Integer = UNKNOWN
    cpu_ns: Integer = UNKNOWN


NOT_KEPT: Final = CompileTimes()
"""Of a bundle that does not tell."""
