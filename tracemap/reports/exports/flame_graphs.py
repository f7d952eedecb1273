"""Exports for flame graphs: speedscope's format, and collapsed stacks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tracemap._version import __version__
from tracemap.attribution.timeline import TimedEvent
from tracemap.core.codec import pretty_json
from tracemap.core.errors import UsageInvalid
from tracemap.core.sanitize import without_controls
from tracemap.core.units import Unknown
from tracemap.reports.advice import invocations_note
from tracemap.reports.exports.charges import NANOSECONDS, Ledger, StackFrame, escape_controls, op_label
from tracemap.reports.timeline_tracks import Shares, Track, span_name, tracks_of

# ---- speedscope: a profile per metric, with the call stacks of ops weighted by their costs
#
# Timelines of runs are further profiles, one per track.
#
# Format: jlfwong/speedscope, wiki, Importing from custom sources; `file-format-schema.json` in its package.


_SCHEMA: Final = "https://www.speedscope.app/file-format-schema.json"
_UNITS: Final = {NANOSECONDS: "nanoseconds", "bytes": "bytes"}


def speedscope(ledger: Ledger, runs: Sequence[Sequence[TimedEvent]] = ()) -> str:
    """The document; `runs`: the spans of the timelines.

    Raises:
        UsageInvalid: an amount is negative, or a metric adds up to more than 64 bits.
    """
    ledger.check_range("speedscope", negative=False)
    frames = Frames()
    profiles = [_profile(ledger, number, frames) for number in range(len(ledger.metrics))]
    shares = Shares(ledger.graph, ledger.attribution)
    for number, spans in enumerate(runs, start=1):
        profiles += [_timeline(track, f"run {number}: {track.name}", frames, shares) for track in tracks_of(spans)]
    name = without_controls(ledger.graph.module.name)
    return pretty_json(
        {
            "$schema": _SCHEMA,
            "name": name,
            "exporter": f"tracemap {__version__}",
            "activeProfileIndex": 0,
            "shared": {"frames": frames.listed},
            "profiles": profiles,
        }
    )


@dataclass(frozen=True)
class Frames:
    """The distinct frames of all profiles."""

    listed: list[dict[str, str | int]] = field(default_factory=list)
    _numbers: dict[StackFrame, int] = field(default_factory=dict)

    def number(self, frame: StackFrame) -> int:
        """The index of a frame; adds new frames."""
        if frame not in self._numbers:
            self._numbers[frame] = len(self.listed)
            file = {} if isinstance(frame.file, Unknown) else {"file": frame.file}
            line = {} if isinstance(frame.line, Unknown) else {"line": frame.line}
            self.listed.append({"name": frame.name, **file, **line})
        return self._numbers[frame]


def _profile(ledger: Ledger, number: int, frames: Frames) -> dict[str, Any]:
    """The profile of a metric, with a sample per charge."""
    metric = ledger.metrics[number]
    charges = [charge for charge in ledger.charges if charge.amounts[number]]
    invocations = invocations_note(metric, ledger.metrics)
    return {
        "type": "sampled",
        "name": without_controls(metric.name) + (invocations and f" ({invocations})"),
        "unit": _UNITS.get(metric.unit, "none"),
        "startValue": 0,
        "endValue": metric.measured,
        "samples": [[frames.number(frame) for frame in charge.stack] for charge in charges],
        "weights": [charge.amounts[number] for charge in charges],
    }


def _timeline(track: Track, name: str, frames: Frames, shares: Shares) -> dict[str, Any]:
    """The profile of a track; the frame of a span has its kernel or kind, and the line of its most expensive op."""
    events: list[dict[str, str | int]] = []
    for span in track.spans:
        number = frames.number(_frame(span, shares))
        events += [
            {"type": "O", "frame": number, "at": span.start_ns},
            {"type": "C", "frame": number, "at": span.end_ns},
        ]
    begin, end = track.spans[0].start_ns, track.spans[-1].end_ns
    header = {"type": "evented", "name": name, "unit": "nanoseconds", "startValue": begin, "endValue": end}
    return {**header, "events": events}


def _frame(span: TimedEvent, shares: Shares) -> StackFrame:
    for op in (share.op for share in shares.of(span)[:1]):
        return StackFrame(f"{op_label(op)} in {span_name(span)}", escape_controls(op.file), op.line)
    return StackFrame(span_name(span))


# ---- collapsed stacks: a line per call stack, with its frames and the cost in one metric
#
# Format: brendangregg/FlameGraph, flamegraph.pl; also read by inferno and speedscope. It has no comments.


_SEPARATOR: Final = ";"
_NUMBER_AT_END: Final = re.compile(r"\s+(?=[\d.]+$)")
"""Readers take a number after a blank at the end of a stack for a second amount."""


def collapsed(ledger: Ledger) -> str:
    """The stacks in the first metric of the ledger, as lines `FRAME;FRAME;FRAME AMOUNT`.

    Raises:
        UsageInvalid: the ledger has several metrics, an amount is negative, or the metric exceeds 64 bits.
    """
    if len(ledger.metrics) > 1:
        names = ",".join(metric.name for metric in ledger.metrics)
        raise UsageInvalid(f"--metric {names}: collapsed stacks hold a single metric; name one of them")
    ledger.check_range("collapsed", negative=False)
    costs = Counter[str]()
    for charge in ledger.charges:
        costs[_SEPARATOR.join(_collapsed_frame(frame.name) for frame in charge.stack)] += charge.amounts[0]
    return "".join(f"{stack} {cost}\n" for stack, cost in costs.items())


def _collapsed_frame(name: str) -> str:
    """A name without separators of the format; control characters are escaped already."""
    return _NUMBER_AT_END.sub("_", name.replace(_SEPARATOR, ":").strip()) or "?"
