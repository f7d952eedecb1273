"""What a comparison finds out: which ops are which, and what each costs more or less than before."""

from __future__ import annotations

import enum

from tracemap.codec import Record
from tracemap.graph.ops import OpId


class How(enum.StrEnum):
    """How an op of one model is known to be an op of the other, surest first."""

    IDENTITY = "identity"
    """It is the same model."""
    STRUCTURE = "structure"
    """In both models one op alone has this in front of it, or behind it, or around it."""
    NEIGHBOURS = "neighbours"
    """What it reads, and what reads it, is matched."""
    ORDER = "order"
    """It stands between the same ops, in the same order, and nothing says otherwise."""


class Match(Record, frozen=True):
    """An op before and after; `edited`: its attributes, types or parts are others."""

    before: OpId
    after: OpId
    how: How
    edited: bool
