"""When the program stopped its clock, as the hook saw it.

iree-benchmark-module stops its clock after each call of the function, writes the profile, and lets the clock go on.
Of an asynchronous function it calls a batch, and stops the clock before that too, while it makes the fences: its clock
goes for a moment more between two batches. Each time it reads the CPU time of its process, which the hook notes. The
file has the moments in order, the first of them when the clock began to go, and ends in zeros.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracemap.measurements.elapsed import Stops

if TYPE_CHECKING:
    import numpy.typing as npt


def read_stops(path: Path, begins_ns: npt.NDArray[Any], calls: int, pieces: int = 1) -> Stops | None:
    """The stops of a program; None where there are none, or they are not what they should be.

    Args:
        path: the hook's file; it need not be there.
        begins_ns: when each call, or batch of calls, began: each must lie in a piece of its own in which the clock
            went. None begins where nothing is done on a device.
        calls: how many there were, which must then be the pieces, but for the last, in which nothing is called.
        pieces: for each of them, in which the clock goes: 2 for an asynchronous function, which is called in the last.
    """
    import numpy as np

    if not path.is_file():
        return None
    with path.open("rb") as file:
        moments = np.fromfile(file, dtype=np.int64)
    moments = moments[: np.count_nonzero(moments)]
    places = np.searchsorted(moments, begins_ns, side="right")
    apart = 2 * pieces
    in_turn = bool(np.all(np.diff(moments) >= 0) and np.all(places % 2 == 1) and np.all(np.diff(places) == apart))
    if not in_turn or (not len(begins_ns) and len(moments) != apart * calls + 2):
        return None
    first = int(places[0]) - 1 if len(places) else apart - 2  # what is before it was not recorded
    going, stopped = moments[first::apart], moments[first + 1 :: apart]
    return Stops(going[: len(stopped)], stopped)
