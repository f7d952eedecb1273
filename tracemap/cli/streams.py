"""Standard streams of the program: what it says to people and prints for programs goes through here.

Words for people are lost where nobody takes them; a result that cannot be written is an error, unless its reader has
enough. Texts of models, files and other programs must not steer a terminal.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable
from contextlib import suppress

from tracemap.errors import TargetUnwritable
from tracemap.inert import for_terminal, lines_for_terminal

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
