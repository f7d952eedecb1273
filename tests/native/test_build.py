"""Bundles of native code: which op runs in which loop, and what is refused."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tests.native.support import LLVM, NAMES, PROGRAMS, flags, needs_tools, pipeline, program, run_all
from tests.oracle.native import generate, memberships, numbers_in
from tests.support import check_cli, json_cli, made_once, run_cli
from tracemap.machine.native_lines import files_with_lines
from tracemap.map.build.native.tools import MlirTools
from tracemap.map.bundle import load

Native = Callable[[str, str], Path]

# The lines of the ops in each outermost loop, read off mlir-opt's text by a person.
LOOPS = {
    ("layer", "vector"): [{6}, {7}, {8}, {17}, {18}],
    ("layer", "affine"): [{6, 7, 8, 18}],
    ("convolution", "vector"): [{7}, {8}, {10}, {18}, {20}, {24}, {25}],
    ("softmax", "vector"): [{7}, {8}, {14}, {21}, {22}, {28}],
    ("stencil", "vector"): [{4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14}, {24, 25, 26, 27, 28}],
    ("sparse", "plain"): [{*range(10, 19), 21}, set(range(23, 29)), set(range(30, 35))],
}


def loops_of(bundle: Path) -> list[set[int]]:
    """The lines of the ops in each outermost loop."""
    shown = json_cli("show", bundle)
    line_of = {op["id"]: op["line"] for op in shown["ops"]}
    found: dict[int, set[int]] = {}
    for site in shown["sites"]:
        if match := re.search(r"/loop(\d+)$", site["kernel"]):
            found.setdefault(int(match[1]), set()).update(line_of[member["op"]] for member in site["members"])
    return [found[number] for number in sorted(found)]


def test_ops_of_generated_programs_are_in_their_loops(tmp_path: Path) -> None:
    needs_tools()
    right, pairs, loops = memberships(2, tmp_path)
    assert right == pairs > 20
    assert loops > 10


def test_the_truth_sees_a_number_only_where_it_is_used() -> None:
    made = generate(3)
    assert len(set(made.line_of)) == len(made.line_of) >= 4
    text = (
        "module {\n  func.func @f() {\n    %cst = arith.constant 0.500976563 : f32\n    scf.for %i = %a to %b {\n"
        "      use %cst\n    }\n    scf.for %i = %a to %b {\n      use %cst_0\n    }\n  }\n}\n"
    )
    assert numbers_in(text) == [{0.5009765625}, set()]


@pytest.mark.parametrize(("name", "lowering"), list(LOOPS), ids=lambda value: value)
def test_ops_of_the_programs_are_in_their_loops(native: Native, name: str, lowering: str) -> None:
    found = loops_of(native(name, lowering))
    assert [own & expected for own, expected in zip(found, LOOPS[name, lowering], strict=True)] == LOOPS[name, lowering]
    if name != "stencil" and lowering != "affine":
        assert found == LOOPS[name, lowering]


def test_called_functions_have_a_site_for_each_call(native: Native) -> None:
    shown = json_cli("show", native("stencil", "affine"))
    calls = {op["id"]: op["line"] for op in shown["ops"] if op["name"] == "func.call"}
    paths = [site["path"] for site in shown["sites"] if site["kernel"] == "sweep/loop0"]
    assert [[calls[op] for op in path] for path in paths] == [[21], [22]]


@pytest.mark.parametrize("name", NAMES)
def test_every_op_has_an_outcome(native: Native, name: str) -> None:
    graph = load(native(name, "affine")).graph
    assert not [op.id for op in graph.ops if op.outcome == "unknown"]
    assert graph.module.is_native
    assert graph.module.iree_compiler.startswith("MLIR ")


def test_debug_lines_are_lines_of_the_kept_text(native: Native) -> None:
    bundle = native("layer", "vector")
    tools = MlirTools.installed()
    text = (bundle / "kernels" / "layer.loops.mlir").read_text()
    dump = subprocess.run(
        [tools.opt.resolve().with_name("llvm-dwarfdump"), "--debug-line", bundle / "module.so"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "layer.loops.mlir" in dump
    lines = {int(line) for line in re.findall(r"^0x[0-9a-f]+ +(\d+) ", dump, re.MULTILINE)} - {0}
    operations = text.splitlines()
    assert any("vector.fma" in operations[line - 1] or "arith.mulf" in operations[line - 1] for line in lines)


def test_machine_code_of_loops_is_shown(native: Native) -> None:
    """The vector multiplication of the second product is in that loop's code, and in no other loop's."""
    shown = {
        loop: check_cli("show", native("layer", "vector"), f"kernel/loop{loop}", "--assembly") for loop in range(5)
    }
    assert "mulps" in shown[1]
    assert "mulps" in shown[4]
    assert "mulps" not in shown[0]
    assert "maxps" in shown[2]
    assert "maxps" not in shown[1] + shown[4]
    images = load(native("layer", "vector")).images()
    ends = [(part.low, part.high) for part in images[0].functions]
    assert all(high <= low for (_, high), (low, _) in pairwise(ends))


def test_the_same_input_gives_the_same_bytes(native: Native, tmp_path: Path) -> None:
    again = tmp_path / "again.tracemap"
    check_cli("build", program("layer"), *flags("vector"), "-o", again)
    for file in ("map.json", "module.so", "kernels/layer.loops.mlir"):
        assert (again / file).read_bytes() == (native("layer", "vector") / file).read_bytes()


def test_text_is_the_machine_code_of_the_plain_tools(native: Native, tmp_path: Path) -> None:
    """What tracemap adds changes no instruction."""
    tools = MlirTools.installed()
    lowered, ir, library = tmp_path / "lowered.mlir", tmp_path / "lowered.ll", tmp_path / "plain.so"
    interface = "func.func(llvm-request-c-wrappers)"
    passes = pipeline("vector").replace(LLVM, f"{interface},{LLVM}")
    run_all(
        [tools.opt, program("layer"), f"--pass-pipeline={passes}", "-o", lowered],
        [tools.translate, "--mlir-to-llvmir", lowered, "-o", ir],
        [tools.clang, "-O3", "-fPIC", "-shared", "-Wno-override-module", "-x", "ir", ir, "-o", library],
    )
    assert instructions(tools, library) == instructions(tools, native("layer", "vector") / "module.so")


def instructions(tools: MlirTools, library: Path) -> list[str]:
    """The instructions of a library's functions that MLIR made, without addresses."""
    dumper = tools.opt.resolve().with_name("llvm-objdump")
    command: list[str | Path] = [
        dumper,
        "-d",
        "--no-show-raw-insn",
        "--no-leading-addr",
        "--disassemble-symbols=kernel",
        library,
    ]
    return re.sub(r"0x[0-9a-f]+|<[^>]*>", "", subprocess.check_output(command, text=True)).splitlines()[3:]


