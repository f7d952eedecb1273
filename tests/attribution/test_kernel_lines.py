"""The rule `measured`: rows of kernel lines go to ops, loops or nobody, and everything balances."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from tests.attribution.test_attribute import (
    PROGRAM,
    attributed,
    csv_of,
    example,
    header,
    run_of,
    shares,
    slugs,
    unattributed,
)
from tests.conftest import Built
from tests.schemas import printed, validator
from tests.support import json_cli, run_cli
from tracemap.attribution.attribute import Request, attribute
from tracemap.attribution.kernel_lines.lines import Spot, spread_evenly
from tracemap.attribution.model import Attribution, UnattributedReason
from tracemap.attribution.weights import Weights, wilson
from tracemap.core.diagnostics import above_result
from tracemap.core.errors import RunInvalid, UsageInvalid
from tracemap.core.units import UNKNOWN, split_by_largest_remainder
from tracemap.machine.code import CodeLoop, instructions_of, loops_of
from tracemap.machine.images import read_images
from tracemap.map.bundle import Bundle, load
from tracemap.map.model import Kernel, KernelLine, OpId, TraceGraph
from tracemap.map.query import KernelLines
from tracemap.options.results import Rule
from tracemap.reports.csv_tables import attribution_csv
from tracemap.reports.json_documents import shown_attribution
from tracemap.reports.terminal.attribution import print_attribution
from tracemap.runs.model import UNKNOWN_HEADER
from tracemap.runs.runfile import read_run


def stepped() -> TraceGraph:
    """`example()` with steps: of k0 line 2 is of op1 and op3, line 3 of op2, line 4 of both; line 5 stands in 3."""
    made = example()
    steps = (
        KernelLine(1, "func.func", ()),
        KernelLine(2, "linalg.matmul", (OpId.of(1), OpId.of(3))),
        KernelLine(3, "linalg.generic", (OpId.of(2),)),
        KernelLine(4, "arith.addf", (OpId.of(1), OpId.of(2))),
        KernelLine(5, "arith.index_cast", (), parent=3),
    )
    kernels = [structs.replace(k, steps=steps) if k.name == "k0" else k for k in made.kernels]
    return structs.replace(made, kernels=tuple(kernels))


def rows(*steps: tuple[object, ...]) -> str:
    """Dispatches of site0 (400 and 402 ns), site1 (50 ns), k1 (9 ns); and rows of steps: kernel, index, step, count."""
    dispatches = [("dispatch", "'k0'", 0, "NULL", 400, "NULL"), ("dispatch", "'k0'", 2, "NULL", 50, "NULL")]
    dispatches += [("dispatch", "'k1'", 3, "NULL", 9, "NULL"), ("dispatch", "'k0'", 0, "NULL", 402, "NULL")]
    seen = [
        ("step", "NULL" if kernel is None else f"'{kernel}'", index, step, "NULL", count)
        for kernel, index, step, count in steps
    ]
    values = ", ".join(
        f"('{kind}', {kernel}, {'NULL, NULL' if index is None else f'7, {index}'}, {step}, {cost}, {n})"
        for kind, kernel, index, step, cost, n in (*dispatches, *seen)
    )
    return (
        "SELECT kind, kernel::VARCHAR AS kernel, buffer::BIGINT AS command_buffer_id, i::BIGINT AS command_index, "
        "1::BIGINT AS submission_id, c::BIGINT AS cpu_ns, step::BIGINT AS step, n::BIGINT AS samples "
        f"FROM (VALUES {values}) AS t(kind, kernel, buffer, i, step, c, n)"
    )


def measured(path: Path, *steps: tuple[object, ...], rule: Rule | None = Rule.MEASURED) -> Attribution:
    return attributed(run_of(path / "r.parquet", rows(*steps)), rule=rule, map_=stepped())


def test_samples_go_to_the_ops_of_their_steps(tmp_path: Path) -> None:
    """Of site0: 150 on the matmul (op1), 40 on the other (op2), 10 on what is of both."""
    result = measured(tmp_path, ("k0", 0, 2, 150), ("k0", 0, 3, 40), ("k0", 0, 4, 10))
    assert shares(result, "samples") == {"op1": 155, "op2": 45, "op3": 0}
    assert shares(result) == {"op1": 802 * 155 // 200 + 1, "op2": 802 * 45 // 200, "op3": 50}
    (metric,) = (each for each in result.metrics if each.name == "samples")
    assert (metric.measured, metric.attributed, metric.unattributed) == (200, 200, 0)
    assert {"shares-are-occupancy"} <= slugs(result)
    assert result.kernels[0].lines == {2: {"samples": 150}, 3: {"samples": 40}, 4: {"samples": 10}}


def test_what_is_computed_in_a_region_without_locations_is_of_its_op() -> None:
    """As of a convolution, whose region passes make anew; what is fused behind it has locations."""
    first, second = OpId.of(1), OpId.of(2)
    steps = (
        KernelLine(2, "linalg.generic", (first,)),
        KernelLine(3, "scf.if", (), parent=2),
        KernelLine(4, "arith.muli", (), parent=3),
        KernelLine(5, "arith.addi", (), parent=2, takes=(4,)),
        KernelLine(6, "linalg.yield", (), parent=2, takes=(5,)),
        KernelLine(7, "linalg.generic", (second,), takes=(2,)),
        KernelLine(8, "arith.shrsi", (second,), parent=7),
        KernelLine(9, "arith.trunci", (), parent=7, takes=(8,)),
    )
    frames = KernelLines(Kernel("k", (), steps=steps), frozenset({first, second}))
    assert frames.owned == {2, 3, 4, 5, 8}
    assert [frames.ops_at(line) for line in (3, 4, 5, 6, 9)] == [(first,), (first,), (first,), (), ()]
    assert {each.line for each in frames.op_lines.operations} == frames.owned


@pytest.mark.parametrize(("instructions", "said"), [((140, 60), False), ((20, 180), True)])
def test_kinds_of_evidence_that_disagree_are_named(
    tmp_path: Path, instructions: tuple[int, int], *, said: bool
) -> None:
    """Three quarters of the samples, and of the instructions a little less, or a tenth."""
    seen = run_of(tmp_path / "r.parquet", rows(("k0", 0, 2, 150), ("k0", 0, 3, 50)))
    counts = csv_of(
        tmp_path / "counts.csv",
        "kind,kernel,step,Ir\n"
        + "".join(f"step,k0,{line},{count}\n" for line, count in zip((2, 3), instructions, strict=True)),
    )
    result = attributed(seen, counts, rule=Rule.MEASURED, map_=stepped())
    assert ("evidence-disagrees" in slugs(result)) == said
    named = [each.message for each in result.diagnostics if each.slug == "evidence-disagrees"]
    assert all("k0: op1" in text or "k0: op2" in text for text in named)


def test_the_error_of_sampling_is_an_interval(tmp_path: Path) -> None:
    result = measured(tmp_path, ("k0", 0, 2, 150), ("k0", 0, 3, 50))
    first = result.ops[0].metrics["cpu_ns"]
    low, high = wilson(150, 200)
    assert 0.68 < low < 0.75 < high < 0.81
    assert first.likely_low == int(802 * low)
    assert first.likely_high == int(802 * high) + 1
    assert first.likely_low < first.attributed < first.likely_high
    alone = result.ops[2].metrics["cpu_ns"]
    assert (alone.likely_low, alone.likely_high) == (UNKNOWN, UNKNOWN)


@pytest.mark.parametrize(("samples", "share"), [(100, 0.5), (100, 0.2), (400, 0.1), (2_000, 0.03), (2_000, 0.7)])
def test_the_interval_holds_the_truth_as_often_as_it_says(samples: int, share: float) -> None:
    """Samples drawn of a site of which an op has a known share, 4,000 times: some 95 % of the intervals hold it.

    Of an op of two sites, whose errors are taken to go the same way, it is no fewer.
    """
    random, total, draws = np.random.default_rng(samples), 1_000_000, 4_000
    held = held_of_both = 0
    for one, other in random.binomial(samples, share, (draws, 2)).tolist():
        (low, high), (low_of_other, high_of_other) = (
            Weights((seen, samples - seen, 0), samples, sampled=True).intervals(total)[0] for seen in (one, other)
        )
        held += low <= total * share <= high
        held_of_both += low + low_of_other <= 2 * total * share <= high + high_of_other
    assert 0.93 <= held / draws <= 0.975
    assert held_of_both / draws >= 0.97


@pytest.mark.parametrize(("times", "marked"), [(1, True), (3, True), (100, False)])
def test_costs_that_samples_leave_half_open_are_marked(times: int, marked: bool, tmp_path: Path) -> None:
    """Of 16 samples 12 and 4 are known as little as one thinks; of 1,600 so divided a tenth is open."""
    result = measured(tmp_path, ("k0", 0, 2, 12 * times), ("k0", 0, 3, 4 * times), rule=Rule.MEASURED)
    cost = result.ops[1].metrics["cpu_ns"]
    low, high = wilson(4 * times, 16 * times)
    assert (high - low >= 0.125) == marked
    assert cost.uncertain == marked
    assert not result.ops[2].metrics["cpu_ns"].uncertain  # no samples decide it
    shown = io.StringIO()
    print_attribution(stepped(), result, shown)
    legend = "~ uncertain by 50 % or more: too few samples"
    assert (legend in shown.getvalue()) == marked
    (line,) = (line for line in shown.getvalue().splitlines() if line.startswith("op2 "))
    assert (" ~ " in line) == marked


@pytest.mark.parametrize(("k", "n"), [(0, 10), (10, 10), (1, 3), (500, 1000)])
def test_wilson_holds_the_share_and_narrows(k: int, n: int) -> None:
    low, high = wilson(k, n)
    assert 0 <= low <= k / n <= high <= 1
    wider = wilson(k * 100, n * 100)
    assert wider[1] - wider[0] < high - low


def test_a_step_of_no_op_is_its_parents(tmp_path: Path) -> None:
    result = measured(tmp_path, ("k0", 0, 5, 7), ("k0", 0, 2, 193))
    assert shares(result, "samples")["op2"] == 7


def test_what_has_no_op_and_no_loop_is_nobodys(tmp_path: Path) -> None:
    """A quarter of the samples on the function's own line: a quarter of the time is kernel overhead."""
    result = measured(tmp_path, ("k0", 0, 1, 50), ("k0", 0, 2, 150))
    assert unattributed(result, "samples")[UnattributedReason.KERNEL_OVERHEAD] == 50
    assert unattributed(result)[UnattributedReason.KERNEL_OVERHEAD] in (200, 201)
    assert shares(result)["op2"] == 0


