"""Shows the phase of work that takes over a second; silent when standard error is not a terminal.

Who wants it verbose gets a line for each phase with its time, and one for each program that is started.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from tracemap.cli.streams import is_quiet, tell
from tracemap.toolchain import Progress, no_progress

_DELAY_S = 1.0


@contextmanager
def phases_shown(title: str) -> Iterator[Progress]:
    """A `Progress` that shows `title: phase` with a spinner and the elapsed time, once a second has passed."""
    if _State.verbose:
        yield from _phases_told(title)
        return
    if is_quiet() or not sys.stderr.isatty():
        yield no_progress
        return
    display = _State.display = _Display(title)
    timer = threading.Timer(_DELAY_S, display.start)
    timer.daemon = True
    timer.start()
    try:
        yield display.show
    finally:
        timer.cancel()
        display.stop()


class _State:
    verbose = False
    display: _Display | None = None


def give_back_terminal() -> None:
    """Show the cursor again where a signal ends the program in a phase.

    It takes no lock: whoever has it may be cut short.
    """
    if _State.display is not None and _State.display.is_shown:
        with suppress(OSError):
            os.write(2, b"\r\x1b[2K\x1b[?25h")


class _Told(logging.Handler):
    """Says what is logged in the way of all that is said."""

    def emit(self, record: logging.LogRecord) -> None:
        tell(f"tracemap: {record.getMessage()}")


def be_verbose() -> None:
    """Say each phase with its time from now on, and each program that is started."""
    if not _State.verbose:
        _State.verbose = True
        logger = logging.getLogger("tracemap")
        logger.setLevel(logging.DEBUG)
        logger.addHandler(_Told())


def _phases_told(title: str) -> Iterator[Progress]:
    begun, phase = time.monotonic(), ""

    def told(following: str) -> None:
        nonlocal begun, phase
        now = time.monotonic()
        if phase:
            tell(f"tracemap: {title}: {phase}: {now - begun:.2f} s")
        begun, phase = now, following

    try:
        yield told
    finally:
        told("")


class _Display:
    """A rich progress line that is created late: from a timer, while the work goes on in the main thread."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._phase = ""
        self._lock = threading.Lock()
        self._progress: Any = None  # rich.progress.Progress; rich is imported only when something is shown
        self._task: Any = None
        self._ended = False

    def start(self) -> None:
        from rich.console import Console
        from rich.progress import Progress as RichProgress
        from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

        with self._lock:
            if self._ended:  # while rich was imported
                return
            columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
            self._progress = RichProgress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._progress.add_task(self._text())
            self._progress.start()

    @property
    def is_shown(self) -> bool:
        return self._progress is not None and not self._ended

    def show(self, phase: str) -> None:
        with self._lock:
            self._phase = phase
            if self._progress is not None:
                self._progress.update(self._task, description=self._text())

    def stop(self) -> None:
        with self._lock:
            self._ended = True
            if self._progress is not None:
                self._progress.stop()

    def _text(self) -> str:
        return f"{self._title}: {self._phase}" if self._phase else self._title
