"""Becomes the program given as arguments, in a way that it dies with whoever started it, however that one ends.

Run as a script, not imported: a function between fork and exec is not safe in a process with threads.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    parent, program = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        sys.exit(1)
    os.execv(program[0], program)
