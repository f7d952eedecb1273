"""Rows of a run from recorded activity: kernels, copies, fills and migrations, in the order of their submission."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracemap.core.diagnostics import BEGINS_LATE, RECORDS_LOST, Diagnostic
from tracemap.core.errors import RunEmpty
from tracemap.core.units import UNKNOWN, Integer, plural
from tracemap.runs.columns import LAUNCH
from tracemap.runs.cuda.recording import (
    COPY,
    FILL,
    KERNEL,
    MIGRATION,
    Activity,
    CudaProcess,
    process_files,
    read_activity,
    read_process,
)
from tracemap.runs.elapsed import ClockStops
from tracemap.runs.events import EventTable
from tracemap.runs.ireeprof.calls import Span
from tracemap.runs.ireeprof.profile import Profile
from tracemap.runs.model import CUPTI, Clock, Peaks

if TYPE_CHECKING:
    import duckdb
    import numpy.typing as npt

_KINDS: Final = {KERNEL: "dispatch", COPY: "copy", FILL: "fill", MIGRATION: "migration"}


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls of the recorded function: the program's clock around each (None: unknown), and which count as warm-up.

    `count`: only the first calls belong to the run. Without stops, invocations are unknown.
    """

    stops: ClockStops | None = None
    warmup: int = 0
    count: Integer = UNKNOWN
    batch: int = 1


NO_CALLS: Final = Calls()


def tool_name(process: CudaProcess) -> str:
    """CUPTI's name and version in a run's header.

    >>> tool_name(CudaProcess(Path(), "", 0, cupti=28)), tool_name(CudaProcess(Path(), "", 0, cupti=130001))
    ('CUPTI 12 (28)', 'CUPTI 13.0 (130001)')
    """
    version = process.cupti
    if not isinstance(version, int):
        return CUPTI
    major = f"{version // 10000}.{version // 100 % 100}" if version >= 100_000 else "12"
    return f"{CUPTI} {major} ({version})"


def device_peaks(process: CudaProcess) -> Peaks | None:
    """The peaks of the device; of several, those of the first; None: unknown."""
    known = [process.devices[number].peaks for number in sorted(process.devices)]
    return next(iter(known), None)


def in_submission_order(activity: Activity) -> npt.NDArray[Any]:
    """The work in the order in which the program submitted it.

    CUPTI gives each call of the driver a correlation id, in the order of the calls; the work that it submits has the
    same one. A graph submits several kernels by one call: they follow the order of its nodes. Migrations have no call.
    """
    import numpy as np

    work = activity.work
    calls = work["correlation"].astype(np.int64)
    own = calls[work["kind"] != MIGRATION]
    if len(own) and int(own.max()) - int(own.min()) > _HALF:  # ids of 32 bits began again at 0
        calls = np.where(calls < _HALF, calls + 2 * _HALF, calls)
    return work[np.lexsort((work["start_ns"], work["graph_node"], calls))]


_HALF: Final = 1 << 31


