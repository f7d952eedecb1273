"""Runs of other tools: sample files of each tool, with independently made truths."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import subprocess
from collections import Counter
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import Built
from tests.hook import support
from tests.support import ROOT, SAMPLES, Json, check_cli, json_cli, made_once, run_cli
from tests.tables import printed_table
from tracemap.core.toolchain import find_tool
from tracemap.core.units import UNKNOWN
from tracemap.machine.images import addresses_at, read_images
from tracemap.map.bundle import load

FOREIGN = ROOT / "tests" / "programs" / "foreign"


@pytest.fixture(scope="module")
def profile(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three calls of the perceptron's bundle, profiled without tracemap."""
    target = tmp_path_factory.mktemp("profile") / "mlp.ireeprof"
    tool = support.tool_command("iree-benchmark-module", module_of(built), "local-task", support.PROFILING)
    support.run([*tool, f"--device_profiling_output={target}"])
    return target


def module_of(built: Built) -> Path:
    return built("hand_mlp") / "module.vmfb"


def printed(profile: Path, target: Path, *options: str) -> Path:
    """What iree-profile prints of a profile."""
    target.write_text(support.run([find_tool("iree-profile"), *options, profile]), encoding="utf-8")
    return target


def attributed(run: Path, bundle: Path, *options: str) -> Json:
    return json_cli("attribute", run, "--map", bundle, *options)


def refusal(run: Path, bundle: Path, *options: str | Path) -> str:
    """The one sentence with which a file is refused."""
    done = run_cli("attribute", run, "--map", bundle, *options)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    return done.stderr


def without_diagnostics(result: Json) -> Json:
    return {key: value for key, value in result.items() if key != "diagnostics"}


# ---- iree-profile


@pytest.mark.long
def test_an_export_tells_what_its_profile_tells(profile: Path, built: Built, tmp_path: Path) -> None:
    """Whatever the file is called, and through a pipe."""
    bundle = built("hand_mlp")
    export = printed(profile, tmp_path / "profile.txt", "export", "--format=ireeperf-jsonl", "--output=-")
    told = attributed(export, bundle)
    assert without_diagnostics(told) == without_diagnostics(attributed(profile, bundle))
    assert told["metrics"][0]["measured"] > 0
    piped = run_cli("attribute", "-", "--map", bundle, "--format", "json", stdin=export.read_bytes())
    assert without_diagnostics(json.loads(piped.stdout)) == without_diagnostics(told)
    check_cli("report", bundle, export, "-o", tmp_path / "page.html")
    check_cli("diff", export, profile, "--map-a", bundle, "--map-b", bundle)
    check_cli("export", export, "--map", bundle, "--to", "speedscope", "-o", tmp_path / "run.speedscope.json")


