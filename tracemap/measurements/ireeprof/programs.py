"""The command buffers of a profile, and the lists of commands that were recorded into them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tracemap.measurements.header import RecordedBuffer, RecordedCommand
from tracemap.units import UNKNOWN

if TYPE_CHECKING:
    import duckdb

_ONE_SHOT_BIT = 1

_BUFFERS = f"""
CREATE OR REPLACE TEMP TABLE profile_buffers AS
SELECT b.command_buffer_id AS id, any_value(b.mode & {_ONE_SHOT_BIT}) = {_ONE_SHOT_BIT} AS one_shot,
    to_json(coalesce(list([c.op, c.key, c.workgroup_count::VARCHAR] ORDER BY c.command_index)
        FILTER (c.op IS NOT NULL), [])) AS program
FROM profile_records AS b
LEFT JOIN (SELECT * FROM profile_records WHERE record_type = 'command_operation') AS c USING (command_buffer_id)
WHERE b.record_type = 'command_buffer' GROUP BY id
"""


def load_buffers(connection: duckdb.DuckDBPyConnection) -> None:
    """Make `profile_buffers`: every buffer with the JSON text of its commands.

    One-shot buffers get a fresh id on each call; what repeats is their list of commands.
    """
    connection.execute(_BUFFERS)


def programs_and_buffers(
    connection: duckdb.DuckDBPyConnection,
) -> tuple[tuple[tuple[RecordedCommand, ...], ...], tuple[RecordedBuffer, ...]]:
    """The distinct command lists, in the order of their first buffer, and the buffers in creation order."""
    texts = connection.execute("SELECT program FROM profile_buffers GROUP BY program ORDER BY min(id)").fetchall()
    numbers = {text: index for index, (text,) in enumerate(texts)}
    programs = tuple(tuple(_command(*command) for command in json.loads(text)) for text in numbers)
    rows = connection.execute("SELECT id, one_shot, program FROM profile_buffers ORDER BY id").fetchall()
    return programs, tuple(RecordedBuffer(id_, one_shot, numbers[text]) for id_, one_shot, text in rows)


def _command(kind: str, key: str | None, workgroups: str | None) -> RecordedCommand:
    if kind != "dispatch":
        return RecordedCommand(kind, UNKNOWN, ())
    return RecordedCommand(kind, UNKNOWN if key is None else key, tuple(json.loads(workgroups or "[]")))
