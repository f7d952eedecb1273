"""What `tracemap swap` can be asked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tracemap.options.call import CallOptions
from tracemap.options.option import option
from tracemap.options.tolerance import ABSOLUTE, RELATIVE
from tracemap.units import UNKNOWN, Unknown


@dataclass(frozen=True, slots=True)
class SwapOptions(CallOptions):
    """Which kernels of a bundle to replace by what, where the new bundle goes, and how the two are compared."""

    output: Path | None = option(None, "The new bundle, or with --dump the file.", "-o", "--output")
    dump: Literal["source", "configuration", "object"] | None = option(
        None, "Write the kernel as it is at this stage, to be edited, instead of replacing it."
    )
    sources_from: Path | None = option(
        None, "Replace kernels by the sources in this folder, EXECUTABLE.mlir each.", path="folder"
    )
    configurations_from: Path | None = option(None, "The same with configurations.", path="folder")
    objects_from: Path | None = option(None, "The same with objects.", path="folder")
    no_verify: bool = option(False, "Do not compare what the kernels compute with the original's reference.")
    verify_application: bool = option(
        False, "Call the functions of both bundles with the same inputs, and compare their outputs."
    )
    atol: float | Unknown = option(UNKNOWN, ABSOLUTE, metavar="X", at_least=0)
    rtol: float | Unknown = option(UNKNOWN, RELATIVE, metavar="X", at_least=0)
    exact: bool = option(False, "Outputs must be those of the original to the last bit.")
    pairs: int = option(
        6, "Record the two bundles so often, in turn; 0: not at all.", metavar="N", at_least=0, at_most=1000
    )
    seconds: float = option(1.0, "Measure no longer than this in each recording.", metavar="S", above=0, at_most=86_400)
    threshold: float = option(
        5.0, "Name an op whose cost changed by more than this, in percent.", metavar="PERCENT", at_least=0
    )
    force: bool = option(False, "Replace the output if it exists.")
    format: Literal["text", "json"] = option("text", "What to print.")
