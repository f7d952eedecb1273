"""Reads a command line of iree-compile that somebody else wrote: which argument is the model, where the module goes."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tracemap.errors import ToolMissing, UsageInvalid
from tracemap.inputs import names_file
from tracemap.mapping.compiler.compiling import Compiler
from tracemap.mapping.compiler.flags import as_read
from tracemap.toolchain import find_tool

PROGRAM = "iree-compile"
NO_MODEL = "the command names no model"
STANDARD = "-"
"""Standard input or output, as an argument."""

# Flag -> the values with which the command still makes a whole module that can be traced.
_WHOLE = {
    "compile-from": ("start",),
    "compile-to": ("end",),
    "compile-mode": ("std",),
    "output-format": ("vm-bytecode",),
    "dump-compilation-phases-to": (),
}


@dataclass(frozen=True, slots=True)
class CompileCommand:
    """A command line, taken apart.

    `arguments`: all of them as given; `flags`: those but the input and the output; `model`: the input (`-`: standard
    input); `output`: where the module goes (`-`: standard output); `obstacle`: why it cannot be traced, "" if it can.
    """

    program: Path
    arguments: tuple[str, ...]
    flags: tuple[str, ...]
    model: str
    output: str
    obstacle: str

    @property
    def compiler(self) -> Compiler:
        """The program with its flags."""
        return Compiler(self.program, self.flags)


def read_command(words: Sequence[str]) -> CompileCommand:
    """Take a command apart: the program, then its arguments.

    Raises:
        UsageInvalid: the program is not iree-compile.
        ToolMissing: it is not to be found.
    """
    name = words[0] if words else ""
    if not Path(name).name.startswith(PROGRAM):
        raise UsageInvalid(f"{name or 'nothing'}: after a leading `--` stands a command of {PROGRAM}")
    arguments = tuple(words[1:])
    rest, output = _without_output(as_read(arguments))
    obstacle = _obstacle(rest)
    inputs = _inputs(rest)
    if len(inputs) != 1:
        obstacle = obstacle or ("the command names several files" if inputs else NO_MODEL)
        return CompileCommand(_program(name), arguments, tuple(rest), "", output, obstacle)
    flags = [word for index, word in enumerate(rest) if index != inputs[0] and word != "--"]
    return CompileCommand(_program(name), arguments, tuple(flags), rest[inputs[0]], output, obstacle)


def _program(name: str) -> Path:
    """The program as a shell would find it; the real one in place of the Python script of tracemap's own environment.

    Raises:
        ToolMissing: there is no such program.
    """
    found = shutil.which(name)
    if found is None:
        if os.sep in name:
            raise ToolMissing(f"{name}: no such program")
        return find_tool(PROGRAM)
    own = Path(found).name == PROGRAM and Path(found).parent == Path(sys.executable).parent
    return find_tool(PROGRAM) if own else Path(found)


def _without_output(arguments: Sequence[str]) -> tuple[list[str], str]:
    """The arguments without `-o FILE`, and the file; standard output where none is named."""
    rest: list[str] = []
    output = STANDARD
    words = iter(arguments)
    for word in words:
        name, equals, value = word.partition("=")
        if name in ("-o", "--o"):
            output = value if equals else next(words, STANDARD)
        else:
            rest.append(word)
    return rest, output


def _obstacle(words: Sequence[str]) -> str:
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        allowed = _WHOLE.get(name.lstrip("-")) if name.startswith("-") else None
        if allowed is None:
            continue
        given = value if equals else next(iter(words[index + 1 : index + 2]), "")
        if given not in allowed:
            return f"the command uses {name}{'=' if given else ''}{given}"
    return ""


def _inputs(words: Sequence[str]) -> list[int]:
    """The indices of what may be the input: words that are neither flags nor values of flags written apart from them.

    A flag's value can be written behind it (`--device local`), and what follows a switch can be the input: where both
    readings are possible, a word that no flag precedes is the input, then one that names a file.
    """
    if "--" in words:
        return list(range(words.index("--") + 1, len(words)))
    plain = [index for index, word in enumerate(words) if not word.startswith("-") or word == STANDARD]
    if len(plain) == 1:
        return plain
    certain = [index for index in plain if index == 0 or not _may_take_value(words[index - 1])]
    if certain:
        return certain
    return [index for index in plain if words[index] == STANDARD or names_file(words[index])]


def _may_take_value(word: str) -> bool:
    return word.startswith("-") and word != STANDARD and "=" not in word
