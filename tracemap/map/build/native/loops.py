"""The trace graph of native code: functions and their outermost loops take the place of dispatch sites and kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from tracemap.core.functions import Argument, Function
from tracemap.core.units import UNKNOWN, Integer
from tracemap.ir.dumps import StageOp
from tracemap.ir.generic_text import GenericModule, GenericOperation, split_function_type, symbol_of
from tracemap.ir.source_model import SourceOperation
from tracemap.map.build.lowering_stages import outermost_loops
from tracemap.map.build.model.kinds import is_call, is_constant, is_structural
from tracemap.map.build.model.model_facts import ModelFacts
from tracemap.map.build.outcomes import Judgement, reason
from tracemap.map.build.tagging import Provenance
from tracemap.map.lowering import LOOPS, Link, Loop, Stage
from tracemap.map.model import CallPath, Evidence, Kernel, KernelLine, Membership, OpId, Outcome, Reason, Site, sort_ops

_FUNCTION: Final = "func.func"
_CALL: Final = "func.call"
MOST_SITES: Final = 100_000
"""Calls of functions that call functions multiply; from here on, only functions without a site get sites."""

_FOR_REASONS: Final[Mapping[str, Outcome]] = {
    "twin": Outcome.REMOVED,
    "dead": Outcome.REMOVED,
    "passed-through": Outcome.FOLDED,
    "computed-at-compile-time": Outcome.CONSTANT,
}
"""The outcome for each reason of a stage."""


def loop_kernel(function: str, loop: str) -> str:
    """The name of the code of an outermost loop; the code outside of loops has the function's name.

    >>> loop_kernel("main", "loop0")
    'main/loop0'
    """
    return f"{function}/{loop}"


@dataclass(frozen=True)
class _Part:
    """A loop of a function, or all its code outside of loops: the links to ops, and the operations."""

    name: str
    links: tuple[Link, ...]
    operations: tuple[StageOp, ...]


class NativeProgram:
    """The functions and loops of a program, and the ops of the model in each.

    Args:
        facts: the model.
        provenance: the ops that the locations of `module` stand for.
        module: the program, at the last stage that has loops.
        root: the same operations as a tree.
        stage: its loops, linked to ops.
        text: the name of the stage's text in the bundle.
    """

    def __init__(
        self,
        facts: ModelFacts,
        provenance: Provenance,
        module: GenericModule,
        root: StageOp,
        stage: Stage,
        text: str,
    ) -> None:
        self._facts = facts
        self._provenance = provenance
        self._module = module
        self._root = root
        self._stage = stage
        self._text = text

    # ---- parts

    @cached_property
    def _parts(self) -> Mapping[str, Sequence[_Part]]:
        """The parts of each function, its code outside of loops last."""
        loops_of: dict[str, list[Loop]] = {}
        for loop in self._stage.loops:
            loops_of.setdefault(loop.function, []).append(loop)
        links_outside: dict[str, list[Link]] = {}
        for outside in self._stage.remainders:
            links_outside.setdefault(outside.function, []).extend(outside.links)
        parts: dict[str, Sequence[_Part]] = {}
        for function in self._root.walk():
            name = function.function
            # Of functions of one name, in several modules, only the first is known.
            if function.name != _FUNCTION or not function.children or name in parts:
                continue
            pairs = zip(loops_of.get(name, ()), outermost_loops(function.children), strict=False)
            loops = [_Part(loop_kernel(name, loop.id), loop.links, (operation,)) for loop, operation in pairs]
            rest = _Part(name, _merged(links_outside.get(name, ())), tuple(_outside_loops(function.children)))
            parts[name] = [*loops, rest]
        return parts

    def kernels(self, sites: Sequence[Site]) -> tuple[Kernel, ...]:
        """The code of each function and loop that a site runs, in the order of the text."""
        sites_of: dict[str, list[str]] = {}
        for site in sites:
            sites_of.setdefault(site.kernel, []).append(site.id)
        return tuple(
            Kernel(part.name, tuple(sites_of[part.name]), self._steps(part), self._text)
            for parts in self._parts.values()
            for part in parts
            if part.name in sites_of
        )

    def _steps(self, part: _Part) -> tuple[KernelLine, ...]:
        members = {link.op for link in part.links}
        steps: dict[int, KernelLine] = {}

        def add(operation: StageOp, parent: Integer) -> None:
            line = operation.line
            if isinstance(line, int) and line not in steps:
                owners = self._facts.owners(self._provenance.of(operation.location))
                ops = sort_ops(op for op in map(OpId.of, owners) if op in members)
                steps[line] = KernelLine(line, operation.name, ops, parent)
            for child in operation.children:
                add(child, parent if line is UNKNOWN else line)

        for operation in part.operations:
            add(operation, UNKNOWN)
        return tuple(steps[line] for line in sorted(steps))

    # ---- sites

    def sites(self) -> tuple[Site, ...]:
        """The loops and remaining code that each public function runs, with the calls that lead to them.

        Once there are very many, functions that have sites are not followed again; see `MOST_SITES`.
        """
        sites: list[Site] = []
        visited: set[str] = set()

        def follows(function: str) -> bool:
            known = function in visited
            visited.add(function)
            return not known or len(sites) < MOST_SITES

        for function in self.entry_points():
            for path, part in self._reached(function.name, (), (), follows):
                ordinal = len(sites)
                sites.append(
                    Site(
                        id=f"site{ordinal}",
                        ordinal=ordinal,
                        function=function.name,
                        path=path,
                        kernel=part.name,
                        initializer=False,
                        command_buffer=UNKNOWN,
                        command_index=UNKNOWN,
                        members=_members(part.links, path),
                    )
                )
        return tuple(sites)

    def _reached(
        self, function: str, path: CallPath, callers: tuple[str, ...], follows: Callable[[str], bool]
    ) -> Iterator[tuple[CallPath, _Part]]:
        if function in callers or not follows(function):
            return
        for part in self._parts.get(function, ()):
            yield path, part
        for callee, call in self._calls.get(function, ()):
            yield from self._reached(callee, (*path, *call), (*callers, function), follows)

    @cached_property
    def _calls(self) -> Mapping[str, Sequence[tuple[str, CallPath]]]:
        """The functions that each function calls, with the op of the model that is the call, if it is known."""
        calls: dict[str, list[tuple[str, CallPath]]] = {}
        for operation, location in zip(self._module.operations, self._module.locations, strict=True):
            if operation.name == _CALL:
                owners = sorted(self._facts.owners(self._provenance.of(location)) & self._facts.call_ops)
                target = symbol_of(operation, "callee")
                calls.setdefault(_function_of(operation), []).append((target, tuple(map(OpId.of, owners[:1]))))
        return calls

    def entry_points(self) -> tuple[Function, ...]:
        """The functions that other programs can call, with their arguments."""
        functions = []
        for operation in self._module.operations:
            if operation.name != _FUNCTION or operation.attributes.get("sym_visibility") == '"private"':
                continue
            blocks = [block for region in operation.regions for block in region]
            if blocks:
                name = symbol_of(operation, "sym_name")
                known = self._facts.model.arguments.get(name, ())
                names = [argument.name for argument in known] if len(known) == len(blocks[0].arguments) else []
                arguments = (
                    Argument(
                        names[index] if index < len(names) and names[index] else f"input{index}", kind, loop_bound=False
                    )
                    for index, (_, kind, _) in enumerate(blocks[0].arguments)
                )
                functions.append(Function(name, tuple(arguments), _results_of(operation)))
        return tuple(functions)

    # ---- outcomes

    def judgement(self, operation: SourceOperation) -> Judgement:
        """The outcome of an op, and its reason."""
        op = OpId.of(operation.index)
        if is_structural(operation):
            return Outcome.STRUCTURAL, reason("is-structure")
        place = self._stage.place_of(op)
        if place.loops or place.remainders:
            function = "" if operation.function is UNKNOWN else str(operation.function)
            where = ", ".join(place.loops) if place.loops else f"{function}, outside of loops"
            return Outcome.DISPATCHED, Reason("in-loops", f"runs in {where}")
        if is_call(operation):
            return Outcome.HOST, reason("call")
        if place.reason is not UNKNOWN:
            return _FOR_REASONS.get(str(place.reason.slug), Outcome.UNKNOWN), place.reason
        if is_constant(operation):
            return Outcome.CONSTANT, reason("is-constant")
        return Outcome.UNKNOWN, reason("not-yet-classified")


def _results_of(function: GenericOperation) -> tuple[str, ...]:
    """The types of a function's results, from its type `(…) -> …`."""
    _, results = split_function_type(function.attributes.get("function_type", "() -> ()"))
    return results


