"""`tracemap lower`: loops linked to ops, compared with texts that need no locations.

Golden files hold the links of samples and small programs; `pytest tests/commands/test_lower.py --update-gold` writes
them anew.
"""

from __future__ import annotations

import copy
import io
import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

import tracemap
from tests.commands.test_errors import refused
from tests.documents import is_current
from tests.reports.test_json_documents import objects
from tests.schemas import printed, validator
from tests.support import ROOT, SAMPLES, Json, check_cli, json_cli, page_data, run_cli
from tracemap.core.errors import ModelInvalid, PipelineInvalid
from tracemap.core.toolchain import find_tool
from tracemap.core.units import UNKNOWN
from tracemap.ir.parsing import MlirParser, Module
from tracemap.map.build.lowering_stages import lower
from tracemap.map.lowering import LOOPS, Loop, Lowering, Stage
from tracemap.map.model import Evidence, OpId
from tracemap.reports.json_documents import shown_lowering
from tracemap.reports.lowering_page import build_lowering_page, render_lowering_page

GOLD = Path(__file__).parent.parent / "gold" / "lower"
PROGRAMS = Path(__file__).parent.parent / "programs" / "lower"

AFFINE = "builtin.module(func.func(convert-linalg-to-affine-loops))"
AFFINE_FUSION = "builtin.module(func.func(affine-loop-fusion))"
BUFFERS = "builtin.module(one-shot-bufferize{bufferize-function-boundaries},canonicalize,cse)"
FUSE_ELEMENTWISE = "builtin.module(func.func(linalg-generalize-named-ops,linalg-fuse-elementwise-ops),canonicalize,cse)"
PARALLEL = "builtin.module(func.func(convert-linalg-to-parallel-loops))"
PARALLEL_FUSION = "builtin.module(func.func(scf-parallel-loop-fusion),canonicalize)"
LOOPS_OF_SCF = "builtin.module(func.func(convert-linalg-to-loops))"


def tile_and_fuse(kind: str) -> str:
    library = (PROGRAMS / f"tile_and_fuse_{kind}.mlir").relative_to(ROOT)
    preload = f"transform-preload-library{{transform-library-paths={library}}}"
    return f"builtin.module({preload},transform-interpreter,canonicalize,cse)"


PIPELINES = {
    "affine": (BUFFERS, AFFINE, AFFINE_FUSION),
    "tile-and-fuse": (tile_and_fuse("for"), BUFFERS, LOOPS_OF_SCF),
    "fused-elementwise": (FUSE_ELEMENTWISE, BUFFERS, PARALLEL, PARALLEL_FUSION),
}
SAMPLE_MODELS = ("fx_mlp_linalg", "hand_attention", "hand_convnet", "hand_dynamic", "hand_mlp", "hand_repeat12")
GOLDEN = {
    **{
        f"{model}.{name}": (SAMPLES / "models" / f"{model}.mlir", pipelines)
        for model in SAMPLE_MODELS
        for name, pipelines in PIPELINES.items()
    },
    "matmul_bias_relu.affine": (PROGRAMS / "matmul_bias_relu.mlir", (AFFINE, AFFINE_FUSION)),
    "linear.tile-and-fuse": (PROGRAMS / "linear.mlir", PIPELINES["tile-and-fuse"]),
    "linear.tile-and-fuse-forall": (PROGRAMS / "linear.mlir", (tile_and_fuse("forall"), BUFFERS, LOOPS_OF_SCF)),
    "elementwise_chain.fused-elementwise": (PROGRAMS / "elementwise_chain.mlir", PIPELINES["fused-elementwise"]),
    "many_places.inline": (
        PROGRAMS / "many_places.mlir",
        (LOOPS_OF_SCF, "builtin.module(inline,canonicalize,cse)"),
    ),
}


