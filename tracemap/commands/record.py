"""`tracemap record`: a bundle's module run under the profiler; also interleaved, or within this process."""

from __future__ import annotations

import atexit
import importlib
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tracemap.commands.framework import PATH, options_command
from tracemap.commands.programs import check_call, device_of, saved_inputs_of
from tracemap.commands.runs import check_damage_on_failure, check_not_inputs, located_launches, unchanged_module
from tracemap.commands.streams import print_diagnostics, print_message, print_next, print_result_line, show_phases
from tracemap.core.errors import FunctionUnknown, InputInvalid, RunEmpty, TargetUnwritable, ToolMissing, UsageInvalid
from tracemap.core.files import is_standard
from tracemap.core.process.temporary_files import temporary_folder
from tracemap.core.toolchain import Progress, check_runtime, no_progress
from tracemap.core.units import UNKNOWN
from tracemap.options.measure import RecordOptions

if TYPE_CHECKING:
    from tracemap.capture.cache_simulation import CacheSimulation
    from tracemap.capture.noise import Look
    from tracemap.capture.record import RecordedRun
    from tracemap.capture.run_names import Reservation
    from tracemap.core.diagnostics import Diagnostic
    from tracemap.map.bundle import Bundle
    from tracemap.runs.model import RunHeader


# ---- interleaved
#
# Interleaved recordings of several bundles, so that changes of the machine over time affect all of them alike.


def turns(rounds: int, sides: int) -> Iterator[tuple[int, int]]:
    """Round and side of interleaved recordings. Every second round is reversed, since the order may affect times."""
    for index in range(rounds):
        for side in range(sides)[:: -1 if index % 2 else 1]:
            yield index, side


def record_repeatedly(
    bundles: Sequence[Bundle], options: RecordOptions, progress: Progress = no_progress
) -> Iterator[RecordedRun]:
    """Record bundles `options.repeat` times in alternation. The runs of one bundle share one recording number.

    Raises:
        UsageInvalid: the options name an output, or a bundle is named twice.
        TargetUnwritable: the runs of a bundle cannot be written; checked before the first recording.
        TracemapError: see `commands.record.record`; with several bundles, calls are checked before the first recording.
    """
    from tracemap.capture.run_names import free_recording_names

    if options.output is not None:
        raise UsageInvalid(f"{options.output}: --repeat and --alternate write into the bundles; leave -o out")
    paths = [bundle.path.resolve() for bundle in bundles]
    if len(set(paths)) < len(paths):
        raise UsageInvalid(f"{bundles[0].path}: cannot alternate with itself; name another bundle with --alternate")
    if len(bundles) > 1:  # with one bundle, its first recording does the same check
        _check_callable(bundles, options)
    stems = [bundle.runs_path / next(free_recording_names(_list_runs(bundle.runs_path))) for bundle in bundles]
    width = len(str(options.repeat))
    for index, side in turns(options.repeat, len(bundles)):
        progress(f"recording {bundles[side].name}, {index + 1} of {options.repeat}")
        _list_runs(bundles[side].runs_path)  # creates the folder; another recording that failed may have removed it
        run = stems[side].with_name(f"{stems[side].name}-{index + 1:0{width}}.parquet")
        yield record(bundles[side], replace(options, output=run, repeat=1, alternate=None), progress)


def _check_callable(bundles: Sequence[Bundle], options: RecordOptions) -> None:
    """Reject bundles that cannot be called with these options, or whose module comes from another build."""
    for bundle in bundles:
        try:
            with unchanged_module(bundle):
                check_call(bundle, options)
        except (FunctionUnknown, InputInvalid, UsageInvalid) as error:
            raise type(error)(f"{bundle.path}: {error}") from error


def _list_runs(folder: Path) -> list[str]:
    """Names of the files in a folder of runs; creates the folder."""
    try:
        folder.mkdir(exist_ok=True)
        return [path.name for path in folder.iterdir()]
    except OSError as error:
        raise TargetUnwritable(
            f"{folder}: cannot be written ({error.strerror}), and --repeat and --alternate write there; make it "
            "writable, or record single runs with -o"
        ) from error


