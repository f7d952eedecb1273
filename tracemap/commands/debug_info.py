"""`tracemap debug-info`: debug information of kernels for native tools."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TextIO

import click

from tracemap.commands.framework import PATH, options_command
from tracemap.options.compile import DebugInfoOptions


@options_command("debug-info", DebugInfoOptions)
@click.argument("bundle", metavar="BUNDLE", type=PATH)
def command(bundle: Path, options: DebugInfoOptions) -> None:
    """Write debug information for the unchanged machine code of BUNDLE, so that native tools show the model's lines.

    perf, gdb, valgrind and other tools then name the line and op of each instruction, as `attribute` does. In your own
    program, preload the hook: it hands the information to the tools when IREE loads the module.

    \b
    Example:
      tracemap debug-info model.tracemap -o symbols
      env $(tracemap hook env --debug-info symbols) perf record \\
        iree-run-module --module=model.tracemap/module.vmfb
      perf annotate --stdio
    """
    from tracemap.commands.streams import show_in_format
    from tracemap.map.bundle import load
    from tracemap.reports.debug_info import write_debug_info
    from tracemap.reports.terminal.debug_info import print_debug_info

    opened = load(bundle)
    info = write_debug_info(opened, options.output, options.lines, force=options.force)

    def text(out: TextIO) -> None:
        print_debug_info(info, options.output, out, is_native=opened.is_native)

    show_in_format(options.format, sys.stdout, text, lambda: info, opened)
