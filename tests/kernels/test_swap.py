"""`tracemap swap`: unchanged kernels round-trip, wrong edits are found, misfits refused."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from tests.conftest import Built
from tests.support import PLAIN_FLAGS, Json, check_cli, json_cli, long_where, run_cli
from tracemap.core.toolchain import find_tool
from tracemap.kernels.swap import Costs, ReplacedKernels, changes
from tracemap.map.build.compiler.remarks import NO_THREADS
from tracemap.map.bundle import load

MODEL = """
func.func @f(%a: tensor<48x40xf32>, %b: tensor<40x64xf32>, %c: tensor<64xf32>) -> tensor<48x64xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<48x64xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<48x64xf32>) -> tensor<48x64xf32>
  %0 = linalg.matmul ins(%a, %b : tensor<48x40xf32>, tensor<40x64xf32>)
      outs(%f : tensor<48x64xf32>) -> tensor<48x64xf32>
  %1 = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (j)>,
      affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]}
      ins(%0, %c : tensor<48x64xf32>, tensor<64xf32>) outs(%e : tensor<48x64xf32>) {
  ^bb0(%x: f32, %y: f32, %o: f32):
    %s = arith.addf %x, %y : f32
    %t = math.tanh %s : f32
    %u = arith.mulf %t, %s : f32
    linalg.yield %u : f32
  } -> tensor<48x64xf32>
  return %1 : tensor<48x64xf32>
}
"""
KERNEL = "f_dispatch_0_matmul_48x64x40_f32"


class Edit(NamedTuple):
    """A fault, and how it comes into the source: a pattern and what takes its place."""

    fault: str
    pattern: str
    new: str


STORED = (
    r"iree_tensor_ext\.dispatch\.tensor\.store (%\d+), (%\d+), offsets = \[0, 0\], sizes = \[48, 64\], "
    r"strides = \[1, 1\] : tensor<48x64xf32>"
)
WRONG = (
    Edit("a difference for a sum", r"arith\.addf (%in), (%in_\d+)", r"arith.subf \1, \2"),
    Edit("a quotient for a product", r"arith\.mulf (%\d+), (%\d+) : f32", r"arith.divf \1, \2 : f32"),
    Edit("another function", r"math\.tanh", "math.exp"),
    Edit("a wrong operand", r"arith\.mulf (%\d+), (%\d+) : f32", r"arith.mulf \1, \1 : f32"),
    Edit("a sum that begins elsewhere", r"arith\.constant 0\.0+e\+00 : f32", "arith.constant 1.0e-02 : f32"),
    Edit("a bias that is left out", r"arith\.addf (%in), (%in_\d+)", r"arith.addf \1, \1"),
    Edit(
        "a bound that is one row short",
        STORED,
        r"%tail = tensor.extract_slice \1[0, 0] [47, 64] [1, 1] : tensor<48x64xf32> to tensor<47x64xf32>"
        "\n"
        r"iree_tensor_ext.dispatch.tensor.store %tail, \2, offsets = [0, 0], sizes = [47, 64], strides = [1, 1] : "
        "tensor<47x64xf32>",
    ),
    Edit(
        "a tail of columns that is not written",
        STORED,
        r"%tail = tensor.extract_slice \1[0, 0] [48, 63] [1, 1] : tensor<48x64xf32> to tensor<48x63xf32>"
        "\n"
        r"iree_tensor_ext.dispatch.tensor.store %tail, \2, offsets = [0, 0], sizes = [48, 63], strides = [1, 1] : "
        "tensor<48x63xf32>",
    ),
    Edit(
        "rows that are written one too low",
        STORED,
        r"%tail = tensor.extract_slice \1[0, 0] [47, 64] [1, 1] : tensor<48x64xf32> to tensor<47x64xf32>"
        "\n"
        r"iree_tensor_ext.dispatch.tensor.store %tail, \2, offsets = [1, 0], sizes = [47, 64], strides = [1, 1] : "
        "tensor<47x64xf32>",
    ),
    Edit(
        "a sum over one term less",
        r"(%\d+) = linalg\.matmul ins\((%\d+), (%\d+) : tensor<48x40xf32>, tensor<40x64xf32>\)",
        r"%one = tensor.extract_slice \2[0, 0] [48, 39] [1, 1] : tensor<48x40xf32> to tensor<48x39xf32>"
        "\n"
        r"%two = tensor.extract_slice \3[0, 0] [39, 64] [1, 1] : tensor<40x64xf32> to tensor<39x64xf32>"
        "\n"
        r"\1 = linalg.matmul ins(%one, %two : tensor<48x39xf32>, tensor<39x64xf32>)",
    ),
)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("swap")
    (folder / "model.mlir").write_text(MODEL, encoding="utf-8")
    check_cli("build", folder / "model.mlir", "-o", folder / "model.tracemap")
    return folder / "model.tracemap"


@pytest.fixture(scope="module")
def source(bundle: Path) -> str:
    return check_cli("swap", bundle, KERNEL, "--dump", "source")


def without_locations(text: str) -> str:
    """The text as a person edits it; what is edited need not have locations."""
    return re.sub(r" loc\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)", "", text)


def swapped(bundle: Path, text: str, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "edited.mlir").write_text(text, encoding="utf-8")
    replaced = f"{KERNEL}={folder / 'edited.mlir'}"
    return run_cli(
        "swap", bundle, replaced, "-o", folder / "new.tracemap", "--format", "json", "--pairs", "0", *options
    )


@pytest.mark.long
@pytest.mark.parametrize(
    "edit", long_where(WRONG, lambda number, _: number % 2 == 1), ids=lambda edit: edit.fault.replace(" ", "-")
)
def test_a_wrong_kernel_fails(edit: Edit, bundle: Path, source: str, tmp_path: Path) -> None:
    text, count = re.subn(edit.pattern, edit.new, without_locations(source))
    assert count >= 1, f"the source has nothing to edit:\n{source}"
    done = swapped(bundle, text, tmp_path)
    assert done.returncode == 1, done.stderr
    (kernel,) = json.loads(done.stdout)["kernels"]
    assert kernel["verification"]["status"] == "FAILED"
    assert kernel["verification"]["reason"]


@pytest.mark.long
@pytest.mark.parametrize("stage", ["source", "configuration", "object"])
def test_what_is_dumped_can_be_put_back(stage: str, bundle: Path, tmp_path: Path) -> None:
    text = check_cli("swap", bundle, KERNEL, "--dump", stage)
    done = swapped(bundle, text, tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [each["stage"] for each in found["replaced"]] == [stage]
    (kernel,) = found["kernels"]
    assert kernel["verification"]["status"] == "SUCCESS"
    old, new = (kernel_of(each) for each in (bundle, tmp_path / "new.tracemap"))
    if stage == "object":  # what its code was made from is not known
        assert (new["steps"], kernel["steps"]) == ([], 0)
    else:  # the locations of the dump name the ops, so that steps keep theirs
        assert [step["ops"] for step in new["steps"] if step["ops"]] == [
            step["ops"] for step in old["steps"] if step["ops"]
        ]
        assert kernel["steps"] > 0


def kernel_of(bundle: Path) -> Json:
    found: Json = next(each for each in json_cli("show", bundle)["kernels"] if each["name"] == KERNEL)
    return found


@pytest.mark.long
@pytest.mark.parametrize("stage", ["source", "configuration", "object"])
def test_what_is_dumped_has_the_data_of_its_constants(stage: str, built: Built, tmp_path: Path) -> None:
    """Those of torch are kept by name behind a module, where a text of a part of it has none."""
    kernel, original = "main_dispatch_0_matmul_8x32x64_f32", built("fx_mlp_linalg")
    check_cli("swap", original, kernel, "--dump", stage, "-o", "dumped.mlir", cwd=tmp_path)
    text = (tmp_path / "dumped.mlir").read_text()
    assert text.count("dense_resource<") == len(re.findall(r'^ +torch_tensor_\S+: "0x', text, re.MULTILINE)) == 1
    options = ("-o", "new.tracemap", "--pairs", "0", "--format", "json")
    made = json.loads(check_cli("swap", original, f"{kernel}=dumped.mlir", *options, cwd=tmp_path))
    assert [kernel["verification"]["status"] for kernel in made["kernels"]] == ["SUCCESS"]


@pytest.mark.long
def test_the_folder_that_iree_dumps_has_sources_and_configurations(bundle: Path, tmp_path: Path) -> None:
    dumps = tmp_path / "dumps"
    # With several threads the compiler may wait for itself for ever (`Compiler.flags_to_run`).
    flags = (*PLAIN_FLAGS, NO_THREADS, f"--iree-hal-dump-executable-files-to={dumps}", "-o", "m.vmfb")
    model = bundle.parent / "model.mlir"
    subprocess.run([find_tool("iree-compile"), model, *flags], check=True, capture_output=True, cwd=tmp_path)
    names = {each.name for each in dumps.iterdir()}
    assert {"module_f_dispatch_0.mlir", "configured_module_f_dispatch_0.mlir"} <= names
    for stage in ("source", "configuration"):
        options = ("-o", f"{stage}.tracemap", "--pairs", "0", "--format", "json")
        made = json.loads(check_cli("swap", bundle, f"--{stage}s-from", dumps, *options, cwd=tmp_path))
        assert [(each["kernels"], each["stage"]) for each in made["replaced"]] == [([KERNEL], stage)]
    done = run_cli("swap", bundle, "--objects-from", dumps, "-o", "object.tracemap", cwd=tmp_path)
    assert done.returncode == 2
    assert f"{dumps / 'module_f_dispatch_0.mlir'}: is of the stage source, not of object" in done.stderr


@pytest.mark.long
def test_a_file_that_does_not_compile_is_blamed_for_it(bundle: Path, source: str, tmp_path: Path) -> None:
    edited = re.sub(r"math\.tanh (%\d+) : f32", r'"no.such_thing"(\1) : (f32) -> f32', source)
    (tmp_path / "edited.mlir").write_text(edited, encoding="utf-8")
    done = run_cli("swap", bundle, f"{KERNEL}=edited.mlir", "-o", "new.tracemap", cwd=tmp_path)
    assert done.returncode == 2
    place = f"{tmp_path / 'edited.mlir'} in place of f_dispatch_0"
    assert done.stderr.startswith(f"tracemap: error: the model cannot be compiled with {place}; correct this error: ")
    assert done.stderr.endswith(" [tool-failed]\n")
    assert not (tmp_path / "new.tracemap").exists()


@pytest.mark.long
def test_the_map_stays_as_it_was(bundle: Path, source: str, tmp_path: Path) -> None:
    assert swapped(bundle, without_locations(source), tmp_path).returncode == 0
    old, new = (json_cli("show", each) for each in (bundle, tmp_path / "new.tracemap"))
    assert new["sites"] == old["sites"]
    assert [op["sites"] for op in new["ops"]] == [op["sites"] for op in old["ops"]]


def of_one_element(sizes: re.Match[str]) -> str:
    """The same loops as in `[8, 32, 0]`, which differ from machine to machine, in steps of one."""
    return re.sub("[1-9][0-9]*", "1", sizes[0])


@pytest.mark.long
def test_a_slowed_kernel_is_named_first_and_its_op_only(built: Built, tmp_path: Path) -> None:
    """Tiles of one element make a product slow; nothing else in the program was touched."""
    bundle = built("hand_mlp")
    kernel = "mlp_dispatch_0_matmul_32x256x784_f32"
    text = check_cli("swap", bundle, kernel, "--dump", "configuration")
    slow = re.sub(r"(vector_common_parallel|vector_reduction) = \[.*?\]", of_one_element, text)
    assert slow != text
    (tmp_path / "slow.mlir").write_text(slow, encoding="utf-8")
    options = ("--pairs", "6", "--seconds", "0.3", "--serial", "-o", str(tmp_path / "slow.tracemap"))
    found = json_cli("swap", bundle, f"{kernel}={tmp_path / 'slow.mlir'}", *options)
    (alone,) = found["kernels"]
    assert alone["verification"]["status"] == "SUCCESS"
    assert alone["after_ns"]["median"] > 1.5 * alone["before_ns"]["median"]
    first = found["ops"][0]
    assert (first["name"], first["line"], first["named"]) == ("linalg.matmul", 11, True)
    assert first["ratio"]["low"] > 1.5
    assert {op["op"] for op in found["ops"] if op["named"] and not op["replaced"]} == set()


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["f_dispatch_0_matmul_48x64x4_f32=x.mlir"], f"did you mean {KERNEL}"),
        ([f"{KERNEL}=absent.mlir"], "absent.mlir"),
        ([f"{KERNEL}=other.mlir"], "contains no executable f_dispatch_0"),
        ([f"{KERNEL}=entry.mlir"], "has no code for the entry point"),
        ([f"{KERNEL}=broken.mlir"], "is neither MLIR nor an object"),
        ([f"{KERNEL}=arm.o"], "is an object for EM_AARCH64"),
        (
            [f"{KERNEL}=other_format.mlir"],
            "is for embedded-elf-other, but f_dispatch_0 is for embedded-elf-",
        ),
        ([f"{KERNEL}=empty.o"], f"defines no {KERNEL}"),
        ([KERNEL], "KERNEL=FILE"),
        ([], "no kernel is replaced"),
        ([f"{KERNEL}=x.mlir", f"{KERNEL}=broken.mlir"], "is replaced twice"),
        (["--sources-from", "."], "contains no file named after"),
    ],
)
def test_what_cannot_take_a_kernels_place_is_refused(
    arguments: list[str], words: str, bundle: Path, source: str, tmp_path: Path
) -> None:
    (tmp_path / "x.mlir").write_text(source, encoding="utf-8")
    (tmp_path / "other.mlir").write_text(source.replace("f_dispatch_0 ", "g_dispatch_0 ", 1), encoding="utf-8")
    entry = without_locations(source).replace(f"func.func @{KERNEL}", "func.func @another")
    (tmp_path / "entry.mlir").write_text(entry, encoding="utf-8")
    (tmp_path / "broken.mlir").write_text("hal.executable {", encoding="utf-8")
    other = re.sub(r'"embedded-elf-\w+"', '"embedded-elf-other"', source)
    (tmp_path / "other_format.mlir").write_text(other, encoding="utf-8")
    object_file(tmp_path / "arm.o", 183)
    object_file(tmp_path / "empty.o", 62)
    done = run_cli("swap", bundle, *arguments, "-o", "new.tracemap", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "new.tracemap").exists()


# ---- the application

TWO = (
    MODEL
    + """
