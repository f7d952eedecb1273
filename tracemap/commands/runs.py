"""Runs and their bundles, opened for a command; no output may overwrite them."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache, partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import structs

from tracemap.core.diagnostics import BEGINS_LATE, RECORDS_LOST, Diagnostic, has_slug
from tracemap.core.errors import (
    BundleInvalid,
    BundleMissing,
    ModelInvalid,
    ProgramFailed,
    QueryInvalid,
    RunInvalid,
    ToolFailed,
    ToolMissing,
    TracemapError,
    UsageInvalid,
)
from tracemap.core.files import (
    check_files,
    check_link_stays_within,
    check_unread,
    has_mark,
    is_file,
    names_file,
    open_stored_file,
    resolved_path,
)
from tracemap.core.process.limits import free_memory
from tracemap.core.process.temporary_files import temporary_folder
from tracemap.core.toolchain import Progress, no_progress
from tracemap.core.units import UNKNOWN, join_names, plural
from tracemap.options.results import WHOLE_RUN, Window
from tracemap.runs.columns import LAUNCH, LAUNCH_NAME, is_transfer_name
from tracemap.runs.model import CUPTI
from tracemap.runs.runfile import with_events
from tracemap.runs.sql import fill_table, open_database, reader_call

if TYPE_CHECKING:
    import duckdb

    from tracemap.attribution.attribute import Request
    from tracemap.attribution.join.schedule_nfa import LaunchOrder, TransferOrder
    from tracemap.attribution.model import Attribution
    from tracemap.attribution.timeline import Excerpt
    from tracemap.capture.plan import LocatedLaunches
    from tracemap.kernels.model import Culprit
    from tracemap.machine.images import Image
    from tracemap.map.build.model.model_facts import Edge
    from tracemap.map.bundle import Bundle
    from tracemap.map.bundle_documents import StoredEstimates
    from tracemap.map.model import Kernel, OpId, TraceGraph
    from tracemap.options.compile import RemarksOptions
    from tracemap.options.reports import DiffOptions, ExportOptions, ReportOptions, WhatIfOptions
    from tracemap.options.results import AttributeOptions
    from tracemap.options.store import StoreAddOptions
    from tracemap.reports.cost_lookup import MapCosts
    from tracemap.runs.model import Peaks, Run, RunHeader

    _CostOptions = AttributeOptions | DiffOptions | ExportOptions | ReportOptions | StoreAddOptions
    JoinOptions = _CostOptions | RemarksOptions | WhatIfOptions
    """Options for joining runs: `rule`, `keep_outliers`, `allow_mismatch`, `dispatch`, `memory`."""


# ---- overwrite guard
#
# Overwrite guard: reject outputs that would replace the command's own inputs.


def check_outputs(*targets: Path | None, force: bool, runs: Sequence[Path] = (), bundles: Sequence[Path] = ()) -> None:
    """Run `outputs.check_files` and `check_not_inputs`, for commands that know their bundles from the start.

    Raises:
        TargetExists, TargetUnwritable, UsageInvalid: see these functions.
    """
    check_not_inputs(*targets, runs=runs, bundles=bundles)
    check_files(*targets, force=force)


def check_not_inputs(*targets: Path | None, runs: Sequence[Path] = (), bundles: Sequence[Path] = ()) -> None:
    """Reject targets that would overwrite runs, their header files, or bundles; None: this output is not requested.

    Files in a bundle's `runs` folder are protected only if they are among `runs`.

    Raises:
        UsageInvalid: a target is one of these files, or a link to one.
    """
    requested = [target for target in targets if target is not None]
    if requested:
        files = [file for bundle in bundles for file in _targets_in_bundle(bundle, requested)]
        check_unread(requested, [*runs, *_headers(runs), *files])


def _headers(runs: Sequence[Path]) -> Iterator[Path]:
    """Header files next to runs. Other files with such a name are never read as headers."""
    from tracemap.runs.runfile import header_path, is_header

    for run in runs:
        if names_file(run) and is_header(header_path(run)):
            yield header_path(run)


def _targets_in_bundle(bundle: Path, targets: Sequence[Path]) -> Iterator[Path]:
    """Targets that are files of a bundle. Checking the targets is faster than listing a large bundle."""
    from tracemap.map.bundle import RUNS_FOLDER

    root, runs = resolved_path(bundle), resolved_path(bundle / RUNS_FOLDER)
    for target in targets:
        place = Path(resolved_path(target))
        if names_file(place) and place.is_relative_to(root) and not place.is_relative_to(runs):
            yield target


# ---- damage
#
# Checks of a bundle's modules, so that messages name the damaged file.


_CHUNK = 1 << 20


@contextmanager
def check_damage_on_failure(*bundles: Bundle) -> Iterator[None]:
    """If a module cannot be read or compiled, check whether a damaged file of a bundle is the cause.

    The files are checked only after a failure, since checking takes as long as the work itself.

    Raises:
        BundleInvalid: a file of a bundle is damaged.
    """
    try:
        yield
    except (ModelInvalid, ToolFailed) as error:
        for bundle in bundles:
            _check_modules(bundle, error)
        raise


@contextmanager
def unchanged_module(bundle: Bundle) -> Iterator[Callable[[], None]]:
    """Check that a bundle's compiled module is the one that the build wrote, at the start and at the end.

    Yields a function that repeats the check, for callers that store results before the end.

    Raises:
        BundleInvalid: the module is damaged, comes from another build, or was changed or replaced meanwhile.
    """
    _check_program(bundle)
    initial = _state_of(bundle)

    def check() -> None:
        if _state_of(bundle) != initial:
            raise BundleInvalid(f"{bundle.module_path}: was changed or replaced while it ran; repeat the command")

    try:
        yield check
    except ProgramFailed as error:
        if not (error.interrupted or error.keeps_run):
            path = bundle.module_path
            if path.exists() and path.stat().st_size > free_memory():
                raise BundleInvalid(f"{path}: is larger than the free memory; build the bundle again") from error
            check()
        raise
    check()


def _state_of(bundle: Bundle) -> tuple[int, ...]:
    """Identity of the module's file, which changes when the file is written or replaced; () if it does not exist."""
    try:
        status = bundle.module_path.stat()
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _check_program(bundle: Bundle) -> None:
    path = bundle.module_path
    if not path.exists():
        raise BundleInvalid(f"{path}: does not exist; build the bundle again")
    with open_stored_file(path, BundleInvalid) as file:
        if os.fstat(file.fileno()).st_size > free_memory():  # it may still run, and hashing it would take too long
            return
        digest = hashlib.sha256()
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    if digest.hexdigest() != bundle.graph.module.sha256:
        raise BundleInvalid(f"{path}: is damaged, or comes from a different build; build the bundle again")


