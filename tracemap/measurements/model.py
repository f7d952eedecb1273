"""A run: a table of events on disk, and a header that says how it came about.

The table stays in its file (Parquet or CSV) and is read by the SQL engine, never row by row in Python. One row is one
event; the columns are listed in `COLUMNS`, every further numeric column is a metric.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path

from tracemap.units import Integer, Text


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


class Clock(enum.StrEnum):
    """Where times come from. Times of different clocks are never compared or added."""

    HOST = "host-monotonic"
    DEVICE = "device"
    UNKNOWN = "unknown"


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
entry point from 0, warm-up included; `start_ns` is on the run's clock; `workgroups_x` … are how many workgroups a
dispatch has; `payload_bytes` is how much a copy, fill or update moves; `covered_ns` is the part of an execute's
duration in which a dispatch of it ran; `step` is a line of the kernel's text (0: machine code without a line),
`address` a place in the executable's ELF image, as its symbols count.
"""

SAMPLES = "samples"
"""The metric of rows of steps that are samples of the program counter: one each."""
INSTRUCTIONS = "Ir"
"""The metric of rows of steps that a simulator counted: instructions that were run."""
STEP_METRICS = (SAMPLES, INSTRUCTIONS, "I1mr", "ILmr", "Dr", "D1mr", "DLmr", "Dw", "D1mw", "DLmw")
"""Metrics that only rows of steps have, in runs with a column `step`; the simulator's are named as cachegrind's."""

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
class RecordedCommand:
    """One command of a recorded command buffer, as the runtime reports it (kind as in `EventKind`, or `barrier`)."""

    kind: str
    kernel: Text
    workgroups: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RecordedBuffer:
    """A command buffer that existed during the run.

    `id` rises in creation order; `one_shot` buffers were made for a single submission; `program` is the index of its
    command list in `RunHeader.programs` (buffers made per call share one).
    """

    id: int
    one_shot: bool
    program: int


@dataclass(frozen=True, slots=True)
class Peaks:
    """The machine's speed limits, for the roofline of the rule `model`. `source` is `measured` or `assumed`."""

    operations_per_second: int
    bytes_per_second: int
    source: str


@dataclass(frozen=True, slots=True)
class RunDiagnostic:
    """Something lost or doubtful about the run: a stable slug and a sentence."""

    slug: str
    message: str


RUN_FORMAT_VERSION = 2
"""Version of the run's format. 1: first. 2: counts of workgroups are columns workgroups_x/y/z."""


@dataclass(frozen=True, slots=True)
class RunHeader:
    """How a run came about. `UNKNOWN` values were not told by whoever wrote the file.

    `elapsed_ns` is the wall time of the measured (not warm-up) iterations; `inputs` says what each argument was.
    """

    module_sha256: Text
    bundle: Text
    command: tuple[str, ...]
    function: Text
    device: Text
    workers: Integer
    clock: Clock
    iterations: Integer
    warmup: Integer
    elapsed_ns: Integer
    inputs: tuple[str, ...]
    peaks: Peaks
    programs: tuple[tuple[RecordedCommand, ...], ...]
    buffers: tuple[RecordedBuffer, ...]
    tools: tuple[str, ...]
    diagnostics: tuple[RunDiagnostic, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """A readable run: its header, the file that holds its events (`format` is `parquet` or `csv`), and its columns.

    `columns` are the names as they stand in the file, in order; `metrics` those among them that are measured,
    under their canonical names (`duration_us` is the metric `duration_ns`).
    `has_header` is False for a bare CSV: nothing then says which module it belongs to.
    """

    header: RunHeader
    table: Path
    format: str
    columns: tuple[str, ...]
    metrics: tuple[Metric, ...]
    has_header: bool

    @property
    def step_metrics(self) -> tuple[Metric, ...]:
        """The metrics that its rows of steps have; none where no column says what a step is."""
        has_steps = any(name.strip().lower() == "step" for name in self.columns)
        return tuple(metric for metric in self.metrics if has_steps and metric.name in STEP_METRICS)
