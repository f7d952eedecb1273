"""`tracemap.recording` and the `%%tracemap` magic."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tracemap.errors import UsageInvalid
from tracemap.graph.bundle import Bundle as StoredBundle
from tracemap.graph.bundle import load
from tracemap.results.attribution import Attribution
from tracemap.results.bundle import Bundle
from tracemap.results.display import lasting_folder
from tracemap.session.record import attached, look_here, write_span

if TYPE_CHECKING:
    from tracemap.capture.noise import Look
    from tracemap.options.results import AttributeOptions


# ---- recording
#
# `with tracemap.recording(bundle)`: what the program's own code calls by `iree.runtime` is recorded and attributed.


class Recording:
    """What is called between its beginning and its end; there is something to ask it when it has ended.

    `executions`: how many times kernels of the bundle ran; `path`: the run.

    Example:
        >>> import iree.runtime, numpy as np
        >>> with tracemap.recording("model.tracemap", "new.parquet") as recorded:
        ...     module = iree.runtime.load_vm_flatbuffer_file("model.tracemap/module.vmfb", driver="local-sync")
        ...     result = module.main(np.ones((24, 16), np.float32), np.ones((16, 16), np.float32))
        >>> recorded.path.name, recorded.executions
        ('new.parquet', 4)
    """

    def __init__(self, bundle: Bundle, output: Path | None) -> None:
        self.bundle = bundle
        self.path = output or lasting_folder() / "recording.parquet"
        self.executions = 0
        self._begin: Look | None = None

    def __enter__(self) -> Recording:
        attached()
        self._begin = look_here()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._begin is not None:
            self.executions = write_span(self.bundle, self._begin, look_here(), self.path)

    def attribute(self, options: AttributeOptions | None = None) -> Attribution:
        """Which op cost what.

        Raises:
            tracemap.errors.UsageInvalid: it has not ended yet.
            tracemap.errors.TracemapError: as `tracemap.attribute` does.

        Example:
            >>> import iree.runtime, numpy as np
            >>> with tracemap.recording("model.tracemap") as recorded:
            ...     module = iree.runtime.load_vm_flatbuffer_file("model.tracemap/module.vmfb", driver="local-sync")
            ...     result = module.main(np.ones((24, 16), np.float32), np.ones((16, 16), np.float32))
            >>> recorded.attribute().scope("h0/ffn")["cpu_ns"] > 0
            True
        """
        from tracemap.options.results import AttributeOptions
        from tracemap.session.attribute import attribute

        if not self.executions:
            raise UsageInvalid("the recording has not ended: ask it behind its `with` block")
        made = attribute([self.path], self.bundle, options or AttributeOptions())
        return Attribution.of(made.attribution, self.bundle, (self.path,))

    def _repr_html_(self) -> str:
        return self.attribute()._repr_html_()


# ---- magic
#
# `%%tracemap BUNDLE` in a notebook: runs the cell in `tracemap.recording` and shows what its calls cost.


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