def _function_of(operation: GenericOperation) -> str:
    parent: GenericOperation | None = operation
    while parent is not None:
        if parent.name == _FUNCTION:
            return symbol_of(parent, "sym_name")
        parent = parent.parent
    return ""


def _outside_loops(operations: Sequence[StageOp]) -> Iterator[StageOp]:
    """The operations outside of loops; of one that holds loops, only itself and what is outside of these."""
    for operation in operations:
        if operation.name in LOOPS:
            continue
        if next(outermost_loops(operation.children), None) is None:
            yield operation
        else:
            yield StageOp(operation.name, operation.location, operation.function, operation.line, False, ())
            yield from _outside_loops(operation.children)


def _merged(links: Sequence[Link]) -> tuple[Link, ...]:
    """One link for each op, with the best evidence and all lines."""
    of_op: dict[OpId, list[Link]] = {}
    for link in links:
        of_op.setdefault(link.op, []).append(link)
    merged = {
        op: Link(
            op,
            Evidence.LOCATED if any(link.evidence is Evidence.LOCATED for link in own) else Evidence.FUSED,
            tuple(sorted({line for link in own for line in link.lines})),
        )
        for op, own in of_op.items()
    }
    return tuple(merged[op] for op in sort_ops(merged))


def _members(links: Sequence[Link], path: CallPath) -> tuple[Membership, ...]:
    """The ops of a part. The one with most lines is its root, the last of several."""
    root = max(links, key=lambda link: (len(link.lines), link.op.number), default=None)
    return tuple(Membership(link.op, link.evidence, link is root, UNKNOWN, UNKNOWN, UNKNOWN, path) for link in links)
