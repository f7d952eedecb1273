"""What machine code is told of the text that it was made of: which lines are of ops, and which multiply or add."""

from __future__ import annotations

from dataclasses import dataclass

from tracemap.units import Integer


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """A multiplication, or an addition or subtraction, on a line of a kernel's text.

    `around`: the line of the operation that holds it, unknown for what stands in none.
    """

    line: int
    multiplies: bool
    around: Integer


@dataclass(frozen=True, slots=True)
class OpLines:
    """The lines of a kernel's text that are of ops, and what stands on them as far as it is of use; both by line."""

    owned: frozenset[int] = frozenset()
    arithmetic: tuple[Arithmetic, ...] = ()


NO_LINES = OpLines()
"""Of code of which no text is known."""
