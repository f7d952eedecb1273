"""Data flow between instructions: producers, consumers, waits, latencies.

The other side is the disassembler's text of real kernels, read with patterns, and LLVM's own model of processors.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from tests.built_kernels import built, in_loops, steps_of
from tests.oracle.linalg import chain_then_sum
from tests.support import check_cli
from tracemap.attribution.kernel_lines.lines import NO_METRIC, KernelSteps, Spot, kernel_steps, lines_of_ops
from tracemap.attribution.kernel_lines.lines import in_loops as in_loops_of
from tracemap.attribution.scan.rows import StepRow
from tracemap.machine.code import OUTSIDE, WINDOW, Instruction, instructions_of, loops_of
from tracemap.machine.images import kernel_images, read_images
from tracemap.machine.memory_traffic import bytes_brought_in, waits_of
from tracemap.map.bundle import load
from tracemap.runs.model import SAMPLES

CHAIN = """func.func @main(%x: tensor<64x64xf32>, %y: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %a = stablehlo.tanh %x : tensor<64x64xf32>
  %b = stablehlo.sqrt %y : tensor<64x64xf32>
  %c = stablehlo.exponential %a : tensor<64x64xf32>
  %d = stablehlo.add %b, %c : tensor<64x64xf32>
  return %d : tensor<64x64xf32>
}
"""
BASELINE = "--iree-llvmcpu-target-cpu=x86-64-v3"
AARCH64 = ("--iree-llvmcpu-target-triple=aarch64-linux-gnu", "--iree-llvmcpu-target-cpu=generic")

Chain = Callable[..., KernelSteps]


@pytest.fixture
def chain(tmp_path: Path) -> Chain:
    """Builds the program above with flags; returns its only kernel."""

    def compiled(*flags: str) -> KernelSteps:
        return steps_of(built(CHAIN, tmp_path, flags))

    return compiled


def op_lines(steps: KernelSteps) -> dict[int, str]:
    """The lines that do the work of ops, with what they compute."""
    return {step.line: step.op_name for step in steps.kernel.steps if step.op_name.startswith(("math.", "arith.addf"))}


@pytest.mark.long
@pytest.mark.parametrize("flags", [(BASELINE,), AARCH64])
def test_loads_are_of_who_takes_and_stores_of_who_made(chain: Chain, flags: Sequence[str]) -> None:
    """Two matrices are read, by tanh and by sqrt, and the sum is stored; all of it stands on the nest's own line."""
    steps = chain(*flags)
    names = op_lines(steps)
    assert sorted(names.values()) == ["arith.addf", "math.exp", "math.sqrt", "math.tanh"]
    assert steps.frames.owned == names.keys()
    nest = next(step.line for step in steps.kernel.steps if step.op_name == "linalg.generic")
    moved = [each for each in in_loops(steps) if each.line == nest and each.values.places - {"rsp", "sp"}]
    loaded = {names[steps.code.line_at[each.address]] for each in moved if each.values.loads}
    stored = {names[steps.code.line_at[each.address]] for each in moved if each.values.stores}
    assert loaded <= {"math.tanh", "math.sqrt"}
    assert "math.tanh" in loaded
    assert stored == {"arith.addf"}


def test_an_op_that_folds_its_load_keeps_it(chain: Chain) -> None:
    steps = chain(BASELINE)
    for each in in_loops(steps):
        if each.line in steps.frames.owned:
            assert steps.code.line_at[each.address] == each.line


@pytest.mark.long
def test_only_what_takes_in_what_is_loaded_waits_for_memory(chain: Chain) -> None:
    """Of the loop's instructions, the loads of the two matrices, and at most what takes nothing but these."""
    steps = chain(BASELINE)
    body = in_loops(steps)
    waits = waits_of(body).load_of
    matrices = [each for each in body if re.search(r"ptr \[r(?!ip)", each.operands) and not each.values.stores]
    assert matrices
    assert {each.address for each in matrices if not each.values.reads} <= waits.keys()
    assert len(waits) <= 3 * len(matrices)
    last = max(each.address for each in body if each.values.stores)
    assert last not in waits


def text_of(instruction: Instruction) -> str:
    """As a disassembler writes it."""
    return f"{instruction.mnemonic} {instruction.operands}"


def lines_of(steps: KernelSteps, samples: Mapping[int, int]) -> Counter[int]:
    """What samples at addresses give to the lines of ops."""
    rows = [StepRow(0, steps.kernel.name, 1, address, (count,)) for address, count in samples.items() if count]
    waits = steps.waits_in_loops(rows, 0, NO_METRIC)
    seen: Counter[Spot] = Counter()
    for row in rows:
        seen[steps.spot_of(row, SAMPLES)] += row.values[0]
    return lines_of_ops(steps, seen, in_loops_of(steps, rows, 0, SAMPLES, waits), waits)


