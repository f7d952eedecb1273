"""Recordings of IREE's own runtime on the stand-ins: every launch of every call at its site, and `record`."""

from __future__ import annotations

import os
import subprocess
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from tests.gpu import OnGpu, sites_in_order, slugs
from tests.gpu.standins import StandIns, recorded_kernels, run_module, times_of
from tests.support import SAMPLES, Json, check_cli, command_line, json_cli, run_cli
from tracemap.commands.runs import join_runs
from tracemap.core.errors import RunInvalid
from tracemap.core.toolchain import no_progress
from tracemap.map.bundle import load
from tracemap.options.results import AttributeOptions
from tracemap.reports.page.overview_tab import roofline_of
from tracemap.runs.columns import LAUNCH
from tracemap.runs.cuda.recording import process_files
from tracemap.runs.model import ASSUMED_PEAKS
from tracemap.runs.readers.cuda_recording import read_cuda_recording
from tracemap.runs.runfile import read_run
from tracemap.runs.sql import open_database

CALLS = 200
STRAIGHT = {"jax_gpt2_4l": 61, "hand_repeat12": 12, "torch_resnet18_small": 33}
"""Launches per call on an H100 (tests/gpu/recorded)."""
LOOP = "hand_loop"


def attributed(recording: Path, bundle: Path, *options: str) -> Json:
    return json_cli("attribute", recording, "--map", bundle, *options)


def recorded_by_itself(
    standins: StandIns, tmp_path: Path, bundle: Path, model: str, *flags: str, calls: int = CALLS
) -> Path:
    folder = tmp_path / "recording"
    folder.mkdir()
    variables = standins.injected(folder) | standins.variables(times_of(tmp_path, model))
    run_module(bundle, model, variables, f"--benchmark_min_time={calls}x", *flags)
    return folder


def check_balance(result: Json) -> None:
    (metric,) = result["metrics"]
    rest = sum(row["metrics"]["duration_ns"] for row in result["unattributed"])
    assert metric["measured"] == metric["attributed"] + rest
    assert metric["unattributed"] == rest


@pytest.mark.few(1)
@pytest.mark.parametrize("model", [*STRAIGHT])
def test_each_launch_of_two_hundred_calls_is_at_its_site(
    standins: StandIns, tmp_path: Path, on_gpu: OnGpu, model: str
) -> None:
    bundle = on_gpu(model)
    result = attributed(recorded_by_itself(standins, tmp_path, bundle, model), bundle)
    expected = Counter(sites_in_order(bundle))
    assert sum(expected.values()) == STRAIGHT[model]
    calls = {site["site"]: site["calls"] for site in result["sites"] if site["calls"]}
    loaded = {site.id for site in load(bundle).graph.sites if site.initializer}
    assert {site: count for site, count in calls.items() if site not in loaded} == {
        site: CALLS * count for site, count in expected.items()
    }
    assert result["run"]["iterations"] == CALLS
    check_balance(result)
    assert not slugs(result) & {"sites-by-order", "split-evenly", "launches-astray", "records-lost"}


