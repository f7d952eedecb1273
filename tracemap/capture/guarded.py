"""What instructions read and write under a mask, where callgrind counts it for what it is not.

Callgrind (seen with 3.19) makes no room for such accesses among an instruction's counts (`addEvent_D_guarded` in its
`main.c`), so they fall into those of the instruction behind it, element by element: the access counts as an execution
of that one, and its miss as a miss of the instruction's own code. Vectors of sizes that are not known before are read
and written like this, and so are gathers; left as it is, a third of the instructions of such a loop never ran, and its
misses of data are none.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

from tracemap.errors import ModuleInvalid
from tracemap.machine.code import Instruction, instructions_of
from tracemap.machine.images import CodeFunction, Image
from tracemap.measurements.callgrind import CallgrindCounts

_GUARDED: Final = re.compile(r"vp?(maskmov|gather)")
_FETCHED: Final = ("Ir", "I1mr", "ILmr")
_READ: Final = ("Dr", "D1mr", "DLmr")
_WRITTEN: Final = ("Dw", "D1mw", "DLmw")

Costs = dict[int, tuple[int, ...]]
"""By address, in the order of the events."""


def set_right(counts: CallgrindCounts, images: Mapping[str, Image], kernels: Collection[str]) -> CallgrindCounts:
    """The counts with accesses under a mask where they belong.

    Args:
        counts: of the objects `images`, of all events.
        images: the executables by the names that the counts call them.
        kernels: the names of the functions that are looked at.
    """
    by_image: dict[str, Costs] = {}
    for (name, address), values in counts.costs.items():
        by_image.setdefault(name, {})[address] = values
    changed: dict[tuple[str, int], tuple[int, ...]] = {}
    for name, costs in by_image.items():
        for function in images[name].functions:
            if function.name in kernels and any(function.low <= address < function.high for address in costs):
                found = guarded_apart(_code(images[name], function), costs, counts.events)
                changed |= {(name, address): values for address, values in found.items()}
    fetched = counts.events.index(_FETCHED[0])
    more = sum(values[fetched] - counts.costs[key][fetched] for key, values in changed.items())
    totals = tuple(total + more * (event == fetched) for event, total in enumerate(counts.totals))
    return replace(counts, totals=totals, costs={**counts.costs, **changed})


def _code(image: Image, function: CodeFunction) -> Sequence[Instruction]:
    """The instructions of a function; none where its code cannot be read."""
    try:
        return instructions_of(image, function)
    except ModuleInvalid:
        return ()


def guarded_apart(
    instructions: Sequence[Instruction], costs: Mapping[int, tuple[int, ...]], events: Sequence[str]
) -> Costs:
    """The costs of instructions that differ from `costs`, with accesses under a mask at those that make them.

    What is taken from the instruction behind is what that seems to have run more often than the one before it, and all
    of its misses; where it can be reached otherwise, nothing tells. One instruction counts as one access, as it does
    without a mask, a gather as one for each element.

    Args:
        instructions: of a function, by address.
        costs: by address; those of others are left out.
        events: what is counted, all that `Ir` to `DLmw` names among it.
    """
    reached = {target for each in instructions for target in each.targets}
    fetched = [events.index(name) for name in _FETCHED]
    found: Costs = {}
    for one, behind in pairwise(instructions):
        own = found.get(one.address, costs.get(one.address))
        next_one = costs.get(behind.address)
        if _GUARDED.match(one.mnemonic) is None or own is None or next_one is None or behind.address in reached:
            continue
        elements = next_one[fetched[0]] - own[fetched[0]]
        if elements > 0:
            misses = [min(next_one[event], elements) for event in fetched[1:]]
            accesses = elements if "gather" in one.mnemonic else min(elements, own[fetched[0]])
            names = _WRITTEN if one.values.stores else _READ
            found[one.address] = _changed(own, zip(map(events.index, names), (accesses, *misses), strict=True))
            found[behind.address] = _changed(
                next_one, zip(fetched, (-elements, *(-each for each in misses)), strict=True)
            )
    return found


def _changed(costs: tuple[int, ...], by: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    changed = list(costs)
    for event, amount in by:
        changed[event] += amount
    return tuple(changed)