def _check_modules(bundle: Bundle, cause: Exception) -> None:
    from tracemap.ir.model_reader import parse_model
    from tracemap.ir.parsing import MlirParser
    from tracemap.map.bundle import CONFIGURED_NAME, KERNELS_FOLDER, SOURCE_FOLDER

    def configured() -> bytes:
        return bundle.configured() if bundle.graph.kernels else b""

    kept = [(f"{KERNELS_FOLDER}/{CONFIGURED_NAME}", configured)]
    kept += [(f"{SOURCE_FOLDER}/{source.path}", bundle.model) for source in bundle.graph.sources[:1]]
    for name, read in kept:
        try:
            data = read()
            if data:
                parse_model(MlirParser(), data)
        except ModelInvalid as damage:
            reason = str(damage).removeprefix("-:")
            raise BundleInvalid(f"{bundle.path / name}: is damaged ({reason}); build the bundle again") from cause
        except BundleInvalid:
            continue  # the bundle does not contain this file


# ---- launched
#
# Runs with the order of kernel launches but without dispatch sites: their rows get sites from the order.


_UNKNOWN_INVOCATION: Final = -1
"""Marks an unknown invocation in the table of launches."""
_NAMES: Final = f"SELECT {{name}} AS name FROM {{rows}} WHERE {LAUNCH} IS NOT NULL ORDER BY {LAUNCH}"
_SITED: Final = f"""
SELECT event.* EXCLUDE ({LAUNCH}), kind_of.site, nullif(launch.invocation, {_UNKNOWN_INVOCATION}) AS invocation,
    coalesce(kind_of.loading, event.start_ns < {{loaded_ns}}, false) AS warmup
FROM {{rows}} AS event LEFT JOIN launches AS launch ON launch.number = event.{LAUNCH}
    LEFT JOIN launch_kinds AS kind_of ON kind_of.number = launch.kind
ORDER BY event.start_ns, event.{LAUNCH}
"""
_UNSITED: Final = f"SELECT * EXCLUDE ({LAUNCH}) FROM {{rows}} ORDER BY start_ns, {LAUNCH}"