@pytest.fixture(autouse=True)
def _in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pipelines name transform libraries relative to the working folder."""
    monkeypatch.chdir(ROOT)


def lowered(path: Path, *pipelines: str) -> Lowering:
    return lower(path.read_bytes(), path.name, pipelines)


def of_text(text: str, *pipelines: str) -> Lowering:
    return lower(text.encode(), "m.mlir", pipelines)


def line_of(lowering: Lowering, op: str) -> int:
    line = lowering.op_by_id[op].line
    assert isinstance(line, int)
    return line


def lines_linked(lowering: Lowering, loop: Loop) -> set[int]:
    """The lines of the model with an op that works in the loop."""
    return {line_of(lowering, link.op) for link in loop.links}


def op_at(lowering: Lowering, line: int) -> OpId:
    return next(op.id for op in lowering.ops if op.line == line)


# --- golden files


def summary(lowering: Lowering) -> Json:
    """Of each stage the loops with the ops linked to them, what is outside of loops, and what is gone."""

    def named(op: str) -> str:
        found = lowering.op_by_id[op]
        return f"{found.name} {found.line}:{found.column}"

    def stage_json(stage: Stage) -> Json:
        places = {op.id: stage.place_of(op.id) for op in lowering.ops if not op.constant}
        return {
            "loops": {
                f"{loop.id} {loop.name} in {loop.function}, depth {loop.depth}": [
                    f"{link.op} {named(link.op)} {link.evidence.value}" for link in loop.links
                ]
                for loop in stage.loops
            },
            "outside": {
                f"{op} {named(op)}": [stage.remainders[number].name for number in place.remainders]
                for op, place in places.items()
                if place.remainders
            },
            "inlined": [f"{op} {named(op)}" for op, place in places.items() if place.inlined],
            "gone": {
                f"{op} {named(op)}": "unknown" if place.reason is UNKNOWN else place.reason.text
                for op, place in places.items()
                if place.is_gone
            },
            "untraced": sum(loop.untraced for loop in stage.loops),
        }

    return {"stages": [stage_json(stage) for stage in lowering.stages]}


@pytest.mark.long
@pytest.mark.parametrize("case", sorted(GOLDEN))
def test_links_are_the_known_ones(case: str, request: pytest.FixtureRequest) -> None:
    path, pipelines = GOLDEN[case]
    found = summary(lowered(path, *pipelines))
    gold = GOLD / f"{case}.json"
    if request.config.getoption("--update-gold"):
        gold.parent.mkdir(parents=True, exist_ok=True)
        gold.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    assert found == json.loads(gold.read_text(encoding="utf-8"))


# --- links, by texts that tell what is in a loop


FINGERPRINTS = PROGRAMS / "fingerprints.mlir"
MARKS = {
    8: r"math\.tanh|<tanh>",
    9: r"math\.exp",
    16: r"arith\.mulf|linalg\.matmul",
    17: r"math\.absf",
    18: r"arith\.minimumf",
    25: r"arith\.maximumf",
}
"""The line of an op of the model -> what only this op's work has in a text."""
HEAD = re.compile(r"^( *)(?:%\S+ = )?(" + "|".join(map(re.escape, sorted(LOOPS))) + r")\b")


def outermost_loops(text: str) -> list[tuple[int, int]]:
    """First line and line of the closing brace of each loop that is in no other, by indentation alone."""
    found: list[tuple[int, int]] = []
    lines = text.splitlines()
    for number, line in enumerate(lines, start=1):
        head = HEAD.match(line)
        if head and not (found and number <= found[-1][1]):
            after = range(number, len(lines))
            closing = next(place for place in after if lines[place].startswith(head[1] + "}"))
            found.append((number, closing + 1))
    return found


