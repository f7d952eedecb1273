"""The memory of programs: as the runtime counts it, as models without an op have it, and as their values make it up."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import duckdb
import pytest

from tests.conftest import Built, Recorded
from tests.oracle.memory import DYNAMIC, allocated_peak, dynamic_peak, edited_peak, edits, is_promised
from tests.oracle.memory_programs import fused_edits
from tests.support import SAMPLES, Corpus, check_cli, json_cli, long_where, run_cli
from tracemap.core.units import UNKNOWN
from tracemap.map.bundle import load
from tracemap.map.memory import ALIGNMENT, MemoryValue, evaluate, packed_bytes
from tracemap.map.memory_use import memory_use
from tracemap.reports.page.memory import outline

FLAGS = sorted(Corpus(SAMPLES).flag_files())
QUICK = ("hand_attention", "hand_dynamic", "hand_loop")


@pytest.mark.parametrize("flags", long_where(FLAGS, lambda _, flags: flags not in QUICK))
def test_the_peak_is_what_the_runtime_allocates(flags: str, built: Built, samples: Corpus) -> None:
    found = allocated_peak(samples, flags, built(samples.model_of(flags)))
    assert found.is_right, found


@pytest.mark.parametrize("name", long_where(list(DYNAMIC), lambda number, _: number > 0))
def test_the_peak_of_dynamic_shapes_depends_on_the_arguments(name: str, tmp_path: Path) -> None:
    found = dynamic_peak(name, tmp_path)
    assert found.is_right, found


@pytest.mark.parametrize("edit", long_where(list(edits(24)), lambda number, _: number > 0), ids=lambda edit: edit.name)
def test_without_an_op_the_peak_is_that_of_the_model_without_it(edit: object, tmp_path: Path) -> None:
    found = edited_peak(edit, tmp_path)  # type: ignore[arg-type]  # pytest's parameters have no type
    assert found.is_right, found


@pytest.mark.parametrize(
    "edit", long_where(list(fused_edits(30)), lambda number, _: number > 0), ids=lambda edit: edit.name
)
def test_without_a_fused_op_the_peak_is_right_or_an_estimate(edit: object, tmp_path: Path) -> None:
    found = edited_peak(edit, tmp_path)  # type: ignore[arg-type]  # pytest's parameters have no type
    assert is_promised(found), found


LOOP = """\
func.func @main(%x: tensor<64x64xf32>, %w: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %none = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %trips = stablehlo.constant dense<3> : tensor<i32>
  %o:2 = stablehlo.while(%i = %none, %v = %x) : tensor<i32>, tensor<64x64xf32>
  cond {
    %p = stablehlo.compare LT, %i, %trips : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %m = stablehlo.dot_general %v, %w, contracting_dims = [1] x [0] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
    %t = stablehlo.dot_general %m, %v, contracting_dims = [1] x [0] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
    %n = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %n, %t : tensor<i32>, tensor<64x64xf32>
  }
  return %o#1 : tensor<64x64xf32>
}
"""  # noqa: E501 - the text is MLIR
REDUCED = """\
func.func @main(%x: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %t = stablehlo.tanh %x : tensor<64x64xf32>
  %r = stablehlo.reduce(%t init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<64x64xf32>, tensor<f32>) -> tensor<64xf32>
  %b = stablehlo.broadcast_in_dim %r, dims = [0] : (tensor<64xf32>) -> tensor<64x64xf32>
  %m = stablehlo.dot_general %b, %x, contracting_dims = [1] x [0] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  return %m : tensor<64x64xf32>
}
"""  # noqa: E501 - the text is MLIR


@pytest.mark.parametrize(
    ("text", "line", "edited"),
    [
        (LOOP, 10, [("%m = ", None), ("%m, %v", "%v, %v")]),
        (REDUCED, 4, [("%r = ", None), ("%b = ", None), ("%b, %x", "%t, %x")]),
    ],
    ids=["copy", "reduction"],
)
def test_buffers_of_other_ops_stay_and_values_grow(
    text: str, line: int, edited: Sequence[tuple[str, str | None]], tmp_path: Path
) -> None:
    """A copy in the name of a removed op, which another reads; and the operand of a removed reduction."""
    lines = text.splitlines()
    for old, new in edited:
        lines = [own.replace(old, new or old) for own in lines if new is not None or old not in own]
    for name, own in (("before", text), ("after", "\n".join(lines))):
        (tmp_path / f"{name}.mlir").write_text(own, encoding="utf-8")
        check_cli("build", tmp_path / f"{name}.mlir", "-o", tmp_path / f"{name}.tracemap")
    (without,) = json_cli("memory", tmp_path / "before.tracemap", "--without", f"before.mlir:{line}")["functions"]
    (right,) = json_cli("memory", tmp_path / "after.tracemap")["functions"]
    assert without["peak_bytes"] == right["peak_bytes"]


def test_a_value_that_a_dispatch_stores_twice_becomes_one(built: Built) -> None:
    """The compiled program without the op has 1004 KiB."""
    text = check_cli("memory", built("jax_mlp_train"), "--without", "op116")
    assert "1004 KiB at the peak" in text.splitlines()[0]


def test_a_size_for_a_run_with_other_inputs_is_refused(built: Built, recorded: Recorded) -> None:
    run = recorded("hand_dynamic")
    failed = run_cli("memory", built("hand_dynamic"), run, "--dim", "7")
    assert (failed.returncode, failed.stdout, failed.stderr.count("\n")) == (2, "", 1)
    assert "is a run with inputs of other sizes" in failed.stderr
    assert "leave --dim out" in failed.stderr
    failed = run_cli("memory", built("hand_attention"), "--dim", "7")
    assert (failed.returncode, "has a dynamic dimension" in failed.stderr) == (2, True)


# Programs that drop memory without a release, which only its size in the plan would tell.
DROPPING = {"hand_loop", "jax_gpt2_4l", "jax_gpt2_4l_scan", "jax_gpt2_small_12l"}
RECORDED = ("hand_attention", "hand_loop")


@pytest.mark.parametrize("flags", long_where(FLAGS, lambda _, flags: flags not in RECORDED))
def test_a_run_allocates_what_is_planned(flags: str, built: Built, recorded: Recorded, samples: Corpus) -> None:
    """To the byte, if each allocation has a release or outlives its invocation; else no less."""
    found = json_cli("memory", built(samples.model_of(flags)), recorded(flags), "--top", "1")
    (plan,), allocated = found["functions"], found["allocated"]
    assert allocated["allocated_bytes"] - allocated["released_bytes"] == (
        allocated["invocations"] * (allocated["unreleased_bytes"] or 0)
    )
    if flags in DROPPING:
        assert allocated["unreleased_bytes"] > plan["lasting_bytes"]
        assert allocated["peak_bytes"] > plan["peak_bytes"]
        assert [note["slug"] for note in found["diagnostics"]] == ["releases-missing"]
    else:
        assert (allocated["peak_bytes"] or 0) == plan["peak_bytes"]
        assert (allocated["unreleased_bytes"] or 0) >= plan["lasting_bytes"]
        assert found["diagnostics"] == []


@pytest.mark.parametrize(
    ("change", "slug", "part"),
    [
        ("kind IN ('alloca', 'dealloca')", "allocations-unknown", "without a size"),
        ("kind = 'dealloca'", "allocations-unknown", "local-task does not say"),
    ],
)
def test_a_run_without_sizes_has_no_allocated_peak(
    change: str, slug: str, part: str, built: Built, recorded: Recorded, tmp_path: Path
) -> None:
    run, header = tmp_path / "run.csv", "run.csv.json"
    shutil.copy(recorded("hand_attention", ".csv").with_name("hand_attention.csv.json"), tmp_path / header)
    blank = f"* REPLACE (CASE WHEN {change} THEN NULL ELSE payload_bytes END AS payload_bytes)"
    source = str(recorded("hand_attention", ".csv"))
    duckdb.sql(f"COPY (SELECT {blank} FROM read_csv('{source}')) TO '{run}' (HEADER)")
    found = json_cli("memory", built("hand_attention"), run)
    (note,) = found["diagnostics"]
    assert found["allocated"]["peak_bytes"] is None
    assert (note["slug"], part in note["message"]) == (slug, True)


def test_a_peak_that_is_not_planned_is_named(built: Built, recorded: Recorded, tmp_path: Path) -> None:
    run = tmp_path / "run.csv"
    source = recorded("hand_attention", ".csv")
    shutil.copy(source.with_name(f"{source.name}.json"), tmp_path / "run.csv.json")
    halved = "* REPLACE (CASE WHEN kind LIKE '%alloca' THEN payload_bytes // 2 ELSE payload_bytes END AS payload_bytes)"
    duckdb.sql(f"COPY (SELECT {halved} FROM read_csv('{source}')) TO '{run}' (HEADER)")
    text = check_cli("memory", built("hand_attention"), run)
    assert "run.csv: 128 KiB allocated at the peak, " in text
    assert "note [peak-not-planned]: run.csv: 131,072 bytes are allocated at the peak, but 262,144 are planned" in text


@pytest.mark.few(2)
@pytest.mark.parametrize("model", ["hand_attention", "jax_gpt2_4l_scan", "torch_mlp", "hand_loop"])
def test_values_at_the_peak_make_it_up(model: str, built: Built) -> None:
    """With what the layout leaves unused, they add up to the peak, in each function."""
    plan = load(built(model)).memory()
    for function in plan.functions:
        use = memory_use(plan, function, lambda _argument, _index: UNKNOWN, top=3)
        assert sum(value.bytes for value in use.held) + use.unused_bytes == use.peak_bytes == max(use.curve)
        assert sum(use.by_resource.values()) == use.peak_bytes == use.curve[use.step]
        assert sum(value.bytes for value in use.held if value.ops) <= use.peak_bytes
        assert use.unused_bytes >= 0
        assert use.needed[use.step] == sum(value.bytes for value in use.held)
        assert all(needed <= held for needed, held in zip(use.needed, use.curve, strict=True))


def test_an_op_fused_behind_another_frees_nothing(tmp_path: Path) -> None:
    """Without the activation its dispatch writes the product, as in the program without the activation."""
    kind = "tensor<64x64xf32>"
    product = f"stablehlo.dot_general %0, %1, contracting_dims = [1] x [0] : ({kind}, {kind}) -> {kind}"
    lines = [
        f"func.func @main(%x: {kind}) -> {kind} {{",
        "%a = " + product.replace("%0", "%x").replace("%1", "%x"),
        f"%b = stablehlo.tanh %a : {kind}",
        "%c = " + product.replace("%0", "%b").replace("%1", "%b"),
        "%d = " + product.replace("%0", "%c").replace("%1", "%b"),
        "%e = " + product.replace("%0", "%d").replace("%1", "%d"),
        f"return %e : {kind}\n}}",
    ]
    plain = [line.replace("%b", "%a") for line in lines if "tanh" not in line]
    for name, text in (("fused", lines), ("plain", plain)):
        (tmp_path / f"{name}.mlir").write_text("\n".join(text), encoding="utf-8")
        check_cli("build", tmp_path / f"{name}.mlir", "-o", tmp_path / f"{name}.tracemap")
    (fused,) = json_cli("memory", tmp_path / "fused.tracemap", "--without", "fused.mlir:3")["functions"]
    (right,) = json_cli("memory", tmp_path / "plain.tracemap")["functions"]
    assert fused["peak_bytes"] == right["peak_bytes"] == 4 * 64 * 64 * 4
    assert {value["ops"][0] for value in fused["held"]} >= {"op2"}


@pytest.mark.parametrize("seed", long_where(list(range(10)), lambda number, _: number > 0))
def test_a_costly_value_is_named_first(seed: int, tmp_path: Path) -> None:
    """One op of each program makes an array that is larger than all others."""
    chance = random.Random(seed)
    large = chance.randrange(4)
    widths = [1024 if number == large else chance.choice((32, 64, 96)) for number in range(5)]
    shapes = [f"tensor<64x{width}xf32>" for width in (48, *widths)]
    weights = [f"tensor<{before}x{after}xf32>" for before, after in zip((48, *widths), widths, strict=False)]
    arguments = ", ".join(f"%w{number}: {kind}" for number, kind in enumerate(weights))
    lines = [f"func.func @main(%v0: {shapes[0]}, {arguments}) -> {shapes[-1]} {{"]
    lines += [
        f"  %v{number + 1} = stablehlo.dot_general %v{number}, %w{number}, contracting_dims = [1] x [0]"
        f" : ({shapes[number]}, {weights[number]}) -> {shapes[number + 1]}"
        for number in range(5)
    ]
    model, bundle = tmp_path / "costly.mlir", tmp_path / "costly.tracemap"
    model.write_text("\n".join([*lines, f"  return %v5 : {shapes[-1]}", "}"]) + "\n", encoding="utf-8")
    check_cli("build", model, "-o", bundle)
    (function,) = json_cli("memory", bundle)["functions"]
    first = function["held"][0]
    line = {op["id"]: op["line"] for op in json_cli("show", bundle)["ops"]}
    assert [line[op] for op in first["ops"]] == [large + 2]
    assert first["bytes"] == 64 * 1024 * 4


def test_constants_in_a_packed_resource_have_their_ops_and_readers(tmp_path: Path) -> None:
    """A weight that two ops read, one that is computed when the module is loaded, and a small one, which pads."""
    shapes = {"w": (64, 64), "v": (64, 3)}
    chance = random.Random(1)
    blobs = {
        name: bytes(chance.randrange(64) for _ in range(4 * rows * columns)) for name, (rows, columns) in shapes.items()
    }
    lines = ",".join(f'{name}: "0x04000000{blob.hex()}"' for name, blob in blobs.items())
    model, bundle = tmp_path / "weights.mlir", tmp_path / "weights.tracemap"
    model.write_text(f"{WEIGHTS}\n{{-# dialect_resources: {{ builtin: {{ {lines} }} }} #-}}\n", encoding="utf-8")
    check_cli("build", model, "-o", bundle, "--", "--iree-opt-const-eval=false")
    found = json_cli("memory", bundle)
    line = {op["id"]: op["line"] for op in json_cli("show", bundle)["ops"]}
    kept = {
        line[value["ops"][0]]: (value["bytes"], [line[op] for op in value["reading_ops"]]) for value in found["kept"]
    }
    assert kept == {2: (4 * 64 * 64, [4, 5]), 4: (4 * 64 * 64, [6]), 3: (4 * 64 * 3, [7])}
    (function,) = found["functions"]
    assert function["kept_bytes"] == sum(size for size, _ in kept.values())
    text = check_cli("memory", bundle)
    rows = [row.split() for row in text.partition("Constants and variables")[2].splitlines()]
    assert ["op2", "weights.mlir:2", "stablehlo.constant", "16.0", "KiB", "site0", "site1", "op4", "op5"] in rows


WEIGHTS = """\
func.func @main(%x: tensor<32x64xf32>) -> (tensor<32x64xf32>, tensor<32x3xf32>) {
  %w = stablehlo.constant dense_resource<w> : tensor<64x64xf32>
  %v = stablehlo.constant dense_resource<v> : tensor<64x3xf32>
  %s = stablehlo.sine %w : tensor<64x64xf32>
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
  %1 = stablehlo.dot_general %0, %s, contracting_dims = [1] x [0] : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
  %2 = stablehlo.dot_general %0, %v, contracting_dims = [1] x [0] : (tensor<32x64xf32>, tensor<64x3xf32>) -> tensor<32x3xf32>
  return %1, %2 : tensor<32x64xf32>, tensor<32x3xf32>
}
"""  # noqa: E501 - the text is MLIR


@pytest.mark.few(2)
@pytest.mark.parametrize("model", ["jax_gpt2_4l", "torch_mlp", "torch_bert_tiny", "onnx_tinygpt", "hand_multifunc"])
def test_constants_and_variables_add_up(model: str, built: Built) -> None:
    """What the module keeps is its constants and variables, with gaps of the layout; each has a dispatch as reader."""
    found = json_cli("memory", built(model))
    for function in found["functions"]:
        gaps = function["kept_bytes"] - sum(value["bytes"] for value in found["kept"])
        assert 0 <= gaps < ALIGNMENT * len(found["kept"])
    assert found["kept"]
    assert all(value["read_by"] and value["reading_ops"] for value in found["kept"] if value["ops"])


CALLED = """
util.func private @layer(%x: tensor<64x64xf32>, %w: tensor<64x64xf32>) -> tensor<64x64xf32>
    attributes {inlining_policy = #util.inline.never} {
  %e = tensor.empty() : tensor<64x64xf32>
  %z = arith.constant 0.0 : f32
  %i = linalg.fill ins(%z : f32) outs(%e : tensor<64x64xf32>) -> tensor<64x64xf32>
  %0 = linalg.matmul ins(%x, %w : tensor<64x64xf32>, tensor<64x64xf32>)
      outs(%i : tensor<64x64xf32>) -> tensor<64x64xf32>
  util.return %0 : tensor<64x64xf32>
}
util.func public @main(%x: tensor<64x64xf32>, %w: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %0 = util.call @layer(%x, %w) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %1 = util.call @layer(%0, %w) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  util.return %1 : tensor<64x64xf32>
}
"""


def test_calls_that_are_not_inlined_have_no_known_peak(tmp_path: Path) -> None:
    """What the first call returns is in memory during the second, which the plan of a function does not show."""
    model, bundle = tmp_path / "called.mlir", tmp_path / "called.tracemap"
    model.write_text(CALLED, encoding="utf-8")
    check_cli("build", model, "-o", bundle)
    failed = run_cli("memory", bundle)
    assert (failed.returncode, failed.stdout, failed.stderr.count("\n")) == (2, "", 1)
    assert "main: its memory is unknown, because layer is called but not inlined" in failed.stderr


def test_slices_are_laid_out_as_the_compiler_does() -> None:
    """A slice goes into the smallest gap that it fits into; equal dynamic sizes share a place if they can."""

    def value(size: str, first: int, last: int) -> MemoryValue:
        return MemoryValue(size, (), (), (), (), first, last)

    def layout(*values: MemoryValue, sizes: Sequence[int] = ()) -> int:
        return packed_bytes(values, sizes or [int(str(own.size)) for own in values])

    assert layout(value("100", 0, 1), value("100", 1, 2)) == 2 * 128
    assert layout(value("100", 0, 1), value("100", 2, 3)) == 128
    gap = (value("640", 0, 0), value("128", 0, 3), value("512", 1, 3))
    assert layout(*gap) == 640 + 128
    dynamic = [value("(dim 0 0)", first, first + 1) for first in (0, 2, 1)]
    assert layout(*dynamic, sizes=(65, 65, 65)) == 2 * 2 * ALIGNMENT


def test_sizes_are_expressions_of_arguments() -> None:
    sizes = {(0, 1): 5, (2, -1): 7}
    read = evaluate("(* (+ (dim 0 1) (arg 2)) (align 5 64))", lambda argument, index: sizes[argument, index])
    assert read == 12 * 64
    assert evaluate("(* (dim 0 0) 4)", lambda _argument, _index: UNKNOWN) is UNKNOWN
    for text in ("(/ 4 (- (dim 0 0) 1))", "(- 1 2)", "(* 99999999999 99999999999)"):
        assert evaluate(text, lambda _argument, _index: 1) is UNKNOWN
    for text in ("", "(", "(* 4)", "(what 1 2)", "4 5", "(* 4 x)", ")"):
        with pytest.raises(ValueError, match=re.escape(repr(text))):
            evaluate(text, lambda _argument, _index: 1)


def test_the_curve_of_a_page_is_a_step_chart() -> None:
    assert outline((5, 5, 10, 0), 10) == "M0 100V50H2V0H3V100H4V100Z"


def test_a_page_shows_the_memory_of_its_run_or_of_all_functions(built: Built, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    check_cli("report", built("hand_multifunc"), "-o", page)
    text = page.read_text(encoding="utf-8")
    peaks = [function["peak_bytes"] for function in json_cli("memory", built("hand_multifunc"))["functions"]]
    assert text.count('<div class="curve">') == sum(map(bool, peaks)) > 1
    check_cli("report", built("hand_dynamic"), "-o", page, "--force")
    assert '<div class="curve">' not in page.read_text(encoding="utf-8")


# ---- command line


def test_the_table_names_ops_sites_and_the_peak_without(built: Built) -> None:
    text = check_cli("memory", built("hand_attention"))
    assert text.startswith("attention: 256 KiB at the peak, step 3 of 6: results 32.0 KiB, transient 224 KiB\n")
    row = next(line for line in text.splitlines() if line.startswith("op44 "))
    assert (
        row.split() == "op44 hand_attention.mlir:30 linalg.map 64.0 KiB 25.0 site6 site7 256 KiB".split()
    )  # a product is left there
    without = check_cli("memory", built("hand_attention"), "--without", "op40", "--without", "op44")
    assert without.startswith("attention without op40, op44 (−64.0 KiB): about 192 KiB at the peak")


def test_dynamic_sizes_need_the_arguments(built: Built) -> None:
    bundle = built("hand_dynamic")
    failed = run_cli("memory", bundle)
    assert failed.returncode == 2
    assert failed.stderr.count("\n") == 1
    assert "--input" in failed.stderr
    peaks = [json_cli("memory", bundle, "--dim", str(size))["functions"][0]["peak_bytes"] for size in (16, 32)]
    assert peaks[1] == 2 * peaks[0]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ((), "--input"),
        (("--dim", "9" * 18), "larger than any memory"),
        (("--input", "x=3xf32", "--dim", "4"), "its shape is 3, not ?x?"),
        (("--input", "x=3x4xf64", "--dim", "4"), "its elements are f64"),
        (("--input", "8x16xf32"), "takes 3 inputs"),
    ],
)
def test_dynamic_sizes_that_do_not_fit_are_one_sentence(words: tuple[str, ...], part: str, built: Built) -> None:
    failed = run_cli("memory", built("hand_dynamic"), *words)
    assert (failed.returncode, failed.stdout, failed.stderr.count("\n")) == (2, "", 1)
    assert part in failed.stderr


@pytest.mark.long
def test_a_run_with_other_inputs_is_refused(built: Built, recorded: Recorded) -> None:
    bundle, run = built("hand_dynamic"), recorded("hand_dynamic")
    other = [word for shape in ("4x4", "4x128", "128") for word in ("--input", f"{shape}xf32")]
    failed = run_cli("memory", bundle, run, *other)
    assert (failed.returncode, failed.stdout, failed.stderr.count("\n")) == (2, "", 1)
    assert "inputs of other sizes (24x64xf32" in failed.stderr
    same = [word for shape in ("24x64", "64x128", "128") for word in ("--input", f"{shape}xf32")]
    assert check_cli("memory", bundle, run, *same) == check_cli("memory", bundle, run)


COMPUTED = """
func.func @main(%x: tensor<8xi32>, %y: tensor<64xf32>) -> tensor<?x64xf32> {
  %c0 = arith.constant 0 : index
  %v = tensor.extract %x[%c0] : tensor<8xi32>
  %n = arith.index_cast %v : i32 to index
  %e = tensor.empty(%n) : tensor<?x64xf32>
  %b = linalg.broadcast ins(%y : tensor<64xf32>) outs(%e : tensor<?x64xf32>) dimensions = [0]
  return %b : tensor<?x64xf32>
}
"""


@pytest.mark.long
def test_sizes_that_the_program_computes_are_no_missing_option(tmp_path: Path) -> None:
    model, bundle = tmp_path / "computed.mlir", tmp_path / "computed.tracemap"
    model.write_text(COMPUTED, encoding="utf-8")
    check_cli("build", model, "-o", bundle)
    for words in ((), ("--dim", "4")):
        failed = run_cli("memory", bundle, *words)
        assert (failed.returncode, failed.stdout, failed.stderr.count("\n")) == (2, "", 1)
        assert "sizes depend on values that it computes" in failed.stderr


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("--without", "op9999"), "op9999"),
        (("--without", ""), "'': no op"),
        (("--function", "nothing"), "nothing"),
        (("--input", "1xf32"), "takes"),
        (("no.csv",), "no.csv"),
    ],
)
def test_what_does_not_fit_is_one_sentence(words: tuple[str, ...], part: str, built: Built) -> None:
    failed = run_cli("memory", built("hand_attention"), *words)
    assert (failed.returncode, failed.stdout) == (2, "")
    assert part in failed.stderr
    assert failed.stderr.count("\n") == 1


def test_a_bundle_without_its_memory_says_so(tmp_path: Path) -> None:
    copy = tmp_path / "copy.tracemap"
    check_cli("build", SAMPLES / "models" / "hand_mlp.mlir", "-o", copy)
    plan = copy / "memory.json"
    damaged = json.loads(plan.read_text(encoding="utf-8"))
    damaged["functions"][0]["allocations"][0]["values"][0]["written_by"] = ["site99"]
    plan.write_text(json.dumps(damaged), encoding="utf-8")
    failed = run_cli("memory", copy)
    assert (failed.returncode, failed.stderr.count("\n")) == (2, 1)
    assert "site99" in failed.stderr
    plan.write_text(json.dumps({"schema_version": 1, "kind": "memory-plan"}), encoding="utf-8")
    failed = run_cli("memory", copy)
    assert (failed.returncode, failed.stderr.count("\n")) == (2, 1)
    assert "version 1, expected 3; build the bundle again" in failed.stderr
    plan.unlink()
    failed = run_cli("memory", copy)
    assert (failed.returncode, failed.stderr.count("\n")) == (2, 1)
    assert "does not have the memory" in failed.stderr
