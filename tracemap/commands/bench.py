"""`tracemap bench`: each kernel run alone, next to a run of the application."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from tracemap.commands.framework import PATH, options_command
from tracemap.commands.programs import argument_extents, check_call, selected_functions, selects_call
from tracemap.commands.runs import check_damage_on_failure, check_outputs, join_runs, newest_run
from tracemap.commands.streams import show_in_format, show_phases
from tracemap.core.diagnostics import NOISY, Diagnostic, has_slug
from tracemap.core.errors import QueryInvalid, TracemapError, UsageInvalid
from tracemap.core.files import write_output_of
from tracemap.core.process.temporary_files import temporary_folder
from tracemap.core.toolchain import Progress, no_progress
from tracemap.core.units import UNKNOWN, Integer, Text
from tracemap.kernels.model import Bench, KernelBench, Status
from tracemap.options.kernels import BenchOptions
from tracemap.options.measure import CallOptions, RecordOptions, call_of
from tracemap.options.results import AttributeOptions

if TYPE_CHECKING:
    from tracemap.attribution.model import Attribution
    from tracemap.kernels.verification import ApplicationCalls
    from tracemap.map.bundle import Bundle
    from tracemap.map.model import TraceGraph
    from tracemap.runs.model import Peaks


_METRIC = "cpu_ns"
_DEVICE = "local-sync"
_DEFAULT_CACHE_BYTES = 1 << 25
"""Assumed size of the last-level cache in bytes, if the machine does not report it."""


def bench(bundle: Bundle, options: BenchOptions, progress: Progress = no_progress) -> Bench:
    """Run kernels of a bundle alone, and write the result where the options name a file.

    Raises:
        TracemapError: see `kernels.bench.bench`, `commands.runs.join_runs` and `commands.programs.check_call`.
        QueryInvalid: the bundle has no kernel or op of this name.
        UsageInvalid: `top` selects the most expensive kernels, but the bundle has no run.
        TargetExists, TargetUnwritable: the output cannot be written.
    """
    from tracemap.capture.machine import PeakMeter
    from tracemap.kernels.bench import BenchRequest, repetitions_per_process
    from tracemap.kernels.bench import bench as run_kernels
    from tracemap.map.bundle import check_iree
    from tracemap.runs.model import UNKNOWN_HEADER

    check_iree(bundle)
    run = options.run or newest_run(bundle)
    check_outputs(options.output, force=options.force, runs=() if run is None else (run,), bundles=[bundle.path])
    if not bundle.graph.kernels:
        return _write(Bench(module_sha256=bundle.graph.module.sha256, device=_DEVICE, processes=0, kernels=()), options)
    check_top(bundle, options.top, run)
    meter = PeakMeter()
    costs = None if run is None else _attribution(bundle, run, progress)
    kernels = _chosen(bundle, options, costs)
    recording = _SerialRecording(bundle, options, UNKNOWN if costs is None else costs.run.function)
    recording.check()
    header = UNKNOWN_HEADER if costs is None else costs.run
    extent = argument_extents(bundle, options, header.function, header.inputs)
    of_run = partial(_application, costs)
    request = BenchRequest(bundle, options, kernels, extent, meter.look, _cache_bytes(), of_run, recording.application)
    with check_damage_on_failure(bundle):
        results = run_kernels(request, progress)
    return _write(
        Bench(
            module_sha256=bundle.graph.module.sha256,
            run=UNKNOWN if run is None else run.name,
            device=_DEVICE,
            processes=len(repetitions_per_process(options)),
            kernels=results,
            diagnostics=(*recording.diagnostics, *([Diagnostic("peaks-doubtful", meter.doubt)] if meter.doubt else ())),
        ),
        options,
    )


class _SerialRecording:
    """A recording of the application on one worker, to explain why a kernel's time differs in a run."""

    def __init__(self, bundle: Bundle, options: BenchOptions, function: Text) -> None:
        self._bundle, self._options = bundle, options
        self._function = options.function or function
        self.diagnostics: list[Diagnostic] = []

    def check(self) -> None:
        """Reject options of a call that cannot be made, even if the recording turns out not to be needed."""
        if selects_call(self._options):
            check_call(self._bundle, CallOptions(**self._of_call()))

    def _of_call(self) -> dict[str, Any]:
        from tracemap.capture.inputs import takes_size

        # `dim` may be meant for kernels of functions other than the recorded one.
        functions = selected_functions(self._bundle, self._function)
        dim = self._options.dim if any(map(takes_size, functions)) else UNKNOWN
        return call_of(self._options) | {"function": self._function, "dim": dim}

    def application(self) -> ApplicationCalls:
        """Costs of a new recording; empty if none is requested, or with a diagnostic if none can be made."""
        from tracemap.commands.record import record
        from tracemap.kernels.verification import ApplicationCalls

        options = self._options
        if not options.seconds:
            return ApplicationCalls()
        with temporary_folder() as folder:
            path = folder / "again.parquet"
            record_options = RecordOptions(serial=True, output=path, seconds=options.seconds, **self._of_call())
            try:
                run = record(self._bundle, record_options).path
                return _application(_attribution(self._bundle, run, no_progress), None)
            except TracemapError as error:
                self.diagnostics.append(Diagnostic("not-recorded-again", f"the application was not recorded: {error}"))
                return ApplicationCalls()


