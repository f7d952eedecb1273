"""Remarks of the compiler, each at its kernel line and ops; none dropped.

What LLVM prints for the same kernels, counted here without tracemap, is the other side; which pass a remark is of is
told by LLVM's own filter. `pytest tests/map/test_remarks.py --update-gold` writes the counts anew.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import tracemap
from tests.conftest import FIXED, Built
from tests.schemas import validator
from tests.support import ROOT, SAMPLES, Corpus, check_cli, json_cli, made_once, run_cli
from tracemap.core.codec import encode
from tracemap.core.errors import BundleInvalid, BundleVersion, UsageInvalid
from tracemap.core.toolchain import find_tool, run_tool
from tracemap.core.units import UNKNOWN
from tracemap.map.build.compiler.remarks import PrintedRemark, read_mlir_remarks, read_remarks
from tracemap.map.bundle import REMARKS_NAME, load
from tracemap.map.bundle_documents import STATISTICS_PASSES, Remark
from tracemap.reports.cost_lookup import MapCosts
from tracemap.reports.page.source_tabs import kernel_pages, kernels_of

GOLD = Path(__file__).parent.parent / "gold" / "remarks"
SPILLING = ROOT / "tests" / "programs" / "spilling.mlir"
MODELS = ("hand_attention", "jax_gpt2_4l")
PRODUCT = """func.func @main(%a: tensor<256x512xf16>, %b: tensor<512x256xf16>) -> tensor<256x256xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<256x256xf32>
  %out = linalg.fill ins(%zero : f32) outs(%empty : tensor<256x256xf32>) -> tensor<256x256xf32>
  %product = linalg.matmul
    ins(%a, %b : tensor<256x512xf16>, tensor<512x256xf16>) outs(%out : tensor<256x256xf32>) -> tensor<256x256xf32>
  %exp = math.exp %product : tensor<256x256xf32>
  return %exp : tensor<256x256xf32>
}
"""
ALL = ("--pass-remarks=.", "--pass-remarks-missed=.", "--pass-remarks-analysis=.")


@pytest.fixture
def copied(remarked: Built, tmp_path: Path) -> Path:
    """A bundle with remarks that may be changed."""
    shutil.copytree(remarked("hand_attention"), tmp_path / "m.tracemap")
    return tmp_path / "m.tracemap"


def printed(bundle: Path, folder: Path, *flags: str) -> str:
    """What LLVM prints when it makes code of a bundle's kernels."""
    source = folder / "configured.mlir"
    source.write_bytes(load(bundle).configured())
    device = ("--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu", *FIXED)
    begin = ("--compile-from=executable-configurations", "--mlir-disable-threading")
    done = run_tool([find_tool("iree-compile"), source, *device, *begin, *flags, "-o", folder / "unused.vmfb"])
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.long
@pytest.mark.parametrize("model", MODELS)
def test_every_remark_of_a_kernels_line_stands_at_its_op(
    model: str, remarked: Built, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """As many as LLVM prints, line by line, each with the ops of the step on its line; the others are counted."""
    bundle = load(remarked(model))
    found, graph = bundle.remarks(), bundle.graph
    heads = re.findall(r"^remark: (\S+):(\d+):\d+: ", printed(bundle.path, tmp_path, *ALL), re.MULTILINE)
    kernels = {f"{kernel.name}.mlir": kernel.name for kernel in graph.kernels}
    expected = Counter((kernels[file], int(line)) for file, line in heads if file in kernels)
    counted: Counter[tuple[object, object]] = Counter()
    for remark in found.remarks:
        counted[remark.kernel, remark.line] += remark.count
    assert counted == expected
    assert found.elsewhere == len(heads) - sum(expected.values()) > 0
    ops_of = {(kernel.name, step.line): step.ops for kernel in graph.kernels for step in kernel.steps if step.ops}
    for remark in found.remarks:
        assert isinstance(remark.kernel, str)
        assert isinstance(remark.line, int)
        sites = (graph.site_by_id[site] for site in graph.kernel_by_name[remark.kernel].sites)
        members = tuple(sorted({member.op for site in sites for member in site.members}, key=lambda op: op.number))
        assert remark.ops
        assert remark.ops == ops_of.get((remark.kernel, remark.line), members)
    counts = Counter(_row(remark) for remark in found.remarks for _ in range(remark.count))
    text = "".join(f"{count:4} {row}\n" for row, count in sorted(counts.items())) + f"{found.elsewhere:4} elsewhere\n"
    gold = GOLD / f"{model}.txt"
    if request.config.getoption("--update-gold"):
        gold.parent.mkdir(parents=True, exist_ok=True)
        gold.write_text(text, encoding="utf-8")
    assert text == gold.read_text(encoding="utf-8")


def _row(remark: Remark) -> str:
    name = "-" if remark.name is UNKNOWN else remark.name
    return f"{remark.kernel}:{remark.line} {remark.pass_name} {remark.kind} {name} {remark.ops[0]}"


@pytest.mark.long
def test_wordings_are_those_of_llvms_passes(remarked: Built, tmp_path: Path) -> None:
    """LLVM prints only what its filter lets through: a pass and a kind of remark each."""
    bundle = remarked("hand_attention")
    found = load(bundle).remarks()
    choices = (
        {"passed": "licm", "missed": "regalloc|loop-interchange", "analysis": "size-info|loop-interchange"},
        {"passed": "inline", "missed": "gvn|inline", "analysis": "asm-printer|target-features"},
        {"passed": "tailcallelim", "missed": "loop-vectorize", "analysis": "stack-frame-layout|prolog-epilog"},
    )
    for chosen in choices:
        flags = [
            f"--pass-remarks{'' if kind == 'passed' else '-' + kind}=^({names})$" for kind, names in chosen.items()
        ]
        heads = re.findall(r"^remark: (\S+\.mlir):(\d+):", printed(bundle, tmp_path, *flags), re.MULTILINE)
        expected = Counter((file.removesuffix(".mlir"), int(line)) for file, line in heads)
        ours: Counter[tuple[object, object]] = Counter()
        for remark in found.remarks:
            if isinstance(remark.kind, str) and re.fullmatch(chosen[remark.kind], str(remark.pass_name)):
                ours[remark.kernel, remark.line] += remark.count
        assert ours == expected, chosen
    assert all(isinstance(remark.pass_name, str) for remark in found.remarks)


@pytest.mark.long
def test_module_and_map_are_those_without_remarks(remarked: Built, fixed: Built) -> None:
    for name in ("module.vmfb", "map.json", "kernels/configured.mlir"):
        assert (remarked("hand_attention") / name).read_bytes() == (fixed("hand_attention") / name).read_bytes()
    assert not (fixed("hand_attention") / REMARKS_NAME).exists()


@pytest.fixture(scope="session")
def spilling(made: Path) -> Path:
    """The bundle of two matrix products, of which one has sums in more registers than there are."""
    bundle = made / "spilling.tracemap"
    with made_once(bundle) as missing:
        if missing:
            check_cli("build", SPILLING, "--remarks", "-o", bundle, "--", *FIXED)
    return bundle


def test_a_spill_stands_at_the_op_whose_tile_is_too_large(spilling: Path) -> None:
    bundle = spilling
    graph = load(bundle).graph
    products = [op.id for op in graph.ops if op.name == "linalg.matmul"]
    shown = json_cli("remarks", bundle)
    validator("remarks").validate(shown)
    spills: dict[str, list[int]] = {}
    for remark in shown["remarks"]:
        number = re.match(r"(\d+) spills .*in loop", remark["text"])
        if number:
            assert remark["pass"] == "regalloc"
            (op,) = remark["ops"]
            spills.setdefault(op, []).append(int(number[1]))
    assert list(spills) == products[:1]
    # 64 registers of sums do not fit into 16: some 50 and more are on the stack in the innermost loop.
    assert min(spills[products[0]]) >= 48


def test_remarks_are_ranked_by_the_cost_of_their_ops(copied: Path, samples: Corpus) -> None:
    run = copied / "runs" / "run-001.parquet"
    samples.record("hand_attention", copied, run)
    shown = json_cli("remarks", copied)
    validator("remarks").validate(shown)
    assert (shown["run"], shown["metric"]) == (run.name, "cpu_ns")
    shares = [remark["cost_share"] for remark in shown["remarks"]]
    assert shares == sorted(shares, reverse=True)
    assert 0 < shares[0] <= 1
    result = tracemap.attribute(run, copied)
    (total,) = (metric.work for metric in result.metrics if metric.name == "cpu_ns")
    kernel_of = {site.id: site.kernel for site in load(copied).graph.sites}
    for remark in shown["remarks"]:
        cost = sum(
            share.attributed["cpu_ns"]
            for site in result.sites
            for share in site.shares
            if kernel_of[site.site] == remark["kernel"] and share.op in remark["ops"]
        )
        assert remark["cost_share"] == pytest.approx(cost / total)
    by_wall = tracemap.remarks(copied, run, metric="duration_ns")
    assert by_wall.metric == "duration_ns"
    with pytest.raises(UsageInvalid, match=r"lacks this metric; its metrics are: .*duration_ns"):
        tracemap.remarks(copied, run, metric="cache-misses")


def test_the_table_leaves_out_figures_and_says_so(remarked: Built) -> None:
    bundle = remarked("hand_attention")
    text, everything = (
        check_cli("remarks", bundle, "--top", "3"),
        check_cli("remarks", bundle, "--top", "0", "--figures"),
    )
    assert "regalloc" in text
    assert "asm-printer" not in text
    hidden = r"^(?:… )?(\d+) (?:more rows; --top 0 shows all|rows with .* hidden; --figures shows them)$"
    left_out = [int(number) for number in re.findall(hidden, text, re.MULTILINE)]
    found = load(bundle).remarks()
    assert sum(left_out) + 3 == len(found.remarks)
    assert len(everything.splitlines()) == 4 + len(found.remarks)  # sentence, gap, title, headings
    assert "asm-printer" in everything


@pytest.mark.long
def test_show_tells_the_remarks_of_what_is_asked_for(remarked: Built) -> None:
    bundle = remarked("hand_attention")
    graph, found = load(bundle).graph, load(bundle).remarks()
    kernel = next(kernel for kernel in graph.kernels if "softmax" in kernel.name)
    (op,) = {op for remark in found.remarks if remark.kernel == kernel.name for op in remark.ops}
    of_kernel = [remark for remark in found.remarks if remark.kernel == kernel.name]
    for what in (op, kernel.name, kernel.sites[0]):
        shown = json_cli("show", bundle, what, "--remarks")
        validator("show").validate(shown)
        assert len(shown["remarks"]) == len(of_kernel)
    assert json_cli("show", bundle, op)["remarks"] is None
    text = check_cli("show", bundle, op, "--remarks")
    for remark in of_kernel:
        assert (remark.text in text) == (remark.pass_name not in STATISTICS_PASSES)
    assert "no compiler remarks" in check_cli("show", bundle, graph.ops[0].id, "--remarks")


def test_the_page_has_remarks_beside_their_lines(remarked: Built, fixed: Built) -> None:
    """All but those that only count, in the order of the terminal; none where none are kept."""
    bundle = load(remarked("hand_attention"))
    pages = kernel_pages(MapCosts(bundle.graph, None), kernels_of(bundle))
    expected = Counter(
        (remark.kernel, remark.line, remark.text, remark.count)
        for remark in bundle.remarks().remarks
        if remark.pass_name not in STATISTICS_PASSES
    )
    assert (
        Counter((page.name, line, text, count) for page in pages for line, _, count, text in page.remarks) == expected
    )
    without = load(fixed("hand_attention"))
    assert not any(page.remarks for page in kernel_pages(MapCosts(without.graph, None), kernels_of(without)))


@pytest.mark.long
def test_diff_tells_remarks_that_are_new_and_gone(spilling: Path, fixed: Built, tmp_path: Path) -> None:
    """With a tile that fits, all spills are gone; nothing else than the first product has other remarks."""
    model = tmp_path / "spilling.mlir"
    model.write_text(SPILLING.read_text().replace("compilation_info = #many", "compilation_info = #few"))
    check_cli("build", model, "--remarks", "-o", tmp_path / "m.tracemap", "--", *FIXED)
    made = json_cli("diff", spilling, tmp_path / "m.tracemap")
    validator("diff").validate(made)
    product = next(op for op in load(spilling).graph.ops if op.name == "linalg.matmul")
    spills = dict.fromkeys(("new", "gone"), 0)
    for each in made["remarks"]:
        assert each["ops"] == [product.id]
        spills[each["kind"]] += "spills" in each["text"]
    assert spills["gone"] >= 3
    assert not spills["new"]
    back = json_cli("diff", tmp_path / "m.tracemap", spilling)["remarks"]
    turned = {"new": "gone", "gone": "new"}
    assert sorted((turned[each["kind"]], each["text"], each["count"]) for each in back) == sorted(
        (each["kind"], each["text"], each["count"]) for each in made["remarks"]
    )
    text = check_cli("diff", spilling, tmp_path / "m.tracemap")
    assert "Compiler remarks that disappeared" in text
    assert json_cli("diff", spilling, spilling)["remarks"] == []
    assert json_cli("diff", fixed("hand_attention"), fixed("hand_attention"))["remarks"] is None


@pytest.mark.long
def test_mlirs_remarks_of_a_gpu_stand_at_their_op(tmp_path: Path) -> None:
    """They name lines of the model where it has plain ones: the op is the one there."""
    model, target = tmp_path / "product.mlir", ("--iree-hal-target-backends=rocm", "--iree-rocm-target=gfx942")
    model.write_text(PRODUCT)
    flags = ("--remarks-filter=.*", f"--remarks-output-file={tmp_path / 'r.yaml'}", "-o", tmp_path / "m.vmfb")
    assert run_tool([find_tool("iree-compile"), model, *target, *flags]).returncode == 0
    written = (tmp_path / "r.yaml").read_text()
    plain = re.findall(r"Pass: +(\S+)\nName: +(\S+)\n.*?Line: (\d+),", written, re.DOTALL)
    assert plain
    check_cli("build", model, "--remarks", "-o", tmp_path / "m.tracemap", "--", *target)
    bundle = load(tmp_path / "m.tracemap")
    found = bundle.remarks()
    line_of = {op.id: op.line for op in bundle.graph.ops}
    ours = [remark for remark in found.remarks if remark.line is UNKNOWN]
    assert not found.diagnostics
    assert [(remark.pass_name, remark.name, str(line_of[op])) for remark in ours for op in remark.ops] == plain
    assert {remark.kernel for remark in ours} == {kernel.name for kernel in bundle.graph.kernels}
    assert "linalg.matmul" in check_cli("remarks", bundle.path)


@pytest.mark.long
def test_a_compiler_that_fails_at_remarks_leaves_a_whole_bundle(tmp_path: Path) -> None:
    """As an older one may that does not know the flags."""
    compiler = tmp_path / "iree-compile"
    compiler.write_text(
        f'#!/bin/sh\ncase "$*" in *--pass-remarks=*) echo "Unknown argument" >&2; exit 1;; esac\n'
        f'exec {shlex.quote(str(find_tool("iree-compile")))} "$@"\n'
    )
    compiler.chmod(0o755)
    model = SAMPLES / "models" / "hand_mlp.mlir"
    flags = ("--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu", *FIXED)
    done = run_cli(
        "build", "--remarks", "-o", tmp_path / "m.tracemap", "--", compiler, model, "-o", tmp_path / "m.vmfb", *flags
    )
    assert done.returncode == 0
    assert "[remarks-missing]" in done.stderr
    bundle = load(tmp_path / "m.tracemap")
    assert all(kernel.steps for kernel in bundle.graph.kernels)
    assert not bundle.remarks().remarks
    assert "Unknown argument" in check_cli("remarks", bundle.path)


# ---- what cannot be read


def test_a_bundle_without_remarks_says_how_to_get_them(fixed: Built) -> None:
    done = run_cli("remarks", fixed("hand_attention"))
    assert done.returncode == 2
    assert "build it again with `tracemap build --remarks`" in done.stderr
    assert "[bundle-invalid]" in done.stderr


def test_remarks_need_a_compilation(tmp_path: Path) -> None:
    done = run_cli("build", "--from-dumps", tmp_path, "--module", SAMPLES / "README.md", "--remarks")
    assert done.returncode == 2
    assert "--remarks" in done.stderr


def test_damaged_remarks_are_refused(copied: Path) -> None:
    file = copied / REMARKS_NAME
    whole = json.loads(file.read_bytes())

    def refused(**changes: object) -> str:
        value = {**whole, "remarks": [{**whole["remarks"][0], **changes}]}
        file.write_text(json.dumps(value))
        with pytest.raises(BundleInvalid) as error:
            load(copied).remarks()
        return str(error.value)

    assert "no kernel 'other'" in refused(kernel="other")
    assert "no op 'op999999'" in refused(ops=["op999999"])
    assert "damaged" in refused(count=0)
    assert "damaged" in refused(cost_share=-1)
    file.write_bytes(b"{")
    with pytest.raises(BundleInvalid):
        load(copied).remarks()
    file.write_text(json.dumps({**whole, "schema_version": 9}))
    with pytest.raises(BundleVersion, match="version 9"):
        load(copied).remarks()


def test_hostile_words_are_inert(copied: Path) -> None:
    bundle = load(copied)
    first = bundle.remarks().remarks[0]
    hostile = "\x1b]0;title\x07<script>alert(1)</script>\nsecond"
    value = json.loads(encode(bundle.remarks()))
    value["remarks"] = [{**json.loads(encode(first)), "text": hostile, "pass": "\x1b[31mred"}]
    (copied / REMARKS_NAME).write_text(json.dumps(value))
    for form in ("text", "json"):
        assert "\x1b" not in check_cli("remarks", copied, "--format", form)


# ---- what LLVM prints


def said(*lines: str) -> Iterator[tuple[str, int, str]]:
    return ((remark.file, remark.line, remark.text) for remark in read_remarks(lines))


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], []),
        (["nothing of the kind"], []),
        (["remark: k.mlir:3:4: hoisting add"], [("k.mlir", 3, "hoisting add")]),
        # An instruction mix has a line for each instruction, and an empty one behind it.
        (["remark: k.mlir:3:0: BasicBlock: ", "ADD: 3", "", "remark: <unknown>:0:0: x"],
         [("k.mlir", 3, "BasicBlock:\nADD: 3"), ("<unknown>", 0, "x")]),
        # What begins with nothing has its words in the next line.
        (["remark: k.mlir:1:0: ", "Function: f"], [("k.mlir", 1, "Function: f")]),
        # A warning ends a remark, and is none.
        (["remark: k.mlir:1:0: a", "m.mlir:2:3: warning: b", "  %0 = c"], [("k.mlir", 1, "a")]),
        (["remark: k.mlir:1:0: a", "warning: b"], [("k.mlir", 1, "a")]),
        # A remark of MLIR has its place first; it is not LLVM's.
        (["m.mlir:2:3: remark: b", "c"], []),
        # A file's name may hold what stands between the parts.
        (["remark: a: b:1:2: c:3:4: d"], [("a: b", 1, "c:3:4: d")]),
        # A number too long for a line is none.
        (["remark: k.mlir:99999999999999999999:1: a"], []),
        (["remark: k.mlir:1:1: \ud800\x00"], [("k.mlir", 1, "\ud800\x00")]),
    ],
)  # fmt: skip
def test_remarks_are_found_among_other_words(lines: list[str], expected: list[tuple[str, int, str]]) -> None:
    assert list(said(*lines)) == expected


