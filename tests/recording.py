"""What the tests of recording share: sample models compiled plainly, and requests to record them."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import duckdb

from tests.support import PLAIN_FLAGS, SAMPLES, made_once
from tracemap.capture.calling import signatures_of
from tracemap.capture.plan import RecordRequest
from tracemap.core.functions import Argument, Function
from tracemap.core.toolchain import find_tool
from tracemap.core.units import UNKNOWN
from tracemap.options.measure import RecordOptions
from tracemap.runs.columns import events_sql
from tracemap.runs.model import COLUMNS
from tracemap.runs.runfile import read_run

Row = dict[str, Any]

ALTERNATING = """
util.global private mutable @n = 0 : i32
func.func @main(%x: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %c1 = arith.constant 1 : i32
  %c2 = arith.constant 2 : i32
  %n = util.global.load @n : i32
  %m = arith.addi %n, %c1 : i32
  util.global.store %m, @n : i32
  %rest = arith.remui %n, %c2 : i32
  %odd = arith.cmpi eq, %rest, %c1 : i32
  %t = math.tanh %x : tensor<64x64xf32>
  %y = scf.if %odd -> (tensor<64x64xf32>) {
    %o = linalg.matmul ins(%t, %t : tensor<64x64xf32>, tensor<64x64xf32>)
                       outs(%x : tensor<64x64xf32>) -> tensor<64x64xf32>
    scf.yield %o : tensor<64x64xf32>
  } else {
    scf.yield %t : tensor<64x64xf32>
  }
  return %y : tensor<64x64xf32>
}
"""
"""Every second call has a product."""


def compiled(folder: Path, model: Path, *flags: str) -> Path:
    """Compile a model as a plain iree-compile does, once."""
    module = folder / f"{model.stem}.vmfb"
    with made_once(module) as missing:
        if missing:
            arguments = [find_tool("iree-compile"), model, *(flags or PLAIN_FLAGS), "-o", module]
            subprocess.run([str(argument) for argument in arguments], check=True, capture_output=True)
    return module


def sample(folder: Path, name: str) -> Path:
    """A sample's compiled module."""
    return compiled(folder, SAMPLES / "models" / f"{name}.mlir")


def asynchronous_module(folder: Path) -> Path:
    """The perceptron's function as one that returns before its work is done, and signals a fence."""
    (folder / "asynchronous").mkdir(exist_ok=True)
    model = SAMPLES / "models" / "hand_mlp.mlir"
    return compiled(folder / "asynchronous", model, *PLAIN_FLAGS, "--iree-execution-model=async-external")


def entry_points(module: Path, loop_bounds: tuple[str, ...] = ()) -> tuple[Function, ...]:
    """A module's functions; arguments whose type is in `loop_bounds` bound loops."""
    return tuple(
        Function(
            name, tuple(Argument(f"%{place}", kind, kind in loop_bounds) for place, kind in enumerate(of.arguments))
        )
        for name, of in signatures_of(module).items()
        if not name.startswith("__")
    )


def request(module: Path, output: Path, **options: Any) -> RecordRequest:  # noqa: ANN401 - as many types as there are options
    """A request to record a module."""
    functions = options.pop("functions", None) or entry_points(module)
    sha256 = hashlib.sha256(module.read_bytes()).hexdigest()
    device = options.pop("device", UNKNOWN)
    return RecordRequest(module, sha256, "sample", functions, output, RecordOptions(**options), device)


def events(path: Path) -> list[Row]:
    """The rows of a run, by column name."""
    run = read_run(path)
    names = [*COLUMNS, *(metric.name for metric in run.metrics if metric.name not in COLUMNS)]
    with duckdb.connect() as connection:
        return [dict(zip(names, row, strict=True)) for row in connection.execute(events_sql(run)).fetchall()]


def begins_of(profile: Path, folder: Path) -> list[int]:
    """When each call began, as IREE's own tool tells of a profile."""
    exported = folder / "exported.jsonl"
    tool = find_tool("iree-profile")
    subprocess.run([str(tool), "export", "--format=ireeperf-jsonl", f"--output={exported}", profile], check=True)
    begins: dict[int, int] = {}
    with exported.open(encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            if row["record_type"] == "queue_event":
                chunk = row["source_record_index"]
                begins[chunk] = min(row["host_time_ns"], begins.get(chunk, row["host_time_ns"]))
    return [begins[chunk] for chunk in sorted(begins)]


def delay_last_dispatch(run: Path, column: str, more_ns: int) -> None:
    """Make the last dispatch of a run, a CSV file, so much longer by one of its times."""
    lines = run.read_text(encoding="utf-8").splitlines()
    place = lines[0].split(",").index(column)
    late = max(number for number, line in enumerate(lines) if ",dispatch," in f",{line}")
    cells = lines[late].split(",")
    cells[place] = str(int(cells[place]) + more_ns)
    lines[late] = ",".join(cells)
    run.write_text("\n".join(lines) + "\n", encoding="utf-8")
