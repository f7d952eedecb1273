"""Outcomes of ops: exactly one for each, with its reason and the last phase that names it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property

from tracemap.graph.model import PHASES, SOURCE, Fate, Reason, Site
from tracemap.ir.source import CONTROL_FLOW, SourceOperation
from tracemap.mapping.model.dataflow import Node
from tracemap.mapping.model.facts import ModelFacts
from tracemap.mapping.model.kinds import (
    accesses_global,
    addresses,
    can_be_member,
    is_branch,
    is_call,
    is_constant,
    is_destination,
    is_structural,
    makes_host_values,
    makes_numbers,
    only_renames,
    overwrites,
)
from tracemap.units import plural

# ---- reasons
#
# The reasons that ops have for their fates: a slug, a sentence for people, and whether they are only inferred.


REASONS: Mapping[str, str] = {
    "in-sites": "does work in {where}",
    "at-load": "runs once, when the module is loaded, in {where}",
    "is-command": "is a copy or fill command of its own",
    "control-flow": "decides on the host what runs; its ops stand for themselves",
    "decided": "decides nothing: it is known when the program is compiled which of its ops run",
    "call": "is a call; the ops of the function stand for themselves",
    "host-work": "is scalar or shape work on the host",
    "is-constant": "is a constant",
    "computed-at-compile-time": "computed at compile time: depends on constants only",
    "folded-indexing": "folded into the indexing or layout of the {where}",
    "folded-initial": "became the initial value or the destination of the {where}",
    "folded-renaming": "only hands its operand on, to the {where}",
    "passed-through": "only renames or moves elements; nothing is left to run",
    "in-kernel": "frames the work in the kernel of the {where}: a loop, an address, a read or a write",
    "in-place": "done in place: what makes its operands writes where its result lies, and nothing is copied",
    "simplified": "simplified away into the {where}",
    "simplified-away": "simplified away by the compiler; its uses were folded too",
    "global-access": "hands the buffer of a global on; nothing is computed",
    "check": "checks its operand at compile time or on the host",
    "call-left-out": "removed: the compiler left the call of its kernel out, as nothing needs its result",
    "dead": "removed: nothing uses its result",
    "dead-function": "removed: nothing calls its function",
    "never-runs": "removed: stands where nothing ever runs, whatever the inputs are",
    "used-by-removed": "removed: only ops that were removed themselves use its result",
    "twin": "removed: same as {where}",
    "is-structure": "gives the program its structure; nothing of it runs",
    "not-told": "may work in a dispatch whose ops their locations do not tell apart",
    "not-yet-classified": "not classified: neither evidence nor reasoning tells what became of it",
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
"""Reasons that rest on reasoning over the model, not on what the compiler's output carries."""


def reason(slug: str, where: str = "") -> Reason:
    """The reason of a slug; `where`: what stands in for `{where}` in its sentence."""
    return Reason(slug, REASONS[slug].format(where=where), slug in INFERRED)


# ---- survival
#
# How far each op's location gets: the last phase of the compiler whose dump still locates it.


class Survival:
    """Collects, phase by phase, which ops are still located."""

    def __init__(self) -> None:
        self._last: dict[int, int] = {}

    def add(self, phase: str, located: Iterable[int]) -> None:
        """The ops that are located after a phase; phases may come in any order, and some not at all."""
        place = PHASES.index(phase)
        for index in located:
            self._last[index] = max(place, self._last.get(index, place))

    def last_phase(self, index: int) -> str:
        """The last phase that locates an op; `SOURCE` where none does."""
        return PHASES[self._last[index]] if index in self._last else SOURCE


# ---- fates
#
# What became of each op, and why: exactly one fate, with a reason that a user understands.
#
# Evidence comes first: memberships, then the tags that the flow phase still carries outside of dispatches. What is
# found nowhere is reasoned about over the def-use graph of the model: constants, dead code, twins, folded moves of
# elements. Reasons that rest on such reasoning alone are in `reasons.INFERRED`.


