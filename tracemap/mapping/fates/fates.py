"""What became of each op, and why: exactly one fate, with a reason that a user understands.

Evidence comes first: memberships, then the tags that the flow phase still carries outside of dispatches. What is found
nowhere is reasoned about over the def-use graph of the model: constants, dead code, twins, folded moves of elements.
Reasons that rest on such reasoning alone are in `INFERRED`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tracemap.graph.model import Fate, OpId, Reason, Site
from tracemap.ir.source import CONTROL_FLOW, FUNCTIONS, SourceModel, SourceOperation
from tracemap.ir.types import shape_of
from tracemap.mapping.model.dataflow import Dataflow, Node, is_call, is_constant_like, nearest
from tracemap.units import plural

_STRUCTURAL = FUNCTIONS | {
    "builtin.module",
    "ml_program.global",
    "torch.global_slot",
    "util.global",
    "util.initializer",
}
_STRUCTURAL_ENDINGS = (".return", ".yield", ".condition", ".terminator")
_GLOBAL_ACCESS = (".global.load", ".global.store", ".global_load", ".global_store")
_EMPTY = ("tensor.empty", "linalg.fill", "bufferization.alloc_tensor")

_MOVES = frozenset(
    """
    linalg.broadcast linalg.copy linalg.transpose
    tensor.bitcast tensor.cast tensor.collapse_shape tensor.concat tensor.expand_shape tensor.extract_slice
    tensor.insert_slice tensor.reshape
    stablehlo.bitcast_convert stablehlo.broadcast stablehlo.broadcast_in_dim stablehlo.concatenate
    stablehlo.dynamic_broadcast_in_dim stablehlo.dynamic_reshape stablehlo.dynamic_slice stablehlo.get_tuple_element
    stablehlo.optimization_barrier stablehlo.reshape stablehlo.reverse stablehlo.slice stablehlo.transpose
    stablehlo.tuple
    torch.aten._reshape_alias torch.aten._unsafe_view torch.aten.alias torch.aten.broadcast_to torch.aten.cat
    torch.aten.clone torch.aten.contiguous torch.aten.detach torch.aten.expand torch.aten.flatten.using_ints
    torch.aten.lift_fresh_copy torch.aten.movedim.int torch.aten.narrow torch.aten.numpy_T torch.aten.permute
    torch.aten.reshape torch.aten.select.int torch.aten.slice.Tensor torch.aten.split.Tensor torch.aten.squeeze
    torch.aten.squeeze.dim torch.aten.stack torch.aten.t torch.aten.transpose.int torch.aten.unflatten.int
    torch.aten.unsqueeze torch.aten.view torch.prims.broadcast_in_dim torch.prims.collapse torch.prims.squeeze
    torch_c.from_builtin_tensor torch_c.to_builtin_tensor
    onnx.Concat onnx.Expand onnx.Flatten onnx.Identity onnx.Reshape onnx.Slice onnx.Split onnx.Squeeze onnx.Transpose
    onnx.Unsqueeze
    tosa.concat tosa.reshape tosa.reverse tosa.slice tosa.tile tosa.transpose
    util.optimization_barrier
    """.split()
)
"""Ops that only move or rename elements: they become indexing or layout, and are never absorbed."""

_RENAMES = frozenset(
    """
    onnx.Identity stablehlo.optimization_barrier tensor.cast torch.aten.alias torch.aten.clone torch.aten.contiguous
    torch.aten.detach torch.aten.lift_fresh_copy torch_c.from_builtin_tensor torch_c.to_builtin_tensor
    util.optimization_barrier
    """.split()
)
"""Those of `_MOVES` that leave every element where it is."""

_TRANSFERS = (
    "flow.tensor.splat",
    "flow.tensor.slice",
    "flow.tensor.update",
    "flow.tensor.clone",
    "flow.tensor.transfer",
)
_HOST_CONSTANTS = ("flow.tensor.constant", "arith.constant", "util.buffer.constant")

REASONS: Mapping[str, str] = {
    "in-sites": "does work in {where}",
    "at-load": "runs once, when the module is loaded, in {where}",
    "is-command": "is a copy or fill command of its own",
    "control-flow": "decides on the host what runs; its ops stand for themselves",
    "call": "is a call; the ops of the function stand for themselves",
    "host-work": "is scalar or shape work on the host",
    "is-constant": "is a constant",
    "computed-at-compile-time": "computed at compile time: depends on constants only",
    "folded-indexing": "folded into the indexing or layout of the {where}",
    "folded-initial": "became the initial value or the destination of the {where}",
    "folded-renaming": "only hands its operand on, to the {where}",
    "passed-through": "only renames or moves elements; nothing is left to run",
    "simplified": "simplified away into the {where}",
    "simplified-away": "simplified away by the compiler; its uses were folded too",
    "global-access": "hands the buffer of a global on; nothing is computed",
    "check": "checks its operand at compile time or on the host",
    "dead": "removed: nothing uses its result",
    "dead-function": "removed: nothing calls its function",
    "used-by-removed": "removed: only ops that were removed themselves use its result",
    "twin": "removed: same as {where}",
    "is-structure": "gives the program its structure; nothing of it runs",
    "not-yet-classified": "not classified: neither evidence nor reasoning tells what became of it",
}
"""The sentence of every reason, by slug."""

INFERRED = frozenset(
    {
        "computed-at-compile-time",
        "folded-indexing",
        "folded-initial",
        "folded-renaming",
        "passed-through",
        "simplified",
        "simplified-away",
        "used-by-removed",
        "twin",
        "dead",
        "dead-function",
    }
)
"""Reasons that rest on reasoning over the model, not on what the compiler's output carries."""


