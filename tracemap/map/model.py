"""The trace graph: ops of the model, the compiled program, and the links between them."""

from __future__ import annotations

import enum
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Annotated, Final, Literal

from msgspec import Meta

from tracemap.core.codec import Count, Document, Positive, Record
from tracemap.core.diagnostics import Diagnostic
from tracemap.core.functions import Function
from tracemap.core.units import UNKNOWN, Integer, Text, plural, sum_of

# ---- ops
#
# The ops of a model as the user wrote it, with their outcomes.
#
# Ids are opaque texts, `op<N>`. Lines and columns are 1-based.

_OP_ID = re.compile(r"op(0|[1-9]\d{0,17})", re.ASCII)


class OpId(str):
    """The identity of an op: `op12`, where 12 is its number, an index in the model.

    The number counts all operations of the model in preorder, including those inside regions. It is the order of the
    text, and an index into lists of operations. Texts sort differently, so sort by `number`.
    """

    __slots__ = ()

    @classmethod
    def from_json(cls, value: object) -> OpId:
        """Parse an id; the inverse of the codec's encoding.

        Raises:
            ValueError: the value is not a text of the form `op<N>`.
        """
        if not isinstance(value, str) or _OP_ID.fullmatch(value) is None:
            raise ValueError("Expected an op's id, `op12`")
        return cls(value)

    @classmethod
    def json_schema(cls) -> dict[str, object]:
        """The JSON Schema of the values that `from_json` accepts."""
        return {"type": "string", "pattern": f"^{_OP_ID.pattern}$"}

    @classmethod
    def of(cls, number: int) -> OpId:
        """The id of the op at an index among all operations of the model."""
        return cls(f"op{number}")

    @property
    def number(self) -> int:
        """The op's index among all operations of the model."""
        return int(self[2:])


def sort_ops(ops: Iterable[OpId]) -> tuple[OpId, ...]:
    """Sort ops by their position in the model, without duplicates."""
    return tuple(sorted(set(ops), key=lambda op: op.number))


PHASES = ("input", "abi", "preprocessing", "global-optimization", "dispatch-creation", "flow", "stream", "hal")
"""The compiler phases in which tracemap looks for ops, in order."""

SOURCE = "source"
"""The name of the model as written, which comes ahead of all phases."""


class Outcome(enum.StrEnum):
    """The outcome of an op. If several apply, the first in this order counts."""

    DISPATCHED = "dispatched"
    """Runs in at least one dispatch on every call."""
    TRANSFER = "copy"
    """A copy or fill command."""
    LOAD_TIME = "load-time"
    """Runs once, in an initializer, when the module is loaded."""
    HOST = "host"
    """Scalar work, shapes or control flow on the host."""
    CONSTANT = "constant-folded"
    """A constant, or computed by the compiler."""
    FOLDED = "fused-into-indexing"
    """Became indexing or layout of another op, which the reason names."""
    REMOVED = "removed"
    """Dead code, or a duplicate of an op that the reason names."""
    STRUCTURAL = "structural"
    """Functions, returns and globals."""
    UNKNOWN = "unknown"
    """Not classified. This is a defect, and it is counted."""


class Evidence(enum.StrEnum):
    """The reason to count an op as part of a dispatch, strongest first."""

    LOCATED = "located"
    """The op's tag is the only one on an operation of the dispatch that does work or moves the op's elements."""
    FUSED = "fused"
    """The op's tag is one of several on a working operation, or the phases show that such an operation does it."""
    ABSORBED = "absorbed"
    """No location in the dispatch names the op, but the dispatch holds its work or does work for it."""


class Reason(Record, frozen=True):
    """The reason for an op's outcome: a stable slug and a sentence for people.

    `inferred`: whether it was inferred from the model alone, without evidence in the compiler's output.
    """

    slug: str
    text: str
    inferred: bool = False


class Frame(Record, frozen=True):
    """A stack frame of the program that made the op, such as a Python call; `Op.frames` has the innermost first."""

    file: str
    line: Count
    column: Integer
    function: Text


