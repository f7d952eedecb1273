"""Columns with numbers formatted for people are no metrics, and a note says so."""

from __future__ import annotations

from pathlib import Path

import pytest

import tracemap
from tests.conftest import Built
from tests.support import json_cli


@pytest.mark.parametrize(
    ("table", "named"),
    [
        ('kernel,duration_ns,cycles\nmlp,1,"1,234"\nmlp,2,"5,678"\n', ["'cycles'"]),
        ("kernel;duration_us;energy\nmlp;1;1,5\nmlp;2;2,5\n", ["'energy'"]),
        ("kernel,duration_ns,cycles,note\nmlp,1,1234,1.0.1\nmlp,2,5678,1.0.2\n", []),
    ],
)
def test_a_column_that_is_left_out_is_named(table: str, named: list[str], built: Built, tmp_path: Path) -> None:
    run = tmp_path / "run.csv"
    kernel = tracemap.load(built("hand_mlp")).graph.kernels[0].name
    run.write_text(table.replace("mlp", kernel), encoding="utf-8")
    result = json_cli("attribute", run, "--map", built("hand_mlp"))
    told = [each["message"] for each in result["diagnostics"] if each["slug"] == "column-left-out"]
    assert [message.split()[1] for message in told] == named
