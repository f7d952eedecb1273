"""How Sphinx makes the documentation: `make docs` writes build/docs/html and the manual page build/docs/man."""

from __future__ import annotations

import click
from sphinx.application import Sphinx

from tracemap._version import __version__

project = "tracemap"
author = "the tracemap authors"
project_copyright = "the tracemap authors, Apache-2.0"
version = release = __version__

extensions = ["myst_parser", "sphinx_click", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["gallery"]
nitpicky = True
default_role = "code"

autodoc_typehints = "none"  # what an argument may be is said in words
nitpick_ignore_regex = [("py:.*", ".*")]  # names in docstrings are not all of this documentation

myst_heading_anchors = 3
myst_enable_extensions = ["attrs_inline"]

html_theme = "furo"
html_title = "tracemap"
html_copy_source = False
html_show_sphinx = False

man_pages = [("commands", "tracemap", "which op of a model costs what", author, 1)]


def examples_as_code(_app: Sphinx, _context: click.Context, lines: list[str]) -> None:
    """Show the examples in a command's help as they are typed: sphinx-click makes line blocks of them."""
    told = "\n".join(lines).replace("| Example:", "Example:\n\n.. code-block:: shell\n").splitlines()
    lines[:] = [f"   {line.removeprefix('|').strip()}" if line.startswith("|") else as_text(line) for line in told]


def options_as_text(_app: Sphinx, _context: click.Context, lines: list[str]) -> None:
    """What options say is no markup."""
    lines[:] = [line if line.lstrip().startswith("..") else as_text(line) for line in lines]


def as_text(line: str) -> str:
    """A line of help, in which a star is a star."""
    return line.replace("*", r"\*")


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("sphinx-click-process-description", examples_as_code)
    app.connect("sphinx-click-process-options", options_as_text)
