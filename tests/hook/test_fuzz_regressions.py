"""Inputs that once broke the hook's C code, under sanitizers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.hook import fuzz, support
from tests.hook.test_host import compile_c


@pytest.mark.few(2)
@pytest.mark.parametrize("harness", fuzz.HARNESSES)
def test_cases_of_the_past_end_well(harness: str, made: Path) -> None:
    support.need_compiler()
    cases = fuzz.cases_of(harness)
    sanitized = support.sanitized_hook(made, "address,undefined")
    sources = (fuzz.FOLDER / f"{harness}.c", fuzz.FOLDER / "replay.c")
    program = compile_c(made / f"fuzz-{harness}", *sources, *sanitized)
    done = subprocess.run([program, *cases], capture_output=True, text=True, errors="replace", timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stderr.count("\ncase ") + done.stderr.startswith("case ") == len(cases) > 0
