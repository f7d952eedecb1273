"""Each kind of error has a slug, a cause and a remedy, and the README lists them all, and nothing else."""

from __future__ import annotations

import re

import pytest

from tests.support import ROOT
from tracemap.errors import TracemapError, error_kinds


@pytest.mark.parametrize("kind", error_kinds(), ids=lambda kind: kind.slug)
def test_kind_is_documented(kind: type[TracemapError]) -> None:
    for attribute in ("slug", "cause", "remedy"):
        assert attribute in vars(kind), f"{kind.__name__} inherits its {attribute}"
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", kind.slug)
    assert kind.__doc__
    assert kind.exit_code in (1, 2)


def test_slugs_are_unique() -> None:
    slugs = [kind.slug for kind in error_kinds()]
    assert len(slugs) == len(set(slugs))


def test_no_kind_hides_below_another() -> None:
    for kind in error_kinds():
        assert not kind.__subclasses__(), f"error_kinds() does not list what derives from {kind.__name__}"


def error_table() -> str:
    """The README's table of errors as it must stand there."""
    rows = [f"| `{kind.slug}` | {kind.cause} | {kind.remedy} |" for kind in error_kinds()]
    return "\n".join(["| error | cause | remedy |", "|---|---|---|", *rows])


def test_readme_lists_each_kind_and_nothing_else() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    section = re.search(r"^## Errors\n(.*?)^## ", readme, re.MULTILINE | re.DOTALL)
    assert section, "README.md has no section `## Errors`"
    table = "\n".join(line for line in section[1].splitlines() if line.startswith("|"))
    assert table == error_table()
