"""`tracemap report` and the formats of `tracemap export`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, get_args

import click

from tracemap.commands.framework import PATH, options_command
from tracemap.commands.program_metrics import with_metrics_of_program
from tracemap.commands.runs import (
    BundleAttribution,
    check_not_inputs,
    check_outputs,
    data_flow_of,
    default_page,
    excerpts,
    newest_runs,
    newest_runs_text,
    open_and_join_runs,
    with_advice,
)
from tracemap.commands.streams import print_message, print_next, show_phases
from tracemap.core.errors import UsageInvalid, start_of
from tracemap.core.extensions import EXPORTS, Extension, extension_named, extensions
from tracemap.core.files import atomic_file, is_standard, is_stream, write_text
from tracemap.core.toolchain import Progress, no_progress
from tracemap.core.units import suggest_names
from tracemap.options.option import declared_options
from tracemap.options.reports import ExportOptions, Format, ReportOptions

if TYPE_CHECKING:
    from tracemap.attribution.timeline import TimedEvent
    from tracemap.map.bundle import Bundle
    from tracemap.reports.exports.charges import Ledger, LedgerExport
    from tracemap.runs.model import Run


def report(
    bundle: Bundle, runs: Sequence[Path] | None, options: ReportOptions, progress: Progress = no_progress
) -> Path:
    """Write the page of a bundle, with the costs of runs, and return its path.

    Args:
        bundle: the bundle.
        runs: the runs; (): a page without costs; None: the newest run of the bundle, if it has one.
        options: options of `tracemap report`. The default output has the bundle's name.
        progress: receives the phase of the work.

    Raises:
        TracemapError: see `commands.runs.open_and_join_runs` and `excerpts`.
        TargetExists, TargetUnwritable: the page cannot be written.
        UsageInvalid: the page would overwrite an input.
    """
    from tracemap.commands.memory import memory_of_page
    from tracemap.reports.cost_lookup import MapCosts
    from tracemap.reports.page.render import write_bundle_page
    from tracemap.reports.views.costs import shown_metrics

    runs = newest_runs(bundle) if runs is None else runs
    page = options.output or default_page(bundle.path)
    check_outputs(page, force=options.force, runs=runs, bundles=[bundle.path])
    write = partial(write_bundle_page, bundle, target=page, force=options.force, totals=options.totals)
    if not runs:
        progress("writing the page")
        write(MapCosts(bundle.graph, None), memory=memory_of_page(bundle, None))
        return page
    with open_and_join_runs(runs, bundle, options, progress, options.window) as (attributed, opened):
        progress("writing the page")
        costed = with_metrics_of_program(with_advice(attributed, runs), options.metrics).costed
        shown_metrics(costed.metrics, options.metrics)  # the page shows all: this only checks the names
        memory = memory_of_page(bundle, attributed.attribution.run)
        write(costed, excerpts=partial(excerpts, bundle.graph, opened, options.memory), memory=memory)
    return page


# ---- export
#
# Costs of runs in the formats of other tools.


@dataclass(frozen=True)
class Exported:
    """Data to export: an attribution, its open runs, and the options."""

    attributed: BundleAttribution
    runs: Sequence[Path]
    opened: Sequence[Run]
    options: ExportOptions

    @cached_property
    def ledger(self) -> Ledger:
        """Call stacks and their costs."""
        from tracemap.reports.exports.charges import ledger_of, selected_metrics

        options, attribution = self.options, self.attributed.attribution
        names = options.metrics
        if options.to == "collapsed" and not names:  # it holds a single metric
            names = (selected_metrics(attribution, ())[0].name,)
        return ledger_of(self.attributed.bundle.graph, attribution, options.callers, names)

    @cached_property
    def data_flow(self) -> Sequence[tuple[str, str]]:
        """Data flow edges between ops; empty with `--no-data-flow`."""
        return () if self.options.no_data_flow else data_flow_of(self.attributed.bundle)

    @property
    def timelines(self) -> Sequence[Sequence[TimedEvent]]:
        """Events of the invocations to draw, per run."""
        from tracemap.attribution.timeline import timeline

        graph, asked = self.attributed.bundle.graph, self.options
        return [
            timeline(graph, run, asked.invocations, every=asked.all_invocations, memory_mb=asked.memory)
            for run in self.opened
        ]

    @property
    def metric_files(self) -> Mapping[int, Path]:
        """File per metric index, next to the output: `graph.cpu_ns.json` for `graph.json`."""
        target, names = self.options.output, [metric.name for metric in self.ledger.metrics]
        # Metric names from foreign tables may be unsafe as file names. Names that become equal get their index.
        plain = [re.sub(r"[^A-Za-z0-9_-]", "_", name)[:60] for name in names]
        unique = [name if plain.count(name) == 1 else f"{name}-{index}" for index, name in enumerate(plain)]
        return {index: target.with_name(f"{target.stem}.{name}.json") for index, name in enumerate(unique)}


def _content(exported: Exported) -> str | bytes | None:  # noqa: PLR0911 - one return per format
    """The text or bytes in the format of the options; None: its writer has written the file."""
    graph, attribution = exported.attributed.bundle.graph, exported.attributed.attribution
    options = exported.options
    match options.to:
        case "pprof":
            from tracemap.reports.exports.pprof import pprof

            return pprof(exported.ledger)
        case "callgrind":
            from tracemap.reports.exports.callgrind import callgrind

            return callgrind(exported.ledger, options.self_cost)
        case "speedscope":
            from tracemap.reports.exports.flame_graphs import speedscope

            draws_timelines = options.invocations or options.all_invocations
            return speedscope(exported.ledger, exported.timelines if draws_timelines else ())
        case "collapsed":
            from tracemap.reports.exports.flame_graphs import collapsed

            return collapsed(exported.ledger)
        case "perfetto":
            from tracemap.reports.exports.timelines import perfetto

            return perfetto(graph, attribution, exported.timelines)
        case "chrome-trace":
            from tracemap.reports.exports.timelines import chrome_trace

            return chrome_trace(graph, attribution, exported.timelines)
        case "graphml":
            from tracemap.reports.exports.graphs import graphml, network_of

            return graphml(network_of(exported.ledger, exported.data_flow))
        case "dot":
            from tracemap.reports.exports.graphs import graphviz_document, network_of

            return graphviz_document(network_of(exported.ledger, exported.data_flow), exported.ledger)
        case "model-explorer":
            return _model_explorer(exported)
        case "csv":
            from tracemap.reports.csv_tables import attribution_csv

            return attribution_csv(graph, attribution)
        case "parquet":
            from tracemap.reports.exports.tables import write_parquet

            write_parquet(graph, attribution, options.output)
            return None
        case "google-benchmark":
            from tracemap.reports.exports.tables import google_benchmark

            return google_benchmark(exported.ledger)
    raise AssertionError(options.to)


def _extension_content(exported: Exported) -> str | bytes:
    """The text or bytes of another package's format.

    Raises:
        ExtensionBroken: the package fails.
        UsageInvalid: no package has the format, or it is binary and cannot be printed.
    """
    extension, options = _extension_of(exported.options.to), exported.options
    export_ledger: LedgerExport = extension.load()
    content = extension.run(export_ledger, exported.ledger)
    if not isinstance(content, (str, bytes)):
        raise extension.broken("its result is no str or bytes")
    if isinstance(content, bytes) and is_standard(options.output):
        raise UsageInvalid(f"{options.to} is a binary format and cannot be printed: name a file with -o")
    return content


def _is_own(form: str) -> bool:
    return form in get_args(Format)


def _extension_of(form: str) -> Extension:
    own = get_args(Format)
    extension = extension_named(EXPORTS, form, own)
    if extension is None:
        names = [*own, *(other.name for other in extensions(EXPORTS))]
        raise UsageInvalid(
            f"{start_of(repr(form), 60)} is no format of exports"
            f"{suggest_names(form, names) or '; choose from ' + ', '.join(names)}"
        )
    return extension


def _model_explorer(exported: Exported) -> str:
    """The graph. Unless it goes to a stream, the data of every metric are written to files next to it."""
    from tracemap.reports.exports.graphs import collection_json, node_data_json

    bundle, options = exported.attributed.bundle, exported.options
    graph = collection_json(bundle.graph, exported.data_flow, {})
    metric_files = {} if is_stream(options.output) else exported.metric_files
    check_outputs(*metric_files.values(), force=options.force, runs=exported.runs, bundles=[bundle.path])
    for index, target in metric_files.items():
        write_text(node_data_json(exported.ledger, index), target)
    return graph


_BINARY: Final = ("pprof", "perfetto", "parquet")
_OF_LEDGER: Final = ("metrics", "callers")
"""The options of other packages' formats: those that decide on the ledger."""
_STACKS: Final = ("pprof", "callgrind", "speedscope", "collapsed")
_TIMELINES: Final = ("speedscope", "perfetto", "chrome-trace")
_TABLES: Final = ("csv", "parquet")
_FORMATS_OF_OPTION: Final[Mapping[str, tuple[str, ...]]] = {
    "metrics": (*_STACKS, "model-explorer", "graphml", "dot", "google-benchmark", *_TABLES),
    "callers": _STACKS,
    "self_cost": ("callgrind",),
    "invocations": _TIMELINES,
    "all_invocations": _TIMELINES,
    "no_data_flow": ("model-explorer", "graphml", "dot"),
}
"""The formats of each option that only some formats have."""


