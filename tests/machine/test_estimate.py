"""Costs from machine code: equal ops cost the same, twice the work twice; waits and overlaps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.built_kernels import built, steps_of
from tests.support import Json, check_cli, json_cli
from tracemap.attribution.diagnostics import disagreements
from tracemap.attribution.kernel_lines.lines import KernelSteps
from tracemap.attribution.model import Basis, Disagreement
from tracemap.attribution.weights import Weights
from tracemap.core.units import UNKNOWN
from tracemap.machine.caches import Cache
from tracemap.machine.dataflow import chains_of
from tracemap.machine.estimate import Estimate, estimate
from tracemap.machine.execution import Access
from tracemap.machine.integers import Value
from tracemap.machine.memory_traffic import Stream, Turns, streams_of, traffic_of
from tracemap.map.build.sites.steps import assign_storage_conversions
from tracemap.map.bundle import load
from tracemap.map.model import Evidence, KernelLine, Membership, OpId, Site

NEAR = (Cache(1 << 60, 1),)
FLAGS = ("--iree-llvmcpu-target-cpu=x86-64-v4",)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], KernelSteps]:
    """Builds a model of one kernel."""
    made: dict[str, KernelSteps] = {}

    def build(body: str) -> KernelSteps:
        if body not in made:
            made[body] = steps_of(built(body, tmp_path_factory.mktemp("kernel"), FLAGS))
        return made[body]

    return build


def estimated(steps: KernelSteps, caches: Sequence[Cache] = NEAR) -> Estimate:
    """What the first workgroup takes."""
    return estimate(steps.code.instructions, steps.code.loops, (1, 1, 1), tuple(caches))


def by_line(steps: KernelSteps, values: Estimate) -> dict[int, float]:
    """What the lines of ops take, of what these have together."""
    found: dict[int, float] = {}
    for address, (hundredths, _, _) in values.total().items():
        line = steps.code.line_at.get(address, 0)
        if line:
            found[line] = found.get(line, 0.0) + hundredths
    return {line: value / sum(found.values()) for line, value in sorted(found.items())}


CHAIN = """
func.func @main(%x: tensor<128x256xf32>) -> tensor<128x256xf32> {
  %a = stablehlo.tanh %x : tensor<128x256xf32>
  %b = stablehlo.tanh %a : tensor<128x256xf32>
  %c = stablehlo.tanh %b : tensor<128x256xf32>
  return %c : tensor<128x256xf32>
}
"""
ROW = """
func.func @main(%x: tensor<512x512xf32>, %v: tensor<512xf32>) -> tensor<512x512xf32> {
  %a = stablehlo.tanh %v : tensor<512xf32>
  %b = stablehlo.tanh %a : tensor<512xf32>
  %r = stablehlo.broadcast_in_dim %b, dims = [0] : (tensor<512xf32>) -> tensor<512x512xf32>
  %t = stablehlo.multiply %x, %r : tensor<512x512xf32>
  return %t : tensor<512x512xf32>
}
"""
SUM = """
func.func @main(%x: tensor<64x2048xf32>) -> tensor<64xf32> {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %s = stablehlo.reduce(%x init: %z) applies stablehlo.add across dimensions = [1]
    : (tensor<64x2048xf32>, tensor<f32>) -> tensor<64xf32>
  %t = stablehlo.tanh %s : tensor<64xf32>
  return %t : tensor<64xf32>
}
"""


@pytest.mark.long
def test_equal_ops_take_the_same(kernel: Callable[[str], KernelSteps]) -> None:
    shares = by_line(kernel(CHAIN), estimated(kernel(CHAIN)))
    assert len(shares) == 3
    assert all(abs(share - 1 / 3) < 0.03 for share in shares.values())


@pytest.mark.long
def test_what_is_computed_again_for_every_tile_counts_as_often(kernel: Callable[[str], KernelSteps]) -> None:
    first, second, product = by_line(kernel(ROW), estimated(kernel(ROW))).values()
    assert first + second > 0.6
    assert abs(first - second) < 0.05
    assert product < 0.4


def test_a_sum_is_what_its_additions_wait_for(kernel: Callable[[str], KernelSteps]) -> None:
    found = by_line(kernel(SUM), estimated(kernel(SUM)))
    assert max(found.values()) > 0.9


@pytest.mark.long
def test_a_loop_is_as_slow_as_what_it_carries(kernel: Callable[[str], KernelSteps]) -> None:
    code = kernel(SUM).code
    inner = max(code.loops, key=lambda loop: sum(loop.lines.values()) * (loop.parent >= 0))
    body = [each for each in code.instructions if inner.holds(each.address)]
    chains = chains_of(body)
    additions = sum(each.mnemonic.startswith("vaddss") for each in body)
    assert chains.carried.hundredths > 0
    assert abs(sum(chains.carried.parts.values()) - chains.carried.hundredths) < 1
    assert additions == 0 or chains.carried.hundredths <= 400 * additions


@pytest.mark.long
def test_a_slower_cache_makes_those_wait_that_read_and_write(kernel: Callable[[str], KernelSteps]) -> None:
    steps = kernel(CHAIN)
    fast, slow = (estimated(steps, [Cache(1 << 10, hundredths)]) for hundredths in (1, 100_000))
    assert sum(fast.memory.values()) == 0
    assert sum(slow.memory.values()) > sum(slow.core.values())
    lines = {steps.code.line_at[address] for address in slow.memory}
    assert len(lines) == 2  # the first op reads, the last one writes


# ---- memory


def stream(*turns: tuple[int, int], offset: int = 0, base: str = "x", size: int = 64) -> Stream:
    """What an access moves through, from the steps and turns of the loops around it."""
    around = [Turns(number, step, float(count)) for number, (step, count) in enumerate(turns)]
    (found,) = streams_of({offset: (Access(Value(base, offset), size), around)})
    return found


def test_lines_are_counted_once_in_a_loop_that_fits() -> None:
    once = stream((64, 32), (0, 10))  # the same 2 KiB ten times
    assert once.touched == (64.0, 2048.0, 2048.0)
    assert once.runs == (320.0, 10.0, 1.0)
    assert traffic_of([once], [4096]) == [(0.0,)]
    assert traffic_of([once], [1024]) == [(20480.0,)]


def test_small_steps_share_lines_and_large_ones_do_not() -> None:
    assert stream((4, 256), size=4).touched[-1] == 1024
    assert stream((256, 32), size=4).touched[-1] == 32 * 64
    apart = streams_of({0: (Access(UNKNOWN, 4), [Turns(0, UNKNOWN, 16.0)])})
    assert apart[0].touched[-1] == 16 * 64


def test_what_another_loop_has_read_in_the_same_turn_is_there() -> None:
    one, other = ([Turns(number, 64, 32.0), Turns(9, 2048, 100.0)] for number in (0, 1))
    access = Access(Value("x", 0), 64)
    streams = streams_of({0: (access, one), 8: (access, other)})
    assert traffic_of(streams, [16 << 10]) == [(204800.0,), (0.0,)]


# ---- whose conversions for storage are


def step(line: int, name: str, *ops: int, takes: tuple[int, ...] = ()) -> KernelLine:
    """A step on a line, of the ops with these numbers."""
    return KernelLine(line, name, tuple(OpId.of(op) for op in ops), UNKNOWN, takes)


def ops_of(steps: Sequence[KernelLine]) -> dict[int, list[int]]:
    """The numbers of the ops of each line."""
    return {each.line: [op.number for op in each.ops] for each in steps}


def test_what_is_unpacked_is_of_the_op_that_takes_it() -> None:
    steps = [step(1, "arith.trunci", 9), step(2, "arith.select", 3, takes=(1,)), step(3, "arith.addf", 9, takes=(2,))]
    assert ops_of(assign_storage_conversions(steps, frozenset()))[1] == [3]


def test_a_conversion_of_the_model_stays_its_own() -> None:
    steps = [step(1, "arith.extf", 4), step(2, "arith.mulf", 5, takes=(1,))]
    assert ops_of(assign_storage_conversions(steps, frozenset({OpId.of(4)})))[1] == [4]


def test_what_is_packed_to_be_stored_is_of_the_op_that_made_it() -> None:
    steps = [step(1, "arith.cmpf", 2), step(2, "arith.extui", 9, takes=(1,)), step(3, "linalg.yield", 9, takes=(2,))]
    assert ops_of(assign_storage_conversions(steps, frozenset()))[2] == [2]


def test_two_conversions_in_a_row_are_of_the_same_op() -> None:
    steps = [step(1, "arith.extsi", 9), step(2, "arith.sitofp", 4, takes=(1,)), step(3, "arith.mulf", 5, takes=(2,))]
    assert ops_of(assign_storage_conversions(steps, frozenset({OpId.of(4)})))[1] == [4]


# ---- whether all say the same


def site(name: str = "k") -> Site:
    """A site of a kernel with two members."""
    members = tuple(Membership(OpId.of(op), Evidence.LOCATED, op == 1, 1, 1, 0) for op in (1, 2))
    return Site("site0", 0, "main", (), name, False, 0, 0, members)


def test_two_that_err_alike_do_not_hide_it_from_the_third() -> None:
    ways = {
        Basis.SAMPLES: Weights((900, 100, 0), 1000, sampled=True),
        Basis.SIMULATED: Weights((90, 10, 0), 100),
        Basis.CODE: Weights((20, 80, 0), 100, factor=1.5),
    }
    (found,) = disagreements([(site(), ways)])
    percent = {Basis.SAMPLES: 90, Basis.SIMULATED: 90, Basis.CODE: 20}
    assert found == Disagreement("k", "site0", OpId.of(1), percent)


def test_what_errors_and_chance_allow_is_no_disagreement() -> None:
    few = {Basis.SAMPLES: Weights((6, 4, 0), 10, sampled=True), Basis.CODE: Weights((10, 90, 0), 100, factor=1.5)}
    near = {Basis.SIMULATED: Weights((60, 40, 0), 100), Basis.CODE: Weights((40, 60, 0), 100, factor=1.5)}
    assert list(disagreements([(site(), few), (site("other"), near)])) == []


def test_the_kernels_site_that_differs_most_is_named() -> None:
    def ways(first: int) -> dict[Basis, Weights]:
        simulated, code = Weights((first, 100 - first, 0), 100), Weights((100, 0, 0), 100, factor=1.5)
        return {Basis.SIMULATED: simulated, Basis.CODE: code}

    (found,) = disagreements([(site(), ways(50)), (site(), ways(10))])
    assert found.percent[Basis.SIMULATED] == 10


@pytest.mark.long
def test_a_bundle_keeps_its_estimates(tmp_path: Path) -> None:
    bundle, run = built(CHAIN, tmp_path, ()), tmp_path / "run.parquet"
    check_cli("record", bundle, "-o", run, "--serial", "--iterations", "3")
    first = json_cli("attribute", run, "--map", bundle)
    kept = load(bundle).estimates()
    assert first["rule"] == "code"
    assert [each.kernel for each in kept.kernels] == [load(bundle).graph.kernels[0].name]
    assert json_cli("attribute", run, "--map", bundle) == first
    (bundle / "estimates.json").write_text("{", encoding="utf-8")
    assert json_cli("attribute", run, "--map", bundle) == first
    assert load(bundle).estimates() == kept


PRODUCT = """
func.func @main(%x: tensor<?x?xf32>, %y: tensor<?x?xf32>) -> tensor<?x?xf32> {
  %a = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0] : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %b = stablehlo.tanh %a : tensor<?x?xf32>
  %c = stablehlo.sine %b : tensor<?x?xf32>
  return %c : tensor<?x?xf32>
}
"""  # noqa: E501 - the text is MLIR


@pytest.mark.long
def test_each_size_is_the_arguments_own(tmp_path: Path) -> None:
    bundle = built(PRODUCT, tmp_path, ())
    narrow = costs(bundle, tmp_path, "512x4xf32=1", "4x512xf32=1")
    wide = costs(bundle, tmp_path, "32x1024xf32=1", "1024x32xf32=1")
    # Of 1024 multiplications an element, and of four: a function takes some twenty.
    assert share(wide, 3) > 0.8
    assert share(narrow, 3) < 0.75
    assert not any(cost["uncertain"] for cost in narrow.values())


LOOPS = """
#m = affine_map<(d0) -> (d0)>
func.func @main(%a: tensor<4096xf32>, %k: tensor<4096xi32>) -> tensor<4096xf32> {{
  %e = tensor.empty() : tensor<4096xf32>
  %z = arith.constant 0 : i32
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c100 = arith.constant 100 : index
  %f = arith.constant 0.999 : f32
  %0 = linalg.generic {{indexing_maps=[#m,#m,#m], iterator_types=["parallel"]}} ins(%a,%k : tensor<4096xf32>,tensor<4096xi32>) outs(%e : tensor<4096xf32>) {{
  ^bb0(%x: f32, %i: i32, %o: f32):
    {}
    linalg.yield %q : f32 }} -> tensor<4096xf32>
  %1 = linalg.generic {{indexing_maps=[#m,#m], iterator_types=["parallel"]}} ins(%0 : tensor<4096xf32>) outs(%e : tensor<4096xf32>) {{
  ^bb0(%x: f32, %o: f32):
    %r = scf.for %ii = %c0 to %c100 step %c1 iter_args(%y = %x) -> f32 {{
      %y1 = arith.mulf %y, %f : f32
      %y2 = math.sqrt %y1 : f32
      scf.yield %y2 : f32
    }}
    linalg.yield %r : f32 }} -> tensor<4096xf32>
  return %1 : tensor<4096xf32>
}}
"""  # noqa: E501 - the text is MLIR
TURNS = """scf.for %ii = %c0 to {} step %c1 iter_args(%y = %x) -> f32 {{
      %y1 = arith.mulf %y, %f : f32
      %y2 = math.sqrt %y1 : f32
      scf.yield %y2 : f32
    }}"""
BRANCH = f"""%p = arith.cmpi sgt, %i, %z : i32
    %q = scf.if %p -> f32 {{
      %r = {TURNS.format("%c100")}
      scf.yield %r : f32
    }} else {{ scf.yield %x : f32 }}"""
LOOP = f"""%n = arith.index_cast %i : i32 to index
    %q = {TURNS.format("%n")}"""


READING = 0.02
"""What an op takes of both that computes nothing."""


@pytest.mark.long
@pytest.mark.parametrize(("body", "taken"), [(BRANCH, 1), (LOOP, 100)], ids=["branch", "loop"])
def test_an_interval_holds_whatever_the_data_decides(body: str, taken: int, tmp_path: Path) -> None:
    """Both ops have the same loop; the data decides whether one of them runs it 100 times, or not at all."""
    bundle = built(LOOPS.format(body), tmp_path, ())
    for data, truth in ((0, 0.0), (taken, 0.5)):
        first, second = costs(bundle, tmp_path, "4096xf32=1", f"4096xi32={data}").values()
        whole = first["attributed"] + second["attributed"]
        assert first["uncertain"]
        for cost, part in ((first, truth), (second, 1 - truth)):
            assert cost["likely_low"] <= (part + READING) * whole
            assert cost["likely_high"] >= (part - READING) * whole


def costs(bundle: Path, folder: Path, *inputs: str) -> dict[int, Json]:
    """What the ops of a plain run cost by the default rule, by line."""
    run = folder / "run.parquet"
    given = [word for spec in inputs for word in ("--input", spec)]
    check_cli("record", bundle, "-o", run, "--serial", "--iterations", "3", "--force", *given)
    return {op["line"]: op["metrics"]["cpu_ns"] for op in json_cli("attribute", run, "--map", bundle)["ops"]}


def share(costs: dict[int, Json], line: int) -> float:
    """The part that a line has of all."""
    return float(costs[line]["attributed"] / sum(cost["attributed"] for cost in costs.values()))
