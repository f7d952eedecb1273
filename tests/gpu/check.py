"""Check recordings on an NVIDIA GPU: `python -m tests.gpu.check`, in at most five minutes.

It needs a checkout with `pip install '.[cuda,dev]'`, an NVIDIA GPU and its driver. The check builds five samples (or
takes the bundles of `--bundles FOLDER`, as the tests name them), and compares what a GPU gives with what it must give:
outputs equal to the CPU's, every launch, copy and fill at its place, equal layers alike, books that balance, a small
overhead, the DRAM traffic of a copy, and the times of Nsight Systems, if `nsys` is on PATH. It prints a table. Results
go to a file of `tests/gpu/recorded/`, with date, driver and card. Steps that do not fit into the time are listed as not
reached; the status is 1 if any step failed.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tests.gpu import sites_in_order, table
from tests.gpu.standins import NOTHING, RECORDED
from tests.support import ROOT, SAMPLES
from tracemap.core.toolchain import find_tool
from tracemap.hook.cuda import cupti_libraries
from tracemap.runs.cuda.recording import process_files, read_activity, read_process

TARGET = "sm_86"
CALLS = 200
LARGEST = "jax_gpt2_small_12l"
LOOP = "hand_loop"
LAUNCHES = {"hand_repeat12": 12, "jax_gpt2_4l": 61, "torch_resnet18_small": 33, LARGEST: 173, LOOP: 10}
"""Launches per call: those of all but the largest were recorded on an H100."""
COPY = Path("tests/programs/gpu_copy.mlir")
COPY_INPUT, COPY_BYTES = "268435456xf32=1", 1 << 30
"""The bytes that the program reads, and writes, in its only kernel."""
MOST_DIFFERENCE = 0.02
"""Between the medians of equal layers."""
MOST_OVERHEAD = 0.05
"""Of the largest model; calls of small ones are shorter than what a record costs per launch."""
MOST_TRAFFIC_ERROR = 0.05
MOST_NSIGHT_DIFFERENCE = 0.05
"""Between a kernel's median and that of Nsight Systems, which runs the program again."""
LEAST_NS = 5000
"""Kernels of a few microseconds differ by the clock's ticks."""
ROUNDS, REPETITIONS, REPETITION_S = 4, 3, 0.5
"""Of the benchmark with and without the library, in turns; a fixed number of calls could take minutes."""
PACKAGES = ("iree-base-runtime", "iree-base-compiler", "nvidia-cuda-cupti", "nvidia-cuda-cupti-cu12")


