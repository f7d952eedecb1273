"""The networks of the benchmark of real sizes, made small: every command, with the same checks."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.models.material import material
from benchmarks.models.program import Module
from benchmarks.models.sizes import TINY
from benchmarks.real_sizes import put_through
from tests.checks import check_map
from tests.support import check_cli, flow_of_plain_compile, json_cli


@pytest.mark.long
def test_who_reads_narrow_weights_pays_for_them(tmp_path: Path) -> None:
    """A product that converts its weights while it reads them reads them narrow, and the conversion reads nothing."""
    function = (module := Module("narrow")).function("main")
    rows = function.argument((3, 96))
    with function.scope("layer"):
        weights = function.converted(function.parameter("weights", (96, 160), "i8"), "f32")
        function.results = (function.contracted(rows, weights, (1, 0)),)
    model = tmp_path / "narrow.mlir"
    model.write_text(module.text, encoding="utf-8")
    check_cli("build", model, "-o", tmp_path / "narrow.tracemap")
    shown = json_cli("show", tmp_path / "narrow.tracemap")
    names = {op["id"]: op["name"] for op in shown["ops"]}
    (site,) = (site for site in shown["sites"] if len(site["members"]) > 1)
    costs = {
        names[each["op"]]: (each["evidence"], each["operations"], each["bytes_read"], each["bytes_written"])
        for each in site["members"]
    }
    assert costs == {
        "stablehlo.dot_general": ("located", 2 * 3 * 96 * 160, 4 * 3 * 96 + 96 * 160, 4 * 3 * 160),
        "stablehlo.convert": ("fused", 96 * 160, 0, 0),
    }


# `make sizes` has them all; these differ most: convolutions, and two functions with weights of eight bits.
@pytest.mark.long
@pytest.mark.parametrize("name", [pytest.param("resnet", marks=pytest.mark.long), "llama"])
def test_through_every_command(name: str, tmp_path: Path) -> None:
    made = material(TINY[name].module(), tmp_path)
    through = put_through(name, made, tmp_path, seconds=0.2)
    assert [called.name for called in through.functions] == list(made.expected)
    assert through.build.programs_mib > 0
    check_map(json_cli("show", tmp_path / f"{made.module.name}.tracemap"), flow_of_plain_compile(made.model))
