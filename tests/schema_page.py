"""Generate the reference of JSON: a table of fields, types and meanings for each record, from the schemas.

The meaning of a field comes from its own description, from a clause in the docstring of its record
(`` `name`: meaning``), from `WORDS`, or from the record that it holds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from tests.schemas import DOCUMENTS, stored_schema

Schema = Mapping[str, Any]

WORDS = {
    "address": "the address in the executable's ELF image",
    "after": "after the change",
    "KernelDifference.after": "the kernel's name after the change",
    "FusionChange.after": "the op's id after the change",
    "Finding.after": "the op's id after the change",
    "OpDifference.after": "the op's id after the change",
    "ShownSpot.after": "the lines around the op after the pass",
    "by_resource": "the bytes of the allocations there, by resource",
    "HeldValue.bytes": "its size",
    "HeldValue.is_carried": "whether it is of the previous trip of a loop",
    "HeldValue.read_by": "the dispatch sites that read it, in the order of the program",
    "HeldValue.resource": "`transient`, `external` (a result), `variable`, `constant` or `staging`",
    "HeldValue.written_by": "the dispatch sites that write it",
    "MemoryUse.peak_bytes": "the bytes of all allocations at the peak",
    "StepRange.first": "the first step, from 0",
    "StepRange.last": "the last step, from 0",
    "aggregation": "the way to combine values, such as `sum`",
    "anchor": "the operation that the pass ran on",
    "argument": "the pass's name in a pipeline",
    "KernelBench.arguments": "the types of the kernel's inputs and outputs",
    "attributed": "the part attributed to ops",
    "before": "before the change",
    "KernelDifference.before": "the kernel's name before the change",
    "FusionChange.before": "the op's id before the change",
    "Finding.before": "the op's id before the change",
    "OpDifference.before": "the op's id before the change",
    "ShownSpot.before": "the lines around the op before the pass",
    "before_ns": "the median before the change",
    "bucket_means": "the mean of each quantile, the lowest first",
    "bundle": "the bundle's folder",
    "by_outcome": "the number of ops per outcome",
    "bytes_read": "bytes that it reads, by its shapes",
    "bytes_written": "bytes that it writes, by its shapes",
    "KernelBench.bytes": "bytes read and written by a call, from the map",
    "KernelBench.operations": "arithmetic operations of a call, from the map",
    "KernelBench.time_ns": "time of a call with warm caches; null if not measured",
    "KernelBench.cold_ns": "time of a call with cold caches; null if not measured",
    "bytes_per_s": "bytes of a call over its time",
    "bytes_per_second": "the bandwidth of a copy",
    "calls": "the number of its calls",
    "OpResult.calls": "the number of calls of the op's dispatches",
    "ShownThread.calls": "the number of calls in the thread",
    "column": "the column in the file, from 1",
    "command_buffer": "the ordinal of the command buffer that records it",
    "command_buffers": "the command buffers of the host program, by column",
    "command_index": "its index in the command buffer",
    "configuration": "the kernel's tile and vector sizes and its compiler pipeline",
    "constant": "true for a constant",
    "cost_ns": "its CPU time in the run",
    "count": "the number of occurrences",
    "cpu": "the index of the CPU",
    "cpu_ns": "time summed over workers",
    "device": "the device, as IREE names it",
    "duration_ns": "wall time",
    "edited": "true if the op changed but still matches",
    "elapsed_ns": "wall time of the measured invocations",
    "elsewhere": "the number of remarks on no line of a kernel",
    "executable": "the executable's name",
    "failed": "the number of failed candidates",
    "outcome_after": "its outcome after the change",
    "outcome_before": "its outcome before the change",
    "file": "the file, as the location names it",
    "StoredInput.file": "its name in `inputs/`",
    "Replacement.file": "the file that replaces it",
    "flags": "flags of the compiler",
    "folder": "the folder that was written for the kernel",
    "found": "the version or path, or the fault",
    "frequency_after_hz": "the CPUs' mean clock frequency after the measured invocations",
    "frequency_before_hz": "the CPUs' mean clock frequency before the measured invocations",
    "function": "the function of the model",
    "Frame.function": "the function that contains the line",
    "run.function": "the invoked entry point",
    "Schedule.function": "the entry point",
    "given": "the series in the columns",
    "gone": "true if the stage has no trace of the op",
    "groups": "the number of timed groups of calls",
    "high": "the largest value",
    "high_ns": "the upper end of the interval",
    "how": "the way the two ops were matched",
    "id": "its id in the map, such as `op12` or `site3`",
    "RecordedBuffer.id": "its id, in creation order",
    "initializer": "true if it runs when the module is loaded, not in an invocation",
    "inlined": "true if it became part of other ops' operations",
    "inputs": "the inputs of the function",
    "instructions": "the number of instructions",
    "involuntary_switches": "the number of preemptions of its threads",
    "iree_compiler": "the version of IREE's compiler",
    "iterations": "the number of measured invocations",
    "kernel": "the kernel's name",
    "kernels": "the names of its kernels",
    "map.kernels": "the kernels, by column",
    "kernels_after": "its kernels after the change",
    "kernels_before": "its kernels before the change",
    "kind": "the kind of document",
    "Finding.kind": "the kind of change, such as `slower` or `new`",
    "RecordedCommand.kind": "the kind of command, as for events, or `barrier`",
    "Remark.kind": "`passed`, `missed` or `analysis`, in LLVM's terms",
    "RemarkDifference.kind": "`new`: only or more often after; `gone`: only or more often before",
    "library": "patterns of files of libraries, whose frames are not the user's own",
    "line": "the line in the file, from 1",
    "KernelLine.line": "the line of kernel IR",
    "ShownStep.line": "the line of kernel IR; 0: code without a line",
    "ShownInstruction.line": "the line of kernel IR",
    "OperationOutsideLoops.line": "the line in the stage's text",
    "line_after": "its line after the change",
    "line_before": "its line before the change",
    "lines": "the lines of kernel IR with code in it",
    "located": "the number of ops with a location of their own after the phase",
    "loop_bound": "true if it decides the trip count of a loop",
    "loops": "the outermost loops in which it runs",
    "lost": "the number of ops that lost their location in it",
    "low": "the smallest value",
    "low_ns": "the lower end of the interval",
    "major_faults": "page faults that read from a disk",
    "map_sha256": "hash of the bundle's `map.json`",
    "matches": "true if they agree",
    "max": "the largest value",
    "measured": "the measured total",
    "median": "the median",
    "median_after": "its median after the change, in the unit of the metric",
    "median_before": "its median before the change, in the unit of the metric",
    "median_ns": "the median",
    "message": "a sentence for people",
    "metric": "the metric's name",
    "metrics": "the amount of each metric, by name",
    "migrations": "the number of migrations of its threads to another CPU",
    "minor_faults": "page faults without a disk",
    "module_sha256": "hash of the compiled module",
    "name": "its name",
    "name_before": "the operation before the change",
    "StoredInput.name": "the argument's name in the program",
    "AuditedOp.name": "the operation, such as `stablehlo.dot_general`",
    "Finding.name": "the operation, such as `stablehlo.dot_general`",
    "LoweredOp.name": "the operation, such as `stablehlo.dot_general`",
    "OpChange.name": "the operation, such as `stablehlo.dot_general`",
    "OpDifference.name": "the operation, such as `stablehlo.dot_general`",
    "ShownLoss.name": "the operation, such as `stablehlo.dot_general`",
    "ShownOp.name": "the operation, such as `stablehlo.dot_general`",
    "FusionChange.name": "the operation, such as `stablehlo.dot_general`",
    "Loop.name": "the loop operation, such as `scf.for`",
    "OperationOutsideLoops.name": "the operation",
    "MetricTotal.name": "the metric's name, with its unit",
    "MetricDifference.name": "the metric's name, with its unit",
    "Remark.name": "LLVM's name of the remark",
    "of": "the series in the rows",
    "one_shot": "true if it was created for a single submission",
    "op": "the op's id",
    "op_name": "the operation",
    "operation": "the operation, with sizes and type",
    "operation_kind": "the operation of its root",
    "operations": "the number of arithmetic operations, estimated",
    "operations_per_s": "operations of a call over its time",
    "operations_per_second": "the arithmetic rate of a matrix product",
    "ops": "the ids of the ops",
    "ComparedSide.ops": "the number of the model's ops",
    "Coverage.ops": "the number of the model's ops",
    "Drift.ops": "the number of unchanged ops that show it",
    "Locations.ops": "the number of the model's ops",
    "map.ops": "the ops, by column",
    "ordinal": "its index in the program",
    "original": "the bundle before the change",
    "own": "the number of ops with a location of their own",
    "p10": "the 10th percentile",
    "p90": "the 90th percentile",
    "pairs": "the number of alternating recordings",
    "parent": "the index of the loop around it",
    "pass": "the pass of the compiler",
    "path": "its call stack, outermost first",
    "phase": "the phase of the compiler",
    "pipeline": "the pass pipeline of the stage; null: the model as written",
    "place": "the index of the output, from 0",
    "platform": "the operating system and its version",
    "probabilities": "the probability of each quantile of one series, given each quantile of the other",
    "python": "the version of Python",
    "q1": "the lower quartile",
    "q3": "the upper quartile",
    "ratio": "after over before",
    "ratio_high": "the upper bound of the ratio",
    "ratio_low": "the lower bound of the ratio",
    "reason": "the reason that the cost is unattributed",
    "remainders": "the indices of its operations outside loops",
    "remedy": "how to fix it",
    "unattributed": "the unattributed part",
    "root": "true for the op that the kernel is built around",
    "run": "the run's name",
    "SlowCall.run": "the run's index, from 1",
    "said": "the result of the comparison in words",
    "same_model": "true if both were built from the same model",
    "schema_version": "the version of this document's format",
    "scope": "the names of its scopes, outermost first",
    "StoredParameters.scope": "the scope in which the module looks for them",
    "sha256": "hash of `module.vmfb`",
    "site": "the id of the dispatch site",
    "sites": "the ids of the dispatch sites",
    "Coverage.sites": "the number of dispatch sites",
    "map.sites": "the dispatch sites, by column",
    "sites_with_members": "the number of dispatch sites with a known op",
    "slug": "a stable name for programs",
    "source": "`measured` or `assumed`",
    "stage": "the replaced text: source, configuration or object",
    "text": "the text",
    "Reason.text": "a sentence for people",
    "ShownReason.text": "a sentence for people",
    "ShownStage.text": "the model as MLIR",
    "thread": "the thread",
    "threshold_percent": "the smallest listed change",
    "total": "the sum over calls, which its ops share",
    "tracemap": "the version of tracemap",
    "transfers": "the copies and fills, by column",
    "tried": "the number of tried candidates",
    "type": "its type, as MLIR writes it",
    "unit": "its unit",
    "used_by": "the commands that need it",
    "voluntary_switches": "the number of times a thread gave up its CPU",
    "workers": "the number of threads that ran kernels",
    "workgroups": "workgroup counts along x, y and z",
    "CacheSpeed.bytes": "the size of the cache",
    "Disagreement.site": "the dispatch site with the largest difference",
    "Disagreement.op": "the op with the largest difference",
    "RemarkDifference.kernel": "the kernel, on the side with the remark",
    "RemarkDifference.line": "the line of kernel IR, on the side with the remark",
    "RemarkDifference.text": "the remark",
    "Remark.text": "the remark",
    "ShownInstruction.text": "the instruction in assembly",
    "GroupedCost.ops": "the number of ops",
    "GroupedCost.name": "the scope or source line",
    "OpCost.low": "the lower bound that the evidence alone proves",
    "OpCost.high": "the upper bound that the evidence alone proves",
    "OpCost.likely_low": "the lower end of the likely range of `attributed`",
    "OpCost.likely_high": "the upper end of the likely range of `attributed`",
    "OpCost.uncertain": "true if the likely range is too wide for ranking the op",
    "Invocation.low_ns": "the lower end of the median's 95 % interval",
    "Invocation.high_ns": "the upper end of the median's 95 % interval",
    "PerInvocation.median_low": "the lower end of the median's 95 % interval",
    "PerInvocation.median_high": "the upper end of the median's 95 % interval",
    "OpChange.after_ns": "the median after the change, corrected for drift",
    "OpChange.ratio": "after over before, corrected for drift",
    "OpResult.name": "the operation, such as `stablehlo.dot_general`",
    "Overhead.transfer_ns": "copies and fills that the run timed",
    "Overhead.allocation_ns": "allocation and release of transient buffers",
    "Overhead.launch_ns": "a submission ran, but none of its dispatches",
    "Overhead.queue_ns": "work was submitted, but had not started",
    "Overhead.host_ns": "nothing was submitted: host code or a wait",
    "Overhead.other_ns": "the rest: the profiler, and what is unexplained",
    "ShownChange.after_ns": "mean time of an invocation after the change, without outliers",
    "Submission.last": "true if the invocation may end after it",
    "Link.evidence": "the evidence for the op",
    "Drift.ratio": "time on the second side over time on the first",
}
"""Meanings of fields without another description, by name of the field or of record and field."""

_UNITS = {"_ns": "ns", "_hz": "Hz", "_percent": "%", "_bytes": "bytes", "bytes": "bytes", "_per_s": "per second"}
_CLAUSE = re.compile(r"((?:`\w+`(?:, | and |/)?)+)(?:: | is | are )(.*?)(?=; `|; and `|, and `\w+`:|\.(?: |$)|$)")


def schema_page() -> str:
    """Return a section for each document, and one for each record in it."""
    records = {name: schema for document in DOCUMENTS for name, schema in stored_schema(document)["$defs"].items()}
    parts = [_section("##", name, stored_schema(name), records) for name in DOCUMENTS]
    parts.append("## Records\n\nThe parts of the documents, by their names in the schemas.\n")
    parts += [_section("###", name, schema, records) for name, schema in sorted(records.items())]
    return "\n".join(parts)


def _section(heading: str, name: str, schema: Schema, records: Mapping[str, Schema]) -> str:
    title = f"`{name}.schema.json`: {schema['title']}. " if heading == "##" else ""
    rows = [
        f"| `{field}` | {_cell(type_of(value, field))} | {_cell(meaning(name, field, schema, records))} |"
        for field, value in schema.get("properties", {}).items()
    ]
    if not rows:
        return f"{heading} {name}\n\n{title}{_description(schema)}\n"
    table = "\n".join(["| field | type | meaning |", "|---|---|---|", *rows])
    return f"{heading} {name}\n\n{title}{_description(schema)}\n\n{table}\n"


def _description(schema: Schema) -> str:
    """Return the docstring of a record as one paragraph in JSON's terms, without the errors of its constructor."""
    text: str = schema.get("description", "")
    words = " ".join(text.partition("Raises:")[0].split()).replace("<", r"\<")
    return re.sub(r"`UNKNOWN`|\bNone\b", "null", words)


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