def add_sites_from_order(run: Run, graph: TraceGraph, folder: Path) -> Run:
    """Add dispatch sites to a run, inferred from the order of its launches; other runs are returned unchanged.

    Args:
        run: the run.
        graph: the map of the program that ran.
        folder: folder to create for the new table; it must exist as long as the run is used.
    """
    if not run.tells_order:
        return run
    from tracemap.attribution.join.schedule_nfa import UnknownOrder, identify_launches, identify_transfers

    rows = reader_call("read_parquet", run.table)
    with open_database() as connection:
        # Tables of other tools have the order of kernels only, and perhaps no sizes.
        name = LAUNCH_NAME if "payload_bytes" in run.columns else "kernel"
        work = connection.execute(_NAMES.format(name=name, rows=rows)).fetchnumpy()["name"].tolist()
        kernels = [name for name in work if not is_transfer_name(name)]
        try:
            order = identify_launches(graph, kernels, from_start=_is_from_start(run.header))
        except UnknownOrder as why:
            text = f"{why}: the dispatch site of launches of shared kernels is unknown"
            header = _with_note(run.header, "launches-astray", text)
            return with_events(run, header, connection.sql(_UNSITED.format(rows=rows)), folder)
        names = ["|".join(kind.sites) for kind in order.kinds]  # cells of the column `site`
        moves = identify_transfers(graph, work)
        at_load = {
            own.id for (number, _), own in graph.buffer_transfers.items() if graph.command_buffers[number].initializer
        }
        _fill(connection, order, names, moves, [is_transfer_name(name) for name in work], at_load)
        sited = connection.sql(_SITED.format(rows=rows, loaded_ns=_loaded_ns(connection, rows, order)))
        header = _header(run.header, order)
        header = structs.replace(header, diagnostics=(*header.diagnostics, *_transfer_notes(moves)))
        sited_run = with_events(run, header, sited, folder)
    choices = {name: kind.sites for name, kind in zip(names, order.kinds, strict=True) if len(kind.sites) > 1}
    return replace(sited_run, site_choices=tuple(choices.items()))


def located_launches(graph: TraceGraph, work: Sequence[str]) -> LocatedLaunches:
    """The dispatch sites of launches, and the transfers of copies and fills, for a recording.

    The order decides exactly where it leaves one site; otherwise reports split the cost evenly over the kernel's sites.
    Copies and fills of which it leaves several stay without an op.

    Args:
        graph: the map of the program.
        work: the names of launches, copies and fills in the program's order.
    """
    from tracemap.attribution.join.schedule_nfa import identify_transfers

    kernels = [name for name in work if not is_transfer_name(name)]
    located = _located_kernels(graph, kernels)
    moves = identify_transfers(graph, work)
    sites, places = iter(located.sites), iter(moves.places)
    found = [next(places) if is_transfer_name(name) else next(sites) for name in work]
    texts = ["" if place is UNKNOWN else str(place) for place in found]
    return type(located)(texts, (*located.diagnostics, *_transfer_notes(moves)))


def _transfer_notes(moves: TransferOrder) -> list[Diagnostic]:
    """A note on copies and fills whose op is unknown."""
    if not moves.unknown:
        return []
    why = moves.why or "the program's order leaves several"
    count = f"{moves.unknown:,} of {plural(len(moves.places), 'copy or fill', 'copies and fills')}"
    return [Diagnostic("transfers-astray", f"the op of {count} is unknown ({why}): their time has no op")]


def _located_kernels(graph: TraceGraph, kernels: Sequence[str]) -> LocatedLaunches:
    """The dispatch sites of launches from their kernels."""
    from tracemap.attribution.join.schedule_nfa import UnknownOrder, identify_launches
    from tracemap.capture.plan import LocatedLaunches, no_locations

    if not kernels:
        return no_locations(kernels)
    try:
        order = identify_launches(graph, kernels, from_start=True)
    except UnknownOrder as why:
        text = f"{why}: the dispatch site of launches of shared kernels is unknown"
        return LocatedLaunches([""] * len(kernels), (Diagnostic("launches-astray", text),))
    names = [kind.sites[0] if len(kind.sites) == 1 else "" for kind in order.kinds]
    sites = [names[number] for number in order.numbers]
    several = sum(len(order.kinds[number].sites) > 1 for number in order.numbers)
    if not several and not order.filtered:
        return LocatedLaunches(sites, ())
    launches = plural(len(sites), "launch", "launches")
    text = f"the order of launches leaves several dispatch sites for {several:,} of {launches}"
    return LocatedLaunches(sites, (Diagnostic("sites-by-order", text),))


