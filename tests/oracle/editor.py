"""Edits a program line by line, and keeps a record of which line became which.

It knows texts only: names, uses, blocks by their braces, types as they are printed. Whether what comes out is a program
the parser says; an edit that makes none is taken back. Nothing of the package decides anything here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from iree.compiler import ir

_NAME = re.compile(r"%[A-Za-z_][\w$]*")
_DEFINES = re.compile(r"^(%\w+(?:, %\w+)*) = ([\w.]+)")
_ONE_TYPE = re.compile(r"^(%\w+) = ([\w.]+) (%\w+)(?:, (%\w+))? : (tensor<[^<>]*f32>)$")
_FLOATS = re.compile(r"(?<=dense<)0\.\d+(?=>)|(?<=constant )0\.\d+(?= : f32)")
_CALL = re.compile(r"^(%\w+) = (?:func\.)?call @(\w+)\(([^)]*)\)")
_UNARY = ("stablehlo.negate", "stablehlo.abs", "stablehlo.tanh"), ("arith.negf", "math.absf", "math.tanh")
_BINARY = ("stablehlo.add", "stablehlo.multiply"), ("arith.addf", "arith.mulf")


@dataclass(frozen=True, slots=True)
class Line:
    """A line, and the number of the one that it was in the original; -1 for new ones."""

    text: str
    was: int


Lines = list[Line]


def original(text: str) -> Lines:
    """The lines of a program that nobody has edited."""
    return [Line(line, number) for number, line in enumerate(text.splitlines(), start=1)]


def text_of(lines: Sequence[Line]) -> str:
    """The program."""
    return "\n".join(line.text for line in lines) + "\n"


class Editor:
    """Makes edits at random places, each of which leaves a program that parses."""

    def __init__(self, text: str, random: Random) -> None:
        self.lines = original(text)
        self._random = random
        self._context = ir.Context()
        self._context.enable_multithreading(False)  # its threads would be missing in processes forked from this one
        self._context.allow_unregistered_dialects = True
        self._fresh = 0
        self.done: list[str] = []

    def edit(self, name: str) -> bool:
        """Make an edit of this kind; False where no place for it was found in a few tries."""
        kinds: dict[str, Callable[[Lines], Lines | None]] = {
            "rename": self._rename,
            "reorder": self._reorder,
            "insert": self._insert,
            "delete": self._delete,
            "constant": self._constant,
            "shape": self._shape,
            "wrap": self._wrap,
            "inline": self._inline,
        }
        for _ in range(8):
            made = kinds[name](list(self.lines))
            if made is not None and self._parses(made):
                self.lines = made
                self.done.append(name)
                return True
        return False

    def restart(self) -> str:
        """Take what was made for the original; returns its text."""
        text = text_of(self.lines)
        self.lines, self.done = original(text), []
        return text

    def record(self) -> dict[int, int]:
        """Line of the original -> line of what became of it; those that are gone are not there."""
        return {line.was: number for number, line in enumerate(self.lines, start=1) if line.was > 0}

    def _parses(self, lines: Lines) -> bool:
        try:
            ir.Module.parse(text_of(lines), self._context)
        except ir.MLIRError:
            return False
        return True

    def _name(self) -> str:
        self._fresh += 1
        return f"%new{self._fresh}"

    # ---- edits

    def _rename(self, lines: Lines) -> Lines:
        names = sorted({name for line in lines for name in _NAME.findall(line.text)})
        places = list(range(len(names)))
        self._random.shuffle(places)
        to = {name: f"%r{self._fresh}_{place}" for name, place in zip(names, places, strict=True)}
        self._fresh += 1
        return [replace(line, text=_NAME.sub(lambda found: to[found[0]], line.text)) for line in lines]

    def _reorder(self, lines: Lines) -> Lines:
        """Move lines past others, as long as nobody reads what is not there yet."""
        for _ in range(self._random.randint(1, 12)):
            place = self._random.randrange(1, len(lines) - 1)
            for _ in range(self._random.randint(1, 10)):
                if not _may_swap(lines[place], lines[place + 1]):
                    break
                lines[place : place + 2] = [lines[place + 1], lines[place]]
                place += 1
        return lines

    def _insert(self, lines: Lines) -> Lines | None:
        """Put an op behind another one; all that stands further down in the function reads it instead."""
        place, found = self._typed(lines)
        if found is None:
            return None
        name, new = found[1], self._name()
        mlir = int(not found[2].startswith("stablehlo"))
        unary, binary = _UNARY[mlir], _BINARY[mlir]
        operation, reads = (self._random.choice(binary), f"{name}, {name}")
        if self._random.random() < 0.5:
            operation, reads = self._random.choice(unary), name
        made = Line(f"{new} = {operation} {reads} : {found[5]}", -1)
        end = _end_of_function(lines, place)
        behind = [_with_name(line, name, new) for line in lines[place + 1 : end]]
        return [*lines[: place + 1], made, *behind, *lines[end:]]

    def _delete(self, lines: Lines) -> Lines | None:
        """Take an op away; what read it reads what it read."""
        place, found = self._typed(lines)
        if found is None:
            return None
        end = _end_of_function(lines, place)
        behind = [_with_name(line, found[1], found[3]) for line in lines[place + 1 : end]]
        return [*lines[:place], *behind, *lines[end:]]

    def _constant(self, lines: Lines) -> Lines | None:
        places = [place for place, line in enumerate(lines) if _FLOATS.search(line.text)]
        if not places:
            return None
        place = self._random.choice(places)
        value = f"{self._random.randint(1, 4000) / 1024 + 5}"
        lines[place] = replace(lines[place], text=_FLOATS.sub(value, lines[place].text))
        return lines

    def _shape(self, lines: Lines) -> Lines | None:
        """Give an extent another size, wherever it stands."""
        sizes = sorted({size for line in lines for size in re.findall(r"(?<=[<x])\d+(?=x)", line.text)})
        if not sizes:
            return None
        size, other = self._random.choice(sizes), str(self._random.randint(70, 200))
        form = re.compile(rf"(?<=[<x]){size}(?=x)|(?<=0:){size}(?=[,\]])")
        return [replace(line, text=form.sub(other, line.text)) for line in lines]

    def _wrap(self, lines: Lines) -> Lines | None:
        """Put lines that follow one another into a function of their own, and call it."""
        begin = self._random.randrange(len(lines))
        end = min(len(lines), begin + self._random.randint(2, 12))
        inside = lines[begin:end]
        if not all(map(_is_simple, inside)):
            return None
        types = self._types(lines)
        made = [name for line in inside for name in _defined(line)]
        read = [name for line in inside for name in _read(line) if name in types and name not in made]
        below = {name for line in lines[end : _end_of_function(lines, begin)] for name in _read(line)}
        given, back = list(dict.fromkeys(read)), [name for name in made if name in below]
        if not back or any(types.get(name, "?") == "?" for name in (*given, *back)):
            return None
        self._fresh += 1
        return _wrapped(lines, (begin, end), (given, back), types, f"w{self._fresh}")

    def _inline(self, lines: Lines) -> Lines | None:
        """Put the body of a function where it is called; one that is called once is gone then."""
        calls = [place for place, line in enumerate(lines) if _CALL.match(line.text)]
        if not calls:
            return None
        place = self._random.choice(calls)
        call = _CALL.match(lines[place].text)
        assert call is not None
        begin = next(n for n, line in enumerate(lines) if line.text.startswith(f"func.func private @{call[2]}("))
        end = _end_of_function(lines, begin)
        body = lines[begin + 1 : end]
        arguments = re.findall(r"(%\w+): ", lines[begin].text)
        handed = [each.strip() for each in call[3].split(",") if each.strip()]
        to = dict(zip(arguments, handed, strict=True))
        for line in body:
            to.update({name: self._name() for name in _NAME.findall(line.text) if name not in to})
        once = sum(f"@{call[2]}(" in line.text for line in lines) == 2
        copied = [Line(_NAME.sub(lambda found: to[found[0]], line.text), line.was if once else -1) for line in body]
        returned = _NAME.findall(copied.pop().text)
        if len(returned) != 1:
            return None
        rest = _end_of_function(lines, place)
        behind = [_with_name(line, call[1], returned[0]) for line in lines[place + 1 : rest]]
        made = [*lines[:place], *copied, *behind, *lines[rest:]]
        if not once:
            return made
        shift = len(made) - len(lines) if place < begin else 0
        return [*made[: begin + shift], *made[end + 1 + shift :]]

    # ---- what is known of lines

    def _typed(self, lines: Lines) -> tuple[int, re.Match[str] | None]:
        """A line with an op whose operands and result are of one type that it prints."""
        found = [(place, _ONE_TYPE.match(line.text)) for place, line in enumerate(lines)]
        fitting = [(place, match) for place, match in found if match is not None and "constant" not in match[2]]
        return self._random.choice(fitting) if fitting else (0, None)

    def _types(self, lines: Lines) -> dict[str, str]:
        """The types of values by name, as the parser has them; `?` where a name has several."""
        module = ir.Module.parse(text_of(lines), self._context)
        types: dict[str, str] = {}
        for operation in _walk(module.operation):
            line = lines[operation.location.start_line - 1] if hasattr(operation.location, "start_line") else None
            names = _defined(line) if line is not None else []
            if len(names) == len(operation.results):
                for name, value in zip(names, operation.results, strict=True):
                    _note(types, name, str(value.type))
        for line in lines:
            for name, kind in re.findall(r"(%\w+): (tensor<[^<>]*>|index|f32)", line.text):
                if line.text.startswith("func.func"):
                    _note(types, name, kind)
        return types


def _note(types: dict[str, str], name: str, kind: str) -> None:
    types[name] = kind if types.get(name, kind) == kind else "?"


def _walk(operation: Any) -> Iterator[Any]:  # noqa: ANN401 - an operation of the bindings
    yield operation
    for region in operation.regions:
        for block in region.blocks:
            for child in block.operations:
                yield from _walk(child.operation)


def _wrapped(
    lines: Lines, place: tuple[int, int], values: tuple[list[str], list[str]], types: dict[str, str], name: str
) -> Lines:
    (begin, end), (given, back) = place, values
    declared = ", ".join(f"{value}: {types[value]}" for value in given)
    results = ", ".join(types[value] for value in back)
    handed = f"({', '.join(given)}) : ({', '.join(types[value] for value in given)}) -> ({results})"
    call = Line(f"{', '.join(back)} = func.call @{name}{handed}", -1)
    function = [
        Line(f"func.func private @{name}({declared}) -> ({results}) {{", -1),
        *lines[begin:end],
        Line(f"return {', '.join(back)} : {results}", -1),
        Line("}", -1),
    ]
    return [lines[0], *function, *lines[1:begin], call, *lines[end:]]


def _is_simple(line: Line) -> bool:
    """Whether a line is an op without a region of several lines."""
    return _DEFINES.match(line.text) is not None and not line.text.endswith("{")


def _defined(line: Line) -> list[str]:
    match = _DEFINES.match(line.text)
    return _NAME.findall(match[1]) if match else []


def _read(line: Line) -> list[str]:
    defined = len(_defined(line))
    return _NAME.findall(line.text)[defined:]


def _may_swap(one: Line, two: Line) -> bool:
    return _is_simple(one) and _is_simple(two) and not set(_defined(one)) & set(_read(two))


def _with_name(line: Line, name: str, other: str) -> Line:
    return replace(line, text=_NAME.sub(lambda found: other if found[0] == name else found[0], line.text))


def _end_of_function(lines: Lines, place: int) -> int:
    """The line that ends the function around a line: its brace."""
    begin = max(number for number in range(place + 1) if lines[number].text.startswith("func.func"))
    depth = 0
    for number in range(begin, len(lines)):
        text = lines[number].text
        depth += text.count("{") - text.count("}")
        if number > begin and depth <= 0:
            return number
    raise AssertionError("a function without an end")
