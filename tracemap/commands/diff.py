"""`tracemap diff`: two runs or bundles compared."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

import click
from msgspec import structs

from tracemap.attribution.model import split_rule_text
from tracemap.commands.framework import PATH, options_command
from tracemap.commands.programs import program_of
from tracemap.commands.runs import (
    Details,
    check_damage_on_failure,
    check_exist,
    check_named_once,
    check_not_inputs,
    check_outputs,
    common_peaks,
    find_bundle,
    join_runs,
    newest_runs,
    unchanged_module,
)
from tracemap.commands.streams import is_brief, print_message, print_warning, show_in_format, show_phases
from tracemap.compare.model import RUNS_MISSING, Match
from tracemap.core.codec import Record, decode, encode
from tracemap.core.diagnostics import Diagnostic
from tracemap.core.errors import ProgramFailed, QueryInvalid, TargetUnwritable, ToolMissing, TracemapError, UsageInvalid
from tracemap.core.files import FileFormat, format_of_file, is_file, is_stream, write_output_of
from tracemap.core.process.children import path_argument
from tracemap.core.process.forked import in_child_process
from tracemap.core.toolchain import Progress, no_progress
from tracemap.kernels.model import ComparedFunction, ComparedOutput
from tracemap.options.kernels import SwapOptions
from tracemap.options.measure import RunOptions, call_of
from tracemap.options.reports import DiffOptions
from tracemap.options.results import Rule

if TYPE_CHECKING:
    from tracemap.attribution.model import Attribution
    from tracemap.capture.calling import Call
    from tracemap.capture.outputs import Array, Tolerance
    from tracemap.compare.model import Comparison, Comparisons, Finding, FusionChange
    from tracemap.compare.sides import Configurations, Side
    from tracemap.map.bundle import Bundle
    from tracemap.map.memory_use import MemoryUse
    from tracemap.runs.model import Peaks


# ---- matching
#
# Match the ops of two bundles' models, in a child process while this one reads the runs.


_MIN_OPS_FOR_PROCESS: Final = 5_000
"""Number of ops in both models. With fewer ops, matching takes less time than starting a process."""


class _MatchResult(Record, frozen=True):
    """Result of the child process."""

    same_model: bool
    matches: tuple[Match, ...]


def matched_models(before: Bundle, after: Bundle) -> Sequence[Match] | None:
    """Match the ops of two bundles' models; None: both have the same model.

    Raises:
        UsageInvalid: a bundle does not contain its model.
        ToolMissing: the models differ, and the compiler, which parses them, is not installed.
    """
    from tracemap.compare.matching import match_flows

    models = [bundle.model() for bundle in (before, after)]
    if before.map_sha256 == after.map_sha256 or (models[0] and models[0] == models[1]):
        return None
    for bundle, model in zip((before, after), models, strict=True):
        if not model:
            raise UsageInvalid(
                f"{bundle.path}: does not contain its model, so its ops cannot be matched; "
                "build it without --no-sources"
            )
    try:
        from tracemap.map.build.model.dataflow import FlowBuilder
    except ImportError as error:
        raise ToolMissing(
            "IREE's compiler is not installed, and different models cannot be matched without it: "
            "pip install iree-base-compiler"
        ) from error
    flows = FlowBuilder()
    with check_damage_on_failure(before, after):
        files = before.graph.sources[0].name, after.graph.sources[0].name
        matches = match_flows(flows.of(models[0]), flows.of(models[1]), files)
    known = before.graph.op_by_id, after.graph.op_by_id
    return [match for match in matches if match.before in known[0] and match.after in known[1]]


@contextmanager
def matching(before: Bundle, after: Bundle) -> Iterator[Callable[[], Sequence[Match] | None]]:
    """Start `matched_models`; yields a function that waits for the result and raises its errors."""

    def match_models() -> bytes:
        matches = matched_models(before, after)
        return encode(_MatchResult(matches is None, tuple(matches or ())))

    ops = len(before.graph.ops) + len(after.graph.ops)
    use_process = ops >= _MIN_OPS_FOR_PROCESS and before.map_sha256 != after.map_sha256
    with in_child_process(match_models, worth_it=use_process) as wait_for_bytes:

        def wait() -> Sequence[Match] | None:
            result = decode(wait_for_bytes(), _MatchResult)
            return None if result.same_model else result.matches

        yield wait


# ---- comparing
#
# Call two bundles of one model with the same inputs, and compare their outputs.


@dataclass(frozen=True, slots=True)
class Reference:
    """A call of a function of the original bundle, with its outputs."""

    call: Call
    tolerance: Tolerance
    outputs: list[Array]


def references(bundle: Bundle, options: SwapOptions, folder: Path, progress: Progress) -> list[Reference]:
    """Call functions of the original bundle: the one in the options, or all functions without inputs.

    Args:
        bundle: the original.
        options: the function, its inputs, and the tolerance for outputs.
        folder: folder for inputs and outputs; it must exist as long as the references are used.
        progress: receives the phase of the work.

    Raises:
        TracemapError: see `commands.run.run`.
    """
    from tracemap.capture.calling import make_calls
    from tracemap.capture.outputs import RUN_TOOL, call_for_arrays, output_request

    run_options = RunOptions(atol=options.atol, rtol=options.rtol, exact=options.exact, **call_of(options))
    results = []
    calls = make_calls(program_of(bundle, options), run_options, RUN_TOOL, folder)
    with unchanged_module(bundle):
        for planned in calls:
            call, asked = output_request(planned, run_options)
            progress(f"calling {call.entry.name} of the original")
            results.append(Reference(call, asked.tolerance, call_for_arrays(call, folder)))
    return results


def compare_with_references(
    bundle: Bundle, new: Bundle, references: list[Reference], folder: Path, progress: Progress
) -> Iterator[ComparedFunction]:
    """Call the same functions of the new bundle, and compare their outputs with the references."""
    from tracemap.capture.outputs import call_for_arrays, compare_outputs

    for reference in references:
        function = reference.call.entry.name
        progress(f"calling {function} of the new bundle")
        inputs = tuple(item.said for item in reference.call.inputs)
        try:
            outputs = call_for_arrays(reference.call.with_module(bundle.module_path, new.module_path), folder)
        except ProgramFailed as error:
            yield ComparedFunction(function, inputs, (), str(error))
            continue
        results = compare_outputs(outputs, reference.outputs, reference.tolerance)
        rows = tuple(ComparedOutput(output.place, output.type, output.said, output.matches) for output in results)
        yield ComparedFunction(function, inputs, rows, "")


# ---- diff
#
# Compare two runs or bundles by the ops of their models.


SidePaths = Sequence[Path]
"""One side of a comparison: a bundle, or runs of one bundle."""


def diff(
    before: Path | SidePaths, after: Path | SidePaths, options: DiffOptions, progress: Progress = no_progress
) -> Comparison:
    """Compare two sides, where a side is a bundle or one or more runs.

    A bundle stands for its newest run, or for all runs of its newest `record --repeat`. If a side has no run, only the
    maps are compared.

    Raises:
        TracemapError: see `commands.runs.join_runs` and `map.bundle.load`.
        UsageInvalid: a side lacks the metric, a bundle does not contain its model, or the options name a baseline.
        ToolMissing: the models differ, and the compiler, which parses them, is not installed.
        TargetExists, TargetUnwritable: the output cannot be written.
    """
    if options.baseline is not None:
        raise UsageInvalid(f"--baseline {options.baseline}: two sides are named already; leave --baseline out")
    base, other = ([side] if isinstance(side, Path) else side for side in (before, after))
    check_outputs(options.output, options.html, force=options.force, runs=(*base, *other))
    (comparison,) = _compare_sides(base, [other], [options.html], options, progress)
    if options.output is not None:
        write_output_of(partial(show_diff, comparison, options), options.output)
    return comparison


def diffs(base: Path, others: Sequence[Path], options: DiffOptions, progress: Progress = no_progress) -> Comparisons:
    """Compare several bundles or runs with one baseline; `pages_of` names their pages.

    Raises:
        TracemapError: see `diff`.
    """
    from tracemap.compare.model import Comparisons

    pages = pages_of(options.html, others)
    check_outputs(options.output, *pages, force=options.force, runs=(base, *others))
    sides = [[path] for path in others]
    compared = _compare_sides([base], sides, pages or [None] * len(others), options, progress)
    comparisons = Comparisons(comparisons=tuple(compared))
    if options.output is not None:
        write_output_of(partial(show_diffs, comparisons, options), options.output)
    return comparisons


def pages_of(page: Path | None, others: Sequence[Path]) -> list[Path]:
    """Paths of the pages of several comparisons: `diff.html` becomes `diff-O3.html` for `O3.tracemap`.

    Equal names get a number. Streams, such as standard output, keep their name. No page, no paths.

    Raises:
        TargetUnwritable: the page is a folder.
    """
    if page is None or is_stream(page):
        return [] if page is None else [page] * len(others)
    if os.path.isdir(page):  # noqa: PTH112 - Path.is_dir raises for long names
        raise TargetUnwritable(f"{page}: is a folder; name a file")
    pages: list[Path] = []
    for other in others:
        first = page.with_stem(f"{page.stem}-{other.resolve().stem}")
        numbered = (first.with_stem(f"{first.stem}-{number}") for number in count(2))
        pages.append(next(path for path in chain([first], numbered) if path not in pages))
    return pages


def _compare_sides(
    before: SidePaths,
    others: Sequence[SidePaths],
    pages: Sequence[Path | None],
    options: DiffOptions,
    progress: Progress,
) -> Iterator[Comparison]:
    """Compare every other side with the first one, whose runs are read only once per rule."""
    check_exist([*before, *chain.from_iterable(others)])
    _check_read_once([*before, *chain.from_iterable(others)])
    base = _read_side(before, options.map_a)
    other_inputs = [_read_side(side, options.map_b) for side in others]
    inputs, targets = (base, *other_inputs), (options.output, *pages)
    runs = [run for side in inputs for run in side.runs]
    if not all(side.runs for side in inputs):
        check_exist(runs, least=1)  # they are not read then
    check_not_inputs(*targets, runs=runs, bundles=[side.known.path for side in inputs if side.known is not None])
    peaks = common_peaks(runs)

    def joined_side(side: _SideInput, with_runs: bool, rule: Rule | None) -> _Side:
        return _joined(*side.to_join(with_runs), replace(options, rule=rule), peaks, progress)

    first = cache(partial(joined_side, base))
    for other, page in zip(other_inputs, pages, strict=True):
        # If a side has no run, only the maps are compared.
        with_runs = bool(base.runs and other.runs)
        base_bundle, bundle = base.to_join(with_runs)[0], other.to_join(with_runs)[0]
        # Matching can start now if both bundles are known before the join.
        with nullcontext() if base_bundle is None or bundle is None else matching(base_bundle, bundle) as early:
            sides = first(with_runs, options.rule), joined_side(other, with_runs, options.rule)
            notes: list[Diagnostic] = []
            if options.rule is None and (rule := _common_rule(sides)) and _are_files([*base.runs, *other.runs]):
                sides = first(with_runs, rule), joined_side(other, with_runs, rule)
                notes.append(
                    Diagnostic(
                        f"split-by-{rule.value}",
                        "the runs differ in their samples or simulated counts, so the costs of both sides are split by "
                        f"the rule {rule.value}; otherwise ops with equal code would differ. Choose another rule with "
                        "--rule",
                    )
                )
            check_not_inputs(*targets, bundles=[side[0].path for side in sides])
            comparison = _pair(*sides, early or partial(matched_models, sides[0][0], sides[1][0]), options, progress)
        if bool(base.runs) != bool(other.runs):
            lack, unused = (sides[0][0].path, "after") if other.runs else (sides[1][0].path, "before")
            text = f"runs are not used, since {lack} has none; record one: tracemap record {shlex.quote(str(lack))}"
            notes.append(Diagnostic(RUNS_MISSING, f"{unused}: {text}"))
        comparison = structs.replace(comparison, diagnostics=(*comparison.diagnostics, *notes))
        if page is not None:
            from tracemap.reports.diff.render import write_diff_page

            progress("writing the page")
            write_diff_page(comparison, *sides, page, force=options.force)
        yield comparison


@dataclass(frozen=True)
class _SideInput:
    """Input of one side: its runs, the bundle that the command names, and the bundle known from it or from the runs.

    Runs of foreign tools name no bundle. Runs that need a conversion name theirs only after it.
    """

    runs: SidePaths
    bundle: Bundle | None
    known: Bundle | None

    def to_join(self, with_runs: bool) -> tuple[Bundle | None, SidePaths]:
        """The bundle and the runs to join onto it; without runs, only a bundle that the command names counts."""
        return (self.known, self.runs) if with_runs else (self.bundle, [])


def bundle_of_side(side: Path, bundle: Path | None) -> Bundle:
    """The bundle of a side, or the one that is named for it.

    Raises:
        UsageInvalid: the side is a run that names no bundle.
        BundleInvalid: the bundle cannot be read.
    """
    known = _read_side([side], bundle).known
    if known is None:
        raise UsageInvalid(f"{side}: does not say which bundle it is of; name it with --map-b")
    return known


def _are_files(runs: SidePaths) -> bool:
    """Whether runs can be read again."""
    return all(is_file(str(run)) for run in runs)


_Side = tuple["Bundle", "Side"]
_Matching = Callable[[], "Sequence[Match] | None"]


def _common_rule(sides: Sequence[_Side]) -> Rule | None:
    """Rule without samples that works for both sides: `code`, or `model` if a kernel has no machine code.

    None: both sides split costs by the same rule and the same kinds of samples.
    """
    attributions = [attribution for _, side in sides for attribution in side.attributions]
    if len(set(map(split_rule_text, attributions))) <= 1:
        return None
    return Rule.MODEL if Rule.MODEL in {attribution.rule for attribution in attributions} else Rule.CODE


def _check_read_once(runs: SidePaths) -> None:
    """Reject standard input or a pipe that is named twice, since it can be read only once."""
    files = [str(run) for run in runs if not os.path.isdir(run)]  # noqa: PTH112 - as in `pages_of`
    streams = [name for name in files if not is_file(name)]
    if again := [name for name in streams if streams.count(name) > 1]:
        raise UsageInvalid(f"{again[0]}: is named twice but can be read only once; write it to a file first")


def _pair(before: _Side, after: _Side, matched: _Matching, options: DiffOptions, progress: Progress) -> Comparison:
    from tracemap.compare.changes import memory_differences
    from tracemap.compare.compare import compare, match_by_identity

    first, second = before[1], after[1]
    progress("matching ops")
    matched_ops = matched()
    matches = match_by_identity(first, second) if matched_ops is None else matched_ops
    progress("comparing")
    # The minimum change to report is the smaller of both options.
    threshold = min(options.threshold, options.fail_over) if isinstance(options.fail_over, float) else options.threshold
    comparison = compare(first, second, matches, same_model=matched_ops is None, threshold=threshold, raw=options.raw)
    memory = memory_differences((first, _memory_of(before)), (second, _memory_of(after)), matches)
    comparison = structs.replace(comparison, memory=tuple(memory))
    if options.only is not None:
        comparison = _changes_of(comparison, options.only, before[0], after[0])
    if options.metric is not None and options.metric not in [metric.name for metric in comparison.metrics]:
        names = ", ".join(metric.name for metric in comparison.metrics) or "none"
        raise UsageInvalid(f"--metric {options.metric}: a side lacks this metric; common metrics are: {names}")
    return comparison


def _changes_of(comparison: Comparison, what: str, before: Bundle, after: Bundle) -> Comparison:
    """The comparison with only the changes of the ops that a text names on either side.

    Raises:
        QueryInvalid: neither side has this name.
    """
    from tracemap.map.query import ops_of, resolve

    names: list[frozenset[str]] = []
    errors: list[QueryInvalid] = []
    for bundle in (before, after):
        try:
            target = resolve(bundle.graph, what, bundle.source_text)
            names.append(frozenset(op.id for op in ops_of(bundle.graph, target.names)))
        except QueryInvalid as error:
            names.append(frozenset())
            errors.append(error)
    if len(errors) == len(names):
        raise errors[-1]

    def is_named(change: Finding | FusionChange) -> bool:
        return change.before in names[0] or change.after in names[1]

    return structs.replace(
        comparison,
        findings=tuple(filter(is_named, comparison.findings)),
        regrouped=tuple(filter(is_named, comparison.regrouped)),
    )


def _memory_of(side: _Side) -> list[MemoryUse]:
    """The memory of the functions that a side's runs called, or without runs of all functions."""
    from tracemap.commands.memory import memory_of_page

    bundle, own = side
    if not own.attributions:
        return memory_of_page(bundle, None)
    headers = {attribution.run.function: attribution.run for attribution in own.attributions}
    return [use for header in headers.values() for use in memory_of_page(bundle, header)]