CHAINS = {
    **PIPELINES,
    "buffers-scf": (BUFFERS, LOOPS_OF_SCF, "builtin.module(loop-invariant-code-motion,canonicalize,cse)"),
    "tiled-unrolled": (
        BUFFERS,
        AFFINE,
        "builtin.module(func.func(affine-loop-fusion,affine-loop-tile{tile-size=4}))",
        "builtin.module(func.func(affine-loop-unroll{unroll-factor=2},affine-scalrep))",
    ),
    "affine-parallel": (
        BUFFERS,
        AFFINE,
        "builtin.module(func.func(affine-parallelize))",
        "builtin.module(lower-affine)",
    ),
    "fused-then-affine": (FUSE_ELEMENTWISE, BUFFERS, AFFINE, AFFINE_FUSION),
    "forall": (tile_and_fuse("forall"), "builtin.module(func.func(iree-codegen-forall-to-for))", BUFFERS, LOOPS_OF_SCF),
    "coalesced": (BUFFERS, AFFINE, "builtin.module(func.func(affine-loop-coalescing))"),
}


@pytest.mark.long
@pytest.mark.parametrize("chain", sorted(CHAINS))
def test_loops_are_linked_to_the_ops_that_their_text_shows(chain: str) -> None:
    lowering = lowered(FINGERPRINTS, *CHAINS[chain])
    compared = 0
    for stage in lowering.stages:
        lines = stage.text.splitlines()
        assert [loop.line for loop in stage.loops] == [begin for begin, _ in outermost_loops(stage.text)]
        for loop, (begin, end) in zip(stage.loops, outermost_loops(stage.text), strict=True):
            inside = "\n".join(lines[begin - 1 : end])
            expected = {line for line, mark in MARKS.items() if re.search(mark, inside)}
            assert lines_linked(lowering, loop) & set(MARKS) == expected, (stage.pipeline, loop.id)
            assert not loop.untraced
            compared += len(expected)
    assert compared >= len(MARKS)


@pytest.mark.long
@pytest.mark.parametrize("chain", sorted(CHAINS))
def test_no_op_that_computes_is_lost(chain: str) -> None:
    """Each is in a loop where its mark is in one, and else what stands outside."""
    lowering = lowered(FINGERPRINTS, *CHAINS[chain])
    for stage in lowering.stages:
        for line, mark in MARKS.items():
            place = stage.place_of(op_at(lowering, line))
            in_loops = any(
                re.search(mark, "\n".join(stage.text.splitlines()[begin - 1 : end]))
                for begin, end in outermost_loops(stage.text)
            )
            assert not place.is_gone, (stage.pipeline, mark)
            assert bool(place.loops) == in_loops, (stage.pipeline, mark)


def test_only_the_outermost_loop_of_a_matmul_is_linked_to_it() -> None:
    lowering = lowered(PROGRAMS / "matmul_bias_relu.mlir", AFFINE)
    stage = lowering.stages[1]
    matmul = op_at(lowering, 5)
    (name,) = stage.place_of(matmul).loops
    loop = next(loop for loop in stage.loops if loop.id == name)
    assert (loop.name, loop.depth, len(list(loop.walk()))) == ("affine.for", 3, 3)
    assert all(not linked.startswith(f"{name}.") for op in lowering.ops for linked in stage.place_of(op.id).loops)
    assert [link.op for link in loop.links] == [matmul]
    assert loop.links[0].evidence is Evidence.LOCATED


def test_every_operation_of_a_matmuls_nest_is_its_own() -> None:
    """Loads, product, sum and store, also those that a named op has no text for: each line but closing braces."""
    lowering = lowered(PROGRAMS / "matmul_bias_relu.mlir", AFFINE)
    stage = lowering.stages[1]
    loop = stage.loops[1]
    begin, end = outermost_loops(stage.text)[1]
    shown = {number for number in range(begin, end) if stage.text.splitlines()[number - 1].strip() != "}"}
    assert set(loop.links[0].lines) == shown
    body = [line.split(" = ")[-1].split()[0] for line in stage.text.splitlines()[begin + 2 : end] if "}" not in line]
    assert body == ["affine.load"] * 3 + ["arith.mulf", "arith.addf", "affine.store"]
    assert (loop.operations, loop.untraced) == (9, 0)