func.func @plain() -> tensor<4xf32> {
  %0 = arith.constant dense<[1.0, 2.0, 3.0, 4.0]> : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""
)


@pytest.mark.long
def test_an_output_that_differs_is_named_with_its_first_element(bundle: Path, source: str, tmp_path: Path) -> None:
    """Where all inputs of the product are 0, numpy says what comes out, with the right beginning and another."""
    edit = next(each for each in WRONG if each.fault == "a sum that begins elsewhere")
    text, _ = re.subn(edit.pattern, "arith.constant 4.0 : f32", without_locations(source))
    inputs = ("--input", "48x40xf32=0", "--input", "40x64xf32=0", "--input", "64xf32=1")
    options = ("--verify-application", "--no-verify", *inputs)
    done = swapped(bundle, text, tmp_path, *options)
    assert done.returncode == 1, done.stderr
    ((output,),) = [each["outputs"] for each in json.loads(done.stdout)["functions"]]
    assert not output["matches"]
    found = re.match(r"3,072 of 3,072 elements differ, the first at \[0, 0\]: (\S+), expected (\S+);", output["said"])
    assert found is not None, output["said"]
    assert [float(value) for value in found.groups()] == pytest.approx([np.tanh(5.0) * 5.0, np.tanh(1.0)], rel=1e-4)
    wide = swapped(bundle, text, tmp_path, *options, "--atol", "10", "--force")
    assert wide.returncode == 0, wide.stderr


