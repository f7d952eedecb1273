"""Sphinx configuration: `make docs` writes build/docs/html and the manual page build/docs/man."""

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

autodoc_typehints = "none"  # the docstrings describe the arguments
nitpick_ignore_regex = [("py:.*", ".*")]  # docstrings also name things outside this documentation

myst_heading_anchors = 3
myst_enable_extensions = ["attrs_inline"]

html_theme = "furo"
html_title = "tracemap"
html_copy_source = False
html_show_sphinx = False

man_pages = [("commands", "tracemap", "the cost of each op of a model", author, 1)]


def examples_as_code(_app: Sphinx, _context: click.Context, lines: list[str]) -> None:
    """Show the examples of a command's help as code blocks; sphinx-click makes line blocks of them."""
    text = "\n".join(lines).replace("| Example:", "Example:\n\n.. code-block:: shell\n").splitlines()
    lines[:] = [f"   {line.removeprefix('|').strip()}" if line.startswith("|") else as_text(line) for line in text]


def options_as_text(_app: Sphinx, _context: click.Context, lines: list[str]) -> None:
    """Escape markup in help texts of options."""
    lines[:] = [line if line.lstrip().startswith("..") else as_text(line) for line in lines]


def as_text(line: str) -> str:
    """Escape the stars in a line of help."""
    return line.replace("*", r"\*")


def setup(app: Sphinx) -> None:
    """Register the hooks; Sphinx calls this."""
    app.connect("sphinx-click-process-description", examples_as_code)
    app.connect("sphinx-click-process-options", options_as_text)
