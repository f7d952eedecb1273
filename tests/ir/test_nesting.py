"""Nesting deeper than any compiler makes is refused quickly."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commands.test_errors import refused
from tests.conftest import Built
from tests.support import SAMPLES
from tracemap.core.errors import ModelInvalid
from tracemap.ir.model_reader import create_records, parse_model
from tracemap.ir.parsing import MlirParser
from tracemap.ir.text_checks import MAX_BRACES, MAX_BRACKETS, nesting_fault, printed_fault
from tracemap.map.bundle import CONFIGURED_NAME, KERNELS_FOLDER


def modules(count: int) -> str:
    """Modules within one another."""
    return "module {" * count + "}" * count


NESTS: dict[str, Callable[[int], str]] = {
    "modules": modules,
    "open": lambda count: "module {" * count,
    "generic": lambda count: '"a.b"() ({' * count + "}) : () -> ()" * count,
    "dictionaries": lambda count: "module attributes {a.a = " + "{a = " * count + "1" + "}" * count + "} {}",
    "arrays": lambda count: "module attributes {a.a = " + "[" * count + "]" * count + "} {}",
    "tuples": lambda count: "func.func private @f(" + "tuple<" * count + "i32" + ">" * count + ")",
    "functions": lambda count: "func.func private @f(" + "() -> (" * count + "i32" + ")" * count + ")",
    "locations": lambda count: "module {} loc(" + "fused[" * count + "unknown" + "]" * count + ")",
    "maps": lambda count: f"module attributes {{a.a = affine_map<(d0) -> ({'(' * count}d0{')' * count})>}} {{}}",
    "terms": lambda count: f"module attributes {{a.a = affine_map<(d0) -> ({'d0+' * count}d0)>}} {{}}",
    "between comments": lambda count: '// "\r' + "module { // }}} \n" * count + "}" * count,
    "between strings": lambda count: "module attributes {a.a = " + '["]\\"]", ' * count + "1" + "]" * count + "} {}",
    "between arrows": lambda count: "func.func private @f(" + "tuple<() -> i32, " * count + "i32" + ">" * count + ")",
    "aliases": lambda count: (
        "#a0 = [1]\n"
        + "".join(f"#a{at} = [#a{at - 1}]\n" for at in range(1, count))
        + f"module attributes {{a.a = #a{count - 1}}} {{}}"
    ),
    "aliases of functions": lambda count: (
        "!a0 = i32\n" + "".join(f"!a{at} = () ->\n // more\n tuple<!a{at - 1}>\n" for at in range(1, count))
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("kind", NESTS)
def test_what_would_end_the_parser_is_refused(kind: str) -> None:
    with pytest.raises(ModelInvalid, match="nested too deep"):
        MlirParser().parse(NESTS[kind](100_000))


@pytest.mark.parametrize("kind", [kind for kind in NESTS if kind not in {"open", "between arrows"}])
def test_what_compilers_make_is_read(kind: str) -> None:
    assert MlirParser().parse(NESTS[kind](180)) is not None


def test_limits_are_met_by_one() -> None:
    for count, begin, end in ((MAX_BRACES, "{", "}"), (MAX_BRACKETS, "[", "]"), (MAX_BRACKETS, "<", ">")):
        assert nesting_fault((begin * count + end * count).encode()) == ""
        assert nesting_fault((begin * count + "\n" + begin).encode()).startswith("line 2: nested too deep")
    assert nesting_fault(b"(<" * MAX_BRACKETS + b")" * MAX_BRACKETS)  # a comparison ends nothing and hides nothing
    assert nesting_fault(b"(<)" * MAX_BRACKETS + b"(>)" * MAX_BRACKETS) == ""


def test_texts_of_many_megabytes_are_looked_at_in_parts() -> None:
    """Brackets count over all parts, and a string at the end of one is none."""
    line = b'%0 = "a.b((("() : () -> i32 loc("((") // (((\n'
    for fault in (nesting_fault, printed_fault):
        assert fault(line * 100_000) == ""
        assert fault(b"[" + line * 10_000 + b"[" * MAX_BRACKETS).startswith("line 10001: nested too deep")


def test_an_alias_that_doubles_with_each_line_is_refused() -> None:
    lines = [
        "!a0 = i32",
        *(f"!a{at} = tuple<!a{at - 1}, !a{at - 1}>" for at in range(1, 60)),
        "func.func private @f(!a59)",
    ]
    with pytest.raises(ModelInvalid, match="too long when expanded"):
        MlirParser().parse("\n".join(lines))


@pytest.mark.parametrize("generic", [False, True])
def test_all_locations_of_a_model_behind_an_alias_are_not_taken_for_its_own(generic: bool) -> None:
    """The last alias before an operation ends where this begins, as the compiler prints it in both of its forms."""
    parser = MlirParser()
    module = parser.parse((SAMPLES / "models" / "jax_gpt2_4l.mlir").read_text(encoding="utf-8"))
    text = module.operation.get_asm(enable_debug_info=True, print_generic_op_form=generic)
    many = "\n".join(f'#b{at} = loc(callsite("m.py":{at}:1 at #loc))' for at in range(30_000))
    assert nesting_fault(f"{text}\n{many}\n".encode()) == ""


def test_a_chain_of_numbers_may_be_long() -> None:
    lines = [f"%v{at + 1} = arith.addi %v{at}, %v{at} : index" for at in range(5000)]
    body = "\n".join([*lines, "scf.for %i = %v0 to %v5000 step %v0 { }"])
    parser = MlirParser()
    model = create_records(parser, parse_model(parser, f"func.func @f(%v0: index) {{\n{body}\nreturn\n}}".encode()))
    assert [argument.loop_bound for argument in model.arguments["f"]] == [True]


@pytest.mark.parametrize("command", [("build",), ("lower", "--pipeline", "builtin.module(cse)")])
def test_a_model_that_is_nested_too_deep_is_refused_in_one_sentence(command: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "deep.mlir").write_text(modules(100_000), encoding="utf-8")
    said = refused("model-invalid", *command[:1], "deep.mlir", *command[1:], cwd=tmp_path)
    assert said.startswith("deep.mlir: cannot be ")
    assert "line 1: nested too deep: more than" in said


_WRITES_BYTECODE = """
import os, sys, threading
from iree.compiler import ir

