"""The niceness that a program is measured at: ahead of other programs, where the system lets it.

Beside others, what costs more is not only what waits for a processor: kernels that live by caches are slower in all of
their calls, which no statistic of the calls tells.
"""

from __future__ import annotations

import os
import sys
from typing import Final

from tracemap.errors import UsageInvalid
from tracemap.toolchain import run_tool
from tracemap.units import UNKNOWN, Integer

AHEAD: Final = -20
"""The niceness of a program that runs ahead of all others (man 7 sched)."""
_TRIAL = "import os, sys; os.setpriority(os.PRIO_PROCESS, 0, int(sys.argv[1]))"


def niceness_to_run_at(asked: Integer) -> Integer:
    """What is asked for, else ahead of others, where the system allows it; unknown: what we run at ourselves.

    Whoever has started us at a niceness of their choice has decided, too.

    Raises:
        UsageInvalid: the system does not let this user run programs at the one that is asked for.
    """
    if asked is UNKNOWN:
        return AHEAD if os.getpriority(os.PRIO_PROCESS, 0) == 0 and may_run_at(AHEAD) else UNKNOWN
    if not may_run_at(asked):
        raise UsageInvalid(
            f"--nice {asked}: this user may not run programs at that niceness, which root, the capability "
            "CAP_SYS_NICE or the limit RLIMIT_NICE allow; leave it out, or name a higher one"
        )
    return asked


def may_run_at(niceness: int) -> bool:
    """Whether the system lets this user run programs at a niceness; tried by a program that does nothing else."""
    return run_tool([sys.executable, "-I", "-S", "-c", _TRIAL, str(niceness)]).returncode == 0


def nice_words(niceness: Integer) -> tuple[str, ...]:
    """How a shell runs a program at a niceness (POSIX `nice`, which adds to its own); unknown: as it is."""
    return () if niceness is UNKNOWN else ("nice", "-n", str(niceness))
