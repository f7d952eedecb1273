"""Execution counts found without running, compared with a simulator's and with counts by hand."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec import structs

from tests.built_kernels import built as built_model
from tests.built_kernels import steps_of
from tests.conftest import Built
from tests.support import ROOT, SAMPLES, long_where
from tracemap.capture.cache_simulation import find_valgrind
from tracemap.core.errors import ToolMissing
from tracemap.core.toolchain import find_tool
from tracemap.core.units import UNKNOWN
from tracemap.machine.caches import Cache, Caches
from tracemap.machine.code import Instruction, instructions_of, loops_of
from tracemap.machine.estimate import Estimate, estimate
from tracemap.machine.execution import ASSUMED, ASSUMED_TURNS, Execution, blocks_of, executed
from tracemap.machine.images import Image, kernel_images, read_image
from tracemap.machine.integers import (
    LOW_BYTE,
    Comparison,
    Memory,
    Register,
    State,
    Surroundings,
    Value,
    integer_step,
    number,
    operands_of,
    signed,
)
from tracemap.map.build.compiler.recompiled_kernels import build_simulated
from tracemap.map.bundle import Bundle, load
from tracemap.map.model import Command
from tracemap.runs.callgrind import read_callgrind

CACHES: Caches = (Cache(1 << 60, 1),)
OF_DATA = {"main_dispatch_5_elementwise_32x10_f32": 0.02}
"""Kernels with a branch that depends on data: by which part of all counts they may be off."""


def test_an_operand_is_read_as_it_is_written() -> None:
    assert operands_of("rax, qword ptr [rcx + rsi*8 - 0x10]") == (
        Register("rax", 8),
        Memory("rcx", "rsi", 8, -16, 8),
    )
    assert operands_of("dword ptr [rsp + 0x1c], 7")[1] == 7
    assert operands_of("zmm1 {k1}, dword ptr fs:[r8]{1to16}") == (None, Memory("r8", "", 1, 0, 4))
    assert operands_of("ah, r9b") == (Register("rax", 0), Register("r9", 1))
    assert operands_of("") == ()


NOTHING = Surroundings({}, {})


def ran(*code: tuple[str, str, set[str]], registers: dict[str, int] | None = None) -> State:
    """The state behind instructions, from registers with numbers."""
    given = {name: number(value) for name, value in (registers or {}).items()}
    state = State.at_entry(Surroundings(given, {}))
    for mnemonic, operands, writes in code:
        step = integer_step(mnemonic, operands, frozenset(writes))
        if step is not None:
            step.run(state)
    return state


@pytest.mark.parametrize(
    ("mnemonic", "operands", "expected"),
    [
        ("add", "rax, rcx", 17),
        ("sub", "rax, 15", -3),
        ("imul", "rax, rcx, 3", 15),
        ("imul", "rax, rcx", 60),
        ("shl", "rax, 2", 48),
        ("shr", "eax, 1", 6),
        ("lea", "rax, [rcx + rcx*4 - 1]", 24),
        ("and", "eax, 4", 4),
        ("or", "rax, 1", 13),
        ("xor", "rax, rax", 0),
        ("neg", "rax", -12),
        ("not", "rax", -13),
        ("dec", "rax", 11),
        ("mov", "eax, ecx", 5),
        ("movsxd", "rax, ecx", 5),
        ("movzx", "eax, cl", 5),
        ("mov", "al, 1", 1),
    ],
)
def test_what_an_instruction_does_to_a_number(mnemonic: str, operands: str, expected: int) -> None:
    state = ran((mnemonic, operands, {"rax"}), registers={"rax": 12, "rcx": 5})
    value = state.get(Register("rax", 8))
    assert value is not UNKNOWN
    assert signed(value.offset) == expected


def test_a_division_leaves_quotient_and_rest() -> None:
    state = ran(("div", "ecx", {"rax", "rdx"}), registers={"rax": 17, "rdx": 0, "rcx": 5})
    assert (state.get(Register("rax", 4)), state.get(Register("rdx", 4))) == (number(3), number(2))


def test_what_is_not_followed_is_unknown() -> None:
    state = ran(("vmovd", "eax, xmm0", {"rax"}), registers={"rax": 12})
    assert state.get(Register("rax", 8)) is UNKNOWN
    state = ran(("pext", "rax, rcx, rdx", {"rax"}), registers={"rax": 12})
    assert state.get(Register("rax", 8)) is UNKNOWN


def test_a_flag_is_kept_in_a_byte_of_what_is_unknown() -> None:
    kept = ran(
        ("vmovd", "esi, xmm0", {"rsi"}),
        ("mov", "sil, 1", {"rsi"}),
        ("mov", "dword ptr [rsp + 8], esi", set()),
        ("mov", "r8d, dword ptr [rsp + 8]", {"r8"}),
        ("test", "r8b, 1", set()),
    )
    assert kept.registers["r8"] == Value(LOW_BYTE, 1)
    assert kept.compared == Comparison(1, 0, 8)
    assert ran(("cmp", "r8d, esi", set())).compared is UNKNOWN


@pytest.mark.parametrize(
    ("condition", "left", "right", "bits", "holds"),
    [
        ("b", -16, 496, 64, False),
        ("l", -16, 496, 64, True),
        ("b", 0, 496, 64, True),
        ("ne", 1 << 32, 0, 32, False),
        ("ge", 127, -128, 8, True),
        ("ae", 127, -128, 8, False),
        ("s", 3, 4, 64, True),
        ("a", 5, 4, 64, True),
        ("le", 4, 4, 64, True),
    ],
)
def test_whether_a_condition_holds(condition: str, left: int, right: int, bits: int, holds: bool) -> None:
    assert Comparison(left, right, bits).holds(condition) == holds


# ---- beside a simulator


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    long_where(
        ["hand_mlp", "onnx_mlp_named", "jax_mlp_train", "jax_cnn", "torch_bert_tiny"],
        lambda _, name: name in ("jax_cnn", "torch_bert_tiny"),
    ),
)
def test_instructions_run_as_often_as_a_simulator_counts(name: str, built: Built, tmp_path: Path) -> None:
    bundle = load(built(name))
    images, counted = simulated(bundle, SAMPLES / "flags" / f"{name}.flags", tmp_path)
    grids: dict[str, list[Sequence[int]]] = {}
    for command in (each for buffer in bundle.graph.command_buffers for each in buffer.commands):
        if command.kind == "dispatch" and UNKNOWN not in command.workgroups:
            grids.setdefault(str(command.kernel), []).append(grid(command))
    compared = 0
    for kernel, calls in grids.items():
        code = instructions_of(*kernel_images(images, kernel)[0])
        found: Counter[int] = Counter()
        for workgroups in calls:
            found.update(runs_of(code, workgroups))
        ran = {each.address: counted[each.address] for each in code}
        off = sum(abs(found[address] - count) for address, count in ran.items())
        assert off <= OF_DATA.get(kernel, 0) * sum(ran.values()), kernel
        compared += sum(ran.values())
    assert compared > 10_000


def grid(command: Command) -> tuple[int, ...]:
    """The workgroups of a dispatch, all known."""
    return tuple(count for count in command.workgroups if isinstance(count, int))


def runs_of(code: Sequence[Instruction], workgroups: Sequence[int]) -> dict[int, int]:
    """How often instructions run in all workgroups: what they are estimated to take, a cycle each."""
    cycles: Estimate = estimate([replace_cost(each) for each in code], loops_of(code), workgroups, CACHES)
    assert all(doubt.most < ASSUMED.most for doubt in cycles.doubts.values())  # no loop of unknown length
    return {address: round(hundredths / 100) for address, hundredths in cycles.core.items()}


def replace_cost(each: Instruction) -> Instruction:
    """An instruction that takes a cycle."""
    return structs.replace(each, hundredths=100)


def simulated(bundle: Bundle, flags: Path, folder: Path) -> tuple[list[Image], Counter[int]]:
    """The executables of a bundle for a simulator, and how often it ran each instruction in one call."""
    try:
        valgrind = find_valgrind()
    except ToolMissing:
        pytest.skip("needs valgrind (Debian: valgrind)")
    module = build_simulated(bundle.configured(), bundle.graph.module.flags, folder, fused=False).path
    kept = folder / "kept"
    kept.mkdir()
    program = find_tool("iree-run-module")
    options = [
        "--quiet",
        "--vgdb=no",
        "--dump-instr=yes",
        "--dump-line=no",
        "--compress-strings=no",
        "--compress-pos=no",
    ]
    steady = [sys.executable, "-I", "-S", str(ROOT / "tracemap" / "capture" / "valgrind_exec.py")]
    tool = [str(valgrind.program), "--tool=callgrind", *options, f"--callgrind-out-file={folder / 'counts'}"]
    called = [str(program), "--device=local-sync", f"--module={module}", *flags.read_text(encoding="utf-8").split()]
    variables = {**os.environ, "IREE_PRESERVE_DYLIB_TEMP_FILES": str(kept), "TMPDIR": str(kept), "LD_BIND_NOW": "1"}
    done = subprocess.run([*steady, *tool, *called], env=variables, cwd=SAMPLES, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    images = {str(path): read_image(path) for path in sorted(kept.glob("*.so")) if path.stat().st_size}
    counts, found = read_callgrind(folder / "counts", images), Counter[int]()
    fetched = counts.events.index("Ir")
    for (_, address), values in counts.costs.items():
        found[address] += values[fetched]
    return list(images.values()), found


# ---- what is not known


DYNAMIC = """
func.func @main(%x: tensor<?x64xf32>) -> tensor<?x64xf32> {
  %a = stablehlo.tanh %x : tensor<?x64xf32>
  %b = stablehlo.exponential %a : tensor<?x64xf32>
  return %b : tensor<?x64xf32>
}
"""


@pytest.mark.long
def test_a_loop_of_unknown_length_is_assumed_and_a_size_makes_it_known(tmp_path: Path) -> None:
    steps = steps_of(built_model(DYNAMIC, tmp_path, ()))
    code, loops = steps.code.instructions, steps.code.loops
    alone: Execution = executed(blocks_of(code, loops), NOTHING)
    assert max(doubt.most for doubt in alone.doubts.values()) >= ASSUMED.most
    assert max(alone.counts.values()) >= ASSUMED_TURNS / 2  # it depends on data whether it begins at all
    assert estimate(code, loops, (1, 1, 1), CACHES).doubts
    small, large = (estimate(code, loops, (1, 1, 1), CACHES, (size, 0)) for size in (64, 640))
    assert not small.doubts
    assert not large.doubts
    assert sum(large.core.values()) > 5 * sum(small.core.values())
