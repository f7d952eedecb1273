"""Costs of runs in the formats of other tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracemap.errors import UsageInvalid
from tracemap.options.export import ExportOptions
from tracemap.options.option import declared_options
from tracemap.outputs import check_files, is_standard, replaced
from tracemap.session.runs import Attributed, joined
from tracemap.toolchain import Progress, no_progress

if TYPE_CHECKING:
    from tracemap.graph.bundle import Bundle
    from tracemap.reports.exports.charges import Ledger


@dataclass(frozen=True)
class Exported:
    """What is exported: costs joined onto their bundle, as the options say."""

    made: Attributed
    runs: Sequence[Path]
    options: ExportOptions

    @cached_property
    def ledger(self) -> Ledger:
        """Who is charged with what."""
        from tracemap.reports.exports.charges import ledger_of

        options = self.options
        return ledger_of(self.made.bundle.graph, self.made.attribution, options.callers, options.metrics)


def _pprof(what: Exported) -> bytes:
    from tracemap.reports.exports.pprof import pprof

    return pprof(what.ledger)


def _callgrind(what: Exported) -> str:
    from tracemap.reports.exports.callgrind import callgrind

    return callgrind(what.ledger, what.options.self_cost)


def _speedscope(what: Exported) -> str:
    from tracemap.reports.exports.speedscope import speedscope

    return speedscope(what.ledger)


def _csv(what: Exported) -> str:
    from tracemap.reports.csv.tables import attribution_csv

    return attribution_csv(what.made.bundle.graph, what.made.attribution)


def _parquet(what: Exported) -> None:
    from tracemap.reports.exports.parquet import write_parquet

    write_parquet(what.made.bundle.graph, what.made.attribution, what.options.output)


def _google_benchmark(what: Exported) -> str:
    from tracemap.reports.exports.google_benchmark import google_benchmark

    return google_benchmark(what.ledger)


_STACKS: Final = ("metrics", "callers")


@dataclass(frozen=True, slots=True)
class _Format:
    """What makes a format (None: it has written its file itself), and which options of single formats it has."""

    make: Callable[[Exported], str | bytes | None]
    options: tuple[str, ...] = ()
    is_text: bool = True


_FORMATS: Final[Mapping[str, _Format]] = {
    "pprof": _Format(_pprof, _STACKS, is_text=False),
    "callgrind": _Format(_callgrind, (*_STACKS, "self_cost")),
    "speedscope": _Format(_speedscope, _STACKS),
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
        ToolMissing: a package that the format needs is not installed.
        UsageInvalid: an option that the format does not have; a metric that the run does not have, or whose amounts
            the format cannot hold.
    """
    from tracemap.graph.bundle import load

    form = _FORMATS[options.to]
    _check_options(options, form)
    check_files(options.output, force=options.force, inputs=runs)
    if bundle is None and options.map is not None:
        bundle = load(options.map)
    made = joined(runs, bundle, options, progress)
    progress("writing")
    content = form.make(Exported(made, runs, options))
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
