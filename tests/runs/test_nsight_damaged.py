"""NVIDIA's tables with odd or damaged content, and their use in other commands."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gpu import FILES, MISSES, OnGpu, changed, launches_of, sums_by_site, without
from tests.runs.test_readers import attributed, refusal
from tests.support import check_cli, json_cli, run_cli


@pytest.mark.long
def test_units_that_were_chosen_for_people_are_read(on_gpu: OnGpu, tmp_path: Path) -> None:
    """Without `--print-units base`: each time in a unit of its own."""

    def in_units(text: str) -> str:
        return re.sub(r'"ns","([\d,]+)"', lambda found: f'"us","{int(found[1].replace(",", "")) / 1000:,.3f}"', text)

    bundle = on_gpu("hand_repeat12")
    plain = attributed(FILES / "ncu-details.csv", bundle)
    assert sums_by_site(attributed(changed(tmp_path, "ncu-details.csv", in_units), bundle)) == sums_by_site(plain)
    trace = changed(
        tmp_path, "nsys-trace.csv", lambda text: text.replace("Start (ns),Duration (ns)", "Start (us),Duration (us)")
    )
    longer = attributed(trace, on_gpu("jax_gpt2_4l"))
    shorter = attributed(FILES / "nsys-trace.csv", on_gpu("jax_gpt2_4l"))
    assert sums_by_site(longer) == {site: 1000 * cost for site, cost in sums_by_site(shorter).items()}


def test_metrics_that_do_not_add_up_are_named(on_gpu: OnGpu, tmp_path: Path) -> None:
    file = changed(tmp_path, "ncu-details.csv", lambda text: text.replace(MISSES, "lts__t_sector_hit_rate.pct"))
    result = attributed(file, on_gpu("hand_repeat12"))
    (told,) = [each["message"] for each in result["diagnostics"] if each["slug"] == "metrics-left-out"]
    assert told.startswith("1 metric of Nsight Compute left out (lts__t_sector_hit_rate.pct)")
    assert [metric["name"] for metric in result["metrics"]] == ["duration_ns"]


def test_a_metric_that_no_kernel_has_is_named(on_gpu: OnGpu, tmp_path: Path) -> None:
    """One that the chip does not have."""
    file = changed(
        tmp_path,
        "ncu-details.csv",
        lambda text: re.sub(f'"{MISSES}","sector","[^"]*"', '"no__such.sum","","n/a"', text),
    )
    result = attributed(file, on_gpu("hand_repeat12"))
    assert "could not measure no__such.sum for any kernel" in json.dumps(result["diagnostics"])
    assert [metric["name"] for metric in result["metrics"]] == ["duration_ns"]


def test_what_could_not_be_measured_is_unknown(on_gpu: OnGpu, tmp_path: Path) -> None:
    """Of one launch: the others' misses stay."""
    file = changed(tmp_path, "ncu-output.csv", lambda text: text.replace('"ns","102,208"', '"","n/a"'))
    result = attributed(file, on_gpu("hand_mlp"))
    known = [time for kernel, time, _ in launches_of("ncu-output.csv") if "dispatch_1" not in kernel]
    assert sum(sums_by_site(result).values()) == sum(known)


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("ncu-details.csv", lambda text: text[:-20], "line 75: cannot be read as a table"),
        ("ncu-details.csv", lambda text: text.replace('"5","', '"5","more","more","more","more","', 1), "19 cells"),
        ("ncu-raw.csv", without(r'^"",""'), "row of units below the head is missing"),
        (
            "nsys-trace.csv",
            lambda text: text.replace(",1248,", ",-1248,").replace(",1249,", ",-1249,"),
            "is not a possible number",
        ),
        ("nsys-trace.csv", lambda text: text.replace("Start (ns)", "Start (days)"), "unknown unit 'days'"),
        ("nsys-trace.csv", without(r"^\d"), "nothing ran on the GPU"),
        ("ncu-output.csv", without(r'^"\d'), "no kernel was measured"),
        ("ncu-output.csv", without(r"^[^=]"), "no table: it profiled no kernel; the last message is: ==PROF== "),
        ("ncu-output.csv", lambda text: text.replace("mlp_dispatch_0_matmul_32x256x784_f32", ""), "names no kernel"),
    ],
)
def test_damaged_tables_are_refused(
    name: str, change: Callable[[str], str], said: str, on_gpu: OnGpu, tmp_path: Path
) -> None:
    assert said in refusal(changed(tmp_path, name, change), on_gpu("hand_mlp"))


