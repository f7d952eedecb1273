"""tracemap: which of my operations, on which line of my model, costs this time and these cache misses?

The Python API has one function per command. The function returns the data that the command prints. Options are keyword
arguments: `--source-root X` becomes `source_roots=[X]`. A record from `tracemap.options` with the same names works too.
Paths and choices may be strings; a model may be a file, MLIR text or bytes; inputs may be arrays. Example:

    import tracemap

    bundle = tracemap.build("model.mlir")
    run = tracemap.record(bundle, iterations=50, sample_hz=251)
    result = tracemap.attribute([run.path], bundle)
    for op in result.ops:
        print(op.name, op.line, op.metrics["cpu_ns"].attributed)

The examples of the functions use these files:

- `model.mlir`, and its bundle `model.tracemap`, built with the compiler's remarks;
- two runs of the bundle, `run.parquet` and `again.parquet`;
- a store `nightly` with both runs, tagged `night=1` and `night=2`;
- `edited.mlir`, the configuration of the first kernel, written by `tracemap swap --dump`.

All functions raise subclasses of `tracemap.core.errors.TracemapError`, and TypeError for an option that does not exist.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from tracemap._version import __version__
from tracemap.core.errors import TracemapError

if TYPE_CHECKING:
    from tracemap.capture.outputs import Array
    from tracemap.capture.record import RecordedRun
    from tracemap.capture.timing import FunctionTimes
    from tracemap.kernels.model import Numerics, Swapped, Tune
    from tracemap.map.bundle import Bundle as StoredBundle
    from tracemap.map.bundle_documents import Remarks
    from tracemap.map.lowering import Lowering
    from tracemap.options.compile import BuildOptions, LowerOptions, RemarksOptions
    from tracemap.options.kernels import BenchOptions, NumericsOptions, SwapOptions, SweepOptions, TuneOptions
    from tracemap.options.measure import BenchmarkOptions, ProfileOptions, RecordOptions, RunOptions
    from tracemap.options.reports import DiffOptions, ExportOptions, ReportOptions
    from tracemap.options.results import AttributeOptions
    from tracemap.options.store import (
        StoreAddOptions,
        StoreCompareOptions,
        StoreListOptions,
        StoreQueryOptions,
        StoreSitesOptions,
        StoreTrendOptions,
    )
    from tracemap.results.attribution import Attribution, Profile
    from tracemap.results.bundle import Bundle
    from tracemap.results.comparison import Bench, Comparison
    from tracemap.results.run import Recording
    from tracemap.results.run import Run as RunResult
    from tracemap.store.model import StoreAdded, StoreCalls, StoreComparison, StoreCosts, StoreRuns, StoreTrends

    Run = str | Path | RecordedRun
    Runs = Run | Sequence[Run]
    Inputs = Sequence[object] | Mapping[str, object]
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
    "numerics",
    "profile",
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
    """Compile a model or a program, or import the dumps of a compilation made elsewhere, and write the bundle.

    Args:
        model: one of these:

            - a file of MLIR text or bytecode, a file of ONNX, or one that `torch.export.save` wrote (`.pt2`);
            - the content of an MLIR file, as bytes or as a string. A string is content if it has a line break, or if it
              has a brace and no file has that name;
            - "" with `from_dumps`, if the dumps contain the model;
            - a program: `jax.jit(f)`, its lowered or exported form, an `onnx.ModelProto`, or a module of torch.
        arguments: for a model, `output` and `options` by position. For a program, its arguments, which the bundle keeps
            as inputs for `record` and other functions.
        named: `keywords`: keyword arguments of a program. `output`: the bundle; by default in the working folder, with
            the name of the model's file or of the program. `options`: options of `tracemap build`. All others: options
            by name, such as `device="vulkan"`.

    Raises:
        tracemap.core.errors.TracemapError: see `tracemap.commands.build.build`.
        TypeError: an option does not exist.

    Example:
        >>> bundle = tracemap.build("model.mlir", "new.tracemap")
        >>> len(bundle.graph.ops), [function.name for function in bundle.graph.functions]
        (10, ['main'])
    """
    from tracemap.commands.build import build as build_model
    from tracemap.commands.build import build_program
    from tracemap.options.compile import BuildOptions
    from tracemap.options.option import merge_options
    from tracemap.results.bundle import Bundle

    keywords = named.pop("keywords", None) or {}
    if not isinstance(model, (str, Path, bytes)):
        asked = merge_options(BuildOptions, named.pop("options", None), named)
        return Bundle.of(build_program(model, arguments, keywords, asked))
    if len(arguments) > len(_OF_A_MODEL) or keywords:
        raise TypeError("a model takes only a bundle and options; pass its inputs to `record`")
    named = {**dict(zip(_OF_A_MODEL, arguments, strict=False)), **named}
    return Bundle.of(build_model(_model(model), merge_options(BuildOptions, named.pop("options", None), named)))


_OF_A_MODEL = ("output", "options")
"""Positional parameters after a model that is not a program."""


def load(path: str | Path) -> Bundle:
    """Open a bundle.

    Raises:
        tracemap.core.errors.BundleInvalid: the path is not a bundle, or the bundle is damaged.
        tracemap.core.errors.BundleVersion: the bundle has an unsupported format version.

    Example:
        >>> bundle = tracemap.load("model.tracemap")
        >>> [site.kernel for site in bundle.graph.sites][:2]
        ['main_dispatch_0_matmul_24x16x16_f32', 'main_dispatch_1_matmul_24x16x16_f32']
    """
    from tracemap.map import bundle
    from tracemap.options.option import check_path
    from tracemap.results.bundle import Bundle

    return Bundle.of(bundle.load(check_path("path", path)))


def profile(
    target: object,
    *arguments: object,
    options: ProfileOptions | None = None,
    keywords: Mapping[str, object] | None = None,
    **changes: object,
) -> Profile:
    """Build a program, record it, compute the costs of its source lines, and write the page.

    Args:
        target: one of these:

            - a program: a function that JAX can trace, which is jitted, or any program that `build` takes;
            - a model, as a file or its content; a bundle, or its path;
            - a script, `"train.py"` or `"train.py:train_step"`, which runs in this process.
        arguments: those of the program; the inputs of a model or bundle; the words after a script's name.
        options: options of `tracemap profile`; None: the defaults.
        keywords: keyword arguments of a program.
        changes: options by name, such as `sample=True, output="page.html"`.

    Raises:
        tracemap.core.errors.TracemapError: see `tracemap.commands.profile.profile`.
        TypeError: an option does not exist.

    Example:
        >>> profile = tracemap.profile("model.mlir", seconds=0.2)
        >>> profile.page.name, "Page: model.html" in str(profile)
        ('model.html', True)
    """
    from io import StringIO

    from tracemap.commands import profile as command
    from tracemap.map.bundle import Bundle as StoredBundle
    from tracemap.options.measure import ProfileOptions
    from tracemap.options.option import merge_options
    from tracemap.results.attribution import Attribution, Profile
    from tracemap.results.bundle import Bundle
    from tracemap.results.display import shown_progress

    is_program = not isinstance(target, (str, Path, bytes, StoredBundle))
    if keywords and not is_program:
        raise TypeError("only a program has keywords; pass the inputs of a model by position")
    texts, values = (None, arguments) if is_program else _texts_and_values(arguments or None)
    named = {"flags" if command.is_script(target) else "inputs": texts}
    asked = merge_options(ProfileOptions, options, changes, **named)
    with shown_progress("profile") as progress:
        if isinstance(target, StoredBundle):
            found = command.profile_bundle(target, asked, progress, values=values)
        elif isinstance(target, (str, Path, bytes)):
            found = command.profile(_model(target), asked, progress, values=values)
        else:
            found = command.profile_program(target, arguments, keywords or {}, asked, progress)
    text = StringIO()
    command.print_profile(found, asked.top, text)
    attributed = found.attributed
    costs = Attribution.of(attributed.attribution, Bundle.of(attributed.bundle), (found.run,))
    return Profile(costs, found.run, found.page, text.getvalue().rstrip())


def lower(
    model: str | Path | bytes,
    pipelines: Sequence[str] | None = None,
    options: LowerOptions | None = None,
    **changes: object,
) -> Lowering:
    """Run pass pipelines over a model and link its ops to the outermost loops of each stage.

    Args:
        model: a file, MLIR text or bytes, as for `build`.
        pipelines: pass pipelines in iree-opt's syntax, `builtin.module(…)`; the next one continues from the result.
        options: options of `tracemap lower`; None: the defaults.
        changes: options by name, such as `html="loops.html"`.

    Raises:
        tracemap.core.errors.TracemapError: see `tracemap.commands.build.lower`.
        TypeError: an option does not exist, or no pipelines are given.

    Example:
        >>> lowering = tracemap.lower("model.mlir", ["builtin.module(func.func(cse))"])
        >>> [stage.pipeline for stage in lowering.stages]
        ['', 'builtin.module(func.func(cse))']
    """
    from tracemap.commands.build import lower as lower_model
    from tracemap.options.compile import LowerOptions
    from tracemap.options.option import merge_options

    return lower_model(_model(model), merge_options(LowerOptions, options, changes, pipelines=pipelines))


def record(
    bundle: StoredBundle | str | Path,
    output: str | Path | None = None,
    options: RecordOptions | None = None,
    *,
    inputs: Inputs | None = None,
    **changes: object,
) -> RunResult:
    """Run a bundle's module and write a run. The result's `.path` is the run's file.

    Args:
        bundle: result of `build` or `load`, or its path.
        output: the run's file; None: the next free number in the bundle.
        options: options of `tracemap record`; None: the defaults.
        inputs: one per argument, or a dictionary by argument name: strings in the command's syntax, numbers, or arrays
            (numpy's, or anything that numpy can read). Arguments that the dictionary lacks are generated. None: the
            inputs in the options.
        changes: options by name, such as `iterations=50, sample_hz=251`.

    Raises:
        tracemap.core.errors.TracemapError: see `tracemap.commands.record.record`.
        TypeError: an option does not exist.

    Example:
        >>> import numpy as np
        >>> x, weights = np.ones((24, 16), np.float32), np.eye(16, dtype=np.float32)
        >>> run = tracemap.record("model.tracemap", "new.parquet", inputs=[x, weights], iterations=5)
        >>> run.header.iterations, len(run.header.inputs)
        (5, 2)
    """
    from tracemap.commands.record import record as record_bundle
    from tracemap.options.measure import RecordOptions
    from tracemap.options.option import merge_options
    from tracemap.results.bundle import Bundle
    from tracemap.results.run import Run

    texts, values = _texts_and_values(inputs)
    asked = merge_options(RecordOptions, options, changes, output=output, inputs=texts)
    opened = _opened(bundle)
    return Run.of(record_bundle(opened, asked, values=values), Bundle.of(opened))


def recording(bundle: StoredBundle | str | Path, output: str | Path | None = None) -> Recording:
    """Record the calls of this process to a bundle's module through `iree.runtime`, in a `with` block.

    Load the module inside the block, or after the first such block: modules loaded earlier are not recorded.

    Args:
        bundle: result of `build` or `load`, or its path. The program must call this bundle's module.
        output: the run's file, Parquet or CSV; None: a temporary one that is deleted when the process ends.

    Raises:
        tracemap.core.errors.RunEmpty: the block called no kernel of the bundle.
        tracemap.core.errors.ToolMissing: the hook or `iree.runtime` is not installed.
        tracemap.core.errors.TargetExists, tracemap.core.errors.TargetUnwritable: the run cannot be written.

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
    from tracemap.options.option import check_path
    from tracemap.results.bundle import Bundle
    from tracemap.results.run import Recording

    return Recording(Bundle.of(_opened(bundle)), None if output is None else check_path("output", output))


def run(
    bundle: StoredBundle | str | Path,
    options: RunOptions | None = None,
    *,
    inputs: Inputs | None = None,
    **changes: object,
) -> tuple[Array, ...]:
    """Run a function of a bundle's module once, and return its outputs as numpy arrays (scalars have no dimensions).

    Args:
        bundle: result of `build` or `load`, or its path.
        options: options of `tracemap run`; None: the defaults.
        inputs: as for `record`.
        changes: options by name, such as `function="decode", expected_outputs=["@y.npy"]`.

    Raises:
        tracemap.core.errors.OutputsDiffer: an output differs from the expected one.
        tracemap.core.errors.TracemapError: see `tracemap.commands.run.run`.
        TypeError: an option does not exist.

    Example:
        >>> import numpy as np
        >>> inputs = np.ones((24, 16), np.float32), np.eye(16, dtype=np.float32)
        >>> (y,) = tracemap.run("model.tracemap", inputs=inputs)
        >>> y.shape, y.dtype.name
        ((24, 16), 'float32')
    """
    from tracemap.capture.outputs import check_matches
    from tracemap.commands.run import run as run_bundle
    from tracemap.options.measure import RunOptions
    from tracemap.options.option import merge_options

    texts, values = _texts_and_values(inputs)
    (ran,) = run_bundle(
        _opened(bundle), merge_options(RunOptions, options, changes, inputs=texts), values=values, arrays=True
    )
    check_matches(ran.function, ran.compared)
    return ran.outputs


def benchmark(
    bundle: StoredBundle | str | Path,
    options: BenchmarkOptions | None = None,
    *,
    inputs: Inputs | None = None,
    **changes: object,
) -> tuple[FunctionTimes, ...]:
    """Time invocations of a function without profiling.

    If the module has several functions and none is named, all functions without inputs are timed.

    Args:
        bundle: result of `build` or `load`, or its path.
        options: options of `tracemap benchmark`; None: the defaults.
        inputs: as for `record`.
        changes: options by name, such as `repetitions=5, dispatch_repeat=16`.

    Raises:
        tracemap.core.errors.TracemapError: see `tracemap.commands.run.benchmark`.
        TypeError: an option does not exist.

    Example:
        >>> (times,) = tracemap.benchmark("model.tracemap", repetitions=2, iterations=10)
        >>> times.function, times.calls, min(times.wall_ns) > 0
        ('main', (10, 10), True)
    """
    from tracemap.commands.run import benchmark as benchmark_bundle
    from tracemap.options.measure import BenchmarkOptions
    from tracemap.options.option import merge_options

    texts, values = _texts_and_values(inputs)
    asked = merge_options(BenchmarkOptions, options, changes, inputs=texts)
    return benchmark_bundle(_opened(bundle), asked, values=values).functions


def attribute(
    runs: Runs,
    bundle: StoredBundle | str | Path | None = None,
    options: AttributeOptions | None = None,
    **changes: object,
) -> Attribution:
    """Compute what each op costs: join runs onto their bundle.

    Args:
        runs: one or more results of `record`, or paths: runs of `record`, tables of other tools, `.ireeprof` files.
            Several runs are added up. A bundle stands for its newest run.
        bundle: result of `build` or `load`, or its path; None: the bundle is found from the first run.
        options: options of `tracemap attribute`; None: the defaults.
        changes: options by name, such as `rule="equal", html="page.html"`.

    Raises:
        tracemap.core.errors.TracemapError: see `tracemap.commands.attribute.attribute`.
        TypeError: an option does not exist.

    Example:
        >>> result = tracemap.attribute("run.parquet", "model.tracemap", html="page.html")
        >>> cpu = next(metric for metric in result.metrics if metric.name == "cpu_ns")
        >>> sum(op.metrics["cpu_ns"].attributed for op in result.ops) == cpu.attributed
        True
        >>> cpu.attributed + cpu.unattributed == cpu.measured
        True
    """
    from tracemap.commands.attribute import attribute as attribute_runs
    from tracemap.options.option import merge_options
    from tracemap.options.results import AttributeOptions
    from tracemap.results.attribution import Attribution
    from tracemap.results.bundle import Bundle

    asked = merge_options(AttributeOptions, options, changes)
    paths = _run_paths(runs)
    attributed = attribute_runs(paths, None if bundle is None else _opened(bundle), asked)
    return Attribution.of(attributed.attribution, Bundle.of(attributed.bundle), tuple(paths))


def remarks(
    bundle: StoredBundle | str | Path,
    run: Run | None = None,
    options: RemarksOptions | None = None,
    **changes: object,
) -> Remarks:
    """Return the compiler's remarks on the code of each op, the most expensive op first.

    Args:
        bundle: result of `build(…, remarks=True)`, or its path.
        run: result of `record`, or the path of a run; None: the newest run in the bundle, if it has one.
        options: options of `tracemap remarks`; None: the defaults.
        changes: options by name, such as `metric="duration_ns"`.

    Raises:
        tracemap.core.errors.TracemapError: see `tracemap.commands.remarks.remarks`.
        TypeError: an option does not exist.

    Example:
        >>> found = tracemap.remarks("model.tracemap", "run.parquet")
        >>> found.metric, {remark.kind for remark in found.remarks} <= {"missed", "passed", "analysis", "failure"}
        ('cpu_ns', True)
    """
    from tracemap.commands.remarks import remarks as remarks_of
    from tracemap.options.compile import RemarksOptions
    from tracemap.options.option import merge_options

    path = None if run is None else _paths([run])[0]
    return remarks_of(_opened(bundle), path, merge_options(RemarksOptions, options, changes))


def diff(
    a: Side,
    b: Side,
    options: DiffOptions | None = None,
    **changes: object,
) -> Comparison:
    """Compare two runs or bundles: match their ops, and compare what the ops cost.

    Args:
        a: result of `build`, `load` or `record`, the path of a bundle or run, or several runs of one bundle. A bundle
            stands for its newest run, or for all runs of its newest `record --repeat`.
        b: the same, after the change.
        options: options of `tracemap diff`; None: the defaults.
        changes: options by name, such as `threshold=5, html="diff.html"`.

    Raises:
        tracemap.core.errors.TracemapError: see `tracemap.commands.diff.diff`.
        TypeError: an option does not exist.

    Example:
        >>> made = tracemap.diff("run.parquet", "again.parquet", map_a="model.tracemap", map_b="model.tracemap")
        >>> made.matched_percent, made.op("op5").how
        (100.0, 'identity')
    """
    from tracemap.commands.diff import diff as diff_paths
    from tracemap.options.option import merge_options
    from tracemap.options.reports import DiffOptions
    from tracemap.results.comparison import Comparison

    before, after = _paths(a), _paths(b)
    asked = merge_options(DiffOptions, options, changes)
    return Comparison.of(diff_paths(before, after, asked), before, after, asked)


def export(
    runs: Runs,
    to: str,
    output: str | Path,
    bundle: StoredBundle | str | Path | None = None,
    options: ExportOptions | None = None,
    **changes: object,
) -> Attribution:
    """Write the costs of `attribute` in a format that other tools open, and return the attribution.

    Args:
        runs: as for `attribute`.
        to: the format, such as `pprof`.
        output: the file to write.
        bundle: as for `attribute`.
        options: options of `tracemap export`; None: the defaults.
        changes: options by name, such as `callers="python"`.

    Raises:
        tracemap.core.errors.TracemapError: see `tracemap.commands.report.export`.
        TypeError: an option does not exist.

    Example:
        >>> result = tracemap.export("run.parquet", "speedscope", "run.speedscope.json", "model.tracemap")
        >>> len(result.sites)
        4
    """
    from tracemap.commands.report import export as export_runs
    from tracemap.options.option import merge_options
    from tracemap.options.reports import ExportOptions
    from tracemap.results.attribution import Attribution
    from tracemap.results.bundle import Bundle

    asked = merge_options(ExportOptions, options, changes, to=to, output=output)
    paths = _run_paths(runs)
    attributed = export_runs(paths, None if bundle is None else _opened(bundle), asked)
    return Attribution.of(attributed.attribution, Bundle.of(attributed.bundle), tuple(paths))


def bench(bundle: StoredBundle | str | Path, options: BenchOptions | None = None, **changes: object) -> Bench:
    """Run the kernels of a bundle alone: time per call, and whether the results are correct.

    Args:
        bundle: result of `build` or `load`, or its path.
        options: options of `tracemap bench`; None: the defaults.
        changes: options by name, such as `top=5, cold=True`.

    Raises:
        tracemap.core.errors.TracemapError: see `tracemap.commands.bench.bench`.
        TypeError: an option does not exist.

    Example:
        >>> made = tracemap.bench("model.tracemap", kernel=["*_0_*"], repetitions=3, min_time=1)
        >>> [(kernel.operation, kernel.verification.status.value) for kernel in made.kernels]
        [('matmul_24x16x16_f32', 'SUCCESS')]
    """
    from tracemap.commands.bench import bench as bench_bundle
    from tracemap.options.kernels import BenchOptions
    from tracemap.options.option import merge_options
    from tracemap.results.comparison import Bench

    return Bench.of(bench_bundle(_opened(bundle), merge_options(BenchOptions, options, changes)))


def numerics(bundle: StoredBundle | str | Path, options: NumericsOptions | None = None, **changes: object) -> Numerics:
    """Run a program once, and check the results of its dispatches against double precision.

    Args:
        bundle: result of `build` or `load`, or its path.
        options: options of `tracemap numerics`; None: the defaults.
        changes: options by name, such as `against="f64", inputs=["x=@x.npy"]`.

    Raises:
        tracemap.core.errors.TracemapError: see `tracemap.commands.numerics.numerics`.
        TypeError: an option does not exist.

    Example:
        >>> found = tracemap.numerics("model.tracemap")
        >>> {site.verdict.value for site in found.sites}
        {'right'}
        >>> found.culprit is None
        True
    """
    from tracemap.commands.numerics import numerics as check_numerics
    from tracemap.options.kernels import NumericsOptions
    from tracemap.options.option import merge_options

    return check_numerics(_opened(bundle), merge_options(NumericsOptions, options, changes))


def swap(
    bundle: StoredBundle | str | Path,
    kernels: Mapping[str, str | Path],
    output: str | Path | None = None,
    options: SwapOptions | None = None,
    **changes: object,
) -> Swapped:
    """Build a bundle with kernels replaced by edited ones, and report what changes.

    Args:
        bundle: the original: result of `build` or `load`, or its path.
        kernels: names of kernels or of their executables, mapped to the files that replace them.
        output: the new bundle.
        options: options of `tracemap swap`; None: the defaults.
        changes: options by name, such as `pairs=0`.

    Raises:
        tracemap.core.errors.TracemapError: see `tracemap.commands.swap.swap`.
        TypeError: an option does not exist.

    Example:
        >>> swapped = tracemap.swap("model.tracemap", {"main_dispatch_0": "edited.mlir"}, "new.tracemap", pairs=0)
        >>> [(kernel.kernel, kernel.verification.status.value) for kernel in swapped.kernels]
        [('main_dispatch_0_matmul_24x16x16_f32', 'SUCCESS')]
    """
    from tracemap.commands.swap import swap as swap_kernels
    from tracemap.options.kernels import SwapOptions
    from tracemap.options.option import check_files_mapping, merge_options

    asked = merge_options(SwapOptions, options, changes, output=output)
    return swap_kernels(_opened(bundle), check_files_mapping("kernels", kernels), asked)


def tune(bundle: StoredBundle | str | Path, options: TuneOptions | None = None, **changes: object) -> Tune:
    """Search for better configurations of kernels, write them as a tuning spec, and report the gain.

    Args:
        bundle: result of `build` or `load`, or its path.
        options: options of `tracemap tune`; None: the defaults. One of `op`, `kernel` and `top` is required.
        changes: options by name, such as `top=1, output="model.spec.mlir"`.

    Raises:
        tracemap.core.errors.TracemapError: see `tracemap.commands.tune.tune`.
        TypeError: an option does not exist.

    Example:
        >>> tuned = tracemap.tune("model.tracemap", op=["op2"], candidates=1, pairs=0, time_limit=1)
        >>> [kernel.kernel for kernel in tuned.kernels]
        ['main_dispatch_0_matmul_24x16x16_f32']
    """
    from tracemap.commands.tune import tune as tune_kernels
    from tracemap.options.kernels import TuneOptions
    from tracemap.options.option import merge_options

    return tune_kernels(_opened(bundle), merge_options(TuneOptions, options, changes))


def sweep(operation: str, options: SweepOptions | None = None, **changes: object) -> str:
    """Generate an operation in many sizes, compile each size with many configurations, then verify and time them.

    Args:
        operation: the kind of operation, such as `matmul`.
        options: options of `tracemap sweep`; None: the defaults.
        changes: options by name, such as `size=("M=64,128",), output="matmuls.csv"`.

    Returns:
        The table, as CSV.

    Raises:
        tracemap.core.errors.TracemapError: see `tracemap.commands.sweep.sweep`.
        TypeError: an option does not exist.

    Example:
        >>> table = tracemap.sweep("matmul", size=["M=16", "N=16", "K=16"], repetitions=1, min_time=1)
        >>> table.splitlines()[1].split(",")[:3]
        ['matmul_16x16x16_f32', 'IREE Codegen', 'matmul']
    """
    from tracemap.commands.sweep import sweep as sweep_operation
    from tracemap.options.kernels import SweepOptions
    from tracemap.options.option import check_string, merge_options

    return sweep_operation(check_string("operation", operation), merge_options(SweepOptions, options, changes)).table


def report(
    bundle: StoredBundle | str | Path,
    output: str | Path | None = None,
    runs: Runs | None = None,
    options: ReportOptions | None = None,
    **changes: object,
) -> Path:
    """Write the annotated page of a bundle with the costs of runs, and return its path.

    Args:
        bundle: result of `build` or `load`, or its path.
        output: the page; None: the one in the options, or the bundle's name with .html.
        runs: as for `attribute`; None: the newest run of the bundle, if it has one; []: no costs.
        options: options of `tracemap report`; None: the defaults.
        changes: options by name, such as `rule="equal"`.

    Raises:
        tracemap.core.errors.TracemapError: see `tracemap.commands.report.report`.
        TypeError: an option does not exist.

    Example:
        >>> tracemap.report("model.tracemap", "page.html", "run.parquet").name
        'page.html'
    """
    from tracemap.commands.report import report as report_bundle
    from tracemap.options.option import merge_options
    from tracemap.options.reports import ReportOptions

    asked = merge_options(ReportOptions, options, changes, output=output)
    return report_bundle(_opened(bundle), None if runs is None else _paths(runs), asked)


def store_add(
    runs: Runs,
    store: str | Path,
    bundle: StoredBundle | str | Path | None = None,
    options: StoreAddOptions | None = None,
    **changes: object,
) -> StoreAdded:
    """Add runs to a store, joined with their bundles. The first run creates the store.

    Args:
        runs: as for `attribute`.
        store: the store's folder, or a bucket's address as a string.
        bundle: result of `build` or `load`, or its path; None: the bundle of each run is found.
        options: options of `tracemap store add`; None: the defaults.
        changes: options by name, such as `tag=["branch=main"]`.

    Raises:
        tracemap.core.errors.TracemapError: see `tracemap.commands.store.store_add`.
        TypeError: an option does not exist.

    Example:
        >>> made = tracemap.store_add(["run.parquet", "again.parquet"], "new", "model.tracemap", tag=["branch=main"])
        >>> [(run.file, run.added) for run in made.runs]
        [('run.parquet', True), ('again.parquet', True)]
        >>> tracemap.store_add("run.parquet", "new", "model.tracemap").runs[0].added
        False
    """
    from tracemap.commands.store import store_add as add_runs
    from tracemap.options.option import merge_options
    from tracemap.options.store import StoreAddOptions

    asked = merge_options(StoreAddOptions, options, changes, store=store)
    return add_runs(_run_paths(runs), None if bundle is None else _opened(bundle), asked)


def store_list(store: str | Path, options: StoreListOptions | None = None, **changes: object) -> StoreRuns:
    """List the runs of a store, with the data of their headers.

    Args:
        store: the store's folder, or a bucket's address as a string.
        options: options of `tracemap store list`; None: the defaults.
        changes: options by name, such as `where=["host=ci-*"]`.

    Raises:
        tracemap.core.errors.TracemapError: see `tracemap.commands.store.store_list`.
        TypeError: an option does not exist.

    Example:
        >>> found = tracemap.store_list("nightly", where=["tag.night=2"])
        >>> [(run.model, run.iterations, run.tags) for run in found.runs]
        [('model', 5, {'night': '2'})]
    """
    from tracemap.commands.store import store_list as ask
    from tracemap.options.option import merge_options
    from tracemap.options.store import StoreListOptions

    return ask(merge_options(StoreListOptions, options, changes, store=store))


def store_query(store: str | Path, options: StoreQueryOptions | None = None, **changes: object) -> StoreCosts:
    """Return what ops cost over the runs of a store, per model and per value of the columns to group by.

    Args:
        store: the store's folder, or a bucket's address as a string.
        options: options of `tracemap store query`; None: the defaults.
        changes: options by name, such as `group_by=["cpu_model"]`.

    Raises:
        tracemap.core.errors.TracemapError: see `tracemap.commands.store.store_query`.
        TypeError: an option does not exist.

    Example:
        >>> found = tracemap.store_query("nightly", group_by=["tag.night"], metric=["cpu_ns"])
        >>> [(group.group, group.runs, len(group.ops)) for group in found.groups]
        [({'tag.night': '1'}, 1, 8), ({'tag.night': '2'}, 1, 8)]
        >>> cpu = found.groups[0].metrics[0]
        >>> sum(op.amounts["cpu_ns"] for op in found.groups[0].ops) == cpu.attributed == cpu.measured - cpu.unattributed
        True
    """
    from tracemap.commands.store import store_query as ask
    from tracemap.options.option import merge_options
    from tracemap.options.store import StoreQueryOptions

    return ask(merge_options(StoreQueryOptions, options, changes, store=store))


def store_sites(store: str | Path, options: StoreSitesOptions | None = None, **changes: object) -> StoreCalls:
    """Return percentiles of the call times of each dispatch site, over the runs of a store.

    Args:
        store: the store's folder, or a bucket's address as a string.
        options: options of `tracemap store sites`; None: the defaults.
        changes: options by name, such as `group_by=["cpu_model"]`.

    Raises:
        tracemap.core.errors.TracemapError: see `tracemap.commands.store.store_sites`.
        TypeError: an option does not exist.

    Example:
        >>> (group,) = tracemap.store_sites("nightly").groups
        >>> group.runs, all(site.p10 <= site.median <= site.most for site in group.sites)
        (2, True)
    """
    from tracemap.commands.store import store_sites as ask
    from tracemap.options.option import merge_options
    from tracemap.options.store import StoreSitesOptions

    return ask(merge_options(StoreSitesOptions, options, changes, store=store))


def store_trend(store: str | Path, options: StoreTrendOptions | None = None, **changes: object) -> StoreTrends:
    """Find ops that became slower or faster over the runs of a store, since which night; and hosts unlike the others.

    Args:
        store: the store's folder, or a bucket's address as a string.
        options: options of `tracemap store trend`; None: the defaults.
        changes: options by name, such as `over="compiler", html="trend.html"`.

    Raises:
        tracemap.core.errors.TracemapError: see `tracemap.commands.store.store_trend`.
        TypeError: an option does not exist.

    Example:
        >>> found = tracemap.store_trend("nightly")
        >>> [(trend.model, trend.changes) for trend in found.models]
        [('model', ())]
    """
    from tracemap.commands.store import store_trend as ask
    from tracemap.options.option import merge_options
    from tracemap.options.store import StoreTrendOptions

    return ask(merge_options(StoreTrendOptions, options, changes, store=store))


def store_compare(
    store: str | Path,
    before: Sequence[str],
    after: Sequence[str],
    options: StoreCompareOptions | None = None,
    **changes: object,
) -> StoreComparison:
    """Find ops that cost more or less in some runs of a store than in others, and on which processors.

    Args:
        store: the store's folder, or a bucket's address as a string.
        before: conditions for the runs before the change, such as `["date=2026-11-01"]`.
        after: conditions for the runs after the change.
        options: options of `tracemap store compare`; None: the defaults.
        changes: options by name, such as `threshold=5`.

    Raises:
        tracemap.core.errors.TracemapError: see `tracemap.commands.store.store_compare`.
        TypeError: an option does not exist.

    Example:
        >>> found = tracemap.store_compare("nightly", ["tag.night=1"], ["tag.night=2"])
        >>> [model.model for model in found.models], found.before.runs, found.after.runs
        (['model'], 1, 1)
    """
    from tracemap.commands.store import store_compare as compare_runs
    from tracemap.options.option import merge_options
    from tracemap.options.store import StoreCompareOptions

    asked = merge_options(StoreCompareOptions, options, changes, store=store, before=before, after=after)
    return compare_runs(asked)


def load_ipython_extension(shell: Any) -> None:  # noqa: ANN401 - IPython's shell, which need not be there
    """Add the magic `%%tracemap BUNDLE` to a notebook; `%load_ext tracemap` calls this function."""
    from tracemap.results.run import add_magic

    add_magic(shell)


def _texts_and_values(inputs: Inputs | None) -> tuple[Sequence[object] | None, Sequence[object]]:
    """Split inputs: strings become an option; arrays and numbers, which cannot be typed, are passed separately."""
    from tracemap.capture.inputs import NamedValue
    from tracemap.options.option import check_list

    if isinstance(inputs, Mapping):
        inputs = [NamedValue(str(name), value) for name, value in inputs.items()]
    values = None if inputs is None else check_list("inputs", inputs)
    return (values, ()) if values is None or all(isinstance(value, str) for value in values) else (None, values)


def _model(model: str | Path | bytes) -> str | bytes:
    """Path of a model as a string, or content of a model as bytes."""
    from tracemap.options.option import check_path

    if isinstance(model, str) and ("\n" in model or ("{" in model and not os.path.exists(model))):  # noqa: PTH110 - Path.exists raises OSError for names that are too long
        return model.encode()
    return model if isinstance(model, (bytes, str)) else str(check_path("model", model, "a path, a string or bytes"))


def _opened(bundle: StoredBundle | str | Path) -> StoredBundle:
    from tracemap.map.bundle import Bundle as StoredBundle
    from tracemap.options.option import check_path

    return bundle if isinstance(bundle, StoredBundle) else load(check_path("bundle", bundle, "a bundle or its path"))


def _run_paths(runs: Runs | StoredBundle) -> list[Path]:
    """Paths of runs; a bundle stands for its newest ones."""
    from tracemap.commands.runs import runs_of_bundles

    return runs_of_bundles(_paths(runs))


def _paths(runs: Runs | StoredBundle) -> list[Path]:
    """Paths of one or several runs or bundles."""
    from tracemap.options.option import check_path

    several = runs if isinstance(runs, Sequence) and not isinstance(runs, (str, bytes)) else [runs]
    return [check_path("a run", getattr(run, "path", run), "a run, a bundle or its path") for run in several]