def test_a_sole_member_has_all_of_its_site(tmp_path: Path) -> None:
    result = measured(tmp_path, ("k0", 2, 1, 150), ("k0", 2, 2, 150))
    assert shares(result, "samples")["op3"] == 300
    assert shares(result)["op3"] == 50
    assert result.ops[2].metrics["cpu_ns"].low == 50


def test_samples_outside_of_kernels(tmp_path: Path) -> None:
    result = measured(tmp_path, (None, None, "NULL", 3), ("k0", 0, 2, 200), ("k9", None, 2, 5), ("k1", 3, 2, 11))
    assert unattributed(result, "samples") == {
        UnattributedReason.OUTSIDE_KERNELS: 3,
        UnattributedReason.UNMATCHED: 5,
        UnattributedReason.COMPILER_MADE: 11,
    }


def test_few_samples_are_judged_with_those_of_the_kernels_other_sites(tmp_path: Path) -> None:
    """One sample of site0 on op2; 300 of site1, whose op3 is in the same step as op1: so site0 is mostly op1's."""
    result = measured(tmp_path, ("k0", 0, 3, 1), ("k0", 2, 2, 299))
    assert shares(result, "samples") == {"op1": 0, "op2": 1, "op3": 299}
    assert shares(result)["op1"] > 790


