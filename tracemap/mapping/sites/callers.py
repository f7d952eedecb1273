"""Which function users call to reach another one of the host program."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Set

from tracemap.ir.flow import FlowProgram

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
