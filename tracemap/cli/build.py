"""`tracemap build`: compile a model and keep the trail."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tracemap.cli.progress import phases_shown
from tracemap.errors import ModelUnreadable, UsageInvalid


@click.command("build", context_settings={"ignore_unknown_options": False})
@click.argument("model")
@click.argument("flags", nargs=-1, type=click.UNPROCESSED, metavar="[-- IREE-COMPILE FLAGS]")
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
def command(
    model: str,
    flags: tuple[str, ...],
    output: Path | None,
    device: str,
    source_roots: tuple[Path, ...],
    no_sources: bool,
    force: bool,
) -> None:
    """Compile MODEL (MLIR text or bytecode, `-`: standard input) and keep the trail from its ops to sites and kernels.

    Any dialect that iree-compile takes; its flags go after `--`.

    \b
    Example:
      tracemap build model.mlir -o model.tracemap -- --iree-opt-level=O2
    """
    from tracemap.mapping.build import BuildRequest, build
    from tracemap.units import plural

    data, name = _read(model)
    target = output or _default_target(model)
    roots = (*source_roots, Path(model).parent) if model != "-" else source_roots
    request = BuildRequest(
        model=data,
        file_name=name,
        target=target,
        source_roots=roots,
        device=device,
        flags=flags,
        keep_sources=not no_sources,
        force=force,
    )
    with phases_shown("build") as progress:
        bundle = build(request, progress)
    graph = bundle.graph
    with_members = sum(1 for site in graph.sites if site.members)
    counts = [plural(len(graph.ops), "op"), f"{plural(len(graph.sites), 'site')} ({with_members} with members)"]
    click.echo(", ".join([*counts, plural(len(graph.kernels), "kernel")]), err=True)
    for diagnostic in graph.diagnostics:
        click.echo(f"tracemap: warning: {diagnostic.message} [{diagnostic.slug}]", err=True)
    click.echo(bundle.path)


def _read(model: str) -> tuple[bytes, str]:
    if model == "-":
        return sys.stdin.buffer.read(), "<stdin>"
    try:
        return Path(model).read_bytes(), Path(model).name
    except OSError as error:
        raise ModelUnreadable(f"{model}: cannot be read: {error.strerror}") from error


def _default_target(model: str) -> Path:
    if model == "-":
        raise UsageInvalid("a model from standard input needs a name for its bundle: pass -o")
    return Path(Path(model).stem + ".tracemap")
