"""Text of `bench`, `tune` and `swap`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

from tracemap.core.files import STANDARD_OUTPUT
from tracemap.core.units import Unknown, format_ns, plural
from tracemap.kernels.model import (
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
from tracemap.reports.terminal.tables import Heading, console, number, print_table, say

if TYPE_CHECKING:
    from rich.console import Console


# ---- bench


_KERNELS = (
    Heading("kernel", least=28),
    number("sites", leave=40),
    Heading("verified", least=7),
    number("time"),
    number("± quartiles", leave=30),
    number("cold", leave=35),
    number("in application", leave=5),
    number("ratio", leave=6),
    number("Gop/s", leave=20),
    number("GB/s", leave=25),
    number("of roofline", leave=10),
)


_NAMED = 3
"""Most kernels named in a remark; the JSON names all."""


def print_bench(bench: Bench, out: TextIO) -> None:
    """Print the kernels, faults, reasons for different times in the application, and remarks."""
    terminal = console(out)
    run = "no run to compare with" if isinstance(bench.run, Unknown) else f"compared with {bench.run}"
    worker = f"one worker ({bench.device}), in {plural(bench.processes, 'process', 'processes')}"
    say(terminal, f"{plural(len(bench.kernels), 'kernel')} alone on {worker}, {run}")
    say(terminal, _verification_counts(bench))
    print_table(terminal, "", _KERNELS, _rows(bench))
    for kernel in bench.kernels:
        for line in _faults(kernel):
            say(terminal, line)
    _print_grouped(terminal, "Why times in the application differ", _differences(bench))
    _print_grouped(terminal, "Remarks on the kernels", _remarks(bench))
    for diagnostic in bench.diagnostics:
        say(terminal, f"{diagnostic.slug}: {diagnostic.message}")


def _print_grouped(terminal: Console, title: str, remarks: Iterable[tuple[str, str]]) -> None:
    """Print every distinct remark with its kernels."""
    kernels: dict[str, list[str]] = {}
    for text, kernel in remarks:
        kernels.setdefault(text, []).append(kernel)
    if kernels:
        say(terminal, "")
        say(terminal, title, "bold")
    for text, names in kernels.items():
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        say(terminal, f"- {text}: {', '.join(names[:_NAMED])}{more}")


def _verification_counts(bench: Bench) -> str:
    counts = {status: sum(kernel.verification.status is status for kernel in bench.kernels) for status in Status}
    parts = [
        f"{counts[Status.SUCCESS]} verified",
        f"{counts[Status.FAILED]} wrong",
        f"{counts[Status.NOT_VERIFIED]} not verified",
    ]
    return ", ".join(parts)


_WORDS = {Status.SUCCESS: "yes", Status.FAILED: "FAILED", Status.NOT_VERIFIED: "no"}


def _rows(bench: Bench) -> Iterator[tuple[object, ...]]:
    for kernel in bench.kernels:
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
            "" if kernel.roofline_share is None else f"{100 * kernel.roofline_share:.0f} %",
        )


def _time(spread: Spread | None) -> str:
    return "" if spread is None else format_ns(round(spread.median))


def _quartiles(spread: Spread | None) -> str:
    """Half of the interquartile range, in percent of the median."""
    return "" if spread is None else f"{50 * (spread.q3 - spread.q1) / spread.median:.0f} %"


def _billions(value: float | None) -> str:
    return "" if value is None else f"{value / 1e9:.3g}"


def _faults(kernel: KernelBench) -> Iterator[str]:
    verification = kernel.verification
    if verification.status is Status.FAILED:
        yield f"{kernel.kernel}: FAILED: {verification.reason}"
    if kernel.not_measured and kernel.not_measured != verification.reason:
        yield f"{kernel.kernel}: not measured: {kernel.not_measured}"


def _differences(bench: Bench) -> Iterator[tuple[str, str]]:
    for kernel in bench.kernels:
        for text in dict.fromkeys(site.points_to for site in kernel.in_application if site.points_to):
            yield text, kernel.kernel


def _remarks(swap: Bench) -> Iterator[tuple[str, str]]:
    for kernel in swap.kernels:
        if kernel.verification.status is Status.NOT_VERIFIED:
            yield f"not verified: {kernel.verification.reason}", kernel.kernel
        if kernel.stood_in:
            yield "operands that only a run determines were replaced by other values", kernel.kernel
        if kernel.same_code is False:
            yield "compiled alone, the kernel has other machine code than in the application", kernel.kernel


# ---- swap


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
    number("ratio"),
    number("smallest … largest", leave=15),
    Heading("kernel", leave=25),
)


_UNCHANGED_CODE_NAMED = 5
"""Most ops named whose cost changed although their code did not; the JSON has all."""


def print_swap(swap: Swapped, out: TextIO) -> None:
    """Print the replaced kernels, then the ops that changed."""
    terminal = console(out)
    for replacement in swap.replaced:
        say(terminal, f"{replacement.executable}: {replacement.stage} replaced by {replacement.file}")
    print_table(terminal, "", _SWAPPED_KERNELS, _kernel_rows(swap))
    for kernel in swap.kernels:
        if kernel.verification.status is not Status.SUCCESS:
            say(terminal, f"{kernel.kernel}: {kernel.verification.status.value}: {kernel.verification.reason}")
    for function in swap.functions:
        _print_function(terminal, function)
    print_changes(terminal, swap.pairs, swap.whole, swap.ops)


def _print_function(terminal: Console, function: ComparedFunction) -> None:
    if function.failure:
        say(terminal, f"{function.function}: the new program fails: {function.failure}")
    for output in function.outputs:
        say(terminal, f"{function.function}: result[{output.place}] {output.type}: {output.said}")


def print_changes(terminal: Console, pairs: int, whole: Ratio | None, ops: Sequence[OpChange]) -> None:
    """Print the changes between two bundles recorded in pairs; nothing without recordings."""
    if whole is None:
        return
    say(terminal, "")
    say(terminal, f"{plural(pairs, 'pair')} of recordings: an invocation takes {_times(whole)} the time")
    changed = [op for op in ops if op.named]
    if changed:
        print_table(terminal, "Ops whose cost changed, per invocation", _OPS, map(_op_row, changed))
    else:
        say(terminal, "no op changed beyond the threshold in all pairs")
    unchanged_code = [f"{op.op} {op.ratio.median:.2f}x" for op in ops if op.unchanged_code]
    if unchanged_code:
        hidden = len(unchanged_code) - _UNCHANGED_CODE_NAMED
        more = f" and {hidden} more" if hidden > 0 else ""
        listed = ", ".join(unchanged_code[:_UNCHANGED_CODE_NAMED])
        say(terminal, f"same code, other cost (caches, clock frequency): {listed}{more}")


def _kernel_rows(swap: Swapped) -> Iterator[tuple[object, ...]]:
    words = {Status.SUCCESS: "yes", Status.FAILED: "FAILED", Status.NOT_VERIFIED: "no"}
    for kernel in swap.kernels:
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


# ---- tune


_TUNED_KERNELS = (
    Heading("kernel", least=28),
    number("tried"),
    number("failed", leave=20),
    number("time alone"),
    Heading("interval", leave=30),
    Heading("configuration", leave=10, least=16),
)

_NO_RUN = "no run with costs: in program order"
_TUNER_FOLDERS = (Heading("folder", least=28), Heading("kernel", leave=20), number("cost in the run", leave=10))


def print_tune(tune: Tune, out: TextIO) -> None:
    """Print the kernels, then the ops of the application that changed."""
    terminal = console(out)
    if tune.handed_on is not None:
        _print_tuner_folders(terminal, tune, tune.handed_on)
        return
    print_table(terminal, "", _TUNED_KERNELS, _tuned_rows(tune), gap=False)
    for kernel in tune.kernels:
        if kernel.obstacle:
            say(terminal, f"{kernel.kernel}: {kernel.obstacle}")
    if not tune.spec:
        say(terminal, "no better configuration found: no spec written")
        return
    if tune.spec != STANDARD_OUTPUT:
        say(terminal, f"spec: {tune.spec}; use iree-compile --iree-codegen-tuning-spec-path={tune.spec}")
    print_changes(terminal, tune.pairs, tune.application, tune.ops)


def _print_tuner_folders(terminal: Console, tune: Tune, ranking: Ranking) -> None:
    """Print the folders written for another tuner, and the command that starts it."""
    known = isinstance(ranking.run, str)
    rows = ((kernel.folder, kernel.kernel, format_ns(kernel.cost_ns) if known else "") for kernel in ranking.kernels)
    print_table(terminal, "", _TUNER_FOLDERS, (row for row in rows if row[0]), gap=False)
    for kernel in ranking.kernels:
        if kernel.obstacle:
            say(terminal, f"{kernel.kernel}: left out: {kernel.obstacle}")
    say(terminal, f"ranked by cost in {ranking.run}" if known else _NO_RUN)
    say(terminal, f"tune them with amdsharktuner: {tune.spec}/tune.sh hip://0 100")


def _tuned_rows(tune: Tune) -> Iterator[tuple[object, ...]]:
    for kernel in tune.kernels:
        counts = kernel.kernel, kernel.tried, kernel.failed
        if kernel.best is None:
            yield *counts, "", "", f"no better candidate in {kernel.tried} tried"
        else:
            yield *counts, *_ratio(kernel.best.ratio), _configuration(kernel.best)


def _configuration(best: BestConfiguration) -> str:
    return f"pipeline {best.pipeline}, {best.configuration}" if best.pipeline else best.configuration


def _ratio(ratio: Ratio) -> tuple[str, str]:
    return f"{ratio.median:.2f}x", f"{ratio.low:.2f} … {ratio.high:.2f}"
