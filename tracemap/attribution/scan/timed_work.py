"""When work ran in an invocation: what ran concurrently, and what waited for the host.

Runs of many events are sampled by whole invocations, so that memory does not grow with the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from tracemap.attribution.join.targets import EXECUTE, MEMORY, Target
from tracemap.attribution.model import TimedWork
from tracemap.attribution.scan.event_lookups import Lookup, Source, clauses
from tracemap.attribution.scan.outliers import threshold_of_values
from tracemap.attribution.scan.rows import TARGET, Resolved, shape_sql
from tracemap.core.units import MAX_INTEGER
from tracemap.runs.model import Run

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

MOST_EVENTS: Final = 1 << 17
"""About the most events that are kept. Of runs with more, only the invocations of some windows are."""
_WINDOWS: Final = 16
"""Number of windows of consecutive invocations, evenly spaced, since invocations may alternate."""

_COLUMNS: Final = """
run INTEGER, invocation INTEGER, target INTEGER, shape BIGINT, submission BIGINT, buffer BIGINT, command BIGINT,
submitted_ns BIGINT, start_ns BIGINT, duration_ns BIGINT, cpu_ns BIGINT
"""
_ROWS: Final = f"""
INSERT INTO timed
SELECT {{run}}, TRY_CAST(event.invocation AS INTEGER) AS number,
       {TARGET},
       {{shape}}, coalesce(event.submission_id, -1), coalesce(event.command_buffer_id, -1),
       coalesce(event.command_index, -1), event.submitted_ns, event.start_ns, event.duration_ns, event.cpu_ns
FROM (SELECT * FROM {{events}}
      WHERE NOT warmup AND kind <> 'step' AND start_ns IS NOT NULL AND duration_ns IS NOT NULL AND invocation >= 0
          AND ({{chosen}})) AS event {{joins}}
WHERE number IS NOT NULL
"""
_READ: Final = """
SELECT event.run, event.invocation, event.target, event.submission, event.buffer, event.command,
       coalesce(event.submitted_ns, -1) AS submitted, event.submitted_ns IS NULL AS unknown, event.start_ns AS start,
       event.duration_ns AS duration, {duration} AS worked, {cpu} AS cpu, coalesce(groups.tiles, 0) AS tiles
FROM timed AS event LEFT JOIN groups ON {same_group}
ORDER BY event.run, event.invocation, event.start_ns, event.duration_ns DESC, event.submission, event.command,
         event.target, cpu
