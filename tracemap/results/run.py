"""Results of `run` and `record` in Python."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tracemap.capture.record import RecordedRun
from tracemap.commands.record import attach_hook, take_snapshot, write_recording
from tracemap.core.errors import UsageInvalid
from tracemap.core.units import Integer, format_count, format_ns
from tracemap.map.bundle import Bundle as StoredBundle
from tracemap.map.bundle import load
from tracemap.results.attribution import Attribution
from tracemap.results.bundle import Bundle
from tracemap.results.display import AsTable, Columns, heading, process_temporary_folder, show_page, table

if TYPE_CHECKING:
    from tracemap.capture.noise import Look
    from tracemap.options.results import AttributeOptions


# ---- run


@dataclass(frozen=True, slots=True)
class Run(RecordedRun, AsTable):
    """A run, as `tracemap.record` returns it.

    `bundle`: the bundle that was run.

    Example:
        >>> run = tracemap.record("model.tracemap", "new.parquet", iterations=5)
        >>> run.path.name, run.header.function, run.header.iterations, run.events > 5 * 4
        ('new.parquet', 'main', 5, True)
    """

    bundle: Bundle | None = None

    @classmethod
    def of(cls, recorded: RecordedRun, bundle: Bundle) -> Run:
        """Extend a run with its bundle."""
        return cls(**{field.name: getattr(recorded, field.name) for field in fields(recorded)}, bundle=bundle)

    @property
    def elapsed_ns(self) -> Integer:
        """Wall time of the measured invocations in nanoseconds.

        Example:
            >>> run = tracemap.record("model.tracemap", iterations=5)
            >>> run.elapsed_ns >= run.median_ns
            True
        """
        return self.header.elapsed_ns

    @property
    def median_ns(self) -> Integer:
        """Wall time of the median invocation in nanoseconds.

        Example:
            >>> tracemap.record("model.tracemap", iterations=5).median_ns > 0
            True
        """
        return self.header.invocation.median_ns

    def show(self, output: Path | str | None = None, *, browser: bool = True) -> Path:
        """Open the page with the run's costs; return its file, which is temporary unless `output` names one.

        Raises:
            tracemap.core.errors.TracemapError: see `tracemap.report`.

        Example:
            >>> tracemap.record("model.tracemap", iterations=5).show("page.html", browser=False).name
            'page.html'
        """
        from tracemap.commands.report import report
        from tracemap.options.reports import ReportOptions

        bundle = self.bundle or load(Path(str(self.header.bundle)))
        return show_page(lambda file: report(bundle, [self.path], ReportOptions(output=file)), output, browser=browser)

    def _columns(self) -> Columns:
        """One row per event, with the columns of the run's file."""
        from tracemap.runs.columns import columns_of, events_sql
        from tracemap.runs.runfile import read_run
        from tracemap.runs.sql import open_database, quoted

        # `read_run` knows the types. The first rows of a CSV do not show them for steps, which come last.
        run = read_run(self.path)
        means = {column.name: quoted(column.means) for column in columns_of(run)}
        cells = ", ".join(f"{means.get(name, 'NULL')} AS {quoted(name)}" for name in run.columns)
        with open_database() as connection:
            cursor = connection.execute(f"SELECT {cells} FROM ({events_sql(run)})")
            names = [column[0] for column in cursor.description or ()]
            rows = cursor.fetchall()
        return {name: [row[index] for row in rows] for index, name in enumerate(names)}

    def _repr_html_(self) -> str:
        header = self.header
        rows = [
            ("function", str(header.function)),
            ("device", str(header.device)),
            ("invocations", format_count(header.iterations)),
            ("median invocation", format_ns(self.median_ns)),
            ("elapsed", format_ns(self.elapsed_ns)),
            *((f"input {number}", text) for number, text in enumerate(header.inputs)),
        ]
        return heading(self.path.name) + table(("", ""), rows, 2)


# ---- recording


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
        attach_hook()
        self._begin = take_snapshot()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._begin is not None:
            self.executions = write_recording(self.bundle, self._begin, take_snapshot(), self.path)

    def attribute(self, options: AttributeOptions | None = None) -> Attribution:
        """Costs of ops in the recording.

        Raises:
            tracemap.core.errors.UsageInvalid: the `with` block has not ended yet.
            tracemap.core.errors.TracemapError: see `tracemap.attribute`.

        Example:
            >>> import iree.runtime, numpy as np
            >>> with tracemap.recording("model.tracemap") as recorded:
            ...     module = iree.runtime.load_vm_flatbuffer_file("model.tracemap/module.vmfb", driver="local-sync")
            ...     result = module.main(np.ones((24, 16), np.float32), np.ones((16, 16), np.float32))
            >>> recorded.attribute().scope("h0/ffn")["cpu_ns"] > 0
            True
        """
        from tracemap.commands.attribute import attribute
        from tracemap.options.results import AttributeOptions

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