def write():
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.create()
        block = module.body
        for _ in range(20_000):
            inner = ir.Operation.create("builtin.module", regions=1, ip=ir.InsertionPoint(block))
            block = inner.regions[0].blocks.append()
        with open(sys.argv[1], "wb") as file:
            module.operation.write_bytecode(file)
        os._exit(0)  # to take the module apart takes the square of its levels

threading.stack_size(1 << 30)
writer = threading.Thread(target=write)
writer.start()
writer.join()
"""


@pytest.mark.long
def test_bytecode_that_is_nested_too_deep_is_refused_in_one_sentence(tmp_path: Path) -> None:
    """Nothing in its bytes tells how deep it is: it is parsed, and taken apart, where there is room for that."""
    subprocess.run([sys.executable, "-c", _WRITES_BYTECODE, str(tmp_path / "deep.mlirbc")], check=True)
    for command in (("build", "deep.mlirbc"), ("lower", "deep.mlirbc", "--pipeline", "builtin.module(cse)")):
        said = refused("model-invalid", *command, cwd=tmp_path)
        assert said.endswith(f"nested too deep: more than {MAX_BRACES} nested regions")


@pytest.mark.long
@pytest.mark.parametrize("command", ["bench", "tune", "benchmark", "swap"])
def test_kernels_of_a_bundle_that_are_nested_too_deep_are_damage(command: str, built: Built, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(built("hand_mlp"), tmp_path / "m.tracemap"))
    (bundle / KERNELS_FOLDER / CONFIGURED_NAME).write_text(modules(100_000), encoding="utf-8")
    more = {"tune": ("--top", "1"), "benchmark": ("--dispatch-repeat", "4"), "swap": ("x=y.mlir", "-o", "n.tracemap")}
    flags = SAMPLES / "flags" / "hand_mlp.flags"
    said = refused("bundle-invalid", command, "m.tracemap", "--flagfile", flags, *more.get(command, ()), cwd=tmp_path)
    assert "nested too deep" in said
