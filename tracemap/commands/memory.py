"""`tracemap memory`: what a program allocates, and which ops hold the memory at its peak."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracemap.commands.framework import PATH, options_command
from tracemap.commands.runs import opened_runs
from tracemap.core.diagnostics import RECORDS_LOST, RELEASES_MISSING, Diagnostic
from tracemap.core.errors import TracemapError, UsageInvalid
from tracemap.core.functions import Function, function_named
from tracemap.core.units import format_bytes, join_names
from tracemap.options.compile import MemoryOptions

if TYPE_CHECKING:
    from tracemap.map.bundle import Bundle
    from tracemap.map.memory_use import HeldValue, MemoryUse
    from tracemap.runs.allocations import AllocatedMemory
    from tracemap.runs.model import Run, RunHeader


@dataclass(frozen=True, slots=True)
class ProgramMemory:
    """The memory of a program.

    `functions`: the memory of each, as it is and without the ops that the options name. `kept`: constants and
    variables that the module holds. `allocated`: what a run allocated; None without a run.
    """

    functions: list[tuple[MemoryUse, MemoryUse]]
    kept: tuple[HeldValue, ...]
    allocated: AllocatedMemory | None = None
    diagnostics: tuple[Diagnostic, ...] = ()


def memory(bundle: Bundle, run: Path | None, options: MemoryOptions) -> ProgramMemory:
    """The memory of each function, or of the one that the options or the run name.

    Args:
        bundle: a bundle.
        run: a run of it, whose function, inputs and allocations count; None: no run.
        options: options of `tracemap memory`.

    Raises:
        TracemapError: see `planned`, `commands.runs.opened_runs` and `runs.allocations.allocated_memory`.
        InputInvalid: an input does not have its argument's type.
        RunMismatch: the run was recorded from a different build.
        UsageInvalid: the run does not say which function it called, or had other inputs than the options; no input has
            a dynamic dimension for --dim.
    """
    from tracemap.capture.inputs import check_size, given_inputs
    from tracemap.map.bundle import check_iree
    from tracemap.map.memory_use import kept_values

    check_iree(bundle)
    kept = kept_values(bundle.memory())
    named = isinstance(options.function, str)
    check_size([own for own in bundle.graph.functions if not named or own.name == options.function], options.dim)
    if options.inputs:
        name = options.function if isinstance(options.function, str) else ""
        given_inputs(function_named(bundle.graph.functions, name), options.inputs)
    if run is None:
        found = planned(bundle, options)
        missing = {own.function: own.called for own in bundle.memory().functions if own.called}
        notes = [Diagnostic("memory-unknown", unknown_memory(*item)) for item in missing.items()]
        is_whole = not isinstance(options.function, str) and not options.inputs
        return ProgramMemory(found, kept, diagnostics=tuple(notes) if is_whole else ())
    from tracemap.attribution.attribute import check_runs
    from tracemap.runs.allocations import allocated_memory

    with opened_runs([run]) as (opened,):
        notes = check_runs(bundle.graph, [opened], allow_mismatch=options.allow_mismatch)
        functions = planned(bundle, _options_of_run(bundle, opened, options))
        allocated = allocated_memory(opened, options.memory * 1_000_000)
    ((whole, _),) = functions
    notes = [note for note in notes if note.slug in _NOTES]
    return ProgramMemory(functions, kept, allocated, (*notes, *_differences(whole, allocated)))


_NOTES = ("run-unverified", "run-mismatch", RECORDS_LOST)
"""Diagnostics of runs that matter here."""


def _options_of_run(bundle: Bundle, run: Run, options: MemoryOptions) -> MemoryOptions:
    """The options with the run's function and inputs, where the user gave none."""
    name = options.function if isinstance(options.function, str) else run.header.function
    if not isinstance(name, str):
        if len(bundle.graph.functions) > 1:
            raise UsageInvalid(f"{run.file}: does not say which function it called; name it with --function")
        name = bundle.graph.functions[0].name
    elif isinstance(run.header.function, str) and name != run.header.function:
        raise UsageInvalid(f"{run.file}: is a run of {run.header.function}, not of {name}; leave --function out")
    entry = function_named(bundle.graph.functions, name)
    inputs = run.header.inputs if len(run.header.inputs) == len(entry.arguments) else ()
    if options.inputs and inputs and not _same_sizes(entry, options, inputs):
        raise UsageInvalid(f"{run.file}: is a run with inputs of other sizes ({join_names(inputs)}); leave --input out")
    if isinstance(options.dim, int) and inputs and not options.inputs and not _same_sizes(entry, options, inputs):
        raise UsageInvalid(f"{run.file}: is a run with inputs of other sizes ({join_names(inputs)}); leave --dim out")
    return replace(options, function=name, inputs=options.inputs or inputs)


def _same_sizes(entry: Function, options: MemoryOptions, inputs: Sequence[str]) -> bool:
    """Whether inputs have the sizes that the options name with --input or --dim."""
    from tracemap.capture.inputs import dimensions_of

    own, other = (dimensions_of(entry, specs, options.dim) for specs in (options.inputs, inputs))
    places = [(argument, index) for argument in range(len(entry.arguments)) for index in range(_MOST_DIMENSIONS)]
    return all(own(*place) == other(*place) for place in places)


_MOST_DIMENSIONS = 16


