"""An export: the cost of each kernel, as lines of Markdown."""

from __future__ import annotations

import gzip
from collections import Counter

from tracemap.reports.exports.charges import Ledger


def top_kernels(ledger: Ledger, /) -> str:
    """A line per kernel, the most expensive first; the last one is the unattributed cost."""
    costs = Counter[str]()
    for charge in ledger.charges:
        costs[charge.kernel or "unattributed"] += charge.amounts[0]
    metric = ledger.metrics[0]
    lines = [f"- {name}: {cost} {metric.unit}" for name, cost in costs.most_common()]
    return "\n".join([f"# {metric.name}: {metric.measured}", *lines, ""])


def compressed(ledger: Ledger, /) -> bytes:
    """The same, compressed."""
    return gzip.compress(top_kernels(ledger).encode(), mtime=0)
