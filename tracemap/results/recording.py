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
from tracemap.results.display import process_temporary_folder
from tracemap.session.record import attached, take_snapshot, write_span

if TYPE_CHECKING:
    from tracemap.capture.noise import Look
    from tracemap.options.results import AttributeOptions


# ---- recording
#
# `with tracemap.recording(bundle)`: record the kernel calls that the program makes through `iree.runtime`.


class Recording:
    """A recording of this process's kernel calls inside a `with` block; results are available after the block.

    `executions`: number of calls of the bundle's kernels; `path`: the run.

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
        self.path = output or process_temporary_folder() / "recording.parquet"
        self.executions = 0
        self._begin: Look | None = None

    def __enter__(self) -> Recording:
        attached()
        self._begin = take_snapshot()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._begin is not None:
            self.executions = write_span(self.bundle, self._begin, take_snapshot(), self.path)

    def attribute(self, options: AttributeOptions | None = None) -> Attribution:
        """Costs of ops in the recording.

        Raises:
            tracemap.errors.UsageInvalid: the `with` block has not ended yet.
            tracemap.errors.TracemapError: see `tracemap.attribute`.

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
            raise UsageInvalid("the recording has not ended: call this after its `with` block")
        attributed = attribute([self.path], self.bundle, options or AttributeOptions())
        return Attribution.of(attributed.attribution, self.bundle, (self.path,))

    def _repr_html_(self) -> str:
        return self.attribute()._repr_html_()


# ---- magic
#
# `%%tracemap BUNDLE` in a notebook: run the cell in `tracemap.recording` and show the costs.


class _CellFailed(Exception):
    """The cell raised an error, which the notebook has already shown."""


def add_magic(shell: Any) -> None:  # noqa: ANN401 - IPython's shell, which need not be there
    """Add `%%tracemap` to an IPython shell."""

    def recorded(line: str, cell: str) -> Attribution | None:
        """Run the cell and show the costs of its kernel calls: `%%tracemap BUNDLE`, a variable or a path."""
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
    """Bundle from a variable of this name, or from a path.

    Raises:
        UsageInvalid: no bundle is named, or the variable is not a bundle.
    """
    if not name:
        raise UsageInvalid("name a bundle after %%tracemap: a variable or a path")
    value = variables.get(name)
    if isinstance(value, StoredBundle):
        return Bundle.of(value)
    if value is not None and not isinstance(value, (str, Path)):
        raise UsageInvalid(f"{name} is a {type(value).__name__}, not a bundle; pass a bundle or its path")
    return Bundle.of(load(Path(value or name)))
