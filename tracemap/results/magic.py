"""`%%tracemap BUNDLE` in a notebook: runs the cell in `tracemap.recording` and shows what its calls cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tracemap.errors import UsageInvalid
from tracemap.graph.bundle import Bundle as StoredBundle
from tracemap.graph.bundle import load
from tracemap.results.attribution import Attribution
from tracemap.results.bundle import Bundle
from tracemap.results.recording import Recording


class _CellFailed(Exception):
    """The cell raised an error, which the notebook has shown already."""


def add_magic(shell: Any) -> None:  # noqa: ANN401 - IPython's shell, which need not be there
    """Add `%%tracemap` to a shell of IPython."""

    def recorded(line: str, cell: str) -> Attribution | None:
        """Run the cell, and show what its calls of a module cost: `%%tracemap BUNDLE`, a variable or a path."""
        recording = Recording(_bundle(shell.user_ns, line.strip()), None)
        try:
            with recording:
                if not shell.run_cell(cell).success:
                    raise _CellFailed
        except _CellFailed:
            return None
        return recording.attribute()

    shell.register_magic_function(recorded, "cell", "tracemap")


def _bundle(variables: dict[str, Any], name: str) -> Bundle:
    """The bundle of a variable, or of a path.

    Raises:
        UsageInvalid: none is named, or the variable holds something else.
    """
    if not name:
        raise UsageInvalid("name a bundle behind %%tracemap: a variable that holds one, or its path")
    found = variables.get(name)
    if isinstance(found, StoredBundle):
        return Bundle.of(found)
    if found is not None and not isinstance(found, (str, Path)):
        raise UsageInvalid(f"{name} is no bundle, but {type(found).__name__}")
    return Bundle.of(load(Path(found or name)))