WITHOUT_IREE = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "iree":
            raise ModuleNotFoundError(f"{name} is not installed here")
sys.meta_path.insert(0, Refuse())
sys.argv = ["tracemap", *sys.argv[1:]]
from tracemap.commands.main import main
main()
"""


def test_nothing_of_iree_is_imported(tmp_path: Path) -> None:
    needs_tools()
    bundle, run, page = (str(tmp_path / name) for name in ("b.tracemap", "run.parquet", "page.html"))
    for words in (
        ["build", str(program("sparse")), *flags("plain"), "-o", bundle],
        ["record", bundle, "--seconds", "0.3", "-o", run],
        ["attribute", run, "--map", bundle],
        ["report", bundle, run, "-o", page],
        ["show", bundle, "op5"],
        ["export", run, "--map", bundle, "--to", "callgrind", "-o", str(tmp_path / "callgrind.out")],
    ):
        done = subprocess.run([sys.executable, "-c", WITHOUT_IREE, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


# ---- code that was compiled elsewhere


@pytest.fixture(scope="session")
def libraries(made: Path) -> Path:
    """A folder with `lines.so`, whose debug lines are the model's, and `snapshot.so` with those of `loops.mlir`."""
    needs_tools()
    folder = made / "native-libraries"
    with made_once(folder) as missing:
        if missing:
            make_libraries(folder)
    return folder


def make_libraries(folder: Path) -> None:
    """Compile the libraries without tracemap."""
    folder.mkdir()
    tools = MlirTools.installed()
    end = f"{LLVM},ensure-debug-info-scope-on-llvm-func"
    loops = "func.func(llvm-request-c-wrappers,convert-linalg-to-affine-loops,affine-loop-fusion),lower-affine"
    for name, model, passes in (
        ("lines", "sparse", f"func.func(llvm-request-c-wrappers),{end}"),
        ("snapshot", "layer", f"{loops},snapshot-op-locations{{filename={folder / 'loops.mlir'}}},{end}"),
    ):
        lowered, ir = folder / f"{name}.mlir", folder / f"{name}.ll"
        run_all(
            [
                tools.opt,
                program(model),
                "--mlir-print-debuginfo",
                f"--pass-pipeline=builtin.module({passes})",
                "-o",
                lowered,
            ],
            [tools.translate, "--mlir-to-llvmir", lowered, "-o", ir],
            [
                tools.clang,
                "-O2",
                "-fPIC",
                "-shared",
                "-Wno-override-module",
                "-x",
                "ir",
                ir,
                "-o",
                folder / f"{name}.so",
                "-lm",
            ],
        )


