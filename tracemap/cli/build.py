"""`tracemap build`: compile a model into a bundle."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tracemap.cli.options import NAME, options_command
from tracemap.cli.streams import put, show_phases, tell, warn
from tracemap.errors import UsageInvalid
from tracemap.options.compile import BuildOptions

if TYPE_CHECKING:
    from tracemap.graph.bundle import Bundle


@options_command("build", BuildOptions)
@click.argument("model", required=False, type=NAME)
@click.pass_context
def command(context: click.Context, model: str | None, options: BuildOptions) -> None:
    """Compile MODEL into a bundle that traces its ops to dispatches and kernels.

    MODEL is MLIR text or bytecode in any dialect that iree-compile accepts; `-` reads it from standard input. Models of
    ONNX (MODEL.onnx) and programs saved by torch.export.save (MODEL.pt2) are imported first. Flags for iree-compile go
    after `--`.

    In a build system, put `tracemap build --` before the iree-compile command. The command does the same as before, and
    tracemap writes the bundle next to its output.

    --from-dumps reads the dumps of a compilation made elsewhere, and compiles nothing. That compilation must use
    --mlir-print-debuginfo and --dump-compilation-phases-to=DIR. The map says how well the ops' own locations
    distinguish them.

    \b
    Example:
      tracemap build model.mlir -o model.tracemap -- --iree-opt-level=O2
      tracemap build -- iree-compile model.mlir \\
        --iree-hal-target-device=local -o model.vmfb
      tracemap build --from-dumps dumps --module model.vmfb model.mlir
    """
    from tracemap.session.build import build

    if model or options.from_dumps is not None or options.module is not None:
        with show_phases("build") as progress:
            bundle = build(model or "", options, progress)
        _report(bundle)
    elif options.flags:
        _run_wrapped(context, options)
    else:
        raise UsageInvalid("name the MODEL to compile, or put an iree-compile command after a leading `--`")


def _run_wrapped(context: click.Context, options: BuildOptions) -> None:
    from tracemap.cli.wrapper import run_wrapped

    if context.get_parameter_source("device") is not click.core.ParameterSource.DEFAULT:
        raise UsageInvalid("--device has no effect on the command after `--`, which has its own target; leave it out")
    bundle = run_wrapped(options)
    if bundle is not None:
        _report(bundle, quiet=True)


def _report(bundle: Bundle, *, quiet: bool = False) -> None:
    """Print a summary of the bundle; `quiet`: not on standard output, which belongs to the wrapped command."""
    from tracemap.mapping.build import COMPILER_WARNED
    from tracemap.units import plural

    graph = bundle.graph
    with_members = sum(1 for site in graph.sites if site.members)
    dispatches = plural(len(graph.sites), "dispatch", "dispatches")
    counts = [plural(len(graph.ops), "op"), f"{dispatches} ({with_members} traced to ops)"]
    tell(", ".join([*counts, plural(len(graph.kernels), "kernel")]))
    # The wrapped command has already printed the compiler's warnings.
    warn(item for item in graph.diagnostics if not quiet or item.slug != COMPILER_WARNED)
    if bundle.has_remarks:
        warn(bundle.remarks().diagnostics)
    (tell if quiet else put)(str(bundle.path))