# ---- record
#
# Run a bundle's module, measure it, and write a run.


def record(
    bundle: Bundle, options: RecordOptions, progress: Progress = no_progress, values: Sequence[object] = ()
) -> RecordedRun:
    """Run a bundle's module under the profiler, and write a run.

    Args:
        bundle: the bundle.
        options: options of `tracemap record`. Without an output, the run gets the next free number in the bundle.
        progress: receives the phase of the work.
        values: inputs that are not text, such as arrays, one per argument; empty: the inputs in the options.

    Raises:
        UsageInvalid: the options ask for several runs, which `record_repeatedly` records.
        BundleInvalid: the bundle's module comes from another build, or was replaced meanwhile.
        TracemapError: see `capture.record.record`.
    """
    if options.repeat > 1 or options.alternate is not None:
        raise UsageInvalid(
            "repeat and alternate work in the command only, and the API records one run: leave them out, or call "
            "record in a loop"
        )
    if bundle.is_native:
        return _record_native(bundle, options, progress)
    from tracemap.capture.plan import RecordRequest
    from tracemap.capture.record import record as record_request

    with (
        _reserved(bundle, options) as reservation,
        unchanged_module(bundle) as check,
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
            kept=saved_inputs_of(bundle),
            locate=partial(located_launches, bundle.graph),
            check=check,
        )
        return record_request(request, progress)


def _record_native(bundle: Bundle, options: RecordOptions, progress: Progress) -> RecordedRun:
    from tracemap.capture.native import NativeCode, record_native

    graph = bundle.graph
    with _reserved(bundle, options) as reservation, unchanged_module(bundle) as check:
        code = NativeCode(
            library=bundle.module_path,
            sha256=graph.module.sha256,
            bundle=str(bundle.path.resolve()),
            functions=graph.functions,
            parts=bundle.native_code(),
        )
        return record_native(code, options, reservation, progress, check)


@contextmanager
def _caches(bundle: Bundle, options: RecordOptions, progress: Progress) -> Iterator[CacheSimulation | None]:
    """Compile the bundle's kernels for valgrind; yields None without `--cache-sim`."""
    if not options.cache_sim:
        if options.cache_geometry:
            raise UsageInvalid("--cache-geometry has no effect without a simulation: pass --cache-sim too")
        yield None
        return
    from tracemap.capture.cache_simulation import CacheSimulation, find_valgrind
    from tracemap.capture.machine import geometry
    from tracemap.machine.code_figures import linked_functions
    from tracemap.machine.images import read_images
    from tracemap.map.build.compiler.recompiled_kernels import build_simulated
    from tracemap.map.query import kernel_lines

    caches, valgrind = geometry(options.cache_geometry), find_valgrind()
    with temporary_folder() as folder:
        progress("compiling for the simulator")
        flags = bundle.graph.module.flags
        with check_damage_on_failure(bundle):
            module = build_simulated(bundle.configured(), flags, folder, fused=valgrind.runs_fused)
        lines_of = {kernel.name: kernel_lines(bundle.graph, kernel).op_lines for kernel in bundle.graph.kernels}
        load_time = any(site.initializer for site in bundle.graph.sites)
        own = {function.name for image in read_images(bundle.module_path) for function in linked_functions(image)}
        yield CacheSimulation(module.path, module.build, caches, lines_of, load_time, frozenset(own))


def _reserved(bundle: Bundle, options: RecordOptions) -> AbstractContextManager[Reservation]:
    """Reserve the run's path: the output in the options, or the next free number in the bundle."""
    from tracemap.capture.run_names import reserve_next_run, reserve_run
    from tracemap.runs.runfile import files_of

    if options.output is not None:
        check_not_inputs(*files_of(options.output), bundles=[bundle.path])
        return reserve_run(options.output, force=options.force, keep=options.keep_profile)
    return reserve_next_run(bundle.runs_path, keep=options.keep_profile)


