"""The audit: each op loses its location once, in the phase where the dumps show it."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from msgspec import structs

from tests import builders
from tests.commands.test_errors import refused
from tests.conftest import Built
from tests.schemas import validator
from tests.support import PLAIN_FLAGS, ROOT, SAMPLES, Json, check_cli, json_cli, long_where, run_cli
from tracemap.core.locations import is_informative, parse_location
from tracemap.core.toolchain import find_tool
from tracemap.core.units import UNKNOWN
from tracemap.ir.dumps import DumpText
from tracemap.ir.model_reader import parse_model
from tracemap.ir.parsing import MlirParser, walk
from tracemap.map.build.compiler.losing_pass import LossTracker, split_prints
from tracemap.map.build.outcomes import LastLocatedPhase
from tracemap.map.build.tagging import Tags, write_tagged
from tracemap.map.bundle import load
from tracemap.map.model import PHASES, SOURCE, Op, OpId
from tracemap.map.query import LosingPass, audit, phase_of_loss
from tracemap.reports.terminal.map import print_audit

PROGRAMS = ROOT / "tests" / "programs"


def tagged_dumps(model: Path, folder: Path) -> dict[str, str]:
    """The phases of a compilation of a tagged model, by name: what `tracemap build` reads."""
    module = parse_model(MlirParser(), model.read_bytes()).module
    bytecode = write_tagged(module, Tags("tm.op."), model.name, folder)
    flags = ["--mlir-print-debuginfo", "--compile-to=hal", f"--dump-compilation-phases-to={folder / 'phases'}"]
    arguments = [find_tool("iree-compile"), bytecode, *PLAIN_FLAGS, *flags, "-o", folder / "out.mlir"]
    subprocess.run([str(argument) for argument in arguments], check=True, capture_output=True)
    return {path.name.split(".")[-2]: path.read_text(encoding="utf-8") for path in (folder / "phases").iterdir()}


@pytest.mark.long
@pytest.mark.parametrize("model", ["hand_repeat6_calls", "hand_loczoo", "jax_mlp", "torch_tinygpt"])
def test_text_of_dumps_names_what_their_operations_carry(model: str, tmp_path: Path) -> None:
    """Reading the text is quick; walking all operations with the compiler's own parser must give the same."""
    dumps = tagged_dumps(SAMPLES / "models" / f"{model}.mlir", tmp_path)
    assert set(dumps) >= set(PHASES) - {"hal"}
    for phase, text in dumps.items():
        parser, tags = MlirParser(), Tags("tm.op.")
        carried = {tag for op in walk(parser.parse(text).operation) for tag in tags.of(parser.location(op))}
        assert DumpText(text, "tm.op.").tags() == carried, phase


ALIASES = """#loc1 = loc("tm.op.1")
#loc2 = loc(fused["f.mlir":1:1, #loc1])
#loc3 = loc("tm.op.3")
#loc4 = loc(callsite(#loc3 at #loc2))
  %0 = arith.addf %a, %b : f32 loc(#loc4)
  %1 = foo(%x: f32 loc("tm.op.9")) : f32 loc(unknown)
"""
LOCAL_SCOPE = """  %1 = foo(%x: f32 loc("tm.op.9")) : f32 loc("f.mlir":2:2)
  %2 = arith.addf %a, %b : f32 loc(callsite("tm.op.3" at callsite("tm.op.6" at "tm.op.7")))
"""


@pytest.mark.parametrize("text", [ALIASES, LOCAL_SCOPE])
def test_calls_and_functions_are_not_located_by_what_they_called(text: str) -> None:
    assert DumpText(text, "tm.op.").tags() == {3}


def test_names_of_a_model_that_look_like_locations_do_no_harm() -> None:
    text = '#loc1 = loc("a)(callsite( at #loc1")\n%0 = x loc(#loc1)\n%1 = y loc("tm.op.x")\n#loc2 = loc(#loc2)\n'
    assert DumpText(text, "tm.op.").tags() == frozenset()


