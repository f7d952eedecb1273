"""Runs as files: round trips, foreign tables, exact messages for bad cells."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path
from typing import Any

import duckdb
import jsonschema
import pytest
from msgspec import structs

from tests.support import ROOT
from tracemap.core.codec import pretty_json
from tracemap.core.diagnostics import Diagnostic
from tracemap.core.errors import RunEmpty, RunInvalid, RunVersion, TargetExists, TargetUnwritable
from tracemap.core.units import UNKNOWN
from tracemap.runs.bad_cells import explain_bad_cell
from tracemap.runs.columns import MOST_COLUMNS, events_sql
from tracemap.runs.model import (
    COLUMNS,
    UNKNOWN_HEADER,
    UNKNOWN_NOISE,
    Clock,
    Invocation,
    Metric,
    Peaks,
    RecordedBuffer,
    RecordedCommand,
    RunHeader,
    parse_header,
)
from tracemap.runs.readers.formats import reader_of
from tracemap.runs.runfile import header_path, read_run, write_run

HOSTILE = "a\"b'; DROP TABLE x; -- é\n,"
HEADER = RunHeader(
    module_sha256="ab" * 32,
    bundle=HOSTILE,
    command=("program", "--flag='x'", HOSTILE),
    function="main",
    device="local-task",
    workers=2,
    clock=Clock.HOST,
    iterations=3,
    warmup=1,
    elapsed_ns=10**15,
    invocation=Invocation(10**14, 10**13, 10**15, "seconds"),
    noise=structs.replace(UNKNOWN_NOISE, observed_ns=10**15, running_ns=0, load_percent=250),
    inputs=("4xf32=0",),
    peaks=Peaks(10**11, 10**10, "measured"),
    programs=((RecordedCommand("dispatch", HOSTILE, (4, 1, 1)), RecordedCommand("barrier", UNKNOWN, ())), ()),
    buffers=(RecordedBuffer(1, False, 0), RecordedBuffer(2, True, 1)),
    tools=("tracemap 1",),
    diagnostics=(Diagnostic("records-lost", "3 lost"),),
)
EVENTS = (
    "SELECT CASE WHEN i % 5 = 4 THEN 'execute' ELSE 'dispatch' END AS kind, "
    "CASE WHEN i % 5 < 4 THEN 'k,\"' || i || chr(10) || '''' END AS kernel, "
    "1 AS command_buffer_id, i AS command_index, 9007199254740993 AS submission_id, NULL::VARCHAR AS site, "
    "i AS call, 0 AS invocation, i < 5 AS warmup, 99 * i AS submitted_ns, 100 * i AS start_ns, 7 * i AS duration_ns, "
    "CASE WHEN i % 5 < 4 THEN 11 * i END AS cpu_ns, NULL::VARCHAR AS thread, NULL::BIGINT AS cpu, "
    "4 AS workgroups_x, 1 AS workgroups_y, 1 AS workgroups_z, NULL::BIGINT AS payload_bytes, "
    "NULL::BIGINT AS covered_ns, "
    "NULL::BIGINT AS step, NULL::BIGINT AS address, "
    'i + 10 AS "D1""mr\' x", i + 0.5::DOUBLE AS "joule" '
    "FROM range(20) AS t(i)"
)
EXTRA = ("D1\"mr' x", "joule")


def rows_of(path: Path) -> list[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        return connection.execute(events_sql(read_run(path))).fetchall()


def written(folder: Path, name: str, header: RunHeader = HEADER, events: str = EVENTS) -> Path:
    with duckdb.connect() as connection:
        write_run(header, connection.sql(events), folder / name, force=False)
    return folder / name


def table(folder: Path, text: str, name: str = "run.csv") -> Path:
    (folder / name).write_bytes(text.encode())
    return folder / name


def refused_scan(path: Path) -> str:
    """What the scan's failure is explained as.

    Raises:
        AssertionError: the scan did not fail.
    """
    run = read_run(path)
    with duckdb.connect() as connection, pytest.raises(duckdb.Error) as caught:
        connection.execute(
            f"SELECT sum(COLUMNS(*)) FROM (SELECT * EXCLUDE (kind, kernel, site, thread) FROM ({events_sql(run)}))"
        ).fetchall()
    return str(explain_bad_cell(run, caught.value))


@pytest.mark.parametrize("name", ["run.csv", "run.parquet", 'it\'s "a" run.csv', "it's a run.parquet"])
def test_what_is_written_is_read_again(name: str, tmp_path: Path) -> None:
    path = written(tmp_path, name)
    run = read_run(path)
    assert run.header == HEADER
    assert run.has_header
    assert [metric.name for metric in run.metrics] == ["duration_ns", "cpu_ns", *EXTRA]
    assert run.metrics[0] == Metric("duration_ns", "ns", Clock.HOST)
    assert [metric.type for metric in run.metrics] == ["BIGINT", "BIGINT", "BIGINT", "DOUBLE"]
    assert run.columns == (*COLUMNS, *EXTRA)
    with duckdb.connect() as connection:
        assert rows_of(path) == connection.execute(EVENTS).fetchall()


def test_both_formats_hold_the_same(tmp_path: Path) -> None:
    assert rows_of(written(tmp_path, "a.csv")) == rows_of(written(tmp_path, "a.parquet"))


@pytest.mark.parametrize("name", ["run.csv", "run.parquet"])
def test_writing_is_reproducible_and_leaves_nothing_else(name: str, tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    for folder in (first, second):
        folder.mkdir()
        written(folder, name)
    found = [{path.name: path.read_bytes() for path in folder.iterdir()} for folder in (first, second)]
    assert found[0] == found[1]
    assert set(found[0]) == ({name, f"{name}.json"} if name.endswith(".csv") else {name})


@pytest.mark.parametrize("name", ["run.csv", "run.parquet"])
def test_a_recorded_run_without_events_is_valid(name: str, tmp_path: Path) -> None:
    path = written(tmp_path, name, events=f"{EVENTS} LIMIT 0")
    assert read_run(path).header == HEADER
    assert rows_of(path) == []


def test_the_header_is_as_its_schema_says(tmp_path: Path) -> None:
    schema = json.loads((ROOT / "tracemap" / "schemas" / "run.schema.json").read_text(encoding="utf-8"))
    path = written(tmp_path, "run.csv")
    beside = json.loads(header_path(path).read_text(encoding="utf-8"))
    for header in (beside, json.loads(pretty_json(UNKNOWN_HEADER))):
        jsonschema.validate(header, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(beside | {"clock": "sundial"}, schema)
    assert parse_header(pretty_json(UNKNOWN_HEADER).encode(), "x") == UNKNOWN_HEADER


def test_a_bare_csv_is_read(tmp_path: Path) -> None:
    """Byte order mark, Windows line ends, pandas' unnamed index, upper case, microseconds, text nobody knows."""
    text = "\ufeff,Dispatch,duration_us,note,misses\r\n0,k,1.5,hello,3\r\n1,l,2.0006,,4\r\n"
    run = read_run(table(tmp_path, text))
    assert not run.has_header
    assert run.header == UNKNOWN_HEADER
    assert [(metric.name, metric.unit) for metric in run.metrics] == [("duration_ns", "ns"), ("misses", "count")]
    names = [*COLUMNS, "misses"]
    found = [dict(zip(names, row, strict=True)) for row in rows_of(run.table)]
    assert [(row["kind"], row["kernel"], row["warmup"]) for row in found] == [
        ("dispatch", "k", False),
        ("dispatch", "l", False),
    ]
    assert [row["duration_ns"] for row in found] == [1500, 2001]
    assert [row["misses"] for row in found] == [3, 4]
    assert found[0]["command_index"] is None


