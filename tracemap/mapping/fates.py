"""What became of each op, and why: exactly one fate, with a reason that a user understands, and its last phase.

Evidence comes first: memberships, then the tags that the flow phase still carries outside of dispatches. What is found
nowhere is reasoned about over the def-use graph of the model: constants, dead code, twins, folded moves of elements.
Reasons that rest on such reasoning alone are in `INFERRED`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tracemap.graph.ops import PHASES, SOURCE, Fate, Reason
from tracemap.graph.program import Site
from tracemap.ir.source import CONTROL_FLOW, SourceOperation
from tracemap.mapping.model.dataflow import Node
from tracemap.mapping.model.facts import ModelFacts
from tracemap.mapping.model.kinds import (
    accesses_global,
    is_call,
    is_constant,
    is_destination,
    is_structural,
    makes_host_values,
    makes_numbers,
    only_renames,
)
from tracemap.units import plural

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
    """
    computed-at-compile-time dead dead-function folded-indexing folded-initial folded-renaming passed-through
    simplified simplified-away twin used-by-removed
    """.split()
)
"""Reasons that rest on reasoning over the model, not on what the compiler's output carries."""


def reason(slug: str, where: str = "") -> Reason:
    """The reason of a slug; `where`: what stands in for `{where}` in its sentence."""
    return Reason(slug, REASONS[slug].format(where=where), slug in INFERRED)


_TRANSFERS = frozenset({f"flow.tensor.{name}" for name in ("splat", "slice", "update", "clone", "transfer")})
_HOST_CONSTANTS = frozenset({"flow.tensor.constant", "arith.constant", "util.buffer.constant"})

Judgement = tuple[Fate, Reason]


class Judge:
    """Decides the fates of all ops of a model.

    `sites_of`: op index -> sites that it is a member of; `host_names`: op index -> names of the flow phase's host
    operations that came from it.
    """

    def __init__(
        self, facts: ModelFacts, sites_of: Mapping[int, Sequence[Site]], host_names: Mapping[int, frozenset[str]]
    ) -> None:
        self._facts = facts
        self._operations = facts.operations
        self._dataflow = facts.dataflow
        self._sites_of = sites_of
        self._host_names = host_names
        self._found: dict[int, Judgement] = {}

    def fates(self) -> Mapping[int, Judgement]:
        """The fate of every op, by index. Users are judged before what they use."""
        for operation in reversed(self._facts.ops):
            self._found[operation.index] = (
                self._by_evidence(operation)
                or self._by_kind(operation)
                or self._by_reasoning(operation)
                or (Fate.UNKNOWN, reason("not-yet-classified"))
            )
        return self._found

    def _by_evidence(self, operation: SourceOperation) -> Judgement | None:
        sites = self._sites_of.get(operation.index, ())
        # A site that runs on every call beats all else, though the op may be a constant or a copy elsewhere.
        running = [site for site in sites if not site.initializer]
        if running:
            return Fate.DISPATCHED, reason("in-sites", plural(len(running), "site"))
        if is_structural(operation):
            return Fate.STRUCTURAL, reason("is-structure")
        if is_constant(operation):
            return Fate.CONSTANT, reason("is-constant")
        names = self._host_names.get(operation.index, frozenset())
        if not names.isdisjoint(_TRANSFERS) and not accesses_global(operation):
            return Fate.TRANSFER, reason("is-command")
        if sites:
            return Fate.LOAD_TIME, reason("at-load", plural(len(sites), "site"))
        if not names.isdisjoint(_HOST_CONSTANTS) and operation.index in self._dataflow.constant:
            return Fate.CONSTANT, reason("computed-at-compile-time")
        return None

    def _by_kind(self, operation: SourceOperation) -> Judgement | None:
        function = operation.function
        if function in self._facts.model.private and not self._facts.calls.of(str(function)):
            return Fate.REMOVED, reason("dead-function")
        if is_call(operation):
            return Fate.HOST, reason("call")
        if operation.name in CONTROL_FLOW:
            return Fate.HOST, reason("control-flow")
        if accesses_global(operation):
            return Fate.STRUCTURAL, reason("global-access")
        if operation.index not in self._dataflow.live:
            return Fate.REMOVED, reason("dead")
        if not operation.results:
            return Fate.HOST, reason("check")
        if is_destination(operation):
            return self._folded(operation, "folded-initial")
        if operation.index in self._dataflow.constant:
            return Fate.CONSTANT, reason("computed-at-compile-time")
        if makes_host_values(operation) or self._counts_for_control(operation):
            return Fate.HOST, reason("host-work")
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
            if not makes_numbers(user):
                return False
            stack += self._dataflow.graph.successors(node)
        return len(seen) > 1  # else nothing uses it, which says nothing about control

    def _by_reasoning(self, operation: SourceOperation) -> Judgement | None:
        # A move whose twin works nowhere is folded like the twin: nothing was kept in its favour.
        twin = self._facts.twins.get(operation.index, -1)
        if twin >= 0 and (twin in self._sites_of or operation.index not in self._facts.moves):
            return Fate.REMOVED, reason("twin", self._facts.place(twin))
        if operation.index in self._facts.moves:
            return self._folded(operation, "folded-renaming" if only_renames(operation) else "folded-indexing")
        users = [user for user in self._dataflow.users(operation.index) if isinstance(user, int)]
        fates = [self._found[user][0] for user in users if user in self._found]
        if users and len(fates) == len(users) and all(fate in (Fate.REMOVED, Fate.CONSTANT) for fate in fates):
            return Fate.REMOVED, reason("used-by-removed")
        return self._folded(operation, "simplified")

    def _folded(self, operation: SourceOperation, slug: str) -> Judgement:
        """Folded into the nearest op that does work: one that uses it, else one whose result it passes on."""
        members = self._sites_of.keys()
        member = self._dataflow.nearest(operation.index, members, downwards=True)
        if member is None:
            member = self._dataflow.nearest(operation.index, members, downwards=False)
        if member is None:
            return Fate.FOLDED, reason("simplified-away" if slug == "simplified" else "passed-through")
        return Fate.FOLDED, reason(slug, f"{self._operations[member].name} at {self._facts.place(member)}")


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
