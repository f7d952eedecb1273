"""`tracemap check`: what a new build made worse, for continuous integration."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tracemap.commands.diff import bundle_of_side, diff
from tracemap.commands.framework import PATH, options_command
from tracemap.commands.runs import check_outputs
from tracemap.commands.streams import print_diagnostics, print_warning, show_phases
from tracemap.compare.model import RUNS_MISSING
from tracemap.core.errors import TargetUnwritable
from tracemap.core.files import write_text
from tracemap.core.toolchain import Progress, no_progress
from tracemap.core.units import Unknown
from tracemap.options.reports import CheckOptions, DiffOptions

if TYPE_CHECKING:
    from tracemap.compare.model import Comparison
    from tracemap.reports.ci import Problem


_JOB_SUMMARY: Final = "GITHUB_STEP_SUMMARY"
"""The variable with the file that GitHub Actions shows as the summary of a job."""


@dataclass(frozen=True)
class Check:
    """The comparison of a new build with its baseline, and the problems of the new one, errors first."""

    comparison: Comparison
    problems: tuple[Problem, ...]

    @property
    def has_failed(self) -> bool:
        """Whether a problem is an error."""
        return any(problem.level == "error" for problem in self.problems)

    def shown(self, *, in_github: bool) -> str:
        """One line per problem: GitHub's annotations, or `FILE:LINE: level: text` as compilers print it."""
        from tracemap.reports.ci import compiler_lines, github_annotations

        return github_annotations(self.problems) if in_github else compiler_lines(self.problems)


def check(before: Path, after: Path, options: CheckOptions, progress: Progress = no_progress) -> Check:
    """Compare a new build with its baseline, and write the files that the options name.

    Raises:
        TracemapError: see `diff`.
        UsageInvalid: a run of the new side names no bundle.
        TargetUnwritable: a file cannot be written.
    """
    from tracemap.kernels.program_numerics import kept_numerics
    from tracemap.reports.ci import junit, markdown, problems_of, sarif

    check_outputs(options.sarif, options.junit, options.markdown, force=options.force, runs=(before, after))
    names = ("threshold", "map_a", "map_b", "raw", "rule", "memory")
    copied = {name: getattr(options, name) for name in names}
    comparison = diff(before, after, DiffOptions(fail_over=options.fail_over, **copied), progress)
    bundle = bundle_of_side(after, options.map_b)
    numerics = kept_numerics(bundle)
    culprit = numerics.culprit if numerics is not None else None
    problems = problems_of(comparison, bundle.graph, culprit, options.fail_over)
    for target, text in (
        (options.sarif, partial(sarif, problems)),
        (options.junit, partial(junit, comparison, problems)),
        (options.markdown, partial(markdown, comparison, problems)),
    ):
        if target is not None:
            write_text(text(), target)
    summary = os.environ.get(_JOB_SUMMARY, "")
    if summary and options.markdown is None:
        _append(Path(summary), markdown(comparison, problems))
    return Check(comparison, problems)


def _append(file: Path, text: str) -> None:
    try:
        with file.open("a", encoding="utf-8", errors="replace") as stream:
            stream.write(text)
    except OSError as error:
        raise TargetUnwritable(f"{file}: cannot be written: {error.strerror} (the variable {_JOB_SUMMARY})") from error


@options_command("check", CheckOptions)
@click.argument("baseline", metavar="BASELINE", type=PATH)
@click.argument("new", metavar="NEW", type=PATH)
def command(baseline: Path, new: Path, options: CheckOptions) -> None:
    """Fail if NEW is worse than BASELINE: slower ops, more memory, ops that cannot be followed, wrong numbers.

    BASELINE and NEW are runs or bundles, as in `tracemap diff`. The exit status is 1 if a cost grew significantly by
    more than --fail-over percent, if an op has the outcome `unknown` now, or if `tracemap numerics` found a fault.
    Problems are printed one per line, at the line of your Python, ONNX or MLIR file. In GitHub Actions they are
    annotations of the pull request, and the summary of the job has a table.

    \b
    Example:
      tracemap check main.tracemap new.tracemap --fail-over 5
      tracemap check main.tracemap new.tracemap --sarif tracemap.sarif
      tracemap check main.parquet new.parquet --junit tracemap.xml
    """
    with show_phases("check") as progress:
        result = check(baseline, new, options, progress)
    # Without runs of both sides, no op can be slower: a job must not look as if it had compared times.
    print_diagnostics(item for item in result.comparison.diagnostics if item.slug == RUNS_MISSING)
    if isinstance(result.comparison.before.run, Unknown) and isinstance(result.comparison.after.run, Unknown):
        print_warning("no times were compared, since neither side has a run; record both: tracemap record BUNDLE")
    sys.stdout.write(result.shown(in_github="GITHUB_ACTIONS" in os.environ))
    sys.exit(1 if result.has_failed else 0)
