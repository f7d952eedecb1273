"""A bundle's module, run and measured, to a run."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tracemap.errors import TargetUnwritable, UsageInvalid
from tracemap.options.record import RecordOptions
from tracemap.owned.home import temporary_folder
from tracemap.toolchain import Progress, no_progress
from tracemap.units import UNKNOWN, Text

if TYPE_CHECKING:
    from tracemap.capture.record import Recorded
    from tracemap.capture.simulating import CacheSimulation
    from tracemap.graph.bundle import Bundle

_DEVICES = {"vulkan": "vulkan", "cuda": "cuda", "hip": "hip"}
_TARGET_FLAG = "--iree-hal-target-device="


def record(
    bundle: Bundle, options: RecordOptions, progress: Progress = no_progress, values: Sequence[object] = ()
) -> Recorded:
    """Run a bundle's module under the profiler; without an output the run gets the next free number in the bundle.

    `values`: inputs that no text can hold, such as arrays, one per argument; none: the options' inputs.

    Raises:
        TracemapError: as `capture.record.record` does.
    """
    from tracemap.capture.plan import RecordRequest
    from tracemap.capture.record import record as record_request

    with _target(bundle, options.output) as target, _caches(bundle, target, options, progress) as caches:
        request = RecordRequest(
            module=bundle.module_path,
            module_sha256=bundle.graph.module.sha256,
            bundle=str(bundle.path.resolve()),
            functions=bundle.graph.functions,
            output=target,
            options=options,
            device=_device(bundle, options.runtime_flags),
            caches=caches,
            values=tuple(values),
        )
        return record_request(request, progress)


@contextmanager
def _caches(
    bundle: Bundle, target: Path, options: RecordOptions, progress: Progress
) -> Iterator[CacheSimulation | None]:
    """The bundle's kernels compiled for valgrind, as long as they are needed; None where no caches are simulated."""
    if not options.cache_sim:
        if options.cache_geometry:
            raise UsageInvalid("a geometry of caches is of use with a simulation only: pass --cache-sim too")
        yield None
        return
    from tracemap.capture.geometry import geometry
    from tracemap.capture.simulating import CacheSimulation, find_valgrind
    from tracemap.mapping.compiler.simulated import build_simulated
    from tracemap.measurements.runfile import check_target

    check_target(target, force=options.force)
    caches, valgrind = geometry(options.cache_geometry), find_valgrind()
    with temporary_folder() as folder:
        progress("compiling for the simulator")
        flags = bundle.graph.module.flags
        module = build_simulated(bundle.configured(), flags, folder, fused=valgrind.runs_fused)
        kernels = frozenset(kernel.name for kernel in bundle.graph.kernels)
        load_time = any(site.initializer for site in bundle.graph.sites)
        yield CacheSimulation(module.path, module.build, caches, kernels, load_time)


@contextmanager
def _target(bundle: Bundle, output: Path | None) -> Iterator[Path]:
    """Where the run goes: the output that was asked for, or the next free number in the bundle."""
    if output is not None:
        yield output
        return
    try:
        bundle.runs_path.mkdir(exist_ok=True)
    except OSError as error:
        raise TargetUnwritable(f"{bundle.runs_path}: cannot be made ({error.strerror}); name a run with -o") from error
    try:
        yield _next_run(bundle.runs_path)
    finally:
        with suppress(OSError):  # not empty: the usual case
            bundle.runs_path.rmdir()


def _next_run(folder: Path) -> Path:
    taken = {path.name.partition(".")[0] for path in folder.iterdir()}
    number = next(number for number in itertools.count(1) if f"run-{number:03}" not in taken)
    return folder / f"run-{number:03}.parquet"


def _device(bundle: Bundle, runtime_flags: Sequence[str]) -> Text:
    """The device that the module was compiled for; unknown where the user says it, or it runs on the host."""
    if any(flag.startswith("--device=") for flag in runtime_flags):
        return UNKNOWN
    targets = [flag.removeprefix(_TARGET_FLAG) for flag in bundle.graph.module.flags if flag.startswith(_TARGET_FLAG)]
    return _DEVICES.get(targets[-1], UNKNOWN) if targets else UNKNOWN