def _fill(
    connection: duckdb.DuckDBPyConnection,
    order: LaunchOrder,
    names: Sequence[str],
    moves: TransferOrder,
    are_moves: Sequence[bool],
    at_load: Set[str],
) -> None:
    """Create the tables of launches, copies and fills (`are_moves`, in order), and of their kinds.

    `at_load`: the transfers that run at load.
    """
    import numpy as np

    kinds: list[tuple[int, str | None, bool | None]] = [
        (number, name or None, order.kinds[number].loading) for number, name in enumerate(names)
    ]
    places = ["" if place is UNKNOWN else str(place) for place in moves.places]
    kind_of_place = {place: len(kinds) + number for number, place in enumerate(dict.fromkeys(places))}
    kinds += [(number, place or None, place in at_load if place else None) for place, number in kind_of_place.items()]
    fill_table(connection, "launch_kinds", {"number": "BIGINT", "site": "VARCHAR", "loading": "BOOLEAN"}, kinds)
    is_move = np.array(are_moves, dtype=bool)
    kind = np.zeros(len(is_move), dtype=np.int64)
    invocation = np.full(len(is_move), _UNKNOWN_INVOCATION, dtype=np.int64)
    kind[~is_move], kind[is_move] = np.array(order.numbers), [kind_of_place[place] for place in places]
    invocation[~is_move] = [_UNKNOWN_INVOCATION if index is None else index for index in order.invocations()]
    columns = {"number": np.arange(len(is_move)), "kind": kind, "invocation": invocation}
    connection.register("launches", columns)


_STARTS: Final = f"SELECT start_ns FROM {{rows}} WHERE {LAUNCH} IS NOT NULL AND kind = 'dispatch' ORDER BY {LAUNCH}"
_TRANSFERS: Final = """
SELECT start_ns FROM {rows} WHERE kind <> 'dispatch' AND start_ns IS NOT NULL ORDER BY start_ns
"""


def _loaded_ns(connection: duckdb.DuckDBPyConnection, rows: str, order: LaunchOrder) -> int:
    """Start of the first invocation; earlier copies and fills, such as those of parameters, belong to loading.

    An invocation may begin with copies of its own: at most as many as any other invocation has between the previous
    launch and its first launch. With a single invocation, all copies after the launches at load time count as its own.
    """
    import numpy as np

    starts = connection.execute(_STARTS.format(rows=rows)).fetchnumpy()["start_ns"]
    transfers = connection.execute(_TRANSFERS.format(rows=rows)).fetchnumpy()["start_ns"]
    if not len(transfers):
        return 0
    begins = [] if order.begun is None else np.flatnonzero(np.diff(order.begun, prepend=0)).tolist()
    if not order.whole or not begins:
        loading = [kind.loading for kind in order.kinds]
        loaded = [place for place, number in enumerate(order.numbers) if loading[number]]
        return int(starts[loaded[-1]]) if loaded else -(2**62)  # a time before all events
    before = np.searchsorted(transfers, starts)
    own = min((int(before[begin] - before[begin - 1]) for begin in begins[1:]), default=0)
    first = int(before[begins[0]])
    return int(transfers[first - own]) if 0 < own <= first else int(starts[begins[0]])


def _is_from_start(header: RunHeader) -> bool:
    """Whether the run has all launches of its process from the start on, in the program's order."""
    by_cupti = any(tool.startswith(CUPTI) for tool in header.tools)
    return by_cupti and not any(has_slug(header.diagnostics, slug) for slug in (BEGINS_LATE, RECORDS_LOST))


def _with_note(header: RunHeader, slug: str, text: str) -> RunHeader:
    return structs.replace(header, diagnostics=(*header.diagnostics, Diagnostic(slug, text)))


def _header(header: RunHeader, order: LaunchOrder) -> RunHeader:
    """The header with the number of invocations and a note on how sites were found."""
    is_exact = _is_from_start(header) and not order.filtered and all(len(kind.sites) <= 1 for kind in order.kinds)
    if is_exact and order.whole:
        return structs.replace(header, iterations=order.calls)  # nothing is inferred
    text = "dispatch sites are inferred from the order of the launches"
    if is_exact:
        text = "the order of the launches gives their dispatch sites; the last invocation is incomplete"
    elif not order.whole:
        text += "; the first or last invocation is incomplete, so the launches count as a part of the run"
    if order.filtered:
        text += "; kernels without any launch count as filtered out"
    return structs.replace(_with_note(header, "sites-by-order", text), iterations=order.calls)


# ---- command line


