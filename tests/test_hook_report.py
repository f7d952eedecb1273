"""The statistics that the hook's library makes itself, against `tracemap stats` over the same calls."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.hook import support
from tests.support import SAMPLES, check_cli
from tests.test_hook_host import HERE, compile_c
from tests.test_hook_stats import GOLD, calls_file
from tracemap.capture.counters.events import known_events
from tracemap.hook.compiling import FOLDER

Done = subprocess.CompletedProcess[str]


def run(command: Sequence[object], variables: dict[str, str]) -> Done:
    words = [str(word) for word in command]
    done = subprocess.run(
        words, env={**os.environ, **variables}, cwd=SAMPLES, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


# ---- figures


@pytest.fixture(scope="session", params=["plain", "address,undefined"])
def figures(made: Path, request: pytest.FixtureRequest) -> Path:
    support.need_compiler()
    units = ("event_names", "printing", "settings", "statistics", "system")
    own = [FOLDER / f"{unit}.c" for unit in units]
    sanitizers = [f"-fsanitize={request.param}", "-fno-sanitize-recover=all"] if request.param != "plain" else []
    program = made / f"figures-{request.param}"
    return compile_c(program, "-O2", *sanitizers, "-DTRACEMAP_HOOK_WITHOUT_PRELOAD", HERE / "figures.c", *own)


@pytest.mark.parametrize(("count", "buckets", "gamma"), [(3000, 16, 0.5), (500, 4, 1.0), (3, 5, 0.3), (1, 16, 0.5)])
def test_figures_are_those_of_irees_hook(count: int, buckets: int, gamma: float, figures: Path, tmp_path: Path) -> None:
    csv = calls_file(tmp_path / "calls.csv", count)
    printed = run([figures, csv, str(buckets), str(gamma)], {}).stdout
    assert printed == (GOLD / f"{count}-{buckets}.txt").read_text(encoding="utf-8")


def odd_calls(path: Path, dice: random.Random) -> Path:
    """Series of every size and spread: ties, constants, both signs, sums beyond what single precision holds."""
    scales = [10.0 ** dice.choice((-30, -3, 0, 1, 6, 19, 37)) for _ in range(dice.randrange(1, 5))]
    digits = [dice.choice((0, 1, 5)) for _ in scales]
    lines = [",".join(["thread,cpu,node,duration_us", *(f"e{place}" for place in range(1, len(scales)))])]
    for _ in range(dice.choice((1, 2, 7, 40, 1500))):
        values = [round(dice.gauss(0, 1), digit) * scale + 0 for scale, digit in zip(scales, digits, strict=True)]
        lines.append(",".join(["w", str(dice.choice((0, 1, 9, 65535))), "0", *(f"{value:g}" for value in values)]))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("seed", range(8))
def test_figures_of_odd_calls_are_those_of_stats(seed: int, figures: Path, tmp_path: Path) -> None:
    dice = random.Random(seed)
    csv = odd_calls(tmp_path / "calls.csv", dice)
    for buckets in ("1", "3", str(dice.choice((16, 100, 1024)))):
        gamma = dice.choice(("0.5", "1", "2.2"))
        printed = run([figures, csv, buckets, gamma], {}).stdout
        assert printed == check_cli("stats", csv, "--buckets", buckets, "--gamma", gamma)


def test_events_have_their_names_and_numbers(figures: Path) -> None:
    printed = run([figures], {}).stdout.splitlines()
    assert printed == [f"{event.name} {event.type} {event.config}" for event in known_events()]
