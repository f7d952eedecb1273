"""The tab of the model: an op's cost stands on the op's own line, so that the attributed costs of lines add up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from tracemap.reports.costed import CostedMap
from tracemap.reports.page.line_use import LineUse
from tracemap.units import Unknown


def model_lines(costed: CostedMap, index: int) -> Mapping[int, LineUse]:
    """Lines of the `index`-th source that ops stand on, or have a part on."""
    uses: dict[int, LineUse] = defaultdict(LineUse)
    for op in costed.graph.ops:
        if isinstance(op.file, Unknown) or costed.source_index.get(op.file) != index:
            continue
        if not isinstance(op.line, Unknown):
            use = uses[op.line]
            use.ops[op.id] = None
            use.works.update(dict.fromkeys(costed.works_of(op)))
            use.attributed.update(costed.attributed(op.id))
        for part in op.parts:
            if not isinstance(part.line, Unknown) and part.line != op.line:
                uses[part.line].part_ops[op.id] = None
    for use in uses.values():
        for work in use.works:  # each once, however many ops of the line work in it
            use.inclusive.update(costed.total(work))
    return uses
