"""What tests of terminal output share: the widths, what no line may have, golden files, and real terminals."""

from __future__ import annotations

import difflib
import io
import os
import pty
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import pytest

from tests.support import ROOT, command_line
from tests.tables import all_of_terminal

GOLD = ROOT / "tests" / "gold" / "terminal"
RUN = GOLD / "run.csv"
"""A recorded run that is kept, of the bundle `fixed("jax_mlp_train")`."""
WIDTHS = (80, 120, 200, None)
"""Columns of terminals; None: a pipe."""


class Terminal(io.StringIO):
    """Text that is written to a terminal; its width is that of the environment."""

    def isatty(self) -> bool:
        """As a terminal says it."""
        return True


def printed(write: Callable[[TextIO], object], columns: int | None, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a command writes to a terminal that shows no styles, or into a pipe."""
    monkeypatch.setenv("COLUMNS", str(columns or 80))
    monkeypatch.setenv("NO_COLOR", "1")
    out = io.StringIO() if columns is None else Terminal()
    write(out)
    return out.getvalue()


def check_gold(
    name: str,
    write: Callable[[TextIO], object],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """Compare what is written at all widths with the golden file, and look at each line."""
    texts = {}
    for columns in WIDTHS:
        texts[columns] = printed(write, columns, monkeypatch)
        check_lines(texts[columns], columns)
    compare_with_gold(name, texts, request)


def compare_with_gold(name: str, texts: dict[int | None, str], request: pytest.FixtureRequest) -> None:
    """Compare texts by width with the golden file, which has all of them."""
    titles = {columns: f"{columns} columns" if columns else "piped" for columns in texts}
    whole = "".join(f"==== {titles[columns]}\n{text}\n" for columns, text in texts.items())
    gold = GOLD / f"{name}.txt"
    if request.config.getoption("--update-gold"):
        gold.write_text(whole, encoding="utf-8")
    kept = gold.read_text(encoding="utf-8")
    assert whole == kept, "\n".join(
        difflib.unified_diff(kept.splitlines(), whole.splitlines(), name, "now", lineterm="")
    )


def check_lines(text: str, columns: int | None) -> None:
    """No line is wider than the terminal, none ends in blanks, and nothing steers the terminal."""
    assert text.endswith("\n")
    for line in text.split("\n"):
        assert line == line.rstrip(), line
        assert columns is None or len(line) <= columns, line
        assert line.isprintable(), line


def on_terminal(columns: int, *arguments: str | Path, cwd: Path = ROOT, **variables: str) -> str:
    """What the real command line prints on a real terminal."""
    return said_on_terminal(columns, *arguments, cwd=cwd, **variables)[0]


def said_on_terminal(
    columns: int | None, *arguments: str | Path, cwd: Path = ROOT, **variables: str
) -> tuple[str, str]:
    """Standard output on a real terminal (None: through a pipe), and what it says on standard error, a pipe."""
    given = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "FORCE_COLOR"}}
    given |= {"PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "COLUMNS": str(columns or 80), **variables}
    if columns is None:
        done = subprocess.run(command_line(*arguments), capture_output=True, env=given, cwd=cwd, check=False)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode(), done.stderr.decode()
    leader, follower = pty.openpty()
    error = subprocess.PIPE
    with subprocess.Popen(command_line(*arguments), env=given, cwd=cwd, stdout=follower, stderr=error) as running:
        os.close(follower)
        text = all_of_terminal(leader).decode().replace("\r\n", "\n")
        assert running.stderr is not None
        said = running.stderr.read().decode()
    assert running.returncode == 0, said
    return text, said
