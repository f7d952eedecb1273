"""Where the time of `tracemap build` goes: stacks of tracemap's own process, and phases of the compiler's.

Each model leaves a file in `build/profiles`, in the format that flame graphs are made of (flamegraph.pl, speedscope):
both processes side by side, in milliseconds.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from benchmarks.build import LAYERS, MODEL, decoder
from benchmarks.measure import Figure, print_row, print_title
from tests.support import ROOT
from tracemap.commands.build import build
from tracemap.options.compile import BuildOptions

PROFILES = ROOT / "build" / "profiles"
_EVERY_S = 0.005
_PARTS = {
    "waiting for the compiler": ("wait_for", "has_parsed", "told"),
    "parsing the model": ("_parsed",),
    "records of the model's operations": ("create_records",),
    "facts of the model": ("precompute",),
    "tags in the dumps": ("located",),
    "parsing the dumps": ("parse",),
    "kernels": ("_kernels",),
    "dispatches and their ops": ("_regions", "_sites", "read_flow"),
    "commands": ("read_hal", "place_commands", "find_schedules"),
    "memory": ("_plan_memory",),
    "outcomes": ("_ops",),
    "writing the bundle": ("store",),
    "imports": ("_find_and_load",),
}
"""Parts of tracemap's own time, and the functions that do them; the first part with a function in a stack counts."""


def measure(folder: Path) -> list[Figure]:
    """One build of each model; no figure has a target."""
    PROFILES.mkdir(parents=True, exist_ok=True)
    for model in (MODEL, *(decoder(folder, layers) for layers in LAYERS)):
        stacks = _stacks_of_build(model, folder)
        file = PROFILES / f"build-{model.stem}.folded"
        file.write_text("".join(f"{';'.join(stack)} {ms}\n" for stack, ms in stacks.items()), encoding="utf-8")
        print_title(f"parts of a build, {model.stem}")
        for name, ms in _by_part(stacks):
            print_row(name, [ms / 1000], "s")
    return []


def _by_part(stacks: Counter[tuple[str, ...]]) -> Iterator[tuple[str, int]]:
    """The parts of both processes with their milliseconds, largest first."""
    parts: Counter[str] = Counter()
    for (process, *stack), ms in stacks.items():
        if process == "compiler":
            parts[f"compiler: {stack[0]}"] += ms
        else:
            found = (part for part, names in _PARTS.items() if any(name in stack for name in names))
            parts[f"tracemap: {next(found, 'other')}"] += ms
    yield from parts.most_common()


def _stacks_of_build(model: Path, folder: Path) -> Counter[tuple[str, ...]]:
    """The stacks of both processes, outermost function first, with milliseconds."""
    stacks: Counter[tuple[str, ...]] = Counter()
    with _sampling(stacks, folder):
        build(str(model), BuildOptions(output=folder / "parts.tracemap", force=True, no_cache=True))
    return stacks


@contextmanager
def _sampling(stacks: Counter[tuple[str, ...]], folder: Path) -> Iterator[None]:
    """Look every few milliseconds at what this thread does, and which phase the compiler has reached."""
    main, done = threading.get_ident(), threading.Event()
    tempfile.tempdir = str(folder)  # where the compiler's dumps are

    def sample() -> None:
        before = time.perf_counter()
        while not done.wait(_EVERY_S):
            now = time.perf_counter()
            ms, before = round((now - before) * 1000), now
            stacks["tracemap", *_names(sys._current_frames().get(main))] += ms
            if phase := _phase(folder):
                stacks["compiler", phase] += ms

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        yield
    finally:
        done.set()
        sampler.join()
        tempfile.tempdir = None


def _names(frame: FrameType | None) -> list[str]:
    names: list[str] = []
    while frame is not None:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    return names[::-1]


def _phase(folder: Path) -> str:
    """The phase that the compiler works on, by the dump that it wrote last; "" while it does not run."""
    home = "tracemap-home-*/tracemap-*"
    if any(folder.glob(f"{home}/module.vmfb")) or not any(folder.glob(f"{home}/stderr-module.vmfb.txt")):
        return ""
    dumps = [file.name.split(".") for file in folder.glob(f"{home}/phases/*.mlir")]
    last = max(((int(number), phase) for *_, number, phase, _ in dumps), default=(0, ""))[1]
    return f"after {last}" if last else "parsing, and the phase input"
