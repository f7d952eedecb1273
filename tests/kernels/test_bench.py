"""`tracemap bench`: kernels alone, verified, timed, and next to the application."""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

import tracemap
from tests.conftest import Built, Recorded
from tests.support import Json, check_cli, json_cli, run_cli
from tracemap.core.units import UNKNOWN
from tracemap.ir.executables import read_dispatches
from tracemap.ir.parsing import MlirParser
from tracemap.kernels.bench import CaseOutcome, amounts, merge_outcomes, spread_of
from tracemap.kernels.bench_cases import find_cases
from tracemap.kernels.benchmark_module import benchmark_module_text, compile_benchmark_module
from tracemap.kernels.model import Status, Verification
from tracemap.kernels.runner_jobs import Call, CallResult, FailedCall, Job, Timing, run_job
from tracemap.map.bundle import Bundle, load

QUICK = ("--repetitions", "2", "--min-time", "0.5", "--processes", "1")


def statuses(found: Json) -> dict[str, str]:
    return {kernel["kernel"]: kernel["verification"]["status"] for kernel in found["kernels"]}


@pytest.fixture(scope="module")
def benched(built: Built, recorded: Recorded) -> Json:
    return json_cli("bench", built("hand_mlp"), "--run", recorded("hand_mlp"), "--cold", *QUICK)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "model",
    [
        "hand_convnet",  # windows that overlap, padding that is written around a result
        "hand_dynamic",  # sizes that the program's arguments decide
        "hand_attention_ext",  # an operation of IREE's own
        pytest.param("jax_gpt2_4l_scan", marks=pytest.mark.long),  # look-ups in tables, numbers that a loop counts
        "jax_cnn",  # results that are stored through a map
    ],
)
def test_kernels_of_a_model_are_what_numpy_computes(built: Built, model: str) -> None:
    found = json_cli("bench", built(model), "--repetitions", "1", "--min-time", "0.1")
    assert set(statuses(found).values()) == {"SUCCESS"}
    assert {kernel["verification"]["reference"] for kernel in found["kernels"]} == {"numpy"}
    assert all(kernel["same_code"] for kernel in found["kernels"])


@pytest.mark.long
def test_every_site_has_one_kernel_alone(benched: Json, built: Built) -> None:
    sites = sorted(site for kernel in benched["kernels"] for site in kernel["sites"])
    assert sites == sorted(site["id"] for site in json_cli("show", built("hand_mlp"))["sites"])


@pytest.mark.long
def test_amounts_are_those_of_the_map(benched: Json, built: Built) -> None:
    members = {site["id"]: site["members"] for site in json_cli("show", built("hand_mlp"))["sites"]}
    for kernel in benched["kernels"]:
        of_site = members[kernel["sites"][0]]
        assert kernel["operations"] == sum(member["operations"] for member in of_site)
        assert kernel["bytes"] == sum(member["bytes_read"] + member["bytes_written"] for member in of_site)
        time = kernel["time_ns"]
        assert time["q1"] <= time["median"] <= time["q3"]
        assert kernel["operations_per_s"] == pytest.approx(kernel["operations"] / time["median"] * 1e9, rel=1e-3)


@pytest.mark.long
def test_cold_calls_take_turns_on_copies_larger_than_the_last_cache(benched: Json) -> None:
    kernel = next(kernel for kernel in benched["kernels"] if "32x256x784" in kernel["kernel"])
    used = 4 * (32 * 784 + 784 * 256 + 256 + 32 * 256)
    assert kernel["time_ns"]["buffers"] == 1
    assert kernel["cold_ns"]["buffers"] * used >= 1 << 20  # no machine of these days has a smaller last cache
    assert kernel["cold_ns"]["batch"] >= kernel["cold_ns"]["buffers"]


def test_the_application_stands_beside(benched: Json, built: Built, recorded: Recorded) -> None:
    run = recorded("hand_mlp")
    assert benched["run"] == run.name
    costs = json_cli("attribute", run, "--map", built("hand_mlp"))["sites"]
    medians = {site["site"]: site["metrics"]["cpu_ns"]["per_call"]["median"] for site in costs}
    for kernel in benched["kernels"]:
        for site in kernel["in_application"]:
            assert site["median_ns"] == medians[site["site"]]
            ratio = site["median_ns"] / kernel["time_ns"]["median"]
            assert site["ratio"] == pytest.approx(ratio, rel=1e-2, abs=1e-3)
            assert bool(site["points_to"]) == (not 1 / 1.2 <= ratio <= 1.2)


