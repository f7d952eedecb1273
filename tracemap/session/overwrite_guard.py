"""Overwrite guard: reject outputs that would replace the command's own inputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from tracemap.inputs import names_file
from tracemap.outputs import check_files, check_unread, resolved_path


def check_targets(*targets: Path | None, force: bool, runs: Sequence[Path] = (), bundles: Sequence[Path] = ()) -> None:
    """Run `outputs.check_files` and `check_not_inputs`, for commands that know their bundles from the start.

    Raises:
        TargetExists, TargetUnwritable, UsageInvalid: see these functions.
    """
    check_not_inputs(*targets, runs=runs, bundles=bundles)
    check_files(*targets, force=force)


def check_not_inputs(*targets: Path | None, runs: Sequence[Path] = (), bundles: Sequence[Path] = ()) -> None:
    """Reject targets that would overwrite runs, their header files, or bundles; None: this output is not requested.

    Files in a bundle's `runs` folder are protected only if they are among `runs`.

    Raises:
        UsageInvalid: a target is one of these files, or a link to one.
    """
    requested = [target for target in targets if target is not None]
    if requested:
        files = [file for bundle in bundles for file in _targets_in_bundle(bundle, requested)]
        check_unread(requested, [*runs, *_headers(runs), *files])


def _headers(runs: Sequence[Path]) -> Iterator[Path]:
    """Header files next to runs. Other files with such a name are never read as headers."""
    from tracemap.measurements.runfile import header_path, is_header

    for run in runs:
        if names_file(run) and is_header(header_path(run)):
            yield header_path(run)


def _targets_in_bundle(bundle: Path, targets: Sequence[Path]) -> Iterator[Path]:
    """Targets that are files of a bundle. Checking the targets is faster than listing a large bundle."""
    from tracemap.graph.bundle import RUNS_FOLDER

    root, runs = resolved_path(bundle), resolved_path(bundle / RUNS_FOLDER)
    for target in targets:
        place = Path(resolved_path(target))
        if names_file(place) and place.is_relative_to(root) and not place.is_relative_to(runs):
            yield target
