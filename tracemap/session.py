"""What the commands do, without printing: bundles and runs opened, recorded and joined.

The command line and the Python API stand on these functions, so that both do the same.
"""

from __future__ import annotations

import atexit
import itertools
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tracemap.errors import BundleMissing, ModelUnreadable, TargetUnwritable, UsageInvalid
from tracemap.options.build import BuildOptions
from tracemap.options.record import RecordOptions
from tracemap.toolchain import Progress, no_progress
from tracemap.units import UNKNOWN, Text

if TYPE_CHECKING:
    from tracemap.attribution.model import Attribution
    from tracemap.capture.inputs import EntryPoint
    from tracemap.capture.record import Recorded
    from tracemap.capture.simulating import CacheSimulation
    from tracemap.graph.bundle import Bundle
    from tracemap.graph.lowering import Lowering
    from tracemap.measurements.model import Run
    from tracemap.options.attribute import Rule

_DEVICES = {"vulkan": "vulkan", "cuda": "cuda", "hip": "hip"}
_TARGET_FLAG = "--iree-hal-target-device="


def build(model: str, options: BuildOptions, progress: Progress = no_progress) -> Bundle:
    """Write the bundle of a model's file (`-`: standard input), by default under the model's name.

    The model is compiled, or the dumps of a compilation made elsewhere are read; these need no model (""). Python files
    of frames are looked for below the roots of the options, then below the model's own folder.

    Raises:
        TracemapError: as `mapping.build.build` and `mapping.from_dumps.build_from_dumps` do.
        ModelUnreadable: the file cannot be read.
        UsageInvalid: a model from standard input has no name for its bundle, or options do not go together.
    """
    if options.from_dumps is not None or options.module is not None:
        return _build_from_dumps(model, options, progress)
    from tracemap.mapping.build import build as build_request
    from tracemap.mapping.request import BuildRequest

    data, name = read_model(model)
    target = options.output or default_bundle(model)
    return build_request(BuildRequest(data, name, target, options, own_folder(model)), progress)


def _build_from_dumps(model: str, options: BuildOptions, progress: Progress) -> Bundle:
    from tracemap.mapping.from_dumps import build_from_dumps
    from tracemap.mapping.request import BuildRequest

    if options.from_dumps is None or options.module is None or options.flags:
        raise UsageInvalid("--from-dumps DIR and --module M.vmfb go together, and without flags for the compiler")
    data, name = read_model(model) if model else (b"", "")
    target = options.output or default_bundle(model or str(options.module))
    folder = own_folder(model or str(options.from_dumps / "dump"))
    request = BuildRequest(data, name, target, options, folder)
    return build_from_dumps(request, options.from_dumps, options.module, progress)


def lower(model: str, pipelines: Sequence[str], progress: Progress = no_progress) -> Lowering:
    """Run pass pipelines over a model's file (`-`: standard input), and link its ops to the loops of each stage.

    Raises:
        TracemapError: as `mapping.lowering.pipelines.lower` does.
        ModelUnreadable: the file cannot be read.
        UsageInvalid: there is no pipeline.
    """
    from tracemap.mapping.lowering.pipelines import lower as lower_model

    if not pipelines:
        raise UsageInvalid("name at least one pass pipeline, such as 'builtin.module(cse)'")
    data, name = read_model(model)
    return lower_model(data, name, pipelines, progress)


def read_model(model: str) -> tuple[bytes, str]:
    """The content of a model's file (`-`: standard input) and the name that it goes by.

    Raises:
        ModelUnreadable: it cannot be read.
    """
    if model == "-":
        return sys.stdin.buffer.read(), "<stdin>"
    try:
        return Path(model).read_bytes(), Path(model).name
    except OSError as error:
        raise ModelUnreadable(f"{model}: cannot be read: {error.strerror}") from error


def own_folder(model: str) -> tuple[Path, ...]:
    """The folder below which a model's Python files are looked for last; none for standard input."""
    return () if model == "-" else (Path(model).parent,)


def default_bundle(model: str) -> Path:
    """The bundle of a model that was given no other name.

    Raises:
        UsageInvalid: a model from standard input has no name for its bundle.
    """
    if model == "-":
        raise UsageInvalid("a model from standard input needs a name for its bundle: pass -o")
    return Path(Path(model).stem + ".tracemap")


