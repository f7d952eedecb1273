"""`tracemap sweep`: operations generated, computed and saved; nothing is done twice after a kill."""

from __future__ import annotations

import csv
import io
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from tests.support import check_cli, interruptible, run_cli
from tracemap.commands.sweep import COLUMNS
from tracemap.core.errors import UsageInvalid
from tracemap.kernels.configurations import read_configuration
from tracemap.kernels.operations import KINDS, generate_operations, sizes_of

QUICK = ("--repetitions", "2", "--min-time", "0.2")
Row = dict[str, str]


def rows_of(text: str) -> list[Row]:
    return list(csv.DictReader(io.StringIO(text)))


def kept(work: Path) -> dict[str, tuple[int, int]]:
    """What a sweep keeps, each file with its inode and the time of its last change.

    What a command that was killed had not finished begins with a dot, and the next one clears it away.
    """
    files = [path for path in work.rglob("*") if path.is_file() and not path.name.startswith(".")]
    return {str(path.relative_to(work)): (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}


@pytest.mark.long
def test_products_are_right_and_counted(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    sizes = ("--size", "M=32,40", "--size", "N=48", "--size", "K=16:32:16")
    check_cli("sweep", "matmul", *sizes, "--tag", "machine=mine", *QUICK, "-o", table)
    rows = rows_of(table.read_text())
    assert sorted(row["Dispatch"] for row in rows) == [f"matmul_{m}x48x{k}_f32" for m in (32, 40) for k in (16, 32)]
    for row in rows:
        m, n, k = (int(part.split("=")[1]) for part in row["Arguments"].split()[:3])
        assert float(row["GFLOPs"]) == pytest.approx(2 * m * n * k / float(row["Runtime(ms)"]) / 1e6, rel=1e-3)
        assert row["Verification"] == "SUCCESS"
        assert row["machine"] == "mine"


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("batch_matmul", ["--size", "M=24", "--size", "N=16", "--size", "K=40", "--epilogue", "bias+relu"]),
        ("matmul", ["--size", "M=24", "--type", "f16,bf16,i8,f64", "--epilogue", "bias"]),
        ("splitk_matmul", ["--size", "M=8", "--size", "K=64", "--size", "P=4", "--type", "bf16,i8"]),
        ("conv2d_nhwc", ["--size", "H=12", "--size", "W=11", "--size", "D=2", "--epilogue", "relu"]),
        ("conv2d_nchw", ["--size", "H=12", "--size", "W=11"]),
        ("depthwise_conv2d_nhwc", ["--size", "H=12", "--size", "W=11", "--epilogue", "bias"]),
    ],
)
def test_every_kind_is_what_numpy_computes(kind: str, options: list[str]) -> None:
    rows = rows_of(check_cli("sweep", kind, *options, *QUICK))
    assert rows
    assert {row["Verification"] for row in rows} == {"SUCCESS"}, rows


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["./-d.csv", "n\udcff.csv"])
def test_a_table_may_have_any_name(name: str, tmp_path: Path) -> None:
    """Of one the compiler would take the programs for options of its own, the other no JSON and no binding can hold."""
    sizes = [word for letter in "MNK" for word in ("--size", f"{letter}=16")]
    check_cli("sweep", "matmul", *sizes, *QUICK, "-o", name, cwd=tmp_path)
    (row,) = rows_of((tmp_path / name).read_text())
    assert row["Verification"] == "SUCCESS", row


@pytest.mark.long
def test_what_is_printed_leaves_no_folder(tmp_path: Path) -> None:
    sizes = [word for letter in "MNK" for word in ("--size", f"{letter}=16")]
    (row,) = rows_of(check_cli("sweep", "matmul", *sizes, *QUICK, "-o", "-", cwd=tmp_path))
    assert row["Verification"] == "SUCCESS", row
    assert not list(tmp_path.iterdir())


