"""`report` and `export`: pages, and formats of other tools."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracemap.errors import UsageInvalid
from tracemap.options.option import declared_options
from tracemap.options.results import ExportOptions, ReportOptions
from tracemap.outputs import is_standard, is_stream, replaced, write_text
from tracemap.session.overwrite_guard import check_spared, check_targets
from tracemap.session.runs import Attributed, excerpts, joined_open
from tracemap.toolchain import Progress, no_progress

if TYPE_CHECKING:
    import networkx

    from tracemap.attribution.timeline import Span
    from tracemap.graph.bundle import Bundle
    from tracemap.measurements.model import Run
    from tracemap.reports.exports.charges import Ledger


# ---- report
#
# The annotated page of a bundle, with the costs of its runs or of the map alone.


def report(bundle: Bundle, runs: Sequence[Path], options: ReportOptions, progress: Progress = no_progress) -> None:
    """Write the page of a bundle.

    Raises:
        TracemapError: as `session.runs.joined_open` and `excerpts` do, where there are runs.
        TargetExists, TargetUnwritable: the page cannot be written.
        UsageInvalid: it would take the place of what is read.
    """
    from tracemap.reports.cost_lookup import CostedMap
    from tracemap.reports.page.render import write_bundle_page

    check_targets(options.output, force=options.force, runs=runs, bundles=[bundle.path])
    write = partial(write_bundle_page, bundle, target=options.output, force=options.force, totals=options.totals)
    if not runs:
        progress("writing the page")
        write(CostedMap(bundle.graph, None))
        return
    with joined_open(runs, bundle, options, progress, options.window) as (made, opened):
        progress("writing the page")
        write(made.costed, excerpts=partial(excerpts, bundle.graph, opened, options.memory))


# ---- export
#
# Costs of runs in the formats of other tools.


@dataclass(frozen=True)
class Exported:
    """What is exported: costs joined onto their bundle, as the options say."""

    made: Attributed
    runs: Sequence[Path]
    opened: Sequence[Run]
    options: ExportOptions

    @cached_property
    def ledger(self) -> Ledger:
        """Who is charged with what."""
        from tracemap.reports.exports.charges import ledger_of

        options = self.options
        return ledger_of(self.made.bundle.graph, self.made.attribution, options.callers, options.metrics)

    @cached_property
    def data_flow(self) -> Sequence[tuple[str, str]]:
        """Which op uses whose result, unless that is to be left out."""
        from tracemap.session.diff import data_flow_of

        return () if self.options.no_data_flow else data_flow_of(self.made.bundle)

    @property
    def timelines(self) -> Sequence[Sequence[Span]]:
        """The events of the calls that are to be drawn, of each run."""
        from tracemap.attribution.timeline import timeline

        graph, asked = self.made.bundle.graph, self.options
        return [
            timeline(graph, run, asked.invocations, every=asked.all_invocations, memory_mb=asked.memory)
            for run in self.opened
        ]

    @property
    def metric_files(self) -> Mapping[int, Path]:
        """By the number of a metric the file of its own, beside the output: `graph.cpu_ns.json` of `graph.json`."""
        target, names = self.options.output, [metric.name for metric in self.ledger.metrics]
        # A name from a table is not made a path of as it is; two that are alike then have their numbers.
        plain = [re.sub(r"[^A-Za-z0-9_-]", "_", name)[:60] for name in names]
        unique = [name if plain.count(name) == 1 else f"{name}-{number}" for number, name in enumerate(plain)]
        return {number: target.with_name(f"{target.stem}.{name}.json") for number, name in enumerate(unique)}


def _pprof(what: Exported) -> bytes:
    from tracemap.reports.exports.pprof import pprof

    return pprof(what.ledger)


def _callgrind(what: Exported) -> str:
    from tracemap.reports.exports.callgrind import callgrind

    return callgrind(what.ledger, what.options.self_cost)


def _speedscope(what: Exported) -> str:
    """With profiles of a timeline where calls are named."""
    from tracemap.reports.exports.speedscope import speedscope

    drawn = what.options.invocations or what.options.all_invocations
    return speedscope(what.ledger, what.timelines if drawn else ())


def _perfetto(what: Exported) -> bytes:
    from tracemap.reports.exports.perfetto import perfetto

    return perfetto(what.made.bundle.graph, what.made.attribution, what.timelines)


def _network(what: Exported) -> networkx.DiGraph[str]:
    from tracemap.reports.exports.network import network_of

    return network_of(what.ledger, what.data_flow)


def _graphml(what: Exported) -> bytes:
    from tracemap.reports.exports.network import graphml

    return graphml(_network(what))


def _dot(what: Exported) -> str:
    from tracemap.reports.exports.network import dot

    return dot(_network(what), what.ledger)


def _model_explorer(what: Exported) -> str:
    """The graph; beside it, unless it is printed, lie the data of each metric."""
    from tracemap.reports.exports.model_explorer import collection_json, node_data_json

    graph = collection_json(what.made.bundle.graph, what.data_flow, {})
    beside = {} if is_stream(what.options.output) else what.metric_files
    check_targets(*beside.values(), force=what.options.force, runs=what.runs, bundles=[what.made.bundle.path])
    for number, target in beside.items():
        write_text(node_data_json(what.ledger, number), target)
    return graph


def _csv(what: Exported) -> str:
    from tracemap.reports.csv_tables import attribution_csv

    return attribution_csv(what.made.bundle.graph, what.made.attribution)


def _parquet(what: Exported) -> None:
    from tracemap.reports.exports.parquet import write_parquet

    write_parquet(what.made.bundle.graph, what.made.attribution, what.options.output)


def _google_benchmark(what: Exported) -> str:
    from tracemap.reports.exports.google_benchmark import google_benchmark

    return google_benchmark(what.ledger)


_STACKS: Final = ("metrics", "callers")
_CALLS: Final = ("invocations", "all_invocations")


@dataclass(frozen=True, slots=True)
class _Format:
    """What makes a format (None: it has written its file itself), and which options of single formats it has."""

    make: Callable[[Exported], str | bytes | None]
    options: tuple[str, ...] = ()
    is_text: bool = True


_FORMATS: Final[Mapping[str, _Format]] = {
    "pprof": _Format(_pprof, _STACKS, is_text=False),
    "callgrind": _Format(_callgrind, (*_STACKS, "self_cost")),
    "speedscope": _Format(_speedscope, (*_STACKS, *_CALLS)),
    "perfetto": _Format(_perfetto, _CALLS, is_text=False),
    "model-explorer": _Format(_model_explorer, ("metrics", "no_data_flow")),
    "graphml": _Format(_graphml, ("metrics", "no_data_flow")),
    "dot": _Format(_dot, ("metrics", "no_data_flow")),
    "csv": _Format(_csv),
    "parquet": _Format(_parquet, is_text=False),
    "google-benchmark": _Format(_google_benchmark, ("metrics",)),
}


def export(
    runs: Sequence[Path], bundle: Bundle | None, options: ExportOptions, progress: Progress = no_progress
) -> Attributed:
    """Join runs (tables or `.ireeprof`) onto their bundle, and write their costs in another tool's format.

    Without a bundle it is that of the options; without that, it is found from the first run.

    Raises:
        TracemapError: as `session.runs.joined` and `graph.bundle.load` do.
        TargetExists, TargetUnwritable: the file cannot be written.
        ToolMissing: a package that the format needs is not installed, or what parses the model for its data flow.
        UsageInvalid: an option that the format does not have; a metric that the run does not have, or whose amounts
            the format cannot hold.
    """
    from tracemap.graph.bundle import load

    form = _FORMATS[options.to]
    _check_options(options, form)
    if bundle is None and options.map is not None:
        bundle = load(options.map)
    check_targets(options.output, force=options.force, runs=runs, bundles=[] if bundle is None else [bundle.path])
    with joined_open(runs, bundle, options, progress, options.window) as (made, opened):
        check_spared(options.output, bundles=[made.bundle.path])  # one that was named is looked at before any work
        progress("writing")
        content = form.make(Exported(made, runs, opened, options))
    if content is not None:
        with replaced(options.output) as temporary:
            temporary.write_bytes(content if isinstance(content, bytes) else content.encode(errors="replace"))
    return made


def _check_options(options: ExportOptions, form: _Format) -> None:
    """Refuse what has no effect on the format, rather than write something else than was asked for."""
    if is_standard(options.output) and not form.is_text:
        raise UsageInvalid(f"{options.to} is no text, and is not printed: name a file with -o")
    of_formats = {name for each in _FORMATS.values() for name in each.options}
    for declared in declared_options(ExportOptions):
        given = getattr(options, declared.name) != declared.default
        if declared.name in of_formats.difference(form.options) and given:
            have = ", ".join(name for name, each in _FORMATS.items() if declared.name in each.options)
            raise UsageInvalid(f"{options.to} has no {declared.names[0]}, which is of {have}: leave it out")
