"""`tracemap doctor` tries each ability, and exits with 1 if a required one is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.commands.test_errors import without_iree
from tests.support import ROOT, Json, check_cli, json_cli, run_cli
from tracemap.capture.counters import check_event, known_events
from tracemap.commands.doctor import BUG_REPORT


@pytest.fixture(scope="module")
def found() -> Json:
    return json_cli("doctor")


def ability(found: Json, name: str) -> Json:
    (row,) = (each for each in found["abilities"] if each["name"] == name)
    return dict(row)


def test_what_the_other_tests_need_works(found: Json) -> None:
    assert found["ok"]
    for name in ("compiler", "runtime"):
        assert ability(found, name)["state"] == "works"
        assert f"iree-base-{name} {version(f'iree-base-{name}')}," in ability(found, name)["found"]
    assert ability(found, "device local-task")["found"] == "local-task://"
    assert Path(ability(found, "hook")["found"]).is_file()


def test_what_does_not_work_says_what_helps(found: Json) -> None:
    for each in found["abilities"]:
        assert each["state"] == "works" or each["remedy"] or "built without" in each["found"], each


def test_priority_is_what_the_system_grants(found: Json) -> None:
    """As another program is granted it: that of coreutils."""
    nice = subprocess.run(["nice", "-n", "-20", "nice"], capture_output=True, text=True, check=False)
    row = ability(found, "priority")
    assert (row["state"] == "works") == (nice.returncode == 0 and "cannot" not in nice.stderr)
    assert bool(row["remedy"]) == (row["state"] != "works")


def test_events_are_those_that_open(found: Json) -> None:
    tried = [check_event(event).opens for event in known_events()]
    row = ability(found, "events")
    assert row["found"] == f"{sum(tried)} of {len(tried)} events can be counted"
    assert row["state"] == ("works" if all(tried) else "partly" if any(tried) else "missing")


def test_without_iree_nothing_works_and_the_status_says_so(tmp_path: Path) -> None:
    program = without_iree(tmp_path / "packages")
    environment = {**os.environ, "PATH": "", "COLUMNS": "200"}
    done = subprocess.run([*program, "doctor"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install iree-base-compiler" in done.stdout
    assert "pip install iree-base-runtime" in done.stdout
    assert (
        done.stderr == "something needed is missing: tracemap cannot build or record until you install it (see above)\n"
    )
    done = subprocess.run([*program, "--version"], env=environment, capture_output=True, text=True, check=False)
    assert "iree-base-compiler not installed" in done.stdout


def test_the_version_names_irees_packages() -> None:
    said = run_cli("--version").stdout
    assert f"iree-base-compiler {version('iree-base-compiler')}" in said
    assert f"iree-base-runtime {version('iree-base-runtime')}" in said


@pytest.mark.parametrize(("shell", "mark"), [("bash", "complete -o"), ("zsh", "compdef"), ("fish", "complete --")])
def test_shells_complete_commands_and_options(shell: str, mark: str) -> None:
    """As the shell asks for it: by variables."""

    def asked(**variables: str) -> str:
        program = [str(Path(sys.executable).with_name("tracemap"))]
        environment = {**os.environ, **variables}
        done = subprocess.run(program, env=environment, capture_output=True, text=True, check=True)
        return done.stdout

    assert mark in asked(_TRACEMAP_COMPLETE=f"{shell}_source")
    word = "attrib" if shell == "fish" else "1"  # fish tells the word itself, the others its number
    words = asked(_TRACEMAP_COMPLETE=f"{shell}_complete", COMP_WORDS="tracemap attrib", COMP_CWORD=word)
    assert "attribute" in words


def test_a_bug_report_has_the_environment_and_no_home_folder(found: Json) -> None:
    report = check_cli("doctor", "--report")
    template = (ROOT / ".github" / "ISSUE_TEMPLATE" / "bug_report.md").read_text(encoding="utf-8")
    assert report.startswith(BUG_REPORT)
    assert template.partition("---\n\n")[2].startswith(BUG_REPORT)
    assert str(Path.home()) not in report
    assert report.count("\n| ") == 1 + len(found["abilities"])
