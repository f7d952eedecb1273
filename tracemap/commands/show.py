"""`tracemap show`: print the map of a bundle."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from tracemap.commands.framework import NAME, PATH, options_command
from tracemap.commands.streams import print_message
from tracemap.options.compile import ShowOptions

if TYPE_CHECKING:
    from tracemap.map.build_cost import BuildCost
    from tracemap.map.bundle import Bundle
    from tracemap.map.bundle_documents import Remark
    from tracemap.map.query import Selection
    from tracemap.reports.kernels import KernelView


@options_command("show", ShowOptions)
@click.argument("bundle", metavar="BUNDLE", type=PATH)
@click.argument("what", metavar="[WHAT]", required=False, type=NAME)
def command(bundle: Path, what: str | None, options: ShowOptions) -> None:
    """Print the map of BUNDLE: ops, dispatch sites, kernels and the links between them.

    WHAT selects a line (12, FILE:LINE), a function of the model or of Python, an ONNX node, a scope with everything
    below it, an op (op12), ops by name (add), a dispatch site (site3), or a kernel by the beginning of its name. The
    output includes everything that is linked to it. For a kernel, it also includes the final IR and the loops of the
    machine code, with their ops.

    \b
    Example:
      tracemap show model.tracemap model.mlir:12
      tracemap show model.tracemap train.py:40 --assembly
      tracemap show model.tracemap h0/attn --format json
      tracemap show model.tracemap op12 --remarks
      tracemap show model.tracemap --cost
      tracemap show model.tracemap main_dispatch_3
    """
    from tracemap.commands.streams import show_in_format
    from tracemap.core.errors import UsageInvalid
    from tracemap.map.bundle import load
    from tracemap.map.query import Target, connected, kernels_of, resolve, select_all
    from tracemap.reports.terminal.map import print_kernel, print_map
    from tracemap.reports.terminal.tables import console, say

    opened = load(bundle)
    graph, what = opened.graph, what or ""
    if options.assembly and not what:
        raise UsageInvalid("--assembly needs an op, a line or a kernel: name it after BUNDLE")
    target = resolve(graph, what, opened.source_text, nearest=True) if what else Target(())
    if target.nearest:
        print_message(f"tracemap: {target.nearest}")
    selection = connected(graph, target.names) if what else select_all(graph)
    named = [name for name in target.names if name in graph.kernel_by_name]
    views = _views(opened, kernels_of(graph, what, target.names) if options.assembly else named)
    remarks = _remarks(opened, target.names) if options.remarks else None
    cost = _cost(opened, selection) if options.cost else None

    def text(out: TextIO) -> None:
        if description := target.description(what):
            say(console(out), description)
            say(console(out), "")
        if what or cost is None:
            print_map(selection, graph, out, whole=not what)
        for view in views:
            print_kernel(view, graph, out, assembly=options.assembly)
        if remarks is not None:
            from tracemap.reports.terminal.bundles import print_some_remarks

            print_some_remarks(remarks, graph, out)
        if cost is not None:
            from tracemap.reports.terminal.build_cost import print_build_cost

            print_build_cost(cost, graph, out)

    def value() -> object:
        from tracemap.reports.json_documents import shown_map

        return shown_map(graph, selection, views, assembly=options.assembly, remarks=remarks, cost=cost)

    show_in_format(options.format, sys.stdout, text, value, opened, target.names)


def _cost(bundle: Bundle, selection: Selection) -> BuildCost:
    """The cost of building, with the selected kernels and ops."""
    from msgspec import structs

    from tracemap.map.bundle import check_iree

    check_iree(bundle)
    from tracemap.map.build_cost import build_cost

    cost = build_cost(bundle)
    kernels, ops = {kernel.name for kernel in selection.kernels}, {op.id for op in selection.ops}
    return structs.replace(
        cost,
        kernels=tuple(own for own in cost.kernels if own.kernel in kernels),
        ops=tuple(own for own in cost.ops if own.op in ops),
    )


def _remarks(bundle: Bundle, names: Sequence[str]) -> tuple[Remark, ...]:
    """The compiler's remarks on the named items, not on items linked to them; all remarks without names."""
    from tracemap.map.bundle_documents import remarks_at
    from tracemap.reports.kernels import sort_remarks

    remarks = bundle.remarks()
    return sort_remarks(remarks_at(remarks, bundle.graph, names) if names else remarks.remarks)


def _views(bundle: Bundle, kernels: Sequence[str]) -> list[KernelView]:
    """IR, loops and instructions of kernels. Others are skipped, since reading code takes time."""
    if not kernels:
        return []
    from tracemap.machine.sass import SassReader
    from tracemap.reports.kernels import view_kernel

    images, by_name, sass = bundle.images(), bundle.graph.kernel_by_name, SassReader(bundle.module_path)
    return [view_kernel(by_name[name], bundle.kernel_text(by_name[name]), images, sass) for name in kernels]