def _read_side(paths: SidePaths, bundle: Path | None) -> _SideInput:
    """Bundle and runs of one side's arguments."""
    from tracemap.map.bundle import load
    from tracemap.runs.readers.formats import reader_of

    for path in paths:
        if format_of_file(path) not in (None, FileFormat.BUNDLE, FileFormat.FOLDER, FileFormat.RUN):
            reader_of(path)  # rejects files that are no run
    folder = next((path for path in paths if os.path.isdir(path)), None)  # noqa: PTH112 - Path.is_dir raises for long names
    if folder is None:
        opened_bundle = None if bundle is None else load(bundle)
        return _SideInput(paths, opened_bundle, opened_bundle or _bundle_of_runs(paths))
    if len(paths) > 1:
        raise UsageInvalid(f"{folder}: is a bundle among other arguments; a side is one bundle, or runs of one bundle")
    if bundle is not None:
        raise UsageInvalid(f"{folder}: is a bundle itself; use --map-a and --map-b only for runs")
    loaded = load(folder)
    return _SideInput(newest_runs(loaded), loaded, loaded)


def _bundle_of_runs(runs: SidePaths) -> Bundle | None:
    """Bundle of the runs, if the first run names it without a conversion; other bundles are found at the join."""
    from tracemap.map.bundle import load
    from tracemap.runs.runfile import read_run

    if runs and is_file(str(runs[0])):
        with suppress(TracemapError):  # the join reports errors of the run
            return load(find_bundle(read_run(runs[0]), runs[0]))
    return None


