"""Limits of the shell that end a program without a word: found at start-up, and told in a sentence."""

from __future__ import annotations

import os
import resource
import signal
import sys
from typing import Final

ENOUGH_STACK: Final = 8 << 20
"""Bytes of stack that systems usually give; compilers and deep models need them."""
LEAST_STACK: Final = 512 << 10
"""With less a program may end in a segmentation fault."""
CPU_LIMIT: Final = "the limit of processor time is reached; raise it: `ulimit -t` shows it in seconds"


def check_stack() -> None:
    """Start again with a larger stack where the limit can be raised; end where what is allowed is too little.

    Threads get what the limit was when the program started, so to raise it is not enough.
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
            f"tracemap: error: the stack may have {allowed >> 10} kB, and {LEAST_STACK >> 10} kB are needed; raise the "
            "limit: `ulimit -s` shows it [system-limit]\n"
        )
        sys.exit(2)


def expect_cpu_limit() -> None:
    """Have SIGXCPU come before the system kills this process, or a compiler that it starts, without a word.

    The system kills at once where the soft limit is the hard one, as `ulimit -t` sets both.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    if hard != resource.RLIM_INFINITY and hard > 1 and (soft == resource.RLIM_INFINITY or soft >= hard):
        resource.setrlimit(resource.RLIMIT_CPU, (hard - 1, hard))


def is_cpu_limit(number: int) -> bool:
    """Whether a signal says that the processor time is used up."""
    return number == signal.SIGXCPU
