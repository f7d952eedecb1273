"""Inputs as texts: refusals, compared with those of the runtime's own tool."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import ml_dtypes
import pytest

import tracemap
from tests.support import check_cli, run_cli
from tracemap.capture.inputs import InputFiles, check_spec
from tracemap.core.errors import InputInvalid
from tracemap.core.functions import Argument, Function
from tracemap.core.toolchain import find_tool
from tracemap.map.bundle import Bundle, load

_MODEL = """
func.func @main(%a: tensor<2x3xf32>, %b: tensor<4xi32>, %c: i32, %d: tensor<f16>, %e: tensor<?xi8>, %f: f32,
                %g: tensor<5xi16>, %h: tensor<2xi64>, %i: tensor<4xi1>, %j: i8, %k: i1, %l: index, %m: tensor<f16>,
                %n: f16, %o: bf16)
    -> (tensor<2x3xf32>, tensor<4xi32>, i32, tensor<f16>, tensor<?xi8>, f32,
        tensor<5xi16>, tensor<2xi64>, tensor<4xi1>, i8, i1, index, tensor<f16>, tensor<f32>) {
  %0 = arith.addf %a, %a : tensor<2x3xf32>
  %1 = arith.addi %b, %b : tensor<4xi32>
  %2 = arith.addf %d, %d : tensor<f16>
  %3 = arith.addi %e, %e : tensor<?xi8>
  %4 = arith.extf %n : f16 to f32
  %5 = arith.extf %o : bf16 to f32
  %6 = arith.addf %4, %5 : f32
  %7 = tensor.from_elements %6 : tensor<f32>
  return %0, %1, %c, %2, %3, %f, %g, %h, %i, %j, %k, %l, %m, %7
      : tensor<2x3xf32>, tensor<4xi32>, i32, tensor<f16>, tensor<?xi8>, f32,
        tensor<5xi16>, tensor<2xi64>, tensor<4xi1>, i8, i1, index, tensor<f16>, tensor<f32>
}
"""
_GOOD = (
    *("2x3xf32=1", "4xi32=1", "7", "f16=1", "5xi8=1", "2.5", "5xi16=1", "2xi64=1", "4xi8=1", "1", "1", "1", "f16=1"),
    *("0x3e00", "16416"),
)
_TAKEN = {
    0: (
        *("2x3xf32", "2x3xf32=", "2x3xf32=1 2 3 4 5 6", "2x3xf32=[1 2 3][4 5 6]", "2x3xf32=1,2,3,4,5,6", " 2x3xf32=1"),
        *(
            "2x3xf32=nan",
            "2x3xf32=-inf",
            "2x3xf32=-1e3",
            "2x3xf32=0x1p3",
            "2x3xf32=1.",
            "2x3xf32=3.4028235e38",
            "2x3xf32= 1 ",
        ),
    ),
    1: ("4xsi32=1", "4xui32=1", "4xi32=0x10", "4xi32=-1", "4xi32=1.0"),
    2: ("-1", "0x10", " 1"),
    3: ("f16=1", "f16=65519", "f16=inf"),
    4: ("0xi8", "1xi8=1", "3xi8=1 2 3", "3xui8=1", "1xi8=-128", "1xi8=255", "1xsi8=-128", "1xui8=0xff"),
    5: ("1", "1e5", "nan", "0x1p3", "0x0p-9", "1e-45"),
    6: ("5xi16=-32768", "5xi16=65535", "5xui16=65535", "5xsi16=32767"),
    7: ("2xi64=9223372036854775807", "2xi64=-9223372036854775808", "2xui64=18446744073709551615"),
    8: ("4xi8=1", "4xi1=01", "4xi1=ff"),
    9: ("255", "-128"),
    10: ("2", "0"),
    11: ("9223372036854775807",),
    12: ("f16=1e-9", "f16=0e-99"),
    13: ("0", "65535", "0xffff"),
}
_REFUSED = {
    0: (
        *("2x3xf32=1 2", "2x3xf32=abc", "2x3xf64=1", "2x3xi32=1", "3x2xf32=1", "6xf32=1", "x", "", "2x3", "2X3xf32=1"),
        *("2x3xsi32=1", "-2x3xf32=1", "2x3xfoo=1", "tensor<2x3xf32>", "99999999999x3xf32=1", "2x3xf32=true"),
        *("2x3xf32=1e-46", f"2x3xf32=1.{'0' * 40}", "2x3xf32=1 2 3 4 5 abc"),
    ),
    1: ("4xi64=1", "4xf32=1", "5xi32=1", "4xi32=nan", "4xi32=.5", f"4xi32={'1' * 16}"),
    2: ("abc", "i32=1", "", "inf", f"{'0' * 15}1"),
    3: ("1xf16=1", "f32=1"),
    4: ("xi8=1", "2x2xi8=1", "3xi16=1", "3xi8=999", "3xi8=-129", "3xi8=1 2 256", "3xsi8=128", "3xui8=256", "3xui8=-1"),
    5: ("f32=1", "abc", "1e-50"),
    6: ("5xi16=65536", "5xi16=-32769", "5xsi16=32768", "5xui16=65536"),
    7: ("2xi64=9223372036854775808", "2xui64=18446744073709551616"),
    8: ("4xi1=1", "4xi1=true", "4xi1=100"),
    11: ("9223372036854775808", "99999999999999999999"),
    12: ("f16=1e-99",),
}
# The tool takes these and calls the function with something else than what was written.
_REFUSED_BY_US = {
    0: ("2x3xf32=1_0", "2x3xf32=1e400", "2x3xf32=3.4028236e38"),
    1: (
        "4xi32=1.5",
        "4xi32=1e5",
        "4xi32=09",
        "4xi32=5000000000",
        "4xsi32=4294967295",
        "4xui32=-1",
        "4xi32=-3000000000",
    ),
    2: ("1xi32=1", "4xi32=1", "5000000000"),
    3: ("f16=1e9", "f16=-65520"),
    4: ("1xi8=4294967297", "1xsi8=-129"),
    5: ("1.5.5",),
    7: ("2xui64=-1",),
    9: ("300", "-129"),
    13: ("1.5", "1e3", "-1", "65536"),
    14: ("2.5",),
}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A function with arguments of all kinds."""
    folder = tmp_path_factory.mktemp("specs")
    (folder / "model.mlir").write_text(_MODEL, encoding="utf-8")
    check_cli("build", "model.mlir", cwd=folder)
    return load(folder / "model.tracemap")


