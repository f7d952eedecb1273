"""`tracemap build`: compile a model and keep the trail."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracemap.cli.progress import phases_shown
from tracemap.errors import UsageInvalid

if TYPE_CHECKING:
    from tracemap.graph.bundle import Bundle
    from tracemap.mapping.build import BuildRequest
    from tracemap.session import BuildOptions

_BEHIND_DASHES = "tracemap.cli.build.behind_dashes"


class BuildCommand(click.Command):
    """A command that keeps what stands behind the first `--` apart, whatever it is, and knows whether there is one."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Parse what stands before the first `--` only."""
        if "--" in args:
            place = args.index("--")
            context.meta[_BEHIND_DASHES] = tuple(args[place + 1 :])
            args = args[:place]
        return super().parse_args(context, args)

    def collect_usage_pieces(self, context: click.Context) -> list[str]:
        """The usage names what may stand behind the `--`."""
        return [*super().collect_usage_pieces(context), "[-- IREE-COMPILE FLAGS]"]


@click.command("build", cls=BuildCommand)
@click.argument("model", required=False, default="")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The bundle.  [default: MODEL's name .tracemap]")
@click.option(
    "--device",
    type=click.Choice(["local", "vulkan", "cuda", "hip"]),
    default="local",
    show_default=True,
    help="What to compile for, unless the flags after -- name a target.",
)
@click.option(
    "--source-root",
    "source_roots",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A folder below which Python files of frames are looked for, before MODEL's own.  [repeatable]",
)
@click.option("--no-sources", is_flag=True, help="Keep no source text in the bundle.")
@click.option("--force", is_flag=True, help="Replace a bundle that exists.")
@click.option(
    "--from-dumps",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Read the phase dumps of a compilation made elsewhere from this folder, instead of compiling.",
)
@click.option(
    "--module",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="With --from-dumps: the module that the compilation made.",
)
@click.option(
    "--library",
    metavar="PATTERN",
    multiple=True,
    help="Files (as a shell's pattern) whose frames come after the user's own.  [repeatable; default: site-packages …]",
)
@click.pass_context
def command(  # noqa: PLR0913 (one parameter for each option)
    context: click.Context,
    *,
    model: str,
    output: Path | None,
    device: str,
    source_roots: tuple[Path, ...],
    no_sources: bool,
    force: bool,
    from_dumps: Path | None,
    module: Path | None,
    library: tuple[str, ...],
) -> None:
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
    from tracemap.graph.model import LIBRARY
    from tracemap.session import BuildOptions, build, request_without_model

    behind: tuple[str, ...] | None = context.meta.get(_BEHIND_DASHES)
    options = BuildOptions(
        device, behind or (), source_roots, keep_sources=not no_sources, force=force, library=library or LIBRARY
    )
    if from_dumps is not None or module is not None:
        if from_dumps is None or module is None or behind:
            raise UsageInvalid("--from-dumps DIR and --module M.vmfb go together, and without flags for the compiler")
        _report(_from_dumps(from_dumps, module, model, output, options))
    elif model:
        with phases_shown("build") as progress:
            bundle = build(model, output, options, progress)
        _report(bundle)
    elif behind:
        _run_wrapped(context, behind, request_without_model(options), output)
    else:
        raise UsageInvalid("name the MODEL to compile, or put a command of iree-compile after a leading `--`")


def _run_wrapped(context: click.Context, words: tuple[str, ...], request: BuildRequest, output: Path | None) -> None:
    from tracemap.cli.wrapper import run_wrapped

    if context.get_parameter_source("device") is not click.core.ParameterSource.DEFAULT:
        raise UsageInvalid("--device: the command after the `--` says itself what it compiles for; leave it out")
    bundle = run_wrapped(words, request, output)
    if bundle is not None:
        _report(bundle, quiet=True)


def _from_dumps(folder: Path, module: Path, model: str, output: Path | None, options: BuildOptions) -> Bundle:
    from tracemap.mapping.from_dumps import DumpsRequest, build_from_dumps
    from tracemap.session import default_bundle, own_folder, read_model

    data, name = read_model(model) if model else (b"", "")
    request = DumpsRequest(
        folder=folder,
        module=module,
        target=output or default_bundle(model or str(module)),
        model=data,
        file_name=name,
        source_roots=(*options.source_roots, *own_folder(model or str(folder / "dump"))),
        keep_sources=options.keep_sources,
        force=options.force,
        library=options.library,
    )
    with phases_shown("build") as progress:
        return build_from_dumps(request, progress)


def _report(bundle: Bundle, *, quiet: bool = False) -> None:
    """Say what was found; `quiet`: standard output belongs to somebody else."""
    from tracemap.units import plural

    graph = bundle.graph
    with_members = sum(1 for site in graph.sites if site.members)
    counts = [plural(len(graph.ops), "op"), f"{plural(len(graph.sites), 'site')} ({with_members} with members)"]
    click.echo(", ".join([*counts, plural(len(graph.kernels), "kernel")]), err=True)
    for diagnostic in graph.diagnostics:
        click.echo(f"tracemap: warning: {diagnostic.message} [{diagnostic.slug}]", err=True)
    click.echo(bundle.path, err=quiet)
