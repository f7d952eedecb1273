"""Loops in which many ops read memory: samples of waits are divided among them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import duckdb
import pytest

from tests.machine.test_dataflow import BASELINE
from tests.support import Json, check_cli, json_cli
from tracemap.attribution.kernel_lines.lines import KernelSteps, kernel_steps
from tracemap.machine.images import read_images
from tracemap.map.bundle import load

_ARRAYS = 26
_TYPE = "tensor<262144xf32>"
_SUM = "\n".join(
    [
        f"func.func @main({', '.join(f'%a{number}: {_TYPE}' for number in range(_ARRAYS))}) -> {_TYPE} {{",
        f"  %empty = tensor.empty() : {_TYPE}",
        *(
            f"  %s{number} = linalg.elementwise <add> ins({'%a0' if number == 1 else f'%s{number - 1}'}, %a{number} : "
            f"{_TYPE}, {_TYPE}) outs(%empty : {_TYPE}) -> {_TYPE}"
            for number in range(1, _ARRAYS)
        ),
        f"  return %s{_ARRAYS - 1} : {_TYPE}",
        "}",
        "",
    ]
)
"""Additions that all become one kernel; the first of them reads two arrays, each other one."""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("many")
    (folder / "sum.mlir").write_text(_SUM)
    check_cli("build", folder / "sum.mlir", "-o", folder / "sum.tracemap", "--", BASELINE)
    return folder / "sum.tracemap"


def steps_of(bundle: Path) -> KernelSteps:
    graph = load(bundle).graph
    (kernel,) = graph.kernels
    return kernel_steps(graph, kernel, lambda: read_images(load(bundle).module_path))


def waiting_in_loop(steps: KernelSteps) -> tuple[int, dict[int, int]]:
    """The loop that reads the most, and where each line that reads there is found waiting."""
    loop_of = {address: steps.code.loop_at[address] for address in steps.code.waits}
    lines = {(loop_of[address], line) for address, line in steps.code.waits.items()}
    ((loop, _),) = Counter(loop for loop, _ in lines).most_common(1)
    return loop, {line: address for address, line in steps.code.waits.items() if loop_of[address] == loop}


@pytest.mark.long
def test_what_has_its_pointer_on_the_stack_brings_in_as_much(bundle: Path) -> None:
    """There are more arrays than registers: pointers are loaded again in each turn, and are the same in each."""
    steps = steps_of(bundle)
    loop, at = waiting_in_loop(steps)
    first, *others = (each for _, each in sorted(steps.code.brought_in(loop).items()))
    assert len(at) == 1 + len(others) == _ARRAYS - 1
    assert others == others[:1] * len(others)
    assert first == 2 * others[0]


@pytest.mark.few(1)
@pytest.mark.parametrize("more", [0, 40])
def test_reads_that_are_alike_cost_the_same(bundle: Path, tmp_path: Path, more: int) -> None:
    """With as many samples at each line, there was no share for any; with more at one, it had those of all others."""
    steps = steps_of(bundle)
    _, at = waiting_in_loop(steps)
    samples = [(line, address, 100 + (more if number == 9 else 0)) for number, (line, address) in enumerate(at.items())]
    rows = "".join(
        f" UNION ALL BY NAME SELECT 'step' AS kind, {line} AS step, {address} AS address, {count} AS samples, k.kernel "
        "FROM k"
        for line, address, count in samples
    )
    run = tmp_path / "run.parquet"
    timed = "SELECT 'dispatch' AS kind, 1000000 AS cpu_ns, kernel FROM k"
    query = f"WITH k AS (SELECT '{steps.kernel.name}' AS kernel) {timed}{rows}"
    duckdb.sql(f"COPY ({query}) TO '{run}' (FORMAT parquet)")
    made: Json = json_cli("attribute", run, "--map", bundle)
    first, *others = (each["metrics"]["cpu_ns"]["attributed"] for each in made["ops"])
    assert made["rule"] == "measured"
    assert max(others) < 1.1 * min(others)
    assert 1.8 * min(others) < first < 2.2 * max(others)
