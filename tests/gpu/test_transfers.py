"""Copies and fills on CUDA: which op each is of, by the program's order, on the stand-ins and on made-up orders."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import duckdb
import pytest

from tests.gpu import OnGpu, slugs
from tests.gpu.standins import StandIns
from tests.gpu.test_recordings import CALLS, attributed, check_balance, record, recorded_by_itself
from tests.support import Json
from tracemap.attribution.join.schedule_nfa import identify_transfers
from tracemap.attribution.model import TransferResult
from tracemap.commands.runs import join_runs
from tracemap.core.toolchain import no_progress
from tracemap.core.units import UNKNOWN
from tracemap.map.bundle import load
from tracemap.map.model import TraceGraph, entry_name
from tracemap.options.results import AttributeOptions
from tracemap.runs.columns import transfer_name

RESNET, LOOP = "torch_resnet18_small", "hand_loop"
FILLS = 19
"""Fills per call of the ResNet, for padding; 102 more fill variables at load, so a first call has 121."""


def transfers_of(run: Path, bundle: Path) -> Mapping[str, TransferResult]:
    attribution = join_runs([run], load(bundle), AttributeOptions(), no_progress).attribution
    return {own.transfer: own for own in attribution.transfers}


def calls_of_transfers(run: Path, bundle: Path) -> Json:
    return {name: own.calls for name, own in transfers_of(run, bundle).items()}


def order_of_call(graph: TraceGraph) -> list[tuple[str, str]]:
    """Names and places of a call's work, for a program with one command buffer per call."""
    (buffer,) = [own for own in graph.command_buffers if not own.initializer]
    work = []
    for index, command in enumerate(buffer.commands):
        if command.kind == "dispatch":
            work.append((entry_name(str(command.kernel)), ""))
        elif command.kind != "barrier":
            work.append((transfer_name(command.kind, command.bytes), f"command{buffer.ordinal}.{index}"))
    return work


def located(graph: TraceGraph, *work: tuple[str, str]) -> list[tuple[object, object]]:
    """What is found for each copy and fill, with what it must be."""
    found = identify_transfers(graph, [name for name, _ in work]).places
    return list(zip(found, [place for name, place in work if "\x1f" in name], strict=True))


def test_each_fill_of_the_resnet_is_at_its_op(standins: StandIns, tmp_path: Path, on_gpu: OnGpu) -> None:
    bundle = on_gpu(RESNET)
    graph = load(bundle).graph
    recording = recorded_by_itself(standins, tmp_path, bundle, RESNET)
    result = attributed(recording, bundle)
    assert len(graph.buffer_transfers) == FILLS
    assert calls_of_transfers(recording, bundle) == {own.id: CALLS for own in graph.all_transfers}
    check_balance(result)
    assert not slugs(result) & {"transfers-astray", "split-evenly"}
    assert "transfer-without-op" not in {row["reason"] for row in result["unattributed"]}


def test_record_names_the_command_of_each_fill(standins: StandIns, tmp_path: Path, on_gpu: OnGpu) -> None:
    bundle, run = on_gpu(RESNET), tmp_path / "run.parquet"
    done = record(standins, run, bundle, RESNET, "--iterations", "5", "--warmup", "1")
    assert done.returncode == 0, done.stderr
    fills = duckdb.read_parquet(str(run)).filter("kind = 'fill'")
    graph = load(bundle).graph
    size_of = {own.id: own.bytes for own in graph.buffer_transfers.values()}
    rows = fills.filter("invocation IS NOT NULL").aggregate("site, payload_bytes, count(*)", "site, payload_bytes")
    assert sorted(rows.fetchall()) == sorted((place, size, 6) for place, size in size_of.items())
    result = attributed(run, bundle)
    check_balance(result)
    found = transfers_of(run, bundle)
    assert {name: own.calls for name, own in found.items()} == dict.fromkeys(size_of, 5)
    # All time of copies and fills in calls is at their ops, apart from outliers.
    totals = sum(own.metrics["duration_ns"].total + own.metrics["duration_ns"].outliers for own in found.values())
    assert totals == result["run"]["elapsed"]["transfers_ns"]


def test_copies_in_a_loop_are_at_their_op(standins: StandIns, tmp_path: Path, on_gpu: OnGpu) -> None:
    bundle = on_gpu(LOOP)
    recording = recorded_by_itself(standins, tmp_path, bundle, LOOP, calls=20)
    result = attributed(recording, bundle)
    (copy,) = load(bundle).graph.all_transfers
    assert calls_of_transfers(recording, bundle) == {copy.id: 100}
    check_balance(result)
    assert "transfers-astray" not in slugs(result)


def test_copies_of_the_host_are_none_of_the_programs(on_gpu: OnGpu) -> None:
    graph = load(on_gpu(RESNET)).graph
    call = order_of_call(graph)
    foreign = (transfer_name("copy", 12), "")
    assert all(found == true for found, true in located(graph, foreign, *call, foreign, *call, foreign))


def test_copies_of_the_host_with_a_size_of_the_programs_leave_only_their_neighbours_open(on_gpu: OnGpu) -> None:
    """A fill at load with the size of the first one of a call cannot be told from it; all others are exact."""
    graph = load(on_gpu(RESNET)).graph
    call = order_of_call(graph)
    found = located(graph, (call[0][0], ""), *call, *call)
    assert [own for own, _ in found[2:]] == [true for _, true in found[2:]]
    assert all(own in (true, UNKNOWN) for own, true in found)


@pytest.mark.parametrize("lost", [0, 3, 20])
def test_no_fill_is_at_a_wrong_op_if_one_is_lost(on_gpu: OnGpu, lost: int) -> None:
    graph = load(on_gpu(RESNET)).graph
    call = order_of_call(graph)
    found = located(graph, *call, *call[:lost], *call[lost + 1 :], *call)
    assert all(own in (true, UNKNOWN) for own, true in found)


def test_unknown_order_says_why(on_gpu: OnGpu) -> None:
    graph = load(on_gpu(RESNET)).graph
    call = order_of_call(graph)
    result = identify_transfers(graph, [name for name, _ in (*call[5:], *call[:5][::-1], *call[3:9])])
    assert result.unknown == len(result.places)
    assert result.why == "the program never submits its copies and fills in this order"
