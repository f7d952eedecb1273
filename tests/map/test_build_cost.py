"""The cost of building: bytes add up to the module's file, and a slow kernel is named first."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import Built
from tests.oracle.build_cost import bundle_of, constant_bytes, constants_program, program
from tests.support import SAMPLES, check_cli, json_cli, long_where, run_cli
from tracemap.core.codec import encode
from tracemap.core.errors import ModelInvalid
from tracemap.core.units import UNKNOWN
from tracemap.machine.decoding import decoded
from tracemap.machine.images import elf_of
from tracemap.machine.module_sizes import PartKind, read_module_sizes
from tracemap.map.build.compiler.timing import (
    StampedOutput,
    TimedKernel,
    build_timing,
    read_pass_times,
    read_stamped,
)
from tracemap.map.build_cost import build_cost
from tracemap.map.bundle import load

MODELS = sorted(path.stem for path in (SAMPLES / "models").glob("*.mlir"))
QUICK = ("hand_attention", "hand_constexpr", "torch_mlp")


@pytest.mark.parametrize("model", long_where(MODELS, lambda _, model: model not in QUICK))
def test_bytes_add_up_to_the_file(model: str, built: Built) -> None:
    bundle = load(built(model))
    cost = build_cost(bundle)
    size = bundle.module_path.stat().st_size
    assert sum(part.amount for part in cost.bytes) == cost.module_bytes == size
    amounts, rest = {part.name: part.amount for part in cost.bytes}, Counter[str]()
    for own in cost.unattributed:
        rest[own.part] += own.bytes
    code = amounts[PartKind.CODE.value]
    assert sum(kernel.code_bytes for kernel in cost.kernels) == code
    assert sum(op.code_bytes for op in cost.ops) + sum(kernel.code_of_no_op for kernel in cost.kernels) == code
    assert 0 < code < size
    # Ops and the rest are the whole of each part, and of the file.
    columns = {
        PartKind.CODE: [op.code_bytes for op in cost.ops],
        PartKind.DATA: [op.data_bytes for op in cost.ops],
        PartKind.BYTECODE: [op.bytecode_bytes for op in cost.ops],
        PartKind.CONSTANTS: [op.constant_bytes for op in cost.ops],
    }
    for kind, sizes in columns.items():
        assert sum(sizes) + rest[kind.value] == amounts.get(kind.value, 0), kind
    assert sum(op.bytes for op in cost.ops) + rest.total() == size
    assert all(own.bytes > 0 and own.reason for own in cost.unattributed)
    assert sum(columns[PartKind.BYTECODE]) > 0
    assert cost.times == () == cost.passes


def test_parts_of_a_module_are_where_the_elf_file_has_them(built: Built) -> None:
    """Against the sections as binutils' rules see them: code and data of an executable are inside its image."""
    bundle = load(built("hand_constexpr"))
    sizes = read_module_sizes(bundle.module_path, frozenset(bundle.graph.kernel_by_name))
    amount = {part.kind: 0 for part in sizes.parts}
    for part in sizes.parts:
        amount[part.kind] += part.bytes
    images = sum(len(image.data) for image in sizes.images)
    inside = (PartKind.CODE, PartKind.LIBRARY, PartKind.DATA, PartKind.DEBUG, PartKind.TABLES)
    assert sum(amount[kind] for kind in inside) == images
    assert amount[PartKind.CONSTANTS] >= 8192  # its folded constant
    cost = build_cost(bundle)
    assert {op.op: op.constant_bytes for op in cost.ops if op.constant_bytes} == {"op6": 8192}


@pytest.mark.parametrize("seed", long_where(range(1, 7), lambda _, seed: seed > 1))
def test_constants_belong_to_the_ops_with_their_data(seed: int, tmp_path: Path) -> None:
    constants = constants_program(seed)
    assert constant_bytes(constants, tmp_path) == constants.bytes_of_line


