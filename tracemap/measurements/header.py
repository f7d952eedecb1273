"""The header of a run as JSON: what is written into Parquet's key-value metadata and into `run.csv.json`.

The JSON Schema is `tracemap/schemas/run.schema.json`.
"""

from __future__ import annotations

from typing import Any, Final

from tracemap.errors import RunInvalid, RunVersion
from tracemap.measurements.model import (
    RUN_FORMAT_VERSION,
    Clock,
    Peaks,
    RecordedBuffer,
    RecordedCommand,
    RunDiagnostic,
    RunHeader,
)
from tracemap.units import UNKNOWN, integer_from_json, text_from_json, to_json

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


def header_to_json(header: RunHeader) -> dict[str, Any]:
    """The header as plain JSON values; every key is always present, unknown is null."""
    return {
        "schema_version": RUN_FORMAT_VERSION,
        "kind": "run",
        "module_sha256": to_json(header.module_sha256),
        "bundle": to_json(header.bundle),
        "command": list(header.command),
        "function": to_json(header.function),
        "device": to_json(header.device),
        "workers": to_json(header.workers),
        "clock": header.clock.value,
        "iterations": to_json(header.iterations),
        "warmup": to_json(header.warmup),
        "elapsed_ns": to_json(header.elapsed_ns),
        "inputs": list(header.inputs),
        "peaks": {
            "operations_per_second": header.peaks.operations_per_second,
            "bytes_per_second": header.peaks.bytes_per_second,
            "source": header.peaks.source,
        },
        "programs": [[_command_to_json(command) for command in program] for program in header.programs],
        "buffers": [
            {"id": buffer.id, "one_shot": buffer.one_shot, "program": buffer.program} for buffer in header.buffers
        ],
        "tools": list(header.tools),
        "diagnostics": [{"slug": item.slug, "message": item.message} for item in header.diagnostics],
    }


def _command_to_json(command: RecordedCommand) -> dict[str, Any]:
    return {"kind": command.kind, "kernel": to_json(command.kernel), "workgroups": list(command.workgroups)}


def header_from_json(data: object, where: str) -> RunHeader:
    """The inverse of `header_to_json`; `where` names the file in messages.

    Raises:
        RunVersion: the header is of another format version.
        RunInvalid: it is no header of a run, or a damaged one.
    """
    if not isinstance(data, dict) or data.get("kind") != "run" or "schema_version" not in data:
        raise RunInvalid(f"{where}: not the header of a run; remove the file, or record again")
    if data["schema_version"] != RUN_FORMAT_VERSION:
        raise RunVersion(
            f"{where}: the run is of format version {data['schema_version']!r}, this tracemap reads version "
            f"{RUN_FORMAT_VERSION}; record again, or use the tracemap that wrote it"
        )
    try:
        return _header(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunInvalid(f"{where}: the run's header is damaged ({error!r}); record again") from error


def _header(data: dict[str, Any]) -> RunHeader:
    peaks = data["peaks"]
    return RunHeader(
        module_sha256=text_from_json(data["module_sha256"]),
        bundle=text_from_json(data["bundle"]),
        command=tuple(data["command"]),
        function=text_from_json(data["function"]),
        device=text_from_json(data["device"]),
        workers=integer_from_json(data["workers"]),
        clock=Clock(data["clock"]),
        iterations=integer_from_json(data["iterations"]),
        warmup=integer_from_json(data["warmup"]),
        elapsed_ns=integer_from_json(data["elapsed_ns"]),
        inputs=tuple(data["inputs"]),
        peaks=Peaks(int(peaks["operations_per_second"]), int(peaks["bytes_per_second"]), str(peaks["source"])),
        programs=tuple(tuple(_command(command) for command in program) for program in data["programs"]),
        buffers=tuple(
            RecordedBuffer(int(item["id"]), bool(item["one_shot"]), int(item["program"])) for item in data["buffers"]
        ),
        tools=tuple(data["tools"]),
        diagnostics=tuple(RunDiagnostic(item["slug"], item["message"]) for item in data["diagnostics"]),
    )


def _command(data: dict[str, Any]) -> RecordedCommand:
    workgroups = tuple(int(count) for count in data["workgroups"])
    return RecordedCommand(str(data["kind"]), text_from_json(data["kernel"]), workgroups)
