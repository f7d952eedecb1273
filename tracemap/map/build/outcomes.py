"""Outcomes of ops: exactly one for each, with its reason and the last phase that names it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property

from tracemap.core.locations import frames, name_path
from tracemap.core.units import UNKNOWN, Text, plural
from tracemap.ir.source_model import CONTROL_FLOW, SourceOperation
from tracemap.map.build.model.dataflow import Node
from tracemap.map.build.model.kinds import (
    accesses_dispatch_tensors,
    accesses_global,
    can_be_member,
    is_branch,
    is_call,
    is_constant,
    is_destination,
    is_structural,
    makes_host_values,
    makes_scalars,
    only_renames,
    overwrites,
)
from tracemap.map.build.model.model_facts import ModelFacts
from tracemap.map.model import PHASES, SOURCE, Frame, InnerOperation, Op, OpId, Outcome, Reason, Site

# ---- reasons
#
# The reasons for outcomes: a slug, a sentence for people, and whether they are only inferred.


REASONS: Mapping[str, str] = {
    "in-sites": "runs in {where}",
    "at-load": "runs once, when the module is loaded, in {where}",
    "is-command": "is a copy or fill command of its own",
    "control-flow": "controls on the host which ops run; these have outcomes of their own",
    "decided": "needs no control flow: the compiler knew which of its ops run",
    "call": "is a call; the ops of the function have outcomes of their own",
    "host-work": "is scalar or shape work on the host",
    "is-constant": "is a constant",
    "computed-at-compile-time": "computed at compile time: depends on constants only",
    "folded-indexing": "folded into the indexing or layout of the {where}",
    "folded-initial": "became the initial value or the destination of the {where}",
    "folded-renaming": "only passes its operand on to the {where}",
    "passed-through": "only renames or moves elements; nothing is left to run",
    "in-kernel": "loop control, addressing, a read or a write in the kernel of the {where}",
    "in-place": "done in place: its operand is written where the result belongs, and nothing is copied",
    "simplified": "simplified away into the {where}",
    "simplified-away": "simplified away by the compiler; its uses were folded too",
    "global-access": "passes the buffer of a global on; nothing is computed",
    "check": "checks its operand at compile time or on the host",
    "call-left-out": "removed: nothing needs its result, so the compiler dropped the dispatch",
    "dead": "removed: nothing uses its result",
    "dead-function": "removed: nothing calls its function",
    "never-runs": "removed: unreachable for all inputs",
    "used-by-removed": "removed: only removed ops use its result",
    "twin": "removed: same as {where}",
    "is-structure": "gives the program its structure; nothing of it runs",
    "not-told": "may run in a dispatch whose ops cannot be distinguished by location",
    "not-yet-classified": "not classified: neither evidence nor inference shows the outcome",
}
"""The sentence of every reason, by slug."""

INFERRED = frozenset(
    {
        "computed-at-compile-time",
        "decided",
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
        "never-runs",
    }
)
"""Reasons that are inferred from the model, without evidence in the compiler's output."""


def reason(slug: str, where: str = "") -> Reason:
    """Make the reason for a slug; `where` replaces `{where}` in its sentence."""
    return Reason(slug, REASONS[slug].format(where=where), slug in INFERRED)


# ---- records

_ONNX = "onnx."
"""The prefix of the names of ops that are ONNX nodes; the names of these nodes are their locations."""

Judgement = tuple[Outcome, Reason]


def op_record(
    facts: ModelFacts, operation: SourceOperation, judgement: Judgement, file_name: str, last_phase: Text
) -> Op:
    """The record of an op.

    Args:
        facts: the model.
        operation: the op.
        judgement: its outcome and the reason.
        file_name: the model's name in the map.
        last_phase: as in `Op`.
    """
    outcome, reason = judgement
    index = operation.index
    return Op(
        id=OpId.of(index),
        name=operation.name,
        function=operation.function,
        file=UNKNOWN if operation.line is UNKNOWN else file_name,
        line=operation.line,
        column=operation.column,
        scope=facts.scopes[index],
        frames=tuple(
            Frame(frame.place.file, frame.place.line, frame.place.column or UNKNOWN, frame.function or UNKNOWN)
            for frame in frames(operation.location)
        ),
        outcome=outcome,
        reason=reason,
        parts=tuple(InnerOperation(part.name, part.line, part.column) for part in facts.parts_of.get(index, ())),
        own_location=index in facts.with_location,
        last_phase=last_phase,
        node=name_path(operation.location) if operation.name.startswith(_ONNX) else "",
    )


# ---- survival
#
# The last compiler phase whose dump still locates each op.


