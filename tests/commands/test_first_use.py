"""The first hour: rebuild, name things twice, odd names, a full disk; nothing is lost."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import duckdb
import pytest

import tracemap
from tests.conftest import Built, Recorded
from tests.support import SAMPLES, check_cli, command_line, json_cli, run_cli

PROGRAMS = Path(__file__).parent.with_name("programs")
MLP = SAMPLES / "models" / "hand_mlp.mlir"
ODD_NAMES = """func.func @{name}(%a: tensor<64xf32>) -> tensor<64xf32> {{
  %0 = stablehlo.add %a, %a : tensor<64xf32>
  return %0 : tensor<64xf32>
}}
"""


@pytest.mark.long
@pytest.mark.parametrize("name", ['"é"', '"sp ace \\\\22q\\\\22"', "plain"])
def test_functions_may_have_any_name(name: str, tmp_path: Path) -> None:
    """A name with quotes or letters beyond ASCII once gave two kernels, two sites, and no cost."""
    model, target, run = tmp_path / "odd.mlir", tmp_path / "odd.tracemap", tmp_path / "run.csv"
    model.write_text(ODD_NAMES.format(name=name.replace("\\\\", "\\")), encoding="utf-8")
    check_cli("build", model, "-o", target)
    shown = json_cli("show", target)
    assert (len(shown["sites"]), len(shown["kernels"])) == (1, 1)
    check_cli("record", target, "--iterations", "2", "-o", run)
    (row,) = json_cli("attribute", run, "--map", target)["ops"]
    assert (row["name"], row["line"], row["calls"]) == ("stablehlo.add", 2, 2)


def test_parts_of_a_softmax_cost_what_they_compute(tmp_path: Path) -> None:
    """Maxima and sums read every element, as they do where they stand alone."""
    check_cli("build", PROGRAMS / "softmax.mlir", "-o", tmp_path / "s.tracemap")
    shown = json_cli("show", tmp_path / "s.tracemap")
    names = {op["id"]: op["name"] for op in shown["ops"]}
    elements = 64 * 512
    assert [(names[member["op"]], member["operations"] // elements) for member in shown["sites"][0]["members"]] == [
        ("stablehlo.divide", 4),
        ("stablehlo.reduce", 1),
        ("stablehlo.subtract", 1),
        ("stablehlo.exponential", 10),
        ("stablehlo.reduce", 1),
    ]
    # The parser's own place in the text is no word of the model about where its ops come from.
    assert not any(op["frames"] for op in shown["ops"])


@pytest.mark.long
def test_measurements_outlive_a_rebuild(tmp_path: Path) -> None:
    target = tmp_path / "mlp.tracemap"
    check_cli("build", MLP, "-o", target)
    run = Path(check_cli("record", target, "--iterations", "2").strip())
    before = run.read_bytes()
    check_cli("build", MLP, "-o", target, "--force")
    assert run.read_bytes() == before
    assert json_cli("attribute", run)["ops"]
    assert check_cli("record", target, "--iterations", "2").strip().endswith("run-002.parquet")


@pytest.mark.long
def test_no_file_is_written_over_what_is_read_or_written(tmp_path: Path) -> None:
    target, run, link = tmp_path / "mlp.tracemap", tmp_path / "run.csv", tmp_path / "link.csv"
    check_cli("build", MLP, "-o", target)
    check_cli("record", target, "--iterations", "2", "-o", run)
    link.symlink_to(run)
    before = run.read_bytes()
    for arguments, said in (
        ((run, "-o", run, "--force"), "the same command reads this file"),
        ((run, "--html", link, "--force"), "the same command reads this file"),
        ((run, "-o", tmp_path / "x", "--html", tmp_path / "." / "x"), "writes another output to this file"),
        ((run, link), "is named twice"),
    ):
        done = run_cli("attribute", *arguments, "--map", target)
        assert (done.returncode, done.stdout) == (2, "")
        assert said in done.stderr
    assert run.read_bytes() == before
    assert not (tmp_path / "x").exists()


@pytest.fixture
def read(built: Built, recorded: Recorded, tmp_path: Path) -> Path:
    """A folder with a bundle, a run of it as CSV with its header, one in the bundle, and links to files of both."""
    shutil.copytree(built("hand_mlp"), tmp_path / "m.tracemap")
    run = recorded("hand_mlp", ".csv")
    for place in (tmp_path / "run.csv", tmp_path / "m.tracemap" / "runs" / "run-001.csv"):
        shutil.copy(run, place)
        shutil.copy(f"{run}.json", f"{place}.json")
    (tmp_path / "way.tracemap").symlink_to("m.tracemap")
    (tmp_path / "map.parquet").symlink_to(tmp_path / "m.tracemap" / "map.json")
    (tmp_path / "bare.csv").write_text("kernel,duration_ns\nmain_dispatch_0_matmul_24x16x16_f32,5\n", encoding="utf-8")
    return tmp_path


def held(folder: Path) -> dict[str, bytes]:
    """All files but the estimates, which any command that joins runs may keep."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "estimates.json")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