def test_a_recording_that_was_not_printed_is_named(on_gpu: OnGpu, tmp_path: Path) -> None:
    (tmp_path / "run.ncu-rep").write_bytes(b"NVR\0" + bytes(64))
    assert "`ncu --import" in refusal(tmp_path / "run.ncu-rep", on_gpu("hand_mlp"))
    (tmp_path / "run.sqlite").write_bytes(b"SQLite format 3\0" + bytes(64))
    assert "`nsys stats" in refusal(tmp_path / "run.sqlite", on_gpu("hand_mlp"))


@pytest.mark.long
def test_results_are_of_use_in_other_commands(on_gpu: OnGpu, tmp_path: Path) -> None:
    """A store, a page and a comparison take the file as they take a run."""
    bundle, file = on_gpu("hand_repeat12"), FILES / "ncu-details.csv"
    check_cli("store", "add", file, "--store", tmp_path / "store", "--map", bundle)
    check_cli("attribute", file, "--map", bundle, "--html", tmp_path / "page.html")
    same = json_cli("diff", file, file, "--map-a", bundle, "--map-b", bundle)
    assert not [each for each in same["ops"] if each.get("finding")]
    done = run_cli("attribute", "-", "--map", bundle, stdin=file.read_bytes())
    assert done.returncode == 0


def test_a_window_is_refused(on_gpu: OnGpu) -> None:
    assert "cannot be limited to a window" in refusal(FILES / "nsys-mlp.csv", on_gpu("hand_mlp"), "--from", "0.1")


def test_a_column_of_users_is_theirs(on_gpu: OnGpu, tmp_path: Path) -> None:
    file = tmp_path / "own.csv"
    file.write_text("kernel,duration_ns,launch_on_queue,launch_order\nmlp_dispatch_0_matmul_32x256x784_f32,5,x,7\n")
    result = attributed(file, on_gpu("hand_mlp"))
    assert sums_by_site(result) == {"site0": 5}
    assert sums_by_site(result, "launch_order") == {"site0": 7}


def test_a_table_of_a_metric_with_a_long_name_has_room_for_its_figures(on_gpu: OnGpu) -> None:
    """Its name stands in the title and above its own column; the columns of its spread do without."""
    table = check_cli("attribute", FILES / "ncu-details.csv", "--map", on_gpu("hand_repeat12"), "--metric", MISSES)
    head = next(line for line in table.splitlines() if line.startswith("op "))
    assert head.count(MISSES) == 1
    assert re.search(r"share % +median +p10 +p90 +inclusive +low +high", head)


@pytest.mark.long
@pytest.mark.parametrize("name", ["nsys-trace.csv", "ncu-details.csv"])
def test_cells_may_be_parted_by_tabs(name: str, on_gpu: OnGpu, tmp_path: Path) -> None:
    """As `nsys stats --format tsv` writes them."""

    def by_tabs(text: str) -> str:
        return "".join("\t".join(row) + "\n" for row in csv.reader(text.splitlines()))

    bundle = on_gpu("hand_repeat12" if name.startswith("ncu") else "jax_gpt2_4l")
    plain = attributed(FILES / name, bundle)
    tabs = attributed(changed(tmp_path, name, by_tabs), bundle)
    assert sums_by_site(tabs) == sums_by_site(plain)
    assert tabs["metrics"] == plain["metrics"]
