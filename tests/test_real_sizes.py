"""The networks of the benchmark of real sizes, so small that they take seconds: every command, with the same checks."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.models.material import material
from benchmarks.models.sizes import TINY
from benchmarks.real_sizes import put_through
from tests.checks import check_map
from tests.support import flow_of_plain_compile, json_cli


@pytest.mark.parametrize("name", TINY)
def test_through_every_command(name: str, tmp_path: Path) -> None:
    made = material(TINY[name].module(), tmp_path)
    through = put_through(name, made, tmp_path, seconds=0.2)
    assert [called.name for called in through.functions] == list(made.expected)
    assert through.build.programs_mib > 0
    check_map(json_cli("show", tmp_path / f"{made.module.name}.tracemap"), flow_of_plain_compile(made.model))
