"""References inside a map exist; a bundle with a dangling one does not open."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from tests.builders import graph, op, site
from tracemap.core.errors import BundleInvalid, ModelInvalid
from tracemap.core.units import UNKNOWN
from tracemap.map.bundle import BundleFiles, load, store
from tracemap.map.map_json import check_references, check_text_size, decode, encode
from tracemap.map.model import (
    Command,
    CommandBuffer,
    Frame,
    Kernel,
    KernelLine,
    OpId,
    Reason,
    Schedule,
    Submission,
    TraceGraph,
    Transfer,
)

pytestmark = pytest.mark.quick

DISPATCH = Command("dispatch", "k0", "site0", (1, 1, UNKNOWN), merged=("site1",))
COPY = Command("copy", UNKNOWN, UNKNOWN, ops=(OpId.of(2),))


def example() -> TraceGraph:
    made = graph(
        [op(1, 1, part_lines=[2]), op(2, 3), op(5, 4, name="func.call")],
        [site(0, 1, 2, kernel="k0", path=[5]), site(1, 2, kernel="k0")],
    )
    return structs.replace(
        made,
        kernels=tuple(
            structs.replace(
                each, steps=(KernelLine(1, "scf.for", ()), KernelLine(2, "arith.addf", (OpId.of(1),), parent=1))
            )
            for each in made.kernels
        ),
        command_buffers=(CommandBuffer(0, "main", True, False, (DISPATCH, COPY)),),
        transfers=(Transfer("transfer0", "fill", "main", (OpId.of(1),), 4),),
        schedules=(Schedule("main", (0,), (Submission((0,), "transfer0", (0,), last=True),)),),
    )


def with_op(**changes: object) -> TraceGraph:
    made = example()
    return structs.replace(made, ops=(structs.replace(made.ops[0], **changes), *made.ops[1:]))


def with_site(**changes: object) -> TraceGraph:
    made = example()
    return structs.replace(made, sites=(structs.replace(made.sites[0], **changes), *made.sites[1:]))


def with_member(**changes: object) -> TraceGraph:
    first, *others = example().sites[0].members
    return with_site(members=(structs.replace(first, **changes), *others))


def with_kernel(**changes: object) -> TraceGraph:
    made = example()
    return structs.replace(made, kernels=(structs.replace(made.kernels[0], **changes),))


def with_buffer(**changes: object) -> TraceGraph:
    made = example()
    return structs.replace(made, command_buffers=(structs.replace(made.command_buffers[0], **changes),))


def with_submission(**changes: object) -> TraceGraph:
    made = example()
    (schedule,) = made.schedules
    changed = structs.replace(schedule, submissions=(structs.replace(schedule.submissions[0], **changes),))
    return structs.replace(made, schedules=(changed,))


WRONG: dict[str, Callable[[], TraceGraph]] = {
    "op op2 occurs twice": lambda: with_op(id=OpId.of(2)),
    "op1 names the phase lunch": lambda: with_op(last_phase="lunch"),
    "op1 is at 0:5": lambda: with_op(line=0),
    "site site1 occurs twice": lambda: with_site(id="site1"),
    "site0 names kernel k9": lambda: with_site(kernel="k9"),
    "site0 names op op9": lambda: with_member(op=OpId.of(9)),
    "site0: op op2 occurs twice": lambda: with_member(op=OpId.of(2)),
    "site0 names op op8": lambda: with_member(path=(OpId.of(8),)),
    "site0 names op op7": lambda: with_site(path=(OpId.of(7),)),
    "the dispatch sites of k0 is": lambda: with_kernel(sites=("site0",)),
    "k0: step at line 3 occurs twice": lambda: with_kernel(steps=(KernelLine(3, "a.b", ()), KernelLine(3, "a.b", ()))),
    "k0 names op op6": lambda: with_kernel(steps=(KernelLine(3, "a.b", (OpId.of(6),)),)),
    "k0: step 3 names line 9": lambda: with_kernel(steps=(KernelLine(3, "a.b", (), parent=9),)),
    "the ordinal of command buffer 0 is 1": lambda: with_buffer(ordinal=1),
    "names site site9": lambda: with_buffer(commands=(structs.replace(DISPATCH, site="site9"),)),
    "names site site8": lambda: with_buffer(commands=(structs.replace(DISPATCH, merged=("site8",)),)),
    "names op op99": lambda: with_buffer(commands=(structs.replace(COPY, ops=(OpId.of(99),)),)),
    "names submission 1": lambda: with_submission(next=(1,)),
    "names command buffer 1": lambda: with_submission(buffers=(1,)),
    "the source text model.mlir occurs twice": lambda: structs.replace(example(), sources=example().sources * 2),
    "the kernel text k.mlir occurs twice": lambda: structs.replace(
        graph([op(1, 1)], [site(0, 1, kernel="k0"), site(1, 1, kernel="k1")]),
        kernels=(Kernel("k0", ("site0",), text="k.mlir"), Kernel("k1", ("site1",), text="k.mlir")),
    ),
    "names transfer transfer1": lambda: with_submission(transfer="transfer1"),
}


def test_a_consistent_map_is_accepted() -> None:
    check_references(example())


@pytest.mark.parametrize("said", WRONG)
def test_what_is_not_there_is_named(said: str, tmp_path: Path) -> None:
    (tmp_path / "m.vmfb").write_bytes(b"")
    bundle = store(tmp_path / "a.tracemap", WRONG[said](), BundleFiles(tmp_path / "m.vmfb", {}), force=False)
    with pytest.raises(BundleInvalid, match=said):
        load(bundle.path)


TEXTS = st.text(max_size=8)
COUNTS = st.integers(1, 2**63 - 1)


@settings(max_examples=50)
@given(name=TEXTS, function=TEXTS | st.just(UNKNOWN), line=COUNTS | st.just(UNKNOWN), scope=st.lists(TEXTS).map(tuple))
def test_maps_of_models_with_any_name_survive_the_round_trip(
    name: str, function: str, line: int, scope: tuple[str, ...]
) -> None:
    made = with_op(name=name, function=function, line=line, scope=scope)
    assert decode(encode(made)) == made


LONG = "x" * 50_000
MANY = 500


def sharing(**field: object) -> TraceGraph:
    """A map of ops that share a text."""
    return graph([structs.replace(op(number, 1), **field) for number in range(MANY)])


def called(**field: object) -> TraceGraph:
    """A map of sites that are all called from one op."""
    call = structs.replace(op(MANY, 1, name="func.call"), **field)
    ops = [op(number, 1) for number in range(MANY)]
    return graph([*ops, call], [site(number, number, kernel="k0", path=[MANY]) for number in range(MANY)])


def with_steps_of_one_op() -> TraceGraph:
    made = graph([op(1, 1, name=LONG)], [site(0, 1, kernel="k0")])
    steps = tuple(KernelLine(line, "a.b", (OpId.of(1),)) for line in range(1, MANY))
    return structs.replace(made, kernels=(structs.replace(made.kernels[0], steps=steps),))


SHARED: dict[str, Callable[[], TraceGraph]] = {
    "$.ops.name": lambda: sharing(name=LONG),
    "$.ops.file": lambda: sharing(file=LONG),
    "$.ops.scope": lambda: sharing(scope=("a", LONG)),
    "$.ops.frames": lambda: sharing(frames=(Frame(LONG, 1, 1, "f"),)),
    "$.ops.reason": lambda: sharing(reason=Reason("host", LONG)),
    "$.sites.members.path": lambda: called(scope=(LONG,)),
    "$.kernels.steps.ops": with_steps_of_one_op,
}


@pytest.mark.parametrize("field", SHARED)
def test_a_text_that_many_records_share_is_bounded(field: str, tmp_path: Path) -> None:
    made = SHARED[field]()
    (tmp_path / "m.vmfb").write_bytes(b"")
    with pytest.raises(ModelInvalid, match=r"model: the texts of `.*shorten the names and locations in the model"):
        store(tmp_path / "a.tracemap", made, BundleFiles(tmp_path / "m.vmfb", {}), force=False)
    assert not (tmp_path / "a.tracemap").exists()
    short = graph([op(1, 1)], [])
    bundle = store(tmp_path / "a.tracemap", short, BundleFiles(tmp_path / "m.vmfb", {}), force=False)
    (bundle.path / "map.json").write_bytes(encode(made))
    with pytest.raises(BundleInvalid, match=rf"the texts of `{re.escape(field)}`, repeated for every record"):
        load(bundle.path)


def test_long_call_stacks_of_a_large_model_are_accepted() -> None:
    frames = tuple(Frame(f"/project/site-packages/torch/nn/{'m' * 40}.py", n, 1, "forward") for n in range(12))
    ops = [op(number, 1) for number in range(5000)]
    ops = [structs.replace(each, frames=(Frame("m.py", each.id.number, 1, "f"), *frames)) for each in ops]
    sites = [site(number, *range(6 * number, 6 * number + 6), kernel=f"k{number}") for number in range(800)]
    made = graph(ops, sites)
    check_text_size(made, len(encode(made)))
