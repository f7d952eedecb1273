"""The tags in the text of a dump, without parsing it: a dump is large, and asked only which tags its operations carry.

Locations are printed as aliases (`#loc5 = loc(callsite(#loc3 at #loc1))`), which operations name. Of call sites only
the callee side counts: the caller side names calls and functions, long after they are gone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

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
        for token in _callee_side(body):
            found |= self._of_alias(token) if token.startswith("#") else self._of_name(token[1:-1])
        return frozenset(found)

    def _of_name(self, name: str) -> frozenset[int]:
        number = name[len(self._prefix) :]
        return frozenset((int(number),) if name.startswith(self._prefix) and number.isdecimal() else ())


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
