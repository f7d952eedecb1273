"""Damaged or hostile record files end in an error of tracemap."""

from __future__ import annotations

import contextlib
import random
import re
import shutil
from pathlib import Path

import duckdb
import pytest

from tests.hook import support
from tracemap.core.errors import RunEmpty, RunInvalid, RunVersion, TracemapError
from tracemap.runs.hook.calls import load_calls
from tracemap.runs.hook.recording import read_recording


@pytest.fixture(scope="module")
def recording(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    support.need_compiler()
    folder = tmp_path_factory.mktemp("recording")
    vmfb = support.module(made, "embedded")
    support.run(
        support.tool_command("iree-run-module", vmfb, "local-task"),
        support.hooked(support.built_library(made), folder),
    )
    return folder


@pytest.fixture
def copy(recording: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(recording, tmp_path / "copy"))


def read_all(folder: Path) -> int:
    with duckdb.connect() as connection:
        return len(load_calls(read_recording(folder), connection))


def one(folder: Path, suffix: str) -> Path:
    return max(folder.glob(f"*{suffix}"), key=lambda path: path.stat().st_size)


def test_a_folder_without_files_is_empty(tmp_path: Path) -> None:
    with pytest.raises(RunEmpty):
        read_recording(tmp_path)
    with pytest.raises(RunInvalid):
        read_recording(tmp_path / "missing")


def test_a_process_without_a_whole_line_has_recorded_nothing(copy: Path) -> None:
    """It was killed just then, or it is read just then; but no file of its threads can be there so early."""
    before = read_all(copy)
    for name, text in (("hook-1-0a.jsonl", ""), ("hook-2-0b.jsonl", '{"kind":"process","version":2')):
        (copy / name).write_text(text, encoding="utf-8")
    assert read_all(copy) == before
    one(copy, ".jsonl").write_text("", encoding="utf-8")
    with pytest.raises(RunInvalid, match="its first line, which describes the process, is cut off"):
        read_recording(copy)


def test_what_a_program_tells_while_its_calls_are_read_is_known(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that goes on tells of a kernel, then calls it: both may come behind the first look at what it tells."""
    before = read_all(copy)
    support.tell_late(one(copy, ".jsonl"), monkeypatch)
    assert read_all(copy) == before


def test_another_version_is_refused(copy: Path) -> None:
    path = one(copy, ".calls")
    data = bytearray(path.read_bytes())
    data[8] = 1
    path.write_bytes(data)
    with pytest.raises(RunVersion):
        read_recording(copy)


def test_a_kernel_without_a_name_is_refused(copy: Path) -> None:
    path = one(copy, ".jsonl")
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(line for line in lines if '"kernel"' not in line), encoding="utf-8")
    with pytest.raises(RunInvalid, match="does not name"):
        read_recording(copy)


def test_half_a_surrogate_pair_is_damage(copy: Path) -> None:
    """Python reads it of JSON, and nothing else takes it."""
    (path,) = copy.glob("*.jsonl")
    path.write_bytes(re.sub(rb'"name":"[^"]*"}\n', rb'"name":"a\\udfffb"}\n', path.read_bytes(), count=1))
    with pytest.raises(RunInvalid, match=r"line \d+ is damaged.*surrogates not allowed"):
        read_recording(copy)


def test_a_stamp_is_never_a_pattern_or_a_path(copy: Path) -> None:
    path = one(copy, ".jsonl")
    text = path.read_text(encoding="utf-8")
    stamp = path.stem.removeprefix("hook-")
    path.write_text(text.replace(f'"stamp":"{stamp}"', '"stamp":"../*"'), encoding="utf-8")
    with pytest.raises(RunInvalid, match="do not rename"):
        read_recording(copy)


@pytest.mark.parametrize("suffix", [".calls", ".jsonl"])
def test_files_cut_anywhere(suffix: str, copy: Path) -> None:
    path = one(copy, suffix)
    data = path.read_bytes()
    whole = read_all(copy)
    steps = sorted({0, 1, 7, 8, 31, 32, 63, 64, 300, 2047, 2048, 2100, 4096, 4200, 65535, 65536, 65540, len(data) - 1})
    for size in (size for size in steps if size < len(data)):
        path.write_bytes(data[:size])
        with contextlib.suppress(TracemapError):
            assert read_all(copy) < whole or suffix == ".jsonl"


@pytest.mark.long
@pytest.mark.parametrize("suffix", [".calls", pytest.param(".jsonl", marks=pytest.mark.long)])
def test_files_with_bytes_changed_at_random(suffix: str, copy: Path) -> None:
    path = one(copy, suffix)
    data = path.read_bytes()
    places = [place for place in range(len(data)) if data[place]] if suffix == ".calls" else range(len(data))
    dice = random.Random(1)
    refused = 0
    for _ in range(300):
        damaged = bytearray(data)
        for place in dice.choices(places, k=dice.choice((1, 1, 2, 8))):
            damaged[place] = dice.randrange(256)
        path.write_bytes(damaged)
        try:
            read_all(copy)
        except TracemapError:
            refused += 1
    assert refused > 30
