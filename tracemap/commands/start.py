"""Entry point of the program. Until the command line handles signals, Ctrl-C ends it without a message."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from typing import Never


def main() -> None:
    """The `tracemap` program."""
    # Ignored signals stay ignored (nohup, a shell's `&`). Nothing exists yet that needs a cleanup.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from tracemap.commands.main import check_stack, expect_cpu_limit

    check_stack()
    expect_cpu_limit()
    from tracemap.commands.main import main as run

    try:
        run()
    except SystemExit as ended:
        # Preloaded libraries, such as tracemap's hook, may write data at a normal exit.
        if isinstance(ended.code, int) and "LD_PRELOAD" not in os.environ:
            _end_at_once(ended.code)
        raise


def _end_at_once(status: int) -> Never:
    """Exit without destroying the interpreter and all objects, which takes a tenth of a short command's time.

    All output has been written before this call.
    """
    atexit._run_exitfuncs()
    sys.stderr.flush()
    os._exit(status)