def record(bundle: Bundle, options: RecordOptions, progress: Progress = no_progress) -> Recorded:
    """Run a bundle's module under the profiler; without an output the run gets the next free number in the bundle.

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
            functions=_entry_points(bundle),
            output=target,
            options=options,
            device=_device(bundle, options.runtime_flags),
            caches=caches,
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
    with tempfile.TemporaryDirectory(prefix="tracemap-simulated-") as folder:
        progress("compiling for the simulator")
        flags = bundle.graph.module.flags
        module = build_simulated(bundle.configured_path, flags, Path(folder), fused=valgrind.runs_fused)
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


def _entry_points(bundle: Bundle) -> tuple[EntryPoint, ...]:
    from tracemap.capture.inputs import ArgumentType, EntryPoint

    return tuple(
        EntryPoint(
            function.name,
            tuple(ArgumentType(item.name, item.type, item.loop_bound) for item in function.arguments),
        )
        for function in bundle.graph.functions
    )


def _device(bundle: Bundle, runtime_flags: Sequence[str]) -> Text:
    """The device that the module was compiled for; unknown where the user says it, or it runs on the host."""
    if any(flag.startswith("--device=") for flag in runtime_flags):
        return UNKNOWN
    targets = [flag.removeprefix(_TARGET_FLAG) for flag in bundle.graph.module.flags if flag.startswith(_TARGET_FLAG)]
    return _DEVICES.get(targets[-1], UNKNOWN) if targets else UNKNOWN


@dataclass(frozen=True, slots=True)
class Attributed:
    """An attribution and the bundle that it speaks of."""

    bundle: Bundle
    attribution: Attribution


def attribute(
    runs: Sequence[Path],
    bundle: Bundle | None,
    rule: Rule | None,
    *,
    allow_mismatch: bool = False,
    progress: Progress = no_progress,
) -> Attributed:
    """Join runs (tables or `.ireeprof`) onto their bundle; without one it is found from the first run.

    Without a rule the runs decide: `measured` where they have seen the inside of kernels, else `model`.

    Raises:
        TracemapError: as `open_runs`, `find_bundle`, `graph.bundle.load` and `attribution.attribute.attribute` do.
    """
    from functools import partial

    from tracemap.attribution.attribute import Request
    from tracemap.attribution.attribute import attribute as attribute_request
    from tracemap.graph.bundle import load
    from tracemap.machine.images import read_images

    progress("opening the runs")
    opened = open_runs(runs)
    joined = bundle or load(find_bundle(opened[0], runs[0]))
    progress("joining events to sites")
    images = partial(read_images, joined.module_path)
    request = Request(joined.graph, joined.map_sha256, opened, rule, allow_mismatch, images)
    return Attributed(joined, attribute_request(request))


def open_runs(paths: Sequence[Path]) -> list[Run]:
    """Open runs; what has to be converted (`.ireeprof`) lies in a temporary folder until the program ends."""
    from tracemap.capture.open_run import open_run

    folder = Path(tempfile.mkdtemp(prefix="tracemap-runs-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    opened = []
    for number, path in enumerate(paths):
        place = folder / str(number)
        place.mkdir()
        opened.append(open_run(path, place))
    return opened


def find_bundle(run: Run, path: Path) -> Path:
    """The bundle of a run: the one that its header names, else the only one beside it or in the working folder.

    A run that lies in a bundle's `runs/` belongs to that bundle.

    Raises:
        BundleMissing: there is none, or more than one.
    """
    from tracemap.graph.bundle import MAP_NAME, RUNS_FOLDER, SUFFIX

    resolved = path.resolve()
    if resolved.parent.name == RUNS_FOLDER and (resolved.parent.parent / MAP_NAME).is_file():
        return resolved.parent.parent
    beside = Path() if str(path) == "-" else path.parent
    if run.header.bundle is not UNKNOWN:
        named = Path(run.header.bundle)
        for candidate in (named, beside / named.name, Path(named.name)):
            if (candidate / MAP_NAME).is_file():
                return candidate
    found = sorted({*beside.glob(f"*{SUFFIX}"), *Path().glob(f"*{SUFFIX}")}, key=str)
    bundles = [folder for folder in found if (folder / MAP_NAME).is_file()]
    distinct = {folder.resolve(): folder for folder in bundles}
    if len(distinct) == 1:
        return bundles[0]
    if not distinct:
        raise BundleMissing(f"{path}: no bundle was named and none lies beside it; name it with --map")
    listed = ", ".join(str(folder) for folder in distinct.values())
    raise BundleMissing(f"{path}: which bundle does it belong to? Name it with --map; there are: {listed}")
