"""Inputs as texts: what is refused for its argument's type, beside what the runtime's own tool says of it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support import check_cli, run_cli
from tracemap.capture.inputs import check_spec
from tracemap.errors import InputInvalid
from tracemap.graph.bundle import Bundle, load
from tracemap.toolchain import find_tool

_MODEL = """
func.func @main(%a: tensor<2x3xf32>, %b: tensor<4xi32>, %c: i32, %d: tensor<f16>, %e: tensor<?xi8>, %f: f32)
    -> (tensor<2x3xf32>, tensor<4xi32>, i32, tensor<f16>, tensor<?xi8>, f32) {
  %0 = arith.addf %a, %a : tensor<2x3xf32>
  %1 = arith.addi %b, %b : tensor<4xi32>
  %2 = arith.addf %d, %d : tensor<f16>
  %3 = arith.addi %e, %e : tensor<?xi8>
  return %0, %1, %c, %2, %3, %f : tensor<2x3xf32>, tensor<4xi32>, i32, tensor<f16>, tensor<?xi8>, f32
}
"""
_GOOD = ("2x3xf32=1", "4xi32=1", "7", "f16=1", "5xi8=1", "2.5")
_TAKEN = {
    0: (
        *("2x3xf32", "2x3xf32=", "2x3xf32=1 2 3 4 5 6", "2x3xf32=[1 2 3][4 5 6]", "2x3xf32=1,2,3,4,5,6", " 2x3xf32=1"),
        *("2x3xf32=nan", "2x3xf32=-inf", "2x3xf32=-1e3", "2x3xf32=0x1p3", "2x3xf32=1.", "2x3xf32=1e400", "2x3xf32= 1 "),
    ),
    1: ("4xsi32=1", "4xui32=1", "4xi32=0x10", "4xi32=-1", "4xi32=1.5"),
    2: ("-1", "0x10", " 1"),
    3: ("f16=1", "f16=1e9"),
    4: ("0xi8", "1xi8=1", "3xi8=1 2 3", "3xui8=1"),
    5: ("1", "1e5", "nan", "0x1p3"),
}
_REFUSED = {
    0: (
        *("2x3xf32=1 2", "2x3xf32=abc", "2x3xf64=1", "2x3xi32=1", "3x2xf32=1", "6xf32=1", "x", "", "2x3", "2X3xf32=1"),
        *("2x3xsi32=1", "-2x3xf32=1", "2x3xfoo=1", "tensor<2x3xf32>", "99999999999x3xf32=1", "2x3xf32=true"),
    ),
    1: ("4xi64=1", "4xf32=1", "5xi32=1"),
    2: ("abc", "i32=1", ""),
    3: ("1xf16=1", "f32=1"),
    4: ("xi8=1", "2x2xi8=1", "3xi16=1"),
    5: ("f32=1", "abc"),
}
# The tool takes these and calls the function with something else than what was written.
_REFUSED_BY_US = {0: ("2x3xf32=1_0",), 2: ("1xi32=1", "4xi32=1"), 5: ("1.5.5",)}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A function with arguments of all kinds."""
    folder = tmp_path_factory.mktemp("specs")
    (folder / "model.mlir").write_text(_MODEL, encoding="utf-8")
    check_cli("build", "model.mlir", cwd=folder)
    return load(folder / "model.tracemap")


def taken_by_us(bundle: Bundle, place: int, spec: str) -> bool:
    entry = bundle.graph.functions[0]
    try:
        check_spec(entry, entry.arguments[place], spec)
    except InputInvalid:
        return False
    return True


def taken_by_the_tool(bundle: Bundle, place: int, spec: str) -> bool:
    given = [*_GOOD[:place], spec, *_GOOD[place + 1 :]]
    words = ["--device=local-sync", f"--module={bundle.module_path}", "--function=main"]
    command = [str(find_tool("iree-run-module")), *words, *(f"--input={each}" for each in given)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def cases(specs: dict[int, tuple[str, ...]]) -> list[tuple[int, str]]:
    return [(place, spec) for place, found in specs.items() for spec in found]


@pytest.mark.parametrize(("place", "spec"), cases(_TAKEN))
def test_what_the_tool_takes_is_taken(place: int, spec: str, bundle: Bundle) -> None:
    assert taken_by_the_tool(bundle, place, spec)
    assert taken_by_us(bundle, place, spec)


@pytest.mark.parametrize(("place", "spec"), cases(_REFUSED))
def test_what_the_tool_refuses_is_refused_in_a_sentence(place: int, spec: str, bundle: Bundle) -> None:
    assert not taken_by_the_tool(bundle, place, spec)
    assert not taken_by_us(bundle, place, spec)


@pytest.mark.parametrize(("place", "spec"), cases(_REFUSED_BY_US))
def test_what_would_be_called_with_something_else_is_refused(place: int, spec: str, bundle: Bundle) -> None:
    assert not taken_by_us(bundle, place, spec)


def test_the_sentence_says_what_is_wrong_and_what_is_right(bundle: Bundle, tmp_path: Path) -> None:
    words = [word for spec in ("2x3xi32=1", *_GOOD[1:]) for word in ("--input", spec)]
    done = run_cli("record", bundle.path, *words, "-o", "run.csv", cwd=tmp_path)
    assert done.stderr == (
        "tracemap: error: main: argument input0 (tensor<2x3xf32>) cannot be '2x3xi32=1': its elements are i32, not "
        "f32; write it as --input=2x3xf32=0.5 [input-invalid]\n"
    )
    assert done.returncode == 2
    assert not list(tmp_path.iterdir())