# ---- recording
#
# Kernel calls in this process.
#
# The hook is attached once, and records modules that `iree.runtime` loads later, until the process ends. A recording
# is the time window between two moments.


class _AttachedHook:
    """The hook in this process, and its folder. Once attached, both stay until the process ends."""

    lock = threading.Lock()
    stays = ExitStack()
    folder: Path | None = None


atexit.register(_AttachedHook.stays.close)


def attach_hook() -> Path:
    """Attach the hook to this process, unless it is attached, and return the folder with its calls.

    Raises:
        ToolMissing: the hook's library or `iree.runtime` is not installed, or the hook cannot be attached.
    """
    from tracemap.hook import HookUnavailable, attach

    check_runtime()
    importlib.import_module("iree.runtime")  # the hook needs a loaded library
    with _AttachedHook.lock:
        if _AttachedHook.folder is None:
            folder = _AttachedHook.stays.enter_context(temporary_folder())
            try:
                attach(folder)
            except HookUnavailable as error:
                raise ToolMissing(f"cannot record calls in this process: {error}") from error
            _AttachedHook.folder = folder
        return _AttachedHook.folder


def take_snapshot() -> Look:
    """Snapshot of this process's time and noise counters."""
    from tracemap.capture.noise import take_snapshot

    return take_snapshot(os.getpid())


def write_recording(bundle: Bundle, begin: Look, end: Look, target: Path) -> int:
    """Write the calls of a bundle's kernels between two snapshots as a run; return their number.

    A row is one kernel call: its wall time from the first workgroup to the end of the last, and the CPU time of all.

    Args:
        bundle: the bundle whose kernels to include.
        begin: snapshot before the first call.
        end: snapshot after the last call.
        target: Parquet, or CSV if the name ends in `.csv`.

    Raises:
        RunEmpty: no kernel of the bundle was called.
        TargetExists, TargetUnwritable: the run cannot be written.
    """
    from tracemap.hook import current_ticks_and_ns
    from tracemap.runs.hook.calls import load_calls
    from tracemap.runs.hook.recording import read_recording
    from tracemap.runs.runfile import check_target, write_run
    from tracemap.runs.sql import open_database

    check_target(target, force=False)
    kernels = [kernel.name for kernel in bundle.graph.kernels]
    folder = attach_hook()
    if not any(folder.iterdir()):
        raise RunEmpty(_NO_CALLS)
    with open_database() as connection:
        recording = read_recording(folder, {os.getpid(): current_ticks_and_ns()})
        calls = load_calls(recording, connection)
        calls.create_view("calls")
        connection.execute("CREATE TEMP TABLE bundle_kernels AS SELECT unnest(?) AS kernel", [kernels])
        connection.execute(_EXECUTIONS, {"begin": begin.time_ns, "end": end.time_ns})
        ((count,),) = connection.execute("SELECT count(*) FROM executions").fetchall()
        if not count:
            raise RunEmpty(_NO_CALLS)
        # This process is still running, so the missing end of the recording is not an error.
        diagnostics = [item for item in recording.diagnostics if item.slug != "program-killed"]
        header = _header(bundle, begin, end, diagnostics)
        write_run(header, connection.table("executions"), target, force=False)
    return int(count)


def _header(bundle: Bundle, begin: Look, end: Look, diagnostics: Sequence[Diagnostic]) -> RunHeader:
    """Header with the process and its machine. The hook sees kernels only: no functions and no invocations."""
    from msgspec import structs

    from tracemap.capture.machine import geometry, line_bytes, machine_identity, measure_peaks
    from tracemap.capture.noise import noise_diagnostic, observed_noise, unknown_noise_diagnostic
    from tracemap.capture.record import tools_used
    from tracemap.runs.model import UNKNOWN_HEADER, Clock

    noise = observed_noise((begin, end), begin.time_ns, end.time_ns)
    warning = noise_diagnostic(noise) or unknown_noise_diagnostic(noise, end.time_ns - begin.time_ns)
    return structs.replace(
        UNKNOWN_HEADER,
        bundle=str(bundle.path.resolve()),
        command=tuple(sys.orig_argv),
        clock=Clock.HOST,
        noise=noise,
        peaks=measure_peaks(),
        tools=tools_used(),
        diagnostics=(*diagnostics, *([] if warning is None else [warning])),
        line_bytes=line_bytes(geometry(()).caches),
        machine=machine_identity(),
    )


