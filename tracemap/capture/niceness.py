"""The niceness that a program is measured at: ahead of other programs, where the system lets it.

Beside others, what costs more is not only what waits for a processor: kernels that live by caches are slower in all of
their calls, which no statistic of the calls tells.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tracemap.errors import UsageInvalid
from tracemap.options.measure import LEAST_NICENESS
from tracemap.owned.children import end, start
from tracemap.units import UNKNOWN, Integer

AHEAD: Final = LEAST_NICENESS
"""87 times as much of a processor as a program of niceness 0 gets beside it (kernel/sched/core.c,
sched_prio_to_weight). At -10, nine times, shares of ops changed by up to twice as much beside others."""
_LEASH: Final = Path(__file__).with_name("leash.py")


def own_niceness() -> int:
    """What this process runs at."""
    return os.getpriority(os.PRIO_PROCESS, 0)


def niceness_to_run_at(asked: Integer) -> Integer:
    """What is asked for, else ahead of others, where the system allows it; unknown: what we run at ourselves.

    Whoever has started us at a niceness of their choice has decided, too.

    Raises:
        UsageInvalid: the system does not let this user run programs at the one that is asked for.
    """
    if asked is UNKNOWN:
        return AHEAD if own_niceness() == 0 and may_run_at(AHEAD) else UNKNOWN
    if not may_run_at(asked):
        raise UsageInvalid(
            f"--nice {asked}: this user may not run programs at that niceness, which root, the capability "
            "CAP_SYS_NICE or the limits RLIMIT_NICE and RLIMIT_RTPRIO allow; leave it out, or name a higher one"
        )
    return asked


def may_run_at(niceness: int) -> bool:
    """Whether the system lets this user run programs at a niceness and watch them; tried with one that does nothing."""
    if niceness < own_niceness() and not _may_be_first():
        return False
    child = start(leashed([], niceness), apart=False)  # the leader of a group cannot begin a session
    try:
        child.wait()
    finally:
        end(child)
    return child.returncode == 0


def leashed(command: Sequence[str], niceness: Integer) -> list[str]:
    """The command line of a program that dies with this process, and runs at a niceness; unknown: at our own."""
    said = "" if niceness is UNKNOWN else str(niceness)
    return [sys.executable, "-I", "-S", str(_LEASH), str(os.getpid()), said, *command]


@contextmanager
def first_to_run(niceness: Integer) -> Iterator[None]:
    """This thread, which starts and watches a program at a niceness, runs before it whenever it wants to.

    It wants some hundredths of a processor, and has to see when the program was measured enough: one that is ahead of
    others, and never waits, would leave it next to nothing, and go on.
    """
    if niceness is UNKNOWN or niceness >= own_niceness() or not _come_first():
        yield
        return
    try:
        yield
    finally:
        _come_with_others()


def _come_first() -> bool:
    """Have this thread, but nothing that it starts, scheduled as those of real time; False: the system does not let it.

    Where somebody else had this process scheduled in another way than usual, that stays.
    """
    if os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK != os.SCHED_OTHER:
        return False
    try:
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except OSError:
        return False
    return True


def _come_with_others() -> None:
    try:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    except PermissionError:  # without the capability, who has asked for a reset at forks keeps it (man 7 sched)
        os.sched_setscheduler(0, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, os.sched_param(0))


def _may_be_first() -> bool:
    if not _come_first():
        return False
    _come_with_others()
    return True
