"""`record`, interleaved recordings, and recordings within this process."""

from __future__ import annotations

import atexit
import importlib
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracemap.errors import FunctionUnknown, InputInvalid, RunEmpty, TargetUnwritable, ToolMissing, UsageInvalid
from tracemap.options.measure import RecordOptions
from tracemap.owned.home import temporary_folder
from tracemap.session.overwrite_guard import check_spared
from tracemap.session.programs import device_of, kept_of
from tracemap.session.runs import damage_named, whole_program
from tracemap.toolchain import Progress, check_runtime, no_progress

if TYPE_CHECKING:
    from tracemap.capture.cache_simulation import CacheSimulation
    from tracemap.capture.noise import Look
    from tracemap.capture.record import Recorded
    from tracemap.capture.reserving import Reservation
    from tracemap.diagnostics import Diagnostic
    from tracemap.graph.bundle import Bundle
    from tracemap.measurements.model import RunHeader


# ---- turns
#
# Bundles recorded in turn: what changes on the machine from one recording to the next changes all of them alike.


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
    from tracemap.session.programs import check_call
    from tracemap.session.runs import whole_program

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


# ---- record
#
# A bundle's module, run and measured, to a run.


def record(
    bundle: Bundle, options: RecordOptions, progress: Progress = no_progress, values: Sequence[object] = ()
) -> Recorded:
    """Run a bundle's module under the profiler; without an output the run gets the next free number in the bundle.

    `values`: inputs that no text can hold, such as arrays, one per argument; none: the options' inputs.

    Raises:
        UsageInvalid: it is to be recorded repeatedly, which `session.turns.record_repeatedly` does.
        BundleInvalid: the bundle's module is not the one that was built, or was replaced meanwhile.
        TracemapError: as `capture.record.record` does.
    """
    if options.repeat > 1 or options.alternate is not None:
        raise UsageInvalid("one run is recorded here: leave repeat and alternate to the command, or record in a loop")
    from tracemap.capture.plan import RecordRequest
    from tracemap.capture.record import record as record_request

    with (
        _reserved(bundle, options) as reservation,
        whole_program(bundle) as check,
        _caches(bundle, options, progress) as caches,
    ):
        request = RecordRequest(
            module=bundle.module_path,
            module_sha256=bundle.graph.module.sha256,
            bundle=str(bundle.path.resolve()),
            functions=bundle.graph.functions,
            output=reservation.output,
            options=options,
            reservation=reservation,
            device=device_of(bundle, options.runtime_flags),
            caches=caches,
            values=tuple(values),
            kept=kept_of(bundle),
            check=check,
        )
        return record_request(request, progress)


@contextmanager
def _caches(bundle: Bundle, options: RecordOptions, progress: Progress) -> Iterator[CacheSimulation | None]:
    """The bundle's kernels compiled for valgrind, as long as they are needed; None where no caches are simulated."""
    if not options.cache_sim:
        if options.cache_geometry:
            raise UsageInvalid("a geometry of caches is of use with a simulation only: pass --cache-sim too")
        yield None
        return
    from tracemap.capture.cache_simulation import CacheSimulation, find_valgrind
    from tracemap.capture.machine import geometry
    from tracemap.graph.query import kernel_frames
    from tracemap.machine.images import read_images
    from tracemap.machine.linked import linked_functions
    from tracemap.mapping.compiler.simulated import build_simulated

    caches, valgrind = geometry(options.cache_geometry), find_valgrind()
    with temporary_folder() as folder:
        progress("compiling for the simulator")
        flags = bundle.graph.module.flags
        with damage_named(bundle):
            module = build_simulated(bundle.configured(), flags, folder, fused=valgrind.runs_fused)
        lines_of = {kernel.name: kernel_frames(bundle.graph, kernel).op_lines for kernel in bundle.graph.kernels}
        load_time = any(site.initializer for site in bundle.graph.sites)
        own = {each.name for image in read_images(bundle.module_path) for each in linked_functions(image)}
        yield CacheSimulation(module.path, module.build, caches, lines_of, load_time, frozenset(own))


def _reserved(bundle: Bundle, options: RecordOptions) -> AbstractContextManager[Reservation]:
    """Where the run goes: the output that was asked for, or the next free number in the bundle."""
    from tracemap.capture.reserving import reserved, reserved_number
    from tracemap.measurements.runfile import files_of

    if options.output is not None:
        check_spared(*files_of(options.output), bundles=[bundle.path])
        return reserved(options.output, force=options.force, keep=options.keep_profile)
    return reserved_number(bundle.runs_path, keep=options.keep_profile)


# ---- recording
#
# Calls of a bundle's kernels in this very process: the hook is attached once, and a span of time is cut out.
#
# The hook records what `iree.runtime` loads after it is attached, for as long as the process runs; what begins and
# ends is only what is looked at.


