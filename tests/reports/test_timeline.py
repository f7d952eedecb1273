"""The page's timeline: spans match the run's rows; median and slowest calls; omissions."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

import tracemap
from tests.builders import graph, op, site
from tests.conftest import Built, Recorded
from tests.pages import build_page, render_page
from tests.reports.test_exports import rows_of
from tests.support import check_cli
from tests.timelines import events, layers, page_of_run, written
from tracemap.attribution.attribute import Request, attribute
from tracemap.attribution.call_statistics import BINS_OF_OCTAVE, LEAST_CALLS, QUANTILES
from tracemap.attribution.timeline import TimedEvent, excerpt
from tracemap.commands.runs import excerpts
from tracemap.core.units import UNKNOWN
from tracemap.map.query import scope_of
from tracemap.options.results import Rule
from tracemap.reports.cost_lookup import MapCosts
from tracemap.reports.page.model import Timeline
from tracemap.reports.page.overview_tab import families_of
from tracemap.reports.page.timeline_tab import histograms_by_site, timeline_of
from tracemap.reports.timeline_tracks import tracks_of
from tracemap.runs.runfile import read_run

MODEL = "jax_gpt2_4l"


def spans_of(timeline: Timeline) -> list[tuple[Any, ...]]:
    """Run, invocation, kind, label, start on the run's clock, and duration of every span, as the script reads them."""
    found = []
    for track in timeline.tracks:
        end = timeline.begins[track.run]
        for gap, duration, number, call in zip(track.gaps, track.durations, track.items, track.calls, strict=True):
            assert gap >= 0
            item, start = timeline.items[number], end + gap
            end = start + duration
            of = timeline.calls[call]
            assert of.run == track.run + 1
            assert of.begin_ns <= start - timeline.begins[track.run] <= of.end_ns - duration
            found.append((of.run, of.invocation, item.kind, item.label, start, duration))
    assert Counter((run, call) for run, call, *_ in found) == {(c.run, c.invocation): c.events for c in timeline.calls}
    return found


def test_a_timeline_has_each_row_of_a_run_once(built: Built, recorded: Recorded) -> None:
    bundle, run = tracemap.load(built(MODEL)), recorded(MODEL)
    costed = MapCosts(bundle.graph, tracemap.attribute([run], built(MODEL)))
    timeline = timeline_of(costed, [excerpt(bundle.graph, read_run(run), 20_000)], families_of(bundle.graph))
    assert timeline is not None
    columns = "1, invocation, kind, coalesce(kernel, kind), start_ns, duration_ns"
    rows = rows_of(f"SELECT {columns} FROM '{run}' WHERE NOT warmup AND kind <> 'step'")
    assert Counter(spans_of(timeline)) == Counter(map(tuple, rows))
    assert timeline.note == "All 3 invocations are shown."
    # Each kernel's spans are of a site that runs it, in the colour of its root's scope, or of the first member's.
    for item in timeline.items:
        for place in item.sites:
            assert item.label == bundle.graph.site_by_id[place].kernel
        scope = "" if item.scope < 0 else timeline.scopes[item.scope]
        of = bundle.graph.site_by_id[item.sites[0]] if item.sites else None
        decides = next((member for member in of.members if member.root), of.members[0]) if of and of.members else None
        op_of = bundle.graph.op_by_id[decides.op] if decides else None
        whole = "/".join(scope_of(bundle.graph, op_of, of.path)) if of and op_of else ""
        # How deep scopes are told apart is for the times to say, which are others in each run.
        assert (bool(scope), f"{whole}/".startswith(f"{scope}/")) == (bool(whole), True) or scope == "other scopes"
    assert {item.scope for item in timeline.items if item.kind == "dispatch"} >= {0, 1, 2, 3}


