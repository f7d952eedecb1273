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

from tracemap.codec import Count, Document, OtherVersion, Positive, Record, decode_document
from tracemap.diagnostics import Diagnostic, tells
from tracemap.errors import RunInvalid, RunVersion
from tracemap.units import INTEGER_LIMIT, UNKNOWN, Integer, Text, Unknown

# ---- circumstances
#
# Under what a run was recorded: the machine and the time, what disturbed it, how long calls take on other devices.


class Machine(Record, frozen=True):
    """The machine that a run was recorded on, and when: by its own clock, which may be wrong."""

    host: Annotated[Text, msgspec.Meta(description="Its name.")]
    cpu_model: Annotated[Text, msgspec.Meta(description="What its processor calls itself.")]
    processors: Annotated[Integer, msgspec.Meta(description="Of the whole machine.")]
    recorded_ns: Annotated[Integer, msgspec.Meta(description="Since 1970-01-01T00:00:00Z, when the run was written.")]


UNKNOWN_MACHINE: Final = Machine(UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN)


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def recorded_at(told: datetime) -> Integer:
    """Nanoseconds since 1970 of a time that tells its zone; unknown before that, and where 64 bits do not hold them.

    >>> recorded_at(datetime(1970, 1, 1, 0, 0, 1, 700_000, UTC)), recorded_at(datetime(2300, 1, 1, tzinfo=UTC))
    (1700000000, UNKNOWN)
    """
    nanoseconds = (told - _EPOCH) // timedelta(microseconds=1) * 1000
    return nanoseconds if 0 <= nanoseconds <= INTEGER_LIMIT else UNKNOWN


class Disturbance(Record, frozen=True):
    """What disturbed the program while it was measured, summed over its threads.

    It was observed for `observed_ns` of the measured calls. `running_ns`, `waiting_ns`: time on a processor, and time
    ready to run without one; `busy_ns`: time that all processors spent on any program; `stolen_ns`: time that the host
    of a virtual machine gave to others, of all processors; frequencies are means of all processors; `load_percent`: the
    machine's load average of a minute, 100 is one.
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


UNOBSERVED: Final = Disturbance(**dict.fromkeys(Disturbance.__struct_fields__, UNKNOWN))
"""What a run tells that nobody looked at while it was recorded."""


class DeviceTime(Record, frozen=True):
    """How long a call took on a device, without the profiler: the median of calls, with its 95 % interval.

    Runs of earlier releases have the median of means of groups of calls.
    """

    device: str
    median_ns: Integer
    low_ns: Integer
    high_ns: Integer
    groups: Count
    calls: Annotated[Count, msgspec.Meta(description="In each group: 1, the median is that of single calls.")]


_NICE: Final = ("nice", "-n")


def nice_words(niceness: int) -> tuple[str, ...]:
    """How a shell that runs at niceness 0 runs a program at another (POSIX `nice`)."""
    return () if niceness == 0 else (*_NICE, str(niceness))


def niceness_said(command: Sequence[str]) -> Text:
    """The niceness that a run's command tells; unknown where there is no command.

    >>> niceness_said(("nice", "-n", "-20", "iree-benchmark-module")), niceness_said(("iree-benchmark-module",))
    ('-20', '0')
    """
    if not command:
        return UNKNOWN
    return command[2] if tuple(command[:2]) == _NICE and len(command) > 2 else "0"


def differing_inputs(ones: Iterable[Sequence[str]], twos: Iterable[Sequence[str]]) -> list[tuple[int, str, str]]:
    """Arguments that runs tell differently: the number of each, what it is in ones of them, and in the others.

    Sizes of inputs decide how much is to be done, their values which way that goes.

    >>> differing_inputs([("8xf32=1", "@a/x.npy")], [("8xf32=1", "@b/x.npy"), ("16xf32=1",)])
    [(0, '8xf32=1', '16xf32=1')]
    """
    pairs = (zip(one, two, strict=False) for one, two in product(dict.fromkeys(ones), dict.fromkeys(twos)))
    told = ((number, *pair) for of_runs in pairs for number, pair in enumerate(of_runs))
    return [each for each in told if _without_folders(each[1]) != _without_folders(each[2])]


def _without_folders(said: str) -> str:
    """What is said of an input; a file of the same name is taken for the same one, wherever it lies."""
    head, at, path = said.partition("@")
    return head + at + PurePath(path).name if at else said


# ---- model
#
# A run: a table of events on disk, and a header that says how it came about.
#
# The table stays in its file (Parquet or CSV) and is read by the SQL engine, never row by row in Python. One row is
# one event; the columns are listed in `COLUMNS`, every further numeric column is a metric. The header lies in
# Parquet's key-value metadata, beside a CSV in `run.csv.json`.


# ---- the header


RUN_FORMAT_VERSION: Final = 4
"""Version of the run's format. 1: first. 2: counts of workgroups are columns workgroups_x/y/z. 3: the header has the
parts of the elapsed time, the median call with its interval, why no more calls were made, and what disturbed the
program. 4: rows say when they were submitted; of the elapsed time the profiler's own work is a part."""