class _Attached:
    """The hook in this process: its folder, once it is attached, which stays for as long as the process runs."""

    lock = threading.Lock()
    stays = ExitStack()
    folder: Path | None = None


atexit.register(_Attached.stays.close)


def attached() -> Path:
    """The folder of this process's calls; the hook is attached where it is not yet.

    Raises:
        ToolMissing: the hook's library or `iree.runtime` is not installed, or it cannot be hooked.
    """
    from tracemap.hook import HookUnavailable, attach

    check_runtime()
    importlib.import_module("iree.runtime")  # what is not there yet cannot be hooked
    with _Attached.lock:
        if _Attached.folder is None:
            folder = _Attached.stays.enter_context(temporary_folder())
            try:
                attach(folder)
            except HookUnavailable as error:
                raise ToolMissing(f"calls in this process cannot be recorded: {error}") from error
            _Attached.folder = folder
        return _Attached.folder


def look_here() -> Look:
    """What has happened to this process until now."""
    from tracemap.capture.noise import look

    return look(os.getpid())


def write_span(bundle: Bundle, begin: Look, end: Look, target: Path) -> int:
    """Write the executions of a bundle's kernels between two looks as a run; returns how many there are.

    A row is an execution: from the first call of its workgroups to the end of the last one, and the CPU time of all.

    Args:
        bundle: whose kernels are looked at.
        begin: what was seen before the first of the calls.
        end: what was seen behind the last one.
        target: Parquet, or CSV if it ends in `.csv`.

    Raises:
        RunEmpty: no kernel of the bundle was called.
        TargetExists, TargetUnwritable: the run cannot be written.
    """
    from tracemap.hook import moment
    from tracemap.measurements.hook.calls import load_calls
    from tracemap.measurements.hook.recording import read_recording
    from tracemap.measurements.runfile import check_target, write_run
    from tracemap.measurements.sql import open_database

    check_target(target, force=False)
    kernels = [kernel.name for kernel in bundle.graph.kernels]
    folder = attached()
    if not any(folder.iterdir()):
        raise RunEmpty(_NOTHING)
    with open_database() as connection:
        recording = read_recording(folder, {os.getpid(): moment()})
        calls = load_calls(recording, connection)
        calls.create_view("calls")
        connection.execute("CREATE TEMP TABLE wanted AS SELECT unnest(?) AS kernel", [kernels])
        connection.execute(_EXECUTIONS, {"begin": begin.time_ns, "end": end.time_ns})
        ((count,),) = connection.execute("SELECT count(*) FROM executions").fetchall()
        if not count:
            raise RunEmpty(_NOTHING)
        # That this very process has not come to its end is no loss.
        about = [each for each in recording.diagnostics if each.slug != "program-killed"]
        header = _header(bundle, begin, end, about)
        write_run(header, connection.table("executions"), target, force=False)
    return int(count)


def _header(bundle: Bundle, begin: Look, end: Look, about: Sequence[Diagnostic]) -> RunHeader:
    """What is known of this process and its machine; the hook sees kernels: neither whose they are, nor the calls."""
    from msgspec import structs

    from tracemap.capture.machine import geometry, line_bytes, measure_peaks, this_machine
    from tracemap.capture.noise import disturbed, observed, unseen
    from tracemap.capture.record import tools_used
    from tracemap.measurements.model import UNTOLD_HEADER, Clock

    disturbance = observed((begin, end), begin.time_ns, end.time_ns)
    found = disturbed(disturbance) or unseen(disturbance, end.time_ns - begin.time_ns)
    return structs.replace(
        UNTOLD_HEADER,
        bundle=str(bundle.path.resolve()),
        command=tuple(sys.orig_argv),
        clock=Clock.HOST,
        disturbance=disturbance,
        peaks=measure_peaks(),
        tools=tools_used(),
        diagnostics=(*about, *([] if found is None else [found])),
        line_bytes=line_bytes(geometry(()).caches),
        machine=this_machine(),
    )


_EXECUTIONS: Final = """
CREATE TEMP TABLE executions AS
SELECT 'dispatch' AS kind, kernel, min(start_ns) AS start_ns,
    max(start_ns + duration_ns) - min(start_ns) AS duration_ns, sum(duration_ns)::BIGINT AS cpu_ns,
    any_value(workgroups_x) AS workgroups_x, any_value(workgroups_y) AS workgroups_y,
    any_value(workgroups_z) AS workgroups_z
FROM calls JOIN (SELECT DISTINCT kernel FROM wanted) USING (kernel)
WHERE start_ns BETWEEN $begin AND $end
GROUP BY process, kernel, workgroups_x, workgroups_y, workgroups_z, call
ORDER BY start_ns, kernel
"""
_NOTHING: Final = (
    "no kernel of the bundle was called in this process; what is loaded before the first `tracemap.recording` is not "
    "seen: load the module inside of it"
)
