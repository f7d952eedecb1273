"""A run: a table of events, and a header that says how it was recorded."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path, PurePath
from typing import Annotated, Final, Literal

import msgspec

from tracemap.core.codec import Count, Document, OtherVersion, Positive, Record, decode_document
from tracemap.core.diagnostics import Diagnostic, has_slug
from tracemap.core.errors import RunInvalid, RunVersion
from tracemap.core.units import MAX_INTEGER, UNKNOWN, Integer, Text, Unknown

# ---- circumstances
#
# Circumstances of a recording: the machine and the time, noise, and times on other devices.


class Machine(Record, frozen=True):
    """The machine that a run was recorded on, and the time by its clock, which may be wrong."""

    host: Annotated[Text, msgspec.Meta(description="Its name.")]
    cpu_model: Annotated[Text, msgspec.Meta(description="The model name that its processor reports.")]
    processors: Annotated[Integer, msgspec.Meta(description="Number of CPUs of the whole machine.")]
    recorded_ns: Annotated[Integer, msgspec.Meta(description="When the run was written, since 1970-01-01T00:00:00Z.")]


UNKNOWN_MACHINE: Final = Machine(UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def recorded_at(time: datetime) -> Integer:
    """Nanoseconds since 1970 of a time with a time zone; unknown if it is earlier or does not fit 64 bits.

    >>> recorded_at(datetime(1970, 1, 1, 0, 0, 1, 700_000, UTC)), recorded_at(datetime(2300, 1, 1, tzinfo=UTC))
    (1700000000, UNKNOWN)
    """
    nanoseconds = (time - _EPOCH) // timedelta(microseconds=1) * 1000
    return nanoseconds if 0 <= nanoseconds <= MAX_INTEGER else UNKNOWN


class Noise(Record, frozen=True):
    """Noise while the program was measured, summed over its threads.

    `observed_ns`: the part of the measured time that was observed; `running_ns`: time on a CPU; `waiting_ns`: time
    ready to run without a CPU; `busy_ns`: time that all CPUs spent on any program; `stolen_ns`: time that the host of a
    virtual machine gave to others, over all CPUs; `load_percent`: the machine's load average of a minute, in percent.
    Frequencies are means of all CPUs.
    """

    observed_ns: Integer
    running_ns: Integer
    waiting_ns: Integer
    voluntary_switches: Integer
    involuntary_switches: Integer
    migrations: Integer
    minor_faults: Integer
    major_faults: Integer
    busy_ns: Integer
    stolen_ns: Integer
    frequency_before_hz: Integer
    frequency_after_hz: Integer
    load_percent: Integer


UNKNOWN_NOISE: Final = Noise(**dict.fromkeys(Noise.__struct_fields__, UNKNOWN))
"""The noise of a run that was not observed."""


class DeviceTime(Record, frozen=True):
    """Time of an invocation on a device, without the profiler: the median, with its 95 % interval.

    Runs of earlier releases have the median of means of groups of invocations.
    """

    device: str
    median_ns: Integer
    low_ns: Integer
    high_ns: Integer
    groups: Count
    calls: Annotated[Count, msgspec.Meta(description="Invocations per group; 1: the median is of single ones.")]


_NICE: Final = ("nice", "-n")


def nice_prefix(niceness: int) -> tuple[str, ...]:
    """The prefix of a shell command that runs a program at this niceness (POSIX `nice`); empty for 0."""
    return () if niceness == 0 else (*_NICE, str(niceness))


def niceness_of(command: Sequence[str]) -> Text:
    """The niceness in a run's command; unknown without a command.

    >>> niceness_of(("nice", "-n", "-20", "iree-benchmark-module")), niceness_of(("iree-benchmark-module",))
    ('-20', '0')
    """
    if not command:
        return UNKNOWN
    return command[2] if tuple(command[:2]) == _NICE and len(command) > 2 else "0"


def differing_inputs(first: Iterable[Sequence[str]], second: Iterable[Sequence[str]]) -> list[tuple[int, str, str]]:
    """Arguments that differ between two sets of runs: index, value in the first, value in the second.

    The sizes of inputs decide the amount of work, their values the control flow.

    >>> differing_inputs([("8xf32=1", "@a/x.npy")], [("8xf32=1", "@b/x.npy"), ("16xf32=1",)])
    [(0, '8xf32=1', '16xf32=1')]
    """
    combinations = product(dict.fromkeys(first), dict.fromkeys(second))
    values = (
        (index, *pair)
        for first_inputs, second_inputs in combinations
        for index, pair in enumerate(zip(first_inputs, second_inputs, strict=False))
    )
    return [value for value in values if _without_folders(value[1]) != _without_folders(value[2])]


def _without_folders(text: str) -> str:
    """An input without the folder of its file: files of the same name count as the same input."""
    head, at, path = text.partition("@")
    return head + at + PurePath(path).name if at else text


# ---- the header


RUN_FORMAT_VERSION: Final = 5
"""Version of the run's format. 1: first. 2: workgroup counts are columns workgroups_x/y/z. 3: the header has the parts
of the elapsed time, the median invocation with its interval, the reason for stopping, and the noise. 4: rows have the
time of submission; the elapsed time has the profiler's own work as a part. 5: `noise`, before `disturbance`."""


