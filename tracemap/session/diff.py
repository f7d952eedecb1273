"""Two runs or bundles compared by the ops of their models."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from tracemap.errors import ToolMissing, UsageInvalid
from tracemap.options.diff import DiffOptions
from tracemap.outputs import check_files, show_as, write_shown
from tracemap.session.damage import damage_named
from tracemap.session.runs import joined, newest_runs
from tracemap.toolchain import Progress, no_progress

if TYPE_CHECKING:
    from tracemap.comparison.model import Comparison, Comparisons, Match
    from tracemap.comparison.sides import Compared
    from tracemap.graph.bundle import Bundle

Sides = Sequence[Path]
"""A bundle, or runs of one."""


def diff(
    before: Path | Sides, after: Path | Sides, options: DiffOptions, progress: Progress = no_progress
) -> Comparison:
    """Compare two bundles, or runs of them, of which each side may have several.

    A bundle stands for its newest run, or those of its newest `record --repeat`; where one has none, maps are compared.

    Raises:
        TracemapError: as `session.runs.joined` and `graph.bundle.load` do.
        UsageInvalid: a metric is wanted that one of them does not have; a bundle does not keep its model.
        ToolMissing: models differ, and the compiler, which parses them, is not installed.
        TargetExists, TargetUnwritable: the output cannot be written.
    """
    sides = _paths(before), _paths(after)
    check_files(options.output, options.html, force=options.force, inputs=(*sides[0], *sides[1]))
    made = _compared(*sides, options, progress)
    if options.output is not None:
        write_shown(partial(show_diff, made, options), options.output)
    return made


def diffs(base: Path, others: Sequence[Path], options: DiffOptions, progress: Progress = no_progress) -> Comparisons:
    """Compare each of several with one, before.

    Raises:
        TracemapError: as `diff` does.
    """
    from tracemap.comparison.model import Comparisons

    check_files(options.output, force=options.force, inputs=(base, *others))
    made = Comparisons(comparisons=tuple(_compared([base], [each], options, progress) for each in others))
    if options.output is not None:
        write_shown(partial(show_diffs, made, options), options.output)
    return made


def _paths(side: Path | Sides) -> Sides:
    return [side] if isinstance(side, Path) else side


def _compared(before: Sides, after: Sides, options: DiffOptions, progress: Progress) -> Comparison:
    from tracemap.comparison.comparing import compare

    named = (_named(before, options.map_a), _named(after, options.map_b))
    with_runs = all(runs for _, runs in named)
    sides = [_joined(bundle, runs if with_runs else [], options, progress) for bundle, runs in named]
    (one, first), (two, second) = sides
    progress("matching ops")
    same, matches = _matched(one, two, first, second)
    progress("comparing")
    made = compare(first, second, matches, same_model=same, threshold=options.threshold)
    if options.metric is not None and options.metric not in [metric.name for metric in made.metrics]:
        there = ", ".join(metric.name for metric in made.metrics) or "none"
        raise UsageInvalid(f"--metric {options.metric}: not both have it; the metrics that both have are: {there}")
    if options.html is not None:
        from tracemap.reports.diff.render import write_diff_page

        progress("writing the page")
        write_diff_page(made, (one, first), (two, second), options.html, force=options.force)
    return made


def _named(paths: Sides, bundle: Path | None) -> tuple[Bundle | None, Sides]:
    """The bundle that is named, if any, and the runs, if any, of what was given."""
    from tracemap.graph.bundle import load

    folder = next((path for path in paths if path.is_dir()), None)
    if folder is None:
        return None if bundle is None else load(bundle), paths
    if len(paths) > 1:
        raise UsageInvalid(f"{folder}: is a bundle, beside others; a side is one bundle, or several runs of one")
    if bundle is not None:
        raise UsageInvalid(f"{folder}: is a bundle itself; leave --map-a and --map-b to runs")
    loaded = load(folder)
    return loaded, newest_runs(loaded)


def _joined(loaded: Bundle | None, runs: Sides, options: DiffOptions, progress: Progress) -> tuple[Bundle, Compared]:
    from tracemap.comparison.sides import Compared
    from tracemap.machine.images import read_images

    attribution, each_run = None, []
    if runs:
        made = joined(runs, loaded, options, progress)
        loaded, attribution = made.bundle, made.attribution
        several = runs if len(runs) > 1 else ()
        each_run = [joined([run], loaded, options, progress).attribution for run in several] or [attribution]
    if loaded is None:
        raise UsageInvalid("a run can only be compared with a run: record one of the bundle that has none")
    names = tuple(run.name for run in runs)
    images = partial(read_images, loaded.module_path)
    remarks = loaded.remarks() if loaded.has_remarks else None
    known = remarks, loaded.compile_times()
    return loaded, Compared(
        loaded.path.name, loaded.map_sha256, loaded.graph, names, attribution, tuple(each_run), images, *known
    )


def _matched(one: Bundle, two: Bundle, first: Compared, second: Compared) -> tuple[bool, Sequence[Match]]:
    """Whether it is the same model, and which op is which."""
    from tracemap.comparison.comparing import identical
    from tracemap.comparison.matching import match_flows

    models = [bundle.model() for bundle in (one, two)]
    if one.map_sha256 == two.map_sha256 or (models[0] and models[0] == models[1]):
        return True, identical(first, second)
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
        matches = match_flows(*map(flows.of, models))
    known = first.graph.op_by_id, second.graph.op_by_id
    return False, [match for match in matches if match.before in known[0] and match.after in known[1]]


def show_diff(made: Comparison, options: DiffOptions, out: TextIO) -> None:
    """Write a comparison to a stream, in the format of the options."""

    def text(stream: TextIO) -> None:
        if options.format == "csv":
            from tracemap.reports.csv.diff import diff_csv

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
