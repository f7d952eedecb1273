"""`tracemap what-if`: what the program gains if an op, line, scope or kernel gets faster, or with other workers."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

import click

from tracemap.commands.framework import PATH, options_command
from tracemap.commands.runs import BundleAttribution, open_and_join_runs, runs_of_bundles
from tracemap.commands.streams import print_message, show_in_format, show_phases
from tracemap.core.errors import QueryInvalid, UsageInvalid
from tracemap.core.toolchain import Progress, no_progress
from tracemap.core.units import UNKNOWN, join_names, plural
from tracemap.options.reports import ALL_OVERHEAD, WhatIfOptions

if TYPE_CHECKING:
    from tracemap.attribution.what_if import ProgramGains
    from tracemap.map.bundle import Bundle
    from tracemap.map.model import OpId
    from tracemap.reports.cost_lookup import MapCosts


def what_if(
    runs: Sequence[Path], bundle: Bundle | None, options: WhatIfOptions, progress: Progress = no_progress
) -> tuple[BundleAttribution, ProgramGains]:
    """Compute the gain of the change that the options name, or of each op.

    Raises:
        TracemapError: see `commands.runs.open_and_join_runs` and `attribution.what_if.what_if`.
        QueryInvalid: nothing has the name, or it is in no dispatch.
        UsageInvalid: the options contradict each other.
    """
    from tracemap.map.bundle import load

    check_options(options)
    if bundle is None and options.map is not None:
        bundle = load(options.map)
    with open_and_join_runs(runs, bundle, options, progress) as (attributed, _):
        return attributed, gains(attributed.costed, attributed.bundle, options)


_SELECTORS: Final = ("op", "line", "scope", "kernel", "overhead")


def check_options(options: WhatIfOptions) -> None:
    """Reject options that name several changes, or a change that cannot be.

    Raises:
        UsageInvalid: see above.
    """
    selectors = [f"--{name}" for name in _SELECTORS if getattr(options, name) is not None]
    if len(selectors) > 1:
        raise UsageInvalid(f"{join_names(selectors)} name several changes; name one")
    if options.overhead is not None and options.workers is not UNKNOWN:
        raise UsageInvalid("--overhead and --workers are different changes; name one")
    if options.overhead is not None and options.faster == "roofline":
        raise UsageInvalid("--faster roofline: the overhead has no roofline; name a factor, or `removed`")
    parse_factor(options.faster)


_FACTOR: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)x?", re.ASCII)


def parse_factor(text: str) -> float:
    """How many times as fast a change makes its work.

    Raises:
        UsageInvalid: the text is no factor.

    >>> parse_factor("2x"), parse_factor("removed"), parse_factor("roofline")
    (2.0, inf, 0.0)
    """
    from tracemap.attribution.what_if import REMOVED, ROOFLINE

    if text in ("roofline", "removed"):
        return ROOFLINE if text == "roofline" else REMOVED
    match = _FACTOR.fullmatch(text)
    if match is None or not float(match[1]):
        raise UsageInvalid(f"--faster {text}: is no factor above 0, such as 2x, and neither `roofline` nor `removed`")
    return float(match[1])


def gains(costed: MapCosts, bundle: Bundle, options: WhatIfOptions) -> ProgramGains:
    """The gains of the change that the options name, or of all ops."""
    from tracemap.attribution.what_if import (
        UNCHANGED,
        Change,
        TargetGain,
        program_gains,
        ranked_gains,
        what_if,
        what_if_overhead,
    )

    attribution, graph = costed.attribution, costed.graph
    assert attribution is not None
    factor = parse_factor(options.faster)
    name = next((name for name in _SELECTORS if getattr(options, name) is not None), "")
    if options.overhead is not None:
        named = None if options.overhead == ALL_OVERHEAD else ops_named(costed, bundle, options.overhead)
        gain = what_if_overhead(attribution, named, factor)
        target = "overhead" if named is None else f"overhead of {options.overhead}"
        return program_gains(attribution, [TargetGain(target, named or (), factor, gain)])
    if not name and options.workers is UNKNOWN:
        return program_gains(attribution, ranked_gains(graph, attribution, factor))
    what = getattr(options, name) if name else ""
    parts = selected_parts(costed, bundle, name, what) if name else {}
    ops = dict.fromkeys(op for own in parts.values() for op in sorted(own, key=lambda op: op.number))
    gain = what_if(graph, attribution, Change(parts, factor, options.workers))
    workers = "" if options.workers is UNKNOWN else plural(options.workers, "worker")
    target = " with ".join(filter(None, (what, workers)))
    return program_gains(attribution, [TargetGain(target, tuple(ops), factor if name else UNCHANGED, gain)])


def ops_named(costed: MapCosts, bundle: Bundle, what: str) -> tuple[OpId, ...]:
    """The ops that a text names, dispatched or not.

    Raises:
        QueryInvalid: nothing has the name.
    """
    from tracemap.map.query import ops_of, resolve

    return tuple(op.id for op in ops_of(costed.graph, resolve(costed.graph, what, bundle.source_text).names))


def selected_parts(costed: MapCosts, bundle: Bundle, name: str, what: str) -> dict[str, frozenset[OpId]]:
    """The ops that an option names, by their dispatch site or transfer.

    Raises:
        QueryInvalid: nothing has the name, or no kernel.
    """
    from tracemap.map.query import kernels_named
    from tracemap.reports.cost_lookup import parts_by_work

    if name == "kernel":
        kernels = set(kernels_named(costed.graph, what, bundle.source_text))
        sites = (site for site in costed.graph.sites if site.kernel in kernels)
        return {site.id: frozenset(member.op for member in site.members) for site in sites}
    if name == "line" and not re.search(r"\d", what):
        raise QueryInvalid(f"--line {what}: is no line; name one as FILE:LINE, such as model.mlir:12")
    if name == "scope":
        return parts_by_work(costed.occurrences_in_scope(what))
    return parts_by_work(costed.occurrences(what, bundle.source_text))


def show_gains(attributed: BundleAttribution, found: ProgramGains, options: WhatIfOptions, out: TextIO) -> None:
    """Write gains to a stream, in the format of the options."""

    def text(stream: TextIO) -> None:
        from tracemap.reports.terminal.bundles import print_gains

        print_gains(attributed.costed, found, stream, options)

    def value() -> object:
        from tracemap.reports.json_documents import shown_gains

        return shown_gains(found)

    show_in_format("json" if options.json else options.format, out, text, value, attributed.bundle)


# ---- command line


@options_command("what-if", WhatIfOptions)
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=PATH)
def command(runs: tuple[Path, ...], options: WhatIfOptions) -> None:
    """Show what the program gains if an op, line, scope or kernel gets faster, or with other workers.

    A share says where time went; a gain says what the program saves. A gain is smaller if other work ran at the same
    time, or if the device waits for the host. RUN is a run, or a bundle, which stands for its newest run. Without an
    option that names a change, all ops are ranked by the gain of each being --faster.

    \b
    Example:
      tracemap what-if model.tracemap
      tracemap what-if run.parquet --op op12 --faster 2x
      tracemap what-if run.parquet --kernel main_dispatch_3 --faster roofline
      tracemap what-if run.parquet --workers 4
    """
    runs = tuple(runs_of_bundles(runs, print_message))
    with show_phases("what-if") as progress:
        attributed, found = what_if(runs, None, options, progress)
    show_gains(attributed, found, options, sys.stdout)
