"""What the pictures of a page are drawn of, as plain frozen data; amounts are sums over the run, as in `model`."""

from __future__ import annotations

from tracemap.codec import Record
from tracemap.units import Integer


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
