"""Opening a run: tables and profiles, from files and from standard input."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.conftest import Built
from tests.support import run_cli

_PROGRAM = """
import sys, duckdb
from pathlib import Path
from tracemap.runs.readers.open_run import open_run
from tracemap.runs.columns import events_sql
print(duckdb.sql(events_sql(open_run(Path("-"), Path(sys.argv[1])))).fetchall()[0][1])
"""


def test_standard_input(tmp_path: Path) -> None:
    text = "kernel,cpu_ns\nfrom_stdin,3\n"
    command = [sys.executable, "-c", _PROGRAM, str(tmp_path)]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "from_stdin"


def test_a_folder_is_no_run_and_the_error_says_where_runs_are(built: Built, tmp_path: Path) -> None:
    """Those of a bundle lie in it; what the hook recorded into a folder is made one by `stats`."""
    bundle, folder = tmp_path / "of.tracemap", tmp_path / "calls"
    shutil.copytree(built("hand_mlp"), bundle)
    folder.mkdir()
    for runs, said in (
        ((bundle,), f"{bundle}: this bundle has no run; record one with `tracemap record {bundle}` [usage-invalid]"),
        ((folder,), f"tracemap stats {folder} --calls calls.parquet makes a table of its calls"),
    ):
        for command in (("attribute", "--map", bundle), ("export", "--to", "csv", "-o", "-")):
            done = run_cli(*command, *runs)
            assert (done.returncode, done.stdout) == (2, "")
            assert said in done.stderr
