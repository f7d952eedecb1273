"""Whether the parser survives a text: tried in a process of its own.

Parsers and verifiers are written for texts that are right. On some that were edited or cut they use what is not theirs:
the count region of `flow.dispatch.workgroups`, for one, compares its results with as many types as it should have
(`zip_equal`, compiler/src/iree/compiler/Dialect/Flow/IR/FlowOps.cpp); where the text of a `linalg.generic` fails behind
its region, that is freed before what around it still points there (`GenericOp::parse`,
mlir/lib/Dialect/Linalg/IR/LinalgOps.cpp). That crashes, or spoils the heap, so that something else crashes later, or
never ends, and no exception tells of it. So a text from somebody else is parsed in a forked process first, and here
only where it was parsed well there.
"""

from __future__ import annotations

import math
import os
import resource
import signal
from collections.abc import Callable
from typing import Final

from tracemap.errors import ModelInvalid
from tracemap.forked import forked

_WELL: Final = b"+"


def check_parses_apart(parse: Callable[[], object], most_s: float) -> None:
    """Try a parse in a process of its own.

    Args:
        parse: the parse; it must do without threads that exist already, which the other process does not have.
        most_s: how long it may take.

    Raises:
        ModelInvalid: the text does not parse, with the parser's message; or the parser crashes, or does not end.
    """

    def tried() -> bytes:
        _limit_cpu_time(math.ceil(most_s))
        try:
            parse()
        except ModelInvalid as error:
            return str(error).encode(errors="surrogatepass")
        return _WELL

    with forked(tried) as child:
        try:
            told = child.told(most_s)
        except TimeoutError as error:
            raise ModelInvalid("the parser of IREE's compiler does not come to an end on it") from error
        status = child.end()
    if told != _WELL:
        raise ModelInvalid(told.decode(errors="replace") or _without_a_word(status))


def _limit_cpu_time(most_s: int) -> None:
    """Whoever is to end a parse that does not end may itself be ended before."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    if soft == resource.RLIM_INFINITY or most_s < soft:
        resource.setrlimit(resource.RLIMIT_CPU, (most_s, hard))


def _without_a_word(status: int) -> str:
    number = os.waitstatus_to_exitcode(status)
    how = signal.Signals(-number).name if number < 0 else f"status {number}"
    return f"the parser of IREE's compiler crashes on it ({how})"
