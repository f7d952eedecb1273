"""A run: a table of events on disk, and a header that says how it came about.

The table stays in its file (Parquet or CSV) and is read by the SQL engine, never row by row in Python. One row is one
event; the columns are listed in `COLUMNS`, every further numeric column is a metric.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path

from tracemap.measurements.header import Clock, RunHeader


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
`address` an address in the executable's ELF image, as its symbols count.
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
