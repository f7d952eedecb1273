"""What the hook adds to a call of a workgroup, beside what its parts cost and beside the scheme of IREE's own hook.

Everything is measured in turn in the same run: a host that calls an empty kernel, without and with the hook, and a
program that reads clocks and opens events as IREE's hook does. Record files lie in memory, as those of
`record --counters` do where memory has room for them; and for comparison in the usual temporary folder, mostly on a
disk.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from benchmarks.measure import Figure, output_of, print_row, print_title, targeted
from tests.hook.support import PROGRAM
from tracemap.capture.counters import events_to_count
from tracemap.hook import HookSettings, settings_environment
from tracemap.hook.compiling import FOLDER, compile_library, find_compiler

ROUNDS = 11
CALLS = "5000"
EVENTS = ("page-faults", "context-switches", "cpu-migrations", "minor-faults")
HERE = PROGRAM.parent
MEMORY = Path("/dev/shm")


def measure(folder: Path) -> list[Figure]:
    """Medians of `ROUNDS` rounds; in each, every program takes the best of many repetitions."""
    library = compile_library(folder / "libtracemap_hook.so")
    host, reference = compiled(folder / "host", "host.c"), compiled(folder / "reference", "reference.c")
    kernels = compiled(folder / "kernels.so", "kernels.c", "-shared", "-fPIC")
    settings = [event.setting for event in events_to_count(EVENTS)]
    grouped = [setting.replace("|ring", "|group") for setting in settings]
    ways = {"0 events": [], "1 event": settings[:1], "4 events": settings, "4 events, group": grouped}
    found: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        found.setdefault(name, []).append(value)

    for _ in range(ROUNDS):
        counter, clock, one, four = map(float, output_of([reference]).split())
        note("counter twice, cpu", counter)
        note("clock_gettime twice, cpu", clock)
        note("IREE's scheme, 1 event", one)
        note("IREE's scheme, 4 events", four)
        bare = hooked(host, kernels, {})
        for name, events in ways.items():
            note(name, in_place(MEMORY, library, host, kernels, tuple(events)) - bare)
        note("0 events, usual folder", in_place(folder, library, host, kernels, ()) - bare)
    return figures(found)


def compiled(target: Path, source: str, *flags: str) -> Path:
    """A C program of the tests."""
    words = [*find_compiler(), "-std=c11", "-D_GNU_SOURCE", "-O2", f"-I{FOLDER}", *flags, str(HERE / source)]
    subprocess.run([*words, "-o", str(target), "-ldl", "-lpthread"], check=True)
    return target


def in_place(place: Path, library: Path, host: Path, kernels: Path, events: tuple[str, ...]) -> float:
    """Nanoseconds per call with the hook; its files lie in `place` (in the default folder where there is none)."""
    with tempfile.TemporaryDirectory(dir=place if place.is_dir() else None) as output:
        variables = settings_environment(Path(output), HookSettings(events=events))
        return hooked(host, kernels, {**variables, "LD_PRELOAD": str(library)})


def hooked(host: Path, kernels: Path, variables: Mapping[str, str]) -> float:
    """Nanoseconds per call of the empty kernel."""
    command = [str(host), str(kernels), "measure", "1", CALLS]
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=True)
    return float(done.stdout)


def figures(found: Mapping[str, list[float]]) -> list[Figure]:
    """The tables: nanoseconds, then ratios with their targets."""
    print_title("hook: what it adds to a call")
    for name, values in found.items():
        print_row(name, values, "ns")
    print_title("hook: ratios")
    pairs = (
        ("0 events / counter twice, cpu", "0 events", "counter twice, cpu", 1.5),
        ("0 events / clock twice, cpu", "0 events", "clock_gettime twice, cpu", 1.5),
        ("4 events / IREE's scheme", "4 events", "IREE's scheme, 4 events", 0.2),
        ("4 events, group / IREE's", "4 events, group", "IREE's scheme, 4 events", 0.2),
    )
    return [
        targeted(name, [a / b for a, b in zip(found[ours], found[theirs], strict=True)], "x", target)
        for name, ours, theirs, target in pairs
    ]
