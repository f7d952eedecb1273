"""Standard streams: messages, results, progress and warnings."""

from __future__ import annotations

import errno
import io
import logging
import os
import shlex
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TextIO

import click

from tracemap.core.errors import TargetUnwritable
from tracemap.core.sanitize import for_terminal, lines_for_terminal
from tracemap.core.toolchain import Progress, no_progress

if TYPE_CHECKING:
    from tracemap.core.diagnostics import Diagnostic
    from tracemap.map.bundle import Bundle


_IN, _OUT, _ERR = 0, 1, 2


def open_streams(reader_gone: Callable[[], object]) -> None:
    """Make the standard streams usable, even if the program was started with some of them closed.

    The next file that the program opens would take the place of a closed stream. Therefore a closed stream is replaced
    by one that cannot be read or written, as in other programs.

    Args:
        reader_gone: called when the reader of standard output has closed the pipe; it ends the program.
    """
    for descriptor, mode in ((_IN, os.O_WRONLY), (_OUT, os.O_RDONLY), (_ERR, os.O_WRONLY)):
        _replace_closed(descriptor, mode)
    out = sys.stdout
    encoding = "utf-8" if out is None else out.encoding
    # Characters that the encoding lacks, such as µ in ASCII, are written as escapes.
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


def _replace_closed(descriptor: int, mode: int) -> None:
    try:
        os.fstat(descriptor)
    except OSError as error:
        if error.errno != errno.EBADF:
            raise
        opened = os.open(os.devnull, mode)  # gets the lowest free descriptor
        if opened != descriptor:
            os.dup2(opened, descriptor)
            os.close(opened)
        os.set_inheritable(descriptor, True)


class _Output(io.FileIO):
    """Standard output that reports a full disk or a closed pipe."""

    def __init__(self, reader_gone: Callable[[], object]) -> None:
        super().__init__(_OUT, "w", closefd=False)
        self._reader_gone = reader_gone

    def write(self, data: object) -> int:
        """Write like a file, but convert errors to `TargetUnwritable`."""
        try:
            return super().write(data)  # type: ignore[arg-type]  # any buffer
        except BrokenPipeError:
            self._reader_gone()
            raise
        except OSError as error:
            raise TargetUnwritable(f"standard output cannot be written: {error.strerror}") from error


def flush_output() -> None:
    """Flush standard output; on failure discard all further output, which would otherwise fail again at exit.

    Raises:
        TargetUnwritable: standard output cannot be written.
    """
    try:
        sys.stdout.flush()
    except BaseException:
        give_up_output()
        raise


def give_up_output() -> None:
    """Discard all further standard output."""
    with suppress(OSError):
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, _OUT)
        os.close(devnull)


class _State:
    """State of the options that all commands have.

    Quiet: only warnings and errors are printed on standard error. Verbose: every phase has a line with its time. Brief:
    JSON is in its brief form.
    """

    quiet = False
    verbose = False
    brief = False
    display: _Display | None = None


def be_quiet() -> None:
    """Print only warnings and errors from now on."""
    _State.quiet = True


def is_quiet() -> bool:
    """Whether only warnings and errors are printed."""
    return _State.quiet


def be_brief() -> None:
    """Print JSON in its brief form from now on."""
    _State.brief = True


def is_brief() -> bool:
    """Whether JSON is in its brief form."""
    return _State.brief


def print_message(text: str) -> None:
    """Print a message on standard error, unless --quiet is set."""
    if not _State.quiet:
        print_warning(text)


def print_next(*words: object) -> None:
    """Print the command that most users need next, on standard error; paths below the working folder are relative."""
    here = ""
    with suppress(OSError):  # the folder was deleted
        here = os.getcwd() + os.sep  # noqa: PTH109 - a prefix of strings, not a path
    print_message(f"next: tracemap {shlex.join(str(word).removeprefix(here) for word in words)}")


def print_warning(text: str) -> None:
    """Print a warning or an error in one line on standard error; line breaks in it are escaped."""
    warn_in_lines(for_terminal(text))


def warn_in_lines(text: str) -> None:
    """Like `print_warning`, but keep line breaks, such as those in a program's output."""
    with suppress(OSError, RuntimeError, ValueError):  # a full disk, a closed stream, or an interrupted write
        sys.stderr.write(lines_for_terminal(text) + "\n")
        sys.stderr.flush()


def print_result_line(line: str) -> None:
    """Print a line of a result, such as a path: escaped on a terminal, else the exact bytes."""
    if sys.stdout.isatty():
        sys.stdout.write(for_terminal(line) + "\n")
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(os.fsencode(line) + b"\n")
    sys.stdout.flush()


