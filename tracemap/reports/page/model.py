"""Content of the annotated page, as frozen records for templates, scripts and tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tracemap.attribution.model import MetricTotal, PerCall, PerInvocation
from tracemap.core.codec import Record
from tracemap.core.diagnostics import Diagnostic
from tracemap.core.units import UNKNOWN, Integer, format_mean
from tracemap.options.results import Rule
from tracemap.reports.cost_lookup import ElapsedShare
from tracemap.reports.highlight import Coloured
from tracemap.runs.model import UnitPeak

# ---- pictures; amounts are sums over the run, as below


class OverheadRow(Record, frozen=True):
    """A place of the host program that spent time without a kernel.

    Attributes:
        place: its name for people, with the line of a loop.
        ops: its ops, as texts; empty if it belongs to none.
        line: the source line of the first op.
        gaps: number of gaps between kernels; unknown without them.
        parts: the largest parts of its time, in words.
    """

    place: str
    ops: str
    line: str
    gaps: Integer
    ns: int
    parts: str


class TreeNode(Record, frozen=True, array_like=True):
    """A node of a tree of costs.

    Attributes:
        parent: index of its parent, which comes earlier; -1 for the root.
        label: text in the cell.
        kind: `op`, `rest` (ops too small to draw), `no-op`, or the kind of an inner node.
        family: kind of work of an op, else empty.
        leads_to: anchor on the page, or a text about the node.
        amounts: own costs per metric, without descendants.
    """

    parent: int
    label: str
    kind: str
    family: str
    leads_to: str
    amounts: tuple[int, ...]


class Tree(Record, frozen=True):
    """A tree of costs as a list of nodes, parents before children."""

    name: str
    nodes: tuple[TreeNode, ...]


class RoofPoint(Record, frozen=True, array_like=True):
    """An op or kernel in the roofline: its work in all calls, its time, and its roofline time."""

    kind: str
    id: str
    label: str
    operations: int
    bytes: int
    time_ns: int
    roofline_ns: int


class Roofline(Record, frozen=True):
    """The peaks of one core or a GPU, and the ops and kernels below them.

    Attributes:
        metric: index of the metric of the times.
        operations_per_second: peak arithmetic.
        bytes_per_second: peak bandwidth.
        source: origin of the peaks.
        units: peak arithmetic of a GPU in other types and on tensor cores.
        points: ops and kernels.
        unknown: number of ops left out because their work is unknown.
    """

    metric: int
    operations_per_second: int
    bytes_per_second: int
    source: str
    units: tuple[UnitPeak, ...]
    points: tuple[RoofPoint, ...]
    unknown: int


class MemoryRow(Record, frozen=True):
    """A value in memory at the peak: its ops with the line of the first, and the dispatch sites that use it."""

    ops: tuple[str, ...]
    name: str
    line: str
    python: str
    size: str
    share: str
    written_by: tuple[str, ...]
    read_by: tuple[str, ...]


class MemoryCurve(Record, frozen=True):
    """The memory that a function allocates, step by step.

    Attributes:
        function: its name.
        peak: bytes at the peak, as text.
        parts: the same by resource, in words.
        unused: bytes there that hold no value; empty if there are none.
        kept: bytes of constants and variables of the module, which the peak lacks; empty if there are none.
        step: the step of the peak, from 1.
        steps: number of steps.
        allocated: outline of the allocated bytes in SVG, a unit wide per step.
        needed: outline of the bytes of values that are needed.
        rows: the largest values at the peak.
        hidden: number of other values.
    """

    function: str
    peak: str
    parts: str
    unused: str
    kept: str
    step: int
    steps: int
    allocated: str
    needed: str
    rows: tuple[MemoryRow, ...]
    hidden: int


class CallHistogram(Record, frozen=True, array_like=True):
    """Histogram of the wall times of a site's calls in all runs, with 16 bins per octave.

    Attributes:
        none: calls shorter than a nanosecond.
        first: number of the first bin; bin b starts at 2^(b/16) ns.
        counts: calls per bin.
    """

    none: int
    first: int
    counts: tuple[int, ...]


class Pair(Record, frozen=True, array_like=True):
    """Correlation and conditional probabilities of two series.

    Attributes:
        of: index of the series in rows.
        given: index of the series in columns.
        correlation: Pearson's, in hundredths; None if a series is constant.
        table: P(quantile of `of` | quantile of `given`) in 1/10,000, row by row.
    """

    of: int
    given: int
    correlation: int | None
    table: tuple[int, ...]


class CallCorrelations(Record, frozen=True, array_like=True):
    """Correlations between the metrics of a site's calls.

    Attributes:
        run: index of the run, from 1.
        calls: number of calls.
        one_of: sampling interval; 1: all invocations.
        series: index of the metric on the page, and the means of its quantiles, lowest first (None: no call).
        pairs: correlations of two series.
    """

    run: int
    calls: int
    one_of: int
    series: tuple[tuple[int, tuple[int | None, ...]], ...]
    pairs: tuple[Pair, ...]


class TimelineCall(Record, frozen=True, array_like=True):
    """An invocation on the page: index of its run (from 1), its own index, and its time on the run's axis.

    The axis of a run starts at its first event on the page.
    """

    run: int
    invocation: Integer
    begin_ns: int
    end_ns: int
    events: int


class TimelineItem(Record, frozen=True, array_like=True):
    """Content of a span, shared by equal spans.

    Attributes:
        label: text of the span.
        kind: kind of the event.
        sites: dispatch sites that may have made the call.
        ops: ops of a transfer; ops of sites are in the sites' rows.
        scope: index in the timeline's `scopes`, for the colour; -1: none.
        family: kind of work of the site's root op; empty for other events than kernels.
    """

    label: str
    kind: str
    sites: tuple[str, ...]
    ops: tuple[str, ...]
    scope: int
    family: str


class TimelineTrack(Record, frozen=True):
    """Spans that do not overlap, as parallel lists: gap since the previous span, duration, indices of item and call."""

    run: int
    name: str
    kind: str
    gaps: tuple[int, ...]
    durations: tuple[int, ...]
    items: tuple[int, ...]
    calls: tuple[int, ...]


class Timeline(Record, frozen=True):
    """Invocations of the runs, event by event.

    Attributes:
        begins: start of the runs' axes on their own clocks.
        calls: invocations on the page.
        items: contents of spans.
        tracks: spans by track.
        first: index of the invocation shown first.
        scopes: names of the scopes that have a colour.
        note: text on what is left out.
    """

    begins: tuple[int, ...]
    calls: tuple[TimelineCall, ...]
    items: tuple[TimelineItem, ...]
    tracks: tuple[TimelineTrack, ...]
    first: int
    scopes: tuple[str, ...]
    note: str


# ---- tabs
#
# Amounts of a metric are exact integers in its unit: sums over the run, unless they are of single calls or invocations.
# `amount_text` formats them for the markup, and `assets/shared/amounts.js` by the same rules in the script, per
# invocation or as sums. Tuples per metric are in the order of the page's metrics. They are empty in a page without a
# run, and for what was not measured.
#
# The page's script reads these records. Records with many instances are lists of field values there, with one list of
# names (`render.page_json`). Rows of ops and lines are most of a large page, and only the script needs them. They are
# separate (`PageRows`), so that another processor can make them.


class OutcomeCount(Record, frozen=True):
    """The number of ops with an outcome."""

    outcome: str
    ops: int
    share: str


class PageCoverage(Record, frozen=True):
    """Coverage of the model and the program by the map and the run.

    Attributes:
        ops: ops of the model.
        by_outcome: ops by outcome.
        sites: dispatch sites.
        sites_with_members: sites traced to ops.
        load_time_sites: sites that run once at load time; profiles do not contain them.
        uncalled_sites: other sites that did not run; 0 without a run.
        kernels: kernels.
        inferred: ops whose outcome is inferred without a trace in the IR.
    """

    ops: int
    by_outcome: tuple[OutcomeCount, ...]
    sites: int
    sites_with_members: int
    load_time_sites: int
    uncalled_sites: int
    kernels: int
    inferred: int


class Basis(Record, frozen=True, array_like=True):
    """How to show sums: the number to divide them by, and a text for the basis."""

    divisor: int
    basis: str


class MetricBalance(Record, frozen=True):
    """A metric's balance: measured = attributed + unattributed (`unattributed`).

    Attributes:
        work: base of the shares of ops, lines, sites and scopes.
        shown_unit: display unit.
        scale: number of the metric's units in a display unit.
        shown: per invocation, then as sums of the run; both are sums if the number of invocations is unknown.
        known_invocations: whether the number of invocations is known.
    """

    name: str
    unit: str
    measured: int
    attributed: int
    unattributed: int
    work: int
    shown_unit: str
    scale: int
    shown: tuple[Basis, Basis]
    known_invocations: bool


class UnattributedLine(Record, frozen=True):
    """Unattributed cost: slug and text of its reason, number of events, and amounts per metric."""

    reason: str
    text: str
    events: Integer
    amounts: tuple[int, ...]


HEAT_LEVELS = 10
"""Levels of heat above 0; the style sheet has a class for each of them."""


class LineCost(Record, frozen=True, array_like=True):
    """One metric of a source line.

    MLIR: `attributed` adds up over lines. `inclusive` is the whole cost of every dispatch site with an op of the line;
    for call ops and functions, of every site inside the called function.

    Python: `attributed` is *self*, the cost of ops whose innermost frame is the line. `inclusive` is the attributed
    cost of every op with the line in its stack.

    `heat` is 0 (none) to `HEAT_LEVELS`: the square root of the cost relative to the file's hottest line, so that lines
    with a hundredth of its cost still show.
    """

    attributed: int
    inclusive: int
    heat: int


class SourceLine(Record, frozen=True, array_like=True):
    """A line of a source file with ops.

    Attributes:
        ops: ops located on the line; in Python, ops with the line as a frame.
        part_ops: ops with only a part on the line.
        sites: dispatch sites of these ops.
        calls: calls of the sites.
        remark: reason for no cost: not measured (load time), or the outcomes of the ops.
        costs: costs per metric.
        overhead_ns: elapsed time without a kernel that belongs to the line.
    """

    ops: tuple[str, ...]
    part_ops: tuple[str, ...]
    sites: tuple[str, ...]
    calls: Integer
    remark: str
    costs: tuple[LineCost, ...]
    overhead_ns: int = 0


class SourcePage(Record, frozen=True):
    """A source file of the bundle.

    Attributes:
        index: its index in anchors (`F0L12`).
        columns: width of the widest line.
        text: all lines.
        in_markup: the markup has the lines, readable without scripts; the script makes those of long texts.
        colours: coloured ranges by line; empty for MLIR, which the script colours.
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
    """The lines of a source file with ops, by number, and per metric the line numbers by falling cost."""

    lines: Mapping[int, SourceLine]
    hottest: tuple[tuple[int, ...], ...]