def meaning(name: str, field: str, schema: Schema, records: Mapping[str, Schema]) -> str:
    """Return the meaning of a field; "" if it has no description."""
    value = schema["properties"][field]
    clauses = {
        word: text for words, text in _CLAUSE.findall(_description(schema)) for word in re.findall(r"`(\w+)`", words)
    }
    inner = next((records[record] for record in _referenced(value) if record in records), {})
    sentence = re.split(r"\.(?: |$)", _description(inner))[0]
    words = WORDS.get(f"{name}.{field}") or value.get("description") or clauses.get(field)
    return _uncapitalized(str(words or sentence or WORDS.get(field, "")).removesuffix("."))


def _uncapitalized(text: str) -> str:
    """Return a sentence with a small first letter, for a cell of a table."""
    return text[:1].lower() + text[1:] if text[1:2].islower() or text[1:2] == " " else text


def _referenced(value: object) -> list[str]:
    """Return the names of the records in a type."""
    return re.findall(r'"#/\$defs/(\w+)"', json.dumps(value))


def type_of(value: Schema, field: str = "") -> str:
    """Return a type in plain words; a number has the unit in the field's name."""
    if "$ref" in value:
        (name,) = _referenced(value)
        return f"[{name}](#{name.lower()})"
    if "anyOf" in value:
        return " or ".join(type_of(choice, field) for choice in value["anyOf"])
    if "enum" in value:
        return ", ".join("null" if choice is None else f"`{choice}`" for choice in value["enum"])
    kind = value.get("type")
    if isinstance(kind, list):
        return " or ".join(type_of({**value, "type": choice}, field) for choice in kind)
    if kind == "array":
        return f"list of {type_of(value['items'], field)}" if "items" in value else "list"
    if kind == "object":
        return _object(value, field)
    unit = next((unit for ending, unit in _UNITS.items() if field.endswith(ending)), "")
    plain = _PLAIN.get(str(kind), str(kind))
    return f"{plain}, {unit}" if unit and kind in {"integer", "number"} else plain


_PLAIN = {"string": "text", "boolean": "truth", "null": "null", "integer": "integer", "number": "number"}


def _object(value: Schema, field: str) -> str:
    if isinstance(value.get("additionalProperties"), dict):
        return f"object: by name {type_of(value['additionalProperties'], field)}"
    return f"object: {', '.join(f'`{name}`' for name in value.get('properties', {}))}".removesuffix(": ")
