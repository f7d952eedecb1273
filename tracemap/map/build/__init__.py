"""Makes the map: tags, fused ops, dispatch sites, outcomes and costs; `build` runs all steps."""

from __future__ import annotations
