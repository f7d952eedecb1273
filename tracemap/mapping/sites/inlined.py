"""Dispatches of functions that the compiler inlines after the flow phase: each call has its own.

The functions of a model are inlined before. But what a preprocessing pass puts in place of ops may be a call of a
function that it brings along (`transform.util.cast_and_call`), and that is inlined later: its dispatch becomes as many
commands as there are calls, each located in the function at the location of the call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

from tracemap.ir.flow import DispatchRegion, FlowDispatch, FlowProgram, HostCall
from tracemap.locations import CallSite, Location

Placed = tuple[FlowDispatch, DispatchRegion | None]
"""A dispatch with its body."""


def inlined_later(flow: FlowProgram) -> frozenset[str]:
    """The functions that may be inlined after the flow phase: private ones with dispatches, of their own or below."""
    private = {function.name for function in flow.functions if not function.public}
    found = {dispatch.function for dispatch in flow.dispatches} & private
    while more := {call.function for call in flow.calls if call.callee in found} & private - found:
        found |= more
    return frozenset(found)


def with_inlined(
    flow: FlowProgram, bodies: Collection[DispatchRegion | None], inlined: Collection[str]
) -> tuple[FlowProgram, list[DispatchRegion | None]]:
    """The flow phase with the dispatches of each call of inlined functions, in order, and their bodies.

    Args:
        flow: the phase.
        bodies: of its dispatches.
        inlined: the names of functions that the next phase has no more. One that calls itself is not followed twice:
            nothing of it runs.
    """
    placed = _Inliner(flow, tuple(zip(flow.dispatches, bodies, strict=True)), frozenset(inlined)).placed()
    return replace(flow, dispatches=tuple(dispatch for dispatch, _ in placed)), [body for _, body in placed]


@dataclass(frozen=True, slots=True)
class _Inliner:
    flow: FlowProgram
    dispatches: tuple[Placed, ...]
    inlined: frozenset[str]

    def placed(self) -> list[Placed]:
        return [*self._of(lambda function: function not in self.inlined, frozenset())]

    def _of(self, chosen: Callable[[str], bool], within: frozenset[str]) -> Iterator[Placed]:
        """What functions dispatch, in the order of the text, with what the functions that they call do.

        `within`: the functions that are being inlined.
        """
        at = 0
        for call in self.flow.calls:
            if call.callee in self.inlined - within and chosen(call.function):
                yield from self._own(at, call.behind, chosen)
                yield from self._called(call, within | {call.callee})
                at = call.behind
        yield from self._own(at, len(self.dispatches), chosen)

    def _own(self, first: int, end: int, chosen: Callable[[str], bool]) -> Iterator[Placed]:
        return (placed for placed in self.dispatches[first:end] if chosen(placed[0].function))

    def _called(self, call: HostCall, within: frozenset[str]) -> Iterator[Placed]:
        at: dict[int, Location] = {}

        def moved(location: Location) -> Location:
            # One object for each, which is what others know locations by.
            return at.setdefault(id(location), CallSite(location, call.location))

        def body_at(body: DispatchRegion) -> DispatchRegion:
            inside = tuple(replace(op, location=moved(op.location)) for op in body.body)
            return replace(body, function=call.function, location=moved(body.location), body=inside)

        for dispatch, body in self._of(lambda function: function == call.callee, within):
            here = FlowDispatch(call.function, moved(dispatch.location), dispatch.kernel, call.around + dispatch.around)
            yield here, None if body is None else body_at(body)
