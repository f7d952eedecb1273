"""The commands that take a model or its bundle: `tracemap build`, `show`, `audit`, `lower`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from tracemap.cli.messages import phases_shown, warn
from tracemap.cli.options import PATH, options_command
from tracemap.errors import AuditFailed, QueryInvalid, UsageInvalid
from tracemap.options.models import AuditOptions, BuildOptions, LowerOptions, ShowOptions
from tracemap.outputs import show_as
from tracemap.units import UNKNOWN, plural

if TYPE_CHECKING:
    from tracemap.graph.bundle import Bundle
    from tracemap.reports.kernels import KernelView


@options_command("build", BuildOptions)
@click.argument("model", required=False, default="")
@click.pass_context
def build(context: click.Context, model: str, options: BuildOptions) -> None:
    """Compile MODEL (MLIR text or bytecode, `-`: standard input) and keep the trail from its ops to sites and kernels.

    Any dialect that iree-compile takes; its flags go after `--`.

    Where a build system calls iree-compile, put `tracemap build --` before the command: it does what it did, and the
    bundle lies beside its output.

    With --from-dumps nothing is compiled: the dumps of a compilation made elsewhere, with --mlir-print-debuginfo and
    --dump-compilation-phases-to=DIR, are read, and the map says how far ops are told apart by their own locations.

    \b
    Example:
      tracemap build model.mlir -o model.tracemap -- --iree-opt-level=O2
      tracemap build -- iree-compile model.mlir --iree-hal-target-device=local -o model.vmfb
      tracemap build --from-dumps dumps --module model.vmfb model.mlir
    """
    from tracemap.session import models

    if model or options.from_dumps is not None or options.module is not None:
        with phases_shown("build") as progress:
            bundle = models.build(model, options, progress)
        _report(bundle)
    elif options.flags:
        _run_wrapped(context, options)
    else:
        raise UsageInvalid("name the MODEL to compile, or put a command of iree-compile after a leading `--`")


def _run_wrapped(context: click.Context, options: BuildOptions) -> None:
    from tracemap.cli.wrapper import run_wrapped

    if context.get_parameter_source("device") is not click.core.ParameterSource.DEFAULT:
        raise UsageInvalid("--device: the command after the `--` says itself what it compiles for; leave it out")
    bundle = run_wrapped(options)
    if bundle is not None:
        _report(bundle, quiet=True)


def _report(bundle: Bundle, *, quiet: bool = False) -> None:
    """Say what was found; `quiet`: standard output belongs to somebody else."""
    graph = bundle.graph
    with_members = sum(1 for site in graph.sites if site.members)
    counts = [plural(len(graph.ops), "op"), f"{plural(len(graph.sites), 'site')} ({with_members} with members)"]
    click.echo(", ".join([*counts, plural(len(graph.kernels), "kernel")]), err=True)
    warn(graph.diagnostics)
    click.echo(bundle.path, err=quiet)


@options_command("show", ShowOptions)
@click.argument("bundle", metavar="BUNDLE", type=PATH)
@click.argument("what", metavar="[WHAT]", required=False, default="")
def show(bundle: Path, what: str, options: ShowOptions) -> None:
    """Print the map of BUNDLE: ops, sites, kernels and what links them.

    WHAT narrows it to a place (FILE:LINE), an op (op12), a site (site3), a kernel's name, or a scope and all below it,
    each with what is connected to it; of a kernel also its final IR and the loops of its machine code, with their ops.

    \b
    Example:
      tracemap show model.tracemap model.mlir:12
      tracemap show model.tracemap h0/attn --format json
      tracemap show model.tracemap main_dispatch_3_matmul_64x64x64_f32 --assembly
    """
    from tracemap.graph.bundle import load
    from tracemap.graph.query import everything, select
    from tracemap.reports.json.show import shown_map
    from tracemap.reports.terminal.show import print_kernel, print_map

    opened = load(bundle)
    graph = opened.graph
    if options.assembly and what not in graph.kernel_by_name:
        raise UsageInvalid("--assembly goes with a kernel's name; tracemap show BUNDLE lists the kernels")
    views = _views(opened, what)
    selection = select(graph, what) if what else everything(graph)

    def text(out: TextIO) -> None:
        print_map(selection, graph, out, whole=not what)
        for view in views:
            print_kernel(view, graph, out, assembly=options.assembly)

    value = partial(shown_map, graph, selection, views, assembly=options.assembly)
    show_as(options.format, sys.stdout, text, value)


def _views(bundle: Bundle, what: str) -> list[KernelView]:
    """The inside of the kernel that is asked for; of no other, as reading machine code takes its time."""
    kernel = bundle.graph.kernel_by_name.get(what)
    if kernel is None:
        return []
    from tracemap.machine.images import read_images
    from tracemap.reports.kernels import view_kernel

    return [view_kernel(kernel, bundle.kernel_text(kernel), read_images(bundle.module_path))]


@options_command("audit", AuditOptions)
@click.argument("bundle", metavar="BUNDLE", type=PATH)
def audit(bundle: Path, options: AuditOptions) -> None:
    """Say of each phase of the compiler how many ops of BUNDLE it still locates, and what became of those it lost.

    An op is located after a phase as long as something in the phase's output, the op or a part of it, carries its
    location. Each op is lost at most once: in the first phase without it.

    \b
    Example:
      tracemap audit model.tracemap
      tracemap audit model.tracemap --pass op12
      tracemap audit model.tracemap --fail-under 95 --format json
    """
    from tracemap.graph.audit import audit as audited
    from tracemap.graph.bundle import load
    from tracemap.reports.json.audit import shown_audit
    from tracemap.reports.terminal.audit import print_audit

    opened = load(bundle)
    graph = opened.graph
    for name in options.ops:
        if name not in graph.op_by_id:
            raise QueryInvalid(f"{name}: no op of {bundle}; `tracemap show {bundle}` lists them")
    found = audited(graph)
    if options.ops:
        from tracemap.mapping.compiler.passes import find_spots

        with phases_shown("audit") as progress:
            spots = find_spots(opened, [graph.op_by_id[name] for name in dict.fromkeys(options.ops)], progress)
        found = audited(graph, spots)
    failed = options.fail_under is not UNKNOWN and found.share_located() < options.fail_under
    text = partial(print_audit, graph, found, list_all=failed)
    show_as(options.format, sys.stdout, text, partial(shown_audit, graph, found))
    for name in options.ops:
        if not any(spot.op == name for spot in found.spots):
            click.echo(f"{name}: still located after the last phase", err=True)
    if failed:
        own = found.ops - len(found.without_location)
        raise AuditFailed(
            f"{bundle}: {own} of {found.ops} ops ({found.share_located():.1f} %) have a location of their own, "
            f"fewer than the {options.fail_under:g} % asked for; print the model with its locations"
        )


@options_command("lower", LowerOptions)
@click.argument("model", metavar="MODEL")
def lower(model: str, options: LowerOptions) -> None:
    """Run pass pipelines over MODEL (MLIR text or bytecode, `-`: standard input) and link its ops to the loops made.

    Of each resulting function the outermost loops (affine.for, scf.for, scf.forall, scf.parallel …) are linked to the
    ops that work in them: a fused loop to several, an op that was split to several loops. Pipelines run one after the
    other, and every stage is kept, so that an op can be followed from stage to stage.

    \b
    Example:
      tracemap lower model.mlir --pipeline 'builtin.module(func.func(convert-linalg-to-affine-loops))'
      tracemap lower model.mlir --pipeline 'builtin.module(func.func(convert-linalg-to-affine-loops))' \\
        --pipeline 'builtin.module(func.func(affine-loop-fusion))' --html loops.html
    """
    from tracemap.session import models

    with phases_shown("lower") as progress:
        lowering = models.lower(model, options, progress)
    if options.output is None:
        models.show_lowering(lowering, options, sys.stdout)