@pytest.mark.long
@pytest.mark.parametrize("command", ["record", "run", "benchmark"])
def test_an_input_that_no_program_can_be_handed_is_named(command: str, bundle: Bundle, tmp_path: Path) -> None:
    """Linux takes 32 pages in one argument: more of them it calls a list that is too long, as if all were."""
    long = f"2x3xf32={' ' * 32 * os.sysconf('SC_PAGE_SIZE')}0.5"
    (tmp_path / "long.flags").write_text("".join(f"--input={each}\n" for each in (long, *_GOOD[1:])), encoding="utf-8")
    done = run_cli(command, bundle.path, "--flagfile", tmp_path / "long.flags")
    assert done.returncode == 2
    assert done.stderr.startswith("tracemap: error: main: argument a (tensor<2x3xf32>) is a text of ")
    assert done.stderr.endswith("Save it as a numpy file and pass @file.npy [input-invalid]\n")
    assert done.stderr.count("\n") == 1


def test_inputs_are_as_long_as_a_program_can_be_handed(bundle: Bundle) -> None:
    most = 32 * os.sysconf("SC_PAGE_SIZE") - 1
    start, end = "2x3xf32=", "0.5"
    spec = f"{start}{' ' * (most - len(f'--input={start}{end}'))}{end}"
    subprocess.run(["true", f"--input={spec}"], check=True)
    assert taken_by_us(bundle, 0, spec)
    with pytest.raises(OSError, match="too long"):
        subprocess.run(["true", f"--input={spec} "], check=True)
    assert not taken_by_us(bundle, 0, f"{start} {spec.removeprefix(start)}")


def taken_by_us(bundle: Bundle, place: int, spec: str) -> bool:
    entry = bundle.graph.functions[0]
    try:
        check_spec(entry, entry.arguments[place], spec, InputFiles())
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


