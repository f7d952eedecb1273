"""What `tracemap run` can be asked."""

from __future__ import annotations

from dataclasses import dataclass

from tracemap.options.call import CallOptions
from tracemap.options.option import option
from tracemap.options.tolerance import ABSOLUTE, RELATIVE
from tracemap.units import UNKNOWN, Unknown


@dataclass(frozen=True, slots=True)
class RunOptions(CallOptions):
    """Which function to call, and what becomes of its outputs."""

    outputs: tuple[str, ...] = option(
        (),
        "Where an output goes, one per output: - (printed), @x.npy, @x.bin, +x.npy (appended), or nothing.  "
        "[default: printed]",
        "--output",
        metavar="SPEC",
    )
    expected_outputs: tuple[str, ...] = option(
        (),
        "An output as it should be, written as an input is, or (ignored); one per output. If one differs, the status "
        "is 1.",
        "--expected-output",
        metavar="SPEC",
    )
    atol: float | Unknown = option(UNKNOWN, ABSOLUTE, metavar="X", at_least=0)
    rtol: float | Unknown = option(UNKNOWN, RELATIVE, metavar="X", at_least=0)
    exact: bool = option(False, "Outputs must be what is expected to the last bit.")
    force: bool = option(False, "Replace files that exist.")