def _joined(
    loaded: Bundle | None, runs: SidePaths, options: DiffOptions, peaks: Peaks | None, progress: Progress
) -> _Side:
    from tracemap.compare.sides import Side
    from tracemap.machine.images import read_images
    from tracemap.map.build_cost import build_cost

    attributions: list[Attribution] = []
    check_named_once(runs)
    for run in runs:
        attributed = join_runs([run], loaded, options, progress, Details(series=len(runs) > 1, peaks=peaks))
        loaded = attributed.bundle
        attributions.append(attributed.attribution)
    if len(runs) > 1:
        from tracemap.attribution.attribute import check_addable

        check_addable([(str(run), result.run) for run, result in zip(runs, attributions, strict=True)])
    if loaded is None:
        raise UsageInvalid("a run cannot be compared with a bundle that has no run: record one for the bundle")
    names = tuple(run.name for run in runs)
    images = partial(read_images, loaded.module_path)
    remarks = loaded.remarks() if loaded.has_remarks else None
    cost = build_cost(loaded) if loaded.timing() is not None else None
    known = remarks, loaded.compile_times(), cost, partial(_configurations, loaded)
    return loaded, Side(loaded.name, loaded.map_sha256, loaded.graph, names, tuple(attributions), images, *known)


def _configurations(bundle: Bundle) -> Configurations:
    """The lowering configurations of a bundle's kernels; empty if it does not keep them, or nothing can parse them."""
    with suppress(ImportError, TracemapError):
        from tracemap.ir.parsing import MlirParser
        from tracemap.kernels.configurations import settings_of_kernels

        return settings_of_kernels(MlirParser().parse(bundle.configured()))
    return {}


