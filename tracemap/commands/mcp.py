"""`tracemap mcp`: answer questions of coding agents over the Model Context Protocol."""

from __future__ import annotations

from pathlib import Path

import click

from tracemap.commands.framework import PATH, options_command
from tracemap.core.errors import ToolMissing
from tracemap.options.reports import McpOptions


@options_command("mcp", McpOptions)
@click.argument("folders", metavar="[FOLDER]...", nargs=-1, type=PATH)
def command(folders: tuple[Path, ...], options: McpOptions) -> None:
    """Serve the bundles and runs below each FOLDER to a coding agent, over standard input and output.

    The agent starts this command, and its tools are those of the Model Context Protocol: find bundles and runs, list
    costs, describe an op, line, kernel or scope, compare two runs, and show what holds memory. Answers are the --brief
    forms of the commands. No tool builds, records or writes, and no file outside the folders is read. Without FOLDER,
    the working folder is served.

    \b
    Example:
      tracemap mcp
      tracemap mcp nightly models --timeout 300
    """
    try:
        from tracemap.commands.mcp_server import serve
    except ImportError as error:
        raise ToolMissing("the SDK of MCP is not installed; run pip install 'tracemap[mcp]'") from error
    serve(folders or (Path(),), options)
