"""`tracemap profile`: build, record, attribute and write the page in one command."""

from __future__ import annotations

import shlex
import sys
import webbrowser
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from tracemap.commands.framework import SCRIPT, options_command
from tracemap.commands.record import record
from tracemap.commands.runs import (
    BundleAttribution,
    check_outputs,
    default_page,
    excerpts,
    open_and_join_runs,
    with_advice,
)
from tracemap.commands.streams import print_warning, show_phases
from tracemap.core.errors import ModelUnreadable, TracemapError, UsageInvalid
from tracemap.core.toolchain import Progress, no_progress
from tracemap.core.units import UNKNOWN, plural
from tracemap.options.compile import BuildOptions
from tracemap.options.measure import ProfileOptions, RecordOptions, call_of
from tracemap.options.option import declared_options
from tracemap.options.results import AttributeOptions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tracemap.frontends.scripts import CapturedProgram, ScriptCapture
    from tracemap.map.bundle import Bundle


@dataclass(frozen=True, slots=True)
class Profile:
    """Result of `profile`: the run, its attribution, and the page."""

    attributed: BundleAttribution
    run: Path
    page: Path
    others: tuple[str, ...] = ()
    """Other programs of the script."""


def profile(
    target: str | bytes, options: ProfileOptions, progress: Progress = no_progress, *, values: Sequence[object] = ()
) -> Profile:
    """Profile a model, a bundle, or a program of a Python script.

    Args:
        target: a model's file or content, a bundle, or `SCRIPT.py` or `SCRIPT.py:FUNCTION`, whose arguments are in the
            flags.
        options: options of `tracemap profile`.
        progress: receives the phase of the work.
        values: inputs as arrays or numbers; (): those in the options.

    Raises:
        TracemapError: see `commands.build.build`, `frontends.scripts.run_script` and `profile_bundle`.
        UsageInvalid: the target is a run.
    """
    from tracemap.capture.calling import check_files, sorted_out
    from tracemap.commands.build import build
    from tracemap.map.bundle import is_bundle, load

    check_files(sorted_out([f"--input={spec}" for spec in options.inputs]))  # a build takes long
    if isinstance(target, bytes):
        named = replace(_build_options(options), output=Path("model.tracemap"))  # content has no name of its own
        return profile_bundle(build(target, named, progress), options, progress, values=values)
    if is_bundle(Path(target)):
        return profile_bundle(load(Path(target)), options, progress, values=values)
    if script := SCRIPT.fullmatch(target):
        return _profile_script(Path(script["file"]), script["function"] or "", options, progress)
    if Path(target).suffix in (".parquet", ".csv", ".ireeprof"):
        raise UsageInvalid(
            f"{target}: is a run, and `profile` makes a new one; name a model or a bundle, or use `attribute`"
        )
    return profile_bundle(build(target, _build_options(options), progress), options, progress, values=values)


def profile_program(
    program: object,
    arguments: Sequence[object],
    keywords: Mapping[str, object],
    options: ProfileOptions,
    progress: Progress = no_progress,
) -> Profile:
    """Profile a program of a framework with its arguments.

    Raises:
        TracemapError: see `commands.build.build_program` and `profile_bundle`.
    """
    from tracemap.commands.build import build_program

    bundle = build_program(program, arguments, keywords, _build_options(options), progress)
    return profile_bundle(bundle, options, progress)


def profile_bundle(
    bundle: Bundle,
    options: ProfileOptions,
    progress: Progress = no_progress,
    others: tuple[str, ...] = (),
    values: Sequence[object] = (),
) -> Profile:
    """Record a bundle, join the run onto it, and write the page.

    Raises:
        TracemapError: see `commands.record.record` and `commands.runs.open_and_join_runs`.
        TargetExists, TargetUnwritable: the page cannot be written.
    """
    from tracemap.commands.memory import memory_of_page
    from tracemap.reports.page.render import write_bundle_page

    page = options.output or default_page(bundle.path)
    check_outputs(page, force=options.force, bundles=[bundle.path])
    recorded = record(bundle, _record_options(options), progress, values=values)
    with open_and_join_runs([recorded.path], bundle, AttributeOptions(), progress) as (joined, opened):
        attributed = with_advice(joined, [recorded.path])
        progress("writing the page")
        shown = partial(excerpts, bundle.graph, opened, 0)
        memory = memory_of_page(bundle, attributed.attribution.run)
        write_bundle_page(bundle, attributed.costed, page, shown, memory, force=options.force)
    return Profile(attributed, recorded.path, page, others)


def _build_options(options: ProfileOptions) -> BuildOptions:
    return BuildOptions(device=options.device, source_roots=options.source_roots, flags=options.flags)