def test_data_belongs_to_the_kernels_that_load_it(built: Built) -> None:
    """Against the operands as the disassembler decodes them, and the bytes of the section."""
    import capstone

    bundle = load(built("hand_attention"))
    kernels = frozenset(bundle.graph.kernel_by_name)
    (image,) = read_module_sizes(bundle.module_path, kernels).images
    section = elf_of(image).get_section_by_name(".rodata")
    low, high = section["sh_addr"], section["sh_addr"] + section["sh_size"]
    loaded: dict[int, set[str]] = {}
    for function in image.functions:
        for instruction in decoded(image, function):
            for operand in instruction.operands if instruction.id else ():
                if operand.type == capstone.x86.X86_OP_MEM and operand.mem.base == capstone.x86.X86_REG_RIP:
                    target = instruction.address + instruction.size + operand.mem.disp
                    for address in range(target, target + operand.size):
                        loaded.setdefault(address, set()).add(function.name)
    assert loaded
    assert all(low <= address < high for address in loaded)
    cost = build_cost(bundle)
    assert sum(kernel.data_bytes for kernel in cost.kernels) == len(loaded)
    for kernel in cost.kernels:
        shared = [names for names in loaded.values() if kernel.kernel in names]
        alone = sum(len(names) == 1 for names in shared)
        assert alone <= kernel.data_bytes <= len(shared)


def test_the_slow_kernel_is_first(tmp_path: Path) -> None:
    seeded = program(1)
    bundle = bundle_of(seeded, tmp_path)
    cost = json_cli("show", bundle, "--cost")["cost"]
    assert seeded.is_slow(cost["kernels"][0]["kernel"])
    parts = {part["name"]: part["amount"] for part in cost["times"]}
    assert sum(parts.values()) == cost["elapsed_ns"]
    assert cost["executables_ns"] == cost["elapsed_ns"] - parts["rest of the program"]
    assert {"library functions", "translation to LLVM IR", "object files and linker"} < set(parts)
    assert sum(ns for name, ns in parts.items() if name.startswith("unattributed")) < cost["executables_ns"] // 10
    assert sum(op["duration_ns"] for op in cost["ops"]) == sum(own["duration_ns"] for own in cost["kernels"])
    assert sum(own["duration_ns"] for own in cost["kernels"]) <= cost["executables_ns"] < cost["elapsed_ns"]
    assert cost["peak_bytes"] > 50 << 20
    shown = check_cli("show", bundle, "--cost")
    assert shown.startswith("compile time")
    assert cost["kernels"][0]["kernel"] in shown
    other = bundle_of(program(2), tmp_path)
    building = json_cli("diff", bundle, other)["building"]
    assert building["before_ns"] == cost["elapsed_ns"]
    assert building["kernels"]
    assert "cost of building" in check_cli("diff", bundle, other)
    _check_damage(bundle, tmp_path)


def _check_damage(bundle: Path, folder: Path) -> None:
    copy = folder / "damaged.tracemap"
    shutil.copytree(bundle, copy)
    text = (copy / "timing.json").read_text()
    for damaged in (
        text[:-9],
        text.replace('"kernel":"', '"kernel":"no', 1),
        text.replace('"executables_ns":', '"executables_ns":9'),
    ):
        (copy / "timing.json").write_text(damaged)
        result = run_cli("show", copy, "--cost")
        assert result.returncode == 2
        assert "damaged" in result.stderr
        assert result.stderr.count("\n") == 1


CPU = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
)
OTHER_TARGETS = {
    "vulkan": ("--iree-hal-target-device=vulkan",),
    "cuda": ("--iree-hal-target-device=cuda", "--iree-cuda-target=sm_86"),
    "vmvx": ("--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=vmvx"),
    "separate": ("--iree-hal-link-executables=false", *CPU),
}


@pytest.mark.long
@pytest.mark.parametrize("target", OTHER_TARGETS)
def test_other_targets_have_times_and_bytes(target: str, tmp_path: Path) -> None:
    seeded, bundle = program(1), tmp_path / "other.tracemap"
    (tmp_path / "m.mlir").write_text(seeded.text, encoding="utf-8")
    check_cli("build", tmp_path / "m.mlir", "--timing", "-o", bundle, "--", *OTHER_TARGETS[target])
    cost = build_cost(load(bundle))
    assert sum(op.bytes for op in cost.ops) + sum(own.bytes for own in cost.unattributed) == cost.module_bytes
    assert sum(part.amount for part in cost.times) == cost.elapsed_ns
    names = {part.name for part in cost.times}
    # Executables of one kernel are that kernel's from beginning to end, but for the library; CUDA has one for all.
    assert ("object files and linker" in names) == (target in ("cuda", "vmvx"))
    assert ("LLVM passes on whole executables" in names) == (target == "cuda")
    assert all(kernel.code_bytes for kernel in cost.kernels) == (target in ("vulkan", "separate"))


