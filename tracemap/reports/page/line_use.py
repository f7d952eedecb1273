"""What lines of a source file have to do with ops, and what they cost, before it is put into words."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tracemap.graph.ops import OpId


@dataclass(slots=True)
class LineUse:
    """What a line has to do with; dicts instead of sets, because their order is not left to chance.

    `ops` name the line, `part_ops` have only a part there; `works` are the sites and transfers that work for it;
    `attributed` and `inclusive` are the line's costs by metric name, as in `LineCost`.
    """

    ops: dict[OpId, None] = field(default_factory=dict)
    part_ops: dict[OpId, None] = field(default_factory=dict)
    works: dict[str, None] = field(default_factory=dict)
    attributed: Counter[str] = field(default_factory=Counter)
    inclusive: Counter[str] = field(default_factory=Counter)
