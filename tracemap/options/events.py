"""What `tracemap events` can be asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tracemap.options.option import Options, option


@dataclass(frozen=True, slots=True)
class EventsOptions(Options):
    """Which events to list, and how."""

    all: bool = option(False, "Also the raw events of AMD's Zen 4, where this is one.")
    format: Literal["text", "json"] = option("text", "A table, or JSON with what the hook is told of each event.")
