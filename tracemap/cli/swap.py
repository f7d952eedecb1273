"""`tracemap swap`: replace kernels with edited ones."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tracemap.cli.options import PATH, options_command
from tracemap.cli.streams import show_phases, tell
from tracemap.errors import UsageInvalid
from tracemap.options.kernels import SwapOptions
from tracemap.outputs import use_utf8
from tracemap.units import listed


@options_command("swap", SwapOptions)
@click.argument("bundle", metavar="BUNDLE", type=PATH)
@click.argument("kernels", metavar="[KERNEL=FILE]...", nargs=-1)
def command(bundle: Path, kernels: tuple[str, ...], options: SwapOptions) -> None:
    """Replace kernels of BUNDLE with the contents of FILE, and report what changes.

    A FILE is an edited file from --dump: a kernel's source, its configuration (tiles, vectors, pipeline), or an object.
    tracemap verifies each replaced kernel of the new bundle against the original. It then records both bundles in
    alternation, and lists the ops whose cost changed. The exit status is 1 if a kernel computes different results.

    \b
    Example:
      tracemap swap model.tracemap main_dispatch_4 --dump source -o new.mlir
      tracemap swap model.tracemap main_dispatch_4=new.mlir -o new.tracemap
    """
    from tracemap.graph.bundle import load
    from tracemap.session.programs import skipped_functions
    from tracemap.session.swap import dump, has_failed, show_swap, swap

    if options.dump is not None:
        if len(kernels) != 1 or "=" in kernels[0]:
            raise UsageInvalid("--dump writes one kernel: name one kernel without =FILE")
        text = dump(load(bundle), kernels[0], options)
        if options.output is None:
            use_utf8(sys.stdout)
            sys.stdout.write(text)
        return
    original = load(bundle)
    with show_phases("swap") as progress:
        result = swap(original, _replacements(kernels), options, progress)
    show_swap(result, options, sys.stdout)
    called = [function.function for function in result.functions]
    if options.verify_application and (left_out := skipped_functions(original, options, called)):
        tell(f"not called, since they take inputs: {listed(left_out)}; select a function with --function")
    tell(f"bundle: {options.output}")
    if has_failed(result):
        sys.exit(1)


def _replacements(words: tuple[str, ...]) -> dict[str, Path]:
    files: dict[str, Path] = {}
    for name, file in map(_replacement, words):
        if name in files:
            raise UsageInvalid(f"{name}: is replaced twice; name one file for it")
        files[name] = file
    return files


def _replacement(word: str) -> tuple[str, Path]:
    name, equals, file = word.partition("=")
    if not equals or not file:
        raise UsageInvalid(f"{word}: write a replacement as KERNEL=FILE")
    return name, Path(file)
