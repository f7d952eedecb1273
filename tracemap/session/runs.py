"""Opening of runs and of the bundle they belong to."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from msgspec import structs

from tracemap.diagnostics import Diagnostic
from tracemap.errors import (
    BundleInvalid,
    BundleMissing,
    ModelInvalid,
    ProgramFailed,
    ToolFailed,
    TracemapError,
    UsageInvalid,
)
from tracemap.inputs import check_within, is_file, opened
from tracemap.measurements.columns import LAUNCH
from tracemap.measurements.runfile import with_events
from tracemap.measurements.sql import fill, open_database, table_of
from tracemap.memory import free_memory
from tracemap.options.results import ALL, Rule, Window
from tracemap.owned.home import temporary_folder
from tracemap.toolchain import Progress
from tracemap.units import UNKNOWN, listed

if TYPE_CHECKING:
    import duckdb
    import numpy.typing as npt

    from tracemap.attribution.attribute import Request
    from tracemap.attribution.join.schedule_nfa import Order
    from tracemap.attribution.model import Attribution
    from tracemap.attribution.timeline import Excerpt
    from tracemap.graph.bundle import Bundle
    from tracemap.graph.documents import KeptEstimates
    from tracemap.graph.model import TraceGraph
    from tracemap.machine.images import Image
    from tracemap.measurements.model import Peaks, Run, RunHeader
    from tracemap.reports.cost_lookup import CostedMap


# ---- damage
#
# Modules that a bundle keeps and that are damaged or others: called so, by the file's name.


_CHUNK = 1 << 20


@contextmanager
def damage_named(*bundles: Bundle) -> Iterator[None]:
    """Where a module cannot be read or compiled, look whether that is for a file of a bundle that is damaged.

    Only then: to read all of them takes as long as what is done with them.

    Raises:
        BundleInvalid: it is.
    """
    try:
        yield
    except (ModelInvalid, ToolFailed) as error:
        for bundle in bundles:
            _check_modules(bundle, error)
        raise


@contextmanager
def whole_program(bundle: Bundle) -> Iterator[Callable[[], None]]:
    """Work with a bundle's compiled module, which has to be what the build wrote: what another one does is not its.

    Yields what looks whether it still is, for those who keep what they saw; at the end that is looked at anyway.

    Raises:
        BundleInvalid: it is another, or damaged, or was changed or replaced meanwhile.
    """
    _check_program(bundle)
    begun = _state_of(bundle)

    def check() -> None:
        if _state_of(bundle) != begun:
            raise BundleInvalid(f"{bundle.module_path}: was changed or replaced while it ran; do it again")

    try:
        yield check
    except ProgramFailed as error:
        if not (error.interrupted or error.keeps_run):
            _check_size(bundle, error)
            check()
        raise
    check()


def _state_of(bundle: Bundle) -> tuple[int, ...]:
    """What changes where a file is replaced or written to; nothing where it is not there."""
    try:
        about = bundle.module_path.stat()
    except OSError:
        return ()
    return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns


def _check_program(bundle: Bundle) -> None:
    path = bundle.module_path
    if not path.exists():
        raise BundleInvalid(f"{path}: is not there; build the bundle again")
    with opened(path, BundleInvalid) as file:
        if os.fstat(file.fileno()).st_size > free_memory():  # it may run, and to look through it may take for ever
            return
        found = hashlib.sha256()
        while chunk := file.read(_CHUNK):
            found.update(chunk)
    if found.hexdigest() != bundle.graph.module.sha256:
        raise BundleInvalid(
            f"{path}: another module, or damaged: its bytes are not those that the build wrote; build the bundle again"
        )


def _check_size(bundle: Bundle, cause: Exception) -> None:
    path = bundle.module_path
    if path.exists() and path.stat().st_size > free_memory():
        raise BundleInvalid(f"{path}: is larger than the free memory; build the bundle again") from cause


def _check_modules(bundle: Bundle, cause: Exception) -> None:
    from tracemap.graph.bundle import CONFIGURED_NAME, KERNELS_FOLDER, SOURCE_FOLDER
    from tracemap.ir.parsing import MlirParser
    from tracemap.ir.reading import parse_model

    def configured() -> bytes:
        return bundle.configured() if bundle.graph.kernels else b""

    sources = [source.path for source in bundle.graph.sources[:1]]
    kept = [(f"{KERNELS_FOLDER}/{CONFIGURED_NAME}", configured)]
    kept += [(f"{SOURCE_FOLDER}/{name}", bundle.model) for name in sources]
    for name, read in kept:
        try:
            data = read()
            if data:
                parse_model(MlirParser(), data)
        except ModelInvalid as damage:
            said = str(damage).removeprefix("-:")
            raise BundleInvalid(f"{bundle.path / name}: damaged ({said}); build the bundle again") from cause
        except BundleInvalid:
            continue  # it is not kept


# ---- launched
#
# Runs that tell the order in which kernels were launched, and not from where: their rows get their sites.


_UNTOLD: Final = -1
"""Stands in a table for a number of a call that is not known."""
_KERNELS: Final = f"SELECT kernel FROM {{rows}} WHERE {LAUNCH} IS NOT NULL ORDER BY {LAUNCH}"
_SITED: Final = f"""
SELECT event.* EXCLUDE ({LAUNCH}), kind_of.site, nullif(launch.invocation, {_UNTOLD}) AS invocation,
    coalesce(kind_of.loading, event.start_ns < {{loaded_ns}}, false) AS warmup
