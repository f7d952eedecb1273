"""When the program stopped its clock, as the hook saw it.

iree-benchmark-module stops its clock after each call of the function, writes the profile, and lets the clock go on.
Each time it reads the CPU time of its process, which the hook notes. The file has the moments in order, the first of
them when the clock began to go, and ends in zeros.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracemap.measurements.elapsed import Stops

if TYPE_CHECKING:
    import numpy.typing as npt


def read_stops(path: Path, begins_ns: npt.NDArray[Any], calls: int) -> Stops | None:
    """The stops of a program; None where there are none, or they are not what they should be.

    Args:
        path: the hook's file; it need not be there.
        begins_ns: when each call of the function began: each must lie in a piece of its own in which the clock went.
            None begins where nothing is done on a device.
        calls: how many there were, which must then be the pieces, but for the last, in which nothing is called.
    """
    import numpy as np

    if not path.is_file():
        return None
    with path.open("rb") as file:
        moments = np.fromfile(file, dtype=np.int64)
    moments = moments[: np.count_nonzero(moments)]
    places = np.searchsorted(moments, begins_ns, side="right")
    in_turn = bool(np.all(np.diff(moments) >= 0) and np.all(places % 2 == 1) and np.all(np.diff(places) == 2))
    if not in_turn or (not len(begins_ns) and len(moments) != 2 * (calls + 1)):
        return None
    first = int(places[0]) - 1 if len(places) else 0  # what is before it was not recorded
    going, stopped = moments[first::2], moments[first + 1 :: 2]
    return Stops(going[: len(stopped)], stopped)
