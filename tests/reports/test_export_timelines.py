"""Exported timelines contain each event once, at its time, with its ops."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

import tracemap
from tests.commands.test_errors import refused
from tests.conftest import Built, Recorded
from tests.core.test_sanitize import hostile, steering
from tests.reports.test_exports import Exporter, exported, measured, rows_of
from tests.support import ROOT, check_cli, command_line, json_cli
from tracemap.attribution.timeline import TimedEvent
from tracemap.core.units import UNKNOWN
from tracemap.reports.timeline_tracks import allocated_levels, tracks_of

__all__ = ["exported", "hostile"]

MODEL = "jax_gpt2_4l"


class Slices:
    """A trace as its messages say it: tracks by name, and slices with their arguments."""

    def __init__(self, path: Path) -> None:
        self.trace = Trace()
        self.trace.ParseFromString(path.read_bytes())
        described = [each.track_descriptor for each in self.trace.packet if each.HasField("track_descriptor")]
        self.names = {each.uuid: each.name for each in described}
        self.levels: list[tuple[str, int, int]] = []
        self.slices = list(self._read())

    def _read(self) -> Iterator[dict[str, Any]]:
        """Slices of a track begin and end in turn, and never before the one before has ended."""
        open_on: dict[int, dict[str, Any]] = {}
        reached: dict[int, int] = {}
        for packet in self.trace.packet:
            if not packet.HasField("track_event"):
                continue
            event, now = packet.track_event, packet.timestamp
            assert now >= reached.get(event.track_uuid, 0)
            reached[event.track_uuid] = now
            if event.type == event.TYPE_SLICE_BEGIN:
                assert event.track_uuid not in open_on
                arguments = {each.name: arguments_of(each) for each in event.debug_annotations}
                about = {"name": event.name, "kind": event.categories[0], "track": self.names[event.track_uuid]}
                open_on[event.track_uuid] = {**arguments, **about, "begin": now, "source": event.source_location}
            elif event.type == event.TYPE_COUNTER:
                self.levels.append((self.names[event.track_uuid], now, event.counter_value))
            else:
                started = open_on.pop(event.track_uuid)
                yield {**started, "duration": now - started["begin"]}
        assert not open_on


def arguments_of(annotation: Any) -> Any:  # noqa: ANN401 - a message of protobuf, and any of its values
    if annotation.array_values:
        return [{each.name: arguments_of(each) for each in entry.dict_entries} for entry in annotation.array_values]
    return getattr(annotation, annotation.WhichOneof("value"))


def test_a_trace_has_each_event_once_and_adds_up(exported: Exporter, recorded: Recorded) -> None:
    slices = Slices(exported(MODEL, "perfetto", all_invocations=True)).slices
    run = recorded(MODEL)
    rows = rows_of(f"SELECT kind, start_ns, duration_ns FROM '{run}' WHERE NOT warmup")
    assert Counter((each["kind"], each["start_ns"], each["duration"]) for each in slices) == Counter(map(tuple, rows))
    begin = min(start for _, start, _ in rows)
    assert all(each["begin"] == each["start_ns"] - begin for each in slices)
    totals = measured(run)
    assert sum(each.get("cpu_ns", 0) for each in slices) == totals["cpu_ns"]
    assert sum(each["duration"] - each.get("covered_ns", 0) for each in slices) == totals["duration_ns"]


def test_slices_carry_site_ops_and_line(exported: Exporter, built: Built, recorded: Recorded) -> None:
    """Sites cost together what `attribute` says, and each slice's ops are the members of its site."""
    slices = Slices(exported(MODEL, "perfetto", all_invocations=True)).slices
    graph, result = tracemap.load(built(MODEL)).graph, tracemap.attribute([recorded(MODEL)], built(MODEL))
    costs: Counter[str] = Counter()
    for each in slices:
        if each["kind"] != "dispatch":
            assert each["name"] == each["kind"]
            assert "ops" not in each
            continue
        costs[each["sites"]] += each["cpu_ns"]
        site = graph.site_by_id[each["sites"]]
        assert each["name"] == site.kernel
        assert {op["op"].split()[0] for op in each["ops"]} == {member.op for member in site.members}
        assert sum(op["percent of cpu_ns"] for op in each["ops"]) == pytest.approx(100, abs=0.1)
        first = graph.op_by_id[each["ops"][0]["op"].split()[0]]
        assert (each["source"].file_name, each["source"].line_number) == (first.file, first.line)
        assert each["ops"][0]["line"] == f"{first.file}:{first.line}"
    expected = {site.site: site.metrics["cpu_ns"].total + site.metrics["cpu_ns"].outliers for site in result.sites}
    assert costs == {site: cost for site, cost in expected.items() if cost}


