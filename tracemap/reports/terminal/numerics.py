"""Terminal output of `numerics`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final, TextIO

from tracemap.core.units import join_names, plural
from tracemap.kernels.model import Culprit, Numerics, OutputDeparture, SiteNumerics, Verdict
from tracemap.kernels.program_numerics import culprit_of_number
from tracemap.map.model import Op, TraceGraph
from tracemap.options.kernels import NumericsOptions
from tracemap.reports.escaping import op_line
from tracemap.reports.terminal.tables import Heading, console, number, print_table, say

_WORDS: Final = {Verdict.RIGHT: "right", Verdict.WRONG: "WRONG", Verdict.NOT_VERIFIED: "not verified"}
_RANK: Final = {Verdict.WRONG: 0, Verdict.NOT_VERIFIED: 1, Verdict.RIGHT: 2}


def print_numerics(graph: TraceGraph, found: Numerics, options: NumericsOptions, out: TextIO) -> None:
    """Print a summary, the first NaN, and a table of sites: wrong ones first, then by error.

    Args:
        graph: the map.
        found: the result.
        options: the options of `tracemap numerics`.
        out: the stream.
    """
    terminal = console(out)
    say(terminal, _summary(found))
    if found.culprit is not None:
        say(terminal, _culprit_line(graph, "first wrong", found.culprit))
    for bad in found.first_bad:
        if bad.number.kind == "infinity":
            say(terminal, _culprit_line(graph, "first infinity", culprit_of_number(bad)))
    _print_departures(graph, found, options, out)
    if found.sites and not found.departures:
        _print_sites(graph, found, options, out)
    reasons = dict.fromkeys(site.reason for site in found.sites if site.verdict is Verdict.NOT_VERIFIED)
    for reason in reasons:
        sites = [site for site in found.sites if site.verdict is Verdict.NOT_VERIFIED and site.reason == reason]
        say(terminal, f"not verified: {reason}: {join_names([_site_name(site) for site in sites])}")
    for diagnostic in found.diagnostics:
        say(terminal, f"{diagnostic.slug}: {diagnostic.message}")


def _summary(found: Numerics) -> str:
    counts = {verdict: sum(site.verdict is verdict for site in found.sites) for verdict in Verdict}
    parts = [f"{counts[Verdict.RIGHT]} right", f"{counts[Verdict.WRONG]} wrong"]
    parts.append(f"{counts[Verdict.NOT_VERIFIED]} not verified")
    nans = "no NaN" if not any(output.nans for site in found.sites for output in site.outputs) else "with NaN"
    return f"{found.function}: {plural(len(found.sites), 'dispatch', 'dispatches')}: {', '.join(parts)}, {nans}"


def _site_name(site: SiteNumerics | Culprit) -> str:
    return site.site if isinstance(site.site, str) else site.kernel


def _op_text(graph: TraceGraph, op_id: str) -> str:
    op = graph.op_by_id[op_id]
    return f"{op_id} {op.node or op.name}{_at(op)}"


def _at(op: Op) -> str:
    line = op_line(op)
    return f" ({line})" if line else ""


def _culprit_line(graph: TraceGraph, label: str, culprit: Culprit) -> str:
    by = f"{_op_text(graph, culprit.ops[0])} in " if culprit.ops else ""
    return f"{label}: {by}{_site_name(culprit)}: {culprit.reason}"


def _print_sites(graph: TraceGraph, found: Numerics, options: NumericsOptions, out: TextIO) -> None:
    terminal = console(out)
    has_accumulated = any(site.accumulated is not None for site in found.sites)
    headings = [
        *(Heading("site", least=6), Heading("op", least=5), Heading("line", least=8), Heading("result")),
        *(number("ulps"), number("relative"), *([number("accumulated")] if has_accumulated else [])),
        *(number("least", leave=30), number("largest", leave=30), number("zeros %", leave=40)),
    ]
    ranked = sorted(found.sites, key=lambda site: (_RANK[site.verdict], -_relative(site)))
    shown = ranked[: options.top or None]
    print_table(terminal, "", headings, [_row(graph, site, has_accumulated) for site in shown], gap=False)
    if len(ranked) > len(shown):
        say(terminal, f"… {plural(len(ranked) - len(shown), 'more dispatch', 'more dispatches')}")


def _number(value: float | None, form: str) -> str:
    if value is None:
        return "cancels"
    return "infinite" if value == sys.float_info.max else format(value, form)  # JSON has no infinities


def _relative(site: SiteNumerics) -> float:
    return 0.0 if site.isolated is None else site.isolated.max_rel or 0.0


def _row(graph: TraceGraph, site: SiteNumerics, has_accumulated: bool) -> tuple[str, ...]:
    op = graph.op_by_id[site.ops[0]] if site.ops else None
    isolated, accumulated = site.isolated, site.accumulated
    least = [output.least for output in site.outputs if output.least is not None]
    largest = [output.largest for output in site.outputs if output.largest is not None]
    elements = sum(output.elements for output in site.outputs)
    zeros = sum(output.zeros for output in site.outputs)
    return (
        _site_name(site),
        "" if op is None else op.id,
        "" if op is None else op_line(op),
        _WORDS[site.verdict],
        "" if isolated is None else _number(isolated.max_ulps, ".3g"),
        "" if isolated is None else _number(isolated.max_rel, ".1e"),
        *(["" if accumulated is None else _number(accumulated.max_rel, ".1e")] if has_accumulated else []),
        f"{min(least):.4g}" if least else "",
        f"{max(largest):.4g}" if largest else "",
        f"{100 * zeros / elements:.0f}" if elements else "",
    )


def _print_departures(graph: TraceGraph, found: Numerics, options: NumericsOptions, out: TextIO) -> None:
    if not found.departures:
        return
    terminal = console(out)
    count = sum(departure.departs for departure in found.departures)
    say(terminal, f"differ from {found.against}: {count} of {plural(len(found.departures), 'compared output')}")
    headings = [
        *(Heading("site", least=6), Heading("op", least=5), Heading("line", least=8)),
        *(number("SNR dB"), number("relative"), Heading("other dispatch", leave=20)),
    ]
    ranked: Sequence[OutputDeparture] = found.departures
    shown = ranked[: options.top or None]
    rows = [
        (
            departure.site,
            departure.ops[0],
            op_line(graph.op_by_id[departure.ops[0]]),
            "equal" if departure.snr_db is None else f"{departure.snr_db:.0f}",
            f"{departure.rms_rel:.1e}",
            departure.other_site,
        )
        for departure in shown
    ]
    print_table(terminal, "", headings, rows, gap=False)
    if len(ranked) > len(shown):
        say(terminal, f"… {plural(len(ranked) - len(shown), 'more output')}")
