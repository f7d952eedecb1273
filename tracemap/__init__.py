"""tracemap: which of my operations, on which line of my model, costs this time and these cache misses?

The Python API: a function per command, which does what the command does and returns what the command would print.
Each takes the command's options, as a record (`tracemap.options`) or by the names of its fields; paths and choices may
be given as text, a model as its file, its MLIR text or its bytes, inputs as arrays. Example:

    import tracemap

    bundle = tracemap.build("model.mlir")
    run = tracemap.record(bundle, iterations=50, sample_hz=251)
    result = tracemap.attribute([run.path], bundle)
    for op in result.ops:
        print(op.name, op.line, op.metrics["cpu_ns"].attributed)

The examples of single functions are of such a `model.mlir` as well, of its bundle `model.tracemap`, which keeps the
compiler's remarks, of runs of it (`run.parquet`, `again.parquet`), of a store `nightly` that has both, one with the tag
`night=1`, one with `night=2`, and of `edited.mlir`, the configuration of its first kernel as `tracemap swap --dump`
writes it. All functions raise kinds of `tracemap.errors.TracemapError`, and TypeError for an option that does not
exist.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from tracemap._version import __version__
from tracemap.errors import TracemapError

if TYPE_CHECKING:
    from tracemap.capture.outputs import Array
    from tracemap.capture.record import Recorded
    from tracemap.capture.timing import FunctionTimes
    from tracemap.experiments.model import Swapped, Tune
    from tracemap.graph.bundle import Bundle as StoredBundle
    from tracemap.graph.documents import Remarks
    from tracemap.graph.lowering import Lowering
    from tracemap.options.compile import BuildOptions, LowerOptions, RemarksOptions
    from tracemap.options.kernels import BenchOptions, SwapOptions, SweepOptions, TuneOptions
    from tracemap.options.measure import BenchmarkOptions, RecordOptions, RunOptions
    from tracemap.options.results import AttributeOptions, DiffOptions, ExportOptions, ReportOptions
    from tracemap.options.store import (
        StoreAddOptions,
        StoreCompareOptions,
        StoreListOptions,
        StoreQueryOptions,
        StoreSitesOptions,
        StoreTrendOptions,
    )
    from tracemap.results.attribution import Attribution
    from tracemap.results.bundle import Bundle
    from tracemap.results.comparison import Bench, Comparison
    from tracemap.results.recording import Recording
    from tracemap.results.run import Run as RunResult
    from tracemap.store.model import FleetAdded, FleetCalls, FleetComparison, FleetCosts, FleetRuns, FleetTrends

    Run = str | Path | Recorded
    Runs = Run | Sequence[Run]
    Side = Runs | StoredBundle

__all__ = [
    "TracemapError",
    "__version__",
    "attribute",
    "bench",
    "benchmark",
    "build",
    "diff",
    "export",
    "load",
    "lower",
    "record",
    "recording",
    "remarks",
    "report",
    "run",
    "store_add",
    "store_compare",
    "store_list",
    "store_query",
    "store_sites",
    "store_trend",
    "swap",
    "sweep",
    "tune",
]


@overload
def build(
    model: str | Path | bytes, output: str | Path | None = None, options: BuildOptions | None = None, **changes: object
) -> Bundle: ...
@overload
def build(
    model: object,
    *arguments: object,
    output: str | Path | None = None,
    options: BuildOptions | None = None,
    keywords: Mapping[str, object] | None = None,
    **changes: object,
) -> Bundle: ...
def build(model: Any, *arguments: Any, **named: Any) -> Bundle:
    """Compile a model or a program, or read the dumps of a compilation made elsewhere, and write its bundle.

    Args:
        model: a file of MLIR text or bytecode; or the content of one, as bytes or as text with a line break or, where
            no file has that name, a brace; "" with `from_dumps`, where the dumps hold the model. A file of ONNX, or one
            that `torch.export.save` wrote (`.pt2`). Or a program: `jax.jit(f)`, what is lowered or exported of one, an
            `onnx.ModelProto`, or a module of torch.
        arguments: of a model the bundle and the options, as the parameters of these names; of a program what it is
            called with, which is kept in the bundle for `record` and the like.
        named: `keywords`: what a program is called with by name; `output`: the bundle, by default named as the model's
            file or the program, in the working folder; `options`: what `tracemap build` can be asked; and options by
            name, such as `device="vulkan"`.

    Raises:
        tracemap.errors.TracemapError: as `tracemap.session.build.build` does.
        TypeError: there is no such option.

    Example:
        >>> bundle = tracemap.build("model.mlir", "new.tracemap")
        >>> len(bundle.graph.ops), [function.name for function in bundle.graph.functions]
        (10, ['main'])
    """
    from tracemap.options.compile import BuildOptions
    from tracemap.options.option import chosen
    from tracemap.results.bundle import Bundle
    from tracemap.session.build import build as build_model
    from tracemap.session.build import build_program

    keywords = named.pop("keywords", None) or {}
    if not isinstance(model, (str, Path, bytes)):
        asked = chosen(BuildOptions, named.pop("options", None), named)
        return Bundle.of(build_program(model, arguments, keywords, asked))
    if len(arguments) > len(_OF_A_MODEL) or keywords:
        raise TypeError("a model takes its bundle and options alone; what it is called with is for `record`")
    named = {**dict(zip(_OF_A_MODEL, arguments, strict=False)), **named}
    return Bundle.of(build_model(_model(model), chosen(BuildOptions, named.pop("options", None), named)))


_OF_A_MODEL = ("output", "options")
"""What stands behind a model that is no program."""


def load(path: str | Path) -> Bundle:
    """Open a bundle.

    Raises:
        tracemap.errors.BundleInvalid: it is not a bundle, or damaged.
        tracemap.errors.BundleVersion: it is of another format version.

    Example:
        >>> bundle = tracemap.load("model.tracemap")
        >>> [site.kernel for site in bundle.graph.sites][:2]
        ['main_dispatch_0_matmul_24x16x16_f32', 'main_dispatch_1_matmul_24x16x16_f32']
    """
    from tracemap.graph import bundle
    from tracemap.options.option import path_of
    from tracemap.results.bundle import Bundle

    return Bundle.of(bundle.load(path_of("path", path)))


def lower(
    model: str | Path | bytes,
    pipelines: Sequence[str] | None = None,
    options: LowerOptions | None = None,
    **changes: object,
) -> Lowering:
    """Run pass pipelines over a model and link its ops to the outermost loops of each stage.

    Args:
        model: a file or MLIR as `build` takes it.
        pipelines: as iree-opt takes them, `builtin.module(…)`; each goes on from the result of the one before.
        options: what `tracemap lower` can be asked; None: its defaults.
        changes: options by name, such as `html="loops.html"`.

    Raises:
        tracemap.errors.TracemapError: as `tracemap.session.build.lower` does.
        TypeError: there is no such option, or there are no pipelines.

    Example:
        >>> lowering = tracemap.lower("model.mlir", ["builtin.module(func.func(cse))"])
        >>> [stage.pipeline for stage in lowering.stages]
        ['', 'builtin.module(func.func(cse))']
    """
    from tracemap.options.compile import LowerOptions
    from tracemap.options.option import chosen
    from tracemap.session.build import lower as lower_model

    return lower_model(_model(model), chosen(LowerOptions, options, changes, pipelines=pipelines))


def record(
    bundle: StoredBundle | str | Path,
    output: str | Path | None = None,
    options: RecordOptions | None = None,
    *,
    inputs: Sequence[object] | None = None,
    **changes: object,
) -> RunResult:
    """Run a bundle's module and write a run; `.path` of the result is the run.

    Args:
        bundle: what `build` or `load` returned, or its path.
        output: the run; None: the next free number in the bundle.
        options: what `tracemap record` can be asked; None: its defaults.
        inputs: one per argument: texts as the command takes them, numbers, arrays (of numpy, or what it can read);
            None: those of the options.
        changes: options by name, such as `iterations=50, sample_hz=251`.

    Raises:
        tracemap.errors.TracemapError: as `tracemap.session.record.record` does.
        TypeError: there is no such option.

    Example:
        >>> import numpy as np
        >>> x, weights = np.ones((24, 16), np.float32), np.eye(16, dtype=np.float32)
        >>> run = tracemap.record("model.tracemap", "new.parquet", inputs=[x, weights], iterations=5)
        >>> run.header.iterations, len(run.header.inputs)
        (5, 2)
    """
    from tracemap.options.measure import RecordOptions
    from tracemap.options.option import chosen
    from tracemap.results.bundle import Bundle
    from tracemap.results.run import Run
    from tracemap.session.record import record as record_bundle

    texts, values = _texts_and_values(inputs)
    asked = chosen(RecordOptions, options, changes, output=output, inputs=texts)
    opened = _opened(bundle)
    return Run.of(record_bundle(opened, asked, values=values), Bundle.of(opened))


def recording(bundle: StoredBundle | str | Path, output: str | Path | None = None) -> Recording:
    """Record what this program itself calls of a bundle's module by `iree.runtime`, in a `with` block.

    Load the module in the block, or behind the first one: what was loaded earlier is not seen.

    Args:
        bundle: what `build` or `load` returned, or its path; its module is the one that the program calls.
        output: the run, Parquet or CSV; None: one that goes with the process.

    Raises:
        tracemap.errors.RunEmpty: no kernel of the bundle was called in the block.
        tracemap.errors.ToolMissing: there is no hook, or no `iree.runtime` to attach it to.
        tracemap.errors.TargetExists, tracemap.errors.TargetUnwritable: the run cannot be written.

    Example:
        >>> import iree.runtime, numpy as np
        >>> bundle = tracemap.load("model.tracemap")
        >>> arrays = np.ones((24, 16), np.float32), np.ones((16, 16), np.float32)
        >>> with tracemap.recording(bundle) as recorded:
        ...     module = iree.runtime.load_vm_flatbuffer_file(str(bundle.module_path), driver="local-sync")
        ...     result = module.main(*arrays)
        >>> recorded.executions == len(bundle.graph.sites)
        True
    """
    from tracemap.options.option import path_of
    from tracemap.results.bundle import Bundle
    from tracemap.results.recording import Recording

    return Recording(Bundle.of(_opened(bundle)), None if output is None else path_of("output", output))


def run(
    bundle: StoredBundle | str | Path,
    options: RunOptions | None = None,
    *,
    inputs: Sequence[object] | None = None,
    **changes: object,
) -> tuple[Array, ...]:
    """Call a function of a bundle's module once; returns its outputs as arrays of numpy, scalars without dimensions.

    Args:
        bundle: what `build` or `load` returned, or its path.
        options: what `tracemap run` can be asked; None: its defaults.
        inputs: as `record` takes them.
        changes: options by name, such as `function="decode", expected_outputs=["@y.npy"]`.

    Raises:
        tracemap.errors.OutputsDiffer: an output is not as expected.
        tracemap.errors.TracemapError: as `tracemap.session.run.run` does.
        TypeError: there is no such option.

    Example:
        >>> import numpy as np
        >>> inputs = np.ones((24, 16), np.float32), np.eye(16, dtype=np.float32)
        >>> (y,) = tracemap.run("model.tracemap", inputs=inputs)
        >>> y.shape, y.dtype.name
        ((24, 16), 'float32')
    """
    from tracemap.capture.expected import check_matches
    from tracemap.options.measure import RunOptions
    from tracemap.options.option import chosen
    from tracemap.session.run import run as run_bundle

    texts, values = _texts_and_values(inputs)
    (ran,) = run_bundle(_opened(bundle), chosen(RunOptions, options, changes, inputs=texts), values=values, arrays=True)
    check_matches(ran.function, ran.compared)
    return ran.outputs


def benchmark(
    bundle: StoredBundle | str | Path,
    options: BenchmarkOptions | None = None,
    *,
    inputs: Sequence[object] | None = None,
    **changes: object,
) -> tuple[FunctionTimes, ...]:
    """Time calls of a function, or where none of several is named of all that take no inputs, without any profiling.

    Args:
        bundle: what `build` or `load` returned, or its path.
        options: what `tracemap benchmark` can be asked; None: its defaults.
        inputs: as `record` takes them.
        changes: options by name, such as `repetitions=5, dispatch_repeat=16`.

    Raises:
        tracemap.errors.TracemapError: as `tracemap.session.run.benchmark` does.
        TypeError: there is no such option.

    Example:
        >>> (times,) = tracemap.benchmark("model.tracemap", repetitions=2, iterations=10)
        >>> times.function, times.calls, min(times.wall_ns) > 0
        ('main', (10, 10), True)
    """
    from tracemap.options.measure import BenchmarkOptions
    from tracemap.options.option import chosen
    from tracemap.session.run import benchmark as benchmark_bundle

    texts, values = _texts_and_values(inputs)
    asked = chosen(BenchmarkOptions, options, changes, inputs=texts)
    return benchmark_bundle(_opened(bundle), asked, values=values).functions


def attribute(
    runs: Runs,
    bundle: StoredBundle | str | Path | None = None,
    options: AttributeOptions | None = None,
    **changes: object,
) -> Attribution:
    """Join runs onto their bundle: which op costs what.

    Args:
        runs: tables, as `record` writes them or of others, or `.ireeprof` files; several are added up. Also what
            `record` returned.
        bundle: what `build` or `load` returned, or its path; None: it is found from the first run.
        options: what `tracemap attribute` can be asked; None: its defaults.
        changes: options by name, such as `rule="equal", html="page.html"`.

    Raises:
        tracemap.errors.TracemapError: as `tracemap.session.attribute.attribute` does.
        TypeError: there is no such option.

    Example:
        >>> result = tracemap.attribute("run.parquet", "model.tracemap", html="page.html")
        >>> cpu = next(metric for metric in result.metrics if metric.name == "cpu_ns")
        >>> sum(op.metrics["cpu_ns"].attributed for op in result.ops) == cpu.attributed
        True
        >>> cpu.attributed + cpu.residual == cpu.measured
        True
    """
    from tracemap.options.option import chosen
    from tracemap.options.results import AttributeOptions
    from tracemap.results.attribution import Attribution
    from tracemap.results.bundle import Bundle
    from tracemap.session.attribute import attribute as attribute_runs

    asked = chosen(AttributeOptions, options, changes)
    paths = _paths(runs)
    made = attribute_runs(paths, None if bundle is None else _opened(bundle), asked)
    return Attribution.of(made.attribution, Bundle.of(made.bundle), tuple(paths))


def remarks(
    bundle: StoredBundle | str | Path,
    run: Run | None = None,
    options: RemarksOptions | None = None,
    **changes: object,
) -> Remarks:
    """What the compiler said of the code of each op, the dearest first.

    Args:
        bundle: what `build` or `load` returned, or its path; it was built with `remarks=True`.
        run: what `record` returned, or the path of a run; None: the newest one of the bundle, if there is any.
        options: what `tracemap remarks` can be asked; None: its defaults.
        changes: options by name, such as `metric="duration_ns"`.

    Raises:
        tracemap.errors.TracemapError: as `tracemap.session.remarks.remarks` does.
        TypeError: there is no such option.

    Example:
        >>> found = tracemap.remarks("model.tracemap", "run.parquet")
        >>> found.metric, {remark.kind for remark in found.remarks} <= {"missed", "passed", "analysis", "failure"}
        ('cpu_ns', True)
    """
    from tracemap.options.compile import RemarksOptions
    from tracemap.options.option import chosen
    from tracemap.session.remarks import remarks as remarks_of

    path = None if run is None else _paths([run])[0]
    return remarks_of(_opened(bundle), path, chosen(RemarksOptions, options, changes))


def diff(
    a: Side,
    b: Side,
    options: DiffOptions | None = None,
    **changes: object,
) -> Comparison:
    """Compare two runs or bundles: which op is which, and what each costs more or less than before.

    Args:
        a: what `build`, `load` or `record` returned, or the path of a bundle or run, or several runs of one bundle; a
            bundle stands for its newest run, or for those of its newest `record --repeat`.
        b: the same, after the change.
        options: what `tracemap diff` can be asked; None: its defaults.
        changes: options by name, such as `threshold=5, html="diff.html"`.

    Raises:
        tracemap.errors.TracemapError: as `tracemap.session.diff.diff` does.
        TypeError: there is no such option.

    Example:
        >>> made = tracemap.diff("run.parquet", "again.parquet", map_a="model.tracemap", map_b="model.tracemap")
        >>> made.matched_percent, made.op("op5").how
        (100.0, 'identity')
    """
    from tracemap.options.option import chosen
    from tracemap.options.results import DiffOptions
    from tracemap.results.comparison import Comparison
    from tracemap.session.diff import diff as diff_paths

    before, after = _paths(a), _paths(b)
    asked = chosen(DiffOptions, options, changes)
    return Comparison.of(diff_paths(before, after, asked), before, after, asked)


def export(
    runs: Runs,
    to: str,
    output: str | Path,
    bundle: StoredBundle | str | Path | None = None,
    options: ExportOptions | None = None,
    **changes: object,
) -> Attribution:
    """Write what `attribute` finds out in a format that other tools open; returns the attribution.

    Args:
        runs: as `attribute` takes them.
        to: the format, such as `pprof`.
        output: the file.
        bundle: as `attribute` takes it.
        options: what `tracemap export` can be asked; None: its defaults.
        changes: options by name, such as `callers="python"`.

    Raises:
        tracemap.errors.TracemapError: as `tracemap.session.report.export` does.
        TypeError: there is no such option.

    Example:
        >>> result = tracemap.export("run.parquet", "speedscope", "run.speedscope.json", "model.tracemap")
        >>> len(result.sites)
        4
    """
    from tracemap.options.option import chosen
    from tracemap.options.results import ExportOptions
    from tracemap.results.attribution import Attribution
    from tracemap.results.bundle import Bundle
    from tracemap.session.report import export as export_runs

    asked = chosen(ExportOptions, options, changes, to=to, output=output)
    paths = _paths(runs)
    made = export_runs(paths, None if bundle is None else _opened(bundle), asked)
    return Attribution.of(made.attribution, Bundle.of(made.bundle), tuple(paths))


def bench(bundle: StoredBundle | str | Path, options: BenchOptions | None = None, **changes: object) -> Bench:
    """Run the kernels of a bundle alone: how long each takes, and whether it computes what it should.

    Args:
        bundle: what `build` or `load` returned, or its path.
        options: what `tracemap bench` can be asked; None: its defaults.
        changes: options by name, such as `top=5, cold=True`.

    Raises:
        tracemap.errors.TracemapError: as `tracemap.session.bench.bench` does.
        TypeError: there is no such option.

    Example:
        >>> made = tracemap.bench("model.tracemap", kernel=["*_0_*"], repetitions=3, min_time=1)
        >>> [(kernel.operation, kernel.verification.status.value) for kernel in made.kernels]
        [('matmul_24x16x16_f32', 'SUCCESS')]
    """
    from tracemap.options.kernels import BenchOptions
    from tracemap.options.option import chosen
    from tracemap.results.comparison import Bench
    from tracemap.session.bench import bench as bench_bundle

    return Bench.of(bench_bundle(_opened(bundle), chosen(BenchOptions, options, changes)))


def swap(
    bundle: StoredBundle | str | Path,
    kernels: Mapping[str, str | Path],
    output: str | Path | None = None,
    options: SwapOptions | None = None,
    **changes: object,
) -> Swapped:
    """Build a bundle with kernels replaced by edited ones, and say what that changes.

    Args:
        bundle: the original: what `build` or `load` returned, or its path.
        kernels: names of kernels or of their executables, and the files that take their place.
        output: the new bundle.
        options: what `tracemap swap` can be asked; None: its defaults.
        changes: options by name, such as `pairs=0`.

    Raises:
        tracemap.errors.TracemapError: as `tracemap.session.swap.swap` does.
        TypeError: there is no such option.

    Example:
        >>> swapped = tracemap.swap("model.tracemap", {"main_dispatch_0": "edited.mlir"}, "new.tracemap", pairs=0)
        >>> [(kernel.kernel, kernel.verification.status.value) for kernel in swapped.kernels]
        [('main_dispatch_0_matmul_24x16x16_f32', 'SUCCESS')]
    """
    from tracemap.options.kernels import SwapOptions
    from tracemap.options.option import chosen, files_of
    from tracemap.session.swap import swap as swap_kernels

    asked = chosen(SwapOptions, options, changes, output=output)
    return swap_kernels(_opened(bundle), files_of("kernels", kernels), asked)


def tune(bundle: StoredBundle | str | Path, options: TuneOptions | None = None, **changes: object) -> Tune:
    """Look for better configurations of kernels, write them as a tuning spec, and say what that gains.

    Args:
        bundle: what `build` or `load` returned, or its path.
        options: what `tracemap tune` can be asked; None: its defaults, but one of `op`, `kernel` and `top` is needed.
        changes: options by name, such as `top=1, output="model.spec.mlir"`.

    Raises:
        tracemap.errors.TracemapError: as `tracemap.session.tune.tune` does.
        TypeError: there is no such option.

    Example:
        >>> tuned = tracemap.tune("model.tracemap", op=["op2"], candidates=1, pairs=0, time_limit=1)
        >>> [kernel.kernel for kernel in tuned.kernels]
        ['main_dispatch_0_matmul_24x16x16_f32']
    """
    from tracemap.options.kernels import TuneOptions
    from tracemap.options.option import chosen
    from tracemap.session.tune import tune as tune_kernels

    return tune_kernels(_opened(bundle), chosen(TuneOptions, options, changes))


def sweep(operation: str, options: SweepOptions | None = None, **changes: object) -> str:
    """Generate an operation in many sizes, compile each with many configurations, verify and time them.

    Args:
        operation: its kind, such as `matmul`.
        options: what `tracemap sweep` can be asked; None: its defaults.
        changes: options by name, such as `size=("M=64,128",), output="matmuls.csv"`.

    Returns:
        The table, as CSV.

    Raises:
        tracemap.errors.TracemapError: as `tracemap.session.sweep.sweep` does.
        TypeError: there is no such option.

    Example:
        >>> table = tracemap.sweep("matmul", size=["M=16", "N=16", "K=16"], repetitions=1, min_time=1)
        >>> table.splitlines()[1].split(",")[:3]
        ['matmul_16x16x16_f32', 'IREE Codegen', 'matmul']
    """
    from tracemap.options.kernels import SweepOptions
    from tracemap.options.option import chosen, text_of
    from tracemap.session.sweep import sweep as sweep_operation

    return sweep_operation(text_of("operation", operation), chosen(SweepOptions, options, changes)).table


def report(
    bundle: StoredBundle | str | Path,
    output: str | Path | None = None,
    runs: Runs = (),
    options: ReportOptions | None = None,
    **changes: object,
) -> None:
    """Write the annotated page of a bundle, with the costs of its runs or, without any, of the map alone.

    Args:
        bundle: what `build` or `load` returned, or its path.
        output: the page; None: that of the options.
        runs: as `attribute` takes them.
        options: what `tracemap report` can be asked; None: its defaults.
        changes: options by name, such as `rule="equal"`.

    Raises:
        tracemap.errors.TracemapError: as `tracemap.session.report.report` does.
        TypeError: there is no such option, or no output is named.

    Example:
        >>> tracemap.report("model.tracemap", "page.html", "run.parquet")
    """
    from tracemap.options.option import chosen
    from tracemap.options.results import ReportOptions
    from tracemap.session.report import report as report_bundle

    asked = chosen(ReportOptions, options, changes, output=output)
    report_bundle(_opened(bundle), _paths(runs), asked)


def store_add(
    runs: Runs,
    store: str | Path,
    bundle: StoredBundle | str | Path | None = None,
    options: StoreAddOptions | None = None,
    **changes: object,
) -> FleetAdded:
    """Put runs into a store, each joined with its bundle; the store is made with the first one.

    Args:
        runs: as `attribute` takes them.
        store: its folder, or a bucket's address as a text.
        bundle: what `build` or `load` returned, or its path; None: each run's own is found.
        options: what `tracemap store add` can be asked; None: its defaults.
        changes: options by name, such as `tag=["branch=main"]`.

    Raises:
        tracemap.errors.TracemapError: as `tracemap.session.store_add.store_add` does.
        TypeError: there is no such option.

    Example:
        >>> made = tracemap.store_add(["run.parquet", "again.parquet"], "new", "model.tracemap", tag=["branch=main"])
        >>> [(run.file, run.added) for run in made.runs]
        [('run.parquet', True), ('again.parquet', True)]
        >>> tracemap.store_add("run.parquet", "new", "model.tracemap").runs[0].added
        False
    """
    from tracemap.options.option import chosen
    from tracemap.options.store import StoreAddOptions
    from tracemap.session.store_add import store_add as add_runs

    asked = chosen(StoreAddOptions, options, changes, store=store)
    return add_runs(_paths(runs), None if bundle is None else _opened(bundle), asked)


def store_list(store: str | Path, options: StoreListOptions | None = None, **changes: object) -> FleetRuns:
    """The runs of a store, with what their headers tell.

    Args:
        store: its folder, or a bucket's address as a text.
        options: what `tracemap store list` can be asked; None: its defaults.
        changes: options by name, such as `where=["host=ci-*"]`.

    Raises:
        tracemap.errors.TracemapError: as `tracemap.session.store.store_list` does.
        TypeError: there is no such option.

    Example:
        >>> found = tracemap.store_list("nightly", where=["tag.night=2"])
        >>> [(run.model, run.iterations, run.tags) for run in found.runs]
        [('model', 5, {'night': '2'})]
    """
    from tracemap.options.option import chosen
    from tracemap.options.store import StoreListOptions
    from tracemap.session.store import store_list as ask

    return ask(chosen(StoreListOptions, options, changes, store=store))


def store_query(store: str | Path, options: StoreQueryOptions | None = None, **changes: object) -> FleetCosts:
    """What ops cost over runs of a store: of each model, and of each value of the columns to group by.

    Args:
        store: its folder, or a bucket's address as a text.
        options: what `tracemap store query` can be asked; None: its defaults.
        changes: options by name, such as `group_by=["cpu_model"]`.

    Raises:
        tracemap.errors.TracemapError: as `tracemap.session.store.store_query` does.
        TypeError: there is no such option.

    Example:
        >>> found = tracemap.store_query("nightly", group_by=["tag.night"], metric=["cpu_ns"])
        >>> [(group.group, group.runs, len(group.ops)) for group in found.groups]
        [({'tag.night': '1'}, 1, 8), ({'tag.night': '2'}, 1, 8)]
        >>> cpu = found.groups[0].metrics[0]
        >>> sum(op.amounts["cpu_ns"] for op in found.groups[0].ops) == cpu.attributed == cpu.measured - cpu.residual
        True
    """
    from tracemap.options.option import chosen
    from tracemap.options.store import StoreQueryOptions
    from tracemap.session.store import store_query as ask

    return ask(chosen(StoreQueryOptions, options, changes, store=store))


def store_sites(store: str | Path, options: StoreSitesOptions | None = None, **changes: object) -> FleetCalls:
    """How long single calls of each site take over runs of a store: percentiles.

    Args:
        store: its folder, or a bucket's address as a text.
        options: what `tracemap store sites` can be asked; None: its defaults.
        changes: options by name, such as `group_by=["cpu_model"]`.

    Raises:
        tracemap.errors.TracemapError: as `tracemap.session.store.store_sites` does.
        TypeError: there is no such option.

    Example:
        >>> (group,) = tracemap.store_sites("nightly").groups
        >>> group.runs, all(site.p10 <= site.median <= site.most for site in group.sites)
        (2, True)
    """
    from tracemap.options.option import chosen
    from tracemap.options.store import StoreSitesOptions
    from tracemap.session.store import store_sites as ask

    return ask(chosen(StoreSitesOptions, options, changes, store=store))


def store_trend(store: str | Path, options: StoreTrendOptions | None = None, **changes: object) -> FleetTrends:
    """Which ops became slower or faster over the runs of a store, since which night; hosts unlike others.

    Args:
        store: its folder, or a bucket's address as a text.
        options: what `tracemap store trend` can be asked; None: its defaults.
        changes: options by name, such as `over="compiler", html="trend.html"`.

    Raises:
        tracemap.errors.TracemapError: as `tracemap.session.store.store_trend` does.
        TypeError: there is no such option.

    Example:
        >>> found = tracemap.store_trend("nightly")
        >>> [(trend.model, trend.changes) for trend in found.models]
        [('model', ())]
    """
    from tracemap.options.option import chosen
    from tracemap.options.store import StoreTrendOptions
    from tracemap.session.store import store_trend as ask

    return ask(chosen(StoreTrendOptions, options, changes, store=store))


def store_compare(
    store: str | Path,
    before: Sequence[str],
    after: Sequence[str],
    options: StoreCompareOptions | None = None,
    **changes: object,
) -> FleetComparison:
    """Which ops cost more or less in some runs of a store than in others, on which processors.

    Args:
        store: its folder, or a bucket's address as a text.
        before: conditions that hold of the runs of the one side, such as `["date=2026-11-01"]`.
        after: the same, of the other side.
        options: what `tracemap store compare` can be asked; None: its defaults.
        changes: options by name, such as `threshold=5`.

    Raises:
        tracemap.errors.TracemapError: as `tracemap.session.store.store_compare` does.
        TypeError: there is no such option.

    Example:
        >>> found = tracemap.store_compare("nightly", ["tag.night=1"], ["tag.night=2"])
        >>> [model.model for model in found.models], found.before.runs, found.after.runs
        (['model'], 1, 1)
    """
    from tracemap.options.option import chosen
    from tracemap.options.store import StoreCompareOptions
    from tracemap.session.store import store_compare as compare_runs

    asked = chosen(StoreCompareOptions, options, changes, store=store, before=before, after=after)
    return compare_runs(asked)


def load_ipython_extension(shell: Any) -> None:  # noqa: ANN401 - IPython's shell, which need not be there
    """Add the magic `%%tracemap BUNDLE` to a notebook: `%load_ext tracemap` calls this."""
    from tracemap.results.recording import add_magic

    add_magic(shell)


def _texts_and_values(inputs: Sequence[object] | None) -> tuple[Sequence[object] | None, Sequence[object]]:
    """Texts are an option like any other; what else Python has goes beside options, which hold what can be typed."""
    from tracemap.options.option import items_of

    values = None if inputs is None else items_of("inputs", inputs)
    return (values, ()) if values is None or all(isinstance(value, str) for value in values) else (None, values)


def _model(model: str | Path | bytes) -> str | bytes:
    """A path as text, or the content of a model as bytes."""
    from tracemap.options.option import path_of

    if isinstance(model, str) and ("\n" in model or ("{" in model and not os.path.exists(model))):  # noqa: PTH110 - Path.exists raises OSError for names that are too long
        return model.encode()
    return model if isinstance(model, (bytes, str)) else str(path_of("model", model, "a path, a text or bytes"))


def _opened(bundle: StoredBundle | str | Path) -> StoredBundle:
    from tracemap.graph.bundle import Bundle as StoredBundle
    from tracemap.options.option import path_of

    return bundle if isinstance(bundle, StoredBundle) else load(path_of("bundle", bundle, "a bundle or its path"))


def _paths(runs: Runs | StoredBundle) -> list[Path]:
    """The paths of one run or bundle, or of several."""
    from tracemap.options.option import path_of

    several = runs if isinstance(runs, Sequence) and not isinstance(runs, (str, bytes)) else [runs]
    return [path_of("a run", getattr(run, "path", run), "a run, a bundle or its path") for run in several]