def _record_options(options: ProfileOptions) -> RecordOptions:
    sample_hz = UNKNOWN if options.sample else 0
    return RecordOptions(**call_of(options), seconds=options.seconds, sample_hz=sample_hz)


# ---- scripts


def is_script(target: object) -> bool:
    """Whether a target is a Python script, perhaps with a function's name."""
    return isinstance(target, (str, Path)) and SCRIPT.fullmatch(str(target)) is not None


def _profile_script(script: Path, function: str, options: ProfileOptions, progress: Progress) -> Profile:
    from tracemap.commands.build import build_imported
    from tracemap.frontends.imported import ImportedModel
    from tracemap.frontends.scripts import ScriptCapture, run_script
    from tracemap.map.bundle import SUFFIX

    if not script.is_file():
        raise ModelUnreadable(f"{script}: there is no such file")
    if options.inputs or options.function is not UNKNOWN or options.dim is not UNKNOWN:
        raise UsageInvalid("a script has inputs of its own; leave --input, --dim and --function out")
    progress(f"running {script.name}")
    capture = ScriptCapture(script, function)
    with _captured_builds(capture):
        first, *others = run_script(capture, options.flags)
    names = tuple(_other_name(program) for program in others)
    if isinstance(first.found, TracemapError):
        raise first.found
    if not isinstance(first.found, ImportedModel):
        return profile_bundle(first.found, options, progress, names)
    name = first.found.name if first.found.name == script.stem else f"{script.stem}-{first.found.name}"
    target = Path(name + SUFFIX)  # functions of other scripts may have the same name
    asked = BuildOptions(device=options.device, source_roots=options.source_roots, output=target)
    return profile_bundle(build_imported(first.found, asked, (script.parent,), progress), options, progress, names)


@contextmanager
def _captured_builds(capture: ScriptCapture) -> Iterator[None]:
    """Capture the bundles that the script builds with `tracemap.build`, which imports these functions when called."""
    from tracemap.commands import build
    from tracemap.frontends.scripts import CapturedProgram, without_capture

    of_model, of_program = build.build, build.build_program

    def added(bundle: Bundle) -> Bundle:
        capture.programs.append(CapturedProgram(bundle.path.stem, bundle))
        return bundle

    build.build = lambda *arguments: added(of_model(*arguments))
    build.build_program = lambda program, *arguments: added(of_program(without_capture(program), *arguments))
    try:
        yield
    finally:
        build.build, build.build_program = of_model, of_program


def _other_name(program: CapturedProgram) -> str:
    return f"{program.name} ({plural(program.calls, 'call')})" if program.calls else program.name


# ---- command line


@options_command("profile", ProfileOptions, takes_script=True)
@click.argument("target", metavar="TARGET", type=click.Path())
def command(target: str, options: ProfileOptions) -> None:
    """Build TARGET, record it, and show which of its source lines cost the most time.

    TARGET is a model (.mlir, .mlirbc, .onnx, .pt2), a bundle of `tracemap build`, or a Python script. A script runs
    with the words after its name as arguments: put options before it. Its most expensive jax.jit function is profiled
    with the arguments of its first call, or its bundle of tracemap.build; SCRIPT.py:FUNCTION names one.

    \b
    Example:
      tracemap profile model.mlir
      tracemap profile --open train.py --steps 3
      tracemap profile train.py:train_step
    """
    if is_script(target):
        own = {name for declared in declared_options(ProfileOptions) for name in declared.names}
        for word in own.intersection(word.partition("=")[0] for word in options.flags):
            print_warning(f"tracemap: {word} is passed to {target}; put options of profile before the script's name")
    with show_phases("profile") as progress:
        found = profile(target, options, progress)
    print_profile(found, options.top, sys.stdout)
    if options.open:
        webbrowser.open(found.page.resolve().as_uri())


def print_profile(found: Profile, top: int, out: TextIO) -> None:
    """Print the most expensive source lines of a profile, and what to do next."""
    from tracemap.reports.terminal.attribution import print_summary
    from tracemap.reports.views.python import helper_line

    attributed = found.attributed
    print_summary(attributed.costed, attributed.attribution, out, top)
    if found.others:
        out.write(f"The script also calls {', '.join(found.others)}; SCRIPT:FUNCTION profiles one of them.\n")
    out.write(f"Page: {found.page}\n")
    bundle = str(attributed.bundle.path)
    if line := helper_line(attributed.costed, attributed.metric):
        out.write(
            f"Next: {shlex.join(('tracemap', 'attribute', bundle, '--by', 'caller'))} (several lines call {line})\n"
        )
    if op := attributed.most_expensive_op:
        out.write(f"Next: {shlex.join(('tracemap', 'show', bundle, op, '--assembly'))}\n")
