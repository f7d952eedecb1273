"""The trace graph as JSON: `map.json` in a bundle. Unknown is null; every key is always present."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tracemap.diagnostics import Diagnostic
from tracemap.errors import BundleInvalid, BundleVersion
from tracemap.graph.model import (
    Argument,
    Command,
    CommandBuffer,
    Evidence,
    Fate,
    Frame,
    Function,
    Kernel,
    Membership,
    ModuleInfo,
    Op,
    OpId,
    Part,
    Reason,
    Schedule,
    Site,
    SourceFile,
    Step,
    Submission,
    TraceGraph,
    Transfer,
)
from tracemap.units import integer_from_json, text_from_json, to_json

MAP_VERSION = 2
"""Version of `map.json`. 1: first; 2: kernels have texts, steps have parents."""

Json = dict[str, Any]


def graph_to_json(graph: TraceGraph) -> Json:
    """The whole graph; `graph_from_json` is the inverse."""
    return {
        "schema_version": MAP_VERSION,
        "kind": "map",
        "module": module_to_json(graph.module),
        "functions": [_function_to_json(function) for function in graph.functions],
        "ops": [_kept_op(op, graph.sites_of_op.get(op.id, ())) for op in graph.ops],
        "sites": [_site_with_paths(site) for site in graph.sites],
        "kernels": [kernel_to_json(kernel) for kernel in graph.kernels],
        "coverage": coverage_to_json(graph),
        "command_buffers": [_buffer_to_json(buffer) for buffer in graph.command_buffers],
        "transfers": [_transfer_to_json(transfer) for transfer in graph.transfers],
        "schedules": [_schedule_to_json(schedule) for schedule in graph.schedules],
        "sources": [{"name": s.name, "path": s.path, "language": s.language} for s in graph.sources],
        "diagnostics": [{"slug": d.slug, "message": d.message} for d in graph.diagnostics],
        "library": list(graph.library),
    }


def module_to_json(module: ModuleInfo) -> Json:
    """`module` of the map."""
    return {
        "name": module.name,
        "sha256": module.sha256,
        "iree_compiler": module.iree_compiler,
        "flags": list(module.flags),
    }


def op_to_json(op: Op, sites: Sequence[str]) -> Json:
    """An element of `ops`, with the ids of the sites that it is a member of."""
    return {
        "id": op.id,
        "name": op.name,
        "function": to_json(op.function),
        "file": to_json(op.file),
        "line": to_json(op.line),
        "column": to_json(op.column),
        "scope": list(op.scope),
        "frames": [
            {"file": f.file, "line": f.line, "column": to_json(f.column), "function": to_json(f.function)}
            for f in op.frames
        ],
        "fate": op.fate.value,
        "reason": {"slug": op.reason.slug, "text": op.reason.text},
        "sites": list(sites),
    }


def _kept_op(op: Op, sites: Sequence[str]) -> Json:
    """An op as `map.json` keeps it: beside what is shown, its parts and where its location came from and went."""
    shown = op_to_json(op, sites)
    return {
        **shown,
        "reason": {**shown["reason"], "inferred": op.reason.inferred},
        "parts": [_part_to_json(part) for part in op.parts],
        "own_location": op.own_location,
        "last_phase": to_json(op.last_phase),
    }


def site_to_json(site: Site) -> Json:
    """An element of `sites`."""
    return {
        "id": site.id,
        "ordinal": site.ordinal,
        "function": to_json(site.function),
        "path": list(site.path),
        "kernel": site.kernel,
        "initializer": site.initializer,
        "command_buffer": to_json(site.command_buffer),
        "command_index": to_json(site.command_index),
        "members": [
            {
                "op": member.op,
                "evidence": member.evidence.value,
                "root": member.root,
                "operations": to_json(member.operations),
                "bytes": to_json(member.bytes),
            }
            for member in site.members
        ],
    }


def _site_with_paths(site: Site) -> Json:
    """A site as `map.json` keeps it: beside what is shown, the calls that lead to each member."""
    encoded = site_to_json(site)
    for member, item in zip(site.members, encoded["members"], strict=True):
        item["path"] = list(member.path)
    return encoded


def kernel_to_json(kernel: Kernel) -> Json:
    """An element of `kernels`."""
    steps = [
        {"line": step.line, "op_name": step.op_name, "ops": list(step.ops), "parent": to_json(step.parent)}
        for step in kernel.steps
    ]
    return {"name": kernel.name, "sites": list(kernel.sites), "text": to_json(kernel.text), "steps": steps}


def coverage_to_json(graph: TraceGraph) -> Json:
    """`coverage` of the map: counts of ops by fate, and of sites."""
    by_fate = {fate.value: 0 for fate in Fate}
    for op in graph.ops:
        by_fate[op.fate.value] += 1
    return {
        "ops": len(graph.ops),
        "by_fate": by_fate,
        "sites": len(graph.sites),
        "sites_with_members": sum(1 for site in graph.sites if site.members),
    }


def _part_to_json(part: Part) -> Json:
    return {"name": part.name, "line": to_json(part.line), "column": to_json(part.column)}


def _function_to_json(function: Function) -> Json:
    arguments = [{"name": a.name, "type": a.type, "loop_bound": a.loop_bound} for a in function.arguments]
    return {"name": function.name, "arguments": arguments}


def _buffer_to_json(buffer: CommandBuffer) -> Json:
    return {
        "ordinal": buffer.ordinal,
        "function": to_json(buffer.function),
        "memoized": buffer.memoized,
        "initializer": buffer.initializer,
        "commands": [
            {
                "kind": command.kind,
                "kernel": to_json(command.kernel),
                "site": to_json(command.site),
                "workgroups": [to_json(count) for count in command.workgroups],
                "merged": list(command.merged),
                "ops": list(command.ops),
            }
            for command in buffer.commands
        ],
    }


def graph_from_json(data: Json) -> TraceGraph:
    """Read `map.json` back.

    Raises:
        BundleVersion: it is of another version.
        BundleInvalid: a key is missing or a value is of the wrong kind.
    """
    if not isinstance(data, dict) or "schema_version" not in data:
        raise BundleInvalid("map.json is no map of tracemap; build the bundle again")
    version = data["schema_version"]
    if version != MAP_VERSION:
        raise BundleVersion(f"map.json is of version {version}; this tracemap reads version {MAP_VERSION}")
    try:
        return TraceGraph(
            module=_module_from_json(data["module"]),
            functions=tuple(_function_from_json(item) for item in data["functions"]),
            ops=tuple(_op_from_json(item) for item in data["ops"]),
            sites=tuple(_site_from_json(item) for item in data["sites"]),
            kernels=tuple(_kernel_from_json(item) for item in data["kernels"]),
            command_buffers=tuple(_buffer_from_json(item) for item in data["command_buffers"]),
            sources=tuple(SourceFile(item["name"], item["path"], item["language"]) for item in data["sources"]),
            diagnostics=tuple(Diagnostic(item["slug"], item["message"]) for item in data["diagnostics"]),
            library=tuple(data["library"]),
            transfers=tuple(_transfer_from_json(item) for item in data["transfers"]),
            schedules=tuple(_schedule_from_json(item) for item in data["schedules"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BundleInvalid(f"map.json is damaged ({type(error).__name__}: {error}); build the bundle again") from error


def _module_from_json(item: Json) -> ModuleInfo:
    return ModuleInfo(item["name"], item["sha256"], item["iree_compiler"], tuple(item["flags"]))


def _function_from_json(item: Json) -> Function:
    arguments = tuple(Argument(a["name"], a["type"], a["loop_bound"]) for a in item["arguments"])
    return Function(item["name"], arguments)


def _op_from_json(item: Json) -> Op:
    return Op(
        id=OpId(item["id"]),
        name=item["name"],
        function=text_from_json(item["function"]),
        file=text_from_json(item["file"]),
        line=integer_from_json(item["line"]),
        column=integer_from_json(item["column"]),
        scope=tuple(item["scope"]),
        frames=tuple(_frame_from_json(frame) for frame in item["frames"]),
        fate=Fate(item["fate"]),
        reason=Reason(item["reason"]["slug"], item["reason"]["text"], item["reason"]["inferred"]),
        parts=tuple(
            Part(part["name"], integer_from_json(part["line"]), integer_from_json(part["column"]))
            for part in item["parts"]
        ),
        own_location=item["own_location"],
        last_phase=text_from_json(item["last_phase"]),
    )


def _frame_from_json(item: Json) -> Frame:
    return Frame(item["file"], item["line"], integer_from_json(item["column"]), text_from_json(item["function"]))


def _site_from_json(item: Json) -> Site:
    return Site(
        id=item["id"],
        ordinal=item["ordinal"],
        function=text_from_json(item["function"]),
        path=_ops(item["path"]),
        kernel=item["kernel"],
        initializer=item["initializer"],
        command_buffer=integer_from_json(item["command_buffer"]),
        command_index=integer_from_json(item["command_index"]),
        members=tuple(_member_from_json(member) for member in item["members"]),
    )


def _member_from_json(item: Json) -> Membership:
    return Membership(
        op=OpId(item["op"]),
        evidence=Evidence(item["evidence"]),
        root=item["root"],
        operations=integer_from_json(item["operations"]),
        bytes=integer_from_json(item["bytes"]),
        path=_ops(item["path"]),
    )


def _kernel_from_json(item: Json) -> Kernel:
    steps = tuple(
        Step(step["line"], step["op_name"], _ops(step["ops"]), integer_from_json(step["parent"]))
        for step in item["steps"]
    )
    return Kernel(item["name"], tuple(item["sites"]), steps, text_from_json(item["text"]))


def _buffer_from_json(item: Json) -> CommandBuffer:
    return CommandBuffer(
        ordinal=item["ordinal"],
        function=text_from_json(item["function"]),
        memoized=item["memoized"],
        initializer=item["initializer"],
        commands=tuple(_command_from_json(command) for command in item["commands"]),
    )


def _command_from_json(item: Mapping[str, Any]) -> Command:
    return Command(
        kind=item["kind"],
        kernel=text_from_json(item["kernel"]),
        site=text_from_json(item["site"]),
        workgroups=tuple(integer_from_json(count) for count in item["workgroups"]),
        merged=tuple(item["merged"]),
        ops=_ops(item["ops"]),
    )


def _transfer_to_json(transfer: Transfer) -> Json:
    return {
        "id": transfer.id,
        "kind": transfer.kind,
        "function": to_json(transfer.function),
        "ops": list(transfer.ops),
        "bytes": to_json(transfer.bytes),
    }


def _transfer_from_json(item: Json) -> Transfer:
    return Transfer(
        id=item["id"],
        kind=item["kind"],
        function=text_from_json(item["function"]),
        ops=_ops(item["ops"]),
        bytes=integer_from_json(item["bytes"]),
    )


def _schedule_to_json(schedule: Schedule) -> Json:
    return {
        "function": schedule.function,
        "first": list(schedule.first),
        "submissions": [
            {"buffers": list(s.buffers), "transfer": to_json(s.transfer), "next": list(s.next), "last": s.last}
            for s in schedule.submissions
        ],
    }


def _schedule_from_json(item: Json) -> Schedule:
    submissions = tuple(
        Submission(tuple(s["buffers"]), text_from_json(s["transfer"]), tuple(s["next"]), s["last"])
        for s in item["submissions"]
    )
    return Schedule(item["function"], tuple(item["first"]), submissions)


def _ops(items: Sequence[str]) -> tuple[OpId, ...]:
    return tuple(OpId(item) for item in items)
