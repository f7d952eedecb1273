"""The reference of JSON: a table of fields, types and meanings for each record, made of the schemas.

What a field means is told by its own description, by a clause in the docstring of its record (`` `name`: what it is``),
by the words below, or by the record that it holds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tests.schemas import DOCUMENTS, stored_schema

Schema = Mapping[str, Any]

WORDS = {
    "address": "the address in the executable's ELF image",
    "after": "afterwards",
    "KernelDifference.after": "the kernel's name afterwards",
    "Regrouped.after": "the op's id afterwards",
    "Finding.after": "the op's id afterwards",
    "OpDifference.after": "the op's id afterwards",
    "ShownSpot.after": "the lines around the op after the pass",
    "aggregation": "how values are put together",
    "anchor": "the operation that the pass ran on",
    "argument": "what the pass is called in a pipeline",
    "KernelBench.arguments": "the types of what the kernel reads, and of what it writes",
    "attributed": "what ops have of it",
    "before": "beforehand",
    "KernelDifference.before": "the kernel's name beforehand",
    "Regrouped.before": "the op's id beforehand",
    "Finding.before": "the op's id beforehand",
    "OpDifference.before": "the op's id beforehand",
    "ShownSpot.before": "the lines around the op before the pass",
    "before_ns": "the median before",
    "bucket_means": "the mean of each quantile, the lowest first",
    "buffers": "on how many sets of data in turn",
    "bundle": "the bundle's folder",
    "by_fate": "how many ops have each fate",
    "bytes": "how many bytes it reads and writes, as estimated",
    "KernelBench.bytes": "how many bytes a call reads and writes, by the map",
    "KernelBench.operations": "how many operations of arithmetic a call has, by the map",
    "KernelBench.time_ns": "a call with warm caches; null where it was not measured",
    "KernelBench.cold_ns": "a call with cold caches; null where it was not measured",
    "bytes_per_s": "bytes of a call by its time",
    "bytes_per_second": "how much a copy moves",
    "calls": "how often it ran",
    "OpResult.calls": "how often the sites of the op ran",
    "ShownThread.calls": "how many calls the thread made",
    "column": "the column in the file, from 1",
    "command_buffer": "the ordinal of the command buffer that it is recorded in",
    "command_buffers": "the command buffers of the host program, by column",
    "command_index": "its place among the commands of the buffer",
    "configuration": "how the kernel is tiled, and by which pipeline it is compiled",
    "constant": "whether it is a constant",
    "cost_ns": "its CPU time in the run",
    "count": "how often it is said",
    "cpu": "the processor's number",
    "cpu_ns": "time of all workers",
    "device": "what ran it, as IREE names it",
    "duration_ns": "wall time",
    "edited": "whether the op itself is another than before, though it is matched",
    "elapsed_ns": "wall time of the measured calls",
    "elsewhere": "how many remarks name no line of a kernel",
    "executable": "its name",
    "failed": "how many of them failed",
    "fate_after": "what became of it afterwards",
    "fate_before": "what became of it beforehand",
    "file": "the file, as the location names it",
    "KeptInput.file": "its name in `inputs/`",
    "Replacement.file": "the file that took its place",
    "flags": "of the compiler",
    "folder": "the folder that was written for it",
    "found": "what there is of it",
    "frequency_after_hz": "the clock of the processors behind the measured calls, a mean",
    "frequency_before_hz": "the clock of the processors before the measured calls, a mean",
    "function": "the function of the model",
    "Frame.function": "the function that the line is in",
    "run.function": "the entry point that was called",
    "Schedule.function": "the entry point",
    "given": "the series of the columns",
    "gone": "whether nothing of it is left",
    "groups": "how many groups of calls were timed",
    "high": "the largest",
    "high_ns": "the upper end of the interval",
    "how": "how the two were matched",
    "id": "its name in the map, such as `op12` or `site3`",
    "RecordedBuffer.id": "its number, which rises in creation order",
    "initializer": "whether it runs when the module is loaded, and not in a call",
    "inlined": "whether it became part of operations of another op",
    "inputs": "what the function was called with",
    "instructions": "how many instructions it has",
    "invocation": "the number of the call of the function, warm-up included",
    "involuntary_switches": "how often a thread was taken off its processor",
    "iree_compiler": "the version of IREE's compiler",
    "iterations": "how many calls were measured",
    "kernel": "the kernel's name",
    "kernels": "the names of its kernels",
    "map.kernels": "the kernels, by column",
    "kernels_after": "its kernels afterwards",
    "kernels_before": "its kernels beforehand",
    "kind": "which document this is",
    "Finding.kind": "what was found, such as `slower` or `new`",
    "RecordedCommand.kind": "what the command does, as of events, or `barrier`",
    "Remark.kind": "`passed`, `missed` or `analysis`, as LLVM calls it",
    "RemarkDifference.kind": "`new`, `gone` or said more often",
    "language": "`mlir` or `python`",
    "last": "whether the call may return after it",
    "library": "patterns of files whose frames are not the user's own",
    "line": "the line in the file, from 1",
    "Step.line": "the line of the kernel's text",
    "ShownStep.line": "the line of the kernel's text; 0: code without a line",
    "ShownInstruction.line": "the line of the kernel's text",
    "Remainder.line": "the line of the stage's text",
    "line_after": "its line afterwards",
    "line_before": "its line beforehand",
    "lines": "the lines of the kernel's text that have code in it",
    "located": "how many ops have a location of their own behind it",
    "loop_bound": "whether it decides how often a loop runs",
    "loops": "the outermost loops in which it works",
    "lost": "how many ops lost theirs in it",
    "low": "the smallest, or what the evidence alone proves",
    "low_ns": "the lower end of the interval",
    "major_faults": "page faults that read from a disk",
    "map_sha256": "of the bundle's `map.json`",
    "matches": "whether they agree",
    "max": "the largest",
    "measured": "all that was measured of it",
    "median": "the median",
    "median_after": "its median afterwards, by the metric",
    "median_before": "its median beforehand, by the metric",
    "median_high": "the upper bound of the median",
    "median_low": "the lower bound of the median",
    "median_ns": "the median",
    "message": "a sentence for people",
    "metric": "the metric's name",
    "metrics": "by the names of metrics how much of each",
    "migrations": "how often a thread went on on another processor",
    "minor_faults": "page faults without a disk",
    "module_sha256": "of the compiled module",
    "name": "its name",
    "name_before": "the operation beforehand",
    "KeptInput.name": "what the program calls the argument",
    "AuditedOp.name": "the operation, such as `stablehlo.dot_general`",
    "Finding.name": "the operation, such as `stablehlo.dot_general`",
    "LoweredOp.name": "the operation, such as `stablehlo.dot_general`",
    "OpChange.name": "the operation, such as `stablehlo.dot_general`",
    "OpDifference.name": "the operation, such as `stablehlo.dot_general`",
    "ShownLoss.name": "the operation, such as `stablehlo.dot_general`",
    "ShownOp.name": "the operation, such as `stablehlo.dot_general`",
    "Regrouped.name": "the operation, such as `stablehlo.dot_general`",
    "Loop.name": "the operation that the loop is, such as `scf.for`",
    "Remainder.name": "the operation",
    "MetricTotal.name": "the metric's name, with its unit",
    "MetricDifference.name": "the metric's name, with its unit",
    "Remark.name": "what LLVM calls the remark",
    "observed_ns": "for how long of the measured calls it was looked at",
    "of": "the series of the rows",
    "one_shot": "whether it was made for a single submission",
    "op": "the op's id",
    "op_name": "the operation",
    "operation": "what it computes, with sizes and type",
    "operation_kind": "the operation of its root",
    "operations": "how many operations of arithmetic, as estimated",
    "operations_per_s": "operations of a call by its time",
    "operations_per_second": "how many operations a matrix product does",
    "ops": "the ids of the ops",
    "ComparedSide.ops": "how many ops the model has",
    "Coverage.ops": "how many ops the model has",
    "Drift.ops": "by how many ops it is told",
    "Locations.ops": "how many ops the model has",
    "map.ops": "the ops, by column",
    "ordinal": "its place among the sites of the program",
    "original": "the bundle that was changed",
    "own": "how many have one",
    "p10": "the 10th percentile",
    "p90": "the 90th percentile",
    "pairs": "how often the two were recorded in turn",
    "parent": "the place of the loop around it",
    "pass": "the pass of the compiler",
    "path": "the calls that lead there, outermost first",
    "SourceFile.path": "its place below the bundle's `source/`",
    "phase": "the phase of the compiler",
    "pipeline": "the passes that made it; null: the model as it is",
    "place": "which of the outputs, from 0",
    "platform": "the system that it runs on",
    "probabilities": "how probable each quantile of one series is where the other is in one of its own",
    "python": "its version",
    "q1": "the lower quartile",
    "q3": "the upper quartile",
    "ratio": "how many times as much",
    "ratio_high": "the upper bound of the ratio",
    "ratio_low": "the lower bound of the ratio",
    "reason": "why it is of no op",
    "remainders": "the places of what it became outside of loops",
    "remedy": "what would help",
    "repetitions": "how often a batch was timed",
    "residual": "what is of no op",
    "root": "whether the kernel is made around it",
    "run": "the run that it is told by",
    "SlowCall.run": "the run's place among the runs, from 1",
    "said": "what is to be said of it",
    "same_model": "whether both were made of the same model",
    "likely_low": "the lower end of the interval that samples leave",
    "schema_version": "the version of this document's format",
    "scope": "the names of the scopes that it stands in, outermost first",
    "KeptParameters.scope": "the scope in which the module looks for them",
    "sha256": "of `module.vmfb`",
    "site": "the site's id",
    "sites": "the ids of the sites",
    "Coverage.sites": "how many sites the program has",
    "map.sites": "the sites, by column",
    "sites_with_members": "how many of them have an op that works in them",
    "slug": "a word that stays the same, by which programs know it",
    "source": "where they were got from",
    "stage": "what was replaced: the source, the configuration or the object",
    "text": "the text",
    "Reason.text": "a sentence for people",
    "ShownReason.text": "a sentence for people",
    "ShownStage.text": "the model as MLIR",
    "thread": "the thread",
    "threshold_percent": "what is less is no finding",
    "total": "the sum over calls, which its ops share",
    "tracemap": "its version",
    "transfers": "what is copied and filled, by column",
    "tried": "how many candidates were tried",
    "type": "its type, as MLIR writes it",
    "unit": "what it is counted in",
    "used_by": "what needs it",
    "voluntary_switches": "how often a thread gave up its processor",
    "workers": "how many threads ran kernels",
    "workgroups": "how many along x, y and z",
}
"""What fields mean of which nothing else tells it, by their names, or by those of record and field."""

_UNITS = {"_ns": "ns", "_hz": "Hz", "_percent": "%", "_bytes": "bytes", "bytes": "bytes", "_per_s": "per second"}
_CLAUSE = re.compile(r"((?:`\w+`(?:, | and |/)?)+)(?:: | is | are )(.*?)(?=; `|; and `|, and `\w+`:|\.(?: |$)|$)")


def schema_page() -> str:
    """A section for each document, and one for each record that they are made of."""
    records = {name: made for each in DOCUMENTS for name, made in stored_schema(each)["$defs"].items()}
    parts = [_section("##", name, stored_schema(name), records) for name in DOCUMENTS]
    parts.append("## Records\n\nWhat the documents hold, by its name in the schemas.\n")
    parts += [_section("###", name, made, records) for name, made in sorted(records.items())]
    return "\n".join(parts)


def _section(heading: str, name: str, made: Schema, records: Mapping[str, Schema]) -> str:
    title = f"`{name}.schema.json`: {made['title']}. " if heading == "##" else ""
    rows = [
        f"| `{field}` | {_cell(type_of(value, field))} | {_cell(meaning(name, field, made, records))} |"
        for field, value in made.get("properties", {}).items()
    ]
    if not rows:
        return f"{heading} {name}\n\n{title}{_told(made)}\n"
    table = "\n".join(["| field | type | meaning |", "|---|---|---|", *rows])
    return f"{heading} {name}\n\n{title}{_told(made)}\n\n{table}\n"


def _told(made: Schema) -> str:
    """What a docstring says of a record, as one paragraph of JSON's words, without the errors of its constructor."""
    text: str = made.get("description", "")
    words = " ".join(text.partition("Raises:")[0].split()).replace("<", r"\<")
    return re.sub(r"`UNKNOWN`|\bNone\b", "null", words)


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


