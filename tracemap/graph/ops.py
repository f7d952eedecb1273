"""The ops of a model as the user wrote it, and what became of each.

Ids are opaque texts, `op<N>`. Lines and columns are 1-based.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable

from tracemap.codec import Count, Record
from tracemap.units import UNKNOWN, Integer, Text

_OP_ID = re.compile(r"op(0|[1-9]\d{0,17})", re.ASCII)


class OpId(str):
    """The identity of an op: `op12`, where 12 is its number, an index in the model.

    The number counts all operations of the model before their own regions, those inside of ops included, so it sorts
    ops as they are written and finds them in lists by index. Texts sort otherwise: sort by `number`.
    """

    __slots__ = ()

    @classmethod
    def from_json(cls, value: object) -> OpId:
        """The id of its text; the inverse of the codec's encoding.

        Raises:
            ValueError: it is no text, or of another form.
        """
        if not isinstance(value, str) or _OP_ID.fullmatch(value) is None:
            raise ValueError("Expected an op's id, `op12`")
        return cls(value)

    @classmethod
    def json_schema(cls) -> dict[str, object]:
        """What `from_json` takes."""
        return {"type": "string", "pattern": f"^{_OP_ID.pattern}$"}

    @classmethod
    def of(cls, number: int) -> OpId:
        """The id of the op with an index among all operations of the model."""
        return cls(f"op{number}")

    @property
    def number(self) -> int:
        """Its index among all operations of the model."""
        return int(self[2:])


def in_order(ops: Iterable[OpId]) -> tuple[OpId, ...]:
    """Ops as they are written in the model, each once."""
    return tuple(sorted(set(ops), key=lambda op: op.number))


PHASES = ("input", "abi", "preprocessing", "global-optimization", "dispatch-creation", "flow", "stream", "hal")
"""The phases of the compiler in which ops are looked for, in order."""

SOURCE = "source"
"""Stands before the first phase: the model as written."""


class Fate(enum.StrEnum):
    """What became of an op. Where several apply, the first in this order."""

    DISPATCHED = "dispatched"
    """Does work in at least one site that runs on every call."""
    TRANSFER = "transfer"
    """A copy or fill command."""
    LOAD_TIME = "load_time"
    """Runs once, in an initializer."""
    HOST = "host"
    """Scalar or shape work, control flow."""
    CONSTANT = "constant"
    """A constant, or computed by the compiler."""
    FOLDED = "folded"
    """Became indexing or layout of a named member."""
    REMOVED = "removed"
    """Dead, or a duplicate of a named twin."""
    STRUCTURAL = "structural"
    """Functions, returns, globals."""
    UNKNOWN = "unknown"
    """Not classified: a defect, counted."""


class Evidence(enum.StrEnum):
    """How an op is known to be a member of a site, strongest first."""

    LOCATED = "located"
    """The op's own tag stands alone on an op of the site's body that does work, or that only moves its elements."""
    FUSED = "fused"
    """The op's tag is one of several on an op that does work, or the phases show that such an op does its work."""
    ABSORBED = "absorbed"
    """No location of the site's body names the op: its work is a part of what the body holds, or is done for it."""


class Reason(Record, frozen=True):
    """Why an op has its fate: a stable slug and a sentence for people.

    `inferred`: it rests on reasoning over the model alone, not on what the compiler's output carries.
    """

    slug: str
    text: str
    inferred: bool = False


class Frame(Record, frozen=True):
    """One frame of the program above the MLIR, e.g. a Python call; innermost first in `Op.frames`."""

    file: str
    line: Count
    column: Integer
    function: Text


class Part(Record, frozen=True):
    """An operation inside an op's own region. Evidence on it is evidence for its op; its line may carry heat."""

    name: str
    line: Integer
    column: Integer


class Op(Record, frozen=True):
    """An operation of the model as the user wrote it.

    `line` and `column` point at the op's name in `file`, the model's text kept in the bundle's `source/`.
    `own_location`: whether the model itself says where the op comes from, which tracemap's tags do not count for.
    `last_phase`: the last of `PHASES` after which the op is still located, by its own place or by a part of it
    (`SOURCE`: not even after the first; `UNKNOWN`: nobody looked).
    """

    id: OpId
    name: str
    function: Text
    file: Text
    line: Integer
    column: Integer
    scope: tuple[str, ...]
    frames: tuple[Frame, ...]
    fate: Fate
    reason: Reason
    parts: tuple[Part, ...] = ()
    own_location: bool = True
    last_phase: Text = UNKNOWN
