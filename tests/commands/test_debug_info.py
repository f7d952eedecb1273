"""`tracemap debug-info` writes a folder whole or not at all, with the lines and ops that attribution names."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
from elftools.elf.elffile import ELFFile

from tests.conftest import Built
from tests.hook.native_tools import expected, op_in
from tests.support import SAMPLES, check_cli, json_cli, run_cli
from tracemap.attribution.kernel_lines.lines import kernel_steps
from tracemap.attribution.scan.rows import StepRow
from tracemap.core.errors import ModuleInvalid
from tracemap.machine.images import kernel_images, read_image, read_images
from tracemap.map.bundle import load
from tracemap.map.model import TraceGraph
from tracemap.map.query import kernel_lines
from tracemap.reports.debug_info import debug_info
from tracemap.runs.model import INSTRUCTIONS


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def dwarf_of(data: bytes) -> Any:  # noqa: ANN401 - of elftools
    return ELFFile(io.BytesIO(data)).get_dwarf_info()


@pytest.mark.parametrize("model", ["hand_mlp", pytest.param("torch_tinygpt", marks=pytest.mark.long)])
def test_every_instruction_has_the_line_of_its_op(model: str, built: Built, tmp_path: Path) -> None:
    """As pyelftools reads it, and as attribution assigns the cost of the instruction."""
    bundle, symbols = built(model), tmp_path / "symbols"
    shown = json_cli("debug-info", bundle, "-o", symbols)
    (executable,) = shown["executables"]
    image = read_image(symbols / executable["code_file"])
    names = expected(bundle)
    assert executable["instructions"] == len(names)
    assert executable["instructions_with_op"] == sum(bool(own.op) for own in names.values())
    assert executable["kernels"] == len({kernel for kernel, _ in names})
    low = {function.name: function.low for function in image.functions}
    addresses = {low[kernel] + offset: own for (kernel, offset), own in names.items()}
    lines = image.lines_of(list(addresses))
    assert lines == [own.line for own in addresses.values()]
    inlined = ops_by_address((symbols / executable["code_file"]).read_bytes(), list(addresses))
    assert inlined == [own.op for own in addresses.values()]


def ops_by_address(data: bytes, addresses: list[int]) -> list[str]:
    """The op of the inlined code at each address, as pyelftools reads it."""
    dwarf = dwarf_of(data)
    unit = next(dwarf.iter_CUs())
    base = unit.get_top_DIE().attributes["DW_AT_low_pc"].value
    ops = {}
    for entry in unit.iter_DIEs():
        if entry.tag != "DW_TAG_inlined_subroutine":
            continue
        name = entry.get_DIE_from_attribute("DW_AT_abstract_origin").attributes["DW_AT_name"].value.decode()
        if "DW_AT_ranges" in entry.attributes:
            offset = entry.attributes["DW_AT_ranges"].value
            parts = dwarf.range_lists().get_range_list_at_offset(offset)
            ranges = [(base + part.begin_offset, base + part.end_offset) for part in parts]
        else:
            begin = entry.attributes["DW_AT_low_pc"].value
            ranges = [(begin, begin + entry.attributes["DW_AT_high_pc"].value)]
        ops.update({address: op_in(name) for begin, end in ranges for address in range(begin, end)})
    return [ops.get(address, "") for address in addresses]


@pytest.mark.parametrize("model", ["hand_mlp", pytest.param("torch_tinygpt", marks=pytest.mark.long)])
def test_the_op_is_the_one_that_attribution_charges(model: str, built: Built) -> None:
    bundle = load(built(model))
    images = read_images(bundle.module_path)
    names = expected(built(model))
    for kernel in bundle.graph.kernels:
        steps, lines = kernel_steps(bundle.graph, kernel, lambda: images), kernel_lines(bundle.graph, kernel)
        image, function = kernel_images(images, kernel.name)[0]
        sites = [bundle.graph.site_by_id[site] for site in kernel.sites]
        for instruction in steps.code.instructions:
            (line,) = image.lines_of([instruction.address])
            spot = steps.spot_of(StepRow(0, kernel.name, line, instruction.address, (1,)), INSTRUCTIONS)
            owners = [
                site.members[index].op for site in sites for index in lines.members_at(spot.owner, site) if spot.owner
            ]
            assert names[kernel.name, instruction.address - function.low].op == next(iter(owners), "")


def test_lines_of_python_and_of_kernels(built: Built, tmp_path: Path) -> None:
    bundle = built("jax_mlp")
    for lines, ending in (("python", "-jax_models.py"), ("kernel", ".mlir"), ("mlir", "jax_mlp.mlir")):
        symbols = tmp_path / lines
        shown = json_cli("debug-info", bundle, "-o", symbols, "--lines", lines)
        (executable,) = shown["executables"]
        data = (symbols / executable["code_file"]).read_bytes()
        dwarf = dwarf_of(data)
        program = dwarf.line_program_for_CU(next(dwarf.iter_CUs()))
        folders = [Path(folder.decode()) for folder in program["include_directory"]]
        files = [folders[file.dir_index - 1] / file.name.decode() for file in program["file_entry"]]
        assert files
        assert all(file.is_file() and file.name.endswith(ending) for file in files)
        names = expected(bundle, lines)
        image = read_image(symbols / executable["code_file"])
        low = {function.name: function.low for function in image.functions}
        found = image.lines_of([low[kernel] + offset for kernel, offset in names])
        assert found == [own.line for own in names.values()]


def test_same_bytes_each_time(built: Built, tmp_path: Path) -> None:
    for name in ("one", "two"):
        check_cli("debug-info", built("hand_mlp"), "-o", tmp_path / name)
    assert tree(tmp_path / "one") == tree(tmp_path / "two")
    names = sorted(tree(tmp_path / "one"))
    build_id = json.loads((tmp_path / "one" / "debug-info.json").read_text())["executables"][0]["build_id"]
    assert names[0] == f".build-id/{build_id[:2]}/{build_id[2:]}.debug"
    assert [Path(name).suffix for name in names] == [".debug", ".lines", ".so", ".json"]


def test_replaces_only_its_own_folder(built: Built, tmp_path: Path) -> None:
    symbols = tmp_path / "symbols"
    check_cli("debug-info", built("hand_mlp"), "-o", symbols)
    before = tree(symbols)
    check_cli("debug-info", built("hand_mlp"), "-o", symbols)
    assert tree(symbols) == before
    (symbols / "mine.txt").write_text("kept")
    refused = run_cli("debug-info", built("hand_mlp"), "-o", symbols)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "mine.txt" in refused.stderr
    assert "--force" in refused.stderr
    assert (symbols / "mine.txt").exists()
    check_cli("debug-info", built("hand_mlp"), "-o", symbols, "--force")
    assert tree(symbols) == before
    other = tmp_path / "other"
    other.mkdir()
    for force in ((), ("--force",)):
        refused = run_cli("debug-info", built("hand_mlp"), "-o", other, *force)
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
        assert "[target-exists]" in refused.stderr
    assert list(other.iterdir()) == []


def test_standard_output_is_no_folder(built: Built) -> None:
    refused = run_cli("debug-info", built("hand_mlp"), "-o", "-")
    assert "[target-unwritable]" in refused.stderr


def test_modules_without_debug_lines_are_refused(built: Built, tmp_path: Path) -> None:
    """A stripped module, one without machine code, and a damaged one: a sentence, and nothing is written."""
    strip = shutil.which("strip")
    bundle = tmp_path / "model.tracemap"
    shutil.copytree(built("hand_mlp"), bundle)
    module = bundle / "module.vmfb"
    (image,) = read_images(module)
    data = module.read_bytes()
    replaced = {"no code": b"\0" * len(image.data), "damaged": damaged_debug_information(image.data)}
    if strip:
        (tmp_path / "image").write_bytes(image.data)
        subprocess.run([strip, "--strip-debug", tmp_path / "image"], check=True)
        replaced["stripped"] = (tmp_path / "image").read_bytes().ljust(len(image.data), b"\0")
    for name, content in replaced.items():
        module.write_bytes(data[: image.offset] + content + data[image.offset + len(image.data) :])
        refused = run_cli("debug-info", bundle, "-o", tmp_path / "symbols")
        assert refused.returncode == 2, name
        assert "[module-invalid]" in refused.stderr, name
        assert refused.stderr.count("\n") == 1, name
        assert not (tmp_path / "symbols").exists()


def damaged_debug_information(data: bytes) -> bytes:
    """The image with zeros in place of its lines, so that they do not fit the functions."""
    elf = ELFFile(io.BytesIO(data))
    section = elf.get_section_by_name(".debug_info")
    begin, size = int(section["sh_offset"]), int(section["sh_size"])
    return data[:begin] + b"\xff" * size + data[begin + size :]


def test_hostile_names_are_escaped(built: Built) -> None:
    """Control characters of scopes, files and kernels do not reach terminals by way of other tools."""
    bundle = load(built("hand_mlp"))
    ops = tuple(
        msgspec.structs.replace(op, scope=("a\x1b[31mb\n", "c" * 1000), file=f"../../x\x1b\n\0{op.file}")
        for op in bundle.graph.ops
    )
    graph: TraceGraph = msgspec.structs.replace(bundle.graph, ops=ops)
    _, files = debug_info(type(bundle)(bundle.path, graph, bundle.map_sha256), "mlir")
    for name, data in files.items():
        if not name.endswith((".json", ".lines")):
            dwarf = dwarf_of(data)
            texts = bytes(dwarf.debug_str_sec.stream.getvalue())
            assert b"\x1b" not in texts
            assert b"\n" not in texts
            assert max(map(len, texts.split(b"\0"))) < 700
            program = dwarf.line_program_for_CU(next(dwarf.iter_CUs()))
            assert all(b"\x1b" not in file.name and b"\n" not in file.name for file in program["file_entry"])


def test_kernels_without_lines_of_ops_are_refused(built: Built) -> None:
    """As in bundles of dumps of another compilation."""
    bundle = load(built("hand_mlp"))
    kernels = tuple(msgspec.structs.replace(kernel, steps=()) for kernel in bundle.graph.kernels)
    graph: TraceGraph = msgspec.structs.replace(bundle.graph, kernels=kernels)
    with pytest.raises(ModuleInvalid, match="no instruction has a line of the model"):
        debug_info(type(bundle)(bundle.path, graph, bundle.map_sha256), "mlir")


def test_a_module_for_gpus_is_refused(on_gpu: Built, tmp_path: Path) -> None:
    refused = run_cli("debug-info", on_gpu("hand_mlp"), "-o", tmp_path / "symbols")
    assert "has no machine code of kernels with debug lines" in refused.stderr


@pytest.mark.long
def test_code_of_another_architecture(tmp_path: Path) -> None:
    bundle, symbols = tmp_path / "arm.tracemap", tmp_path / "symbols"
    target = ("--iree-llvmcpu-target-triple=aarch64-unknown-linux-gnu", "--iree-llvmcpu-target-cpu=generic")
    check_cli("build", SAMPLES / "models" / "hand_mlp.mlir", "-o", bundle, "--", *target)
    (executable,) = json_cli("debug-info", bundle, "-o", symbols)["executables"]
    assert executable["architecture"] == "EM_AARCH64"
    assert executable["instructions_with_op"] > 0.8 * executable["instructions"]
    image = read_image(symbols / executable["code_file"])
    names = expected(bundle)
    low = {function.name: function.low for function in image.functions}
    assert image.lines_of([low[kernel] + offset for kernel, offset in names]) == [own.line for own in names.values()]