def test_a_library_with_the_lines_of_the_model(libraries: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "b.tracemap"
    check_cli("build", program("sparse"), "--from-native", libraries / "lines.so", "-o", bundle)
    assert loops_of(bundle) == LOOPS["sparse", "plain"]
    assert (bundle / "module.so").read_bytes() == (libraries / "lines.so").read_bytes()


def test_a_library_with_the_lines_of_a_later_stage(libraries: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "b.tracemap"
    given = ("--from-native", libraries / "snapshot.so", "--ir", libraries / "loops.mlir")
    check_cli("build", *given, "--model", program("layer"), "-o", bundle)
    assert loops_of(bundle) == [{6, 7, 8, 17, 18}]


def refused(slug: str, *arguments: str | Path, cwd: Path, status: int = 2) -> str:
    """Run a command that must fail with one sentence and leave nothing."""
    before = sorted(cwd.iterdir())
    done = run_cli(*arguments, cwd=cwd)
    assert done.returncode == status, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.endswith(f" [{slug}]\n"), done.stderr
    assert sorted(cwd.iterdir()) == before
    return done.stderr


def test_libraries_without_such_lines_are_refused(libraries: Path, tmp_path: Path) -> None:
    stripped, cut = tmp_path / "stripped.so", tmp_path / "cut.so"
    tools = MlirTools.installed()
    strip = tools.opt.resolve().with_name("llvm-objcopy")
    subprocess.run([strip, "--strip-debug", libraries / "lines.so", stripped], check=True)
    cut.write_bytes((libraries / "lines.so").read_bytes()[:6000])
    sparse = program("sparse")
    build = ("build", sparse, "-o", "b.tracemap", "--from-native")
    said = refused("dumps-invalid", *build, stripped, cwd=tmp_path)
    assert "has no debug lines" in said
    assert "is not an ELF file" in refused("module-invalid", *build, cut, cwd=tmp_path)
    assert "is not an ELF file" in refused("module-invalid", *build, sparse, cwd=tmp_path)
    said = refused("dumps-invalid", *build, libraries / "snapshot.so", cwd=tmp_path)
    assert "its debug lines are of loops.mlir" in said
    assert "--ir" in said


def test_the_model_is_named_once(libraries: Path, tmp_path: Path) -> None:
    native = ("build", "--from-native", libraries / "lines.so", "-o", "b.tracemap")
    assert "needs the model" in refused("usage-invalid", *native, cwd=tmp_path)
    twice = (*native, program("sparse"), "--model", program("sparse"))
    assert "pass the model once" in refused("usage-invalid", *twice, cwd=tmp_path)


def test_texts_that_do_not_belong_are_refused(libraries: Path, tmp_path: Path) -> None:
    """Debug lines have only a file's name, and another text may have it."""
    short = tmp_path / "sparse.mlir"
    short.write_text("func.func @kernel() {\n  return\n}\n")
    build = ("build", "-o", "b.tracemap", "--from-native")
    said = refused("dumps-invalid", *build, libraries / "lines.so", short, cwd=tmp_path)
    assert re.search(r"its code has a line \d+ of sparse.mlir, which has 4 lines", said)
    (tmp_path / "other").mkdir()
    shutil.copy(short, tmp_path / "other" / "loops.mlir")
    stages = ("--ir", libraries / "loops.mlir", "--ir", tmp_path / "other" / "loops.mlir")
    said = refused("dumps-invalid", *build, libraries / "snapshot.so", program("layer"), *stages, cwd=tmp_path)
    assert "another file is named loops.mlir, too" in said


def test_functions_may_have_any_name(tmp_path: Path) -> None:
    """Further pieces of a loop's code have numbers in brackets, and so may functions."""
    needs_tools()
    names = ["g (2)", "../../g", "g/loop0", "<g>", "é", "a\\22b", "g" * 3000]
    long_enough = STORES.replace("4xf32", "65536xf32").replace("0 to 4", "0 to 65536")  # to be sampled
    assert long_enough != STORES
    (tmp_path / "x.mlir").write_text("".join(long_enough.replace("@f", f'@"{name}"') for name in names))
    check_cli("build", "x.mlir", *flags("plain"), "-o", "b.tracemap", cwd=tmp_path)
    bundle = load(tmp_path / "b.tracemap")
    assert [function.name for function in bundle.graph.functions] == [name.replace("\\22", '"') for name in names]
    parts = bundle.native_code()
    found, _ = parts.at(np.array([piece.low for piece in parts.image.functions]))
    assert {parts.names[part].rpartition("/loop")[0] for part in found} >= {
        function.name for function in bundle.graph.functions
    }
    check_cli("record", "b.tracemap", "--function", "g (2)", "--seconds", "1", "-o", "r.parquet", cwd=tmp_path)


@pytest.mark.parametrize("kind", ["-pie", "-no-pie"])
def test_functions_of_a_program_cannot_be_called(libraries: Path, tmp_path: Path, kind: str) -> None:
    tools = MlirTools.installed()
    (tmp_path / "main.c").write_text("int main(void) { return 0; }\n")
    words = ("-g", "-O1", "-Wno-override-module", *(["-fPIE", "-pie"] if kind == "-pie" else [kind]))
    inputs = ("-x", "ir", libraries / "lines.ll", "-x", "c", tmp_path / "main.c")
    run_all([tools.clang, *words, *inputs, "-o", tmp_path / "program", "-lm"])
    check_cli("build", program("sparse"), "--from-native", "program", "-o", "b.tracemap", cwd=tmp_path)
    said = refused("usage-invalid", "record", "b.tracemap", cwd=tmp_path)
    assert "its code is part of a program" in said
    assert "tracemap record BUNDLE -- PROGRAM" in said


def test_other_units_of_a_program_are_not_read(libraries: Path, tmp_path: Path) -> None:
    """Most of a large program is not of the model; its lines are other parts' business."""
    tools = MlirTools.installed()
    (tmp_path / "a.c").write_text("#include <stdlib.h>\nint f(int x) {\n  return abs(x) + 1;\n}\n")
    mixed = tmp_path / "mixed.so"
    flags = ("-g", "-O1", "-shared", "-fPIC", "-Wno-override-module")
    run_all([tools.clang, *flags, "-x", "ir", libraries / "lines.ll", "-x", "c", tmp_path / "a.c", "-o", mixed])
    known, others = files_with_lines(mixed, {"sparse.mlir"})
    assert set(known) == {"sparse.mlir"}
    assert "a.c" in others
    check_cli("build", program("sparse"), "--from-native", mixed, "-o", tmp_path / "b.tracemap")
    assert loops_of(tmp_path / "b.tracemap") == LOOPS["sparse", "plain"]
    image = load(tmp_path / "b.tracemap").native_code().image
    assert not [part for part in image.functions if part.name == "f"]


def test_damaged_debug_information_is_refused_or_read(libraries: Path, tmp_path: Path) -> None:
    data = (libraries / "lines.so").read_bytes()
    for step in range(24):
        place = len(data) * (step + 1) // 26
        damaged = tmp_path / f"damaged{step}.so"
        damaged.write_bytes(data[:place] + bytes([data[place] ^ 0xFF]) * 4 + data[place + 4 :])
        done = run_cli("build", program("sparse"), "--from-native", damaged, "-o", f"b{step}.tracemap", cwd=tmp_path)
        assert done.returncode in (0, 2), done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("slug", "words", "said"),
    [
        ("usage-invalid", ["--to", "native"], "--pipeline needs --to native"),
        ("usage-invalid", ["--pipeline", "builtin.module(cse)"], "--pipeline needs --to native"),
        ("usage-invalid", [*flags("plain"), "--ir", "x.mlir"], "pass it with --from-native"),
        ("usage-invalid", [*flags("plain"), "--timing"], "--timing belongs to a compilation by IREE"),
        ("pipeline-invalid", ["--to", "native", "--pipeline", "cse"], "is no pass pipeline"),
        (
            "pipeline-invalid",
            ["--to", "native", "--pipeline", "builtin.module(csx)"],
            "does not refer to a registered pass",
        ),
        (
            "pipeline-invalid",
            ["--to", "native", "--pipeline", "builtin.module(cse)"],
            "leave 34 operations of other dialects than llvm",
        ),
        ("usage-invalid", [*flags("plain"), "--", "--no-such-flag"], "clang: "),
        ("usage-invalid", [*flags("plain"), "--", "-c"], "makes no shared library with -c"),
        ("usage-invalid", [*flags("plain"), "--", "--help"], "makes no shared library with --help"),
        ("usage-invalid", [*flags("plain"), "--", "-Wl,-s"], "writes no debug lines with -Wl,-s"),
    ],
)
def test_other_requests_are_refused(tmp_path: Path, slug: str, words: list[str], said: str) -> None:
    needs_tools()
    shutil.copy(program("sparse"), tmp_path / "x.mlir")
    assert said in refused(slug, "build", "x.mlir", "-o", "b.tracemap", *words, cwd=tmp_path)


def test_a_model_of_another_dialect_is_refused(tmp_path: Path) -> None:
    needs_tools()
    (tmp_path / "x.mlir").write_text("func.func @f(%a: tensor<4xf32>) {\n  no.such %a\n  return\n}\n")
    said = refused("model-invalid", "build", "x.mlir", *flags("plain"), cwd=tmp_path)
    assert said.startswith("tracemap: error: x.mlir: cannot be parsed: mlir-opt rejects it: x.mlir:2:")


BODY = "affine.for %i = 0 to 4 {\n affine.store %v, %x[%i] : memref<4xf32>\n}\nreturn\n"
STORES = f"func.func @f(%x: memref<4xf32>, %v: f32) {{\n{BODY}}}\n"
NESTED = "".join(f"affine.for %i{depth} = 0 to 1 {{\n" for depth in range(500)) + "}\n" * 500
MATRIX = "tensor<4x4xf32>"
PRODUCT = f"  %0 = linalg.matmul ins(%x, %x : {MATRIX}, {MATRIX}) outs(%x : {MATRIX}) -> {MATRIX}\n"


@pytest.mark.parametrize(
    ("slug", "text", "said"),
    [
        ("pipeline-invalid", f"module {{\nmodule {{\n{STORES}}}\n{STORES}}}\n", "builtin.module"),
        (
            "usage-invalid",
            "func.func private @no_such()\nfunc.func @f() {\nfunc.call @no_such() : () -> ()\nreturn\n}\n",
            "undefined reference to `no_such'",
        ),
        ("model-invalid", f"func.func @f() {{\n{NESTED}return\n}}\n", "nested more than 400 deep"),
        (
            "pipeline-invalid",
            f"func.func @f(%x: {MATRIX}) -> {MATRIX} {{\n{PRODUCT}  return %0 : {MATRIX}\n}}\n",
            "x.mlir:2:8",
        ),
    ],
    ids=["nested-modules", "undefined", "deep", "place"],
)
def test_programs_that_cannot_be_compiled_are_refused(tmp_path: Path, slug: str, text: str, said: str) -> None:
    needs_tools()
    (tmp_path / "x.mlir").write_text(text)
    assert said in refused(slug, "build", "x.mlir", *flags("plain"), cwd=tmp_path)


@pytest.mark.long
def test_functions_that_are_called_in_many_ways_keep_their_loops(tmp_path: Path) -> None:
    """Calls of calls multiply; each function has a site nevertheless, and a note says what is left out."""
    needs_tools()
    signature, kind = "(%x: memref<4xf32>, %v: f32)", "(memref<4xf32>, f32) -> ()"
    functions = [STORES.replace("@f", "private @f0")]
    for depth in range(1, 20):
        call = f"func.call @f{depth - 1}(%x, %v) : {kind}\n"
        functions.append(f"func.func {'private ' * (depth < 19)}@f{depth}{signature} {{\n{call * 2}return\n}}\n")
    (tmp_path / "x.mlir").write_text("".join(functions) + STORES.replace("@f", "@last"))
    done = run_cli("build", "x.mlir", *flags("plain"), "-o", "b.tracemap", cwd=tmp_path)
    assert "[calls-left-out]" in done.stderr
    graph = load(tmp_path / "b.tracemap").graph
    assert len(graph.sites) > 100_000
    assert {"f0/loop0", "last/loop1", *(f"f{depth}" for depth in range(20))} <= {
        kernel.name for kernel in graph.kernels
    }


def test_the_programs_are_there() -> None:
    assert sorted(path.stem for path in PROGRAMS.glob("*.mlir")) == sorted(NAMES)