def test_launches_in_a_loop_are_at_their_sites(standins: StandIns, tmp_path: Path, on_gpu: OnGpu) -> None:
    bundle = on_gpu(LOOP)
    result = attributed(recorded_by_itself(standins, tmp_path, bundle, LOOP), bundle)
    calls = Counter({site["site"]: site["calls"] for site in result["sites"] if site["calls"]})
    by_kernel = Counter(kernel.name for kernel in recorded_kernels(LOOP)[:100])  # ten calls of ten launches
    kernel_of = {site.id: site.kernel.replace("$", "_") for site in load(bundle).graph.sites}
    counted = Counter[str]()
    for site, count in calls.items():
        counted[kernel_of[site]] += count
    assert {name: count * CALLS // 10 for name, count in by_kernel.items()} == dict(counted)
    assert "split-evenly" not in slugs(result)


@pytest.mark.long
@pytest.mark.parametrize("model", ["jax_gpt2_4l", "hand_repeat12"])
def test_launches_of_graphs_are_at_their_sites(standins: StandIns, tmp_path: Path, on_gpu: OnGpu, model: str) -> None:
    bundle = on_gpu(model)
    recording = recorded_by_itself(standins, tmp_path, bundle, model, "--cuda_use_streams=false", calls=20)
    result = attributed(recording, bundle)
    calls = {site["site"]: site["calls"] for site in result["sites"] if site["calls"]}
    assert calls == {site: 20 * count for site, count in Counter(sites_in_order(bundle)).items()}
    assert not slugs(result) & {"sites-by-order", "split-evenly", "launches-astray"}


def test_times_per_kernel_are_those_that_the_gpu_took(standins: StandIns, tmp_path: Path, on_gpu: OnGpu) -> None:
    """Equal layers, whose launches all have the same kernel, differ by what the GPU's times differ."""
    bundle = on_gpu("hand_repeat12")
    result = attributed(recorded_by_itself(standins, tmp_path, bundle, "hand_repeat12"), bundle)
    totals = [site["metrics"]["duration_ns"]["total"] for site in result["sites"]]
    launched = [kernel.ns for kernel in recorded_kernels("hand_repeat12")]
    replayed = [launched[number % len(launched)] for number in range(12 * CALLS)]
    assert totals == [sum(replayed[layer::12]) for layer in range(12)]


# ---- `record`


def record(
    standins: StandIns, run: Path, bundle: Path, model: str, *options: str, **faults: int | str
) -> subprocess.CompletedProcess[str]:
    times = times_of(run.parent, model)
    return subprocess.run(
        command_line("record", bundle, "--flagfile", SAMPLES / "flags" / f"{model}.flags", "-o", run, *options),
        env={**os.environ, **standins.variables(times, **faults)},
        cwd=SAMPLES,
        capture_output=True,
        text=True,
        check=False,
    )


def test_record_gives_calls_launches_and_elapsed_time(standins: StandIns, tmp_path: Path, on_gpu: OnGpu) -> None:
    bundle, run = on_gpu("jax_gpt2_4l"), tmp_path / "run.parquet"
    done = record(standins, run, bundle, "jax_gpt2_4l", "--iterations", "20", "--warmup", "2")
    assert done.returncode == 0, done.stderr
    table = duckdb.read_parquet(str(run))
    assert LAUNCH not in table.columns
    per_call = table.aggregate(
        "invocation, warmup, count(*) FILTER (kind = 'dispatch') AS launches, "
        "count(DISTINCT site) FILTER (kind = 'dispatch') AS sites, "
        "count(*) FILTER (kind = 'dispatch' AND submitted_ns <= start_ns) AS submitted",
        "invocation, warmup",
    )
    rows = {(call, warmup): tuple(rest) for call, warmup, *rest in per_call.fetchall() if call is not None}
    assert rows == {(call, call < 2): (61, 61, 61) for call in range(22)}
    moved = table.filter("kind = 'migration'").aggregate("count(*), min(payload_bytes), count(submitted_ns)").fetchall()
    assert moved[0][0] > 0  # inputs that the program put into managed memory before the first call
    assert moved[0][1:] > (0, 0)
    result = attributed(run, bundle)
    header = result["run"]
    assert (header["iterations"], header["device"]) == (20, "cuda")
    parts = {name: ns for name, ns in header["elapsed"].items() if name.endswith("_ns")}
    assert sum(parts.values()) == header["elapsed_ns"]
    outliers = [row["metrics"]["duration_ns"] for row in result["unattributed"] if row["reason"] == "outliers"]
    kernels = [site["metrics"]["duration_ns"]["total"] for site in result["sites"]]
    assert parts["kernels_ns"] == sum(kernels) + sum(outliers)
    assert header["elapsed"]["profiler_found_by"] == "stopped-clock"
    check_balance(result)
    roof = roofline_of(join_runs([run], load(bundle), AttributeOptions(), no_progress).costed)
    assert roof is not None
    assert (roof.source, roof.bytes_per_second) == ("specified", 3_352_320_000_000)
    assert not slugs(result) & {"sites-by-order", "split-evenly", "run-unverified", "device-clock"}
    assert {site["calls"] for site in result["sites"]} == {20}


def test_unknown_gpu_does_not_get_the_processors_peaks(standins: StandIns, tmp_path: Path, on_gpu: OnGpu) -> None:
    bundle, run = on_gpu("hand_repeat12"), tmp_path / "run.parquet"
    done = record(standins, run, bundle, "hand_repeat12", "--iterations", "1", capability=99)
    assert done.returncode == 0, done.stderr
    assert read_run(run).header.peaks == ASSUMED_PEAKS


@pytest.mark.long
def test_record_stops_by_its_rule_and_joins_launches(standins: StandIns, tmp_path: Path, on_gpu: OnGpu) -> None:
    bundle, run = on_gpu("hand_repeat12"), tmp_path / "run.parquet"
    done = record(standins, run, bundle, "hand_repeat12", "--seconds", "4", "--launches", "3")
    assert done.returncode == 0, done.stderr
    result = attributed(run, bundle)
    calls = result["run"]["iterations"]
    assert calls > 60
    assert {site["calls"] for site in result["sites"]} == {calls}
    assert "split-evenly" not in slugs(result)


@pytest.mark.long
@pytest.mark.parametrize("batch", [1, 4])
def test_calls_of_an_asynchronous_function_are_distinguished(standins: StandIns, tmp_path: Path, batch: int) -> None:
    bundle, run = tmp_path / "async.tracemap", tmp_path / "run.parquet"
    flags = ("--iree-cuda-target=sm_80", "--iree-execution-model=async-external")
    check_cli("build", SAMPLES / "models" / "hand_mlp.mlir", "--device", "cuda", "-o", bundle, "--", *flags)
    command = command_line(
        *("record", bundle, "--flagfile", SAMPLES / "flags" / "hand_mlp.flags", "--iterations", "8", "--warmup", "4"),
        *("-o", run, "--", f"--batch_size={batch}"),
    )
    done = subprocess.run(
        command,
        env={**os.environ, **standins.variables()},
        cwd=SAMPLES,  # from the root, Python takes the checkout's package, which an installation does not build
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    calls = (
        duckdb.read_parquet(str(run))
        .filter("kind = 'dispatch'")
        .aggregate("invocation, warmup, count(*), count(DISTINCT site)", "invocation, warmup")
    )
    assert sorted(calls.fetchall()) == [(call, call < 4, 4, 4) for call in range(12)]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("faults", "text"),
    [
        ({"cupti": 29}, "CUPTI of version 29 is not known"),
        ({"forbid": 1}, "NVreg_RestrictProfilingToAdminUsers=0"),
        ({"no_injection": 1}, "the CUDA driver did not load the library that CUDA_INJECTION64_PATH names"),
    ],
)
def test_record_says_why_it_cannot(
    standins: StandIns, tmp_path: Path, on_gpu: OnGpu, faults: dict[str, int], text: str
) -> None:
    done = record(
        standins, tmp_path / "run.parquet", on_gpu("hand_repeat12"), "hand_repeat12", "--iterations", "2", **faults
    )
    assert done.returncode == 2
    assert text in done.stderr
    assert "[device-unprofiled]" in done.stderr
    assert not (tmp_path / "run.parquet").exists()


def test_record_without_a_driver_names_it(tmp_path: Path, on_gpu: OnGpu) -> None:
    command = command_line("record", on_gpu("hand_repeat12"), "-o", tmp_path / "run.parquet", "--iterations", "1")
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    if "NVIDIA GPU" not in done.stderr and done.returncode == 0:
        pytest.skip("this machine has an NVIDIA GPU")
    assert done.returncode == 2
    assert "needs an NVIDIA GPU and its driver" in done.stderr


def test_record_does_not_replace_another_tools_library(tmp_path: Path, on_gpu: OnGpu) -> None:
    command = command_line("record", on_gpu("hand_repeat12"), "-o", tmp_path / "run.parquet", "--iterations", "1")
    variables = {**os.environ, "CUDA_INJECTION64_PATH": "/other/library.so"}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, "names another tool's library" in done.stderr) == (2, True)


