"""Every public name of the Python API has an example in its docstring, and every example runs."""

from __future__ import annotations

import doctest
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples import NEEDS, RESULTS, api, lacking, own_modules, run_examples
from tests.support import ROOT, check_cli

PROGRAM = ROOT / "tests" / "programs" / "documents" / "model.mlir"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the examples of the API are about."""
    made = tmp_path_factory.mktemp("examples")
    shutil.copy(PROGRAM, made)
    check_cli("build", "model.mlir", "--remarks", cwd=made)
    for night, run in enumerate(("run.parquet", "again.parquet"), 1):
        check_cli("record", "model.tracemap", "--iterations", "5", "-o", run, cwd=made)
        added = (run, "--map", "model.tracemap", "--tag", f"night={night}", "--store", "nightly")
        check_cli("store", "add", *added, cwd=made)
    check_cli("swap", "model.tracemap", "main_dispatch_0", "--dump", "configuration", "-o", "edited.mlir", cwd=made)
    return made


def test_every_public_name_has_an_example() -> None:
    found = api()
    assert len(found) > 40  # a blind list would pass everything
    assert {"build", "Bundle.op", "Bundle.source_text", "Run.median_ns", "Attribution.to_pandas", "Cost.share"} <= {
        *found
    }
    assert {name.partition(".")[0] for name in found if "." in name} == {
        each for kinds in RESULTS.values() for each in kinds
    }
    assert [name for name, text in found.items() if "Example:\n    >>> " not in text] == []


@pytest.mark.long
def test_examples_of_the_python_api(folder: Path) -> None:
    """In a process of its own: some of them record what their own process calls."""
    command = [sys.executable, "-m", "tests.examples", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    if left_out := done.stdout.split():
        needed = ", ".join(sorted({NEEDS[word] for word in lacking()}))
        pytest.skip(f"these need {needed}: {', '.join(left_out)}; the others were run")


def test_an_example_that_does_not_hold_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_examples({"right": ">>> 1 + 1\n2", "wrong": ">>> 1 + 1\n3"}, tmp_path) == (1, [])
    assert "wrong" in capsys.readouterr().out


def test_examples_of_the_rooms() -> None:
    api_of = {"tracemap", "tracemap.core.errors", "tracemap.map.bundle"}
    modules = [each for each in own_modules() if each.__name__ not in api_of and ".results." not in each.__name__]
    tried = [doctest.testmod(module) for module in modules]
    assert sum(each.failed for each in tried) == 0
    assert sum(each.attempted for each in tried) >= 15