class InnerOperation(Record, frozen=True):
    """An operation inside an op's own region. Evidence for it is evidence for the op; costs may fall on its line."""

    name: str
    line: Integer
    column: Integer


class Op(Record, frozen=True):
    """An operation of the model as the user wrote it.

    `line` and `column` point at the op's name in `file`, the model's text kept in the bundle's `source/`.
    `own_location`: whether the model itself states where the op comes from; tracemap's tags do not count.
    `last_phase`: the last of `PHASES` after which a location still names the op or a part of it (`SOURCE`: not even
    after the first phase; `UNKNOWN`: not examined). `node`: the name of its ONNX node, with the node's scope.
    """

    id: OpId
    name: str
    function: Text
    file: Text
    line: Integer
    column: Integer
    scope: tuple[str, ...]
    frames: tuple[Frame, ...]
    outcome: Outcome
    reason: Reason
    parts: tuple[InnerOperation, ...] = ()
    own_location: bool = True
    last_phase: Text = UNKNOWN
    node: str = ""


# ---- program
#
# The compiled program: the dispatch sites, the ops in their kernels, and the possible schedules of a call.
#
# Ids are opaque texts, `site<N>` and `transfer<N>`. The identity of a kernel is its name.

CallPath = tuple[OpId, ...]
"""The chain of call ops that leads to an op or a dispatch site, outermost first."""


class Membership(Record, frozen=True):
    """An op in a dispatch, with the estimated work of the op there.

    `operations` counts scalar arithmetic operations. `bytes_read` and `bytes_written` are this op's part of the
    dispatch's memory traffic. All are `UNKNOWN` if shapes are dynamic. `assumed_operations` and `assumed_bytes` (read
    and written) are the values if each dynamic size were 128, or `UNKNOWN` as well; they only compare the ops of one
    dispatch. `root`: whether the kernel has its name and loop nest from this op. `path`: the call ops that lead to the
    op in this dispatch, outermost first. `other_paths`: further paths of the op in this dispatch, since a function that
    is called twice in a row may become one kernel.
    """

    op: OpId
    evidence: Evidence
    root: bool
    operations: Integer
    bytes_read: Integer
    bytes_written: Integer
    path: CallPath = ()
    other_paths: tuple[CallPath, ...] = ()
    assumed_operations: Integer = UNKNOWN
    assumed_bytes: Integer = UNKNOWN

    @property
    def bytes(self) -> Integer:
        """Bytes read and written."""
        return sum_of((self.bytes_read, self.bytes_written))

    @property
    def paths(self) -> tuple[CallPath, ...]:
        """All call paths to the op in this dispatch; all do the same work, since the function is the same."""
        return (self.path, *self.other_paths)


