"""`diff`: two runs or bundles compared."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from msgspec import structs

from tracemap.attribution.model import split_by
from tracemap.codec import Record, decode, encode
from tracemap.comparison.model import Match
from tracemap.diagnostics import Diagnostic
from tracemap.errors import ProgramFailed, TargetUnwritable, ToolMissing, TracemapError, UsageInvalid
from tracemap.experiments.model import ComparedFunction, ComparedOutput
from tracemap.forked import elsewhere
from tracemap.inputs import is_file
from tracemap.options.kernels import SwapOptions
from tracemap.options.measure import RunOptions, call_of
from tracemap.options.results import DiffOptions, Rule
from tracemap.outputs import is_stream, show_as, write_shown
from tracemap.session.overwrite_guard import check_spared, check_targets
from tracemap.session.programs import program_of
from tracemap.session.runs import (
    check_named_once,
    damage_named,
    find_bundle,
    joined,
    newest_runs,
    told_peaks,
    whole_program,
)
from tracemap.toolchain import Progress, no_progress

if TYPE_CHECKING:
    from tracemap.attribution.model import Attribution
    from tracemap.capture.calling import Call
    from tracemap.capture.expected import Tolerance
    from tracemap.capture.outputs import Array
    from tracemap.comparison.model import Comparison, Comparisons
    from tracemap.comparison.sides import Compared
    from tracemap.graph.bundle import Bundle
    from tracemap.mapping.model.facts import Edge
    from tracemap.measurements.model import Peaks


# ---- dataflow
#
# Data flow between the ops of a bundle: its model is parsed for it, as the map does not keep it.


_OR_WITHOUT = "or leave edges of data flow out with --no-data-flow"


def data_flow_of(bundle: Bundle) -> tuple[Edge, ...]:
    """The edges between ops of the bundle's map.

    Raises:
        ToolMissing: the compiler, which parses models, is not installed.
        UsageInvalid: the bundle does not keep its model.
        ModelInvalid: the installed compiler does not parse it.
        BundleInvalid: it cannot be read.
    """
    model = bundle.model()
    if not model:
        raise UsageInvalid(f"{bundle.path}: does not keep its model; build it without --no-sources, {_OR_WITHOUT}")
    try:
        from tracemap.mapping.model.facts import data_flow
    except ImportError as error:
        raise ToolMissing(
            f"the model is parsed by IREE's compiler, which is not installed: pip install iree-base-compiler, "
            f"{_OR_WITHOUT}"
        ) from error
    known = bundle.graph.op_by_id
    with damage_named(bundle):
        edges = data_flow(model)
    return tuple(edge for edge in edges if edge[0] in known and edge[1] in known)


# ---- matching
#
# Which op of one bundle's model is which of another's; by another processor, where there is something else to do.


_WORTH_A_PROCESS: Final = 5_000
"""Ops of both models: of fewer they are matched in less time than another process begins in."""


class _Matched(Record, frozen=True):
    """What the other process tells."""

    same_model: bool
    matches: tuple[Match, ...]


def matched_models(one: Bundle, two: Bundle) -> Sequence[Match] | None:
    """Which op of one bundle's model is which of another's; None: it is the same model.

    Raises:
        UsageInvalid: a bundle does not keep its model.
        ToolMissing: models differ, and the compiler, which parses them, is not installed.
    """
    from tracemap.comparison.matching import match_flows

    models = [bundle.model() for bundle in (one, two)]
    if one.map_sha256 == two.map_sha256 or (models[0] and models[0] == models[1]):
        return None
    for bundle, model in zip((one, two), models, strict=True):
        if not model:
            raise UsageInvalid(f"{bundle.path}: does not keep its model, by which ops are matched; build it with it")
    try:
        from tracemap.mapping.model.flow import Flows
    except ImportError as error:
        raise ToolMissing(
            "models that differ are parsed by IREE's compiler, which is not installed: pip install iree-base-compiler"
        ) from error
    flows = Flows()
    with damage_named(one, two):
        files = one.graph.sources[0].name, two.graph.sources[0].name
        matches = match_flows(flows.of(models[0]), flows.of(models[1]), files)
    known = one.graph.op_by_id, two.graph.op_by_id
    return [match for match in matches if match.before in known[0] and match.after in known[1]]


@contextmanager
def matching(one: Bundle, two: Bundle) -> Iterator[Callable[[], Sequence[Match] | None]]:
    """Begin `matched_models`; what is yielded waits for it, and raises what it raises."""

    def work() -> bytes:
        matches = matched_models(one, two)
        return encode(_Matched(matches is None, tuple(matches or ())))

    ops = len(one.graph.ops) + len(two.graph.ops)
    with elsewhere(work, worth_it=ops >= _WORTH_A_PROCESS and one.map_sha256 != two.map_sha256) as told:

        def wait() -> Sequence[Match] | None:
            found = decode(told(), _Matched)
            return None if found.same_model else found.matches

        yield wait


# ---- comparing
#
# Two bundles of one model called with the same inputs: whether their outputs agree.


@dataclass(frozen=True, slots=True)
class Reference:
    """A call of a function of the original, and what came of it."""

    call: Call
    tolerance: Tolerance
    outputs: list[Array]


def references(bundle: Bundle, options: SwapOptions, folder: Path, progress: Progress) -> list[Reference]:
    """Call the functions of the original: the one that is asked for, or all without inputs.

    Args:
        bundle: the original.
        options: the function, its inputs, and within what the outputs are to agree.
        folder: for inputs and outputs; it is needed as long as the references are.
        progress: told what is done.

    Raises:
        TracemapError: as `session.run.run` does.
    """
    from tracemap.capture.calling import make_calls
    from tracemap.capture.expected import asked_of
    from tracemap.capture.outputs import RUN_TOOL, called_for_arrays

    run_options = _run_options(options)
    found = []
    calls = make_calls(program_of(bundle, options), run_options, RUN_TOOL, folder)
    with whole_program(bundle):
        for made in calls:
            call, asked = asked_of(made, run_options)
            progress(f"calling {call.entry.name} of the original")
            found.append(Reference(call, asked.tolerance, called_for_arrays(call, folder)))
    return found


def compared_with(
    bundle: Bundle, new: Bundle, found: list[Reference], folder: Path, progress: Progress
) -> Iterator[ComparedFunction]:
    """Call the same functions of the new bundle, and compare."""
    from tracemap.capture.expected import compared
    from tracemap.capture.outputs import called_for_arrays

    for each in found:
        progress(f"calling {each.call.entry.name} of the new bundle")
        said = tuple(given.said for given in each.call.inputs)
        try:
            outputs = called_for_arrays(each.call.with_module(bundle.module_path, new.module_path), folder)
        except ProgramFailed as error:
            yield ComparedFunction(each.call.entry.name, said, (), str(error))
            continue
        about = compared(outputs, each.outputs, each.tolerance)
        shown = tuple(ComparedOutput(one.place, one.type, one.said, one.matches) for one in about)
        yield ComparedFunction(each.call.entry.name, said, shown, "")


def _run_options(options: SwapOptions) -> RunOptions:
    return RunOptions(atol=options.atol, rtol=options.rtol, exact=options.exact, **call_of(options))


# ---- diff
#
# Two runs or bundles compared by the ops of their models.


Sides = Sequence[Path]
"""A bundle, or runs of one."""


def diff(
    before: Path | Sides, after: Path | Sides, options: DiffOptions, progress: Progress = no_progress
) -> Comparison:
    """Compare two bundles, or runs of them, of which each side may have several.

    A bundle stands for its newest run, or those of its newest `record --repeat`; where one has none, maps are compared.

    Raises:
        TracemapError: as `session.runs.joined` and `graph.bundle.load` do.
        UsageInvalid: a metric is wanted that one of them does not have; a bundle does not keep its model; a baseline is
            named besides.
        ToolMissing: models differ, and the compiler, which parses them, is not installed.
        TargetExists, TargetUnwritable: the output cannot be written.
    """
    if options.baseline is not None:
        raise UsageInvalid(f"--baseline {options.baseline}: two sides are named already; leave the baseline out")
    sides = _paths(before), _paths(after)
    check_targets(options.output, options.html, force=options.force, runs=(*sides[0], *sides[1]))
    (made,) = _compared(sides[0], [sides[1]], [options.html], options, progress)
    if options.output is not None:
        write_shown(partial(show_diff, made, options), options.output)
    return made


def diffs(base: Path, others: Sequence[Path], options: DiffOptions, progress: Progress = no_progress) -> Comparisons:
    """Compare each of several with one, before; each has a page of its own, named as `pages_of` says.

    Raises:
        TracemapError: as `diff` does.
    """
    from tracemap.comparison.model import Comparisons

    pages = pages_of(options.html, others)
    check_targets(options.output, *pages, force=options.force, runs=(base, *others))
    compared = _compared([base], [[each] for each in others], pages or [None] * len(others), options, progress)
    made = Comparisons(comparisons=tuple(compared))
    if options.output is not None:
        write_shown(partial(show_diffs, made, options), options.output)
    return made


def pages_of(page: Path | None, others: Sequence[Path]) -> list[Path]:
    """Where the pages of several comparisons go: `diff.html` with `O3.tracemap` is `diff-O3.html`.

    Others that are called alike are numbered. Without a page there are none; what is written to in its place, such as
    standard output, is not renamed.

    Raises:
        TargetUnwritable: it is a folder.
    """
    if page is None or is_stream(page):
        return [] if page is None else [page] * len(others)
    if os.path.isdir(page):  # noqa: PTH112 - Path.is_dir raises for long names
        raise TargetUnwritable(f"{page}: is a folder; name a file")
    found: list[Path] = []
    for other in others:
        own = page.with_stem(f"{page.stem}-{other.resolve().stem}")
        again = (own.with_stem(f"{own.stem}-{number}") for number in count(2))
        found.append(next(place for place in chain([own], again) if place not in found))
    return found


def _paths(side: Path | Sides) -> Sides:
    return [side] if isinstance(side, Path) else side


def _compared(
    before: Sides, others: Sequence[Sides], pages: Sequence[Path | None], options: DiffOptions, progress: Progress
) -> Iterator[Comparison]:
    """Each of several compared with the first, whose runs are read once for each rule."""
    _check_read_once([*before, *chain.from_iterable(others)])
    base = _named(before, options.map_a)
    named = [_named(side, options.map_b) for side in others]
    runs, known = _all_of(base, *named)
    targets = (options.output, *pages)
    check_spared(*targets, runs=runs, bundles=known)
    peaks = told_peaks(runs)

    def joined_side(side: _Named, with_runs: bool, rule: Rule | None) -> _Side:
        return _joined(*side.to_join(with_runs), replace(options, rule=rule), peaks, progress)

    first = cache(partial(joined_side, base))
    for other, page in zip(named, pages, strict=True):
        # Where one side has no run the maps alone are compared.
        with_runs = bool(base.runs and other.runs)
        with _begun(base.to_join(with_runs)[0], other.to_join(with_runs)[0]) as begun:
            sides = first(with_runs, options.rule), joined_side(other, with_runs, options.rule)
            notes: list[Diagnostic] = []
            if options.rule is None and _by_several_rules(sides) and _can_be_read_again(base.runs, other.runs):
                rule = _estimating(sides)
                sides = first(with_runs, rule), joined_side(other, with_runs, rule)
                notes.append(_by_one_rule(rule))
            check_spared(*targets, bundles=[side[0].path for side in sides])
            made = _pair(*sides, begun or partial(matched_models, sides[0][0], sides[1][0]), options, progress)
        if bool(base.runs) != bool(other.runs):
            notes.append(_runs_missing(*(sides if other.runs else sides[::-1])))
        made = structs.replace(made, diagnostics=(*made.diagnostics, *notes))
        if page is not None:
            from tracemap.reports.diff.render import write_diff_page

            progress("writing the page")
            write_diff_page(made, *sides, page, force=options.force)
        yield made


@dataclass(frozen=True)
class _Named:
    """What stands for a side: its runs, if any, the bundle that is named, if any, and the one that is known by either.

    Runs of foreign tools tell of no bundle, and those that have to be converted do so only then.
    """

    runs: Sides
    bundle: Bundle | None
    known: Bundle | None

    def to_join(self, with_runs: bool) -> tuple[Bundle | None, Sides]:
        """The bundle and the runs to be joined onto it; runs that are named without it stand for nothing else."""
        return (self.known, self.runs) if with_runs else (self.bundle, [])


def _all_of(*sides: _Named) -> tuple[Sides, Sequence[Path]]:
    """The runs of all sides, and the bundles that are known already."""
    runs = [run for side in sides for run in side.runs]
    return runs, [side.known.path for side in sides if side.known is not None]


_Side = tuple["Bundle", "Compared"]
_Matching = Callable[[], "Sequence[Match] | None"]


def _begun(base: Bundle | None, bundle: Bundle | None) -> AbstractContextManager[_Matching | None]:
    """Which op is which, begun where both bundles are known already."""
    return nullcontext() if base is None or bundle is None else matching(base, bundle)


def _estimating(sides: Sequence[_Side]) -> Rule:
    """The rule that needs no look inside of kernels, for both sides: by machine code, where both have some."""
    rules = {made.rule for _, compared in sides for made in compared.attributions}
    return Rule.MODEL if Rule.MODEL in rules else Rule.CODE


def _by_one_rule(rule: Rule) -> Diagnostic:
    return Diagnostic(
        f"split-by-{rule.value}",
        "not all runs have seen the inside of kernels alike (samples, simulated counts, enough of them): kernels of "
        f"both sides are split over their ops by the rule {rule.value}, as ops of the same code would differ for that; "
        "--rule chooses",
    )


def _runs_missing(side: _Side, other: _Side) -> Diagnostic:
    """Of two sides of which the first has no run."""
    have, lack = other[0].path, side[0].path
    text = f"{lack} has no run, so that the maps alone are compared, without the runs of {have}; record one"
    return Diagnostic("runs-missing", text)


def _by_several_rules(sides: tuple[_Side, _Side]) -> bool:
    """Whether kernels of the two sides are split over their ops by different rules, or by what is seen differently."""
    return len({split_by(each) for _, side in sides for each in side.attributions}) > 1


def _check_read_once(runs: Sides) -> None:
    """Refuse what can be read only once, standard input or a pipe, where it is named again.

    Raises:
        UsageInvalid: it is.
    """
    files = [str(run) for run in runs if not os.path.isdir(run)]  # noqa: PTH112 - as in `pages_of`
    streams = [name for name in files if not is_file(name)]
    if again := [name for name in streams if streams.count(name) > 1]:
        raise UsageInvalid(f"{again[0]}: is named twice, and can be read only once; write it to a file first")


def _can_be_read_again(*sides: Sides) -> bool:
    return all(is_file(str(run)) for runs in sides for run in runs)


def _pair(before: _Side, after: _Side, matched: _Matching, options: DiffOptions, progress: Progress) -> Comparison:
    from tracemap.comparison.comparing import compare, identical

    first, second = before[1], after[1]
    progress("matching ops")
    found = matched()
    matches = identical(first, second) if found is None else found
    progress("comparing")
    made = compare(first, second, matches, same_model=found is None, threshold=_threshold(options))
    if options.metric is not None and options.metric not in [metric.name for metric in made.metrics]:
        there = ", ".join(metric.name for metric in made.metrics) or "none"
        raise UsageInvalid(f"--metric {options.metric}: not both have it; the metrics that both have are: {there}")
    return made


def _threshold(options: DiffOptions) -> float:
    """By how much something has to change to be named: what fails is named in any case."""
    return min(options.threshold, options.fail_over) if isinstance(options.fail_over, float) else options.threshold


def _named(paths: Sides, bundle: Path | None) -> _Named:
    """The bundle and the runs of what was given."""
    from tracemap.graph.bundle import load

    folder = next((path for path in paths if os.path.isdir(path)), None)  # noqa: PTH112 - Path.is_dir raises for long names
    if folder is None:
        named = None if bundle is None else load(bundle)
        return _Named(paths, named, named or _of_runs(paths))
    if len(paths) > 1:
        raise UsageInvalid(f"{folder}: is a bundle, beside others; a side is one bundle, or several runs of one")
    if bundle is not None:
        raise UsageInvalid(f"{folder}: is a bundle itself; leave --map-a and --map-b to runs")
    loaded = load(folder)
    return _Named(newest_runs(loaded), loaded, loaded)


def _of_runs(runs: Sides) -> Bundle | None:
    """The bundle of runs that tell it without being converted; of others it is known when they are joined."""
    from tracemap.graph.bundle import load
    from tracemap.measurements.runfile import read_run

    if runs and is_file(str(runs[0])):
        with suppress(TracemapError):  # what is wrong with it is said where it is joined
            return load(find_bundle(read_run(runs[0]), runs[0]))
    return None


def _joined(loaded: Bundle | None, runs: Sides, options: DiffOptions, peaks: Peaks | None, progress: Progress) -> _Side:
    from tracemap.comparison.sides import Compared
    from tracemap.machine.images import read_images

    attributions: list[Attribution] = []
    check_named_once(runs)
    for run in runs:
        made = joined([run], loaded, options, progress, series=len(runs) > 1, peaks=peaks)
        loaded = made.bundle
        attributions.append(made.attribution)
    if len(runs) > 1:
        from tracemap.attribution.attribute import check_addable

        check_addable([(str(run), each.run) for run, each in zip(runs, attributions, strict=True)])
    if loaded is None:
        raise UsageInvalid("a run can only be compared with a run: record one of the bundle that has none")
    names = tuple(run.name for run in runs)
    images = partial(read_images, loaded.module_path)
    remarks = loaded.remarks() if loaded.has_remarks else None
    known = remarks, loaded.compile_times()
    return loaded, Compared(loaded.name, loaded.map_sha256, loaded.graph, names, tuple(attributions), images, *known)


def show_diff(made: Comparison, options: DiffOptions, out: TextIO) -> None:
    """Write a comparison to a stream, in the format of the options."""

    def text(stream: TextIO) -> None:
        if options.format == "csv":
            from tracemap.reports.csv_tables import diff_csv

            stream.write(diff_csv(made))
        else:
            from tracemap.reports.terminal.diff import print_diff

            print_diff(made, stream, options)

    show_as(options.format, out, text, lambda: made)


def show_diffs(made: Comparisons, options: DiffOptions, out: TextIO) -> None:
    """Write several comparisons to a stream: one after the other as text, or as one JSON document."""

    def text(stream: TextIO) -> None:
        for number, each in enumerate(made.comparisons):
            stream.write("\n" if number else "")
            show_diff(each, options, stream)

    show_as(options.format, out, text, lambda: made)


def failing(made: Comparison, options: DiffOptions) -> list[str]:
    """What costs more than `--fail-over` allows, in words; nothing where it is not asked."""
    if not isinstance(options.fail_over, float):
        return []
    from tracemap.comparison.findings import beyond
    from tracemap.reports.terminal.diff import finding_text

    return [finding_text(each) for each in beyond(made.findings, options.fail_over)]