@pytest.mark.long
def test_where_times_differ_the_application_is_recorded_again(built: Built, tmp_path: Path) -> None:
    """Of a run whose kernels seem to take ten times as long, the new recording says that it was not the kernels."""
    bundle, run = built("hand_mlp"), tmp_path / "slow.csv"
    check_cli("record", bundle, "--serial", "--iterations", "20", "-o", run)
    with run.open(newline="") as file:
        head, *rows = [line for line in csv.reader(file) if line]
    at = head.index("cpu_ns")
    with run.open("w", newline="") as file:
        slow = [[*row[:at], str(10 * int(row[at])) if row[at] else "", *row[at + 1 :]] for row in rows]
        csv.writer(file).writerows([head, *slow])
    large = ("--kernel", "*784*", "--no-verify", *QUICK)
    (kernel,) = json_cli("bench", bundle, "--run", run, *large)["kernels"]
    (site,) = kernel["in_application"]
    assert 5 * site["again_ns"] < site["median_ns"]
    assert site["points_to"]  # which reason it is depends on how quiet the machine is while it is recorded again
    (kernel,) = json_cli("bench", bundle, "--run", run, "--seconds", "0", *large)["kernels"]
    (site,) = kernel["in_application"]
    assert site["again_ns"] is None


@pytest.mark.long
def test_why_the_application_is_not_recorded_again_is_said(built: Built, recorded: Recorded, tmp_path: Path) -> None:
    (tmp_path / "absent.flags").write_text("--device=absent\n", encoding="utf-8")
    asked = ("--kernel", "*softmax*", "--flagfile", tmp_path / "absent.flags")
    found = json_cli("bench", built("hand_mlp"), "--run", recorded("hand_mlp"), *asked, "--no-verify", *QUICK)
    differs = any(site["points_to"] for kernel in found["kernels"] for site in kernel["in_application"])
    said = [each["message"] for each in found["diagnostics"] if each["slug"] == "not-recorded-again"]
    assert len(said) == differs
    assert all("absent" in each for each in said)


