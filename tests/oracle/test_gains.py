"""The oracles of overhead, gains and advice: their programs are valid, they can fail, and they run."""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from iree.compiler import ir

from tests.oracle import advice, overhead, what_if
from tests.oracle.altered import alterations, swaps
from tests.oracle.looped import programs, scan
from tests.oracle.planted import clean, planted
from tests.oracle.stock import DEVICES, Program, Timed, _union_ns, compiled, kernels_in_turns
from tests.support import SAMPLES, Corpus, Json


@functools.cache
def context() -> ir.Context:
    return ir.Context()


def every_program() -> dict[str, Program]:
    found = [program for looped in programs() for program in (looped.rolled, looped.unrolled)]
    found += [program for one in alterations() for program in (one.before, one.after)]
    found += [program for case in planted() for program in (case.program, case.remedy)]
    return {program.name: program for program in (*found, *clean())}


@pytest.mark.quick
def test_all_programs_are_valid_and_named_once() -> None:
    by_text: dict[str, Program] = {}
    for name, program in every_program().items():
        assert ir.Module.parse(program.text, context()).operation.verify(), name
        by_text.setdefault(program.text, program)
    for name, program in every_program().items():
        assert by_text[program.text].inputs == program.inputs, name


@pytest.mark.quick
def test_loops_are_at_the_lines_that_are_asked_for() -> None:
    for looped in programs():
        lines = looped.rolled.text.splitlines()
        assert all("stablehlo.while" in lines[line - 1] or "stablehlo.case" in lines[line - 1] for line in looped.lines)
        left = sum("stablehlo.while(" in line for line in looped.unrolled.text.splitlines())
        assert left == (1 if looped.kept or "inner" in looped.name else 0), looped.name


@pytest.mark.quick
def test_an_alteration_changes_one_line_that_computes() -> None:
    for one in alterations():
        assert "stablehlo." in one.before.text.splitlines()[one.line - 1]
        assert one.before.text != one.after.text


@pytest.mark.quick
def test_each_cause_has_three_programs_and_the_clean_are_ten() -> None:
    assert set(Counter(case.rule for case in planted()).values()) == {3}
    assert len(list(clean())) == 10


@pytest.mark.quick
def test_overlapping_calls_count_once() -> None:
    calls = [(0, 10), (5, 20), (30, 40), (32, 35)]
    assert _union_ns([{"start_host_time_ns": start, "end_host_time_ns": end} for start, end in calls]) == 30


# ---- they can fail


def removal(booked: float, removed: float = 100.0) -> overhead.Removal:
    return overhead.Removal("a", "1 worker", booked, 0, removed, removed, removed, 0, 0)


@pytest.mark.quick
def test_overhead_must_be_what_the_twin_lacks() -> None:
    assert removal(110).is_right
    assert not removal(120).is_right
    assert not removal(0).is_right
    assert "1 of 2" in overhead.removal_table([removal(110), removal(0)])


def pair(predicted: float, true: float, *, half: float = 1.0) -> what_if.Pair:
    interval = (predicted - half, predicted + half)
    return what_if.Pair("a", "1 worker", 0.5, predicted, *interval, true, true - 0.1, true + 0.1)


@pytest.mark.quick
def test_each_promise_of_what_if_can_be_missed() -> None:
    good = [pair(float(number), number + 0.5) for number in range(-20, 20)]
    assert what_if.summary(good).is_right
    assert not what_if.summary([pair(one.predicted, one.true + 2) for one in good]).is_right
    assert not what_if.summary([replace(one, low=one.predicted, high=one.predicted) for one in good]).is_right
    assert what_if.summary([pair(-one.predicted, one.true, half=60) for one in good]).correlation < 0
    unsure = replace(good[0], true_low=-50, true_high=50)
    assert what_if.summary([*good, unsure]).unsure == 1


def advised(rule: str, low: float, high: float) -> Json:
    gains = {"gain_ns": (low + high) / 2, "low_ns": low, "high_ns": high}
    return {"rule": rule, "text": "", "command": "", "ops": [], **gains}


@pytest.mark.quick
def test_advice_must_name_the_cause_first_and_keep_its_promise() -> None:
    case = next(planted())
    right = advice.Judged(case, (advised(case.rule, 90, 120),), 1000, 100, 95, 105)
    wrong = replace(right, advice=(advised("imbalance", 90, 120), *right.advice))
    broken = replace(right, advice=(advised(case.rule, 10, 20),))
    assert advice.is_right([right] * 10, [("clean", ())])
    assert advice.is_right([*[right] * 9, wrong], [])
    assert not advice.is_right([*[right] * 8, wrong, wrong], [])
    assert not advice.is_right([*[right] * 7, *[broken] * 3], [])
    assert not advice.is_right([right], [("clean", (advised("spilling", 1, 2),))])
    assert not replace(right, gain_ns=10, low_ns=9).is_planted


# ---- they run


@pytest.mark.long
def test_a_loop_and_its_twin_are_measured(tmp_path: Path) -> None:
    found = overhead.removal(scan(10), "local-sync", tmp_path, turns=2)
    assert found.booked_ns > 0
    assert found.removed_ns > 0


@pytest.mark.long
def test_samples_are_explained(tmp_path: Path) -> None:
    rows = list(overhead.explained(Corpus(SAMPLES), tmp_path, only=["hand_mlp"]))
    assert len(rows) == 2 * 2 * len(DEVICES)
    assert all(0 <= row.part <= 1 for row in rows)


@pytest.mark.long
def test_a_removed_kernel_is_predicted(tmp_path: Path) -> None:
    alteration = next(one for one in alterations() if one.name == "chain: c removed")
    found = what_if.pair(alteration, "local-sync", tmp_path, turns=3)
    assert found.true < -30
    assert found.predicted < -30


@pytest.mark.long
def test_a_kernel_with_other_tiles_is_predicted(tmp_path: Path) -> None:
    found = what_if.pair(list(swaps())[1], "local-sync", tmp_path, turns=3)
    assert found.factor > 1
    assert found.error < 10


@pytest.mark.long
def test_a_barrier_is_named(tmp_path: Path) -> None:
    case = next(case for case in planted() if case.rule == "missed-fusion")
    found = advice.judge(case, tmp_path, turns=3)
    assert found.is_planted
    assert found.is_named


@pytest.mark.long
def test_calls_of_a_kernel_are_counted(tmp_path: Path) -> None:
    program = scan(10).rolled
    timed = Timed(compiled(program, tmp_path), program, DEVICES["1 worker"])
    kernels = kernels_in_turns({"a": timed}, 1, tmp_path)["a"]
    assert set(kernels.calls.values()) == {10}
    assert kernels.wall > 0
