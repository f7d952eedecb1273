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
from tracemap.map.query import resolve, scopes_of
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


def test_assembly_of_an_op_is_that_of_its_kernel(built: Built) -> None:
    bundle = built("hand_mlp")
    kernel = kernel_of(bundle, "matmul")
    printed = check_cli("show", bundle, "op6", "--assembly")
    assert f"Final IR of {kernel.name}" in printed
    assert "\nInstructions\n" in printed
    assert printed.count("Final IR of") == 1
    of_line = json_cli("show", bundle, "hand_mlp.mlir:13", "--assembly")  # the activation, in the same kernel
    assert [each["name"] for each in of_line["kernels"] if each["instructions"]] == [kernel.name]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [((), "--assembly needs an op, a line or a kernel"), (("op2",), "op2: runs in no kernel (op2 constant-folded: ")],
)
def test_assembly_needs_a_kernel(arguments: tuple[str, ...], said: str, built: Built) -> None:
    done = run_cli("show", built("hand_mlp"), *arguments, "--assembly")
    assert done.returncode == 2
    assert said in done.stderr


@pytest.mark.parametrize(
    ("model", "what", "title"),
    [
        ("hand_mlp", "mlp", "mlp: function mlp: op1, op2, "),
        ("hand_mlp", "matmul", "matmul: ops named matmul: op6, op17, op28"),
        ("hand_mlp", "13", "13: op10"),
        ("hand_mlp", "16", "16: op10"),  # a line inside the op
        ("hand_mlp", "11:9", "11:9: op6"),
        ("hand_mlp", "mlp_dispatch_0", "mlp_dispatch_0: 1 kernel: mlp_dispatch_0_matmul_32x256x784_f32"),
        ("hand_multifunc", "dense", "dense: function dense: op2, "),
        ("jax_mlp", "linear", "linear: Python function linear (jax_models.py): "),
        ("jax_mlp", "jax_models.py:linear", "jax_models.py:linear: Python function linear (jax_models.py): "),
        ("jax_mlp", "main_dispatch_1", "main_dispatch_1: 1 kernel: main_dispatch_1_"),
        ("jax_mlp", "dot_general", "dot_general: ops named dot_general: "),
        ("onnx_mlp_named", "node_relu", "node_relu: ONNX node node_relu: op8"),
        ("torch_mlp", "forward", "forward: Python function MLP.forward (torch_models.py): "),  # frames name no function
        ("torch_mlp", "sources/torch_models.py:15", "sources/torch_models.py:15: op"),
    ],
)
def test_names_of_all_frontends(model: str, what: str, title: str, built: Built) -> None:
    printed = check_cli("show", built(model), what)
    assert printed.startswith(title)


def test_ops_of_several_names_are_in_the_order_of_the_model(built: Built) -> None:
    graph = load(built("jax_gpt2_4l")).graph
    names = resolve(graph, "attn").names
    assert list(names) == [op.id for op in graph.ops if op.id in names]
    assert {scope[:2] for op in names for scope in scopes_of(graph, graph.op_by_id[op])} >= {
        (f"h{layer}", "attn") for layer in range(4)
    }


def test_a_line_without_ops_leads_to_the_nearest(built: Built) -> None:
    bundle = built("jax_mlp")
    done = run_cli("show", bundle, "jax_models.py:12")
    assert done.returncode == 0
    assert "jax_models.py:12: no op of the map begins on this line; the nearest line with ops is jax_models.py:11" in (
        done.stderr
    )
    assert done.stdout.startswith("jax_models.py:11: op")
    refused = run_cli("bench", bundle, "--op", "jax_models.py:12")
    assert refused.returncode == 2
    assert "ask for jax_models.py:11" in refused.stderr


@pytest.mark.parametrize(
    ("command", "option"),
    [("show", ()), ("bench", ("--op",)), ("bench", ("--kernel",)), ("tune", ("--op",)), ("audit", ("--pass",))],
)
def test_every_command_suggests_the_same_names(command: str, option: tuple[str, ...], built: Built) -> None:
    done = run_cli(command, built("hand_mlp"), *option, "matmull")
    assert done.returncode == 2
    assert "did you mean linalg.matmul?" in done.stderr


def test_swap_takes_a_line_and_lists_kernels(built: Built) -> None:
    bundle = built("hand_mlp")
    assert "@mlp_dispatch_0 " in check_cli("swap", bundle, "hand_mlp.mlir:13", "--dump", "source")
    done = run_cli("swap", bundle, "matmul", "--dump", "source")
    assert done.returncode == 2
    assert "runs in 3 kernels; name one of mlp_dispatch_0_matmul_32x256x784_f32, " in done.stderr


@pytest.mark.parametrize("command", ["attribute", "diff"])
def test_all_missing_runs_are_named(command: str, tmp_path: Path) -> None:
    done = run_cli(command, "first.csv", "second.csv", cwd=tmp_path)
    assert done.returncode == 2
    assert "first.csv, second.csv: cannot be read" in done.stderr


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
