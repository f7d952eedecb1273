"""Becomes the program given as arguments, in a way that it dies with whoever started it, however that one ends.

Before it come the number of the process that starts it, and the niceness that it runs at; empty: that one's. Without a
program it only tries that. Where the kernel groups programs by session, their niceness counts among those of theirs
alone (man 7 sched, autogroup), so that one with a niceness has a session of its own, of the same niceness.

Run as a script, not imported: a function between fork and exec is not safe in a process with threads.
"""

import ctypes
import os
import signal
import sys
import time

_PR_SET_PDEATHSIG = 1
_GROUPS = "/proc/sys/kernel/sched_autogroup_enabled"
_TRIES, _BETWEEN_S = 40, 0.05


def run_at(niceness: int) -> None:
    """Change the niceness of this process, and of its session among others where the kernel has such."""
    os.setpriority(os.PRIO_PROCESS, 0, niceness)
    if groups_by_session():
        os.setsid()
        group = os.open("/proc/self/autogroup", os.O_WRONLY | os.O_CLOEXEC)
        for left in reversed(range(_TRIES)):
            try:
                os.write(group, str(niceness).encode())
                break
            except BlockingIOError:  # without CAP_SYS_ADMIN, one in a tenth of a second on the whole system
                if not left:
                    raise
                time.sleep(_BETWEEN_S)


def groups_by_session() -> bool:
    """Whether the kernel does."""
    try:
        with open(_GROUPS, encoding="ascii") as setting:  # noqa: PTH123 - pathlib takes longer to import than all of this
            return setting.read().strip() == "1"
    except OSError:
        return False


if __name__ == "__main__":
    parent, said, program = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        sys.exit(1)
    if said:
        run_at(int(said))
    if program:
        os.execv(program[0], program)