class Clock(enum.StrEnum):
    """Where times come from. Times of different clocks are never compared or added."""

    HOST = "host-monotonic"
    DEVICE = "device"
    UNKNOWN = "unknown"


class RecordedCommand(Record, frozen=True):
    """One command of a recorded command buffer, as the runtime reports it (kind as of events, or `barrier`)."""

    kind: str
    kernel: Text
    workgroups: tuple[Count, ...]


class RecordedBuffer(Record, frozen=True):
    """A command buffer that existed during the run.

    `id` rises in creation order; `one_shot` buffers were made for a single submission; `program` is the index of its
    command list in `programs` of the header (buffers made per call share one).
    """

    # The runtime counts them. Attribution makes one number of an id and a place among commands, which must fit 64 bits.
    id: Annotated[int, msgspec.Meta(ge=0, le=2**40)]
    one_shot: bool
    program: Count


class CacheSpeed(Record, frozen=True):
    """How many bytes a cache of a core holds, and how many a second a copy moves whose data lies right behind it."""

    bytes: Positive
    bytes_per_second: Positive


class Peaks(Record, frozen=True):
    """The machine's speed limits, for the rules `code` and `model`; `caches` from the first level on, where known."""

    operations_per_second: Positive
    bytes_per_second: Positive
    source: Literal["measured", "assumed"]
    caches: tuple[CacheSpeed, ...] = ()


class ElapsedParts(Record, frozen=True):
    """The parts of the elapsed time of the measured calls; they add up to it. Unknown where the rows do not tell."""

    kernels_ns: Annotated[Integer, msgspec.Meta(description="In which a dispatch ran, of whatever worker.")]
    transfers_ns: Annotated[Integer, msgspec.Meta(description="In which a copy, fill or update of its own ran.")]
    queue_ns: Annotated[Integer, msgspec.Meta(description="In which something was submitted, and no kernel ran.")]
    host_ns: Annotated[Integer, msgspec.Meta(description="In a call, with nothing submitted: the host's code.")]
    profiler_ns: Annotated[
        Integer,
        msgspec.Meta(
            description="In which the profiler wrote down what it saw; unknown: it is in what is unexplained."
        ),
    ]
    unexplained_ns: Annotated[Integer, msgspec.Meta(description="All of the elapsed time beside that.")]
    profiler_found_by: Annotated[Text, msgspec.Meta(description="How the profiler's work was found.")]

    def values(self) -> tuple[Integer, ...]:
        """The parts in the order of the fields."""
        return (self.kernels_ns, self.transfers_ns, self.queue_ns, self.host_ns, self.profiler_ns, self.unexplained_ns)

    @property
    def explained_ns(self) -> Integer:
        """All parts but what is not explained; unknown where that is."""
        known = [part for part in self.values()[:-1] if isinstance(part, int)]
        return sum(known) if isinstance(self.unexplained_ns, int) else UNKNOWN


BY_STOPS: Final = "stopped-clock"
"""The profiler's work is what the program did while its own clock was stopped."""
UNKNOWN_PARTS: Final = ElapsedParts(UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN)


class Invocation(Record, frozen=True):
    """How long a measured call of the function took, from its first submission to that of the next call.

    `low_ns` and `high_ns` are the ends of the median's 95 % interval, which a few calls do not have.
    """

    median_ns: Integer
    low_ns: Integer
    high_ns: Integer
    ended_by: Annotated[Text, msgspec.Meta(description="Why no more calls were made.")]