def test_samples_that_only_name_a_kernel_are_spread_as_its_sites_cost(tmp_path: Path) -> None:
    """site0 has taken 802 ns, site1 50 ns."""
    result = measured(tmp_path, ("k0", None, 2, 852))
    assert shares(result, "samples") == {"op1": 802, "op2": 0, "op3": 50}


def test_sites_without_any_sample_go_by_the_model(tmp_path: Path) -> None:
    made = structs.replace(stepped(), kernels=tuple(structs.replace(k, steps=()) for k in stepped().kernels))
    result = attributed(run_of(tmp_path / "r.parquet", rows(("k9", None, 2, 5))), rule=Rule.MEASURED, map_=made)
    assert shares(result) == {"op1": 602, "op2": 200, "op3": 50}
    assert "split-by-model" in slugs(result)


@pytest.mark.parametrize("rule", [Rule.MODEL, Rule.ROOT, Rule.EQUAL])
def test_other_rules_split_samples_too(rule: Rule, tmp_path: Path) -> None:
    result = measured(tmp_path, ("k0", 0, 3, 100), rule=rule)
    expected = {Rule.MODEL: (75, 25), Rule.ROOT: (100, 0), Rule.EQUAL: (50, 50)}[rule]
    assert tuple(shares(result, "samples").values())[:2] == expected
    assert result.ops[0].metrics["samples"].likely_low is UNKNOWN


def test_the_rule_needs_something_measured(tmp_path: Path) -> None:
    run = run_of(tmp_path / "r.parquet", "SELECT 'k0' AS kernel, 5::BIGINT AS cpu_ns")
    assert attributed(run, rule=None).rule is Rule.MODEL
    assert attributed(run_of(tmp_path / "s.parquet", rows()), rule=None, map_=stepped()).rule is Rule.MODEL
    (tmp_path / "seen").mkdir()
    assert measured(tmp_path / "seen", ("k0", 0, 2, 100), rule=None).rule is Rule.MEASURED
    with pytest.raises(UsageInvalid, match="--sample or --cache-sim"):
        attributed(run, rule=Rule.MEASURED)


