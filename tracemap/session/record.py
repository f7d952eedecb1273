"""A bundle's module, run and measured, to a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from tracemap.errors import UsageInvalid
from tracemap.options.record import RecordOptions
from tracemap.owned.home import temporary_folder
from tracemap.session.damage import damage_named, whole_program
from tracemap.session.programs import device_of, kept_of
from tracemap.session.spared import check_spared
from tracemap.toolchain import Progress, no_progress

if TYPE_CHECKING:
    from tracemap.capture.record import Recorded
    from tracemap.capture.reserving import Reservation
    from tracemap.capture.simulating import CacheSimulation
    from tracemap.graph.bundle import Bundle


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
    from tracemap.capture.geometry import geometry
    from tracemap.capture.simulating import CacheSimulation, find_valgrind
    from tracemap.graph.frames import frames_of
    from tracemap.machine.images import read_images
    from tracemap.machine.linked import linked_functions
    from tracemap.mapping.compiler.simulated import build_simulated

    caches, valgrind = geometry(options.cache_geometry), find_valgrind()
    with temporary_folder() as folder:
        progress("compiling for the simulator")
        flags = bundle.graph.module.flags
        with damage_named(bundle):
            module = build_simulated(bundle.configured(), flags, folder, fused=valgrind.runs_fused)
        lines_of = {kernel.name: frames_of(bundle.graph, kernel).op_lines for kernel in bundle.graph.kernels}
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
