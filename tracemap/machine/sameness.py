"""Whether two images or modules have the same code for a function, wherever the linker put it and what it refers to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tracemap.errors import ModuleInvalid
from tracemap.machine.decoding import decoded_texts
from tracemap.machine.images import CodeFunction, Image, read_images
from tracemap.machine.linked import called_by

_DATA = re.compile(r"\[rip [+-] (?:0x)?[0-9a-f]+\]|#?0x[0-9a-f]+(?=\])")
_PLACE = re.compile(r"#?0x([0-9a-f]+)$")
_PAGES = ("adr", "adrp")
"""Instructions of AArch64 that make an address of the program counter."""


def placeless(image: Image, function: CodeFunction) -> tuple[str, ...]:
    """The instructions of a function, without where it lies and where its constants and callees do.

    Behind them those of the functions that it reaches in objects which the image was linked with.

    Raises:
        ModuleInvalid: as `machine.code.instructions_of`.
    """
    return tuple(text for each in (function, *called_by(image, function)) for text in _own(image, each))


def _own(image: Image, function: CodeFunction) -> Iterator[str]:
    for _, _, mnemonic, operands in decoded_texts(image, function):
        yield f"{mnemonic} {_without_place(mnemonic, operands, function)}"


def _without_place(mnemonic: str, operands: str, function: CodeFunction) -> str:
    if mnemonic in _PAGES:
        return operands.partition(",")[0]
    text = _DATA.sub("[…]", operands) if "rip" in operands else operands
    if mnemonic.startswith(("j", "call", "b", "cb", "tb")):
        place = _PLACE.search(text)
        if place is not None:
            inside = function.low <= int(place[1], 16) < function.high
            text = text[: place.start()] + (f"+{int(place[1], 16) - function.low:#x}" if inside else "…")
    return text


def same_code(module: Path, other: Path) -> dict[str, bool]:
    """Of each kernel that two modules have whether its code is the same; none of modules whose code cannot be read."""
    one, two = (_code(path) for path in (module, other))
    return {name: one[name] == code for name, code in two.items() if name in one}


def _code(module: Path) -> dict[str, tuple[str, ...]]:
    try:
        return {each.name: placeless(image, each) for image in read_images(module) for each in image.functions}
    except ModuleInvalid:
        return {}
