"""A model as a graph of values: which ops and arguments there are, and what each reads; what two models are matched by.

Calls of functions of the model are seen through: what is handed to a function is read by the ops inside that use the
argument, and what it returns by those that use the call: an op reads the same, be it in a function or not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tracemap.graph.ops import OpId
from tracemap.locations import UNKNOWN_LOCATION, Location
from tracemap.units import UNKNOWN, Integer, Unknown

OWN_TEXT: Final = "-"
"""The file of a location that the model does not state: where the op stands in the model's own text."""


@dataclass(frozen=True, slots=True)
class FlowNode:
    """An op, or an argument of a function that can be called from outside.

    `op` is unknown for arguments. `exact` is equal for nodes of one name with equal attributes, types and parts, in all
    models that were numbered together; `loose` for those of one name with as many operands and results. `reads`: for
    each operand the nodes whose results it may be, by their places; several where a function is called from several
    places. `holder`: the place of what a terminator ends, or of the function that a call calls; -1 for all others.
    `passes_on`: it is a call, or a return to one, that is seen through. `where`: its scope.

    What programs of other dialects are laid beside it by: `word`, what it does in a word that all dialects have, "" of
    what only gives structure; `shape`, of its first result; `location`, as the model has it, of which a place in the
    model's own text has the file `OWN_TEXT`.
    """

    op: OpId | Unknown
    name: str
    exact: int
    loose: int
    reads: tuple[tuple[int, ...], ...]
    holder: int = -1
    passes_on: bool = False
    where: tuple[str, ...] = ()
    word: str = ""
    shape: tuple[Integer, ...] = ()
    location: Location = UNKNOWN_LOCATION

    @property
    def is_argument(self) -> bool:
        """Whether it is an argument of a function, not an op."""
        return self.op is UNKNOWN


Flow = tuple[FlowNode, ...]
"""The nodes of a model in its order; what a node reads stands before it, but for what functions return."""
