"""The compiled program: the sites that call kernels, with the ops that work in them, and the ways that a call may take.

Ids are opaque texts, `site<N>` and `transfer<N>`; kernels go by their name.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from tracemap.codec import Count, Positive, Record
from tracemap.graph.ops import Evidence, OpId
from tracemap.units import UNKNOWN, Integer, Text

CallPath = tuple[OpId, ...]
"""The call ops that lead to an op or a site, outermost first."""


class Membership(Record, frozen=True):
    """An op that does work in a site, and what that work is estimated to be.

    `operations` counts scalar arithmetic operations, `bytes` the site's memory traffic that is this op's;
    both are `UNKNOWN` where shapes are dynamic. `assumed_operations` and `assumed_bytes` are then what they would be if
    each size that the program does not know before were 128, or `UNKNOWN` as well: they tell how the members of a site
    compare. `root` marks the op that gave the kernel its name and shape.
    `path` are the call ops that lead to the op in this site, outermost first; `other_paths` those of each further call
    whose work is in this site, too: a function that is called twice in a row may become one kernel.
    """

    op: OpId
    evidence: Evidence
    root: bool
    operations: Integer
    bytes: Integer
    path: CallPath = ()
    other_paths: tuple[CallPath, ...] = ()
    assumed_operations: Integer = UNKNOWN
    assumed_bytes: Integer = UNKNOWN

    @property
    def paths(self) -> tuple[CallPath, ...]:
        """All the ways to the op in this site; each does the same work, as it is of the same function."""
        return (self.path, *self.other_paths)


class Site(Record, frozen=True):
    """One place in the host program that calls a kernel.

    `function` is the public function after inlining (`UNKNOWN` in initializers); `path` the call ops that lead to
    the site, outermost first; `command_buffer` the ordinal of its buffer's creation in the hal phase and
    `command_index` the place of its command in that buffer.
    """

    id: str
    ordinal: Count
    function: Text
    path: CallPath
    kernel: str
    initializer: bool
    command_buffer: Integer
    command_index: Integer
    members: tuple[Membership, ...]

    @property
    def root(self) -> Membership | None:
        """The root membership; None for a site without members (work that the compiler made up)."""
        return next((member for member in self.members if member.root), None)

    @property
    def calls(self) -> tuple[OpId, ...]:
        """The call ops that lead to the site or to a member of it: ops of several calls may be in one kernel."""
        paths = [self.path, *(path for member in self.members for path in member.paths)]
        return tuple(dict.fromkeys(call for path in paths for call in path))


class Step(Record, frozen=True):
    """An op of a kernel's final IR: its line in the kernel's text, its name, and the ops it came from.

    `ops` are those of all sites of the kernel; in one site it is of those among them that are its members.
    `parent` is the line of the op in whose region it stands, `UNKNOWN` for those that stand in the kernel itself.
    `takes` are the lines of the same region whose results it computes with.
    """

    line: Positive
    op_name: str
    ops: tuple[OpId, ...]
    parent: Integer = UNKNOWN
    takes: tuple[Positive, ...] = ()


class Kernel(Record, frozen=True):
    """A compiled dispatch function (an executable's export).

    `text` is the place of its final IR below the bundle's `kernels/`, `UNKNOWN` where the compilation was not ours.
    The machine code's debug lines are lines of that text. Lines have at most one step: the outermost op on it.
    """

    name: str
    sites: tuple[str, ...]
    steps: tuple[Step, ...] = ()
    text: Text = UNKNOWN


class Command(Record, frozen=True):
    """One command of a static command buffer, in recording order.

    `kernel` and `site` are `UNKNOWN` for all but dispatches;
    `workgroups` has three entries for dispatches (`UNKNOWN` where computed at run time), none for others; `merged` are
    further sites that the compiler made one command with `site`; `ops` are those that a copy, fill or update is of.
    """

    kind: Annotated[str, Meta(pattern="^(dispatch|barrier|copy|fill|update)$")]
    kernel: Text
    site: Text
    workgroups: tuple[Integer, ...] = ()
    merged: tuple[str, ...] = ()
    ops: tuple[OpId, ...] = ()


class CommandBuffer(Record, frozen=True):
    """A command buffer that the host program creates: the `ordinal`-th creation in the hal phase's text.

    `memoized` buffers are made once, at load; others anew on each call. `initializer`: runs only at load.
    """

    ordinal: Count
    function: Text
    memoized: bool
    initializer: bool
    commands: tuple[Command, ...]


class Transfer(Record, frozen=True):
    """A copy, fill or update that the host program submits by itself, outside of command buffers.

    `id` is `transfer<N>`; `ops` are those that it is of, none where the compiler made it up; `bytes` is how much it
    moves.
    """

    id: str
    kind: Annotated[str, Meta(pattern="^(copy|fill|update)$")]
    function: Text
    ops: tuple[OpId, ...]
    bytes: Integer


class Submission(Record, frozen=True):
    """A place in the host program that hands work to the device's queue.

    `buffers` are the ordinals of the command buffers that it may execute (several where the program chooses);
    `transfer` is the id of a transfer, `UNKNOWN` for executions; `next` are the places in `Schedule.submissions` that
    may follow, and `last` says whether the call may return after it.
    """

    buffers: tuple[Count, ...]
    transfer: Text
    next: tuple[Count, ...]
    last: bool


class Schedule(Record, frozen=True):
    """All ways that a call of an entry point may take, as its submissions show them; `first` are those that may begin.

    Functions that it calls are part of it, once for each call.
    """

    function: str
    first: tuple[Count, ...]
    submissions: tuple[Submission, ...]