def show_diff(comparison: Comparison, options: DiffOptions, out: TextIO) -> None:
    """Write a comparison to a stream, in the format of the options."""

    def text(stream: TextIO) -> None:
        if options.format == "csv":
            from tracemap.reports.csv_tables import diff_csv

            stream.write(diff_csv(comparison))
        else:
            from tracemap.reports.terminal.diff import print_diff

            print_diff(comparison, stream, options)

    def value() -> object:
        if is_brief():
            from tracemap.reports.brief import comparison_with_changes

            return comparison_with_changes(comparison, options)
        return comparison

    show_in_format(options.format, out, text, value, words=_words_of_sides(options))


def _words_of_sides(options: DiffOptions) -> dict[str, Sequence[str]]:
    """The sides as typed, and their bundles, for the commands that a brief form names."""
    from tracemap.map.bundle import is_bundle

    context = click.get_current_context(silent=True)
    sides: tuple[Path, ...] = () if context is None else context.params.get("sides", ())
    if len(sides) != 2 or options.baseline is not None:
        return {}
    words: dict[str, Sequence[str]] = {"sides": [path_argument(side) for side in sides]}
    for name, side, bundle in zip(("before", "after"), sides, (options.map_a, options.map_b), strict=True):
        words[name] = [path_argument(side)] + ([] if bundle is None else ["--map", path_argument(bundle)])
        if own := bundle or (side if is_bundle(side) else None):
            words[f"{name}_bundle"] = [path_argument(own)]
    return words


