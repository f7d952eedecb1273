"""Recording inside a Python process, and attribution of such runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tracemap
from tests.conftest import Built
from tests.support import ROOT, check_cli, json_cli
from tracemap.core.units import UNKNOWN
from tracemap.hook.compiling import FOLDER, LIBRARY_NAME
from tracemap.runs.model import Clock
from tracemap.runs.runfile import read_run

PROGRAMS = ROOT / "tests" / "programs"

PROGRAM = """
import sys
import numpy as np
import tracemap
from tracemap.core.errors import RunEmpty, UsageInvalid

bundle = tracemap.load(sys.argv[1])


def zeros(kind):
    sizes = [int(size) for size in kind.removeprefix("tensor<").removesuffix("xf32>").split("x")]
    return np.full(sizes, 0.01, np.float32)


(function,) = bundle.graph.functions
arguments = [zeros(argument.type) for argument in function.arguments]
recording = tracemap.recording(bundle)
try:
    with recording:
        pass
except RunEmpty as error:
    assert "load the module inside" in str(error)
else:
    raise AssertionError("nothing was called")
with tracemap.recording(bundle) as first:
    try:
        first.attribute()
    except UsageInvalid:
        pass
    import iree.runtime

    module = iree.runtime.load_vm_flatbuffer_file(str(bundle.module_path), driver="local-sync")
    call = getattr(module, function.name)
    for _ in range(3):
        call(*arguments)
call(*arguments)  # between the blocks: of neither
with tracemap.recording(bundle, sys.argv[2]) as second:
    for _ in range(5):
        call(*arguments)
for recorded, calls in ((first, 3), (second, 5)):
    result = recorded.attribute()
    assert recorded.executions == calls * len(bundle.graph.sites), (recorded.executions, calls)
    assert {site.calls for site in result.sites} == {calls}
    (cpu,) = [metric for metric in result.metrics if metric.name == "cpu_ns"]
    assert 0 < cpu.attributed == cpu.measured
    assert "<table>" in recorded._repr_html_()
"""


LOADING = """
import sys
import numpy as np
import tracemap

bundle = tracemap.load(sys.argv[1])
with tracemap.recording(bundle, sys.argv[2]) as recording:
    import iree.runtime

    module = iree.runtime.load_vm_flatbuffer_file(str(bundle.module_path), driver="local-sync")
    module.main(np.zeros((256, 256), np.float32))
"""


def test_what_runs_while_loading_is_measured_too(tmp_path: Path) -> None:
    """Of two kernels that run at load one runs in calls too: the hook names kernels, so that is of the call."""
    if not (FOLDER / LIBRARY_NAME).is_file():
        pytest.skip("the hook was not built")
    program, bundle, run = (tmp_path / name for name in ("program.py", "load_time.tracemap", "run.parquet"))
    program.write_text(LOADING, encoding="utf-8")
    check_cli("build", PROGRAMS / "load_time.mlir", "-o", bundle)
    subprocess.run([sys.executable, program, bundle, run], cwd=ROOT, check=True)
    at_load = {site["id"] for site in json_cli("show", bundle)["sites"] if site["initializer"]}
    results = {site["site"]: site for site in json_cli("attribute", run, "--map", bundle)["sites"]}
    (measured,) = at_load & results.keys()
    (unmeasured,) = at_load - results.keys()
    assert results[measured]["metrics"]["cpu_ns"]["total"] > 0
    said = check_cli("attribute", run, "--map", bundle, "--notes")
    assert f", {len(results)} executed, 1 run at load time (not measured)" in said
    assert f"load-time-not-measured]: {unmeasured}: 1 dispatch run at load" in said


LATE = """
import sys
import time
import duckdb
import numpy as np
import tracemap

bundle = tracemap.load(sys.argv[1])
with tracemap.recording(bundle):
    import iree.runtime

    module = iree.runtime.load_vm_flatbuffer_file(str(bundle.module_path), driver="local-sync")
    module.main(np.zeros((4, 4), np.float32))
for wait_s in (1, 2, 4):
    time.sleep(wait_s)
    times, run = [time.monotonic_ns()], f"{sys.argv[2]}/{wait_s}.parquet"
    with tracemap.recording(bundle, run):
        for _ in range(5):
            module.main(np.zeros((4, 4), np.float32))
            times.append(time.monotonic_ns())
    found = duckdb.execute(f"SELECT start_ns FROM '{run}' ORDER BY start_ns").fetchall()
    assert len(found) == 5, found
    assert all(begin < start < end for begin, (start,), end in zip(times, found, times[1:])), (times, found)
"""


@pytest.mark.long
def test_calls_of_a_process_that_runs_for_long_are_found_at_their_times(tmp_path: Path) -> None:
    """They take a few microseconds; a clock that is wrong by a part in 100,000 is off by more."""
    if not (FOLDER / LIBRARY_NAME).is_file():
        pytest.skip("the hook was not built")
    model, bundle, program = tmp_path / "small.mlir", tmp_path / "small.tracemap", tmp_path / "program.py"
    body = "  %0 = arith.addf %x, %x : tensor<4x4xf32>\n  return %0 : tensor<4x4xf32>\n"
    model.write_text(f"func.func @main(%x: tensor<4x4xf32>) -> tensor<4x4xf32> {{\n{body}}}\n", encoding="utf-8")
    program.write_text(LATE, encoding="utf-8")
    check_cli("build", model, "-o", bundle)
    subprocess.run([sys.executable, program, bundle, tmp_path], cwd=ROOT, check=True)


@pytest.mark.long
def test_calls_of_this_process(built: Built, tmp_path: Path) -> None:
    if not (FOLDER / LIBRARY_NAME).is_file():
        pytest.skip("the hook was not built")
    program, run = tmp_path / "program.py", tmp_path / "run.parquet"
    program.write_text(PROGRAM, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, program, built("hand_mlp"), run], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    header, found = read_run(run).header, tracemap.attribute(run)  # the header tells the bundle
    assert found.bundle is not None
    assert found.bundle.path == built("hand_mlp").resolve()
    assert header.command[-2:] == (str(built("hand_mlp")), str(run))
    assert header.clock is Clock.HOST
    assert header.peaks.source == "measured"
    assert [tool.partition(" ")[0] for tool in header.tools] == ["tracemap", "iree-base-runtime"]
    assert isinstance(header.noise.observed_ns, int)
    assert isinstance(header.noise.running_ns, int)
    # The hook sees kernels: not whose module they are of, which function called them, nor how often.
    assert {header.module_sha256, header.function, header.iterations, header.device} == {UNKNOWN}
    said = {each.slug for each in found.diagnostics}
    assert "run-unverified" in said
    assert "program-killed" not in said  # though it had not ended
    page = check_cli("attribute", run, "--html", tmp_path / "page.html")
    assert "hand_mlp.mlir" in page
