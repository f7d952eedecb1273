"""The check of wording finds planted faults, with file and line, and passes clean texts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests import words
from tests.words import Finding, findings_of_file, findings_of_project, sentences_of_document

pytestmark = pytest.mark.quick


def found(file: str, source: str) -> list[tuple[int, str]]:
    """Lines and shortened reasons of the findings in a file."""
    return [(finding.line, _short(finding)) for finding in sorted(findings_of_file(file, source))]


def _short(finding: Finding) -> str:
    said = re.search("“(.*?)”", finding.reason)
    return said[1].split(",")[0] if said else finding.reason.partition(" ")[0]


PLANTED = [
    ("The dearest ops come first.", "most expensive"),
    ("It is near what is attainable.", "% of roofline"),
    ("Two ops are told apart by shape.", "distinguished"),
    ("tell the calls of a kernel apart", "distinguished"),
    ("Calls beyond their fences count.", "outlier threshold"),
    ("The run was disturbed.", "outliers (preemption"),
    ("It is residual cost.", "unattributed"),
    ("A dispatch with three members.", "op in the dispatch"),
    ("Ops with another fate.", "outcome"),
    ("Its sites ran twice.", "dispatch site"),
    ("The table stands behind it.", "after"),
    ("The file lies beside the run.", "next to"),
    ("An op's share is open by 5 %.", "uncertain by N %"),
    ("This is what it went for.", "where the time goes"),
    ("This map has no lost ops.", "an op whose location is lost"),
    ("This is a run of another\nmodule.", "recorded from a different build"),
    ("Repeat it so many times.", "a number"),
    ("This op does work in op3.", "runs in"),
    ("No op is called so.", "named X"),
    ("Each call of the function counts.", "invocation of a function"),
    ("Each invocation of a kernel counts.", "call of a kernel"),
    ("A fleet of hosts.", "store"),
    ("The steps of a kernel.", "line of kernel IR"),
    ("the number of the op", "index"),
]
"""A text for each term, and the beginning of what to say instead."""


@pytest.mark.parametrize(("text", "instead"), PLANTED)
def test_every_term_is_found(text: str, instead: str) -> None:
    expected = {instead}
    assert {reason for _, reason in found("docs/x.md", text)} == expected
    assert {reason for _, reason in found("x.py", f"# {text.replace(chr(10), chr(10) + '# ')}\n")} == expected
    assert {reason for _, reason in found("x.py", f"f({text!r}, {{}})\n")} == expected
    assert {reason for _, reason in found("x.js", f"show({text!r});\n")} == expected
    assert {reason for _, reason in found("x.c", f"/* {text} */\n")} == expected
    assert {reason for _, reason in found("x.html.j2", f"<p>{text}</p>\n")} == expected


def test_each_term_has_a_planted_fault() -> None:
    for term in words.TERMS:
        assert any(term.pattern.search(text) for text, _ in PLANTED), term


@pytest.mark.parametrize(
    "text",
    [
        "The key `residual` and ``a `fence` there`` are code.",
        "A dispatch site launches a kernel; a call\nsite is in `site-packages` or site-packages.",
        "The process leaves nothing behind. Measured before the run.",
        "The number of the ops, and the number of a call's events.",
        "Files never change, so many machines may add. It reads a number of an input.",
        "Remember the nightly job, the steps of the recipe and the open file.",
        "A memory fence orders loads; hal.fence is a type.",
        "Pass --by site or --keep-disturbed to store sites.",
        "Export as (residual) host.",
    ],
)
def test_clean_texts_pass(text: str) -> None:
    assert found("docs/x.md", text) == []
    assert found("tracemap/x.py", f'"""{text}"""\n') == []


@pytest.mark.parametrize("opening", ["What", "Of", "By", "Whose", "Where what", "How much"])
def test_openings_of_docstrings_are_found(opening: str) -> None:
    assert found("tracemap/x.py", f'x = 1\n"""{opening} it is."""\n') == [(2, "begin")]
    assert found("tracemap/x.py", f'x = 1\n"""Say {opening} it is."""\n# {opening} it is\n') == []
    assert found("tracemap/x.py", 'x = 1\n"""Offset in bytes. Where a run begins. Bytes."""\n') == []


def test_exemptions_hold_where_they_apply() -> None:
    """Names of arguments, and terms of a field in the files of that field."""
    source = '"""Split.\n\n    Args:\n        members: their fates.\n        site: its dispatch.\n    """\n'
    assert found("tracemap/x.py", source) == [(4, "outcome")]
    assert found("tracemap/store/x.py", "# clipped residuals\n") == []
    assert found("tracemap/capture/x.py", "# clipped residuals\n") == [(1, "unattributed")]
    assert found("tracemap/x.py", "dearest = dearest_ops = 1\n") == [(1, "most expensive")]


PYTHON = '''"""Readable modules.

