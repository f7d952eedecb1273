"""Every kind of error has a slug, a cause and a remedy, and docs/errors.md lists exactly these."""

from __future__ import annotations

import re

import pytest

from tests.documents import is_current
from tracemap.core.errors import TracemapError

pytestmark = pytest.mark.quick

KINDS = TracemapError.__subclasses__()
"""All kinds of error, in the order in which they are declared."""


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.slug)
def test_kind_is_documented(kind: type[TracemapError]) -> None:
    for attribute in ("slug", "remedy"):
        assert attribute in vars(kind), f"{kind.__name__} inherits its {attribute}"
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", kind.slug)
    assert re.fullmatch(r"[A-Za-z`].*\w\.", str(kind.__doc__)), f"the docstring of {kind.__name__} is not one sentence"
    assert re.fullmatch(r"[a-z`].*[\w)`]", kind.remedy), f"the remedy of {kind.__name__} is a sentence's end"
    assert kind.exit_code in (1, 2)


def test_slugs_are_unique() -> None:
    slugs = [kind.slug for kind in KINDS]
    assert len(slugs) == len(set(slugs))


def test_no_kind_hides_below_another() -> None:
    for kind in KINDS:
        assert not kind.__subclasses__(), f"what derives from {kind.__name__} is not listed"


def test_readme_lists_each_kind_and_nothing_else() -> None:
    assert is_current("errors"), "run python -m tests.documents"


def test_readme_lists_each_residual_reason() -> None:
    assert is_current("unattributed"), "run python -m tests.documents"