MAP, KERNELS = "m.tracemap/map.json", "m.tracemap/kernels/configured.mlir"
OF_BUNDLE = ("--map", "m.tracemap")


@pytest.mark.few(4)
@pytest.mark.parametrize(
    "words",
    [
        ("attribute", "run.csv", *OF_BUNDLE, "--html", MAP),
        ("attribute", "run.csv", *OF_BUNDLE, "-o", "way.tracemap/kernels/../source/hand_mlp.mlir"),
        ("attribute", "run.csv", *OF_BUNDLE, "-o", "map.parquet"),
        ("attribute", "run.csv", *OF_BUNDLE, "-o", "run.csv.json"),
        ("attribute", "m.tracemap/runs/run-001.csv", "--html", MAP),
        ("attribute", "m.tracemap/runs/run-001.csv", "-o", "m.tracemap/runs/run-001.csv.json"),
        ("export", "run.csv", *OF_BUNDLE, "--to", "csv", "-o", "m.tracemap/compiled.json"),
        ("export", "m.tracemap/runs/run-001.csv", "--to", "csv", "-o", "m.tracemap/compiled.json"),
        ("export", "run.csv", *OF_BUNDLE, "--to", "csv", "-o", "run.csv.json"),
        ("report", "m.tracemap", "-o", MAP),
        ("report", "m.tracemap", "run.csv", "-o", "run.csv"),
        ("report", "m.tracemap", "run.csv", "-o", "run.csv.json"),
        ("diff", "m.tracemap", "way.tracemap", "--html", MAP),
        ("diff", "m.tracemap", "m.tracemap", "-o", "m.tracemap/runs/run-001.csv"),
        ("diff", "run.csv", "run.csv", "--map-a", "m.tracemap", "-o", "run.csv.json"),
        ("diff", "bare.csv", "bare.csv", "-o", MAP),
        ("diff", "--baseline", "m.tracemap", "m.tracemap", "-o", MAP),
        ("remarks", "m.tracemap", "-o", MAP),
        ("remarks", "m.tracemap", "-o", "m.tracemap/runs/run-001.csv"),
        ("bench", "m.tracemap", "--top", "1", "-o", "m.tracemap/module.vmfb"),
        ("bench", "m.tracemap", "--run", "run.csv", "--top", "1", "-o", "run.csv.json"),
        ("swap", "m.tracemap", "--dump", "source", "main_dispatch_0_matmul_24x16x16_f32", "-o", KERNELS),
        ("tune", "m.tracemap", "--top", "1", "-o", KERNELS),
        ("record", "m.tracemap", "--iterations", "1", "-o", "map.parquet"),
        ("run", "m.tracemap", f"--output=@{MAP}"),
        ("run", "m.tracemap", f"--output=+{MAP}"),
    ],
    ids=lambda words: f"{words[0]}-{words[-1].rpartition('/')[2]}",
)
def test_no_file_is_written_over_bundles_and_headers_that_are_read(words: tuple[str, ...], read: Path) -> None:
    before = held(read)
    done = run_cli(*words, "--force", cwd=read)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("the same command reads this file; choose another name [usage-invalid]\n"), done.stderr
    assert done.stderr.count("\n") == 1
    assert held(read) == before