REPORT = """===-----------===
                         ... Execution time report ...
===-----------===
  Total Execution Time: 0.0003 seconds

"""


@pytest.mark.parametrize(
    ("report", "reason"),
    [
        ("", "printed no execution times"),
        (REPORT, "unknown form"),
        (REPORT + "  0.0001s SomePass\n", "unknown form"),
        (REPORT + "    0.0003 (100.0%)  SomePass\n", "no times for k"),
    ],
)
def test_an_unknown_report_of_times_has_one_reason(report: str, reason: str) -> None:
    """`build` then prints it as one notice, and writes the bundle without times."""
    output = StampedOutput(tuple((0, 0, line) for line in report.splitlines()), UNKNOWN)
    with pytest.raises(ModelInvalid, match=reason):
        build_timing(read_pass_times(report), output, 9, UNKNOWN, [TimedKernel("k", "e", "k.mlir")])


def test_kernels_whose_lines_arrive_together_are_there() -> None:
    """The program that reads the compiler's output may be held up."""
    lines = [(0, 0, line) for line in REPORT.splitlines()] + [(0, 0, "    0.0003 (100.0%)  SomePass")]
    header = "// -----// IR Dump Before TranslateAllExecutablesPass: iree-hal-translate-all-executables //----- //"
    for stamp, name in ((5, "a"), (5, "b"), (9, r'"c\0A\22"')):
        lines += [(stamp, 0, header), (stamp, 0, f"hal.executable private @{name} {{...}}")]
    lines.append((12, 0, header.replace("Before", "After")))
    output = StampedOutput((*lines[-7:], *lines[:-7]), UNKNOWN)
    kernels = [TimedKernel(name, name, f"{name}.mlir") for name in ("a", "b", 'c\n"')]
    timing = build_timing(read_pass_times(output.text), output, 999_999, UNKNOWN, kernels)
    assert {own.kernel: own.duration_ns for own in timing.kernels} == {"a": 0, "b": 4, 'c\n"': 3}
    assert 7 + sum(other.duration_ns for other in timing.others) == timing.executables_ns


def test_waiting_is_told_from_coarse_processor_time() -> None:
    """A program that runs, is held up for 50 ms, and runs again; Linux counts its time in steps of 4 ms."""
    millisecond, step = 10**6, 4
    lines = []
    for at in range(200):
        held = at >= 100
        busy = at - at % step
        lines.append(f"@{(at + 50 * held) * millisecond} {busy * millisecond} Running pass {at}")
    read = read_stamped("\n".join([*lines, "peak 7"]))
    waited = [own for _, own, _ in read.lines]
    assert read.peak_bytes == 7
    assert waited[0] == waited[95] == 0
    assert waited[100] == waited[-4] == 50 * millisecond
    assert waited == sorted(waited)
    assert read_stamped("@5 x\n@6\nno stamp").lines == ()


def test_dumps_have_no_times(tmp_path: Path) -> None:
    (tmp_path / "m.vmfb").touch()
    result = run_cli("build", "--timing", "--from-dumps", tmp_path, "--module", tmp_path / "m.vmfb")
    assert result.returncode == 2
    assert "--timing measures the compiler" in result.stderr


def test_the_page_has_the_cost_of_building(built: Built, tmp_path: Path) -> None:
    """Only with times; the names of kernels are escaped like all text."""
    from tracemap.map.bundle_documents import BuildTiming, KernelTiming
    from tracemap.reports.page.overview_tab import building_tables

    copy = tmp_path / "timed.tracemap"
    shutil.copytree(built("torch_mlp"), copy)
    assert "Cost of building" not in _page(copy, tmp_path / "without.html")
    kernels = tuple(KernelTiming(kernel.name, 3, 2, 1) for kernel in load(copy).graph.kernels)
    timing = BuildTiming(elapsed_ns=90, executables_ns=6 * len(kernels), others=(), kernels=kernels, passes=())
    (copy / "timing.json").write_bytes(encode(timing))
    page = _page(copy, tmp_path / "with.html")
    assert "Cost of building" in page
    tables = building_tables(build_cost(load(copy)), load(copy).graph)
    assert all(len(row) == len(table.columns) for table in tables for row in table.rows)


def _page(bundle: Path, page: Path) -> str:
    check_cli("report", bundle, "-o", page)
    return page.read_text(encoding="utf-8")