class LineLink(Record, frozen=True, array_like=True):
    """A line of a source: text such as `model.mlir:12`, and its anchor, empty if it is not on the page."""

    text: str
    anchor: str


class Percentiles(Record, frozen=True, array_like=True):
    """Median, 10th and 90th percentile: of a site's calls, or of an op over invocations."""

    median: int
    p10: int
    p90: int


class OpCostRow(Record, frozen=True, array_like=True):
    """One metric of an op, as in `tracemap.attribution.model.OpCost`; `likely` is None if unknown."""

    attributed: int
    inclusive: int
    low: int
    high: int
    per_invocation: Percentiles | None
    likely: tuple[int, int] | None = None
    uncertain: bool = False


class GainRow(Record, frozen=True, array_like=True):
    """Gain of the program if an op is twice as fast, in percent of its time, with its interval.

    `reason`: why there is no gain; else empty.
    """

    saved: float
    low: float
    high: float
    reason: str


class ErrorRow(Record, frozen=True, array_like=True):
    """Largest errors in units of the last place: of the dispatch alone, and accumulated from the start."""

    isolated_ulps: Integer
    accumulated_ulps: Integer


class OpRow(Record, frozen=True, array_like=True):
    """A row of the table of ops. For ops that were not measured, `calls` is unknown and `costs` empty.

    `node` is the name of the op's ONNX node, with its scope; else empty. `errors`: None if nothing was compared.
    """

    id: str
    name: str
    line: LineLink
    python: LineLink
    function: str
    scope: str
    pass_name: str
    outcome: str
    reason: str
    kernels: tuple[str, ...]
    sites: tuple[str, ...]
    calls: Integer
    costs: tuple[OpCostRow, ...]
    node: str = ""
    gain: GainRow | None = None
    errors: ErrorRow | None = None