def _write(results: Bench, options: BenchOptions) -> Bench:
    if options.output is not None:
        write_output_of(partial(show_bench, results, options), options.output)
    return results


def check_top(bundle: Bundle, top: int, run: Path | None = None) -> None:
    """Reject a selection of the most expensive kernels if no run has their costs.

    Raises:
        UsageInvalid: the bundle has no run.
    """
    if top and run is None and newest_run(bundle) is None:
        raise UsageInvalid(
            f"{bundle.path}: has no run, so the most expensive kernels are unknown; record one, or select kernels with "
            "--kernel or --op instead of --top"
        )


def ranked_kernels(bundle: Bundle, options: BenchOptions, progress: Progress) -> tuple[Text, list[tuple[str, Integer]]]:
    """Name of the run (the options' or the bundle's newest), and the selected kernels with their costs in it.

    The most expensive kernel comes first. Name and costs are UNKNOWN without a run.

    Raises:
        QueryInvalid: the options select no kernel.
    """
    run = options.run or newest_run(bundle)
    costs = None if run is None else _attribution(bundle, run, progress)
    names = _chosen(bundle, options, costs)
    if run is None or costs is None:
        return UNKNOWN, [(name, UNKNOWN) for name in names]
    cost_by_kernel = _cost_of_kernels(bundle.graph, costs)
    return run.name, [(name, cost_by_kernel[name]) for name in names]


def bench_kernels(
    bundle: Bundle, options: BenchOptions, kernels: tuple[str, ...], progress: Progress, reference: bytes = b""
) -> tuple[KernelBench, ...]:
    """Run kernels alone, without a comparison with the application.

    `reference` is a configured module whose kernels compute the expected results; b"": the bundle's own module.

    Raises:
        TracemapError: see `kernels.bench.bench`.
    """
    from tracemap.capture.machine import PeakMeter
    from tracemap.kernels.bench import BenchRequest, bench

    extent, look = argument_extents(bundle, options), PeakMeter().look
    request = BenchRequest(bundle, options, kernels, extent, look, _cache_bytes(), reference=reference)
    with check_damage_on_failure(bundle):
        return bench(request, progress)


def has_failed(results: Bench) -> bool:
    """Whether the results of a kernel differ from its reference."""
    return any(kernel.verification.status is Status.FAILED for kernel in results.kernels)


def show_bench(results: Bench, options: BenchOptions, out: TextIO) -> None:
    """Write the results to a stream, in the format of the options."""

    def text(stream: TextIO) -> None:
        if options.format == "csv":
            from tracemap.reports.csv_tables import bench_csv

            stream.write(bench_csv(results))
        else:
            from tracemap.reports.terminal.kernels import print_bench

            print_bench(results, stream)

    def value() -> object:
        if options.format == "google-benchmark":
            from tracemap.reports.json_documents import google_benchmark

            return google_benchmark(results)
        return results

    show_in_format("text" if options.format in ("text", "csv") else "json", out, text, value)