def test_chains_of_locations_may_be_long_and_share_their_parts() -> None:
    """Each alias names the one before it, and the first one besides; the last ones name each other."""
    chain = [f"#loc{n} = loc(fused[#loc{n - 1}, #loc])" for n in range(2, 20_000)]
    ends = ["#loc30000 = loc(fused[#loc30001, #loc1])", "#loc30001 = loc(fused[#loc30000, #loc])"]
    heads = ['#loc = loc("tm.op.1")', '#loc1 = loc("tm.op.2")']
    uses = ["a loc(#loc19999)", "b loc(#loc30000)"]
    dump = DumpText("\n".join([*heads, *chain, *ends, *uses]) + "\n", "tm.op.")
    assert dump.of_line(uses[0]) == {1, 2}
    assert dump.of_line(uses[1]) == {1, 2}
    assert dump.tags() == {1, 2}


@pytest.mark.parametrize(
    ("location", "says"),
    [
        ("unknown", False),
        ('"f.py":0:0', False),
        ('""', False),
        ("fused[unknown, unknown]", False),
        ("callsite(unknown at unknown)", False),
        ('"f.py":3:0', True),
        ('"jit(f)/add"', True),
        ('callsite(unknown at "f.py":1:1)', True),
        ('fused<"meta">[unknown, "n"(unknown)]', True),
    ],
)
def test_meaning_of_locations(location: str, says: bool) -> None:
    assert is_informative(parse_location(location)) is says


def test_survival_is_the_last_phase_in_any_order() -> None:
    survival = LastLocatedPhase()
    survival.add("flow", [1])
    survival.add("input", [1, 2])
    assert [survival.last_phase(index) for index in (1, 2, 3)] == ["flow", "input", SOURCE]


# --- counts


@pytest.mark.parametrize(
    "model",
    long_where(["hand_mlp", "hand_repeat6_calls", "jax_gpt2_4l", "torch_bert_tiny"], lambda number, _: number > 1),
)
def test_each_op_loses_its_location_at_most_once_and_the_counts_add_up(model: str, built: Built) -> None:
    report = json_cli("audit", built(model))
    validator("audit").validate(report)
    lost = Counter(loss["op"] for loss in report["losses"])
    assert set(lost.values()) <= {1}
    by_phase = Counter(loss["phase"] for loss in report["losses"])
    located = report["locations"]["ops"]
    for count in report["phases"]:
        assert count["lost"] == by_phase[count["phase"]]
        located -= count["lost"]
        assert count["located"] == located
    assert report["not_followed"] == 0
    assert [count["phase"] for count in report["phases"]] == list(PHASES)


def test_losses_carry_outcome_and_reason_of_the_map(built: Built) -> None:
    ops = {op.id: op for op in load(built("jax_gpt2_4l")).graph.ops}
    for loss in json_cli("audit", built("jax_gpt2_4l"))["losses"]:
        op = ops[loss["op"]]
        assert (loss["outcome"], loss["reason"]["slug"], loss["line"]) == (op.outcome.value, op.reason.slug, op.line)


def test_what_raising_takes_is_lost_in_global_optimization(built: Built) -> None:
    """The parts of softmax become one op that has the location of the division alone (four layers, four softmaxes)."""
    losses = json_cli("audit", built("jax_gpt2_4l"))["losses"]
    exponentials = [loss for loss in losses if loss["name"] == "stablehlo.exponential"]
    assert [loss["phase"] for loss in exponentials] == ["global-optimization"] * 4


