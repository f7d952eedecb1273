"""Limits of the shell that would end the program without a message: checked at start-up and reported."""

from __future__ import annotations

import os
import resource
import signal
import sys
from typing import Final

ENOUGH_STACK: Final = 8 << 20
"""Usual stack limit in bytes, which compilers and deep models need."""
LEAST_STACK: Final = 512 << 10
"""Minimum stack in bytes; with less, a program may end with a segmentation fault."""
CPU_LIMIT: Final = "the limit of CPU time is reached; raise it: `ulimit -t` shows it in seconds"


def check_stack() -> None:
    """Restart with a larger stack if the limit can be raised; exit if the allowed stack is too small.

    The restart is needed because threads get the stack limit of the program's start.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    if soft == resource.RLIM_INFINITY or soft >= ENOUGH_STACK:
        return
    allowed = ENOUGH_STACK if hard == resource.RLIM_INFINITY else min(hard, ENOUGH_STACK)
    if allowed > soft:
        resource.setrlimit(resource.RLIMIT_STACK, (allowed, hard))
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    if allowed < LEAST_STACK:
        sys.stderr.write(
            f"tracemap: error: the stack is limited to {allowed >> 10} kB, and {LEAST_STACK >> 10} kB are needed; "
            "raise the limit: `ulimit -s` shows it [system-limit]\n"
        )
        sys.exit(2)


def expect_cpu_limit() -> None:
    """Lower the soft CPU limit, so that SIGXCPU arrives before the system kills this process or its compiler.

    If soft and hard limit are equal, as `ulimit -t` sets them, the system kills without a signal to handle.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    if hard != resource.RLIM_INFINITY and hard > 1 and (soft == resource.RLIM_INFINITY or soft >= hard):
        resource.setrlimit(resource.RLIMIT_CPU, (hard - 1, hard))


def is_cpu_limit(number: int) -> bool:
    """Whether a signal reports that the CPU time limit is reached."""
    return number == signal.SIGXCPU