@pytest.mark.parametrize(("in_kernels", "rule"), [(1, Rule.MODEL), (99, Rule.MODEL), (100, Rule.MEASURED)])
def test_a_few_samples_decide_nothing(in_kernels: int, rule: Rule, tmp_path: Path) -> None:
    """Those outside of kernels do not count, and who asks for the rule gets it."""
    table = csv_of(
        tmp_path / "r.csv",
        f"kind,kernel,step,cpu_ns,samples\ndispatch,k0,,100,\nstep,k0,2,,{in_kernels}\nstep,,,,500\n",
    )
    result = attributed(table, rule=None, map_=stepped())
    assert result.rule is rule
    told = [item.message for item in result.diagnostics if item.slug == "few-samples"]
    assert [text.startswith(f"only {in_kernels} sample") for text in told] == [True] * (rule is Rule.MODEL)
    assert [item.message for item in above_result(result.diagnostics)] == told
    assert attributed(table, rule=Rule.MEASURED, map_=stepped()).rule is Rule.MEASURED


@pytest.mark.parametrize("samples", [8, 99, 100])
def test_few_samples_do_not_stand_above_what_was_counted(samples: int, tmp_path: Path) -> None:
    """All samples lie at op2 (line 3), all instructions at op1 and op3 (line 2); half of the time is op3's site's."""
    table = csv_of(
        tmp_path / "r.csv",
        f"kind,kernel,step,cpu_ns,Ir,samples\ndispatch,k0,,900,,\nstep,k0,2,,70,\nstep,k0,3,,,{samples}\n",
    )
    result = attributed(table, rule=None, map_=stepped())
    assert result.rule is Rule.MEASURED
    (op2,) = (op for op in result.ops if op.op == OpId.of(2))
    assert op2.metrics["cpu_ns"].attributed == (450 if samples >= 100 else 0)
    told = {item.slug: item.message for item in result.diagnostics}
    assert ("few-samples" in told) == ("shares-are-instructions" in told) == (samples < 100)
    if samples < 100:
        assert f"only {samples} samples in kernels" in told["few-samples"]
        assert "split by simulated instructions" in told["few-samples"]


@pytest.mark.parametrize("stand_ins", [0, 400, 510, 511, 970])
def test_instructions_that_stand_in_for_others_keep_no_core_busy(stand_ins: int, tmp_path: Path) -> None:
    """Line 2 has 20 instructions, line 3 has 1,000, and where most of all stand in for others the rule model decides.

    Half of the time is that of the other site, which has op3 alone.
    """
    table = csv_of(
        tmp_path / "r.csv",
        f"kind,kernel,step,cpu_ns,Ir,Ir_stand_in\ndispatch,k0,,900,,\nstep,k0,2,,20,\nstep,k0,3,,1000,{stand_ins}\n",
    )
    result = attributed(table, rule=None, map_=stepped())
    (op2,) = (op for op in result.ops if op.op == OpId.of(2))
    by_model = stand_ins > 510
    own = 1000 - stand_ins
    expected = shares(attributed(table, rule=Rule.MODEL, map_=stepped()))["op2"] if by_model else 450 * own / (own + 20)
    assert abs(op2.metrics["cpu_ns"].attributed - expected) <= 1
    assert {name: cost.attributed for name, cost in op2.metrics.items() if name != "cpu_ns"} == {
        "Ir": 1000,
        "Ir_stand_in": stand_ins,
    }
    told = [item.message for item in result.diagnostics if item.slug == "split-by-model"]
    assert [text.startswith("in 1 dispatch most simulated instructions stand in") for text in told] == [True] * by_model


def test_shares_of_a_simulation_alone_are_not_said_to_be_of_samples(tmp_path: Path) -> None:
    table = csv_of(tmp_path / "r.csv", "kind,kernel,step,cpu_ns,Ir\ndispatch,k0,,9,\nstep,k0,2,,7\n")
    (told,) = (item for item in attributed(table, rule=None, map_=stepped()).diagnostics if "shares" in item.slug)
    assert told.slug == "shares-are-instructions"
    assert "without samples, time is split by the simulated instructions of each op" in told.message


def test_of_kernels_of_one_op_no_shares_are_explained(tmp_path: Path) -> None:
    """It has all of its kernel, whatever was seen."""
    table = csv_of(tmp_path / "r.csv", "kind,kernel,step,cpu_ns,samples\ndispatch,k1,,9,\nstep,k1,2,,700\n")
    result = attributed(table, rule=Rule.MEASURED, map_=stepped())
    assert not [item for item in result.diagnostics if "shares" in item.slug]


def test_simulated_counts_decide_however_few(tmp_path: Path) -> None:
    table = csv_of(tmp_path / "r.csv", "kind,kernel,step,cpu_ns,samples,Ir\ndispatch,k0,,9,,\nstep,k0,2,,1,7\n")
    result = attributed(table, rule=None, map_=stepped())
    assert result.rule is Rule.MEASURED
    (told,) = above_result(result.diagnostics)
    assert told.message.startswith("only 1 sample in kernels, too few to split by: kernels' costs are split by")


STEP_ROWS = st.lists(
    st.tuples(
        st.sampled_from(["dispatch", "step", "execute"]),
        st.sampled_from(["k0", "k1", "k2", "k9", ""]),
        st.integers(min_value=0, max_value=7),
        st.integers(min_value=0, max_value=2**30),
        st.booleans(),
    ),
    max_size=50,
)