@pytest.mark.long
def test_without_the_runtime_no_kernel_is_called_wrong(built: Built) -> None:
    """As where a package is missing: finding it fails, in this process and in its children."""
    hidden = (
        "import runpy, sys, importlib.util as util\n"
        "plain = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'iree.runtime' else plain(name, *rest)\n"
        "runpy.run_module('tracemap', run_name='__main__')\n"
    )
    command = [sys.executable, "-c", hidden, "bench", str(built("hand_mlp")), "--kernel", "*softmax*"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("install it with: pip install iree-base-runtime [tool-missing]\n")


@pytest.mark.long
def test_the_dearest_of_the_run_come_first(built: Built, recorded: Recorded) -> None:
    run = recorded("hand_mlp")
    totals: dict[str, int] = {}
    kernel_of = {site["id"]: site["kernel"] for site in json_cli("show", built("hand_mlp"))["sites"]}
    for site in json_cli("attribute", run, "--map", built("hand_mlp"))["sites"]:
        kernel = kernel_of[site["site"]]
        totals[kernel] = totals.get(kernel, 0) + site["metrics"]["cpu_ns"]["total"]
    most_expensive = max(totals, key=lambda name: totals[name])
    found = json_cli("bench", built("hand_mlp"), "--run", run, "--top", "1", "--no-verify", *QUICK)
    assert statuses(found) == {most_expensive: "NOT_VERIFIED"}


GIVEN = ("24x64xf32=0.5", "64x128xf32=0.01", "128xf32=0.1")


@pytest.mark.long
def test_sizes_are_those_of_the_inputs(built: Built, tmp_path: Path) -> None:
    """Of inputs, of a flag file, of the run that is compared with, or all the same."""
    bundle = shutil.copytree(built("hand_dynamic"), tmp_path / "dynamic.tracemap")
    np.save(tmp_path / "x.npy", np.ones((9, 7), np.float32))
    (tmp_path / "x.flags").write_text("--input=@x.npy\n--input=7x128xf32=1\n--input=128xf32=1\n", encoding="utf-8")
    inputs = [word for spec in GIVEN for word in ("--input", spec)]
    check_cli("record", bundle, *inputs, "--serial", "--iterations", "2", "-o", tmp_path / "run.csv")
    ways: list[tuple[list[str], int, int]] = [
        (["--input", "3x5xf32", "--input", "5x128xf32", "--input", "128xf32"], 3, 5),
        (["--flagfile", "x.flags"], 9, 7),
        (["--run", "run.csv", "--seconds", "0"], 24, 64),
        (["--run", "run.csv", "--seconds", "0", "--dim", "6"], 6, 6),
    ]
    for options, rows, columns in ways:
        done = run_cli(
            "bench", bundle, *options, "--kernel", "*matmul*", "--no-verify", "--format", "json", *QUICK, cwd=tmp_path
        )
        (kernel,) = json.loads(done.stdout)["kernels"]
        wanted = f"{rows}x{columns}xf32, {columns}x128xf32"
        assert wanted in kernel["arguments"], kernel["arguments"]
        # Products and sums, and behind them a sum and a tangent, which the map counts as 15.
        assert kernel["operations"] == 2 * rows * columns * 128 + (1 + 15) * rows * 128
        assert kernel["bytes"] == 4 * (rows * columns + columns * 128 + 128 + rows * 128)
        assert kernel["operations_per_s"] > 0


HEAD = b"\x93NUMPY\x01\x00v\x00"


@pytest.mark.parametrize(
    "content",
    [b"", b"PK\x05\x06" + bytes(18), HEAD + b"{(", HEAD + b"{'descr': ((((".ljust(118), HEAD + b'"""'.ljust(118)],
    ids=["empty", "several", "short", "open", "unquoted"],
)
def test_a_damaged_file_of_an_input_is_named(content: bytes, built: Built, tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_bytes(content)
    inputs = [word for spec in ("@x.npy", "64x128xf32", "128xf32") for word in ("--input", spec)]
    done = run_cli("bench", built("hand_dynamic"), *inputs, *QUICK, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("tracemap: error: dyn: argument x (tensor<?x?xf32>) cannot be read from x.npy: it")
    assert done.stderr.count("\n") == 1


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("dim", "words"), [(99_999_999, "of memory are free"), (10**12, "does not fit into its buffers")]
)
def test_what_does_not_fit_into_memory_is_not_called_wrong(dim: int, words: str, built: Built) -> None:
    asked = ("--kernel", "*matmul*", "--dim", str(dim))
    (kernel,) = json_cli("bench", built("hand_dynamic"), *asked, *QUICK)["kernels"]
    assert kernel["verification"]["status"] == "NOT_VERIFIED"
    assert kernel["not_measured"] == kernel["verification"]["reason"]
    assert words in kernel["not_measured"]


@pytest.mark.long
def test_kernels_are_chosen_by_name_and_by_op(built: Built) -> None:
    bundle = built("hand_mlp")
    by_name = json_cli("bench", bundle, "--kernel", "*softmax*", "--no-verify", *QUICK)
    assert [*statuses(by_name)] == ["mlp_dispatch_3_softmax_32x10xf32_dispatch_tensor_store"]
    by_op = json_cli("bench", bundle, "--op", "op6", "--no-verify", *QUICK)
    assert [*statuses(by_op)] == ["mlp_dispatch_0_matmul_32x256x784_f32"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--kernel", "nothing*"], "kernel of the map has this name"),
        (["--op", "op9999"], "the map has no op of this id"),
        (["--repetitions", "0"], "repetitions"),
        (["--top", "2"], "has no run, so the most expensive kernels are unknown"),
        (["-o", "."], "is a folder"),
        (["--function", "absent"], "the module has no function 'absent'"),
        (["--input", "3xf32"], "give one --input per argument"),
        (["--", "--absent"], "has no flag --absent"),
    ],
)
def test_what_cannot_be_done_is_said(built: Built, options: list[str], words: str) -> None:
    done = run_cli("bench", built("hand_mlp"), *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.long
def test_a_model_without_kernels_has_none_to_run(tmp_path: Path) -> None:
    model = tmp_path / "none.mlir"
    model.write_text("func.func @same(%a: tensor<4xf32>) -> tensor<4xf32> {\n  return %a : tensor<4xf32>\n}\n")
    check_cli("build", model, "-o", tmp_path / "none.tracemap")
    assert json_cli("bench", tmp_path / "none.tracemap")["kernels"] == []


@pytest.mark.long
def test_csv_begins_with_the_columns_of_the_dispatch_profiler(built: Built) -> None:
    text = check_cli("bench", built("hand_mlp"), "--kernel", "*0_matmul*", "--format", "csv", *QUICK)
    (row,) = csv.DictReader(io.StringIO(text))
    assert [*row][:9] == [
        *("Dispatch", "Provider", "OpKind", "Operation", "Configuration", "Arguments"),
        *("Verification", "Runtime(ms)", "GFLOPs"),
    ]
    assert row["Dispatch"] == "mlp_dispatch_0_matmul_32x256x784_f32"
    assert row["OpKind"] == "linalg.matmul"
    assert row["Operation"] == "matmul_32x256x784_f32"
    assert row["Arguments"] == "32x784xf32, 784x256xf32, 256xf32 -> 32x256xf32"
    assert row["Verification"] == "SUCCESS"
    # A product of m x k by k x n is 2mnk operations; the bias and the maximum add one each.
    operations = 2 * 32 * 256 * 784 + 2 * 32 * 256
    assert float(row["GFLOPs"]) == pytest.approx(operations / float(row["Runtime(ms)"]) / 1e6, rel=1e-3)


@pytest.mark.long
def test_google_benchmark_has_a_row_per_kernel_and_state_of_the_caches(built: Built) -> None:
    text = check_cli("bench", built("hand_mlp"), "--cold", "--no-verify", "--format", "google-benchmark", *QUICK)
    benchmarks = json.loads(text)["benchmarks"]
    assert len(benchmarks) == 8
    assert sum(each["name"].endswith("/cold") for each in benchmarks) == 4
    by_name = {each["name"]: each for each in benchmarks}
    for name, cold in by_name.items():
        warm = by_name[name.removesuffix("/cold")]
        for rate in ("items_per_second", "bytes_per_second"):
            assert cold[rate] * cold["real_time"] == pytest.approx(warm[rate] * warm["real_time"])
    assert all(each["real_time"] > 0 and each["time_unit"] == "ns" for each in benchmarks)


@pytest.mark.long
def test_python_returns_what_the_command_prints(built: Built) -> None:
    made = tracemap.bench(built("hand_mlp"), kernel=("*softmax*",), repetitions=2, min_time=0.5)
    (kernel,) = made.kernels
    assert kernel.verification.status == "SUCCESS"
    assert kernel.time_ns is not None
    assert kernel.time_ns.repetitions == 2


@pytest.mark.long
def test_processes_share_the_repetitions(built: Built) -> None:
    """Without a run and without verification each process that runs kernels is one that times them."""
    words = ("--no-verify", "--processes", "3", "--repetitions", "7", "--min-time", "20", "--format", "json")
    done = run_cli("-v", "bench", built("hand_repeat12"), *words)
    found = json.loads(done.stdout)
    assert found["processes"] == 3
    assert {kernel["time_ns"]["repetitions"] for kernel in found["kernels"]} == {7}
    assert done.stderr.count(" -m tracemap.kernels.runner ") == 3


def test_quartiles_tell_how_far_processes_lie_apart() -> None:
    sound = Verification(Status.SUCCESS, "numpy", 0.0, "")
    none = Timing(0, 0, ())
    one, other = (
        CaseOutcome(CallResult(0, 1.0, Timing(9, 1, times), none), sound, "")
        for times in ((100.0, 100.5, 101.0), (137.0, 137.5, 138.0))
    )
    spread = spread_of(merge_outcomes(one, other).answer.warm)
    assert spread is not None
    assert (spread.q3 - spread.q1) / spread.median > 0.3
    ended = CaseOutcome(
        CallResult(0, 0.0, none, none), Verification(Status.FAILED, UNKNOWN, 0.0, "it crashed"), "it crashed"
    )
    assert merge_outcomes(one, ended).verification.status is Status.FAILED
    assert merge_outcomes(one, ended).answer == one.answer


@pytest.mark.long
def test_text_names_kernels_and_what_was_verified(built: Built) -> None:
    text = check_cli("bench", built("hand_mlp"), *QUICK)
    assert "4 verified, 0 wrong, 0 not verified" in text
    assert "mlp_dispatch_0_matmul_32x256x784_f32" in text


def first_kernel(bundle: Bundle, folder: Path) -> tuple[Call, Path]:
    """The call of the first site of a bundle whose sizes are known, and the module that is compiled for it alone."""
    parser = MlirParser()
    module = parser.parse(bundle.configured())
    case = find_cases(bundle.graph, module, read_dispatches(module, lambda *_: 1))[0]
    text = benchmark_module_text(parser.parse(bundle.configured()), [case.dispatch])
    return case.call(0), compile_benchmark_module(text, bundle.graph.module.flags, folder)


@pytest.mark.long
def test_what_a_kernel_changes_where_it_has_not_to_is_told(built: Built, tmp_path: Path) -> None:
    """The same kernel is said to write less than it does: each time the first byte that is too much is found."""
    call, compiled = first_kernel(load(built("hand_mlp")), tmp_path)
    (place,) = (place for place, buffer in enumerate(call.buffers) if buffer.written)
    result = call.buffers[place]
    row = (result.end - result.begin) // 32
    told = {  # what is said of the result, and from where on it is too much
        result: None,
        structs.replace(result, written=False): result.begin,
        structs.replace(result, end=result.end - row): result.end - row,
        structs.replace(result, begin=result.begin + row): result.begin,
    }
    calls = tuple(
        structs.replace(call, buffers=(*call.buffers[:place], each, *call.buffers[place + 1 :])) for each in told
    )
    answers = list(run_job(Job((str(compiled),), "local-sync", calls, str(tmp_path), 0, 1, 0), tmp_path, 60, print))
    assert len(answers) == len(told)
    for answer, begin in zip(answers, told.values(), strict=True):
        assert isinstance(answer, CallResult)
        if begin is None:
            assert answer.spoiled is None
        else:
            assert answer.spoiled is not None
            assert answer.spoiled.binding == place
            assert begin <= answer.spoiled.byte < begin + 4  # the first byte of a number may be what it was


@pytest.mark.long
def test_what_is_counted_in_a_kernel_is_what_the_map_counts_where_it_knows_sizes(built: Built) -> None:
    bundle, parser = load(built("hand_mlp")), MlirParser()
    module = parser.parse(bundle.configured())
    seen = 0
    for case in find_cases(bundle.graph, module, read_dispatches(module, lambda *_: 1)):
        assert case.function is not None
        if "matmul" in case.kernel:
            operations, moved = amounts(case.function, case.accesses, parser)
            members = case.sites[0].members
            assert [operations, moved] == [
                sum(amount for amount in of_members if isinstance(amount, int))
                for of_members in zip(*((each.operations, each.bytes) for each in members), strict=True)
            ]
            seen += 1
    assert seen == 3


@pytest.mark.long
def test_a_call_that_has_no_memory_is_told_from_one_that_fails(built: Built, tmp_path: Path) -> None:
    call, compiled = first_kernel(load(built("hand_mlp")), tmp_path)
    huge = structs.replace(call, buffers=(structs.replace(call.buffers[0], length=1 << 60), *call.buffers[1:]))
    absent = structs.replace(call, function="absent")
    job = Job((str(compiled),), "local-sync", (huge, absent), "", 0, 1, 0)
    endings = [each for each in run_job(job, tmp_path, 60, print) if isinstance(each, FailedCall)]
    assert [each.for_memory for each in endings] == [True, False]
    assert endings[0].text == "there is not enough memory for its data"