def test_the_median_call_and_the_slowest_fill_the_room_there_is(tmp_path: Path) -> None:
    map_, calls, spans = layers(), 9, 30
    table = written(tmp_path / "run.csv", calls, spans)
    timeline = page_of_run(map_, table, most=3 * (spans + 1) + 5).data.timeline
    assert timeline is not None
    of_calls: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for _, _, _, call, _, start, duration, _ in events(calls, spans):
        of_calls[call].append((start, start + duration))
    ranked = sorted(of_calls, key=lambda call: max(of_calls[call], key=lambda at: at[1])[1] - min(of_calls[call])[0])
    median = ranked[(calls - 1) // 2]
    assert {call.invocation for call in timeline.calls} == {median, *ranked[-2:]}
    assert timeline.calls[timeline.first].invocation == median
    expected = [
        (1, call, kind, kernel or kind, start, duration)
        for kind, kernel, _, call, _, start, duration, _ in events(calls, spans)
        if call in {median, *ranked[-2:]}
    ]
    assert Counter(spans_of(timeline)) == Counter(expected)
    assert timeline.note == (
        "3 of 9 invocations are shown: the median and the 2 slowest ones, from their first event to their last. "
        f"{6 * (spans + 1)} events of the others are not."
    )


def test_a_call_with_too_many_events_is_cut_and_says_so(tmp_path: Path) -> None:
    timeline = page_of_run(layers(), written(tmp_path / "run.csv", 3, 30), most=20).data.timeline
    assert timeline is not None
    assert len(spans_of(timeline)) == 20
    assert timeline.note == ("The median of 3 invocations is shown, with the first 20 of its 31 events.")


def test_a_run_that_tells_no_calls_apart_is_shown_as_one(tmp_path: Path) -> None:
    table = tmp_path / "run.csv"
    table.write_text("kernel,start_ns,duration_ns\n" + "".join(f"kernel{n},{n * 10},7\n" for n in range(9)))
    timeline = page_of_run(layers(), table, most=4).data.timeline
    assert timeline is not None
    assert spans_of(timeline) == [(1, UNKNOWN, "dispatch", f"kernel{n}", n * 10, 7) for n in range(4)]
    assert timeline.note == "The run does not distinguish invocations. Its first 4 of 9 events are shown."


def test_runs_share_the_room_and_each_has_its_own_axis(tmp_path: Path) -> None:
    map_ = layers()
    runs = [read_run(written(tmp_path / f"{number}.csv", 5 - number, 30)) for number in range(2)]
    costed = MapCosts(map_, attribute(Request(map_, "cd" * 32, runs, Rule.EQUAL)))
    shown = excerpts(map_, runs, 0)
    timeline = timeline_of(costed, shown, families_of(costed.graph))
    assert timeline is not None
    expected = [
        (run, call, kind, kernel or kind, start, duration)
        for run, calls in ((1, 5), (2, 4))
        for kind, kernel, _, call, _, start, duration, _ in events(calls, 30)
    ]
    assert Counter(spans_of(timeline)) == Counter(expected)
    assert timeline.note == "Run 1: All 5 invocations are shown. Run 2: All 4 invocations are shown."
    assert sum(sum(each.counts) for each in histograms_by_site(costed, shown).values()) == 9 * 30


def test_runs_without_times_have_no_tab(tmp_path: Path) -> None:
    table = tmp_path / "run.csv"
    table.write_text("kernel,duration_ns\nkernel0,5\n")
    page = page_of_run(layers(), table)
    assert page.data.timeline is None
    assert 'id="timeline"' not in render_page(page)
    alone = build_page(layers(), None, lambda _: "")
    assert alone.data.timeline is None


@pytest.mark.long
def test_both_commands_write_the_same_timeline(built: Built, recorded: Recorded, tmp_path: Path) -> None:
    first, second = tmp_path / "a.html", tmp_path / "b.html"
    check_cli("report", built(MODEL), recorded(MODEL), "-o", first)
    check_cli("attribute", recorded(MODEL), "--map", built(MODEL), "--html", second)
    assert first.read_bytes() == second.read_bytes()
    assert 'id="timeline"' in first.read_text(encoding="utf-8")


def test_lengths_of_calls_are_counted_once_in_their_bins(built: Built, recorded: Recorded) -> None:
    bundle, run = tracemap.load(built(MODEL)), recorded(MODEL)
    costed = MapCosts(bundle.graph, tracemap.attribute([run], built(MODEL)))
    found = histograms_by_site(costed, [excerpt(bundle.graph, read_run(run), 20_000)] * 2)
    by_kernel: Counter[tuple[str, int]] = Counter()
    for place, (none, first, counts) in ((place, structs.astuple(each)) for place, each in found.items()):
        kernel = bundle.graph.site_by_id[place].kernel
        by_kernel.update({(kernel, first + at): count for at, count in enumerate(counts) if count})
        assert none == 0
        calls = costed.site_results[place].calls
        assert isinstance(calls, int)
        assert sum(counts) == 2 * calls
    expected: Counter[tuple[str, int]] = Counter()
    for kernel, time in rows_of(f"SELECT kernel, duration_ns FROM '{run}' WHERE NOT warmup AND kind = 'dispatch'"):
        expected[kernel, (time**BINS_OF_OCTAVE).bit_length() - 1] += 2
    assert by_kernel == expected


def test_what_was_measured_of_a_sites_calls_goes_together(tmp_path: Path) -> None:
    """Where misses grow with times, quantiles agree; where they are dealt out alike, all are as probable."""
    table = tmp_path / "run.csv"
    grow = [f"kernel3,{1000 + call},{3 * call},{(37 * call) % 64 // 8}" for call in range(64)]
    few = [f"kernel2,{call},{call},{call}" for call in range(LEAST_CALLS - 1)]
    table.write_text("\n".join(["kernel,duration_ns,misses,dealt", *grow, *few]) + "\n")
    page = page_of_run(layers(), table)
    assert set(page.data.together) == {"site3"}
    run, calls, one_of, series, pairs = structs.astuple(page.data.together["site3"])
    assert (run, calls, one_of) == (1, 64, 1)
    names = [page.data.metrics[number].name for number, _ in series]
    assert names == ["duration_ns", "misses", "dealt"]
    # Eight quantiles of eight calls each; the means of whole numbers in a row.
    assert [round(mean - 1003.5) for mean in series[0][1]] == [8 * number for number in range(QUANTILES)]
    tables = {(names[pair.of], names[pair.given]): np.reshape(pair.table, (QUANTILES, QUANTILES)) for pair in pairs}
    assert np.array_equal(tables["duration_ns", "misses"], 10_000 * np.eye(QUANTILES))
    # Equal values fall to the lower quantile, as in IREE's hook: of dealt, 0 and 1 are in the first, and 7 in the last
    # but one; in the same way the first quantile of times has nine of them.
    counted = Counter((max(0, call - 1) // 8, max(0, (37 * call) % 64 // 8 - 1)) for call in range(64))
    of_dealt = Counter({number: sum(counted[row, number] for row in range(QUANTILES)) for number in range(QUANTILES)})
    for (row, column), parts in np.ndenumerate(tables["duration_ns", "dealt"]):
        assert parts == round(10_000 * counted[row, column] / max(1, of_dealt[column]))
    correlations = {(names[pair.of], names[pair.given]): pair.correlation for pair in pairs}
    dealt = np.corrcoef([3 * call for call in range(64)], [(37 * call) % 64 // 8 for call in range(64)])[0, 1]
    assert correlations["duration_ns", "misses"] == 100
    assert correlations["misses", "dealt"] == round(100 * dealt)


def test_of_many_calls_every_so_many_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracemap.attribution.call_statistics.MOST_CALLS", 100)
    table = tmp_path / "run.csv"
    calls = [f"kernel3,{call},{call},{call}" for call in range(350)]
    table.write_text("\n".join(["kernel,invocation,duration_ns,misses", *calls]) + "\n")
    together = page_of_run(layers(), table).data.together["site3"]
    assert (together.calls, together.one_of) == (len(range(0, 350, 4)), 4)


def test_calls_without_a_start_and_of_no_time_are_counted(tmp_path: Path) -> None:
    table = tmp_path / "run.csv"
    times = (0, 0, 1, 2, 4, 1023, 1024)
    table.write_text("kernel,duration_ns\n" + "".join(f"kernel3,{time}\n" for time in times))
    page = page_of_run(layers(), table)
    assert page.data.timeline is None
    assert set(page.data.lengths) == {"site3"}
    none, first, counts = structs.astuple(page.data.lengths["site3"])
    assert (none, first) == (2, 0)
    assert {at: count for at, count in enumerate(counts) if count} == {0: 1, 16: 1, 32: 1, 159: 1, 160: 1}


def span(start: int, duration: int, thread: str) -> TimedEvent:
    return TimedEvent("dispatch", (), "k", 0, UNKNOWN, thread, start, duration, UNKNOWN, UNKNOWN)


def test_spans_lie_on_the_first_track_that_is_free() -> None:
    spans = [span(n * 3 % 101, (n * 7) % 29, f"t{n % 2}") for n in range(400)]
    spans.sort(key=lambda each: each.start_ns)
    lanes: dict[str, list[list[TimedEvent]]] = defaultdict(list)
    for each in spans:
        free = [lane for lane in lanes[f"kernels {each.thread}"] if lane[-1].end_ns <= each.start_ns]
        if free:
            free[0].append(each)
        else:
            lanes[f"kernels {each.thread}"].append([each])
    expected = {
        name if number == 0 else f"{name} ({number + 1})": tuple(lane)
        for name, several in lanes.items()
        for number, lane in enumerate(several)
    }
    assert {track.name: track.spans for track in tracks_of(spans)} == expected


@pytest.mark.parametrize(
    ("scopes", "expected"),
    [
        ([("a",), ("b",), ("c",)], ("a", "b", "c")),
        ([("h", "0"), ("h", "1"), ("h", "2"), ("wte",)], ("h/0", "h/1", "h/2", "wte")),
        ([("net", "conv"), ("net", "fc")], ("net/conv", "net/fc")),
        ([("net",)], ("net",)),
        ([(), ()], ()),
        ([(f"s{n}",) for n in range(9)], (*(f"s{n}" for n in range(7)), "other scopes")),
    ],
)
def test_colours_are_of_scopes_that_tell_spans_apart(
    scopes: list[tuple[str, ...]], expected: tuple[str, ...], tmp_path: Path
) -> None:
    map_ = graph(
        [op(number, number + 1, scope=scope) for number, scope in enumerate(scopes)],
        [site(number, number, kernel=f"kernel{number}") for number in range(len(scopes))],
    )
    table = tmp_path / "run.csv"
    rows = (f"kernel{n},{n * 1000},{900 - n}\n" for n in range(len(scopes)))
    table.write_text("kernel,start_ns,duration_ns\n" + "".join(rows))
    timeline = page_of_run(map_, table).data.timeline
    assert timeline is not None
    assert timeline.scopes == expected
    for number, scope in enumerate(scopes):
        item = next(item for item in timeline.items if item.label == f"kernel{number}")
        shown = "" if item.scope < 0 else timeline.scopes[item.scope]
        assert shown in {"/".join(scope[:1]), "/".join(scope[:2]), "other scopes"}
