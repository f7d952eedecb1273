"""`python -m tests.parallel`: several recordings into one bundle at once, and whether each run is the asked one.

Each recording asks for another number of calls, so that a run that is another's, or of two programs, is seen.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click

from tests.recording import events
from tests.support import SAMPLES, check_cli, command_line
from tracemap.runs.runfile import read_run

MODEL = SAMPLES / "models" / "hand_mlp.mlir"
WARMUP = 3


def findings_of_round(bundle: Path, count: int) -> list[str]:
    """Record so often at once; what is wrong with the runs, in words."""
    shutil.rmtree(bundle / "runs", ignore_errors=True)
    asked = range(2, 2 + count)
    commands = [command_line("record", bundle, "--iterations", str(number)) for number in asked]
    recordings = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for command in commands
    ]
    found: list[str] = []
    paths: list[str] = []
    for number, recording in zip(asked, recordings, strict=True):
        out, err = recording.communicate()
        if recording.returncode:
            found.append(f"{number} iterations: status {recording.returncode}: {err.strip()}")
            continue
        paths.append(out.strip())
        found += _wrong(Path(out.strip()), number)
    names = [f"run-{number:03}.parquet" for number in range(1, 1 + count)]
    if not found and sorted(Path(path).name for path in paths) != names:
        found.append(f"the runs are {sorted(paths)}")
    there = sorted(path.name for path in (bundle / "runs").iterdir())
    return found if there == names or found else [f"the bundle holds {there}"]


def _wrong(run: Path, iterations: int) -> Iterator[str]:
    header, rows = read_run(run).header, events(run)
    if header.iterations != iterations:
        yield f"{run.name}: {header.iterations} iterations where {iterations} were asked for"
    calls = {row["invocation"] for row in rows}
    if calls != set(range(iterations + WARMUP)):
        yield f"{run.name}: calls {sorted(calls)} where {iterations} and {WARMUP} before them were asked for"
    dispatches = sum(row["kind"] == "dispatch" for row in rows)
    if dispatches % (iterations + WARMUP):
        yield f"{run.name}: {dispatches} dispatches in {iterations + WARMUP} calls"


@click.command()
@click.option("--rounds", default=20, show_default=True, help="How often.")
@click.option("--count", default=8, show_default=True, help="How many recordings at once.")
def command(rounds: int, count: int) -> None:
    """Record into one bundle from several processes at once; status 1 where a run is not the one that was asked for."""
    good = 0
    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(folder, "mlp.tracemap")
        check_cli("build", MODEL, "-o", bundle)
        for number in range(1, rounds + 1):
            found = findings_of_round(bundle, count)
            good += not found
            for finding in found:
                click.echo(f"round {number}: {finding}")
    click.echo(f"{good} of {rounds} rounds: {count} right runs of {count} recordings at once")
    sys.exit(good != rounds)


if __name__ == "__main__":
    command()