def test_ops_of_equal_layers_are_lost_where_kernels_are_merged(built: Built) -> None:
    """Of twelve equal layers flow keeps the first one's body: the others' relu is gone there, their matmul is not."""
    losses = {loss["op"]: loss["phase"] for loss in json_cli("audit", built("hand_repeat12"))["losses"]}
    ops = load(built("hand_repeat12")).graph.ops
    generics = [losses.get(op.id, "") for op in ops if op.name == "linalg.generic"]
    matmuls = [losses.get(op.id, "") for op in ops if op.name == "linalg.matmul"]
    assert Counter(generics) == {"flow": 11, "hal": 1}
    assert Counter(matmuls) == {"": 12}


def test_text_groups_by_phase_and_kind(built: Built) -> None:
    text = check_cli("audit", built("hand_repeat12"))
    assert re.search(r"^flow +linalg\.generic +11 +dispatched ", text, re.MULTILINE)
    assert re.search(r"^hal +linalg\.generic +1 +dispatched ", text, re.MULTILINE)
    assert re.search(r"^source +\d+", text, re.MULTILINE)


def test_text_tells_where_an_op_was_lost_on_a_line_of_its_own() -> None:
    graph = builders.graph([builders.op(1, 3)])
    spot = LosingPass(OpId.of(1), "flow", "Fold", "fold", 2, "func.func @\x1bmain", "here\n  it was", "")
    out = io.StringIO()
    print_audit(graph, audit(graph, [spot]), out, list_all=False)
    shown = out.getvalue().splitlines()
    start = shown.index(
        "op1 linalg.generic at 3:5: location lost in phase flow by Fold (fold), change 2, on func.func @\\x1bmain"
    )
    assert shown[start - 1 :] == ["", shown[start], "  before", "    here", "      it was"]


def test_ops_outside_of_dumps_are_counted_and_not_lost() -> None:
    ops = [builders.op(1, 1), builders.op(2, 2), builders.op(3, 3)]
    followed = [with_phase(ops[0], "flow"), with_phase(ops[1], SOURCE)]
    found = audit(builders.graph([*followed, ops[2]]))
    assert [(loss.op.id, loss.phase) for loss in found.losses] == [("op2", "input"), ("op1", "stream")]
    assert found.unknown == 1
    assert found.phases[0].located == 1
    assert phase_of_loss(with_phase(ops[0], "hal")) == ""


def with_phase(op: Op, phase: str) -> Op:

    assert op.last_phase is UNKNOWN
    return structs.replace(op, last_phase=phase)


# --- locations of the model's own


def test_hand_written_text_is_located_by_its_lines(built: Built) -> None:
    assert run_cli("audit", built("hand_mlp"), "--fail-under", "100").returncode == 0


@pytest.mark.long
@pytest.mark.parametrize("form", ["text", "json"])
def test_stripped_locations_fail_with_a_list(form: str, built: Built) -> None:
    done = run_cli("audit", built("hand_mlp_unknown"), "--fail-under", "95", "--format", form)
    assert done.returncode == 1
    assert done.stderr.endswith("[audit-failed]\n")
    assert "0 of 16" in done.stderr
    ops = load(built("hand_mlp_unknown")).graph.ops
    if form == "json":
        without = json.loads(done.stdout)["locations"]["without"]
        assert [op["op"] for op in without] == [op.id for op in ops]
    else:
        for op in ops:
            assert f"hand_mlp_unknown.mlir:{op.line}:{op.column}: {op.name} ({op.id})" in done.stdout


@pytest.mark.long
def test_build_of_stripped_locations_works_through_tags_and_says_so(tmp_path: Path) -> None:
    done = run_cli("build", SAMPLES / "models" / "hand_mlp_unknown.mlir", cwd=tmp_path)
    assert done.returncode == 0
    assert "[locations-absent]" in done.stderr
    stripped = load(tmp_path / "hand_mlp_unknown.tracemap").graph
    assert [note.slug for note in stripped.diagnostics] == ["locations-absent"]
    assert all(site.members for site in stripped.sites)