@dataclass(frozen=True)
class BundleAttribution:
    """An attribution and its bundle."""

    bundle: Bundle
    attribution: Attribution

    @cached_property
    def costed(self) -> MapCosts:
        """Cached lookups over both for reports, so that several reports share them."""
        from tracemap.reports.cost_lookup import MapCosts

        return MapCosts(self.bundle.graph, self.attribution)

    def costed_only(self, what: str | None) -> MapCosts:
        """The costs of the occurrences of ops that a text names; None: of all.

        Raises:
            QueryInvalid: nothing in the map has this name.
        """
        if what is None:
            return self.costed
        try:
            occurrences = self.costed.occurrences_in_scope(what)
        except QueryInvalid:
            occurrences = self.costed.occurrences(what, self.bundle.source_text)
        return structs.replace(self.costed, only=frozenset(occurrence.place for occurrence in occurrences))

    @property
    def metric(self) -> str:
        """Name of the first metric of tables."""
        from tracemap.reports.cost_lookup import default_metric

        return self.costed.metrics[default_metric(self.costed.metrics)].name

    @property
    def most_expensive_op(self) -> str:
        """Id of the op with the highest cost in the first metric of tables; "" if no op has a cost."""
        ops = self.attribution.ops
        return max(ops, key=lambda result: result.metrics[self.metric].attributed).op if ops else ""


@dataclass(frozen=True, slots=True)
class Details:
    """Details of an attribution: further results, and the peaks that split costs.

    `series`: the costs of ops in every single invocation; `timed`: when work ran, for overhead and `what_if`;
    `peaks`: see `common_peaks`.
    """

    series: bool = False
    timed: bool = False
    peaks: Peaks | None = None


TIMED: Final = Details(timed=True)


def join_runs(
    runs: Sequence[Path],
    bundle: Bundle | None,
    options: JoinOptions,
    progress: Progress,
    details: Details = Details(),
) -> BundleAttribution:
    """Join runs onto a bundle; if `bundle` is None, it is found from the first run.

    Raises:
        TracemapError: see `opened_runs`, `find_bundle`, `map.bundle.load` and `attribution.attribute.attribute`.
    """
    with open_and_join_runs(runs, bundle, options, progress, details=details) as (attributed, _):
        return attributed


@contextmanager
def open_and_join_runs(
    runs: Sequence[Path],
    bundle: Bundle | None,
    options: JoinOptions,
    progress: Progress,
    window: Window = WHOLE_RUN,
    *,
    details: Details = TIMED,
) -> Iterator[tuple[BundleAttribution, Sequence[Run]]]:
    """Like `join_runs`, for a time window of the runs; also yields the open runs, since pipes cannot be read again."""
    from tracemap.attribution.attribute import attribute
    from tracemap.map.bundle import load

    progress("opening the runs")
    dispatch = one_kernel(bundle, options.dispatch) if bundle and options.dispatch else options.dispatch
    with opened_runs(runs, window, dispatch) as opened_files:
        bundle = bundle or load(find_bundle(opened_files[0], runs[0]))
        progress("joining events to dispatch sites")
        images = partial(_images_of, bundle)
        with resolved_runs(opened_files, bundle.graph, images) as resolved:
            request = attribution_request(bundle, resolved, options, images, details)
            yield BundleAttribution(bundle, _with_errors(bundle, attribute(request))), resolved


_OR_WITHOUT: Final = "or leave out the data flow with --no-data-flow"


def data_flow_of(bundle: Bundle) -> tuple[Edge, ...]:
    """Data flow edges between the ops of the bundle's map, which does not contain them: the model is parsed.

    Raises:
        ToolMissing: the compiler, which parses models, is not installed.
        UsageInvalid: the bundle does not contain its model.
        ModelInvalid: the installed compiler cannot parse the model.
        BundleInvalid: the model cannot be read.
    """
    model = bundle.model()
    if not model:
        raise UsageInvalid(f"{bundle.path}: does not contain its model; build it without --no-sources, {_OR_WITHOUT}")
    try:
        from tracemap.map.build.model.model_facts import data_flow
    except ImportError as error:
        raise ToolMissing(
            f"IREE's compiler is not installed, and the model cannot be parsed without it: "
            f"pip install iree-base-compiler, {_OR_WITHOUT}"
        ) from error
    known = bundle.graph.op_by_id
    with check_damage_on_failure(bundle):
        edges = data_flow(model)
    return tuple(edge for edge in edges if edge[0] in known and edge[1] in known)


def _images_of(bundle: Bundle) -> Sequence[Image]:
    """The machine code of a bundle's module.

    Raises:
        ModuleInvalid: it cannot be read.
    """
    try:
        changed_ns = bundle.module_path.stat().st_mtime_ns
    except OSError:
        changed_ns = 0
    kept = _kept_images(bundle.module_path, changed_ns)
    if not kept:
        kept.append(bundle.images())
    return kept[0]


@lru_cache(maxsize=1)
def _kept_images(_module: Path, _changed_ns: int) -> list[Sequence[Image]]:
    """A place for the machine code of the last module, since attribution and advice both read it."""
    return []