_EXECUTIONS: Final = """
CREATE TEMP TABLE executions AS
SELECT 'dispatch' AS kind, kernel, min(start_ns) AS start_ns,
    max(start_ns + duration_ns) - min(start_ns) AS duration_ns, sum(duration_ns)::BIGINT AS cpu_ns,
    any_value(workgroups_x) AS workgroups_x, any_value(workgroups_y) AS workgroups_y,
    any_value(workgroups_z) AS workgroups_z
FROM calls JOIN (SELECT DISTINCT kernel FROM bundle_kernels) USING (kernel)
WHERE start_ns BETWEEN $begin AND $end
GROUP BY process, kernel, workgroups_x, workgroups_y, workgroups_z, call
ORDER BY start_ns, kernel
"""
_NO_CALLS: Final = (
    "no kernel of the bundle was called in this process; modules loaded before the first `tracemap.recording` are not "
    "recorded: load the module inside its `with` block"
)


# ---- command line


@options_command("record", RecordOptions)
@click.argument("bundle", type=PATH)
def command(bundle: Path, options: RecordOptions) -> None:
    """Run the module of BUNDLE under IREE's profiler until the median time is precise, and write a run.

    `record` first warms up until invocation times are steady. It then measures until the median is within --precision
    or, with --sample, until kernels have 2,000 samples. It stops after --seconds in any case. --iterations N measures
    exactly N invocations instead. Inputs that are not given are generated from the declared types: zeros for integers,
    small random numbers for floats. Flags after -- go to iree-benchmark-module. The path of the run is printed.

    Code without IREE (`tracemap build --to native`) is sampled. After -- comes a program that loads its library.

    \b
    Example:
      tracemap record model.tracemap --serial --iterations 50 -o run.csv
      tracemap record model.tracemap --function decode --dim 128
      tracemap record model.tracemap --counters page-faults,context-switches
      tracemap record model.tracemap --sample --seconds 10
      tracemap record model.tracemap --cache-sim --cache-geometry LL=8388608,16,64
      tracemap record old.tracemap --repeat 5 --alternate new.tracemap
      tracemap record model.tracemap --flagfile d.flags -- --device=local-sync
      tracemap record native.tracemap -- ./program arguments
    """
    from tracemap.map.bundle import load

    opened = load(bundle)
    if options.repeat > 1 or options.alternate is not None:
        bundles = [opened] if options.alternate is None else [opened, load(options.alternate)]
        with show_phases("record") as progress:
            for recorded in record_repeatedly(bundles, options, progress):
                _tell(recorded)
        return
    with show_phases("record") as progress:
        recorded = record(opened, options, progress)
    _tell(recorded)


def _tell(recorded: RecordedRun) -> None:
    from tracemap.core.units import format_ns, plural
    from tracemap.reports.advice import device_comparison_text

    header = recorded.header
    iterations = plural(header.iterations, "iteration") if isinstance(header.iterations, int) else "iterations unknown"
    elapsed, events = format_ns(header.elapsed_ns), plural(recorded.events, "event")
    if header.function is UNKNOWN:  # a program that was given
        print_message(f"{' '.join(header.command)}: {events}")
    else:
        print_message(f"{header.function}: {iterations} in {elapsed}, {events}")
    profile = "" if recorded.profile is None else f"IREE's profile is kept: {recorded.profile}"
    for line in filter(None, (recorded.enough, device_comparison_text(header.devices), profile)):
        print_message(line)
    print_diagnostics(header.diagnostics)
    if not is_standard(recorded.path):
        print_result_line(str(recorded.path))
        print_next("attribute", recorded.path)
