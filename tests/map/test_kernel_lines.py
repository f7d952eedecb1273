"""Kernel lines: final IR, its ops at every dispatch, and machine code with debug lines."""

from __future__ import annotations

import re
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.builders import built_graph
from tests.conftest import Built
from tests.support import PLAIN_FLAGS, SAMPLES, check_cli, long_where, runs_of
from tracemap.core.errors import BundleInvalid, ModuleInvalid
from tracemap.core.toolchain import find_tool
from tracemap.core.units import UNKNOWN
from tracemap.ir.executables import KernelNames
from tracemap.machine.code import OUTSIDE, Instruction, instructions_of, loops_by_address, loops_of
from tracemap.machine.images import NO_LINE, CodeFunction, Image, read_image, read_images
from tracemap.map.build.build import BuildRequest, build
from tracemap.map.build.compiler.compilation import Compiler
from tracemap.map.bundle import Bundle, load
from tracemap.map.model import Evidence

SYSTEM_ELF = ("--iree-llvmcpu-link-embedded=false",)

# Constants in the model, dynamic shapes, a loop, convolutions, many equal layers.
MODELS = ["jax_gpt2_4l", "torch_bert_tiny", "torch_resnet18_small", "hand_dynamic", "hand_loop", "hand_constexpr"]


def plain_module(model: Path, folder: Path, *flags: str) -> Path:
    module = folder / "plain.vmfb"
    subprocess.run([find_tool("iree-compile"), model, *PLAIN_FLAGS, *flags, "-o", module], check=True)
    return module


def code_of(image: Image) -> list[tuple[str, list[tuple[str, str]]]]:
    """The disassembly of an image, function by function, wherever in the image it lies."""
    return [
        (function.name, [(each.mnemonic, placed(each, function)) for each in instructions_of(image, function)])
        for function in image.functions
    ]


def placed(instruction: Instruction, function: CodeFunction) -> str:
    """Operands, with places counted from the function's begin; distances to constants are left out."""
    if instruction.targets:
        return " ".join(str(target - function.low) for target in instruction.targets)
    return re.sub(r"rip [+-] 0x[0-9a-f]+", "rip", instruction.operands)


@pytest.mark.long
@pytest.mark.parametrize("name", long_where(MODELS, lambda _, name: name == "torch_resnet18_small"))
def test_the_instructions_are_those_of_a_plain_compile(name: str, built: Built, tmp_path: Path) -> None:
    ours = read_images(load(built(name)).module_path)
    plain = read_images(plain_module(SAMPLES / "models" / f"{name}.mlir", tmp_path))
    assert len(ours) == len(plain) == 1
    assert code_of(ours[0]) == code_of(plain[0])
    assert sum(len(code) for _, code in code_of(plain[0])) > 100


def test_index_computations_belong_to_their_users(tmp_path: Path) -> None:
    # The compiler makes one loop of both dimensions, and divides to know which element the reversal reads.
    model = """func.func @main(%x: tensor<513x517xf32>, %y: tensor<513x517xf32>) -> tensor<513x517xf32> {
  %r = stablehlo.reverse %x, dims = [0] : tensor<513x517xf32>
  %s = stablehlo.add %r, %y : tensor<513x517xf32>
  return %s : tensor<513x517xf32>
}
"""
    graph = built_graph(model, tmp_path)
    reverse, add = (op.id for op in graph.ops if op.line in (2, 3))
    (site,) = graph.sites
    operations = {member.op: member.operations for member in site.members}
    assert operations[add] == 513 * 517
    dividing = operations[reverse]
    assert isinstance(dividing, int)
    assert dividing > 2 * 513 * 517
    steps = {step.op_name: step.ops for kernel in graph.kernels for step in kernel.steps}
    assert steps["arith.remsi"] == steps["arith.divsi"] == steps["tensor.extract"] == (reverse,)
    assert steps["arith.addf"] == (add,)