class RunHeader(Document, frozen=True, kw_only=True):
    """How a run came about: unknown is what was not told by whoever wrote the file."""

    schema_version: Literal[4] = RUN_FORMAT_VERSION
    kind: Literal["run"] = "run"
    module_sha256: Annotated[Text, msgspec.Meta(description="SHA-256 of the module that ran.")]
    bundle: Annotated[Text, msgspec.Meta(description="Name of the bundle that the module came from.")]
    command: Annotated[tuple[str, ...], msgspec.Meta(description="The program that ran, and its arguments.")]
    function: Text
    device: Text
    workers: Annotated[Integer, msgspec.Meta(description="Threads that share the work of a dispatch.")]
    clock: Annotated[Clock, msgspec.Meta(description="The clock of the times in the table.")]
    iterations: Annotated[Integer, msgspec.Meta(description="Measured calls of the function.")]
    warmup: Annotated[Integer, msgspec.Meta(description="Calls before them, marked in the table.")]
    launches: Annotated[Count, msgspec.Meta(description="Of the program, one after another, that made them.")] = 1
    elapsed_ns: Annotated[Integer, msgspec.Meta(description="Wall time of the measured calls.")]
    invocation: Invocation
    disturbance: Disturbance
    inputs: Annotated[tuple[str, ...], msgspec.Meta(description="What each argument was.")]
    peaks: Peaks
    programs: Annotated[
        tuple[tuple[RecordedCommand, ...], ...],
        msgspec.Meta(description="The distinct lists of commands that were recorded into command buffers."),
    ]
    buffers: Annotated[tuple[RecordedBuffer, ...], msgspec.Meta(description="In creation order.")]
    tools: Annotated[tuple[str, ...], msgspec.Meta(description="Names and versions.")]
    diagnostics: tuple[Diagnostic, ...]
    elapsed: Annotated[ElapsedParts, msgspec.Meta(description="What the elapsed time went for.")] = UNKNOWN_PARTS
    line_bytes: Annotated[Integer, msgspec.Meta(description="Of a line of the machine's last-level cache.")] = UNKNOWN
    simulated_line_bytes: Annotated[
        Integer, msgspec.Meta(description="Of a line of the last-level cache that was simulated.")
    ] = UNKNOWN
    devices: Annotated[tuple[DeviceTime, ...], msgspec.Meta(description="What --compare-devices measured.")] = ()
    machine: Annotated[Machine, msgspec.Meta(description="Where and when it was recorded.")] = UNKNOWN_MACHINE
    events: Annotated[Integer, msgspec.Meta(description="Rows of the table without those of warm-up and of steps.")] = (
        UNKNOWN
    )


ASSUMED_PEAKS: Final = Peaks(operations_per_second=50_000_000_000, bytes_per_second=10_000_000_000, source="assumed")
"""Stands in where nobody measured the machine: one core of a present-day server. Only their ratio matters."""

UNTIMED: Final = Invocation(UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN)
"""What a run tells of whose calls no time is known."""

UNTOLD_HEADER: Final = RunHeader(
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
    invocation=UNTIMED,
    disturbance=UNOBSERVED,
    inputs=(),
    peaks=ASSUMED_PEAKS,
    programs=(),
    buffers=(),
    tools=(),
    diagnostics=(),
)
"""The header of a table that came without one."""


