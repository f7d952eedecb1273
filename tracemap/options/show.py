"""What `tracemap show` can be asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tracemap.options.option import Options, option


@dataclass(frozen=True, slots=True)
class ShowOptions(Options):
    """How to print a map."""

    format: Literal["text", "json"] = option("text", "What to print.")
    remarks: bool = option(False, "What the compiler remarked, too, where the bundle was built with --remarks.")
    assembly: bool = option(False, "With a kernel: its instructions too.")
