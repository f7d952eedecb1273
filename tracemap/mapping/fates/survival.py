"""How far each op's location gets: in which phases the tags still stand.

A phase's dump is read as text, for it is large and asked only one thing. Locations are printed as aliases
(`#loc5 = loc(callsite(#loc3 at #loc1))`), which operations name. Of call sites only the callee side counts: the caller
side names calls and functions, long after they are gone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from tracemap.graph.model import PHASES, SOURCE
from tracemap.locations import CallSite as CallSiteLocation
from tracemap.locations import FileRange, Location, Name
from tracemap.locations import Fused as FusedLocation

_ALIAS = re.compile(r"^(#loc\d*) = loc\((.*)\)$", re.MULTILINE)
# An operation's location ends its line; those of block arguments stand elsewhere and say nothing of operations.
_USE = re.compile(r" loc\((#loc\d*)\)$", re.MULTILINE)
_INLINE = re.compile(r"^(?!#loc).* loc\(([\"cf].*)\)$", re.MULTILINE)
_REFERENCE = re.compile(r"#loc\d*")
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|#loc\d*|\bcallsite\(|\bat\b|[()]')


class DumpText:
    """The tags in the text of a dump, by what carries them."""

    def __init__(self, text: str, prefix: str) -> None:
        self.text = text
        self._prefix = prefix
        self._bodies = dict(_ALIAS.findall(text))
        self._known: dict[str, frozenset[int]] = {}

    def tags(self) -> frozenset[int]:
        """The tags of all operations, callee sides only."""
        found: set[int] = set()
        for alias in set(_USE.findall(self.text)):
            found |= self._of_alias(alias)
        if not self._bodies:  # printed in local scope, without aliases
            for body in _INLINE.findall(self.text):
                found |= self._own(body)
        return frozenset(found)

    def of_line(self, line: str) -> frozenset[int]:
        """The tags of the operation that a line of the text ends with, callee sides only."""
        start = line.rfind(" loc(")
        if start < 0 or line.startswith("#"):
            return frozenset()
        return self._own(line[start + len(" loc(") :].removesuffix(")"))

    def _of_alias(self, alias: str) -> frozenset[int]:
        known = self._known.get(alias)
        if known is None:
            self._known[alias] = frozenset()  # an alias cannot name itself; damaged text must not loop
            known = self._known[alias] = self._own(self._bodies.get(alias, ""))
        return known

    def _own(self, body: str) -> frozenset[int]:
        """The tags in the printed form of a location, without those behind an `at`."""
        if '"' not in body and body.rfind("callsite(") <= 0:  # nothing but aliases, as nearly always
            callee = body.partition(" at ")[0]
            return frozenset().union(*map(self._of_alias, _REFERENCE.findall(callee)))
        found: set[int] = set()
        depth = 0
        skipped_from = -1
        for token in _TOKEN.findall(body):
            if token == ")":
                depth -= 1
                if depth < skipped_from:
                    skipped_from = -1
            elif token.endswith("(") and token in ("(", "callsite("):
                depth += 1
            elif skipped_from >= 0:
                continue
            elif token == "at":
                skipped_from = depth
            elif token.startswith("#"):
                found |= self._of_alias(token)
            elif token[1:].startswith(self._prefix) and token[1 + len(self._prefix) : -1].isdecimal():
                found.add(int(token[1 + len(self._prefix) : -1]))
        return frozenset(found)


def owners_in(text: str, prefix: str, owner_of: Mapping[int, int]) -> frozenset[int]:
    """The indices of the ops that a dump still locates, by their own tag or by a part's."""
    return frozenset(owner_of[tag] for tag in DumpText(text, prefix).tags() if tag in owner_of)


class Survival:
    """Collects, phase by phase, which ops are still located."""

    def __init__(self) -> None:
        self._last: dict[int, int] = {}
        self._seen: set[str] = set()

    def add(self, phase: str, located: Iterable[int]) -> None:
        """The ops that are located after a phase; phases may come in any order, and some not at all."""
        self._seen.add(phase)
        place = PHASES.index(phase)
        for index in located:
            self._last[index] = max(place, self._last.get(index, place))

    def last_phase(self, index: int) -> str:
        """The last phase that locates an op; `SOURCE` where none does."""
        return PHASES[self._last[index]] if index in self._last else SOURCE


def is_informative(location: Location) -> bool:
    """Whether a location says anything: a place in a file or a name, at any depth."""
    match location:
        case FileRange(file=file, line=line):
            return bool(file) and line > 0
        case Name(name=name, child=child):
            return bool(name) or is_informative(child)
        case CallSiteLocation(callee=callee, caller=caller):
            return is_informative(callee) or is_informative(caller)
        case FusedLocation(locations=locations):
            return any(is_informative(part) for part in locations)
        case _:
            return False
