"""Releases: reproducible archives, a wheel for every Python, one place for the version."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

import tracemap
from tests.archives import MACHINES, ArchiveWrong, check_libraries, check_paths
from tests.documents import DOCS
from tests.support import ROOT
from tracemap.hook.compiling import CUDA_LIBRARY_NAME, FOLDER, LIBRARY_NAME, HookUnavailable, built_library

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


def test_version_and_date_are_the_same_everywhere() -> None:
    heading = re.search(r"^## (\S+) – (\S+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    cited = dict(re.findall(r"^([\w-]+): (\S+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE))
    assert heading is not None
    assert heading.groups() == (cited["version"], cited["date-released"])
    assert tracemap.__version__ == cited["version"]


def packed(wheel: Path, files: Mapping[str, bytes]) -> Path:
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return wheel


def new_key(path: Path) -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    return path


def checksums(folder: Path, key: Path | str) -> str:
    command = ["make", "-s", "checksums", f"DIST={folder}", f"SIGNING_KEY={key}"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def verified(folder: Path) -> list[bool]:
    """Run the two commands of the documents, for the signature and for the files; returns what they accept."""
    text = (DOCS / "releases.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```text\n(ssh-keygen .*?)^```", text, re.MULTILINE | re.DOTALL)
    done = [
        subprocess.run(line, shell=True, cwd=folder, capture_output=True, check=False) for line in block.splitlines()
    ]
    assert len(done) == 2
    return [each.returncode == 0 for each in done]


@pytest.fixture
def signed(tmp_path: Path) -> Path:
    """A folder with a wheel and signed checksums, and the key that users trust."""
    if missing := [name for name in ("make", "ssh-keygen", "sha256sum") if shutil.which(name) is None]:
        pytest.skip(f"there is no {missing[0]}")
    folder, key = tmp_path / "dist", new_key(tmp_path / "key")
    folder.mkdir()
    packed(folder / "a.whl", {"version.py": b"1"})
    checksums(folder, key)
    (folder / "allowed_signers").write_text(f"tracemap {key.with_suffix('.pub').read_text()}", encoding="utf-8")
    return folder


def test_a_signed_release_is_accepted(signed: Path) -> None:
    assert verified(signed) == [True, True]


def test_a_changed_wheel_is_refused(signed: Path) -> None:
    packed(signed / "a.whl", {"version.py": b"2"})
    assert verified(signed) == [True, False]


def test_checksums_of_a_changed_wheel_are_refused(signed: Path) -> None:
    signature = signed / "SHA256SUMS.sig"
    ours = signature.read_bytes()
    packed(signed / "a.whl", {"version.py": b"2"})
    checksums(signed, "")
    signature.write_bytes(ours)
    assert verified(signed) == [False, True]


def test_a_signature_by_another_key_is_refused(signed: Path, tmp_path: Path) -> None:
    checksums(signed, new_key(tmp_path / "other"))
    assert verified(signed) == [False, True]


def test_without_a_key_nothing_is_signed(signed: Path) -> None:
    assert "SHA256SUMS is not signed" in checksums(signed, "")
    assert not (signed / "SHA256SUMS.sig").exists()


@pytest.mark.parametrize(
    ("tag", "fault"),
    [
        ("manylinux_2_17_MACHINE", "needs glibc"),
        ("manylinux_2_99_OTHER", "is for"),
        ("linux_MACHINE", "names no version of glibc"),
    ],
)
def test_a_dishonest_platform_tag_is_found(tag: str, fault: str, tmp_path: Path) -> None:
    machine = platform.machine()
    (other,) = MACHINES.keys() - {machine}
    try:
        libraries = [built_library(FOLDER / name, name) for name in (LIBRARY_NAME, CUDA_LIBRARY_NAME)]
    except HookUnavailable as error:
        pytest.skip(str(error))
    files = {f"tracemap/hook/{path.name}": path.read_bytes() for path in libraries}
    name = tag.replace("MACHINE", machine).replace("OTHER", other)
    check_libraries(packed(tmp_path / f"tracemap-1-py3-none-manylinux_2_99_{machine}.whl", files))
    with pytest.raises(ArchiveWrong, match=fault):
        check_libraries(packed(tmp_path / f"tracemap-1-py3-none-{name}.whl", files))


def test_a_path_of_the_machine_is_found(tmp_path: Path) -> None:
    check_paths(packed(tmp_path / "a.whl", {"a.py": b"/somewhere/else"}), (ROOT,))
    with pytest.raises(ArchiveWrong, match=r"a\.py has a path of this machine"):
        check_paths(packed(tmp_path / "b.whl", {"a.py": f"{ROOT}/tracemap".encode()}), (ROOT,))
