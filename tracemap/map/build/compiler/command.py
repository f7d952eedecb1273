"""Parses a command line of iree-compile: the model, the output and the flags."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tracemap.core.errors import ToolMissing, UsageInvalid
from tracemap.core.files import names_file
from tracemap.core.toolchain import find_tool
from tracemap.map.build.compiler.compilation import Compiler
from tracemap.map.build.compiler.flags import may_take_value, normalize_flags

PROGRAM = "iree-compile"
NO_MODEL = "the command names no model"
STANDARD = "-"
"""Standard input or output, as an argument."""

# Flag -> the values with which the command still makes a complete module that can be traced.
_TRACEABLE_VALUES = {
    "compile-from": ("start",),
    "compile-to": ("end",),
    "compile-mode": ("std",),
    "output-format": ("vm-bytecode",),
    "dump-compilation-phases-to": (),
}


@dataclass(frozen=True, slots=True)
class CompileCommand:
    """A parsed command line.

    `arguments`: all arguments, unchanged; `flags`: those except for input and output; `model`: the input (`-`: standard
    input); `output`: the module's file (`-`: standard output); `obstacle`: why it cannot be traced, "" if it can.
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
    """Parse a command: the program, then its arguments.

    Raises:
        UsageInvalid: the program is not iree-compile.
        ToolMissing: the program does not exist.
    """
    name = words[0] if words else ""
    if not Path(name).name.startswith(PROGRAM):
        raise UsageInvalid(f"{name or 'nothing'}: a command after a leading `--` must begin with {PROGRAM}")
    arguments = tuple(words[1:])
    remaining, output = _without_output(normalize_flags(arguments))
    obstacle = _obstacle(remaining)
    inputs = _inputs(remaining)
    if len(inputs) != 1:
        obstacle = obstacle or ("the command names several files" if inputs else NO_MODEL)
        return CompileCommand(_program(name), arguments, tuple(remaining), "", output, obstacle)
    flags = [word for index, word in enumerate(remaining) if index != inputs[0] and word != "--"]
    return CompileCommand(_program(name), arguments, tuple(flags), remaining[inputs[0]], output, obstacle)


def _program(name: str) -> Path:
    """The program that a shell would find; for the script of tracemap's own environment, the compiler that it wraps.

    Raises:
        ToolMissing: there is no such program.
    """
    path = shutil.which(name)
    if path is None:
        if os.sep in name:
            raise ToolMissing(f"{name}: no such program")
        return find_tool(PROGRAM)
    is_wrapper = Path(path).name == PROGRAM and Path(path).parent == Path(sys.executable).parent
    return find_tool(PROGRAM) if is_wrapper else Path(path)


def _without_output(arguments: Sequence[str]) -> tuple[list[str], str]:
    """The arguments without `-o FILE`, and the file; standard output if there is none."""
    remaining: list[str] = []
    output = STANDARD
    words = iter(arguments)
    for word in words:
        name, equals, value = word.partition("=")
        if name in ("-o", "--o"):
            output = value if equals else next(words, STANDARD)
        else:
            remaining.append(word)
    return remaining, output


def _obstacle(words: Sequence[str]) -> str:
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        allowed = _TRACEABLE_VALUES.get(name.lstrip("-")) if name.startswith("-") else None
        if allowed is None:
            continue
        argument = value if equals else next(iter(words[index + 1 : index + 2]), "")
        if argument not in allowed:
            return f"the command uses {name}{'=' if argument else ''}{argument}"
    return ""


def _inputs(words: Sequence[str]) -> list[int]:
    """The indices of possible inputs: words that are neither flags nor separate values of flags.

    A value may follow its flag as a separate word (`--device local`), but a word after a switch can be the input. If
    both are possible, a word without a flag in front is the input, else a word that names a file.
    """
    if "--" in words:
        return list(range(words.index("--") + 1, len(words)))
    candidates = [index for index, word in enumerate(words) if not word.startswith("-") or word == STANDARD]
    if len(candidates) == 1:
        return candidates
    certain = [index for index in candidates if index == 0 or not may_take_value(words[index - 1])]
    if certain:
        return certain
    return [index for index in candidates if words[index] == STANDARD or names_file(words[index])]