@pytest.mark.long
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(found=STEP_ROWS, rule=st.sampled_from(list(Rule)))
def test_whatever_was_seen_it_balances(
    tmp_path: Path, found: list[tuple[str, str, int, int, bool]], rule: Rule
) -> None:
    lines = ["kind,kernel,step,cpu_ns,samples,warmup", "dispatch,k0,,1,,false", "step,k0,2,,1,false"]
    for kind, kernel, step, value, warmup in found:
        cells = ("", str(value)) if kind == "step" else (str(value), "")
        lines.append(f"{kind},{kernel},{step},{','.join(cells)},{str(warmup).lower()}")
    table = csv_of(tmp_path / "r.csv", "\n".join(lines) + "\n")
    result = attributed(table, rule=rule, map_=stepped())
    seen = 1 + sum(value for kind, _, _, value, warmup in found if kind == "step" and not warmup)
    (samples,) = (metric for metric in result.metrics if metric.name == "samples")
    assert samples.measured == seen
    measured = {metric.name: metric.measured for metric in result.metrics}
    shared = {share.op for site in result.sites if site.split_evenly for share in site.shares}
    for each in result.ops:
        for name, cost in each.metrics.items():
            assert 0 <= cost.low <= cost.attributed <= cost.inclusive <= cost.high <= measured[name]
            assert cost.high == cost.inclusive or each.op in shared
            if cost.likely_low is not UNKNOWN and cost.likely_high is not UNKNOWN:
                assert cost.likely_low <= cost.attributed <= cost.likely_high


def addresses_run(bundle: Bundle, kernel: str, addresses: Sequence[int], lines: Sequence[int], path: Path) -> Path:
    values = ", ".join(f"({address}, {line})" for address, line in zip(addresses, lines, strict=True))
    head = structs.replace(UNKNOWN_HEADER, module_sha256=bundle.graph.module.sha256)
    table = (
        f"SELECT 'dispatch' AS kind, '{kernel}' AS kernel, 1000::BIGINT AS cpu_ns, NULL::BIGINT AS step, "
        "NULL::BIGINT AS address, NULL::BIGINT AS samples UNION ALL "
        f"SELECT 'step', '{kernel}', NULL, line, address, 1 FROM (VALUES {values}) AS t(address, line)"
    )
    return run_of(path, table, head)


def ops_by_loop(kernel: Kernel, loops: Sequence[CodeLoop]) -> Callable[[int], frozenset[OpId]]:
    """The ops that have code in the innermost loop around an address of which any has; none where there is no such.

    The code of a multiplication may stand at the line of an addition beside it, as one operation with it.
    """
    ops_at = {step.line: step.ops for step in kernel.steps}
    seen = {line for loop in loops for line in loop.lines}
    lost = [step for step in kernel.steps if step.op_name in ("arith.mulf", "arith.muli") and step.line not in seen]
    for step in kernel.steps:
        if step.op_name.startswith(("arith.add", "arith.sub")):
            beside = (each for each in lost if each.parent == step.parent and each.line < step.line)
            ops_at[step.line] = (*step.ops, *(op for each in beside for op in each.ops))

    def of(address: int) -> frozenset[OpId]:
        around = sorted((sum(loop.lines.values()), n, loop) for n, loop in enumerate(loops) if loop.holds(address))
        found = (frozenset(op for line in loop.lines for op in ops_at.get(line, ())) for _, _, loop in around)
        return next((ops for ops in found if ops), frozenset())

    return of


def test_code_of_no_op_goes_to_the_loop_around(built: Built, tmp_path: Path) -> None:
    """A sample at every instruction of a real kernel: those in loops of ops have owners, whatever line they are of."""
    bundle = load(built("jax_gpt2_4l"))
    kernel = next(kernel for kernel in bundle.graph.kernels if "softmax" in kernel.name)
    (image,) = read_images(bundle.module_path)
    code = instructions_of(image, image.function_by_name[kernel.name])
    loops = loops_of(code)
    run = addresses_run(bundle, kernel.name, [i.address for i in code], [i.line for i in code], tmp_path / "r.parquet")
    request = Request(bundle.graph, bundle.map_sha256, [read_run(run)], Rule.MEASURED, images=lambda: (image,))
    result = attribute(request)
    owned = {step.line for step in kernel.steps if step.ops}
    outside = [i for i in code if i.line not in owned and not any(loop.holds(i.address) for loop in loops)]
    lost = unattributed(result, "samples").get(UnattributedReason.KERNEL_OVERHEAD, 0)
    # Some of the code outside brings ops what they take in.
    assert 0 < lost <= len(outside) < len(code) // 20
    assert sum(shares(result, "samples").values()) == len(code) - lost