def _attribution(bundle: Bundle, run: Path, progress: Progress) -> Attribution:
    return join_runs([run], bundle, AttributeOptions(), progress).attribution


def _application(costs: Attribution | None, peaks: Peaks | None) -> ApplicationCalls:
    """Call times per dispatch site in a run, and the machine's speed then relative to now.

    Without peaks, the run counts as recorded at the present speed.
    """
    from tracemap.kernels.verification import ApplicationCalls, SiteCalls

    if costs is None:
        return ApplicationCalls()
    header = costs.run
    sites = {}
    for site in costs.sites:
        spread = site.metrics[_METRIC].per_call if _METRIC in site.metrics else None
        if spread is not None and isinstance(site.calls, int):
            sites[site.site] = SiteCalls(site.calls, spread.median)
    speed = 1.0
    if peaks is not None and header.peaks.source == "measured":
        speed = header.peaks.operations_per_second / peaks.operations_per_second
    noisy = has_slug(header.diagnostics, NOISY)
    return ApplicationCalls(sites, header.workers, speed, noisy)


def _chosen(bundle: Bundle, options: BenchOptions, costs: Attribution | None) -> tuple[str, ...]:
    """Names of the selected kernels, the most expensive in the run first."""
    from tracemap.map.query import kernels_named, kernels_of, resolve

    graph, texts = bundle.graph, bundle.source_text
    names = [kernel.name for kernel in graph.kernels]
    if options.kernel:
        named = {name for what in options.kernel for name in kernels_named(graph, what, texts)}
        names = [name for name in names if name in named]
    if options.op:
        running = {name for what in options.op for name in kernels_of(graph, what, resolve(graph, what, texts).names)}
        names = [name for name in names if name in running]
        if not names:
            raise QueryInvalid(f"{', '.join(options.op)}: runs in no selected kernel; `show` lists its kernels")
    if costs is not None:
        cost_by_kernel = _cost_of_kernels(graph, costs)
        names.sort(key=lambda name: -cost_by_kernel[name])
    return tuple(names[: options.top] if options.top else names)


def _cost_of_kernels(graph: TraceGraph, costs: Attribution) -> Counter[str]:
    totals: Counter[str] = Counter()
    for metric in (_METRIC, "duration_ns"):  # GPU runs have no CPU time, only durations
        if not any(totals.values()):
            for site in costs.sites:
                if metric in site.metrics:
                    totals[graph.site_by_id[site.site].kernel] += site.metrics[metric].total
    return totals


def _cache_bytes() -> int:
    """Size of the last-level cache in bytes."""
    from tracemap.capture.machine import geometry

    sizes: Sequence[int] = [cache.size for cache in geometry(()).caches if cache.name == "LL"]
    return sizes[0] if sizes else _DEFAULT_CACHE_BYTES


# ---- command line


@options_command("bench", BenchOptions)
@click.argument("bundle", metavar="BUNDLE", type=PATH)
def command(bundle: Path, options: BenchOptions) -> None:
    """Run each kernel of BUNDLE alone: time per call, % of roofline, and whether the results are correct.

    Kernels run with the shapes of the application and generated data. numpy computes the expected results from the IR
    before code generation. The table shows the time alone next to the time in the application, which comes from the
    newest run of BUNDLE. The exit status is 1 if a kernel fails or its results are wrong.

    \b
    Example:
      tracemap bench model.tracemap --top 5
      tracemap bench model.tracemap --op op12 --cold --format json
      tracemap bench model.tracemap --kernel '*matmul*' --format csv
    """
    from tracemap.map.bundle import load

    with show_phases("bench") as progress:
        results = bench(load(bundle), options, progress)
    if options.output is None:
        show_bench(results, options, sys.stdout)
    if has_failed(results):
        sys.exit(1)
