"""Metrics of the program next to those of a run, for `attribute`, `report` and `export`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from tracemap.commands.runs import BundleAttribution
from tracemap.core.errors import UsageInvalid

if TYPE_CHECKING:
    from tracemap.map.build_cost import BuildCost
    from tracemap.map.memory_use import MemoryUse


def with_metrics_of_program(attributed: BundleAttribution, names: Sequence[str]) -> BundleAttribution:
    """The attribution with those of the named metrics that are of the program.

    Raises:
        BundleInvalid: the bundle does not have its memory.
        ModuleInvalid: its module is damaged.
        UsageInvalid: the runs called several functions, sizes depend on dimensions that they do not say, or the bundle
            was built without `--timing`.
    """
    from tracemap.attribution.program_metrics import (
        COMPILE_TIME,
        LIVE_BYTES,
        PROGRAM_METRICS,
        Program,
        with_program_metrics,
    )

    chosen = [name for name in dict.fromkeys(names) if name in PROGRAM_METRICS]
    if not chosen:
        return attributed
    bundle, attribution = attributed.bundle, attributed.attribution

    def memory() -> MemoryUse:
        from tracemap.commands.memory import planned
        from tracemap.options.compile import MemoryOptions

        function, functions = attribution.run.function, bundle.graph.functions
        if not isinstance(function, str):
            if len(functions) != 1:
                raise UsageInvalid(f"--metric {LIVE_BYTES} needs runs of one function, whose name they say")
            function = functions[0].name
        ((use, _),) = planned(bundle, MemoryOptions(function=function, inputs=attribution.run.inputs, top=0))
        return use

    @cache
    def cost() -> BuildCost:
        from tracemap.map.build_cost import build_cost

        if COMPILE_TIME in chosen and bundle.timing() is None:
            raise UsageInvalid(f"--metric {COMPILE_TIME}: build the bundle with `tracemap build --timing`")
        return build_cost(bundle)

    program = Program(bundle.graph, memory, cost)
    return BundleAttribution(bundle, with_program_metrics(attribution, program, chosen))