def test_the_loop_decides_between_ops(built: Built, tmp_path: Path) -> None:
    """Code without a line in the loop of the quotient only is the quotient's."""
    bundle = load(built("jax_gpt2_4l"))
    kernel = next(kernel for kernel in bundle.graph.kernels if "softmax" in kernel.name)
    (image,) = read_images(bundle.module_path)
    loops = loops_of(instructions_of(image, image.function_by_name[kernel.name]))
    divided = next(step for step in kernel.steps if step.op_name == "arith.divf")
    maximum = next(step for step in kernel.steps if step.op_name == "arith.maxnumf")
    inner = next(loop for loop in loops if divided.line in loop.lines and maximum.line not in loop.lines)
    run = addresses_run(bundle, kernel.name, [inner.header] * 10, [0] * 10, tmp_path / "r.parquet")
    request = Request(bundle.graph, bundle.map_sha256, [read_run(run)], Rule.MEASURED, images=lambda: (image,))
    result = attribute(request)
    got = {op for op, count in shares(result, "samples").items() if count}
    assert got
    assert got <= {op for step in kernel.steps if step.line in inner.lines for op in step.ops}
    assert not got & (set(maximum.ops) - {op for step in kernel.steps if step.line in inner.lines for op in step.ops})


@pytest.mark.long
def test_command_line(built: Built, tmp_path: Path) -> None:
    bundle = load(built("hand_mlp"))
    kernel = next(kernel for kernel in bundle.graph.kernels if "matmul" in kernel.name)
    line = next(step.line for step in kernel.steps if step.op_name.startswith("linalg.matmul"))
    run = addresses_run(bundle, kernel.name, [0] * 100, [line] * 100, tmp_path / "r.parquet")
    result = json_cli("attribute", run, "--map", built("hand_mlp"))
    assert result["rule"] == "measured"
    assert [d["slug"] for d in result["diagnostics"]].count("shares-are-occupancy") == 1
    text = run_cli("attribute", run, "--map", built("hand_mlp"), "--notes")
    assert re.search(r" from\b.* to\b", text.stdout)
    assert "occupancy" in text.stderr + text.stdout
    few = addresses_run(bundle, kernel.name, [0] * 5, [line] * 5, tmp_path / "few.parquet")
    text = run_cli("attribute", few, "--map", built("hand_mlp"))
    first = next(line for line in text.stdout.splitlines() if line.startswith("note"))
    assert first.startswith("note [few-samples]: only 5 samples in kernels, too few to split by: the rule code splits")
    refused = run_cli("attribute", run, "--map", built("hand_mlp"), "--rule", "guess")
    assert refused.returncode == 2


COUNTS = "kind,kernel,step,Ir,D1mr\nstep,k0,2,100,3\nstep,k0,3,50,1\nstep,k0,1,5,0\n"


def test_a_run_may_have_seen_nothing_but_steps(tmp_path: Path) -> None:
    """Without times the sites of a kernel cannot be weighed: each has half."""
    result = attributed(csv_of(tmp_path / "r.csv", COUNTS), rule=None, map_=stepped())
    assert result.rule is Rule.MEASURED
    assert [(m.name, m.measured, m.attributed, m.unattributed) for m in result.metrics] == [
        ("Ir", 155, 152, 3),
        ("D1mr", 4, 4, 0),
    ]
    assert shares(result, "Ir") == {"op1": 50, "op2": 25, "op3": 77}
    (note,) = (each for each in result.diagnostics if each.slug == "steps-spread" and "Ir" in each.message)
    assert note.message.endswith("split over them in equal parts, because the number of calls is unknown")
    assert "no-events" not in slugs(result)


def test_counts_of_one_run_split_the_times_of_another(tmp_path: Path) -> None:
    counts = csv_of(tmp_path / "counts.csv", COUNTS)
    times = csv_of(tmp_path / "times.csv", "kernel,cpu_ns\nk0,400\nk0,402\nk1,9\n")
    for runs in ((counts, times), (times, counts)):
        result = attributed(*runs, rule=None, map_=stepped())
        assert [(m.name, m.measured) for m in result.metrics] == [("cpu_ns", 811), ("Ir", 155), ("D1mr", 4)]
        op1, op2 = (shares(result)[op] for op in ("op1", "op2"))
        assert abs(op1 - 2 * op2) <= 1  # 100 to 50 instructions
        assert op1 + op2 + shares(result)["op3"] + unattributed(result)[UnattributedReason.KERNEL_OVERHEAD] == 802


