"""Timelines as Perfetto traces: a process per run, and tracks of spans with their ops and lines.

Messages come from the package `perfetto`. Times start at the first shown event of a run, as the clocks of runs are not
comparable. Spans also have their original times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tracemap.attribution.model import Attribution
from tracemap.attribution.timeline import TimedEvent
from tracemap.core.sanitize import without_controls
from tracemap.core.units import Unknown
from tracemap.map.model import TraceGraph
from tracemap.reports.exports.charges import escape_controls, from_extra, op_label
from tracemap.reports.timeline_tracks import OpShare, Shares, Track, span_name, tracks_of

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
    writer = _Writer(builder, Shares(graph, attribution))
    for number, spans in enumerate(runs, start=1):
        function = escape_controls(attribution.run.function)
        of_function = "" if isinstance(function, Unknown) else f" of {function}"
        writer.run(number, f"{without_controls(graph.module.name)}: run {number}{of_function}", spans)
    trace: bytes = builder.trace.SerializeToString(deterministic=True)
    return trace


class _Writer:
    """Adds packets to a trace, and numbers its tracks."""

    def __init__(self, builder: Any, shares: Shares) -> None:  # noqa: ANN401 - perfetto has no types
        self._builder = builder
        self._shares = shares
        self._tracks = 0

    def run(self, number: int, name: str, spans: Sequence[TimedEvent]) -> None:
        """Add a process with the tracks of a run."""
        process = self._track(name, 0)
        process.process.pid = number
        process.process.process_name = name
        process.child_ordering = process.EXPLICIT
        begin = min((span.start_ns for span in spans), default=0)
        for rank, track in enumerate(tracks_of(spans)):
            descriptor = self._track(track.name, process.uuid)
            descriptor.sibling_order_rank = rank
            self._spans(track, descriptor.uuid, begin)

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

    def _event(self, uuid: int, time_ns: int, kind: str) -> Any:  # noqa: ANN401 - as above
        packet = self._packet()
        packet.timestamp = time_ns
        packet.track_event.track_uuid = uuid
        packet.track_event.type = packet.track_event.Type.Value(kind)
        return packet.track_event

    def _add_ops(self, annotation: Any, ops: Sequence[OpShare]) -> None:  # noqa: ANN401 - as above
        """Add a list of ops with their lines, scopes and shares."""
        for share in ops:
            entry, op = annotation.array_values.add(), share.op
            line = "" if isinstance(op.line, Unknown) else f":{op.line}"
            file = "" if isinstance(op.file, Unknown) else without_controls(op.file)
            details = {"op": op_label(op), "line": f"{file}{line}", "scope": share.scope}
            for name, value in details.items():
                if value:
                    _annotate(entry.dict_entries.add(name=name), without_controls(value))
            _annotate(entry.dict_entries.add(name=f"percent of {self._shares.metric}"), share.percent)


def _annotate(annotation: Any, value: str | float) -> None:  # noqa: ANN401 - as above
    """Set the value of an annotation in the field of its type."""
    field = {str: "string_value", int: "int_value", float: "double_value"}[type(value)]
    setattr(annotation, field, value)


def _arguments(span: TimedEvent) -> Mapping[str, str | int]:
    """The known properties of a span."""
    values = {
        "sites": " ".join(span.places) or None,
        "invocation": span.invocation,
        "submission": span.submission,
        "start_ns": span.start_ns,
        "cpu_ns": span.cpu_ns,
        "covered_ns": span.covered_ns,
    }
    return {name: value for name, value in values.items() if isinstance(value, (str, int))}


def _locate(event: Any, ops: Sequence[OpShare]) -> None:  # noqa: ANN401 - as above
    """Set the source location to the line of the op with the largest share."""
    for op in (share.op for share in ops[:1]):
        if not isinstance(op.file, Unknown) and not isinstance(op.line, Unknown):
            event.source_location.file_name = without_controls(op.file)
            event.source_location.function_name = op_label(op)
            event.source_location.line_number = op.line
