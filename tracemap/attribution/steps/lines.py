"""What was seen in a kernel, brought to lines of ops, and from these to the members of a site."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from tracemap.attribution.scan.step_rows import NO_ADDRESS, StepRow
from tracemap.attribution.steps.kernel import NOBODY, UNKNOWN_LOOP, KernelSteps, Spot
from tracemap.graph.program import Site
from tracemap.machine.code import OUTSIDE
from tracemap.units import split_by_largest_remainder

Lines = Counter[int]
"""What was seen, by line of the kernel's text."""


def in_loops(steps: KernelSteps, rows: Sequence[StepRow], metric: int) -> Mapping[int, Lines]:
    """What was seen of a metric at lines of ops, by their innermost loop; of all sites, which run the same code."""
    found: dict[int, Lines] = defaultdict(Counter)
    for row in rows:
        if row.step in steps.owned and row.address != NO_ADDRESS:
            found[steps.loop_of(row.address)][row.step] += row.values[metric]
    return found


def lines_of_ops(steps: KernelSteps, seen: Counter[Spot], by_loop: Mapping[int, Lines]) -> Lines:
    """What was seen at one site, by lines that are of ops; code of none goes to the lines around it."""
    lines: Lines = Counter()
    homeless: Counter[int] = Counter()
    for (line, loop), value in seen.items():
        if line in steps.owned:
            lines[line] += value
        elif loop == UNKNOWN_LOOP:
            lines[steps.around(line)] += value
        else:
            homeless[loop] += value
    for loop, value in sorted(homeless.items()):
        lines.update(_shared(steps, loop, value, by_loop))
    return lines


def _shared(steps: KernelSteps, loop: int, value: int, by_loop: Mapping[int, Lines]) -> Lines:
    """What code of no op in a loop has seen, given to the lines of ops in it."""
    if loop == OUTSIDE:
        return Counter({NOBODY: value})
    seen: Lines = Counter()
    for inner, inside in by_loop.items():
        if steps.is_inside(inner, loop):
            seen.update(inside)
    if not seen.total():  # nothing was seen of any of them: by the number of their instructions
        seen = Counter({line: count for line, count in steps.loops[loop].lines.items() if line in steps.owned})
    lines = sorted(seen)
    return Counter(dict(zip(lines, split_by_largest_remainder(value, [seen[line] for line in lines]), strict=True)))


def spread_evenly(seen: Counter[Spot], weights: Sequence[int]) -> list[Counter[Spot]]:
    """Split what was seen at spots over sites, so that each site has its part of the sum, and of each spot.

    Both are exact. Splitting each spot by itself would not do: where one sample was seen at each of many spots, all
    would go to the first site.
    """
    left = split_by_largest_remainder(seen.total(), weights)
    parts: list[Counter[Spot]] = [Counter() for _ in weights]
    for spot in sorted(seen):
        shares = split_by_largest_remainder(seen[spot], left)
        for number, share in enumerate(shares):
            if share:
                parts[number][spot] = share
                left[number] -= share
    return parts


def of_members(steps: KernelSteps, lines: Lines, site: Site) -> list[int]:
    """What was seen of each member of a site, and of nobody after them; a line of several gives each the same."""
    together: Counter[tuple[int, ...]] = Counter()
    for line, part in lines.items():
        together[steps.members_at(line, site)] += part
    # Lines of the same members are split as one: split one by one, all that is left over would go to the first member.
    values = [0] * (len(site.members) + 1)
    for members, part in sorted(together.items()):
        owners = members or (-1,)
        for owner, share in zip(owners, split_by_largest_remainder(part, [1] * len(owners)), strict=True):
            values[owner] += share
    return values