def can_be_member(operation: SourceOperation) -> bool:
    """Whether an op can do work in a dispatch: neither a constant nor structure."""
    return not is_constant(operation) and not is_structural(operation)


def can_be_absorbed(operation: SourceOperation) -> bool:
    """Whether an op computes something of its own: only such ops are ever absorbed."""
    if not can_be_member(operation) or operation.name in CONTROL_FLOW or is_call(operation):
        return False
    if operation.name.endswith((*_EMPTY, *_GLOBAL_ACCESS)) or not operation.results:
        return False
    return not all(_is_host_type(result) for result in operation.results)


def is_constant(operation: SourceOperation) -> bool:
    """Whether an op is a constant by its kind."""
    return not operation.operands and operation.name != "tensor.empty" and is_constant_like(operation)


def is_structural(operation: SourceOperation) -> bool:
    """Whether an op only gives structure: functions, returns, globals."""
    return operation.name in _STRUCTURAL or operation.name.endswith(_STRUCTURAL_ENDINGS)


def only_moves(operation: SourceOperation, part_names: Sequence[str]) -> bool:
    """Whether an op only moves or renames elements: by its kind, or as a generic op that yields what it reads."""
    if operation.name == "linalg.generic":
        return set(part_names) <= {"linalg.yield"}
    return operation.name in _MOVES


@dataclass(frozen=True)
class Surroundings:
    """What the fates of a model's ops are decided from.

    `sites_of`: op index -> sites that it is a member of; `host_names`: op index -> names of the flow phase's host
    operations that carry its tag; `part_names`: op index -> names of its parts; `twins`: op index -> an earlier op that
    computes the very same.
    """

    model: SourceModel
    dataflow: Dataflow
    sites_of: Mapping[int, Sequence[Site]]
    host_names: Mapping[int, frozenset[str]]
    part_names: Mapping[int, Sequence[str]]
    twins: Mapping[int, int]


