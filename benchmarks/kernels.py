"""The measurement loop of `bench` beside `iree-benchmark-executable`, on the same machine code and the same sizes."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

from benchmarks.measure import Figure, print_title, run, targeted, tracemap
from tests.support import SAMPLES
from tracemap.core.toolchain import check_tool, find_tool
from tracemap.ir.executables import executables_of, read_dispatches
from tracemap.ir.parsing import MlirParser
from tracemap.kernels.bench_cases import Case, find_cases
from tracemap.kernels.benchmark_module import benchmark_module_text, compile_benchmark_module
from tracemap.kernels.runner_jobs import FailedCall, Job, run_job
from tracemap.machine.images import read_images
from tracemap.map.bundle import Bundle, load

_MODELS = ("hand_mlp", "hand_attention")
_TURNS = 5
_BATCH = 1000


def measure(folder: Path) -> list[Figure]:
    """Ratios of the least times, kernel by kernel, measured in turn; the target is for their median."""
    print_title("bench / iree-benchmark-executable, a call of the same kernel")
    ratios = []
    for model in _MODELS:
        bundle = folder / f"{model}.tracemap"
        run(tracemap("build", SAMPLES / "models" / f"{model}.mlir", "-o", bundle))
        ratios += _ratios(load(bundle), folder)
    return [targeted("bench / iree-benchmark-executable", [statistics.median(ratios)], "", 1.03)]


def _ratios(bundle: Bundle, folder: Path) -> list[float]:
    parser = MlirParser()
    module = parser.parse(bundle.configured())
    cases = find_cases(bundle.graph, module, read_dispatches(module, lambda *_: 64))
    made = parser.parse(bundle.configured())
    alone = compile_benchmark_module(
        benchmark_module_text(made, [case.dispatch for case in cases]), bundle.graph.module.flags, folder
    )
    exports = [export for each in executables_of(made).values() for export in each.exports]
    (image,) = read_images(alone)
    file = folder / "kernels.so"
    file.write_bytes(image.data)
    found = []
    for number, case in enumerate(cases):
        ours, theirs = [], []
        for _ in range(_TURNS):
            ours.append(_ours(case, number, alone, folder))
            theirs.append(_theirs(case, bundle, exports.index(case.kernel), file))
        found.append(min(ours) / min(theirs))
        print(f"{case.kernel:64} {min(ours):11,.0f} ns {min(theirs):11,.0f} ns {found[-1]:6.3f}")
    return found


def _ours(case: Case, number: int, module: Path, folder: Path) -> float:
    job = Job((str(module),), "local-sync", (case.call(number),), "", 5, 20_000_000, 0)
    (answer,) = run_job(job, folder, 60.0, lambda _: None)
    assert not isinstance(answer, FailedCall), answer
    return statistics.median(answer.warm.call_ns)


def _theirs(case: Case, bundle: Bundle, ordinal: int, file: Path) -> float:
    """A call by IREE's tool, whose data is zeros; ours is not, which no kernel here takes notice of."""
    commands = [command for buffer in bundle.graph.command_buffers for command in buffer.commands]
    groups = next(each.workgroups for each in commands if each.kernel == case.kernel)
    arguments: list[str | Path] = [
        find_tool("iree-benchmark-module").with_name("iree-benchmark-executable"),
        "--device=local-sync",
        "--executable_format=embedded-elf-x86_64",
        f"--executable_file={file}",
        f"--entry_point={ordinal}",
        *(f"--binding={each.length}xi8" for each in case.dispatch.bindings),
        *(f"--constant={value}" for value in case.dispatch.constants),
        f"--workgroup_count={','.join(map(str, groups))}",
        f"--batch_size={_BATCH}",
        "--benchmark_min_time=0.1s",
        "--benchmark_format=json",
    ]
    printed = json.loads(check_tool(arguments))["benchmarks"][0]
    scale = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}[printed["time_unit"]]
    return float(printed["cpu_time"]) * scale  # as ours: the time of the thread that calls, which does all work