def show_diffs(comparisons: Comparisons, options: DiffOptions, out: TextIO) -> None:
    """Write several comparisons to a stream: one after the other as text, or as one JSON document."""

    def text(stream: TextIO) -> None:
        for index, comparison in enumerate(comparisons.comparisons):
            stream.write("\n" if index else "")
            show_diff(comparison, options, stream)

    show_in_format(options.format, out, text, lambda: comparisons)


def findings_over_limit(comparison: Comparison, options: DiffOptions) -> list[str]:
    """Texts of the findings whose cost grew by more than `--fail-over`; empty without this option."""
    if not isinstance(options.fail_over, float):
        return []
    from tracemap.compare.findings import regressions
    from tracemap.reports.terminal.diff import finding_text

    return [finding_text(finding) for finding in regressions(comparison.findings, options.fail_over)]


# ---- command line


@options_command("diff", DiffOptions)
@click.argument("sides", metavar="A [vs] B", type=PATH, nargs=-1, required=True)
def command(sides: tuple[Path, ...], options: DiffOptions) -> None:
    """Compare A and B: which ops cost more or less in B, which are fused differently, and which are new.

    A and B are runs or bundles. A bundle stands for its newest run, or for all runs of its newest `record --repeat`. If
    a bundle has no run, only the maps are compared. To account for variation between runs, give several runs per side,
    with the word `vs` between the sides. Ops are matched by what they compute, regardless of their names and positions.
    With --fail-over, the exit status is 1 if something costs more.

    \b
    Example:
      tracemap diff old.tracemap new.tracemap
      tracemap diff old.parquet new.parquet --by scope --fail-over 5
      tracemap diff a1.parquet a2.parquet a3.parquet vs b1.parquet b2.parquet
      tracemap diff --baseline O0.tracemap O2.tracemap O3.tracemap
    """
    with show_phases("diff") as progress:
        if options.baseline is not None:
            others = _others(sides, options)
            several = diffs(options.baseline, others, options, progress)
            comparisons, show = several.comparisons, partial(show_diffs, several)
            for page in pages_of(options.html, others):
                print_message(f"page: {page}")
        else:
            one = diff(*_two_sides(sides), options, progress)
            comparisons, show = (one,), partial(show_diff, one)
    if options.output is None:
        show(options, sys.stdout)
    if slower := [line for comparison in comparisons for line in findings_over_limit(comparison, options)]:
        for line in slower:
            print_warning(f"over {options.fail_over:g} %: {line}")
        sys.exit(1)


_VS = Path("vs")
"""Separator between two sides; a file with this name is `./vs`."""


def _two_sides(words: tuple[Path, ...]) -> tuple[Sequence[Path], Sequence[Path]]:
    """Split the arguments at `vs`, which two paths do not need; reject other than two sides."""
    if _VS not in words and len(words) == 2:
        return words[:1], words[1:]
    index = words.index(_VS) if _VS in words else len(words)
    before, after = words[:index], words[index + 1 :]
    if not before or not after or _VS in after:
        raise UsageInvalid("name two sides: A B, or several runs per side as A1 A2 vs B1 B2; or one with --baseline")
    return before, after


def _others(words: tuple[Path, ...], options: DiffOptions) -> Sequence[Path]:
    """Sides to compare with the baseline; reject `vs`, and a format that holds only one comparison."""
    if _VS in words:
        raise UsageInvalid("vs: --baseline compares every argument with the baseline; leave vs out")
    if options.format == "csv":
        raise UsageInvalid("--format csv holds only one comparison; leave --baseline out, or choose text or json")
    return words
