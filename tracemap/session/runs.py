"""Runs opened, their bundle found, and joined with it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from tracemap.errors import BundleInvalid, BundleMissing, TracemapError, UsageInvalid
from tracemap.inputs import check_within, is_file
from tracemap.options.attribute import ALL, Rule, Window
from tracemap.owned.home import temporary_folder
from tracemap.toolchain import Progress
from tracemap.units import UNKNOWN, listed

if TYPE_CHECKING:
    from tracemap.attribution.attribute import Request
    from tracemap.attribution.model import Attribution
    from tracemap.attribution.timeline import Excerpt
    from tracemap.graph.bundle import Bundle
    from tracemap.graph.estimates import KeptEstimates
    from tracemap.graph.model import TraceGraph
    from tracemap.machine.images import Image
    from tracemap.measurements.model import Peaks, Run
    from tracemap.reports.costed import CostedMap


@dataclass(frozen=True)
class Attributed:
    """An attribution and the bundle that it speaks of."""

    bundle: Bundle
    attribution: Attribution

    @cached_property
    def costed(self) -> CostedMap:
        """Both, as reports look things up in them: what one report has found, the next one need not look for."""
        from tracemap.reports.costed import CostedMap

        return CostedMap(self.bundle.graph, self.attribution)


class JoinOptions(Protocol):
    """How runs are joined: what the options of every command say that does so."""

    @property
    def rule(self) -> Rule | None:
        """How a site's cost is split over its members; None: what the runs allow."""

    @property
    def keep_disturbed(self) -> bool:
        """Whether what calls take beyond their fence is split, too."""

    @property
    def allow_mismatch(self) -> bool:
        """Whether a run of another module is joined."""

    @property
    def dispatch(self) -> str:
        """The kernel of files of runs that name none."""

    @property
    def memory(self) -> int:
        """Megabytes for the rows of runs; 0: what the machine can spare."""


def joined(
    runs: Sequence[Path],
    bundle: Bundle | None,
    options: JoinOptions,
    progress: Progress,
    *,
    series: bool = False,
    peaks: Peaks | None = None,
) -> Attributed:
    """Join runs onto a bundle, as the options say; without one it is found from the first run.

    `series`: what ops cost in each single invocation is kept, too. `peaks`: see `told_peaks`.

    Raises:
        TracemapError: as `opened_runs`, `find_bundle`, `graph.bundle.load` and `attribution.attribute.attribute` do.
    """
    with joined_open(runs, bundle, options, progress, series=series, peaks=peaks) as (made, _):
        return made


@contextmanager
def joined_open(
    runs: Sequence[Path],
    bundle: Bundle | None,
    options: JoinOptions,
    progress: Progress,
    window: Window = ALL,
    *,
    series: bool = False,
    peaks: Peaks | None = None,
) -> Iterator[tuple[Attributed, Sequence[Run]]]:
    """The same, and the runs, for as long as they are open: one that came through a pipe cannot be read again.

    Of each run only the calls of a window are looked at.
    """
    from tracemap.attribution.attribute import attribute
    from tracemap.graph.bundle import load
    from tracemap.machine.images import read_images

    progress("opening the runs")
    with opened_runs(runs, window, options.dispatch) as found:
        of_runs = bundle or load(find_bundle(found[0], runs[0]))
        progress("joining events to sites")
        images = cache(partial(read_images, of_runs.module_path))
        with placed_runs(found, of_runs.graph, images) as opened:
            request = request_of(of_runs, opened, options, images, series=series, peaks=peaks)
            yield Attributed(of_runs, attribute(request)), opened


def request_of(
    bundle: Bundle,
    opened: Sequence[Run],
    options: JoinOptions,
    images: Callable[[], Sequence[Image]],
    *,
    series: bool = False,
    peaks: Peaks | None = None,
) -> Request:
    """What is asked of attribution: opened runs onto a bundle, whose machine code `images` reads."""
    from tracemap.attribution.attribute import Request
    from tracemap.session.extents import numbers_of_kernels

    return Request(
        bundle.graph,
        bundle.map_sha256,
        opened,
        options.rule,
        options.allow_mismatch,
        images,
        keep_disturbed=options.keep_disturbed,
        memory_mb=options.memory,
        series=series,
        peaks=peaks,
        kept=bundle.estimates,
        keep=partial(_keep_estimates, bundle),
        numbers=partial(numbers_of_kernels, bundle, opened),
    )


def _keep_estimates(bundle: Bundle, made: KeptEstimates) -> None:
    """Keep estimates of kernels in the bundle; where that may not be written they are made again the next time."""
    from tracemap.codec import encode
    from tracemap.graph.bundle import ESTIMATES_NAME, inside
    from tracemap.outputs import replaced

    with suppress(OSError, TracemapError), replaced(inside(bundle.path, ESTIMATES_NAME)) as written:
        written.write_bytes(encode(made))


def told_peaks(runs: Sequence[Path]) -> Peaks | None:
    """The machine's limits by all of several runs, for those that are compared; None where no file of ours tells any.

    Each look at them gives other ones. Split by its own, the ops of each run would differ by that.
    """
    from tracemap.attribution.weights import best_peaks
    from tracemap.measurements.runfile import read_run

    found = []
    for run in runs:
        if is_file(str(run)):
            with suppress(TracemapError):  # what is wrong with it is said where it is joined
                found.append(read_run(run).header.peaks)
    return best_peaks(found) if found else None


