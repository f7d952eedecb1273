"""`python -m tests.mutations`: damage what tracemap reads many times, and list what does not end well."""

from __future__ import annotations

import shutil
import sys
import traceback
from pathlib import Path

import click

from tests.mutations.guiding import try_guided
from tests.mutations.inputs import make_inputs
from tests.mutations.readers import READERS, Reader
from tests.mutations.trying import Summary, damaged, dice_of, try_reader
from tests.support import ROOT

WORK = ROOT / "tests" / "actual" / "mutations"
"""Ignored by git. The inputs stay here, so that a try can be repeated."""
GUIDED = ROOT / "tests" / "actual" / "guided"
"""What led further stays here, for the next run."""


@click.command()
@click.option("--reader", "names", multiple=True, type=click.Choice(list(READERS)), help="Only this one; repeatable.")
@click.option("--count", default=10_000, show_default=True, help="How many tries of each.")
@click.option("--seed", default=1, show_default=True, help="Other seeds make other tries.")
@click.option("--jobs", default=2, show_default=True, help="How many workers.")
@click.option(
    "--guided", is_flag=True, help="By the code that tries reach (atheris), one worker; no try is repeatable."
)
@click.option("--only", type=int, help="Repeat this try alone, on the inputs of the last run, and show its traceback.")
def command(names: tuple[str, ...], count: int, seed: int, jobs: int, guided: bool, only: int | None) -> None:
    """Damage what tracemap reads; status 1 where a try ended in neither a file read nor an error's sentence."""
    readers = [READERS[name] for name in names or READERS]
    folder = WORK / "inputs"
    if only is not None:
        for reader in readers:
            _repeat(reader.name, folder, seed, only)
        return
    shutil.rmtree(WORK, ignore_errors=True)
    make_inputs(folder)
    failed = False
    for reader in readers:
        if not reader.files(folder):
            click.echo(f"{reader.name}: not tried; this machine lacks what makes its files")
            continue
        if guided:
            failed = _guided(reader, folder, count) or failed
            continue
        summary = try_reader(reader, folder, count, seed, jobs)
        click.echo(summary.text())
        _keep(summary)
        failed = failed or bool(summary.findings)
    sys.exit(failed)


def _guided(reader: Reader, folder: Path, count: int) -> bool:
    """Whether something was found in tries of each kind of file of a reader."""
    failed = False
    for number, (pattern, _) in enumerate(reader.targets):
        if not any(folder.glob(pattern)):
            continue
        found = try_guided(reader.name, number, folder, GUIDED, count)
        click.echo(found.text(f"{reader.name} ({pattern})"))
        failed = failed or bool(found.findings)
    return failed


def _keep(summary: Summary) -> None:
    for finding in summary.findings:
        target = WORK / "findings" / f"{summary.reader}-{summary.seed}-{finding.number}.txt"
        target.parent.mkdir(exist_ok=True)
        target.write_text(f"{finding.ending}\n{finding.details}", encoding="utf-8", errors="replace")


def _repeat(name: str, folder: Path, seed: int, number: int) -> None:
    """Without a watchdog, so that a debugger can be used; the damaged files stay."""
    copy = WORK / f"{name}-{seed}-{number}"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    dice = dice_of(name, seed, number)
    path, data = damaged(READERS[name], copy, dice)
    path.write_bytes(data)
    click.echo(f"damaged: {path}")
    try:
        READERS[name].read(copy, dice)
    except Exception:
        click.echo(traceback.format_exc())


if __name__ == "__main__":
    command()
