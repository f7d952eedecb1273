"""`tracemap memory`: what a program allocates, and which ops hold the memory at its peak."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracemap.commands.framework import PATH, options_command
from tracemap.core.functions import Function, function_named
from tracemap.core.units import UNKNOWN, Integer
from tracemap.options.compile import MemoryOptions

if TYPE_CHECKING:
    from tracemap.map.bundle import Bundle
    from tracemap.map.memory_use import Dimension, MemoryUse


def memory(bundle: Bundle, options: MemoryOptions) -> list[tuple[MemoryUse, MemoryUse]]:
    """The memory of each function, or of the one that the options name: as it is, and without the ops they name.

    Raises:
        BundleInvalid: the bundle does not have it.
        FunctionUnknown, QueryInvalid: no function or op has the name.
        InputInvalid: the inputs do not fit the function.
        UsageInvalid: sizes depend on dimensions that are unknown.
    """
    from tracemap.map.memory import FunctionMemory
    from tracemap.map.memory_use import memory_use
    from tracemap.map.query import ops_of, resolve

    plan, graph = bundle.memory(), bundle.graph
    name = options.function if isinstance(options.function, str) else ""
    functions = [function_named(graph.functions, name)] if name or options.inputs else list(graph.functions)
    removed = frozenset(
        op.id for what in options.without for op in ops_of(graph, resolve(graph, what, bundle.source_text).names)
    )
    found = []
    for entry in functions:
        dimension = dimensions(entry, options)
        own_functions = [own for own in plan.functions if own.function == entry.name]
        for own in own_functions or [FunctionMemory(entry.name, (), ())]:
            whole = memory_use(plan, own, dimension, top=options.top)
            found.append((whole, memory_use(plan, own, dimension, removed, options.top) if removed else whole))
    return found


def dimensions(entry: Function, options: MemoryOptions) -> Dimension:
    """The dimensions of a function's arguments: of its inputs, else as declared.

    Raises:
        InputInvalid: there are too many or too few inputs.
    """
    from tracemap.capture.inputs import SPEC, Shaped, parsed, specs_by_argument

    specs = specs_by_argument(entry, options.inputs) if options.inputs else [None] * len(entry.arguments)

    shapes: list[Sequence[int | None]] = []
    values: list[str] = []
    for argument, spec in zip(entry.arguments, specs, strict=True):
        found = SPEC.fullmatch(spec or "")
        sizes = tuple(int(size) for size in found[1].split("x")[:-1]) if found else ()
        declared = Shaped(sizes or None, found[2]) if found else parsed(argument.type)
        shapes.append(declared.sizes if declared is not None and declared.sizes is not None else ())
        values.append((found[3] or "") if found else spec or "")

    def dimension(argument: int, index: int) -> Integer:
        if argument >= len(shapes):
            return UNKNOWN
        if index < 0:
            return int(values[argument]) if values[argument].isdigit() else UNKNOWN
        if index >= len(shapes[argument]):
            return UNKNOWN
        size = shapes[argument][index]
        return options.dim if size is None else size

    return dimension


# ---- command line


@options_command("memory", MemoryOptions)
@click.argument("bundle", metavar="BUNDLE", type=PATH)
def command(bundle: Path, options: MemoryOptions) -> None:
    """Show how much memory the program of BUNDLE allocates at its peak, and whose values it holds there.

    Sizes and lifetimes are those of the compiler's own layout, so no run is needed. Arguments belong to the caller and
    do not count. `peak without` is the peak if the op is removed, so that its users read what it reads.

    \b
    Example:
      tracemap memory model.tracemap
      tracemap memory model.tracemap --without op12
      tracemap memory model.tracemap --input 8x128xf32 --format json
    """
    from tracemap.core.files import show_in_format
    from tracemap.map.bundle import load
    from tracemap.reports.json_documents import shown_memory
    from tracemap.reports.terminal.memory import print_memory

    opened = load(bundle)
    found = memory(opened, options)
    text = partial(print_memory, opened.graph, found, options)
    show_in_format(options.format, sys.stdout, text, partial(shown_memory, [without for _, without in found]))
