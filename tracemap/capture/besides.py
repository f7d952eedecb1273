"""What is measured besides times, in further executions, until Ctrl-C: what was timed is kept without the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from tracemap.diagnostics import INTERRUPTED, Diagnostic, tells
from tracemap.errors import ProgramFailed
from tracemap.owned.ending import answer, asked_by

_Measured = TypeVar("_Measured")


class Besides:
    """Measures one thing after another until the user presses Ctrl-C, and says what the run is without."""

    def __init__(self, *, interrupted: bool) -> None:
        """`interrupted`: the user has done so already."""
        self._interrupted = interrupted
        self._left_out: list[str] = []

    def measure(self, what: str, measured: Callable[[], tuple[_Measured, ...]]) -> tuple[_Measured, ...]:
        """Measure something; nothing where Ctrl-C ended it, or something before it.

        Raises:
            ProgramFailed: the program failed by itself.
        """
        if not (self._interrupted or asked_by()):
            try:
                return measured()
            except ProgramFailed as error:
                if not error.interrupted:
                    raise
        self._interrupted = True
        self._left_out.append(what)
        return ()

    def add(self, what: str, added: Callable[[], tuple[Diagnostic, ...]]) -> tuple[Diagnostic, ...]:
        """As `measure`, of what is added to the events; it may say itself that only a part of it was."""
        found = self.measure(what, added)
        if tells(found, INTERRUPTED):
            self._interrupted = True
            self._left_out.append(f"some of the {what}")
        return tuple(each for each in found if each.slug != INTERRUPTED)

    @property
    def diagnostics(self) -> Iterator[Diagnostic]:
        """What the run says of it."""
        if self._left_out:
            text = f"the recording was interrupted when calls had been timed: the run lacks {self._lacking}"
            yield Diagnostic(INTERRUPTED, text)

    @property
    def _lacking(self) -> str:
        return " and ".join(self._left_out)

    def check(self, name: str, where: object) -> None:
        """Raise ProgramFailed, with where the run of a function is, if Ctrl-C has ended the recording."""
        if not (self._interrupted or asked_by()):
            return
        answer()
        how = f", which lacks {self._lacking}" if self._left_out else ""
        error = ProgramFailed(f"the recording of {name} was interrupted; what was timed is in {where}{how}")
        error.interrupted = True
        raise error