def test_a_fused_loop_is_linked_to_all_its_ops_and_nested_loops_show_what_is_in_them() -> None:
    lowering = lowered(PROGRAMS / "matmul_bias_relu.mlir", AFFINE, AFFINE_FUSION)
    separate, (fused,) = lowering.stages[1].loops, lowering.stages[2].loops
    assert [lines_linked(lowering, loop) for loop in separate] == [{4}, {5}, {6}]
    assert lines_linked(lowering, fused) == {4, 5, 6}
    innermost = list(fused.walk())[-1]
    assert lines_linked(lowering, innermost) == {5}


def test_an_op_is_walked_from_stage_to_stage() -> None:
    lowering = lowered(PROGRAMS / "linear.mlir", tile_and_fuse("forall"), BUFFERS, LOOPS_OF_SCF)
    matmul = op_at(lowering, 6)
    places = lowering.places_of(matmul)
    assert [place.loops for place in places] == [(), ("loop0",), ("loop0",), ("loop0",)]
    assert lowering.stages[0].remainders[places[0].remainders[0]].name == "linalg.matmul"
    assert {stage.loops[0].name for stage in lowering.stages[1:]} == {"scf.forall"}
    with pytest.raises(KeyError):
        lowering.places_of("op999")


def test_ops_in_many_loops_in_loops_of_the_model_inlined_and_gone() -> None:
    lowering = lowered(PROGRAMS / "many_places.mlir", LOOPS_OF_SCF, "builtin.module(inline,canonicalize,cse)")
    model, separate, inlined = lowering.stages
    assert model.place_of(op_at(lowering, 17)).loops == ("loop0",)
    assert separate.place_of(op_at(lowering, 3)).loops == ("loop0",)
    assert inlined.place_of(op_at(lowering, 3)).loops == ("loop0", "loop1")
    assert inlined.place_of(op_at(lowering, 17)).loops == ("loop2",)
    assert [inlined.place_of(op_at(lowering, line)).inlined for line in (14, 15)] == [True, True]
    assert not separate.place_of(op_at(lowering, 14)).inlined
    gone = {
        op.line: inlined.reasons[op.id] for op in lowering.ops if not op.constant and inlined.place_of(op.id).is_gone
    }
    assert {line: reason.text for line, reason in gone.items()} == {
        19: "removed: nothing uses its result",
        22: "removed: same as 21:10",
    }
    assert all(reason.inferred for reason in gone.values())


def test_what_passes_make_around_an_op_is_no_evidence_of_it() -> None:
    """Constants for bounds carry the location of the tiled op, and stand outside of its loop."""
    lowering = lowered(PROGRAMS / "linear.mlir", tile_and_fuse("for"))
    stage = lowering.stages[1]
    generic = stage.place_of(op_at(lowering, 7))
    assert (generic.loops, generic.remainders) == (("loop0",), ())
    assert stage.text.count("arith.constant") > 1
    constant = stage.place_of(op_at(lowering, 3))
    assert [stage.remainders[number].name for number in constant.remainders] == ["arith.constant"]


def test_an_op_that_is_a_view_stays_one() -> None:
    text = """\
func.func @f(%x: tensor<8x8xf32>) -> tensor<4x8xf32> {
  %s = tensor.extract_slice %x[2, 0] [4, 8] [1, 1] : tensor<8x8xf32> to tensor<4x8xf32>
  return %s : tensor<4x8xf32>
}
"""
    lowering = of_text(text, "builtin.module(one-shot-bufferize{bufferize-function-boundaries})")
    stage = lowering.stages[1]
    assert [stage.remainders[number].name for number in stage.place_of(OpId.of(2)).remainders] == ["memref.subview"]