@pytest.mark.parametrize(("unit", "factor"), [("ns", 1), ("us", 1000), ("ms", 1_000_000)])
@pytest.mark.parametrize("metric", ["cpu", "duration"])
def test_units_of_time(metric: str, unit: str, factor: int, tmp_path: Path) -> None:
    path = table(tmp_path, f"kernel,{metric}_{unit}\nk,3\n")
    assert rows_of(path)[0][list(COLUMNS).index(f"{metric}_ns")] == 3 * factor


@pytest.mark.parametrize("separator", [";", "\t"])
def test_other_separators(separator: str, tmp_path: Path) -> None:
    path = table(tmp_path, f"kernel{separator}cpu_ns\nk{separator}3\n")
    assert rows_of(path)[0][list(COLUMNS).index("cpu_ns")] == 3


@pytest.mark.parametrize("row_end", ["\r\n", "\n", "\r"])
@pytest.mark.parametrize("within", ["\r\n", "\n", "\r", "\n\n"])
def test_names_of_several_lines(row_end: str, within: str, tmp_path: Path) -> None:
    """Spreadsheets end rows by two characters and lines within a cell by one: no row was found, and none missed."""
    rows = (f'kernel,"cache{within}misses"', "k,5", "l,7")
    path = table(tmp_path, "".join(row + row_end for row in rows))
    assert [row[-1] for row in rows_of(path)] == [5, 7]
    assert [metric.name for metric in read_run(path).metrics] == [f"cache{within}misses"]


