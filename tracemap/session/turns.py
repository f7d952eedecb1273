"""Bundles recorded in turn: what changes on the machine from one recording to the next changes all of them alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tracemap.errors import FunctionUnknown, InputInvalid, TargetUnwritable, UsageInvalid
from tracemap.options.record import RecordOptions
from tracemap.toolchain import Progress, no_progress

if TYPE_CHECKING:
    from tracemap.capture.record import Recorded
    from tracemap.graph.bundle import Bundle


def turns(rounds: int, sides: int) -> Iterator[tuple[int, int]]:
    """The rounds, and in each all sides; every other round backwards: what comes second may be slower for that."""
    for number in range(rounds):
        for side in range(sides)[:: -1 if number % 2 else 1]:
            yield number, side


def record_repeatedly(
    bundles: Sequence[Bundle], options: RecordOptions, progress: Progress = no_progress
) -> Iterator[Recorded]:
    """Record bundles `options.repeat` times in turn, each into its own runs, under one number for each bundle.

    Raises:
        UsageInvalid: the runs are to go elsewhere; a bundle is named twice.
        TargetUnwritable: the runs of a bundle cannot be written, which is found out before anything is recorded.
        TracemapError: as `session.record.record` does; what forbids to call one of several is found out before, too.
    """
    from tracemap.session.record import record

    if options.output is not None:
        raise UsageInvalid(f"{options.output}: --repeat and --alternate write into the bundles; leave -o out")
    places = [bundle.path.resolve() for bundle in bundles]
    if len(set(places)) < len(places):
        raise UsageInvalid(f"{bundles[0].path}: is recorded in turn with itself; name another bundle with --alternate")
    if len(bundles) > 1:  # of a single one it is found out by its first recording
        _check_callable(bundles, options)
    stems = [_free(bundle.runs_path) for bundle in bundles]
    width = len(str(options.repeat))
    for number, side in turns(options.repeat, len(bundles)):
        progress(f"recording {bundles[side].name}, {number + 1} of {options.repeat}")
        _names_in(bundles[side].runs_path)  # another recording may have removed it, when that was its only one
        run = stems[side].with_name(f"{stems[side].name}-{number + 1:0{width}}.parquet")
        yield record(bundles[side], replace(options, output=run, repeat=1, alternate=None), progress)


def _check_callable(bundles: Sequence[Bundle], options: RecordOptions) -> None:
    """Refuse bundles that cannot be called as the options say, or whose module is not that of the build."""
    from tracemap.session.damage import whole_program
    from tracemap.session.programs import check_call

    for bundle in bundles:
        try:
            with whole_program(bundle):
                check_call(bundle, options)
        except (FunctionUnknown, InputInvalid, UsageInvalid) as error:
            raise type(error)(f"{bundle.path}: {error}") from error


def _free(folder: Path) -> Path:
    """The next number in a folder of runs that none begins with."""
    from tracemap.capture.reserving import free_recordings

    return folder / next(free_recordings(_names_in(folder)))


def _names_in(folder: Path) -> list[str]:
    """What lies in a folder of runs, which is made."""
    try:
        folder.mkdir(exist_ok=True)
        return [path.name for path in folder.iterdir()]
    except OSError as error:
        raise TargetUnwritable(
            f"{folder}: cannot be written ({error.strerror}); repeated runs go there, a single one where -o says"
        ) from error
