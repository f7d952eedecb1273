"""Flag files: relative to their folder, and limited in size and depth."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands.test_errors import refused
from tests.conftest import Built
from tracemap.capture.calling import read_flags, with_flag_files
from tracemap.capture.inputs import given_inputs
from tracemap.core.errors import InputInvalid, UsageInvalid
from tracemap.core.functions import Argument, Function


def written(folder: Path, **files: str) -> Path:
    """Flag files of these names in a folder; returns the first one."""
    for name, text in files.items():
        (folder / name).write_text(text.replace("--flagfile=", f"--flagfile={folder}/"), encoding="utf-8")
    return folder / next(iter(files))


def test_flags_of_a_file_stand_in_the_place_of_its_name(tmp_path: Path) -> None:
    first = written(
        tmp_path, a="--x=1\n--flagfile=b\n--x=4\n--flagfile=b", b="# more\n--x=2\n--flagfile=c\n", c=" --x=3"
    )
    flags = ["--x=1", "--x=2", "--x=3", "--x=4", "--x=2", "--x=3"]
    assert read_flags(first) == flags
    assert with_flag_files(["--y", f"--flagfile={first}", "--z"]) == ["--y", *flags, "--z"]


def test_files_that_bring_each_other_in_twice_are_refused_at_once(tmp_path: Path) -> None:
    """With a limit to their nesting alone ten files of ten lines are read ten thousand million times."""
    files = {f"f{number}": f"--flagfile=f{number + 1}\n" * 10 for number in range(10)}
    first = written(tmp_path, **files, f10="--x\n")
    with pytest.raises(UsageInvalid, match="in a circle, or more than 64 files"):
        read_flags(first)


def test_flags_of_all_files_together_are_bounded(tmp_path: Path) -> None:
    first = written(tmp_path, a="--flagfile=b\n" * 60, b="--x\n" * 30_000)
    with pytest.raises(UsageInvalid, match="more than 100,000 flags"):
        read_flags(first)


def test_of_a_line_that_is_no_flag_only_the_start_is_said(tmp_path: Path) -> None:
    first = written(tmp_path, a="--x\n" + "y" * 100_000)
    with pytest.raises(UsageInvalid, match=r"line 2: 'y{60}…' is no flag"):
        read_flags(first)


def test_of_a_number_where_a_tensor_is_taken_only_the_start_is_said() -> None:
    entry = Function("main", (Argument("%x", "tensor<4xf32>", loop_bound=False),))
    with pytest.raises(InputInvalid, match=r"number 1{60}…; to fill it with this number, write --input=4xf32=1{60}…$"):
        given_inputs(entry, ["1" * 100_000])


def test_a_circle_of_files_is_one_sentence(built: Built, tmp_path: Path) -> None:
    written(tmp_path, a="--flagfile=a\n--flagfile=a\n")
    said = refused("usage-invalid", "run", built("hand_mlp"), "--flagfile", "a", cwd=tmp_path)
    assert "a: flag files include each other in a circle" in said
