"""Phase dumps: tags in their text, and the operations of a stage as a tree."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tracemap.ir.bodies import computes_index
from tracemap.ir.parsing import MlirParser, Module, Operation, nested, printed_locations, string_attribute
from tracemap.locations import STRING, FileRange, Location
from tracemap.units import UNKNOWN, Integer

# ---- dump text
#
# The tags in the text of a dump, without parsing it: a dump is large, and asked only which tags its operations carry.
#
# Locations are printed as aliases (`#loc5 = loc(callsite(#loc3 at #loc1))`), which operations name. Of call sites only
# the callee side counts: the caller side names calls and functions, long after they are gone.


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


# ---- stages
#
# The operations of a stage of lowering as a tree: where each came from, and on which line of the text it stands.


_ELEMENTS_SHOWN = 16
"""Constants with more elements, and resources of more characters, are left out of the text of a stage."""


@dataclass(frozen=True, slots=True)
class StageOp:
    """An operation of a stage, and those in its regions.

    `function`: the innermost symbol around it that is no module, "" where there is none; `line`: in the stage's text;
    `computes_index`: all its results are indices.
    """

    name: str
    location: Location
    function: str
    line: Integer
    computes_index: bool
    children: tuple[StageOp, ...]

    def walk(self) -> Iterator[StageOp]:
        """The operation and all in it, in the order of the text."""
        yield self
        for child in self.children:
            yield from child.walk()


def stage_text(module: Module) -> str:
    """The module as text without locations; large constants are left out."""
    text: str = module.operation.get_asm(
        enable_debug_info=False, large_elements_limit=_ELEMENTS_SHOWN, large_resource_limit=_ELEMENTS_SHOWN
    )
    return text if text.endswith("\n") else text + "\n"


def lines_in(parser: MlirParser, module: Module, text: str) -> tuple[Integer, ...]:
    """The line of each operation, in pre-order, in the text of the module; none where the text shows others."""
    return tuple(map(_line, printed_locations(parser, module.operation, text)))


def _line(location: Location) -> Integer:
    return location.line if isinstance(location, FileRange) and location.line > 0 else UNKNOWN


def read_stage(parser: MlirParser, module: Module, lines: Sequence[Integer]) -> StageOp:
    """The operations of a module as a tree; `lines` in pre-order, empty where they are not known."""
    return _read(parser, module.operation, "", iter(lines))


def _read(parser: MlirParser, operation: Operation, function: str, lines: Iterator[Integer]) -> StageOp:
    line = next(lines, UNKNOWN)
    if operation.name != "builtin.module":
        function = string_attribute(operation, "sym_name") or function
    return StageOp(
        name=operation.name,
        location=parser.location(operation),
        function=function,
        line=line,
        computes_index=computes_index(parser, operation),
        children=tuple(_read(parser, child, function, lines) for child in nested(operation)),
    )