class LastLocatedPhase:
    """Collects, phase by phase, the ops that are still located."""

    def __init__(self) -> None:
        self._last: dict[int, int] = {}

    def add(self, phase: str, located: Iterable[int]) -> None:
        """Add the ops that are located after a phase; phases may come in any order or be missing."""
        phase_index = PHASES.index(phase)
        for index in located:
            self._last[index] = max(phase_index, self._last.get(index, phase_index))

    def last_phase(self, index: int) -> str:
        """The last phase that locates an op; `SOURCE` if none does."""
        return PHASES[self._last[index]] if index in self._last else SOURCE


# ---- outcomes
#
# Exactly one outcome for each op, with a reason that a user understands.
#
# Evidence comes first: memberships in dispatches, then the tags that the flow phase still carries outside of them. The
# other outcomes are inferred from the model's data flow: constants, dead code, duplicates, and moves of elements
# that became indexing. `INFERRED` has the reasons without evidence.


_TRANSFERS = frozenset({f"flow.tensor.{name}" for name in ("splat", "slice", "update", "store", "clone", "transfer")})
_MOVES_IN_PLACE = frozenset({"flow.tensor.update", "flow.tensor.slice"})
"""Operations that the compiler does without a command if the producer or consumer of the elements can do them."""
_HOST_CONSTANTS = frozenset({"flow.tensor.constant", "arith.constant", "util.buffer.constant"})

_MOST_MOVES = 32
"""The longest chain of element-moving ops that is followed."""

_WITHOUT_WORK = frozenset({Outcome.CONSTANT, Outcome.FOLDED, Outcome.STRUCTURAL})


@dataclass(frozen=True, slots=True)
class Commands:
    """The ops and sites that became commands of the program.

    `moved`: the indices of the ops of copies, fills and updates; `has_unknown`: whether some of these have no known op;
    `left_out`: the ids of sites that the compiler never launches.
    """

    moved: frozenset[int]
    has_unknown: bool
    left_out: frozenset[str]

    def may_move(self, index: int) -> bool:
        """Whether a copy, a fill or an update belongs, or may belong, to an op."""
        return index in self.moved or self.has_unknown