@pytest.mark.long
@pytest.mark.parametrize("at_loads", [0, 3, 5])
def test_a_core_that_never_waits_is_found_at_loads_as_well(chain: Chain, at_loads: int) -> None:
    """Loads keep it busy, too, but are done before they are the oldest: with half as many samples at each, and fewer,
    as at an instruction that takes as long, no op gets more for its loads.

    Waits come on top of that, for the ops that read.
    """
    steps = chain(BASELINE)
    names, waits = op_lines(steps), steps.code.waits
    busy = {each.address: (at_loads if each.address in waits else 10) * each.hundredths for each in in_loops(steps)}
    found = lines_of(steps, busy)
    own: Counter[int] = Counter()
    for each in in_loops(steps):
        if each.address in steps.code.line_at and not each.values.reloads:
            own[steps.code.line_at[each.address]] += each.hundredths
    for line, cycles in own.items():
        assert found[line] / found.total() == pytest.approx(cycles / own.total(), abs=0.002), names[line]
    waiting = sum(busy.values())
    slow = Counter(busy)
    slow[min(each.address for each in in_loops(steps) if each.address in waits)] += waiting
    more = Counter({names[line]: count - found[line] for line, count in lines_of(steps, slow).items()})
    assert more.total() == waiting
    assert more["math.tanh"] + more["math.sqrt"] >= waiting


def regions(steps: KernelSteps) -> list[Instruction]:
    """The instructions in loops that are not jumps."""
    return [each for each in in_loops(steps) if not each.targets and not each.mnemonic.startswith(("j", "nop"))]


def cycles_by_llvm(program: str, code: Sequence[Instruction], processor: str) -> list[float]:
    """The reciprocal throughput of each instruction, as LLVM's model of a processor has it."""
    lines = [f"{each.mnemonic} {re.sub(r'rip [+-] 0x[0-9a-f]+', 'rip + 64', each.operands)}" for each in code]
    options = [f"-mcpu={processor}", "-mtriple=x86_64", "--json", "--instruction-info", "-iterations=1"]
    text = "\n".join([".intel_syntax noprefix", *lines, ""])
    done = subprocess.run([program, *options], input=text, capture_output=True, text=True, check=True)
    (region,) = json.loads(done.stdout)["CodeRegions"]
    return [float(each["RThroughput"]) for each in region["InstructionInfoView"]["InstructionList"]]


@pytest.mark.long
@pytest.mark.parametrize("processor", ["icelake-server", "znver4", "skylake-avx512"])
@pytest.mark.parametrize("flag", [BASELINE, "--iree-llvmcpu-target-cpu=icelake-server"])
def test_what_ops_keep_busy_is_near_to_what_llvm_says(chain: Chain, flag: str, processor: str) -> None:
    """As a share of the loop, and with the divisions' own unit left out of both."""
    program = next((each for each in ("llvm-mca-19", "llvm-mca-18", "llvm-mca") if shutil.which(each)), None)
    if program is None:
        pytest.skip("needs llvm-mca of a recent LLVM (Debian: llvm-19)")
    known = subprocess.run([program, "-mcpu=help"], input="", capture_output=True, text=True, check=False)
    if processor not in known.stdout + known.stderr:
        pytest.skip(f"{program} does not know {processor}")
    steps = chain(flag)
    code = [each for each in regions(steps) if not re.match(r"v(div|sqrt|rsqrt|rcp)", each.mnemonic)]
    ours: Counter[int] = Counter()
    theirs: Counter[int] = Counter()
    for each, cycles in zip(code, cycles_by_llvm(program, code, processor), strict=True):
        line = steps.code.line_at.get(each.address, 0)
        ours[line] += each.hundredths
        theirs[line] += round(100 * cycles)
    for line in op_lines(steps):
        assert abs(ours[line] / ours.total() - theirs[line] / theirs.total()) < 0.1


