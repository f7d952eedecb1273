"""The dumps of a compilation's phases, read as they come, and how far each op is still located in them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tracemap.errors import ModelInvalid
from tracemap.graph.ops import SOURCE
from tracemap.ir.parsing import MlirParser, Module
from tracemap.mapping.compiler.compiling import Phases
from tracemap.mapping.fates.survival import Survival
from tracemap.mapping.identity import Identity


class DumpReader:
    """Reads the dumps of phases, and notes which ops each still locates."""

    def __init__(self, parser: MlirParser, phases: Phases, identity: Identity) -> None:
        self._parser = parser
        self._phases = phases
        self._identity = identity
        self._noted: set[str] = set()
        self.survival = Survival()

    def text(self, phase: str) -> str:
        """The dump of a phase, as soon as it is there; "" where the compilation left it out."""
        if not self._phases.has(phase):
            return ""
        text = self._phases.wait_for(phase)
        if phase not in self._noted:
            self._noted.add(phase)
            with _naming(phase):
                self.survival.add(phase, self._identity.located(text))
        return text

    def is_gone_early(self, index: int) -> bool:
        """Whether an op is located in no phase from preprocessing on, as far as they were read."""
        return self.survival.last_phase(index) in (SOURCE, "input", "abi")

    def module(self, phase: str) -> Module:
        """The dump of a phase, parsed."""
        text = self.text(phase)
        with _naming(phase):
            return self._parser.parse(text, printed=self._phases.is_own)


@contextmanager
def _naming(phase: str) -> Iterator[None]:
    """Name the phase where its dump does not parse."""
    try:
        yield
    except ModelInvalid as error:
        raise ModelInvalid(f"the dump of the phase {phase} does not parse: {str(error).removeprefix('-:')}") from error
