"""callgrind's profile format, for KCachegrind and callgrind_annotate (valgrind, docs/html/cl-format.html).

Scopes call nested scopes and source lines, these call ops, and ops call their kernels. The self cost is on the lines of
ops or of kernels; for all others it is the cost of calls.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from tracemap._version import __version__
from tracemap.core.sanitize import without_controls
from tracemap.core.units import Unknown
from tracemap.options.reports import SelfCost
from tracemap.reports.advice import invocations_note
from tracemap.reports.exports.charges import Charge, Ledger, StackFrame
from tracemap.reports.exports.pprof import comments, known_line

_NO_FILE: Final = "???"
"""Unknown file, as valgrind's own tools write it."""
_EVENT: Final = re.compile(r"[^A-Za-z0-9_]")

Amounts = tuple[int, ...]


@dataclass(slots=True)
class _Calls:
    """Calls from a line to a function: number, and inclusive costs."""

    count: int = 0
    amounts: list[int] = field(default_factory=list)

    def add(self, count: int, amounts: Amounts) -> None:
        self.count += count
        self.amounts = _sums(self.amounts or [0] * len(amounts), amounts)


def _sums(sums: Sequence[int], amounts: Amounts) -> list[int]:
    return [total + amount for total, amount in zip(sums, amounts, strict=True)]


@dataclass(frozen=True)
class _Functions:
    """Self costs of functions by line, and their calls."""

    own: dict[StackFrame, dict[int, list[int]]] = field(default_factory=dict)
    calls: dict[StackFrame, dict[StackFrame, _Calls]] = field(default_factory=lambda: defaultdict(dict))

    def charge(self, frame: StackFrame, line: int, amounts: Amounts) -> None:
        """Add a self cost to a line of a function."""
        lines = self.own.setdefault(frame, {})
        lines[line] = _sums(lines.get(line, [0] * len(amounts)), amounts)

    def call(self, caller: StackFrame, callee: StackFrame, count: int, amounts: Amounts) -> None:
        """Add calls from one function to another."""
        self.own.setdefault(caller, {})
        self.calls[caller].setdefault(callee, _Calls()).add(count, amounts)


def callgrind(ledger: Ledger, self_cost: SelfCost) -> str:
    """The profile.

    Raises:
        UsageInvalid: an amount is negative, or a metric adds up to more than 64 bits.
    """
    ledger.check_range("callgrind", negative=False)
    functions, kernels = _Functions(), _KernelLines(ledger, self_cost)
    for charge in ledger.charges:
        _add(functions, charge, kernels)
    return "".join(f"{line}\n" for line in (*_header(ledger), *_Body().functions(functions)))


def _add(functions: _Functions, charge: Charge, kernels: _KernelLines) -> None:
    """Add the self cost of a charge to its op or kernel, and the calls that lead there."""
    for caller, callee in pairwise((*charge.enclosing, charge.frame)):
        functions.call(caller, callee, charge.calls, charge.amounts)
    frame = charge.kernel_frame
    if frame is None or kernels.self_cost == "ops":
        functions.charge(charge.frame, known_line(charge.frame.line), charge.amounts)
    if frame is None:
        return
    inside = (0,) * len(charge.amounts)
    if kernels.self_cost == "kernels":
        functions.charge(frame, kernels.line(charge), charge.amounts)
        inside = charge.amounts
    functions.call(charge.frame, frame, charge.calls, inside)


@dataclass(frozen=True)
class _KernelLines:
    """Lines of ops in a kernel's final IR: the first line of the op, else line 1; 0 in transfers."""

    ledger: Ledger
    self_cost: SelfCost
    _lines: dict[tuple[str, str], int] = field(default_factory=dict)

    def line(self, charge: Charge) -> int:
        """The line of a charge's op in the final IR of its kernel."""
        site = self.ledger.graph.site_by_id.get(charge.work)
        if site is None:
            return 0
        op = "" if charge.op is None else charge.op.id
        key = site.kernel, op
        if key not in self._lines:
            kernel = self.ledger.graph.kernel_by_name[site.kernel]
            self._lines[key] = next((step.line for step in kernel.steps if op in step.ops), 1)
        return self._lines[key]


def event_names(names: Sequence[str]) -> list[str]:
    """Valid and unique names of metrics in the format: letters, digits and `_`."""
    events: list[str] = []
    for name in names:
        plain = _EVENT.sub("_", name)
        plain = plain if plain[:1].isalpha() else f"m_{plain}"
        number = 1
        while (unique := plain if number == 1 else f"{plain}_{number}") in events:
            number += 1
        events.append(unique)
    return events


def _header(ledger: Ledger) -> Iterator[str]:
    events = event_names([metric.name for metric in ledger.metrics])
    yield "# callgrind format"
    yield "version: 1"
    yield f"creator: tracemap {__version__}"
    yield f"cmd: {without_controls(ledger.graph.module.name)}"
    yield from (f"desc: Note: {text}" for text in comments(ledger))
    yield "positions: line"
    for event, metric in zip(events, ledger.metrics, strict=True):
        invocations = invocations_note(metric, ledger.metrics)
        yield f"event: {event} : {without_controls(metric.name)} ({metric.unit}{invocations and f', {invocations}'})"
    yield f"events: {' '.join(events)}"
    yield f"summary: {_numbers(ledger.totals)}"
    yield ""


def _numbers(amounts: Sequence[int]) -> str:
    return " ".join(map(str, amounts))


@dataclass(frozen=True)
class _Body:
    """The body of the file. Names follow their number in the format, so names that look like numbers are safe."""

    _names: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))

    def functions(self, functions: _Functions) -> Iterator[str]:
        """Functions with their lines and calls."""
        for frame, lines in functions.own.items():
            yield f"fl={self._name('file', _file(frame))}"
            yield f"fn={self._name('function', frame.name)}"
            yield from (f"{line} {_numbers(amounts)}" for line, amounts in lines.items())
            yield from self._calls(frame, functions.calls.get(frame, {}))
            yield ""

    def _calls(self, frame: StackFrame, calls: Mapping[StackFrame, _Calls]) -> Iterator[str]:
        for callee, call in calls.items():
            yield f"cfi={self._name('file', _file(callee))}"
            yield f"cfn={self._name('function', callee.name)}"
            yield f"calls={call.count} {known_line(callee.line)}"
            yield f"{known_line(frame.line)} {_numbers(call.amounts)}"

    def _name(self, kind: str, name: str) -> str:
        known = self._names[kind].get(name)
        if known is not None:
            return f"({known})"
        number = self._names[kind][name] = len(self._names[kind]) + 1
        return f"({number}) {name}"


def _file(frame: StackFrame) -> str:
    return _NO_FILE if isinstance(frame.file, Unknown) else frame.file or _NO_FILE