def _columns(process: CudaProcess, activity: Activity, calls: Calls) -> dict[str, npt.NDArray[Any]]:
    """The columns of the rows; times that are unknown are -1, likewise invocations."""
    import numpy as np

    work = in_submission_order(activity)
    is_kernel = work["kind"] == KERNEL
    submitted = _submitted_ns(work, activity.calls)
    invocation = np.full(len(work), -1, dtype=np.int64)
    if calls.stops is not None:
        # What the host submitted while the clock of a call ran belongs to this call; migrations count by their begin.
        at = np.where(submitted >= 0, submitted, work["start_ns"].astype(np.int64))
        place = np.searchsorted(calls.stops.going_ns, at, side="right") - 1
        limit = len(calls.stops.stopped_ns) if calls.count is UNKNOWN else calls.count // calls.batch
        inside = (place >= 0) & (place < min(limit, len(calls.stops.stopped_ns)))
        inside[inside] = at[inside] <= calls.stops.stopped_ns[place[inside]]
        invocation[inside] = place[inside] * calls.batch + _places_in_batches(place[inside], calls.batch)
    names = np.array([*process.names.values(), ""], dtype=object)
    number = {name: index for index, name in enumerate(process.names)}
    kernels = np.array([number.get(int(name), len(number)) for name in work["name"]], dtype=np.int64)
    # Work outside of calls, as at load, has no place in the order of the calls; a migration has none in the program's.
    in_order = work["kind"] != MIGRATION
    counted = in_order if calls.stops is None else in_order & (invocation >= 0)
    if len(_submitting_threads(activity)) > 1:  # no order of the program
        counted = np.zeros(len(work), dtype=bool)
    launch = np.where(counted, np.cumsum(counted) - 1, -1)
    queues = ["/".join(map(str, queue)) for queue in zip(*(work[name].tolist() for name in _QUEUE), strict=True)]
    return {
        "kind": np.array([_KINDS[kind] for kind in work["kind"].tolist()], dtype=object),
        "kernel": names[np.where(is_kernel, kernels, len(number))],
        "invocation": invocation,
        "warmup": invocation < calls.warmup if calls.stops is not None else np.zeros(len(work), dtype=bool),
        "submitted_ns": submitted,
        "start_ns": work["start_ns"].astype(np.int64),
        "duration_ns": (work["end_ns"] - work["start_ns"]).astype(np.int64),
        "thread": np.array(queues, dtype=object),
        **{f"workgroups_{axis}": np.where(is_kernel, work[f"grid_{axis}"].astype(np.int64), -1) for axis in "xyz"},
        "payload_bytes": np.where(is_kernel, -1, work["bytes"].astype(np.int64)),
        LAUNCH: launch,
    }


