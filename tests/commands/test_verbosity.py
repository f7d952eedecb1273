"""`-q` leaves warnings and errors; `-v` names phases and programs."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from tests.commands.test_help import commands
from tests.conftest import Built
from tests.support import SAMPLES, run_cli


def test_every_command_can_be_quiet_and_verbose() -> None:
    for name, command in commands():
        known = {word for parameter in command.params for word in parameter.opts}
        says_nothing = isinstance(command, click.Group) or name == "hook path"
        assert says_nothing or {"-q", "--quiet", "-v", "--verbose"} <= known, name


@pytest.mark.long
@pytest.mark.parametrize("how", ["--quiet", "-q"])
def test_quiet_leaves_results_warnings_and_errors(how: str, built: Built, tmp_path: Path) -> None:
    run = ("record", built("hand_mlp"), "--iterations", "5", "-o", tmp_path / "run.csv")
    done = run_cli(*run, how)
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'run.csv'}\n")
    assert all(line.startswith("tracemap: warning: ") for line in done.stderr.splitlines())
    assert "5 iterations" in run_cli(*run).stderr
    assert "iterations" not in run_cli(how, *run).stderr
    (tmp_path / "run.csv.json").write_text("of another program")
    done = run_cli(*run, how)
    assert done.returncode == 2
    assert done.stderr.endswith("[target-exists]\n")


def test_verbose_names_phases_and_programs(tmp_path: Path) -> None:
    done = run_cli("build", "--verbose", SAMPLES / "models" / "hand_mlp.mlir", "-o", tmp_path / "m.tracemap")
    said = done.stderr.splitlines()
    assert done.stdout == f"{tmp_path / 'm.tracemap'}\n"
    assert any(line.startswith("tracemap: build: compiling: ") and line.endswith(" s") for line in said)
    assert any("iree-compile" in line and line.startswith("tracemap: $ ") for line in said)