They have no fence.
"""

import re as fence_of


class DearestOps:
    """What is slow."""

    names: list[str]
    """Of ops their names."""

    def rank(self, behind: int, residual_ns: int) -> str:
        """Return one sentence."""
        self.nightlies = 3  # a comment on
        # two lines is no fate
        return f"the {behind} members of it" + "fate" + "SELECT fate FROM ops" + f"{re.search('so many', '')}"


def opening() -> None:
    """What it does."""
'''


def test_faults_of_python_are_found_at_their_lines() -> None:
    assert found("tracemap/plain.py", PYTHON) == [
        (3, "outlier threshold"),
        (6, "outlier threshold"),
        (9, "most expensive"),
        (10, "begin"),
        (13, "begin"),
        (15, "after"),
        (17, "store"),
        (18, "outcome"),
        (19, "op in the dispatch"),
        (23, "begin"),
    ]


def test_name_of_a_module_is_checked() -> None:
    assert found("tracemap/store/besides.py", '"""Plain."""\n') == [(1, "next to")]


def test_comments_and_messages_of_scripts_are_found_at_their_lines() -> None:
    source = (
        "// plain\n/* two\n   lines beside it */\nconst key = 'fate';\n"
        'show(`${count(a)} members in all`, "a // fate");\n'
    )
    assert found("tracemap/page/x.js", source) == [(3, "next to"), (5, "op in the dispatch"), (5, "outcome")]


def test_shown_parts_of_templates_are_found_at_their_lines() -> None:
    source = (
        '<section class="fate"\n  title="the fate of ops">\n{# a fence #}{% if fence %}\n'
        "<h2>Dearest {{ fence }}</h2>\n<script>\nfence();\n</script>\n<p>members</p>\n"
    )
    assert found("tracemap/page/x.html.j2", source) == [
        (1, "outcome"),
        (3, "outlier threshold"),
        (4, "most expensive"),
        (8, "op in the dispatch"),
    ]


def test_sentences_of_documents() -> None:
    source = (
        "# A heading. Not a sentence\n\n"
        "First `tracemap diff A B` sentence,\nsee p. 177, e.g. there. (Second one!) Third\n"
        "\n- item one. Item two: *x*.\n1. item three\n\n| a table. | B |\n\n```\ncode. Code.\n```\n"
        "<!-- made -->\nGenerated. Text.\n<!-- /made -->\n[A link](where.md#it)."
    )
    assert sentences_of_document(source) == [
        (3, "First __ sentence, see p. 177, e.g. there."),
        (4, "(Second one!)"),
        (4, "Third"),
        (6, "item one."),
        (6, "Item two: *x*."),
        (7, "item three"),
        (17, "[A link]."),
    ]


def test_long_sentences_are_found() -> None:
    fits = "word " * 34 + "end.\n"
    short = "Short.\n"
    assert found("docs/x.md", f"{fits}\n{short}") == []
    assert found("docs/x.md", f"{short}\n{short}\nword {fits}") == [(5, "a")]
    assert found("docs/x.md", fits) == [(1, "sentences")]
    assert found("tracemap/x.py", f"# {fits}") == []


def test_comments_of_settings_are_found_at_their_lines() -> None:
    source = "test: ready # browser\n\tpytest ## run what stands behind it\nname = 'a#members' # each site\n"
    assert found("Makefile", source) == [(2, "after"), (3, "dispatch site")]
    assert found("a.toml", source) == found("a.sh", source) == found("Makefile", source)


def test_command_prints_findings_and_ends_with_status_1(tmp_path: Path) -> None:
    def run(*arguments: str) -> Result:
        return CliRunner().invoke(words.main, ["--root", str(tmp_path), *arguments])

    (tmp_path / "docs").mkdir()
    (tmp_path / "tracemap").mkdir()
    (tmp_path / "docs" / "a.md").write_text("Plain words.\n", encoding="utf-8")
    (tmp_path / "tracemap" / "b.py").write_text("# plain words\n", encoding="utf-8")
    assert (run().exit_code, run().output) == (0, "")
    (tmp_path / "tracemap" / "b.py").write_text("\n# it lies behind that\n", encoding="utf-8")
    result = run()
    assert result.exit_code == 1
    assert "tracemap/b.py:2: say “after” in this comment: it lies behind that\n" in result.output
    assert "1 finding: tracemap 1" in result.output
    assert run("docs/").exit_code == 0


def test_the_documents_are_clean() -> None:
    assert findings_of_project(words.ROOT, ("docs/", "README.md", "CONTRIBUTING.md", "SECURITY.md", "samples/")) == []