def test_several_devices_and_parts_of_a_gpu_are_said(standins: StandIns, tmp_path: Path) -> None:
    standins.host(["kernel"], standins.injected(tmp_path, devices=2, mig=1), rounds=3)
    (path,) = process_files(tmp_path)
    with open_database() as connection:
        run = read_cuda_recording(path, connection)
        queues = {row[0].split("/")[0] for row in run.events.project("thread").fetchall()}
    assert queues == {"0", "1"}
    assert [note.slug for note in run.header.diagnostics] == ["several-devices", "device-part"]


def notes_of(folder: Path) -> list[str]:
    """The slugs of a recording's diagnostics."""
    (path,) = process_files(folder)
    with open_database() as connection:
        return [note.slug for note in read_cuda_recording(path, connection).header.diagnostics]


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:-size])


def remove(path: Path, _size: int) -> None:
    path.unlink()


def empty(path: Path, size: int) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: -2 * size] + bytes(2 * size))


@pytest.mark.parametrize(("damage", "part"), [(cut, 0), (cut, 1), (remove, 1), (empty, 0), (empty, 1)])
def test_recording_that_lacks_records_is_refused(
    standins: StandIns, tmp_path: Path, damage: Callable[[Path, int], None], part: int
) -> None:
    standins.host(["kernel"], standins.injected(tmp_path, {"TRACEMAP_CUDA_MB": "8"}), rounds=6000)
    files = sorted(tmp_path.glob("*.activity"))
    assert len(files) == 2
    assert notes_of(tmp_path) == []
    damage(files[part], 104)
    with pytest.raises(RunInvalid, match=r"cut off, damaged or not copied|has kind 0, which is unknown"):
        notes_of(tmp_path)


