"""Queries in SQL: tables equal the records that they are made of, and the documentation names their columns."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

import tracemap
from tests.conftest import Built, Recorded
from tests.support import ROOT
from tracemap.core.errors import QueryInvalid
from tracemap.results.attribution import Attribution
from tracemap.results.sql import EVENTS, TABLES


@pytest.fixture(scope="module")
def gpt(built: Built, recorded: Recorded) -> Attribution:
    return tracemap.attribute(recorded("jax_gpt2_4l"), built("jax_gpt2_4l"))


def test_costs_balance(gpt: Attribution) -> None:
    for name, measured in gpt.sql("SELECT metric, measured FROM metrics"):
        parts = (
            f"SELECT attributed AS value FROM op_costs WHERE metric = '{name}' "
            f"UNION ALL SELECT value FROM unattributed WHERE metric = '{name}'"
        )
        assert gpt.sql(f"SELECT sum(value) FROM ({parts})").rows == [(measured,)]


def test_shares_lead_from_ops_to_dispatches(gpt: Attribution) -> None:
    """An op's cost is the sum of its shares, and each dispatch's cost that of its members and of code without an op."""
    wrong_ops = """
        SELECT * FROM (SELECT op, metric, sum(attributed) AS total FROM shares GROUP BY ALL)
        JOIN op_costs USING (op, metric) WHERE total <> attributed"""
    wrong_dispatches = """
        SELECT * FROM (SELECT place AS dispatch, metric, sum(attributed) AS parts FROM shares GROUP BY ALL)
        JOIN dispatch_costs USING (dispatch, metric) WHERE parts + without_op <> total"""
    assert gpt.sql(wrong_ops).rows == gpt.sql(wrong_dispatches).rows == []
    unknown = "SELECT place, op FROM shares WHERE place LIKE 'site%' EXCEPT SELECT dispatch, op FROM members"
    assert gpt.sql(unknown).rows == []
    ((joined,),) = gpt.sql("SELECT count(*) FROM shares JOIN dispatch_costs ON place = dispatch").rows
    assert isinstance(joined, int)
    assert joined > len(gpt.sites)


def test_lines_and_scopes(gpt: Attribution) -> None:
    query = "SELECT sum(attributed) FROM shares WHERE metric = 'cpu_ns' AND scope LIKE 'h1/ffn%'"
    assert gpt.sql(query).rows == [(gpt.scope("h1/ffn")["cpu_ns"],)]
    assert gpt.bundle is not None
    lines = {(str(op.id), op.line) for op in gpt.bundle.graph.ops if isinstance(op.line, int)}
    assert set(gpt.sql("SELECT op, line FROM ops WHERE line IS NOT NULL")) == lines


def test_events_of_several_runs(built: Built, recorded: Recorded, tmp_path: Path) -> None:
    run = recorded("hand_mlp")
    again = tmp_path / f"again{run.suffix}"
    shutil.copy(run, again)
    both = tracemap.attribute([run, again], built("hand_mlp"))
    alone = tracemap.attribute(run, built("hand_mlp"))
    query = "SELECT count(*), sum(duration_ns) FROM events WHERE kind = 'dispatch'"
    ((events, duration),) = alone.sql(query)
    assert isinstance(events, int)
    assert isinstance(duration, int)
    assert both.sql(query).rows == [(2 * events, 2 * duration)]
    assert both.sql("SELECT DISTINCT run FROM events ORDER BY run").rows == [(1,), (2,)]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT nothing FROM ops", "nothing"),
        ("SELECT * FROM ops_of_nobody", "the tables are ops, dispatches"),
        ("SELEC 1", "syntax error"),
        ("", "no statement"),
        ("SELECT lin FROM ops", 'Candidate bindings: "line"'),
        ("SELECT * FROM opss", 'Did you mean "ops"'),
        ("SELECT 1; SELECT 2", "2 statements"),
        ("DROP TABLE ops", "statement DROP"),
        ("COPY ops TO 'never_written.csv'", "statement COPY"),
        ("INSTALL httpfs", "statement LOAD"),
        ("FROM 'https://localhost:1/x.parquet'", "requires the extension httpfs"),
        ("SET threads = 1", "statement SET"),
        ("EXPLAIN ANALYZE COPY ops TO 'never_written.csv'", "statement EXPLAIN"),
        ("SELECT '\ud800'", "half of a UTF-16 pair"),
        ('SELECT * FROM "\x1b[31m"', r"\\x1b\[31m"),
    ],
)
def test_bad_queries_get_a_sentence(query: str, message: str, gpt: Attribution) -> None:
    with pytest.raises(QueryInvalid, match=message) as caught:
        gpt.sql(query)
    assert "\n" not in str(caught.value)
    assert not Path("never_written.csv").exists()


def test_queries_of_other_forms_read_the_tables(gpt: Attribution) -> None:
    assert {name for (name,) in gpt.sql("SHOW TABLES")} == {*TABLES, EVENTS}
    assert gpt.sql("SELECT 1;").rows == [(1,)]
    assert gpt.sql("PIVOT ops ON outcome USING count(*) GROUP BY function").rows


def test_columns_of_equal_names_are_kept_apart(gpt: Attribution) -> None:
    joined = gpt.sql("SELECT a.op, b.op, a.op FROM ops a JOIN ops b ON a.op = b.op LIMIT 3")
    assert joined.columns == ("op", "op_2", "op_3")
    assert [len(values) for values in joined._columns().values()] == [3, 3, 3]


def test_names_of_ops_are_values_and_not_sql(tmp_path: Path) -> None:
    model = tmp_path / "model.mlir"
    model.write_text(
        """func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = stablehlo.tanh %x : tensor<8xf32> loc("a'); DROP TABLE ops; --"("odd '\\22 name.py":3:1))
  return %0 : tensor<8xf32>
}
"""
    )
    bundle = tracemap.build(model)
    run = tracemap.record(bundle, tmp_path / "run.parquet", iterations=3)
    costs = tracemap.attribute(run.path, bundle)
    rows = costs.sql("SELECT scope FROM ops WHERE name = 'stablehlo.tanh'").rows
    assert len(rows) == 1
    html = costs.sql("SELECT '<script>' AS \"<b>\"")._repr_html_()
    assert "<script>" not in html
    assert "<b>" not in html


def test_the_documentation_names_every_column() -> None:
    text = (ROOT / "docs" / "sql.md").read_text(encoding="utf-8")
    documented = {
        row[1]: tuple(re.findall(r"`(\w+)`", row[2]))
        for row in re.finditer(r"^\| `(\w+)` \|[^|]*\| (.*) \|$", text, re.MULTILINE)
    }
    assert documented.pop(EVENTS) == ("run",)
    assert documented == {name: tuple(each.columns) for name, each in TABLES.items()}