def with_advice(attributed: BundleAttribution, runs: Sequence[Path] = ()) -> BundleAttribution:
    """The same attribution with advice, whose commands name the runs if these are files.

    Rules whose files are missing or damaged find nothing.
    """
    from tracemap.attribution.advice.advise import advise_with_extensions
    from tracemap.attribution.advice.kernel_facts import Evidence

    bundle, attribution = attributed.bundle, attributed.attribution

    def kernel_text(kernel: Kernel) -> str:
        with suppress(TracemapError):
            return bundle.kernel_text(kernel)
        return ""

    @cache
    def images() -> Sequence[Image]:
        with suppress(TracemapError):
            return _images_of(bundle)
        return ()

    def data_flow() -> Sequence[Edge]:
        with suppress(TracemapError):
            return data_flow_of(bundle)
        return ()

    def repeated() -> Mapping[OpId, OpId]:
        with suppress(TracemapError, ImportError):
            # The compiler merges all other repeated ops. The text without literals is short.
            if any("optimization_barrier" in bundle.source_text(source) for source in bundle.graph.sources[:1]):
                from tracemap.map.build.model.model_facts import repeated_ops

                return repeated_ops(bundle.model())
        return {}

    def invariant() -> Mapping[OpId, OpId]:
        with suppress(TracemapError, ImportError):
            from tracemap.map.build.model.model_facts import loop_invariant_ops

            return loop_invariant_ops(bundle.model())
        return {}

    files = tuple(runs) if all(is_file(str(run)) for run in runs) else ()
    evidence = Evidence(
        bundle.graph, attribution, bundle.path, files, images, kernel_text, data_flow, repeated, invariant
    )
    advice, problems = advise_with_extensions(evidence)
    diagnostics = (*attribution.diagnostics, *problems)
    return BundleAttribution(bundle, replace(attribution, advice=advice, diagnostics=diagnostics))


def one_kernel(bundle: Bundle, what: str) -> str:
    """The kernel that a text names, or that runs what it names.

    Raises:
        QueryInvalid: there is none, or more than one.
    """
    from tracemap.map.query import kernels_named

    kernels = kernels_named(bundle.graph, what, bundle.source_text)
    if len(kernels) > 1:
        raise QueryInvalid(f"{what}: is {len(kernels)} kernels; name one of {join_names(kernels)}")
    return kernels[0]


def attribution_request(
    bundle: Bundle,
    opened: Sequence[Run],
    options: JoinOptions,
    images: Callable[[], Sequence[Image]],
    details: Details = Details(),
) -> Request:
    """Attribution request for open runs and a bundle; `images` reads the bundle's machine code."""
    from tracemap.attribution.attribute import Request

    def numbers() -> Mapping[str, tuple[int, ...]]:
        from tracemap.commands.programs import constants_by_site

        return constants_by_site(bundle, opened)

    return Request(
        bundle.graph,
        bundle.map_sha256,
        opened,
        options.rule,
        options.allow_mismatch,
        tuple if bundle.is_native else images,  # a function's code is that of several kernels, by its lines
        keep_outliers=options.keep_outliers,
        memory_mb=options.memory,
        series=details.series,
        timed=details.timed,
        peaks=details.peaks,
        kept=bundle.estimates,
        keep=partial(_keep_estimates, bundle),
        numbers=dict if bundle.is_native else numbers,
    )


def _with_errors(bundle: Bundle, attribution: Attribution) -> Attribution:
    """The attribution with the errors that `tracemap numerics` stored for the function of the runs."""
    from tracemap.map.bundle import NUMERICS_NAME, path_in_bundle

    if not path_in_bundle(bundle.path, NUMERICS_NAME).exists():
        return attribution
    from tracemap.attribution.model import Errors
    from tracemap.attribution.numeric_errors import with_errors
    from tracemap.kernels.program_numerics import kept_numerics, largest_ulps

    found = kept_numerics(bundle)
    if found is None or attribution.run.function != found.function:
        return attribution
    errors: dict[str, Errors] = {}
    for result in found.sites:
        own = Errors(largest_ulps(result.isolated), largest_ulps(result.accumulated))
        kernel = bundle.graph.kernel_by_name.get(result.kernel)
        sites = (result.site,) if isinstance(result.site, str) else kernel.sites if kernel is not None else ()
        errors.update(dict.fromkeys(sites, own))
    added = with_errors(attribution, errors)
    if found.culprit is None:
        return added
    return replace(added, diagnostics=(*added.diagnostics, _wrong_results(bundle, found.culprit)))


