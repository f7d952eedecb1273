"""The progress line restores the terminal, however a command ends."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.conftest import Built
from tests.support import interruptible
from tracemap.commands.streams import _Display

HIDDEN, SHOWN = b"\x1b[?25l", b"\x1b[?25h"


def test_what_has_ended_is_not_shown_any_more() -> None:
    """The timer has run off, and rich is imported, while the phase ends."""
    display = _Display("reading")
    display.stop()
    display.start()
    assert not display.is_shown


@pytest.mark.few(1)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_cursor_comes_back(number: signal.Signals, built: Built, tmp_path: Path) -> None:
    """A command that waits for its input cannot stop by itself."""
    leader, follower = pty.openpty()
    reading, writing = os.pipe()
    command = interruptible("attribute", "-", "--map", built("hand_mlp"))
    process = subprocess.Popen(command, stdin=reading, stdout=follower, stderr=follower, cwd=tmp_path)
    os.close(follower)
    said = b""
    while HIDDEN not in said:
        said += os.read(leader, 4096)
    time.sleep(0.2)
    process.send_signal(number)
    process.wait(timeout=60)
    while part := _read(leader):
        said += part
    os.close(leader)
    os.close(writing)
    os.close(reading)
    assert said.rindex(SHOWN) > said.rindex(HIDDEN)


def _read(file: int) -> bytes:
    try:
        return os.read(file, 4096)
    except OSError:  # a terminal that nobody writes to any more
        return b""
