"""Releases: reproducible archives, a wheel for every Python, one place for the version."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

import tracemap
from tests.support import ROOT

NEEDED = ("tracemap", "setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md")
BACKEND = """
import sys
from setuptools import build_meta
target = sys.argv[1]
build_meta.build_sdist(target)
build_meta.build_wheel(target)
"""
WHEN = "1700000000"


def built(folder: Path, mask: int, more: Mapping[str, str]) -> tuple[bytes, Path]:
    """The source archive and the wheel, as a front end builds them, of a copy of the sources in a folder of its own."""
    sources, target = folder / "sources", folder / "dist"
    target.mkdir(parents=True)
    for name in NEEDED:
        source, copy = ROOT / name, sources / name
        sources.mkdir(exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, copy, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        else:
            shutil.copy(source, copy)
        for path in (copy, *copy.rglob("*")):
            path.chmod((0o777 if path.is_dir() else 0o666) & ~mask)
    command = [sys.executable, "-c", BACKEND, str(target)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": WHEN, **more}
    done = subprocess.run(command, cwd=sources, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    (archive,) = target.glob("*.tar.gz")
    (wheel,) = target.glob("*.whl")
    return archive.read_bytes(), wheel


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Path]:
    return built(tmp_path_factory.mktemp("release"), 0o022, {})


@pytest.mark.long
def test_archives_are_the_same_wherever_they_are_built(archives: tuple[bytes, Path], tmp_path: Path) -> None:
    """Another folder, another time of all files, another mask of permissions."""
    archive, wheel = archives
    again, other = built(tmp_path / "elsewhere", 0o077, {})
    assert again == archive
    assert (other.name, other.read_bytes()) == (wheel.name, wheel.read_bytes())


@pytest.mark.long
def test_a_wheel_has_the_hook_and_fits_every_python(archives: tuple[bytes, Path]) -> None:
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    _, wheel = archives
    assert wheel.name.startswith(f"tracemap-{tracemap.__version__}-py3-none-linux_")
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
    assert {"tracemap/hook/libtracemap_hook.so", "tracemap/hook/libtracemap_cuda.so"} <= names
    assert {"tracemap/py.typed", "tracemap/reports/assets/page/page.css", "tracemap/schemas/map.schema.json"} <= names
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/"))]


def test_without_a_compiler_a_wheel_is_of_pure_python(tmp_path: Path) -> None:
    _, wheel = built(tmp_path, 0o022, {"PATH": str(tmp_path / "nothing"), "CC": ""})
    assert wheel.name == f"tracemap-{tracemap.__version__}-py3-none-any.whl"


def test_source_archives_hold_sources_only(archives: tuple[bytes, Path], tmp_path: Path) -> None:
    (tmp_path / "a.tar.gz").write_bytes(archives[0])
    with tarfile.open(tmp_path / "a.tar.gz") as packed:
        members = packed.getmembers()
    assert {(member.mtime, member.uid, member.uname) for member in members} == {(int(WHEN), 0, "")}
    names = {member.name.split("/", 1)[-1] for member in members}
    assert {"tracemap/hook/loading.c", "tracemap/hook/layout.h", "setup.py", "CHANGELOG.md"} <= names
    assert not [name for name in names if name.endswith((".so", ".pyc"))]
