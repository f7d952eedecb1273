"""The hook's C under libFuzzer: ELF images in memory, the environment, what is written of programs, records read back.

Each `.c` beside this file but `replay.c` is a harness that is linked to the hook's own sources. `cases/` keeps what to
begin with and the inputs on which something was wrong once; `tests/hook/test_fuzz_regressions.py` replays them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent
HARNESSES: Final = ("images", "settings", "process", "report", "tables")


def cases_of(harness: str) -> list[Path]:
    """The inputs that are kept."""
    return sorted((FOLDER / "cases" / harness).iterdir())