"""


_BEGINS: Final = """
SELECT invocation, min(start_ns) AS begin FROM resolved
WHERE rowid >= {first} AND rowid < {end} AND invocation IS NOT NULL AND start_ns IS NOT NULL
GROUP BY invocation ORDER BY invocation
"""


@dataclass
class TimedRows:
    """The table `timed`: the events of a sample of invocations, with their moments."""

    resolved: Resolved
    runs: list[Run] = field(default_factory=list)

    def add(self, source: Source, lookups: Sequence[Lookup]) -> None:
        """Add the events of a run, after those of `resolved`."""
        tables = self.resolved.tables
        if not self.runs:
            tables.query(f"CREATE OR REPLACE TEMP TABLE timed ({_COLUMNS})")
        query = _ROWS.format(
            run=len(self.runs),
            shape=shape_sql(source, lookups) if self.resolved.has_shapes else 0,
            chosen=self._chosen(),
            **clauses(source, lookups),
        )
        source.tables.query(query)
        self.runs.append(source.run)

    def _chosen(self) -> str:
        """The SQL condition for the invocations to keep of the run that was added last to `resolved`."""
        resolved = self.resolved
        query = (
            f"SELECT count(*), min(invocation), max(invocation) FROM resolved WHERE rowid >= {resolved.first_rows[-1]}"
        )
        ((events, first, last),) = resolved.tables.query(query)
        if events <= MOST_EVENTS or first is None:
            return "true"
        offset = resolved.first_invocations[-1]
        first, count = first - offset, last - first + 1
        size = max(1, count * MOST_EVENTS // events // _WINDOWS)
        begins = sorted({first + (count - size) * number // (_WINDOWS - 1) for number in range(_WINDOWS)})
        return " OR ".join(f"invocation BETWEEN {begin} AND {begin + size - 1}" for begin in begins)

    def rows(self) -> Mapping[str, Array]:
        """The events in the order of runs, invocations and starts. The table `groups` must have thresholds."""
        import numpy as np

        numbers = {metric.name: number for number, metric in enumerate(self.resolved.metrics)}

        def without_outliers(name: str) -> str:
            if name not in numbers:
                return f"event.{name}"
            threshold = f"coalesce(groups.threshold_{numbers[name]}, {MAX_INTEGER})"
            return f"CASE WHEN event.{name} IS NOT NULL THEN least(event.{name}, {threshold}) END"

        wall = without_outliers("duration_ns")
        rows = self.resolved.tables.columns(
            _READ.format(
                duration=wall,
                cpu=f"coalesce({without_outliers('cpu_ns')}, {wall})",
                same_group=self.resolved.same_group,
            )
        )
        return {name: column.astype(np.int64) for name, column in rows.items()}

    def work(self, rows: Mapping[str, Array], targets: Sequence[Target], *, noisy: bool) -> TimedWork | None:
        """The events with their groups and stages; None if there are none.

        `noisy`: more than a quarter of the invocations may be outliers.
        """
        import numpy as np

        if not np.any(rows["target"] > MEMORY):
            return None
        return _timed_work(
            rows,
            self._regions(rows),
            tuple(target.places for target in targets),
            self.resolved.rows / len(rows["target"]),
            0.0 if _do_overlap(rows) else self._period_ns(noisy=noisy),
        )

    def _period_ns(self, *, noisy: bool) -> float:
        """Mean time from one invocation to the next, without outlier time; 0 if there is only one."""
        import numpy as np

        resolved = self.resolved
        periods = []
        ends = (*resolved.first_rows[1:], resolved.rows)
        for run, first, end in zip(self.runs, resolved.first_rows, ends, strict=True):
            rows = resolved.tables.columns(_BEGINS.format(first=first, end=end))
            follows = np.diff(rows["invocation"]) == 1  # after a launch, warm-up invocations come first
            lengths = np.sort(np.diff(rows["begin"])[follows])
            boundaries = max(0, run.header.launches - 1 - int(np.count_nonzero(~follows)))
            periods.append(lengths[: max(0, len(lengths) - boundaries)])
        return _mean_without_outliers(np.concatenate(periods), noisy=noisy)

    def _regions(self, rows: Mapping[str, Array]) -> Array:
        """The number of barriers before each event's command in its buffer; -1 if unknown."""
        import numpy as np

        regions = np.full(len(rows["run"]), -1)
        for number, run in enumerate(self.runs):
            buffers, programs = run.header.buffers, run.header.programs
            own = np.flatnonzero((rows["run"] == number) & (rows["command"] >= 0) & (rows["buffer"] >= 0))
            if not (buffers and len(own)):
                continue
            barriers = [[0, *accumulate(command.kind == "barrier" for command in program)] for program in programs]
            begins = np.cumsum([0, *map(len, barriers)])
            ids = np.array([buffer.id for buffer in buffers])
            order = np.argsort(ids)
            places = np.minimum(np.searchsorted(ids, rows["buffer"][own], sorter=order), len(ids) - 1)
            program = np.array([buffer.program for buffer in buffers])[order][places]
            known = (ids[order][places] == rows["buffer"][own]) & (rows["command"][own] < np.diff(begins)[program] - 1)
            flat = np.concatenate([np.array(counts) for counts in barriers])
            regions[own[known]] = flat[begins[program[known]] + rows["command"][own[known]]]
        return regions


def _do_overlap(rows: Mapping[str, Array]) -> bool:
    """Whether most invocations begin before the one before them has ended, as those of a batch do."""
    import numpy as np

    first = np.flatnonzero((np.diff(rows["run"], prepend=-1) != 0) | (np.diff(rows["invocation"], prepend=-1) != 0))
    begins = np.minimum.reduceat(rows["start"], first)
    ends = np.maximum.reduceat(rows["start"] + rows["duration"], first)
    follows = np.diff(rows["invocation"][first]) == 1
    overlaps = np.count_nonzero(follows & (begins[1:] < ends[:-1]))
    return bool(2 * overlaps > np.count_nonzero(follows))


