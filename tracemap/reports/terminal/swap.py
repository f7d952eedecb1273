"""What `swap` prints: what was replaced, whether it computes the same, and which ops cost something else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

from tracemap.experiments.model import ComparedFunction, OpChange, Ratio, Spread, Status, Swapped
from tracemap.reports.terminal.tables import Heading, console, number, print_table, say
from tracemap.units import Unknown, format_ns, plural

if TYPE_CHECKING:
    from rich.console import Console

_KERNELS = (
    Heading("replaced kernel", least=28),
    Heading("verified"),
    number("before"),
    number("after"),
    number("steps"),
)
_OPS = (
    Heading("op"),
    number("line", leave=10),
    Heading("name", leave=20, least=8),
    number("before"),
    number("after"),
    number("times"),
    number("smallest … largest", leave=15),
    Heading("kernel", leave=25),
)


_BESIDE = 5
"""Ops that are named although their code is the same; JSON has all."""


def print_swap(made: Swapped, out: TextIO) -> None:
    """Print the replaced kernels, then the ops that changed."""
    to = console(out)
    for each in made.replaced:
        say(to, f"{each.executable}: {each.stage} replaced by {each.file}")
    print_table(to, "", _KERNELS, _kernel_rows(made))
    for kernel in made.kernels:
        if kernel.verification.status is not Status.SUCCESS:
            say(to, f"{kernel.kernel}: {kernel.verification.status.value}: {kernel.verification.reason}")
    for function in made.functions:
        _print_function(to, function)
    print_changes(to, made.pairs, made.whole, made.ops)


def _print_function(to: Console, function: ComparedFunction) -> None:
    if function.failure:
        say(to, f"{function.function}: the new program fails: {function.failure}")
    for output in function.outputs:
        say(to, f"{function.function}: result[{output.place}] {output.type}: {output.said}")


def print_changes(to: Console, pairs: int, whole: Ratio | None, ops: Sequence[OpChange]) -> None:
    """Print what two bundles that were recorded in turn differ in; nothing where they were not."""
    if whole is None:
        return
    say(to, "")
    say(to, f"{plural(pairs, 'pair')} of recordings: an invocation takes {_times(whole)} the time")
    named = [each for each in ops if each.named]
    if named:
        print_table(to, "Ops that cost something else, per invocation", _OPS, map(_op_row, named))
    else:
        say(to, "no op costs more or less than before, beyond the threshold, in all of them")
    beside = [f"{each.op} {each.ratio.median:.2f} times" for each in ops if each.beside]
    if beside:
        more = f" and {len(beside) - _BESIDE} more" if len(beside) > _BESIDE else ""
        listed = ", ".join(beside[:_BESIDE])
        say(to, f"other costs of the same code, as caches and clocks are left to it: {listed}{more}")


def _kernel_rows(made: Swapped) -> Iterator[tuple[object, ...]]:
    words = {Status.SUCCESS: "yes", Status.FAILED: "FAILED", Status.NOT_VERIFIED: "no"}
    for kernel in made.kernels:
        times = _time(kernel.before_ns), _time(kernel.after_ns)
        yield kernel.kernel, words[kernel.verification.status], *times, kernel.steps


def _op_row(change: OpChange) -> tuple[object, ...]:
    line = "?" if isinstance(change.line, Unknown) else change.line
    times = format_ns(round(change.before_ns)), format_ns(round(change.after_ns))
    spread = f"{change.ratio.low:.2f} … {change.ratio.high:.2f}"
    kernel = "replaced" if change.replaced else ""
    return change.op, line, change.name, *times, f"{change.ratio.median:.2f}", spread, kernel


def _times(ratio: Ratio) -> str:
    return f"{ratio.median:.2f} ({ratio.low:.2f} … {ratio.high:.2f}) times"


def _time(spread: Spread | None) -> str:
    return "" if spread is None else format_ns(round(spread.median))
