"""Phase dumps of a compilation made elsewhere: which files of a folder they are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tracemap.errors import DumpsInvalid
from tracemap.graph.ops import PHASES
from tracemap.inputs import stored_bytes
from tracemap.ir.configured import KernelText

NEEDED = ("dispatch-creation", "flow", "hal")
"""Phases without which there are no members, no sites, or no commands."""

LAST = "vm"
"""The phase behind which the module is written; no op is followed so far."""
# Of the data that the last phase holds only executables say of what kind they are.
_EXECUTABLE = re.compile(rb'^\s*vm\.rodata [^"\n]*mime_type = "[^"\n]*"> dense<"0x([0-9A-Fa-f]+)">', re.MULTILINE)


class Dumps:
    """The dumps in a folder: the phases of one compilation that has ended.

    Raises:
        DumpsInvalid: a phase that is needed is missing, or there are several dumps of one.
    """

    is_own = False

    def __init__(self, folder: Path, *, model_given: bool) -> None:
        self._files: dict[str, Path] = {}
        for phase in (*PHASES, LAST):
            found = sorted(folder.glob(f"*.{phase}.mlir"))
            if len(found) > 1:
                raise DumpsInvalid(
                    f"{folder}: several dumps of the phase {phase} ({found[0].name}, {found[1].name}); "
                    "keep those of one compilation in a folder of their own"
                )
            if found:
                self._files[phase] = found[0]
        for phase in NEEDED if model_given else ("input", *NEEDED):
            if phase not in self._files:
                raise DumpsInvalid(
                    f"{folder}: no dump of the phase {phase} (*.{phase}.mlir); "
                    "compile with --dump-compilation-phases-to and --mlir-print-debuginfo"
                )

    def has(self, phase: str) -> bool:
        """Whether the folder has a dump of a phase."""
        return phase in self._files

    def file(self, phase: str) -> Path:
        """Where the dump of a phase lies."""
        return self._files[phase]

    def wait_for(self, phase: str) -> str:
        """The text of a phase's dump.

        Raises:
            DumpsInvalid: it cannot be read, or it was printed without locations.
        """
        text = stored_bytes(self._files[phase], DumpsInvalid).decode(errors="replace")
        if "loc(" not in text:
            raise DumpsInvalid(f"{self._files[phase]}: no locations in it; compile with --mlir-print-debuginfo")
        return text

    def executables(self) -> Iterator[bytes]:
        """The executables in the dump of the last phase, as the module has them; none where there is no such dump."""
        if self.has(LAST):
            text = stored_bytes(self._files[LAST], DumpsInvalid)
            for found in _EXECUTABLE.finditer(text):
                # A digit that is missing makes other bytes, which are in no module.
                yield bytes.fromhex(found[1][: len(found[1]) // 2 * 2].decode("ascii"))

    def kernels(self) -> tuple[KernelText, ...]:
        """The machine code's debug lines are not ours."""
        return ()
