"""Kernels of a bundle tuned: candidates alone, the best as a tuning spec, and what it changes in the application."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from msgspec import structs

from tracemap.diagnostics import Diagnostic
from tracemap.errors import BundleInvalid, BundleVersion, UsageInvalid
from tracemap.experiments.model import BestConfiguration, KernelTuning, Ranking, Tune
from tracemap.options.compile import BuildOptions
from tracemap.options.kernels import BenchOptions, TuneOptions
from tracemap.outputs import STANDARD_OUTPUT, is_stream, show_as, write_text
from tracemap.owned.home import temporary_folder
from tracemap.session.overwrite_guard import check_targets
from tracemap.session.programs import asks_for_call, check_call, check_runs_on_cpu, extents, keeping_of, kept_of
from tracemap.session.runs import damage_named
from tracemap.toolchain import Progress, no_progress
from tracemap.units import listed

if TYPE_CHECKING:
    from tracemap.experiments.cases import Case
    from tracemap.experiments.tuning import Outcome
    from tracemap.experiments.work_cache import WorkFolder
    from tracemap.graph.bundle import Bundle

_SPEC_FLAG: Final = "--iree-codegen-tuning-spec-path="
_SUBSTITUTE: Final = "--iree-hal-substitute-executable-configuration="


def tune(bundle: Bundle, options: TuneOptions, progress: Progress = no_progress) -> Tune:
    """Look for better configurations, write the spec, and record the application with and without it.

    Raises:
        TracemapError: as `experiments.bench.bench`, `session.build.build` and `session.record.record` do.
        QueryInvalid, UsageInvalid: no kernel is named, or there is none of the name.
        TargetExists, TargetUnwritable: the spec cannot be written.
    """
    with damage_named(bundle):
        return _tuned_bundle(bundle, options, progress)


def _tuned_bundle(bundle: Bundle, options: TuneOptions, progress: Progress) -> Tune:
    from tracemap.experiments.cases import find_cases
    from tracemap.ir.executables import backends_of, read_dispatches
    from tracemap.ir.parsing import MlirParser
    from tracemap.session.bench import check_top, chosen_kernels

    if not (options.op or options.kernel or options.top):
        raise UsageInvalid("name what to tune: --op, --kernel or --top")
    if options.write_for_amdsharktuner is not None:
        return _handed_on(bundle, options.write_for_amdsharktuner, options, progress)
    named = Path(f"{bundle.name.removesuffix('.tracemap')}.spec.mlir")
    spec = options.output or named
    shown = Path(STANDARD_OUTPUT) if options.format == "json" else None
    check_targets(spec, shown, force=options.force, bundles=[bundle.path])
    names = chosen_kernels(bundle, _choice(options), progress)
    parser = MlirParser()
    module = parser.parse(bundle.configured())  # operations of the cases live no longer than their module
    _check_backend(bundle, backends_of(module))
    check_top(bundle, options.top)
    if options.pairs or asks_for_call(options):
        check_call(bundle, options)
    cases = find_cases(bundle.graph, module, read_dispatches(module, extents(bundle, options)))
    first = {case.kernel: case for case in reversed(cases)}
    kept = _Kept.prepared(options.work or Path(f"{named if is_stream(spec) else spec}.work"))
    outcomes = [(first[name], _tuned(first[name], bundle, options, kept, progress)) for name in names if name in first]
    kernels, text = _results(outcomes)
    if not text:
        return Tune(bundle=bundle.name, kernels=kernels, spec="", pairs=0, application=None, ops=())
    made = _in_application(bundle, text, kernels, options, kept, progress)
    write_text(text, spec)  # the last: until it is there, the same command goes on where it was
    return structs.replace(made, spec=str(spec))


def _choice(options: TuneOptions) -> BenchOptions:
    return BenchOptions(op=options.op, kernel=options.kernel, top=options.top)


def _check_backend(bundle: Bundle, backends: frozenset[str]) -> None:
    """Refuse kernels that are not of CPUs; how those of AMD GPUs are tuned is said."""
    from tracemap.experiments.dispatch_tuner import BACKEND

    if BACKEND in backends:
        raise UsageInvalid(
            f"{bundle.path}: its kernels are for AMD GPUs, which amdsharktuner tunes; --write-for-amdsharktuner DIR "
            "writes them for it"
        )
    check_runs_on_cpu(bundle, backends, "tune")


def _handed_on(bundle: Bundle, folder: Path, options: TuneOptions, progress: Progress) -> Tune:
    """Write kernels of AMD GPUs for the tuner that knows them."""
    from tracemap.experiments.dispatch_tuner import BACKEND, check_folder, dumped, flags_of, ranked, write_folder
    from tracemap.ir.executables import backends_of
    from tracemap.ir.parsing import MlirParser
    from tracemap.session.bench import ranked_kernels

    check_folder(folder, force=options.force)
    module = MlirParser().parse(bundle.configured())
    if BACKEND not in backends_of(module):
        said = ", ".join(sorted(backends_of(module))) or "nothing"
        raise UsageInvalid(f"{bundle.path}: amdsharktuner tunes kernels of AMD GPUs (rocm); these are for {said}")
    run, kernels = ranked_kernels(bundle, _choice(options), progress)
    progress("compiling the dispatches")
    with temporary_folder() as temporary:
        dumps = dumped(bundle, temporary)
    ranking = Ranking(run, ranked(kernels, dumps))
    if not any(each.folder for each in ranking.kernels):
        raise UsageInvalid(f"{bundle.path}: nothing to tune: {ranking.kernels[0].obstacle}")
    write_folder(folder, ranking, dumps, flags_of(bundle), force=options.force)
    return Tune(bundle=bundle.name, kernels=(), spec=str(folder), pairs=0, application=None, ops=(), handed_on=ranking)


def show_tune(made: Tune, options: TuneOptions, out: TextIO) -> None:
    """Write what was found to a stream, in the format of the options."""
    from tracemap.reports.terminal.kernels import print_tune

    show_as(options.format, out, lambda stream: print_tune(made, stream), lambda: made)


@dataclass(frozen=True, slots=True)
class _Kept:
    """Where is kept what is made, and what that depends on besides."""

    work: WorkFolder
    makers: str

    @classmethod
    def prepared(cls, folder: Path) -> _Kept:
        from tracemap.experiments.work_cache import WorkFolder, makers

        made_by = makers()  # before anything is made: there may be no compiler
        work = WorkFolder(folder)
        work.prepare("applications")
        return cls(work, made_by)


def _tuned(case: Case, bundle: Bundle, options: TuneOptions, kept: _Kept, progress: Progress) -> Outcome:
    from tracemap.experiments.tuning import Effort, Outcome, Tuning

    if case.obstacle:
        return Outcome(case.kernel, 0, 0, "", "", None)
    effort = Effort(options.candidates, options.time_limit, options.threshold)
    with temporary_folder() as folder:
        tuning = Tuning(case, bundle.configured(), bundle.graph.module.flags, kept.work, kept.makers, folder)
        return tuning.run(effort, progress)


def _results(outcomes: Sequence[tuple[Case, Outcome]]) -> tuple[tuple[KernelTuning, ...], str]:
    """What was found, and the text of the spec; "" where nothing is better, or nothing can be matched."""
    from tracemap.experiments.configurations import information
    from tracemap.experiments.tuning import Tuned, root_of, spec_text, stands_alone

    kernels, tuned = [], []
    for case, outcome in outcomes:
        obstacle, best = case.obstacle or outcome.obstacle, None
        root = None if case.function is None else root_of(case.function.operation)
        if root is None:
            obstacle = obstacle or "no operation of it has tiles that could be changed"
        elif outcome.ratio is not None:
            best = BestConfiguration(outcome.best, outcome.pipeline, outcome.ratio)
            assert case.function is not None
            if stands_alone(root):
                own = str(case.function.operation.attributes["translation_info"])
                tuned.append(Tuned(root, outcome.best, information(own, outcome.pipeline)))
            else:
                obstacle = "its operation takes values from outside, so that no spec can match it"
        kernels.append(KernelTuning(outcome.kernel, outcome.tried, outcome.failed, best, obstacle))
    return tuple(kernels), spec_text(tuned) if tuned else ""


def _in_application(
    bundle: Bundle,
    spec: str,
    kernels: tuple[KernelTuning, ...],
    options: TuneOptions,
    kept: _Kept,
    progress: Progress,
) -> Tune:
    """Build the application with a spec, of which this is the text, and record both in turn."""
    from tracemap.experiments.paired_changes import Touched, changes, same_kernels, whole_of
    from tracemap.session.swap import recorded_in_turn

    better = {each.kernel for each in kernels if each.best is not None and not each.obstacle}
    progress("building the application with the spec")
    new = _built(bundle, spec, kept)
    missed = sorted(better - _configured_as(new, kernels))
    before, after = recorded_in_turn(bundle, new, options, options.pairs, options.seconds, progress)
    touched = Touched(better, options.threshold, same_kernels(bundle.module_path, new.module_path))
    text = f"the spec does not change {listed(missed)} when the application is compiled"
    return Tune(
        bundle=bundle.name,
        kernels=kernels,
        spec="",
        pairs=len(before),
        application=whole_of(before, after),
        ops=changes(bundle.graph, touched, before, after),
        diagnostics=(Diagnostic("spec-unmatched", text),) if missed else (),
    )


def _built(bundle: Bundle, spec: str, kept: _Kept) -> Bundle:
    """The application with a spec; built once."""
    from tracemap.experiments.work_cache import flag_parts, keep, key_of
    from tracemap.graph.bundle import inside, load
    from tracemap.graph.documents import CALL_NAME
    from tracemap.mapping.build import BuildRequest, build

    model = bundle.model()
    if not model:
        raise UsageInvalid(f"{bundle.path}: does not keep its model (--no-sources); build it again with its text")
    flags = [flag for flag in bundle.graph.module.flags if not flag.startswith((_SPEC_FLAG, _SUBSTITUTE))]
    called = [inside(bundle.path, CALL_NAME), *kept_of(bundle).inputs]
    key = key_of(model, spec, kept.makers, *flag_parts(flags), *(file.read_bytes() for file in called if file.exists()))
    folder = kept.work.path / "applications"
    target, file = folder / f"{key}.tracemap", folder / f"{key}.mlir"
    with suppress(BundleInvalid, BundleVersion):
        return load(target)
    keep(file, spec.encode())
    options = BuildOptions(output=target, force=True, flags=(*flags, f"{_SPEC_FLAG}{file.resolve()}"))
    return build(BuildRequest(model, bundle.graph.sources[0].name, target, options, keeping=keeping_of(bundle)))


def _configured_as(new: Bundle, kernels: Sequence[KernelTuning]) -> set[str]:
    """The kernels that have the configuration that was found best."""
    from tracemap.experiments.configurations import levels_of, pipeline_of
    from tracemap.experiments.tuning import root_of
    from tracemap.ir.executables import executables_of
    from tracemap.ir.parsing import MlirParser

    module = MlirParser().parse(new.configured())
    of_kernels = {name: each.operation for each in executables_of(module).values() for name in each.exports}
    found = set()
    for each in kernels:
        operation = of_kernels.get(each.kernel)
        root = None if operation is None else root_of(operation)
        if each.best is not None and root is not None:
            same = levels_of(str(root.attributes["lowering_config"])) == levels_of(each.best.configuration)
            same &= each.best.pipeline in ("", pipeline_of(operation))
            found |= {each.kernel} if same else set()
    return found