def test_a_raised_softmax_has_the_steps_of_its_parts(tmp_path: Path) -> None:
    # The compiler lowers it to all of its work again, and gives all of that the location of the divide.
    model = Path(__file__).parent.with_name("programs") / "softmax.mlir"
    graph = built_graph(model.read_text(encoding="utf-8"), tmp_path)
    highest, subtract, exponential, total, divide = (op.id for op in graph.ops if op.line in (4, 6, 7, 8, 10))
    (kernel,) = graph.kernels
    ops_of: dict[str, set[tuple[str, ...]]] = {}
    for step in kernel.steps:
        ops_of.setdefault(step.op_name, set()).add(step.ops)
    assert ops_of["arith.maxnumf"] == {(highest,)}
    assert ops_of["arith.subf"] == {(subtract,)}
    assert ops_of["math.exp"] == {(exponential,)}
    assert ops_of["arith.addf"] == {(total,)}
    assert ops_of["arith.divf"] == {(divide,)}
    # The sum is made of the exponentials as they are worked out; they are worked out again for the division.
    loops = {(highest,), (subtract, exponential, total), (subtract, exponential, divide)}
    assert ops_of["linalg.generic"] == loops


def system_linker() -> str:
    """The compiler's own linker, for shared objects of the system's kind."""
    import iree.compiler

    libraries = Path(str(iree.compiler.__file__)).parent / "_mlir_libs"
    return f"--iree-llvmcpu-system-linker-path={libraries / 'iree-lld'} -flavor gnu"


@pytest.mark.long
def test_system_elf_has_the_same_lines(built: Built, tmp_path: Path) -> None:
    model = SAMPLES / "models" / "hand_mlp.mlir"
    flags = (*SYSTEM_ELF, system_linker())
    check_cli("build", model, "-o", tmp_path / "m.tracemap", "--", *flags)
    (ours,) = read_images(load(tmp_path / "m.tracemap").module_path)
    (plain,) = read_images(plain_module(model, tmp_path, *flags))
    assert code_of(ours) == code_of(plain)
    bundle = load(built("hand_mlp"))
    (embedded,) = read_images(bundle.module_path)
    for kernel in bundle.graph.kernels:
        function = ours.function_by_name[kernel.name]
        lines = {line for _, _, line in runs_of(ours, function)}
        assert lines == {line for _, _, line in runs_of(embedded, embedded.function_by_name[kernel.name])}


@pytest.mark.parametrize("name", long_where(MODELS, lambda _, name: name.startswith("torch")))
def test_every_line_of_the_code_is_a_step(name: str, built: Built) -> None:
    bundle = load(built(name))
    (image,) = read_images(bundle.module_path)
    for kernel in bundle.graph.kernels:
        steps = {step.line for step in kernel.steps}
        lines = {line for _, _, line in runs_of(image, image.function_by_name[kernel.name])}
        assert lines <= steps | {NO_LINE}
        assert len(lines) > 2


@pytest.mark.parametrize("name", long_where(MODELS, lambda _, name: name.startswith("torch")))
def test_steps_are_on_their_lines(name: str, built: Built) -> None:
    """Each line of the text that begins an op has one step of that name."""
    bundle = load(built(name))
    for kernel in bundle.graph.kernels:
        lines = bundle.kernel_text(kernel).splitlines()
        for step in kernel.steps:
            words = lines[step.line - 1]
            short = step.op_name.removeprefix("func.")
            assert step.op_name in words or short in words, (kernel.name, step, words)
            assert step.parent is UNKNOWN or step.parent < step.line
        begun = [n for n, text in enumerate(lines, 1) if re.match(r"\s*%[\w:, ]+ = ", text)]
        assert set(begun) <= {step.line for step in kernel.steps}


