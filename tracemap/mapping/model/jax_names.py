"""Names of JAX's transformations in scopes, as the user writes them: `scan`, `remat`, `vmap`.

JAX names what it made of a transformation: the loop of a `scan` is `while/body/closed_call`. Names of derivatives stay:
`jvp(loss)` is the forward pass, `transpose(jvp(loss))` the backward one, and reports add both up in `loss`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Set

from tracemap.ir.source import SourceOperation
from tracemap.locations import Location, name_path, scope, split_path
from tracemap.units import Text

Scans = Set[tuple[Text, tuple[str, ...]]]
"""Functions with the scopes in which a `scan` stands."""

_BACKWARD = re.compile(r"transpose\((jvp\(.*\))\)", re.DOTALL)


class JaxNames:
    """What a model says of its transformations, and scopes by it."""

    def __init__(self, operations: Iterable[SourceOperation]) -> None:
        scans = set()
        for operation in operations:
            components = split_path(name_path(operation.location))
            if components[-1:] == ("scan",):  # beside its loop stands an op of its own name
                scans.add((operation.function, scope(operation.location)))
        self._scans: Scans = scans
        self._written: dict[tuple[tuple[str, ...], Text], tuple[str, ...]] = {}

    def scope(self, location: Location, function: Text) -> tuple[str, ...]:
        """The scope of an op of a function, with the names that the user knows."""
        given = scope(location)
        known = self._written.get((given, function))
        if known is None:
            known = self._written[given, function] = self._as_written(given, function)
        return known

    def _as_written(self, given: tuple[str, ...], function: Text) -> tuple[str, ...]:
        written: list[str] = []
        place = 0
        while place < len(given):
            names, steps = self._next(given, place, function)
            written += names
            place += steps
        return tuple(written)

    def _next(self, given: tuple[str, ...], place: int, function: Text) -> tuple[list[str], int]:
        """What the next components are called, and how many they are."""
        before, name, following = given[:place], given[place], given[place + 1 : place + 2]
        if backward := _BACKWARD.fullmatch(name):
            # The way to the forward pass may be repeated behind it.
            forward = (*before, backward[1])
            repeated = given[place + 1 : place + 1 + len(forward)] == forward
            return [name], 1 + (len(forward) if repeated else 0)
        if name == "while" and following in {("body",), ("cond",)} and (function, before) in self._scans:
            called = given[place + 2 : place + 3] == ("closed_call",)
            return ["scan", *(following if following == ("cond",) else ())], 3 if called else 2
        if (name, following) == ("checkpoint", ("rematted_computation",)):
            return ["remat"], 2
        return ["vmap" if name == "vmap()" else name], 1
