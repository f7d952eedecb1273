"""Runs of other tools, read as they are: samples that the tools made, beside a truth made otherwise."""

from __future__ import annotations

import json
import shutil
from datetime import datetime
from pathlib import Path

import pytest

from tests.conftest import Built
from tests.hook import support
from tests.support import Json, check_cli, json_cli, run_cli
from tracemap.toolchain import find_tool


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
    export.write_text(text[: len(text) // 2], encoding="utf-8")
    assert "run.jsonl: not an export of iree-profile: " in refusal(export, bundle)
    export.write_text(text.partition("\n")[0] + "\n", encoding="utf-8")
    assert refusal(export, bundle).endswith("[run-empty]\n")
    export.write_text(text.replace('"schema_version":15', '"schema_version":14'), encoding="utf-8")
    assert refusal(export, bundle).endswith("[run-version]\n")
    (tmp_path / "other.json").write_text('{"traceEvents": []}', encoding="utf-8")
    assert "is JSON, but none that is read as a run" in refusal(tmp_path / "other.json", bundle)


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
    for site in attributed(run, bundle, "--keep-disturbed")["sites"]:
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
        assert "does not tell the times of all kernels" in refusal(file, bundle)
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
        "iree-profile printed only what --filter='*matmul*' lets through"
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


def test_a_benchmark_tells_its_machine(built: Built, tmp_path: Path) -> None:
    from tracemap.capture.open_run import open_run

    report = benchmark(built, tmp_path / "benchmark.json", "--benchmark_min_time=2x")
    header = open_run(tmp_path / "benchmark.json", tmp_path).header
    assert header.machine.host == report["context"]["host_name"]
    assert header.machine.processors == report["context"]["num_cpus"]
    told = datetime.fromisoformat(report["context"]["date"]).timestamp()
    assert header.machine.recorded_ns == int(told) * 10**9
    assert (header.function, header.iterations) == ("mlp", 2)
    assert header.tools == (f"Google Benchmark {report['context']['library_version']}",)


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
    assert "at most 20,000,000 are read" in refused([rows[1] | {"iterations": 10**9}])
    assert "that nothing can have" in refused([rows[1] | {"iterations": -1}])
    assert refused([rows[1] | {"calls": 0}]).endswith("[run-empty]\n")
    assert "Expected `float`" in refused([rows[1] | {"real_time": "much"}])
    failed = {"error_occurred": True, "error_message": "no device"}
    assert "failed: 'no device'" in refused([*rows, rows[1] | failed])
    (tmp_path / "changed.json").write_text(json.dumps(report)[:-9], encoding="utf-8")
    assert "no output of Google Benchmark, or a damaged one" in refusal(tmp_path / "changed.json", bundle)
