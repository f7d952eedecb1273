"""Every command and program in the documents runs as it stands, in order."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.documents import BLOCK, DOCUMENTS, README
from tests.native.support import why_missing
from tests.support import ROOT, check_cli, long_where, run_cli

PROGRAMS = ROOT / "tests" / "programs" / "documents"
SHOWN = ("text", "yaml", "json", "{toctree}", "{eval-rst}")
"""The languages of blocks that are not run: output, workflows of GitHub, configurations, and directives of Sphinx."""
SETS_UP = ("pip install",)
"""Commands that change the environment in which these tests themselves run."""
LONG = frozenset(
    (
        "attribution.md diff.md foreign.md howto.md kernels.md native-tools.md page.md recording.md remarks.md store.md"
    ).split()
)
"""Documents whose commands measure for long, or that have many."""
NEEDS = {
    **{"perf record": "perf with samples", "perf ": "perf", "gdb ": "gdb", "valgrind --": "valgrind"},
    **{"--cache-sim": "valgrind", "page-faults": "counting page faults", "import jax": "JAX (make frontends)"},
}
NEEDS |= {"layer.tracemap": "MLIR's tools", "sparse.tracemap": "MLIR's tools"}


@dataclass(frozen=True)
class Block:
    """A block of a document: what runs it (`bash` or `python`), and its text."""

    language: str
    text: str


def blocks(document: Path) -> list[Block]:
    found = [Block(language or "bash", text) for language, text in BLOCK.findall(document.read_text(encoding="utf-8"))]
    return [block for block in found if block.language not in SHOWN and not block.text.startswith(SETS_UP)]


def absent_packages(document: Path) -> list[str]:
    """What a document needs as a whole, as its first line says, and this environment lacks."""
    needed = re.findall(r"^<!-- needs: (\w+) -->$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return [package for package in needed if importlib.util.find_spec(package) is None]


def missing_here() -> set[str]:
    """What this machine lacks of `NEEDS`."""
    missing = set() if shutil.which("valgrind") else {"--cache-sim", "valgrind --"}
    missing |= {f"{tool} " for tool in ("perf", "gdb") if shutil.which(tool) is None}
    if "perf " not in missing:
        sample = ["perf", "record", "-q", "-e", "cpu-clock", "-o", os.devnull, "true"]
        missing |= {"perf record"} if subprocess.run(sample, capture_output=True, check=False).returncode else set()
    missing |= set() if importlib.util.find_spec("jax") else {"import jax"}
    missing |= {"layer.tracemap", "sparse.tracemap"} if why_missing() else set()
    return missing if run_cli("events", "page-faults").returncode == 0 else missing | {"page-faults"}


def run(block: Block, folder: Path) -> subprocess.CompletedProcess[str]:
    arguments = ["bash", "-euo", "pipefail", "-c"] if block.language == "bash" else [sys.executable, "-c"]
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        [*arguments, block.text],
        cwd=folder,
        env={**os.environ, "PATH": programs},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "document",
    long_where([path for path in DOCUMENTS if blocks(path)], lambda _, path: path.name in LONG),
    ids=lambda path: str(path.name),
)
def test_commands_of_a_document_work_as_they_stand(document: Path, tmp_path: Path) -> None:
    if absent := absent_packages(document):
        pytest.skip(f"{', '.join(absent)} is not installed: make frontends runs this document")
    shutil.copytree(PROGRAMS, tmp_path, dirs_exist_ok=True)
    (tmp_path / "src").mkdir()
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    if document != README:  # who reads another document has followed the README
        check_cli("build", "model.mlir", cwd=tmp_path)
    missing = missing_here()
    left_out = set()
    for block in blocks(document):
        lacking = {need for need in missing if need in block.text}
        if lacking:
            left_out |= lacking
            continue
        done = run(block, tmp_path)
        assert done.returncode == 0, f"{block.text}\nstatus {done.returncode}\n{done.stdout}\n{done.stderr}"
    if left_out:
        pytest.skip(f"this machine lacks: {', '.join(NEEDS[need] for need in sorted(left_out))}; the others were run")


def test_the_documents_have_commands_and_programs() -> None:
    """The test above stands on `blocks`; a blind one would pass everything."""
    assert sum(block.text.count("tracemap ") for path in DOCUMENTS for block in blocks(path)) >= 25
    assert any(block.language == "python" for block in blocks(README))
