"""Runs as files: Parquet (header in its key-value metadata) or CSV (header next to it, in `run.csv.json`).

Tables of users and of other tools are supported. Reading a run looks only at its header and first rows. The single scan
of the attribution checks the values (`columns.events_sql`); if it fails, `bad_cells` locates the bad value.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import structs

from tracemap.core.codec import escape_surrogates, pretty_json
from tracemap.core.diagnostics import Diagnostic
from tracemap.core.errors import RunEmpty, RunInvalid, TargetUnwritable, TracemapError, check_limits, start_of
from tracemap.core.files import (
    atomic_file,
    check_file,
    check_table_name,
    is_csv,
    is_stream,
    link_target,
    open_stored_file,
    read_stored_file,
)
from tracemap.core.sanitize import for_terminal, unescape_formula
from tracemap.runs.columns import (
    check_width,
    column_notes,
    csv_rows,
    csv_sql,
    file_columns,
    has_workgroup_rows,
    kernel_name,
    metrics_of,
    sql_type,
    workgroup_calls_note,
)
from tracemap.runs.model import COLUMNS, STEP_METRICS, UNKNOWN_HEADER, Clock, Run, RunHeader, parse_header
from tracemap.runs.sql import (
    CSV,
    copied,
    copy_to,
    damage_of,
    file_literal,
    literal,
    query_database,
    reader_call,
    reading_errors,
    rows_of,
)

if TYPE_CHECKING:
    import duckdb


PARQUET_KEY: Final = "tracemap"
"""The key of the header in Parquet's key-value metadata."""

_PARQUET_MAGIC = b"PAR1"
_COMPRESSED = (b"\x1f\x8b", b"PK\x03\x04", b"\x28\xb5\x2f\xfd", b"\xfd7zX")
_SAMPLE_ROWS = 1000


# ---- writing


def check_target(target: Path, *, force: bool) -> None:
    """Check, before the work starts, whether a run can be written: its table, and the header next to a CSV.

    Raises:
        UsageInvalid: the name has the suffix of another kind of file.
        TargetExists: one of the files exists and `force` is not set.
        TargetUnwritable: the folder does not exist or is not writable, the target is a folder, or its name would
            prevent reading it back as a run.
    """
    if escape_surrogates(str(target)) != str(target):
        raise TargetUnwritable(f"{target}: the name is not UTF-8, which the database needs; choose another")
    if target.suffix == ".ireeprof":
        raise TargetUnwritable(
            f"{target}: the suffix .ireeprof is for IREE's profiles, but a run is a table; choose a name with .parquet "
            "or .csv (record --keep-profile also keeps IREE's profile)"
        )
    check_table_name(target)
    # A CSV has no mark of its own: the header next to it shows that tracemap wrote it.
    own = _has_header_file(target) and is_header(header_path(target))
    check_file(target, force=force or own)
    if _has_header_file(target):
        check_file(header_path(target), force=force or own)


def _has_header_file(target: Path) -> bool:
    return is_csv(target) and not is_stream(target)


def is_header(path: Path) -> bool:
    """Whether a file is a run's header. A header without its table is left by a recording that was killed."""
    try:
        parse_header(read_stored_file(path, RunInvalid), str(path))
    except (OSError, TracemapError):
        return False
    return True


def header_path(table: Path) -> Path:
    """The path of a CSV's header."""
    return table.with_name(table.name + ".json")


def files_of(target: Path) -> list[Path]:
    """The files of a run at a target: its table, and the header next to a CSV."""
    return [target, *([header_path(target)] if _has_header_file(target) else [])]


def write_run(header: RunHeader, events: duckdb.DuckDBPyRelation, target: Path, *, force: bool) -> None:
    """Write a run atomically: CSV if the name ends in `.csv`, else Parquet.

    A CSV on standard output or in a pipe has no header file.

    Args:
        header: the header.
        events: the table, with columns as in `runs.model.COLUMNS` and metrics.
        target: the file to write.
        force: replace existing files.

    Raises:
        TargetExists: a file exists and `force` is not set.
        TargetUnwritable: the target cannot be written.
    """
    check_target(target, force=force)
    replaces, text = target.exists(), pretty_json(header)
    if not _has_header_file(target):
        parquet = f"FORMAT parquet, KV_METADATA {{{PARQUET_KEY}: {literal(text)}}}"
        copy_to(events, target, CSV if is_csv(target) else parquet)
        return
    with copied(events, target, CSV), atomic_file(header_path(target)) as header_file:
        header_file.write_text(text, encoding="utf-8")
        if replaces:
            link_target(target).unlink(missing_ok=True)  # a new header is never next to an old table


def with_events(run: Run, header: RunHeader, events: duckdb.DuckDBPyRelation, folder: Path) -> Run:
    """A run with its events and header replaced.

    Args:
        run: the original run.
        header: the new header.
        events: the new events.
        folder: the folder to create for the new run; it must exist as long as the run is used.
    """
    folder.mkdir()
    table = folder / run.table.name
    write_run(header, events, table, force=True)
    return replace(read_run(table), has_header=run.has_header, given=run.file)


# ---- reading


def is_parquet(path: Path) -> bool:
    """Recognize Parquet by the first bytes of a file.

    Raises:
        RunInvalid: there is no such file.
    """
    with open_stored_file(path, RunInvalid) as file:
        return file.read(len(_PARQUET_MAGIC)) == _PARQUET_MAGIC


