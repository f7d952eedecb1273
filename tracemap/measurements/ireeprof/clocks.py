"""The clock of a device's driver brought to the host's, by records that hold both at one moment.

The driver's clock is read between two readings of the host's: the difference of both lies between two bounds. Where one
difference lies within the bounds of all records, the clocks go at one rate, and it is known better than by any of them;
else it is interpolated from record to record.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tracemap.diagnostics import Diagnostic
from tracemap.measurements.ireeprof.records import first_integer, record_types
from tracemap.measurements.model import Clock
from tracemap.measurements.sql import fill
from tracemap.units import format_ns, plural

if TYPE_CHECKING:
    import duckdb
    import numpy.typing as npt

_SAMPLES: Final = """
SELECT physical_device_ordinal AS device, host_cpu_timestamp_ns AS driver_ns,
    host_time_begin_ns - host_cpu_timestamp_ns AS least, host_time_end_ns - host_cpu_timestamp_ns AS most
FROM profile_records WHERE record_type = 'clock_correlation' AND physical_device_ordinal IS NOT NULL
    AND host_cpu_timestamp_ns > 0 AND host_time_begin_ns > 0 AND host_time_end_ns >= host_time_begin_ns
ORDER BY device, driver_ns
"""
_UNSAMPLED: Final = """
SELECT count(*) FROM profile_records WHERE record_type IN {types}
AND coalesce(physical_device_ordinal NOT IN (SELECT device FROM profile_clocks), true)
"""
SINCE: Final = (
    " + clocks.offset_ns + CAST(round(clocks.slope * (start_driver_host_cpu_time_ns - clocks.at_ns)) AS BIGINT)"
)
"""What brings the start of an event to the host's clock."""
CLOCKS: Final = """
ASOF LEFT JOIN profile_clocks AS clocks ON clocks.device = physical_device_ordinal
    AND start_driver_host_cpu_time_ns >= clocks.at_ns
"""
_NEGLIGIBLE: Final = 0.01
"""Of a call: an error that is not spoken of."""
_ALWAYS: Final = -(2**62)
_COLUMNS: Final = {"device": "UBIGINT", "at_ns": "BIGINT", "offset_ns": "BIGINT", "slope": "DOUBLE"}


@dataclass(frozen=True, slots=True)
class Connection:
    """Whether all events are brought to the host's clock, by how many records, and by how much that may be off."""

    is_whole: bool
    records: int = 0
    error_ns: int = 0

    def about(self, begins_ns: npt.NDArray[Any]) -> list[Diagnostic]:
        """What is to be known of it, where a call takes so short that the error matters; `begins_ns`: of the calls."""
        import numpy as np

        call_ns = float(np.median(np.diff(begins_ns))) if len(begins_ns) > 1 else math.inf
        if self.error_ns <= _NEGLIGIBLE * call_ns:
            return []
        text = (
            f"when the device ran is known on the host's clock to within {format_ns(self.error_ns)} only, by "
            f"{plural(self.records, 'record')} that hold both: parts of the elapsed time may be off by it in each call"
        )
        return [Diagnostic("clocks-loosely-connected", text)]


def connect_clocks(connection: duckdb.DuckDBPyConnection, clock: Clock) -> Connection:
    """Make `profile_clocks`, by which events of a device are brought to the host's clock."""
    if clock is Clock.HOST:
        return Connection(is_whole=True)
    import numpy as np

    samples = connection.execute(_SAMPLES).fetchnumpy()
    rows, error_ns = [], 0
    for device in np.unique(samples["device"]):
        own = samples["device"] == device
        found, error = _segments(samples["driver_ns"][own], samples["least"][own], samples["most"][own])
        rows += [(int(device), *segment) for segment in found]
        error_ns = max(error_ns, error)
    fill(connection, "profile_clocks", _COLUMNS, rows)
    if not rows or first_integer(connection, _UNSAMPLED.format(types=record_types(clock))):
        return Connection(is_whole=False)
    return Connection(is_whole=True, records=len(samples["device"]), error_ns=error_ns)


def _segments(
    driver_ns: npt.NDArray[Any], least: npt.NDArray[Any], most: npt.NDArray[Any]
) -> tuple[list[tuple[int, int, float]], int]:
    """From when on which difference holds, and how it grows; and by how much it may be off."""
    import numpy as np

    low, high = int(least.max()), int(most.min())
    if low <= high:
        offset = 0 if low <= 0 <= high else (low + high) // 2  # the very same clock, where that is possible
        return [(_ALWAYS, offset, 0.0)], max(high - offset, offset - low)
    widths = most - least
    kept = (widths <= np.median(widths)) & (np.diff(driver_ns, prepend=driver_ns[0] - 1) > 0)
    at, middle = driver_ns[kept], least[kept] + widths[kept] // 2
    slopes = np.append(np.diff(middle) / np.diff(at), 0.0)
    segments = zip(at.tolist(), middle.tolist(), slopes.tolist(), strict=True)
    return [(_ALWAYS, int(middle[0]), 0.0), *segments], int(widths[kept].max() + 1) // 2