def meaning(name: str, field: str, made: Schema, records: Mapping[str, Schema]) -> str:
    """What a field is; "" where nothing tells."""
    value = made["properties"][field]
    clauses = {word: text for words, text in _CLAUSE.findall(_told(made)) for word in re.findall(r"`(\w+)`", words)}
    held = next((records[each] for each in _referred(value) if each in records), {})
    sentence = re.split(r"\.(?: |$)", _told(held))[0]
    words = WORDS.get(f"{name}.{field}") or value.get("description") or clauses.get(field)
    return _small(str(words or sentence or WORDS.get(field, "")).removesuffix("."))


def _small(text: str) -> str:
    """A sentence as words of a table: most of these are none."""
    return text[:1].lower() + text[1:] if text[1:2].islower() or text[1:2] == " " else text


def _referred(value: object) -> Iterator[str]:
    """The names of the records that a type is made of."""
    found: list[str] = re.findall(r'"#/\$defs/(\w+)"', json.dumps(value))
    yield from found


def type_of(value: Schema, field: str = "") -> str:
    """A type in plain words; of numbers with the unit that the field's name tells."""
    if "$ref" in value:
        (name,) = _referred(value)
        return f"[{name}](#{name.lower()})"
    if "anyOf" in value:
        return " or ".join(type_of(each, field) for each in value["anyOf"])
    if "enum" in value:
        return ", ".join("null" if each is None else f"`{each}`" for each in value["enum"])
    kind = value.get("type")
    if isinstance(kind, list):
        return " or ".join(type_of({**value, "type": each}, field) for each in kind)
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
