"""Niceness of the measured program: ahead of other programs, if the system allows it.

Next to other programs, waiting for a CPU is not the only cost. Kernels that depend on caches are slower in all of
their calls, which no statistic over the calls reveals.
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
"""At -20 a program gets 87 times as much CPU time as one at niceness 0 (kernel/sched/core.c, sched_prio_to_weight). At
-10 it gets nine times as much; there, shares of ops changed by up to twice as much next to others."""
_LEASH: Final = Path(__file__).with_name("leash.py")


def own_niceness() -> int:
    """Niceness of this process."""
    return os.getpriority(os.PRIO_PROCESS, 0)


def niceness_to_run_at(requested: Integer) -> Integer:
    """The requested niceness, else ahead of others if the system allows it; UNKNOWN: our own.

    If we were started at a niceness other than 0, that choice is kept.

    Raises:
        UsageInvalid: the system does not let this user run programs at the requested niceness.
    """
    if requested is UNKNOWN:
        return AHEAD if own_niceness() == 0 and may_run_at(AHEAD) else UNKNOWN
    if not may_run_at(requested):
        raise UsageInvalid(
            f"--nice {requested}: this user may not run programs at that niceness. It takes root, the capability "
            "CAP_SYS_NICE, or the limits RLIMIT_NICE and RLIMIT_RTPRIO. Drop --nice, or use a higher number"
        )
    return requested


def may_run_at(niceness: int) -> bool:
    """Whether this user may run programs at a niceness and watch them; tested with an empty program."""
    if niceness < own_niceness() and not _may_enter_real_time():
        return False
    child = start(exec_with_parent([], niceness), apart=False)  # a process group leader cannot start a session
    try:
        child.wait()
    finally:
        end(child)
    return child.returncode == 0


def exec_with_parent(command: Sequence[str], niceness: Integer) -> list[str]:
    """Command line of a program that dies with this process and has a niceness; UNKNOWN: our own."""
    niceness_text = "" if niceness is UNKNOWN else str(niceness)
    return [sys.executable, "-I", "-S", str(_LEASH), str(os.getpid()), niceness_text, *command]


@contextmanager
def real_time_priority(niceness: Integer) -> Iterator[None]:
    """Give this thread real-time priority over the program that it starts and watches.

    The watcher needs a few hundredths of a CPU to stop the program in time. A program with a low niceness that never
    waits would leave it almost nothing.
    """
    if niceness is UNKNOWN or niceness >= own_niceness() or not _enter_real_time():
        yield
        return
    try:
        yield
    finally:
        _leave_real_time()


def _enter_real_time() -> bool:
    """Give this thread, but not its children, real-time priority; False if the system refuses.

    A scheduling policy that someone else has set stays.
    """
    if os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK != os.SCHED_OTHER:
        return False
    try:
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except OSError:
        return False
    return True


def _leave_real_time() -> None:
    try:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    except PermissionError:  # without the capability, a thread cannot drop its reset-on-fork flag (man 7 sched)
        os.sched_setscheduler(0, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, os.sched_param(0))


def _may_enter_real_time() -> bool:
    if not _enter_real_time():
        return False
    _leave_real_time()
    return True