def _wrong_results(bundle: Bundle, culprit: Culprit) -> Diagnostic:
    place = culprit.site if isinstance(culprit.site, str) else culprit.kernel
    op = f"{culprit.ops[0]} in " if culprit.ops else ""
    text = f"the program computes wrong results, first by {op}{place}: see `tracemap numerics {bundle.path.name}`"
    return Diagnostic("wrong-results", text)


READ_ONLY: Final = "TRACEMAP_READ_ONLY"
"""Environment variable: if it is not empty, commands that only read store nothing in bundles."""


def _keep_estimates(bundle: Bundle, estimates: StoredEstimates) -> None:
    """Store cost estimates of kernels in the bundle, if it is writable; otherwise the next command repeats them."""
    if os.environ.get(READ_ONLY):
        return
    from tracemap.core.codec import encode
    from tracemap.core.files import atomic_file
    from tracemap.map.bundle import ESTIMATES_NAME, path_in_bundle

    with suppress(OSError, TracemapError), atomic_file(path_in_bundle(bundle.path, ESTIMATES_NAME)) as temporary:
        temporary.write_bytes(encode(estimates))


def common_peaks(runs: Sequence[Path]) -> Peaks | None:
    """Common peaks of the machine for runs that are compared; None if no run file contains peaks.

    Every measurement of the peaks differs. If the costs of every run were split by its own peaks, ops would differ
    because of that.
    """
    from tracemap.attribution.weights import best_peaks
    from tracemap.runs.runfile import read_run

    peaks = []
    for run in runs:
        if is_file(str(run)):
            with suppress(TracemapError):  # the join reports errors of the run
                peaks.append(read_run(run).header.peaks)
    return best_peaks(peaks) if peaks else None


