"""Where the program begins: Ctrl-C ends it without a word until the command line itself can answer."""

from __future__ import annotations

import signal


def main() -> None:
    """The `tracemap` program."""
    # What is ignored stays so (nohup, a shell's `&`); nothing is made yet that would have to be cleared.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from tracemap.cli.main import main as run

    run()
