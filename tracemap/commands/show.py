"""`tracemap show`: print the map of a bundle."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from tracemap.commands.framework import NAME, PATH, options_command
from tracemap.options.compile import ShowOptions

if TYPE_CHECKING:
    from tracemap.map.bundle import Bundle
    from tracemap.map.bundle_documents import Remark
    from tracemap.reports.kernels import KernelView


@options_command("show", ShowOptions)
@click.argument("bundle", metavar="BUNDLE", type=PATH)
@click.argument("what", metavar="[WHAT]", required=False, type=NAME)
def command(bundle: Path, what: str | None, options: ShowOptions) -> None:
    """Print the map of BUNDLE: ops, dispatch sites, kernels and the links between them.

    WHAT selects a source line (FILE:LINE), an op (op12), a dispatch site (site3), a kernel by its name, or a scope with
    everything below it. The output includes everything that is linked to it. For a kernel, it also includes the final
    IR and the loops of the machine code, with their ops.

    \b
    Example:
      tracemap show model.tracemap model.mlir:12
      tracemap show model.tracemap h0/attn --format json
      tracemap show model.tracemap op12 --remarks
      tracemap show model.tracemap main_dispatch_3_matmul_64x64x64_f32 --assembly
    """
    from tracemap.core.errors import UsageInvalid
    from tracemap.core.files import show_in_format
    from tracemap.map.bundle import load
    from tracemap.map.query import select, select_all
    from tracemap.reports.json_documents import shown_map
    from tracemap.reports.terminal.bundles import print_some_remarks
    from tracemap.reports.terminal.map import print_kernel, print_map

    opened = load(bundle)
    graph, what = opened.graph, what or ""
    if options.assembly and what not in graph.kernel_by_name:
        raise UsageInvalid("--assembly needs a kernel's name; `tracemap show BUNDLE` lists the kernels")
    views = _views(opened, what)
    selection = select(graph, what) if what else select_all(graph)
    remarks = _remarks(opened, what) if options.remarks else None

    def text(out: TextIO) -> None:
        print_map(selection, graph, out, whole=not what)
        for view in views:
            print_kernel(view, graph, out, assembly=options.assembly)
        if remarks is not None:
            print_some_remarks(remarks, graph, out)

    value = partial(shown_map, graph, selection, views, assembly=options.assembly, remarks=remarks)
    show_in_format(options.format, sys.stdout, text, value)


def _remarks(bundle: Bundle, what: str) -> tuple[Remark, ...]:
    """The compiler's remarks on the selected item itself, not on items linked to it."""
    from tracemap.map.bundle_documents import remarks_at
    from tracemap.map.query import resolve_names
    from tracemap.reports.kernels import sort_remarks

    remarks = bundle.remarks()
    return sort_remarks(
        remarks_at(remarks, bundle.graph, resolve_names(bundle.graph, what)) if what else remarks.remarks
    )


def _views(bundle: Bundle, what: str) -> list[KernelView]:
    """IR, loops and instructions of the selected kernel. Other kernels are skipped, since reading code takes time."""
    kernel = bundle.graph.kernel_by_name.get(what)
    if kernel is None:
        return []
    from tracemap.machine.images import read_images
    from tracemap.reports.kernels import view_kernel

    return [view_kernel(kernel, bundle.kernel_text(kernel), read_images(bundle.module_path))]