def _mean_without_outliers(values: Array, *, noisy: bool) -> float:
    """The mean of values up to their outlier threshold (see `outliers`); 0 without values."""
    import numpy as np

    return float(np.minimum(values, threshold_of_values(values, noisy=noisy)).mean()) if len(values) else 0.0


def _timed_work(
    rows: Mapping[str, Array],
    regions: Array,
    places: tuple[tuple[str, ...], ...],
    scale: float,
    period_ns: float,
) -> TimedWork:
    """Groups and stages of events in order of time."""
    import numpy as np

    changes = (np.diff(rows["run"]) != 0) | (np.diff(rows["invocation"]) != 0)
    invocation = np.concatenate(([0], np.cumsum(changes)))
    begins = np.flatnonzero(np.concatenate(([True], changes)))
    known = rows["unknown"] == 0
    submitted = np.where(known, rows["submitted"], rows["start"])
    first = np.minimum(rows["start"], submitted)
    begin = np.minimum.reduceat(first, begins)
    ends = np.maximum.reduceat(np.maximum(rows["start"] + rows["duration"], submitted), begins)
    # One axis for all invocations of all runs, without overlaps.
    shift = np.concatenate(([0], np.cumsum(ends - begin + 1)[:-1])) - begin
    start = rows["start"] + shift[invocation]
    end, submitted = start + rows["duration"], submitted + shift[invocation]
    last_submitted = np.maximum.reduceat(np.where(known, submitted, -1), begins)

    busy = np.flatnonzero(rows["target"] != MEMORY)
    reached = np.concatenate(([-1], np.maximum.accumulate(end[busy])[:-1]))
    is_first = np.concatenate(([True], invocation[busy][1:] != invocation[busy][:-1]))
    begins_stage = (start[busy] >= reached) | is_first
    stage_begin = np.flatnonzero(begins_stage)
    stage_of_row = np.cumsum(begins_stage) - 1
    stage_start = start[busy][stage_begin]
    stage_end = np.maximum.reduceat(end[busy], stage_begin)
    # A dispatch has no time of submission of its own, and starts after its submission.
    by_host = np.minimum.reduceat(np.where(known[busy], submitted[busy], MAX_INTEGER), stage_begin)
    stage_invocation = invocation[busy][stage_begin]
    follows = np.concatenate(([False], stage_invocation[1:] == stage_invocation[:-1]))
    before = np.where(follows, np.concatenate(([0], stage_end[:-1])), stage_start)
    by_host = np.where(by_host == MAX_INTEGER, stage_start, np.minimum(by_host, stage_start))
    last_stage = np.flatnonzero(np.concatenate((stage_invocation[1:] != stage_invocation[:-1], [True])))

    work = np.flatnonzero(rows["target"][busy] != EXECUTE)
    row = busy[work]
    work_stage = stage_of_row[work]
    work_reached = np.concatenate(([-1], np.maximum.accumulate(end[row])[:-1]))
    same = (rows["submission"][row][1:] == rows["submission"][row][:-1]) & (regions[row][1:] == regions[row][:-1])
    same_region = np.concatenate(([False], same)) & (regions[row] >= 0)
    changes_stage = np.concatenate(([True], work_stage[1:] != work_stage[:-1]))
    begins_group = ((start[row] >= work_reached) & ~same_region) | changes_stage
    group = np.cumsum(begins_group) - 1
    group_begin = np.flatnonzero(begins_group)
    covered = np.add.reduceat(np.maximum(0, end[row] - np.maximum(start[row], work_reached)), group_begin)
    raw, worked = (np.add.reduceat(rows[name][row], group_begin) for name in ("duration", "worked"))
    gap = np.where(changes_stage, 0, np.maximum(0, start[row] - work_reached))[group_begin]
    return TimedWork(
        places=places,
        target=rows["target"][row],
        group=group,
        cpu_ns=rows["cpu"][row].astype(np.float64),
        tiles=rows["tiles"][row],
        wall_ns=covered * (worked / np.maximum(raw, 1)),
        gap_ns=gap,
        stage=work_stage[group_begin],
        idle_ns=stage_start - np.maximum(before, by_host),
        slack_ns=np.where(follows, before - by_host, 0),
        is_slack_known=bool(np.any(known)),
        invocation=stage_invocation,
        tail_ns=(stage_end[last_stage] - last_submitted[stage_invocation[last_stage]]),
        scale=scale,
        period_ns=period_ns,
    )
