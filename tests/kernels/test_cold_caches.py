"""Kernels run with cold caches use all copies of their data in turn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.kernels.test_bench import first_kernel
from tests.support import check_cli
from tracemap.kernels import runner
from tracemap.kernels.runner_jobs import Call, Job, written_path
from tracemap.map.bundle import load

_IN_PLACE = """
util.global private mutable @sum = dense<0> : tensor<64x64xi32>
func.func @main(%x: tensor<64x64xi32>, %y: tensor<64x64xi32>) {
  %old = util.global.load @sum : tensor<64x64xi32>
  %new = linalg.matmul ins(%x, %y : tensor<64x64xi32>, tensor<64x64xi32>) outs(%old : tensor<64x64xi32>)
      -> tensor<64x64xi32>
  util.global.store %new, @sum : tensor<64x64xi32>
  return
}
"""
"""A kernel that adds the same to its result in each call, so that the result tells how many calls there were."""


@pytest.fixture(scope="module")
def added(tmp_path_factory: pytest.TempPathFactory) -> tuple[Call, Path]:
    folder = tmp_path_factory.mktemp("in_place")
    model, bundle = folder / "sum.mlir", folder / "sum.tracemap"
    model.write_text(_IN_PLACE)
    check_cli("build", model, "-o", bundle)
    return first_kernel(load(bundle), folder)


def first_numbers(prepared: runner._PreparedCall) -> list[int]:
    """The first number of the result in each copy."""
    ((buffer, data),) = (
        (buffer, data) for buffer, data in zip(prepared.call.buffers, prepared._bytes, strict=True) if buffer.written
    )
    begins = (buffer.begin + copy * buffer.moved for copy in range(prepared.copies))
    return [int(data[begin : begin + 4].view(np.int32)[0]) for begin in begins]


@pytest.mark.parametrize(("copies", "batch"), [(1, 1), (3, 4), (3, 1024), (300, 3000), (700, 2000), (1100, 1200)])
def test_each_copy_is_used_as_often(added: tuple[Call, Path], copies: int, batch: int) -> None:
    """Of 700 copies, 324 were used twice in a batch of 1,024 calls, the second time behind the first few hundred."""
    call, module = added
    device = runner._Device(Job((written_path(module),), "local-sync", (call,), "", 1, 1, 0))
    prepared = runner._PreparedCall(device, call, copies)
    before = first_numbers(prepared)
    whole = runner._round_batch_up(batch, copies)
    prepared.run(whole)
    changes = {(new - old) % 2**32 for old, new in zip(before, first_numbers(prepared), strict=True)}
    assert whole >= batch
    assert len(changes) == 1
