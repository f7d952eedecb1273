"""What `bench` prints: a table of kernels, and below it what is wrong or not known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TextIO

from tracemap.experiments.model import Bench, KernelBench, Spread, Status
from tracemap.reports.terminal.tables import Heading, console, number, print_table, say
from tracemap.units import Unknown, format_ns, plural

if TYPE_CHECKING:
    from rich.console import Console

_KERNELS = (
    Heading("kernel", least=28),
    number("sites", leave=40),
    Heading("verified", least=7),
    number("time"),
    number("± quartiles", leave=30),
    number("cold", leave=35),
    number("in application", leave=5),
    number("times", leave=6),
    number("Gop/s", leave=20),
    number("GB/s", leave=25),
    number("of attainable", leave=10),
)


_NAMED = 3
"""Kernels that a remark names; JSON names all."""


def print_bench(made: Bench, out: TextIO) -> None:
    """Print the kernels, then what is wrong or not known of them, then why the application takes another time."""
    to = console(out)
    beside = "no run to compare with" if isinstance(made.run, Unknown) else f"beside {made.run}"
    of = f"one worker ({made.device}), in {plural(made.processes, 'process', 'processes')}"
    say(to, f"{plural(len(made.kernels), 'kernel')} alone on {of}, {beside}")
    say(to, _verified(made))
    print_table(to, "", _KERNELS, _rows(made))
    for kernel in made.kernels:
        for line in _faults(kernel):
            say(to, line)
    _print_grouped(to, "In the application, times are others than alone", _differences(made))
    _print_grouped(to, "Of these kernels", _remarks(made))
    for each in made.diagnostics:
        say(to, f"{each.slug}: {each.message}")


def _print_grouped(to: Console, title: str, remarks: Iterable[tuple[str, str]]) -> None:
    """Print remarks, each once, with the kernels that it is of."""
    kernels: dict[str, list[str]] = {}
    for text, kernel in remarks:
        kernels.setdefault(text, []).append(kernel)
    if kernels:
        say(to, "")
        say(to, title, "bold")
    for text, names in kernels.items():
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        say(to, f"- {text}: {', '.join(names[:_NAMED])}{more}")


def _verified(made: Bench) -> str:
    counts = {status: sum(each.verification.status is status for each in made.kernels) for status in Status}
    parts = [
        f"{counts[Status.SUCCESS]} verified",
        f"{counts[Status.FAILED]} wrong",
        f"{counts[Status.NOT_VERIFIED]} not verified",
    ]
    return ", ".join(parts)


_WORDS = {Status.SUCCESS: "yes", Status.FAILED: "FAILED", Status.NOT_VERIFIED: "no"}


def _rows(made: Bench) -> Iterator[tuple[object, ...]]:
    for kernel in made.kernels:
        first = kernel.in_application[0] if kernel.in_application else None
        yield (
            kernel.kernel,
            len(kernel.sites),
            _WORDS[kernel.verification.status],
            _time(kernel.time_ns),
            _quartiles(kernel.time_ns),
            _time(kernel.cold_ns),
            "" if first is None else format_ns(first.median_ns),
            "" if first is None else f"{first.ratio:.2f}",
            _billions(kernel.operations_per_s),
            _billions(kernel.bytes_per_s),
            "" if kernel.attainable_share is None else f"{100 * kernel.attainable_share:.0f} %",
        )


def _time(spread: Spread | None) -> str:
    return "" if spread is None else format_ns(round(spread.median))


def _quartiles(spread: Spread | None) -> str:
    """Half of the distance of the quartiles, in percent of the median."""
    return "" if spread is None else f"{50 * (spread.q3 - spread.q1) / spread.median:.0f} %"


def _billions(value: float | None) -> str:
    return "" if value is None else f"{value / 1e9:.3g}"


def _faults(kernel: KernelBench) -> Iterator[str]:
    verification = kernel.verification
    if verification.status is Status.FAILED:
        yield f"{kernel.kernel}: FAILED: {verification.reason}"
    if kernel.not_measured and kernel.not_measured != verification.reason:
        yield f"{kernel.kernel}: not measured: {kernel.not_measured}"


def _differences(made: Bench) -> Iterator[tuple[str, str]]:
    for kernel in made.kernels:
        for text in dict.fromkeys(site.points_to for site in kernel.in_application if site.points_to):
            yield text, kernel.kernel


def _remarks(made: Bench) -> Iterator[tuple[str, str]]:
    for kernel in made.kernels:
        if kernel.verification.status is Status.NOT_VERIFIED:
            yield f"not verified: {kernel.verification.reason}", kernel.kernel
        if kernel.stood_in:
            yield "the program hands over numbers that only a run tells; others stand in for them", kernel.kernel
        if kernel.same_code is False:
            yield "the machine code alone is not that of the application", kernel.kernel
