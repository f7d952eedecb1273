"""Kernels that a model brings, and ops that a preprocessing pass replaces by such kernels.

The programs say themselves what is right: each call of a kernel is the op that calls it, or whose place it takes; and
code that does the same as often costs the same.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.hook import support
from tests.support import ROOT, check_cli, json_cli, made_once
from tracemap.core.locations import CallSite, FileRange
from tracemap.core.units import UNKNOWN
from tracemap.hook.compiling import find_compiler
from tracemap.ir.flow import DispatchRegion, FlowDispatch, FlowProgram, HostCall, HostFunction
from tracemap.machine.code_figures import code_locations, linked_functions
from tracemap.machine.images import NO_LINE, NOWHERE, Image, read_images
from tracemap.map.build.sites.schedules import inlined_later, with_inlined
from tracemap.map.bundle import load
from tracemap.map.model import Outcome, TraceGraph

OWN = ROOT / "tests" / "programs" / "own"
AS_OBJECT = ("-O2", "-ffreestanding", "-fno-stack-protector", "-fPIC", "-mno-red-zone", "-c")

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the kernels' object is made for x86-64")


def compiled(folder: Path, *flags: str) -> Path:
    """A folder with the kernels' object."""
    support.need_compiler()
    with made_once(folder) as missing:
        if missing:
            folder.mkdir()
            arguments = (*AS_OBJECT, *flags, OWN / "kernels.c", "-o", folder / "kernels.o")
            subprocess.run([*find_compiler(), *map(str, arguments)], check=True)
    return folder


@pytest.fixture(scope="session", params=[(), ("-g",)], ids=["bare", "debug"])
def objects(made: Path, request: pytest.FixtureRequest) -> Path:
    """The folder with the kernels' object, without and with debug information of its own."""
    return compiled(made / f"own-objects{len(request.param)}", *request.param)


def built(model: str, objects: Path, *flags: str) -> Path:
    """The bundle of a program, beside the objects that it is linked with."""
    bundle = objects / f"{model}.tracemap"
    with made_once(bundle) as missing:
        if missing:
            searched = f"--iree-hal-executable-object-search-path={objects}"
            check_cli("build", OWN / f"{model}.mlir", "-o", bundle, "--", searched, *flags)
    return bundle


@pytest.fixture
def own(objects: Path) -> Path:
    """The bundle of a model that calls kernels of its own."""
    return built("model", objects)


@pytest.fixture
def replaced(objects: Path) -> Path:
    """The bundle of a model of whose ops two become calls of a kernel."""
    return built("replaced", objects, f"--iree-preprocessing-transform-spec-filename={OWN / 'spec.mlir'}")


def of_sites(graph: TraceGraph) -> list[tuple[str, list[object]]]:
    """The kernel of each site, and the lines of its members."""
    line_of = {op.id: op.line for op in graph.ops}
    return [(site.kernel, [line_of[member.op] for member in site.members]) for site in graph.sites]


@pytest.mark.long
def test_each_call_of_a_kernel_of_the_models_own_is_its_op(own: Path) -> None:
    graph = load(own).graph
    (addition,) = (op.line for op in graph.ops if op.name == "arith.addf")
    assert isinstance(addition, int)
    first = addition - 1
    assert of_sites(graph) == [
        ("waving", [first]),
        ("main_dispatch_0_elementwise_65536_f32", [first + 1]),
        ("falling", [first + 2]),
        ("sharing", [first + 3]),
        ("sharing_too", [first + 4]),
    ]
    assert [site.members[0].operations is UNKNOWN for site in graph.sites] == [True, False, True, True, True]
    assert not graph.diagnostics
    assert next(op.outcome for op in graph.ops if op.name == "stream.executable") == Outcome.STRUCTURAL


def test_kernels_that_call_code_have_their_text_and_steps(own: Path) -> None:
    """Which is not valid by itself: it calls what is declared beside it."""
    bundle = load(own)
    for kernel in bundle.graph.kernels:
        assert kernel.steps
        text = (own / "kernels" / str(kernel.text)).read_text(encoding="utf-8")
        assert text.startswith("func.func @")
        assert text.count("func.func @") == 1
        lines = text.splitlines()
        for step in kernel.steps:
            assert step.op_name.split(".")[-1] in lines[step.line - 1]


@pytest.mark.long
def test_samples_in_code_that_kernels_call_are_theirs(own: Path, tmp_path: Path) -> None:
    """What three of the kernels do takes as long as one another; the last calls the same twice."""
    run = tmp_path / "run.parquet"
    check_cli("record", own, "--sample", "--serial", "-o", run)
    made = json_cli("attribute", run, "--map", own)
    samples = {row["line"]: row["metrics"]["samples"]["attributed"] for row in made["ops"]}
    waves, added, falls, shared, twice = (samples[line] for line in sorted(samples))
    enough = 5 * np.sqrt(waves)  # the counts of samples are as far apart as chance takes them
    assert waves > 100
    assert added < waves / 10
    for other in (falls, shared, twice / 2):
        assert abs(waves - other) < enough + 0.15 * waves
    reasons = {row["reason"]: row["metrics"].get("samples", 0) for row in made["unattributed"]}
    assert reasons.get("unmatched-event", 0) <= 0.02 * sum(samples.values())