@pytest.mark.parametrize(
    "asked",
    [
        ("--verify-application", "--input", "3xf32=0"),
        ("--pairs", "1", "--function", "nothing"),
        ("--pairs", "0", "--", "--nosuch"),
        ("--exact",),
        ("--rtol", "0.1"),
    ],
)
def test_a_call_that_cannot_be_made_leaves_nothing(
    asked: Sequence[str], bundle: Path, source: str, tmp_path: Path
) -> None:
    done = swapped(bundle, source, tmp_path, *asked)
    assert (done.returncode, done.stdout) == (2, "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["edited.mlir"]


@pytest.mark.long
def test_functions_are_chosen_as_run_does(source: str, tmp_path: Path) -> None:
    (tmp_path / "model.mlir").write_text(TWO, encoding="utf-8")
    check_cli("build", tmp_path / "model.mlir", "-o", tmp_path / "model.tracemap")
    done = swapped(tmp_path / "model.tracemap", without_locations(source), tmp_path, "--verify-application", "--exact")
    assert done.returncode == 0, done.stderr
    (function,) = json.loads(done.stdout)["functions"]
    assert (function["function"], function["inputs"], function["failure"]) == ("plain", [], "")
    assert function["outputs"] == [{"place": 0, "type": "4xf32", "said": "as expected", "matches": True}]
    assert "not called, since they take inputs: f; select a function with --function" in done.stderr


def test_the_original_does_not_take_its_own_place(bundle: Path, source: str, tmp_path: Path) -> None:
    (tmp_path / "x.mlir").write_text(source, encoding="utf-8")
    done = run_cli("swap", bundle, f"{KERNEL}={tmp_path / 'x.mlir'}", "-o", bundle, "--force")
    assert (done.returncode, done.stdout) == (2, "")
    assert "is the original" in done.stderr


def object_file(path: Path, machine: int) -> None:
    """A relocatable ELF file of 64 bits without sections, for a machine (System V ABI, chapter 4)."""
    header = b"\x7fELF\x02\x01\x01" + bytes(9) + (1).to_bytes(2, "little") + machine.to_bytes(2, "little")
    header += (1).to_bytes(4, "little") + bytes(24) + bytes(4) + (64).to_bytes(2, "little") + bytes(10)
    path.write_bytes(header)


# ---- which ops are named


def named(bundle: Path, before: Sequence[Costs], after: Sequence[Costs]) -> list[str]:
    found = changes(load(bundle).graph, ReplacedKernels({"mlp_dispatch_0_matmul_32x256x784_f32"}, 5.0), before, after)
    return [each.op for each in found if each.named]


QUIET = {"op6": 1000.0, "op17": 300.0, "op28": 300.0, "op35": 300.0}


def test_an_op_is_named_where_all_pairs_say_so(built: Built) -> None:
    bundle = built("hand_mlp")
    slower = {**QUIET, "op6": 1200.0}
    assert named(bundle, [QUIET] * 6, [slower] * 6) == ["op6"]
    assert named(bundle, [QUIET] * 6, [slower] * 5 + [QUIET]) == []
    assert named(bundle, [QUIET] * 6, [{**QUIET, "op6": 1040.0}] * 6) == []


def test_a_machine_that_drifts_names_nobody(built: Built) -> None:
    drifted = [{name: cost * factor for name, cost in QUIET.items()} for factor in (1.3, 1.2, 1.4, 1.3, 1.2, 1.3)]
    assert named(built("hand_mlp"), [QUIET] * 6, drifted) == []


def test_a_change_of_less_than_a_hundredth_of_an_invocation_is_not_named(built: Built) -> None:
    small = {**QUIET, "op35": 10.0}
    assert named(built("hand_mlp"), [small] * 6, [{**small, "op35": 20.0}] * 6) == []
    assert named(built("hand_mlp"), [small] * 6, [{**small, "op35": 40.0}] * 6) == ["op35"]


def test_what_has_the_same_code_is_beside(built: Built) -> None:
    graph = load(built("hand_mlp")).graph
    kernel = "mlp_dispatch_0_matmul_32x256x784_f32"
    touched = ReplacedKernels({kernel}, 5.0, frozenset(graph.kernel_by_name) - {kernel})
    slower = {**QUIET, "op6": 2000.0, "op35": 600.0}
    found = changes(graph, touched, [QUIET] * 6, [slower] * 6)
    assert {each.op: (each.named, each.unchanged_code) for each in found} == {
        "op6": (True, False),
        "op35": (False, True),
        "op17": (False, False),
        "op28": (False, False),
    }


def test_what_lies_cold_beside_a_very_slow_kernel_is_not_named_and_no_drift(built: Built) -> None:
    beside = {name: cost * 1.5 for name, cost in QUIET.items()} | {"op6": 50_000.0}
    touched = ReplacedKernels({"mlp_dispatch_0_matmul_32x256x784_f32"}, 5.0)
    found = changes(load(built("hand_mlp")).graph, touched, [QUIET] * 6, [beside] * 6)
    assert [(each.op, each.ratio.median) for each in found if each.named] == [("op6", 50.0)]