class Site(Record, frozen=True):
    """A place in the host program that launches a kernel.

    `function` is the public function after inlining (`UNKNOWN` in initializers). `path` has the call ops that lead to
    the site, outermost first. `command_buffer` is the ordinal of its command buffer's creation in the hal phase.
    `command_index` is the index of its command in that buffer.
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
        """The root membership; None for a site without ops, whose work the compiler added."""
        return next((member for member in self.members if member.root), None)

    @property
    def calls(self) -> tuple[OpId, ...]:
        """The call ops that lead to the site or to an op in it; one kernel may hold ops of several calls."""
        paths = [self.path, *(path for member in self.members for path in member.paths)]
        return tuple(dict.fromkeys(call for path in paths for call in path))


class KernelLine(Record, frozen=True):
    """A line of a kernel's final IR: its operation, and the ops that this came from.

    `ops` are ops of all sites of the kernel; for one site, only the ops in that dispatch count.
    `parent` is the line of the operation whose region holds it, `UNKNOWN` at the top level of the kernel.
    `takes` are the lines of the same region whose results are its operands.
    """

    line: Positive
    op_name: str
    ops: tuple[OpId, ...]
    parent: Integer = UNKNOWN
    takes: tuple[Positive, ...] = ()


class Kernel(Record, frozen=True):
    """A compiled dispatch function (an executable's export).

    `text` is the path of its final IR below the bundle's `kernels/`, `UNKNOWN` if tracemap did not run the compiler.
    The machine code's debug lines are lines of that text. A line has at most one step: the outermost operation on it.
    """

    name: str
    sites: tuple[str, ...]
    steps: tuple[KernelLine, ...] = ()
    text: Text = UNKNOWN


class Command(Record, frozen=True):
    """A command of a static command buffer, in recording order.

    `kernel` and `site` are `UNKNOWN` for all but dispatches.
    `workgroups` has three entries for dispatches (`UNKNOWN` if computed at run time), none for others. `merged` are
    further sites that the compiler merged into the command of `site`. `ops` are the ops of a copy, fill or update;
    `bytes` is its size.
    """

    kind: Annotated[str, Meta(pattern="^(dispatch|barrier|copy|fill|update)$")]
    kernel: Text
    site: Text
    workgroups: tuple[Integer, ...] = ()
    merged: tuple[str, ...] = ()
    ops: tuple[OpId, ...] = ()
    bytes: Integer = UNKNOWN


class CommandBuffer(Record, frozen=True):
    """A command buffer that the host program creates: the `ordinal`-th creation in the hal phase's text.

    `memoized`: created once, when the module is loaded, instead of on each call. `initializer`: runs only at load time.
    """

    ordinal: Count
    function: Text
    memoized: bool
    initializer: bool
    commands: tuple[Command, ...]


class Transfer(Record, frozen=True):
    """A copy, fill or update that the host program submits by itself, outside of command buffers.

    `id` is `transfer<N>`; `ops` are the ops that it belongs to, none if the compiler added it; `bytes` is its size.
    """

    id: str
    kind: Annotated[str, Meta(pattern="^(copy|fill|update)$")]
    function: Text
    ops: tuple[OpId, ...]
    bytes: Integer


class Submission(Record, frozen=True):
    """A place in the host program that submits work to the device's queue.

    `buffers` are the ordinals of the command buffers that it may execute (several if the program chooses).
    `transfer` is the id of a transfer, `UNKNOWN` for executions. `next` are the indices in `Schedule.submissions` that
    may follow. `last` is whether the call may return after it. `control` are the loops and conditionals that decide
    whether it runs, outermost first. `waits` is whether the host always waits for the device just before it.
    """

    buffers: tuple[Count, ...]
    transfer: Text
    next: tuple[Count, ...]
    last: bool
    control: tuple[OpId, ...] = ()
    waits: bool = False


class Schedule(Record, frozen=True):
    """All possible orders of submissions in an invocation; `first` are the indices that may begin.

    It includes the submissions of functions that the entry point calls, once for each call.
    """

    function: str
    first: tuple[Count, ...]
    submissions: tuple[Submission, ...]


# ---- model
#
# All names in a record resolve within the same graph: `map_json.check_references` rejects a map in which one does not.


class SourceFile(Record, frozen=True):
    """A text kept in the bundle.

    `name` is the path that locations state; `path` is its path below the bundle's `source/`; `language` is
    `mlir` or `python`. The first source file of a bundle is the model.
    """

    name: str
    path: str
    language: Literal["mlir", "python"]


NATIVE_MODULE_NAME: Final = "module.so"


class ModuleInfo(Record, frozen=True):
    """The compiled module: name, SHA-256 of its file, compiler version and compiler flags.

    `file`: its name in the bundle; `module.so` is native code that MLIR's own tools compiled, which runs without IREE.
    """

    name: str
    sha256: str
    iree_compiler: str
    flags: tuple[str, ...]
    file: Literal["module.vmfb", "module.so"] = "module.vmfb"

    @property
    def is_native(self) -> bool:
        """Whether it is native code."""
        return self.file == NATIVE_MODULE_NAME


LIBRARY = ("*site-packages/*", "*dist-packages/*", "*/lib/python3*", "<*")
"""The default shell patterns for files of libraries and generated code."""


def entry_name(kernel: str) -> str:
    """The name of a kernel's code on a device: IREE writes `_` for each byte that PTX, for example, cannot have."""
    return re.sub(rb"[^A-Za-z0-9_]", b"_", kernel.encode()).decode()


MAP_VERSION: Final = 10
"""Version of `map.json`.

1: first; 2: kernels have texts, steps have parents; 3: no coverage, ops do not name sites; 4: tables by column;
5: an op may have several call paths in one site; 6: outcomes have the glossary's names; 7: ops name their ONNX nodes;
8: submissions have control flow; 9: bytes read and written apart, and those of copies and
fills; 10: the module's file, for native code.
"""


class TraceGraph(Document, frozen=True, kw_only=True, dict=True):
    """Everything that `tracemap build` knows about a model. `map.json` has its large lists by column.

    `schedules` cover the entry points whose control flow tracemap understands. `library` are file patterns of frames
    that are not the user's own; the user's frames come first.
    """

    schema_version: Literal[10] = MAP_VERSION
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
        """The number of ops, sites and kernels, since the whole map has hundreds of thousands of characters."""
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
    def buffer_transfers(self) -> Mapping[tuple[int, int], Transfer]:
        """The copies and fills in command buffers, by buffer and index, for devices that time each of them.

        Their ids are `command<buffer>.<index>`.
        """
        return {
            (buffer.ordinal, index): Transfer(
                f"command{buffer.ordinal}.{index}", command.kind, buffer.function, command.ops, command.bytes
            )
            for buffer in self.command_buffers
            for index, command in enumerate(buffer.commands)
            if command.kind not in ("dispatch", "barrier")
        }

    @cached_property
    def all_transfers(self) -> tuple[Transfer, ...]:
        """The transfers of the host program, then those in command buffers."""
        return (*self.transfers, *self.buffer_transfers.values())

    @cached_property
    def transfer_by_id(self) -> Mapping[str, Transfer]:
        """Transfers by id, with those in command buffers."""
        return {transfer.id: transfer for transfer in self.all_transfers}

    @cached_property
    def kernel_by_name(self) -> Mapping[str, Kernel]:
        """Kernels by name."""
        return {kernel.name: kernel for kernel in self.kernels}

    @cached_property
    def kernel_of_entry(self) -> Mapping[str, str]:
        """Kernel names by the names of their machine code, and by their own names.

        A code name that two kernels share, and that is no kernel's own name, has no entry.
        """
        entries = [entry_name(kernel.name) for kernel in self.kernels]
        count = Counter(entries)
        unique = {entry: kernel.name for entry, kernel in zip(entries, self.kernels, strict=True) if count[entry] == 1}
        return unique | {kernel.name: kernel.name for kernel in self.kernels}

    @cached_property
    def sites_of_op(self) -> Mapping[OpId, tuple[str, ...]]:
        """Site ids by op id, in site order; only ops in a dispatch have an entry."""
        sites: dict[OpId, list[str]] = {}
        for site in self.sites:
            for member in site.members:
                sites.setdefault(member.op, []).append(site.id)
        return {op: tuple(ids) for op, ids in sites.items()}

    @cached_property
    def paths_of_op(self) -> Mapping[OpId, tuple[CallPath, ...]]:
        """The call paths to each op, outermost call first, without duplicates, in site order.

        An op that is in no site has the paths of the dispatched ops of its function. Functions themselves have no
        entry, nor have ops without any known path.
        """
        paths_by_op: dict[OpId, dict[CallPath, None]] = {}
        paths_by_function: dict[Text, dict[CallPath, None]] = {}
        for site in self.sites:
            for member in site.members:
                paths = dict.fromkeys(member.paths)
                paths_by_op.setdefault(member.op, {}).update(paths)
                paths_by_function.setdefault(self.op_by_id[member.op].function, {}).update(paths)
        ops = [op for op in self.ops if not op.name.endswith(".func")]
        paths_of = {op.id: paths_by_op.get(op.id) or paths_by_function.get(op.function, {}) for op in ops}
        return {op: tuple(paths) for op, paths in paths_of.items() if paths}
