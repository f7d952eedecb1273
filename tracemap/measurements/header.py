"""The header of a run: how it came about. It lies in Parquet's key-value metadata, beside a CSV in `run.csv.json`."""

from __future__ import annotations

import enum
from typing import Annotated, Final, Literal

import msgspec

from tracemap.codec import Count, Document, OtherVersion, Positive, Record, decode_document, pretty
from tracemap.diagnostics import Diagnostic
from tracemap.errors import RunInvalid, RunVersion
from tracemap.units import UNKNOWN, Integer, Text

RUN_FORMAT_VERSION: Final = 2
"""Version of the run's format. 1: first. 2: counts of workgroups are columns workgroups_x/y/z."""


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


class Peaks(Record, frozen=True):
    """The machine's speed limits, for the roofline of the rule `model`."""

    operations_per_second: Positive
    bytes_per_second: Positive
    source: Literal["measured", "assumed"]


class RunHeader(Document, frozen=True, kw_only=True):
    """How a run came about: unknown is what was not told by whoever wrote the file."""

    schema_version: Literal[2] = RUN_FORMAT_VERSION
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
    elapsed_ns: Annotated[Integer, msgspec.Meta(description="Wall time of the measured calls.")]
    inputs: Annotated[tuple[str, ...], msgspec.Meta(description="What each argument was.")]
    peaks: Peaks
    programs: Annotated[
        tuple[tuple[RecordedCommand, ...], ...],
        msgspec.Meta(description="The distinct lists of commands that were recorded into command buffers."),
    ]
    buffers: Annotated[tuple[RecordedBuffer, ...], msgspec.Meta(description="In creation order.")]
    tools: Annotated[tuple[str, ...], msgspec.Meta(description="Names and versions.")]
    diagnostics: tuple[Diagnostic, ...]


ASSUMED_PEAKS: Final = Peaks(operations_per_second=50_000_000_000, bytes_per_second=10_000_000_000, source="assumed")
"""Stands in where nobody measured the machine: one core of a present-day server. Only their ratio matters."""

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
    inputs=(),
    peaks=ASSUMED_PEAKS,
    programs=(),
    buffers=(),
    tools=(),
    diagnostics=(),
)
"""The header of a table that came without one."""


def header_text(header: RunHeader) -> str:
    """The header as it is written."""
    return pretty(header)


def parse_header(data: bytes, where: str) -> RunHeader:
    """The inverse of `header_text`; `where` names the file in messages.

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