def test_unknown_wordings_are_of_no_pass() -> None:
    unknown = PrintedRemark("k.mlir", 1, "something that no pass of today says").origin
    assert (unknown.pass_name, unknown.name, unknown.kind) == (UNKNOWN, UNKNOWN, UNKNOWN)
    known = PrintedRemark("k.mlir", 1, "loop not vectorized: too many memory checks needed").origin
    assert (known.pass_name, known.name, known.kind) == ("loop-vectorize", UNKNOWN, "missed")


DOCUMENT = """--- !Missed
Pass: tile
Name: NoFit
DebugLoc: { File: op, Line: 7, Column: 1 }
Function: '<unknown function>'
Args:
  - RemarkId: '1'
  - Remark: '49152 bytes'
  - Reason: |
      too large
...
"""


def test_mlirs_remarks_are_read() -> None:
    (remark, other) = read_mlir_remarks(
        DOCUMENT + "--- !Else\nPass: 1\nName: x\nDebugLoc: nowhere\nArgs: [a, {b: c}]\n...\n"
    )
    assert (remark.file, remark.line, remark.text) == ("op", 7, "NoFit: 49152 bytes, Reason too large\n")
    assert (remark.origin.pass_name, remark.origin.name, remark.origin.kind) == ("tile", "NoFit", "missed")
    assert (other.file, other.line, other.text, other.origin.kind) == ("", 0, "x: b c", UNKNOWN)
    assert not list(read_mlir_remarks(""))


@pytest.mark.long
@pytest.mark.parametrize(
    "text",
    [
        "--- !Missed\nPass: a\n",
        "--- !Missed [1]\n",
        "--- !Missed x\n",
        "Pass: a\nName: b\n",
        "--- !!python/object/apply:os.system ['true']\n",
        "--- !Missed {Pass: !!python/name:os.system , Name: b}\n",
        "{" * 5000,
        "a: b: c",
        "\x00",
    ],
)
def test_what_is_no_remark_of_mlir_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="MLIR's remarks cannot be read"):
        list(read_mlir_remarks(text))