class OutcomeRules:
    """Decides the outcomes of all ops of a model.

    `sites_of`: op index -> sites with the op; `host_names`: op index -> names of the flow phase's host operations that
    came from it; `commands`: the ops that became commands; `doubtful`: ops that may be in sites whose ops are unknown.
    """

    def __init__(
        self,
        facts: ModelFacts,
        sites_of: Mapping[int, Sequence[Site]],
        host_names: Mapping[int, frozenset[str]],
        commands: Commands,
        doubtful: Set[int] = frozenset(),
    ) -> None:
        self._facts = facts
        self._operations = facts.operations
        self._dataflow = facts.dataflow
        self._sites_of = sites_of
        self._host_names = host_names
        self._commands = commands
        self._doubtful = doubtful
        self._leading = {call.number for sites in sites_of.values() for site in sites for call in site.calls}
        self._repeated = {twin: later for later, twin in facts.duplicates.items() if later in sites_of}
        """The duplicated op -> a later duplicate of it that is in a site."""
        self._judgements: dict[int, Judgement] = {}

    def outcomes(self) -> Mapping[int, Judgement]:
        """The outcome of every op, by index. Users are judged ahead of their operands."""
        for operation in reversed(self._facts.ops):
            self._judgements[operation.index] = self._judge(operation)
        return self._judgements

    def _judge(self, operation: SourceOperation) -> Judgement:
        """Judge by evidence, then by kind, then by inference; an op without other work may still be a copy or fill."""
        judgement = (
            self._by_evidence(operation)
            or self._by_control(operation)
            or self._by_kind(operation)
            or self._by_doubt(operation)
            or self._by_reasoning(operation)
            or (Outcome.UNKNOWN, reason("not-yet-classified"))
        )
        does_nothing = judgement[0] in _WITHOUT_WORK and not is_structural(operation)
        moves = does_nothing and operation.index in self._commands.moved
        return (Outcome.TRANSFER, reason("is-command")) if moves else judgement

    def _by_evidence(self, operation: SourceOperation) -> Judgement | None:
        sites = self._sites_of.get(operation.index, ())
        # A site that runs on every call takes precedence, though the op may be a constant or a copy elsewhere.
        executed = [site for site in sites if site.id not in self._commands.left_out]
        per_call = [site for site in executed if not site.initializer]
        if per_call:
            return Outcome.DISPATCHED, reason("in-sites", plural(len(per_call), "dispatch"))
        if is_structural(operation):
            return Outcome.STRUCTURAL, reason("is-structure")
        if self._is_given(operation, sites):
            return Outcome.CONSTANT, reason("is-constant")
        names = self._host_names.get(operation.index, frozenset())
        if self._is_command(operation, names):
            return Outcome.TRANSFER, reason("is-command")
        if executed:
            return Outcome.LOAD_TIME, reason("at-load", plural(len(executed), "dispatch"))
        if sites:
            return Outcome.REMOVED, reason("call-left-out")
        is_computed = not names.isdisjoint(_HOST_CONSTANTS) and operation.index in self._dataflow.constant
        return (Outcome.CONSTANT, reason("computed-at-compile-time")) if is_computed else None

    def _is_given(self, operation: SourceOperation, sites: Sequence[Site]) -> bool:
        """Whether an op is a constant without a kernel; an iota may have a kernel of its own that counts positions."""
        if not is_constant(operation) or self._working_twin(operation) >= 0:
            return False
        return not ((sites or operation.index in self._doubtful) and can_be_member(operation))

    def _is_command(self, operation: SourceOperation, names: frozenset[str]) -> bool:
        """Whether an op is a copy or fill command, and not optimised away."""
        if names.isdisjoint(_TRANSFERS) or accesses_global(operation) or operation.index in self._doubtful:
            return False
        return self._commands.may_move(operation.index)

    def _by_doubt(self, operation: SourceOperation) -> Judgement | None:
        """An op that may be in a site with unknown ops; its absence in all other sites proves nothing."""
        return (Outcome.UNKNOWN, reason("not-told")) if operation.index in self._doubtful else None

    def _by_control(self, operation: SourceOperation) -> Judgement | None:
        """Unreachable ops, calls and control flow."""
        slug = self._never_runs(operation)
        if slug:
            return Outcome.REMOVED, reason(slug)
        if is_call(operation):
            return Outcome.HOST, reason("call")
        if operation.name in CONTROL_FLOW and operation.index in self._facts.in_kernels:
            return self._in_kernel(operation)
        if operation.name in CONTROL_FLOW or is_branch(operation):
            is_decided = self._facts.reachability.is_decided(operation)
            return (Outcome.FOLDED, reason("decided")) if is_decided else (Outcome.HOST, reason("control-flow"))
        return None

    def _by_kind(self, operation: SourceOperation) -> Judgement | None:
        if accesses_global(operation):
            return Outcome.STRUCTURAL, reason("global-access")
        if operation.index not in self._dataflow.live:
            return Outcome.REMOVED, reason("dead")
        if self._frames_kernel(operation):
            return self._in_kernel(operation)
        if not operation.results:
            return self._without_result(operation)
        if is_destination(operation):
            return self._folded(operation, "folded-initial")
        if operation.index in self._doubtful:
            return None
        if operation.index in self._dataflow.constant and not self._follows_load(operation):
            return Outcome.CONSTANT, reason("computed-at-compile-time")
        return (Outcome.HOST, reason("host-work")) if self._is_host_work(operation) else None

    def _is_host_work(self, operation: SourceOperation) -> bool:
        """Whether an op makes values for the host: sizes, indices, and conditions of control flow."""
        counts = self._counts_for_control(operation) or self._counts_on_host(operation)
        return counts or makes_host_values(operation)

    def _frames_kernel(self, operation: SourceOperation) -> bool:
        in_kernel = operation.index in self._facts.in_kernels
        return in_kernel and (makes_host_values(operation) or accesses_dispatch_tensors(operation))

    def _in_kernel(self, operation: SourceOperation) -> Judgement:
        """Loops, addressing, reads and writes in a kernel that the model itself writes; none of them is on the host."""
        dispatch = self._facts.in_kernels[operation.index]
        where = f"{self._operations[dispatch].name} at {self._facts.place(dispatch)}"
        return Outcome.FOLDED, reason("in-kernel", where)

    def _counts_on_host(self, operation: SourceOperation) -> bool:
        """Whether an op makes a scalar on the host, such as an index into a table in a loop."""
        if not makes_scalars(operation) or operation.index in self._facts.moves:
            return False
        names = self._host_names.get(operation.index, frozenset()) - _HOST_CONSTANTS
        return any(name.startswith("arith.") for name in names)

    def _without_result(self, operation: SourceOperation) -> Judgement:
        """An op with an effect only: a check, or new contents of a buffer, copied unless computed in place."""
        if not overwrites(operation):
            return Outcome.HOST, reason("check")
        is_copied = self._commands.may_move(operation.index)
        return (Outcome.TRANSFER, reason("is-command")) if is_copied else (Outcome.FOLDED, reason("in-place"))

    def _follows_load(self, operation: SourceOperation) -> bool:
        """Whether an op moves, possibly through other moves, elements that a kernel makes at run time."""
        moves, flow = self._facts.moves, self._dataflow
        if operation.index not in moves:
            return False
        ops = (operation.index, *flow.upstream(operation.index, moves.__contains__, _MOST_MOVES))
        return any(maker in self._sites_of for move in ops for maker in flow.makers(move))

    def _never_runs(self, operation: SourceOperation) -> str:
        """The slug for an op that can never run; "" if it may run."""
        function = operation.function
        if function in self._facts.model.private and not self._facts.calls.of(str(function)):
            return "dead-function"
        return "" if self._leads(operation) or self._facts.reachability.runs(operation) else "never-runs"

    def _leads(self, operation: SourceOperation) -> bool:
        """Whether an op is a call that leads to a site, so that it is not dead."""
        return operation.index in self._leading

    def _counts_for_control(self, operation: SourceOperation) -> bool:
        """Whether an op only makes scalars for loops and branches: their counters and conditions."""
        # Unused ops are no evidence about control flow.
        is_used = bool(self._dataflow.unordered_users(operation.index))
        return is_used and self._only_counts(operation) and operation.index not in self._for_others

    @cached_property
    def _for_others(self) -> Set[Node]:
        """Ops whose value, through ops that make scalars, is used by anything but loops and branches.

        One backward walk from all such uses; a forward walk from each op would be quadratic in the length of chains.
        """
        makers: set[Node] = set()
        others = [op for op in self._operations if not (makes_scalars(op) or self._decides(op))]
        worklist = [*(op.index for op in others), *self._dataflow.arguments]
        while worklist:
            for maker in self._dataflow.unordered_makers(worklist.pop()):
                if maker not in makers and isinstance(maker, int) and self._only_counts(self._operations[maker]):
                    makers.add(maker)
                    worklist.append(maker)
        return makers

    def _only_counts(self, operation: SourceOperation) -> bool:
        return makes_scalars(operation) and not self._decides(operation)

    def _decides(self, operation: SourceOperation) -> bool:
        """Whether an op is a loop or a branch, or passes values to one."""
        if operation.name == "stablehlo.return":
            return self._operations[operation.parent].name in CONTROL_FLOW
        return operation.name in CONTROL_FLOW or operation.name.endswith(
            (".yield", ".condition", ".operator_terminator")
        )

    def _by_reasoning(self, operation: SourceOperation) -> Judgement | None:
        same = self._same(operation)
        if same >= 0:
            return Outcome.REMOVED, reason("twin", self._facts.place(same))
        if not self._host_names.get(operation.index, frozenset()).isdisjoint(_MOVES_IN_PLACE):
            return Outcome.FOLDED, reason("in-place")
        if operation.index in self._facts.moves:
            return self._folded(operation, "folded-renaming" if only_renames(operation) else "folded-indexing")
        users = [user for user in self._dataflow.users(operation.index) if isinstance(user, int)]
        outcomes = [self._judgements[user][0] for user in users if user in self._judgements]
        if (
            users
            and len(outcomes) == len(users)
            and all(outcome in (Outcome.REMOVED, Outcome.CONSTANT) for outcome in outcomes)
        ):
            return Outcome.REMOVED, reason("used-by-removed")
        return self._folded(operation, "simplified")

    def _same(self, operation: SourceOperation) -> int:
        """The op that the compiler kept instead of an identical one; -1 if there is none."""
        twin = self._facts.duplicates.get(operation.index, -1)
        # A move whose duplicate runs nowhere is folded like it: nothing was kept instead.
        if operation.index in self._facts.moves:
            return self._working_twin(operation)
        # The compiler may keep the later of two duplicates, and its location.
        return twin if twin >= 0 else self._repeated.get(operation.index, -1)

    def _working_twin(self, operation: SourceOperation) -> int:
        """The earlier op that an op duplicates, if a site contains it; otherwise -1."""
        twin = self._facts.duplicates.get(operation.index, -1)
        return twin if twin in self._sites_of else -1

    def _folded(self, operation: SourceOperation, slug: str) -> Judgement:
        """Folded into the nearest op that runs: one that uses the op, else one whose result the op passes on."""
        candidates = (nearest.get(operation.index) for nearest in self._nearest_members)
        member = next((candidate for candidate in candidates if candidate is not None), None)
        if member is None:
            return Outcome.FOLDED, reason("simplified-away" if slug == "simplified" else "passed-through")
        return Outcome.FOLDED, reason(slug, f"{self._operations[member].name} at {self._facts.place(member)}")

    @cached_property
    def _nearest_members(self) -> Sequence[Mapping[Node, int]]:
        """For each op the nearest one that runs: down, then up, first not across loops and branches, then across."""
        members = self._sites_of.keys()
        ways = [(down, past) for past in (False, True) for down in (True, False)]
        return [self._dataflow.all_nearest(members, downwards=down, past_control=past) for down, past in ways]