_TRANSFERS = frozenset({f"flow.tensor.{name}" for name in ("splat", "slice", "update", "store", "clone", "transfer")})
_MOVES_IN_PLACE = frozenset({"flow.tensor.update", "flow.tensor.slice"})
"""What the compiler does without a command where whoever makes or reads the elements can do it."""
_HOST_CONSTANTS = frozenset({"flow.tensor.constant", "arith.constant", "util.buffer.constant"})

_MOST_MOVES = 32
"""How many ops before one that moves elements are looked at for what they move."""

_WITHOUT_WORK = frozenset({Fate.CONSTANT, Fate.FOLDED, Fate.STRUCTURAL})

Judgement = tuple[Fate, Reason]


@dataclass(frozen=True, slots=True)
class Commands:
    """What became commands of the program.

    `moved`: the indices of the ops that copies, fills and updates are of; `has_unknown`: of some of these it is not
    known; `left_out`: the ids of sites whose call the compiler left out.
    """

    moved: frozenset[int]
    has_unknown: bool
    left_out: frozenset[str]

    def may_move(self, index: int) -> bool:
        """Whether a copy, a fill or an update is of an op, as far as is known."""
        return index in self.moved or self.has_unknown


class Judge:
    """Decides the fates of all ops of a model.

    `sites_of`: op index -> sites that it is a member of; `host_names`: op index -> names of the flow phase's host
    operations that came from it; `commands`: what became commands; `doubtful`: the ops that may work in sites whose
    members are not told.
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
        self._repeated = {twin: later for later, twin in facts.twins.items() if later in sites_of}
        """Of ops that others repeat, one of these that is a member of a site."""
        self._found: dict[int, Judgement] = {}

    def fates(self) -> Mapping[int, Judgement]:
        """The fate of every op, by index. Users are judged before what they use."""
        for operation in reversed(self._facts.ops):
            self._found[operation.index] = self._judge(operation)
        return self._found

    def _judge(self, operation: SourceOperation) -> Judgement:
        """By evidence, then by kind, then by reasoning; of what would do nothing, a copy or a fill is the work."""
        found = (
            self._by_evidence(operation)
            or self._by_control(operation)
            or self._by_kind(operation)
            or self._by_doubt(operation)
            or self._by_reasoning(operation)
            or (Fate.UNKNOWN, reason("not-yet-classified"))
        )
        does_nothing = found[0] in _WITHOUT_WORK and not is_structural(operation)
        moves = does_nothing and operation.index in self._commands.moved
        return (Fate.TRANSFER, reason("is-command")) if moves else found

    def _by_evidence(self, operation: SourceOperation) -> Judgement | None:
        sites = self._sites_of.get(operation.index, ())
        # A site that runs on every call beats all else, though the op may be a constant or a copy elsewhere.
        called = [site for site in sites if site.id not in self._commands.left_out]
        running = [site for site in called if not site.initializer]
        if running:
            return Fate.DISPATCHED, reason("in-sites", plural(len(running), "site"))
        if is_structural(operation):
            return Fate.STRUCTURAL, reason("is-structure")
        if self._is_given(operation, sites):
            return Fate.CONSTANT, reason("is-constant")
        names = self._host_names.get(operation.index, frozenset())
        if self._is_command(operation, names):
            return Fate.TRANSFER, reason("is-command")
        if called:
            return Fate.LOAD_TIME, reason("at-load", plural(len(called), "site"))
        if sites:
            return Fate.REMOVED, reason("call-left-out")
        is_computed = not names.isdisjoint(_HOST_CONSTANTS) and operation.index in self._dataflow.constant
        return (Fate.CONSTANT, reason("computed-at-compile-time")) if is_computed else None

    def _is_given(self, operation: SourceOperation, sites: Sequence[Site]) -> bool:
        """Whether an op is a constant that nothing makes: positions (an iota) may be counted by a kernel of its own."""
        if not is_constant(operation) or self._working_twin(operation) >= 0:
            return False
        return not ((sites or operation.index in self._doubtful) and can_be_member(operation))

    def _is_command(self, operation: SourceOperation, names: frozenset[str]) -> bool:
        """Whether an op is a copy or a fill of its own, and not one that the compiler found nothing to do for."""
        if names.isdisjoint(_TRANSFERS) or accesses_global(operation) or operation.index in self._doubtful:
            return False
        return self._commands.may_move(operation.index)

    def _by_doubt(self, operation: SourceOperation) -> Judgement | None:
        """What may work in a site whose members are not told: that it is found in no other proves nothing."""
        return (Fate.UNKNOWN, reason("not-told")) if operation.index in self._doubtful else None

    def _by_control(self, operation: SourceOperation) -> Judgement | None:
        """What never runs, and what only leads to other ops."""
        never = self._never_runs(operation)
        if never:
            return Fate.REMOVED, reason(never)
        if is_call(operation):
            return Fate.HOST, reason("call")
        if operation.name in CONTROL_FLOW and operation.index in self._facts.in_kernels:
            return self._in_kernel(operation)
        if operation.name in CONTROL_FLOW or is_branch(operation):
            is_decided = self._facts.unreached.is_decided(operation)
            return (Fate.FOLDED, reason("decided")) if is_decided else (Fate.HOST, reason("control-flow"))
        return None

    def _by_kind(self, operation: SourceOperation) -> Judgement | None:
        if accesses_global(operation):
            return Fate.STRUCTURAL, reason("global-access")
        if operation.index not in self._dataflow.live:
            return Fate.REMOVED, reason("dead")
        if self._frames_kernel(operation):
            return self._in_kernel(operation)
        if not operation.results:
            return self._without_result(operation)
        if is_destination(operation):
            return self._folded(operation, "folded-initial")
        if operation.index in self._doubtful:
            return None
        if operation.index in self._dataflow.constant and not self._follows_load(operation):
            return Fate.CONSTANT, reason("computed-at-compile-time")
        return (Fate.HOST, reason("host-work")) if self._is_host_work(operation) else None

    def _is_host_work(self, operation: SourceOperation) -> bool:
        """Whether an op makes what the host works with: sizes, places, and what decides on control."""
        counts = self._counts_for_control(operation) or self._counts_on_host(operation)
        return counts or makes_host_values(operation)

    def _frames_kernel(self, operation: SourceOperation) -> bool:
        in_kernel = operation.index in self._facts.in_kernels
        return in_kernel and (makes_host_values(operation) or addresses(operation))

    def _in_kernel(self, operation: SourceOperation) -> Judgement:
        """What a kernel that the model writes itself does around the work of its ops: nothing of it is on the host."""
        dispatch = self._facts.in_kernels[operation.index]
        where = f"{self._operations[dispatch].name} at {self._facts.place(dispatch)}"
        return Fate.FOLDED, reason("in-kernel", where)

    def _counts_on_host(self, operation: SourceOperation) -> bool:
        """Whether an op makes one number, and the host reckons it, such as the place in a table in a loop."""
        if not makes_numbers(operation) or operation.index in self._facts.moves:
            return False
        names = self._host_names.get(operation.index, frozenset()) - _HOST_CONSTANTS
        return any(name.startswith("arith.") for name in names)

    def _without_result(self, operation: SourceOperation) -> Judgement:
        """What is there for its effect: a check, or new contents of a buffer, copied unless computed there."""
        if not overwrites(operation):
            return Fate.HOST, reason("check")
        is_copied = self._commands.may_move(operation.index)
        return (Fate.TRANSFER, reason("is-command")) if is_copied else (Fate.FOLDED, reason("in-place"))

    def _follows_load(self, operation: SourceOperation) -> bool:
        """Whether an op moves, behind others that do, what a kernel makes, which the compiler did not compute."""
        moves, flow = self._facts.moves, self._dataflow
        if operation.index not in moves:
            return False
        moved = (operation.index, *flow.behind(operation.index, moves.__contains__, _MOST_MOVES))
        return any(maker in self._sites_of for move in moved for maker in flow.makers(move))

    def _never_runs(self, operation: SourceOperation) -> str:
        """Why an op can never run; "" where it may."""
        function = operation.function
        if function in self._facts.model.private and not self._facts.calls.of(str(function)):
            return "dead-function"
        return "" if self._leads(operation) or self._facts.unreached.runs(operation) else "never-runs"

    def _leads(self, operation: SourceOperation) -> bool:
        """Whether an op leads to a site: what the compiler kept it did not find out to be dead."""
        return operation.index in self._leading

    def _counts_for_control(self, operation: SourceOperation) -> bool:
        """Whether an op only makes numbers by which loops and branches decide: their counters and conditions."""
        # What nothing uses says nothing about control.
        is_used = bool(self._dataflow.using(operation.index))
        return is_used and self._only_counts(operation) and operation.index not in self._for_others

    @cached_property
    def _for_others(self) -> Set[Node]:
        """What is used, behind ops that make numbers, by anything else than loops and branches.

        Gone back to from all these uses together: to go ahead from each op takes the square of a chain's length.
        """
        found: set[Node] = set()
        others = [each for each in self._operations if not (makes_numbers(each) or self._decides(each))]
        waiting = [*(each.index for each in others), *self._dataflow.arguments]
        while waiting:
            for maker in self._dataflow.making(waiting.pop()):
                if maker not in found and isinstance(maker, int) and self._only_counts(self._operations[maker]):
                    found.add(maker)
                    waiting.append(maker)
        return found

    def _only_counts(self, operation: SourceOperation) -> bool:
        return makes_numbers(operation) and not self._decides(operation)

    def _decides(self, operation: SourceOperation) -> bool:
        """Whether an op is a loop or a branch, or hands one what it goes on with."""
        if operation.name == "stablehlo.return":
            return self._operations[operation.parent].name in CONTROL_FLOW
        return operation.name in CONTROL_FLOW or operation.name.endswith(
            (".yield", ".condition", ".operator_terminator")
        )

    def _by_reasoning(self, operation: SourceOperation) -> Judgement | None:
        same = self._same(operation)
        if same >= 0:
            return Fate.REMOVED, reason("twin", self._facts.place(same))
        if not self._host_names.get(operation.index, frozenset()).isdisjoint(_MOVES_IN_PLACE):
            return Fate.FOLDED, reason("in-place")
        if operation.index in self._facts.moves:
            return self._folded(operation, "folded-renaming" if only_renames(operation) else "folded-indexing")
        users = [user for user in self._dataflow.users(operation.index) if isinstance(user, int)]
        fates = [self._found[user][0] for user in users if user in self._found]
        if users and len(fates) == len(users) and all(fate in (Fate.REMOVED, Fate.CONSTANT) for fate in fates):
            return Fate.REMOVED, reason("used-by-removed")
        return self._folded(operation, "simplified")

    def _same(self, operation: SourceOperation) -> int:
        """The op that was kept in favour of an op that computes the same; -1 where there is none."""
        twin = self._facts.twins.get(operation.index, -1)
        # A move whose twin works nowhere is folded like the twin: nothing was kept in its favour.
        if operation.index in self._facts.moves:
            return self._working_twin(operation)
        # Of two that are the same the compiler may keep the later one, and its location.
        return twin if twin >= 0 else self._repeated.get(operation.index, -1)

    def _working_twin(self, operation: SourceOperation) -> int:
        """The earlier op that an op repeats, if that is a member of a site; -1 where there is none."""
        twin = self._facts.twins.get(operation.index, -1)
        return twin if twin in self._sites_of else -1

    def _folded(self, operation: SourceOperation, slug: str) -> Judgement:
        """Folded into the nearest op that does work: one that uses it, else one whose result it passes on."""
        found = (nearest.get(operation.index) for nearest in self._nearest_members)
        member = next((each for each in found if each is not None), None)
        if member is None:
            return Fate.FOLDED, reason("simplified-away" if slug == "simplified" else "passed-through")
        return Fate.FOLDED, reason(slug, f"{self._operations[member].name} at {self._facts.place(member)}")

    @cached_property
    def _nearest_members(self) -> Sequence[Mapping[Node, int]]:
        """Of each op the nearest that does work: down and up without loops and branches between, then past these."""
        members = self._sites_of.keys()
        ways = [(down, past) for past in (False, True) for down in (True, False)]
        return [self._dataflow.all_nearest(members, downwards=down, past_control=past) for down, past in ways]
