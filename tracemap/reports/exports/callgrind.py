"""callgrind's profile format, which KCachegrind and callgrind_annotate read (valgrind, docs/html/cl-format.html).

Scopes call what is inside of them, down to ops, and ops call the kernels that they work in. The cost itself stands
either on the lines of ops or on those of kernels; everybody else has it as the cost of what they call.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from tracemap._version import __version__
from tracemap.graph.model import Kernel
from tracemap.options.results import SelfCost
from tracemap.reports.advice import counted_in
from tracemap.reports.exports.charges import Charge, Ledger, Place
from tracemap.reports.exports.pprof import comments, known_line
from tracemap.sanitize import without_controls
from tracemap.units import UNKNOWN, Text, Unknown

_NO_FILE: Final = "???"
"""What valgrind's own tools write where the file is unknown."""
_EVENT: Final = re.compile(r"[^A-Za-z0-9_]")

Amounts = tuple[int, ...]


@dataclass(slots=True)
class _Calls:
    """Calls from a line to a function: how many, and what they cost with all that they lead to."""

    count: int = 0
    amounts: list[int] = field(default_factory=list)

    def add(self, count: int, amounts: Amounts) -> None:
        self.count += count
        self.amounts = [one + other for one, other in zip(self.amounts or [0] * len(amounts), amounts, strict=True)]


@dataclass(frozen=True)
class _Functions:
    """What each function has itself, by line, and what it calls."""

    own: dict[Place, dict[int, list[int]]] = field(default_factory=dict)
    calls: dict[Place, dict[Place, _Calls]] = field(default_factory=lambda: defaultdict(dict))

    def charge(self, place: Place, line: int, amounts: Amounts) -> None:
        """Give a function a cost on a line of it."""
        lines = self.own.setdefault(place, {})
        before = lines.get(line, [0] * len(amounts))
        lines[line] = [one + other for one, other in zip(before, amounts, strict=True)]

    def call(self, caller: Place, callee: Place, count: int, amounts: Amounts) -> None:
        """Note that one function calls another."""
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
    return "".join(f"{line}\n" for line in (*_header(ledger), *_Written().functions(functions)))


def _add(functions: _Functions, charge: Charge, kernels: _KernelLines) -> None:
    """Charge the op or its kernel, and note the calls that lead there."""
    for caller, callee in pairwise((*charge.around, charge.place)):
        functions.call(caller, callee, charge.calls, charge.amounts)
    kernel = kernels.kernel_of(charge)
    if kernel is None or kernels.self_cost == "ops":
        functions.charge(charge.place, known_line(charge.place.line), charge.amounts)
    if kernel is None:
        return
    place, inside = kernels.place(kernel), (0,) * len(charge.amounts)
    if kernels.self_cost == "kernels":
        functions.charge(place, kernels.line(kernel, charge), charge.amounts)
        inside = charge.amounts
    functions.call(charge.place, place, charge.calls, inside)


@dataclass(frozen=True)
class _KernelLines:
    """Where a kernel's text does an op's work: the first line that came from the op, else where the kernel begins."""

    ledger: Ledger
    self_cost: SelfCost
    _lines: dict[tuple[str, str], int] = field(default_factory=dict)

    def kernel_of(self, charge: Charge) -> Kernel | None:
        """The kernel that a charge is of; None for what is in no kernel."""
        site = self.ledger.graph.site_by_id.get(charge.work)
        return None if site is None else self.ledger.graph.kernel_by_name[site.kernel]

    def place(self, kernel: Kernel) -> Place:
        """A kernel, and its text in the bundle."""
        file: Text = UNKNOWN if isinstance(kernel.text, Unknown) else without_controls(f"kernels/{kernel.text}")
        return Place(f"kernel {without_controls(kernel.name)}", file)

    def line(self, kernel: Kernel, charge: Charge) -> int:
        """The line that an op has in a kernel's text."""
        op = "" if charge.op is None else charge.op.id
        key = kernel.name, op
        if key not in self._lines:
            self._lines[key] = next((step.line for step in kernel.steps if op in step.ops), 1)
        return self._lines[key]


def event_names(names: Sequence[str]) -> list[str]:
    """Names of metrics as the format takes them: letters, digits and `_`, and each another one."""
    made: list[str] = []
    for name in names:
        plain = _EVENT.sub("_", name)
        plain = plain if plain[:1].isalpha() else f"m_{plain}"
        number = 1
        while (unique := plain if number == 1 else f"{plain}_{number}") in made:
            number += 1
        made.append(unique)
    return made


def _header(ledger: Ledger) -> Iterator[str]:
    events = event_names([metric.name for metric in ledger.metrics])
    yield "# callgrind format"
    yield "version: 1"
    yield f"creator: tracemap {__version__}"
    yield f"cmd: {without_controls(ledger.graph.module.name)}"
    yield from (f"desc: Note: {text}" for text in comments(ledger))
    yield "positions: line"
    for event, metric in zip(events, ledger.metrics, strict=True):
        calls = counted_in(metric, ledger.metrics)
        yield f"event: {event} : {without_controls(metric.name)} ({metric.unit}{calls and f', {calls}'})"
    yield f"events: {' '.join(events)}"
    yield f"summary: {_numbers(ledger.totals)}"
    yield ""


def _numbers(amounts: Sequence[int]) -> str:
    return " ".join(map(str, amounts))


@dataclass(frozen=True)
class _Written:
    """The body. Names stand behind their number, so that one that looks like a number is none."""

    _names: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))

    def functions(self, functions: _Functions) -> Iterator[str]:
        """Each function with its lines and calls."""
        for place, lines in functions.own.items():
            yield f"fl={self._name('file', _file(place))}"
            yield f"fn={self._name('function', place.name)}"
            yield from (f"{line} {_numbers(amounts)}" for line, amounts in lines.items())
            yield from self._calls(place, functions.calls.get(place, {}))
            yield ""

    def _calls(self, place: Place, calls: Mapping[Place, _Calls]) -> Iterator[str]:
        for callee, made in calls.items():
            yield f"cfi={self._name('file', _file(callee))}"
            yield f"cfn={self._name('function', callee.name)}"
            yield f"calls={made.count} {known_line(callee.line)}"
            yield f"{known_line(place.line)} {_numbers(made.amounts)}"

    def _name(self, kind: str, name: str) -> str:
        known = self._names[kind].get(name)
        if known is not None:
            return f"({known})"
        number = self._names[kind][name] = len(self._names[kind]) + 1
        return f"({number}) {name}"


def _file(place: Place) -> str:
    return _NO_FILE if isinstance(place.file, Unknown) else place.file or _NO_FILE
