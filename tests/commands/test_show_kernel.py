"""`tracemap show BUNDLE KERNEL`: final IR, loops and instructions with their ops."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from tests.conftest import Built
from tests.schemas import validator
from tests.support import check_cli, json_cli, run_cli
from tracemap.machine.images import read_images
from tracemap.map.bundle import load
from tracemap.map.model import Kernel
from tracemap.reports.kernels import view_kernel


def kernel_of(bundle: Path, part: str) -> Kernel:
    return next(kernel for kernel in load(bundle).graph.kernels if part in kernel.name)


def test_each_loop_is_told_with_its_ops(built: Built) -> None:
    """A matrix product, its bias and activation are in the loop over tiles; the innermost loop is the product's."""
    bundle = built("hand_mlp")
    kernel = kernel_of(bundle, "matmul")
    graph = load(bundle).graph
    shown = json_cli("show", bundle, kernel.name)
    validator("show").validate(shown)
    (entry,) = (each for each in shown["kernels"] if each["name"] == kernel.name)
    loops = entry["loops"]
    assert loops
    assert entry["instructions"] is None
    names = {op.id: op.name for op in graph.ops}
    kinds = [{names[op] for op in loop["ops"]} for loop in loops]
    outermost = next(number for number, loop in enumerate(loops) if loop["parent"] is None)
    assert any("matmul" in name or "dot" in name for name in kinds[outermost])
    for loop in loops:
        if loop["parent"] is not None:
            assert set(loop["ops"]) <= set(loops[loop["parent"]]["ops"])
            assert loop["instructions"] < loops[loop["parent"]]["instructions"]


def test_instructions_are_only_shown_on_request(built: Built) -> None:
    bundle = built("hand_mlp")
    kernel = kernel_of(bundle, "matmul")
    plain = json_cli("show", bundle, kernel.name)
    asked = json_cli("show", bundle, kernel.name, "--assembly")
    validator("show").validate(asked)
    (entry,) = (each for each in asked["kernels"] if each["name"] == kernel.name)
    lines = {step["line"] for step in entry["steps"]}
    assert len(entry["instructions"]) > 50
    assert {each["line"] for each in entry["instructions"]} - {None} <= lines
    (without,) = (each for each in plain["kernels"] if each["name"] == kernel.name)
    assert without == {**entry, "instructions": None}


def test_the_whole_map_reads_no_machine_code(built: Built) -> None:
    shown = json_cli("show", built("hand_mlp"))
    assert all(each["loops"] is None and each["instructions"] is None for each in shown["kernels"])


def test_text_has_every_line_of_the_ir(built: Built) -> None:
    bundle = built("hand_mlp")
    kernel = kernel_of(bundle, "matmul")
    printed = check_cli("show", bundle, kernel.name, "--assembly")
    for line in load(bundle).kernel_text(kernel).splitlines():
        assert line.strip() in printed
    assert "Loops in the machine code" in printed
    assert "vfmadd" in printed or "fmla" in printed or "mulps" in printed
    assert "Instructions" in printed
    assert "Instructions" not in check_cli("show", bundle, kernel.name)


def test_assembly_needs_a_kernel(built: Built) -> None:
    done = run_cli("show", built("hand_mlp"), "op3", "--assembly")
    assert done.returncode == 2
    assert "--assembly needs a kernel's name" in done.stderr


def test_a_kernel_without_code_says_so(built: Built) -> None:
    bundle = load(built("hand_mlp"))
    kernel = structs.replace(bundle.graph.kernels[0], name="elsewhere")
    view = view_kernel(kernel, "func.func @elsewhere()", read_images(bundle.module_path))
    assert view.no_code
    assert not view.loops
    assert not view.instructions
    assert [line.text for line in view.lines] == ["func.func @elsewhere()"]


@pytest.mark.parametrize("escape", ["\x1b[2J", "\u202e"])
def test_text_of_a_kernel_cannot_steer_the_terminal(escape: str, built: Built, tmp_path: Path) -> None:
    import shutil

    bundle = tmp_path / "m.tracemap"
    shutil.copytree(built("hand_mlp"), bundle)
    kernel = kernel_of(bundle, "matmul")
    file = bundle / "kernels" / str(kernel.text)
    file.write_text(file.read_text() + f"// {escape}\n")
    assert escape not in check_cli("show", bundle, kernel.name)