class Clock(enum.StrEnum):
    """The clock of times. Times of different clocks are never compared or added."""

    HOST = "host-monotonic"
    DEVICE = "device"
    UNKNOWN = "unknown"


class RecordedCommand(Record, frozen=True):
    """One command of a recorded command buffer, as reported by the runtime; its kind is an event's, or `barrier`."""

    kind: str
    kernel: Text
    workgroups: tuple[Count, ...]


class RecordedBuffer(Record, frozen=True):
    """A command buffer that existed during the run.

    `id` increases in creation order; `one_shot` buffers were created for a single submission; `program` is the index of
    its command list in `programs` of the header (buffers that are created on each call share one).
    """

    # The runtime numbers them. Attribution packs an id and a command index into one integer, which must fit 64 bits.
    id: Annotated[int, msgspec.Meta(ge=0, le=2**40)]
    one_shot: bool
    program: Count


class CacheSpeed(Record, frozen=True):
    """Size of a core's cache, and bandwidth of a copy whose data is just beyond that cache."""

    bytes: Positive
    bytes_per_second: Positive


class UnitPeak(Record, frozen=True):
    """Peak arithmetic of a GPU in another type or on tensor cores: `name` is `f16`, `tensor f16` or `tensor tf32`."""

    name: str
    operations_per_second: Positive


class Peaks(Record, frozen=True):
    """The machine's peak speeds, for the rules `code` and `model`; `caches` from the first level on, if known.

    They are those of one core, or of a whole GPU in single precision, as its driver states them (`specified`). `units`:
    peaks of the GPU in other types; the rules do not use them, since the map has no types of elements.
    """

    operations_per_second: Positive
    bytes_per_second: Positive
    source: Literal["measured", "assumed", "specified"]
    caches: tuple[CacheSpeed, ...] = ()
    units: tuple[UnitPeak, ...] = ()


class ElapsedParts(Record, frozen=True):
    """The parts of the elapsed time of the measured invocations, which add up to it; unknown without times of rows."""

    kernels_ns: Annotated[Integer, msgspec.Meta(description="Time in which a dispatch ran, on any worker.")]
    transfers_ns: Annotated[Integer, msgspec.Meta(description="Time in which a transfer of its own ran.")]
    queue_ns: Annotated[Integer, msgspec.Meta(description="Time in which work was submitted, but no kernel ran.")]
    host_ns: Annotated[Integer, msgspec.Meta(description="Time in an invocation with nothing submitted: host code.")]
    profiler_ns: Annotated[
        Integer,
        msgspec.Meta(description="Time in which the profiler wrote its data; if unknown, it counts as unexplained."),
    ]
    unexplained_ns: Annotated[Integer, msgspec.Meta(description="The rest of the elapsed time.")]
    profiler_found_by: Annotated[Text, msgspec.Meta(description="How the profiler's work was identified.")]

    def values(self) -> tuple[Integer, ...]:
        """The parts in the order of the fields."""
        return (self.kernels_ns, self.transfers_ns, self.queue_ns, self.host_ns, self.profiler_ns, self.unexplained_ns)

    @property
    def explained_ns(self) -> Integer:
        """The sum of all explained parts; unknown if the unexplained part is."""
        known = [part for part in self.values()[:-1] if isinstance(part, int)]
        return sum(known) if isinstance(self.unexplained_ns, int) else UNKNOWN


