"""Reads the loops of a stage, and what is outside of them, by the tags of the model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tracemap.graph.lowering import LOOPS, Link, Loop, Remainder, SourceOp, Stage
from tracemap.graph.ops import Evidence, OpId
from tracemap.ir.parsing import MlirParser, Module
from tracemap.ir.stages import StageOp, read_stage
from tracemap.mapping.lowering.kinds import (
    Kind,
    is_evidence,
    is_looked_into,
    is_of_the_program,
    kind_of,
    loops_and_rest,
    outermost_loops,
)
from tracemap.mapping.lowering.losses import Losses
from tracemap.mapping.model.facts import ModelFacts
from tracemap.mapping.model.kinds import is_constant
from tracemap.mapping.tagging import Provenance
from tracemap.units import UNKNOWN, Integer


class StageReader:
    """Reads the stages of one model. `ops`: those that are looked for."""

    def __init__(self, parser: MlirParser, provenance: Provenance, facts: ModelFacts) -> None:
        self._parser = parser
        self._provenance = provenance
        self._facts = facts
        followed = [op for op in facts.ops if is_of_the_program(op)]
        self.ops = tuple(
            SourceOp(OpId.of(op.index), op.name, op.function, op.line, op.column, is_constant(op)) for op in followed
        )
        self._followed = frozenset(op.index for op in followed)
        self._losses = Losses(facts, followed)

    def stage(self, pipeline: str, module: Module, text: str, lines: Sequence[Integer]) -> Stage:
        """The module after a pipeline. `lines`: of its operations in `text`, in pre-order; empty where not known."""
        root = read_stage(self._parser, module, lines)
        loops: list[Loop] = []
        remainders: list[Remainder] = []
        for operation in loops_and_rest(root):
            if operation.name in LOOPS:
                loops.append(self._loop(operation, f"loop{len(loops)}"))
            else:
                inside = [operation] if is_looked_into(operation) else operation.walk()
                remainder = Remainder(operation.name, operation.function, operation.line, self._links(inside))
                remainders += [remainder] if remainder.links else []
        inlined = self._inlined(root)
        links = [link for loop in loops for link in loop.links] + [link for each in remainders for link in each.links]
        found = inlined | {link.op for link in links}
        return Stage(pipeline, text, tuple(loops), tuple(remainders), inlined, self._losses.reasons(found))

    def _loop(self, operation: StageOp, name: str) -> Loop:
        inside = list(operation.walk())
        working = [each for each in inside if kind_of(each) is Kind.WORK]
        children = enumerate(outermost_loops(operation.children))
        return Loop(
            id=name,
            name=operation.name,
            function=operation.function,
            line=operation.line,
            last_line=max((each.line for each in inside if each.line is not UNKNOWN), default=UNKNOWN),
            links=self._links(inside),
            operations=len(working),
            untraced=sum(1 for each in working if not self._provenance.of(each.location)),
            children=tuple(self._loop(child, f"{name}.{number}") for number, child in children),
        )

    def _links(self, operations: Iterable[StageOp]) -> tuple[Link, ...]:
        """The ops that work in the operations, in the order of the model."""
        evidence: dict[int, Evidence] = {}
        lines: dict[int, set[int]] = {}
        for operation in operations:
            kind = kind_of(operation)
            if kind is Kind.TERMINATOR:
                continue
            indices = self._provenance.of(operation.location)
            owners = self._owners(indices)
            for owner in owners:
                if operation.line is not UNKNOWN:
                    lines.setdefault(owner, set()).add(operation.line)
            # Lines show all that carries the tag, a link needs evidence; LOCATED is what no other op shares.
            for owner in self._owners(index for index in indices if is_evidence(kind, self._facts.operations[index])):
                if len(owners) == 1:
                    evidence[owner] = Evidence.LOCATED
                else:
                    evidence.setdefault(owner, Evidence.FUSED)
        return tuple(
            Link(OpId.of(owner), kind, tuple(sorted(lines.get(owner, ())))) for owner, kind in sorted(evidence.items())
        )

    def _owners(self, indices: Iterable[int]) -> frozenset[int]:
        return self._facts.owners(indices) & self._followed

    def _inlined(self, root: StageOp) -> frozenset[OpId]:
        """The calls on the caller sides of locations: what they called stands in their place."""
        ways = (way for operation in root.walk() for way in self._provenance.ways(operation.location))
        callers = {call for _, path in ways for call in path}
        return frozenset(OpId.of(index) for index in callers & self._facts.call_ops & self._followed)
