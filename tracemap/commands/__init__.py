"""Command line: one file per command, whose docstring is its help. No other package prints or exits."""

from __future__ import annotations
