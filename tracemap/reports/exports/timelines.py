"""Exports of timelines: Perfetto traces, and Chrome's trace events.

Both have a process per run, and tracks of spans with their ops and lines. Times start at the first shown event of a
run, as the clocks of runs are not comparable. Spans also have their original times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tracemap._version import __version__
from tracemap.attribution.model import Attribution
from tracemap.attribution.timeline import TimedEvent
from tracemap.core.codec import encode
from tracemap.core.sanitize import without_controls
from tracemap.core.units import Unknown
from tracemap.map.model import TraceGraph
from tracemap.map.query import python_frame
from tracemap.reports.exports.charges import escape_controls, from_extra, op_label
from tracemap.reports.timeline_tracks import OpShare, Shares, Track, allocated_levels, span_name, tracks_of

# ---- both formats

ALLOCATED: Final = "allocated memory"
"""Name of the counter of the memory that the device allocated."""


def _run_name(graph: TraceGraph, attribution: Attribution, number: int) -> str:
    function = escape_controls(attribution.run.function)
    of_function = "" if isinstance(function, Unknown) else f" of {function}"
    return f"{without_controls(graph.module.name)}: run {number}{of_function}"


def _arguments(span: TimedEvent) -> Mapping[str, str | int]:
    """The known properties of a span."""
    values = {
        "sites": " ".join(span.places) or None,
        "invocation": span.invocation,
        "submission": span.submission,
        "start_ns": span.start_ns,
        "cpu_ns": span.cpu_ns,
        "covered_ns": span.covered_ns,
        "bytes": span.payload_bytes,
    }
    return {name: value for name, value in values.items() if isinstance(value, (str, int))}


def _details(graph: TraceGraph, share: OpShare) -> Mapping[str, str]:
    """An op with its line in the model, its line of Python, and its scope."""
    op, frame = share.op, python_frame(graph, share.op)
    line = "" if isinstance(op.line, Unknown) else f":{op.line}"
    file = "" if isinstance(op.file, Unknown) else op.file
    python = "" if frame is None else f"{frame.file}:{frame.line}"
    texts = {"op": op_label(op), "line": f"{file}{line}", "python": python, "scope": share.scope}
    return {name: without_controls(text) for name, text in texts.items() if text}


# ---- perfetto; messages come from the package `perfetto`


_SEQUENCE: Final = 1
"""Sequence id of all packets, as there is one writer."""


def perfetto(graph: TraceGraph, attribution: Attribution, runs: Sequence[Sequence[TimedEvent]]) -> bytes:
    """The trace of the spans of all runs; deterministic.

    Raises:
        ToolMissing: the package is not installed.
    """
    with from_extra("perfetto"):
        from perfetto.trace_builder.proto_builder import TraceProtoBuilder
    builder = TraceProtoBuilder()
    writer = _Writer(builder, graph, Shares(graph, attribution))
    for number, spans in enumerate(runs, start=1):
        writer.run(number, _run_name(graph, attribution, number), spans)
    trace: bytes = builder.trace.SerializeToString(deterministic=True)
    return trace


class _Writer:
    """Adds packets to a trace, and numbers its tracks."""

    def __init__(self, builder: Any, graph: TraceGraph, shares: Shares) -> None:  # noqa: ANN401 - perfetto has no types
        self._builder = builder
        self._graph = graph
        self._shares = shares
        self._tracks = 0

    def run(self, number: int, name: str, spans: Sequence[TimedEvent]) -> None:
        """Add a process with the tracks of a run."""
        process = self._track(name, 0)
        process.process.pid = number
        process.process.process_name = name
        process.process.process_labels.append(f"creator: tracemap {__version__}")
        process.child_ordering = process.EXPLICIT
        begin = min((span.start_ns for span in spans), default=0)
        for rank, track in enumerate(tracks_of(spans)):
            descriptor = self._track(track.name, process.uuid)
            descriptor.sibling_order_rank = rank
            self._spans(track, descriptor.uuid, begin)
        self._levels(allocated_levels(spans), process.uuid, begin)

    def _packet(self) -> Any:  # noqa: ANN401 - as above
        packet = self._builder.add_packet()
        packet.trusted_packet_sequence_id = _SEQUENCE
        return packet

    def _track(self, name: str, parent: int) -> Any:  # noqa: ANN401 - as above
        self._tracks += 1
        descriptor = self._packet().track_descriptor
        descriptor.uuid, descriptor.name = self._tracks, name
        if parent:
            descriptor.parent_uuid = parent
        return descriptor

    def _spans(self, track: Track, uuid: int, begin: int) -> None:
        for span in track.spans:
            event = self._event(uuid, span.start_ns - begin, "TYPE_SLICE_BEGIN")
            event.name = span_name(span)
            event.categories.append(span.kind)
            ops = self._shares.of(span)
            _locate(event, ops)
            for name, value in _arguments(span).items():
                _annotate(event.debug_annotations.add(name=name), value)
            if ops:
                self._add_ops(event.debug_annotations.add(name="ops"), ops)
            self._event(uuid, span.end_ns - begin, "TYPE_SLICE_END")

    def _levels(self, levels: Sequence[tuple[int, int]], process: int, begin: int) -> None:
        """Add a counter of the allocated memory, if it is known."""
        if not levels:
            return
        descriptor = self._track(ALLOCATED, process)
        descriptor.counter.unit = descriptor.counter.Unit.Value("UNIT_SIZE_BYTES")
        for time_ns, size in levels:
            self._event(descriptor.uuid, time_ns - begin, "TYPE_COUNTER").counter_value = size

    def _event(self, uuid: int, time_ns: int, kind: str) -> Any:  # noqa: ANN401 - as above
        packet = self._packet()
        packet.timestamp = time_ns
        packet.track_event.track_uuid = uuid
        packet.track_event.type = packet.track_event.Type.Value(kind)
        return packet.track_event

    def _add_ops(self, annotation: Any, ops: Sequence[OpShare]) -> None:  # noqa: ANN401 - as above
        """Add a list of ops with their lines, scopes and shares."""
        for share in ops:
            entry = annotation.array_values.add()
            for name, value in _details(self._graph, share).items():
                _annotate(entry.dict_entries.add(name=name), value)
            _annotate(entry.dict_entries.add(name=f"percent of {self._shares.metric}"), share.percent)


def _annotate(annotation: Any, value: str | float) -> None:  # noqa: ANN401 - as above
    """Set the value of an annotation in the field of its type."""
    field = {str: "string_value", int: "int_value", float: "double_value"}[type(value)]
    setattr(annotation, field, value)


def _locate(event: Any, ops: Sequence[OpShare]) -> None:  # noqa: ANN401 - as above
    """Set the source location to the line of the op with the largest share."""
    for op in (share.op for share in ops[:1]):
        if not isinstance(op.file, Unknown) and not isinstance(op.line, Unknown):
            event.source_location.file_name = without_controls(op.file)
            event.source_location.function_name = op_label(op)
            event.source_location.line_number = op.line


# ---- chrome: JSON of Chrome's trace viewer, which Perfetto opens, too
#
# Format: Trace Event Format (Google, 2016), "JSON Object Format" with complete events. Its times are microseconds.


_NS_PER_US: Final = 1000


def chrome_trace(graph: TraceGraph, attribution: Attribution, runs: Sequence[Sequence[TimedEvent]]) -> str:
    """The trace of the spans of all runs: a complete event per span, with kernel, op and line in its arguments."""
    shares = Shares(graph, attribution)
    events: list[dict[str, Any]] = []
    for number, spans in enumerate(runs, start=1):
        begin = min((span.start_ns for span in spans), default=0)
        events.append(_metadata("process_name", number, 0, {"name": _run_name(graph, attribution, number)}))
        for rank, track in enumerate(tracks_of(spans), start=1):
            events.append(_metadata("thread_name", number, rank, {"name": track.name}))
            events.append(_metadata("thread_sort_index", number, rank, {"sort_index": rank}))
            events += [_complete_event(graph, span, number, rank, begin, shares) for span in track.spans]
        events += [
            {"name": ALLOCATED, "ph": "C", "ts": (time - begin) / _NS_PER_US, "pid": number, "args": {"bytes": size}}
            for time, size in allocated_levels(spans)
        ]
    about = {"exporter": f"tracemap {__version__}", "rule": attribution.rule.value}
    listed = ",\n".join(encode(event).decode() for event in events)
    return f'{{"otherData": {encode(about).decode()},\n"displayTimeUnit": "ns",\n"traceEvents": [\n{listed}\n]}}\n'


def _metadata(name: str, process: int, thread: int, arguments: Mapping[str, str | int]) -> dict[str, Any]:
    return {"name": name, "ph": "M", "pid": process, "tid": thread, "args": arguments}


def _complete_event(
    graph: TraceGraph, span: TimedEvent, process: int, thread: int, begin: int, shares: Shares
) -> dict[str, Any]:
    ops = shares.of(span)
    kernel = {} if isinstance(span.kernel, Unknown) else {"kernel": span_name(span)}
    # The first op has the largest share; the viewer shows single values better than lists.
    first = _details(graph, ops[0]) if ops else {}
    percent = f"percent of {shares.metric}"
    listed = {"ops": [{**_details(graph, share), percent: share.percent} for share in ops]} if len(ops) > 1 else {}
    return {
        "name": span_name(span),
        "cat": span.kind,
        "ph": "X",
        "ts": (span.start_ns - begin) / _NS_PER_US,
        "dur": span.duration_ns / _NS_PER_US,
        "pid": process,
        "tid": thread,
        "args": {**first, **kernel, **_arguments(span), "duration_ns": span.duration_ns, **listed},
    }
