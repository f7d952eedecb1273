"""The page of a comparison in a real Chromium: findings, both sources, regrouped kernels, both codes, hostile names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec import structs
from selenium.webdriver import Keys
from selenium.webdriver.common.by import By

from tests.browser.conftest import Open, settle
from tests.browser.test_reports_browser import EVIL, find, first_cells, go, ids, press, texts, view
from tests.builders import MODEL, graph, op, site
from tests.conftest import Built, Recorded
from tests.diffs import REMARK, compared, page_of, side, write_small_page
from tests.support import check_cli
from tracemap.compare.compare import compare, match_by_identity
from tracemap.compare.model import Finding
from tracemap.map.model import SourceFile
from tracemap.reports.diff.render import PageSide, build_diff_page
from tracemap.reports.page.source_tabs import KernelSources

FOUND = Finding("slower", "op3", "op4", "a.third", 5, "cpu_ns", 50_000, 75_000, 1.5, 1.4, 1.6)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the small comparison, with a finding and a remark."""
    made, one, two = compared()
    found = structs.replace(made, remarks=(REMARK,), findings=(FOUND,))
    return write_small_page(tmp_path_factory.mktemp("diffs") / "small.html", page_of(found, one, two))


@pytest.fixture(scope="module")
def real_diff(built: Built, recorded: Recorded, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of two models, one of which has what the other lacks."""
    target = tmp_path_factory.mktemp("diffs") / "real.html"
    runs = recorded("jax_mlp"), recorded("jax_mlp_train")
    maps = ("--map-a", built("jax_mlp"), "--map-b", built("jax_mlp_train"))
    check_cli("diff", *runs, *maps, "--html", target)
    return target


def test_findings_come_first_and_lead_to_their_line(open_page: Open, small: Path) -> None:
    browser = open_page(small)
    assert texts(browser, ".findings tbody tr")[0].startswith("slower op3 → op4 a.third line 5 1.50 1.40 – 1.60")
    assert len(browser.find_elements(By.CSS_SELECTOR, ".findings .interval svg.upward circle")) == 1
    assert "80.0 % of the ops" in find(browser, "#matched").text
    assert [text.split()[0] for text in texts(browser, "#changed-ops tr")] == ["op2", "op1", "op2", "op3", "op4"]
    find(browser, ".findings a").click()
    assert view(browser) == "F0"
    assert ids(browser, ".l.selected") == {"B0L5"}
    assert ids(browser, ".l.related") == {"A0L4"}
    assert "by structure, edited" in find(browser, "#inspector").text


@pytest.mark.long
def test_lines_show_what_changed_on_the_side_where_it_is(open_page: Open, small: Path) -> None:
    browser = open_page(small, "#F0")
    assert texts(browser, "#A0L3 .g")[0].split() == ["3", "50.0", "µs"]
    assert texts(browser, "#B0L4 .g")[0].split() == ["4", "75.0", "µs", "+25.0", "µs"]
    assert texts(browser, "#B0L3 .g")[0].split() == ["3", "+", "40.0", "µs", "+40.0", "µs"]
    assert texts(browser, "#A0L5 .g")[0].split()[1] == "−"
    tops = [find(browser, f"#{line}").rect["y"] for line in ("A0L3", "B0L4")]
    assert tops[0] == tops[1]
    press(browser, "n")
    assert ids(browser, ".l.selected") == {"B0L3"}
    find(browser, "#A0L5 code").click()
    assert find(browser, "#inspector h2").text == "model.mlir:5"
    assert "matched no: gone" in find(browser, "#inspector").text


@pytest.mark.long
def test_tables_filter_and_the_address_says_so(open_page: Open, small: Path) -> None:
    browser = open_page(small, "#ops")
    assert first_cells(browser, "ops") == ["op2", "op1", "op2 → op3", "op3 → op4", "op4", "op0"]
    press(browser, "/", "new")
    assert first_cells(browser, "ops") == ["op2"]
    assert "ops.filter=new" in browser.current_url
    go(browser, "#overview")
    find(browser, ".changes a[href*='structural']").click()
    assert view(browser) == "ops"
    assert first_cells(browser, "ops") == ["op0"]
    press(browser, Keys.ESCAPE, "s")
    browser.switch_to.active_element.send_keys("model.mlir:4")
    settle(browser)
    assert texts(browser, "#search-found li")[:2] == ["line model.mlir:4 before", "line model.mlir:4 after"]


def test_regrouped_kernels_are_drawn_from_before_to_after(open_page: Open, small: Path) -> None:
    browser = open_page(small, "#regrouped")
    assert len(browser.find_elements(By.CSS_SELECTOR, ".regrouping .box")) == 4
    flows = browser.find_elements(By.CSS_SELECTOR, ".regrouping .flow:not(.stub)")
    assert len(flows) == 3
    label = find(browser, ".regrouping").get_attribute("aria-label")
    assert label == "Before: site0 (2 ops), site1 (1 op); after: site0 (1 op), site1 (2 ops)"
    browser.find_elements(By.CSS_SELECTOR, ".regrouping a.op")[0].click()
    assert view(browser) == "F0"
    assert find(browser, "#inspector h2").text == "op1"
    find(browser, "#inspector a[href='#group1']").click()
    assert view(browser) == "regrouped"


@pytest.mark.long
def test_the_code_of_both_kernels_stands_side_by_side(open_page: Open, real_diff: Path) -> None:
    browser = open_page(real_diff, "#kernels")
    options = texts(browser, "#kernel option")
    both = next(number for number, text in enumerate(options) if "new" not in text and "gone" not in text)
    go(browser, f"#kernel{both}")
    before, after = (texts(browser, f"#kernel-{name} .kr code") for name in "AB")
    assert "func.func" in before[0]
    assert "func.func" in after[0]
    assert before != after
    for shown in ("ir", "machine"):
        find(browser, f"[data-code={shown}]").click()
        settle(browser)
        assert re.match(r"[1-9]\d* differences? next difference", find(browser, "#kernel-differences").text)
        marks = [texts(browser, f"#kernel-{name} .kr.differs .m") for name in "AB"]
        assert {mark for side in marks for mark in side} <= {"−", "+"}
        assert any(marks)
        box = find(browser, "#kernel-B").rect
        tops = [row.rect["y"] for row in browser.find_elements(By.CSS_SELECTOR, "#kernel-B .kr.differs")]
        assert not tops or box["y"] <= tops[0] < box["y"] + box["height"]  # in view
        find(browser, "#kernel-differences button").click()
    find(browser, "[data-code=machine]").click()
    assert all(texts(browser, f"#kernel-{name} .kr code")[0] for name in "AB")
    assert "instructions " in find(browser, "#kernel-figures").text
    find(browser, "#kernel-ops button").click()
    assert browser.find_elements(By.CSS_SELECTOR, "#kernels .kr.related")


@pytest.mark.long
def test_hostile_names_are_inert(open_page: Open, tmp_path: Path) -> None:
    ops = (op(0, 1, name=EVIL, scope=(EVIL,), frames=[(EVIL, 1)], function=EVIL, reason=EVIL), op(1, 2, name=EVIL))
    sources = (MODEL, SourceFile(EVIL, "x", "python"))
    maps = [graph(ops, (site(0, *members, kernel=EVIL),), sources=sources, name=EVIL) for members in ([0], [0, 1])]
    one, two = (side(EVIL, of, {EVIL: {"site0": 3}}) for of in maps)
    made = compare(one, two, match_by_identity(one, two), same_model=True, threshold=3.0)
    evil = structs.replace(REMARK, kernel=EVIL, pass_name=EVIL, text=EVIL, ops=(ops[0].id,))
    kernels = KernelSources(lambda _: EVIL, tuple)
    sides = [PageSide(each, lambda _: f'{EVIL}\n"{EVIL}"', kernels) for each in (one, two)]
    target = tmp_path / "evil.html"
    write_small_page(target, build_diff_page(structs.replace(made, remarks=(evil,)), *sides))
    browser = open_page(target)
    for anchor in ("#ops", "#scopes", "#remarks", "#regrouped", "#F0", "#B0L1", "#B1L1", "#op0", "#" + EVIL):
        go(browser, anchor)
    assert EVIL in find(browser, "#inspector").text
    assert browser.find_elements(By.TAG_NAME, "img") == []
    assert "owned" not in browser.title.split(" – ")[1]
    press(browser, "s")
    browser.switch_to.active_element.send_keys("<")
    settle(browser)
    assert texts(browser, "#search-found li")
    assert browser.find_elements(By.TAG_NAME, "img") == []
