"""The trace graph: ops of the model, the compiled program, and what links them."""

from __future__ import annotations

import enum
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Annotated, Final, Literal

from msgspec import Meta

from tracemap.codec import Count, Document, Positive, Record
from tracemap.diagnostics import Diagnostic
from tracemap.functions import Function
from tracemap.units import UNKNOWN, Integer, Text, plural

# ---- ops
#
# The ops of a model as the user wrote it, and what became of each.
#
# Ids are opaque texts, `op<N>`. Lines and columns are 1-based.


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


# ---- program
#
# The compiled program: the sites that call kernels, with the ops that work in them, and the ways that a call may take.
#
# Ids are opaque texts, `site<N>` and `transfer<N>`; kernels go by their name.


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


# ---- model
#
# The trace graph: ops of the model, the compiled program, and what links them; what a bundle's `map.json` holds.
#
# What one record names is in the same graph: `graph.references` refuses a map in which it is not.


class SourceFile(Record, frozen=True):
    """A text kept in the bundle.

    `name` is the path as locations name it; `path` its place below the bundle's `source/`; `language` is
    `mlir` or `python`. The first source file of a bundle is the model.
    """

    name: str
    path: str
    language: Literal["mlir", "python"]


class ModuleInfo(Record, frozen=True):
    """The compiled module: name, SHA-256 of `module.vmfb`, compiler version and the flags it was compiled with."""

    name: str
    sha256: str
    iree_compiler: str
    flags: tuple[str, ...]


LIBRARY = ("*site-packages/*", "*dist-packages/*", "*/lib/python3*", "<*")
"""File name patterns (as of a shell) of frames in libraries and generated code, where nothing else was asked for."""


def entry_name(kernel: str) -> str:
    """The name that a kernel's code has on a device: PTX knows no `$`, say, and IREE writes `_` for each such byte."""
    return re.sub(rb"[^A-Za-z0-9_]", b"_", kernel.encode()).decode()


ROWS_VERSION: Final = 3
"""The last version of `map.json` that was a record for each op and site; it is read as well."""


class TraceGraph(Document, frozen=True, kw_only=True, dict=True):
    """All that `tracemap build` found out about a model. As JSON it is a `map.json` of version 3.

    `schedules` are those of the entry points whose ways could be told. `library` are patterns of files that are not the
    user's own; frames of the user's come first.
    """

    schema_version: Literal[3] = ROWS_VERSION
    kind: Literal["map"] = "map"
    module: ModuleInfo
    functions: tuple[Function, ...]
    ops: tuple[Op, ...]
    sites: tuple[Site, ...]
    kernels: tuple[Kernel, ...]
    command_buffers: tuple[CommandBuffer, ...]
    transfers: tuple[Transfer, ...] = ()
    schedules: tuple[Schedule, ...] = ()
    sources: tuple[SourceFile, ...]
    diagnostics: tuple[Diagnostic, ...] = ()
    library: tuple[str, ...] = LIBRARY

    def __repr__(self) -> str:
        """How much there is of what: the whole has hundreds of thousands of letters."""
        ops, sites, kernels = plural(len(self.ops), "op"), plural(len(self.sites), "site"), len(self.kernels)
        return f"TraceGraph({self.module.name!r}, {ops}, {sites}, {plural(kernels, 'kernel')})"

    @cached_property
    def op_by_id(self) -> Mapping[str, Op]:
        """Ops by id."""
        return {op.id: op for op in self.ops}

    @cached_property
    def site_by_id(self) -> Mapping[str, Site]:
        """Sites by id."""
        return {site.id: site for site in self.sites}

    @cached_property
    def transfer_by_id(self) -> Mapping[str, Transfer]:
        """Transfers by id."""
        return {transfer.id: transfer for transfer in self.transfers}

    @cached_property
    def kernel_by_name(self) -> Mapping[str, Kernel]:
        """Kernels by name."""
        return {kernel.name: kernel for kernel in self.kernels}

    @cached_property
    def kernel_of_entry(self) -> Mapping[str, str]:
        """The names of kernels by those that their code has, and by their own.

        A name that is no kernel's own and that the code of two would have tells neither.
        """
        plain = [entry_name(kernel.name) for kernel in self.kernels]
        count = Counter(plain)
        found = {entry: kernel.name for entry, kernel in zip(plain, self.kernels, strict=True) if count[entry] == 1}
        return found | {kernel.name: kernel.name for kernel in self.kernels}

    @cached_property
    def sites_of_op(self) -> Mapping[OpId, tuple[str, ...]]:
        """Site ids by op id, in site order; only ops that are members of a site have an entry."""
        sites: dict[OpId, list[str]] = {}
        for site in self.sites:
            for member in site.members:
                sites.setdefault(member.op, []).append(site.id)
        return {op: tuple(ids) for op, ids in sites.items()}

    @cached_property
    def paths_of_op(self) -> Mapping[OpId, tuple[CallPath, ...]]:
        """The calls that lead to an op, outermost first: of an op that works in sites each way once, in site order.

        An op that works in none is reached as the ops of its function are that do; one that nothing is known of has no
        entry, nor have functions, which stand for themselves.
        """
        own: dict[OpId, dict[CallPath, None]] = {}
        around: dict[Text, dict[CallPath, None]] = {}
        for site in self.sites:
            for member in site.members:
                paths = dict.fromkeys(member.paths)
                own.setdefault(member.op, {}).update(paths)
                around.setdefault(self.op_by_id[member.op].function, {}).update(paths)
        ops = [op for op in self.ops if not op.name.endswith(".func")]
        reached = {op.id: own.get(op.id) or around.get(op.function, {}) for op in ops}
        return {op: tuple(paths) for op, paths in reached.items() if paths}
