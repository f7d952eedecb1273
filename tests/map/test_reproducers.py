"""Programs that once broke the map, each with the truth of a plain compile."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.run_reproducers import PROGRAMS, differences, differences_inside
from tests.support import Json, long_where
from tracemap.hook.compiling import FOLDER, LIBRARY_NAME

NAMES = sorted(path.stem for path in PROGRAMS.glob("*.json"))
LONG = ("inside_14", "inside_222", "share_div_chain", "share_strided_slice_reads")
"""Of several whose kernels are looked into those that take the longest."""


@pytest.mark.long
@pytest.mark.parametrize("name", long_where(NAMES, lambda _, name: name in LONG))
def test_the_truth_about_a_program_holds(name: str) -> None:
    truth: Json = json.loads((PROGRAMS / f"{name}.json").read_text(encoding="utf-8"))
    if truth.get("inside") and not (shutil.which("valgrind") and (FOLDER / LIBRARY_NAME).is_file()):
        pytest.skip("needs valgrind, and a C compiler when tracemap was installed")
    assert list(differences(PROGRAMS / f"{name}.json")) == []


def test_a_truth_that_does_not_hold_is_noticed(tmp_path: Path) -> None:
    truth: Json = json.loads((PROGRAMS / "regions.json").read_text(encoding="utf-8"))
    truth |= {"kernels": [], "sites": 5}
    truth["ops"][0] |= {"kernels": ["main_dispatch_9"], "outcomes": ["removed"]}
    truth["ops"][1] |= {"line": 99}
    truth["runs"]["r"]["calls"]["12"] = 7
    (tmp_path / "regions.mlir").write_bytes((PROGRAMS / "regions.mlir").read_bytes())
    (tmp_path / "regions.json").write_text(json.dumps(truth), encoding="utf-8")
    found = "\n".join(differences(tmp_path / "regions.json"))
    assert "should be none" in found
    assert "sites, should be 5" in found
    assert "line 7 arith.addf: works in main_dispatch_0_elementwise_768_f32, should be in exactly main_disp" in found
    assert "line 7 arith.addf: dispatched, should be one of removed" in found
    assert "line 99 : no op" in found
    assert "run r: line 12: 1 calls per invocation, should be 7" in found


def test_shares_that_do_not_hold_are_noticed() -> None:
    ops = [{"line": line, "metrics": {"cpu_ns": {"attributed": cost}}} for line, cost in ((3, 75), (4, 20), (4, 5))]
    wanted = [(3, "cpu_ns", 0.7, 0.8), (4, "cpu_ns", 0.3, 0.4), (9, "cpu_ns", 0.1, 1.0)]
    found = list(differences_inside(wanted, {"ops": ops}))
    assert found == ["line 4: 25% of cpu_ns, should be 30% to 40%", "line 9: 0% of cpu_ns, should be 10% to 100%"]