def read_run(path: Path) -> Run:
    """Open a recorded run, or a bare CSV or Parquet table from elsewhere.

    Raises:
        RunInvalid: there is no such file, no table, no column of kernel names, or no metric.
        RunVersion: the header has another format version.
        RunEmpty: the table has no header and no row.
    """
    with open_stored_file(path, RunInvalid) as file:
        magic = file.read(len(_PARQUET_MAGIC))
    if magic.startswith(_COMPRESSED):
        raise RunInvalid(f"{path}: is compressed; unpack it first, for example: tracemap attribute <(zcat {path.name})")
    if escape_surrogates(str(path)) != str(path):
        raise RunInvalid(f"{path}: its name is not UTF-8, which the database needs; rename it")
    return _read_parquet_run(path) if magic == _PARQUET_MAGIC else _read_csv_run(path)


def _read_parquet_run(path: Path) -> Run:
    table = reader_call("read_parquet", path)
    try:
        with query_database() as connection:
            described = connection.execute(f"DESCRIBE SELECT * FROM {table}").fetchall()
            pairs = connection.execute(
                f"SELECT value FROM parquet_kv_metadata({file_literal(path)}) WHERE key = '{PARQUET_KEY}'"
            ).fetchall()
            is_empty = not pairs and not connection.execute(f"FROM {table} LIMIT 1").fetchall()
    except reading_errors() as error:
        raise RunInvalid(f"{path}: cannot be read as Parquet: {damage_of(error)}") from error
    header = parse_header(pairs[0][0], str(path)) if pairs else None
    check_width(path, len(described))
    columns = {str(name): str(kind) for name, kind, *_ in described}
    if is_empty and columns:
        raise RunEmpty(f"{path}: the table has columns but no event")
    return _run(path, "parquet", header, list(columns.items()))


def _read_csv_run(path: Path) -> Run:
    header_file = header_path(path)
    has_header = os.path.lexists(header_file)
    header = parse_header(read_stored_file(header_file, RunInvalid), str(header_file)) if has_header else None
    with csv_rows(path) as rows:
        names = tuple(map(unescape_formula, next(rows, ())))
        check_width(path, len(names))
        sample = list(itertools.islice(rows, _SAMPLE_ROWS))
    # A recorded table may be empty: the program ran without dispatching any work.
    if not names and header is None:
        raise RunEmpty(f"{path}: the file is empty: no events; record again, or pass another file")
    if header is None and not any(sample) and kernel_name(names):
        raise RunEmpty(f"{path}: the table has a header line but no event")
    types = _csv_types(path, names, sample)
    notes = column_notes(names, types, sample) if header is None else ()
    return _run(path, "csv", header, list(zip(names, types, strict=True)), tuple(notes))


def _csv_types(path: Path, names: Sequence[str], sample: Sequence[Sequence[str]]) -> list[str]:
    """The SQL types of a CSV's columns, inferred from its first rows, or from the first with a value."""
    columns = [[row[index] for row in sample if index < len(row)] for index in range(len(names))]
    types = list(map(sql_type, columns))
    has_steps = "step" in {name.strip().lower() for name in names}
    for index, name in enumerate(names):
        if has_steps and name in STEP_METRICS and types[index] == "VARCHAR":
            # Step rows may come after thousands of others, or not at all; their counts are integers.
            types[index] = "BIGINT"
        elif len(sample) == _SAMPLE_ROWS and not any(columns[index]) and name.strip().lower() not in COLUMNS:
            table, cell = csv_sql(path, ["VARCHAR"] * len(names)), f"c{index}"
            try:
                values = rows_of(f"SELECT {cell} FROM {table} WHERE {cell} <> '' LIMIT {_SAMPLE_ROWS}")
            except reading_errors() as error:
                check_limits(error)  # for all other errors, the later scan of all values names the place
                values = []
            types[index] = sql_type([str(value) for (value,) in values])
    return types


_LISTED, _LONGEST_NAME = 20, 40
"""Limits of the names in a message, because a file that is no table may have very long ones."""


def _run(
    path: Path,
    file_format: str,
    header: RunHeader | None,
    types: list[tuple[str, str]],
    notes: tuple[Diagnostic, ...] = (),
) -> Run:
    """The run of a file with these columns (name, SQL type); `notes` are those on a table without a header."""
    columns = file_columns(path, types)
    metrics = metrics_of(columns, Clock.UNKNOWN if header is None else header.clock)
    names = tuple(name for name, _ in types)
    has_kernel = any(column.means == "kernel" for column in columns)
    if not has_kernel or not metrics:
        missing = (
            "metric: duration_ns, duration_us, duration_ms, cpu_ns, or another column of numbers"
            if has_kernel
            else "column that names the kernel (kernel, dispatch or name)"
        )
        shown = [start_of(name, _LONGEST_NAME) for name in names[:_LISTED]]
        more = [f"… ({len(names)} in all)"] if len(names) > _LISTED else []
        listed = ", ".join(for_terminal(name) for name in [*shown, *more]) or "nothing"
        raise RunInvalid(f"{path}: there is no {missing}; its columns are: {listed}")
    if header is None and has_workgroup_rows(names):
        notes = (*notes, workgroup_calls_note("the table"))
    return Run(
        header or structs.replace(UNKNOWN_HEADER, diagnostics=notes),
        path,
        file_format,
        names,
        metrics,
        has_header=header is not None,
    )