def test_columns_of_dispatches_may_be_named_like_those_of_steps(tmp_path: Path) -> None:
    """Without a column `step` they are metrics like any other."""
    table = csv_of(tmp_path / "r.csv", "kernel,cpu_ns,D1mr\nk0,802,7\nk1,9,1\n")
    result = attributed(table, rule=None, map_=stepped())
    assert result.rule is Rule.MODEL
    assert [(metric.name, metric.measured) for metric in result.metrics] == [("cpu_ns", 811), ("D1mr", 8)]
    with pytest.raises(UsageInvalid, match="D1mr counts dispatches in one run and steps in another"):
        attributed(table, csv_of(tmp_path / "counts.csv", COUNTS), map_=stepped())


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("step,k0,2,7,5", "1 row of kind step with cpu_ns"),
        ("dispatch,k0,,7,5", "1 row with samples but not of kind step"),
        ("step,k0,2,,-5", "1 row with a negative number of samples"),
        ("step,k0,2,,2.5", "column samples: .* whole numbers"),
    ],
)
def test_values_that_nobody_would_count_are_refused(row: str, said: str, tmp_path: Path) -> None:
    table = csv_of(tmp_path / "r.csv", f"kind,kernel,step,cpu_ns,samples\ndispatch,k0,,100,\n{row}\n")
    with pytest.raises(RunInvalid, match=said):
        attributed(table, map_=stepped())


def test_columns_of_steps_are_found_behind_many_dispatches(tmp_path: Path) -> None:
    """The type of a CSV's column is told by its first rows, in which no step is."""
    many = "dispatch,k1,,1,\n" * 2000
    table = csv_of(tmp_path / "r.csv", f"kind,kernel,step,cpu_ns,samples\n{many}step,k0,2,,5\n")
    result = attributed(table, rule=None, map_=stepped())
    assert sum(shares(result, "samples").values()) == 5


@given(
    seen=st.dictionaries(st.tuples(st.integers(0, 9), st.integers(-2, 3)), st.integers(0, 40), max_size=30),
    weights=st.lists(st.integers(0, 100), min_size=1, max_size=6),
)
def test_what_is_spread_over_sites_keeps_both_sums(seen: dict[tuple[int, int], int], weights: list[int]) -> None:
    counted = Counter({Spot(line, line, loop): count for (line, loop), count in seen.items()})
    parts = spread_evenly(counted, weights)
    assert [part.total() for part in parts] == split_by_largest_remainder(counted.total(), weights)
    for place, count in counted.items():
        assert sum(part[place] for part in parts) == count
        assert all(part[place] >= 0 for part in parts)


def test_single_samples_are_not_all_the_first_sites() -> None:
    parts = spread_evenly(Counter({Spot(line, line): 1 for line in range(1200)}), [1] * 12)
    assert [part.total() for part in parts] == [100] * 12


def test_what_was_seen_in_a_kernel_is_kept_by_site(tmp_path: Path) -> None:
    result = measured(tmp_path, ("k0", 0, 2, 150), ("k0", 2, 2, 30), ("k0", 0, 1, 5))
    (kernel,) = result.kernels
    assert kernel.lines == {1: {"samples": 5}, 2: {"samples": 180}}
    assert kernel.sites == {"site0": {1: {"samples": 5}, 2: {"samples": 150}}, "site1": {2: {"samples": 30}}}


def test_counts_are_spread_by_calls_and_samples_by_time(tmp_path: Path) -> None:
    """site0 ran twice, site1 once; the simulator counts the same on every call, whatever time it took."""
    table = rows(("k0", None, 2, 300)).replace("samples", "Ir")
    result = attributed(run_of(tmp_path / "r.parquet", table), rule=None, map_=stepped())
    assert shares(result, "Ir") == {"op1": 200, "op2": 0, "op3": 100}
    (note,) = (each for each in result.diagnostics if each.slug == "steps-spread")
    assert "300 Ir name only kernels with several dispatch sites" in note.message


def test_counts_are_spread_by_workgroups_where_a_run_tells_them(tmp_path: Path) -> None:
    """site0 ran two calls of one workgroup each, site1 one call of 98: sizes that are not in the types decide."""
    made = stepped()
    (static,) = made.command_buffers
    unknown = [structs.replace(each, workgroups=(UNKNOWN,) * len(each.workgroups)) for each in static.commands]
    made = structs.replace(made, command_buffers=(structs.replace(static, commands=tuple(unknown)),))
    program = [structs.replace(each, workgroups=(98, 1, 1)) if i == 2 else each for i, each in enumerate(PROGRAM)]
    table = rows(("k0", None, 2, 300)).replace("samples", "Ir")
    run = run_of(tmp_path / "r.parquet", table, header(programs=(tuple(program),)))
    result = attributed(run, rule=None, map_=made)
    assert shares(result, "Ir") == {"op1": 6, "op2": 0, "op3": 294}
    (note,) = (each for each in result.diagnostics if each.slug == "steps-spread")
    assert note.message.endswith("split over them by number of workgroups")