class Judge:
    """Decides the fates of all ops of a model."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._operations = around.model.operations
        self._flow = around.dataflow
        self._members = frozenset(around.sites_of)
        self._called = {op.symbol for op in self._operations if is_call(op)}
        self._found: dict[int, tuple[Fate, Reason]] = {}

    def fates(self) -> Mapping[int, tuple[Fate, Reason]]:
        """The fate of every op, by index. Users are judged before what they use."""
        for operation in reversed(self._operations):
            if operation.is_op:
                self._found[operation.index] = self._judge(operation)
        return self._found

    def _judge(self, operation: SourceOperation) -> tuple[Fate, Reason]:
        """By evidence, then by kind, then by reasoning."""
        return (
            self._by_evidence(operation)
            or self._by_kind(operation)
            or self._by_reasoning(operation)
            or (Fate.UNKNOWN, _reason("not-yet-classified"))
        )

    def _by_evidence(self, operation: SourceOperation) -> tuple[Fate, Reason] | None:
        sites = self._around.sites_of.get(operation.index, ())
        running = [site for site in sites if not site.initializer]
        if running:
            return Fate.DISPATCHED, _reason("in-sites", plural(len(running), "site"))
        if is_structural(operation):
            return Fate.STRUCTURAL, _reason("is-structure")
        if is_constant(operation):
            return Fate.CONSTANT, _reason("is-constant")
        names = self._around.host_names.get(operation.index, frozenset())
        if not names.isdisjoint(_TRANSFERS) and not operation.name.endswith(_GLOBAL_ACCESS):
            return Fate.TRANSFER, _reason("is-command")
        if sites:
            return Fate.LOAD_TIME, _reason("at-load", plural(len(sites), "site"))
        if not names.isdisjoint(_HOST_CONSTANTS) and operation.index in self._flow.constant:
            return Fate.CONSTANT, _reason("computed-at-compile-time")
        return None

    def _by_kind(self, operation: SourceOperation) -> tuple[Fate, Reason] | None:
        name = operation.name
        if self._is_unreachable(operation):
            return Fate.REMOVED, _reason("dead-function")
        if is_call(operation):
            return Fate.HOST, _reason("call")
        if name in CONTROL_FLOW:
            return Fate.HOST, _reason("control-flow")
        if name.endswith(_GLOBAL_ACCESS):
            return Fate.STRUCTURAL, _reason("global-access")
        if operation.index not in self._flow.live:
            return Fate.REMOVED, _reason("dead")
        if not operation.results:
            return Fate.HOST, _reason("check")
        if name.endswith(_EMPTY):
            return self._folded(operation, "folded-initial")
        if operation.index in self._flow.constant:
            return Fate.CONSTANT, _reason("computed-at-compile-time")
        if all(_is_host_type(result) for result in operation.results) or self._counts_for_control(operation):
            return Fate.HOST, _reason("host-work")
        return None

    def _counts_for_control(self, operation: SourceOperation) -> bool:
        """Whether an op only makes numbers by which loops and branches decide: their counters and conditions."""
        seen: set[Node] = set()
        stack: list[Node] = [operation.index]
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            if isinstance(node, tuple):
                return False
            user = self._operations[node]
            if user.name in CONTROL_FLOW or user.name.endswith((".yield", ".condition")):
                continue
            if user.name == "stablehlo.return" and self._operations[user.parent].name in CONTROL_FLOW:
                continue
            if not user.results or not all(_is_count(result) for result in user.results):
                return False
            stack += self._flow.graph.successors(node)
        return len(seen) > 1

    def _by_reasoning(self, operation: SourceOperation) -> tuple[Fate, Reason] | None:
        twin = self._around.twins.get(operation.index, -1)
        if twin >= 0 and (twin in self._members or not self._moves(operation)):
            return Fate.REMOVED, _reason("twin", self._place(twin))
        if self._moves(operation):
            return self._folded(operation, "folded-renaming" if operation.name in _RENAMES else "folded-indexing")
        users = [user for user in self._flow.users(operation.index) if isinstance(user, int)]
        fates = [self._found[user][0] for user in users if user in self._found]
        if users and len(fates) == len(users) and all(fate in (Fate.REMOVED, Fate.CONSTANT) for fate in fates):
            return Fate.REMOVED, _reason("used-by-removed")
        return self._folded(operation, "simplified")

    def _folded(self, operation: SourceOperation, slug: str) -> tuple[Fate, Reason]:
        """Folded into the nearest op that does work: one that uses it, else one whose result it passes on."""
        member = nearest(self._flow, operation.index, self._members, downwards=True)
        if member is None:
            member = nearest(self._flow, operation.index, self._members, downwards=False)
        if member is None:
            return Fate.FOLDED, _reason("simplified-away" if slug == "simplified" else "passed-through")
        return Fate.FOLDED, _reason(slug, f"{self._operations[member].name} at {self._place(member)}")

    def _moves(self, operation: SourceOperation) -> bool:
        return only_moves(operation, self._around.part_names.get(operation.index, ()))

    def _is_unreachable(self, operation: SourceOperation) -> bool:
        function = operation.function
        return function in self._around.model.private and function not in self._called

    def _place(self, index: int) -> str:
        """`line:column` of an op, its id where that is unknown."""
        operation = self._operations[index]
        known = isinstance(operation.line, int) and isinstance(operation.column, int)
        return f"{operation.line}:{operation.column}" if known else OpId.of(index)


def _is_host_type(type_text: str) -> bool:
    """Whether a value lives on the host: numbers, shapes, lists; a tensor of rank 0 can be device work."""
    if "tensor<" in type_text or "memref<" in type_text or "vector<" in type_text:
        return False
    return shape_of(type_text).extents == ()


def _is_count(type_text: str) -> bool:
    """Whether a value is one whole number or truth value, as a tensor of rank 0 or by itself."""
    return _is_host_type(type_text) or re.fullmatch(r"tensor<[su]?i\d+>", type_text) is not None


def _reason(slug: str, where: str = "") -> Reason:
    return Reason(slug, REASONS[slug].format(where=where), slug in INFERRED)