@pytest.mark.parametrize(
    "name",
    long_where(
        ["jax_gpt2_4l", "torch_resnet18_small", "hand_repeat12", "hand_repeat6_calls"], lambda number, _: number == 1
    ),
)
def test_located_members_have_steps_at_every_site(name: str, built: Built) -> None:
    """Also at sites whose locations the compiler dropped when it made one kernel of equal ones."""
    graph = load(built(name)).graph
    shared = 0
    for kernel in graph.kernels:
        ops = {op for step in kernel.steps for op in step.ops}
        shared += len(kernel.sites) > 1
        for site in kernel.sites:
            seen = {m.op for m in graph.site_by_id[site].members if m.evidence is not Evidence.ABSORBED}
            assert seen <= ops, (kernel.name, site)
    assert shared


def test_equal_steps_belong_to_the_same_op_of_each_layer(built: Built) -> None:
    """Twelve equal layers, one kernel: a step has the ops of all, one of each kind at each site."""
    graph = load(built("hand_repeat12")).graph
    (kernel,) = graph.kernels
    names = {op.id: op.name for op in graph.ops}
    all_members = {m.op for site in graph.sites for m in site.members}
    computing = [step for step in kernel.steps if all_members & set(step.ops)]
    assert {"linalg.matmul", "arith.maximumf"} <= {step.op_name for step in computing}
    assert len(kernel.sites) == 12
    for step in computing:
        assert len({names[op] for op in step.ops}) == 1
        for site in kernel.sites:
            members = {m.op for m in graph.site_by_id[site].members}
            assert len(members & set(step.ops)) == 1


def test_loops_are_those_of_the_kernel(built: Built) -> None:
    """A softmax: maximum, sum and quotient are loops next to each other in the loop over rows."""
    bundle = load(built("jax_gpt2_4l"))
    kernel = next(kernel for kernel in bundle.graph.kernels if "softmax" in kernel.name)
    (image,) = read_images(bundle.module_path)
    code = instructions_of(image, image.function_by_name[kernel.name])
    loops = loops_of(code)
    top = [number for number, loop in enumerate(loops) if loop.parent == OUTSIDE]
    assert len(top) == 1
    inner = [loop for loop in loops if loop.parent == top[0]]
    assert len(inner) >= 3
    op_of_line = {step.line: step.op_name for step in kernel.steps}
    kinds = [{op_of_line[line] for line in loop.lines if line in op_of_line} for loop in inner]
    assert any("arith.maxnumf" in found and "math.exp" not in found for found in kinds)
    assert any({"math.exp", "arith.addf"} <= found and "arith.divf" not in found for found in kinds)
    assert any("arith.divf" in found for found in kinds)
    for loop in loops:
        assert loops_by_address(code, loops)[loop.header] >= loops.index(loop)
        assert sum(loop.lines.values()) == sum(1 for each in code if loop.holds(each.address))


def test_addresses_are_looked_up_as_the_rows_say(built: Built) -> None:
    bundle = load(built("hand_mlp"))
    (image,) = read_images(bundle.module_path)
    for number, function in enumerate(image.functions):
        addresses = np.arange(function.low, function.high, dtype=np.int64)
        assert (image.functions_at(addresses) == number).all()
        lines = np.concatenate([np.full(high - low, line) for low, high, line in runs_of(image, function)])
        assert (image.lines_at(addresses) == lines).all()
    assert (image.functions_at(np.array([0, 1 << 40], dtype=np.int64)) == -1).all()