@pytest.mark.parametrize("flag", [BASELINE, "--iree-llvmcpu-target-cpu=icelake-server"])
def test_each_instruction_takes_about_what_llvm_says_of_server_cores(flag: str, tmp_path: Path) -> None:
    """Between the least and the most of three models, or a quarter beside them.

    But for divisions and roots, which count half; for what is put on the stack, which is nobody's; and for products of
    512 bits, for which LLVM takes a server's core to have one unit, where many have two.
    """
    program = next((each for each in ("llvm-mca-19", "llvm-mca-18") if shutil.which(each)), None)
    if program is None:
        pytest.skip("needs llvm-mca of a recent LLVM (Debian: llvm-19)")
    bodies = [*bodies_of(READS.replace("READS", "#id"), tmp_path, flag)]
    bodies += bodies_of(READS.replace("READS", "#turned"), tmp_path, flag)
    left_out = re.compile(r"j|nop|call|v?(div|sqrt|rsqrt|rcp)|vf?n?m(ul|add|sub).*zmm|.*ptr \[r[sb]p.*\], ")
    code = [each for body in bodies for each in body if not left_out.match(f"{each.mnemonic} {each.operands}")]
    models = [cycles_by_llvm(program, code, each) for each in ("icelake-server", "sapphirerapids", "znver4")]
    for each, *cycles in zip(code, *models, strict=True):
        low, high = 100 * min(cycles), 100 * max(cycles)
        assert 0.8 * low <= each.hundredths <= 1.25 * high, f"{each.mnemonic} {each.operands}"
    assert len(code) > 100


@pytest.mark.long
def test_every_instruction_takes_some_time(chain: Chain) -> None:
    assert all(each.hundredths > 0 for flags in ((BASELINE,), AARCH64) for each in chain(*flags).code.instructions)


@pytest.mark.long
def test_the_loops_of_the_kernel_are_found_without_the_map(chain: Chain) -> None:
    steps = chain(BASELINE)
    ((image, function),) = kernel_images(steps.images(), steps.kernel.name)
    assert steps.code.loops == loops_of(instructions_of(image, function))


# ---- what waits for memory

READS = """#id = affine_map<(d0, d1) -> (d0, d1)>
#turned = affine_map<(d0, d1) -> (d1, d0)>
func.func @main(%t: tensor<1000xf32>, %i: tensor<64x64xi32>, %x: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %e = tensor.empty() : tensor<64x64xf32>
  %r = linalg.generic {indexing_maps = [#id, READS, #id], iterator_types = ["parallel", "parallel"]}
      ins(%i, %x : tensor<64x64xi32>, tensor<64x64xf32>) outs(%e : tensor<64x64xf32>) {
  ^bb0(%n: i32, %in: f32, %out: f32):
    %p = arith.index_cast %n : i32 to index
    %g = tensor.extract %t[%p] : tensor<1000xf32>
    %a = math.exp %g : f32
    %b = math.tanh %in : f32
    %v = arith.addf %a, %b : f32
    linalg.yield %v : f32
  } -> tensor<64x64xf32>
  return %r : tensor<64x64xf32>
}
"""


def bodies_of(model: str, tmp_path: Path, flag: str = BASELINE) -> list[list[Instruction]]:
    """The instructions of each innermost loop of a model's only kernel."""
    file, bundle = tmp_path / "reads.mlir", tmp_path / "reads.tracemap"
    file.write_text(model)
    check_cli("build", file, "-o", bundle, "--force", "--", flag)
    made = load(bundle)
    (kernel,) = made.graph.kernels
    code = kernel_steps(made.graph, kernel, lambda: read_images(made.module_path)).code
    found: dict[int, list[Instruction]] = defaultdict(list)
    for each in code.instructions:
        found[code.loop_at.get(each.address, OUTSIDE)].append(each)
    return [body for loop, body in found.items() if loop != OUTSIDE]


def is_load(each: Instruction) -> bool:
    """By the text: an operand in memory that is neither beside the code nor on the stack, and not the first one."""
    return re.search(r", .*ptr \[(?!rip|rsp|rbp)", each.operands) is not None and not each.mnemonic.startswith("lea")


@pytest.mark.long
def test_waits_are_at_loads_and_right_behind_them_and_nowhere_else(tmp_path: Path) -> None:
    for body in bodies_of(READS.replace("READS", "#id"), tmp_path):
        waits = waits_of(body)
        loads = {each.address for each in body if is_load(each)}
        following = {after.address: before.address for before, after in pairwise(body) if before.address in loads}
        for address, waited_for in waits.load_of.items():
            assert waited_for in loads
            assert address == waited_for or following[address] == waited_for
        assert waits.load_of.keys().isdisjoint(waits.sources_of)
        assert all(loads >= found for found in waits.sources_of.values())


