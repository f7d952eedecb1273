"""Data of the annotated page, as frozen records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tracemap.attribution.model import MetricTotal, PerCall, PerInvocation
from tracemap.codec import Record
from tracemap.diagnostics import Diagnostic
from tracemap.options.results import Rule
from tracemap.reports.highlight import Coloured
from tracemap.units import UNKNOWN, Integer, format_mean

# ---- pictures
#
# What the pictures of a page are drawn of, as plain frozen data; amounts are sums over the run, as in `model`.


class ElapsedPart(Record, frozen=True):
    """A part of the elapsed time of all measured calls."""

    name: str
    ns: int


class TreeNode(Record, frozen=True, array_like=True):
    """A node of a tree of costs: the number of its parent, -1 of the root, which comes before it.

    `kind`: `op`, `rest` (of ops too small to be drawn), `no-op`, or what is around ops; `family`: what kind of work an
    op is, empty of all else. `leads_to`: what on the page it is, or a text about it; `amounts`: of itself, without
    those below it.
    """

    parent: int
    label: str
    kind: str
    family: str
    leads_to: str
    amounts: tuple[int, ...]


class Tree(Record, frozen=True):
    """A tree of costs, all nodes in one list, each before those below it."""

    name: str
    nodes: tuple[TreeNode, ...]


class RoofPoint(Record, frozen=True, array_like=True):
    """An op or a kernel, by its id or name: its work in all calls, the time that took, and the one attainable."""

    kind: str
    id: str
    label: str
    operations: int
    bytes: int
    time_ns: int
    attainable_ns: int


class Roofline(Record, frozen=True):
    """The peaks of one core, and how far from them ops and kernels are; `metric` is the number of the one it is of.

    `unknown` counts ops that are left out because their work is not known.
    """

    metric: int
    operations_per_second: int
    bytes_per_second: int
    source: str
    points: tuple[RoofPoint, ...]
    unknown: int


class CallLengths(Record, frozen=True, array_like=True):
    """How many calls of a site, of all runs, took how long: counts of bins from the number `first` on, 16 an octave.

    Bin b begins with 2^(b/16) nanoseconds. `none`: how many took no whole nanosecond.
    """

    none: int
    first: int
    counts: tuple[int, ...]


class Pair(Record, frozen=True, array_like=True):
    """Two of the series: their numbers, Pearson's correlation in hundredths (None: one is constant), and probabilities.

    `table`: of the calls in a quantile of `given`, a column, how many of 10,000 are in each of `of`, a row; row by row.
    """

    of: int
    given: int
    correlation: int | None
    table: tuple[int, ...]


class CallsTogether(Record, frozen=True, array_like=True):
    """How what was measured of a site's calls goes together: of how many calls of which run, one of so many taken.

    `series`: the number of each metric on the page, and the means of its quantiles, the lowest first (None: no call).
    """

    run: int
    calls: int
    one_of: int
    series: tuple[tuple[int, tuple[int | None, ...]], ...]
    pairs: tuple[Pair, ...]


class TimelineCall(Record, frozen=True, array_like=True):
    """A call of the function on the page: the number of its run, from 1, its own, and its time on the run's axis.

    The axis of a run begins with the first of its events that are on the page.
    """

    run: int
    invocation: Integer
    begin_ns: int
    end_ns: int
    events: int


class TimelineItem(Record, frozen=True, array_like=True):
    """What spans are of that are alike: their text, the places that they may be of, and how they are coloured.

    `kind`: of an event; `ops`: of a transfer, those of sites stand with the sites. `scope` is a number in the
    timeline's `scopes`, -1 for none; `family`: the kind of work of the site's root, empty of what is no kernel's.
    """

    label: str
    kind: str
    sites: tuple[str, ...]
    ops: tuple[str, ...]
    scope: int
    family: str


class TimelineTrack(Record, frozen=True):
    """Spans that do not overlap, one entry each in lists that are as long: the time between it and the one before, how
    long it took, and the numbers of its item and of its call.
    """

    run: int
    name: str
    kind: str
    gaps: tuple[int, ...]
    durations: tuple[int, ...]
    items: tuple[int, ...]
    calls: tuple[int, ...]


class Timeline(Record, frozen=True):
    """Calls of the runs, event by event. `begins` are those of the runs' axes on their own clocks.

    `first`: the number of the call that is shown first; `scopes`: names of those that have a colour of their own;
    `note` says what is left out.
    """

    begins: tuple[int, ...]
    calls: tuple[TimelineCall, ...]
    items: tuple[TimelineItem, ...]
    tracks: tuple[TimelineTrack, ...]
    first: int
    scopes: tuple[str, ...]
    note: str


# ---- model
#
# What an annotated page says, as plain frozen data: tests assert on these, templates only loop over them.
#
# Amounts of a metric are exact integers in its unit, as the engine has them: sums over the run, but for what is said
# to be of single calls or invocations. They are divided, and made texts, where they are shown: by `amount_text` for
# the markup, and by the same rules in the page's script (`assets/shared/amounts.js`), which shows them per invocation
# or as sums. What is there per metric stands in the order of the page's metrics; it is empty in a page without a run,
# and for what was not measured.
#
# The page's script takes these records as they are. Those of which there are many are lists there, in the order of
# their fields, whose names are told once (`render.page_json`). What there is for each op and line, which only the
# script needs, is most of a large page. It stands apart (`PageRows`), so that another processor can make it.


class FateCount(Record, frozen=True):
    """How many ops have a fate."""

    fate: str
    ops: int
    share: str


class Coverage(Record, frozen=True):
    """How much of the model and of the program the map and the run account for.

    `load_time_sites` run once at load and are in no profile: not measured. `uncalled_sites` could have been measured
    and did not run; 0 in a page without a run. `inferred` counts the ops whose fate rests on reasoning alone.
    """

    ops: int
    by_fate: tuple[FateCount, ...]
    sites: int
    sites_with_members: int
    load_time_sites: int
    uncalled_sites: int
    kernels: int
    inferred: int


class Shown(Record, frozen=True, array_like=True):
    """How sums are shown: what they are divided by, and of what they are then, in words."""

    divisor: int
    basis: str


class MetricBalance(Record, frozen=True):
    """A metric's balance, measured = attributed + residual.

    `work` is what the shares of ops, lines, sites and scopes are of. `shown_unit` is the unit that amounts are shown
    in; `scale` of the metric's own make one. `shown` says how sums are: per invocation, then of the whole run; both
    are of the whole run where there are no `known_invocations`.
    """

    name: str
    unit: str
    measured: int
    attributed: int
    residual: int
    work: int
    shown_unit: str
    scale: int
    shown: tuple[Shown, Shown]
    known_invocations: bool


class ResidualLine(Record, frozen=True):
    """A cost without an op: slug and sentence of its reason, number of events, and its amount per metric."""

    reason: str
    text: str
    events: Integer
    amounts: tuple[int, ...]


HEAT_LEVELS = 10
"""Each is a class in the style sheet, besides 0 for none."""


class LineCost(Record, frozen=True, array_like=True):
    """One metric of one source line.

    MLIR: `attributed` adds up over lines; `inclusive` is the whole of every site that works for the line (for call ops
    and functions: of every site reached through them), each once. Python: `attributed` is *self* (innermost frame),
    `inclusive` the attributed cost of every op that has the line in its stack. `heat` is 0 (none) to `HEAT_LEVELS`, by
    the square root of the share of the file's hottest line, so that lines of a hundredth of its cost still show.
    """

    attributed: int
    inclusive: int
    heat: int


class SourceLine(Record, frozen=True, array_like=True):
    """A line of a source file that has to do with ops.

    `ops` stand on the line (or, in Python, have it as a frame), `part_ops` have only
    a part there. `sites` work for the line. `remark` says why there is no cost: that it was not measured (work at load)
    or the fates of the line's ops.
    """

    ops: tuple[str, ...]
    part_ops: tuple[str, ...]
    sites: tuple[str, ...]
    calls: Integer
    remark: str
    costs: tuple[LineCost, ...]


class SourcePage(Record, frozen=True):
    """A source file of the bundle: `index` is its number in anchors (`F0L12`); `columns` the width of its widest line.

    `text` has all lines, `colours` what is coloured of each (none of MLIR, which the page's script colours).
    `in_markup`: whether the lines stand there, to be read without scripts, too; those of a long text the script makes.
    """

    index: int
    name: str
    label: str
    language: str
    columns: int
    text: tuple[str, ...]
    in_markup: bool
    colours: Sequence[Sequence[Coloured]]


class SourceRows(Record, frozen=True):
    """Of a source file the lines that have to do with ops, by number, and the numbers by falling cost, per metric."""

    lines: Mapping[int, SourceLine]
    hottest: tuple[tuple[int, ...], ...]


class LineLink(Record, frozen=True, array_like=True):
    """A line of a source: text such as `model.mlir:12`, and its anchor, empty when it is not on the page."""

    text: str
    anchor: str


class Spread(Record, frozen=True, array_like=True):
    """Median, 10th and 90th percentile: of a site over its calls, of an op over invocations."""

    median: int
    p10: int
    p90: int


class OpCostRow(Record, frozen=True, array_like=True):
    """One metric of one op, as in `tracemap.attribution.model.OpCost`; `likely` is None where nothing tells."""

    attributed: int
    inclusive: int
    low: int
    high: int
    per_invocation: Spread | None
    likely: tuple[int, int] | None = None
    uncertain: bool = False


class OpRow(Record, frozen=True, array_like=True):
    """A row of the op table. `calls` is unknown and `costs` empty for ops that were not measured."""

    id: str
    name: str
    line: LineLink
    python: LineLink
    function: str
    scope: str
    fate: str
    reason: str
    kernels: tuple[str, ...]
    sites: tuple[str, ...]
    calls: Integer
    costs: tuple[OpCostRow, ...]


class MemberRow(Record, frozen=True, array_like=True):
    """A member of a site: evidence, estimated work, and its share of the site's cost per metric."""

    op: str
    evidence: str
    root: bool
    operations: Integer
    bytes: Integer
    attributed: tuple[int, ...]


class SiteCostRow(Record, frozen=True, array_like=True):
    """One metric of one site."""

    total: int
    disturbance: int
    per_call: Spread | None


class SlowCallRow(Record, frozen=True, array_like=True):
    """A single call: which it is, the run's number from 1, and its times."""

    run: int
    invocation: Integer
    start_ns: Integer
    duration_ns: Integer
    cpu_ns: Integer


class SiteRow(Record, frozen=True, array_like=True):
    """A row of the site table. `remarks` say how the cost was split; `load_time` sites are unmeasured.

    `tiles` are those of all calls; `slowest_ns` is the time of the slowest call.
    """

    id: str
    kernel: str
    function: str
    path: tuple[str, ...]
    command: str
    load_time: bool
    members: tuple[MemberRow, ...]
    remarks: tuple[str, ...]
    calls: Integer
    tiles: Integer
    imbalance_percent: Integer
    slowest_ns: Integer
    slowest_calls: tuple[SlowCallRow, ...]
    costs: tuple[SiteCostRow, ...]


class ScopeRow(Record, frozen=True, array_like=True):
    """A scope in the tree of scopes, in program order, parents first.

    `attributed` is of the ops that stand in this very scope; `inclusive` adds those of the scopes below.
    """

    path: tuple[str, ...]
    ops: int
    attributed: tuple[int, ...]
    inclusive: tuple[int, ...]


class LoopRow(Record, frozen=True):
    """A loop of a kernel's machine code: the number of the loop around it (-1: none) and of its first instruction."""

    parent: int
    at: int
    instructions: int
    ops: tuple[str, ...]
    lines: tuple[int, ...]


class KernelPage(Record, frozen=True, rename="camel"):
    """A kernel in the page.

    `lines`: its text; `ops`: by line; `seen`: by metric, sums by line; `code`: address, line and text of instructions;
    `seen_at`: by metric, sums by the number of the instruction; `no_code` says why there is no machine code, `""` where
    there is. `remarks`: line (0: unknown), pass, count and text of what the compiler remarked.
    """

    name: str
    sites: tuple[str, ...]
    lines: tuple[str, ...]
    ops: Mapping[int, tuple[str, ...]]
    seen: Mapping[str, Mapping[int, int]]
    code: tuple[tuple[str, int, str], ...]
    seen_at: Mapping[str, Mapping[int, int]]
    loops: tuple[LoopRow, ...]
    no_code: str
    remarks: tuple[tuple[int, str, int, str], ...] = ()


class PageRows(Record, frozen=True):
    """What there is for each line of the sources, in their order, and for each op."""

    source_rows: tuple[SourceRows, ...]
    ops: tuple[OpRow, ...]


class PageData(Record, frozen=True):
    """A page, but for its rows.

    `facts` are label and value; `metric` is the number of the one shown first, -1 without a run; `totals` whether sums
    are shown first. `calls`: what numbers of calls and events are divided by, as `MetricBalance.shown`. `hottest`: the
    ops that cost most of the metric that is shown first. `elapsed` is empty where the parts are not known. `lengths`:
    by site how long its calls took; `together`: how what was measured of them goes together.
    """

    title: str
    rule: Rule | None
    metric: int
    totals: bool
    calls: tuple[int, int]
    facts: tuple[tuple[str, str], ...]
    coverage: Coverage
    metrics: tuple[MetricBalance, ...]
    residual: tuple[ResidualLine, ...]
    diagnostics: tuple[Diagnostic, ...]
    sources: tuple[SourcePage, ...]
    hottest: tuple[OpRow, ...]
    sites: tuple[SiteRow, ...]
    scopes: tuple[ScopeRow, ...]
    kernels: tuple[KernelPage, ...] = ()
    elapsed: tuple[ElapsedPart, ...] = ()
    trees: tuple[Tree, ...] = ()
    roofline: Roofline | None = None
    timeline: Timeline | None = None
    lengths: Mapping[str, CallLengths] = {}
    together: Mapping[str, CallsTogether] = {}


class Page(Record, frozen=True):
    """A whole page."""

    data: PageData
    rows: PageRows


def amount_text(value: int, metric: MetricBalance, *, totals: bool) -> str:
    """A sum over the run for people: per invocation, or as it is."""
    return format_mean(value, metric.shown[totals].divisor, metric.shown_unit)


def amounts(values: Mapping[str, int], metrics: Sequence[MetricTotal]) -> tuple[int, ...]:
    """Values by metric name, in the order of the metrics."""
    return tuple([values.get(metric.name, 0) for metric in metrics])


def spread(of: PerCall | PerInvocation | None) -> Spread | None:
    """A spread; None where there was no call, or the invocations are not known."""
    if of is None or of.median is UNKNOWN or of.p10 is UNKNOWN or of.p90 is UNKNOWN:
        return None
    return Spread(of.median, of.p10, of.p90)