class MemberRow(Record, frozen=True, array_like=True):
    """An op in a dispatch: evidence, estimated work, and its share of the cost per metric."""

    op: str
    evidence: str
    root: bool
    operations: Integer
    bytes_read: Integer
    bytes_written: Integer
    attributed: tuple[int, ...]


class SiteCostRow(Record, frozen=True, array_like=True):
    """One metric of a dispatch site."""

    total: int
    outliers: int
    per_call: Percentiles | None


class SlowCallRow(Record, frozen=True, array_like=True):
    """A single call: run (from 1), invocation, and times."""

    run: int
    invocation: Integer
    start_ns: Integer
    duration_ns: Integer
    cpu_ns: Integer


class SiteRow(Record, frozen=True, array_like=True):
    """A row of the table of dispatch sites.

    Attributes:
        load_time: runs at load time, so it is not measured.
        remarks: how the cost was split.
        tiles: workgroups of all calls.
        slowest_ns: time of the slowest call.
        errors: None if nothing was compared.
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
    errors: ErrorRow | None = None


class ScopeRow(Record, frozen=True, array_like=True):
    """A scope in the tree of scopes, in program order, parents first.

    `attributed` is the cost of ops directly in the scope; `inclusive` adds nested scopes.
    """

    path: tuple[str, ...]
    ops: int
    attributed: tuple[int, ...]
    inclusive: tuple[int, ...]


class LoopRow(Record, frozen=True):
    """A loop in a kernel's machine code.

    Attributes:
        parent: index of the enclosing loop; -1: none.
        at: index of its first instruction.
        ranges: indices of its instructions (first, last exclusive), nested loops included.
    """

    parent: int
    at: int
    instructions: int
    ops: tuple[str, ...]
    lines: tuple[int, ...]
    ranges: tuple[tuple[int, int], ...] = ()


class KernelPage(Record, frozen=True, rename="camel"):
    """A kernel on the page.

    Attributes:
        lines: its final IR.
        ops: ops by line.
        seen: sums by metric and line; without samples and counts, estimates from the machine code.
        code: address, line and text of instructions.
        seen_at: sums by metric and index of the instruction.
        loops: loops in the machine code.
        no_code: reason for no machine code, or "".
        remarks: compiler remarks: line (0: unknown), pass, count and text.
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
    """Rows of source lines, in the order of sources, and of ops."""

    source_rows: tuple[SourceRows, ...]
    ops: tuple[OpRow, ...]