def export(
    runs: Sequence[Path], bundle: Bundle | None, options: ExportOptions, progress: Progress = no_progress
) -> BundleAttribution:
    """Join runs (tables or `.ireeprof`) onto their bundle, and write their costs in another tool's format.

    If `bundle` is None, the options name the bundle, or it is found from the first run.

    Raises:
        TracemapError: see `commands.runs.join_runs` and `map.bundle.load`.
        TargetExists, TargetUnwritable: the file cannot be written.
        ToolMissing: a package for the format, or the compiler to parse the model for its data flow, is not installed.
        UsageInvalid: the format lacks an option, or the run a metric, or the format cannot represent its amounts.
    """
    from tracemap.map.bundle import load

    _check_options(options)
    if bundle is None and options.map is not None:
        bundle = load(options.map)
    check_outputs(options.output, force=options.force, runs=runs, bundles=[] if bundle is None else [bundle.path])
    with open_and_join_runs(runs, bundle, options, progress, options.window) as (joined, opened):
        attributed = with_metrics_of_program(joined, options.metrics)
        check_not_inputs(options.output, bundles=[attributed.bundle.path])  # a named bundle was checked before any work
        progress("writing")
        content_of = _content if _is_own(options.to) else _extension_content
        content = content_of(Exported(attributed, runs, opened, options))
    if content is not None:
        with atomic_file(options.output) as temporary:
            temporary.write_bytes(content if isinstance(content, bytes) else content.encode(errors="replace"))
    return attributed