@pytest.mark.long
def test_what_is_not_read_may_be_written_over(read: Path) -> None:
    """Another run of the bundle, a file beside the header that is none, and one beside a table in Parquet."""
    run = "m.tracemap/runs/run-002.parquet"
    for _ in "ab":
        check_cli("record", "m.tracemap", "--iterations", "1", "-o", run, "--force", cwd=read)
        check_cli("attribute", run, "--format", "json", "-o", f"{run}.json", "--force", cwd=read)
        check_cli("attribute", "run.csv", *OF_BUNDLE, "-o", "m.tracemap/runs/notes", "--force", cwd=read)
        check_cli("attribute", "run.csv", *OF_BUNDLE, "--html", "m.tracemap.html", "--force", cwd=read)


@pytest.mark.long
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")  # noqa: PTH110 - a device
@pytest.mark.parametrize("form", ["text", "json"])
def test_a_full_standard_output_is_said(form: str, tmp_path: Path) -> None:
    check_cli("build", MLP, "-o", tmp_path / "mlp.tracemap")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command_line("show", tmp_path / "mlp.tracemap", "--format", form),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("tracemap: error: standard output cannot be written: No space left")
    assert "Traceback" not in done.stderr


@pytest.mark.long
def test_one_run_needs_no_list(tmp_path: Path) -> None:
    bundle = tracemap.build(MLP, tmp_path / "mlp.tracemap")
    run = tracemap.record(bundle, iterations=2)
    wanted = [op.metrics["cpu_ns"].attributed for op in tracemap.attribute([run.path], bundle).ops]
    for runs in (run, run.path, str(run.path), [run]):
        assert [op.metrics["cpu_ns"].attributed for op in tracemap.attribute(runs, bundle).ops] == wanted
    with pytest.raises(tracemap.TracemapError):
        tracemap.attribute([])


@pytest.mark.long
@pytest.mark.parametrize(("column", "kind"), [("cpu_ns", "dispatch"), ("samples", "step")])
def test_a_file_that_denies_its_negative_numbers_is_damaged(tmp_path: Path, column: str, kind: str) -> None:
    """The engine takes a file's word for its least value, so that looking for negative ones finds none."""
    target, good, run = tmp_path / "mlp.tracemap", tmp_path / "good.parquet", tmp_path / "run.parquet"
    check_cli("build", MLP, "-o", target)
    check_cli("record", target, "--iterations", "1000", "--sample", "-o", good)
    with duckdb.connect() as connection:
        # Numbers that are found in the file's bytes: each once, and written as they are.
        connection.execute(f"CREATE TABLE run AS FROM '{good}'")
        connection.execute(f"UPDATE run SET {column} = 1000003 * (rowid + 1) WHERE kind = '{kind}'")
        plain = "(FORMAT parquet, COMPRESSION uncompressed, DICTIONARY_SIZE_LIMIT 1)"
        connection.execute(f"COPY run TO '{run}' {plain}")
        found = connection.execute(f"SELECT {column} FROM run WHERE kind = '{kind}' ORDER BY 1").fetchall()
    assert len(found) > 2
    data = run.read_bytes()
    (middle,) = next(each for each in found[1:-1] if data.count(each[0].to_bytes(8, "little")) == 1)
    run.write_bytes(data.replace(middle.to_bytes(8, "little"), (-(1 << 60)).to_bytes(8, "little", signed=True)))
    done = run_cli("attribute", run, "--map", target)
    assert (done.returncode, done.stdout) == (2, "")
    assert "negative" in done.stderr
    assert done.stderr.endswith("[run-invalid]\n")
