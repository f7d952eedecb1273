"""A program stopped at random moments while it is recorded: the stops are outliers and change no op.

The truth is the same recording without the stops: what they took of which dispatch is known from the clock. A stop that
falls between dispatches is in no row of one, and is counted nowhere.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pytest

from tests.checks import sum_of_run
from tests.conftest import Built
from tests.support import SAMPLES, Json, command_line, json_cli
from tracemap.core.diagnostics import NOISY, has_slug
from tracemap.runs.runfile import read_run, write_run

MODEL = "jax_gpt2_4l"
SERIAL = "--task_topology_max_group_count=1"
STOP_S, PAUSE_S = 0.05, (0.05, 0.15)
ATTEMPTS = 3
"""Of a recording that other programs disturb as well: what they take is in no truth. `tests.oracle.busy` is of them."""
Stop = tuple[int, int]
"""From when to when a program stood still, in nanoseconds of the host's monotonic clock."""


def recorded_with_stops(bundle: Path, run: Path) -> list[Stop]:
    flags = SAMPLES / "flags" / f"{MODEL}.flags"
    command = command_line("record", bundle, "--flagfile", flags, "--iterations", "400", "-o", run, "--", SERIAL)
    chance, stops = random.Random(11), []
    with subprocess.Popen(command, cwd=SAMPLES, stderr=subprocess.PIPE) as recorder:
        while recorder.poll() is None:
            time.sleep(chance.uniform(*PAUSE_S))
            for program in programs_under(recorder.pid):
                stops += stopped(program)
        assert recorder.stderr is not None
        assert recorder.returncode == 0, recorder.stderr.read()
    return stops


def programs_under(process: int) -> Iterator[int]:
    """The program that is measured, wherever it stands below a process."""
    try:
        if Path(f"/proc/{process}/comm").read_text().startswith("iree-benchmark"):
            yield process
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:  # it has just ended
        return
    for child in children:
        yield from programs_under(int(child))


def stopped(process: int) -> list[Stop]:
    """Stop a program and let it go on; nothing if it has ended."""
    try:
        os.kill(process, signal.SIGSTOP)
        began = time.monotonic_ns()
        time.sleep(STOP_S)
        ended = time.monotonic_ns()
        os.kill(process, signal.SIGCONT)
    except ProcessLookupError:
        return []
    return [(began, ended)]


# A program runs on for up to some milliseconds before a signal stops it: of the dispatches that began meanwhile, only
# the one that is under way when it may go on stood still.
_OVERLAPS = """
SELECT number, sum(ended - greatest(start_ns, began)) AS stood
FROM (SELECT *, row_number() OVER () AS number FROM read_parquet({run})) AS event,
     (SELECT unnest({began}::BIGINT[]) AS began, unnest({ended}::BIGINT[]) AS ended)
WHERE kind = 'dispatch' AND ended BETWEEN start_ns AND start_ns + duration_ns GROUP BY number
"""
_NO_NOISE = """
SELECT event.* EXCLUDE (number)
       REPLACE (cpu_ns - coalesce(stood, 0) AS cpu_ns, duration_ns - coalesce(stood, 0) AS duration_ns)
FROM (SELECT *, row_number() OVER () AS number FROM read_parquet({run})) AS event LEFT JOIN stood_still USING (number)
"""


def without_stops(run: Path, stops: list[Stop], target: Path) -> int:
    """Write the run as it would be without the stops; returns what they took of measured dispatches."""
    began, ended = zip(*stops, strict=True)
    with duckdb.connect() as connection:
        connection.execute("SET preserve_insertion_order = true")
        overlaps = _OVERLAPS.format(run=f"'{run}'", began=list(began), ended=list(ended))
        connection.execute(f"CREATE TABLE stood_still AS {overlaps}")
        write_run(read_run(run).header, connection.sql(_NO_NOISE.format(run=f"'{run}'")), target, force=False)
    return sum_of_run(run, "duration_ns", "kind = 'dispatch'") - sum_of_run(target, "duration_ns", "kind = 'dispatch'")


@dataclass(frozen=True)
class Injected:
    """What a run with stops costs, what the same without them, and what the stops took of dispatches."""

    stopped: Json
    kept: Json
    quiet: Json
    stood_ns: int


@pytest.fixture(scope="module")
def injected(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Injected:
    bundle, folder = built(MODEL), tmp_path_factory.mktemp("stopped")
    quiet = folder / "quiet.parquet"
    for attempt in range(ATTEMPTS):
        run = folder / f"stopped-{attempt}.parquet"
        stops = recorded_with_stops(bundle, run)
        if not has_slug(read_run(run).header.diagnostics, NOISY):
            break
    stood = without_stops(run, stops, quiet)
    return Injected(
        stopped=json_cli("attribute", run, "--map", bundle),
        kept=json_cli("attribute", run, "--map", bundle, "--keep-outliers"),
        quiet=json_cli("attribute", quiet, "--map", bundle),
        stood_ns=stood,
    )


@pytest.mark.long
@pytest.mark.parametrize("metric", ["cpu_ns", "duration_ns"])
def test_stops_are_disturbance_and_change_no_op(metric: str, injected: Injected) -> None:
    assert injected.stood_ns > 3 * STOP_S * 1e9
    found = outliers(injected.stopped, metric) - outliers(injected.quiet, metric)
    assert found == pytest.approx(injected.stood_ns, rel=0.1)
    stopped, kept, quiet = (attributed(each, metric) for each in (injected.stopped, injected.kept, injected.quiet))
    large = [op for op, cost in quiet.items() if cost > 0.01 * sum(quiet.values())]
    assert all(abs(stopped[op] / quiet[op] - 1) < 0.02 for op in large)
    # Those whose costs differ by more than that keep their order.
    for first, second in itertools.combinations(sorted(large, key=lambda op: -quiet[op]), 2):
        assert quiet[first] < 1.04 * quiet[second] or stopped[first] > stopped[second]
    assert any(kept[op] / quiet[op] > 1.1 for op in large)  # where they are kept, stops do change ops


def outliers(result: Json, metric: str) -> int:
    """The unattributed row, which has no more than its sites have: the model has no transfers."""
    (found,) = (row["metrics"][metric] for row in result["unattributed"] if row["reason"] == "outliers")
    assert found == sum(each["metrics"][metric]["outliers"] for each in result["sites"])
    return int(found)


def attributed(result: Json, metric: str) -> dict[str, int]:
    return {each["op"]: each["metrics"][metric]["attributed"] for each in result["ops"]}