class AdviceLine(Record, frozen=True):
    """Advice on the next change: a sentence, a command, and the gain as a share of the invocation."""

    text: str
    command: str
    gain: str


class CostTable(Record, frozen=True):
    """A table of the cost of building: its heading, those of its columns, and its rows."""

    heading: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class PageData(Record, frozen=True):
    """The content of a page without its rows.

    Attributes:
        metric: index of the metric shown first; -1 without a run.
        totals: show sums first.
        calls: divisors of numbers of calls and events: per invocation, and for sums.
        facts: pairs of label and value.
        order: indices of sources in the order of their tabs, the user's own source first.
        nodes: number of ONNX nodes; 0: the model does not come from ONNX.
        notices: reasons to doubt the costs, for the top of the page.
        advice: what to change next, the largest gain first, for the top of the page.
        hottest: most expensive ops in the metric shown first.
        elapsed: parts of the elapsed time; empty if unknown.
        overhead: time between kernels by place, largest first.
        invocations: their number, which means of the elapsed time divide by; 1 if it is unknown.
        building: the cost of building; empty unless the bundle records the compiler's time.
        lengths: histograms of calls by site.
        together: correlations by site.
        memory: memory of the functions that allocate some; empty if it is unknown.
    """

    title: str
    order: tuple[int, ...]
    nodes: int
    notices: tuple[str, ...]
    advice: tuple[AdviceLine, ...]
    rule: Rule | None
    metric: int
    totals: bool
    calls: tuple[int, int]
    facts: tuple[tuple[str, str], ...]
    coverage: PageCoverage
    metrics: tuple[MetricBalance, ...]
    unattributed: tuple[UnattributedLine, ...]
    diagnostics: tuple[Diagnostic, ...]
    sources: tuple[SourcePage, ...]
    hottest: tuple[OpRow, ...]
    sites: tuple[SiteRow, ...]
    scopes: tuple[ScopeRow, ...]
    kernels: tuple[KernelPage, ...] = ()
    elapsed: tuple[ElapsedShare, ...] = ()
    overhead: tuple[OverheadRow, ...] = ()
    invocations: int = 1
    building: tuple[CostTable, ...] = ()
    trees: tuple[Tree, ...] = ()
    roofline: Roofline | None = None
    timeline: Timeline | None = None
    lengths: Mapping[str, CallHistogram] = {}
    together: Mapping[str, CallCorrelations] = {}
    memory: tuple[MemoryCurve, ...] = ()


class Page(Record, frozen=True):
    """The content of a page."""

    data: PageData
    rows: PageRows


def amount_text(value: int, metric: MetricBalance, *, totals: bool) -> str:
    """Format a sum over the run, per invocation or as a sum."""
    return format_mean(value, metric.shown[totals].divisor, metric.shown_unit)


def amounts(values: Mapping[str, int], metrics: Sequence[MetricTotal]) -> tuple[int, ...]:
    """Values by metric name, in the order of the metrics."""
    return tuple([values.get(metric.name, 0) for metric in metrics])


def spread(percentiles: PerCall | PerInvocation | None) -> Percentiles | None:
    """A spread; None without calls, or if the invocations are unknown."""
    if percentiles is None:
        return None
    if percentiles.median is UNKNOWN or percentiles.p10 is UNKNOWN or percentiles.p90 is UNKNOWN:
        return None
    return Percentiles(percentiles.median, percentiles.p10, percentiles.p90)