def test_an_export_that_is_none_is_refused(profile: Path, built: Built, tmp_path: Path) -> None:
    bundle = built("hand_mlp")
    export = printed(profile, tmp_path / "run.jsonl", "export", "--format=ireeperf-jsonl", "--output=-")
    text = export.read_text(encoding="utf-8")
    within_a_line = text.index("\n", len(text) // 2) + 10  # a text that ends with a line is a whole one
    export.write_text(text[:within_a_line], encoding="utf-8")
    assert "run.jsonl: not an export of iree-profile: " in refusal(export, bundle)
    export.write_text(text.partition("\n")[0] + "\n", encoding="utf-8")
    assert refusal(export, bundle).endswith("[run-empty]\n")
    export.write_text(text.replace('"schema_version":15', '"schema_version":14'), encoding="utf-8")
    assert refusal(export, bundle).endswith("[run-version]\n")
    (tmp_path / "other.json").write_text('{"traceEvents": []}', encoding="utf-8")
    assert "is JSON, but not a run" in refusal(tmp_path / "other.json", bundle)


def test_a_profile_may_be_called_anything(profile: Path, built: Built, tmp_path: Path) -> None:
    shutil.copy(profile, tmp_path / "run.csv")
    bundle = built("hand_mlp")
    assert without_diagnostics(attributed(tmp_path / "run.csv", bundle)) == without_diagnostics(
        attributed(profile, bundle)
    )


def sums_by_kernel(run: Path, bundle: Path) -> dict[str, tuple[int, int, int]]:
    """Of each kernel what the sites of a result have in all: calls, CPU time and duration."""
    found: dict[str, tuple[int, int, int]] = {}
    kernels = {site["id"]: site["kernel"] for site in json_cli("show", bundle)["sites"]}
    for site in attributed(run, bundle, "--keep-outliers")["sites"]:
        metrics = site["metrics"]
        mine = (site["calls"], *(metrics[name]["total"] for name in ("cpu_ns", "duration_ns")))
        calls, cpu_ns, duration_ns = found.get(kernels[site["site"]], (0, 0, 0))
        found[kernels[site["site"]]] = (calls + mine[0], cpu_ns + mine[1], duration_ns + mine[2])
    return found


REPORTS = {
    "dispatch": ("dispatch",),
    "executable": ("executable",),
    "statistics": ("statistics",),
    "events": ("dispatch", "--dispatch_events"),
}


@pytest.mark.long
@pytest.mark.parametrize("report", REPORTS)
def test_a_report_of_a_profile_has_its_sums(report: str, profile: Path, built: Built, tmp_path: Path) -> None:
    """What iree-profile adds up is what tracemap adds up of the same profile."""
    bundle = built("hand_mlp")
    file = printed(profile, tmp_path / "report", *REPORTS[report], "--format=jsonl")
    assert sums_by_kernel(file, bundle) == sums_by_kernel(profile, bundle)
    slugs = {told["slug"] for told in attributed(file, bundle)["diagnostics"]}
    assert ("means-only" in slugs) == (report != "events")


def test_reports_that_tell_no_times_of_kernels_are_refused(profile: Path, built: Built, tmp_path: Path) -> None:
    bundle = built("hand_mlp")
    for command in ("summary", "explain", "command", "queue", "cat"):
        file = printed(profile, tmp_path / command, command, "--format=jsonl")
        assert "does not have the times of all kernels" in refusal(file, bundle)
    both = tmp_path / "both"
    texts = [
        printed(profile, tmp_path / name, name, "--format=jsonl").read_text() for name in ("dispatch", "executable")
    ]
    both.write_text("".join(texts), encoding="utf-8")
    assert "several commands of iree-profile" in refusal(both, bundle)


def test_a_filter_is_told(profile: Path, built: Built, tmp_path: Path) -> None:
    file = printed(profile, tmp_path / "some", "dispatch", "--format=jsonl", "--filter=*matmul*")
    result = attributed(file, built("hand_mlp"))
    assert [told["message"] for told in result["diagnostics"] if told["slug"] == "filtered"] == [
        "iree-profile printed only the dispatches that match --filter='*matmul*'"
    ]
    assert sum(site["calls"] > 0 for site in result["sites"]) == 3


# ---- Google Benchmark


def benchmark(built: Built, target: Path, *flags: str, model: str = "hand_mlp") -> Json:
    """The statistics of dispatches as iree-benchmark-module prints them."""
    tool = [str(find_tool("iree-benchmark-module")), f"--module={built(model) / 'module.vmfb'}", "--device=local-task"]
    fixed = ("--dispatch_statistics=true", "--benchmark_format=json", f"--flagfile=flags/{model}.flags")
    target.write_text(support.run([*tool, *fixed, *flags]), encoding="utf-8")
    parsed: Json = json.loads(target.read_text(encoding="utf-8"))
    return parsed


def test_statistics_of_dispatches_keep_their_sums(built: Built, tmp_path: Path) -> None:
    """Repetitions are added up, rows of aggregates are not; a kernel of twelve sites is split evenly."""
    bundle = built("hand_repeat12")
    file = tmp_path / "benchmark.json"
    repeated = ("--benchmark_min_time=4x", "--benchmark_repetitions=3")
    report = benchmark(built, file, *repeated, model="hand_repeat12")
    rows = [row for row in report["benchmarks"] if "calls" in row]
    truth = {
        row["name"].partition("/")[2]: (
            round(row["calls"] * 12),
            round(row["cpu_time"] * 12 * 1e6),
            round(row["real_time"] * 12 * 1e6),
        )
        for row in rows
    }
    assert sums_by_kernel(file, bundle) == truth
    result = attributed(file, bundle)
    calls = [row["real_time"] for row in report["benchmarks"] if row["run_type"] == "iteration" and "calls" not in row]
    assert len(calls) == 3
    assert result["run"]["iterations"] == 12
    assert result["run"]["elapsed_ns"] == pytest.approx(sum(calls) * 4 * 1e6, abs=3)
    assert {"means-only", "split-evenly"} <= {told["slug"] for told in result["diagnostics"]}
    shared = [site["metrics"]["cpu_ns"]["total"] for site in result["sites"] if site["calls"] == 12]
    assert max(shared) - min(shared) <= 1 + max(shared) // 1000


def test_means_that_differ_by_rounding_are_no_disturbance(built: Built, tmp_path: Path) -> None:
    file = tmp_path / "benchmark.json"
    report = benchmark(built, file, "--benchmark_min_time=200x")
    ran = [row for row in report["benchmarks"] if "calls" in row]
    rounded = [row for row in ran if round(row["cpu_time"] * 200 * 1e6) % round(row["calls"] * 200)]
    assert rounded, "the time of every kernel is a multiple of its calls, which happens once in 10^8"
    result = attributed(file, built("hand_mlp"))
    assert "noise" not in {row["reason"] for row in result["unattributed"]}
    assert [metric["unattributed"] for metric in result["metrics"]] == [0, 0]
    told = {each["slug"]: each["message"] for each in result["diagnostics"]}
    assert told["run-unverified"].startswith("benchmark.json does not say")
    assert "(median, p10, p90) are unknown" in told["invocations-unknown"]


def test_a_benchmark_tells_its_machine(built: Built, tmp_path: Path) -> None:
    from tracemap.runs.readers.open_run import open_run

    report = benchmark(built, tmp_path / "benchmark.json", "--benchmark_min_time=2x")
    header = open_run(tmp_path / "benchmark.json", tmp_path).header
    assert header.machine.host == report["context"]["host_name"]
    assert header.machine.processors == report["context"]["num_cpus"]
    told = datetime.fromisoformat(report["context"]["date"]).timestamp()
    assert header.machine.recorded_ns == int(told) * 10**9
    assert (header.function, header.iterations) == ("mlp", 2)
    assert header.tools == (f"Google Benchmark {report['context']['library_version']}",)
    report["context"]["date"] = "9999-12-31T00:00:00+00:00"  # of a clock that is out of its mind
    (tmp_path / "benchmark.json").write_text(json.dumps(report), encoding="utf-8")
    assert open_run(tmp_path / "benchmark.json", tmp_path).header.machine.recorded_ns is UNKNOWN


def test_benchmarks_without_dispatches_are_refused(built: Built, tmp_path: Path) -> None:
    bundle = built("hand_mlp")
    report = benchmark(built, tmp_path / "benchmark.json", "--benchmark_min_time=2x")
    rows = report["benchmarks"]

    def refused(rows: list[Json]) -> str:
        file = tmp_path / "changed.json"
        file.write_text(json.dumps(report | {"benchmarks": rows}), encoding="utf-8")
        return refusal(file, bundle)

    assert "--dispatch_statistics=true" in refused(rows[:1])
    assert "unknown time_unit 'h'" in refused([*rows[:1], rows[1] | {"time_unit": "h"}])
    assert "more than the limit of 20,000,000" in refused([rows[1] | {"iterations": 10**9}])
    assert "has impossible times, calls or iterations" in refused([rows[1] | {"iterations": -1}])
    assert refused([rows[1] | {"calls": 0}]).endswith("[run-empty]\n")
    assert "Expected `float`" in refused([rows[1] | {"real_time": "much"}])
    failed = {"error_occurred": True, "error_message": "no device"}
    assert "failed: 'no device'" in refused([*rows, rows[1] | failed])
    (tmp_path / "changed.json").write_text(json.dumps(report)[:-9], encoding="utf-8")
    assert "not an output of Google Benchmark, or damaged" in refusal(tmp_path / "changed.json", bundle)


# ---- IREE's hook


KERNEL = "mlp_dispatch_1_matmul_32x128x256_f32"


@pytest.fixture(scope="module")
def hooked(built: Built, made: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The calls of a kernel as IREE's hook writes them, a file for each worker, and a profile of the same execution."""
    support.need_compiler()
    folder = tmp_path_factory.mktemp("hook")
    profile = folder / "mlp.ireeprof"
    variables = {
        "LD_PRELOAD": str(support.built_library(made)),
        "IREE_HOOK_FILTER_NAME": KERNEL,
        "IREE_HOOK_OUTPUT_CSV": str(folder),
    }
    tool = support.tool_command("iree-benchmark-module", module_of(built), "local-task", support.PROFILING)
    support.run([*tool, f"--device_profiling_output={profile}"], variables)
    return folder, profile


@pytest.mark.long
def test_calls_of_irees_hook_are_those_of_the_profile(hooked: tuple[Path, Path], built: Built, tmp_path: Path) -> None:
    folder, profile = hooked
    bundle = built("hand_mlp")
    files = sorted(folder.glob("iree_hook_*.csv"))
    result = json_cli("attribute", *files, "--map", bundle, "--dispatch", KERNEL, "--keep-outliers")
    (site,) = [site for site in result["sites"] if site["calls"]]
    assert site["calls"] == support.tiles_of_profile(profile)[KERNEL]
    lines = [line.split(",") for file in files for line in file.read_text(encoding="utf-8").splitlines()[1:]]
    assert site["metrics"]["cpu_ns"]["total"] == sum(round(float(line[3]) * 1000) for line in lines)
    assert list(site["metrics"]) == ["cpu_ns"]
    assert "calls-of-workgroups" in {told["slug"] for told in result["diagnostics"]}
    check_cli("report", bundle, files[0], "--dispatch", KERNEL, "-o", tmp_path / "page.html")
    check_cli("diff", files[0], files[0], "--map-a", bundle, "--map-b", bundle, "--dispatch", KERNEL)
    check_cli("export", files[0], "--map", bundle, "--dispatch", KERNEL, "--to", "csv", "-o", tmp_path / "run.csv")


def test_events_of_irees_hook_are_metrics(built: Built, tmp_path: Path) -> None:
    """Counts are whole numbers; those that were scaled are not."""
    calls = tmp_path / "iree_hook_w.csv"
    calls.write_text(
        "thread,cpu,node,duration_us,page-faults,=cycles\nw,0,0,1.5,3,1.25\nw,1,0,2.5,,2\n", encoding="utf-8"
    )
    result = attributed(calls, built("hand_mlp"), "--dispatch", KERNEL)
    assert [(metric["name"], metric["unit"], metric["measured"]) for metric in result["metrics"]] == [
        ("cpu_ns", "ns", 4000),
        ("page-faults", "count", 3),
        ("=cycles", "millionths", 3_250_000),
    ]


@pytest.mark.long
def test_calls_of_irees_hook_need_their_kernel(built: Built, tmp_path: Path) -> None:
    bundle = built("hand_mlp")
    calls = tmp_path / "calls"

    def refused(text: str, *options: str) -> str:
        calls.write_text("thread,cpu,node,duration_us,faults\n" + text, encoding="utf-8")
        return refusal(calls, bundle, *options)

    named = ("--dispatch", KERNEL)
    assert "pass it with --dispatch [usage-invalid]" in refused("w,0,0,1.5,3\n")
    assert refused("").endswith("[run-empty]\n")
    assert "other: no op, function, scope, line, dispatch or kernel" in refused("w,0,0,1.5,3\n", "--dispatch", "other")
    assert "line 3, column duration_us: 'much' is not a number" in refused("w,0,0,1.5,3\nw,0,0,much,3\n", *named)
    assert "line 2, column duration_us: '-1' is a negative time" in refused("w,0,0,-1,3\n", *named)
    assert "line 2: 2 cells, but the header names 5 columns" in refused("w,0\n", *named)
    calls.write_text("thread,cpu,node,duration_us,Kind\nw,0,0,1.5,3\n", encoding="utf-8")
    assert "the event 'Kind' has the name of a column of runs" in refusal(calls, bundle, *named)
    calls.write_text("thread\tcpu\tnode\tduration_us\tone;two\nw\t0\t0\t1.5\t3\n", encoding="utf-8")
    assert "separated by commas, semicolons and tabs; use only commas [run-invalid]" in refusal(calls, bundle, *named)
    calls.write_text(f"kernel,cpu_ns\n{KERNEL},3\n", encoding="utf-8")
    assert "names its kernels itself" in refusal(calls, bundle, *named)


# ---- Tracy


ZONES = FOREIGN / "tracy-zones.csv"
EACH_ZONE = FOREIGN / "tracy-each-zone.csv"
"""The perceptron, called twice: `iree-benchmark-module --device=local-sync` of IREE's instrumented runtime 3.13, whose
`iree-tracy-capture` was read by `tracy-csvexport -f dispatch`, the second time with `-u`. It was built from the sources
of Tracy 0.12.0, as no package has it."""


def zone_sums(file: Path, time: str) -> dict[str, tuple[int, int]]:
    """Calls and time of each kernel, as a plain reader of CSV adds them up."""
    found: dict[str, tuple[int, int]] = {}
    with file.open(encoding="utf-8", newline="") as text:
        for row in csv.DictReader(text):
            if row["src_file"] == "-":
                calls, ns = found.get(row["name"], (0, 0))
                found[row["name"]] = (calls + int(row.get("counts", 1)), ns + int(row[time]))
    return found


@pytest.mark.parametrize(("file", "time"), [(ZONES, "total_ns"), (EACH_ZONE, "exec_time_ns")], ids=["sums", "each"])
def test_zones_of_tracy_keep_their_sums(file: Path, time: str, built: Built) -> None:
    bundle = built("hand_mlp")
    truth = zone_sums(file, time)
    assert len(truth) == 4
    result = attributed(file, bundle, "--keep-outliers")
    kernels = {site["id"]: site["kernel"] for site in json_cli("show", bundle)["sites"]}
    assert {
        kernels[site["site"]]: (site["calls"], site["metrics"]["cpu_ns"]["total"]) for site in result["sites"]
    } == truth
    slugs = {told["slug"] for told in result["diagnostics"]}
    assert "calls-of-workgroups" in slugs
    assert ("means-only" in slugs, "zones-left-out" in slugs) == ((True, False) if file == ZONES else (False, True))


def test_tables_of_tracy_tell_the_same() -> None:
    assert zone_sums(ZONES, "total_ns") == zone_sums(EACH_ZONE, "exec_time_ns")


def test_zones_with_texts_and_plots_are_passed_over(built: Built, tmp_path: Path) -> None:
    """Of zones that csvexport.cpp joins with no quotes, texts may have commas and line ends; -p adds rows of plots."""
    text = EACH_ZONE.read_text(encoding="utf-8")
    more = "iree_flags_parse,c/flags.c,455,9,291784,1,--a=1\n--b,with,commas\n\nlast\nheap,,,1000,,,4096.000000\n"
    (tmp_path / "zones.csv").write_text(text + more, encoding="utf-8")
    bundle = built("hand_mlp")
    assert attributed(tmp_path / "zones.csv", bundle)["sites"] == attributed(EACH_ZONE, bundle)["sites"]


def test_zones_of_a_gpu(built: Built, tmp_path: Path) -> None:
    """Made by hand, as csvexport/src/csvexport.cpp of Tracy writes it with -g: no device here has such zones."""
    zones = "name,src_file,Time from start of program,GPU execution time\n"
    zones += (
        f"{KERNEL},model.mlir,1000,70\niree_hal_stream_tracing,c/runtime/src/iree/hal/utils/stream_tracing.c,1000,80\n"
    )
    (tmp_path / "gpu.csv").write_text(zones + f"{KERNEL},model.mlir,2000,50\n", encoding="utf-8")
    result = attributed(tmp_path / "gpu.csv", built("hand_mlp"))
    assert [(metric["name"], metric["measured"]) for metric in result["metrics"]] == [("duration_ns", 120)]


def test_zones_that_tell_no_kernels_are_refused(built: Built, tmp_path: Path) -> None:
    bundle = built("hand_mlp")
    lines = ZONES.read_text(encoding="utf-8").splitlines(keepends=True)
    file = tmp_path / "zones.csv"
    file.write_text("".join(line for line in lines if KERNEL[:12] not in line), encoding="utf-8")
    assert "is the zone of a kernel: IREE's instrumented runtime" in refusal(file, bundle)
    file.write_text("".join(lines).replace(",16,", ",many,"), encoding="utf-8")
    assert "is no row of tracy-csvexport" in refusal(file, bundle)
    (tmp_path / "run.tracy").write_bytes(b"tr\xfdP\x01\x04")
    assert "convert it first with `tracy-csvexport`" in refusal(tmp_path / "run.tracy", bundle)


# ---- perf


PRINTED = FOREIGN / "perf-script.txt"
CALLERS = FOREIGN / "perf-script-callers.txt"
"""The perceptron, compiled with --iree-llvmcpu-link-embedded=false for x86-64-v3 and sampled by perf 6.1 with `-e
cpu-clock`, as `perf script` prints it; the second time with the callers of each sample (`perf record -g`)."""


@pytest.fixture(scope="module")
def system(made: Path) -> Path:
    """The perceptron's bundle with a kernel library that the dynamic linker maps."""
    bundle = made / "hand_mlp-system.tracemap"
    with made_once(bundle) as missing:
        if missing:
            flags = ("--iree-llvmcpu-link-embedded=false", support.system_linker())
            check_cli("build", SAMPLES / "models" / "hand_mlp.mlir", "-o", bundle, "--", *flags)
    return bundle


def told_of_samples(result: Json) -> str:
    (told,) = [told["message"] for told in result["diagnostics"] if told["slug"] == "sampled"]
    return str(told)


@pytest.mark.long
def test_samples_of_perf_are_counted(system: Path) -> None:
    result = attributed(PRINTED, system)
    (metric,) = result["metrics"]
    lines = PRINTED.read_text(encoding="utf-8").splitlines()
    assert (metric["name"], metric["measured"]) == ("samples", len(lines))
    inside = sum("(/tmp/iree_dylib_" in line for line in lines)
    share = f"{100 * inside / len(lines):.1f} %"
    assert told_of_samples(result).startswith(f"{len(lines)} samples of cpu-clock by perf: {share} in kernels, ")
    outside = [row["metrics"]["samples"] for row in result["unattributed"] if row["reason"] == "outside-kernels"]
    assert outside == [len(lines) - inside]


@pytest.mark.long
def test_samples_alone_tell_of_no_calls(system: Path, tmp_path: Path) -> None:
    result = attributed(PRINTED, system)
    assert {place["calls"] for place in (*result["ops"], *result["sites"])} == {None}
    words = (PRINTED, "--map", system)
    text = check_cli("attribute", *words, "--by", "site", "--notes", "--html", tmp_path / "page.html")
    assert "4 dispatches: all traced to ops, number of executions unknown" in text
    assert "calls" not in printed_table(text, "Dispatch sites by ")[0]
    rows = list(csv.DictReader(io.StringIO(check_cli("attribute", *words, "--format", "csv"))))
    assert {row["calls"] for row in rows} == {""}
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert '<td class="num" title="unknown: the run does not record it">–</td>' in page


def test_of_callers_only_the_sample_counts(system: Path, tmp_path: Path) -> None:
    """With the line of the event above each sample, and (`-F ip,sym,symoff,dso`) with nothing but an empty line."""
    blocks = CALLERS.read_text(encoding="utf-8").strip().split("\n\n")
    inside = sum("iree_dylib_" in block.splitlines()[1] for block in blocks)
    assert sum(block.count("iree_dylib_") for block in blocks) >= inside > 20
    bare = tmp_path / "bare"
    bare.write_text("\n\n".join(block.partition("\n")[2] for block in blocks) + "\n", encoding="utf-8")
    for file in (CALLERS, bare):
        result = attributed(file, system)
        assert result["metrics"][0]["measured"] == len(blocks)
        assert f": {100 * inside / len(blocks):.1f} % in kernels" in told_of_samples(result)


@pytest.mark.long
def test_samples_of_perf_are_placed_to_the_line(system: Path, tmp_path: Path) -> None:
    """The truth is made of addresses and of where the library was mapped, not of the symbols that perf names."""
    perf = shutil.which("perf")
    if perf is None:
        pytest.skip("perf is not installed")
    tool = [str(find_tool("iree-benchmark-module")), f"--module={system / 'module.vmfb'}", "--device=local-task"]
    call = [*tool, "--flagfile=flags/hand_mlp.flags", "--benchmark_min_time=200x"]
    data = tmp_path / "perf.data"
    command = [perf, "record", "-e", "cpu-clock:u", "-F", "4000", "-o", str(data), *call]
    environment = {**os.environ, "IREE_PRESERVE_DYLIB_TEMP_FILES": str(tmp_path)}
    recorded = subprocess.run(command, env=environment, cwd=SAMPLES, capture_output=True, text=True, check=False)
    if recorded.returncode or not data.exists():
        pytest.skip(f"perf cannot sample here: {recorded.stderr[-200:]}")
    with_maps = support.run([perf, "script", "-i", data, "--show-mmap-events"])
    (tmp_path / "samples.txt").write_text(support.run([perf, "script", "-i", data]), encoding="utf-8")
    ((start, size, offset),) = re.findall(r"MMAP2 .*: \[(0x\w+)\((0x\w+)\) @ (0x\w+|0) .*r-xp .*iree_dylib_", with_maps)
    begin, end = int(start, 16), int(start, 16) + int(size, 16)
    (image,) = read_images(system / "module.vmfb")
    instructions = [int(ip, 16) for ip in re.findall(r"cpu-clock:u:\s+([0-9a-f]+) ", with_maps)]
    places = np.array([ip - begin + int(offset, 16) for ip in instructions if begin <= ip < end], dtype=np.int64)
    addresses = addresses_at(image, places)
    truth = Counter(
        (image.functions[function].name, int(line))
        for function, line in zip(image.functions_at(addresses), image.lines_at(addresses), strict=True)
    )
    if truth.total() < 20:
        pytest.skip(f"only {truth.total()} samples were taken in kernels")
    result = attributed(tmp_path / "samples.txt", system)
    assert "samples-astray" not in {told["slug"] for told in result["diagnostics"]}
    found = {(step["kernel"], step["line"]): step["metrics"]["samples"] for step in result["steps"]}
    kernels = load(system).graph.kernel_by_name
    # Code of a kernel without a line is line 0 of it; other functions of the library are no kernels.
    assert found == {place: count for place, count in truth.items() if place[0] in kernels}


def test_samples_of_another_compilation_are_told(built: Built) -> None:
    result = attributed(PRINTED, built("hand_mlp"))
    (told,) = [told["message"] for told in result["diagnostics"] if told["slug"] == "samples-astray"]
    assert "samples are of machine code that the bundle does not have" in told


def test_samples_that_tell_no_place_are_refused(system: Path, tmp_path: Path) -> None:
    text = PRINTED.read_text(encoding="utf-8")
    file = tmp_path / "samples"

    def refused(text: str) -> str:
        file.write_text(text, encoding="utf-8")
        return refusal(file, system)

    assert "print samples with `perf script -F +symoff`" in refused(re.sub(r"\+0x[0-9a-f]+", "", text))
    without_file = re.sub(r" \([^()]*(\(deleted\))?\)$", "", text, flags=re.MULTILINE)
    assert "print them with `perf script -F +dso`" in refused(without_file)
    assert "print them with `perf script -F +dso`" in refused(
        "a 1 2.0: 99 cpu-clock:\n    7f42 main_dispatch_0+0x154\n\n"
    )
    first, _, rest = text.partition("\n")
    assert "has samples of several events" in refused(first.replace("cpu-clock", "cycles") + "\n" + rest)
    assert "is no known line of perf script" in refused(f"{first}\nnothing of the kind\n{rest}")
    record = "perf 1 2.0: PERF_RECORD_MMAP2 1/1: [0x1000(0x1000) @ 0 fe:00 1 2]: r-xp /bin/true\n"
    assert refused(record).endswith("[run-empty]\n")
    file.write_bytes(b"PERFILE2\0\0")
    assert "convert it first with `perf script`" in refusal(file, system)


# ---- a store


@pytest.mark.long
def test_runs_of_other_tools_go_into_a_store(
    profile: Path, hooked: tuple[Path, Path], system: Path, built: Built, tmp_path: Path
) -> None:
    bundle = built("hand_mlp")
    benchmark(built, tmp_path / "benchmark.json", "--benchmark_min_time=2x")
    calls = next(hooked[0].glob("iree_hook_*.csv"))
    store = ("--store", tmp_path / "store")
    for run, of, *options in (
        (profile, bundle),
        (tmp_path / "benchmark.json", bundle),
        (calls, bundle, "--dispatch", KERNEL),
        (ZONES, bundle),
        (PRINTED, system),
    ):
        (added,) = json_cli("store", "add", run, "--map", of, *options, *store)["runs"]
        assert added["added"]
    assert len(json_cli("store", "list", *store)["runs"]) == 5
