"""Result of `tracemap.record`: events as a table, times, and the page."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from tracemap.capture.record import Recorded
from tracemap.results.bundle import Bundle
from tracemap.results.display import AsTable, Columns, heading, table
from tracemap.units import Integer, format_count, format_ns


@dataclass(frozen=True, slots=True)
class Run(Recorded, AsTable):
    """A run, as `tracemap.record` returns it.

    `bundle`: the bundle that was run.

    Example:
        >>> run = tracemap.record("model.tracemap", "new.parquet", iterations=5)
        >>> run.path.name, run.header.function, run.header.iterations, run.events > 5 * 4
        ('new.parquet', 'main', 5, True)
    """

    bundle: Bundle | None = None

    @classmethod
    def of(cls, recorded: Recorded, bundle: Bundle) -> Run:
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
            tracemap.errors.TracemapError: see `tracemap.report`.

        Example:
            >>> tracemap.record("model.tracemap", iterations=5).show("page.html", browser=False).name
            'page.html'
        """
        from tracemap.graph.bundle import load
        from tracemap.options.results import ReportOptions
        from tracemap.results.display import shown
        from tracemap.session.report import report

        bundle = self.bundle or load(Path(str(self.header.bundle)))
        return shown(lambda file: report(bundle, [self.path], ReportOptions(output=file)), output, browser=browser)

    def _columns(self) -> Columns:
        """One row per event, with the columns of the run's file."""
        from tracemap.measurements.columns import columns_of, events_sql
        from tracemap.measurements.runfile import read_run
        from tracemap.measurements.sql import open_database, quoted

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