def test_operations_of_a_convolution_are_those_of_a_plain_loop() -> None:
    (operation,) = generate_operations(
        "conv2d_nhwc", {"H": "7", "W": "6", "C": "3", "F": "5", "R": "3", "S": "2", "D": "2"}, ["f32"], ["none"]
    )
    image, window = np.ones((7, 6, 3)), np.ones((3, 2, 3, 5))
    count = 0
    for top in range(0, 7 - 3 + 1, 2):
        for left in range(0, 6 - 2 + 1, 2):
            count += 2 * np.multiply.outer(image[top : top + 3, left : left + 2], np.ones(5)).size
    assert window.shape[-1] == 5
    assert operation.operations == count


@pytest.mark.long
def test_configurations_change_the_code_and_not_the_result(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    tiles = ("--config", "default", "--config", "tiles=8x16;vectors=4x8x4")
    check_cli("sweep", "matmul", *tiles, *QUICK, "-o", table)
    rows = rows_of(table.read_text())
    assert {row["Configuration"] for row in rows} == {"default", "tiles=8x16;vectors=4x8x4"}
    assert {row["Verification"] for row in rows} == {"SUCCESS"}
    modules = [path.read_bytes() for path in (tmp_path / "table.csv.work" / "modules").glob("*.vmfb")]
    assert len(set(modules)) == 2
    texts = [path.read_text() for path in (tmp_path / "table.csv.work" / "modules").glob("*.mlir")]
    assert any("distribution = [8, 16, 0]" in text and "vector_reduction = [0, 0, 4]" in text for text in texts)
    times = [float(row["Runtime(ms)"]) for row in rows]
    assert times == sorted(times)


@pytest.mark.long
def test_what_cannot_be_compiled_is_a_row_with_its_reason() -> None:
    configs = ("--config", "pipeline=NoSuchPipeline", "--config", "pipeline=NoOtherPipeline")
    done = run_cli("sweep", "matmul", *configs, *QUICK)
    assert done.returncode == 1
    rows = rows_of(done.stdout)
    assert [row["Verification"] for row in rows] == ["Not compiled"] * 2
    assert all(row["reason"] for row in rows)
    assert done.stderr.startswith("tracemap: warning: 2 of 2 trials could not be compiled; the first: ")
    assert "NoSuchPipeline" in done.stderr
    assert "NoOtherPipeline" not in done.stderr
    some = run_cli("sweep", "matmul", "--size", "M=16", *configs[:2], "--config", "default", *QUICK)
    assert (some.returncode, len(rows_of(some.stdout))) == (0, 2)
    assert "1 of 2 trials could not be compiled" in some.stderr


SWEEP = ("matmul", "--size", "M=16,24,32", "--size", "N=16,32", "--size", "K=16", *QUICK)


@pytest.mark.long
def test_after_a_kill_it_goes_on_and_does_nothing_twice(tmp_path: Path) -> None:
    table, work = tmp_path / "table.csv", tmp_path / "table.csv.work"
    chance = random.Random(5)
    for ending in (signal.SIGKILL, signal.SIGINT, signal.SIGKILL):
        before = kept(work) if work.is_dir() else {}
        child = subprocess.Popen(interruptible("sweep", *SWEEP, "-o", table), stderr=subprocess.DEVNULL)
        time.sleep(1.5 + 2 * chance.random())
        child.send_signal(ending)
        child.wait(60)
        if table.exists():  # it was at its end
            assert [row["Verification"] for row in rows_of(table.read_text())] == ["SUCCESS"] * 6, "it is not whole"
            break
        assert child.returncode != 0
        after = kept(work) if work.is_dir() else {}
        assert before.items() <= after.items()
    before = kept(work)
    check_cli("sweep", *SWEEP, "-o", table, "--force")
    assert [row["Verification"] for row in rows_of(table.read_text())] == ["SUCCESS"] * 6
    after = kept(work)
    assert {name: place for name, place in after.items() if name in before} == before
    assert sum(name.endswith(".vmfb") for name in after) == 6
    first = table.read_bytes()
    check_cli("sweep", *SWEEP, "-o", table, "--force")
    assert kept(work) == after
    assert table.read_bytes() == first


@pytest.mark.long
def test_append_adds_what_the_table_does_not_have(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    check_cli("sweep", "matmul", "--size", "M=16", "--size", "N=16", "--size", "K=16", *QUICK, "-o", table)
    first = table.read_text()
    check_cli(
        "sweep", "matmul", "--size", "M=16,24", "--size", "N=16", "--size", "K=16", *QUICK, "-o", table, "--append"
    )
    assert table.read_text().startswith(first)
    assert [row["Dispatch"] for row in rows_of(table.read_text())] == ["matmul_16x16x16_f32", "matmul_24x16x16_f32"]


@pytest.mark.parametrize(
    "table",
    [
        b"\xff\xfe\x00",
        b"Dispatch,Operation\na,b\n",
        b"notes of mine\n",
        b'"' + b"x" * 200_000,
        ",".join(COLUMNS).encode() + b"\n" + b"," * len(COLUMNS) + b"more\n",
    ],
)
def test_what_is_no_table_of_a_sweep_is_not_added_to(table: bytes, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_bytes(table)
    done = run_cli("sweep", "matmul", "--append", "-o", tmp_path / "table.csv")
    assert (done.returncode, done.stdout) == (2, "")
    assert "is not a table of" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["table.csv"]
    assert (tmp_path / "table.csv").read_bytes() == table


@pytest.mark.long
def test_what_was_only_verified_is_timed_and_what_was_only_timed_verified(tmp_path: Path) -> None:
    table, work = tmp_path / "table.csv", tmp_path / "table.csv.work"
    sizes = ("matmul", "--size", "M=16", "--size", "N=16", "--size", "K=16", *QUICK, "-o", table, "--force")
    seen = []
    for options in (["--only", "verify"], ["--no-verify"], []):
        check_cli("sweep", *sizes, *options)
        (row,) = rows_of(table.read_text())
        seen.append((row["Verification"], bool(row["Runtime(ms)"])))
    assert seen == [("SUCCESS", False), ("Not verified", True), ("SUCCESS", True)]
    assert len(list((work / "modules").glob("*.vmfb"))) == 1


@pytest.mark.long
def test_tags_stay_what_they_are_when_rows_are_added(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    options = ("--size", "N=16", "--size", "K=16", "--tag", "note==1+1", *QUICK, "-o", table)
    check_cli("sweep", "matmul", "--size", "M=16", *options)
    first = table.read_text()
    check_cli("sweep", "matmul", "--size", "M=16,24", *options, "--append")
    assert table.read_text().startswith(first)
    assert [row["note"] for row in rows_of(table.read_text())] == ["'=1+1"] * 2


@pytest.mark.long
def test_rows_with_other_tags_are_other_rows_measured_anew(tmp_path: Path) -> None:
    table, work = tmp_path / "table.csv", tmp_path / "table.csv.work"
    sizes = ("matmul", "--size", "M=16", "--size", "N=16", "--size", "K=16", *QUICK, "-o", table)
    check_cli("sweep", *sizes)
    for tags in (["--tag", "clock=low"], ["--tag", "clock=high"], ["--tag", "clock=low"], []):
        check_cli("sweep", *sizes, *tags, "--append")
    assert [row["clock"] for row in rows_of(table.read_text())] == ["", "low", "high"]
    assert len(list((work / "modules").glob("*.vmfb"))) == 1
    assert len(list((work / "results").iterdir())) == 3


@pytest.mark.long
def test_only_generate_and_only_compile_stop_there(tmp_path: Path) -> None:
    table, work = tmp_path / "table.csv", tmp_path / "table.csv.work"
    check_cli("sweep", "matmul", "--size", "M=16", "--only", "generate", "-o", table)
    assert [path.name for path in (work / "models").iterdir()] == ["matmul_16x128x128_f32.mlir"]
    assert not list((work / "modules").iterdir())
    check_cli("sweep", "matmul", "--size", "M=16", "--only", "compile", "-o", table)
    assert len(list((work / "modules").glob("*.vmfb"))) == 1
    assert not list((work / "results").iterdir())
    assert not table.exists()


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--size", "M"], "LETTER=SIZES"),
        (["--size", "X=4"], "has the sizes M, N, K"),
        (["--size", "M=0"], "a size is a number of at least 1"),
        (["--size", "M=8:4"], "'8:4': empty range"),
        (["--size", "M=8", "--size", "M=4"], "M=4: M is set twice"),
        (["--tag", "a=1", "--tag", "a=2"], "a=2: a is set twice"),
        (["--type", "f7"], "unknown type"),
        (["--epilogue", "gelu"], "unknown epilogue"),
        (["--config", "fast"], "not a configuration; pass `default`, or tiles="),
        (["--config", "spec=absent.mlir"], "no such tuning spec"),
        (["--dispatches", "conv"], "no operation is selected"),
        (["--dispatches", "("], "invalid regular expression"),
        (["--append"], "name it with -o"),
        (["--only", "generate", "-o", "-"], "name it with --work, or name a table with -o"),
        (["--only", "compile"], "name it with --work, or name a table with -o"),
        (["--config", f"tiles={'9' * 5000}"], "not a configuration; pass `default`, or tiles="),
        (["--tag", "Verification=SUCCESS"], "every sweep has a column of this name"),
        (["--tag", "Operation=mine"], "every sweep has a column of this name"),
        (["--", "--nosuchflag"], "rejects --nosuchflag: Unknown command line argument '--nosuchflag'. Did you mean"),
        (["--", "--iree-opt-level=O9"], "not a valid optimization level"),
        (["--", "--version"], "only prints something and compiles nothing"),
    ],
)
def test_what_cannot_be_swept_is_said(options: list[str], words: str, tmp_path: Path) -> None:
    done = run_cli("sweep", "matmul", *options, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "sizes"), [("5", [5]), ("1,3", [1, 3]), ("4:10:3", [4, 7, 10]), ("2:4", [2, 3, 4]), ("4:9:3", [4, 7])]
)
def test_sizes_are_numbers_and_ranges(text: str, sizes: list[int]) -> None:
    assert sizes_of(text) == sizes


@pytest.mark.parametrize("text", ["", "x", "-1", "1:2:0", "1:1000000:1", "1:999999999", "1.5"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(UsageInvalid):
        sizes_of(text)


def test_parts_of_a_configuration_are_read() -> None:
    found = read_configuration("tiles=32x64;pipeline=CPUDefault;vectors=8x8x16")
    assert (found.tiles, found.vectors, found.pipeline, found.flags) == ((32, 64), (8, 8, 16), "CPUDefault", ())


def test_names_tell_operations_apart() -> None:
    made = [
        each for kind in KINDS for each in generate_operations(kind, {}, ["f32", "i8"], ["none", "bias", "bias+relu"])
    ]
    assert len({each.name for each in made}) == len(made)


@pytest.mark.parametrize("kind", ["pipe", "empty"])
def test_a_folder_without_configurations_is_said(kind: str, tmp_path: Path) -> None:
    """The default was timed, and no word said of what was asked for."""
    folder = tmp_path / "specs"
    if kind == "pipe":
        os.mkfifo(folder)
    else:
        folder.mkdir()
    done = run_cli("sweep", "matmul", "--size", "M=8", "--configs-from", folder, "-o", tmp_path / "table.csv")
    assert done.returncode == 2
    assert ("is not a folder" if kind == "pipe" else "contains no tuning spec (*.mlir)") in done.stderr
    assert done.stderr.endswith("[usage-invalid]\n")