BY_STOPS: Final = "stopped-clock"
"""The profiler's work was identified as the time in which the program's own clock was stopped."""
UNKNOWN_PARTS: Final = ElapsedParts(UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN)


class Invocation(Record, frozen=True):
    """Time of a measured invocation, from its first submission to that of the next invocation.

    `median_ns` is the median of all measured invocations; the run may have events of fewer. `low_ns` and `high_ns` are
    the ends of its 95 % interval; unknown for too few invocations.
    """

    median_ns: Integer
    low_ns: Integer
    high_ns: Integer
    ended_by: Annotated[Text, msgspec.Meta(description="Why the measurement stopped.")]


class RunHeader(Document, frozen=True, kw_only=True):
    """Description of a recording; values that the writer of the file did not provide are unknown."""

    schema_version: Literal[5] = RUN_FORMAT_VERSION
    kind: Literal["run"] = "run"
    module_sha256: Annotated[Text, msgspec.Meta(description="SHA-256 of the module that ran.")]
    bundle: Annotated[Text, msgspec.Meta(description="Name of the bundle that the module came from.")]
    command: Annotated[tuple[str, ...], msgspec.Meta(description="The program that ran, and its arguments.")]
    function: Text
    device: Text
    workers: Annotated[Integer, msgspec.Meta(description="Threads that share the work of a dispatch.")]
    clock: Annotated[Clock, msgspec.Meta(description="The clock of the times in the table.")]
    iterations: Annotated[Integer, msgspec.Meta(description="Measured invocations whose events are in the run.")]
    warmup: Annotated[Integer, msgspec.Meta(description="Warm-up invocations, marked in the table.")]
    launches: Annotated[Count, msgspec.Meta(description="Consecutive processes of the program.")] = 1
    elapsed_ns: Annotated[Integer, msgspec.Meta(description="Wall time of the measured invocations.")]
    invocation: Invocation
    noise: Noise
    inputs: Annotated[tuple[str, ...], msgspec.Meta(description="The value of each argument.")]
    peaks: Peaks
    programs: Annotated[
        tuple[tuple[RecordedCommand, ...], ...],
        msgspec.Meta(description="The distinct command lists of the command buffers."),
    ]
    buffers: Annotated[tuple[RecordedBuffer, ...], msgspec.Meta(description="In creation order.")]
    tools: Annotated[tuple[str, ...], msgspec.Meta(description="Names and versions.")]
    diagnostics: tuple[Diagnostic, ...]
    elapsed: Annotated[ElapsedParts, msgspec.Meta(description="The parts of the elapsed time.")] = UNKNOWN_PARTS
    line_bytes: Annotated[Integer, msgspec.Meta(description="Line size of the machine's last-level cache.")] = UNKNOWN
    simulated_line_bytes: Annotated[
        Integer, msgspec.Meta(description="Line size of the simulated last-level cache.")
    ] = UNKNOWN
    devices: Annotated[tuple[DeviceTime, ...], msgspec.Meta(description="Results of --compare-devices.")] = ()
    clocked_ns: Annotated[
        Integer, msgspec.Meta(description="Median time of an invocation while the profiler does not write its data.")
    ] = UNKNOWN
    unprofiled_ns: Annotated[
        Integer, msgspec.Meta(description="Median time of an invocation without the profiler, measured afterwards.")
    ] = UNKNOWN
    machine: Annotated[Machine, msgspec.Meta(description="Where and when it was recorded.")] = UNKNOWN_MACHINE
    events: Annotated[Integer, msgspec.Meta(description="Rows of the table, without warm-up and `step` rows.")] = (
        UNKNOWN
    )


ASSUMED_PEAKS: Final = Peaks(operations_per_second=50_000_000_000, bytes_per_second=10_000_000_000, source="assumed")
"""Peaks of one core of a present-day server, for machines that were not measured. Only their ratio matters."""

