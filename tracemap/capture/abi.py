"""What a compiled module says of its functions: the types that the runtime wants, after the compiler's conversions."""

from __future__ import annotations

import re
from pathlib import Path

from tracemap.errors import TracemapError
from tracemap.toolchain import check_tool, find_tool

_DECLARATION = re.compile(r'iree\.abi\.declaration: \w+ func @("(?:[^"\\]|\\.)*"|[^\s(]+)\((.*)$', re.MULTILINE)


def declared_types(module: Path) -> dict[str, tuple[str, ...]]:
    """The argument types of each function that declares them; none at all where the module cannot be read."""
    try:
        text = check_tool([find_tool("iree-dump-module"), "--output=metadata", module])
    except TracemapError:
        return {}
    return {match[1].strip('"'): _types(match[2]) for match in _DECLARATION.finditer(text)}


def _types(text: str) -> tuple[str, ...]:
    """The types in `%input0: tensor<4xf32>, %input1: i32) -> (…`, up to the parenthesis that closes the list."""
    types, depth, begin = [], 0, 0
    for index, letter in enumerate(text):
        if depth == 0 and letter in ",)":
            types.append(text[begin:index])
            begin = index + 1
            if letter == ")":
                break
        depth += (letter in "<([{") - (letter in ">)]}" and text[index - 1] != "-")
    return tuple(item.partition(":")[2].partition(" {")[0].strip() for item in types if item.strip())