@pytest.mark.long
def test_a_bundle_is_made_even_if_the_second_compilation_fails(tmp_path: Path) -> None:
    """Without steps, and it says so."""
    program = tmp_path / "compiler"
    program.write_text(
        f"#!{sys.executable}\n"
        "import os, sys\n"
        "if any(word.startswith('--compile-from') for word in sys.argv):\n"
        "    sys.exit('refused')\n"
        f"os.execv({str(find_tool('iree-compile'))!r}, sys.argv)\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    model = SAMPLES / "models" / "hand_mlp.mlir"
    compiler = Compiler(program, PLAIN_FLAGS)
    made = build(BuildRequest(model.read_bytes(), model.name, tmp_path / "m.tracemap", compiler=compiler))
    assert [each.slug for each in made.graph.diagnostics] == ["kernels-unknown"]
    assert len(made.graph.sites) == 4
    assert all(kernel.text is UNKNOWN and not kernel.steps for kernel in made.graph.kernels)
    with pytest.raises(BundleInvalid, match="does not keep its kernels"):
        made.configured()
    check_cli("show", tmp_path / "m.tracemap")


def test_the_kept_module_compiles_to_the_same_code(built: Built, tmp_path: Path) -> None:
    bundle: Bundle = load(built("hand_constexpr"))
    again, configured = tmp_path / "again.vmfb", tmp_path / "configured.mlir"
    configured.write_bytes(bundle.configured())
    flags = [*bundle.graph.module.flags, "--compile-from=executable-configurations"]
    subprocess.run([find_tool("iree-compile"), configured, *flags, "-o", again], check=True)
    assert code_of(read_images(again)[0]) == code_of(read_images(bundle.module_path)[0])


@pytest.mark.parametrize(
    ("kernel", "file"),
    [
        ("a_b$c", "a_b_c.mlir"),
        ("../../x", "_.._x.mlir"),
        ("..", "kernel.mlir"),
        ("ä b", "__b.mlir"),
        ("", "kernel.mlir"),
    ],
)
def test_names_of_kernels_lead_nowhere(kernel: str, file: str) -> None:
    assert KernelNames().file_of(kernel) == file


def test_no_two_kernels_have_one_file() -> None:
    names = KernelNames()
    assert [names.file_of(each) for each in ("a$b", "a_b", "A_B")] == ["a_b.mlir", "a_b.2.mlir", "A_B.3.mlir"]


@pytest.mark.parametrize("cut", [0, 3, 200, 5000])
def test_what_is_no_image(cut: int, built: Built, tmp_path: Path) -> None:
    (image,) = read_images(load(built("hand_mlp")).module_path)
    file = tmp_path / "cut.so"
    file.write_bytes(image.data[:cut])
    with pytest.raises(ModuleInvalid, match="is not an ELF file"):
        read_image(file)


@pytest.mark.long
def test_damaged_images_end_in_an_image_or_one_sentence(built: Built, tmp_path: Path) -> None:
    """Some hundred bytes changed, one at a time."""
    (image,) = read_images(load(built("hand_mlp")).module_path)
    file = tmp_path / "damaged.so"
    refused = 0
    for place in range(0, len(image.data), max(1, len(image.data) // 300)):
        data = bytearray(image.data)
        data[place] ^= 0xFF
        file.write_bytes(data)
        try:
            assert len(read_images(file)) <= 1
        except ModuleInvalid:
            refused += 1
    assert refused < 300


POOL = """!in = !torch.vtensor<[1,64,16,16],f32>
!out = !torch.vtensor<[1,64,1,1],f32>
func.func @pool(%x: !in) -> !out attributes {torch.onnx_meta.opset_version = 17 : si64} {
  %relu = torch.operator "onnx.Relu"(%x) : (!in) -> !in
  %pool = torch.operator "onnx.GlobalAveragePool"(%relu) : (!in) -> !out
  return %pool : !out
}
"""


@pytest.mark.long
def test_a_step_without_location_belongs_to_the_op_around_it(tmp_path: Path) -> None:
    """IREE's importer of ONNX drops the location of the sum in a pooling, which is nearly all of the work."""
    graph = built_graph(POOL, tmp_path)
    (pool,) = (op.id for op in graph.ops if op.name.endswith("GlobalAveragePool"))
    sums = [step for kernel in graph.kernels for step in kernel.steps if step.op_name == "arith.addf"]
    assert [step.ops for step in sums] == [(pool,)]
