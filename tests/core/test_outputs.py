"""Outputs: whole files or none, devices, pipes, links, `-` for standard output."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import threading
from pathlib import Path

import pytest

from tests.conftest import Built, Recorded
from tests.support import SAMPLES, check_cli, command_line, run_cli
from tracemap.core import files as outputs
from tracemap.core.errors import TargetExists, TargetUnwritable, UsageInvalid
from tracemap.core.files import READER_S, check_file, check_files, write_text
from tracemap.core.process.temporary_files import rename_into_place


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / "pipe.csv"
    os.mkfifo(path)
    return path


def read_while(path: Path, *arguments: str | Path) -> str:
    """What comes out of a pipe while the command runs."""
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append(path.read_text(encoding="utf-8")), daemon=True)
    reader.start()
    done = run_cli(*arguments)
    reader.join(10)
    assert done.returncode == 0, done.stderr
    return got[0]


@pytest.mark.long
@pytest.mark.parametrize("force", [(), ("--force",)])
def test_pipes_are_written_to(force: tuple[str, ...], built: Built, recorded: Recorded, pipe: Path) -> None:
    run, bundle = recorded("hand_mlp", ".csv"), built("hand_mlp")
    words = ("attribute", run, "--map", bundle)
    assert read_while(pipe, *words, "-o", pipe, *force) == check_cli(*words)
    assert read_while(pipe, *words, "--html", pipe, *force).startswith("<!DOCTYPE html>")
    table = read_while(pipe, "record", bundle, "--iterations", "1", "-o", pipe, *force)
    assert table.startswith("kind,")
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert list(pipe.parent.iterdir()) == [pipe]


@pytest.mark.long
def test_a_device_keeps_its_place(built: Built, tmp_path: Path) -> None:
    full = tmp_path / "full"
    try:
        os.mknod(full, stat.S_IFCHR | 0o666, os.makedev(1, 7))
        full.open("wb").close()
    except PermissionError:
        pytest.skip("only root may make devices, and only on some file systems")
    for force in ((), ("--force",)):
        done = run_cli("report", built("hand_mlp"), "-o", full, *force)
        assert done.returncode == 2
        assert (
            done.stderr == f"tracemap: error: {full}: cannot be written: No space left on device [target-unwritable]\n"
        )
        assert stat.S_ISCHR(full.stat().st_mode)
    assert list(tmp_path.iterdir()) == [full]
    check_file(Path("/dev/null"), force=False)


@pytest.mark.long
def test_of_a_link_what_it_leads_to_is_written(built: Built, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    link, page = tmp_path / "link.html", folder / "page.html"
    link.symlink_to("folder/page.html")
    check_cli("report", built("hand_mlp"), "-o", link)
    first = page.read_text(encoding="utf-8")
    assert first.startswith("<!DOCTYPE html>")
    check_cli("report", built("hand_mlp"), "-o", link)
    page.write_text("old", encoding="utf-8")
    done = run_cli("report", built("hand_mlp"), "-o", link)
    assert done.returncode == 2
    assert done.stderr.endswith("[target-exists]\n")
    check_cli("report", built("hand_mlp"), "-o", link, "--force")
    assert page.read_text(encoding="utf-8") == first
    assert link.is_symlink()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["folder", "link.html", "page.html"]


@pytest.mark.long
def test_of_a_link_to_a_bundle_the_bundle_is_replaced(tmp_path: Path) -> None:
    model = tmp_path / "model.mlir"
    model.write_text("func.func @main(%a: i32) -> i32 {\n  return %a : i32\n}\n", encoding="utf-8")
    link, bundle = tmp_path / "link.tracemap", tmp_path / "real.tracemap"
    link.symlink_to(bundle.name)
    check_cli("build", model, "-o", bundle)
    (bundle / "mark").touch()
    check_cli("build", model, "-o", link, "--force")
    assert link.is_symlink()
    assert not (bundle / "mark").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.tracemap", "model.mlir", "real.tracemap"]


def test_a_link_in_a_circle_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(link)
    with pytest.raises(TargetUnwritable):
        write_text("text", link)
    assert link.is_symlink()


@pytest.mark.long
def test_a_dash_is_standard_output(built: Built, recorded: Recorded, tmp_path: Path) -> None:
    run, bundle = recorded("hand_mlp", ".csv"), built("hand_mlp")
    words = ("attribute", run, "--map", bundle)
    plain = check_cli(*words, cwd=tmp_path)
    assert check_cli(*words, "-o", "-", cwd=tmp_path) == plain
    assert check_cli(*words, "-o", "-", "--force", cwd=tmp_path) == plain
    page = check_cli(*words, "--html", "-", cwd=tmp_path)
    assert page.startswith("<!DOCTYPE html>")
    assert page.endswith("</html>\n")
    assert check_cli("report", bundle, run, "-o", "-", cwd=tmp_path) == page
    assert check_cli("record", bundle, "--iterations", "1", "-o", "-", cwd=tmp_path).startswith("kind,")
    done = run_cli("build", "-o", "-", SAMPLES / "models" / "hand_mlp.mlir", cwd=tmp_path)
    assert done.returncode == 2
    assert "a bundle is a folder" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_what_goes_to_standard_output_can_be_read_again(built: Built, tmp_path: Path) -> None:
    bundle = built("hand_mlp")
    recording = subprocess.run(
        command_line("record", bundle, "--iterations", "2", "-o", "-"), cwd=tmp_path, capture_output=True, check=True
    )
    done = run_cli("attribute", "-", "--map", bundle, cwd=tmp_path, stdin=recording.stdout)
    assert done.returncode == 0, done.stderr


def test_standard_output_takes_one_result(tmp_path: Path) -> None:
    with pytest.raises(UsageInvalid, match="only one result"):
        check_files(Path("-"), tmp_path / "file", Path("-"), force=True)


def test_a_reader_that_has_enough_is_no_error(built: Built, tmp_path: Path) -> None:
    words = command_line("report", built("hand_mlp"), "-o", "-")
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert "rror" not in process.stderr.read()
        assert process.wait() == -signal.SIGPIPE


@pytest.mark.long
def test_a_pipe_that_nobody_reads_is_not_waited_for(built: Built, recorded: Recorded, pipe: Path) -> None:
    """To open one as files are opened waits without end."""
    words = ("attribute", recorded("hand_mlp", ".csv"), "--map", built("hand_mlp"))
    for option in ("-o", "--html"):
        done = run_cli(*words, option, pipe)
        assert done.returncode == 2
        assert done.stderr.endswith(
            f"{pipe}: is a pipe that no program has opened for reading within {READER_S} seconds; start its reader "
            "first, or choose another path [target-unwritable]\n"
        )
        assert not done.stdout


@pytest.mark.long
def test_a_reader_may_come_a_little_later_and_be_slow(
    tmp_path: Path, pipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is more than a pipe holds waits for it, as in any other."""
    monkeypatch.setattr(outputs, "READER_S", 60)  # a second of sleep takes longer where others have the processors
    got = tmp_path / "got"
    reader = subprocess.Popen(["sh", "-c", f"sleep 1; (sleep 1; cat) <'{pipe}' >'{got}'"])
    write_text("x" * 300_000, pipe)
    assert reader.wait(60) == 0
    assert got.read_text(encoding="utf-8") == "x" * 300_000