def test_a_head_that_reads_like_a_sample_of_perf(tmp_path: Path) -> None:
    """A word of hexadecimal digits, another, and something in brackets at the end: the table was taken for perf's."""
    path = table(tmp_path, "kernel,cpu_ns,level 1 d misses (all)\nk,5,7\n")
    assert reader_of(path) is None
    assert rows_of(path)[0][-1] == 7


def test_a_forked_child_reads_runs_as_its_parent_did(tmp_path: Path) -> None:
    """A database has threads, which a child does not get."""
    path = tmp_path / "run.parquet"
    duckdb.sql(f"COPY (SELECT 'k' AS kernel, 5 AS duration_ns) TO '{path}' (FORMAT parquet)")
    read_run(path)
    child = multiprocessing.get_context("fork").Process(target=read_run, args=(path,))
    child.start()
    child.join(30)
    assert child.exitcode == 0
    assert read_run(path).format == "parquet"


@pytest.mark.parametrize(
    "duration", ["2500000 AS duration_ns", "2500 AS duration_us", "2.5 AS Duration_ms", "0.0025 AS duration_s"]
)
def test_a_bare_parquet_is_read_whatever_its_unit_of_time(tmp_path: Path, duration: str) -> None:
    path = tmp_path / "foreign.parquet"
    with duckdb.connect() as connection:
        connection.execute(f"COPY (SELECT 'k' AS name, {duration}, 7::UTINYINT AS m) TO '{path}'")
    run = read_run(path)
    assert not run.has_header
    row = dict(zip([*COLUMNS, "m"], rows_of(path)[0], strict=True))
    assert (row["kernel"], row["duration_ns"], row["m"]) == ("k", 2_500_000, 7)


@pytest.mark.parametrize(
    ("duration", "nanoseconds"),
    [
        ("3::TINYINT AS duration_s", 3_000_000_000),
        ("3000::SMALLINT AS duration_ms", 3_000_000_000),
        ("3000000::INTEGER AS duration_us", 3_000_000_000),
        ("3::INTEGER AS cpu_s", 3_000_000_000),
        ("123456.789::FLOAT AS duration_us", 123_456_789),
        ("123456.789::DECIMAL(38, 9) AS duration_us", 123_456_789),
    ],
)
def test_times_in_small_types_of_parquet(duration: str, nanoseconds: int, tmp_path: Path) -> None:
    """Nanoseconds are not reckoned in the file's own type, which holds few seconds of them, or few digits."""
    path = tmp_path / "foreign.parquet"
    with duckdb.connect() as connection:
        connection.execute(f"COPY (SELECT 'k' AS name, {duration}) TO '{path}'")
    row = dict(zip(COLUMNS, rows_of(path)[0], strict=True))
    assert nanoseconds in (row["duration_ns"], row["cpu_ns"])


