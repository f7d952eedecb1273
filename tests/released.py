"""Tries a built wheel as its users would: `python -m tests.released WHEEL [--sbom FILE]`.

It is installed into an environment of its own, on a search path without any C compiler, and the demo is run with it in
a folder that has nothing of this one's but what the demo reads. The list of what came along with it is written last.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support import ROOT, Json
from tracemap.reports.html import asset

_TOOLS = ("sh", "make", "cat", "echo", "mkdir", "rm", "env", "git")
"""What the demo's recipe needs; no compiler is among it."""
_DEMO_READS = ("Makefile", "samples", "pyproject.toml")


def main() -> None:
    """Read the command line; ends with status 1 where the wheel is not good."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--sbom", type=Path, help="where to list what the wheel brings along (CycloneDX)")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        python = install(chosen.wheel, folder)
        print(run_demo(folder, python))
        if chosen.sbom is not None:
            write_sbom(python, chosen.sbom)


def install(wheel: Path, folder: Path, more: Sequence[str] = ()) -> Path:
    """Install a wheel into a new environment below the folder; returns its interpreter."""
    venv.create(folder / "installed", with_pip=True)
    python = folder / "installed" / "bin" / "python"
    _check([python, "-m", "pip", "install", "--quiet", *more, wheel.resolve()], folder, bare(folder))
    return python


def bare(folder: Path) -> Mapping[str, str]:
    """The variables of an environment in which no C compiler can be found."""
    tools = folder / "tools"
    tools.mkdir(exist_ok=True)
    for tool in _TOOLS:
        path = shutil.which(tool)
        if path and not (tools / tool).exists():
            (tools / tool).symlink_to(path)
    for compiler in ("cc", "gcc", "clang"):
        assert shutil.which(compiler, path=str(tools)) is None
    kept = {name: value for name, value in os.environ.items() if name.startswith("PIP_") or name in ("HOME", "LANG")}
    return {**kept, "PATH": str(tools)}


def run_demo(folder: Path, python: Path) -> str:
    """Run the demo with the installed program; returns the table that it prints.

    Raises:
        AssertionError: there is no table, no page, or the hook did not come with the wheel.
    """
    place = folder / "demo"
    place.mkdir()
    for name in _DEMO_READS:
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, place / name)
    program = python.with_name("tracemap")
    preload = _check([program, "hook", "path"], place, bare(folder))
    assert "libtracemap_hook.so" in preload, preload
    table = _check(["make", "demo", f"TRACEMAP={program}"], place, bare(folder))
    assert "jax_models.py:11 " in table, table
    assert (place / "demo" / "page.html").stat().st_size > 100_000
    return table


def write_sbom(python: Path, target: Path) -> None:
    """List all packages that the environment of an interpreter has, and what pages embed, as CycloneDX in JSON."""
    words = ["environment", str(python), "--pyproject", str(ROOT / "pyproject.toml"), "--short-PURLs"]
    tool = Path(sys.executable).with_name("cyclonedx-py")
    _check([tool, *words, "--output-reproducible", "-o", target.resolve()], ROOT, os.environ)
    listed = json.loads(target.read_text(encoding="utf-8"))
    listed["components"] += embedded_libraries()
    target.write_text(json.dumps(listed, indent=2) + "\n", encoding="utf-8")


_LICENCES = {"Permission to use, copy": "ISC", "Redistribution and use": "BSD-3-Clause"}
"""How their texts begin."""


def embedded_libraries() -> list[Json]:
    """The libraries that the script which pages draw with is made of, as components of CycloneDX.

    They stand in front of it: a line of names with their versions, and the licence that these have.
    """
    front = asset("vendor/charts.js").partition("*/")[0]
    parts = re.split(r"^((?:[\w-]+ [\d.]+(?:, )?)+)\n", front, flags=re.MULTILINE)
    found = []
    for names, text in zip(parts[1::2], parts[2::2], strict=True):
        (licence,) = [each for start, each in _LICENCES.items() if start in text]
        found += [_component(*each.rsplit(" ", 1), licence=licence) for each in names.split(", ")]
    return found


def _component(name: str, version: str, *, licence: str) -> Json:
    address = f"pkg:npm/{name}@{version}"
    licences = [{"license": {"id": licence}}]
    known = {"name": name, "version": version, "purl": address, "licenses": licences}
    return {"type": "library", "bom-ref": address, **known}


def _check(command: Sequence[str | Path], folder: Path, environment: Mapping[str, str]) -> str:
    done = subprocess.run(command, cwd=folder, env=dict(environment), capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


if __name__ == "__main__":
    main()