def test_recording_without_its_first_file_begins_late(standins: StandIns, tmp_path: Path) -> None:
    standins.host(["kernel"], standins.injected(tmp_path, {"TRACEMAP_CUDA_MB": "8"}), rounds=6000)
    next(tmp_path.glob("*-0.activity")).unlink()
    assert notes_of(tmp_path) == ["begins-late"]


@pytest.mark.parametrize(("then", "notes"), [("exit", []), ("kill", ["program-killed"])])
def test_end_of_a_killed_program_is_said_to_be_missing(
    standins: StandIns, tmp_path: Path, then: str, notes: list[str]
) -> None:
    standins.host(["kernel"], standins.injected(tmp_path), then=then)
    assert notes_of(tmp_path) == notes


def test_lost_records_are_said_and_sites_are_no_longer_exact(standins: StandIns, tmp_path: Path, on_gpu: OnGpu) -> None:
    names = [kernel.name for kernel in recorded_kernels("jax_gpt2_4l")][34:95]  # one whole invocation
    standins.host(names, standins.injected(tmp_path, drop=50), rounds=5)
    result = attributed(tmp_path, on_gpu("jax_gpt2_4l"))
    assert "records-lost" in slugs(result)
    assert slugs(result) & {"sites-by-order", "launches-astray"}
    check_balance(result)


def test_statistics_of_a_gpu_recording_name_the_command_that_reads_it(standins: StandIns, tmp_path: Path) -> None:
    standins.host(["kernel"], standins.injected(tmp_path))
    done = run_cli("stats", tmp_path)
    assert (done.returncode, f"tracemap attribute {tmp_path}" in done.stderr) == (2, True)


# ---- counters, by CUPTI's range profiler

MISSES = "lts__t_sectors_srcunit_tex_lookup_miss.sum"


def count_of(kernel: str, metric: str, number: int) -> int:
    """The stand-in's count of a kernel's launch with this number among its launches."""
    return zlib.crc32(f"{kernel} {metric}".encode()) % 1000 + number


@pytest.mark.parametrize("calls", [3, pytest.param(100, marks=pytest.mark.long)])  # the latter takes several sessions
def test_counters_are_those_of_each_launch(standins: StandIns, tmp_path: Path, on_gpu: OnGpu, calls: int) -> None:
    bundle, run = on_gpu("hand_repeat12"), tmp_path / "run.parquet"
    options = ("--counters", "l2-misses,dram-bytes", "--iterations", str(calls), "--warmup", "1")
    done = record(standins, run, bundle, "hand_repeat12", *options)
    assert done.returncode == 0, done.stderr
    result = attributed(run, bundle)
    (kernel,) = {site.kernel.replace("$", "_") for site in load(bundle).graph.sites}
    totals = {site["site"]: site["metrics"]["l2-misses"]["total"] for site in result["sites"]}
    # The launches of the warm-up invocation are the first twelve.
    assert totals == {
        f"site{layer}": sum(count_of(kernel, MISSES, 12 * call + layer) for call in range(1, calls + 1))
        for layer in range(12)
    }
    units = {item["name"]: item["unit"] for item in result["metrics"]}
    assert units == {"duration_ns": "ns", "l2-misses": "count", "dram-bytes": "bytes"}
    assert "counted-apart" in done.stderr or "counted-apart" in slugs(result)
    assert "counters-unmatched" not in slugs(result)


