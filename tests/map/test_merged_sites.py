"""Dispatches without a command of their own that share one with another."""

from __future__ import annotations

import pytest

from tests.builders import site
from tracemap.core.locations import FileRange
from tracemap.ir.flow import EnclosingOps, FlowDispatch
from tracemap.ir.hal import HalCommand
from tracemap.map.build.sites.dispatch_sites import CommandJoin

pytestmark = pytest.mark.quick

KERNEL = "main$async_dispatch_0"


def place(line: int) -> FileRange:
    return FileRange("model.mlir", line, 1, line, 1)


@pytest.mark.parametrize(
    ("taken", "lost", "are_one"),
    [
        (((0, 1), (5, 6)), ((0, 1), (5, 7)), True),  # two arms of an operation
        (((0, 2),), ((0, 3),), True),  # blocks that branches lead to
        (((0, 2), (5, 6)), ((0, 3), (7, 8)), True),  # something in each of these
        (((0, 1),), ((0, 1),), False),  # one behind the other
        (((0, 1),), ((0, 1), (5, 6)), False),  # one behind an operation that the other is in
        (((0, 1), (5, 6)), ((0, 1), (7, 8)), False),  # in two operations, one behind the other
        (((0, 1),), ((2, 3),), True),  # in two functions that one calls
        ((), ((0, 1),), True),  # nobody knows where
        (((0, 1),), (), True),
    ],
)
def test_dispatches_that_always_run_together_are_not_merged(
    taken: EnclosingOps, lost: EnclosingOps, are_one: bool
) -> None:
    dispatches = [FlowDispatch("main", place(line), KERNEL, around) for line, around in ((1, taken), (2, lost))]
    join = CommandJoin([site(0, 1), site(1, 2)], dispatches, [HalCommand("dispatch", KERNEL, place(1), (1, 1, 1))])
    assert join.merged == {"site0": ("site1",) if are_one else ()}