def test_locations_that_a_pass_merged_are_fused_evidence() -> None:
    """IREE makes one op of products that share an operand, and gives it the locations of all."""
    text = """\
util.func @f(%x: tensor<32x64xf32>, %a: tensor<64x16xf32>, %b: tensor<64x16xf32>) -> (tensor<32x16xf32>, tensor<32x16xf32>) {
  %e = tensor.empty() : tensor<32x16xf32>
  %p = linalg.matmul ins(%x, %a : tensor<32x64xf32>, tensor<64x16xf32>) outs(%e : tensor<32x16xf32>) -> tensor<32x16xf32>
  %q = linalg.matmul ins(%x, %b : tensor<32x64xf32>, tensor<64x16xf32>) outs(%e : tensor<32x16xf32>) -> tensor<32x16xf32>
  util.return %p, %q : tensor<32x16xf32>, tensor<32x16xf32>
}
"""  # noqa: E501 - the text is MLIR
    merge = "builtin.module(util.func(iree-dispatch-creation-fuse-horizontal-contractions))"
    loops = "builtin.module(one-shot-bufferize{allow-unknown-ops},util.func(convert-linalg-to-loops))"
    lowering = of_text(text, merge, loops)
    (loop,) = lowering.stages[2].loops
    assert lines_linked(lowering, loop) == {3, 4}
    (merged,) = [each for each in lowering.stages[1].remainders if each.name == "linalg.generic"]
    assert {line_of(lowering, link.op) for link in merged.links} == {3, 4}


def test_loops_without_locations_are_linked_to_nothing_and_say_so() -> None:
    strip = "builtin.module(func.func(convert-linalg-to-affine-loops),strip-debuginfo)"
    lowering = lowered(PROGRAMS / "matmul_bias_relu.mlir", strip)
    loops = lowering.stages[1].loops
    assert [(loop.links, loop.untraced) for loop in loops] == [((), loop.operations) for loop in loops]
    assert all(lowering.stages[1].place_of(op.id).is_gone for op in lowering.ops)
    said = check_cli("lower", PROGRAMS / "matmul_bias_relu.mlir", "--pipeline", strip)
    assert "19 of 19 operations in loops cannot be traced to an op" in said


# --- stages are what iree-opt makes of the model


@pytest.mark.parametrize("case", ["matmul_bias_relu.affine", "linear.tile-and-fuse", "hand_mlp.fused-elementwise"])
def test_the_last_stage_is_what_iree_opt_itself_makes(case: str, tmp_path: Path) -> None:
    """One pipeline after the other, on the text of the model, without tags."""
    path, pipelines = GOLDEN[case]
    text = path.read_text(encoding="utf-8")
    for number, pipeline in enumerate(pipelines):
        source = tmp_path / f"{number}.mlir"
        source.write_text(text, encoding="utf-8")
        arguments = [str(find_tool("iree-opt")), f"--pass-pipeline={pipeline}", str(source)]
        text = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout
    assert lowered(path, *pipelines).stages[-1].text.strip() == text.strip()


def test_lines_are_those_of_the_model_text_also_with_explicit_locations_and_of_bytecode() -> None:
    text = (PROGRAMS / "matmul_bias_relu.mlir").read_text(encoding="utf-8")
    located = text.replace("memref<32x16xf32>)\n", 'memref<32x16xf32>) loc("elsewhere.py":7:1)\n')
    assert located.count("elsewhere") == 2
    plain = of_text(text, AFFINE)
    assert summary(of_text(located, AFFINE)) == summary(plain)
    parser = MlirParser()
    module = parser.parse(text)
    bytecode = module.operation.get_asm(enable_debug_info=False)
    again = lower(_bytecode(module), "m.mlirbc", (AFFINE,))
    assert again.stages[0].text == bytecode
    shown = bytecode.splitlines()
    for op in again.ops:
        assert op.name in shown[line_of(again, op.id) - 1]
    assert [loop.links for loop in again.stages[1].loops] == [loop.links for loop in plain.stages[1].loops]


def _bytecode(module: Module) -> bytes:
    file = io.BytesIO()
    module.operation.write_bytecode(file)
    return file.getvalue()


