"""The judgement of recordings on a busy machine, on made-up shares."""

from __future__ import annotations

import pytest

from tests.oracle.busy import (
    BESIDE,
    BUSY,
    MOST_APART,
    MOST_CHANGE,
    WITH,
    WITHOUT,
    Group,
    Shares,
    equal_ops,
    is_missed,
    judge,
)

pytestmark = pytest.mark.quick

GROUPS: dict[Group, list[str]] = {("g", str(number)): [f"a{number}", f"b{number}"] for number in range(7)}


def shares(**other: float) -> Shares:
    """The n-th group costs less than the one before, its ops the same; but for what is said."""
    usual = {op: 0.1 - 0.01 * number for number, (_, ops) in enumerate(GROUPS.items()) for op in ops}
    return {**usual, **other}


def test_recordings_that_differ_little_are_within_all_targets() -> None:
    judged = judge(GROUPS, [shares()] * 3, [shares(a0=0.104), shares(b2=0.082)])
    assert (judged.same_leaders, judged.same_order, judged.same_places, judged.recordings) == (2, 2, 2, 2)
    assert judged.apart_quiet == 0
    assert judged.apart_busy == pytest.approx(0.004 / 0.102)
    assert judged.change == pytest.approx(0.04)
    assert not judged.missed


@pytest.mark.parametrize(
    ("busy", "of"),
    [
        (shares(a4=0.056, b4=0.056, a5=0.0565, b5=0.0565), "leaders"),
        (shares(a0=0.0945, b0=0.0945, a1=0.095, b1=0.095), "order"),
        (shares(a0=0.096 * (1 + MOST_APART), b0=0.1), "nothing"),
        (shares(a0=0.1 * (1 + MOST_APART), b0=0.094), "apart"),
        (shares(a6=0.04 * (1.01 + MOST_CHANGE)), "change"),
    ],
)
def test_each_target_can_be_missed(busy: Shares, of: str) -> None:
    judged = judge(GROUPS, [shares()] * 2, [busy])
    assert judged.missed == (of != "nothing")
    assert (judged.same_leaders == 1) == (of != "leaders")
    assert (judged.same_order == 1) == (of != "order")
    assert (judged.apart_busy > MOST_APART) == (of == "apart")
    assert (judged.change > MOST_CHANGE) == (of == "change")


def test_only_groups_that_change_places_among_quiet_recordings_may() -> None:
    changed = shares(a0=0.0945, b0=0.0945, a1=0.095, b1=0.095)
    judged = judge(GROUPS, [shares(), changed, shares()], [shares(), changed])
    assert (judged.same_leaders, judged.same_order, judged.same_places) == (2, 2, 1)
    assert not judged.missed
    # The third, which no quiet recording has before the first, may not.
    third = judge(GROUPS, [shares(), changed, shares()], [shares(a0=0.0795, b0=0.0795), shares()])
    assert (third.same_leaders, third.same_order) == (2, 1)


def test_which_groups_lead_is_strict() -> None:
    """Even where quiet recordings do not agree on it."""
    changed = shares(a4=0.0545, b4=0.0545, a5=0.055, b5=0.055)
    judged = judge(GROUPS, [shares(), changed, shares()], [changed, shares()])
    assert (judged.same_leaders, judged.same_order) == (1, 2)
    assert judged.missed


def test_what_leads_is_told_by_the_median_of_quiet_recordings() -> None:
    quiet = [shares(), shares(a3=0.9), shares(a3=0.01)]
    assert judge(GROUPS, quiet, [shares()] * 2).same_leaders == 2


def test_shares_are_laid_against_quiet_recordings_around() -> None:
    """A machine that drifts does so for all; what is off in a busy recording alone is seen."""
    quiet, drifted = shares(), shares(a6=0.05)
    assert judge(GROUPS, [quiet, quiet, drifted, drifted], [quiet, shares(a6=0.045), drifted]).change == pytest.approx(
        0
    )
    assert judge(GROUPS, [quiet, quiet, drifted], [drifted, drifted]).change == pytest.approx(0.25)


def test_quiet_recordings_that_differ_are_told_and_excuse_no_busy_one() -> None:
    quiet = [shares(), shares(a6=0.05), shares()]
    judged = judge(GROUPS, quiet, [shares(a6=0.045 * 1.2), shares(a6=0.045 * 1.24)])
    assert judged.change_quiet == pytest.approx(0.25)
    assert judged.change == pytest.approx(0.24)
    assert judged.missed
    assert not judge(GROUPS, quiet, [shares(a6=0.045), shares(a6=0.045)]).missed


def test_recordings_at_defaults_are_judged() -> None:
    others: list[dict[str, float]] = [{}, {"a6": 0.06}, {"a0": 0.12}]
    steady, changed, apart = (judge(GROUPS, [shares()] * 2, [shares(**other)]) for other in others)
    assert not is_missed({(BUSY, WITHOUT): steady})
    assert is_missed({(BUSY, WITHOUT): changed})
    assert is_missed({(BUSY, WITHOUT): apart, (BESIDE, WITHOUT): steady})
    assert not is_missed({(BUSY, WITHOUT): steady, (BESIDE, WITHOUT): changed, (BUSY, WITH): changed})


def test_equal_ops_are_told_by_name_scope_and_kernels() -> None:
    def op(number: int, name: str, scope: str, *sites: str) -> dict[str, object]:
        return {"id": f"op{number}", "name": name, "scope": scope.split("/"), "sites": list(sites)}

    sites = [{"id": f"site{number}", "kernel": f"k{number // 2}"} for number in range(4)]
    ops = [
        op(1, "dot", "h0/ffn", "site0"),
        op(2, "dot", "h1/ffn", "site1"),
        op(3, "dot", "h1/ffn", "site2"),
        op(4, "add", "h1/ffn", "site1"),
        op(5, "dot", "h1/attn", "site1"),
        op(6, "constant", "h1/ffn"),
        op(7, "add", "h1/ffn", "site1"),
        op(8, "add", "h0/ffn", "site0"),
    ]
    equal = [["op1", "op2"], ["op4", "op8"]]  # the others have none
    assert list(equal_ops({"ops": ops, "sites": sites}).values()) == equal