def _differences(plan: MemoryUse, allocated: AllocatedMemory) -> list[Diagnostic]:
    """Why the allocated peak is unknown, or differs from the planned one."""
    peak, unreleased = allocated.peak_bytes, allocated.unreleased_bytes
    if not isinstance(peak, int) or not isinstance(unreleased, int):
        text = f"{allocated.run}: the allocated peak is unknown: {allocated.reason}"
        return [] if not plan.peak_bytes and not allocated.allocations else [Diagnostic("allocations-unknown", text)]
    if peak == plan.peak_bytes:
        return []
    text = f"{allocated.run}: {peak:,} bytes are allocated at the peak, but {plan.peak_bytes:,} are planned"
    if peak > plan.peak_bytes and unreleased > plan.lasting_bytes:
        more = unreleased - plan.lasting_bytes
        text = (
            f"{allocated.run}: at most {peak:,} bytes are allocated at the peak, and {plan.peak_bytes:,} are planned: "
            f"{format_bytes(more)} have no release in the run, because the program drops them without one"
        )
        return [Diagnostic(RELEASES_MISSING, text)]
    return [Diagnostic("peak-not-planned", text)]


def unknown_memory(function: str, called: str) -> str:
    """Why the memory of a function is unknown."""
    return (
        f"{function}: its memory is unknown, because {called} is called but not inlined, and its memory overlaps with "
        "that of its callers; let the compiler inline it"
    )


def planned(bundle: Bundle, options: MemoryOptions) -> list[tuple[MemoryUse, MemoryUse]]:
    """The memory of each function, or of the one that the options name: as it is, and without the ops they name.

    Raises:
        BundleInvalid: the bundle does not have it.
        FunctionUnknown, QueryInvalid: no function or op has the name.
        InputInvalid: the inputs do not fit the function.
        UsageInvalid: sizes depend on dimensions that are unknown, or the only function calls others without inlining.
    """
    from tracemap.capture.inputs import dimensions_of
    from tracemap.map.memory import FunctionMemory
    from tracemap.map.memory_use import memory_use
    from tracemap.map.memory_without import computing_ops
    from tracemap.map.query import ops_of, resolve

    plan, graph = bundle.memory(), bundle.graph
    name = options.function if isinstance(options.function, str) else ""
    functions = [function_named(graph.functions, name)] if name or options.inputs else list(graph.functions)
    removed = frozenset(
        op.id for what in options.without for op in ops_of(graph, resolve(graph, what, bundle.source_text).names)
    )
    computing = computing_ops(graph)
    found = []
    for entry in functions:
        dimension = dimensions_of(entry, options.inputs, options.dim)
        own_functions = [own for own in plan.functions if own.function == entry.name]
        if called := next((own.called for own in own_functions if own.called), ""):
            if len(functions) == 1:
                raise UsageInvalid(unknown_memory(entry.name, called))
            continue
        for own in own_functions or [FunctionMemory(entry.name, (), ())]:
            whole = memory_use(plan, own, dimension, top=options.top, computing=computing)
            left = memory_use(plan, own, dimension, removed, options.top, computing) if removed else whole
            found.append((whole, left))
    return found


def memory_of_page(bundle: Bundle, run: RunHeader | None) -> list[MemoryUse]:
    """The memory of the function that a run called, or without a run of all functions; empty if it is unknown."""
    if run is None:
        every = [MemoryOptions(function=function.name, top=0) for function in bundle.graph.functions]
    elif isinstance(run.function, str):
        every = [MemoryOptions(function=run.function, inputs=run.inputs, top=0)]
    else:
        every = []
    uses = []
    for options in every:
        with suppress(TracemapError):  # such as a bundle without its memory, or dynamic shapes of unknown size
            uses += [use for use, _ in planned(bundle, options)]
    return uses


# ---- command line


@options_command("memory", MemoryOptions)
@click.argument("bundle", metavar="BUNDLE", type=PATH)
@click.argument("run", metavar="[RUN]", required=False, default=None, type=PATH)
def command(bundle: Path, run: Path | None, options: MemoryOptions) -> None:
    """Show how much memory the program of BUNDLE allocates at its peak, and whose values it holds there.

    Sizes and lifetimes are those of the compiler's own layout, so no run is needed. Arguments belong to the caller and
    do not count. `peak without` is the peak if the op is removed: its users use its first operand of the same type. It
    is marked with `about` where the compiler may fuse other ops then. With RUN, its function and inputs count, and the
    bytes that the device really allocated are shown next to the plan.

    \b
    Example:
      tracemap memory model.tracemap
      tracemap memory model.tracemap --without op12
      tracemap memory model.tracemap --input 8x128xf32 --format json
      tracemap memory model.tracemap run.parquet
    """
    from tracemap.commands.streams import show_in_format
    from tracemap.map.bundle import load
    from tracemap.reports.terminal.memory import print_memory

    opened = load(bundle)
    found = memory(opened, run, options)
    uses = [without for _, without in found.functions]
    shown = found.functions, found.kept, found.allocated, found.diagnostics
    text = partial(print_memory, opened.graph, *shown, options)

    def value() -> object:
        from tracemap.reports.json_documents import shown_memory

        return shown_memory(uses, *shown[1:])

    show_in_format(options.format, sys.stdout, text, value, opened)
