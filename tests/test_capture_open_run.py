"""Opening a run: tables and profiles, from files and from standard input."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_PROGRAM = """
import sys, duckdb
from pathlib import Path
from tracemap.capture.open_run import open_run
from tracemap.measurements.columns import events_sql
print(duckdb.sql(events_sql(open_run(Path("-"), Path(sys.argv[1])))).fetchall()[0][1])
"""


def test_standard_input(tmp_path: Path) -> None:
    text = "kernel,cpu_ns\nfrom_stdin,3\n"
    command = [sys.executable, "-c", _PROGRAM, str(tmp_path)]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "from_stdin"
