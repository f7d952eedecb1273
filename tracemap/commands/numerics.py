"""`tracemap numerics`: the results of every dispatch of a program, compared with a double-precision reference."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracemap.commands.framework import PATH, options_command
from tracemap.commands.programs import check_runs_on_cpu, program_of
from tracemap.commands.runs import check_damage_on_failure, unchanged_module
from tracemap.commands.streams import show_in_format, show_phases
from tracemap.core.diagnostics import Diagnostic
from tracemap.core.errors import UsageInvalid
from tracemap.core.process.temporary_files import temporary_folder
from tracemap.core.toolchain import Progress, no_progress
from tracemap.core.units import join_names
from tracemap.kernels.model import DOUBLE, KERNELS, Numerics
from tracemap.options.kernels import NumericsOptions
from tracemap.options.measure import CallOptions, call_of

if TYPE_CHECKING:
    from tracemap.kernels.numerics import KernelSet, Samples
    from tracemap.kernels.program_numerics import ObservedRun, Pairing
    from tracemap.map.bundle import Bundle
    from tracemap.map.model import TraceGraph


def numerics(bundle: Bundle, options: NumericsOptions, progress: Progress = no_progress) -> Numerics:
    """Run a function of a bundle once, and check the results of its dispatches.

    Raises:
        BundleInvalid: the bundle, or the one to compare with, is damaged or has no kernels' code.
        FunctionUnknown, InputInvalid, UsageInvalid: the call does not fit the function; its sizes are not given.
        ProgramFailed: the program failed, or its memory cannot be read.
        ToolMissing: the runtime is not installed, or the hook's library was not built.
    """
    from tracemap.kernels.program_numerics import assess, keep_numerics
    from tracemap.map.bundle import check_iree

    check_iree(bundle)
    other = None if options.against in ("", DOUBLE) else _other_bundle(options.against)
    progress(f"running {bundle.path.name}")
    reference = None if other is None else _kernels(other)
    observed = _observed(bundle, _kernels(bundle), options, reference, samples=other is not None)
    if other is None:
        found = assess(observed, options.against or KERNELS)
        return found if options.statistics else keep_numerics(bundle, found)
    progress(f"running {other.path.name}")
    # Only a NaN of ours needs the other's evaluated dispatches: whether it makes the same.
    has_nan = any(number.kind == "nan" for dispatch in observed.checked for number in dispatch.bad)
    compared = options if has_nan else replace(options, calls=0)
    other_run = _observed(other, reference, compared, None, samples=True)
    return assess(observed, options.against, other_run, _pairing(other, bundle))


def has_failed(found: Numerics) -> bool:
    """Whether a result is wrong, a NaN was made, or an output departs from the other bundle's."""
    return found.culprit is not None


def _other_bundle(path: str) -> Bundle:
    from tracemap.map.bundle import load

    if not Path(path).exists():
        raise UsageInvalid(f"--against {path}: is neither f64 nor a bundle; name an existing bundle")
    return load(Path(path))


def _kernels(bundle: Bundle) -> KernelSet | None:
    from tracemap.kernels.numerics import KernelSet

    return KernelSet(bundle.configured()) if bundle.graph.kernels else None


# ---- pairing


def _pairing(other: Bundle, own: Bundle) -> Pairing:
    from tracemap.commands.diff import matched_models
    from tracemap.kernels.program_numerics import Pairing

    matches = matched_models(other, own)
    if matches is None:
        same: dict[str, str] = {op.id: op.id for op in own.graph.ops if op.id in other.graph.op_by_id}
        return Pairing(other.graph, same, same, frozenset())
    other_op: dict[str, str] = {match.after: match.before for match in matches}
    edited = {match.after for match in matches if match.edited}
    changed = frozenset(op.id for op in own.graph.ops if op.id not in other_op) | edited
    return Pairing(other.graph, {match.before: match.after for match in matches}, other_op, changed)


# ---- observing


