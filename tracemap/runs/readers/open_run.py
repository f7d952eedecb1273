"""Open runs: tables, the output of other tools, or standard input."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tracemap.core.errors import RunInvalid, TracemapError, UsageInvalid
from tracemap.core.files import FileFormat, copy_user_input, display_name, format_of_file, is_file
from tracemap.core.process.temporary_files import name_prefix
from tracemap.runs.columns import LAUNCH
from tracemap.runs.ireeprof.records import EXPORT_MEMORY
from tracemap.runs.model import Run
from tracemap.runs.readers.extensions import run_of_extension
from tracemap.runs.runfile import is_parquet, read_run, write_run
from tracemap.runs.sql import available_memory, explained_out_of_memory, open_database

if TYPE_CHECKING:
    from tracemap.runs.readers.formats import Reader


def open_run(path: Path, folder: Path, dispatch: str = "") -> Run:
    """Open a run: a table (see `runs.runfile.read_run`) or the output of another tool, detected by content.

    Args:
        path: the file; `-` is standard input.
        folder: folder for converted events, or for a copy of a pipe; it must exist as long as the run is used.
        dispatch: the kernel, for a file that does not name it.

    Raises:
        RunEmpty: nothing was recorded.
        RunInvalid: no run, or a damaged one.
        RunVersion: another format version.
        UsageInvalid: `dispatch` is given for a file that names its kernels, or is missing for one that does not.
    """
    if is_file(str(path)):
        return _open_file(path, folder, dispatch)
    if path.is_dir():
        from tracemap.runs.cuda.recording import only_process, process_files

        if processes := process_files(path):
            return replace(_open_file(only_process(path, processes), folder, dispatch), given=str(path))
    _refuse_folder(path)
    copy, name = folder / "stdin.csv", display_name(str(path))
    copy_user_input(str(path), copy, RunInvalid)  # a table is read more than once
    try:
        return replace(_open_file(copy, folder, dispatch), given=name, copy=copy)
    except TracemapError as error:
        raise type(error)(str(error).replace(str(copy), name)) from error


def _open_file(path: Path, folder: Path, dispatch: str) -> Run:
    """Open a run from a regular file; see `open_run`. Readers of other packages get what tracemap does not read."""
    try:
        return _open_known(path, folder, dispatch)
    except RunInvalid as error:
        run = None if dispatch else run_of_extension(path, folder, error)
        if run is None:
            raise
        return run


def _open_known(path: Path, folder: Path, dispatch: str) -> Run:
    name = str(path)
    reader = _reader_of(path, dispatch)
    if reader is None:
        return replace(read_run(path), given=name)
    table = folder / f"{name_prefix(path.name)}.parquet"
    fitting = explained_out_of_memory(f"the events of {path}", "free some, or record fewer calls")
    with fitting, open_database(available_memory(EXPORT_MEMORY)) as connection:
        read = reader(path, connection)
        write_run(read.header, read.events, table, force=True)
    run = read_run(table)
    return replace(run, has_header=False, given=name, tells_order=LAUNCH in run.columns)


def _reader_of(path: Path, dispatch: str) -> Reader | None:
    """The reader of a file; None for a table. See `open_run`."""
    reader = None
    if path.suffix == ".ireeprof" or not is_parquet(path):  # importing all readers takes longer than a small run
        from tracemap.runs.readers.formats import reader_of
        from tracemap.runs.readers.hook_csv import read_hook_csv
        from tracemap.runs.readers.iree_profile import read_iree_profile

        reader = read_iree_profile if path.suffix == ".ireeprof" else reader_of(path)
        if reader is read_hook_csv:
            return partial(read_hook_csv, kernel=dispatch)
    if dispatch:
        raise UsageInvalid(f"{path}: names its kernels itself; --dispatch is only for CSV files of IREE's hook")
    return reader


def _refuse_folder(path: Path) -> None:
    """Reject a folder; the message says where the runs of a bundle are, or how to convert a recording of the hook."""
    if str(path) == "-" or not path.is_dir():
        return
    if format_of_file(path) is FileFormat.BUNDLE:
        runs = sorted(path.glob("runs/run-*.[pc]*"))
        advice = f"name one of its runs, such as {runs[-1]}" if runs else f"record one: tracemap record {path}"
        raise RunInvalid(f"{path}: is a bundle, not a run; {advice}")
    raise RunInvalid(
        f"{path}: is a folder. If the hook recorded into it, tracemap stats {path} --calls calls.parquet makes "
        "a table of its calls, which is read as a run"
    )
