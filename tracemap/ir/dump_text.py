"""The tags in the text of a dump, without parsing it: a dump is large, and asked only which tags its operations carry.

Locations are printed as aliases (`#loc5 = loc(callsite(#loc3 at #loc1))`), which operations name. Of call sites only
the callee side counts: the caller side names calls and functions, long after they are gone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from tracemap.locations import STRING

_ALIAS = re.compile(r"^(#loc\d*) = loc\((.*)\)$", re.MULTILINE)
# An operation's location ends its line; those of block arguments stand elsewhere and say nothing of operations.
_USE = re.compile(r" loc\((#loc\d*)\)$", re.MULTILINE)
_INLINE = re.compile(r"^(?!#loc).* loc\(([\"cf].*)\)$", re.MULTILINE)
_NAME = re.compile(r'"[^"\\]*"')
_REFERENCE = re.compile(r"#loc\d*")
_TOKEN = re.compile(STRING + r"|#loc\d*|\bcallsite\(|\bat\b|[()]")


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
        if not self._bodies:  # printed in local scope, without aliases
            for body in _INLINE.findall(self.text):
                found |= self._own(body)
            return frozenset(found)
        # Each alias is looked at once, whatever names it: sets for each, put together, take several times as long.
        reached = set(_USE.findall(self.text))
        waiting = list(reached)
        while waiting:
            for each in _named(self._bodies.get(waiting.pop(), "")):
                if each[0] != "#":
                    found |= self._of_name(each[1:-1])
                elif each not in reached:
                    reached.add(each)
                    waiting.append(each)
        return frozenset(found)

    def of_line(self, line: str) -> frozenset[int]:
        """The tags of the operation that a line of the text ends with, callee sides only."""
        start = line.rfind(" loc(")
        if start < 0 or line.startswith("#"):
            return frozenset()
        return self._own(line[start + len(" loc(") :].removesuffix(")"))

    def _of_alias(self, alias: str) -> frozenset[int]:
        """The tags of an alias. Those that it names are found first, without a call in a call: chains may be long."""
        waiting, begun = [alias], set[str]()
        while waiting:
            name = waiting[-1]
            named = [] if name in self._known else _named(self._bodies.get(name, ""))
            if name not in begun:
                begun.add(name)
                # Damaged text must not loop: what has begun and is not known names itself.
                waiting += [each for each in named if each[0] == "#" and each not in self._known and each not in begun]
                continue
            waiting.pop()
            if name not in self._known:
                self._known[name] = self._union(named)
        return self._known[alias]

    def _own(self, body: str) -> frozenset[int]:
        """The tags in the printed form of a location, without those behind an `at`."""
        named = _named(body)
        for each in named:
            if each[0] == "#" and each not in self._known:
                self._of_alias(each)
        return self._union(named)

    def _union(self, named: Iterable[str]) -> frozenset[int]:
        return frozenset().union(
            *(self._known.get(each, frozenset()) if each[0] == "#" else self._of_name(each[1:-1]) for each in named)
        )

    def _of_name(self, name: str) -> frozenset[int]:
        number = name[len(self._prefix) :]
        return frozenset((int(number),) if name.startswith(self._prefix) and number.isdecimal() else ())


def _named(body: str) -> Sequence[str]:
    """The names and aliases of a location's callee side."""
    if '"' not in body and body.rfind("callsite(") <= 0:  # nothing but aliases, as nearly always
        return _REFERENCE.findall(body.partition(" at ")[0])
    if _NAME.fullmatch(body):
        return (body,)
    return list(_callee_side(body))


def _callee_side(body: str) -> Iterator[str]:
    """The names and aliases in the printed form of a location that stand behind no `at`."""
    depth = 0
    skipped_from = -1  # the depth of the `at` whose caller side is being skipped; -1: none is
    for token in _TOKEN.findall(body):
        if token == ")":
            depth -= 1
            if depth < skipped_from:
                skipped_from = -1
        elif token in ("(", "callsite("):
            depth += 1
        elif token == "at":
            skipped_from = depth if skipped_from < 0 else skipped_from
        elif skipped_from < 0:
            yield token
