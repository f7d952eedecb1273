"""Kernels of commands that have only an index: found by location, or by order."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tracemap.core.locations import FileRange
from tracemap.core.units import UNKNOWN, Text
from tracemap.ir.flow import FlowDispatch
from tracemap.ir.hal import HalBuffer, HalCommand, HalProgram
from tracemap.map.build.sites.dispatch_sites import kernels_of_exports, with_kernels

pytestmark = pytest.mark.quick


def line(number: int) -> FileRange:
    return FileRange("m.mlir", number, 1, number, 1)


def dispatches(*pairs: tuple[str, int]) -> list[FlowDispatch]:
    return [FlowDispatch("main", line(number), kernel) for kernel, number in pairs]


def command(ordinal: int, number: int, executable: str = "exe") -> HalCommand:
    return HalCommand("dispatch", UNKNOWN, line(number), (1, 1, 1), (executable, ordinal))


def named(commands: Sequence[HalCommand], *pairs: tuple[str, int]) -> dict[tuple[str, int], str]:
    return kernels_of_exports(commands, dispatches(*pairs))


def test_locations_name_kernels_whatever_the_numbers_are() -> None:
    assert named([command(1, 10), command(0, 20)], ("a", 10), ("b", 20)) == {("exe", 1): "a", ("exe", 0): "b"}


def test_all_commands_of_a_number_are_looked_at() -> None:
    # Line 10 was split into a and b; number 0 is also at line 20, where only b is.
    found = named([command(0, 10), command(1, 10), command(0, 20)], ("a", 10), ("b", 10), ("b", 20))
    assert found == {("exe", 0): "b", ("exe", 1): "a"}


def test_where_locations_do_not_tell_numbers_go_in_the_order_of_kernels() -> None:
    found = named([command(1, 10), command(0, 10)], ("a", 10), ("b", 10))
    assert found == {("exe", 0): "a", ("exe", 1): "b"}


def test_executables_number_for_themselves() -> None:
    commands = [command(0, 10, "one"), command(0, 10, "other")]
    assert named(commands, ("a", 10)) == {("one", 0): "a", ("other", 0): "a"}


def test_commands_at_unknown_locations_have_no_kernel() -> None:
    assert named([command(0, 99), command(1, 10)], ("a", 10)) == {("exe", 1): "a"}


def test_commands_that_are_named_or_do_not_dispatch_stay_as_they_are() -> None:
    barrier = HalCommand("barrier", UNKNOWN, line(10), ())
    given = HalCommand("dispatch", "a", line(10), (1, 1, 1))
    newer = HalProgram((HalBuffer("main", True, (given, barrier)),), frozenset())
    assert with_kernels(newer, dispatches(("a", 10))) is newer
    older = HalProgram((HalBuffer("main", True, (command(0, 10), barrier, given)),), frozenset())
    kernels: list[Text] = [one.kernel for one in with_kernels(older, dispatches(("a", 10))).buffers[0].commands]
    assert kernels == ["a", UNKNOWN, "a"]