def parse_header(data: bytes, where: str) -> RunHeader:
    """A header as `codec.pretty` writes it; `where` names the file in messages.

    Raises:
        RunVersion: the header is of another format version.
        RunInvalid: it is no header of a run, or a damaged one.
    """
    try:
        header = decode_document(data, RunHeader)
    except OtherVersion as error:
        raise RunVersion(
            f"{where}: the run is of format version {error.version}, this tracemap reads version "
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
    """What an event is. `execute` spans a whole submission; its dispatches have rows of their own.

    `step`: what was seen at one step of a kernel, be it one sample of the program counter or a simulator's counts. Its
    values split the dispatches' over the ops of a kernel; it has no times of its own.
    """

    DISPATCH = "dispatch"
    COPY = "copy"
    FILL = "fill"
    UPDATE = "update"
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
"""The columns that have a meaning of their own, with their SQL types; NULL is unknown.

`kind` defaults to dispatch; `call` is the k-th execution of its site or command; `invocation` counts calls of the
entry point from 0, warm-up included; `start_ns` is on the run's clock, and so is `submitted_ns`, when the host
submitted what is no dispatch (of a dispatch, its `execute` tells); `workgroups_x` … are how many workgroups a
dispatch has; `payload_bytes` is how much a copy, fill or update moves; `covered_ns` is the part of an execute's
duration in which a dispatch of it ran; `step` is a line of the kernel's text (0: machine code without a line),
`address` an address in the executable's ELF image, as its symbols count.
"""

SAMPLES = "samples"
"""The metric of rows of steps that are samples of the program counter: one each."""
INSTRUCTIONS = "Ir"
"""The metric of rows of steps that a simulator counted: instructions that were run."""
READ_MISSES = "D1mr"
"""Reads that missed the first-level cache, in a simulation."""
LAST_LEVEL_MISSES = ("ILmr", "DLmr", "DLmw")
"""Misses of the last-level cache, in a simulation: instructions, reads and writes. Each fetches a line of memory."""
STAND_INS = "Ir_stand_in"
"""Those of the simulated instructions that stand in for instructions which the simulated build lacks."""
CORE_CYCLES: Final = "core_cycles"
"""For how many cycles simulated instructions keep a core busy, estimated from the throughput of each."""
STEP_METRICS = (
    *(SAMPLES, INSTRUCTIONS, "I1mr", "ILmr", "Dr", "D1mr", "DLmr", "Dw", "D1mw", "DLmw", STAND_INS),
    CORE_CYCLES,
)
"""Metrics that only rows of steps have, in runs with a column `step`; those that cachegrind has too have its names."""

CACHE_SIMULATED: Final = "cache-simulated"
"""The diagnostic of runs whose rows of steps have counts of a simulator, which runs one call."""


def calls_counted(metric: str, iterations: Integer) -> Integer:
    """How many calls a recorded run's sum of a metric is of, where it timed so many: one call alone is simulated."""
    is_simulated = metric in STEP_METRICS and metric != SAMPLES
    return 1 if is_simulated and isinstance(iterations, int) else iterations


TIME_METRICS = ("cpu_ns", "duration_ns")
"""Columns of `COLUMNS` that are metrics; the others are bookkeeping."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A column that is measured: its name, unit (`ns`, `bytes`, `count`), clock and how it is aggregated (`sum`).

    `type` is the SQL type of its values: `BIGINT`, or `DOUBLE` where they are not whole numbers.
    """

    name: str
    unit: str
    clock: Clock
    aggregation: str = "sum"
    type: str = "BIGINT"


@dataclass(frozen=True, slots=True)
class Run:
    """A readable run: its header, the file that holds its events (`format` is `parquet` or `csv`), and its columns.

    `columns` are the names as they stand in the file, in order; `metrics` those among them that are measured,
    under their canonical names (`duration_us` is the metric `duration_ns`).
    `has_header` is False for a bare CSV: nothing then says which module it belongs to. `given`: what the user named,
    where the table is one that was made of it. `tells_order`: its column `columns.LAUNCH` has the order of launches, by
    which sites are found. `site_choices`: names in the column `site` that stand for several sites; a row is of one.
    `copy`: what came through a pipe, byte by byte.
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
        """The file as the user knows it."""
        return str(self.table) if isinstance(self.given, Unknown) else self.given

    @property
    def file_name(self) -> str:
        """The same without its folder."""
        return PurePath(self.file).name

    @property
    def step_metrics(self) -> tuple[Metric, ...]:
        """The metrics that its rows of steps have; none where no column says what a step is."""
        has_steps = any(name.strip().lower() == "step" for name in self.columns)
        return tuple(metric for metric in self.metrics if has_steps and metric.name in STEP_METRICS)

    def invocations_of(self, metric: Metric) -> Integer:
        """How many calls of the function its values of a metric are of: all timed ones, but one that was simulated."""
        if metric not in self.step_metrics or metric.name == SAMPLES:
            return self.header.iterations
        simulated = tells(self.header.diagnostics, CACHE_SIMULATED)
        return 1 if simulated else UNKNOWN