def _places_in_batches(batches: npt.NDArray[Any], calls: int) -> npt.NDArray[Any]:
    """The place of each row's call in its batch, from 0: all calls of a batch submit equally many rows, in order.

    Args:
        batches: the batch of each row, in the order of submission.
        calls: number of calls per batch.
    """
    import numpy as np

    _, first, of_row, count = np.unique(batches, return_index=True, return_inverse=True, return_counts=True)
    position = np.arange(len(batches)) - first[of_row]
    is_even = count[of_row] % calls == 0
    return np.where(is_even, position * calls // count[of_row], 0)


_QUEUE: Final = ("device", "context", "stream")


def _submitting_threads(activity: Activity) -> list[int]:
    """The threads whose calls of the driver launched kernels."""
    import numpy as np

    kernels = activity.work["kind"] == KERNEL
    submits = np.isin(activity.calls["correlation"], activity.work["correlation"][kernels])
    return sorted({int(thread) for thread in np.unique(activity.calls["thread"][submits])})


def _submitted_ns(work: npt.NDArray[Any], calls: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Begin of the driver's call that submitted each row; -1: unknown."""
    import numpy as np

    if not len(calls):
        return np.full(len(work), -1, dtype=np.int64)
    calls = calls[np.argsort(calls["correlation"], kind="stable")]
    place = np.minimum(np.searchsorted(calls["correlation"], work["correlation"]), len(calls) - 1)
    found = (calls["correlation"][place] == work["correlation"]) & (work["kind"] != MIGRATION)
    return np.where(found, calls["start_ns"][place].astype(np.int64), -1)


_ROWS: Final = f"""
SELECT row_number() OVER () AS row, kind, nullif(kernel, '') AS kernel,
    CAST(NULL AS BIGINT) AS command_buffer_id, CAST(NULL AS BIGINT) AS command_index,
    CAST(NULL AS BIGINT) AS submission_id, CAST(NULL AS VARCHAR) AS site,
    row_number() OVER (PARTITION BY kind, kernel ORDER BY start_ns) - 1 AS call,
    nullif(invocation, -1) AS invocation, warmup, nullif(submitted_ns, -1) AS submitted_ns, start_ns, duration_ns,
    thread, CAST(NULL AS BIGINT) AS cpu, nullif(workgroups_x, -1) AS workgroups_x,
    nullif(workgroups_y, -1) AS workgroups_y, nullif(workgroups_z, -1) AS workgroups_z,
    nullif(payload_bytes, -1) AS payload_bytes, CAST(NULL AS BIGINT) AS covered_ns, nullif({LAUNCH}, -1) AS {LAUNCH}
FROM cuda_columns
"""


def _fill(connection: duckdb.DuckDBPyConnection, table: str, columns: dict[str, npt.NDArray[Any]]) -> EventTable:
    connection.register("cuda_columns", columns)
    events = EventTable(connection, table, _ROWS)
    connection.unregister("cuda_columns")
    return events


def cuda_profile(
    process: CudaProcess, connection: duckdb.DuckDBPyConnection, table: str, calls: Calls = NO_CALLS
) -> Profile:
    """The events of a recorded process, as those of an IREE profile.

    Raises:
        RunInvalid: a record file is damaged.
    """
    return profile_of(process, read_activity(process), connection, table, calls)


def profile_of(
    process: CudaProcess, activity: Activity, connection: duckdb.DuckDBPyConnection, table: str, calls: Calls
) -> Profile:
    """The events of records that were read; see `cuda_profile`."""
    import numpy as np

    columns = _columns(process, activity, calls)
    if calls.stops is not None and calls.count is not UNKNOWN:
        # Work of a call that was cut short, and after the last call.
        last_ns = calls.stops.stopped_ns[: calls.count // calls.batch].max(initial=0)
        keep = (columns["invocation"] >= 0) | (columns["start_ns"] < last_ns)
        columns = {name: values[keep] for name, values in columns.items()}
    events = _fill(connection, table, columns)
    invoked = columns["invocation"]
    going = np.zeros(0, dtype=np.int64) if calls.stops is None else calls.stops.going_ns
    begins = going if calls.count is UNKNOWN else going[: calls.count // calls.batch]
    ends = columns["start_ns"] + columns["duration_ns"]
    distinguished: Integer = UNKNOWN if calls.stops is None or not np.any(invoked >= 0) else len(begins) * calls.batch
    return Profile(
        events=events,
        event_count=events.count,
        programs=(),
        buffers=(),
        clock=Clock.DEVICE if activity.width_ns is UNKNOWN else Clock.HOST,
        invocations=distinguished,
        begins_ns=begins,
        span=Span(
            _at(begins, 0),
            _at(begins, calls.warmup // calls.batch),
            UNKNOWN if not len(ends) else int(ends.max()),
        ),
        lost_records=activity.dropped,
        on_host=activity.width_ns is not UNKNOWN,
        diagnostics=tuple(_diagnostics(process, activity, columns, calls)),
    )


def _at(begins_ns: npt.NDArray[Any], index: int) -> Integer:
    return int(begins_ns[index]) if index < len(begins_ns) else UNKNOWN


def _diagnostics(
    process: CudaProcess, activity: Activity, columns: dict[str, npt.NDArray[Any]], calls: Calls
) -> Iterator[Diagnostic]:
    """Diagnostics about losses, several threads or devices, and parts of a GPU."""
    if activity.dropped:
        text = f"CUPTI lost {plural(activity.dropped, 'record')}, so costs are too low; record fewer calls"
        yield Diagnostic(RECORDS_LOST, text)
    if process.left_out:
        text = f"{plural(process.left_out, 'record')} left out, since the size limit was reached; record fewer calls"
        yield Diagnostic(RECORDS_LOST, text)
    if not process.ended:
        text = (
            f"process {process.pid} did not end normally (killed, ended by _exit, or still running), so its last "
            "work may be missing"
        )
        yield Diagnostic("program-killed", text)
    if process.begins_late and calls.stops is None:
        text = "the recording begins after the program's start, so the first invocation may be incomplete"
        yield Diagnostic(BEGINS_LATE, text)
    if activity.unfinished and calls.count is UNKNOWN:  # the work of whole calls has ended
        text = f"{plural(activity.unfinished, 'event')} without times left out: the program ended before them"
        yield Diagnostic("times-invalid", text)
    for what, why in process.losses:
        yield Diagnostic("not-recorded", f"{what} are not recorded: {why}")
    if (threads := len(_submitting_threads(activity))) > 1:
        text = (
            f"{threads} threads launched kernels, so the order of launches is unknown: launches of a shared kernel "
            "cannot be assigned to one of its dispatch sites"
        )
        yield Diagnostic("several-queues", text)
    used = sorted({str(queue).partition("/")[0] for queue in columns["thread"].tolist()})
    if len(used) > 1:
        names = ", ".join(f"device {number}" for number in used)
        yield Diagnostic("several-devices", f"work ran on several devices ({names}); their times add up in totals")
    if any(process.devices[int(number)].is_part for number in used if int(number) in process.devices):
        yield Diagnostic("device-part", "the device is a part of a GPU (MIG), so other users of the GPU may add noise")


# ---- growing


class GrowingCudaCalls:
    """The invocations of a program while it runs, by the stops of its own clock, and the size of its recording.

    Attributes:
        begins_ns: begin of each call, in order, on the host's monotonic clock.
        bytes: size of the record files.
    """

    def __init__(self, folder: Path, stops: Path, pieces: int) -> None:
        """Nothing is read yet; the files may not exist.

        Args:
            folder: the folder of the recording.
            stops: the hook's file of the program's clock.
            pieces: intervals of the running clock per call; see `repeated_stops`.
        """
        self.begins_ns: list[int] = []
        self.bytes = 0
        self._folder, self._stops, self._pieces = folder, stops, pieces
        self._whole = 0

    @property
    def whole_calls(self) -> int:
        """Number of calls that have returned."""
        return self._whole

    def read_on(self) -> None:
        """Read the stops and sizes anew."""
        stops = repeated_stops(self._stops, self._pieces)
        if stops is not None:
            self.begins_ns = stops.going_ns.tolist()
            self._whole = len(stops.stopped_ns)
        self.bytes = sum(path.stat().st_size for path in self._folder.glob("cuda-*.activity"))

    def keep(self, calls: int) -> Integer:
        """The begin of the call after the first ones; the reader leaves later ones out."""
        return self.begins_ns[calls] if len(self.begins_ns) > calls else UNKNOWN


def repeated_stops(path: Path, pieces: int) -> ClockStops | None:
    """The stops of a program that makes each call in a repetition of its own; None if it has not begun.

    The clock runs once per call, and then once more, while the program sums up the repetition. For an asynchronous
    function it runs twice per call, the second time around the call itself (`pieces` is 2).
    """
    import numpy as np

    if not path.is_file():
        return None
    with path.open("rb") as file:
        moments = np.fromfile(file, dtype=np.int64)
    moments = moments[: np.count_nonzero(moments)]
    first, stride = 2 * (pieces - 1), 2 * (pieces + 1)
    going, stopped = moments[first::stride], moments[first + 1 :: stride]
    return ClockStops(going, stopped) if len(going) else None


def whole_stops(stops: ClockStops) -> ClockStops:
    """The stops without a call that has not returned."""
    return ClockStops(stops.going_ns[: len(stops.stopped_ns)], stops.stopped_ns)


def recorded_process(folder: Path) -> CudaProcess | None:
    """The process that recorded into a folder, the one with the most records; None: the library was not loaded."""
    processes = []
    for path in process_files(folder):
        with suppress(RunEmpty):  # killed before it wrote anything
            processes.append(read_process(path))
    return max(processes, key=lambda own: sum(path.stat().st_size for path in own.activity_files()), default=None)