@pytest.mark.parametrize("text", ["", "kernel,duration_ns\n", "kernel,duration_ns"])
def test_an_empty_foreign_table(text: str, tmp_path: Path) -> None:
    with pytest.raises(RunEmpty, match=r"run\.csv"):
        read_run(table(tmp_path, text))


def test_an_empty_foreign_parquet(tmp_path: Path) -> None:
    path = tmp_path / "empty.parquet"
    with duckdb.connect() as connection:
        connection.execute(f"COPY (SELECT 'k' AS kernel, 1 AS cpu_ns LIMIT 0) TO '{path}'")
    with pytest.raises(RunEmpty, match=r"empty\.parquet"):
        read_run(path)


@pytest.mark.parametrize(
    ("text", "needed", "there"),
    [
        ("line,duration_ns\n1,2\n", "kernel, dispatch or name", "line, duration_ns"),
        ("kernel,note\nk,hello\n", "duration_ns", "kernel, note"),
        ("kernel,m,M\nk,1,2\n", "'M'", "'m'"),
        ("kernel,duration_ns,duration_us\nk,1,2\n", "'duration_us'", "'duration_ns'"),
    ],
)
def test_columns_that_are_missing_or_doubled(text: str, needed: str, there: str, tmp_path: Path) -> None:
    with pytest.raises(RunInvalid) as caught:
        read_run(table(tmp_path, text))
    assert needed in str(caught.value)
    assert there in str(caught.value)


@pytest.mark.parametrize(
    ("text", "where", "said"),
    [
        ("kernel,duration_ns\nk,1\nk,abc\n", "line 3, column duration_ns", "'abc' is not a number"),
        ("kernel,duration_ns\nk,1\n\nk,-5\n", "line 4, column duration_ns", "'-5' is a negative time"),
        ("kernel,cpu_us\nk,1\nk,-0.5\n", "line 3, column cpu_us", "'-0.5' is a negative time"),
        ('kernel,m\n"two\nlines",1\nk,2x\nk,3\n', "line 4, column m", "'2x' is not a number"),
        ("kernel,m\nk,1.5\nk,inf\nk,2\n", "line 3, column m", "'inf' is not a number"),
        ("kernel,m\n" + "k,1\n" * 1500 + "k,1.5\n", "line 1502, column m", "'1.5' is not a whole number"),
        ("kernel,m\nk,1\nk,1\nk,9223372036854775808\n", "line 4, column m", "'9223372036854775808' is too large"),
        (
            "kernel,m\r\nk,1\r\nk,1\nk,2\r\n",
            "line 3 has another line end than the first line",
            "save the file with one kind",
        ),
        (
            "kernel,m\nk,1\nk,1\nk,2\r\n",
            "line 4 has another line end than the first line",
            "save the file with one kind",
        ),
        ("kernel,m\nk,1\nk,1\nk,nan\n", "line 4, column m", "'nan' is not a number"),
        ("kernel,m,warmup\nk,1,perhaps\n", "line 2, column warmup", "'perhaps' is neither true nor false"),
        ("kernel,duration_ns\nk,99999999999999999999\n", "line 2, column duration_ns", "too large"),
        ("kernel,duration_ns,cpu_ns\nk,1,2\nk,1\n", "line 3", "2 cells, but the header names 3 columns"),
        ("kernel,duration_ns\nk,1\nk,1,2\n", "line 3", "3 cells, but the header names 2 columns"),
        ("kernel,duration_ns,command_index\nk,1,first\n", "line 2, column command_index", "'first' is not a number"),
    ],
)
def test_bad_cells_are_named(text: str, where: str, said: str, tmp_path: Path) -> None:
    path = table(tmp_path, text)
    message = refused_scan(path)
    assert message.startswith(f"{path}: {where}")
    assert said in message


def test_a_column_with_fractions_keeps_them(tmp_path: Path) -> None:
    path = table(tmp_path, 'kernel,m\n"two\nlines",1\nk,2\nk,1.5\n' + "k,3\n" * 2000)
    assert [row[-1] for row in rows_of(path)[:4]] == [1.0, 2.0, 1.5, 3.0]


