"""What an annotated page says, as plain frozen data: tests assert on these, templates only loop over them.

Amounts of a metric are exact integers in its unit, as the engine has them: sums over the run, but for what is said to
be of single calls or invocations. They are divided, and made texts, where they are shown: by `amount_text` for the
markup, and by the same rules in the page's script (`assets/shared/amounts.js`), which shows them per invocation or as
sums. What is there per metric stands in the order of the page's metrics; it is empty in a page without a run, and for
what was not measured.

The page's script takes these records as they are. Those of which there are many are lists there, in the order of their
fields, whose names are told once (`render.page_json`). What there is for each op and line, which only the script needs,
is most of a large page. It stands apart (`PageRows`), so that another processor can make it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tracemap.attribution.model import MetricTotal, PerCall, PerInvocation
from tracemap.codec import Record
from tracemap.diagnostics import Diagnostic
from tracemap.options.attribute import Rule
from tracemap.reports.highlight.colours import Coloured
from tracemap.reports.page.pictures import CallLengths, CallsTogether, ElapsedPart, Roofline, Timeline, Tree
from tracemap.units import UNKNOWN, Integer, format_mean


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