UNKNOWN_INVOCATION: Final = Invocation(UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN)
"""The invocation time of a run without times."""

UNKNOWN_HEADER: Final = RunHeader(
    module_sha256=UNKNOWN,
    bundle=UNKNOWN,
    command=(),
    function=UNKNOWN,
    device=UNKNOWN,
    workers=UNKNOWN,
    clock=Clock.UNKNOWN,
    iterations=UNKNOWN,
    warmup=UNKNOWN,
    elapsed_ns=UNKNOWN,
    invocation=UNKNOWN_INVOCATION,
    noise=UNKNOWN_NOISE,
    inputs=(),
    peaks=ASSUMED_PEAKS,
    programs=(),
    buffers=(),
    tools=(),
    diagnostics=(),
)
"""The header of a table without a header."""


def parse_header(data: bytes, where: str) -> RunHeader:
    """Parse a header written by `codec.pretty`; `where` names the file in messages.

    Raises:
        RunVersion: the header has another format version.
        RunInvalid: the data is no header of a run, or is damaged.
    """
    try:
        header = decode_document(data, RunHeader)
    except OtherVersion as error:
        raise RunVersion(
            f"{where}: the run has format version {error.version}, but this tracemap reads version "
            f"{RUN_FORMAT_VERSION}; record again, or use the tracemap that wrote it"
        ) from error
    except ValueError as error:
        raise RunInvalid(f"{where}: the run's header is damaged ({error}); record again") from error
    for buffer in header.buffers:
        if buffer.program >= len(header.programs):
            raise RunInvalid(
                f"{where}: the run's header is damaged (buffer {buffer.id} has program {buffer.program} of "
                f"{len(header.programs)}); record again"
            )
    return header


# ---- the table


class EventKind(enum.StrEnum):
    """Kinds of events. `execute` spans a whole submission; its dispatches have rows of their own.

    `migration`: managed memory that moves to or from a GPU, since the program touches it there.

    `step`: a measurement at one line of kernel IR: a sample of the program counter, or a simulator's counts. Its values
    split the cost of dispatches over the ops of the kernel. It has no times.
    """

    DISPATCH = "dispatch"
    COPY = "copy"
    FILL = "fill"
    UPDATE = "update"
    MIGRATION = "migration"
    ALLOCA = "alloca"
    DEALLOCA = "dealloca"
    EXECUTE = "execute"
    STEP = "step"


COLUMNS: dict[str, str] = {
    "kind": "VARCHAR",
    "kernel": "VARCHAR",
    "command_buffer_id": "BIGINT",
    "command_index": "BIGINT",
    "submission_id": "BIGINT",
    "site": "VARCHAR",
    "call": "BIGINT",
    "invocation": "BIGINT",
    "warmup": "BOOLEAN",
    "submitted_ns": "BIGINT",
    "start_ns": "BIGINT",
    "duration_ns": "BIGINT",
    "cpu_ns": "BIGINT",
    "thread": "VARCHAR",
    "cpu": "BIGINT",
    "workgroups_x": "BIGINT",
    "workgroups_y": "BIGINT",
    "workgroups_z": "BIGINT",
    "payload_bytes": "BIGINT",
    "covered_ns": "BIGINT",
    "step": "BIGINT",
    "address": "BIGINT",
}
"""The columns with a fixed meaning, with their SQL types; NULL is unknown.

`kind` defaults to dispatch. `site`: the dispatch site; of a copy or fill on CUDA, its transfer. `call`: index of the
execution of its site or command. `invocation`: index of the invocation of the entry point, from 0, warm-up included.
`start_ns` and `submitted_ns` are on the run's clock; `submitted_ns` is the time of submission by the host (for a
dispatch, its `execute` has it). `workgroups_x` …: workgroup counts of a dispatch. `payload_bytes`: bytes that a copy,
fill, update or migration moves, an alloca allocates or a dealloca releases. `covered_ns`: the part of an execute's
duration in which a dispatch of it ran. `step`: a line of kernel IR (0: machine code without a line). `address`: an
address in the executable's ELF image, in the address space of its symbols.
"""

NATIVE_DEVICE: Final = "native"
"""The device of runs of native code, in which times of kernels are parts of the samples."""