def test_of_commands_at_once_one_writes_and_the_others_are_refused(tmp_path: Path) -> None:
    """All find the place free before their work; when the work is done, it is free for the first of them only."""
    target = tmp_path / "costs.txt"
    check_file(target, force=False)
    target.write_text("of another command", encoding="utf-8")
    with pytest.raises(
        TargetExists, match="another program wrote it meanwhile; choose another name, or pass force=True"
    ):
        write_text("ours", target)
    assert target.read_text(encoding="utf-8") == "of another command"
    check_file(target, force=True)
    write_text("by force", target)
    assert target.read_text(encoding="utf-8") == "by force"
    assert list(tmp_path.iterdir()) == [target]


def test_of_links_what_they_lead_to_is_taken_once(tmp_path: Path) -> None:
    link, place = tmp_path / "link.txt", tmp_path / "place.txt"
    link.symlink_to(place)
    check_file(link, force=False)
    place.write_text("of another command", encoding="utf-8")
    with pytest.raises(TargetExists):
        write_text("ours", link)
    assert place.read_text(encoding="utf-8") == "of another command"


def test_where_files_cannot_be_linked_the_place_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", no_links)
    for name, there in (("a.txt", False), ("b.txt", True)):
        check_file(tmp_path / name, force=False)
        if there:
            (tmp_path / name).write_text("of another command", encoding="utf-8")
            with pytest.raises(TargetExists):
                write_text("ours", tmp_path / name)
        else:
            write_text("ours", tmp_path / name)
            assert (tmp_path / name).read_text(encoding="utf-8") == "ours"


def test_a_folder_is_given_its_name_once(tmp_path: Path) -> None:
    """A bundle, or a folder for another tuner; what is there is no longer than a moment out of its place otherwise."""
    for number, name in enumerate(("folder", "file", "free")):
        made = tmp_path / f"made{number}"
        made.mkdir()
        (made / "ours").touch()
        target = tmp_path / name
        if name == "folder":
            target.mkdir()
            (target / "other").touch()
        elif name == "file":
            target.touch()
        else:
            rename_into_place(made, target)
            assert [path.name for path in target.iterdir()] == ["ours"]
            continue
        with pytest.raises(FileExistsError):
            rename_into_place(made, target)
        assert made.is_dir()
