"""What machine code is told of the text that it was made of: which lines are of ops, and what these do."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tracemap.units import Integer

NO_LINE: Final = 0
"""Lines count from 1."""


@dataclass(frozen=True, slots=True)
class LineOp:
    """The operation on a line.

    `around`: the line of the one that holds it, unknown for what stands in none; `takes`: the lines there whose results
    it computes with.
    """

    line: int
    name: str
    around: Integer
    takes: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class OpLines:
    """The lines of a kernel's text that are of ops, and the operations on them, by line."""

    owned: frozenset[int] = frozenset()
    operations: tuple[LineOp, ...] = ()

    @property
    def makers(self) -> dict[int, Sequence[int]]:
        """Of each of these lines those whose results it computes with."""
        return {each.line: each.takes for each in self.operations}


NO_LINES: Final = OpLines()
"""Of code of which no text is known."""


_AT_ONCE: Final = re.compile(
    r"arith\.(?!div|ceildiv|floordiv|rem)|math\.(absf|floor|ceil|round|roundeven|trunc|copysign)$"
)
"""What an instruction does, or a part of one: two of these are about as much work as one another."""
_NARROWS: Final = ("arith.trunci", "arith.truncf")


def taken_in(lines: OpLines, seen: Collection[int]) -> Mapping[int, frozenset[int]]:
    """Lines without any code whose work instructions of others do as well, with these lines.

    These are the ones that take its result, or that of what has no code either. Where nobody does, as it is stored,
    they are those that made what it takes; of what narrows numbers they always are, as its user takes them narrow. What
    reads memory, or takes long, does more than that.

    Args:
        lines: of a kernel's text.
        seen: the lines that have code.
    """
    makers, users = lines.makers, _turned(lines.makers)
    short = {each.line for each in lines.operations if _AT_ONCE.match(each.name)}
    lost = [line for line in makers if line in short and line not in seen]
    narrow = {each.line for each in lines.operations if each.name in _NARROWS}
    found: dict[int, frozenset[int]] = {}
    for line in lost:
        first, then = (makers, users) if line in narrow else (users, makers)
        others = (reached(line, first, seen)[0] or reached(line, then, seen)[0]) & short
        if others:
            found[line] = others
    return found


def _turned(makers: Mapping[int, Sequence[int]]) -> Mapping[int, Sequence[int]]:
    users: dict[int, list[int]] = defaultdict(list)
    for line, taken in makers.items():
        for other in taken:
            users[other].append(line)
    return users


def reached(
    line: int, ways: Mapping[int, Sequence[int]], seen: Collection[int]
) -> tuple[frozenset[int], frozenset[int]]:
    """The lines to which ways lead from one by lines without code: the first that have some, and those without."""
    found: set[int] = set()
    waiting, passed = [line], {line}
    while waiting:
        for other in ways.get(waiting.pop(), ()):
            if other in seen:
                found.add(other)
            elif other not in passed:
                passed.add(other)
                waiting.append(other)
    return frozenset(found), frozenset(passed - {line})
