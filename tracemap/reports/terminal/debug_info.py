"""Terminal output of `tracemap debug-info`."""

from __future__ import annotations

from pathlib import Path
from typing import Final, TextIO

from tracemap.core.units import format_share, plural
from tracemap.reports.debug_info import DebugInfo
from tracemap.reports.terminal.tables import Heading, console, number, print_diagnostics, print_table, say

_EXECUTABLES: Final = (
    *(Heading("build-id"), Heading("architecture"), number("kernels"), number("instructions")),
    *(number("with op"), number("with line")),
)


def print_debug_info(info: DebugInfo, folder: Path, out: TextIO, *, is_native: bool) -> None:
    """Print the executables with the share of instructions that have an op and a line.

    Args:
        info: the content of the folder.
        folder: the folder.
        out: the stream.
        is_native: whether the program runs without IREE, so that it loads the code file itself.
    """
    terminal = console(out)
    rows = [
        (
            *(executable.build_id[:12], executable.architecture.removeprefix("EM_")),
            *(str(executable.kernels), f"{executable.instructions:,}"),
            format_share(executable.instructions_with_op, executable.instructions),
            format_share(executable.instructions_with_line, executable.instructions),
        )
        for executable in info.executables
    ]
    say(terminal, f"{folder}: {plural(len(rows), 'executable')} of {info.bundle}, lines: {info.lines}")
    print_table(terminal, "", _EXECUTABLES, rows)
    print_diagnostics(terminal, info.diagnostics)
    if is_native:
        say(terminal, f"next: use {folder / info.executables[0].code_file} in place of the library")
    else:
        say(terminal, f"next: env $(tracemap hook env --debug-info {folder}) PROGRAM")
