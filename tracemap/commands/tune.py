"""`tracemap tune`: better tile sizes for kernels, and what they change in the application."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from msgspec import structs

from tracemap.commands.framework import PATH, options_command
from tracemap.commands.programs import (
    argument_extents,
    check_call,
    check_runs_on_cpu,
    saved_inputs_of,
    saved_inputs_to_copy,
    selects_call,
)
from tracemap.commands.runs import check_damage_on_failure, check_outputs
from tracemap.commands.streams import print_diagnostics, show_in_format, show_phases
from tracemap.core.diagnostics import Diagnostic
from tracemap.core.errors import BundleInvalid, BundleVersion, UsageInvalid
from tracemap.core.files import STANDARD_OUTPUT, is_standard, is_stream, write_text
from tracemap.core.process.temporary_files import temporary_folder
from tracemap.core.toolchain import Progress, no_progress
from tracemap.core.units import join_names
from tracemap.kernels.model import BestConfiguration, KernelTuning, Ranking, Tune
from tracemap.options.compile import BuildOptions
from tracemap.options.kernels import BenchOptions, TuneOptions

if TYPE_CHECKING:
    from tracemap.kernels.bench_cases import Case
    from tracemap.kernels.runner_jobs import WorkFolder
    from tracemap.kernels.tune import SearchOutcome
    from tracemap.map.bundle import Bundle


_SPEC_FLAG: Final = "--iree-codegen-tuning-spec-path="
_SUBSTITUTE: Final = "--iree-hal-substitute-executable-configuration="


def tune(bundle: Bundle, options: TuneOptions, progress: Progress = no_progress) -> Tune:
    """Search for better configurations, write the spec, and record the application with and without it.

    Raises:
        TracemapError: see `kernels.bench.bench`, `commands.build.build` and `commands.record.record`.
        QueryInvalid, UsageInvalid: the options select no kernel, or one that does not exist.
        TargetExists, TargetUnwritable: the spec cannot be written.
    """
    from tracemap.map.bundle import check_iree

    check_iree(bundle)
    with check_damage_on_failure(bundle):
        return _tune(bundle, options, progress)


def _tune(bundle: Bundle, options: TuneOptions, progress: Progress) -> Tune:
    from tracemap.commands.bench import check_top, ranked_kernels
    from tracemap.ir.executables import backends_of, read_dispatches
    from tracemap.ir.parsing import MlirParser
    from tracemap.kernels.bench_cases import find_cases

    if not (options.op or options.kernel or options.top):
        raise UsageInvalid("select kernels to tune with --op, --kernel or --top")
    if options.write_for_amdsharktuner is not None:
        return _write_for_amdsharktuner(bundle, options.write_for_amdsharktuner, options, progress)
    default_spec = Path(f"{bundle.name.removesuffix('.tracemap')}.spec.mlir")
    spec = options.output or default_spec
    json_output = Path(STANDARD_OUTPUT) if options.format == "json" else None
    check_outputs(spec, json_output, force=options.force, bundles=[bundle.path])
    _, ranking = ranked_kernels(bundle, _choice(options), progress)
    parser = MlirParser()
    module = parser.parse(bundle.configured())  # must outlive the operations in the cases
    _check_backend(bundle, backends_of(module))
    check_top(bundle, options.top)
    if options.pairs or selects_call(options):
        check_call(bundle, options)
    cases = find_cases(bundle.graph, module, read_dispatches(module, argument_extents(bundle, options)))
    first = {case.kernel: case for case in reversed(cases)}
    cache = _WorkCache.prepare(options.work or Path(f"{default_spec if is_stream(spec) else spec}.work"))
    outcomes = [
        (first[name], _search(first[name], bundle, options, cache, progress)) for name, _ in ranking if name in first
    ]
    kernels, text = _results(outcomes)
    if not text:
        return Tune(bundle=bundle.name, kernels=kernels, spec="", pairs=0, application=None, ops=())
    result = _in_application(bundle, text, kernels, options, cache, progress)
    write_text(text, spec)  # written last, so that until then the same command resumes the search
    return structs.replace(result, spec=str(spec))


def _choice(options: TuneOptions) -> BenchOptions:
    return BenchOptions(op=options.op, kernel=options.kernel, top=options.top)


def _check_backend(bundle: Bundle, backends: frozenset[str]) -> None:
    """Reject kernels that are not for CPUs; the message names the tuner for AMD GPUs."""
    from tracemap.kernels.tune import BACKEND

    if BACKEND in backends:
        raise UsageInvalid(
            f"{bundle.path}: its kernels are for AMD GPUs; pass --write-for-amdsharktuner DIR to write them for "
            "amdsharktuner, which tunes such kernels"
        )
    check_runs_on_cpu(bundle, backends, "tune")


def _write_for_amdsharktuner(bundle: Bundle, folder: Path, options: TuneOptions, progress: Progress) -> Tune:
    """Write kernels for AMD GPUs into a folder for amdsharktuner."""
    from tracemap.commands.bench import ranked_kernels
    from tracemap.ir.executables import backends_of
    from tracemap.ir.parsing import MlirParser
    from tracemap.kernels.tune import BACKEND, check_output_folder, dump_executables, ranked, tuner_flags, write_folder

    replaces = check_output_folder(folder, force=options.force)
    module = MlirParser().parse(bundle.configured())
    if BACKEND not in backends_of(module):
        backends = ", ".join(sorted(backends_of(module))) or "no backend"
        raise UsageInvalid(f"{bundle.path}: amdsharktuner tunes kernels for AMD GPUs (rocm); these are for {backends}")
    run, kernels = ranked_kernels(bundle, _choice(options), progress)
    progress("compiling the dispatches")
    with temporary_folder() as temporary:
        dumps = dump_executables(bundle, temporary)
    ranking = Ranking(run, ranked(kernels, dumps))
    if not any(kernel.folder for kernel in ranking.kernels):
        raise UsageInvalid(f"{bundle.path}: nothing to tune: {ranking.kernels[0].obstacle}")
    write_folder(folder, ranking, dumps, tuner_flags(bundle), replaces=replaces)
    return Tune(bundle=bundle.name, kernels=(), spec=str(folder), pairs=0, application=None, ops=(), handed_on=ranking)


@dataclass(frozen=True, slots=True)
class _WorkCache:
    """Work folder with intermediate results, and the tool versions that they depend on."""

    work: WorkFolder
    tool_versions: str

    @classmethod
    def prepare(cls, folder: Path) -> _WorkCache:
        from tracemap.kernels.runner_jobs import WorkFolder, tool_identity

        tool_versions = tool_identity()  # fails without a compiler, before the folder is created
        work = WorkFolder(folder)
        work.prepare("applications")
        return cls(work, tool_versions)


def _search(case: Case, bundle: Bundle, options: TuneOptions, cache: _WorkCache, progress: Progress) -> SearchOutcome:
    from tracemap.kernels.tune import KernelSearch, SearchLimits, SearchOutcome

    if case.obstacle:
        return SearchOutcome(case.kernel, 0, 0, "", "", None)
    effort = SearchLimits(options.candidates, options.time_limit, options.threshold)
    with temporary_folder() as folder:
        tuning = KernelSearch(
            case, bundle.configured(), bundle.graph.module.flags, cache.work, cache.tool_versions, folder
        )
        return tuning.run(effort, progress)


def _results(outcomes: Sequence[tuple[Case, SearchOutcome]]) -> tuple[tuple[KernelTuning, ...], str]:
    """Results per kernel, and the text of the spec; "" if no kernel improves or none can be matched by a spec."""
    from tracemap.kernels.configurations import set_pipeline_in_text
    from tracemap.kernels.tune import TunedOperation, is_self_contained, root_of, spec_text

    kernels, tuned = [], []
    for case, outcome in outcomes:
        obstacle, best = case.obstacle or outcome.obstacle, None
        root = None if case.function is None else root_of(case.function.operation)
        if root is None:
            obstacle = obstacle or "the kernel has no operation with tile sizes to change"
        elif outcome.ratio is not None:
            best = BestConfiguration(outcome.best, outcome.pipeline, outcome.ratio)
            assert case.function is not None
            if is_self_contained(root):
                own = str(case.function.operation.attributes["translation_info"])
                tuned.append(TunedOperation(root, outcome.best, set_pipeline_in_text(own, outcome.pipeline)))
            else:
                obstacle = "its operation uses values from outside, so no spec can match it"
        kernels.append(KernelTuning(outcome.kernel, outcome.tried, outcome.failed, best, obstacle))
    return tuple(kernels), spec_text(tuned) if tuned else ""


def _in_application(
    bundle: Bundle,
    spec: str,
    kernels: tuple[KernelTuning, ...],
    options: TuneOptions,
    cache: _WorkCache,
    progress: Progress,
) -> Tune:
    """Build the application with the text of a spec, and record both versions in alternation."""
    from tracemap.commands.swap import record_alternating
    from tracemap.kernels.swap import ReplacedKernels, changes, same_kernels, total_ratio

    improved = {kernel.kernel for kernel in kernels if kernel.best is not None and not kernel.obstacle}
    progress("building the application with the spec")
    new = _build_with_spec(bundle, spec, cache)
    unchanged = sorted(improved - _configured_as(new, kernels))
    before, after = record_alternating(bundle, new, options, options.pairs, options.seconds, progress)
    touched = ReplacedKernels(improved, options.threshold, same_kernels(bundle.module_path, new.module_path))
    text = f"the spec has no effect on {join_names(unchanged)} in the application"
    return Tune(
        bundle=bundle.name,
        kernels=kernels,
        spec="",
        pairs=len(before),
        application=total_ratio(before, after),
        ops=changes(bundle.graph, touched, before, after),
        diagnostics=(Diagnostic("spec-unmatched", text),) if unchanged else (),
    )


def _build_with_spec(bundle: Bundle, spec: str, cache: _WorkCache) -> Bundle:
    """Build the application with a spec, unless the work folder contains it."""
    from tracemap.kernels.runner_jobs import flag_parts, key_of, write_atomically
    from tracemap.map.build.build import BuildRequest, build
    from tracemap.map.bundle import load, path_in_bundle
    from tracemap.map.bundle_documents import CALL_NAME

    model = bundle.model()
    if not model:
        raise UsageInvalid(f"{bundle.path}: does not contain its model; build it again without --no-sources")
    flags = [flag for flag in bundle.graph.module.flags if not flag.startswith((_SPEC_FLAG, _SUBSTITUTE))]
    call_files = [path_in_bundle(bundle.path, CALL_NAME), *saved_inputs_of(bundle).inputs]
    contents = [file.read_bytes() for file in call_files if file.exists()]
    key = key_of(model, spec, cache.tool_versions, *flag_parts(flags), *contents)
    folder = cache.work.path / "applications"
    target, file = folder / f"{key}.tracemap", folder / f"{key}.mlir"
    with suppress(BundleInvalid, BundleVersion):
        return load(target)
    write_atomically(file, spec.encode())
    options = BuildOptions(output=target, force=True, flags=(*flags, f"{_SPEC_FLAG}{file.resolve()}"))
    return build(
        BuildRequest(model, bundle.graph.sources[0].name, target, options, keeping=saved_inputs_to_copy(bundle))
    )


def _configured_as(new: Bundle, kernels: Sequence[KernelTuning]) -> set[str]:
    """Kernels of the new bundle that have their best configuration."""
    from tracemap.ir.executables import executables_of
    from tracemap.ir.parsing import MlirParser
    from tracemap.kernels.configurations import levels_of, pipeline_of
    from tracemap.kernels.tune import root_of

    module = MlirParser().parse(new.configured())
    operation_by_kernel = {name: exe.operation for exe in executables_of(module).values() for name in exe.exports}
    configured = set()
    for tuning in kernels:
        operation = operation_by_kernel.get(tuning.kernel)
        root = None if operation is None else root_of(operation)
        if tuning.best is not None and root is not None:
            same = levels_of(str(root.attributes["lowering_config"])) == levels_of(tuning.best.configuration)
            if same and tuning.best.pipeline in ("", pipeline_of(operation)):
                configured.add(tuning.kernel)
    return configured


# ---- command line


@options_command("tune", TuneOptions)
@click.argument("bundle", metavar="BUNDLE", type=PATH)
def command(bundle: Path, options: TuneOptions) -> None:
    """Search for better tile and vector sizes for kernels of BUNDLE, and write them as a tuning spec.

    Candidates are verified, and timed next to the compiler's own configuration. A plain iree-compile accepts the spec
    (--iree-codegen-tuning-spec-path). tracemap then builds the application with the spec, and records it
    alternately with and without the spec. Gains within the noise are not reported.

    \b
    Example:
      tracemap tune model.tracemap --top 1
      tracemap tune model.tracemap --op op12 --candidates 40 -o spec.mlir
    """
    from tracemap.map.bundle import load
    from tracemap.reports.terminal.kernels import print_tune

    with show_phases("tune") as progress:
        opened = load(bundle)
        result = tune(opened, options, progress)
    print_diagnostics(result.diagnostics)
    out = sys.stderr if is_standard(options.output) else sys.stdout
    show_in_format(options.format, out, partial(print_tune, result), lambda: result, opened)
