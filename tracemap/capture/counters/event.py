"""An event of the kernel's perf interface, and how the hook counts it: per thread, in the measured program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MOST_EVENTS: Final = 16
"""How many the hook counts at a time."""

HARDWARE, SOFTWARE, HW_CACHE, RAW = 0, 1, 3, 4
_CLOCKS = frozenset({(SOFTWARE, 0), (SOFTWARE, 1)})
_KERNEL_MADE = frozenset({(SOFTWARE, 3), (SOFTWARE, 4)})


@dataclass(frozen=True, slots=True)
class Event:
    """An event and how it is counted.

    `mode` is how the hook reads it: `ring` (no system call; discrete software events), `rdpmc` (no system call; where
    the kernel lets programs read the counter), `group` (one read for all). `user_only`: the kernel's part is left out,
    since this user may not count it.
    """

    name: str
    type: int
    config: int
    config1: int = 0
    mode: str = "group"
    user_only: bool = False

    @property
    def setting(self) -> str:
        """The event as the hook's variable TRACEMAP_HOOK_EVENTS takes it."""
        mode = self.mode + ("+user" if self.user_only else "")
        return f"{self.name}|{self.type}|{self.config:x}|{self.config1:x}|{mode}"

    @property
    def unit(self) -> str:
        """`ns` for the two clocks, else `count`."""
        return "ns" if self.is_clock else "count"

    @property
    def is_clock(self) -> bool:
        """Whether it measures time."""
        return (self.type, self.config) in _CLOCKS

    @property
    def is_kernel_made(self) -> bool:
        """Context switches and migrations happen in the kernel: with exclude_kernel they would read 0, always."""
        return (self.type, self.config) in _KERNEL_MADE
