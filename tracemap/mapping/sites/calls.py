"""Entry points that reach a function, and functions that the compiler inlines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Set
from dataclasses import dataclass, replace

from tracemap.ir.flow import DispatchRegion, FlowDispatch, FlowProgram, HostCall
from tracemap.locations import CallSite, Location

# ---- callers
#
# The function that users call to reach another function of the host program.


ASYNC_SUFFIX = "$async"
"""For each public function `f` the compiler makes a function `f$async`, and `f` waits for it."""


def public_callers(flow: FlowProgram) -> dict[str, str]:
    """For each function the public function that users call to reach it.

    The asynchronous form `f$async` is reached through its wrapper `f`. A private function that several public ones
    reach is its own entry.
    """
    callers: dict[str, set[str]] = defaultdict(set)
    for function in flow.functions:
        for callee in function.calls:
            callers[callee].add(function.name)
    public = {function.name for function in flow.functions if function.public}
    public_caller: dict[str, str] = {}
    for name in (function.name for function in flow.functions):
        if name in public:
            public_caller[name] = _wrapper(name, public)
        else:
            # f and f$async both reach the callees of f$async: they are one public function.
            entry_points = {_wrapper(caller, public) for caller in _reaching(name, callers) if caller in public}
            public_caller[name] = entry_points.pop() if len(entry_points) == 1 else name
    return public_caller


def _wrapper(name: str, public: Set[str]) -> str:
    base_name = name.removesuffix(ASYNC_SUFFIX)
    return base_name if base_name in public else name


def _reaching(name: str, callers: Mapping[str, Set[str]]) -> set[str]:
    """The functions that call a function, directly or indirectly."""
    visited: set[str] = set()
    stack = [name]
    while stack:
        for caller in callers.get(stack.pop(), ()):
            if caller not in visited:
                visited.add(caller)
                stack.append(caller)
    return visited


# ---- inlined
#
# Dispatches of functions that the compiler inlines after the flow phase, copied to each call.
#
# The model's own functions are inlined earlier. But a preprocessing pass may replace ops by a call of a function that
# it adds (`transform.util.cast_and_call`), and that is inlined later. Its dispatch becomes a command for each call,
# with the location of the dispatch in the function, called from the location of the call.

DispatchWithBody = tuple[FlowDispatch, DispatchRegion | None]
"""A dispatch with its body."""


def inlined_later(flow: FlowProgram) -> frozenset[str]:
    """Private functions with dispatches, directly or through calls, that may be inlined after the flow phase."""
    private = {function.name for function in flow.functions if not function.public}
    names = {dispatch.function for dispatch in flow.dispatches} & private
    while new_names := {call.function for call in flow.calls if call.callee in names} & private - names:
        names |= new_names
    return frozenset(names)


def with_inlined(
    flow: FlowProgram, bodies: Collection[DispatchRegion | None], inlined: Collection[str]
) -> tuple[FlowProgram, list[DispatchRegion | None]]:
    """The flow phase with the dispatches of inlined functions at each of their calls, in order, and their bodies.

    Args:
        flow: the phase.
        bodies: the bodies of its dispatches.
        inlined: the names of functions that the next phase no longer has. A recursive call is not followed twice, since
            nothing of it runs.
    """
    pairs = _Inliner(
        flow, tuple(zip(flow.dispatches, bodies, strict=True)), frozenset(inlined)
    ).dispatches_with_bodies()
    return replace(flow, dispatches=tuple(dispatch for dispatch, _ in pairs)), [body for _, body in pairs]


@dataclass(frozen=True, slots=True)
class _Inliner:
    flow: FlowProgram
    dispatches: tuple[DispatchWithBody, ...]
    inlined: frozenset[str]

    def dispatches_with_bodies(self) -> list[DispatchWithBody]:
        return [*self._dispatches_of(lambda function: function not in self.inlined, frozenset())]

    def _dispatches_of(self, is_selected: Callable[[str], bool], within: frozenset[str]) -> Iterator[DispatchWithBody]:
        """The dispatches of functions and of the functions that they call, in the order of the text.

        `within`: the functions that are being inlined.
        """
        position = 0
        for call in self.flow.calls:
            if call.callee in self.inlined - within and is_selected(call.function):
                yield from self._selected(position, call.behind, is_selected)
                yield from self._inlined_call(call, within | {call.callee})
                position = call.behind
        yield from self._selected(position, len(self.dispatches), is_selected)

    def _selected(self, first: int, end: int, is_selected: Callable[[str], bool]) -> Iterator[DispatchWithBody]:
        return (
            dispatches_with_bodies
            for dispatches_with_bodies in self.dispatches[first:end]
            if is_selected(dispatches_with_bodies[0].function)
        )

    def _inlined_call(self, call: HostCall, within: frozenset[str]) -> Iterator[DispatchWithBody]:
        cache: dict[int, Location] = {}

        def relocate(location: Location) -> Location:
            # One object for each location, since other code identifies locations by id().
            return cache.setdefault(id(location), CallSite(location, call.location))

        def body_at(body: DispatchRegion) -> DispatchRegion:
            operations = tuple(replace(op, location=relocate(op.location)) for op in body.body)
            return replace(body, function=call.function, location=relocate(body.location), body=operations)

        for dispatch, body in self._dispatches_of(lambda function: function == call.callee, within):
            inlined_dispatch = FlowDispatch(
                call.function, relocate(dispatch.location), dispatch.kernel, call.around + dispatch.around
            )
            yield inlined_dispatch, None if body is None else body_at(body)