def test_other_dialects_lead_to_loops_too() -> None:
    """StableHLO: an op becomes linalg, then loops; what only moved elements is gone into the indexing of others."""
    text = """\
func.func @main(%x: tensor<4x8xf32>, %b: tensor<8xf32>) -> tensor<4x8xf32> {
  %r = stablehlo.broadcast_in_dim %b, dims = [1] : (tensor<8xf32>) -> tensor<4x8xf32>
  %s = stablehlo.add %x, %r : tensor<4x8xf32>
  %t = stablehlo.tanh %s : tensor<4x8xf32>
  return %t : tensor<4x8xf32>
}
"""
    convert = "builtin.module(iree-stablehlo-input-transformation-pipeline)"
    lowering = of_text(text, convert, FUSE_ELEMENTWISE, BUFFERS, PARALLEL)
    (loop,) = lowering.stages[4].loops
    assert lines_linked(lowering, loop) == {3, 4}
    assert lowering.stages[1].place_of(op_at(lowering, 2)).remainders
    assert lowering.stages[4].place_of(op_at(lowering, 2)).is_gone
    assert lowering.stages[4].reasons[op_at(lowering, 2)].slug == "passed-through"


# --- command, JSON, API


def pipelined(*pipelines: str) -> list[str]:
    return [word for pipeline in pipelines for word in ("--pipeline", pipeline)]


def test_the_readme_shows_what_the_command_prints() -> None:
    assert is_current("lower"), "run python -m tests.documents"


def test_json_obeys_its_schema_and_the_api_gives_the_same() -> None:
    path = PROGRAMS / "many_places.mlir"
    pipelines = (LOOPS_OF_SCF, "builtin.module(inline,canonicalize,cse)")
    value = json_cli("lower", path, *pipelined(*pipelines))
    validator("lowering").validate(value)
    assert value == printed(shown_lowering(tracemap.lower(path, pipelines)))


@pytest.mark.long
def test_the_schema_allows_no_key_more_or_less() -> None:
    value = printed(shown_lowering(lowered(PROGRAMS / "matmul_bias_relu.mlir", AFFINE, AFFINE_FUSION)))
    check = validator("lowering")
    for index, entry in enumerate(objects(value)):
        for key in [*entry, "surplus"]:
            broken = copy.deepcopy(value)
            target = objects(broken)[index]
            target.pop(key) if key in entry else target.update(surplus=1)
            assert not check.is_valid(broken), key


@pytest.mark.long
@pytest.mark.parametrize("form", ["text", "json"])
def test_standard_input_and_files_give_the_same_bytes_each_time(form: str, tmp_path: Path) -> None:
    path = PROGRAMS / "linear.mlir"
    words = ["--format", form, *pipelined(BUFFERS, AFFINE)]
    first = check_cli("lower", path, *words)
    done = run_cli("lower", "-", *words, stdin=path.read_bytes())
    assert done.stdout == first.replace("linear.mlir", "<stdin>")
    check_cli("lower", path, *words, "-o", "out", "--html", "one.html", cwd=tmp_path)
    check_cli("lower", path, *words, "-o", "out", "--html", "two.html", "--force", cwd=tmp_path)
    assert (tmp_path / "out").read_text(encoding="utf-8") == first
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "two.html").read_bytes()


@pytest.mark.parametrize(
    ("pipeline", "said"),
    [
        ("builtin.module(no-such-pass)", "'no-such-pass' does not refer to a registered pass"),
        ("builtin.module(func.func(convert-linalg-to-loops{x=1}))", "no such option x"),
        ("cse", "wrapped with the anchor operation type"),
        ("", "an empty pipeline"),
        ("func.func(cse)", "linear.mlir:0:0"),
        ("builtin.module(transform-interpreter)", "__transform_main"),
    ],
)
def test_a_pipeline_that_iree_opt_refuses_ends_in_its_own_words(pipeline: str, said: str, tmp_path: Path) -> None:
    words = [*pipelined("builtin.module(cse)", pipeline), "--html", "page.html", "-o", "out"]
    sentence = refused("pipeline-invalid", "lower", PROGRAMS / "linear.mlir", *words, cwd=tmp_path)
    assert said in sentence
    assert sentence.count("\n") == 0
    assert "/tmp" not in sentence.replace(str(tmp_path), "")