def test_whole_numbers_of_a_csv_are_exact(tmp_path: Path) -> None:
    """Beyond 2^53 double precision has even numbers only; Parquet has all."""
    cells = ["9007199254740993", "-9007199254740995", "9223372036854775807", "2.0", "1e3", " 7", "+5", ""]
    path = table(tmp_path, "kernel,m\n" + "".join(f"k,{cell}\n" for cell in cells))
    expected = [9007199254740993, -9007199254740995, 9223372036854775807, 2, 1000, 7, 5, None]
    assert [row[-1] for row in rows_of(path)] == expected


def test_a_column_whose_first_values_come_late_is_a_metric(tmp_path: Path) -> None:
    """In a recording that was joined by hand, thousands of rows of one kind may come before those that count."""
    text = "kernel,cpu_ns,misses,joule,note\n" + "k,1,,,\n" * 1500 + "k,1,7,0.5,text\n" * 2
    run = read_run(table(tmp_path, text))
    assert [(metric.name, metric.type) for metric in run.metrics[1:]] == [("misses", "BIGINT"), ("joule", "DOUBLE")]
    assert [row[-2:] for row in rows_of(run.table)][-2:] == [(7, 0.5)] * 2


def test_cells_larger_than_any_name(tmp_path: Path) -> None:
    with pytest.raises(RunInvalid, match=r"run\.csv"):
        read_run(table(tmp_path, "kernel,cpu_ns\n" + "k" * 200_000 + ",1\n"))


