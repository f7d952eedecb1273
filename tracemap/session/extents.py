"""How large what the kernels of a bundle are given is, where the program's arguments decide it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from tracemap.errors import TracemapError
from tracemap.options.call import CallOptions, FunctionOptions, call_of
from tracemap.session.programs import asks_for_call, functions_meant, program_of
from tracemap.units import UNKNOWN, Text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracemap.capture.sizes import Sizes
    from tracemap.graph.bundle import Bundle
    from tracemap.ir.numbers import Extent
    from tracemap.measurements.model import Run

_MADE_UP = 64
"""The extent of a dimension that nothing tells."""
_ASYNCHRONOUS = "$async"
"""How IREE calls the body of a function that has fences besides."""


def extents(bundle: Bundle, options: FunctionOptions, function: Text = UNKNOWN, said: Sequence[str] = ()) -> Extent:
    """The extents of arguments: those of the inputs that options give, else `--dim`, else those of a run.

    Args:
        bundle: whose functions they are of.
        options: what was asked for.
        function: that of the run.
        said: what the run says of its inputs; none where there is no run.

    Raises:
        FunctionUnknown, InputInvalid, UsageInvalid: as `capture.sizes.called_sizes` does.
        UsageInvalid: there is a size for every `?`, and no `?`.
    """
    from tracemap.capture.benchmark import BENCHMARK_TOOL
    from tracemap.capture.inputs import check_size
    from tracemap.capture.sizes import called_sizes, said_sizes

    check_size(functions_meant(bundle, options.function), options.dim)
    called, given = str(function), said_sizes(said)
    otherwise = options.dim if isinstance(options.dim, int) else _MADE_UP
    if isinstance(options.dim, int) or options.function not in (UNKNOWN, function):
        given = ()
    if asks_for_call(options):
        program = program_of(bundle, CallOptions(**call_of(options)))
        of_call, specs = called_sizes(program, options, BENCHMARK_TOOL)
        called, given = (of_call, specs) if specs else (called, given)

    def extent(name: str, argument: int, dimension: int) -> int:
        same = name.removesuffix(_ASYNCHRONOUS) == called
        return _known(given, argument, dimension, otherwise) if same else otherwise

    return extent


def numbers_of_kernels(bundle: Bundle, runs: Sequence[Run]) -> dict[str, tuple[int, ...]]:
    """The numbers that kernels were called with in the first of some runs, by site.

    Sites are left out at which only the run itself tells one of them, such as the counter of a loop; all are where the
    bundle does not tell.
    """
    from tracemap.experiments.cases import sites_of_dispatches
    from tracemap.ir.dispatches import read_dispatches
    from tracemap.ir.parsing import MlirParser

    header = runs[0].header
    with suppress(TracemapError):
        extent = extents(bundle, FunctionOptions(), header.function, header.inputs)
        dispatches = read_dispatches(MlirParser().parse(bundle.configured()), extent)
        sites = sites_of_dispatches(bundle.graph, dispatches)
        return {
            site.id: dispatch.constants
            for number, dispatch in enumerate(dispatches)
            for site in sites.get(number, ())
            if not dispatch.stood_in
        }
    return {}


def _known(given: Sequence[Sizes], argument: int, dimension: int, otherwise: int) -> int:
    sizes = given[argument] if argument < len(given) else UNKNOWN
    return sizes[dimension] if isinstance(sizes, tuple) and dimension < len(sizes) else otherwise
