"""The page of a comparison as data: paired lines, sums of lines, groups of kernels; its bytes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from msgspec import structs

import tracemap
from tests.conftest import Built, Recorded
from tests.diffs import AFTER_TEXT, BEFORE_TEXT, REMARK, compared, page_of
from tests.support import SAMPLES, check_cli, page_data
from tracemap.compare.sides import Side
from tracemap.core.diagnostics import Diagnostic
from tracemap.core.errors import TargetExists
from tracemap.core.units import UNKNOWN, Text
from tracemap.map.bundle import load
from tracemap.options.reports import DiffOptions
from tracemap.reports.diff.render import render_diff_page
from tracemap.reports.diff.rows import GAP, MOST_COMPARED, DiffPage, DiffSetting, aligned, differences


@pytest.fixture(scope="module")
def page() -> DiffPage:
    """Of the small comparison."""
    made, one, two = compared()
    return page_of(structs.replace(made, remarks=(REMARK,)), one, two)


def test_lines_of_the_same_ops_stand_beside_each_other(page: DiffPage) -> None:
    model = page.sources[0]
    assert not model.same
    before, after = model.texts
    lines = BEFORE_TEXT.splitlines(), AFTER_TEXT.splitlines()
    rows = list(zip(before.rows, after.rows, strict=True))
    assert rows == [
        (lines[0][0], lines[1][0]),
        (lines[0][1], lines[1][1]),
        (None, lines[1][2]),
        (lines[0][2], lines[1][3]),
        (lines[0][3], lines[1][4]),
        (lines[0][4], None),
        (lines[0][5], lines[1][5]),
    ]
    net = page.sources[1]
    assert net.same
    assert [text.side for text in net.texts] == ["B"]


def test_every_line_has_one_row_whatever_is_matched() -> None:
    random = Random(5)
    for _ in range(200):
        one, two = ([random.choice("abcdefgh") for _ in range(random.randint(0, 30))] for _ in range(2))
        matched = [
            (random.randint(1, len(one)), random.randint(1, len(two)))
            for _ in range(random.randint(0, 20))
            if one and two
        ]
        rows = list(aligned(one, two, matched))
        assert [a for a, _ in rows if a != GAP] == list(range(1, len(one) + 1))
        assert [b for _, b in rows if b != GAP] == list(range(1, len(two) + 1))
        assert (GAP, GAP) not in rows
    same = [str(number) for number in range(500)]
    assert list(aligned(same, same, ())) == [(number, number) for number in range(1, 501)]


def test_lines_cost_what_their_ops_do_before_and_after(page: DiffPage) -> None:
    before, after = page.sources[0].texts
    assert before.uses[3].amounts == ((50_000_000, 75_000_000),)
    assert after.uses[4].amounts == before.uses[3].amounts
    assert after.uses[3].amounts == ((0, 40_000_000),)
    assert before.uses[5].amounts == ((10_000_000, 0),)
    (net,) = page.sources[1].texts
    assert net.uses[2].amounts == ((100_000_000, 150_000_000),)
    (whole,) = [metric.of.whole for metric in page.metrics]
    changes = [sum(use.amounts[0][1] - use.amounts[0][0] for use in text.uses.values()) for text in (before, after)]
    gone, new = page.metrics[0].of.gone.change, page.metrics[0].of.new.change
    assert changes[0] + new == changes[1] + gone == whole.change - page.metrics[0].of.unattributed.change


def test_ops_are_told_how_and_lead_to_their_lines(page: DiffPage) -> None:
    rows = {(op.before, op.after): op for op in page.ops}
    moved, new, gone = rows["op3", "op4"], rows["", "op2"], rows["op4", ""]
    assert (moved.how, moved.edited, moved.line_before.anchor, moved.line_after.anchor) == (
        *("structure", True, "A0L4", "B0L5"),
    )
    assert (new.how, gone.how) == ("new", "gone")
    assert (moved.kernels_before, moved.kernels_after) == (("k_b",), ("k_d",))
    assert [(outcome.before, outcome.after, len(outcome.ops)) for outcome in page.outcomes] == [
        ("structural", "fused-into-indexing", 1)
    ]
    assert page.remarks[0].ops == (page.ops.index(rows["op2", "op3"]),)
    assert page.matched.startswith("80.0 % of the ops of both models are matched: 4 by structure.")


def test_regrouped_kernels_hang_together_by_their_ops(page: DiffPage) -> None:
    named = [([box.kernel for box in group.before], [box.kernel for box in group.after]) for group in page.groups]
    assert named == [(["k_a", "k_b"], ["k_a", "k_d"])]
    ids = [[page.ops[row].after for row in box.ops] for box in page.groups[0].after]
    assert ids == [["op1"], ["op3", "op4"]]
    assert page.groups[0].amounts == ((150_000_000, 175_000_000),)


def test_lines_that_differ_are_in_blocks() -> None:
    """All lines outside of the blocks are equal and in order; names of values and addresses do not count."""
    random = Random(2)
    for _ in range(200):
        one, two = ([random.choice("abcdefgh") for _ in range(random.randint(0, 30))] for _ in range(2))
        blocks = differences(one, two)
        assert blocks is not None
        kept = [
            [
                line
                for number, line in enumerate(text)
                if not any(block[at] <= number < block[at + 1] for block in blocks)
            ]
            for text, at in ((one, 0), (two, 2))
        ]
        assert kept[0] == kept[1]
    assert differences(["a"] * (MOST_COMPARED + 1), ["a"]) is None
    assert differences(["nop"] * 5000, [*["nop"] * 5000, "ret"]) is not None  # equal lines without end


def test_kernels_mark_what_an_edit_changed(built: Built, tmp_path: Path) -> None:
    model, edited = tmp_path / "edited.mlir", tmp_path / "edited.tracemap"
    text = (SAMPLES / "models/hand_mlp.mlir").read_text()
    model.write_text(text.replace("%z = arith.maximumf %s", "%t = math.tanh %s : f32\n    %z = arith.maximumf %t", 1))
    check_cli("build", model, "-o", edited)
    target = tmp_path / "page.html"
    check_cli("diff", built("hand_mlp"), edited, "--html", target)
    (kernel,) = page_data(target.read_text(encoding="utf-8"))["kernels"]
    before, after = kernel["before"], kernel["after"]
    added = [after["lines"][number] for *_, begin, end in kernel["lines_differ"] for number in range(begin, end)]
    assert any("math.tanh" in line for line in added)
    assert len(added) < len(after["lines"]) / 2
    assert 0 < len(kernel["code_differs"]) < len(after["code"]) / 2
    first = kernel["code_differs"][0]
    assert [words for *_, words in before["code"][: first[0]]] == [words for *_, words in after["code"][: first[2]]]


def test_the_overview_begins_with_settings_that_differ(page: DiffPage) -> None:
    setting = DiffSetting("build", "--iree-opt-level", "O1", "<b>O3")
    text = render_diff_page(structs.replace(page, settings=(setting,)))
    assert '<td class="mono">&lt;b&gt;O3</td>' in text
    assert text.index("What differs") < text.index("Significant changes")
    same = render_diff_page(
        structs.replace(page, settings=(), same_settings="No change: both sides are the same build.")
    )
    assert "No change: both sides are the same build." in same


def test_doubts_on_a_side_are_at_the_top() -> None:
    made, one, two = compared()
    assert page_of(made, one, two).notices == ()
    noisy, stopped = Diagnostic("noisy", "noisy machine: <b>"), Diagnostic("budget-spent", "stopped")

    def doubtful(side: Side, *found: Diagnostic) -> Side:
        return replace(side, attributions=tuple(replace(costs, diagnostics=found) for costs in side.attributions))

    page = page_of(made, doubtful(one, noisy), doubtful(two, noisy, stopped))
    assert page.notices == ("before and after: noisy machine: <b>", "after: stopped")
    text = render_diff_page(page)
    assert text.index("before and after: noisy machine: &lt;b&gt;") < text.index("<main")


def test_without_runs_there_is_no_metric(page: DiffPage) -> None:
    made, one, two = compared(measured=False)
    bare = page_of(made, one, two)
    assert (bare.metric, bare.metrics) == (-1, ())
    assert len(bare.groups) == len(page.groups)
    assert "Only the maps are compared" in bare.nothing_found


def test_the_same_comparison_gives_the_same_bytes(page: DiffPage) -> None:
    made, one, two = compared()
    again = page_of(structs.replace(made, remarks=(REMARK,)), one, two)
    assert render_diff_page(again) == render_diff_page(page)


def written(run: Path, kernels: Sequence[str], slowness: float, first_ns: int) -> Path:
    """A run of twenty calls of these kernels on a machine so many times as slow, of which the first costs so much."""
    random, rows = Random(run.name), ["kernel,invocation,duration_ns"]
    for call in range(20):
        for number, kernel in enumerate(kernels):
            cost = (first_ns if number == 0 else 10_000 * number) * slowness * random.uniform(0.99, 1.01)
            rows.append(f"{kernel},{call},{round(cost)}")
    run.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return run


@pytest.mark.long
def test_rows_have_the_ratios_of_findings(built: Built, tmp_path: Path) -> None:
    """The machine is slower for one run of each side, in another order: that is no part of any interval."""
    model, one, two = tmp_path / "edited.mlir", built("hand_mlp"), tmp_path / "edited.tracemap"
    model.write_text((SAMPLES / "models/hand_mlp.mlir").read_text().replace("maximumf", "minimumf", 1))
    check_cli("build", model, "-o", two)
    kernels = [site.kernel for site in load(one).graph.sites]
    before = [written(tmp_path / f"a{slow}.csv", kernels, slow, 40_000) for slow in (1, 1.5)]
    after = [written(tmp_path / f"b{slow}.csv", kernels, slow, 48_000) for slow in (1.5, 1)]
    page = tmp_path / "page.html"
    made = tracemap.diff(before, after, DiffOptions(map_a=one, map_b=two, html=page))
    ratios = {op[0]: op[14] for op in page_data(page.read_text(encoding="utf-8"))["ops"] if op[14]}
    assert made.findings
    for found in made.findings:
        assert ratios[found.before] == [found.ratio, found.ratio_low, found.ratio_high]
    assert len(ratios) > len(made.findings)
    assert all(high / low < 1.2 for _, low, high in ratios.values())
    assert ratios == {op.before: [*structs.astuple(op.ratio)] for op in made.ops if op.ratio}


@pytest.mark.long
def test_pages_of_real_runs_have_the_code_of_both_kernels(built: Built, recorded: Recorded, tmp_path: Path) -> None:
    runs = recorded("jax_mlp"), recorded("jax_mlp_train")
    asked = DiffOptions(map_a=built("jax_mlp"), map_b=built("jax_mlp_train"), html=tmp_path / "page.html")
    tracemap.diff(*runs, asked)
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "default-src &#39;none&#39;; style-src &#39;sha256-" in text
    kernels = page_data(text)["kernels"]
    both = [kernel for kernel in kernels if kernel["before"] and kernel["after"]]
    assert both
    for kernel in both:
        assert kernel["before"]["lines"] != kernel["after"]["lines"]
        for side in ("before", "after"):
            assert len(kernel[side]["code"]) == kernel[f"code_{side}"]["instructions"] > 10
    assert asked.html is not None
    asked.html.write_text("of another program")
    with pytest.raises(TargetExists, match="force=True"):
        tracemap.diff(*runs, asked)


HOSTILE = "\u202eeman\x00\x1b[31m\x9b\u2028\u2069\u061c\u200f\ud800\\u001b"
INERT = "⟨U+202E⟩eman\ufffd⟨U+001B⟩[31m⟨U+009B⟩⟨U+2028⟩⟨U+2069⟩⟨U+061C⟩⟨U+200F⟩\\ud800\\u001b"


def test_hostile_names_are_shown_by_name_in_the_data_of_the_script() -> None:
    made, one, two = compared()
    first, *others = made.ops
    made = structs.replace(made, ops=(structs.replace(first, name=HOSTILE, scope=(HOSTILE,)), *others))
    text = render_diff_page(page_of(made, one, two))
    assert INERT in json.dumps(page_data(text), ensure_ascii=False).replace("\\\\", "\\")
    assert not any(odd in json.dumps(page_data(text), ensure_ascii=False) for odd in "\u202e\u2028\u2069\x9b")
    assert r"\u0000" not in json.dumps(page_data(text))


@pytest.mark.parametrize(
    ("names", "runs", "title"),
    [
        (("a", "b"), (UNKNOWN, UNKNOWN), "a → b"),
        (("m", "m"), ("r1.csv", "r2.csv"), "m (r1.csv) → m (r2.csv)"),
        (("m", "m"), (UNKNOWN, UNKNOWN), "main/m → change/m"),
        (("m", "m"), ("run.csv", "run.csv"), "main/m → change/m"),
    ],
)
def test_the_title_names_what_is_compared(names: Sequence[str], runs: Sequence[Text], title: str) -> None:
    made, one, two = compared()
    made = structs.replace(
        made,
        before=structs.replace(made.before, bundle=f"{names[0]}.tracemap", run=runs[0]),
        after=structs.replace(made.after, bundle=f"{names[1]}.tracemap", run=runs[1]),
    )
    assert page_of(made, one, two, folders=("/x/main", "/x/change")).title == title
