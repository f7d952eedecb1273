"""Becomes the program given as arguments, in a way that it dies with whoever started it, however that one ends.

Before it come the number of the process that starts it, and the niceness that it runs at; empty: that one's.

Run as a script, not imported: a function between fork and exec is not safe in a process with threads.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    parent, niceness, program = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        sys.exit(1)
    if niceness:
        os.setpriority(os.PRIO_PROCESS, 0, int(niceness))
    os.execv(program[0], program)
