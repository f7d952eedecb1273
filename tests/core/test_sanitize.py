"""Texts that could steer a terminal or spreadsheet do nothing, in every output."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import shutil
import subprocess
from pathlib import Path

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tests.conftest import Built, Recorded
from tests.support import check_cli, command_line, json_cli
from tracemap.core.codec import pretty_json
from tracemap.core.sanitize import (
    csv_line,
    escape_formula,
    for_terminal,
    lines_for_terminal,
    unescape_formula,
    without_controls,
)
from tracemap.map.bundle import load
from tracemap.map.map_json import encode
from tracemap.runs.columns import events_sql
from tracemap.runs.model import UNKNOWN_HEADER
from tracemap.runs.runfile import read_run, write_run

HOSTILE = "=cmd|'/c calc'!A0\x1b]0;title\x07\x9b31m\u202e"
STEERING = frozenset(map(chr, (*range(9), *range(11, 32), *range(0x7F, 0xA0), *range(0x202A, 0x202F))))
FORMULAS = ("=1", "+1", "-1", "@a", "\t=1", "\r=1", "'=1", "''@", "＝1")


def steering(text: str) -> frozenset[str]:
    """Characters that take effect in a terminal."""
    return STEERING.intersection(text)


@pytest.fixture
def hostile(built: Built, tmp_path: Path) -> Path:
    """A bundle whose texts are hostile, wherever the map lets them be free."""
    bundle = Path(shutil.copytree(built("hand_mlp"), tmp_path / "m.tracemap"))
    graph = load(bundle).graph
    ops = tuple(
        structs.replace(
            op, name=HOSTILE, scope=(HOSTILE,), reason=structs.replace(op.reason, text=op.reason.text + HOSTILE)
        )
        for op in graph.ops
    )
    module = structs.replace(graph.module, name=HOSTILE, iree_compiler=HOSTILE)
    (bundle / "map.json").write_bytes(encode(structs.replace(graph, ops=ops, module=module)))
    kernel = bundle / "kernels" / str(graph.kernels[0].text)
    kernel.write_text(kernel.read_text(encoding="utf-8") + HOSTILE + "\n", encoding="utf-8")
    return bundle


COMMANDS = [
    ("show", "{bundle}"),
    ("show", "{bundle}", "op2"),
    ("show", "{bundle}", "{kernel}"),
    ("audit", "{bundle}"),
    ("attribute", "{run}", "--map", "{bundle}"),
    ("attribute", "{run}", "--map", "{bundle}", "--by", "scope"),
    ("attribute", "{run}", "--map", "{bundle}", "--by", "site"),
]
FORMATS = [(), ("--format", "json")]


# The tables of `--by` are of the text alone.
@pytest.mark.long
@pytest.mark.parametrize(
    ("form", "words"),
    [(form, words) for form in FORMATS for words in COMMANDS if not (form and "--by" in words)],
    ids=lambda words: " ".join(words[0::3]) or "text",
)
def test_no_output_steers_a_terminal(
    words: tuple[str, ...], form: tuple[str, ...], hostile: Path, recorded: Recorded, tmp_path: Path
) -> None:
    kernel = load(hostile).graph.kernels[0].name
    filled = [word.format(bundle=hostile, kernel=kernel, run=recorded("hand_mlp", ".csv")) for word in words]
    shown = check_cli(*filled, *form, cwd=tmp_path)
    assert not steering(shown)
    assert "cmd|" in shown or words[-1] in ("{bundle}", "{kernel}", "site")


def test_the_table_of_costs_has_no_formula(hostile: Path, recorded: Recorded, tmp_path: Path) -> None:
    table = check_cli("attribute", recorded("hand_mlp", ".csv"), "--map", hostile, "--format", "csv", cwd=tmp_path)
    assert not steering(table)
    rows = list(csv.DictReader(io.StringIO(table)))
    names = {row["name"] for row in rows if row["op"]}
    assert names == {"'" + without_controls(HOSTILE)}
    assert not [cell for row in rows for cell in row.values() if cell[:1] in {*"=+-@\t"} and not is_number(cell)]


def is_number(cell: str) -> bool:
    """Whether a spreadsheet has nothing to calculate."""
    return cell.removeprefix("-").replace(".", "", 1).isdigit()


@pytest.mark.parametrize("text", FORMULAS)
def test_a_formula_is_a_text(text: str) -> None:
    assert escape_formula(text) == "'" + text
    assert unescape_formula(escape_formula(text)) == text


@given(st.text(alphabet=[*"'=+-@\t\r\n＝ab;,\"", "\u202e"]))
def test_a_cell_is_read_as_it_was(text: str) -> None:
    assert unescape_formula(escape_formula(text)) == text
    assert escape_formula(text)[:1] not in {*"=+-@\t\r\n＝"}
    (row,) = csv.reader(io.StringIO(csv_line([text, 7, "end"]), newline=""))
    assert row == [escape_formula(text), "7", "end"]


@given(st.text())
def test_nothing_else_changes(text: str) -> None:
    assert json.loads(pretty_json([text])) == json.loads(json.dumps([text]))
    assert not steering(pretty_json([text]))
    assert not steering(for_terminal(text))
    assert not steering(lines_for_terminal(text)) - {"\t"}
    assert without_controls(text) == text or steering(text) or any(char in text for char in "\t\n\u061c\u200e\u200f")


def test_a_run_with_kernels_named_as_formulas_is_read_as_it_was(tmp_path: Path) -> None:
    """What stands in the file, and what is read, as DuckDB and Python say it of each other."""
    names = [*FORMULAS, "plain", "a'b", "it's =1"]
    target = tmp_path / "run.csv"
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE events (kernel VARCHAR, duration_ns BIGINT)")
        connection.executemany("INSERT INTO events VALUES (?, 5)", [[name] for name in names])
        write_run(UNKNOWN_HEADER, connection.table("events"), target, force=False)
        run = read_run(target)
        read = connection.execute(f"SELECT kernel FROM ({events_sql(run)})").fetchall()
    assert [name for (name,) in read] == names
    with target.open(encoding="utf-8", newline="") as file:
        cells = [row[0] for row in csv.reader(file)][1:]
    assert cells == [escape_formula(name) for name in names]


def test_a_table_on_a_terminal_steers_nothing(tmp_path: Path, recorded: Recorded, built: Built) -> None:
    """Also that of `record -o -`, whose cells must stay as they are in a file."""
    ours, theirs = pty.openpty()
    words = command_line("attribute", recorded("hand_mlp", ".csv"), "--map", built("hand_mlp"), "-o", "-")
    with subprocess.Popen(words, cwd=tmp_path, stdout=theirs, stderr=subprocess.PIPE) as process:
        os.close(theirs)
        shown = b""
        while chunk := read_on(ours):
            shown += chunk
        assert process.wait() == 0
    os.close(ours)
    assert not steering(shown.decode()) - {"\r"}


def read_on(terminal: int) -> bytes:
    """What comes next; nothing when the other side is closed."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


def test_json_says_the_same_with_escapes(hostile: Path, tmp_path: Path) -> None:
    shown = json_cli("show", hostile, "op2", cwd=tmp_path)
    assert shown["ops"][0]["name"] == HOSTILE
