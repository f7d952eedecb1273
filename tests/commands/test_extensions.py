"""Readers, exports and rules of advice of another package, used through the command line."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec import structs

from tests.conftest import Built, Recorded
from tests.support import ROOT, Json, command_line
from tracemap.core.codec import encode
from tracemap.core.units import UNKNOWN
from tracemap.map.bundle import load
from tracemap.runs.model import UNKNOWN_HEADER, ElapsedParts, Invocation

EXAMPLE = ROOT / "tests" / "extension"


def write_metadata(folder: Path, name: str, groups: Mapping[str, Mapping[str, str]]) -> None:
    """Write the metadata of an installed package, with its entry points."""
    about = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
    lines = [
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in own.items()) for group, own in groups.items()
    ]
    (about / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")


@dataclass(frozen=True)
class Installation:
    """A folder with packages, and a bundle with a run."""

    packages: Path
    bundle: Path
    run: Path

    def tracemap(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Run the command line, which finds the packages."""
        path = os.pathsep.join([str(self.packages), str(ROOT)])
        environment = {**os.environ, "PYTHONPATH": path}
        words = command_line(*arguments)
        return subprocess.run(
            words, check=False, cwd=self.bundle.parent, env=environment, capture_output=True, text=True
        )

    def output(self, *arguments: str | Path) -> str:
        done = self.tracemap(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def json(self, *arguments: str | Path) -> Json:
        parsed = json.loads(self.output(*arguments, "--format", "json"))
        assert isinstance(parsed, dict)
        return parsed


@pytest.fixture
def bare(built: Built, recorded: Recorded, tmp_path: Path) -> Installation:
    (tmp_path / "packages").mkdir()
    shutil.copytree(built("hand_mlp"), tmp_path / "hand_mlp.tracemap")
    return Installation(tmp_path / "packages", tmp_path / "hand_mlp.tracemap", recorded("hand_mlp"))


@pytest.fixture
def example(bare: Installation) -> Installation:
    """With the example package, as an installer would leave it."""
    shutil.copytree(EXAMPLE / "tracemap_example", bare.packages / "tracemap_example")
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    write_metadata(bare.packages, project["name"], project["entry-points"])
    return bare


@pytest.fixture
def broken(bare: Installation) -> Installation:
    """With a package whose module does not exist."""
    names = {"tracemap.readers": "csv", "tracemap.exports": "pprof", "tracemap.advice": "overhead-bound"}
    entries = {group: {"example": "missing_module:it", name: "missing_module:it"} for group, name in names.items()}
    write_metadata(bare.packages, "broken-package", entries)
    return bare


def test_a_reader_of_another_package(example: Installation) -> None:
    kernels = [kernel.name for kernel in load(example.bundle).graph.kernels]
    file = example.bundle.parent / "calls.sw"
    file.write_text(f"stopwatch 1\n{kernels[0]} 120\n{kernels[1]} 30.5\n{kernels[0]} 80\n", encoding="utf-8")
    result = example.json("attribute", file, "--map", example.bundle)
    (metric,) = (metric for metric in result["metrics"] if metric["name"] == "duration_ns")
    assert metric["measured"] == 230_500
    calls = {site["site"]: site["calls"] for site in result["sites"]}
    assert sorted(calls.values()) == [0] * (len(calls) - 2) + [1, 2]
    file.write_text("stopwatch 1\nkernel\n", encoding="utf-8")
    refused = example.tracemap("attribute", file, "--map", example.bundle)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.endswith("calls.sw: line 2 has no time [run-invalid]\n")


def test_exports_of_another_package(example: Installation) -> None:
    words = ("export", example.run, "--map", example.bundle, "--metric", "cpu_ns", "--to")
    text = example.output(*words, "top-kernels")
    head, *lines = text.splitlines()
    total = int(head.removeprefix("# cpu_ns: "))
    assert sum(int(line.split(": ")[1].removesuffix(" ns")) for line in lines) == total > 0
    target = example.bundle.parent / "kernels.gz"
    example.output(*words, "top-kernels-gz", "-o", target)
    assert gzip.decompress(target.read_bytes()).decode() == text
    for arguments, message in (
        (("top-kernels-gz",), "is a binary format and cannot be printed"),
        (("top-kernel",), "did you mean top-kernels"),
        (("top-kernels", "--self-cost", "kernels"), "--self-cost applies to callgrind, not to top-kernels"),
    ):
        done = example.tracemap(*words, *arguments)
        assert (done.returncode, message in done.stderr) == (2, True), done.stderr


def test_a_rule_of_advice_of_another_package(example: Installation) -> None:
    """An invocation takes 100 µs; 80 µs of them are between kernels."""
    kernels = [kernel.name for kernel in load(example.bundle).graph.kernels]
    rows = [f"{kernel},{call},{20_000 // len(kernels)}" for call in range(10) for kernel in kernels]
    run = example.bundle.parent / "run.csv"
    run.write_text("\n".join(["kernel,invocation,duration_ns", *rows, ""]), encoding="utf-8")
    header = structs.replace(
        UNKNOWN_HEADER,
        iterations=10,
        elapsed_ns=1_000_000,
        invocation=Invocation(100_000, 99_000, 101_000, UNKNOWN),
        elapsed=ElapsedParts(200_000, 0, 0, 800_000, 0, 0, UNKNOWN),
    )
    run.with_name("run.csv.json").write_bytes(encode(header))
    advice = example.json("attribute", run, "--map", example.bundle)["advice"]
    (own,) = (one for one in advice if one["rule"] == "wide-batch")
    assert own["text"] == "80.0 % of the time is between kernels. Widen the batch"
    assert (own["low_ns"], own["gain_ns"], own["high_ns"]) == (20_000, 40_000, 40_000)
    assert own["ops"]


def test_a_broken_package_stops_only_what_needs_it(broken: Installation) -> None:
    why = "of the package broken-package 1.0 does not work (ModuleNotFoundError: No module named 'missing_module')"
    result = broken.json("attribute", broken.run, "--map", broken.bundle)
    (problem,) = (note for note in result["diagnostics"] if note["slug"] == "extension-broken")
    assert f"the advice 'example' {why}" in problem["message"]
    words = ("export", broken.run, "--map", broken.bundle, "--to")
    failed = broken.tracemap(*words, "example")
    assert failed.returncode == 2
    assert (
        failed.stderr
        == f"tracemap: error: the export 'example' {why}; update or uninstall the package [extension-broken]\n"
    )
    broken.output(*words, "pprof", "-o", broken.bundle.parent / "run.pb.gz")  # tracemap's own, not the package's
    assert (broken.bundle.parent / "run.pb.gz").read_bytes().startswith(b"\x1f\x8b")
    file = broken.bundle.parent / "calls.sw"
    file.write_text("stopwatch 1\n", encoding="utf-8")
    unread = broken.tracemap("attribute", file, "--map", broken.bundle)
    assert unread.returncode == 2
    assert f"; the reader 'example' {why}" in unread.stderr
    assert unread.stderr.endswith(" [run-invalid]\n")


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def it(*_): return 3", "its result is no str or bytes"),
        ("def it(*_): raise ValueError('no\\x1b[31m idea')", "ValueError: no\\x1b[31m idea"),
        ("import sys\nsys.exit(7)", "SystemExit: 7"),
        ("class Stop(BaseException): pass\ndef it(*_): print('noise'); raise Stop('here')", "Stop: here"),
    ],
)
def test_an_export_that_fails(bare: Installation, code: str, message: str) -> None:
    (bare.packages / "failing.py").write_text(code, encoding="utf-8")
    write_metadata(bare.packages, "failing", {"tracemap.exports": {"fails": "failing:it"}})
    done = bare.tracemap("export", bare.run, "--map", bare.bundle, "--to", "fails")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"the export 'fails' of the package failing 1.0 does not work ({message})" in done.stderr


