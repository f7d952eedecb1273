"""Facts about the input model alone: data flow, origins, duplicates, idioms, scopes."""

from __future__ import annotations
