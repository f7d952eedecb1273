"""`tracemap diff`: effects of a change, op by op."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click

from tracemap.cli.options import PATH, options_command
from tracemap.cli.streams import show_phases, tell, warn_of
from tracemap.errors import UsageInvalid
from tracemap.options.results import DiffOptions


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
    from tracemap.session.diff import diff, diffs, findings_over_limit, pages_of, show_diff, show_diffs

    with show_phases("diff") as progress:
        if options.baseline is not None:
            others = _others(sides, options)
            several = diffs(options.baseline, others, options, progress)
            comparisons, show = several.comparisons, partial(show_diffs, several)
            for page in pages_of(options.html, others):
                tell(f"page: {page}")
        else:
            one = diff(*_two_sides(sides), options, progress)
            comparisons, show = (one,), partial(show_diff, one)
    if options.output is None:
        show(options, sys.stdout)
    if slower := [line for comparison in comparisons for line in findings_over_limit(comparison, options)]:
        for line in slower:
            warn_of(f"over {options.fail_over:g} %: {line}")
        sys.exit(1)


_VS = Path("vs")
"""Separator between two sides; a file with this name is `./vs`."""


def _two_sides(words: tuple[Path, ...]) -> tuple[Sequence[Path], Sequence[Path]]:
    """Split the arguments at `vs`, which two paths do not need.

    Raises:
        UsageInvalid: the arguments are not two sides.
    """
    if _VS not in words and len(words) == 2:
        return words[:1], words[1:]
    before, after = words[: (index := _index_of_vs(words))], words[index + 1 :]
    if not before or not after or _VS in after:
        raise UsageInvalid("name two sides: A B, or several runs per side as A1 A2 vs B1 B2; or one with --baseline")
    return before, after


def _index_of_vs(words: tuple[Path, ...]) -> int:
    return words.index(_VS) if _VS in words else len(words)


def _others(words: tuple[Path, ...], options: DiffOptions) -> Sequence[Path]:
    """Sides to compare with the baseline.

    Raises:
        UsageInvalid: the arguments contain `vs`, or the format holds only one comparison.
    """
    if _VS in words:
        raise UsageInvalid("vs: --baseline compares every argument with the baseline; leave vs out")
    if options.format == "csv":
        raise UsageInvalid("--format csv holds only one comparison; leave --baseline out, or choose text or json")
    return words