SAMPLES = "samples"
"""Metric of `step` rows: samples of the program counter, one per row."""
INSTRUCTIONS = "Ir"
"""Metric of `step` rows: executed instructions, counted by a simulator."""
READ_MISSES = "D1mr"
"""Simulated reads that missed the first-level cache."""
LAST_LEVEL_MISSES = ("ILmr", "DLmr", "DLmw")
"""Simulated misses of the last-level cache: instructions, reads and writes. Each one fetches a cache line."""
STAND_INS = "Ir_stand_in"
"""Simulated instructions that stand in for instructions which the simulated build lacks."""
CORE_CYCLES: Final = "core_cycles"
"""Cycles for which simulated instructions keep a core busy, estimated from their throughput."""
STEP_METRICS = (
    *(SAMPLES, INSTRUCTIONS, "I1mr", "ILmr", "Dr", "D1mr", "DLmr", "Dw", "D1mw", "DLmw", STAND_INS),
    CORE_CYCLES,
)
"""Metrics that only `step` rows have, in runs with a column `step`; metrics of cachegrind have cachegrind's names."""

CACHE_SIMULATED: Final = "cache-simulated"
"""The diagnostic of runs whose `step` rows have counts of a simulator, which runs one invocation."""


def invocations_counted(metric: str, iterations: Integer) -> Integer:
    """Number of invocations in a recorded run's sum of a metric: 1 for simulated metrics, else `iterations`."""
    is_simulated = metric in STEP_METRICS and metric != SAMPLES
    return 1 if is_simulated and isinstance(iterations, int) else iterations


CUPTI: Final = "CUPTI"
"""The start of the tool's name in headers of runs that CUPTI recorded; their launches are in the program's order."""

TIME_METRICS = ("cpu_ns", "duration_ns")
"""The columns of `COLUMNS` that are metrics."""


class Metric(msgspec.Struct, frozen=True):
    """A measured column: its name, unit (`ns`, `bytes`, `count`), clock and aggregation (`sum`).

    `type` is the SQL type of its values: `BIGINT`, or `DOUBLE` if they have fractions.
    """

    name: str
    unit: str
    clock: Clock
    aggregation: str = "sum"
    type: str = "BIGINT"


@dataclass(frozen=True, slots=True)
class Run:
    """A readable run: its header, the file of its events (`format` is `parquet` or `csv`), and its columns.

    Attributes:
        columns: the column names in the file, in order.
        metrics: the measured columns under their canonical names (`duration_us` is the metric `duration_ns`).
        has_header: False for a bare table, whose module is unknown.
        given: the file that the user passed, if the table was converted from it.
        tells_order: its column `columns.LAUNCH` has the order of launches, from which sites are inferred.
        site_choices: names in the column `site` that stand for several sites; a row belongs to one of them.
        copy: a byte-by-byte copy of a run that came through a pipe.
    """

    header: RunHeader
    table: Path
    format: str
    columns: tuple[str, ...]
    metrics: tuple[Metric, ...]
    has_header: bool
    given: Text = UNKNOWN
    tells_order: bool = False
    site_choices: tuple[tuple[str, tuple[str, ...]], ...] = ()
    copy: Path | Unknown = UNKNOWN

    @property
    def file(self) -> str:
        """The file that the user passed."""
        return str(self.table) if isinstance(self.given, Unknown) else self.given

    @property
    def file_name(self) -> str:
        """The name of `file`, without its folder."""
        return PurePath(self.file).name

    @property
    def step_metrics(self) -> tuple[Metric, ...]:
        """The metrics of its `step` rows; empty without a column `step`."""
        has_steps = any(name.strip().lower() == "step" for name in self.columns)
        return tuple(metric for metric in self.metrics if has_steps and metric.name in STEP_METRICS)

    def invocations_of(self, metric: Metric) -> Integer:
        """Number of invocations in which a metric was measured: all timed ones, or the one that was simulated."""
        if metric not in self.step_metrics or metric.name == SAMPLES:
            return self.header.iterations
        simulated = has_slug(self.header.diagnostics, CACHE_SIMULATED)
        return 1 if simulated else UNKNOWN