def test_one_call_is_drawn_and_others_on_request(exported: Exporter, recorded: Recorded) -> None:
    extent = "max(start_ns + duration_ns) - min(start_ns)"
    query = f"SELECT invocation, {extent} FROM '{recorded(MODEL)}' WHERE NOT warmup GROUP BY 1 ORDER BY 2, 1"
    calls = [call for call, _ in rows_of(query)]
    assert len(calls) == 3
    shown = {each["invocation"] for each in Slices(exported(MODEL, "perfetto")).slices}
    assert shown == {calls[1]}
    shown = {each["invocation"] for each in Slices(exported(MODEL, "perfetto", invocations=calls[1:])).slices}
    assert shown == {*calls[1:]}


def test_calls_that_were_not_measured_are_refused(built: Built, recorded: Recorded, tmp_path: Path) -> None:
    words = ("export", recorded(MODEL), "--map", built(MODEL), "--to", "perfetto", "-o", "x", "--invocation", "0")
    assert "invocation 0 was not measured; it has 3 to 5" in refused("usage-invalid", *words, cwd=tmp_path)


def test_a_run_without_times_has_no_timeline(built: Built, tmp_path: Path) -> None:
    kernel = tracemap.load(built("hand_mlp")).graph.kernels[0].name
    (tmp_path / "run.csv").write_text(f"kernel,duration_ns\n{kernel},5\n", encoding="utf-8")
    words = ("export", "run.csv", "--map", built("hand_mlp"), "--to", "perfetto", "-o", "x")
    assert "have no start times" in refused("usage-invalid", *words, cwd=tmp_path)


def test_several_runs_are_several_processes(built: Built, recorded: Recorded, tmp_path: Path) -> None:
    """Each begins at 0: clocks of different runs are not compared."""
    second, target = tmp_path / "second.parquet", tmp_path / "two.pftrace"
    second.write_bytes(recorded("hand_mlp").read_bytes())
    tracemap.export([recorded("hand_mlp"), second], "perfetto", target, built("hand_mlp"))
    trace = Slices(target).trace
    described = [each.track_descriptor.process for each in trace.packet if each.track_descriptor.HasField("process")]
    assert [process.pid for process in described] == [1, 2]
    assert [each.timestamp for each in trace.packet].count(0) >= 2


def test_a_run_through_a_pipe_is_read_once(built: Built, recorded: Recorded, tmp_path: Path) -> None:
    run, target = recorded("hand_mlp", ".csv"), tmp_path / "x.pftrace"
    words = ("export", "-", "--map", built("hand_mlp"), "--to", "perfetto", "-o", target, "--all-invocations")
    subprocess.run(command_line(*words), input=run.read_bytes(), check=True, capture_output=True)
    rows = rows_of(f"SELECT count(*) FROM '{run}' WHERE NOT warmup")
    assert len(Slices(target).slices) == rows[0][0]


def test_speedscope_has_timelines_on_request(exported: Exporter, recorded: Recorded) -> None:
    document = json.loads(exported(MODEL, "speedscope", all_invocations=True).read_text())
    schema = json.loads((ROOT / "tests" / "programs" / "schemas" / "speedscope.json").read_text())
    jsonschema.validate(document, schema)
    found: Counter[tuple[int, int]] = Counter()
    for profile in (each for each in document["profiles"] if each["type"] == "evented"):
        events, at = profile["events"], profile["startValue"]
        for opened, closed in zip(events[::2], events[1::2], strict=True):
            assert (opened["type"], closed["type"], opened["frame"]) == ("O", "C", closed["frame"])
            assert at <= opened["at"] <= closed["at"] <= profile["endValue"]
            at = closed["at"]
            found[opened["at"], closed["at"]] += 1
    rows = rows_of(f"SELECT start_ns, start_ns + duration_ns FROM '{recorded(MODEL)}' WHERE NOT warmup")
    assert found == Counter(map(tuple, rows))