FROM {{rows}} AS event LEFT JOIN launches AS launch ON launch.number = event.{LAUNCH}
    LEFT JOIN launch_kinds AS kind_of ON kind_of.number = launch.kind
ORDER BY event.start_ns, event.{LAUNCH}
"""
_UNSITED: Final = f"SELECT * EXCLUDE ({LAUNCH}) FROM {{rows}} ORDER BY start_ns, {LAUNCH}"


def with_sites(run: Run, graph: TraceGraph, folder: Path) -> Run:
    """A run whose dispatches have the sites that their order leaves for them; itself, if it tells no order.

    Args:
        run: the run.
        graph: the map of the program that ran.
        folder: where the table is put; it is made, and must stay as long as the run.
    """
    if not run.tells_order:
        return run
    from tracemap.attribution.join.schedule_nfa import OrderUntold, ordered

    rows = table_of("read_parquet", run.table)
    with open_database() as connection:
        kernels = connection.execute(_KERNELS.format(rows=rows)).fetchnumpy()["kernel"].tolist()
        try:
            order = ordered(graph, kernels)
        except OrderUntold as why:
            text = f"{why}: which site of a shared kernel a launch was of is not known"
            return with_events(
                run, _saying(run.header, "launches-astray", text), connection.sql(_UNSITED.format(rows=rows)), folder
            )
        names = ["|".join(kind.sites) for kind in order.kinds]  # what the column of sites has for each
        _fill(connection, order, names)
        sited = connection.sql(_SITED.format(rows=rows, loaded_ns=_loaded_ns(connection, rows, order)))
        found = with_events(run, _header(run.header, order), sited, folder)
    choices = {name: kind.sites for name, kind in zip(names, order.kinds, strict=True) if len(kind.sites) > 1}
    return replace(found, site_choices=tuple(choices.items()))


def _fill(connection: duckdb.DuckDBPyConnection, order: Order, names: Sequence[str]) -> None:
    """Make the tables of what launches were."""
    import numpy as np

    kinds = [(number, name or None, order.kinds[number].loading) for number, name in enumerate(names)]
    fill(connection, "launch_kinds", {"number": "BIGINT", "site": "VARCHAR", "loading": "BOOLEAN"}, kinds)
    invocations = [_UNTOLD if each is None else each for each in order.invocations()]
    numbers = np.arange(len(invocations))
    columns = {"number": numbers, "kind": np.array(order.numbers), "invocation": np.array(invocations)}
    connection.register("launches", columns)


_STARTS: Final = f"SELECT start_ns FROM {{rows}} WHERE {LAUNCH} IS NOT NULL ORDER BY {LAUNCH}"
_TRANSFERS: Final = f"SELECT start_ns FROM {{rows}} WHERE {LAUNCH} IS NULL AND start_ns IS NOT NULL ORDER BY start_ns"


def _loaded_ns(connection: duckdb.DuckDBPyConnection, rows: str, order: Order) -> int:
    """When the first call began: copies and fills before, as of parameters, are of the program's loading.

    A call may begin with some of its own: no more than any other call has between the last launch before it and its
    first. Of one call alone nothing tells, and none is taken for its own but those behind what runs at load.
    """
    import numpy as np

    starts = connection.execute(_STARTS.format(rows=rows)).fetchnumpy()["start_ns"]
    transfers = connection.execute(_TRANSFERS.format(rows=rows)).fetchnumpy()["start_ns"]
    if not len(transfers):
        return 0
    begins = [] if order.begun is None else np.flatnonzero(np.diff(order.begun, prepend=0)).tolist()
    if not order.whole or not begins:
        return _since_loading(order, starts)
    before = np.searchsorted(transfers, starts)
    own = min((int(before[begin] - before[begin - 1]) for begin in begins[1:]), default=0)
    first = int(before[begins[0]])
    return int(transfers[first - own]) if 0 < own <= first else int(starts[begins[0]])


def _since_loading(order: Order, starts: npt.NDArray[Any]) -> int:
    """When the last launch before all calls began; before everything where there is none."""
    loading = [kind.loading for kind in order.kinds]
    loaded = [place for place, number in enumerate(order.numbers) if loading[number]]
    return int(starts[loaded[-1]]) if loaded else -(2**62)


def _saying(header: RunHeader, slug: str, text: str) -> RunHeader:
    return structs.replace(header, diagnostics=(*header.diagnostics, Diagnostic(slug, text)))


def _header(header: RunHeader, order: Order) -> RunHeader:
    """The header, with what was found."""
    text = "which site a kernel was launched from is inferred from the order of the launches"
    if not order.whole:
        text += "; they do not begin with a call or do not end with one, so they are taken for a part of the run's"
    if order.filtered:
        text += "; kernels of which there is no launch at all are taken for left out"
    return structs.replace(_saying(header, "sites-by-order", text), iterations=order.calls)


# ---- runs
#
# Runs opened, their bundle found, and joined with it.


@dataclass(frozen=True)
class Attributed:
    """An attribution and the bundle that it speaks of."""

    bundle: Bundle
    attribution: Attribution

    @cached_property
    def costed(self) -> CostedMap:
        """Both, as reports look things up in them: what one report has found, the next one need not look for."""
        from tracemap.reports.cost_lookup import CostedMap

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
    from tracemap.session.programs import numbers_of_kernels

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
    from tracemap.capture.open_run import placed

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
