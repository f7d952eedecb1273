"""exec() wrapper: the child is killed when its parent dies (PR_SET_PDEATHSIG).

Arguments: the parent's process id, the niceness (empty: the parent's), and the program. Without a program, it only
tries the niceness. If the kernel groups processes by session (man 7 sched, autogroup), a niceness counts only within
the session. So a program with a niceness gets its own session, of the same niceness.

Run as a script, not imported: code between fork and exec is not safe in a process with threads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

_PR_SET_PDEATHSIG = 1
_GROUPS = "/proc/sys/kernel/sched_autogroup_enabled"
_TRIES, _PAUSE_S = 40, 0.05


def run_at(niceness: int) -> None:
    """Set the niceness of this process, and of its session if the kernel groups by session."""
    os.setpriority(os.PRIO_PROCESS, 0, niceness)
    if groups_by_session():
        os.setsid()
        group = os.open("/proc/self/autogroup", os.O_WRONLY | os.O_CLOEXEC)
        for tries_left in reversed(range(_TRIES)):
            try:
                os.write(group, str(niceness).encode())
                break
            except BlockingIOError:  # without CAP_SYS_ADMIN, the whole system may change one per 0.1 s
                if not tries_left:
                    raise
                time.sleep(_PAUSE_S)


def groups_by_session() -> bool:
    """Whether the kernel groups processes by session."""
    try:
        with open(_GROUPS, encoding="ascii") as setting:  # noqa: PTH123 - pathlib takes longer to import than all of this
            return setting.read().strip() == "1"
    except OSError:
        return False


if __name__ == "__main__":
    parent, niceness, program = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before the line above
        sys.exit(1)
    if niceness:
        run_at(int(niceness))
    if program:
        os.execv(program[0], program)
