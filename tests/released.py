"""Try a built wheel as its users would: `python -m tests.released WHEEL [--sbom FILE] [--python PATH]...`.

Each supported Python of this machine gets an environment of its own, without a C compiler. The wheel is installed
there, and the demo runs with it in a folder that has only the files that the demo reads. Then `pipx run` starts the
wheel. The list of packages (SBOM) is that of the last interpreter's environment.
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
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support import ROOT, Json
from tracemap.reports.html import asset

_CLASSIFIER = re.compile(r'"Programming Language :: Python :: (3\.\d+)"')
VERSIONS = _CLASSIFIER.findall((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
"""The versions of Python that tracemap supports."""
_TOOLS = ("sh", "make", "cat", "echo", "mkdir", "rm", "env", "git")
"""What the demo's recipe needs; no compiler is among it."""
_DEMO_READS = ("Makefile", "samples", "pyproject.toml")


def main() -> None:
    """Read the command line; ends with status 1 if the wheel is not good."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--sbom", type=Path, help="where to list the packages that the wheel brings along (CycloneDX)")
    parser.add_argument(
        "--python", type=Path, action="append", help="an interpreter to try, instead of all that are found"
    )
    chosen = parser.parse_args()
    pythons = chosen.python or find_pythons()
    for python in pythons:
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            installed = install(chosen.wheel, folder, python)
            table = run_demo(folder, installed)
            if python == pythons[-1]:
                print(table)
                if chosen.sbom is not None:
                    write_sbom(installed, chosen.sbom)
            version = _check([installed, "-c", "import platform; print(platform.python_version())"], folder, os.environ)
        print(f"Python {version.strip()}: installed, demo run ({time.monotonic() - start:.0f} s)", flush=True)
    print(run_with_pipx(chosen.wheel))


def find_pythons() -> list[Path]:
    """Interpreters of the supported versions, one each, of the search path, pyenv and uv; prints what is missing."""
    home, found = Path.home(), []
    for version in VERSIONS:
        name = f"python{version}"
        places = [
            *(Path(folder) / name for folder in os.get_exec_path()),
            *Path(os.environ.get("PYENV_ROOT", home / ".pyenv")).glob(f"versions/{version}.*/bin/{name}"),
            *(home / ".local/share/uv/python").glob(f"cpython-{version}.*/bin/{name}"),
        ]
        if path := next(filter(None, map(_own_path, places)), ""):
            found.append(Path(path))
        else:
            print(f"Python {version}: not installed, not tried")
    return found


def _own_path(python: Path) -> str:
    """Path of an interpreter by its own account, since pyenv has scripts; empty if it cannot make environments."""
    command = [str(python), "-c", "import ensurepip, sys, venv; print(sys.executable)"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""


def install(wheel: Path, folder: Path, python: Path) -> Path:
    """Install a wheel into a new environment of an interpreter; returns the environment's own interpreter.

    Only wheels are installed, as there is no C compiler.
    """
    _check([python, "-m", "venv", folder / "installed"], folder, bare(folder))
    installed = folder / "installed" / "bin" / "python"
    words = ["-m", "pip", "install", "--quiet", "--only-binary=:all:"]
    _check([installed, *words, wheel.resolve()], folder, bare(folder))
    return installed


def run_with_pipx(wheel: Path) -> str:
    """Start the wheel with `pipx run`, without installing it; returns the first line of its help."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        variables = {**bare(folder), "PIPX_HOME": str(folder / "pipx"), "PIPX_DEFAULT_PYTHON": sys.executable}
        words = ["run", "--spec", str(wheel.resolve()), "tracemap", "--help"]
        said = _check([sys.executable, "-m", "pipx", *words], folder, variables)
    first = said.splitlines()[0]
    assert first.startswith("Usage: tracemap"), said
    return f"pipx run: {first}"


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