@pytest.mark.parametrize(
    ("cells", "where", "said"),
    [
        ("[1, 2, -3]", "row 3, column duration_ns", "'-3' is a negative time"),
        ("['1', 'x']", "row 2, column duration_ns", "'x' is not a number"),
    ],
)
def test_bad_cells_of_parquet_are_named(cells: str, where: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "foreign.parquet"
    with duckdb.connect() as connection:
        connection.execute(f"COPY (SELECT 'k' AS kernel, unnest({cells}) AS duration_ns) TO '{path}'")
    assert refused_scan(path) == f"{path}: {where}: {said}"


@pytest.mark.parametrize("column", ["kernel", "duration_ns", "joule"])
def test_a_damaged_page_of_parquet_is_found_by_its_column(column: str, tmp_path: Path) -> None:
    path = written(tmp_path, "run.parquet")
    with duckdb.connect() as connection:
        ((offset, size),) = connection.execute(
            "SELECT coalesce(dictionary_page_offset, data_page_offset), total_compressed_size "
            "FROM parquet_metadata($1) WHERE path_in_schema = $2",
            [str(path), column],
        ).fetchall()
    content = bytearray(path.read_bytes())
    content[offset : offset + size] = b"\xff" * size
    path.write_bytes(content)
    with pytest.raises(duckdb.Error) as caught:
        rows_of(path)
    explained = str(explain_bad_cell(read_run(path), caught.value))
    assert explained.startswith(f"{path}: column {column}: cannot be read: ")


def test_a_header_of_another_version(tmp_path: Path) -> None:
    path = written(tmp_path, "run.csv")
    header = json.loads(header_path(path).read_text(encoding="utf-8"))
    header_path(path).write_text(json.dumps(header | {"schema_version": 99}), encoding="utf-8")
    with pytest.raises(RunVersion, match=r"99.*version 5"):
        read_run(path)


@pytest.mark.parametrize("damage", ["", "{", "[]", "{}", '{"kind": "run", "schema_version": 5}'])
def test_a_damaged_header(damage: str, tmp_path: Path) -> None:
    path = written(tmp_path, "run.csv")
    header_path(path).write_text(damage, encoding="utf-8")
    with pytest.raises(RunInvalid, match=r"run\.csv\.json"):
        read_run(path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"buffers": [{"id": 2**63 - 1, "one_shot": False, "program": 0}]}, r"\$\.buffers\[0\]\.id"),
        ({"buffers": [{"id": 1, "one_shot": False, "program": 2}]}, "program 2 of 2"),
        ({"workers": -1}, r"\$\.workers"),
        ({"iterations": 1.5}, r"\$\.iterations"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_what_a_header_cannot_say_is_named(change: dict[str, object], said: str, tmp_path: Path) -> None:
    path = written(tmp_path, "run.csv")
    header = json.loads(header_path(path).read_text(encoding="utf-8"))
    header_path(path).write_text(json.dumps(header | change), encoding="utf-8")
    with pytest.raises(RunInvalid, match=said):
        read_run(path)


@pytest.mark.parametrize("content", [b"PAR1 and then nothing of the kind", b"IRPF", b"\x00\xff\xfe"])
def test_what_is_no_run(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(RunInvalid, match="x"):
        read_run(tmp_path / "x")


def test_no_file(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.csv", tmp_path):
        with pytest.raises(RunInvalid, match=path.name):
            read_run(path)


@pytest.mark.parametrize("name", ["run.csv", "run.parquet"])
def test_nothing_is_overwritten_unasked(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text("of another program")
    with pytest.raises(TargetExists, match="force=True"):
        written(tmp_path, name, header=structs.replace(HEADER, iterations=99))
    assert path.read_text() == "of another program"
    with duckdb.connect() as connection:
        write_run(structs.replace(HEADER, iterations=99), connection.sql(EVENTS), path, force=True)
    assert read_run(path).header.iterations == 99


def test_unwritable_targets(tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    for target in ("absent/run.csv", "folder.csv"):
        with pytest.raises(TargetUnwritable, match=target.partition("/")[0]):
            written(tmp_path, target)


def test_a_failing_write_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(duckdb.Error):
        written(tmp_path, "run.csv", events="SELECT error('disk of straw') AS kernel")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("prefix", ["workgroup", "workgroups"])
def test_numbers_of_workgroups_measure_nothing(prefix: str, tmp_path: Path) -> None:
    """An index (`workgroup_x`, in tables of calls) is not read; a count (`workgroups_x`) is a column of its own.

    What has an index is the call of a workgroup, whose duration is time of its worker, where none is told beside it.
    """
    path = table(tmp_path, f"kernel,{prefix}_x,{prefix}_y,{prefix}_z,duration_ns\nk,7,8,9,1\n")
    assert [metric.name for metric in read_run(path).metrics] == [
        "cpu_ns" if prefix == "workgroup" else "duration_ns",
    ]
    both = table(tmp_path, f"kernel,{prefix}_x,duration_us,cpu_us\nk,7,2,1\n", "both.csv")
    assert [metric.name for metric in read_run(both).metrics] == ["duration_ns", "cpu_ns"]
    row = dict(zip(COLUMNS, rows_of(path)[0], strict=True))
    counts = [row[f"workgroups_{axis}"] for axis in "xyz"]
    assert counts == ([7, 8, 9] if prefix == "workgroups" else [None] * 3)


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_table_with_too_many_columns_is_refused_before_it_is_read(form: str, tmp_path: Path) -> None:
    names = ["kernel", "duration_ns", *(f"m{number}" for number in range(MOST_COLUMNS))]
    path = tmp_path / f"run.{form}"
    if form == "csv":
        path.write_text(",".join(names) + "\nk" + ",1" * (len(names) - 1) + "\n", encoding="utf-8")
    else:
        columns = ", ".join(f"{number} AS {name}" for number, name in enumerate(names))
        duckdb.sql(f"COPY (SELECT {columns}) TO '{path}' (FORMAT parquet)")
    with pytest.raises(RunInvalid, match=r"has 2,002 columns, more than the limit of 2,000"):
        read_run(path)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_a_text_of_wider_characters_is_called_so(encoding: str, tmp_path: Path) -> None:
    """As spreadsheets save them; every second character of the columns that were listed was a NUL."""
    path = tmp_path / "run.csv"
    path.write_bytes("dispatch,wall_ns\na,1\n".encode(encoding))
    with pytest.raises(RunInvalid, match="is a text in UTF-16 or UTF-32; save it as UTF-8"):
        read_run(path)
