"""Remarks of the compiler that are there on one side only, op by op."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from tracemap.comparison.model import Match, RemarkDifference
from tracemap.comparison.sides import Compared
from tracemap.graph.ops import OpId
from tracemap.graph.remarks import FIGURES, Remark
from tracemap.units import Text

_Said = tuple[str, Text, str]
"""What is said of an op: its name on both sides, the pass, the words."""


def remark_differences(
    before: Compared, after: Compared, matches: Sequence[Match]
) -> tuple[RemarkDifference, ...] | None:
    """Remarks that are new, then those that are gone; None where a bundle keeps none.

    An op has the same remark that is of the same pass and in the same words, whatever its kernel is called, wherever
    the step stands and whichever ops share it. What only counts is left out: it changes with everything.
    """
    if before.remarks is None or after.remarks is None:
        return None
    to_after = {match.before: match.after for match in matches}
    ones = _Side(before.remarks.remarks, lambda op: to_after.get(op, f"gone {op}"))
    twos = _Side(after.remarks.remarks, str)
    return (*_more("new", twos, ones), *_more("gone", ones, twos))


class _Side:
    """What is said of each op, and how often; `named`: what an op is called on both sides."""

    def __init__(self, remarks: Sequence[Remark], named: Callable[[OpId], str]) -> None:
        self.counts: Counter[_Said] = Counter()
        self.first: dict[_Said, tuple[int, OpId]] = {}
        """The first remark that says it, by its number, and the op there."""
        self.remarks = remarks
        for number, remark in enumerate(remarks):
            if remark.pass_name not in FIGURES:
                for op in remark.ops:
                    said = (named(op), remark.pass_name, remark.text)
                    self.counts[said] += remark.count
                    self.first.setdefault(said, (number, op))


def _more(kind: Literal["new", "gone"], there: _Side, other: _Side) -> Iterator[RemarkDifference]:
    """What is there more often than on the other side, ops of one remark together."""
    ops: dict[tuple[int, int], list[OpId]] = {}
    for said, (number, op) in there.first.items():
        more = there.counts[said] - other.counts[said]
        if more > 0:
            ops.setdefault((number, more), []).append(op)
    for (number, more), of in sorted(ops.items(), key=lambda item: item[0]):
        remark = there.remarks[number]
        yield RemarkDifference(kind, remark.kernel, remark.line, tuple(of), remark.pass_name, remark.text, more)
