"""Becomes the program given as arguments, in a way that it dies with whoever started it, however that one ends.

Before it come the number of the process that starts it, and the niceness that it runs at; empty: that one's. Where the
kernel groups programs by session, their niceness counts among those of theirs alone (man 7 sched, autogroup), so that
one with a niceness has a session of its own, of the same niceness.

Run as a script, not imported: a function between fork and exec is not safe in a process with threads.
"""

import contextlib
import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def run_at(niceness: int) -> None:
    """Change the niceness of this process, and of its session among others where the kernel has such."""
    os.setsid()
    os.setpriority(os.PRIO_PROCESS, 0, niceness)
    with contextlib.suppress(OSError):
        os.write(os.open("/proc/self/autogroup", os.O_WRONLY | os.O_CLOEXEC), str(niceness).encode())


if __name__ == "__main__":
    parent, niceness, program = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        sys.exit(1)
    if niceness:
        run_at(int(niceness))
    os.execv(program[0], program)