@dataclass
class Report:
    """What was found, step by step."""

    limit_s: float
    begun_s: float = field(default_factory=time.monotonic)
    steps: list[dict[str, Any]] = field(default_factory=list)

    @property
    def left_s(self) -> float:
        """Seconds until the limit."""
        return self.limit_s - (time.monotonic() - self.begun_s)

    def step(self, name: str, least_s: float, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Do a step that needs at least some seconds, and print how it ended."""
        begun, facts = time.monotonic(), {}
        try:
            if self.left_s < least_s:
                status = "not reached"
            else:
                facts = work()
                status = "ok" if all(value for key, value in facts.items() if key.startswith("is_")) else "failed"
                status = "skipped" if "skipped" in facts else status
        except Exception as error:  # whatever it is, the other steps go on
            status, facts = "failed", {"error": f"{type(error).__name__}: {str(error)[-2000:]}"}
        row = {"step": name, "status": status, "seconds": round(time.monotonic() - begun, 1), **facts}
        self.steps.append(row)
        print(json.dumps(row), flush=True)
        return facts


def run(*words: str | Path, variables: Mapping[str, str] = NOTHING, limit_s: float = 120) -> str:
    """Run a program to its end; raises an error with its output if it fails."""
    command, environment = [str(word) for word in words], {**os.environ, **variables}
    done = subprocess.run(
        command, env=environment, cwd=SAMPLES, capture_output=True, text=True, timeout=limit_s, check=False
    )
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(command[:6])} …: status {done.returncode}\n{done.stdout[-500:]}{done.stderr[-1500:]}"
        )
    return done.stdout


def tracemap(*words: str | Path) -> str:
    """Run a command of tracemap."""
    return run(sys.executable, "-m", "tracemap", *words)


def environment_of_machine() -> dict[str, Any]:
    """Date, card, driver and versions."""

    def version_of(package: str) -> str:
        try:
            return version(package)
        except PackageNotFoundError:
            return "not installed"

    query = "--query-gpu=name,driver_version,memory.total,compute_cap,mig.mode.current"
    is_there = shutil.which("nvidia-smi") is not None
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "card": run("nvidia-smi", query, "--format=csv,noheader").strip() if is_there else "unknown (no nvidia-smi)",
        "system": f"{platform.system()} {platform.release()}",
        "packages": {package: version_of(package) for package in PACKAGES},
        "cupti": [path.name for path in cupti_libraries()],
    }


class Checks:
    """The steps, over bundles for the GPU and the CPU in one folder."""

    def __init__(self, folder: Path, bundles: Path | None) -> None:
        self.folder, self.bundles = folder, bundles
        self.done: dict[tuple[str, ...], dict[str, Any]] = {}

    def bundle(self, model: str, device: str, source: Path | None = None) -> Path:
        """A sample's bundle, or that of another source, built if `--bundles` has none."""
        name = f"{model}-cuda.tracemap" if device == "cuda" else f"{model}.tracemap"
        for place in filter(None, (self.bundles, self.folder)):
            if (place / name).is_dir():
                return place / name
        options = ("--device", "cuda") if device == "cuda" else ()
        flags = ("--", f"--iree-cuda-target={TARGET}") if device == "cuda" else ()
        tracemap("build", source or SAMPLES / "models" / f"{model}.mlir", *options, "-o", self.folder / name, *flags)
        return self.folder / name

    def flags(self, model: str) -> tuple[str | Path, ...]:
        """The flags with a sample's inputs."""
        return ("--flagfile", SAMPLES / "flags" / f"{model}.flags")

    def outputs(self, model: str) -> dict[str, Any]:
        """The outputs of the GPU against the CPU's."""
        expected = self.folder / f"{model}.npy"
        tracemap("run", self.bundle(model, "local"), *self.flags(model), f"--output=@{expected}")
        tracemap("run", self.bundle(model, "cuda"), *self.flags(model), f"--expected-output=@{expected}")
        return {"model": model, "is_equal": True}

    def recorded(self, model: str, *flags: str) -> dict[str, Any]:
        """`record`, and whether every launch is at its site and the books balance."""
        if (model, *flags) in self.done:
            return self.done[model, *flags]
        bundle, table = self.bundle(model, "cuda"), self.folder / f"{model}{len(flags)}.parquet"
        words: tuple[str | Path, ...] = (
            "--iterations",
            str(CALLS),
            "-o",
            table,
            "--force",
            *(("--", *flags) if flags else ()),
        )
        tracemap("record", bundle, *self.flags(model), *words)
        result = json.loads(tracemap("attribute", table, "--map", bundle, "--format", "json"))
        (metric,) = result["metrics"]
        rest = sum(row["metrics"]["duration_ns"] for row in result["unattributed"])
        elapsed = result["run"]["elapsed"]
        parts = [value for name, value in elapsed.items() if name.endswith("_ns")]
        calls = {site["site"]: site["calls"] for site in result["sites"] if site["calls"]}
        facts: dict[str, Any] = {
            "model": model,
            "flags": flags,
            "slugs": sorted({item["slug"] for item in result["diagnostics"]}),
            "elapsed_ns": result["run"]["elapsed_ns"],
            "elapsed": elapsed,
            "is_balanced": metric["measured"] == metric["attributed"] + rest,
            "is_elapsed_explained": sum(parts) == result["run"]["elapsed_ns"],
            "is_exact": not {item["slug"] for item in result["diagnostics"]} & {"sites-by-order", "split-evenly"},
        }
        launches = sum(calls.values())
        facts |= {
            "launches_per_call": launches / CALLS,
            "is_every_launch_there": launches == CALLS * LAUNCHES[model],
            "is_every_copy_and_fill_at_its_op": "transfers-astray" not in facts["slugs"],
        }
        if model != LOOP:
            expected = Counter(sites_in_order(bundle))
            facts["is_every_launch_at_its_site"] = calls == {site: CALLS * count for site, count in expected.items()}
        medians = {site["site"]: site["metrics"]["duration_ns"]["per_call"]["median"] for site in result["sites"]}
        facts["medians"] = {site: ns for site, ns in medians.items() if site in calls}
        self.done[model, *flags] = facts
        return facts

    def counted(self, model: str) -> dict[str, Any]:
        """`record --counters`: the sums of a kernel's launches, or why there are none."""
        bundle, table = self.bundle(model, "cuda"), self.folder / f"{model}-counted.parquet"
        words = ("--counters", "l2-misses,dram-bytes", "--iterations", "2", "--warmup", "1", "-o", table)
        tracemap("record", bundle, *self.flags(model), *words)
        result = json.loads(tracemap("attribute", table, "--map", bundle, "--format", "json"))
        sums = {metric["name"]: metric["measured"] for metric in result["metrics"]}
        notes = [item for item in result["diagnostics"] if item["slug"] in ("no-counters", "counters-unmatched")]
        return {"model": model, "sums": sums, "notes": notes, "is_counted": sums.get("l2-misses", 0) > 0}

    def copied(self) -> dict[str, Any]:
        """The DRAM traffic of a kernel that reads and writes a known number of bytes."""
        bundle = self.bundle("gpu_copy", "cuda", ROOT / COPY)
        table, calls = self.folder / "copy.parquet", 2
        words = ("--input", COPY_INPUT, "--counters", "dram-bytes", "--iterations", str(calls), "--warmup", "1")
        tracemap("record", bundle, *words, "-o", table)
        result = json.loads(tracemap("attribute", table, "--map", bundle, "--format", "json"))
        counted = {metric["name"]: metric["measured"] for metric in result["metrics"]}.get("dram-bytes", 0)
        error = counted / (calls * 2 * COPY_BYTES) - 1
        return {
            "model": "gpu_copy",
            "dram_bytes_per_call": counted / calls,
            "error": round(error, 4),
            "notes": [item for item in result["diagnostics"] if item["slug"] in ("no-counters", "counters-unmatched")],
            "is_within": abs(error) <= MOST_TRAFFIC_ERROR,
        }

    def kernels(self, model: str) -> dict[str, str]:
        """The kernel of each dispatch site."""
        bundle = json.loads(tracemap("show", self.bundle(model, "cuda"), "--format", "json"))
        return {site["id"]: site["kernel"] for site in bundle["sites"]}

    def layers(self, model: str) -> dict[str, Any]:
        """How much the medians of equal layers differ: sites that share their kernel."""
        facts = self.recorded(model)
        kernel_of = self.kernels(model)
        groups: dict[str, list[float]] = {}
        for site, ns in facts["medians"].items():
            groups.setdefault(kernel_of[site], []).append(ns)
        spread = {
            kernel: round((max(values) - min(values)) / statistics.median(values), 4)
            for kernel, values in groups.items()
            if len(values) > 1 and statistics.median(values) > LEAST_NS
        }
        return {
            "model": model,
            "spread": spread,
            "is_alike": bool(spread) and all(value <= MOST_DIFFERENCE for value in spread.values()),
        }

    def benchmark(self, model: str, *words: str) -> list[str]:
        """The command line of the stock benchmark."""
        module = self.bundle(model, "cuda") / "module.vmfb"
        flags = f"--flagfile={SAMPLES / 'flags' / model}.flags"
        return [str(find_tool("iree-benchmark-module")), f"--module={module}", "--device=cuda", flags, *words]

    def variables(self, name: str, *options: str) -> dict[str, str]:
        """The variables that make a program record itself into a new folder, from the command that users call."""
        folder = self.folder / name
        folder.mkdir()
        printed = tracemap("hook", "env", "-o", folder, "--device", "cuda", *options)
        return dict(line.split("=", 1) for line in printed.splitlines())

    def ms_per_call(self, model: str, variables: Mapping[str, str]) -> float:
        """Time of a call in the stock benchmark."""
        words = (f"--benchmark_min_time={REPETITION_S}s", f"--benchmark_repetitions={REPETITIONS}")
        output = run(*self.benchmark(model, *words), variables=variables)
        units = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3}
        found = re.findall(r"real_time +([0-9.]+) (ns|us|ms|s) ", output)
        return min(float(number) * units[unit] for number, unit in found)

    def overhead(self, model: str) -> dict[str, Any]:
        """The time of a call with and without the library, in turns."""
        plain, injected = [], []
        for number in range(ROUNDS if model == LARGEST else 2):
            plain.append(self.ms_per_call(model, NOTHING))
            injected.append(self.ms_per_call(model, self.variables(f"overhead-{model}-{number}")))
        ratio = min(injected) / min(plain) - 1
        facts: dict[str, Any] = {
            "model": model,
            "plain_ms": plain,
            "injected_ms": injected,
            "overhead": round(ratio, 4),
        }
        return facts | ({"is_small": ratio <= MOST_OVERHEAD} if model == LARGEST else {})

    def nsight(self, model: str) -> dict[str, Any]:
        """The kernels' median times against those of Nsight Systems."""
        if shutil.which("nsys") is None:
            return {"model": model, "skipped": "nsys is not on PATH"}
        facts, kernel_of = self.recorded(model), self.kernels(model)
        ours: dict[str, list[float]] = {}
        for site, ns in facts["medians"].items():
            ours.setdefault(kernel_of[site].replace("$", "_"), []).append(ns)
        path, trace = self.folder / f"{model}.nsys-rep", self.folder / f"{model}.trace.csv"
        run("nsys", "profile", "-t", "cuda", "-o", path, *self.benchmark(model, f"--benchmark_min_time={CALLS}x"))
        trace.write_text(run("nsys", "stats", "--report", "cuda_gpu_trace", "--format", "csv", path), encoding="utf-8")
        theirs = trace_medians(trace)
        difference = {
            kernel: round(statistics.median(values) / theirs[kernel] - 1, 4) if kernel in theirs else "missing"
            for kernel, values in ours.items()
            if statistics.median(values) > LEAST_NS
        }
        is_near = [not isinstance(ratio, str) and abs(ratio) <= MOST_NSIGHT_DIFFERENCE for ratio in difference.values()]
        return {"model": model, "nsight_difference": difference, "is_as_nsight_says": bool(is_near) and all(is_near)}

    def ended(self, number: signal.Signals) -> dict[str, Any]:
        """What is there of a program that a signal ends: whole records of whole kernels."""
        name = f"ended-{number.name}"
        command = self.benchmark("hand_repeat12", "--benchmark_min_time=1000000x")
        variables = {**os.environ, **self.variables(name, "--thread-mb", "64", "--keep", "newest")}
        with subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
            time.sleep(5)
            child.send_signal(number)
            status = child.wait(timeout=30)
        (path,) = process_files(self.folder / name)
        process = read_process(path)
        activity = read_activity(process)
        return {
            "signal": number.name,
            "exit_status": status,
            "kernels": len(activity.work),
            "dropped": activity.dropped,
            "clock_width_ns": activity.width_ns,
            "losses": process.losses,
            "is_ended_by_it": status == -number,
            "is_readable": len(activity.work) > 1000,
            "is_end_written": process.ended == (number is signal.SIGTERM),
        }


