"""The ways in which a run's events find their target, each as a table to join and what the join then gives.

What a run tells decides which there are. The order is that of trust: a site that the file names, the command of a
buffer, the position in a submission (these come from `submissions`), and last the kernel.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tracemap.attribution.join.run import UNMATCHED, UNMATCHED_GROUP, Join, Targets
from tracemap.attribution.scan.shapes import recorded_shape
from tracemap.attribution.scan.tables import Row, Tables
from tracemap.measurements.columns import events_sql
from tracemap.measurements.model import Run

_MOST_COMMANDS = 100_000
"""Commands of all recorded buffers up to which they are listed one by one."""


@dataclass(frozen=True, slots=True)
class Source:
    """A run that is being read: its file, what its header tells, and where tables and targets are kept."""

    run: Run
    join: Join
    tables: Tables
    targets: Targets

    @property
    def columns(self) -> frozenset[str]:
        """The names of its file's columns, as SQL compares them."""
        return frozenset(name.strip().lower() for name in self.run.columns)

    @property
    def events(self) -> str:
        """The rows of its file, as a table in SQL."""
        return f"({events_sql(self.run)})"

    def fill(self, name: str, columns: str, rows: Iterable[Row]) -> None:
        """A table of rows that end in a target; the table has its number."""
        self.tables.fill(name, columns, [(*key, self.targets.number_of(target)) for *key, target in rows])


@dataclass(frozen=True, slots=True)
class Lookup:
    """What is joined to the events (named `event`), and the target that dispatches or transfers then have, or NULL.

    The columns of a file may have any name, so all names in the clauses say which table they are of. `of_shape`: the
    shape of what it finds (`shapes`), where the recorded commands tell it. `shapes`: the same by target, where each
    target that it finds has a single one.
    """

    join: str
    of_dispatch: str = ""
    of_transfer: str = ""
    of_shape: str = ""
    shapes: Mapping[int, int] = field(default_factory=dict)


def lookups(source: Source, submitted: Sequence[Lookup]) -> tuple[Sequence[Lookup], Sequence[Lookup]]:
    """The lookups of a run, given those that tell its submissions apart, in the order in which they are asked.

    The first are for events of their own, the second for rows of steps, which always name their kernel and often
    nothing else.
    """
    join = source.join
    exact = (*_by_site(source), *submitted, *_by_command(source, grouped=bool(submitted)))
    every = (*exact, _by_kernel(source))
    # Events that no exact lookup knows may be the map's all the same; where buffers are trusted they are not.
    return exact if join.trusts_buffers and source.run.has_header and join.by_command else every, every


def _by_site(source: Source) -> Iterator[Lookup]:
    if "site" in source.columns and _names_sites(source):
        source.fill("sites", "site VARCHAR, target INTEGER", source.join.by_site.items())
        yield Lookup("LEFT JOIN sites ON sites.site = event.site", "sites.target")


def _names_sites(source: Source) -> bool:
    """Whether a run's column `site` is needed: a recorded run with all its buffers tells more by its commands.

    A CSV would have to be read whole to see whether there is any value.
    """
    if source.run.format == "csv":
        return not (source.join.trusts_buffers and source.join.by_command)
    return bool(source.tables.query(f"SELECT site FROM {source.events} WHERE site IS NOT NULL LIMIT 1"))


def _by_kernel(source: Source) -> Lookup:
    source.fill("kernels", "kernel VARCHAR, target INTEGER", source.join.by_kernel.items())
    return Lookup("LEFT JOIN kernels ON kernels.kernel = event.kernel", "kernels.target")


def _by_command(source: Source, *, grouped: bool) -> Iterator[Lookup]:
    """By command buffer and index; `grouped`: the submissions tell of which group of buffers each event is.

    One whole number for buffer and index is joined several times faster than two.
    """
    join = source.join
    if not ({"command_buffer_id", "command_index"} <= source.columns and join.by_command):
        return
    stride = 1 + max(index for _, index, _ in join.by_command)
    if not grouped and join.trusts_buffers and len(join.header.buffers) * stride <= _MOST_COMMANDS:
        yield _by_command_of_buffer(source, stride)
    else:
        yield _buffer_groups(source)
        yield _by_command_of_group(source, stride, grouped=grouped)


def _by_command_of_buffer(source: Source, stride: int) -> Lookup:
    """With few buffers, their commands are listed under the buffers' own numbers, which saves a join.

    The kernel is the command's: it was compared when the buffers were aligned. That a buffer is known and has no such
    command is all that is computed for most rows.
    """
    of_group = defaultdict(list)
    for (group, index, _), target in source.join.by_command.items():
        of_group[group].append((index, target))
    shapes = [[recorded_shape(command.workgroups) for command in program] for program in source.join.header.programs]
    rows = [
        (buffer.id * stride + index, shapes[buffer.program][index], target)
        for buffer in source.join.header.buffers
        for index, target in of_group[source.join.group_of_buffer.get(buffer.id, UNMATCHED_GROUP)]
    ]
    source.fill("commands", "command BIGINT, shape BIGINT, target INTEGER", rows)
    known = f"CASE WHEN event.command_buffer_id IS NOT NULL THEN {UNMATCHED} END"
    of_command = _joined_commands("event.command_buffer_id", stride)
    single = {source.targets.number_of(target): shape for _, shape, target in rows}
    by_target = single if len({(target, shape) for _, shape, target in rows}) == len(single) else {}
    return Lookup(of_command, f"commands.target, {known}", of_shape="commands.shape", shapes=by_target)


def _buffer_groups(source: Source) -> Lookup:
    groups = source.join.group_of_buffer
    rows = [(buffer.id, groups.get(buffer.id, UNMATCHED_GROUP)) for buffer in source.join.header.buffers]
    source.tables.fill("buffers", "command_buffer_id BIGINT, buffer_group INTEGER", rows)
    return Lookup("LEFT JOIN buffers ON buffers.command_buffer_id = event.command_buffer_id")


def _by_command_of_group(source: Source, stride: int, *, grouped: bool) -> Lookup:
    by_command = source.join.by_command.items()
    rows = [(group * stride + index, kernel, target) for (group, index, kernel), target in by_command]
    source.fill("commands", "command BIGINT, kernel VARCHAR, target INTEGER", rows)
    group = "coalesce(submissions.buffer_group, buffers.buffer_group)" if grouped else "buffers.buffer_group"
    target = "CASE WHEN commands.kernel = event.kernel THEN commands.target END"
    if source.join.trusts_buffers:
        # A buffer that is known and has no such command is another module's, whatever its kernels are called.
        target = f"CASE WHEN buffers.buffer_group IS NOT NULL THEN coalesce({target}, {UNMATCHED}) END"
    return Lookup(_joined_commands(group, stride), target)


def _joined_commands(number: str, stride: int) -> str:
    index = "event.command_index"
    command = f"CASE WHEN {index} < {stride} AND {number} >= 0 THEN {number} * {stride} + {index} END"
    return f"LEFT JOIN commands ON commands.command = {command}"