def _check_options(options: ExportOptions) -> None:
    """Reject options that have no effect on the format."""
    from tracemap.attribution.program_metrics import PROGRAM_METRICS

    if not _is_own(options.to):
        _extension_of(options.to)
    if is_standard(options.output) and options.to in _BINARY:
        raise UsageInvalid(f"{options.to} is a binary format and cannot be printed: name a file with -o")
    if options.to in _TABLES and not set(options.metrics) <= set(PROGRAM_METRICS):
        raise UsageInvalid(
            f"{options.to} always has all metrics of the run; --metric can add {', '.join(PROGRAM_METRICS)}"
        )
    for declared in declared_options(ExportOptions):
        formats = _FORMATS_OF_OPTION.get(declared.name, (options.to,))
        applies = options.to in formats or (declared.name in _OF_LEDGER and not _is_own(options.to))
        if not applies and getattr(options, declared.name) != declared.default:
            raise UsageInvalid(
                f"{declared.names[0]} applies to {', '.join(formats)}, not to {options.to}: "
                f"leave {declared.names[0]} out"
            )


# ---- command line


@options_command("report", ReportOptions)
@click.argument("bundle", metavar="BUNDLE", type=PATH)
@click.argument("runs", metavar="[RUN]...", nargs=-1, type=PATH)
def command(bundle: Path, runs: tuple[Path, ...], options: ReportOptions) -> None:
    """Write the annotated page of BUNDLE: one HTML file with coverage, sources, ops and dispatch sites.

    The page shows the costs of RUNs, or of the newest run of BUNDLE, on the lines of the model and of its Python files.
    If there is no run, it shows where each op went. The page needs no network and no other file.

    \b
    Example:
      tracemap report model.tracemap
      tracemap report model.tracemap run.parquet -o page.html
    """
    from tracemap.map.bundle import load

    with show_phases("report") as progress:
        progress("reading the map")
        opened = load(bundle)
        newest = [] if runs else newest_runs(opened)
        page = report(opened, runs or newest, options, progress)
    if newest:
        print_message(newest_runs_text(bundle, newest))
    if not is_standard(page):
        print_message(f"page: {page}")
    if not runs and not newest:
        print_message(f"{bundle}: has no run, so the page has no costs")
        print_next("record", bundle)