def test_code_that_is_called_lies_at_the_line_of_the_call(own: Path) -> None:
    (image,) = read_images(load(own).module_path)
    at = {function.name: spot(image, (function.low + function.high) // 2) for function in linked_functions(image)}
    texts = {name: (own / "kernels" / f"{name}.mlir").read_text(encoding="utf-8") for name in ("waving", "falling")}
    assert at["tm_waves"] == ("waving", line_of(texts["waving"], "call @tm_waves"), NOWHERE)
    assert at["tm_inner"] == ("falling", line_of(texts["falling"], "call @tm_falls"), NOWHERE)
    assert at["tm_falls"] == at["tm_inner"]
    assert at["tm_shared"][0] == "tm_shared"
    spots = code_locations(
        image, np.array([next(each.low for each in linked_functions(image) if each.name == "tm_shared")])
    )
    (shared,) = (function for function in spots.functions if function.name == "tm_shared")
    assert spots.kernels_of(shared) == ("sharing", "sharing_too")
    for function in image.functions:
        if function.name in texts:
            assert spot(image, function.low)[::2] == (function.name, function.low)


def spot(image: Image, address: int) -> tuple[str, int, int]:
    """Function, line and address that stand for an address."""
    spots = code_locations(image, np.array([address], dtype=np.int64))
    (number,), (line,), (place,) = spots.numbers.tolist(), spots.lines.tolist(), spots.addresses.tolist()
    return spots.functions[number].name, line, place


def line_of(text: str, what: str) -> int:
    """The number of the only line with a text."""
    (line,) = (number for number, line in enumerate(text.splitlines(), start=1) if what in line)
    return line


def test_addresses_outside_of_functions_have_no_line(own: Path) -> None:
    (image,) = read_images(load(own).module_path)
    spots = code_locations(image, np.array([NOWHERE, 0, 1 << 40], dtype=np.int64))
    assert spots.numbers.tolist() == [-1, -1, -1]
    assert spots.addresses.tolist() == [NOWHERE] * 3
    assert spots.lines.tolist()[2] == NO_LINE


@pytest.mark.long
def test_each_op_that_a_kernel_stands_in_for_has_its_own_site(replaced: Path, tmp_path: Path) -> None:
    """The pass brings a function along, which is inlined only after its dispatch has got its kernel."""
    graph = load(replaced).graph
    few, many = (op for op in graph.ops if op.name == "linalg.generic")
    assert of_sites(graph) == [("doubling", [few.line]), ("doubling", [many.line])]
    assert {op.outcome for op in (few, many)} == {Outcome.DISPATCHED}
    assert not graph.diagnostics
    run = tmp_path / "run.parquet"
    check_cli("record", replaced, "--iterations", "40", "-o", run)
    made = json_cli("attribute", run, "--map", replaced)
    cost = {row["op"]: row["metrics"]["cpu_ns"]["attributed"] for row in made["ops"]}
    assert cost[many.id] > 20 * cost[few.id]  # it has 256 times as many elements
    unattributed = {row["reason"] for row in made["unattributed"] if row["metrics"].get("cpu_ns", 0)}
    assert unattributed <= {"outliers"}


@pytest.mark.long
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
def test_code_of_the_models_own_stands_in_for_nothing(own: Path, tmp_path: Path) -> None:
    """Simulated kernels call functions also for what valgrind's processor lacks; but those of the object always."""
    run = tmp_path / "run.parquet"
    check_cli("record", own, "--cache-sim", "--iterations", "2", "-o", run)
    made = json_cli("attribute", run, "--map", own)
    instructions = {row["line"]: row["metrics"]["Ir"]["attributed"] for row in made["ops"]}
    waves, added, falls, shared, twice = (instructions[line] for line in sorted(instructions))
    assert waves > 65536 * 32
    for other in (falls, shared, twice / 2):
        assert other == pytest.approx(waves, rel=0.1)
    assert added < waves / 10
    assert "Ir_stand_in" not in {metric["name"] for metric in made["metrics"]}


@pytest.mark.long
def test_a_kernel_is_other_code_where_what_it_calls_is(own: Path, made: Path) -> None:
    """Its own instructions are the same: a call."""
    slower = built("model", compiled(made / "own-objects-slower", "-DTURNS=64"))
    found = {kernel["before"] for kernel in json_cli("diff", own, slower)["kernels"]}
    assert found == {"waving", "falling", "sharing", "sharing_too"}
    assert not json_cli("diff", own, own)["kernels"]


@pytest.mark.long
def test_object_files_have_no_reference(own: Path) -> None:
    made = json_cli("bench", own, "--repetitions", "1", "--min-time", "1")
    found = {kernel["kernel"]: kernel["verification"] for kernel in made["kernels"]}
    assert found.pop("main_dispatch_0_elementwise_65536_f32")["status"] == "SUCCESS"
    assert {each["status"] for each in found.values()} == {"NOT_VERIFIED"}
    assert found["waving"]["reason"] == "it calls code of the model's own: tm_waves"
    assert all(kernel["time_ns"]["median"] > 0 for kernel in made["kernels"])


def place(line: int) -> FileRange:
    return FileRange("model.mlir", line, 1, line, 1)


def program(dispatches: Sequence[tuple[str, int]], calls: Sequence[tuple[str, str, int, int]]) -> FlowProgram:
    """A flow phase: dispatches by function and line; calls by function, callee, line and the dispatches before them."""
    names = dict.fromkeys([*(name for name, _ in dispatches), *(name for name, *_ in calls)])
    return FlowProgram(
        kernels=("k",),
        dispatches=tuple(FlowDispatch(function, place(line), "k") for function, line in dispatches),
        calls=tuple(HostCall(function, place(line), callee, behind) for function, callee, line, behind in calls),
        host_ops=(),
        functions=tuple(HostFunction(name, name == "main", (), ()) for name in names),
        called_by_initializers=frozenset(),
    )


def test_inlined_dispatches_are_at_their_calls_in_order() -> None:
    """`main` dispatches, calls `outer` twice, and dispatches again; `outer` dispatches before it calls `inner`."""
    flow = program(
        [("inner", 1), ("outer", 2), ("main", 3), ("main", 4)],
        [("outer", "inner", 20, 2), ("main", "outer", 30, 3), ("main", "outer", 31, 3)],
    )
    assert inlined_later(flow) == {"inner", "outer"}
    bodies = [DispatchRegion(each.function, each.location, ()) for each in flow.dispatches]
    found, placed = with_inlined(flow, bodies, {"inner", "outer"})
    inner = CallSite(place(1), place(20))
    assert [(each.function, each.location) for each in found.dispatches] == [
        ("main", place(3)),
        ("main", CallSite(place(2), place(30))),
        ("main", CallSite(inner, place(30))),
        ("main", CallSite(place(2), place(31))),
        ("main", CallSite(inner, place(31))),
        ("main", place(4)),
    ]
    assert [body and body.location for body in placed] == [each.location for each in found.dispatches]
    kept, _ = with_inlined(flow, bodies, {"inner"})  # `outer` is still a function of its own
    assert [each.function for each in kept.dispatches] == ["outer", "outer", "main", "main"]


def test_inlining_of_recursive_functions_ends() -> None:
    flow = program([("round", 1), ("main", 2)], [("round", "round", 10, 1), ("main", "round", 11, 1)])
    found, _ = with_inlined(flow, [None, None], {"round"})
    assert [each.location for each in found.dispatches] == [CallSite(place(1), place(11)), place(2)]


NEGATED = """
      %negated = linalg.generic {
        indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]
      } ins(%OF : tensor<SIZExf32>) outs(%INTO : tensor<SIZExf32>) {
      ^bb0(%element: f32, %unused: f32):
        %less = arith.negf %element : f32
        linalg.yield %less : f32
      } -> tensor<SIZExf32>
"""


def negated(of: str, into: str, size: str) -> str:
    """A part of a program that negates a tensor."""
    return NEGATED.replace("%OF", f"%{of}").replace("%INTO", f"%{into}").replace("SIZE", size)


def test_several_ops_that_a_kernel_stands_in_for_share_its_site(objects: Path, tmp_path: Path) -> None:
    """The call has the location of the last; the first large sum is needed elsewhere, too, and runs by itself."""
    spec, model = (tmp_path / name for name in ("spec.mlir", "model.mlir"))
    text = (OWN / "spec.mlir").read_text(encoding="utf-8")
    spec.write_text(
        text.replace(
            "    } : (!transform.any_op) ->", f"{negated('sum', 'empty', '?')}    }} : (!transform.any_op) ->", 1
        )
    )
    text = (OWN / "replaced.mlir").read_text(encoding="utf-8")
    model.write_text(
        text.replace("    %large =", negated("few", "small", "4096") + "    %large =")
        .replace(
            "    return %few", negated("many", "large", "1048576").replace("%negated", "%also") + "    return %negated"
        )
        .replace("-> (tensor<4096xf32>, ", "-> (tensor<4096xf32>, tensor<1048576xf32>, ")
        .replace(
            "return %negated, %many : tensor<4096xf32>, ",
            "return %negated, %many, %also : tensor<4096xf32>, tensor<1048576xf32>, ",
        )
    )
    flags = (
        f"--iree-hal-executable-object-search-path={objects}",
        f"--iree-preprocessing-transform-spec-filename={spec}",
    )
    check_cli("build", model, "-o", tmp_path / "m.tracemap", "--", *flags)
    graph = load(tmp_path / "m.tracemap").graph
    few, few_negated, many, many_negated = (op for op in graph.ops if op.name == "linalg.generic")
    by_kernel = [(site.kernel, {member.op for member in site.members}) for site in graph.sites]
    assert [members for kernel, members in by_kernel if kernel == "doubling"] == [
        {few.id, few_negated.id},
        {many_negated.id},
    ]
    assert {op.outcome for op in (few, few_negated, many, many_negated)} == {Outcome.DISPATCHED}
    assert sum(many.id in members for _, members in by_kernel) == 1
