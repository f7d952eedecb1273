"""What a compiled module says of the functions that it exports: the types of arguments and results."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tracemap.errors import TracemapError
from tracemap.locations import STRING, unescape
from tracemap.toolchain import check_tool, find_tool

_EXPORTS = "Exported Functions:"
_EXPORT = re.compile(r"^ *\[ *\d+\] (.*)\([^()]*\) -> \(([^()]*)\)$", re.MULTILINE)
_DECLARATION = re.compile(rf"iree\.abi\.declaration: \w+ func @({STRING}|[^\s(]+)\((.*)$", re.MULTILINE)
_MODEL = re.compile(r"^ *iree\.abi\.model: *(\S+) *$", re.MULTILINE)
_ASYNCHRONOUS = "coarse-fences"
_ARROW = " -> ("


@dataclass(frozen=True, slots=True)
class Declared:
    """The types of a function; where it declares none, as torch's do, `arguments` is empty.

    Results are then the runtime's own types, which tell scalars (`i32`) from all else (`!vm.ref<?>`).
    `asynchronous`: it returns before its work is done, and takes a fence to wait for and one to signal.
    """

    arguments: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    asynchronous: bool = False


def declared_types(module: Path) -> dict[str, Declared]:
    """What a module says of each function; nothing at all where the module cannot be read."""
    try:
        text = check_tool([find_tool("iree-dump-module"), "--output=metadata", module])
    except TracemapError:
        return {}
    exports = text.partition(_EXPORTS)[2]
    found = {}
    matches = list(_EXPORT.finditer(exports))
    ends = [*(match.start() for match in matches[1:]), len(exports)][: len(matches)]
    for match, end in zip(matches, ends, strict=True):
        model = _MODEL.search(exports, match.end(), end)
        found[match[1]] = Declared(
            results=_types(match[2] + ")")[0], asynchronous=model is not None and model[1] == _ASYNCHRONOUS
        )
    for match in _DECLARATION.finditer(exports):
        arguments, rest = _types(match[2])
        results, _ = _types(rest.removeprefix(_ARROW)) if rest.startswith(_ARROW) else ((), "")
        name = unescape(match[1]) if match[1][0] == '"' else match[1]
        found[name] = Declared(arguments, results, found.get(name, Declared()).asynchronous)
    return found


def _types(text: str) -> tuple[tuple[str, ...], str]:
    """The types in `%input0: tensor<4xf32>, i32) -> (…`, up to the parenthesis that closes the list, and the rest."""
    types, depth, begin = [], 0, 0
    for index, letter in enumerate(text):
        if depth == 0 and letter in ",)":
            types.append(text[begin:index])
            begin = index + 1
            if letter == ")":
                break
        depth += (letter in "<([{") - (letter in ">)]}" and text[index - 1] != "-")
    return tuple(_type(item) for item in types if item.strip()), text[begin:]


def _type(item: str) -> str:
    """The type in `%input0: tensor<4xf32> {iree.identifier = "x"}`, or in `i32`."""
    name, colon, kind = item.partition(":")
    return (kind if colon and name.lstrip().startswith("%") else item).partition(" {")[0].strip()
