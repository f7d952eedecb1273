"""Input files: pipes, devices, links and folders; nothing hangs or leaks."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.conftest import Built, Recorded
from tests.support import SAMPLES, command_line, run_cli
from tracemap.core.errors import BundleInvalid, ModelUnreadable, RunInvalid
from tracemap.core.files import WRITER_S, check_is_file, read_stored_file, read_user_input
from tracemap.map.bundle import load
from tracemap.store.layout import store_at
from tracemap.store.lineage import store_map

MLP = SAMPLES / "models" / "hand_mlp.mlir"


@pytest.fixture
def bundle(built: Built, tmp_path: Path) -> Path:
    """A copy of a bundle, to be tampered with."""
    return Path(shutil.copytree(built("hand_mlp"), tmp_path / "m.tracemap"))


def refused(slug: str, *words: str | Path, cwd: Path) -> str:
    """What is said by a command that must refuse at once."""
    done = subprocess.run(command_line(*words), cwd=cwd, capture_output=True, text=True, timeout=20, check=False)
    assert done.stderr.endswith(f" [{slug}]\n"), done.stderr
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    return done.stderr


# --- links


@pytest.mark.parametrize("place", ["source", "kernels", "literals"])
def test_a_folder_of_a_bundle_that_is_a_link_elsewhere_gives_nothing_away(place: str, bundle: Path) -> None:
    elsewhere = bundle.parent / "elsewhere"
    elsewhere.mkdir()
    loaded = load(bundle)
    kernel = loaded.graph.kernels[0]
    name = {"source": loaded.graph.sources[0].path, "kernels": str(kernel.text), "literals": "0" * 64 + ".bin"}[place]
    (elsewhere / name).write_text("secret", encoding="utf-8")
    shutil.rmtree(bundle / place)
    (bundle / place).symlink_to(elsewhere)
    reads: dict[str, Callable[[], object]] = {
        "source": partial(loaded.source_text, loaded.graph.sources[0]),
        "kernels": partial(loaded.kernel_text, kernel),
        "literals": partial(loaded._literal, name),
    }
    with pytest.raises(BundleInvalid, match="outside of the bundle"):
        reads[place]()


def test_a_source_that_is_a_link_to_the_root_stays_out_of_the_page(bundle: Path) -> None:
    stored = json.loads((bundle / "map.json").read_bytes())
    stored["sources"][0]["path"] = "etc/passwd"
    (bundle / "map.json").write_text(json.dumps(stored), encoding="utf-8")
    shutil.rmtree(bundle / "source")
    (bundle / "source").symlink_to("/")
    said = refused("bundle-invalid", "report", bundle, "-o", "page.html", cwd=bundle.parent)
    assert "etc/passwd" in said
    assert not (bundle.parent / "page.html").exists()


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("map.json", ("show", "m.tracemap")),
        ("map.json", ("attribute", "m.tracemap/runs/run-001-1.csv", "--map", "m.tracemap")),
        ("module.vmfb", ("show", "m.tracemap")),
        ("module.vmfb", ("run", "m.tracemap")),
        ("module.vmfb", ("record", "m.tracemap", "--iterations", "1")),
        ("compiled.json", ("diff", "m.tracemap", "m.tracemap")),
        ("remarks.json", ("remarks", "m.tracemap")),
        ("call.json", ("run", "m.tracemap")),
        ("runs", ("record", "m.tracemap", "--iterations", "1")),
        ("runs", ("record", "m.tracemap", "--iterations", "1", "--repeat", "2")),
        ("runs", ("diff", "m.tracemap", "m.tracemap")),
        ("runs/run-001-1.csv", ("diff", "m.tracemap", "m.tracemap")),
        ("runs/run-001-2.csv.json", ("diff", "m.tracemap", "m.tracemap")),
    ],
)
@pytest.mark.parametrize("there", [True, False], ids=["there", "dangling"])
def test_a_link_out_of_a_bundle_is_refused(
    name: str, words: tuple[str, ...], there: bool, bundle: Path, recorded: Recorded
) -> None:
    """Also one that leads nowhere yet: what is written through it would lie outside."""
    run, place, outside = recorded("hand_mlp", ".csv"), bundle / name, bundle.parent / "outside"
    for number in (1, 2):
        shutil.copy(run, bundle / "runs" / f"run-001-{number}.csv")
        shutil.copy(f"{run}.json", bundle / "runs" / f"run-001-{number}.csv.json")
    if place.exists():
        place.rename(outside if there else bundle.with_name("gone"))
    elif there:
        outside.write_text("{}", encoding="utf-8")
    place.symlink_to(outside)
    before = sorted(bundle.parent.rglob("*"))
    said = refused("bundle-invalid", *words, cwd=bundle.parent)
    assert f"m.tracemap/{name}: is a link that leads out of " in said
    assert sorted(bundle.parent.rglob("*")) == before


def test_a_store_takes_no_map_through_a_link_out_of_a_bundle(bundle: Path) -> None:
    loaded = load(bundle)
    (bundle / "map.json").rename(bundle.parent / "map.json")
    (bundle / "map.json").symlink_to(bundle.parent / "map.json")
    with pytest.raises(BundleInvalid, match="leads out of"):
        store_map(store_at(str(bundle.parent / "store")), loaded)


@pytest.mark.long
def test_links_within_a_bundle_may_stay(bundle: Path) -> None:
    """Of whatever kind: to a path below it, to a whole one, and by way of a link to the bundle."""
    (bundle / "kept").mkdir()
    link = bundle.with_name("link.tracemap")
    link.symlink_to(bundle)
    for name, way in (("map.json", Path("kept")), ("module.vmfb", bundle / "kept"), ("runs", link / "kept")):
        (bundle / name).rename(bundle / "kept" / name)
        (bundle / name).symlink_to(way / name)
    assert run_cli("record", link, "--iterations", "1").returncode == 0
    assert [path.name for path in (bundle / "kept" / "runs").iterdir()] == ["run-001.parquet"]
    assert run_cli("diff", link, bundle).returncode == 0


def test_a_bundle_may_be_a_link_itself(bundle: Path) -> None:
    link = bundle.with_name("link.tracemap")
    link.symlink_to(bundle)
    opened = load(link)
    assert opened.source_text(opened.graph.sources[0]) == MLP.read_text(encoding="utf-8")


# --- pipes and devices


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["map.json", "module.vmfb", "source/hand_mlp.mlir"])
def test_a_pipe_in_a_bundle_is_refused(name: str, bundle: Path) -> None:
    (bundle / name).unlink()
    os.mkfifo(bundle / name)
    said = refused("bundle-invalid", "report", bundle, "-o", "page.html", cwd=bundle.parent)
    assert f"{name}: is a pipe, not a file" in said


@pytest.mark.long
def test_a_pipe_beside_a_run_is_refused(recorded: Recorded, built: Built, tmp_path: Path) -> None:
    shutil.copy(recorded("hand_mlp", ".csv"), tmp_path / "run.csv")
    os.mkfifo(tmp_path / "run.csv.json")
    said = refused("run-invalid", "attribute", "run.csv", "--map", built("hand_mlp"), cwd=tmp_path)
    assert "run.csv.json: is a pipe, not a file" in said


@pytest.mark.long
def test_a_pipe_among_the_hooks_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "calls").mkdir()
    os.mkfifo(tmp_path / "calls" / "1.meta")
    os.mkfifo(tmp_path / "iree_hook_thread.csv")
    refused("run-invalid", "stats", "iree_hook_thread.csv", cwd=tmp_path)


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "slug"),
    [
        (("build", "/dev/zero", "-o", "m.tracemap"), "model-unreadable"),
        (("attribute", "/dev/zero"), "run-invalid"),
    ],
    ids=["build", "attribute"],
)
def test_a_device_without_end_is_refused(words: tuple[str, ...], slug: str, tmp_path: Path) -> None:
    assert "/dev/zero: is a device" in refused(slug, *words, cwd=tmp_path)
    with Path("/dev/zero").open("rb") as endless:
        again = command_line(words[0], "-", *words[2:])
        done = subprocess.run(again, cwd=tmp_path, stdin=endless, capture_output=True, timeout=20, check=False)
    assert b"standard input: is a device" in done.stderr
    assert done.returncode == 2


def test_what_comes_through_a_pipe_is_read_as_a_file_is(recorded: Recorded, built: Built, tmp_path: Path) -> None:
    run, words = recorded("hand_mlp", ".parquet"), ("--map", str(built("hand_mlp")), "--format", "csv")
    plain = run_cli("attribute", run, *words, cwd=tmp_path)
    command = ["bash", "-c", '"$@" <(cat "$RUN")', "bash", *command_line("attribute", *words)]
    piped = subprocess.run(
        command,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "RUN": str(run)},
    )
    assert piped.stdout == plain.stdout


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "slug"),
    [
        (("build", "pipe", "-o", "m.tracemap"), "model-unreadable"),
        (("attribute", "pipe", "--map", "BUNDLE"), "run-invalid"),
        (("record", "BUNDLE", "-o", "run.csv", "--flagfile", "pipe"), "usage-invalid"),
        (("record", "BUNDLE", "-o", "run.csv", "--", "--flagfile=pipe"), "usage-invalid"),
    ],
    ids=["model", "run", "flags", "more-flags"],
)
def test_a_pipe_that_nobody_writes_to_keeps_no_command_waiting(
    words: tuple[str, ...], slug: str, built: Built, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    named = [str(built("hand_mlp")) if word == "BUNDLE" else word for word in words]
    assert "pipe: is a pipe that no program has opened for writing" in refused(slug, *named, cwd=tmp_path)


@pytest.mark.long
def test_a_named_pipe_is_read_to_its_end_however_slowly_it_is_written(tmp_path: Path) -> None:
    """The writer opens late, and is silent for longer than nobody may be."""
    os.mkfifo(tmp_path / "pipe")
    command = f'sleep 0.2; exec > pipe; sleep {WRITER_S + 1}; printf "%s" first; sleep 0.3; head -c 300000 /dev/zero'
    with subprocess.Popen(["sh", "-c", command], cwd=tmp_path) as writer:
        try:
            read = read_user_input(str(tmp_path / "pipe"), ModelUnreadable)
        except ModelUnreadable:
            writer.kill()  # or it waits for a reader without end
            raise
    assert writer.returncode == 0
    assert read == b"first" + bytes(300_000)


def test_a_pipe_of_the_shell_may_be_empty(tmp_path: Path) -> None:
    command = ["bash", "-c", '"$@" <(true) -o m.tracemap', "bash", *command_line("build")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=20)
    assert done.returncode == 2
    assert "no program" not in done.stderr


def test_a_file_larger_than_the_memory_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with (tmp_path / "model.mlir").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ModelUnreadable, match="larger than half of the free memory"):
        read_user_input(str(tmp_path / "model.mlir"), ModelUnreadable)
    with pytest.raises(BundleInvalid, match="larger than half of the free memory"):
        read_stored_file(tmp_path / "model.mlir", BundleInvalid)


@pytest.mark.parametrize("name", ["folder", "absent", "with\0zero", "n" * 5000])
def test_what_is_no_file_is_told_in_a_sentence(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(RunInvalid, match=r"cannot be read|is a folder, not a file"):
        check_is_file(tmp_path / name, RunInvalid)
    with pytest.raises(ModelUnreadable, match="cannot be read"):
        read_user_input(str(tmp_path / name), ModelUnreadable)


@pytest.mark.long
def test_a_model_of_a_name_that_is_no_utf_8_is_built(tmp_path: Path) -> None:
    name = os.fsdecode(b"m\xff.mlir")
    shutil.copy(MLP, tmp_path / name)
    assert run_cli("build", name, "-o", "m.tracemap", cwd=tmp_path).returncode == 0
    assert load(tmp_path / "m.tracemap").graph.ops[1].file == r"m\udcff.mlir"


@pytest.mark.long
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_run_of_a_name_that_is_no_utf_8_is_refused_before_the_work(
    suffix: str, built: Built, recorded: Recorded, tmp_path: Path
) -> None:
    name = os.fsdecode(b"run\xff") + suffix
    said = refused("target-unwritable", "record", built("hand_mlp"), "--iterations", "1", "-o", name, cwd=tmp_path)
    assert rf"run\udcff{suffix}: the name is not UTF-8" in said
    assert not list(tmp_path.iterdir())
    shutil.copy(recorded("hand_mlp", suffix), tmp_path / name)
    said = refused("run-invalid", "attribute", name, "--map", built("hand_mlp"), cwd=tmp_path)
    assert "its name is not UTF-8" in said


def test_a_compressed_run_is_said_to_be_one(built: Built, tmp_path: Path) -> None:
    (tmp_path / "run.csv").write_bytes(gzip.compress(b"kernel,duration_ns\na,5\n"))
    said = refused("run-invalid", "attribute", "run.csv", "--map", built("hand_mlp"), cwd=tmp_path)
    assert "is compressed; unpack it first" in said


def test_a_file_that_is_no_table_does_not_fill_the_screen(built: Built, tmp_path: Path) -> None:
    (tmp_path / "run.csv").write_text(",".join(["x" * 1000] * 5000) + "\n1\n", encoding="utf-8")
    said = refused("run-invalid", "attribute", "run.csv", "--map", built("hand_mlp"), cwd=tmp_path)
    assert "has 5,000 columns, more than the limit of 2,000" in said
    assert len(said) < 2000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "standard input: the file is empty: no events; record again, or pass another file [run-empty]"),
        ("x,y\n", "standard input: there is no column that names the kernel"),
        ("kernel,duration_ns\nk,1\n\0,?\n", "standard input: "),
        ('{"benchmarks": 3}', "standard input: "),
        ("thread,cpu,node,duration_us\nw,0,0,1\n", "standard input: comes from IREE's hook"),
    ],
)
def test_errors_of_what_comes_by_standard_input_name_it(text: str, said: str, built: Built) -> None:
    """They named the file that it was copied to, which is gone by then."""
    done = run_cli("attribute", "-", "--map", built("hand_mlp"), stdin=text.encode())
    assert done.returncode == 2
    assert said in done.stderr
    assert "tracemap-home" not in done.stderr
    assert "stdin.csv" not in done.stderr