def test_chrome_traces_have_each_event_once_and_add_up(exported: Exporter, built: Built, recorded: Recorded) -> None:
    """As its format says: complete events in microseconds, which do not overlap on a thread, and names of threads."""
    document = json.loads(exported(MODEL, "chrome-trace", all_invocations=True).read_text())
    complete = [event for event in document["traceEvents"] if event["ph"] == "X"]
    rows = rows_of(f"SELECT kind, start_ns, duration_ns FROM '{recorded(MODEL)}' WHERE NOT warmup")
    arguments = [event["args"] for event in complete]
    drawn = [(event["cat"], event["args"]["start_ns"], event["args"]["duration_ns"]) for event in complete]
    assert Counter(drawn) == Counter(map(tuple, rows))
    begin = min(start for _, start, _ in rows)
    for event in complete:
        assert round(event["ts"] * 1000) == event["args"]["start_ns"] - begin
        assert round(event["dur"] * 1000) == event["args"]["duration_ns"]
    totals = measured(recorded(MODEL))
    assert sum(args.get("cpu_ns", 0) for args in arguments) == totals["cpu_ns"]
    assert sum(args["duration_ns"] - args.get("covered_ns", 0) for args in arguments) == totals["duration_ns"]
    named = {(event["pid"], event["tid"]) for event in document["traceEvents"] if event["name"] == "thread_name"}
    assert {(event["pid"], event["tid"]) for event in complete} == named
    graph = tracemap.load(built(MODEL)).graph
    lines = {f"{frame.file}:{frame.line}" for op in graph.ops for frame in op.frames}
    for event in (event for event in complete if event["cat"] == "dispatch"):
        args, site = event["args"], graph.site_by_id[event["args"]["sites"]]
        op = graph.op_by_id[args["op"].split()[0]]
        assert (event["name"], args["kernel"], args["line"]) == (site.kernel, site.kernel, f"{op.file}:{op.line}")
        assert args["python"] in lines
        listed = args.get("ops", [{"op": args["op"], "percent of cpu_ns": 100}])
        assert {op["op"].split()[0] for op in listed} == {member.op for member in site.members}
        assert sum(op["percent of cpu_ns"] for op in listed) == pytest.approx(100, abs=0.1)


def span(start: int, duration: int, **about: Any) -> TimedEvent:  # noqa: ANN401 - fields of a span
    plain: dict[str, Any] = {"kind": "dispatch", "places": (), "kernel": "k", "invocation": 0, "submission": 0}
    rest: dict[str, Any] = {"thread": UNKNOWN, "covered_ns": UNKNOWN, "cpu_ns": UNKNOWN}
    return TimedEvent(**{**plain, **rest, "start_ns": start, "duration_ns": duration, **about})


def test_spans_that_overlap_lie_beside_each_other() -> None:
    spans = [span(0, 10), span(0, 4), span(4, 0), span(4, 3), span(10, 1), span(2, 1, kind="execute")]
    spans.append(span(3, 1, thread="w\x1b"))
    named = {track.name: [(each.start_ns, each.end_ns) for each in track.spans] for track in tracks_of(spans)}
    assert named == {
        "submissions": [(2, 3)],
        "kernels": [(0, 10), (10, 11)],
        "kernels (2)": [(0, 4), (4, 4), (4, 7)],
        "kernels w\\x1b": [(3, 4)],
    }


def test_hostile_names_take_no_effect(hostile: Path, recorded: Recorded, tmp_path: Path) -> None:
    target = tmp_path / "x"
    tracemap.export([recorded("hand_mlp")], "perfetto", target, hostile)
    text = str(Slices(target).slices) + "".join(Slices(target).names.values())
    assert "cmd|" in text
    assert not steering(text)
    tracemap.export([recorded("hand_mlp")], "chrome-trace", target, hostile)
    text = target.read_text()
    assert "cmd|" in text
    assert not steering(text)
    assert json.loads(text)["traceEvents"]


def test_the_allocated_memory_is_a_counter(built: Built, recorded: Recorded, tmp_path: Path) -> None:
    """Its largest value over all invocations is the peak that `memory` finds with SQL; it ends at 0."""
    run, bundle = recorded("hand_mlp"), built("hand_mlp")
    arguments = ("export", run, "--map", bundle, "--all-invocations")
    check_cli(*arguments, "--to", "chrome-trace", "-o", tmp_path / "t.json")
    check_cli(*arguments, "--to", "perfetto", "-o", tmp_path / "t.pftrace")
    events = json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))["traceEvents"]
    levels = [
        (event["name"], round(1000 * event["ts"]), event["args"]["bytes"]) for event in events if event["ph"] == "C"
    ]
    peak = json_cli("memory", bundle, run)["allocated"]["peak_bytes"]
    assert max(size for _, _, size in levels) == peak > 0
    assert levels[-1][2] == 0
    assert Slices(tmp_path / "t.pftrace").levels == levels


def test_memory_of_unknown_size_has_no_counter() -> None:
    known, unknown = span(0, 5, kind="alloca", payload_bytes=64), span(1, 5, kind="alloca")
    assert allocated_levels([known]) == [(0, 64), (5, 0)]
    assert allocated_levels([known, unknown]) == []