def test_half_floats_that_stand_alone_arrive_as_they_were_meant(bundle: Bundle, tmp_path: Path) -> None:
    """IREE's tools take their bits; a plain 1.5 arrives as next to nothing."""
    words = [word for spec in (*_GOOD[:-2], "1.5", "2.5") for word in ("--input", spec)]
    said = run_cli("run", bundle.path, *words, cwd=tmp_path)
    right = (
        "argument n (f16) cannot be '1.5': a scalar f16 is passed as its bits, 0 to 0xffff, and "
        "'1.5' is not; write it as --input=0x3e00 [input-invalid]"
    )
    assert right in said.stderr
    assert said.returncode == 2
    words = [word for spec in _GOOD for word in ("--input", spec)]
    assert check_cli("run", bundle.path, *words).splitlines()[-1] == "f32=4"
    of_python: list[object] = [*_GOOD[:-2], 1.5, ml_dtypes.bfloat16(2.5)]
    assert tracemap.run(bundle, inputs=of_python)[-1] == 4
    made = tracemap.run(bundle, dim=2)[-1]
    assert made == pytest.approx(0.1, rel=0.01)


def test_the_sentence_says_what_is_wrong_and_what_is_right(bundle: Bundle, tmp_path: Path) -> None:
    words = [word for spec in ("2x3xi32=1", *_GOOD[1:]) for word in ("--input", spec)]
    done = run_cli("record", bundle.path, *words, "-o", "run.csv", cwd=tmp_path)
    assert done.stderr == (
        "tracemap: error: main: argument a (tensor<2x3xf32>) cannot be '2x3xi32=1': its elements are i32, not "
        "f32; write it as --input=2x3xf32=0.5 [input-invalid]\n"
    )
    assert done.returncode == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["record", "run", "benchmark"])
@pytest.mark.parametrize(
    ("place", "spec", "fault", "right"),
    [
        (4, "2xi8=999", "'999' does not fit i8, which takes -128 to 255", "Nxi8=1"),
        (4, "2xui8=-1", "'-1' does not fit ui8, which takes 0 to 255", "Nxi8=1"),
        (0, "2x3xf32=abc", "'abc' is not a number", "2x3xf32=0.5"),
        (5, "1e-50", "'1e-50' is too small for f32; write 0", "0.5"),
        (9, "300", "'300' does not fit i8, which takes -128 to 255", "1"),
    ],
)
def test_a_number_that_its_type_does_not_hold_is_named(
    command: str, place: int, spec: str, fault: str, right: str, bundle: Bundle
) -> None:
    words = [word for each in (*_GOOD[:place], spec, *_GOOD[place + 1 :]) for word in ("--input", each)]
    done = run_cli(command, bundle.path, *words)
    name, kind = "abcdefghij"[place], bundle.graph.functions[0].arguments[place].type
    assert done.stderr == (
        f"tracemap: error: main: argument {name} ({kind}) cannot be '{spec}': {fault}; write it as "
        f"--input={right} [input-invalid]\n"
    )
    assert done.returncode == 2


@pytest.mark.parametrize(("written", "advised"), [("i1=0", "i8=0"), ("i1=1", "i8=1"), ("i1=true", "i8=1")])
def test_advice_keeps_the_truth_that_is_meant(written: str, advised: str) -> None:
    entry = Function("f", (Argument("c", "tensor<i1>", loop_bound=False),))
    with pytest.raises(InputInvalid, match=rf"write it as --input={advised}$"):
        check_spec(entry, entry.arguments[0], written, InputFiles())


@pytest.mark.parametrize("element", ["i4", "si4", "ui2"])
def test_advice_for_parts_of_bytes_can_be_followed(element: str) -> None:
    entry = Function("f", (Argument("c", f"tensor<8x{element}>", loop_bound=False),))
    with pytest.raises(InputInvalid, match=rf"write it as --input=8x{element}=11$"):
        check_spec(entry, entry.arguments[0], f"8x{element}=1", InputFiles())
    check_spec(entry, entry.arguments[0], f"8x{element}=11", InputFiles())
