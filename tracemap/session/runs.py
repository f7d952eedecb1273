"""A bundle's module run and measured; runs joined with their bundle, which is found where it is not named."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from tracemap.errors import BundleMissing, TargetUnwritable, UsageInvalid
from tracemap.options.runs import AttributeOptions, RecordOptions, ReportOptions
from tracemap.outputs import check_file, check_files, show_as, write_shown
from tracemap.toolchain import Progress, no_progress
from tracemap.units import UNKNOWN, Text

if TYPE_CHECKING:
    from tracemap.attribution.model import Attribution
    from tracemap.capture.record import Recorded
    from tracemap.capture.simulating import CacheSimulation
    from tracemap.graph.bundle import Bundle
    from tracemap.measurements.model import Run

_DEVICES = {"vulkan": "vulkan", "cuda": "cuda", "hip": "hip"}
_TARGET_FLAG = "--iree-hal-target-device="


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
            functions=bundle.graph.functions,
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


def joined(
    runs: Sequence[Path], bundle: Bundle | None, options: AttributeOptions | ReportOptions, progress: Progress
) -> Attributed:
    """Join runs onto a bundle; without one it is found from the first run.

    Without a rule the runs decide: `measured` where they have seen the inside of kernels, else `model`.

    Raises:
        TracemapError: as `opened_runs`, `find_bundle`, `graph.bundle.load` and `attribution.attribute.attribute` do.
    """
    from tracemap.attribution.attribute import Request
    from tracemap.attribution.attribute import attribute as split_costs
    from tracemap.graph.bundle import load
    from tracemap.machine.images import read_images

    progress("opening the runs")
    with opened_runs(runs) as opened:
        of_runs = bundle or load(find_bundle(opened[0], runs[0]))
        progress("joining events to sites")
        images = partial(read_images, of_runs.module_path)
        request = Request(of_runs.graph, of_runs.map_sha256, opened, options.rule, options.allow_mismatch, images)
        return Attributed(of_runs, split_costs(request))


@contextmanager
def opened_runs(paths: Sequence[Path]) -> Iterator[list[Run]]:
    """Open runs; what has to be converted (`.ireeprof`) lies in a temporary folder for as long as they are used.

    Raises:
        UsageInvalid: there is no run.
        TracemapError: as `capture.open_run.open_run` does.
    """
    from tracemap.capture.open_run import open_run

    if not paths:
        raise UsageInvalid("name at least one run")
    with tempfile.TemporaryDirectory(prefix="tracemap-runs-") as folder:
        opened = []
        for number, path in enumerate(paths):
            own = Path(folder, str(number))  # two runs may have the same name
            own.mkdir()
            opened.append(open_run(path, own))
        yield opened


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


def attribute(
    runs: Sequence[Path], bundle: Bundle | None, options: AttributeOptions, progress: Progress = no_progress
) -> Attributed:
    """Join runs (tables or `.ireeprof`) onto their bundle, and write what the options name.

    Without a bundle it is that of the options; without that, it is found from the first run.

    Raises:
        TracemapError: as `joined` and `graph.bundle.load` do.
        TargetExists, TargetUnwritable: an output cannot be written.
    """
    from tracemap.graph.bundle import load

    check_files(options.output, options.html, force=options.force)
    if bundle is None and options.map is not None:
        bundle = load(options.map)
    made = joined(runs, bundle, options, progress)
    if options.html is not None:
        _write_page(made.bundle, made.attribution, options.html, progress, force=options.force)
    if options.output is not None:
        write_shown(partial(show_attribution, made, options), options.output)
    return made


def show_attribution(made: Attributed, options: AttributeOptions, out: TextIO) -> None:
    """Write the costs of ops to a stream, in the format of the options."""
    from tracemap.reports.csv.tables import attribution_csv
    from tracemap.reports.json.attribution import shown_attribution
    from tracemap.reports.terminal.attribution import print_attribution

    graph, result = made.bundle.graph, made.attribution

    def text(stream: TextIO) -> None:
        if options.format == "csv":
            stream.write(attribution_csv(graph, result))
        else:
            print_attribution(graph, result, stream, all_ops=options.all)

    show_as(options.format, out, text, partial(shown_attribution, result))


def report(bundle: Bundle, runs: Sequence[Path], options: ReportOptions, progress: Progress = no_progress) -> None:
    """Write the page of a bundle.

    Raises:
        TracemapError: as `joined` does, where there are runs.
        TargetExists, TargetUnwritable: the page cannot be written.
    """
    check_file(options.output, force=options.force)
    attribution = joined(runs, bundle, options, progress).attribution if runs else None
    _write_page(bundle, attribution, options.output, progress, force=options.force)


def _write_page(
    bundle: Bundle, attribution: Attribution | None, target: Path, progress: Progress, *, force: bool
) -> None:
    from tracemap.reports.html.document import write_page
    from tracemap.reports.page.render import bundle_page

    progress("writing the page")
    write_page(bundle_page(bundle, attribution), target, force=force)
