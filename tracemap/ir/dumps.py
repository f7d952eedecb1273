"""Phase dumps: the tags in their text, and the operations of a stage as a tree."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tracemap.core.locations import STRING, FileRange, Location
from tracemap.core.units import UNKNOWN, Integer
from tracemap.ir.dispatch_bodies import computes_index
from tracemap.ir.parsing import MlirParser, Module, Operation, nested, printed_locations, string_attribute

# ---- dump text
#
# The tags in the text of a dump, read without parsing, since dumps are large and only their tags are needed.
#
# Operations refer to locations by aliases (`#loc5 = loc(callsite(#loc3 at #loc1))`). Only the callee side of a call
# site counts. The caller side names calls and functions that may be long gone.

_ALIAS = re.compile(r"^(#loc\d*) = loc\((.*)\)$", re.MULTILINE)
# An operation's location ends its line. Locations elsewhere belong to block arguments, and are ignored.
_USE = re.compile(r" loc\((#loc\d*)\)$", re.MULTILINE)
_INLINE = re.compile(r"^(?!#loc).* loc\(([\"cf].*)\)$", re.MULTILINE)
_NAME = re.compile(r'"[^"\\]*"')
_REFERENCE = re.compile(r"#loc\d*")
_TOKEN = re.compile(STRING + r"|#loc\d*|\bcallsite\(|\bat\b|[()]")


class DumpText:
    """The tags in the text of a dump."""

    def __init__(self, text: str, prefix: str) -> None:
        self.text = text
        self._prefix = prefix
        self._bodies = dict(_ALIAS.findall(text))
        self._known: dict[str, frozenset[int]] = {}

    def tags(self) -> frozenset[int]:
        """The tags of all operations, callee sides only."""
        tags: set[int] = set()
        if not self._bodies:  # printed in local scope, without aliases
            for body in _INLINE.findall(self.text):
                tags |= self._of_body(body)
            return frozenset(tags)
        # Visit each alias once. Merging sets per alias would take several times as long.
        reached = set(_USE.findall(self.text))
        worklist = list(reached)
        while worklist:
            for token in _callee_tokens(self._bodies.get(worklist.pop(), "")):
                if token[0] != "#":
                    tags |= self._of_name(token[1:-1])
                elif token not in reached:
                    reached.add(token)
                    worklist.append(token)
        return frozenset(tags)

    def of_line(self, line: str) -> frozenset[int]:
        """The tags of the operation at the end of a line, callee sides only."""
        start = line.rfind(" loc(")
        if start < 0 or line.startswith("#"):
            return frozenset()
        return self._of_body(line[start + len(" loc(") :].removesuffix(")"))

    def _of_alias(self, alias: str) -> frozenset[int]:
        """The tags of an alias. Inner aliases are resolved first, iteratively, since chains may be long."""
        stack, visited = [alias], set[str]()
        while stack:
            name = stack[-1]
            tokens = [] if name in self._known else _callee_tokens(self._bodies.get(name, ""))
            if name not in visited:
                visited.add(name)
                # Skip visited aliases, so that cycles in damaged text do not loop forever.
                stack += [
                    token for token in tokens if token[0] == "#" and token not in self._known and token not in visited
                ]
                continue
            stack.pop()
            if name not in self._known:
                self._known[name] = self._union(tokens)
        return self._known[alias]

    def _of_body(self, body: str) -> frozenset[int]:
        """The tags in the printed form of a location, callee side only."""
        tokens = _callee_tokens(body)
        for token in tokens:
            if token[0] == "#" and token not in self._known:
                self._of_alias(token)
        return self._union(tokens)

    def _union(self, tokens: Iterable[str]) -> frozenset[int]:
        return frozenset().union(
            *(
                self._known.get(token, frozenset()) if token[0] == "#" else self._of_name(token[1:-1])
                for token in tokens
            )
        )

    def _of_name(self, name: str) -> frozenset[int]:
        number = name[len(self._prefix) :]
        return frozenset((int(number),) if name.startswith(self._prefix) and number.isdecimal() else ())


def _callee_tokens(body: str) -> Sequence[str]:
    """The names and aliases on the callee side of a location."""
    if '"' not in body and body.rfind("callsite(") <= 0:  # the usual case: only aliases
        return _REFERENCE.findall(body.partition(" at ")[0])
    if _NAME.fullmatch(body):
        return (body,)
    return list(_scan_callee_side(body))


def _scan_callee_side(body: str) -> Iterator[str]:
    """The names and aliases in the printed form of a location, except those after an `at`."""
    depth = 0
    skipped_from = -1  # depth of the `at` whose caller side is skipped; -1: nothing is skipped
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

_MAX_ELEMENTS = 16
"""Constants with more elements, and resources with more characters, are elided in the text of a stage."""


@dataclass(frozen=True, slots=True)
class StageOp:
    """An operation of a stage, with the operations in its regions.

    `function`: innermost enclosing symbol except modules, or ""; `line`: line in the stage's text; `computes_index`:
    all its results are indices.
    """

    name: str
    location: Location
    function: str
    line: Integer
    computes_index: bool
    children: tuple[StageOp, ...]

    def walk(self) -> Iterator[StageOp]:
        """The operation and all nested ones, in program order."""
        yield self
        for child in self.children:
            yield from child.walk()


def stage_text(module: Module) -> str:
    """The module as text, without locations and large constants."""
    text: str = module.operation.get_asm(
        enable_debug_info=False, large_elements_limit=_MAX_ELEMENTS, large_resource_limit=_MAX_ELEMENTS
    )
    return text if text.endswith("\n") else text + "\n"


def lines_in(parser: MlirParser, module: Module, text: str) -> tuple[Integer, ...]:
    """The lines of all operations in the text of the module, in pre-order; empty if the text has other operations."""
    printed = printed_locations(parser, module.operation, text)
    return tuple(place.line if isinstance(place, FileRange) and place.line > 0 else UNKNOWN for place in printed)


def read_stage(parser: MlirParser, module: Module, lines: Sequence[Integer]) -> StageOp:
    """The operations of a module as a tree; `lines` in pre-order, empty if not known."""
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
