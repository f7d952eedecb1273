"""Text of `bench`, `tune` and `swap`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

from tracemap.experiments.model import (
    Bench,
    BestConfiguration,
    ComparedFunction,
    KernelBench,
    OpChange,
    Ranking,
    Ratio,
    Spread,
    Status,
    Swapped,
    Tune,
)
from tracemap.outputs import STANDARD_OUTPUT
from tracemap.reports.terminal.tables import Heading, console, number, print_table, say
from tracemap.units import Unknown, format_ns, plural

if TYPE_CHECKING:
    from rich.console import Console


# ---- bench
#
# What `bench` prints: a table of kernels, and below it what is wrong or not known.


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


# ---- swap
#
# What `swap` prints: what was replaced, whether it computes the same, and which ops cost something else.


_SWAPPED_KERNELS = (
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
    print_table(to, "", _SWAPPED_KERNELS, _kernel_rows(made))
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
        times = _swap_time(kernel.before_ns), _swap_time(kernel.after_ns)
        yield kernel.kernel, words[kernel.verification.status], *times, kernel.steps


def _op_row(change: OpChange) -> tuple[object, ...]:
    line = "?" if isinstance(change.line, Unknown) else change.line
    times = format_ns(round(change.before_ns)), format_ns(round(change.after_ns))
    spread = f"{change.ratio.low:.2f} … {change.ratio.high:.2f}"
    kernel = "replaced" if change.replaced else ""
    return change.op, line, change.name, *times, f"{change.ratio.median:.2f}", spread, kernel


def _times(ratio: Ratio) -> str:
    return f"{ratio.median:.2f} ({ratio.low:.2f} … {ratio.high:.2f}) times"


def _swap_time(spread: Spread | None) -> str:
    return "" if spread is None else format_ns(round(spread.median))


# ---- tune
#
# What `tune` prints: what was tried of each kernel, and what the best changes in the application.


_TUNED_KERNELS = (
    Heading("kernel", least=28),
    number("tried"),
    number("failed", leave=20),
    number("time alone"),
    Heading("interval", leave=30),
    Heading("configuration", leave=10, least=16),
)

_NO_RUN = "no run tells the costs: in the order of the program"
_HANDED_ON = (Heading("folder", least=28), Heading("kernel", leave=20), number("cost in the run", leave=10))


def print_tune(made: Tune, out: TextIO) -> None:
    """Print the kernels, then the ops of the application that changed."""
    to = console(out)
    if made.handed_on is not None:
        _print_handed_on(to, made, made.handed_on)
        return
    print_table(to, "", _TUNED_KERNELS, _tuned_rows(made), gap=False)
    for each in made.kernels:
        if each.obstacle:
            say(to, f"{each.kernel}: {each.obstacle}")
    if not made.spec:
        say(to, "no better configuration is known: nothing to write")
        return
    if made.spec != STANDARD_OUTPUT:
        say(to, f"spec: {made.spec}, for iree-compile --iree-codegen-tuning-spec-path={made.spec}")
    print_changes(to, made.pairs, made.application, made.ops)


def _print_handed_on(to: Console, made: Tune, ranking: Ranking) -> None:
    """Print what was written for another tuner, and how it is started."""
    known = isinstance(ranking.run, str)
    rows = ((each.folder, each.kernel, format_ns(each.cost_ns) if known else "") for each in ranking.kernels)
    print_table(to, "", _HANDED_ON, (row for row in rows if row[0]), gap=False)
    for each in ranking.kernels:
        if each.obstacle:
            say(to, f"{each.kernel}: left out: {each.obstacle}")
    say(to, f"ranked by their cost in {ranking.run}" if known else _NO_RUN)
    say(to, f"amdsharktuner tunes them: {made.spec}/tune.sh hip://0 100")


def _tuned_rows(made: Tune) -> Iterator[tuple[object, ...]]:
    for each in made.kernels:
        if each.best is None:
            yield each.kernel, each.tried, each.failed, "", "", f"no better candidate in {each.tried} tried"
        else:
            yield each.kernel, each.tried, each.failed, *_ratio(each.best.ratio), _configuration(each.best)


def _configuration(best: BestConfiguration) -> str:
    return f"pipeline {best.pipeline}, {best.configuration}" if best.pipeline else best.configuration


def _ratio(ratio: Ratio) -> tuple[str, str]:
    return f"{ratio.median:.2f} times", f"{ratio.low:.2f} … {ratio.high:.2f}"