@pytest.mark.long
def test_locations_count_one_by_one(tmp_path: Path) -> None:
    check_cli("build", PROGRAMS / "stripped.mlir", cwd=tmp_path)
    report = json_cli("audit", "stripped.tracemap", cwd=tmp_path)
    without = [op["name"] for op in report["locations"]["without"]]
    assert without == ["arith.constant", "tensor.empty", "func.return"]
    assert report["locations"]["own"] == 3
    assert run_cli("audit", "stripped.tracemap", "--fail-under", "50", cwd=tmp_path).returncode == 0
    assert run_cli("audit", "stripped.tracemap", "--fail-under", "51", cwd=tmp_path).returncode == 1


@pytest.mark.long
def test_bytecode_keeps_or_lacks_locations_of_its_own(tmp_path: Path) -> None:
    for name, expected in (("hand_mlp", 16), ("hand_mlp_unknown", 0)):
        parsed = parse_model(MlirParser(), (SAMPLES / "models" / f"{name}.mlir").read_bytes())
        assert parsed.locations
        with (tmp_path / f"{name}.mlirbc").open("wb") as file:
            parsed.module.operation.write_bytecode(file)
        check_cli("build", f"{name}.mlirbc", cwd=tmp_path)
        assert json_cli("audit", f"{name}.tracemap", cwd=tmp_path)["locations"]["own"] == expected


# --- passes


def spots(bundle: Path, *ops: str) -> dict[str, Json]:
    report = json_cli("audit", bundle, *(word for op in ops for word in ("--pass", op)))
    validator("audit").validate(report)
    return {spot["op"]: spot for spot in report["spots"]}


def ops_of(bundle: Path, name: str) -> list[Op]:
    return [op for op in load(bundle).graph.ops if op.name == name]


def test_pass_that_merges_kernels_is_named(built: Built) -> None:
    second = ops_of(built("hand_repeat12"), "linalg.generic")[1]
    spot = spots(built("hand_repeat12"), second.id)[second.id]
    assert (spot["phase"], spot["argument"]) == ("flow", "iree-flow-deduplicate-executables")
    assert "arith.maximumf" in spot["before"] or "arith.addf" in spot["before"]
    assert "loc(" not in spot["before"]


@pytest.mark.long
def test_pass_that_raises_softmax_is_named_and_both_texts_shown(built: Built) -> None:
    exponential = ops_of(built("jax_gpt2_4l"), "stablehlo.exponential")[0]
    spot = spots(built("jax_gpt2_4l"), exponential.id)[exponential.id]
    assert (spot["phase"], spot["argument"]) == ("global-optimization", "iree-global-opt-raise-special-ops")
    assert spot["anchor"] == "util.func @main"
    assert "math.exp" in spot["before"]
    assert spot["after"]
    assert "math.exp" not in spot["after"]


@pytest.mark.long
def test_spot_can_be_seen_in_the_compilers_own_output(built: Built, tmp_path: Path) -> None:
    """By hand: after the passes before it the op is there, after the one that is named it is not."""
    bundle = built("jax_mlp")
    constant = next(op for op in load(bundle).graph.ops if op.last_phase == SOURCE and op.name == "stablehlo.constant")
    spot = spots(bundle, constant.id)[constant.id]
    assert spot["phase"] == "input"
    module = parse_model(MlirParser(), (SAMPLES / "models" / "jax_mlp.mlir").read_bytes()).module
    bytecode = write_tagged(module, Tags("tm.op."), "jax_mlp.mlir", tmp_path)
    printing = ["--mlir-print-ir-after-all", "--mlir-print-ir-after-change", "--mlir-print-ir-module-scope"]
    flags = ["--mlir-disable-threading", "--mlir-print-debuginfo", *printing, "--compile-to=input", "-o", "/dev/null"]
    arguments = [str(word) for word in (find_tool("iree-compile"), bytecode, *PLAIN_FLAGS, *flags)]
    said = subprocess.run(arguments, check=True, capture_output=True, text=True).stderr
    index = constant.id.number
    there = [index in DumpText(each.text, "tm.op.").tags() for each in split_prints(said.splitlines(keepends=True))]
    assert not any(there[spot["number"] - 1 :])
    assert all(there[: spot["number"] - 1])


