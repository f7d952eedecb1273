"""What `tracemap doctor` can be asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tracemap.options.option import Options, option


@dataclass(frozen=True, slots=True)
class DoctorOptions(Options):
    """How findings are printed."""

    format: Literal["text", "json"] = option("text", "A table, or JSON.")
