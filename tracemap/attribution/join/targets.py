"""What an event can be joined to, and the numbers under which SQL knows it.

A *place* is where the host program hands work to the device: a site or a transfer, named by its id.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

# Numbers of events that have no target; those of targets count from 0.
UNMATCHED, TRANSFER, MEMORY, EXECUTE, OUTSIDE_KERNELS = -1, -2, -3, -4, -5


@dataclass(frozen=True, slots=True)
class Target:
    """The places that an event may be of: sites, or transfers; one where the join is exact."""

    places: tuple[str, ...]

    @property
    def exact(self) -> bool:
        """Whether the place is known."""
        return len(self.places) == 1


@dataclass(frozen=True, slots=True)
class Targets:
    """All targets of the runs, each under its number."""

    _numbers: dict[Target, int] = field(default_factory=dict)

    def number_of(self, target: Target) -> int:
        """The number of a target; a new one gets the next."""
        return self._numbers.setdefault(target, len(self._numbers))

    def __iter__(self) -> Iterator[Target]:
        """The targets in the order of their numbers: a dict keeps the order in which they were added."""
        return iter(self._numbers)
