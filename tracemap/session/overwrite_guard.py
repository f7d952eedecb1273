"""Overwrite guard: no output replaces what its command reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from tracemap.inputs import names_file
from tracemap.outputs import check_files, check_unread, place_of


def check_targets(*targets: Path | None, force: bool, runs: Sequence[Path] = (), bundles: Sequence[Path] = ()) -> None:
    """`outputs.check_files` and `check_spared`, of commands that know from the beginning which bundles they read.

    Raises:
        TargetExists, TargetUnwritable, UsageInvalid: as these do.
    """
    check_spared(*targets, runs=runs, bundles=bundles)
    check_files(*targets, force=force)


def check_spared(*targets: Path | None, runs: Sequence[Path] = (), bundles: Sequence[Path] = ()) -> None:
    """Refuse to write over runs, headers beside them, or bundles; None: this target is not wanted.

    What lies in a bundle's folder of runs is read only where it is one of `runs`.

    Raises:
        UsageInvalid: a target is one of their files, or a link to one.
    """
    wanted = [target for target in targets if target is not None]
    if wanted:
        files = [file for bundle in bundles for file in _of_bundle(bundle, wanted)]
        check_unread(wanted, [*runs, *_headers(runs), *files])


def _headers(runs: Sequence[Path]) -> Iterator[Path]:
    """The headers that lie beside runs; what else has such a name is not read, or refused where it is."""
    from tracemap.measurements.runfile import header_path, is_header

    for run in runs:
        if names_file(run) and is_header(header_path(run)):
            yield header_path(run)


def _of_bundle(bundle: Path, targets: Sequence[Path]) -> Iterator[Path]:
    """The targets that are files of a bundle; to look for all of its files would take longer the more there are."""
    from tracemap.graph.bundle import RUNS_FOLDER

    root, runs = place_of(bundle), place_of(bundle / RUNS_FOLDER)
    for target in targets:
        place = Path(place_of(target))
        if names_file(place) and place.is_relative_to(root) and not place.is_relative_to(runs):
            yield target