def excerpts(graph: TraceGraph, opened: Sequence[Run], memory_mb: int) -> list[Excerpt]:
    """Events of the invocations that fit on a page, per open run.

    Raises:
        RunInvalid: a cell does not have the type of its column.
    """
    from tracemap.attribution.timeline import excerpt
    from tracemap.reports.page.timeline_tab import MOST_SPANS

    return [excerpt(graph, run, max(1, MOST_SPANS // len(opened)), memory_mb) for run in opened]


@contextmanager
def opened_runs(paths: Sequence[Path], window: Window = WHOLE_RUN, dispatch: str = "") -> Iterator[list[Run]]:
    """Open runs, or a time window of them; `dispatch` is the kernel of files that name none.

    Converted (`.ireeprof`) and cut runs lie in a temporary folder until the context ends.

    Raises:
        UsageInvalid: no run is named.
        TracemapError: see `runs.readers.open_run.open_run` and `runs.window.limited_to_window`.
    """
    from tracemap.runs.readers.open_run import open_run
    from tracemap.runs.time_window import limited_to_window

    if not paths:
        raise UsageInvalid("name at least one run")
    check_named_once(paths)
    with temporary_folder() as folder:
        opened = []
        for number, path in enumerate(paths):
            own = folder / str(number)  # two runs may have the same name
            own.mkdir()
            opened.append(limited_to_window(open_run(path, own, dispatch), window, own))
        yield opened


@contextmanager
def resolved_runs(
    opened: Sequence[Run], graph: TraceGraph, images: Callable[[], Sequence[Image]]
) -> Iterator[list[Run]]:
    """Resolve the rows of open runs against a bundle.

    Samples with a symbol get an address in the bundle's machine code. Launches with a known order get dispatch sites.

    Raises:
        ModuleInvalid: the machine code cannot be read.
    """
    from tracemap.runs.readers.perf_script import resolve_symbols

    with temporary_folder() as folder:
        yield [
            add_sites_from_order(
                resolve_symbols(run, images, folder / str(number)), graph, folder / f"{number}-launched"
            )
            for number, run in enumerate(opened)
        ]


def check_named_once(paths: Sequence[Path]) -> None:
    """Reject a run that is named twice, or does not exist.

    Raises:
        RunInvalid: see `check_exist`.
        UsageInvalid: two paths are the same file.
    """
    check_exist(paths)
    seen: set[str] = set()
    for path in paths:
        place = os.path.realpath(path)
        if place in seen:
            raise UsageInvalid(f"{path}: is named twice and would count twice; name it once")
        seen.add(place)


def runs_of_bundles(paths: Sequence[Path], tell: Callable[[str], object] = no_progress) -> list[Path]:
    """The paths, with each bundle replaced by its newest run, or by all runs of its newest `record --repeat`.

    Args:
        paths: runs and bundles.
        tell: receives a sentence per bundle on which runs it stands for.

    Raises:
        UsageInvalid: a bundle has no run.
        BundleInvalid: see `newest_runs`.
    """
    from tracemap.map.bundle import is_bundle, load

    runs: list[Path] = []
    for path in paths:
        if not is_bundle(path):
            runs.append(path)
            continue
        newest = newest_runs(load(path))
        if not newest:
            raise UsageInvalid(f"{path}: this bundle has no run; record one with `tracemap record {path}`")
        tell(newest_runs_text(path, newest))
        runs += newest
    return runs


def newest_runs_text(bundle: Path, runs: Sequence[Path]) -> str:
    """Which runs a bundle stands for."""
    return f"{bundle}: newest run: {join_names([run.name for run in runs])}"


def default_page(bundle: Path) -> Path:
    """The bundle's name with .html in the working folder; numbered if another program's file has that name."""
    stem = bundle.resolve().stem
    names = (Path(f"{stem}.html" if number == 1 else f"{stem}-{number}.html") for number in count(1))
    return next(name for name in names if not name.exists() or has_mark(name))


def check_exist(paths: Sequence[Path], *, least: int = 2) -> None:
    """Reject several runs that do not exist, in one message; the reader reports fewer than `least`.

    Raises:
        RunInvalid: there is no such file.
    """
    missing = [str(path) for path in paths if is_file(str(path)) and not names_file(path)]
    if len(missing) >= least:
        what = "no such files; check the paths" if len(missing) > 1 else "no such file; check the path"
        raise RunInvalid(f"{join_names(missing)}: cannot be read: {what}")


def newest_run(bundle: Bundle) -> Path | None:
    """The newest run of a bundle; None if it has no run.

    Raises:
        BundleInvalid: see `newest_runs`.
    """
    newest = max(_runs_of(bundle), key=_order_of, default=None)
    return None if newest is None else _own(bundle, newest)


def newest_runs(bundle: Bundle) -> list[Path]:
    """The newest run of a bundle, with all other runs of the same `record --repeat`, in order.

    Raises:
        BundleInvalid: the folder of runs, a run or its header is a link that leads out of the bundle.
    """
    from tracemap.capture.run_names import recording_name

    newest = newest_run(bundle)
    if newest is None or not REPEATED.fullmatch(newest.stem):
        return [] if newest is None else [newest]
    same = [path for path in _runs_of(bundle) if recording_name(path.name) == recording_name(newest.name)]
    return [_own(bundle, run) for run in sorted(same, key=_order_of)]


def _own(bundle: Bundle, run: Path) -> Path:
    """Check that a run which the user did not name, and its header, lie in the bundle."""
    from tracemap.runs.runfile import header_path

    for file in (run, header_path(run)):
        check_link_stays_within(file, bundle.path, BundleInvalid)
    return run


def _order_of(path: Path) -> tuple[list[int], str]:
    """Sort key by the numbers of the recording and of the repetition; names sort differently from `run-1000` on."""
    return [int(digits) for digits in re.findall(r"\d+", path.stem)], path.name


REPEATED: Final = re.compile(r"run-\d+-\d+")
"""Name of a run of `record --repeat` in a bundle: number of the recording, then number of the repetition."""


def _runs_of(bundle: Bundle) -> list[Path]:
    return [path for path in bundle.runs_path.glob("run-*") if path.suffix in (".parquet", ".csv")]


_MAP: Final = "--map (diff: --map-a, --map-b)"


def find_bundle(run: Run, path: Path) -> Path:
    """Find the bundle of a run: the one in its header, else the only one next to it or in the working folder.

    A run in a bundle's `runs/` folder belongs to this bundle.

    Raises:
        BundleMissing: there is no bundle, or more than one.
    """
    from tracemap.map.bundle import RUNS_FOLDER, SUFFIX, is_bundle

    resolved = path.resolve()
    if resolved.parent.name == RUNS_FOLDER and is_bundle(resolved.parent.parent):
        return resolved.parent.parent
    run_folder = Path() if str(path) == "-" else path.parent
    if run.header.bundle is not UNKNOWN:
        header_bundle = Path(run.header.bundle)
        for candidate in (header_bundle, run_folder / header_bundle.name, Path(header_bundle.name)):
            if is_bundle(candidate):
                return candidate
    candidates = sorted({*run_folder.glob(f"*{SUFFIX}"), *Path().glob(f"*{SUFFIX}")}, key=str)
    bundles = [folder for folder in candidates if is_bundle(folder)]
    distinct = {folder.resolve(): folder for folder in bundles}
    if len(distinct) == 1:
        return bundles[0]
    if not distinct:
        raise BundleMissing(f"{path}: no bundle is named and none is next to it; name the bundle with {_MAP}")
    names = join_names([str(folder) for folder in distinct.values()])
    raise BundleMissing(f"{path}: several bundles may be its own: {names}; name the right one with {_MAP}")