def excerpts(graph: TraceGraph, opened: Sequence[Run], memory_mb: int) -> list[Excerpt]:
    """Of each opened run the calls that a page has room for, event by event.

    Raises:
        RunInvalid: a cell is not what its column says.
    """
    from tracemap.attribution.timeline import excerpt
    from tracemap.reports.page.timeline_tab import MOST_SPANS

    return [excerpt(graph, run, max(1, MOST_SPANS // len(opened)), memory_mb) for run in opened]


@contextmanager
def opened_runs(paths: Sequence[Path], window: Window = ALL, dispatch: str = "") -> Iterator[list[Run]]:
    """Open runs, or of each the calls of a window; `dispatch` is the kernel of files that name none.

    What has to be converted (`.ireeprof`) or cut lies in a temporary folder for as long as they are used.

    Raises:
        UsageInvalid: there is no run.
        TracemapError: as `capture.open_run.open_run` and `measurements.window.cut` do.
    """
    from tracemap.capture.open_run import open_run
    from tracemap.measurements.window import cut

    if not paths:
        raise UsageInvalid("name at least one run")
    check_named_once(paths)
    with temporary_folder() as folder:
        opened = []
        for number, path in enumerate(paths):
            own = folder / str(number)  # two runs may have the same name
            own.mkdir()
            opened.append(cut(open_run(path, own, dispatch), window, own))
        yield opened


@contextmanager
def placed_runs(opened: Sequence[Run], graph: TraceGraph, images: Callable[[], Sequence[Image]]) -> Iterator[list[Run]]:
    """Opened runs whose rows have their places in a bundle, where others told less.

    Samples that name a symbol have theirs in its machine code, launches of which the order is known their sites.

    Raises:
        ModuleInvalid: that cannot be read.
    """
    from tracemap.capture.placing import placed
    from tracemap.session.launched import with_sites

    with temporary_folder() as folder:
        yield [
            with_sites(placed(run, images, folder / str(number)), graph, folder / f"{number}-launched")
            for number, run in enumerate(opened)
        ]


def check_named_once(paths: Sequence[Path]) -> None:
    """Refuse a run that is named twice.

    Raises:
        UsageInvalid: one is.
    """
    named: set[str] = set()
    for path in paths:
        place = os.path.realpath(path)
        if place in named:
            raise UsageInvalid(f"{path}: is named twice, and would count twice; name each run once")
        named.add(place)


def newest_run(bundle: Bundle) -> Path | None:
    """The run of a bundle that was recorded last; None for a bundle without any.

    Raises:
        BundleInvalid: as `newest_runs`.
    """
    newest = max(_runs_of(bundle), key=_order_of, default=None)
    return None if newest is None else _own(bundle, newest)


def newest_runs(bundle: Bundle) -> list[Path]:
    """The run of a bundle that was written last, with all that were made by the same `record --repeat`, in order.

    Raises:
        BundleInvalid: the bundle's folder of runs, one of them or its header is a link that leads out of the bundle.
    """
    from tracemap.capture.reserving import recording_of

    newest = newest_run(bundle)
    if newest is None or not REPEATED.fullmatch(newest.stem):
        return [] if newest is None else [newest]
    same = [path for path in _runs_of(bundle) if recording_of(path.name) == recording_of(newest.name)]
    return [_own(bundle, each) for each in sorted(same, key=_order_of)]


def _own(bundle: Bundle, run: Path) -> Path:
    """A run that a bundle stands for, and not its user has named: it lies in the bundle, and so does its header."""
    from tracemap.measurements.runfile import header_path

    for file in (run, header_path(run)):
        check_within(file, bundle.path, BundleInvalid)
    return run


def _order_of(path: Path) -> tuple[list[int], str]:
    """By numbers, that of the recording and that in it: names stand in another order from `run-1000` on."""
    return [int(digits) for digits in re.findall(r"\d+", path.stem)], path.name


REPEATED: Final = re.compile(r"run-\d+-\d+")
"""What a run of `record --repeat` is called in a bundle: the number of the recording, then its own."""


def _runs_of(bundle: Bundle) -> list[Path]:
    return [path for path in bundle.runs_path.glob("run-*") if path.suffix in (".parquet", ".csv")]


_MAP: Final = "--map (of diff: --map-a, --map-b)"


def find_bundle(run: Run, path: Path) -> Path:
    """The bundle of a run: the one that its header names, else the only one beside it or in the working folder.

    A run that lies in a bundle's `runs/` belongs to that bundle.

    Raises:
        BundleMissing: there is none, or more than one.
    """
    from tracemap.graph.bundle import RUNS_FOLDER, SUFFIX, is_bundle

    resolved = path.resolve()
    if resolved.parent.name == RUNS_FOLDER and is_bundle(resolved.parent.parent):
        return resolved.parent.parent
    beside = Path() if str(path) == "-" else path.parent
    if run.header.bundle is not UNKNOWN:
        named = Path(run.header.bundle)
        for candidate in (named, beside / named.name, Path(named.name)):
            if is_bundle(candidate):
                return candidate
    found = sorted({*beside.glob(f"*{SUFFIX}"), *Path().glob(f"*{SUFFIX}")}, key=str)
    bundles = [folder for folder in found if is_bundle(folder)]
    distinct = {folder.resolve(): folder for folder in bundles}
    if len(distinct) == 1:
        return bundles[0]
    if not distinct:
        raise BundleMissing(f"{path}: no bundle was named and none lies beside it; name it with {_MAP}")
    there = listed([str(folder) for folder in distinct.values()])
    raise BundleMissing(f"{path}: which bundle does it belong to? Name it with {_MAP}; there are: {there}")