def test_op_that_is_never_lost_has_no_spot(built: Built) -> None:
    matmul = ops_of(built("hand_mlp"), "linalg.matmul")[0]
    done = run_cli("audit", built("hand_mlp"), "--pass", matmul.id, "--format", "json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["spots"] == []
    assert f"{matmul.id}: still located" in done.stderr


@pytest.mark.parametrize("written", ["{}: {}", "{} ({})", "{}: {}{{a=(b c)}} ('m' operation)"])
def test_modules_for_constant_evaluation_are_ignored(written: str) -> None:
    """The compiler compiles constants in a module of its own; that its passes lose an op there means nothing."""
    whole = 'module @m {\n  util.func public @f() {\n    %0 = a.op loc("tm.op.1")\n  } loc("x")\n} loc("x")\n'
    inner = 'module {\n  util.func public @jit_eval() {\n    %0 = a.op loc("tm.op.1")\n  } loc("x")\n} loc("x")\n'
    bare = "util.func public @jit_eval() {\n}\n"
    gone = whole.replace("tm.op.1", "x")
    printed = [
        (("A", "a"), whole),
        (("B", "b"), inner),
        (("C", "c"), bare),
        (("D", "iree-consteval-jit-globals"), whole),
        (("E", "e"), gone),
    ]
    text = "".join(f"// -----// IR Dump After {written.format(*name)} //----- //\n{ir}\n" for name, ir in printed)
    watch = LossTracker([1])
    for each in split_prints(text.splitlines(keepends=True)):
        watch.look(each)
    spot = watch.spot(builders.op(1), "flow")
    assert (spot.pass_name, spot.argument, spot.number) == ("E", "e", 5)


@pytest.mark.long
def test_passes_of_a_bundle_without_text(tmp_path: Path) -> None:
    check_cli("build", SAMPLES / "models" / "hand_mlp.mlir", "--no-sources", cwd=tmp_path)
    said = refused("usage-invalid", "audit", "hand_mlp.tracemap", "--pass", "op36", cwd=tmp_path)
    assert "--no-sources" in said


def test_pass_of_no_op(built: Built, tmp_path: Path) -> None:
    assert "op999999" in refused("query-invalid", "audit", built("hand_mlp"), "--pass", "op999999", cwd=tmp_path)


def test_audit_of_no_bundle(tmp_path: Path) -> None:
    assert "absent.tracemap" in refused("bundle-invalid", "audit", "absent.tracemap", cwd=tmp_path)


def test_audit_needs_no_compiler_and_no_original(built: Built, tmp_path: Path) -> None:
    moved = shutil.copytree(built("hand_mlp"), tmp_path / "elsewhere.tracemap")
    (moved / "module.vmfb").unlink()
    assert check_cli("audit", moved, cwd=tmp_path) == check_cli("audit", built("hand_mlp"))


def test_what_is_nested_without_end_is_said_and_costs_no_op(tmp_path: Path) -> None:
    """Of a location of 500 names only the outermost are read; its op is followed all the same."""
    deep = '"n"(' * 500 + '"m.py":3:1' + ")" * 500
    (tmp_path / "deep.mlir").write_text(
        "func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {\n"
        f"  %0 = math.absf %a : tensor<4xf32> loc({deep})\n"
        "  return %0 : tensor<4xf32>\n}\n",
        encoding="utf-8",
    )
    done = run_cli("build", "deep.mlir", "-o", "deep.tracemap", cwd=tmp_path)
    assert "nested more than 400 deep" in done.stderr
    assert "[locations-cut]" in done.stderr
    graph = load(tmp_path / "deep.tracemap").graph
    (op,) = [op for op in graph.ops if op.name == "math.absf"]
    assert [member.op for member in graph.sites[0].members] == [op.id]