@pytest.mark.long
def test_two_packages_with_one_name(bare: Installation) -> None:
    for name in ("first", "second"):
        write_metadata(bare.packages, name, {"tracemap.exports": {"same": "json:dumps"}})
    done = bare.tracemap("export", bare.run, "--map", bare.bundle, "--to", "same")
    assert (done.returncode, "another package has the same name: second 1.0" in done.stderr) == (2, True)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def it(program): return [3]", "its result is no Advice"),
        ("def it(program): return 3", "TypeError: 'int' object is not iterable"),
        (
            "from tracemap.attribution.model import Advice\n"
            "def it(program): print('noise'); yield Advice('', None, 5, None, 'x', None, None)",
            "ValidationError: Expected `str`, got `null`",
        ),
    ],
)
def test_a_rule_that_fails_is_a_note(bare: Installation, code: str, message: str) -> None:
    (bare.packages / "failing.py").write_text(code, encoding="utf-8")
    write_metadata(bare.packages, "failing", {"tracemap.advice": {"fails": "failing:it"}})
    notes = bare.json("attribute", bare.run, "--map", bare.bundle)["diagnostics"]
    assert any(message in note["message"] for note in notes if note["slug"] == "extension-broken")


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("recognizes = lambda *_: True", "AttributeError: "),
        ("recognizes = lambda *_: True\nconvert = lambda *_: None", "its table: "),
        ("recognizes = lambda *_: 1 / 0", "ZeroDivisionError"),
    ],
)
def test_a_reader_that_fails(bare: Installation, code: str, message: str) -> None:
    (bare.packages / "failing.py").write_text(code, encoding="utf-8")
    write_metadata(bare.packages, "failing", {"tracemap.readers": {"fails": "failing"}})
    file = bare.bundle.parent / "calls.sw"
    file.write_text("stopwatch 1\n", encoding="utf-8")
    done = bare.tracemap("attribute", file, "--map", bare.bundle)
    assert done.returncode == 2
    assert "the reader 'fails' of the package failing 1.0 does not work (" in done.stderr
    assert message in done.stderr


def test_help_searches_no_packages() -> None:
    words = [sys.executable, "-X", "importtime", "-m", "tracemap", "--help"]
    done = subprocess.run(words, check=True, capture_output=True, text=True, cwd=ROOT)
    assert "importlib.metadata" not in done.stderr


@pytest.mark.long
def test_an_installed_package(bare: Installation, tmp_path: Path) -> None:
    """The same with pip, which writes the metadata of the example's own project file."""
    shutil.copytree(EXAMPLE, tmp_path / "source")  # building leaves files there
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", bare.packages, "--upgrade", tmp_path / "source"], check=True, capture_output=True)
    assert bare.output("export", bare.run, "--map", bare.bundle, "--to", "top-kernels").startswith("# ")