@pytest.mark.parametrize(
    ("faults", "texts"),
    [
        ({"forbid_counters": 1}, ("ERR_NVGPUCTRPERM", "NVreg_RestrictProfilingToAdminUsers=0")),
        ({"lacks": MISSES}, ("counts none of these events",)),
    ],
)
def test_counters_that_are_refused_say_why(
    standins: StandIns, tmp_path: Path, on_gpu: OnGpu, faults: dict[str, int | str], texts: tuple[str, ...]
) -> None:
    bundle, run = on_gpu("hand_repeat12"), tmp_path / "run.parquet"
    done = record(standins, run, bundle, "hand_repeat12", "--counters", "l2-misses", "--iterations", "2", **faults)
    assert done.returncode == 0, done.stderr
    assert all(text in done.stderr for text in texts), done.stderr
    assert run.is_file()


def test_events_that_the_chip_lacks_are_named_and_the_others_counted(
    standins: StandIns, tmp_path: Path, on_gpu: OnGpu
) -> None:
    bundle, run = on_gpu("hand_repeat12"), tmp_path / "run.parquet"
    options = ("--counters", "l2-misses,dram-bytes", "--iterations", "2")
    done = record(standins, run, bundle, "hand_repeat12", *options, lacks=MISSES)
    assert done.returncode == 0, done.stderr
    assert "this GPU does not count l2-misses" in done.stderr
    assert {"dram-bytes"} <= {item["name"] for item in attributed(run, bundle)["metrics"]}


def test_events_of_gpus_have_nvidias_names(tmp_path: Path, on_gpu: OnGpu) -> None:
    listed = {row["name"]: row["setting"] for row in json_cli("events", "--device", "cuda")["events"]}
    assert listed["dram-bytes"] == "dram__bytes.sum"
    done = run_cli("record", on_gpu("hand_repeat12"), "-o", tmp_path / "run.parquet", "--counters", "cache-misses")
    assert (done.returncode, "'cache-misses' is no event of a GPU" in done.stderr) == (2, True)


@pytest.mark.parametrize("options", [("--sample",), ("--keep-profile",)])
def test_options_that_cuda_lacks_are_refused(tmp_path: Path, on_gpu: OnGpu, options: tuple[str, ...]) -> None:
    done = run_cli("record", on_gpu("hand_repeat12"), "-o", tmp_path / "run.parquet", *options)
    assert (done.returncode, "does not work on CUDA devices" in done.stderr) == (2, True)


# ---- services


def test_variables_make_a_service_record_itself(standins: StandIns, tmp_path: Path, on_gpu: OnGpu) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    words = command_line("hook", "env", "-o", folder, "--device", "cuda", "--thread-mb", "64", "--keep", "newest")
    printed = subprocess.run(words, cwd=SAMPLES, capture_output=True, text=True, check=True).stdout
    settings = dict(line.split("=", 1) for line in printed.splitlines())
    assert settings["TRACEMAP_CUDA_MB"] == "64"
    assert Path(settings["CUDA_INJECTION64_PATH"]).is_file()
    variables = {**settings, **standins.variables(), "TRACEMAP_CUDA_OUTPUT": str(folder)}
    names = [kernel.name for kernel in recorded_kernels("hand_repeat12")][:12]
    standins.host(names, variables, rounds=30, then="term")
    result = attributed(folder, on_gpu("hand_repeat12"))
    assert {site["calls"] for site in result["sites"]} == {30}
    assert result["run"]["iterations"] == 30


def test_folder_with_several_processes_is_refused_by_name(standins: StandIns, tmp_path: Path, on_gpu: OnGpu) -> None:
    for _ in range(2):
        standins.host(["kernel"], standins.injected(tmp_path))
    done = run_cli("attribute", tmp_path, "--map", on_gpu("hand_repeat12"))
    assert (done.returncode, "has recordings of 2 processes" in done.stderr) == (2, True)
