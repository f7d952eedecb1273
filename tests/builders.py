"""Small builders: valid ops, sites, graphs and attributions in one line each, for tests of what is done with them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import duckdb
from msgspec import structs

from tracemap.attribution.attribute import Request, attribute
from tracemap.attribution.model import Attribution
from tracemap.core.diagnostics import Diagnostic
from tracemap.core.units import UNKNOWN, Integer, Text
from tracemap.ir.model_reader import create_records, parse_model
from tracemap.ir.parsing import MlirParser
from tracemap.map.build.build import BuildRequest, build
from tracemap.map.build.model.model_facts import ModelFacts
from tracemap.map.model import (
    Evidence,
    Frame,
    InnerOperation,
    Kernel,
    Membership,
    ModuleInfo,
    Op,
    OpId,
    Outcome,
    Reason,
    Site,
    SourceFile,
    TraceGraph,
)
from tracemap.options.compile import BuildOptions
from tracemap.options.results import Rule
from tracemap.runs.model import UNKNOWN_HEADER
from tracemap.runs.runfile import read_run, write_run
from tracemap.runs.sql import quoted

MODEL = SourceFile(name="model.mlir", path="model.mlir", language="mlir")


def built_graph(text: str, folder: Path, *flags: str) -> TraceGraph:
    """The map of a model that the real compiler has compiled; its bundle is `m.tracemap` in the folder."""
    options = BuildOptions(force=True, flags=flags)
    request = BuildRequest(text.encode(), "m.mlir", folder / "m.tracemap", options)
    return build(request).graph


def facts_of(model: bytes) -> ModelFacts:
    """What is found out about a model before anything is compiled."""
    parser = MlirParser()
    return ModelFacts(create_records(parser, parse_model(parser, model)))


def op(
    number: int,
    line: Integer = UNKNOWN,
    *,
    name: str = "linalg.generic",
    function: Text = "main",
    file: Text = "model.mlir",
    scope: Sequence[str] = (),
    frames: Sequence[tuple[str, int]] = (),
    outcome: Outcome = Outcome.DISPATCHED,
    reason: str = "does work in a site",
    part_lines: Sequence[int] = (),
    node: str = "",
) -> Op:
    """`op<number>` on a line of `model.mlir`; frames are pairs of file and line, innermost first."""
    return Op(
        id=OpId.of(number),
        name=name,
        function=function,
        file=file,
        line=line,
        column=UNKNOWN if line is UNKNOWN else 5,
        scope=tuple(scope),
        frames=tuple(Frame(file, line, UNKNOWN, UNKNOWN) for file, line in frames),
        outcome=outcome,
        reason=Reason(outcome.value, reason),
        parts=tuple(InnerOperation("arith.addf", line, 7) for line in part_lines),
        node=node,
    )


def site(
    number: int,
    *members: int,
    kernel: str = "main$async_dispatch_0",
    path: Sequence[int] = (),
    initializer: bool = False,
    function: Text = "main",
) -> Site:
    """`site<number>` with the ops of these numbers as members, the first as root."""
    return Site(
        id=f"site{number}",
        ordinal=number,
        function=UNKNOWN if initializer else function,
        path=tuple(OpId.of(call) for call in path),
        kernel=kernel,
        initializer=initializer,
        command_buffer=0,
        command_index=number,
        members=tuple(
            Membership(
                OpId.of(member), Evidence.LOCATED, position == 0, operations=100, bytes_read=48, bytes_written=16
            )
            for position, member in enumerate(members)
        ),
    )


def graph(
    ops: Sequence[Op],
    sites: Sequence[Site] = (),
    *,
    sources: Sequence[SourceFile] = (MODEL,),
    diagnostics: Sequence[Diagnostic] = (),
    name: str = "model",
) -> TraceGraph:
    """A graph of these ops and sites; its kernels are those that the sites name."""
    kernels = dict.fromkeys(site.kernel for site in sites)
    return TraceGraph(
        module=ModuleInfo(name, "ab" * 32, "3.13.0", ("--iree-hal-target-device=local",)),
        functions=(),
        ops=tuple(ops),
        sites=tuple(sites),
        kernels=tuple(Kernel(kernel, tuple(s.id for s in sites if s.kernel == kernel)) for kernel in kernels),
        command_buffers=(),
        sources=tuple(sources),
        diagnostics=tuple(diagnostics),
    )


def attribution(
    map_: TraceGraph,
    totals: Mapping[str, Mapping[str, int]],
    *,
    calls: int = 2,
    executes: Sequence[Mapping[str, int]] = (),
    diagnostics: Sequence[Diagnostic] = (),
    elapsed_ns: Integer = 10_000,
) -> Attribution:
    """What the engine makes, by the rule `equal`, of a run with these events.

    Args:
        map_: the graph.
        totals: metric -> site id -> cost; sites that are left out cost nothing and were not called.
        calls: how often each site that has a cost ran, once in each invocation; the last call takes what does not
            divide evenly.
        executes: submissions: metric (or `covered_ns`) -> value.
        diagnostics: of the run.
        elapsed_ns: of the run.
    """
    header = structs.replace(
        UNKNOWN_HEADER,
        module_sha256=map_.module.sha256,
        command=("iree-benchmark-module",),
        function="main",
        device="local-task",
        workers=1,
        iterations=calls,
        elapsed_ns=elapsed_ns,
        diagnostics=tuple(diagnostics),
    )
    with tempfile.TemporaryDirectory() as folder, duckdb.connect() as connection:
        path = Path(folder) / "run.parquet"
        names = [*_TOLD, *totals]
        columns = ", ".join(f"{quoted(name)} {'VARCHAR' if name in _TEXTS else 'BIGINT'}" for name in names)
        connection.execute(f"CREATE TABLE events ({columns})")
        rows: list[dict[str, int | str]] = list(_dispatches(map_, totals, calls))
        rows += [{"kind": "execute", **values} for values in executes]
        if rows:
            listed = [[row.get(name) for name in names] for row in rows]
            connection.executemany(f"INSERT INTO events VALUES ({', '.join('?' * len(names))})", listed)
        write_run(header, connection.table("events"), path, force=False)
        return attribute(Request(map_, "cd" * 32, [read_run(path)], Rule.EQUAL))


_TEXTS = ("kind", "kernel", "site")
_TOLD = (*_TEXTS, "covered_ns", "invocation")


def _dispatches(
    map_: TraceGraph, totals: Mapping[str, Mapping[str, int]], calls: int
) -> Iterator[dict[str, int | str]]:
    """The events of dispatches: each site that has a cost runs so often."""
    for entry in map_.sites:
        costs = {metric: by_site[entry.id] for metric, by_site in totals.items() if entry.id in by_site}
        for call in range(calls if costs else 0):
            last = call == calls - 1
            parts = {metric: cost // calls + (cost % calls if last else 0) for metric, cost in costs.items()}
            yield {"kind": "dispatch", "kernel": entry.kernel, "site": entry.id, "invocation": call, **parts}
