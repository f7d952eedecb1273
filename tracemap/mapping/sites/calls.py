"""Entry points that reach a function, and functions that the compiler inlines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Set
from dataclasses import dataclass, replace

from tracemap.ir.flow import DispatchRegion, FlowDispatch, FlowProgram, HostCall
from tracemap.locations import CallSite, Location

# ---- callers
#
# Which function users call to reach another one of the host program.


ASYNC_SUFFIX = "$async"
"""The compiler makes a function `f$async` of each public function `f`, and `f` waits for it."""


def public_callers(flow: FlowProgram) -> dict[str, str]:
    """For each function the public function that users call to reach it.

    The asynchronous form `f$async` is reached through its wrapper `f`; a private function that several public ones
    reach stands for itself.
    """
    callers: dict[str, set[str]] = defaultdict(set)
    for function in flow.functions:
        for callee in function.calls:
            callers[callee].add(function.name)
    public = {function.name for function in flow.functions if function.public}
    found: dict[str, str] = {}
    for name in (function.name for function in flow.functions):
        if name in public:
            found[name] = _wrapper(name, public)
        else:
            # f and f$async both reach what f$async calls: they are one public function.
            reaching = {_wrapper(caller, public) for caller in _reaching(name, callers) if caller in public}
            found[name] = reaching.pop() if len(reaching) == 1 else name
    return found


def _wrapper(name: str, public: Set[str]) -> str:
    plain = name.removesuffix(ASYNC_SUFFIX)
    return plain if plain in public else name


def _reaching(name: str, callers: Mapping[str, Set[str]]) -> set[str]:
    """The functions that call a function, directly or not."""
    seen: set[str] = set()
    stack = [name]
    while stack:
        for caller in callers.get(stack.pop(), ()):
            if caller not in seen:
                seen.add(caller)
                stack.append(caller)
    return seen


# ---- inlined
#
# Dispatches of functions that the compiler inlines after the flow phase: each call has its own.
#
# The functions of a model are inlined before. But what a preprocessing pass puts in place of ops may be a call of a
# function that it brings along (`transform.util.cast_and_call`), and that is inlined later: its dispatch becomes as
# many commands as there are calls, each located in the function at the location of the call.


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
