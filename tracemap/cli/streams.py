"""Standard streams: what is said and printed, progress, and warnings."""

from __future__ import annotations

import errno
import io
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from tracemap.errors import TargetUnwritable
from tracemap.sanitize import for_terminal, lines_for_terminal
from tracemap.toolchain import Progress, no_progress

if TYPE_CHECKING:
    from tracemap.diagnostics import Diagnostic


# ---- streams
#
# Standard streams of the program: what it says to people and prints for programs goes through here.
#
# Words for people are lost where nobody takes them; a result that cannot be written is an error, unless its reader has
# enough. Texts of models, files and other programs must not steer a terminal.


_IN, _OUT, _ERR = 0, 1, 2


def open_streams(reader_gone: Callable[[], object]) -> None:
    """Make the standard streams such that they can be used, whatever the program was started with.

    `reader_gone` is called when nobody reads standard output any more, and ends the program.

    A stream that is closed would be the next file that is opened. As other programs have it, something takes its place
    from which nothing can be read, or to which nothing can be written.
    """
    for number, way in ((_IN, os.O_WRONLY), (_OUT, os.O_RDONLY), (_ERR, os.O_WRONLY)):
        _fill(number, way)
    out = sys.stdout
    encoding = "utf-8" if out is None else out.encoding
    # What an encoding lacks, such as µ in ASCII, is written as an escape.
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(_Output(reader_gone)),
        encoding=encoding,
        errors="backslashreplace",
        line_buffering=os.isatty(_OUT),
    )
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(_IN, closefd=False)), encoding="utf-8")
    if sys.stderr is None:
        sys.stderr = io.TextIOWrapper(io.FileIO(_ERR, "w", closefd=False), encoding="utf-8", write_through=True)


def _fill(number: int, way: int) -> None:
    try:
        os.fstat(number)
    except OSError as error:
        if error.errno != errno.EBADF:
            raise
        opened = os.open(os.devnull, way)  # takes the lowest number that is free
        if opened != number:
            os.dup2(opened, number)
            os.close(opened)
        os.set_inheritable(number, True)


class _Output(io.FileIO):
    """Standard output that says it where it takes no more."""

    def __init__(self, reader_gone: Callable[[], object]) -> None:
        super().__init__(_OUT, "w", closefd=False)
        self._reader_gone = reader_gone

    def write(self, data: object) -> int:
        """As files do; an error is one of ours."""
        try:
            return super().write(data)  # type: ignore[arg-type]  # any buffer
        except BrokenPipeError:
            self._reader_gone()
            raise
        except OSError as error:
            raise TargetUnwritable(f"standard output cannot be written: {error.strerror}") from error


def flush_output() -> None:
    """Write what is left of standard output; where that fails it is given up, or it would fail again at the very end.

    Raises:
        TargetUnwritable: it takes no more.
    """
    try:
        sys.stdout.flush()
    except BaseException:
        give_up_output()
        raise


def give_up_output() -> None:
    """Have standard output take whatever comes, to nowhere."""
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, _OUT)
        os.close(nowhere)


class _State:
    quiet = False
    """What is neither a warning nor an error is not said."""


def be_quiet() -> None:
    """Say nothing to people from now on but warnings and errors."""
    _State.quiet = True


def is_quiet() -> bool:
    """Whether nothing is said but warnings and errors."""
    return _State.quiet


def tell(text: str) -> None:
    """Say something to people, on standard error, unless they want it quiet."""
    if not _State.quiet:
        warn_of(text)


def warn_of(text: str) -> None:
    """Say what people have to know, a warning or an error, in one line: names in it may have line ends."""
    warn_in_lines(for_terminal(text))


def warn_in_lines(text: str) -> None:
    """The same of what has lines of its own, such as what a program said."""
    with suppress(OSError, RuntimeError, ValueError):  # full, closed, or just being written to
        sys.stderr.write(lines_for_terminal(text) + "\n")
        sys.stderr.flush()


def put(line: str) -> None:
    """Print a line of a result, such as a path: to a terminal what can be seen, else the very bytes."""
    if sys.stdout.isatty():
        sys.stdout.write(for_terminal(line) + "\n")
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(os.fsencode(line) + b"\n")
    sys.stdout.flush()


# ---- progress
#
# Shows the phase of work that takes over a second; silent when standard error is not a terminal.
#
# Who wants it verbose gets a line for each phase with its time, and one for each program that is started.


_DELAY_S = 1.0


@contextmanager
def phases_shown(title: str) -> Iterator[Progress]:
    """A `Progress` that shows `title: phase` with a spinner and the elapsed time, once a second has passed."""
    if _Shown.verbose:
        yield from _phases_told(title)
        return
    if is_quiet() or not sys.stderr.isatty():
        yield no_progress
        return
    display = _Shown.display = _Display(title)
    timer = threading.Timer(_DELAY_S, display.start)
    timer.daemon = True
    timer.start()
    try:
        yield display.show
    finally:
        timer.cancel()
        display.stop()


class _Shown:
    verbose = False
    display: _Display | None = None


def give_back_terminal() -> None:
    """Show the cursor again where a signal ends the program in a phase.

    It takes no lock: whoever has it may be cut short.
    """
    if _Shown.display is not None and _Shown.display.is_shown:
        with suppress(OSError):
            os.write(2, b"\r\x1b[2K\x1b[?25h")


class _Told(logging.Handler):
    """Says what is logged in the way of all that is said."""

    def emit(self, record: logging.LogRecord) -> None:
        tell(f"tracemap: {record.getMessage()}")


def be_verbose() -> None:
    """Say each phase with its time from now on, and each program that is started."""
    if not _Shown.verbose:
        _Shown.verbose = True
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


# ---- warnings
#
# Diagnostics, said on standard error.


def warn(diagnostics: Iterable[Diagnostic]) -> None:
    """Say what a reader must know before trusting the result: a line each, with its slug."""
    for item in diagnostics:
        warn_of(f"tracemap: warning: {item.message} [{item.slug}]")