def _observed(
    bundle: Bundle, kernels: KernelSet | None, options: NumericsOptions, reference: KernelSet | None, *, samples: bool
) -> ObservedRun:
    import numpy as np

    from tracemap.capture.calling import make_call
    from tracemap.capture.dispatches import observe_dispatches
    from tracemap.capture.outputs import RUN_TOOL, is_stored_as_array
    from tracemap.kernels.numerics import CheckSettings, DispatchChecks
    from tracemap.kernels.program_numerics import ObservedRun

    if kernels is not None:
        check_runs_on_cpu(bundle, kernels.backends, "numerics")
    with temporary_folder() as folder, unchanged_module(bundle), check_damage_on_failure(bundle):
        asked = CallOptions(**call_of(options))
        call = make_call(program_of(bundle, asked), asked, RUN_TOOL, folder)
        if kernels is None:
            return ObservedRun(bundle, call.entry.name, (), (), ())
        settings = CheckSettings(
            calls=0 if options.statistics else options.calls,
            accumulated=options.against == DOUBLE,
            samples=samples,
        )
        checks = DispatchChecks(kernels, settings, reference)
        targets = [folder / f"result-{number}.npy" for number in range(len(call.results))]
        kept = [samples and is_stored_as_array(result) for result in call.results]
        flags = [f"--output=@{target}" if keep else "--output=" for target, keep in zip(targets, kept, strict=True)]
        ending = observe_dispatches(call.command(RUN_TOOL, *flags), checks)
        ending.check(f"{RUN_TOOL}, which called {call.entry.name},")
        results = [_samples_of(target) if keep else np.zeros(0) for target, keep in zip(targets, kept, strict=True)]
    sites, diagnostics = _identified(bundle.graph, [dispatch.kernel for dispatch in checks.checked])
    zeros = [f"argument {index} ({own.spec})" for index, own in enumerate(call.inputs) if own.is_generated_zeros]
    if zeros:
        text = f"{join_names(zeros)}: only zeros, since generated integers may be indices; give data with --input"
        diagnostics = (*diagnostics, Diagnostic("zero-inputs", text))
    return ObservedRun(bundle, call.entry.name, checks.checked, sites, diagnostics, results)


def _samples_of(file: Path) -> Samples:
    import numpy as np

    from tracemap.kernels.numerics import evenly_spaced

    return evenly_spaced(np.load(file, allow_pickle=False).astype(np.float64))


def _identified(graph: TraceGraph, kernels: Sequence[str]) -> tuple[list[tuple[str, ...]], tuple[Diagnostic, ...]]:
    """The candidate sites of each dispatch."""
    from tracemap.attribution.join.schedule_nfa import UnknownOrder, identify_launches
    from tracemap.map.model import entry_name

    if not kernels:
        return [], ()
    try:
        order = identify_launches(graph, list(map(entry_name, kernels)))
    except UnknownOrder as error:
        text = f"this lists kernels, not dispatch sites, since these are unknown: {error}"
        return [()] * len(kernels), (Diagnostic("sites-unknown", text),)
    return [order.kinds[number].sites for number in order.numbers], ()


# ---- command line


@options_command("numerics", NumericsOptions)
@click.argument("bundle", metavar="BUNDLE", type=PATH)
def command(bundle: Path, options: NumericsOptions) -> None:
    """Run BUNDLE's module once, and check the results of every dispatch.

    Each dispatch is computed again in double precision, on the inputs that it had. The program and its machine code are
    unchanged. A wrong result names the op that explains it. The exit status is 1 if a result is wrong or becomes NaN.

    \b
    Example:
      tracemap numerics model.tracemap
      tracemap numerics model.tracemap --input x=@x.npy --against f64
      tracemap numerics new.tracemap --against old.tracemap
    """
    from tracemap.map.bundle import load
    from tracemap.reports.terminal.numerics import print_numerics

    opened = load(bundle)
    with show_phases("numerics") as progress:
        found = numerics(opened, options, progress)
    show_in_format(
        options.format, sys.stdout, partial(print_numerics, opened.graph, found, options), lambda: found, opened
    )
    if has_failed(found):
        sys.exit(1)