def trace_medians(path: Path) -> dict[str, float]:
    """Each kernel's median time in ns in a table of Nsight Systems (cuda_gpu_trace)."""
    times: dict[str, list[int]] = {}
    for row in table(str(path), "Start"):
        times.setdefault(row["Name"], []).append(int(row["Duration (ns)"]))
    return {name: statistics.median(values) for name, values in times.items()}


def print_table(report: Report) -> None:
    """Print a row per step: how it ended, its figures, and what was not as it must be."""
    figures = ("launches_per_call", "overhead", "spread", "nsight_difference", "skipped", "error")
    for row in report.steps:
        wrong = [key for key, value in row.items() if key.startswith("is_") and not value]
        found = {key: row[key] for key in figures if key in row}
        text = ", ".join(f"{key} {' '.join(str(value).split())[:120]}" for key, value in found.items())
        print(
            f"{row['status']:12}{row['step']:24}{row.get('model', ''):22}{row['seconds']:6} s  {text} {' '.join(wrong)}"
        )


def main() -> int:
    """Run all steps; 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bundles", type=Path, help="folder with bundles built elsewhere")
    parser.add_argument("--seconds", type=float, default=280, help="limit of the whole check")
    parser.add_argument("-o", "--output", type=Path, default=RECORDED, help="folder for the results")
    options = parser.parse_args()
    report = Report(options.seconds)
    machine = report.step("machine", 0, environment_of_machine)
    with tempfile.TemporaryDirectory() as name:
        checks = Checks(Path(name), options.bundles)
        for model in LAUNCHES:
            report.step("record", 20, lambda model=model: checks.recorded(model))  # type: ignore[misc]
        for model in LAUNCHES:
            report.step("outputs", 20, lambda model=model: checks.outputs(model))  # type: ignore[misc]
        report.step("dram traffic of a copy", 30, checks.copied)
        report.step("overhead", 30, lambda: checks.overhead(LARGEST))
        for model in (LARGEST, "jax_gpt2_4l", "hand_repeat12"):
            report.step("equal layers", 20, lambda model=model: checks.layers(model))  # type: ignore[misc]
        report.step("nsight systems", 40, lambda: checks.nsight("jax_gpt2_4l"))
        report.step("record graphs", 20, lambda: checks.recorded("jax_gpt2_4l", "--cuda_use_streams=false"))
        report.step("counters", 40, lambda: checks.counted("hand_repeat12"))
        for number in (signal.SIGTERM, signal.SIGKILL):
            report.step("ended by a signal", 15, lambda number=number: checks.ended(number))  # type: ignore[misc]
        for model in ("hand_repeat12", "jax_gpt2_4l"):
            report.step("overhead", 30, lambda model=model: checks.overhead(model))  # type: ignore[misc]
    card = re.sub(r"\W+", "-", str(machine.get("card", "no-card")).partition(",")[0]).strip("-").lower()
    target = options.output / f"check-{datetime.datetime.now(datetime.UTC):%Y-%m-%d}-{card}.json"
    target.write_text(json.dumps(report.steps, indent=1) + "\n", encoding="utf-8")
    print_table(report)
    print(target)
    return int(any(step["status"] == "failed" for step in report.steps))


if __name__ == "__main__":
    sys.exit(main())