def test_a_pass_that_fails_names_the_line_of_the_model() -> None:
    text = (SAMPLES / "models" / "hand_multifunc.mlir").read_text(encoding="utf-8")
    with pytest.raises(PipelineInvalid, match=r"m\.mlir:25:8: error: op was not bufferized$"):
        of_text(text, BUFFERS)


@pytest.mark.long
def test_refused_models_options_and_outputs(tmp_path: Path) -> None:
    model = PROGRAMS / "linear.mlir"
    words = pipelined("builtin.module(cse)")
    (tmp_path / "bad.mlir").write_text("func.func @f(\n", encoding="utf-8")
    (tmp_path / "there").write_text("mine", encoding="utf-8")
    assert "bad.mlir:" in refused("model-invalid", "lower", "bad.mlir", *words, cwd=tmp_path)
    assert "absent.mlir" in refused("model-unreadable", "lower", "absent.mlir", *words, cwd=tmp_path)
    for option in ("-o", "--html"):
        assert "--force" in refused("target-exists", "lower", model, *words, option, "there", cwd=tmp_path)
        assert "absent" in refused("target-unwritable", "lower", model, *words, option, "absent/x", cwd=tmp_path)
    assert run_cli("lower", model).returncode == 2
    with pytest.raises(ModelInvalid, match="neither UTF-8 text"):
        lower(b"\xff\xfe", "m.mlir", ("builtin.module(cse)",))


# --- page


def test_the_page_has_every_line_of_every_stage_and_marks_loops() -> None:
    lowering = lowered(PROGRAMS / "matmul_bias_relu.mlir", AFFINE, AFFINE_FUSION)
    page = build_lowering_page(lowering)
    for pane, stage in zip(page.panes, lowering.stages, strict=True):
        assert len(pane.lines) == len(stage.text.splitlines())
        assert [line.label for line in pane.lines if line.label] == [loop.id for loop in stage.loops]
    assert page.panes[1].summary == "3 loops, 3 ops in them"
    assert [op.places[1:] for op in page.ops][1:] == [("loop0", "loop0"), ("loop1", "loop0"), ("loop2", "loop0")]


HOSTILE = """\
func.func @"</script><script>alert(1)</script>"(%x: memref<4xf32>) attributes {note = "</script><img src=x onerror=alert(2)>"} {
  linalg.generic {indexing_maps = [affine_map<(i) -> (i)>], iterator_types = ["parallel"]} outs(%x : memref<4xf32>) {
  ^bb0(%a: f32):
    %y = math.tanh %a : f32 // <b>&amp;"
    linalg.yield %y : f32
  }
  return
}
"""  # noqa: E501 - the text is MLIR


def test_text_of_a_model_takes_no_effect_in_the_page() -> None:
    text = render_lowering_page(lower(HOSTILE.encode(), "<i>m</i>.mlir", (AFFINE,)))
    assert "<script>alert" not in text
    assert "<img" not in text
    assert "<i>m" not in text
    assert text.count("<script") == 3
    assert len(page_data(text)["stages"]) == 2


def sections(text: str) -> Sequence[str]:
    return re.findall(r'<section id="(\w+)"', text)


def test_links_of_the_page_resolve() -> None:
    text = render_lowering_page(lowered(PROGRAMS / "many_places.mlir", LOOPS_OF_SCF))
    anchors = set(re.findall(r'\bid="([^"]+)"', text))
    assert set(re.findall(r'href="#([^"]+)"', text)) <= anchors
    assert sections(text) == ["S0", "S1", "ops"]
    assert "://" not in text
