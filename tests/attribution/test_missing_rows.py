"""Tables with fewer rows than measured: cut, duplicated or rounded ones."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Built, Recorded
from tests.support import check_cli
from tracemap.runs.runfile import header_path


def told(bundle: Path, run: Path, *options: str) -> dict[str, str]:
    """What is said of the rows of a run, and of a part of it."""
    found = json.loads(check_cli("attribute", run, "--map", bundle, "--format", "json", *options))
    return {
        each["slug"]: each["message"]
        for each in found["diagnostics"]
        if each["slug"].startswith("rows-") or each["slug"] == "window"
    }


@pytest.fixture
def table(recorded: Recorded, tmp_path: Path) -> Path:
    run = recorded("hand_mlp", ".csv")
    shutil.copy(header_path(run), header_path(tmp_path / "r.csv"))
    shutil.copy(run, tmp_path / "r.csv")
    return tmp_path / "r.csv"


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "slug", "said"),
    [
        (lambda lines: lines[:-1], "rows-missing", "rows are missing, and costs are too low"),
        (lambda lines: lines[::2], "rows-missing", "rows are missing, and costs are too low"),
        (lambda lines: lines + lines[1:], "rows-added", "rows are duplicated or come from another run"),
        (lambda lines: [lines[0], *reversed(lines[1:])], "", ""),
    ],
    ids=["cut", "thinned", "doubled", "reversed"],
)
def test_rows_that_are_not_those_that_were_recorded(
    change: Callable[[list[str]], list[str]], slug: str, said: str, table: Path, built: Built
) -> None:
    lines = table.read_text(encoding="utf-8").splitlines()
    table.write_text("\n".join(change(lines)) + "\n", encoding="utf-8")
    found = told(built("hand_mlp"), table)
    assert list(found) == [slug] * bool(slug)
    assert said in found.get(slug, "")


@pytest.mark.parametrize(("value", "said"), [("1e-7", "100.0 %"), ("2.4e-6", "16.7 %"), ("0.3125", ""), ("7e9", "")])
def test_fractions_that_are_too_small_are_told_of(value: str, said: str, table: Path, built: Built) -> None:
    lines = table.read_text(encoding="utf-8").splitlines()
    table.write_text("\n".join([f"{lines[0]},joules", *(f"{line},{value}" for line in lines[1:])]), encoding="utf-8")
    found = json.loads(check_cli("attribute", table, "--map", built("hand_mlp"), "--format", "json"))
    rounded = [each["message"] for each in found["diagnostics"] if each["slug"] == "values-rounded"]
    assert len(rounded) == bool(said)
    assert all(said in each and "joules" in each for each in rounded)


def test_a_part_of_a_run_has_its_own_rows(table: Path, built: Built) -> None:
    assert list(told(built("hand_mlp"), table, "--from", "0", "--to", "1e-6")) == ["window"]
