"""The evaluation page has a part for each section, and the README has no measured figure that the page lacks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.evaluation import FULL, SECTIONS, SMALL, Measured, NotHere, Row, Section, machine, measured, page
from benchmarks.measure import Figure
from tests.documents import BLOCK, DOCS, README

pytestmark = pytest.mark.quick

GENERATED = re.compile(r"<!-- (\w[\w ]*) -->\n.*?<!-- /\1 -->", re.DOTALL)
FIGURE = re.compile(r"\d[\d.,]*(?: ?[%×]| (?:ms|µs|ns|s|seconds|MiB|MB|GB)\b)")


def hand_written_figures(document: str) -> list[str]:
    """The figures in prose, outside of code blocks, generated parts and code spans."""
    prose = re.sub(r"`[^`\n]*`", "", GENERATED.sub("", BLOCK.sub("", document)))
    return [re.sub(r"\s", " ", found) for found in FIGURE.findall(prose)]


def test_figures_of_the_readme_are_measured() -> None:
    evaluation = (DOCS / "evaluation.md").read_text(encoding="utf-8")
    assert [
        found for found in hand_written_figures(README.read_text(encoding="utf-8")) if found not in evaluation
    ] == []


def test_hand_written_figures_are_found() -> None:
    text = (
        "It costs 3.5 % and 12 ms.\n`--at 5 %`\n```text\n7 %\n```\n<!-- part -->\n9 ms\n<!-- /part -->\n"
        "IREE 3.11, 4 layers, 2 s of it, 126 × as long"
    )
    assert hand_written_figures(text) == ["3.5 %", "12 ms", "2 s", "126 ×"]


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.name)
def test_the_page_has_every_section(section: Section) -> None:
    text = (DOCS / "evaluation.md").read_text(encoding="utf-8")
    for command in section.commands:
        assert f"`{command.split(' --seeds')[0].split(' --no-')[0]}" in text
    assert text.count("\nRepeat it with `") == len(SECTIONS)


def test_a_section_that_fails_is_written_with_its_reason() -> None:
    def fails(_sizes: object, _folder: Path) -> list[Row]:
        raise SystemExit("iree-compile: status 1\nmore")

    def lacks(_sizes: object, _folder: Path) -> list[Row]:
        raise NotHere("this machine has no valgrind")

    missing = {section.name: measured(Section(section.name, ("make x",), lacks, True), SMALL) for section in SECTIONS}
    assert not any(result.is_failed for result in missing.values())
    failed = measured(Section("accuracy", ("make x {seeds}",), fails), SMALL)
    assert failed.is_failed
    text = page([*(missing | {"accuracy": failed}).values()], SMALL, machine(), small=True)
    assert "**Not measured here**: SystemExit: iree-compile: status 1." in text
    assert "Repeat it with `make x 4`" in text
    assert text.count("**Not measured here**: this machine has no valgrind.") == len(SECTIONS) - 1


def test_rows_say_whether_their_target_is_met() -> None:
    slow = Row.of(Figure("build / iree-compile", 1.2, "x", 1.1, (1.1, 1.2, 1.4)))
    assert slow.cells() == ("build / iree-compile", "1.2 ×", "1.15 to 1.3", "3", "≤ 1.1, missed")
    few_wrong = Row.share("right", 199_999, 200_000, 1.0)
    assert few_wrong.cells() == ("right", "99.99 %", "–", "200,000", "≥ 100, missed")
    assert Row.share("right", 10, 10, 0.95).is_met


def test_a_full_page_is_written_of_measured_rows() -> None:
    row = Row("error", (1.0, 2.0), "points", 2, "≤ 2")
    results = [Measured(section, section.commands, (row,), 60.0) for section in SECTIONS]
    text = page(results, FULL, machine(), small=False)
    assert text.count("| error | 1.5 points | 1.25 to 1.75 | 2 | ≤ 2, met |") == len(SECTIONS)
    assert "prove nothing" not in text