def test_what_was_seen_in_kernels_in_json_and_csv(tmp_path: Path) -> None:
    made = stepped()
    result = measured(tmp_path, ("k0", 0, 2, 150), ("k0", 0, 3, 50))
    value = printed(shown_attribution(result))
    validator("attribution").validate(value)
    assert value["steps"] == [
        {"kernel": "k0", "line": 2, "metrics": {"samples": 150}},
        {"kernel": "k0", "line": 3, "metrics": {"samples": 50}},
    ]
    table = list(csv.DictReader(io.StringIO(attribution_csv(made, result))))
    costs = {row["op"]: row for row in table if row["metric"] == "cpu_ns" and row["op"]}
    assert (int(costs["op1"]["likely_low"]), int(costs["op1"]["likely_high"])) == (
        result.ops[0].metrics["cpu_ns"].likely_low,
        result.ops[0].metrics["cpu_ns"].likely_high,
    )
    assert costs["op3"]["likely_low"] == ""


def test_kernels_without_steps_go_by_the_model(tmp_path: Path) -> None:
    """Of a compilation without our texts: samples tell the kernel, and nothing of what is in it."""
    made = stepped()
    made = structs.replace(made, kernels=tuple(structs.replace(k, steps=()) for k in made.kernels))
    run = run_of(tmp_path / "r.parquet", rows(("k0", 0, 2, 400), ("k0", 2, 2, 30)))
    result = attributed(run, rule=None, map_=made)
    assert shares(result) == {"op1": 602, "op2": 200, "op3": 50}
    assert shares(result, "samples") == {"op1": 300, "op2": 100, "op3": 30}
    assert UnattributedReason.KERNEL_OVERHEAD not in unattributed(result)
    assert "split-by-model" in slugs(result)


def test_a_few_samples_of_nobody_say_nothing_of_the_time(tmp_path: Path) -> None:
    """They are nobody's themselves; the time goes by the model."""
    result = measured(tmp_path, ("k0", 0, 1, 3))
    assert unattributed(result, "samples")[UnattributedReason.KERNEL_OVERHEAD] == 3
    assert shares(result) == {"op1": 602, "op2": 200, "op3": 50}


@pytest.mark.parametrize("rule", [None, Rule.ROOT])
def test_without_any_weight_members_have_the_same(rule: Rule | None, tmp_path: Path) -> None:
    made = example()
    rootless = structs.replace(
        made.sites[0], members=tuple(structs.replace(m, root=False, operations=0) for m in made.sites[0].members)
    )
    made = structs.replace(made, sites=(rootless, *made.sites[1:]))
    table = csv_of(tmp_path / "r.csv", "kernel,site,cpu_ns\nk0,site0,100\n")
    assert shares(attributed(table, rule=rule, map_=made)) == {"op1": 50, "op2": 50, "op3": 0}


@pytest.mark.long
@settings(
    max_examples=8,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.differing_executors,
        HealthCheck.too_slow,
    ],
)
@given(data=st.data())
def test_samples_anywhere_in_real_code_balance(built: Built, tmp_path: Path, data: st.DataObject) -> None:
    """At any instruction, beside the code, with any line: what is in a loop is of the ops of this loop."""
    bundle = load(built("jax_gpt2_4l"))
    kernel = next(kernel for kernel in bundle.graph.kernels if "softmax" in kernel.name)
    (image,) = read_images(bundle.module_path)
    code = instructions_of(image, image.function_by_name[kernel.name])
    own = st.sampled_from([(each.address, each.line) for each in code])
    odd = st.tuples(st.integers(0, 1 << 40), st.integers(0, 500))
    found = data.draw(st.lists(st.one_of(own, own, odd), min_size=1, max_size=60))
    run = addresses_run(bundle, kernel.name, [a for a, _ in found], [b for _, b in found], tmp_path / "r.parquet")
    request = Request(bundle.graph, bundle.map_sha256, [read_run(run)], Rule.MEASURED, images=lambda: (image,))
    result = attribute(request)
    (samples,) = (metric for metric in result.metrics if metric.name == "samples")
    assert samples.measured == len(found)
    ops_in = ops_by_loop(kernel, loops_of(code))
    seen = Counter(ops_in(address) for address, _ in found)
    got = shares(result, "samples")
    for ops, count in seen.items():
        assert not ops or sum(got[op] for op in ops) >= count
    assert sum(value["samples"] for value in result.kernels[0].addresses.values()) == len(found)


def test_steps_of_another_kernel_than_the_sites_are_unmatched(tmp_path: Path) -> None:
    rows_of_kernels = "step,k1,site0,2,,5\nstep,nobody,site0,2,,7\nstep,k0,site0,2,,11\n"
    table = csv_of(
        tmp_path / "r.csv", f"kind,kernel,site,step,cpu_ns,samples\ndispatch,k0,site0,,100,\n{rows_of_kernels}"
    )
    result = attributed(table, rule=Rule.MEASURED, map_=stepped())
    assert unattributed(result, "samples") == {UnattributedReason.UNMATCHED: 12}
    assert shares(result, "samples") == {"op1": 11, "op2": 0, "op3": 0}