# ---- results


def show_in_format(
    form: str,
    out: TextIO,
    text: Callable[[TextIO], object],
    value: Callable[[], object],
    bundle: Bundle | None = None,
    focus: Collection[str] = (),
    words: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> None:
    """Write a result to a stream: as JSON of `value()` if `form` is `json`, else with `text`.

    The stream is flushed, so that a closed pipe is noticed while the caller can still handle it.

    Args:
        form: the value of --format.
        out: the stream.
        text: writes the result in another format.
        value: makes the JSON document.
        bundle: for --brief, the bundle that the document is about.
        focus: for --brief, ids and names that the user asked for; their rows come first.
        words: for --brief, words of the next commands, added to this command's own arguments.
    """
    from tracemap.core.codec import pretty_json
    from tracemap.core.files import use_utf8

    if form != "text":
        use_utf8(out)
    if form != "json":
        text(out)
    elif is_brief():
        from tracemap.reports.brief import Context, brief, brief_json

        graph = None if bundle is None else bundle.graph
        context = Context(graph, {**_words_of_command(bundle), **words}, focus)
        out.write(brief_json(brief(value(), context)))
    else:
        out.write(pretty_json(value()))
    out.flush()


def _words_of_command(bundle: Bundle | None) -> dict[str, Sequence[str]]:
    """The command's own arguments and paths, for the commands that a brief form names."""
    from tracemap.core.process.children import path_argument

    context = click.get_current_context(silent=True)
    parameters = {} if context is None else context.params
    options = parameters.get("options")
    given = {**{name: getattr(options, name, None) for name in ("store", "output", "map", "baseline")}, **parameters}
    words: dict[str, Sequence[str]] = {}
    for name, value in given.items():
        values = value if isinstance(value, tuple) else (value,)
        if values and all(isinstance(item, (str, Path)) for item in values):
            words[name] = [path_argument(item) if isinstance(item, Path) else item for item in values]
    words.setdefault("runs", words.get("run", ()))
    if "map" in words:
        words["runs"] = [*words["runs"], "--map", *words["map"]]
    if bundle is not None:
        path = [path_argument(bundle.path)]
        has_run = any(bundle.runs_path.glob("run-*"))
        words |= {"bundle": path, "recorded" if has_run else "unrecorded": path}
    return words


# ---- progress
#
# Shows the current phase if a command takes over a second and standard error is a terminal.
#
# With --verbose, prints a line with the time of every phase, and a line for every program that is started.


_DELAY_S = 1.0


@contextmanager
def show_phases(title: str) -> Iterator[Progress]:
    """Yield a `Progress` that shows `title: phase`, a spinner and the elapsed time, after the first second."""
    if _State.verbose:
        yield from _log_phases(title)
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


def give_back_terminal() -> None:
    """Show the cursor again when a signal ends the program during a phase.

    Takes no lock, since the signal may have interrupted its owner.
    """
    if _State.display is not None and _State.display.is_shown:
        with suppress(OSError):
            os.write(2, b"\r\x1b[2K\x1b[?25h")


class _LogHandler(logging.Handler):
    """Prints log records as messages."""

    def emit(self, record: logging.LogRecord) -> None:
        print_message(f"tracemap: {record.getMessage()}")


def be_verbose() -> None:
    """From now on, print every phase with its time, and every program that is started."""
    if not _State.verbose:
        _State.verbose = True
        logger = logging.getLogger("tracemap")
        logger.setLevel(logging.DEBUG)
        logger.addHandler(_LogHandler())


def _log_phases(title: str) -> Iterator[Progress]:
    start, phase = time.monotonic(), ""

    def begin_phase(next_phase: str) -> None:
        nonlocal start, phase
        now = time.monotonic()
        if phase:
            print_message(f"tracemap: {title}: {phase}: {now - start:.2f} s")
        start, phase = now, next_phase

    try:
        yield begin_phase
    finally:
        begin_phase("")


class _Display:
    """A progress line of rich, created late by a timer thread while the main thread works."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._phase = ""
        self._lock = threading.Lock()
        self._progress: Any = None  # rich.progress.Progress; rich is imported only when the line is shown
        self._task: Any = None
        self._ended = False

    def start(self) -> None:
        from rich.console import Console
        from rich.progress import Progress as RichProgress
        from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

        with self._lock:
            if self._ended:  # the phase ended while rich was imported
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
# Diagnostics on standard error.


def print_diagnostics(diagnostics: Iterable[Diagnostic]) -> None:
    """Print diagnostics on standard error, one line each, with their slugs."""
    for item in diagnostics:
        print_warning(f"tracemap: warning: {item.message} [{item.slug}]")
