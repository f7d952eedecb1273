"""`tracemap show`: print the map of a bundle."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from tracemap.graph.bundle import Bundle
    from tracemap.reports.kernels import KernelView


@click.command("show")
@click.argument("bundle", metavar="BUNDLE", type=click.Path(path_type=Path))
@click.argument("what", metavar="[WHAT]", required=False, default="")
@click.option(
    "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True, help="What to print."
)
@click.option("--assembly", is_flag=True, help="With a kernel: its instructions too.")
def command(bundle: Path, what: str, form: str, assembly: bool) -> None:
    """Print the map of BUNDLE: ops, sites, kernels and what links them.

    WHAT narrows it to a place (FILE:LINE), an op (op12), a site (site3), a kernel's name, or a scope and all below it,
    each with what is connected to it; of a kernel also its final IR and the loops of its machine code, with their ops.

    \b
    Example:
      tracemap show model.tracemap model.mlir:12
      tracemap show model.tracemap h0/attn --format json
      tracemap show model.tracemap main_dispatch_3_matmul_64x64x64_f32 --assembly
    """
    from tracemap.errors import UsageInvalid
    from tracemap.graph.bundle import load
    from tracemap.graph.query import everything, select

    opened = load(bundle)
    graph = opened.graph
    if assembly and what not in graph.kernel_by_name:
        raise UsageInvalid("--assembly goes with a kernel's name; tracemap show BUNDLE lists the kernels")
    views = _views(opened, what)
    selection = select(graph, what) if what else everything(graph)
    if form == "json":
        from tracemap.codec import pretty
        from tracemap.reports.json.show import shown_map

        click.echo(pretty(shown_map(graph, selection, views, assembly=assembly)), nl=False)
    else:
        from tracemap.reports.terminal.kernel import print_kernel
        from tracemap.reports.terminal.map import print_map

        print_map(selection, graph, sys.stdout, whole=not what)
        for view in views:
            print_kernel(view, graph, sys.stdout, assembly=assembly)


def _views(bundle: Bundle, what: str) -> list[KernelView]:
    """The inside of the kernel that is asked for; of no other, as reading machine code takes its time."""
    kernel = bundle.graph.kernel_by_name.get(what)
    if kernel is None:
        return []
    from tracemap.machine.images import read_images
    from tracemap.reports.kernels import view_kernel

    return [view_kernel(kernel, bundle.kernel_text(kernel), read_images(bundle.module_path))]