@pytest.mark.long
def test_a_wait_ends_a_window_behind_the_load(tmp_path: Path) -> None:
    """What comes later in a long turn was not in work while the load waited."""
    text = chain_then_sum([("math.erf", 1), ("math.erf", 2)]).text
    (body,) = (body for body in bodies_of(text, tmp_path) if len(body) > 2 * WINDOW)
    behind = waits_of(body).sources_of
    addresses = [each.address for each in body]
    last_load = max(number for number, each in enumerate(body) if is_load(each))
    assert not behind.keys().isdisjoint(addresses[last_load + 2 : last_load + 50])
    assert behind.keys().isdisjoint(addresses[last_load + WINDOW + 1 :])


@pytest.mark.long
def test_a_load_whose_place_was_loaded_waits_as_well(tmp_path: Path) -> None:
    """A gather finds its place in registers that are taken out of vectors of indices."""
    bodies = bodies_of(READS.replace("READS", "#id"), tmp_path)
    gathered = [(body, each) for body in bodies for each in body if is_load(each) and each.mnemonic == "vinsertps"]
    assert gathered
    for body, each in gathered:
        assert waits_of(body).load_of[each.address] == each.address


def test_what_is_computed_from_loaded_values_is_behind_their_waits(tmp_path: Path) -> None:
    """The stored sum comes from all that is loaded, but for indices; products are computed, and wait for no memory."""
    for body in bodies_of(READS.replace("READS", "#id"), tmp_path):
        waits = waits_of(body)
        (*_, stored) = (each for each in body if each.values.stores)
        loads = {each.address for each in body if is_load(each) and not each.mnemonic.startswith("vpmovsx")}
        assert waits.sources_of[stored.address] == loads
        products = [each.address for each in body if each.mnemonic == "vmulps" and "ptr" not in each.operands]
        assert products
        assert waits.sources_of.keys() >= set(products)


@pytest.mark.long
def test_what_a_loop_brings_in(tmp_path: Path) -> None:
    """Read in sequence, a vector of eight brings half a line; turned, each of its elements brings a line of its own."""
    bare = READS.replace("%g = tensor.extract %t[%p] : tensor<1000xf32>", "%g = arith.sitofp %n : i32 to f32")
    for order, of_matrix in (("#id", 32), ("#turned", 8 * 64)):
        bodies = bodies_of(bare.replace("READS", order), tmp_path)
        brought = [bytes_brought_in([each for each in body if is_load(each)], body) for body in bodies]
        vectors = max(brought) / (32 + of_matrix)  # with as many bytes of whole numbers, read in sequence
        assert vectors == int(vectors) > 0


@pytest.mark.long
def test_each_element_that_is_gathered_brings_a_line(tmp_path: Path) -> None:
    """Also where registers take one index after the other, so that all of them are read by the same words."""
    for body in bodies_of(READS.replace("READS", "#id"), tmp_path):
        vectors = bytes_brought_in([each for each in body if is_load(each)], body) / (32 + 32 + 8 * 64)
        assert vectors == int(vectors) > 0


CONVERTED = """func.func @main(%x: tensor<256x512xf16>, %y: tensor<256x512xf32>) -> tensor<256x512xf32> {
  %wide = stablehlo.convert %x : (tensor<256x512xf16>) -> tensor<256x512xf32>
  %apart = stablehlo.subtract %y, %wide : tensor<256x512xf32>
  return %apart : tensor<256x512xf32>
}
"""


@pytest.mark.long
def test_what_waits_on_the_stack_for_a_call_is_of_who_takes_it_afterwards(tmp_path: Path) -> None:
    """Without instructions that convert, a function does, for which all registers must be free.

    The compiler gives what brings the other matrix back the line of the conversion before it.
    """
    features = "--iree-llvmcpu-target-cpu-features=+avx,+avx2"
    steps = steps_of(built(CONVERTED, tmp_path, ("--iree-llvmcpu-target-cpu=x86-64", features)))
    name_of = {step.line: step.op_name for step in steps.kernel.steps}
    body = in_loops(steps)
    assert any(each.mnemonic == "call" for each in body), "the conversion is a function's"
    loaded = {
        each.address: name_of[steps.code.line_at[each.address]]
        for each in body
        if each.values.loads and not each.values.near
    }
    whole = [each.address for each in body if re.match(r"vmov[au]ps ymm\d+, ymmword ptr \[r(?!sp)", text_of(each))]
    assert [loaded[address] for address in whole] == ["arith.subf"]
    assert {name for address, name in loaded.items() if address not in whole} == {"arith.extf"}
    stored = [each for each in body if each.values.stores]
    assert {name_of[steps.code.line_at[each.address]] for each in stored} == {"arith.subf"}
