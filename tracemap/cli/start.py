"""Where the program begins and ends: Ctrl-C ends it without a word until the command line itself can answer."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from typing import Never


def main() -> None:
    """The `tracemap` program."""
    # What is ignored stays so (nohup, a shell's `&`); nothing is made yet that would have to be cleared.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from tracemap.cli.shell_limits import check_stack, expect_cpu_limit

    check_stack()
    expect_cpu_limit()
    from tracemap.cli.main import main as run

    try:
        run()
    except SystemExit as ended:
        # What is preloaded may have something to write when the process ends as others do; our own hook has.
        if isinstance(ended.code, int) and "LD_PRELOAD" not in os.environ:
            _end_at_once(ended.code)
        raise


def _end_at_once(status: int) -> Never:
    """End without taking the interpreter and all objects apart, which takes as long as a tenth of a short command.

    All output has been written by now.
    """
    atexit._run_exitfuncs()
    sys.stderr.flush()
    os._exit(status)
