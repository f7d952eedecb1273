"""Why ops are found nowhere in a stage, as far as the model as written tells; it is all inferred."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tracemap.graph.ops import OpId, Reason
from tracemap.ir.source import SourceOperation
from tracemap.mapping.fates.reasons import reason
from tracemap.mapping.lowering.kinds import names_memory
from tracemap.mapping.model.facts import ModelFacts
from tracemap.mapping.model.kinds import is_call


class Losses:
    """Finds the reasons of one model. `followed`: the ops that are looked for in stages."""

    def __init__(self, facts: ModelFacts, followed: Sequence[SourceOperation]) -> None:
        self._facts = facts
        self._followed = followed

    def reasons(self, found: Collection[OpId]) -> dict[OpId, Reason]:
        """The reason of each op that is not among those found, where there is one."""
        reasons = {}
        for operation in self._followed:
            op = OpId.of(operation.index)
            slug = "" if op in found else self._slug(operation, found)
            if slug:
                where = self._facts.place(self._facts.twins[operation.index]) if slug == "twin" else ""
                reasons[op] = reason(slug, where)
        return reasons

    def _slug(self, operation: SourceOperation, found: Collection[OpId]) -> str:
        index = operation.index
        twin = self._facts.twins.get(index, -1)
        if operation.results and twin >= 0 and OpId.of(twin) in found and not _reads_memory(operation):
            return "twin"
        if index not in self._facts.dataflow.live:
            return "dead"
        if index in self._facts.moves or names_memory(operation):
            return "passed-through"
        return "computed-at-compile-time" if index in self._facts.dataflow.constant else ""


def _reads_memory(operation: SourceOperation) -> bool:
    """Whether an op may give another value each time though its operands are equal."""
    return operation.name.startswith(("affine.", "memref.", "scf.", "vector.")) or is_call(operation)
