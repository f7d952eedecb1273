"""The calls of a thread as CSV."""

from __future__ import annotations

from tracemap.measurements.hook.stats import ThreadCalls
from tracemap.reports.escaping import for_hook_text


def calls_csv(calls: ThreadCalls) -> str:
    """The calls of a thread as IREE's hook writes them."""
    lines = [",".join(("thread", "cpu", "node", *calls.names))]
    thread = for_hook_text(calls.thread).replace(",", "?").replace('"', "?")
    durations, *events = (values.tolist() for values in calls.series)
    for number, duration in enumerate(durations):
        counts = "".join(f",{int(series[number])}" for series in events)
        lines.append(f"{thread},{calls.cpus[number]},{calls.nodes[number]},{duration:g}{counts}")
    return "\n".join(lines) + "\n"
